"""Direct calls over HTTP: the caller waits for the next slot, the handler runs in the hub, and no job is created."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dialects.guards_door import KEY, GuardsDoor
from tests.harness import Harness
from tests.served import ServedHub
from tests.workers import until
from windlass import Context
from windlass.app import App
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.dialects.guards import Settings, mount
from windlass.engine import Engine
from windlass.hub import HubSettings
from windlass.machine import Succeed
from windlass.model import WorkerInfo
from windlass.store.base import run_sync


class Author:
    """An app whose handlers do what a test says, and what they have done."""

    def __init__(self) -> None:
        self.app, self.began, self.may_end = App(":memory:"), threading.Event(), threading.Event()
        self.done: list[str] = []

        @self.app.job()
        def story(topic: str, words: int = 3) -> dict[str, Any]:
            return {"story": " ".join([topic] * words)}

        @self.app.job()
        def research(context: Context, name: str = "") -> None:
            self.began.set()
            while not self.may_end.wait(0.01):
                if context.cancelled:
                    break
            self.done.append(name)

        @self.app.job()
        def broken() -> None:
            raise ValueError("out of ink")

        self.app.command("printed", ["cat"])


@pytest.fixture
def author() -> Iterator[Author]:
    author = Author()
    yield author
    author.may_end.set()
    author.app.close()


DIRECT = {"/story/generate": "story", "/research/run": "research", "/broken": "broken", "/printed": "printed", "/nobody": "nobody"}


@pytest.fixture
def guards(h: Harness, author: Author) -> Iterator[GuardsDoor]:
    door = GuardsDoor(h, app=author.app, direct=DIRECT)
    yield door
    door.close()


def test_G17_G18_a_direct_call_is_answered_with_the_result_of_the_handler_and_creates_no_job(guards: GuardsDoor) -> None:
    assert guards.done("POST", "/story/generate", {"topic": "sea"}) == {"story": "sea sea sea"}
    assert guards.done("POST", "/story/generate?timeout=1", {"topic": "sea", "words": 1}) == {"story": "sea"}
    assert guards.done("GET", "/jobs")["total"] == 0
    assert guards.done("GET", "/scheduler/status")["has_active_reservation"] is False


def test_a_result_of_none_is_null(guards: GuardsDoor, author: Author) -> None:
    author.may_end.set()
    assert guards.done("POST", "/research/run") is None
    assert author.done == [""]


def test_what_is_wrong_with_a_direct_call_is_told(guards: GuardsDoor) -> None:
    assert guards.refused("POST", "/story/generate", {"words": 3}) == (422, [("body",)])
    assert guards.refused("POST", "/story/generate", {"topic": 7}) == (422, [("body",)])
    for timeout in ("0", "3601", "soon"):
        assert guards.refused("POST", f"/story/generate?timeout={timeout}", {"topic": "sea"}) == (422, [("query", "timeout")])
    assert guards.refused("POST", "/broken") == (500, "broken failed: ValueError: out of ink. Correct its cause, and call again.")
    for path in ("/printed", "/nobody"):
        status, detail = guards.refused("POST", path)
        assert (status, "windlass up" in detail) == (503, True)


def test_without_an_app_the_answer_says_what_to_do(h: Harness) -> None:
    door = GuardsDoor(h)
    status, detail = door.refused("POST", "/story/generate", {"topic": "sea"})
    assert (status, "windlass up" in detail) == (503, True)
    door.close()


def test_G17_a_call_waits_for_what_runs_and_gives_up_after_its_timeout(guards: GuardsDoor) -> None:
    guards.create()
    run = guards.start()
    assert guards.refused("POST", "/story/generate?timeout=1", {"topic": "sea"})[0] == 504
    assert guards.h(guards.h.engine.slots()) == []
    guards.h.succeed(run)
    assert guards.done("POST", "/story/generate", {"topic": "sea"}) == {"story": "sea sea sea"}


# Over a socket


class Newsroom(ServedHub):
    """A hub with the dialect at its root, started with an app, and a worker that takes its jobs one by one."""

    def __init__(self, store: str, author: Author, **settings: Any) -> None:
        secured: dict[str, Any] = {"api_auth_enabled": True, "api_key": KEY, "direct": DIRECT}
        clock = SystemClock()
        super().__init__(store, clock=clock, dialects=[mount(Settings(**secured), clock)], root="guards", app=author.app, **settings)
        self.http = httpx.Client(base_url=self.url, headers={"x-api-key": KEY}, timeout=60)
        self.worker = Engine(open_store(store, clock, blocking=True), clock)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body)

    def claim(self) -> list[Any]:
        return list(run_sync(self.worker.claim(WorkerInfo("w1", queues=("guards",)))))

    def waiting(self) -> int:
        return sum(slot.state == "waiting" for slot in run_sync(self.worker.slots()))

    def close(self) -> None:
        self.http.close()
        self.stop()
        run_sync(self.worker.close())


Open = Callable[..., Newsroom]


@pytest.fixture(params=["file", "postgres"])
def newsroom(request: pytest.FixtureRequest, tmp_path: Path, author: Author) -> Iterator[Open]:
    rooms: list[Newsroom] = []

    def start(**settings: Any) -> Newsroom:
        store = str(tmp_path / "news.db") if request.param == "file" else request.getfixturevalue("emptied_postgres")
        rooms.append(Newsroom(store, author, **settings))
        return rooms[-1]

    yield start
    author.may_end.set()
    for room in rooms:
        room.close()


def test_G17_the_order_is_what_runs_then_direct_calls_then_the_queue(newsroom: Open, author: Author) -> None:
    room = newsroom()
    room.post("api/job-templates", {"name": "story"})
    for topic in ("first", "second"):
        assert room.post("jobs", {"type": "story", "params": {"topic": topic}}).status_code == 201
    (run,) = room.claim()
    with ThreadPoolExecutor() as threads:
        call = threads.submit(room.post, "research/run", {"name": "direct"})
        until(lambda: room.waiting() == 1)
        assert not author.began.is_set()
        assert room.http.get("scheduler/status").json()["has_active_reservation"] is True
        run_sync(room.worker.report(run.id, Succeed(token=run.token)))
        assert author.began.wait(30)
        assert room.claim() == []  # the queue waits for the direct call
        author.may_end.set()
        assert call.result(30).status_code == 200
    assert author.done == ["direct"]
    assert len(until(room.claim)) == 1


def test_the_first_request_of_a_store_may_be_a_direct_call(newsroom: Open) -> None:
    assert newsroom().post("story/generate", {"topic": "sea"}).json() == {"story": "sea sea sea"}


def test_G25_a_call_whose_caller_waits_no_longer_keeps_its_slot_until_its_handler_has_stopped(newsroom: Open, author: Author) -> None:
    room = newsroom()
    room.post("api/job-templates", {"name": "story"})
    room.post("jobs", {"type": "story", "params": {"topic": "sea"}})
    answer = room.post("research/run?timeout=1", {"name": "slow"})
    assert (answer.status_code, "1 s" in answer.json()["detail"]) == (504, True)
    until(lambda: author.done == ["slow"])  # it was asked to stop
    assert len(until(room.claim)) == 1


def test_a_call_whose_client_goes_while_it_waits_takes_no_slot(newsroom: Open, author: Author) -> None:
    room = newsroom()
    room.post("api/job-templates", {"name": "story"})
    room.post("jobs", {"type": "story", "params": {"topic": "sea"}})
    (run,) = room.claim()
    with pytest.raises(httpx.ReadTimeout):
        room.http.post("research/run", json={"name": "gone"}, timeout=0.3)
    until(lambda: run_sync(room.worker.slots()) == [])
    run_sync(room.worker.report(run.id, Succeed(token=run.token)))
    assert author.done == []


def test_calls_that_wait_are_bounded(newsroom: Open) -> None:
    room = newsroom(settings=HubSettings(waits=0))
    assert room.post("story/generate", {"topic": "sea"}).status_code == 429
    until(lambda: run_sync(room.worker.slots()) == [])
