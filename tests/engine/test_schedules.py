"""Schedules: every instant becomes one run or one skip that is written down, whatever the words, the downtimes and the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.conformance import SHARED, at_once, crowd, late, unchanged
from tests.grounds import set_ground
from tests.harness import LEASE, Harness
from tests.tiers import long
from windlass import cron, payload
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine, Watch, fires
from windlass.engine.fires import FIRED_AT_ONCE
from windlass.errors import BadInput, NotFound, WindlassError
from windlass.faults import FAULTS
from windlass.firing import ON_TIME, SkippedInstants, plan, rule_of
from windlass.machine import Snooze, Succeed
from windlass.model import Limits, NewRun, Options, Run, Schedule, Skipped, State, WorkerInfo
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held
from windlass.store.sqlite import BlockingSqlite

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """Whatever a test arms, the next one begins without."""
    yield
    FAULTS.arm("")


@pytest.fixture
def memory() -> Iterator[Harness]:
    """The engine in memory alone, for what no database can change."""
    harness = in_memory()
    yield harness
    run_sync(harness.store.close())


def in_memory() -> Harness:
    clock = ManualClock()
    harness = Harness(BlockingSqlite(":memory:", clock), clock)
    harness.define()
    return harness


def schedule(h: Harness, key: str = "often", **words: Any) -> Schedule:
    return h(h.engine.schedule(key, words.pop("job", "mail"), **({} if {"cron", "at"} & words.keys() else {"every": "5m"}) | words))


def read(h: Harness, key: str = "often") -> Schedule:
    return h(h.engine.get_schedule(key))


def skips(h: Harness, key: str = "often") -> list[Skipped]:
    """Oldest first."""
    return h(h.engine.skips(key, count=1_000))[::-1]


def runs(h: Harness, key: str = "often") -> list[Run]:
    """The runs that a schedule has made, oldest instant first."""
    identity, found, cursor = read(h, key).id, [], None
    while True:
        page = h(h.engine.runs(count=1_000, cursor=cursor))
        found += [run for run in page.runs if run.schedule == identity]
        if (cursor := page.cursor) is None:
            return sorted(found, key=lambda run: run.due_at)


def due_times(h: Harness, key: str = "often") -> list[int]:
    return [run.due_at for run in runs(h, key)]


def sweep_all(h: Harness, after: int = 0) -> int:
    """Sweep until nothing is behind."""
    h.clock.advance(after)
    fired = 0
    while made := h(h.engine.sweep()).fired:
        fired += made
    return fired


def add_up(h: Harness, key: str, since: int, until: int) -> None:
    """Every instant in (since, until] has one run or is in one skip, and nothing else has."""
    seen, instants = read(h, key), set(cron.between(rule_of(read(h, key)), since, until, read(h, key).anchor, 100_000)[0])
    fired = due_times(h, key)
    assert len(fired) == len(set(fired)) == seen.fired
    assert set(fired) <= instants
    left = instants - set(fired)
    for skip in skips(h, key):
        covered = {at for at in instants if skip.first_at <= at <= skip.last_at}
        assert covered <= left, "skipped twice, or fired as well"
        assert (len(covered), min(covered), max(covered)) == (skip.number, skip.first_at, skip.last_at)
        left -= covered
    assert not left, "lost"
    assert seen.fired + seen.skipped == len(instants)


# Once for each instant


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "cancel"])
def test_S6_of_many_that_fire_at_once_one_makes_the_run(kind: str, overlap: str, tmp_path: Any, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as sweepers:
        h = sweepers[0]
        start = h.clock.now()
        for key in ("a", "b", "c"):
            schedule(h, key, overlap=overlap)
        for tick in range(1, 4):
            h.clock.advance(5 * MINUTE)
            made = at_once(sweepers, ["advance_schedules"], *[lambda h: h(h.engine.fire_all())] * 4)
            assert sum(number for number in made if isinstance(number, int)) == 3, made
            for key in ("a", "b", "c"):
                assert due_times(h, key) == [start + 5 * MINUTE * n for n in range(1, tick + 1)]
                for run in h.claim(100):
                    h(h.engine.start(run.id, str(run.token)))
                    h.succeed(run)


def test_who_comes_late_makes_no_second_run_and_holds_up_no_other(h: Harness) -> None:
    start = h.clock.now()
    schedule(h, "a")
    h.clock.advance(MINUTE)
    schedule(h, "b")
    h.clock.advance(6 * MINUTE)

    def another_fires_the_first() -> None:
        assert h(h.engine.fire(1)) == 1

    slow = late(h, "advance_schedules", another_fires_the_first)
    assert slow(slow.engine.fire()) == 1
    assert due_times(h, "a") == [start + 5 * MINUTE]
    assert due_times(h, "b") == [start + 6 * MINUTE]


def test_a_schedule_removed_while_it_is_fired_makes_no_run(h: Harness) -> None:
    schedule(h, "a")
    schedule(h, "b")
    h.clock.advance(5 * MINUTE)
    slow = late(h, "advance_schedules", lambda: h(h.engine.remove_schedule("a")))
    assert slow(slow.engine.fire_all()) == 1
    assert [run.schedule for run in h(h.engine.runs()).runs] == [read(h, "b").id]


def test_a_schedule_disabled_while_it_is_fired_makes_no_run(h: Harness) -> None:
    schedule(h)
    h.clock.advance(5 * MINUTE)
    slow = late(h, "advance_schedules", lambda: h(h.engine.set_schedule("often", enabled=False)))
    assert slow(slow.engine.fire_all()) == 0
    assert (runs(h), read(h).next_at, read(h).fired) == ([], None, 0)


def test_an_edit_meets_a_fire_and_both_count(h: Harness) -> None:
    start = h.clock.now()
    schedule(h)
    h.clock.advance(5 * MINUTE)
    slow = late(h, "edit_schedule", lambda: h(h.engine.sweep()))
    slow(slow.engine.set_schedule("often", payload={"to": "bob"}))
    after = read(h)
    assert (after.payload, after.fired, after.next_at) == ({"to": "bob"}, 1, start + 10 * MINUTE)
    assert due_times(h) == [start + 5 * MINUTE]


def test_two_edits_at_once_both_count(h: Harness) -> None:
    schedule(h)
    slow = late(h, "edit_schedule", lambda: h(h.engine.set_schedule("often", job="letter")))
    after = slow(slow.engine.set_schedule("often", payload={"to": "bob"}))
    assert (after.job, after.payload, after.rev) == ("letter", {"to": "bob"}, 3)


def test_T7_more_schedules_than_a_slice_that_are_due_at_one_instant_all_fire_in_one_sweep(memory: Harness) -> None:
    for number in range(1_100):
        schedule(memory, f"k{number}", jitter=MINUTE * (number % 2))
    memory.clock.advance(5 * MINUTE)
    assert memory(memory.engine.sweep()).fired == 1_100
    with unchanged(memory):
        assert memory(memory.engine.fire_all()) == 0
    late_by = [run.due_at - memory.clock.now() for run in memory(memory.engine.runs(count=1_000)).runs]
    assert late_by.count(0) > 400
    assert len({ms // (6 * SECOND) for ms in late_by if ms}) == 10  # jitter has spread every other one over the minute


def test_a_sweep_comes_back_when_the_next_schedule_is_due(h: Harness) -> None:
    schedule(h, every="10s")
    h.clock.advance(9_600)
    assert h(h.engine.sweep()).back_in == 400
    h(h.engine.set_schedule("often", enabled=False))
    assert h(h.engine.sweep()).back_in > 400


# One that cannot fire


class Recorder:
    """A store that notes the verbs of its batches."""

    def __init__(self, store: Store, verbs: list[str]) -> None:
        self._store, self._verbs = store, verbs

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self._verbs.append(verb)
        return await self._store.batch(verb, statements)

    async def close(self) -> None:
        await self._store.close()


def narrow(h: Harness) -> Harness:
    """A process that takes smaller payloads."""
    other = h.another()
    set_ground(other.engine, limits=Limits(payload=1_000))
    return other


def test_one_that_cannot_fire_holds_up_no_other_and_leaves_a_trace(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    start = h.clock.now()
    schedule(h, "a", job="letter", missed="all")
    schedule(h, "large", missed="all", payload={"a": "x" * 600})
    schedule(h, "z", job="letter", missed="all")
    h.define(payload={"b": "x" * 600})
    h.define("letter")
    run_id = h.create("letter", due_at=start + MINUTE)
    sweep_all(narrow(h), after=10 * MINUTE)
    ticks = [start + 5 * MINUTE, start + 10 * MINUTE]
    assert (due_times(h, "a"), due_times(h, "z"), due_times(h, "large")) == (ticks, ticks, [])
    assert [(skip.first_at, skip.number, skip.reason) for skip in skips(h, "large")] == [(at, 1, "too_large") for at in ticks]
    assert h.get(run_id).state is State.QUEUED  # the rest of the sweep was done as well
    assert "large cannot fire" in caplog.text
    assert read(h, "large").enabled
    add_up(h, "large", start, h.clock.now())


@contextmanager
def tz_database(**zones: str | None) -> Iterator[None]:
    """Another one than that of the machine: a zone is missing, or has the rules of another."""
    found = cron._zone
    names = {name.replace("_", "/"): other for name, other in zones.items()}

    def instead(name: str) -> ZoneInfo:
        return found(names.get(name, name) or "Nowhere/Known")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cron, "_zone", instead)
        cron._compiled.cache_clear()
        yield
    cron._compiled.cache_clear()


def test_T4_one_whose_zone_is_not_on_this_machine_waits_for_another_machine(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    schedule(h, "far", cron="0 * * * *", zone="Asia/Tokyo")
    schedule(h, "near", cron="0 * * * *")
    with tz_database(Asia_Tokyo=None):
        for hour in (1, 2, 3):
            assert sweep_all(h, after=HOUR) == 1
            assert (len(runs(h, "near")), read(h, "far").fired, read(h, "far").skipped) == (hour, 0, 0)
    assert caplog.text.count("far cannot fire on this machine") == 1
    assert sweep_all(h) == 1
    assert (len(runs(h, "far")), read(h, "far").skipped) == (1, 2)


def test_one_that_waits_for_another_machine_does_not_keep_this_one_busy(h: Harness) -> None:
    schedule(h, "far", cron="0 * * * *", zone="Asia/Tokyo")
    schedule(h, "near", every="1h")
    h.clock.advance(HOUR)
    with tz_database(Asia_Tokyo=None):
        assert [h(h.engine.sweep()).back_in for _ in range(2)] == [1_000, 1_000]
        h.clock.advance(HOUR - 400)
        assert h(h.engine.sweep()).back_in == 400


def test_R6_however_many_cannot_be_followed_here_the_others_fire_and_together(memory: Harness) -> None:
    for number in range(FIRED_AT_ONCE + 1):
        schedule(memory, f"far {number}", cron="0 * * * *", zone="Asia/Tokyo")
    for number in range(10):
        schedule(memory, f"near {number}", every="1h")
    batches: list[str] = []
    h = Harness(Recorder(memory.store, batches), memory.clock)
    with tz_database(Asia_Tokyo=None):
        h.clock.advance(HOUR)
        assert h(h.engine.sweep()).fired == 10
        h.clock.advance(HOUR)
        assert h(h.engine.fire()) == 10
    assert batches.count("fire") == 2
    h.clock.advance(HOUR)
    assert h(h.engine.sweep()).fired == FIRED_AT_ONCE + 11


def test_R6_those_that_are_far_behind_leave_the_others_their_turn(memory: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fires, "FIRED_AT_ONCE", 3)
    monkeypatch.setattr(fires, "PASSES", 3)  # the second one finds the same schedules again, one instant further
    for number in range(3):
        schedule(memory, f"behind {number}", missed="all", every="1m")
    memory.clock.advance(30 * MINUTE)
    schedule(memory, "on time", every="1m")
    memory.clock.advance(MINUTE)
    swept = memory(memory.engine.sweep())
    assert (swept.fired, swept.back_in, len(runs(memory, "on time"))) == (4, 0, 1)


@pytest.mark.parametrize(
    ("zone", "reason", "next_at"),
    [("Europe/London", "rules_changed", 3 * HOUR), ("Europe/Athens", "rules_changed", DAY + HOUR), ("Europe/Berlin", None, DAY + 2 * HOUR)],
    ids=["later", "earlier", "the same"],
)
def test_T4_a_zone_whose_rules_have_changed_gives_the_next_instant_and_leaves_a_note(
    h: Harness, zone: str, reason: str | None, next_at: int
) -> None:
    start = h.clock.now()
    schedule(h, cron="0 3 * * *", zone="Europe/Paris")
    with tz_database(Europe_Paris=zone):
        assert sweep_all(h, after=2 * HOUR) == (0 if reason else 1)
        noted = [(skip.first_at - start, skip.last_at - start, skip.number, skip.reason) for skip in skips(h)]
        assert noted == ([(2 * HOUR, 2 * HOUR, 1, reason)] if reason else [])
        assert (read(h).next_at or 0) - start == next_at
        assert sweep_all(h, after=next_at - 2 * HOUR) == 1


# What is missed


def keep(words: dict[str, Any], due: list[int], now: int) -> list[int]:
    """What a sweep must make of the instants that are due, said a second time."""
    max_missed = words["max_missed"]
    young = [at for at in due if words["max_age"] is None or now - at <= words["max_age"]]
    if words["missed"] == "skip":
        young = [at for at in young if now - at < ON_TIME]
    if words["missed"] == "latest" and due and now - due[0] >= ON_TIME:
        max_missed = 1
    return young[-max_missed:]


RULES: list[tuple[dict[str, str], int]] = [
    ({"every": "1s"}, SECOND),
    ({"every": "7s"}, 7 * SECOND),
    ({"every": "1m"}, MINUTE),
    ({"cron": "*/5 * * * *"}, 5 * MINUTE),
    ({"cron": "30 2 * * *", "zone": "Europe/Paris"}, DAY),
    ({"cron": "0 9-17 * * 1-5", "zone": "America/New_York"}, HOUR),
    ({"at": "2026-03-29T00:30:00Z"}, 20 * MINUTE),
]
"""Rules, and how far apart their instants are, more or less."""
WORDS = st.fixed_dictionaries(
    {
        "missed": st.sampled_from(["skip", "latest", "all"]),
        "max_missed": st.sampled_from([1, 2, 5, 100]),
        "max_age": st.sampled_from([None, 1, 30 * SECOND, 10 * MINUTE, DAY]),
    }
)
DOWNTIMES = st.lists(st.one_of(st.integers(0, 3_000), st.integers(0, 90_000), st.sampled_from([1_000, 60_000])), min_size=1, max_size=6)
"""Lengths in thousandths of what is between two instants."""


@long
@settings(max_examples=100, deadline=None)
@given(rule=st.sampled_from(RULES), words=WORDS, downtimes=DOWNTIMES)
def test_S6_after_any_downtimes_each_instant_was_fired_or_skipped_as_the_words_say(
    rule: tuple[dict[str, str], int], words: dict[str, Any], downtimes: list[int]
) -> None:
    h = in_memory()
    h.clock.ms = start = 1_774_742_400_000  # 2026-03-29 in UTC; the clocks change in Paris
    made = schedule(h, **rule[0], **words)
    for downtime in downtimes:
        before, seen = h.clock.now(), due_times(h)
        sweep_all(h, after=downtime * rule[1] // 1_000)
        due = cron.between(rule_of(made), before, h.clock.now(), made.anchor, 1_000)[0]
        assert due_times(h)[len(seen) :] == keep(words, due, h.clock.now())
        assert read(h).next_at == cron.next_after(rule_of(made), h.clock.now(), made.anchor)
    add_up(h, "often", start, h.clock.now())
    run_sync(h.store.close())


@pytest.mark.parametrize(
    ("words", "fired", "skipped"),
    [
        ({"missed": "skip"}, [], 12),
        ({"missed": "latest"}, [12], 11),
        ({"missed": "all"}, [*range(1, 13)], 0),
        ({"missed": "all", "max_missed": 3}, [10, 11, 12], 9),
        ({"missed": "all", "max_age": 12 * MINUTE}, [10, 11, 12], 9),
        ({"missed": "all", "max_age": 12 * MINUTE, "max_missed": 1}, [12], 11),
        ({"missed": "latest", "max_age": MINUTE}, [], 12),
    ],
)
def test_the_words_for_an_hour_that_nobody_was_there(h: Harness, words: dict[str, Any], fired: list[int], skipped: int) -> None:
    start = h.clock.now()
    schedule(h, **words)
    assert sweep_all(h, after=HOUR + 2 * MINUTE) == len(fired)
    assert due_times(h) == [start + tick * 5 * MINUTE for tick in fired]
    assert (read(h).fired, read(h).skipped, {skip.reason for skip in skips(h)}) == (len(fired), skipped, {"missed"} if skipped else set())
    add_up(h, "often", start, h.clock.now())
    assert sweep_all(h, after=3 * MINUTE) == 1  # the next instant comes as if nothing had been


@pytest.mark.parametrize("rule", [{"every": "5m"}, {"cron": "*/5 * * * *"}])
@pytest.mark.parametrize("missed", ["latest", "all"])
def test_what_is_as_old_as_max_age_is_caught_up_and_what_is_older_is_not(h: Harness, rule: dict[str, str], missed: str) -> None:
    start = h.clock.now()
    for key in ("young", "old"):
        schedule(h, key, **rule, missed=missed, max_age=4 * MINUTE)
    h.clock.advance(9 * MINUTE)
    h(h.engine.set_schedule("old", enabled=False))
    assert sweep_all(h) == 1
    assert due_times(h, "young") == [start + 5 * MINUTE]
    h(h.engine.set_schedule("young", enabled=False))
    schedule(h, "older", **rule, missed=missed, max_age=4 * MINUTE)
    start = h.clock.now() + (5 * MINUTE if "every" in rule else MINUTE)
    h.clock.ms = start + 4 * MINUTE + 1
    assert sweep_all(h) == 0
    assert [(skip.first_at, skip.number, skip.reason) for skip in skips(h, "older")] == [(start, 1, "missed")]


WORK = [
    {"every": "1s"},
    {"cron": "* * * * *", "zone": "Europe/Paris"},
    {"cron": "30 2 * * *", "zone": "Europe/Paris"},
    {"cron": "0 9-17 * * mon-fri", "zone": "America/New_York"},
]


@pytest.mark.parametrize("rule", WORK, ids=lambda rule: rule.get("cron", "every"))
def test_catching_up_costs_the_same_for_each_instant_however_many_there_are(rule: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in steps through the calendar; what a rule's days and times are is worked out once."""
    steps = 0

    class Counted(CronSim):
        def __next__(self) -> datetime:
            nonlocal steps
            steps += 1
            return super().__next__()

    h = in_memory()
    behind = schedule(h, **rule, missed="all", max_missed=10_000)
    run_sync(h.store.close())
    monkeypatch.setattr(cron, "CronSim", Counted)
    *due, now = cron.upcoming(rule_of(behind), h.clock.now(), behind.anchor, 12_000)
    assert plan(behind, now).due_at == due[-9_999]
    for next_at in due[-9_999:-1:500]:
        steps = 0
        fire = plan(replace(behind, next_at=next_at), now)
        assert (fire.due_at, fire.skips, steps <= 5) == (next_at, (), True)


