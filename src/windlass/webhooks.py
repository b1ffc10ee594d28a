"""Notifies receivers of changes: formats, of which the standard one is Standard Webhooks 1.0, and the loop that sends deliveries."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
from windlass.defaults import DELIVERY_DELAYS
from windlass.egress import Egress, Response
from windlass.engine import Engine
from windlass.engine.outbox import ROOM, ClaimedDelivery, Content
from windlass.engine.webhooks import signing_key, standard_secret
from windlass.errors import TRANSIENT, BadInput, EgressFailed, EgressRefused, Forbidden, LeaseLost, NotFound, nearest
from windlass.faults import FAULTS
from windlass.loops import Bell, Loop
from windlass.machine import ENDED
from windlass.model import STANDARD as STANDARD_NAME
from windlass.model import Delivery, Entry, Notify, Secret, State
from windlass.store.base import journal_topics
from windlass.store.records.webhooks import End

_LOG = logging.getLogger("windlass.webhooks")

POINTS = ("webhook.before_post", "webhook.after_post", "webhook.after_2xx", "webhook.after_mark")
"""Fault points around each attempt."""

LIMIT = 20 * 1024
"""Maximum bytes of a body; members that do not fit are left out, and the receiver can fetch the run."""
SMALL = 20 * 1024
"""Longer outputs are left out of the body."""
TIMEOUT = 15.0
LEASE = 60_000
"""Milliseconds for which a delivery belongs to its sender: longer than an attempt and its record can take."""
READ, KEPT = 64 * 1024, 500
"""Bytes of an answer that are read, and characters of a refusal that are kept."""
LOOK_ANYWAY, GATHER = 5.0, 0.01
"""Seconds after which the sender reads the journal even without a hint, and seconds between a hint and the read: runs that end together
need one read only."""
ANYWHERE = "*"
"""Among the hosts that the runs of every token may notify: all of them."""
RARELY = 1.0
"""Minimum seconds between two reads if there is no endpoint, or if there are no hints."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes are sent, in which form, and how. Its functions must not fail: a format whose bodies cannot be built waits."""

    name: str
    events: tuple[str, ...]  # every event that it has
    event: Callable[[Entry], str | None]  # None: nothing is sent of this change
    bodies: Callable[[Engine, Sequence[Entry]], Awaitable[Sequence[str]]]  # of a page of entries, the very text that is stored and sent
    headers: Callable[[Delivery, bytes, tuple[str, ...], int], Mapping[str, str]]  # with the secrets that are valid now, newest first
    delays: tuple[int, ...] = DELIVERY_DELAYS  # milliseconds before the second attempt, the third, and so on
    timeout: float = TIMEOUT  # seconds
    raw_secret: bool = False  # it signs with the text of a secret, so that any text can be one
    usual: tuple[str, ...] | None = None  # the events of a run that names an address and no events; None: all
    part: int = ROOM  # changes whose bodies are made together: fewer where a body, or what it is made from, may be large

    def content(self, engine: Engine) -> Content:
        """What the engine needs to create deliveries."""
        return Content(self.name, self.event, partial(self.bodies, engine), self.usual, self.part)


def body_of(entry: Entry, end: End | None) -> str:
    """The body of a delivery: the change, and the run as the API shows it, if it has not changed since."""
    event: dict[str, Any] = {"id": f"{entry.run}.{entry.rev}", **msgspec.to_builtins(ENTRY.show(entry))}
    bare = {name: value for name, value in event.items() if name != "detail"} | {"truncated": True}
    ways = [event, event | {"truncated": True}, bare]
    if end is not None and end.run.rev == entry.rev:
        ways = [*(event | _content(end, left_out) for left_out in _LEFT_OUT), *ways[1:]]
    text = b""
    for data in ways:
        text = msgspec.json.encode({"type": f"run.{entry.state.value}", "timestamp": to_rfc3339(entry.at), "data": data})
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
    content = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(signing_key(secret), content, sha256)).decode()


def standard_headers(delivery: Delivery, body: bytes, secrets: tuple[str, ...], now: int) -> dict[str, str]:
    """The headers of Standard Webhooks: without a secret, as for an address that a run names, nothing is signed."""
    timestamp = now // 1000
    headers = {"content-type": "application/json", "webhook-id": delivery.id, "webhook-timestamp": str(timestamp)}
    if secrets:
        headers["webhook-signature"] = " ".join(sign(secret, delivery.id, timestamp, body) for secret in secrets)
    return headers


