"""The interpreter of verb tables: match a row, admit the caller, read parameters and body, call the verb, send the answer.

Every route uses it. The differences between tables of verbs are in their `Dialect`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from windlass.api.gives import Gives
from windlass.api.rows import Param, Verb
from windlass.dialects.base import ANYWHERE, Cors, Dialect, Handler, NoRoute, Reply
from windlass.engine import Engine
from windlass.errors import LONGEST, BadInput, WindlassError, nearest
from windlass.hub import form, problems
from windlass.hub.auth import Authenticator
from windlass.hub.requests import HubRequest
from windlass.hub.routing import Match, Routes, path_below_mount
from windlass.payload import convert

MOUNTED = "/dialects/"
_encode = msgspec.json.Encoder().encode

OPTIONS = Verb("options", "OPTIONS", "", "The methods of a path", Gives(None), scope=None)

_is_number = re.compile("-?[0-9]{1,20}").fullmatch


def mounted(dialects: Sequence[Dialect], root: str | None = None) -> Iterator[Dialect]:
    """Dialects below /dialects/NAME, and one of them at the root as well."""
    names = [dialect.name for dialect in dialects]
    if root is not None and root not in names:
        raise BadInput(f"There is no dialect {root!r} to mount at the root.", hint=f"There are: {', '.join(names) or 'none'}.")
    for dialect in dialects:
        yield replace(dialect, prefix=MOUNTED + dialect.name)
        if dialect.name == root:
            yield replace(dialect, prefix="")


class Endpoint:
    """A verb with its handler."""

    def __init__(self, verb: Verb, dialect: Dialect) -> None:
        self.verb, self.dialect = verb, dialect
        self._params = [(param, _reader(param), _default(param)) for param in verb.query]
        handler = dialect.handlers.get(verb.name)
        self._call = _calling(verb) if handler is None else _handling(verb, handler)

    async def answer(self, request: HubRequest, values: tuple[str, ...]) -> Any:
        """The answer of the verb."""
        query = _query(request.scope["query_string"])
        if query and self.dialect.strict:
            self._refuse_unknown(query)
        body = await request.read_body(self.verb) if self.verb.takes is not None else None
        arguments = self._path(values) | self._given(query, request)
        return await self._call(request, arguments, body)

    def _path(self, values: tuple[str, ...]) -> dict[str, Any]:
        return {name: _named(value, kind) for (name, kind), value in zip(self.verb.names.items(), values, strict=True)}

    def _given(self, query: Mapping[str, str], request: HubRequest) -> dict[str, Any]:
        """The values of its parameters, by the engine's names."""
        values = {}
        for param, read, default in self._params:
            text = request.headers.get(param.name) if param.header else query.get(param.name)
            values[param.argument] = default if text is None else read(text)
        return values

    def _refuse_unknown(self, query: Mapping[str, str]) -> None:
        """Refuse an unknown parameter: a misspelt filter must not return everything."""
        known = [param.name for param in self.verb.query if not param.header] + (["ticket"] if self.verb.ticket else [])
        for name in query:
            if name not in known:
                raise BadInput(f"There is no parameter {name[:LONGEST]!r} here.", hint=_hint(name[:LONGEST], known))


def _query(text: bytes) -> dict[str, str]:
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}


def _hint(name: str, known: list[str]) -> str:
    if (near := nearest(name, known)) is not None:
        return f"Did you mean {near}?"
    return f"There are: {', '.join(known)}." if known else "This address takes none; leave it out."


def _reader(param: Param) -> Callable[[str], Any]:
    """Convert the text of a parameter to the engine's value."""
    if param.form is not None:
        read = param.form.read
        return lambda text: read(_read(text, param.kind, param.name))
    return lambda text: _read(text, param.kind, param.name)


def _default(param: Param) -> Any:
    return param.default if param.form is None or param.default is None else param.form.read(param.default)


def _named(text: str, kind: type) -> Any:
    """A parameter of the path. If it should be a number and is not, the path does not exist."""
    if kind is str:
        return text
    if not _is_number(text):
        raise NoRoute
    return int(text)


def _read(text: str, kind: Any, name: str) -> Any:
    if kind is str:
        return text
    try:
        return convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"The request cannot be read: {name}: {error}", hint="Correct the request.") from None


def _calling(verb: Verb) -> Handler:
    """Call the engine's verb, audited as the caller if the row requires it."""
    name = verb.name
    signed = "by" in inspect.signature(getattr(Engine, name)).parameters

    async def call(request: HubRequest, arguments: dict[str, Any], body: Any) -> Any:
        if verb.takes is not None and body is not None:
            arguments |= body.arguments()
        engine = request.audited(arguments) if verb.audit is not None else request.hub.engine
        signature = {"by": request.caller.actor} if signed else {}
        return verb.gives.show(await getattr(engine, name)(**arguments, **signature), arguments)

    return call


