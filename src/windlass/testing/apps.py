"""An app in memory for tests: its clock stands still, `drain` executes its runs, and enqueued runs can be asserted.

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
from typing import Any, overload

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
from windlass.worker.port import PortOver

NOT_HANDED_OUT = (State.WAITING, State.SCHEDULED, State.QUEUED)
LIMIT = 1_000
PATIENCE = 5.0  # seconds for a worker to end after the test itself was interrupted
CORES, MEMORY = 2**20, 2**40
FOR_EVER = Limits().duration
SHOWN = 20
OPENS = ("next_limiter", "next_slot_end", "next_lease_check")
"""Blockers that time removes: a rate, a direct call, a lease."""
ENDLESS = "A job that fails, snoozes or enqueues itself again and again never ends; if there really are that many, use drain(limit=...)."
HELD = "Let the clock move on with drain(scheduled=True), or remove what blocks them."

AnyJob = Definition[..., Any] | str


class Enqueued(Struct, frozen=True):
    """A run that has not started, with its payload as plain values."""

    job: str
    payload: Any
    run: Run

    def __str__(self) -> str:
        due = f", due {_moment(self.run.due_at)}" if self.run.state is State.SCHEDULED else ""
        return f"{self.job} {self.run.payload} ({self.run.state}{due}, queue {self.run.queue}, priority {self.run.priority})"


class Base:
    """Shared by both queues: inspecting enqueued runs."""

    def __init__(self, app: App | AsyncApp, clock: ManualClock) -> None:
        self._app, self.clock = app, clock
        self._cursor: str | None = None
        self._planned: set[str] = set()

    @property
    def _engine(self) -> Engine:
        return self._app.engine

    # Inspecting

    def define(self, *names: str) -> None:
        """Define these jobs, which another program defines and this one enqueues by name."""
        for name in names:
            run_sync(self._engine.define(name))

    def enqueued(self, job: AnyJob | None = None) -> list[Enqueued]:
        """Runs that have not started, of one job or of all, oldest first."""
        runs = run_sync(_listed(self._engine, *NOT_HANDED_OUT))
        name = None if job is None else _name(job)
        matches = sorted((run for run in runs if name in (None, run.job)), key=lambda run: run.seq)
        return [Enqueued(run.job, json.decode(run.payload), run) for run in matches]

    def assert_enqueued(self, job: AnyJob, /, *arguments: Any, count: int | None = None, **keywords: Any) -> None:
        """Fail unless there is a run of the job with these arguments among its own; with `count`, unless there are exactly this many.

        Options of the job are compared as well: `assert_enqueued(mail.options(queue="slow", delay=60), to="ann")`.
        """
        __tracebackhide__ = True
        matcher = self._wanted(job, arguments, keywords)
        number = sum(map(matcher.fits, self.enqueued()))
        if number != count if count is not None else not number:
            runs = "No run" if not number else f"{number} run{'s' if number > 1 else ''}"
            raise AssertionError(self._told(f"{runs} of {matcher}{'' if count is None else f', not {count}'}."))

    def refute_enqueued(self, job: AnyJob, /, *arguments: Any, **keywords: Any) -> None:
        """Fail if there is a run of the job with these arguments among its own."""
        __tracebackhide__ = True
        matcher = self._wanted(job, arguments, keywords)
        number = sum(map(matcher.fits, self.enqueued()))
        if number:
            raise AssertionError(self._told(f"{number} run{'s' if number > 1 else ''} of {matcher}, where there should be none."))

    def _wanted(self, job: AnyJob, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> RunMatcher:
        known = self._app.jobs.get(job) if isinstance(job, str) else job
        if known is None:
            return RunMatcher(NewRun(_name(job)), _whole(arguments, keywords))
        payload = _given(known, arguments, keywords)
        return RunMatcher(new_run(known.name, None, known._options, self.clock.now()), payload)

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
        """The app's own jobs, with process jobs on the test's thread: in another process, the app would not be in memory."""
        handlers = {job.handler.name: job.handler for job in self._app.jobs.values()}.values()
        return {handler.name: replace(handler, kind="thread") if handler.kind == "process" else handler for handler in handlers}

    async def _work(self, scheduled: bool, bounds: DrainBounds, handlers: dict[str, Handler]) -> list[Run]:
        await self._ended()  # runs that ended before do not count for this drain
        await self._plan()
        while True:
            await self._engine.sweep()
            queued, claimed = await self._first(State.QUEUED), bounds.claimed
            if queued:
                await self._round(bounds, handlers)
            if bounds.claimed > claimed:
                continue
            if queued and bounds.claimed >= bounds.limit:
                return await self._left_over(bounds)
            if scheduled and await self._move_on():
                continue
            return await self._left_over(bounds) if queued else await self._ended()

    async def _plan(self) -> None:
        """Make the schedules of the code fire from now on; existing ones stay as they are."""
        for key in self._app.planned.keys() - self._planned:
            await self._app._schedule(self._engine, self._app.planned[key], by_code=True)
            self._planned.add(key)

    async def _move_on(self) -> bool:
        """Advance the clock until a run is due, or a limit admits queued runs; False if time brings neither.

        Schedules never end, so it does not wait for them; those whose instants pass meanwhile fire.
        """
        now = self.clock.now()
        times = {name: at for name, at in (await self._engine.records.sweeps.next_times(now)).items() if at > now}
        waited = [times[name] for name in OPENS if name in times] if await self._first(State.QUEUED) else []
        if run := await self._first(State.SCHEDULED):
            waited.append(run.due_at)
        if waited:
            self.clock.advance(max(0, min(*waited, times.get("next_schedule", waited[0])) - now))
        return bool(waited)

    async def _round(self, bounds: DrainBounds, handlers: dict[str, Handler]) -> None:
        """Run a worker with one slot, which can take any run, until there is nothing to do."""
        engine = self._engine
        tags = {tag for lane in (await engine.records.lanes.after(0)).lanes for tag in lane.requires.tags}
        info = WorkerInfo(f"test-{self.clock.nonce()}", tags=tuple(sorted(tags)), cores=CORES, memory=MEMORY)
        port = BoundedPort(engine, bounds)
        await Worker(port, handlers, self.clock, info, lease=engine.limits.lease).run(until_idle=True)

    async def _left_over(self, bounds: DrainBounds) -> list[Run]:
        """Why a round did nothing although runs are left: the limit of executions, or what blocks each run."""
        if bounds.interrupt is not None:
            return []
        runs = await _listed(self._engine, *NOT_HANDED_OUT)
        left = Counter(run.job for run in runs)
        rest = ", ".join(f"{number} of {job}" for job, number in sorted(left.items()))
        reasons = [f"  {run.job} {run.id}: {why}" for run in runs[:SHOWN] if (why := await self._why(run))]
        more = [f"  and {len(runs) - SHOWN} more"] if len(runs) > SHOWN else []
        options = f"drain() stopped after {bounds.claimed:,} executions; still enqueued: {rest}."
        raise LimitReached("\n".join([options, *reasons, *more]), hint=ENDLESS if bounds.claimed >= bounds.limit else HELD)

    async def _why(self, run: Run) -> str:
        """What blocks a run, except the lack of a worker: this drain had one that takes any run."""
        return " ".join(reason.text for reason in await self._engine.why(run.id) if reason.code != "no_worker")

    async def _first(self, state: State) -> Run | None:
        async for run in _pages(self._engine, state):
            if run.job in self._app.jobs:
                return run
        return None

    async def _ended(self) -> list[Run]:
        """The runs that have ended since the last call, in that order."""
        ended = []
        while (tail := await self._engine.tail(self._cursor)).entries:
            ended += [entry.run for entry in tail.entries if entry.state in ENDED]
            self._cursor = tail.cursor
        return [await self._engine.get(run) for run in ended]


class InMemory(Base):
    """An App in memory."""

    def drain(self, *, scheduled: bool = False, limit: int = LIMIT) -> list[Run]:
        """Execute due runs, one after the other, until nothing is left; returns the runs that have ended, in that order.

        With `scheduled`, the clock moves on to whatever is due next, retries included, and to when a limit lets the next one in.
        Plain functions run on this thread.
        """
        bounds, desk = DrainBounds(limit), CallerThread()
        handlers = {
            name: desk.taking(handler, bounds) if handler.kind == "thread" else handler for name, handler in self._handlers().items()
        }
        return desk.serve(lambda: asyncio.run(self._work(scheduled, bounds, handlers)), bounds)


class AsyncInMemory(Base):
    """An AsyncApp in memory."""

    async def drain(self, *, scheduled: bool = False, limit: int = LIMIT) -> list[Run]:
        """Execute due runs, one after the other, until nothing is left; returns the runs that have ended, in that order.

        With `scheduled`, the clock moves on to whatever is due next, retries included, and to when a limit lets the next one in.
        Coroutine functions run in this event loop.
        """
        bounds = DrainBounds(limit)
        handlers = {name: bounds.watching(handler) if handler.kind == "async" else handler for name, handler in self._handlers().items()}
        ended = await self._work(scheduled, bounds, handlers)
        if bounds.interrupt is not None:
            raise bounds.interrupt
        return ended


class DrainBounds:
    """How much a drain may still do, and what has interrupted it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.claimed = limit, 0
        self.interrupt: BaseException | None = None

    def caught(self, error: BaseException) -> None:
        """Stop for exceptions that are meant for the test, such as Ctrl-C or pytest.fail(), and not for the attempt."""
        if not isinstance(error, Exception | asyncio.CancelledError | Stopped | SystemExit):
            self.interrupt, self.limit = error, 0

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


