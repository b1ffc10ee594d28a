"""The HTTP side of the hub: an ASGI app around a `Hub`, served by itself or mounted."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from windlass.api.problems import MEDIA_TYPE, Problem
from windlass.dialects.base import Dialect
from windlass.hub import auth, problems
from windlass.hub.core import Hub
from windlass.hub.description import tables
from windlass.hub.dispatch import Dispatcher, mounted

_LOG = logging.getLogger("windlass.hub")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HubApp:
    """An ASGI app: served by itself, or mounted in another one under any path.

    If the host application sends no lifespan events, the loops start with the first request.
    """

    def __init__(self, hub: Hub, dialects: Sequence[Dialect] = (), root: str | None = None) -> None:
        """Serve the API and the page, these dialects below /dialects, and the one named `root` at the root as well."""
        self.hub, self._app = hub, Dispatcher(hub.authenticator, (*tables(), *mounted(dialects, root)))
        self._beginnings = [dialect.begin for dialect in dialects if dialect.begin is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            if not self.hub.over:
                await self._begin()
            await Answering(self.hub, scope, send).by(self._app, receive)
        else:
            raise ValueError(f"A hub does not speak {scope['type']}.")

    async def _begin(self) -> None:
        self.hub.start()
        for begin in self._beginnings:
            await begin(self.hub.engine)
        self._beginnings = []

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._begin()
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
        try:
            await app(self._scope, receive, self.send)
        except Exception:
            _LOG.exception("Request %s failed.", self.id)
            if self.status:
                raise  # a part of the answer is sent; only closing the connection can signal the failure
            await self._say(problems.unexpected(self.id))

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
