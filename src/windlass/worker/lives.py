"""Whether an earlier process of a worker is gone: its identity, stored at its start, compared with what the host reports later."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

_IDENTITY = re.compile(r"(?P<place>\S+ \S+ \S+ )(?P<pid>[1-9][0-9]{0,8}) (?P<began>[0-9]+)")


class Stat(NamedTuple):
    """The state of a process: when it began, in ticks since the host did, and whether nothing of it runs any more."""

    began: str
    is_dead: bool


def own_process() -> str | None:
    """The identity of this process, unique everywhere: host and namespaces, id, and begin. None where that is not available."""
    try:
        pid = os.getpid()
        if os.readlink("/proc/self") != str(pid):  # /proc belongs to another namespace
            return None
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        # The begin depends on the time namespace of the reader.
        return " ".join((boot, _namespace("pid"), _namespace("time"), str(pid), _stat(pid).began))
    except (OSError, ValueError):
        return None


def is_gone(process: str) -> bool:
    """Whether the process with this identity is proven to have ended. False where this host cannot prove it."""
    own, identity = own_process(), _IDENTITY.fullmatch(process)
    if own is None or identity is None or not own.startswith(identity["place"]):
        return False
    pid = int(identity["pid"])
    try:
        stat = _stat(pid)
    except FileNotFoundError:
        return not _exists(pid)
    except (OSError, ValueError):
        return False
    return stat.is_dead or stat.began != identity["began"]


def _namespace(kind: str) -> str:
    with suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/ns/{kind}")
    return "-"  # a system without such namespaces


def _stat(pid: int) -> Stat:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except ProcessLookupError as error:  # it ended while it was read
        raise FileNotFoundError from error
    fields = text.rpartition(b") ")[2].split()  # from the third on: its name may hold anything
    state, threads, began = fields[0], int(fields[17]), fields[19]
    # The first thread of a process can have ended before the others.
    return Stat(began.decode(), state in b"ZX" and threads <= 1)


def _exists(pid: int) -> bool:
    """Whether there is such a process, although /proc does not show it: processes of other users may be hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
