"""L: the events of a job, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dialects.so1_door import ANN, TRIGGER, bearer
from tests.harness import LEASE, token
from tests.hub.test_events import Happened, Listener
from tests.served import LeapingClock, ServedHub
from tests.tiers import long
from windlass.config.opening import open_store
from windlass.dialects.so1 import Settings, mount
from windlass.engine import Engine
from windlass.hub.events import streams
from windlass.machine import Fail, Report, Snooze, Succeed
from windlass.model import Failure, Run, WorkerInfo
from windlass.store.base import run_sync


class Console:
    """A hub that speaks the protocol, a client of it, and a worker on its store."""

    def __init__(self, store: str) -> None:
        self.clock = clock = LeapingClock()
        self.hub = ServedHub(store, clock=clock, dialects=[mount(Settings(mock=True), clock)], root="so1")
        self.engine = Engine(open_store(store, clock, blocking=True), clock)
        run_sync(self.engine.define(TRIGGER))
        self.http = httpx.Client(base_url=self.hub.url, headers={"authorization": bearer(ANN)}, timeout=60)

    def close(self) -> None:
        self.http.close()
        self.hub.stop()
        run_sync(self.engine.close())

    def create(self) -> str:
        return str(self.http.post("/api/jobs", json={"action": TRIGGER}).json()["job"]["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.http.get(f"/api/jobs/{job_id}").json()["job"])

    def cancel(self, job_id: str) -> None:
        assert self.http.post(f"/api/jobs/{job_id}/cancel").status_code == 200

    def watch(self, job_id: str, query: str = "", last: str | None = None) -> Listener:
        return Listener(self.hub.port, f"/api/jobs/{job_id}/events{query}", last=last, token=ANN)

    def claim(self) -> Run:
        (run,) = run_sync(self.engine.claim(WorkerInfo("w1", slots=100), count=1, lease=LEASE))
        return run

    def log(self, run: Run, *numbers: int) -> None:
        run_sync(self.engine.log(run.id, token(run), [(n, f"line {n}") for n in numbers]))

    def report(self, run: Run, report: Report) -> None:
        run_sync(self.engine.report(run.id, report))

    def succeed(self, run: Run, output: str = '{"url":"x"}') -> None:
        self.report(run, Succeed(token=run.token, output=output))

    @contextmanager
    def running(self) -> Iterator[tuple[str, Run, Listener]]:
        """A job that is running, and a stream that has told so."""
        job_id = self.create()
        with self.watch(job_id) as listener:
            assert told(listener.next()) == [("status", {"state": "pending"})]
            run = self.claim()
            assert told(listener.next()) == [("status", {"state": "running"})]
            yield job_id, run, listener


def told(events: list[Happened]) -> list[tuple[str, Any]]:
    """Events without their ids."""
    return [(event.event, event.data) for event in events]


def lines(*numbers: int) -> list[tuple[str, Any]]:
    return [("log", {"line": f"line {n}", "cursor": n}) for n in numbers]


END = ("status", {"state": "success", "output": {"url": "x"}})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=long)])
def console(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Console]:
    store = str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres")
    console = Console(store)
    yield console
    console.close()


def test_L10_the_last_event_is_one_status_with_the_end_and_the_connection_closes(console: Console) -> None:
    with console.running() as (_, run, listener):
        console.log(run, 1, 2)
        assert told(listener.next(2)) == lines(1, 2)
        console.log(run, 3)
        console.succeed(run)
        assert told(list(listener)) == [*lines(3), END]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_L10_a_failure_ends_the_stream_with_its_error_and_a_cancel_at_once(console: Console, end: str) -> None:
    with console.running() as (job_id, run, listener):
        if end == "failed":
            console.report(run, Fail(token=run.token, error=Failure("GITHUB_ERROR", "No workflow.", "detail")))
        else:
            console.cancel(job_id)
        error = {"error": {"code": "GITHUB_ERROR", "message": "No workflow."}} if end == "failed" else {}
        assert told(list(listener)) == [("status", {"state": end, **error})]


def test_L10_a_job_that_never_ran_ends_without_having_been_running(console: Console) -> None:
    job_id = console.create()
    with console.watch(job_id) as listener:
        assert told(listener.next()) == [("status", {"state": "pending"})]
        console.cancel(job_id)
        assert told(list(listener)) == [("status", {"state": "cancelled"})]


def test_L10_the_stream_of_a_returned_attempt_ends_with_it_whatever_its_run_does_next(console: Console) -> None:
    with console.running() as (job_id, run, listener):
        console.log(run, 1)
        console.report(run, Snooze(token=run.token, delay=0))
        again = console.claim()
        console.log(again, 1, 2)
        assert told(list(listener)) == [*lines(1), ("status", {"state": "cancelled"})]
        with console.watch(run_sync(console.engine.get(job_id)).current_attempt) as following:
            assert told(following.next(3)) == [("status", {"state": "running"}), *lines(1, 2)]
            console.succeed(again)
            assert told(list(following)) == [END]


def test_L13_a_cursor_gives_exactly_the_lines_after_it_across_a_restart(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINES", 10)
    with console.running() as (job_id, run, listener):
        console.log(run, *range(1, 36))
        read = listener.next(20)
        assert told(read) == lines(*range(1, 21))
    console.hub.stop()
    console.log(run, *range(36, 41))
    console.hub.start()
    with console.watch(job_id, "?cursor=20") as by_cursor, console.watch(job_id, last=read[-1].id) as by_id:
        assert told(by_cursor.next(21)) == [("status", {"state": "running"}), *lines(*range(21, 41))]
        assert told(by_id.next(20)) == lines(*range(21, 41))
        console.log(run, 41)
        console.succeed(run)
        assert told(list(by_cursor)) == told(list(by_id)) == [*lines(41), END]
    with console.watch(job_id, "?cursor=0") as whole, console.watch(job_id, "?cursor=38") as rest:
        assert told(list(whole)) == [*lines(*range(1, 42)), END]
        assert told(list(rest)) == [*lines(39, 40, 41), END]


def test_L14_after_the_end_there_is_one_status_event(console: Console) -> None:
    with console.running() as (job_id, run, _):
        console.log(run, 1)
        console.succeed(run)
    with console.watch(job_id) as listener:
        assert listener.answer.headers["content-type"].startswith("text/event-stream")
        assert told(list(listener)) == [END]


def test_L24_coming_back_with_the_last_id_is_answered_204_and_without_one_with_the_end(console: Console) -> None:
    with console.running() as (job_id, run, listener):
        console.log(run, 1)
        first = listener.next()[0]
        console.succeed(run)
        (end,) = listener
    console.hub.stop()
    console.hub.start()
    for query in ("", "?cursor=0"):
        with console.watch(job_id, query, last=end.id) as listener:
            assert (listener.answer.status, list(listener)) == (204, [])
            assert listener.answer.headers["x-request-id"]
    with console.watch(job_id, last=first.id) as listener:
        assert told(list(listener)) == [END]
    with console.watch(job_id) as listener:
        assert told(list(listener)) == [END]


def test_a_job_that_began_and_ended_between_two_looks_has_been_running(console: Console) -> None:
    job_id = console.create()
    with console.watch(job_id) as listener:
        pending = listener.next()[0]
    run = console.claim()
    console.log(run, 1)
    console.succeed(run)
    with console.watch(job_id, last=pending.id) as listener:
        assert told(list(listener)) == [("status", {"state": "running"}), *lines(1), END]


def test_what_a_worker_writes_while_it_stops_is_not_in_the_stream(console: Console) -> None:
    with console.running() as (job_id, run, _):
        console.log(run, 1)
        console.cancel(job_id)
        console.clock.leap(1)
        console.log(run, 2)
    with console.watch(job_id, "?cursor=0") as listener:
        assert told(list(listener)) == [*lines(1), ("status", {"state": "cancelled"})]


@pytest.mark.parametrize(
    ("query", "last"),
    [("?cursor=-1", None), ("?cursor=x", None), ("?cursor=99999999999", None), ("", "x"), ("", "1-"), ("", "1-99999999999")],
)
def test_a_cursor_or_an_id_of_another_form_is_refused(console: Console, query: str, last: str | None) -> None:
    headers = {} if last is None else {"last-event-id": last}
    answer = console.http.get(f"/api/jobs/{console.create()}/events{query}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["error"]["details"] == {"member": "cursor" if last is None else "Last-Event-ID"}
