"""Direct calls: [current] -> [direct] -> [queue], over the library and over HTTP, on every store."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.places import AGES, Place, at_both_ends, beside, by_each, everywhere, open_place, over_http
from tests.proxies import Proxy, What
from tests.served import LeapingClock, ServedHub
from tests.tiers import corners
from tests.workers import DEADLINE, Gate, ended, in_state, until, working
from windlass import App, AsyncApp, HeldSlot, State, cli
from windlass.cli import codes
from windlass.client import AsyncClient, Client, verbs
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine, slots
from windlass.errors import BadInput, LeaseLost, NotFound, Timeout
from windlass.hub import HubSettings
from windlass.model import Slot
from windlass.store.base import run_sync


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, tmp_path) as made:
        made.app.resource("ollama", capacity=1)
        yield made


# Those who call


def by_app(place: Place, inside: Callable[[], None], **how: Any) -> None:
    with place.app.slot("ollama", **how):
        inside()


def by_async_app(place: Place, inside: Callable[[], None], **how: Any) -> None:
    async def call() -> None:
        async with AsyncApp(place.address) as app, app.slot("ollama", **how):
            await asyncio.to_thread(inside)

    asyncio.run(call())


def by_client(place: Place, inside: Callable[[], None], **how: Any) -> None:
    with Client(place.address) as client, client.slot("ollama", **how):
        inside()


def by_async_client(place: Place, inside: Callable[[], None], **how: Any) -> None:
    async def call() -> None:
        async with AsyncClient(place.address) as client, client.slot("ollama", **how):
            await asyncio.to_thread(inside)

    asyncio.run(call())


def by_hand(place: Place, inside: Callable[[], None], **how: Any) -> None:
    """As any program does that speaks HTTP."""
    with httpx.Client(base_url=f"{place.address}api/v1/", timeout=DEADLINE) as http:
        slot = http.post("slots", json={"resource": "ollama", "wait": 1_000}).raise_for_status().json()
        while slot["state"] == "waiting":
            slot = http.post(f"slots/{slot['id']}/renew", json={"token": slot["token"], "wait": 10_000}).raise_for_status().json()
        inside()
        assert http.post(f"slots/{slot['id']}/release", json={"token": slot["token"]}).json() == {"released": True}


Caller = Callable[..., None]
LIBRARY: tuple[Caller, ...] = (by_app, by_async_app)
HTTP: tuple[Caller, ...] = (by_client, by_async_client, by_hand)
by_every_caller = pytest.mark.parametrize(("place", "caller"), by_each(LIBRARY, HTTP, lambda caller: caller.__name__), indirect=["place"])


def in_line(place: Place, count: int = 1) -> None:
    """Go on when so many wait."""
    until(lambda: len(place.slots("waiting")) == count)


class Bench:
    """A job whose runs wait for the test, each at a gate of its own, and the order in which all came."""

    def __init__(self, app: App) -> None:
        self.order: list[str] = []
        self.gates: dict[str, Gate] = {}

        @app.job(uses="ollama")
        def generate(name: str) -> None:
            self.come(name)

        self.job = generate

    def come(self, name: str) -> None:
        self.order.append(name)
        self.gate(name).block(name)

    def gate(self, name: str) -> Gate:
        return self.gates.setdefault(name, Gate())

    def reached(self, name: str) -> None:
        self.gate(name).reached()

    def open(self, *names: str) -> None:
        for name in names:
            self.gate(name).open()


# G17, G18, G19


@by_every_caller
def test_G17_a_direct_call_while_idle_runs_at_once(place: Place, caller: Caller) -> None:
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    came: list[Slot] = []
    caller(place, lambda: came.extend(place.slots("held")), timeout=0)
    assert [slot.key for slot in came] == ["ollama"]
    assert place.slots() == []


@by_every_caller
def test_G17_a_direct_call_waits_for_what_runs_and_goes_before_all_that_is_queued(place: Place, caller: Caller) -> None:
    bench = Bench(place.app)
    current = bench.job.enqueue("current")
    with working(place.app, slots=3):
        bench.reached("current")
        queued = [bench.job.options(priority=n).enqueue(f"queued {n}") for n in (9, 5)]
        with beside(lambda: caller(place, lambda: bench.come("direct"))):
            in_line(place)
            assert bench.order == ["current"]  # it is not preempted
            bench.open("current")
            bench.reached("direct")
            assert [run.refresh().state for run in queued] == [State.QUEUED, State.QUEUED]
            assert {reason.code for reason in queued[0].why()} == {"reserved"}
            bench.open("direct")
        bench.reached("queued 9")
        bench.open("queued 9", "queued 5")
        assert [ended(run).attempt for run in (current, *queued)] == [1, 1, 1]
    assert bench.order == ["current", "direct", "queued 9", "queued 5"]


@by_every_caller
def test_G18_a_direct_call_creates_no_run(place: Place, caller: Caller) -> None:
    bench = Bench(place.app)
    bench.open("only")
    with working(place.app):
        ended(bench.job.enqueue("only"))
    tail = [run.id for run in place.app.runs().runs]
    caller(place, lambda: None)
    assert [run.id for run in place.app.runs().runs] == tail
    assert place.slots() == []


@everywhere
def test_G19_a_second_call_waits_and_is_served_in_its_turn(place: Place) -> None:
    order: list[str] = []
    with ExitStack() as callers, place.app.slot("ollama"):
        for n in range(3):
            callers.enter_context(beside(partial(by_app, place, partial(order.append, f"call {n}"))))
            in_line(place, n + 1)
        assert len(place.slots("held")) == 1
        order.append("first")
    assert order == ["first", "call 0", "call 1", "call 2"]


DIES = """
import signal, sys
from windlass import App
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it
with App(sys.argv[1]).slot("ollama", lease=float(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def one_who_dies(place: Place, lease: float) -> Iterator[Callable[[], None]]:
    """A process that holds a slot; the way to kill it."""
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    words = [sys.executable, "-c", DIES, place.address, str(lease)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.kill
        process.kill()


@everywhere
def test_G19_a_caller_that_dies_frees_the_slot_when_its_lease_ends(place: Place) -> None:
    with one_who_dies(place, 1.5) as kill:
        (slot,) = place.slots("held")
        kill()
        with place.app.slot("ollama", timeout=DEADLINE):
            (mine,) = place.slots()
            assert mine.id != slot.id
            assert (mine.held_at or 0) >= slot.created_at + slot.lease


@everywhere
def test_G19_a_caller_that_lives_keeps_its_slot_for_longer_than_its_lease(place: Place) -> None:
    with one_who_dies(place, 4.0):
        with pytest.raises(Timeout), place.app.slot("ollama", timeout=5):
            pass
        assert len(place.slots("held")) == 1


@pytest.mark.parametrize("caller", LIBRARY + HTTP[:2])
@pytest.mark.parametrize("place", ["hub on file"], indirect=True)
def test_G19_every_caller_keeps_its_slot_while_its_block_runs(place: Place, caller: Caller) -> None:
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))

    def inside() -> None:
        (slot,) = place.slots("held")
        until(lambda: [slot.id] == [held.id for held in place.slots("held") if held.lease_until > slot.lease_until])

    caller(place, inside, lease=6)


@over_http
def test_G19_a_restart_of_the_hub_neither_keeps_the_slot_of_the_dead_nor_takes_it_from_the_living(place: Place) -> None:
    hub = place.hubs[0]
    with one_who_dies(place, 1.5) as kill:
        kill()
        hub.stop()
        hub.start()
        with place.app.slot("ollama", timeout=DEADLINE, lease=20) as mine:
            hub.stop()
            hub.start()
            assert not mine.lost
            assert [slot.id for slot in place.slots("held")] == [mine.id]


# The turn is told, not polled for


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "LOOK", AGES * 1000)
    monkeypatch.setattr(verbs, "LONGEST_WAIT", float(AGES))


