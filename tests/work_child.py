"""A process that creates and executes runs until it is killed. Every line it prints is a promise: what it names is stored.

Started as `python -m tests.work_child KIND ADDRESS`.
"""

from __future__ import annotations

import itertools
import sys

from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.machine import Fail, Succeed
from windlass.model import Failure, NewRun, Run, WorkerInfo
from windlass.store.base import Store, run_sync


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def opened(kind: str, address: str, clock: SystemClock) -> Store:
    if kind == "postgres":
        from windlass.store.postgres import BlockingPostgres

        return BlockingPostgres(address, clock)
    from windlass.store.sqlite import BlockingSqlite

    return BlockingSqlite(address, clock)


def execute(engine: Engine, run: Run, n: int) -> None:
    """One attempt, well or badly."""
    say("claimed", run.id)
    assert run.token is not None
    run_sync(engine.start(run.id, run.token))
    say("started", run.id)
    run_sync(engine.log(run.id, run.token, [(1, f"line of {run.id}")]))
    say("logged", run.id)
    if n % 3:
        run_sync(engine.report(run.id, Succeed(token=run.token, output=f'"{run.id}"')))
        say("succeeded", run.id)
    else:
        run_sync(engine.report(run.id, Fail(token=run.token, error=Failure("boom", "it broke"), delay=0)))
        say("failed", run.id)


def main(kind: str, address: str) -> None:
    clock = SystemClock()
    engine = Engine(opened(kind, address, clock), clock)
    for n in itertools.count():
        for made in run_sync(engine.create([NewRun("mail", {"n": n})] * 2)):
            say("created", made.id)
        for run in run_sync(engine.claim(WorkerInfo("child", slots=2))):
            execute(engine, run, n)


if __name__ == "__main__":
    main(*sys.argv[1:])
