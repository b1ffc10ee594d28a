"""Removal of unused rows that were created on demand: lanes, resources without settings, placeholders of undefined jobs."""

from __future__ import annotations

from collections.abc import Collection

from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.lanes import DAY
from windlass.errors import NotFound, WrongState
from windlass.model import Lane

UNUSED = 3 * DAY
"""Milliseconds after which unused rows are removed; the use of a lane is noted once a day."""
LOOK_EVERY, LOOK_SOON = DAY, DAY // 144
PAGE = 1_000
PAGES = 2_000
"""The most pages of runs that are read to verify that a lane has none."""
_ALWAYS = 2**62


class Unused(Part):
    """The verbs that remove unused rows.

    A lane is closed before it is removed: the batch that closes it raises the revision that every claim, creation and patch compares,
    so later ones reread the lanes and note their use of a lane before they use it. Creations that had compared already are waited for.
    Then no run enters the lane, and no claimed run returns to being scheduled, unless the use is noted: so it is enough to search for
    runs in the order of their states, page by page.
    """

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._unused_at = 0

    # Automatic

    async def tidy(self) -> None:
        """Remove rows that were unused for some days; checks once a day, or sooner after an incomplete removal."""
        if self.clock.monotonic() < self._unused_at:
            return
        over = await self._tidy_lanes()
        await self._tidy_resources()
        await self._tidy_placeholders()
        await self._tidy_totals()
        self._unused_at = self.clock.monotonic() + (LOOK_EVERY if over else LOOK_SOON)

    async def _tidy_lanes(self) -> bool:
        """Whether all unused lanes were removed; False while a transaction that creates runs is still open."""
        unused = await self.records.lanes.unused(self.clock.now() - UNUSED)
        if not unused:
            return True
        before = (await self.ground.bounds()).earliest - UNUSED  # nothing is removed because of a clock that was just set
        if unknown := [lane for lane, used_at in unused.items() if used_at is None]:
            await self.records.lanes.use(unknown, 1, self.clock.now())
        closed = await self._close([lane for lane, used_at in unused.items() if used_at is not None and used_at < before], before)
        if closed:
            await self._remove(closed)
        return closed is not None

    async def _tidy_resources(self) -> None:
        """A resource without settings has capacity 1, with or without its row."""
        if names := set(await self.records.controls.named_resources((await self.ground.bounds()).earliest - UNUSED)):
            await self.ground.refresh_controls()
            await self.ground.refresh_lanes()
            names -= {use.resource for lane in self.ground.lanes.all for use in lane.requires.uses}
            if names and await self.records.controls.drop_resources(names, self.ground.controls.rev, self.ground.lanes.last):
                await self.ground.refresh_controls()

    async def _tidy_placeholders(self) -> None:
        names = set(await self.records.jobs.unused_placeholders((await self.ground.bounds()).earliest - UNUSED))
        after = ""
        while names and (schedules := await self.records.schedules.after(after, PAGE)):
            names -= {schedule.job for schedule in schedules}
            after = schedules[-1].key
        if names:
            await self.records.jobs.drop_placeholders(names)

    async def _tidy_totals(self) -> None:
        """The counters of a queue and a job without lanes are merged into the overall totals."""
        if pairs := await self.records.stats.idle_totals():
            await self.ground.refresh_lanes()
            if pairs := pairs - {(lane.queue, lane.job) for lane in self.ground.lanes.all}:
                await self.records.stats.drop_totals(pairs)

    # On request

    async def lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: runs of a queue that the same workers may take, with the lane's last use and its untrusted creator, if any."""
        checks.integer(after, "after", 0, 2**63 - 1)
        checks.integer(count, "count", 1, self.limits.page)
        return (await self.records.lanes.after(after)).lanes[:count]

    async def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; one that is needed again is created again."""
        checks.integer(lane, "The lane", 1, 2**63 - 1)
        if not any(one.id == lane for one in (await self.records.lanes.after(lane - 1)).lanes[:1]):
            raise NotFound(f"There is no lane {lane}.", hint="`windlass lanes` shows those there are.")
        if lane in await self._in_use([lane]):
            raise _in_use(lane)
        closed = await self._close([lane], _ALWAYS)
        if closed is None:
            raise WrongState("A transaction that creates runs is still open.", hint="Try again when it has ended.")
        if await self._remove(closed):
            raise _in_use(lane)

    async def drop_job(self, name: str) -> None:
        """Forget an undefined job that has no runs."""
        job = next(iter(await self.records.jobs.named([checks.name(name, "A job's name")])), None)
        if job is None:
            raise NotFound(f"There is no job {name!r}.", hint="`windlass jobs` shows those there are.")
        if job.handler is not None:
            raise WrongState(f"The job {name!r} is defined.", hint="Only an undefined job can be removed; a definition stays.")
        if name not in await self.records.jobs.unused_placeholders(_ALWAYS) or not await self.records.jobs.drop_placeholders([name]):
            raise WrongState(f"The job {name!r} has runs.", hint="It can be removed when retention has removed them.")

    # Steps of both

    async def _close(self, lanes: Collection[int], before: int) -> set[int] | None:
        """Close the lanes that were not used since a time, and return them; None where a creation that began before has not ended yet."""
        closed = await self.ground.home.lanes.close(lanes, before) if lanes else set[int]()
        began = await self.ground.home.lanes.creating() if closed else set[str]()
        for _ in range(PATIENCE):
            if not began:
                return closed
            began &= await self.ground.home.lanes.creating()
        return None

    async def _remove(self, closed: set[int]) -> set[int]:
        """Remove closed lanes and return those that are in use, which stay."""
        in_use = await self._in_use(closed)
        if closed - in_use:
            in_use = closed - await self.records.lanes.drop(closed - in_use)
        if in_use:
            await self.ground.home.lanes.use(in_use, 1, self.clock.now())
        if closed:
            await self.ground.refresh_controls()
        return in_use

    async def _in_use(self, lanes: Collection[int]) -> set[int]:
        """Those of these lanes that have unfinished runs; all of them where there are too many runs to read."""
        left = set(lanes)
        left -= await self.records.lanes.in_use(left) if left else set()
        seq, place = 0, (0, 0)
        for _ in range(PAGES):
            if not left or not (waiting := await self.records.lanes.of_waiting(seq, PAGE)):
                break
            seq, left = waiting[-1][0], left - {lane for _, lane in waiting}
        else:
            left = set()
        for _ in range(PAGES):
            if not left or not (scheduled := await self.records.lanes.of_scheduled(place, PAGE)):
                return set(lanes) - left
            place, left = scheduled[-1][:2], left - {lane for _, _, lane in scheduled}
        return set(lanes)


def _in_use(lane: int) -> WrongState:
    return WrongState(f"Lane {lane} is in use.", hint="Wait until its runs have ended, or cancel them, and create no new ones meanwhile.")
