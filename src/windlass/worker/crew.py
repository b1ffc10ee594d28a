"""Threads that can be left behind: daemons, made when needed, used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from windlass.worker.shortage import needed


class Crew:
    """Runs calls on threads. A call that never returns keeps its thread and nothing else; it does not hold up the end of the process."""

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
                    threading.Thread(target=self._work, name=f"{self._name}-{self._size + 1}", daemon=True).start()
                self._size += 1
            self._calls.put(call)

    def _work(self) -> None:
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
        """Let the idle threads end, and the others when they are done."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0
