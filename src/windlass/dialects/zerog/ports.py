"""The engine as the port of a runner's worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from windlass.answers import Outcome
from windlass.engine import Engine
from windlass.errors import WindlassError
from windlass.machine import Fail
from windlass.model import Receipt, Run, WorkerInfo
from windlass.worker.port import PortOver


class RunnerPort(PortOver):
    """The engine, with what is claimed kept for the contexts of handlers; after a stop, a failure is not retried."""

    def __init__(self, engine: Engine, is_stopped: Callable[[], bool]) -> None:
        super().__init__(engine)
        self._is_stopped = is_stopped
        self._claimed: dict[tuple[str, str | None], Run] = {}

    def pop(self, run_id: str, token: str) -> Run:
        """A run whose handler begins."""
        return self._claimed.pop((run_id, token))

    async def claim(self, worker: WorkerInfo, **options: Any) -> list[Run]:
        """As the engine's."""
        return self._kept(await super().claim(worker, **options))

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """As the engine's."""
        return self._kept(await super().recover(worker, token))

    def _kept(self, runs: list[Run]) -> list[Run]:
        self._claimed.update({(run.id, run.token): run for run in runs})
        return runs

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """As the engine's."""
        for outcome in outcomes:
            self._claimed.pop((outcome.run, outcome.report.token), None)  # of one whose handler never began
        return await super().report_many([*self._final(outcomes)] if self._is_stopped() else outcomes)

    def _final(self, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
        for outcome in outcomes:
            report = outcome.report
            yield outcome._replace(report=replace(report, retry=False)) if isinstance(report, Fail) else outcome
