"""What people ask for and set: access, pauses, queues, resources, retention, lanes, schedules, webhooks, counts."""

from __future__ import annotations

from typing import Any

from tests.hub.recording import Exchange, Scene, World

NONE = "00000000-0000-7000-8000-000000000000"


async def access() -> dict[str, list[Exchange]]:
    async with World() as w:
        ask = w.ask
        await ask("GET", "/api/v1/tokens", name="all")
        page = await w.good("GET", "/api/v1/tokens?count=2", name="a page")
        await ask("GET", f"/api/v1/tokens?count=100&after={page['cursor']}", name="the next page")
        await ask("GET", "/api/v1/tokens?after=a%20b", name="after what is no id")

        async def create(title: str, /, **body: Any) -> Any:
            return (await ask("POST", "/api/v1/tokens", body, name=title)).json

        made = await create("the least", name="ann", scopes=["read"])
        full = await create("everything is said", name="bob", scopes=["work", "read"], worker="w9", principal="fleet", expires_in=60_000)
        await create("no scopes", name="ann", scopes=[])
        await create("an unknown scope", name="ann", scopes=["everything"])
        await create("without a name", name="", scopes=["read"])
        await create("for less than no time", name="ann", scopes=["read"], expires_in=0)
        await create("a worker without a name", name="ann", scopes=["work"], worker="")
        token = f"/api/v1/tokens/{made['token']['id']}"
        await ask("GET", token, name="one")
        await ask("GET", f"/api/v1/tokens/{full['token']['id']}", name="one with everything")
        for actor in ("read", "submit", "work", "admin", "work for w1"):
            await ask("GET", "/api/v1/me", name=f"who I am, {actor}", actor=actor)
        await ask("POST", f"{token}/rotate", name="without a body")
        await ask("POST", f"{token}/rotate", b"", name="an empty body")
        await ask("POST", f"{token}/rotate", b"null", name="null")
        await ask("POST", f"{token}/rotate", {}, name="an empty object")
        await ask("POST", f"/api/v1/tokens/{full['token']['id']}/rotate", {"overlap": 1_000}, name="with an overlap")
        await ask("POST", f"{token}/rotate", {"overlap": -1}, name="for less than no time")
        await ask("DELETE", token, name="one")
        await ask("DELETE", token, name="again")
        await ask("GET", token, name="one that was ended")
        await ask("POST", f"{token}/rotate", name="one that was ended")
        await ask("POST", "/api/v1/tickets", name="without a body", actor="read")
        await ask("POST", "/api/v1/tickets", {"nonsense": 1}, name="a body that nobody reads", actor="read")
        await _sessions(w)
        await ask("GET", "/api/v1/audit", name="all")
        page = await w.good("GET", "/api/v1/audit?count=3", name="a page")
        await ask("GET", f"/api/v1/audit?count=100&cursor={page['cursor']}", name="the next page")
        await ask("GET", f"/api/v1/audit?cursor={'9' * 19}", name="a cursor that is too large")
        return w.recorded


async def _sessions(w: World) -> None:
    async def sign_in(title: str, body: Any, **how: Any) -> Any:
        return (await w.ask("POST", "/api/v1/session", body, name=title, actor=None, **how)).json

    invitation = await w.engine.invite("eve", ["read", "submit"])
    session = await sign_in("with a good ticket", {"ticket": invitation})
    await sign_in("with a ticket that was used", {"ticket": invitation})
    await sign_in("with a ticket that is none", {"ticket": "wli_no"})
    await sign_in("too large for anybody", {"ticket": "x" * 9_000})
    elsewhere: dict[str, Any] = {"client": ("10.0.0.8", 1)}
    for _ in range(30):
        await w.ask("POST", "/api/v1/session", {"ticket": "no"}, actor=None, **elsewhere)
    await sign_in("after too many wrong ones", {"ticket": "no"}, **elsewhere)
    await sign_in("after too many wrong ones, another good one", {"ticket": await w.engine.invite("eve", ["read"])}, **elsewhere)
    await w.ask("GET", "/api/v1/me", name="after too many, a wrong token", actor=None, headers={"authorization": "Bearer no"}, **elsewhere)
    await w.ask("GET", "/api/v1/me", name="after too many, a good token", actor="read", **elsewhere)
    w.secrets["eve"] = session["secret"]
    await w.ask("GET", "/api/v1/me", name="a session", actor="eve")
    await w.ask("POST", "/api/v1/tickets", name="of a session", actor="eve")
    await w.ask("POST", f"/api/v1/tokens/{session['token']['id']}/rotate", name="a session")
    await w.ask("DELETE", "/api/v1/session", name="a session", actor="eve")
    await w.ask("DELETE", "/api/v1/session", name="a session that was ended", actor="eve")


