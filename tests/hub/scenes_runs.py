"""Runs, jobs and groups."""

from __future__ import annotations

from typing import Any

from tests.hub.recording import Exchange, Scene, World

FULL = {
    "queue": "post", "priority": 5, "max_attempts": 3, "max_runtime": 60_000, "backoff": [1_000, 2_000], "backoff_base": 10,
    "on_exhausted": "quarantined", "retry_place": "tail", "timeout": 5_000, "max_requeues": 7, "grace": 1_000,
    "requires": {"tags": ["gpu"], "cores": 2, "memory": 100}, "uses": [{"resource": "smtp", "weight": 2}], "keep": 3_600_000,
}  # fmt: skip
NONE = "00000000-0000-7000-8000-000000000000"


async def jobs() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.ask("GET", "/api/v1/jobs", name="none yet")
        await w.ask("PUT", "/api/v1/jobs/mail", {}, name="a new one with defaults")
        await w.ask("PUT", "/api/v1/jobs/mail", {}, name="the same again")
        await w.ask("PUT", "/api/v1/jobs/mail", {"payload": {"to": "ann"}}, name="changed", actor="work")
        await w.ask("PUT", "/api/v1/resources/smtp", {"capacity": 3})
        schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"], "additionalProperties": False}
        everything = {"handler": "app.post", "payload": {"a": [1, None, "ä"]}, "options": FULL, "schema": schema}
        await w.ask("PUT", "/api/v1/jobs/post", everything, name="everything is said")
        await w.ask("PUT", "/api/v1/jobs/post", everything | {"schema": None}, name="every payload is accepted again")
        await w.ask("PUT", "/api/v1/jobs/post", {"schema": schema}, name="only a schema")
        await w.ask("PUT", "/api/v1/jobs/a%2Fb", {}, name="a slash in its name")
        await w.ask("PUT", "/api/v1/jobs/%C3%A4", {}, name="a name beyond ASCII")
        await w.ask("PUT", f"/api/v1/jobs/{'x' * 129}", {}, name="a name that is too long")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"nonsense": 1}}, name="an unknown option")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"priority": 10**6}}, name="an option out of range")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"max_attempts": 0}}, name="no attempts")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"requires": {"cores": "2"}}}, name="a wrong type deep in the options")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"keep": "always"}}, name="a wrong word")
        await w.ask("PUT", "/api/v1/jobs/mail", {"options": {"uses": [{"resource": "none"}]}}, name="a resource that nobody has defined")
        await w.ask("PUT", "/api/v1/jobs/mail", {"schema": {"type": "nonsense"}}, name="a schema that is none")
        await w.ask("GET", "/api/v1/jobs", name="all")
        await w.ask("GET", "/api/v1/jobs?count=1", name="a page", actor="read")
        await w.ask("GET", "/api/v1/jobs?count=1&after=mail", name="the next page")
        await w.ask("GET", "/api/v1/jobs?after=zzz", name="behind the last")
        await w.ask("GET", "/api/v1/jobs/post", name="one with everything")
        await w.ask("GET", "/api/v1/jobs/a%2Fb", name="a slash in its name")
        await w.ask("GET", "/api/v1/jobs/a%2fb", name="a slash in its name, in small letters")
        await w.ask("GET", "/api/v1/jobs/a%252Fb", name="a slash that is escaped twice")
        await w.ask("GET", "/api/v1/jobs/%6Dail", name="a letter that need not be escaped")
        await w.ask("GET", "/api/v1/jobs/%2E%2E", name="two dots")
        await w.ask("GET", f"/api/v1/jobs/{'x' * 129}", name="a name that is too long")
        run = await w.good("POST", "/api/v1/runs", {"job": "mail"})
        await w.ask("DELETE", "/api/v1/jobs/mail", name="one that was defined")
        await w.good("POST", "/api/v1/runs", {"job": "later", "undefined": "wait"})
        await w.ask("GET", "/api/v1/jobs/later", name="one that nobody has defined")
        await w.ask("DELETE", "/api/v1/jobs/later", name="one that a run waits for")
        await w.good("POST", f"/api/v1/runs/{run['id']}/cancel")
        for waiting in (await w.good("GET", "/api/v1/runs?job=later"))["runs"]:
            await w.good("POST", f"/api/v1/runs/{waiting['id']}/cancel")
        await w.ask("DELETE", "/api/v1/jobs/later", name="one whose runs have ended")
        await w.pruned()
        await w.ask("DELETE", "/api/v1/jobs/later", name="one that nobody has defined and nobody needs")
        return w.recorded


