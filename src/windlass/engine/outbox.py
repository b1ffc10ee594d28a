"""Deliveries to webhooks: created from the journal, claimed by senders, and settled. Any number of processes may do so at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from windlass.defaults import DELIVERY_DELAYS
from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.journal import Journal, Tail
from windlass.engine.notices import Notices, Places, breaks
from windlass.engine.webhooks import Webhooks
from windlass.errors import Conflict, LeaseLost, NotFound, OutcomeUnknown
from windlass.model import Delivery, Entry, Notify, Webhook
from windlass.store.records.webhooks import BROKEN, DueDelivery, NewDelivery, Verdict, consumer_of

BREAK, LONGEST_BREAK = 30_000, 600_000
LONGEST_RETRY_AFTER = 24 * 3600 * 1000
"""The longest Retry-After of an endpoint that is obeyed."""

LOOKS, ROOM, MAX_BYTES = 500, 1_000, 4 * 1024 * 1024
"""Entries read in one call, and about how many bytes of deliveries are created from them."""
_ERROR = 2_000


class Content(NamedTuple):
    """What is sent in a format: the event of an entry, None for an entry that has none, and the bodies of entries that have one."""

    format: str
    event: Callable[[Entry], str | None]
    bodies: Callable[[Sequence[Entry]], Awaitable[Sequence[str]]]
    usual: Collection[str] | None = None  # the events of a run that names none; None: all
    part: int = ROOM  # entries whose bodies are made together


class Event(NamedTuple):
    """An entry that is sent, the name of its event, and its receivers: endpoints, and the address that its run names."""

    place: int  # in the page of entries
    entry: Entry
    name: str
    receivers: Sequence[tuple[str, str | None]]


class ClaimedDelivery(NamedTuple):
    """A delivery that a sender has claimed, with its endpoint and its body."""

    delivery: Delivery
    webhook: Webhook
    body: str


class Outbox(Part):
    """The verbs for senders of deliveries."""

    def __init__(self, ground: Ground, journal: Journal, notices: Notices, webhooks: Webhooks) -> None:
        super().__init__(ground)
        self._journal, self._notices, self._webhooks = journal, notices, webhooks

    async def formats(self) -> set[str]:
        """The formats that endpoints and runs have."""
        return {webhook.format for webhook in await self.records.webhooks.all() if webhook.enabled}

    async def make(self, content: Content) -> int:
        """Create deliveries of a format from new journal entries, in the batch that advances its offset; returns the number of entries."""
        if not await self._of_format(content.format):
            return 0
        tail, rev = await self._journal.follow(consumer_of(content.format), count=LOOKS)
        if not tail.entries:
            return 0
        # Read after the entries, so that an endpoint whose creation has been confirmed gets every later event.
        webhooks = [webhook for webhook in await self._of_format(content.format) if webhook.enabled]
        places = Places.of(content.format, webhooks, self.clock.now())
        deliveries, number = await self._new_deliveries(await self._events(tail, content, webhooks, places), content, len(tail.entries))
        cursor = tail.cursor if number == len(tail.entries) else tail.cursor_at(number - 1)
        now = self.clock.now()
        stored = [
            *self.records.webhooks.added(list(places.new.values()), now),
            *self.records.deliveries.added(deliveries, now, now + self.limits.deliver_within),
        ]
        place = rev, cursor, tail.entries[number - 1].at
        try:
            await self.records.journal.advance("make_deliveries", consumer_of(content.format), place, stored)
        except (Conflict, OutcomeUnknown):
            return 0  # another process was first, or the entries will be read again
        return number

    async def _of_format(self, format: str) -> list[Webhook]:
        return [webhook for webhook in await self.records.webhooks.all() if webhook.format == format]

    async def _events(self, tail: Tail, content: Content, webhooks: Sequence[Webhook], places: Places) -> list[Event]:
        """The entries that have receivers."""
        names = {place: name for place, entry in enumerate(tail.entries) if (name := content.event(entry)) is not None}
        notices: Mapping[str, Notify] = {}
        if places.stored:  # runs may name addresses of this format
            notices = await self._notices.of({tail.entries[place].run for place in names})
        events = []
        for place, name in names.items():
            entry = tail.entries[place]
            receivers: list[tuple[str, str | None]] = [(webhook, None) for webhook in _listening(webhooks, tail, place, entry)]
            notify = notices.get(entry.run)
            if notify is not None and notify.format == content.format and _wants(notify, content, name):
                receivers.append((places.place(notify.url), notify.url))
            if receivers:
                events.append(Event(place, entry, name, receivers))
        return events

    async def _new_deliveries(self, events: Sequence[Event], content: Content, entries: int) -> tuple[list[NewDelivery], int]:
        """The deliveries of as many entries as fit into one batch, and the number of these entries."""
        first = _first(events, ROOM)
        deliveries: list[NewDelivery] = []
        size = 0
        for at in range(0, len(first), content.part):
            part = first[at : at + content.part]
            bodies = await content.bodies([event.entry for event in part])
            for (place, entry, name, receivers), text in zip(part, bodies, strict=True):
                size += len(text) * len(receivers)
                if deliveries and size > MAX_BYTES:
                    return deliveries, place
                for (webhook, url), identity in zip(receivers, self.clock.new_ids(len(receivers)), strict=True):
                    deliveries.append(NewDelivery(len(deliveries), identity, webhook, entry.run, entry.rev, name, text, url))
        return deliveries, events[len(first)].place if len(first) < len(events) else entries

    async def claim(
        self, count: int, lease: int, *, each: int = 4, held: Mapping[str, int] | None = None, formats: Collection[str] | None = None
    ) -> list[ClaimedDelivery]:
        """Claim due deliveries for `lease` milliseconds: at most `each` per endpoint, including those already `held` by the caller.

        Those of other formats than these are left to senders that know them.
        """
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(lease, "lease", 1, self.limits.lease)
        now, token = self.clock.now(), self.clock.nonce()
        webhooks = {hook.id: hook for hook in await self._sendable(formats) if hook.paused_until <= now}
        probes = {hook.id for hook in webhooks.values() if hook.failures >= BROKEN and breaks(hook)}
        room = {name: (1 if name in probes else each) - (held or {}).get(name, 0) for name in webhooks}
        open_to = [name for name, places in room.items() if places > 0]
        chosen = _fair(await self.records.deliveries.due(open_to, now, each), room, count)
        if not chosen:
            return []
        probes_used = probes & {due.webhook for due in chosen}
        try:
            claimed = await self.records.deliveries.claim([due.seq for due in chosen], probes_used, BROKEN, token, now, now + lease)
        except OutcomeUnknown:
            return []  # if it was committed, they are due again when the lease is over
        return [ClaimedDelivery(delivery, webhooks[delivery.webhook], body) for body, delivery in claimed]

    async def _sendable(self, formats: Collection[str] | None) -> list[Webhook]:
        return [hook for hook in await self.records.webhooks.all() if hook.enabled and (formats is None or hook.format in formats)]

    async def next_in(self, formats: Collection[str] | None = None) -> int | None:
        """Milliseconds until the next delivery, of these formats, becomes due; None where there is none."""
        now = self.clock.now()
        paused_until = {hook.id: hook.paused_until for hook in await self._sendable(formats)}
        times = await self.records.deliveries.next_times(paused_until, now)
        times += [until for until in paused_until.values() if until > now]
        return min(times) - now if times else None

    async def delivered(self, delivery_id: str, token: str, answer: int) -> None:
        """Settle a delivery that its endpoint has accepted."""
        now = self.clock.now()
        await self._settle(delivery_id, token, Verdict("delivered", answer, until=now + self.limits.keep_deliveries), now)

    async def not_delivered(
        self,
        delivery_id: str,
        token: str,
        error: str,
        *,
        answer: int | None = None,
        retry_after: int | None = None,
        gone: bool = False,
        delays: Sequence[int] = DELIVERY_DELAYS,
    ) -> None:
        """Settle a failed attempt: plan the next one, or end the delivery as failed.

        `retry_after`: the milliseconds that the endpoint asked to wait. `gone`: disable the endpoint. `delays`: if it has none of its own.
        """
        now, delivery = self.clock.now(), await self._webhooks.get_delivery(delivery_id)
        webhook = await self._endpoint(delivery)
        delays = delays if webhook.delays is None else webhook.delays
        pause = max(min(retry_after or 0, LONGEST_RETRY_AFTER), _break(webhook.failures + 1, self.clock.chance())) if breaks(webhook) else 0
        verdict = Verdict("failed", answer, checks.line(error, _ERROR), paused_until=now + pause if pause else 0)
        if gone:  # an address that a run names is gone for that run only
            verdict = verdict._replace(disabled=error if webhook.origin is None else None)
        elif delivery.tries < len(delays):
            delay = _spread(delays[delivery.tries], self.clock.chance())
            verdict = verdict._replace(status="pending", next_at=now + delay)
        if verdict.status == "failed":
            verdict = verdict._replace(until=now + self.limits.keep_deliveries)
        await self._settle(delivery_id, token, verdict, now)

    async def _endpoint(self, delivery: Delivery) -> Webhook:
        webhook = await self.records.webhooks.find(delivery.webhook)
        if webhook is None:
            raise NotFound(f"There is no webhook {delivery.webhook}.", hint="It was removed, and its deliveries with it.")
        return webhook

    async def _settle(self, delivery_id: str, token: str, verdict: Verdict, now: int) -> None:
        checks.identifier(delivery_id, "The delivery")
        checks.identifier(token, "The token")
        if not await self.records.deliveries.settle(delivery_id, token, verdict, BROKEN, now):
            raise LeaseLost(f"Delivery {delivery_id} is no longer held under this token.", hint="Leave it to the sender that holds it now.")


def _listening(webhooks: Iterable[Webhook], tail: Tail, index: int, entry: Entry) -> list[str]:
    """The endpoints whose filters match an entry."""
    return [
        webhook.id
        for webhook in webhooks
        if webhook.origin is None
        and (webhook.states is None or entry.state in webhook.states)
        and (webhook.jobs is None or entry.job in webhook.jobs)
        and (webhook.queues is None or entry.queue in webhook.queues)
        and tail.is_after(index, webhook.begins)
    ]


def _wants(notify: Notify, content: Content, event: str) -> bool:
    events = content.usual if notify.events is None else notify.events
    return events is None or event in events


def _first(events: Sequence[Event], room: int) -> Sequence[Event]:
    """The first of these events, with at most so many deliveries; one event at least."""
    for place, event in enumerate(events):
        room -= len(event.receivers)
        if place and room < 0:
            return events[:place]
    return events


def _fair(due: Iterable[DueDelivery], room: Mapping[str, int], count: int) -> list[DueDelivery]:
    """Up to `count` of these, which come oldest first: the first of each endpoint before the second of any."""
    nth = Counter[str]()
    ranked = []
    for delivery in due:
        nth[delivery.webhook] += 1
        if nth[delivery.webhook] <= room[delivery.webhook]:
            ranked.append((nth[delivery.webhook], delivery))
    return [delivery for _, delivery in sorted(ranked, key=itemgetter(0))[:count]]


def _spread(delay: int, chance: float) -> int:
    """A delay, and up to a quarter more, so that deliveries that failed together are not retried together."""
    return round(delay * (1 + chance / 4))


def _break(failures: int, chance: float) -> int:
    """Milliseconds for which nothing is sent to an endpoint after this number of failures in a row."""
    return 0 if failures < BROKEN else _spread(min(BREAK << min(failures - BROKEN, 10), LONGEST_BREAK), chance)
