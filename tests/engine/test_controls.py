"""What people set for all: pauses, queues, resources. Over every door, on every store, in effect at once."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.places import AGES, Place, at_both_ends, by_each, everywhere, open_place, over_http
from tests.served import ServedHub
from tests.workers import Gate, ended, in_state, until, working
from windlass import App, AsyncApp, Rate, State, Use, cli
from windlass.app.resources import rate_of, rate_text
from windlass.cli import codes
from windlass.client import AsyncClient, BlockingTransport, Client, RemotePort
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine
from windlass.errors import BadInput, Forbidden, LimitReached, NotFound, WindlassError, WrongState
from windlass.limiters import limiter_key
from windlass.model import Limits, NewRun, Options, PauseScope, WorkerInfo
from windlass.store.base import run_sync
from windlass.worker import claims


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, tmp_path) as made:
        yield made


# Doors


def _words(scope: str, name: str) -> dict[str, Any]:
    return {"everything": True} if scope == "system" else {scope: name}


class ByApp:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        place.app.pause(**_words(scope, name), reason="maintenance")

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        return place.app.resume(**_words(scope, name))


class ByAsyncApp:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        async def call() -> None:
            async with AsyncApp(place.address) as app:
                await app.pause(**_words(scope, name), reason="maintenance")

        asyncio.run(call())

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        async def call() -> bool:
            async with AsyncApp(place.address) as app:
                return await app.resume(**_words(scope, name))

        return asyncio.run(call())


class ByClient:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        with Client(place.address) as client:
            client.pause(scope, name, reason="maintenance")

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        with Client(place.address) as client:
            return client.resume(scope, name)


class ByAsyncClient:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        async def call() -> None:
            async with AsyncClient(place.address) as client:
                await client.pause(scope, name, reason="maintenance")

        asyncio.run(call())

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        async def call() -> bool:
            async with AsyncClient(place.address) as client:
                return await client.resume(scope, name)

        return asyncio.run(call())


class ByHand:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        body = {"scope": scope, "name": name, "reason": "maintenance"}
        httpx.post(f"{place.address}api/v1/pause", json=body).raise_for_status()

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        answer = httpx.post(f"{place.address}api/v1/resume", json={"scope": scope, "name": name})
        resumed: bool = answer.raise_for_status().json()["resumed"]
        return resumed


class ByCommand:
    def pause(self, place: Place, scope: PauseScope, name: str) -> None:
        assert cli.main(["pause", *self._words(place, scope, name), "--reason", "maintenance"]) == 0

    def resume(self, place: Place, scope: PauseScope, name: str) -> bool:
        return cli.main(["resume", *self._words(place, scope, name)]) == 0

    def _words(self, place: Place, scope: PauseScope, name: str) -> list[str]:
        what = ["--all"] if scope == "system" else [f"--{scope}", name]
        return [*what, "--hub" if place.hubs else "--store", place.address]


Door = ByApp | ByAsyncApp | ByClient | ByAsyncClient | ByHand | ByCommand
LIBRARY: tuple[Door, ...] = (ByApp(), ByAsyncApp(), ByCommand())
HTTP: tuple[Door, ...] = (ByClient(), ByAsyncClient(), ByHand())
by_every_door = pytest.mark.parametrize(("place", "door"), by_each(LIBRARY, HTTP, lambda door: type(door).__name__), indirect=["place"])
SCOPES: list[tuple[PauseScope, str]] = [("job", "send"), ("queue", "post"), ("system", "")]


# Pauses


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits looks again when it is told to, and at no other time."""
    monkeypatch.setattr(claims, "LONGEST_WAIT", float(AGES))
    monkeypatch.setattr(RemotePort, "longest_wait", float(AGES))


def _is_there(app: App, worker: str) -> bool:
    return worker in {known.info.name for known in run_sync(app.verbs.workers())}


