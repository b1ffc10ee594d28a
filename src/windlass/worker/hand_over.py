"""One commit for a report and the next claim, for workers with one slot."""

from __future__ import annotations

import asyncio

from windlass.worker.executions import InFlight
from windlass.worker.runtime import Runtime


class HandOver:
    """Holds a report back until the next claim has read its candidates, where the store commits together what is written together."""

    def __init__(self, runtime: Runtime, in_flight: InFlight) -> None:
        self._runtime, self._in_flight = runtime, in_flight
        self._enabled = runtime.info.slots == 1 and getattr(runtime.port, "commits_together", False)
        self._claimer_waits = False
        self._candidates_read: asyncio.Event | None = None

    @property
    def pending(self) -> bool:
        """Whether a report is held back."""
        return self._candidates_read is not None

    async def wait_for_slot(self) -> None:
        """For the claims: wait until there may be room, or a report is held back."""
        self._claimer_waits = True
        try:
            await self._in_flight.change()
        finally:
            self._claimer_waits = False

    async def wait_for_claim(self) -> None:
        """For a report that frees the one slot: wait until the next claim has read its candidates."""
        if self._enabled and self._claimer_waits and not self._runtime.stopping and len(self._in_flight.held) == 1:
            self._candidates_read = candidates_read = asyncio.Event()
            self._in_flight.changed.set()
            await candidates_read.wait()

    def release(self) -> None:
        """The claim has read its candidates, or there is none for now: the report goes on."""
        if self._candidates_read is not None:
            self._candidates_read.set()
            self._candidates_read = None

    async def release_first(self) -> None:
        """For a claim before it writes: the report writes first."""
        self.release()
        await asyncio.sleep(0)
