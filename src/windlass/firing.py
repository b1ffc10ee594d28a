"""What a schedule does at a moment: fires one instant, skips some, and knows the next. Pure, as the machine is."""

from __future__ import annotations

from typing import NamedTuple

from windlass import cron
from windlass.model import Schedule

ON_TIME = 60_000
"""Milliseconds by which a fire may be late and still counts as on time: a sweep that was busy is no downtime."""


class Skip(NamedTuple):
    """Instants that do not become runs."""

    first_at: int
    last_at: int
    number: int
    reason: str


class Fire(NamedTuple):
    """What is to be done now: at most one run, the skips, and when to look again."""

    due_at: int | None
    skips: tuple[Skip, ...]
    next_at: int | None


def rule_of(schedule: Schedule) -> cron.Rule:
    """The schedule's rule of time."""
    return cron.Rule(schedule.kind, schedule.expr, schedule.zone)


def plan(schedule: Schedule, now: int) -> Fire:
    """What a schedule that is due does. One run at a time, the oldest first; what is behind it waits for the next look."""
    assert schedule.next_at is not None
    if schedule.next_at > now:
        return Fire(None, (), schedule.next_at)
    rule, anchor, first = rule_of(schedule), schedule.anchor, schedule.next_at
    due_at = _first_kept(schedule, rule, now)
    end = now if due_at is None else due_at - 1
    skipped, number = cron.between(rule, first - 1, end, anchor, 1)
    skips = tuple(Skip(at, cron.latest(rule, at - 1, end, anchor) or at, number, "missed") for at in skipped)
    if first not in (due_at, *skipped):  # it was worked out by rules of the zone that have changed since
        skips = (Skip(first, first, 1, "rules_changed"), *skips)
    return Fire(due_at, skips, cron.next_after(rule, now if due_at is None else due_at, anchor))


def passed_over(schedule: Schedule, now: int, reason: str) -> tuple[Skip, ...]:
    """All that is due by a rule that is about to go, where none of it is to become a run."""
    assert schedule.next_at is not None
    rule, anchor, first = rule_of(schedule), schedule.anchor, schedule.next_at
    number = cron.between(rule, first - 1, now, anchor, 1)[1]
    return (Skip(first, cron.latest(rule, first - 1, now, anchor) or first, max(number, 1), reason),)


def last_instant(schedule: Schedule, now: int) -> int:
    """The instant before the next one by the rule as it is; where there was none yet, that from which the rule counts."""
    until = now if schedule.next_at is None else schedule.next_at - 1
    return cron.latest(rule_of(schedule), schedule.anchor, until, schedule.anchor) or schedule.anchor


def first_from(schedule: Schedule, last: int, now: int) -> int | None:
    """The first instant of a rule that takes the place of another whose last instant is known.

    An interval is counted from there. Where it is over already the latest of its instants is due, and none before it: the rule
    was not there to promise them.
    """
    rule = rule_of(schedule)
    if schedule.kind != "interval":
        return cron.next_after(rule, now, last)
    return cron.latest(rule, last, now, last) or cron.next_after(rule, last, last)


def _first_kept(schedule: Schedule, rule: cron.Rule, now: int) -> int | None:
    """The oldest instant up to now that becomes a run, by the word for missed ones; all after it do too."""
    assert schedule.next_at is not None
    after, most = schedule.next_at - 1, schedule.most
    if schedule.max_age is not None:
        after = max(after, now - schedule.max_age - 1)
    if schedule.missed == "skip":
        after = max(after, now - ON_TIME)
    if schedule.missed == "latest" and schedule.next_at <= now - ON_TIME:
        most = 1
    return cron.latest(rule, after, now, schedule.anchor, most)
