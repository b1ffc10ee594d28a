"""A real worker for an app, in a thread with an event loop of its own: what tests of handlers begin with."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from windlass import App, Handle, State
from windlass.clock import ManualClock, SystemClock, nap
from windlass.errors import StoreBusy
from windlass.machine import ENDED
from windlass.model import Entry, Run, WorkerInfo
from windlass.store.base import SWEEP, run_sync
from windlass.store.sqlite.files import connect, disconnect
from windlass.worker import Worker

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which what is waited for has failed. Nothing that works comes near it."""

_CLOCK = SystemClock()


def until(condition: Callable[[], T | None]) -> T:
    """What a condition gives, as soon as it holds."""
    begun = _CLOCK.monotonic()
    while not (answer := condition()):
        waited = (_CLOCK.monotonic() - begun) / 1000
        assert waited < DEADLINE, "It did not come true in time."
        nap(min(0.002 + waited / 20, 0.05))  # seldom, once it takes long: what is waited for needs the cores
    return answer


def ended(handle: Handle[Any]) -> Run:
    """A run when it has ended, well or badly."""
    return until(lambda: run if (run := handle.refresh()).state in ENDED else None)


def in_state(handle: Handle[Any], state: State, attempt: int = 1) -> Run:
    """A run when an attempt of it is in a state."""
    return until(lambda: run if (run := handle.refresh()).state is state and run.attempt == attempt else None)


def history(app: App, handle: Handle[Any]) -> list[Entry]:
    """The journal of a run."""
    return run_sync(app.verbs.history(handle.id))


def moves(app: App, handle: Handle[Any]) -> list[str]:
    return [entry.move for entry in history(app, handle)]


class Gate:
    """Where handlers wait until the test lets them go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = threading.Event()
        self.came: list[str] = []
        self.inside = self.limit = 0

    def open(self) -> None:
        self._open.set()

    def _enter(self, actor: str) -> None:
        with self._lock:
            self.came.append(actor)
            self.inside += 1
            self.limit = max(self.limit, self.inside)

    def _leave(self) -> None:
        with self._lock:
            self.inside -= 1

    def block(self, actor: str = "") -> None:
        """Wait on a thread, deaf to everything but the test."""
        self._enter(actor)
        assert self._open.wait(DEADLINE)
        self._leave()

    def passed(self, actor: str, unless: Callable[[], bool]) -> bool:
        """Wait on a thread that looks up now and then; whether it came through."""
        self._enter(actor)
        until(lambda: self._open.is_set() or unless())
        self._leave()
        return self._open.is_set()

    async def wait(self, actor: str = "") -> None:
        """Wait in an event loop; a cancel goes through."""
        self._enter(actor)
        try:
            while not self._open.is_set():  # noqa: ASYNC110 - it is opened from another thread
                await asyncio.sleep(0.002)
        finally:
            self._leave()

    async def ignore(self, actor: str = "") -> None:
        """Wait in an event loop, deaf to cancels as well."""
        self._enter(actor)
        while not self._open.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.002)
        self._leave()

    def reached(self, number: int = 1) -> list[str]:
        """Those who have come, when there are that many."""
        until(lambda: len(self.came) >= number)
        return list(self.came)


class Working:
    """A worker at work."""

    def __init__(self, app: App, prepare: Callable[[Worker], None] | None, times: int, settings: dict[str, Any]) -> None:
        self._app, self._prepare, self._times, self._settings = app, prepare, times, settings
        self._ready, self.error, self.asked = threading.Event(), None, False
        self._thread = threading.Thread(target=self._live, name="test-worker", daemon=True)
        self._thread.start()
        until(lambda: self._ready.is_set() or not self._thread.is_alive())
        self.reraise()

    worker: Worker
    error: BaseException | None

    def _live(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        async with self._app.worker(**self._settings) as worker:
            if self._prepare is not None:
                self._prepare(worker)
            self.worker, self._loop = worker, asyncio.get_running_loop()
            self._loop.call_soon(self._ready.set)
            await asyncio.gather(*(worker.run() for _ in range(self._times)))

    def ask(self, *, drain: bool = True, grace: float | None = None) -> Future[None]:
        """Begin to stop, and go on here when the worker knows of it."""
        self.asked = True
        ms = None if grace is None else round(grace * 1000)
        asked: Future[None] = asyncio.run_coroutine_threadsafe(self.worker.stop(drain=drain, grace=ms), self._loop)
        until(lambda: self.worker.runtime.stopping)
        return asked

    def stop(self, *, drain: bool = True, grace: float | None = None) -> None:
        """Stop it; returns when the worker says that it has ended."""
        self.ask(drain=drain, grace=grace).result(DEADLINE)

    def join(self) -> None:
        """Wait until its thread, its loop and its connections are gone."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def reraise(self) -> None:
        if self.error is not None:
            raise self.error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


