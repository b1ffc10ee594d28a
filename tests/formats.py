"""A webhook format for tests: it sends every attempt that ends, also one that is retried, and signs with the text of the secret."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.api.views import ATTEMPT
from windlass.engine import Engine
from windlass.machine import ENDED
from windlass.model import Delivery, Entry, State
from windlass.webhooks import Format

_LEASED = (State.CLAIMED, State.RUNNING, State.CANCELLING)


def event(entry: Entry) -> str | None:
    if entry.before not in _LEASED or entry.state in _LEASED:
        return None
    return "attempt.last" if entry.state in ENDED else "attempt.again"


async def bodies(engine: Engine, entries: Sequence[Entry]) -> list[str]:
    runs = await engine.get_many([entry.run for entry in entries])
    attempts = await engine.attempts_of(runs)
    return [msgspec.json.encode(_told(entry, attempts[entry.run][entry.attempt - 1])).decode() for entry in entries]


def _told(entry: Entry, attempt: Any) -> dict[str, Any]:
    return {"run": entry.run, "event": event(entry), "attempt": ATTEMPT.show(attempt)}


def headers(delivery: Delivery, body: bytes, secrets: tuple[str, ...], now: int) -> dict[str, str]:
    signed = {"x-signature": "sha256=" + hmac.new(secrets[0].encode(), body, "sha256").hexdigest()} if secrets else {}
    return {"content-type": "application/json", "x-run": delivery.run, "x-event": delivery.type, **signed}


ATTEMPTS = Format(
    name="attempts",
    events=("attempt.again", "attempt.last"),
    event=event,
    bodies=bodies,
    headers=headers,
    delays=(1_000, 2_000),
    timeout=30.0,
    raw_secret=True,
)