def test_a_skip_says_which_instants_why_and_when(h: Harness) -> None:
    start = h.clock.now()
    schedule(h)
    sweep_all(h, after=HOUR)
    assert skips(h) == [Skipped(start + 5 * MINUTE, start + 55 * MINUTE, 11, "missed", start + HOUR)]
    sweep_all(h, after=HOUR)
    assert [skip.number for skip in h(h.engine.skips("often", count=1))] == [11]
    assert len(skips(h)) == 2


def test_a_sweep_that_was_busy_for_less_than_a_minute_misses_nothing(h: Harness) -> None:
    for missed in ("skip", "latest"):
        schedule(h, missed, every="10s", missed=missed)
    sweep_all(h, after=ON_TIME - 1)
    assert (len(runs(h, "skip")), len(runs(h, "latest"))) == (5, 5)
    assert skips(h, "skip") == skips(h, "latest") == []


def test_what_is_a_minute_late_was_missed(h: Harness) -> None:
    for missed in ("skip", "latest"):
        schedule(h, missed, every="10s", missed=missed)
    sweep_all(h, after=10 * SECOND + ON_TIME)
    assert (len(runs(h, "skip")), read(h, "skip").skipped) == (6, 1)
    assert (len(runs(h, "latest")), read(h, "latest").skipped) == (1, 6)


