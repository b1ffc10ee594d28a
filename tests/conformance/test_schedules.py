"""K and G as far as they speak of schedules. A dispatch call is `fire` or a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.conformance import SHARED, address, at_once, crowd, late, unchanged
from tests.harness import Harness
from windlass import payload
from windlass.errors import BadInput, DuplicateKey, NotFound, WindlassError
from windlass.faults import FAULTS, VARIABLE
from windlass.model import Run, State

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """Whatever a test arms, the next one begins without."""
    yield
    FAULTS.arm("")


def instant(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def runs_of(h: Harness, key: str) -> list[Run]:
    """The runs that a schedule has made, oldest instant first."""
    identity = h(h.engine.get_schedule(key)).id
    found = [run for run in h(h.engine.runs(count=1_000)).runs if run.schedule == identity]
    return sorted(found, key=lambda run: run.due_at)


def test_K7_a_schedule_that_is_due_makes_one_run_for_its_instant_and_moves_on(h: Harness) -> None:
    schedule = h(h.engine.schedule("nightly", "mail", cron="0 3 * * *"))
    due = instant("2026-01-01T03:00Z")
    assert schedule.next_at == due
    h.clock.ms = due - 1
    assert h(h.engine.fire()) == 0
    h.clock.ms = due + 20
    assert h(h.engine.fire()) == 1
    (run,) = runs_of(h, "nightly")
    assert (run.job, run.schedule, run.due_at, run.created_at, run.state) == ("mail", schedule.id, due, due + 20, State.QUEUED)
    assert h(h.engine.status(run.id)).scheduled_for == due
    after = h(h.engine.get_schedule("nightly"))
    assert (after.next_at, after.last_at, after.last_run, after.fired, after.skipped) == (due + DAY, due, run.id, 1, 0)
    with unchanged(h):
        assert h(h.engine.fire()) == 0


def test_K7_scheduled_for_is_the_instant_also_of_a_run_that_starts_later(h: Harness) -> None:
    schedule = h(h.engine.schedule("nightly", "mail", cron="0 3 * * *", jitter=HOUR))
    h.clock.ms = instant("2026-01-01T03:00Z")
    h(h.engine.fire())
    (run,) = runs_of(h, "nightly")
    assert (run.state, run.due_at > h.clock.now()) == (State.SCHEDULED, True)
    assert h(h.engine.status(run.id)).scheduled_for == h(h.engine.get_schedule("nightly")).last_at == schedule.next_at == h.clock.now()


def test_K8_a_disabled_schedule_makes_no_run_and_looks_ahead_from_now_when_it_is_enabled_again(h: Harness) -> None:
    start = h.clock.now()
    h(h.engine.schedule("hourly", "mail", every="1h"))
    assert h(h.engine.set_schedule("hourly", enabled=False)).next_at is None
    h.clock.advance(5 * HOUR + MINUTE)
    with unchanged(h):
        assert h(h.engine.fire()) == 0
    assert h(h.engine.set_schedule("hourly", enabled=True)).next_at == start + 6 * HOUR
    assert h(h.engine.fire_all()) == 0
    h.clock.advance(HOUR)
    assert h(h.engine.fire_all()) == 1
    assert [run.due_at for run in runs_of(h, "hourly")] == [start + 6 * HOUR]
    assert h(h.engine.get_schedule("hourly")).skipped == 0


def test_K8_a_schedule_that_was_never_enabled_makes_no_run(h: Harness) -> None:
    assert h(h.engine.schedule("hourly", "mail", every="1h", enabled=False)).next_at is None
    h.sweep(after=DAY)
    assert runs_of(h, "hourly") == []


def test_K9_a_schedule_three_ticks_behind_makes_one_run_at_each_call_oldest_first(h: Harness) -> None:
    start = h.clock.now()
    h(h.engine.schedule("often", "mail", every="5m", missed="all"))
    h(h.engine.schedule("other", "mail", every="5m", missed="all"))
    h.clock.advance(15 * MINUTE + 7)
    made: list[int] = []
    for tick in (1, 2, 3):
        assert h(h.engine.fire()) == 2
        (new,) = [run for run in runs_of(h, "often") if run.due_at not in made]
        assert (new.due_at, new.created_at) == (start + tick * 5 * MINUTE, h.clock.now())
        made.append(new.due_at)
    with unchanged(h):
        assert h(h.engine.fire()) == 0
    assert h(h.engine.get_schedule("often")).next_at == start + 20 * MINUTE


def test_K10_a_job_may_have_several_schedules_and_each_makes_its_own_runs(h: Harness) -> None:
    h(h.engine.schedule("often", "mail", every="10m", payload={"to": "ann"}))
    h(h.engine.schedule("hourly", "mail", cron="@hourly", payload={"to": "bob"}))
    for _ in range(6):
        h.sweep(after=10 * MINUTE)
    assert (len(runs_of(h, "often")), len(runs_of(h, "hourly"))) == (6, 1)
    assert {run.payload for run in runs_of(h, "often")} == {'{"to":"ann"}'}
    assert {run.payload for run in runs_of(h, "hourly")} == {'{"to":"bob"}'}


def test_K11_once_interval_and_cron_are_accepted_and_once_fires_once(h: Harness) -> None:
    start = h.clock.now()
    once = h(h.engine.schedule("once", "mail", at="2026-01-01T00:30:00Z"))
    interval = h(h.engine.schedule("interval", "mail", every="45m"))
    cron = h(h.engine.schedule("cron", "mail", cron="15 * * * *"))
    assert (once.kind, interval.kind, cron.kind) == ("once", "interval", "cron")
    for _ in range(24):
        h.sweep(after=5 * MINUTE)
    assert [run.due_at - start for run in runs_of(h, "once")] == [30 * MINUTE]
    assert [run.due_at - start for run in runs_of(h, "interval")] == [45 * MINUTE, 90 * MINUTE]
    assert [run.due_at - start for run in runs_of(h, "cron")] == [15 * MINUTE, 75 * MINUTE]
    after = h(h.engine.get_schedule("once"))
    assert (after.next_at, after.enabled, after.fired) == (None, True, 1)


def test_K12_cron_is_read_in_utc_unless_a_zone_is_named(h: Harness) -> None:
    h.clock.ms = instant("2026-06-01T01:00Z")
    assert h(h.engine.schedule("plain", "mail", cron="0 5 * * *")).next_at == instant("2026-06-01T05:00Z")
    tokyo = h(h.engine.schedule("tokyo", "mail", cron="0 5 * * *", zone="Asia/Tokyo"))
    assert tokyo.next_at == instant("2026-06-01T20:00Z")
    h.sweep(after=19 * HOUR)
    assert [run.due_at for run in runs_of(h, "tokyo")] == [instant("2026-06-01T20:00Z")]


def test_K31_schedules_fire_in_the_order_of_their_instants_and_then_of_their_creation(h: Harness) -> None:
    for key, every in (("c", "20m"), ("a", "10m"), ("b", "10m")):
        h(h.engine.schedule(key, "mail", every=every))
    h.clock.advance(20 * MINUTE)
    order = []
    before: dict[str, int] = dict.fromkeys("abc", 0)
    for _ in range(3):
        assert h(h.engine.fire(1)) == 1
        now = {key: h(h.engine.get_schedule(key)).fired for key in "abc"}
        order += [key for key in "abc" if now[key] > before[key]]
        before = now
    assert order == ["a", "b", "c"]


def test_K32_the_same_key_again_is_the_same_schedule_with_its_fields_updated(h: Harness) -> None:
    first = h(h.engine.schedule("report", "mail", every="1h", payload={"to": "ann"}))
    h.clock.advance(MINUTE)
    again = h(h.engine.schedule("report", "letter", cron="0 3 * * *", zone="Europe/Paris", payload={"to": "bob"}, overlap="skip"))
    assert (again.id, again.key, again.created_at, again.rev) == (first.id, "report", first.created_at, first.rev + 1)
    assert (again.job, again.kind, again.expr, again.zone) == ("letter", "cron", "0 3 * * *", "Europe/Paris")
    assert (again.payload, again.overlap, again.next_at) == ({"to": "bob"}, "skip", instant("2026-01-01T02:00Z"))
    assert [schedule.key for schedule in h(h.engine.schedules())] == ["report"]


@pytest.mark.parametrize("kind", SHARED)
def test_K32_two_that_make_the_same_key_at_once_make_one_schedule(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 2) as both:
        made = at_once(both, ["add_schedule"], *[lambda h: h(h.engine.schedule("report", "mail", every="1h"))] * 2)
        assert [schedule.id for schedule in made if not isinstance(schedule, WindlassError)] == [1, 1]
        assert len(both[0](both[0].engine.schedules())) == 1


def test_K32_a_creation_that_must_be_new_refuses_a_key_that_is_taken(h: Harness) -> None:
    made = h(h.engine.schedule("report", "mail", every="1h", new=True))
    with unchanged(h), pytest.raises(DuplicateKey, match="There is a schedule 'report' already") as refused:
        h(h.engine.schedule("report", "letter", cron="0 3 * * *", new=True))
    assert (refused.value.status, "another key" in refused.value.hint) == (409, True)
    h(h.engine.remove_schedule("report"))
    assert h(h.engine.schedule("report", "mail", every="1h", new=True)).id > made.id


@pytest.mark.parametrize("kind", SHARED)
def test_K32_of_two_creations_of_a_new_key_at_once_one_is_refused(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 2) as both:
        made = at_once(
            both,
            ["add_schedule"],
            lambda h: h(h.engine.schedule("report", "mail", every="1h", new=True)),
            lambda h: h(h.engine.schedule("report", "letter", every="2h", new=True)),
        )
        (winner,) = [schedule for schedule in made if not isinstance(schedule, WindlassError)]
        assert [error.code for error in made if isinstance(error, WindlassError)] == ["duplicate_key"]
        assert both[0](both[0].engine.schedules()) == [winner]


def test_K33_another_payload_keeps_the_next_instant_and_a_key_nobody_uses_is_not_found(h: Harness) -> None:
    start = h.clock.now()
    h(h.engine.schedule("report", "mail", every="1h"))
    h.clock.advance(50 * MINUTE)
    assert h(h.engine.set_schedule("report", payload={"to": "bob"})).next_at == start + HOUR
    with unchanged(h), pytest.raises(NotFound, match="no schedule 'nobody'"):
        h(h.engine.get_schedule("nobody"))
    with unchanged(h), pytest.raises(NotFound, match="no schedule 'nobody'"):
        h(h.engine.set_schedule("nobody", payload={}))


@pytest.mark.parametrize(
    "rule",
    [
        {"cron": "61 * * * *"},
        {"cron": "* * * *"},
        {"cron": "0 0 31 4 *"},
        {"cron": "0 3 * * *", "zone": "Europe/Pariss"},
        {"every": "0s"},
        {"every": "soon"},
        {"at": "tomorrow"},
        {"cron": "0 3 * * *", "every": "1h"},
        {},
    ],
)
def test_K34_a_rule_or_a_zone_that_cannot_be_read_is_refused_and_nothing_is_stored(h: Harness, rule: dict[str, str]) -> None:
    with unchanged(h), pytest.raises(BadInput):
        h(h.engine.schedule("report", "mail", **rule))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        h(h.engine.get_schedule("report"))


def test_K35_one_periodic_call_drives_one_shots_retries_and_recurring_runs(h: Harness) -> None:
    h.define(backoff=(5 * MINUTE,), max_attempts=2)
    one_shot = h.create(due_at=h.clock.now() + 10 * MINUTE)
    retried = h.create()
    h.fail(h.started())
    h(h.engine.schedule("often", "mail", every="10m"))
    taken = []
    for _ in range(10):
        h.sweep(after=MINUTE)
        taken += [run.id for run in h.claim(10)]
    (recurring,) = runs_of(h, "often")
    assert taken[0] == retried
    assert sorted(taken[1:]) == sorted([one_shot, recurring.id])


POINTS = (
    "before_begin",
    "after_advance_schedules",
    "after_refuse_fire",
    "after_add_skips",
    "after_take_keys",
    "after_create",
    "before_commit",
)


@pytest.mark.parametrize("point", POINTS)
def test_K36_a_crash_between_advancing_a_schedule_and_making_its_run_leaves_neither(h: Harness, point: str) -> None:
    start = h.clock.now()
    h(h.engine.schedule("often", "mail", every="5m"))
    h(h.engine.fire())
    h.clock.advance(16 * MINUTE)  # one instant to fire and two to skip, so that every statement is there
    FAULTS.arm(f"fire.{point}=raise:full")
    with unchanged(h), pytest.raises(WindlassError, match="Injected"):
        h(h.engine.sweep())
    FAULTS.arm("")
    other = h.another()
    assert other(other.engine.sweep()).fired == 1
    assert [run.due_at for run in runs_of(h, "often")] == [start + 15 * MINUTE]
    after = h(h.engine.get_schedule("often"))
    assert (after.fired, after.skipped, after.next_at) == (1, 2, start + 20 * MINUTE)


@pytest.mark.parametrize("point", [*POINTS, "after_commit"])
def test_K36_a_fire_whose_outcome_is_unknown_is_found_out_at_the_next_look(h: Harness, point: str) -> None:
    start = h.clock.now()
    h(h.engine.schedule("often", "mail", every="5m"))
    h.clock.advance(16 * MINUTE)
    FAULTS.arm(f"fire.{point}=raise:unknown@1")
    h(h.engine.sweep())
    h(h.engine.sweep())
    assert [run.due_at for run in runs_of(h, "often")] == [start + 15 * MINUTE]
    after = h(h.engine.get_schedule("often"))
    assert (after.fired, after.skipped, after.last_run) == (1, 2, runs_of(h, "often")[0].id)


_CHILD = """
import sys
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite

kind, address, now = sys.argv[1:]
clock = ManualClock(int(now), seed=7)
store = BlockingPostgres(address, clock) if kind == "postgres" else BlockingSqlite(address, clock)
run_sync(Engine(store, clock).sweep())
"""


@pytest.mark.parametrize("point", ["after_advance_schedules", "after_create", "before_commit", "after_commit"])
@pytest.mark.parametrize("kind", SHARED)
def test_K36_a_process_killed_while_it_fires_loses_nothing(kind: str, point: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 1) as (h,):
        h(h.engine.schedule("often", "mail", every="5m"))
        h.clock.advance(5 * MINUTE)
        words = [sys.executable, "-c", _CHILD, kind, address(h.store), str(h.clock.now())]
        died = subprocess.run(words, env={**os.environ, VARIABLE: f"fire.{point}=kill"}, timeout=60, check=False)
        assert died.returncode == -signal.SIGKILL
        made = h(h.engine.sweep()).fired
        assert made == (0 if point == "after_commit" else 1)
        assert len(runs_of(h, "often")) == h(h.engine.get_schedule("often")).fired == 1


def test_K37_a_schedule_without_a_payload_or_options_uses_those_of_the_definition(h: Harness) -> None:
    h.define(payload={"from": "shop"}, max_attempts=7, queue="letters")
    h(h.engine.schedule("often", "mail", every="5m"))
    h.sweep(after=5 * MINUTE)
    (run,) = runs_of(h, "often")
    assert (payload.decode(run.payload), run.max_attempts, run.queue) == ({"from": "shop"}, 7, "letters")


def test_K37_a_definition_that_changed_elsewhere_counts_from_the_next_fire(h: Harness) -> None:
    h(h.engine.schedule("often", "mail", every="5m"))
    h.sweep(after=5 * MINUTE)
    h.another().define(payload={"from": "shop"}, max_attempts=7)
    h.sweep(after=5 * MINUTE)
    first, second = runs_of(h, "often")
    assert (first.payload, first.max_attempts) == ("{}", 5)
    assert (payload.decode(second.payload), second.max_attempts) == ({"from": "shop"}, 7)


def test_G6_changing_disabling_or_removing_a_schedule_leaves_the_runs_it_has_made(h: Harness) -> None:
    h(h.engine.schedule("often", "mail", every="5m", payload={"to": "ann"}))
    h.sweep(after=5 * MINUTE)
    h.sweep(after=5 * MINUTE)
    h.started()
    before = runs_of(h, "often")
    assert [run.state for run in before] == [State.RUNNING, State.QUEUED]
    h(h.engine.set_schedule("often", payload={"to": "bob"}, expr="1h", job="letter"))
    h(h.engine.set_schedule("often", enabled=False))
    assert runs_of(h, "often") == before
    h(h.engine.remove_schedule("often"))
    assert [h.get(run.id) for run in before] == before


def test_G23_another_zone_counts_for_later_instants_only(h: Harness) -> None:
    h.clock.ms = instant("2026-06-01T00:00Z")
    h(h.engine.schedule("morning", "mail", cron="0 8 * * *"))
    h.sweep(after=9 * HOUR)
    h(h.engine.set_schedule("morning", zone="America/New_York"))
    h.sweep(after=3 * HOUR + 1)
    h.sweep(after=DAY)
    wanted = ["2026-06-01T08:00Z", "2026-06-01T12:00Z", "2026-06-02T12:00Z"]
    assert [run.due_at for run in runs_of(h, "morning")] == [*map(instant, wanted)]


def test_G23_a_schedule_keeps_its_wall_time_when_the_clocks_are_changed(h: Harness) -> None:
    h.clock.ms = instant("2026-03-27T12:00Z")
    h(h.engine.schedule("night", "mail", cron="30 2 * * *", zone="Europe/Paris"))
    for _ in range(4):
        h.sweep(after=DAY)
    # On the 29th the clocks go from 02:00 to 03:00: half past two does not exist, and becomes the first instant after the gap.
    wanted = ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z", "2026-03-31T00:30Z"]
    assert [run.due_at for run in runs_of(h, "night")] == [*map(instant, wanted)]
    assert h(h.engine.get_schedule("night")).skipped == 0


def test_G24_an_unknown_zone_is_refused_and_the_nearest_named(h: Harness) -> None:
    with unchanged(h), pytest.raises(BadInput, match="Europe/Pariss") as refused:
        h(h.engine.schedule("night", "mail", cron="30 2 * * *", zone="Europe/Pariss"))
    assert "Europe/Paris?" in str(refused.value.hint)
    h(h.engine.schedule("night", "mail", cron="30 2 * * *"))
    with unchanged(h), pytest.raises(BadInput, match="Mars/Base"):
        h(h.engine.set_schedule("night", zone="Mars/Base"))


def test_G35_a_run_has_a_snapshot_of_the_schedules_payload_over_the_jobs_template(h: Harness) -> None:
    h.define(payload={"from": "shop", "copies": 1})
    h(h.engine.schedule("often", "mail", every="5m", payload={"copies": 2}))
    h.sweep(after=5 * MINUTE)
    h.define(payload={"from": "branch", "copies": 1})
    h(h.engine.set_schedule("often", payload={"copies": 3, "to": "ann"}))
    h.sweep(after=5 * MINUTE)
    first, second = (payload.decode(run.payload) for run in runs_of(h, "often"))
    assert first == {"from": "shop", "copies": 2}
    assert second == {"from": "branch", "copies": 3, "to": "ann"}


def test_G35_an_edit_that_comes_while_it_fires_is_in_the_run_or_after_it(h: Harness) -> None:
    h(h.engine.schedule("often", "mail", every="5m", payload={"copies": 1}))
    h.clock.advance(5 * MINUTE)
    slow = late(h, "advance_schedules", lambda: h(h.engine.set_schedule("often", payload={"copies": 2})))
    slow(slow.engine.sweep())
    (run,) = runs_of(h, "often")
    assert payload.decode(run.payload) == {"copies": 2}
    assert h(h.engine.get_schedule("often")).payload == {"copies": 2}