async def creation() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {"payload": {"from": "bob"}})
        await w.good("PUT", "/api/v1/resources/smtp", {"capacity": 3})
        schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"], "additionalProperties": False}
        await w.good("PUT", "/api/v1/jobs/strict", {"schema": schema})

        async def create(name: str, body: Any, actor: str = "submit", **headers: str) -> Any:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            return (await w.ask("POST", "/api/v1/runs", body, name=name, actor=actor, headers=named)).json

        first = await create("the least", {"job": "mail"})
        await create("a payload", {"job": "mail", "payload": {"to": "ann", "n": 1.5, "big": 9007199254740993, "list": [None, True]}})
        await create("everything is said", {"job": "mail", "payload": {"a": 1}, "options": FULL})
        await create("with a delay", {"job": "mail", "delay": 60_000})
        await create("at an instant", {"job": "mail", "scheduled_for": "2026-02-01T00:00:00+01:00"})
        await create("after another", {"job": "mail", "after": [first["id"]], "after_end": "any"})
        await create("of a job that nobody has defined", {"job": "later", "undefined": "wait"})
        await create("kept for ever", {"job": "mail", "options": {"keep": "forever"}})
        await create("that fits the schema", {"job": "strict", "payload": {"to": "ann"}})
        await create("with meta", {"job": "mail", "meta": {"user": "ann", "n": [1.5]}})
        await create("meta that is no object", {"job": "mail", "meta": [1]})
        await create("meta that is too large", {"job": "mail", "meta": {"a": "x" * 5_000}})
        await create("a program without a checksum", {"job": "mail", "options": {"solver": {"url": "https://example.com/x"}}})
        await create("under a key", {"job": "mail", "key": {"name": "once"}})
        await create("under a key that is taken, by one who may not read", {"job": "mail", "key": {"name": "once"}})
        await create("under a key, by one who may do all", {"job": "mail", "key": {"name": "all"}}, "admin")
        await create("under a key that is taken, by one who may read", {"job": "mail", "key": {"name": "all"}}, "admin")
        await create("compared, equal", {"job": "mail", "key": {"name": "all", "on_duplicate": "compare"}}, "admin")
        await create(
            "compared, other content", {"job": "mail", "payload": {"x": 1}, "key": {"name": "all", "on_duplicate": "compare"}}, "admin"
        )
        await create("under an Idempotency-Key", {"job": "mail", "payload": {"k": 1}}, Idempotency_Key="i1")
        await create("again under an Idempotency-Key", {"payload": {"k": 1}, "job": "mail"}, Idempotency_Key="i1")
        await create("again with other content", {"job": "mail", "payload": {"k": 2}}, Idempotency_Key="i1")
        await create("the same Idempotency-Key of another token", {"job": "mail", "payload": {"k": 2}}, "admin", Idempotency_Key="i1")
        await create("again, by one who may read", {"job": "mail", "payload": {"k": 2}}, "admin", Idempotency_Key="i1")
        await create("an empty Idempotency-Key", {"job": "mail"}, Idempotency_Key="")
        await create("an Idempotency-Key that is too long", {"job": "mail"}, Idempotency_Key="x" * 201)
        await create("an Idempotency-Key as long as may be", {"job": "mail"}, Idempotency_Key="x" * 200)
        await create("an Idempotency-Key beyond ASCII", {"job": "mail"}, Idempotency_Key="ä")
        await create("two keys", {"job": "mail", "key": {"name": "two"}}, Idempotency_Key="i2")
        await create("a key in a scope of windlass's own", {"job": "mail", "key": {"name": "x", "scope": "http:eve"}}, "admin")
        await create("a key with a time to live that is none", {"job": "mail", "key": {"name": "x", "ttl": "time"}})
        await create("a key with an unknown member", {"job": "mail", "key": {"name": "x", "nonsense": 1}})
        await create("a key without a name", {"job": "mail", "key": {}})
        await create("of an unknown job", {"job": "mial"})
        await create("of a job without a name", {"job": ""})
        await create("a payload that is no object", {"job": "mail", "payload": [1]})
        await create("a payload that does not fit the schema", {"job": "strict", "payload": {"too": "ann"}})
        await create("a payload that does not fit, and was checked", {"job": "strict", "payload": {"too": "ann"}, "checked": True})
        await create("both delay and scheduled_for", {"job": "mail", "delay": 1, "scheduled_for": "2026-02-01T00:00:00Z"})
        await create("an instant without an offset", {"job": "mail", "scheduled_for": "2026-02-01T00:00:00"})
        await create("an instant that is none", {"job": "mail", "scheduled_for": "tomorrow"})
        await create("an instant in far future", {"job": "mail", "scheduled_for": "9999-12-31T23:59:59Z"})
        await create("a delay below nothing", {"job": "mail", "delay": -1})
        await create("a delay that is too long", {"job": "mail", "delay": 10**15})
        await create("after one that there is not", {"job": "mail", "after": [NONE]})
        await create("after what is no id", {"job": "mail", "after": ["a b"]})
        await create("an unknown option", {"job": "mail", "options": {"nonsense": 1}})
        await create("a wrong type in the options", {"job": "mail", "options": {"uses": [{"resource": 5}]}})
        await create("an option out of range", {"job": "mail", "options": {"max_attempts": 0}})
        await create("a resource that nobody has defined", {"job": "mail", "options": {"uses": [{"resource": "none"}]}})
        await create("a payload with NUL", {"job": "mail", "payload": {"a": "\0"}})
        await create("an integer that is too large", {"job": "mail", "payload": {"a": 2**64}})
        await _batches(w)
        return w.recorded


