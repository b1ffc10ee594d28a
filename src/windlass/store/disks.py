"""The environment of a database file: its disk, its log, and the processes that have it open. All functions only read."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
})  # fmt: skip
"""File systems on which locks are not visible to other hosts, or not in time."""
VOLATILE = frozenset({"ramfs", "tmpfs"})
"""File systems whose content is lost at a reboot."""

LIMIT = 10
_ESCAPED = re.compile(r"\\([0-7]{3})")
_VERSION = re.compile(rb"\0(3\.\d{1,2}\.\d{1,2})\0")


class Mount(NamedTuple):
    """The mount point and the kind of a file system."""

    point: str
    kind: str


class ForeignProcess(NamedTuple):
    """A process that has a file open with another SQLite library; its version if known, and whether it can lose rows."""

    pid: int
    command: str
    version: str | None = None
    old: bool = False


class FileEnvironment(NamedTuple):
    """The environment of a database file. Sizes are bytes; a kind of None is unknown."""

    kind: str | None
    log: int
    free: int
    total: int
    foreign_processes: tuple[ForeignProcess, ...]
    readable: tuple[str, ...] = ()  # of the database and its logs, those that other users can read or write


def look_around(path: str) -> FileEnvironment:
    """Inspect a database file."""
    mount = mount_of(os.path.realpath(path), mounts())
    others = tuple(islice(foreign_processes(path), LIMIT))
    return FileEnvironment(mount.kind if mount else None, _size(f"{path}-wal"), *space(path), others, tuple(_readable(path)))


def _readable(path: str) -> Iterator[str]:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            if os.stat(name).st_mode & 0o066:
                yield name


def space(path: str) -> tuple[int, int]:
    """The free bytes on the disk of a file for this user, and its size."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


# Mounts


def mounts(table: str = "/proc/mounts") -> list[Mount]:
    """The system's mounts; none if it does not list them."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as text:
            return [Mount(_plain(words[1]), words[2]) for row in text if len(words := row.split(" ")) > 2]
    except OSError:
        return []


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount of a path: the deepest, and of several at one place the last."""
    deepest: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (deepest is None or len(mount.point) >= len(deepest.point)):
            deepest = mount
    return deepest


# Processes that have it open


def foreign_processes(path: str, processes: str = "/proc") -> Iterator[ForeignProcess]:
    """Processes that have a file open with another driver, as far as this user may know."""
    from windlass.store.sqlite import strange_here  # this process has it open itself, and other files are not checked

    if strange_here(path):
        yield ForeignProcess(os.getpid(), "this process")
    file, name = os.stat(path), os.path.basename(path)
    for number in os.listdir(processes) if os.path.isdir(processes) else ():
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            folder = f"{processes}/{number}"
            if number.isdigit() and int(number) != os.getpid() and _has_open(folder, name, file):
                libraries = _libraries(folder)
                if not any("/apsw" in library for library in libraries):
                    yield _stranger(int(number), folder, libraries)


def _stranger(pid: int, folder: str, libraries: Iterable[str]) -> ForeignProcess:
    from windlass.store.sqlite import OLDEST_ENGINE

    version = _version(folder, libraries)
    old = version is not None and tuple(map(int, version.split("."))) < OLDEST_ENGINE
    return ForeignProcess(pid, _command(folder), version, old)


def _has_open(folder: str, name: str, file: os.stat_result) -> bool:
    # Only files of that name are examined: a file on an unreachable disk would block.
    for number in os.listdir(f"{folder}/fd"):
        with suppress(OSError):
            there = f"{folder}/fd/{number}"
            if os.path.basename(os.readlink(there)) == name and os.path.samestat(os.stat(there), file):
                return True
    return False


def _libraries(folder: str) -> list[str]:
    """The files that a process has mapped."""
    with open(f"{folder}/maps", encoding="utf-8", errors="surrogateescape") as text:
        return sorted({words[5].rstrip("\n") for row in text if len(words := row.split(maxsplit=5)) == 6 and words[5].startswith("/")})


def _command(folder: str) -> str:
    with open(f"{folder}/comm", encoding="utf-8", errors="replace") as text:
        return text.read().strip()


def _version(folder: str, libraries: Iterable[str]) -> str | None:
    for library in libraries:
        if "libsqlite3" in os.path.basename(library):
            with open(f"{folder}/root{library}", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if match := _VERSION.search(content):
                    return match[1].decode()
    return None
