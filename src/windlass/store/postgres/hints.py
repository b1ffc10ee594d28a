"""Hints over the server: notifications, joined, sent only when somebody waits. Nothing depends on them but time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import psycopg

from windlass.store.hints import ANYTHING, Board

HINT_EVERY = 0.005  # seconds between two notifications of one process
BURST = 8  # notifications that a blocking store may send at once after a rest
LINGER = 5.0  # seconds the listener stays when nobody waits any more
LONGEST_TOPIC = 7_000  # bytes; a notification carries less than 8,000

# Waiters hold a shared lock: when the exclusive one can be had, nobody waits. A hint is not worth a flush of the log.
NOTIFY = (
    b"select set_config('synchronous_commit', 'off', true), pg_notify('windlass', value) from json_array_elements_text($1) "
    b"where not pg_try_advisory_xact_lock(2003398244, 2)"
)
# In a caller's transaction: its flush is the caller's business, and the lock must not be held until its end, which may be far.
NOTIFY_WITHIN = (
    b"select pg_notify('windlass', value) from json_array_elements_text($1), "
    b"(select case when pg_try_advisory_lock(2003398244, 2) then not pg_advisory_unlock(2003398244, 2) else true end as waits) as somebody "
    b"where waits"
)
LISTEN = b"listen windlass; select pg_advisory_lock_shared(2003398244, 2)"


def payloads(topics: Collection[str]) -> bytes:
    """Topics as the set that is sent; one that no notification can carry becomes "anything"."""
    return json.dumps(sorted({topic if len(topic.encode(errors="replace")) <= LONGEST_TOPIC else ANYTHING for topic in topics})).encode()


class Listener:
    """The one connection on which a process hears hints for all who wait in it. It goes when nobody has waited for a while."""

    def __init__(self, parameters: Mapping[str, Any], pause: Callable[[float], Awaitable[None]]) -> None:
        self._parameters, self._pause = parameters, pause
        self._board = Board()
        self._waiting = 0
        self._listening = False
        self._task: asyncio.Task[None] | None = None

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen())
            return await self._board.wait(topics, timeout, missed=self._listening)
        finally:
            self._waiting -= 1

    async def _listen(self) -> None:
        while self._waiting:
            with suppress(psycopg.Error):
                await self._hear()
            if self._waiting:
                await self._pause(0.2)

    async def _hear(self) -> None:
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters)
        try:
            await connection.execute(LISTEN)
            self._listening = True
            self._board.wake({ANYTHING})
            while self._waiting:
                async for notify in connection.notifies(timeout=LINGER):
                    self._board.wake({notify.payload})
        finally:
            self._listening = False
            self._board.forget()
            await connection.close()

    async def close(self) -> None:
        self._board.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
