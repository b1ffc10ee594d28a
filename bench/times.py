"""How long the statements of a batch took, without begin and commit, as each database can best tell."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from windlass.store.base import Row
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

_FRAME = ("begin", "commit", "rollback")
_DURATION = re.compile(r"duration: ([\d.]+) ms +(?:statement|(?:parse|bind|execute) [^:]*): (\w+)")


class _Fetched(NamedTuple):
    rows: list[Row]

    def fetchall(self) -> list[Row]:
        return self.rows


class SqliteTimes:
    """Times each statement from binding to its last row, inside the store, on the thread that runs it."""

    def __init__(self, store: BlockingSqlite) -> None:
        assert store._line is not None
        self._execute, self._spent = store._line._execute, 0
        store._line._execute = self._timed  # type: ignore[assignment]

    def _timed(self, text: str, values: Any = None) -> _Fetched:
        begun = time.perf_counter_ns()
        rows = self._execute(text, values).fetchall()
        if not text.startswith(_FRAME):
            self._spent += time.perf_counter_ns() - begun
        return _Fetched(rows)

    def take(self) -> float:
        """Milliseconds since the last call."""
        spent, self._spent = self._spent, 0
        return spent / 1e6


class PostgresTimes:
    """Reads the server's log, which has the time of every statement before its answer is sent: parse, bind and execute."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._log, self._read = server.folder / "log", 0
        for setting in ("log_min_duration_statement = 0", "log_parameter_max_length = 0"):
            server.execute(f'alter database "{database}" set {setting}')

    def take(self) -> float:
        """Milliseconds since the last call, of all sessions of the server that log; so one store at a time."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read().decode(errors="replace")
            self._read = log.tell()
        return sum(float(spent) for spent, word in _DURATION.findall(text) if not word.lower().startswith(_FRAME))
