"""The connections of a worker on a store: the engine of its loop, and others for its heartbeat and sweep threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple

from windlass.clock import Clock
from windlass.config.opening import open_store
from windlass.config.settings import Settings
from windlass.engine import Engine
from windlass.model import Limits
from windlass.store.base import Store
from windlass.worker import host
from windlass.worker.lives import own_process


class StorePorts(NamedTuple):
    """The port of a worker, and the other arguments that it needs to work on a store."""

    port: Engine
    parts: dict[str, Any]


def shared_ports(engine: Engine) -> StorePorts:
    """One engine for everything: a store in memory cannot be opened twice."""
    return StorePorts(engine, {"heartbeat": engine, "maintenance": engine, "sweeper": engine})


@contextlib.asynccontextmanager
async def store_ports(address: str, clock: Clock, limits: Limits, settings: Settings, lease: int) -> AsyncIterator[StorePorts]:
    """Connections to the store at an address, closed at the end of the block."""
    stores: list[Store] = []
    try:
        stores.append(open_store(address, clock, blocking=False, settings=settings))
        blocking = partial(open_store, address, clock, blocking=True, patience=lease / 6000, settings=settings)
        stores.append(await asyncio.to_thread(blocking))
        stores.append(await asyncio.to_thread(blocking))
        port, heartbeat, sweeper = (Engine(store, clock, limits) for store in stores)
        threads = {"heartbeat": heartbeat, "maintenance": port, "sweeper": sweeper}
        yield StorePorts(port, {**threads, "about": about(), "process": own_process(), "measure": dict})
    finally:
        for store in stores:
            await store.close()


def about() -> dict[str, Any]:
    """Facts about this process, as a worker registers them."""
    from windlass import __version__  # which is available only when the package is fully imported

    return host.about(__version__)
