"""The context of a handler: its run, why it should stop, and where its output goes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache, wraps
from typing import Any, Protocol

import msgspec

from windlass.errors import BadInput, LeaseLost
from windlass.model import Failure, Limits, Progress, Result, Step
from windlass.worker.outcomes import Stopped
from windlass.worker.steps import AttemptSteps, StepSink, in_event_loop

_current: ContextVar[Context] = ContextVar("windlass_context")
LOGGERS = "windlass.job"
MARKS = ("run", "job", "attempt", "queue", "worker")
"""Attributes of every record that is logged below a handler."""
LIMIT = Limits().progress
RESULTS = 100  # per page


class Call(msgspec.Struct, frozen=True, gc=False):
    """The run of a handler, as it is passed to other processes too."""

    run: str
    job: str
    attempt: int
    token: str
    payload: str  # JSON text
    max_attempts: int
    failures: int
    scheduled_for: int
    queue: str = ""
    worker: str = ""
    handler: str | None = None  # None: called like the job


class Sink(StepSink, Protocol):
    """Where the log, progress and requests of a handler go."""

    def line(self, text: str) -> None: ...

    def progress(self, text: str) -> None: ...

    def beat(self) -> None: ...

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        """A page of the results of the runs before this one, behind one of them."""


class Nowhere:
    """Discards the output of a handler whose attempt is over."""

    def line(self, text: str) -> None: ...

    def progress(self, text: str) -> None: ...

    def beat(self) -> None: ...

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        none: Future[list[Result]] = Future()
        none.set_result([])
        return none

    def steps(self, after: int, count: int) -> Future[list[Step]]:
        none: Future[list[Step]] = Future()
        none.set_result([])
        return none

    def store_step(self, key: str, output: str) -> Future[Step]:
        refused: Future[Step] = Future()
        refused.set_exception(LeaseLost(f"The step {key!r} was ended after its attempt.", hint="Await all steps before the handler ends."))
        return refused


NOWHERE = Nowhere()


class Unstored(Nowhere):
    """Discards the output of a handler that is called without a run. Its steps are done, and their results are kept for the call."""

    def store_step(self, key: str, output: str) -> Future[Step]:
        done: Future[Step] = Future()
        done.set_result(Step(key, output, 0, 1))
        return done


class Results:
    """The results of the runs before this one, in the order of its `after`; read page by page, as far as they are iterated."""

    def __init__(self, ask: Callable[[str | None, int], Future[list[Result]]]) -> None:
        self._ask = ask

    def __iter__(self) -> Iterator[Result]:
        if in_event_loop():
            raise BadInput("The results cannot be waited for in the event loop that reads them.", hint="Write `async for` in a coroutine.")
        after: str | None = None
        while page := self._ask(after, RESULTS).result():
            yield from page
            after = page[-1].id

    async def __aiter__(self) -> AsyncIterator[Result]:
        after: str | None = None
        while page := await asyncio.wrap_future(self._ask(after, RESULTS)):
            for result in page:
                yield result
            after = page[-1].id


class Context:
    """One attempt, for its handler. `windlass.current()` returns it anywhere below the handler."""

    def __init__(self, call: Call, sink: Sink) -> None:
        self.call, self._sink = call, sink
        self._stop: str | None = None
        self._stopping: threading.Event | None = None
        self._steps: AttemptSteps | None = None
        self.saw_stop = False  # whether the handler has read that, and so may have stopped before it was done
        self.failed_with: tuple[Failure, BaseException] | None = None  # the failure as it is stored, and the exception of the handler

    @property
    def run(self) -> str:
        """The run's id, the same for all its attempts: the key for effects that must happen once."""
        return self.call.run

    @property
    def job(self) -> str:
        return self.call.job

    @property
    def handler(self) -> str:
        """The name of what executes the run: the job's own, unless its definition names another."""
        return self.call.handler or self.call.job

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.call.attempt

    @property
    def token(self) -> str:
        """Identifies the claim of this attempt. A system that stores it with the run's id can refuse a worker that has lost its lease."""
        return self.call.token

    @property
    def scheduled_for(self) -> datetime:
        """The instant of its schedule, the same for all attempts. For a run without a schedule: when this attempt was due."""
        return datetime.fromtimestamp(self.call.scheduled_for / 1000, UTC)

    @property
    def tries_left(self) -> int:
        """How many further attempts there can be after this one fails."""
        return max(0, self.call.max_attempts - self.call.failures - 1)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop, whatever the reason. A handler that has read True and returns has stopped, not succeeded."""
        self.saw_stop = self._stop is not None
        return self.saw_stop

    @property
    def why(self) -> str | None:
        """Why it should stop: cancel, timeout, max_runtime, drain, abort or lost."""
        return self._stop

    def check(self) -> None:
        """Raise Stopped if the handler should stop; for loops in plain functions."""
        if self.cancelled:
            raise Stopped(self._stop)

    def pause(self, seconds: float) -> None:
        """Wait in a plain function; raise Stopped as soon as it should stop."""
        # Created here and not for every run: before the reason is read. `ask_to_stop` sets the reason first, so that no stop is missed.
        self._stopping = self._stopping or threading.Event()
        if self._stop is None:
            self._stopping.wait(seconds)
        self.check()

    @property
    def logger(self) -> logging.Logger:
        """A logger that writes into the run's log."""
        return logging.getLogger(f"{LOGGERS}.{self.call.job}")

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress, from 0 to 1, and a message; cheap, only the latest is kept."""
        self._sink.progress(progress_text(fraction, message))

    def beat(self) -> None:
        """Renew the lease now. The worker does so by itself; this is for before a step that must not be lost."""
        self._sink.beat()

    def results(self) -> Results:
        """The results of the runs that this one has waited for, or of the group whose end has started it.

        `for result in context.results()` in a plain function, `async for` in a coroutine.
        """
        return Results(lambda after, count: self._sink.results(after, count))

    def step(self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, which is called once per run: it is stored, and returned to later calls and attempts.

        `context.step(...)` in a plain function, `await context.step(...)` in a coroutine, where the function may be one too.
        A worker that dies between the end of the function and the store lets the next attempt call it again: for effects that must
        happen once, pass on the run's id and the key.
        """
        return self._all_steps().step(key, function, args, kwargs)

    def steps(self) -> Any:
        """The results of the run's completed steps, by their keys; `await context.steps()` in a coroutine."""
        return self._all_steps().all()

    def _all_steps(self) -> AttemptSteps:
        if self._steps is None:  # not in every run
            self._steps = AttemptSteps(lambda: self._sink, self.call.attempt, lambda: self._stop == "lost" or self._sink is NOWHERE)
        return self._steps

    def close(self) -> None:
        """Called by the worker when the attempt is over: output that comes later is discarded."""
        self._sink = NOWHERE
        self.failed_with = None  # its traceback refers to all local variables of the handler

    def ask_to_stop(self, why: str) -> None:
        """Called by the worker, from any thread."""
        self._stop = why
        if self._stopping is not None:
            self._stopping.set()


