"""The short way to the routes that workers ask all the time: one JSON body in, one JSON body out.

They are Litestar's as well, which describes them and answers whatever is unusual. To go through it costs more than what they do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Litestar

from windlass.hub import problems
from windlass.hub.auth import Gate
from windlass.hub.requests import HubRequest

_PLAIN_HOST = re.compile(rb"[A-Za-z0-9.-]+(?::[0-9]+)?")
_encode = msgspec.json.Encoder().encode


class Shortcut:
    """An ASGI app around Litestar's, with the same gate, requests, handlers and problems."""

    def __init__(self, app: Litestar, gate: Gate, handlers: Sequence[Any]) -> None:
        self._app, self._gate = app, gate
        self._handlers = {path: handler for handler in handlers if handler.opt.get("plain") for path in handler.paths}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        handler = self._handlers.get(scope["path"])
        if handler is None or not _is_ordinary(scope):
            await self._app(scope, receive, send)
            return
        scope["route_handler"], scope["path_template"] = handler, scope["path"]
        request = HubRequest(scope, receive, send)
        try:
            scope["caller"] = await self._gate.admit(scope, handler.opt)
            body = _encode(await handler.fn(request, await request.json()))
        except Exception as error:
            await problems.of(request, error).to_asgi_response(app=None, request=request)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_ordinary(scope: Any) -> bool:
    """Whether it is sent to a plain name and address, with a body that says how long it is, and says nothing twice."""
    headers = dict(scope["headers"])
    if scope["method"] != "POST" or scope["query_string"] or scope.get("root_path") or len(headers) < len(scope["headers"]):
        return False
    length = headers.get(b"content-length", b"")
    return length.isdigit() and int(length) > 0 and _PLAIN_HOST.fullmatch(headers.get(b"host", b"")) is not None
