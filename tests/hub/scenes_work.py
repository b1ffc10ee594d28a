"""The worker's port, workers and slots."""

from __future__ import annotations

from typing import Any

from tests.hub.recording import Exchange, Scene, World

NONE = "00000000-0000-7000-8000-000000000000"
W1 = {"name": "w1", "slots": 100}
MINE = "tag00001-of-a-process-of-w1"


async def work() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/jobs/mail", {"options": {"max_attempts": 2, "backoff": [0]}})
        await w.token("work for w2", "work", worker="w2")

        async def tell(verb: str, name: str, body: Any, actor: str = "work", **how: Any) -> Any:
            return (await w.ask("POST", f"/api/v1/worker/{verb}", body, name=name, actor=actor, **how)).json

        await _workers(w, tell)
        await _claims(w, tell)
        await _held(w, tell)
        await _reports(w, tell)
        await tell("wait", "the first time", {"topics": ["nothing"], "timeout": 1})
        await tell("wait", "again", {"topics": ["nothing"], "timeout": 1})
        await tell("wait", "not at all", {"topics": ["nothing"], "timeout": 0})
        await tell("wait", "on no topic", {"topics": [], "timeout": 1})
        await tell("wait", "on too many topics", {"topics": [f"t{n}" for n in range(101)], "timeout": 1})
        await tell("wait", "on a topic without a name", {"topics": [""], "timeout": 1})
        await tell("wait", "for less than no time", {"topics": ["sweep"], "timeout": -1})
        await _alive(w)
        return w.recorded


async def _workers(w: World, tell: Any) -> None:
    await tell("register", "the least", {"worker": {"name": "w1"}})
    full = {"name": "w1", "queues": ["post"], "jobs": ["mail"], "tags": ["gpu"], "cores": 4, "memory": 1_000, "slots": 3}
    about = {"host": "h", "pid": 1, "incarnation": 5, "nested": {"a": [1]}}
    await tell("register", "everything is said", {"worker": full, "about": about, "schemas": {"mail": "f1"}})
    await tell("register", "with a token for that worker", {"worker": W1}, "work for w1")
    await tell("register", "with a token for that worker, a part of its name", {"worker": {"name": "w1.a"}}, "work for w1")
    await tell("register", "with a token for another worker", {"worker": W1}, "work for w2")
    await tell("register", "without a name", {"worker": {"name": ""}})
    await tell("register", "with no slots", {"worker": {"name": "w1", "slots": 0}})
    await tell("register", "with what nobody knows of workers", {"worker": {"name": "w1", "nonsense": 1}})
    await tell("metrics", "numbers", {"worker": "w1", "metrics": {"load": 1.5, "free": 3}})
    await tell("metrics", "with a token for another worker", {"worker": "w1", "metrics": {}}, "work for w2")
    await tell("metrics", "of a worker that there is not", {"worker": "none", "metrics": {"load": 1}})
    await tell("metrics", "a name that cannot be", {"worker": "w1", "metrics": {"": 1}})
    await tell("metrics", "a text for a number", {"worker": "w1", "metrics": {"load": "much"}})
    await tell("metrics", "too many", {"worker": "w1", "metrics": {f"m{n}": n for n in range(500)}})
    life = {"tag": "tag00001", "process": "boot/1/2"}
    await tell("lives", "the first", {"worker": "w1", "life": life}, "work for w1")
    await tell("lives", "the second", {"worker": "w1", "life": life | {"tag": "tag00002"}}, "work for w1")
    await tell("lives", "with a token for no worker in particular", {"worker": "w1", "life": life | {"tag": "tag00003"}})
    await tell("lives", "by one who may do all", {"worker": "w1", "life": life | {"tag": "tag00004"}}, "admin")
    await tell("lives", "with a token for another worker", {"worker": "w1", "life": life}, "work for w2")
    await tell("lives", "a tag that cannot be", {"worker": "w1", "life": life | {"tag": "a b"}}, "work for w1")
    await tell("lapse", "one that holds nothing", {"worker": "w1", "tags": ["tag00002"]}, "work for w1")
    await tell("lapse", "none", {"worker": "w1", "tags": []}, "work for w1")
    await tell("lapse", "with a token for no worker in particular", {"worker": "w1", "tags": ["tag00001"]})
    await tell("lapse", "with a token for another worker", {"worker": "w1", "tags": ["tag00001"]}, "work for w2")
    await tell("lapse", "a tag that cannot be", {"worker": "w1", "tags": ["a b"]}, "work for w1")
    await tell("leave", "one of another incarnation", {"worker": "w1", "incarnation": 6})
    await tell("leave", "as it should", {"worker": "w1", "incarnation": 5}, "work for w1")
    await tell("leave", "with a token for another worker", {"worker": "w1", "incarnation": 5}, "work for w2")
    await tell("leave", "one that there is not", {"worker": "none", "incarnation": 5})


