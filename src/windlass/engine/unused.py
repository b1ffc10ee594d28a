"""What was made because it was needed, and is not used any more: lanes, resources that nobody has set, jobs that nobody has defined."""

from __future__ import annotations

from collections.abc import Collection

from windlass.engine import checks
from windlass.engine.core import DAY, PATIENCE, Core
from windlass.errors import NotFound, WrongState
from windlass.model import Lane

UNUSED = 3 * DAY
"""Milliseconds after which what nobody has used is removed; the use of a lane is noted once a day."""
LOOK_EVERY, LOOK_SOON = DAY, DAY // 144
PAGE = 1_000
PAGES = 2_000
"""How many pages of runs are read at most to see that no lane is theirs."""
_ALWAYS = 2**62


class Removing(Core):
    """The verbs that remove what nobody uses.

    A lane is closed before it is removed: the batch that closes it raises the revision which every claim, creation and patch compares,
    so those that follow know of it, and note that they use the lane before they do. Creations that had compared already are waited for.
    Then no run comes into the lane, and none can go round from scheduled over claimed back to scheduled, unless the lane is noted: so it
    is enough to look for runs in the order in which they move on, page by page.
    """

    _unused_at = 0

    # By itself

    async def tidy_unused(self) -> None:
        """Remove what nobody has used for some days; a look each day, unless one is due sooner."""
        if self.clock.monotonic() < self._unused_at:
            return
        over = await self._tidy_lanes()
        await self._tidy_resources()
        await self._tidy_placeholders()
        await self._tidy_totals()
        self._unused_at = self.clock.monotonic() + (LOOK_EVERY if over else LOOK_SOON)

    async def _tidy_lanes(self) -> bool:
        """Whether all lanes that could be removed are: not those that wait for a transaction to end."""
        unused = await self.records.unused_lanes(self.clock.now() - UNUSED)
        if not unused:
            return True
        before = (await self.bounds()).earliest - UNUSED  # nothing is removed because of a clock that was just set
        if unknown := [lane for lane, used_at in unused.items() if used_at is None]:
            await self.records.use_lanes(unknown, 1, self.clock.now())
        closed = await self._close([lane for lane, used_at in unused.items() if used_at is not None and used_at < before], before)
        if closed:
            await self._remove(closed)
        return closed is not None

    async def _tidy_resources(self) -> None:
        """Those that nobody has set are there once, with or without their row."""
        if names := set(await self.records.named_resources((await self.bounds()).earliest - UNUSED)):
            await self.refresh_controls()
            await self.refresh_lanes()
            names -= {use.resource for lane in self.lanes.all for use in lane.requires.uses}
            if names and await self.records.drop_resources(names, self.controls.rev, self.lanes.last):
                await self.refresh_controls()

    async def _tidy_placeholders(self) -> None:
        names = set(await self.records.unused_placeholders((await self.bounds()).earliest - UNUSED))
        after = ""
        while names and (schedules := await self.records.schedules_after(after, PAGE)):
            names -= {schedule.job for schedule in schedules}
            after = schedules[-1].key
        if names:
            await self.records.drop_placeholders(names)

    async def _tidy_totals(self) -> None:
        """What was counted of a queue and a job without lanes is counted among all."""
        if pairs := await self.records.idle_totals():
            await self.refresh_lanes()
            if pairs := pairs - {(lane.queue, lane.job) for lane in self.lanes.all}:
                await self.records.drop_totals(pairs)

    # By hand

    async def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: what of a queue the same workers may take, when it was last used, and whose small token has made it."""
        checks.integer(after, "after", 0, 2**63 - 1)
        checks.integer(count, "count", 1, self.limits.page)
        return (await self.records.lanes_after(after)).lanes[:count]

    async def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; one that is needed again is made again."""
        checks.integer(lane, "The lane", 1, 2**63 - 1)
        if not any(one.id == lane for one in (await self.records.lanes_after(lane - 1)).lanes[:1]):
            raise NotFound(f"There is no lane {lane}.", hint="`windlass lanes` shows those there are.")
        if lane in await self._in_use([lane]):
            raise _in_use(lane)
        closed = await self._close([lane], _ALWAYS)
        if closed is None:
            raise WrongState("A transaction that makes runs is still open.", hint="Try again when it has ended.")
        if await self._remove(closed):
            raise _in_use(lane)

    async def drop_job(self, name: str) -> None:
        """Forget a job that nobody has defined, and that has no runs."""
        job = next(iter(await self.records.jobs_named([checks.name(name, "A job's name")])), None)
        if job is None:
            raise NotFound(f"There is no job {name!r}.", hint="`windlass jobs` shows those there are.")
        if job.handler is not None:
            raise WrongState(f"The job {name!r} is defined.", hint="Only what nobody has defined is removed; a definition stays.")
        if name not in await self.records.unused_placeholders(_ALWAYS) or not await self.records.drop_placeholders([name]):
            raise WrongState(f"The job {name!r} has runs.", hint="It can be removed when retention has removed them.")

    # One lane, or many

    async def _close(self, lanes: Collection[int], before: int) -> set[int] | None:
        """Those of these that were not used since then, closed; None where a creation that began before is not over yet."""
        closed = await self.home.close_lanes(lanes, before) if lanes else set[int]()
        began = await self.home.creating() if closed else set[str]()
        for _ in range(PATIENCE):
            if not began:
                return closed
            began &= await self.home.creating()
        return None

    async def _remove(self, closed: set[int]) -> set[int]:
        """Remove closed lanes; those of them that are in use stay."""
        used = await self._in_use(closed)
        if closed - used:
            used = closed - await self.records.drop_lanes(closed - used)
        if used:
            await self.home.use_lanes(used, 1, self.clock.now())
        if closed:
            await self.refresh_controls()
        return used

    async def _in_use(self, lanes: Collection[int]) -> set[int]:
        """Those of these lanes that have runs which have not ended, as far as was looked."""
        left = set(lanes)
        left -= await self.records.lanes_in_use(left) if left else set()
        seq, place = 0, (0, 0)
        for _ in range(PAGES):
            if not left or not (waiting := await self.records.lanes_of_waiting(seq, PAGE)):
                break
            seq, left = waiting[-1][0], left - {lane for _, lane in waiting}
        else:
            left = set()
        for _ in range(PAGES):
            if not left or not (scheduled := await self.records.lanes_of_scheduled(place, PAGE)):
                return set(lanes) - left
            place, left = scheduled[-1][:2], left - {lane for _, _, lane in scheduled}
        return set(lanes)


def _in_use(lane: int) -> WrongState:
    return WrongState(f"Lane {lane} is in use.", hint="Wait until its runs have ended, or cancel them; then nobody may make new ones.")
