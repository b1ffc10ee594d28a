"""Workers through a hub: the same worker, over a network and past restarts that may come at any time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.proxies import Proxy
from tests.served import LeapingClock, ServedHub
from tests.tiers import corners, long
from tests.workers import DEADLINE, Gate, ended, in_state, moves, program, until, working
from windlass import App, Context, State, cli
from windlass.api.port import report_view
from windlass.client import BlockingTransport, Client, RemotePort
from windlass.client.spool import Spool
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine, Outcome
from windlass.errors import Cancelled, Conflict, HubUnreachable, LeaseLost, StoreBusy, StoreError, Unauthorized, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import Failure, NewRun, Options, Receipt, Run, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held

FORGE: dict[str, Any] = {"max_attempts": 3, "backoff": (0,), "on_exhausted": "quarantined"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers keep their unsent reports."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(params=["sqlite", "postgres"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServedHub]:
    store = str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres")
    served = ServedHub(store, clock=LeapingClock())
    yield served
    served.stop()


@pytest.fixture
def one_hub(tmp_path: Path) -> Iterator[ServedHub]:
    """On SQLite only, for what does not depend on the store."""
    served = ServedHub(tmp_path / "hub.db", clock=LeapingClock())
    yield served
    served.stop()


@pytest.fixture
def proxy(one_hub: ServedHub) -> Iterator[Proxy]:
    made = Proxy(one_hub.port)
    yield made
    made.close()


@pytest.fixture
def app(hub: ServedHub) -> Iterator[App]:
    with App(hub.url) as app:
        yield app


def _client(url: str) -> RemotePort:
    return RemotePort(BlockingTransport(url), SystemClock())


# F: the Forge agent, by its meaning


def test_F3_fifty_concurrent_claims_get_distinct_runs_one_owner_each(hub: ServedHub) -> None:
    with Client(hub.url) as client:
        client.define("solve")
        ids = [made.id for made in client.create([NewRun("solve", n) for n in range(40)])]

        def claim(n: int) -> tuple[str, list[Run]]:
            port = _client(hub.url)
            try:
                return f"w{n}", run_sync(port.claim(WorkerInfo(f"w{n}"), count=1, lease=60_000))
            finally:
                run_sync(port.close())

        with ThreadPoolExecutor(50) as threads:
            answers = list(threads.map(claim, range(50)))
        got = {run.id: worker for worker, runs in answers for run in runs}
        assert Counter(run.id for _, runs in answers for run in runs) == Counter(ids)
        assert {run_id: client.get(run_id).worker for run_id in ids} == got


def test_F13_a_worker_paused_past_its_lease_is_refused_and_nothing_of_it_is_stored(hub: ServedHub) -> None:
    with Client(hub.url) as client, program(hub.url, "1", "2") as paused:
        client.define("held", options=Options(backoff=(0,)))
        (made,) = client.create([NewRun("held")])
        assert paused.says()[:3] == ["began", made.id, "1"]
        until(lambda: client.get(made.id).state is State.RUNNING)
        paused.signal(signal.SIGSTOP)
        until(lambda: client.get(made.id).state is State.QUEUED)
        (lost, _) = client.attempts(made.id)
        assert lost.outcome == "lapsed"
        port = _client(hub.url)
        (new,) = run_sync(port.claim(WorkerInfo("new"), count=1, lease=60_000))
        assert (new.id, new.attempt) == (made.id, 2)
        before = client.get(made.id)
        paused.signal(signal.SIGCONT)
        paused.tell('"late"')
        assert paused.says()[:2] == ["ends", made.id]
        paused.signal(signal.SIGTERM)
        while paused.says():
            pass  # until it has said all it had to say to the hub
        assert paused.wait() == 0
        assert client.get(made.id) == before
        run_sync(port.report_many([Outcome(new.id, Succeed(token=new.token, output='"new"'), new.seq)]))
        run_sync(port.close())
        assert [attempt.outcome for attempt in client.attempts(made.id)] == ["lapsed", "succeeded"]
        assert client.get(made.id).output == '"new"'


@pytest.mark.parametrize("end", ["completed", "quarantined", "cancelled"])
def test_F17_late_words_about_a_run_that_has_ended_are_refused_and_change_nothing(hub: ServedHub, end: str) -> None:
    with Client(hub.url) as client:
        client.define("solve", options=Options(**FORGE | {"max_attempts": 1}))
        (made,) = client.create([NewRun("solve")])
        port = _client(hub.url)
        (run,) = run_sync(port.claim(WorkerInfo("w"), count=1, lease=60_000))
        boom = Fail(token=run.token, error=Failure("boom", "it broke"))
        match end:
            case "completed":
                run_sync(port.report_many([Outcome(run.id, Succeed(token=run.token, output="1"))]))
            case "quarantined":
                run_sync(port.report_many([Outcome(run.id, boom)]))
            case _:
                client.cancel(made.id)
                (answer,) = run_sync(port.report_many([Outcome(run.id, Succeed(token=run.token, output="1"))]))
                assert isinstance(answer, Cancelled)
        before, journal = client.get(made.id), client.history(made.id)
        assert run_sync(port.beat([Held(run.seq, run.token or "")], lease=60_000)) == ["lost"]
        assert run_sync(port.start_many([Held(run.seq, run.token or "")])) == set()
        with pytest.raises((LeaseLost, Cancelled)):
            run_sync(port.log(run.id, run.token or "", [(1, "late")]))
        late = Fail(token=run.token, error=Failure("late", "too late"))
        answers = run_sync(port.report_many([Outcome(run.id, Succeed(token=run.token, output="2")), Outcome(run.id, late)]))
        expected = Cancelled if end == "cancelled" else WrongState
        assert [type(answer) for answer in answers] == [expected, expected]
        assert (client.get(made.id), client.history(made.id), client.lines(made.id)) == (before, journal, [])
        run_sync(port.close())


def test_a_killed_worker_that_is_started_again_under_its_name_goes_on_at_once(hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_NAME", "same")
    with Client(hub.url) as client:
        client.define("held", options=Options(backoff=(0,)))
        (made,) = client.create([NewRun("held")])
        with program(hub.url, "1", "600") as first:
            assert first.says()[:3] == ["began", made.id, "1"]
        with program(hub.url, "1", "600") as second:
            assert second.says()[:3] == ["began", made.id, "2"]
            second.tell("again")
            run = client.wait(made.id, DEADLINE)
        outcomes = [attempt.outcome for attempt in client.attempts(made.id)]
    assert (run.output, run.failures, outcomes) == ('"again"', 1, ["lapsed", "succeeded"])


def test_F20_a_worker_that_registers_twice_is_one_worker(hub: ServedHub) -> None:
    port = _client(hub.url)
    run_sync(port.register(WorkerInfo("agent", tags=("gpu",), cores=2), about={"host": "a"}))
    run_sync(port.register(WorkerInfo("agent", cores=8)))
    run_sync(port.close())
    with Client(hub.url) as client:
        (worker,) = client.workers()
    assert (worker.info.name, worker.info.cores, worker.info.tags, worker.alive) == ("agent", 8, (), True)


class HubProcess:
    """A hub as a program, which can be killed and started again."""

    def __init__(self, store: Path) -> None:
        self.store, self.port = store, 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if not self.port:
            import socket

            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "windlass", "hub", "--store", str(self.store), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)


@pytest.fixture
def hub_process(tmp_path: Path) -> Iterator[HubProcess]:
    made = HubProcess(tmp_path / "hub.db")
    yield made
    made.kill()


def test_F22_a_hub_that_is_killed_and_back_within_the_lease_disturbs_no_run(hub_process: HubProcess) -> None:
    with Client(hub_process.url, patience=DEADLINE) as client:
        client.define("held")
        made = client.create([NewRun("held") for _ in range(3)])
        engine = Engine(open_store(str(hub_process.store), SystemClock(), blocking=True), SystemClock())
        with program(hub_process.url, "3", "40") as worker:
            assert {worker.says()[1] for _ in range(3)} == {one.id for one in made}
            until(lambda: all(client.get(one.id).state is State.RUNNING for one in made))
            before = [client.history(one.id) for one in made]
            leases = [run_sync(engine.get(one.id)).lease_until or 0 for one in made]
            for _ in range(2):
                hub_process.kill()
                time.sleep(1)  # the outage itself
                hub_process.start()
                client.jobs()
            until(lambda: all((run_sync(engine.get(one.id)).lease_until or 0) > lease for one, lease in zip(made, leases, strict=True)))
            assert [client.history(one.id) for one in made] == before
            for n in range(3):
                worker.tell(f"after {n}")
                assert worker.says()[0] == "ends"
            ends = [client.wait(one.id, DEADLINE) for one in made]
        run_sync(engine.close())
    assert [(run.state, run.attempt, run.failures, run.requeues) for run in ends] == [(State.SUCCEEDED, 1, 0, 0)] * 3
    assert {json.loads(run.output or "") for run in ends} == {"after 0", "after 1", "after 2"}


@long
def test_F22_a_hub_that_is_away_for_nearly_the_whole_lease_disturbs_no_run(hub_process: HubProcess) -> None:
    lease, away, proxy = 15.0, threading.Event(), Proxy(hub_process.port)

    def rule(_: str, path: str) -> Any:
        if path.endswith("/beat") and not away.is_set():
            away.set()  # so the last beat that was answered is as old as it can be
        return "refuse" if away.is_set() else "pass"

    with Client(hub_process.url, patience=DEADLINE) as client, program(proxy.url, "1", str(lease)) as worker:
        client.define("held")
        (made,) = client.create([NewRun("held")])
        assert worker.says()[:2] == ["began", made.id]
        until(lambda: client.get(made.id).state is State.RUNNING)
        until(lambda: sum(path.endswith("/beat") for _, path, _ in proxy.seen) >= 2)
        proxy.rule = rule
        assert away.wait(DEADLINE)
        began = time.monotonic()
        hub_process.kill()
        hub_process.start()
        client.jobs()
        outage = 0.78 * lease  # of the five sixths that are promised
        assert time.monotonic() - began < outage, "The machine is too slow for this test."
        time.sleep(began + outage - time.monotonic())
        proxy.rule, beats = lambda *_: "pass", len(proxy.seen)
        until(lambda: any(path.endswith("/beat") and what == "pass" for _, path, what in proxy.seen[beats:]))
        worker.tell("after")
        assert worker.says() == ["ends", made.id, "None"]
        run = client.wait(made.id, DEADLINE)
    proxy.close()
    assert (run.state, run.attempt, run.failures, run.requeues, run.output) == (State.SUCCEEDED, 1, 0, 0, '"after"')


def test_F25_a_worker_told_to_stop_finishes_what_it_has_and_claims_nothing_more(hub: ServedHub) -> None:
    with Client(hub.url) as client, program(hub.url) as worker:
        client.define("held")
        first, second = client.create([NewRun("held"), NewRun("held")])
        assert worker.says()[:2] == ["began", first.id]
        worker.signal(signal.SIGTERM)
        assert worker.says() == ["stopping"]
        worker.tell("done")
        assert worker.says()[:2] == ["ends", first.id]
        assert worker.says() == ["over", "False"]
        assert worker.wait() == 0
        assert (client.get(first.id).state, client.get(first.id).output) == (State.SUCCEEDED, '"done"')
        assert client.get(second.id).state is State.QUEUED


# A worker, as everywhere


def test_a_new_run_is_taken_at_once_and_an_idle_worker_asks_seldom(one_hub: ServedHub, proxy: Proxy) -> None:
    with App(proxy.url) as app, Client(one_hub.url) as client:

        @app.job(name="quick")
        async def quick() -> int:
            return 1

        with working(app, slots=4):
            (made,) = client.create([NewRun("quick")])
            client.wait(made.id, DEADLINE)
            until(lambda: [path for _, path, _ in proxy.seen[-6:]].count("/api/v1/worker/wait") >= 1)
            time.sleep(1)
            quiet = len(proxy.seen)
            time.sleep(3)  # in which nothing is to be done
            assert len(proxy.seen) - quiet <= 2
            asked = time.perf_counter()
            (made,) = client.create([NewRun("quick")])
            client.wait(made.id, DEADLINE)
            assert time.perf_counter() - asked < 5  # a wait lasts 25 s


def test_a_worker_that_is_there_before_its_hub_waits_for_it(one_hub: ServedHub) -> None:
    with Client(one_hub.url) as client:
        client.define("quick")
        (made,) = client.create([NewRun("quick")])
        one_hub.stop()
        with program(one_hub.url) as worker:
            time.sleep(2)  # it has come, and found nobody
            assert worker.process.poll() is None
            one_hub.start()
            assert worker.says()[:2] == ["did", made.id]


def test_a_cancel_reaches_the_handler_at_once(app: App) -> None:
    gate = Gate()

    @app.job(name="long")
    async def long() -> None:
        await gate.wait()

    handle = long.enqueue()
    with working(app, lease=60):
        gate.reached()
        in_state(handle, State.RUNNING)
        handle.cancel("enough")
        assert ended(handle).state is State.CANCELLED


def test_logs_and_progress_go_through_and_large_outputs_too(app: App) -> None:
    @app.job(name="talk")
    def talk(ctx: Context, lines: int) -> str:
        for n in range(lines):
            ctx.logger.info("%d %s", n, "é" * 500)
        ctx.progress(0.5, "half")
        return "x" * 1_000_000

    runs = app.enqueue_many(talk.new(lines) for lines in (3_000, *[100] * 11))
    with working(app, slots=12):
        for run in runs:
            assert ended(run).state is State.SUCCEEDED
    assert len(runs[0].logs()) == 3_000
    assert len(runs[-1].result) == 1_000_000
    assert runs[0].progress is not None
    assert runs[0].progress.message == "half"


def test_a_worker_tells_who_it_is_and_how_its_host_is_doing(app: App, hub: ServedHub) -> None:
    @app.job(name="quick")
    async def quick() -> None: ...

    with working(app, slots=7, tags=["gpu"], name="agent"), Client(hub.url) as client:
        worker = until(lambda: next((one for one in client.workers() if one.metrics), None))
    assert (worker.info.name, worker.info.slots, worker.info.tags, worker.info.jobs) == ("agent", 7, ("gpu",), ("quick",))
    assert worker.info.cores >= 1
    assert worker.info.memory > 0
    assert {"host", "pid", "version"} <= worker.about.keys()
    assert worker.about["pid"] == os.getpid()
    assert worker.metrics.keys() == {
        "cpu", "memory", "memory_total", "disk", "disk_total", "load1", "load5", "load15", "cores", "loop_lag_ms", "clock", "incarnation",
    }  # fmt: skip


def test_a_worker_whom_the_hub_does_not_know_ends_and_says_so(tmp_path: Path) -> None:
    served = ServedHub(tmp_path / "hub.db", open=False)
    with App(served.url) as app:

        @app.job(name="quick")
        async def quick() -> None: ...

        with pytest.raises(Unauthorized), working(app):
            pass
    served.stop()


# N1, N2: answers that are lost, requests that come twice


LINES = ["INFO first line", "INFO second line"]


def _busy_app(app: App, calls: Counter[str]) -> Any:
    @app.job(name="busy", max_attempts=1)
    async def busy(ctx: Context) -> str:
        calls[ctx.run] += 1
        ctx.logger.info("first line")
        ctx.progress(0.1, "begun")
        await asyncio.sleep(0.4)  # long enough for a start, a log and a beat of their own
        ctx.logger.info("second line")
        return str(await ctx.step("answer", lambda: ctx.run))

    return busy


ENDPOINTS = ("claim", "register", "lives", "lapse", "recover", "start", "beat", "log", "step", "wait", "metrics", "report")


@pytest.mark.parametrize(("endpoint", "fate"), corners(ENDPOINTS, ("cut", "refuse")))
def test_N1_an_answer_of_the_hub_that_is_lost_costs_nothing(
    one_hub: ServedHub, proxy: Proxy, endpoint: str, fate: Any, state_home: Path
) -> None:
    calls: Counter[str] = Counter()
    path, counts = f"/worker/{endpoint}", Counter[str]()

    def rule(method: str, asked: str) -> Any:
        if endpoint == "recover" and asked.endswith("/worker/claim") and not counts["claim"]:
            counts["claim"] += 1
            return "cut"  # nobody recovers unless a claim was lost
        counts[asked] += asked.endswith(path)
        return fate if asked.endswith(path) and counts[asked] in (1, 2, 4) else "pass"

    with App(proxy.url) as app, App(one_hub.url) as near:
        busy = _busy_app(app, calls)
        _busy_app(near, calls)
        runs = near.enqueue_many(near.jobs["busy"].new() for _ in range(10))
        assert busy.name == "busy"
        proxy.rule = rule
        with working(app, slots=4, lease=6):
            states = [ended(run) for run in runs]
        logs, claims = [run.logs() for run in runs], [moves(near, run).count("claim") for run in runs]
    assert fate in {what for _, asked, what in proxy.seen if asked.endswith(path)}
    assert [(run.state, run.attempt) for run in states] == [(State.SUCCEEDED, 1)] * 10
    assert calls == Counter({run.id: 1 for run in runs})
    assert [[line.text for line in lines] for lines in logs] == [LINES] * 10
    assert claims == [1] * 10
    assert state_home.exists() or endpoint != "report"  # what could not be reported at once was kept
    assert list(state_home.rglob("*.reports")) == []  # and let go when it was


def test_N2_a_worker_whose_every_request_comes_three_times_does_its_work_once(one_hub: ServedHub, proxy: Proxy) -> None:
    calls: Counter[str] = Counter()
    proxy.rule = lambda method, path: "pass" if path.endswith("/worker/wait") else "replay"
    with App(proxy.url) as app, App(one_hub.url) as near:
        _busy_app(app, calls)
        _busy_app(near, calls)
        runs = near.enqueue_many(near.jobs["busy"].new() for _ in range(20))
        with working(app, slots=4, lease=10):
            states = [ended(run) for run in runs]
        logs, done = [run.logs() for run in runs], [Counter(moves(near, run)) for run in runs]
    assert [(run.state, run.attempt) for run in states] == [(State.SUCCEEDED, 1)] * 20
    assert calls == Counter({run.id: 1 for run in runs})
    assert [[line.text for line in lines] for lines in logs] == [LINES] * 20
    assert all(moved["claim"] == moved["succeed"] == 1 for moved in done)


# N3, N4, N9: silence, slowness, partition


@long
def test_N3_N9_a_worker_cut_off_stops_in_time_and_works_again_when_the_network_is_back(one_hub: ServedHub, proxy: Proxy) -> None:
    why: list[str | None] = []
    begun, open_again = Gate(), threading.Event()

    with App(proxy.url) as app, App(one_hub.url) as near:
        for one in (app, near):

            @one.job(name="long", backoff=(0,))
            async def long(ctx: Context) -> str:
                if ctx.attempt == 1:
                    try:
                        await begun.wait(ctx.run)
                    except asyncio.CancelledError:
                        why.append(ctx.why)
                        raise
                return "done"

        handle = near.enqueue("long")
        with working(app, lease=3):
            begun.reached()
            cut_off = time.monotonic()
            proxy.rule = lambda method, path: "pass" if open_again.is_set() else "swallow"
            until(lambda: why)
            assert why == ["lost"]
            assert time.monotonic() - cut_off < 3  # before anybody else may begin
            until(lambda: handle.refresh().state is State.QUEUED)
            open_again.set()
            run = ended(handle)
        outcomes = [attempt.outcome for attempt in handle.attempts()]
    assert (run.state, run.attempt, outcomes) == (State.SUCCEEDED, 2, ["lapsed", "succeeded"])


def test_N3_a_beat_on_a_dead_connection_is_given_up_in_time_for_another(one_hub: ServedHub, proxy: Proxy) -> None:
    gate = Gate()
    with App(proxy.url) as app, App(one_hub.url) as near:
        for one in (app, near):

            @one.job(name="long", max_attempts=1)
            async def long(ctx: Context) -> None:
                await gate.wait(ctx.run)

        handle = near.enqueue("long")
        with working(app, lease=6):
            gate.reached()
            proxy.once("/worker/beat", "swallow")
            beats = until(lambda: [what for _, path, what in proxy.seen if path.endswith("/beat")][2:])
            gate.open()
            run = ended(handle)
    assert "pass" in beats
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)


def test_N4_a_slow_report_does_not_starve_the_beats(one_hub: ServedHub) -> None:
    proxy = Proxy(one_hub.port, delay=5.0)
    proxy.rule = lambda method, path: "hold" if path.endswith("/report") else "pass"
    with App(proxy.url) as app, App(one_hub.url) as near:
        for one in (app, near):

            @one.job(name="large")
            async def large() -> str:
                return "x" * 500_000

        handle = near.enqueue("large")
        with working(app, lease=2):
            run = ended(handle)
    proxy.close()
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)
    assert len([path for _, path, _ in proxy.seen if path.endswith("/beat")]) >= 3


# The spool


def _spooled(folder: Path) -> list[str]:
    return [line for path in folder.rglob("*.reports") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", [None, "same"])
def test_a_report_outlives_the_worker_when_the_hub_is_away(
    one_hub: ServedHub, state_home: Path, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name is not None:  # the former process's lease is not ended before its report is delivered
        monkeypatch.setenv("WINDLASS_NAME", name)
    with Client(one_hub.url) as client:
        client.define("held")
        (made,) = client.create([NewRun("held")])
        with program(one_hub.url, "1", "60") as first:
            assert first.says()[:2] == ["began", made.id]
            until(lambda: client.get(made.id).state is State.RUNNING)
            one_hub.stop()
            first.tell("kept")
            assert first.says()[:2] == ["ends", made.id]
            (line,) = until(lambda: _spooled(state_home))
            assert json.loads(line)["run"] == made.id
            (file,) = state_home.rglob("*.reports")
            assert file.stat().st_mode & 0o777 == 0o600
            first.signal(signal.SIGKILL)
            first.wait()
        one_hub.start()
        assert client.get(made.id).state is State.RUNNING
        with program(one_hub.url, "1", "60") as second:
            run = client.wait(made.id, DEADLINE)
            second.signal(signal.SIGTERM)
            assert second.wait() == 0
    assert (run.state, run.output, run.attempt) == (State.SUCCEEDED, '"kept"', 1)
    assert list(state_home.rglob("*.reports")) == []


def test_a_report_that_comes_too_late_is_dropped_and_nothing_of_it_is_stored(hub_process: HubProcess, state_home: Path) -> None:
    with Client(hub_process.url, patience=DEADLINE) as client:
        client.define("held", options=Options(backoff=(0,)))
        (made,) = client.create([NewRun("held")])
        with program(hub_process.url, "1", "6") as first:
            assert first.says()[:2] == ["began", made.id]
            hub_process.kill()
            first.tell("late")
            until(lambda: _spooled(state_home))
            first.signal(signal.SIGKILL)
            first.wait()
        hub_process.start()
        until(lambda: client.get(made.id).state is State.QUEUED)  # the hub has watched for a whole lease, and nobody has beaten
        with program(hub_process.url, "1", "60") as second:
            assert second.says()[:3] == ["began", made.id, "2"]
            assert list(state_home.rglob("*.reports")) == []
            second.tell("again")
            run = client.wait(made.id, DEADLINE)
            outcomes = [attempt.outcome for attempt in client.attempts(made.id)]
    assert (run.output, outcomes) == ('"again"', ["lapsed", "succeeded"])


class _Taking:
    """A port that takes reports, or does not."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.taken = list(answers), list[Outcome]()

    async def report_many(self, outcomes: Any) -> Any:
        if self.answers and isinstance(self.answers[0], StoreError):
            raise self.answers.pop(0)
        self.taken += outcomes
        return [self.answers.pop(0) if self.answers else Receipt(outcome.run, State.SUCCEEDED) for outcome in outcomes]


