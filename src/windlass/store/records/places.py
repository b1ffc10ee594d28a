"""Positions in a queue, and the move of a run to another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windlass.machine import Reorder
from windlass.model import Run
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

BATCHES: Mapping[str, tuple[str, ...]] = {"move": ("lock_moved", "move", "respace", "refuse_move", "journal_moves")}


class QueuePosition(NamedTuple):
    """The position of a queued run: the lowest of a queue is its head."""

    priority_key: int
    position: int
    seq: int


class Shift(NamedTuple):
    """A neighbour that makes room, if its position is still as it was read."""

    seq: int
    priority_key: int
    seen: int
    position: int


class PlaceRecords(Rows):
    """Positions in a queue, and the move of a run to another one."""

    async def around(
        self, lanes: Sequence[int], cut: QueuePosition, moved: int, count: int
    ) -> tuple[list[QueuePosition], list[QueuePosition]]:
        """The nearest queued runs before a position, and those from it on, without the one that is moved."""
        look: dict[str, Value] = {"lanes": pack(lanes), "moved": moved, "count": count, **cut._asdict()}
        before, behind = await self._batch("read", Statement("places_before", look), Statement("places_from", look))
        return list(map(QueuePosition._make, before)), list(map(QueuePosition._make, behind))

    async def at(self, lanes: Sequence[int], moved: int, number: int) -> QueuePosition | None:
        """The position of the queued run that has this number of others before it."""
        rows = await self._read("place_at", lanes=pack(lanes), moved=moved, count=number)
        return QueuePosition(*rows[0]) if rows else None

    async def before(self, lanes: Sequence[int], own: QueuePosition, count: int) -> int:
        """How many queued runs have its priority key and stand before a position, counted no further than `count`."""
        return int((await self._read("count_before", lanes=pack(lanes), count=count, **own._asdict()))[0][0])

    async def move(self, run: Run, detail: str | None, shifts: Sequence[Shift], mark: str, now: int) -> bool:
        """Write a run's new position if it is still as it was read; Conflict when it or a neighbour that should make room is not."""
        values: dict[str, Value] = {name: getattr(run, name) for name in ("seq", "rev", "priority_key", "position", "aging_priority")}
        move = Statement("move", values | {"mark": mark})
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
