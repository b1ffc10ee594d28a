"""A worker claims the run that it names: the order of the queue is passed over, and no other rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import invariants
from tests.conformance import IN_STATE, unchanged
from tests.harness import LEASE, Harness, folder_for, open_store
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import BadInput, Cancelled, LeaseLost, NotClaimable, NotFound, OutcomeUnknown, WindlassError, WrongState
from windlass.faults import FAULTS
from windlass.machine import Succeed
from windlass.model import Options, Rate, Requires, Run, State, Use, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

MANY = WorkerInfo("w1", slots=9, cores=4, memory=4096)


@pytest.fixture(params=["memory", "postgres"])
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    FAULTS.arm("")
    clock = ManualClock()
    harness = Harness(open_store(request.param, folder_for(request.param, request), request, clock), clock)
    harness.define()
    yield harness
    FAULTS.arm("")
    run_sync(harness.store.close())


def take(h: Harness, run_id: str, worker: WorkerInfo = MANY, **how: Any) -> Run:
    return h(h.engine.take(run_id, worker, **how))


def refused(h: Harness, run_id: str, worker: WorkerInfo = MANY) -> list[str]:
    """The codes of the reasons for which it cannot be claimed; nothing has changed but what is set aside."""
    before = h.get(run_id)
    with pytest.raises(NotClaimable) as error:
        take(h, run_id, worker)
    assert (error.value.code, error.value.status) == ("not_claimable", 409)
    assert error.value.reasons[0].text in error.value.message
    assert (h.get(run_id).state, h.get(run_id).rev) == (before.state, before.rev)
    return [reason.code for reason in error.value.reasons]


def test_a_run_is_claimed_past_all_that_are_before_it(h: Harness) -> None:
    first, second = h.create(options=Options(priority=9)), h.create()
    run = take(h, second, lease=5_000)
    assert (run.id, run.state, run.worker, run.lease, run.claimed_at) == (second, State.CLAIMED, "w1", 5_000, h.clock.now())
    assert h.get(second) == run
    assert h.moves(second) == ["create", "claim"]
    assert [one.id for one in h.claim(5)] == [first]
    h(h.engine.start(run.id, run.token or ""))
    assert h.succeed(run).state is State.SUCCEEDED


@pytest.mark.parametrize("state", [state for state in State if state is not State.QUEUED])
def test_only_a_queued_run_is_taken(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    assert run.state is state
    with unchanged(h), pytest.raises(WrongState, match="it cannot be claimed"):
        take(h, run.id)


def test_a_run_that_is_due_is_taken_once_it_is_queued(h: Harness) -> None:
    run_id = h.create(due_at=h.clock.now() + 1_000)
    with pytest.raises(WrongState, match="is scheduled for later"):
        take(h, run_id)
    h.sweep(after=1_000)
    assert take(h, run_id).state is State.CLAIMED


def test_what_is_no_run_is_not_found(h: Harness) -> None:
    with unchanged(h), pytest.raises(NotFound):
        take(h, "nothing")
    for worker, how in ((WorkerInfo(""), {}), (MANY, {"lease": 0}), (MANY, {"nonce": "short"})):
        with unchanged(h), pytest.raises(BadInput):
            take(h, "nothing", worker, **how)


@pytest.mark.parametrize("nonce", ["nonce", "token"])
def test_a_take_is_repeated_under_its_nonce_or_token(h: Harness, nonce: str) -> None:
    run_id = h.create()
    word: dict[str, Any] = {nonce: h.clock.nonce()}
    run = take(h, run_id, **word)
    with unchanged(h):
        assert take(h, run_id, **word) == run
        assert h(h.engine.recover(MANY, word[nonce])) == [run]
        with pytest.raises(WrongState):
            take(h, run_id)
        with pytest.raises(WrongState):
            take(h, run_id, WorkerInfo("w2", slots=9), **word)
    h.succeed(run)
    with unchanged(h), pytest.raises(WrongState, match="has already succeeded"):
        take(h, run_id, **word)


def test_a_nonce_claims_once(h: Harness) -> None:
    nonce = h.clock.nonce()
    take(h, h.create(), nonce=nonce)
    other = h.create()
    with unchanged(h), pytest.raises(BadInput, match="nonce was used for another claim"):
        take(h, other, nonce=nonce)


@pytest.mark.parametrize(("scope", "name"), [("system", ""), ("queue", "default"), ("job", "mail")])
def test_a_paused_run_is_not_taken(h: Harness, scope: Any, name: str) -> None:
    run_id = h.create()
    other = h.another()
    take(other, h.create())  # another process, with its own copy of the controls
    h(h.engine.pause(scope, name, reason="maintenance"))
    assert refused(h, run_id) == ["paused"]
    assert refused(other, run_id) == ["paused"]
    h(h.engine.resume(scope, name))
    assert take(other, run_id).id == run_id


@pytest.mark.parametrize(
    "lacking",
    [{"queues": ("other",)}, {"jobs": ("other",)}, {"tags": ()}, {"cores": 1}, {"memory": 512}],
    ids=lambda lacking: next(iter(lacking)),
)
def test_a_worker_takes_only_what_it_may_and_can(h: Harness, lacking: dict[str, Any]) -> None:
    h.define("heavy", requires=Requires(("gpu",), 2, 1024))
    run_id = h.create("heavy")
    able: dict[str, Any] = {"slots": 9, "queues": ("default",), "jobs": ("heavy",), "tags": ("gpu",), "cores": 4, "memory": 4096}
    assert refused(h, run_id, WorkerInfo("w1", **(able | lacking))) == ["no_worker"]
    assert take(h, run_id, WorkerInfo("w1", **able)).id == run_id


def test_a_worker_takes_runs_of_every_job_that_has_its_handler(h: Harness) -> None:
    h(h.engine.define("daily", handler="story"))
    run_id = h.create("daily")
    with pytest.raises(NotClaimable, match="it has no handler 'story'"):
        take(h, run_id, WorkerInfo("w1", jobs=("daily",)))
    assert take(h, run_id, WorkerInfo("w1", jobs=("story",))).handler == "story"


def test_a_worker_with_one_slot_takes_one_run(h: Harness) -> None:
    first, second = h.create(), h.create()
    run = take(h, first, WorkerInfo("single"))
    assert refused(h, second, WorkerInfo("single")) == ["worker_busy"]
    h.succeed(run)
    assert take(h, second, WorkerInfo("single")).slot == 0


def test_cores_of_the_worker_that_are_taken_are_not_given_twice(h: Harness) -> None:
    h.define("heavy", requires=Requires((), 3, 0))
    first, second = h.create("heavy"), h.create("heavy")
    run = take(h, first)
    assert refused(h, second) == ["worker_full"]
    assert take(h, second, WorkerInfo("w2", slots=9, cores=3)).worker == "w2"
    h.succeed(run)


def test_a_full_resource_admits_nothing(h: Harness) -> None:
    h(h.engine.set_resource("press", capacity=1))
    h.define("print", uses=(Use("press"),))
    first, second = h.create("print"), h.create("print")
    run = take(h, second)
    assert refused(h, first) == ["full"] == [reason.code for reason in h(h.engine.why(first)) if reason.code != "no_worker"]
    h.succeed(run)
    assert take(h, first).id == first


def test_the_rate_of_a_resource_holds(h: Harness) -> None:
    h(h.engine.set_resource("api", capacity=None, rates=(Rate(1, 60_000, 1),)))
    h.define("call", uses=(Use("api"),))
    first, second = h.create("call"), h.create("call")
    take(h, first)
    assert refused(h, second) == ["rate"]
    h.clock.advance(60_000)
    assert take(h, second).id == second


def test_a_run_whose_key_is_full_is_parked_and_taken_when_it_is_back(h: Harness) -> None:
    h(h.engine.set_resource("customer", capacity=1))
    h.define("bill", uses=(Use("customer", per="id"),))
    first, second, other = (h.create("bill", {"id": name}) for name in ("ann", "ann", "bob"))
    run = take(h, first)
    assert refused(h, second) == ["full"]
    assert h.get(second).lane < 0  # as after any claim that came to it
    assert refused(h, second) == ["full"]
    assert take(h, other).id == other
    h.succeed(run)
    h.sweep()
    assert take(h, second).lane > 0


def test_direct_calls_have_their_slots_before_every_take(h: Harness) -> None:
    h(h.engine.set_resource("press", capacity=1))
    h.define("print", uses=(Use("press"),))
    first, second = h.create("print"), h.create("print")
    run = take(h, first)
    slot = h(h.engine.reserve("press"))
    assert slot.state == "waiting"
    h.succeed(run)
    assert refused(h, second) == ["reserved"]
    slot = h(h.engine.renew(slot.id, slot.token))
    assert slot.state == "held"
    assert refused(h, second) == ["reserved"]
    h(h.engine.release(slot.id, slot.token))
    assert take(h, second).id == second


def test_a_resource_that_is_kept_for_a_run_ahead_can_be_taken(h: Harness) -> None:
    """That reservation is part of the order of the queue."""
    h(h.engine.set_resource("press", capacity=2))
    h.define("small", uses=(Use("press"),))
    h.define("large", uses=(Use("press", 2),))
    take(h, h.create("small"))
    h.create("large")
    small = h.create("small")
    assert h.claim(9) == []
    assert take(h, small).id == small


def test_an_answer_that_was_lost_at_commit_is_found_again(h: Harness) -> None:
    h.define("print", uses=(Use("press"),))
    for job in ("mail", "print"):
        run_id = h.create(job)
        take(h, h.create())  # the controls are known
        FAULTS.arm("claim.after_commit=drop@1")
        run = take(h, run_id)
        FAULTS.arm("")
        assert h.get(run_id) == run
        assert h.moves(run_id) == ["create", "claim"]


def test_a_connection_that_is_lost_before_the_commit_leaves_the_run_queued(h: Harness) -> None:
    run_id, nonce = h.create(), h.clock.nonce()
    take(h, h.create())
    FAULTS.arm("claim.before_commit=drop@1")
    try:
        run = take(h, run_id, nonce=nonce)
    except OutcomeUnknown:
        assert h.get(run_id).state is State.QUEUED
        run = take(h, run_id, nonce=nonce)
    assert h.get(run_id) == run


def test_a_lane_that_was_removed_meanwhile_is_no_obstacle(h: Harness) -> None:
    other = h.another()
    run_id = h.create()
    take(other, h.create())
    for job in ("a", "b"):
        h.define(job)
        h.create(job)
    late = h.create("b")
    assert take(other, late).id == late
    assert take(other, run_id).id == run_id


# Whatever comes together


class Between:
    """A store that lets something happen just before its first claim."""

    def __init__(self, store: Any, deed: Callable[[], object]) -> None:
        self.store, self.deed = store, deed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def batch(self, verb: str, statements: Any) -> Any:
        if verb == "claim" and any(statement.name in ("claim", "claim_within") for statement in statements):
            deed, self.deed = self.deed, lambda: None
            deed()
        return await self.store.batch(verb, statements)


def prepared(h: Harness, deed: Callable[[], object]) -> Engine:
    """Another process that knows the controls, with something that happens before its next claim."""
    store = Between(h.store, lambda: None)
    engine = Engine(store, h.clock)
    h(engine.take(h.create(), MANY))
    store.deed = deed
    return engine


DEEDS: dict[str, tuple[Callable[[Harness, str], object], type[WindlassError] | None]] = {
    "a claim": (lambda h, run_id: h.claim(9, worker="other"), WrongState),
    "a take": (lambda h, run_id: take(h, run_id, WorkerInfo("other", slots=9)), WrongState),
    "a cancel": (lambda h, run_id: h(h.engine.cancel(run_id)), WrongState),
    "a pause": (lambda h, run_id: h(h.engine.pause("job", "mail")), NotClaimable),
    "a patch": (lambda h, run_id: h(h.engine.patch(run_id, priority=3)), None),
    "another queue": (lambda h, run_id: h(h.engine.patch(run_id, queue="fast")), None),
    "a move": (lambda h, run_id: h(h.engine.move(run_id, to="top")), None),
}


@pytest.mark.parametrize("what", DEEDS)
def test_what_comes_between_the_read_and_the_write_is_respected(h: Harness, what: str) -> None:
    deed, error = DEEDS[what]
    h.create()
    run_id = h.create()
    engine = prepared(h, lambda: deed(h, run_id))
    if error is None:
        assert h(engine.take(run_id, MANY)).worker == "w1"
        return
    with pytest.raises(error):
        h(engine.take(run_id, MANY))


USES = (None, (Use("press"),), (Use("customer", per="id"),), (Use("press", 2), Use("customer", per="id")))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 3), st.sampled_from(["ann", "bob"])),
        st.tuples(st.just("take"), st.integers(0, 9), st.sampled_from(["w1", "w2", "single"])),
        st.tuples(st.just("claim"), st.integers(1, 3), st.sampled_from(["w1", "single"])),
        st.tuples(st.just("end"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("pause"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("resume"), st.integers(0, 3), st.just("")),
        st.tuples(st.just("reserve"), st.just(0), st.just("")),
        st.tuples(st.just("sweep"), st.integers(0, 40_000), st.just("")),
    ),
    max_size=30,
)
WORKERS = {"w1": MANY, "w2": WorkerInfo("w2", slots=2, tags=("gpu",)), "single": WorkerInfo("single")}


def acted(h: Harness, step: tuple[str, int, str], runs: list[str]) -> None:
    verb, number, name = step
    one = runs[number % len(runs)] if runs else None
    match verb:
        case "create":
            runs.append(h.create(f"j{number}", {"id": name}))
        case "take" if one is not None:
            run = h(h.engine.take(one, WORKERS[name]))
            assert (run.id, run.state, run.worker) == (one, State.CLAIMED, name)
        case "claim":
            h(h.engine.claim(WORKERS[name], count=number))
        case "end" if one is not None and (run := h.get(one)).token is not None:
            h.report(run, Succeed(token=run.token))
        case "pause":
            h(h.engine.pause("job", f"j{number}"))
        case "resume":
            h(h.engine.resume("job", f"j{number}"))
        case "reserve":
            h(h.engine.reserve("press", lease=LEASE))
        case "sweep":
            h.sweep(after=number)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_after_any_take_everything_holds(steps: list[tuple[str, int, str]]) -> None:
    clock = ManualClock()
    h = Harness(BlockingSqlite(":memory:", clock, queries=invariants.with_tables("sqlite")), clock)
    for name, capacity in (("press", 2), ("customer", 1)):
        h(h.engine.set_resource(name, capacity=capacity))
    for number, uses in enumerate(USES):
        h.define(f"j{number}", uses=uses)
    runs: list[str] = []
    before = invariants.read(h.store)
    for step in steps:
        with suppress(NotClaimable, WrongState, LeaseLost, Cancelled):
            acted(h, step, runs)
        after = invariants.read(h.store)
        invariants.check(after)
        invariants.capacity_is_kept(before, after)
        invariants.only_appended(before, after)
        before = after
    run_sync(h.store.close())


def test_G16_of_many_that_take_one_run_together_one_gets_it(h: Harness) -> None:
    """Each has read the run before any of them writes."""
    run_id = h.create()
    winners: list[str] = []

    def nested(depth: int) -> None:
        engine = prepared(h, (lambda: nested(depth - 1)) if depth else lambda: None)
        try:
            winners.append(h(engine.take(run_id, WorkerInfo(f"w{depth}", slots=9))).worker or "")
        except WrongState:
            winners.append("")

    nested(8)
    assert sorted(winners) == [""] * 8 + ["w0"]
    assert h.moves(run_id) == ["create", "claim"]
