"""What a hub tells as it happens: server-sent events, taken up again where they broke off."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from windlass.client.asking import FIRST_PAUSE, LONGEST_PAUSE
from windlass.client.problems import refusal
from windlass.client.transport import Refused, Transport
from windlass.clock import Clock
from windlass.errors import AWAY, HubFailed
from windlass.machine import ENDED

SILENCE = 60.0  # seconds without even a comment, after which the connection counts as dead
_END_OF_LINE = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a last \r may be the first half of \r\n
_LONGEST = 16 * 1024 * 1024


class Told(Struct, frozen=True):
    """One event: its kind, what it says, and the id after which a stream goes on."""

    event: str
    data: Any
    id: str | None


class Parser:
    """From the bytes of a stream to its events."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id, self._id = last_id, last_id  # the second becomes the first when its event is whole
        self._rest = b""
        self._event, self._data = "", list[str]()

    def feed(self, part: bytes) -> Iterator[Told]:
        """The events that are whole now."""
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

    def _whole(self) -> Told:
        text, event = "\n".join(self._data), self._event or "message"
        self._data = []
        try:
            return Told(event, msgspec.json.decode(text), self.last_id)
        except msgspec.DecodeError as error:
            raise HubFailed(f"An event of the hub cannot be read: {error}.", hint="Use a hub and a client of the same version.") from None


async def follow(
    transport: Transport, clock: Clock, path: str, query: dict[str, str | int], *, after: str | None, patience: float, until_end: bool
) -> AsyncIterator[Told]:
    """Events, each once; a stream that breaks off is taken up again, for `patience` seconds.

    With `until_end` the stream is that of one run, and over when the run has ended.
    """
    parser, pause = Parser(after), FIRST_PAUSE
    gone_since: int | None = None
    while True:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": parser.last_id} if parser.last_id is not None else {})
        try:
            async for part in transport.stream(path, query=query, headers=headers, timeout=SILENCE):
                gone_since, pause = None, FIRST_PAUSE
                for told in parser.feed(part):
                    yield told
                    if until_end and _is_last(told):
                        return
        except Refused as refused:
            if refused.answer.status == HTTPStatus.NO_CONTENT:
                return  # it was over already
            gone_since = clock.monotonic() if gone_since is None else gone_since
            if not isinstance(error := refusal(refused.answer), AWAY) or clock.monotonic() - gone_since > patience * 1000:
                raise error from None
        except AWAY:
            gone_since = clock.monotonic() if gone_since is None else gone_since
            if clock.monotonic() - gone_since > patience * 1000:
                raise
        parser = Parser(parser.last_id)  # half an event is sent again, whole
        await transport.pause(pause * (0.5 + clock.chance() / 2))
        pause = min(pause * 2, LONGEST_PAUSE)


def _is_last(told: Told) -> bool:
    return isinstance(told.data, dict) and told.data.get("state") in ENDED
