"""The routes that start and stop the scheduler: its queue is resumed and paused."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from windlass.api.rows import GET, POST
from windlass.dialects.base import Request
from windlass.dialects.guards import bodies
from windlass.dialects.guards.answers import OBJECT, row, sent
from windlass.dialects.guards.bodies import read
from windlass.dialects.guards.settings import Settings
from windlass.dialects.guards.verbs import SchedulerVerbs
from windlass.engine import Engine
from windlass.machine import LIVE
from windlass.store.base import journal_topics

_LOG = logging.getLogger("windlass.dialects.guards")

REASON = "The scheduler is stopped."
LOOK = 1.0
"""Seconds after which a stop looks again at what runs, if no hint has come."""


class ControlRoutes:
    """The handlers of the scheduler's own state."""

    verbs = (
        row("start_scheduler", POST, "/scheduler/start", "Start the scheduler", "admin", takes=OBJECT | None),
        row("stop_scheduler", POST, "/scheduler/stop", "Stop the scheduler", "admin", takes=OBJECT | None),
        row("get_scheduler", GET, "/scheduler/status", "The state of the scheduler", "read"),
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def begin(self, engine: Engine) -> None:
        """Before the first request: store the resources of jobs, and start or stop the scheduler.

        A start recovers what processes held that are gone. Leases are left to the sweeps, which watch them by a clock that is never set.
        """
        verbs = SchedulerVerbs(engine, self._settings)
        await verbs.provide()
        if self._settings.autostart:
            for error in await verbs.recover_gone():
                _LOG.warning("A job of a process that is gone was not recovered: %s", error)
        else:
            await engine.pause("queue", self._settings.queue, reason=REASON)

    async def start_scheduler(self, request: Request, data: Any) -> Any:
        body = read(bodies.StartOptions, data or {})
        resumed = await request.act("resume", f"queue {self._settings.queue}").resume("queue", self._settings.queue)
        stats = await SchedulerVerbs(request.engine, self._settings).recover() if body.run_recovery else None
        message = "The scheduler is started." if resumed else "The scheduler is running already."
        return {"success": True, "message": message, "recovery_stats": None if stats is None else sent(stats)}

    async def stop_scheduler(self, request: Request, data: Any) -> Any:
        body = read(bodies.StopOptions, data or {})
        await request.act("pause", f"queue {self._settings.queue}").pause("queue", self._settings.queue, reason=REASON)
        if await request.wait(self._ended, request.engine, body.timeout):
            return {"success": True, "message": REASON}
        return {"success": False, "message": f"Nothing further is started, but a job is still running after {body.timeout} s."}

    async def _ended(self, engine: Engine, seconds: float) -> bool:
        """Whether nothing of the queue is executed any more, within these seconds."""
        try:
            async with asyncio.timeout(seconds):
                while (await engine.runs(queue=self._settings.queue, states=LIVE, count=1)).runs:
                    await engine.wait(journal_topics(f"stop:{self._settings.queue}"), LOOK)
        except TimeoutError:
            return False
        return True

    async def get_scheduler(self, request: Request) -> Any:
        return sent(await SchedulerVerbs(request.engine, self._settings).status())
