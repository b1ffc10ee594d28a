"""Parked runs: they wait outside the queue for a limiter that is full, and are put back when it has room."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.engine.ground import Ground, Part
from windlass.limiters import limiter_key, parts_of
from windlass.store.base import queue_topic

KEYS = 500
"""Keys that are checked in one batch."""
UNPARK_LIMIT = 64
"""Parked runs of a lane that are put back at once; those that do not fit are parked again."""
_IDLE = 3_600_000


class Parking(Part):
    """Puts parked runs back: after an end, a change of capacity, a rate's pause, or a fault."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.repaired = ""  # the key up to which sweeps have checked for room

    async def unpark(self, keys: Sequence[str], now: int) -> None:
        """Put back some of the parked runs that wait for these limiters, and wake the waiters of these limiters."""
        queues = await self.records.limiters.open(keys, UNPARK_LIMIT, now)
        await self.ground.wake(self.ground.freed_topics(keys) | set(map(queue_topic, queues)))

    async def let_in_all(self, resource: str) -> None:
        """Put back the runs that are parked for keys of a resource that have room now."""
        await self.ground.wake(self.ground.freed_topics([resource]))
        keys = await self.records.limiters.parked_keys(limiter_key(resource, ""), KEYS)
        while keys and (own := [key for key in keys if parts_of(key)[0] == resource]):
            await self.repair(own, self.clock.now())
            keys = await self.records.limiters.parked_keys(keys[-1], KEYS) if len(own) == KEYS else []

    async def repair(self, keys: Sequence[str], now: int) -> int:
        """Put back the runs that wait for those of these keys that have room: after a change of capacity, or a fault."""
        await self.ground.refresh_controls()
        limiters = await self.ground.limiters_of(keys, now)
        free = [limiter.key for limiter in limiters.values() if not limiter.full(1) and not limiter.late(1)]
        if free:
            await self.unpark(free, now)
        return len(free)

    async def open_these(self, due: list[str], keys: list[str]) -> int:
        """Put back the parked runs of limiters whose rate admits them again, and of those keys of a page that have room."""
        now = self.clock.now()
        if due:
            await self.unpark(due, now)
        self.repaired = keys[-1] if len(keys) == KEYS else ""
        return len(due) + (await self.repair(keys, now) if keys else 0)

    async def tidy(self) -> None:
        """Release what runs that are not live still hold, and forget keys that were unused for an hour."""
        after, now = 0, self.clock.now()
        while runs := await self.records.limiters.free_stale(after, KEYS):
            after = runs[-1]
        while await self.records.limiters.drop_idle(now - _IDLE, now, KEYS) == KEYS:
            pass
