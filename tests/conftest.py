"""Fixtures that every test file may ask for, which tests are long, and how many processes run them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiers import long
from windlass.testing.servers import PostgresServer

_NUMBERS = count(1)

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")

PROOFS = Path(__file__).parent / "proof"
MOST_PROCESSES = 16  # each has a PostgreSQL of its own


@pytest.hookimpl(tryfirst=True)  # before pytest looks who is marked
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == PROOFS:
            item.add_marker(long)


def pytest_xdist_auto_num_workers() -> int:
    """Half of the time tests wait: for one another, for other processes, for a deadline."""
    return min(2 * (os.cpu_count() or 1), MOST_PROCESSES)


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
