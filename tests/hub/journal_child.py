"""A process that adds to the journal when it is told to: `python -m tests.hub.journal_child STORE blocking|async`.

For every line of its standard input it makes a run and cancels it, and prints the run's id.
"""

from __future__ import annotations

import asyncio
import sys

from windlass.clock import SystemClock
from windlass.config import opening
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync


async def make(engine: Engine) -> None:
    """A run, and its end."""
    created = await engine.create([NewRun("mail")], undefined="wait")
    await engine.cancel(created[0].id)
    print(created[0].id, flush=True)


async def serve(address: str) -> None:
    clock = SystemClock()
    store = opening.open_store(address, clock, blocking=False)
    while await asyncio.to_thread(sys.stdin.readline):
        await make(Engine(store, clock))
    await store.close()


def main(address: str, colour: str) -> None:
    if colour == "async":
        asyncio.run(serve(address))
        return
    clock = SystemClock()
    store = opening.open_store(address, clock, blocking=True)
    while sys.stdin.readline():
        run_sync(make(Engine(store, clock)))
    run_sync(store.close())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
