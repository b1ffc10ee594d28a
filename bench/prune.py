"""The other process: sweeps a store, as a worker does, until nothing is past its retention. `python -m bench.prune ADDRESS`."""

from __future__ import annotations

import json
import sys
import time

from windlass.clock import SystemClock
from windlass.config import opening
from windlass.engine import Engine
from windlass.engine.ground import BACK_AT_LATEST
from windlass.model import Limits
from windlass.store.base import run_sync

NOTHING = Limits(keep_succeeded=0, keep_others=0)


def prune(engine: Engine) -> int:
    """How many runs it removed, with the pauses that it makes for others."""
    pruned = 0
    while True:
        swept = run_sync(engine.sweep())
        pruned += swept.pruned
        if swept.back_in >= BACK_AT_LATEST:
            return pruned  # it rests
        time.sleep(max(swept.back_in, 1) / 1000)


def main(address: str) -> None:
    clock = SystemClock()
    engine = Engine(opening.open_store(address, clock, blocking=True), clock, NOTHING)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    pruned = prune(engine)
    print(json.dumps({"pruned": pruned, "seconds": time.perf_counter() - begun}), flush=True)
    run_sync(engine.close())


if __name__ == "__main__":
    main(sys.argv[1])
