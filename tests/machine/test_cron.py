"""When rules are due: against a walk over minutes, against croniter, on the days that are hard, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadDateError, croniter  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machine.cron_walk import DAY, Change, Clockwork, all_changes, changes_of, fires, walls
from tests.tiers import corners, long
from windlass import cron
from windlass.cron import FAR_FUTURE, Rule, between, describe, latest, next_after, parse, shown, upcoming
from windlass.errors import BadInput

NOW = 1_794_000_000_000  # 2026-11-06T21:20Z
YEAR = 366 * DAY * 1_000


def at(text: str, zone: str = "UTC") -> int:
    """The instant of a local time, the first one where there are two."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1_000)


def coming(expr: str, zone: str, start: str, count: int = 3) -> list[str]:
    """The next fires, in local time."""
    rule = parse("cron", expr, zone)
    return [shown(rule, instant).local for instant in upcoming(rule, at(start, zone), 0, count)]


# Every change of every zone

EXPRESSIONS = (
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "@daily",
    "59 23 * * *",
    "*/7 1-3 * * *",
    "0-59/4 0-3 * * *",
    "15 0 1 * 1",
    "@weekly",
    "5,35 1,2 * * 0",
    "0 */2 * * *",
    "0 3 29-31 3,10 *",
)
SHARDS = 8


@long
def test_T3_all_changes_of_all_zones_are_looked_at() -> None:
    total, different = all_changes()
    assert total > 4_000
    assert len(different) > 500
    assert {abs(change.after - change.before) for change in different} >= {1_800, 3_600, 7_200}


@long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_T3_every_change_of_every_zone_fires_as_a_walk_over_minutes_says(shard: int) -> None:
    clockworks = {expr: Clockwork(expr) for expr in EXPRESSIONS}
    mismatches: list[tuple[object, ...]] = []
    for change, zone in list(all_changes()[1].items())[shard::SHARDS]:
        start, end = change.at - DAY, change.at + DAY
        minutes = walls(ZoneInfo(zone), start, end)
        for expr, clockwork in clockworks.items():
            expected = [instant * 1_000 for instant in fires(clockwork, minutes) if instant > start]
            rule = Rule("cron", expr, zone)
            if between(rule, start * 1_000, end * 1_000, 0, 10_000) != (expected, len(expected)):
                mismatches.append((zone, change, expr))
            mismatches += [(zone, change, expr, begun) for begun in _begun_wrong(rule, change.at * 1_000, expected, end * 1_000)]
    assert mismatches == []


def _begun_wrong(rule: Rule, change: int, expected: list[int], end: int) -> list[int]:
    """The instants around a change from which the next fire, or the number of those up to the end, is not the expected one."""
    begun = [change - 1, change, change + 999, *range(change - 4 * 3_600_000, change + 4 * 3_600_000, 67 * 60_000)]
    wanted = {start: [instant for instant in expected if instant > start] for start in begun}
    return [start for start, left in wanted.items() if left and between(rule, start, end, 0, 1) != (left[:1], len(left))]


@pytest.mark.parametrize(("expr", "zone"), corners(EXPRESSIONS, ("Europe/Paris", "Australia/Lord_Howe", "Africa/Cairo")))
def test_what_is_counted_by_days_is_what_is_counted_one_by_one(expr: str, zone: str) -> None:
    rule, start, end = Rule("cron", expr, zone), NOW - 40 * DAY * 1_000 + 12_345, NOW + 47_000
    one_by_one = [instant for instant in upcoming(rule, start, 0, 5_000) if instant <= end]
    assert between(rule, start, end, 0, 1) == (one_by_one[:1], len(one_by_one))
    assert [latest(rule, start, end, 0, nth) for nth in (1, 2, 5, 100_000)] == [
        *(one_by_one[-min(nth, len(one_by_one))] for nth in (1, 2, 5)),
        one_by_one[0],
    ]


# Days that are hard

