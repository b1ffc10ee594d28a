"""A receiver of webhooks on this machine that answers by script, well or badly, and keeps whatever it got."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self


class Post(NamedTuple):
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def change(self) -> tuple[str, str]:
        """The run and its new state."""
        return self.json["data"]["run"], self.json["data"]["state"]


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} Said", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return answer


async def hang(writer: asyncio.StreamWriter) -> None:
    """Say nothing."""
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, so that no single read waits for long."""
    for byte in b"HTTP/1.1 200 OK\r\nx-slow: " + b"a" * 10_000:
        if writer.transport.is_closing():
            return
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def huge(code: int) -> Answer:
    """An answer that has nearly no end."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {code} Said\r\ncontent-length: 1000000000\r\n\r\n".encode())
        for _ in range(1_000):
            if writer.transport.is_closing():
                return
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    return answer


class Receiver:
    """Answers one request after the other as its script says; the last answer is repeated."""

    def __init__(self, *script: Answer) -> None:
        self.posts: list[Post] = []
        self.script = list(script or (status(200),))
        self.at_once = self.most_at_once = 0
        self._serving: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.at_once += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.posts.append(Post(head[0].split()[1], headers, body))
            self.most_at_once = max(self.most_at_once, self.at_once)
            await (self.script.pop(0) if len(self.script) > 1 else self.script[0])(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            self.at_once -= 1
            writer.close()

    @property
    def ids(self) -> list[str]:
        return [post.id for post in self.posts]
