"""The store in PostgreSQL: any number of processes on any number of machines.

`AsyncPostgres` and `BlockingPostgres` are the permitted pair of twins.
"""

from windlass.store.postgres.borrowed import BorrowedPostgres
from windlass.store.postgres.stores import AsyncPostgres, BlockingPostgres, migrate

__all__ = ["AsyncPostgres", "BlockingPostgres", "BorrowedPostgres", "migrate"]