async def controls() -> dict[str, list[Exchange]]:
    async with World() as w:
        ask = w.ask
        await w.good("PUT", "/api/v1/jobs/mail", {})
        for path in ("pauses", "queues", "resources", "retention", "lanes"):
            await ask("GET", f"/api/v1/{path}", name="nothing is set")
        for title, body in {
            "all": {"scope": "system", "reason": "tidying up"},
            "a queue": {"scope": "queue", "name": "post"},
            "a job": {"scope": "job", "name": "mail"},
            "the same again": {"scope": "queue", "name": "post", "reason": "other"},
            "all, by a name": {"scope": "system", "name": "x"},
            "a queue without a name": {"scope": "queue"},
            "an unknown scope": {"scope": "worker", "name": "x"},
        }.items():
            await ask("POST", "/api/v1/pause", body, name=title)
        await ask("GET", "/api/v1/pauses", name="three", actor="read")
        for title, body in {
            "all": {"scope": "system"},
            "a queue": {"scope": "queue", "name": "post"},
            "one that is not paused": {"scope": "job", "name": "other"},
            "all, by a name": {"scope": "system", "name": "x"},
            "a queue without a name": {"scope": "queue"},
        }.items():
            await ask("POST", "/api/v1/resume", body, name=title)
        await ask("PUT", "/api/v1/queues/post", {"aging": 60_000}, name="a new one")
        await ask("PUT", "/api/v1/queues/a%2Fb", {"aging": 1_000}, name="a slash in its name")
        await ask("PUT", "/api/v1/queues/post", {"aging": 0}, name="no time")
        await ask("PUT", f"/api/v1/queues/{'x' * 129}", {"aging": 1_000}, name="a name that is too long")
        await ask("GET", "/api/v1/queues", name="two")
        await ask("PUT", "/api/v1/queues/post", {"aging": None}, name="taken back")
        await ask("GET", "/api/v1/queues", name="one")
        await _resources(w)
        for title, said in {
            "one of them": {"keep_succeeded": 3_600_000},
            "both": {"keep_succeeded": "forever", "keep_others": 86_400_000},
            "neither": {},
            "both are null": {"keep_succeeded": None, "keep_others": None},
            "another word": {"keep_others": "always"},
            "no time": {"keep_others": -1},
        }.items():
            await ask("PUT", "/api/v1/retention", said, name=title)
        await ask("GET", "/api/v1/retention", name="it is set", actor="read")
        await _lanes(w)
        return w.recorded


