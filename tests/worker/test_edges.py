"""The edges of a worker's promises: what one handler says or does must not cost others their leases, nor the worker its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.worker.test_executors import alive, nothing_stays  # noqa: F401 - every test here is watched as well
from tests.worker.test_worker import AGES, Ports, error, waits
from tests.workers import DEADLINE, Gate, ended, in_state, moves, until, working
from windlass import App, AsyncApp, Context, Fail, Handle, Job, State
from windlass.app.working import drive
from windlass.clock import ManualClock
from windlass.errors import BadInput, StoreUnreachable, TooLarge
from windlass.model import Limits, Progress
from windlass.store.base import run_sync
from windlass.worker import Worker, processes, reporting
from windlass.worker.context import progress_text

T = TypeVar("T")

SWELLS = "\x1b" * 900
"""Within the bounds of a message, until JSON writes each of its characters with six."""

in_processes = App(":memory:")
"""The app of the functions below, which are imported by name in another process."""


@pytest.fixture
def app() -> Iterator[App]:
    """An app in memory."""
    with App(":memory:") as app:
        yield app


@pytest.fixture
def ports() -> Ports:
    return Ports()


@pytest.fixture
def spawned() -> Iterator[App]:
    with in_processes:
        yield in_processes


def in_time(main: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, unless it hangs."""
    return asyncio.run(asyncio.wait_for(main, DEADLINE))


# Progress


@pytest.mark.parametrize("character", ["\x1b", "\0", "\ud800", '"', "\\", "\x7f", "\u2028", "ü", "\U0001f600"], ids=ascii)
@pytest.mark.parametrize("length", [1, 500, 1_000, 100_000])
def test_progress_is_within_the_limit_however_json_writes_it(character: str, length: int) -> None:
    text = progress_text(0.5, character * length)
    assert len(text.encode()) <= Limits().progress
    assert "\\u0000" not in text
    told = msgspec.json.decode(text, type=Progress)
    assert told.fraction == 0.5
    assert told.message


def test_progress_that_swells_costs_nobody_a_lease(app: App, ports: Ports) -> None:
    gate = Gate()
    bystander = waits(app, gate)

    @app.job(name="tells")
    async def tells(ctx: Context) -> None:
        ctx.progress(0.5, SWELLS)
        await gate.wait()

    with working(app, lease=0.6, slots=2, prepare=ports.watch):
        handles: list[Handle[Any]] = [bystander.enqueue(), tells.enqueue()]
        gate.reached(2)
        beats = ports.heartbeat.calls["beat"]
        until(lambda: ports.heartbeat.calls["beat"] >= beats + 6)  # two leases
        gate.open()
        runs = [ended(handle) for handle in handles]
    assert [(run.state, run.attempt) for run in runs] == [(State.SUCCEEDED, 1)] * 2
    progress = handles[1].progress
    assert progress is not None
    assert (progress.fraction, (progress.message or "")[:10]) == (0.5, SWELLS[:10])


def test_progress_that_swells_told_as_the_last_word_does_not_end_the_worker(app: App) -> None:
    @app.job(name="tells")
    async def tells(ctx: Context) -> None:
        ctx.progress(0.5, SWELLS)

    with working(app):
        handle = tells.enqueue()
        assert ended(handle).state is State.SUCCEEDED
        assert handle.progress is not None


def refuse_progress(ports: Ports, worker: Worker) -> None:
    """A store that takes beats, but no word of progress."""
    ports.watch(worker)
    for port in (ports.loop, ports.heartbeat):
        beat = port._port.beat

        async def picky(held: Any, *, lease: int, progress: dict[Any, str], beat: Any = beat) -> Any:
            if progress:
                raise TooLarge("Refused, for the test.", hint="Say less.")
            return await beat(held, lease=lease, progress=progress)

        port.instead("beat", picky)


