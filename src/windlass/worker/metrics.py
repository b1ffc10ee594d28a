"""Metrics of a worker and its host, sent to the store regularly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from windlass.worker.lag import Lag
from windlass.worker.runtime import Runtime
from windlass.worker.shortage import ShortageState
from windlass.worker.thread_pool import call_on_thread

_LOG = logging.getLogger("windlass.worker")

MEASURE_EVERY = 15.0

Measure = Callable[[], Mapping[str, float]]


class MetricsSender:
    """Sends metrics regularly, and at once when the worker becomes unable or able to execute."""

    def __init__(self, runtime: Runtime, shortage: ShortageState, incarnation: int) -> None:
        self._runtime, self._shortage, self._incarnation, self._lag = runtime, shortage, incarnation, Lag()

    def start(self, measure: Measure) -> None:
        self._runtime.spawn(self._lag.run(), self._run(measure))

    async def _run(self, measure: Measure) -> None:
        metrics: Mapping[str, float] = {}
        while True:
            self._shortage.changed.clear()
            try:
                metrics = await call_on_thread(measure)
            except Exception as error:
                _LOG.warning("The host cannot be measured: %s", error)
                measure, metrics = dict, {}
            with suppress(Exception):  # no run depends on it
                await self._runtime.port.worker_metrics(self._runtime.info.name, {**metrics, **self._own_metrics()})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._shortage.changed.wait(), MEASURE_EVERY)

    def _own_metrics(self) -> Mapping[str, float]:
        clock = self._runtime.clock
        wall: int = getattr(clock, "wall", clock.now)()  # of this machine: the other may be the store's
        metrics = {"loop_lag_ms": self._lag.ms, "clock": wall, "incarnation": self._incarnation}
        return metrics | {"unable_ms": self._shortage.duration} if self._shortage.needs else metrics
