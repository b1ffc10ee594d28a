"""How many runs at once: as many as there are cores; and with one slot, an end and the next claim are one commit."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import KINDS
from tests.tiers import corners
from tests.worker.test_worker import at
from tests.workers import Gate, ended, until, working
from windlass import App, State
from windlass.errors import StoreUnreachable
from windlass.store.base import run_sync
from windlass.worker import Worker

AGES = 3_600.0


@pytest.fixture(params=corners(KINDS))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with App(at(request.param, tmp_path, request)) as app:
        yield app


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[App]:
    with App(str(tmp_path / "windlass.db")) as app:
        yield app


def test_a_worker_that_is_told_nothing_has_a_slot_for_each_core_and_four_at_least() -> None:
    with App(":memory:") as app, working(app, slots=None) as at_work:
        assert at_work.worker.info.slots == max(4, os.cpu_count() or 1)


def counted(app: App) -> tuple[Any, list[int]]:
    """A job that does nothing, and how many of its handlers ran at once."""
    inside, seen, lock = [0], list[int](), threading.Lock()

    @app.job(name="mail")
    def mail() -> None:
        with lock:
            inside[0] += 1
            seen.append(inside[0])
        with lock:
            inside[0] -= 1

    return mail, seen


def commits(worker: Worker) -> int:
    count: int = worker.runtime.port.parts.ground.home.store.commits  # type: ignore[attr-defined]
    return count


def test_an_end_and_the_next_claim_are_one_commit(on_file: App) -> None:
    mail, seen = counted(on_file)
    handles = on_file.enqueue_many(mail.new() for _ in range(60))
    before = list[int]()
    with working(on_file, lease=AGES, prepare=lambda worker: before.append(commits(worker))) as at_work:
        assert all(ended(handle).state is State.SUCCEEDED for handle in handles)
        spent = commits(at_work.worker) - before[0]
    # One for each run, the first claim, and what a worker writes when it begins; two for each run would be 120.
    assert len(handles) <= spent < len(handles) + 20
    assert max(seen) == 1


def test_all_that_is_queued_is_done_one_at_a_time(stored: App) -> None:
    mail, seen = counted(stored)
    handles = stored.enqueue_many(mail.new() for _ in range(30))
    with working(stored, lease=AGES):
        assert all(ended(handle).state is State.SUCCEEDED for handle in handles)
    assert max(seen) == 1


def test_what_the_end_of_a_run_sets_free_is_claimed_at_once(stored: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim that goes with a report cannot see yet what the report gives back; the one after it does, without any hint."""
    monkeypatch.setattr("windlass.worker.claims.LONGEST_WAIT", AGES)
    run_sync(stored.engine.set_resource("press", capacity=1))
    seen = list[str]()

    @stored.job(name="print", uses="press")
    def printed(what: str) -> None:
        seen.append(what)

    handles = [printed.enqueue(what) for what in "abcdef"]

    def without_hints(worker: Worker) -> None:
        worker.runtime.port.parts.ground.home.store.wake = lambda topics: None  # type: ignore[attr-defined]

    with working(stored, lease=AGES, prepare=without_hints):
        assert all(ended(handle).state is State.SUCCEEDED for handle in handles)
    assert seen == list("abcdef")


def test_a_claim_that_fails_holds_up_no_report(on_file: App) -> None:
    gate = Gate()

    @on_file.job(name="wait")
    def wait() -> None:
        gate.block()

    first, second = wait.enqueue(), wait.enqueue()
    broken = threading.Event()

    def prepare(worker: Worker) -> None:
        claim = worker.runtime.port.claim

        async def failing(*arguments: Any, **named: Any) -> Any:
            if broken.is_set():
                raise StoreUnreachable("It is away.", hint="Wait.")
            return await claim(*arguments, **named)

        worker.runtime.port.claim = failing  # type: ignore[method-assign]

    with working(on_file, lease=AGES, prepare=prepare):
        gate.reached(1)
        broken.set()
        gate.open()
        assert ended(first).state is State.SUCCEEDED
        assert second.refresh().state is State.QUEUED
        broken.clear()
        assert ended(second).state is State.SUCCEEDED


def test_a_worker_that_stops_while_a_claim_looks_stores_the_report(on_file: App) -> None:
    gate, looking, go_on = Gate(), threading.Event(), threading.Event()

    @on_file.job(name="wait")
    def wait() -> None:
        gate.block()

    first, second = wait.enqueue(), wait.enqueue()

    def prepare(worker: Worker) -> None:
        store = worker.runtime.port.parts.ground.home.store  # type: ignore[attr-defined]
        batch = store.batch

        async def slow(verb: str, statements: Any) -> Any:
            answer = await batch(verb, statements)
            if gate.came and any(statement.name == "busy" for statement in statements):
                looking.set()
                await asyncio.to_thread(go_on.wait)
            return answer

        store.batch = slow

    with working(on_file, lease=AGES, grace=30, prepare=prepare) as at_work:
        gate.reached(1)
        gate.open()
        until(looking.is_set)
        stopped = at_work.ask()
        go_on.set()
        stopped.result(30)
    assert ended(first).state is State.SUCCEEDED
    assert second.refresh().state is State.QUEUED
