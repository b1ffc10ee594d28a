"""What every route refuses in the same way, made from the list of routes, so that none is forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.hub.recording import BODY, LEFT_OUT, Exchange, Route, World, read
from windlass.model import SCOPES

WORKER = {"name": "w1", "slots": 10}

BODIES: dict[str, Any] = {
    "AddLines": {"run": "<run>", "token": "t", "lines": [[1, "one"]]},
    "AddWebhook": {"url": "https://example.com/hook"},
    "BeatRuns": {"held": [[1, "t"]], "lease": 30_000},
    "BeginLife": {"worker": "w1", "life": {"tag": "tag", "process": "1"}},
    "CancelRun": {"reason": "no"},
    "ClaimRuns": {"worker": WORKER, "count": 1, "lease": 30_000},
    "CreateGroup": {"members": [{"job": "mail"}]},
    "CreateRun": {"job": "mail"},
    "CreateRuns": {"runs": [{"job": "mail"}]},
    "CreateToken": {"name": "eve", "scopes": ["read"]},
    "DefineJob": {},
    "EndLives": {"worker": "w1", "tags": ["tag"]},
    "LeaveWorker": {"worker": "w1", "incarnation": 1},
    "MoveRun": {"to": "top"},
    "PatchRun": {"priority": 1},
    "PatchSchedule": {"enabled": True},
    "PatchWebhook": {"name": "other"},
    "PauseAsked": {"scope": "system"},
    "PutQueue": {"aging": None},
    "PutResource": {"capacity": 1},
    "PutRetention": {"keep_others": "forever"},
    "PutSchedule": {"job": "mail", "every": "1h"},
    "RecoverRuns": {"worker": WORKER, "token": "t"},
    "RegisterWorker": {"worker": WORKER},
    "ReleaseSlot": {"token": "t"},
    "RenewSlot": {"token": "t"},
    "ReportRuns": {"outcomes": [{"run": "<run>", "token": "t", "kind": "succeed"}]},
    "ReserveSlot": {"resource": "gpu"},
    "ResumeAsked": {"scope": "system"},
    "RotateToken": {"overlap": 0},
    "RotateWebhook": {"overlap": 0},
    "SignIn": {"ticket": "wli_no"},
    "StartRuns": {"held": [[1, "t"]]},
    "StoreStep": {"run": "<run>", "token": "t", "key": "charge", "output": "1"},
    "TellMetrics": {"worker": "w1", "metrics": {"load": 1.5}},
    "WaitFor": {"topics": ["sweep"], "timeout": 1},
}
"""For each kind of body one that can be read, by which one member at a time is made wrong."""


async def populate(world: World) -> None:
    """One of everything that a path can name."""
    ask, ids = world.good, world.ids
    await ask("PUT", "/api/v1/jobs/mail", {})
    ids["run_id"] = (await ask("POST", "/api/v1/runs", {"job": "mail"}))["id"]
    ids["group_id"] = (await ask("POST", "/api/v1/groups", {"members": [{"job": "mail"}]}))["id"]
    ids["key"] = (await ask("PUT", "/api/v1/schedules/nightly", {"job": "mail", "cron": "0 3 * * *"}))["key"]
    await ask("PUT", "/api/v1/resources/gpu", {"capacity": 1})
    ids["slot_id"] = (await ask("POST", "/api/v1/slots", {"resource": "gpu"}))["id"]
    await ask("POST", "/api/v1/worker/register", {"worker": WORKER})
    ids["token_id"] = await world.token("named", "read")
    ids["webhook_id"] = (await ask("POST", "/api/v1/webhooks", {"url": "https://example.com/hook", "name": "told"}))["webhook"]["id"]
    await ask("POST", f"/api/v1/runs/{(await ask('POST', '/api/v1/runs', {'job': 'mail'}))['id']}/cancel")
    await world.make_deliveries()
    (delivery,) = (await ask("GET", f"/api/v1/webhooks/{ids['webhook_id']}/deliveries"))["deliveries"]
    ids |= {"delivery_id": delivery["id"], "lane": 1}


NAMES = {"jobs": "mail", "queues": "default", "resources": "gpu", "workers": "w1", "page": "index.html"}


def target(world: World, route: Route) -> str:
    """The address of something that is there."""
    ids = {"name": NAMES.get((re.findall(r"(\w+)/\{name\}", route.path) or [""])[0])} | world.ids
    return re.sub(r"\{(\w+)\}", lambda found: str(ids[found[1]]), route.path)


def nowhere(route: Route) -> str:
    """An address that can be read, of something that is not there."""
    return re.sub(r"\{\w+\}", "none", route.path.replace("{lane}", "999"))


async def refusals(world: World, route: Route) -> list[Exchange]:
    """What the gate, the address, the query and the body of a route are refused for."""
    before = len(world.recorded.get(route.file, ()))
    await _at_the_gate(world, route)
    await _by_address(world, route)
    await _by_query(world, route)
    if route.body is not None:
        await _by_body(world, route)
    elif route.method != "GET":
        await _without_body(world, route)
    return world.recorded[route.file][before:]


def _harmless(route: Route) -> Any:
    """A body that every route that has one refuses."""
    return None if route.body is None else b"{"


async def _at_the_gate(world: World, route: Route) -> None:
    ask, body, path = world.ask, _harmless(route), target(world, route) if route.method == "GET" else nowhere(route)
    addressed: dict[str, Any] = {"to": route.file, "until": "retry" if route.path.endswith("/events") else None}
    client: dict[str, Any] = {"client": ("10.0.0.9", 1)}
    world.forget_failures()
    await ask(route.method, path, body, name="no token", actor=None, **addressed)
    await ask(route.method, path, body, name="a wrong token", actor=None, headers={"authorization": "Bearer wrong"}, **addressed, **client)
    await ask(route.method, path, body, name="another scheme", actor=None, headers={"authorization": "Basic YTpi"}, **addressed, **client)
    await ask(route.method, f"{path}?access_token=x", body, name="a token in the address", **addressed)
    for scope in SCOPES:
        if route.allows(scope):
            await ask(route.method, path, body, name=f"with the scope {scope}", actor=scope, **addressed)
        else:
            await ask(route.method, path, body, name=f"without its scope, with {scope}", actor=scope, **addressed)


async def _by_address(world: World, route: Route) -> None:
    ask, body, path = world.ask, _harmless(route), target(world, route)
    addressed: dict[str, Any] = {"to": route.file}
    if route.method != "GET" and body is None:
        path = nowhere(route)
    until = "retry" if path.endswith("/events") else None
    await ask(route.method, f"{path}/", body, name="a slash at the end", until=until, **addressed)
    if "{" in route.path:
        for name, escaped in {"an escaped slash": "a%2Fb", "a character beyond ASCII": "%C3%A4", "NUL": "%00", "no UTF-8": "%FF"}.items():
            odd = re.sub(r"\{\w+\}", escaped, route.path)
            await ask(route.method, odd, body, name=f"{name} in a name", **addressed)
        if route.body is not None:
            good = BODIES[route.body]
            if route.method != "PUT":
                odd = re.sub(r"\{\w+\}", "none", route.path)
                await ask(route.method, odd, good, name="there is none of that name", **addressed)
                await ask(route.method, re.sub(r"\{\w+\}", "a%2Fb", route.path), good, name="there is none with a slash", **addressed)
        else:
            await ask(route.method, re.sub(r"\{\w+\}", "none", route.path), name="there is none of that name", **addressed)


async def _by_query(world: World, route: Route) -> None:
    ask, body = world.ask, _harmless(route)
    path = target(world, route) if route.method == "GET" else nowhere(route)
    stream = path.endswith("/events")
    for query in ("nonsense=1", "Count=1", "nonsense", "%FF=1", *(f"{name}x=1" for name in route.query)):
        await ask(route.method, f"{path}?{query}", body, name=f"?{query}", to=route.file, until="retry" if stream else None)
    for name, schema in route.query.items():
        for value in _odd_values(schema):
            query = f"{name}={value.replace('NAME', name)}"
            await ask(route.method, f"{path}?{query}", body, name=f"?{query}", to=route.file, until="\n\n" if stream else None)


def _types(schema: Any) -> Iterator[str]:
    """The kinds of JSON that a schema takes; none for whatever there is."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield from _types(_schemas()[schema["$ref"].rpartition("/")[2]])
    for one in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from _types(one)
    kinds = schema.get("type", ())
    yield from [kinds] if isinstance(kinds, str) else kinds
    if "enum" in schema or "const" in schema:
        yield "enum"


