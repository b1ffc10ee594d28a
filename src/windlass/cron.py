"""When a rule is due: pure functions from instants to instants, with no clock and no store.

An instant is milliseconds since 1970 in UTC; inside this module it is seconds, because no cron rule is due between two. A wall time
is the local time of a zone, counted as if its clock had never been changed; `_instant` and `_offset` convert between the two.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count, islice, pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from windlass.durations import duration, spelled
from windlass.errors import BadInput, nearest
from windlass.model import Limits

KINDS = ("once", "interval", "cron")

LONGEST = 256  # characters of an expression
SHORTEST_INTERVAL = 1_000
FAR_FUTURE = 7_258_118_400_000  # the year 2200; nothing is due later
_DAY = 86_400
# No date comes back later than after 40 years: 29 February on a given weekday, across a year such as 2100.
_HORIZON = 50 * 366 * _DAY
# By 2040 zones have only their standing rules, so what is not due in the years after it is never due.
_STANDING = 2_208_988_800_000
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Mapping[str, str] = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L for the last day, LW for the last weekday",
    "month": "1 to 12, or JAN to DEC",
    "day of week": "0 to 7 (0 and 7 are Sunday), SUN to SAT, 5L for the last Friday, 1#2 for the second Monday",
}


# cronsim reads 10-10/20 as 10/20, which is 10, 30 and 50.
_ONE_VALUE = re.compile(r"(?<![\w-])0*(\w+)-0*\1/[0-9]+", re.IGNORECASE)


class Rule(Struct, frozen=True):
    """When something is due. `parse` creates it, so an existing rule is always valid."""

    kind: str  # once, interval, cron
    expr: str
    zone: str = "UTC"


class LocalTime(NamedTuple):
    """The local time of a zone at an instant."""

    local: str  # ISO 8601 with the offset
    clock_changes: bool  # on that day, in that zone


def parse(kind: str, expr: str | float | datetime, zone: str | None = None) -> Rule:
    """The parsed rule; BadInput, with the position of the error, if it is invalid or never due."""
    if kind not in KINDS:
        raise BadInput(f"There is no kind of schedule {kind!r:.40}.", hint=f"There are: {', '.join(KINDS)}.")
    if zone is not None:
        _check_zone(zone)
    if isinstance(expr, str) and len(expr) > LONGEST:
        raise BadInput(f"The expression has {len(expr):,} characters; at most {LONGEST} are read.", hint="Split it into several schedules.")
    return _READERS[kind](expr, zone)


def next_after(rule: Rule, after_ms: int, anchor_ms: int = 0) -> int | None:
    """The first due instant strictly after another, or None; intervals are counted from the anchor, which is the first."""
    return next(_due(rule, after_ms, FAR_FUTURE, anchor_ms), None)


def upcoming(rule: Rule, after_ms: int, anchor_ms: int, limit: int) -> list[int]:
    """The first `limit` due instants strictly after another, oldest first."""
    return list(islice(_due(rule, after_ms, FAR_FUTURE, anchor_ms), limit))


def between(rule: Rule, after_ms: int, until_ms: int, anchor_ms: int = 0, limit: int = 1_000) -> tuple[list[int], int]:
    """The first `limit` due instants in (after, until], oldest first, and how many there are in all."""
    instants = list(islice(_due(rule, after_ms, until_ms, anchor_ms), limit))
    return instants, len(instants) if len(instants) < limit else _number(rule, after_ms, until_ms, anchor_ms)


def latest(rule: Rule, after_ms: int, until_ms: int, anchor_ms: int = 0, nth: int = 1) -> int | None:
    """The nth due instant from the end of (after, until], or the first where there are fewer; None where there is none."""
    until_ms = min(until_ms, FAR_FUTURE)
    if _number(rule, after_ms, until_ms, anchor_ms) > nth:
        starts = range(after_ms, until_ms)
        after_ms = starts[bisect_right(starts, -nth, key=lambda start: -_number(rule, start, until_ms, anchor_ms)) - 1]
    return next(_due(rule, after_ms, until_ms, anchor_ms), None)


def describe(rule: Rule) -> str:
    """The rule in words."""
    match rule.kind:
        case "once":
            return f"Once, at {_shown(_once(rule.expr, rule.zone), rule.zone).local}"
        case "interval":
            return f"Every {_in_words(duration(rule.expr))}"
        case _:
            words = CronSim(_compiled(rule.expr, rule.zone).fields, _dated(0)).explain()
            return f"{re.sub(r'([0-9]+)th', _ordinal, words)} ({rule.zone})"


def shown(rule: Rule, instant_ms: int) -> LocalTime:
    """The local time of the rule's zone at an instant, and whether the clock is changed on that day."""
    return _shown(instant_ms, rule.zone)


