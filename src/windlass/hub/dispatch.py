"""The interpreter of verb tables: match a row, admit the caller, read parameters and body, call the verb, send the answer.

Every route uses it. The differences between tables of verbs are in their `Dialect`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response

from windlass.api.gives import Gives
from windlass.api.rows import Param, Verb
from windlass.engine import Engine
from windlass.errors import LONGEST, BadInput, WindlassError, nearest
from windlass.hub import problems
from windlass.hub.auth import Authenticator
from windlass.hub.requests import HubRequest
from windlass.hub.routing import Match, Routes

Handler = Callable[..., Awaitable[Any]]
_encode = msgspec.json.Encoder().encode

OPTIONS = Verb("options", "OPTIONS", "", "The methods of a path", Gives(None), scope=None)

_is_number = re.compile("-?[0-9]{1,20}").fullmatch


class Dialect(NamedTuple):
    """A table of verbs below a path, with its own handlers, form of errors, and authentication."""

    prefix: str
    verbs: tuple[Verb, ...]
    handlers: Mapping[str, Handler]  # of verbs that the engine does not have
    refuse: Callable[[HubRequest, Exception], Response] = problems.of
    admit: Callable[[HubRequest], Awaitable[object]] | None = None  # None: the hub's own authentication
    strict: bool = True  # a parameter that a verb does not have is refused


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
        raise problems.no_path()
    return int(text)


def _read(text: str, kind: Any, name: str) -> Any:
    if kind is str:
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
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
        await request.refuse(request, error)(request.scope, request.receive, send)


class Dispatcher:
    """An ASGI app for tables of verbs."""

    def __init__(self, gate: Authenticator, dialects: tuple[Dialect, ...]) -> None:
        self._gate, self._routes = gate, Routes[Endpoint]()
        for dialect in dialects:
            for verb in dialect.verbs:
                self._routes.add(verb.method, dialect.prefix + verb.template, Endpoint(verb, dialect))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = HubRequest(scope, receive, send)
        request.refuse = problems.of
        try:
            answer = await self._answer(request)
        except Exception as error:
            answer = request.refuse(request, error)
        if callable(answer):
            await _carry(answer, request, send)
            return
        body = _encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": request.verb.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answer(self, request: HubRequest) -> Any:
        scope = request.scope
        match = self._routes.find(scope)
        if match is None:
            raise problems.no_path()
        endpoint = match.methods.get(scope["method"])
        if endpoint is None:
            return await self._other_method(request, match)
        scope["path_template"] = match.path
        request.verb, request.refuse = endpoint.verb, endpoint.dialect.refuse
        if endpoint.dialect.admit is None:
            await self._gate.admit(scope, endpoint.verb)
        else:
            await endpoint.dialect.admit(request)
        return await endpoint.answer(request, match.values)

    async def _other_method(self, request: HubRequest, match: Match[Endpoint]) -> Response:
        request.verb = OPTIONS
        methods = ", ".join(sorted([*match.methods, "OPTIONS"]))
        if request.method != "OPTIONS":
            raise problems.no_method(methods)
        await self._gate.admit(request.scope, OPTIONS)
        return Response(status_code=204, headers={"allow": methods})
