"""What is done again and again until it is cancelled, also past the times when the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar

from windlass.clock import Clock
from windlass.errors import AWAY

Tick = Callable[[], Awaitable[float]]
"""Does what there is to do; the seconds until it wants to be called again."""


class Loop:
    """Something with a tick. What is wrong with it is said in the log once, and in `problem` until it is over."""

    log: ClassVar[logging.Logger]
    complaint: ClassVar[str]
    again: ClassVar[float] = 1.0  # seconds, more or less: those who lost the same store do not come back to it in step
    problem: str | None = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def every(self, tick: Tick) -> None:
        """Call a tick until this is cancelled."""
        while True:
            pause = await self.once(tick)
            await asyncio.sleep(pause)

    async def once(self, tick: Tick) -> float:
        """Call a tick; the seconds until it is to be called again."""
        try:
            pause = await tick()
        except AWAY as error:
            if self.problem is None:
                self.log.warning("%s: %s", self.complaint, error)
            self.problem = str(error)
            return self.again * (0.5 + self.clock.chance())
        self.problem = None
        return pause