class BoundedPort(PortOver):
    """The engine, which claims nothing once the bounds are reached."""

    def __init__(self, engine: Engine, bounds: DrainBounds) -> None:
        super().__init__(engine)
        self._bounds = bounds

    async def claim(self, worker: WorkerInfo, **options: Any) -> list[Run]:
        if self._bounds.claimed >= self._bounds.limit:
            return []
        runs = await super().claim(worker, **options)
        self._bounds.claimed += len(runs)
        return runs


class CallerThread:
    """The test's own thread, on which plain functions run while the worker's loop has a separate thread.

    So they can use what belongs to the test's thread, such as a connection or a transaction, and may call asyncio.run.
    """

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def taking(self, handler: Handler, bounds: DrainBounds) -> Handler:
        """A plain function that is called on the test's thread."""
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

    def serve(self, work: Callable[[], list[Run]], bounds: DrainBounds) -> list[Run]:
        """Run the coroutine on a separate thread, and its queued calls here; returns its result."""
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
            bounds.limit = 0
            thread.join(PATIENCE)
        if bounds.interrupt is not None:
            raise bounds.interrupt
        return answer.result()


class RunMatcher:
    """The conditions that an enqueued run must meet."""

    def __init__(self, new: NewRun, payload: Any) -> None:
        if new.key is not None or new.after or new.options.requires is not None:
            raise BadInput("A key, predecessors and requirements cannot be asserted.", hint="Check queue.enqueued() yourself.")
        self._job, self._due_at, self._given, self._meta = new.job, new.due_at, payload, new.meta
        self._options = {name: value for name, value in asdict(new.options).items() if value is not None}

    def fits(self, item: Enqueued) -> bool:
        return item.job == self._job and _within(self._given, item.payload) and self._has_options(item.run)

    def _has_options(self, run: Run) -> bool:
        options = all(getattr(run if hasattr(run, name) else run.policy, name) == value for name, value in self._options.items())
        return options and self._due_at in (None, run.due_at) and (self._meta is None or self._meta == _opened(run.meta))

    def __str__(self) -> str:
        options = [f", {name} {value}" for name, value in self._options.items()]
        due = [] if self._due_at is None else [f", due {_moment(self._due_at)}"]
        due += [] if self._meta is None else [f", meta {json.dump(self._meta, limit=2**20)}"]
        arguments = "" if self._given == {} else f" with {json.dump(self._given, limit=2**20)}"
        return f"{self._job!r}{arguments}{''.join(options + due)} is enqueued"


