"""What a worker knows as lost it does not report, in whatever order it hears of it and its handler ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import KINDS
from tests.tiers import corners
from tests.worker.test_executors import nothing_stays  # noqa: F401 - every test here is watched as well
from tests.worker.test_worker import AGES, Ports, at, error
from tests.workers import DEADLINE, Gate, ended, in_state, until, working
from windlass import App, Context, Job, State
from windlass.engine import Outcome
from windlass.errors import StoreUnreachable
from windlass.worker import Worker


@pytest.fixture(params=corners(KINDS))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with App(at(request.param, tmp_path, request)) as app:
        yield app


@pytest.fixture
def ports() -> Ports:
    return Ports()


async def lost(held: Any, **_: Any) -> list[str]:
    return ["lost"] * len(held)


async def away(*_: Any, **__: Any) -> Any:
    raise error(StoreUnreachable)


class Delayed:
    """Delays the answers of beats on their way to the worker's loop; the handler has them by then."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self.released, self.delayed = ports, threading.Event(), threading.Event()

    def prepare(self, worker: Worker) -> None:
        self._ports.watch(worker)
        call_soon = worker.runtime.call_soon

        def delayed(call: Callable[..., Any], *arguments: Any) -> None:
            if call == worker.stopper.stop:
                self.delayed.set()
                assert self.released.wait(DEADLINE)
            call_soon(call, *arguments)

        worker.runtime.call_soon = delayed  # type: ignore[method-assign]


def raises(app: App, seen: list[str | None]) -> Job[..., Any]:
    @app.job(name="ends at once")
    def job(ctx: Context) -> None:
        seen.append(None)
        try:
            ctx.pause(AGES)
        finally:
            seen[0] = ctx.why

    return job


def returns(app: App, seen: list[str | None]) -> Job[..., Any]:
    @app.job(name="ends at once")
    def job(ctx: Context) -> str:
        seen.append(None)
        until(lambda: ctx.why)
        seen[0] = ctx.why
        return "undisturbed"

    return job


def looks(app: App, seen: list[str | None]) -> Job[..., Any]:
    @app.job(name="ends at once")
    async def job(ctx: Context) -> None:
        seen.append(None)
        while not ctx.cancelled:  # noqa: ASYNC110 - it is told from another thread
            await asyncio.sleep(0.002)
        seen[0] = ctx.why
        raise ValueError("too late")

    return job


@pytest.mark.parametrize("define", [raises, returns, looks])
def test_a_handler_that_ends_as_soon_as_it_hears_is_not_reported(
    define: Callable[[App, list[str | None]], Job[..., Any]], app: App, ports: Ports
) -> None:
    delayed, seen = Delayed(ports), list[str | None]()
    job = define(app, seen)
    with working(app, lease=AGES, prepare=delayed.prepare) as at_work:
        handle = job.enqueue()
        until(lambda: seen)
        ports.heartbeat.instead("beat", lost)
        at_work.worker.heartbeat.now()
        until(lambda: not at_work.worker.in_flight.held)
        delayed.released.set()
        assert handle.refresh().state in (State.CLAIMED, State.RUNNING)  # it is for others to say what became of it
        at_work.stop()
        assert seen == ["lost"]
        assert ports.loop.calls["report_many"] == 0


def test_a_handler_that_the_fence_has_stopped_is_not_reported_when_another_has_its_run(app: App, ports: Ports) -> None:
    """No beat gets through, the handler ends late, and the store answers again: it is asked before anything is said."""
    gate = Gate()

    @app.job(name="deaf", backoff=(0,))
    async def deaf(ctx: Context) -> str:
        if ctx.attempt == 1:
            await gate.ignore()
        return f"by attempt {ctx.attempt}"

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.heartbeat.instead("beat", away)

    with working(app, name="w1", lease=0.5, prepare=prepare) as first:
        handle = deaf.enqueue()
        gate.reached()
        with working(app, name="w2", lease=5):
            run = ended(handle)
        until(lambda: any(execution.why == "lost" for execution in first.worker.in_flight.busy))
        gate.open()
        until(lambda: not first.worker.in_flight.held)
        first.stop()
        assert ports.loop.calls["report_many"] == 0
    assert (run.state, run.output, run.worker, handle.refresh()) == (State.SUCCEEDED, '"by attempt 2"', "w2", run)


