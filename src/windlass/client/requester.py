"""Sends a verb to a hub: its row has the path, the parameters, and the form of the answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar, get_args
from urllib.parse import quote

import msgspec
from msgspec import Meta

from windlass.api.rows import IDEMPOTENCY_KEY, Param, Verb
from windlass.api.verbs import API
from windlass.client.problems import refusal
from windlass.client.transport import ClientRequest, HubResponse, Transport
from windlass.clock import Clock
from windlass.engine import checks
from windlass.errors import TRANSIENT, BadInput, HubFailed, OutcomeUnknown
from windlass.model import Limits
from windlass.payload import reader

T = TypeVar("T")

_LOG = logging.getLogger("windlass.client")

TIMEOUT = 30.0  # seconds for an answer
PATIENCE = 10.0  # seconds for which requests that are safe to repeat are retried
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

_UNSENT = {"by", "actor"}
"""The hub takes the actor from the token."""


def place(*parts: str) -> str:
    """A path of the API; a name in it may contain any character."""
    return API + "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)


def encoded(body: Any) -> bytes:
    """An encoded body."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"What is to be sent is not JSON: {error}.", hint="Send texts, numbers, lists and objects.") from None


class Requester:
    """A durable queue behind a hub. Requests that are safe to repeat are retried for `patience` seconds when the hub is unreachable."""

    def __init__(self, transport: Transport, clock: Clock, *, patience: float = PATIENCE, timeout: float = TIMEOUT) -> None:
        self.transport, self.clock, self.limits = transport, clock, Limits()
        self._patience, self._timeout = patience, timeout

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def perform(
        self, verb: Verb, arguments: Mapping[str, Any], *, body: Any = None, safe: bool | None = None, timeout: float | None = None
    ) -> Any:
        """Send a verb by its row. Without `body` it is built from the arguments; without `safe` the row decides about retries."""
        values = {name: value for name, value in arguments.items() if name not in _UNSENT}
        path, query, headers = self._path(verb, values), self._query(verb, values), dict[str, str]()
        if IDEMPOTENCY_KEY in verb.query:
            headers["idempotency-key"] = self.clock.nonce()
        if body is None and verb.takes is not None:
            body = _body(values)
        content = None if body is None else encoded(body)
        repeatable = verb.repeatable or bool(headers) if safe is None else safe
        request = ClientRequest(verb.method, path, timeout or self._timeout, query, content, headers)
        return verb.gives.read(await self.ask(request, verb.gives.form, safe=repeatable), arguments)

    def _path(self, verb: Verb, values: dict[str, Any]) -> str:
        """The path with its names, which are checked here: an empty one would match another path."""
        path = verb.template
        for name, kind in verb.names.items():
            value = str(_checked(verb, name, kind, values.pop(name)))
            path = path.replace(f"{{{name}}}", quote(value, safe="").replace(".", "%2E"))
        return API + path

    def _query(self, verb: Verb, values: dict[str, Any]) -> dict[str, str | int]:
        """The given parameters, as texts and numbers."""
        query = {}
        for param in verb.query:
            if not param.header and (value := values.pop(param.argument, None)) is not None:
                _check_bounds(param, value)
                query[param.name] = value if param.form is None else param.form.show(value)
        return query

    async def ask(self, request: ClientRequest, kind: type[T], *, safe: bool = False, patience: float | None = None) -> T:
        """The hub's answer. A `safe` request may reach the hub twice; any other is repeated only if it was certainly not executed."""
        until = self.clock.monotonic() + round(1000 * (self._patience if patience is None else patience))
        pause = FIRST_PAUSE
        while True:
            try:
                return _read(await self.transport.send(request), kind)
            except TRANSIENT as error:
                if (isinstance(error, OutcomeUnknown) and not safe) or self.clock.monotonic() + round(pause * 1000) > until:
                    raise
                _LOG.info("The hub does not answer, trying again in %.1f s: %s", pause, error)
            await self.transport.pause(pause * (0.5 + self.clock.chance() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)


def _read(answer: HubResponse, kind: type[T]) -> T:
    if not 200 <= answer.status < 300:
        raise refusal(answer)
    try:
        return reader(kind)(answer.body or b"null")
    except msgspec.DecodeError as error:
        raise HubFailed(f"The hub's answer cannot be read: {error}.", hint="Use a hub and a client of the same version.") from None


def _checked(verb: Verb, name: str, kind: type, value: Any) -> Any:
    what = verb.path.split("/")[1].removesuffix("s")
    if kind is int:
        return checks.integer(value, f"The {name}", 1, 2**63 - 1)
    if name.endswith("_id"):
        return checks.identifier(value, f"The {name.removesuffix('_id')}")
    return checks.name(value, f"A {what}'s {name}")


def _check_bounds(param: Param, value: Any) -> None:
    for meta in get_args(param.kind)[1:]:
        if isinstance(meta, Meta) and meta.ge is not None and meta.le is not None and param.form is None:
            checks.integer(value, param.name, int(meta.ge), int(meta.le))


def _body(values: Mapping[str, Any]) -> dict[str, Any]:
    """The remaining arguments. Fields with free names are members like the others."""
    members = dict(values)
    fields: dict[str, Any] = members.pop("fields", {})
    return members | fields
