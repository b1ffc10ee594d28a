"""An app in memory for tests: its clock stands still, its runs are done when the test says so, and what was enqueued can be asserted.

with in_memory(app) as queue:
    register("ann@example.org")                         # calls send_mail.enqueue(...)
    queue.assert_enqueued(send_mail, to="ann@example.org")
    queue.drain()
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, cast, overload

from msgspec import Struct
from msgspec.structs import asdict, replace

from windlass import payload as json
from windlass.app import App, AsyncApp
from windlass.app.jobs import Definition
from windlass.app.options import new_run
from windlass.app.signatures import plain
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import BadInput, LimitReached
from windlass.machine import ENDED
from windlass.model import Limits, NewRun, Run, State, WorkerInfo
from windlass.store.base import run_sync
from windlass.worker import Context, Handler, Stopped, Worker
from windlass.worker.context import enter
from windlass.worker.port import Port

NOT_HANDED_OUT = (State.WAITING, State.SCHEDULED, State.QUEUED)
MOST = 1_000
PATIENCE = 5.0  # seconds for a worker to end after the test itself was interrupted
CORES, MEMORY = 2**20, 2**40
FOR_EVER = Limits().duration
SHOWN = 20
OPENS = ("next_gate", "next_slot_end", "next_look")
"""What time brings to queued runs: a rate lets the next one in, a direct call or a lease is over."""
ENDLESS = "A job that fails, snoozes or enqueues itself again and again never ends; if there is so much to do, say drain(most=...)."
HELD = "Let the clock move on with drain(scheduled=True), or do away with what holds them back."

AnyJob = Definition[..., Any] | str


class Enqueued(Struct, frozen=True):
    """A run that nobody has begun, with its payload as plain values."""

    job: str
    payload: Any
    run: Run

    def __str__(self) -> str:
        due = f", due {_moment(self.run.due_at)}" if self.run.state is State.SCHEDULED else ""
        return f"{self.job} {self.run.payload} ({self.run.state}{due}, queue {self.run.queue}, priority {self.run.priority})"


class Base:
    """What both colours share: looking at what is enqueued."""

    def __init__(self, app: App | AsyncApp, clock: ManualClock) -> None:
        self._app, self.clock = app, clock
        self._cursor: str | None = None
        self._planned: set[str] = set()

    @property
    def _engine(self) -> Engine:
        return self._app.engine

    # Looking

    def define(self, *names: str) -> None:
        """Have these jobs exist, which another program defines and this one enqueues by name."""
        for name in names:
            run_sync(self._engine.define(name))

    def enqueued(self, job: AnyJob | None = None) -> list[Enqueued]:
        """What nobody has begun, of one job or of all: first what was enqueued first."""
        runs = run_sync(_listed(self._engine, *NOT_HANDED_OUT))
        name = None if job is None else _name(job)
        chosen = sorted((run for run in runs if name in (None, run.job)), key=lambda run: run.seq)
        return [Enqueued(run.job, json.decode(run.payload), run) for run in chosen]

    def assert_enqueued(self, job: AnyJob, /, *arguments: Any, count: int | None = None, **named: Any) -> None:
        """Fail unless there is a run of the job with these arguments among its own; with `count`, unless there are so many.

        Options are part of it where the job says some: `assert_enqueued(mail.options(queue="slow", delay=60), to="ann")`.
        """
        __tracebackhide__ = True
        wanted = self._wanted(job, arguments, named)
        found = sum(map(wanted.fits, self.enqueued()))
        if found != count if count is not None else not found:
            number = "No run" if not found else f"{found} run{'s' if found > 1 else ''}"
            raise AssertionError(self._told(f"{number} of {wanted}{'' if count is None else f', not {count}'}."))

    def refute_enqueued(self, job: AnyJob, /, *arguments: Any, **named: Any) -> None:
        """Fail if there is a run of the job with these arguments among its own."""
        __tracebackhide__ = True
        wanted = self._wanted(job, arguments, named)
        found = sum(map(wanted.fits, self.enqueued()))
        if found:
            raise AssertionError(self._told(f"{found} run{'s' if found > 1 else ''} of {wanted}, where there should be none."))

    def _wanted(self, job: AnyJob, arguments: tuple[Any, ...], named: dict[str, Any]) -> Wanted:
        known = self._app.jobs.get(job) if isinstance(job, str) else job
        if known is None:
            return Wanted(NewRun(_name(job)), _whole(arguments, named))
        given = _given(known, arguments, named)
        return Wanted(new_run(known.name, None, known._said, self.clock.now()), given)

    def _told(self, what: str) -> str:
        there = self.enqueued()
        lines = [what, "Enqueued are:" if there else "Nothing is enqueued.", *(f"  {item}" for item in there[:SHOWN])]
        if len(there) > SHOWN:
            lines.append(f"  and {len(there) - SHOWN} more")
        ended = Counter(f"{run.job} {run.state}" for run in run_sync(_listed(self._engine, *ENDED)))
        if ended:
            lines.append(f"Ended have: {', '.join(f'{count} {what}' for what, count in sorted(ended.items()))}.")
        return "\n".join(lines)

    # Working

    def _handlers(self) -> dict[str, Handler]:
        """The app's own, but for those that would run in a process: there, the app would not be in memory."""
        handlers = (job.handler for job in self._app.jobs.values())
        return {handler.name: replace(handler, kind="thread") if handler.kind == "process" else handler for handler in handlers}

    async def _work(self, scheduled: bool, bounds: Bounds, handlers: dict[str, Handler]) -> list[Run]:
        await self._ended()  # what ended before is not what this drain has done
        await self._plan()
        while True:
            await self._engine.sweep()
            queued, claimed = await self._first(State.QUEUED), bounds.claimed
            if queued:
                await self._round(bounds, handlers)
            if bounds.claimed > claimed:
                continue
            if queued and bounds.claimed >= bounds.most:
                return await self._left_over(bounds)
            if scheduled and await self._move_on():
                continue
            return await self._left_over(bounds) if queued else await self._ended()

    async def _plan(self) -> None:
        """Have the schedules that the code defines fire from now on; those there are already stay as they are."""
        for key in self._app.planned.keys() - self._planned:
            await self._app._schedule(self._engine, self._app.planned[key], by_code=True)
            self._planned.add(key)

    async def _move_on(self) -> bool:
        """Let time pass until a run is due, or something opens for those that are queued; False when time brings neither.

        Schedules have no end, so they are not waited for; those that fire on the way do.
        """
        now = self.clock.now()
        times = {name: at for name, at in (await self._engine.records.next_times(now)).items() if at > now}
        waited = [times[name] for name in OPENS if name in times] if await self._first(State.QUEUED) else []
        if run := await self._first(State.SCHEDULED):
            waited.append(run.due_at)
        if waited:
            self.clock.advance(max(0, min(*waited, times.get("next_schedule", waited[0])) - now))
        return bool(waited)

    async def _round(self, bounds: Bounds, handlers: dict[str, Handler]) -> None:
        """Let a worker with one slot, which can take anything, do what is there."""
        engine = self._engine
        await engine.refresh_lanes()
        tags = {tag for lane in engine.lanes.all for tag in lane.requires.tags}
        info = WorkerInfo(f"test-{self.clock.nonce()}", tags=tuple(sorted(tags)), cores=CORES, memory=MEMORY)
        port = cast("Port", BoundedPort(engine, bounds))
        await Worker(port, handlers, self.clock, info, lease=engine.limits.lease).run(until_idle=True)

    async def _left_over(self, bounds: Bounds) -> list[Run]:
        """Why a round did nothing although there is something to do: as many executions as allowed, or what holds each run back."""
        if bounds.interrupt is not None:
            return []
        runs = await _listed(self._engine, *NOT_HANDED_OUT)
        left = Counter(run.job for run in runs)
        rest = ", ".join(f"{number} of {job}" for job, number in sorted(left.items()))
        reasons = [f"  {run.job} {run.id}: {why}" for run in runs[:SHOWN] if (why := await self._why(run))]
        more = [f"  and {len(runs) - SHOWN} more"] if len(runs) > SHOWN else []
        said = f"drain() stopped after {bounds.claimed:,} executions; still enqueued: {rest}."
        raise LimitReached("\n".join([said, *reasons, *more]), hint=ENDLESS if bounds.claimed >= bounds.most else HELD)

    async def _why(self, run: Run) -> str:
        """What holds a run back, but for the want of a worker: this drain has had one that takes anything."""
        return " ".join(reason.text for reason in await self._engine.why(run.id) if reason.code != "no_worker")

    async def _first(self, state: State) -> Run | None:
        async for run in _pages(self._engine, state):
            if run.job in self._app.jobs:
                return run
        return None

    async def _ended(self) -> list[Run]:
        """What has ended since this was last asked, in that order."""
        ended = []
        while (tail := await self._engine.tail(self._cursor)).entries:
            ended += [entry.run for entry in tail.entries if entry.state in ENDED]
            self._cursor = tail.cursor
        return [await self._engine.get(run) for run in ended]


