"""F21, F22: what subscribers of the Forge job queue and of its fleet are sent, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hub.test_events import Listener
from tests.served import LeapingClock, ServedHub
from tests.tiers import corners
from tests.workers import DEADLINE
from windlass.dialects.forge import Settings, fleet, mount
from windlass.dialects.forge.frames import event_of
from windlass.hub import events
from windlass.hub.events import streams
from windlass.hub.events.streams import REACH
from windlass.model import Entry, NewRun, Options, Run, State

SECRET = "a long random text"
EVENTS = "/api/jobs/events"
STORES = ("file", "postgres")


class Served(ServedHub):
    """A hub with the dialect at the root, and a client that has the secret."""

    def __init__(self, store: Path | str, **settings: Any) -> None:
        clock = LeapingClock()
        super().__init__(store, clock=clock, dialects=[mount(Settings(secret=SECRET, **settings), clock)], root="forge")
        self.leaping = clock
        self.http = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {SECRET}"})

    def post(self, path: str, data: Any, **headers: str) -> httpx.Response:
        answer = self.http.post(path, json=data, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer

    def create(self, **members: Any) -> str:
        return str(self.post("/api/jobs", {"type": "prodplan", **members}).json()["id"])

    def act(self, job: str, what: str, worker: str = "w1", **members: Any) -> None:
        self.post(f"/api/jobs/{job}/{what}", {"worker_id": worker, **members})

    def claim(self, worker: str = "w1") -> str:
        return str(self.post("/api/jobs/claim", {"worker_id": worker}).json()["id"])

    def add(self, runs: Sequence[NewRun]) -> None:
        """Create runs together, as only the engine does."""
        asyncio.run_coroutine_threadsafe(self.hub.engine.create(runs, undefined="wait"), self.loop).result()

    def running(self, worker: str = "w1") -> str:
        job = self.claim(worker)
        self.act(job, "heartbeat", worker)
        return job


@pytest.fixture(params=corners(STORES))
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    hub = Served(request.getfixturevalue("emptied_postgres") if request.param == "postgres" else tmp_path / "hub.db")
    yield hub
    hub.http.close()
    hub.stop()


def told(event: Any) -> tuple[Any, ...]:
    return event.event, event.data["status"], event.data["worker_id"], event.data["attempts"]


def test_F21_subscribers_are_told_of_every_change_of_status_as_it_happens(served: Served) -> None:
    with Listener(served.port, EVENTS).ready() as listener:
        job = served.create(max_attempts=2)
        served.running("w1")
        served.act(job, "fail", "w1", reason="boom")
        served.running("w2")
        served.act(job, "fail", "w2", reason="boom")
        done, cancelled = served.create(priority=2), served.create(priority=1)
        served.running("w3")
        served.act(done, "result", "w3", result="42\n")
        served.act(done, "result", "w4", result="42\n")
        served.http.delete(f"/api/jobs/{cancelled}")
        events = listener.next(10)
    assert [(event.data["id"], *told(event)) for event in events] == [
        (job, "job:created", "pending", None, 0),
        (job, "job:assigned", "assigned", "w1", 1),
        (job, "job:failed", "pending", None, 1),
        (job, "job:assigned", "assigned", "w2", 2),
        (job, "job:quarantined", "quarantined", "w2", 2),
        (done, "job:created", "pending", None, 0),
        (cancelled, "job:created", "pending", None, 0),
        (done, "job:assigned", "assigned", "w3", 1),
        (done, "job:completed", "completed", "w3", 1),
        (cancelled, "job:failed", "failed", None, 0),
    ]
    row = served.http.get(f"/api/jobs/{done}").json()
    assert events[8].data == row
    assert list(events[8].data) == list(row)


def test_F21_one_that_comes_back_misses_nothing_and_gets_nothing_twice(served: Served) -> None:
    with Listener(served.port, EVENTS).ready() as listener:
        first = served.create()
        (event,) = listener.next()
    others = [served.create() for _ in range(3)]
    with Listener(served.port, EVENTS, last=event.id) as listener:
        assert [event.data["id"] for event in listener.next(3)] == others
    assert event.data["id"] == first


def test_F21_without_a_credential_one_comes_back_after_minutes_and_not_after_hours(served: Served) -> None:
    with Listener(served.port, EVENTS).ready() as listener:
        old = served.create()
        (event,) = listener.next()
    served.create()
    served.leaping.leap(REACH - 10_000)
    with Listener(served.port, EVENTS, last=event.id) as listener:
        listener.next()
    served.leaping.leap(20_000)
    for claimed in (event.id, f"{served.leaping.now()}-{event.id.partition('-')[2]}"):  # whatever instant it says
        with Listener(served.port, EVENTS, last=claimed) as listener:
            gap, created = listener.next(1)[0], served.create()
            assert (gap.event, gap.data["reason"]) == ("gap", "too_old")
            assert listener.next()[0].data["id"] == created
    assert event.data["id"] == old


def test_F21_with_a_credential_one_comes_back_after_hours(tmp_path: Path) -> None:
    served = Served(tmp_path / "hub.db", open_events=False)
    with Listener(served.port, EVENTS, token=SECRET).ready() as listener:
        served.create()
        (event,) = listener.next()
    other = served.create()
    served.leaping.leap(REACH + 10_000)
    with Listener(served.port, EVENTS, last=event.id, token=SECRET) as listener:
        assert listener.next()[0].data["id"] == other
    served.http.close()
    served.stop()


def test_F21_an_event_that_is_sent_late_has_the_row_of_its_moment(served: Served) -> None:
    with Listener(served.port, EVENTS).ready() as listener:
        served.create(type="other")
        (event,) = listener.next()
    job = served.create(priority=1)
    served.running("w1")
    served.act(job, "fail", "w1", reason="boom")
    before = served.http.get(f"/api/jobs/{job}").json()
    served.running("w2")
    served.act(job, "result", "w2", result="42\n", result_hash="abc")
    row = served.http.get(f"/api/jobs/{job}").json()
    with Listener(served.port, EVENTS, last=event.id) as listener:
        created, assigned, failed, again, completed = (event.data for event in listener.next(5))
    unheld = {"status": "pending", "worker_id": None, "claimed_at": None, "heartbeat_at": None}
    not_ended = {"result": None, "result_hash": None, "completed_at": None}
    not_failed = {"fail_reason": None, "fail_history": "[]"}
    assert created == row | unheld | not_ended | not_failed | {"attempts": 0}
    claimed_at = assigned["claimed_at"]
    held = {"status": "assigned", "worker_id": "w1", "claimed_at": claimed_at, "heartbeat_at": claimed_at, "attempts": 1}
    assert assigned == row | held | not_ended | not_failed
    assert created["created_at"] <= claimed_at <= row["claimed_at"]
    assert failed == before
    assert again == row | {"status": "assigned", "heartbeat_at": row["claimed_at"]} | not_ended
    assert completed == row


def test_F21_few_rows_are_read_at_once_because_each_may_be_large(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, counts = served.hub.engine, list[int]()
    get_many = engine.get_many

    async def counted(ids: Sequence[str]) -> list[Run]:
        counts.append(len(ids))
        return await get_many(ids)

    monkeypatch.setattr(engine, "get_many", counted)
    new = [NewRun("prodplan", {"n": n}, Options(queue="forge")) for n in range(60)]
    with Listener(served.port, EVENTS).ready() as listener:
        served.create()
        (event,) = listener.next()
        served.add(new)
        assert len(listener.next(60)) == 60
    assert max(counts) == events.EVENTS
    counts.clear()
    with Listener(served.port, EVENTS, last=event.id) as listener:
        assert len(listener.next(60)) == 60
    assert max(counts) == streams.EVENTS


def test_F21_one_that_is_disconnected_because_too_much_has_changed_misses_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BACKLOG", 50_000)
    new = [NewRun("prodplan", {"n": n, "text": "x" * 10_000}, Options(queue="forge")) for n in range(60)]
    with Listener(served.port, EVENTS).ready() as listener:
        served.add(new)
        assert list(listener) == []  # it was disconnected
    with Listener(served.port, EVENTS, last=listener.last) as listener:
        assert [json.loads(event.data["params"])["n"] for event in listener.next(60)] == list(range(60))


def test_F21_cancels_losses_and_overlong_runs_are_told_and_first_heartbeats_are_not(served: Served) -> None:
    lost, overlong, cancelled = (served.create(priority=n, max_runtime_ms=ms) for n, ms in ((3, 300_000), (2, 30_000), (1, 300_000)))
    with Listener(served.port, EVENTS).ready() as listener:
        for worker in ("w1", "w2"):
            served.running(worker)
        served.claim("w3")
        served.http.delete(f"/api/jobs/{cancelled}")
        assert [told(event)[:2] for event in listener.next(4)] == [("job:assigned", "assigned")] * 3 + [("job:failed", "failed")]
        served.leaping.leap(31_000)  # no lease is over by then
        (quarantined,) = listener.next()
        assert (quarantined.data["id"], *told(quarantined)) == (overlong, "job:quarantined", "quarantined", "w2", 1)
        assert quarantined.data["fail_reason"] == "max_runtime_exceeded"
        served.act(lost, "fail", "w1", reason="boom")
        assert told(listener.next()[0]) == ("job:failed", "pending", None, 1)


def test_F21_other_queues_are_not_told(served: Served) -> None:
    with Listener(served.port, EVENTS).ready() as listener:
        assert httpx.post(f"{served.url}api/v1/runs", json={"job": "mail", "undefined": "wait"}).status_code == 202
        job = served.create()
        assert listener.next()[0].data["id"] == job


def test_F21_the_stream_has_the_headers_that_dashboards_and_proxies_need(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE)
    connection.request("GET", EVENTS, headers={"Origin": "https://dashboard.example"})
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.readline().startswith(b"retry:")
    connection.close()


def test_F21_an_id_of_another_stream_is_refused(served: Served) -> None:
    answer = served.http.get(EVENTS, headers={"last-event-id": "17"})
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}


def test_F22_jobs_workers_and_leases_survive_a_restart_of_the_hub(served: Served) -> None:
    served.post("/api/workers/register", {"worker_id": "w1", "cores": 2})
    waiting, job = served.create(), served.create(priority=1)
    assert served.running() == job
    with Listener(served.port, EVENTS).ready() as listener:
        served.act(job, "heartbeat")
        served.stop()
        last = listener.last
    served.start()
    assert [served.http.get(f"/api/jobs/{one}").json()["status"] for one in (waiting, job)] == ["pending", "running"]
    served.act(job, "heartbeat")
    served.act(job, "result", result="42\n")
    with Listener(served.port, EVENTS, last=last) as listener:
        assert told(listener.next()[0]) == ("job:completed", "completed", "w1", 1)


EVENT_OF: Mapping[tuple[State | None, State], str | None] = {
    (None, State.QUEUED): "job:created",
    (None, State.SCHEDULED): "job:created",
    (None, State.WAITING): "job:created",
    (State.SCHEDULED, State.QUEUED): None,
    (State.WAITING, State.QUEUED): None,
    (State.QUEUED, State.QUEUED): None,
    (State.QUEUED, State.CLAIMED): "job:assigned",
    (State.CLAIMED, State.RUNNING): None,
    (State.CLAIMED, State.SCHEDULED): "job:failed",
    (State.RUNNING, State.QUEUED): "job:failed",
    (State.RUNNING, State.SUCCEEDED): "job:completed",
    (State.RUNNING, State.FAILED): "job:quarantined",
    (State.RUNNING, State.QUARANTINED): "job:quarantined",
    (State.RUNNING, State.CANCELLING): "job:failed",
    (State.CANCELLING, State.CANCELLED): None,
    (State.QUEUED, State.CANCELLED): "job:failed",
    (State.QUEUED, State.SKIPPED): "job:failed",
}


@pytest.mark.parametrize("change", EVENT_OF, ids=str)
def test_F21_each_change_of_status_has_one_event(change: tuple[State | None, State]) -> None:
    before, state = change
    assert event_of(Entry("run", 1, 0, "any", state, 1, before=before)) == EVENT_OF[change]


# The fleet


def frames(hub: Served, path: str, count: int) -> list[Any]:
    with hub.http.stream("GET", path, headers={"authorization": ""}, timeout=DEADLINE) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        return [json.loads(line[6:]) for line in islice((line for line in answer.iter_lines() if line.startswith("data: ")), count)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(fleet, "THROTTLE", 0.05)
    hub = Served(tmp_path / "hub.db")
    yield hub
    hub.http.close()
    hub.stop()


def test_nodes_are_described_by_their_last_snapshots(hub: Served) -> None:
    hub.post("/api/ingest/worker-01", {"cpu": 0.5, "memory": {"used": 7}}, **{"x-node-name": "Worker 01"})
    hub.post("/api/ingest/worker-01/batch", [{"cpu": n} for n in range(400)])
    (node,) = hub.http.get("/api/fleet").json()
    assert (node["id"], node["name"], node["status"], node["latest"]) == ("worker-01", "Worker 01", "online", {"cpu": 399})
    assert node["history"] == [{"cpu": n} for n in range(340, 400)]
    assert abs(node["lastSeen"] - hub.leaping.now()) < DEADLINE * 1000
    snapshots = hub.http.get("/api/nodes/worker-01/snapshot", params={"limit": 1_000}).json()
    assert snapshots == [{"cpu": n} for n in range(40, 400)]
    assert hub.http.get("/api/nodes/worker-01/snapshot?limit=2").json() == [{"cpu": 398}, {"cpu": 399}]
    assert hub.http.get("/api/nodes/none/snapshot").json() == {"error": "not found"}
    assert hub.http.get("/api/health").json() == {"ok": True, "mode": "hub", "clients": 0, "nodes": 1}


def test_a_silent_node_is_degraded_and_then_offline(hub: Served) -> None:
    hub.post("/api/ingest/n1", {"cpu": 1})
    for leap, status in ((14_000, "online"), (2_000, "degraded"), (43_000, "degraded"), (2_000, "offline")):
        hub.leaping.leap(leap)
        assert [node["status"] for node in hub.http.get("/api/fleet").json()] == [status]


def test_measurements_of_a_worker_become_its_metrics(hub: Served) -> None:
    hub.post("/api/workers/register", {"worker_id": "w1"})
    hub.post("/api/ingest/w1", {"cpu": 0.5, "memory": {"used": 7, "free": "much"}, "name": "x", "ok": True, "huge": 1e300})
    (worker,) = httpx.get(f"{hub.url}api/v1/workers").json()["workers"]
    assert worker["metrics"] == {"cpu": 0.5, "memory.used": 7}


def test_streams_of_the_fleet_begin_with_what_is_and_go_on_with_what_changes(hub: Served) -> None:
    for n in (1, 2):
        hub.post(f"/api/ingest/n{n}", {"cpu": n})
    assert [node["latest"] for node in frames(hub, "/api/fleet/events", 2)] == [{"cpu": 1}, {"cpu": 2}]
    assert [node["id"] for node in frames(hub, "/api/nodes/n2/events", 1)] == ["n2"]
    with hub.http.stream("GET", "/api/fleet/events", timeout=DEADLINE) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        first = [next(lines), next(lines)]
        assert hub.http.get("/api/health").json()["clients"] == 1
        hub.post("/api/ingest/n1", {"cpu": 7})
        assert next(lines)["latest"] == {"cpu": 7}
    assert [node["id"] for node in first] == ["n1", "n2"]
    assert hub.http.get("/api/nodes/none/events").json() == {"error": "not found"}


def test_a_fleet_is_bounded(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "NODES", 2)
    monkeypatch.setattr(fleet, "KEPT", 40_000)
    large = hub.http.post("/api/ingest/n1", json={"cpu": "x" * fleet.SNAPSHOT})
    assert (large.status_code, set(large.json())) == (413, {"error"})
    assert hub.http.get("/api/fleet").json() == []
    for n in (1, 2):
        hub.post(f"/api/ingest/n{n}/batch", [{"cpu": "x" * 10_000}] * n)
    third = hub.http.post("/api/ingest/n3", json={"cpu": 1})
    assert third.status_code == 429
    hub.post("/api/ingest/n2", {"cpu": "y" * 15_000})
    assert [len(node["history"]) for node in hub.http.get("/api/fleet").json()] == [1, 2]
    hub.leaping.leap(61_000)
    hub.post("/api/ingest/n2", {"cpu": 1})
    hub.post("/api/ingest/n3", {"cpu": 1})
    assert [node["id"] for node in hub.http.get("/api/fleet").json()] == ["n2", "n3"]
