"""Reads for the doctor's checks. None of them writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windlass.model import Policy
from windlass.payload import reader
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

NEWEST = 2**63 - 1

_policy = reader(Policy)


class WaitingRuns(NamedTuple):
    """The number of runs that wait in a lane, as far as they were counted, and since when the first one could begin."""

    lane: int
    ready: int
    parked: int
    since: int | None


class LostLease(NamedTuple):
    """A lease that ran out: the job of its run, and its worker."""

    job: str
    worker: str


class Timing(NamedTuple):
    """How long the last attempt of a run took, and how long it may take, if there is a limit."""

    job: str
    took: int
    limit: int | None


class File(NamedTuple):
    """A database file as this process has opened it."""

    path: str
    mode: str
    synchronous: int


class Server(NamedTuple):
    """A database server: its version, its connections and their limit, and whether autovacuum is on."""

    version: int
    connections: int
    limit: int
    vacuums: bool


class LongTransaction(NamedTuple):
    """A transaction that has been open for long."""

    pid: int
    application: str
    state: str
    age: int


class DoctorRecords(Rows):
    """Reads for the doctor's checks."""

    async def lanes_waiting(self, limit: int) -> list[WaitingRuns]:
        """Every lane in which runs wait, each counted up to a number."""
        lanes = [WaitingRuns(*row) for row in await self._read("lanes_waiting", limit=limit)]
        return [lane for lane in lanes if lane.ready or lane.parked]

    async def late_runs(self, before: int, count: int) -> list[int]:
        """When runs were due that should have been queued before a time, the oldest first."""
        return [due_at for (due_at,) in await self._read("late_runs", now=before, count=count)]

    async def newest_entry(self) -> int | None:
        """The time of the newest journal entry."""
        rows = await self._read("newest_entry", last=NEWEST)
        return rows[0][0] if rows else None

    async def lapses(self, since: int, count: int) -> list[LostLease]:
        """Leases that ran out, among the newest entries of the journal."""
        return [LostLease(*row) for row in await self._read("lapses", last=NEWEST, since=since, count=count)]

    async def runtimes(self, jobs: Sequence[str], state: str, count: int) -> list[Timing]:
        """How long the last runs of each job took that ended in a state."""
        rows = await self._read("runtimes", names=pack(jobs), state=state, count=count) if jobs else ()
        return [Timing(job, took, _limit(max_runtime, policy)) for job, max_runtime, policy, took in rows]

    async def file(self) -> File | None:
        """The database file; None where there is none."""
        rows = await self._read("file")
        return File(*rows[0]) if rows and rows[0][0] else None

    async def damages(self) -> list[str]:
        """The damages of the file; every page of it is read."""
        return [line for (line,) in await self._read("damages") if line != "ok"]

    async def store_time(self) -> int | None:
        """The time of the server, where there is one."""
        rows = await self._read("store_time")
        return rows[0][0] if rows else None

    async def server(self) -> Server | None:
        """The database server; None where there is none."""
        rows = await self._read("server")
        return Server(*rows[0]) if rows else None

    async def never_vacuumed(self) -> list[str]:
        """Tables for which autovacuum is switched off."""
        return [name for (name,) in await self._read("never_vacuumed")]

    async def long_transactions(self, older: int, count: int) -> list[LongTransaction]:
        """Transactions that have been open for longer, as far as this user may read them."""
        return [LongTransaction(*row) for row in await self._read("long_transactions", older=older, count=count)]

    async def dead_rows(self) -> tuple[int, int]:
        """The numbers of dead and live rows of the runs, where the database keeps dead ones."""
        rows = await self._read("dead_runs")
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)


def _limit(max_runtime: int | None, policy: str | None) -> int | None:
    timeout = None if policy is None else _policy(policy).timeout
    return min((limit for limit in (max_runtime, timeout) if limit), default=None)
