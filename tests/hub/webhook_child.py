"""A process that sends webhooks, to be killed at any point of it.

`python -m tests.hub.webhook_child` reads requests from its standard input, one JSON object a line, and forks for each as `kill_child` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpcore  # noqa: F401 - before the forks, so that none of them has to load it

from tests.formats import ATTEMPTS
from tests.kill_child import open_store
from windlass.clock import ManualClock
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.faults import FAULTS
from windlass.store.base import run_sync
from windlass.webhooks import STANDARD, Sender


async def send(engine: Engine, clock: ManualClock) -> None:
    """Send until nothing is due."""
    sender = Sender(engine, clock, Egress(allow=["127.0.0.0/8"], plain_http=True), formats=(STANDARD, ATTEMPTS))
    while not await sender.tick() or sender.sending:  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)


def live(kind: str, where: str, now: int) -> None:
    clock = ManualClock(now, seed=now)
    store = open_store(kind, where, clock)
    asyncio.run(send(Engine(store, clock), clock))
    run_sync(store.close())


def _one_life(request: dict[str, Any]) -> None:
    code = 1
    try:
        FAULTS.arm(request["faults"])
        live(request["kind"], request["where"], request["now"])
        code = 0
    finally:
        os._exit(code)


def serve() -> None:
    """Fork for each request and say how the child ended."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _one_life(json.loads(line))
        status = os.waitpid(pid, 0)[1]
        print(
            json.dumps({"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "code": os.waitstatus_to_exitcode(status)}),
            flush=True,
        )


if __name__ == "__main__":
    serve()
