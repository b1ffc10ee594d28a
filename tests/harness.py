"""The engine on every store, with a clock that stands still: what most tests begin with."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psycopg
import pytest
from psycopg import pq
from psycopg.rows import TupleRow

from tests.tiers import corners
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.machine import Fail, Report, Succeed
from windlass.model import Failure, NewRun, Options, Receipt, Run, WorkerInfo
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.postgres.wire import BlockingSession
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

T = TypeVar("T")

KINDS = ("memory", "file", "postgres")
LEASE = 30_000
BOOM = Failure("boom", "it broke")


class Harness:
    """An engine, its clock, and the few calls every test makes."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.engine = Engine(store, clock)

    def __call__(self, verb: Coroutine[Any, Any, T]) -> T:
        """Drive a verb of the engine to its end."""
        return run_sync(verb)

    def another(self) -> Harness:
        """A second process on the same store: nothing is shared but the clock."""
        return Harness(self.store, self.clock)

    def define(self, name: str = "mail", payload: dict[str, Any] | None = None, **options: Any) -> None:
        self(self.engine.define(name, payload=payload, options=Options(**options)))

    def create(self, job: str = "mail", payload: Any = None, **fields: Any) -> str:
        return self(self.engine.create([NewRun(job, payload, **fields)]))[0].id

    def claim(self, count: int = 1, worker: str = "w1", lease: int = LEASE, **can: Any) -> list[Run]:
        return self(self.engine.claim(WorkerInfo(worker, **{"slots": 1_000} | can), count=count, lease=lease))

    def claimed(self, worker: str = "w1", **can: Any) -> Run:
        """The one run that a claim must give now."""
        (run,) = self.claim(1, worker, **can)
        return run

    def started(self, worker: str = "w1", **can: Any) -> Run:
        run = self.claimed(worker, **can)
        self(self.engine.start(run.id, token(run)))
        return self.get(run.id)

    def report(self, run: Run, report: Report) -> Receipt:
        return self(self.engine.report(run.id, report))

    def succeed(self, run: Run, output: str | None = None) -> Receipt:
        return self.report(run, Succeed(token=run.token, output=output))

    def fail(self, run: Run, error: Failure = BOOM, **how: Any) -> Receipt:
        return self.report(run, Fail(token=run.token, error=error, **how))

    def get(self, run_id: str) -> Run:
        return self(self.engine.get(run_id))

    def sweep(self, after: int = 0) -> None:
        self.clock.advance(after)
        self(self.engine.sweep())

    def moves(self, run_id: str) -> list[str]:
        return [entry.move for entry in self(self.engine.history(run_id))]


def token(run: Run) -> str:
    assert run.token is not None
    return run.token


class KeptSession(BlockingSession):
    """A connection that is kept when its store is closed, if it is sound and no other is kept."""

    kept: ClassVar[list[KeptSession]] = []

    async def close(self) -> None:
        if self.state == pq.TransactionStatus.IDLE and not self.kept:
            self.kept.append(self)
        else:
            await super().close()


class ReusingPostgres(BlockingPostgres):
    """As any other, but it begins with the connection of the test before: most of the time of a test would go into planning anew."""

    async def _connect(self) -> BlockingSession:
        while KeptSession.kept:
            session = KeptSession.kept.pop()
            if not session.stale():
                return session
            session.connection.close()
        return KeptSession(psycopg.Connection.connect(autocommit=True, **self._parameters), pooled=False)


def open_store(kind: str, folder: Path, request: pytest.FixtureRequest, clock: ManualClock) -> Store:
    """A fresh, empty store of one kind; PostgreSQL is started only for those who ask for it."""
    if kind == "postgres":
        return ReusingPostgres(request.getfixturevalue("emptied_postgres"), clock)
    return BlockingSqlite(":memory:" if kind == "memory" else folder / "windlass.db", clock)


@pytest.fixture(scope="session")
def postgres_home(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[TupleRow]]:
    """A connection to a database that has the schema; emptying it is quicker than making another."""
    url = postgres_server.create_database("home")
    run_sync(BlockingPostgres(url, ManualClock()).close())
    with psycopg.connect(url, autocommit=True, options="-c session_replication_role=replica") as connection:  # tables in any order
        yield connection
    while KeptSession.kept:
        KeptSession.kept.pop().connection.close()


_END_OTHERS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
"""
_USED = """
select relname, pg_relation_size(oid) > 1000000 from pg_class
where relnamespace = 'public'::regnamespace and relkind = 'r' and relname <> 'schema_version' and pg_relation_size(oid) > 0
"""


@pytest.fixture
def emptied_postgres(postgres_server: PostgresServer, postgres_home: psycopg.Connection[TupleRow]) -> str:
    """A database with the schema and nothing else in it."""
    # Most tests leave a few rows in some tables. To truncate all would make new files for a hundred tables and indexes.
    postgres_home.execute(_END_OTHERS)
    for table, large in postgres_home.execute(_USED).fetchall():
        postgres_home.execute(f"truncate {table} cascade".encode() if large else f"delete from {table}".encode())
    postgres_home.execute("select setval(seqrelid, 1, false) from pg_sequence")
    return postgres_server.url("home")


def folder_for(kind: str, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own where a store is a file; others need none, and to make and remove one takes as long as some tests."""
    return Path(request.getfixturevalue("tmp_path")) if kind == "file" else Path()


@pytest.fixture(params=corners(KINDS))
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The engine on each store in turn, with a job called "mail"."""
    clock = ManualClock()
    store = open_store(request.param, folder_for(request.param, request), request, clock)
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())
