"""What workers hold, and which of it is over: what is left when nothing is queued."""

from __future__ import annotations

from msgspec import Struct

from windlass.engine.core import Core
from windlass.model import Leases

SOON = 15_000
"""Milliseconds within which a recovered run that is tried again counts as left to do: more than the first of the usual delays."""


class Left(Struct, frozen=True):
    """What is not done although nothing is queued: what workers hold, and when a run that was recovered is due again."""

    leases: list[Leases]
    due_at: int | None


class Leaving(Core):
    """The verb of a worker that ends when nothing is left to do."""

    async def left(self) -> Left:
        """What workers hold now, and when the first of the runs is due that were recovered and are tried again soon."""
        now = self.clock.now()
        due_at = await self.records.recovered_due(now + SOON)
        return Left(await self.records.leases(now), due_at)
