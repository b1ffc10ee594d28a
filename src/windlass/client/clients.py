"""`Client` and `AsyncClient`: the public clients of a hub. The same names in both."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from windlass.client.blocking import BlockingVerbs
from windlass.client.requester import PATIENCE
from windlass.client.streaming import StreamingVerbs
from windlass.client.transport import AsyncTransport, BlockingTransport
from windlass.clock import Clock, SystemClock
from windlass.slots import Duration, HeldSlot, direct_call, in_loop, on_thread

TOKEN = "WINDLASS_HUB_TOKEN"


def _token(token: str | None) -> str | None:
    return token if token is not None else os.environ.get(TOKEN) or None


class Client(BlockingVerbs):
    """A hub, for synchronous code: every call blocks until its answer is there. Threads may share it."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        transport = BlockingTransport(url, token=_token(token), ca_file=ca_file)
        self._verbs = StreamingVerbs(transport, clock or SystemClock(), patience=patience)

    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AbstractContextManager[HeldSlot]:
        """Hold the next slot of a resource for the block: after running runs and earlier calls, ahead of every queue.

        Timeout when it is not free in time; LeaseLost at the end of the block when it was lost meanwhile.
        """
        return on_thread(self._verbs, direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(StreamingVerbs):
    """The same for event loops: every call is awaited."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        super().__init__(AsyncTransport(url, token=_token(token), ca_file=ca_file), clock or SystemClock(), patience=patience)

    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AbstractAsyncContextManager[HeldSlot]:
        """Hold the next slot of a resource for the block: after running runs and earlier calls, ahead of every queue.

        Timeout when it is not free in time; LeaseLost at the end of the block when it was lost meanwhile.
        """
        return in_loop(self, direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
