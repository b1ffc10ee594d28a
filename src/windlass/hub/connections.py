"""The hub's side of a connection: uvicorn's, with bounds.

The head of a request must be small and come soon, trailers are dropped, one request is answered before the next is read, buffers are
small, a client that does not read is dropped, and streams hear of the end.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from windlass.hub.events.pipes import ABORT, AT_SHUTDOWN, IS_WHOLE, PORTION, STALLED, AtShutdown

BUFFER = 32 * 1024
"""Bytes that may wait for a client before its stream does."""

AHEAD = 64 * 1024
"""Bytes that are kept of what comes while a request is answered. When there are more, reading stops: the rest stays with the client."""

HEAD, HEAD_WITHIN = 64 * 1024, 20.0
"""Bytes of an address with its headers, and seconds for them to come. A connection that keeps a request's head open is closed.

So is one that sends so many bytes around a body, as trailers or in the frames of its chunks.
"""
HEADERS = 1_000
"""Headers of a request that are kept; one that has so many is refused further on."""

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
    """A transport that sends what is written in one turn of the loop at once: the head of an answer goes together with its body.

    What is sent must be read: while it waits, at least a portion of it every few seconds.
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
        if self._size > BUFFER:  # so that a stream is told to wait when its client does not read
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
        """Read nothing, whoever asks for it, until there is room again."""
        self._full = full
        if full:
            self._transport.pause_reading()
        elif not self._paused:
            self._transport.resume_reading()

    # What goes out

    def watch(self) -> None:
        """Drop the connection unless what is unsent gets less."""
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
    """Where headers go that come behind a body: nowhere. They would change the head of a request that was let in already."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_BLANK_LINE = re.compile(rb"\n\r?\n")
_LINE_ENDS = re.compile(rb"[\r\n]*")


class Connection(HttpToolsProtocol):
    """For `uvicorn.Config(http=bounded(...))`."""

    most: int
    transport: Whole  # type: ignore[assignment]
    _refused = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._at_shutdown = AtShutdown()
        self._in_head, self._between = False, True
        self._idle = 0  # bytes since a head or a part of a body has come
        self._ahead = bytearray()
        self._answering: RequestResponseCycle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=BUFFER)
        self._refused = len(self.connections) >= self.most
        super().connection_made(Whole(transport, self.loop))  # type: ignore[arg-type]
        if self._refused:
            self.connections.discard(self)
            transport.write(FULL)
            self._late = self.loop.call_later(PARTING, transport.abort)  # at once could take the answer away from who has asked already
        else:
            self._in_head, self._late = True, self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._not_late()
        self._have_body()
        self.transport.unwatch()
        self._ahead.clear()
        if self.pipeline and self._answering is not None:  # uvicorn tells only the newest one
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
        """Parse until a request waits for its answer. How many bytes that took; all of them when the connection ends.

        A piece ends at the first blank line, as every head does: so it holds the end of one request, and at most one more.
        """
        at, size = 0, len(data)
        while at < size and not self._busy:
            if self._between and data[at] in b"\r\n":  # which begins no request, and is no sign of life
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
        """Whether a request is whole and not answered yet, or there is one more behind it."""
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.more_body and not cycle.response_complete)

    def _expect_head(self) -> None:
        """Give the rest of a head its time; none passes while the hub itself does not read it."""
        if not self._in_head or self._busy:
            self._not_late()
        elif self._late is None:  # most come whole, and need no timer
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
        if self.parser.should_upgrade():  # it is answered as any other request; where its body ends, the parser does not know
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._idle = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = True
        self._have_body()
        super().on_message_complete()

    def _is_whole(self) -> bool:
        """Of the newest request; those before it are, or it could not have begun."""
        return not self.cycle.more_body

    def _have_body(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    # Answering

    def on_response_complete(self) -> None:
        """A request that was answered before its body came is not waited for much longer: nothing else would bound that.

        To close at once would take the answer away from a client that is still sending.
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


def bounded(most: int) -> type[Connection]:
    """Connections of a server that has at most so many; one more is told so, and closed."""
    return type("Connection", (Connection,), {"most": most})
