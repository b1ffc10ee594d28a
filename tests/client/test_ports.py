"""Every port passes the one conformance suite: the engine on each store, and the client through a real hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.served import LeapingClock, ServedHub
from tests.tiers import corners
from windlass.client import AsyncTransport, BlockingTransport, RemotePort
from windlass.clock import ManualClock
from windlass.config.opening import open_store
from windlass.engine import Engine
from windlass.testing.ports import CASES, Case, Ports, conform

ENGINES = ("blocking sqlite", "async sqlite", "blocking postgres", "async postgres")
CLIENTS = ("blocking client, sqlite", "async client, sqlite", "async client, postgres")


def _engines(address: str, *, blocking: bool) -> AbstractAsyncContextManager[Ports]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Ports]:
        clock, made = ManualClock(), list[Engine]()

        def another() -> Engine:
            made.append(Engine(open_store(address, clock, blocking=blocking), clock))
            return made[-1]

        try:
            yield Ports(another(), another, clock.advance)
        finally:
            for engine in made:
                await engine.close()

    return opened()


def _clients(address: str, *, blocking: bool) -> AbstractAsyncContextManager[Ports]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Ports]:
        clock, made = LeapingClock(), list[RemotePort]()
        hub = ServedHub(address, clock=clock)
        engine = Engine(open_store(address, clock, blocking=True), clock)
        transport: Any = BlockingTransport if blocking else AsyncTransport

        def another() -> RemotePort:
            made.append(RemotePort(transport(hub.url), clock))
            return made[-1]

        try:
            yield Ports(engine, another, clock.leap)
        finally:
            for port in made:
                await port.close()
            hub.stop()
            await engine.close()

    return opened()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", corners([*ENGINES, *CLIENTS]))
def test_port(kind: str, case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue("emptied_postgres") if "postgres" in kind else str(tmp_path / "windlass.db")
    opened: Callable[..., AbstractAsyncContextManager[Ports]] = _engines if kind in ENGINES else _clients
    asyncio.run(conform(case, lambda: opened(address, blocking="blocking" in kind)))
