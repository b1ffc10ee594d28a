"""Webhook endpoints, and the deliveries to them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from windlass import egress
from windlass.answers import Deliveries
from windlass.defaults import DELIVERY_DELAYS, SECRET_OVERLAP, WEBHOOK_EDITABLE
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.journal import Journal
from windlass.engine.notices import Notices
from windlass.errors import BadInput, Conflict, LimitReached, NotFound, OutcomeUnknown, WrongState, in_doubt
from windlass.machine import ENDED
from windlass.model import STANDARD, Delivery, Limits, Secret, State, Webhook
from windlass.store.base import JOURNAL, Statement

MAX_DELAYS, MAX_FILTERS, MAX_SECRETS = 50, 100, 5
REMOVED_AT_ONCE = 500

MARK = "whsec_"
_RAW = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")

_LAST = 2**63 - 1
_STATUSES = ("pending", "delivered", "failed")


class Webhooks(Part):
    """The verbs of endpoints."""

    def __init__(self, ground: Ground, journal: Journal, addresses: Notices) -> None:
        super().__init__(ground)
        self._journal, self._notices = journal, addresses

    async def add(
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
        """Store an endpoint, which gets events from now on; its secret is in this answer, and in no other.

        The standard format sends every end, after 5 s and 60 s again. Others have events and delays of their own.
        """
        now, host = self.clock.now(), egress.parse(url).host
        self._check_address(url)
        signs = Secret(self._secret_for(checks.name(format, "A format's name"), secret))
        if format == STANDARD:
            states, delays = ENDED if states is None else states, DELIVERY_DELAYS if delays is None else delays
        webhook = self._checked(
            Webhook(
                self.clock.new_id(), host[:128] if name is None else name, url, jobs, queues, _states(states), delays,
                (signs,), enabled, None, 0, 0, await self._journal.tail_end(), 1, now, now, format,
            )
        )  # fmt: skip
        try:
            room = await self.records.webhooks.add(webhook, self.limits.webhooks)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                room = await self.records.webhooks.find(webhook.id) is not None
            if not room:
                raise
        if not room:
            raise LimitReached(f"There are {self.limits.webhooks:,} webhooks already.", hint="Remove one, or share one endpoint.")
        await self.ground.wake((JOURNAL,))
        return webhook

    def _secret_for(self, format: str, secret: str | None) -> str:
        """A secret that can be stored, a new one if none is given."""
        if self.ground.sending.rules is not None:
            self.ground.sending.rules.check_format(format, secret)
        if secret is None:
            return self._new_secret()
        return standard_secret(secret) if format == STANDARD else _raw_secret(secret)

    def _new_secret(self) -> str:
        """256 random bits."""
        bits = b"".join(base64.urlsafe_b64decode(f"{self.clock.nonce()}==") for _ in range(2))
        return MARK + base64.b64encode(bits).decode()

    def _checked(self, webhook: Webhook) -> Webhook:
        egress.parse(webhook.url)
        checks.name(webhook.name, "A webhook's name")
        for names, what in ((webhook.jobs, "A job's name"), (webhook.queues, "A queue's name")):
            checks.names(names, what)
            checks.count(names or (), "names in a filter", MAX_FILTERS)
        checks.kind(webhook.enabled, "enabled", bool)
        if webhook.format == STANDARD and (webhook.states is None or webhook.delays is None):
            raise BadInput("A webhook of the standard format needs states and delays.", hint="Leave them out to get the usual ones.")
        if webhook.delays is not None:
            _check_delays(webhook.delays, self.limits)
        return webhook

    def _check_address(self, url: Any) -> None:
        """Refuse an address to which this process would send nothing."""
        if self.ground.sending.rules is not None:
            self.ground.sending.rules.check_address(url)

    async def all(self) -> list[Webhook]:
        """All endpoints, oldest first."""
        now = self.clock.now()
        return [current(webhook, now) for webhook in await self.records.webhooks.all() if webhook.origin is None]

    async def get(self, webhook_id: str) -> Webhook:
        """The endpoint with this id."""
        webhook = await self.records.webhooks.find(checks.identifier(webhook_id, "The webhook"))
        if webhook is None or webhook.origin is not None:
            raise NotFound(f"There is no webhook {webhook_id}.", hint="`windlass webhooks list` shows those there are.")
        return current(webhook, self.clock.now())

    async def edit(self, /, webhook_id: str, **fields: Any) -> Webhook:
        """Edit an endpoint. One that is enabled again gets events from then on; a new address resets its failures."""
        checks.editable(fields, WEBHOOK_EDITABLE, "a webhook")
        if "states" in fields:
            fields["states"] = _states(fields["states"])
        if "url" in fields:
            self._check_address(fields["url"])

        async def edited(before: Webhook) -> Webhook:
            webhook = self._checked(replace(before, **fields))
            if webhook.enabled and not before.enabled:
                webhook = replace(webhook, reason=None, failures=0, paused_until=0, begins=await self._journal.tail_end())
            return webhook if webhook.url == before.url else replace(webhook, failures=0, paused_until=0)

        return await self._edit(webhook_id, edited)

    async def rotate(self, webhook_id: str, *, overlap: int = SECRET_OVERLAP, secret: str | None = None) -> Webhook:
        """Sign with a new secret, the first in the answer; the former ones also sign until the overlap is over."""
        checks.integer(overlap, "overlap", 0, self.limits.duration)
        new = Secret(self._secret_for((await self.get(webhook_id)).format, secret))

        async def edited(before: Webhook) -> Webhook:
            now = self.clock.now()
            older = [replace(old, until=min(old.until or _LAST, now + overlap)) for old in before.secrets]
            current_secrets = [old for old in older if (old.until or 0) > now]
            if len(current_secrets) >= MAX_SECRETS:
                raise LimitReached(
                    f"Webhook {webhook_id} signs with {len(current_secrets)} secrets already.",
                    hint="Wait until one has expired, or rotate with overlap 0.",
                )
            return replace(before, secrets=(new, *current_secrets))

        return await self._edit(webhook_id, edited)

    async def _edit(self, webhook_id: str, edited: Callable[[Webhook], Awaitable[Webhook]]) -> Webhook:
        for _ in range(PATIENCE):
            seen = await self.get(webhook_id)
            webhook, now = await edited(seen), self.clock.now()
            if await self.records.webhooks.edit(webhook, now):
                await self.ground.wake((JOURNAL,))
                return replace(webhook, rev=seen.rev + 1, updated_at=now)
        raise Conflict(f"Webhook {webhook_id} kept changing; it was not edited.", hint="Try again.")

    async def remove(self, webhook_id: str) -> None:
        """Forget an endpoint and all its deliveries."""
        seen = await self.get(webhook_id)
        if seen.enabled:
            await self.edit(webhook_id, enabled=False)
        while not await self.records.webhooks.drop(seen):
            gone = await self.records.deliveries.page(webhook_id, None, _LAST, REMOVED_AT_ONCE)
            if gone:
                await self.records.deliveries.drop(gone)
            elif await self.records.webhooks.find(webhook_id) is None:
                return

    async def deliveries(self, webhook_id: str, *, status: str | None = None, cursor: str | None = None, count: int = 100) -> Deliveries:
        """A page of the deliveries to an endpoint, settled and pending."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.choice(status, "status", _STATUSES)
        webhook = await self.get(webhook_id)
        before = _LAST if cursor is None else _before(cursor)
        page = await self.records.deliveries.page(webhook.id, status, before, count)
        return Deliveries(page, str(page[-1].seq) if len(page) == count else None)

    async def deliveries_of(self, run_id: str) -> list[Delivery]:
        """The deliveries of a run's changes, to endpoints and to the address that it names, oldest first; at most a page of them."""
        return await self.records.deliveries.of_run(checks.identifier(run_id, "The run"), self.limits.page)

    async def get_delivery(self, delivery_id: str) -> Delivery:
        """The delivery with this id."""
        delivery = await self.records.deliveries.find(checks.identifier(delivery_id, "The delivery"))
        if delivery is None:
            raise NotFound(f"There is no delivery {delivery_id}.", hint="Check the id; deliveries are removed after their retention.")
        return delivery

    async def resend(self, delivery_id: str) -> Delivery:
        """Send a delivery again from now on, with all attempts that its endpoint allows; its id and its body stay the same."""
        delivery = await self.get_delivery(delivery_id)
        before = await self._enabled(delivery) if delivery.url is None else await self._notices.again(delivery)
        now = self.clock.now()
        if not await self.records.deliveries.resend(delivery_id, now, now + self.limits.deliver_within, before):
            raise WrongState(f"Delivery {delivery_id} is being sent just now.", hint="Look at it again in a minute.")
        await self.ground.wake((JOURNAL,))
        return await self.get_delivery(delivery_id)

    async def _enabled(self, delivery: Delivery) -> list[Statement]:
        """Nothing has to be stored before a delivery to an endpoint is sent again, unless that is disabled."""
        webhook = await self.get(delivery.webhook)
        if not webhook.enabled:
            raise WrongState(f"Webhook {webhook.id} is disabled: {webhook.reason or 'by hand'}.", hint="Enable it first.")
        return []


