"""Kumofire: runs consumed by their ids, one by one, against runs claimed, started and reported one by one, on one SQLite file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Figures, say
from windlass.app import AsyncApp
from windlass.dialects.kumofire import JobContext, MemoryQueue, Storage, build_message, create_jobs
from windlass.engine import Engine
from windlass.machine import Succeed
from windlass.model import NewRun, Options, WorkerInfo

RUNS, QUICK_RUNS, ROUNDS = 1_000, 300, 5
JOB = "email"


async def handle(context: JobContext) -> None:
    """The handler of every run."""


class Consumers:
    """The two ways to execute queued runs."""

    def __init__(self, app: AsyncApp) -> None:
        self._engine: Engine = app.engine
        self._jobs = create_jobs(storage=Storage(app), queue=MemoryQueue(), handlers={JOB: handle})
        self._worker = WorkerInfo("bench", queues=("native",), slots=10)

    async def compare(self, count: int) -> tuple[float, float]:
        """Runs per second by the engine's own verbs and by their ids, in turn, so that both see the same machine."""
        await self._create("native", count)
        spent = [0.0, 0.0]
        for run_id in await self._create("kumofire", count):
            for way, execute in enumerate((self._execute, self._consume)):
                begun = time.perf_counter()
                await execute(run_id)
                spent[way] += time.perf_counter() - begun
        return count / spent[0], count / spent[1]

    async def _consume(self, run_id: str) -> None:
        consumed = await self._jobs.consume(build_message(run_id))
        assert consumed.outcome == "succeeded"

    async def _execute(self, _: str) -> None:
        (run,) = await self._engine.claim(self._worker)
        await self._engine.start(run.id, run.token or "", seq=run.seq)
        await self._engine.report(run.id, Succeed(token=run.token), seq=run.seq)

    async def _create(self, queue: str, count: int) -> list[str]:
        await self._jobs.consume(build_message("none"))  # the job is registered
        return [created.id for created in await self._engine.create([NewRun(JOB, {}, Options(queue=queue))] * count)]


async def _measured(path: Path, count: int) -> list[tuple[float, float]]:
    async with AsyncApp(path) as app:
        consumers = Consumers(app)
        await consumers.compare(count // 10)
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(await consumers.compare(count))
            say("  {:,.0f} claims/s, {:,.0f} messages/s".format(*rounds[-1]))
    return rounds


def measure(figures: Figures, *, quick: bool) -> None:
    """Messages consumed per second, and their share of what the engine's own verbs do."""
    with TemporaryDirectory() as folder:
        rounds = asyncio.run(_measured(Path(folder) / "jobs.db", QUICK_RUNS if quick else RUNS))
    figures.note("kumofire.consume.per_second", median(messages for _, messages in rounds))
    figures.note("kumofire.consume.ratio", median(messages / claims for claims, messages in rounds), at_least=0.7)