async def _resources(w: World) -> None:
    ask = w.ask

    async def put(title: str, body: Any, name: str = "gpu", actor: str = "admin") -> None:
        await ask("PUT", f"/api/v1/resources/{name}", body, name=title, actor=actor)

    await put("the least", {"capacity": 2})
    await put("everything is said", {"capacity": None, "rates": [{"count": 10, "period": 1_000, "burst": 5}], "max_wait": 5_000}, "api")
    await put("a new one, by a worker", {"capacity": 4, "new": True}, "disk", "work")
    await put("a new one, again", {"capacity": 5, "new": True}, "disk", "work")
    await put("one that is there, by a worker", {"capacity": 5}, "disk", "work")
    await put("a slash in its name", {"capacity": 1}, "a%2Fb")
    await put("less than none", {"capacity": -1})
    await put("a rate of nothing", {"capacity": 1, "rates": [{"count": 0, "period": 1_000}]})
    await put("a rate without a period", {"capacity": 1, "rates": [{"count": 1}]})
    await put("a name that is too long", {"capacity": 1}, "x" * 129)
    await w.good("PUT", "/api/v1/jobs/render", {"options": {"uses": [{"resource": "gpu", "per": "model"}], "queue": "gpu"}})
    await w.good("POST", "/api/v1/runs", {"job": "render", "payload": {"model": "m1"}})
    await w.claim(queues=["gpu"])
    await ask("GET", "/api/v1/resources", name="all", actor="read")
    await ask("GET", "/api/v1/resources/gpu", name="one that is used")
    await ask("GET", "/api/v1/resources/a%2Fb", name="a slash in its name")
    await ask("GET", "/api/v1/resources/gpu/occupants", name="of a run")
    await ask("GET", "/api/v1/resources/gpu/occupants?key=m1", name="of a run, by its key")
    await ask("GET", "/api/v1/resources/gpu/occupants?key=other&count=1", name="of another key")
    await ask("DELETE", "/api/v1/resources/gpu", name="one that a job uses")
    await w.good("POST", "/api/v1/slots", {"resource": "disk"})
    await ask("DELETE", "/api/v1/resources/disk", name="one that is occupied")
    await ask("DELETE", "/api/v1/resources/a%2Fb", name="one that nobody uses")
    await ask("DELETE", "/api/v1/resources/a%2Fb", name="one that was removed")


async def _lanes(w: World) -> None:
    await w.good("PUT", "/api/v1/jobs/own", {"options": {"requires": {"tags": ["gpu"], "cores": 2}}})
    await w.good("POST", "/api/v1/runs", {"job": "own"})
    ended = (await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "brief"}}, actor="submit"))["id"]
    await w.ask("GET", "/api/v1/lanes", name="all", actor="read")
    page = await w.good("GET", "/api/v1/lanes?count=1", name="a page")
    await w.ask("GET", f"/api/v1/lanes?count=1&after={page['cursor']}", name="the next page")
    brief = next(lane["id"] for lane in (await w.good("GET", "/api/v1/lanes"))["lanes"] if lane["queue"] == "brief")
    await w.ask("DELETE", f"/api/v1/lanes/{brief}", name="one that is used")
    await w.good("POST", f"/api/v1/runs/{ended}/cancel")
    await w.ask("DELETE", f"/api/v1/lanes/{brief}", name="one that nobody uses")
    await w.ask("DELETE", f"/api/v1/lanes/{brief}", name="one that was removed")
    for number in ("-1", "0", "1.0", "1e2", "%201", "+1", "1_0", "9223372036854775808", "٣"):
        await w.ask("DELETE", f"/api/v1/lanes/{number}", name=f"number {number}")


