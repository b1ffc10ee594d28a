"""When a worker that runs until idle has nothing left to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Literal

from windlass.durations import span
from windlass.engine import Watch
from windlass.model import Leases
from windlass.worker.port import Maintenance
from windlass.worker.runtime import Runtime

_LOG = logging.getLogger("windlass.worker")

STAY = 120_000  # milliseconds for which a worker with nothing left to do waits for leases that are over


class IdleCheck:
    """Called when nothing is claimed and nothing runs."""

    def __init__(self, runtime: Runtime, maintenance: Maintenance | None) -> None:
        self._runtime, self._maintenance = runtime, maintenance
        self.left: Sequence[Leases] = ()  # held by other workers when there was nothing left to do
        self._stay_until: int | None = None
        self._nothing_to_come = False

    def reset(self) -> None:
        """There was something to do."""
        self._stay_until, self._nothing_to_come = None, False

    async def check(self) -> Literal["end", "claim", "wait"]:
        """What the worker does next. It ends only after a claim that followed the finding that nothing is to come."""
        if self._nothing_to_come:
            for lease in self.left:
                _LOG.log(*describe(lease, self._runtime.clock.now()))
            return "end"
        if await self._swept():
            return "claim"
        self._nothing_to_come = await self._is_nothing_to_come()
        return "claim" if self._nothing_to_come else "wait"

    async def _swept(self) -> bool:
        """Sweep; whether that has queued anything."""
        if self._maintenance is None:
            return False
        result = await self._runtime.retry_until_available(partial(self._maintenance.sweep, Watch(self._runtime.clock)))
        return result is not None and (result.fired > 0 or result.settled > 0 or result.dispatched > 0)

    async def _is_nothing_to_come(self) -> bool:
        """Whether nothing is worth waiting for. Leases that are over are, for a while: a sweep must watch them before it recovers them."""
        pending = None if self._maintenance is None else await self._runtime.retry_until_available(self._maintenance.left)
        if pending is None:
            return True
        now = self._runtime.clock.monotonic()
        self._stay_until = self._stay_until or now + STAY
        if now < self._stay_until and (pending.due_at is not None or any(lease.over and lease.length < STAY for lease in pending.leases)):
            return False
        self.left = pending.leases
        return True


def describe(lease: Leases, now: int) -> tuple[int, str]:
    """The log level and message for leases of another worker that remain when a worker ends."""
    held = f"Worker {lease.worker} holds {lease.runs} run{'s' * (lease.runs > 1)}"
    if not lease.over or lease.over_since is None:
        return logging.INFO, f"{held}. If it is gone, start again in {span((lease.ends_at or now) - now)}, when the first lease is over."
    return logging.WARNING, (
        f"{held}, {lease.over} of them under a lease that has been over for {span(now - lease.over_since)}. "
        f"To recover them takes a worker that is no burst, or a hub, and {span(lease.length)} for which it runs."
    )
