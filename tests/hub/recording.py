"""A hub that is asked as a server would ask it, and what it answers written down, so that a later one can be held to it.

Ids, nonces and everything made from them have names in a recording, in the order in which they appear.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from difflib import unified_diff
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from windlass.clock import ManualClock, uuid7
from windlass.engine import Engine
from windlass.hub import Hub, HubApp, HubSettings
from windlass.model import SCOPES
from windlass.store.sqlite import AsyncSqlite
from windlass.webhooks import STANDARD

FOLDER = Path(__file__).parent / "recorded"
WIDTH = 140
BODY = 20_000
"""Bytes of a body that a recorded hub takes."""

ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-request-id": "<request-id>",
}
"""The headers that every answer has; a recording says "always" for all of them."""


class RecordedClock(ManualClock):
    """What is stored stands still; only intervals pass, for those who wait.

    Ids and nonces are counted: they sort as they were made, and can be told from all other text.
    """

    made = 0

    def monotonic(self) -> int:
        return self.ticks + time.monotonic_ns() // 1_000_000

    def new_id(self) -> str:
        self.made += 1
        return uuid7(self.ms, self.made.to_bytes(10, "big"))

    def nonce(self) -> str:
        self.made += 1
        return f"nonce-{self.made:016}"

    def chance(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FaultyStore(AsyncSqlite):
    """A store that can be made to fail."""

    fault: Exception | None = None

    async def batch(self, verb: str, statements: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return await super().batch(verb, statements)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange(NamedTuple):
    """A request and its answer, as they are written down but for the names of ids."""

    name: str
    request: dict[str, Any]
    answer: dict[str, Any]


Scene = Callable[[], Coroutine[Any, Any, dict[str, list[Exchange]]]]


class World:
    """A hub without its loops on an empty store, with a token for each scope, and what was recorded of it."""

    def __init__(self, *, tokens: bool = True, **settings: Any) -> None:
        self.clock = RecordedClock()
        self.store = FaultyStore(Path(":memory:"), self.clock)
        self.engine = Engine(self.store, self.clock)
        self.hub = Hub(self.engine, self.clock, HubSettings(**{"body": BODY} | settings))
        self.begin_loops, self.hub.start = self.hub.start, lambda: None  # type: ignore[method-assign]
        self.app = HubApp(self.hub)
        self.secrets: dict[str, str] = {}
        self.ids: dict[str, Any] = {}
        self.recorded: dict[str, list[Exchange]] = {}
        self._tokens = tokens

    async def __aenter__(self) -> World:
        if self._tokens:
            for scope in SCOPES:
                await self.token(scope, scope)
            await self.token("work for w1", "work", worker="w1")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hub.stop()
        await self.store.close()

    async def token(self, actor: str, *scopes: str, **how: Any) -> str:
        """A token; requests can be made as whoever has it."""
        token, self.secrets[actor] = await self.engine.create_token(actor, scopes, **how)
        return token.id

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        name: str | None = None,
        to: str | None = None,
        actor: str | None = "admin",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        until: str | None = None,
        **scope: Any,
    ) -> Answer:
        """Ask; with a name, write it down, for the route that it is for or in the file `to`.

        A body of bytes is sent as it is. Of a stream everything is read up to the frame that contains `until`.
        """
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        extra = [*(headers.items() if isinstance(headers, Mapping) else headers)]
        given = self._headers(sent, actor, extra)
        asked = _scope(method, target, given, scope)
        answer = await _drive(self.app, asked, sent or b"", None if until is None else until.encode())
        if name is not None:
            file = to or file_of(method, target)
            request = _written_request(method, target, actor, extra, body, scope, until)
            self.recorded.setdefault(file, []).append(Exchange(name, request, _written_answer(method, answer)))
        return answer

    async def good(self, method: str, target: str, body: Any = None, **how: Any) -> Any:
        """The body of an answer that is no problem."""
        answer = await self.ask(method, target, body, **how)
        assert answer.status < 400, (method, target, answer.body)
        return answer.json

    async def claim(self, **can: Any) -> Any:
        """The run that the worker w1 is given."""
        asked = {"worker": {"name": "w1", "slots": 100, **can}, "count": 1, "lease": 30_000}
        (run,) = (await self.good("POST", "/api/v1/worker/claim", asked))["runs"]
        return run

    async def report(self, run: Any, kind: str, **said: Any) -> None:
        """Say how a run ended."""
        outcome = {"run": run["id"], "token": run["token"], "kind": kind, **said}
        (receipt,) = (await self.good("POST", "/api/v1/worker/report", {"outcomes": [outcome]}))["receipts"]
        assert "problem" not in receipt, receipt

    async def sweep(self) -> None:
        """What a hub's loop would do by now."""
        await self.engine.sweep()

    async def pruned(self) -> None:
        """Let all that has ended be removed."""
        await self.engine.roll_up()
        self.clock.advance(400 * 24 * 3_600_000)
        while await self.engine.prune():
            pass

    def forget_failures(self) -> None:
        """Let addresses that have shown wrong tokens show more."""
        self.clock.ticks += 60_000

    async def make_deliveries(self) -> None:
        """Turn what has happened into deliveries, as the hub's sender would; none of them is sent."""
        await self.engine.make_deliveries(STANDARD.content(self.engine))

    def _headers(self, body: bytes | None, actor: str | None, extra: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        usual = {"host": "127.0.0.1:8080"}
        if actor is not None:
            usual["authorization"] = f"Bearer {self.secrets[actor]}"
        if body is not None:
            usual |= {"content-type": "application/json", "content-length": str(len(body))}
        said = {name.lower() for name, _ in extra}
        left_out = {name.lower() for name, value in extra if value == LEFT_OUT}
        return [
            *((name, value) for name, value in usual.items() if name not in said),
            *((name, value) for name, value in extra if name.lower() not in left_out),
        ]


LEFT_OUT = "<left out>"
"""The value of a header that is otherwise sent, and here is not."""
STALLS = "tests.stalls"
"""An extension of a request whose body does not come."""


def _scope(method: str, target: str, headers: Sequence[tuple[str, str]], more: dict[str, Any]) -> dict[str, Any]:
    """What a server makes of a request."""
    raw, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
        "scheme": "http",
        "extensions": {},
        "state": {},
    }
    return scope | more