async def schedules() -> dict[str, list[Exchange]]:
    async with World() as w:
        ask = w.ask
        await w.good("PUT", "/api/v1/jobs/mail", {})
        await ask("GET", "/api/v1/schedules", name="none yet")

        async def put(title: str, key: str, actor: str = "admin", **body: Any) -> None:
            await ask("PUT", f"/api/v1/schedules/{key}", {"job": "mail"} | body, name=title, actor=actor)

        await put("by cron", "nightly", cron="0 3 * * *", zone="Europe/Berlin")
        full: dict[str, Any] = {
            "payload": {"a": 1},
            "options": {"priority": 2},
            "missed": "all",
            "max_missed": 5,
            "max_age": 60_000,
            "overlap": "skip",
            "jitter": 1_000,
        }
        await put("everything is said", "often", every="15m", enabled=False, **full)
        await put("every so many milliseconds", "ms", every=60_000)
        await put("once", "once", at="2026-06-01T00:00:00Z")
        await put("a slash in its key", "a%2Fb", cron="0 0 1 1 *")
        await put("by code", "coded", "work", cron="0 4 * * *", by_code=True)
        await put("by code, the same again", "coded", "work", cron="0 4 * * *", by_code=True)
        await put("by code, what a person made", "nightly", "work", cron="0 5 * * *", by_code=True)
        await put("again: updated", "nightly", cron="0 4 * * *", zone="Europe/Berlin")
        await put("a new one that is there", "nightly", cron="0 4 * * *", new=True)
        await put("no rule", "wrong")
        await put("two rules", "wrong", cron="0 3 * * *", every="1h")
        await put("a cron that is none", "wrong", cron="61 * * * *")
        await put("a duration that is none", "wrong", every="often")
        await put("an instant that is none", "wrong", at="soon")
        await put("an unknown zone", "wrong", cron="0 3 * * *", zone="Mars/Base")
        await put("an unknown job", "wrong", cron="0 3 * * *", job="none")
        await put("an unknown policy", "wrong", cron="0 3 * * *", missed="some")
        await put("an unknown option", "wrong", cron="0 3 * * *", options={"nonsense": 1})
        await ask("GET", "/api/v1/schedules", name="all", actor="read")
        page = await w.good("GET", "/api/v1/schedules?count=1", name="a page")
        await ask("GET", f"/api/v1/schedules?count=1&after={page['cursor'].replace('/', '%2F')}", name="the next page")
        await ask("GET", "/api/v1/schedules/a%2Fb", name="a slash in its key")
        await ask("GET", "/api/v1/schedules/often", name="one that is disabled")
        for title, body in {
            "one member": {"enabled": True},
            "another rule": {"kind": "cron", "expr": "0 5 * * *"},
            "no age": {"max_age": None},
            "nothing": {},
            "an unknown job": {"job": "none"},
            "a cron that is none": {"kind": "cron", "expr": "x"},
            "an unknown kind": {"kind": "moon"},
        }.items():
            await ask("PATCH", "/api/v1/schedules/often", body, name=title)
        await ask("PATCH", "/api/v1/schedules/coded", {"jitter": 5}, name="one by code")
        await _fires(w)
        await ask("DELETE", "/api/v1/schedules/a%2Fb", name="one")
        await ask("DELETE", "/api/v1/schedules/a%2Fb", name="one that was removed")
        return w.recorded


async def _fires(w: World) -> None:
    ask = w.ask
    trigger = "/api/v1/schedules/nightly/trigger"
    await ask("POST", trigger, name="now", actor="submit")
    await ask("POST", trigger, name="under an Idempotency-Key", headers={"idempotency-key": "t1"})
    await ask("POST", trigger, name="again under an Idempotency-Key", headers={"idempotency-key": "t1"})
    await ask("POST", "/api/v1/schedules/ms/trigger", name="the Idempotency-Key of another", headers={"idempotency-key": "t1"})
    await ask("POST", trigger, name="an Idempotency-Key that is too long", headers={"idempotency-key": "x" * 201})
    await ask("POST", "/api/v1/schedules/a%2Fb/trigger", name="a slash in its key")
    preview = "/api/v1/schedules/nightly/preview"
    await ask("GET", f"{preview}?count=2", name="two instants")
    await ask("GET", f"{preview}?count=3&start=2026-03-28T12:00:00%2B01:00", name="where the clock changes")
    await ask("GET", f"{preview}?start=soon", name="from what is no instant")
    await ask("GET", f"{preview}?start=2026-03-28", name="from a day")
    await ask("GET", f"{preview}?start=2026-03-28T12:00:00+01:00", name="a plus that means a blank")
    await ask("GET", "/api/v1/schedules/once/preview", name="one instant")
    await ask("GET", "/api/v1/schedules/nightly/skips", name="none")
    w.clock.advance(3 * 24 * 3_600_000)
    await w.engine.fire_all()
    await ask("GET", "/api/v1/schedules/nightly", name="one that has fired")
    await ask("GET", "/api/v1/schedules/nightly/skips", name="some were missed")
    await ask("GET", "/api/v1/schedules/often/skips?count=1", name="one of them")


