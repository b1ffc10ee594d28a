"""Background loops: call a tick until cancelled, also through outages of the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar

from windlass.clock import Clock
from windlass.errors import TRANSIENT

Tick = Callable[[], Awaitable[float]]
"""Do the pending work; returns the seconds until the next call."""


Hear = Callable[[float], Awaitable[object]]
"""Wait at most this many seconds for a hint; returns whether there was one."""


AGAIN = 0.03
"""Seconds of the rest after one that was ended by a hint: a write right after the hint may not get a hint of its own."""


class Bell:
    """Ends a rest: rung by this process, or by a hint from another. Without hints, a rest lasts for `deaf` seconds."""

    def __init__(self, clock: Clock, hear: Hear, *, deaf: float) -> None:
        self._clock, self._hear, self._deaf = clock, hear, deaf
        self._rung, self._ended = asyncio.Event(), False  # whether a hint or a ring ended the last rest

    def ring(self) -> None:
        """There is work now."""
        self._rung.set()

    @property
    def ringing(self) -> bool:
        """Whether there is work that came after the last `clear`."""
        return self._rung.is_set()

    def clear(self) -> None:
        """The pending work is about to be done."""
        self._rung.clear()

    async def rung(self) -> None:
        """Wait until this process rings."""
        await self._rung.wait()
        self.clear()

    async def rest(self, seconds: float) -> bool:
        """Wait for a ring, a hint or this many seconds; returns whether there was one. After one, the next rest is short."""
        seconds = min(seconds, AGAIN) if self._ended else seconds
        rung, hinted = asyncio.ensure_future(self._rung.wait()), asyncio.ensure_future(self._heard(seconds))
        try:
            await asyncio.wait({rung, hinted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rung.cancel()
            hinted.cancel()
            await asyncio.wait({rung, hinted})
        self.clear()
        self._ended = not rung.cancelled() or (not hinted.cancelled() and hinted.result())
        return self._ended

    async def _heard(self, seconds: float) -> bool:
        began = self._clock.monotonic()
        with suppress(*TRANSIENT):
            if await self._hear(seconds):
                return True
        if self._clock.monotonic() - began < 100 * seconds:  # a tenth of them
            await asyncio.sleep(min(self._deaf, seconds))
        return False


class Loop:
    """Base of objects with a tick. A failure is logged once, and kept in `problem` until it is over."""

    log: ClassVar[logging.Logger]
    complaint: ClassVar[str]
    again: ClassVar[float] = 1.0  # seconds, with jitter, so that processes which lost the same store do not return to it at once
    problem: str | None = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def every(self, tick: Tick) -> None:
        """Call a tick until this is cancelled."""
        while True:
            await self.pause(await self.once(tick))

    async def pause(self, seconds: float) -> None:
        """After a failure, no hint shortens the pause."""
        await (self.rest(seconds) if self.problem is None else asyncio.sleep(seconds))

    async def rest(self, seconds: float) -> None:
        """Wait until the next tick, at most this long."""
        await asyncio.sleep(seconds)

    async def once(self, tick: Tick) -> float:
        """Call a tick; returns the seconds until the next call."""
        try:
            pause = await tick()
        except TRANSIENT as error:
            if self.problem is None:
                self.log.warning("%s: %s", self.complaint, error)
            self.problem = str(error)
            return self.again * (0.5 + self.clock.chance())
        self.problem = None
        return pause
