"""Moving a queued run within its queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from windlass.engine import checks
from windlass.engine.edits import detail_of
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.runs import Runs
from windlass.errors import BadInput, Conflict, LimitReached, WrongState
from windlass.machine import Reorder, step
from windlass.model import Run, State
from windlass.store.records import Change, MoveResult
from windlass.store.records.claims import FIRST
from windlass.store.records.places import QueuePosition, Shift

APART = 2**10
"""Distance in position between a moved run and its only neighbour."""
NEAR, FAR = 2**5, 2**13
"""How many neighbours on each side are read to find room, at first and at most."""
DEEPEST = 10_000
"""The highest place that is counted to."""

_HEAD, _END = QueuePosition(*FIRST), QueuePosition(2**63 - 1, 2**63 - 1, 2**63 - 1)


class Aim(NamedTuple):
    """The target of a move. Exactly one field is set."""

    place: int | None = None
    to: str | None = None
    before: str | None = None
    after: str | None = None


class Moves(Part):
    """The verb that changes the order of a queue."""

    def __init__(self, ground: Ground, runs: Runs) -> None:
        super().__init__(ground)
        self._runs = runs

    async def move(
        self,
        run_id: str,
        *,
        place: int | None = None,
        to: Literal["top", "bottom"] | None = None,
        before: str | None = None,
        after: str | None = None,
        by: str | None = None,
    ) -> Run:
        """Move a queued run within its queue: to the n-th place from 0, the "top" or "bottom", or next to another run.

        It keeps its priority where that fits the place, else it takes its neighbour's. The order of all other runs stays the same.
        """
        aim = _checked(Aim(place, to, before, after))
        detail = detail_of(by, **aim._asdict())
        for _ in range(PATIENCE):
            run, now = await self._runs.get(run_id), self.clock.now()
            step(
                run, Reorder(priority_key=run.priority_key, position=run.position), now
            )  # raises if the move is refused, before anything is read
            lanes = await self.ground.lanes_of_queue(run.queue)
            cmd, shifts = await self._room(run, lanes, await self._cut(run, lanes, aim))
            change = Change(run, step(run, cmd, now), cmd.name, detail)
            try:
                if await self.records.places.move(change.after, detail, shifts, self.clock.nonce(), now):
                    await self.ground.wake_after([change], MoveResult({run.seq}, []), now)
                    return change.after
            except Conflict:
                continue  # a neighbour that should make room has moved, too
        raise Conflict(f"Run {run_id} or its neighbours kept changing; it was not moved.", hint="Try again.")

    async def _cut(self, run: Run, lanes: Sequence[int], aim: Aim) -> QueuePosition:
        """The position at which the run is inserted: it comes after every run with a lower one."""
        if aim.place is not None:
            return await self.records.places.at(lanes, run.seq, aim.place) or _END
        if aim.to is not None:
            return _HEAD if aim.to == "top" else _END
        other = await self._neighbour(run, aim.before or aim.after or "")
        return QueuePosition(other.priority_key, other.position, other.seq if aim.before else other.seq + 1)

    async def _neighbour(self, run: Run, run_id: str) -> Run:
        other = await self._runs.get(run_id)
        if other.seq == run.seq:
            raise BadInput(f"Run {run.id} cannot be moved next to itself.", hint="Name another run, or move it to the top or the bottom.")
        if other.queue != run.queue:
            raise BadInput(
                f"Run {other.id} is in queue {other.queue!r} and run {run.id} in {run.queue!r}.",
                hint="Name a run of the same queue, or patch the queue of this one first.",
            )
        if other.state is not State.QUEUED:
            raise WrongState(
                f"Run {other.id} is {other.state}, so it has no place in the queue.",
                hint="Name a run that is queued, or move this one to the top or the bottom.",
            )
        return other

    async def _room(self, run: Run, lanes: Sequence[int], cut: QueuePosition) -> tuple[Reorder, list[Shift]]:
        """A position for the insertion, and the neighbours that must be shifted for it: nearly always none."""
        width = 1
        while width <= FAR:
            around = await self.records.places.around(lanes, cut, run.seq, width)
            priority_key = _priority_key(run.priority_key, *around)
            before, behind = (_of(priority_key, places) for places in around)
            if (position := _between(run, priority_key, before, behind)) is not None:
                return Reorder(priority_key=priority_key, position=position), []
            if (spaced := _respaced(before, behind, width)) is not None:
                return Reorder(priority_key=priority_key, position=spaced[0]), spaced[1]
            width = max(NEAR, 2 * width)
        raise LimitReached(
            f"More than {FAR:,} runs stand at one place of queue {run.queue!r}, so there is none between them.",
            hint="Move it to the top or the bottom, or change its priority.",
        )


def _checked(aim: Aim) -> Aim:
    """Exactly one target is given, and it is valid."""
    if (number := sum(word is not None for word in aim)) != 1:
        raise BadInput(
            f"A move goes to one place, not to {number}.", hint="Say one of place (0 is the head), to (top or bottom), before, after."
        )
    checks.maybe(aim.place, "place", 0, DEEPEST)
    checks.choice(aim.to, "to", ("top", "bottom"))
    for run_id in (aim.before, aim.after):
        if run_id is not None:
            checks.identifier(run_id, "The other run")
    return aim


def _priority_key(own: int, before: Sequence[QueuePosition], behind: Sequence[QueuePosition]) -> int:
    """Its own priority key, or the nearest that fits between the neighbours'."""
    above = max(own, before[0].priority_key) if before else own
    return min(above, behind[0].priority_key) if behind else above


def _of(priority_key: int, places: Sequence[QueuePosition]) -> list[QueuePosition]:
    return list(takewhile(lambda place: place.priority_key == priority_key, places))


def _between(run: Run, priority_key: int, before: Sequence[QueuePosition], behind: Sequence[QueuePosition]) -> int | None:
    """A position between the two neighbours; the run's own if it can stay."""
    low, high = before[0] if before else _HEAD, behind[0] if behind else _END
    return next((at for at in _candidates(run, before, behind) if low < QueuePosition(priority_key, at, run.seq) < high), None)


def _candidates(run: Run, before: Sequence[QueuePosition], behind: Sequence[QueuePosition]) -> Iterator[int]:
    yield run.position
    if before and behind:
        yield (before[0].position + behind[0].position) // 2
    elif before:
        yield before[0].position + APART
    elif behind:
        yield behind[0].position - APART


def _respaced(before: Sequence[QueuePosition], behind: Sequence[QueuePosition], width: int) -> tuple[int, list[Shift]] | None:
    """A position between two neighbours that have none between them, and the shifts of the fewest neighbours that make it free."""
    later = _pushed(before[0].position, [place.position for place in behind], endless=len(behind) < width)
    sooner = _pushed(-behind[0].position, [-place.position for place in before], endless=len(before) < width)
    options = [(at, others) for at, others in ((later, behind), ([-at for at in sooner], before)) if at]
    if not options:
        return None
    (own, *at), others = min(options, key=lambda option: len(option[0]))
    return own, [Shift(place.seq, place.priority_key, place.position, to) for place, to in zip(others, at, strict=False)]


def _pushed(anchor: int, others: Sequence[int], *, endless: bool) -> list[int]:
    """Evenly spaced positions after the anchor for one more run and as few of the others as possible; none if there is no room."""
    for count in range(1, len(others) + endless):
        room = others[count] - anchor if count < len(others) else APART * (count + 2)
        apart = room // (count + 2)
        if apart >= count.bit_length():  # the more runs are shifted, the wider the gaps, so that the next shift comes later
            return [anchor + apart * n for n in range(1, count + 2)]
    return []
