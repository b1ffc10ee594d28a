"""Notifies receivers of changes: the body, its signature (Standard Webhooks 1.0), and the loop that sends it."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from windlass.api.values import to_rfc3339
from windlass.api.views import ENTRY, RUN
from windlass.clock import Clock
from windlass.egress import Egress, Response, Target
from windlass.engine import Engine
from windlass.engine.outbox import ClaimedDelivery, type_of
from windlass.engine.webhooks import signing_key
from windlass.errors import TRANSIENT, BadInput, EgressFailed, LeaseLost, NotFound
from windlass.faults import FAULTS
from windlass.loops import Bell, Loop
from windlass.model import Entry, Secret
from windlass.store.base import journal_topics
from windlass.store.records.webhooks import End

_LOG = logging.getLogger("windlass.webhooks")

POINTS = ("webhook.before_post", "webhook.after_post", "webhook.after_2xx", "webhook.after_mark")
"""Fault points around each attempt."""

LIMIT = 20 * 1024
"""Maximum bytes of a body; members that do not fit are left out, and the receiver can fetch the run."""
TIMEOUT = 15.0
LEASE = 60_000
"""Milliseconds for which a delivery belongs to its sender: longer than an attempt and its record can take."""
READ, KEPT = 64 * 1024, 500
"""Bytes of an answer that are read, and characters of a refusal that are kept."""
LOOK_ANYWAY, GATHER = 5.0, 0.01
"""Seconds after which the sender reads the journal even without a hint, and seconds between a hint and the read: runs that end together
need one read only."""
RARELY = 1.0
"""Minimum seconds between two reads if there is no endpoint, or if there are no hints."""


def body_of(entry: Entry, end: End | None) -> str:
    """The body of a delivery: the change, and the run as the API shows it, if it has not changed since."""
    event: dict[str, Any] = {"id": f"{entry.run}.{entry.rev}", **msgspec.to_builtins(ENTRY.show(entry))}
    bare = {name: value for name, value in event.items() if name != "detail"} | {"truncated": True}
    ways = [event, event | {"truncated": True}, bare]
    if end is not None and end.run.rev == entry.rev:
        ways = [*(event | _content(end, left_out) for left_out in _LEFT_OUT), *ways[1:]]
    text = b""
    for data in ways:
        text = msgspec.json.encode({"type": type_of(entry), "timestamp": to_rfc3339(entry.at), "data": data})
        if len(text) <= LIMIT:
            break
    return text.decode()


_LEFT_OUT = ((), ("output",), ("payload", "output"))


def _content(end: End, left_out: tuple[str, ...]) -> dict[str, Any]:
    missing = tuple(name for name in ("payload", "output") if name in end.cut or name in left_out)
    run = replace(end.run, **dict.fromkeys(missing))
    return {"full": replace(RUN.show(run), left_out=missing), **({"truncated": True} if missing else {})}


def sign(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """The signature of one message under one secret."""
    signed = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(signing_key(secret), signed, sha256)).decode()


def signatures(secrets: tuple[Secret, ...], message: str, timestamp: int, body: bytes, now: int) -> str:
    """The signatures under every secret that is still valid, the newest first."""
    counting = (secret for secret in secrets if secret.until is None or secret.until > now)
    return " ".join(sign(secret.key, message, timestamp, body) for secret in counting)


def _reach(point: str) -> None:
    if FAULTS.on:
        FAULTS.hit(f"webhook.{point}")


class Sender(Loop):
    """Creates deliveries and sends them, until it is cancelled. Any number of senders may run on one store."""

    log, complaint = _LOG, "Webhooks wait for the store"

    def __init__(self, engine: Engine, clock: Clock, egress: Egress, *, at_once: int = 32, each: int = 4, timeout: float = TIMEOUT) -> None:
        super().__init__(clock)
        self._engine, self._clock, self._egress = engine, clock, egress
        self._at_once, self._each, self._timeout = at_once, each, timeout
        self._bell, self._needed = Bell(clock, partial(engine.wait, journal_topics("webhooks")), deaf=RARELY), False
        self._sending: dict[asyncio.Task[None], str] = {}

    @property
    def sending(self) -> int:
        """How many are in flight."""
        return len(self._sending)

    def wake(self) -> None:
        """Check at once: something has changed, or an endpoint is new."""
        self._needed = True
        self._bell.ring()

    def check(self, url: str) -> Target:
        """EgressRefused for an address to which nothing would be sent, as far as that is known without resolving its name."""
        return self._egress.check(url)

    async def run(self) -> None:
        """Send due deliveries; those in flight when this is cancelled are sent again by the next sender."""
        try:
            while True:
                await self.pause(await self.tick())
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def tick(self) -> float:
        """Create and start what is possible; returns the seconds until the next check."""
        self._bell.clear()
        return await self.once(self._look)

    async def _look(self) -> float:
        self._needed = bool(await self._engine.webhooks())
        if not self._needed:
            return LOOK_ANYWAY
        looked = await self._engine.make_deliveries(body_of)
        return 0.0 if await self._begin() or looked else await self._pause()

    async def _pause(self) -> float:
        """Due deliveries wait for room, and start when there is some."""
        due_in = await self._engine.next_delivery_in()
        return LOOK_ANYWAY if due_in is None else min(LOOK_ANYWAY, due_in / 1000)

    async def _begin(self) -> int:
        """Start as many deliveries as there is room for."""
        room = self._at_once - self.sending
        if not room:
            return 0
        parcels = await self._engine.claim_deliveries(room, LEASE, each=self._each, held=Counter(self._sending.values()))
        for parcel in parcels:
            task = asyncio.get_running_loop().create_task(self._send(parcel))
            self._sending[task] = parcel.webhook.id
            task.add_done_callback(self._sent)
        return len(parcels)

    def _sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("A webhook was not sent.", exc_info=error)  # it is retried when its lease expires

    async def rest(self, seconds: float) -> None:
        if seconds and not self._needed:
            with suppress(TimeoutError):
                async with asyncio.timeout(RARELY):
                    return await self._bell.rung()
        if seconds and await self._bell.rest(seconds):
            await asyncio.sleep(GATHER)
        return None

    async def _send(self, parcel: ClaimedDelivery) -> None:
        """One attempt: post, then record the outcome."""
        delivery, token = parcel.delivery, parcel.delivery.token or ""
        _reach("before_post")
        try:
            answer = await self._post(parcel)
        except (EgressFailed, BadInput) as error:
            message = error.message
            return await self._mark(lambda: self._engine.not_delivered(delivery.id, token, message))
        _reach("after_post")
        if 200 <= answer.status < 300:
            _reach("after_2xx")
            await self._mark(lambda: self._engine.delivered(delivery.id, token, answer.status))
            return _reach("after_mark")
        gone = answer.status == 410
        message, retry_after = "It answered 410 Gone." if gone else _refusal(answer), _retry_after(answer, self._clock.now())
        return await self._mark(
            lambda: self._engine.not_delivered(delivery.id, token, message, answer=answer.status, retry_after=retry_after, gone=gone)
        )

    async def _post(self, parcel: ClaimedDelivery) -> Response:
        now, body = self._clock.now(), parcel.body.encode()
        message, timestamp = parcel.delivery.id, now // 1000
        headers = {
            "content-type": "application/json",
            "webhook-id": message,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signatures(parcel.webhook.secrets, message, timestamp, body, now),
        }
        return await self._egress.send("POST", parcel.webhook.url, headers=headers, body=body, timeout=self._timeout, limit=READ)

    async def _mark(self, mark: Callable[[], Awaitable[None]]) -> None:
        """Record the outcome of an attempt while the delivery is ours: otherwise it would be sent once more."""
        gives_up = self._clock.monotonic() + LEASE
        while True:
            try:
                return await mark()
            except (LeaseLost, NotFound):
                return None  # another sender has it by now, or its endpoint was removed
            except TRANSIENT as error:
                if self._clock.monotonic() >= gives_up:
                    raise
                self.problem = str(error)
                await self._clock.sleep(0.1 + self._clock.chance())


def _refusal(answer: Response) -> str:
    body = answer.body[: 4 * KEPT].decode("utf-8", "replace").strip()[:KEPT]
    return f"It answered {answer.status}: {body}" if body else f"It answered {answer.status}."


def _retry_after(answer: Response, now: int) -> int | None:
    """The milliseconds that the receiver asks to wait, by Retry-After: seconds, or a date."""
    text = next((value.strip() for name, value in answer.headers if name == "retry-after"), "")
    if text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    try:
        when = parsedate_to_datetime(text)
        at = round(when.replace(tzinfo=when.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return max(0, at - now)
