"""The HTTP side of the hub: an ASGI app around a `Hub`, served by itself or mounted."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from windlass.api.problems import MEDIA_TYPE, Problem, problem_of
from windlass.errors import BadInput, HeadTooLarge, WindlassError
from windlass.hub import auth, problems
from windlass.hub.core import Hub
from windlass.hub.description import dialects
from windlass.hub.dispatch import Dispatcher

_LOG = logging.getLogger("windlass.hub")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEAD, HEADERS = 32 * 1024, 100
"""Bytes of an address with its headers, and how many of these."""
ONCE = {
    b"host", b"authorization", b"content-type", b"content-length", b"idempotency-key", b"last-event-id", b"origin", b"sec-fetch-site",
}  # fmt: skip
"""Headers that a request may have only once: of two, the hub and a proxy before it could each use another."""

_is_host = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*").fullmatch


class HubApp:
    """An ASGI app: served by itself, or mounted in another one under any path.

    If the host application sends no lifespan events, the loops start with the first request.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub, self._app = hub, Dispatcher(hub.authenticator, dialects())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            if not self.hub.over:
                self.hub.start()
            await Answering(self.hub, scope, send).by(self._app, receive)
        else:
            raise ValueError(f"A hub does not speak {scope['type']}.")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.hub.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.hub.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


class Answering:
    """One request and its answer: its id, the headers of every answer, and the answer to unexpected errors."""

    def __init__(self, hub: Hub, scope: Scope, send: Send) -> None:
        self._hub, self._scope, self._send = hub, scope, send
        self.id = hub.clock.new_id()
        self.status = 0
        scope["hub"], scope["request_id"] = hub, self.id

    async def by(self, app: Any, receive: Receive) -> None:
        """Let the app answer."""
        if (wrong := self._wrong()) is not None:
            await self._say(problem_of(wrong, self.id))
            return
        try:
            await app(self._scope, receive, self.send)
        except Exception:
            _LOG.exception("Request %s failed.", self.id)
            if self.status:
                raise  # a part of the answer is sent; only closing the connection can signal the failure
            await self._say(problems.unexpected(self.id))

    def _wrong(self) -> WindlassError | None:
        """What is wrong with the form of the request."""
        scope = self._scope
        if scope["http_version"] == "0.9":
            return BadInput("The request names no version of HTTP.", hint="Speak HTTP/1.1.")
        names = [name for name, _ in scope["headers"]]
        size = len(scope["query_string"]) + len(scope["path"]) + sum(len(name) + len(value) for name, value in scope["headers"])
        if size > HEAD or len(names) > HEADERS:
            return HeadTooLarge(
                f"The address and the headers have {size:,} bytes.", hint=f"Send at most {HEAD:,} bytes and {HEADERS} headers."
            )
        if len(set(names)) < len(names) and (twice := sorted(name for name in ONCE if names.count(name) > 1)):
            return BadInput(f"The request has the header {twice[0].decode().title()} more than once.", hint="Send it once.")
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if not _is_host(host):
            name = host.decode("latin-1")
            return BadInput(f"The header Host is {name!r:.80}, which is no name.", hint="Send the hub's own name or address.")
        return None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Forward the app's messages."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._hub.requests.count(self._scope["method"], self._scope.get("path_template"), self.status)
            message = {**message, "headers": [*message["headers"], (b"x-request-id", self.id.encode()), *auth.headers(message["headers"])]}
        await self._send(message)

    async def _say(self, problem: Problem) -> None:
        body = msgspec.json.encode(problem)
        length = str(len(body)).encode()
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", length)]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
