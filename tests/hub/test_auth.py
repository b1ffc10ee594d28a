"""Who gets through the gate: every route against every kind of caller, read from the route table, so that a new route is asked too."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from windlass.api.gives import Gives
from windlass.api.rows import ANY, Verb
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.errors import BadInput, Forbidden, StoreUnreachable
from windlass.hub import Hub, HubApp, HubSettings
from windlass.hub.auth import FAILURES, FRESH, PERIOD, Caller, refuse_open
from windlass.hub.description import tables
from windlass.model import SCOPES, Token
from windlass.store.sqlite import AsyncSqlite

LOCAL = ("127.0.0.1", 50_000)
JSON = {"content-type": "application/json"}


class MovedClock(SystemClock):
    """The real clock, with time that passed without anybody waiting for it."""

    moved = 0

    def now(self) -> int:
        return super().now() + self.moved

    def monotonic(self) -> int:
        return super().monotonic() + self.moved


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def told(self) -> dict[str, Any]:
        """A problem without what is different in every answer."""
        return {name: value for name, value in self.json.items() if name != "request_id"}


class World:
    """A hub on a store, asked as a server would ask it. Its loops do not run: nothing is written but by requests."""

    def __init__(self, path: Path, clock: MovedClock | None = None, **settings: Any) -> None:
        self.path, self.clock = path, clock or MovedClock()
        self.store = AsyncSqlite(path, self.clock)
        self.engine = Engine(self.store, self.clock)
        self.hub = Hub(self.engine, self.clock, HubSettings(**{"open": True, **settings}))
        self.hub.start = lambda: None  # type: ignore[method-assign]
        self.app = HubApp(self.hub)

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        query: str = "",
        client: tuple[str, int] | None = LOCAL,
    ) -> Answer:
        """One request; of a stream only the beginning is waited for."""
        given = {"host": "127.0.0.1:8080", **({} if body is None else {"content-length": str(len(body))}), **(headers or {})}
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": client,
            "server": ("127.0.0.1", 8080),
            "scheme": "http",
            "extensions": {},
            "state": {},
        }
        return await _drive(self.app, scope, body or b"")

    async def token(self, *scopes: str, **how: Any) -> tuple[Token, str]:
        return await self.engine.create_token("-".join(scopes), scopes, **how)


async def _drive(app: HubApp, scope: dict[str, Any], body: bytes) -> Answer:
    started: asyncio.Future[MutableMapping[str, Any]] = asyncio.get_running_loop().create_future()
    parts, sent, over = [], False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.set_result(message)
        else:
            parts.append(message.get("body", b""))

    task = asyncio.ensure_future(app(scope, receive, send))
    await asyncio.wait({task, asyncio.ensure_future(asyncio.shield(started))}, return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        await task  # raises what went wrong
    message = started.result()
    headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
    assert len(headers) == len(message["headers"]), "a header is there twice"
    if headers.get("content-type", "").startswith("text/event-stream"):
        over.set()
        task.cancel()
        await asyncio.wait({task})
    else:
        await task
    return Answer(message["status"], headers, b"".join(parts))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes hubs on one store, each with its own idea of everything but the time."""
    clock = MovedClock()
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        worlds.append(World(tmp_path / "windlass.db", clock, **settings))
        return worlds[-1]

    yield make
    for made in worlds:
        asyncio.run(made.store.close())


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# The route table


class Route(NamedTuple):
    method: str
    path: str
    verb: Verb

    @property
    def wanted(self) -> frozenset[str] | None:
        """The scopes of which one is enough; None: whoever asks."""
        scope = self.verb.scope
        if scope is None:
            return None
        if scope == ANY:
            return frozenset(SCOPES)
        return frozenset({"admin", scope} if isinstance(scope, str) else {"admin", *scope} if scope else ())


@cache
def route_table() -> list[Route]:
    return [
        Route(verb.method, dialect.prefix + re.sub(r"\{[^}]*\}", "1", verb.template), verb)
        for dialect in tables()
        for verb in dialect.verbs
    ]


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_says_who_may_ask() -> None:
    undeclared = [_name(route) for route in route_table() if route.verb.scope == ()]
    assert undeclared == []
    words = {ANY, None, *SCOPES}
    for route in route_table():
        scope = route.verb.scope
        assert {scope} <= words if isinstance(scope, str | None) else {*scope} <= set(SCOPES), _name(route)


