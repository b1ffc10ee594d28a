"""Rows that creations need and that are created on demand: lanes, resources without settings, placeholders for undefined jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Literal

from windlass.defaults import MAX_WAIT
from windlass.engine.ground import PATIENCE, Part
from windlass.engine.lanes import NOTED_EVERY, LaneKey
from windlass.errors import Conflict, LimitReached
from windlass.model import Lane
from windlass.store.records import needs_from

_FEWER = {
    "lanes": "Use fewer combinations of queue, job and requirements.",
    "resources": "Use a key (`per`) instead of many names.",
    "undefined jobs": "Define the jobs first, or use fewer names.",
}


class Provision(Part):
    """Lanes for new runs, within bounds. They are written by separate batches, never in a caller's transaction."""

    async def lanes_for(self, keys: Set[LaneKey], undefined: Collection[str] = ()) -> tuple[int, dict[LaneKey, Lane]]:
        """A lane for each of these needs, and the revision of the controls for which they exist.

        Missing lanes are created in separate batches, and placeholders for undefined jobs too. The use of a lane is noted at most
        once a day, before it is used: unused lanes are removed, under a newer revision.
        """
        known, controls = self.ground.lanes, self.ground.controls
        for _ in range(PATIENCE):
            rev = controls.rev
            lanes = {key: lane for key in keys if (lane := known.lane(key)) is not None}
            if len(lanes) < len(keys) or undefined or rev < 0:
                await self._make(keys, undefined)
                undefined = ()
            elif not known.unused(self.clock.now()) or await self.use(lane.id for lane in lanes.values()):
                return rev, lanes
        raise Conflict("Other processes kept creating and removing lanes.", hint="Try again.")

    async def use(self, lanes: Iterable[int]) -> bool:
        """Note that these lanes are in use, once a day. False: one of them was removed, and the cache has been refreshed."""
        now = self.clock.now()
        if not (unused := self.ground.lanes.unused(now)) or not (ids := unused.intersection(lanes)):
            return True
        there = await self.ground.home.lanes.use(ids, now - NOTED_EVERY // 2, now)
        self.ground.lanes.noted(there, now)
        if there == ids:
            return True
        await self.ground.refresh_controls()
        return False

    async def _make(self, keys: Set[LaneKey], undefined: Collection[str]) -> None:
        lanes, resources = await self.planned(keys, undefined)
        home, controls, owner, now = self.ground.home.unaudited, self.ground.controls, self.ground.owner, self.clock.now()
        if undefined:
            await home.jobs.add_placeholders(undefined, owner, *self.bounds_of(self.limits.placeholders), now)
        if resources:
            await home.controls.add_resources(resources, MAX_WAIT, owner, *self.bounds_of(self.limits.resources), now)
            await self.ground.refresh_controls()
        if lanes and resources <= controls.resources.keys():  # else other processes were faster, and there is no room any more
            await home.lanes.add(lanes, owner, *self.bounds_of(self.limits.lanes), controls.rev, now)
            await self.ground.refresh_lanes()

    async def planned(self, keys: Set[LaneKey], undefined: Collection[str] = ()) -> tuple[set[LaneKey], set[str]]:
        """The lanes and resources to create for these needs; LimitReached where there is no room for them."""
        await self.ground.refresh_controls()
        await self.ground.refresh_lanes()
        lanes = self.ground.lanes.missing(keys)
        resources = {use.resource for _, _, needs in lanes for use in needs_from(needs).uses} - self.ground.controls.resources.keys()
        if lanes or undefined:
            room, limits = await self.ground.home.lanes.room(self.ground.owner), self.limits
            self.check_room("lanes", len(lanes), room.lanes, room.own_lanes, limits.lanes)
            self.check_room("resources", len(resources), room.resources, room.own_resources, limits.resources)
            self.check_room("undefined jobs", len(undefined), room.placeholders, room.own_placeholders, limits.placeholders)
        return lanes, resources

    def check_room(self, what: Literal["lanes", "resources", "undefined jobs"], more: int, there: int, own: int, limit: int) -> None:
        """LimitReached where this many more would exceed the limit of all, or the share of an untrusted principal."""
        if more and there + more > limit:
            raise LimitReached(f"There are {there:,} {what} of at most {limit:,} already, too many for {more:,} more.", hint=_FEWER[what])
        if more and self.ground.owner is not None and own + more > (share := self.bounds_of(limit)[1]):
            raise LimitReached(
                f"{self.ground.owner!r} has created {own:,} {what} of its share of {share:,}, too many for {more:,} more.",
                hint=f"{_FEWER[what]} Unused ones are removed after some days; an admin can remove them at once.",
            )

    def bounds_of(self, limit: int) -> tuple[int, int]:
        """The limit for all, and the share of it that one untrusted principal may create."""
        return limit, max(1, limit * self.limits.share // 100)