def test_progress_that_the_store_refuses_is_dropped_and_the_leases_are_renewed(app: App, ports: Ports) -> None:
    gate = Gate()
    bystander = waits(app, gate)

    @app.job(name="tells")
    async def tells(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        await gate.wait()
        ctx.progress(1.0, "all")  # the last word is refused as well, and the report is not

    with working(app, lease=0.6, slots=2, prepare=lambda worker: refuse_progress(ports, worker)):
        handles: list[Handle[Any]] = [bystander.enqueue(), tells.enqueue()]
        gate.reached(2)
        until(lambda: ports.heartbeat.calls["beat"] >= 8)
        gate.open()
        runs = [ended(handle) for handle in handles]
    assert [(run.state, run.attempt, run.progress) for run in runs] == [(State.SUCCEEDED, 1, None)] * 2


# Claims


def test_a_lease_counts_from_the_claim_that_was_answered(ports: Ports) -> None:
    """The store is away for a lease and more while the worker asks for work; what it then gets is held for all of its lease."""
    clock, through, why = ManualClock(), threading.Event(), list[str | None]()

    async def out(*_: Any, **__: Any) -> Any:
        clock.advance(1_000)
        ports.loop.instead("claim", None)
        raise error(StoreUnreachable)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        ports.loop.instead("claim", out)
        ports.heartbeat.fail("beat", *(error(StoreUnreachable) for _ in range(1_000)))  # so that no beat can mend the count

    with App(":memory:", clock=clock) as app:

        @app.job(name="slow")
        async def slow(ctx: Context) -> None:
            try:
                while not through.is_set():
                    ctx.beat()
                    await asyncio.sleep(0.002)
            finally:
                why.append(ctx.why)

        handle = slow.enqueue()
        with working(app, lease=0.6, prepare=prepare):
            until(lambda: ports.heartbeat.calls["beat"] >= 10 or why)  # a tenth of a lease lies between them: it was looked at often enough
            through.set()
            until(lambda: why)
            assert why == [None]
            run = ended(handle)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)


def test_more_starts_than_one_call_takes(app: App, ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "SHORT", AGES)
    limit = Limits().report
    count, came, through = limit + 1, list[int](), asyncio.Event()

    @app.job(name="waits")
    async def wait() -> None:
        came.append(1)
        await through.wait()

    handles = app.enqueue_many([wait.new() for _ in range(count)])
    with working(app, slots=count, prepare=ports.watch) as at_work:
        until(lambda: len(came) == count)
        monkeypatch.setattr(reporting, "SHORT", 0.0)
        at_work.worker.runtime.call_soon(at_work.worker.runner.starts.send_due)
        until(lambda: len(ports.loop.answers["start_many"]) == 2 or not at_work.alive)
        at_work.reraise()
        states = {handle.refresh().state for handle in handles}
        at_work.worker.runtime.call_soon(through.set)
        assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
    assert states == {State.RUNNING}
    assert sorted(len(due) for due, _ in ports.loop.asked["start_many"]) == [1, limit]


def test_a_burst_works_on_what_its_handlers_wait_for() -> None:
    async def main() -> list[Any]:
        async with AsyncApp(":memory:") as app:

            @app.job(name="child")
            async def child(n: int) -> int:
                return n

            @app.job(name="parent")
            async def parent(n: int) -> int:
                handle = await child.enqueue(n)
                return 10 * await handle.wait()

            handles = [await parent.enqueue(n) for n in (1, 2)]
            async with app.worker(slots=4) as worker:
                await worker.run(until_idle=True)
            return [await handle.wait() for handle in handles]

    assert in_time(main()) == [10, 20]


# Lost leases


@in_processes.job(kind="process", grace=AGES, backoff=(0,))
def deaf_at_first(folder: str) -> None:
    if (note := Path(folder, "pid")).exists():
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note.write_text(f"{os.getpid()}\n")
    threading.Event().wait()


DEAF = """
test -e "$FOLDER/pid" && exit
trap "" TERM
echo $$ > "$FOLDER/pid"
while :; do sleep 0.05; done
"""
deaf_command = in_processes.command("deaf", ["sh", "-c", DEAF], grace=AGES, backoff=(0,))