async def _drive(app: Any, scope: dict[str, Any], body: bytes, until: bytes | None) -> Answer:
    starts: list[Any] = []
    parts, over, enough, sent = bytearray(), False, asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            if scope["extensions"].get(STALLS):
                await asyncio.sleep(20)
            return {"type": "http.request", "body": body, "more_body": False}
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal over
        if message["type"] == "http.response.start":
            starts.append(message)
            return
        assert starts, "a body comes before its head"
        assert not over, "a body comes after its end"
        parts.extend(message.get("body", b""))
        over = not message.get("more_body", False)
        if until is not None and until in parts and parts.find(b"\n\n", parts.find(until)) >= 0:
            enough.set()

    async with asyncio.timeout(20):
        await app(scope, receive, send)
    (start,) = starts
    names = [name.decode() for name, _ in start["headers"]]
    assert len({name.lower() for name in names}) == len(names), f"a header is there twice: {names}"
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
    if until is not None and until in parts:
        del parts[parts.find(b"\n\n", parts.find(until)) + 2 :]
    return Answer(start["status"], headers, bytes(parts))


# Writing down


def _written_request(
    method: str,
    target: str,
    actor: str | None,
    headers: Sequence[tuple[str, str]],
    body: Any,
    scope: dict[str, Any],
    until: str | None,
) -> dict[str, Any]:
    long = len(headers) > 20 or sum(len(value) for _, value in headers) > 1_000
    return {
        "ask": f"{method} {target}" if len(target) < 2_000 else f"{method} {target[:40]}... {len(target)} characters",
        "as": actor,
        **(
            {"headers": f"{len(headers)} of {sum(len(v) for _, v in headers)} characters" if long else [list(h) for h in headers]}
            if headers
            else {}
        ),
        **({} if body is None else {"body": _shown(body)}),
        **({"scope": {name: value.decode() if isinstance(value, bytes) else value for name, value in scope.items()}} if scope else {}),
        **({} if until is None else {"until": until}),
    }


