"""Reads claim candidates without locks; shared by `claim` and `why`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from windlass.engine.ground import Part
from windlass.engine.lanes import OpenLanes
from windlass.limiters import Candidate, Need, Selector, lacks, needs, worker_needs
from windlass.model import Needs
from windlass.store.records.claims import Candidates, Head, Scan


class Heads(Part):
    """The next runs in queue order, and the occupancy of the limiters that they need."""

    async def look(
        self,
        lanes: OpenLanes,
        choice: Selector,
        after: tuple[int, int, int],
        width: int,
        singles: Collection[str] = (),
        nonces: Collection[str] = (),
    ) -> Candidates:
        """The next runs; of a lane that can give none now, only its first run, for which others may have to wait."""
        fixed = {lane.id: _fixed(lane.requires, choice) for lane in lanes.limited}
        await self.learn(choice, {need.key for needs in fixed.values() for need in needs})
        none = {
            lane.id
            for lane in lanes.limited
            if any(self.ground.controls.resource(use.resource).capacity == 0 for use in lane.requires.uses)
        }
        shut = [lane for lane, needs in fixed.items() if lane in none or lacks(needs, choice.limiters, frozenset())]
        takeable = [*lanes.plain, *(lane for lane in fixed if lane not in shut)]
        return await self.records.claims.look([Scan(takeable, after, width, shut)], singles, nonces)

    async def learn(self, choice: Selector, keys: set[str]) -> None:
        """Load these limiters into a selector, if it has not got them yet."""
        workers = () if choice.worker is None else (choice.worker,)
        choice.limiters |= await self.ground.limiters_of(keys - choice.limiters.keys(), choice.now, workers)

    async def candidates(self, choice: Selector, heads: Sequence[Head]) -> list[Candidate]:
        """The runs at these positions with their needs; their limiters are loaded into the selector."""
        candidates = [
            Candidate(head.seq, head.lane, head.due_at, all_needs(self.ground.lanes.by_id[head.lane].requires, head.keys, choice))
            for head in heads
        ]
        await self.learn(choice, {need.key for candidate in candidates for need in candidate.needs})
        return candidates


def all_needs(lane: Needs, keys: str | None, choice: Selector) -> tuple[Need, ...]:
    """The needs of a run: of resources, and of the worker that the selector is for."""
    shared = needs(lane.uses, keys)
    return shared if choice.worker is None else shared + worker_needs(lane, keys, choice.worker.name)


def _fixed(lane: Needs, choice: Selector) -> tuple[Need, ...]:
    """The needs that all runs of a lane share; where these differ, the largest."""
    shared = needs(tuple(use for use in lane.uses if use.per is None), None)
    return shared if choice.worker is None else shared + worker_needs(lane, None, choice.worker.name)