@pytest.mark.parametrize("job", [deaf_at_first, deaf_command], ids=["process", "command"])
def test_a_lost_lease_ends_by_force_what_does_not_stop_whatever_its_grace(
    job: Job[..., Any],
    spawned: App,
    ports: Ports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    handle = job.enqueue(folder=str(tmp_path))

    def pid() -> int | None:
        with suppress(FileNotFoundError, IndexError):
            return int((tmp_path / "pid").read_text().split("\n")[-2])
        return None

    async def away(*_: Any, **__: Any) -> Any:
        raise error(StoreUnreachable)

    with working(spawned, lease=1.2, prepare=ports.watch) as at_work:
        number = until(pid)
        assert alive(number)
        ports.heartbeat.instead("beat", away)
        until(lambda: not alive(number))  # its own grace is an hour
        ports.heartbeat.instead("beat", None)
        run = ended(handle)
        assert not at_work.worker.needs_restart
    assert (run.state, run.attempt) == (State.SUCCEEDED, 2)


# What outlives an attempt

_left: list[Context] = []
"""In the process of the functions: the contexts of attempts that are over."""


@in_processes.job(kind="process")
def leaves_its_context(ctx: Context) -> int:
    _left.append(ctx)
    return os.getpid()


@in_processes.job(kind="process")
def speaks_for_those_before(ctx: Context) -> int:
    for before in _left:
        before.progress(0.9, "of another run")
        before.beat()
    return os.getpid()


@in_processes.job(kind="process")
def leaves_a_thread(ctx: Context) -> int:
    begun = threading.Event()

    def speak() -> None:
        while True:
            ctx.progress(0.9, "of another run " + "x" * 900)
            begun.set()

    threading.Thread(target=speak, daemon=True).start()
    assert begun.wait(DEADLINE)
    return os.getpid()


def test_the_context_of_an_attempt_that_is_over_does_not_speak_for_the_next(spawned: App) -> None:
    with working(spawned, slots=1):
        first = ended(leaves_its_context.enqueue())
        handle = speaks_for_those_before.enqueue()
        second = ended(handle)
    assert (first.state, second.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert first.output == second.output  # in the same process
    assert second.progress is None


def test_a_thread_that_an_attempt_leaves_behind_does_not_break_the_next(spawned: App) -> None:
    with working(spawned, slots=1):
        first = ended(leaves_a_thread.enqueue())
        others = [ended(speaks_for_those_before.enqueue()) for _ in range(5)]
    assert [(run.state, run.output) for run in others] == [(State.SUCCEEDED, first.output)] * 5


def test_what_is_left_in_a_pipe_is_no_more_than_a_pipe_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who writes faster than it is read keeps nobody busy for ever."""
    (mine, theirs), reads, read = os.pipe(), list[int](), os.read

    def never_empty(source: int, size: int) -> bytes:
        if source != mine:
            return read(source, size)
        reads.append(size)
        assert len(reads) < 1_000, "It reads on and on."
        return b"x" * size

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "read", never_empty)
            assert len(processes.rest_of(mine)) == processes.CHUNK * processes.PIPE
        os.write(theirs, b"the rest")
        assert processes.rest_of(mine) == b"the rest"
    finally:
        os.close(theirs)
        os.close(mine)


# Commands


@pytest.mark.parametrize("name", ["SIGPIPE", "SIGXFSZ"])
def test_a_command_dies_of_the_signals_that_python_ignores(name: str, app: App) -> None:
    command = app.command("dies", ["sh", "-c", f"kill -{name[3:]} $$; echo it lives"], max_attempts=1)
    with working(app):
        run = ended(command.enqueue())
    assert run.error is not None
    assert (run.state, run.error.code, run.output) == (State.FAILED, "killed", None)
    assert name in run.error.message


def test_what_writes_into_a_pipe_that_nobody_reads_ends_without_a_word(app: App) -> None:
    command = app.command("pipeline", ["sh", "-c", "(yes; echo yes ended with $? >&2) | head -n 1"])
    with working(app):
        handle = command.enqueue()
        run = ended(handle)
    assert (run.state, run.output) == (State.SUCCEEDED, '"y"')
    assert [line.text for line in handle.logs()] == [f"yes ended with {128 + signal.SIGPIPE}"]


# Ends


def test_a_worker_whose_task_is_cancelled_gives_back_what_runs_and_reports_what_has_ended(ports: Ports) -> None:
    async def main() -> tuple[list[Any], int]:
        async with AsyncApp(":memory:") as app:
            at_work = asyncio.Event()

            @app.job(name="runs")
            async def runs() -> None:
                at_work.set()
                await asyncio.sleep(AGES)

            @app.job(name="ends")
            async def ends() -> str:
                await at_work.wait()
                return "done"

            handles: list[Any] = [await runs.enqueue(), await ends.enqueue()]
            async with app.worker(slots=2) as worker:
                ports.watch(worker)
                ports.loop.fail("report_many", error(StoreUnreachable), error(StoreUnreachable))
                working = asyncio.create_task(worker.run())
                while not ports.loop.asked["report_many"]:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.001)
                working.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await working
                left = len(asyncio.all_tasks()) - 1
            return [await handle.refresh() for handle in handles], left

    (running, finished), left = in_time(main())
    assert (running.state, running.failures, running.error) == (State.QUEUED, 0, None)
    assert (finished.state, finished.output) == (State.SUCCEEDED, '"done"')
    assert left == 1  # this one, which is waited for with a deadline


@pytest.mark.parametrize("said", ["argument", "environment"])
def test_a_worker_for_some_jobs_cannot_fail_those_of_others(said: str, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job(name="mail")
    def mail() -> None: ...

    @app.job(name="report")
    def report() -> None: ...

    handle, settings = report.enqueue(), dict[str, Any](jobs=["mail"])
    if said == "environment":
        monkeypatch.setenv("WINDLASS_JOBS", "mail")
        settings = {}
    with pytest.raises(BadInput, match="some jobs only"):
        app.work(burst=True, on_unknown="fail", **settings)
    assert handle.refresh().state is State.QUEUED


def test_the_end_of_a_loop_does_not_wait_for_a_thread_that_hangs() -> None:
    begun, hang, answers = threading.Event(), threading.Event(), list[str]()

    def hangs() -> None:
        begun.set()
        assert hang.wait(2 * DEADLINE)

    async def main() -> str:
        waiting = asyncio.ensure_future(asyncio.to_thread(hangs))
        while not begun.is_set():  # noqa: ASYNC110 - it is set on another thread
            await asyncio.sleep(0.001)
        waiting.cancel()
        return "ended"

    driver = threading.Thread(target=lambda: answers.append(drive(main())), daemon=True)
    driver.start()
    driver.join(DEADLINE)
    before = list(answers)
    hang.set()
    driver.join()
    assert before == ["ended"]


HANGS = """
import asyncio, pathlib, threading
from windlass import App

app = App("windlass.db")

def hang():
    pathlib.Path("reached").touch()
    threading.Event().wait()

@app.job()
async def slow():
    await asyncio.to_thread(hang)
"""


def test_a_thread_that_hangs_does_not_hold_up_the_end_of_a_worker_that_drains(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    command = [sys.executable, "-m", "windlass", "work", "hangs:app", "--grace", "1"]
    with App(tmp_path / "windlass.db") as app:
        run_sync(app.verbs.define("slow"))
        handle = app.enqueue("slow")
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as worker:
            try:
                until(lambda: (tmp_path / "reached").exists())
                in_state(handle, State.RUNNING)
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(DEADLINE) == 0
            finally:
                worker.kill()
        run = handle.refresh()
        assert (run.state, run.failures, run.error) == (State.QUEUED, 0, None)
        assert moves(app, handle)[-1] == "requeue"


# The second part of the reading


@pytest.mark.parametrize("slots", [1, 4])
def test_a_claim_whose_answer_was_lost_is_found_again(app: App, ports: Ports, slots: int) -> None:
    ran = list[str]()

    @app.job(name="counted")
    async def counted(ctx: Context) -> None:
        ran.append(ctx.run)

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        real = worker.runtime.port

        async def committed_and_lost(*given: Any, **how: Any) -> Any:
            ports.loop.instead("claim", None)
            assert await real.claim(*given, **how)
            raise error(StoreUnreachable)

        ports.loop.instead("claim", committed_and_lost)

    handle = counted.enqueue()
    with working(app, slots=slots, prepare=prepare):
        run = ended(handle)
    assert (run.attempt, run.failures, ran) == (1, 0, [run.id])


def test_a_code_that_cannot_be_kept_does_not_change_the_verdict(app: App) -> None:
    @app.job(name="fails")
    async def fails() -> None:
        raise Fail("no", retry=False, code="a\nb")

    with working(app):
        run = ended(fails.enqueue())
    assert (run.state, run.failures, run.error and run.error.message) == (State.FAILED, 1, "no")


def test_a_commands_own_backoff_is_asked(app: App) -> None:
    asked = list[tuple[int, str]]()

    def soon(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return 0

    job = app.command("broken", [sys.executable, "-c", "raise SystemExit(3)"], max_attempts=2, backoff=soon)
    with working(app):
        run = ended(job.enqueue())
    assert run.state is State.FAILED
    assert asked[0] == (1, "The process exited with status 3.")


def test_a_worker_keeps_to_the_limits_of_its_port() -> None:
    with App(":memory:", limits=Limits(claim=2, report=3, lines_per_call=2)) as app:

        @app.job(name="talks")
        async def talks(ctx: Context) -> None:
            for n in range(5):
                ctx.logger.info("line %d", n)

        handles = app.enqueue_many(talks.new() for _ in range(9))
        with working(app, slots=8):
            assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
        assert [len(handle.logs()) for handle in handles] == [5] * 9


def test_an_embedded_worker_that_needs_a_restart_is_replaced(app: App) -> None:
    gate = Gate()

    @app.job(name="deaf", timeout=0.05, grace=0, max_attempts=1)
    def deaf(ctx: Context) -> None:
        gate.block(ctx.run)

    @app.job(name="next")
    async def following() -> int:
        return 1

    async def main() -> int:
        async with app.working(slots=1):
            left = deaf.enqueue()
            assert (await asyncio.to_thread(ended, left)).state is State.FAILED
            return await asyncio.to_thread(following.enqueue().wait, DEADLINE)

    try:
        assert asyncio.run(main()) == 1
    finally:
        gate.open()


def test_a_wait_counts_the_time_that_reading_takes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    job, clock = waits(app, Gate()), ManualClock()
    handle, read = job.enqueue(), app.engine.get
    monkeypatch.setattr(app.engine, "clock", clock)

    async def slowly(run_id: str) -> Any:
        clock.advance(400)
        return await read(run_id)

    monkeypatch.setattr(app.engine, "get", slowly)
    with pytest.raises(TimeoutError):
        handle.wait(timeout=1)
    assert clock.ticks <= 2_000