def _shown(body: Any) -> Any:
    """A body that is short enough to be read."""
    if isinstance(body, bytes):
        text = body.decode("latin-1")
        return {"raw": text if len(text) <= 500 else f"{text[:40]}... {len(text)} bytes"}
    return body if len(json.dumps(body)) <= 4_000 else f"{json.dumps(body)[:40]}... {len(json.dumps(body))} bytes"


def _written_answer(method: str, answer: Answer) -> dict[str, Any]:
    headers = dict(answer.headers)
    request_id = headers.get("x-request-id", "")
    if request_id:
        headers["x-request-id"] = "<request-id>"
    if headers.get("content-length") == str(len(answer.body)):
        headers["content-length"] = "<its length>"
    if "allow" in headers:  # in no order
        headers["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
    body = _read(answer, headers)
    if isinstance(body, dict) and body.get("request_id") == request_id:
        body["request_id"] = "<request-id>"
    if all(headers.get(name) == value for name, value in ALWAYS.items()):
        headers = {"always": ""} | {name: value for name, value in headers.items() if name not in ALWAYS}
    return {"status": answer.status, "headers": dict(sorted(headers.items())), "body": body}


def _read(answer: Answer, headers: dict[str, str]) -> Any:
    kind = headers.get("content-type", "").partition(";")[0]
    if kind.endswith("json"):
        if answer.body.startswith(b'{"info"'):
            return "<openapi.json>"
        return json.loads(answer.body) if answer.body else None
    if "etag" in headers:
        return _page_file(answer, headers)
    if "openmetrics" in kind or (kind == "text/plain" and b"# HELP" in answer.body):
        own = re.compile(r"(?!process_|windlass_hub_requests_total\{)")  # these tell of what was asked before, and of the process
        return [line for line in answer.body.decode().splitlines() if own.match(line)]
    return answer.body.decode().splitlines()


def _page_file(answer: Answer, headers: dict[str, str]) -> Any:
    """The name of the file that was sent, and that its tag is its own: what is in it may change."""
    tags = {
        f'"{blake2b(entry.read_bytes(), digest_size=12).hexdigest()}"': entry
        for entry in files("windlass.page").iterdir()
        if entry.is_file()
    }
    entry = tags[headers["etag"]]
    headers["etag"] = f"<tag of {entry.name}>"
    assert answer.body in (b"", entry.read_bytes())
    return f"<{entry.name}>" if answer.body else ""


_NAMED = (
    ("id", re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")),
    ("nonce", re.compile(r"nonce-\d{16}")),
    ("secret", re.compile(r"whsec_[A-Za-z0-9+/=]+")),
    ("signature", re.compile(r"(?<=\.\d{13}\.)[A-Za-z0-9_-]{43}")),
    ("version", re.compile(r"(?<=windlass_build_info\{version=\\\")[^\\]*")),
)


def named(exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """Exchanges as they are written down: what is different in each hub has a name, in the order of its appearance."""
    text = json.dumps([exchange._asdict() for exchange in exchanges], ensure_ascii=False)
    for kind, pattern in _NAMED:
        known: dict[str, str] = {}
        text = pattern.sub(lambda found, kind=kind, known=known: known.setdefault(found[0], f"<{kind}-{len(known) + 1}>"), text)  # type: ignore[misc]
    read: list[dict[str, Any]] = json.loads(text)
    return read


def dumped(value: Any, indent: int = 0, room: int = WIDTH) -> str:
    """JSON for people: what fits into a line is in one."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + indent <= room or not isinstance(value, dict | list) or not value:
        return text
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        members = [
            f"{json.dumps(name, ensure_ascii=False)}: {dumped(item, indent + 1, room - len(name) - 5)}" for name, item in value.items()
        ]
    else:
        members = [dumped(item, indent + 1, room) for item in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(members) + f"\n{' ' * indent}{ends[1]}"


def write(file: str, value: Any) -> None:
    """Keep something as it is."""
    (FOLDER / f"{file}.json").write_text(dumped(value) + "\n", encoding="utf-8")


def read(file: str) -> Any:
    """What is kept."""
    return json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))


def write_exchanges(file: str, exchanges: Sequence[dict[str, Any]]) -> None:
    """Keep what was recorded; an answer that was given before is not told again."""
    first: dict[str, str] = {}
    told = []
    for exchange in exchanges:
        name = first.setdefault(indented(exchange["answer"]), exchange["name"])
        told.append(exchange if name == exchange["name"] else exchange | {"answer": {"as to": name}})
    write(file, told)


def read_exchanges(file: str) -> list[dict[str, Any]]:
    """What was recorded."""
    exchanges: list[dict[str, Any]] = read(file)
    answers = {exchange["name"]: exchange["answer"] for exchange in exchanges}
    return [exchange | {"answer": answers[exchange["answer"].get("as to", exchange["name"])]} for exchange in exchanges]


# Comparing


def indented(value: Any) -> str:
    """JSON in which each member has a line, by name."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)


def differences(file: str, kept: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> str:
    """What is not as it was recorded, exchange by exchange; empty: nothing."""
    before, now = ({exchange["name"]: exchange for exchange in exchanges} for exchanges in (kept, found))
    told = [f"{file}: {name!r} is not asked any more" for name in before if name not in now]
    told += [f"{file}: {name!r} was never recorded" for name in now if name not in before]
    for name in before:
        if name in now and indented(before[name]) != indented(now[name]):
            told.append(difference(f"{file}: {name!r}, {now[name]['request']['ask']}", before[name], now[name]))
    return "\n\n".join(told)


def difference(what: str, kept: Any, found: Any) -> str:
    """How two values differ, line by line; empty: not at all."""
    lines = unified_diff(indented(kept).splitlines(), indented(found).splitlines(), "recorded", "now", n=2, lineterm="")
    return f"{what}\n{told}" if (told := "\n".join(lines)) else ""


# Routes


class Route(NamedTuple):
    """A route, as it is written down in routes.json."""

    method: str
    path: str
    scope: str | list[str] | None
    body: str | None  # the name of its schema
    optional: bool  # whether the body may be left out
    query: dict[str, Any]
    headers: list[str]

    @property
    def file(self) -> str:
        return "_".join([self.method, *re.findall(r"[\w.]+", self.path)]) if self.path != "/" else f"{self.method}_page"

    def allows(self, scope: str) -> bool:
        """Whether a token with this scope may ask."""
        wanted = self.scope
        return scope == "admin" or wanted in (None, "any", scope) or (isinstance(wanted, list) and scope in wanted)


NOT_DESCRIBED = (
    Route("GET", "/", None, None, False, {}, []),
    Route("GET", "/page/{name}", None, None, False, {}, []),
    Route("GET", "/metrics", "read", None, False, {}, []),
    Route("GET", "/api/v1/openapi.json", None, None, False, {}, []),
)
"""What the OpenAPI document leaves out."""


def routes_of(document: dict[str, Any]) -> list[Route]:
    """Every route there is, as the OpenAPI document tells."""
    described = [
        _route(method.upper(), path, operation) for path, methods in document["paths"].items() for method, operation in methods.items()
    ]
    return sorted([*described, *NOT_DESCRIBED], key=lambda route: (route.path, route.method))


def _route(method: str, path: str, operation: dict[str, Any]) -> Route:
    given = operation.get("parameters", [])
    query = {parameter["name"]: parameter["schema"] for parameter in given if parameter["in"] == "query"}
    headers = [parameter["name"] for parameter in given if parameter["in"] == "header"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"] if "requestBody" in operation else {}
    refs = [one["$ref"] for one in (schema, *schema.get("oneOf", ())) if "$ref" in one]
    return Route(method, path, operation["x-scope"], refs[0].rpartition("/")[2] if refs else None, "oneOf" in schema, query, headers)


def recorded_routes() -> list[Route]:
    """Every route that was recorded."""
    return [Route(**route) for route in read("routes")]


_PATTERNS: list[tuple[str, re.Pattern[str], Route]] = []


def file_of(method: str, target: str) -> str:
    """The file of the route that a request is for; a path without parameters comes first."""
    if not _PATTERNS:
        routes = sorted(recorded_routes(), key=lambda route: route.path.count("{"))
        _PATTERNS.extend((route.method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route.path))), route) for route in routes)
    path = target.partition("?")[0]
    return next(route.file for known, pattern, route in _PATTERNS if known == method and pattern.fullmatch(path))
