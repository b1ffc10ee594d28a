"""G: the scheduler's design guards. Its job is an attempt, dispatch is a claim, and its parameters are the payload."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conformance import GUARDS, IN_STATE, SHARED, address, at_once, crowd, late, restarted, unchanged
from tests.harness import BOOM, LEASE, Harness, open_store, token
from tests.tiers import long
from tests.workers import until
from windlass import payload
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Outcome
from windlass.errors import Cancelled, NotEditable, StoreBusy, WrongState
from windlass.faults import FAULTS, VARIABLE
from windlass.machine import ENDED, LIVE, Snooze, Succeed
from windlass.model import NewRun, Options, Run, State, Use, place
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite
from windlass.webhooks import STANDARD

WAITS = (State.WAITING, State.SCHEDULED, State.QUEUED)
HANDED_OUT = (*LIVE, *ENDED)


@pytest.mark.parametrize("state", WAITS)
def test_G1_the_payload_of_what_waits_can_be_changed(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    h(h.engine.patch(run.id, payload={"topic": "new"}))
    assert payload.decode(h.get(run.id).payload) == {"topic": "new"}
    assert h.get(run.id).state is state
    assert h.moves(run.id) == ["create", "patch"]


def test_G1_the_payload_is_frozen_once_handed_out(h: Harness) -> None:
    for state in HANDED_OUT:
        run = IN_STATE[state](h)
        with unchanged(h), pytest.raises(NotEditable, match="Cannot modify payload"):
            h(h.engine.patch(run.id, payload={"topic": "new"}))
        assert h.get(run.id).state is state


def test_G1_a_change_that_was_begun_before_the_claim_does_not_reach_what_is_running(h: Harness) -> None:
    run_id = h.create(payload={"topic": "old"})
    slow = late(h, "patch", h.started)
    with pytest.raises(NotEditable, match="Cannot modify payload"):
        slow(slow.engine.patch(run_id, payload={"topic": "new"}))
    assert payload.decode(h.get(run_id).payload) == {"topic": "old"}
    assert h.moves(run_id) == ["create", "claim", "start"]


def test_G2_priority_and_place_can_be_changed_while_it_waits(h: Harness) -> None:
    first, second, third = h.create(), h.create(), h.create()
    h(h.engine.patch(third, priority=5))
    h(h.engine.patch(first, due_at=h.clock.now() + 1_000))
    assert [run.id for run in h.claim(10)] == [third, second]
    h.sweep(after=1_000)
    assert [run.id for run in h.claim(10)] == [first]


def test_G2_priority_and_place_are_frozen_once_handed_out(h: Harness) -> None:
    for state in HANDED_OUT:
        run = IN_STATE[state](h)
        with unchanged(h), pytest.raises(NotEditable, match="Cannot modify priority"):
            h(h.engine.patch(run.id, priority=5))
        with unchanged(h), pytest.raises(NotEditable, match="Cannot modify due_at"):
            h(h.engine.patch(run.id, due_at=h.clock.now()))
        assert h.get(run.id).state is state


MUTABLE = {"payload", "priority", "due_at", "max_attempts", "queue"}


def test_G3_any_other_field_is_refused_by_its_name(h: Harness) -> None:
    run_id = h.create()
    for field in (*sorted(set(Run.__struct_fields__) - MUTABLE), "status", "params"):
        edit: dict[str, Any] = {"priority": 1, field: State.SUCCEEDED if field == "state" else 1}
        with unchanged(h), pytest.raises(NotEditable, match=f"Cannot modify {field}"):
            h(h.engine.patch(run_id, **edit))


def test_G4_a_worker_gets_no_second_run_while_it_has_one(h: Harness) -> None:
    ids = [h.create() for _ in range(3)]
    first = h.claim(5, slots=1)
    assert [run.id for run in first] == ids[:1]
    with unchanged(h):
        assert h.claim(5, slots=1) == []
    h(h.engine.start(first[0].id, token(first[0])))
    with unchanged(h):
        assert h.claim(5, slots=1) == []
    assert [run.id for run in h.claim(1, "w2", slots=1)] == ids[1:2]
    h.succeed(first[0])
    assert [run.id for run in h.claim(5, slots=1)] == ids[2:]


def test_G4_a_run_that_is_being_cancelled_still_has_its_worker(h: Harness) -> None:
    h.create(), h.create()
    first = h.claimed(slots=1)
    h(h.engine.cancel(first.id))
    with unchanged(h):
        assert h.claim(slots=1) == []
    with pytest.raises(Cancelled):
        h.succeed(first)
    assert len(h.claim(slots=1)) == 1


def test_G4_parallel_work_is_for_those_who_ask_for_it(h: Harness) -> None:
    ids = [h.create() for _ in range(3)]
    assert [run.id for run in h.claim(1, slots=2)] == ids[:1]
    assert [run.id for run in h.claim(1, slots=2)] == ids[1:2]


@pytest.mark.parametrize("kind", SHARED)
def test_G4_a_worker_that_asks_twice_at_once_gets_one_run(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # Each call asks for another type, so that it is the worker and not the run that they compete for.
    types = ("bill", "mail", "scan")
    with crowd(kind, tmp_path, request, 3) as calls:
        h = calls[0]
        for job in types:
            h.define(job)
        for _ in range(10):
            for job in types:
                h.create(job)
            answers = at_once(calls, ["claim"], *[lambda h, job=job: h.claim(jobs=(job,), slots=1) for job in types])
            taken = [run for answer in answers if isinstance(answer, list) for run in answer]
            assert len(taken) == 1, answers
            assert len(h(h.engine.runs(state="claimed")).runs) == 1
            h.succeed(taken[0])


def _mixed(h: Harness, chance: random.Random) -> list[Run]:
    """Runs of several jobs with all kinds of priorities and times, made one by one and together."""
    ids: list[str] = []
    for _ in range(20):
        h.clock.advance(chance.choice((0, 0, 1, 50)))
        news = [
            NewRun(
                chance.choice(("mail", "bill", "scan")),
                options=Options(priority=chance.choice((None, -3, 0, 0, 7))),
                due_at=chance.choice((None, None, h.clock.now() - 5_000, h.clock.now() + chance.randrange(100))),
            )
            for _ in range(chance.randrange(1, 4))
        ]
        ids += [made.id for made in h(h.engine.create(news))]
    h.sweep(after=1_000)
    return [h.get(run_id) for run_id in ids]


@pytest.mark.parametrize("seed", range(3))
def test_G5_runs_go_out_by_priority_then_place_then_age_also_after_a_restart(
    h: Harness, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    h.define("bill", priority=2)
    h.define("scan")
    chance = random.Random(seed)
    made = _mixed(h, chance)
    assert all(place(max(run.due_at, run.created_at)) <= run.position < place(max(run.due_at, run.created_at) + 1) for run in made)
    expected = [run.id for run in sorted(made, key=lambda run: (-run.priority, run.position, run.created_at))]
    assert {run.priority for run in made} == {-3, 0, 2, 7}
    given: list[str] = []
    while len(given) < len(expected) // 2:
        given += [run.id for run in h.claim(chance.randrange(1, 4))]
    after = restarted(h, tmp_path, request)
    assert [run.id for run in after(after.engine.runs(state="queued")).runs] == expected[len(given) :]
    while batch := after.claim(chance.randrange(1, 4)):
        given += [run.id for run in batch]
    assert given == expected


def test_G9_each_attempt_is_executed_once_and_a_retry_is_a_new_one_that_names_the_failed(h: Harness) -> None:
    h.define(**GUARDS)
    run_id = h.create()
    tokens = []
    for delay in (10_000, 20_000):
        run = h.started()
        tokens.append(run.token)
        assert h.claim(worker="w2") == []
        h.fail(run)
        h.sweep(after=delay)
    run = h.started()
    h.succeed(run)
    attempts = h(h.engine.attempts(run_id))
    assert [attempt.outcome for attempt in attempts] == ["failed", "failed", "succeeded"]
    assert [attempt.token for attempt in attempts] == [*tokens, run.token]
    assert len({attempt.token for attempt in attempts}) == 3
    assert len({attempt.id for attempt in attempts}) == 3
    assert [attempt.retry_of for attempt in attempts] == [None, attempts[0].id, attempts[1].id]
    assert {h.get(attempt.id).id for attempt in attempts} == {run_id}


def test_G10_the_number_of_retries_follows_from_the_chain(h: Harness) -> None:
    h.define(**GUARDS)
    run_id = h.create()
    h.fail(h.started())
    h.sweep(after=10_000)
    snoozed = h.started()
    h.report(snoozed, Snooze(token=snoozed.token, delay=5))
    h.sweep(after=5)
    h.started()
    h.sweep(after=LEASE)
    h.sweep(after=20_000)
    run = h.started()
    attempts = {attempt.id: attempt for attempt in h(h.engine.attempts(run_id))}
    chain, at = [], run.retry_of
    while at is not None:
        chain.append(attempts[at].outcome)
        at = attempts[at].retry_of
    assert chain == ["lapsed", "returned", "failed"]
    assert run.failures == len(chain) - chain.count("returned") == 2
    assert run.attempt == len(chain) + 1
    h.fail(run)
    h.sweep(after=40_000)
    assert h.fail(h.started()).state is State.FAILED


def test_G11_failures_are_retried_after_growing_delays_until_the_limit(h: Harness) -> None:
    h.define(**GUARDS)
    run_id = h.create()
    delays = []
    while h.fail(h.started()).state is not State.FAILED:
        run = h.get(run_id)
        delays.append(run.due_at - h.clock.now())
        h.sweep(after=delays[-1] - 1)
        assert h.claim() == []
        h.sweep(after=1)
    assert delays == [10_000, 20_000, 40_000]
    h.sweep(after=24 * 3_600_000)
    assert h.claim() == []
    assert (h.get(run_id).state, h.get(run_id).failures, h.get(run_id).error) == (State.FAILED, 4, BOOM)


def test_G11_a_retry_goes_to_the_tail(h: Harness) -> None:
    h.define(**GUARDS)
    failed = h.create()
    h.fail(h.started())
    h.clock.advance(9_999)
    others = [h.create(), h.create()]
    h.sweep(after=1)
    others.append(h.create())
    assert [run.id for run in h.claim(10)] == [*others[:2], failed, others[2]]


@pytest.mark.parametrize("kind", SHARED)
def test_G16_of_many_claims_of_one_run_exactly_one_wins(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 8) as workers:
        h = workers[0]
        for _ in range(15):
            run_id = h.create()
            answers = at_once(workers, ["claim"], *[lambda h, n=n: h.claim(worker=f"w{n}") for n in range(8)])
            taken = [run for answer in answers if isinstance(answer, list) for run in answer]
            assert [run.id for run in taken] == [run_id], answers
            assert h.get(run_id) == taken[0]
            assert h.moves(run_id) == ["create", "claim"]


def test_G16_a_claim_and_what_is_recorded_of_it_are_one(h: Harness) -> None:
    run_id = h.create()
    FAULTS.arm("claim.after_claim=raise:busy")
    try:
        with unchanged(h), pytest.raises(StoreBusy):
            h.claim()
    finally:
        FAULTS.arm("")
    assert [run.id for run in h.claim()] == [run_id]
    assert h.moves(run_id) == ["create", "claim"]


KILLED_AT = (
    "create.after_create_plain=kill@4",
    "create.after_commit=kill@4",
    "claim.after_claim=kill@4",
    "claim.after_commit=kill@4",
    "start.before_commit=kill@4",
    "report.before_commit=kill@5",
    "report.after_commit=kill@5",
    "report.after_write_back=kill@2",
)


SESSIONS = """select pid from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"""


def _killed(kind: str, where: str, fault: str, lines: int) -> dict[str, set[str]]:
    """Let a process work until a kill -9 ends it, at a named point or after it has said so much; what it had promised."""
    command = [sys.executable, "-m", "tests.work_child", kind, where]
    promised, before = defaultdict(set), _sessions(kind, where)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {VARIABLE: fault}, text=True) as child:
        assert child.stdout is not None
        for n, line in enumerate(child.stdout):
            word, run_id = line.split()
            promised[word].add(run_id)
            if n == lines:
                child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    until(lambda: _sessions(kind, where) <= before)  # the server may still commit what the process had sent
    return promised


def _sessions(kind: str, where: str) -> set[int]:
    """The server's processes for others than this call."""
    if kind != "postgres":
        return set()
    with psycopg.connect(where, autocommit=True) as connection:
        return {pid for (pid,) in connection.execute(SESSIONS)}


