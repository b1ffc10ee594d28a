"""Groups through every door: the library, a handler's context, HTTP, the client, the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import group_app
from tests.served import LeapingClock, ServedHub
from windlass import App, AsyncApp, Context, cli
from windlass.client import AsyncClient, Client, RemotePort
from windlass.engine import Outcome
from windlass.errors import BadInput, NotFound, UnknownJob, WrongState
from windlass.hub import HubSettings
from windlass.machine import Succeed
from windlass.model import Member, NewGroup, NewRun, State, WorkerInfo
from windlass.store.base import run_sync
from windlass.testing import in_memory

MANY = WorkerInfo("many", slots=1_000)


# The library


@pytest.fixture
def app() -> App:
    app = App()

    @app.job()
    def double(n: int) -> int:
        return 2 * n

    @app.job(max_attempts=1)
    def broken() -> None:
        raise ValueError("no")

    @app.job()
    def total(context: Context) -> int:
        return sum(result.value for result in context.results() if result.state is State.SUCCEEDED)

    return app


def test_a_chain_is_one_after_the_other(app: App) -> None:
    with in_memory(app) as queue:
        double = app.jobs["double"]
        chain = app.chain([double.new(n) for n in range(3)], name="steps")
        assert (chain.record.kind, chain.record.name, chain.status().status) == ("sequential", "steps", "running")
        assert len(queue.enqueued("double")) == 3
        queue.drain()
        assert chain.wait(timeout=0).status == "completed"
        assert [run.output for run in chain.members()] == ["0", "2", "4"]


def test_the_callback_of_a_parallel_group_gets_the_results(app: App) -> None:
    with in_memory(app) as queue:
        double, total = app.jobs["double"], app.jobs["total"]
        group = app.parallel([*(double.new(n) for n in range(250)), app.jobs["broken"].new()], callback=total.new())
        queue.drain()
        assert (group.status().status, group.record.failed) == ("partial", 1)
        assert app.run(group.record.callback or "").wait(timeout=0) == sum(2 * n for n in range(250))


def test_members_name_those_they_wait_for(app: App) -> None:
    with in_memory(app) as queue:
        double, total = app.jobs["double"], app.jobs["total"]
        group = app.group("sums", on_failure="skip")
        one, two = group.add(double.new(1)), group.add(double.new(2), name="two")
        both = group.add(total.new(), after=[one, two])
        group.add(total.new(), after=[both])
        handle = group.enqueue()
        queue.drain()
        assert handle.status().status == "completed"
        assert [run.output for run in handle.members()] == ["2", "4", "6", "6"]
        assert app.find_group(handle.id).record == handle.record


def test_a_group_can_be_cancelled_and_run_again(app: App) -> None:
    with in_memory(app) as queue:
        double = app.jobs["double"]
        chain = app.chain([double.new(1), double.new(2)])
        assert chain.cancel("not now").status == "cancelled"
        again = chain.rerun()
        queue.drain()
        assert (again.wait(timeout=0).status, again.record.retry_of) == ("completed", chain.id)
        with pytest.raises(WrongState):
            again.cancel()


def test_what_cannot_be_a_group_is_refused_where_it_is_written(app: App) -> None:
    with in_memory(app):
        double = app.jobs["double"]
        group = app.group()
        with pytest.raises(BadInput, match="after must be a list"):
            group.add(double.new(1), after="x")
        with pytest.raises(BadInput, match="at least one member"):
            group.enqueue()
        with pytest.raises(UnknownJob):
            app.parallel([NewRun("nobody's")])
        with app.transaction(), pytest.raises(BadInput, match="after the block"):
            app.parallel([double.new(1)])
        with pytest.raises(TimeoutError, match="is still running"):
            app.parallel([double.new(1)]).wait(timeout=0.01)
        with pytest.raises(NotFound):
            app.find_group("nobody")


def test_a_group_can_be_part_of_the_callers_own_transaction(emptied_postgres: str) -> None:
    import psycopg

    with App(emptied_postgres) as app, psycopg.connect(emptied_postgres) as connection:
        double = app.job()(_double)
        with app.transaction(connection):
            kept = app.chain([double.new(1), double.new(2)])
            assert run_sync(app.verbs.groups()) == []
        connection.commit()
        draft = app.group()
        draft.add(double.new(3))
        draft.enqueue(connection=connection)
        connection.rollback()
        assert [group.id for group in run_sync(app.verbs.groups())] == [kept.id]


def _double(n: int) -> int:
    return 2 * n


def test_the_same_for_coroutines() -> None:
    app = AsyncApp()

    @app.job()
    async def double(n: int) -> int:
        return 2 * n

    @app.job()
    async def total(context: Context) -> int:
        return sum([result.value async for result in context.results()])

    async def story() -> None:
        group = app.group(callback=total.new())
        first = group.add(double.new(1))
        group.add(double.new(2), after=[first])
        handle = await group.enqueue()
        await queue.drain()
        assert (await handle.wait(timeout=0)).status == "completed"
        assert [run.output for run in await handle.members()] == ["2", "4"]
        assert await (await app.run(handle.record.callback or "")).wait(timeout=0) == 6
        again = await handle.rerun()
        assert (await again.cancel("enough")).reason == "enough"
        assert (await (await app.find_group(again.id)).status()).status == "cancelled"
        assert (await (await app.chain([double.new(1)])).status()).kind == "sequential"
        assert (await (await app.parallel([double.new(1)])).status()).kind == "parallel"

    with in_memory(app) as queue:
        asyncio.run(story())


# A handler's context


@pytest.fixture(params=["store", "hub"])
def worked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The app of `group_app`, over a file or through a hub."""
    app, served = group_app.app, None
    if request.param == "hub":
        served = ServedHub(tmp_path / "hub.db")
    monkeypatch.setattr(app, "_said_store", served.url if served else str(tmp_path / "windlass.db"))
    monkeypatch.setenv("WINDLASS_SPOOL", str(tmp_path / "spool"))
    yield app
    app.close()
    if served is not None:
        served.stop()


