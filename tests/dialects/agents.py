"""An agent of windlass at work for a hub of the Forge protocol, in a thread of its own."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.dialects.forge_hub_stub import SECRET, ForgeHub
from tests.workers import DEADLINE, until
from windlass import App
from windlass.clock import SystemClock
from windlass.config.settings import Settings
from windlass.dialects.forge.agent import AgentSettings, agent_worker
from windlass.worker import Worker

SHELL = b"#!/bin/sh\n"
ON_LOOPBACK = Settings(solver_allow=("127.0.0.0/8",), solver_plain_http=True)
QUICK = 100  # milliseconds between two claims or two snapshots


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def program(hub: ForgeHub, content: bytes, name: str = "solver") -> dict[str, str]:
    """A program that the hub's server offers: the fields by which a job names it."""
    hub.files[name] = content
    return {"solver_url": f"{hub.url}/files/{name}", "solver_checksum": sha(content)}


class HubAddress(Protocol):
    """A hub of any kind."""

    @property
    def url(self) -> str: ...


class Agent:
    """An agent, which can be told to stop."""

    def __init__(self, app: App, agent: AgentSettings, settings: Settings) -> None:
        self._what = app, agent, settings
        self._ready, self._error = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._live, name="test-agent", daemon=True)
        self._thread.start()
        until(lambda: self._ready.is_set() or self._error)
        self.reraise()

    worker: Worker

    def _live(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._error.append(error)

    async def _work(self) -> None:
        async with agent_worker(*self._what, SystemClock()) as self.worker:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._ready.set)
            await self.worker.run()

    def ask(self, *, drain: bool = True) -> None:
        """Begin to stop."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.worker.stop(drain=drain), self._loop)

    def beat(self) -> None:
        """Send the next heartbeat now."""
        self.worker.heartbeat.now()

    def join(self) -> None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        self.reraise()

    def reraise(self) -> None:
        if self._error:
            raise self._error[0]


@contextmanager
def agent_at(hub: HubAddress, cache: Path, app: App | None = None, settings: Settings = ON_LOOPBACK, **fields: Any) -> Iterator[Agent]:
    """An agent that works for a hub, and is stopped at the end of the block."""
    usual: dict[str, Any] = {
        "secret": SECRET,
        "enabled": True,
        "poll_interval": QUICK,
        "push_interval": 3_600_000,
        "cores": 2,
        "ram_gb": 4.0,
    }
    usual["cache"] = str(cache)
    agent = Agent(app or App(":memory:"), AgentSettings(hub.url.removesuffix("/"), "node-1", **usual | fields), settings)
    try:
        yield agent
    finally:
        agent.ask(drain=False)
        agent.join()
