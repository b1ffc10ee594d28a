"""Backup and restore: checked copies that get their name in one step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence

import apsw

from windlass.clock import SystemClock
from windlass.errors import StoreBroken, StoreBusy, StoreError
from windlass.store.base import refuse_newer
from windlass.store.sqlite.files import (
    ACCESS,
    DISK,
    PATIENCE,
    Path,
    check_path,
    disconnect,
    held_here,
    known_steps,
    open_file,
    patience,
    translated,
    version_of,
)

Progress = Callable[[int, int], None]

COPIED_AT_ONCE = 1_000  # pages between two reports of progress


def _copy(source: str, part: str, progress: Progress | None) -> int:
    """Write a checked copy of one snapshot of the source, as a single file; returns the version of its schema."""
    with translated(source), contextlib.ExitStack() as cleanup:
        origin = open_file(source, apsw.SQLITE_OPEN_READONLY)
        cleanup.callback(disconnect, origin)
        copy = apsw.Connection(part, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
        cleanup.callback(copy.close)
        origin.set_busy_handler(patience(SystemClock(), PATIENCE))
        _ = origin.execute("begin; select count(*) from sqlite_schema").get  # held, or every foreign write would restart the copy
        with copy.backup("main", origin, "main") as pages:
            while not pages.step(COPIED_AT_ONCE):
                if progress:
                    progress(pages.page_count - pages.remaining, pages.page_count)
        copy.execute("pragma journal_mode = delete")
        if (verdict := copy.execute("pragma quick_check(1)").get) != "ok":
            raise StoreBroken(f"The copy of {source} is damaged: {verdict}.", hint=DISK)
        return version_of(copy)


class _Part:
    """A file that is being written, under a temporary name until it is complete."""

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)

    def own_like(self, model: str) -> os.stat_result:
        """Give it to the owner of another file."""
        status = os.stat(model)
        with contextlib.suppress(PermissionError):
            os.fchown(self.fd, status.st_uid, status.st_gid)
        return status

    def finish(self) -> None:
        """Sync it to disk, and close it while no process can have it open by its final name: that would end their locks."""
        os.fsync(self.fd)
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def _part(target: str) -> Iterator[_Part]:
    """An empty file beside the target, which only its owner can read; its name is removed afterwards."""
    folder, name = os.path.split(os.path.abspath(target))
    part = os.path.join(os.path.realpath(folder), f"{name}.{os.getpid()}.part")  # SQLite follows no link to it
    try:
        copy = _Part(part)
    except OSError as error:
        raise StoreError(f"Cannot write {part}: {error.strerror}.", hint=ACCESS) from error
    try:
        yield copy
    finally:
        copy.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _exists(target: str) -> StoreError:
    return StoreError(f"{target} exists.", hint="Name another file, or say that it may be replaced.")


def _check_copy(source: str, target: str, replace: bool) -> None:
    """Refuse at once what would fail after all the work."""
    if not os.path.isfile(source):
        raise StoreError(f"There is no file {source}.", hint="Check the path.")
    check_path(target)
    if not replace and os.path.exists(target):
        raise _exists(target)
    if held_here(target):  # closing it here, as _place must, would drop the locks this process has on it
        raise StoreBusy(f"{target} is open in this process.", hint="Close it first.")


def _place(part: _Part, target: str, replace: bool) -> None:
    """Give a finished file its name in one step, unless a process uses the file that has it now."""
    part.finish()
    try:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | (0 if replace else os.O_EXCL), 0o600)
    except FileExistsError as error:
        raise _exists(target) from error
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 512, 0x40000000)  # the bytes on which every SQLite connection holds a lock
        for suffix in ("-wal", "-shm", "-journal"):  # before the file: a leftover log would be replayed into the new one
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target + suffix)
        os.replace(part.path, target)
        _sync(os.path.dirname(os.path.abspath(target)))
    except BlockingIOError as error:
        raise StoreBusy(f"{target} is in use.", hint="Stop every process that uses it, then try again.") from error
    finally:
        os.close(fd)


def backup(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write a consistent copy, checked and on disk, while other processes work; only its owner can read it. The target must not exist."""
    source, target = os.fspath(source), os.fspath(target)
    _check_copy(source, target, replace=False)
    with _part(target) as part:
        _copy(source, part.path, progress)
        part.own_like(source)
        _place(part, target, replace=False)


def restore(source: Path, target: Path, *, replace: bool = False, steps: Sequence[str] | None = None) -> None:
    """Put a backup in place, checked, in one step; refuses while a process uses the target, whose owner and mode it keeps."""
    source, target = os.fspath(source), os.fspath(target)
    _check_copy(source, target, replace)
    with _part(target) as part:
        version = _copy(source, part.path, None)
        if version == 0:
            raise StoreError(f"{source} is not a backup of windlass: it has no schema_version.", hint="Check the path.")
        refuse_newer(version, len(known_steps(steps)), source)
        if os.path.exists(target):
            os.fchmod(part.fd, stat.S_IMODE(part.own_like(target).st_mode))
        else:
            part.own_like(source)
        _place(part, target, replace)
