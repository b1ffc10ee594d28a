"""The store in one SQLite file, or in memory: many readers, one writer at a time, any number of processes.

`BlockingSqlite` works on the caller's thread. `AsyncSqlite` has a thread that writes and one that reads; batches that wait for the
writer share one commit.
"""

from windlass.store.sqlite.copies import backup, restore
from windlass.store.sqlite.files import OLDEST_ENGINE, check_engine, connect, disconnect, migrate, open_here, strange_here
from windlass.store.sqlite.stores import AsyncSqlite, BlockingSqlite

__all__ = [
    "OLDEST_ENGINE",
    "AsyncSqlite",
    "BlockingSqlite",
    "backup",
    "check_engine",
    "connect",
    "disconnect",
    "migrate",
    "open_here",
    "restore",
    "strange_here",
]