async def _claims(w: World, tell: Any) -> None:
    asked = {"worker": W1, "count": 2, "lease": 30_000}
    await tell("claim", "there is nothing", asked)
    await tell("claim", "there is nothing for a moment", asked | {"wait": 1})
    full = {"priority": 2, "max_runtime": 60_000, "timeout": 1_000, "requires": {"cores": 1}}
    for more in ({}, {"payload": {"a": [1, 2.5, None, "ä"]}, "options": full}, {}):
        await w.good("POST", "/api/v1/runs", {"job": "mail", **more})
    await w.good("POST", "/api/v1/pause", {"scope": "system"})
    await tell("claim", "all is paused", asked)
    await w.good("POST", "/api/v1/resume", {"scope": "system"})
    await tell("claim", "two", asked | {"token": MINE}, "work for w1")
    await tell("claim", "with a token for another worker", asked, "work for w2")
    await tell("claim", "none of its queues has anything", asked | {"worker": W1 | {"queues": ["other"]}})
    await tell("claim", "one of three", asked | {"count": 1}, "admin")
    await tell("claim", "none", asked | {"count": 0})
    await tell("claim", "too many", asked | {"count": 10**6})
    await tell("claim", "for less than no time", asked | {"lease": -1})
    await tell("claim", "to wait for less than no time", asked | {"wait": -1})
    await tell("claim", "a token that cannot be", asked | {"token": "a b"})
    await tell("claim", "without a name", asked | {"worker": {"name": ""}})
    await tell("claim", "a wrong type in the worker", asked | {"worker": {"name": "w1", "slots": "many"}})
    await tell("recover", "what was claimed", {"worker": W1, "token": MINE}, "work for w1")
    await tell("recover", "nothing", {"worker": W1, "token": "other"})
    await tell("recover", "with a token for another worker", {"worker": W1, "token": MINE}, "work for w2")
    await tell("recover", "a token that cannot be", {"worker": W1, "token": "a b"})
    await tell("lapse", "one that holds two", {"worker": "w1", "tags": ["tag00001"]}, "work for w1")
    for run in (await w.good("GET", "/api/v1/runs?state=queued"))["runs"]:
        await w.good("POST", f"/api/v1/runs/{run['id']}/cancel")


