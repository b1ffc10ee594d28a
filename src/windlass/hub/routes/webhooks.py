"""Webhooks: changes wake the sender, and a view shows the state at the current time."""

from __future__ import annotations

from typing import Any

from windlass.api.answers import MadeWebhook
from windlass.api.requests import AddWebhook, Body, RotateWebhook
from windlass.api.views import DELIVERY, webhook_view
from windlass.hub.requests import HubRequest
from windlass.model import Webhook


def _view(request: HubRequest, webhook: Webhook) -> Any:
    return webhook_view(webhook, request.hub.clock.now())


async def webhooks(request: HubRequest) -> Any:
    return request.verb.gives.form([_view(request, webhook) for webhook in await request.hub.engine.webhooks()])


async def add_webhook(request: HubRequest, data: AddWebhook) -> MadeWebhook:
    request.hub.sender.check(data.url)
    webhook = await request.audited({"url": data.url}).add_webhook(**data.arguments())
    request.hub.sender.wake()
    return MadeWebhook(_view(request, webhook), webhook.secrets[0].key)


async def get_webhook(request: HubRequest, webhook_id: str) -> Any:
    return _view(request, await request.hub.engine.get_webhook(webhook_id))


async def set_webhook(request: HubRequest, webhook_id: str, data: Body) -> Any:
    changes = data.arguments()
    if "url" in changes:
        request.hub.sender.check(changes["url"])
    webhook = await request.audited({"webhook_id": webhook_id}).set_webhook(webhook_id, **changes)
    request.hub.sender.wake()
    return _view(request, webhook)


async def rotate_webhook(request: HubRequest, webhook_id: str, data: RotateWebhook | None) -> MadeWebhook:
    words = (data or RotateWebhook()).arguments()
    webhook = await request.audited({"webhook_id": webhook_id}).rotate_webhook(webhook_id, **words)
    return MadeWebhook(_view(request, webhook), webhook.secrets[0].key)


async def resend(request: HubRequest, delivery_id: str) -> Any:
    delivery = await request.audited({"delivery_id": delivery_id}).resend(delivery_id)
    request.hub.sender.wake()
    return DELIVERY.show(delivery)


HANDLERS = {handler.__name__: handler for handler in (webhooks, add_webhook, get_webhook, set_webhook, rotate_webhook, resend)}
