"""A worker beside the caller's thread, from a start to a stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from windlass.app.working import drive
from windlass.worker import Worker

NewWorker = Callable[[], AbstractAsyncContextManager[Worker]]
Beside = Callable[[], AbstractAsyncContextManager[None]]

JOIN = 10.0
"""Seconds that the thread has for its end beyond the time that handlers have."""


class Background:
    """One worker after the other on a thread, until it is stopped: one with an abandoned handler is replaced."""

    def __init__(self, new_worker: NewWorker, beside: Beside) -> None:
        """`beside` is entered first, and left when the last worker has ended."""
        self._new_worker, self._beside = new_worker, beside
        self._ready, self._stopping = threading.Event(), False
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._thread = threading.Thread(target=self._main, name="windlass-scheduler", daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; raises what keeps the first worker from starting."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self, grace: float) -> None:
        """Claim nothing more, and wait for handlers for these seconds; the jobs of those that have not ended then are given back."""
        self._stopping = True
        if self._loop is not None and self._worker is not None and self.running:
            asyncio.run_coroutine_threadsafe(self._worker.stop(grace=round(grace * 1000)), self._loop)
        self._thread.join(grace + JOIN)

    def _main(self) -> None:
        try:
            drive(self._work())
        except BaseException as error:
            self._error = error
            if self._ready.is_set():
                raise
        finally:
            self._ready.set()

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        needed = True
        async with self._beside():
            while needed and not self._stopping:
                async with self._new_worker() as worker:
                    self._worker = worker
                    self._ready.set()
                    if not self._stopping:  # otherwise `stop` may have met the worker before this one
                        await worker.run()
                    needed = worker.needs_restart
