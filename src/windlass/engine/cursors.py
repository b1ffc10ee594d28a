"""Cursors: where the next page of a list, or of the journal, begins. Clients send them back, so every part is validated."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import Any

import msgspec

from windlass.errors import BadInput
from windlass.payload import reader

LAST = 2**63 - 1
_LONGEST_CURSOR = 200_000
_SNAPSHOT = re.compile(r"(\d{1,20}:\d{1,20}:(\d{1,20}(,\d{1,20})*)?)?")


def encoded(parts: list[Any]) -> str:
    """The text of a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def _forged() -> BadInput:
    return BadInput(
        "The cursor is not one of this list.", hint="Use the cursor of the page before, with the same filters, or none to begin again."
    )


def _decoded(cursor: Any) -> list[Any]:
    if not isinstance(cursor, str) or len(cursor) > _LONGEST_CURSOR:
        raise _forged()
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return reader(list[Any])(raw)
    except (binascii.Error, UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        raise _forged() from None


def _integers(parts: list[Any]) -> list[int]:
    if not all(type(part) is int and -LAST - 1 <= part <= LAST for part in parts):
        raise _forged()
    return parts


def place(cursor: str | None, head: list[Any], keys: int) -> list[int] | None:
    """The position in a cursor that belongs to this very list."""
    if cursor is None:
        return None
    parts = _decoded(cursor)
    if parts[: len(head)] != head or len(parts) != len(head) + keys:
        raise _forged()
    return _integers(parts[len(head) :])


def tail_place(cursor: str | None) -> tuple[str, str, int, int]:
    """The parts of a journal cursor: the snapshot that has been read, the snapshot that is being read, and the position in it."""
    if cursor is None:
        return "", "", 0, 0
    match _decoded(cursor):
        case ["tail", str(seen), str(upto), int(xid), int(entry)] if _snapshot(seen) and _snapshot(upto):
            _integers([xid, entry])
            return seen, upto, xid, entry
        case _:
            raise _forged()


@lru_cache(maxsize=1024)
def horizon(end: str) -> tuple[int | None, int, int, frozenset[int]]:
    """What had been committed at an end: the entries up to a last one, or the transactions visible in its snapshot."""
    snapshot, _, _, last = tail_place(end)
    if not snapshot:
        return last, 0, 0, frozenset()
    oldest, coming, running = snapshot.split(":")
    return None, int(oldest), int(coming), frozenset(map(int, filter(None, running.split(","))))


def _snapshot(text: str) -> bool:
    return _SNAPSHOT.fullmatch(text) is not None


def check_tail(cursor: str) -> None:
    """Refuse a text that was never a cursor of the journal."""
    tail_place(cursor)


def ahead(cursor: str, end: str) -> bool:
    """Whether a cursor is ahead of the journal's end: it belongs to another journal, or an older copy was restored."""
    seen, upto, _, entry = tail_place(cursor)
    at_end, _, _, last = tail_place(end)
    newest = upto or seen
    if not newest:
        return entry > (0 if at_end else last)  # only the beginning is the same everywhere
    if not at_end:
        return True
    return int(newest.split(":")[1]) > int(at_end.split(":")[1])