def _outcomes(count: int, size: int = 1) -> list[Outcome]:
    return [Outcome(f"run-{n}", Succeed(token="t" * 22, output='"' + "x" * size + '"'), n) for n in range(count)]


def test_the_spool_keeps_each_report_once_and_is_gone_when_all_are_answered(tmp_path: Path) -> None:
    outcomes = _outcomes(3)
    spool = Spool(tmp_path, "http://hub", "w/1", "n1")
    spool.keep(outcomes[:2])
    spool.keep(outcomes)
    assert [json.loads(line)["run"] for line in _spooled(tmp_path)] == ["run-0", "run-1", "run-2"]
    spool.drop(outcomes[:1])
    assert len(_spooled(tmp_path)) == 3  # what is sent twice does no harm
    spool.drop(outcomes[1:])
    assert _spooled(tmp_path) == []
    spool.close()
    assert list(tmp_path.rglob("*.reports")) == []


def test_the_spool_takes_over_only_from_workers_that_have_ended_and_only_for_its_hub(tmp_path: Path) -> None:
    dead, alive, elsewhere = (Spool(tmp_path, hub, "w", nonce) for hub, nonce in (("http://a", "1"), ("http://a", "2"), ("http://b", "3")))
    for spool, outcome in zip((dead, alive, elsewhere), _outcomes(3), strict=True):
        spool.keep([outcome])
    dead.close()
    elsewhere.close()
    port, mine = _Taking(), Spool(tmp_path, "http://a", "w", "4")
    asyncio.run(mine.deliver(port))
    assert [outcome.run for outcome in port.taken] == ["run-0"]
    assert sorted(json.loads(line)["run"] for line in _spooled(tmp_path)) == ["run-1", "run-2"]
    alive.close()


