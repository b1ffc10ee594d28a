"""Firing of schedules: instants that are due become runs or recorded skips, by any sweep, without a leader."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from hashlib import blake2b
from typing import NamedTuple

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.creations import Creations
from windlass.engine.edits import Edits
from windlass.engine.ground import Ground, Part
from windlass.errors import Conflict, OutcomeUnknown, StoreError, WindlassError
from windlass.firing import Fire, SkippedInstants, plan
from windlass.model import Key, Limits, NewRun, Schedule, State
from windlass.store.creation import KeyRow
from windlass.store.records import Advance, Unfinished

_LOG = logging.getLogger("windlass.schedules")

FIRED_AT_ONCE, PASSES, TOGETHER = 500, 200, 5
KEEP_FIRES = 30 * 24 * 3600 * 1000
"""Milliseconds for which the key of a fire is kept. After that, the guarded advance of the schedule still prevents a second fire."""

SCOPE = "schedule"
PREDECESSORS = Limits().predecessors

_Plan = tuple[Schedule, Fire]
_Place = tuple[int, int, int]  # next_at, created_at, id
_FIRST: _Place = (0, 0, 0)


class _Look(NamedTuple):
    """The result of one pass over some due schedules."""

    number: int  # of runs that were created
    moved: frozenset[int]  # schedules
    left: bool  # whether some have not advanced, or are still due
    end: _Place | None  # the position of the last one read; None when there are no more


class Fires(Part):
    """The verbs that fire schedules."""

    def __init__(self, ground: Ground, creations: Creations, edits: Edits) -> None:
        super().__init__(ground)
        self._creations, self._edits = creations, edits
        self._left = frozenset[tuple[int, int]]()  # schedules left to other machines: id and rev

    async def fire_all(self) -> int:
        """Fire all due schedules, oldest first, until none is behind; returns the number of runs created."""
        fired, _ = await self.fire_in_turn()
        return fired

    async def fire_in_turn(self, first: list[Schedule] | None = None) -> tuple[int, bool]:
        """The number of runs created, and whether more may be due.

        Every due schedule gets one fire before any gets a second, and schedules are paged by key: neither a schedule that is far behind
        nor any number of schedules whose rules this machine cannot evaluate keep others from firing.
        """
        fired, turn, more, place = 0, set[int](), False, _FIRST
        for _ in range(PASSES):
            look, first = await self._fire(FIRED_AT_ONCE, place, turn, first), None
            fired, more, place = fired + look.number, more or look.left, look.end or _FIRST
            turn |= look.moved
            if look.end is None:
                if not (turn and more):
                    return fired, False
                turn, more = set(), False
        return fired, True

    async def fire(self, count: int = FIRED_AT_ONCE) -> int:
        """One pass over the due schedules: each creates at most one run, the oldest that is due; returns the number of runs created."""
        look = await self._fire(count, _FIRST)
        while look.end is not None and not look.moved:
            look = await self._fire(count, look.end)
        return look.number

    async def due_schedules(self, *, queue: str | None = None, count: int = 100) -> list[Schedule]:
        """Due schedules, by their next instant and then by their creation; with a queue, those whose own options name it."""
        checks.integer(count, "count", 1, self.limits.page)
        due: list[Schedule] = []
        place: _Place | None = _FIRST
        while place is not None and len(due) < count:
            page = await self.records.schedules.due(self.clock.now(), place, FIRED_AT_ONCE)
            due += (schedule for schedule in page if queue in (None, schedule.options.queue))
            place = (page[-1].next_at or 0, page[-1].created_at, page[-1].id) if len(page) == FIRED_AT_ONCE else None
        return due[:count]

    async def fire_schedule(self, key: str, instant: int) -> bool:
        """Fire one schedule, if this instant is its next one and due; whether this call has created a run.

        Of several concurrent calls one creates it. Further instants that are due are left to further calls.
        """
        schedule = await self.records.schedules.find(checks.name(key, "A schedule's key"))
        now = self.clock.now()
        if schedule is None or schedule.next_at != instant or instant > now:
            return False
        plans = self._plans([schedule], now)
        return any([await self.fire_one(*one) for one in plans])

    async def _fire(self, count: int, after: _Place, but: Set[int] = frozenset(), first: list[Schedule] | None = None) -> _Look:
        now, count = self.clock.now(), min(count, FIRED_AT_ONCE)
        plans: list[_Plan] = []
        end: _Place | None = None
        for _ in range(TOGETHER):
            due, first = await self.records.schedules.due(now, after, count) if first is None else first[:count], None
            end = (due[-1].next_at or 0, due[-1].created_at, due[-1].id) if len(due) == count else None
            plans = self._plans([schedule for schedule in due if schedule.id not in but], now)
            try:
                return _look(plans, *await self._fire_these(plans), end, now)
            except (Conflict, OutcomeUnknown):
                self.ground.memory.forget_jobs()  # another process was faster, or a schedule was edited: read again what is due
                await self.ground.refresh_controls()
            except StoreError:
                raise
            except WindlassError:
                break  # one of them cannot fire
        # Fire each one alone, so that one does not hold up the others.
        ids = {schedule.id: await self.fire_one(schedule, fire) for schedule, fire in plans}
        advanced = frozenset(key for key, number in ids.items() if number is not None)
        return _look(plans, sum(filter(None, ids.values())), advanced, end, now)

    def _plans(self, due: Sequence[Schedule], now: int) -> list[_Plan]:
        """The plan of each due schedule. One whose rule this machine cannot evaluate is left to another machine, and logged once."""
        plans: list[_Plan] = []
        for schedule in due:
            try:
                plans.append((schedule, plan(schedule, now)))
            except WindlassError as error:
                if (schedule.id, schedule.rev) not in self._left:
                    self._left |= {(schedule.id, schedule.rev)}
                    _LOG.error("Schedule %s cannot fire on this machine: %s", schedule.key, error)
        return plans

    async def fire_one(self, schedule: Schedule, fire: Fire) -> int | None:
        """The number of runs created; None when the schedule has not advanced. A faulty schedule must not keep the others from firing."""
        try:
            number, advanced = await self._fire_these([(schedule, fire)])
            return number if advanced else None
        except (Conflict, OutcomeUnknown):
            return None  # the next pass reads it again
        except StoreError:
            raise
        except WindlassError as error:
            _LOG.error("Schedule %s cannot fire: %s", schedule.key, error)
            return await self._pass_over(schedule, fire, error.code)

    async def _pass_over(self, schedule: Schedule, fire: Fire, reason: str) -> int | None:
        """Record a skip for an instant that cannot become a run, and advance to the next."""
        if fire.due_at is not None:
            fire = fire._replace(due_at=None, skips=(*fire.skips, SkippedInstants(fire.due_at, fire.due_at, 1, reason)))
        try:
            return await self._store_fires([(schedule, fire)], [])
        except (Conflict, OutcomeUnknown):
            return None

    async def _fire_these(self, plans: Sequence[_Plan]) -> tuple[int, frozenset[int]]:
        """The number of runs created, and the schedules that have advanced."""
        exclusive = [schedule.id for schedule, _ in plans if schedule.overlap != "allow"]
        unfinished = await self.records.schedules.unfinished(exclusive)
        plans = [(schedule, fire) for schedule, fire in plans if not _held_up(schedule, unfinished.get(schedule.id, []))]
        if not plans:
            return 0, frozenset()
        news: list[NewRun] = []
        fires: list[_Plan] = []
        to_cancel: list[str] = []
        for schedule, due in plans:
            fire, new, stop = _overlapped(schedule, await self._unless_fired(schedule, due), unfinished.get(schedule.id, []))
            fires.append((schedule, fire))
            to_cancel += stop
            if new is not None:
                news.append(new)
        number = await self._store_fires(fires, news)
        for run in to_cancel:  # only after the commit: a process that lost the race would cancel the run that another has just created
            await self._replace(run)
        return number, frozenset(schedule.id for schedule, _ in plans)

    async def _unless_fired(self, schedule: Schedule, fire: Fire) -> Fire:
        """The fire, without its run if that instant has one already: a clock set back or an edited rule can make an instant due again."""
        if fire.due_at is None or schedule.last_at is None or fire.due_at > schedule.last_at:
            return fire
        key = KeyRow(SCOPE, f"{schedule.id}@{fire.due_at}", "", "", 0, None, 0)
        return fire._replace(due_at=None) if await self.records.creations.winners([key], self.clock.now()) else fire

    async def _replace(self, run: str) -> None:
        try:
            await self._edits.cancel(run, reason="replaced by a later run of its schedule")
        except WindlassError as error:
            if error.status >= 500:
                raise  # else the run has ended meanwhile

    async def _store_fires(self, plans: Sequence[_Plan], news: Sequence[NewRun]) -> int:
        texts = [json.encode(new.payload, limit=self.limits.payload) for new in news]
        requests = list(zip(self.clock.new_ids(len(news)), news, map(self._creations.checked, news), texts, strict=True))
        creation = await self._creations.planned(requests, "wait")
        runs = {new.schedule: identity for identity, new, _, _ in requests}
        advances = [_advance(schedule, fire, runs.get(schedule.id)) for schedule, fire in plans]
        skips = [(schedule.id, *skip) for schedule, fire in plans for skip in fire.skips]
        try:
            result = await self.records.creations.fire(creation, advances, skips, self.clock.nonce())
        except Conflict:
            await self._creations.refuse_other_content(creation)  # a conflict with a foreign key holder becomes a recorded skip
            raise
        await self.ground.wake_queues([*self._creations.ready(creation, result.winners), *result.released], creation.now)
        return len(news)


def _look(plans: Sequence[_Plan], number: int, advanced: frozenset[int], end: _Place | None, now: int) -> _Look:
    more = any(schedule.id not in advanced or (fire.next_at is not None and fire.next_at <= now) for schedule, fire in plans)
    return _Look(number, advanced, more, end)


def _held_up(schedule: Schedule, unfinished: Sequence[Unfinished]) -> bool:
    """Whether its run would wait for a locked run: then a later sweep fires it, so that no other schedule waits."""
    return schedule.overlap in ("queue", "cancel") and not all(run.free for run in unfinished)


def _overlapped(schedule: Schedule, fire: Fire, unfinished: Sequence[Unfinished]) -> tuple[Fire, NewRun | None, list[str]]:
    """The fire, its new run, and the runs to cancel, by the overlap rule while earlier runs of the schedule have not ended."""
    if fire.due_at is None:
        return fire, None, []
    busy = [run.run for run in unfinished]
    waiting = any(run.state is State.WAITING for run in unfinished)
    if busy and (schedule.overlap == "skip" or (schedule.overlap == "queue" and waiting)):
        skip = SkippedInstants(fire.due_at, fire.due_at, 1, "overlap")
        return fire._replace(due_at=None, skips=(*fire.skips, skip)), None, []
    after = tuple(busy[-PREDECESSORS:]) if schedule.overlap in ("queue", "cancel") else ()
    return fire, _run_of(schedule, fire.due_at, after), busy if schedule.overlap == "cancel" else []


def _run_of(schedule: Schedule, due_at: int, after: tuple[str, ...]) -> NewRun:
    name = f"{schedule.id}@{due_at}"
    key = Key(name, KEEP_FIRES, scope=SCOPE, on_duplicate="compare", content=name)
    late = int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") % (schedule.jitter + 1)  # the same in every process
    return NewRun(schedule.job, schedule.payload, schedule.options, due_at + late, key, after, "any", schedule=schedule.id, instant=due_at)


def _advance(schedule: Schedule, fire: Fire, run: str | None) -> Advance:
    skipped = sum(skip.number for skip in fire.skips)
    return Advance(schedule.id, schedule.rev, schedule.next_at or 0, fire.next_at, fire.due_at, run, int(run is not None), skipped)
