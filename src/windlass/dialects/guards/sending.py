"""Webhooks of a scheduler that is no hub: what may be notified, and the loop that sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from windlass.app import App
from windlass.config import load
from windlass.config.addresses import MEMORY, located
from windlass.config.opening import open_store
from windlass.dialects import formats
from windlass.dialects.guards.webhooks import FORMAT
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.webhooks import STANDARD, Sender


def sender_of(app: App, engine: Engine) -> Sender | None:
    """A sender that follows the settings of windlass, `allow` and `plain_http`; None where nothing can be sent, for want of httpcore."""
    if find_spec("httpcore") is None:
        return None
    settings = load().filled()
    egress = Egress(allow=settings.allow or (), plain_http=settings.plain_http or False)
    return Sender(engine, app.clock, egress, formats=(STANDARD, FORMAT, *formats()))


@asynccontextmanager
async def sending(app: App) -> AsyncIterator[None]:
    """Send the webhooks of an app's store during the block, on a connection of its own."""
    async with _engine_of(app) as engine:
        sender = sender_of(app, engine)
        task = asyncio.create_task(asyncio.sleep(0) if sender is None else sender.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def _engine_of(app: App) -> AsyncIterator[Engine]:
    """An engine for the loop of the sender; a store in memory has one connection only."""
    if located(app.address).place == MEMORY:
        yield app.engine
        return
    store = open_store(app.address, app.clock, blocking=False, settings=load())
    try:
        yield Engine(store, app.clock, app.limits)
    finally:
        await store.close()
