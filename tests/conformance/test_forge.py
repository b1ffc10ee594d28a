"""F: the Forge job queue. Its job is the run; pending, assigned, running, completed, quarantined, and failed when cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conformance import FORGE, FORGE_LEASE, IN_STATE, SHARED, at_once, begun, crowd, late, unchanged
from tests.harness import Harness, token
from tests.tiers import long
from windlass.errors import BadInput, LeaseLost, WindlassError, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import Failure, NewRun, Options, Run, State
from windlass.store.records import Held

OOM = Failure("exit_1", "exit code 1: out of memory")


def assigned(h: Harness, worker: str = "w1") -> Run:
    (run,) = h.claim(1, worker, lease=FORGE_LEASE)
    return run


def begin(h: Harness, worker: str = "w1") -> Run:
    """A claim and its first heartbeat."""
    run = assigned(h, worker)
    h(h.engine.start(run.id, token(run)))
    return run


def heartbeat(h: Harness, run: Run) -> str:
    return h(h.engine.beat([Held(run.seq, token(run))], lease=FORGE_LEASE))[0]


def test_F2_claim_picks_the_highest_priority_then_the_oldest(h: Harness) -> None:
    ids = []
    for priority in (0, 5, 0, 9, 5):
        ids.append(h.create(options=Options(priority=priority)))
        h.clock.advance(1)
    assert [assigned(h, f"w{n}").id for n in range(5)] == [ids[3], ids[1], ids[4], ids[0], ids[2]]
    assert h.claim() == []


def test_F2_claim_gives_only_the_types_that_are_asked_for(h: Harness) -> None:
    h.define("solve")
    h.define("render")
    mail, solve, render = h.create("mail"), h.create("solve"), h.create("render", options=Options(priority=9))
    assert [run.id for run in h.claim(10, jobs=("solve",))] == [solve]
    with unchanged(h):
        assert h.claim(10, jobs=("solve",)) == []
        assert h.claim(10, jobs=("other",)) == []
        assert h.claim(10, jobs=()) == []
    assert [run.id for run in h.claim(10)] == [render, mail]


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=long)])
@pytest.mark.parametrize("jobs", [50, 20])
@pytest.mark.parametrize("kind", SHARED)
def test_F3_fifty_concurrent_claims_take_distinct_jobs_one_owner_each(
    kind: str, jobs: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with crowd(kind, tmp_path, request, 50) as workers:
        h = workers[0]
        for _ in range(rounds):
            ids = {made.id for made in h(h.engine.create([NewRun("mail") for _ in range(jobs)]))}
            answers = at_once(workers, ["claim"], *[lambda h, n=n: h.claim(worker=f"w{n}") for n in range(50)])
            owners = {run.id: f"w{n}" for n, answer in enumerate(answers) if isinstance(answer, list) for run in answer}
            assert owners.keys() == ids
            assert sum(len(answer) for answer in answers if isinstance(answer, list)) == jobs
            assert {run_id: h.get(run_id).worker for run_id in ids} == owners
            # Nobody is sent away empty while there was something for him.
            assert sum(answer == [] for answer in answers) == 50 - jobs


def test_F4_claim_sets_worker_time_lease_and_one_more_attempt(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    for n in (1, 2):
        h.clock.advance(10)
        assert begun(h.get(run_id)) == n - 1
        run = assigned(h, f"w{n}")
        assert run == h.get(run_id)
        assert (run.state, run.worker, run.claimed_at, begun(run)) == (State.CLAIMED, f"w{n}", h.clock.now(), n)
        assert (run.lease_until, run.lease) == (h.clock.now() + FORGE_LEASE, FORGE_LEASE)
        h.fail(run)


def test_F5_the_first_heartbeat_starts_and_every_one_renews_the_lease(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    run = assigned(h)
    h.clock.advance(10_000)
    h(h.engine.start(run_id, token(run)))
    assert heartbeat(h, run) == "ok"
    assert (h.get(run_id).state, h.get(run_id).started_at) == (State.RUNNING, h.clock.now())
    started_at = h.clock.now()
    for _ in range(3):
        h.clock.advance(40_000)
        assert heartbeat(h, run) == "ok"
        assert h.get(run_id).lease_until == h.clock.now() + FORGE_LEASE
        h.sweep()
    after = h.get(run_id)
    assert (after.state, after.started_at, after.token) == (State.RUNNING, started_at, run.token)
    h.clock.advance(5)
    with unchanged(h):
        assert heartbeat(h, replace(run, token=h.clock.nonce())) == "lost"


def test_F5_an_assigned_job_that_beats_keeps_its_lease_too(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    run = assigned(h)
    h.clock.advance(59_999)
    assert heartbeat(h, run) == "ok"
    h.sweep(after=59_999)
    assert (h.get(run_id).state, h.get(run_id).token) == (State.CLAIMED, run.token)


def test_F5_a_heartbeat_never_shortens_a_lease(h: Harness) -> None:
    h.create()
    run = assigned(h)
    assert h(h.engine.beat([Held(run.seq, token(run))], lease=1_000)) == ["ok"]
    assert h.get(run.id).lease_until == h.clock.now() + FORGE_LEASE


def test_F8_the_same_result_again_gets_the_same_answer_from_any_worker(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    result = Succeed(token=run.token, output='"42\\n"', output_hash="sha256-a")
    assert not h.report(run, result).repeated
    h.clock.advance(10)
    repeats = (
        result,
        Succeed(token=h.clock.nonce(), output='"42\\n"', output_hash="sha256-a"),
        Succeed(token=run.token, output='"42\\n"'),
        Succeed(token=run.token, output='"sent in another form"', output_hash="sha256-a"),
    )
    for again in repeats:
        with unchanged(h):
            receipt = h.report(run, again)
        assert (receipt.run, receipt.state, receipt.repeated) == (run.id, State.SUCCEEDED, True)
    assert h.moves(run.id) == ["create", "claim", "start", "succeed"]


def test_F8_another_result_is_refused(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    h.report(run, Succeed(token=run.token, output='"42"', output_hash="sha256-a"))
    for other in (
        Succeed(token=run.token, output='"42"', output_hash="sha256-b"),
        Succeed(token=run.token, output='"43"'),
        Succeed(token=h.clock.nonce(), output='"43"'),
    ):
        with unchanged(h), pytest.raises(WindlassError) as refused:
            h.report(run, other)
        assert refused.value.status == 409


def test_F8_the_key_of_a_result_is_stored_with_it_and_known_from_any_worker(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    h.report(run, Succeed(token=run.token, output='"42"', output_hash="sha256-a", key="result-1"))
    assert h.get(run.id).output_key == "result-1"
    for again in (
        Succeed(token=run.token, output='"43"', output_hash="sha256-b", key="result-1"),
        Succeed(token=h.clock.nonce(), output=None, key="result-1"),
        Succeed(token=run.token, output='"42"', key="result-2"),
    ):
        with unchanged(h):
            receipt = h.report(run, again)
        assert (receipt.run, receipt.state, receipt.repeated) == (run.id, State.SUCCEEDED, True)
    with unchanged(h), pytest.raises(WindlassError) as refused:
        h.report(run, Succeed(token=run.token, output='"43"', key="result-2"))
    assert refused.value.status == 409


def test_F8_a_result_without_a_key_is_not_known_by_one(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    h.report(run, Succeed(token=run.token, output='"42"'))
    with unchanged(h), pytest.raises(WindlassError):
        h.report(run, Succeed(token=run.token, output='"43"', key="result-1"))


@pytest.mark.parametrize("key", ["", "x" * 129, "a\0b"])
def test_F8_a_key_that_is_none_ends_nothing(h: Harness, key: str) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    with unchanged(h), pytest.raises(BadInput, match="The output's key"):
        h.report(run, Succeed(token=run.token, output='"42"', key=key))


def test_F10_a_failure_with_attempts_left_makes_it_claimable_at_once(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    h.fail(begin(h, "w1"), OOM)
    pending = h.get(run_id)
    assert (pending.state, pending.worker, pending.token, pending.error, begun(pending)) == (State.QUEUED, None, None, OOM, 1)
    h.clock.advance(5)
    h.fail(begin(h, "w2"), Failure("exit_2", "exit code 2: "))
    history = [(one.error and one.error.message, one.worker, one.finished_at) for one in h(h.engine.attempts(run_id))[:-1]]
    assert history == [(OOM.message, "w1", h.clock.now() - 5), ("exit code 2: ", "w2", h.clock.now())]
    assert assigned(h, "w3").id == run_id


def test_F11_a_failure_with_none_left_quarantines(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create(options=Options(max_attempts=1))
    assert h.fail(begin(h), OOM).state is State.QUARANTINED
    run = h.get(run_id)
    assert (run.state, run.error, run.finished_at, begun(run)) == (State.QUARANTINED, OOM, h.clock.now(), 1)
    last = h(h.engine.history(run_id))[-1]
    assert (last.move, last.state) == ("fail", State.QUARANTINED)


def test_F11_so_does_a_failure_that_is_not_to_be_tried_again(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    assert h.fail(begin(h), OOM, retry=False).state is State.QUARANTINED


def test_F12_an_attempt_is_counted_once_so_a_limit_of_three_gives_three_tries(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    for n in (1, 2, 3):
        run = begin(h, f"w{n}")
        assert begun(run) == n
        after = State.QUEUED if n < 3 else State.QUARANTINED
        assert h.fail(run, OOM).state is after
        assert (begun(h.get(run_id)), h.get(run_id).failures) == (n, n)
    assert len(h(h.engine.attempts(run_id))) == 3
    assert h.claim() == []


LATE: dict[str, Callable[[Harness, Run], object]] = {
    "result": lambda h, run: h.succeed(run, '"late"'),
    "fail": lambda h, run: h.fail(run, Failure("late", "too late")),
    "start": lambda h, run: h(h.engine.start(run.id, token(run))),
    "log": lambda h, run: h(h.engine.log(run.id, token(run), [(1, "late")])),
}


def _assert_fenced(h: Harness, old: Run) -> None:
    h.clock.advance(5)
    with unchanged(h):
        assert heartbeat(h, old) == "lost"
        for call in LATE.values():
            with pytest.raises(LeaseLost) as refused:
                call(h, old)
            assert refused.value.status == 409


def test_F13_a_job_without_heartbeat_is_pending_again_and_its_old_worker_is_refused(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    old = begin(h)
    h.clock.advance(20_000)
    assert heartbeat(h, old) == "ok"
    h.sweep(after=FORGE_LEASE - 1)
    assert h.get(run_id).token == old.token
    h.sweep(after=1)
    assert (h.get(run_id).state, h.get(run_id).worker) == (State.QUEUED, None)
    _assert_fenced(h, old)
    # Also when the very same worker has it now: the lease counts, not the name.
    new = assigned(h, "w1")
    assert (new.id, begun(new)) == (run_id, 2)
    _assert_fenced(h, old)
    h(h.engine.start(run_id, token(new)))
    _assert_fenced(h, old)
    h.succeed(new, '"new"')
    assert h.get(run_id).output == '"new"'


def test_F13_a_heartbeat_that_comes_just_before_the_reaper_writes_saves_the_job(h: Harness) -> None:
    h.define(**FORGE)
    h.create()
    run = begin(h)
    h.clock.advance(FORGE_LEASE)
    slow = late(h, "write_back", lambda: heartbeat(h, run))
    assert slow(slow.engine.lapse()) == 0
    assert (h.get(run.id).state, h.get(run.id).token) == (State.RUNNING, run.token)
    h.sweep(after=FORGE_LEASE)
    assert h.get(run.id).state is State.QUEUED


def test_F14_a_job_without_heartbeat_and_without_attempts_left_is_quarantined(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    for _ in range(2):
        h.fail(begin(h), OOM)
    last = begin(h)
    h.sweep(after=FORGE_LEASE - 1)
    assert h.get(run_id).state is State.RUNNING
    h.sweep(after=1)
    run = h.get(run_id)
    assert (run.state, run.finished_at, begun(run), run.failures) == (State.QUARANTINED, h.clock.now(), 3, 3)
    assert run.error is not None
    assert run.error.code == "worker_lost"
    with unchanged(h), pytest.raises(WrongState):
        h.succeed(last, '"late"')


@pytest.mark.parametrize("begins", [True, False], ids=["running", "assigned"])
def test_F15_a_job_over_its_runtime_is_quarantined_though_it_beats_and_has_attempts_left(h: Harness, begins: bool) -> None:
    h.define(**FORGE)
    run_id = h.create()
    run = begin(h) if begins else assigned(h)
    for _ in range(29):
        h.sweep(after=10_000)
        assert heartbeat(h, run) == "ok"
    h.sweep(after=9_999)
    assert h.get(run_id).token == run.token
    assert heartbeat(h, run) == "ok"
    h.sweep(after=2)
    over = h.get(run_id)
    assert (over.state, over.finished_at, begun(over)) == (State.QUARANTINED, h.clock.now(), 1)
    assert over.error is not None
    assert over.error.code == "max_runtime_exceeded"
    assert heartbeat(h, run) == "lost"
    with unchanged(h), pytest.raises(WrongState):
        h.succeed(run, '"late"')


def test_F15_the_runtime_is_that_of_one_attempt(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    for n in (1, 2):
        run = begin(h)
        for _ in range(20):
            h.sweep(after=10_000)
            assert heartbeat(h, run) == "ok"
        assert h.get(run_id).failures == n - 1
        h.fail(run, OOM)


@pytest.mark.parametrize("state", [State.CANCELLED, State.QUARANTINED, State.SUCCEEDED])
def test_F17_late_calls_on_an_ended_job_are_refused_and_change_nothing(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    assert run.state is state
    h.clock.advance(5)
    for holder in (run, replace(run, token=h.clock.nonce())):
        with unchanged(h):
            assert heartbeat(h, holder) == "lost"
        for name, call in LATE.items():
            with unchanged(h), pytest.raises(WindlassError) as refused:
                call(h, holder)
            assert refused.value.status == 409, name


def test_F17_a_job_cancelled_while_assigned_takes_nothing_more(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create()
    run = assigned(h)
    h(h.engine.cancel(run_id))
    with unchanged(h), pytest.raises(WindlassError) as refused:
        h(h.engine.start(run_id, token(run)))
    assert refused.value.status == 409
    with pytest.raises(WindlassError) as refused:
        h.report(run, Fail(token=run.token, error=OOM))
    assert refused.value.status == 409
    assert (h.get(run_id).state, h.get(run_id).error, h.claim()) == (State.CANCELLED, None, [])


def test_F30_a_quarantined_job_is_never_handed_out_again(h: Harness) -> None:
    h.define(**FORGE)
    run_id = h.create(options=Options(max_attempts=1))
    assert late(h, "claim", lambda: h.fail(begin(h, "w1"), OOM)).claim(worker="w2") == []
    quarantined = h.get(run_id)
    assert quarantined.state is State.QUARANTINED
    for _ in range(3):
        h.sweep(after=FORGE_LEASE * 5)
        assert h.claim(10) == []
    with unchanged(h), pytest.raises(WrongState):
        h(h.engine.patch(run_id, max_attempts=9))
    again = h(h.engine.rerun(run_id)).id
    assert [run.id for run in h.claim(10)] == [again]
    assert h.get(run_id) == quarantined
