"""What the five protocols promise, in the engine's own words. Each test carries the number of its line.

In these tests a run that a claim can get is a message that was sent, "consume" is claim, start and report, and a handler that
throws is the report Fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from tests.harness import BOOM, Harness, open_store
from windlass.clock import ManualClock
from windlass.errors import Cancelled, WindlassError
from windlass.machine import Fail, Report, Succeed
from windlass.model import Run, State
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite

T = TypeVar("T")

KUMOFIRE: dict[str, Any] = {"max_attempts": 3, "backoff": (1_000, 2_000, 4_000)}
SO1: dict[str, Any] = {"max_attempts": 1}
GUARDS: dict[str, Any] = {"max_attempts": 4, "backoff": (10_000, 20_000, 40_000), "retry_place": "tail"}
FORGE: dict[str, Any] = {"max_attempts": 3, "backoff": (0,), "on_exhausted": "quarantined", "max_runtime": 300_000}
ZEROG: dict[str, Any] = {"max_attempts": 3, "backoff_base": 500}
FORGE_LEASE = 60_000

SHARED = ("file", "postgres")
"""The stores that several processes can have open."""

TABLES = (
    "jobs",
    "job_lanes",
    "job_runs",
    "job_waits",
    "job_attempts",
    "job_journal",
    "job_logs",
    "job_keys",
    "job_schedules",
    "job_skips",
    "workers",
    "schema_version",
)


def begun(run: Run) -> int:
    """How many attempts were handed to a worker: what 0gkit and Forge count as attempts."""
    return run.attempt - (run.claimed_at is None)


# A run in every state


def running(h: Harness) -> Run:
    """A new run whose handler has begun."""
    h.create()
    return h.started()


def _claimed(h: Harness) -> Run:
    h.create()
    return h.claimed()


def _cancelling(h: Harness) -> Run:
    return h(h.engine.cancel(running(h).id))


def _reported(report: Report, on_exhausted: str = "failed") -> Callable[[Harness], Run]:
    def bring(h: Harness) -> Run:
        h.define("last", max_attempts=1, on_exhausted=on_exhausted)
        h.create("last")
        run = h.started()
        h.report(run, replace(report, token=run.token))
        return h.get(run.id)

    return bring


def _cancelled(h: Harness) -> Run:
    run = _cancelling(h)
    with pytest.raises(Cancelled):
        h.succeed(run)
    return h.get(run.id)


IN_STATE: dict[State, Callable[[Harness], Run]] = {
    State.WAITING: lambda h: h.get(h.create(after=(h.create(due_at=h.clock.now() + 3_600_000),))),
    State.SCHEDULED: lambda h: h.get(h.create(due_at=h.clock.now() + 60_000)),
    State.QUEUED: lambda h: h.get(h.create()),
    State.CLAIMED: _claimed,
    State.RUNNING: running,
    State.CANCELLING: _cancelling,
    State.SUCCEEDED: _reported(Succeed(output='"done"')),
    State.FAILED: _reported(Fail(error=BOOM)),
    State.QUARANTINED: _reported(Fail(error=BOOM), on_exhausted="quarantined"),
    State.CANCELLED: _cancelled,
    State.SKIPPED: lambda h: h(h.engine.skip(h.create(), reason="no longer wanted")),
}
"""How a run is brought into each state; the ended ones but for the skipped have been executed."""


# What is stored


def address(store: Store) -> str:
    """Where another process finds the same store."""
    if isinstance(store, BlockingSqlite):
        return store._path
    assert isinstance(store, BlockingPostgres)
    return make_conninfo(**store._parameters)


def dump(store: Store) -> dict[str, list[Row]]:
    """Every row of every table."""
    if isinstance(store, BlockingSqlite):
        line = store._line
        assert line is not None
        return {table: sorted(line.db.execute(f"select * from {table}"), key=repr) for table in TABLES}
    with psycopg.connect(address(store)) as connection:
        return {table: sorted(connection.execute(f"select * from {table}"), key=repr) for table in TABLES}


@contextmanager
def unchanged(h: Harness) -> Iterator[None]:
    """Not a byte in the store differs afterwards."""
    before = dump(h.store)
    yield
    assert dump(h.store) == before


# What happens at the same time


class Between:
    """A store in which something else happens before the first batch with certain statements: after the reading, before the writing."""

    def __init__(self, store: Store, statements: Collection[str], happens: Callable[[], object]) -> None:
        self._store, self._statements, self._happens = store, statements, happens
        self._waits = True

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        if self._waits and any(statement.name in self._statements for statement in statements):
            self._waits = False
            self._happens()
        return await self._store.batch(verb, statements)

    async def close(self) -> None:
        await self._store.close()


def late(h: Harness, statement: str, happens: Callable[[], object]) -> Harness:
    """Another process that has read already, and writes only after something else has happened."""
    return Harness(Between(h.store, (statement,), happens), h.clock)


def _close(store: Store) -> None:
    run_sync(store.close())


@contextmanager
def crowd(kind: str, folder: Path, request: pytest.FixtureRequest, size: int) -> Iterator[list[Harness]]:
    """Several engines, each with a store and a connection of its own, on one database with the job "mail"."""
    clock = ManualClock()
    with ExitStack() as stores:
        members = []
        for _ in range(size):
            store = open_store(kind, folder, request, clock)
            stores.callback(_close, store)
            members.append(Harness(store, clock))
        members[0].define()
        yield members


def at_once(crowd: Sequence[Harness], statements: Collection[str], *verbs: Callable[[Harness], T]) -> list[T | WindlassError]:
    """Each member's verb in a thread of its own. Nobody writes before all have read; an error of ours is an answer.

    One that has nothing to write after all, because it left a row alone that another had locked, keeps nobody waiting.
    """
    barrier = threading.Barrier(len(verbs))

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(60)

    def act(member: Harness, verb: Callable[[Harness], T]) -> T | WindlassError:
        try:
            return verb(Harness(Between(member.store, statements, meet), member.clock))
        except WindlassError as error:
            return error
        finally:
            barrier.abort()

    with ThreadPoolExecutor(len(verbs)) as threads:
        return list(threads.map(act, crowd, verbs))


def restarted(h: Harness, folder: Path, request: pytest.FixtureRequest) -> Harness:
    """The engine after a restart: nothing is left but the store, which is opened anew unless it lives in memory."""
    kind = request.node.callspec.params["h"]
    if kind == "memory":
        return h.another()
    _close(h.store)
    store = open_store(kind, folder, request, h.clock)
    request.addfinalizer(lambda: _close(store))
    return Harness(store, h.clock)
