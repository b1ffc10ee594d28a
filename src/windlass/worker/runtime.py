"""What the parts of one worker share: its port, its identity, its event loop, and whether it is stopping."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from windlass.clock import Clock
from windlass.errors import TRANSIENT
from windlass.model import Limits, WorkerInfo
from windlass.worker.port import Port

_LOG = logging.getLogger("windlass.worker")

FENCE = 40
"""The part of a lease that is left when its handler is stopped because no beat was answered. It is counted from before the last answered
beat was sent, so from before the store counts: a little for clocks that do not run alike, and for the handler to end."""

BEATS_PER_LEASE = 8
"""With the pause after a failed beat and the margin, these leave five sixths of a lease in which the store need not answer."""

T = TypeVar("T")


class Runtime:
    """Shared by all parts of a worker. An error in a background task ends the worker: it is passed to `on_error`."""

    def __init__(
        self,
        port: Port,
        clock: Clock,
        info: WorkerInfo,
        lease: int,
        on_error: Callable[[BaseException], None],
        *,
        beat_every: int | None = None,
    ) -> None:
        self.port, self.clock, self.info = port, clock, info
        self.lease, self.lease_margin, self.beat_every = lease, lease // FENCE, beat_every or lease // BEATS_PER_LEASE
        limits = getattr(port, "limits", Limits())
        self.batch, self.lines, self.bytes = min(limits.claim, limits.report), limits.lines_per_call, limits.batch
        self.stopping = False
        self.before_retry: Callable[[], Awaitable[None]] | None = None
        self._on_error = on_error
        self._tasks: set[asyncio.Future[Any]] = set()

    def attach(self) -> None:
        """Bind to the running event loop, and to the context in which callbacks run."""
        self.loop, self._context = asyncio.get_running_loop(), copy_context()

    def spawn(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        """Run these in the background until the worker ends."""
        for coroutine in coroutines:
            task = self.loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def close(self, *others: asyncio.Future[Any] | None) -> None:
        """Cancel the background tasks and these others, and wait for them."""
        tasks = (self._tasks | {task for task in others if task is not None}) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop's thread; from any thread."""
        return asyncio.run_coroutine_threadsafe(question, self.loop)

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call something on the loop's thread, in the worker's context and not in that of a handler; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self.loop.call_soon_threadsafe(call, *arguments, context=self._context)

    async def retry_until_available(
        self, call: Callable[[], Awaitable[T]], *, always: bool = False, given_up: Callable[[], bool] | None = None
    ) -> T | None:
        """Call until the store answers; None when it gives up: by default when the worker stops, never if `always`."""
        given_up = given_up or (lambda: self.stopping and not always)
        pause = 0.05
        while True:
            try:
                return await call()
            except TRANSIENT as error:
                if given_up():
                    return None
                _LOG.warning("The store does not answer, trying again in %.1f s: %s", pause, error)
                if self.before_retry is not None:
                    await self.before_retry()
                await asyncio.sleep(pause * (0.5 + self.clock.chance() / 2))
                pause = min(pause * 2, 2.0)
