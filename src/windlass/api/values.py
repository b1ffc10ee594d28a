"""Instants and JSON in the HTTP interface: RFC 3339 in UTC, and JSON that was stored as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from windlass.errors import BadInput


def to_rfc3339(at: int) -> str:
    """An instant as a text: 2026-01-31T03:00:00.000Z."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_rfc3339(text: str, what: str) -> int:
    """The instant of a text; it must have an offset."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise BadInput(f"{what} is {text!r:.80}, which is no instant.", hint="Write it as 2026-01-31T03:00:00Z.")
    return round(when.timestamp() * 1000)


def to_raw(text: str) -> Any:
    """Stored JSON, passed on unparsed: parsing and encoding it again would cost more than everything else."""
    return msgspec.Raw(text.encode())


def to_text(value: Any) -> str:
    """A value as JSON text."""
    return msgspec.json.encode(value).decode()
