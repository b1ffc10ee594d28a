"""Counters: of each minute, and overall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.machine import UNFINISHED
from windlass.model import Counts, State
from windlass.store.base import Statement
from windlass.store.columns import COUNTS
from windlass.store.records.batches import Batches, Rows
from windlass.store.records.journal import ADVANCE, JournalRecords
from windlass.store.rows import pack

BATCHES: Mapping[str, tuple[str, ...]] = {
    "drop_totals": ("lock_totals", "keep_totals", "drop_totals"),
    "roll_up": (*ADVANCE, "add_minutes", "add_totals", "drop_minutes"),
}

CONSUMER = "stats"


class Total(NamedTuple):
    """The number of runs in each unfinished state, and the counters since the beginning."""

    unfinished: dict[State, int]
    counts: Counts


Tally = Mapping[str, int]
"""Amounts to add to columns, by name; missing columns stay as they are."""


class StatRecords(Rows):
    """Minutes and totals."""

    def __init__(self, batches: Batches, journal: JournalRecords) -> None:
        super().__init__(batches)
        self._journal = journal

    async def roll_up(
        self,
        place: tuple[int, str, int],
        minutes: Mapping[tuple[int, str, str], Tally],
        totals: Mapping[tuple[str, str], Tally],
        now: int,
        drop: tuple[int, int] | None,
    ) -> None:
        """Add the counts of the entries up to a cursor, if they are not counted yet; `drop`: before which minute, and how many rows."""
        per_minute = [[*key, *_columns(tally, COUNTS)] for key, tally in sorted(minutes.items())]
        whole = [[*key, *_columns(tally, (*UNFINISHED, *COUNTS))] for key, tally in sorted(totals.items())]
        statements = [Statement("add_minutes", {"r": pack(per_minute)}), Statement("add_totals", {"r": pack(whole), "now": now})]
        if drop is not None:
            statements.append(Statement("drop_minutes", {"before": drop[0], "count": drop[1]}))
        await self._journal.advance("roll_up", CONSUMER, place, statements)

    async def totals(self, count: int) -> tuple[Total, dict[tuple[str, str], Total]]:
        """The overall totals, and those of each queue and job; the earliest ones, if there are too many."""
        whole, rows = await self._batch("read", Statement("whole_totals"), Statement("totals", {"count": count}))
        return _total(whole[0]), {(queue, job): _total(numbers) for queue, job, *numbers in rows}

    async def minute_behind(self, since: int, rows: int) -> int | None:
        """The newest minute since one at which the rows, counted from the end, exceed this number; None when they never do."""
        minutes = await self._read("minute_behind", since=since, count=rows)
        return minutes[0][0] if minutes else None

    async def minutes(self, since: int) -> tuple[dict[int, Counts], dict[tuple[str, str], Counts]]:
        """The counters of each minute since one, and their sums for each queue and job."""
        values = {"since": since}
        minutes, jobs = await self._batch("read", Statement("minutes_since", values), Statement("jobs_since", values))
        by_job = {(queue, job): _counts(numbers) for queue, job, *numbers in jobs}
        return {minute: _counts(numbers) for minute, *numbers in minutes}, by_job

    async def idle_totals(self) -> set[tuple[str, str]]:
        """Queues and jobs without unfinished runs."""
        return {(queue, job) for queue, job in await self._read("idle_totals")}

    async def drop_totals(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Merge the counters of these queues and jobs into the overall ones, and drop their own rows."""
        rows = pack(sorted(pairs))
        await self._batch("drop_totals", *(Statement(name, {"r": rows}) for name in ("lock_totals", "keep_totals", "drop_totals")))


def _counts(row: Iterable[Any]) -> Counts:
    return Counts(*(int(number or 0) for number in row))


def _total(row: Sequence[Any]) -> Total:
    gauges = {state: int(number or 0) for state, number in zip(UNFINISHED, row, strict=False)}
    return Total(gauges, _counts(row[len(UNFINISHED) :]))


def _columns(tally: Tally, names: Iterable[str]) -> list[int]:
    return [tally.get(name, 0) for name in names]