async def _batches(w: World) -> None:
    async def create(name: str, runs: list[Any], actor: str = "submit", **headers: str) -> None:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        await w.ask("POST", "/api/v1/runs/batch", {"runs": runs}, name=name, actor=actor, headers=named)

    await create("none", [])
    await create("two", [{"job": "mail"}, {"job": "mail", "payload": {"a": 1}}])
    await create("two under one key", [{"job": "mail", "key": {"name": "b"}}, {"job": "mail", "key": {"name": "b"}}])
    await create("under an Idempotency-Key", [{"job": "mail"}, {"job": "mail"}], Idempotency_Key="b1")
    await create("again under an Idempotency-Key", [{"job": "mail"}, {"job": "mail"}], Idempotency_Key="b1")
    await create("again with other content", [{"job": "mail"}, {"job": "mail", "payload": {"a": 1}}], Idempotency_Key="b1")
    await create(
        "one has a key besides the Idempotency-Key", [{"job": "mail", "key": {"name": "c"}}, {"job": "mail"}], Idempotency_Key="b2"
    )
    await create("an Idempotency-Key that is too long", [{"job": "mail"}], Idempotency_Key="x" * 201)
    await create("one of an unknown job", [{"job": "mail"}, {"job": "none"}])
    await create("some may wait for their job", [{"job": "mail"}, {"job": "none", "undefined": "wait"}])
    await create("all may wait for their job", [{"job": "none", "undefined": "wait"}])
    await create("a wrong type in the second", [{"job": "mail"}, {"job": 5}])
    await create("an unknown member in the second", [{"job": "mail"}, {"job": "mail", "nonsense": 1}])
    await create("one whose payload is no object", [{"job": "mail", "payload": "x"}])


