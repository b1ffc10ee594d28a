"""Z: 0gkit durable jobs. Its default backoff is the engine's formula from half a second on; its signal is the answer to a beat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from tests.conformance import IN_STATE, SHARED, ZEROG, at_once, begun, crowd, late, running, unchanged
from tests.harness import LEASE, Harness, token
from windlass.errors import Cancelled, LeaseLost, WindlassError, WrongState
from windlass.machine import ENDED, backoff
from windlass.model import Failure, NewRun, Receipt, Run, State
from windlass.store.records import Held

Answer = Run | Receipt
Verb = Callable[[Harness], Answer]


@pytest.fixture
def h(h: Harness) -> Harness:
    """With the attempts and delays that 0gkit has."""
    h.define(**ZEROG)
    return h


def test_Z1_enqueue_claim_complete(h: Harness) -> None:
    run_id = h.create(payload={"n": 1})
    queued = h.get(run_id)
    assert (queued.state, begun(queued), queued.claimed_at, queued.started_at) == (State.QUEUED, 0, None, None)
    h.clock.advance(10)
    run = h.started()
    assert (run.id, begun(run), run.claimed_at, run.started_at) == (run_id, 1, h.clock.now(), h.clock.now())
    h.clock.advance(10)
    h.succeed(run, '{"tx": "0x1"}')
    done = h.get(run_id)
    assert (done.state, done.output, begun(done), done.finished_at) == (State.SUCCEEDED, '{"tx": "0x1"}', 1, h.clock.now())


def test_Z2_a_claim_gives_the_oldest_and_nothing_when_there_is_none(h: Harness) -> None:
    assert h.claim() == []
    ids = []
    for _ in range(5):
        ids.append(h.create())
        h.clock.advance(1)
    assert [h.claimed(f"w{n}").id for n in range(5)] == ids
    assert h.claim() == []


@pytest.mark.parametrize("kind", SHARED)
def test_Z2_many_workers_take_each_run_once_the_oldest_first(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 6) as workers:
        h = workers[0]
        for _ in range(4):
            ids = [made.id for made in h(h.engine.create([NewRun("mail") for _ in range(60)]))]
            begin = threading.Barrier(len(workers))

            def work(n: int, begin: threading.Barrier = begin) -> list[str]:
                begin.wait(60)
                return [run.id for runs in iter(lambda: workers[n].claim(2, f"w{n}"), []) for run in runs]

            with ThreadPoolExecutor(len(workers)) as threads:
                taken = list(threads.map(work, range(len(workers))))
            assert sorted(run_id for mine in taken for run_id in mine) == sorted(ids)
            for n, mine in enumerate(taken):
                assert mine == sorted(mine, key=ids.index)
                assert {h.get(run_id).worker for run_id in mine} <= {f"w{n}"}
            assert all(h.moves(run_id) == ["create", "claim"] for run_id in ids)


def test_Z3_a_failure_with_attempts_left_queues_the_same_job_again(h: Harness) -> None:
    run = running(h)
    h.clock.advance(10)
    h.fail(run, Failure("JOBS_HANDLER_THREW", "no gas"))
    again = h.get(run.id)
    assert (again.error, again.started_at, again.claimed_at, again.worker) == (Failure("JOBS_HANDLER_THREW", "no gas"), None, None, None)
    assert (again.finished_at, again.lease_until, again.token, begun(again)) == (None, None, None, 1)
    h.sweep(after=1_000)
    assert h.get(run.id).state is State.QUEUED
    assert (h.claimed("w2").id, begun(h.get(run.id))) == (run.id, 2)


def test_Z4_a_job_whose_attempts_are_exhausted_has_failed_with_its_error(h: Harness) -> None:
    run_id = h.create()
    for n in (1, 2, 3):
        run = h.started()
        assert begun(run) == n
        h.fail(run, Failure("boom", f"failure {n}"))
        h.sweep(after=60_000)
    failed = h.get(run_id)
    assert (failed.state, failed.error, begun(failed)) == (State.FAILED, Failure("boom", "failure 3"), 3)
    assert h.claim() == []


def test_Z5_a_worker_that_dies_before_it_completes_has_its_job_executed_again(h: Harness) -> None:
    dead = running(h)
    h.sweep(after=LEASE)
    h.sweep(after=1_000)
    again = h.started("w2")
    assert (again.id, begun(again)) == (dead.id, 2)
    assert again.token != dead.token
    with unchanged(h), pytest.raises(LeaseLost):
        h.succeed(dead, '"of the dead"')
    h.succeed(again, '"of the living"')
    with unchanged(h), pytest.raises(LeaseLost):
        h.succeed(dead, '"of the dead"')
    assert h.get(dead.id).output == '"of the living"'


def test_Z6_a_cancelled_job_is_never_claimed(h: Harness) -> None:
    run_id = h.create()
    assert late(h, "claim", lambda: h(h.engine.cancel(run_id))).claim() == []
    assert h.get(run_id).state is State.CANCELLED
    assert h.claim() == []


def test_Z6_a_cancel_raises_the_signal_of_a_running_job_and_no_completion_makes_it_done(h: Harness) -> None:
    run = running(h)
    assert h(h.engine.beat([Held(run.seq, token(run))])) == ["ok"]
    h(h.engine.cancel(run.id))
    assert h(h.engine.beat([Held(run.seq, token(run))])) == ["stop"]
    with pytest.raises(Cancelled):
        h.succeed(run, '"done"')
    with unchanged(h), pytest.raises(Cancelled):
        h.succeed(run, '"done"')
    assert (h.get(run.id).state, h.get(run.id).output) == (State.CANCELLED, None)


def test_Z6_a_cancel_that_comes_second_is_told_the_same_as_the_first(h: Harness) -> None:
    run = running(h)
    slow = late(h, "write_back", lambda: h(h.engine.cancel(run.id)))
    assert slow(slow.engine.cancel(run.id)) == h.get(run.id)
    assert h(h.engine.cancel(run.id)) == h.get(run.id)
    assert h.moves(run.id) == ["create", "claim", "start", "cancel"]


@pytest.mark.parametrize("state", ENDED)
def test_Z6_a_cancel_of_what_has_ended_changes_nothing(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    with unchanged(h), pytest.raises(WrongState):
        h(h.engine.cancel(run.id))


def _upper(n: int) -> int:
    return min(500 << n, 60_000)


def test_Z7_the_delay_before_each_retry_is_half_to_all_of_its_bound(h: Harness) -> None:
    h.define(max_attempts=20, backoff_base=500)
    ids = [h.create() for _ in range(8)]
    spread = set()
    for n in range(1, 20):
        for run in h.claim(8):
            h.fail(run)
            delay = h.get(run.id).due_at - h.clock.now()
            assert _upper(n) // 2 <= delay <= _upper(n), n
            spread.add(delay / _upper(n))
        h.sweep(after=60_000)
    assert min(spread) < 0.55 < 0.95 < max(spread)
    assert {h.get(run_id).failures for run_id in ids} == {19}


def test_Z7_the_bounds_hold_for_every_number_of_failures_and_every_chance(h: Harness) -> None:
    run = h.get(h.create())
    for n in range(1, 1_001):
        failed = replace(run, failures=n - 1)
        assert backoff(failed, 0.0) == _upper(n) // 2
        assert _upper(n) // 2 < backoff(failed, 0.5) < backoff(failed, 0.999_999_999) <= _upper(n)


def test_Z7_a_lost_worker_costs_the_same_delay(h: Harness) -> None:
    run = running(h)
    h.sweep(after=LEASE)
    assert 500 <= h.get(run.id).due_at - h.clock.now() <= 1_000


def test_Z7_the_delay_of_the_job_itself_is_honoured(h: Harness) -> None:
    run = running(h)
    h.fail(run, delay=1_234)
    assert h.get(run.id).due_at == h.clock.now() + 1_234
    h.sweep(after=1_233)
    assert h.claim() == []
    h.sweep(after=1)
    h.fail(h.started(), delay=0)
    assert h.get(run.id).state is State.QUEUED
    h.define("listed", backoff=(7, 70), max_attempts=9)
    h(h.engine.cancel(run.id))
    h.create("listed")
    for delay in (7, 70, 70, 70):
        listed = h.started()
        h.fail(listed)
        assert h.get(listed.id).due_at == h.clock.now() + delay
        h.sweep(after=delay)


def _succeeds(run: Run) -> Verb:
    return lambda h: h.succeed(run, '"done"')


def _fails(run: Run) -> Verb:
    return lambda h: h.fail(run)


def _cancels(run: Run) -> Verb:
    return lambda h: h(h.engine.cancel(run.id))


def _sweeps(run: Run) -> Verb:
    def sweep(h: Harness) -> Run:
        h(h.engine.lapse())
        return h.get(run.id)

    return sweep


RACES: dict[str, tuple[tuple[Callable[[Run], Verb], Callable[[Run], Verb]], set[tuple[str, ...]]]] = {
    "succeed and cancel": ((_succeeds, _cancels), {("succeed",), ("cancel", "confirm")}),
    "fail and cancel": ((_fails, _cancels), {("fail", "cancel"), ("cancel", "confirm")}),
    "succeed and lapse": ((_succeeds, _sweeps), {("succeed",), ("lapse",)}),
    "fail and lapse": ((_fails, _sweeps), {("fail",), ("lapse",)}),
    "cancel and lapse": ((_cancels, _sweeps), {("cancel",), ("lapse", "cancel")}),
    "cancel and cancel": ((_cancels, _cancels), {("cancel",)}),
    "lapse and lapse": ((_sweeps, _sweeps), {("lapse",)}),
}
"""Two verbs that decide about the same running run, and the stories that may come of it."""


@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("kind", SHARED)
def test_Z19_two_runners_on_one_backend_never_disagree(kind: str, race: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    verbs, stories = RACES[race]
    with crowd(kind, tmp_path, request, 2) as both:
        h = both[0]
        for _ in range(8):
            run = running(h)
            h.clock.advance(LEASE)
            answers = at_once(both, ["succeed", "write_back"], *[verb(run) for verb in verbs])
            after, other = (member.get(run.id) for member in both)
            assert after == other
            entries = h(h.engine.history(run.id))
            assert tuple(entry.move for entry in entries[3:]) in stories, answers
            assert [entry.rev for entry in entries] == list(range(1, after.rev + 1))
            assert entries[-1].state is after.state
            _assert_true(answers, after, [entry.state for entry in entries])
            if after.state not in ENDED:
                h(h.engine.cancel(run.id))
                h.sweep(after=30_000)


def _assert_true(answers: Sequence[Answer | WindlassError], after: Run, states: Sequence[State]) -> None:
    """A yes means that it is stored; the other one is told no, or what has become of the run."""
    for answer in answers:
        match answer:
            case Receipt():
                assert answer.state in states
                assert (after.output == '"done"') == (answer.state is State.SUCCEEDED)
            case Run():
                assert answer.state in states
            case _:
                assert isinstance(answer, WrongState | LeaseLost | Cancelled), answer
                assert any(isinstance(other, Run | Receipt) for other in answers)


def test_Z20_the_answer_to_enqueue_carries_only_the_id(h: Harness) -> None:
    (answer,) = h(h.engine.create([NewRun("mail", {"secret": 1})]))
    said = asdict(answer)
    assert said.pop("id") == h.claimed().id
    assert said == {"created": True, "pruned": False}
