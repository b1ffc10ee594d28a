"""How long an event loop was held up."""

from __future__ import annotations

import asyncio

EVERY = 0.25
WINDOW = 60.0


class Lag:
    """The longest time in the last minute or two for which a loop could do nothing else."""

    def __init__(self) -> None:
        self._now = self._before = 0.0

    @property
    def ms(self) -> int:
        return round(1000 * max(self._now, self._before))

    async def run(self) -> None:
        """Look how late a short sleep ends, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            due = loop.time() + EVERY
            await asyncio.sleep(EVERY)
            woken = loop.time()
            if woken - began > WINDOW:
                began, self._now, self._before = woken, 0.0, self._now
            self._now = max(self._now, woken - due)