def current(webhook: Webhook, now: int) -> Webhook:
    """An endpoint at a time: without an expired pause, and without expired secrets."""
    secrets = tuple([secret for secret in webhook.secrets if secret.until is None or secret.until > now])
    return replace(webhook, paused_until=webhook.paused_until if webhook.paused_until > now else 0, secrets=secrets)


def signing_key(secret: str) -> bytes:
    """The bytes of a secret; those of its text if it is not one of the standard format."""
    return base64.b64decode(secret.removeprefix(MARK)) if secret.startswith(MARK) else secret.encode()


def _states(chosen: tuple[State | str, ...] | None) -> tuple[State, ...] | None:
    return None if chosen is None else checks.states(chosen, "A webhook")


def _raw_secret(text: Any) -> str:
    if not isinstance(text, str) or not _RAW.fullmatch(text):
        raise BadInput("That is no secret of a webhook.", hint="Write 1 to 256 printable characters, or leave it to windlass.")
    return text


def standard_secret(text: Any) -> str:
    """A secret of the standard format."""
    try:
        size = len(base64.b64decode(text[len(MARK) :], validate=True)) if isinstance(text, str) and text.startswith(MARK) else 0
    except (binascii.Error, ValueError):
        size = 0
    if not 24 <= size <= 64:
        raise BadInput("That is no secret of a webhook.", hint=f"Write {MARK} and 24 to 64 bytes in base64, or leave it to windlass.")
    return str(text)


def _check_delays(delays: Any, limits: Limits) -> None:
    if not isinstance(delays, tuple):
        raise BadInput(f"delays must come in a tuple, not as {delays!r:.80}.", hint="Write (5_000, 60_000).")
    checks.count(delays, "delays", MAX_DELAYS)
    for delay in delays:
        checks.integer(delay, "A delay", 0, limits.deliver_within)
    if 2 * sum(delays) > limits.deliver_within:
        raise BadInput(
            "The delays are longer than the time after which a delivery is given up.",
            hint=f"Use delays of at most {limits.deliver_within // 2:,} ms together.",
        )


def _before(cursor: Any) -> int:
    if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise BadInput("The cursor is not one of this list.", hint="Use the cursor of the page before, or none to begin again.")
    return int(cursor)