HARD_DAYS = [
    ("a gap", "30 2 * * *", "Europe/Paris", "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    ("several in one gap", "5,35 2 * * *", "Europe/Paris", "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:05:00+02:00"]),
    (
        "in the gap and at its end",
        "0 2,3 * * *",
        "Europe/Paris",
        "2026-03-28T12:00",
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"],
    ),
    (
        "a time that comes twice",
        "30 2 * * *",
        "Europe/Paris",
        "2026-10-24T12:00",
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
    ),
    ("elapsed, a gap", "*/30 2 * * *", "Europe/Paris", "2026-03-28T12:00", ["2026-03-30T02:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
    ("elapsed, twice", "30 * * * *", "Europe/Paris", "2026-10-25T01:45", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]),
    ("Lord Howe, gap", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]),
    (
        "Lord Howe, twice",
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T12:00",
        ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
    ),
    (
        "Lord Howe, hourly",
        "0 * * * *",
        "Australia/Lord_Howe",
        "2026-04-05T00:30",
        ["2026-04-05T01:00:00+11:00", "2026-04-05T02:00:00+10:30"],
    ),
    (
        "Lord Howe, minutes",
        "* 3 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T12:00",
        ["2026-10-04T03:00:00+11:00", "2026-10-04T03:01:00+11:00"],
    ),
    ("Cairo, no midnight", "0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"]),
    ("Cairo, back to 23:00", "0 * * * *", "Africa/Cairo", "2026-10-29T22:30", ["2026-10-29T23:00:00+03:00", "2026-10-29T23:00:00+02:00"]),
    ("Santiago", "0 0 * * *", "America/Santiago", "2026-09-05T12:00", ["2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"]),
    ("Azores, no midnight", "@daily", "Atlantic/Azores", "2026-03-28T12:00", ["2026-03-29T01:00:00+00:00", "2026-03-30T00:00:00+00:00"]),
    ("Azores, two midnights", "@daily", "Atlantic/Azores", "2026-10-24T12:00", ["2026-10-25T00:00:00+00:00", "2026-10-26T00:00:00-01:00"]),
    ("Havana, elapsed", "* 0 * * 0", "America/Havana", "2029-03-10T12:00", ["2029-03-18T00:00:00-04:00", "2029-03-18T00:01:00-04:00"]),
    ("Apia, a missing day", "0 12 * * *", "Pacific/Apia", "2011-12-29T13:00", ["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"]),
    ("Apia, daily", "@daily", "Pacific/Apia", "2011-12-29T13:00", ["2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"]),
    (
        "Kiritimati, on 31 December",
        "0 12 * * *",
        "Pacific/Kiritimati",
        "1994-12-30T13:00",
        ["1995-01-01T00:00:00+14:00", "1995-01-01T12:00:00+14:00"],
    ),
    ("Dublin, negative", "30 1 * * *", "Europe/Dublin", "2026-03-28T12:00", ["2026-03-29T02:00:00+01:00", "2026-03-30T01:30:00+01:00"]),
    ("Dublin, twice", "30 1 * * *", "Europe/Dublin", "2026-10-24T12:00", ["2026-10-25T01:30:00+01:00", "2026-10-26T01:30:00+00:00"]),
    ("Troll, two hours", "30 1 * * *", "Antarctica/Troll", "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T01:30:00+02:00"]),
    ("Chatham", "* 3 * * *", "Pacific/Chatham", "2028-04-02T02:50", ["2028-04-02T03:00:00+13:45", "2028-04-02T03:01:00+13:45"]),
    ("29 February", "0 3 29 2 *", "Europe/Paris", "2026-01-01T00:00", ["2028-02-29T03:00:00+01:00", "2032-02-29T03:00:00+01:00"]),
    ("no 29 February in 2100", "0 3 29 2 *", "UTC", "2097-01-01T00:00", ["2104-02-29T03:00:00+00:00", "2108-02-29T03:00:00+00:00"]),
    ("29 February on Sunday", "0 0 29 2 */7", "UTC", "2090-01-01T00:00", ["2128-02-29T00:00:00+00:00", "2156-02-29T00:00:00+00:00"]),
    ("29 February or Monday", "0 0 29 2 1", "UTC", "2028-02-22T00:00", ["2028-02-28T00:00:00+00:00", "2028-02-29T00:00:00+00:00"]),
    ("past 2038", "14 3 * * *", "UTC", "2038-01-19T03:13", ["2038-01-19T03:14:00+00:00", "2038-01-20T03:14:00+00:00"]),
    ("month ends", "0 0 31 * *", "UTC", "2026-03-31T00:00", ["2026-05-31T00:00:00+00:00", "2026-07-31T00:00:00+00:00"]),
    ("the last day", "0 0 L * *", "UTC", "2026-02-01T00:00", ["2026-02-28T00:00:00+00:00", "2026-03-31T00:00:00+00:00"]),
    ("date or weekday", "15 0 1 * 1", "UTC", "2026-10-30T00:00", ["2026-11-01T00:15:00+00:00", "2026-11-02T00:15:00+00:00"]),
    ("date and weekday", "0 0 */2 * 1", "UTC", "2026-11-01T00:00", ["2026-11-09T00:00:00+00:00", "2026-11-23T00:00:00+00:00"]),
    ("0 and 7 are Sunday", "0 0 * * 7", "UTC", "2026-11-06T00:00", ["2026-11-08T00:00:00+00:00", "2026-11-15T00:00:00+00:00"]),
    (
        "a range of one with a step",
        "10-10/20 0 * * *",
        "UTC",
        "2026-11-06T00:00",
        ["2026-11-06T00:10:00+00:00", "2026-11-07T00:10:00+00:00"],
    ),
    ("Tokyo", "0 5 * * *", "Asia/Tokyo", "2026-11-06T10:00", ["2026-11-07T05:00:00+09:00", "2026-11-08T05:00:00+09:00"]),
    ("the far future", "30 2 * * 0", "Europe/Paris", "2199-03-30T12:00", ["2199-03-31T03:00:00+02:00", "2199-04-07T02:30:00+02:00"]),
]


