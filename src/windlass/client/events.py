"""Reads a hub's server-sent events, and reconnects after the last one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from windlass.client.problems import refusal
from windlass.client.requester import FIRST_PAUSE, LONGEST_PAUSE
from windlass.client.transport import ClientRequest, NotAStream, Transport
from windlass.clock import Clock
from windlass.errors import TRANSIENT, HubFailed
from windlass.machine import ENDED
from windlass.store.base import run_sync

SILENCE = 60.0  # seconds without even a comment after which the connection counts as dead
_END_OF_LINE = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a last \r may be the first half of \r\n
_LONGEST = 16 * 1024 * 1024


class StreamEvent(Struct, frozen=True):
    """One event: its kind, its data, and the id after which a stream resumes."""

    event: str
    data: Any
    id: str | None


class Parser:
    """Parses the bytes of a stream into events."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id, self._id = last_id, last_id  # the second becomes the first when its event is complete
        self._rest = b""
        self._event, self._data = "", list[str]()

    def feed(self, part: bytes) -> Iterator[StreamEvent]:
        """The events that are complete now."""
        *lines, self._rest = _END_OF_LINE.split(self._rest + part)
        if len(self._rest) + sum(map(len, self._data)) > _LONGEST:
            raise HubFailed("An event of the hub has no end.", hint="Check the address of the hub.")
        for line in lines:
            if line:
                self._take(line.decode(errors="replace"))
                continue
            self.last_id = self._id
            if self._data:
                yield self._whole()
            self._event = ""

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value or None

    def _whole(self) -> StreamEvent:
        text, event = "\n".join(self._data), self._event or "message"
        self._data = []
        try:
            return StreamEvent(event, msgspec.json.decode(text), self.last_id)
        except msgspec.DecodeError as error:
            raise HubFailed(f"An event of the hub cannot be read: {error}.", hint="Use a hub and a client of the same version.") from None


async def follow(
    transport: Transport, clock: Clock, path: str, query: dict[str, str | int], *, after: str | None, patience: float, until_end: bool
) -> AsyncIterator[StreamEvent]:
    """Events, each once; a broken stream is reopened, for `patience` seconds.

    With `until_end` the stream is that of one run, and ends when the run has ended.
    """
    parser, pause = Parser(after), FIRST_PAUSE
    gone_since: int | None = None
    while True:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": parser.last_id} if parser.last_id is not None else {})
        try:
            async for part in transport.stream(ClientRequest("GET", path, SILENCE, query, headers=headers)):
                gone_since, pause = None, FIRST_PAUSE
                for event in parser.feed(part):
                    yield event
                    if until_end and _is_last(event):
                        return
        except NotAStream as refused:
            if refused.answer.status == HTTPStatus.NO_CONTENT:
                return  # it had already ended
            gone_since = clock.monotonic() if gone_since is None else gone_since
            if not isinstance(error := refusal(refused.answer), TRANSIENT) or clock.monotonic() - gone_since > patience * 1000:
                raise error from None
        except TRANSIENT:
            gone_since = clock.monotonic() if gone_since is None else gone_since
            if clock.monotonic() - gone_since > patience * 1000:
                raise
        parser = Parser(parser.last_id)  # a partial event is sent again, completely
        await transport.pause(pause * (0.5 + clock.chance() / 2))
        pause = min(pause * 2, LONGEST_PAUSE)


def blocking_events(stream: AsyncIterator[StreamEvent]) -> Iterator[StreamEvent]:
    """The events of a stream over a blocking transport, for synchronous code."""
    assert isinstance(stream, AsyncGenerator)
    try:
        while True:
            try:
                yield run_sync(stream.__anext__())
            except StopAsyncIteration:
                return
    finally:
        run_sync(stream.aclose())


def _is_last(event: StreamEvent) -> bool:
    return isinstance(event.data, dict) and event.data.get("state") in ENDED
