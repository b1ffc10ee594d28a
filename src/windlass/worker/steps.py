"""Steps of a handler: parts of its work that are done once per run, whatever the number of attempts."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from windlass import payload as json
from windlass.engine import checks
from windlass.errors import BadInput, Cancelled, LeaseLost, TooLarge
from windlass.model import Limits, Step
from windlass.store.base import run_sync

T = TypeVar("T")


class Wait(Protocol):
    """Waits for a future: blocks the thread, or suspends a coroutine."""

    async def __call__(self, future: Future[T], *, within: float = 0.0) -> T:
        """Its result. A coroutine that is cancelled still waits for so many seconds."""


LIMITS = Limits()
PAGE = 100
STORE_WITHIN = 2.0
"""Seconds for which a coroutine that is cancelled still waits until the result of a step that it has done is stored."""
_READING = ""  # no step has this key

_entered: ContextVar[tuple[str, ...]] = ContextVar("windlass_steps", default=())


class StepSink(Protocol):
    """Where the results of steps are stored."""

    def steps(self, after: int, count: int) -> Future[list[Step]]:
        """A page of the completed steps of the run."""

    def store_step(self, key: str, output: str) -> Future[Step]:
        """Store the result of a step; returns what is stored."""


class AttemptSteps:
    """The steps of one attempt. Those of earlier attempts are read when they are first needed."""

    def __init__(self, sink: Callable[[], StepSink], attempt: int, is_over: Callable[[], bool]) -> None:
        self._sink, self._is_over, self._lost = sink, is_over, False
        self._outputs: dict[str, str] | None = {} if attempt == 1 else None
        self._busy: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def step(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a step; in an event loop, a coroutine that returns it."""
        if in_event_loop():
            return self._step(key, lambda: _call_in_loop(function, args, kwargs), _wait_in_loop)
        return run_sync(self._step(key, lambda: _call(function, args, kwargs), _wait))

    def all(self) -> Any:
        """The results of all completed steps by their keys; in an event loop, a coroutine that returns them."""
        return self._all(_wait_in_loop) if in_event_loop() else run_sync(self._all(_wait))

    # Written once: in a plain function these coroutines never suspend, because `wait` and `call` block.

    async def _all(self, wait: Wait) -> dict[str, Any]:
        outputs = (await self._stored(wait)).copy()  # other threads may add to it meanwhile
        return {key: json.decode(output) for key, output in outputs.items()}

    async def _step(self, key: str, call: Callable[[], Awaitable[Any]], wait: Wait) -> Any:
        checks.name(key, "A step's key")
        if key in _entered.get():
            raise BadInput(f"The step {key!r} is called within itself.", hint="Give the inner step a key of its own.")
        return json.decode(await self._alone(key, wait, lambda: self._output(key, call, wait)))

    async def _alone(self, key: str, wait: Wait, do: Callable[[], Awaitable[T]]) -> T:
        """Do something while nothing else of this attempt is busy with the same key."""
        while (other := self._enter(key)) is not None:
            await wait(other)
        entered = _entered.set((*_entered.get(), key))
        try:
            return await do()
        finally:
            _entered.reset(entered)
            self._leave(key)

    def _enter(self, key: str) -> Future[None] | None:
        """Be busy with a key, or return when the other one that is busy with it ends."""
        with self._lock:
            other = self._busy.get(key)
            if other is None:
                self._busy[key] = Future()
            return other

    def _leave(self, key: str) -> None:
        with self._lock:
            ended = self._busy.pop(key)
        ended.set_result(None)

    async def _output(self, key: str, call: Callable[[], Awaitable[Any]], wait: Wait) -> str:
        stored = await self._stored(wait)
        if key not in stored:
            self._check(key, len(stored))
            stored[key] = await self._store(key, _encoded(key, await call()), wait)
        return stored[key]

    def _check(self, key: str, count: int) -> None:
        """Refuse a step before it is done if its result could not be stored."""
        if self._lost or self._is_over():
            raise LeaseLost(f"The step {key!r} is not begun: this attempt has ended, or has lost its lease.", hint="Let the handler end.")
        if count >= LIMITS.steps:
            raise TooLarge(
                f"The step {key!r} is not begun: the run has {LIMITS.steps:,} steps, which is the limit.",
                hint="Do more in each step, or divide the work into several runs.",
            )

    async def _store(self, key: str, output: str, wait: Wait) -> str:
        try:
            return (await wait(self._sink().store_step(key, output), within=STORE_WITHIN)).output
        except (LeaseLost, Cancelled):
            self._lost = True
            raise

    async def _stored(self, wait: Wait) -> dict[str, str]:
        if self._outputs is None:
            await self._alone(_READING, wait, lambda: self._read(wait))
        assert self._outputs is not None
        return self._outputs

    async def _read(self, wait: Wait) -> None:
        outputs, after = dict[str, str](), 0
        while self._outputs is None:
            page: list[Step] = await wait(self._sink().steps(after, PAGE))
            outputs |= {step.key: step.output for step in page}
            if len(page) < PAGE:
                self._outputs = outputs
            else:
                after = page[-1].n


def _encoded(key: str, value: Any) -> str:
    what = f"The result of the step {key!r}"
    try:
        return json.encode(value, limit=LIMITS.step, what=what)
    except TooLarge as error:
        raise TooLarge(error.message, hint="Keep large data elsewhere and return a reference to it.") from None


def in_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _wait(future: Future[T], *, within: float = 0.0) -> T:
    return future.result()


async def _wait_in_loop(future: Future[T], *, within: float = 0.0) -> T:
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait({waiting}, timeout=within)
        raise


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


async def _call_in_loop(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value
