"""The hub's doors: an ASGI app that can be served or mounted, around a `Hub`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import msgspec
from litestar import Litestar, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from windlass import __version__, wire
from windlass.errors import BadInput, HeadTooLarge, WindlassError
from windlass.hub import auth, problems
from windlass.hub.core import Hub
from windlass.hub.description import describe
from windlass.hub.queries import known_queries
from windlass.hub.requests import HubRequest
from windlass.hub.shortcut import Shortcut

_LOG = logging.getLogger("windlass.hub")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEAD, HEADERS = 32 * 1024, 100
"""Bytes of an address with its headers, and how many of these."""
ONCE = {
    b"host", b"authorization", b"content-type", b"content-length", b"idempotency-key", b"last-event-id", b"origin", b"sec-fetch-site",
}  # fmt: skip
"""Headers that a request has once at most: of two, the hub and a proxy before it could believe different ones."""

ROUTES = (
    "jobs", "runs", "groups", "moves", "controls", "slots", "schedules", "worker", "events", "access", "webhooks", "stats", "doctor", "page"
)  # fmt: skip


def handlers() -> list[Any]:
    """Every route there is."""
    return [describe, *(handler for name in ROUTES for handler in import_module(f"windlass.hub.routes.{name}").HANDLERS)]


def make_app(hub: Hub, routes: Sequence[Any] | None = None) -> Litestar:
    """The routes, behind the gate."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="A token made by `windlass tokens create`.")
    return Litestar(
        list(handlers() if routes is None else routes),
        middleware=[whole_names, hub.gate.middleware, known_queries],
        request_class=HubRequest,
        request_max_body_size=None,  # HubRequest has its own limit
        exception_handlers=problems.HANDLERS,
        openapi_config=OpenAPIConfig(
            title="windlass",
            version=__version__,
            # Litestar's own router answers in HTML what it does not know, so it is put aside, and open to nobody.
            openapi_router=Router("/api/v1/schema", route_handlers=[], opt={"scope": ()}, include_in_schema=False),
            components=Components(security_schemes={"bearer": bearer}),
            security=[{"bearer": []}],
        ),
        logging_config=None,
        debug=False,
    )


_SLASH = "\x1f"  # stands for an escaped slash in a path; no name has it


def split_path(raw: bytes, path: str) -> str:
    """A path whose parts may have slashes of their own: they are escaped in the raw one, and must not divide it."""
    split = "/".join(unquote(part).replace("/", _SLASH) for part in raw.decode("ascii", "replace").split("/"))
    whole = split.replace(_SLASH, "/")
    for end in (path, path.removesuffix("/")):  # a mount may have cut its own part off, and Litestar's puts a slash behind it
        if whole.endswith(end):
            return split[len(split) - len(end) :]
    return path


def whole_names(app: Any) -> Any:
    """Give names from the path their own slashes back."""

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["split"]:
            names = scope["path_params"]
            names |= {name: value.replace(_SLASH, "/") for name, value in names.items() if isinstance(value, str)}
        await app(scope, receive, send)

    return enter


class HubApp:
    """An ASGI app: served by itself, or mounted in another one under any path.

    Where nobody sends the lifespan events of a mounted app, its loops begin with the first request.
    """

    def __init__(self, hub: Hub) -> None:
        routes = handlers()
        self.hub, self._app = hub, Shortcut(make_app(hub, routes), hub.gate, routes)

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
    """One request and its answer: its id, the headers every answer has, and the last resort when nothing else has answered."""

    def __init__(self, hub: Hub, scope: Scope, send: Send) -> None:
        self._hub, self._scope, self._send = hub, scope, send
        self.id = hub.clock.new_id()
        self.status = 0
        scope["hub"], scope["request_id"] = hub, self.id
        raw = scope.get("raw_path") or b""
        scope["split"] = b"%2" in raw and _SLASH not in scope["path"]
        if scope["split"]:
            scope["path"] = split_path(raw, scope["path"])

    async def by(self, app: Any, receive: Receive) -> None:
        """Let the app answer."""
        if (wrong := self._wrong()) is not None:
            await self._say(wire.problem_of(wrong, self.id))
            return
        try:
            await app(self._scope, receive, self.send)
        except Exception:
            _LOG.exception("Request %s failed.", self.id)
            if self.status:
                raise  # half an answer is out; only the end of the connection can tell
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
        return None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send on what the app says."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._hub.requests.count(self._scope["method"], self._scope.get("path_template"), self.status)
            message = {**message, "headers": [*message["headers"], (b"x-request-id", self.id.encode()), *auth.headers(message["headers"])]}
        await self._send(message)

    async def _say(self, problem: wire.Problem) -> None:
        body = msgspec.json.encode(problem)
        length = str(len(body)).encode()
        headers = [(b"content-type", problems.MEDIA_TYPE.encode()), (b"content-length", length)]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
