"""What a schedule does at a moment: fires one instant, skips some, and computes the next. Pure, like the machine."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from windlass import cron
from windlass.defaults import SCHEDULE_EDITABLE
from windlass.errors import BadInput
from windlass.model import Schedule

ON_TIME = 60_000
"""Milliseconds by which a fire may be late and still counts as on time: a busy sweep is not downtime."""


class SkippedInstants(NamedTuple):
    """Instants that do not become runs."""

    first_at: int
    last_at: int
    number: int
    reason: str


class Fire(NamedTuple):
    """The actions due now: at most one run, the skips, and the time of the next check."""

    due_at: int | None
    skips: tuple[SkippedInstants, ...]
    next_at: int | None


def rule_of(schedule: Schedule) -> cron.Rule:
    """The schedule's time rule."""
    return cron.Rule(schedule.kind, schedule.expr, schedule.zone)


def plan(schedule: Schedule, now: int) -> Fire:
    """The actions of a due schedule. One run per call, the oldest first; later instants wait for the next call."""
    assert schedule.next_at is not None
    if schedule.next_at > now:
        return Fire(None, (), schedule.next_at)
    rule, anchor, first = rule_of(schedule), schedule.anchor, schedule.next_at
    due_at = _first_kept(schedule, rule, now)
    end = now if due_at is None else due_at - 1
    skipped, number = cron.between(rule, first - 1, end, anchor, 1)
    skips = tuple(SkippedInstants(at, cron.latest(rule, at - 1, end, anchor) or at, number, "missed") for at in skipped)
    if first not in (due_at, *skipped):  # it was computed by zone rules that have changed since
        skips = (SkippedInstants(first, first, 1, "rules_changed"), *skips)
    return Fire(due_at, skips, cron.next_after(rule, now if due_at is None else due_at, anchor))


def passed_over(schedule: Schedule, now: int, reason: str) -> tuple[SkippedInstants, ...]:
    """Skips all instants that are due by a rule that is about to be replaced."""
    assert schedule.next_at is not None
    rule, anchor, first = rule_of(schedule), schedule.anchor, schedule.next_at
    number = cron.between(rule, first - 1, now, anchor, 1)[1]
    return (SkippedInstants(first, cron.latest(rule, first - 1, now, anchor) or first, max(number, 1), reason),)


def last_instant(schedule: Schedule, now: int) -> int:
    """The instant before the next one, by the current rule; if there was none yet, the anchor of the rule."""
    until = now if schedule.next_at is None else schedule.next_at - 1
    return cron.latest(rule_of(schedule), schedule.anchor, until, schedule.anchor) or schedule.anchor


def first_from(schedule: Schedule, last: int, now: int) -> int | None:
    """The first instant of a rule that replaces another whose last instant is known.

    An interval is counted from there. If it has already passed, the latest of its instants is due, and none before it, because the rule
    was not in effect then.
    """
    rule = rule_of(schedule)
    if schedule.kind != "interval":
        return cron.next_after(rule, now, last)
    return cron.latest(rule, last, now, last) or cron.next_after(rule, last, last)


def _first_kept(schedule: Schedule, rule: cron.Rule, now: int) -> int | None:
    """The oldest instant up to now that becomes a run, by the policy for missed ones; all later ones do too."""
    assert schedule.next_at is not None
    after, max_missed = schedule.next_at - 1, schedule.max_missed
    if schedule.max_age is not None:
        after = max(after, now - schedule.max_age - 1)
    if schedule.missed == "skip":
        after = max(after, now - ON_TIME)
    if schedule.missed == "latest" and schedule.next_at <= now - ON_TIME:
        max_missed = 1
    return cron.latest(rule, after, now, schedule.anchor, max_missed)


def outage_of(schedule: Schedule, start: int, end: int) -> Fire:
    """What a schedule would do at the end of a downtime."""
    first = cron.next_after(rule_of(schedule), start, schedule.anchor)
    return Fire(None, (), None) if first is None else plan(replace(schedule, next_at=first), end)


def described(schedule: Schedule) -> str:
    """The rule in words; as it is written where it cannot be read here, such as in a zone that this machine does not have."""
    try:
        return cron.describe(rule_of(schedule))
    except BadInput:
        return f"{schedule.expr} ({schedule.zone})"


def edited(schedule: Schedule) -> bool:
    """Whether a person has changed a schedule that code defines."""
    return schedule.code_hash is not None and schedule.code_hash != fingerprint(schedule)


def fingerprint(schedule: Schedule) -> str:
    """Equal for equal definitions."""
    content = [getattr(schedule, name) for name in SCHEDULE_EDITABLE]
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=16).hexdigest()