@pytest.mark.parametrize(("expr", "zone", "start", "expected"), [case[1:] for case in HARD_DAYS], ids=[case[0] for case in HARD_DAYS])
def test_T4_T5_T6_days_that_are_hard(expr: str, zone: str, start: str, expected: list[str]) -> None:
    assert coming(expr, zone, start, 2) == expected


def test_in_the_repeated_hour_what_was_due_in_the_first_is_past() -> None:
    rule, second = parse("cron", "30 2 * * *", "Europe/Paris"), at("2026-10-25T01:10")  # 02:10 for the second time
    assert shown(rule, second).local == "2026-10-25T02:10:00+01:00"
    assert next_after(rule, second) == at("2026-10-26T01:30")


def test_T6_nothing_is_due_outside_of_the_range() -> None:
    rule = Rule("cron", "0 0 * * *", "Asia/Tokyo")
    assert next_after(rule, -(10**18)) == at("1970-01-01T15:00")
    assert next_after(rule, FAR_FUTURE) is None
    assert next_after(rule, 10**18) is None
    assert next_after(Rule("cron", "0 0 * * *", "UTC"), FAR_FUTURE - 1) == FAR_FUTURE == at("2200-01-01T00:00")
    assert next_after(Rule("interval", "1d"), FAR_FUTURE, 0) is None
    assert latest(rule, 0, 10**18, 0, 1) == FAR_FUTURE - 9 * 3_600_000


def test_milliseconds_do_not_matter() -> None:
    rule, due = parse("cron", "0 * * * *"), at("2026-11-06T10:00")
    assert [next_after(rule, due + ms) for ms in (-1, 0, 1, 999)] == [due, due + 3_600_000, due + 3_600_000, due + 3_600_000]


# Intervals and once


