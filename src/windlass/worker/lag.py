"""How long an event loop was blocked."""

from __future__ import annotations

import asyncio

EVERY = 0.25
WINDOW = 60.0


class Lag:
    """The longest time for which a loop was blocked, in the last minute or two."""

    def __init__(self) -> None:
        self._now = self._before = 0.0

    @property
    def ms(self) -> int:
        return round(1000 * max(self._now, self._before))

    async def run(self) -> None:
        """Measure how late a short sleep ends, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            due = loop.time() + EVERY
            await asyncio.sleep(EVERY)
            now = loop.time()
            if now - began > WINDOW:
                began, self._now, self._before = now, 0.0, self._now
            self._now = max(self._now, now - due)
