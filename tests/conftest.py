"""Fixtures that every test file may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import settings

from windlass.testing.servers import PostgresServer

_NUMBERS = count(1)

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")


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
