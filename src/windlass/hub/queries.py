"""What may stand behind the ? of an address: a parameter that a route does not have is refused, with the one that was meant."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from litestar.enums import ParamType
from litestar.params import ParameterKwarg

from windlass.errors import LONGEST, BadInput, nearest

_API = "/api/"


def known_queries(app: Any) -> Any:
    """Refuse what would be ignored: whoever misspells a filter must not get everything."""

    async def enter(scope: Any, receive: Any, send: Any) -> None:
        if scope["query_string"] and scope["method"] != "OPTIONS":
            _check(scope["query_string"], _known(scope["route_handler"]))
        await app(scope, receive, send)

    return enter


@lru_cache(maxsize=1024)
def _known(handler: Any) -> tuple[str, ...] | None:
    """The parameters of a route, by its own signature; None for the files of the page and the like, which have nothing to choose."""
    if not any(path.startswith(_API) for path in handler.paths):
        return None
    kinds = {field.name: field.kwarg_definition for field in handler.parsed_fn_signature.parameters.values()}
    names = [kind.name or name for name, kind in kinds.items() if isinstance(kind, ParameterKwarg) and kind.param_type is ParamType.QUERY]
    return (*names, "ticket") if handler.opt.get("ticket") else tuple(names)


def _check(query: bytes, known: tuple[str, ...] | None) -> None:
    if known is None:
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            raise BadInput(f"There is no parameter {name[:LONGEST]!r} here.", hint=_hint(name[:LONGEST], known))


def _hint(name: str, known: tuple[str, ...]) -> str:
    if (near := nearest(name, known)) is not None:
        return f"Did you mean {near}?"
    return f"There are: {', '.join(known)}." if known else "This address takes none; leave it out."
