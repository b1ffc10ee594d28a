"""Webhook endpoints, and the deliveries to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.model import STANDARD, Delivery, DeliveryStatus, Notify, Run, Secret, State, Webhook
from windlass.payload import reader
from windlass.store.base import Row, Statement, Value
from windlass.store.columns import WEBHOOK_ADDED, WEBHOOK_EDITED
from windlass.store.records.batches import Rows
from windlass.store.records.journal import ADVANCE
from windlass.store.rows import pack

CONSUMER = "webhooks"
"""The name of the journal consumer that creates deliveries of the standard format. Each format has one of its own."""

BROKEN = 10
"""After this number of failures in a row an endpoint is not called for a while, and then probed by one delivery at a time."""

BATCHES: Mapping[str, tuple[str, ...]] = {
    "add_webhook": ("begin_tail", "lock_tail", "restart_tail", "add_webhook"),
    "drop_origins": ("lock_tail", "drop_origins"),
    "edit_webhook": ("edit_webhook",),
    "drop_webhook": ("lock_tail", "drop_webhook"),
    "make_deliveries": (*ADVANCE, "add_webhook", "add_deliveries"),
    "claim_deliveries": ("probe_webhooks", "claim_deliveries"),
    "settle_delivery": ("reset_webhook", "record_webhook_failure", "disable_webhook", "settle_delivery"),
    "resend_delivery": ("lock_tail", "add_webhook", "resend_delivery"),
    "prune_deliveries": ("give_up_deliveries", "prune_deliveries"),
    "drop_deliveries": ("drop_deliveries",),
}

_LISTS: Mapping[str, Any] = {
    "jobs": tuple[str, ...] | None,
    "queues": tuple[str, ...] | None,
    "states": tuple[State, ...] | None,
    "delays": tuple[int, ...] | None,
    "secrets": tuple[Secret, ...],
}
_MAY_BE_NULL = ("jobs", "queues")
"""Columns that are null where there is no list; the others have the text null then."""


def consumer_of(format: str) -> str:
    """The journal consumer of a format: one of a format without a sender waits, and holds up no other."""
    return CONSUMER if format == STANDARD else f"{CONSUMER}:{format}"


def format_of(consumer: str) -> str | None:
    """The format of a journal consumer; None for one of another kind."""
    kind, _, format = consumer.partition(":")
    return (format or STANDARD) if kind == CONSUMER else None


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
    url: str | None


class DueDelivery(NamedTuple):
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
    opened = {name: values[name] and reader(kind)(values[name]) for name, kind in _LISTS.items()}
    return Webhook(**values | opened | {"enabled": bool(values["enabled"])})


def _row_of(webhook: Webhook, names: Sequence[str]) -> list[Any]:
    values = {name: getattr(webhook, name) for name in names}
    texts = {name: None if values[name] is None and name in _MAY_BE_NULL else pack(values[name]) for name in _LISTS}
    return list((values | texts | {"enabled": int(webhook.enabled)}).values())


class WebhookRecords(Rows):
    """Endpoints, and the origins of addresses that runs name."""

    async def all(self) -> list[Webhook]:
        """All endpoints and origins."""
        return [_webhook_of(row) for row in await self._read("webhooks")]

    async def find(self, identity: str) -> Webhook | None:
        rows = await self._read("webhook", id=identity)
        return _webhook_of(rows[0]) if rows else None

    async def add(self, webhook: Webhook, limit: int) -> bool:
        """Whether there was room for one more. The first of its format starts the format's consumer where the endpoint begins."""
        name = consumer_of(webhook.format)
        place: dict[str, Value] = {"name": name, "cursor": webhook.begins, "at": webhook.created_at}
        answers = await self._batch(
            "add_webhook",
            Statement("begin_tail", place),
            Statement("lock_tail", {"name": name}),
            Statement("restart_tail", place | {"format": webhook.format}),
            _added([webhook], webhook.begins, webhook.created_at, limit),
        )
        return bool(answers[-1])

    async def notify_of(self, runs: Collection[str]) -> dict[str, Notify]:
        """The addresses that runs name, for those that name one."""
        rows = await self._read("notify_of", names=pack(sorted(runs))) if runs else ()
        return {run: Notify(url, format, _events(events)) for run, url, format, events in rows}

    def added(self, origins: Sequence[Webhook], now: int) -> list[Statement]:
        """The statements that store those of these origins that are not there."""
        return [_added(origins, "", now, 0)] if origins else []

    def stored_again(self, origin: Webhook) -> list[Statement]:
        """The statements that store an origin if it was removed, and keep it until they are committed."""
        return [Statement("lock_tail", {"name": consumer_of(origin.format)}), *self.added([origin], origin.created_at)]

    async def drop_origins(self, format: str, origins: Sequence[str], before: int) -> None:
        """Remove those of these origins that were created before a time and have nothing left to send."""
        dropped = Statement("drop_origins", {"names": pack(origins), "before": before})
        await self._batch("drop_origins", Statement("lock_tail", {"name": consumer_of(format)}), dropped)

    async def edit(self, webhook: Webhook, now: int) -> bool:
        """Write an endpoint if it was not changed since it was read."""
        edited = Statement("edit_webhook", {"r": pack([_row_of(webhook, ("id", *WEBHOOK_EDITED, "rev"))]), "now": now})
        return bool((await self._batch("edit_webhook", edited))[0])

    async def drop(self, webhook: Webhook) -> bool:
        """Whether the endpoint was removed: it stays while it still has deliveries."""
        lock = Statement("lock_tail", {"name": consumer_of(webhook.format)})
        return bool((await self._batch("drop_webhook", lock, Statement("drop_webhook", {"id": webhook.id})))[-1])


def _events(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else reader(tuple[str, ...])(text)


def _added(webhooks: Sequence[Webhook], cursor: str, now: int, limit: int) -> Statement:
    rows = pack([_row_of(webhook, WEBHOOK_ADDED) for webhook in webhooks])
    return Statement("add_webhook", {"r": rows, "limit": limit, "now": now, "cursor": cursor})


class DeliveryRecords(Rows):
    """Pending and settled deliveries."""

    def added(self, deliveries: Sequence[NewDelivery], now: int, until: int) -> list[Statement]:
        """The statements that store deliveries, to be written together with the offset up to which the journal was read for them."""
        return [Statement("add_deliveries", {"r": pack(deliveries), "now": now, "until": until})] if deliveries else []

    async def due(self, webhooks: Collection[str], now: int, count: int) -> list[DueDelivery]:
        """The first `count` due deliveries of each endpoint, all of them oldest first."""
        rows = await self._read("due_deliveries", names=pack(sorted(webhooks)), now=now, count=count) if webhooks else ()
        return [DueDelivery(*row) for row in rows]

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

    async def resend(self, identity: str, now: int, until: int, before: Sequence[Statement] = ()) -> bool:
        """Whether no sender holds it at the moment."""
        resent = Statement("resend_delivery", {"id": identity, "now": now, "until": until})
        return bool((await self._batch("resend_delivery", *before, resent))[-1])

    async def find(self, identity: str) -> Delivery | None:
        rows = await self._read("delivery", id=identity)
        return Delivery(*rows[0]) if rows else None

    async def of_run(self, run: str, count: int) -> list[Delivery]:
        """Oldest first."""
        return [Delivery(*row) for row in await self._read("deliveries_of_run", run=run, count=count)]

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
