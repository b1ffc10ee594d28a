"""0gkit: a backlog drained by its runner with 16 jobs at once, against a worker. `python -m bench.zerog ADDRESS WHO COUNT`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Figures, say
from windlass import AsyncApp
from windlass.app.working import SWITCH_INTERVAL
from windlass.clock import SystemClock
from windlass.dialects.zerog import JobContext, JobRunner, backend, jobs
from windlass.dialects.zerog.words import options_of
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

AT_ONCE = 16
BACKLOG, QUICK, CALL = 20_000, 5_000, 1_000
ROUNDS = 5
PAYLOAD = {"to": "ann@example.com"}
HERE = Path(__file__).parent.parent


def fill(path: Path, count: int) -> None:
    """A store with so many jobs."""
    engine = Engine(BlockingSqlite(str(path), SystemClock()), SystemClock())
    for _ in range(count // CALL):
        run_sync(engine.create([NewRun("mail", PAYLOAD, options_of("zerog", 3))] * CALL, undefined="wait"))
    run_sync(engine.close())


def drained(who: str, count: int) -> float:
    """Jobs a second, by a process of its own."""
    with TemporaryDirectory() as folder:
        fill(path := Path(folder) / "jobs.db", count)
        done = subprocess.run(
            [sys.executable, "-m", "bench.zerog", str(path), who, str(count)], cwd=HERE, stdout=subprocess.PIPE, check=True
        )
    return count / float(done.stdout)


def measure(figures: Figures, *, quick: bool) -> None:
    """Jobs a second by both, in turn."""
    count = QUICK if quick else BACKLOG
    plain, zerog = list[float](), list[float]()
    for _ in range(ROUNDS):
        plain.append(drained("worker", count))
        zerog.append(drained("runner", count))
        say(f"  {plain[-1]:,.0f} runs/s by the worker, {zerog[-1]:,.0f} jobs/s by the runner")
    figures.note("zerog.drain.per_s", median(zerog))
    figures.note("zerog.drain.ratio", median(job / run for job, run in zip(zerog, plain, strict=True)), at_least=0.8)


async def by_worker(address: str, count: int) -> float:
    """Seconds that a worker takes for so many."""
    app, left = AsyncApp(address), Countdown(count)

    @app.job(name="mail")
    async def mail(to: str) -> None:
        left.tick()

    begun = time.perf_counter()
    async with app.working(slots=AT_ONCE, queues=["zerog"]):
        await left.none.wait()
    return time.perf_counter() - begun


async def by_runner(address: str, count: int) -> float:
    """Seconds that a runner takes for so many."""
    left = Countdown(count)

    async def mail(context: JobContext) -> None:
        left.tick()

    runner = JobRunner(backend=backend(address)).register(jobs.define(name="mail", handler=mail))
    begun = time.perf_counter()
    await runner.start(concurrency=AT_ONCE)
    await left.none.wait()
    await runner.stop()
    return time.perf_counter() - begun


class Countdown:
    """Tells when there is nothing left."""

    def __init__(self, count: int) -> None:
        self._left, self.none = count, asyncio.Event()

    def tick(self) -> None:
        self._left -= 1
        if not self._left:
            self.none.set()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)
    print(asyncio.run({"worker": by_worker, "runner": by_runner}[sys.argv[2]](sys.argv[1], int(sys.argv[3]))), flush=True)
