"""Waiting for one's turn at a resource, and what a door needs to show and make resources."""

from __future__ import annotations

from windlass.engine import checks
from windlass.engine.controls import ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.limiting import SLOT_LEASE, Limiting
from windlass.engine.sweeping import Watch
from windlass.errors import NotFound
from windlass.gates import parts_of
from windlass.model import Rate, Resource, Slot
from windlass.store.base import SLOTS, slot_topic

LOOK = 4_000
"""Milliseconds after which one who waits renews its place, and looks whether somebody before it is gone."""


class Turns(Limiting):
    """The verb of those who wait in line."""

    async def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Keep a slot that waits until its turn has come, for so many seconds at most; it is renewed last of all."""
        slot, watch = await self.renew(slot_id, token, lease=lease), Watch(self.clock)
        ends = None if wait is None else self.clock.monotonic() + round(wait * 1000)
        # With a name of its own among the topics, what is said while it renews is kept for it, whoever else waits here.
        topics = {slot_topic(parts_of(slot.key)[0]), SLOTS + slot_id}
        while slot.state == "waiting":
            left = LOOK if ends is None else ends - self.clock.monotonic()
            if left <= 0:
                break
            await self.wait(topics, min(left, LOOK, max(1, lease // 3)) / 1000)
            await self._lapse_slots(watch.steady_for())  # nobody else may be there to sweep
            slot = await self.renew(slot_id, token, lease=lease)
        return slot

    async def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        checks.name(name, "A resource's name")
        for state in await self.resources():
            if state.resource.name == name:
                return state
        raise NotFound(f"There is no resource {name!r}.", hint="`windlass resources` shows those there are.")

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource that is not there yet; one that is stays as it was set."""
        checks.name(name, "A resource's name")
        await self.refresh_controls()
        found = self.controls.resources.get(name)
        return found or await self.set_resource(name, capacity=capacity, rates=rates, max_wait=max_wait)
