"""This process's cache of lanes, and the lanes that a worker may take from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

from msgspec.structs import replace

from windlass.model import Lane, WorkerInfo
from windlass.store.records import KnownLanes, needs_from, needs_text

EXACT_LANES = 32
"""Lanes of a job in a queue. Above this number, further numbers of cores and memory are rounded up to powers of two."""

DAY = 24 * 3_600_000
NOTED_EVERY, LOOKED_EVERY = DAY, DAY // 24
"""Milliseconds after which the use of a lane is noted again, and between two checks whether that is due."""

LaneKey = tuple[str, str, str]  # queue, job, and the text of its needs


@lru_cache(maxsize=4096)
def _rounded(lane: LaneKey) -> LaneKey:
    """The shared lane of all needs whose cores and memory round up to the same powers of two."""
    needs = needs_from(lane[2])
    return *lane[:2], needs_text(replace(needs, cores=_power_of_two(needs.cores), memory=_power_of_two(needs.memory)))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 0 else 0


class OpenLanes(NamedTuple):
    """The lanes that a worker may take from now: those without limits, and those whose runs occupy resources."""

    plain: list[int]
    limited: list[Lane]


class Lanes:
    """The lanes that this process has read. Newer ones are added; where some were removed, all of them are read again."""

    def __init__(self) -> None:
        self.all: list[Lane] = []
        self.by_id: dict[int, Lane] = {}
        self.ids: dict[LaneKey, int] = {}
        self._numbers = Counter[tuple[str, str]]()  # of lanes of a job in a queue
        self.last = 0
        self.removed = 0  # how often lanes were removed from the store
        self.limited = True  # whether any lane has runs that occupy resources; assumed until lanes are read
        self.worked_out: tuple[tuple[int, int], dict[WorkerInfo, OpenLanes]] = (0, 0), {}  # by worker, valid for these lanes and controls
        self._used: dict[int, int] = {}
        self._unused, self._looked_at = frozenset[int](), -LOOKED_EVERY
        self._adding = Lock()

    def add(self, known: KnownLanes) -> bool:
        """Add newer lanes, in the order of their ids; concurrent reads may bring some twice. False: read all of them."""
        with self._adding:
            if known.removed > self.removed and self.last:
                return False
            if known.removed >= self.removed:  # else the answer is outdated
                self.removed = known.removed
                self._add(known.lanes)
        return True

    def renew(self, known: KnownLanes) -> None:
        """Replace all lanes by these. A removed one can still be found by id for a while, by a verb that has just read the id."""
        with self._adding:
            if known.removed < self.removed:
                return
            fresh = Lanes()
            fresh._add(known.lanes)
            self.by_id = {lane.id: lane for lane in self.all} | fresh.by_id
            self.all, self.ids, self._numbers, self._used, self.limited = fresh.all, fresh.ids, fresh._numbers, fresh._used, fresh.limited
            self.last, self.removed, self._looked_at = fresh.last, known.removed, -LOOKED_EVERY

    def _add(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if lane.id > self.last:
                self.all.append(lane)
                self.by_id[lane.id] = lane
                self._numbers[lane.queue, lane.job] += 1
                self._used[lane.id] = lane.used_at or 0
                self.limited = lane.requires.limited or (self.limited and self.last > 0)
                self.ids[lane.queue, lane.job, needs_text(lane.requires)] = self.last = lane.id

    def unused(self, now: int) -> frozenset[int]:
        """The lanes whose use must be noted again before they are used."""
        if not 0 <= now - self._looked_at < LOOKED_EVERY:
            self._unused = frozenset(lane for lane, at in self._used.items() if at < now - NOTED_EVERY)
            self._looked_at = now
        return self._unused

    def noted(self, lanes: Iterable[int], now: int) -> None:
        """Record that the use of these lanes was noted."""
        with self._adding:
            self._used |= {lane: now for lane in lanes if lane in self._used}
            self._looked_at = -LOOKED_EVERY

    def find(self, lane: LaneKey) -> int | None:
        """The lane for these needs: their own, or a rounded one where a job has many."""
        lane_id = self.ids.get(lane)
        return self.ids.get(_rounded(lane)) if lane_id is None and self._numbers[lane[:2]] >= EXACT_LANES else lane_id

    def lane(self, key: LaneKey) -> Lane | None:
        """The lane for these needs, if there is one."""
        return self.by_id.get(self.find(key) or 0)

    def missing(self, keys: Iterable[LaneKey]) -> set[LaneKey]:
        """The lanes to create so that each of these needs has one."""
        numbers, missing = self._numbers.copy(), set[LaneKey]()
        for lane in sorted(lane for lane in keys if self.find(lane) is None):
            missing.add(lane if numbers[lane[:2]] < EXACT_LANES else _rounded(lane))
            numbers[lane[:2]] += 1
        return missing

    def using(self, resources: Collection[str]) -> Iterator[Lane]:
        """The lanes whose runs occupy one of these resources."""
        return (lane for lane in self.all if any(use.resource in resources for use in lane.requires.uses))