def _handling(verb: Verb, handler: Handler) -> Handler:
    async def call(request: HubRequest, arguments: dict[str, Any], body: Any) -> Any:
        if verb.takes is not None:
            arguments["data"] = body
        return await handler(request, **arguments)

    return call


async def _carry(answer: Any, request: HubRequest, send: Any) -> None:
    """Send an answer that is an ASGI app itself. An error before its first message becomes an answer too."""
    begun = False

    async def sending(message: Any) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        await answer(request.scope, request.receive, sending)
    except WindlassError as error:
        if begun:
            raise
        problems.record(request, error)
        await _send(request.dialect.refuse(request, error), request, send)


async def _send(answer: Any, request: HubRequest, send: Any) -> None:
    """Send the answer to a request: a value, a reply with a status of its own, or an ASGI app."""
    if callable(answer):
        await _carry(answer, request, send)
        return
    reply = answer if isinstance(answer, Reply) else Reply(answer, request.verb.status)
    body = b"" if reply.body is None else reply.body if isinstance(reply.body, bytes) else _encode(reply.body)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    if body:
        headers.append((b"content-type", reply.media_type.encode()))
    if reply.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _shared(cors: Cors, origin: str, send: Any) -> Any:
    """Send with the headers that let pages of this origin read the answer; of none if it is empty."""
    headers = [(b"vary", b"Origin")] if ANYWHERE not in cors.origins or cors.credentials else []
    if origin:
        named = origin if cors.credentials else ANYWHERE if ANYWHERE in cors.origins else origin
        headers.append((b"access-control-allow-origin", named.encode("latin-1")))
        if cors.credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        if cors.expose:
            headers.append((b"access-control-expose-headers", ", ".join(cors.expose).encode()))

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending


def _preflight(request: HubRequest, methods: str) -> dict[str, str]:
    """What a browser that asks before a request of another origin needs to know."""
    headers = request.headers.get("access-control-request-headers", "")
    return {"Access-Control-Allow-Methods": methods, "Access-Control-Allow-Headers": headers, "Access-Control-Max-Age": "600"}


class Dispatcher:
    """An ASGI app for tables of verbs. The first of them answers what belongs to none."""

    def __init__(self, gate: Authenticator, dialects: tuple[Dialect, ...]) -> None:
        self._gate, self._routes = gate, Routes[Endpoint]()
        self._otherwise = dialects[0]
        self._dialects = sorted(dialects, key=lambda dialect: len(dialect.prefix), reverse=True)
        for dialect in dialects:
            for verb in dialect.verbs:
                self._routes.add(verb.method, dialect.prefix + verb.template, Endpoint(verb, dialect))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = HubRequest(scope, receive, send)
        match = self._routes.find(scope)
        endpoint = None if match is None else match.methods.get(scope["method"]) or next(iter(match.methods.values()))
        dialect = request.dialect = self._owner(scope) if endpoint is None else endpoint.dialect
        try:
            form.check(scope)
            answer = await self._answer(request, match)
        except Exception as error:
            problems.record(request, error)
            answer = dialect.refuse(request, error)
        await _send(answer, request, send if dialect.cors is None else _shared(dialect.cors, self._reader(request), send))

    def _reader(self, request: HubRequest) -> str:
        """The origin of the page that may read the answer; empty if none may."""
        dialect, origin = request.dialect, request.headers.get("origin", "")
        cors = dialect.cors
        if cors is None or not cors.allows(origin):
            return ""
        return origin if origin in cors.origins or self._gate.trusts_browsers(origin, dialect.credentials) else ""

    def _owner(self, scope: Any) -> Dialect:
        """The dialect that refuses a path which no verb has."""
        path = path_below_mount(scope)
        return next((dialect for dialect in self._dialects if dialect.owns(path)), self._otherwise)

    async def _answer(self, request: HubRequest, match: Match[Endpoint] | None) -> Any:
        scope = request.scope
        if match is None:
            raise NoRoute
        endpoint = match.methods.get(scope["method"])
        if endpoint is None:
            return await self._other_method(request, match)
        scope["path_template"] = match.path
        request.verb = endpoint.verb
        await request.admit()
        return await endpoint.answer(request, match.values)

    async def _other_method(self, request: HubRequest, match: Match[Endpoint]) -> Any:
        request.verb = OPTIONS
        methods = ", ".join(sorted([*match.methods, "OPTIONS"]))
        if request.method != "OPTIONS":
            raise NoRoute(methods)
        await request.admit()
        shared = request.dialect.cors is not None and "origin" in request.headers
        return Reply(status=HTTPStatus.NO_CONTENT, headers={"Allow": methods} | (_preflight(request, methods) if shared else {}))
