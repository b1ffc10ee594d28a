"""Maintenance of a store: sweeps and tidying. A worker does it for its own store, a hub for all its workers."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

from windlass.clock import Clock
from windlass.engine import Watch
from windlass.errors import TRANSIENT
from windlass.loops import Loop
from windlass.store.base import SWEEP, run_sync
from windlass.worker.port import Maintenance

_LOG = logging.getLogger("windlass.maintenance")

TIDY_EVERY = 10.0


class MaintenanceLoop(Loop):
    """Two loops that end when they are cancelled."""

    log, complaint = _LOG, "The store could not be swept"

    def __init__(self, maintenance: Maintenance, clock: Clock) -> None:
        super().__init__(clock)
        self._maintenance, self._watch = maintenance, Watch(clock)
        self.problem = "The first sweep has not been done yet."

    async def sweep(self) -> None:
        """Sweep as often as there is reason to, and once a second at least."""
        self._watch = Watch(self.clock)
        await self.every(self._sweep_and_wait)

    async def _sweep_and_wait(self) -> float:
        pause = await self.sweep_once()
        self.problem = None
        await self._maintenance.wait({SWEEP}, pause)
        return 0.0

    async def sweep_once(self) -> float:
        """Sweep; the seconds until there is reason to sweep again."""
        try:
            return max((await self._maintenance.sweep(self._watch)).back_in, 1) / 1000
        except TRANSIENT:
            self._watch.missed()
            raise

    async def tidy(self) -> None:
        """Remove what slows claims down. It can take seconds, so it has a loop of its own."""
        while True:
            await asyncio.sleep(TIDY_EVERY)
            try:
                await self._maintenance.tidy()
            except TRANSIENT as error:
                _LOG.warning("The store could not be tidied: %s", error)


class Sweeper:
    """Sweeps from a thread of its own, over a store that blocks: handlers that block the event loop delay no sweep."""

    def __init__(self, maintenance: Maintenance, clock: Clock) -> None:
        self.maintenance = maintenance
        self._sweeps = MaintenanceLoop(maintenance, clock)
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="windlass-sweep", daemon=True)

    async def run(self) -> None:
        """Sweep until cancelled; raises errors that a retry does not mend."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        try:
            await self._over
        finally:
            self._ended.set()
            self._wake.set()

    async def listen(self, maintenance: Maintenance) -> None:
        """Wake the thread by hints, which arrive on the loop; while the loop is blocked, the thread goes by time alone."""
        while True:
            with suppress(*TRANSIENT):
                if await maintenance.wait({SWEEP}, 1.0):
                    self._wake.set()
            await asyncio.sleep(0.01)

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, if it was ever started."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._ended.is_set():
                self._wake.clear()
                self._wake.wait(run_sync(self._sweeps.once(self._sweeps.sweep_once)))
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
