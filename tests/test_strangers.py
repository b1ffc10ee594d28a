"""A stranger's long transaction on PostgreSQL holds up nobody but itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.harness import LEASE, Harness, token
from windlass.clock import ManualClock
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held

Connection = psycopg.Connection[TupleRow]


@pytest.fixture
def h(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """The engine on PostgreSQL. Whatever waits for a lock fails soon."""
    clock = ManualClock()
    store = BlockingPostgres(request.getfixturevalue("emptied_postgres"), clock, settings={"lock_timeout": "500ms"})
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())


@pytest.fixture
def stranger(emptied_postgres: str) -> Iterator[Connection]:
    """A connection of somebody else, with a transaction that is rolled back unless it is committed before."""
    with psycopg.connect(emptied_postgres) as connection:
        yield connection
        connection.rollback()


def lock(stranger: Connection, *runs: str) -> None:
    """Lock runs as somebody with a database shell would."""
    stranger.execute("select 1 from job_runs where id = any(%s) for update", [list(runs)])


def beat(h: Harness, *runs: Any, **how: Any) -> list[str]:
    return [*h(h.engine.beat([Held(run.seq, token(run)) for run in runs], **how))]


def test_a_beat_passes_over_a_locked_run_and_says_that_it_is_unknown(h: Harness, stranger: Connection) -> None:
    for _ in range(3):
        h.create()
    locked, bystander, gone = h.claim(3)
    h.succeed(gone)
    lock(stranger, locked.id)
    h.clock.advance(1_000)
    progress = {Held(run.seq, token(run)): "1" for run in (locked, bystander)}
    assert beat(h, locked, bystander, gone, progress=progress) == ["unknown", "ok", "lost"]
    assert [h.get(run.id).lease_until for run in (locked, bystander)] == [locked.lease_until, h.clock.now() + LEASE]
    assert [h.get(run.id).progress for run in (locked, bystander)] == [None, "1"]
    stranger.rollback()
    assert beat(h, locked, bystander, gone) == ["ok", "ok", "lost"]
    assert h.get(locked.id).lease_until == h.clock.now() + LEASE


def test_a_beat_on_a_locked_run_of_another_holder_is_lost(h: Harness, stranger: Connection) -> None:
    h.create()
    first = h.claimed()
    h.sweep(after=LEASE + 1)
    h.sweep(after=60_000)
    second = h.claimed("w2")
    lock(stranger, second.id)
    assert beat(h, first, second) == ["lost", "unknown"]
