"""Procrastinate: a worker that fetches one job at a time, and ends many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bench.peers.base import PAYLOAD, Peer, main

CALL = 1_000
CONCURRENCY = 20

PEER = Peer(
    name="procrastinate",
    title="Procrastinate",
    store="postgres",
    packages=("procrastinate", "psycopg[binary,pool]"),
    shown=("procrastinate", "psycopg"),
    delivery="at most once; at least once with a periodic task of one's own that retries stalled jobs",
    keeps="every job with its arguments and its events, until they are deleted",
    settings=f"`concurrency={CONCURRENCY}`, a pool of {CONCURRENCY}",
    jobs=3_000,
    singles=1_500,
    unfinished="select exists (select 1 from procrastinate_jobs where status in ('todo', 'doing'))",
)


class Procrastinate:
    """An app on an asynchronous connector."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        asyncio.run(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        import procrastinate

        connector = procrastinate.PsycopgConnector(conninfo=address, min_size=CONCURRENCY, max_size=CONCURRENCY)
        self._app = procrastinate.App(connector=connector)
        self._done: Callable[[], object] = int
        self._task = self._app.task(name="mail")(self._mail)

    async def _mail(self, to: str) -> None:
        self._done()

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def connect(self) -> None:
        await self._app.open_async()

    async def one(self) -> None:
        await self._task.defer_async(**PAYLOAD)

    async def many(self, count: int) -> None:
        for begin in range(0, count, CALL):
            await self._task.batch_defer_async(*[PAYLOAD] * min(CALL, count - begin))

    async def work(self, done: Callable[[], None]) -> None:
        self._done = done
        async with self._app.open_async():
            await self._app.run_worker_async(concurrency=CONCURRENCY)


PEERS = {PEER: Procrastinate}

if __name__ == "__main__":
    main(PEERS)