def test_once_that_was_missed_is_fired_or_skipped_by_its_word(h: Harness) -> None:
    at = h.clock.now() + HOUR
    schedule(h, "late", at="2026-01-01T01:00Z")
    schedule(h, "never", at="2026-01-01T01:00Z", missed="skip")
    sweep_all(h, after=DAY)
    assert (due_times(h, "late"), due_times(h, "never")) == ([at], [])
    assert [(skip.first_at, skip.number) for skip in skips(h, "never")] == [(at, 1)]
    for key in ("late", "never"):
        assert read(h, key).next_at is None
        h(h.engine.set_schedule(key, enabled=False))
        h(h.engine.set_schedule(key, enabled=True))
    assert sweep_all(h, after=DAY) == 0


def test_once_for_a_time_that_has_passed_never_fires(h: Harness) -> None:
    assert schedule(h, at="2025-12-31T23:59Z").next_at is None
    assert sweep_all(h, after=DAY) == 0


# Overlap


def test_allow_makes_a_run_beside_those_that_have_not_ended(h: Harness) -> None:
    schedule(h, overlap="allow")
    for _ in range(3):
        h.sweep(after=5 * MINUTE)
    assert [run.state for run in runs(h)] == [State.QUEUED] * 3
    assert skips(h) == []


def test_skip_makes_none_while_one_has_not_ended(h: Harness) -> None:
    start = h.clock.now()
    schedule(h, overlap="skip")
    h.sweep(after=5 * MINUTE)
    h.sweep(after=5 * MINUTE)  # queued is not ended
    run = h.claimed(lease=HOUR)
    h(h.engine.start(run.id, str(run.token)))
    h.sweep(after=5 * MINUTE)
    h.succeed(run)
    h.sweep(after=5 * MINUTE)
    assert due_times(h) == [start + 5 * MINUTE, start + 20 * MINUTE]
    assert [(skip.first_at - start, skip.last_at - start, skip.number, skip.reason) for skip in skips(h)] == [
        (10 * MINUTE, 10 * MINUTE, 1, "overlap"),
        (15 * MINUTE, 15 * MINUTE, 1, "overlap"),
    ]
    add_up(h, "often", start, h.clock.now())


