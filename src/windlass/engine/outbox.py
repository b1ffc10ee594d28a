"""Deliveries to webhooks: created from the journal, claimed by senders, and settled. Any number of processes may do so at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.journal import Journal, Tail
from windlass.engine.webhooks import Webhooks
from windlass.errors import Conflict, LeaseLost, OutcomeUnknown
from windlass.model import Delivery, Entry, Webhook
from windlass.store.records.webhooks import BROKEN, CONSUMER, Due, End, NewDelivery, Verdict

BREAK, LONGEST_BREAK = 30_000, 600_000
LONGEST_RETRY_AFTER = 24 * 3600 * 1000
"""The longest Retry-After of an endpoint that is obeyed."""

LOOKS, ROOM, MAX_BYTES = 500, 1_000, 4 * 1024 * 1024
"""Entries read in one call, and about how many bytes of deliveries are created from them."""
SMALL = 20 * 1024
"""Longer outputs are left out of the body."""
_ERROR = 2_000

Body = Callable[[Entry, End | None], str]


class ClaimedDelivery(NamedTuple):
    """A delivery that a sender has claimed, with its endpoint and its body."""

    delivery: Delivery
    webhook: Webhook
    body: str


class Outbox(Part):
    """The verbs for senders of deliveries."""

    def __init__(self, ground: Ground, webhooks: Webhooks, journal: Journal) -> None:
        super().__init__(ground)
        self._webhooks, self._journal = webhooks, journal

    async def make(self, body: Body) -> int:
        """Create deliveries from new journal entries, in the batch that advances the offset; returns the number of entries read."""
        if not await self.records.webhooks.all():
            return 0
        tail, rev = await self._journal.follow(CONSUMER, count=LOOKS)
        if not tail.entries:
            return 0
        # Read after the entries, so that an endpoint whose creation has been confirmed gets every later event.
        webhooks = [webhook for webhook in await self.records.webhooks.all() if webhook.enabled]
        listening = {index: names for index, entry in enumerate(tail.entries) if (names := _listening(webhooks, tail, index, entry))}
        ends = await self.records.runs.ends({tail.entries[index].run for index in listening}, SMALL)
        deliveries, looked = self._new_deliveries(tail.entries, listening, ends, body)
        cursor = tail.cursor if looked == len(tail.entries) else tail.cursor_at(looked - 1)
        now = self.clock.now()
        stored = self.records.deliveries.added(deliveries, now, now + self.limits.deliver_within)
        try:
            await self.records.journal.advance("make_deliveries", CONSUMER, (rev, cursor, tail.entries[looked - 1].at), stored)
        except (Conflict, OutcomeUnknown):
            return 0  # another process was first, or the entries will be read again
        return looked

    def _new_deliveries(
        self, entries: Sequence[Entry], listening: Mapping[int, Sequence[str]], ends: Mapping[str, End], body: Body
    ) -> tuple[list[NewDelivery], int]:
        """The deliveries of as many entries as fit into one batch, and the number of these entries."""
        deliveries: list[NewDelivery] = []
        size = 0
        for index, webhooks in listening.items():
            entry = entries[index]
            text = body(entry, ends.get(entry.run))
            size += len(text) * len(webhooks)
            if deliveries and (size > MAX_BYTES or len(deliveries) + len(webhooks) > ROOM):
                return deliveries, index
            for webhook, identity in zip(webhooks, self.clock.new_ids(len(webhooks)), strict=True):
                deliveries.append(NewDelivery(len(deliveries), identity, webhook, entry.run, entry.rev, type_of(entry), text))
        return deliveries, len(entries)

    async def claim(self, count: int, lease: int, *, each: int = 4, held: Mapping[str, int] | None = None) -> list[ClaimedDelivery]:
        """Claim due deliveries for `lease` milliseconds: at most `each` per endpoint, including those already `held` by the caller."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(lease, "lease", 1, self.limits.lease)
        now, token = self.clock.now(), self.clock.nonce()
        webhooks = {hook.id: hook for hook in await self.records.webhooks.all() if hook.enabled and hook.paused_until <= now}
        probes = {hook.id for hook in webhooks.values() if hook.failures >= BROKEN}
        room = {name: (1 if name in probes else each) - (held or {}).get(name, 0) for name in webhooks}
        open_to = [name for name, places in room.items() if places > 0]
        chosen = _fair(await self.records.deliveries.due(open_to, now, each), room, count)
        if not chosen:
            return []
        tried = probes & {due.webhook for due in chosen}
        try:
            taken = await self.records.deliveries.claim([due.seq for due in chosen], tried, BROKEN, token, now, now + lease)
        except OutcomeUnknown:
            return []  # if it was committed, they are due again when the lease is over
        return [ClaimedDelivery(delivery, webhooks[delivery.webhook], body) for body, delivery in taken]

    async def next_in(self) -> int | None:
        """Milliseconds until the next delivery becomes due; None where there is none."""
        now = self.clock.now()
        paused_until = {hook.id: hook.paused_until for hook in await self.records.webhooks.all() if hook.enabled}
        times = await self.records.deliveries.next_times(paused_until, now)
        times += [until for until in paused_until.values() if until > now]
        return min(times) - now if times else None

    async def delivered(self, delivery_id: str, token: str, answer: int) -> None:
        """Settle a delivery that its endpoint has accepted."""
        now = self.clock.now()
        await self._settle(delivery_id, token, Verdict("delivered", answer, until=now + self.limits.keep_deliveries), now)

    async def not_delivered(
        self, delivery_id: str, token: str, error: str, *, answer: int | None = None, retry_after: int | None = None, gone: bool = False
    ) -> None:
        """Settle a failed attempt: plan the next one, or end the delivery as failed.

        `retry_after`: the milliseconds that the endpoint asked to wait. `gone`: disable the endpoint.
        """
        now, delivery = self.clock.now(), await self._webhooks.get_delivery(delivery_id)
        webhook = await self._webhooks.get(delivery.webhook)
        pause = max(min(retry_after or 0, LONGEST_RETRY_AFTER), _break(webhook.failures + 1, self.clock.chance()))
        verdict = Verdict("failed", answer, checks.line(error, _ERROR), paused_until=now + pause if pause else 0)
        if gone:
            verdict = verdict._replace(disabled=error)
        elif delivery.tries < len(webhook.delays):
            delay = _spread(webhook.delays[delivery.tries], self.clock.chance())
            verdict = verdict._replace(status="pending", next_at=now + delay)
        if verdict.status == "failed":
            verdict = verdict._replace(until=now + self.limits.keep_deliveries)
        await self._settle(delivery_id, token, verdict, now)

    async def _settle(self, delivery_id: str, token: str, verdict: Verdict, now: int) -> None:
        checks.identifier(delivery_id, "The delivery")
        checks.identifier(token, "The token")
        if not await self.records.deliveries.settle(delivery_id, token, verdict, BROKEN, now):
            raise LeaseLost(f"Delivery {delivery_id} is no longer held under this token.", hint="Leave it to the sender that holds it now.")


def type_of(entry: Entry) -> str:
    """The event type of an entry, such as run.succeeded."""
    return f"run.{entry.state.value}"


def _listening(webhooks: Iterable[Webhook], tail: Tail, index: int, entry: Entry) -> list[str]:
    """The endpoints whose filters match an entry."""
    return [
        webhook.id
        for webhook in webhooks
        if entry.state in webhook.states
        and (webhook.jobs is None or entry.job in webhook.jobs)
        and (webhook.queues is None or entry.queue in webhook.queues)
        and entry.state is not entry.before
        and tail.is_after(index, webhook.begins)
    ]


def _fair(due: Iterable[Due], room: Mapping[str, int], count: int) -> list[Due]:
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
    """Milliseconds for which an endpoint is not called after this number of failures in a row."""
    return 0 if failures < BROKEN else _spread(min(BREAK << min(failures - BROKEN, 10), LONGEST_BREAK), chance)
