"""A worker on a machine that has no thread or process left: it claims nothing, says so, and costs the runs nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.test_executors import command, nothing_stays  # noqa: F401 - every test here is watched as well
from tests.worker.test_worker import Ports, at
from tests.workers import DEADLINE, ended, history, until, working
from windlass import App, State
from windlass.machine import Requeue
from windlass.model import WorkerInfo
from windlass.store.base import run_sync
from windlass.worker import Worker, shortage
from windlass.worker.shortage import Shortage, ShortageState, needed

jobs = App(":memory:")
"""The app of the jobs below, which are imported by name in another process."""


@jobs.job(name="thread", max_attempts=1, max_requeues=0)
def thread() -> int:
    return 1


@jobs.job(name="process", kind="process", max_attempts=1, max_requeues=0)
def process() -> int:
    return 1


jobs.command("command", ["echo", "1"], max_attempts=1, max_requeues=0)


@pytest.fixture(params=["file", "postgres"])  # one in memory tells nobody how it is doing
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(shortage, "FIRST", 0.01)
    monkeypatch.setattr(shortage, "LONGEST", 0.02)
    with App(at(request.param, tmp_path, request)) as app:
        app.jobs = jobs.jobs
        yield app


class System:
    """Refuses threads or processes for handlers, as long as it has none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused, self.has_some = 0, False
        self._patch = monkeypatch

    def without(self, need: str) -> None:
        if need == "thread":
            self._patch.setattr(threading.Thread, "start", self._thread(threading.Thread.start))
        else:
            self._patch.setattr(subprocess, "Popen", self._process(subprocess.Popen))

    def _thread(self, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        def few(thread: threading.Thread) -> None:
            if thread.name.startswith("windlass-work") and not self.has_some:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        return few

    def _process(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def few(*given: Any, **how: Any) -> Any:
            if not self.has_some:
                self.refused += 1
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return start(*given, **how)

        return few


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


@pytest.mark.parametrize(("job", "need"), [("thread", "thread"), ("process", "process"), ("command", "process")])
def test_a_worker_that_cannot_execute_claims_nothing_until_it_can_and_counts_no_failure(
    job: str, need: str, app: App, system: System, caplog: pytest.LogCaptureFixture
) -> None:
    ports = Ports()
    system.without(need)
    handles = app.enqueue_many([(app.jobs[job].new()) for _ in range(5)])
    with caplog.at_level(logging.WARNING, "windlass.worker"), working(app, slots=3, prepare=ports.watch):
        until(lambda: system.refused >= 10)
        claims = ports.loop.calls["claim"]
        until(lambda: any(worker.metrics.get("unable_ms") for worker in run_sync(app.verbs.workers())))
        assert [(one.code, one.severity) for one in run_sync(app.verbs.doctor()) if one.code == "cannot_execute"] == [
            ("cannot_execute", "problem")
        ]
        until(lambda: system.refused >= 20)
        assert ports.loop.calls["claim"] == claims  # none of those tries took anything
        assert {handle.refresh().state for handle in handles} == {State.QUEUED}
        system.has_some = True
        runs = [ended(handle) for handle in handles]
        until(lambda: not any(worker.metrics.get("unable_ms") for worker in run_sync(app.verbs.workers())))
    assert {(run.state, run.attempt, run.requeues, run.failures) for run in runs} == {(State.SUCCEEDED, 1, 0, 0)}
    said = [record.getMessage() for record in caplog.records if "execute" in record.getMessage()]
    assert [text.split(",")[0].split(":")[0] for text in said] == ["The worker claims nothing", "The worker can execute again"]


def test_what_a_stopping_worker_has_claimed_and_not_begun_counts_no_requeue(app: App) -> None:
    """The claim is answered when the worker stops already."""
    ports, claimed = Ports(), threading.Event()

    def prepare(worker: Worker) -> None:
        ports.watch(worker)
        real: Any = ports.loop._port

        async def late(*given: Any, **how: Any) -> Any:
            runs = await real.claim(*given, **how)
            if runs:
                claimed.set()
            while runs and not worker.runtime.stopping:  # noqa: ASYNC110 - it is told so from another thread
                await asyncio.sleep(0.002)
            return runs

        ports.loop.instead("claim", late)

    handle = app.enqueue("thread")
    with working(app, prepare=prepare) as at_work:
        assert claimed.wait(DEADLINE)
        at_work.stop()
    run = handle.refresh()
    assert (run.state, run.attempt, run.requeues, run.worker) == (State.QUEUED, 1, 0, None)
    assert [entry.move for entry in history(app, handle)][-1] == "requeue"


def test_a_give_back_without_a_beginning_that_is_repeated_gets_the_same_answer(app: App) -> None:
    app.verbs  # noqa: B018 - the jobs are registered with it
    handle = app.enqueue("thread")
    (held,) = run_sync(app.verbs.claim(WorkerInfo("w1"), count=1))
    report = Requeue(token=held.token, begun=False)
    first, again = (run_sync(app.engine.report(held.id, report)) for _ in range(2))
    assert (first.state, first.repeated, again.state, again.repeated) == (State.QUEUED, False, State.QUEUED, True)
    (other,) = run_sync(app.verbs.claim(WorkerInfo("w2"), count=1))
    assert run_sync(app.engine.report(held.id, report)).repeated
    assert (other.id, handle.refresh().worker) == (held.id, "w2")  # which keeps it


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_command_for_which_the_system_has_no_process_has_not_begun(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", none)
    with pytest.raises(Shortage):
        command("true").run()


def test_other_errors_are_the_runs_own() -> None:
    for error in (FileNotFoundError(errno.ENOENT, "gone"), RuntimeError("of the handler")):
        with pytest.raises(type(error)), needed("process"):
            raise error


def test_tries_are_further_apart_each_time_until_one_has_succeeded() -> None:
    class Half:
        def monotonic(self) -> int:
            return 0

        def chance(self) -> float:
            return 1.0

    state: Any = ShortageState(Half())  # type: ignore[arg-type]
    pauses = list[float]()
    at: Callable[[], float] = lambda: state.retry_at  # noqa: E731
    for _ in range(7):
        before = at()
        state.record(Shortage("thread", "test"), before)
        state.record(Shortage("process", "test"), before)  # claimed together with the first
        pauses.append(at() - before)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    state.end()
    assert not state.needs
    state.record(Shortage("thread", "test"), before := at())
    assert at() - before == 30  # to be able to start one is not yet to have executed
    state.had("thread")
    state.record(Shortage("thread", "test"), before := at())
    assert at() - before == 1


REAL = """
import asyncio, resource, sys, threading
from pathlib import Path
from windlass import App
from windlass.worker import shortage

shortage.FIRST = 0.01
app = App(sys.argv[1])
free = threading.Event()

@app.job(name="plain", max_attempts=1, max_requeues=0)
def plain():
    free.wait(60)

handles = app.enqueue_many([plain.new() for _ in range(20)])
def narrow():
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    threading.stack_size(1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (size + (5 << 29), resource.RLIM_INFINITY))

def widen(worker):
    while not worker.runner.shortage.needs:
        free.wait(0.01)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    free.set()

async def main():
    async with app.worker(slots=8) as worker:
        start = worker.heartbeat.start

        def begin():
            start()
            threading.Thread(target=widen, args=(worker,), daemon=True).start()
            narrow()

        worker.heartbeat.start = begin
        await worker.run(until_idle=True)

asyncio.run(main())
print(sorted({(run.state.value, run.attempt, run.requeues, run.failures) for run in (handle.refresh() for handle in handles)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on a process's address space is real on Linux only")
def test_a_real_limit_costs_no_run_anything(tmp_path: Path) -> None:
    """Threads with large stacks in an address space that has room for a few of them; what is lacking is given when it was missed."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path / "windlass.db")], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.stdout.strip() == "[('succeeded', 1, 0, 0)]", done.stderr
    assert "The worker claims nothing" in done.stderr