@pytest.mark.parametrize("end", ["succeed", "fail"])
def test_queue_makes_one_that_waits_and_skips_the_others(h: Harness, end: str) -> None:
    h.define(max_attempts=1)
    start = h.clock.now()
    schedule(h, overlap="queue")
    h.sweep(after=5 * MINUTE)
    run = h.claimed(lease=HOUR)
    h(h.engine.start(run.id, str(run.token)))
    for _ in range(3):
        h.sweep(after=5 * MINUTE)
    assert [found.state for found in runs(h)] == [State.RUNNING, State.WAITING]
    assert [skip.reason for skip in skips(h)] == ["overlap"] * 2
    h.succeed(run) if end == "succeed" else h.fail(run)
    assert runs(h)[1].state is State.QUEUED
    assert h.claimed().id == runs(h)[1].id
    add_up(h, "often", start, h.clock.now())


def test_cancel_replaces_what_waits_and_asks_what_runs_to_stop(h: Harness) -> None:
    start = h.clock.now()
    schedule(h, overlap="cancel")
    h.sweep(after=5 * MINUTE)
    h.sweep(after=5 * MINUTE)
    assert [run.state for run in runs(h)] == [State.CANCELLED, State.QUEUED]
    run = h.claimed(lease=HOUR)
    h(h.engine.start(run.id, str(run.token)))
    h.clock.advance(5 * MINUTE)
    h(h.engine.fire())
    assert [found.state for found in runs(h)] == [State.CANCELLED, State.CANCELLING, State.WAITING]
    with pytest.raises(WindlassError):
        h.succeed(run)
    assert [found.state for found in runs(h)] == [State.CANCELLED, State.CANCELLED, State.QUEUED]
    assert "replaced" in str(h(h.engine.history(run.id)))
    add_up(h, "often", start, h.clock.now())


def test_who_comes_late_does_not_cancel_what_another_has_just_made(h: Harness) -> None:
    schedule(h, overlap="cancel")
    h.sweep(after=5 * MINUTE)
    h.clock.advance(5 * MINUTE)
    slow = late(h, "unfinished_of_schedules", lambda: h(h.engine.sweep()))
    slow(slow.engine.sweep())
    assert [run.state for run in runs(h)] == [State.CANCELLED, State.QUEUED]


def test_what_was_missed_meets_the_word_for_overlap_one_by_one(h: Harness) -> None:
    start = h.clock.now()
    for overlap in ("allow", "skip", "queue", "cancel"):
        schedule(h, overlap, missed="all", overlap=overlap)
    sweep_all(h, after=20 * MINUTE)
    states = {overlap: [run.state for run in runs(h, overlap)] for overlap in ("allow", "skip", "queue", "cancel")}
    assert states == {
        "allow": [State.QUEUED] * 4,
        "skip": [State.QUEUED],
        "queue": [State.QUEUED, State.WAITING],
        "cancel": [State.CANCELLED] * 3 + [State.QUEUED],
    }
    for overlap in states:
        add_up(h, overlap, start, h.clock.now())


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_thousand_runs_that_have_not_ended_do_not_stop_a_schedule_that_minds_them(memory: Harness, overlap: str) -> None:
    h = memory
    schedule(h, every="1s", missed="all", max_missed=2_000)
    sweep_all(h, after=(Limits().predecessors + 1) * SECOND)
    h(h.engine.set_schedule("often", overlap=overlap))
    assert sweep_all(h, after=SECOND) == 1
    assert runs(h)[-1].state is (State.WAITING if overlap == "queue" else State.QUEUED)


def test_runs_of_other_schedules_and_of_nobody_are_no_overlap(h: Harness) -> None:
    h.create()
    schedule(h, "other")
    schedule(h, overlap="skip")
    h.sweep(after=5 * MINUTE)
    assert (len(runs(h)), len(runs(h, "other"))) == (1, 1)


# Editing


@pytest.mark.parametrize(
    "fields",
    [
        {"job": "letter"},
        {"payload": {"to": "bob"}},
        {"options": Options(queue="slow")},
        {"missed": "all"},
        {"max_missed": 7},
        {"max_age": HOUR},
        {"overlap": "skip"},
        {"jitter": 1_000},
        {"expr": "5m"},
        {"enabled": True},
    ],
)
def test_an_edit_that_leaves_the_rule_leaves_the_next_instant(h: Harness, fields: dict[str, Any]) -> None:
    before = schedule(h)
    h.clock.advance(7 * MINUTE)  # the next instant is behind already
    after = h(h.engine.set_schedule("often", **fields))
    assert (after.next_at, after.anchor) == (before.next_at, before.anchor)
    assert {name: getattr(after, name) for name in fields} == fields
    assert sweep_all(h) == 1


