"""A verb is told once: what is added to the table is found in the routes, the description, the docs and both clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Protocol

import httpx
import msgspec
from msgspec import Meta

from windlass.api.gives import listed
from windlass.api.openapi import document, operations
from windlass.api.rows import GET, ByRow, Param, rows_of, verb
from windlass.api.verbs import API, NATIVE, OUTSIDE, Verbs
from windlass.client.transport import ClientRequest, HubResponse
from windlass.client.verbs import RemoteVerbs
from windlass.clock import ManualClock
from windlass.dialects.base import Dialect
from windlass.engine import Engine
from windlass.hub import Hub, HubApp, HubSettings, problems
from windlass.hub.description import tables
from windlass.hub.dispatch import Dispatcher
from windlass.hub.requests import HubRequest
from windlass.store.base import run_sync
from windlass.store.sqlite import AsyncSqlite

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from blocking import blocking_client
from generate import route_list

_SHADE = Param("shade", Annotated[str, Meta(max_length=10)] | None)
_COLOURS = listed("Colours", "Some colours.", colours=str)


class ColourVerbs(Verbs, Protocol):
    """The table with one verb more."""

    @verb(GET, "/walls/{name}/colours", "The colours of a wall", _COLOURS, scope="read", query=(_SHADE,), repeatable=True)
    async def colours(self, name: str, *, shade: str | None = None) -> list[str]:
        """The colours of a wall."""
        raise ByRow


class ColourClient(RemoteVerbs, ColourVerbs):
    """A client for it."""


class Recorded:
    """Remembers what was sent, and answers the same each time."""

    def __init__(self, body: bytes) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self._body = body

    async def send(self, request: ClientRequest) -> HubResponse:
        self.sent.append((request.method, request.path, request.query))
        return HubResponse(200, {}, self._body)

    def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


ROWS = tuple(rows_of(ColourVerbs))


def test_a_new_verb_is_in_the_description_with_its_parameters_scope_and_answer() -> None:
    described = document(((API, row) for row in (*NATIVE, *ROWS)), "1")
    operation = described["paths"]["/api/v1/walls/{name}/colours"]["get"]
    assert operation["x-scope"] == "read"
    assert [(one["name"], one["in"]) for one in operation["parameters"]] == [("name", "path"), ("shade", "query")]
    assert described["components"]["schemas"]["Colours"]["properties"] == {"colours": {"type": "array", "items": {"type": "string"}}}
    assert len(list(operations(described))) == sum(row.described for row in NATIVE) + 1


def test_a_new_verb_is_in_the_list_of_routes() -> None:
    assert "| `GET /api/v1/walls/{name}/colours` | `read` | The colours of a wall |" in route_list((Dialect(API, ROWS, {}, problems.of),))


def test_a_new_verb_is_a_method_of_the_client() -> None:
    transport = Recorded(b'{"colours": ["red"]}')
    client = ColourClient(transport, ManualClock())
    assert run_sync(client.colours("the/hall", shade="dark")) == ["red"]
    assert transport.sent == [("GET", "/api/v1/walls/the%2Fhall/colours", {"shade": "dark"})]


def test_a_new_verb_is_a_method_of_the_blocking_client() -> None:
    text = blocking_client(ColourVerbs)
    assert "    def colours(self, name: str, *, shade: str | None = None) -> list[str]:" in text
    assert "return run_sync(self._verbs.colours(name, shade=shade))" in text


def test_a_new_verb_is_answered_by_a_hub(tmp_path: Path) -> None:
    async def colours(request: HubRequest, name: str, shade: str | None) -> Any:
        return request.verb.gives.form([f"{shade} {name}"])

    async def ask() -> None:
        clock = ManualClock()
        store = AsyncSqlite(tmp_path / "hub.db", clock)
        app = HubApp(Hub(Engine(store, clock), clock, HubSettings(open=True)))
        app._app = Dispatcher(app.hub.authenticator, (*tables(), Dialect("/api/v2", ROWS, {"colours": colours}, problems.of)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1") as http:
            assert (await http.get("/api/v2/walls/hall/colours?shade=dark")).json() == {"colours": ["dark hall"]}
            refused = (await http.get("/api/v2/walls/hall/colours?shadow=dark")).json()
            assert (refused["status"], refused["hint"]) == (400, "Did you mean shade?")
        await app.hub.stop()
        await store.close()

    asyncio.run(ask())


def test_every_verb_has_a_row_or_is_made_of_others() -> None:
    """The few that are not asked of a hub as they are: they are worked out from the answers to others."""
    named = {row.name for row in NATIVE}
    verbs = {name for area in Verbs.__mro__ for name, member in vars(area).items() if asyncio.iscoroutinefunction(member)}
    assert verbs - named == {"add_resource", "close", "detail", "outage", "status", "turn"}


def test_no_body_has_a_member_that_is_in_the_path() -> None:
    """It would take the place of what was asked for."""
    for row in NATIVE:
        kind = msgspec.inspect.type_info(row.takes) if row.takes is not None else None
        kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        members = {field.name for one in kinds if isinstance(one, msgspec.inspect.StructType) for field in one.fields}
        assert not members & set(row.names), row.name


def test_no_two_rows_have_one_name_or_one_path() -> None:
    rows = [*NATIVE, *OUTSIDE]
    assert len({row.name for row in rows}) == len(rows)
    assert len({(row.method, row.path) for row in rows}) == len(rows)
