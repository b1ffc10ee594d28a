"""SO1: jobs created and read through its door, against runs created and read through the API of the same hub."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from bench.figures import Figures, say
from bench.hub import JOB, Line, per_second, serve_app, served
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

SECONDS, QUICK = 6.0, 2.0
ROUNDS = 3
INPUTS = {"repo": "acme/site", "branch": "main"}


class _Run(msgspec.Struct):
    id: str


class _Job(msgspec.Struct):
    job: _Run


_run, _job = msgspec.json.Decoder(_Run).decode, msgspec.json.Decoder(_Job).decode


class Doors:
    """The two ways to create and to read, with one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def native(self, line: Line) -> None:
        """Create a run and read it."""
        created = await line.post("/api/v1/runs", {"job": JOB, "payload": INPUTS}, status=202, token=self._token)
        await line.get(f"/api/v1/runs/{_run(created).id}", token=self._token)

    async def so1(self, line: Line) -> None:
        """Create a job and read it."""
        created = await line.post("/dialects/so1/api/jobs", {"action": JOB, "inputs": INPUTS}, status=202, token=self._token)
        await line.get(f"/dialects/so1/api/jobs/{_job(created).job.id}", token=self._token)


def prepared(path: Path) -> str:
    """A store with a job; the token of a caller."""
    clock = SystemClock()
    engine = Engine(BlockingSqlite(str(path), clock), clock)
    run_sync(engine.define(JOB))
    _, secret = run_sync(engine.create_token("acme/bench", ("read", "submit")))
    run_sync(engine.close())
    return secret


def measure(figures: Figures, *, quick: bool) -> None:
    """Creations, each with a read, per second at both doors."""
    seconds = QUICK if quick else SECONDS
    native, so1 = list[float](), list[float]()
    with TemporaryDirectory() as folder:
        doors = Doors(prepared(path := Path(folder) / "hub.db"))
        with served(str(path), module="bench.so1") as port:
            for _ in range(ROUNDS):
                native.append(asyncio.run(per_second(port, doors.native, seconds)))
                so1.append(asyncio.run(per_second(port, doors.so1, seconds)))
                say(f"  {native[-1]:,.0f} runs/s, {so1[-1]:,.0f} jobs/s")
    figures.note("so1.create_get.per_second", median(so1))
    figures.note("so1.create_get.ratio", median(job / run for job, run in zip(so1, native, strict=True)), at_least=0.7)


def main() -> None:
    """Serve a hub with the dialect until told to stop."""
    from windlass.config.opening import open_store
    from windlass.dialects.so1 import Settings, mount
    from windlass.hub import Hub, HubApp

    clock = SystemClock()
    engine = Engine(open_store(sys.argv[1], clock, blocking=False), clock)
    serve_app(HubApp(Hub(engine, clock), [mount(Settings(), clock)]))


if __name__ == "__main__":
    main()
