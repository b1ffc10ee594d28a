"""A bad network before a real hub: requests are cut, repeated, held up or swallowed on their way."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from tests.workers import DEADLINE, until

What = Literal["pass", "cut", "refuse", "replay", "hold", "swallow"]

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.I)


def _length(head: bytes) -> int | None:
    found = _LENGTH.search(head)
    return int(found[1]) if found else None


class Proxy:
    """Between somebody and a hub. `rule(method, path)` says what becomes of a request:

    pass      it goes through
    cut       the hub answers, and the answer is lost
    refuse    the connection is closed before the hub hears anything
    replay    the hub hears it three times; the first answer goes back
    hold      it goes through `delay` seconds later
    swallow   nothing happens any more, and nobody is told: the other end is gone
    """

    def __init__(self, port: int, *, delay: float = 3.0) -> None:
        self._upstream, self.delay = port, delay
        self.rule: Callable[[str, str], What] = lambda method, path: "pass"
        self.seen: list[tuple[str, str, What]] = []
        self.replayed: list[bytes] = []
        self._loop, self._serving = asyncio.new_event_loop(), set[Any]()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._live, name="test-proxy", daemon=True)
        self._thread.start()
        server = until(lambda: self._server)
        self.port: int = server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def once(self, path: str, what: What) -> None:
        """The next request to a path that ends so suffers this, and no other."""
        done: list[bool] = []

        def rule(_: str, asked: str) -> What:
            if done or not asked.endswith(path):
                return "pass"
            done.append(True)
            return what

        self.rule = rule

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26))
        self._loop.run_forever()
        self._server.close()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())  # asyncio itself does not hold on to it
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = head + await reader.readexactly(_length(head) or 0)
                method, path = head.split(b" ", 2)[:2]
                plain = path.decode().partition("?")[0]
                what = self.rule(method.decode(), plain)
                self.seen.append((method.decode(), plain, what))
                if not await self._forward(request, what, writer):
                    break
        writer.transport.abort()

    async def _forward(self, request: bytes, what: What, writer: asyncio.StreamWriter) -> bool:
        if what == "refuse":
            return False
        if what == "swallow":
            await asyncio.sleep(3600)
        if what == "hold":
            await asyncio.sleep(self.delay)
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream, limit=2**26)
        try:
            upstream.write(request)
            head = await upstream_reader.readuntil(b"\r\n\r\n")
            length = _length(head)
            if length is None:
                return await self._stream(head, upstream_reader, writer)
            answer = head + await upstream_reader.readexactly(length)
            for _ in range(2 if what == "replay" else 0):
                self.replayed.append(await self._again(request))
            if what == "cut":
                return False
            writer.write(answer)
            await writer.drain()
            return True
        finally:
            upstream.transport.abort()

    async def _again(self, request: bytes) -> bytes:
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream, limit=2**26)
        upstream.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = head + await reader.readexactly(_length(head) or 0)
        upstream.transport.abort()
        return answer

    streams: Any = None

    async def _stream(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """A stream goes through until its end, or until the test cuts all streams."""
        self.streams = self.streams or asyncio.Event()
        cut = asyncio.ensure_future(self.streams.wait())
        writer.write(head)
        try:
            while True:
                part = asyncio.ensure_future(reader.read(65_536))
                await asyncio.wait({part, cut}, return_when=asyncio.FIRST_COMPLETED)
                if not part.done() or not part.result():
                    part.cancel()
                    return False
                writer.write(part.result())
                await writer.drain()
        finally:
            cut.cancel()

    def cut_streams(self) -> None:
        """Break off every stream that is open now."""

        def cut() -> None:
            if self.streams is not None:
                self.streams.set()
                self.streams = None

        self._loop.call_soon_threadsafe(cut)
