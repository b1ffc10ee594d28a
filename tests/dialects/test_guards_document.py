"""The code of the document runs as it stands there: its example test, its sketches of the rules, its order in SQL (G1, G3, G5, INV-004)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import TupleRow

from tests.dialects.guards_document import BLOCKS, namespace
from tests.dialects.guards_library import QUEUE, Library
from tests.harness import Harness
from windlass.dialects import guards
from windlass.dialects.guards import InvalidOperationError, Scheduler


@pytest.fixture
def s(h: Harness) -> Iterator[Library]:
    yield Library(h)
    guards.use(None)


def test_G1_the_documents_example_test_passes(s: Library) -> None:
    s.create_template("test")
    namespace(s, BLOCKS["example"])["test_cannot_modify_params_after_dispatch"]()


def test_G1_the_documents_rule_agrees_with_ours(s: Library) -> None:
    theirs = namespace(s, BLOCKS["INV-001"])["update_job"]
    job = s.job()
    theirs(job, params={})
    s.update_job(job, params={})
    s.dispatch_job(job)
    for update in (theirs, guards.update_job):
        with pytest.raises(InvalidOperationError, match="Cannot modify params"):
            update(job, params={})
    s.update_jobrun(job, status="COMPLETED")
    with pytest.raises(InvalidOperationError, match="Cannot modify params"):
        theirs(job, params={})  # an ended job keeps the word RUNNING


def test_G3_the_documents_rule_agrees_with_ours(s: Library) -> None:
    names = namespace(s, BLOCKS["INV-002"])
    assert names["JOBRUN_MUTABLE_FIELDS"] == guards.JOBRUN_MUTABLE_FIELDS
    job = s.dispatch_job(s.job()).job_id
    for update in (names["update_jobrun"], guards.update_jobrun):
        with pytest.raises(InvalidOperationError, match="params_snapshot"):
            update(job, params_snapshot={}, status="COMPLETED")


@contextmanager
def as_table(s: Library, postgres: psycopg.Connection[TupleRow]) -> Iterator[psycopg.Connection[TupleRow]]:
    """The jobs as a table of the document, from what the library tells of them."""
    rows = [job.to_json() for job in s.list_jobs(limit=200)]
    columns = ("job_id", "status", "priority", "position", "created_at")
    with postgres.transaction(force_rollback=True):
        postgres.execute(
            "create temp table jobs (job_id text, status text, priority int, position int, created_at timestamptz) on commit drop"
        )
        with postgres.cursor() as cursor:
            cursor.executemany("insert into pg_temp.jobs values (%s, %s, %s, %s, %s)", [[row[name] for name in columns] for row in rows])
        yield postgres


def next_of_the_document(s: Library, postgres: psycopg.Connection[TupleRow]) -> str | None:
    """The job that the document's own statement chooses."""
    with as_table(s, postgres) as connection:
        row = connection.execute(BLOCKS["INV-004"].encode()).fetchone()
    return None if row is None else str(row[0])


JOBS = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 900)), min_size=1, max_size=7)
EDITS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["priority", "position", "cancel", "fail"]), st.integers(0, 100)), max_size=5)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=JOBS, edits=EDITS)
def test_G5_a_claim_takes_what_the_documents_sql_selects(
    h: Harness, postgres_home: psycopg.Connection[TupleRow], jobs: list[tuple[int, int | None]], edits: list[tuple[int, str, int]]
) -> None:
    s = Library(h)
    ids = [s.job(priority=priority, position=position) for priority, position in jobs]
    for index, edit, value in edits:
        job = ids[index % len(ids)]
        if edit == "fail":
            s.fail_run(h.claimed(queues=(QUEUE,))) if s.list_jobs("QUEUED") and next_of_the_document(s, postgres_home) else None
            s.advance(seconds=40)
        elif s.load_job(job).status == "QUEUED":
            s.cancel_job(job) if edit == "cancel" else s.update_job(job, **{edit: value})
    while (expected := next_of_the_document(s, postgres_home)) is not None:
        run = s.claimed()
        assert run.current_attempt == expected
        s.update_jobrun(expected, status="COMPLETED")
    assert s.idle()


def test_G5_the_order_is_the_same_after_a_restart(h: Harness) -> None:
    s = Library(h)
    low, late, early = s.job(), s.job(priority=5), s.job(priority=5)
    s.update_job(early, position=100)
    again = Library(h.another())
    assert [again.end(status="COMPLETED").job_id for _ in range(3)] == [early, late, low]


def test_functions_are_those_of_the_scheduler_in_use(s: Library) -> None:
    guards.use(s)
    for name in ("create_job", "load_job", "dispatch_job", "update_job", "update_jobrun", "retry_run", "cancel_job", "create_group"):
        assert getattr(guards, name).__doc__ == getattr(Scheduler, name).__doc__
    assert guards.load_job(guards.create_job("story").job_id).status == "QUEUED"
    assert guards.status().queue_length == 1
