"""A row of a table of verbs: one HTTP request. Routes, OpenAPI document, client and docs are derived from it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from windlass.api.codec import Form
from windlass.api.gives import Gives

F = TypeVar("F", bound=Callable[..., Any])

GET, POST, PUT, PATCH, DELETE = "GET", "POST", "PUT", "PATCH", "DELETE"

ANY = "any"
"""The scope of verbs for every valid token, whatever its scopes."""

_IN_PATH = re.compile(r"\{([a-z_]+)(?::(int))?\}")


class ByRow(NotImplementedError):
    """The body of a method that is fully defined by its row."""


class Param(Struct, frozen=True):
    """A parameter in the query of an address, or in a header."""

    name: str
    kind: Any = str | None
    default: Any = None
    word: str = ""  # the engine's name for it, if different
    header: bool = False
    form: Form | None = None  # to the engine's value
    description: str = ""

    @property
    def argument(self) -> str:
        """The name of its argument."""
        return self.word or self.name.lower().replace("-", "_")


COUNT = Param("count", Annotated[int, Meta(ge=1, le=1_000)], 100, description="How many at most.")
AFTER_NAME = Param("after", str, "")
AFTER_NUMBER = Param("after", Annotated[int, Meta(ge=0, le=2**53)], 0)
CURSOR = Param("cursor")
IDEMPOTENCY_KEY = Param("Idempotency-Key", Annotated[str, Meta(min_length=1, max_length=200)] | None, header=True)


class Verb(Struct, frozen=True, dict=True):
    """One verb. It calls the engine's verb of this name, unless the hub has its own handler."""

    name: str
    method: str
    path: str
    summary: str
    gives: Gives
    scope: str | tuple[str, ...] | None = ()  # one of several is enough; () admits no token, None needs no token
    query: tuple[Param, ...] = ()
    takes: Any = None  # the type of the body; if it may be None, the body is optional; if it has `from_json`, that reads the bytes
    lean: bool = False  # the body contains JSON only as text, so it is parsed in one step
    status: int = 200
    audit: str | None = None  # "cancel run {run_id}": what is done, and to what
    repeatable: bool = False  # repeating it has no further effect
    ticket: bool = False  # a ticket in the address is enough
    described: bool = True

    @cached_property
    def names(self) -> dict[str, type]:
        """The parameters in its path, with their types."""
        return {name: int if kind else str for name, kind in _IN_PATH.findall(self.path)}

    @cached_property
    def template(self) -> str:
        """Its path without types."""
        return _IN_PATH.sub(r"{\1}", self.path)

    @cached_property
    def optional(self) -> bool:
        """Whether its body is optional."""
        kind = msgspec.inspect.type_info(self.takes)
        return isinstance(kind, msgspec.inspect.UnionType) and kind.includes_none

    def action(self, words: Mapping[str, Any]) -> tuple[str, str]:
        """What is done, and to what, for the audit."""
        what, _, subject = (self.audit or "").partition(" ")
        return what, subject.format_map(words).rstrip()


def row_of(function: Any) -> Verb:
    """The row of a verb."""
    row: Verb = function.row
    return row


def verb(method: str, path: str, summary: str, gives: Gives, **more: Any) -> Callable[[F], F]:
    """Attach a row to a verb: called on a client, the method is sent to the hub by that row. A GET can be repeated."""

    def decorate(function: F) -> F:
        row = Verb(function.__name__, method, path, summary, gives, **{"repeatable": method == GET} | more)
        signature = inspect.signature(function)
        others = next((param.name for param in signature.parameters.values() if param.kind is param.VAR_KEYWORD), None)

        @wraps(function)
        async def ask(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            _, *items = bound.arguments.items()
            arguments = dict(items)
            return await self.perform(row, arguments | arguments.pop(others, {}) if others else arguments)

        ask.row = row  # type: ignore[attr-defined]
        return ask  # type: ignore[return-value]

    return decorate


def rows_of(*areas: type) -> Iterator[Verb]:
    """The rows of classes of verbs, in the order in which they are written."""
    for area in areas:
        for member in vars(area).values():
            if isinstance(row := getattr(member, "row", None), Verb):
                yield row
