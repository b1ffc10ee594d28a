"""Fixtures that every test file may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from windlass.testing.servers import PostgresServer

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for this test process, started when first asked for."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database."""
    name = f"test{next(_NUMBERS)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