def test_an_interval_is_counted_from_its_anchor() -> None:
    rule = parse("interval", "15m")
    assert next_after(rule, NOW, NOW) == NOW + 900_000
    assert next_after(rule, NOW + 899_999, NOW) == NOW + 900_000
    assert next_after(rule, NOW - YEAR, NOW) == NOW  # nothing is due before the anchor
    assert between(rule, NOW, NOW + 10 * YEAR, NOW, 2) == ([NOW + 900_000, NOW + 1_800_000], 10 * YEAR // 900_000)
    assert between(rule, NOW, NOW + 899_999, NOW, 2) == ([], 0)
    assert [latest(rule, NOW, NOW + 10 * YEAR + 1, NOW, nth) for nth in (2, 1)] == [NOW + 10 * YEAR - 900_000, NOW + 10 * YEAR]
    assert latest(rule, NOW, NOW + 899_999, NOW, 2) is None


@pytest.mark.parametrize(
    ("expr", "ms"), [("90s", 90_000), ("1h30m", 5_400_000), ("1d", 86_400_000), (900, 900_000), (1.5, 1_500), ("1", 1_000)]
)
def test_intervals_are_durations(expr: str | float, ms: int) -> None:
    rule = parse("interval", expr)
    assert next_after(rule, NOW, NOW) == NOW + ms
    assert parse("interval", rule.expr) == rule


ONCE = [
    ("2026-12-01T09:00:00+01:00", None, at("2026-12-01T08:00")),
    ("2026-12-01T09:00Z", "Asia/Tokyo", at("2026-12-01T09:00")),
    ("2026-12-01T09:00", "Asia/Tokyo", at("2026-12-01T00:00")),
    ("2026-12-01", "UTC", at("2026-12-01T00:00")),
    ("2027-03-28T02:30:00.250", "Europe/Paris", at("2027-03-28T01:00")),  # skipped: the first instant after the gap
    ("2027-10-31T02:30:00.250", "Europe/Paris", at("2027-10-31T00:30") + 250),  # twice: the first
]


@pytest.mark.parametrize(("expr", "zone", "instant"), ONCE)
def test_K11_once_is_due_once(expr: str, zone: str | None, instant: int) -> None:
    rule = parse("once", expr, zone)
    assert next_after(rule, NOW) == next_after(rule, instant - 1) == instant
    assert next_after(rule, instant) is None
    assert between(rule, NOW, instant, 0, 5) == between(rule, NOW, FAR_FUTURE, 0, 1) == ([instant], 1)
    assert between(rule, NOW, instant - 1, 0, 5) == ([], 0)
    assert latest(rule, NOW, FAR_FUTURE, 0, 3) == instant


def test_once_takes_a_datetime() -> None:
    assert next_after(parse("once", datetime(2026, 12, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))), NOW) == at("2026-12-01T00:00")


# In words


@pytest.mark.parametrize(
    ("kind", "expr", "words"),
    [
        ("cron", "0 3 * * *", "At 03:00 every day (Europe/Paris)"),
        ("cron", "@hourly", "At the start of every hour (Europe/Paris)"),
        ("cron", "0 9 11,21,22,23,24 * *", "At 09:00 on the 11th, the 21st, the 22nd, the 23rd, and the 24th day of month (Europe/Paris)"),
        ("interval", "1h30m", "Every 1 hour 30 minutes"),
        ("interval", "1d", "Every day"),
        ("once", "2026-12-01T09:00", "Once, at 2026-12-01T09:00:00+01:00"),
    ],
)
def test_a_rule_in_words(kind: str, expr: str, words: str) -> None:
    assert describe(parse(kind, expr, "Europe/Paris")) == words


