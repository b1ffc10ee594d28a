"""Which queued runs were announced to a queue outside of the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

BATCHES: Mapping[str, tuple[str, ...]] = {
    "follow_queue": ("add_unannounced", "advance_announcer"),
    "announce": ("announce",),
    "drop_announcements": ("drop_announcements",),
}


class Announceable(NamedTuple):
    """A row that is due to be announced, and whether its run is still queued."""

    run: int
    rev: int
    queued: bool


class MarkWindow(NamedTuple):
    """When an announcement counts as too old, or as made before the clock was set back."""

    before: int
    latest: int

    @classmethod
    def at(cls, now: int, resend: int) -> MarkWindow:
        return cls(now - resend, now + resend)


class AnnouncementRecords(Rows):
    """Announcements of queued runs."""

    async def cursor(self, queue: str) -> str | None:
        """Up to where the journal has been read for a queue; None if none of its runs was ever announced."""
        rows = await self._read("announcer", queue=queue)
        return rows[0][0] if rows else None

    async def add(self, queue: str, seqs: Collection[int]) -> None:
        """Note that these runs are to be announced, as far as they are queued there."""
        await self._batch("follow_queue", self._added(queue, seqs))

    async def follow(self, queue: str, seqs: Collection[int], seen: str | None, cursor: str) -> None:
        """The same, and up to where the journal has been read, unless another process has read further."""
        advance = Statement("advance_announcer", {"queue": queue, "seen": seen or "", "cursor": cursor})
        await self._batch("follow_queue", self._added(queue, seqs), advance)

    def _added(self, queue: str, seqs: Collection[int]) -> Statement:
        return Statement("add_unannounced", {"queue": queue, "ids": pack(sorted(seqs))})

    async def due(self, queue: str, window: MarkWindow, count: int) -> list[Announceable]:
        """The first runs of a queue that are to be announced: those that never were, then those that were longest ago."""
        rows = await self._read("to_announce", queue=queue, **window._asdict(), count=count)
        return [Announceable(run, rev, queued is not None) for run, rev, queued in rows]

    async def drop(self, rows: Iterable[Announceable]) -> None:
        """Forget runs that are not queued any more."""
        revs = sorted((row.run, row.rev) for row in rows)
        await self._batch("drop_announcements", Statement("drop_announcements", {"ids": pack([run for run, _ in revs]), "r": pack(revs)}))

    async def announce(self, revs: Iterable[tuple[int, int]], window: MarkWindow, now: int) -> set[int]:
        """Mark runs as announced if they are queued at these revisions and not announced within the window; which of them."""
        values: dict[str, Value] = {"r": pack(sorted(set(revs))), "now": now, **window._asdict()}
        return {run for (run,) in (await self._batch("announce", Statement("announce", values)))[0]}