class InMemory(Base):
    """An App in memory."""

    def drain(self, *, scheduled: bool = False, most: int = MOST) -> list[Run]:
        """Do what is due, one run after the other, until nothing is left; the runs that have ended, in that order.

        With `scheduled`, the clock moves on to whatever is due next, retries included, and to when a limit lets the next one in.
        Plain functions run on this thread.
        """
        bounds, desk = Bounds(most), Desk()
        handlers = {
            name: desk.taking(handler, bounds) if handler.kind == "thread" else handler for name, handler in self._handlers().items()
        }
        return desk.serve(lambda: asyncio.run(self._work(scheduled, bounds, handlers)), bounds)


class AsyncInMemory(Base):
    """An AsyncApp in memory."""

    async def drain(self, *, scheduled: bool = False, most: int = MOST) -> list[Run]:
        """Do what is due, one run after the other, until nothing is left; the runs that have ended, in that order.

        With `scheduled`, the clock moves on to whatever is due next, retries included, and to when a limit lets the next one in.
        Coroutine functions run in this event loop.
        """
        bounds = Bounds(most)
        handlers = {name: bounds.watching(handler) if handler.kind == "async" else handler for name, handler in self._handlers().items()}
        ended = await self._work(scheduled, bounds, handlers)
        if bounds.interrupt is not None:
            raise bounds.interrupt
        return ended


