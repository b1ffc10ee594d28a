"""The journal as a whole, and how far those who follow it have read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.model import Entry
from windlass.store.base import Statement, Value
from windlass.store.rows import STATES, Rows

ADVANCE = ("lock_tail", "refuse_advance", "advance_tail")
"""How every batch begins that moves a follower on."""

BATCHES: Mapping[str, tuple[str, ...]] = {"begin_tail": ("begin_tail",), "begin_again": ("settle_journal", *ADVANCE)}


class Tails(Rows):
    """Reading the journal from end to end."""

    async def snapshot(self) -> str | None:
        """What a reader could see now; None where entries are committed in their order."""
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
        """The highest entry there ever was, where that says how far the journal goes."""
        rows = await self._read("last_entry")
        return int(rows[0][0]) if rows else 0

    async def follower(self, name: str) -> tuple[str, int] | None:
        """The cursor of a follower and its revision; None before it has begun."""
        rows = await self._read("follower", name=name)
        return (rows[0][0], rows[0][1]) if rows else None

    async def followers(self) -> dict[str, int]:
        """Up to when each follower has read what happened."""
        return dict(await self._read("followers"))

    async def begin_tail(self, name: str, cursor: str, at: int) -> None:
        await self._batch("begin_tail", Statement("begin_tail", {"name": name, "cursor": cursor, "at": at}))

    async def settle_journal(self, count: int) -> bool:
        """Let about so many entries of transactions that this server has not begun be older than all of its own; whether there were any."""
        upto = await self._read("copied_upto", count=count)
        if upto:
            await self._batch("begin_again", Statement("settle_journal", {"xid": upto[0][0]}))
        return bool(upto)

    async def advance_tail(self, verb: str, name: str, place: tuple[int, str, int], statements: Sequence[Statement]) -> None:
        """Move a follower on, together with what it made of the entries; Conflict when another one has moved it meanwhile.

        `place` is the revision that was read, the cursor behind the entries, and when the last of them happened.
        """
        rev, cursor, at = place
        values: dict[str, Value] = {"name": name, "rev": rev, "cursor": cursor, "at": at}
        await self._batch(verb, *(Statement(step, values) for step in ADVANCE), *statements)