def test_results_are_read_in_every_kind_of_handler(worked: App) -> None:
    double = group_app.double
    jobs = [group_app.in_thread, group_app.in_loop, group_app.in_process, group_app.in_process_loop, group_app.blocking]
    group = worked.group()
    firsts = [group.add(double.new(n)) for n in range(3)]
    for job in jobs:
        group.add(job.new(), after=firsts)
    handle = group.enqueue()
    worked.work(burst=True, slots=4)
    found = handle.members()[3:]
    assert [run.output for run in found[:4]] == ["[0,2,4]"] * 4
    assert found[4].error is not None
    assert "async for" in str(found[4].error.detail)
    assert handle.status().status == "partial"


# HTTP


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    served = ServedHub(tmp_path / "hub.db", HubSettings(), LeapingClock())
    yield served
    served.stop()


@pytest.fixture
def client(hub: ServedHub) -> Iterator[Client]:
    with Client(hub.url) as client:
        client.define("mail")
        yield client


def ask(hub: ServedHub, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.request(method, hub.url + "api/v1" + path, json=body, headers=names, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def work(hub: ServedHub) -> None:
    """Do all there is, over HTTP."""

    async def drain() -> None:
        async with AsyncClient(hub.url) as asked:
            port = RemotePort(asked.transport, asked.clock)
            while runs := await port.claim(MANY, count=100):
                await port.report_many([Outcome(run.id, Succeed(token=run.token, output=f'"{run.job}"'), run.seq) for run in runs])

    asyncio.run(drain())


def test_a_group_over_http(hub: ServedHub, client: Client) -> None:
    members = [{"job": "mail", "name": "a"}, {"job": "mail", "name": "b", "after": ["a"], "payload": {"n": 1}}]
    asked = {"members": members, "kind": "graph", "name": "nightly", "callback": {"job": "mail"}}
    made = ask(hub, "POST", "/groups", asked, 202, Idempotency_Key="once")
    assert (made["status"], made["total"], made["kind"], made["actions"]) == ("running", 2, "graph", ["cancel"])
    assert "seq" not in made
    assert ask(hub, "POST", "/groups", asked, 202, Idempotency_Key="once")["id"] == made["id"]
    assert ask(hub, "POST", "/groups", asked | {"name": "other"}, 409, Idempotency_Key="once")["code"] == "duplicate_key"
    path = f"/groups/{made['id']}"
    runs = ask(hub, "GET", f"{path}/runs")["runs"]
    assert [(run["state"], run["payload"]) for run in runs] == [("queued", {}), ("waiting", {"n": 1})]
    first = ask(hub, "GET", f"{path}/runs?count=1")
    assert ask(hub, "GET", f"{path}/runs?count=1&cursor={first['cursor']}")["runs"] == runs[1:]
    work(hub)
    assert ask(hub, "GET", path) | {"actions": ["rerun"]} == ask(hub, "GET", path)
    assert ask(hub, "GET", path)["status"] == "completed"
    page = ask(hub, "GET", f"/runs/{made['callback']}/results?count=1")
    assert [(result["id"], result["state"], result["output"]) for result in page["results"]] == [(runs[0]["id"], "succeeded", "mail")]
    rest = ask(hub, "GET", f"/runs/{made['callback']}/results?cursor={page['cursor']}")
    assert ([result["id"] for result in rest["results"]], rest["cursor"]) == ([runs[1]["id"]], None)
    again = ask(hub, "POST", f"{path}/rerun", None, 202, Idempotency_Key="again")
    assert ask(hub, "POST", f"{path}/rerun", None, 202, Idempotency_Key="again") == again
    assert again["retry_of"] == made["id"]
    assert ask(hub, "POST", f"/groups/{again['id']}/cancel", {"reason": "enough"})["status"] == "cancelled"
    assert ask(hub, "POST", f"/groups/{again['id']}/cancel", {}, 409)["code"] == "wrong_state"
    assert [group["id"] for group in ask(hub, "GET", "/groups?status=cancelled")["groups"]] == [again["id"]]
    assert [group["id"] for group in ask(hub, "GET", "/groups")["groups"]] == [again["id"], made["id"]]
    audited = [(entry["what"], entry["subject"]) for entry in ask(hub, "GET", "/audit")["entries"]]
    assert ("cancel", f"group {again['id']}") in audited
    assert ("rerun", f"group {made['id']}") in audited


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"members": []}, "at least one member"),
        ({"members": [{"job": "mail", "name": "a", "after": ["a"]}], "kind": "graph"}, "waits for itself"),
        ({"members": [{"job": "mail", "key": {"name": "k"}}]}, "key"),
        ({"members": [{"job": "mail"}], "kind": "odd"}, "odd"),
        ({"members": [{"job": "mail"}], "callback": {"job": "mail", "after": ["x"]}}, "after"),
    ],
)
def test_what_cannot_be_a_group_is_a_problem(hub: ServedHub, client: Client, body: Any, says: str) -> None:
    problem = ask(hub, "POST", "/groups", body, 400)
    assert problem["code"] == "bad_input"
    assert says in problem["detail"]
    assert ask(hub, "GET", "/groups") == {"groups": [], "cursor": None}


