"""The journal as a whole: read from end to end, each entry once, by consumers that keep an offset in it."""

from __future__ import annotations

import logging
from contextlib import suppress

from msgspec import Struct

from windlass.engine import checks
from windlass.engine.cursors import LAST, ahead, encoded, horizon, tail_place
from windlass.engine.ground import Part
from windlass.errors import Conflict
from windlass.model import Entry

_LOG = logging.getLogger("windlass.journal")

SETTLED = 1_000  # entries in one batch


class Tail(Struct, frozen=True):
    """Entries of all runs, each once, the cursor after them, and the cursors after each of them."""

    entries: list[Entry]
    cursor: str
    ended: bool  # there are no more entries at present, or none before `until`
    _window: tuple[str, str]
    _places: list[tuple[int, int]]

    def cursor_at(self, index: int) -> str:
        """The cursor after one of the entries: reading on from there returns exactly the entries after it."""
        seen, upto = self._window
        entry, xid = self._places[index]
        return encoded(["tail", seen, upto, xid, entry])

    def is_after(self, index: int, end: str) -> bool:
        """Whether one of the entries was committed after `tail_end` returned a cursor."""
        entry, xid = self._places[index]
        last, oldest, coming, running = horizon(end)
        return entry > last if last is not None else xid >= coming or (xid >= oldest and xid in running)


class Journal(Part):
    """The verbs for consumers of the journal."""

    async def tail(self, cursor: str | None = None, *, count: int = 500, until: str | None = None) -> Tail:
        """Every entry of the journal once, whatever the order of commits; without a cursor, from the first entry on.

        With `until`, the cursor of a tail that had ended, only entries that were visible there.
        """
        checks.integer(count, "count", 1, self.limits.page)
        horizon, upto, xid, entry = tail_place(cursor)
        end, _, _, last = tail_place(until) if until is not None else ("", "", 0, LAST)
        begun = bool(upto)
        if not begun:
            upto, xid, entry = end or await self.records.journal.snapshot() or "", 0, entry if not horizon else 0
        rows = [] if upto and upto == horizon else await self.records.journal.tail(horizon or "1:1:", upto or None, xid, entry, last, count)
        if begun and not rows:  # this window is exhausted; newer entries are in the next one
            return await self.tail(encoded(["tail", upto, "", 0, 0]), count=count, until=until)
        window, places = (horizon, upto), [(row[0], row[1]) for row in rows]
        ended = len(rows) < count and (not end or upto == end)
        if rows:
            entry, xid = places[-1]
        if upto and len(rows) < count:
            horizon, upto = upto, ""  # the window is read to its end; the next one begins where it ended
        return Tail([row[2] for row in rows], encoded(["tail", horizon, upto, xid, entry]), ended, window, places)

    async def tail_end(self) -> str:
        """The cursor after all present entries."""
        return encoded(["tail", await self.records.journal.snapshot() or "", "", 0, await self.records.journal.last_entry()])

    async def follow(self, name: str, *, count: int = 500, whole: bool = False) -> tuple[Tail, int]:
        """A consumer's unread entries, and the revision of its offset. A new consumer starts at the end, with `whole` at the beginning."""
        place = await self.records.journal.consumer(name)
        if place is None:
            begins = (encoded(["tail", "", "", 0, 0]), 0) if whole else (await self.tail_end(), self.clock.now())
            await self.records.journal.begin(name, *begins)
            place = await self.records.journal.consumer(name)
        cursor, rev = place or ("", 0)
        tail = await self.tail(cursor, count=count)
        if not tail.entries and ahead(cursor, tail.cursor):
            await self._begin_again(name, rev, tail.cursor)
        return tail, rev

    async def unread(self, name: str) -> Entry | None:
        """The first entry that a consumer has not read yet, if there is one."""
        entries = (await self.follow(name, count=1))[0].entries
        return entries[0] if entries else None

    async def _begin_again(self, name: str, rev: int, end: str) -> None:
        """For a logical copy restored on another server: its transaction ids start elsewhere, so no entry would count as new."""
        _LOG.warning("The journal is a copy of another server's. %s goes on from now; what was not read there yet is left out.", name)
        while await self.records.journal.settle(SETTLED):
            pass  # else these entries would appear new when this server's transaction ids have come as far
        with suppress(Conflict):  # another process was first
            await self.records.journal.advance("begin_again", name, (rev, end, self.clock.now()), ())