async def webhooks() -> dict[str, list[Exchange]]:
    async with World() as w:
        ask = w.ask
        await w.good("PUT", "/api/v1/jobs/mail", {})
        await ask("GET", "/api/v1/webhooks", name="none yet")

        async def add(title: str, /, **body: Any) -> Any:
            return (await ask("POST", "/api/v1/webhooks", {"url": "https://example.com/hook"} | body, name=title)).json

        made = await add("the least")
        secret = "whsec_" + "A" * 32
        full = await add(
            "everything is said",
            url="https://example.com:8443/a?b=c",
            name="told",
            jobs=["mail"],
            queues=["post"],
            states=["failed"],
            delays=[1_000],
            secret=secret,
            enabled=False,
        )
        await add("without encryption", url="http://example.com/hook")
        await add("inside the network", url="https://127.0.0.1/hook")
        await add("no address", url="nonsense")
        await add("a port that is not used", url="https://example.com:22/hook")
        await add("told of nothing", states=[])
        await add("an unknown state", states=["asleep"])
        await add("delays below nothing", delays=[-1])
        await add("too many delays", delays=[1] * 100)
        await add("a secret that is none", secret="short")
        await add("without a name", name="")
        await add("a job without a name", jobs=[""])
        one, other = (f"/api/v1/webhooks/{hook['webhook']['id']}" for hook in (made, full))
        await ask("GET", "/api/v1/webhooks", name="two")
        await ask("GET", other, name="one with everything")
        for title, body in {
            "a name": {"name": "new"},
            "everything": {
                "url": "https://example.org/x",
                "jobs": None,
                "queues": ["a"],
                "states": ["succeeded"],
                "delays": [5],
                "enabled": True,
            },
            "nothing": {},
            "inside the network": {"url": "https://10.0.0.1/"},
            "told of nothing": {"states": []},
            "a name that is empty": {"name": ""},
        }.items():
            await ask("PATCH", other, body, name=title)
        await ask("POST", f"{one}/rotate", name="without a body")
        await ask("POST", f"{one}/rotate", b"", name="an empty body")
        await ask("POST", f"{one}/rotate", b"null", name="null")
        await ask("POST", f"{other}/rotate", {"overlap": 0, "secret": secret}, name="with a secret")
        await ask("POST", f"{other}/rotate", {"overlap": -1}, name="for less than no time")
        await ask("POST", f"{other}/rotate", {"secret": "short"}, name="a secret that is none")
        await ask("GET", f"{one}/deliveries", name="none yet")
        for _ in range(3):
            await w.good("POST", f"/api/v1/runs/{(await w.good('POST', '/api/v1/runs', {'job': 'mail'}))['id']}/cancel")
        await w.make_deliveries()
        await _deliveries(w, one)
        await ask("DELETE", other, name="one")
        await ask("DELETE", other, name="one that was removed")
        await ask("GET", other, name="one that was removed")
        return w.recorded


async def _deliveries(w: World, hook: str) -> None:
    ask = w.ask
    first, second = await w.engine.claim_deliveries(2, 30_000)
    await ask("POST", f"/api/v1/deliveries/{second.delivery.id}/resend", name="one that is being sent")
    await w.engine.delivered(first.delivery.id, first.delivery.token or "", 204)
    await w.engine.not_delivered(second.delivery.id, second.delivery.token or "", "It answered 500.", answer=500)
    await ask("GET", f"{hook}/deliveries", name="three")
    for status in ("pending", "delivered", "failed"):
        await ask("GET", f"{hook}/deliveries?status={status}", name=f"by status {status}")
    page = await w.good("GET", f"{hook}/deliveries?count=1", name="a page")
    await ask("GET", f"{hook}/deliveries?count=5&cursor={page['cursor']}", name="the next page")
    await ask("GET", f"/api/v1/deliveries/{first.delivery.id}", name="one that was delivered")
    await ask("GET", f"/api/v1/deliveries/{second.delivery.id}", name="one that is tried again")
    await ask("POST", f"/api/v1/deliveries/{first.delivery.id}/resend", name="one that was delivered")
    await ask("POST", f"/api/v1/deliveries/{second.delivery.id}/resend", name="one that is tried again")
    await w.good("PATCH", hook, {"enabled": False})
    await ask("POST", f"/api/v1/deliveries/{second.delivery.id}/resend", name="one of an endpoint that is disabled")


