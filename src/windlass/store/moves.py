"""Places in a queue, and how a run gets another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windlass.machine import Reorder
from windlass.model import Run
from windlass.store.base import Statement, Value
from windlass.store.rows import Rows, pack

BATCHES: Mapping[str, tuple[str, ...]] = {"move": ("lock_moved", "move", "respace", "refuse_move", "journal_moves")}


class Place(NamedTuple):
    """Where a queued run stands: the least of a queue is its head."""

    band: int
    position: int
    seq: int


class Shift(NamedTuple):
    """A neighbour that makes room, if it still stands where it was seen."""

    seq: int
    band: int
    seen: int
    position: int


class MoveRecords(Rows):
    """Places in a queue, and how a run gets another one."""

    async def around(self, lanes: Sequence[int], cut: Place, moved: int, count: int) -> tuple[list[Place], list[Place]]:
        """The nearest queued runs before a place, and those from it on, without the one that is to be moved."""
        look: dict[str, Value] = {"lanes": pack(lanes), "moved": moved, "count": count, **cut._asdict()}
        before, behind = await self._batch("read", Statement("places_before", look), Statement("places_from", look))
        return list(map(Place._make, before)), list(map(Place._make, behind))

    async def place_at(self, lanes: Sequence[int], moved: int, number: int) -> Place | None:
        """The place of the queued run that so many others come before."""
        rows = await self._read("place_at", lanes=pack(lanes), moved=moved, count=number)
        return Place(*rows[0]) if rows else None

    async def move(self, run: Run, detail: str | None, shifts: Sequence[Shift], mark: str, now: int) -> bool:
        """Write a run's new place if it is still as it was read; Conflict when it or a neighbour that should make room is not."""
        moved: dict[str, Value] = {name: getattr(run, name) for name in ("seq", "rev", "band", "position", "aged")}
        move = Statement("move", moved | {"mark": mark})
        entry = [run.seq, Reorder.name, run.attempt, run.worker, detail, None]
        journal = Statement("journal_moves", {"r": pack([entry]), "mark": mark, "now": now})
        if not shifts:
            return bool((await self._batch("move", move, journal))[0])
        ids = pack(sorted(shift.seq for shift in shifts))
        lock = Statement("lock_moved", {"ids": pack(sorted([run.seq, *(shift.seq for shift in shifts)]))})
        respace = Statement("respace", {"r": pack(sorted(shifts)), "mark": mark})
        refuse = Statement("refuse_move", {"seq": run.seq, "ids": ids, "mark": mark, "now": now})
        await self._batch("move", lock, move, respace, refuse, journal)
        return True