@cache
def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = read("openapi")["components"]["schemas"]
    return schemas


def _odd_values(schema: Any) -> list[str]:
    kinds = set(_types(schema))
    if "integer" in kinds:
        bounds = [str(int(schema[name]) + by) for name, by in (("minimum", -1), ("maximum", 1)) if name in schema]
        odd = ["x", "", "1.5", "1.0", "%201", "1e2", "0x1", "true", "null", "-1", "9223372036854775808", *bounds, "1&NAME=2", "1&NAME=x"]
        return list(dict.fromkeys(odd))
    if "enum" in kinds:
        return ["nope", "", "null", "a&NAME=b"]
    return ["", "null", "%00", "%FF", "a+b", "a&NAME=b", "x" * 300]


async def _by_body(world: World, route: Route) -> None:
    good = json.loads(json.dumps(BODIES[route.body or ""]).replace("<run>", world.ids["run_id"]))
    path = target(world, route)

    async def refused(name: str, body: Any, **headers: str) -> None:
        await world.ask(
            route.method, path, body, name=name, to=route.file, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )

    if not route.optional:
        await refused("no body", None)
        await refused("an empty body", b"")
        await refused("a body that is null", b"null")
    for name, text in {
        "half an object": b"{",
        "a list": b"[]",
        "a text": b'"text"',
        "a number": b"1",
        "more behind it": b"{} {}",
        "no UTF-8": b'{"\xff": 1}',
        "half a surrogate pair": b'{"nonsense": "\\ud800"}',
        "NaN": b'{"nonsense": NaN}',
        "nested too deep": b"[" * 100 + b"]" * 100,
        "a member that is unknown": json.dumps(good | {"nonsense": 1}).encode(),
        "the same member twice": json.dumps(good)[:-1].encode() + (b", " if good else b"") + b'"nonsense": 1, "nonsense": 1}',
    }.items():
        await refused(name, text)
    await refused("another content type", good, content_type="text/plain")
    await refused("no content type", good, content_type=LEFT_OUT)
    await refused("a form", b"a=b", content_type="application/x-www-form-urlencoded")
    await refused("a content type with a charset, half an object", b"{", content_type="Application/JSON; charset=utf-8")
    await refused("too large", b'"' + b"x" * BODY + b'"')
    await refused("said to be too large", good, content_length="100000000")
    await refused("in parts without a length, half an object", b"{", content_length=LEFT_OUT, transfer_encoding="chunked")
    await _by_member(route, good, refused)