async def _held(w: World, tell: Any) -> None:
    await w.good("PUT", "/api/v1/jobs/held", {"options": {"queue": "held"}})
    ids = [(await w.good("POST", "/api/v1/runs", {"job": "held"}))["id"] for _ in range(3)]
    runs = [await w.claim(queues=["held"]) for _ in ids]
    holds = [[run["seq"], run["token"]] for run in runs]
    await tell("start", "none", {"held": []})
    await tell("start", "two of three", {"held": holds[:2]})
    await tell("start", "again, and one that nobody holds", {"held": [holds[0], [999, "t"]]})
    await tell("start", "under another token", {"held": [[runs[2]["seq"], "other"]]})
    await tell("start", "too short", {"held": [[1]]})
    await tell("start", "too long", {"held": [[1, "t", 2]]})
    await tell("start", "a token that cannot be", {"held": [[1, "a b"]]})
    lease = {"lease": 30_000}
    await tell("beat", "none", {"held": [], **lease})
    await tell("beat", "all", {"held": holds, **lease})
    await tell("beat", "one that nobody holds", {"held": [[999, "t"]], **lease})
    await tell("beat", "with progress", {"held": holds, **lease, "progress": {"1": '{"done": 0.5}', "7": "1"}})
    await tell("beat", "progress that is no JSON", {"held": holds, **lease, "progress": {"0": "{"}})
    await tell("beat", "progress that is too large", {"held": holds, **lease, "progress": {"0": f'"{"x" * 15_000}"'}})
    await tell("beat", "progress of what is no number", {"held": holds, **lease, "progress": {"a": "1"}})
    await tell("beat", "for less than no time", {"held": holds, "lease": -1})
    await w.good("POST", f"/api/v1/runs/{ids[1]}/cancel", {"reason": "stop"})
    await tell("beat", "one is to be cancelled", {"held": holds, **lease})
    mine = {"run": ids[0], "token": holds[0][1]}
    await tell("log", "two lines", {**mine, "lines": [[1, "one"], [2, "two"]]})
    await tell("log", "the second again", {**mine, "lines": [[2, "two"], [3, "three"]], "seq": holds[0][0]})
    await tell("log", "no lines", {**mine, "lines": []})
    await tell("log", "under another token", {**mine, "token": "other", "lines": [[1, "x"]]})
    await tell("log", "of a run that there is not", {"run": NONE, "token": "t", "lines": [[1, "x"]]})
    await tell("log", "a number below one", {**mine, "lines": [[0, "x"]]})
    await tell("log", "a line that is too long", {**mine, "lines": [[9, "x" * 10_000]]})
    await tell("log", "a line with NUL", {**mine, "lines": [[9, "\0"]]})
    await tell("log", "a line that is no pair", {**mine, "lines": [[1]]})
    await _steps(w, tell, mine)
    await tell("log", "what is no id", {"run": "a b", "token": "t", "lines": [[1, "x"]]})


async def _steps(w: World, tell: Any, mine: dict[str, Any]) -> None:
    await tell("step", "a result", {**mine, "key": "charge", "output": '{"id": 7}'})
    await tell("step", "another result of the same key", {**mine, "key": "charge", "output": "1"})
    await tell("step", "without a key", {**mine, "key": "", "output": "1"})
    await tell("step", "with a result that is no JSON", {**mine, "key": "ship", "output": "{"})
    await tell("step", "with a result that is too large", {**mine, "key": "ship", "output": f'"{"x" * 70_000}"'})
    await tell("step", "under another token", {**mine, "token": "other", "key": "ship", "output": "1"})
    await tell("step", "of a run that there is not", {**mine, "run": NONE, "key": "ship", "output": "1"})
    path = f"/api/v1/runs/{mine['run']}/steps"
    for query in ("", "?after=1", "?count=0"):
        await w.ask("GET", path + query, name=f"of a run that runs{query}")
    await w.ask("GET", path, name="by the worker that has it", actor="work for w1")
    await w.ask("GET", path, name="by another worker", actor="work for w2")