async def reading() -> dict[str, list[Exchange]]:
    """Runs in every state, looked at in every way."""
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {"options": {"max_attempts": 2, "backoff": [0]}})
        await w.good("PUT", "/api/v1/jobs/large", {})
        await w.ask("GET", "/api/v1/runs", name="none yet")
        ended = await w.good("POST", "/api/v1/runs", {"job": "mail", "payload": {"n": 1}})
        claimed = await w.claim()
        await w.good("POST", "/api/v1/worker/start", {"held": [[claimed["seq"], claimed["token"]]]})
        lines = {"run": claimed["id"], "token": claimed["token"], "lines": [[1, "one"], [2, "two\n\u2028ä"]]}
        await w.good("POST", "/api/v1/worker/log", lines)
        w.clock.advance(1_000)
        await w.report(claimed, "fail", error={"code": "boom", "message": "it broke", "detail": "Traceback"})
        claimed = await w.claim()
        await w.good(
            "POST",
            "/api/v1/worker/beat",
            {"held": [[claimed["seq"], claimed["token"]]], "lease": 30_000, "progress": {"0": '{"done": 0.5}'}},
        )
        await w.good("POST", "/api/v1/worker/log", {"run": claimed["id"], "token": claimed["token"], "lines": [[1, "three"]]})
        w.clock.advance(1_000)
        await w.report(claimed, "succeed", output='{"sent": [1, 2.5, null]}')
        failed = await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"max_attempts": 1}})
        await w.report(await w.claim(), "fail", error={"code": "boom", "message": "it broke"})
        cancelled = await w.good("POST", "/api/v1/runs", {"job": "mail"})
        await w.good("POST", f"/api/v1/runs/{cancelled['id']}/cancel", {"reason": "not now"})
        running = await w.good("POST", "/api/v1/runs", {"job": "mail"})
        held = await w.claim()
        await w.good("POST", "/api/v1/worker/start", {"held": [[held["seq"], held["token"]]]})
        waiting = await w.good("POST", "/api/v1/runs", {"job": "mail", "after": [running["id"]]})
        queued = await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "post", "priority": 3}})
        later = await w.good("POST", "/api/v1/runs", {"job": "mail", "delay": 60_000})
        large = await w.good("POST", "/api/v1/runs", {"job": "large", "payload": {"text": "x" * 15_000}})
        known = {
            "one that has succeeded": ended, "one that has failed": failed, "one that was cancelled": cancelled, "one that runs": running,
            "one that waits for another": waiting, "one that is queued": queued, "one that is due later": later,
        }  # fmt: skip
        for name, run in known.items():
            for what in ("", "/attempts", "/history", "/logs", "/steps", "/why", "/results"):
                await w.ask("GET", f"/api/v1/runs/{run['id']}{what}", name=name)
        await w.ask("GET", f"/api/v1/runs/{ended['id']}", name="by one who may read", actor="read")
        await _lists(w)
        for path in (
            "history?after=2",
            "history?count=2",
            "logs?attempt=1&last=1",
            "logs?attempt=2",
            "logs?last=0",
            "history?after=99",
            "logs?after=1",
            "logs?after=3",
            "logs?after=100000",
            "logs?count=1",
        ):
            await w.ask("GET", f"/api/v1/runs/{ended['id']}/{path}", name=f"a part, {path}")
        await w.ask("GET", f"/api/v1/runs/{running['id']}/results", name="by the worker that has it", actor="work for w1")
        await w.token("work for w2", "work", worker="w2")
        await w.ask("GET", f"/api/v1/runs/{running['id']}/results", name="by another worker", actor="work for w2")
        await w.ask("GET", f"/api/v1/runs/{queued['id']}/results", name="by a worker, of a run that nobody has", actor="work for w1")
        w.ids |= {"large": large["id"]}
        return w.recorded


async def _lists(w: World) -> None:
    for query in (
        "count=2",
        "job=mail",
        "job=none",
        "state=queued",
        "state=succeeded",
        "state=failed&job=mail",
        "job=mail&state=queued",
        "queue=post",
        "queue=post&state=queued",
        "job=mail&queue=post&state=queued",
        "job=mail&queue=post",
        "queue=post&state=failed",
        "queue=post&states=queued,failed",
        "queue=post&states=bogus",
        "queue=post&states=",
        "states=queued",
        "state=running",
        "job=large",
    ):
        await w.ask("GET", f"/api/v1/runs?{query}", name=f"by {query}")
    page = await w.good("GET", "/api/v1/runs?count=2")
    second = await w.good("GET", f"/api/v1/runs?count=2&cursor={page['cursor']}", name="the next page")
    await w.ask("GET", f"/api/v1/runs?count=100&cursor={second['cursor']}", name="the last page")
    await w.ask("GET", f"/api/v1/runs?job=mail&cursor={page['cursor']}", name="a cursor of another list")