@pytest.mark.parametrize(
    ("passed", "expr", "next_at"), [(3, "10m", 10), (3, "2m", 2), (8, "2m", 7), (8, "1m", 8), (8, "1h", 65), (7, "300s", 10)]
)
def test_another_interval_is_counted_from_the_last_instant_and_due_where_it_has_passed(
    h: Harness, passed: int, expr: str, next_at: int
) -> None:
    start = h.clock.now()
    schedule(h)
    sweep_all(h, after=passed * MINUTE)
    before = read(h)
    after = h(h.engine.set_schedule("often", expr=expr))
    assert after.next_at == start + next_at * MINUTE
    assert sweep_all(h) == (next_at <= passed)  # what it has made past is due once, however often it would have been due
    assert (read(h).skipped, read(h).fired) == (0, before.fired + (next_at <= passed))


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_two_programs_that_edit_the_same_interval_in_turn_both_fire(h: Harness, missed: str) -> None:
    for start in range(36):
        schedule(h.another(), every=("1h", "2h")[start % 2], by_code=True, missed=missed)
        sweep_all(h, after=30 * MINUTE)
        sweep_all(h, after=10 * MINUTE)
    assert 12 <= read(h).fired + read(h).skipped <= 24
    assert read(h).fired >= 6
    assert len(set(due_times(h))) == len(due_times(h)) == read(h).fired


OTHER_RULES: list[dict[str, Any]] = [
    {"expr": "*/20 * * * *"},
    {"zone": "Asia/Kolkata"},
    {"kind": "interval", "expr": "1h"},
    {"kind": "once", "expr": "2026-01-02T00:00:00Z"},
    {"expr": "*/20 * * * *", "missed": "skip", "overlap": "skip", "job": "letter", "payload": {"to": "bob"}},
]


@pytest.mark.parametrize("fields", OTHER_RULES, ids=["expr", "zone", "interval", "once", "words"])
@pytest.mark.parametrize(("missed", "fired"), [("skip", []), ("latest", [30]), ("all", [10, 20, 30])])
def test_what_is_overdue_when_the_rule_changes_is_settled_by_the_old_rule_and_its_words(
    h: Harness, fields: dict[str, Any], missed: str, fired: list[int]
) -> None:
    start = h.clock.now()
    schedule(h, cron="*/10 * * * *", missed=missed, payload={"to": "ann"})
    h.clock.advance(35 * MINUTE)
    after = h(h.engine.set_schedule("often", **fields))
    assert [(run.due_at, run.job, run.payload) for run in runs(h)] == [(start + at * MINUTE, "mail", '{"to":"ann"}') for at in fired]
    assert (after.fired, after.skipped, sum(skip.number for skip in skips(h))) == (len(fired), 3 - len(fired), 3 - len(fired))
    assert after.next_at is not None
    assert after.next_at > h.clock.now()  # another rule looks ahead, and not back
    assert {name: getattr(after, name) for name in fields} == fields
    assert sweep_all(h) == 0


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_what_is_overdue_when_the_rule_changes_meets_the_old_word_for_overlap(h: Harness, overlap: str) -> None:
    schedule(h, overlap=overlap)
    h.sweep(after=5 * MINUTE)
    h.clock.advance(5 * MINUTE)
    h(h.engine.by("ann", "edit", "schedule often").set_schedule("often", expr="1h", overlap="allow"))
    states = {"skip": [State.QUEUED], "queue": [State.QUEUED, State.WAITING], "cancel": [State.CANCELLED, State.QUEUED]}
    assert [run.state for run in runs(h)] == states[overlap]
    assert (read(h).fired + read(h).skipped, read(h).expr) == (2, "1h")
    assert [(act.actor, act.what) for act in h(h.engine.audit()).entries] == [("ann", "edit")]


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_what_is_overdue_when_a_schedule_is_switched_off_is_skipped_and_recorded(h: Harness, missed: str) -> None:
    start = h.clock.now()
    schedule(h, missed=missed)
    h.clock.advance(12 * MINUTE)
    off = h(h.engine.set_schedule("often", enabled=False))
    assert (off.next_at, off.fired, off.skipped) == (None, 0, 2)
    assert skips(h) == [Skipped(start + 5 * MINUTE, start + 10 * MINUTE, 2, "disabled", h.clock.now())]
    h.clock.advance(10 * MINUTE)  # nothing is due meanwhile
    assert h(h.engine.set_schedule("often", enabled=True)).next_at == start + 25 * MINUTE
    assert (sweep_all(h), read(h).skipped) == (0, 2)


def test_an_edit_that_counts_from_now_skips_what_is_overdue_and_records_it(h: Harness) -> None:
    start = h.clock.now()
    schedule(h, missed="all")
    h.clock.advance(12 * MINUTE)
    after = h(h.engine.set_schedule("often", expr="7m", from_now=True))
    assert (after.anchor, after.next_at, after.skipped) == (h.clock.now(), h.clock.now() + 7 * MINUTE, 2)
    assert skips(h) == [Skipped(start + 5 * MINUTE, start + 10 * MINUTE, 2, "edited", h.clock.now())]
    assert schedule(h, every="3m", missed="all", from_now=True).next_at == h.clock.now() + 3 * MINUTE
    h.clock.advance(4 * MINUTE)
    assert schedule(h, every="3m", missed="all", from_now=True, payload={"to": "bob"}).next_at == h.clock.now() - MINUTE  # the same rule
    assert (sweep_all(h), read(h).skipped) == (1, 2)


def test_an_edit_that_meets_an_edit_settles_what_is_overdue_once(h: Harness) -> None:
    start = h.clock.now()
    schedule(h)
    h.clock.advance(6 * MINUTE)
    slow = late(h, "advance_schedules", lambda: h(h.engine.set_schedule("often", expr="1h")))
    assert slow(slow.engine.set_schedule("often", expr="30m")).next_at == start + 35 * MINUTE
    assert (due_times(h), read(h).fired, read(h).skipped, read(h).rev) == ([start + 5 * MINUTE], 1, 0, 3)
    h.clock.advance(30 * MINUTE)
    slow = late(h, "edit_schedule", lambda: h(h.engine.sweep()))
    assert slow(slow.engine.set_schedule("often", enabled=False)).skipped == 0  # it was fired meanwhile
    assert due_times(h) == [start + 5 * MINUTE, start + 35 * MINUTE]


