"""huey on SQLite: a task is deleted when it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bench.peers.base import PAYLOAD, Peer, blocking, main

POLL = 0.005

PEER = Peer(
    name="huey_sqlite",
    title="huey (SQLite)",
    store="sqlite",
    packages=("huey",),
    shown=("huey",),
    delivery="at most once: a task is deleted when it is handed out, and lost with its worker",
    keeps="nothing of a task that returns nothing",
    settings=f"`SqliteHuey(fsync=True)`, a worker thread in each process, which polls every {1000 * POLL:.0f} ms",
    jobs=12_000,
    singles=5_000,
    unfinished="select exists (select 1 from task)",
    in_every_round=True,
)


class Huey:
    """The consumer that `huey_consumer` starts."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        blocking(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        from huey import SqliteHuey

        self._huey = SqliteHuey("race", filename=address, fsync=True, timeout=30)
        self._done: Callable[[], object] = int
        self._task = self._huey.task(name="mail")(self._mail)

    def _mail(self, to: str) -> None:
        self._done()

    async def install(self) -> None:
        """The tables were made with the object."""

    async def connect(self) -> None:
        """It connects by itself."""

    async def one(self) -> None:
        self._task(**PAYLOAD)

    async def many(self, count: int) -> None:
        for _ in range(count):  # there is no call for many
            self._task(**PAYLOAD)

    async def work(self, done: Callable[[], None]) -> None:
        self._done = done
        self._huey.create_consumer(workers=1, periodic=False, initial_delay=POLL, max_delay=POLL).run()


PEERS = {PEER: Huey}

if __name__ == "__main__":
    main(PEERS)
