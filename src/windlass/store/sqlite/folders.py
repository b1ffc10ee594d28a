"""The folder of sockets beside a database file: opened without following links, and used only where it belongs to the file's owner.

Where others can write to it, a name may be a link, or become one between two looks: so what is sent to or opened to others is what was
opened, never what has its name a moment later. Nothing is given to another user.
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

PRIVATE, FOR_ALL = 0o600, 0o666  # modes of a socket; the folder says who comes as far as that

LONGEST = 80  # bytes of a path; systems allow 104 or 108 for the whole of a socket's

_OPENED = "/proc/self/fd"
_PINS = hasattr(os, "O_PATH") and os.path.isdir(_OPENED)  # whether what was opened can be used in place of its name
_CLOCK = SystemClock()


class Unusable(Exception):
    """Why a folder is not used, and what to do about it."""


class Folder(NamedTuple):
    """A folder, opened unless its path is as good, and whether others than this process's user can write to it."""

    path: str
    fd: int | None
    status: os.stat_result
    shared: bool

    @property
    def address(self) -> str:
        """A way to it that leads to what was opened, and is short enough for the address of a socket."""
        return self.path if self.fd is None or not _PINS else f"{_OPENED}/{self.fd}"

    def names(self) -> list[str]:
        return os.listdir(self.path if self.fd is None else self.fd)


def plain(path: str) -> Folder | None:
    """A folder to which only this user can write, at a path that nobody else can change; None where that is not known."""
    if not _unchanged_by_others(path):
        return None
    status = os.lstat(path)
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return Folder(path, None, status, shared=False) if private else None


@lru_cache(maxsize=1_000)  # looked at once
def _unchanged_by_others(path: str) -> bool:
    """Whether no other user but root can put anything in the place of a folder of ours or of one above it, and its path is short."""
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
    """The folder, made if this user owns the file; Unusable unless all who may write the file, and no others, can write to it."""
    owner = os.stat(file)
    mode = _mode_beside(owner)
    made = owner.st_uid == os.geteuid() and _made(path)
    try:
        with opened(path, file) as folder:
            if made and mode & 0o022 and folder.fd is not None and not folder.names():  # what was put in its place may have something in it
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
    """The mode of the folder: who may write the file can list it, send, and clear away what is stale."""
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
    """Where to send for a socket of a folder that others write to; OSError if the name is no socket, or has another name too."""
    with _pinned(folder, name) as (address, status):
        if not stat.S_ISSOCK(status.st_mode) or status.st_nlink != 1:
            raise FileNotFoundError(f"{name} is not a socket of its own")
        yield address


def open_to_writers(made: socket.socket, folder: Folder, name: str) -> None:
    """Let all who come into the folder send to a socket of this process. It is known by what arrives in it, so nothing else is opened."""
    try:
        with _pinned(folder, name) as (address, _), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            word = _CLOCK.nonce().encode()
            sender.setblocking(False)
            sender.sendto(word, address)
            while made.recv(len(word) + 1) != word:  # OSError when there is no more: it went elsewhere
                pass
            os.chmod(address, FOR_ALL)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder.fd)
        raise


@contextmanager
def _pinned(folder: Folder, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """What has a name now, as an address that leads to nothing else, and what it is."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder.fd)
    try:
        yield f"{_OPENED}/{fd}", os.fstat(fd)
    finally:
        os.close(fd)


def clear_away(folder: Folder, name: str) -> None:
    """Remove what a process left behind that was killed."""
    with suppress(OSError):
        place = os.path.join(folder.path, name) if folder.fd is None else name
        if stat.S_ISSOCK(os.stat(place, dir_fd=folder.fd, follow_symlinks=False).st_mode):
            os.unlink(place, dir_fd=folder.fd)
