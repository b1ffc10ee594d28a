"""A worker's record in the store, from its registration to its end, and the proof of which process it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from windlass.errors import WindlassError
from windlass.model import LIFE_TAG, Life
from windlass.worker.lives import is_gone
from windlass.worker.runtime import Runtime

_LOG = logging.getLogger("windlass.worker")

LEAVE_WITHIN = 1.0  # seconds


class Registration:
    """Registers a worker, recovers what earlier processes of its name held, and removes its life from the store at its end."""

    def __init__(self, runtime: Runtime, about: Mapping[str, Any] | None, process: str | None, schemas: Mapping[str, str] | None) -> None:
        clock = runtime.clock
        self._runtime, self._schemas = runtime, schemas  # of the payloads that its code accepts, by job
        self.incarnation = 0 if about is None else round(clock.chance() * 2**31)  # distinguishes two workers of one name
        self._about = None if about is None else {**about, "incarnation": self.incarnation}
        self._life = None if process is None else Life(clock.nonce()[:LIFE_TAG], process)
        self.registered = False

    async def register(self) -> None:
        runtime = self._runtime
        await runtime.retry_until_available(lambda: runtime.port.register(runtime.info, about=self._about, schemas=self._schemas))
        self.registered = True

    async def begin_life(self) -> None:
        """Recover at once what processes of this name held that are proven gone. All others keep their leases."""
        if self._life is None:
            return
        port, name, retry = self._runtime.port, self._runtime.info.name, self._runtime.retry_until_available
        lives = await retry(partial(port.begin_life, name, self._life)) or []
        if self._life not in lives:
            self._life = None  # it is not stored, so there is nothing to end
        tags = [life.tag for life in lives if is_gone(life.process)]
        if tags and (count := await retry(partial(port.end_lives, name, tags))):
            _LOG.warning("An earlier process of worker %s has ended without notice; the runs that it held are recovered: %d.", name, count)

    def new_token(self) -> str:
        """For one claim. Its beginning tells the leases of this process from those of others of its name."""
        return (self._life.tag if self._life else "") + self._runtime.clock.nonce()

    async def leave(self) -> None:
        """Remove the worker, which holds nothing any more. Where that fails, its silence or its next process has the same effect."""
        if self.registered:
            with suppress(WindlassError, TimeoutError):
                await asyncio.wait_for(self._leave(), LEAVE_WITHIN)

    async def _leave(self) -> None:
        port, name = self._runtime.port, self._runtime.info.name
        if self._life is not None:
            await port.end_lives(name, [self._life.tag])
        await port.leave(name, self.incarnation)
