"""The worker's loop: what it takes, what it tells, how handlers are stopped, and that it goes on when its store does not answer."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.harness import KINDS
from tests.tiers import corners
from tests.worker.test_executors import nothing_stays  # noqa: F401 - every test here is watched as well
from tests.workers import DEADLINE, Gate, Working, ended, in_state, moves, until, working
from windlass import App, Context, Fail, Job, Skip, Snooze, State, current
from windlass.errors import OutcomeUnknown, StoreBroken, StoreBusy, StoreError, StoreFull, StoreUnreachable, TooLarge
from windlass.model import Limits, WorkerInfo
from windlass.store.base import run_sync
from windlass.worker import Port, Worker, claims, logs, reporting
from windlass.worker.context import LOGGERS
from windlass.worker.outcomes import Stopped

AGES = 3_600.0
"""A lease or a wait so long that what happens in a test cannot be its end."""

TRANSIENT: tuple[type[StoreError], ...] = (StoreUnreachable, StoreBusy, StoreFull, OutcomeUnknown)


def at(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind == "postgres":
        url: str = request.getfixturevalue("emptied_postgres")
        return url
    return ":memory:" if kind == "memory" else str(folder / "windlass.db")


@pytest.fixture
def app() -> Iterator[App]:
    """An app in memory."""
    with App(":memory:") as app:
        yield app


@pytest.fixture(params=corners(KINDS))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each store in turn, for what the store has a part in."""
    with App(at(request.param, tmp_path, request)) as app:
        yield app


