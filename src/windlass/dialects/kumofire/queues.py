"""Queue adapters: in memory, over a function, and over the hints of a store."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from windlass.dialects.kumofire.messages import Message, build_message
from windlass.dialects.kumofire.storage import Storage
from windlass.dialects.kumofire.words import LIMIT
from windlass.model import State
from windlass.store.base import queue_topic


class MemoryQueue:
    """Messages of one process, in the order in which they were sent; they are gone with it."""

    def __init__(self) -> None:
        self.messages = deque[Message]()

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    def receive(self) -> Iterator[Message]:
        """Take the messages that are there, also those that are sent meanwhile."""
        while self.messages:
            yield self.messages.popleft()


class CallableQueue:
    """Sends by a function, plain or async: that of a broker's client, for example."""

    def __init__(self, function: Callable[[Message], Awaitable[Any] | Any]) -> None:
        self._function = function

    async def send(self, message: Message) -> None:
        answer = self._function(message)
        if inspect.isawaitable(answer):
            await answer


class StoreQueue:
    """The hints of a store: a message wakes consumers, who read from the store which runs are queued. No broker is needed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def send(self, message: Message) -> None:
        await self._storage.engine.wake({self._topic})

    @property
    def _topic(self) -> str:
        return queue_topic(self._storage.queue)

    async def receive(self, timeout: float = 0, *, count: int = LIMIT) -> list[dict[str, Any]]:
        """Messages for the first queued runs; if there are none, after a hint or this many seconds."""
        messages = await self._queued(count)
        if not messages and timeout > 0:
            await self.wait(timeout)
            messages = await self._queued(count)
        return messages

    async def wait(self, timeout: float) -> None:
        """Wait for a message, at most this many seconds."""
        await self._storage.engine.wait({self._topic}, timeout)

    async def _queued(self, count: int) -> list[dict[str, Any]]:
        page = await self._storage.engine.runs(queue=self._storage.queue, state=State.QUEUED, count=count)
        return [build_message(run.id) for run in page.runs]
