"""The page, health, streams, and whatever is refused before a route is asked."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from typing import Any

from tests.hub.recording import STALLS, Exchange, Scene, World, recorded_routes
from windlass.errors import OutcomeUnknown, StoreBroken, StoreBusy, StoreFull, StoreUnreachable

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FOO", "get")


async def front() -> dict[str, list[Exchange]]:
    async with World() as w:
        page = await w.ask("GET", "/", name="the page", actor=None)
        tag = {"if-none-match": page.headers["etag"]}
        await w.ask("GET", "/", name="the page, which is known", actor=None, headers=tag, to="GET_page")
        await w.ask("GET", "/?a=b", name="whatever is behind it", actor=None)
        await w.ask("GET", "/", name="with a token that is wrong", actor=None, headers={"authorization": "Bearer no"})
        for name in ("index.html", "main.js", "style.css", "icon.svg", "none.js", "__init__.py", "..%2F__init__.py", "%2E%2E", ""):
            await w.ask("GET", f"/page/{name}", name=f"the file {name!r}", actor=None, to="GET_page_name")
        await w.ask("GET", "/page/index.html", name="a file that is known", actor=None, headers=tag)
        await w.ask("GET", "/page/index.html", name="a file under another tag", actor=None, headers={"if-none-match": '"no"'})
        await w.ask("GET", "/page/index.html?a=b", name="whatever is behind a file", actor=None)
        await w.ask("GET", "/api/v1/openapi.json", name="the document", actor=None)
        await w.ask("GET", "/healthz", name="alive", actor=None)
        await w.ask("GET", "/readyz", name="before its loops begin", actor=None)
        w.begin_loops()
        while w.hub.problems():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
        await w.ask("GET", "/readyz", name="ready", actor=None)
        w.store.fault = StoreUnreachable("The file is gone.", hint="Look for it.")
        await w.ask("GET", "/readyz", name="without a store", actor=None)
        await w.ask("GET", "/healthz", name="alive without a store", actor=None)
        w.store.fault = None
        return w.recorded


async def methods() -> dict[str, list[Exchange]]:
    """Every path with every method that it does not have."""
    async with World() as w:
        paths: dict[str, set[str]] = {}
        for route in recorded_routes():
            paths.setdefault(route.path, set()).add(route.method)
        for path, known in paths.items():
            target = path.replace("{lane}", "1").replace("{", "").replace("}", "")
            for method in METHODS:
                if method not in known:
                    await w.ask(method, target, name=f"{method} {path}", to="methods")
            for method in ("HEAD", "OPTIONS", "TRACE"):
                await w.ask(method, target, name=f"{method} {path}, without a token", actor=None, to="methods")
        await w.ask("OPTIONS", "/api/v1/jobs?nonsense=1", name="OPTIONS with an unknown parameter", to="methods")
        await w.ask("OPTIONS", "/api/v1/jobs?token=1", name="OPTIONS with a token in the address", to="methods")
        cors = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        await w.ask("OPTIONS", "/api/v1/runs", name="OPTIONS of another site", actor=None, headers=cors, to="methods")
        await w.ask("POST", "/api/v1/jobs", {}, name="POST with a body", to="methods")
        await w.ask("POST", "/api/v1/jobs", b"x", name="POST with another body", headers={"content-type": "text/plain"}, to="methods")
        await w.ask("POST", "/api/v1/jobs?nonsense=1", name="POST with an unknown parameter", to="methods")
        return w.recorded


UNKNOWN = (
    "/nope",
    "/api",
    "/api/",
    "/api/v1",
    "/api/v1/",
    "/api/v2/jobs",
    "/api/v1/nope",
    "/api/v1/jobs/a/b",
    "/api/v1/jobs/",
    "/api/v1/jobs//",
    "//",
    "//api/v1/jobs",
    "/api//v1/jobs",
    "/api/v1//jobs",
    "/api/v1/jobs/mail/",
    "/api/v1/jobs/mail//",
    "/api/v1/runs/x/nope",
    "/api/v1/runs//cancel",
    "/API/v1/jobs",
    "/api/v1/Jobs",
    "/page",
    "/page/",
    "/page/a/b",
    "/api/v1/schema",
    "/api/v1/schema/openapi.json",
    "/api/v1/schema/swagger",
    "/schema",
    "/schema/openapi.json",
    "/docs",
    "/favicon.ico",
    "/healthz/",
    "/healthz/x",
    "/metrics/",
    "/api/v1/openapi.json/",
    "/api/v1/openapi.yaml",
    "/api%2Fv1%2Fjobs",
    "/api/v1%2Fjobs",
    "/api/v1/jobs%2F",
    "/api/v1/jobs/a%2Fb%2Fc",
    "/api/v1/jobs/%2F",
    "/api/v1/jobs/a%2F",
    "/api/v1/jobs/%2Fa",
    "/api/v1/jobs/a%1Fb",
    "/api/v1/jobs/a%2Fb%1Fc",
    "/api/v1/jobs/%",
    "/api/v1/jobs/%zz",
    "/api/v1/jobs/a;b=c",
    "/api/v1/./jobs",
    "/api/v1/../v1/jobs",
    "/api/v1/jobs/..",
    "/api/v1/jobs/.",
    "/api/v1/jobs/a+b",
    "/api/v1/jobs/a%20b",
    "/api/v1/jobs/a%3Fb",
    "/api/v1/jobs/a%23b",
    "/api/v1/lanes/x",
    "/api/v1/lanes/1/",
    "*",
    "",
    "http://127.0.0.1:8080/api/v1/jobs",
    "/%00",
    "/api/v1/jobs?",
    "/nope?nonsense=1",
    "/nope?token=1",
)


async def paths() -> dict[str, list[Exchange]]:
    async with World() as w:
        for path in UNKNOWN:
            await w.ask("GET", path, name=f"GET {path}", to="paths")
            await w.ask("GET", path, name=f"GET {path} without a token", actor=None, to="paths")
        for path in ("/nope", "/api/v1/nope", "/api/v1/worker/claim/", "/api/v1/worker/nope", "/"):
            await w.ask("POST", path, {}, name=f"POST {path}", to="paths")
        return w.recorded


async def gate() -> dict[str, list[Exchange]]:
    """A hub without tokens, which is open to this machine."""
    async with World(tokens=False, open=True) as w:

        async def ask(name: str, method: str = "GET", target: str = "/api/v1/me", body: Any = None, headers: Any = (), **how: Any) -> Any:
            return await w.ask(method, target, body, name=name, actor=how.pop("actor", None), headers=headers, to="gate", **how)

        await ask("everybody on this machine")
        for host in (
            "localhost",
            "127.0.0.1",
            "[::1]:8080",
            "evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.2:1",
            "",
            "a b",
            "\xe4",
            "localhost:x",
            "[::1",
            "<left out>",
        ):
            await ask(f"by the name {host!r}", headers={"host": host})
            await ask(
                f"a worker by the name {host!r}",
                "POST",
                "/api/v1/worker/beat",
                {"held": [], "lease": 1_000},
                headers={"host": host},
            )
        for name in ("x-forwarded-for", "x-forwarded-proto", "forwarded", "via", "x-real-ip"):
            await ask(f"handed on, {name}", headers={name: "1.2.3.4"})
        await ask("from another machine", client=("10.0.0.1", 1))
        await ask("from nowhere", client=None)
        await ask("from this machine by IPv6", client=("::1", 1))
        await ask("with a token that is wrong", headers={"authorization": "Bearer no"})
        await w.ask("PUT", "/api/v1/jobs/mail", {}, actor=None)
        for said in (
            {"origin": "http://127.0.0.1:8080"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
        ):
            await ask(f"a run is asked for, {said}", "POST", "/api/v1/runs", {"job": "mail"}, said)
            await ask(f"it is read, {said}", headers=said)
        await ask("a form", "POST", "/api/v1/runs", b"job=mail", {"content-type": "application/x-www-form-urlencoded"})
        await ask("a ticket", "POST", "/api/v1/tickets")
        await ask("sign out", "DELETE", "/api/v1/session")
        made = await ask("the first token", "POST", "/api/v1/tokens", {"name": "ann", "scopes": ["admin"]})
        await ask("nobody any more")
        w.secrets["ann"] = made.json["secret"]
        await ask("with a token, of another site", "POST", "/api/v1/runs", {"job": "mail"}, {"origin": "https://evil.example"}, actor="ann")
        await ask("with a token, by another name", headers={"host": "hub.example"}, actor="ann")
        for name, bearer in {
            "small letters": "bearer {}",
            "two blanks": "Bearer  {} ",
            "no blank": "Bearer{}",
            "a tab": "Bearer\t{}",
            "bytes": "Bearer \xff",
        }.items():
            await w.ask(
                "GET",
                "/api/v1/me",
                name=f"a token, {name}",
                actor=None,
                headers={"authorization": bearer.format(w.secrets["ann"])},
                to="gate",
            )
        return w.recorded


ONCE = ("host", "authorization", "content-type", "content-length", "idempotency-key", "last-event-id", "origin", "sec-fetch-site")


async def heads() -> dict[str, list[Exchange]]:
    """What is wrong with the form of a request."""
    async with World(body_within=20) as w:

        async def ask(name: str, method: str = "GET", target: str = "/api/v1/me", body: Any = None, headers: Any = (), **how: Any) -> None:
            await w.ask(method, target, body, name=name, headers=headers, to="heads", **how)

        for name in ONCE:
            await ask(f"twice {name}", headers=[(name, "a"), (name, "a")])
        for name in ("accept", "x-anything", "cookie", "transfer-encoding"):
            await ask(f"twice {name}", headers=[(name, "a"), (name, "b")])
        await ask("twice host, where nobody is known", target="/nope", headers=[("host", "a"), ("host", "b")], actor=None)
        await ask(
            "twice x-anything, to a worker's route",
            "POST",
            "/api/v1/worker/beat",
            {"held": [], "lease": 1_000},
            [("x-a", "a"), ("x-a", "b")],
        )
        await ask("100 headers", headers=[(f"x-{n}", "") for n in range(98)])
        await ask("101 headers", headers=[(f"x-{n}", "") for n in range(99)])
        await ask("a header that is too long", headers={"x-long": "x" * 33_000})
        await ask("an address that is too long", target=f"/api/v1/jobs/{'x' * 33_000}")
        await ask("a query that is too long", target=f"/api/v1/jobs?after={'x' * 33_000}")
        await ask("HTTP/0.9", http_version="0.9")
        await ask("HTTP/1.0", http_version="1.0")
        await ask("HTTP/2", http_version="2")
        for accept in ("text/html", "application/xml", "", "nonsense", "*/*;q=0"):
            await ask(f"who accepts {accept!r}", headers={"accept": accept})
            await ask(f"a problem for who accepts {accept!r}", target="/api/v1/jobs/none", headers={"accept": accept})
        for length in ("abc", "-1", "", "1.5", "0x10"):
            await ask(f"a length of {length!r}", "POST", "/api/v1/pause", b"{", {"content-length": length})
            await ask(f"a length of {length!r}, to a worker's route", "POST", "/api/v1/worker/wait", b"{", {"content-length": length})
        await ask("a length of nothing, with a body", "POST", "/api/v1/pause", b"{", {"content-length": "0", "content-type": "<left out>"})
        await ask("no length, with a body", "POST", "/api/v1/pause", b"{", {"content-length": "<left out>", "content-type": "<left out>"})
        await ask("packed", "POST", "/api/v1/pause", b"\x1f\x8b", {"content-encoding": "gzip"})
        await ask("a byte order mark", "POST", "/api/v1/pause", b'\xef\xbb\xbf{"scope": "system"}')
        await ask(
            "UTF-16", "POST", "/api/v1/pause", '{"scope": "system"}'.encode("utf-16"), {"content-type": "application/json; charset=utf-16"}
        )
        await ask("blanks around it", "POST", "/api/v1/pause", b' \n {"scope":\t"nope"} \n')
        await ask("another JSON", "POST", "/api/v1/pause", {}, {"content-type": "application/problem+json"})
        await ask("a cookie that is none", headers={"cookie": "\xff=;;="})
        await ask("a body with GET", body=b"{")
        await ask("another body with GET", body=b"x", headers={"content-type": "text/plain"})
        stalls = {"extensions": {STALLS: True}}
        await ask("a body that does not come", "POST", "/api/v1/pause", {"scope": "system"}, **stalls)
        await ask("a body that does not come, to a worker's route", "POST", "/api/v1/worker/beat", {"held": [], "lease": 1_000}, **stalls)
        return w.recorded


async def many() -> dict[str, list[Exchange]]:
    """More values than one body may have."""
    async with World(body=8_000_000) as w:
        body = b'{"runs":[' + b"0," * 600_000 + b"0]}"
        await w.ask("POST", "/api/v1/runs/batch", body, name="too many members", to="heads")
        await w.ask("POST", "/api/v1/worker/report", body, name="too many members, to a worker's route", to="heads")
        return w.recorded


async def mounted() -> dict[str, list[Exchange]]:
    """Below a path of another application."""
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/a%2Fb", {})

        async def ask(method: str, target: str, body: Any = None, **how: Any) -> None:
            name = f"{method} {target}, {', '.join(f'{key}={value}' for key, value in how.items())}"
            await w.ask(method, target, body, name=name, to="mounted", **how)

        for target in (
            "/sub/api/v1/jobs/a%2Fb",
            "/sub/api/v1/jobs/none",
            "/sub/",
            "/sub",
            "/sub/page/index.html",
            "/sub/nope",
            "/sub/api/v1/jobs?nonsense=1",
            "/sub/api/v1/me/",
        ):
            await ask("GET", target, root_path="/sub")
        await ask("POST", "/sub/api/v1/worker/beat", {"held": [], "lease": 1_000}, root_path="/sub")
        await ask("POST", "/sub/api/v1/worker/start", b"{", root_path="/sub")
        await ask("POST", "/sub/api/v1/jobs", root_path="/sub")
        await ask("GET", "/sub/api/v1/jobs/a%2Fb", path="/api/v1/jobs/a/b", root_path="/sub")
        await ask("GET", "/sub/api/v1/jobs/a%2Fb", path="/api/v1/jobs/a/b/", root_path="")
        await ask("GET", "/s%2Fub/api/v1/jobs/a%2Fb", path="/s/ub/api/v1/jobs/a/b", root_path="/s/ub")
        await ask("GET", "/api/v1/jobs/a%2Fb", raw_path=b"")
        await ask("GET", "/api/v1/jobs/a%2Fb", raw_path=b"/other/x%2Fy")
        return w.recorded


async def faults() -> dict[str, list[Exchange]]:
    """A store that is away, and a hub that fails."""
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {})
        for error in (
            StoreUnreachable("db.example:5432 is away.", hint="Look at it."),
            StoreBusy("Another writer holds it.", hint="Wait."),
            StoreFull("/var/lib is full.", hint="Clear it."),
            StoreBroken("/var/lib/x.db is damaged.", hint="Restore it."),
            OutcomeUnknown("The line broke.", hint="Look."),
            RuntimeError("nobody expected this"),
        ):
            for method, target, body in (
                ("GET", "/api/v1/jobs", None),
                ("POST", "/api/v1/runs", {"job": "mail"}),
                ("POST", "/api/v1/worker/beat", {"held": [[1, "t"]], "lease": 1_000}),
                ("POST", "/api/v1/worker/report", {"outcomes": [{"run": "none", "token": "t", "kind": "succeed"}]}),
                ("POST", "/api/v1/worker/claim", {"worker": {"name": "w1"}, "count": 1, "lease": 1_000}),
            ):
                await w.good("GET", "/api/v1/me")  # so that it is known who asks
                w.store.fault = error
                await w.ask(method, target, body, name=f"{type(error).__name__}: {method} {target}", to="faults")
                w.store.fault = None
            w.clock.ticks += 10_000
            w.store.fault = error
            await w.ask("GET", "/api/v1/jobs", name=f"{type(error).__name__} at the gate", to="faults")
            w.store.fault = None
        return w.recorded


async def streams() -> dict[str, list[Exchange]]:
    async with World() as w:
        w.begin_loops()
        await w.good("PUT", "/api/v1/jobs/mail", {"options": {"max_attempts": 1}})
        events = "/api/v1/events"
        start = await w.ask("GET", events, name="from now on", actor="read", until="id: ")
        place = start.body.decode().split("id: ")[1].strip()
        ended = (await w.good("POST", "/api/v1/runs", {"job": "mail", "payload": {"a": 1}}))["id"]
        run = await w.claim()
        hold = [[run["seq"], run["token"]]]
        await w.good("POST", "/api/v1/worker/start", {"held": hold})
        await w.good("POST", "/api/v1/worker/log", {"run": ended, "token": run["token"], "lines": [[1, "one"], [2, "two"]]})
        await w.good("POST", "/api/v1/worker/beat", {"held": hold, "lease": 30_000, "progress": {"0": '{"done": 1}'}})
        own = f"/api/v1/runs/{ended}/events"
        await w.ask("GET", own, name="one that runs", actor="read", until="event: progress")
        await w.report(run, "succeed", output='{"b": "line\\nbreak"}')
        failed = (await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "post"}}))["id"]
        await w.report(await w.claim(), "fail", error={"code": "boom", "message": "it broke"})
        seen = {"last-event-id": place}
        await w.ask("GET", events, name="from a place on", headers=seen, until='"state":"failed"')
        await w.ask("GET", f"{events}?last_event_id={place}", name="from a place on, by the query", until='"state":"succeeded"')
        await w.ask(
            "GET", f"{events}?last_event_id=nonsense", name="the header comes before the query", headers=seen, until='"state":"queued"'
        )
        await w.ask("GET", f"{events}?state=failed&job=mail", name="by state and job", headers=seen, until='"state":"failed"')
        await w.ask("GET", f"{events}?queue=post", name="by queue", headers=seen, until='"state":"failed"')
        await w.ask("GET", f"{events}?job=other", name="nothing of that job", headers=seen, until="id: ")
        for name, odd in {
            "a place that is none": "nonsense",
            "a place without a time": "5",
            "an empty place": "",
            "a time that is too late": "9" * 16 + "-1",
        }.items():
            await w.ask("GET", events, name=name, headers={"last-event-id": odd}, until="id: ")
        cursor = urlsafe_b64encode(b'["tail","","",0,99]').decode()
        ahead = {"last-event-id": f"{w.clock.ms}-{cursor}"}
        await w.ask("GET", events, name="a place ahead", headers=ahead, until="event: gap")
        await w.ask(
            "GET", events, name="a place long ago", headers={"last-event-id": "1-" + place.partition("-")[2]}, until='"state":"failed"'
        )
        await w.ask("GET", own, name="one that has ended")
        await w.ask("GET", f"{own}?cursor=0", name="one that has ended, with all lines", until='"state":"succeeded"')
        await w.ask("GET", f"{own}?cursor=1", name="one that has ended, with the last line", until='"state":"succeeded"')
        await w.ask("GET", own, name="one that has ended, from a place on", headers={"last-event-id": "2-1"}, until='"state":"succeeded"')
        await w.ask("GET", own, name="one that has ended, seen to its end", headers={"last-event-id": "4-2"}, until="\n\n")
        await w.ask("GET", own, name="a place that it has not got to", headers={"last-event-id": "99-0"})
        await w.ask("GET", own, name="a place that is none", headers={"last-event-id": "x"})
        await w.ask("GET", f"/api/v1/runs/{failed}/events?cursor=0", name="one that has failed", until='"state":"failed"')
        await _tickets(w, own)
        return w.recorded


async def _tickets(w: World, own: str) -> None:
    ticket = (await w.good("POST", "/api/v1/tickets", actor="read"))["ticket"]
    for target in ("/api/v1/events", f"{own}?cursor=0"):
        with_ticket = f"{target}{'&' if '?' in target else '?'}ticket="
        await w.ask("GET", f"{with_ticket}{ticket}", name="with a ticket", actor=None, until="id: ")
        await w.ask("GET", f"{with_ticket}{ticket[:-2]}AA", name="with a ticket that was changed", actor=None)
        await w.ask("GET", f"{with_ticket}no", name="with a ticket that is none", actor=None)
        await w.ask("GET", f"{with_ticket}", name="with an empty ticket", actor=None)
    await w.ask("GET", f"/api/v1/jobs?ticket={ticket}", name="with a ticket", actor=None)
    worker = (await w.good("POST", "/api/v1/tickets", actor="admin"))["ticket"]
    await w.ask("GET", f"/api/v1/events?ticket={worker}", name="with a ticket of one who may do all", actor=None, until="id: ")
    w.clock.advance(120_000)
    await w.ask("GET", f"/api/v1/events?ticket={ticket}", name="with a ticket that is too old", actor=None)


async def crowded() -> dict[str, list[Exchange]]:
    """A hub with no room for streams."""
    async with World(streams=0) as w:
        await w.good("PUT", "/api/v1/jobs/mail", {})
        run = (await w.good("POST", "/api/v1/runs", {"job": "mail"}))["id"]
        for target in ("/api/v1/events", f"/api/v1/runs/{run}/events"):
            await w.ask("GET", target, name="no more streams")
        return w.recorded


PAGE = ["GET_page", "GET_page_name", "GET_api_v1_openapi.json", "GET_healthz", "GET_readyz"]
EVENTS = ["GET_api_v1_events", "GET_api_v1_runs_run_id_events"]
MORE: dict[str, tuple[Scene, list[str]]] = {
    "front": (front, PAGE),
    "methods": (methods, ["methods"]),
    "paths": (paths, ["paths"]),
    "gate": (gate, ["gate"]),
    "heads": (heads, ["heads"]),
    "many": (many, ["heads"]),
    "mounted": (mounted, ["mounted"]),
    "faults": (faults, ["faults"]),
    "streams": (streams, [*EVENTS, "GET_api_v1_jobs"]),
    "crowded": (crowded, EVENTS),
}
