"""The hub without its HTTP server: an engine, settings, and background loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from windlass.clock import Clock
from windlass.dialects import formats
from windlass.egress import Egress
from windlass.engine import Engine
from windlass.hub.auth import Authenticator
from windlass.hub.batching import Batcher
from windlass.hub.events import Events
from windlass.hub.metrics import Requests
from windlass.hub.rollups import RollUps
from windlass.hub.shares import OpenShares
from windlass.webhooks import STANDARD, Sender
from windlass.worker.lag import Lag
from windlass.worker.maintenance import MaintenanceLoop

if TYPE_CHECKING:
    from windlass.app import App, AsyncApp

_LOG = logging.getLogger("windlass.hub")


ANEW = 5.0  # seconds after which failed loops are restarted


class HubSettings(Struct, frozen=True):
    """Settings of a hub. Sizes are bytes, times milliseconds."""

    host: str = "127.0.0.1"
    port: int = 8080
    connections: int = 10_000  # each needs a file descriptor
    body: int = 8 * 1024 * 1024
    body_within: int = 60_000
    waits: int = 5_000  # requests that wait, such as long polls
    longest_wait: int = 30_000
    streams: int = 2_000
    share: int = 50  # percent of the waits, and of the streams, that the tokens of one principal may use together
    idempotency: int = 24 * 3600 * 1000  # how long an Idempotency-Key is kept
    ticket: int = 60_000  # how long a ticket can open a stream
    open: bool = False  # on loopback, and before there is any token, every caller may do everything
    allow: tuple[str, ...] = ()  # internal addresses and hosts that webhooks may go to
    plain_http: bool = False  # webhooks may be sent without encryption
    notify: tuple[str, ...] = ()  # hosts that the runs of tokens without admin may notify; *: all


class _Component(Protocol):
    @property
    def problem(self) -> str | None: ...


class Hub:
    """State shared by all requests. Its loops run from `start` to `stop`."""

    def __init__(self, engine: Engine, clock: Clock, settings: HubSettings | None = None, *, app: App | AsyncApp | None = None) -> None:
        """With an app, direct calls of a dialect run its handlers in this process."""
        self.engine, self.clock, self.settings, self.app = engine, clock, settings or HubSettings(), app
        self.authenticator = Authenticator(engine, clock, self.settings)
        self.events = Events(
            engine, clock, OpenShares("streams are open", self.settings.streams, self.settings.share), self.authenticator.still
        )
        self.maintenance = MaintenanceLoop(engine, clock)
        self.rollups, self.lag = RollUps(engine, clock), Lag()
        egress = Egress(allow=self.settings.allow, plain_http=self.settings.plain_http)
        self.sender = Sender(engine, clock, egress, formats=(STANDARD, *formats()), notify=self.settings.notify)
        engine.deliver_by(self.sender)
        self.joining = Batcher(engine)
        self.waits = OpenShares("requests wait", self.settings.waits, self.settings.share)
        self.requests = Requests()
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: str | None = None
        self.over = False  # it was stopped: a late request does not restart its loops

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    def start(self) -> None:
        """Start the background loops; a second call does nothing."""
        self.over = False
        if not self._tasks:
            self._keep(
                self.maintenance.sweep(), self.maintenance.tidy(), self.events.run(), self.rollups.run(), self.sender.run(), self.lag.run()
            )

    async def stop(self) -> None:
        """End the loops; another hub, or this one after its restart, continues their work."""
        self.over = True
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def problems(self) -> dict[str, str]:
        """The parts that are not ready, with the reasons."""
        parts: dict[str, _Component] = {"sweep": self.maintenance, "events": self.events, "rollups": self.rollups, "webhooks": self.sender}
        problems = {name: part.problem for name, part in parts.items() if part.problem is not None}
        if self.failed is not None:
            problems["hub"] = self.failed
        return problems if self.running else {"hub": "Its loops have not been started.", **problems}

    def _keep(self, *loops: Coroutine[Any, Any, None]) -> None:
        for loop in loops:
            task = asyncio.get_running_loop().create_task(loop)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks and not task.cancelled() and (error := task.exception()) is not None:
            self.failed = f"{type(error).__name__}: {error}"
            _LOG.error("A loop of the hub has failed. All loops are restarted, unless the process ends.", exc_info=error)
            task.get_loop().call_later(ANEW, self._begin_anew)

    def _begin_anew(self) -> None:
        """For hubs inside another application; a command that serves one exits as soon as a part has failed."""
        if self._tasks:
            tasks, self._tasks = self._tasks, set()
            for task in tasks:
                task.cancel()
            self.failed = None
            self.start()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self.waits.taken

    def forget_tokens(self) -> None:
        """A token was created or ended here: that takes effect now, also for open streams."""
        self.authenticator.forget()
        self.events.recheck()
