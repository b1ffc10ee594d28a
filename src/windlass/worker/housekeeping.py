"""What somebody must do now and then: sweep, and tidy up. A worker does it for its own store, a hub for all who come to it."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

from windlass.clock import Clock
from windlass.engine import Watch
from windlass.errors import AWAY
from windlass.loops import Loop
from windlass.store.base import SWEEP, run_sync
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
        await self.every(self._sweep_and_wait)

    async def _sweep_and_wait(self) -> float:
        pause = await self.sweep_once()
        self.problem = None
        await self._house.wait({SWEEP}, pause)
        return 0.0

    async def sweep_once(self) -> float:
        """Sweep; the seconds until there is reason to sweep again."""
        try:
            return max((await self._house.sweep(self._watch)).back_in, 1) / 1000
        except AWAY:
            self._watch.missed()
            raise

    async def tidy(self) -> None:
        """Clear away what slows claims down. It can take seconds, so it is not done beside the watch."""
        while True:
            await asyncio.sleep(TIDY_EVERY)
            try:
                await self._house.tidy()
            except AWAY as error:
                _LOG.warning("The store could not be tidied: %s", error)


class Sweeper:
    """Sweeps from a thread of its own, over a store that blocks: handlers that hold up the event loop hold up no sweep."""

    def __init__(self, house: House, clock: Clock) -> None:
        self._keeping = Housekeeping(house, clock)
        self._nudge, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="windlass-sweep", daemon=True)

    async def run(self) -> None:
        """Sweep until cancelled; raises what waiting does not mend."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        try:
            await self._over
        finally:
            self._ended.set()
            self._nudge.set()

    async def listen(self, house: House) -> None:
        """Hear on the loop that there is reason to sweep; while it is blocked, the thread goes by the time alone."""
        while True:
            with suppress(*AWAY):
                if await house.wait({SWEEP}, 1.0):
                    self._nudge.set()
            await asyncio.sleep(0.01)

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, if it ever began."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _live(self) -> None:
        error: BaseException | None = None
        try:
            while not self._ended.is_set():
                self._nudge.clear()
                self._nudge.wait(run_sync(self._keeping.once(self._keeping.sweep_once)))
        except BaseException as trouble:
            error = trouble
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
