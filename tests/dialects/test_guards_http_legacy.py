"""The routes from before the scheduler: they answer as before, in lower-case words, and say that they will go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.dialects.guards_door import STORY, UNKNOWN, GuardsDoor
from tests.harness import Harness

MINUTE = 60_000
HOUR = 60 * MINUTE
WATCHED = {"job_id", "status", "pid", "artifacts", "error", "message", "reason"}


@pytest.fixture
def guards(h: Harness) -> Iterator[GuardsDoor]:
    door = GuardsDoor(h)
    yield door
    door.close()


def old(guards: GuardsDoor, method: str, path: str, data: Any = None, status: int = 200) -> Any:
    """The answer of an old route, which has a deprecation hint."""
    answer = guards(method, path, data)
    assert answer.status == status, answer
    assert answer.headers["deprecation"] == "@1768694400"
    assert parsedate_to_datetime(answer.headers["sunset"]).year == 2027
    return answer.json


@pytest.mark.parametrize(
    ("path", "how", "status"),
    [
        ("/jobs/nobody/trigger", {"data": {}}, 422),
        ("/jobs/batch/trigger", {"data": {"jobs": 7}}, 422),
        ("/jobs/story/trigger", {"raw": b"{"}, 422),
        ("/jobs/story/trigger", {"data": {}, "headers": {"x-api-key": "wrong"}}, 401),
        (f"/jobs/{UNKNOWN}/monitor", {}, 404),
    ],
)
def test_G30_a_refusal_of_an_old_route_says_too_that_it_will_go(guards: GuardsDoor, path: str, how: dict[str, Any], status: int) -> None:
    answer = guards("POST", path, **how)
    assert (answer.status, answer.headers.get("deprecation")) == (status, "@1768694400")
    assert "sunset" in answer.headers


@pytest.mark.parametrize(("method", "path"), [("GET", f"/jobs/{UNKNOWN}"), ("POST", "/jobs"), ("GET", "/api/none")])
def test_refusals_of_other_routes_do_not(guards: GuardsDoor, method: str, path: str) -> None:
    answer = guards(method, path)
    assert answer.status >= 400
    assert not {"deprecation", "sunset"} & answer.headers.keys()


def word(guards: GuardsDoor, job: str) -> str:
    watched = old(guards, "POST", f"/jobs/{job}/monitor")
    assert watched.keys() == WATCHED
    return str(watched["status"])


def test_G30_a_trigger_creates_a_job_whose_params_stand_in_the_body(guards: GuardsDoor) -> None:
    answer = old(guards, "POST", "/jobs/story/trigger", {"max_stories": 3, "enable_dedup": True}, 202)
    job = answer.pop("job_id")
    assert answer == {"type": STORY, "status": "queued", "message": "The job is queued."}
    assert guards.job(job)["params"] == {"max_stories": 3, "enable_dedup": True}
    named = old(guards, "POST", "/jobs/story/trigger", {"type": "short"}, 202)["job_id"]
    assert guards.job(named)["params"] == {"type": "short"}
    assert guards.refused("POST", "/jobs/nobody/trigger", {}) == (422, [("path", "type")])


def test_G30_the_old_words_are_lower_case_and_only_here(guards: GuardsDoor) -> None:
    ids = [old(guards, "POST", "/jobs/story/trigger", {"n": n}, 202)["job_id"] for n in range(5)]
    guards.done("DELETE", f"/jobs/{ids[4]}")
    assert [word(guards, job) for job in (ids[0], ids[4])] == ["queued", "cancelled"]
    run = guards.start()
    assert word(guards, ids[0]) == "running"
    guards.h.succeed(run)
    guards.skip("duplicate")
    guards.fail()
    assert [word(guards, job) for job in ids] == ["succeeded", "skipped", "failed", "queued", "cancelled"]
    assert old(guards, "POST", f"/jobs/{ids[1]}/monitor")["reason"] == "duplicate"
    assert old(guards, "POST", f"/jobs/{ids[2]}/monitor")["error"] == "boom: it broke"
    assert {job["status"] for job in guards.jobs()} == {"QUEUED", "RUNNING", "CANCELLED"}


def test_G30_jobs_that_run_are_watched_together(guards: GuardsDoor) -> None:
    job, _ = guards.create(), guards.create()
    assert old(guards, "POST", "/jobs/monitor") == {"monitored_count": 0, "results": []}
    run = guards.start()
    answer = old(guards, "POST", "/jobs/monitor")
    assert (answer["monitored_count"], [one["job_id"] for one in answer["results"]]) == (1, [job])
    guards.h.succeed(run)
    assert old(guards, "POST", "/jobs/monitor")["monitored_count"] == 0
    assert guards.refused("POST", f"/jobs/{UNKNOWN}/monitor")[0] == 404


def test_G30_a_cancel_is_always_answered_200_and_says_whether_it_was_one(guards: GuardsDoor) -> None:
    job = guards.create()
    assert old(guards, "POST", f"/jobs/{job}/cancel") == {"job_id": job, "success": True, "message": "The job is cancelled.", "error": None}
    assert word(guards, job) == "cancelled"
    for ended in (job, UNKNOWN, "nobody"):
        answer = old(guards, "POST", f"/jobs/{ended}/cancel")
        assert (answer["success"], answer["message"], bool(answer["error"])) == (False, None, True)


def test_G30_a_batch_is_a_group_and_its_jobs_are_counted(guards: GuardsDoor) -> None:
    guards.template("research", retry_policy={"max_attempts": 0})
    body = {"jobs": [{"type": STORY, "max_stories": 2}, {"type": "research", "topic": "sea", "tags": ["a"]}, {"type": STORY}]}
    answer = old(guards, "POST", "/jobs/batch/trigger", body, 202)
    batch, ids = answer["batch_id"], answer["job_ids"]
    assert (answer["job_count"], answer["status"], len(ids)) == (3, "queued", 3)
    assert [guards.job(job)["params"] for job in ids] == [{"max_stories": 2}, {"topic": "sea", "tags": ["a"]}, {}]

    def counts() -> tuple[str, list[int]]:
        batch_now = old(guards, "GET", f"/jobs/batch/{batch}")
        names = ("total", "completed", "succeeded", "failed", "running", "queued")
        assert [(job["job_id"], job["type"]) for job in batch_now["jobs"]] == [(ids[0], STORY), (ids[1], "research"), (ids[2], STORY)]
        assert (batch_now["finished_at"] is None) == (batch_now["completed_jobs"] < 3)
        return batch_now["status"], [batch_now[f"{name}_jobs"] for name in names]

    assert counts() == ("queued", [3, 0, 0, 0, 0, 3])
    run = guards.start()
    assert counts() == ("running", [3, 0, 0, 0, 1, 2])
    guards.h.succeed(run)
    guards.fail()
    assert counts() == ("running", [3, 2, 1, 1, 0, 1])
    guards.succeed()
    assert counts() == ("failed", [3, 3, 2, 1, 0, 0])
    assert guards.refused("GET", f"/jobs/batch/{UNKNOWN}")[0] == 404


@pytest.mark.parametrize(
    "body", [{}, {"jobs": []}, {"jobs": [{}]}, {"jobs": [{"type": "nobody"}]}, {"jobs": [7]}, {"jobs": [{"type": STORY}] * 51}]
)
def test_G30_a_batch_that_is_not_valid_creates_nothing(guards: GuardsDoor, body: dict[str, Any]) -> None:
    assert guards.refused("POST", "/jobs/batch/trigger", body)[0] == 422
    assert guards.done("GET", "/jobs")["total"] == 0


def test_G30_an_artifact_is_named_and_never_compared(guards: GuardsDoor) -> None:
    job = guards.create()
    nothing = old(guards, "POST", f"/jobs/{job}/dedup_check")
    assert (nothing["has_artifact"], nothing["artifact_path"], nothing["message"]) == (False, None, "The job has no artifacts.")
    guards.succeed({"artifacts": ["stories/1.md"]})
    run = guards.run(job)
    assert run is not None
    answer = old(guards, "POST", f"/jobs/{job}/dedup_check")
    assert (answer["has_artifact"], answer["signal"], answer["similarity_score"]) == (bool(run["artifacts"]), None, None)


def test_G30_old_routes_are_in_the_log_once_an_hour(guards: GuardsDoor, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "windlass.dialects.guards"]

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            old(guards, "POST", "/jobs/story/trigger", {}, 202)
        assert len(lines()) == 1
        old(guards, "POST", "/jobs/monitor")
        guards.h.clock.advance(HOUR)
        old(guards, "POST", "/jobs/monitor")
        assert lines()[1] == (
            "Routes that end on 2027-12-31 are still used: POST /jobs/monitor (2), POST /jobs/{type}/trigger (2). "
            "Use POST /jobs and POST /api/job-groups."
        )
        assert len(lines()) == 2


def test_the_new_routes_have_no_deprecation_hint(guards: GuardsDoor) -> None:
    for path in ("/jobs", "/api/jobs", "/scheduler/status", "/health"):
        assert not {"deprecation", "sunset"} & guards.get(path).headers.keys()
