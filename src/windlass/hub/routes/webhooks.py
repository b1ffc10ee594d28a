"""Webhooks: whom to tell of changes, and what was told."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, patch, post
from litestar.params import FromPath, FromQuery, JSONBody

from windlass import wire
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count
from windlass.model import DeliveryStatus, Webhook


def _view(request: HubRequest, webhook: Webhook) -> wire.WebhookView:
    return wire.webhook_view(webhook, request.hub.clock.now())


@get("/api/v1/webhooks", opt={"scope": "admin"}, summary="Endpoints, oldest first; never a secret")
async def list_webhooks(request: HubRequest) -> wire.Webhooks:
    return wire.Webhooks([_view(request, webhook) for webhook in await request.hub.engine.webhooks()])


@post("/api/v1/webhooks", opt={"scope": "admin"}, summary="Tell an endpoint of changes; its secret is told once")
async def add_webhook(request: HubRequest, data: JSONBody[wire.AddWebhook]) -> wire.MadeWebhook:
    request.hub.sender.check(data.url)
    made = await request.act("add", f"webhook {data.url:.100}").add_webhook(
        data.url,
        name=data.name,
        jobs=data.jobs,
        queues=data.queues,
        states=data.states,
        delays=data.delays,
        secret=data.secret,
        enabled=data.enabled,
    )
    request.hub.sender.wake()
    return wire.MadeWebhook(_view(request, made), made.secrets[0].key)


@get("/api/v1/webhooks/{webhook_id:str}", opt={"scope": "admin"}, summary="One endpoint")
async def get_webhook(request: HubRequest, webhook_id: FromPath[str]) -> wire.WebhookView:
    return _view(request, await request.hub.engine.get_webhook(webhook_id))


@patch("/api/v1/webhooks/{webhook_id:str}", opt={"scope": "admin"}, summary="Edit an endpoint")
async def set_webhook(request: HubRequest, webhook_id: FromPath[str], data: JSONBody[wire.PatchWebhook]) -> wire.WebhookView:
    if isinstance(data.url, str):
        request.hub.sender.check(data.url)
    made = await request.act("edit", f"webhook {webhook_id:.100}").set_webhook(webhook_id, **data.fields())
    request.hub.sender.wake()
    return _view(request, made)


@delete("/api/v1/webhooks/{webhook_id:str}", status_code=200, opt={"scope": "admin"}, summary="Forget an endpoint and what it was told")
async def remove_webhook(request: HubRequest, webhook_id: FromPath[str]) -> wire.Done:
    await request.act("remove", f"webhook {webhook_id:.100}").remove_webhook(webhook_id)
    return wire.DONE


@post(
    "/api/v1/webhooks/{webhook_id:str}/rotate", opt={"scope": "admin"}, summary="Sign with a new secret; the old one signs too for a while"
)
async def rotate_webhook(
    request: HubRequest, webhook_id: FromPath[str], data: JSONBody[wire.RotateWebhook | None] = None
) -> wire.MadeWebhook:
    said = data or wire.RotateWebhook()
    made = await request.act("rotate", f"webhook {webhook_id:.100}").rotate_webhook(webhook_id, overlap=said.overlap, secret=said.secret)
    return wire.MadeWebhook(_view(request, made), made.secrets[0].key)


@get("/api/v1/webhooks/{webhook_id:str}/deliveries", opt={"scope": "admin"}, summary="What it was told, latest first")
async def list_deliveries(
    request: HubRequest,
    webhook_id: FromPath[str],
    status: FromQuery[DeliveryStatus | None] = None,
    cursor: FromQuery[str | None] = None,
    count: Count = 100,
) -> wire.DeliveryPage:
    return wire.delivery_page(await request.hub.engine.deliveries(webhook_id, status=status, cursor=cursor, count=count))


@get("/api/v1/deliveries/{delivery_id:str}", opt={"scope": "admin"}, summary="One delivery")
async def get_delivery(request: HubRequest, delivery_id: FromPath[str]) -> wire.DeliveryView:
    return wire.delivery_view(await request.hub.engine.get_delivery(delivery_id))


@post("/api/v1/deliveries/{delivery_id:str}/resend", status_code=202, opt={"scope": "admin"}, summary="Have it tried again from now on")
async def resend_delivery(request: HubRequest, delivery_id: FromPath[str]) -> wire.DeliveryView:
    made = await request.act("resend", f"delivery {delivery_id:.100}").resend(delivery_id)
    request.hub.sender.wake()
    return wire.delivery_view(made)


HANDLERS: list[Any] = [
    list_webhooks, add_webhook, get_webhook, set_webhook, remove_webhook, rotate_webhook, list_deliveries, get_delivery, resend_delivery,
]  # fmt: skip