def progress_text(fraction: float | None, message: str | None) -> str:
    """Progress as it is stored, brought within its bounds."""
    if fraction is not None:
        fraction = min(1.0, max(0.0, float(fraction))) if fraction == fraction else None  # NaN is not equal to itself
    clean = None if message is None else str(message)[:1_000].encode("utf-8", "replace").decode()
    text = msgspec.json.encode(Progress(fraction, clean))
    if clean is not None and len(text) > LIMIT:  # escapes in JSON take up to six times the room
        text = msgspec.json.encode(Progress(fraction, clean[: LIMIT // 8] + "..."))
    return text.decode().replace("\\u0000", "\\ufffd")


def current() -> Context:
    """The context of the handler that is running here; LookupError outside of one."""
    return _current.get()


def enter(context: Context) -> None:
    """Set the context for `current()` and the run's logger, in this task or thread only."""
    _current.set(context)


class RunLog(logging.Handler):
    """Writes records that are logged below a handler into its run's log. Attach it to other loggers to have their records there too."""

    def emit(self, record: logging.LogRecord) -> None:
        context = _current.get(None)
        if context is not None:
            try:
                context._sink.line(self.format(record))
            except Exception:
                self.handleError(record)


def capture_logs() -> None:
    """Have the loggers of runs write into the logs of runs, and add the run to every record; once per process."""
    _mark_records()
    logger = logging.getLogger(LOGGERS)
    if not any(isinstance(handler, RunLog) for handler in logger.handlers):
        handler = RunLog()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


@cache
def _mark_records() -> None:
    """Have all loggers add the attributes of the run to records that are logged below a handler.

    Not by a record factory: a program may set its own, and attributes that are there before `extra` would make `extra` raise.
    """
    make = logging.Logger.makeRecord

    @wraps(make)
    def make_record(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        context = _current.get(None)
        if context is not None:
            for name in MARKS:
                record.__dict__.setdefault(name, getattr(context.call, name))
        return record

    logging.Logger.makeRecord = make_record  # type: ignore[method-assign]
