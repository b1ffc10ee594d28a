"""Functions in processes of their own: spawned, used again, replaced after a while, and killed when necessary."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from windlass.api.problems import problem_of
from windlass.errors import LeaseLost, StoreUnreachable, WindlassError
from windlass.machine import Fail, Report
from windlass.payload import reader
from windlass.worker.context import Call, Context, Sink
from windlass.worker.handlers import Handler
from windlass.worker.messages import (
    REPORTS,
    BeatRequest,
    BeginRequest,
    BegunEvent,
    EndedEvent,
    FromProcess,
    LogEvent,
    ProgressEvent,
    RefusedReply,
    Reply,
    Request,
    ResultsReply,
    ResultsRequest,
    StepReply,
    StepsReply,
    StepsRequest,
    StopRequest,
    StoreStepRequest,
    ToProcess,
    send,
)
from windlass.worker.processes import CHUNK, LONGEST_LINE, Lines, Memory, death, kill_group, rest_of, text_of, wait_for
from windlass.worker.shortage import STATUS, Shortage, needed

CHECK_EVERY = 0.5  # seconds of silence after which a process is checked for life
END_WITHIN = 5.0  # seconds for a process to end by itself once its socket is closed


class ChildProcess:
    """A process that runs functions, one at a time."""

    def __init__(self, memory: int) -> None:
        self.memory, self.runs = memory, 0
        self._read_message, self._lines = reader(FromProcess), Lines()
        self._messages: deque[ToProcess] = deque()
        self._sending = threading.Lock()
        with needed("process"):
            self._socket, child_end = socket.socketpair()
            self.process = self._start(child_end)

    def _start(self, child_end: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "windlass.worker.child", str(child_end.fileno()), str(self.memory)]
        with child_end:
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(child_end.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self._socket.close()
                raise

    def begin(self, request: BeginRequest) -> None:
        """Start an attempt; `work` follows it."""
        self.runs += 1
        self._send(request)

    def _send(self, message: ToProcess) -> None:
        """Send a message. While another thread is sending, the message is left to that thread, so that nothing blocks here."""
        self._messages.append(message)
        while self._messages and self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError, IndexError):  # it is dead; `work` finds out how it died
                    send(self._socket, self._messages.popleft())
            finally:
                self._sending.release()

    def work(self, sink: Sink) -> Report | None:
        """Pass on its output until the attempt has ended; None when it was dead before that began, having idled since an earlier run."""
        memory, begun = Memory(), False
        for message in self._receive(sink):
            match message:
                case BegunEvent():
                    begun = True
                case ResultsRequest() | StepsRequest() | StoreStepRequest() as request:
                    self._send(_reply(sink, request) if begun else _TOO_LATE)
                case _ if not begun:
                    continue  # from a thread that an earlier run has left running
                case LogEvent(text):
                    sink.line(text)
                case ProgressEvent(text):
                    sink.progress(text)
                case BeatRequest():
                    sink.beat()
                case EndedEvent(name, report):
                    return reader(REPORTS[name])(report)
        self.end()
        if not begun and self.process.returncode == STATUS:
            raise Shortage("process", "a new one could not begin")
        if not begun and self.runs > 1:
            return None
        return Fail(error=death(self.process.returncode, memory))

    def _receive(self, sink: Sink) -> Iterator[FromProcess]:
        """Its messages until it has ended the attempt or itself; what it prints goes to the log."""
        assert self.process.stdout is not None
        output, lines = self.process.stdout.fileno(), Lines(LONGEST_LINE)
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            ready.register(output, selectors.EVENT_READ)
            while True:
                sources = {key.fd for key, _ in ready.select(timeout=CHECK_EVERY)}
                # A process that it has forked may keep the socket open for ever.
                gone = self._socket.fileno() not in sources and wait_for(self.process, 0)
                if output in sources:
                    data = os.read(output, CHUNK)
                    if not data:
                        ready.unregister(output)
                    _pass_on(lines.feed(data), sink)
                if self._socket.fileno() not in sources and not gone:
                    continue
                data = b"" if gone else _read(self._socket)
                for line in self._lines.feed(data):
                    message = self._read_message(line)
                    if isinstance(message, EndedEvent):
                        _pass_on([*lines.feed(rest_of(output)), *lines.end()], sink)
                    yield message
                if not data:
                    _pass_on([*lines.feed(rest_of(output)), *lines.end()], sink)
                    return

    def ask_to_stop(self, why: str) -> None:
        self._send(StopRequest(why))

    def kill(self) -> None:
        kill_group(self.process, signal.SIGKILL)

    def end(self) -> None:
        """Close its socket, upon which it ends. What it has started ends with it."""
        self._socket.close()
        wait_for(self.process, END_WITHIN)
        self.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


_TOO_LATE = RefusedReply(problem_of(LeaseLost("The attempt has ended.", hint="Wait for all threads before the handler ends.")))


def _reply(sink: Sink, request: Request) -> Reply:
    try:
        match request:
            case ResultsRequest(after, count):
                return ResultsReply(sink.results(after, count).result())
            case StepsRequest(after, count):
                return StepsReply(sink.steps(after, count).result())
            case StoreStepRequest(key, output):
                return StepReply(sink.store_step(key, output).result())
    except WindlassError as error:
        return RefusedReply(problem_of(error))
    except Exception as error:
        return RefusedReply(problem_of(StoreUnreachable(str(error), hint="The run is tried again.")))


def _pass_on(lines: list[bytes], sink: Sink) -> None:
    for line in lines:
        sink.line(text_of(line))


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(CHUNK)
    except OSError:
        return b""


class ProcessPool:
    """The idle processes of a worker, by their memory limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, list[ChildProcess]] = defaultdict(list)
        self._closed = False

    def take(self, memory: int) -> ChildProcess:
        """A process with this limit (MiB; 0 is none)."""
        with self._lock:
            idle, self._idle[memory] = self._idle[memory], []
        living = [child for child in idle if not wait_for(child.process, 0)]
        with self._lock:
            kept = [] if self._closed else living[1:]
            self._idle[memory] += kept
        for child in idle:
            if child not in (*living[:1], *kept):
                child.end()
        return living[0] if living else ChildProcess(memory)

    def give_back(self, child: ChildProcess, recycle: int) -> None:
        """Keep it for the next run, unless it is due to be replaced or is dead."""
        with self._lock:
            keep = not self._closed and child.runs < recycle and not wait_for(child.process, 0)
            if keep:
                self._idle[child.memory].append(child)
        if not keep:
            child.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [child for children in self._idle.values() for child in children]
            self._idle.clear()
        for child in idle:
            child.end()


