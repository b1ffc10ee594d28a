"""Hints through the server: notifications, coalesced, sent only while a process waits. A lost one costs only time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from windlass.clock import SystemClock
from windlass.errors import StoreError
from windlass.store.base import LOOK_EVERY
from windlass.store.hints import ANYTHING, Waiters

Pause = Callable[[float], Awaitable[None]]
Look = Callable[[str | None], Awaitable[tuple[str, set[str]]]]
"""The topics of changes since an earlier poll, if there was one, and the state for the next poll."""

_LOG = logging.getLogger(__name__)
_CLOCK = SystemClock()  # real time, whatever clock the store has

HINT_EVERY = 0.005  # seconds between two notifications of one process
BURST = 8  # notifications that a blocking store may send at once after a rest
LINGER = 5.0  # seconds for which the listener stays when nothing waits any more
LOOK_ANYWAY = 1.0  # seconds after which waiters poll for changes that are not notified or not journaled
NEWS = 100  # journal entries that one poll reads; if there are more, all topics are reported
NOBODY = 500  # milliseconds for which a process that found no reader of the journal sends no hint about it
FRESH = 2 * NOBODY  # milliseconds for which a new reader polls, until all writers have noticed it
LONGEST_TOPIC = 7_000  # bytes; a notification carries less than 8,000

# Waiters hold a shared lock: if the exclusive one can be taken, nothing waits. A hint is not worth a flush of the log.
NOTIFY = (
    b"select set_config('synchronous_commit', 'off', true), pg_notify('windlass', value) from json_array_elements_text($1) "
    b"where not pg_try_advisory_xact_lock(2003398244, 2)"
)
# In a caller's transaction: its flush is the caller's decision, and the lock must not be held until its end, which may be far.
NOTIFY_WITHIN = (
    b"select pg_notify('windlass', value) from json_array_elements_text($1), "
    b"(select case when pg_try_advisory_lock(2003398244, 2) then not pg_advisory_unlock(2003398244, 2) else true end as waits) as waiting "
    b"where waits"
)
# Hints of the journal have their own channel and lock: each would wake every process that waits for other hints.
NOTIFY_JOURNAL = (
    b"select set_config('synchronous_commit', 'off', true), pg_notify('windlass_journal', 'journal') "
    b"where not pg_try_advisory_xact_lock(2003398244, 3)"
)
JOURNAL_WITHIN = (
    b"select pg_notify('windlass_journal', 'journal') from "
    b"(select case when pg_try_advisory_lock(2003398244, 3) then not pg_advisory_unlock(2003398244, 3) else true end as waits) as waiting "
    b"where waits"
)
# On a separate connection that no pooler shares.
LISTEN = b"listen windlass; select pg_advisory_lock_shared(2003398244, 2)"
LISTEN_JOURNAL = b"listen windlass_journal; select pg_advisory_lock_shared(2003398244, 3)"


def payloads(topics: Collection[str]) -> bytes:
    """Topics as the set that is sent; a set that no notification can carry becomes "anything"."""
    return json.dumps(sorted({topic if len(topic.encode(errors="replace")) <= LONGEST_TOPIC else ANYTHING for topic in topics})).encode()


class HintReceiver:
    """Receives hints for all waiters of a process. It ends when nothing has waited for a while."""

    _fresh = 0  # milliseconds from the start in which waiters poll

    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self._waiters = Waiters()
        self._until = 0  # when that is over
        self._waiting = 0
        self._hears = self._deaf = False
        self._task: asyncio.Task[None] | None = None

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._keep_hearing())
            return await self._waiters.wait(topics, self._patience(timeout), missed=self._hears)
        finally:
            self._waiting -= 1

    def _patience(self, timeout: float) -> float:
        if self._hears and _CLOCK.monotonic() < self._until:
            return min(timeout, LOOK_EVERY)
        return min(timeout, LOOK_ANYWAY) if self._deaf else timeout

    def deliver(self, topics: Collection[str]) -> None:
        """This process itself has published a hint."""

    async def _keep_hearing(self) -> None:
        while self._waiting:
            try:
                await self._hear()
            except (psycopg.Error, StoreError):
                self._deaf = True
            if self._waiting:
                await self._pause(0.2)

    async def _hear(self) -> None:
        raise NotImplementedError

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """From now on no hint is missed."""
        self._hears, self._deaf, self._until = True, False, _CLOCK.monotonic() + self._fresh
        self._waiters.wake({ANYTHING})
        try:
            yield
        finally:
            self._hears = False
            self._waiters.forget()

    async def close(self) -> None:
        self._waiters.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


class Listener(HintReceiver):
    """By notifications, on one connection."""

    _listen = LISTEN

    def __init__(self, parameters: Mapping[str, Any], pause: Pause, *, apart: bool = False) -> None:
        super().__init__(pause)
        self._parameters = parameters
        self._complains = apart  # a separate address may be wrong while all else works

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        try:
            return await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters)
        except psycopg.Error as error:
            if self._complains:
                self._complains = False
                _LOG.warning("No notifications from listen_store; runs are found by polling every second: %s", " ".join(str(error).split()))
            raise

    async def _hear(self) -> None:
        connection = await self._connected()
        try:
            await connection.execute(self._listen)
            with self._hearing():
                while self._waiting:
                    async for notify in connection.notifies(timeout=LINGER):
                        self._waiters.wake({notify.payload})
        finally:
            await connection.close()


class JournalListener(Listener):
    """Receives hints of the journal only."""

    _listen, _fresh = LISTEN_JOURNAL, FRESH


class HintPoller(HintReceiver):
    """By polling for changes: one poll for all waiters, where no notification arrives."""

    def __init__(self, look: Look, pause: Pause) -> None:
        super().__init__(pause)
        self._look = look

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        return await super().wait(topics, min(timeout, LOOK_ANYWAY))

    def deliver(self, topics: Collection[str]) -> None:
        self._waiters.wake(set(topics))

    async def _hear(self) -> None:
        seen, _ = await self._look(None)
        with self._hearing():
            alone = 0.0
            while alone < LINGER:
                await self._pause(LOOK_EVERY)
                seen, topics = await self._look(seen)
                self._waiters.wake(topics)
                alone = 0.0 if self._waiting else alone + LOOK_EVERY