def _assert_kept(h: Harness, promised: dict[str, set[str]]) -> None:
    """What the dead process had been told is so."""
    for word, move in (("created", "create"), ("claimed", "claim"), ("started", "start"), ("succeeded", "succeed"), ("failed", "fail")):
        for run_id in promised[word]:
            assert move in h.moves(run_id)
    for run_id in promised["logged"]:
        assert h(h.engine.lines(run_id))[0].text == f"line of {run_id}"
    for run_id in promised["succeeded"]:
        assert (h.get(run_id).state, h.get(run_id).output) == (State.SUCCEEDED, f'"{run_id}"')


def _assert_sound(h: Harness) -> None:
    """Every run is whole: its journal has no gap, one end at most, and says what the row says."""
    for run in h(h.engine.runs(count=1_000)).runs:
        entries = h(h.engine.history(run.id))
        assert [entry.rev for entry in entries] == list(range(1, run.rev + 1))
        assert entries[-1].state is run.state
        assert sum(entry.state in ENDED for entry in entries) == (run.state in ENDED)


@long
@pytest.mark.parametrize("kind", SHARED)
def test_G36_state_survives_kill_9_in_the_middle_of_work(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = ManualClock(SystemClock().now())
    store = open_store(kind, tmp_path, request, clock)
    h = Harness(store, clock)
    h.define(max_attempts=100)
    rounds = [(fault, -1) for fault in KILLED_AT] + [("", lines) for lines in (3, 29, 100)]
    for fault, lines in rounds:
        promised = _killed(kind, address(store), fault, lines)
        assert promised["created"], fault
        _assert_kept(h, promised)
        _assert_sound(h)
        # What the dead process held is still held; when its lease is over, it is executed by another.
        assert len(held := [run.id for state in LIVE for run in h(h.engine.runs(state=state)).runs]) <= 1
        clock.advance(max(0, SystemClock().now() - clock.now()) + LEASE)
        h.sweep()
        h.sweep(after=60_000)
        while runs := h.claim(100):
            h(h.engine.report_many([Outcome(run.id, Succeed(token=run.token)) for run in runs]))
        assert {h.get(run_id).state for run_id in [*held, *promised["created"]]} == {State.SUCCEEDED}
    _assert_sound(h)
    run_sync(store.close())


def test_G36_the_file_has_a_write_ahead_log(tmp_path: Path) -> None:
    store = BlockingSqlite(tmp_path / "windlass.db", SystemClock())
    assert store._line is not None
    assert store._line.db.pragma("journal_mode") == "wal"
    assert (tmp_path / "windlass.db-wal").exists()
    run_sync(store.close())


def test_G12_a_failed_run_can_always_be_run_again_by_hand_with_its_own_snapshot(h: Harness) -> None:
    h.define("mail", payload={"from": "old"}, max_attempts=1)
    run_id = h.create(payload={"to": "ann"})
    h.fail(h.claimed())
    h.define("mail", payload={"from": "new"}, max_attempts=1)
    again = h(h.engine.rerun(run_id)).id
    h.fail(h.claimed())
    third = h(h.engine.rerun(again)).id
    assert payload.decode(h.get(third).payload) == {"from": "old", "to": "ann"}
    assert (h.get(third).retry_of, h.get(again).retry_of, h.get(run_id).state) == (again, run_id, State.FAILED)


def test_G12_a_failed_attempt_is_run_again_beside_the_retry_that_is_planned(h: Harness) -> None:
    h.define(backoff=(60_000,))
    run_id = h.create(payload={"topic": "old"})
    h.fail(h.claimed())
    before = h.get(run_id)
    beside = h.get(h(h.engine.rerun(run_id, attempt=1)).id)
    assert (payload.decode(beside.payload), beside.retry_of, beside.state) == ({"topic": "old"}, run_id, State.QUEUED)
    assert h.get(run_id) == before


def test_G40_an_ended_job_shows_the_params_it_ran_with_and_a_manual_retry_of_it_starts_from_them(h: Harness) -> None:
    h.define(backoff=(0,))
    run_id = h.create(payload={"topic": "old"})
    h.fail(h.claimed())
    h(h.engine.patch(run_id, payload={"topic": "new"}))
    first, second = h(h.engine.attempts(run_id))
    assert (first.payload, second.payload) == ('{"topic":"old"}', None)
    assert payload.decode(h.claimed().payload) == {"topic": "new"}
    again = h.get(h(h.engine.rerun(run_id, attempt=1)).id)
    assert (payload.decode(again.payload), again.retry_of) == ({"topic": "old"}, first.id)


@pytest.mark.parametrize("state", [*WAITS, *LIVE])
def test_G12_what_has_not_ended_cannot_be_run_again(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    with unchanged(h), pytest.raises(WrongState):
        h(h.engine.rerun(run.id))


def test_G13_after_a_crash_the_queue_is_as_it_was_and_what_ran_is_tried_again(
    h: Harness, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    h.define("mail", backoff=(1_000,))
    h(h.engine.add_webhook("https://example.org/hook", states=("failed", "scheduled")))
    ran, *queued = [h.create() for _ in range(4)]
    assert h.started().id == ran
    again = restarted(h, tmp_path, request)
    again.sweep(after=LEASE)
    assert [run.id for run in again(again.engine.runs(state="queued")).runs] == queued
    recovered = again.get(ran)
    assert recovered.state is State.SCHEDULED
    assert recovered.error is not None
    assert "recovered" in recovered.error.message
    again(again.engine.make_deliveries(STANDARD.content(again.engine)))
    (told,) = again(again.engine.deliveries(again(again.engine.webhooks())[0].id)).deliveries
    assert told.run == ran
    again.sweep(after=1_000)
    assert again.claimed().id == ran  # a retry keeps its place


def test_G14_recovering_twice_is_recovering_once(h: Harness) -> None:
    run_id = h.create()
    h.started()
    h.sweep(after=LEASE)
    with unchanged(h):
        h.sweep()
        h.another().sweep()
    assert [attempt.outcome for attempt in h(h.engine.attempts(run_id))] == ["lapsed", "scheduled"]


def test_G21_three_tries_and_then_it_is_failed_and_readable(h: Harness) -> None:
    webhook = h(h.engine.add_webhook("https://example.org/hook", states=("succeeded",)))
    run_id = h.create()
    h.succeed(h.claimed())
    h(h.engine.make_deliveries(STANDARD.content(h.engine)))
    pauses, last = [], 0
    for _ in range(3):
        (parcel,) = h(h.engine.claim_deliveries(1, LEASE))
        pauses.append(h.clock.now() - last)
        last = h.clock.now()
        h(h.engine.not_delivered(parcel.delivery.id, parcel.delivery.token or "", "500", answer=500))
        h.clock.advance(max(0, h(h.engine.get_delivery(parcel.delivery.id)).next_at or 0) - h.clock.now() if _ < 2 else 0)
    delivery = h(h.engine.deliveries(webhook.id)).deliveries[0]
    assert (delivery.run, delivery.status, delivery.tries) == (run_id, "failed", 3)
    assert pauses[1] < pauses[2]
    h.clock.advance(365 * 24 * 3600 * 1000)
    assert h(h.engine.claim_deliveries(1, LEASE)) == []


def test_G37_limits_by_tag_exist_beside_one_global_slot(h: Harness) -> None:
    h(h.engine.set_resource("global", capacity=2))
    h(h.engine.set_resource("ollama", capacity=1))
    h.define("story", uses=(Use("global"), Use("ollama")))
    h.define("fetch", uses=(Use("global"),))
    first, second, third, fourth = h.create("story"), h.create("story"), h.create("fetch"), h.create("fetch")
    assert [run.id for run in h.claim(9)] == [first, third]
    h.succeed(h.get(third))
    assert [run.id for run in h.claim(9)] == [fourth]
    h.succeed(h.get(first))
    assert [run.id for run in h.claim(9)] == [second]


def test_G38_a_flood_of_urgent_runs_does_not_starve_a_queue_that_ages(h: Harness) -> None:
    h(h.engine.set_queue("default", aging=60_000))
    patient = h.create(options=Options(priority=0))
    waited = 0
    while patient not in [run.id for run in h.claim(1)]:
        h.create(options=Options(priority=5))
        h.clock.advance(10_000)
        waited += 10_000
        assert waited <= 6 * 60_000
