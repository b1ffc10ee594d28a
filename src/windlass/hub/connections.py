"""The server side of a connection: uvicorn's protocol, with bounds.

The head of a request must be small and arrive in time, trailers are dropped, one request is answered before the next is read, buffers are
small, a client that does not read is disconnected, and streams are notified when the server stops.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from windlass.hub.events.pipes import ABORT, AT_SHUTDOWN, IS_WHOLE, PORTION, STALLED, AtShutdown

BUFFER = 32 * 1024
"""Bytes of unsent output after which writers of a stream wait."""

AHEAD = 64 * 1024
"""Bytes that are buffered while a request is answered. Beyond that, reading stops, and the rest stays with the client."""

HEAD, HEAD_WITHIN = 64 * 1024, 20.0
"""Bytes of an address with its headers, and seconds for them to arrive. A connection that does not complete a head in time is closed.

So is one that sends this many bytes around a body, as trailers or in the frames of its chunks.
"""
HEADERS = 1_000
"""Headers of a request that are kept; a request with more is refused later."""

LINGER = 10.0
"""Seconds for the rest of a body that no handler reads any more."""

_BODY = (
    b'{"type":"urn:windlass:error:limit_reached","title":"Limit reached","status":503,"code":"limit_reached",'
    b'"detail":"The hub has as many connections as it may.","hint":"Try again in a few seconds, or add another hub."}'
)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 2\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
PARTING = 1.0
"""Seconds for a surplus connection to read its refusal."""


class Whole:
    """A transport that sends everything written in one turn of the loop at once: the head of an answer together with its body.

    The client must read: while output is pending, at least a portion of it every few seconds.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = self._full = False
        self._unread: asyncio.TimerHandle | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > BUFFER:  # so that a stream waits when its client does not read
            self.flush()

    def flush(self) -> None:
        if self._parts:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()
        self.watch()

    # What comes in

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if not self._full:
            self._transport.resume_reading()

    def fill(self, full: bool) -> None:
        """Stop reading until there is room again."""
        self._full = full
        if full:
            self._transport.pause_reading()
        elif not self._paused:
            self._transport.resume_reading()

    # What goes out

    def watch(self) -> None:
        """Drop the connection unless its unsent output shrinks."""
        self.unwatch()
        if unsent := self._transport.get_write_buffer_size():
            self._unread = self._loop.call_later(STALLED, self._look, unsent)

    def unwatch(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self, before: int) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent and unsent > before - PORTION:
            self._transport.abort()
        else:
            self.watch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Trailers(list[tuple[bytes, bytes]]):
    """Discards trailers. They would change the head of a request that was already admitted."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_BLANK_LINE = re.compile(rb"\n\r?\n")
_LINE_ENDS = re.compile(rb"[\r\n]*")


class Connection(HttpToolsProtocol):
    """For `uvicorn.Config(http=bounded(...))`."""

    limit: int
    transport: Whole  # type: ignore[assignment]
    _refused = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._at_shutdown = AtShutdown()
        self._in_head, self._between = False, True
        self._idle = 0  # bytes since the last head or part of a body
        self._ahead = bytearray()
        self._answering: RequestResponseCycle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=BUFFER)
        self._refused = len(self.connections) >= self.limit
        super().connection_made(Whole(transport, self.loop))  # type: ignore[arg-type]
        if self._refused:
            self.connections.discard(self)
            transport.write(FULL)
            self._late = self.loop.call_later(PARTING, transport.abort)  # closing at once could lose the answer for the client
        else:
            self._in_head, self._late = True, self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._not_late()
        self._have_body()
        self.transport.unwatch()
        self._ahead.clear()
        if self.pipeline and self._answering is not None:  # uvicorn notifies only the newest one
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    # Reading: up to the end of a request, and on when it is answered

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._ahead:
            data = data[self._feed(data) :]
        if data:
            self._ahead += data
            if len(self._ahead) > AHEAD:
                self.transport.fill(True)
        self._expect_head()

    def _feed(self, data: bytes | bytearray) -> int:
        """Parse until a request waits for its answer. Returns the number of bytes consumed; all of them when the connection ends.

        A piece ends at the first blank line, as every head does: so it has the end of one request, and at most one more.
        """
        at, size = 0, len(data)
        while at < size and not self._busy:
            if self._between and data[at] in b"\r\n":  # which starts no request, and does not count as activity
                at = _LINE_ENDS.match(data, at).end()  # type: ignore[union-attr]
                continue
            blank = _BLANK_LINE.search(data, at, at + HEAD)
            end = min(size, at + HEAD) if blank is None else blank.end()
            super().data_received(bytes(data[at:end]))
            self._idle += end - at
            if self._idle > HEAD:
                self.transport.abort()
            if self.transport.is_closing():
                return size
            at = end
        return at

    @property
    def _busy(self) -> bool:
        """Whether a complete request is unanswered, or another one follows it."""
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.more_body and not cycle.response_complete)

    def _expect_head(self) -> None:
        """Start the time limit for the rest of a head; it does not run while the hub itself does not read."""
        if not self._in_head or self._busy:
            self._not_late()
        elif self._late is None:  # most arrive complete, and need no timer
            self._late = self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def _not_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def on_message_begin(self) -> None:
        self._not_late()
        self._in_head, self._between, self._idle = True, False, 0
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort, AT_SHUTDOWN: self._at_shutdown, IS_WHOLE: self._is_whole}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._in_head, self._idle = False, 0
        del self.headers[HEADERS:]
        before = self.cycle
        super().on_headers_complete()
        self.headers = _Trailers()
        if self.pipeline:
            self._answering = before
        if self.parser.should_upgrade():  # it is answered like any other request, but the parser does not know where its body ends
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = True
        self._have_body()
        super().on_message_complete()

    def _is_whole(self) -> bool:
        """Whether the newest request is complete; those before it are, or it could not have started."""
        return not self.cycle.more_body

    def _have_body(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    # Answering

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a body whose request was already answered: nothing else would.

        Closing at once would lose the answer for a client that is still sending.
        """
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._lingering = self.loop.call_later(LINGER, self.transport.abort)
        if not self.transport.is_closing():
            del self._ahead[: self._feed(self._ahead)]
            self.transport.fill(len(self._ahead) > AHEAD)
            self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.unwatch()
        if self.transport.is_closing():
            self.transport.watch()

    def eof_received(self) -> None:
        if self._refused:
            self.transport.close()
        else:
            super().eof_received()

    def shutdown(self) -> None:
        super().shutdown()
        self._at_shutdown.tell()


def bounded(limit: int) -> type[Connection]:
    """Connections of a server that has at most this many; a surplus one gets a 503, and is closed."""
    return type("Connection", (Connection,), {"limit": limit})