def test_a_delivery_that_fails_is_done_again_and_what_is_refused_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, "http://hub", "w", "1")
    spool.keep(_outcomes(2))
    spool.close()
    port, again = _Taking(HubUnreachable("away", hint="-"), LeaseLost("gone", hint="-")), Spool(tmp_path, "http://hub", "w", "2")
    with pytest.raises(HubUnreachable):
        asyncio.run(again.deliver(port))
    assert len(_spooled(tmp_path)) == 2
    asyncio.run(again.deliver(port))
    assert [outcome.run for outcome in port.taken] == ["run-0", "run-1"]
    assert "too late" in caplog.text
    assert list(tmp_path.rglob("*.reports")) == []


def test_a_report_that_must_be_said_again_stays_until_it_is_answered_otherwise(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "http://hub", "w", "1")
    spool.keep(_outcomes(2))
    spool.close()
    port, again = _Taking(Receipt("run-0", State.SUCCEEDED), Conflict("faster", hint="-")), Spool(tmp_path, "http://hub", "w", "2")
    with pytest.raises(StoreBusy, match="faster"):
        asyncio.run(again.deliver(port))
    assert len(_spooled(tmp_path)) == 2
    asyncio.run(again.deliver(port))
    assert [outcome.run for outcome in port.taken] == ["run-0", "run-1"] * 2
    assert list(tmp_path.rglob("*.reports")) == []


