"""K: Kumofire Jobs. A message is a run that a claim can get; consume is claim, start and report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import asdict, replace

from tests.conformance import IN_STATE, KUMOFIRE, SHARED, address, at_once, begun, crowd, late, unchanged
from tests.harness import BOOM, LEASE, Harness, open_store, token
from windlass import payload
from windlass.clock import ManualClock
from windlass.engine import Status
from windlass.errors import Cancelled, LeaseLost, SchemaMismatch, StoreBusy, WindlassError, WrongState
from windlass.faults import FAULTS
from windlass.machine import Fail, Requeue, Skip, Snooze, Succeed
from windlass.model import Created, Failure, Key, NewRun, Run, State
from windlass.store import sql
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite

BEFORE = (State.WAITING, State.SCHEDULED, State.QUEUED)
FOR_EVER = Key("order-7", ttl="forever")
WAITING_FOR_LOCKS = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """Whatever a test arms, the next one begins without."""
    yield
    FAULTS.arm("")


def consume(h: Harness, worker: str = "w1") -> Run:
    """Execute the one run that there is a message for, to its good end."""
    run = h.started(worker)
    h.succeed(run)
    return run


def test_K1_a_run_without_a_time_is_queued_at_once_and_the_answer_is_its_id(h: Harness) -> None:
    (answer,) = h(h.engine.create([NewRun("mail", {"to": "ann"})]))
    assert asdict(answer) == {"id": answer.id, "created": True, "pruned": False}
    run = h.get(answer.id)
    assert (run.state, run.due_at, run.created_at, run.retry_of) == (State.QUEUED, h.clock.now(), h.clock.now(), None)
    assert [listed.id for listed in h(h.engine.runs()).runs] == [answer.id]
    assert [taken.id for taken in h.claim(10)] == [answer.id]


def test_K2_a_run_for_the_future_is_scheduled_for_its_time_and_no_message_is_sent(h: Harness) -> None:
    at = h.clock.now() + 60_000
    run_id = h.create(due_at=at)
    h.sweep()
    run = h.get(run_id)
    assert (run.state, run.due_at) == (State.SCHEDULED, at)
    assert h(h.engine.status(run_id)).scheduled_for == at
    assert h.claim() == []


def test_K3_dispatch_sends_one_message_at_the_due_time_and_none_a_millisecond_before(h: Harness) -> None:
    run_id = h.create(due_at=h.clock.now() + 60_000)
    h.clock.advance(59_999)
    assert h(h.engine.dispatch()) == 0
    assert h.get(run_id).state is State.SCHEDULED
    h.clock.advance(1)
    assert h(h.engine.dispatch()) == 1
    assert h.get(run_id).state is State.QUEUED
    assert [run.id for run in h.claim(10)] == [run_id]
    assert h.moves(run_id) == ["create", "dispatch", "claim"]


def test_K5_a_second_dispatch_sends_nothing_for_the_same_run(h: Harness) -> None:
    run_id = h.create(due_at=h.clock.now() + 1_000)
    h.clock.advance(1_000)
    assert h(h.engine.dispatch()) == 1
    with unchanged(h):
        assert h(h.engine.dispatch()) == 0
    assert h.moves(run_id) == ["create", "dispatch"]


def test_K5_a_dispatcher_that_read_long_ago_does_not_send_again_what_is_running(h: Harness) -> None:
    run_id = h.create(due_at=h.clock.now() + 1_000)
    h.clock.advance(1_000)

    def another_dispatches_and_it_runs() -> None:
        assert h(h.engine.dispatch()) == 1
        h.started()

    slow = late(h, "dispatch", another_dispatches_and_it_runs)
    assert slow(slow.engine.dispatch()) == 0
    assert h.get(run_id).state is State.RUNNING
    assert h.moves(run_id) == ["create", "dispatch", "claim", "start"]


@pytest.mark.parametrize("kind", SHARED)
def test_K6_two_dispatchers_at_once_send_one_message_per_run(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 2) as both:
        h = both[0]
        for _ in range(10):
            ids = [h.create(due_at=h.clock.now() + 1_000) for _ in range(20)]
            h.clock.advance(1_000)
            sent = at_once(both, ["dispatch"], *[lambda h: h(h.engine.dispatch())] * 2)
            assert sum(number for number in sent if isinstance(number, int)) == 20, sent
            assert [h.moves(run_id) for run_id in ids] == [["create", "dispatch"]] * 20
            assert sorted(run.id for run in h.claim(100)) == sorted(ids)


def test_K13_claim_and_start_give_lock_running_and_the_stored_payload(h: Harness) -> None:
    h.define(payload={"from": "shop", "copies": 1})
    run_id = h.create(payload={"to": "ann", "copies": 2})
    h.define(payload={"from": "elsewhere"})
    h.clock.advance(10)
    taken = h.claimed()
    assert payload.decode(taken.payload) == {"from": "shop", "copies": 2, "to": "ann"}
    assert (taken.state, taken.worker, taken.lease_until, taken.started_at) == (State.CLAIMED, "w1", h.clock.now() + LEASE, None)
    h.clock.advance(5)
    h(h.engine.start(run_id, token(taken)))
    run = h.get(run_id)
    assert (run.state, run.started_at, run.token) == (State.RUNNING, h.clock.now(), taken.token)
    assert run.payload == taken.payload


def test_K14_a_handler_that_returns_ends_the_run_and_clears_the_last_error(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    h.fail(h.started())
    h.sweep(after=1_000)
    run = h.started()
    assert run.error == BOOM
    h.clock.advance(7)
    h.succeed(run)
    status = h(h.engine.status(run_id))
    assert (status.state, status.finished_at, status.error) == (State.SUCCEEDED, h.clock.now(), None)
    assert status.failures == run.failures == 1


def test_K15_a_handler_that_throws_with_attempts_left_is_scheduled_again(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    h.clock.advance(5)
    h.fail(h.started(), Failure("smtp", "no answer"))
    status, due = h(h.engine.status(run_id)), h.clock.now() + 1_000
    assert (status.state, status.failures, status.scheduled_for) == (State.SCHEDULED, 1, due)
    assert status.error == Failure("smtp", "no answer")
    assert (status.started_at, status.finished_at) == (None, None)
    h.sweep(after=999)
    assert h.claim() == []
    h.sweep(after=1)
    assert [run.id for run in h.claim()] == [run_id]


def test_K16_delays_are_one_then_two_seconds_and_the_third_failure_is_the_last(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    for failures, delay in ((1, 1_000), (2, 2_000)):
        h.fail(h.started())
        status = h(h.engine.status(run_id))
        assert (status.state, status.failures, status.scheduled_for) == (State.SCHEDULED, failures, h.clock.now() + delay)
        h.sweep(after=delay)
    assert h.fail(h.started()).state is State.FAILED
    status = h(h.engine.status(run_id))
    assert (status.state, status.failures) == (State.FAILED, 3)
    h.sweep(after=3_600_000)
    assert h.claim() == []


def test_K17_a_handler_that_throws_with_no_attempt_left_fails_the_run(h: Harness) -> None:
    h.define(max_attempts=1)
    run_id = h.create()
    run = h.started()
    h.clock.advance(9)
    assert h.fail(run).state is State.FAILED
    status = h(h.engine.status(run_id))
    assert (status.state, status.failures, status.finished_at, status.error) == (State.FAILED, 1, h.clock.now(), BOOM)


def test_K18_a_message_that_comes_again_after_success_does_nothing(h: Harness) -> None:
    h.create()
    assert late(h, "claim", lambda: consume(h)).claim(worker="w2") == []
    with unchanged(h):
        assert h.claim(10, worker="w2") == []


def test_K18_a_success_reported_again_leaves_the_row_as_it_was(h: Harness) -> None:
    h.create()
    run = h.started()
    h.succeed(run, '"sent"')
    h.clock.advance(60_000)
    with unchanged(h):
        assert h.succeed(run, '"sent"').repeated
        with pytest.raises(WrongState):
            h(h.engine.start(run.id, token(run)))


def test_K19_a_second_consumer_gets_nothing_while_the_lease_is_held(h: Harness) -> None:
    h.create()
    held: list[Run] = []
    assert late(h, "claim", lambda: held.append(h.started())).claim(worker="w2") == []
    h.clock.advance(LEASE - 1)
    h.sweep()
    with unchanged(h):
        assert h.claim(worker="w2") == []
        with pytest.raises(LeaseLost):
            h(h.engine.start(held[0].id, h.clock.nonce()))
        with pytest.raises(LeaseLost):
            h.succeed(replace(held[0], token=h.clock.nonce()))
    run = h.get(held[0].id)
    assert (run.state, run.worker, run.token) == (State.RUNNING, "w1", held[0].token)


@pytest.mark.parametrize("begins", [False, True], ids=["claimed", "running"])
def test_K20_a_run_whose_holder_is_gone_is_executed_again(h: Harness, begins: bool) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    lost = h.started() if begins else h.claimed()
    h.sweep(after=LEASE - 1)
    assert h.get(run_id).token == lost.token
    h.sweep(after=1)
    status = h(h.engine.status(run_id))
    assert (status.state, status.failures) == (State.SCHEDULED, 1)
    assert status.error is not None
    assert status.error.code == "worker_lost"
    h.sweep(after=1_000)
    assert consume(h, "w2").id == run_id
    with unchanged(h), pytest.raises(LeaseLost):
        h.fail(lost)
    assert h.get(run_id).state is State.SUCCEEDED


def test_K21_an_outcome_stays_recorded_when_the_answer_to_it_is_lost(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    run = h.started()
    FAULTS.arm("report.after_commit=drop@1")
    assert h.fail(run).state is State.SCHEDULED
    FAULTS.arm("")
    after = h.get(run_id)
    assert (after.failures, after.error, after.token, after.lease_until, after.lease_check_at) == (1, BOOM, None, None, None)
    assert h.moves(run_id).count("fail") == 1
    h.sweep(after=1_000)
    run = h.started("w2")
    FAULTS.arm("report.after_commit=drop@1")
    assert h.succeed(run).state is State.SUCCEEDED
    FAULTS.arm("")
    assert h.moves(run_id)[-2:] == ["start", "succeed"]
    assert (h.get(run_id).lease_until, h.get(run_id).lease_check_at) == (None, None)


def test_K21_without_a_stored_outcome_the_lock_holds_until_its_time_and_then_the_next_one_gets_it(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    run = h.started()
    FAULTS.arm("report.before_commit=raise:busy")
    with unchanged(h), pytest.raises(StoreBusy):
        h.succeed(run)
    FAULTS.arm("")
    h.sweep(after=LEASE - 1)
    assert (h.get(run_id).token, h.claim(worker="w2")) == (run.token, [])
    h.sweep(after=1)
    h.sweep(after=1_000)
    assert consume(h, "w2").id == run_id


def test_K25_the_same_key_gives_the_same_run_for_ever_whatever_is_asked_for(h: Harness) -> None:
    h.define("bill")
    run_id = h.create(payload={"n": 1}, key=FOR_EVER)
    for job, content in (("mail", {"n": 1}), ("mail", {"n": 2}), ("bill", None)):
        (again,) = h(h.engine.create([NewRun(job, content, key=FOR_EVER)]))
        assert again == Created(run_id, created=False)
    assert [run.id for run in h(h.engine.runs()).runs] == [run_id]
    assert consume(h).id == run_id
    h.clock.advance(40 * 24 * 3_600_000)
    assert h(h.engine.create([NewRun("mail", key=FOR_EVER)])) == [Created(run_id, created=False)]
    h.sweep()
    assert h(h.engine.create([NewRun("mail", key=FOR_EVER)])) == [Created(run_id, created=False, pruned=True)]
    assert h(h.engine.runs()).runs == []
    assert h.claim(10) == []


@pytest.mark.parametrize("ttl", ["unfinished", "forever"])
@pytest.mark.parametrize("kind", SHARED)
def test_K26_creators_that_race_for_a_key_all_get_the_one_run(kind: str, ttl: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def ask(name: str) -> Callable[[Harness], Created]:
        return lambda h: h(h.engine.create([NewRun("mail", key=Key(name, ttl=ttl))]))[0]

    with crowd(kind, tmp_path, request, 4) as creators:
        for number in range(10):
            # A key that is free, and then one that is free again because its run has ended.
            name = "again" if ttl == "unfinished" else f"order-{number}"
            answers = at_once(creators, ["take_keys"], *[ask(name)] * 4)
            made = [answer for answer in answers if isinstance(answer, Created)]
            assert len(made) == 4, answers
            assert len({answer.id for answer in made}) == 1, answers
            assert [answer.created for answer in made].count(True) == 1, answers
            assert [run.id for run in creators[0].claim(10)] == [made[0].id]
            for run in creators[0](creators[0].engine.runs(state="claimed")).runs:
                creators[0].succeed(run)


@pytest.mark.parametrize("kind", ["postgres"])
def test_K26_creators_that_waited_for_a_key_see_who_got_it(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ask = NewRun("mail", key=Key("again"))
    with crowd(kind, tmp_path, request, 4) as creators, psycopg.connect(address(creators[0].store)) as holder:
        creators[0].create(key=Key("again"))
        consume(creators[0])
        # The key is free again. Somebody holds its row until all four wait for it, so nobody can know of another.
        holder.execute("select key from job_keys for update")
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(h, h.engine.create([ask])) for h in creators]
            while holder.execute(WAITING_FOR_LOCKS).fetchall() != [(4,)]:
                threading.Event().wait(0.005)
            holder.commit()
        made = [answer.result()[0] for answer in answers]
        assert len({answer.id for answer in made}) == 1, made
        assert [answer.created for answer in made].count(True) == 1, made
        assert [run.id for run in creators[0].claim(10)] == [made[0].id]


def test_K27_the_status_needs_only_the_id_and_shows_nothing_of_the_inside(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create(payload={"secret": 1})
    h.fail(h.started())
    shown = asdict(h(h.another().engine.status(run_id)))
    assert shown == {
        "id": run_id,
        "job": "mail",
        "state": State.SCHEDULED,
        "failures": 1,
        "max_attempts": 3,
        "scheduled_for": h.clock.now() + 1_000,
        "started_at": None,
        "finished_at": None,
        "error": BOOM,
    }
    assert Status.__struct_fields__ == tuple(shown)


def _newer(store: Store) -> Store:
    """The same store as a windlass opens it whose schema has one step more."""
    if isinstance(store, BlockingSqlite):
        return BlockingSqlite(address(store), ManualClock(), steps=[*sql.migrations("sqlite"), "create table job_later (id integer)"])
    return BlockingPostgres(address(store), ManualClock(), steps=[*sql.migrations("postgres"), "create table job_later (id bigint)"])


@pytest.mark.parametrize("kind", SHARED)
def test_K28_a_schema_that_is_too_old_is_refused_before_anything_is_done(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock, known = ManualClock(), len(sql.migrations("sqlite"))
    store = open_store(kind, tmp_path, request, clock)
    h = Harness(store, clock)
    h.define()
    h.create()
    h.create(due_at=clock.now() + 1_000)
    clock.advance(1_000)
    verbs: list[Callable[[Harness], object]] = [Harness.create, lambda h: h(h.engine.dispatch()), Harness.claim]

    def act(verb: Callable[[Harness], object]) -> object:
        return verb(Harness(_newer(store), clock))

    for verb in verbs:
        with unchanged(h), pytest.raises(SchemaMismatch, match=rf"has schema version {known}; this windlass needs {known + 1}") as refused:
            act(verb)
        assert "windlass migrate" in refused.value.hint
    run_sync(store.close())


def _scheduled(h: Harness) -> str:
    return h.create(due_at=h.clock.now() + 1_000)


@pytest.mark.parametrize("state", BEFORE)
def test_K29_a_run_cancelled_before_it_began_is_never_executed(h: Harness, state: State) -> None:
    run_id = IN_STATE[state](h).id
    assert h(h.engine.cancel(run_id)).state is State.CANCELLED
    h.sweep(after=60_000)
    with unchanged(h):
        assert h.claim(10) == []
    assert h(h.engine.status(run_id)).state is State.CANCELLED


def test_K29_a_message_read_before_the_cancel_does_nothing_after_it(h: Harness) -> None:
    queued, scheduled = h.create(), _scheduled(h)
    assert late(h, "claim", lambda: h(h.engine.cancel(queued))).claim() == []
    h.clock.advance(1_000)
    slow = late(h, "dispatch", lambda: h(h.engine.cancel(scheduled)))
    assert slow(slow.engine.dispatch()) == 0
    assert {h.get(run_id).state for run_id in (queued, scheduled)} == {State.CANCELLED}


def test_K29_a_running_run_that_is_cancelled_ends_so_whatever_is_reported(h: Harness) -> None:
    run_id = h.create()
    run = h.started()
    assert h(h.engine.cancel(run_id)).state is State.CANCELLING
    assert h.claim(worker="w2") == []
    with pytest.raises(Cancelled):
        h.succeed(run, '"sent"')
    after = h.get(run_id)
    assert (after.state, after.output, after.finished_at) == (State.CANCELLED, None, h.clock.now())
    h.clock.advance(1_000)
    with unchanged(h), pytest.raises(Cancelled):
        h.succeed(run, '"sent"')
    assert h.claim(worker="w2") == []


STOPPABLE = (State.CLAIMED, State.RUNNING, State.CANCELLING)

MARKS: dict[str, tuple[tuple[State, ...], Callable[[Harness, Run, str], object]]] = {
    "start": ((State.CLAIMED, State.RUNNING), lambda h, run, held: h(h.engine.start(run.id, held))),
    "succeed": (STOPPABLE, lambda h, run, held: h.report(run, Succeed(token=held, output="1"))),
    "fail": (STOPPABLE, lambda h, run, held: h.report(run, Fail(token=held, error=Failure("other", "error")))),
    "snooze": (STOPPABLE, lambda h, run, held: h.report(run, Snooze(token=held, delay=5))),
    "requeue": (STOPPABLE, lambda h, run, held: h.report(run, Requeue(token=held))),
    "report skipped": (STOPPABLE, lambda h, run, held: h.report(run, Skip(token=held, reason="duplicate"))),
    "cancel": ((*BEFORE, *STOPPABLE), lambda h, run, held: h(h.engine.cancel(run.id))),
    "skip": (BEFORE, lambda h, run, held: h(h.engine.skip(run.id, reason="late"))),
    "patch": (BEFORE, lambda h, run, held: h(h.engine.patch(run.id, priority=9))),
}
"""Every mark that can be sent, and the states in which it is right. A start said twice counts once: L2."""


@pytest.mark.parametrize("state", IN_STATE)
def test_K30_a_mark_on_the_wrong_state_changes_nothing(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    assert run.state is state
    h.clock.advance(10)
    for name, (right, mark) in MARKS.items():
        if state in right:
            continue
        with unchanged(h), pytest.raises(WindlassError) as refused:
            mark(h, run, run.token or h.clock.nonce())
        assert refused.value.status == 409, name


def test_K30_a_mark_that_is_sent_again_is_counted_once(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    first = h.started()
    assert not h.fail(first).repeated
    h.clock.advance(10)
    with unchanged(h):
        assert h.fail(first).repeated
    h.sweep(after=1_000)
    with unchanged(h):
        assert h.fail(first).repeated
    second = h.started()
    with unchanged(h):
        assert h.fail(first).repeated
        h(h.engine.start(run_id, token(second)))
    assert h.get(run_id).failures == 1
    assert begun(h.get(run_id)) == 2


def test_K38_status_and_history_are_read_by_the_id(h: Harness) -> None:
    h.define(**KUMOFIRE)
    run_id = h.create()
    began = []
    for number, delay in ((1, 1_000), (2, 2_000)):
        h.clock.advance(3)
        began.append(h.clock.now())
        h.fail(h.started(f"w{number}"), Failure("smtp", f"failure {number}"))
        h.sweep(after=delay)
    began.append(h.clock.now())
    h.succeed(h.started("w3"))
    attempts = h(h.engine.attempts(run_id))
    assert [(one.n, one.outcome, one.worker, one.started_at, one.error and one.error.message) for one in attempts] == [
        (1, "failed", "w1", began[0], "failure 1"),
        (2, "failed", "w2", began[1], "failure 2"),
        (3, "succeeded", "w3", began[2], None),
    ]
    assert attempts[0].id == run_id
    assert [one.retry_of for one in attempts] == [None, attempts[0].id, attempts[1].id]
    assert h.moves(run_id) == ["create", *["claim", "start", "fail", "dispatch"] * 2, "claim", "start", "succeed"]
    assert h(h.engine.status(run_id)).state is State.SUCCEEDED


def test_K39_what_the_handler_returns_is_kept_in_the_run(h: Harness) -> None:
    output = payload.encode({"sent": 3, "to": ["ann", "bö"]}, limit=1_000)
    run_id = h.create()
    h.succeed(h.started(), output)
    assert h.get(run_id).output == output
