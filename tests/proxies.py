"""A bad network: requests to a hub are cut, repeated, held up or swallowed on their way, and lines to PostgreSQL are cut."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from tests.workers import DEADLINE, until
from windlass.testing.servers import PostgresServer

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
        self._loop.run_until_complete(asyncio.sleep(0))  # a connection that was only just accepted gets a transport, which closes it
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


class Cable:
    """A line to PostgreSQL that can be cut: the near end hangs up, and the far end is not told, as when a network is gone. Behind a
    pooler it is `told`: it finishes what it was sent, and hears nothing more.

    `rule` is asked about whatever is sent to the server; when it says so, that still arrives, and then the line is cut.
    """

    def __init__(self, server: PostgresServer, port: int = 5440) -> None:
        self._server, self._port = server, port
        self._path = server.folder / f".s.PGSQL.{port}"
        self.rule: Callable[[bytes], bool] = lambda data: False
        self.told = False
        self.lines, self.cuts = 0, 0  # how many there have been
        self._near, self._all = set[socket.socket](), set[socket.socket]()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(128)
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def url(self, address: str) -> str:
        """An address of the server, by way of this line."""
        return f"{address}&port={self._port}"

    def cut(self, *near: socket.socket) -> None:
        """Cut these lines, or all there are."""
        for end in near or list(self._near):
            self.cuts += end in self._near
            self._near.discard(end)
            _hang_up(end)

    def cut_next(self) -> None:
        """Cut the line on which the server is told something next, as soon as it was told."""

        def once(_: bytes) -> bool:
            self.rule = lambda data: False
            return True

        self.rule = once

    def close(self) -> None:
        self._path.unlink()
        _hang_up(self._listener, *self._all)
        for thread in self._threads:
            thread.join(DEADLINE)
        for end in (self._listener, *self._all):
            end.close()

    def _begin(self, task: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=task, args=arguments, name="test-cable", daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                self.lines += 1
                self._near.add(near)
                self._all |= {near, far}
                try:
                    far.connect(str(self._server.folder / ".s.PGSQL.5432"))
                except OSError:  # the server is away
                    self.cut(near)
                    continue
                self._begin(self._there, near, far)
                self._begin(self._back, near, far)

    def _there(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65_536):
                cut = self.rule(data)
                far.sendall(data)
                if cut:
                    self.cut(near)
        if near in self._near:  # else it was cut
            _hang_up(near, far)
        elif self.told:
            with suppress(OSError):
                far.shutdown(socket.SHUT_WR)

    def _back(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(65_536):
                near.sendall(data)
        _hang_up(near, far)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
