"""G: the scheduler's design guards, through a real worker. Its job is an attempt, and its one global slot a worker with one slot."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.conformance import begun
from tests.workers import DEADLINE, Gate, ended, in_state, later, moves, program, until, working
from windlass import App, Context, Handle, Job, State
from windlass.machine import ENDED
from windlass.model import Attempt, Entry
from windlass.store.base import run_sync

GUARDS: dict[str, Any] = {"max_attempts": 4, "backoff": (10, 20, 40), "retry_place": "tail"}


def failing(app: App, calls: list[tuple[str, int]], good: int | None = None, **options: Any) -> Job[[], None]:
    """A job that fails but for one attempt."""

    @app.job(name="backup", **options)
    def backup(ctx: Context) -> None:
        calls.append((ctx.run, ctx.attempt))
        if ctx.attempt != good:
            raise OSError(f"disk full {ctx.attempt}")

    return backup


def journal(app: App) -> Iterator[Entry]:
    """Every change of state there was, in order."""
    cursor = None
    while (tail := run_sync(app.engine.tail(cursor))).entries:
        cursor = tail.cursor
        yield from tail.entries


def as_written(app: App) -> Iterator[tuple[str, str, State]]:
    """Run, move and state of every entry. A tail goes by transactions on PostgreSQL, and one that began earlier may write later."""
    if not app.address.startswith("postgres"):
        yield from ((entry.run, entry.move, entry.state) for entry in journal(app))
        return
    with psycopg.connect(app.address) as connection:
        query = "select r.id, j.move, j.state from job_journal j join job_runs r on r.seq = j.run order by j.entry"
        yield from ((run, move, State(state)) for run, move, state in connection.execute(query).fetchall())


def most_at_once(app: App) -> int:
    """How many runs the journal has seen handed out at the same time, at most."""
    live: set[str] = set()
    limit = 0
    for run, move, state in as_written(app):
        if move == "claim":
            live.add(run)
        elif state in (*ENDED, State.QUEUED, State.SCHEDULED):
            live.discard(run)
        limit = max(limit, len(live))
    return limit


def load(app: App, job: Job[[], None], producers: int, each: int) -> list[Handle[None]]:
    """Runs from several threads at once."""
    runs: list[Handle[None]] = []

    def produce() -> None:
        runs.extend(job.enqueue() for _ in range(each))

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_G4_a_worker_with_a_running_job_gets_no_second_one(app: App, kind: str) -> None:
    gate = Gate()
    job: Job[[], None]
    if kind == "async":

        @app.job(name="backup")
        async def in_loop(ctx: Context) -> None:
            await gate.wait(ctx.run)

        job = in_loop
    else:

        @app.job(name="backup")
        def on_thread(ctx: Context) -> None:
            gate.block(ctx.run)

        job = on_thread
    first = job.enqueue()
    with working(app):
        gate.reached()
        others = [job.enqueue() for _ in range(5)]
        in_state(first, State.RUNNING)
        assert [other.refresh().state for other in others] == [State.QUEUED] * 5
        gate.open()
        for other in others:
            ended(other)
    assert (gate.limit, most_at_once(app)) == (1, 1)


def test_G4_unless_parallel_is_configured(app: App) -> None:
    gate = Gate()

    @app.job(name="backup")
    async def backup(ctx: Context) -> None:
        await gate.wait(ctx.run)

    runs = [backup.enqueue() for _ in range(2)]
    with working(app, slots=2):
        gate.reached(2)
        gate.open()
        for run in runs:
            ended(run)
    assert most_at_once(app) == 2


def chain(attempts: list[Attempt]) -> list[str]:
    """The ids from the last attempt back to the first, by what each says it retries."""
    by_id = {attempt.id: attempt for attempt in attempts}
    links = [attempts[-1].id]
    while (before := by_id[links[-1]].retry_of) is not None:
        links.append(before)
    return links


def test_G9_each_attempt_is_executed_once_and_a_retry_names_the_one_that_failed(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = failing(app, calls, good=3, backoff=(0,)).enqueue()
    with working(app):
        ended(run)
    attempts = run.attempts()
    assert calls == [(run.id, 1), (run.id, 2), (run.id, 3)]
    assert (attempts[0].id, attempts[0].retry_of) == (run.id, None)
    assert [attempt.retry_of for attempt in attempts[1:]] == [attempt.id for attempt in attempts[:-1]]
    assert len({attempt.id for attempt in attempts}) == 3
    assert [attempt.error and attempt.error.message for attempt in attempts] == ["disk full 1", "disk full 2", None]
    for attempt in attempts:
        assert attempt.claimed_at is not None
        assert attempt.finished_at is not None


def test_G10_the_retry_count_is_the_length_of_the_chain(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = failing(app, calls, max_attempts=5, backoff=(0,)).enqueue()
    with working(app):
        failed = ended(run)
    links = chain(run.attempts())
    assert (links[-1], len(links) - 1, len(calls)) == (run.id, 4, 5)
    assert failed.failures == 5


def test_G11_failures_are_retried_until_the_limit_with_growing_delays(still: App) -> None:
    calls: list[tuple[str, int]] = []
    run = failing(still, calls, **GUARDS).enqueue()
    with working(still):
        for n, delay in enumerate((10_000, 20_000, 40_000), start=2):
            assert in_state(run, State.SCHEDULED, attempt=n).due_at == still.clock.now() + delay
            assert calls[-1] == (run.id, n - 1)
            later(still, delay)
        failed = ended(run)
        later(still, 3_600_000)
    assert (failed.state, [attempt for _, attempt in calls]) == (State.FAILED, [1, 2, 3, 4])
    assert run.refresh() == failed


def test_G25_never_more_than_one_runs_under_load(app: App) -> None:
    live, limit = 0, 0

    @app.job(name="backup", backoff=(0,))
    async def backup(ctx: Context) -> None:
        nonlocal live, limit
        live += 1
        limit = max(limit, live)
        await asyncio.sleep(0.002)
        live -= 1
        if ctx.attempt == 1 and ctx.run[-1] in "01234":
            raise RuntimeError("some fail")

    with ExitStack() as workers:
        # Two with the same name: the store keeps them apart, whatever each believes of itself.
        for _ in range(2):
            workers.enter_context(working(app, name="only"))
        runs = load(app, backup, producers=3, each=15)
        for run in runs:
            assert ended(run).state is State.SUCCEEDED
    assert (limit, most_at_once(app)) == (1, 1)


@pytest.mark.parametrize("slots", ["1", "4"])
def test_G29_at_sigterm_nothing_new_is_dispatched_and_the_running_job_finishes_and_is_on_disk(shared: App, slots: str) -> None:
    for name in ("held", "quick"):
        run_sync(shared.engine.define(name))
    run = shared.enqueue("held")
    with program(shared.address, slots) as child:
        assert child.says()[:3] == ["began", run.id, "1"]
        child.signal(signal.SIGTERM)
        assert child.says() == ["stopping"]
        later_ones = [shared.enqueue("quick") for _ in range(3)]
        child.tell("finished")
        assert child.says() == ["ends", run.id, "None"]
        assert child.says() == ["over", "False"]
        assert child.wait() == 0
    shared.close()
    done = run.refresh()
    assert (done.state, done.output, done.failures, done.requeues) == (State.SUCCEEDED, '"finished"', 0, 0)
    for other in later_ones:
        assert (other.refresh().state, begun(other.record)) == (State.QUEUED, 0)
        assert moves(shared, other) == ["create"]


def test_G29_a_job_that_does_not_finish_within_the_grace_is_requeued_and_runs_after_the_restart(shared: App) -> None:
    @shared.job(name="stuck")
    def stuck(ctx: Context) -> str:
        return f"attempt {ctx.attempt}"

    run = stuck.enqueue()
    with program(shared.address, "1", "10", "0.4") as child:
        assert child.says() == ["began", run.id, "1"]
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    requeued = run.refresh()
    assert (requeued.state, requeued.failures, requeued.requeues) == (State.QUEUED, 0, 1)
    with working(shared):
        assert run.wait(DEADLINE) == "attempt 2"


def test_G29_a_stop_finishes_what_runs_also_where_no_signal_is_sent(app: App) -> None:
    gate = Gate()

    @app.job(name="backup")
    def backup(ctx: Context) -> None:
        gate.block(ctx.run)

    run, other = backup.enqueue(), backup.enqueue()
    with working(app) as at_work:
        gate.reached()
        stopped = at_work.ask(grace=DEADLINE)
        gate.open()
        stopped.result(DEADLINE)
    assert run.refresh().state is State.SUCCEEDED
    assert moves(app, other) == ["create"]
    until(lambda: not at_work.alive)
