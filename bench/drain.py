"""The other process: claims and ends batches from a SQLite file until nothing is queued. `python -m bench.drain PATH`."""

from __future__ import annotations

import asyncio
import sys

from windlass.clock import SystemClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import WorkerInfo
from windlass.store.sqlite import AsyncSqlite

BATCH = 500


async def drain(path: str) -> int:
    """How many runs it ended."""
    store, ended = AsyncSqlite(path, SystemClock()), 0
    engine, worker = Engine(store, SystemClock()), WorkerInfo("drain", slots=BATCH)
    print("ready", flush=True)
    while runs := await engine.claim(worker, count=BATCH):
        await engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs])
        ended += len(runs)
        if len(runs) < BATCH:
            break  # what is left is what the other process has just made
    await store.close()
    return ended


if __name__ == "__main__":
    print(asyncio.run(drain(sys.argv[1])), flush=True)