@pytest.mark.parametrize(
    ("zone", "start", "days"),
    [
        ("Europe/Paris", "2026-03-27T13:00", [False, True, False]),
        ("Africa/Cairo", "2026-04-22T13:00", [False, True, False]),  # at midnight, forward
        ("Africa/Cairo", "2026-10-27T13:00", [False, True, False]),  # at midnight, back into the 29th
        ("Pacific/Apia", "2011-12-28T13:00", [False, True, True]),  # no 30th; due at the first instant of the 31st, and at noon
        ("UTC", "2026-03-28T13:00", [False, False, False]),
    ],
)
def test_days_on_which_the_clock_changes_are_marked(zone: str, start: str, days: list[bool]) -> None:
    rule = parse("cron", "0 12 * * *", zone)
    assert [shown(rule, instant).clock_changes for instant in upcoming(rule, at(start, zone), 0, 3)] == days


# Refused

REFUSED = [
    ("cron", "61 * * * *", None, "minute '61' at character 1 ", "0 to 59"),
    ("cron", "0 0 1,32 * *", None, "day of month '32' at character 7 ", "1 to 31"),
    ("cron", "0 24 * * *", None, "hour '24' at character 3 ", "0 to 23"),
    ("cron", "0 0 * 13 *", None, "month '13' at character 7 ", "JAN"),
    ("cron", "0 0 * * fri-mon", None, "day of week 'fri-mon' at character 9 ", "low to high"),
    ("cron", "0 0 * * 1#6", None, "day of week '1#6'", "second Monday"),
    ("cron", "*/0 * * * *", None, "minute '*/0'", "steps"),
    ("cron", "1,,2 * * * *", None, "minute '' at character 3 ", "0 to 59"),
    ("cron", "0 0 * * ſun", None, "day of week 'ſun'", "SUN"),
    ("cron", "* * * *", None, "4 fields", "minute, hour"),
    ("cron", "0 0 0 * * *", None, "6 fields", "minute, hour"),
    ("cron", "", None, "0 fields", "minute, hour"),
    ("cron", "@reboot", None, "'@reboot'", "@daily"),
    ("cron", "@every 5m", None, "'@every 5m'", "interval"),
    ("cron", 5, None, "must be a text", "five fields"),
    ("cron", "* " * 129, None, "258 characters", "Split"),
    ("cron", "0 0 30 2 *", None, "never due", "Check the day"),
    ("cron", "0 0 31 4 *", None, "never due", "Check the day"),
    ("cron", "0 0 31 2,4,6 *", "Europe/Paris", "never due", "Check the day"),
    ("cron", "0 0 */31 * 1#5", None, "never due", "Check the day"),
    ("cron", "*/5 2 * 3 0#2", "America/New_York", "never due", "the hour"),  # the hour that is skipped every year
    ("cron", "@daily", "Europe/Pris", "'Europe/Pris'", "Did you mean Europe/Paris?"),
    ("cron", "@daily", "paris", "'paris'", "Did you mean Europe/Paris?"),
    ("cron", "@daily", "europe/paris", "'europe/paris'", "Did you mean Europe/Paris?"),
    ("cron", "@daily", "localtime", "'localtime'", "tz database"),
    ("cron", "@daily", "../../etc/passwd", "no zone", "tz database"),
    ("cron", "@daily", "", "no zone ''", "tz database"),
    ("cron", "@daily", "x" * 10_000, "no zone", "tz database"),
    ("interval", "999ms", None, "below a second", "1s"),
    ("interval", 0, None, "below a second", "1s"),
    ("interval", -5, None, "must be a duration", "15m"),
    ("interval", True, None, "must be a duration", "15m"),
    ("interval", float("inf"), None, "must be a duration", "15m"),
    ("interval", "3661d", None, "at most ten years", "15m"),
    ("interval", "9" * 250 + "d", None, "at most ten years", "15m"),
    ("interval", "soon", None, "must be a duration", "15m"),
    ("interval", "15m", "Nowhere/Land", "no zone", ""),
    ("once", "2026-12-01T09:00", None, "has no zone", "Z or"),
    ("once", "soon", "UTC", "no instant", "2030-01-31T09:00:00+01:00"),
    ("once", "1969-12-31T23:59:59Z", None, "out of range", "1970"),
    ("once", "0001-01-01", "Asia/Tokyo", "out of range", "1970"),
    ("once", "9999-12-31T23:59:59-14:00", None, "out of range", "2199"),
    ("once", 5, "UTC", "no instant", "2030"),
    ("weekly", "1", None, "no kind of schedule 'weekly'", "once, interval, cron"),
]


