"""How a verb is asked of a hub: its row says where, with what, and what the answer means."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar, get_args
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from windlass.api.rows import IDEMPOTENCY_KEY, Param, Verb
from windlass.api.verbs import API
from windlass.client.problems import refusal
from windlass.client.transport import Transport
from windlass.clock import Clock
from windlass.engine import checks
from windlass.errors import AWAY, BadInput, HubFailed, OutcomeUnknown
from windlass.model import Limits

T = TypeVar("T")

_LOG = logging.getLogger("windlass.client")

TIMEOUT = 30.0  # seconds for an answer
PATIENCE = 10.0  # seconds in which what can safely be asked again is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

_UNSENT = {"by", "who"}
"""Who asks is known by the token."""


def place(*parts: str) -> str:
    """A path of the API; a name in it may hold any character."""
    return API + "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)


def encoded(body: Any) -> bytes:
    """A body as it is sent."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"What is to be sent is not JSON: {error}.", hint="Send texts, numbers, lists and objects.") from None


class Asking:
    """A durable queue behind a hub. What is safe to repeat is repeated for `patience` seconds when the hub is away."""

    def __init__(self, transport: Transport, clock: Clock, *, patience: float = PATIENCE, timeout: float = TIMEOUT) -> None:
        self.transport, self.clock, self.limits = transport, clock, Limits()
        self._patience, self._timeout = patience, timeout

    async def close(self) -> None:
        """Let go of the connections."""
        await self.transport.close()

    async def perform(
        self, verb: Verb, arguments: Mapping[str, Any], *, body: Any = None, safe: bool | None = None, timeout: float | None = None
    ) -> Any:
        """Ask a verb by its row. A body is made from the arguments unless one is given; `safe` is the row's own word unless another is."""
        given = {name: value for name, value in arguments.items() if name not in _UNSENT}
        path, query, headers = self._path(verb, given), self._query(verb, given), dict[str, str]()
        if IDEMPOTENCY_KEY in verb.query:
            headers["idempotency-key"] = self.clock.nonce()
        if body is None and verb.takes is not None:
            body = encoded(_body(given))
        repeatable = verb.repeatable or bool(headers) if safe is None else safe
        answer = await self.ask(
            verb.method, path, verb.gives.form, query=query, body=body, headers=headers, safe=repeatable, timeout=timeout
        )
        return verb.gives.read(answer, arguments)

    def _path(self, verb: Verb, given: dict[str, Any]) -> str:
        """The path with its names, which are checked here: an empty one would lead elsewhere."""
        path = verb.template
        for name, kind in verb.names.items():
            value = str(_checked(verb, name, kind, given.pop(name)))
            path = path.replace(f"{{{name}}}", quote(value, safe="").replace(".", "%2E"))
        return API + path

    def _query(self, verb: Verb, given: dict[str, Any]) -> dict[str, str | int]:
        """What is given of the parameters, as texts and numbers."""
        query = {}
        for param in verb.query:
            if not param.header and (value := given.pop(param.argument, None)) is not None:
                _check_bounds(param, value)
                query[param.name] = value if param.form is None else param.form.show(value)
        return query

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str | int] | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        safe: bool = False,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> T:
        """The hub's answer. What is `safe` may reach the hub twice; anything else only when it has surely not been done."""
        content = body if body is None or isinstance(body, bytes) else encoded(body)
        until = self.clock.monotonic() + round(1000 * (self._patience if patience is None else patience))
        pause = FIRST_PAUSE
        sent = dict(headers or {}) | ({"content-type": "application/json"} if content is not None else {})
        while True:
            try:
                return await self._ask_once(method, path, kind, query, content, sent, timeout or self._timeout)
            except AWAY as error:
                if (isinstance(error, OutcomeUnknown) and not safe) or self.clock.monotonic() + round(pause * 1000) > until:
                    raise
                _LOG.info("The hub does not answer, trying again in %.1f s: %s", pause, error)
            await self.transport.pause(pause * (0.5 + self.clock.chance() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _ask_once(
        self,
        method: str,
        path: str,
        kind: type[T],
        query: Mapping[str, str | int] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> T:
        answer = await self.transport.send(method, path, query=query, body=body, headers=headers, timeout=timeout)
        if not 200 <= answer.status < 300:
            raise refusal(answer)
        try:
            return msgspec.json.decode(answer.body or b"null", type=kind)
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


def _body(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of the arguments. Fields that are named freely are members like the others."""
    members = dict(given)
    fields: dict[str, Any] = members.pop("fields", {})
    return members | fields
