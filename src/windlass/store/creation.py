"""The rows that one creation sends to a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct


class Kind(NamedTuple):
    """The values that many runs of a call have in common; they are sent once for all of them."""

    state: str
    job: str
    queue: str
    lane: int
    priority_key: int
    max_attempts: int
    max_runtime: int | None
    policy: str | None
    retry_of: str | None = None
    group: str | None = None
    aging_priority: int | None = None
    keep: int | None = None


# A struct, not a named tuple like the others: there is one for each run, and a struct is created four times as fast.
class NewRow(Struct, frozen=True, gc=False, array_like=True):
    """A run's own values. With a key it is stored only if the key is its own. Most runs have only the first four."""

    id: str
    position: int
    due_at: int
    payload: str
    scope: str | None = None
    key: str | None = None
    schedule: int | None = None
    instant: int | None = None
    keys: str | None = None
    meta: str | None = None


PLAIN = ("id", "position", "due_at", "payload")
"""The columns of a run that has nothing else of its own."""

_plain = attrgetter(*PLAIN)


def plain(rows: Sequence[NewRow]) -> Sequence[Any] | None:
    """The rows as `create_plain` takes them, if none of them has more."""
    more = any(
        row.key is not None or row.schedule is not None or row.instant is not None or row.keys is not None or row.meta is not None
        for row in rows
    )
    return None if more else list(map(_plain, rows))


def sizes(rows: Sequence[NewRow]) -> list[int]:
    """About how many bytes each row takes of a batch."""
    return [len(row.payload) if row.meta is None else len(row.payload) + len(row.meta) for row in rows]


class KeyRow(NamedTuple):
    """A key that a run requests."""

    scope: str
    key: str
    run: str
    hash: str
    unfinished: int
    until: int | None
    compare: int


class NewNotify(NamedTuple):
    """An address that a run names."""

    run: str
    url: str
    format: str
    events: str | None


class Creation(NamedTuple):
    """Everything that one call of create sends."""

    now: int
    ids: Sequence[str]
    rows: Mapping[Kind, Sequence[NewRow]]
    keys: Sequence[KeyRow] = ()
    definitions: Sequence[tuple[int, int]] = ()  # id, rev
    waits: Sequence[tuple[str, int, str]] = ()  # id, predecessor, rule
    controls: int | None = None  # the revision it was computed under; None: it does not depend on any
    later: bool = False  # a sweep checks whether its waits are over already, so that no predecessor is locked
    notices: Sequence[NewNotify] = ()
    keys_at: int | None = None  # the time by which keys are judged, if not `now`

    @property
    def judged_at(self) -> int:
        return self.now if self.keys_at is None else self.keys_at
