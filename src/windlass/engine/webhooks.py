"""Whom to tell of changes, what is told, and what became of it. Any process may make deliveries and send them, any number at once."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from windlass import egress
from windlass.engine import checks
from windlass.engine.core import PATIENCE
from windlass.engine.reading import Reading, Tail
from windlass.errors import BadInput, Conflict, LeaseLost, LimitReached, NotFound, OutcomeUnknown, WrongState, in_doubt
from windlass.machine import ENDED
from windlass.model import Delivery, Entry, Limits, Secret, State, Webhook
from windlass.store.base import JOURNAL
from windlass.store.webhooks import FOLLOWER, Due, End, NewDelivery, Verdict

DELAYS = (5_000, 60_000)
"""Before the second try and the third, which is the last unless an endpoint has a longer list."""
MOST_DELAYS, MOST_FILTERS, MOST_SECRETS = 50, 100, 5
SECRET_OVERLAP = 24 * 3600 * 1000

BROKEN = 10
"""After so many failures in a row an endpoint is left alone for a while, and then tried by one delivery at a time."""
BREAK, LONGEST_BREAK = 30_000, 600_000
LONGEST_WISH = 24 * 3600 * 1000
"""How long an endpoint may ask to be left alone."""

LOOKS, ROOM, MOST_BYTES = 500, 1_000, 4 * 1024 * 1024
"""How many entries are looked at in one go, and about how much is made of them."""
SMALL = 20 * 1024
"""Outputs that are longer do not fit into any body."""
REMOVED_AT_ONCE = 500

EDITABLE = ("name", "url", "jobs", "queues", "states", "delays", "enabled")
MARK = "whsec_"

_LAST = 2**63 - 1
_ERROR = 2_000
_STATUSES = ("pending", "delivered", "failed")

Body = Callable[[Entry, End | None], str]


class Parcel(NamedTuple):
    """A delivery in the hands of whoever tries it."""

    delivery: Delivery
    webhook: Webhook
    body: str


class Deliveries(Struct, frozen=True):
    """Some deliveries, latest first, and where the next page begins; None when there is none."""

    deliveries: list[Delivery]
    cursor: str | None


class Telling(Reading):
    """The verbs of webhooks."""

    # Endpoints

    async def add_webhook(
        self,
        url: str,
        *,
        name: str | None = None,
        jobs: tuple[str, ...] | None = None,
        queues: tuple[str, ...] | None = None,
        states: tuple[State | str, ...] = ENDED,
        delays: tuple[int, ...] = DELAYS,
        secret: str | None = None,
        enabled: bool = True,
    ) -> Webhook:
        """Store an endpoint, which is told of what happens from now on; its secret is in the answer, and in no other."""
        now, host = self.clock.now(), egress.parse(url).host
        signs = Secret(self._new_secret() if secret is None else _secret(secret))
        made = self._checked_webhook(
            Webhook(
                self.clock.new_id(), host[:128] if name is None else name, url, jobs, queues, _states(states), delays,
                (signs,), enabled, None, 0, 0, await self.tail_end(), 1, now, now,
            )
        )  # fmt: skip
        try:
            room = await self.records.add_webhook(made, self.limits.webhooks)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                room = await self.records.webhook(made.id) is not None
            if not room:
                raise
        if not room:
            raise LimitReached(f"There are {self.limits.webhooks:,} webhooks already.", hint="Remove one, or let one endpoint tell others.")
        await self.wake((JOURNAL,))
        return made

    def _new_secret(self) -> str:
        """256 random bits."""
        bits = b"".join(base64.urlsafe_b64decode(f"{self.clock.nonce()}==") for _ in range(2))
        return MARK + base64.b64encode(bits).decode()

    def _checked_webhook(self, webhook: Webhook) -> Webhook:
        egress.parse(webhook.url)
        checks.name(webhook.name, "A webhook's name")
        for names, what in ((webhook.jobs, "A job's name"), (webhook.queues, "A queue's name")):
            checks.names(names, what)
            checks.count(names or (), "names in a filter", MOST_FILTERS)
        checks.kind(webhook.enabled, "enabled", bool)
        _check_delays(webhook.delays, self.limits)
        return webhook

    async def webhooks(self) -> list[Webhook]:
        """All endpoints, oldest first."""
        return await self.records.webhooks()

    async def get_webhook(self, webhook_id: str) -> Webhook:
        """The endpoint with this id."""
        found = await self.records.webhook(checks.identifier(webhook_id, "The webhook"))
        if found is None:
            raise NotFound(f"There is no webhook {webhook_id}.", hint="`windlass webhooks list` shows those there are.")
        return found

    async def set_webhook(self, webhook_id: str, **fields: Any) -> Webhook:
        """Edit an endpoint. One that is enabled again is told of what happens from then on; at a new address its failures are forgotten."""
        unknown = sorted(fields.keys() - set(EDITABLE))
        if unknown or not fields:
            raise BadInput(
                f"Cannot modify {', '.join(unknown) or 'nothing'} of a webhook.", hint=f"These can be set: {', '.join(EDITABLE)}."
            )
        if "states" in fields:
            fields["states"] = _states(fields["states"])

        async def edited(seen: Webhook) -> Webhook:
            wanted = self._checked_webhook(replace(seen, **fields))
            if wanted.enabled and not seen.enabled:
                wanted = replace(wanted, reason=None, failures=0, paused_until=0, begins=await self.tail_end())
            return wanted if wanted.url == seen.url else replace(wanted, failures=0, paused_until=0)

        return await self._edit_webhook(webhook_id, edited)

    async def rotate_webhook(self, webhook_id: str, *, overlap: int = SECRET_OVERLAP, secret: str | None = None) -> Webhook:
        """Sign with a new secret, the first in the answer; those before it sign too until the overlap is over."""
        checks.integer(overlap, "overlap", 0, self.limits.duration)
        new = Secret(self._new_secret() if secret is None else _secret(secret))

        async def edited(seen: Webhook) -> Webhook:
            now = self.clock.now()
            older = [replace(old, until=min(old.until or _LAST, now + overlap)) for old in seen.secrets]
            kept = [old for old in older if (old.until or 0) > now]
            if len(kept) >= MOST_SECRETS:
                raise LimitReached(
                    f"Webhook {webhook_id} signs with {len(kept)} secrets already.",
                    hint="Wait until one has expired, or rotate with overlap 0.",
                )
            return replace(seen, secrets=(new, *kept))

        return await self._edit_webhook(webhook_id, edited)

    async def _edit_webhook(self, webhook_id: str, edited: Callable[[Webhook], Awaitable[Webhook]]) -> Webhook:
        for _ in range(PATIENCE):
            seen = await self.get_webhook(webhook_id)
            wanted, now = await edited(seen), self.clock.now()
            if await self.records.edit_webhook(wanted, now):
                await self.wake((JOURNAL,))
                return replace(wanted, rev=seen.rev + 1, updated_at=now)
        raise Conflict(f"Webhook {webhook_id} kept changing; it was not edited.", hint="Try again.")

    async def remove_webhook(self, webhook_id: str) -> None:
        """Forget an endpoint and all that was told to it."""
        seen = await self.get_webhook(webhook_id)
        if seen.enabled:
            await self.set_webhook(webhook_id, enabled=False)
        while not await self.records.drop_webhook(webhook_id):
            gone = await self.records.deliveries(webhook_id, None, _LAST, REMOVED_AT_ONCE)
            if gone:
                await self.records.drop_deliveries(gone)
            elif await self.records.webhook(webhook_id) is None:
                return

    # What was told

    async def deliveries(self, webhook_id: str, *, status: str | None = None, cursor: str | None = None, count: int = 100) -> Deliveries:
        """A page of what was told to an endpoint, and of what still is to be told."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.choice(status, "status", _STATUSES)
        webhook = await self.get_webhook(webhook_id)
        before = _LAST if cursor is None else _before(cursor)
        found = await self.records.deliveries(webhook.id, status, before, count)
        return Deliveries(found, str(found[-1].seq) if len(found) == count else None)

    async def get_delivery(self, delivery_id: str) -> Delivery:
        """The delivery with this id."""
        found = await self.records.delivery(checks.identifier(delivery_id, "The delivery"))
        if found is None:
            raise NotFound(f"There is no delivery {delivery_id}.", hint="Check the id; deliveries are removed after their retention.")
        return found

    async def resend(self, delivery_id: str) -> Delivery:
        """Have a delivery tried again from now on, as often as its endpoint says; its id and its body stay the same."""
        webhook = await self.get_webhook((await self.get_delivery(delivery_id)).webhook)
        if not webhook.enabled:
            raise WrongState(f"Webhook {webhook.id} is disabled: {webhook.reason or 'by hand'}.", hint="Enable it first.")
        now = self.clock.now()
        if not await self.records.resend_delivery(delivery_id, now, now + self.limits.deliver_within):
            raise WrongState(f"Delivery {delivery_id} is being sent just now.", hint="Look at it again in a minute.")
        await self.wake((JOURNAL,))
        return await self.get_delivery(delivery_id)

    # For whoever sends

    async def make_deliveries(self, body: Body) -> int:
        """Make deliveries of what the journal has new, in the batch that moves its place on; how many entries were looked at."""
        if not await self.records.webhooks():
            return 0
        tail, rev = await self.follow(FOLLOWER, count=LOOKS)
        if not tail.entries:
            return 0
        # Read after the entries: whoever was told that an endpoint is there will find it told of all that came later.
        webhooks = [webhook for webhook in await self.records.webhooks() if webhook.enabled]
        wanted = {index: found for index, entry in enumerate(tail.entries) if (found := _listening(webhooks, tail, index, entry))}
        ends = await self.records.ends({tail.entries[index].run for index in wanted}, SMALL)
        made, looked = self._new_deliveries(tail.entries, wanted, ends, body)
        cursor = tail.cursor if looked == len(tail.entries) else tail.cursor_at(looked - 1)
        now = self.clock.now()
        stored = self.records.added_deliveries(made, now, now + self.limits.deliver_within)
        try:
            await self.records.advance_tail("make_deliveries", FOLLOWER, (rev, cursor, tail.entries[looked - 1].at), stored)
        except (Conflict, OutcomeUnknown):
            return 0  # another process was first, or it will be read again
        return looked

    def _new_deliveries(
        self, entries: Sequence[Entry], wanted: Mapping[int, Sequence[str]], ends: Mapping[str, End], body: Body
    ) -> tuple[list[NewDelivery], int]:
        """The deliveries of as many entries as fit into one batch, and how many entries that are."""
        made: list[NewDelivery] = []
        size = 0
        for index, webhooks in wanted.items():
            entry = entries[index]
            text = body(entry, ends.get(entry.run))
            size += len(text) * len(webhooks)
            if made and (size > MOST_BYTES or len(made) + len(webhooks) > ROOM):
                return made, index
            for webhook, identity in zip(webhooks, self.clock.new_ids(len(webhooks)), strict=True):
                made.append(NewDelivery(len(made), identity, webhook, entry.run, entry.rev, type_of(entry), text))
        return made, len(entries)

    async def claim_deliveries(self, count: int, lease: int, *, each: int = 4, held: Mapping[str, int] | None = None) -> list[Parcel]:
        """Take deliveries that are due, for so many milliseconds: at most `each` of one endpoint, those `held` by the caller counted in."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(lease, "lease", 1, self.limits.lease)
        now, token = self.clock.now(), self.clock.nonce()
        webhooks = {hook.id: hook for hook in await self.records.webhooks() if hook.enabled and hook.paused_until <= now}
        probes = {hook.id for hook in webhooks.values() if hook.failures >= BROKEN}
        room = {name: (1 if name in probes else each) - (held or {}).get(name, 0) for name in webhooks}
        open_to = [name for name, places in room.items() if places > 0]
        chosen = _fair(await self.records.due_deliveries(open_to, now, each), room, count)
        if not chosen:
            return []
        tried = probes & {due.webhook for due in chosen}
        try:
            taken = await self.records.claim_deliveries([due.seq for due in chosen], tried, BROKEN, token, now, now + lease)
        except OutcomeUnknown:
            return []  # if it happened, they are due again when the lease is over
        return [Parcel(delivery, webhooks[delivery.webhook], body) for body, delivery in taken]

    async def next_delivery_in(self) -> int | None:
        """In how many milliseconds a delivery will be due that is not yet; None where there is none."""
        now = self.clock.now()
        paused_until = {hook.id: hook.paused_until for hook in await self.records.webhooks() if hook.enabled}
        times = await self.records.next_deliveries(paused_until, now)
        times += [until for until in paused_until.values() if until > now]
        return min(times) - now if times else None

    async def delivered(self, delivery_id: str, token: str, answer: int) -> None:
        """An endpoint has taken a delivery."""
        now = self.clock.now()
        await self._settle_delivery(delivery_id, token, Verdict("delivered", answer, until=now + self.limits.keep_deliveries), now)

    async def not_delivered(
        self, delivery_id: str, token: str, error: str, *, answer: int | None = None, wish: int | None = None, gone: bool = False
    ) -> None:
        """A try has failed: the next one is planned, or the delivery has failed. `wish` is how long the endpoint wants to be left alone;
        one that is `gone` is told nothing any more."""
        now, delivery = self.clock.now(), await self.get_delivery(delivery_id)
        webhook = await self.get_webhook(delivery.webhook)
        pause = max(min(wish or 0, LONGEST_WISH), _break(webhook.failures + 1, self.clock.chance()))
        verdict = Verdict("failed", answer, checks.line(error, _ERROR), paused_until=now + pause if pause else 0)
        if gone:
            verdict = verdict._replace(disabled=error)
        elif delivery.tries < len(webhook.delays):
            delay = _spread(webhook.delays[delivery.tries], self.clock.chance())
            verdict = verdict._replace(status="pending", next_at=now + delay)
        if verdict.status == "failed":
            verdict = verdict._replace(until=now + self.limits.keep_deliveries)
        await self._settle_delivery(delivery_id, token, verdict, now)

    async def _settle_delivery(self, delivery_id: str, token: str, verdict: Verdict, now: int) -> None:
        checks.identifier(delivery_id, "The delivery")
        checks.identifier(token, "The token")
        if not await self.records.settle_delivery(delivery_id, token, verdict, BROKEN, now):
            raise LeaseLost(f"Delivery {delivery_id} is no longer held under this token.", hint="Leave it to whoever has it now.")


def type_of(entry: Entry) -> str:
    """What a change is called: run.succeeded."""
    return f"run.{entry.state.value}"


def signing_key(secret: str) -> bytes:
    """The bytes that a secret stands for."""
    return base64.b64decode(secret.removeprefix(MARK))


def _secret(text: Any) -> str:
    try:
        size = len(base64.b64decode(text[len(MARK) :], validate=True)) if isinstance(text, str) and text.startswith(MARK) else 0
    except (binascii.Error, ValueError):
        size = 0
    if not 24 <= size <= 64:
        raise BadInput("That is no secret of a webhook.", hint=f"Write {MARK} and 24 to 64 bytes in base64, or leave it to windlass.")
    return str(text)


def _states(states: Iterable[State | str]) -> tuple[State, ...]:
    try:
        wanted = {State(state) for state in states}
    except (TypeError, ValueError):
        raise BadInput(f"{states!r:.80} are not states.", hint=f"Choose from {', '.join(State)}.") from None
    if not wanted:
        raise BadInput("A webhook that is told of no state.", hint=f"Choose from {', '.join(State)}.")
    return tuple(state for state in State if state in wanted)


def _check_delays(delays: Any, limits: Limits) -> None:
    if not isinstance(delays, tuple):
        raise BadInput(f"delays must come in a tuple, not as {delays!r:.80}.", hint="Write (5_000, 60_000).")
    checks.count(delays, "delays", MOST_DELAYS)
    for delay in delays:
        checks.integer(delay, "A delay", 0, limits.deliver_within)
    if 2 * sum(delays) > limits.deliver_within:
        raise BadInput(
            "The tries do not end before a delivery is given up.",
            hint=f"Let the delays be {limits.deliver_within // 2:,} ms together at most.",
        )


def _listening(webhooks: Iterable[Webhook], tail: Tail, index: int, entry: Entry) -> list[str]:
    """The endpoints that want to be told of an entry."""
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
    """So many of these, which come oldest first: the first of each endpoint before the second of any."""
    nth = Counter[str]()
    ranked = []
    for delivery in due:
        nth[delivery.webhook] += 1
        if nth[delivery.webhook] <= room[delivery.webhook]:
            ranked.append((nth[delivery.webhook], delivery))
    return [delivery for _, delivery in sorted(ranked, key=itemgetter(0))[:count]]


def _spread(delay: int, chance: float) -> int:
    """A delay, and up to a quarter more: what failed together is not tried together."""
    return round(delay * (1 + chance / 4))


def _break(failures: int, chance: float) -> int:
    """How long an endpoint is left alone after so many failures in a row."""
    return 0 if failures < BROKEN else _spread(min(BREAK << min(failures - BROKEN, 10), LONGEST_BREAK), chance)


def _before(cursor: Any) -> int:
    if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise BadInput("The cursor is not one of this list.", hint="Use the cursor of the page before, or none to begin again.")
    return int(cursor)
