"""Workers that end when nothing is left to do: they recover what dead workers held, or say what they leave."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LEASE, Harness
from tests.hub.test_auth import MovedClock
from tests.worker.test_worker import at, noop
from windlass import App, State
from windlass.clock import ManualClock, SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine, PendingWork
from windlass.engine.workers import Workers
from windlass.model import Leases, Run, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records.workers import WorkerRecords
from windlass.worker import idle

LONG_AGO = 3_600_000
SHORT = 300
Claim = Callable[..., Run]


@pytest.fixture(params=["file", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with App(at(request.param, tmp_path, request)) as app:
        yield app


@pytest.fixture
def claim(app: App) -> Claim:
    """A run that a worker has claimed, so many milliseconds ago, without a word since."""
    job = noop(app, backoff=(0.2,))

    def claimed(worker: str, *, lease: int, ago: int = LONG_AGO, slots: int = 1) -> Run:
        job.enqueue()
        clock = ManualClock(SystemClock().now() - ago)
        engine = Engine(open_store(app.address, clock, blocking=True), clock)
        (run,) = run_sync(engine.claim(WorkerInfo(worker, slots=slots), lease=lease))
        run_sync(engine.close())
        return run

    return claimed


def burst(app: App, **settings: object) -> list[Leases]:
    """Work until nothing is left; what it leaves."""

    async def main() -> list[Leases]:
        async with app.worker(**settings) as worker:  # type: ignore[arg-type]
            await worker.run(until_idle=True)
            return list(worker.left)

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["one", "another"])
def test_a_burst_recovers_what_is_overdue_before_it_ends(app: App, claim: Claim, name: str) -> None:
    run = claim("one", lease=SHORT)  # the only slot of worker one
    assert burst(app, name=name) == []
    after = run_sync(app.verbs.get(run.id))
    assert (after.state, after.attempt, after.failures) == (State.SUCCEEDED, 2, 1)


def test_a_run_that_is_recovered_meanwhile_is_left_in_one_way_or_another(app: App, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    claim("gone", lease=SHORT)
    reads = 0

    def recovering(read: Callable[..., Any]) -> Callable[..., Any]:
        async def reads_and_recovers(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            answer = await read(*arguments)
            if reads == 1:
                assert await app.engine.lapse() == 1
            return answer

        return reads_and_recovers

    for name in ("leases", "recovered_due"):
        monkeypatch.setattr(WorkerRecords, name, recovering(getattr(WorkerRecords, name)))
    left = run_sync(app.engine.left())
    assert reads == 2
    assert left.leases or left.due_at is not None


def test_a_burst_says_what_it_leaves_and_when_to_come_again(app: App, claim: Claim, caplog: pytest.LogCaptureFixture) -> None:
    runs = [
        claim("gone", lease=2 * idle.STAY),
        claim("alive", lease=600_000, ago=0, slots=2),
        claim("alive", lease=600_000, ago=0, slots=2),
    ]
    with caplog.at_level(logging.INFO, "windlass.worker"):
        left = burst(app)
    assert [(lease.worker, lease.length, lease.runs, lease.over) for lease in left] == [("alive", 600_000, 2, 0), ("gone", 240_000, 1, 1)]
    alive, gone = left
    assert alive.over_since is gone.ends_at is None
    assert alive.ends_at == min(run_sync(app.verbs.get(run.id)).lease_until or 0 for run in runs[1:])
    assert "Worker alive holds 2 runs. If it is gone, start again in 9m, when the first lease is over." in caplog.text
    assert "Worker gone holds 1 run, 1 of them under a lease that has been over for 56m." in caplog.text
    assert {run_sync(app.verbs.get(run.id)).state for run in runs} == {State.CLAIMED}


def test_the_command_says_what_its_burst_leaves(app: App, claim: Claim) -> None:
    claim("alive", lease=600_000, ago=0)
    command = [sys.executable, "-m", "windlass", "work", "tests.worker.remote_app:app", "--burst", "--store", app.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Worker alive holds 1 run. If it is gone, start again in 9m, when the first lease is over." in done.stderr


def test_a_burst_stays_for_a_while_and_not_for_ever(app: App, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    run, looks = claim("gone", lease=idle.STAY - 1), 0
    app.clock = clock = MovedClock()
    look = Workers.left

    async def left(workers: Workers) -> PendingWork:
        nonlocal looks
        looks += 1
        if looks == 2:
            clock.moved += idle.STAY  # in which nobody watches: it is not recovered for that
        return await look(workers)

    monkeypatch.setattr(Workers, "left", left)
    (leases,) = burst(app)
    assert (looks, leases.worker, leases.over) == (2, "gone", 1)
    assert run_sync(app.verbs.get(run.id)).state is State.CLAIMED


# What is told of them


def test_why_says_that_a_lease_is_over(h: Harness) -> None:
    run_id = h.create()
    h.claimed("w1")
    assert [reason.code for reason in h(h.engine.why(run_id))] == ["held"]
    h.clock.advance(LEASE + 12_000)
    held, over = h(h.engine.why(run_id))
    assert (held.code, over.code, over.data["since"]) == ("held", "lease_over", h.get(run_id).lease_until)
    assert "over for 12s" in over.text
    assert "when it has run for 30s" in over.text


def test_the_doctor_says_that_nobody_recovers(h: Harness) -> None:
    for worker in ("w1", "w2"):
        h.create()
        h.claimed(worker)
    h.clock.advance(3 * LEASE)
    assert "nobody_recovers" not in {finding.code for finding in h(h.engine.doctor())}
    h.clock.advance(1)
    (finding,) = [finding for finding in h(h.engine.doctor()) if finding.code == "nobody_recovers"]
    assert finding.data == {"runs": 2, "since": h.clock.now() - 2 * LEASE - 1, "workers": ["w1", "w2"]}
    h.sweep()
    assert "nobody_recovers" not in {finding.code for finding in h(h.engine.doctor())}