@by_every_door
def test_a_pause_is_in_effect_at_once_and_its_end_is_told(place: Place, door: Door, only_hints: None) -> None:
    app = place.app

    @app.job(name="send", queue="post")
    def send() -> None: ...

    @app.job(name="other")
    def other() -> None: ...

    probe = WorkerInfo("probe", queues=("post",), slots=100)
    for scope, name in SCOPES:
        send.enqueue()
        assert len(run_sync(app.verbs.claim(probe, count=10))) == 1  # so that the place knows the lane as open
        door.pause(place, scope, name)
        run = send.enqueue()
        assert run_sync(app.verbs.claim(probe, count=10)) == []
        assert [reason.text for reason in run.why() if reason.code == "paused" and "maintenance" in reason.text]
        with working(app, name=f"waits for {scope}"):
            if scope != "system":
                ended(other.enqueue())  # nothing else is held up
            until(partial(_is_there, app, f"waits for {scope}"))
            assert run.refresh().state is State.QUEUED
            assert door.resume(place, scope, name)
            assert ended(run).state is State.SUCCEEDED
        assert run_sync(app.verbs.pauses()) == []


@everywhere
def test_what_runs_goes_on_while_its_queue_is_paused(place: Place) -> None:
    app, gate = place.app, Gate()

    @app.job()
    def long() -> None:
        gate.block()

    runs = [long.enqueue(), long.enqueue()]
    with working(app):
        gate.reached()
        app.pause(queue="default")
        gate.open()
        assert ended(runs[0]).state is State.SUCCEEDED
        in_state(runs[1], State.QUEUED)
        app.resume(queue="default")
        assert ended(runs[1]).state is State.SUCCEEDED


@at_both_ends
def test_a_pause_keeps_its_first_reason_and_a_second_resume_finds_nothing(place: Place) -> None:
    app = place.app
    first = app.pause(queue="mail", reason="moving")
    again = app.pause(queue="mail", reason="still moving")
    assert (again.at, again.reason) == (first.at, "moving")
    app.pause(job="send")
    app.pause(everything=True)
    assert [(pause.scope, pause.name) for pause in run_sync(app.verbs.pauses())] == [("job", "send"), ("queue", "mail"), ("system", "")]
    assert app.resume(queue="mail") is True
    assert app.resume(queue="mail") is False
    assert app.resume(queue="never") is False


def test_a_pause_over_http_names_who_did_it_and_is_in_the_audit(tmp_path: Path) -> None:
    with served(tmp_path) as (hub, engine):
        _, secret = run_sync(engine.create_token("ops", ["admin"]))
        with Client(hub.url, token=secret) as client:
            assert client.pause("queue", "mail", by="somebody else").actor == "ops"
            client.resume("queue", "mail")
            client.set_queue("mail", aging=60_000)
            client.set_resource("ollama", capacity=1)
            client.add_resource("ollama", capacity=7)  # changes nothing, so it is no act
            client.add_resource("gpu", capacity=2)
            client.drop_resource("ollama")
        audit = [(entry.actor, entry.what, entry.subject) for entry in run_sync(engine.audit()).entries[::-1]]
        assert audit[-6:] == [
            ("ops", "pause", "queue mail"),
            ("ops", "resume", "queue mail"),
            ("ops", "set", "queue mail"),
            ("ops", "set", "resource ollama"),
            ("ops", "add", "resource gpu"),
            ("ops", "remove", "resource ollama"),
        ]