# The instants of a rule


def _due(rule: Rule, after_ms: int, until_ms: int, anchor_ms: int) -> Iterator[int]:
    """All due instants in (after, until], oldest first."""
    match rule.kind:
        case "once":
            instants = (at for at in [_once(rule.expr, rule.zone)] if at > after_ms)
        case "interval":
            every = duration(rule.expr)
            instants = (anchor_ms + index * every for index in count(max(0, (after_ms - anchor_ms) // every + 1)))
        case _:
            instants = (at * 1_000 for at in _due_by_cron(_compiled(rule.expr, rule.zone), _whole_seconds(after_ms)))
    return takewhile(min(until_ms, FAR_FUTURE).__ge__, instants)


def _number(rule: Rule, after_ms: int, until_ms: int, anchor_ms: int) -> int:
    """How many due instants there are in (after, until], without going through all of them."""
    until_ms = min(until_ms, FAR_FUTURE)
    match rule.kind:
        case "once":
            return int(after_ms < _once(rule.expr, rule.zone) <= until_ms)
        case "interval":
            first, every = next_after(rule, after_ms, anchor_ms), duration(rule.expr)
            return 0 if first is None or first > until_ms else (until_ms - first) // every + 1
        case _:
            return _number_by_cron(_compiled(rule.expr, rule.zone), _whole_seconds(after_ms), _whole_seconds(until_ms))


def _whole_seconds(instant_ms: int) -> int:
    # The range keeps datetime from overflowing; nothing is due outside of it.
    return min(max(instant_ms, -1), FAR_FUTURE) // 1_000


# Reading


def _read_once(expr: object, zone: str | None) -> Rule:
    text = expr.isoformat() if isinstance(expr, datetime) else expr.strip() if isinstance(expr, str) else ""
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError as error:
        raise BadInput(f"{expr!r:.80} is no instant: {error}.", hint="Write it as 2030-01-31T09:00:00+01:00.") from None
    if zone is None and not aware:
        raise BadInput(f"{text!r} has no zone.", hint=f"Write {text}Z or {text}+01:00, or name a zone.")
    rule = Rule("once", text, zone or "UTC")
    if not 0 <= _once(text, rule.zone) <= FAR_FUTURE:
        raise BadInput(f"{text!r} is out of range.", hint="Name an instant from 1970 to 2199.")
    return rule


def _read_interval(expr: object, zone: str | None) -> Rule:
    try:
        every = duration(expr)
    except ValueError as expected:
        raise BadInput(f"The interval is {expr!r:.80}; it must be {expected}.", hint="Write 15m, 1h30m or 1d.") from None
    if not SHORTEST_INTERVAL <= every <= Limits().duration:
        raise BadInput(f"The interval {expr!r:.80} is below a second.", hint="The shortest interval is 1s.")
    return Rule("interval", expr.strip() if isinstance(expr, str) else spelled(every), zone or "UTC")


def _read_cron(expr: object, zone: str | None) -> Rule:
    if not isinstance(expr, str):
        raise BadInput(f"The cron expression is {expr!r:.80}; it must be a text.", hint='Write five fields, such as "0 3 * * *".')
    rule = Rule("cron", " ".join(expr.split()), zone or "UTC")
    _check_fields(expr)
    try:
        first = next_after(rule, _STANDING)
    except CronSimError:
        first = None  # cronsim itself has found that no month has such a day
    if first is None:
        raise BadInput(f"{rule.expr!r} is never due: no date matches all of its fields.", hint="Check the day, the month and the hour.")
    return rule


_READERS: Mapping[str, Callable[[object, str | None], Rule]] = {"once": _read_once, "interval": _read_interval, "cron": _read_cron}


def _check_fields(expr: str) -> None:
    """Refuse an expression that is not five valid fields, and name the position of the error."""
    nickname = expr.strip().lower()
    if nickname.startswith("@"):
        if nickname not in _NICKNAMES:
            hint = 'Use an interval, such as "15m".' if nickname.startswith("@every") else f"There are: {', '.join(_NICKNAMES)}."
            raise BadInput(f"There is no cron nickname {expr.strip()!r:.40}.", hint=hint)
        return
    fields = list(re.finditer(r"\S+", expr))
    if len(fields) != len(_FIELDS):
        count = f"{len(fields)} field{'s' * (len(fields) != 1)}"
        raise BadInput(f"The cron expression {expr!r} has {count}; it must have five.", hint=f"They are: {', '.join(_FIELDS)}.")
    for index, (name, values) in enumerate(_FIELDS.items()):
        position = fields[index].start()
        for part in fields[index].group().split(","):
            if not _reads(index, part):
                raise BadInput(
                    f"The {name} {part!r} at character {position + 1} of {expr!r} cannot be read.",
                    hint=f"Field {index + 1}, the {name}, takes {values}; also *, lists (1,2), ranges (1-5, low to high) and steps (*/2).",
                )
            position += len(part) + 1


def _reads(index: int, part: str) -> bool:
    """Whether cronsim accepts a part of a field, with all other fields free."""
    fields = ["*"] * len(_FIELDS)
    fields[index] = part
    try:
        CronSim(" ".join(fields), _dated(0))
    except CronSimError:
        return False
    return part.isascii()  # "ſun" in capitals is SUN


def _check_zone(name: object) -> None:
    if isinstance(name, str) and name in _zones():
        return
    zones = {zone.rpartition("/")[2]: zone for zone in sorted(_zones())} | {zone: zone for zone in _zones()}
    near = nearest(str(name), zones, cutoff=0.7)  # there are so many of them that some are always a little alike
    hint = f"Did you mean {zones[near]}?" if near else "Name a zone as the tz database does: UTC, Europe/Paris, America/New_York."
    raise BadInput(f"There is no zone {name!r:.80}.", hint=hint)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # "localtime" is another zone on every machine, and "Factory" is none.
    return frozenset(available_timezones() - {"localtime", "Factory", "posixrules"})


# Cron


class _Cron(NamedTuple):
    fields: str
    by_elapsed_time: bool
    zone: ZoneInfo


@lru_cache(maxsize=4096)
def _compiled(expr: str, zone: str) -> _Cron:
    fields = _ONE_VALUE.sub(r"\1", _NICKNAMES.get(expr.lower(), expr))
    minute, hour, *_ = fields.split()
    return _Cron(fields, minute.startswith("*") or hour.startswith("*"), _zone(zone))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # it was there when the rule was made
        raise BadInput(
            f"There is no zone {name!r:.80} on this machine.", hint="Update tzdata, or give the schedule another zone."
        ) from None


def _due_by_cron(cron: _Cron, after: int) -> Iterator[int]:
    return (_due_by_elapsed_time if cron.by_elapsed_time else _due_by_wall_time)(cron, after)


def _due_by_elapsed_time(cron: _Cron, after: int) -> Iterator[int]:
    """Every instant at which the local time matches, whether or not the same local time has come before."""
    start: int | None = after + 1
    give_up = after + _HORIZON
    while start is not None and start < give_up:
        offset, change = _offset(cron.zone, start), None
        for wall in _matches(cron.fields, start + offset):
            if (change := _first_change(cron.zone, start, wall - offset)) is not None:
                break  # from here on the local time differs
            yield wall - offset
            start, give_up = wall - offset, wall + _HORIZON
        start = change


def _due_by_wall_time(cron: _Cron, after: int) -> Iterator[int]:
    """The instant of every wall time that matches. Wall times skipped by one change share one instant, which counts once."""
    for wall in _matches(cron.fields, after + _offset(cron.zone, after) + 1):
        instant = _instant(cron.zone, wall)
        if instant > after:  # otherwise this wall time has come before, and is now repeated
            yield instant
            after = instant


def _matches(fields: str, wall: int) -> Iterator[int]:
    """The matching wall times, from this one on. cronsim gets no zone, so clock changes do not affect it."""
    return (int(match.timestamp()) for match in CronSim(fields, _dated(wall - 1)))


def _number_by_cron(cron: _Cron, after: int, until: int) -> int:
    """How many instants there are in (after, until], computed for each stretch between two clock changes."""
    total, reached, start = 0, _reached(cron.zone, after), after + 1
    while start <= until:
        offset, change = _offset(cron.zone, start), _first_change(cron.zone, start, until)
        first, last = start + offset, (until if change is None else change - 1) + offset
        if not cron.by_elapsed_time:
            passed_over = _number_of_matches(cron.fields, reached, first - 1)
            total += bool(passed_over and not _number_of_matches(cron.fields, first - 1, first))
            first = max(first, reached + 1)
        total += _number_of_matches(cron.fields, first - 1, last)
        reached, start = max(reached, last), last - offset + 1
    return total


def _reached(zone: ZoneInfo, instant: int) -> int:
    """The latest wall time so far: the current local time, unless the clock was just put back."""
    change = _first_change(zone, instant - _DAY, instant)
    before = instant if change is None else change - 1
    return max(instant + _offset(zone, instant), before + _offset(zone, before))


def _number_of_matches(fields: str, after: int, until: int) -> int:
    """How many wall times in (after, until] match."""
    if until <= after:
        return 0
    minute, hour, dates = fields.split(maxsplit=2)
    times = _times(minute, hour)
    (first, begun), (last, ended) = divmod(after, _DAY), divmod(until, _DAY)
    return (
        _number_of_days(dates, first, last) * len(times)
        - _number_of_days(dates, first, first + 1) * bisect_right(times, begun)
        + _number_of_days(dates, last, last + 1) * bisect_right(times, ended)
    )


def _number_of_days(dates: str, first: int, end: int) -> int:
    """How many days match, counted from 1970, from one on and before another."""
    years = range(_dated(first * _DAY).year, _dated(end * _DAY).year + 1)
    return sum(bisect_left(days, end) - bisect_left(days, first) for days in (_days(dates, year) for year in years))


@lru_cache(maxsize=1024)
def _times(minute: str, hour: str) -> tuple[int, ...]:
    """The seconds of a day that match."""
    return tuple(takewhile(_DAY.__gt__, _matches(f"{minute} {hour} * * *", 0)))


@lru_cache(maxsize=1024)
def _days(dates: str, year: int) -> tuple[int, ...]:
    """The days of a year that match."""
    start, end = (int(datetime(at, 1, 1, tzinfo=UTC).timestamp()) for at in (year, year + 1))
    return tuple(wall // _DAY for wall in takewhile(end.__gt__, _matches(f"0 0 {dates}", start)))


# Zones


def _dated(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(length: timedelta | None) -> int:
    assert length is not None
    return length.days * _DAY + length.seconds


def _offset(zone: ZoneInfo, instant: int) -> int:
    """Seconds by which the local time of a zone is ahead of UTC at an instant."""
    return _seconds(datetime.fromtimestamp(instant, zone).utcoffset())


def _instant(zone: ZoneInfo, wall: int) -> int:
    """The first instant with this local time; for a skipped one, the instant of the change that skips it."""
    local = _dated(wall).replace(tzinfo=zone)
    before = _seconds(local.utcoffset())
    if _offset(zone, wall - before) == before:
        return wall - before
    after = _seconds(local.replace(fold=1).utcoffset())
    change = _first_change(zone, wall - after, wall - before)
    assert change is not None
    return change


def _first_change(zone: ZoneInfo, after: int, until: int) -> int | None:
    """The first instant in (after, until] from which on the offset differs."""
    years = range(_dated(after).year, _dated(until).year + 1)
    return next((change for year in years for change in _changes(zone, year) if after < change <= until), None)


@lru_cache(maxsize=8192)
def _changes(zone: ZoneInfo, year: int) -> tuple[int, ...]:
    """All changes of the offset in a year of UTC. Two changes are never less than six days apart."""
    start, end = (int(datetime(at, 1, 1, tzinfo=UTC).timestamp()) for at in (year, year + 1))
    days = pairwise(range(start - 1, end, _DAY))
    return tuple(_change(zone, low, high) for low, high in days if _offset(zone, low) != _offset(zone, high))


def _change(zone: ZoneInfo, low: int, high: int) -> int:
    """The one change in (low, high]."""
    before = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return high


# Once, intervals, words


@lru_cache(maxsize=4096)
def _once(expr: str, zone: str) -> int:
    moment = datetime.fromisoformat(expr)
    ms, wall = moment.microsecond // 1_000, int(moment.replace(microsecond=0, tzinfo=moment.tzinfo or UTC).timestamp())
    if moment.tzinfo is None and -_DAY <= wall <= FAR_FUTURE // 1_000 + _DAY:
        instant = _instant(_zone(zone), wall)
        skipped = instant + _offset(_zone(zone), instant) != wall
        return instant * 1_000 + (0 if skipped else ms)
    return wall * 1_000 + ms


def _shown(instant_ms: int, zone: str) -> LocalTime:
    seconds, ms = divmod(instant_ms, 1_000)
    local = datetime.fromtimestamp(seconds, _zone(zone)).replace(microsecond=ms * 1_000)
    midnight = int(local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC).timestamp())
    start, end = (_instant(_zone(zone), wall) for wall in (midnight, midnight + _DAY))
    change = _first_change(_zone(zone), start - 1, end - 1)
    return LocalTime(local.isoformat(timespec="milliseconds" if ms else "seconds"), change is not None)


_WORDS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000, "millisecond": 1}


def _in_words(ms: int) -> str:
    parts = []
    for word, length in _WORDS.items():
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count:,} {word}{'s' * (count != 1)}")
    return parts[0].removeprefix("1 ") if len(parts) == 1 else " ".join(parts)


def _ordinal(number: re.Match[str]) -> str:
    """Corrects cronsim's "21th" to "21st"."""
    ending = {"1": "st", "2": "nd", "3": "rd"}.get(number[1][-1], "th")
    return number[1] + ("th" if number[1] in ("11", "12", "13") else ending)
