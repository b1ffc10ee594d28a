"""L: the SO1 job lifecycle, through a real worker."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest

from tests.conformance import SO1
from tests.workers import DEADLINE, Gate, ended, in_state, moves, until, working
from windlass import App, Context, Fail, Job, State

DEAF = """
import signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: print("told", file=sys.stderr, flush=True))
print("ready", file=sys.stderr, flush=True)
signal.pause()
print('"done"')
"""
"""A command that is done as soon as it is told to stop."""


def done_when_told(app: App, kind: str, told: list[str | None]) -> Job[..., Any]:
    """A job that takes the signal to stop for the time to say that it is done."""
    if kind == "command":
        return app.command("deaf", [sys.executable, "-c", DEAF])
    if kind == "async":

        @app.job(name="deaf")
        async def in_loop(ctx: Context) -> str:
            ctx.logger.info("ready")
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                told.append(ctx.why)
            return "done"

        return in_loop

    @app.job(name="deaf")
    def on_thread(ctx: Context) -> str:
        ctx.logger.info("ready")
        until(lambda: ctx.cancelled)
        told.append(ctx.why)
        return "done"

    return on_thread


def test_L2_the_worker_starts_it_and_started_at_is_set_once(app: App) -> None:
    gate = Gate()

    @app.job(name="mail")
    async def mail() -> None:
        await gate.wait()

    run = mail.enqueue()
    assert (run.refresh().state, run.record.started_at) == (State.QUEUED, None)
    with working(app, lease=3):
        running = in_state(run, State.RUNNING)
        assert running.started_at is not None
        assert (running.finished_at, running.created_at <= running.started_at) == (None, True)
        until(lambda: (run.refresh().lease_until or 0) > (running.lease_until or 0))  # a beat or more later
        gate.open()
        done = ended(run)
    assert done.started_at == running.started_at
    assert moves(app, run) == ["create", "claim", "start", "succeed"]


def test_L2_the_start_of_a_short_run_is_known_as_well(app: App) -> None:
    @app.job(name="mail")
    async def mail() -> None:
        pass

    run = mail.enqueue()
    with working(app):
        done = ended(run)
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.created_at <= done.started_at <= done.finished_at


def test_L3_success_sets_the_end_and_the_output_and_leaves_no_error(app: App) -> None:
    @app.job(name="mail", backoff=(0,))
    async def mail(ctx: Context) -> dict[str, str]:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return {"url": "x"}

    run = mail.enqueue()
    with working(app):
        assert run.wait(DEADLINE) == {"url": "x"}
    done = run.refresh()
    assert (done.state, done.output, done.error) == (State.SUCCEEDED, '{"url":"x"}', None)
    assert done.finished_at is not None


@pytest.mark.parametrize("ends", ["raises", "says"])
def test_L4_failure_sets_the_end_and_the_error(app: App, ends: str) -> None:
    @app.job(name="mail", **SO1)
    def mail() -> None:
        if ends == "raises":
            raise FileNotFoundError("The workflow was not found.")
        raise Fail("The workflow was not found.", code="GITHUB_ERROR")

    run = mail.enqueue()
    with working(app):
        failed = ended(run)
    assert failed.error is not None
    code = "FileNotFoundError" if ends == "raises" else "GITHUB_ERROR"
    assert (failed.state, failed.error.code, failed.error.message) == (State.FAILED, code, "The workflow was not found.")
    assert (failed.output, failed.finished_at is not None) == (None, True)


def test_L5_cancelled_while_pending_it_has_an_end_but_no_beginning_and_no_worker_runs_it(app: App) -> None:
    gate = Gate()

    @app.job(name="mail")
    async def mail(ctx: Context) -> None:
        await gate.wait(ctx.run)

    first = mail.enqueue()
    with working(app):
        gate.reached()
        # The worker is there and busy: what is cancelled now would be the next it takes.
        pending, later = mail.enqueue(), mail.options(delay=3600).enqueue()
        for run in (pending, later):
            run.cancel()
        last = mail.enqueue()
        gate.open()
        ended(last)
    assert gate.came == [first.id, last.id]
    for run in (pending, later):
        cancelled = run.refresh()
        assert (cancelled.state, cancelled.started_at, cancelled.claimed_at) == (State.CANCELLED, None, None)
        assert cancelled.finished_at is not None
        assert moves(app, run) == ["create", "cancel"]


@pytest.mark.parametrize("kind", ["async", "thread", "command"])
def test_L6_cancelled_while_running_the_worker_is_told_and_its_success_changes_nothing(app: App, kind: str) -> None:
    told: list[str | None] = []
    run = done_when_told(app, kind, told).enqueue()
    with working(app):
        until(lambda: [line.text for line in run.logs()])
        asked = run.cancel().cancel_asked_at
        cancelled = ended(run)
    assert kind == "command" or told == ["cancel"]
    assert kind != "command" or [line.text for line in run.logs()] == ["ready", "told"]
    assert (cancelled.state, cancelled.output, cancelled.output_hash, cancelled.error) == (State.CANCELLED, None, None, None)
    assert asked is not None
    assert cancelled.finished_at is not None
    assert (cancelled.cancel_asked_at, cancelled.finished_at >= asked) == (asked, True)
    assert "succeed" not in moves(app, run)
    assert moves(app, run)[-2:] == ["cancel", "confirm"]


def test_L6_the_success_of_a_handler_that_does_not_listen_changes_nothing_either(app: App) -> None:
    gate = Gate()

    @app.job(name="mail")
    def mail(ctx: Context) -> str:
        gate.block(ctx.run)
        return "done"

    run = mail.enqueue()
    with working(app) as at_work:
        gate.reached()
        run.cancel()
        until(lambda: [execution.why for execution in at_work.worker.in_flight.renewable()] == ["cancel"])
        assert run.refresh().state is State.CANCELLING
        gate.open()
        cancelled = ended(run)
    assert (cancelled.state, cancelled.output, cancelled.output_hash) == (State.CANCELLED, None, None)
    assert moves(app, run)[-2:] == ["cancel", "confirm"]


def test_L6_a_success_that_comes_after_the_end_changes_nothing(app: App) -> None:
    gate = Gate()

    @app.job(name="mail", grace=0.2)
    def mail(ctx: Context) -> str:
        gate.block(ctx.run)
        return "done"

    run = mail.enqueue()
    with working(app) as at_work:
        gate.reached()
        run.cancel()
        cancelled = ended(run)
        assert (cancelled.state, gate.inside) == (State.CANCELLED, 1)
        before = moves(app, run)
        at_work.join()  # a worker that had to leave a thread behind ends when it is idle
        gate.open()
        until(lambda: not gate.inside)
    assert run.refresh() == cancelled
    assert moves(app, run) == before


@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
def test_L11_log_lines_are_readable_and_unchanged_after_the_end(app: App, fails: bool) -> None:
    @app.job(name="mail", max_attempts=2, backoff=(0,))
    def mail(ctx: Context) -> None:
        for n in range(3):
            ctx.logger.log(logging.WARNING if n else logging.INFO, "line %d of attempt %d", n, ctx.attempt)
        if fails or ctx.attempt == 1:
            raise RuntimeError("no")

    run = mail.enqueue()
    with working(app):
        ended(run)
        lines = run.logs()
        expected = [f"{'WARNING' if n else 'INFO'} line {n} of attempt {attempt}" for attempt in (1, 2) for n in range(3)]
        assert [line.text for line in lines] == expected
        assert [(line.attempt, line.n) for line in lines] == [(attempt, n) for attempt in (1, 2) for n in (1, 2, 3)]
        again = run.rerun()
        ended(again)
    assert run.logs() == lines
    assert len(again.logs()) == len(lines)
