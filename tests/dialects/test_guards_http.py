"""What the design guards promise, line by line, as a client of their routes meets it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.dialects.guards_door import STATISTICS, STORY, UNKNOWN, GuardsDoor
from tests.dialects.guards_library import crashed
from tests.harness import LEASE, Harness

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
STAMP = "%Y-%m-%dT%H:%M:%S.%fZ"


@pytest.fixture
def guards(h: Harness) -> Iterator[GuardsDoor]:
    door = GuardsDoor(h)
    yield door
    door.close()


def seconds(text: str) -> float:
    return datetime.strptime(text, STAMP).replace(tzinfo=UTC).timestamp()


# Jobs


def test_G1_params_change_while_a_job_is_queued_and_never_after_its_dispatch(guards: GuardsDoor) -> None:
    job = guards.create(params={"topic": "sea"})
    assert guards.done("PATCH", f"/jobs/{job}", {"params": {"topic": "wood"}})["params"] == {"topic": "wood"}
    guards.start()
    before = guards.job(job)
    status, detail = guards.refused("PATCH", f"/jobs/{job}", {"params": {"topic": "late"}})
    assert (status, detail[:20]) == (400, "Cannot modify params")
    assert guards.job(job) == before
    assert before["params"] == {"topic": "wood"}


@pytest.mark.parametrize("change", [{"priority": 7}, {"position": 100}, {"priority": 7, "position": 100}])
def test_G2_neither_do_priority_and_position(guards: GuardsDoor, change: dict[str, int]) -> None:
    job = guards.create()
    guards.start()
    before = guards.job(job)
    status, detail = guards.refused("PATCH", f"/jobs/{job}", change)
    assert (status, detail[: len("Cannot modify p")]) == (400, "Cannot modify p")
    assert guards.job(job) == before


@pytest.mark.parametrize("member", ["job_id", "status", "params_snapshot", "created_at", "self", "x" * 500])
def test_G3_a_member_that_cannot_be_changed_is_refused_by_its_name(guards: GuardsDoor, member: str) -> None:
    job = guards.create()
    before = guards.job(job)
    status, detail = guards.refused("PATCH", f"/jobs/{job}", {member: "x", "priority": 5})
    assert status == 400
    assert member[:64] in detail
    assert guards.job(job) == before


def test_G5_jobs_are_dispatched_by_priority_then_position_then_age(guards: GuardsDoor) -> None:
    low, high, later = guards.create(priority=1), guards.create(priority=9), guards.create(priority=9)
    moved = guards.create(priority=1)
    assert guards.done("PATCH", f"/jobs/{moved}", {"position": 100})["position"] == 100
    assert [guards.succeed() for _ in range(4)] == [high, later, moved, low]


def test_G6_a_schedule_changes_and_ends_without_its_jobs(guards: GuardsDoor) -> None:
    schedule = guards.done("POST", "/api/schedules", {"template_id": STORY, "cron": "0 * * * *", "params": {"n": 1}}, 201)
    guards.h(guards.h.engine.fire_all())
    guards.h.clock.advance(60 * MINUTE)
    guards.h(guards.h.engine.fire_all())
    (job,) = guards.jobs()
    path = f"/api/schedules/{schedule['schedule_id']}"
    changed = guards.done("PATCH", path, {"params": {"n": 2}, "enabled": False})
    assert (changed["param_overrides"], changed["enabled"]) == ({"n": 2}, False)
    assert guards.job(job["job_id"]) == job
    guards.done("DELETE", path)
    assert guards.refused("GET", path)[0] == 404
    assert guards.job(job["job_id"]) | {"schedule_id": None} == job | {"schedule_id": None}
    assert (job["params"], job["schedule_id"]) == ({"n": 1}, schedule["schedule_id"])


def group(guards: GuardsDoor, count: int = 3, *, sequential: bool = False) -> tuple[str, list[str]]:
    jobs = [{"template_id": STORY, "params": {"n": n}} for n in range(count)]
    answer = guards.done("POST", "/api/job-groups", {"jobs": jobs, "sequential": sequential, "name": "night"}, 201)
    assert (answer["name"], answer["status"], len(answer["job_ids"])) == ("night", "RUNNING", count)
    return answer["group_id"], answer["job_ids"]


def status_of(guards: GuardsDoor, group_id: str) -> str:
    (listed,) = guards.done("GET", "/api/job-groups")["groups"]
    one = guards.done("GET", f"/api/job-groups/{group_id}")
    assert listed == one
    by_status = guards.done("GET", f"/api/job-groups?status={one['status']}")
    assert by_status == {"groups": [one], "total": 1}
    return str(one["status"])


def test_G7_a_group_is_running_while_any_of_its_jobs_has_not_ended(guards: GuardsDoor) -> None:
    group_id, _ = group(guards)
    for _ in range(3):
        assert status_of(guards, group_id) == "RUNNING"
        guards.succeed()
    assert status_of(guards, group_id) == "COMPLETED"


def test_G8_a_group_ends_completed_partial_or_cancelled(guards: GuardsDoor) -> None:
    group_id, (first, *_) = group(guards, 2)
    guards.done("POST", f"/api/jobs/{first}/cancel")
    guards.fail_for_good()
    assert status_of(guards, group_id) == "PARTIAL"
    cancelled, ids = group(guards, 2)
    assert guards.done("POST", f"/api/job-groups/{cancelled}/cancel")["status"] == "CANCELLED"
    assert {guards.words(job) for job in ids} == {("CANCELLED", None)}
    assert guards.refused("POST", f"/api/job-groups/{cancelled}/cancel")[0] == 400


def test_G9_G10_a_retry_is_a_new_job_and_the_chain_is_the_count(guards: GuardsDoor) -> None:
    job = guards.create()
    ids = guards.fail_for_good()
    assert ids[0] == job
    assert [guards.job(one)["retry_of"] for one in ids] == [None, *ids[:-1]]
    assert [guards.words(one) for one in ids] == [("RUNNING", "FAILED")] * 4
    assert [one["job_id"] for one in guards.jobs()] == ids[::-1]
    assert [run["run_id"] for run in guards.done("GET", "/api/job-runs")["runs"]] == ids[::-1]


def test_G11_a_failure_is_retried_three_times_after_10_20_and_40_seconds(guards: GuardsDoor) -> None:
    guards.create()
    for delay in (10, 20, 40):
        guards.fail()
        (queued,) = guards.jobs("?status=QUEUED")
        guards.h.sweep(delay * 1_000 - 1)
        assert not guards.h.claim(queues=("guards",))
        guards.h.sweep(1)
        assert queued["retry_of"] is not None
    guards.fail()
    guards.h.sweep(DAY)
    assert guards.jobs("?status=QUEUED") == []


def test_G12_a_failed_run_can_always_be_retried_with_its_own_params(guards: GuardsDoor) -> None:
    guards.template("poem", default_params={"n": 1}, retry_policy={"max_attempts": 0})
    guards.create("poem")
    job = guards.fail()
    guards.done("PATCH", "/api/job-templates/poem", {"default_params": {"n": 2}})
    for _ in range(3):
        retry = guards.done("POST", f"/api/job-runs/{job}/retry", status=201)
        assert (retry["retry_of"], retry["params"], retry["status"]) == (job, {"n": 1}, "QUEUED")
        job = guards.fail()
        assert job == retry["job_id"]
    again = guards.done("POST", f"/api/job-runs/{job}/retry", status=201)["job_id"]
    assert guards.refused("POST", f"/api/job-runs/{again}/retry")[0] == 404  # it has no run yet
    guards.succeed()
    assert guards.refused("POST", f"/api/job-runs/{again}/retry")[0] == 400
    assert guards.refused("POST", f"/api/job-runs/{UNKNOWN}/retry")[0] == 404


def test_G12_a_retry_by_hand_goes_beside_one_that_is_planned(guards: GuardsDoor) -> None:
    guards.create(params={"n": 1})
    failed = guards.fail()
    (planned,) = guards.jobs("?status=QUEUED")
    guards.done("PATCH", f"/jobs/{planned['job_id']}", {"params": {"n": 2}})
    by_hand = guards.done("POST", f"/api/job-runs/{failed}/retry", status=201)
    assert {job["job_id"] for job in guards.jobs("?status=QUEUED")} == {planned["job_id"], by_hand["job_id"]}
    assert (by_hand["params"], guards.job(planned["job_id"])["params"]) == ({"n": 1}, {"n": 2})


def test_G20_every_word_in_every_answer_is_one_of_the_document(guards: GuardsDoor) -> None:
    jobs = [guards.create() for _ in range(4)]
    seen = set()
    guards.done("DELETE", f"/jobs/{jobs[0]}")
    run = guards.start()
    seen |= {guards.words(job) for job in jobs}
    guards.h.succeed(run)
    guards.skip("duplicate")
    guards.fail()
    every = [job["job_id"] for job in guards.jobs()]
    seen |= {guards.words(job) for job in every}
    assert seen == {
        ("QUEUED", None), ("RUNNING", None), ("CANCELLED", None), ("RUNNING", "COMPLETED"), ("RUNNING", "SKIPPED"), ("RUNNING", "FAILED"),
    }  # fmt: skip
    for status in ("QUEUED", "RUNNING", "CANCELLED"):
        assert {job["status"] for job in guards.jobs(f"?status={status}")} == {status}
    for word in ("DISPATCHED", "dispatched", "succeeded", "error", "COMPLETED", "queued", ""):
        assert guards.refused("GET", f"/api/jobs?status={word}") == (422, [("query", "status")])
        assert guards.refused("GET", f"/api/job-groups?status={word.lower()}") == (422, [("query", "status")])


def test_G20_an_ended_job_stays_running_with_the_time_of_its_end_and_is_not_counted(guards: GuardsDoor) -> None:
    job = guards.create()
    assert guards.done("GET", "/jobs")["queued_count"] == 1
    run = guards.start()
    answer = guards.done("GET", "/jobs")
    assert (answer["queued_count"], answer["running_count"], answer["total"]) == (0, 1, 1)
    assert guards.job(job)["finished_at"] is None
    guards.h.clock.advance(1_500)
    guards.h.succeed(run)
    ended = guards.job(job)
    assert (ended["status"], guards.done("GET", "/jobs")["running_count"]) == ("RUNNING", 0)
    assert seconds(ended["finished_at"]) - seconds(ended["started_at"]) == 1.5
    assert (guards.run(job) or {})["finished_at"] == ended["finished_at"]


# Schedules, groups


@pytest.mark.parametrize(("timezone", "hour"), [(None, "00"), ("UTC", "00"), ("Europe/Paris", "23"), ("America/New_York", "05")])
def test_G23_a_schedule_is_read_in_its_zone_and_without_one_in_utc(guards: GuardsDoor, timezone: str | None, hour: str) -> None:
    guards.h.clock.advance(1_768_694_400_000 - guards.h.clock.now())  # 2026-01-18, in winter
    body = {"template_id": STORY, "cron": "0 0 * * *"} | ({} if timezone is None else {"timezone": timezone})
    schedule = guards.done("POST", "/api/schedules", body, 201)
    assert schedule["timezone"] == (timezone or "UTC")
    assert schedule["next_trigger_at"][11:] == f"{hour}:00:00.000000Z"
    changed = guards.done("PATCH", f"/api/schedules/{schedule['schedule_id']}", {"timezone": "Asia/Tokyo"})
    assert changed["next_trigger_at"][11:13] == "15"
    assert guards.done("GET", "/api/schedules") == {"schedules": [changed], "total": 1}


@pytest.mark.parametrize(
    ("change", "member"),
    [
        ({"timezone": "Mars/Base"}, "timezone"), ({"timezone": ""}, "timezone"), ({"timezone": 7}, "timezone"),
        ({"cron": "61 * * * *"}, "cron"), ({"cron": "* * *"}, "cron"), ({"cron": None}, "cron"), ({"enabled": "yes"}, "enabled"),
        ({"params": []}, "params"),
    ],
)  # fmt: skip
def test_G24_an_unknown_zone_or_a_bad_cron_is_refused_and_nothing_is_stored(
    guards: GuardsDoor, change: dict[str, Any], member: str
) -> None:
    body = {"template_id": STORY, "cron": "0 0 * * *"}
    assert guards.refused("POST", "/api/schedules", body | change) == (422, [("body", member)])
    assert guards.done("GET", "/api/schedules")["total"] == 0
    schedule = guards.done("POST", "/api/schedules", body, 201)
    path = f"/api/schedules/{schedule['schedule_id']}"
    assert guards.refused("PATCH", path, change) == (422, [("body", member)])
    assert guards.done("GET", path) == schedule


def test_G26_members_of_a_sequential_group_run_one_after_the_other(guards: GuardsDoor) -> None:
    _, ids = group(guards, sequential=True)
    assert [guards.job(job)["sequence_number"] for job in ids] == [0, 1, 2]
    for job in ids:
        assert guards.succeed() == job


def test_G27_a_member_that_failed_for_good_cancels_the_rest(guards: GuardsDoor) -> None:
    group_id, (first, *rest) = group(guards, sequential=True)
    for attempt in range(4):
        assert {guards.words(job) for job in rest} == {("QUEUED", None)}, attempt
        guards.fail()
        guards.h.sweep(MINUTE)
    assert [(guards.words(job)[0], guards.job(job)["reason"]) for job in rest] == [("CANCELLED", "predecessor failed")] * 2
    assert status_of(guards, group_id) == "PARTIAL"
    assert guards.words(first) == ("RUNNING", "FAILED")


def test_G28_a_member_whose_retry_succeeds_lets_its_group_complete(guards: GuardsDoor) -> None:
    group_id, (first, *_) = group(guards, sequential=True)
    guards.fail()
    guards.h.sweep(MINUTE)
    newest = guards.done("GET", f"/api/job-groups/{group_id}")["job_ids"][0]
    assert guards.job(newest)["retry_of"] == first
    for _ in range(3):
        guards.succeed()
    assert status_of(guards, group_id) == "COMPLETED"


# Queue and scheduler


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/jobs/{}"), ("POST", "/api/jobs/{}/cancel")])
def test_G31_a_queued_job_can_be_cancelled_and_is_never_executed(guards: GuardsDoor, method: str, path: str) -> None:
    job, other = guards.create(), guards.create()
    answer = guards.done(method, path.format(job))
    if method == "DELETE":
        assert answer == {"job_id": job, "success": True, "message": "The job is cancelled."}
    else:
        assert answer == guards.job(job)
    assert guards.words(job) == ("CANCELLED", None)
    assert guards.start().id == other
    for ended in (job, other):
        before = guards.job(ended)
        assert guards.refused(method, path.format(ended))[0] == 400
        assert guards.job(ended) == before
    assert guards.refused(method, path.format(UNKNOWN))[0] == 404


def test_G32_a_priority_reorders_what_is_wrong_is_422_and_unknown_is_404(guards: GuardsDoor) -> None:
    first, second = guards.create(), guards.create(priority=5)
    assert guards.done("PATCH", f"/jobs/{first}", {"priority": 9})["priority"] == 9
    for value in (-1, 101, "high", 1.5, None, True):
        assert guards.refused("PATCH", f"/jobs/{second}", {"priority": value}) == (422, [("body", "priority")])
        assert guards.refused("POST", "/jobs", {"type": STORY, "priority": value}) == (422, [("body", "priority")])
    assert guards.refused("PATCH", f"/jobs/{second}", {})[0] == 400
    assert guards.refused("PATCH", f"/jobs/{UNKNOWN}", {"priority": 1})[0] == 404
    assert [guards.succeed(), guards.succeed()] == [first, second]


def test_G32_everything_that_is_wrong_with_a_request_is_named(guards: GuardsDoor) -> None:
    body = {"params": 7, "priority": "high", "webhook_url": 7, "webhook_events": "all"}
    loc = [("body", "webhook_url"), ("body", "webhook_events"), ("body", "type"), ("body", "params"), ("body", "priority")]
    status, names = guards.refused("POST", "/jobs", body)
    assert (status, sorted(names)) == (422, sorted(loc))
    assert guards.refused("POST", "/jobs", {"type": "nobody"}) == (422, [("body", "type")])
    assert guards.refused("POST", "/jobs", {"type": ""}) == (422, [("body", "type")])
    assert guards.refused("POST", "/jobs", {"type": "\0"}) == (422, [("body",)])
    assert guards.refused("POST", "/api/jobs", {"template_id": "nobody"})[0] == 404
    assert guards.refused("POST", "/api/job-groups", {"jobs": [{"template_id": STORY}, {"template_id": "nobody"}]})[0] == 404
    assert guards.refused("POST", "/api/job-groups", {"jobs": []}) == (422, [("body", "jobs")])
    for limit in ("0", "201", "-1", "many", "1.5", ""):
        for path in ("/jobs", "/api/jobs", "/api/job-groups", "/api/job-runs"):
            assert guards.refused("GET", f"{path}?limit={limit}") == (422, [("query", "limit")])
    assert guards.done("GET", "/jobs")["total"] == 0


def test_G32_a_list_has_the_newest_first_and_at_most_as_many_as_its_limit(guards: GuardsDoor) -> None:
    ids = [guards.create() for _ in range(52)]
    assert [job["job_id"] for job in guards.done("GET", "/jobs")["jobs"]] == ids[:1:-1]
    answer = guards.done("GET", "/jobs?limit=2")
    assert ([job["job_id"] for job in answer["jobs"]], answer["total"], answer["queued_count"]) == (ids[:-3:-1], 2, 52)
    assert guards.done("GET", "/jobs?limit=200")["total"] == 52


def test_G33_starting_and_stopping_are_idempotent_and_stop_the_queue(guards: GuardsDoor) -> None:
    job = guards.create()
    for _ in range(2):
        answer = guards.done("POST", "/scheduler/stop", {"timeout": 1})
        assert (answer.keys(), answer["success"]) == ({"success", "message"}, True)
        assert guards.done("GET", "/scheduler/status")["scheduler_running"] is False
    assert not guards.h.claim(queues=("guards",))
    for _ in range(2):
        answer = guards.done("POST", "/scheduler/start")
        assert (answer["success"], answer["recovery_stats"].keys()) == (True, STATISTICS)
        assert guards.done("GET", "/scheduler/status")["scheduler_running"] is True
    assert guards.done("POST", "/scheduler/start", {"run_recovery": False})["recovery_stats"] is None
    assert guards.start().id == job


def test_G33_the_status_counts_what_runs_and_what_has_run(guards: GuardsDoor) -> None:
    status = guards.done("GET", "/scheduler/status")
    assert status == {
        "scheduler_running": True, "current_job_id": None, "queue_length": 0, "has_active_reservation": False,
        "cumulative_stats": {"total_executed": 0, "succeeded": 0, "failed": 0, "cancelled": 0, "skipped": 0},
    }  # fmt: skip
    jobs = [guards.create() for _ in range(5)]
    guards.done("DELETE", f"/jobs/{jobs[4]}")
    guards.succeed()
    guards.skip("duplicate")
    guards.fail()
    guards.h.sweep(MINUTE)
    running = guards.start()
    status = guards.done("GET", "/scheduler/status")
    assert (status["current_job_id"], status["queue_length"]) == (running.current_attempt, 1)
    assert status["cumulative_stats"] == {"total_executed": 3, "succeeded": 1, "failed": 1, "cancelled": 1, "skipped": 1}


def test_G33_a_stop_waits_for_what_runs_and_says_when_it_does_not_end(guards: GuardsDoor) -> None:
    guards.create()
    run = guards.start()
    answer = guards.done("POST", "/scheduler/stop", {"timeout": 1})
    assert (answer["success"], "still running" in answer["message"]) == (False, True)
    guards.h.succeed(run)
    assert guards.done("POST", "/scheduler/stop")["success"] is True
    for timeout in (0, 301, "30", None, 1.5):
        assert guards.refused("POST", "/scheduler/stop", {"timeout": timeout}) == (422, [("body", "timeout")])


def test_G33_a_start_recovers_jobs_whose_lease_is_over(guards: GuardsDoor) -> None:
    guards.create()
    lost = guards.start().id
    guards.h.clock.advance(LEASE + 1)
    assert guards.done("POST", "/scheduler/start", {"run_recovery": False})["recovery_stats"] is None
    assert guards.words(lost) == ("RUNNING", None)
    stats = guards.done("POST", "/scheduler/start")["recovery_stats"]
    assert (stats["running_jobs_recovered"], stats["retries_created"]) == (1, 1)
    assert guards.words(lost) == ("RUNNING", "FAILED")
    again = guards.done("POST", "/scheduler/start")["recovery_stats"]
    assert (again["running_jobs_recovered"], again["retries_created"], len(guards.jobs())) == (0, 0, 2)


def test_G13_a_start_of_the_hub_recovers_what_a_process_held_that_is_gone(guards: GuardsDoor) -> None:
    lost, lives = guards.create(), guards.create()
    assert crashed(guards.h) == lost
    for autostart, run in ((False, None), (True, "FAILED")):
        door = GuardsDoor(guards.h, autostart=autostart)
        assert (door.words(lost), door.words(lives)) == (("RUNNING", run), ("QUEUED", None))
        door.done("POST", "/scheduler/start", {"run_recovery": False})
        door.close()
    assert "recovered" in (guards.run(lost) or {})["error"]
    assert {job["retry_of"] for job in guards.jobs("?status=QUEUED")} == {lost, None}


def test_G13_a_start_of_the_hub_leaves_other_leases_to_its_sweeps(guards: GuardsDoor) -> None:
    guards.create()
    held = guards.start().id
    guards.h.clock.advance(LEASE + 1)  # it may have been the clock of this machine that was set
    door = GuardsDoor(guards.h)
    assert door.words(held) == ("RUNNING", None)
    door.close()


def test_G33_a_scheduler_that_does_not_start_by_itself_is_stopped(h: Harness) -> None:
    door = GuardsDoor(h, autostart=False)
    assert door.done("GET", "/scheduler/status")["scheduler_running"] is False
    job = door.create()
    assert not h.claim(queues=("guards",))
    door.done("POST", "/scheduler/start")
    assert door.start().id == job
    door.close()


def test_G34_a_position_places_a_job_and_moves_the_others_by_one(guards: GuardsDoor) -> None:
    ids = [guards.create() for _ in range(4)]
    assert [guards.job(job)["position"] for job in ids] == [100, 200, 300, 400]
    assert guards.done("PATCH", f"/jobs/{ids[3]}", {"position": 150})["position"] == 200
    assert [guards.job(job)["position"] for job in ids] == [100, 300, 400, 200]
    first = guards.done("POST", "/api/jobs", {"template_id": STORY, "position": 0}, 201)
    assert first["position"] == 100
    for position in (-1, "top", 2**60, 1.5):
        assert guards.refused("PATCH", f"/jobs/{ids[0]}", {"position": position}) == (422, [("body", "position")])
        assert guards.refused("POST", "/api/jobs", {"template_id": STORY, "position": position}) == (422, [("body", "position")])
    assert [guards.succeed() for _ in range(5)] == [first["job_id"], ids[0], ids[3], ids[1], ids[2]]


def test_G35_params_are_a_snapshot_over_those_of_the_template(guards: GuardsDoor) -> None:
    template = guards.template(
        "poem", job_type=STORY, params={"topic": "sea", "n": 1}, retry_policy={"max_attempts": 1}, description="Short."
    )
    assert (template["template_id"], template["default_params"]) == ("poem", {"topic": "sea", "n": 1})
    assert (template["retry_policy"], template["description"], template["job_type"]) == ({"max_attempts": 1}, "Short.", STORY)
    old = guards.done("POST", "/api/jobs", {"template_id": "poem", "params": {"n": 2}, "priority": 5}, 201)
    assert (old["params"], old["priority"], old["template_id"], old["job_type"]) == ({"topic": "sea", "n": 2}, 5, "poem", STORY)
    changed = guards.done("PATCH", "/api/job-templates/poem", {"default_params": {"topic": "wood"}})
    assert changed["default_params"] == {"topic": "wood"}
    assert guards.done("GET", "/api/job-templates/poem") == changed
    assert changed in guards.done("GET", "/api/job-templates")["templates"]
    assert guards.job(old["job_id"]) == old
    assert guards.job(guards.create("poem"))["params"] == {"topic": "wood"}


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, 400), ({"template_id": "other"}, 400), ({"default_params": 7}, 422), ({"retry_policy": {"max_attempts": -1}}, 422),
     ({"retry_policy": {"times": 1}}, 422), ({"default_params": None}, 422), ({"job_type": ""}, 422), ({"job_type": 7}, 422),
     ({"description": 7}, 422)],
)  # fmt: skip
def test_G35_a_change_of_a_template_that_is_wrong_changes_nothing(guards: GuardsDoor, change: dict[str, Any], status: int) -> None:
    before = guards.done("GET", f"/api/job-templates/{STORY}")
    assert guards.refused("PATCH", f"/api/job-templates/{STORY}", change)[0] == status
    assert guards.done("GET", f"/api/job-templates/{STORY}") == before
    for method in ("GET", "PATCH"):
        assert guards.refused(method, "/api/job-templates/nobody", {"description": "x"} if method == "PATCH" else None)[0] == 404


def test_G40_an_ended_job_shows_the_params_that_it_ran_with(guards: GuardsDoor) -> None:
    guards.create(params={"n": 1})
    failed = guards.fail()
    (retry,) = guards.jobs("?status=QUEUED")
    guards.done("PATCH", f"/jobs/{retry['job_id']}", {"params": {"n": 2}})
    run = guards.run(failed)
    assert run is not None
    assert (guards.job(failed)["params"], run["params_snapshot"]) == ({"n": 1}, {"n": 1})
    assert guards.refused("PATCH", f"/jobs/{failed}", {"params": {"n": 3}})[0] == 400
    assert guards.done("POST", f"/api/job-runs/{failed}/retry", status=201)["params"] == {"n": 1}


def test_a_run_is_read_by_the_id_of_its_job_once_it_has_one(guards: GuardsDoor) -> None:
    job = guards.create()
    assert guards.refused("GET", f"/api/job-runs/{job}")[0] == 404
    guards.succeed({"words": 7})
    run = guards.done("GET", f"/api/job-runs/{job}")
    assert run == guards.run(job)
    assert guards.done("GET", "/api/job-runs?limit=1") == {"runs": [run], "total": 1}
    for path in ("/api/job-runs/{}", "/jobs/{}/runs", "/jobs/{}/webhooks", "/api/job-groups/{}", "/api/schedules/{}"):
        for unknown in (UNKNOWN, "nobody", "%00", "x" * 300):
            assert guards.refused("GET", path.format(unknown))[0] == 404


def test_health_needs_no_credential_and_tells_the_version(guards: GuardsDoor) -> None:
    answer = guards.get("/health", headers={"x-api-key": "wrong"})
    assert answer.status == 200
    assert (answer.json.keys(), answer.json["status"]) == ({"status", "version"}, "ok")
