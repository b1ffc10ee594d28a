"""Functions in processes of their own: spawned, used again, replaced after a while, and killed when they must be."""

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
from pathlib import Path

import msgspec

from windlass.clock import nap
from windlass.machine import Fail, Refuse, Report, Snooze, Succeed
from windlass.model import Failure, Result
from windlass.worker.context import Call, Context, Sink
from windlass.worker.handlers import Handler, Place
from windlass.worker.shortage import STATUS, Shortage, needed

CHUNK, PIPE = 65_536, 16  # bytes, and as many of them as a pipe is ever made to hold
LONGEST_LINE = 8 * 1024
LOOK_EVERY = 0.5  # seconds of silence after which it is looked whether a process lives
PATIENCE = 5.0  # seconds for a process to end by itself once nobody talks to it


REPORTS: dict[str, type[Report]] = {kind.name: kind for kind in (Succeed, Fail, Snooze, Refuse)}


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """To the process: work on this."""

    place: Place
    call: Call
    path: list[str]
    stop: str | None = None  # it was asked to stop before it began


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To the process: stop, please."""

    why: str


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """From the process: it has heard, and begins."""


class Line(msgspec.Struct, frozen=True, tag="line"):
    """From the process: a line for the run's log."""

    text: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """From the process: how far it is."""

    text: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """From the process: renew the lease now."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """From the process: what became of the runs before this one, behind one of them?"""

    after: str | None
    count: int


class Told(msgspec.Struct, frozen=True, tag="told"):
    """To the process: the answer to what it last asked, or why there is none."""

    results: list[Result] = []
    problem: str | None = None


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """From the process: how the attempt ended."""

    name: str
    report: msgspec.Raw


Order = Begin | Stop | Told
Word = Begun | Line | Progress | Beat | Ask | Ended

encode = msgspec.json.Encoder().encode


def send(to: socket.socket, message: Order | Word) -> None:
    """One message, as a line of JSON."""
    to.sendall(encode(message) + b"\n")


class Lines:
    """Bytes in, whole lines out; one that grows too long is cut into pieces."""

    def __init__(self, longest: int | None = None) -> None:
        self._rest, self._longest = b"", longest

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._longest is not None and len(self._rest) > self._longest:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def end(self) -> list[bytes]:
        """What is left when nothing more comes."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def text_of(line: bytes) -> str:
    """A line of output as it is kept."""
    return line.decode("utf-8", "replace").rstrip("\r")


class Memory:
    """Whether the kernel has killed anything for want of memory since this was made."""

    def __init__(self) -> None:
        self._before = _oom_kills()

    def ran_out(self) -> bool:
        return _oom_kills() > self._before


def _oom_kills() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def death(returncode: int, memory: Memory, detail: str | None = None) -> Failure:
    """What ended a process that gave no other word."""
    if returncode >= 0:
        return Failure(code="exited", message=f"The process exited with status {returncode}.", detail=detail)
    name = signal.Signals(-returncode).name if -returncode in signal.valid_signals() else f"signal {-returncode}"
    if -returncode == signal.SIGKILL and memory.ran_out():
        return Failure(code="out_of_memory", message="The kernel killed the process (SIGKILL) because memory ran out.", detail=detail)
    return Failure(code="killed", message=f"The process was killed by {name}.", detail=detail)


def wait_for(process: subprocess.Popen[bytes], seconds: float | None = None) -> bool:
    """Whether a process has ended, waiting for so long at most. It is not reaped, so its number still belongs to it and its group."""
    pause, waited = 0.001, 0.0
    while process.returncode is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if seconds is not None and waited >= seconds:
            return False
        nap(pause)
        waited, pause = waited + pause, min(pause * 2, 0.05)
    return True


