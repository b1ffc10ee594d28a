"""Hints that a queue has work: notifications, joined, sent only when somebody waits. Nothing depends on them but time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import psycopg

HINT_EVERY = 0.005  # seconds between two notifications of one process
LINGER = 5.0  # seconds the listener stays when nobody waits any more

# Waiters hold a shared lock: when the exclusive one can be had, nobody waits. A hint is not worth a flush of the log.
NOTIFY = (
    b"select set_config('synchronous_commit', 'off', true), pg_notify('windlass', value) from json_array_elements_text($1) "
    b"where not pg_try_advisory_xact_lock(2003398244, 2)"
)
LISTEN = b"listen windlass; select pg_advisory_lock_shared(2003398244, 2)"


class Listener:
    """The one connection on which a process hears hints for all who wait in it. It goes when nobody has waited for a while."""

    def __init__(self, parameters: Mapping[str, Any], pause: Callable[[float], Awaitable[None]]) -> None:
        self._parameters, self._pause = parameters, pause
        self._waiting: dict[asyncio.Future[set[str]], frozenset[str]] = {}
        self._unheard: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, queues: Collection[str], timeout: float) -> set[str]:
        wanted = frozenset(queues)
        if early := wanted & self._unheard:  # what was said while the caller looked for work
            self._unheard -= early
            return set(early)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        told: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
        self._waiting[told] = wanted
        try:
            return await asyncio.wait_for(told, timeout)
        except TimeoutError:
            return set()
        finally:
            del self._waiting[told]

    async def _listen(self) -> None:
        while self._waiting:
            with suppress(psycopg.Error):
                await self._hear()
            self._unheard.clear()
            if self._waiting:
                await self._pause(0.2)

    async def _hear(self) -> None:
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters)
        try:
            await connection.execute(LISTEN)
            self._tell(None)
            while self._waiting:
                async for notify in connection.notifies(timeout=LINGER):
                    self._tell(notify.payload)
        finally:
            await connection.close()

    def _tell(self, queue: str | None) -> None:
        """Pass a hint on; None when any may have been missed."""
        heard = queue is None
        for told, wanted in self._waiting.items():
            news = wanted if queue is None else wanted & {queue}
            if not news or told.cancelled():
                continue
            heard = True
            if told.done():
                told.result().update(news)
            else:
                told.set_result(set(news))
        if queue is not None and not heard:
            self._unheard.add(queue)

    async def close(self) -> None:
        for told in self._waiting:
            if not told.done():
                told.set_result(set())
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
