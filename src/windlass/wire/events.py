"""Changes of state: the history of a run, streams, webhooks."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass.model import Entry, State
from windlass.wire.values import heard, text_of, told


class Event(Struct, frozen=True, omit_defaults=True):
    """One change of state, as streams, webhooks and histories tell it."""

    run: str
    rev: int
    at: str
    move: str
    state: State
    attempt: int
    job: str = ""
    queue: str = ""
    worker: str | None = None
    detail: Any = None


class History(Struct, frozen=True):
    events: list[Event]


def _opened(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def event_of(entry: Entry) -> Event:
    """An entry of the journal as it is told."""
    return Event(
        entry.run,
        entry.rev,
        told(entry.at),
        entry.move,
        entry.state,
        entry.attempt,
        entry.job,
        entry.queue,
        entry.worker,
        _opened(entry.detail),
    )


def entry_of(event: Event) -> Entry:
    return Entry(
        event.run,
        event.rev,
        heard(event.at, "at"),
        event.move,
        event.state,
        event.attempt,
        event.worker,
        text_of(event.detail),
        event.job,
        event.queue,
    )