def test_a_handler_that_the_fence_has_stopped_gives_back_what_is_still_held(app: App, ports: Ports) -> None:
    """Nobody was there to take it, and no failure is counted."""
    why = list[str | None]()

    @app.job(name="slow", max_attempts=1)
    async def slow(ctx: Context) -> int:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(AGES)
            finally:
                why.append(ctx.why)
        return ctx.attempt

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        worker.maintenance = None  # whatever the time, nobody ends the lease
        ports.heartbeat.instead("beat", away)

    with working(app, lease=0.5, prepare=prepare):
        handle = slow.enqueue()
        until(lambda: why)
        ports.heartbeat.instead("beat", None)
        assert ended(handle).output == "2"
    assert why == ["lost"]
    assert [attempt.outcome for attempt in handle.attempts()] == ["returned", "succeeded"]


class Kept:
    """A spool in memory."""

    def __init__(self) -> None:
        self.runs: set[str] = set()

    def keep(self, outcomes: Iterable[Outcome]) -> None:
        self.runs |= {outcome.run for outcome in outcomes}

    def drop(self, outcomes: Iterable[Outcome]) -> None:
        self.runs -= {outcome.run for outcome in outcomes}

    async def deliver(self, port: Any) -> None: ...


def test_what_is_lost_while_its_report_waits_is_forgotten(app: App, ports: Ports) -> None:
    """One is being sent, others wait behind it and in the spool; the store says that all are lost before it takes anything."""
    spool = Kept()

    @app.job(name="quick")
    async def quick() -> str:
        return "done"

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        worker.reporter.unsent.spool = spool
        worker.runtime.batch = 1  # so that the others wait in the worker
        ports.loop.instead("report_many", away)

    with working(app, slots=3, lease=AGES, prepare=prepare) as at_work:
        handles = app.enqueue_many([quick.new() for _ in range(3)])
        until(lambda: len(spool.runs) == 3)
        ports.heartbeat.instead("beat", lost)
        at_work.worker.heartbeat.now()
        until(lambda: not at_work.worker.in_flight.renewable())
        told = ports.loop.calls["report_many"]
        ports.loop.instead("report_many", None)
        until(lambda: not at_work.worker.in_flight.held)
        assert {handle.refresh().state for handle in handles} <= {State.CLAIMED, State.RUNNING}
        at_work.stop()
        assert ports.loop.calls["report_many"] <= told + 1  # one may have been on its way
        assert not ports.loop.answers["report_many"]
        assert not spool.runs


def test_what_is_lost_while_the_worker_drains_is_not_requeued(app: App, ports: Ports) -> None:
    """A beat is answered that it is lost, and the drain asks the handler to stop before that answer reaches the loop."""
    delayed, why, began = Delayed(ports), list[str | None](), threading.Event()

    @app.job(name="slow")
    async def slow(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.sleep(AGES)
        finally:
            why.append(ctx.why)

    with working(app, lease=AGES, prepare=delayed.prepare) as at_work:
        handle = slow.enqueue()
        assert began.wait(DEADLINE)
        in_state(handle, State.RUNNING)
        ports.heartbeat.instead("beat", lost)
        at_work.worker.heartbeat.now()
        assert delayed.delayed.wait(DEADLINE)
        stopping = at_work.ask(grace=0)
        until(lambda: why)
        delayed.released.set()
        stopping.result(DEADLINE)
    assert why == ["lost"]
    assert ports.loop.calls["report_many"] == 0