async def changing() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {})
        first, second, third, later = [
            (await w.good("POST", "/api/v1/runs", {"job": "mail", **more}))["id"] for more in ({}, {}, {}, {"delay": 60_000})
        ]

        async def change(name: str, what: str, body: Any = None, run: str = second, method: str = "POST", **how: Any) -> Any:
            return (await w.ask(method, f"/api/v1/runs/{run}{what}", body, name=name, **how)).json

        async def patch(name: str, body: Any, run: str = second) -> None:
            await change(name, "", body, run, "PATCH")

        await patch("nothing is said", {})
        await patch("a payload", {"payload": {"a": 1}})
        await patch("a payload that is null", {"payload": None})
        await patch("everything", {"payload": {"b": 2}, "priority": 7, "max_attempts": 9, "queue": "post"})
        await patch("another time", {"scheduled_for": "2026-02-01T00:00:00Z"}, later)
        await patch("an instant that is none", {"scheduled_for": "soon"}, later)
        await patch("a priority out of range", {"priority": 10**6})
        await patch("a payload that is no object", {"payload": [1]})
        await patch("a queue without a name", {"queue": ""})
        for name, body in {
            "to the head": {"to": "top"},
            "to the end": {"to": "bottom"},
            "to a place": {"place": 1},
            "before another": {"before": first},
            "behind another": {"after": first},
            "nowhere": {},
            "two places": {"to": "top", "place": 1},
            "to a place below nothing": {"place": -1},
            "before one that there is not": {"before": NONE},
            "before one of another queue": {"before": second},
            "before itself": {"before": third},
        }.items():
            await change(name, "/move", body, third)
        await change("one that is due later", "/move", {"to": "top"}, later)
        await change("without a body", "/cancel", run=third)
        await change("again", "/cancel", run=third)
        await change("with an empty body", "/cancel", b"", run=later)
        await change("null", "/cancel", b"null", first)
        await change("only in other states", "/cancel", {"only": ["claimed", "running"]}, second)
        await change("only in no states", "/cancel", {"only": []}, second)
        await change("with a reason", "/cancel", {"reason": "no"}, second)
        await change("with a reason that is null", "/cancel", {"reason": None}, await _new(w))
        await change("an empty object, by one who may submit", "/cancel", {}, await _new(w), actor="submit")
        await change("a reason that is too long", "/cancel", {"reason": "x" * 5_000}, await _new(w))
        await change("one that has ended", "", {"priority": 1}, third, "PATCH")
        await change("one that has ended", "/move", {"to": "top"}, third)
        await _again(w, change, third)
        forever = {"job": "mail", "key": {"name": "ever", "ttl": "forever"}}
        keyed = (await w.good("POST", "/api/v1/runs", forever))["id"]
        await w.good("POST", f"/api/v1/runs/{keyed}/cancel")
        await w.pruned()
        for what in ("", "/attempts", "/history", "/logs", "/steps", "/why", "/results", "/events"):
            await change("one that was removed, whose key is known", what, run=keyed, method="GET", until="\n\n")
        await change("one that was removed, whose key is known", "", {"priority": 1}, keyed, "PATCH")
        await change("one that was removed, whose key is known", "/move", {"to": "top"}, keyed)
        await change("one that was removed, whose key is known", "/cancel", run=keyed)
        await change("one that was removed, whose key is known", "/rerun", run=keyed)
        await w.ask("POST", "/api/v1/runs", forever, name="under the key of one that was removed")
        for what in ("", "/attempts", "/history", "/logs", "/steps", "/why", "/results", "/events"):
            await change("one that was removed", what, run=third, method="GET", until="\n\n")
        await change("one that was removed", "", {"priority": 1}, third, "PATCH")
        await change("one that was removed", "/move", {"to": "top"}, third)
        await change("one that was removed", "/cancel", run=third)
        await change("one that was removed", "/rerun", run=third)
        return w.recorded


