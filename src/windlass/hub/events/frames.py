"""The bytes of streams: server-sent events, and the ids with which a client resumes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec

from windlass.api.values import to_rfc3339
from windlass.api.views import ENTRY, LINE
from windlass.dialects.base import LAST_LINE, JournalFrames
from windlass.engine import Engine
from windlass.engine.checks import FAR_FUTURE
from windlass.engine.cursors import check_tail
from windlass.errors import BadInput
from windlass.machine import ENDED
from windlass.model import Entry, LogLine, Run

RETRY = b"retry: 2000\n\n"
"""Milliseconds after which a client reconnects."""
SILENCE = b":\n\n"

_LARGEST = 2**53
_encode = msgspec.json.Encoder().encode

EventFilter = tuple[str | None, str | None, str | None]
"""A filter of the journal by job, queue and state. None is any."""


class Feed(NamedTuple):
    """What a subscriber gets: the entries that pass a filter, as events of this form."""

    frames: JournalFrames
    filter: EventFilter


class NativeFrames(JournalFrames):
    """Entries as they are."""

    async def events(self, engine: Engine, entries: Sequence[Entry]) -> list[tuple[str, Any] | None]:
        return [("run", ENTRY.show(entry)) for entry in entries]


NATIVE = NativeFrames()


def passed_by(entry: Entry) -> Iterator[EventFilter]:
    """All filters that an entry matches."""
    return product((None, entry.job), (None, entry.queue), (None, entry.state.value))


def frame(event: str, data: Any, identity: object) -> bytes:
    """One event. The encoded data has no line breaks."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(identity).encode(), event.encode(), _encode(data))


def mark(identity: object) -> bytes:
    """An id without an event: the client stores it."""
    return b":\nid: %b\n\n" % str(identity).encode()


class JournalOffset(NamedTuple):
    """An offset in the journal: the cursor, and a time before which everything behind it had not happened yet."""

    at: int
    cursor: str

    def __str__(self) -> str:
        return f"{self.at}-{self.cursor}"

    @classmethod
    def read(cls, text: str) -> JournalOffset:
        at, _, cursor = text.partition("-")
        check_tail(cursor)
        return cls(_number(at, FAR_FUTURE), cursor)


class RunOffset(NamedTuple):
    """An offset in the stream of a run: its revision, and the cursor of its last line."""

    rev: int
    line: int

    def __str__(self) -> str:
        return f"{self.rev}-{self.line}"

    @classmethod
    def read(cls, text: str) -> RunOffset:
        rev, _, line = text.partition("-")
        return cls(_number(rev), _number(line))


class AttemptOffset(NamedTuple):
    """An offset in the stream of an attempt: how many of its states were sent, and the number of its last line."""

    states: int
    line: int

    def __str__(self) -> str:
        return f"{self.states}-{self.line}"

    @classmethod
    def read(cls, text: str) -> AttemptOffset:
        states, _, line = text.partition("-")
        return cls(_number(states), _number(line, LAST_LINE))


def _number(text: str, largest: int = _LARGEST) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= largest):
        hint = "Send the id of the last event of this very stream, or none to begin with what happens now."
        raise BadInput("The Last-Event-ID is not one of this stream.", hint=hint)
    return int(text)


async def entry_frames(
    frames: JournalFrames, engine: Engine, entries: Sequence[tuple[Entry, str]], at_once: int
) -> AsyncIterator[list[bytes]]:
    """Entries and their cursors as bytes, for all subscribers; nothing for an entry without an event.

    So many are made at once: an event may have all that is stored of a run.
    """
    for start in range(0, len(entries), at_once):
        some = entries[start : start + at_once]
        events = await frames.events(engine, [entry for entry, _ in some])
        offsets = (JournalOffset(entry.at, cursor) for entry, cursor in some)
        yield [b"" if event is None else frame(*event, offset) for event, offset in zip(events, offsets, strict=True)]


def gap_frame(place: JournalOffset, reason: str, identity: JournalOffset) -> bytes:
    """Sent when entries behind an offset may be missing."""
    return frame("gap", {"since": to_rfc3339(place.at), "reason": reason}, identity)


def status_frame(run: Run, entry: Entry, place: RunOffset) -> bytes:
    """A change of state of the run of a stream; the last one has its end."""
    event = msgspec.to_builtins(ENTRY.show(msgspec.structs.replace(entry, job=run.job, queue=run.queue)))
    if entry.state in ENDED:
        event |= {"output": _opened(run.output), "error": run.error, "reason": run.reason}
    return frame("status", event, place)


def _opened(text: str | None) -> Any:
    """The value of a JSON text. The text is never passed on as it is: a line break in it would end the event."""
    return None if text is None else msgspec.json.decode(text)


def line_frame(line: LogLine, place: RunOffset) -> bytes:
    return frame("log", LINE.show(line), place)


def progress_frame(run: Run, text: str, place: RunOffset) -> bytes:
    return frame("progress", {"attempt": run.attempt, "progress": _opened(text)}, place)
