"""What a claim sees before it takes anything; `why` looks with the same eyes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from windlass.engine.core import Core, Open
from windlass.gates import Candidate, Choice, Need, lacks, needs, worker_needs
from windlass.model import Needs
from windlass.store.claims import Head, Look, Wanted


class Looking(Core):
    """Reads the next runs in the order of the queue, and what is occupied of what they use."""

    async def look(
        self,
        lanes: Open,
        choice: Choice,
        after: tuple[int, int, int],
        width: int,
        singles: Collection[str] = (),
        nonces: Collection[str] = (),
    ) -> Look:
        """The next runs; of lanes that can give none now, only the one that others may have to wait for."""
        fixed = {lane.id: _fixed(lane.requires, choice) for lane in lanes.limited}
        await self.learn(choice, {need.key for wanted in fixed.values() for need in wanted})
        none = {lane.id for lane in lanes.limited if any(self.controls.resource(use.resource).capacity == 0 for use in lane.requires.uses)}
        shut = [lane for lane, wanted in fixed.items() if lane in none or lacks(wanted, choice.gates, frozenset())]
        takeable = [*lanes.plain, *(lane for lane in fixed if lane not in shut)]
        return await self.records.look([Wanted(takeable, after, width, shut)], singles, nonces)

    async def learn(self, choice: Choice, keys: set[str]) -> None:
        """Let a choice know of these gates, if it does not yet."""
        workers = () if choice.worker is None else (choice.worker,)
        choice.gates |= await self.gates_of(keys - choice.gates.keys(), choice.now, workers)

    async def candidates(self, choice: Choice, heads: Sequence[Head]) -> list[Candidate]:
        """The runs at these places with what they need, of which the choice then knows all gates."""
        found = [
            Candidate(head.seq, head.lane, head.due_at, all_needs(self.lanes.by_id[head.lane].requires, head.keys, choice))
            for head in heads
        ]
        await self.learn(choice, {need.key for candidate in found for need in candidate.needs})
        return found


def all_needs(lane: Needs, keys: str | None, choice: Choice) -> tuple[Need, ...]:
    """What a run occupies of resources, and of the worker for which is chosen."""
    shared = needs(lane.uses, keys)
    return shared if choice.worker is None else shared + worker_needs(lane, keys, choice.worker.name)


def _fixed(lane: Needs, choice: Choice) -> tuple[Need, ...]:
    """What every run of a lane occupies, or as much as one of them may."""
    shared = needs(tuple(use for use in lane.uses if use.per is None), None)
    return shared if choice.worker is None else shared + worker_needs(lane, None, choice.worker.name)
