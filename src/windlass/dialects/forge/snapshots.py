"""Metrics of an agent's machine, sent to its hub at a fixed interval, and kept while the hub is away."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from windlass.clock import Clock
from windlass.errors import BadInput, LeaseLost, WindlassError
from windlass.worker.thread_pool import call_on_thread

_LOG = logging.getLogger("windlass.forge")

KEPT = 180

Send = Callable[[Sequence[Mapping[str, Any]]], Awaitable[None]]


class Snapshots:
    """Measures and sends until cancelled. No job depends on it: whatever fails is logged, once for each reason."""

    def __init__(self, send: Send, measure: Callable[[], Mapping[str, float]], clock: Clock, every: float) -> None:
        self._send, self._measure, self._clock, self._every = send, measure, clock, every
        self._kept = deque[Mapping[str, Any]](maxlen=KEPT)
        self._problem = ""

    async def run(self) -> None:
        while True:
            await self.push()
            await asyncio.sleep(self._every)

    async def push(self) -> None:
        """Take a snapshot, and send what has not been sent: one by itself, several as a batch."""
        self._kept.append({"ts": self._clock.now(), **await self._metrics()})
        try:
            await self._send(tuple(self._kept))
        except (BadInput, LeaseLost) as error:  # a hub that has no place for them never will
            self._kept.clear()
            self._log(f"The hub refuses metrics: {error}")
        except WindlassError as error:
            self._log(f"Metrics could not be sent; the last {KEPT} are kept: {error}")
        else:
            self._kept.clear()
            self._problem = ""

    async def _metrics(self) -> Mapping[str, float]:
        try:
            return await call_on_thread(self._measure)
        except Exception as error:
            _LOG.warning("The host cannot be measured: %s", error)
            self._measure = dict
            return {}

    def _log(self, problem: str) -> None:
        if problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem
