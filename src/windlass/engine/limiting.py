"""Limits over time: gates that open again, parked runs put back, and the next slot for a direct call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from windlass.engine import checks
from windlass.engine.controls import KEYS, Controlling
from windlass.engine.core import PATIENCE
from windlass.engine.watch import Watch
from windlass.errors import BadInput, Conflict, LeaseLost, LimitReached, NotFound
from windlass.gates import gate_key, is_keyed, parts_of
from windlass.model import Resource, Slot
from windlass.store.base import SLOTS, slot_topic

SLOT_LEASE = 30_000
LOOK = 4_000
"""Milliseconds after which one who waits renews its place, and looks whether somebody before it is gone."""
_IDLE = 3_600_000


class Limiting(Controlling):
    """The verbs of direct calls, and what a sweep does for limits."""

    _repaired = ""  # the key up to which sweeps have looked whether it has room

    # Direct calls

    async def reserve(
        self,
        resource: str,
        *,
        key: str | None = None,
        weight: int = 1,
        lease: int = SLOT_LEASE,
        slot_id: str | None = None,
        token: str | None = None,
        who: str | None = None,
    ) -> Slot:
        """Ask for the next slot of a resource: behind what runs and those who asked before, ahead of every queue.

        It is held, or waits: `renew` keeps it and says when its turn has come. A caller that sends its own id and token can ask
        again when the answer was lost.
        """
        checks.name(resource, "A resource's name")
        if key is not None:
            checks.name(key, "The key")
        checks.integer(weight, "weight", 1, 2**31 - 1)
        checks.integer(lease, "lease", 1, self.limits.lease)
        identity = self.clock.new_id() if slot_id is None else checks.identifier(slot_id, "The slot's id")
        secret = self.clock.nonce() if token is None else checks.identifier(token, "The token")
        caller = None if who is None else checks.name(who, "Who waits")
        for _ in range(PATIENCE):
            found = await self._resource(resource, weight)
            stamp = self.stamp()
            now = stamp.now
            asked = Slot(0, identity, gate_key(resource, key), secret, weight, "waiting", caller, lease, now + lease, now, None)
            granted = await self.records.reserve(asked, found.capacity, self.controls.rev, self.limits.slots, now)
            if granted is None:
                raise LimitReached(f"{self.limits.slots:,} direct calls wait already.", hint="Try again later.")
            slot = granted.slot
            if slot.token != secret:
                raise BadInput(f"There is a slot {identity} already.", hint="Send a new id with every call, or none.")
            if self.mistaken(stamp, granted.server, lease):
                slot = await self.renew(identity, secret, lease=lease)
            if slot.state == "held" or not await self.stale():
                return slot
        raise Conflict("The resources kept changing.", hint="Try again.")

    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Keep a slot, and have it if its turn has come. Raises LeaseLost when it is gone."""
        checks.integer(lease, "lease", 1, self.limits.lease)
        corrected = False
        for _ in range(PATIENCE):
            before = await self._own(slot_id, token)
            weight = before.weight if before.state == "waiting" else 0  # what is held stays, however little there is by now
            resource = await self._resource(parts_of(before.key)[0], weight)
            stamp = self.stamp()
            granted = await self.records.renew_slot(before, lease, resource.capacity, self.controls.rev, stamp.now)
            if granted is None:
                raise _slot_lost(slot_id)
            slot = granted.slot
            if self.mistaken(stamp, granted.server, lease) and not corrected:
                corrected = True
                continue
            if slot.state == "held" or not await self.stale():
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
        """Keep a slot that waits until its turn has come, for so many seconds at most; it is renewed last of all.

        Before it is renewed again, `may` raises where whoever waits must not have it any more.
        """
        slot, watch = await self.renew(slot_id, token, lease=lease), Watch(self.clock)
        ends = None if wait is None else self.clock.monotonic() + round(wait * 1000)
        # With a name of its own among the topics, what is said while it renews is kept for it, whoever else waits here.
        topics = {slot_topic(parts_of(slot.key)[0]), SLOTS + slot_id}
        while slot.state == "waiting":
            left = LOOK if ends is None else ends - self.clock.monotonic()
            if left <= 0:
                break
            await self.wait(topics, min(left, LOOK, max(1, lease // 3)) / 1000)
            watch.look()
            await self.lapse_slots(watch)  # nobody else may be there to sweep
            if may is not None:
                await may()
            slot = await self.renew(slot_id, token, lease=lease)
        return slot

    async def release(self, slot_id: str, token: str) -> bool:
        """Give a slot back, or leave the line; False when it was gone already."""
        checks.identifier(slot_id, "The slot's id")
        checks.identifier(token, "The token")
        freed = await self.records.release_slot(slot_id, token)
        await self._let_go(freed)
        return bool(freed)

    async def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold something or wait, in their order."""
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.slots_after(checks.integer(after, "after", 0, 2**63 - 1), count)

    async def _own(self, slot_id: str, token: str) -> Slot:
        checks.identifier(token, "The token")
        slot = await self.records.find_slot(checks.identifier(slot_id, "The slot's id"))
        if slot is None or slot.token != token:
            raise _slot_lost(slot_id)
        return slot

    async def _resource(self, name: str, weight: int) -> Resource:
        await self.refresh_controls()  # what this process remembers may be old, and must neither refuse nor let in
        resource = self.controls.resources.get(name)
        if resource is None:
            raise NotFound(f"There is no resource {name!r}.", hint="Set it first: windlass resources set NAME --capacity 1.")
        if resource.capacity is not None and weight > resource.capacity:
            raise BadInput(f"There are {resource.capacity:,} of {name!r}, not {weight:,}.", hint="Ask for less, or raise the capacity.")
        return resource

    # Sweeping

    async def open_gates(self, watch: Watch | None = None) -> int:
        """End direct calls whose caller is gone, and put back the parked runs that could pass now; how many gates were opened."""
        await self.lapse_slots(watch)
        return await self.open_these(*await self.records.gates_to_open(self.clock.now(), self._repaired, KEYS))

    async def open_these(self, due: list[str], keys: list[str]) -> int:
        """Put back the parked runs of gates that time has opened, and of those of a page of keys that have room."""
        now = self.clock.now()
        if due:
            await self.let_in(due, now)
        self._repaired = keys[-1] if len(keys) == KEYS else ""
        return len(due) + (await self.repair(keys, now) if keys else 0)

    async def lapse_slots(self, watch: Watch | None, first: list[Slot] | None = None) -> None:
        """End direct calls whose caller is gone."""
        now = self.clock.now()
        slots = await self.records.slots_overdue(now, 0, KEYS) if first is None else first
        while slots:
            if lost := [slot for slot in slots if _over(slot, now, watch)]:
                await self._let_go(await self.records.lapse_slots(lost))
            slots = await self.records.slots_overdue(now, slots[-1].seq, KEYS) if len(slots) >= KEYS else []

    async def _let_go(self, keys: list[str]) -> None:
        """Tell whom it concerns that direct calls have let go of these gates, and put back who was parked for one."""
        if keyed := [key for key in keys if is_keyed(key)]:
            await self.let_in(keyed, self.clock.now())
        await self.wake(self.freed_topics(keys))

    async def tidy_gates(self) -> None:
        """Let go of what runs that are not live still hold, and forget keys that nobody has used for an hour."""
        after, now = 0, self.clock.now()
        while runs := await self.records.free_stale(after, KEYS):
            after = runs[-1]
        while await self.records.drop_idle_gates(now - _IDLE, now, KEYS) == KEYS:
            pass


def _slot_lost(slot_id: str) -> LeaseLost:
    return LeaseLost(
        f"Slot {slot_id} is not held under this token.",
        hint="It was released, or not renewed in time. Stop using the resource; ask for a slot again.",
    )


def _over(slot: Slot, now: int, watch: Watch | None) -> bool | None:
    if watch is None:
        return slot.lease_until <= now
    return watch.over((slot.seq, slot.token), slot.lease_until - slot.lease, slot.lease, slot.lease, now)