def test_of_two_reports_for_one_hold_the_newer_is_kept(tmp_path: Path) -> None:
    (older, other), refused = _outcomes(2), Fail(token="t" * 22, error=Failure("bad_output", "refused"))
    spool = Spool(tmp_path, "http://hub", "w", "1")
    spool.keep([older, other])
    spool.keep([older._replace(report=refused), other])
    spool.keep([older._replace(report=refused), other])
    assert len(_spooled(tmp_path)) == 3
    spool.close()
    port = _Taking()
    asyncio.run(Spool(tmp_path, "http://hub", "w", "2").deliver(port))
    assert [(outcome.run, outcome.report) for outcome in port.taken] == [("run-1", other.report), ("run-0", refused)]


def test_a_worker_keeps_a_report_on_disk_while_the_hub_asks_it_to_say_it_again(
    one_hub: ServedHub, proxy: Proxy, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()

    async def faster(outcomes: Any) -> Any:
        asked.update(outcome.run for outcome in outcomes)
        await asyncio.sleep(0.01)
        return [Conflict("somebody was faster", hint="Say it again.")] * len(outcomes)

    with App(proxy.url) as app:

        @app.job(name="quick")
        async def quick() -> str:
            return "done"

        with working(app):
            proxy.rule = lambda _, path: "refuse" if path.endswith("/report") else "pass"
            run = quick.enqueue()
            until(lambda: _spooled(state_home))
            with monkeypatch.context() as patched:
                patched.setattr(one_hub.hub.joining, "report_many", faster)
                proxy.rule = lambda *_: "pass"
                until(lambda: asked[run.id] > 3)
                assert [json.loads(line)["run"] for line in _spooled(state_home)] == [run.id]
            assert ended(run).state is State.SUCCEEDED
            until(lambda: not _spooled(state_home))


def test_lines_that_cannot_be_read_are_skipped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, "http://hub", "w", "1")
    spool.keep(_outcomes(2))
    spool.close()
    (path,) = tmp_path.rglob("*.reports")
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\xff\n" + first + b'{"run": 1}\n[]\n' + second + second[: len(second) // 2])
    port = _Taking()
    asyncio.run(Spool(tmp_path, "http://hub", "w", "2").deliver(port))
    assert [outcome.run for outcome in port.taken] == ["run-0", "run-1"]
    assert caplog.text.count("cannot be read") == 4


