"""Commands in any language: the payload goes in as JSON, the result and progress come out, standard error is the log.

Every line of standard output that is `{"progress": 0.4, "message": "..."}` is progress. What is left is the result: JSON if it can be
read as JSON, else text.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from windlass.machine import Fail, Report
from windlass.model import Failure, Limits
from windlass.payload import reader
from windlass.worker.context import Call, Context, Sink, progress_text
from windlass.worker.handlers import Handler
from windlass.worker.outcomes import Stopped, failure_of, returned
from windlass.worker.processes import CHUNK, LONGEST_LINE, Lines, Memory, Raw, death, kill_group, rest_of, text_of, wait_for
from windlass.worker.shortage import needed

_LAUNCH, _WATCHDOG = (str(Path(__file__).with_name(name)) for name in ("launch.py", "watchdog.py"))
_TAIL = 20  # lines of standard error kept with a failure
_OUTPUT = Limits().output
PAYLOAD = "{payload}"
TOKEN = "WINDLASS_TOKEN"
SETTINGS, SECRETS = "WINDLASS_", ("PGPASSWORD", "FORGE_INGEST_SECRET")
"""Variables that are not inherited: they include the token or the secret of the hub, the address of the store and its password."""


class ProgressLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of progress."""

    progress: float | None
    message: str | None = None


_progress_line = reader(ProgressLine)


