"""What is written to streams: server-sent events, and the ids by which a client comes back to where it was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import msgspec

from windlass.api.values import to_rfc3339
from windlass.api.views import ENTRY, LINE
from windlass.engine.checks import FAR_FUTURE
from windlass.engine.reading import check_tail
from windlass.errors import BadInput
from windlass.machine import ENDED
from windlass.model import Entry, LogLine, Run

RETRY = b"retry: 2000\n\n"
"""After how many milliseconds a client comes back."""
SILENCE = b":\n\n"

_LARGEST = 2**53
_encode = msgspec.json.Encoder().encode

Wanted = tuple[str | None, str | None, str | None]
"""A job, a queue, a state: what is told of the journal. None is any."""


def passed_by(entry: Entry) -> Iterator[Wanted]:
    """Everything that can be wanted and that an entry fits."""
    return product((None, entry.job), (None, entry.queue), (None, entry.state.value))


def frame(event: str, data: Any, identity: object) -> bytes:
    """One event. What is encoded has no line breaks."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (str(identity).encode(), event.encode(), _encode(data))


def mark(identity: object) -> bytes:
    """Nothing but an id: the client remembers it, and is told of no event."""
    return b":\nid: %b\n\n" % str(identity).encode()


class Place(NamedTuple):
    """How far the journal was read: the cursor, and when what is behind it had not happened yet."""

    at: int
    cursor: str

    def __str__(self) -> str:
        return f"{self.at}-{self.cursor}"

    @classmethod
    def read(cls, text: str) -> Place:
        at, _, cursor = text.partition("-")
        check_tail(cursor)
        return cls(_number(at, FAR_FUTURE), cursor)


class RunPlace(NamedTuple):
    """How far a run was watched: its revision, and the cursor of its last line."""

    rev: int
    line: int

    def __str__(self) -> str:
        return f"{self.rev}-{self.line}"

    @classmethod
    def read(cls, text: str) -> RunPlace:
        rev, _, line = text.partition("-")
        return cls(_number(rev), _number(line))


def _number(text: str, largest: int = _LARGEST) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= largest):
        hint = "Send the id of the last event of this very stream, or none to begin with what happens now."
        raise BadInput("The Last-Event-ID is not one of this stream.", hint=hint)
    return int(text)


def entry_frame(entry: Entry, cursor: str) -> bytes:
    """An entry of the journal, for all who want it."""
    return frame("run", ENTRY.show(entry), Place(entry.at, cursor))


def gap_frame(place: Place, reason: str, identity: Place) -> bytes:
    """Said when entries behind a place may be missing."""
    return frame("gap", {"since": to_rfc3339(place.at), "reason": reason}, identity)


def status_frame(run: Run, entry: Entry, place: RunPlace) -> bytes:
    """A change of state of a run that is watched; the last one has its end."""
    event = msgspec.to_builtins(ENTRY.show(msgspec.structs.replace(entry, job=run.job, queue=run.queue)))
    if entry.state in ENDED:
        event |= {"output": _opened(run.output), "error": run.error, "reason": run.reason}
    return frame("status", event, place)


def _opened(text: str | None) -> Any:
    """What a JSON text says. It is never passed on as it is: a line break in it would end the event."""
    return None if text is None else msgspec.json.decode(text)


def line_frame(line: LogLine, place: RunPlace) -> bytes:
    return frame("log", LINE.show(line), place)


def progress_frame(run: Run, text: str, place: RunPlace) -> bytes:
    return frame("progress", {"attempt": run.attempt, "progress": _opened(text)}, place)
