"""The hub's side of a connection: uvicorn's, with bounds.

The head of a request must be small and come soon, buffers are small, a client that does not read can be dropped, and streams hear
of the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from windlass.hub.events.pipes import ABORT, AT_SHUTDOWN, IS_WHOLE, AtShutdown

BUFFER = 32 * 1024
"""Bytes that may wait for a client before its stream does."""


HEAD, HEAD_WITHIN = 64 * 1024, 20.0
"""Bytes of an address with its headers, and seconds for them to come. A connection that keeps a request's head open is closed."""

LINGER = 10.0
"""Seconds for the rest of a body that nobody waits for any more."""

_BODY = (
    b'{"type":"urn:windlass:error:limit_reached","title":"Limit reached","status":503,"code":"limit_reached",'
    b'"detail":"The hub has as many connections as it may.","hint":"Try again in a few seconds, or add another hub."}'
)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 2\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
PARTING = 1.0
"""Seconds in which a connection that is one too many may read that it is."""


class Whole:
    """A transport that sends what is written in one turn of the loop at once: the head of an answer goes together with its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > BUFFER:  # so that a stream is told to wait when its client does not read
            self.flush()

    def flush(self) -> None:
        if self._parts:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """For `uvicorn.Config(http=bounded(...))`."""

    most: int
    _refused = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._at_shutdown = AtShutdown()
        self._in_head, self._head_size = False, 0
        self._head_late: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=BUFFER)
        self._refused = len(self.connections) >= self.most
        super().connection_made(Whole(transport, self.loop))  # type: ignore[arg-type]
        if self._refused:
            self.connections.discard(self)
            transport.write(FULL)
            self.loop.call_later(PARTING, transport.abort)  # to close at once could take the answer away from who has asked already
        else:
            self._in_head, self._head_late = True, self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:  # it is not whole yet, so all of this belongs to it
            self._head_size += len(data)
            if self._head_size > HEAD:
                self.transport.abort()
            elif self._head_late is None:  # most come whole, and need no timer
                self._head_late = self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._have_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        self._have_body()
        super().connection_lost(exc)

    def _have_head(self) -> None:
        self._in_head = False
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None

    def on_message_begin(self) -> None:
        self._have_head()
        self._in_head, self._head_size = True, 0
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort, AT_SHUTDOWN: self._at_shutdown, IS_WHOLE: self._is_whole}  # type: ignore[dict-item]

    def _is_whole(self) -> bool:
        """Of the newest request; those before it are, or it could not have begun."""
        return not self.cycle.more_body

    def on_response_complete(self) -> None:
        """A request that was answered before its body came is not waited for much longer: nothing else would bound that.

        To close at once would take the answer away from a client that is still sending.
        """
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._lingering = self.loop.call_later(LINGER, self.transport.abort)

    def on_message_complete(self) -> None:
        self._have_body()
        super().on_message_complete()

    def _have_body(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def eof_received(self) -> None:
        if self._refused:
            self.transport.close()
        else:
            super().eof_received()

    def shutdown(self) -> None:
        super().shutdown()
        self._at_shutdown.tell()


def bounded(most: int) -> type[Connection]:
    """Connections of a server that has at most so many; one more is told so, and closed."""
    return type("Connection", (Connection,), {"most": most})
