"""K: Kumofire Jobs, through a real worker. A message is a hint; to consume it is what the worker does when it hears one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.workers import DEADLINE, Gate, ended, ghost, in_state, later, program, until, working
from windlass import App, Context, Job, State
from windlass.model import Options
from windlass.store.base import queue_topic, run_sync
from windlass.store.sqlite import BlockingSqlite

KUMOFIRE: dict[str, Any] = {"max_attempts": 3, "backoff": (1, 2, 4)}


def message(app: App, times: int = 20) -> None:
    """Say that the queue has something, whether it has or not."""
    for _ in range(times):
        app.engine.hints.wake({queue_topic("default")})


def mailing(app: App, calls: list[tuple[str, int]], fails: Callable[[int], bool] = lambda _: False, **options: Any) -> Job[[], str]:
    """A job that notes its calls, and fails at the attempts that are named."""

    @app.job(name="mail", **options)
    async def mail(ctx: Context) -> str:
        calls.append((ctx.run, ctx.attempt))
        if fails(ctx.attempt):
            raise ConnectionError(f"no answer {ctx.attempt}")
        return "sent"

    return mail


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_K13_a_consumed_run_is_locked_and_running_and_its_handler_sees_the_stored_payload(app: App, kind: str) -> None:
    gate, seen = Gate(), list[Any]()
    job: Job[..., None]
    if kind == "async":

        @app.job(name="mail")
        async def in_loop(to: str, parts: list[dict[str, int]], copies: int = 1) -> None:
            seen.append((to, parts, copies))
            await gate.wait()

        job = in_loop
    else:

        @app.job(name="mail")
        def on_thread(to: str, parts: list[dict[str, int]], copies: int = 1) -> None:
            seen.append((to, parts, copies))
            gate.block()

        job = on_thread
    parts = [{"n": 1}]
    run = job.enqueue("ann", parts=parts)
    parts.append({"n": 2})  # what is stored is what was enqueued
    with working(app, lease=20):
        running = in_state(run, State.RUNNING)
        assert (seen, running.worker) == ([("ann", [{"n": 1}], 1)], "w1")
        assert running.claimed_at is not None
        assert running.started_at is not None
        assert running.token is not None
        assert (running.lease_until or 0) >= running.claimed_at + 20_000
        gate.open()
        ended(run)


def test_K14_a_handler_that_returns_ends_the_run_and_clears_the_last_error(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = mailing(app, calls, lambda attempt: attempt == 1, backoff=(0,)).enqueue()
    with working(app):
        done = ended(run)
    assert (done.state, done.error, done.failures, done.output) == (State.SUCCEEDED, None, 1, '"sent"')
    assert done.finished_at is not None
    assert calls == [(run.id, 1), (run.id, 2)]


def test_K15_a_handler_that_throws_with_attempts_left_is_scheduled_again(still: App) -> None:
    calls: list[tuple[str, int]] = []
    mail = mailing(still, calls, lambda attempt: attempt == 1, **KUMOFIRE)
    run = mail.enqueue()
    with working(still):
        failed = in_state(run, State.SCHEDULED, attempt=2)
        assert failed.error is not None
        assert (failed.failures, failed.due_at, failed.error.message) == (1, still.clock.now() + 1_000, "no answer 1")
        later(still, 999)
        message(still)
        other = mail.enqueue()
        in_state(other, State.SCHEDULED, attempt=2)  # the worker has looked, and there was no message for the first
        assert run.refresh() == failed
        later(still, 1)
        assert ended(run).state is State.SUCCEEDED
    assert calls == [(run.id, 1), (other.id, 1), (run.id, 2)]


def test_K16_delays_are_one_then_two_seconds_and_the_third_failure_is_the_last(still: App) -> None:
    calls: list[tuple[str, int]] = []
    run = mailing(still, calls, lambda _: True, **KUMOFIRE).enqueue()
    with working(still):
        for failures, delay in ((1, 1_000), (2, 2_000)):
            failed = in_state(run, State.SCHEDULED, attempt=failures + 1)
            assert (failed.failures, failed.due_at) == (failures, still.clock.now() + delay)
            later(still, delay)
        last = ended(run)
    assert (last.state, last.failures) == (State.FAILED, 3)
    assert calls == [(run.id, 1), (run.id, 2), (run.id, 3)]


def test_K17_a_handler_that_throws_with_no_attempt_left_fails_the_run(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = mailing(app, calls, lambda _: True, max_attempts=1).enqueue()
    with working(app):
        failed = ended(run)
    assert failed.error is not None
    assert (failed.state, failed.failures, failed.error.message) == (State.FAILED, 1, "no answer 1")
    assert (failed.finished_at is not None, calls) == (True, [(run.id, 1)])


def test_K18_a_message_that_comes_again_after_success_does_nothing(app: App) -> None:
    calls: list[tuple[str, int]] = []
    mail = mailing(app, calls)
    run = mail.enqueue()
    with working(app):
        done = ended(run)
        message(app)
        other = mail.enqueue()
        ended(other)
        message(app)
        last = mail.enqueue()
        ended(last)
    assert calls == [(run.id, 1), (other.id, 1), (last.id, 1)]
    assert run.refresh() == done


def test_K20_a_run_whose_holder_is_gone_is_executed_again(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = mailing(app, calls, backoff=(0,)).enqueue()
    assert ghost(app, lease=300).id == run.id
    with working(app):
        assert run.wait(DEADLINE) == "sent"
    assert calls == [(run.id, 2)]
    lost, done = run.attempts()
    assert lost.error is not None
    assert (lost.worker, lost.error.code, done.worker) == ("ghost", "worker_lost", "w1")


def test_K20_a_run_whose_program_was_killed_is_executed_again(shared: App) -> None:
    @shared.job(name="held", backoff=(0,))
    def held(ctx: Context) -> int:
        return ctx.attempt

    run = held.enqueue()
    with program(shared.address, "1", "0.5") as child:
        assert child.says()[:3] == ["began", run.id, "1"]
        child.signal(signal.SIGKILL)
        child.wait()
    with working(shared):
        assert run.wait(DEADLINE) == 2


def test_K22_a_message_for_a_run_that_is_missing_or_cancelled_is_ignored(app: App) -> None:
    calls: list[tuple[str, int]] = []
    mail = mailing(app, calls)
    cancelled, missing = mail.enqueue(), mail.enqueue()
    before = cancelled.cancel()
    missing.cancel()
    execute(app, f"delete from job_runs where id = '{missing.id}'")
    with working(app):
        message(app)
        run = mail.enqueue()
        ended(run)
        message(app)
        last = mail.enqueue()
        ended(last)
    assert calls == [(run.id, 1), (last.id, 1)]
    assert cancelled.refresh() == before


def test_K23_a_run_without_a_handler_fails_without_a_retry_and_the_error_names_it(app: App) -> None:
    calls: list[tuple[str, int]] = []
    mail = mailing(app, calls)
    run_sync(app.verbs.define("unknown", options=Options(max_attempts=5, backoff=(0,))))
    run = app.enqueue("unknown")
    with working(app, on_unknown="fail"):
        failed = until(lambda: run.record if run.refresh().failures else None)
        assert mail.enqueue().wait(DEADLINE) == "sent"
    assert failed.error is not None
    assert (failed.state, failed.failures, failed.finished_at is not None) == (State.FAILED, 1, True)
    assert "'unknown'" in failed.error.message
    assert run.refresh() == failed


def test_K24_a_run_whose_definition_was_deleted_is_served_by_the_code_that_has_it(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = mailing(app, calls, lambda attempt: attempt == 1, backoff=(0,)).enqueue()
    with working(app, prepare=lambda _: execute(app, "delete from jobs")):
        assert run.wait(DEADLINE) == "sent"
    assert calls == [(run.id, 1), (run.id, 2)]
    assert run_sync(app.verbs.jobs()) == []


def execute(app: App, statement: str) -> None:
    """Do something to the store behind everybody's back."""
    store = app.engine.records.store
    if isinstance(store, BlockingSqlite):
        assert store._line is not None
        store._line.db.execute("pragma foreign_keys = off")
        store._line.db.execute(statement)
        return
    with psycopg.connect(app.address) as connection:
        connection.execute(statement.encode())
