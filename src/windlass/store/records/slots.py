"""Direct calls: the holders of slots of a resource, and the calls that wait for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from windlass.limiters import parts_of
from windlass.model import Slot
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.records.controls import names_of
from windlass.store.rows import pack, split_time

BATCHES: Mapping[str, tuple[str, ...]] = {
    "reserve": ("hold_limiters", "add_slot", "grant_slots"),
    "renew": ("hold_limiters", "renew_slot", "grant_slots"),
    "release": ("release_slot",),
    "lapse_slots": ("lapse_slots",),
}


class SlotResult(NamedTuple):
    """A direct call as it was just written, and the server's time of the batch, where there is a server."""

    slot: Slot
    server: int | None


class SlotRecords(Rows):
    """Direct calls."""

    async def reserve(self, slot: Slot, capacity: int | None, controls: int, limit: int, now: int) -> SlotResult | None:
        """Store a direct call: it holds its slot at once if nothing is before it."""
        values: dict[str, Value] = {
            "id": slot.id,
            "key": slot.key,
            "token": slot.token,
            "weight": slot.weight,
            "actor": slot.actor,
            "lease": slot.lease,
            "now": now,
        }
        added = Statement("add_slot", values | {"limit": limit})
        return await self._granted("reserve", added, slot.key, slot.id, capacity, controls, now)

    async def renew(self, slot: Slot, lease: int, capacity: int | None, controls: int, now: int) -> SlotResult | None:
        """Extend the lease, and hold the slot if its turn has come."""
        renewed = Statement("renew_slot", {"id": slot.id, "token": slot.token, "lease": lease, "now": now})
        return await self._granted("renew", renewed, slot.key, slot.id, capacity, controls, now)

    async def _granted(
        self, verb: str, first: Statement, key: str, identity: str, capacity: int | None, controls: int, now: int
    ) -> SlotResult | None:
        limiters = Statement("hold_limiters", {"g": pack([(key, parts_of(key)[0])]), "now": now})
        grant = Statement("grant_slots", {"key": key, "capacity": capacity, "controls": controls, "now": now})
        rows = (await self._batch(verb, limiters, first, grant, Statement("find_slot", {"id": identity})))[-1]
        slots, server = split_time(rows, len(Slot.__struct_fields__))
        return SlotResult(Slot(*slots[0]), server) if slots else None

    async def find(self, identity: str) -> Slot | None:
        slots, _ = split_time(await self._read("find_slot", id=identity), len(Slot.__struct_fields__))
        return Slot(*slots[0]) if slots else None

    async def at(self, key: str, count: int) -> list[Slot]:
        return [Slot(*row) for row in await self._read("slots_at", key=key, count=count)]

    async def after(self, seq: int, count: int) -> list[Slot]:
        return [Slot(*row) for row in await self._read("slots_after", after=seq, count=count)]

    async def release(self, identity: str, token: str) -> list[str]:
        return names_of((await self._batch("release", Statement("release_slot", {"id": identity, "token": token})))[0])

    async def overdue(self, now: int, after: int, count: int) -> list[Slot]:
        """Direct calls whose lease is over, or has an end further ahead than it can last."""
        return [Slot(*row) for row in await self._read("slots_overdue", now=now, after=after, count=count)]

    async def lapse(self, slots: Iterable[Slot]) -> list[str]:
        """End these, if they were not renewed since they were read."""
        rows = pack([(slot.seq, slot.lease_until) for slot in slots])
        return names_of((await self._batch("lapse_slots", Statement("lapse_slots", {"r": rows})))[0])