class Bounds:
    """How much a drain may still do, and what has interrupted it."""

    def __init__(self, most: int) -> None:
        self.most, self.claimed = most, 0
        self.interrupt: BaseException | None = None

    def caught(self, error: BaseException) -> None:
        """Stop for what speaks to the test, such as Ctrl-C or pytest.fail(), and not to the attempt."""
        if not isinstance(error, Exception | asyncio.CancelledError | Stopped | SystemExit):
            self.interrupt, self.most = error, 0

    def watching(self, handler: Handler) -> Handler:
        """A coroutine function whose interrupts are caught."""
        assert handler.call is not None
        function = handler.call

        async def call(context: Context) -> Any:
            try:
                return await function(context)
            except BaseException as error:
                self.caught(error)
                raise

        return replace(handler, call=call)


class BoundedPort:
    """The engine, without anything to claim once the bounds are reached."""

    def __init__(self, engine: Engine, bounds: Bounds) -> None:
        self._engine, self._bounds = engine, bounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def claim(self, worker: WorkerInfo, *, count: int, lease: int, token: str | None = None) -> list[Run]:
        if self._bounds.claimed >= self._bounds.most:
            return []
        runs = await self._engine.claim(worker, count=count, lease=lease, token=token)
        self._bounds.claimed += len(runs)
        return runs


class Desk:
    """The test's own thread, where plain functions run while the worker's loop has a thread beside it.

    So they find what belongs to the test's thread, such as a connection or a transaction, and may call asyncio.run.
    """

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def taking(self, handler: Handler, bounds: Bounds) -> Handler:
        """A plain function that is called at the desk."""
        assert handler.call is not None
        function = handler.call

        def call(context: Context) -> Any:
            answer: Future[Any] = Future()

            def here() -> None:
                try:
                    enter(context)
                    answer.set_result(function(context))
                except BaseException as error:
                    bounds.caught(error)
                    answer.set_exception(error)

            self._inbox.put(lambda: copy_context().run(here))
            return answer.result()

        return replace(handler, call=call)

    def serve(self, work: Callable[[], list[Run]], bounds: Bounds) -> list[Run]:
        """Do the work on a thread of its own, and here what it puts on the desk; its result."""
        answer: Future[list[Run]] = Future()

        def beside() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)
            self._inbox.put(None)

        thread = threading.Thread(target=beside, name="windlass-drain", daemon=True)
        thread.start()
        try:
            while (call := self._inbox.get()) is not None:
                call()
        finally:
            bounds.most = 0
            thread.join(PATIENCE)
        if bounds.interrupt is not None:
            raise bounds.interrupt
        return answer.result()