async def _new(w: World) -> str:
    run: str = (await w.good("POST", "/api/v1/runs", {"job": "mail"}))["id"]
    return run


async def _again(w: World, change: Any, ended: str) -> None:
    await change("one that has ended", "/rerun", run=ended)
    await change("by one who may submit", "/rerun", run=ended, actor="submit")
    await change("under an Idempotency-Key", "/rerun", run=ended, headers={"idempotency-key": "r1"})
    await change("again under an Idempotency-Key", "/rerun", run=ended, headers={"idempotency-key": "r1"})
    await change("of one who may submit", "/rerun", run=ended, headers={"idempotency-key": "r2"}, actor="submit")
    await change("of one who may submit, again", "/rerun", run=ended, headers={"idempotency-key": "r2"}, actor="submit")
    await change("its first attempt", "/rerun?attempt=1", run=ended)
    await change("an attempt that there is not", "/rerun?attempt=2", run=ended)
    await change("an attempt that is none", "/rerun?attempt=x", run=ended)
    await change("an Idempotency-Key that is too long", "/rerun", run=ended, headers={"idempotency-key": "x" * 201})
    waiting = (await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "own"}}))["id"]
    await change("the Idempotency-Key of another run", "/rerun", run=await _cancelled(w), headers={"idempotency-key": "r1"})
    await change("one that waits", "/rerun", run=waiting)
    await w.claim(queues=["own"])
    await change("one that is claimed", "/rerun", run=waiting)
    await change("one that is claimed", "", {"priority": 1}, waiting, "PATCH")
    await change("one that is claimed", "/move", {"to": "top"}, waiting)
    await change("one that is claimed", "/cancel", {"reason": "stop"}, waiting)
    await change("one that is claimed, again", "/cancel", {"reason": "stop it"}, waiting)


async def _cancelled(w: World) -> str:
    run = await _new(w)
    await w.good("POST", f"/api/v1/runs/{run}/cancel")
    return run


async def groups() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {})
        await w.ask("GET", "/api/v1/groups", name="none yet")

        async def create(title: str, /, actor: str = "submit", key: str | None = None, **body: Any) -> Any:
            headers = {} if key is None else {"Idempotency-Key": key}
            return (await w.ask("POST", "/api/v1/groups", body, name=title, actor=actor, headers=headers)).json

        one = {"job": "mail"}
        least = await create("the least", members=[one])
        await create("a chain", members=[one, one | {"payload": {"n": 2}}], kind="sequential", name="two", on_failure="continue")
        last = {"job": "mail", "payload": {"last": True}, "delay": 1_000}
        graph = [one | {"name": "a"}, one | {"name": "b", "after": ["a"], "options": {"priority": 2}}]
        full = await create("a graph with a callback", members=graph, kind="graph", callback=last)
        await create("under an Idempotency-Key", key="g1", members=[one])
        await create("again under an Idempotency-Key", key="g1", members=[one])
        await create("again with other content", key="g1", members=[one, one])
        await create("an Idempotency-Key that is too long", key="x" * 201, members=[one])
        await create("a job that nobody has defined", members=[{"job": "later"}], undefined="wait")
        await create("no members", members=[])
        await create("an unknown job", members=[{"job": "none"}])
        await create("an unknown kind", members=[one], kind="ring")
        await create("a circle", members=[one | {"name": "a", "after": ["b"]}, one | {"name": "b", "after": ["a"]}], kind="graph")
        await create("two of one name", members=[one | {"name": "a"}, one | {"name": "a"}], kind="graph")
        await create("after one that there is not", members=[one | {"name": "a", "after": ["z"]}], kind="graph")
        await create("after in what is no graph", members=[one, one | {"after": ["a"]}])
        await create("a key of a member", members=[one | {"key": {"name": "x"}}])
        await create("a wrong type in a member", members=[{"job": 5}])
        for query in ("", "?count=1", "?status=running", "?status=cancelled", "?status=completed"):
            await w.ask("GET", f"/api/v1/groups{query}", name=f"listed{query}")
        page = await w.good("GET", "/api/v1/groups?count=1")
        await w.ask("GET", f"/api/v1/groups?count=100&cursor={page['cursor']}", name="the next page")
        await w.ask("GET", f"/api/v1/groups/{full['id']}", name="one that goes on")
        await w.ask("GET", f"/api/v1/groups/{full['id']}/runs", name="its runs")
        runs = await w.good("GET", f"/api/v1/groups/{full['id']}/runs?count=1", name="one of its runs")
        await w.ask("GET", f"/api/v1/groups/{full['id']}/runs?cursor={runs['cursor']}", name="the next of its runs")
        await w.ask("POST", f"/api/v1/groups/{least['id']}/rerun", name="one that goes on")
        await w.report(await w.claim(), "succeed", output="1")
        await w.ask("GET", f"/api/v1/groups/{least['id']}", name="one that has succeeded")
        await w.ask("POST", f"/api/v1/groups/{least['id']}/cancel", name="one that has succeeded")
        await w.ask("POST", f"/api/v1/groups/{full['id']}/cancel", name="without a body")
        await w.ask("POST", f"/api/v1/groups/{full['id']}/cancel", {"reason": "enough"}, name="again, with a reason")
        await w.ask("POST", f"/api/v1/groups/{full['id']}/cancel", b"null", name="null")
        await w.sweep()
        await w.ask("GET", f"/api/v1/groups/{full['id']}", name="one that was cancelled")
        await w.ask("POST", f"/api/v1/groups/{least['id']}/rerun", name="one that has ended", actor="submit")
        for name in ("under an Idempotency-Key", "again under an Idempotency-Key"):
            await w.ask("POST", f"/api/v1/groups/{least['id']}/rerun", name=name, headers={"idempotency-key": "g2"})
        await w.ask("POST", f"/api/v1/groups/{full['id']}/rerun", name="the Idempotency-Key of another", headers={"idempotency-key": "g2"})
        await _results(w)
        return w.recorded