def test_there_is_no_such_group(hub: ServedHub, client: Client) -> None:
    for method, path in (("GET", ""), ("GET", "/runs"), ("POST", "/cancel"), ("POST", "/rerun")):
        assert ask(hub, method, f"/groups/nobody{path}", None, 404)["code"] == "not_found"


# The client


def test_the_client_has_the_engines_verbs_for_groups(hub: ServedHub, client: Client) -> None:
    new = NewGroup((Member(NewRun("mail"), "a"), Member(NewRun("mail", {"n": 2}), "b", ("a",))), "graph", "skip", NewRun("mail"), "nightly")
    made = client.create_group(new)
    assert (made.total, made.kind, made.on_failure, made.name) == (2, "graph", "skip", "nightly")
    runs = client.members(made.id)
    assert [(run.state, run.payload) for run in runs] == [(State.QUEUED, "{}"), (State.WAITING, '{"n":2}')]
    assert client.members(made.id, after=runs[0].id, count=1) == runs[1:]
    assert client.groups(status="running") == [made]
    work(hub)
    done = client.get_group(made.id)
    assert (done.status, done.succeeded) == ("completed", 2)
    assert [(result.job, result.value) for result in client.results(made.callback or "")] == [("mail", "mail")] * 2
    again = client.rerun_group(made.id)
    assert client.cancel_group(again.id, reason="enough").status == "cancelled"
    assert client.groups(after=again.id) == [done]
    with pytest.raises(WrongState):
        client.cancel_group(again.id)
    with pytest.raises(BadInput, match="has no key"):
        client.create_group(NewGroup((Member(NewRun("mail", after=("x",))),)))


def test_an_app_makes_groups_through_a_hub(hub: ServedHub, client: Client) -> None:
    with App(hub.url) as app:
        mail = app.job(name="mail")(_double)
        chain = app.chain([mail.new(1), mail.new(2)])
        work(hub)
        assert chain.wait(timeout=30).status == "completed"
        assert [run.output for run in chain.members()] == ['"mail"'] * 2


# The command line


def test_groups_at_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_STORE", str(tmp_path / "windlass.db"))

    def call(*words: str, exits: int = 0) -> str:
        assert cli.main(list(words)) == exits
        return capsys.readouterr().out

    call("migrate")
    assert call("groups", "list") == ""
    with App() as app:
        double = app.job(name="double")(_double)
        first = app.chain([double.new(1), double.new(2)], name="steps", callback=double.new(3))
        second = app.parallel([double.new(1)])
    listed = call("groups", "list").splitlines()
    assert listed[0].split() == ["id", "status", "name", "kind", "ended", "when"]
    assert [line.split()[0] for line in listed[1:]] == [second.id, first.id]
    assert listed[2].split()[1:5] == ["running", "steps", "sequential", "0/2"]
    shown = call("groups", "show", first.id)
    assert "sequential, on failure stop" in shown
    assert "0/2: 0 succeeded, 0 failed, 0 cancelled" in shown
    assert (shown.count("queued"), shown.count("waiting")) == (1, 1)
    assert call("groups", "cancel", first.id, "--reason", "wrong input") == "cancelled\n"
    found = json.loads(call("groups", "show", first.id, "--json"))
    assert (found["status"], found["reason"], [run["state"] for run in found["runs"]]) == ("cancelled", "wrong input", ["cancelled"] * 2)
    assert "seq" not in found
    again = call("groups", "rerun", first.id).strip()
    assert json.loads(call("groups", "list", "--status", "running", "--limit", "1", "--json"))["groups"][0]["id"] == again
    assert call("groups", "cancel", first.id, exits=4) == ""
    assert call("groups", "show", "nobody", exits=3) == ""
