"""Z: 0gkit durable jobs, through a real worker. Its runner is a worker; its signal is `ctx.cancelled` or the cancel of a task."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any, Literal

import psycopg
import pytest

from tests.conformance import begun
from tests.workers import DEADLINE, Gate, Working, ended, in_state, later, moves, program, several, until, working
from windlass import App, Context, Job, State
from windlass.engine import Engine
from windlass.errors import BadInput, NotFound, StoreBroken, WrongState
from windlass.model import Run
from windlass.store.base import run_sync
from windlass.worker import Worker

Kind = Literal["async", "thread"]
KINDS: tuple[Kind, ...] = ("async", "thread")
each_kind = pytest.mark.parametrize("kind", KINDS)


class Undone(Exception):
    """What a handler raises when it has noticed that it should stop."""


def patient(app: App, kind: Kind, gate: Gate, **options: Any) -> Job[[], str]:
    """A job that waits at the gate until it is told to stop, and then says `Undone`; let through, it is "done"."""
    if kind == "async":

        @app.job(name="patient", **options)
        async def in_loop(ctx: Context) -> str:
            try:
                await gate.wait(ctx.run)
            except asyncio.CancelledError:
                raise Undone(f"stopped by {ctx.why}") from None
            return "done"

        return in_loop

    @app.job(name="patient", **options)
    def on_thread(ctx: Context) -> str:
        if not gate.passed(ctx.run, unless=lambda: ctx.cancelled):
            raise Undone(f"stopped by {ctx.why}")
        return "done"

    return on_thread


def deaf(app: App, kind: Kind, gate: Gate, error: Exception | None = None, **options: Any) -> Job[[], str]:
    """A job that stays at the gate whoever stops it, then raises the error or is "done"."""

    def end() -> str:
        if error is not None:
            raise error
        return "done"

    if kind == "async":

        @app.job(name="deaf", **options)
        async def in_loop(ctx: Context) -> str:
            await gate.ignore(ctx.run)
            return end()

        return in_loop

    @app.job(name="deaf", **options)
    def on_thread(ctx: Context) -> str:
        gate.block(ctx.run)
        return end()

    return on_thread


def failing(app: App, calls: list[tuple[str, int]], **options: Any) -> Job[[], None]:
    """A job that fails each time."""

    @app.job(name="failing", **{"max_attempts": 3, "backoff_base": 0.5, **options})
    async def fail(ctx: Context) -> None:
        calls.append((ctx.run, ctx.attempt))
        raise RuntimeError(f"no gas {ctx.attempt}")

    return fail


@each_kind
def test_Z1_enqueue_claim_complete(app: App, kind: Kind) -> None:
    gate = Gate()
    run = patient(app, kind, gate).enqueue()
    queued = run.refresh()
    assert (queued.state, begun(queued), queued.started_at) == (State.QUEUED, 0, None)
    with working(app):
        running = in_state(run, State.RUNNING)
        assert (begun(running), running.worker, gate.reached()) == (1, "w1", [run.id])
        assert running.started_at is not None
        gate.open()
        assert run.wait(DEADLINE) == "done"
    done = run.refresh()
    assert (done.state, begun(done), done.output, done.error) == (State.SUCCEEDED, 1, '"done"', None)
    assert done.started_at == running.started_at


def test_Z2_many_workers_execute_each_job_once(app: App) -> None:
    calls: list[str] = []

    @app.job(name="mail")
    def mail(ctx: Context) -> None:
        calls.append(ctx.run)

    runs = app.enqueue_many(mail.new() for _ in range(60))
    with several(app, 3, slots=2):
        for run in runs:
            assert ended(run).state is State.SUCCEEDED
    assert sorted(calls) == sorted(run.id for run in runs)
    assert all(moves(app, run).count("claim") == 1 for run in runs)


def test_Z2_the_oldest_comes_first(app: App) -> None:
    calls: list[int] = []

    @app.job(name="mail")
    async def mail(n: int) -> None:
        calls.append(n)

    runs = [mail.enqueue(n) for n in range(12)]
    with working(app):
        ended(runs[-1])
    assert calls == list(range(12))


def test_Z3_a_failure_with_attempts_left_queues_the_same_job_again(still: App) -> None:
    calls: list[tuple[str, int]] = []
    run = failing(still, calls).enqueue()
    with working(still):
        again = in_state(run, State.SCHEDULED, attempt=2)
        assert again.error is not None
        assert (again.id, again.error.code, again.error.message) == (run.id, "RuntimeError", "no gas 1")
        assert (again.started_at, again.finished_at, again.worker, again.token) == (None, None, None, None)
        later(still, 1_000)
        in_state(run, State.SCHEDULED, attempt=3)
    assert calls == [(run.id, 1), (run.id, 2)]


def test_Z4_a_job_whose_attempts_are_exhausted_has_failed_with_its_error(app: App) -> None:
    calls: list[tuple[str, int]] = []
    run = failing(app, calls, backoff=(0,)).enqueue()
    with working(app):
        failed = ended(run)
    assert failed.error is not None
    assert (failed.state, failed.error.message, begun(failed)) == (State.FAILED, "no gas 3", 3)
    assert calls == [(run.id, 1), (run.id, 2), (run.id, 3)]


def _dies_before_it_reports(worker: Worker) -> None:
    async def broken(outcomes: Any) -> Any:
        raise StoreBroken("The worker is gone.", hint="This is a test.")

    class Port:
        def __getattr__(self, verb: str) -> Any:
            return broken if verb == "report_many" else getattr(port, verb)

    port, worker.runtime.port = worker.runtime.port, Port()


def test_Z5_a_worker_that_ends_before_it_completes_has_its_job_executed_again(app: App) -> None:
    calls: list[tuple[str, int]] = []

    @app.job(name="mail", backoff=(0,))
    async def mail(ctx: Context) -> str:
        calls.append((ctx.run, ctx.attempt))
        return f"attempt {ctx.attempt}"

    run = mail.enqueue()
    with pytest.raises(StoreBroken), working(app, lease=0.5, prepare=_dies_before_it_reports) as broken:
        broken.join()
    assert (calls, run.refresh().attempt, run.state in (State.CLAIMED, State.RUNNING)) == ([(run.id, 1)], 1, True)
    with working(app, name="w2"):
        assert run.wait(DEADLINE) == "attempt 2"
    assert calls == [(run.id, 1), (run.id, 2)]


def test_Z5_a_worker_that_is_killed_before_it_completes_has_its_job_executed_again(shared: App) -> None:
    @shared.job(name="quick", backoff=(0,))
    def quick(ctx: Context) -> str:
        return f"attempt {ctx.attempt}"

    run = quick.enqueue()
    with program(shared.address, "1", "1", faults="report.before_commit=kill@1") as child:
        assert child.says() == ["did", run.id, "1"]
        assert child.wait() == -signal.SIGKILL
    assert run.refresh().state not in (State.SUCCEEDED, State.FAILED)
    with working(shared):
        assert run.wait(DEADLINE) == "attempt 2"
    assert [attempt.outcome for attempt in run.attempts()] == ["lapsed", "succeeded"]


def test_Z6_a_job_cancelled_while_queued_is_never_executed(app: App) -> None:
    gate = Gate()
    job = deaf(app, "async", gate)
    gate.open()
    cancelled, other = job.enqueue(), job.enqueue()
    assert cancelled.cancel().state is State.CANCELLED
    with working(app):
        ended(other)
    assert gate.came == [other.id]
    assert cancelled.refresh().state is State.CANCELLED


@each_kind
def test_Z6_a_cancel_raises_the_signal_of_a_running_job(app: App, kind: Kind) -> None:
    gate = Gate()
    run = patient(app, kind, gate).enqueue()
    with working(app):
        gate.reached()
        run.cancel("not wanted")
        cancelled = ended(run)
    # The gate was never opened: the handler can only have ended because it was told.
    assert (cancelled.state, cancelled.output, cancelled.error, cancelled.reason) == (State.CANCELLED, None, None, "not wanted")
    assert begun(cancelled) == 1
    assert moves(app, run)[-2:] == ["cancel", "confirm"]


@each_kind
def test_Z6_a_job_that_completes_after_its_cancel_is_not_done(app: App, kind: Kind) -> None:
    gate = Gate()
    run = deaf(app, kind, gate).enqueue()
    with working(app) as at_work:
        gate.reached()
        run.cancel()
        until(lambda: [execution.why for execution in at_work.worker.in_flight.renewable()] == ["cancel"])
        gate.open()
        cancelled = ended(run)
    assert (cancelled.state, cancelled.output) == (State.CANCELLED, None)


def test_Z6_a_cancel_of_what_has_ended_changes_nothing(app: App) -> None:
    gate = Gate()
    gate.open()
    run = deaf(app, "async", gate).enqueue()
    with working(app):
        done = ended(run)
        with pytest.raises(WrongState):
            run.cancel()
    assert run.refresh() == done


def _upper(n: int) -> int:
    return min(500 << n, 60_000)


def test_Z7_the_delay_before_each_retry_is_half_to_all_of_its_bound(still: App) -> None:
    run = failing(still, [], max_attempts=9).enqueue()
    with working(still):
        for n in range(1, 9):
            failed = in_state(run, State.SCHEDULED, attempt=n + 1)
            delay = failed.due_at - still.clock.now()
            assert _upper(n) // 2 <= delay <= _upper(n), n
            later(still, delay)
        assert ended(run).failures == 9


def test_Z7_the_delay_of_the_job_itself_is_honoured(still: App) -> None:
    asked: list[tuple[int, str]] = []

    def backoff(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return attempt + 0.234

    run = failing(still, [], backoff=backoff).enqueue()
    with working(still):
        for n in (1, 2):
            assert in_state(run, State.SCHEDULED, attempt=n + 1).due_at == still.clock.now() + n * 1_000 + 234
            later(still, n * 1_000 + 234)
        ended(run)
    assert asked[:2] == [(1, "no gas 1"), (2, "no gas 2")]


def test_Z8_jobs_that_fail_together_are_not_tried_again_together(still: App) -> None:
    gate = Gate()
    job = deaf(still, "async", gate, RuntimeError("all at once"), backoff_base=0.5)
    runs = still.enqueue_many(job.new() for _ in range(20))
    with working(still, slots=20):
        gate.reached(20)
        gate.open()
        delays = [in_state(run, State.SCHEDULED, attempt=2).due_at - still.clock.now() for run in runs]
    assert all(500 <= delay <= 1_000 for delay in delays)
    assert len(set(delays)) > 10


def _open_connections(app: App) -> int:
    """How many connections there are to the store of an app, whoever holds them."""
    if app.address.startswith("postgresql:"):
        with psycopg.connect(app.address) as connection:
            row = connection.execute("select count(*) from pg_stat_activity where datname = current_database()").fetchone()
            assert row is not None
            return int(row[0])
    files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    return files.count(os.path.realpath(app.address))


@each_kind
def test_Z9_a_draining_stop_claims_nothing_more_finishes_and_closes(app: App, kind: Kind) -> None:
    gate, before = Gate(), _open_connections(app)
    job = patient(app, kind, gate)
    run, waiting = job.enqueue(), job.enqueue()
    with working(app) as at_work:
        gate.reached()
        stopped = at_work.ask()
        late = job.enqueue()
        assert not stopped.done()
        gate.open()
        stopped.result(DEADLINE)
        assert run.refresh().state is State.SUCCEEDED
    assert gate.came == [run.id]
    for other in (waiting, late):
        assert (other.refresh().state, begun(other.record)) == (State.QUEUED, 0)
        assert moves(app, other) == ["create"]
    app.close()  # SQLite keeps a file open until the last of a process lets go
    until(lambda: _open_connections(app) <= before)


def test_Z9_with_room_for_more_it_still_claims_nothing_after_the_stop(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, under_way, claim = Gate(), list[object](), Engine.claim

    async def noted(engine: Engine, *args: Any, **details: Any) -> list[Run]:
        under_way.append(engine)
        try:
            return await claim(engine, *args, **details)
        finally:
            under_way.pop()

    monkeypatch.setattr(Engine, "claim", noted)
    job = patient(app, "async", gate)
    run = job.enqueue()
    with working(app, slots=5) as at_work:
        gate.reached()
        stopped = at_work.ask()
        until(lambda: not under_way)  # what was asked for before the stop may still be given
        late = [job.enqueue() for _ in range(3)]
        gate.open()
        stopped.result(DEADLINE)
    assert run.refresh().state is State.SUCCEEDED
    assert [moves(app, other) for other in late] == [["create"]] * 3


@each_kind
def test_Z10_a_stop_without_drain_aborts_and_records_the_error_of_the_handler(app: App, kind: Kind) -> None:
    gate = Gate()
    run = patient(app, kind, gate, on_abort="fail").enqueue()
    with working(app) as at_work:
        gate.reached()
        at_work.stop(drain=False)
        failed = run.refresh()
    assert failed.error is not None
    assert (failed.state, failed.error.code, failed.error.message) == (State.FAILED, "Undone", "stopped by abort")
    assert (failed.failures, len(run.attempts())) == (1, 1)


def test_Z10_a_handler_that_says_nothing_itself_is_recorded_as_aborted(app: App) -> None:
    gate = Gate()

    @app.job(name="mail", on_abort="fail")
    async def mail() -> None:
        await gate.wait()

    run = mail.enqueue()
    with working(app) as at_work:
        gate.reached()
        at_work.stop(drain=False)
    failed = run.refresh()
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (State.FAILED, "aborted")


@each_kind
def test_Z10_only_a_job_that_asks_for_it_is_not_tried_again(still: App, kind: Kind) -> None:
    gate = Gate()
    run = patient(still, kind, gate).enqueue()
    with working(still) as at_work:
        gate.reached()
        at_work.stop(drain=False)
    again = run.refresh()
    assert again.error is not None
    assert (again.state, again.failures, again.error.code) == (State.SCHEDULED, 1, "Undone")


@each_kind
def test_Z11_a_failure_thrown_after_the_stop_is_final(app: App, kind: Kind) -> None:
    gate = Gate()
    run = deaf(app, kind, gate, RuntimeError("too late"), on_abort="fail").enqueue()
    with working(app) as at_work:
        gate.reached()
        stopped = at_work.ask(drain=False)
        until(lambda: [execution.why for execution in at_work.worker.in_flight.renewable()] == ["abort"])
        gate.open()
        stopped.result(DEADLINE)
    failed = run.refresh()
    assert failed.error is not None
    assert (failed.state, failed.error.code, failed.error.message) == (State.FAILED, "RuntimeError", "too late")
    assert len(run.attempts()) == 1


@pytest.mark.parametrize("drain", [True, False], ids=["drain", "abort"])
@each_kind
def test_Z12_a_stop_returns_although_a_handler_hangs(app: App, kind: Kind, drain: bool) -> None:
    gate = Gate()
    run = deaf(app, kind, gate, backoff=(3600,)).enqueue()
    with working(app) as at_work:
        gate.reached()
        at_work.stop(drain=drain, grace=0.4)
        assert gate.inside == 1
        left = run.refresh()
        gate.open()
        at_work.join()
    # Drained, it is given back; aborted, it has failed and is tried again. What the handler says later is not heard.
    assert (left.state, left.failures) == ((State.QUEUED, 0) if drain else (State.SCHEDULED, 1))
    assert (left.attempt, left.token, left.lease_until) == (2, None, None)
    assert run.refresh() == left


@pytest.mark.parametrize("job", ["stuck", "deaf"])
def test_Z12_so_does_a_program_that_is_asked_to_end(shared: App, job: str) -> None:
    run_sync(shared.engine.define(job))
    run = shared.enqueue(job)
    with program(shared.address, "1", "10", "0.4") as child:
        assert child.says() == ["began", run.id, "1"]
        child.signal(signal.SIGTERM)
        assert child.wait() == 0
    assert (run.refresh().state, run.record.failures, run.record.requeues) == (State.QUEUED, 0, 1)


def test_Z16_invalid_input_is_refused_and_nothing_is_stored(app: App) -> None:
    @app.job(name="add")
    def add(a: int, b: int = 2) -> int:
        return a + b

    with pytest.raises(BadInput, match="add"):
        add.enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="add"):
        add.enqueue(1, b=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        add.enqueue()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        add.enqueue(1, c=3)  # type: ignore[call-arg]
    assert app.runs().runs == []
    with working(app):
        assert add.enqueue(1).wait(DEADLINE) == 3


@each_kind
def test_Z16_output_that_violates_its_type_is_a_failure(still: App, kind: Kind) -> None:
    calls: list[int] = []
    wrong: Any = "three"
    job: Job[[], int]
    if kind == "async":

        @still.job(name="add", max_attempts=2, backoff_base=0.5)
        async def in_loop(ctx: Context) -> int:
            calls.append(ctx.attempt)
            return wrong  # type: ignore[no-any-return]

        job = in_loop
    else:

        @still.job(name="add", max_attempts=2, backoff_base=0.5)
        def on_thread(ctx: Context) -> int:
            calls.append(ctx.attempt)
            return wrong  # type: ignore[no-any-return]

        job = on_thread
    run = job.enqueue()
    with working(still):
        again = in_state(run, State.SCHEDULED, attempt=2)
        assert again.error is not None
        assert (again.error.code, again.output, again.failures) == ("bad_output", None, 1)
        later(still, 1_000)
        failed = ended(run)
    assert failed.error is not None
    assert (failed.state, failed.error.code, failed.output, calls) == (State.FAILED, "bad_output", None, [1, 2])


def test_Z17_a_job_without_a_definition_fails_at_once(app: App) -> None:
    @app.job(name="known")
    async def known() -> None:
        pass

    run_sync(app.verbs.define("unknown"))
    run = app.enqueue("unknown")
    with working(app, on_unknown="fail"):
        failed = until(lambda: run.record if run.refresh().failures else None)
    assert failed.error is not None
    assert (failed.state, failed.failures) == (State.FAILED, 1)
    assert "'unknown'" in failed.error.message


def test_Z17_unless_the_worker_leaves_it_to_others(app: App) -> None:
    @app.job(name="known")
    async def known() -> None:
        pass

    run_sync(app.verbs.define("unknown"))
    run = app.enqueue("unknown")
    with working(app):
        known.enqueue().wait(DEADLINE)
    assert moves(app, run) == ["create"]


def test_Z18_an_unknown_id_is_not_found(app: App) -> None:
    missing = app.clock.new_id()
    handle = patient(app, "async", Gate()).enqueue()
    handle.known(missing)
    for ask in (lambda: app.run(missing), handle.cancel, handle.refresh, handle.attempts, handle.rerun):
        with pytest.raises(NotFound, match=missing):
            ask()


def test_Z18_a_wait_that_is_too_long_times_out_and_the_job_goes_on(app: App) -> None:
    gate = Gate()
    run = patient(app, "async", gate).enqueue()
    with working(app):
        gate.reached()
        with pytest.raises(TimeoutError, match=run.id):
            run.wait(0.01)
        gate.open()
        assert run.wait(DEADLINE) == "done"


@each_kind
def test_Z21_concurrency_n_runs_n_handlers_in_parallel_and_no_more(app: App, kind: Kind) -> None:
    gate = Gate()
    job = deaf(app, kind, gate)
    runs = app.enqueue_many(job.new() for _ in range(9))
    with working(app, slots=3):
        gate.reached(3)
        gate.open()
        for run in runs:
            ended(run)
    assert gate.limit == 3
    assert sorted(gate.came) == sorted(run.id for run in runs)


def test_Z21_a_worker_told_twice_to_run_runs_once(app: App) -> None:
    gate, beats = Gate(), threading.active_count()
    job = deaf(app, "thread", gate)
    runs = [job.enqueue() for _ in range(4)]
    with working(app, times=2) as at_work:
        gate.reached()
        assert sum(thread.name == "windlass-heartbeat" for thread in threading.enumerate()) == 1
        gate.open()
        for run in runs:
            ended(run)
        _ends(at_work)
    assert gate.limit == 1
    assert gate.came == [run.id for run in runs]
    until(lambda: threading.active_count() <= beats)


KEYS = ("charge", "pack", "ship")


@pytest.mark.parametrize(("place", "again"), [("before_commit", ["pack", "ship"]), ("after_commit", ["ship"])])
def test_Z22_steps_completed_before_a_kill_are_skipped_and_the_others_are_done(shared: App, place: str, again: list[str]) -> None:
    done: list[str] = []

    @shared.job(name="pays", backoff=(0,))
    def pays(ctx: Context) -> list[str]:
        def do(key: str) -> str:
            done.append(key)
            return f"{key} of attempt {ctx.attempt}"

        return [ctx.step(key, do, key) for key in KEYS]

    run = pays.enqueue()
    with program(shared.address, "1", "1", faults=f"step.{place}=kill@2") as child:
        assert [child.says() for _ in range(2)] == [["did", run.id, "1", key] for key in KEYS[:2]]
        assert child.wait() == -signal.SIGKILL
    with working(shared):
        assert run.wait(DEADLINE) == [f"{key} of attempt {2 if key in again else 1}" for key in KEYS]
    assert done == again
    assert [attempt.outcome for attempt in run.attempts()] == ["lapsed", "succeeded"]


@each_kind
def test_Z22_a_step_that_fails_is_not_marked_and_is_repeated(app: App, kind: Kind) -> None:
    calls: list[str] = []

    def do(key: str, attempt: int) -> str:
        calls.append(key)
        if (key, attempt) == ("pack", 1):
            raise ConnectionError("no answer")
        return key

    if kind == "async":

        @app.job(name="pays", backoff=(0,))
        async def in_loop(ctx: Context) -> list[str]:
            return [await ctx.step(key, do, key, ctx.attempt) for key in KEYS]

        run = in_loop.enqueue()
    else:

        @app.job(name="pays", backoff=(0,))
        def on_thread(ctx: Context) -> list[str]:
            return [ctx.step(key, do, key, ctx.attempt) for key in KEYS]

        run = on_thread.enqueue()
    with working(app):
        assert run.wait(DEADLINE) == [*KEYS]
    assert calls == ["charge", "pack", "pack", "ship"]
    assert list(run.steps()) == [*KEYS]


def _ends(at_work: Working) -> None:
    """Both calls return when the worker is stopped."""
    at_work.stop()
    at_work.join()