def test_what_is_open_to_everybody_is_on_this_list() -> None:
    open_routes = {_name(route) for route in route_table() if route.wanted is None}
    assert open_routes == {
        "GET /",
        "GET /page/1",
        "GET /healthz",
        "GET /readyz",
        "GET /api/v1/openapi.json",
        "POST /api/v1/session",  # has a ticket of its own in its body
    }


def test_a_ticket_opens_streams_only() -> None:
    assert {route.path for route in route_table() if route.verb.ticket} == {"/api/v1/events", "/api/v1/runs/1/events"}
    assert all(route.verb.scope == "read" for route in route_table() if route.verb.ticket)


# The matrix


class Crowd(NamedTuple):
    """Everybody who may ask, on a hub that has tokens."""

    tokens: dict[str, Token]
    secrets: dict[str, str]

    def outside(self, engine: Engine) -> dict[str, tuple[dict[str, str], str]]:
        """Those who are let in nowhere: headers and query."""
        admin, reader = self.secrets["admin"], self.tokens["read"]
        return {
            "no token": ({}, ""),
            "an empty one": (bearer(""), ""),
            "a wrong one": (bearer("wl_" + 44 * "A"), ""),
            "a long one": (bearer("wl_" + 5_000 * "A"), ""),
            "a revoked one": (bearer(self.secrets["revoked"]), ""),
            "an expired one": (bearer(self.secrets["expired"]), ""),
            "an invitation": (bearer(self.secrets["invitation"]), ""),
            "another scheme": ({"authorization": f"Basic {admin}"}, ""),
            "no scheme": ({"authorization": admin}, ""),
            "not text": (bearer("wl_\xff\xfe"), ""),
            "a cookie": ({"cookie": f"token={admin}"}, ""),
            "a late ticket": ({}, f"ticket={self.secrets['late ticket']}"),
            "a ticket of a revoked token": ({}, f"ticket={engine.ticket(self.tokens['revoked'])[0]}"),
            "a changed ticket": ({}, f"ticket={engine.ticket(reader)[0][:-2]}AA"),
            "a longer ticket": ({}, f"ticket={engine.ticket(reader)[0]}x"),
        }

    def in_query(self) -> dict[str, tuple[dict[str, str], str]]:
        admin = self.secrets["admin"]
        return {
            "token": ({}, f"token={admin}"),
            "access_token": ({}, f"access_token={admin}"),
            "a wrong one": ({}, "token=x"),
            "under another name": ({}, f"count=1&job={admin}"),
            "besides the header": (bearer(admin), f"job={admin}"),
            "an invitation": ({}, f"ticket={self.secrets['invitation']}"),
        }


async def crowd(world: World) -> Crowd:
    made: dict[str, tuple[Token, str]] = {scope: await world.token(scope) for scope in SCOPES}
    made |= {"revoked": await world.token("admin"), "expired": await world.token("admin", expires_in=1)}
    tokens = {actor: token for actor, (token, _) in made.items()}
    secrets = {actor: secret for actor, (_, secret) in made.items()}
    await world.engine.revoke_token(tokens["revoked"].id)
    secrets["late ticket"] = world.engine.ticket(tokens["read"], expires_in=1)[0]
    secrets["invitation"] = await world.engine.invite("eve", ["admin"])
    world.clock.moved += 10
    return Crowd(tokens, secrets)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Crowd]]:
    """A hub and its crowd, for tests that leave both as they are."""
    w = World(tmp_path_factory.mktemp("town") / "windlass.db")
    w.hub.authenticator.failures.limit = 10**9
    yield w, asyncio.run(crowd(w))
    asyncio.run(w.store.close())


def contents(path: Path) -> dict[str, list[Any]]:
    """All that is stored, but when a token was used last."""
    db = apsw.Connection(str(path))
    names = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'")]
    found = {name: sorted(map(repr, db.execute(f"select * from {name}"))) for name in names if name != "job_tokens"}
    found["job_tokens"] = list(db.execute("select id, hash, scopes, expires_at, revoked_at from job_tokens order by id"))
    db.close()
    return found


async def _ask(world: World, route: Route, headers: Mapping[str, str], query: str = "") -> Answer:
    body = None if route.method in ("GET", "HEAD") else b"{}"
    return await world.ask(route.method, route.path, {**headers, **({} if body is None else JSON)}, body, query=query)


