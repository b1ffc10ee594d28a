"""A worker that stops says so: from then on it counts for nothing, and who waits is told that nobody works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Harness
from tests.served import ServedHub
from tests.worker.test_worker import Ports, error, ports  # noqa: F401 - a fixture
from tests.workers import Gate, until, working
from windlass import App
from windlass.client import Client
from windlass.errors import StoreUnreachable
from windlass.model import LIFE_TAG, Life, WorkerInfo
from windlass.store.base import run_sync
from windlass.worker.lives import own_process

NOBODY = "No worker is running. Start one: windlass work MODULE:APP"


def alive(engine: Any) -> dict[str, bool]:
    return {worker.info.name: worker.alive for worker in run_sync(engine.workers())}


# In the store


def test_one_that_has_left_is_not_alive_and_is_alive_again_when_it_registers(h: Harness) -> None:
    w1 = WorkerInfo("w1")
    h(h.engine.register(w1, about={"incarnation": 7}))
    run = h.create()
    assert [reason.code for reason in h(h.engine.why(run))] == []
    h.clock.advance(1_000)
    h(h.engine.leave("w1", 7))
    (worker,) = h(h.engine.workers())
    assert (worker.alive, worker.stopped_at, worker.seen_at) == (False, h.clock.now(), h.clock.now() - 1_000)
    assert h(h.engine.living()) == []
    assert [reason.text for reason in h(h.engine.why(run))] == [NOBODY]
    (finding,) = h(h.engine.doctor())
    assert (finding.code, finding.severity) == ("no_workers", "problem")
    assert "no worker is running" in finding.text
    h.clock.advance(1_000)
    h(h.engine.leave("w1", 7))  # said again
    h(h.engine.leave("nobody", 7))
    h(h.engine.register(w1))
    (worker,) = h(h.engine.workers())
    assert (worker.alive, worker.stopped_at, worker.about) == (True, None, {"incarnation": 7})


def test_who_goes_by_the_name_of_another_does_not_take_leave_for_it(h: Harness) -> None:
    w1 = WorkerInfo("w1")
    h(h.engine.register(w1, about={"incarnation": 1}))
    h(h.engine.register(w1, about={"incarnation": 2}))
    h(h.engine.leave("w1", 1))
    assert alive(h.engine) == {"w1": True}
    elder, younger = (Life(letter * LIFE_TAG, f"somewhere {letter}") for letter in "ab")
    h(h.engine.begin_life("w1", elder))
    h(h.engine.begin_life("w1", younger))
    h(h.engine.end_lives("w1", [younger.tag]))
    h(h.engine.leave("w1", 2))
    assert alive(h.engine) == {"w1": True}  # the elder one is not known to have ended
    h(h.engine.end_lives("w1", [elder.tag]))
    h(h.engine.leave("w1", 1))
    assert alive(h.engine) == {"w1": False}


# Real workers


@pytest.fixture(params=["here", "through a hub"])
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.param == "here":
        with App(str(tmp_path / "windlass.db")) as app:
            yield app
        return
    hub = ServedHub(tmp_path / "windlass.db")
    with App(hub.url) as app:
        yield app
    hub.stop()


def test_a_worker_that_was_stopped_is_gone_at_once(app: App) -> None:
    @app.job(name="mail")
    async def mail() -> None: ...

    with working(app, name="w1"):
        until(lambda: alive(app.verbs) == {"w1": True})
    assert alive(app.verbs) == {"w1": False}
    run = mail.enqueue()
    assert [reason.text for reason in run_sync(app.verbs.why(run.id))] == [NOBODY]
    assert "no_workers" in [finding.code for finding in run_sync(app.verbs.doctor())]
    with working(app, name="w1"):
        until(lambda: alive(app.verbs) == {"w1": True})


@pytest.mark.skipif(own_process() is None, reason="Nothing is told of processes here.")
@pytest.mark.parametrize("first", [0, 1], ids=["the elder", "the younger"])
def test_when_one_of_two_with_the_same_name_stops_the_other_still_counts(first: int, tmp_path: Path) -> None:
    with App(str(tmp_path / "windlass.db")) as app:

        @app.job(name="mail")
        async def mail() -> None: ...

        with working(app, name="same") as elder, working(app, name="same") as younger:
            until(lambda: all(one.worker.heartbeat._thread.is_alive() for one in (elder, younger)))  # both have begun their lives
            (elder, younger)[first].stop()
            assert alive(app.verbs) == {"same": True}
        assert alive(app.verbs) == {"same": False}


def test_one_whose_handler_did_not_stop_takes_leave_when_its_run_is_requeued(app: App) -> None:
    gate = Gate()

    @app.job(name="stuck", grace=0.05)
    def stuck() -> None:
        gate.block()

    with working(app, name="w1") as at_work:
        stuck.enqueue()
        gate.reached()
        at_work.stop(grace=0.05)
        gate.open()
    until(lambda: not at_work.alive)
    assert alive(app.verbs) == {"w1": False}


def test_a_store_that_is_away_does_not_hold_up_the_end(app: App, ports: Ports) -> None:  # noqa: F811
    def prepare(worker: Any) -> None:
        ports.watch(worker)
        ports.loop.fail("leave", error(StoreUnreachable))

    with working(app, name="w1", prepare=prepare) as at_work:
        at_work.stop()
    assert ports.loop.calls["leave"] == 1
    assert alive(app.verbs) == {"w1": True}  # until it was silent for long enough


def test_a_client_sees_when_a_worker_stopped(tmp_path: Path) -> None:
    hub = ServedHub(tmp_path / "windlass.db")
    try:
        with App(hub.url) as app, Client(hub.url) as client:

            @app.job(name="mail")
            async def mail() -> None: ...

            with working(app, name="w1"):
                assert until(client.workers)[0].stopped_at is None
            assert client.workers()[0].stopped_at is not None
    finally:
        hub.stop()
