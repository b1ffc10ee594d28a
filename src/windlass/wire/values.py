"""Instants and JSON as they cross the network."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from windlass.errors import BadInput


def told(at: int) -> str:
    """An instant as it is told: 2026-01-31T03:00:00.000Z."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def maybe_told(at: int | None) -> str | None:
    return None if at is None else told(at)


def heard(text: str, what: str) -> int:
    """The instant that a text of RFC 3339 names; it must say its offset."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise BadInput(f"{what} is {text!r:.80}, which is no instant.", hint="Write it as 2026-01-31T03:00:00Z.")
    return round(when.timestamp() * 1000)


def maybe_heard(text: str | None, what: str) -> int | None:
    return None if text is None else heard(text, what)


def text_of(value: Any) -> str | None:
    """A value as JSON text."""
    return None if value is None else msgspec.json.encode(value).decode()
