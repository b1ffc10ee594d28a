"""The sender of webhooks beside a runner, and the endpoint for which it sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from windlass.clock import Clock
from windlass.config import load
from windlass.dialects.zerog.webhooks import FORMAT, WebhookConfig
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.errors import NotFound
from windlass.model import Webhook
from windlass.webhooks import Sender

_LOG = logging.getLogger("windlass.dialects.zerog")


@asynccontextmanager
async def sending(engine: Engine, clock: Clock, queue: str, config: WebhookConfig, ends: Callable[[], float | None]) -> AsyncIterator[None]:
    """Send beside the block. Afterwards, what is due goes out until `ends`, by the loop's clock; another sender sends the rest."""
    settings = load()
    allow, plain_http = (*config.allow, *(settings.allow or ())), config.plain_http or settings.plain_http or False
    sender = Sender(engine, clock, Egress(allow=allow, plain_http=plain_http), formats=(FORMAT,))
    sender.check_address(config.url)
    await registered(engine, queue, config)
    task = asyncio.create_task(sender.run())
    task.add_done_callback(_ended)
    try:
        yield
        if (end := ends()) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await sender.settled()
    finally:
        task.cancel()
        await asyncio.wait({task})


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("Webhooks are no longer sent by this runner.", exc_info=error)


async def registered(engine: Engine, queue: str, config: WebhookConfig) -> Webhook:
    """The endpoint at an address for the jobs of a queue: one, however many runners are started, and also at once."""
    endpoints = await _endpoints(engine, queue, config.url)
    if not endpoints:
        await engine.add_webhook(config.url, queues=(queue,), delays=config.delays, secret=config.secret, format=FORMAT.name)
        endpoints = await _endpoints(engine, queue, config.url)
        for double in endpoints[1:]:  # of runners that were started at the same time, which keep the first as well
            with suppress(NotFound):
                await engine.remove_webhook(double.id)
    return await _updated(engine, endpoints[0], config)


async def _endpoints(engine: Engine, queue: str, url: str) -> list[Webhook]:
    """Those of this format at the address, oldest first."""
    return [one for one in await engine.webhooks() if (one.format, one.url, one.queues, one.jobs) == (FORMAT.name, url, (queue,), None)]


async def _updated(engine: Engine, endpoint: Webhook, config: WebhookConfig) -> Webhook:
    """The endpoint with the secret and the delays of a runner that starts now. A delivery has one signature, so there is one secret."""
    if not endpoint.enabled:
        _LOG.warning("The webhook %s is disabled, so nothing is sent to it: %s", endpoint.id, endpoint.reason or "by hand")
    if endpoint.secrets[0].key != config.secret:
        _LOG.warning(
            "The webhook %s gets another secret; runners that were started with the former one sign with the new one too.", endpoint.id
        )
        endpoint = await engine.rotate_webhook(endpoint.id, overlap=0, secret=config.secret)
    return endpoint if endpoint.delays == config.delays else await engine.set_webhook(endpoint.id, delays=config.delays)