class Watchdog:
    """A process that kills what commands have started when its worker has died. Started with the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs; called before a command is started."""
        with self._lock:
            if self._process is None:
                command = [sys.executable, "-I", "-S", _WATCHDOG]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, group: int) -> None:
        with self._lock:
            self._send(f"+{group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._send(f"-{group}\n")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it was killed
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            _close(process.stdin)
            process.wait()


class CommandExecutor:
    """A program, in a process group of its own."""

    def __init__(
        self,
        handler: Handler,
        context: Context,
        call: Call,
        sink: Sink,
        watchdog: Watchdog | None = None,
        *,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self.handler, self.context, self.call, self.sink, self.watchdog = handler, context, call, sink, watchdog
        self._descriptors = descriptors  # that it inherits
        self._confined = "-"  # limits of processes and file size, for the program of a run
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None  # requested before there was a process
        self._output: list[bytes] = []
        self._size, self._separator = 0, b"\n"
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._readers: dict[str, Lines | Raw] = {"stdout": Lines(_OUTPUT + 1), "stderr": Lines(LONGEST_LINE)}

    def run(self) -> Report:
        memory = Memory()
        try:
            with needed("process"):
                if self.watchdog is not None:
                    self.watchdog.start()
                process = self._start()
        except OSError as error:
            return Fail(error=Failure(code="not_started", message=f"Cannot start {self.handler.argv[0]}: {error.strerror}."))
        try:
            if self.watchdog is not None:
                self.watchdog.watch(process.pid)
            self._communicate(process)
            wait_for(process)
        finally:
            kill_group(process, signal.SIGKILL)  # the processes that it has started and not ended
            if self.watchdog is not None:
                self.watchdog.forget(process.pid)  # before its number can be reused
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return self._report(process.returncode, memory)

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [part.replace(PAYLOAD, self.call.payload) for part in self.handler.argv]
        launch = [sys.executable, "-I", "-S", _LAUNCH, str(self.handler.memory or 0), str(os.getpid()), self._confined]
        with self._lock:
            self._process = subprocess.Popen(
                launch + arguments,
                stdin=subprocess.DEVNULL if self._in_arguments() else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.handler.cwd,
                env=self._environment(),
                pass_fds=self._descriptors,
                start_new_session=True,
            )
            if self._signal is not None:
                kill_group(self._process, self._signal)
            return self._process

    def _in_arguments(self) -> bool:
        return any(PAYLOAD in part for part in self.handler.argv)

    def _environment(self) -> dict[str, str]:
        """The worker's own without the settings of windlass, then the job's, then the variables of the run."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS) and name not in SECRETS}
        return {**inherited, **dict(self.handler.environment), **self._run_variables()}

    def _run_variables(self) -> dict[str, str]:
        return {
            "WINDLASS_RUN_ID": self.call.run,
            "WINDLASS_JOB": self.call.job,
            "WINDLASS_ATTEMPT": str(self.call.attempt),
            TOKEN: self.call.token,
            "WINDLASS_SCHEDULED_FOR": self.context.scheduled_for.isoformat(timespec="milliseconds"),
        }

    def _communicate(self, process: subprocess.Popen[bytes]) -> None:
        """Write its input and read its output until it has closed its pipes or has ended."""
        payload = memoryview(self.call.payload.encode())
        with selectors.DefaultSelector() as ready:
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
                assert pipe is not None
                ready.register(pipe, selectors.EVENT_READ, name)
            if process.stdin is not None:
                os.set_blocking(process.stdin.fileno(), False)
                ready.register(process.stdin, selectors.EVENT_WRITE, "stdin")
            while ready.get_map():
                for key, _ in ready.select(timeout=0.5):
                    if key.data == "stdin":
                        payload = payload[_write(key.fd, payload) :]
                        if not payload:
                            ready.unregister(key.fileobj)
                            _close(key.fileobj)
                    elif data := os.read(key.fd, CHUNK):
                        self._read(key.data, self._readers[key.data].feed(data))
                    else:
                        ready.unregister(key.fileobj)
                if wait_for(process, 0):  # something it started may keep the pipes open for ever
                    kill_group(process, signal.SIGKILL)
                    break
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            reader = self._readers[name]
            self._read(name, [*reader.feed(rest_of(pipe.fileno())), *reader.end()])

    def _read(self, name: str, lines: list[bytes]) -> None:
        for line in lines:
            if name == "stderr":
                text = text_of(line)
                self._tail.append(text)
                self.sink.line(text)
            elif not self._progress(line):
                self._keep(line)

    def _progress(self, line: bytes) -> bool:
        if not line.lstrip().startswith(b'{"progress"'):
            return False
        try:
            progress = _progress_line(line)
        except msgspec.MsgspecError:
            return False
        self.sink.progress(progress_text(progress.progress, progress.message))
        return True

    def _keep(self, line: bytes) -> None:
        self._size += len(line) + len(self._separator)
        if self._size <= _OUTPUT + 1:
            self._output.append(line)
        elif self._process is not None and self._signal != signal.SIGKILL:
            self.kill()  # its output would fill the memory

    def _report(self, returncode: int, memory: Memory) -> Report:
        if self._size > _OUTPUT + 1:
            message = f"The command wrote more than {_OUTPUT:,} bytes to standard output."
            return Fail(error=Failure(code="bad_output", message=message))
        if returncode == 0 and self.context.cancelled:
            # Many programs exit with 0 when they are asked to stop: that does not mean that they were done.
            return Fail(error=failure_of(Stopped("The command was asked to stop, and did.")))
        if returncode != 0:
            return Fail(error=death(returncode, memory, "\n".join(self._tail) or None))
        return returned(self._result(self._separator.join(self._output)))

    def _result(self, output: bytes) -> Any:
        """The output of a command: JSON if it is JSON, nothing if it is empty, else text."""
        if not output.strip():
            return None
        try:
            return msgspec.json.decode(output)
        except msgspec.MsgspecError:
            return plain_text(output)

    def ask_to_stop(self, why: str) -> None:
        self.context.ask_to_stop(why)
        self._send(signal.SIGTERM)

    def kill(self) -> bool:
        self._send(signal.SIGKILL)
        return True

    def _send(self, number: int) -> None:
        with self._lock:
            self._signal = number
            if self._process is not None:
                kill_group(self._process, number)


def _write(fd: int, data: memoryview) -> int:
    """How many bytes were written; all when the other end is closed."""
    try:
        return os.write(fd, data[:CHUNK])
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _close(pipe: Any) -> None:
    with suppress(OSError):  # the other end is closed
        pipe.close()


def plain_text(output: bytes) -> str:
    """Output as a text that a store can keep."""
    return output.decode("utf-8", "replace").replace("\0", "\ufffd")