class Wanted:
    """What a run must be like to be the one that is asked for."""

    def __init__(self, new: NewRun, given: Any) -> None:
        if new.key is not None or new.after or new.options.requires is not None:
            raise BadInput("A key, predecessors and requirements cannot be asserted.", hint="Look at queue.enqueued() yourself.")
        self._job, self._due_at, self._given = new.job, new.due_at, given
        self._options = {name: value for name, value in asdict(new.options).items() if value is not None}

    def fits(self, item: Enqueued) -> bool:
        return item.job == self._job and _within(self._given, item.payload) and self._as_said(item.run)

    def _as_said(self, run: Run) -> bool:
        said = all(getattr(run if hasattr(run, name) else run.policy, name) == value for name, value in self._options.items())
        return said and self._due_at in (None, run.due_at)

    def __str__(self) -> str:
        said = [f", {name} {value}" for name, value in self._options.items()]
        due = [] if self._due_at is None else [f", due {_moment(self._due_at)}"]
        arguments = "" if self._given == {} else f" with {json.dump(self._given, most=2**20)}"
        return f"{self._job!r}{arguments}{''.join(said + due)} is enqueued"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _within(given: Any, payload: Any) -> bool:
    """Whether each member that is asked for is there; whatever is no object must be equal."""
    if isinstance(given, dict) and isinstance(payload, dict):
        return all(name in payload and payload[name] == value for name, value in given.items())
    return bool(given == payload)


def _name(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.name


def _given(job: Definition[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Some of a job's arguments, as they are in a payload; TypeError for those it does not have."""
    if job.signature is None:
        return _whole(arguments, named)
    signature = inspect.signature(job.function)
    parameters = list(signature.parameters.values())[int(job.signature.takes_context) :]
    return plain(signature.replace(parameters=parameters).bind_partial(*arguments, **named).arguments)


def _whole(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The payload of a job that has no signature here: members by name, or one argument, which is the whole."""
    if len(arguments) > 1 or (arguments and named):
        raise TypeError("a job without a signature has one payload: give it whole, or some of its members by name")
    return plain(arguments[0] if arguments else named)


async def _pages(engine: Engine, state: State) -> AsyncIterator[Run]:
    cursor, first = None, True
    while first or cursor is not None:
        page = await engine.runs(state=state, cursor=cursor, count=engine.limits.page)
        cursor, first = page.cursor, False
        for run in page.runs:
            yield run


async def _listed(engine: Engine, *states: State) -> list[Run]:
    return [run for state in states async for run in _pages(engine, state)]


@overload
@contextmanager
def in_memory(app: App, *, clock: ManualClock | None = None) -> Iterator[InMemory]: ...
@overload
@contextmanager
def in_memory(app: AsyncApp, *, clock: ManualClock | None = None) -> Iterator[AsyncInMemory]: ...
@contextmanager
def in_memory(app: App | AsyncApp, *, clock: ManualClock | None = None) -> Iterator[Any]:
    """Have an app keep its runs in memory, with a clock that stands still, for the block; afterwards everything is as before."""
    clock = clock or ManualClock()
    # Nothing is pruned but what has a time of its own, so that a test may move the clock by a year and still look at everything.
    with app.in_memory(clock, replace(app.limits, keep_succeeded=FOR_EVER, keep_others=FOR_EVER)):
        queue = InMemory(app, clock) if isinstance(app, App) else AsyncInMemory(app, clock)
        run_sync(queue._plan())
        yield queue


def fixture(app: App | AsyncApp) -> Any:
    """A pytest fixture, named as the variable it is given to: `queue = fixture(app)` in conftest.py."""
    import pytest

    @pytest.fixture
    def app_in_memory() -> Iterator[InMemory | AsyncInMemory]:
        with in_memory(app) as queue:
            yield queue

    return app_in_memory
