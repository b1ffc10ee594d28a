"""Fixtures that every test file may ask for, which tests are long, and how many processes run them."""

from __future__ import annotations

import importlib
import os
import signal
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg.rows import TupleRow

from tests import shortcuts
from tests.tiers import SHORT, long, try_fewer
from windlass.testing.servers import PostgresServer

shortcuts.install()

# A shell has what it starts in the background ignore Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ArgsSource = pytest.Config.ArgsSource
TESTS = Path(__file__).parent
ROOT, PROOFS = TESTS.parent, TESTS / "proof"
MAX_PROCESSES = 16  # each has a PostgreSQL of its own


# How long an example takes says how busy the machine is, and nothing else. They are the same every time, so that green can be had again;
# HYPOTHESIS_PROFILE=new looks for others, and long for many.
_HOW: dict[str, Any] = {"deadline": None, "print_blob": True}
settings.register_profile("same", derandomize=True, **_HOW)
settings.register_profile("new", **_HOW)
settings.register_profile("long", max_examples=2_000, **_HOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection(session: pytest.Session) -> None:
    """In a run of all tests each file is first imported by one process, so that what it has compiled the others need not compile."""
    config = session.config
    if not hasattr(config, "workerinput") or config.args_source is not ArgsSource.TESTPATHS:
        return
    shared = Path(config.option.basetemp).parent
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(TESTS.glob("*/test_*.py")) if path.parent != PROOFS]
    for name in names:
        with suppress(Exception):  # another process has it; what else goes wrong, collection will tell
            (shared / f"{name}.claimed").touch(exist_ok=False)
            importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)  # before pytest looks who is marked
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == PROOFS:
            item.add_marker(long)
    if config.getoption("-m") == SHORT:
        try_fewer(items)
        if hasattr(config, "workerinput"):
            items.sort(key=_scattered)


def _scattered(item: pytest.Item) -> int:
    """An order of files that has nothing to do with their folders: those that wait most, of workers and stores, would all come last."""
    return zlib.crc32(item.location[0].encode())


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Most of the time tests wait: for one another, for other processes, for a deadline. Long proofs have short leases, and wait less."""
    each = 4 if config.getoption("-m") == SHORT else 2
    return min(each * (os.cpu_count() or 1), MAX_PROCESSES)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for this test process, started when first asked for."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def bare_postgres(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[TupleRow]]:
    """A connection to a database without tables; removing those of a test is quicker than creating another database."""
    with psycopg.connect(postgres_server.create_database("bare"), autocommit=True) as connection:
        yield connection


_RESTORE = """
select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid();
drop schema public cascade;
create schema public;
alter database bare reset all;
"""


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, bare_postgres: psycopg.Connection[TupleRow]) -> Iterator[str]:
    """An empty database. A test that changes anything else than the schema `public` and settings creates a database of its own."""
    yield postgres_server.url("bare")
    bare_postgres.execute(_RESTORE)
