"""The rule of docs/schedules.md ("When exactly"), done the slow way: look at the clock on the wall every minute.

Nothing here is shared with windlass.cron: neither the reading of expressions nor the way from walls to instants.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

MINUTE, DAY = 60, 86_400
EPOCH = date(1970, 1, 1).toordinal()
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
NAMES = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])} | {
    name: number
    for number, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], start=1)
}
NICKNAMES = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *"}


class Change(NamedTuple):
    """From `at` (seconds) on, the clocks are `after` instead of `before` seconds ahead of UTC."""

    at: int
    before: int
    after: int


def _offset(zone: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _changes(zone: ZoneInfo, first_year: int, last_year: int) -> Iterator[Change]:
    at, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (first_year, last_year + 1))
    before = _offset(zone, at)
    while at < end:
        if _offset(zone, at + DAY) != before:
            step = DAY // 2
            while step:
                at, step = (at + step, step // 2) if _offset(zone, at + step) == before else (at, step // 2)
            while _offset(zone, at) == before:
                at += 1
            yield Change(at, before, _offset(zone, at))
            before = _offset(zone, at)
        else:
            at += DAY


@cache
def changes_of(zone: str) -> list[Change]:
    """All changes of a zone that a test may meet."""
    return list(_changes(ZoneInfo(zone), 2000, 2140))


@lru_cache(maxsize=1)
def all_changes() -> tuple[int, dict[Change, str]]:
    """How often any zone changes its clocks from 2025 to 2035, and one zone for each change that is not like another."""
    total, different = 0, dict[Change, str]()
    for name in sorted(available_timezones() - {"localtime"}):
        for change in _changes(ZoneInfo(name), 2025, 2035):
            total += 1
            different.setdefault(change, name)
    return total, different


class Clockwork:
    """A cron expression that can say which minutes on the wall are meant."""

    def __init__(self, expr: str) -> None:
        fields = NICKNAMES.get(expr, expr).lower().split()
        minutes, hours, self.days, self.months, self.weekdays = (_values(field, *span) for field, span in zip(fields, RANGES, strict=True))
        self.times = {hour * 60 + minute for hour in hours for minute in minutes}
        self.elapsed = fields[0][0] == "*" or fields[1][0] == "*"
        self.both = fields[2][0] == "*" or fields[4][0] == "*"

    def meant(self, first: int, last: int) -> set[int]:
        """The wall times, in minutes, that are the expression's, at least from one to another."""
        days = range(first // 1440, last // 1440 + 1)
        return {day * 1440 + time for day in days if self._day_meant(date.fromordinal(EPOCH + day)) for time in self.times}

    def _day_meant(self, day: date) -> bool:
        by_date, by_week = day.day in self.days, not {day.isoweekday(), day.isoweekday() % 7}.isdisjoint(self.weekdays)
        return day.month in self.months and (by_date and by_week if self.both else by_date or by_week)


def _values(field: str, low: int, high: int) -> set[int]:
    found = set[int]()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = (str(low), "-", str(high)) if span == "*" else span.partition("-")
        end = _number(last) if dash else high if step else _number(first)
        found |= set(range(_number(first), end + 1, int(step or 1)))
    return found


def _number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


def walls(zone: ZoneInfo, start: int, end: int) -> list[tuple[int, int]]:
    """What the clocks show (in minutes) at every minute from `start` to `end`."""
    return [(instant, (instant + _offset(zone, instant)) // MINUTE) for instant in range(start, end + 1, MINUTE)]


def fires(clockwork: Clockwork, shown: list[tuple[int, int]]) -> Iterator[int]:
    """The instants (seconds) at which the rule fires while the clocks show this; the first must be no repeated time."""
    reached = shown[0][1] - 1  # the latest time that was ever on the wall
    meant = clockwork.meant(min(wall for _, wall in shown), max(wall for _, wall in shown))
    for instant, wall in shown:
        if wall in meant and (clockwork.elapsed or wall > reached):
            yield instant
        elif wall > reached + 1 and not clockwork.elapsed and not meant.isdisjoint(range(reached + 1, wall)):
            yield instant  # what was passed over on the way to it
        if wall > reached:
            reached = wall
