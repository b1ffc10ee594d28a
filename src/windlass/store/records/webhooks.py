"""Webhook endpoints, and the deliveries to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windlass.model import Delivery, DeliveryStatus, Run, Secret, State, Webhook
from windlass.store.base import Row, Statement, Value
from windlass.store.columns import WEBHOOK_ADDED, WEBHOOK_EDITED
from windlass.store.records.batches import Rows
from windlass.store.records.journal import ADVANCE
from windlass.store.rows import pack

CONSUMER = "webhooks"
"""The name of the journal consumer that creates deliveries."""

BROKEN = 10
"""After this number of failures in a row an endpoint is not called for a while, and then probed by one delivery at a time."""

BATCHES: Mapping[str, tuple[str, ...]] = {
    "add_webhook": ("begin_tail", "lock_tail", "restart_tail", "add_webhook"),
    "edit_webhook": ("edit_webhook",),
    "drop_webhook": ("lock_tail", "drop_webhook"),
    "make_deliveries": (*ADVANCE, "add_deliveries"),
    "claim_deliveries": ("probe_webhooks", "claim_deliveries"),
    "settle_delivery": ("reset_webhook", "record_webhook_failure", "disable_webhook", "settle_delivery"),
    "resend_delivery": ("resend_delivery",),
    "prune_deliveries": ("give_up_deliveries", "prune_deliveries"),
    "drop_deliveries": ("drop_deliveries",),
}

_LISTS: Mapping[str, type] = {"jobs": tuple[str, ...], "queues": tuple[str, ...], "states": tuple[State, ...]} | {
    "delays": tuple[int, ...],
    "secrets": tuple[Secret, ...],
}


class End(NamedTuple):
    """A run as it is now, and which of its fields are too large for a body."""

    run: Run
    cut: tuple[str, ...] = ()


class NewDelivery(NamedTuple):
    """A delivery to be stored, the n-th of its batch."""

    n: int
    id: str
    webhook: str
    run: str
    rev: int
    type: str
    body: str


class Due(NamedTuple):
    """A delivery that is due."""

    webhook: str
    next_at: int
    seq: int


class Verdict(NamedTuple):
    """The outcome of an attempt, for the delivery and for its endpoint."""

    status: DeliveryStatus
    answer: int | None = None
    error: str | None = None
    next_at: int | None = None
    until: int | None = None
    paused_until: int = 0
    disabled: str | None = None


def _webhook_of(row: Row) -> Webhook:
    values = dict(zip(Webhook.__struct_fields__, row, strict=True))
    opened = {name: values[name] and msgspec.json.decode(values[name], type=kind) for name, kind in _LISTS.items()}
    return Webhook(**values | opened | {"enabled": bool(values["enabled"])})


def _row_of(webhook: Webhook, names: Sequence[str]) -> list[Any]:
    values = {name: getattr(webhook, name) for name in names}
    texts = {name: None if values[name] is None else pack(values[name]) for name in _LISTS}
    return list((values | texts | {"enabled": int(webhook.enabled)}).values())


class WebhookRecords(Rows):
    """Endpoints."""

    async def all(self) -> list[Webhook]:
        return [_webhook_of(row) for row in await self._read("webhooks")]

    async def find(self, identity: str) -> Webhook | None:
        rows = await self._read("webhook", id=identity)
        return _webhook_of(rows[0]) if rows else None

    async def add(self, webhook: Webhook, limit: int) -> bool:
        """Whether there was room for one more. The first webhook of all starts the consumer at the beginning of the journal."""
        place: dict[str, Value] = {"name": CONSUMER, "cursor": webhook.begins, "at": webhook.created_at}
        added: dict[str, Value] = {"r": pack([_row_of(webhook, WEBHOOK_ADDED)]), "limit": limit, "now": webhook.created_at}
        answers = await self._batch(
            "add_webhook",
            Statement("begin_tail", place),
            Statement("lock_tail", {"name": CONSUMER}),
            Statement("restart_tail", place),
            Statement("add_webhook", added | {"cursor": webhook.begins}),
        )
        return bool(answers[-1])

    async def edit(self, webhook: Webhook, now: int) -> bool:
        """Write an endpoint if it was not changed since it was read."""
        edited = Statement("edit_webhook", {"r": pack([_row_of(webhook, ("id", *WEBHOOK_EDITED, "rev"))]), "now": now})
        return bool((await self._batch("edit_webhook", edited))[0])

    async def drop(self, identity: str) -> bool:
        """Whether the endpoint was removed: it stays while it still has deliveries."""
        answers = await self._batch("drop_webhook", Statement("lock_tail", {"name": CONSUMER}), Statement("drop_webhook", {"id": identity}))
        return bool(answers[-1])


class DeliveryRecords(Rows):
    """Pending and settled deliveries."""

    def added(self, deliveries: Sequence[NewDelivery], now: int, until: int) -> list[Statement]:
        """The statements that store deliveries, to be written together with the offset up to which the journal was read for them."""
        return [Statement("add_deliveries", {"r": pack(deliveries), "now": now, "until": until})] if deliveries else []

    async def due(self, webhooks: Collection[str], now: int, count: int) -> list[Due]:
        """The first `count` due deliveries of each endpoint, all of them oldest first."""
        rows = await self._read("due_deliveries", names=pack(sorted(webhooks)), now=now, count=count) if webhooks else ()
        return [Due(*row) for row in rows]

    async def next_times(self, webhooks: Collection[str], now: int) -> list[int]:
        """When the next delivery of each of these endpoints becomes due, where there is one."""
        rows = await self._read("next_deliveries", names=pack(sorted(webhooks)), now=now) if webhooks else ()
        return [at for (at,) in rows if at is not None]

    async def claim(
        self, seqs: Sequence[int], probes: Collection[str], broken: int, token: str, now: int, until: int
    ) -> list[tuple[str, Delivery]]:
        """Claim those of these deliveries that are free, with their bodies; `probes` are endpoints that get one attempt."""
        held: dict[str, Value] = {"token": token, "now": now, "until": until}
        ids = pack(sorted(seqs))
        probe = [Statement("probe_webhooks", held | {"names": pack(sorted(probes)), "limit": broken})] if probes else []
        claimed = Statement("claimed_deliveries", {"ids": ids, "token": token})
        answers = await self._batch("claim_deliveries", *probe, Statement("claim_deliveries", held | {"ids": ids}), claimed)
        return [(body, Delivery(*row)) for body, *row in answers[-1]]

    async def settle(self, identity: str, token: str, verdict: Verdict, broken: int, now: int) -> bool:
        """Write the outcome of an attempt, if the token still holds the delivery."""
        held: dict[str, Value] = {"id": identity, "token": token}
        settled: dict[str, Value] = {name: getattr(verdict, name) for name in ("status", "answer", "error", "next_at", "until")}
        if verdict.status == "delivered":
            statements = [Statement("reset_webhook", held | {"limit": broken})]
        else:
            statements = [Statement("record_webhook_failure", held | {"until": verdict.paused_until})]
        if verdict.disabled is not None:
            statements.append(Statement("disable_webhook", held | {"reason": verdict.disabled, "now": now}))
        answers = await self._batch("settle_delivery", *statements, Statement("settle_delivery", held | settled | {"now": now}))
        return bool(answers[-1])

    async def resend(self, identity: str, now: int, until: int) -> bool:
        """Whether no sender holds it at the moment."""
        return bool((await self._batch("resend_delivery", Statement("resend_delivery", {"id": identity, "now": now, "until": until})))[0])

    async def find(self, identity: str) -> Delivery | None:
        rows = await self._read("delivery", id=identity)
        return Delivery(*rows[0]) if rows else None

    async def page(self, webhook: str, status: str | None, before: int, count: int) -> list[Delivery]:
        """Latest first."""
        if status is None:
            rows = await self._read("list_deliveries", id=webhook, seq=before, count=count)
        else:
            rows = await self._read("list_deliveries_status", id=webhook, status=status, seq=before, count=count)
        return [Delivery(*row) for row in rows]

    async def drop(self, deliveries: Sequence[Delivery]) -> None:
        await self._batch("drop_deliveries", Statement("drop_deliveries", {"ids": pack(sorted(item.seq for item in deliveries))}))

    async def prune(self, now: int, keep: int, count: int) -> int:
        """Give up deliveries that were not sent in time, and remove those past their retention; the number of both."""
        over = await self._read("deliveries_over", now=now, count=count)
        waiting = pack(sorted(seq for seq, status in over if status == "pending"))
        ended = pack(sorted(seq for seq, status in over if status != "pending"))
        if not over:
            return 0
        given_up: dict[str, Value] = {"ids": waiting, "now": now, "until": now + keep, "error": "It could not be delivered in time."}
        answers = await self._batch(
            "prune_deliveries", Statement("give_up_deliveries", given_up), Statement("prune_deliveries", {"ids": ended, "now": now})
        )
        return sum(map(len, answers))
