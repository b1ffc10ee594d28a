"""Reads for a page at once: runs of a queue, runs by ids, the attempts of several, parts of a log, what each worker holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import Harness, token
from windlass.answers import Page
from windlass.engine import lists as reads
from windlass.errors import BadInput, WrongState
from windlass.machine import ENDED
from windlass.model import Failure, Principal, Run, Solver, State, WorkerInfo
from windlass.store.base import Row, Statement, Store

QUEUES = ("default", "a", "b")
STATES = st.sets(st.sampled_from(State), min_size=1)


def whole(h: Harness, **filters: Any) -> list[Run]:
    """A list from its first page to its last."""
    page: Page = h(h.engine.runs(**filters))
    found = list(page.runs)
    while page.cursor is not None:
        page = h(h.engine.runs(**filters, cursor=page.cursor))
        found += page.runs
    return found


def life(h: Harness, queue: str, priority: int, state: State) -> None:
    """One run of a queue in a state; claims take only from its job, of which no other run is queued."""
    job = f"{queue} {priority} {state}"
    h.define(job, queue=queue, priority=priority, max_attempts=1, on_exhausted="quarantined" if state is State.QUARANTINED else "failed")
    if state in (State.WAITING, State.SCHEDULED):
        later = h.create(job, due_at=h.clock.now() + 60_000)
        if state is State.WAITING:
            h.create(job, after=(later,))
        return
    run_id = h.create(job)
    if state is State.SKIPPED:
        h(h.engine.skip(run_id, reason="holiday"))
    elif state is State.CANCELLED:
        h(h.engine.cancel(run_id))
    elif state is not State.QUEUED:
        held(h, job, state)


def held(h: Harness, job: str, state: State) -> None:
    run = h.claimed(jobs=(job,))
    if state in (State.RUNNING, State.CANCELLING):
        h(h.engine.start(run.id, token(run)))
    if state is State.CANCELLING:
        h(h.engine.cancel(run.id))
    elif state is State.SUCCEEDED:
        h.succeed(run)
    elif state in (State.FAILED, State.QUARANTINED):
        h.fail(run)


@pytest.fixture
def full(h: Harness) -> Harness:
    """Runs of three queues and two priorities in every state, in turns."""
    for priority in (3, 0):
        for state in State:
            for queue in QUEUES:
                life(h, queue, priority, state)
    assert {(run.queue, run.state) for run in whole(h)} == {(queue, state) for queue in QUEUES for state in State}
    return h


# Lists of a queue


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queue=st.sampled_from((*QUEUES, "none")),
    states=st.none() | STATES,
    count=st.sampled_from((1, 2, 7, 100)),
    walk=st.sampled_from((1, 3, 10_000)),
)
def test_a_list_of_a_queue_is_the_filter_over_all_runs(full: Harness, queue: str, states: set[State] | None, count: int, walk: int) -> None:
    expected = [run.id for run in whole(full) if run.queue == queue and run.state in (states or State)]
    filters = {"queue": queue} if states is None else {"queue": queue, "states": sorted(states)}
    usual, reads.WALK = reads.WALK, walk
    try:
        listed = [run.id for run in whole(full, **filters, count=count)]
        assert listed == expected or (len(states or ()) == 1 and sorted(listed) == sorted(expected))  # one state has an order of its own
    finally:
        reads.WALK = usual


def test_a_state_of_a_queue_is_listed_in_its_order(full: Harness) -> None:
    for queue in QUEUES:
        for state in State:
            runs = whole(full, queue=queue, state=state)
            expected = [run for run in whole(full) if (run.queue, run.state) == (queue, state)]
            if state in ENDED and queue == "default":
                expected = sorted(expected, key=lambda run: (run.finished_at or 0, run.seq), reverse=True)
            if state is State.SCHEDULED:
                expected = sorted(expected, key=lambda run: (run.due_at, run.seq))
            order = [run.id for run in (reversed(expected) if state is State.QUEUED else expected)]
            assert [run.id for run in runs] == order, (queue, state)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queue=st.sampled_from((*QUEUES, "none")), states=st.none() | STATES, limit=st.integers(1, 9), offset=st.integers(0, 9))
def test_ranked_runs_are_the_highest_priority_first_and_then_the_newest(
    full: Harness, queue: str, states: set[State] | None, limit: int, offset: int
) -> None:
    matching = [run for run in whole(full) if run.queue == queue and run.state in (states or State)]
    expected = sorted(matching, key=lambda run: -run.priority)[offset : offset + limit]
    assert full(full.engine.ranked(queue, states, limit=limit, offset=offset)) == expected


def test_ranked_runs_are_among_the_newest_that_match(full: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "RANKED", 4)
    ended = [run for run in whole(full) if run.queue == "a" and run.state in ENDED]
    newest = [run for run in ended if run in [other for other in ended if other.state is run.state][:4]]
    assert full(full.engine.ranked("a", ENDED)) == sorted(newest, key=lambda run: -run.priority)
    assert {run.id for run in full(full.engine.ranked("default"))} == {run.id for run in whole(full)[:4] if run.queue == "default"}


def test_the_priority_of_a_run_of_a_queue_with_aging_counts(h: Harness) -> None:
    h(h.engine.set_queue("aging", aging=60_000))
    h.define("old", queue="aging")
    low, high = h.create("old"), h.create("old")
    h(h.engine.patch(low, priority=5))
    assert [run.id for run in h(h.engine.ranked("aging"))] == [low, high]


# Runs and attempts for a page


class Counted:
    """A store that counts its batches."""

    def __init__(self, store: Store) -> None:
        self._store, self.batches = store, list[Sequence[Statement]]()

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self.batches.append(statements)
        return await self._store.batch(verb, statements)

    async def close(self) -> None:
        await self._store.close()


def counted(h: Harness) -> tuple[Harness, Counted]:
    store = Counted(h.store)
    return Harness(store, h.clock), store


def test_runs_by_their_ids_are_one_read_in_the_order_asked(h: Harness) -> None:
    ids = [h.create(payload="x" * 10_000) for _ in range(3)]
    expected = [h.get(ids[2]), h.get(ids[0])]
    reader, store = counted(h)
    assert reader(reader.engine.get_many([ids[2], "unknown", ids[0], ids[2]])) == expected
    assert len(store.batches) == 1
    assert reader(reader.engine.get_many([])) == []
    bad: list[list[Any]] = [["a b"], [5], ["x"] * 1_001]
    for wrong in bad:
        with pytest.raises(Exception, match=r"is not an id|the limit is"):
            h(h.engine.get_many(wrong))


def test_the_attempts_of_a_page_are_one_read(h: Harness) -> None:
    for number in range(4):
        h.define(job := f"fails {number} times", backoff=(0,), max_attempts=5)
        h.create(job)
        for _ in range(number):
            h.fail(h.claimed(jobs=(job,)))
            h.sweep(1)
    runs = h(h.engine.runs()).runs
    expected = {run.id: h(h.engine.attempts(run.id)) for run in runs}
    assert [[one.n for one in attempts] for attempts in expected.values()] == [[1, 2, 3, 4], [1, 2, 3], [1, 2], [1]]
    reader, store = counted(h)
    assert reader(reader.engine.attempts_of(runs)) == expected
    assert len(store.batches) == 1
    assert reader(reader.engine.attempts_of([])) == {}


def test_attempts_are_those_of_the_runs_as_they_were_read(h: Harness) -> None:
    h.define("retried", backoff=(0,))
    h.create("retried")
    run = h.claimed()
    h.fail(run)
    assert [(one.n, one.outcome) for one in h(h.engine.attempts_of([run]))[run.id]] == [(1, "claimed")]


# Parts of a log


@pytest.fixture
def logged(h: Harness) -> tuple[Harness, str]:
    """A run with five, none and three lines in its attempts."""
    h.define("chatty", backoff=(0,), max_attempts=5)
    run_id = h.create("chatty")
    for attempt, number in enumerate((5, 0, 3), 1):
        run = h.started()
        if number:
            h(h.engine.log(run.id, token(run), [(n, f"{attempt}.{n}") for n in range(1, number + 1)]))
        h.fail(run, Failure("again", "once more"))
        h.sweep(1)
    return h, run_id


TEXTS = [*(f"1.{n}" for n in range(1, 6)), *(f"3.{n}" for n in range(1, 4))]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempt=st.none() | st.integers(1, 4),
    after=st.tuples(st.integers(0, 4), st.integers(0, 6)),
    until=st.none() | st.integers(-1, 3),
    last=st.none() | st.integers(1, 9),
    count=st.integers(1, 9),
)
def test_a_part_of_a_log_is_the_filter_over_all_lines(
    logged: tuple[Harness, str], attempt: int | None, after: tuple[int, int], until: int | None, last: int | None, count: int
) -> None:
    h, run_id = logged
    lines = h(h.engine.lines(run_id))
    assert [line.text for line in lines] == TEXTS
    instant = None if until is None else lines[0].at + until
    matching = [line for line in lines if attempt in (None, line.attempt) and (line.attempt, line.n) > after]
    matching = [line for line in matching if instant is None or line.at <= instant]
    expected = matching[:count] if last is None else matching[-last:]
    assert h(h.engine.lines(run_id, attempt=attempt, after=after, until=instant, last=last, count=count)) == expected


def test_what_is_written_after_a_request_to_stop_is_later_than_it_within_its_millisecond_and_though_the_clock_is_set_back(
    h: Harness,
) -> None:
    h.create()
    run = h.started()
    h(h.engine.log(run.id, token(run), [(1, "before")]))
    asked_at = h(h.engine.cancel(run.id)).cancel_asked_at or 0
    h(h.engine.log(run.id, token(run), [(2, "at once")]))
    h.clock.jump(-60_000)
    h(h.engine.log(run.id, token(run), [(3, "set back")]))
    h.clock.jump(120_000)
    h(h.engine.log(run.id, token(run), [(4, "later")]))
    assert [line.at - asked_at for line in h(h.engine.lines(run.id))] == [0, 1, 1, 60_000]
    assert [line.text for line in h(h.engine.lines(run.id, until=asked_at))] == ["before"]


# Cancel only in some states


def test_a_cancel_only_in_some_states_refuses_all_others_and_says_which_it_is(full: Harness) -> None:
    h = full
    for run in whole(h):
        before, others = h.get(run.id), [state for state in State if state is not run.state]
        with pytest.raises(WrongState) as refused:
            h(h.engine.cancel(run.id, only=others))
        assert h.get(run.id) == before
        if run.state not in ENDED and run.state is not State.CANCELLING:
            assert f"It is {run.state}." in refused.value.hint
            assert h(h.engine.cancel(run.id, only=[run.state.value])).state in (State.CANCELLED, State.CANCELLING)


def test_a_repeated_cancel_changes_nothing_and_is_refused_if_its_states_are_left(h: Harness) -> None:
    run_id = h.create()
    h.started()
    for _ in range(2):
        assert h(h.engine.cancel(run_id, only=["running", "cancelling"])).state is State.CANCELLING
    with pytest.raises(WrongState, match="is being cancelled already"):
        h(h.engine.cancel(run_id, only=["running"]))
    assert h.moves(run_id) == ["create", "claim", "start", "cancel"]
    with pytest.raises(BadInput, match="needs at least one state"):
        h(h.engine.cancel(run_id, only=[]))


# What workers hold


def test_counts_by_worker_are_of_a_queue_and_without_those_being_cancelled(h: Harness) -> None:
    h.define("far", queue="far")
    for job in ("mail", "far", "far", "far", "far"):
        h.create(job)
    h.claimed("w1", jobs=("mail",))
    h.started("w1", jobs=("far",))
    h.claimed("w2", jobs=("far",))
    stopping, ended = h.claimed("w2", jobs=("far",)), h.claimed("w3", jobs=("far",))
    h(h.engine.cancel(stopping.id))
    h.succeed(ended)
    assert h(h.engine.counts_by_worker("far")) == {"w1": 1, "w2": 1}
    assert h(h.engine.counts_by_worker("default")) == {"w1": 1}
    assert h(h.engine.counts_by_worker("none")) == {}


# Signs of life


def test_a_worker_that_registers_once_and_is_seen_at_each_claim_stays_alive(h: Harness) -> None:
    for name in ("polls", "silent"):
        h(h.engine.register(WorkerInfo(name)))
    for _ in range(10):
        h.clock.advance(20_000)
        h(h.engine.seen("polls"))
        assert h.claim(worker="polls") == []
    assert [worker.name for worker in h(h.engine.living())] == ["polls"]


def test_a_sign_of_life_is_stored_every_15_seconds_at_most(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w")))
    process, store = counted(h)
    for _ in range(61):
        process(process.engine.seen("w"))
        process(process.engine.on_behalf_of(Principal("small", trusted=False)).seen("w"))
        h.clock.advance(1_000)
    assert len(store.batches) == 5


def test_other_processes_do_not_store_it_more_often(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w")))
    times = set[int]()
    for _ in range(31):
        h(h.another().engine.seen("w"))
        times |= {worker.seen_at for worker in h(h.engine.workers())}
        h.clock.advance(1_000)
    assert len(times) == 3


def test_an_unknown_worker_is_not_stored(h: Harness) -> None:
    h(h.engine.seen("unknown"))
    assert h(h.engine.workers()) == []
    with pytest.raises(BadInput):
        h(h.engine.seen(""))


def test_a_worker_that_had_stopped_is_alive_when_it_is_seen(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w"), about={"incarnation": 7}))
    h(h.engine.leave("w", 7))
    assert h(h.engine.living()) == []
    h(h.engine.seen("w"))
    assert [worker.name for worker in h(h.engine.living())] == ["w"]


# Workers that name their jobs


PROGRAM = Solver("https://files.example/solve", "a" * 64)


def test_F2_a_worker_that_names_jobs_gets_no_programs_of_others_and_why_says_so(h: Harness) -> None:
    h.define("prodplan", solver=PROGRAM)
    run_id = h.create("prodplan")
    names: dict[str, Any] = {"jobs": ("benchmark",), "tags": ("solver",)}
    h(h.engine.register(WorkerInfo("names", **names)))
    assert h.claim(worker="names", **names) == []
    assert [reason.code for reason in h(h.engine.why(run_id))] == ["no_worker"]
    h(h.engine.register(WorkerInfo("names", **names, programs=True)))
    assert h(h.engine.why(run_id)) == []
    assert h.claim(worker="names", jobs=("prodplan",)) == []  # without the tag
    assert h.claimed(worker="names", **names, programs=True).id == run_id


def test_only_a_truth_value_says_whether_programs_are_taken(h: Harness) -> None:
    for wrong in (1, "yes", None):
        with pytest.raises(BadInput, match="programs must be"):
            h(h.engine.register(WorkerInfo("w", programs=wrong)))  # type: ignore[arg-type]