def type_of(entry: Entry) -> str | None:
    """The event of a change of state, such as run.succeeded."""
    return None if entry.state is entry.before else f"run.{entry.state.value}"


async def _standard_bodies(engine: Engine, entries: Sequence[Entry]) -> list[str]:
    ends = await engine.records.runs.ends({entry.run for entry in entries}, SMALL)
    return [body_of(entry, ends.get(entry.run)) for entry in entries]


STANDARD = Format(
    name=STANDARD_NAME,
    events=tuple(f"run.{state.value}" for state in State),
    event=type_of,
    bodies=_standard_bodies,
    headers=standard_headers,
    usual=tuple(f"run.{state.value}" for state in State if state in ENDED),
)


def known_format(name: str, formats: Iterable[Format]) -> Format:
    """The format of this name; BadInput where there is none."""
    by_name = {format.name: format for format in formats}
    if name in by_name:
        return by_name[name]
    near = nearest(name, list(by_name))
    hint = f"Did you mean {near}?" if near else f"There are: {', '.join(sorted(by_name))}."
    raise BadInput(f"There is no webhook format called {name!r:.80}.", hint=hint)


def check_secret(format: Format, secret: str | None) -> None:
    """Refuse a secret that the format cannot sign with."""
    if secret is not None and not format.raw_secret:
        standard_secret(secret)


def valid_secrets(secrets: Iterable[Secret], now: int) -> tuple[str, ...]:
    """Those that are still valid, the newest first."""
    return tuple(secret.key for secret in secrets if secret.until is None or secret.until > now)


def _reach(point: str) -> None:
    if FAULTS.on:
        FAULTS.hit(f"webhook.{point}")


