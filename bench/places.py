"""Where it is measured: a file of SQLite and a server of PostgreSQL, asked for the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from bench.cpu import server_seconds
from bench.load import Execute, postgres_loader, sqlite_loader
from bench.raw import MinimalPostgres, MinimalSqlite, Raw, RawPostgres, RawSqlite
from bench.times import PostgresTimes, SqliteTimes
from windlass.clock import SystemClock
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PgBouncer, PostgresServer

# As PostgreSQL comes: fsync on, and the memory it takes unless told otherwise.
_SERVER = {"shared_buffers": "128MB"}
_TABLES = ("job_runs", "job_journal", "job_schedules")


class Times(Protocol):
    """Tells how long statements took."""

    def take(self) -> float:
        """Milliseconds since the last call."""


class Place(Protocol):
    """A database to measure on. An address names one that is empty at first."""

    name: str
    leaves_dead_rows: bool  # until a vacuum; else what an update or a deletion frees is used again without help

    def make(self) -> str: ...

    def store(self, address: str) -> Store: ...

    def raw(self, address: str) -> Raw: ...

    def minimal(self, address: str) -> Raw: ...

    def loader(self, address: str) -> AbstractContextManager[Execute]: ...

    def timed_store(self, address: str) -> tuple[Store, Times]: ...

    def vacuum(self, address: str) -> None: ...

    def bytes_used(self, address: str, *, packed: bool = False) -> int: ...


class SqlitePlace:
    """Files in a folder."""

    name, leaves_dead_rows = "sqlite", False

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0

    def make(self) -> str:
        """A path."""
        self._made += 1
        return str(self._folder / f"{self._made}.db")

    def store(self, address: str) -> BlockingSqlite:
        return BlockingSqlite(address, SystemClock())

    def raw(self, address: str) -> Raw:
        return RawSqlite(Path(address), SystemClock())

    def minimal(self, address: str) -> Raw:
        return MinimalSqlite(Path(address), SystemClock())

    def loader(self, address: str) -> AbstractContextManager[Execute]:
        return sqlite_loader(Path(address), SystemClock())

    def timed_store(self, address: str) -> tuple[Store, Times]:
        store = self.store(address)
        return store, SqliteTimes(store)

    def vacuum(self, address: str) -> None:
        """Nothing to do."""

    def bytes_used(self, address: str, *, packed: bool = False) -> int:
        """The size of the file with its log copied into it."""
        with self.loader(address) as execute:
            execute("vacuum" if packed else "select 1")
            execute("pragma wal_checkpoint(truncate)")
        return Path(address).stat().st_size


class PostgresPlace:
    """Databases of a server."""

    name, leaves_dead_rows = "postgres", True

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._made = server, 0

    @property
    def version(self) -> str:
        return self._server.execute("show server_version")

    def make(self) -> str:
        """The address of a database."""
        self._made += 1
        return self._server.create_database(f"bench{self._made}")

    def store(self, address: str) -> BlockingPostgres:
        return BlockingPostgres(address, SystemClock())

    @contextmanager
    def pooler(self) -> Iterator[Callable[[str], str]]:
        """A pooler that shares by transaction, as many connections as it does by itself; how an address is reached through it."""
        with PgBouncer(self._server, size=20) as pooler:
            yield lambda address: f"{pooler.url(_database(address))}&pooled=true"

    def raw(self, address: str) -> Raw:
        return RawPostgres(address, SystemClock())

    def minimal(self, address: str) -> Raw:
        return MinimalPostgres(address, SystemClock())

    def loader(self, address: str) -> AbstractContextManager[Execute]:
        return postgres_loader(address)

    def timed_store(self, address: str) -> tuple[Store, Times]:
        """With the server's own housekeeping off, so that a figure is one before any of it."""
        run_sync(self.store(address).close())  # makes the schema
        for table in _TABLES:
            self._server.execute(f"alter table {table} set (autovacuum_enabled = false)", _database(address))
        times = PostgresTimes(self._server, _database(address))
        return self.store(address), times

    def server_seconds(self) -> float:
        """The processor time of all processes of the server so far, those that have ended included."""
        return server_seconds(self._server)

    def wal_bytes(self) -> int:
        """How much has been written to its log of changes so far."""
        return int(self._server.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def vacuums(self) -> int:
        """How many tables are being vacuumed, whoever began it."""
        return int(self._server.execute("select count(*) from pg_stat_progress_vacuum"))

    def vacuum(self, address: str) -> None:
        """What autovacuum does when it comes round."""
        for table in _TABLES:
            self._server.execute(f"vacuum (analyze) {table}", _database(address))

    def bytes_used(self, address: str, *, packed: bool = False) -> int:
        """All tables with all their indexes."""
        if packed:
            self._server.execute("vacuum full", _database(address))
        tables = "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        return int(self._server.execute(tables, _database(address)))


def _database(address: str) -> str:
    return address.partition("?")[0].rpartition("/")[2]


@contextmanager
def open_sqlite() -> Iterator[SqlitePlace]:
    """Beside the results, so on the disk of the project, not in a memory that calls itself /tmp."""
    with TemporaryDirectory(prefix="bench-", dir=Path(__file__).parent) as folder:
        yield SqlitePlace(Path(folder))


@contextmanager
def open_postgres(**settings: str) -> Iterator[PostgresPlace]:
    """A server of its own, with fsync."""
    with PostgresServer(fsync=True, settings=_SERVER | settings) as server:
        yield PostgresPlace(server)
