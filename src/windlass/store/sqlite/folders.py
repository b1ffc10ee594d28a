"""The folder of sockets beside a database file: opened without following links, and used only if it belongs to the file's owner.

If other users can write to it, a name may be a link, or become one between two accesses: so a file is opened first, and only the opened
file is used, never what has its name a moment later. No ownership is changed.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import NamedTuple

from windlass.clock import SystemClock

PRIVATE, FOR_ALL = 0o600, 0o666  # modes of a socket; the folder decides who can reach it

SETTLED = 2_000  # milliseconds; two changes that are further apart have different times on every file system
LONGEST = 80  # bytes of a path; systems allow 104 or 108 for the whole of a socket's

_OPENED = "/proc/self/fd"
_PINS = hasattr(os, "O_PATH") and os.path.isdir(_OPENED)  # whether an opened file can be used in place of its name
_CLOCK = SystemClock()


class Unusable(Exception):
    """Why a folder is not used, and the remedy."""


class Folder(NamedTuple):
    """A folder, opened unless its path is safe, and whether other users can write to it."""

    path: str
    fd: int | None
    status: os.stat_result
    shared: bool

    @property
    def address(self) -> str:
        """A path that leads to the opened folder, and is short enough for the address of a socket."""
        return self.path if self.fd is None or not _PINS else f"{_OPENED}/{self.fd}"

    def names(self) -> list[str]:
        return os.listdir(self.path if self.fd is None else self.fd)


class CachedNames:
    """The names in a folder, which is listed again only after it has changed."""

    def __init__(self) -> None:
        self._cached: tuple[tuple[int, int], list[str]] = (0, 0), []

    def of(self, folder: Folder) -> list[str]:
        changed, now = (folder.status.st_ino, folder.status.st_mtime_ns), _CLOCK.now()
        if changed == self._cached[0]:
            return self._cached[1]
        names = folder.names()
        if now - changed[1] // 1_000_000 > SETTLED:  # else the next change may have the same time
            self._cached = changed, names
        return names


def plain(path: str) -> Folder | None:
    """A folder to which only this user can write, at a path that no other user can change; None if that is not certain."""
    if not _unchanged_by_others(path):
        return None
    status = os.lstat(path)
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return Folder(path, None, status, shared=False) if private else None


@lru_cache(maxsize=1_000)  # checked once
def _unchanged_by_others(path: str) -> bool:
    """Whether only root could replace this folder of ours or one above it, and its path is short."""
    folder = os.path.dirname(path)
    status = os.stat(folder)
    if len(os.fsencode(path)) > LONGEST or status.st_uid not in (0, os.geteuid()):
        return False
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return False
    return folder == path or _unchanged_by_others(folder)


@contextmanager
def opened(path: str, file: str) -> Iterator[Folder]:
    """The folder beside a file; Unusable if it belongs neither to this user nor to the file's owner."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Unusable(f"{path} is not a folder. Remove it.") from None
        raise
    try:
        folder = _seen(path, fd)
        if folder.status.st_uid != os.geteuid() and folder.status.st_uid != os.stat(file).st_uid:
            raise _foreign(folder)
        yield folder
    finally:
        os.close(fd)


def _seen(path: str, fd: int) -> Folder:
    status = os.fstat(fd)
    shared = status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)
    if shared and not _PINS:
        raise Unusable(f"Others can write to {path}, and this system has no safe way to use such a folder. Let one user have the database.")
    return Folder(path, fd, status, shared)


@contextmanager
def reached_by_writers(path: str, file: str) -> Iterator[Folder]:
    """The folder, created if this user owns the file; Unusable unless exactly the users who may write the file can write to it."""
    owner = os.stat(file)
    mode = _mode_beside(owner)
    usable = owner.st_uid == os.geteuid() and _made(path)
    try:
        with opened(path, file) as folder:
            if usable and mode & 0o022 and folder.fd is not None and not folder.names():  # a replacement may have content
                os.fchmod(folder.fd, mode | folder.status.st_mode & stat.S_ISGID)
                folder = _seen(path, folder.fd)
            _check(folder, owner, mode)
            yield folder
    except FileNotFoundError:
        if owner.st_uid == os.geteuid():
            raise
        raise Unusable(
            f"There is no folder {path}, which only the file's owner makes, user {owner.st_uid}. Run this process as that user."
        ) from None


def _mode_beside(owner: os.stat_result) -> int:
    """The mode of the folder: users who may write the file can list it, send, and remove stale sockets."""
    writers = owner.st_mode & 0o222 | 0o200
    return writers | writers << 1 | writers >> 1


def _made(path: str) -> bool:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        return True
    return False


def _check(folder: Folder, owner: os.stat_result, mode: int) -> None:
    path, status = folder.path, folder.status
    if status.st_uid != owner.st_uid:
        raise _foreign(folder)
    if status.st_mode & mode != mode or status.st_mode & 0o022 & ~mode:
        raise Unusable(f"{path} has the mode {stat.S_IMODE(status.st_mode):o}. Remove it, or: chmod {mode:o} {path}")
    if mode & 0o020 and status.st_gid != owner.st_gid:
        raise Unusable(
            f"{path} belongs to group {status.st_gid}, the database to group {owner.st_gid}. "
            f"Run chgrp {owner.st_gid} and chmod g+s on the folder that they are in, and remove {path}."
        )


def _foreign(folder: Folder) -> Unusable:
    return Unusable(f"{folder.path} belongs to user {folder.status.st_uid}, not to the owner of the database. Remove it.")


@contextmanager
def address_of(folder: Folder, name: str) -> Iterator[str]:
    """Where to send for a socket of a folder that other users write to; OSError if the name is not a socket, or has a second name."""
    with _pinned(folder, name) as (address, status):
        if not stat.S_ISSOCK(status.st_mode) or status.st_nlink != 1:
            raise FileNotFoundError(f"{name} is not a socket of its own")
        yield address


def open_to_writers(sock: socket.socket, folder: Folder, name: str) -> None:
    """Let all users of the folder send to a socket of this process. It is identified by what arrives in it, so nothing else is opened."""
    try:
        with _pinned(folder, name) as (address, _), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            word = _CLOCK.nonce().encode()
            sender.setblocking(False)
            sender.sendto(word, address)
            while sock.recv(len(word) + 1) != word:  # OSError when there is no more: the name leads elsewhere
                pass
            os.chmod(address, FOR_ALL)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder.fd)
        raise


@contextmanager
def _pinned(folder: Folder, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """The current file of a name, as an address that leads to nothing else, and its status."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder.fd)
    try:
        yield f"{_OPENED}/{fd}", os.fstat(fd)
    finally:
        os.close(fd)


def clear_away(folder: Folder, name: str) -> None:
    """Remove the socket of a killed process."""
    with suppress(OSError):
        place = os.path.join(folder.path, name) if folder.fd is None else name
        if stat.S_ISSOCK(os.stat(place, dir_fd=folder.fd, follow_symlinks=False).st_mode):
            os.unlink(place, dir_fd=folder.fd)
