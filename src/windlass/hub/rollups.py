"""Counting what the journal says, as it comes."""

from __future__ import annotations

import asyncio
import logging

from windlass.clock import Clock
from windlass.engine import Engine
from windlass.worker.housekeeping import AWAY

_LOG = logging.getLogger("windlass.hub")

EVERY = 1.0


class RollUps:
    """A loop that ends when it is cancelled. Any number of hubs count the same journal, each entry once."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self.problem: str | None = "Nothing has been counted yet."

    async def run(self) -> None:
        """Count once a second, and at once again for as long as there is more."""
        while True:
            caught_up = True
            try:
                caught_up = await self._engine.roll_up()
                self.problem = None
            except AWAY as error:
                if self.problem is None:
                    _LOG.warning("What the journal says could not be counted: %s", error)
                self.problem = str(error)
            # Hubs that were started together do not stay in step: only one of them can count an entry.
            await asyncio.sleep(EVERY * (0.5 + self._clock.chance()) if caught_up else 0)
