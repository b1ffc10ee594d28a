"""windlass, on both stores, with many slots and as it is when nothing is set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

from bench.peers.base import PAYLOAD, Peer, blocking, main

CALL = 10_000
SLOTS = 256
DEFAULTS = "_defaults"


def _peer(store: Literal["postgres", "sqlite"], *, tuned: bool) -> Peer:
    on = "PostgreSQL" if store == "postgres" else "SQLite"
    return Peer(
        name=f"windlass_{store}" if tuned else f"windlass_{store}{DEFAULTS}",
        title=f"windlass ({on})" if tuned else f"windlass ({on}), defaults",
        store=store,
        packages=(),
        shown=("windlass", "psycopg" if store == "postgres" else "apsw"),
        delivery="at least once; a worker that has lost its lease can change nothing any more",
        keeps="every run with payload, result and the journal of its moves, for as long as is set",
        settings=f"`slots={SLOTS}`" if tuned else "none",
        jobs=40_000 if tuned else 10_000,
        singles=3_000,
        unfinished="select exists (select 1 from job_runs where finished_at is null)",
        in_every_round=tuned,
        burst=tuned,
    )


class Windlass:
    """A handler that is a coroutine; the store has the definition of its job after the first enqueue."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        blocking(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        from windlass import App

        self._app, self._tuned = App(address), not peer.name.endswith(DEFAULTS)
        self._done: Callable[[], object] = int
        self._job = self._app.job(name="mail")(self._mail)

    async def _mail(self, to: str) -> None:
        self._done()

    async def install(self) -> None:
        self._app.runs()

    async def connect(self) -> None:
        self._app.runs()

    async def one(self) -> None:
        self._job.enqueue(**PAYLOAD)

    async def many(self, count: int) -> None:
        for begin in range(0, count, CALL):
            self._app.enqueue_many(self._job.new(**PAYLOAD) for _ in range(min(CALL, count - begin)))

    async def work(self, done: Callable[[], None]) -> None:
        self._done = done
        if self._tuned:
            self._app.work(slots=SLOTS)
        else:
            self._app.work()


PEERS = {_peer(store, tuned=tuned): Windlass for store in ("postgres", "sqlite") for tuned in (True, False)}

if __name__ == "__main__":
    main(PEERS)
