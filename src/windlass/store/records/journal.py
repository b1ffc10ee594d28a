"""The journal as a whole, and the offsets of its consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.model import Entry
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import STATES

ADVANCE = ("lock_tail", "refuse_advance", "advance_tail")
"""The first statement of every batch that advances a consumer."""

BATCHES: Mapping[str, tuple[str, ...]] = {"begin_tail": ("begin_tail",), "begin_again": ("settle_journal", *ADVANCE)}


class JournalRecords(Rows):
    """Reading the journal from end to end."""

    async def snapshot(self) -> str | None:
        """The snapshot of what a reader can see now; None where entries are committed in their order."""
        rows = await self._read("snapshot")
        return rows[0][0] if rows else None

    async def tail(self, seen: str | None, upto: str | None, xid: int, entry: int, last: int, count: int) -> list[tuple[int, int, Entry]]:
        values: dict[str, Value] = {"entry": entry, "last": last, "count": count}
        if upto is not None:
            values |= {"seen": seen, "upto": upto, "xid": str(xid)}
        rows = await self._read("tail", **values)
        return [
            (key, order, Entry(run, rev, at, move, STATES[state], attempt, worker, detail, job, queue, STATES.get(before), *rest))
            for key, order, run, rev, at, move, state, attempt, worker, detail, job, queue, before, *rest in rows
        ]

    async def last_entry(self) -> int:
        """The highest entry number ever used, where that marks the end of the journal."""
        rows = await self._read("last_entry")
        return int(rows[0][0]) if rows else 0

    async def consumer(self, name: str) -> tuple[str, int] | None:
        """The cursor of a consumer and its revision; None before its first read."""
        rows = await self._read("consumer", name=name)
        return (rows[0][0], rows[0][1]) if rows else None

    async def consumers(self) -> dict[str, int]:
        """The time up to which each consumer has read the journal."""
        return dict(await self._read("consumers"))

    async def begin(self, name: str, cursor: str, at: int) -> None:
        await self._batch("begin_tail", Statement("begin_tail", {"name": name, "cursor": cursor, "at": at}))

    async def settle(self, count: int) -> bool:
        """Mark about `count` entries of transactions that this server never began as older than all of its own; whether there were any."""
        upto = await self._read("copied_upto", count=count)
        if upto:
            await self._batch("begin_again", Statement("settle_journal", {"xid": upto[0][0]}))
        return bool(upto)

    async def advance(self, verb: str, name: str, place: tuple[int, str, int], statements: Sequence[Statement]) -> None:
        """Advance a consumer, together with what it derived from the entries; Conflict when it was advanced meanwhile.

        `place` is the revision that was read, the cursor after the entries, and the time of the last of them.
        """
        rev, cursor, at = place
        values: dict[str, Value] = {"name": name, "rev": rev, "cursor": cursor, "at": at}
        await self._batch(verb, *(Statement(step, values) for step in ADVANCE), *statements)
