"""What somebody must do now and then: sweep, and tidy up. A worker does it for its own store, a hub for all who come to it."""

from __future__ import annotations

import asyncio
import logging

from windlass.clock import Clock
from windlass.engine import Watch
from windlass.errors import AWAY, StoreBusy, StoreFull
from windlass.loops import Loop
from windlass.store.base import SWEEP
from windlass.worker.port import House

_LOG = logging.getLogger("windlass.house")

TIDY_EVERY = 10.0


class Housekeeping(Loop):
    """Two loops that end when they are cancelled."""

    log, complaint = _LOG, "The store could not be swept"

    def __init__(self, house: House, clock: Clock) -> None:
        super().__init__(clock)
        self._house, self._watch = house, Watch(clock)
        self.problem = "The first sweep has not been done yet."

    async def sweep(self) -> None:
        """Sweep as often as there is reason to, and once a second at least."""
        self._watch = Watch(self.clock)
        await self.every(self._sweep)

    async def _sweep(self) -> float:
        try:
            back_in = (await self._house.sweep(self._watch)).back_in
            self.problem = None
            await self._house.wait({SWEEP}, max(back_in, 1) / 1000)
        except (StoreBusy, StoreFull):
            raise
        except AWAY:
            self._watch = Watch(self.clock)  # nobody could renew a lease meanwhile: watch anew before any is called lost
            raise
        return 0.0

    async def tidy(self) -> None:
        """Clear away what slows claims down. It can take seconds, so it is not done beside the watch."""
        while True:
            await asyncio.sleep(TIDY_EVERY)
            try:
                await self._house.tidy()
            except AWAY as error:
                _LOG.warning("The store could not be tidied: %s", error)
