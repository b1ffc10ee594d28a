"""Schedules, their coming instants and what they skipped."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from windlass import cron
from windlass.engine.schedules import edited, fingerprint
from windlass.model import Missed, Options, Overlap, Schedule, Skipped
from windlass.wire.values import heard, maybe_heard, maybe_told, told


class ScheduleView(Struct, frozen=True):
    """A rule that makes runs."""

    key: str
    job: str
    kind: str
    expr: str
    zone: str
    payload: dict[str, Any]
    options: Options
    missed: Missed
    most: int
    max_age: int | None
    overlap: Overlap
    jitter: int
    enabled: bool
    by_code: bool
    edited: bool
    anchor: str
    next_at: str | None
    last_at: str | None
    last_run: str | None
    fired: int
    skipped: int
    rev: int
    created_at: str
    updated_at: str
    in_words: str
    owner: str | None = None


class Schedules(Struct, frozen=True):
    """Some schedules by key, and after which key the next page begins."""

    schedules: list[ScheduleView]
    cursor: str | None


_TIMES = ("anchor", "next_at", "last_at", "created_at", "updated_at")


def schedule_view(schedule: Schedule) -> ScheduleView:
    told_as = {name: getattr(schedule, name) for name in ScheduleView.__struct_fields__ if hasattr(schedule, name)}
    times = {name: maybe_told(told_as[name]) for name in _TIMES}
    words = cron.describe(cron.Rule(schedule.kind, schedule.expr, schedule.zone))
    return ScheduleView(**told_as | times | {"by_code": schedule.said is not None, "edited": edited(schedule), "in_words": words})


def schedule_of(view: ScheduleView) -> Schedule:
    """The schedule that a view tells of. What is not told is 0 or empty."""
    known = {name: getattr(view, name) for name in Schedule.__struct_fields__ if hasattr(view, name)}
    times = {name: maybe_heard(known[name], name) for name in _TIMES}
    schedule = Schedule(**known | times | {"id": 0, "said": "" if view.by_code else None})
    return replace(schedule, said=fingerprint(schedule)) if view.by_code and not view.edited else schedule


class PutSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule to be stored under a key: one of cron, every and at says when."""

    job: str
    cron: str | None = None
    every: str | int | None = None
    at: str | None = None
    zone: str = "UTC"
    payload: dict[str, Any] = {}
    options: Options = Options()
    missed: Missed = "latest"
    most: int = 100
    max_age: int | None = None
    overlap: Overlap = "allow"
    jitter: int = 0
    enabled: bool = True
    by_code: bool = False
    new: bool = False
    checked: bool = False  # as of a run

    def words(self) -> dict[str, Any]:
        """What is said, in the engine's words."""
        return msgspec.structs.asdict(self)


class PatchSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed of a schedule; what is left out stays."""

    job: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    expr: str | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    options: Options | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    most: int | UnsetType = UNSET
    max_age: int | UnsetType | None = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter: int | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}


class PreviewView(Struct, frozen=True):
    """One coming instant of a schedule, on its own wall clock and in UTC."""

    at: str
    local: str
    clock_changes: bool


class Previews(Struct, frozen=True):
    in_words: str
    next: list[PreviewView]


class Skips(Struct, frozen=True):
    skips: list[SkippedView]


class SkippedView(Struct, frozen=True):
    first_at: str
    last_at: str
    number: int
    reason: str
    at: str


def skipped_view(skipped: Skipped) -> SkippedView:
    return SkippedView(told(skipped.first_at), told(skipped.last_at), skipped.number, skipped.reason, told(skipped.at))


def skipped_of(view: SkippedView) -> Skipped:
    first_at, last_at = heard(view.first_at, "first_at"), heard(view.last_at, "last_at")
    return Skipped(first_at, last_at, view.number, view.reason, heard(view.at, "at"))