class ProcessExecutor:
    """A function in a process of its own."""

    def __init__(self, handler: Handler, context: Context, call: Call, sink: Sink, pool: ProcessPool) -> None:
        self.handler, self.context, self.call, self.sink, self.pool = handler, context, call, sink, pool
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._killed = False

    def run(self) -> Report:
        while (report := self._run_in(self.pool.take(self.handler.memory or 0))) is None:
            pass
        return report

    def _run_in(self, child: ChildProcess) -> Report | None:
        assert self.handler.place is not None
        path = [str(entry) for entry in sys.path]  # there may be a Path among them
        try:
            with self._lock:
                self._child = child
                child.begin(BeginRequest(self.handler.place, self.call, path, self.context.why))
                if self._killed:
                    child.kill()
            return child.work(self.sink)
        finally:
            with self._lock:
                self._child = None
            # A process that was asked to stop may not have received that yet.
            self.pool.give_back(child, 0 if self.context.why is not None else self.handler.recycle)

    def ask_to_stop(self, why: str) -> None:
        self._with_child(lambda child: child.ask_to_stop(why), before=lambda: self.context.ask_to_stop(why))

    def kill(self) -> bool:
        def set_killed() -> None:
            self._killed = True

        self._with_child(ChildProcess.kill, before=set_killed)
        return True

    def _with_child(self, do: Callable[[ChildProcess], None], before: Callable[[], None]) -> None:
        with self._lock:
            before()
            if self._child is not None:
                do(self._child)
