"""SO1 as a client of it meets it: a hub that speaks it at the root, and answers that are held to its schema."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.dialects.doors import Answer, Door
from tests.dialects.so1_schema import JOBS, REFUSAL, STATUS, validate
from tests.harness import Harness
from windlass.dialects.so1 import Settings, mount
from windlass.dialects.so1.sessions import Verify
from windlass.hub.events import streams
from windlass.model import Run

TRIGGER = "trigger-github-workflow"
ANN, BEN, EVE = "clerk_ann_acme", "clerk_ben_acme", "clerk_eve_evil"
UNKNOWN = "01a1f01e-d7bd-7ad7-9a95-7ccd79310a9a"


def bearer(token: str) -> str:
    return f"Bearer {token}"


class So1(Door):
    """A hub with the dialect at its root, asked by ann of acme."""

    def __init__(
        self, h: Harness, *, verify: Verify | None = None, mock: bool = True, hub: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.dialect = mount(Settings(mock=mock, **settings), h.clock, verify=verify)
        super().__init__(h, self.dialect, prefix="", root="so1", **(hub or {}))
        self.headers = {"authorization": bearer(ANN)}
        h.define(TRIGGER)

    def __call__(self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        """The answer, whose request id is that of its body; an error has the form of errors."""
        answer = super().__call__(method, path, data, headers, **how)
        if answer.headers.get("content-type") == "application/json" and path != "/health":
            assert answer.headers["x-request-id"] == answer.json["requestId"]
        if answer.status >= 400:
            validate(answer.json, REFUSAL)
        return answer

    def create(self, action: str = TRIGGER, inputs: Any = None, **how: Any) -> dict[str, Any]:
        body = {"action": action} if inputs is None else {"action": action, "inputs": inputs}
        answer = self.post("/api/jobs", body, **how)
        assert answer.status == 202, answer
        return shown(answer)

    def job(self, job_id: str, **how: Any) -> dict[str, Any]:
        answer = self.get(f"/api/jobs/{job_id}", **how)
        assert answer.status == 200, answer
        return shown(answer)

    def cancel(self, job_id: str) -> dict[str, Any]:
        answer = self.post(f"/api/jobs/{job_id}/cancel")
        assert answer.status == 200, answer
        return shown(answer)

    def page(self, query: str = "", **how: Any) -> dict[str, Any]:
        answer = self.get(f"/api/jobs{query}", **how)
        assert answer.status == 200, answer
        validate(answer.json, JOBS)
        assert answer.json["data"] == answer.json["jobs"]
        return dict(answer.json)

    def refused(
        self, method: str, path: str, data: Any = None, headers: Mapping[str, str] | None = None, **how: Any
    ) -> tuple[int, str, dict[str, Any]]:
        """The status, the code and the details of a refusal."""
        answer = self(method, path, data, headers, **how)
        assert answer.status >= 400, answer
        return answer.status, answer.json["error"]["code"], answer.json["error"].get("details", {})

    def running(self, inputs: Any = None) -> tuple[str, Run]:
        """A job that a worker executes, and its run."""
        job_id = self.create(inputs=inputs)["id"]
        return job_id, self.h.started()

    @contextmanager
    def unchanged(self, *job_ids: str) -> Iterator[None]:
        before = [self.get(f"/api/jobs/{job_id}").json["job"] for job_id in job_ids]
        yield
        assert [self.get(f"/api/jobs/{job_id}").json["job"] for job_id in job_ids] == before


def shown(answer: Answer) -> dict[str, Any]:
    """The job of an answer."""
    validate(answer.json, STATUS)
    assert answer.json["data"] == answer.json["job"]
    return dict(answer.json["job"])


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends where it would wait for more."""

    async def disconnect(stream: Any) -> None:
        for pipe in stream.events._pipes:
            pipe.end()
        await asyncio.sleep(10)

    monkeypatch.setattr(streams.WatchStream, "_rest", disconnect)
