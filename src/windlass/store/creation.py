"""What one creation sends to a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct


class Kind(NamedTuple):
    """What many runs of a call have in common; it travels once for all of them."""

    state: str
    job: str
    queue: str
    lane: int
    band: int
    max_attempts: int
    max_runtime: int | None
    policy: str | None
    retry_of: str | None = None
    group: str | None = None
    aged: int | None = None
    keep: int | None = None


# A struct, and no named tuple as the others: there is one for each run, and a struct is made four times as fast.
class NewRow(Struct, frozen=True, gc=False, array_like=True):
    """What a run of a call has for itself. With a key it is stored only if the key is its own. Most have only the first four."""

    id: str
    position: int
    due_at: int
    payload: str
    scope: str | None = None
    key: str | None = None
    schedule: int | None = None
    instant: int | None = None
    keys: str | None = None


_first_four = attrgetter("id", "position", "due_at", "payload")


def sent(rows: Sequence[NewRow]) -> Sequence[Any]:
    """The rows as a database takes them: what is null in all of them is left out, because SQLite is slow to read it."""
    more = [row for row in rows if row.key is not None or row.schedule is not None or row.instant is not None or row.keys is not None]
    return rows if more else list(map(_first_four, rows))


class KeyRow(NamedTuple):
    """A key that a run asks for."""

    scope: str
    key: str
    run: str
    hash: str
    unfinished: int
    until: int | None
    compare: int


class Creation(NamedTuple):
    """What one call of create sends."""

    now: int
    ids: Sequence[str]
    rows: Mapping[Kind, Sequence[NewRow]]
    keys: Sequence[KeyRow] = ()
    definitions: Sequence[tuple[int, int]] = ()  # id, rev
    waits: Sequence[tuple[str, int, str]] = ()  # id, predecessor, rule
    controls: int | None = None  # the revision it was worked out under; None: it does not depend on any
    later: bool = False  # whether its waits are over already is left to a sweep, so that no predecessor is locked
    keys_at: int | None = None  # the time by which keys are judged, where that is another

    @property
    def judged_at(self) -> int:
        return self.now if self.keys_at is None else self.keys_at