@pytest.mark.parametrize("kind", SHARED)
def test_S6_of_many_that_edit_a_rule_at_once_one_settles_what_is_overdue(kind: str, tmp_path: Any, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as editors:
        h = editors[0]
        start = h.clock.now()
        schedule(h, missed="all")
        h.clock.advance(16 * MINUTE)
        verbs = [lambda h, expr=expr: h(h.engine.set_schedule("often", expr=expr)) for expr in ("20m", "30m", "40m")]
        answers = at_once(editors, ["advance_schedules"], *verbs, lambda h: h(h.engine.fire_all()))
        assert not [answer for answer in answers if isinstance(answer, WindlassError)]
        assert due_times(h) == [start + at * MINUTE for at in (5, 10, 15)]
        assert (read(h).fired, read(h).skipped, read(h).rev) == (3, 0, 4)


def test_a_rule_whose_zone_is_not_known_here_can_be_edited_and_leaves_a_trace(h: Harness) -> None:
    made = schedule(h, cron="0 * * * *", zone="Asia/Tokyo")
    h.clock.advance(HOUR)
    with tz_database(Asia_Tokyo=None):
        after = h(h.engine.set_schedule("often", zone="UTC"))
    assert (after.skipped, [(skip.first_at, skip.number, skip.reason) for skip in skips(h)]) == (1, [(made.next_at, 1, "bad_input")])
    assert sweep_all(h, after=HOUR) == 1


EDITS = st.sampled_from(
    [
        {"kind": "interval", "expr": "5m"},
        {"kind": "interval", "expr": "7m"},
        {"kind": "interval", "expr": "1h"},
        {"kind": "interval", "expr": "60m"},
        {"kind": "cron", "expr": "*/10 * * * *"},
        {"kind": "cron", "expr": "30 2 * * *", "zone": "Europe/Paris"},
        {"kind": "once", "expr": "2026-01-01T01:30:00Z", "zone": "UTC"},
        {"zone": "Asia/Kolkata"},
        {"enabled": False},
        {"enabled": True},
        {"payload": {"to": "bob"}},
        {"missed": "all", "max_missed": 3},
        {"missed": "skip"},
        {"overlap": "skip"},
        {"overlap": "allow", "missed": "latest"},
        {"from_now": True, "kind": "interval", "expr": "11m"},
    ]
)
STEPS = st.lists(st.one_of(EDITS, st.sampled_from([MINUTE, 4 * MINUTE, 5 * MINUTE, 45 * MINUTE, 3 * HOUR]), st.none()), max_size=20)
"""Edits; how much time passes; None: a look."""


def due_of(seen: Schedule, now: int) -> set[int]:
    """What is due of a schedule and has had no look yet."""
    if seen.next_at is None:
        return set()
    return set(cron.between(rule_of(seen), seen.next_at - 1, now, seen.anchor, 10_000)[0])


@long
@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_S6_however_edits_looks_and_time_take_turns_each_due_instant_becomes_one_run_or_one_skip(
    kind: str, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    with crowd(kind, tmp_path, request, 1) as (h,):
        start = h.clock.now()

        @settings(max_examples=150 if kind == "memory" else 25, deadline=None)
        @given(steps=STEPS)
        def all_add_up(steps: list[Any]) -> None:
            h.clock.ms, due = start, set[int]()
            schedule(h)
            for step in [*steps, 5 * MINUTE]:
                if isinstance(step, int):
                    h.clock.advance(step)
                elif step is None:
                    h(h.engine.fire())
                else:
                    h(h.another().engine.set_schedule("often", **step))
                due |= due_of(read(h), h.clock.now())
            sweep_all(h)
            seen, fired = read(h), [run.instant for run in runs(h)]
            assert len(set(fired)) == len(fired) == seen.fired
            left = due - set(fired)
            for skip in skips(h):
                covered = {at for at in left if skip.first_at <= at <= skip.last_at}
                assert (len(covered), min(covered), max(covered)) == (skip.number, skip.first_at, skip.last_at)
                left -= covered
            assert (left, seen.fired + seen.skipped) == (set(), len(due))
            h(h.engine.remove_schedule("often"))

        all_add_up()


@pytest.mark.parametrize(
    "words",
    [
        {"missed": "never"},
        {"overlap": "maybe"},
        {"max_missed": 0},
        {"max_missed": 10_001},
        {"max_age": 0},
        {"jitter": -1},
        {"enabled": "no"},
        {"enabled": 1},
        {"enabled": None},
        {"zone": ["UTC"]},
        {"payload": ["a"]},
        {"payload": {"a": object()}},
        {"options": Options(max_attempts=0)},
        {"job": ""},
        {"key": "x" * 1_000},
    ],
)
def test_words_that_mean_nothing_are_refused_and_nothing_is_stored(memory: Harness, words: dict[str, Any]) -> None:
    with unchanged(memory), pytest.raises(WindlassError) as refused:
        schedule(memory, **words)
    assert refused.value.status in (400, 413, 422)
    schedule(memory, "there")
    if "key" not in words:
        with unchanged(memory), pytest.raises(WindlassError):
            memory(memory.engine.set_schedule("there", **words))


def test_what_is_no_word_of_a_schedule_cannot_be_set(memory: Harness) -> None:
    schedule(memory)
    for fields in ({}, {"fired": 0}, {"next_at": 1}, {"id": 7}, {"said": None}):
        with unchanged(memory), pytest.raises(BadInput, match="Cannot modify"):
            memory(memory.engine.set_schedule("often", **fields))


def test_what_a_person_has_edited_stands_until_code_says_something_else(h: Harness) -> None:
    said: dict[str, Any] = {"every": "5m", "payload": {"to": "ann"}, "by_code": True}
    schedule(h, **said)
    edited = h(h.engine.set_schedule("often", expr="1h", enabled=False))
    with unchanged(h):
        assert schedule(h, **said) == edited
    newer = schedule(h, **said | {"payload": {"to": "bob"}})
    assert (newer.expr, newer.enabled, newer.payload) == ("5m", True, {"to": "bob"})
    assert newer.next_at == h.clock.now() + 5 * MINUTE


def test_a_person_who_stores_the_same_key_edits_what_code_has_said(h: Harness) -> None:
    said: dict[str, Any] = {"every": "5m", "by_code": True}
    schedule(h, **said)
    edited = schedule(h, every="1h")
    assert schedule(h, **said) == edited


def test_code_that_says_the_same_again_changes_nothing(h: Harness) -> None:
    first = schedule(h, by_code=True)
    h.sweep(after=7 * MINUTE)
    with unchanged(h):
        again = schedule(h.another(), by_code=True)
    assert (again.id, again.rev, again.next_at) == (first.id, first.rev, (first.next_at or 0) + 5 * MINUTE)


def test_code_takes_over_what_a_person_has_made_under_its_key(h: Harness) -> None:
    schedule(h, every="1h")
    assert schedule(h, by_code=True).expr == "5m"


def test_removing_forgets_the_schedule_and_keeps_its_runs(h: Harness) -> None:
    first = schedule(h)
    sweep_all(h, after=HOUR)
    (run,) = runs(h)
    h(h.engine.remove_schedule("often"))
    for verb in (h.engine.get_schedule, h.engine.remove_schedule, h.engine.skips, h.engine.trigger, h.engine.preview):
        with unchanged(h), pytest.raises(NotFound):
            h(verb("often"))
    assert h.get(run.id) == run
    assert sweep_all(h, after=HOUR) == 0
    again = schedule(h, overlap="skip")
    assert (again.id > first.id, again.fired, skips(h)) == (True, 0, [])
    assert sweep_all(h, after=5 * MINUTE) == 1  # the run of the one before is not its own


def test_schedules_are_listed_by_key_in_pages(h: Harness) -> None:
    for key in ("c", "a", "d", "b"):
        schedule(h, key)
    assert [found.key for found in h(h.engine.schedules(count=3))] == ["a", "b", "c"]
    assert [found.key for found in h(h.engine.schedules(after="c"))] == ["d"]


# What a run of a schedule is


def test_triggering_makes_a_run_beside_the_instants(h: Harness) -> None:
    schedule(h, payload={"to": "ann"}, options=Options(queue="slow"), enabled=False)
    before = read(h)
    run = h.get(h(h.engine.trigger("often")).id)
    assert (run.payload, run.queue, run.state, run.due_at) == ('{"to":"ann"}', "slow", State.QUEUED, h.clock.now())
    assert h(h.engine.trigger("often")).id != run.id
    assert read(h) == before


def test_options_of_a_schedule_count_more_than_those_of_its_job(h: Harness) -> None:
    h.define(queue="letters", max_attempts=7, priority=1)
    schedule(h, options=Options(queue="slow", priority=5))
    h.sweep(after=5 * MINUTE)
    (run,) = runs(h)
    assert (run.queue, run.max_attempts, run.priority_key) == ("slow", 7, -5)


def test_the_payload_of_a_schedule_is_laid_over_the_template(h: Harness) -> None:
    h.define(payload={"from": "shop", "copies": 1})
    schedule(h, payload={"copies": 2, "to": None})
    h.sweep(after=5 * MINUTE)
    assert payload.decode(runs(h)[0].payload) == {"from": "shop", "copies": 2, "to": None}


def test_a_job_that_nobody_has_defined_waits_for_who_can_do_it(h: Harness) -> None:
    schedule(h, job="later")
    h.sweep(after=5 * MINUTE)
    (run,) = runs(h)
    assert run.state is State.QUEUED
    assert h.claim(jobs=("mail",)) == []
    h.define("later")
    assert [taken.id for taken in h.claim(jobs=("later",))] == [run.id]


def test_jitter_is_bounded_spread_and_the_same_in_every_process() -> None:
    late_by = []
    for _ in range(2):
        h = in_memory()
        start = h.clock.now()
        schedule(h, every="1h", jitter=10 * MINUTE, missed="all")
        sweep_all(h, after=50 * HOUR)
        assert read(h).last_at == start + 50 * HOUR
        late_by.append([run.due_at - start - HOUR * tick for tick, run in enumerate(runs(h), 1)])
        run_sync(h.store.close())
    assert late_by[0] == late_by[1]
    assert len(set(late_by[0])) > 40
    assert all(0 <= ms <= 10 * MINUTE for ms in late_by[0])
    assert max(late_by[0]) > 8 * MINUTE


def test_a_run_with_jitter_is_stored_at_its_instant_and_starts_later(h: Harness) -> None:
    made = schedule(h, jitter=4 * MINUTE)
    h.clock.advance(5 * MINUTE)
    h(h.engine.fire())
    (run,) = runs(h)
    assert made.next_at is not None
    assert (run.created_at, run.state) == (made.next_at, State.SCHEDULED)
    h.sweep(after=run.due_at - h.clock.now() - 1)
    assert h.claim() == []
    h.sweep(after=1)
    assert [taken.id for taken in h.claim()] == [run.id]


def test_a_run_is_for_the_same_instant_whatever_moves_its_due_time(h: Harness) -> None:
    h.define(backoff=(MINUTE,), max_attempts=3)
    instant = schedule(h, jitter=4 * MINUTE).next_at
    h.clock.advance(5 * MINUTE)
    h(h.engine.fire())
    (run,) = runs(h)
    due_at = []

    def moved() -> None:
        seen = h.get(run.id)
        assert (seen.instant, h(h.engine.status(run.id)).scheduled_for) == (instant, instant)
        due_at.append(seen.due_at)
        h.sweep(after=max(0, seen.due_at - h.clock.now()))

    moved()
    h(h.engine.patch(run.id, due_at=h.clock.now() + MINUTE))
    moved()
    h.report(taken := h.claimed(), Snooze(token=taken.token, delay=2 * MINUTE))
    moved()
    h.fail(h.started())
    moved()
    h.claimed(lease=SECOND)
    h.sweep(after=SECOND)  # it lapses
    moved()
    assert len({instant, *due_at}) == 6
    h.succeed(h.started())
    assert h.get(run.id).instant == instant


def test_a_rerun_is_for_the_instant_of_the_run_that_it_repeats(h: Harness) -> None:
    instant = schedule(h, overlap="skip").next_at
    h.sweep(after=5 * MINUTE)
    h.succeed(h.started())
    h.clock.advance(2 * MINUTE)
    again = h.get(h(h.engine.rerun(runs(h)[0].id)).id)
    assert (again.instant, again.scheduled_for, again.due_at, again.schedule) == (instant, instant, h.clock.now(), None)
    h.sweep(after=3 * MINUTE)
    assert len(runs(h)) == 2  # a rerun is no run by the clock, and no overlap


def test_a_run_that_no_schedule_has_made_has_no_instant(h: Harness) -> None:
    schedule(h)
    made = [h.create(due_at=h.clock.now() + MINUTE), h(h.engine.trigger("often")).id]
    assert [h.get(run).instant for run in made] == [None, None]
    assert [h(h.engine.status(run)).scheduled_for - h.clock.now() for run in made] == [MINUTE, 0]


# Looking ahead


def test_a_preview_shows_what_then_happens(h: Harness) -> None:
    h.clock.ms = 1_774_656_000_000  # 2026-03-28 in UTC
    schedule(h, cron="30 2 * * *", zone="Europe/Paris", missed="all")
    with unchanged(h):
        coming = h(h.engine.preview("often", count=4))
    assert [(found.local, found.clock_changes) for found in coming] == [
        ("2026-03-28T02:30:00+01:00", False),
        ("2026-03-29T03:00:00+02:00", True),
        ("2026-03-30T02:30:00+02:00", False),
        ("2026-03-31T02:30:00+02:00", False),
    ]
    sweep_all(h, after=4 * DAY)
    assert due_times(h) == [found.at for found in coming]
    assert h(h.engine.preview("often", start=coming[1].at, count=1))[0].at == coming[2].at


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_an_outage_shows_what_a_downtime_does(h: Harness, missed: str) -> None:
    schedule(h, missed=missed)
    start = h.clock.now()
    with unchanged(h):
        shown = h(h.engine.outage("often", start, start + HOUR + MINUTE))
    h.clock.advance(HOUR + MINUTE)
    h(h.engine.fire())
    assert due_times(h) == ([] if shown.due_at is None else [shown.due_at])
    assert [SkippedInstants(skip.first_at, skip.last_at, skip.number, skip.reason) for skip in skips(h)] == list(shown.skips)
    assert read(h).next_at == shown.next_at


# A clock that is set


JUMPS = [HOUR, -HOUR, -2 * HOUR, DAY, -DAY]
KINDS_OF_RULES: dict[str, dict[str, Any]] = {
    "latest": {"every": "1m"},
    "skip": {"every": "1m", "missed": "skip"},
    "all": {"every": "1m", "missed": "all", "max_missed": 5},
    "daily": {"cron": "0 3 * * *"},
    "busy": {"every": "1m", "overlap": "skip", "missed": "all", "max_missed": 5},
}
AT_ONCE = {"latest": 1, "skip": 1, "all": 5, "daily": 1, "busy": 1}
"""How many runs a sweep after a jump may make."""


def watch(h: Harness, minutes: int) -> None:
    """Sweep twice a minute for a while; nothing but the first sweep may have more than one instant to fire."""
    for step in range(2 * minutes):
        before = {key: read(h, key).fired for key in KINDS_OF_RULES}
        h.sweep(after=30 * SECOND)
        for key, max_missed in AT_ONCE.items():
            assert read(h, key).fired - before[key] <= (max_missed if step == 0 else 1), f"a storm of {key}"


@pytest.mark.parametrize("jump", JUMPS)
def test_T2_a_clock_that_jumps_makes_no_storm_no_double_and_loses_nothing(h: Harness, jump: int) -> None:
    start = h.clock.now()
    for key, words in KINDS_OF_RULES.items():
        schedule(h, key, **words)
    watch(h, 3)
    h.clock.jump(jump)
    watch(h, 3)
    furthest = max(start + 3 * MINUTE, h.clock.now())
    for key in KINDS_OF_RULES:
        add_up(h, key, start, furthest)
    h.clock.jump(-jump)
    watch(h, 3)
    for key in KINDS_OF_RULES:
        add_up(h, key, start, max(furthest, h.clock.now()))
    h.clock.ms = furthest + 6 * MINUTE  # when the time comes that it has been before, each goes on with its next instant
    watch(h, 2)
    for key in KINDS_OF_RULES:
        add_up(h, key, start, h.clock.now())


def test_T2_a_clock_that_jumps_by_ten_years_and_back_makes_no_storm_and_no_double(h: Harness) -> None:
    start = h.clock.now()
    for key, words in KINDS_OF_RULES.items():
        schedule(h, key, **words)
    h.clock.jump(3_653 * DAY)
    watch(h, 1)
    until = h.clock.now()
    for key in KINDS_OF_RULES:
        seen = read(h, key)
        assert seen.fired + seen.skipped == cron.between(rule_of(seen), start, until, seen.anchor, 1)[1]
        assert len(set(due_times(h, key))) == len(due_times(h, key)) == seen.fired <= AT_ONCE[key] + 1
    h.clock.jump(-3_653 * DAY)
    with unchanged(h):
        assert h(h.engine.fire_all()) == 0


@pytest.mark.parametrize("jump", [-2 * HOUR, DAY, 3_653 * DAY])
def test_T2_no_lease_ends_because_the_clock_jumps(h: Harness, jump: int) -> None:
    h.create()
    run, seen = h.started(), Watch(h.clock)
    for _ in range(10):
        h.clock.advance(SECOND)
        h(h.engine.sweep(seen))
    h.clock.jump(jump)
    for _ in range(10):
        h.clock.advance(SECOND)
        assert h(h.engine.sweep(seen)).lapsed == 0
        assert h(h.engine.beat([Held(run.seq, str(run.token))], lease=LEASE)) == ["ok"]
    h.succeed(run)


class Wrong(SystemClock):
    """The clock of a machine that is years off."""

    def __init__(self, off: int) -> None:
        super().__init__()
        self.off = off

    def now(self) -> int:
        return super().now() + (self.off if self._offset is None else 0)


@pytest.mark.parametrize("off", [-3_650 * DAY, 3_650 * DAY])
def test_T1_a_worker_whose_clock_is_years_off_goes_by_the_server(emptied_postgres: str, off: int) -> None:
    """With SQLite all processes are on one machine, and have its clock."""
    right, wrong = SystemClock(), Wrong(off)
    assert abs(wrong.now() - right.now()) > 3_600 * DAY
    stores = [BlockingPostgres(emptied_postgres, clock) for clock in (right, wrong)]
    here, there = (Engine(store, clock) for store, clock in zip(stores, (right, wrong), strict=True))
    run_sync(here.define("mail"))
    run_sync(here.create([NewRun("mail"), NewRun("mail")]))
    run_sync(here.schedule("daily", "mail", every="1d"))
    (ours,), (theirs,) = (run_sync(engine.claim(WorkerInfo(name), lease=HOUR)) for name, engine in (("a", here), ("b", there)))
    for engine in (there, here):
        swept = run_sync(engine.sweep())
        assert (swept.lapsed, swept.fired, swept.pruned) == (0, 0, 0)
    for engine, run in ((here, ours), (there, theirs)):
        assert abs((run.lease_until or 0) - right.now() - HOUR) < 5 * MINUTE
        run_sync(engine.report(run.id, Succeed(token=run.token)))
    for store in stores:
        run_sync(store.close())


@settings(max_examples=60, deadline=None)
@given(jumps=st.lists(st.sampled_from([*JUMPS, 0, 0, 59 * SECOND, -59 * SECOND]), min_size=1, max_size=6), words=WORDS)
def test_S6_T2_however_the_clock_jumps_each_instant_is_judged_once(jumps: list[int], words: dict[str, Any]) -> None:
    h = in_memory()
    start = furthest = h.clock.now()
    schedule(h, every="10m", **words)
    for jump in jumps:
        h.clock.jump(jump)
        for _ in range(3):
            sweep_all(h, after=4 * MINUTE)
            furthest = max(furthest, h.clock.now())
    seen = due_times(h)
    assert all(later - earlier >= 10 * MINUTE for earlier, later in pairwise(seen))
    add_up(h, "often", start, furthest)
    run_sync(h.store.close())


@pytest.mark.parametrize("edit", [{"enabled": False}, {"expr": "*/2 * * * *"}])
def test_an_instant_that_comes_again_because_the_clock_was_set_back_is_not_fired_or_counted_again(h: Harness, edit: dict[str, Any]) -> None:
    start = h.clock.now()
    schedule(h, cron="* * * * *")
    for _ in range(4):
        h.sweep(after=MINUTE)
    last = runs(h)[-1]
    h.clock.jump(-4 * MINUTE)
    h(h.engine.set_schedule("often", **edit))
    h(h.engine.set_schedule("often", enabled=True, expr="* * * * *"))
    assert read(h).next_at == start + MINUTE
    for _ in range(4):
        h.sweep(after=MINUTE)
    assert due_times(h) == [start + MINUTE * tick for tick in range(1, 5)]
    assert (read(h).fired, read(h).last_run, read(h).skipped) == (4, last.id, 0)
    h.sweep(after=MINUTE)
    assert (read(h).fired, len(runs(h))) == (5, 5)
