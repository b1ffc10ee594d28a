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


class RunnerPort:
    """The engine, with what is claimed kept for the contexts of handlers; after a stop, a failure is not retried."""

    def __init__(self, engine: Engine, is_stopped: Callable[[], bool]) -> None:
        self._engine, self._is_stopped = engine, is_stopped
        self._claimed: dict[tuple[str, str | None], Run] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def pop(self, run_id: str, token: str) -> Run:
        """A run whose handler begins."""
        return self._claimed.pop((run_id, token))

    async def claim(self, worker: WorkerInfo, **options: Any) -> list[Run]:
        """As the engine's."""
        return self._kept(await self._engine.claim(worker, **options))

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """As the engine's."""
        return self._kept(await self._engine.recover(worker, token))

    def _kept(self, runs: list[Run]) -> list[Run]:
        self._claimed.update({(run.id, run.token): run for run in runs})
        return runs

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """As the engine's."""
        for outcome in outcomes:
            self._claimed.pop((outcome.run, outcome.report.token), None)  # of one whose handler never began
        return await self._engine.report_many([*self._final(outcomes)] if self._is_stopped() else outcomes)

    def _final(self, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
        for outcome in outcomes:
            report = outcome.report
            yield outcome._replace(report=replace(report, retry=False)) if isinstance(report, Fail) else outcome