HEARING = pytest.mark.parametrize(
    "place", corners(("file", "hub on file", "hub on postgres")), indirect=True
)  # a blocking PostgreSQL looks


@HEARING
def test_who_waits_hears_of_a_slot_that_was_requeued(place: Place, only_hints: None) -> None:
    with ExitStack() as callers, place.app.slot("ollama", lease=AGES):
        for n in range(4):
            callers.enter_context(beside(lambda: by_app(place, lambda: None, lease=AGES)))
            in_line(place, n + 1)
    assert place.slots() == []


@HEARING
def test_who_waits_hears_of_a_larger_capacity(place: Place, only_hints: None) -> None:
    with place.app.slot("ollama", lease=AGES), beside(lambda: by_app(place, lambda: None, lease=AGES)):
        in_line(place)
        run_sync(place.app.verbs.set_resource("ollama", capacity=2))
        until(lambda: len(place.slots()) == 1)
    assert place.slots() == []


@over_http
def test_two_hubs_share_a_resource_and_tell_each_other(place: Place, only_hints: None) -> None:
    one, other = place.app, place.new_app(place.add_hub().url)
    run_sync(one.verbs.add_resource("ollama", capacity=1))
    order: list[str] = []

    def call() -> None:
        with other.slot("ollama", lease=AGES):
            order.append("other")

    with ExitStack() as callers, one.slot("ollama", lease=AGES):
        callers.enter_context(beside(call))
        in_line(place)
        order.append("one")
    assert order == ["one", "other"]


