"""A response that stays open: a disconnected client is noticed at once, and one that does not read is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from windlass.api.verbs import EVENT_STREAM
from windlass.errors import WindlassError

PORTION = 16 * 1024
"""Bytes written at once. A client that does not read costs the hub this much, and the buffers of its connection."""
STALLED = 20.0
"""Seconds in which a client must make room for one portion."""
PARTING = 1.0

ABORT = "windlass.abort"
"""The scope key under which the server provides a function that drops a connection with all unsent data. Without it, it is closed."""
AT_SHUTDOWN = "windlass.at_shutdown"
"""The scope key under which the server provides its `AtShutdown`."""
IS_WHOLE = "windlass.is_whole"
"""The scope key under which the server provides a function that tells whether the body of a request is complete."""

_HEADERS = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class AtShutdown:
    """Callbacks for the stop of the server; called at once if it is already stopping."""

    def __init__(self) -> None:
        self._ends, self._told = set[Callable[[], object]](), False

    def add(self, end: Callable[[], object]) -> None:
        self._ends.add(end)
        if self._told:
            end()

    def discard(self, end: Callable[[], object]) -> None:
        self._ends.discard(end)

    def tell(self) -> None:
        self._told = True
        for end in tuple(self._ends):
            end()


class Pipe:
    """The output to one client. Nothing is sent before the first write, so that an earlier error is an answer of its own."""

    def __init__(
        self, scope: Any, receive: Callable[[], Coroutine[Any, Any, Any]], send: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._over = asyncio.get_running_loop().create_future()
        self._begun = False

    def end(self) -> None:
        """Disconnect the client; it will reconnect, here or elsewhere."""
        if not self._over.done():
            self._over.set_result(None)

    async def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the task that writes here, until it is done, the client has left, or the pipe is ended."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone())
        at_shutdown: AtShutdown = self._extension(AT_SHUTDOWN, None) or AtShutdown()
        at_shutdown.add(self.end)
        try:
            await asyncio.wait({working, gone, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                await self._part(working, gone)
        finally:
            at_shutdown.discard(self.end)
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Send all of it, portion by portion. TimeoutError when the client does not read."""
        if not self._begun:
            self._begun = True
            await self._say({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for begin in range(0, len(data), PORTION):
            await self._say({"type": "http.response.body", "body": data[begin : begin + PORTION], "more_body": True})

    async def answer_nothing(self) -> None:
        """Answer that there is nothing to send, now or later: browsers do not reconnect after this."""
        self._begun = True
        await self._say({"type": "http.response.start", "status": 204, "headers": []})

    async def _part(self, working: asyncio.Future[None], gone: asyncio.Future[None]) -> None:
        """The task ended before the client left."""
        try:
            if working.done():
                working.result()
        except TimeoutError:
            await self._cut(gone)
        except WindlassError:
            if not self._begun:
                raise
            await self._finish(gone)  # the client reconnects, and gets the error then
        else:
            working.cancel()
            await asyncio.wait({working})
            await self._finish(gone)

    async def _finish(self, gone: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(PARTING):
                await self.write(b"")
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            await self._cut(gone)

    async def _cut(self, gone: asyncio.Future[None]) -> None:
        self._extension(ABORT, lambda: None)()
        await asyncio.wait({gone}, timeout=PARTING)  # signals to the server that nothing follows

    def _extension(self, name: str, otherwise: Any) -> Any:
        return (self._scope.get("extensions") or {}).get(name, otherwise)

    async def _say(self, message: dict[str, Any]) -> None:
        async with asyncio.timeout(STALLED):
            await self._send(message)

    async def _gone(self) -> None:
        with suppress(OSError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