@pytest.mark.parametrize(
    ("kind", "expr", "zone", "message", "hint"), REFUSED, ids=[f"{case[0]} {case[1]!r:.24} {case[2]!s:.16}" for case in REFUSED]
)
def test_K34_G24_T5_T6_what_cannot_be_followed_is_refused_at_once(
    kind: str, expr: str | float, zone: str | None, message: str, hint: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse(kind, expr, zone)
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_K12_G23_without_a_zone_it_is_utc() -> None:
    assert parse("cron", "0  3 * * * ") == Rule("cron", "0 3 * * *", "UTC")


@given(st.text(alphabet="0123456789*/-,#LW @adeinorstuyfbm\u017f\0", max_size=40))
def test_any_text_is_refused_or_can_be_followed(text: str) -> None:
    try:
        rule = parse("cron", text, "Europe/Paris")
    except BadInput:
        return
    assert next_after(rule, NOW) is not None
    assert describe(rule)


# croniter


def _parts(low: int, high: int) -> st.SearchStrategy[str]:
    span = st.lists(st.integers(low, high), min_size=2, max_size=2, unique=True).map(sorted)
    return st.one_of(
        st.integers(low, high).map(str),
        st.integers(1, high).map(lambda step: f"*/{step}"),
        span.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(span, st.integers(1, 5)).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
    )


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.just("*"),
        _parts(low, high),
        st.lists(st.integers(low, high), min_size=1, max_size=4).map(lambda values: ",".join(map(str, values))),
    )


CRONS = st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12), _field(0, 6))


ZONES = ["UTC", "Europe/Paris", "Asia/Kolkata", "America/St_Johns", "Africa/Cairo", "Australia/Lord_Howe"]


@settings(max_examples=300, deadline=None)
@given(CRONS, st.integers(10**9, 4 * 10**9), st.sampled_from(ZONES))
def test_croniter_says_the_same_but_for_the_known_differences(fields: tuple[str, ...], start: int, zone: str) -> None:
    expr = " ".join(fields)
    try:
        rule = parse("cron", expr, zone)
    except BadInput:
        with pytest.raises(CroniterBadDateError):
            croniter(expr, datetime.fromtimestamp(start, UTC), day_or=False).get_next()
        return
    if not _named_days_exist(fields):
        return  # a known difference
    last = upcoming(rule, start * 1_000, 0, 3)[-1] // 1_000
    assert _unexplained(fields, zone, start, last, changes_of(zone)) == ([], [])


@long
@settings(max_examples=300, deadline=None)
@given(CRONS, st.data(), st.integers(-2 * 3_600, 2 * 3_600))
def test_around_changes_too(fields: tuple[str, ...], data: st.DataObject, begun: int) -> None:
    change, zone = data.draw(st.sampled_from(list(all_changes()[1].items())))
    on_the_day = datetime.fromtimestamp(change.at - 1, ZoneInfo(zone))
    near = [f"{on_the_day.hour}", f"{(on_the_day.hour + 1) % 24}", "*", "*/2", "0-4", fields[1]]
    fields = (fields[0], data.draw(st.sampled_from(near)), *data.draw(st.sampled_from([("*", "*", "*"), fields[2:]])))
    try:
        parse("cron", " ".join(fields), zone)
    except BadInput:
        return
    if _named_days_exist(fields):
        assert _unexplained(fields, zone, change.at + begun, change.at + 3 * 3_600, [change]) == ([], [])