class Watched:
    """A port that remembers what it was asked, and fails instead of answering as long as it is told to."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.asked: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.answers: dict[str, list[Any]] = defaultdict(list)
        self._errors: dict[str, list[tuple[Exception, bool]]] = defaultdict(list)
        self._instead: dict[str, Callable[..., Awaitable[Any]]] = {}

    def fail(self, verb: str, *errors: Exception, late: bool = False) -> None:
        """Raise these, one at each call; when late, only after it was done."""
        self._errors[verb] += [(error, late) for error in errors]

    def instead(self, verb: str, call: Callable[..., Awaitable[Any]] | None) -> None:
        """Do something else from now on."""
        if call is None:
            del self._instead[verb]
        else:
            self._instead[verb] = call

    @property
    def calls(self) -> Counter[str]:
        return Counter({verb: len(asked) for verb, asked in self.asked.items()})

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.asked[verb].append((*arguments, named))
            error, late = self._errors[verb].pop(0) if self._errors[verb] else (None, False)
            if error is not None and not late:
                raise error
            answer = await self._instead.get(verb, getattr(self._port, verb))(*arguments, **named)
            if error is not None:
                raise error
            self.answers[verb].append(answer)
            return answer

        return call


class Ports:
    """The watched ports of a worker: one for its loop, one for its heartbeat."""

    loop: Watched
    heartbeat: Watched

    def watch(self, worker: Worker) -> None:
        self.loop, self.heartbeat = Watched(worker.runtime.port), Watched(worker.heartbeat.port)
        worker.runtime.port, worker.heartbeat.port = cast(Port, self.loop), cast(Port, self.heartbeat)


@pytest.fixture
def ports() -> Ports:
    return Ports()


def error(kind: type[StoreError]) -> StoreError:
    trouble = kind("Away, for the test.", hint="Wait.")
    if isinstance(trouble, OutcomeUnknown):
        trouble.settled = True  # nothing is under way any more when a call to these stores has ended
    return trouble


def noop(app: App, **options: Any) -> Job[[], None]:
    @app.job(name="noop", **options)
    async def nothing() -> None:
        pass

    return nothing


def waits(app: App, gate: Gate, **options: Any) -> Job[[], str]:
    """A coroutine that waits at the gate."""

    @app.job(name="waits", **options)
    async def wait(ctx: Context) -> str:
        await gate.wait(ctx.run)
        return "through"

    return wait


def deaf(app: App, gate: Gate, **options: Any) -> Job[[], str]:
    """A plain function that waits at the gate, whoever asks it to stop."""

    @app.job(name="deaf", **options)
    def block(ctx: Context) -> str:
        gate.block(ctx.run)
        return "through"

    return block


def one_of_each(app: App, gate: Gate, seen: dict[str, Any], **options: Any) -> list[Job[..., Any]]:
    """A job of each kind but process that runs until it is asked to stop."""

    @app.job(name="async", **options)
    async def in_loop(ctx: Context) -> None:
        gate.came.append(ctx.run)
        try:
            await asyncio.sleep(AGES)
        finally:
            seen["async"] = ctx.why

    @app.job(name="thread", **options)
    def on_thread(ctx: Context) -> None:
        gate.came.append(ctx.run)
        threads = threading.Event()
        while not ctx.cancelled:
            threads.wait(0.005)
        seen["thread"] = ctx.why
        ctx.check()

    command = app.command("command", ["/bin/sh", "-c", "echo ready >&2; sleep 600"], **options)
    return [in_loop, on_thread, command]


# What it takes


def test_no_more_runs_than_slots_are_worked_on_at_once(app: App, ports: Ports) -> None:
    gate = Gate()
    job = waits(app, gate)
    handles = [job.enqueue() for _ in range(7)]
    with working(app, slots=3, prepare=ports.watch):
        gate.reached(3)
        gate.open()
        assert [ended(handle).state for handle in handles] == [State.SUCCEEDED] * 7
    assert gate.limit == 3
    assert max(named["count"] for *_, named in ports.loop.asked["claim"]) == 3


def test_one_claim_and_few_reports_for_many_short_runs(app: App, ports: Ports) -> None:
    job = noop(app)
    handles = app.enqueue_many([job.new() for _ in range(200)])
    with working(app, slots=200, prepare=ports.watch):
        for handle in handles:
            assert ended(handle).state is State.SUCCEEDED
    assert len(ports.loop.answers["claim"][0]) == 200
    assert sum(len(outcomes) for outcomes, _ in ports.loop.asked["report_many"]) == 200
    assert ports.loop.calls["report_many"] <= 5


def test_two_workers_of_one_name_with_one_slot_hold_one_run(stored: App) -> None:
    gate = Gate()
    job = waits(stored, gate)
    handles = [job.enqueue() for _ in range(4)]
    with working(stored, name="same", slots=1), working(stored, name="same", slots=1):
        gate.reached(1)
        claimed = [handle for handle in handles if handle.refresh().state in (State.CLAIMED, State.RUNNING)]
        assert len(claimed) == 1
        gate.open()
        assert [ended(handle).attempt for handle in handles] == [1] * 4
    assert gate.limit == 1


def test_a_hint_wakes_an_idle_worker_which_does_not_poll(stored: App, ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LONGEST_WAIT", AGES)
    job = noop(stored)
    with working(stored, slots=4, prepare=ports.watch):
        for _ in range(10):
            assert ended(job.enqueue()).state is State.SUCCEEDED
        until(lambda: ports.loop.asked["wait"][-1][1] == AGES)  # nothing but a hint can wake it now
        assert ended(job.enqueue()).state is State.SUCCEEDED
    assert ports.loop.calls["claim"] <= 2 + 11 * 4


def test_what_is_put_back_for_now_is_found_without_a_poll(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LONGEST_WAIT", AGES)

    @app.job(name="snoozes", backoff=(0,))
    async def snoozes(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Snooze(0.05)
        if ctx.attempt == 2:
            raise ValueError("again")
        return ctx.attempt

    with working(app):
        assert snoozes.enqueue().wait(DEADLINE) == 3


def test_K40_each_kind_of_handler_executes_the_runs_of_every_job_that_has_it(stored: App) -> None:
    @stored.job()
    async def in_loop(ctx: Context) -> list[str]:
        return [ctx.job, ctx.handler]

    @stored.job()
    def on_thread() -> list[str]:
        return [current().job, current().handler]

    command = stored.command("command", ["/bin/sh", "-c", 'printf \'["%s", "command"]\' "$WINDLASS_JOB"'])
    for job in (in_loop, on_thread, command):
        stored.define(f"daily {job.handler.name}", handler=job)
    with working(stored):
        for job in (in_loop, on_thread, command):
            for name in (job.name, f"daily {job.name}"):
                run = ended(stored.enqueue(name))
                assert json.loads(run.output or "null") == [name, job.handler.name]


def test_K23_a_worker_without_the_handler_names_it_where_it_takes_everything(app: App) -> None:
    run_sync(app.engine.define("daily", handler="story"))
    with working(app, on_unknown="fail"):
        run = ended(app.enqueue("daily"))
    assert run.error is not None
    assert (run.state, run.error.code) == (State.FAILED, "unknown_job")
    assert run.error.message.startswith("No handler 'story' for the job 'daily'. Deploy")


def test_a_job_without_a_handler_here_is_never_claimed(stored: App, ports: Ports) -> None:
    job = noop(stored)
    run_sync(stored.engine.define("elsewhere"))
    other = stored.enqueue("elsewhere")
    with working(stored, slots=2, prepare=ports.watch):
        assert ended(job.enqueue()).state is State.SUCCEEDED
        assert other.refresh().state is State.QUEUED
    assert all(run.job == "noop" for runs in ports.loop.answers["claim"] for run in runs)
    assert other.refresh().rev == 1


def test_a_worker_that_fails_what_it_does_not_know_ends_it_at_once(app: App) -> None:
    run_sync(app.verbs.define("elsewhere"))
    with working(app, on_unknown="fail"):
        run = ended(app.enqueue("elsewhere"))
    assert (run.state, run.attempt, run.max_attempts) == (State.FAILED, 1, 5)
    assert run.error is not None
    assert run.error.code == "unknown_job"
    assert "elsewhere" in run.error.message


def test_a_payload_of_the_largest_size_goes_through_and_a_larger_one_is_refused(stored: App) -> None:
    command = stored.command("length", [sys.executable, "-I", "-S", "-c", "import sys; print(len(sys.stdin.buffer.read()))"])
    limit = Limits().payload
    with working(stored):
        assert command.enqueue(x="x" * (limit - len('{"x":""}'))).wait(DEADLINE) == limit
    for size in (limit, 10_000_000):
        with pytest.raises(TooLarge):
            command.enqueue(x="x" * size)


# What it tells


def test_the_start_of_a_short_run_is_part_of_its_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "SHORT", AGES)
    gate = Gate()
    job = waits(app, gate)
    with working(app):
        handle = job.enqueue()
        gate.reached(1)
        assert handle.refresh().state is State.CLAIMED
        gate.open()
        run = ended(handle)
    assert moves(app, handle) == ["create", "claim", "succeed"]
    assert run.started_at is not None


def test_the_start_of_a_long_run_is_told(stored: App) -> None:
    gate = Gate()
    job = waits(stored, gate)
    with working(stored):
        handle = job.enqueue()
        assert in_state(handle, State.RUNNING).started_at is not None
        gate.open()
        ended(handle)
    assert moves(stored, handle) == ["create", "claim", "start", "succeed"]


def test_progress_arrives_while_it_runs_and_the_last_word_stays(stored: App) -> None:
    gate = Gate()

    @stored.job(name="tells")
    async def tells(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await gate.wait()
        ctx.progress(0.5)
        ctx.progress(1.0, "all of it")

    with working(stored, lease=AGES):
        handle = tells.enqueue()
        until(lambda: handle.refresh().progress)
        assert msgspec.json.decode(handle.record.progress or "") == {"fraction": 0.25, "message": "a quarter"}
        gate.open()
        run = ended(handle)
    assert msgspec.json.decode(run.progress or "") == {"fraction": 1.0, "message": "all of it"}


def test_logs_arrive_while_it_runs_and_the_last_lines_with_the_end(stored: App) -> None:
    gate = Gate()

    @stored.job(name="talks")
    async def talks(ctx: Context) -> None:
        ctx.logger.info("first")
        await gate.wait()
        for n in range(25):
            ctx.logger.warning("last %d", n)

    with working(stored):
        handle = talks.enqueue()
        until(lambda: [line.text for line in handle.logs()] == ["INFO first"])
        gate.open()
        ended(handle)
        assert [line.text for line in handle.logs()] == ["INFO first", *(f"WARNING last {n}" for n in range(25))]


def test_thousands_of_lines_are_kept_whole_and_in_order(stored: App) -> None:
    @stored.job(name="talks")
    def talks(ctx: Context) -> None:
        for n in range(3_500):
            ctx.logger.info("%d", n)

    with working(stored):
        handle = talks.enqueue()
        ended(handle)
    assert [line.text for line in handle.logs()] == [f"INFO {n}" for n in range(3_500)]
    assert [line.n for line in handle.logs()] == list(range(1, 3_501))


def test_lines_beyond_the_limit_are_dropped_and_counted_in_the_log(app: App) -> None:
    @app.job(name="talks")
    def talks(ctx: Context) -> None:
        for n in range(12_000):
            ctx.logger.info("%d", n)

    with working(app):
        handle = talks.enqueue()
        assert ended(handle).state is State.SUCCEEDED
    *kept, last = [line.text for line in handle.logs()]
    assert 9_990 <= len(kept) <= 10_000
    assert kept == [f"INFO {n}" for n in range(len(kept))]
    assert last == f"{12_000 - len(kept):d} further lines were dropped."


@pytest.mark.parametrize("text", ["x" * 10_000, "\u00fc" * 4_000])
def test_lines_beyond_the_limit_of_bytes_are_dropped_and_counted_in_the_log(stored: App, text: str) -> None:
    @stored.job(name="talks")
    def talks(ctx: Context) -> str:
        for _ in range(1_500):
            ctx.logger.info(text)
        ctx.logger.info("short")
        return "done"

    with working(stored):
        handle = talks.enqueue()
        assert ended(handle).state is State.SUCCEEDED
    *kept, last = [line.text for line in handle.logs()]
    size = sum(len(line.encode()) for line in kept)
    assert 8 * 2**20 - 3 * 8_192 <= size <= 8 * 2**20 - 8_192
    assert {len(line) for line in kept} == {min(len(text) + 5, 8_192)}
    assert last == f"{1_501 - len(kept):d} further lines were dropped."


def test_no_line_is_lost_between_two_batches(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_EVERY", 0.0)
    before = sys.getswitchinterval()

    @app.job(name="talks")
    def talks(ctx: Context) -> None:
        for n in range(5_000):
            ctx.logger.info("%d", n)

    try:
        sys.setswitchinterval(1e-6)
        with working(app, slots=4):
            handles = [talks.enqueue() for _ in range(4)]
            for handle in handles:
                ended(handle)
    finally:
        sys.setswitchinterval(before)
    for handle in handles:
        assert [line.text for line in handle.logs()] == [f"INFO {n}" for n in range(5_000)]


def test_lines_from_several_threads_of_one_handler_are_all_kept(app: App) -> None:
    @app.job(name="talks")
    async def talks(ctx: Context) -> None:
        def some(actor: int) -> None:
            for n in range(500):
                ctx.logger.info("%d %d", actor, n)

        await asyncio.gather(*(asyncio.to_thread(some, actor) for actor in range(4)))

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        with working(app):
            handle = talks.enqueue()
            ended(handle)
    finally:
        sys.setswitchinterval(before)
    assert Counter(line.text for line in handle.logs()) == Counter(f"INFO {actor} {n}" for actor in range(4) for n in range(500))


def test_a_line_that_is_long_or_odd_does_not_cost_the_others(stored: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(LOGGERS), "propagate", False)  # those who listen there may not like such texts

    @stored.job(name="talks")
    async def talks(ctx: Context) -> None:
        for text in ("before", "é" * 100_000, "nul \0", "half \ud800", "two\nlines", "after"):
            ctx.logger.info(text)

    with working(stored):
        handle = talks.enqueue()
        assert ended(handle).state is State.SUCCEEDED
    texts = [line.text for line in handle.logs()]
    assert len(texts) == 6
    assert (texts[0], texts[4], texts[5]) == ("INFO before", "INFO two\nlines", "INFO after")
    assert texts[1].startswith("INFO éé")
    assert len(texts[1].encode()) <= Limits().line


def test_lines_of_two_attempts_are_kept_apart(app: App) -> None:
    @app.job(name="talks", backoff=(0,))
    async def talks(ctx: Context) -> None:
        ctx.logger.info("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("again")

    with working(app):
        handle = talks.enqueue()
        ended(handle)
    assert [(line.attempt, line.n, line.text) for line in handle.logs()] == [(1, 1, "INFO attempt 1"), (2, 1, "INFO attempt 2")]


@pytest.mark.parametrize("result", ["x" * 2**20, object(), float("nan"), "\ud800"], ids=["large", "object", "nan", "surrogate"])
def test_a_result_that_cannot_be_kept_is_an_error_of_the_attempt(result: Any, stored: App) -> None:
    @stored.job(name="requeues", max_attempts=1)
    async def returns() -> Any:
        return result

    with working(stored):
        run = ended(returns.enqueue())
    assert run.state is State.FAILED
    assert run.error is not None
    assert run.error.code == "bad_output"


def test_a_result_that_only_the_store_refuses_is_an_error_of_the_attempt() -> None:
    with App(":memory:", limits=Limits(output=100)) as app:

        @app.job(name="requeues", max_attempts=1)
        async def returns() -> str:
            return "x" * 100

        with working(app):
            run = ended(returns.enqueue())
    assert run.error is not None
    assert run.error.code == "bad_output"
    assert "100" in run.error.message


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")


RAISED = {
    "no text": Unspeakable(),
    "odd text": ValueError("half \ud800 and nul \0"),
    "long text": ValueError("long" * 100_000),
    "snooze nan": Snooze(float("nan")),
    "snooze inf": Snooze(float("inf")),
    "snooze for ages": Snooze(1e30),
    "delay nan": Fail("x", delay=float("nan")),
    "delay of ages": Fail("x", delay=1e30),
    "empty code": Fail("x", code=""),
    "odd code": Fail("x", code="\0" * 1_000),
    "exit": SystemExit(1),
    "interrupt": KeyboardInterrupt(),
    "cancelled": asyncio.CancelledError(),
    "stopped": Stopped("by itself"),
}


@pytest.mark.parametrize("raised", RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_whatever_a_handler_raises_its_attempt_ends_and_the_worker_goes_on(
    raised: BaseException, kind: str, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="windlass.worker")  # what pytest captures it must be able to send to another process
    if kind == "async":

        @app.job(name="raises", max_attempts=1)
        async def in_loop() -> None:
            raise raised

    else:

        @app.job(name="raises", max_attempts=1)
        def on_thread() -> None:
            raise raised

    job = noop(app)
    with working(app, slots=1):
        handle = app.enqueue("raises")
        run = ended(handle)
        assert ended(job.enqueue()).state is State.SUCCEEDED
    assert run.state is State.FAILED
    assert run.error is not None


# When the store does not answer


@pytest.mark.parametrize("kind", TRANSIENT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("verb", ["register", "claim", "start_many", "log", "report_many", "wait"])
def test_a_store_that_is_away_for_a_while_costs_nothing(verb: str, kind: type[StoreError], app: App, ports: Ports) -> None:
    gate = Gate()

    @app.job(name="talks")
    async def talks(ctx: Context, n: int) -> int:
        ctx.logger.info("%d", n)
        await gate.wait()
        ctx.logger.info("bye")
        return n

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.fail(verb, *(error(kind) for _ in range(3)))

    with working(app, slots=8, prepare=prepare):
        handles = [talks.enqueue(n) for n in range(8)]
        gate.reached(8)
        if verb in ("start_many", "log"):
            until(lambda: ports.loop.calls[verb] >= 1)
        gate.open()
        runs = [ended(handle) for handle in handles]
    assert [(run.state, run.attempt, run.failures, run.output) for run in runs] == [(State.SUCCEEDED, 1, 0, str(n)) for n in range(8)]
    assert [[line.text for line in handle.logs()] for handle in handles] == [[f"INFO {n}", "INFO bye"] for n in range(8)]
    assert ports.loop.calls[verb] >= 2 or verb == "start_many"


@pytest.mark.parametrize("verb", ["log", "report_many"])
def test_what_was_done_although_nobody_knows_is_done_once(verb: str, stored: App, ports: Ports) -> None:
    @stored.job(name="talks", max_attempts=1)
    async def talks(ctx: Context, n: int) -> int:
        ctx.logger.info("%d", n)
        if n == 3:
            raise ValueError("x")
        return n

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.fail(verb, error(OutcomeUnknown), error(OutcomeUnknown), late=True)

    with working(stored, slots=4, prepare=prepare):
        handles = [talks.enqueue(n) for n in range(4)]
        runs = [ended(handle) for handle in handles]
    assert [run.state for run in runs] == [State.SUCCEEDED] * 3 + [State.FAILED]
    assert [[line.text for line in handle.logs()] for handle in handles] == [[f"INFO {n}"] for n in range(4)]
    assert [run.rev for run in runs] == [3, 3, 3, 3]


def test_runs_whose_claim_was_never_answered_are_worked_on_when_their_lease_is_over(app: App, ports: Ports) -> None:
    job = noop(app)
    handles = [job.enqueue() for _ in range(3)]

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.fail("claim", error(OutcomeUnknown), late=True)

    with working(app, slots=3, lease=0.3, prepare=prepare):
        assert [ended(handle).state for handle in handles] == [State.SUCCEEDED] * 3


@pytest.mark.parametrize("verb", ["register", "claim", "report_many", "log", "wait", "start_many"])
def test_an_error_of_the_store_that_does_not_pass_ends_the_worker_with_it(verb: str, app: App, ports: Ports) -> None:
    gate, why = Gate(), list[str | None]()
    broken = error(StoreBroken)

    @app.job(name="talks")
    async def talks(ctx: Context) -> None:
        ctx.logger.info("hello")

    @app.job(name="holds")
    async def holds(ctx: Context) -> None:
        try:
            await gate.wait()
        finally:
            why.append(ctx.why)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        if verb == "register":
            ports.loop.fail(verb, broken)

    def work() -> None:
        with working(app, slots=3, prepare=prepare) as at_work:
            if verb != "register":
                holds.enqueue()
                gate.reached(1)
                ports.loop.fail(verb, *[broken] * 20)
                (holds if verb == "start_many" else talks).enqueue()  # what ends soon has no start of its own
            at_work.join()

    with pytest.raises(StoreBroken) as caught:
        work()
    assert caught.value is broken
    assert why == ["lost"] * (0 if verb == "register" else len(gate.came))


# Holding


def test_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_run(stored: App) -> None:
    never = threading.Event()

    @stored.job(name="blocks")
    async def blocks() -> str:
        never.wait(1.8)
        return "mine"

    noop(stored)
    with working(stored, name="w1", lease=0.6, jobs=["blocks"]), working(stored, name="sweeps", lease=0.6, jobs=["noop"]):
        run = ended(blocks.enqueue())
    assert (run.state, run.attempt, run.worker) == (State.SUCCEEDED, 1, "w1")


def test_a_worker_that_lost_its_lease_stops_the_handler_and_writes_nothing(stored: App, ports: Ports) -> None:
    """The beats do not arrive, so another worker takes the run over and ends it; then a beat of the first one is answered."""
    gate, why = Gate(), list[str | None]()

    @stored.job(name="slow", backoff=(0,))
    async def slow(ctx: Context) -> str:
        ctx.logger.info("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            try:
                await gate.wait()
            finally:
                why.append(ctx.why)
                ctx.logger.info("too late")
                ctx.progress(0.9)
        return f"by attempt {ctx.attempt}"

    async def lie(held: Any, **named: Any) -> list[str]:
        return ["ok"] * len(held)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.heartbeat.instead("beat", lie)

    with working(stored, name="w1", lease=0.5, prepare=prepare) as first:
        handle = slow.enqueue()
        gate.reached(1)
        with working(stored, name="w2", lease=5):
            run = ended(handle)
        assert why == []
        ports.heartbeat.instead("beat", None)
        until(lambda: why)
        first.stop()
    after = handle.refresh()
    assert (run.state, run.output, run.worker, run.attempt) == (State.SUCCEEDED, '"by attempt 2"', "w2", 2)
    assert after == run
    assert why == ["lost"]
    assert ports.loop.calls["report_many"] == 0
    assert "INFO too late" not in [line.text for line in handle.logs()]


async def fails(held: Any, **named: Any) -> list[str]:
    raise error(StoreUnreachable)


async def unknown(held: Any, **named: Any) -> list[str]:
    return ["unknown"] * len(held)


@pytest.mark.parametrize("beat", [fails, unknown])
def test_a_worker_that_cannot_renew_for_a_lease_stops_its_handlers_by_itself(
    app: App, ports: Ports, beat: Callable[..., Awaitable[list[str]]]
) -> None:
    gate, why = Gate(), list[str | None]()

    @app.job(name="slow", backoff=(0,))
    async def slow(ctx: Context) -> int:
        if ctx.attempt == 1:
            try:
                await gate.wait()
            finally:
                why.append(ctx.why)
        return ctx.attempt

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.heartbeat.instead("beat", beat)

    with working(app, name="w1", lease=0.6, prepare=prepare):
        handle = slow.enqueue()
        until(lambda: why)
        assert why == ["lost"]
        assert ended(handle).output == "2"
    # The store still takes it for ours, so it is given back; on a slow machine it has lapsed by then, and the token is refused.
    first, second = (attempt.outcome for attempt in handle.attempts())
    assert (first, handle.refresh().failures) in (("returned", 0), ("lapsed", 1))
    assert second == "succeeded"


def test_a_few_beats_that_fail_do_not_lose_the_lease(app: App, ports: Ports) -> None:
    gate = Gate()
    job = waits(app, gate)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.heartbeat.fail("beat", error(StoreBusy))

    with working(app, lease=1.5, prepare=prepare):
        handle = job.enqueue()
        until(lambda: ports.heartbeat.calls["beat"] >= 4)
        gate.open()
        assert ended(handle).attempt == 1


def test_a_beat_that_is_answered_unknown_is_repeated_and_stops_nothing(app: App, ports: Ports) -> None:
    gate = Gate()
    job = waits(app, gate)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.heartbeat.instead("beat", unknown)

    with working(app, lease=3, prepare=prepare):
        handle = job.enqueue()
        until(lambda: ports.heartbeat.calls["beat"] >= 3)
        ports.heartbeat.instead("beat", None)
        until(lambda: ports.heartbeat.calls["beat"] >= 6)
        gate.open()
        assert ended(handle).attempt == 1


# Stopping one


def test_a_cancel_reaches_a_handler_by_hint_and_not_only_by_a_beat(stored: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    jobs = one_of_each(stored, gate, seen, grace=60)
    with working(stored, slots=3, lease=AGES):
        handles = [job.enqueue() for job in jobs]
        gate.reached(2)
        until(lambda: handles[2].logs())
        for handle in handles:
            handle.cancel("enough")
        runs = [ended(handle) for handle in handles]
    assert [(run.state, run.reason, run.attempt) for run in runs] == [(State.CANCELLED, "enough", 1)] * 3
    assert seen == {"async": "cancel", "thread": "cancel"}


def test_a_result_after_a_cancel_changes_nothing(app: App) -> None:
    gate = Gate()
    job = deaf(app, gate)
    with working(app, lease=AGES):
        handle = job.enqueue()
        gate.reached(1)
        handle.cancel()
        gate.open()
        run = ended(handle)
    assert (run.state, run.output) == (State.CANCELLED, None)


def test_a_timeout_is_tried_again_and_max_runtime_is_not(app: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    for job in one_of_each(app, gate, seen, max_attempts=2, backoff=(0,), timeout=0.3):
        with working(app, slots=3):
            handle = job.enqueue()
            run = ended(handle)
        assert (run.state, run.attempt, run.error and run.error.code) == (State.FAILED, 2, "timeout"), job.name
        assert [attempt.error and attempt.error.code for attempt in handle.attempts()] == ["timeout"] * 2
        assert "300 ms" in (run.error.message if run.error else "")
        with working(app, slots=3):
            final = ended(job.options(timeout=60, max_runtime=0.3).enqueue())
        assert (final.state, final.attempt, final.error and final.error.code) == (State.FAILED, 1, "max_runtime_exceeded"), job.name
    assert seen == {"async": "max_runtime", "thread": "max_runtime"}


def test_a_thread_that_does_not_stop_is_left_behind_and_its_slot_stays_taken(
    app: App, ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    gate, other = Gate(), Gate()
    stuck = deaf(app, gate, max_attempts=1, timeout=0.1, grace=0.2)
    job = waits(app, other)
    with caplog.at_level(logging.ERROR, "windlass"), working(app, slots=3, prepare=ports.watch) as at_work:
        holding, handle = job.enqueue(), stuck.enqueue()
        run = ended(handle)
        assert (run.state, run.error and run.error.code) == (State.FAILED, "timeout")
        assert [record for record in caplog.records if handle.id in record.getMessage()]
        until(lambda: [execution.run.id for execution in at_work.worker.in_flight.renewable()] == [holding.id])
        claims = ports.loop.calls["claim"]
        app.enqueue_many([job.new(), job.new()])
        other.reached(2)
        assert max(named["count"] for *_, named in ports.loop.asked["claim"][claims:]) == 1
        assert at_work.alive  # there is still something to end
        other.open()
        at_work.join()  # idle, and not whole any more
        assert at_work.worker.needs_restart
        gate.open()
    assert holding.refresh().state is State.SUCCEEDED
    assert other.limit == 2


def test_a_thread_that_ends_after_all_gives_its_slot_back(app: App) -> None:
    gate, other = Gate(), Gate()
    stuck = deaf(app, gate, max_attempts=1, timeout=0.1, grace=0.2)
    job = waits(app, other)
    with working(app, slots=2) as at_work:
        job.enqueue()
        other.reached(1)
        ended(stuck.enqueue())
        gate.open()
        handle = job.enqueue()
        other.reached(2)
        other.open()
        assert ended(handle).state is State.SUCCEEDED
        assert ended(job.enqueue()).state is State.SUCCEEDED
        assert at_work.alive
        assert not at_work.worker.needs_restart


def swallows(app: App, gate: Gate) -> Job[[], None]:
    @app.job(name="swallows", max_attempts=1, timeout=0.1, grace=0.2)
    async def swallow() -> None:
        await gate.ignore()

    return swallow


def test_a_coroutine_that_swallows_its_cancel_is_left_behind_too(app: App) -> None:
    gate = Gate()
    job = swallows(app, gate)
    with working(app) as at_work:
        run = ended(job.enqueue())
        assert (run.state, run.error and run.error.code) == (State.FAILED, "timeout")
        until(lambda: at_work.worker.needs_restart)
        gate.open()


SWALLOWS = """
import asyncio, sys
from windlass import App

