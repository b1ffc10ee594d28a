"""A real hub on a port of this machine, in a thread of its own: what tests that look at it from outside begin with."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.workers import DEADLINE, until
from windlass.app import App
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.dialects.base import Dialect
from windlass.engine import Engine
from windlass.hub import Hub, HubApp, HubSettings
from windlass.hub.serving import listening, server


class LeapingClock(SystemClock):
    """The machine's clock, with leaps of as much as the test likes: time passes, and nobody waits."""

    leapt = 0

    def leap(self, ms: int) -> None:
        self.leapt += ms

    def now(self) -> int:
        return super().now() + self.leapt if self._offset is None else super().now()

    def monotonic(self) -> int:
        return super().monotonic() + self.leapt

    def align(self, server_now: int) -> None:
        super().align(server_now + self.leapt)


class ServedHub:
    """A hub over a store that can be stopped and started again at the same address; by itself, or mounted in another app."""

    def __init__(
        self,
        store: Path | str,
        settings: HubSettings | None = None,
        clock: SystemClock | None = None,
        *,
        mounted: str = "",
        open: bool = True,
        patience: float = 30.0,
        dialects: Sequence[Dialect] = (),
        root: str | None = None,
        app: App | None = None,
    ) -> None:
        self._store, self.clock, self._mounted = str(store), clock or SystemClock(), mounted
        self._patience, self._dialects, self._root, self._app = patience, dialects, root, app
        self._settings = replace(settings or HubSettings(), open=open)
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def listens(self) -> bool:
        """Whether a new connection would be taken: no more as soon as the server ends."""
        return self._server is not None and any(server.is_serving() for server in self._server.servers)

    def start(self) -> None:
        sock = listening("127.0.0.1", self.port)
        self.port = sock.getsockname()[1]
        self._error: BaseException | None = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._live, args=(sock,), name="test-hub", daemon=True)
        self._thread.start()
        until(lambda: (self._server is not None and self._server.started) or self._error)
        self._reraise()

    def stop(self) -> None:
        """As a SIGTERM would."""
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        self._reraise()

    def _live(self, sock: socket.socket) -> None:
        try:
            asyncio.run(self._serve(sock))
        except BaseException as error:
            self._error = error

    async def _serve(self, sock: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        store = open_store(self._store, self.clock, blocking=False, patience=self._patience)
        try:
            self.hub = Hub(Engine(store, self.clock), self.clock, self._settings, app=self._app)
            app: Any = HubApp(self.hub, self._dialects, self._root)
            served = Starlette(routes=[Mount(self._mounted, app)]) if self._mounted else app
            self._server = server(served, connections=self.hub.settings.connections)
            await self._server.serve(sockets=[sock])
            await self.hub.stop()  # where it is mounted, nobody else tells it
        finally:
            await store.close()

    def _reraise(self) -> None:
        if self._error is not None:
            raise self._error
