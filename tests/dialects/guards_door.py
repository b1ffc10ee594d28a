"""The design guards as a client of them meets them: a hub that has them at its root, and a caller with the key."""

from __future__ import annotations

import json
from typing import Any

from tests.dialects.doors import Answer, Door
from tests.harness import BOOM, Harness
from windlass.app import App
from windlass.dialects.guards import Settings, mount
from windlass.machine import Skip
from windlass.model import Failure, Run

KEY = "a long random text"
UNKNOWN = "01a1f01e-d7bd-7ad7-9a95-7ccd79310a9a"
STORY = "story"
JOB = {
    "job_id", "job_type", "status", "params", "priority", "position", "template_id", "schedule_id", "group_id", "sequence_number",
    "retry_of", "created_at", "queued_at", "started_at", "finished_at", "reason",
}  # fmt: skip
RUN = {
    "run_id", "job_id", "template_id", "params_snapshot", "status", "started_at", "finished_at", "exit_code", "error", "artifacts",
    "log_path",
}  # fmt: skip
STATISTICS = {"running_jobs_recovered", "reservations_expired", "retries_created", "job_groups_recovered", "errors"}
WORDS = {"QUEUED", "RUNNING", "CANCELLED"}, {None, "COMPLETED", "FAILED", "SKIPPED"}


class GuardsDoor(Door):
    """The dialect at the root, asked by a caller with the key. There is a template called story."""

    def __init__(self, h: Harness, *, app: App | None = None, hub: dict[str, Any] | None = None, **settings: Any) -> None:
        secured: dict[str, Any] = {"api_auth_enabled": True, "api_key": KEY}
        self.dialect = mount(Settings(**secured | settings), h.clock)
        super().__init__(h, self.dialect, prefix="", root="guards", app=app, **(hub or {}))
        self.headers = {"x-api-key": KEY}
        self.template(STORY)

    def patch(self, path: str, data: Any = None, **how: Any) -> Answer:
        return self("PATCH", path, data, **how)

    def done(self, method: str, path: str, data: Any = None, status: int = 200) -> Any:
        """The answer to a request that must succeed."""
        answer = self(method, path, data)
        assert answer.status == status, answer
        return answer.json

    def refused(self, method: str, path: str, data: Any = None, **how: Any) -> tuple[int, Any]:
        """The status and the detail of a refusal, which has the form of all refusals."""
        answer = self(method, path, data, **how)
        assert answer.status >= 400, answer
        assert answer.json.keys() == {"detail"}
        detail = answer.json["detail"]
        if answer.status == 422:
            assert all(problem.keys() == {"loc", "msg", "type"} for problem in detail)
            return 422, [tuple(problem["loc"]) for problem in detail]
        assert isinstance(detail, str)
        return answer.status, detail

    def template(self, name: str, **members: Any) -> dict[str, Any]:
        return dict(self.done("POST", "/api/job-templates", {"name": name, **members}, 201))

    def create(self, type: str = STORY, **members: Any) -> str:
        """A new job; the answer has exactly the members of a job."""
        job = self.done("POST", "/jobs", {"type": type, **members}, 201)
        assert job.keys() == JOB
        return str(job["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        job = self.done("GET", f"/jobs/{job_id}")
        assert job.keys() == JOB
        assert job["status"] in WORDS[0]
        return dict(job)

    def run(self, job_id: str) -> dict[str, Any] | None:
        """The run of a job, if it has one."""
        answer = self.done("GET", f"/jobs/{job_id}/runs")
        assert answer["total"] == len(answer["runs"]) <= 1
        for run in answer["runs"]:
            assert run.keys() == RUN
            assert run["status"] in WORDS[1]
            assert run["run_id"] == run["job_id"] == job_id
        return dict(answer["runs"][0]) if answer["runs"] else None

    def jobs(self, query: str = "") -> list[dict[str, Any]]:
        return list(self.done("GET", f"/api/jobs{query}")["jobs"])

    def words(self, job_id: str) -> tuple[str, str | None]:
        """The word of a job, and that of its run."""
        run = self.run(job_id)
        return self.job(job_id)["status"], None if run is None else run["status"]

    # What a worker does

    def start(self, worker: str = "w1") -> Run:
        return self.h.started(worker, queues=("guards",))

    def succeed(self, output: Any = None) -> str:
        """Execute the next job; returns its id."""
        run = self.start()
        self.h.succeed(run, None if output is None else json.dumps(output))
        return run.current_attempt

    def fail(self, error: Failure = BOOM) -> str:
        run = self.start()
        self.h.fail(run, error)
        return run.current_attempt

    def fail_for_good(self, minute: int = 60_000) -> list[str]:
        """Fail a job and all its retries; returns their ids."""
        ids = [self.fail()]
        for _ in range(3):
            self.h.sweep(minute)
            ids.append(self.fail())
        return ids

    def skip(self, reason: str) -> str:
        run = self.start()
        self.h.report(run, Skip(token=run.token, reason=reason))
        return run.current_attempt
