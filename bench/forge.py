"""Forge: jobs claimed and completed at its door against runs at the API, lists of a long queue, and the API beside dialects."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from bench import load
from bench.figures import Figures, say
from bench.hub import AT_ONCE, Line, claim_and_report, fill, per_second, serve_app, served
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import NewRun, Options
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

SECONDS, QUICK = 6.0, 2.0
ROUNDS = 3
FEW, MANY, MANY_QUICK = 1_000, 1_000_000, 200_000
LISTS = 30
SLICE = 10_000


class _Job(msgspec.Struct):
    id: str


_job = msgspec.json.Decoder(_Job).decode


async def claim_and_complete(line: Line) -> None:
    """A pair, as an agent asks for it."""
    job = _job(await line.post("/dialects/forge/api/jobs/claim", {"worker_id": "bench"}))
    answer = await line.post(f"/dialects/forge/api/jobs/{job.id}/result", {"worker_id": "bench", "result": "null"})
    if b'"ok":true' not in answer:
        raise RuntimeError(f"{job.id}: {answer!r}")


def fill_queue(path: Path, runs: int) -> None:
    """Jobs of the protocol that wait, beside the runs that are there."""
    clock = SystemClock()
    engine = Engine(BlockingSqlite(str(path), clock), clock)
    rules = Options(queue="forge", backoff=(0,), on_exhausted="quarantined", max_runtime=300_000)
    for _ in range(0, runs, SLICE):
        run_sync(engine.create([NewRun("prodplan", {"n": n}, rules) for n in range(SLICE)], undefined="wait"))
    run_sync(engine.close())


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the dialect."""
    seconds = QUICK if quick else SECONDS
    with TemporaryDirectory() as folder:
        _measure_pairs(figures, Path(folder), seconds)
        _measure_lists(figures, Path(folder), MANY_QUICK if quick else MANY)


def _measure_pairs(figures: Figures, folder: Path, seconds: float) -> None:
    paths = [folder / name for name in ("alone.db", "beside.db", "forge.db")]
    for path, filled in zip(paths, (fill, fill, fill_queue), strict=True):
        filled(path, 60_000)
    alone, beside, jobs = map(str, paths)
    bare, native, forge = list[float](), list[float](), list[float]()
    with served("hub", alone) as one, served(beside, module="bench.forge") as two, served(jobs, module="bench.forge") as three:
        for _ in range(ROUNDS):
            for rates, port, exchange in (
                (bare, one, claim_and_report),
                (native, two, claim_and_report),
                (forge, three, claim_and_complete),
            ):
                rates.append(asyncio.run(per_second(port, exchange, seconds)))
            say(f"  {bare[-1]:,.0f} pairs/s, {native[-1]:,.0f} beside dialects, {forge[-1]:,.0f} at the door of Forge, {AT_ONCE} at once")
    figures.note("forge.claim_result.per_second", median(forge))
    figures.note("forge.claim_result.ratio", median(_ratios(forge, native)), at_least=0.6)
    figures.note("hub.beside_dialects.ratio", median(_ratios(native, bare)), at_least=0.97)


def _ratios(ours: list[float], others: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, others, strict=True)]


def _measure_lists(figures: Figures, folder: Path, many: int) -> None:
    times = {}
    for count in (FEW, many):
        path = folder / f"list{count}.db"
        fill_queue(path, SLICE)  # for the schema and the lane; the load below replaces the runs
        clock = SystemClock()
        with load.sqlite_loader(path, clock) as execute:
            execute("delete from job_runs")
            load.queued(execute, count, job="prodplan", queue="forge", lane=1, at=clock.now())
        with served(str(path), module="bench.forge") as port:
            times[count] = asyncio.run(_median_ms(port, "/dialects/forge/api/jobs?limit=100"))
    figures.note("forge.list_1m.ms", times[many])
    figures.note("forge.list_1m.ratio", times[many] / times[FEW], at_most=3)


async def _median_ms(port: int, path: str) -> float:
    line = Line(*await asyncio.open_connection("127.0.0.1", port))
    times = [await _timed(lambda: line.get(path)) for _ in range(LISTS)]
    line.close()
    return median(times)


async def _timed(ask: Callable[[], Awaitable[bytes]]) -> float:
    begun = time.perf_counter()
    await ask()
    return (time.perf_counter() - begun) * 1_000


def main() -> None:
    """Serve a hub with every dialect until told to stop."""
    from windlass.config.opening import open_store
    from windlass.dialects import NAMES, mount_all
    from windlass.hub import Hub, HubApp, HubSettings

    clock = SystemClock()
    hub = Hub(Engine(open_store(sys.argv[1], clock, blocking=False), clock), clock, HubSettings(open=True))
    serve_app(HubApp(hub, mount_all({name: {} for name in NAMES}, None, {}, clock)))


if __name__ == "__main__":
    main()
