"""What somebody must do now and then: sweep, and tidy up. A worker does it for its own store, a hub for all who come to it."""

from __future__ import annotations

import asyncio
import logging

from windlass.clock import Clock
from windlass.engine import Watch
from windlass.errors import OutcomeUnknown, StoreBusy, StoreFull, StoreUnreachable
from windlass.store.base import SWEEP
from windlass.worker.port import House

_LOG = logging.getLogger("windlass.house")

SWEEP_EVERY = 1_000
TIDY_EVERY = 10.0
AWAY = (StoreUnreachable, StoreBusy, StoreFull, OutcomeUnknown)
"""What passes by itself. Any other error of a store ends whoever meets it: going on would only hide it."""


class Housekeeping:
    """Two loops that end when they are cancelled."""

    def __init__(self, house: House, clock: Clock) -> None:
        self._house, self._clock = house, clock
        self.problem: str | None = "The first sweep has not been done yet."
        self.sweeps = 0

    async def sweep(self) -> None:
        """Sweep as often as there is reason to, and once a second at least."""
        watch = Watch(self._clock)
        while True:
            back_in = SWEEP_EVERY
            try:
                back_in = (await self._house.sweep(watch)).back_in
                self.problem, self.sweeps = None, self.sweeps + 1
                await self._house.wait({SWEEP}, max(back_in, 1) / 1000)
            except AWAY as error:
                if self.problem is None:
                    _LOG.warning("The store could not be swept: %s", error)
                self.problem = str(error)
                if not isinstance(error, StoreBusy | StoreFull):
                    watch = Watch(self._clock)  # nobody could renew a lease meanwhile: watch anew before any is called lost
                await asyncio.sleep(back_in / 1000 * (0.5 + self._clock.chance()))

    async def tidy(self) -> None:
        """Clear away what slows claims down. It can take seconds, so it is not done beside the watch."""
        while True:
            await asyncio.sleep(TIDY_EVERY)
            try:
                await self._house.tidy()
            except AWAY as error:
                _LOG.warning("The store could not be tidied: %s", error)
