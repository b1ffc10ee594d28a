"""Threads that can be abandoned: daemons, started when needed, used again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from windlass.worker.shortage import is_no_thread, needed

T = TypeVar("T")


class ThreadPool:
    """Runs calls on threads. A call that never returns keeps its thread and nothing else; it does not delay the end of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock, self._idle, self._size, self._closed = threading.Lock(), 0, 0, False

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call, at once; it must not raise. Shortage when the system has no thread for it."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                with needed("thread"):
                    threading.Thread(target=self._run, name=f"{self._name}-{self._size + 1}", daemon=True).start()
                self._size += 1
            self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it refers to must not live until the next one
            with self._lock:
                if self._closed:
                    break
                self._idle += 1
        with self._lock:
            self._size -= 1

    def close(self) -> None:
        """End the idle threads, and the others when their call has returned."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0


async def call_on_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Call something that blocks, on a thread; where the system has none, here."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except RuntimeError as error:
        if not is_no_thread(error):
            raise  # the call's own error: it is not called twice
        return call(*arguments)
