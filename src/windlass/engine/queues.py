"""Settings of queues: aging, by which waiting raises the priority of a run."""

from __future__ import annotations

from windlass.engine import checks
from windlass.engine.ground import Part
from windlass.errors import LimitReached
from windlass.model import Queue

_LONGEST_STEP = 10**9  # the longest wait that one step of priority may be worth: eleven days


class Queues(Part):
    """The verbs of queues, which take effect with the next creation, everywhere."""

    async def set(self, name: str, *, aging: int | None) -> Queue | None:
        """Set aging for runs created from now on: `aging` milliseconds of waiting are worth one step of priority. None: no aging."""
        checks.name(name, "A queue's name")
        checks.maybe(aging, "aging", 1, _LONGEST_STEP)
        if aging is None:
            await self.records.controls.drop_queue(name)
            await self.ground.refresh_controls()
            return None
        queue = Queue(name, aging)
        if not await self.records.controls.set_queue(queue, self.limits.queues):
            raise LimitReached(f"{self.limits.queues:,} queues have settings already.", hint="Remove some with aging=None.")
        await self.ground.refresh_controls()
        return queue

    async def all(self) -> list[Queue]:
        """The queues that have settings."""
        return (await self.records.controls.settings()).queues
