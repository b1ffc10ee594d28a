"""Endpoints that are told of changes, and what they were told."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from windlass.engine.webhooks import DELAYS, SECRET_OVERLAP, Deliveries
from windlass.machine import ENDED
from windlass.model import Delivery, DeliveryStatus, State, Webhook
from windlass.wire.values import maybe_told, told


class WebhookView(Struct, frozen=True):
    """An endpoint that is told of changes; never a secret."""

    id: str
    name: str
    url: str
    jobs: list[str] | None
    queues: list[str] | None
    states: list[State]
    delays: list[int]
    enabled: bool
    reason: str | None
    failures: int
    paused_until: str | None
    secrets: int
    created_at: str
    updated_at: str


def webhook_view(webhook: Webhook, now: int) -> WebhookView:
    """An endpoint as it is told; `secrets` is how many sign just now."""
    return WebhookView(
        id=webhook.id,
        name=webhook.name,
        url=webhook.url,
        jobs=None if webhook.jobs is None else list(webhook.jobs),
        queues=None if webhook.queues is None else list(webhook.queues),
        states=list(webhook.states),
        delays=list(webhook.delays),
        enabled=webhook.enabled,
        reason=webhook.reason,
        failures=webhook.failures,
        paused_until=told(webhook.paused_until) if webhook.paused_until > now else None,
        secrets=sum(secret.until is None or secret.until > now for secret in webhook.secrets),
        created_at=told(webhook.created_at),
        updated_at=told(webhook.updated_at),
    )


class Webhooks(Struct, frozen=True):
    webhooks: list[WebhookView]


class AddWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint to be told of changes: of these jobs and queues, or of all; when a run enters one of these states."""

    url: str
    name: str | None = None
    jobs: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    states: tuple[State, ...] = ENDED
    delays: tuple[int, ...] = DELAYS
    secret: str | None = None
    enabled: bool = True


class MadeWebhook(Struct, frozen=True):
    """An endpoint and its new secret, which is told once."""

    webhook: WebhookView
    secret: str


class PatchWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of an endpoint; what is left out stays."""

    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    jobs: tuple[str, ...] | UnsetType | None = UNSET
    queues: tuple[str, ...] | UnsetType | None = UNSET
    states: tuple[State, ...] | UnsetType = UNSET
    delays: tuple[int, ...] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


class RotateWebhook(Struct, frozen=True, forbid_unknown_fields=True):
    """A new secret; those before it sign too for so many milliseconds."""

    overlap: int = SECRET_OVERLAP
    secret: str | None = None


class DeliveryView(Struct, frozen=True):
    """One change, told to one endpoint. Its id is the webhook-id of every try."""

    id: str
    webhook: str
    run: str
    rev: int
    type: str
    status: DeliveryStatus
    tries: int
    next_at: str | None
    answer: int | None
    error: str | None
    created_at: str
    finished_at: str | None


def delivery_view(delivery: Delivery) -> DeliveryView:
    return DeliveryView(
        id=delivery.id,
        webhook=delivery.webhook,
        run=delivery.run,
        rev=delivery.rev,
        type=delivery.type,
        status=delivery.status,
        tries=delivery.tries,
        next_at=maybe_told(delivery.next_at),
        answer=delivery.answer,
        error=delivery.error,
        created_at=told(delivery.created_at),
        finished_at=maybe_told(delivery.finished_at),
    )


class DeliveryPage(Struct, frozen=True):
    """What was told to an endpoint, latest first, and the cursor of the next page."""

    deliveries: list[DeliveryView]
    cursor: str | None


def delivery_page(page: Deliveries) -> DeliveryPage:
    return DeliveryPage([delivery_view(delivery) for delivery in page.deliveries], page.cursor)
