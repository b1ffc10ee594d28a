"""The worker of the measurements: `python -m bench.noop ADDRESS drain SLOTS`, or `serve` with 256; a handler that does nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from windlass import App
from windlass.app.working import SWITCH_INTERVAL
from windlass.worker import Worker

SLOTS = 256
app = App(sys.argv[1] if len(sys.argv) > 2 else ":memory:")


@app.job(name="mail")
async def mail(to: str) -> None:
    """What is measured is everything but this."""


@app.job(name="tell")
async def tell() -> None:
    """Say when it began, on the clock that all processes share."""
    print(time.perf_counter(), flush=True)


def resident() -> float:
    """MiB of memory in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def drain(slots: int) -> dict[str, float]:
    """Work until nothing is left; how long that took, and how much the memory grew after the first quarter."""
    async with app.worker(slots=slots) as worker:
        watching = asyncio.create_task(_watch(worker))
        begun = time.perf_counter()
        await worker.run(until_idle=True)
        seconds = time.perf_counter() - begun
        watching.cancel()
    return {"seconds": seconds, "resident": resident()}


async def _watch(worker: Worker) -> None:
    while True:
        print(json.dumps({"resident": resident()}), flush=True)
        await asyncio.sleep(0.25)


async def serve() -> None:
    async with app.working(slots=SLOTS):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)
    if sys.argv[2] == "drain":
        print(json.dumps(asyncio.run(drain(int(sys.argv[3])))), flush=True)
    else:
        asyncio.run(serve())
