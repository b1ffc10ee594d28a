"""The hub's own protocol over a real socket: the lines of SO1 (L) and Forge (F) by their meaning, and what every answer has."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.served import LeapingClock, ServedHub
from tests.tiers import long
from tests.workers import DEADLINE, until
from windlass.engine import SweepResult, Watch
from windlass.hub import HubSettings
from windlass.machine import ENDED
from windlass.store.base import SWEEP

HOUR = 3_600_000
SETTINGS = HubSettings(body=1_000_000)


class HubDesk:
    """A hub, and somebody who asks it."""

    def __init__(self, store: str, clock: LeapingClock) -> None:
        self.clock, self.served = clock, ServedHub(store, SETTINGS, clock)
        # No bound for idle connections: httpx closes one too many that another thread has been given and does not use yet.
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=None)
        self.http = httpx.Client(base_url=self.served.url + "api/v1", timeout=60, limits=limits)

    def close(self) -> None:
        self.http.close()
        self.served.stop()

    def restart(self) -> None:
        self.served.stop()
        self.served.start()

    def ask(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        """The body of an answer that must have this status."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.http.request(method, path, json=body, headers=names)
        assert answer.status_code == status, answer.text
        assert UUID(answer.headers["x-request-id"]).version == 7
        return answer.json()

    def refused(self, method: str, path: str, body: Any, status: int, code: str, **headers: str) -> Any:
        """A problem by RFC 9457, which says what to do next."""
        problem = self.ask(method, path, body, status, **headers)
        assert problem["code"] == code, problem
        assert problem["type"] == f"urn:windlass:error:{code}"
        assert problem["status"] == status
        assert problem["detail"]
        assert problem["hint"]
        assert UUID(problem["request_id"]).version == 7
        return problem

    def define(self, name: str = "mail", **options: Any) -> None:
        self.ask("PUT", f"/jobs/{name}", {"options": options})

    def create(self, job: str = "mail", **fields: Any) -> str:
        return str(self.ask("POST", "/runs", {"job": job, **fields}, 202)["id"])

    def get(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/runs/{run_id}")
        return found

    def claim(self, worker: str = "w1", count: int = 1, lease: int = 60_000, wait: int = 0, **can: Any) -> list[dict[str, Any]]:
        asked = {"worker": {"name": worker, "slots": 100, **can}, "count": count, "lease": lease, "wait": wait}
        runs: list[dict[str, Any]] = self.ask("POST", "/worker/claim", asked)["runs"]
        return runs

    def claimed(self, **how: Any) -> dict[str, Any]:
        (run,) = self.claim(**how)
        return run

    def start(self, run: dict[str, Any]) -> None:
        hold = [run["seq"], run["token"]]
        assert self.ask("POST", "/worker/start", {"held": [hold]})["started"] == [hold]

    def beat(self, run: dict[str, Any], lease: int = 60_000) -> str:
        return str(self.ask("POST", "/worker/beat", {"held": [[run["seq"], run["token"]]], "lease": lease})["answers"][0])

    def report(self, run: dict[str, Any], kind: str = "succeed", **said: Any) -> dict[str, Any]:
        outcome = {"run": run["id"], "token": run["token"], "kind": kind, **said}
        receipt: dict[str, Any] = self.ask("POST", "/worker/report", {"outcomes": [outcome]})["receipts"][0]
        return receipt

    def fail(self, run: dict[str, Any], message: str = "it broke", **said: Any) -> dict[str, Any]:
        return self.report(run, "fail", error={"code": "boom", "message": message}, **said)

    def moves(self, run_id: str) -> list[str]:
        return [event["move"] for event in self.ask("GET", f"/runs/{run_id}/history")["events"]]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=long)])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HubDesk]:
    store = str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres")
    made = HubDesk(store, LeapingClock())
    made.define()
    yield made
    made.close()


# SO1: the life of a run


def test_L1_a_run_that_is_asked_for_waits_and_has_not_begun(desk: HubDesk) -> None:
    answer = desk.ask("POST", "/runs", {"job": "mail", "payload": {"to": "ann"}}, 202)
    run = answer["run"]
    assert (answer["id"], answer["created"]) == (run["id"], True)
    assert (run["state"], run["payload"]) == ("queued", {"to": "ann"})
    assert run["created_at"].endswith("Z")
    assert (run["started_at"], run["finished_at"]) == (None, None)


