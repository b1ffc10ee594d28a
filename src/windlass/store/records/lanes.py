"""Lanes: runs of a queue that the same workers may take."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from windlass.model import Lane, Needs
from windlass.payload import reader
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.records.changes import seqs_of
from windlass.store.rows import pack


class KnownLanes(NamedTuple):
    """Lanes, and how often lanes had been removed before they were read."""

    removed: int
    lanes: list[Lane]


class Room(NamedTuple):
    """The number of rows that creations make on demand: in all, and made by one untrusted principal."""

    lanes: int
    own_lanes: int
    resources: int
    own_resources: int
    placeholders: int
    own_placeholders: int


class LaneRecords(Rows):
    """Lanes, and the removal of unused ones."""

    async def add(self, lanes: Iterable[tuple[str, str, str]], owner: str | None, limit: int, share: int, controls: int, now: int) -> None:
        """Create the missing ones, all or none, if there is room for them and the controls are as they were read."""
        values: dict[str, Value] = {"r": pack(sorted(lanes)), "owner": owner, "limit": limit, "share": share}
        await self._batch("lanes", Statement("lock_lanes"), Statement("add_lanes", values | {"controls": controls, "now": now}))

    async def after(self, last: int) -> KnownLanes:
        """The lanes after a number, and how often lanes had been removed before they were read."""
        (revs, *_), rows = await self._batch("read", Statement("controls_rev"), Statement("lanes_after", {"after": last}))
        return KnownLanes(revs[1], [Lane(identity, queue, job, needs_from(text), *rest) for identity, queue, job, text, *rest in rows])

    async def room(self, owner: str | None) -> Room:
        return Room(*(await self._read("room", owner=owner))[0])

    # Removal of unused lanes

    async def unused(self, before: int) -> dict[int, int | None]:
        """Lanes that were not used since a time, with their last use, None where it is unknown."""
        return dict(await self._read("unused_lanes", before=before))

    async def use(self, ids: Collection[int], before: int, now: int) -> set[int]:
        """Note that these lanes are in use, where that was not noted since `before`; returns those that exist."""
        packed = pack(sorted(ids))
        values: dict[str, Value] = {"ids": packed, "before": before, "now": now}
        there = Statement("lanes_there", {"ids": packed})
        return seqs_of((await self._batch("lanes", Statement("lock_lanes"), Statement("use_lanes", values), there))[-1])

    async def close(self, ids: Collection[int], before: int) -> set[int]:
        """Close those of these that were not used since a time, so that their next use must be noted first; returns them."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "before": before}
        return seqs_of(
            (await self._batch("lanes", Statement("lock_lanes"), Statement("close_lanes", values), Statement("raise_removed")))[1]
        )

    async def creating(self) -> set[str]:
        """The open transactions that create runs, where the database can have others than this one."""
        return {name for (name,) in await self._read("creating")}

    async def in_use(self, ids: Collection[int]) -> set[int]:
        """Those of these lanes that have queued or live runs."""
        return seqs_of(await self._read("lanes_in_use", ids=pack(sorted(ids))))

    async def of_waiting(self, after: int, count: int) -> list[tuple[int, int]]:
        """Runs that wait for others, with their lanes, after a number."""
        return [(seq, lane) for seq, lane in await self._read("lanes_of_waiting", seq=after, count=count)]

    async def of_scheduled(self, after: tuple[int, int], count: int) -> list[tuple[int, int, int]]:
        """Due times, numbers and lanes of scheduled runs, after such a pair of time and number."""
        return [(at, seq, lane) for at, seq, lane in await self._read("lanes_of_scheduled", at=after[0], seq=after[1], count=count)]

    async def drop(self, ids: Collection[int]) -> set[int]:
        """Remove those of these that are closed, were not used since, and have neither queued nor live runs."""
        drop = Statement("drop_lanes", {"ids": pack(sorted(ids))})
        return seqs_of((await self._batch("drop_lanes", Statement("lock_lanes"), drop, Statement("raise_removed")))[1])


_needs = reader(Needs)


def needs_from(text: str) -> Needs:
    """The needs of a lane from their text."""
    return _needs(text) if text else Needs()


def needs_text(needs: Needs) -> str:
    """The text of a lane's needs, empty for none."""
    return "" if needs == Needs() else pack(needs)
