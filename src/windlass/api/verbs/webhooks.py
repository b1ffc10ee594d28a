"""Webhooks: endpoints that changes are sent to, and their deliveries."""

from __future__ import annotations

from typing import Any, Protocol

from windlass.answers import Deliveries
from windlass.api.answers import MadeWebhook
from windlass.api.gives import DONE, Gives, listed, one, page_of
from windlass.api.requests import AddWebhook, PatchWebhook, RotateWebhook
from windlass.api.rows import COUNT, CURSOR, DELETE, GET, PATCH, POST, ByRow, Param, verb
from windlass.api.views import DELIVERY, WEBHOOK, made_webhook
from windlass.defaults import SECRET_OVERLAP
from windlass.model import STANDARD, Delivery, DeliveryStatus, State, Webhook

_WEBHOOKS = listed("Webhooks", "Every endpoint.", webhooks=WEBHOOK)
_MADE = Gives(
    MadeWebhook,
    lambda webhook, _: MadeWebhook(WEBHOOK.show(webhook), webhook.secrets[0].key),
    lambda answer, _: made_webhook(answer),
)
_DELIVERIES = page_of(Deliveries, "DeliveryPage", "Some deliveries, and the cursor of the next page.", deliveries=DELIVERY)
_OF_RUN = listed("DeliveriesOfRun", "The deliveries of a run's changes, oldest first.", deliveries=DELIVERY)
_STATUS = Param("status", DeliveryStatus | None)


class WebhookVerbs(Protocol):
    """Endpoints and deliveries."""

    @verb(GET, "/webhooks", "Endpoints, oldest first, without their secrets", _WEBHOOKS, scope="admin")
    async def webhooks(self) -> list[Webhook]:
        """Every endpoint, oldest first."""
        raise ByRow

    @verb(
        POST, "/webhooks", "Add an endpoint for changes; its secret is shown once", _MADE,
        scope="admin", takes=AddWebhook, status=201, audit="add webhook {url:.100}",
    )  # fmt: skip
    async def add_webhook(
        self,
        url: str,
        *,
        name: str | None = None,
        jobs: tuple[str, ...] | None = None,
        queues: tuple[str, ...] | None = None,
        states: tuple[State | str, ...] | None = None,
        delays: tuple[int, ...] | None = None,
        secret: str | None = None,
        enabled: bool = True,
        format: str = STANDARD,
    ) -> Webhook:
        """Send changes to an endpoint: of these jobs and queues, or of all, when a run enters one of these states."""
        raise ByRow

    @verb(GET, "/webhooks/{webhook_id}", "One endpoint", one(WEBHOOK), scope="admin")
    async def get_webhook(self, webhook_id: str) -> Webhook:
        """The endpoint with this id."""
        raise ByRow

    @verb(
        PATCH, "/webhooks/{webhook_id}", "Edit an endpoint", one(WEBHOOK),
        scope="admin", takes=PatchWebhook, audit="edit webhook {webhook_id:.100}",
    )  # fmt: skip
    async def set_webhook(self, /, webhook_id: str, **fields: Any) -> Webhook:
        """Edit an endpoint."""
        raise ByRow

    @verb(
        DELETE, "/webhooks/{webhook_id}", "Remove an endpoint and its deliveries", DONE,
        scope="admin", audit="remove webhook {webhook_id:.100}",
    )  # fmt: skip
    async def remove_webhook(self, webhook_id: str) -> None:
        """Remove an endpoint and its deliveries."""
        raise ByRow

    @verb(
        POST, "/webhooks/{webhook_id}/rotate", "Sign with a new secret; the old one also signs for a while", _MADE,
        scope="admin", takes=RotateWebhook | None, status=201, audit="rotate webhook {webhook_id:.100}",
    )  # fmt: skip
    async def rotate_webhook(self, webhook_id: str, *, overlap: int = SECRET_OVERLAP, secret: str | None = None) -> Webhook:
        """Sign with a new secret; earlier ones also sign until the overlap is over."""
        raise ByRow

    @verb(
        GET, "/webhooks/{webhook_id}/deliveries", "Its deliveries, latest first", _DELIVERIES,
        scope="admin", query=(_STATUS, CURSOR, COUNT),
    )  # fmt: skip
    async def deliveries(self, webhook_id: str, *, status: str | None = None, cursor: str | None = None, count: int = 100) -> Deliveries:
        """The deliveries of an endpoint, latest first."""
        raise ByRow

    @verb(GET, "/runs/{run_id}/deliveries", "The deliveries of its changes, oldest first", _OF_RUN, scope="read")
    async def deliveries_of(self, run_id: str) -> list[Delivery]:
        """The deliveries of a run's changes, to endpoints and to the address that it names, oldest first."""
        raise ByRow

    @verb(GET, "/deliveries/{delivery_id}", "One delivery", one(DELIVERY), scope="admin")
    async def get_delivery(self, delivery_id: str) -> Delivery:
        """The delivery with this id."""
        raise ByRow

    @verb(
        POST, "/deliveries/{delivery_id}/resend", "Send it again", one(DELIVERY),
        scope="admin", status=202, audit="resend delivery {delivery_id:.100}",
    )  # fmt: skip
    async def resend(self, delivery_id: str) -> Delivery:
        """Send a delivery again."""
        raise ByRow
