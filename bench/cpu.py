"""The processor time of processes, as Linux counts it, in seconds."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.testing.servers import PostgresServer

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _USER_OF_CHILDREN, _SYSTEM_OF_CHILDREN = 11, 12, 13, 14  # of /proc/PID/stat, after the name


def process_seconds(pid: int) -> float:
    """All threads of a process."""
    return _seconds(pid, _USER, _SYSTEM)


def server_seconds(server: PostgresServer) -> float:
    """All processes of a server: its first one has the time of those that have ended."""
    first = int((server.folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return _seconds(first, _USER, _SYSTEM, _USER_OF_CHILDREN, _SYSTEM_OF_CHILDREN) + sum(map(_seconds_if_there, children))


def _seconds_if_there(pid: str) -> float:
    try:
        return process_seconds(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it ended meanwhile


def _seconds(pid: int, *fields: int) -> float:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(values[field]) for field in fields) * _TICK
