"""L: the SO1 job lifecycle at its own door, line by line and in its own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.conformance import dump
from tests.dialects.so1_door import ANN, BEN, EVE, TRIGGER, UNKNOWN, So1, bearer, shown
from tests.dialects.so1_schema import HEALTH, SESSION, validate
from tests.harness import LEASE, Harness, token
from windlass.api.values import to_rfc3339
from windlass.dialects.so1 import WORDS, JobState
from windlass.dialects.so1.verbs import OrgJobs
from windlass.dialects.so1.words import Job
from windlass.errors import Cancelled, LeaseLost, WindlassError
from windlass.machine import Fail, Requeue, Snooze, Succeed
from windlass.model import Failure, Run, State, WorkerInfo
from windlass.store.records import Held

DAY = 24 * 3_600_000
GITHUB = Failure("GITHUB_ERROR", "The workflow was not found.")


@pytest.fixture
def so1(h: Harness) -> Iterator[So1]:
    door = So1(h)
    yield door
    door.close()


def test_L1_a_new_job_is_pending_and_has_neither_begun_nor_ended(so1: So1) -> None:
    answer = so1.post("/api/jobs", {"action": TRIGGER, "inputs": {"repo": "a/b"}, "note": "not known to anybody"})
    assert answer.status == 202
    job = shown(answer)
    assert (job["state"], job["createdAt"], job["logs"]) == ("pending", to_rfc3339(so1.h.clock.now()), [])
    assert not {"startedAt", "completedAt", "output", "error"} & job.keys()
    assert job["metadata"] == {
        "requestId": answer.json["requestId"], "userId": "ann", "orgId": "acme", "action": TRIGGER, "inputs": {"repo": "a/b"},
    }  # fmt: skip
    assert so1.job(job["id"]) == job


@pytest.mark.parametrize("end", [None, Succeed(output="7"), Fail(error=GITHUB)], ids=["running", "success", "failed"])
def test_L1_a_new_job_is_pending_in_the_answer_however_quick_a_worker_is(
    so1: So1, monkeypatch: pytest.MonkeyPatch, end: Succeed | Fail | None
) -> None:
    get_job = OrgJobs.get_job

    async def get_later(jobs: OrgJobs, job_id: str) -> Job:
        (run,) = await so1.h.engine.claim(WorkerInfo("w1", queues=("so1",)))
        await so1.h.engine.log(run.id, run.token or "", [(1, "begun")])
        if end is not None:
            await so1.h.engine.report(run.id, replace(end, token=run.token))
        return await get_job(jobs, job_id)

    monkeypatch.setattr(OrgJobs, "get_job", get_later)
    job = so1.create(idempotency_key="k")
    assert (job["state"], job["logs"]) == ("pending", [])
    assert not {"startedAt", "completedAt", "output", "error"} & job.keys()
    monkeypatch.undo()
    assert so1.create(idempotency_key="k") == so1.job(job["id"])  # asked again, it is told as it is
    assert so1.job(job["id"])["state"] != "pending"


@pytest.mark.parametrize("waits", [{"delay": 60_000}, {}])
def test_L1_whatever_a_job_waits_for_it_is_pending(so1: So1, waits: dict[str, Any]) -> None:
    job_id = so1.create()["id"]
    if waits:
        so1.h(so1.h.engine.patch(job_id, due_at=so1.h.clock.now() + waits["delay"]))
    assert so1.job(job_id)["state"] == "pending"


def test_L2_a_job_that_a_worker_has_is_running_since_its_claim_once_and_for_all(so1: So1) -> None:
    job_id = so1.create()["id"]
    so1.h.clock.advance(10)
    run = so1.h.claimed()
    claimed = so1.job(job_id)
    assert (claimed["state"], claimed["startedAt"]) == ("running", to_rfc3339(so1.h.clock.now()))
    assert "completedAt" not in claimed
    so1.h.clock.advance(10)
    so1.h(so1.h.engine.start(run.id, token(run)))
    assert so1.job(job_id) == claimed
    so1.h.succeed(run)
    assert so1.job(job_id)["startedAt"] == claimed["startedAt"]


def test_L3_a_success_has_its_end_and_its_output_and_no_error(so1: So1) -> None:
    job_id, run = so1.running()
    so1.h.clock.advance(10)
    so1.h.succeed(run, '{"url":"x"}')
    job = so1.job(job_id)
    assert (job["state"], job["completedAt"], job["output"]) == ("success", to_rfc3339(so1.h.clock.now()), {"url": "x"})
    assert "error" not in job


@pytest.mark.parametrize("output", [None, "null"])
def test_L3_an_output_that_is_null_is_left_out(so1: So1, output: str | None) -> None:
    job_id, run = so1.running()
    so1.h.succeed(run, output)
    assert "output" not in so1.job(job_id)


def test_L4_a_failure_has_its_end_and_an_error_and_there_is_no_second_execution(so1: So1) -> None:
    so1.h.define(TRIGGER, max_attempts=9)
    job_id, run = so1.running()
    so1.h.clock.advance(10)
    so1.h.fail(run, Failure(GITHUB.code, GITHUB.message, "Traceback: a secret path"))
    job = so1.job(job_id)
    assert (job["state"], job["completedAt"]) == ("failed", to_rfc3339(so1.h.clock.now()))
    assert job["error"] == {"code": "GITHUB_ERROR", "message": "The workflow was not found."}
    assert "output" not in job
    so1.h.sweep(after=DAY)
    assert so1.h.claim(10) == []


def test_L4_a_lost_and_a_quarantined_job_have_failed_too(so1: So1) -> None:
    so1.h.define(TRIGGER, on_exhausted="quarantined")
    quarantined, run = so1.running()
    so1.h.fail(run)
    assert so1.h.get(run.id).state is State.QUARANTINED
    lost, _ = so1.running()
    so1.h.sweep(after=LEASE)
    assert [so1.job(job_id)["state"] for job_id in (quarantined, lost)] == ["failed", "failed"]
    assert so1.job(lost)["error"]["code"] == "worker_lost"


def test_L5_a_pending_job_is_cancelled_at_once_and_no_worker_gets_it(so1: So1) -> None:
    job_id = so1.create()["id"]
    so1.h.clock.advance(10)
    job = so1.cancel(job_id)
    assert (job["state"], job["completedAt"]) == ("cancelled", to_rfc3339(so1.h.clock.now()))
    assert "startedAt" not in job
    so1.h.sweep(after=LEASE)
    assert so1.h.claim(10) == []
    assert so1.job(job_id) == job


def test_L6_a_running_job_is_cancelled_at_the_ask_and_its_worker_is_told(so1: So1) -> None:
    job_id, run = so1.running()
    so1.h.clock.advance(10)
    job = so1.cancel(job_id)
    assert (job["state"], job["completedAt"]) == ("cancelled", to_rfc3339(so1.h.clock.now()))
    assert so1.h(so1.h.engine.beat([Held(run.seq, token(run))])) == ["stop"]
    so1.h.clock.advance(10)
    with so1.unchanged(job_id), pytest.raises(Cancelled):
        so1.h.succeed(run, '"done"')
    assert so1.h.get(run.id).state is State.CANCELLED
    assert so1.job(job_id) == job


def test_L6_what_a_worker_writes_while_it_stops_is_not_part_of_the_job(so1: So1) -> None:
    job_id, run = so1.running()
    for first in (1, 601):
        so1.h(so1.h.engine.log(run.id, token(run), [(n, f"line {n}") for n in range(first, first + 600)]))
    job = so1.cancel(job_id)
    assert job["logs"] == [f"line {n}" for n in range(201, 1_201)]
    so1.h.clock.advance(1)
    with so1.unchanged(job_id):
        so1.h(so1.h.engine.log(run.id, token(run), [(n, "stopping") for n in range(1_201, 1_801)]))
    assert len(so1.h(so1.h.engine.lines(run.id, after=(1, 1_200), count=1_000))) == 600


ENDS: dict[str, Callable[[So1, str, Run], object]] = {
    "success": lambda so1, job_id, run: so1.h.succeed(run, '"done"'),
    "failed": lambda so1, job_id, run: so1.h.fail(run),
    "cancelled": lambda so1, job_id, run: so1.cancel(job_id),
}
LATER: dict[str, Callable[[So1, Run], object]] = {
    "start": lambda so1, run: so1.h(so1.h.engine.start(run.id, token(run))),
    "succeed": lambda so1, run: so1.h.report(run, Succeed(token=run.token, output='"other"')),
    "fail": lambda so1, run: so1.h.report(run, Fail(token=run.token, error=GITHUB)),
    "snooze": lambda so1, run: so1.h.report(run, Snooze(token=run.token, delay=1)),
    "requeue": lambda so1, run: so1.h.report(run, Requeue(token=run.token)),
    "skip": lambda so1, run: so1.h(so1.h.engine.skip(run.id, reason="late")),
    "patch": lambda so1, run: so1.h(so1.h.engine.patch(run.id, payload={})),
}


@pytest.mark.parametrize("end", ENDS)
def test_L7_nothing_leaves_an_end_and_the_record_stays_byte_identical(so1: So1, end: str) -> None:
    job_id, run = so1.running()
    ENDS[end](so1, job_id, run)
    assert so1.job(job_id)["state"] == end
    so1.h.clock.advance(LEASE * 2)
    with so1.unchanged(job_id):
        for later in LATER.values():
            with pytest.raises(WindlassError):
                later(so1, run)
        so1.h.sweep()
        again = so1.post(f"/api/jobs/{job_id}/cancel"), so1.delete(f"/api/jobs/{job_id}")
        assert {answer.status for answer in again} == {200 if end == "cancelled" else 409}
    if end != "cancelled":
        assert again[0].json["error"]["code"] == "CONFLICT"


def test_L7_cancelling_again_answers_the_same(so1: So1) -> None:
    job_id, _ = so1.running()
    first = so1.cancel(job_id)
    so1.h.clock.advance(10)
    assert so1.cancel(job_id) == first
    assert shown(so1.delete(f"/api/jobs/{job_id}")) == first


@pytest.mark.parametrize("report", [Snooze(delay=0), Snooze(delay=9), Requeue(), Requeue(begun=False)], ids=str)
def test_L8_what_has_run_is_never_pending_again_and_what_follows_is_another_job(so1: So1, report: Any) -> None:
    job_id, run = so1.running()
    so1.h.report(run, replace(report, token=run.token))
    assert so1.job(job_id)["state"] == "cancelled"
    (next_job,) = so1.page()["jobs"]
    assert next_job["id"] != job_id
    assert (next_job["state"], next_job["createdAt"]) == ("pending", so1.job(job_id)["completedAt"])
    assert so1.cancel(job_id)["state"] == "cancelled"
    assert so1.job(next_job["id"]) == next_job | {"logs": []}
    with so1.unchanged(job_id):
        so1.h.clock.advance(60_000)
        so1.h.sweep()
        so1.h.succeed(so1.h.started("w2"), "1")
    assert so1.job(next_job["id"])["state"] == "success"


def test_L9_a_retry_is_a_new_job_and_the_old_one_stays_failed(so1: So1) -> None:
    job_id, run = so1.running({"repo": "x"})
    so1.h.fail(run)
    with so1.unchanged(job_id):
        again = so1.h(so1.h.engine.rerun(run.id)).id
        so1.h.succeed(so1.h.started(), "1")
    old, new = so1.job(job_id), so1.job(again)
    assert (old["state"], new["state"]) == ("failed", "success")
    assert new["metadata"] == old["metadata"]


def test_L9_an_attempt_that_failed_while_its_run_goes_on_is_a_failed_job_of_its_own(so1: So1) -> None:
    job_id = so1.running()[0]
    so1.h(so1.h.engine.patch(so1.create()["id"], max_attempts=2))
    second = so1.h.started("w2")
    so1.h(so1.h.engine.log(second.id, token(second), [(1, "first attempt")]))
    so1.h.fail(second, GITHUB, delay=5)
    failed = so1.job(second.id)
    assert (failed["state"], failed["error"]["code"], failed["logs"]) == ("failed", "GITHUB_ERROR", ["first attempt"])
    retry = so1.h.get(second.id).current_attempt
    assert so1.job(retry)["state"] == "pending"
    assert so1.refused("POST", f"/api/jobs/{second.id}/cancel")[:2] == (409, "CONFLICT")
    assert so1.job(retry)["state"] == "pending"
    assert so1.cancel(retry)["state"] == "cancelled"
    assert so1.job(second.id) == failed
    assert so1.job(job_id)["state"] == "running"


def test_L11_log_lines_are_readable_and_unchanged_after_the_end(so1: So1) -> None:
    job_id, run = so1.running()
    so1.h(so1.h.engine.log(run.id, token(run), [(1, "one"), (2, "two\nlines"), (3, "drei, \u2603")]))
    so1.h.succeed(run)
    with so1.unchanged(job_id), pytest.raises(LeaseLost):
        so1.h(so1.h.engine.log(run.id, token(run), [(4, "four")]))
    assert so1.job(job_id)["logs"] == ["one", "two\nlines", "drei, \u2603"]


def test_L11_lines_stay_though_the_clock_is_set_back_before_the_end(so1: So1) -> None:
    job_id, run = so1.running()
    so1.h.clock.advance(5_000)
    so1.h(so1.h.engine.log(run.id, token(run), [(1, "one")]))
    so1.h.clock.jump(-4_000)
    so1.h.succeed(run)
    assert so1.job(job_id)["logs"] == ["one"]


def test_L11_a_job_shows_the_last_thousand_of_its_lines(so1: So1) -> None:
    job_id, run = so1.running()
    for first in (1, 601):
        so1.h(so1.h.engine.log(run.id, token(run), [(n, f"line {n}") for n in range(first, first + 600)]))
    so1.h.succeed(run)
    assert so1.job(job_id)["logs"] == [f"line {n}" for n in range(201, 1_201)]


@pytest.mark.parametrize("end", [*ENDS, "returned"])
def test_L12_times_are_in_order_and_in_UTC_though_the_clock_is_set_back(so1: So1, end: str) -> None:
    job_id = so1.create()["id"]
    for jump in (-7_200_000, -60_000):
        so1.h.clock.jump(jump)
        so1.h.sweep()
    run = so1.h.started()
    so1.h.clock.jump(-60_000)
    if end == "returned":
        so1.h.clock.jump(8_000_000)
        so1.h.report(run, Snooze(token=run.token, delay=0))
        so1.h.clock.jump(-60_000)
        job_id, run = so1.h.get(job_id).current_attempt, so1.h.started()
        so1.h.clock.jump(-60_000)
    ENDS.get(end, ENDS["cancelled"])(so1, job_id, run)
    job = so1.job(job_id)
    times = [datetime.fromisoformat(job[name]) for name in ("createdAt", "startedAt", "completedAt")]
    assert times == sorted(times)
    assert all(job[name].endswith("Z") for name in ("createdAt", "startedAt", "completedAt"))


# Idempotency


def test_L15_the_same_key_and_body_is_the_same_job_in_an_answer_of_its_own(so1: So1) -> None:
    body = {"action": TRIGGER, "inputs": {"repo": "a/b", "n": [1, 2]}}
    first = so1.post("/api/jobs", body, idempotency_key="k")
    same = so1.post("/api/jobs", {"inputs": {"n": [1, 2], "repo": "a/b"}, "action": TRIGGER}, idempotency_key="k")
    assert (first.status, same.status) == (202, 202)
    assert shown(same) == shown(first)
    assert same.json["requestId"] != first.json["requestId"] == shown(same)["metadata"]["requestId"]
    run = so1.h.started()
    so1.h.succeed(run, "1")
    other = So1(so1.h.another())
    assert shown(other.post("/api/jobs", body, idempotency_key="k"))["state"] == "success"
    other.close()
    assert len(so1.page()["jobs"]) == 1


def test_L15_a_key_belongs_to_an_organisation(so1: So1) -> None:
    first = so1.create(idempotency_key="k")
    assert so1.create(idempotency_key="k", authorization=bearer(BEN))["id"] == first["id"]
    assert so1.create(idempotency_key="k", authorization=bearer(EVE))["id"] != first["id"]


def test_L16_the_same_key_with_another_body_is_a_conflict_and_creates_nothing(so1: So1) -> None:
    so1.create(inputs={"repo": "a"}, idempotency_key="k")
    for inputs in ({"repo": "b"}, {"repo": "a", "more": None}, {}):
        body = {"action": TRIGGER, "inputs": inputs}
        assert so1.refused("POST", "/api/jobs", body, idempotency_key="k")[:2] == (409, "CONFLICT")
        assert so1.post("/api/jobs", body, idempotency_key="k").json["error"]["message"].startswith("The Idempotency-Key belongs to")
    assert len(so1.page()["jobs"]) == 1


def test_L16_bodies_are_compared_before_they_are_cut(h: Harness) -> None:
    so1 = So1(h, keep={TRIGGER: ("repo",)})
    so1.create(inputs={"repo": "a", "token": "one"}, idempotency_key="k")
    body = {"action": TRIGGER, "inputs": {"repo": "a", "token": "two"}}
    assert so1.refused("POST", "/api/jobs", body, idempotency_key="k")[:2] == (409, "CONFLICT")
    so1.close()


def test_L17_after_24_hours_a_key_is_free_again(so1: So1) -> None:
    first = so1.create(idempotency_key="k")
    so1.h.clock.advance(DAY - 1)
    assert so1.create(idempotency_key="k")["id"] == first["id"]
    so1.h.clock.advance(1)
    assert so1.create(idempotency_key="k")["id"] != first["id"]


def test_L18_without_a_key_every_request_creates_a_job(so1: So1) -> None:
    assert so1.create()["id"] != so1.create()["id"]
    assert so1.create(idempotency_key="k")["id"] == so1.create(idempotency_key="k")["id"]
    for key in ("", "x" * 201):
        refused = so1.refused("POST", "/api/jobs", {"action": TRIGGER}, idempotency_key=key)
        assert refused == (400, "VALIDATION_ERROR", {"member": "Idempotency-Key"})
    assert len(so1.page()["jobs"]) == 3


# Answers


def test_L19_every_answer_has_the_id_of_its_request(so1: So1) -> None:
    paths = ("/api/jobs", f"/api/jobs/{so1.create()['id']}", "/api/auth/session", f"/api/jobs/{UNKNOWN}", "/api/nowhere")
    answers = [so1.get(path) for path in paths] + [so1.get("/api/jobs", authorization="no")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len({UUID(id) for id in ids}) == len(ids)
    assert ids == [answer.json["requestId"] for answer in answers]
    assert so1.get("/health").headers["x-request-id"] not in ids


CREDENTIALS = {
    None: "missing", "": "malformed", "Basic YTpi": "malformed", "Bearer": "malformed", "Bearer  ": "malformed", "Bearer x": "unknown",
    "Bearer clerk_ann": "unknown", "Bearer clerk__acme": "unknown", "Bearer clerk_ann_": "unknown", f"Bearer wl_{'x' * 44}": "unknown",
}  # fmt: skip


@pytest.mark.parametrize(("header", "reason"), CREDENTIALS.items())
def test_L20_without_a_valid_token_nothing_is_told(so1: So1, header: str | None, reason: str) -> None:
    job_id = so1.create()["id"]
    so1.headers = {} if header is None else {"authorization": header}
    for method, path in (("GET", f"/api/jobs/{job_id}"), ("POST", "/api/jobs"), ("GET", "/api/auth/session")):
        answer = so1(method, path, {} if method == "POST" else None)
        assert (answer.status, answer.json["error"]["code"]) == (401, "UNAUTHORIZED")
        assert answer.json["error"]["details"] == {"reason": reason}
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("job_id", [UNKNOWN, UNKNOWN.replace("-", ""), UNKNOWN.upper(), "1", "x" * 200, "%20", "..%2f", "%F0%9F%92%A9"])
def test_L20_an_unknown_job_is_not_found(so1: So1, job_id: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events")):
        assert so1.refused(method, f"/api/jobs/{job_id}{path}")[:2] == (404, "NOT_FOUND")
    assert so1.get(f"/api/jobs/{job_id}").json["error"]["message"].startswith("There is no job ")


def test_L20_a_path_that_does_not_exist_is_named(so1: So1) -> None:
    assert so1.refused("GET", "/api/nothing") == (404, "NOT_FOUND", {"method": "GET", "path": "/api/nothing"})
    assert so1.refused("PUT", "/api/jobs") == (404, "NOT_FOUND", {"method": "PUT", "path": "/api/jobs"})


def test_L21_a_run_that_was_created_elsewhere_has_the_form_of_a_job_too(h: Harness) -> None:
    so1 = So1(h, mock=False)
    so1.headers = {}
    runs = [h.create(payload=payload) for payload in ({"to": "ann"}, None)]
    assert [so1.job(run)["metadata"]["inputs"] for run in runs] == [{"to": "ann"}, {}]
    so1.close()


def test_L22_what_an_action_does_not_keep_is_stored_nowhere(h: Harness) -> None:
    so1 = So1(h, keep={TRIGGER: ("repo", "branch")})
    secret = "s3cr3t-s3cr3t"
    inputs = {"repo": "a/b", "token": secret, "nested": {"deep": [secret]}}
    job = so1.create(inputs=inputs, idempotency_key="k")
    assert job["metadata"]["inputs"] == {"repo": "a/b"}
    run = h.started()
    assert json.loads(run.payload) == {"repo": "a/b"}
    h.succeed(run, "1")
    answers = [so1.get(f"/api/jobs/{job['id']}"), so1.get("/api/jobs")]
    answers += [so1.post("/api/jobs", {"action": TRIGGER, "inputs": inputs | {"more": 1}}, idempotency_key="k")]
    answers += [so1.post("/api/jobs", {"action": "none", "inputs": inputs}), so1.post("/api/jobs", {"inputs": inputs})]
    unreadable = b'{"action": "trigger-github-workflow", "inputs": {"%b": "\\u0000"}}' % secret.encode()
    answers += [so1.post("/api/jobs", raw=unreadable), so1.post("/api/jobs", raw=unreadable.replace(b"\\u0000", b"\\ud800"))]
    assert not [answer for answer in answers if secret.encode() in answer.body]
    assert secret not in str(dump(h.store))
    assert so1.create("mail", {"token": secret})["metadata"]["inputs"] == {"token": secret}
    assert secret in str(dump(h.store))  # an action without an entry keeps all, and the search would find it
    so1.close()


def test_L23_a_job_of_another_organisation_is_forbidden(so1: So1) -> None:
    job_id = so1.create()["id"]
    eve = {"authorization": bearer(EVE)}
    with so1.unchanged(job_id):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events")):
            assert so1.refused(method, f"/api/jobs/{job_id}{path}", headers=eve)[:2] == (403, "FORBIDDEN")
    assert so1.page(headers=eve)["jobs"] == []
    assert so1.job(job_id, authorization=bearer(BEN))["id"] == job_id
    elsewhere = so1.h.create()
    assert so1.refused("GET", f"/api/jobs/{elsewhere}")[:2] == (403, "FORBIDDEN")


# Beyond the lines


def test_health_and_session_are_as_clients_expect_them(so1: So1) -> None:
    health, session = so1.get("/health", authorization="nothing"), so1.get("/api/auth/session")
    validate(health.json, HEALTH)
    validate(session.json, SESSION)
    assert session.json["session"] == {"userId": "ann", "orgId": "acme"}


def test_the_words_are_five_and_every_state_of_a_run_has_one() -> None:
    assert set(WORDS.labels.values()) == set(JobState)
    assert sorted(state for label in JobState for state in WORDS.states(label)) == sorted(State)
    assert all(WORDS.label(state) == label for label in JobState for state in WORDS.states(label))


def test_pages_have_the_jobs_of_the_organisation_newest_first_without_gap_or_repeat(so1: So1) -> None:
    ours = []
    for number in range(30):
        so1.create(authorization=bearer(EVE))
        if number % 3 == 0:
            ours.append(so1.create(authorization=bearer(ANN if number % 2 else BEN))["id"])
    read, query, pages = [], "?limit=2", 0
    while query:
        page = so1.page(query)
        assert len(page["jobs"]) <= 2
        read += [job["id"] for job in page["jobs"]]
        query, pages = f"?limit=2&cursor={page['cursor']}" if "cursor" in page else "", pages + 1
    assert read == ours[::-1]
    assert pages > 5


def test_jobs_are_listed_by_state(so1: So1) -> None:
    pending = so1.create()["id"]
    so1.h(so1.h.engine.patch(pending, due_at=so1.h.clock.now() + DAY))
    succeeded, run = so1.running()
    so1.h.succeed(run, "1")
    failed, run = so1.running()
    so1.h.fail(run)
    running, _ = so1.running()
    cancelled, _ = so1.running()
    so1.cancel(cancelled)
    for state, job_id in zip(JobState, (pending, running, succeeded, failed, cancelled), strict=True):
        assert [job["id"] for job in so1.page(f"?state={state}")["jobs"]] == [job_id]


def test_a_list_has_the_error_of_a_failure_with_a_long_traceback(so1: So1) -> None:
    _, run = so1.running()
    so1.h.fail(run, Failure("boom", "it broke", "x" * 10_000))
    assert so1.page()["jobs"][0]["error"] == {"code": "boom", "message": "it broke"}


def test_only_jobs_of_its_own_queue_are_listed_and_by_id_every_run_is_read_by_an_admin(h: Harness) -> None:
    so1 = So1(h, mock=False, queue="console")
    so1.headers = {}
    elsewhere, own = h.create(), so1.create()
    assert h.get(own["id"]).queue == "console"
    assert [job["id"] for job in so1.page()["jobs"]] == [own["id"]]
    assert so1.job(elsewhere)["metadata"]["action"] == "mail"
    so1.close()