def test_L2_a_run_that_begins_is_running_and_its_start_is_set_once(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.claimed()
    desk.start(run)
    begun = desk.get(run_id)
    desk.clock.leap(1_000)
    desk.beat(run)
    assert (begun["state"], begun["finished_at"]) == ("running", None)
    assert desk.get(run_id)["started_at"] == begun["started_at"] is not None


def test_L3_a_run_that_succeeds_has_its_output_and_its_end_and_no_error(desk: HubDesk) -> None:
    run_id = desk.create()
    assert desk.report(desk.claimed(), output='{"sent": 3}')["state"] == "succeeded"
    run = desk.get(run_id)
    assert (run["state"], run["output"], run["error"]) == ("succeeded", {"sent": 3}, None)
    assert run["finished_at"] is not None


def test_L4_a_run_that_fails_has_an_error_with_code_and_message(desk: HubDesk) -> None:
    run_id = desk.create(options={"max_attempts": 1})
    assert desk.fail(desk.claimed())["state"] == "failed"
    run = desk.get(run_id)
    assert (run["state"], run["error"]) == ("failed", {"code": "boom", "message": "it broke"})
    assert run["finished_at"] is not None


def test_L5_a_run_cancelled_while_it_waits_is_never_executed(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.ask("POST", f"/runs/{run_id}/cancel", {"reason": "ordered twice"})
    assert (run["state"], run["reason"], run["started_at"]) == ("cancelled", "ordered twice", None)
    assert run["finished_at"] is not None
    assert desk.claim() == []


def test_L6_a_run_cancelled_while_it_runs_is_stopped_and_a_later_success_changes_nothing(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.claimed()
    desk.start(run)
    assert desk.ask("POST", f"/runs/{run_id}/cancel")["state"] == "cancelling"
    assert desk.beat(run) == "stop"
    assert desk.report(run, output="1")["problem"]["code"] == "cancelled"
    ended = desk.get(run_id)
    assert (ended["state"], ended["output"]) == ("cancelled", None)
    assert desk.report(run, output="1")["problem"]["code"] == "cancelled"
    assert desk.get(run_id) == ended


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_L7_an_ended_run_is_the_same_after_every_further_try_to_move_it(desk: HubDesk, end: str) -> None:
    run_id = desk.create(options={"max_attempts": 1})
    run = desk.claimed() if end != "cancelled" else {"id": run_id, "seq": 1, "token": "x" * 22}
    if end == "succeeded":
        desk.report(run, output="1")
    elif end == "failed":
        desk.fail(run)
    else:
        desk.ask("POST", f"/runs/{run_id}/cancel")
    before = desk.get(run_id)
    assert desk.report(run, output="2")["problem"]["status"] == 409
    assert desk.fail(run, "other")["problem"]["status"] == 409
    assert desk.report(run, "snooze", delay=0)["problem"]["status"] == 409
    assert desk.beat(run) == "lost"
    assert desk.ask("POST", "/worker/start", {"held": [[run["seq"], run["token"]]]})["started"] == []
    desk.refused("PATCH", f"/runs/{run_id}", {"priority": 3}, 409, "not_editable")
    desk.refused("POST", f"/runs/{run_id}/cancel", None, 409, "wrong_state")
    assert desk.get(run_id) == before


def test_L8_no_move_leads_back_to_the_beginning(desk: HubDesk) -> None:
    run_id = desk.create()
    desk.report(desk.claimed(), output="1")
    assert desk.get(run_id)["actions"] == ["rerun"]
    events = desk.ask("GET", f"/runs/{run_id}/history")["events"]
    assert [event["state"] for event in events] == ["queued", "claimed", "succeeded"]
    assert [event["rev"] for event in events] == [1, 2, 3]


def test_L9_to_retry_by_hand_is_a_new_run_and_the_old_one_stays_failed(desk: HubDesk) -> None:
    old = desk.create(payload={"n": 1}, options={"max_attempts": 1})
    desk.fail(desk.claimed())
    before = desk.get(old)
    made = desk.ask("POST", f"/runs/{old}/rerun", None, 202)
    assert made["id"] != old
    assert (made["run"]["state"], made["run"]["payload"], made["run"]["retry_of"]) == ("queued", {"n": 1}, old)
    assert desk.get(old) == before
    desk.refused("POST", f"/runs/{made['id']}/rerun", None, 409, "wrong_state")


def test_G40_an_attempt_is_rerun_with_the_payload_it_ran_with(desk: HubDesk) -> None:
    old = desk.create(payload={"n": 1}, meta={"user": "ann"}, options={"max_attempts": 2, "backoff": [0]})
    desk.fail(desk.claimed())
    desk.ask("PATCH", f"/runs/{old}", {"payload": {"n": 2}})
    first, second = desk.ask("GET", f"/runs/{old}/attempts")["attempts"]
    assert (first["payload"], "payload" in second) == ({"n": 1}, False)
    desk.refused("POST", f"/runs/{old}/rerun", None, 409, "wrong_state")
    desk.refused("POST", f"/runs/{second['id']}/rerun", None, 409, "wrong_state")
    made = desk.ask("POST", f"/runs/{old}/rerun?attempt=1", None, 202, idempotency_key="k")["run"]
    assert (made["payload"], made["retry_of"], made["meta"]) == ({"n": 1}, first["id"], {"user": "ann"})
    assert desk.ask("POST", f"/runs/{old}/rerun?attempt=1", None, 202, idempotency_key="k")["id"] == made["id"]
    desk.refused("POST", f"/runs/{old}/rerun?attempt=0", None, 400, "bad_input")
    desk.refused("POST", f"/runs/{old}/rerun?attempt=3", None, 404, "not_found")
    desk.ask("POST", f"/runs/{old}/cancel")
    desk.refused("POST", f"/runs/{old}/rerun?attempt=2", None, 409, "conflict", idempotency_key="k")


def test_meta_is_kept_as_it_was_sent(desk: HubDesk) -> None:
    run_id = desk.create(meta={"user": "ann", "deep": [{"é": None}]})
    assert desk.get(run_id)["meta"] == {"user": "ann", "deep": [{"é": None}]}
    assert desk.get(desk.create())["meta"] is None
    assert desk.get(desk.create(meta=None))["meta"] is None
    batch = desk.ask("POST", "/runs/batch", {"runs": [{"job": "mail", "meta": {"n": n}} for n in range(2)]}, 202)
    assert [desk.get(one["id"])["meta"] for one in batch["runs"]] == [{"n": 0}, {"n": 1}]
    group = desk.ask("POST", "/groups", {"members": [{"job": "mail", "meta": {"n": 7}}]}, 202)
    assert [one["meta"] for one in desk.ask("GET", f"/groups/{group['id']}/runs")["runs"]] == [{"n": 7}]
    desk.refused("POST", "/runs", {"job": "mail", "meta": [1]}, 400, "bad_input")
    desk.refused("POST", "/runs", {"job": "mail", "meta": {"a": "x" * 4_096}}, 413, "too_large")


def test_L11_log_lines_are_read_unchanged_after_the_end(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.claimed()
    lines = [(1, "begun"), (2, "half"), (3, "\x1b[31mred\x1b[0m")]
    desk.ask("POST", "/worker/log", {"run": run["id"], "token": run["token"], "lines": lines})
    before = desk.ask("GET", f"/runs/{run_id}/logs")["lines"]
    desk.report(run, output="1")
    assert desk.ask("GET", f"/runs/{run_id}/logs")["lines"] == before
    assert [(line["cursor"], line["line"]) for line in before] == lines
    assert [line["n"] for line in desk.ask("GET", f"/runs/{run_id}/logs?after=1")["lines"]] == [2, 3]
    desk.refused("POST", "/worker/log", {"run": run["id"], "token": run["token"], "lines": [(4, "late")]}, 409, "lease_lost")


def test_a_worker_cannot_log_without_end(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.claimed()
    for first in range(1, 1_300, 100):
        lines = [(n, "x" * 8_192) for n in range(first, first + 100)]
        desk.ask("POST", "/worker/log", {"run": run["id"], "token": run["token"], "lines": lines})
    after, texts = 0, list[str]()
    while page := desk.ask("GET", f"/runs/{run_id}/logs?after={after}")["lines"]:
        texts += [line["line"] for line in page]
        after = page[-1]["cursor"]
    assert len(texts) == 8 * 2**20 // 8_192 + 1
    assert texts[-1] == "Further lines were dropped: an attempt may log 8,388,608 bytes."
    desk.report(run, output="1")


def test_L12_times_are_in_order_and_in_UTC(desk: HubDesk) -> None:
    run_id = desk.create()
    desk.clock.leap(1_500)
    run = desk.claimed()
    desk.start(run)
    desk.clock.leap(1_500)
    desk.report(run, output="1")
    told = desk.get(run_id)
    times = [datetime.fromisoformat(told[name]) for name in ("created_at", "started_at", "finished_at")]
    assert times == sorted(times)
    assert {when.utcoffset() for when in times} == {timedelta(0)}
    assert all(told[name].endswith("Z") for name in ("created_at", "scheduled_for", "claimed_at", "started_at", "finished_at"))
    assert times[2] - times[0] >= timedelta(seconds=3)


def test_L13_cursors_of_log_lines_grow_and_give_exactly_what_follows_across_a_restart(desk: HubDesk) -> None:
    run_id = desk.create()
    run = desk.claimed()
    desk.ask("POST", "/worker/log", {"run": run["id"], "token": run["token"], "lines": [(n, f"line {n}") for n in range(1, 8)]})
    desk.fail(run, delay=0)
    desk.restart()
    again = desk.claimed()
    desk.ask("POST", "/worker/log", {"run": again["id"], "token": again["token"], "lines": [(n, f"again {n}") for n in range(1, 4)]})
    whole = desk.ask("GET", f"/runs/{run_id}/logs")["lines"]
    cursors = [line["cursor"] for line in whole]
    assert len(whole) == 10
    assert cursors == sorted(set(cursors))
    for index, cursor in enumerate(cursors):
        assert desk.ask("GET", f"/runs/{run_id}/logs?after={cursor}")["lines"] == whole[index + 1 :]


def test_L15_the_same_key_and_body_is_the_same_run_also_after_a_restart(desk: HubDesk) -> None:
    body = {"job": "mail", "payload": {"to": "ann"}, "delay": 60_000}
    first = desk.http.post("/runs", json=body, headers={"Idempotency-Key": "order-17"})
    desk.restart()
    second = desk.http.post("/runs", json=body, headers={"Idempotency-Key": "order-17"})
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert (first.json()["created"], second.json()["created"]) == (True, False)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert len(desk.ask("GET", "/runs")["runs"]) == 1


def test_L15_asked_at_once_from_many_sides_there_is_one_run(desk: HubDesk) -> None:
    body = {"job": "mail", "payload": {"to": "ann"}}
    with ThreadPoolExecutor(16) as crowd:
        answers = list(crowd.map(lambda _: desk.ask("POST", "/runs", body, 202, Idempotency_Key="k"), range(48)))
    assert len({answer["id"] for answer in answers}) == 1
    assert sum(answer["created"] for answer in answers) == 1


def test_L16_the_same_key_with_another_body_is_refused_and_makes_nothing(desk: HubDesk) -> None:
    desk.ask("POST", "/runs", {"job": "mail", "payload": 1}, 202, Idempotency_Key="k")
    desk.refused("POST", "/runs", {"job": "mail", "payload": 2}, 409, "duplicate_key", Idempotency_Key="k")
    desk.refused("POST", "/runs", {"job": "mail", "payload": 1, "delay": 5}, 409, "duplicate_key", Idempotency_Key="k")
    assert len(desk.ask("GET", "/runs")["runs"]) == 1


def test_L17_after_a_day_the_key_is_free_again(desk: HubDesk) -> None:
    first = desk.ask("POST", "/runs", {"job": "mail", "payload": 1}, 202, Idempotency_Key="k")
    desk.clock.leap(24 * HOUR - 60_000)
    assert desk.ask("POST", "/runs", {"job": "mail", "payload": 1}, 202, Idempotency_Key="k")["id"] == first["id"]
    desk.clock.leap(120_000)
    second = desk.ask("POST", "/runs", {"job": "mail", "payload": 2}, 202, Idempotency_Key="k")
    assert (second["created"], second["id"] != first["id"]) == (True, True)


def test_L18_without_a_key_every_request_makes_a_run(desk: HubDesk) -> None:
    assert desk.create() != desk.create()


def test_runs_of_one_request_are_stored_together_and_once_for_a_key(desk: HubDesk) -> None:
    asked = {"runs": [{"job": "mail", "payload": n} for n in range(5)]}
    first = desk.ask("POST", "/runs/batch", asked, 202, Idempotency_Key="b")["runs"]
    again = desk.ask("POST", "/runs/batch", asked, 202, Idempotency_Key="b")["runs"]
    assert [run["id"] for run in first] == [run["id"] for run in again]
    desk.refused("POST", "/runs/batch", {"runs": [{"job": "mail"}, {"job": "nobody knows it"}]}, 422, "unknown_job")
    assert len(desk.ask("GET", "/runs")["runs"]) == 5


def test_a_key_of_its_own_and_one_of_the_request_are_one_too_many(desk: HubDesk) -> None:
    desk.refused("POST", "/runs", {"job": "mail", "key": {"name": "k"}}, 400, "bad_input", Idempotency_Key="k")


# Forge: workers anywhere


def test_F1_a_run_has_its_defaults(desk: HubDesk) -> None:
    run = desk.get(desk.create())
    assert (run["state"], run["priority"], run["max_attempts"], run["payload"]) == ("queued", 0, 5, {})
    assert desk.get(desk.create(options={"max_attempts": 3}))["max_attempts"] == 3  # the protocol's own


def test_F2_a_claim_takes_the_highest_priority_then_the_oldest_of_the_named_types(desk: HubDesk) -> None:
    desk.define("other")
    low, high, older = desk.create(), desk.create(options={"priority": 5}), desk.create("other", options={"priority": 9})
    assert [run["id"] for run in desk.claim(jobs=["mail"], count=2)] == [high, low]
    assert [run["id"] for run in desk.claim()] == [older]
    assert desk.claim() == []


def test_F3_claims_at_once_give_each_run_to_one(desk: HubDesk) -> None:
    wanted = {desk.create() for _ in range(20)}
    with ThreadPoolExecutor(50) as crowd:
        claims = list(crowd.map(lambda n: desk.claim(f"w{n}"), range(50)))
    taken = [run["id"] for claim in claims for run in claim]
    assert (len(taken), set(taken)) == (20, wanted)
    assert {run["worker"] for claim in claims for run in claim} == {f"w{n}" for n, claim in enumerate(claims) if claim}


def test_F4_a_claim_says_who_has_it_since_when(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed(worker="solver-7")
    told = desk.get(run["id"])
    assert (told["state"], told["worker"], told["attempt"]) == ("claimed", "solver-7", 1)
    assert told["claimed_at"] is not None


def test_F5_a_start_makes_it_running_and_beats_keep_it(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed(lease=30_000)
    desk.start(run)
    for _ in range(5):
        desk.clock.leap(20_000)
        assert desk.beat(run, 30_000) == "ok"
    assert desk.get(run["id"])["state"] == "running"


def test_F6_another_token_cannot_beat_report_or_log(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed()
    stranger = {**run, "token": "A" * 22}
    assert desk.beat(stranger) == "lost"
    assert desk.report(stranger, output="1")["problem"]["code"] == "lease_lost"
    assert desk.fail(stranger)["problem"]["code"] == "lease_lost"
    desk.refused("POST", "/worker/log", {"run": run["id"], "token": "A" * 22, "lines": [(1, "x")]}, 409, "lease_lost")
    assert desk.report({**run, "id": "unknown"}, output="1")["problem"]["code"] == "not_found"
    assert desk.get(run["id"])["state"] == "claimed"


def test_F7_a_result_is_stored_with_its_hash(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed()
    assert desk.report(run, output='"0.5"', output_hash="ab" * 32) == {"run": run["id"], "state": "succeeded"}
    assert desk.get(run["id"])["output"] == "0.5"


def test_F8_the_same_result_again_is_answered_as_before_from_anybody(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed()
    desk.report(run, output="5", output_hash="ab")
    before = desk.get(run["id"])
    assert desk.report(run, output="5", output_hash="ab")["repeated"]
    assert desk.report({**run, "token": "B" * 22}, output="5", output_hash="ab")["repeated"]
    assert desk.get(run["id"]) == before
    assert desk.moves(run["id"]) == ["create", "claim", "succeed"]


def test_F9_another_result_on_an_ended_run_is_refused_and_equal_bytes_are_the_same(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed()
    desk.report(run, output="5")
    assert desk.report(run, output="6")["problem"]["status"] == 409
    assert desk.report(run, output="5")["repeated"]


def test_F10_a_failed_try_goes_back_and_is_remembered(desk: HubDesk) -> None:
    desk.create()
    run = desk.claimed(worker="w1")
    assert desk.fail(run, "no memory", delay=0)["state"] == "queued"
    told = desk.get(run["id"])
    assert (told["state"], told["worker"], told["failures"]) == ("queued", None, 1)
    attempts = desk.ask("GET", f"/runs/{run['id']}/attempts")["attempts"]
    assert [(one["n"], one["outcome"], one["worker"]) for one in attempts] == [(1, "failed", "w1"), (2, "queued", None)]
    assert attempts[0]["error"]["message"] == "no memory"
    assert desk.claimed()["id"] == run["id"]


def test_F11_F12_three_tries_are_three_and_then_it_is_quarantined(desk: HubDesk) -> None:
    desk.create(options={"on_exhausted": "quarantined", "max_attempts": 3})
    states = [desk.fail(desk.claimed(), delay=0)["state"] for _ in range(3)]
    assert states == ["queued", "queued", "quarantined"]
    assert desk.claim() == []


def watched(desk: HubDesk, seconds: int) -> Iterator[None]:
    """So many seconds pass while the hub watches: never more than it takes for a pause of its own between two sweeps."""
    engine, done = desk.served.hub.engine, Counter[str]()
    sweep = engine.sweep

    async def counted(watch: Watch | None = None) -> SweepResult:
        found = await sweep(watch)
        done["sweeps"] += 1
        return found

    setattr(engine, "sweep", counted)  # noqa: B010 - mypy refuses the assignment
    for _ in range(0, seconds, 4):
        desk.clock.leap(4_000)

        def swept(before: int = done["sweeps"]) -> bool:
            desk.served.loop.call_soon_threadsafe(engine.hints.wake, {SWEEP})
            return done["sweeps"] > before + 1  # the first may have begun before the time had passed

        until(swept)
        yield
    setattr(engine, "sweep", sweep)  # noqa: B010


def lost(desk: HubDesk, run: dict[str, Any]) -> dict[str, Any]:
    """The run when the hub has noticed that nobody has it any more: it has watched for a lease itself before it judges."""
    return next(told for _ in watched(desk, 200) if (told := desk.get(run["id"]))["state"] not in ("claimed", "running"))


def test_F13_a_worker_that_is_silent_for_a_lease_loses_its_run_and_its_later_words(desk: HubDesk) -> None:
    desk.create(options={"backoff": [0]})
    run = desk.claimed(lease=60_000)
    desk.start(run)
    assert lost(desk, run)["failures"] == 1
    again = until(lambda: found[0] if (found := desk.claim(worker="w2")) else None)
    assert again["id"] == run["id"]
    assert desk.beat(run) == "lost"
    assert desk.report(run, output="1")["problem"]["code"] == "lease_lost"
    assert desk.fail(run)["problem"]["code"] == "lease_lost"
    assert desk.report(again, output="2")["state"] == "succeeded"
    assert desk.get(run["id"])["output"] == 2


def test_F14_the_last_try_lost_is_the_end(desk: HubDesk) -> None:
    desk.create(options={"max_attempts": 1, "on_exhausted": "quarantined"})
    run = desk.claimed(lease=60_000)
    told = lost(desk, run)
    assert (told["state"], told["error"]["code"]) == ("quarantined", "worker_lost")


def test_F15_what_runs_for_too_long_in_all_is_ended_although_it_beats(desk: HubDesk) -> None:
    desk.create(options={"max_runtime": 300_000, "on_exhausted": "quarantined"})
    run = desk.claimed(lease=30_000)

    told = next(told for _ in watched(desk, 400) if desk.beat(run, 30_000) and (told := desk.get(run["id"]))["state"] in ENDED)
    assert (told["state"], told["error"]["code"], told["failures"]) == ("quarantined", "max_runtime_exceeded", 1)


@pytest.mark.parametrize("end", ["succeeded", "cancelled", "quarantined"])
def test_F17_late_words_on_an_ended_run_are_refused_and_change_nothing(desk: HubDesk, end: str) -> None:
    desk.create(options={"max_attempts": 1, "on_exhausted": "quarantined"})
    run = desk.claimed()
    if end == "succeeded":
        desk.report(run, output="1")
    elif end == "quarantined":
        desk.fail(run)
    else:
        desk.ask("POST", f"/runs/{run['id']}/cancel")
        desk.report(run, output="0")
    before = desk.get(run["id"])
    assert before["state"] == end
    assert desk.beat(run) == "lost"
    assert desk.report(run, output="2")["problem"]["status"] == 409
    assert desk.fail(run, "late")["problem"]["status"] == 409
    assert desk.get(run["id"]) == before
    assert desk.claim() == []


def test_F20_a_worker_that_registers_twice_is_one_worker(desk: HubDesk) -> None:
    for cores in (2, 4):
        desk.ask("POST", "/worker/register", {"worker": {"name": "w1", "cores": cores, "tags": ["gpu"]}, "about": {"host": "a"}})
    (worker,) = desk.ask("GET", "/workers")["workers"]
    assert (worker["name"], worker["cores"], worker["tags"]) == ("w1", 4, ["gpu"])


def test_F22_runs_and_workers_survive_a_restart_and_what_runs_goes_on(desk: HubDesk) -> None:
    desk.ask("POST", "/worker/register", {"worker": {"name": "w1"}})
    waits, runs = desk.create(), desk.create(options={"priority": 1})
    run = desk.claimed()
    desk.start(run)
    before = desk.get(runs)
    desk.restart()
    assert desk.get(runs) == before
    assert desk.get(waits)["state"] == "queued"
    assert desk.ask("GET", "/workers")["workers"][0]["name"] == "w1"
    assert desk.beat(run) == "ok"
    assert desk.report(run, output="1")["state"] == "succeeded"
    assert desk.moves(runs) == ["create", "claim", "start", "succeed"]


# Waiting


def test_a_claim_that_waits_is_answered_as_soon_as_there_is_work(desk: HubDesk) -> None:
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(desk.claim, wait=30_000)
        until(lambda: desk.served.hub.waiting == 1)
        run_id = desk.create()
        assert [run["id"] for run in waiting.result(30)] == [run_id]


def test_whoever_leaves_while_waiting_is_given_nothing(desk: HubDesk) -> None:
    body = b'{"worker": {"name": "w1"}, "count": 1, "lease": 60000, "wait": 30000}'
    with socket.create_connection(("127.0.0.1", desk.served.port)) as line:
        head = f"POST /api/v1/worker/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        line.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        until(lambda: desk.served.hub.waiting == 1)
    until(lambda: desk.served.hub.waiting == 0)
    run_id = desk.create()
    assert desk.get(run_id)["state"] == "queued"
    assert desk.claimed(worker="w2")["id"] == run_id


def test_a_claim_asked_again_under_its_token_gives_the_same_runs(desk: HubDesk) -> None:
    for _ in range(3):
        desk.create()
    asked = {"worker": {"name": "w1", "slots": 9}, "count": 2, "lease": 60_000, "token": "N" * 22}
    first = desk.ask("POST", "/worker/claim", asked)["runs"]
    assert desk.ask("POST", "/worker/claim", asked)["runs"] == first
    assert desk.ask("POST", "/worker/recover", {"worker": asked["worker"], "token": "N" * 22})["runs"] == first
    assert len(first) == 2


def test_too_many_who_wait_are_told_to_come_back(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "hub.db", HubSettings(waits=0))
    with httpx.Client(base_url=served.url + "api/v1") as http:
        answer = http.post("/worker/wait", json={"topics": ["queue:*"], "timeout": 1_000})
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "limit_reached", "1")
        assert http.post("/worker/claim", json={"worker": {"name": "w"}, "count": 1, "lease": 1_000}).json() == {"runs": []}
    served.stop()


# Capabilities


def test_a_worker_that_lacks_what_a_job_requires_is_never_offered_it(desk: HubDesk) -> None:
    desk.define("train", requires={"tags": ["gpu"], "cores": 4, "memory": 2_000})
    run_id = desk.create("train")
    assert desk.claim(tags=["gpu"], cores=3, memory=4_096) == []
    assert desk.claim(tags=["gpu"], cores=4, memory=1_000) == []
    assert desk.claim(cores=8, memory=4_096) == []
    assert desk.ask("GET", f"/runs/{run_id}/why")["reasons"][0]["code"] == "no_worker"
    assert [run["id"] for run in desk.claim(tags=["gpu", "x"], cores=4, memory=2_048)] == [run_id]


# Lists and edits


def test_pages_follow_each_other_without_gap_or_repeat(desk: HubDesk) -> None:
    wanted = [desk.create(payload={"n": n}) for n in range(25)]
    seen, cursor = list[str](), ""
    while True:
        page = desk.ask("GET", f"/runs?count=10{cursor}")
        seen += [run["id"] for run in page["runs"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == wanted[::-1]


def test_a_run_that_waits_can_be_edited_and_the_journal_says_by_whom(desk: HubDesk) -> None:
    run_id = desk.create(payload={"n": 1})
    later = desk.ask("PATCH", f"/runs/{run_id}", {"priority": 7, "payload": {"n": 2}, "scheduled_for": "2100-01-01T00:00:00Z"})
    assert (later["priority"], later["payload"], later["state"]) == (7, {"n": 2}, "scheduled")
    event = desk.ask("GET", f"/runs/{run_id}/history")["events"][-1]
    assert (event["move"], event["detail"]["by"]) == ("patch", "anonymous")
    assert {"actor": "anonymous", "what": "patch", "subject": f"run {run_id}"}.items() <= desk.ask("GET", "/audit")["entries"][0].items()
    desk.refused("PATCH", f"/runs/{run_id}", {}, 400, "bad_input")
    desk.refused("PATCH", f"/runs/{run_id}", {"state": "succeeded"}, 400, "bad_input")


@pytest.mark.parametrize("name", ["a/b", "ä ö/%2F?#", "..", "x\\y", "'; drop table jobs --"])
def test_names_with_slashes_and_worse_have_their_routes(desk: HubDesk, name: str) -> None:
    path = "/".join(["/jobs", httpx.QueryParams({"n": name}).__str__()[2:].replace("+", "%20").replace(".", "%2E")])
    assert desk.ask("PUT", path, {})["name"] == name
    assert desk.ask("GET", path)["name"] == name


def test_what_is_not_there_is_said_to_be_missing(desk: HubDesk) -> None:
    for path in ("/runs/nobody", "/jobs/nobody", "/schedules/nobody", "/runs/nobody/logs", "/runs/nobody/history", "/runs/nobody/why"):
        desk.refused("GET", path, None, 404, "not_found")
    desk.refused("GET", "/nothing", None, 404, "not_found")
    desk.refused("DELETE", "/runs", None, 405, "method_not_allowed")


def test_schedules_are_stored_edited_previewed_triggered_and_removed(desk: HubDesk) -> None:
    made = desk.ask("PUT", "/schedules/nightly", {"job": "mail", "cron": "0 3 * * *", "zone": "Europe/Paris", "payload": {"n": 1}})
    assert (made["kind"], made["expr"], made["enabled"]) == ("cron", "0 3 * * *", True)
    assert desk.ask("PATCH", "/schedules/nightly", {"enabled": False})["next_at"] is None
    assert desk.ask("PATCH", "/schedules/nightly", {"enabled": True, "max_age": None})["next_at"] is not None
    preview = desk.ask("GET", "/schedules/nightly/preview?count=2&start=2027-03-27T12:00:00Z")
    assert [(at["at"], at["clock_changes"]) for at in preview["next"]] == [
        ("2027-03-28T01:00:00.000Z", True), ("2027-03-29T01:00:00.000Z", False),
    ]  # fmt: skip
    assert desk.ask("POST", "/schedules/nightly/trigger", None, 202)["run"]["payload"] == {"n": 1}
    assert [one["key"] for one in desk.ask("GET", "/schedules")["schedules"]] == ["nightly"]
    assert desk.ask("GET", "/schedules/nightly/skips")["skips"] == []
    desk.refused("PUT", "/schedules/bad", {"job": "mail", "cron": "0 25 * * *"}, 400, "bad_input")
    desk.refused("PATCH", "/schedules/nightly", {"fired": 3}, 400, "bad_input")
    desk.ask("DELETE", "/schedules/nightly")
    desk.refused("GET", "/schedules/nightly", None, 404, "not_found")


def test_a_hub_that_ends_lets_those_who_wait_go_at_once(desk: HubDesk) -> None:
    with ThreadPoolExecutor(1) as other:
        claiming = other.submit(desk.claim, wait=30_000)
        until(lambda: desk.served.hub.waiting == 1)
        desk.served.stop()
        assert claiming.result(4) == []
    desk.served.start()


def test_a_hub_that_ends_lets_those_go_who_would_only_begin_to_wait(desk: HubDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    joining, asked = desk.served.hub.joining, threading.Event()
    claim = joining.claim

    async def late(ask: Any) -> Any:
        runs = await claim(ask)
        asked.set()
        while desk.served.listens:  # noqa: ASYNC110 - it is told to end from another thread
            await asyncio.sleep(0.002)
        return runs

    monkeypatch.setattr(joining, "claim", late)
    with ThreadPoolExecutor(1) as other:
        claiming = other.submit(desk.claim, wait=30_000)
        assert asked.wait(DEADLINE)
        desk.served.stop()
        assert claiming.result(4) == []
    desk.served.start()


# What stands behind the ? of an address


def _routes(desk: HubDesk) -> list[tuple[str, str, list[str]]]:
    document = desk.ask("GET", "/openapi.json")
    return [
        (method.upper(), path.removeprefix("/api/v1"), [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/api/v1")
    ]


def test_no_route_ignores_a_parameter_that_it_does_not_have(desk: HubDesk) -> None:
    routes = _routes(desk)
    assert len(routes) > 50
    for method, path, known in routes:
        address = re.sub(r"\{[^}]*\}", "1", path)
        problem = desk.refused(method, f"{address}?none_of_these=1", None, 400, "bad_input")
        assert "'none_of_these'" in problem["detail"], (method, path)
        for name in known:
            assert name in problem["hint"], (method, path)


def test_the_parameter_that_was_meant_is_named(desk: HubDesk) -> None:
    for address, meant in (
        ("/runs?stat=failed", "Did you mean state?"),
        ("/runs?state=failed&Count=3", "Did you mean count?"),
        ("/runs?jobs=", "Did you mean job?"),
        ("/events?ques=mail", "Did you mean queue?"),
        ("/runs/x/events?last-event-id=3", "Did you mean last_event_id?"),
        ("/workers?limit=3", "There are: after, count."),
        ("/jobs/mail?%00%ff=1", "This address takes none; leave it out."),
    ):
        assert desk.refused("GET", address, None, 400, "bad_input")["hint"] == meant


def test_what_workers_ask_has_no_parameters_either(desk: HubDesk) -> None:
    desk.create()
    asked = {"worker": {"name": "w1"}, "count": 1, "lease": 60_000}
    desk.refused("POST", "/worker/claim?wait=1", asked, 400, "bad_input")
    assert len(desk.claim()) == 1  # nothing was taken before


@pytest.mark.parametrize(
    ("says", "jobs"), [({}, ["mail", "solve"]), ({"programs": True}, ["mail", "solve"]), ({"programs": False}, ["mail"])]
)
def test_F2_a_worker_that_does_not_send_programs_goes_on_by_its_tag(desk: HubDesk, says: dict[str, bool], jobs: list[str]) -> None:
    desk.define("solve", solver={"url": "https://files.example/solve", "checksum": "a" * 64})
    for job in ("mail", "solve"):
        desk.ask("POST", "/runs", {"job": job}, status=202)
    worker = {"name": "w", "jobs": ["mail"], "tags": ["solver"], "slots": 9} | says
    desk.ask("POST", "/worker/register", {"worker": worker})
    (row,) = desk.ask("GET", "/workers")["workers"]
    assert row["programs"] is ("solve" in jobs)
    runs = desk.ask("POST", "/worker/claim", {"worker": worker, "count": 9, "lease": 30_000})["runs"]
    assert [run["job"] for run in runs] == jobs


def test_files_of_the_page_and_health_are_there_whatever_stands_behind_them(desk: HubDesk) -> None:
    for place in ("", "page/style.css", "healthz", "metrics"):
        assert httpx.get(f"{desk.served.url}{place}?v=2").status_code == 200