app = App(sys.argv[1])

@app.job(name="swallows", max_attempts=1, timeout=0.1, grace=0.2)
async def swallows() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

if __name__ == "__main__":
    swallows.enqueue()
    print(app.work())
"""


def test_a_coroutine_that_swallows_its_cancel_does_not_hold_up_the_end_of_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SWALLOWS, str(tmp_path / "windlass.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def returning(app: App, gate: Gate, **options: Any) -> list[Job[..., Any]]:
    """Handlers that see that they should stop, and return."""

    @app.job(name="async", **options)
    async def in_loop() -> str:
        with suppress(asyncio.CancelledError):
            await gate.wait()
        return "polite"

    @app.job(name="thread", **options)
    def on_thread(ctx: Context) -> str:
        while not ctx.cancelled:
            gate.came.append(ctx.run)
        return "polite"

    command = app.command("command", ["/bin/sh", "-c", "trap 'echo 1; exit 0' TERM; while :; do sleep 0.05; done"], **options)
    return [in_loop, on_thread, command]


def test_a_handler_that_saw_that_it_should_stop_and_returns_has_not_succeeded(app: App) -> None:
    jobs = returning(app, Gate(), timeout=0.5, max_attempts=1)
    with working(app, slots=3):
        handles = [job.enqueue() for job in jobs]
        runs = [ended(handle) for handle in handles]
    assert [(run.job, run.state, run.error and run.error.code) for run in runs] == [
        (job, State.FAILED, "timeout") for job in ("async", "thread", "command")
    ]


def test_a_handler_that_never_looked_keeps_its_result(app: App) -> None:
    gate = Gate()
    job = deaf(app, gate, timeout=0.2, grace=60)
    with working(app) as at_work:
        handle = job.enqueue()
        gate.reached(1)
        until(lambda: any(execution.why for execution in at_work.worker.in_flight.renewable()))
        gate.open()
        run = ended(handle)
    assert (run.state, run.output) == (State.SUCCEEDED, '"through"')


# Stopping all


def test_a_drain_lets_handlers_finish(stored: App) -> None:
    gate = Gate()
    job = waits(stored, gate)
    with working(stored, slots=2) as at_work:
        handles = [job.enqueue() for _ in range(4)]
        gate.reached(2)
        asked = at_work.ask(grace=DEADLINE)
        gate.open()
        asked.result(DEADLINE)
    assert [handle.refresh().state for handle in handles] == [State.SUCCEEDED] * 2 + [State.QUEUED] * 2


def test_a_drain_gives_back_what_does_not_finish_and_counts_no_failure(stored: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    jobs = one_of_each(stored, gate, seen, grace=60)
    with working(stored, slots=3) as at_work:
        handles = [job.enqueue() for job in jobs]
        gate.reached(2)
        until(lambda: handles[2].logs())
        at_work.stop(grace=0.4)
    for handle in handles:
        run = handle.refresh()
        assert (run.state, run.failures, run.requeues, run.attempt) == (State.QUEUED, 0, 1, 2), run.job
        assert [attempt.outcome for attempt in handle.attempts()] == ["returned", "queued"]
    assert seen == {"async": "drain", "thread": "drain"}


@pytest.mark.parametrize("reason", ["", "half \ud800 and nul \0" * 1_000])
def test_whatever_its_reason_a_skip_ends_the_run(stored: App, reason: str) -> None:
    @stored.job()
    def skips() -> None:
        raise Skip(reason)

    with working(stored):
        run = ended(skips.enqueue())
    assert (run.state, bool(run.reason), run.failures) == (State.SKIPPED, True, 0)


def test_a_skip_stands_although_the_worker_was_asked_to_stop(stored: App) -> None:
    gate = Gate()

    @stored.job(grace=60)
    def skips(ctx: Context) -> None:
        threads = threading.Event()
        gate.came.append(ctx.run)
        while not ctx.cancelled:
            threads.wait(0.005)
        raise Skip("duplicate")

    with working(stored) as at_work:
        handle = skips.enqueue()
        gate.reached(1)
        at_work.stop(drain=False)  # a drain would leave the handler only the last part of its grace to react
    run = handle.refresh()
    assert (run.state, run.reason, run.failures, run.error) == (State.SKIPPED, "duplicate", 0, None)


def test_a_drain_gives_back_what_cannot_be_stopped(app: App) -> None:
    gate = Gate()
    job = deaf(app, gate)
    with working(app) as at_work:
        handle = job.enqueue()
        gate.reached(1)
        at_work.stop(grace=0.4)
        run = handle.refresh()
        assert (run.state, run.failures, run.requeues) == (State.QUEUED, 0, 1)
        gate.open()


def test_what_is_claimed_while_the_worker_is_told_to_stop_is_requeued(stored: App, ports: Ports) -> None:
    job, asked, answer = noop(stored), threading.Event(), threading.Event()

    async def late(*arguments: Any, **named: Any) -> Any:
        runs = await ports.loop._port.claim(*arguments, **named)
        if runs:
            asked.set()
            await asyncio.to_thread(answer.wait, DEADLINE)
        return runs

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.instead("claim", late)

    handles = [job.enqueue() for _ in range(3)]
    with working(stored, slots=3, prepare=prepare) as at_work:
        assert asked.wait(DEADLINE)
        stopping = at_work.ask(grace=5)
        answer.set()
        stopping.result(DEADLINE)
    for handle in handles:
        run = handle.refresh()
        assert (run.state, run.attempt, run.failures, run.requeues) == (State.QUEUED, 1, 0, 0)  # nothing of it has begun


def test_the_last_reports_and_lines_are_told_although_the_store_was_away_while_stopping(app: App, ports: Ports) -> None:
    gate = Gate()

    @app.job(name="talks")
    async def talks(ctx: Context) -> str:
        ctx.logger.info("before")
        await gate.wait()
        ctx.logger.info("during")
        await asyncio.sleep(0.5)
        ctx.logger.info("after")
        return "done"

    with working(app, prepare=ports.watch) as at_work:
        handle = talks.enqueue()
        until(lambda: handle.logs())
        asked = at_work.ask(grace=DEADLINE)
        ports.loop.fail("log", error(StoreUnreachable))
        ports.loop.fail("report_many", error(StoreUnreachable), error(OutcomeUnknown))
        gate.open()
        asked.result(DEADLINE)
    run = handle.refresh()
    assert (run.state, run.output) == (State.SUCCEEDED, '"done"')
    assert [line.text for line in handle.logs()] == ["INFO before", "INFO during", "INFO after"]


def _aborted(app: App, at_work: Working, gate: Gate, jobs: list[Job[..., Any]]) -> list[Any]:
    handles = [job.enqueue() for job in jobs]
    gate.reached(2)
    until(lambda: handles[2].logs())
    at_work.stop(drain=False)
    return handles


def test_an_abort_is_retried_by_the_rules_of_the_job(stored: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    jobs = one_of_each(stored, gate, seen, grace=60, backoff=(3_600,))
    with working(stored, slots=3) as at_work:
        handles = _aborted(stored, at_work, gate, jobs)
    for handle in handles:
        run = handle.refresh()
        assert (run.state, run.failures) == (State.SCHEDULED, 1), run.job
        (first, _) = handle.attempts()
        assert (first.outcome, first.error and first.error.code) == ("failed", "aborted"), run.job
    assert seen == {"async": "abort", "thread": "abort"}


def test_an_abort_is_final_where_the_job_says_so(app: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    jobs = one_of_each(app, gate, seen, grace=60, on_abort="fail")
    with working(app, slots=3) as at_work:
        handles = _aborted(app, at_work, gate, jobs)
    for handle in handles:
        run = handle.refresh()
        assert (run.state, run.attempt, run.error and run.error.code) == (State.FAILED, 1, "aborted"), run.job


def test_a_second_stop_aborts_what_the_first_lets_finish(app: App) -> None:
    gate, seen = Gate(), dict[str, Any]()
    jobs = one_of_each(app, gate, seen, grace=60, backoff=(3_600,))
    with working(app, slots=3) as at_work:
        handles = [job.enqueue() for job in jobs]
        gate.reached(2)
        until(lambda: handles[2].logs())
        asked = at_work.ask(grace=AGES)
        at_work.stop(drain=False)
        asked.result(DEADLINE)
    assert [handle.refresh().failures for handle in handles] == [1, 1, 1]
    assert seen == {"async": "abort", "thread": "abort"}


def test_a_stop_has_an_end_although_nothing_stops(app: App) -> None:
    gate = Gate()
    job = deaf(app, gate)
    with working(app, slots=2) as at_work:
        handles = [job.enqueue() for _ in range(2)]
        gate.reached(2)
        at_work.stop(drain=False, grace=0.3)
        assert [handle.refresh().failures for handle in handles] == [1, 1]
        gate.open()


@pytest.mark.parametrize("verb", ["claim", "wait", "report_many"])
def test_a_stop_has_an_end_although_the_store_never_answers(verb: str, app: App, ports: Ports) -> None:
    gate, asked = Gate(), threading.Event()
    job = waits(app, gate)

    async def never(*arguments: Any, **named: Any) -> None:
        asked.set()
        await asyncio.sleep(AGES)

    with working(app, slots=2, prepare=ports.watch) as at_work:
        job.enqueue()
        gate.reached(1)
        ports.loop.instead(verb, never)
        gate.open()
        app.enqueue_many([job.new() for _ in range(3)])
        assert asked.wait(DEADLINE)
        at_work.stop(grace=0.4)


def test_a_worker_told_to_run_until_idle_ends_when_nothing_is_left(stored: App, ports: Ports) -> None:
    job = noop(stored)
    handles = stored.enqueue_many([job.new() for _ in range(30)])
    assert stored.work(burst=True, slots=4) is False
    assert [handle.refresh().state for handle in handles] == [State.SUCCEEDED] * 30


def test_a_worker_is_known_by_what_it_can_do(stored: App) -> None:
    noop(stored)
    with working(stored, name="known", slots=5, tags=["gpu"], queues=["default", "mail"]):
        (seen,) = until(lambda: run_sync(stored.engine.records.workers.seen(0)))
    assert isinstance(seen, WorkerInfo)
    assert (seen.name, seen.slots, seen.tags, seen.queues, seen.jobs) == ("known", 5, ("gpu",), ("default", "mail"), ("noop",))