class served:
    """A hub, and an engine on its store."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self._store, self._limits = str(folder / "served.db"), Limits(**limits)

    def __enter__(self) -> tuple[ServedHub, Engine]:
        self._hub, clock = ServedHub(self._store), SystemClock()
        self._engine = Engine(open_store(self._store, clock, blocking=True), clock, self._limits)
        return self._hub, self._engine

    def __exit__(self, *error: object) -> None:
        run_sync(self._engine.close())
        self._hub.stop()


# Resources: named by code, set by people


def _resource(app: App, name: str) -> tuple[int | None, tuple[Rate, ...]]:
    found = run_sync(app.verbs.get_resource(name)).resource
    return found.capacity, found.rates


@everywhere
def test_code_makes_a_resource_once_and_people_change_it(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    def start(**how: Any) -> App:
        """As a new version of the program would."""
        app = place.new_app()
        app.resource("api", **how)

        @app.job(name="ask", uses="api")
        def ask() -> None: ...

        ask.enqueue()
        return app

    app = start(capacity=3, rates=["100/minute", Rate(5, 1_000, burst=2)])
    assert _resource(app, "api") == (3, (Rate(100, 60_000), Rate(5, 1_000, 2)))
    run_sync(app.verbs.set_resource("api", capacity=1))
    with caplog.at_level(logging.WARNING, "windlass.app"):
        assert _resource(start(capacity=3, rates=["100/minute"]), "api") == (1, ())
    assert "has other settings than in the code" in caplog.text
    caplog.clear()
    assert _resource(start(capacity=1), "api") == (1, ())
    assert _resource(start(capacity=4, set=True), "api") == (4, ())
    assert caplog.text == ""


@at_both_ends
def test_a_slot_finds_the_resource_that_code_names(place: Place) -> None:
    place.app.resource("ollama", capacity=1)
    with place.app.slot("ollama", timeout=0):
        assert _resource(place.app, "ollama") == (1, ())


def test_a_token_that_may_only_submit_uses_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as (hub, engine):
        run_sync(engine.set_resource("ollama", capacity=1))
        _, secret = run_sync(engine.create_token("shop", ["submit"]))
        monkeypatch.setenv("WINDLASS_HUB_TOKEN", secret)
        with App(hub.url) as app:
            app.resource("ollama", capacity=1)
            app.resource("gpu", capacity=1)
            with app.slot("ollama", timeout=0):
                assert run_sync(engine.slots())[0].actor == "shop"
            with pytest.raises(NotFound), app.slot("gpu"):
                pass


def test_a_worker_makes_resources_and_changes_none(tmp_path: Path) -> None:
    with served(tmp_path) as (hub, engine):
        _, secret = run_sync(engine.create_token("worker", ["work"]))
        with Client(hub.url, token=secret) as client:
            assert client.add_resource("ollama", capacity=2).capacity == 2
            assert client.add_resource("ollama", capacity=3).capacity == 2
            with pytest.raises(Forbidden):
                client.set_resource("ollama", capacity=3)
        assert run_sync(engine.get_resource("ollama")).resource.capacity == 2


@everywhere
def test_what_every_job_of_an_app_uses_is_said_once(place: Place) -> None:
    gate = Gate()
    with App(place.address, uses="global") as app:

        @app.job(name="one")
        def one() -> None:
            gate.block("one")

        @app.job(name="two", uses={"gpu": 2})
        def two() -> None:
            gate.block("two")

        @app.job(name="own", uses=Use("global", weight=1))
        def own() -> None:
            gate.block("own")

        app.resource("gpu", capacity=4)
        runs = [one.enqueue(), two.enqueue(), own.enqueue()]
        with working(app, slots=3):
            gate.reached()
            assert {reason.code for reason in runs[2].why()} == {"full"}
            gate.open()
            for run in runs:
                ended(run)
        assert gate.limit == 1  # one at a time, anywhere
        assert run_sync(app.verbs.get_resource("global")).jobs == ("one", "own", "two")
        assert run_sync(app.verbs.get_resource("gpu")).jobs == ("two",)


# Resources: limits


@everywhere
def test_workers_of_two_hubs_share_a_capacity_and_a_change_is_in_effect_at_once(place: Place, only_hints: None) -> None:
    gate, app = Gate(), place.app

    def trains(app: App) -> App:
        app.resource("gpu", capacity=2)
        app.job(name="train", uses="gpu")(lambda: gate.block())
        return app

    with ExitStack() as stack:
        for n, address in enumerate([place.address, place.add_hub().url if place.hubs else place.address]):
            stack.enter_context(working(trains(place.new_app(address)), name=f"w{n}", slots=5))
        runs = [app.enqueue("train") for _ in range(8)]
        until(lambda: gate.inside == 2)
        waiting = until(lambda: [run for run in runs if run.refresh().state is State.QUEUED][:6])
        assert {reason.code for reason in waiting[0].why()} == {"full"}
        state = run_sync(app.verbs.get_resource("gpu"))
        assert (state.held, state.runs, state.slots, state.jobs) == (2, 2, 0, ("train",))
        held = run_sync(app.verbs.occupants("gpu")).runs
        assert {(holder.job, holder.weight) for holder in held} == {("train", 1)}
        assert {holder.run for holder in held} == {run.id for run in runs} - {run.id for run in waiting}
        run_sync(app.verbs.set_resource("gpu", capacity=3))
        until(lambda: gate.inside == 3)
        gate.open()
        for run in runs:
            ended(run)
    assert gate.limit == 3


@everywhere
def test_a_limit_per_key_holds_for_each_key(place: Place) -> None:
    app, gate = place.app, Gate()
    app.resource("customer", capacity=1)

    @app.job(uses=Use("customer", per="customer_id"))
    def bill(customer_id: int) -> None:
        gate.block(str(customer_id))

    runs = [bill.enqueue(n) for n in (41, 41, 42)]
    with working(app, slots=5):
        assert sorted(gate.reached(2)) == ["41", "42"]
        (reason,) = until(runs[1].why)
        assert (reason.code, reason.data["key"]) == ("full", "41")
        assert [holder.run for holder in run_sync(app.verbs.occupants(limiter_key("customer", "41"))).runs] == [runs[0].id]
        gate.open()
        for run in runs:
            ended(run)


@everywhere
def test_a_rate_lets_the_next_one_in_when_its_time_has_come(place: Place) -> None:
    app = place.app
    app.resource("api", rates="1/hour")

    @app.job(uses="api")
    def ask() -> None: ...

    runs = [ask.enqueue(), ask.enqueue()]
    with working(app, slots=5):
        ended(runs[0])
        (reason,) = until(runs[1].why)
        assert reason.code == "rate"
        assert reason.data["until"] > SystemClock().now() + 3_000_000
        run_sync(app.verbs.set_resource("api", capacity=1))  # without a rate
        ended(runs[1])


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/minute", Rate(100, 60_000)),
        ("5/second", Rate(5, 1_000)),
        (" 1000 / hour ", Rate(1_000, 3_600_000)),
        ("1/day", Rate(1, 86_400_000)),
        ("10/30s", Rate(10, 30_000)),
        ("3/1h30m", Rate(3, 5_400_000)),
    ],
)
def test_a_rate_is_written_as_people_say_it(text: str, rate: Rate) -> None:
    assert rate_of(text) == rate
    assert rate_of(rate_text(rate)) == rate


def test_a_burst_is_shown() -> None:
    assert rate_text(Rate(100, 60_000, burst=10)) == "100/minute, 10 at once"


@pytest.mark.parametrize("text", ["", "5", "5/", "/minute", "five/minute", "5/fortnight", "-5/minute", "5/minute/2", 7, None])
def test_what_is_no_rate_is_refused(text: Any) -> None:
    with pytest.raises(BadInput, match="100/minute"):
        rate_of(text)


# Queues


@at_both_ends
def test_a_queue_that_ages_is_set_and_taken_back(place: Place) -> None:
    engine = place.app.verbs
    queue = run_sync(engine.set_queue("mail", aging=60_000))
    assert queue is not None
    assert run_sync(engine.queues()) == [queue]
    assert (queue.name, queue.aging) == ("mail", 60_000)
    assert run_sync(engine.set_queue("mail", aging=None)) is None
    assert run_sync(engine.queues()) == []


# What is wrong


WRONG: list[tuple[str, Callable[[Any], Any], type[WindlassError]]] = [
    ("a queue without a name", lambda engine: engine.pause("queue"), BadInput),
    ("a name for the system", lambda engine: engine.pause("system", "all"), BadInput),
    ("something else", lambda engine: engine.pause("worker", "w1"), BadInput),
    ("a long name", lambda engine: engine.resume("job", "x" * 200), BadInput),
    ("a control character", lambda engine: engine.pause("queue", "a\nb"), BadInput),
    ("a step of nothing", lambda engine: engine.set_queue("mail", aging=0), BadInput),
    ("no queue", lambda engine: engine.set_queue("", aging=1), BadInput),
    ("less than nothing", lambda engine: engine.set_resource("gpu", capacity=-1), BadInput),
    ("a rate of nothing", lambda engine: engine.set_resource("gpu", rates=(Rate(0, 1_000),)), BadInput),
    ("nine rates", lambda engine: engine.set_resource("gpu", rates=(Rate(1, 1_000),) * 9), BadInput),
    ("no resource", lambda engine: engine.get_resource("none"), NotFound),
    ("nothing to forget", lambda engine: engine.drop_resource("none"), NotFound),
    ("what a job uses", lambda engine: engine.drop_resource("used"), WrongState),
    ("a count of nothing", lambda engine: engine.occupants("used", count=0), BadInput),
]


@at_both_ends
def test_what_cannot_be_done_is_refused_and_changes_nothing(place: Place, subtests: pytest.Subtests) -> None:
    engine = place.app.verbs
    run_sync(engine.define("job", options=Options(uses=(Use("used"),))))

    def everything() -> list[Any]:
        return [run_sync(verb()) for verb in (engine.pauses, engine.queues, engine.resources)]

    before = everything()
    for name, ask, kind in WRONG:
        with subtests.test(name):
            with pytest.raises(kind):
                run_sync(ask(engine))
            assert everything() == before


def test_an_app_says_what_it_means(tmp_path: Path) -> None:
    with App(tmp_path / "windlass.db") as app:
        for words in ({}, {"queue": "a", "job": "b"}, {"queue": "a", "everything": True}):
            with pytest.raises(BadInput, match="one of"):
                app.pause(**words)
            with pytest.raises(BadInput, match="one of"):
                app.resume(**words)
        with pytest.raises(BadInput, match="capacity=1"):
            app.resource("ollama")
        app.resource("ollama", capacity=1)
        with pytest.raises(BadInput, match="two resources"):
            app.resource("ollama", capacity=2)


def test_what_can_be_set_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path, pauses=1, queues=1, resources=1) as (_, engine):
        run_sync(engine.pause("queue", "a"))
        run_sync(engine.set_queue("a", aging=1))
        run_sync(engine.set_resource("a", capacity=1))
        for verb in (engine.pause("queue", "b"), engine.set_queue("b", aging=1), engine.set_resource("b", capacity=1)):
            with pytest.raises(LimitReached):
                run_sync(verb)


@pytest.mark.parametrize("name", ["a/b ?#%é", "..", "漢字"])
@over_http
def test_names_with_any_character_go_through_the_hub(place: Place, name: str) -> None:
    engine = place.app.verbs
    run_sync(engine.set_resource(name, capacity=1))
    run_sync(engine.set_queue(name, aging=5))
    run_sync(engine.pause("queue", name))
    with place.app.slot(name, key=name, timeout=0):
        assert [slot.key for slot in run_sync(engine.occupants(limiter_key(name, name))).slots] == [limiter_key(name, name)]
    assert run_sync(engine.get_resource(name)).resource.name == name
    assert [queue.name for queue in run_sync(engine.queues())] == [name]
    assert run_sync(engine.resume("queue", name))
    run_sync(engine.drop_resource(name))


# M2: the hub's API is the embedded API


async def _story(verbs: Any, leap: Callable[[int], None]) -> list[Any]:
    answers: list[Any] = []

    async def ask(call: Any) -> Any:
        try:
            answer = await call
        except WindlassError as error:
            words = () if isinstance(error, BadInput) else (error.message, error.hint)
            answer = (type(error).__name__, *words)
        answers.append(answer)
        return answer

    await ask(verbs.pause("queue", "mail", reason="moving"))
    await ask(verbs.pause("queue", "mail", reason="again"))
    await ask(verbs.pauses())
    await ask(verbs.resume("queue", "mail"))
    await ask(verbs.resume("queue", "mail"))
    await ask(verbs.set_queue("mail", aging=1_000))
    await ask(verbs.queues())
    await ask(verbs.set_queue("mail", aging=None))
    await ask(verbs.set_resource("gpu", capacity=2, rates=(Rate(5, 1_000, 3),), max_wait=5))
    await ask(verbs.add_resource("gpu", capacity=9))
    await ask(verbs.add_resource("ollama", capacity=1))
    await ask(verbs.resources())
    await ask(verbs.get_resource("ollama"))
    await ask(verbs.get_resource("none"))
    await verbs.define("train", options=Options(uses=(Use("gpu"),)))
    await ask(verbs.drop_resource("gpu"))
    (run,) = await verbs.create([NewRun("train")])
    await verbs.claim(WorkerInfo("w1", slots=9))
    held = await verbs.occupants("gpu")
    assert [holder.run for holder in held.runs] == [run.id]
    one = await verbs.reserve("ollama", slot_id="one", token="secret-one", lease=5_000)
    answers += [one.state, (await verbs.reserve("ollama", slot_id="two", token="secret-two", key=None)).state]
    answers += [(slot.id, slot.seq, slot.state, slot.lease, slot.held_at) for slot in await verbs.slots()]
    await ask(verbs.renew("one", "wrong"))
    await ask(verbs.reserve("ollama", slot_id="one", token="wrong"))
    leap(4_000)
    answers.append((await verbs.renew("one", "secret-one", lease=9_000)).lease_until)
    answers.append((await verbs.turn("two", "secret-two", wait=0.0)).state)
    await ask(verbs.release("one", "wrong"))
    await ask(verbs.release("one", "secret-one"))
    await ask(verbs.release("one", "secret-one"))
    answers.append((await verbs.turn("two", "secret-two", wait=60.0)).state)
    await ask(verbs.reserve("none"))
    await ask(verbs.reserve("ollama", weight=2))
    await ask(verbs.drop_resource("none"))
    return answers


def test_M2_the_hub_answers_as_the_embedded_engine_does(tmp_path: Path) -> None:
    clock = Still()
    embedded = Engine(open_store(str(tmp_path / "embedded.db"), clock, blocking=True), clock)
    expected = run_sync(_story(embedded, clock.leap))
    run_sync(embedded.close())
    clock = Still()
    hub = ServedHub(tmp_path / "hub.db", clock=clock)
    port = RemotePort(BlockingTransport(hub.url), clock)
    answers = run_sync(_story(port, clock.leap))
    run_sync(port.close())
    hub.stop()
    assert [str(answer).replace("actor='anonymous'", "actor=None") for answer in answers] == [str(answer) for answer in expected]


class Still(SystemClock):
    """Stands still between leaps."""

    leapt = 0

    def leap(self, ms: int) -> None:
        self.leapt += ms

    def now(self) -> int:
        return 1_767_225_600_000 + self.leapt

    def monotonic(self) -> int:
        return self.leapt


# The command line


class Command:
    """The command line, asking a store or a hub."""

    def __init__(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        self._where, self._capsys = ["--hub" if place.hubs else "--store", place.address], capsys

    def __call__(self, *words: str, exits: int = 0) -> str:
        code = cli.main([*self._where, *words])
        captured = self._capsys.readouterr()
        assert code == exits, captured.out + captured.err
        return "\n".join(line.rstrip() for line in (captured.out + captured.err).splitlines())

    def json(self, *words: str, exits: int = 0) -> Any:
        return json.loads(self(*words, "--json", exits=exits))


@pytest.fixture
def command(place: Place, capsys: pytest.CaptureFixture[str]) -> Command:
    assert place.app.runs().runs == []  # which makes the store
    return Command(place, capsys)


@at_both_ends
def test_resources_are_set_shown_and_forgotten_at_the_command_line(place: Place, command: Command) -> None:
    assert "windlass resources set NAME" in command("resources")
    command("resources", "set", "api", "--rate", "100/minute", "--rate", "5/second")
    assert command("resources", "set", "api", "--capacity", "3").splitlines()[1].split() == [
        "api",
        "3",
        "100/minute;",
        "5/second",
        "0",
        "0",
    ]
    assert _resource(place.app, "api") == (3, (Rate(100, 60_000), Rate(5, 1_000)))  # what was left out stays
    command("resources", "set", "api", "--no-rate", "--max-wait", "5s")
    assert _resource(place.app, "api") == (3, ())
    document = command.json("resources", "set", "api", "--capacity", "none", "--rate", "1/day")
    assert (document["capacity"], document["rates"], document["max_wait"]) == (None, [{"count": 1, "period": 86_400_000}], 5_000)
    assert command.json("resources", "list")["resources"] == command.json("resources")["resources"] == [document]
    assert "Nothing occupies it." in command("resources", "show", "api")
    with place.app.slot("api", key="42"):
        assert "unnamed" not in command("resources", "show", "api", "--key", "42")
        shown = command.json("resources", "show", "api", "--key", "42")["occupants"]["slots"]
        assert [(slot["resource"], slot["key"], slot["state"], "token" in slot) for slot in shown] == [("api", "42", "held", False)]
    assert command("resources", "drop", "api") == "api is gone."
    assert command.json("resources") == {"resources": []}


@at_both_ends
def test_who_occupies_a_resource_is_shown_at_the_command_line(place: Place, command: Command) -> None:
    app, gate = place.app, Gate()

    @app.job(name="train", uses={"gpu": 1})
    def train() -> None:
        gate.block()

    runs = [train.enqueue(), train.enqueue()]
    with working(app, slots=2):
        gate.reached()
        shown = command("resources", "show", "gpu")
        assert f"run {runs[0].id}" in shown
        assert "train on w1" in shown
        assert runs[0].id in command("why", runs[1].id)
        assert command.json("why", runs[1].id)["reasons"][0]["data"]["runs"] == [runs[0].id]
        gate.open()
        ended(runs[1])


def test_why_tells_when_a_rate_lets_the_next_one_in(place: Place, command: Command) -> None:
    app = place.app
    app.resource("api", rates="1/hour")

    @app.job(name="ask", uses="api")
    def ask() -> None: ...

    runs = [ask.enqueue(), ask.enqueue()]
    with working(app):
        ended(runs[0])
    assert re.search(r"The rate of api lets the next one in in 59m, at \d{4}-", command("why", runs[1].id))


@at_both_ends
def test_pauses_and_queues_are_listed_at_the_command_line(place: Place, command: Command) -> None:
    assert command("pauses") == "Nothing is paused."
    assert command("pause", "--job", "send", "--reason", "no paper") == "Job send is paused."
    assert command.json("pause", "--all")["scope"] == "system"
    assert [re.split(r" {2,}", row)[0] for row in command("pauses").splitlines()[1:]] == ["Job send", "Everything"]
    assert "no paper" in command("pauses")
    assert [pause["scope"] for pause in command.json("pauses")["pauses"]] == ["job", "system"]
    assert command("resume", "--all") == "Everything is resumed."
    assert command("resume", "--all") == "Everything was not paused."
    assert command.json("resume", "--job", "send") == {"resumed": True}
    assert command("queues") == "No queue has settings."
    assert command("queues", "set", "mail", "--aging", "5m") == "In mail a wait of 5m is worth one step of priority."
    assert command("queues").splitlines()[1].split() == ["mail", "5m"]
    assert command.json("queues", "list") == {"queues": [{"name": "mail", "aging": 300_000}]}
    assert command("queues", "set", "mail", "--aging", "none") == "In mail only priorities count."
    assert command.json("queues") == {"queues": []}


def test_what_is_wrong_at_the_command_line_is_said(place: Place, command: Command) -> None:
    run_sync(place.app.verbs.define("job", options=Options(uses=(Use("used"),))))
    for words, code, said in (
        (("pause",), codes.USAGE, "one of the arguments --queue --job --all is required"),
        (("pause", "--queue", "a", "--all"), codes.USAGE, "not allowed with"),
        (("pause", "--queue", ""), codes.USAGE, "A queue's name"),
        (("queues", "set", "mail"), codes.USAGE, "--aging"),
        (("queues", "set", "mail", "--aging", "soon"), codes.USAGE, "a duration"),
        (("resources", "set", "api"), codes.USAGE, "There is nothing to set"),
        (("resources", "set", "api", "--rate", "often"), codes.USAGE, "100/minute"),
        (("resources", "set", "api", "--capacity", "-1"), codes.USAGE, "--capacity"),
        (("resources", "show", "none"), codes.NOT_FOUND, "windlass resources"),
        (("resources", "drop", "none"), codes.NOT_FOUND, "windlass resources"),
        (("resources", "drop", "used"), codes.CONFLICT, "Job 'job' uses 'used'"),
    ):
        assert said in command(*words, exits=code), words
    assert run_sync(place.app.verbs.pauses()) == []