def test_a_disk_that_hangs_holds_up_no_handler(one_hub: ServedHub, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, go_on = threading.Event(), threading.Event()
    keep = Spool.keep

    def hang(spool: Spool, outcomes: Any) -> None:
        hanging.set()
        assert go_on.wait(DEADLINE)
        keep(spool, outcomes)

    monkeypatch.setattr(Spool, "keep", hang)
    turns = Counter[str]()
    with App(proxy.url) as app:

        @app.job(name="quick")
        async def quick() -> None: ...

        @app.job(name="busy")
        async def busy() -> None:
            while not go_on.is_set():
                turns["busy"] += 1
                await asyncio.sleep(0.001)

        with working(app, slots=2):
            proxy.rule = lambda _, path: "refuse" if path.endswith("/report") else "pass"
            runs = busy.enqueue(), quick.enqueue()
            assert hanging.wait(DEADLINE)
            seen = turns["busy"]
            until(lambda: turns["busy"] > seen + 100)
            go_on.set()
            proxy.rule = lambda *_: "pass"
            assert [ended(run).state for run in runs] == [State.SUCCEEDED] * 2


def test_the_spool_is_bounded_and_says_when_it_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, "http://hub", "w", "1", limit=1_000)
    first, large = _outcomes(1), _outcomes(2, size=2_000)[1:]
    spool.keep(first)
    spool.keep(large)
    assert len(_spooled(tmp_path)) == 1
    assert "could not be kept" in caplog.text
    spool.drop(first)
    spool.close()


