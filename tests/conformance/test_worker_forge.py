"""F: the Forge job queue, through a real worker. Its agent is a worker; its heartbeat is the beat."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from tests.conformance import begun
from tests.workers import DEADLINE, Gate, ended, ghost, in_state, later, moves, pause_outside_a_commit, program, several, until, working
from windlass import App, Context, Job, State
from windlass.store.base import run_sync
from windlass.store.records import Held
from windlass.worker import Worker
from windlass.worker.heartbeat import LeaseWatch
from windlass.worker.runtime import FENCE

FORGE: dict[str, Any] = {"max_attempts": 3, "backoff": (0,), "on_exhausted": "quarantined", "max_runtime": 300}


def solving(app: App, calls: list[int], good: int | None = None, **options: Any) -> Job[[], str]:
    """A job that fails but for one attempt."""

    @app.job(name="solve", **FORGE | options)
    async def solve(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if ctx.attempt != good:
            raise MemoryError(f"exit code {ctx.attempt}")
        return "42"

    return solve


def held(app: App, first: Gate, second: Gate) -> Job[[], str]:
    """A job on a thread, deaf to everything but the test: each of its two attempts waits at a gate and says which it was."""

    @app.job(name="solve", **FORGE)
    def solve(ctx: Context) -> str:
        (first if ctx.attempt == 1 else second).block(ctx.run)
        return f"attempt {ctx.attempt}"

    return solve


def test_F3_concurrent_workers_take_distinct_jobs_one_owner_each(app: App) -> None:
    calls: Counter[str] = Counter()
    gate = Gate()

    @app.job(name="solve")
    async def solve(ctx: Context) -> None:
        await gate.wait(ctx.run)
        calls[ctx.run] += 1

    runs = app.enqueue_many(solve.new() for _ in range(40))
    with several(app, 5, slots=10):
        gate.reached(40)  # all are handed out at the same time
        owners = {run.id: run.refresh().worker for run in runs}
        gate.open()
        for run in runs:
            ended(run)
    assert calls == Counter({run.id: 1 for run in runs})
    assert None not in owners.values()
    assert {run.id: run.refresh().worker for run in runs} == owners
    assert max(Counter(owners.values()).values()) <= 10
    assert all(moves(app, run).count("claim") == 1 for run in runs)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_F5_the_worker_starts_it_and_its_heartbeats_keep_the_lease(app: App, kind: str) -> None:
    gate = Gate()
    job: Job[[], None]
    if kind == "async":

        @app.job(name="solve")
        async def in_loop() -> None:
            gate.block()  # not even the worker's event loop can go on

        job = in_loop
    else:

        @app.job(name="solve")
        def on_thread() -> None:
            gate.block()

        job = on_thread
    run = job.enqueue()
    with working(app, lease=1):
        gate.reached()
        token, claimed_at = run.refresh().token, run.record.claimed_at
        assert claimed_at is not None
        # More than a whole lease later; without beats it would be pending again.
        until(lambda: (run.refresh().lease_until or 0) > claimed_at + 2_500)
        assert (run.record.token, run.record.attempt) == (token, 1)
        assert kind == "async" or run.record.state is State.RUNNING
        gate.open()
        done = ended(run)
    assert (done.state, done.failures, done.token) == (State.SUCCEEDED, 0, token)
    assert moves(app, run)[-1] == "succeed"


def test_F10_a_failure_with_attempts_left_makes_it_claimable_at_once(app: App) -> None:
    calls: list[int] = []
    run = solving(app, calls, good=2).enqueue()
    with working(app):
        assert run.wait(DEADLINE) == "42"
    failed, done = run.attempts()
    assert failed.error is not None
    assert (failed.error.message, failed.worker, done.worker) == ("exit code 1", "w1", "w1")
    # It never waited: from the failure straight back into the queue.
    states = [entry.state for entry in run_sync(app.verbs.history(run.id))]
    assert State.SCHEDULED not in states
    assert states.count(State.QUEUED) == 2


def test_F11_a_failure_with_none_left_quarantines(app: App) -> None:
    calls: list[int] = []
    run = solving(app, calls, max_attempts=1).enqueue()
    with working(app):
        last = ended(run)
    assert last.error is not None
    assert (last.state, last.error.code, last.error.message, calls) == (State.QUARANTINED, "out_of_memory", "exit code 1", [1])


def test_F12_a_limit_of_three_gives_three_tries(app: App) -> None:
    calls: list[int] = []
    run = solving(app, calls).enqueue()
    with working(app):
        last = ended(run)
    assert (last.state, begun(last), last.failures, calls) == (State.QUARANTINED, 3, 3, [1, 2, 3])
    assert [attempt.error and attempt.error.message for attempt in run.attempts()] == ["exit code 1", "exit code 2", "exit code 3"]


def _without_a_pulse(worker: Worker) -> None:
    """Its beats do not get through, and it does not notice."""
    setattr(worker.heartbeat, "_beat", lambda due, now: None)  # noqa: B010 - mypy refuses the assignment
    setattr(worker._leases, "run", _nothing)  # noqa: B010


async def _nothing() -> None:
    pass


def test_F13_a_job_without_heartbeat_is_pending_again_and_its_old_worker_is_refused(app: App) -> None:
    first, second = Gate(), Gate()
    run = held(app, first, second).enqueue()
    with working(app, name="old", lease=0.5, prepare=_without_a_pulse) as old:
        first.reached()
        with working(app, name="new"):
            second.reached()
            taken = in_state(run, State.RUNNING, attempt=2)
            old.ask()
            first.open()
            until(lambda: not old.worker.in_flight.renewable())  # its report was answered
            assert (run.refresh().state, run.record.token, run.record.worker) == (State.RUNNING, taken.token, "new")
            second.open()
            done = ended(run)
    assert (done.output, done.worker, begun(done)) == ('"attempt 2"', "new", 2)
    assert [attempt.worker for attempt in run.attempts()] == ["old", "new"]
    assert moves(app, run).count("succeed") == 1


def test_F13_a_worker_that_cannot_beat_stops_its_handler_before_its_lease_is_over(app: App) -> None:
    why: list[str | None] = []

    def mute(worker: Worker) -> None:
        setattr(worker.heartbeat, "_beat", lambda due, now: None)  # noqa: B010

    @app.job(name="solve", **FORGE)
    def solve(ctx: Context) -> str:
        if ctx.attempt == 1:
            until(lambda: ctx.cancelled)
            why.append(ctx.why)
        return f"attempt {ctx.attempt}"

    run = solve.enqueue()
    with working(app, name="old", lease=0.5, prepare=mute):
        until(lambda: why)
        done = ended(run)
    # Given back while it was still held, or lapsed if that came too late; then it is had again, by a handler that does not wait.
    assert (why, done.output, begun(done)) == (["lost"], '"attempt 2"', 2)
    ends = [entry.move for entry in run_sync(app.verbs.history(run.id)) if entry.move in ("lapse", "requeue", "succeed")]
    assert ends in (["requeue", "succeed"], ["lapse", "succeed"])


def test_F13_the_handler_has_stopped_shortly_before_the_end_of_a_lease_that_no_beat_renewed(
    still: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, margin, left, checks = 600, 600 // FENCE, list[int](), list[int]()
    gate, workers, stop_ending = Gate(), list[Worker](), LeaseWatch._stop_ending

    def counted(watch: LeaseWatch, by: int) -> None:
        stop_ending(watch, by)
        checks.append(by)

    def mute(worker: Worker) -> None:
        monkeypatch.setattr(worker.heartbeat, "_beat", lambda due, now: None)
        workers.append(worker)

    def checked_at(at: int) -> bool:
        return bool(checks) and checks[-1] == at + margin

    @still.job(name="solve", max_attempts=1)
    async def solve() -> None:
        (execution,) = workers[0].in_flight.renewable()
        try:
            await gate.wait()
        finally:
            left.append(execution.lease_ends - still.clock.monotonic())

    monkeypatch.setattr(LeaseWatch, "_stop_ending", counted)
    solve.enqueue()
    with working(still, lease=lease / 1000, prepare=mute):
        gate.reached()
        later(still, lease - margin - 1)
        until(lambda: checked_at(lease - margin - 1))
        assert not left
        later(still, 1)
        until(lambda: left)
    assert left[0] == margin  # then the run is given back, and may begin once more before the worker ends


def test_F13_a_paused_program_wakes_up_to_find_its_job_taken(shared: App) -> None:
    gate = Gate()

    @shared.job(name="held", backoff=(0,))
    def again(ctx: Context) -> str:
        gate.block()
        return f"attempt {ctx.attempt}"

    run = again.enqueue()
    with program(shared.address, "1", "0.6") as child:
        assert child.says()[:3] == ["began", run.id, "1"]
        pause_outside_a_commit(child.process.pid, shared)
        with working(shared, name="new"):
            gate.reached()
            child.tell("of the dead")
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGTERM)
            while (said := child.says()) and said[0] != "over":
                assert said[0] in ("ends", "stopping")
            assert child.wait() == 0
            assert (run.refresh().worker, run.record.attempt, run.record.output) == ("new", 2, None)
            gate.open()
            done = ended(run)
    assert (done.output, done.worker, done.failures) == ('"attempt 2"', "new", 1)


def test_F14_a_lost_job_with_no_attempt_left_is_quarantined(app: App) -> None:
    calls: list[int] = []
    run = solving(app, calls, max_attempts=1).enqueue()
    assert ghost(app, lease=300).id == run.id
    with working(app):
        last = ended(run)
    assert last.error is not None
    assert (last.state, last.error.code, calls) == (State.QUARANTINED, "worker_lost", [])


@pytest.mark.parametrize("kind", ["async", "thread", "deaf"])
def test_F15_a_job_beyond_its_max_runtime_is_quarantined_although_it_beats(app: App, kind: str) -> None:
    gate, why = Gate(), list[str | None]()
    job: Job[[], None]
    if kind == "async":

        @app.job(name="solve", **FORGE | {"max_runtime": 0.5, "grace": 1})
        async def in_loop() -> None:
            await gate.wait()

        job = in_loop
    else:

        @app.job(name="solve", **FORGE | {"max_runtime": 0.5, "grace": 1})
        def on_thread(ctx: Context) -> None:
            if kind == "deaf":
                gate.block()
            elif not gate.passed(ctx.run, unless=lambda: ctx.cancelled):
                why.append(ctx.why)

        job = on_thread
    run = job.enqueue()
    with working(app, lease=0.6) as at_work:
        last = ended(run)
        assert last.error is not None
        assert (last.state, last.error.code, last.failures) == (State.QUARANTINED, "max_runtime_exceeded", 1)
        assert last.max_attempts == 3
        assert kind != "deaf" or gate.inside == 1
        if kind == "deaf":
            at_work.join()  # it has left a thread behind, and wants to be replaced
        if kind == "thread":
            until(lambda: why)  # a sweep may have ended the run before its handler hears of it
        gate.open()
        until(lambda: not gate.inside)
    assert run.refresh() == last
    assert kind != "thread" or why in (["max_runtime"], ["lost"])  # the worker's own clock and the store's are not the same


def test_F15_the_worker_sees_to_it_itself(still: App) -> None:
    gate = Gate()

    @still.job(name="solve", **FORGE | {"max_runtime": 0.2})
    async def solve() -> None:
        await gate.wait()

    run = solve.enqueue()
    with working(still):
        last = ended(run)  # the time of the store stands still
    assert last.error is not None
    assert (last.state, last.error.code, last.failures) == (State.QUARANTINED, "max_runtime_exceeded", 1)


def test_F15_so_do_the_others_when_it_does_not(still: App) -> None:
    calls: list[int] = []
    solve = solving(still, calls, good=1, max_runtime=4)
    run = solve.enqueue()
    assert ghost(still, lease=4_000).id == run.id
    with working(still):
        ended(solve.enqueue())  # the worker is there, and has begun to watch
        assert run_sync(still.engine.beat([Held(run.refresh().seq, run.record.token or "")], lease=4_000)) == ["ok"]
        later(still, 4_000)
        last = ended(run)
    assert last.error is not None
    assert (last.state, last.error.code, last.worker) == (State.QUARANTINED, "max_runtime_exceeded", "ghost")


def test_F25_at_sigterm_a_program_finishes_its_job_and_claims_nothing_more(shared: App) -> None:
    run_sync(shared.engine.define("held"))
    first, second, waiting = (shared.enqueue("held") for _ in range(3))
    with program(shared.address, "2") as child:
        assert sorted(child.says()[1] for _ in range(2)) == sorted([first.id, second.id])
        child.signal(signal.SIGTERM)
        assert child.says() == ["stopping"]
        # One slot is free again before the last job has ended; it stays free.
        child.tell("one")
        assert child.says()[::2] == ["ends", "None"]  # nobody has asked it to stop
        until(lambda: [run.refresh().state for run in (first, second)].count(State.SUCCEEDED) == 1)
        child.tell("two")
        assert child.says()[::2] == ["ends", "None"]
        assert child.says() == ["over", "False"]
        assert child.wait() == 0
    assert [run.refresh().state for run in (first, second)] == [State.SUCCEEDED] * 2
    assert sorted(run.record.output or "" for run in (first, second)) == ['"one"', '"two"']
    assert moves(shared, waiting) == ["create"]


def test_F30_a_quarantined_job_is_never_handed_out_again(app: App) -> None:
    calls: list[int] = []
    solve = solving(app, calls, max_attempts=1)
    run = solve.enqueue()
    with working(app):
        last = ended(run)
        in_state(solve.enqueue(), State.QUARANTINED)
    assert (calls, run.refresh()) == ([1, 1], last)