async def _reports(w: World, tell: Any) -> None:
    async def held(**options: Any) -> dict[str, Any]:
        await w.good("POST", "/api/v1/runs", {"job": "mail", "options": {"queue": "told"} | options})
        run = await w.claim(queues=["told"])
        return {"run": run["id"], "token": run["token"]}

    broke = {"code": "boom", "message": "it broke"}
    first, second = await held(), await held()
    await tell("report", "none", {"outcomes": []})
    await tell("report", "success", {"outcomes": [first | {"kind": "succeed", "output": '{"a": 1}', "seq": 1}]})
    await tell("report", "success again", {"outcomes": [first | {"kind": "succeed", "output": '{"a": 1}'}]})
    await tell("report", "another end", {"outcomes": [first | {"kind": "fail", "error": broke}]})
    await tell(
        "report", "a failure, with another attempt to come", {"outcomes": [second | {"kind": "fail", "error": broke | {"detail": "trace"}}]}
    )
    again = await w.claim(queues=["told"])
    final = {"run": again["id"], "token": again["token"], "kind": "fail", "error": broke, "retry": False}
    await tell("report", "a failure that is final", {"outcomes": [final]})
    await tell("report", "snoozed", {"outcomes": [await held() | {"kind": "snooze", "delay": 60_000}]})
    await tell("report", "skipped", {"outcomes": [await held() | {"kind": "skip", "reason": "duplicate"}]})
    await tell("report", "given back", {"outcomes": [await held() | {"kind": "requeue", "begun": False}]})
    await w.report(await w.claim(queues=["told"]), "succeed")
    await tell("report", "refused", {"outcomes": [await held() | {"kind": "refuse", "error": broke, "schema": "f1"}]})
    cancelled = await held()
    await w.good("POST", f"/api/v1/runs/{cancelled['run']}/cancel")
    await tell("report", "one that is to be cancelled", {"outcomes": [cancelled | {"kind": "succeed"}]})
    third = await held()
    mixed = [
        third | {"kind": "succeed", "output": "{"},
        third | {"kind": "fail"},
        third | {"kind": "refuse", "error": broke},
        third | {"kind": "succeed", "token": "other"},
        {"run": NONE, "token": "t", "kind": "succeed"},
        {"run": "a b", "token": "t", "kind": "succeed"},
        third | {"kind": "succeed", "output": f'"{"x" * 10}"'},
    ]
    await tell("report", "some that cannot be read", {"outcomes": mixed})
    await tell("report", "an unknown kind", {"outcomes": [third | {"kind": "vanish"}]})
    await tell("report", "an unknown member", {"outcomes": [third | {"kind": "succeed", "nonsense": 1}]})
    await tell("report", "an error without a message", {"outcomes": [third | {"kind": "fail", "error": {"code": "x"}}]})
    await tell(
        "report",
        "many, with a token for a worker",
        {"outcomes": [await held() | {"kind": "succeed"}, await held() | {"kind": "succeed"}]},
        "work for w1",
    )


async def _alive(w: World) -> None:
    await w.good("POST", "/api/v1/worker/register", {"worker": {"name": "a/b", "slots": 2}, "about": {"host": "h"}})
    await w.good("POST", "/api/v1/worker/metrics", {"worker": "a/b", "metrics": {"load": 0.5}})
    await w.ask("GET", "/api/v1/workers", name="all", actor="read")
    page = await w.good("GET", "/api/v1/workers?count=1", name="a page")
    await w.ask("GET", f"/api/v1/workers?count=1&after={page['cursor'].replace('/', '%2F')}", name="the next page")
    await w.ask("DELETE", "/api/v1/workers/a%2Fb", name="one that is alive")
    w.clock.advance(24 * 3_600_000)
    await w.ask("GET", "/api/v1/workers", name="all, a day later")
    await w.ask("DELETE", "/api/v1/workers/a%2Fb", name="one that is silent")
    await w.ask("DELETE", "/api/v1/workers/a%2Fb", name="one that was removed")