@contextmanager
def working(app: App, *, prepare: Callable[[Worker], None] | None = None, times: int = 1, **settings: Any) -> Iterator[Working]:
    """A worker that works beside the block, and is stopped at its end. `times` is how often it runs; None leaves a setting out."""
    settings = {"lease": 10, "grace": 5, "name": "w1", "slots": 1} | settings
    at_work = Working(app, prepare, times, {word: value for word, value in settings.items() if value is not None})
    try:
        yield at_work
    finally:
        if at_work.alive and not at_work.asked:
            at_work.stop(drain=False)
        at_work.join()
    at_work.reraise()


@contextmanager
def several(app: App, count: int, **settings: Any) -> Iterator[list[Working]]:
    """Several workers with names of their own."""
    with ExitStack() as stack:
        yield [stack.enter_context(working(app, name=f"w{n}", **settings)) for n in range(count)]


def later(app: App, ms: int) -> None:
    """Move the clock of an app on, and have those who sweep look."""
    assert isinstance(app.clock, ManualClock)
    app.clock.advance(ms)
    app.engine.hints.wake({SWEEP})


def ghost(app: App, *, lease: int) -> Run:
    """A run claimed by a worker that is never heard of again."""
    (run,) = run_sync(app.verbs.claim(WorkerInfo("ghost"), count=1, lease=lease))
    return run


# Programs


def pause_outside_a_commit(pid: int, app: App) -> None:
    """Pause a program where others can write: one that is paused while it commits to a file holds everybody up until it goes on."""
    while True:
        stop(pid)
        if _can_write(app):
            return
        os.kill(pid, signal.SIGCONT)
        nap(0.02)  # in which a commit ends


def stop(pid: int) -> None:
    """Pause a program, and come back when none of its threads runs any more: the signal alone leaves them going for some milliseconds."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _stopped(pid))


def _stopped(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():  # not Linux, which alone tells
        nap(0.1)
        return True
    try:
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
    except OSError:  # a thread that ends meanwhile
        return False


def _can_write(app: App) -> bool:
    if app.address.startswith("postgres"):
        return True
    try:
        db = connect(app.address, app.clock)
    except StoreBusy:
        return False
    try:
        db.set_busy_handler(None)
        db.execute("begin immediate; rollback")
    except apsw.BusyError:
        return False
    finally:
        disconnect(db)
    return True


class Program:
    """The program of `tests.worker_child`, which says line by line what it does."""

    def __init__(self, address: str, *words: str, faults: str = "") -> None:
        command = [sys.executable, "-m", "tests.worker_child", address, *words]
        environment = {**os.environ, "WINDLASS_FAULTS": faults}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def says(self) -> list[str]:
        """The words of its next line; none when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def tell(self, line: str) -> None:
        """Let the handler that waits go on, and return this."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(DEADLINE)


@contextmanager
def program(address: str, *words: str, faults: str = "") -> Iterator[Program]:
    """A program with a worker, killed at the end of the block if it still lives."""
    child = Program(address, *words, faults=faults)
    try:
        yield child
    finally:
        child.signal(signal.SIGKILL)
        child.wait()
        for pipe in (child.process.stdin, child.process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