def _unexplained(fields: tuple[str, ...], zone: str, start: int, end: int, changes: Iterable[Change]) -> tuple[list[int], list[int]]:
    """The instants in (start, end] that only we have, and those that only croniter has, without the known differences."""
    expr, (_, _, day, _, weekday) = " ".join(fields), fields
    ours = {at // 1_000 for at in between(Rule("cron", expr, zone), start * 1_000, end * 1_000, 0, 10_000)[0]}
    # Debian's cron joins the two by "and" when either begins with a star, croniter only when one is nothing but a star.
    joined_by_and = "*" not in (day, weekday) and (day[0] == "*" or weekday[0] == "*")
    there = croniter(expr, datetime.fromtimestamp(start, ZoneInfo(zone)), day_or=not joined_by_and)
    theirs = set(takewhile(lambda at: at <= end, (round(there.get_next(float)) for _ in count())))
    met = [change for change in changes if start - DAY < change.at <= end]
    known = [_known_differences(Clockwork(expr), ZoneInfo(zone), change) for change in met]
    return sorted((ours - theirs).difference(*(left for left, _ in known))), sorted(
        (theirs - ours).difference(*(more for _, more in known))
    )


def _known_differences(clockwork: Clockwork, zone: ZoneInfo, change: Change) -> tuple[set[int], set[int]]:
    """What croniter may leave out at a change, and what it may have more."""
    if change.after < change.before:
        repeated = walls(zone, change.at, change.at + change.before - change.after - 1)
        meant = clockwork.meant(repeated[0][1], repeated[-1][1])
        again = {instant for instant, wall in repeated if wall in meant}
        return (again, set()) if clockwork.elapsed else (set(), again)
    skipped = range((change.at + change.before) // 60, (change.at + change.after) // 60)
    meant = clockwork.meant(skipped[0], skipped[-1])
    return set(), {change.at} if clockwork.elapsed and not meant.isdisjoint(skipped) else set()


def _named_days_exist(fields: tuple[str, ...]) -> bool:
    """Whether there is a date as named, whatever the weekday. Where there is none croniter does not look for the weekday either."""
    try:
        parse("cron", f"0 0 {fields[2]} {fields[3]} *")
    except BadInput:
        return False
    return True


DIFFERENCES = [
    # Ours is right by the rule in docs/schedules.md, which lists these too; each line says what croniter does instead.
    (
        "a wall time that comes twice fires twice",
        "30 2 * * *",
        "Europe/Paris",
        "2026-10-25T01:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
        "2026-10-25T02:30:00+01:00",
    ),
    (
        "the same where midnight comes twice",
        "0 0 * * *",
        "Atlantic/Azores",
        "2026-10-24T12:00",
        "2026-10-25T00:00:00+00:00",
        "2026-10-26T00:00:00-01:00",
        "2026-10-25T00:00:00-01:00",
    ),
    (
        "the same by half an hour",
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T12:00",
        "2026-04-05T01:45:00+11:00",
        "2026-04-06T01:45:00+10:30",
        "2026-04-05T01:45:00+10:30",
    ),
]
OTHER_READINGS = [
    (
        "an elapsed expression too fires at the end of a gap",
        "*/30 2 * * *",
        "Europe/Paris",
        "2026-03-28T12:00",
        "2026-03-30T02:00:00+02:00",
        "2026-03-29T03:00:00+02:00",
    ),
    (
        "day and weekday are joined by or although one begins with a star",
        "0 0 */2 * 1",
        "UTC",
        "2026-11-02T00:00",
        "2026-11-09T00:00:00+00:00",
        "2026-11-03T00:00:00+00:00",
    ),
    (
        "a list that holds a star is a star, so the days are joined by and",
        "0 0 13 * 5,*",
        "UTC",
        "2026-11-01T00:00",
        "2026-11-02T00:00:00+00:00",
        "2026-11-13T00:00:00+00:00",
    ),
    (
        "a range of one value is the whole range",
        "0 21-21 * * *",
        "UTC",
        "2026-11-01T00:00",
        "2026-11-01T21:00:00+00:00",
        "2026-11-01T01:00:00+00:00",
    ),
    (
        "what comes again by elapsed time is left out where the next match by the wall is far away",
        "* 2 26 10 *",
        "Europe/Chisinau",
        "2031-10-26T02:59",
        "2031-10-26T02:00:00+02:00",
        "2032-10-26T02:00:00+03:00",
    ),
    (
        "and where the clock is put back by half an hour",
        "*/20 * * * *",
        "Australia/Lord_Howe",
        "2026-04-05T01:40",
        "2026-04-05T01:40:00+10:30",
        "2026-04-05T02:00:00+10:30",
    ),
    (
        "and where it is put back in the middle of an hour",
        "* 2 * * *",
        "Pacific/Chatham",
        "2027-04-04T02:59",
        "2027-04-04T02:45:00+12:45",
        "2027-04-05T02:00:00+12:45",
    ),
    ("so is a last value with a step", "0 0 31/2 * *", "UTC", "2026-11-01T00:00", "2026-12-31T00:00:00+00:00", "2026-11-03T00:00:00+00:00"),
    (
        "steps from a weekday end on Saturday, not on Sunday",
        "0 0 * * 3/4",
        "UTC",
        "2026-11-05T00:00",
        "2026-11-08T00:00:00+00:00",
        "2026-11-11T00:00:00+00:00",
    ),
]


def _of_croniter(expr: str, zone: str, start: str, count: int) -> list[str]:
    theirs = croniter(expr, datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)))
    return [theirs.get_next(datetime).isoformat() for _ in range(count)]


