"""What is around a database file: its disk, its log, and who else has it open. Everything here only looks."""

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
"""File systems whose other side does not see our locks, or not in time."""
VOLATILE = frozenset({"ramfs", "tmpfs"})
"""File systems whose content ends with the machine."""

MOST = 10
_ESCAPED = re.compile(r"\\([0-7]{3})")
_VERSION = re.compile(rb"\0(3\.\d{1,2}\.\d{1,2})\0")


class Mount(NamedTuple):
    """Where a file system hangs, and of what kind it is."""

    point: str
    kind: str


class Stranger(NamedTuple):
    """A process that has a file open by another SQLite than ours; its version where it can be told, and whether it can lose rows."""

    pid: int
    command: str
    version: str | None = None
    old: bool = False


class Surroundings(NamedTuple):
    """What is around a database file. Sizes are bytes; a kind of None is not known."""

    kind: str | None
    log: int
    free: int
    total: int
    strangers: tuple[Stranger, ...]
    readable: tuple[str, ...] = ()  # of the database and its logs, those that others than their owner can read or write


def look_around(path: str) -> Surroundings:
    """How a database file lies."""
    mount = mount_of(os.path.realpath(path), mounts())
    others = tuple(islice(strangers(path), MOST))
    return Surroundings(mount.kind if mount else None, _size(f"{path}-wal"), *space(path), others, tuple(_readable(path)))


def _readable(path: str) -> Iterator[str]:
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            if os.stat(name).st_mode & 0o066:
                yield name


def space(path: str) -> tuple[int, int]:
    """How many bytes are left for us on the disk of a file, and how many it has."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


# Mounts


def mounts(table: str = "/proc/mounts") -> list[Mount]:
    """What the system says of its mounts; nothing where it does not say."""
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as text:
            return [Mount(_plain(words[1]), words[2]) for row in text if len(words := row.split(" ")) > 2]
    except OSError:
        return []


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that a path is on: the deepest, and of several at one place the last."""
    found: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


# Who else has it open


def strangers(path: str, processes: str = "/proc") -> Iterator[Stranger]:
    """Processes that have a file open by another driver than ours, as far as the system tells this user."""
    from windlass.store.sqlite import strange_here  # whoever asks has it; those who have other stores need not

    if strange_here(path):
        yield Stranger(os.getpid(), "this process")
    file, name = os.stat(path), os.path.basename(path)
    for number in os.listdir(processes) if os.path.isdir(processes) else ():
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            folder = f"{processes}/{number}"
            if number.isdigit() and int(number) != os.getpid() and _has_open(folder, name, file):
                libraries = _libraries(folder)
                if not any("/apsw" in library for library in libraries):
                    yield _stranger(int(number), folder, libraries)


def _stranger(pid: int, folder: str, libraries: Iterable[str]) -> Stranger:
    from windlass.store.sqlite import OLDEST_ENGINE

    version = _version(folder, libraries)
    old = version is not None and tuple(map(int, version.split("."))) < OLDEST_ENGINE
    return Stranger(pid, _command(folder), version, old)


def _has_open(folder: str, name: str, file: os.stat_result) -> bool:
    # Only files of that name are looked at: a look at one on a disk that is away would not return.
    for number in os.listdir(f"{folder}/fd"):
        with suppress(OSError):
            there = f"{folder}/fd/{number}"
            if os.path.basename(os.readlink(there)) == name and os.path.samestat(os.stat(there), file):
                return True
    return False


def _libraries(folder: str) -> list[str]:
    """The files that a process has in its memory."""
    with open(f"{folder}/maps", encoding="utf-8", errors="surrogateescape") as text:
        return sorted({words[5].rstrip("\n") for row in text if len(words := row.split(maxsplit=5)) == 6 and words[5].startswith("/")})


def _command(folder: str) -> str:
    with open(f"{folder}/comm", encoding="utf-8", errors="replace") as text:
        return text.read().strip()


def _version(folder: str, libraries: Iterable[str]) -> str | None:
    for library in libraries:
        if "libsqlite3" in os.path.basename(library):
            with open(f"{folder}/root{library}", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if found := _VERSION.search(content):
                    return found[1].decode()
    return None
