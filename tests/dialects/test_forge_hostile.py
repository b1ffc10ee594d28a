"""Small tokens, hostile texts and odd requests at the door of the Forge job queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.forge_door import SECRET, ForgeDoor, run_id
from tests.tiers import long
from windlass.dialects import settings_of
from windlass.errors import BadInput
from windlass.model import Scope

TEXTS = (Path(__file__).parents[1] / "page" / "hostile.txt").read_text(encoding="utf-8").splitlines()
PROGRAM = {"type": "prodplan", "solver_url": "https://a.example/solver", "solver_checksum": "a" * 64}


def token(forge: ForgeDoor, *scopes: Scope, worker: str | None = None) -> dict[str, str]:
    _, secret = forge.h(forge.h.engine.create_token(f"small {scopes} {worker}", scopes, worker=worker))
    forge.hub.forget_tokens()
    return {"authorization": f"Bearer {secret}"}


def test_a_token_of_one_worker_acts_as_no_other(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running("w1")
    bound = token(forge, "work", worker="w2")
    with forge.unchanged(job):
        for path, members in (
            ("/api/workers/register", {}),
            ("/api/jobs/claim", {}),
            (f"/api/jobs/{job}/heartbeat", {}),
            (f"/api/jobs/{job}/result", {"result": "42"}),
            (f"/api/jobs/{job}/fail", {"reason": "boom"}),
            ("/api/ingest/w1", {}),
        ):
            answer = forge.post(path, {"worker_id": "w1", **members}, bound)
            assert answer.status == 403, path
            assert set(answer.json) == {"error"}
    forge.create()
    assert forge.post("/api/jobs/claim", {"worker_id": "w2"}, bound).status == 200
    assert forge.post("/api/ingest/w2", {"cpu": 1}, bound).status == 204


def test_naming_a_program_needs_the_secret_or_the_scope_admin(forge: ForgeDoor) -> None:
    small, large = token(forge, "submit"), token(forge, "admin")
    assert forge.post("/api/jobs", PROGRAM, small).status == 403
    assert forge.post("/api/jobs", {"type": "prodplan"}, small).status == 201
    assert [forge.post("/api/jobs", PROGRAM, headers).status for headers in (large, None)] == [201, 201]


def test_the_secret_opens_nothing_but_the_dialect(forge: ForgeDoor) -> None:
    token(forge, "read")
    for path in ("/api/v1/runs", "/api/v1/jobs", "/metrics"):
        assert forge.get(path).status == 401
    assert forge.get("/api/jobs").status == 200


@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=long) for start in range(1, 10))])
def test_hostile_texts_come_back_as_they_were_sent(forge: ForgeDoor, start: int) -> None:
    for text in TEXTS[start::10]:
        _check_text(forge, text)


def _check_text(forge: ForgeDoor, text: str) -> None:
    job = forge.create(params={"text": text, text: 1}, priority=1)
    assert json.loads(forge.row(job)["params"]) == {"text": text, text: 1}
    forge.running()
    forge.fail(job, text)
    assert json.loads(forge.row(job)["fail_history"])[0]["reason"] == text == forge.row(job)["fail_reason"]
    forge.running()
    forge.result(job, text, result_hash=text[:100])
    row = forge.row(job)
    assert (row["result"], row["result_hash"]) == (text, text[:100])
    answer = forge.post("/api/jobs", {"type": text})
    assert answer.status == (201 if len(text) <= 128 else 400)
    assert len(text) > 128 or forge.row(answer.json["id"])["type"] == text


@pytest.mark.parametrize(
    "members",
    [
        {"type": "x" * 129}, {"type": "a\nb"}, {"type": 7}, {"priority": "high"}, {"priority": 1.5}, {"priority": 2**40},
        {"max_attempts": 0},
        {"max_attempts": 100_000}, {"max_runtime_ms": 0}, {"max_runtime_ms": -5}, {"max_runtime_ms": 2**62}, {"solver_url": "file:///etc/passwd"},
        {"solver_url": "https://a.example/x", "solver_checksum": "short"}, {"solver_url": 7}, {"solver_checksum": "x" * 5_000},
        {"params": "x" * 300_000}, {"params": "\0"}, {"params": 2**70},
    ],
    ids=str,
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused_and_nothing_is_stored(forge: ForgeDoor, members: dict[str, Any]) -> None:
    answer = forge.post("/api/jobs", {"type": "prodplan"} | members)
    assert answer.status in (400, 413), answer
    assert set(answer.json) == {"error"}
    assert forge.get("/api/jobs").json == []


@pytest.mark.parametrize(
    "members",
    [
        {"worker_id": "x" * 129}, {"worker_id": "a\0b"}, {"worker_id": 7}, {"types": "prodplan"}, {"types": [7]}, {"types": [""]},
        {"types": ["x" * 200]}, {"cores": -1}, {"cores": "many"}, {"ram_gb": -1}, {"ram_gb": 1e300}, {"tags": "gpu"}, {"tags": [""]},
        {"name": 7},
        {"name": "x" * 10_000},
    ],
    ids=str,
)  # fmt: skip
def test_a_worker_that_cannot_be_is_refused_and_gets_nothing(forge: ForgeDoor, members: dict[str, Any]) -> None:
    job = forge.create()
    path = "/api/jobs/claim" if members.keys() & {"types", "worker_id"} else "/api/workers/register"
    answer = forge.post(path, {"worker_id": "w1"} | members)
    assert answer.status in (400, 413), answer
    assert set(answer.json) == {"error"}
    assert forge.row(job)["status"] == "pending"
    assert forge.h(forge.h.engine.workers()) == []


def test_a_body_that_the_hub_does_not_read_leaves_the_job_to_its_lease(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running()
    with forge.unchanged(job):
        lists = b'{"worker_id": "w1", "result": [' + b"[]," * 1_100_000 + b"1]}"
        for body in (b'{"worker_id": "w1", "result": "' + b"x" * 9_000_000 + b'"}', lists):
            answer = forge("POST", f"/api/jobs/{job}/result", raw=body)
            assert (answer.status, set(answer.json)) == (413, {"error"})


@pytest.mark.parametrize("queue", ["", "a\nb", "x" * 129])
def test_a_queue_that_cannot_be_is_refused_before_the_hub_starts(queue: str) -> None:
    with pytest.raises(BadInput, match="A queue's name"):
        settings_of("forge", {"queue": queue}, {})


def test_a_refusal_does_not_name_the_description_of_the_native_routes(forge: ForgeDoor) -> None:
    for body in (b"", b"[]", b'{"type": 7}'):
        assert forge("POST", "/api/jobs", raw=body).json["error"].endswith("docs/dialects/forge.md describes it.")


@pytest.mark.parametrize("data", [[], "text", 7, None, [1], {"a": "x" * 17_000}], ids=lambda data: str(data)[:20])
def test_a_snapshot_that_cannot_be_kept_is_refused(forge: ForgeDoor, data: Any) -> None:
    for path, body in (("/api/ingest/n1", data), ("/api/ingest/n1/batch", [data])):
        assert forge("POST", path, raw=json.dumps(body).encode()).status in (400, 413)
    assert forge.get("/api/fleet").json == []


def test_the_name_of_a_node_is_short(forge: ForgeDoor) -> None:
    assert forge.post(f"/api/ingest/{'n' * 129}", {}).status == 400
    assert forge.post("/api/ingest/n1", {}, {"x-node-name": "n" * 129}).status == 400
    assert forge.get("/api/fleet").json == []


def test_errors_of_the_hub_itself_tell_nothing_of_it(forge: ForgeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    job = forge.create()
    with monkeypatch.context() as patch:
        patch.setattr(forge.h.engine.records.store, "batch", lambda *_: 1 / 0)
        answer = forge.get(f"/api/jobs/{job}")
    assert (answer.status, answer.json) == (500, {"error": "internal error"})


def test_pages_of_any_origin_may_read_and_ask_before_they_write(forge: ForgeDoor) -> None:
    asked = {
        "origin": "https://dashboard.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    before = forge("OPTIONS", "/api/jobs", None, {**asked, "authorization": ""})
    assert (before.status, before.headers["access-control-allow-origin"]) == (204, "*")
    assert before.headers["access-control-allow-headers"] == "authorization"
    for answer in (forge.get("/api/jobs", asked), forge.get("/api/jobs", {**asked, "authorization": f"Bearer {SECRET}x"})):
        assert answer.headers["access-control-allow-origin"] == "*"
    assert run_id("0" * 32) == "00000000-0000-0000-0000-000000000000"
