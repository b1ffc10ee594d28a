"""K: Kumofire Jobs in its own words: schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.dialects.kumofire_door import StoreDoor
from windlass.clock import ManualClock
from windlass.dialects.kumofire import JobRunStatus, JobSchedule
from windlass.errors import BadInput, DuplicateKey, StoreBusy
from windlass.faults import FAULTS
from windlass.model import Options

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)  # when the clock of the tests begins


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.arm("")


def scheduled(door: StoreDoor, expr: Any = "*/5 * * * *", kind: str = "cron", **fields: Any) -> JobSchedule:
    return door(door.jobs.create_schedule("email", schedule_type=kind, schedule_expr=expr, **fields))


def read(door: StoreDoor, schedule: JobSchedule) -> JobSchedule:
    stored = door(door.jobs.get_schedule(schedule.id))
    assert stored is not None
    return stored


def minute(number: int) -> datetime:
    return MIDNIGHT.replace(hour=number // 60, minute=number % 60)


def test_K7_a_due_schedule_creates_one_run_and_advances(kumofire: StoreDoor) -> None:
    schedule = scheduled(kumofire, payload={"to": "ann"})
    assert (schedule.next_run_at, schedule.last_scheduled_at, schedule.enabled) == (minute(5), None, True)
    kumofire.clock.advance(5 * MINUTE + 17)
    assert kumofire.dispatch() == 1
    (run_id,) = kumofire.sent()
    run = kumofire.run(run_id)
    assert (run.job_id, run.job_schedule_id, run.scheduled_for) == ("email", schedule.id, minute(5))
    assert (run.input_payload, run.created_at) == ({"to": "ann"}, kumofire.storage.now())
    after = read(kumofire, schedule)
    assert (after.next_run_at, after.last_scheduled_at) == (minute(10), minute(5))
    assert (kumofire.dispatch(), kumofire.sent()) == (0, [])
    assert kumofire.consume(run_id) == "succeeded"
    assert kumofire.calls[0].job.job_schedule_id == schedule.id


def test_K7_a_run_that_any_other_sweep_has_created_is_sent_too(kumofire: StoreDoor) -> None:
    scheduled(kumofire)
    kumofire.clock.advance(5 * MINUTE)
    kumofire.do(kumofire.engine.sweep())
    assert (kumofire.dispatch(), len(kumofire.sent())) == (1, 1)


def test_K7_a_run_is_scheduled_for_its_instant_and_after_a_failure_for_its_next_try(kumofire: StoreDoor) -> None:
    kumofire.create()  # the job is defined
    kumofire.do(kumofire.engine.schedule("late", "email", every="5m", jitter=3 * MINUTE, options=Options(queue="kumofire")))
    kumofire.clock.advance(5 * MINUTE)
    kumofire.dispatch()
    (run,) = [run for run in kumofire.do(kumofire.engine.runs()).runs if run.instant is not None]
    assert run.due_at > kumofire.clock.now()
    assert kumofire.status(run.id).scheduled_for == minute(5)
    kumofire.fails = ConnectionError("no answer")
    kumofire.later(3 * MINUTE)
    assert kumofire.consume(run.id) == "retried"
    assert kumofire.status(run.id).scheduled_for == kumofire.in_ms(SECOND)


def test_K8_a_disabled_schedule_creates_no_run_and_continues_from_now_when_enabled(kumofire: StoreDoor) -> None:
    schedule = scheduled(kumofire)
    disabled = kumofire(kumofire.jobs.disable_schedule(schedule.id))
    assert disabled is not None
    assert (disabled.enabled, disabled.next_run_at) == (False, None)
    assert kumofire.later(12 * MINUTE) == 0
    enabled = kumofire(kumofire.jobs.update_schedule(schedule.id, enabled=True))
    assert enabled is not None
    assert (enabled.enabled, enabled.next_run_at) == (True, minute(15))
    assert kumofire.dispatch() == 0


def test_K8_a_schedule_can_be_created_disabled(kumofire: StoreDoor) -> None:
    schedule = scheduled(kumofire, enabled=False, schedule_key="later")
    assert (schedule.next_run_at, kumofire.later(HOUR)) == (None, 0)
    assert kumofire(kumofire.jobs.disable_schedule_by_key("later")) == read(kumofire, schedule)


def test_K9_a_schedule_that_is_behind_creates_one_run_per_call_the_oldest_first(kumofire: StoreDoor) -> None:
    schedule = scheduled(kumofire)
    kumofire.clock.advance(15 * MINUTE)
    for number in (5, 10, 15):
        assert kumofire.dispatch() == 1
        run = kumofire.run(kumofire.sent()[0])
        assert (run.scheduled_for, run.created_at) == (minute(number), kumofire.storage.now())
    assert (read(kumofire, schedule).next_run_at, kumofire.dispatch()) == (minute(20), 0)


def test_K10_a_job_may_have_several_schedules(kumofire: StoreDoor) -> None:
    one, other = scheduled(kumofire), scheduled(kumofire, "2m", "interval")
    assert kumofire.later(5 * MINUTE) == 2
    runs = [kumofire.run(run_id) for run_id in kumofire.sent()]
    assert {run.job_schedule_id for run in runs} == {one.id, other.id}
    assert {run.job_id for run in runs} == {"email"}


@pytest.mark.parametrize("expr", ["2026-01-01T00:05:00Z", datetime(2026, 1, 1, 0, 5, tzinfo=UTC), "2026-01-01T09:05:00"])
def test_K11_once_fires_exactly_one_run(kumofire: StoreDoor, expr: Any) -> None:
    schedule = scheduled(kumofire, expr, "once", timezone="Asia/Tokyo" if expr == "2026-01-01T09:05:00" else None)
    assert schedule.next_run_at == minute(5)
    assert [kumofire.later(5 * MINUTE - 1), kumofire.later(1)] == [0, 1]
    assert [kumofire.consume(run_id) for run_id in kumofire.sent()] == ["succeeded"]
    assert kumofire.later(HOUR) == 0
    after = read(kumofire, schedule)
    assert (after.next_run_at, after.last_scheduled_at) == (None, minute(5))


def test_K11_an_instant_that_has_passed_is_refused(kumofire: StoreDoor) -> None:
    with pytest.raises(BadInput, match="has passed"):
        scheduled(kumofire, "2025-01-01T00:00:00Z", "once", schedule_key="late")
    assert kumofire(kumofire.jobs.get_schedule_by_key("late")) is None


@pytest.mark.parametrize("expr", [300, "300", "5m"], ids=["a number", "digits", "a unit"])
def test_K11_an_interval_is_seconds_or_has_a_unit(kumofire: StoreDoor, expr: Any) -> None:
    schedule = scheduled(kumofire, expr, "interval")
    assert (schedule.schedule_type, schedule.next_run_at) == ("interval", minute(5))
    assert (kumofire.later(5 * MINUTE), read(kumofire, schedule).next_run_at) == (1, minute(10))


def test_K12_cron_is_read_in_the_zone_of_the_schedule(kumofire: StoreDoor) -> None:
    kumofire.clock.advance(HOUR)
    in_utc, in_tokyo = scheduled(kumofire, "0 5 * * *"), scheduled(kumofire, "0 5 * * *", timezone="Asia/Tokyo")
    assert (in_utc.timezone, in_utc.next_run_at) == ("UTC", minute(5 * 60))
    assert (in_tokyo.timezone, in_tokyo.next_run_at) == ("Asia/Tokyo", minute(20 * 60))


def test_K31_schedules_fire_by_their_instant_and_then_by_their_creation(kumofire: StoreDoor) -> None:
    late, early, also_early = (scheduled(kumofire, f"{every}m", "interval") for every in (3, 2, 2))
    kumofire.clock.advance(10 * MINUTE)
    due = kumofire(kumofire.storage.list_due_schedules(100))
    assert [schedule.id for schedule in due] == [early.id, also_early.id, late.id]
    assert kumofire.dispatch(limit=2) == 2
    assert {kumofire.run(run_id).job_schedule_id for run_id in kumofire.sent()} == {early.id, also_early.id}


def test_K32_an_upsert_keeps_the_id_and_a_second_creation_is_refused(kumofire: StoreDoor) -> None:
    def upsert(**fields: Any) -> JobSchedule:
        usual = {"schedule_key": "daily", "schedule_type": "cron", "schedule_expr": "0 5 * * *"}
        return kumofire(kumofire.jobs.upsert_schedule("email", **(usual | fields)))

    first, second = upsert(), upsert(payload={"to": "bob"}, schedule_expr="0 6 * * *")
    assert (second.id, second.payload, second.schedule_expr) == (first.id, {"to": "bob"}, "0 6 * * *")
    with pytest.raises(DuplicateKey):
        scheduled(kumofire, schedule_key="daily")
    assert kumofire(kumofire.jobs.get_schedule_by_key("daily")) == second
    with pytest.raises(BadInput):
        upsert(schedule_key=None)


def test_K32_the_key_of_a_schedule_of_another_queue_is_refused(kumofire: StoreDoor) -> None:
    native = kumofire.do(kumofire.engine.schedule("native", "email", every="1m", options=Options(priority=3)))
    with pytest.raises(DuplicateKey):
        kumofire(kumofire.jobs.upsert_schedule("email", schedule_key="native", schedule_type="interval", schedule_expr="5m"))
    assert kumofire(kumofire.jobs.update_schedule("native", enabled=False)) is None
    assert kumofire.do(kumofire.engine.get_schedule("native")) == native


def test_K33_an_edit_of_the_payload_keeps_the_next_instant_and_one_of_the_rule_recomputes_it(kumofire: StoreDoor) -> None:
    schedule = scheduled(kumofire, "10m", "interval", schedule_key="often")
    kumofire.clock.advance(2 * MINUTE)
    edited = kumofire(kumofire.jobs.update_schedule_by_key("often", payload={"to": "bob"}, max_attempts=7))
    assert edited is not None
    assert (edited.next_run_at, edited.payload, edited.max_attempts) == (minute(10), {"to": "bob"}, 7)
    other = kumofire(kumofire.jobs.update_schedule(schedule.id, schedule_type="cron", schedule_expr="0 * * * *"))
    assert other is not None
    assert (other.schedule_type, other.next_run_at) == ("cron", minute(60))
    zoned = kumofire(kumofire.jobs.update_schedule(schedule.id, timezone="Asia/Kathmandu"))
    assert zoned is not None
    assert zoned.next_run_at == minute(15)
    kumofire.later(15 * MINUTE)
    assert kumofire.run(kumofire.sent()[0]).max_attempts == 7
    for unknown in ("nothing", "", "x" * 1_000, None, 5):
        assert kumofire(kumofire.jobs.update_schedule(unknown, enabled=False)) is None  # type: ignore[arg-type]
        assert kumofire(kumofire.jobs.update_schedule_by_key(unknown, enabled=False)) is None  # type: ignore[arg-type]
        assert kumofire(kumofire.jobs.get_schedule(unknown)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule_expr": "0 5 * *"},
        {"schedule_expr": "99 * * * *"},
        {"timezone": "Asia/Nowhere"},
        {"schedule_type": "hourly"},
        {"schedule_type": "interval", "schedule_expr": "soon"},
        {"schedule_type": "once", "schedule_expr": "tomorrow"},
        {"max_attempts": 0},
        {"timezone": ""},
        {"timezone": ["UTC"]},
        {"enabled": "no"},
        {"payload": [1]},
        {"payload": []},
        {"payload": False},
        {"schedule_key": "kumofire-schedule:mine"},
        {"schedule_key": 5},
    ],
    ids=str,
)
def test_K34_a_bad_rule_is_refused_and_nothing_is_stored(kumofire: StoreDoor, fields: dict[str, Any]) -> None:
    usual = {"schedule_type": "cron", "schedule_expr": "0 5 * * *", "schedule_key": "bad"}
    with pytest.raises(BadInput):
        kumofire(kumofire.jobs.create_schedule("email", **(usual | fields)))
    assert kumofire.do(kumofire.engine.schedules()) == []
    good = scheduled(kumofire)
    edit = {name: value for name, value in fields.items() if name != "schedule_key"} or {"schedule_key": "other"}
    with pytest.raises(BadInput):
        kumofire(kumofire.jobs.update_schedule(good.id, **edit))
    assert read(kumofire, good) == good


def test_K35_one_call_drives_delayed_runs_retries_and_schedules(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    retried = kumofire.create()
    kumofire.sent()
    kumofire.consume(retried)
    delayed = kumofire.create(run_at=kumofire.in_ms(5 * MINUTE))
    schedule = scheduled(kumofire)
    assert kumofire.later(5 * MINUTE) == 3
    sent = kumofire.sent()
    assert {retried, delayed} < {*sent}
    (recurring,) = {*sent} - {retried, delayed}
    assert kumofire.run(recurring).job_schedule_id == schedule.id
    kumofire.fails = None
    assert [kumofire.consume(run_id) for run_id in sent] == ["succeeded"] * 3
    assert {kumofire.status(run_id).status for run_id in sent} == {JobRunStatus.SUCCEEDED}


def test_K36_a_schedule_advances_with_its_run_or_not_at_all(kumofire: StoreDoor) -> None:
    """At every fault point of the dispatch of a schedule: whatever fails, each instant has one run."""
    schedule = scheduled(kumofire)
    kumofire.clock.advance(5 * MINUTE)
    points = FAULTS.record()
    assert kumofire.dispatch() == 1
    FAULTS.arm("")
    fired = sorted(point for point in points if point.startswith("fire."))
    assert fired
    for point in fired:
        kumofire.clock.advance(5 * MINUTE)
        FAULTS.arm(f"{point}=raise:busy")
        with suppress(StoreBusy):
            kumofire.dispatch()
        FAULTS.arm("")
        kumofire.dispatch()
    runs = kumofire.do(kumofire.engine.runs()).runs
    assert sorted(run.scheduled_for for run in runs) == [kumofire.clock.now() - 5 * MINUTE * behind for behind in range(len(fired), -1, -1)]
    assert {*kumofire.sent()} == {run.id for run in runs}
    assert read(kumofire, schedule).last_scheduled_at == kumofire.storage.now()


def test_a_schedule_has_the_names_of_the_document(kumofire: StoreDoor) -> None:
    assert isinstance(kumofire.clock, ManualClock)
    shown = scheduled(kumofire, schedule_key="often").to_json()
    assert {
        "id": "often", "job_id": "email", "schedule_type": "cron", "schedule_expr": "*/5 * * * *", "timezone": "UTC",
        "next_run_at": "2026-01-01T00:05:00.000Z", "last_scheduled_at": None, "enabled": True,
        "created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:00:00.000Z",
    }.items() <= shown.items()  # fmt: skip
