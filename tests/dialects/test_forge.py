"""F: the Forge job queue at its own door, line by line and in its own words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.doors import Answer, Door
from tests.dialects.forge_door import NOT_CANCELLABLE, NOT_FOUND, SECRET, UNASSIGNED, UNKNOWN, ForgeDoor, run_id
from tests.harness import Harness
from tests.places import beside
from windlass.dialects.forge import Forge, Settings, mount
from windlass.dialects.forge.words import LEASE, UNLIMITED
from windlass.machine import Requeue
from windlass.model import NewRun, Options


def hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_F1_a_job_is_created_pending_with_the_defaults(forge: ForgeDoor) -> None:
    answer = forge.post("/api/jobs", {"type": "prodplan"})
    assert (answer.status, answer.json) == (201, {"id": answer.json["id"], "status": "pending"})
    job = answer.json["id"]
    assert len(job) == 32
    assert set(job) <= set("0123456789abcdef")
    assert forge.row(job) == {
        "id": job, "type": "prodplan", "params": "{}", "status": "pending", "priority": 0, "worker_id": None, "result": None,
        "result_hash": None, "created_at": forge.h.clock.now(), "claimed_at": None, "heartbeat_at": None, "completed_at": None,
        "attempts": 0, "max_attempts": 3, "max_runtime_ms": 300_000, "fail_reason": None, "fail_history": "[]", "solver_url": None,
        "solver_checksum": None,
    }  # fmt: skip
    assert list(forge.row(job)) == list(forge.get("/api/jobs").json[0])


def test_F1_a_job_keeps_what_was_sent(forge: ForgeDoor) -> None:
    sent: dict[str, Any] = {
        "priority": 7,
        "max_attempts": 5,
        "max_runtime_ms": 1_000,
        "solver_url": "https://a.example/solver",
        "solver_checksum": "a" * 64,
    }
    row = forge.row(forge.create(params={"n": 1.0, "text": "Zoë"}, unknown=1, **sent))
    assert {name: row[name] for name in sent} == sent
    assert row["params"] == '{"n":1.0,"text":"Zoë"}'
    only_url, only_sum = forge.create(solver_url="https://a.example/solver"), forge.create(solver_checksum="anything")
    assert [(row["solver_url"], row["solver_checksum"]) for row in (forge.row(only_url), forge.row(only_sum))] == [
        ("https://a.example/solver", None),
        (None, "anything"),
    ]


@pytest.mark.parametrize("body", [{}, {"type": ""}, {"type": None, "params": {}}, {"params": {"type": "x"}}])
def test_F1_a_job_without_a_type_is_refused(forge: ForgeDoor, body: dict[str, Any]) -> None:
    answer = forge.post("/api/jobs", body)
    assert answer.status == 400
    assert answer.json == {"error": "type is required"}
    assert forge.get("/api/jobs").json == []


def test_F1_null_is_a_default_and_a_whole_number_may_have_a_point(forge: ForgeDoor) -> None:
    names = ("priority", "max_attempts", "max_runtime_ms")
    raw = b'{"type": "x", "params": null, "priority": 2.0, "max_attempts": 4.0, "max_runtime_ms": 6e4, "solver_url": null}'
    row = forge.row(forge.post("/api/jobs", raw=raw).json["id"])
    assert [row[name] for name in names] == [2, 4, 60_000]
    nulls = dict.fromkeys((*names, "params", "solver_url", "solver_checksum"))
    row = forge.row(forge.post("/api/jobs", {"type": "x"} | nulls).json["id"])
    assert ([row[name] for name in names], row["params"]) == ([0, 3, 300_000], "{}")


def test_F1_ids_are_read_in_both_forms(forge: ForgeDoor) -> None:
    job = forge.create()
    for form in (job, run_id(job), job.upper()):
        assert forge.row(form)["id"] == job


def test_F2_claim_picks_the_highest_priority_then_the_oldest(forge: ForgeDoor) -> None:
    jobs = []
    for priority in (0, 5, 0, 9, 5):
        jobs.append(forge.create(priority=priority))
        forge.h.clock.advance(1)
    assert [forge.claim(f"w{n}")["id"] for n in range(5)] == [jobs[3], jobs[1], jobs[4], jobs[0], jobs[2]]
    assert forge.refused_claim()


def test_F2_claim_gives_only_the_types_that_are_asked_for_also_jobs_with_a_solver(forge: ForgeDoor) -> None:
    plan = forge.create("prodplan", solver_url="https://a.example/solver", solver_checksum="a" * 64, priority=9)
    bench = forge.create("benchmark")
    assert forge.claim(types=["benchmark"])["id"] == bench
    assert forge.refused_claim(types=["benchmark", "other"])
    assert forge.claim(types=[])["id"] == plan


def test_F2_a_job_whose_definition_names_a_handler_is_claimed_by_it(forge: ForgeDoor) -> None:
    forge.h(forge.h.engine.define("nightly", handler="prodplan"))
    job = forge.create("nightly")
    assert forge.refused_claim(types=["nightly"])
    assert forge.claim(types=["prodplan"])["type"] == "prodplan"
    assert forge.row(job)["type"] == "nightly"


def test_F3_every_claim_gets_a_job_of_its_own(forge: ForgeDoor) -> None:
    jobs = {forge.create() for _ in range(20)}
    claims = [forge.post("/api/jobs/claim", {"worker_id": f"w{n}"}) for n in range(50)]
    rows = [claim.json for claim in claims if claim.status == 200]
    assert {row["id"] for row in rows} == jobs
    assert len(rows) == len({row["worker_id"] for row in rows}) == 20
    assert [claim.status for claim in claims[20:]] == [204] * 30


def test_F4_a_claim_sets_worker_times_and_attempts(forge: ForgeDoor) -> None:
    job = forge.create()
    for n in (1, 2):
        forge.h.clock.advance(10)
        row = forge.claim(f"w{n}")
        now = forge.h.clock.now()
        assert (row["status"], row["worker_id"], row["claimed_at"], row["heartbeat_at"], row["attempts"]) == (
            "assigned",
            f"w{n}",
            now,
            now,
            n,
        )
        assert row == forge.row(job)
        forge.fail(job, worker=f"w{n}")
        after = forge.row(job)
        assert (after["status"], after["worker_id"], after["claimed_at"], after["heartbeat_at"], after["attempts"]) == (
            "pending",
            None,
            None,
            None,
            n,
        )


def test_F4_an_attempt_that_was_returned_does_not_count(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.claim("w1")
    run = forge.h.get(run_id(job))
    forge.h.report(run, Requeue(token=run.token))
    assert (forge.row(job)["status"], forge.row(job)["attempts"], forge.row(job)["fail_history"]) == ("pending", 0, "[]")
    assert forge.claim("w2")["attempts"] == 1


def test_F4_a_claim_without_a_worker_is_refused(forge: ForgeDoor) -> None:
    forge.create()
    for body in ({}, {"worker_id": ""}):
        answer = forge.post("/api/jobs/claim", body)
        assert (answer.status, answer.json) == (400, {"error": "worker_id required"})


def test_F5_the_first_heartbeat_starts_and_every_one_renews(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.claim()
    for n in range(3):
        forge.h.clock.advance(40_000)
        answer = forge.beat(job)
        assert (answer.status, answer.body) == (204, b"")
        row = forge.row(job)
        assert (row["status"], row["heartbeat_at"], row["attempts"]) == ("running", forge.h.clock.now(), 1)
        assert row["claimed_at"] == forge.h.clock.now() - 40_000 * (n + 1)
        forge.reap()


CALLS: dict[str, Callable[[ForgeDoor, str, str], Answer]] = {
    "heartbeat": lambda forge, job, worker: forge.beat(job, worker),
    "result": lambda forge, job, worker: forge.result(job, worker=worker),
    "fail": lambda forge, job, worker: forge.fail(job, worker=worker),
}


@pytest.mark.parametrize("call", CALLS)
def test_F6_another_worker_is_refused_and_an_unknown_job_is_not_found(forge: ForgeDoor, call: str) -> None:
    forge.create()
    job = forge.running("w1")
    with forge.unchanged(job):
        answer = CALLS[call](forge, job, "w2")
        assert (answer.status, answer.json) == (409, UNASSIGNED)
    for unknown in (UNKNOWN, run_id(UNKNOWN), "17", "x" * 32, "..", "a" * 33):
        answer = CALLS[call](forge, unknown, "w1")
        assert (answer.status, answer.json) == (404, NOT_FOUND)
    pending = forge.create()
    with forge.unchanged(pending):
        assert CALLS[call](forge, pending, "w1").status == 409


def test_F7_a_result_completes_the_job(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running()
    forge.h.clock.advance(5)
    answer = forge.result(job, "42\n", result_hash=hash_of("42\n"))
    assert (answer.status, answer.json) == (200, {"ok": True, "duplicate": False})
    row = forge.row(job)
    assert (row["status"], row["result"], row["result_hash"]) == ("completed", "42\n", hash_of("42\n"))
    assert (row["completed_at"], row["worker_id"], row["attempts"], row["heartbeat_at"]) == (
        forge.h.clock.now(),
        "w1",
        1,
        forge.h.clock.now(),
    )


def test_F7_a_job_that_is_only_assigned_completes_too(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.claim()
    assert forge.result(job).status == 200
    assert forge.row(job)["status"] == "completed"


def test_F8_the_same_result_again_is_a_duplicate_from_any_worker(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running()
    key = {"x-idempotency-key": "result-1"}
    forge.result(job, "42", result_hash=hash_of("42"), headers=key)
    forge.h.clock.advance(10)
    repeats: list[dict[str, Any]] = [
        {"result": "42", "result_hash": hash_of("42")},
        {"result": "42", "result_hash": hash_of("42"), "worker": "w2"},
        {"result": "in another form", "result_hash": hash_of("42")},
        {"result": "43", "result_hash": hash_of("43"), "headers": key},
        {"result": "43", "worker": "w3", "headers": key},
    ]
    for again in repeats:
        with forge.unchanged(job):
            answer = forge.result(job, **again)
            assert (answer.status, answer.json) == (200, {"ok": True, "duplicate": True})
    assert forge.h.moves(run_id(job)) == ["create", "claim", "start", "succeed"]


def test_F9_another_result_is_refused_and_equal_bytes_count_as_the_same_hash(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running()
    forge.result(job, "42", result_hash=hash_of("42"))
    with forge.unchanged(job):
        assert forge.result(job, "43", result_hash=hash_of("43")).status == 409
        assert forge.result(job, "42", result_hash=hash_of("43")).status == 409
        assert forge.result(job, "43").status == 409
        assert forge.result(job, "43", headers={"x-idempotency-key": "another"}).status == 409
        assert forge.result(job, "42").json == {"ok": True, "duplicate": True}


def test_F10_a_failure_with_attempts_left_is_pending_again_at_once(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.running("w1")
    answer = forge.fail(job, "exit code 1: out of memory", "w1")
    assert (answer.status, answer.json) == (200, {"ok": True, "newStatus": "pending"})
    first = forge.h.clock.now()
    forge.h.clock.advance(5)
    assert forge.claim("w2")["fail_reason"] == "exit code 1: out of memory"
    forge.fail(job, "exit code 2: ", "w2")
    row = forge.row(job)
    assert (row["status"], row["worker_id"], row["fail_reason"], row["attempts"]) == ("pending", None, "exit code 2: ", 2)
    assert json.loads(row["fail_history"]) == [
        {"reason": "exit code 1: out of memory", "worker_id": "w1", "ts": first},
        {"reason": "exit code 2: ", "worker_id": "w2", "ts": first + 5},
    ]
    forge.running("w3")
    forge.result(job, worker="w3")
    done = forge.row(job)
    assert (done["status"], done["fail_reason"], done["attempts"], done["fail_history"]) == (
        "completed",
        "exit code 2: ",
        3,
        row["fail_history"],
    )


def test_F10_a_failure_without_a_reason_and_one_with_an_odd_one_are_failures_too(forge: ForgeDoor) -> None:
    job = forge.create(max_attempts=9)
    for reason in (b"", b', "reason": null', b', "reason": 5', b', "reason": {"code": 1}', b', "reason": "half \\ud83d and \\u0000"'):
        forge.running("w1")
        assert forge("POST", f"/api/jobs/{job}/fail", raw=b'{"worker_id": "w1"%b}' % reason).json["newStatus"] == "pending"
    reasons = [fail["reason"] for fail in json.loads(forge.row(job)["fail_history"])]
    assert reasons == ["", "", "5", '{"code": 1}', "half ? and \ufffd"]


def test_F7_a_hash_that_is_no_text_is_stored_as_its_json(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.running()
    assert [forge.result(job, result_hash=5).json["duplicate"] for _ in range(2)] == [False, True]
    assert forge.row(job)["result_hash"] == "5"


def test_F11_a_failure_with_none_left_quarantines(forge: ForgeDoor) -> None:
    job = forge.create(max_attempts=1)
    forge.running()
    assert forge.fail(job, "boom").json == {"ok": True, "newStatus": "quarantined"}
    row = forge.row(job)
    assert (row["status"], row["worker_id"], row["fail_reason"], row["attempts"], row["completed_at"]) == (
        "quarantined",
        "w1",
        "boom",
        1,
        None,
    )
    assert json.loads(row["fail_history"]) == [{"reason": "boom", "worker_id": "w1", "ts": forge.h.clock.now()}]


def test_F12_an_attempt_is_counted_once_so_a_limit_of_three_gives_three_tries(forge: ForgeDoor) -> None:
    job = forge.create()
    for n, status in ((1, "pending"), (2, "pending"), (3, "quarantined")):
        assert forge.claim()["attempts"] == n
        assert forge.fail(job).json["newStatus"] == status
        assert forge.row(job)["attempts"] == n
    assert forge.refused_claim()


def test_F13_a_job_without_heartbeat_is_pending_again_and_its_old_worker_is_refused(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running("w1")
    forge.reap(after=LEASE - 1)
    assert forge.row(job)["status"] == "running"
    forge.reap(after=1)
    row = forge.row(job)
    assert (row["status"], row["worker_id"], row["heartbeat_at"], row["attempts"]) == ("pending", None, None, 1)
    assert (row["fail_reason"], row["fail_history"]) == (None, "[]")
    forge.claim("w2")
    with forge.unchanged(job):
        for call in CALLS.values():
            assert call(forge, job, "w1").status == 409


@pytest.mark.parametrize(("report", "status"), [("fail", "pending"), ("result", "completed")])
def test_F13_a_job_that_was_lost_and_claimed_again_at_another_hub_is_reported_at_either(forge: ForgeDoor, report: str, status: str) -> None:
    other = ForgeDoor(forge.h)
    forge.create()
    job = forge.running("w1")
    forge.reap(after=LEASE)
    assert other.claim("w1")["id"] == job
    assert CALLS[report](forge, job, "w1").status == 200
    assert forge.row(job)["status"] == status
    other.close()


@pytest.mark.parametrize(("report", "status"), [("fail", "pending"), ("result", "completed")])
def test_F10_a_failure_that_another_hub_was_told_of_is_not_taken_for_the_next_one(forge: ForgeDoor, report: str, status: str) -> None:
    other = ForgeDoor(forge.h)
    job = forge.create()
    forge.running("w1")
    assert CALLS["fail"](other, job, "w1").status == 200
    assert other.claim("w1")["id"] == job
    assert CALLS[report](forge, job, "w1").status == 200
    assert (forge.row(job)["status"], forge.row(job)["attempts"]) == (status, 2)
    assert len(json.loads(forge.row(job)["fail_history"])) == (2 if report == "fail" else 1)
    other.close()


def test_F8_a_result_that_another_hub_was_told_of_is_a_duplicate(forge: ForgeDoor) -> None:
    other = ForgeDoor(forge.h)
    job = forge.create()
    forge.running("w1")
    assert [door.result(job).json["duplicate"] for door in (other, forge, other)] == [False, True, True]
    other.close()


def test_F14_a_job_without_heartbeat_and_without_attempts_left_is_quarantined(forge: ForgeDoor) -> None:
    job = forge.create(max_attempts=2)
    forge.running()
    forge.fail(job, "first")
    forge.running()
    forge.reap(after=LEASE)
    row = forge.row(job)
    assert (row["status"], row["fail_reason"], row["attempts"]) == ("quarantined", "heartbeat_timeout", 2)
    assert [fail["reason"] for fail in json.loads(row["fail_history"])] == ["first"]


@pytest.mark.parametrize("begins", [True, False], ids=["running", "assigned"])
def test_F15_a_job_over_its_runtime_is_quarantined_though_it_beats_and_has_attempts_left(forge: ForgeDoor, begins: bool) -> None:
    job = forge.create(max_runtime_ms=50_000)
    forge.claim()
    if begins:
        forge.beat(job)
        forge.reap(after=40_000)
        assert forge.beat(job).status == 204
        forge.reap(after=9_999)
    else:
        forge.reap(after=49_999)
    assert forge.row(job)["status"] == ("running" if begins else "assigned")
    forge.reap(after=2)
    row = forge.row(job)
    assert (row["status"], row["fail_reason"], row["fail_history"], row["attempts"]) == ("quarantined", "max_runtime_exceeded", "[]", 1)
    assert forge.beat(job).status == 409


def test_F16_pending_and_assigned_jobs_are_cancelled_and_no_others(forge: ForgeDoor) -> None:
    pending, assigned = forge.create(), forge.create(priority=1)
    forge.claim("w1")
    for job in (pending, assigned):
        answer = forge.delete(f"/api/jobs/{job}")
        assert (answer.status, answer.body) == (204, b"")
        row = forge.row(job)
        assert (row["status"], row["fail_reason"], row["completed_at"]) == ("failed", "cancelled", None)
    assert (forge.row(pending)["attempts"], forge.row(assigned)["attempts"], forge.row(assigned)["worker_id"]) == (0, 1, "w1")
    forge.create()
    running = forge.running("w2")
    for job in (pending, assigned, running):
        with forge.unchanged(job):
            answer = forge.delete(f"/api/jobs/{job}")
            assert (answer.status, answer.json) == (404, NOT_CANCELLABLE)
    assert forge.delete(f"/api/jobs/{UNKNOWN}").json == NOT_CANCELLABLE
    assert forge.delete("/api/jobs/17").json == NOT_CANCELLABLE


def test_F16_a_cancel_is_audited(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.delete(f"/api/jobs/{job}")
    (entry,) = forge.h(forge.h.engine.audit()).entries
    assert (entry.actor, entry.what, entry.subject) == ("forge", "cancel", f"run {run_id(job)}")


ENDS: dict[str, Callable[[ForgeDoor, str], object]] = {
    "completed": lambda forge, job: forge.result(job, "first"),
    "quarantined": lambda forge, job: forge.fail(job),
}


@pytest.mark.parametrize("end", ["cancelled", "confirmed", *ENDS])
def test_F17_a_late_word_on_an_ended_job_is_refused_and_changes_nothing(forge: ForgeDoor, end: str) -> None:
    job = forge.create(max_attempts=1)
    forge.claim()
    if end in ENDS:
        ENDS[end](forge, job)
    else:
        forge.delete(f"/api/jobs/{job}")
    if end == "confirmed":
        forge.h.clock.advance(5)
        assert forge.result(job).status == 409  # the worker has let go
    before = forge.row(job)
    forge.h.clock.advance(5)
    for call in CALLS.values():
        for worker in ("w1", "w2"):
            answer = call(forge, job, worker)
            assert answer.status == 409, answer
            assert forge.row(job) == before
    forge.reap(after=LEASE)
    assert forge.row(job) == before
    assert forge.refused_claim()


OPEN = {"/api/jobs/events", "/api/fleet/events", "/api/health"}


def test_F18_the_secret_is_needed_everywhere_but_for_the_streams(forge: ForgeDoor) -> None:
    job = forge.create()
    forge.headers = {}
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": SECRET}, {"authorization": f"Basic {SECRET}"}):
        for method, path in (
            ("POST", "/api/jobs"), ("GET", "/api/jobs"), ("GET", f"/api/jobs/{job}"), ("DELETE", f"/api/jobs/{job}"),
        ):  # fmt: skip
            answer = forge(method, path, {"type": "prodplan"} if method == "POST" else None, wrong, client=("10.0.0.1", 1))
            assert (answer.status, answer.json) == (401, {"error": "unauthorized"})
    assert forge.get("/api/health").json == {"ok": True, "mode": "hub", "clients": 0, "nodes": 0}


def test_F18_a_setting_opens_the_reads_and_another_closes_the_streams(h: Harness) -> None:
    forge = ForgeDoor(h, open_reads=True, open_events=False)
    job = forge.create()
    forge.headers = {}
    for path in ("/api/jobs", f"/api/jobs/{job}", "/api/jobs/counts-by-worker", "/api/fleet"):
        assert forge.get(path).status == 200
    assert forge.get("/api/jobs/events").status == 401
    assert forge.post("/api/jobs", {"type": "prodplan"}).status == 401
    forge.close()


def test_F18_without_the_secret_only_jobs_of_the_own_queue_are_shown(h: Harness) -> None:
    (other,) = h(h.engine.create([NewRun("billing", {"card": 1})], undefined="wait"))
    closed = ForgeDoor(h)
    assert closed.get(f"/api/jobs/{other.id}").json["params"] == '{"card":1}'  # the secret shows every run
    closed.close()
    forge = ForgeDoor(h, open_reads=True)
    own = forge.create()
    forge.headers = {}
    assert forge.get(f"/api/jobs/{own}").status == 200
    for answer in (forge.get(f"/api/jobs/{other.id}"), forge.get(f"/api/jobs/{UNKNOWN}")):
        assert (answer.status, answer.json) == (404, NOT_FOUND)
    forge.close()


PAGES = {
    "https://dashboard.example": False,
    "null": False,
    "http://127.0.0.1.example": False,
    "http://localhost:5173": True,
    "http://[::1]:80": True,
}


@pytest.mark.parametrize("origin", PAGES)
@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/events", "/api/fleet", "/api/none"])
def test_F18_without_a_secret_only_pages_of_this_machine_may_read(h: Harness, origin: str, path: str) -> None:
    open_to_all = Door(h, mount(Settings(), h.clock), prefix="/dialects/forge")
    assert open_to_all.get(path, origin=origin).headers.get("access-control-allow-origin") == ("*" if PAGES[origin] else None)
    open_to_all.close()
    forge = ForgeDoor(h)
    assert forge.get(path, origin=origin).headers["access-control-allow-origin"] == "*"
    forge.close()


@pytest.mark.parametrize("path", sorted(OPEN))
def test_F18_on_an_open_hub_what_needs_no_credential_is_not_told_under_other_names(h: Harness, path: str) -> None:
    door = Door(h, mount(Settings(), h.clock), prefix="/dialects/forge")
    foreign = {"host": "evil.example"}
    assert [door.get(path, headers).status for headers in (foreign, None)] == [403, 200]
    h(h.engine.create_token("first", ("admin",)))
    door.hub.forget_tokens()
    assert door.get(path, foreign).status == 200
    door.close()


def test_F18_without_a_secret_it_is_open_where_the_hub_is(h: Harness) -> None:
    door = Door(h, mount(Settings(), h.clock), prefix="/dialects/forge")
    assert door.post("/api/jobs", {"type": "prodplan"}).status == 201
    assert door.get("/api/jobs", {"x-forwarded-for": "10.0.0.1"}).json == {"error": "unauthorized"}
    h(h.engine.create_token("first", ("admin",)))
    door.hub.forget_tokens()
    assert door.get("/api/jobs").json == {"error": "unauthorized"}
    door.close()


def test_F19_the_list_is_filtered_and_in_pages(forge: ForgeDoor) -> None:
    low = [forge.create(priority=1) for _ in range(3)]
    high = [forge.create(priority=2) for _ in range(3)]
    expected = [*reversed(high), *reversed(low)]
    assert [row["id"] for row in forge.get("/api/jobs").json] == expected
    assert [row["id"] for row in forge.get("/api/jobs?limit=2&offset=1").json] == expected[1:3]
    assert forge.get("/api/jobs?limit=0").json == []
    claimed = forge.claim()["id"]
    assert claimed == high[0]
    assert [row["id"] for row in forge.get("/api/jobs?status=assigned").json] == [claimed]
    assert len(forge.get("/api/jobs?status=pending").json) == 5
    assert forge.get("/api/jobs?status=completed").json == []


def test_F19_a_limit_above_two_hundred_is_two_hundred_and_fifty_is_usual(forge: ForgeDoor) -> None:
    forge.h(forge.h.engine.create([NewRun("prodplan", n, Options(queue="forge")) for n in range(201)], undefined="wait"))
    assert len(forge.get("/api/jobs?limit=1000000").json) == 200
    assert len(forge.get("/api/jobs").json) == 50


@pytest.mark.parametrize("query", ["limit=-1", "limit=x", "offset=-1", "limit=1.5", "status=lost", "status=PENDING", "limit=", "limit=NaN"])
def test_F19_a_list_that_cannot_be_is_refused(forge: ForgeDoor, query: str) -> None:
    answer = forge.get(f"/api/jobs?{query}")
    assert answer.status == 400
    assert set(answer.json) == {"error"}


def test_F19_a_list_has_large_rows_whole_but_not_too_many(forge: ForgeDoor) -> None:
    for _ in range(18):
        forge.create(params="x" * 10_000)
        forge.result(forge.running(), "y" * 1_000_000)
    assert {len(row["result"]) for row in forge.get("/api/jobs?limit=10").json} == {1_000_000}
    assert {len(row["params"]) for row in forge.get("/api/jobs?limit=10").json} == {10_002}
    answer = forge.get("/api/jobs")
    assert answer.status == 413
    assert "smaller limit" in answer.json["error"]


def test_F20_a_worker_registers_twice_and_is_one_row(forge: ForgeDoor) -> None:
    worker = {"worker_id": "w1", "name": "Worker 01", "cores": 8, "ram_gb": 1.5, "tags": ["gpu"]}
    for body in (worker, {"worker_id": "w1", "cores": 4}):
        answer = forge.post("/api/workers/register", body)
        assert (answer.status, answer.body) == (204, b"")
        forge.h.clock.advance(1_000)
    (record,) = forge.h(forge.h.engine.workers())
    assert (record.info.name, record.info.cores, record.info.memory, record.info.queues) == ("w1", 4, 1024, ("forge",))
    assert (record.about, record.seen_at) == ({"name": "Worker 01"}, forge.h.clock.now() - 1_000)
    for refused in ({"cores": 1}, {"worker_id": None}):
        assert forge.post("/api/workers/register", refused).json == {"error": "worker_id required"}
    assert forge.post("/api/workers/register", {"worker_id": "w1", "name": None, "cores": None, "ram_gb": None, "tags": None}).status == 204
    (record,) = forge.h(forge.h.engine.workers())
    assert (record.info.cores, record.info.memory, record.about) == (1, 1024, {"name": "Worker 01"})


def test_F20_a_claim_is_a_sign_of_life(forge: ForgeDoor) -> None:
    forge.post("/api/workers/register", {"worker_id": "w1"})
    forge.h.clock.advance(50_000)
    forge.refused_claim("w1")
    forge.h.clock.advance(50_000)
    assert [record.alive for record in forge.h(forge.h.engine.workers())] == [True]


def test_F28_counts_by_worker_are_of_assigned_and_running_jobs(forge: ForgeDoor) -> None:
    for _ in range(5):
        forge.create()
    forge.claim("w1")
    forge.running("w1")
    forge.running("w2")
    forge.result(forge.running("w3"), worker="w3")
    cancelled = forge.claim("w4")["id"]
    forge.delete(f"/api/jobs/{cancelled}")
    assert forge.get("/api/jobs/counts-by-worker").json == {"w1": 2, "w2": 1}


@pytest.mark.parametrize("result", ["42\n", "", '"quoted"', "{}", "Zoë 🙂 \t\r\n", '{"a": 1.0}', "null"])
def test_F29_a_result_comes_back_byte_for_byte(forge: ForgeDoor, result: str) -> None:
    forge.create()
    job = forge.running()
    forge.result(job, result)
    assert forge.row(job)["result"] == result


@pytest.mark.parametrize("result", [{"a": [1, 2.5, None]}, [1, 2], 7, 1.0, True, None])
def test_F29_a_result_that_is_no_text_is_stored_as_its_json_text(forge: ForgeDoor, result: Any) -> None:
    forge.create()
    job = forge.running()
    forge.result(job, result)
    assert forge.row(job)["result"] == json.dumps(result, separators=(",", ":"))


def test_F29_params_result_and_history_are_texts(forge: ForgeDoor) -> None:
    job = forge.create(params={"horizon": 7, "rate": 1.0, "list": [1, 2]}, max_attempts=9)
    forge.running()
    forge.fail(job)
    forge.result(forge.running())
    row = forge.row(job)
    assert row["params"] == '{"horizon":7,"rate":1.0,"list":[1,2]}'
    assert isinstance(row["fail_history"], str)
    assert '", ' not in row["fail_history"]


def test_F30_a_quarantined_job_is_never_handed_out_again(forge: ForgeDoor) -> None:
    job = forge.create(max_attempts=1)
    forge.running()
    forge.fail(job)
    for _ in range(3):
        forge.reap(after=LEASE * 5)
        assert forge.refused_claim()
        assert forge.refused_claim(types=["prodplan"])
    assert forge.row(job)["status"] == "quarantined"


def test_F31_jobs_of_other_queues_are_neither_claimed_nor_listed_nor_changed_but_read(forge: ForgeDoor) -> None:
    other = forge.h.create("mail", {"to": "ann"})
    assert forge.refused_claim()
    assert forge.refused_claim(types=["mail"])
    assert forge.get("/api/jobs").json == []
    row = forge.row(other)
    assert (row["id"], row["type"], row["params"], row["status"]) == (other.replace("-", ""), "mail", '{"to":"ann"}', "pending")
    assert row["max_runtime_ms"] == UNLIMITED
    assert forge.delete(f"/api/jobs/{other}").status == 404
    run = forge.h.claimed("native")
    for call in CALLS.values():
        assert call(forge, other, "native").status == 404
    assert forge.h.get(other) == run
    assert forge.get("/api/jobs/counts-by-worker").json == {}


def test_F31_a_job_of_the_protocol_is_a_run_of_its_queue(forge: ForgeDoor) -> None:
    job = forge.create(params={"n": 1}, priority=3)
    assert forge.h.claim(queues=("default",)) == []
    run = forge.h.get(run_id(job))
    assert (run.job, run.queue, run.priority, run.max_runtime) == ("prodplan", "forge", 3, 300_000)


def test_F31_the_queue_is_a_setting(h: Harness) -> None:
    forge = ForgeDoor(h, queue="solvers")
    assert h.get(run_id(forge.create())).queue == "solvers"
    forge.claim()
    forge.close()


def test_F32_an_agent_that_was_restarted_claims_at_once(forge: ForgeDoor) -> None:
    old, new = forge.create(), forge.create()
    assert forge.claim("w1")["id"] == old
    assert forge.claim("w1")["id"] == new
    forge.reap(after=LEASE - 1)
    assert forge.beat(new, "w1").status == 204
    forge.reap(after=1)
    assert (forge.row(old)["status"], forge.row(new)["status"]) == ("pending", "running")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (json.dumps({"worker_id": "w1", "result": "x" * 1_100_000}).encode(), 413),
        (b'{"worker_id": "w1", "result": "half \\ud83d"}', 400),
        (b'{"worker_id": "w1", "result": "zero \\u0000"}', 400),
        (b'{"worker_id": "w1", "result": NaN}', 400),
        (b'{"worker_id": "w1", "result": 123456789012345678901234567890}', 400),
        (b'{"worker_id": "w1", "result": ' + b"[" * 70 + b"]" * 70 + b"}", 400),
    ],
    ids=["large", "surrogate", "NUL", "NaN", "integer", "deep"],
)
def test_F33_a_result_that_cannot_be_stored_is_refused_and_fails_the_attempt(forge: ForgeDoor, raw: bytes, status: int) -> None:
    job = forge.create(max_attempts=2)
    for n, after in ((1, "pending"), (2, "quarantined")):
        forge.running()
        answer = forge("POST", f"/api/jobs/{job}/result", raw=raw)
        assert answer.status == status
        assert set(answer.json) == {"error"}
        row = forge.row(job)
        assert (row["status"], row["attempts"], row["result"]) == (after, n, None)
        assert row["fail_reason"].startswith("The result")
    with forge.unchanged(job):
        assert forge("POST", f"/api/jobs/{job}/result", raw=raw).status == 409


def test_F33_a_bad_result_of_another_worker_or_of_a_completed_job_changes_nothing(forge: ForgeDoor) -> None:
    forge.create()
    job = forge.running("w1")
    with forge.unchanged(job):
        assert forge("POST", f"/api/jobs/{job}/result", raw=b'{"worker_id": "w2", "result": "\\u0000"}').status == 409
    forge.result(job)
    with forge.unchanged(job):
        assert forge("POST", f"/api/jobs/{job}/result", raw=b'{"worker_id": "w1", "result": "\\u0000"}').status == 400


OTHER_WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
print(*db.execute("pragma journal_mode").fetchone())
print(*(name for (name,) in db.execute("select name from sqlite_master where type = 'index'")))
db.execute("begin immediate")
print("writing", flush=True)
sys.stdin.readline()
db.execute("rollback")
"""


def test_F27_the_store_has_a_log_writers_that_wait_and_indexes_for_claims(tmp_path: Path) -> None:
    """Its own tables, not those of the document: what these are for holds."""
    path = str(tmp_path / "jobs.db")
    with Forge(path) as queue:
        queue.create_job("prodplan")
        command = [sys.executable, "-c", OTHER_WRITER, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            mode, indexes, _ = (other.stdout.readline() for _ in range(3))
            assert mode == "wal\n"
            assert {"job_runs_ready", "job_runs_queue"} <= set(indexes.split())
            assert len(queue.list_jobs()) == 1
            with beside(lambda: _create(queue)):
                other.stdin.write("end\n")
                other.stdin.flush()
        assert len(queue.list_jobs()) == 2


def _create(queue: Forge) -> None:
    queue.create_job("prodplan")
