"""Opens a database file in the way every windlass process opens it, and creates its schema."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import apsw

from windlass.clock import Clock, nap
from windlass.errors import BadInput, Conflict, StoreBroken, StoreBusy, StoreError, StoreFull, WindlassError
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.base import refuse_newer, refuse_older

Path = str | os.PathLike[str]

MEMORY = ":memory:"
OLDEST_ENGINE = (3, 51, 3)
PATIENCE = 30.0  # seconds of waiting for a lock


# Errors

_WAIT = "Try again. If it stays, look for a program that holds a transaction open on this file."
DISK = "Stop every process that uses it, check the disk, then run `windlass doctor --deep`; `windlass restore` brings back a backup."
ACCESS = "Check that the file and its folder belong to the user that runs windlass, and that the disk is mounted for writing."
_BUG = "This is a bug in windlass, or the tables were changed by hand; please report it with this text."

# By SQLite's extended code first, then by its plain one.
_MEANING: dict[int, tuple[type[WindlassError], str]] = {
    apsw.SQLITE_CONSTRAINT_UNIQUE: (Conflict, "Another process was first: read again, then decide."),
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY: (Conflict, "Another process was first: read again, then decide."),
    apsw.SQLITE_CONSTRAINT: (StoreError, _BUG),
    apsw.SQLITE_BUSY: (StoreBusy, _WAIT),
    apsw.SQLITE_LOCKED: (StoreBusy, _WAIT),
    apsw.SQLITE_PROTOCOL: (StoreBusy, _WAIT),
    apsw.SQLITE_FULL: (StoreFull, "Free some space on its disk, then try again; nothing was written."),
    apsw.SQLITE_IOERR_SHMSIZE: (StoreFull, "Free some space on its disk, then try again; nothing was written."),
    apsw.SQLITE_IOERR: (StoreBroken, DISK),
    apsw.SQLITE_CORRUPT: (StoreBroken, DISK),
    apsw.SQLITE_NOTADB: (StoreBroken, "Check the path; if it is the right file, it is damaged: `windlass restore` brings back a backup."),
    apsw.SQLITE_READONLY: (StoreError, ACCESS),
    apsw.SQLITE_CANTOPEN: (StoreError, ACCESS),
    apsw.SQLITE_PERM: (StoreError, ACCESS),
}


def translate(error: BaseException, path: str) -> BaseException:
    """The windlass error for an error of the driver; any other error is returned as it is."""
    if not isinstance(error, apsw.Error):
        return error
    codes = getattr(error, "extendedresult", None), getattr(error, "result", None)
    kind, hint = next((_MEANING[code] for code in codes if code in _MEANING), (StoreError, _BUG))
    translated = kind(f"SQLite says of {path}: {error}.", hint=hint)
    translated.__cause__ = error
    return translated


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error


# Opening and closing

_REGISTRY = threading.Lock()
_OURS: set[tuple[int, int, int, int]] = set()  # files that windlass connections hold open, as _open_files lists them


def _open_files() -> set[tuple[int, int, int, int]]:
    """The files this process has open, as (process, device, inode, descriptor); none if the system does not list them."""
    # With the process in it, files inherited by a fork are not taken for ours: SQLite would trust locks that the child does not have.
    files = set()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                status = os.fstat(int(name))
                files.add((os.getpid(), status.st_dev, status.st_ino, int(name)))
    return files


def held_here(path: str) -> set[tuple[int, int, int, int]]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return set()
    return {file for file in _open_files() if file[1:3] == (status.st_dev, status.st_ino)}


def open_here(path: Path) -> bool:
    """Whether this process has the file open through this module (known on Linux only)."""
    return bool(held_here(os.fspath(path)) & _OURS)


def strange_here(path: str) -> bool:
    """Whether this process has the file open otherwise too: by another SQLite library, or as a plain file (known on Linux only)."""
    return bool(held_here(path) - _OURS)


def _refuse_strangers(path: str) -> None:
    # POSIX locks belong to the process: when one SQLite library closes the file, the locks of the other are gone too.
    if strange_here(path):
        raise StoreError(
            f"This process has {path} open, but not by windlass: by the standard `sqlite3` module, as a plain file, or from before a fork.",
            hint="Close that first (before a fork: app.close()), or start the process by spawn: the two would break each other's locks.",
        )


def _create(path: str) -> None:
    """Create a file that only its owner can read, unless it exists. SQLite would create it for all, and gives its logs the same mode."""
    with contextlib.suppress(OSError):  # it exists, or SQLite reports what is wrong
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def open_file(path: str, flags: int) -> apsw.Connection:
    with _REGISTRY:
        if path != MEMORY:
            _refuse_strangers(path)
            if flags & apsw.SQLITE_OPEN_CREATE:
                _create(path)
        db = apsw.Connection(path, flags=flags, statementcachesize=512)
        if path != MEMORY:
            _OURS.update(held_here(path))
    return db


def disconnect(db: apsw.Connection) -> None:
    """Close what `connect` opened."""
    with _REGISTRY:
        db.close()
        _OURS.intersection_update(_open_files())


def patience(clock: Clock, seconds: float) -> Callable[[int], bool]:
    """A busy handler: sleeps of 0.2 to 1 ms, uneven so that no two processes keep step, until they add up to the limit."""
    # The sleeps are added up instead of reading the clock: a manual clock stands still, and a process that was stopped has not waited.
    waited = 0.0

    def wait(tries: int) -> bool:
        nonlocal waited
        pause = 0.0002 + 0.0008 * clock.chance()
        waited = pause if tries == 0 else waited + pause
        nap(pause)
        return waited < seconds

    return wait


def check_engine(version: str) -> None:
    """Refuse an SQLite that can lose committed rows."""
    if tuple(map(int, version.split("."))) < OLDEST_ENGINE:
        raise StoreError(
            f"SQLite {version} can lose committed rows when two processes use one file (the WAL-reset race).",
            hint=f"Install a driver with {'.'.join(map(str, OLDEST_ENGINE))} or newer: pip install -U apsw.",
        )


def check_path(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not path:
        raise BadInput("The path of the database is empty.", hint=f"Name a file, or {MEMORY} for a store that ends with the process.")
    if path != MEMORY and not os.path.isdir(folder):
        raise StoreError(f"There is no folder {folder}.", hint=f"Make it (mkdir -p {folder}) or name another path.")
    if os.path.isdir(path):
        raise StoreError(f"{path} is a folder.", hint=f"Name a file in it, such as {os.path.join(path, 'windlass.db')}.")


def _switch_to_log(db: apsw.Connection, wait: Callable[[int], bool]) -> str:
    """Set write-ahead logging; returns the journal mode. SQLite calls no busy handler for that, so this waits itself."""
    for tries in itertools.count():
        try:
            return str(db.execute("pragma journal_mode = wal").get)
        except apsw.BusyError:
            if not wait(tries):
                raise
    raise AssertionError("counting ends")


def _set_up(db: apsw.Connection, path: str, clock: Clock, synchronous: str) -> None:
    wait = patience(clock, PATIENCE)
    db.set_busy_handler(wait)
    if db.readonly("main"):
        raise StoreError(f"{path} can only be read.", hint=ACCESS)
    if (mode := _switch_to_log(db, wait)) not in ("wal", "memory"):
        raise StoreError(f"{path} cannot have a write-ahead log: its mode stays '{mode}'.", hint="Put it on a local disk.")
    # Without it SQLite plans a statement again whenever a value that its plan could depend on is bound, which takes longer than running it.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    db.execute(f"pragma synchronous = {synchronous}")
    db.execute("pragma foreign_keys = on; pragma cell_size_check = on; pragma journal_size_limit = 67108864; pragma temp_store = memory")


def _moved(db: apsw.Connection) -> bool:
    flag = ctypes.c_int(0)
    db.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(flag))
    return bool(flag.value)


def connect(path: Path, clock: Clock, synchronous: str = "FULL") -> apsw.Connection:
    """Open a database file, created if missing, in the way every windlass process opens it."""
    path = os.fspath(path)
    check_engine(apsw.sqlite_lib_version())
    check_path(path)
    if synchronous not in ("FULL", "NORMAL"):
        raise BadInput(f"There is no synchronous={synchronous!r}.", hint="Use FULL, or NORMAL where a power cut may cost the last commits.")
    with translated(path), contextlib.ExitStack() as undo:
        db = open_file(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        undo.callback(disconnect, db)
        _set_up(db, path, clock, synchronous)
        if not _moved(db):
            undo.pop_all()
            return db
        # A restore has put another file in its place; the log found by name now belongs to that one, and must not be touched.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connect(path, clock, synchronous)


# Schema


@contextlib.contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    finally:
        if db.in_transaction:
            db.execute("rollback")


def version_of(db: apsw.Connection) -> int:
    """The version of the schema; 0 when there is none."""
    if not db.execute("select count(*) from sqlite_schema where name = 'schema_version'").get:
        return 0
    version: int = db.execute("select coalesce(max(version), 0) from schema_version").get
    return version


def _apply(db: apsw.Connection, steps: Sequence[str], number: int, now: int) -> None:
    if number > 1 and FAULTS.on:
        FAULTS.hit("migrate.between_steps")
    db.execute(steps[number - 1])
    db.execute("insert into schema_version (version, applied_at) values (:version, :now)", {"version": number, "now": now})


def known_steps(steps: Sequence[str] | None) -> Sequence[str]:
    return sql.migrations("sqlite") if steps is None else steps


def prepare(db: apsw.Connection, path: str, steps: Sequence[str], clock: Clock) -> None:
    """Create the schema in a database without one; refuse one of another version."""
    if version_of(db) == 0:
        with _transaction(db):
            if version_of(db) == 0:  # checked again under the lock: several processes may be here at once
                for number in range(1, len(steps) + 1):
                    _apply(db, steps, number, clock.now())
    version = version_of(db)
    refuse_older(version, len(steps), path)
    refuse_newer(version, len(steps), path)


def migrate(path: Path, clock: Clock, steps: Sequence[str] | None = None) -> tuple[int, int]:
    """Apply the steps that are missing, each with its version in one transaction; the versions before and after."""
    path, steps = os.fspath(path), known_steps(steps)
    with contextlib.ExitStack() as undo, translated(path):
        db = connect(path, clock)
        undo.callback(disconnect, db)
        before = version_of(db)
        refuse_newer(before, len(steps), path)
        for number in range(before + 1, len(steps) + 1):
            with _transaction(db):
                if version_of(db) == number - 1:  # otherwise another process was first
                    _apply(db, steps, number, clock.now())
        return before, version_of(db)