async def _results(w: World) -> None:
    one = {"job": "mail", "options": {"queue": "own"}}
    made = await w.good("POST", "/api/v1/groups", {"members": [one, one], "callback": one})
    for number in range(2):
        await w.report(await w.claim(queues=["own"]), "succeed", output=f'{{"n": {number}}}')
    await w.sweep()
    callback = await w.claim(queues=["own"])
    assert callback["id"] == made["callback"]
    path = f"/api/v1/runs/{made['callback']}/results"
    await w.ask("GET", path, name="of a callback")
    page = await w.good("GET", f"{path}?count=1", name="of a callback, one of them", actor="work for w1")
    await w.ask("GET", f"{path}?count=1&cursor={page['cursor']}", name="of a callback, the next")


MORE: dict[str, tuple[Scene, list[str]]] = {
    "jobs": (jobs, ["GET_api_v1_jobs", *(f"{method}_api_v1_jobs_name" for method in ("GET", "PUT", "DELETE"))]),
    "creation": (creation, ["POST_api_v1_runs", "POST_api_v1_runs_batch"]),
    "reading": (
        reading,
        [
            "GET_api_v1_runs",
            "GET_api_v1_runs_run_id",
            *(f"GET_api_v1_runs_run_id_{what}" for what in ("attempts", "history", "logs", "steps", "why", "results")),
        ],
    ),
    "changing": (
        changing,
        [
            "POST_api_v1_runs",
            "PATCH_api_v1_runs_run_id",
            *(f"POST_api_v1_runs_run_id_{what}" for what in ("cancel", "rerun", "move")),
            *(f"GET_api_v1_runs_run_id{what}" for what in ("", "_attempts", "_history", "_logs", "_steps", "_why", "_results", "_events")),
        ],
    ),
    "groups": (
        groups,
        [
            "GET_api_v1_groups",
            "POST_api_v1_groups",
            "GET_api_v1_groups_group_id",
            "GET_api_v1_groups_group_id_runs",
            "POST_api_v1_groups_group_id_cancel",
            "POST_api_v1_groups_group_id_rerun",
            "GET_api_v1_runs_run_id_results",
        ],
    ),
}
