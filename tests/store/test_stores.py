"""Every store passes the one conformance suite; and what only its own database can show: who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.invariants import with_tables
from tests.tiers import corners
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import Conflict, SchemaMismatch
from windlass.model import WorkerInfo
from windlass.store import postgres, sql, sqlite
from windlass.store.base import Statement, Store, Value, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres
from windlass.store.records import Held
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite, connect, disconnect
from windlass.testing.stores import CASES, Case, Stores, conform

Drive = Callable[[Coroutine[Any, Any, None]], None]


class Kind(NamedTuple):
    """A store, where its data are, and how it is driven."""

    store: Callable[..., Store]
    where: str
    drive: Drive


KINDS = {
    "blocking memory": Kind(BlockingSqlite, "memory", run_sync),
    "blocking file": Kind(BlockingSqlite, "file", run_sync),
    "blocking postgres": Kind(BlockingPostgres, "postgres", run_sync),
    "async memory": Kind(AsyncSqlite, "memory", asyncio.run),
    "async file": Kind(AsyncSqlite, "file", asyncio.run),
    "async postgres": Kind(AsyncPostgres, "postgres", asyncio.run),
}


def opener(kind: Kind, folder: Path, request: pytest.FixtureRequest) -> Callable[[ManualClock], Store]:
    match kind.where:
        case "memory":
            return cache(lambda clock: kind.store(":memory:", clock))  # the data belong to the one connection
        case "file":
            return lambda clock: kind.store(folder / "windlass.db", clock)
        case _:
            url = request.getfixturevalue("emptied_postgres")
            return lambda clock: kind.store(url, clock)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", corners(KINDS))
def test_store(kind: str, case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    KINDS[kind].drive(conform(case, opener(KINDS[kind], tmp_path, request)))


def _migrated(where: str, folder: Path, request: pytest.FixtureRequest) -> tuple[Callable[..., Store], Callable[..., tuple[int, int]]]:
    if where == "file":
        path = folder / "windlass.db"
        return lambda **how: BlockingSqlite(path, ManualClock(), **how), lambda: sqlite.migrate(path, ManualClock())
    url = request.getfixturevalue("postgres_url")
    return lambda **how: BlockingPostgres(url, ManualClock(), **how), lambda: postgres.migrate(url, ManualClock())


OLD = {
    "old_job": "insert into jobs (name, handler, payload, options, rev, created_at, updated_at) values ('job', 'job', '{}', '{}', 1, 1, 1)",
    "old_lane": "insert into job_lanes (queue, job, requires) values ('default', 'job', '')",
    "old_run": "insert into job_runs (id, rev, state, job, queue, lane, {rank}, position, payload, due_at, created_at, max_attempts)"
    " values (:id, 1, 'queued', 'job', 'default', 1, 0, :n, '{{}}', 1, 1, 3)",
    "old_entry": "insert into job_journal (run, rev, at, move, state, attempt)"
    " select seq, 1, 1, 'create', 'queued', 1 from job_runs where id = :id",
}
"""What the first version wrote, and every later one could read."""
RENAMED = 21
"""The step that called the column `band` `priority_key`."""


@pytest.mark.parametrize(("where", "version"), corners(("file", "postgres"), range(1, len(sql.migrations("sqlite")))))
def test_what_was_stored_before_a_step_of_the_schema_goes_on_after_it(
    where: str, version: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened, migrate = _migrated(where, tmp_path, request)
    dialect = "sqlite" if where == "file" else "postgres"
    put = OLD | {"old_run": OLD["old_run"].format(rank="band" if version < RENAMED else "priority_key")}
    old = opened(steps=sql.migrations(dialect)[:version], queries=with_tables(dialect, **put))
    created = [f"run-{n}" for n in range(3)]
    runs = [Statement(name, {"id": run, "n": n}) for n, run in enumerate(created) for name in ("old_run", "old_entry")]
    run_sync(old.batch("put", [Statement("old_job"), Statement("old_lane"), *runs]))
    run_sync(old.close())
    with pytest.raises(SchemaMismatch, match="windlass migrate"):
        opened()
    newest = len(sql.migrations("sqlite"))
    assert migrate() == (version, newest)
    assert migrate() == (newest, newest)
    store = opened(queries=with_tables(dialect, **put))
    with pytest.raises(Conflict):  # a revision of a run is journaled once
        run_sync(store.batch("put", [Statement("old_entry", {"id": created[0]})]))
    engine = Engine(store, ManualClock())
    assert [run_sync(engine.get(made)).progress for made in created] == [None] * 3
    run = run_sync(engine.claim(WorkerInfo("w")))[0]
    held = Held(run.seq, run.token or "")
    assert run_sync(engine.beat([held], progress={held: "1"})) == ["ok"]
    run = run_sync(engine.get(created[0]))
    assert (run.progress, run.schedule, run.instant, run.keys, run.parked, run.aging_priority, run.grouped) == ("1", *(None,) * 6)
    assert run_sync(engine.schedule("often", "job", every="1h")).key == "often"
    run_sync(store.close())


_WHOSE: dict[str, Value] = {"owner": None, "trusted": 1, "takes": 0, "schema": None, "description": None}
DEFINE = Statement("define", {"name": "job", "handler": "job", "payload": '"new"', "options": "{}", "now": 1, **_WHOSE})
NAMED = Statement("jobs_named", {"names": '["job"]'})


@contextmanager
def transaction(kind: Kind, folder: Path, request: pytest.FixtureRequest, statement: str) -> Iterator[None]:
    """Somebody else's transaction on the same data, open after a statement."""
    if kind.where == "postgres":
        with psycopg.connect(request.getfixturevalue("emptied_postgres")) as connection:
            connection.execute(statement.encode())
            yield
            connection.rollback()
        return
    db = connect(folder / "windlass.db", ManualClock())
    db.execute(f"begin; {statement}")
    yield
    db.execute("rollback")
    disconnect(db)


async def payload(store: Store) -> str:
    return str((await store.batch("read", [NAMED]))[0][0][3])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "memory" not in kind])
def test_a_reader_does_not_wait_for_a_writer(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def case(stores: Stores) -> None:
        store = stores.another()
        await store.batch("define", [DEFINE])
        with transaction(KINDS[kind], tmp_path, request, "update jobs set payload = 'unfinished'"):
            assert await payload(store) == '"new"'

    KINDS[kind].drive(conform(case, opener(KINDS[kind], tmp_path, request)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "memory" not in kind])
def test_a_writer_does_not_wait_for_a_reader(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def case(stores: Stores) -> None:
        store = stores.another()
        await store.batch("read", [NAMED])
        with transaction(KINDS[kind], tmp_path, request, "select * from jobs"):
            await store.batch("define", [DEFINE])
            assert await payload(store) == '"new"'

    KINDS[kind].drive(conform(case, opener(KINDS[kind], tmp_path, request)))
