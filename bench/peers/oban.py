"""Oban for Python, the free edition: a queue that fetches as many jobs as it has room for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bench.peers.base import PAYLOAD, Peer, main

CALL = 1_000
LIMIT = 200

PEER = Peer(
    name="oban",
    title="Oban",
    store="postgres",
    packages=("oban",),
    shown=("oban", "psycopg", "uvloop"),
    delivery="at least once; the end of an attempt that was rescued meanwhile is refused",
    keeps="every job with its arguments, for a day",
    settings=f"uvloop as with its command, a queue of {LIMIT}, a pool of 10",
    jobs=6_000,
    singles=1_500,
    unfinished="select exists (select 1 from oban_jobs where state <> 'completed')",
    python=(3, 12),
)


class Oban:
    """What `oban start` starts."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        """Its command runs on uvloop."""
        import uvloop

        uvloop.run(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        from oban import worker

        self._address = address
        self._done: Callable[[], object] = int
        queue = self

        class Mail:
            async def process(self, job: Any) -> None:
                queue._done()

        self._mail = worker(queue="default")(Mail)

    async def install(self) -> None:
        from oban.schema import install

        pool = await self._pool()
        await install(pool)
        await pool.close()

    async def _pool(self) -> Any:
        from oban import Oban

        return await Oban.create_pool(self._address, max_size=10)

    async def connect(self) -> None:
        from oban import Oban

        self._oban = Oban(pool=await self._pool())

    async def one(self) -> None:
        await self._oban.enqueue(self._mail.new(PAYLOAD))

    async def many(self, count: int) -> None:
        for begin in range(0, count, CALL):
            await self._oban.enqueue_many(self._mail.new(PAYLOAD) for _ in range(min(CALL, count - begin)))

    async def work(self, done: Callable[[], None]) -> None:
        from oban import Oban

        self._done = done
        async with Oban(pool=await self._pool(), queues={"default": LIMIT}):
            await asyncio.Event().wait()


PEERS = {PEER: Oban}

if __name__ == "__main__":
    main(PEERS)
