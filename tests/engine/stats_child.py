"""A process that counts for as long as its standard input is open: `python -m tests.engine.stats_child KIND WHERE`."""

from __future__ import annotations

import sys
from threading import Thread

from tests.kill_child import open_store
from windlass.clock import ManualClock
from windlass.engine import Engine, rollup
from windlass.errors import StoreBusy
from windlass.store.base import run_sync


def count(kind: str, where: str) -> None:
    rollup.PAGE = 7  # so that all of them have something to do
    clock = ManualClock()
    store = open_store(kind, where, clock)
    engine = Engine(store, clock)
    reader = Thread(target=sys.stdin.read, daemon=True)
    reader.start()
    print("ready", flush=True)
    while reader.is_alive():
        try:
            run_sync(engine.roll_up())
        except StoreBusy:
            continue  # the others are many, and write all the time
    run_sync(store.close())


if __name__ == "__main__":
    count(*sys.argv[1:])
