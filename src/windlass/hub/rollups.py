"""Counting what the journal says, as it comes."""

from __future__ import annotations

import logging

from windlass.clock import Clock
from windlass.engine import Engine
from windlass.loops import Loop

EVERY = 1.0


class RollUps(Loop):
    """Counts until it is cancelled. Any number of hubs count the same journal, each entry once."""

    log, complaint = logging.getLogger("windlass.hub"), "What the journal says could not be counted"

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(clock)
        self._engine = engine
        self.problem = "Nothing has been counted yet."

    async def run(self) -> None:
        """Count once a second, and at once again for as long as there is more."""
        await self.every(self._count)

    async def _count(self) -> float:
        caught_up = await self._engine.roll_up()
        # Hubs that were started together do not stay in step: only one of them can count an entry.
        return EVERY * (0.5 + self.clock.chance()) if caught_up else 0.0