async def counts() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {"options": {"backoff": [0]}})
        await w.good("POST", "/api/v1/worker/register", {"worker": {"name": "w1", "slots": 4}})
        for kind, more in (("succeed", {"output": "1"}), ("fail", {"error": {"code": "boom", "message": "it broke"}})):
            await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"max_attempts": 1}})
            w.clock.advance(2_000)
            run = await w.claim()
            w.clock.advance(3_000)
            await w.report(run, kind, **more)
        await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "post"}})
        await w.engine.roll_up()
        await w.ask("GET", "/api/v1/stats?minutes=2", name="two minutes", actor="read")
        await w.ask("GET", "/metrics", name="as text", actor="read")
        text = {"accept": "application/openmetrics-text; version=1.0.0"}
        await w.ask("GET", "/metrics", name="as OpenMetrics", headers=text)
        await w.ask("GET", "/metrics", name="as a browser asks", headers={"accept": "text/html,*/*;q=0.8"})
        requests = [line for line in (await w.ask("GET", "/metrics")).body.decode().splitlines() if "hub_requests_total{" in line]
        w.recorded["GET_metrics"].append(Exchange("what was asked", {"ask": "GET /metrics"}, {"status": 200, "body": sorted(requests)}))
        await w.ask("GET", "/api/v1/doctor", name="nearly all is well")
        return w.recorded


TOKENS = [
    "GET_api_v1_tokens",
    "POST_api_v1_tokens",
    *(f"{method}_api_v1_tokens_token_id" for method in ("GET", "DELETE")),
    "POST_api_v1_tokens_token_id_rotate",
]
SESSION = ["GET_api_v1_me", "POST_api_v1_tickets", "POST_api_v1_session", "DELETE_api_v1_session", "GET_api_v1_audit"]
SET = ["POST_api_v1_pause", "POST_api_v1_resume", "PUT_api_v1_queues_name", "PUT_api_v1_retention", "DELETE_api_v1_lanes_lane"]
LISTS = [f"GET_api_v1_{name}" for name in ("pauses", "queues", "resources", "retention", "lanes")]
RESOURCE = [*(f"{method}_api_v1_resources_name" for method in ("GET", "PUT", "DELETE")), "GET_api_v1_resources_name_occupants"]
SCHEDULE = ["GET_api_v1_schedules", *(f"{method}_api_v1_schedules_key" for method in ("GET", "PUT", "PATCH", "DELETE"))]
FIRES = ["POST_api_v1_schedules_key_trigger", "GET_api_v1_schedules_key_preview", "GET_api_v1_schedules_key_skips"]
HOOKS = ["GET_api_v1_webhooks", "POST_api_v1_webhooks", *(f"{method}_api_v1_webhooks_webhook_id" for method in ("GET", "PATCH", "DELETE"))]
TOLD = [
    "POST_api_v1_webhooks_webhook_id_rotate",
    "GET_api_v1_webhooks_webhook_id_deliveries",
    "GET_api_v1_deliveries_delivery_id",
    "POST_api_v1_deliveries_delivery_id_resend",
]
MORE: dict[str, tuple[Scene, list[str]]] = {
    "access": (access, [*TOKENS, *SESSION]),
    "controls": (controls, [*SET, *LISTS, *RESOURCE]),
    "schedules": (schedules, [*SCHEDULE, *FIRES]),
    "webhooks": (webhooks, [*HOOKS, *TOLD]),
    "counts": (counts, ["GET_api_v1_stats", "GET_metrics", "GET_api_v1_doctor"]),
}