# Ways out


class Boom(Exception):
    pass


@by_every_caller
def test_a_slot_is_requeued_when_the_body_fails(place: Place, caller: Caller) -> None:
    if caller is by_hand:
        pytest.skip("there is no block")
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))

    def fail() -> None:
        raise Boom

    with pytest.raises(Boom):
        caller(place, fail)
    assert place.slots() == []


@by_every_caller
def test_a_call_that_is_not_served_in_time_leaves_the_line(place: Place, caller: Caller) -> None:
    if caller is by_hand:
        pytest.skip("it asks as long as it likes")
    with place.app.slot("ollama") as mine:
        with pytest.raises(Timeout) as told:
            caller(place, lambda: pytest.fail("it was not its turn"), timeout=0.2)
        assert isinstance(told.value, TimeoutError)
        assert re.search("0.2 s.*windlass resources show ollama", str(told.value))
        assert [slot.id for slot in place.slots()] == [mine.id]
        with pytest.raises(Timeout):
            caller(place, lambda: pytest.fail("it was not its turn"), timeout=0)
    assert place.slots() == []


@everywhere
def test_a_task_that_is_cancelled_while_it_waits_leaves_the_line(place: Place) -> None:
    async def call() -> None:
        async with AsyncApp(place.address) as app:
            waiting = asyncio.create_task(app.slot("ollama").__aenter__())
            while not place.slots("waiting"):  # noqa: ASYNC110 - it is seen from outside only
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with place.app.slot("ollama") as mine:
        asyncio.run(call())
        assert [slot.id for slot in place.slots()] == [mine.id]


def _lose(place: Place, slot: HeldSlot) -> None:
    assert run_sync(place.app.verbs.release(slot.id, slot.token))
    until(lambda: slot.lost)


@everywhere
def test_a_lost_slot_is_told_inside_and_at_the_end_of_the_block(place: Place) -> None:
    def call(error: Exception | None = None) -> None:
        with place.app.slot("ollama", lease=1) as slot:
            assert not slot.lost
            _lose(place, slot)
            if error is not None:
                raise error

    async def in_a_loop() -> None:
        async with AsyncApp(place.address) as app, app.slot("ollama", lease=1) as slot:
            await asyncio.to_thread(_lose, place, slot)

    with pytest.raises(LeaseLost, match="ollama"):
        call()
    with pytest.raises(Boom):  # what went wrong inside is not hidden
        call(Boom())
    with pytest.raises(LeaseLost, match="ollama"):
        asyncio.run(in_a_loop())


