"""A process that starts sweepers, to be killed at any moment.

`serve` reads orders from its standard input, one JSON object a line: it forks for each sweeper, so that one costs a few milliseconds
instead of the start of an interpreter. Nothing is open before the fork, and no sweeper outlives the process that bore it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.clock import Clock, SystemClock
from windlass.engine import Engine, Outcome
from windlass.errors import StoreBusy, WindlassError
from windlass.firing import Fire
from windlass.machine import Succeed
from windlass.model import NewRun, Schedule, WorkerInfo
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite
from windlass.worker.launch import bind

SLOTS, LEASE = 50, 20_000


class FastClock(SystemClock):
    """A clock on which a minute takes a second, the same in every process; intervals take as long as they take."""

    EPOCH, RATE = 1_800_000_000_000, 60

    def __init__(self, begun: int, ahead: int = 0) -> None:
        super().__init__()
        self.begun, self.ahead = begun, ahead

    def now(self) -> int:
        return self.EPOCH + self.ahead + (self.monotonic() - self.begun) * self.RATE

    def align(self, server_now: int) -> None:
        """The server's clock is not the one that counts."""


class Firing:
    """A byte in a file that says whether a sweeper is about to store what it fires: it stands there even if the sweeper is killed."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, 1)
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def __bool__(self) -> bool:
        return self._byte[0] == 1

    def say(self, yes: bool) -> None:
        self._byte[0] = yes


def seen_firing(engine: Engine, firing: Firing) -> Engine:
    """The engine, of which can be seen whether it is firing."""
    fires = engine.parts.fires
    store = fires._store_fires

    async def seen(plans: Sequence[tuple[Schedule, Fire]], news: Sequence[NewRun]) -> int:
        firing.say(True)
        try:
            return await store(plans, news)
        finally:
            firing.say(False)

    fires._store_fires = seen  # type: ignore[method-assign]
    return engine


def open_store(kind: str, where: str, clock: Clock, **how: Any) -> Store:
    return BlockingPostgres(where, clock, **how) if kind == "postgres" else BlockingSqlite(where, clock, **how)


def sweep_for_ever(kind: str, where: str, begun: int, ahead: int, firing: str) -> None:
    """Sweep without a pause, and do what the schedules make."""
    clock = FastClock(begun, ahead)
    engine = seen_firing(Engine(open_store(kind, where, clock), clock), Firing(Path(firing)))
    while True:
        with contextlib.suppress(StoreBusy):
            run_sync(engine.sweep())
            work(engine, f"sweeper {os.getpid()}")


def work(engine: Engine, name: str) -> int:
    """Claim some runs and end them well; how many."""
    runs = run_sync(engine.claim(WorkerInfo(name, slots=SLOTS), count=SLOTS, lease=LEASE))
    answers = run_sync(engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
    unexpected = [answer for answer in answers if isinstance(answer, WindlassError) and answer.code not in ("lease_lost", "cancelled")]
    assert not unexpected, unexpected
    return len(runs)


def serve() -> None:
    """Do what is asked for, until nobody asks any more; then nothing is left."""
    living: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            living.add(pid := _start(order))
            print(pid, flush=True)
        else:
            status = os.waitpid(order["pid"], 0)[1]
            living.discard(order["pid"])
            print(os.waitstatus_to_exitcode(status), flush=True)
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start(order: dict[str, Any]) -> int:
    server = os.getpid()
    if pid := os.fork():
        return pid
    try:
        bind(0, server)
        sweep_for_ever(**order["sweeper"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve()
