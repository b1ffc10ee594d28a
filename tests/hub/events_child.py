"""A hub in a process of its own, to be killed and to be measured: `python -m tests.hub.events_child STORE`. It prints its port."""

from __future__ import annotations

import asyncio
import sys

from windlass.clock import SystemClock
from windlass.config import opening
from windlass.engine import Engine
from windlass.hub import Hub, HubApp, HubSettings
from windlass.hub.serving import listening, server


async def main(address: str, port: int) -> None:
    clock = SystemClock()
    store = opening.open_store(address, clock, blocking=False)
    hub = Hub(Engine(store, clock), clock, HubSettings(open=True))
    sock = listening("127.0.0.1", port)
    print(sock.getsockname()[1], flush=True)
    await server(HubApp(hub)).serve(sockets=[sock])
    print(f"open {hub.events.open}", flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
