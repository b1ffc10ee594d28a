"""Counts journal entries as they are written."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from windlass.clock import Clock
from windlass.engine import Engine
from windlass.loops import Bell, Loop
from windlass.store.base import journal_topics

EVERY, LOOK_ANYWAY = 1.0, 10.0
"""Seconds between two counts, with jitter, and after which it checks for new entries even without a hint."""


class RollUps(Loop):
    """Counts until it is cancelled. Any number of hubs count the same journal, each entry once."""

    log, complaint = logging.getLogger("windlass.hub"), "Journal entries could not be counted"

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(clock)
        self._engine, self._bell = engine, Bell(clock, partial(engine.wait, journal_topics("counts")), deaf=EVERY)
        self.problem = "Nothing has been counted yet."

    async def run(self) -> None:
        """Count once a second while the journal grows, and again at once while there are more entries."""
        await self.every(self._count)

    async def _count(self) -> float:
        return LOOK_ANYWAY if await self._engine.roll_up() else 0.0

    async def rest(self, seconds: float) -> None:
        if seconds:
            await self._bell.rest(seconds)
            # Hubs that get the same hint do not stay in step: only one of them can count an entry.
            await asyncio.sleep(EVERY * (0.5 + self.clock.chance()))
