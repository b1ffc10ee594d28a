"""The columns that statements name. Each list is defined once: here, or as the fields of its record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from windlass.machine import UNFINISHED
from windlass.model import Attempt, Counts, Delivery, Group, JobRecord, Run, Schedule, Slot, State, Webhook, WorkerInfo
from windlass.store.creation import PLAIN, KeyRow, Kind, NewRow

LARGE = ("payload", "error", "output")
"""The columns of a run that may be large."""

WRITTEN_BACK = (
    "state", "rev", "due_at", "position", "attempt", "attempt_id", "retry_of", "failures", "requeues", "token", "worker", "slot",
    "claimed_at", "started_at", "lease_check_at", "cancel_asked_at", "finished_at", "reason", "lane", "parked", "error",
)  # fmt: skip
"""Columns of a run that a move decided by `step` may change, besides its lease."""

PATCHED = (
    "state", "rev", "payload", "queue", "lane", "priority_key", "position", "due_at", "max_attempts", "keys", "parked",
    "aging_priority", "policy",
)  # fmt: skip
"""Columns of a run that an edit may change."""

SCHEDULE_WRITTEN = (
    "job", "kind", "expr", "zone", "anchor", "payload", "options", "missed", "max_missed", "max_age", "overlap", "jitter", "enabled",
    "code_hash", "next_at",
)  # fmt: skip
"""Columns of a schedule that a definition or an edit sets."""

_WEBHOOK = ("name", "url", "jobs", "queues", "states", "delays", "secrets", "enabled")
WEBHOOK_ADDED = ("id", *_WEBHOOK, "format", "origin")
WEBHOOK_EDITED = (*_WEBHOOK, "reason", "failures", "paused_until", "begins")

_RUN, _NEW, _ATTEMPT = Run.__struct_fields__, NewRow.__struct_fields__, Attempt.__struct_fields__

USUAL = _RUN[: _RUN.index("cancel_asked_at")]
"""The columns that every run has once it is claimed; few such runs have any of those after them."""

COMMON = tuple(name for name in Kind._fields if name in _RUN)
"""Columns that runs of a kind have in common."""

COUNTS = Counts.__struct_fields__

LISTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "run": (Run, _RUN),
    "new": (NewRow, _NEW),
    "plain": (NewRow, PLAIN),
    "own": (NewRow, tuple(name for name in _NEW if name in _RUN)),
    "common": (Kind, COMMON),
    "written_back": (Run, WRITTEN_BACK),
    "patched": (Run, PATCHED),
    "asked_key": (KeyRow, KeyRow._fields),
    "key": (KeyRow, KeyRow._fields[:-1]),
    "holder": (KeyRow, KeyRow._fields[2:-1]),
    "attempt": (Attempt, _ATTEMPT[1:]),
    "closed": (Attempt, tuple(name for name in _ATTEMPT if name not in ("run", "finished_at", "payload"))),
    "group": (Group, Group.__struct_fields__),
    "job": (JobRecord, JobRecord.__struct_fields__[:-1]),
    "schedule": (Schedule, Schedule.__struct_fields__),
    "schedule_written": (Schedule, SCHEDULE_WRITTEN),
    "slot": (Slot, Slot.__struct_fields__),
    "webhook": (Webhook, Webhook.__struct_fields__),
    "webhook_added": (Webhook, WEBHOOK_ADDED),
    "webhook_edited": (Webhook, WEBHOOK_EDITED),
    "delivery": (Delivery, Delivery.__struct_fields__),
    "worker": (WorkerInfo, WorkerInfo.__struct_fields__),
    "worker_says": (WorkerInfo, WorkerInfo.__struct_fields__[1:]),
    "counts": (Counts, COUNTS),
    "unfinished": (State, tuple(state.value for state in UNFINISHED)),
}
"""Every list by its name in statements, with the record whose fields are its columns; columns named after states are counts."""


class Column(NamedTuple):
    """A column in a set of rows."""

    name: str
    kind: str  # int or text
    nullable: bool


@cache
def columns(name: str) -> tuple[Column, ...]:
    """The columns of a list. Everything but numbers is stored as text."""
    record, names = LISTS[name]
    hints = dict.fromkeys(names, int) if record is State else get_type_hints(record)
    return tuple(_column(each, hints[each]) for each in names)


def _column(name: str, hint: Any) -> Column:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return Column(name, "int" if int in parts or bool in parts else "text", type(None) in parts)