async def _by_member(route: Route, good: Any, refused: Any) -> None:
    schema = _schemas()[route.body or ""]
    for name in schema.get("required", ()):
        await refused(f"without {name}", {key: value for key, value in good.items() if key != name})
    for name, member in schema["properties"].items():
        for value in _wrong_values(set(_types(member))):
            await refused(f"{name}: {json.dumps(value)}", good | {name: value})


def _wrong_values(kinds: set[str]) -> list[Any]:
    """One value of each other kind that people might send."""
    if not kinds:
        return []
    null = [] if "null" in kinds else [None]
    if "enum" in kinds:
        return [*null, "nope", 5]
    values: dict[str, list[Any]] = {
        "integer": [1.5, "5", True],
        "number": ["5"],
        "string": [5],
        "boolean": [1, "true"],
        "array": ["no", [{"no": []}]],
        "object": ["no"],
    }
    found = [value for kind in kinds for value in values.get(kind, ())]
    return null + sorted((value for value in found if _kind(value) not in kinds), key=json.dumps)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {int: "integer", float: "number", str: "string", dict: "object", list: "rows"}[type(value)]


async def _without_body(world: World, route: Route) -> None:
    path = nowhere(route)
    if "{" not in route.path:
        return
    bodies: list[tuple[str, bytes, dict[str, str]]] = [
        ("a body that nobody reads", b"{", {}),
        ("a body that is no JSON", b"text", {"content-type": "text/plain"}),
        ("a body that is too large", b"x" * (BODY + 1), {}),
    ]
    for name, body, headers in bodies:
        await world.ask(route.method, path, body, name=name, to=route.file, headers=headers)
