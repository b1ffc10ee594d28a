"""A store of an earlier version goes on after `migrate`: what was stored under the old names is read under the new ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.model import Policy
from windlass.store import postgres, sql, sqlite
from windlass.store.base import Store, run_sync

BEFORE_THE_WORDS = 20
OLD = (
    "insert into job_lanes (id, queue, job, requires) values (1, 'default', 'mail', '{}')",
    """insert into jobs (name, handler, payload, options, rev, created_at, updated_at)
       values ('mail', 'mail', '{}', '{"exhausted":"quarantined","max_returns":3}', 1, 1, 1)""",
    """insert into job_schedules (key, job, kind, expr, zone, anchor, payload, options, missed, most, overlap, jitter, enabled, rev,
       created_at, updated_at)
       values ('nightly', 'mail', 'cron', '0 3 * * *', 'UTC', 1, '{}', '{"max_returns":3}', 'all', 7, 'allow', 0, 1, 1, 1, 1)""",
    """insert into job_runs (id, rev, state, job, queue, lane, band, position, payload, due_at, created_at, max_attempts, burnt, returns,
       aged, policy) values ('r1', 1, 'queued', 'mail', 'default', 1, -2, 1, '{}', 1, 1, 5, 2, 4, 2,
       '{"exhausted":"quarantined","max_returns":3,"ageing":60000}')""",
    """insert into job_runs (id, rev, state, job, queue, lane, band, position, payload, due_at, created_at, max_attempts, policy)
       values ('r2', 1, 'queued', 'mail', 'default', 1, 0, 1, '{"exhausted":1}', 1, 1, 5, '{"grace":1000}')""",
    """insert into workers (name, jobs, tags, cores, memory, slots, registered_at, seen_at)
       values ('plain', '["mail"]', '["gpu"]', 1, 0, 1, 1, 1), ('solves', '["mail"]', '["gpu","solver"]', 1, 0, 1, 1, 1)""",
)


def _is_read_under_the_new_names(store: Store) -> None:
    engine = Engine(store, ManualClock(1_000))
    run, other = run_sync(engine.get("r1")), run_sync(engine.get("r2"))
    assert (run.failures, run.requeues, run.priority_key, run.aging_priority) == (2, 4, -2, 2)
    assert run.policy == Policy(on_exhausted="quarantined", max_requeues=3, aging=60_000)
    assert (other.policy, other.payload) == (Policy(grace=1_000), '{"exhausted":1}')
    schedule = run_sync(engine.get_schedule("nightly"))
    assert (schedule.max_missed, schedule.code_hash, schedule.options.max_requeues) == (7, None, 3)
    options = run_sync(engine.get_job("mail")).options
    assert (options.on_exhausted, options.max_requeues) == ("quarantined", 3)
    assert [(worker.info.name, worker.info.programs) for worker in run_sync(engine.workers())] == [("plain", False), ("solves", True)]
    run_sync(engine.close())


def test_names_of_an_older_sqlite_file(tmp_path: Path) -> None:
    path, steps = str(tmp_path / "old.db"), sql.migrations("sqlite")
    sqlite.migrate(path, ManualClock(1), steps[:BEFORE_THE_WORDS])
    with closing(sqlite3.connect(path)) as db, db:
        for statement in OLD:
            db.execute(statement)
    assert sqlite.migrate(path, ManualClock(2)) == (BEFORE_THE_WORDS, len(steps))
    _is_read_under_the_new_names(sqlite.BlockingSqlite(path, ManualClock(3)))


def test_names_of_an_older_postgres_database(postgres_url: str) -> None:
    steps = sql.migrations("postgres")
    postgres.migrate(postgres_url, ManualClock(1), steps[:BEFORE_THE_WORDS])
    with psycopg.connect(postgres_url) as db:
        for statement in OLD:
            db.execute(statement)
    assert postgres.migrate(postgres_url, ManualClock(2)) == (BEFORE_THE_WORDS, len(steps))
    _is_read_under_the_new_names(postgres.BlockingPostgres(postgres_url, ManualClock(3)))