def test_a_slot_that_cannot_be_renewed_is_lost_when_its_lease_ends(tmp_path: Path) -> None:
    served, clock = ServedHub(tmp_path / "away.db"), LeapingClock()

    def call(client: Client) -> None:
        with client.slot("ollama") as slot:
            served.stop()
            assert not slot.lost
            clock.leap(30_000)
            assert slot.lost

    with Client(served.url, patience=0.1, clock=clock) as client:
        client.set_resource("ollama", capacity=1)
        with pytest.raises(LeaseLost):
            call(client)


@everywhere
def test_a_smaller_capacity_takes_nothing_away(place: Place) -> None:
    with place.app.slot("ollama", lease=6) as slot:
        run_sync(place.app.verbs.set_resource("ollama", capacity=0))
        (held,) = place.slots("held")
        until(lambda: slot.lost or place.slots("held")[0].lease_until > held.lease_until)
        assert not slot.lost
    assert place.slots() == []


# Keys and weights


@everywhere
def test_a_key_is_a_line_of_its_own(place: Place) -> None:
    run_sync(place.app.verbs.add_resource("customer", capacity=1))
    with place.app.slot("customer", key="41", timeout=0), place.app.slot("customer", key="42", timeout=0):
        assert sorted(slot.key.partition("\x1f")[2] for slot in place.slots()) == ["41", "42"]
        with pytest.raises(Timeout), place.app.slot("customer", key="42", timeout=0):
            pass


@at_both_ends
def test_a_weight_takes_so_much_of_the_resource(place: Place) -> None:
    run_sync(place.app.verbs.add_resource("gpu", capacity=3))
    with place.app.slot("gpu", weight=2, timeout=0):
        with pytest.raises(Timeout), place.app.slot("gpu", weight=2, timeout=0):
            pass
        with place.app.slot("gpu", timeout=0):
            pass


# What is wrong


UNREADABLE: list[dict[str, Any]] = [
    {"weight": 2}, {"weight": 0}, {"timeout": -1}, {"timeout": "soon"}, {"lease": 0}, {"lease": 10**9}, {"key": ""},
]  # fmt: skip


@at_both_ends
def test_a_call_that_cannot_be_read_is_refused_and_leaves_nothing(place: Place, subtests: pytest.Subtests) -> None:
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    for how, caller in itertools.product(UNREADABLE, LIBRARY + (HTTP[:2] if place.hubs else ())):
        with subtests.test(f"{caller.__name__} {how}"):
            with pytest.raises(BadInput):
                caller(place, lambda: pytest.fail("it got in"), **how)
            assert place.slots() == []


@at_both_ends
def test_a_resource_that_nobody_has_set_has_no_slots(place: Place) -> None:
    with pytest.raises(NotFound) as told, place.app.slot("none"):
        pass
    assert "windlass resources set" in told.value.hint


@pytest.fixture
def http(place: Place) -> Iterator[httpx.Client]:
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    with httpx.Client(base_url=f"{place.address}api/v1/", timeout=DEADLINE) as http:
        yield http


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@over_http
def test_what_is_wrong_with_a_slot_over_http_is_said(place: Place, http: httpx.Client) -> None:
    slot = http.post("slots", json={"resource": "ollama"}).json()
    path, token = f"slots/{slot['id']}", slot["token"]
    assert problem(http.post("slots", json={})) == (400, "bad_input")
    assert problem(http.post("slots", json={"resource": "ollama", "wait": -1})) == (400, "bad_input")
    assert problem(http.post("slots", json={"resource": "ollama", "wat": 1})) == (400, "bad_input")
    assert problem(http.post("slots", json={"resource": "none"})) == (404, "not_found")
    assert problem(http.post("slots", json={"resource": "ollama", "id": slot["id"], "token": "other"})) == (400, "bad_input")
    assert problem(http.post(f"{path}/renew", json={"token": "other"})) == (409, "lease_lost")
    assert problem(http.post("slots/none/renew", json={"token": token})) == (409, "lease_lost")
    assert http.post(f"{path}/release", json={"token": "other"}).json() == {"released": False}
    assert [one.id for one in place.slots()] == [slot["id"]]
    assert "token" not in http.get("slots").json()["slots"][0]
    assert http.post(f"{path}/renew", json={"token": token}).json()["state"] == "held"
    assert http.post(f"{path}/release", json={"token": token}).json() == {"released": True}
    assert http.post(f"{path}/release", json={"token": token}).json() == {"released": False}