@pytest.mark.parametrize("route", route_table(), ids=_name)
def test_I9_a_route_lets_in_who_may_and_nobody_else(town: tuple[World, Crowd], route: Route) -> None:
    async def check() -> None:
        w, people = town
        before = contents(w.path)
        refusals = {actor: await _ask(w, route, *given) for actor, given in people.outside(w.engine).items()}
        in_query = {actor: await _ask(w, route, *given) for actor, given in people.in_query().items()}
        assert {answer.status for answer in in_query.values()} == {401}
        assert len({answer.told["detail"] for answer in in_query.values()}) == 1  # whether it is a good one cannot be learnt
        if route.wanted is None:
            assert not {answer.status for answer in refusals.values()} & {401, 403, 500}
        else:
            assert {actor: answer.status for actor, answer in refusals.items()} == dict.fromkeys(refusals, 401)
            assert len({json.dumps(answer.told, sort_keys=True) for answer in refusals.values()}) == 1  # nor why another is not
            assert {answer.headers["www-authenticate"] for answer in refusals.values()} == {"Bearer"}
        for scope in SCOPES:
            if route.wanted is not None and scope not in route.wanted:
                answer = await _ask(w, route, bearer(people.secrets[scope]))
                assert (scope, answer.status, answer.told["code"]) == (scope, 403, "forbidden")
        for scope in SCOPES:
            answer = await _ask(w, route, {}, f"ticket={w.engine.ticket(people.tokens[scope])[0]}")
            if route.verb.ticket:
                assert (scope, answer.status == 403) == (scope, scope not in ("read", "admin"))
                assert answer.status != 401
            elif route.wanted is not None:
                assert (scope, answer.status) == (scope, 401)
        assert contents(w.path) == before
        for scope in SCOPES:
            if route.wanted is None or scope in route.wanted:
                answer = await _ask(w, route, bearer(people.secrets[scope]))
                assert answer.status not in (401, 403), (scope, answer)
                assert answer.status < 500 or answer.status == 503, (scope, answer)

    run(check())


