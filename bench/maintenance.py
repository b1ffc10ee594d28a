"""The other process: sweeps and tidies a store, as a worker does, until it reads a line. `python -m bench.maintenance ADDRESS KEEP`."""

from __future__ import annotations

import asyncio
import sys

from windlass.clock import SystemClock
from windlass.config import opening
from windlass.engine import Engine
from windlass.model import Limits

TIDY_EVERY = 10.0


async def maintain(engine: Engine) -> int:
    """How many runs it removed."""
    pruned, stop = 0, asyncio.create_task(asyncio.to_thread(sys.stdin.readline))

    async def tidy() -> None:
        while not stop.done():
            await engine.tidy()
            await asyncio.wait({stop}, timeout=TIDY_EVERY)

    tidying = asyncio.create_task(tidy())
    print("ready", flush=True)
    while not stop.done():
        swept = await engine.sweep()
        pruned += swept.pruned
        await asyncio.wait({stop}, timeout=max(swept.back_in, 1) / 1000)
    await tidying  # a vacuum that it has begun is waited for
    return pruned


async def main(address: str, keep: int) -> None:
    clock = SystemClock()
    engine = Engine(opening.open_store(address, clock, blocking=False), clock, Limits(keep_succeeded=keep, keep_others=keep))
    print(await maintain(engine), flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