@over_http
def test_an_ask_that_is_repeated_is_the_same_slot(place: Place, http: httpx.Client) -> None:
    asked = {"resource": "ollama", "id": "mine", "token": "secret-of-mine"}
    first, again = (http.post("slots", json=asked).json() for _ in range(2))
    assert first == again
    assert len(place.slots()) == 1


@pytest.mark.parametrize(("path", "what"), corners(("release", "renew", "slots"), ("cut", "refuse", "replay")))
def test_N1_a_bad_network_changes_nothing_for_a_direct_call(tmp_path: Path, path: str, what: What) -> None:
    served = ServedHub(tmp_path / "proxy.db")
    proxy = Proxy(served.port)
    with Client(proxy.url) as client:
        client.set_resource("ollama", capacity=1)
        proxy.once(path, what)
        with client.slot("ollama", lease=6, timeout=0) as slot:
            until(lambda: [asked for _, asked, _ in proxy.seen if asked.endswith("renew")])
            assert not slot.lost
            assert [found.id for found in client.slots()] == [slot.id]
        assert client.slots() == []
    assert what in [done for _, _, done in proxy.seen]
    until(lambda: what != "replay" or len(proxy.replayed) == 2)
    proxy.close()
    served.stop()


def test_slots_are_listed_in_pages(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "pages.db")
    with Client(served.url) as client:
        client.set_resource("ollama", capacity=1)
        ids = [client.reserve("ollama").id for _ in range(3)]
        first = client.slots(count=2)
        assert [slot.id for slot in first] == ids[:2]
        assert [slot.id for slot in client.slots(after=first[-1].seq, count=2)] == ids[2:]
        assert [slot.state for slot in client.slots()] == ["held", "waiting", "waiting"]
        assert {slot.token for slot in client.slots()} == {""}
    served.stop()


def test_a_hub_bounds_those_who_wait_for_their_turn(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "full.db", HubSettings(waits=0))
    with httpx.Client(base_url=f"{served.url}api/v1/") as http, Client(served.url) as client:
        client.set_resource("ollama", capacity=1)
        assert http.post("slots", json={"resource": "ollama"}).json()["state"] == "held"
        assert problem(http.post("slots", json={"resource": "ollama", "wait": 1_000})) == (429, "limit_reached")
        assert len(client.slots()) == 1  # and nobody is left in line
    served.stop()


def test_a_caller_that_hangs_up_is_not_kept_in_line(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "gone.db", HubSettings(longest_wait=AGES * 1000))
    body = json.dumps({"resource": "ollama", "wait": AGES * 1000, "lease": 2_000})
    head = f"POST /api/v1/slots HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with Client(served.url) as client:
        client.set_resource("ollama", capacity=1)
        with client.slot("ollama"):
            with socket.create_connection(("127.0.0.1", served.port)) as line:
                line.sendall((head + body).encode())
                until(lambda: len(client.slots()) == 2)
            until(lambda: len(client.slots()) == 1)
    served.stop()


def test_ctrl_c_while_waiting_leaves_the_line(place: Place) -> None:
    words = [sys.executable, "-c", DIES, place.address, "600"]
    with place.app.slot("ollama") as mine, subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        in_line(place)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) != 0
        assert [slot.id for slot in place.slots()] == [mine.id]


def test_a_run_may_hold_a_slot_itself(place: Place) -> None:
    app = place.app

    @app.job()
    def asks() -> str:
        with app.slot("ollama", timeout=DEADLINE):
            return "had it"

    with working(app):
        assert asks.enqueue().wait(DEADLINE) == "had it"
    assert in_state(asks.enqueue(), State.QUEUED).attempt == 1


# The command line