async def slots() -> dict[str, list[Exchange]]:
    async with World() as w:
        await w.good("PUT", "/api/v1/resources/gpu", {"capacity": 2})
        await w.good("PUT", "/api/v1/resources/a%2Fb", {"capacity": 1})
        await w.ask("GET", "/api/v1/slots", name="none yet")

        async def reserve(name: str, actor: str = "submit", **body: Any) -> Any:
            return (await w.ask("POST", "/api/v1/slots", {"resource": "gpu"} | body, name=name, actor=actor)).json

        first = await reserve("the least")
        own = await reserve("everything is said", key="k", weight=2, lease=60_000, wait=0, id="slot-1", token="mine")
        await reserve("again, since the answer was lost", key="k", weight=2, lease=60_000, id="slot-1", token="mine")
        await reserve("the id of another", id="slot-1", token="other")
        await reserve("more than there are", weight=3)
        await reserve("nothing", weight=0)
        await reserve("of a resource that there is not", resource="none")
        await reserve("of a resource without a name", resource="")
        await reserve("for less than no time", lease=-1)
        await reserve("to wait for less than no time", wait=-1)
        await reserve("an id that cannot be", id="a b")
        await reserve("the second, by one who may do all", "admin")
        waiting = await reserve("it must wait")
        await reserve("it waits for a moment", wait=1)
        await w.ask("GET", "/api/v1/slots", name="all", actor="read")
        page = await w.good("GET", "/api/v1/slots?count=1", name="a page")
        await w.ask("GET", f"/api/v1/slots?count=1&after={page['cursor']}", name="the next page")
        await w.ask("GET", "/api/v1/resources/gpu/occupants", name="of slots")
        await w.ask("GET", "/api/v1/resources/gpu/occupants?key=k", name="of a key")

        async def change(verb: str, name: str, slot: str, **body: Any) -> None:
            await w.ask("POST", f"/api/v1/slots/{slot}/{verb}", body, name=name, actor="submit")

        await change("renew", "one that is held", first["id"], token=first["token"])
        await change("renew", "for longer", own["id"], token="mine", lease=120_000)
        await change("renew", "one that waits", waiting["id"], token=waiting["token"])
        await change("renew", "one that waits, for a moment", waiting["id"], token=waiting["token"], wait=1)
        await change("renew", "under another token", first["id"], token="other")
        await change("renew", "one that there is not", NONE, token="t")
        await change("renew", "for less than no time", first["id"], token=first["token"], lease=-1)
        await change("release", "one that is held", first["id"], token=first["token"])
        await change("release", "again", first["id"], token=first["token"])
        await change("release", "under another token", own["id"], token="other")
        await change("release", "a token that cannot be", own["id"], token="a b")
        await change("renew", "one whose turn has come", waiting["id"], token=waiting["token"])
        await change("release", "one that waits", waiting["id"], token=waiting["token"])
        return w.recorded


async def full() -> dict[str, list[Exchange]]:
    """A hub in which nobody more may wait."""
    async with World(waits=0, share=100) as w:
        await w.good("PUT", "/api/v1/resources/gpu", {"capacity": 1})
        slot = await w.good("POST", "/api/v1/slots", {"resource": "gpu"})
        no_room: dict[str, Any] = {"actor": "work", "name": "no more may wait"}
        await w.ask("POST", "/api/v1/worker/wait", {"topics": ["sweep"], "timeout": 10_000}, **no_room)
        await w.ask("POST", "/api/v1/worker/claim", {"worker": W1, "count": 1, "lease": 1_000, "wait": 10_000}, **no_room)
        await w.ask("POST", "/api/v1/slots", {"resource": "gpu", "wait": 10_000}, name="no more may wait")
        await w.ask("POST", f"/api/v1/slots/{slot['id']}/renew", {"token": slot["token"], "wait": 10_000}, name="no more may wait")
        return w.recorded


VERBS = ("register", "lives", "lapse", "leave", "claim", "recover", "start", "beat", "log", "step", "report", "wait", "metrics")
SLOTS = ["GET_api_v1_slots", "POST_api_v1_slots", "POST_api_v1_slots_slot_id_renew", "POST_api_v1_slots_slot_id_release"]
MORE: dict[str, tuple[Scene, list[str]]] = {
    "work": (
        work,
        [
            *(f"POST_api_v1_worker_{verb}" for verb in VERBS),
            *("GET_api_v1_workers", "DELETE_api_v1_workers_name", "GET_api_v1_runs_run_id_steps"),
        ],
    ),
    "slots": (slots, [*SLOTS, "GET_api_v1_resources_name_occupants"]),
    "full": (full, ["POST_api_v1_worker_wait", "POST_api_v1_worker_claim", *SLOTS[1:3]]),
}
