"""Reads and writes of sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from windlass.model import Run, Schedule, Slot
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.records.changes import ReadyQueue, consequences, released_by, seqs_of
from windlass.store.records.schedules import schedule_of
from windlass.store.rows import pack, run_of

NEXT = ("next_due", "next_limiter", "next_lease_check", "next_slot_end", "next_schedule")
"""The columns of `next_times`, in their order."""


class PageSizes(NamedTuple):
    """The sizes of pages: of runs, of limiters and direct calls, of schedules."""

    runs: int
    keys: int
    schedules: int


class Pages(NamedTuple):
    """The first page of everything that may be due, and the times of the next work, as of one moment."""

    late: list[Run]  # leases whose check lies further ahead than they can last, if requested
    overdue: list[Run]
    slots: list[Slot]
    limiters: list[str]
    parked: list[str]
    schedules: list[Schedule]
    checks: list[int]
    due: list[tuple[int, int]]
    times: dict[str, int]

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not any(self[:-1])


class SweepRecords(Rows):
    """Batches of sweeps."""

    async def first_pages(self, now: int, overdue: tuple[int, int], parked: str, sizes: PageSizes, *, late: int | None) -> Pages:
        """The first page of everything that a sweep handles, in one read; `late` is as for `looked_at_late`, or None to leave that out."""
        statements = [
            Statement("overdue", {"now": now, "lease_check_at": overdue[0], "seq": overdue[1], "count": sizes.runs}),
            Statement("slots_overdue", {"now": now, "after": 0, "count": sizes.keys}),
            Statement("limiters_due", {"now": now, "count": sizes.keys}),
            Statement("parked_keys", {"after": parked, "count": sizes.keys}),
            Statement("schedules_due", {"now": now, "at": 0, "since": 0, "seq": 0, "count": sizes.schedules}),
            Statement("checks", {"after": 0, "count": sizes.runs}),
            Statement("due", {"now": now, "at": 0, "seq": 0, "count": sizes.runs}),
            Statement("next_times", {"now": now}),
            *([] if late is None else [Statement("looked_at_late", {"now": late, "count": sizes.runs})]),
        ]
        leases, slots, limiters, keys, schedules, checks, due, times, *rest = await self._batch("read", *statements)
        return Pages(
            [run_of(row) for rows in rest for row in rows],
            [run_of(row) for row in leases],
            [Slot(*row) for row in slots],
            [key for key, *_ in limiters],
            [key for (key,) in keys],
            [schedule_of(row) for row in schedules],
            [run for (run,) in checks],
            [(at, seq) for at, seq in due],
            _times_of(times),
        )

    async def next_times(self, now: int) -> dict[str, int]:
        """The next times at which a run is due, a limiter opens, a lease is checked, a direct call ends, a schedule fires; where any."""
        return _times_of(await self._read("next_times", now=now))

    # Leases

    async def overdue(self, now: int, after: tuple[int, int], count: int) -> list[Run]:
        return [run_of(row) for row in await self._read("overdue", now=now, lease_check_at=after[0], seq=after[1], count=count)]

    async def looked_at_late(self, now: int, count: int) -> list[Run]:
        """Live leases whose check lies further ahead than they can last from a time on."""
        return [run_of(row) for row in await self._read("looked_at_late", now=now, count=count)]

    async def postpone_check(self, looks: Iterable[tuple[Run, int]]) -> None:
        rows = sorted((run.seq, run.rev, at) for run, at in looks)
        packed = pack(rows)
        await self._batch("postpone_check", Statement("postpone_check", {"r": packed}))

    async def unlocked(self, ids: Sequence[int], ending: Sequence[int]) -> set[int]:
        """Those of these runs that can be written without waiting for a lock; for `ending` runs, their dependents' locks count too."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "ending": pack(sorted(ending))}
        return seqs_of((await self._batch("probe", Statement("unlocked", values)))[0]) if ids else set()

    # Runs that are due

    async def due(self, now: int, after: tuple[int, int], count: int) -> list[tuple[int, int]]:
        """Due times and numbers of runs, after such a pair."""
        return [(at, seq) for at, seq in await self._read("due", now=now, at=after[0], seq=after[1], count=count)]

    async def dispatch(self, ids: Sequence[int], mark: str, now: int) -> dict[int, str]:
        """Queue those of these runs that are due; returns them with their queues."""
        packed = pack(ids)
        journal = Statement("journal", {"ids": packed, "mark": mark, "move": "dispatch", "now": now})
        moved = await self._batch("dispatch", Statement("dispatch", {"ids": packed, "mark": mark, "now": now}), journal)
        return dict(moved[0])

    # Waits that a caller's transaction has left to be settled

    async def checks(self, after: int, count: int) -> list[int]:
        """The next runs whose waits are to be settled."""
        return [run for (run,) in await self._read("checks", after=after, count=count)]

    async def checked_ends(self, runs: Sequence[int]) -> list[int]:
        """Those predecessors of these runs that have ended."""
        return sorted(seqs_of(await self._read("checked_ends", ids=pack(runs))))

    async def settle(self, runs: Sequence[int], ended: Sequence[int], nonce: str, mark: str, now: int) -> list[ReadyQueue]:
        """Apply the ends of predecessors to these runs, and drop their checks."""
        statements = consequences(pack(ended), nonce, mark, now) if ended else []
        statements.append(Statement("drop_checks", {"ids": pack(runs)}))
        return released_by(statements, await self._batch("settle", *statements))


def _times_of(rows: list[Row]) -> dict[str, int]:
    return {name: at for name, at in zip(NEXT, rows[0], strict=True) if at is not None}
