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
    """Write a checked copy of one moment of the source, a single file; the version of its schema."""
    with translated(source), contextlib.ExitStack() as cleanup:
        origin = open_file(source, apsw.SQLITE_OPEN_READONLY)
        cleanup.callback(disconnect, origin)
        copy = apsw.Connection(part)
        cleanup.callback(copy.close)
        origin.set_busy_handler(patience(SystemClock(), PATIENCE))
        _ = origin.execute("begin; select count(*) from sqlite_schema").get  # held, or every foreign write would start the copy anew
        with copy.backup("main", origin, "main") as pages:
            while not pages.step(COPIED_AT_ONCE):
                if progress:
                    progress(pages.page_count - pages.remaining, pages.page_count)
        copy.execute("pragma journal_mode = delete")
        if (verdict := copy.execute("pragma quick_check(1)").get) != "ok":
            raise StoreBroken(f"The copy of {source} is damaged: {verdict}.", hint=DISK)
        return version_of(copy)


@contextlib.contextmanager
def _part(target: str) -> Iterator[str]:
    """The name of an empty file beside the target, for its maker alone; gone afterwards."""
    part = f"{target}.{os.getpid()}.part"
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreError(f"Cannot write {part}: {error.strerror}.", hint=ACCESS) from error
    try:
        yield part
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _own_like(part: str, model: str) -> None:
    status = os.stat(model)
    with contextlib.suppress(PermissionError):
        os.chown(part, status.st_uid, status.st_gid)
    os.chmod(part, stat.S_IMODE(status.st_mode))


def _exists(target: str) -> StoreError:
    return StoreError(f"{target} exists.", hint="Name another file, or say that it may be replaced.")


def _check_copy(source: str, target: str, replace: bool) -> None:
    """Refuse at once what would fail after all the work."""
    if not os.path.isfile(source):
        raise StoreError(f"There is no file {source}.", hint="Check the path.")
    check_path(target)
    if not replace and os.path.exists(target):
        raise _exists(target)
    if held_here(target):  # to close it here, as _place must, would drop the locks this process has on it
        raise StoreBusy(f"{target} is open in this process.", hint="Close it first.")


def _place(part: str, target: str, replace: bool) -> None:
    """Give a finished file its name in one step, unless anyone uses the file that has it now."""
    _sync(part)
    try:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | (0 if replace else os.O_EXCL), 0o600)
    except FileExistsError as error:
        raise _exists(target) from error
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 512, 0x40000000)  # the bytes on which every SQLite connection holds a lock
        for suffix in ("-wal", "-shm", "-journal"):  # before the file: a log left behind would be replayed into the new one
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target + suffix)
        os.replace(part, target)
        _sync(os.path.dirname(os.path.abspath(target)))
    except BlockingIOError as error:
        raise StoreBusy(f"{target} is in use.", hint="Stop every process that uses it, then try again.") from error
    finally:
        os.close(fd)


def backup(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write a consistent copy, checked and on disk, while others go on; the target must not exist."""
    source, target = os.fspath(source), os.fspath(target)
    _check_copy(source, target, replace=False)
    with _part(target) as part:
        _copy(source, part, progress)
        _own_like(part, source)
        _place(part, target, replace=False)


def restore(source: Path, target: Path, *, replace: bool = False, steps: Sequence[str] | None = None) -> None:
    """Put a backup in place, checked, in one step; refuses while anyone uses the target."""
    source, target = os.fspath(source), os.fspath(target)
    _check_copy(source, target, replace)
    with _part(target) as part:
        version = _copy(source, part, None)
        if version == 0:
            raise StoreError(f"{source} is not a backup of windlass: it has no schema_version.", hint="Check the path.")
        refuse_newer(version, len(known_steps(steps)), source)
        _own_like(part, target if os.path.exists(target) else source)
        _place(part, target, replace)