def test_a_route_that_does_not_say_who_may_is_for_nobody(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("admin")
        scope = {"query_string": b"", "method": "GET", "headers": [(b"authorization", f"Bearer {secret}".encode())], "client": LOCAL}
        with pytest.raises(Forbidden):
            await w.hub.authenticator.admit(scope, Verb("new", "GET", "/new", "", Gives(None)))
        assert (await w.hub.authenticator.admit(scope, Verb("new", "GET", "/new", "", Gives(None), scope="read"))).actor == "admin"

    run(check())


# What every answer carries

_ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_POLICY = ("default-src 'none'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "script-src 'self'")


def _check_headers(answer: Answer, path: str) -> None:
    assert {name: answer.headers.get(name) for name in _ALWAYS} == _ALWAYS
    assert all(part in answer.headers["content-security-policy"] for part in _POLICY)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-request-id"]
    assert "access-control-allow-origin" not in answer.headers
    assert "set-cookie" not in answer.headers
    assert "server" not in answer.headers
    kept = answer.headers["cache-control"]
    page = path == "/" or path.startswith("/page/")
    assert kept == "no-store" or (kept.startswith("no-cache") and (page or answer.headers["content-type"].startswith("text/event-stream")))


@pytest.mark.parametrize("route", route_table(), ids=_name)
def test_every_answer_of_a_route_has_the_headers(town: tuple[World, Crowd], route: Route) -> None:
    async def check() -> None:
        w, people = town
        admin = bearer(people.secrets["admin"])
        for headers in ({}, bearer("wl_wrong"), admin):
            _check_headers(await _ask(w, route, headers), route.path)
        for method in ("OPTIONS", "TRACE"):
            _check_headers(await w.ask(method, route.path, admin), route.path)

    run(check())


def test_what_is_not_found_or_fails_has_the_headers_too(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("admin")
        _check_headers(await w.ask("GET", "/nowhere", bearer(secret)), "/nowhere")
        _check_headers(await w.ask("DELETE", "/api/v1/jobs", bearer(secret)), "/api/v1/jobs")

        async def broken(**_: Any) -> None:
            raise RuntimeError("the secret of life")

        monkeypatch.setattr(w.engine, "jobs", broken)
        answer = await w.ask("GET", "/api/v1/jobs", bearer(secret))
        assert answer.status == 500
        assert b"secret of life" not in answer.body
        _check_headers(answer, "/api/v1/jobs")

    run(check())


# Tokens that end


def test_a_revoked_token_is_refused_at_once_here_and_within_a_second_elsewhere(world: Callable[..., World]) -> None:
    async def check() -> None:
        here, there = world(), world()
        _, admin = await here.token("admin")
        token, secret = await here.token("read")
        for w in (here, there):
            assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 200
        assert (await here.ask("DELETE", f"/api/v1/tokens/{token.id}", bearer(admin))).status == 200
        assert (await here.ask("GET", "/api/v1/me", bearer(secret))).status == 401
        here.clock.moved += FRESH
        assert (await there.ask("GET", "/api/v1/me", bearer(secret))).status == 401
        assert (await there.ask("GET", "/api/v1/me", bearer(admin))).status == 200

    run(check())


def test_what_is_believed_of_a_token_is_asked_for_again_every_second(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("read")
        asked, find = 0, w.engine.find_token

        async def counted(secret: str) -> Token | None:
            nonlocal asked
            asked += 1
            return await find(secret)

        monkeypatch.setattr(w.hub.authenticator.engine, "find_token", counted)
        moved = w.clock
        monkeypatch.setattr(w.clock, "monotonic", lambda: moved.moved)  # no time passes but what the test lets pass
        for _ in range(5):
            await w.ask("GET", "/api/v1/me", bearer(secret))
        assert asked == 1
        w.clock.moved += FRESH - 1
        await w.ask("GET", "/api/v1/me", bearer(secret))
        assert asked == 1
        w.clock.moved += 1
        await w.ask("GET", "/api/v1/me", bearer(secret))
        assert asked == 2

    run(check())


def test_a_token_expires_on_time_although_it_was_looked_up_just_before(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("read", expires_in=600_000)
        w.clock.moved += 600_000 - 200
        await w.ask("GET", "/api/v1/me", bearer(secret))
        w.clock.moved += 200
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 401

    run(check())


def test_a_look_up_that_a_revocation_overtakes_is_not_remembered(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        w = world()
        token, secret = await w.token("read")
        find = w.engine.find_token

        async def slow(secret: str) -> Token | None:
            found = await find(secret)
            await w.engine.revoke_token(token.id)
            w.hub.authenticator.forget()
            return found

        monkeypatch.setattr(w.hub.authenticator.engine, "find_token", slow)
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 200  # it was asked before
        monkeypatch.setattr(w.hub.authenticator.engine, "find_token", find)
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 401

    run(check())


def test_rotation_by_the_api_keeps_both_good_for_the_overlap(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, admin = await w.token("admin")
        token, old = await w.token("read")
        answer = await w.ask("POST", f"/api/v1/tokens/{token.id}/rotate", bearer(admin) | JSON, json.dumps({"overlap": 60_000}).encode())
        assert answer.status == 201
        new = answer.json["secret"]
        for secret in (old, new):
            assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 200
        w.clock.moved += 60_000
        assert (await w.ask("GET", "/api/v1/me", bearer(old))).status == 401
        assert (await w.ask("GET", "/api/v1/me", bearer(new))).json["actor"] == "read"

    run(check())


def test_what_stays_open_can_ask_whether_it_still_may(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        anonymous = Caller("anonymous", frozenset(SCOPES))
        assert await w.hub.authenticator.still(anonymous)
        token, _ = await w.token("read")
        assert not await w.hub.authenticator.still(anonymous)
        caller = Caller("read", frozenset({"read"}), token)
        assert await w.hub.authenticator.still(caller)
        await w.engine.revoke_token(token.id)
        assert not await w.hub.authenticator.still(caller)

    run(check())


# Wrong tokens


async def _wrong(w: World, times: int, **how: Any) -> list[int]:
    return [(await w.ask("GET", "/api/v1/me", bearer(f"wl_{n:044}"), **how)).status for n in range(times)]


def test_an_address_with_many_wrong_tokens_is_told_to_wait_but_who_has_one_gets_in(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, known = await w.token("read")
        _, other = await w.token("read")
        assert (await w.ask("GET", "/api/v1/me", bearer(known))).status == 200
        assert set(await _wrong(w, FAILURES)) == {401}
        answer = await w.ask("GET", "/api/v1/me", bearer(f"wl_{99:044}"))
        assert (answer.status, answer.json["code"]) == (429, "limit_reached")
        assert (await w.ask("GET", "/api/v1/me", bearer(other))).status == 200  # behind a proxy all come from one address
        assert (await w.ask("GET", "/api/v1/events", query=f"ticket={(await w.engine.tokens())[0].id}.1.{43 * 'A'}")).status == 429
        w.clock.moved += FRESH
        assert (await w.ask("GET", "/api/v1/me", bearer(known))).status == 200  # does not suffer from its neighbours
        assert (await w.ask("GET", "/api/v1/me", bearer(other), client=("192.0.2.1", 1))).status == 200
        assert (await w.ask("GET", "/api/v1/me", {})).status == 401
        w.clock.moved += PERIOD
        assert (await w.ask("GET", "/api/v1/me", bearer(other))).status == 200

    run(check())


def test_a_network_of_ipv6_counts_as_one_address(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        statuses = [(await _wrong(w, 1, client=(f"2001:db8::{n:x}", 1)))[0] for n in range(FAILURES + 1)]
        assert statuses == [401] * FAILURES + [429]
        assert await _wrong(w, 1, client=("2001:db8:0:1::1", 1)) == [401]
        assert await _wrong(w, 1, client=None) == [401]
        assert await _wrong(w, 1, client=("a:socket", 0)) == [401]

    run(check())


def test_addresses_and_tokens_are_remembered_within_bounds(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr("windlass.hub.auth.REMEMBERED", 5)
        w = world()
        secrets = [(await w.token("read"))[1] for _ in range(9)]
        for n, secret in enumerate(secrets):
            assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 200
            await _wrong(w, 1, client=(f"192.0.2.{n}", 1))
        assert len(w.hub.authenticator._known) == 5
        assert len(w.hub.authenticator.failures._counts) == 5

    run(check())


def test_I11_no_secret_gets_into_the_log(world: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        w = world()
        caplog.set_level(0)
        _, secret = await w.token("admin")
        wrong = "wl_" + 44 * "x"
        for shown in (secret, wrong):
            await w.ask("GET", "/api/v1/me", bearer(shown))
            await w.ask("GET", "/api/v1/me", query=f"token={shown}")
        assert "A wrong token came from 127.0.0.1." in caplog.text
        assert secret not in caplog.text
        assert wrong not in caplog.text

    run(check())


# Without any token


def test_a_hub_on_loopback_is_open_until_the_first_token(world: Callable[..., World]) -> None:
    async def check() -> None:
        w, other = world(), world()
        for one in (w, other):
            assert (await one.ask("GET", "/api/v1/me")).json == {
                "actor": "anonymous",
                "scopes": list(SCOPES),
                "token": None,
                "worker": None,
            }
        answer = await w.ask("POST", "/api/v1/tokens", JSON, b'{"name": "ann", "scopes": ["admin"]}')
        assert answer.status == 201
        assert (await w.ask("GET", "/api/v1/me")).status == 401
        w.clock.moved += FRESH
        assert (await other.ask("GET", "/api/v1/me")).status == 401
        secret = answer.json["secret"]
        assert (await other.ask("GET", "/api/v1/me", bearer(secret))).json["actor"] == "ann"
        await w.ask("DELETE", f"/api/v1/tokens/{answer.json['token']['id']}", bearer(secret))
        assert (await w.ask("GET", "/api/v1/me")).status == 401  # without a good token it is shut, not open
        assert (await world().ask("GET", "/api/v1/me")).status == 401

    run(check())


def test_in_an_open_hub_a_ticket_is_not_needed_and_does_not_hurt(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        ticket = (await w.ask("POST", "/api/v1/tickets")).json["ticket"]
        assert (await w.ask("GET", "/api/v1/events", query=f"ticket={ticket}")).status == 200
        await w.token("read")
        w.hub.authenticator.forget()
        assert (await w.ask("GET", "/api/v1/events", query=f"ticket={ticket}")).status == 401

    run(check())


def test_a_wrong_token_is_wrong_in_an_open_hub_too(world: Callable[..., World]) -> None:
    async def check() -> None:
        assert (await world().ask("GET", "/api/v1/me", bearer("wl_" + 44 * "A"))).status == 401

    run(check())


@pytest.mark.parametrize(
    "how",
    [
        {"client": ("192.0.2.1", 1)},
        {"client": ("::ffff:192.0.2.1", 1)},
        {"client": None},
        {"client": ("a name", 1)},
        {"headers": {"x-forwarded-for": "192.0.2.1"}},
        {"headers": {"forwarded": "for=192.0.2.1"}},
        {"headers": {"x-forwarded-proto": "https"}},
        {"headers": {"x-real-ip": "192.0.2.1"}},
        {"headers": {"via": "1.1 proxy"}},
    ],
    ids=str,
)
def test_an_open_hub_is_open_on_this_machine_only(world: Callable[..., World], how: dict[str, Any]) -> None:
    async def check() -> None:
        assert (await world().ask("GET", "/api/v1/me", **how)).status == 401

    run(check())


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"host": "::"}, {"host": "hub.example.com"}, {"open": False}], ids=str)
def test_elsewhere_a_hub_is_never_open(world: Callable[..., World], settings: dict[str, Any]) -> None:
    async def check() -> None:
        assert (await world(**settings).ask("GET", "/api/v1/me")).status == 401

    run(check())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_on_loopback_no_token_is_needed(host: str) -> None:
    refuse_open(host, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "hub.example.com", "", "127.0.0.1.example.com", "::ffff:127.0.0.1"])
def test_elsewhere_the_hub_explains_what_it_needs(host: str) -> None:
    with pytest.raises(BadInput, match="windlass tokens create"):
        refuse_open(host, False)
    refuse_open(host, True)


def test_elsewhere_a_hub_with_a_guarded_dialect_starts_closed_and_says_so(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    refuse_open("0.0.0.0", False, guarded=True)
    assert "only dialects with credentials of their own can be used" in caplog.text

    async def check() -> None:
        for path in ("/api/v1/me", "/api/v1/runs"):
            assert (await world(host="0.0.0.0").ask("GET", path)).status == 401

    run(check())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "localhost:1", "[::1]:8080", "[::1]", "127.1.2.3"])
def test_an_open_hub_answers_to_its_own_names(world: Callable[..., World], host: str) -> None:
    async def check() -> None:
        assert (await world().ask("GET", "/api/v1/me", {"host": host})).status == 200

    run(check())


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "", "0.0.0.0:8080", "192.0.2.1", "[::2]"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_leads_here_from_outside_opens_nothing(world: Callable[..., World], host: str, method: str) -> None:
    async def check() -> None:
        w = world()
        before = contents(w.path)
        answer = await w.ask(
            method, "/api/v1/tokens", {"host": host} | JSON, b'{"name": "eve", "scopes": ["admin"]}' if method == "POST" else None
        )
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
        assert contents(w.path) == before
        _, secret = await w.token("read")  # with a token, a hub behind a proxy may have any name
        assert (await w.ask("GET", "/api/v1/me", {"host": host} | bearer(secret))).status == 200

    run(check())


_FOREIGN: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:8080"},  # another name of this machine is another site
    {"origin": "http://127.0.0.1:9999"},
    {"origin": "http://127.0.0.1:8080.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:9999"},
    {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8080"},
    {"sec-fetch-site": ""},
]


@pytest.mark.parametrize("headers", _FOREIGN, ids=str)
def test_I12_another_site_changes_nothing(world: Callable[..., World], headers: dict[str, str]) -> None:
    async def check() -> None:
        w = world()
        await w.engine.define("mail")
        before = contents(w.path)
        for method, path in {(route.method, route.path) for route in route_table() if route.method not in ("GET", "HEAD")}:
            answer = await w.ask(method, path, headers | JSON, b'{"job": "mail"}')
            assert (path, answer.status) == (path, 403)
        assert contents(w.path) == before

    run(check())


@pytest.mark.parametrize(
    "headers",
    [{"content-type": kind} for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")] + [{}],
    ids=str,
)
def test_I12_a_body_that_is_not_said_to_be_json_changes_nothing(world: Callable[..., World], headers: dict[str, str]) -> None:
    async def check() -> None:
        w = world()
        await w.engine.define("mail")
        before = contents(w.path)
        for extra in ({}, {"transfer-encoding": "chunked", "content-length": "0"}):
            answer = await w.ask("POST", "/api/v1/runs", headers | extra, b'{"job": "mail"}')
            assert (answer.status, answer.json["code"]) == (415, "not_json")
        assert contents(w.path) == before

    run(check())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "same-origin", "origin": "https://hub.example.com"},  # a proxy may have changed the name
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
def test_the_page_itself_and_programs_may_write(world: Callable[..., World], headers: dict[str, str]) -> None:
    async def check() -> None:
        w = world()
        await w.engine.define("mail")
        answer = await w.ask("POST", "/api/v1/runs", headers | {"content-type": "application/json; charset=utf-8"}, b'{"job": "mail"}')
        assert answer.status == 202

    run(check())


# Workers with a token of their own


def _claim(name: str) -> bytes:
    return json.dumps({"worker": {"name": name}, "count": 1, "lease": 30_000, "token": 22 * "A"}).encode()


def test_only_a_token_for_that_worker_ends_the_leases_of_its_processes(world: Callable[..., World]) -> None:
    async def check() -> None:
        w, life = world(), {"tag": "12345678", "process": "somewhere 1"}
        (_, own), (_, other), (_, anyone) = await w.token("work", worker="w1"), await w.token("work", worker="w2"), await w.token("work")
        _, admin = await w.token("admin", "work")

        async def post(what: str, secret: str, **body: Any) -> Answer:
            return await w.ask("POST", f"/api/v1/worker/{what}", bearer(secret) | JSON, json.dumps(body).encode())

        async def begin(secret: str) -> Answer:
            return await post("lives", secret, worker="w1", life=life)

        assert (await post("register", own, worker={"name": "w1"})).status == 200
        assert (await begin(anyone)).json == {"lives": []}  # nothing is kept of it, and nothing told
        assert (await begin(own)).json == {"lives": [life]}
        assert (await begin(anyone)).json == {"lives": []}
        assert (await begin(other)).status == 403
        for secret, status in ((anyone, 403), (other, 403), (admin, 200), (own, 200)):
            assert (await post("lapse", secret, worker="w1", tags=[life["tag"]])).status == status

    run(check())


def test_a_token_for_one_worker_is_good_for_that_worker_only(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("work", worker="w1")
        _, anyone = await w.token("work")
        for name, status in {"w1": 200, "w1.17.abcd": 200, "w10": 403, "w1-2": 403, "w2": 403, "W1": 403, ".w1": 403}.items():
            answer = await w.ask("POST", "/api/v1/worker/claim", bearer(secret) | JSON, _claim(name))
            assert (name, answer.status) == (name, status)
            assert (await w.ask("POST", "/api/v1/worker/claim", bearer(anyone) | JSON, _claim(name))).status == 200
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).json["worker"] == "w1"

    run(check())


# The routes of access itself


def test_a_secret_is_told_once(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, admin = await w.token("admin")
        asked = {"name": "w7", "scopes": ["work"], "worker": "w7", "expires_in": 90 * 86_400_000}
        made = (await w.ask("POST", "/api/v1/tokens", bearer(admin) | JSON, json.dumps(asked).encode())).json
        secret, token = made["secret"], made["token"]
        assert (token["name"], token["scopes"], token["worker"], token["kind"]) == ("w7", ["work"], "w7", "token")
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).json["actor"] == "w7"
        listed = await w.ask("GET", "/api/v1/tokens", bearer(admin))
        assert token["id"] in {one["id"] for one in listed.json["tokens"]}
        one = await w.ask("GET", f"/api/v1/tokens/{token['id']}", bearer(admin))
        assert one.json["used_at"] is not None
        for answer in (listed, one):
            assert secret.encode() not in answer.body
            assert b"hash" not in answer.body

    run(check())


def test_tokens_and_audit_come_in_pages(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, admin = await w.token("admin")
        for n in range(3):
            body = json.dumps({"name": f"t{n}", "scopes": ["read"]}).encode()
            await w.ask("POST", "/api/v1/tokens", bearer(admin) | JSON, body)
        seen: list[str] = []
        for path, key, cursor in (("tokens", "name", "after"), ("audit", "subject", "cursor")):
            query = "count=2"
            while True:
                page = (await w.ask("GET", f"/api/v1/{path}", bearer(admin), query=query)).json
                seen += [one[key] for one in page["tokens" if path == "tokens" else "entries"]]
                if page["cursor"] is None:
                    break
                query = f"count=2&{cursor}={page['cursor']}"
        assert sorted(seen[:4]) == ["admin", "t0", "t1", "t2"]
        assert seen[4:] == ["token t2", "token t1", "token t0"]

    run(check())


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["root"]},
        {"name": "", "scopes": ["read"]},
        {"name": "a", "scopes": ["read"], "id": "mine"},
        {"name": "a", "scopes": ["read"], "hash": "mine"},
        {"name": "a", "scopes": ["read"], "expires_in": -1},
        {"name": "a" * 200, "scopes": ["read"]},
        {"name": "a\u0000", "scopes": ["read"]},
    ],
    ids=str,
)
def test_I18_a_token_is_made_of_what_may_be_said_and_nothing_else(world: Callable[..., World], body: dict[str, Any]) -> None:
    async def check() -> None:
        w = world()
        _, admin = await w.token("admin")
        before = contents(w.path)
        assert (await w.ask("POST", "/api/v1/tokens", bearer(admin) | JSON, json.dumps(body).encode())).status == 400
        assert contents(w.path) == before

    run(check())


def test_acts_leave_entries_with_the_name_of_the_token(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, admin = await w.engine.create_token("root", ["admin"])
        made = (await w.ask("POST", "/api/v1/tokens", bearer(admin) | JSON, b'{"name": "ann", "scopes": ["read"]}')).json
        id = made["token"]["id"]
        await w.ask("POST", f"/api/v1/tokens/{id}/rotate", bearer(admin))
        await w.ask("DELETE", f"/api/v1/tokens/{id}", bearer(admin))
        await w.ask("DELETE", "/api/v1/tokens/nobody", bearer(admin))
        entries = (await w.ask("GET", "/api/v1/audit", bearer(admin))).json["entries"]
        assert [(one["actor"], one["what"], one["subject"]) for one in entries] == [
            ("root", "revoke", f"token {id}"),
            ("root", "rotate", f"token {id}"),
            ("root", "create", "token ann"),
        ]

    run(check())


def test_somebody_signs_in_by_a_link_once(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        await w.token("admin")
        body = json.dumps({"ticket": await w.engine.invite("ann", ["read"])}).encode()
        answer = await w.ask("POST", "/api/v1/session", JSON, body)
        assert answer.status == 201
        assert (await w.ask("GET", "/api/v1/me", bearer(answer.json["secret"]))).json["scopes"] == ["read"]
        assert (await w.ask("POST", "/api/v1/session", JSON, body)).status == 401
        assert (await w.ask("POST", "/api/v1/session", JSON, b'{"ticket": "wli_x"}')).status == 401

    run(check())


def test_a_ticket_opens_a_stream_and_nothing_else_for_a_minute(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("admin")
        made = (await w.ask("POST", "/api/v1/tickets", bearer(secret))).json
        query = f"ticket={made['ticket']}"
        assert secret not in query
        assert (await world().ask("GET", "/api/v1/events", query=query)).status == 200
        assert (await w.ask("GET", "/api/v1/runs", query=query)).status == 401
        w.clock.moved += 60_000
        assert (await w.ask("GET", "/api/v1/events", query=query)).status == 401

    run(check())


def test_guessing_sign_ins_is_slowed_down(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        good = await w.engine.invite("ann", ["read"])
        for n in range(FAILURES):
            body = json.dumps({"ticket": f"wli_{n:044}"}).encode()
            assert (await w.ask("POST", "/api/v1/session", JSON, body)).status == 401
        assert (await w.ask("POST", "/api/v1/session", JSON, json.dumps({"ticket": f"wli_{99:044}"}).encode())).status == 429
        assert (await w.ask("POST", "/api/v1/session", JSON, json.dumps({"ticket": good}).encode())).status == 201

    run(check())


def test_who_signs_in_is_in_the_audit_and_who_only_tries_is_not(world: Callable[..., World]) -> None:
    async def check() -> None:
        w = world()
        good = await w.engine.invite("ann", ["read"])
        for ticket, status in ((f"wli_{1:044}", 401), (good, 201), (good, 401)):
            assert (await w.ask("POST", "/api/v1/session", JSON, json.dumps({"ticket": ticket}).encode())).status == status
        (session,) = await w.engine.tokens()
        assert [(entry.actor, entry.what, entry.subject) for entry in (await w.engine.audit()).entries] == [
            ("ann", "sign in", f"session {session.id}")
        ]

    run(check())


def test_what_is_refused_for_want_of_a_scope_is_in_the_log(world: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("read")
        assert (await w.ask("GET", "/api/v1/a%0Ab", bearer(secret))).status == 404
        assert (await w.ask("POST", "/api/v1/runs", JSON | bearer(secret), b"{}")).status == 403

    run(check())
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "POST '/api/v1/runs'" in line
    assert "scope submit" in line


@pytest.mark.parametrize(("host", "token", "warns"), [("127.0.0.1", False, True), ("::1", False, True), ("127.0.0.1", True, False)])
def test_an_open_hub_says_so_at_its_start(host: str, token: bool, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    refuse_open(host, token)
    assert ("has no token" in caplog.text) is warns


def test_a_store_that_is_away_lets_nobody_in(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        w = world()
        _, secret = await w.token("read")

        async def away(_: str) -> None:
            raise StoreUnreachable("The store is away.", hint="Wait.")

        monkeypatch.setattr(w.hub.authenticator.engine, "find_token", away)
        assert (await w.ask("GET", "/api/v1/me", bearer(secret))).status == 503

    run(check())
