"""DBOS: workflows on a queue, on both of its databases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from bench.peers.base import PAYLOAD, Peer, blocking, main

CALL = 500
POLL = 0.01
CONCURRENCY = 100
VERSION = "race"


def _peer(store: Literal["postgres", "sqlite"]) -> Peer:
    schema = "dbos." if store == "postgres" else ""
    return Peer(
        name="dbos" if store == "postgres" else "dbos_sqlite",
        title="DBOS" if store == "postgres" else "DBOS (SQLite)",
        store=store,
        packages=("dbos",),
        shown=("dbos", "sqlalchemy", "psycopg"),
        delivery="at least once; a step that has been recorded is not executed again",
        keeps="every workflow with its arguments and its result, until they are deleted",
        settings=f"`worker_concurrency={CONCURRENCY}`, `polling_interval_sec={POLL}`",
        jobs=1_500 if store == "postgres" else 800,
        singles=500,
        unfinished=f"select exists (select 1 from {schema}workflow_status where status in ('ENQUEUED', 'PENDING'))",
    )


class Dbos:
    """A client enqueues, launched applications work."""

    @staticmethod
    def drive(steps: Coroutine[Any, Any, None]) -> None:
        blocking(steps)

    def __init__(self, peer: Peer, address: str) -> None:
        plain = address.replace("postgresql://", "postgresql+psycopg://")
        self._url = plain if peer.store == "postgres" else f"sqlite:///{address}"

    def _launch(self) -> Any:
        from dbos import DBOS

        config = {"name": "race", "system_database_url": self._url, "application_version": VERSION, "log_level": "ERROR"}
        DBOS(config=config | {"executor_id": str(os.getpid())})
        return DBOS

    async def install(self) -> None:
        dbos = self._launch()
        dbos.launch()
        dbos.register_queue("race", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
        dbos.destroy()

    async def connect(self) -> None:
        from dbos import DBOSClient
        from sqlalchemy import create_engine

        self._client = DBOSClient(system_database_url=self._url)
        self._engine = create_engine(self._url)
        self._options = {"queue_name": "race", "workflow_name": "mail", "app_version": VERSION}

    async def one(self) -> None:
        self._client.enqueue(self._options, PAYLOAD["to"])

    async def many(self, count: int) -> None:
        for begin in range(0, count, CALL):
            with self._engine.begin() as connection:
                for _ in range(min(CALL, count - begin)):
                    self._client.enqueue_in_transaction(connection, self._options, PAYLOAD["to"])

    async def work(self, done: Callable[[], None]) -> None:
        def mail(to: str) -> None:
            done()

        dbos = self._launch()
        dbos.workflow(name="mail")(mail)
        dbos.launch()
        threading.Event().wait()


PEERS = {_peer("postgres"): Dbos, _peer("sqlite"): Dbos}

if __name__ == "__main__":
    main(PEERS)
