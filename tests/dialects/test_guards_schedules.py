"""Schedules, resources and risks through the library of the design guards: G6, G23, G24, G37, G38."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dialects.guards_library import Library
from tests.harness import Harness
from windlass.dialects.guards import InvalidOperationError, InvalidValueError, JobRunStatus, JobStatus, TemplateNotFoundError
from windlass.errors import NotFound


@pytest.fixture
def s(h: Harness) -> Library:
    return Library(h)


def instants(s: Library, schedule_id: str, begin: datetime, count: int) -> list[str]:
    """The next instants of a schedule, in UTC."""
    previews = s.h(s.h.engine.preview(schedule_id, start=round(begin.timestamp() * 1000), count=count))
    return [datetime.fromtimestamp(preview.at / 1000, UTC).strftime("%m-%d %H:%M") for preview in previews]


def test_G6_a_schedule_that_changes_leaves_its_jobs_as_they_were(s: Library) -> None:
    s.create_template("story", default_params={"length": 3, "topic": "sea"})
    schedule = s.create_schedule("story", "0 * * * *", params={"topic": "sky"}, name="hourly")
    s.advance(hours=1)
    (job,) = s.list_jobs()
    assert (job.params, job.schedule_id, job.status) == ({"length": 3, "topic": "sky"}, "hourly", JobStatus.QUEUED)
    s.update_schedule("hourly", params={"topic": "rain"}, cron="*/5 * * * *", template_id="story")
    s.update_schedule("hourly", enabled=False)
    assert s.list_jobs() == [job]
    s.advance(hours=5)
    assert s.list_jobs() == [job]
    assert s.update_schedule(schedule.schedule_id, enabled=True).next_trigger_at is not None
    s.advance(minutes=5)
    assert s.newest().params == {"length": 3, "topic": "rain"}
    s.delete_schedule("hourly")
    assert s.load_job(job.job_id).params == job.params


def test_the_jobs_of_a_schedule_follow_the_rules_of_every_job(s: Library) -> None:
    s.h.define("report")
    s.create_schedule("report", "0 * * * *", name="reports")
    s.advance(hours=1)
    first = s.fail()
    s.advance(seconds=10)
    retry = s.newest()
    assert (retry.retry_of, retry.schedule_id, s.h.get(first).queue) == (first, "reports", "guards")
    s.claimed()
    s.job()
    assert s.idle()


def test_G23_a_schedule_without_a_zone_is_in_utc_and_another_is_in_its_own(s: Library) -> None:
    begin = datetime(2026, 7, 1, tzinfo=UTC)
    assert s.create_schedule("story", "0 3 * * *", name="utc").timezone == "UTC"
    s.create_schedule("story", "0 3 * * *", timezone="Europe/Paris", name="paris")
    assert (instants(s, "utc", begin, 1), instants(s, "paris", begin, 1)) == (["07-01 03:00"], ["07-01 01:00"])


def test_G23_a_changed_zone_applies_from_the_next_trigger_on(s: Library) -> None:
    s.create_schedule("story", "0 3 * * *", name="night")
    s.advance(days=1)
    (job,) = s.list_jobs()
    changed = s.update_schedule("night", timezone="Asia/Tokyo")
    assert (changed.timezone, changed.next_trigger_at) == ("Asia/Tokyo", datetime(2026, 1, 2, 18, tzinfo=UTC))
    assert s.list_jobs() == [job]


@pytest.mark.parametrize(
    ("cron", "begin", "expected"),
    [
        ("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), ["03-29 01:00", "03-30 00:30"]),  # 2:30 does not exist: at once after the gap
        ("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), ["10-25 00:30", "10-26 01:30"]),  # 2:30 is there twice: once
        ("0 * * * *", datetime(2026, 10, 24, 23, 30, tzinfo=UTC), ["10-25 00:00", "10-25 01:00", "10-25 02:00"]),  # hours go on
    ],
)
def test_G23_changes_of_the_clock_are_handled(s: Library, cron: str, begin: datetime, expected: list[str]) -> None:
    s.create_schedule("story", cron, timezone="Europe/Paris", name="paris")
    assert instants(s, "paris", begin, len(expected)) == expected


@pytest.mark.parametrize("zone", ["Mars/Base", "", 5, None])
def test_G24_an_unknown_zone_is_refused(s: Library, zone: Any) -> None:
    with s.refused("zone", InvalidValueError) as refusal:
        s.create_schedule("story", "0 3 * * *", timezone=zone)
    assert refusal.value.member == "timezone"
    s.create_schedule("story", "0 3 * * *", name="night")
    with s.refused("zone", InvalidValueError):
        s.update_schedule("night", timezone=zone)


@pytest.mark.parametrize("cron", ["61 * * * *", "", "every day", "0 3 31 2 *", 5, None])
def test_a_bad_expression_is_refused(s: Library, cron: Any) -> None:
    with s.refused(None, InvalidValueError) as refusal:
        s.create_schedule("story", cron)
    assert refusal.value.member == "cron"


def test_other_bad_schedules_are_refused_too(s: Library) -> None:
    s.create_schedule("story", "0 3 * * *", name="night")
    for match, kind, call in (
        ("There is a schedule 'night' already", InvalidValueError, lambda: s.create_schedule("story", "0 4 * * *", name="night")),
        ("There is no template", TemplateNotFoundError, lambda: s.create_schedule("novel", "0 4 * * *")),
        ("There is no template", TemplateNotFoundError, lambda: s.update_schedule("night", template_id="novel")),
        ("params must be an object", InvalidValueError, lambda: s.create_schedule("story", "0 4 * * *", params=[1])),  # type: ignore[arg-type]
        ("params must be an object, not null", InvalidValueError, lambda: s.update_schedule("night", params=None)),
        ("name must be", InvalidValueError, lambda: s.create_schedule("story", "0 4 * * *", name="")),
        ("enabled must be", InvalidValueError, lambda: s.update_schedule("night", enabled="yes")),
        ("Cannot modify last_triggered_at", InvalidOperationError, lambda: s.update_schedule("night", last_triggered_at="now")),
        ("There is no schedule", NotFound, lambda: s.get_schedule("day")),
        ("There is no schedule", NotFound, lambda: s.delete_schedule("\n")),
    ):
        with s.refused(match, kind):
            call()
    s.h(s.h.engine.schedule("elsewhere", "mail", every="1h"))
    with s.refused("There is no schedule", NotFound):  # it is not of this queue
        s.update_schedule("elsewhere", enabled=False)
    assert [one.schedule_id for one in s.list_schedules()] == ["night"]


def test_G37_one_slot_by_default_and_limits_by_tag_where_they_are_set(h: Harness) -> None:
    s = Library(h, capacity=10, resources={"ollama": 1, "api": 2})
    s.create_template("local", job_type="story", resources=["ollama"])
    s.create_template("remote", job_type="story", resources=["api"])
    for _ in range(3):
        s.job("local"), s.job("remote")
    runs = h.claim(10, queues=("guards",))
    assert sorted(run.job for run in runs) == ["local", "remote", "remote"]
    with s.refused("Cannot dispatch"):
        s.dispatch_job(next(job.job_id for job in s.list_jobs("QUEUED") if job.template_id == "local"))


def test_G38_an_orphan_without_heartbeats_is_failed_and_tried_again(s: Library) -> None:
    job = s.job()
    s.claimed()
    s.advance(seconds=31)
    assert (s.load_jobrun(job).status, s.newest().retry_of) == (JobRunStatus.FAILED, job)
    assert "recovered" in str(s.load_jobrun(job).error)


def test_G38_an_instant_that_was_missed_is_caught_up_once(s: Library) -> None:
    s.create_schedule("story", "0 * * * *", name="hourly")
    s.advance(hours=7)
    (job,) = s.list_jobs()
    assert s.get_schedule("hourly").last_triggered_at == job.created_at.replace(minute=0, second=0, microsecond=0)


def test_G38_priorities_can_age_so_that_none_starves(s: Library) -> None:
    s.h(s.h.engine.set_queue("guards", aging=60_000))
    low = s.job(priority=0)
    s.advance(minutes=30)
    s.job(priority=10)
    assert s.claimed().id == low


def test_a_schedule_is_sent_in_the_documents_spelling(s: Library) -> None:
    sent = s.create_schedule("story", "0 3 * * *", name="night").to_json()
    assert list(sent) == [
        "schedule_id", "template_id", "name", "cron_expression", "timezone", "enabled", "param_overrides", "last_triggered_at",
        "next_trigger_at", "created_at",
    ]  # fmt: skip
    created = s.get_schedule("night").created_at
    assert created + timedelta(hours=3) == s.get_schedule("night").next_trigger_at
