"""A hub with dialects that is asked as a server would ask it, over a store and a clock that a test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from tests.harness import Harness
from windlass.app import App
from windlass.dialects.base import Dialect
from windlass.hub import Hub, HubApp, HubSettings

LOCAL = ("127.0.0.1", 50_000)


class Answer(NamedTuple):
    """What a request was answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Door:
    """A hub whose loops do not run: nothing is written but by requests, and time stands still."""

    def __init__(
        self, h: Harness, *dialects: Dialect, prefix: str, root: str | None = None, app: App | None = None, **settings: Any
    ) -> None:
        self.h, self.prefix, self.headers = h, prefix, dict[str, str]()
        self.hub = Hub(h.engine, h.clock, HubSettings(**({"open": True} | settings)), app=app)
        self.hub.start = lambda: None  # type: ignore[method-assign]
        self.app, self._runner = HubApp(self.hub, dialects, root), asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def __call__(
        self,
        method: str,
        path: str,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        raw: bytes | None = None,
        client: tuple[str, int] = LOCAL,
        **more: Any,
    ) -> Answer:
        """The answer to a request, with JSON or with raw bytes. Headers may be keywords, such as `idempotency_key`."""
        body = raw if raw is not None else b"" if data is None else json.dumps(data).encode()
        path, _, query = path.partition("?")
        names = {"host": "127.0.0.1:8080", "content-length": str(len(body)), "content-type": "application/json"} | self.headers
        names |= {**(headers or {}), **{name.replace("_", "-"): value for name, value in more.items()}}
        full = self.prefix + path
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": unquote(full), "raw_path": quote(full, safe="/%").encode(),
            "root_path": "", "query_string": query.encode(), "client": client, "server": ("127.0.0.1", 8080), "scheme": "http",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in names.items()], "extensions": {}, "state": {},
        }  # fmt: skip
        return self._runner.run(_asked(self.app, scope, body))

    def get(self, path: str, headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        return self("GET", path, None, headers, **how)

    def post(self, path: str, data: Any = None, headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        return self("POST", path, data, headers, **how)

    def delete(self, path: str, headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        return self("DELETE", path, None, headers, **how)


async def _asked(app: HubApp, scope: dict[str, Any], body: bytes) -> Answer:
    """The whole answer; of a stream only its beginning."""
    messages: list[MutableMapping[str, Any]] = []
    sent, begun = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)
        if dict(message.get("headers", ())).get(b"content-type") == b"text/event-stream":
            begun.set()

    await app(scope, receive, send)
    head, *rest = messages
    headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    assert len(headers) == len(head["headers"]), "a header is there twice"
    return Answer(head["status"], headers, b"".join(message.get("body", b"") for message in rest))
