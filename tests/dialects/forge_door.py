"""The Forge job queue as a client of it meets it: a hub that has it at its root, and a caller with the secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.dialects.doors import Answer, Door
from tests.harness import Harness
from windlass.dialects.forge import Settings, mount

SECRET = "a long random text"
UNASSIGNED = {"error": "job not assigned to this worker"}
NOT_FOUND = {"error": "not found"}
NOT_CANCELLABLE = {"error": "not found or not cancellable"}
UNKNOWN = "f" * 32


class ForgeDoor(Door):
    """The dialect at the root, asked by somebody who has the secret."""

    def __init__(self, h: Harness, **settings: Any) -> None:
        self.dialect = mount(Settings(secret=SECRET, **settings), h.clock)
        super().__init__(h, self.dialect, prefix="", root="forge")
        self.headers = {"authorization": f"Bearer {SECRET}"}

    def create(self, type: str = "prodplan", **members: Any) -> str:
        answer = self.post("/api/jobs", {"type": type, **members})
        assert answer.status == 201, answer
        return str(answer.json["id"])

    def row(self, job: str) -> dict[str, Any]:
        answer = self.get(f"/api/jobs/{job}")
        assert answer.status == 200, answer
        return dict(answer.json)

    def claim(self, worker: str = "w1", **members: Any) -> dict[str, Any]:
        answer = self.post("/api/jobs/claim", {"worker_id": worker, **members})
        assert answer.status == 200, answer
        return dict(answer.json)

    def refused_claim(self, worker: str = "w1", **members: Any) -> bool:
        return self.post("/api/jobs/claim", {"worker_id": worker, **members}).status == 204

    def beat(self, job: str, worker: str = "w1") -> Answer:
        return self.post(f"/api/jobs/{job}/heartbeat", {"worker_id": worker})

    def result(self, job: str, result: Any = "42\n", worker: str = "w1", headers: dict[str, str] | None = None, **members: Any) -> Answer:
        return self.post(f"/api/jobs/{job}/result", {"worker_id": worker, "result": result, **members}, headers)

    def fail(self, job: str, reason: str = "exit code 1: out of memory", worker: str = "w1") -> Answer:
        return self.post(f"/api/jobs/{job}/fail", {"worker_id": worker, "reason": reason})

    def running(self, worker: str = "w1") -> str:
        """A job that was claimed and has begun."""
        job = str(self.claim(worker)["id"])
        assert self.beat(job, worker).status == 204
        return job

    def reap(self, after: int = 0) -> None:
        self.h.sweep(after)

    @contextmanager
    def unchanged(self, job: str) -> Iterator[None]:
        before = self.row(job), self.h.get(run_id(job))
        yield
        assert (self.row(job), self.h.get(run_id(job))) == before


def run_id(job: str) -> str:
    return f"{job[:8]}-{job[8:12]}-{job[12:16]}-{job[16:20]}-{job[20:]}"