class Sender(Loop):
    """Creates deliveries and sends them, until it is cancelled. Any number of senders may run on one store."""

    log, complaint = _LOG, "Webhooks wait for the store"

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        egress: Egress,
        *,
        formats: Iterable[Format] = (STANDARD,),
        notify: Iterable[str] = (),
        at_once: int = 32,
        each: int = 4,
        timeout: float | None = None,
    ) -> None:
        super().__init__(clock)
        self._engine, self._clock, self._egress = engine, clock, egress
        self._formats, self._notify = {format.name: format for format in formats}, frozenset(notify)
        self._at_once, self._each, self._timeout = at_once, each, timeout
        self._unknown: frozenset[str] = frozenset()
        self._bell, self._needed = Bell(clock, partial(engine.wait, journal_topics("webhooks")), deaf=RARELY), False
        self._sending: dict[asyncio.Task[None], str] = {}
        self._settled = asyncio.Event()

    @property
    def sending(self) -> int:
        """How many are in flight."""
        return len(self._sending)

    def wake(self) -> None:
        """Check at once: something has changed, or an endpoint is new."""
        self._needed = True
        self._settled.clear()
        self._bell.ring()

    async def settled(self) -> None:
        """Wait until what has changed by now was sent, and nothing is due for a while. `run` must be running."""
        self.wake()
        await self._settled.wait()

    # The rules for addresses and formats, which the engine asks

    def check_address(self, url: str) -> None:
        """EgressRefused for an address to which nothing would be sent, as far as that is known without resolving its name."""
        self._egress.check(url)

    def check_format(self, format: str, secret: str | None) -> None:
        """Refuse an endpoint of a format that is not known, or with a secret that the format cannot sign with."""
        check_secret(known_format(format, self._formats.values()), secret)

    def check_notify(self, notify: Notify, *, trusted: bool) -> None:
        """Refuse an address that a run names, its format, or its events."""
        format = known_format(notify.format, self._formats.values())
        if unknown := sorted({*(notify.events or ())} - {*format.events}):
            raise BadInput(
                f"The format {format.name} has no event {', '.join(unknown):.200}.", hint=f"There are: {', '.join(format.events)}."
            )
        try:
            target = self._egress.check(notify.url)
        except EgressRefused as refused:
            if refused.allowed_by is None:
                raise
            hint = f"The setting {refused.allowed_by} of the hub allows it; else use a public address with https."
            raise EgressRefused(refused.message, hint=hint, allowed_by=refused.allowed_by) from None
        if not trusted and target.host not in self._notify and ANYWHERE not in self._notify:
            raise Forbidden(
                f"To have a run notify {target.host} needs the scope admin.",
                hint="The setting notify of the hub names the hosts that the runs of other tokens may notify.",
            )

    async def run(self) -> None:
        """Send due deliveries; those in flight when this is cancelled are sent again by the next sender."""
        try:
            while True:
                seconds = await self.tick()
                if seconds >= LOOK_ANYWAY and not self._sending and not self._bell.ringing:
                    self._settled.set()
                await self.pause(seconds)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def tick(self) -> float:
        """Create and start what is possible; returns the seconds until the next check."""
        self._bell.clear()
        return await self.once(self._look)

    async def _look(self) -> float:
        used = await self._engine.delivery_formats()
        self._note_unknown(frozenset(used - self._formats.keys()))
        self._needed = bool(used & self._formats.keys())
        if not self._needed:
            return LOOK_ANYWAY
        looked = [await self._make(self._formats[name]) for name in sorted(used & self._formats.keys())]
        return 0.0 if await self._begin() or any(looked) else await self._pause()

    def _note_unknown(self, formats: frozenset[str]) -> None:
        """Warn once of formats that another process must have sent."""
        if formats - self._unknown:
            names = ", ".join(sorted(formats))
            _LOG.warning("Webhooks of a format that this process does not know wait for one that does: %s.", names)
        self._unknown = formats

    async def _make(self, format: Format) -> int:
        """Create deliveries of a format; one that fails holds up no other."""
        try:
            return await self._engine.make_deliveries(format.content(self._engine))
        except TRANSIENT:
            raise
        except Exception:
            _LOG.exception("The webhooks of the format %s wait: their bodies cannot be built.", format.name)
            return 0

    async def _pause(self) -> float:
        """Due deliveries wait for room, and start when there is some."""
        due_in = await self._engine.next_delivery_in(self._formats)
        return LOOK_ANYWAY if due_in is None else min(LOOK_ANYWAY, due_in / 1000)

    async def _begin(self) -> int:
        """Start as many deliveries as there is room for."""
        room = self._at_once - self.sending
        if not room:
            return 0
        held = Counter(self._sending.values())
        parcels = await self._engine.claim_deliveries(room, LEASE, each=self._each, held=held, formats=self._formats)
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
        delivery, token, format = parcel.delivery, parcel.delivery.token or "", self._formats[parcel.webhook.format]
        _reach("before_post")
        try:
            answer = await self._post(parcel, format)
        except (EgressFailed, BadInput) as error:
            message = error.message
            return await self._mark(lambda: self._engine.not_delivered(delivery.id, token, message, delays=format.delays))
        _reach("after_post")
        if 200 <= answer.status < 300:
            _reach("after_2xx")
            await self._mark(lambda: self._engine.delivered(delivery.id, token, answer.status))
            return _reach("after_mark")
        gone = answer.status == 410
        message, retry_after = "It answered 410 Gone." if gone else _refusal(answer), _retry_after(answer, self._clock.now())
        return await self._mark(
            lambda: self._engine.not_delivered(
                delivery.id, token, message, answer=answer.status, retry_after=retry_after, gone=gone, delays=format.delays
            )
        )

    async def _post(self, parcel: ClaimedDelivery, format: Format) -> Response:
        now, body = self._clock.now(), parcel.body.encode()
        headers = format.headers(parcel.delivery, body, valid_secrets(parcel.webhook.secrets, now), now)
        url, timeout = parcel.delivery.url or parcel.webhook.url, self._timeout or format.timeout
        return await self._egress.send("POST", url, headers=headers, body=body, timeout=timeout, limit=READ)

    async def _mark(self, mark: Callable[[], Awaitable[None]]) -> None:
        """Record the outcome of an attempt while the delivery is ours: otherwise it would be sent once more."""
        gives_up = self._clock.monotonic() + LEASE
        while True:
            try:
                return await mark()
            except (LeaseLost, NotFound):
                return None  # another sender has claimed it, or its endpoint was removed
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
