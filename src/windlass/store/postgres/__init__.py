"""The store in PostgreSQL: any number of processes on any number of machines.

`AsyncPostgres` is for event loops, `BlockingPostgres` for the caller's thread.
"""

from windlass.store.postgres.borrowed import BorrowedPostgres
from windlass.store.postgres.stores import AsyncPostgres, BlockingPostgres, migrate

__all__ = ["AsyncPostgres", "BlockingPostgres", "BorrowedPostgres", "migrate"]
