"""Child processes of any kind: their output, line by line, how they ended, and how they are killed with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from windlass.clock import nap
from windlass.model import Failure

CHUNK, PIPE = 65_536, 16  # bytes, and as many of them as a pipe is ever made to hold
LONGEST_LINE = 8 * 1024


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


class Raw:
    """Bytes in, the same bytes out."""

    def feed(self, data: bytes) -> list[bytes]:
        return [data]

    def end(self) -> list[bytes]:
        return []


def text_of(line: bytes) -> str:
    """A line of output as it is stored."""
    return line.decode("utf-8", "replace").rstrip("\r")


class Memory:
    """Whether the kernel has killed anything for want of memory since this was created."""

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
    """The failure of a process that ended without a report."""
    if returncode >= 0:
        return Failure(code="exited", message=f"The process exited with status {returncode}.", detail=detail)
    name = signal.Signals(-returncode).name if -returncode in signal.valid_signals() else f"signal {-returncode}"
    if -returncode == signal.SIGKILL and memory.ran_out():
        return Failure(code="out_of_memory", message="The kernel killed the process (SIGKILL) because memory ran out.", detail=detail)
    return Failure(code="killed", message=f"The process was killed by {name}.", detail=detail)


def wait_for(process: subprocess.Popen[bytes], seconds: float | None = None) -> bool:
    """Whether a process has ended, waiting for so long at most. It is not reaped, so its number stays reserved for it and its group."""
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


def rest_of(output: int) -> bytes:
    """What is in a pipe now, without waiting for more; a writer may never stop, so at most what a pipe holds."""
    os.set_blocking(output, False)
    parts: list[bytes] = []
    with contextlib.suppress(BlockingIOError, OSError):
        while len(parts) < PIPE and (data := os.read(output, CHUNK)):
            parts.append(data)
    with contextlib.suppress(OSError):
        os.set_blocking(output, True)
    return b"".join(parts)