@pytest.mark.parametrize(
    ("expr", "zone", "start", "first", "ours", "theirs"), [case[1:] for case in DIFFERENCES], ids=[case[0] for case in DIFFERENCES]
)
def test_known_difference_to_croniter_in_repeated_hours(expr: str, zone: str, start: str, first: str, ours: str, theirs: str) -> None:
    assert coming(expr, zone, start, 2) == [first, ours]
    assert _of_croniter(expr, zone, start, 2) == [first, theirs]


@pytest.mark.parametrize(
    ("expr", "zone", "start", "ours", "theirs"), [case[1:] for case in OTHER_READINGS], ids=[case[0] for case in OTHER_READINGS]
)
def test_known_difference_to_croniter(expr: str, zone: str, start: str, ours: str, theirs: str) -> None:
    assert coming(expr, zone, start, 1) == [ours]
    assert _of_croniter(expr, zone, start, 1) == [theirs]


def test_known_difference_to_croniter_a_date_that_does_not_exist_hides_the_weekday() -> None:
    assert coming("0 0 31 4 0", "UTC", "2026-04-01T00:00", 1) == ["2026-04-05T00:00:00+00:00"]
    with pytest.raises(CroniterBadDateError):
        _of_croniter("0 0 31 4 0", "UTC", "2026-04-01T00:00", 1)


def test_the_zones_have_no_two_changes_within_six_days() -> None:
    """What `_changes` relies on when it looks once a day."""
    by_zone = [ZoneInfo(name) for name in ("Africa/Casablanca", "Asia/Gaza", "America/Boa_Vista", "America/Noronha", "Africa/Cairo")]
    for zone in by_zone:
        changes = [change for year in range(1990, 2090) for change in cron._changes(zone, year)]
        assert all(later - earlier >= 6 * DAY for earlier, later in pairwise(changes))
        looked = [datetime.fromtimestamp(moment, zone).utcoffset() for moment in range(631_152_000, 1_900_000_000, 6 * 3_600)]
        assert sum(one != other for one, other in pairwise(looked)) == sum(631_152_000 < change < 1_900_000_000 for change in changes)


def test_rules_are_values() -> None:
    assert parse("cron", "0 3 * * *") == parse("cron", "0 3 * * *")
    assert {parse("interval", "15m"): 1}[parse("interval", "15m")] == 1
    assert datetime.fromtimestamp(cron._STANDING / 1_000, UTC).year == 2040
