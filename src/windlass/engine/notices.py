"""Addresses that runs name: checked at the creation, kept with the run, and sent to as if each origin were an endpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from windlass import egress
from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.journal import Journal
from windlass.errors import OutcomeUnknown, WrongState, in_doubt
from windlass.model import Delivery, Notify, Webhook
from windlass.store.base import Statement
from windlass.store.creation import NewNotify

MAX_ORIGINS, MAX_EVENTS = 1_000, 50
"""Origins to which deliveries are pending at the same time. Those beyond share one place, so that a pause of one would delay the others."""
UNUSED_AFTER = 3_600_000
"""Milliseconds for which an origin is kept at least."""


def check_form(notify: Any) -> None:
    """Refuse an address that cannot be stored."""
    checks.kind(notify, "notify", Notify)
    egress.parse(notify.url)
    checks.name(notify.format, "A format's name")
    checks.names(notify.events, "An event's name")
    checks.count(notify.events or (), "events", MAX_EVENTS)


def row_of(run_id: str, notify: Notify) -> NewNotify:
    """An address as it is stored with its run."""
    events = None if notify.events is None else msgspec.json.encode(notify.events).decode()
    return NewNotify(run_id, notify.url, notify.format, events)


def origin_row(format: str, origin: str, now: int) -> Webhook:
    """The row that stands for an origin, and has its failures; its id follows from both names."""
    identity = f"origin-{blake2b(f'{format} {origin}'.encode(), digest_size=16).hexdigest()}"
    return Webhook(identity, origin or format, origin, None, None, None, None, (), True, None, 0, 0, "", 1, now, now, format, origin)


def breaks(webhook: Webhook) -> bool:
    """Whether failures in a row pause an endpoint; not the place that several origins share."""
    return webhook.origin != ""


class Places(NamedTuple):
    """The origins of a format: those that are stored, and those to be stored with the next deliveries."""

    format: str
    stored: Mapping[str, str]  # the id by the origin
    now: int
    new: dict[str, Webhook]

    @classmethod
    def of(cls, format: str, webhooks: Iterable[Webhook], now: int) -> Places:
        return cls(format, {hook.origin: hook.id for hook in webhooks if hook.origin is not None}, now, {})

    def place(self, url: str) -> str:
        """The id under which deliveries to an address are sent."""
        origin = egress.parse(url).origin
        if origin in self.stored:
            return self.stored[origin]
        if origin not in self.new and len(self.stored) + len(self.new) >= MAX_ORIGINS:
            return self.stored[""]
        return self.new.setdefault(origin, origin_row(self.format, origin, self.now)).id


class Notices(Part):
    """What creations need for runs that name an address."""

    def __init__(self, ground: Ground, journal: Journal) -> None:
        super().__init__(ground)
        self._journal = journal

    async def follow(self, formats: Collection[str]) -> None:
        """Have the journal read for these formats from now on at the latest, also where no endpoint has them."""
        for format in sorted({*formats} - self.ground.sending.followed):
            await self._follow(format)
            self.ground.sending.followed |= {format}

    async def _follow(self, format: str) -> None:
        home = self.ground.home.unaudited.webhooks  # a caller's transaction must not lock the offset
        row = origin_row(format, "", self.clock.now())
        if await home.find(row.id) is None:
            try:
                await home.add(msgspec.structs.replace(row, begins=await self._journal.tail_end()), 0)
            except OutcomeUnknown as unknown:
                with in_doubt(unknown):
                    if await home.find(row.id) is None:
                        raise

    def check(self, notify: Any) -> None:
        """Refuse an address that cannot be stored, or to which this process would send nothing."""
        check_form(notify)
        if self.ground.sending.rules is not None:
            self.ground.sending.rules.check_notify(notify, trusted=self.ground.trusted)

    async def rows(self, notices: Sequence[tuple[str, Notify]]) -> list[NewNotify]:
        """The rows to be stored with new runs, once the journal is read for their formats."""
        await self.follow({notify.format for _, notify in notices})
        return [row_of(run_id, notify) for run_id, notify in notices]

    async def of(self, run_ids: Collection[str]) -> dict[str, Notify]:
        """The addresses that these runs name."""
        return await self.records.webhooks.notify_of(run_ids)

    async def again(self, delivery: Delivery) -> list[Statement]:
        """The statements that store the origin of a delivery, which is sent again, and was removed since."""
        notify = (await self.of([delivery.run])).get(delivery.run)
        if notify is None:
            raise WrongState(f"Run {delivery.run} is removed, and its address with it.", hint="Rerun the job if it must be notified.")
        now = self.clock.now()
        origin = "" if delivery.webhook == origin_row(notify.format, "", now).id else egress.parse(notify.url).origin
        return self.records.webhooks.stored_again(origin_row(notify.format, origin, now))

    async def tidy(self) -> None:
        """Remove origins that have nothing left to send."""
        before = self.clock.now() - UNUSED_AFTER
        old = [webhook for webhook in await self.records.webhooks.all() if webhook.origin and webhook.created_at <= before]
        for format in sorted({webhook.format for webhook in old}):
            await self.records.webhooks.drop_origins(format, [webhook.id for webhook in old if webhook.format == format], before)