def test_a_report_on_disk_says_the_same() -> None:
    for report in (
        Succeed(token="t", output='"\u2028"', output_hash="h"),
        Fail(token="t", error=Failure("a", "b", "c\nd"), retry=False, delay=7),
    ):
        view = report_view(Outcome("r", report, 5))
        assert msgspec.json.decode(msgspec.json.encode(view), type=type(view)) == view


# The command line


def _windlass(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windlass", *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_windlass_work_through_a_hub(one_hub: ServedHub, tmp_path: Path) -> None:
    with Client(one_hub.url) as client:
        client.define("greet")
        (made,) = client.create([NewRun("greet", {"name": "ann"})])
        done = _windlass("work", "tests.worker.remote_app:app", "--hub", one_hub.url, "--burst", "--spool", str(tmp_path / "spool"))
        assert done.returncode == 0, done.stderr
        assert "HTTP Request" not in done.stderr
        assert client.wait(made.id, DEADLINE).output == '"Hello, ann!"'
        assert client.get_schedule("hourly").job == "tick"
        assert client.get_job("tick").name == "tick"


def test_windlass_work_refuses_an_app_with_a_store_of_its_own(one_hub: ServedHub) -> None:
    done = _windlass("work", "tests.worker.remote_app:elsewhere", "--hub", one_hub.url)
    assert done.returncode == 2
    assert "elsewhere.db" in done.stderr
    assert "--hub" in done.stderr


@pytest.fixture
def settled(one_hub: ServedHub, tmp_path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """A hub with runs in several states: its store, its address, and their ids."""
    store = str(tmp_path / "hub.db")
    engine = Engine(open_store(store, one_hub.clock, blocking=True), one_hub.clock)
    run_sync(engine.define("mail", options=Options(max_attempts=1)))
    ids = [made.id for made in run_sync(engine.create([NewRun("mail", {"n": n}) for n in range(4)]))]
    good, bad = run_sync(engine.claim(WorkerInfo("w", slots=9), count=2))
    run_sync(engine.log(good.id, good.token or "", [(1, "a line"), (2, "another")]))
    boom = Fail(token=bad.token, error=Failure("boom", "it broke"))
    run_sync(engine.report_many([Outcome(good.id, Succeed(token=good.token, output='{"a":1}')), Outcome(bad.id, boom)]))
    run_sync(engine.schedule("nightly", "mail", cron="0 3 * * *", zone="Europe/Paris"))
    run_sync(engine.schedule("coded", "mail", every="1h", by_code=True))
    yield store, one_hub.url, ids
    run_sync(engine.close())


COMMANDS = [
    "runs --json",
    "runs --json --state failed",
    "runs --json --limit 2",
    "jobs --json",
    "show {0} --json",
    "show {1} --json",
    "show nobody --json",
    "logs {0} --json",
    "logs {0} --follow --json",
    "logs {1} --follow",
    "why {2} --json",
    "why {0} --json",
    "rerun {2}",
    "cancel {0}",
    "schedules list --json",
    "schedules preview coded --json --from 2030-01-01T00:00Z --down 2030-01-01T00:00Z..2030-01-01T04:00Z",
    "schedules skips nightly --json",
    "schedules set nightly",
    "enqueue nail",
]


def test_a_command_says_the_same_through_the_hub(
    settled: tuple[str, str, list[str]], capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    store, url, ids = settled

    def answer(*words: str) -> tuple[int, str, str]:
        code = cli.main([*words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    for command in COMMANDS:
        words = [word.format(*ids) for word in command.split()]
        with subtests.test(command):
            assert answer(*words, "--store", store) == answer(*words, "--hub", url)


def test_commands_change_things_through_the_hub(settled: tuple[str, str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    store, url, _ = settled

    def say(*words: str) -> Any:
        assert cli.main([*words, "--hub", url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = say("enqueue", "mail", "to=ann", "--priority", "3", "--key", "k")
    assert say("enqueue", "mail", "to=bob", "--key", "k") == {"id": made["id"], "created": False, "pruned": False, "run": None}
    assert say("cancel", made["id"], "--reason", "twice")["state"] == "cancelled"
    assert say("rerun", made["id"])["created"]
    assert say("schedules", "add", "new", "mail", "--every", "2h")["key"] == "new"
    assert say("schedules", "disable", "new")["enabled"] is False
    assert say("schedules", "trigger", "new")["created"]
    assert say("schedules", "remove", "new") == {"done": True}
    assert cli.main(["runs", "--hub", url, "--store", store]) == 2
    assert cli.main(["runs", "--hub", "http://127.0.0.1:1"]) == 5
    assert cli.main(["migrate", "--store", url]) == 2


def test_the_token_is_not_shown_and_the_hub_is_found_in_the_environment(
    settled: tuple[str, str, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url, _ = settled
    monkeypatch.setenv("WINDLASS_HUB", url)
    monkeypatch.setenv("WINDLASS_HUB_TOKEN", "wl_secret")
    assert cli.main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "***" in shown
    assert "wl_secret" not in shown
    assert cli.main(["runs", "--json"]) == 1  # the hub knows no such token
    error = capsys.readouterr().err
    assert "wl_secret" not in error
    logging.getLogger("httpx").setLevel(logging.NOTSET)
