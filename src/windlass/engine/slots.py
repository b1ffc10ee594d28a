"""Direct calls: the next slot of a resource, ahead of every queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from windlass.defaults import SLOT_LEASE
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.parking import KEYS, Parking
from windlass.engine.watch import Watch
from windlass.errors import BadInput, Conflict, LeaseLost, LimitReached, NotFound
from windlass.limiters import is_keyed, limiter_key, parts_of
from windlass.model import Resource, Slot
from windlass.store.base import SLOTS, slot_topic

LOOK = 4_000
"""Milliseconds after which a waiting call renews its place, and checks for callers before it that are gone."""


class Slots(Part):
    """The verbs of direct calls, and the end of those whose caller is gone."""

    def __init__(self, ground: Ground, parking: Parking) -> None:
        super().__init__(ground)
        self._parking = parking

    async def reserve(
        self,
        resource: str,
        *,
        key: str | None = None,
        weight: int = 1,
        lease: int = SLOT_LEASE,
        slot_id: str | None = None,
        token: str | None = None,
        actor: str | None = None,
    ) -> Slot:
        """Reserve the next slot of a resource: behind running runs and earlier direct calls, ahead of every queue.

        The slot is held, or waits: `renew` keeps it and returns its state. A caller that sends its own id and token can repeat the call
        when the answer was lost.
        """
        checks.name(resource, "A resource's name")
        if key is not None:
            checks.name(key, "The key")
        checks.integer(weight, "weight", 1, 2**31 - 1)
        checks.integer(lease, "lease", 1, self.limits.lease)
        identity = self.clock.new_id() if slot_id is None else checks.identifier(slot_id, "The slot's id")
        secret = self.clock.nonce() if token is None else checks.identifier(token, "The token")
        caller = None if actor is None else checks.name(actor, "Who waits")
        for _ in range(PATIENCE):
            record = await self._resource(resource, weight)
            stamp = self.ground.stamp()
            now = stamp.now
            request = Slot(0, identity, limiter_key(resource, key), secret, weight, "waiting", caller, lease, now + lease, now, None)
            granted = await self.records.slots.reserve(request, record.capacity, self.ground.controls.rev, self.limits.slots, now)
            if granted is None:
                raise LimitReached(f"{self.limits.slots:,} direct calls wait already.", hint="Try again later.")
            slot = granted.slot
            if slot.token != secret:
                raise BadInput(f"There is a slot {identity} already.", hint="Send a new id with every call, or none.")
            if self.ground.mistaken(stamp, granted.server, lease):
                slot = await self.renew(identity, secret, lease=lease)
            if slot.state == "held" or not await self.ground.stale():
                return slot
        raise Conflict("The resources kept changing.", hint="Try again.")

    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Keep a slot, and hold it if its turn has come. Raises LeaseLost when it is gone."""
        checks.integer(lease, "lease", 1, self.limits.lease)
        corrected = False
        for _ in range(PATIENCE):
            before = await self._own(slot_id, token)
            weight = before.weight if before.state == "waiting" else 0  # a held slot stays, whatever the capacity is by now
            resource = await self._resource(parts_of(before.key)[0], weight)
            stamp = self.ground.stamp()
            granted = await self.records.slots.renew(before, lease, resource.capacity, self.ground.controls.rev, stamp.now)
            if granted is None:
                raise _slot_lost(slot_id)
            slot = granted.slot
            if self.ground.mistaken(stamp, granted.server, lease) and not corrected:
                corrected = True
                continue
            if slot.state == "held" or not await self.ground.stale():
                return slot
        raise Conflict("The resources kept changing.", hint="Try again.")

    async def turn(
        self,
        slot_id: str,
        token: str,
        *,
        lease: int = SLOT_LEASE,
        wait: float | None = None,
        may: Callable[[], Awaitable[object]] | None = None,
    ) -> Slot:
        """Keep a waiting slot until its turn has come, for at most `wait` seconds; its last step is a renewal.

        Before each further renewal `may` is called, which raises when the caller is no longer allowed to wait.
        """
        slot, watch = await self.renew(slot_id, token, lease=lease), Watch(self.clock)
        ends = None if wait is None else self.clock.monotonic() + round(wait * 1000)
        # With a topic of its own, hints published during a renewal are buffered for this call, whatever else waits in this process.
        topics = {slot_topic(parts_of(slot.key)[0]), SLOTS + slot_id}
        while slot.state == "waiting":
            remaining = LOOK if ends is None else ends - self.clock.monotonic()
            if remaining <= 0:
                break
            await self.ground.wait(topics, min(remaining, LOOK, max(1, lease // 3)) / 1000)
            watch.look()
            await self.lapse(watch)  # no other process may be sweeping
            if may is not None:
                await may()
            slot = await self.renew(slot_id, token, lease=lease)
        return slot

    async def release(self, slot_id: str, token: str) -> bool:
        """Release a slot, or stop waiting for one; False when it was already gone."""
        checks.identifier(slot_id, "The slot's id")
        checks.identifier(token, "The token")
        limiters = await self.records.slots.release(slot_id, token)
        await self._let_go(limiters)
        return bool(limiters)

    async def page(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold a slot or wait for one, in their order."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.slots.after(checks.integer(after, "after", 0, 2**63 - 1), count)

    async def _own(self, slot_id: str, token: str) -> Slot:
        checks.identifier(token, "The token")
        slot = await self.records.slots.find(checks.identifier(slot_id, "The slot's id"))
        if slot is None or slot.token != token:
            raise _slot_lost(slot_id)
        return slot

    async def _resource(self, name: str, weight: int) -> Resource:
        await self.ground.refresh_controls()  # the cached controls may be old, and must neither refuse nor admit
        resource = self.ground.controls.resources.get(name)
        if resource is None:
            raise NotFound(f"There is no resource {name!r}.", hint="Set it first: windlass resources set NAME --capacity 1.")
        if resource.capacity is not None and weight > resource.capacity:
            raise BadInput(f"There are {resource.capacity:,} of {name!r}, not {weight:,}.", hint="Ask for less, or raise the capacity.")
        return resource

    async def open_limiters(self, watch: Watch | None = None) -> int:
        """End direct calls whose caller is gone, and put back the parked runs that could pass now; how many limiters were opened."""
        await self.lapse(watch)
        return await self._parking.open_these(*await self.records.limiters.to_open(self.clock.now(), self._parking.repaired, KEYS))

    async def lapse(self, watch: Watch | None, first: list[Slot] | None = None) -> None:
        """End direct calls whose caller is gone."""
        now = self.clock.now()
        slots = await self.records.slots.overdue(now, 0, KEYS) if first is None else first
        while slots:
            if overdue := [slot for slot in slots if _over(slot, now, watch)]:
                await self._let_go(await self.records.slots.lapse(overdue))
            slots = await self.records.slots.overdue(now, slots[-1].seq, KEYS) if len(slots) >= KEYS else []

    async def _let_go(self, keys: list[str]) -> None:
        """Wake the waiters of limiters that direct calls have released, and put back runs that were parked for one."""
        if keyed := [key for key in keys if is_keyed(key)]:
            await self._parking.unpark(keyed, self.clock.now())
        await self.ground.wake(self.ground.freed_topics(keys))


def _slot_lost(slot_id: str) -> LeaseLost:
    return LeaseLost(
        f"Slot {slot_id} is not held under this token.",
        hint="It was released, or not renewed in time. Stop using the resource; ask for a slot again.",
    )


def _over(slot: Slot, now: int, watch: Watch | None) -> bool | None:
    if watch is None:
        return slot.lease_until <= now
    return watch.over((slot.seq, slot.token), slot.lease_until - slot.lease, slot.lease, slot.lease, now)