def _opened(meta: str | None) -> Any:
    return None if meta is None else json.decode(meta)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _within(part: Any, payload: Any) -> bool:
    """Whether each expected member is there; values that are not objects must be equal."""
    if isinstance(part, dict) and isinstance(payload, dict):
        return all(name in payload and payload[name] == value for name, value in part.items())
    return bool(part == payload)


def _name(job: AnyJob) -> str:
    return job if isinstance(job, str) else job.name


def _given(job: Definition[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Some of a job's arguments, as they are in a payload; TypeError for unknown ones."""
    if job.signature is None:
        return _whole(arguments, keywords)
    signature = inspect.signature(job.function)
    parameters = list(signature.parameters.values())[int(job.signature.takes_context) :]
    return plain(signature.replace(parameters=parameters).bind_partial(*arguments, **keywords).arguments)


def _whole(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The payload of a job that has no signature here: members by name, or one argument, which is the whole payload."""
    if len(arguments) > 1 or (arguments and keywords):
        raise TypeError("a job without a signature has one payload: give it whole, or some of its members by name")
    return plain(arguments[0] if arguments else keywords)


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
    """Keep an app's runs in memory, with a clock that stands still, for the block; afterwards the app is restored."""
    clock = clock or ManualClock()
    # Only runs with a time of their own are pruned, so that a test may move the clock by a year and still inspect everything.
    with app.in_memory(clock, replace(app.limits, keep_succeeded=FOR_EVER, keep_others=FOR_EVER)):
        queue = InMemory(app, clock) if isinstance(app, App) else AsyncInMemory(app, clock)
        run_sync(queue._plan())
        yield queue


def fixture(app: App | AsyncApp) -> Any:
    """A pytest fixture, named after its variable: `queue = fixture(app)` in conftest.py."""
    import pytest

    @pytest.fixture
    def app_in_memory() -> Iterator[InMemory | AsyncInMemory]:
        with in_memory(app) as queue:
            yield queue

    return app_in_memory
