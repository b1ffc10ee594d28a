"""What is done again and again until it is cancelled, also past the times when the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar

from windlass.clock import Clock
from windlass.errors import AWAY

Tick = Callable[[], Awaitable[float]]
"""Does what there is to do; the seconds until it wants to be called again."""


Hear = Callable[[float], Awaitable[object]]
"""Waits at most so many seconds for a hint; whether there was one."""


AGAIN = 0.03
"""Seconds of the rest after one that was ended: what was written just behind what a hint was sent for may have none of its own."""


class Bell:
    """Ends a rest: rung by this process itself, or by a hint from anywhere. Where nothing can be heard, a rest lasts for `deaf` seconds."""

    def __init__(self, clock: Clock, hear: Hear, *, deaf: float) -> None:
        self._clock, self._hear, self._deaf = clock, hear, deaf
        self._rung, self._ended = asyncio.Event(), False  # whether there was a reason to end the last rest

    def ring(self) -> None:
        """Something is to be looked at now."""
        self._rung.set()

    def clear(self) -> None:
        """What it was rung for is about to be looked at."""
        self._rung.clear()

    async def rung(self) -> None:
        """Until this process itself rings."""
        await self._rung.wait()
        self.clear()

    async def rest(self, seconds: float) -> bool:
        """Until there is reason to look, or so many seconds have passed; whether there was a reason. After one, the next rest is short."""
        seconds = min(seconds, AGAIN) if self._ended else seconds
        rung, heard = asyncio.ensure_future(self._rung.wait()), asyncio.ensure_future(self._heard(seconds))
        try:
            await asyncio.wait({rung, heard}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rung.cancel()
            heard.cancel()
            await asyncio.wait({rung, heard})
        self.clear()
        self._ended = not rung.cancelled() or (not heard.cancelled() and heard.result())
        return self._ended

    async def _heard(self, seconds: float) -> bool:
        began = self._clock.monotonic()
        with suppress(*AWAY):
            if await self._hear(seconds):
                return True
        if self._clock.monotonic() - began < 100 * seconds:  # a tenth of them
            await asyncio.sleep(min(self._deaf, seconds))
        return False


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
            await self.pause(await self.once(tick))

    async def pause(self, seconds: float) -> None:
        """After trouble, no hint brings the next tick forward."""
        await (self.rest(seconds) if self.problem is None else asyncio.sleep(seconds))

    async def rest(self, seconds: float) -> None:
        """Until the next tick, at most so long."""
        await asyncio.sleep(seconds)

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