class Slotted:
    """`windlass slot`, as a program of its own."""

    def __init__(self, place: Place, *words: str) -> None:
        where = ["--hub" if place.hubs else "--store", place.address]
        command = [sys.executable, "-m", "windlass", *where, "slot", *words]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def reads(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ends(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err


@pytest.fixture
def windlass(place: Place) -> Callable[..., Slotted]:
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    return partial(Slotted, place)


NAPS = ["sh", "-c", "trap 'kill $!; echo told; exit 9' TERM INT; sleep 600 & echo up; wait"]


@at_both_ends
def test_a_command_runs_while_it_holds_a_slot_and_its_exit_code_is_passed_on(place: Place, windlass: Callable[..., Slotted]) -> None:
    script = "echo $0 $*; exit 7"
    assert windlass("ollama", "--timeout", "30s", "--", "sh", "-c", script, "a", "--", "-b").ends() == (7, "a -- -b\n", "")
    assert place.slots() == []
    with place.app.slot("ollama"):
        slow = windlass("ollama", "--", "sh", "-c", "echo came")
        in_line(place)
    assert slow.ends() == (0, "came\n", "")


@at_both_ends
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_commands_once_it_runs_and_end_the_wait_before(
    place: Place, windlass: Callable[..., Slotted], number: signal.Signals
) -> None:
    napping = windlass("ollama", "--", *NAPS)
    assert napping.reads() == "up"
    waiting = windlass("ollama", "--", "true")
    in_line(place)
    waiting.process.send_signal(number)
    assert waiting.ends()[0] == 128 + number
    assert len(place.slots()) == 1
    napping.process.send_signal(number)
    assert napping.ends()[:2] == (9, "told\n")
    assert place.slots() == []


@at_both_ends
def test_a_command_is_told_when_its_slot_is_lost(place: Place, windlass: Callable[..., Slotted]) -> None:
    napping = windlass("ollama", "--lease", "1s", "--", *NAPS)
    assert napping.reads() == "up"
    (slot,) = run_sync(Engine(store := open_store(place.store, clock := SystemClock(), blocking=True), clock).slots())
    run_sync(store.close())
    assert run_sync(place.app.verbs.release(slot.id, slot.token))
    code, out, err = napping.ends()
    assert (code, out) == (codes.CONFLICT, "told\n")
    assert "was lost" in err


@at_both_ends
def test_what_is_wrong_with_a_slot_at_the_command_line_is_said(
    place: Place, windlass: Callable[..., Slotted], capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--hub" if place.hubs else "--store", place.address]
    with place.app.slot("ollama"):
        for words, code, said in (
            (["ollama"], codes.USAGE, "There is no command to run."),
            (["none", "--", "true"], codes.NOT_FOUND, "There is no resource 'none'."),
            (["ollama", "--weight", "2", "--", "true"], codes.USAGE, "Ask for less"),
            (["ollama", "--wat", "--", "true"], codes.USAGE, "windlass slot has no option --wat."),
        ):
            ended_with, printed = cli.main([*where, "slot", *words]), capsys.readouterr()
            assert (ended_with, printed.out) == (code, ""), printed.err
            assert said in printed.err
        ended_with, out, err = windlass("ollama", "--timeout", "200ms", "--", "true").ends()
        assert (ended_with, out) == (codes.TIMED_OUT, ""), err
        assert "No slot of 'ollama' was free within 0.2 s." in err
        assert len(place.slots()) == 1
    assert windlass("ollama", "--", "no-such-command-here").ends()[0] == codes.USAGE
    assert place.slots() == []


@at_both_ends
def test_slots_are_listed_at_the_command_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--hub" if place.hubs else "--store", place.address]
    run_sync(place.app.verbs.add_resource("ollama", capacity=1))
    assert cli.main([*where, "slots"]) == 0
    assert "No slot is held" in capsys.readouterr().err
    with place.app.slot("ollama", key="42") as slot:
        assert cli.main([*where, "slots"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:5] == [slot.id, "ollama", "for", "42", "held"]
        assert cli.main([*where, "slots", "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["slots"]
        assert (told["id"], told["resource"], told["key"], told["state"], "token" in told) == (slot.id, "ollama", "42", "held", False)
