"""`Client` and `AsyncClient`: the public clients of a hub. The same names in both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from windlass.client.blocking import BlockingVerbs
from windlass.client.events import StreamEvent, follow
from windlass.client.requester import PATIENCE, place
from windlass.client.transport import AsyncTransport, BlockingTransport
from windlass.client.verbs import RemoteVerbs
from windlass.clock import Clock, SystemClock
from windlass.engine import checks
from windlass.model import Run, State
from windlass.slots import Duration, HeldSlot, direct_call, in_loop, on_thread
from windlass.store.base import run_sync

TOKEN = "WINDLASS_HUB_TOKEN"


def _token(token: str | None) -> str | None:
    return token if token is not None else os.environ.get(TOKEN) or None


class _StreamingVerbs(RemoteVerbs):
    """The verbs, and those that need a stream."""

    def follow(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        path = place("events") if run_id is None else place("runs", checks.identifier(run_id, "The run"), "events")
        query: dict[str, str | int] = {
            name: text for name, text in {"job": job, "queue": queue, "state": state}.items() if text is not None
        }
        how: dict[str, Any] = {"after": after, "patience": self._patience, "until_end": run_id is not None}
        return follow(self.transport, self.clock, path, query, **how)


class Client(BlockingVerbs):
    """A hub, for synchronous code: every call blocks until its answer is there. Threads may share it."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        transport = BlockingTransport(url, token=_token(token), ca_file=ca_file)
        self._verbs: _StreamingVerbs = _StreamingVerbs(transport, clock or SystemClock(), patience=patience)

    def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended; TimeoutError when it takes longer."""
        return run_sync(self._verbs.wait_for(run_id, timeout))

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> Iterator[StreamEvent]:
        """Changes from now on, or after the id of an event; with a run, its changes and log lines until its end."""
        stream = self._verbs.follow(run_id, job=job, queue=queue, state=state, after=after)
        try:
            while True:
                try:
                    yield run_sync(anext(stream))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            run_sync(stream.aclose())  # type: ignore[attr-defined]

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


class AsyncClient(_StreamingVerbs):
    """The same for event loops: every call is awaited."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        super().__init__(AsyncTransport(url, token=_token(token), ca_file=ca_file), clock or SystemClock(), patience=patience)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended; TimeoutError when it takes longer."""
        return await self.wait_for(run_id, timeout)

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Changes from now on, or after the id of an event; with a run, its changes and log lines until its end."""
        return self.follow(run_id, job=job, queue=queue, state=state, after=after)

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
