"""PGQueuer: claimed and logged with one statement each, by asyncpg."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bench.peers.base import PAYLOAD, Peer, main

CALL = 10_000
BATCH, POOL = 500, 5
BODY = b'{"to":"%s"}' % PAYLOAD["to"].encode()


def _peer(name: str, title: str, connections: str, *, in_every_round: bool) -> Peer:
    return Peer(
        name=name,
        title=title,
        store="postgres",
        packages=("pgqueuer[asyncpg]", "uvloop"),
        shown=("pgqueuer", "asyncpg", "uvloop"),
        delivery="at least once; nothing keeps out a worker that comes too late",
        keeps="a row of its log for each change of state; the job with its payload is deleted at its end, and there are no results",
        settings=f"asyncpg, {connections}, uvloop, `batch_size={BATCH}`, `pgq autovac`, `durable`",
        jobs=40_000,
        singles=3_000,
        unfinished="select exists (select 1 from pgqueuer)",
        in_every_round=in_every_round,
        burst=in_every_round,
    )


# Its guide advises a pool for high throughput in one place, and one connection for a worker in another.
POOLED = _peer("pgqueuer", "PGQueuer", f"a pool of {POOL} for a worker", in_every_round=True)
SINGLE = _peer("pgqueuer_one", "PGQueuer, one connection", "one connection for a worker", in_every_round=False)


class PgQueuer:
    """Producers have one connection: one after the other, they need no more."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        """Its own benchmark runs on uvloop."""
        import uvloop

        uvloop.run(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        self._address, self._pooled = address, peer is POOLED

    async def _driver(self, *, pooled: bool = False) -> Any:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

        if pooled:
            return AsyncpgPoolDriver(await asyncpg.create_pool(self._address, min_size=2, max_size=POOL))
        return AsyncpgDriver(await asyncpg.connect(self._address))

    async def install(self) -> None:
        await self.connect()
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    async def connect(self) -> None:
        from pgqueuer.queries import Queries

        self._queries = Queries(await self._driver())

    async def one(self) -> None:
        await self._queries.enqueue("mail", BODY)

    async def many(self, count: int) -> None:
        for begin in range(0, count, CALL):
            size = min(CALL, count - begin)
            await self._queries.enqueue(["mail"] * size, [BODY] * size, [0] * size)

    async def work(self, done: Callable[[], None]) -> None:
        from pgqueuer import PgQueuer

        async def mail(job: Any) -> None:
            done()

        worker = PgQueuer(await self._driver(pooled=self._pooled))
        worker.entrypoint("mail")(mail)
        await worker.run(batch_size=BATCH)


PEERS = {POOLED: PgQueuer, SINGLE: PgQueuer}

if __name__ == "__main__":
    main(PEERS)