def kill_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process that is not yet reaped, and to all that it has started in its group."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class Child:
    """A process that runs functions, one at a time."""

    def __init__(self, memory: int) -> None:
        self.memory, self.runs = memory, 0
        self._words, self._said = msgspec.json.Decoder(Word), Lines()
        self._orders: deque[Order] = deque()
        self._sending = threading.Lock()
        with needed("process"):
            self._socket, theirs = socket.socketpair()
            self.process = self._start(theirs)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "windlass.worker.child", str(theirs.fileno()), str(self.memory)]
        with theirs:
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                self._socket.close()
                raise

    def begin(self, order: Begin) -> None:
        """Have it work on something."""
        self.runs += 1
        self._send(order)

    def _send(self, order: Order) -> None:
        """Tell it something. Whoever comes while another thread is still telling it something leaves that to the other, and goes on."""
        self._orders.append(order)
        while self._orders and self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError, IndexError):  # it is dead; how it died is found out when it is heard
                    send(self._socket, self._orders.popleft())
            finally:
                self._sending.release()

    def work(self, sink: Sink) -> Report | None:
        """Pass on what it says until it is done; None when it was dead before it began, having waited since an earlier run."""
        memory, begun = Memory(), False
        for word in self._hear(sink):
            match word:
                case Begun():
                    begun = True
                case Ask(after, count):
                    self._send(_told(sink, after, count) if begun else Told())
                case _ if not begun:
                    continue  # a thread that the run before has left speaks for nobody
                case Line(text):
                    sink.line(text)
                case Progress(text):
                    sink.progress(text)
                case Beat():
                    sink.beat()
                case Ended(name, report):
                    return msgspec.json.decode(report, type=REPORTS[name])
        self.end()
        if not begun and self.process.returncode == STATUS:
            raise Shortage("process", "a new one could not begin")
        if not begun and self.runs > 1:
            return None
        return Fail(error=death(self.process.returncode, memory))

    def _hear(self, sink: Sink) -> Iterator[Word]:
        """Its words until it has ended the attempt or itself; its output goes to the log."""
        assert self.process.stdout is not None
        output, lines = self.process.stdout.fileno(), Lines(LONGEST_LINE)
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            ready.register(output, selectors.EVENT_READ)
            while True:
                sources = {key.fd for key, _ in ready.select(timeout=LOOK_EVERY)}
                # One that it has forked may keep the socket open for ever.
                gone = self._socket.fileno() not in sources and wait_for(self.process, 0)
                if output in sources:
                    data = os.read(output, CHUNK)
                    if not data:
                        ready.unregister(output)
                    _pass_on(lines.feed(data), sink)
                if self._socket.fileno() not in sources and not gone:
                    continue
                said = b"" if gone else _received(self._socket)
                for line in self._said.feed(said):
                    word = self._words.decode(line)
                    if isinstance(word, Ended):
                        _pass_on([*lines.feed(rest_of(output)), *lines.end()], sink)
                    yield word
                if not said:
                    _pass_on([*lines.feed(rest_of(output)), *lines.end()], sink)
                    return

    def ask_to_stop(self, why: str) -> None:
        self._send(Stop(why))

    def kill(self) -> None:
        kill_group(self.process, signal.SIGKILL)

    def end(self) -> None:
        """Let it go; it ends when nobody talks to it any more. What it has started ends with it."""
        self._socket.close()
        wait_for(self.process, PATIENCE)
        self.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _told(sink: Sink, after: str | None, count: int) -> Told:
    try:
        return Told(sink.results(after, count).result())
    except Exception as error:
        return Told(problem=str(error))


def _pass_on(lines: list[bytes], sink: Sink) -> None:
    for line in lines:
        sink.line(text_of(line))


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(CHUNK)
    except OSError:
        return b""


def rest_of(output: int) -> bytes:
    """What is in a pipe now, without waiting for more; somebody may write without end, so no more than a pipe holds."""
    os.set_blocking(output, False)
    parts: list[bytes] = []
    with contextlib.suppress(BlockingIOError, OSError):
        while len(parts) < PIPE and (data := os.read(output, CHUNK)):
            parts.append(data)
    with contextlib.suppress(OSError):
        os.set_blocking(output, True)
    return b"".join(parts)


class Nursery:
    """The processes of a worker that wait for something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, list[Child]] = defaultdict(list)
        self._closed = False

    def take(self, memory: int) -> Child:
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
        return living[0] if living else Child(memory)

    def give_back(self, child: Child, recycle: int) -> None:
        """Keep it for the next, unless it has done its share or is gone."""
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


class InProcess:
    """A function in a process of its own."""

    def __init__(self, handler: Handler, context: Context, call: Call, sink: Sink, nursery: Nursery) -> None:
        self.handler, self.context, self.call, self.sink, self.nursery = handler, context, call, sink, nursery
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._killed = False

    def run(self) -> Report:
        while (report := self._on(self.nursery.take(self.handler.memory or 0))) is None:
            pass
        return report

    def _on(self, child: Child) -> Report | None:
        assert self.handler.place is not None
        path = [str(entry) for entry in sys.path]  # somebody may have put a Path there
        try:
            with self._lock:
                self._child = child
                child.begin(Begin(self.handler.place, self.call, path, self.context.why))
                if self._killed:
                    child.kill()
            return child.work(self.sink)
        finally:
            with self._lock:
                self._child = None
            # One that was asked to stop may have that still before it.
            self.nursery.give_back(child, 0 if self.context.why is not None else self.handler.recycle)

    def ask_to_stop(self, why: str) -> None:
        self._with_child(lambda child: child.ask_to_stop(why), before=lambda: self.context.ask_to_stop(why))

    def kill(self) -> bool:
        def remember() -> None:
            self._killed = True

        self._with_child(Child.kill, before=remember)
        return True

    def _with_child(self, do: Callable[[Child], None], before: Callable[[], None]) -> None:
        with self._lock:
            before()
            if self._child is not None:
                do(self._child)
