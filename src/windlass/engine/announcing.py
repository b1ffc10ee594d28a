"""Announcing queued runs to a queue outside of the store: each run once, and again when it is not claimed for a while."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.engine import checks
from windlass.engine.cursors import ahead
from windlass.engine.ground import Ground, Part
from windlass.engine.journal import Journal, Tail
from windlass.model import Run, State
from windlass.store.records.announcements import Announceable, MarkWindow
from windlass.store.records.claims import FIRST, Scan
from windlass.store.rows import pack

PAGE = 1_000
"""Rows and entries that are read at once."""
PASSES = 10
"""Pages of rows that one call reads: where most are of runs that were claimed, it returns fewer than there are."""
BEHIND = 100
"""Pages of the journal that one call reads; further behind, the queue itself is read."""


class Announcing(Part):
    """The verbs of dispatchers: what to announce, and that it is announced by one of them."""

    def __init__(self, ground: Ground, journal: Journal) -> None:
        super().__init__(ground)
        self._journal = journal

    async def to_announce(self, queue: str, *, resend: int, count: int = 100) -> list[Run]:
        """Queued runs that were not announced since they were queued, or more than `resend` milliseconds ago; the oldest first.

        Runs are `Listed`, as in a page. The first call for a queue reads all of it; later ones read what was queued since.
        """
        checks.name(queue, "A queue's name")
        checks.integer(resend, "resend", 1, self.limits.duration)
        checks.integer(count, "count", 1, self.limits.page)
        await self._follow(queue)
        due = await self._due(queue, MarkWindow.at(self.clock.now(), resend), count)
        runs = await self.records.runs.page("list_seqs", ids=pack([row.run for row in due]))
        return [run for run in runs if run.state is State.QUEUED and run.queue == queue]

    async def announce(self, runs: Sequence[Run], *, resend: int) -> list[str]:
        """Mark these runs as announced; returns the ids of those that this call has marked.

        A run that has changed since it was read, or that another call has announced within `resend` milliseconds, is not marked.
        """
        checks.count(runs, "runs", self.limits.page)
        checks.integer(resend, "resend", 1, self.limits.duration)
        now = self.clock.now()
        revs = [(run.seq, run.rev) for run in runs]
        marked = await self.records.announcements.announce(revs, MarkWindow.at(now, resend), now) if revs else set[int]()
        return list(dict.fromkeys(run.id for run in runs if run.seq in marked))

    async def _due(self, queue: str, window: MarkWindow, count: int) -> list[Announceable]:
        """The first runs that are to be announced. Rows of runs that are not queued any more are removed on the way."""
        queued: list[Announceable] = []
        for _ in range(PASSES):
            rows = await self.records.announcements.due(queue, window, max(count, PAGE))
            queued = [row for row in rows if row.queued]
            if len(queued) < len(rows):
                await self.records.announcements.drop(row for row in rows if not row.queued)
            if len(queued) >= count or len(rows) < max(count, PAGE):
                break
        return queued[:count]

    async def _follow(self, queue: str) -> None:
        """Note the runs that were queued since the last call."""
        cursor = await self.records.announcements.cursor(queue)
        if cursor is None:
            return await self._begin(queue, None)
        for _ in range(BEHIND):
            tail = await self._journal.tail(cursor, count=PAGE)
            if not tail.entries:  # a logical copy restored on another server, where no entry would count as new
                return await self._begin(queue, cursor) if ahead(cursor, tail.cursor) else None
            seqs = await self.records.runs.seqs(_queued_in(queue, tail))
            await self.records.announcements.follow(queue, seqs.values(), cursor, tail.cursor)
            cursor = tail.cursor
            if tail.ended:
                return None
        return await self._begin(queue, cursor)

    async def _begin(self, queue: str, cursor: str | None) -> None:
        """Note all runs of a queue, and that its journal has been read up to where it ended before."""
        end, after = await self._journal.tail_end(), FIRST
        lanes = await self.ground.lanes_of_queue(queue)
        while heads := (await self.records.claims.look([Scan(lanes, after, PAGE)])).views[0].heads:
            await self.records.announcements.add(queue, [head.seq for head in heads])
            after = heads[-1].place
        await self.records.announcements.follow(queue, (), cursor, end)


def _queued_in(queue: str, tail: Tail) -> list[str]:
    """The runs that these entries have put into a queue; a move within it is none of them."""
    entries = (entry for entry in tail.entries if entry.state is State.QUEUED and entry.queue == queue)
    return sorted({entry.run for entry in entries if entry.before is not State.QUEUED or entry.left is not None})
