"""Kumofire's parts as processes that are killed: an application, a dispatcher and two consumers over a queue that cannot be relied on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.dialects.kumofire_parts import RUNS, SCHEDULES, jobs_at, points
from tests.tiers import long
from tests.workers import until
from windlass import App
from windlass.machine import ENDED
from windlass.model import Run, State
from windlass.store.base import run_sync

ROOT = Path(__file__).parents[2]
DEADLINE = 120
AT_ONCE = 6
"""Fault points that the parts meet in one life."""
SHORT = ("kumofire.marked", "kumofire.sent", "kumofire.running", "kumofire.handled", "fire.before_commit", "report.after_commit")
"""Between mark and send, after it, before and after the handler, between advance and create, between mark and answer."""


class Part:
    """A program that is started again whenever it was killed, from then on without faults."""

    def __init__(self, name: str, store: str, folder: Path, queue: str, faults: list[str]) -> None:
        self._words = [sys.executable, "-m", "tests.dialects.kumofire_parts", name, store, str(folder), queue]
        self._faults, self.kills, self.over = list(faults), 0, False
        self._folder, self.process = folder, self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        path = f"{ROOT}{os.pathsep}{inherited.get('PYTHONPATH', '')}"
        faults = {"WINDLASS_FAULTS": self._faults.pop(0)} if self._faults else {}
        return subprocess.Popen(self._words, env=inherited | {"PYTHONPATH": path} | faults, cwd=ROOT)

    def check(self) -> None:
        """Start it again if it was killed; whatever else ends it is an error, except that an application comes to its end."""
        if self.over or (code := self.process.poll()) is None:
            return
        if code == 0 and "application" in self._words:
            self.over = True
            return
        assert code == -signal.SIGKILL, (self._words, code)
        self.kills += 1
        self.process = self._start()

    @property
    def done(self) -> bool:
        """Whether all its faults have killed it."""
        return not self._faults

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def lived(store: str, folder: Path, faults: Mapping[str, list[str]], queue: str) -> list[Run]:
    """All runs after their lives with processes that are killed by these faults."""
    with ExitStack() as stack:
        names = ("application", "dispatcher", "consumer", "consumer")
        app = stack.enter_context(App(store))
        parts = [Part(name, store, folder, queue, faults[name] if index < 3 else []) for index, name in enumerate(names)]
        for part in parts:
            stack.callback(part.stop)
        deadline = time.monotonic() + DEADLINE
        runs: list[Run] = []
        while not (_all_ended(runs) and parts[0].over):
            assert time.monotonic() < deadline, Counter(run.state for run in runs)
            for part in parts:
                part.check()
            time.sleep(0.1)
            runs = app.runs(queue=queue, count=1_000).runs
        assert sum(part.kills for part in parts)
        entries = {run.id: [entry.state for entry in run_sync(app.engine.history(run.id))] for run in runs}
    for run in runs:
        assert sum(state in ENDED for state in entries[run.id]) == 1, "it ended once"
    return runs


def _all_ended(runs: list[Run]) -> bool:
    return len(runs) == RUNS + SCHEDULES and all(run.state in ENDED for run in runs)


def check_all_ended_once(store: str, folder: Path, faults: Mapping[str, list[str]], queue: str = "kumofire") -> None:
    runs = lived(store, folder, faults, queue)
    assert Counter(run.state for run in runs) == {State.SUCCEEDED: RUNS + SCHEDULES}
    assert sorted(run.output or "" for run in runs) == sorted([str(n) for n in range(RUNS)] + [str(n) for n in range(SCHEDULES)])
    handled = Counter((folder / "handled").read_text().split())
    assert {run.id for run in runs} <= handled.keys()
    assert len({run.schedule for run in runs}) == SCHEDULES + 1


def kills(seen: list[str]) -> dict[str, list[str]]:
    """Each part is killed at whichever of these points it reaches first, and then at later and later visits."""
    each = [",".join(f"{point}=kill@{visit}" for point in seen) for visit in (1, 2, 3, 5)]
    return {"application": each, "dispatcher": each, "consumer": each}


@pytest.mark.parametrize("kind", ["file", pytest.param("postgres", marks=long)])
def test_K20_K36_every_run_ends_once_whatever_is_killed(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = str(request.getfixturevalue("emptied_postgres") if kind == "postgres" else tmp_path / "jobs.db")
    marked, sent, running, handled, fire, report = (f"{point}=kill@2" for point in SHORT)
    faults = {"application": [marked], "dispatcher": [marked, sent, fire], "consumer": [running, handled, report]}
    check_all_ended_once(store, tmp_path, faults)


@long
@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_K36_at_every_fault_point_of_every_part(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = str(request.getfixturevalue("emptied_postgres") if kind == "postgres" else tmp_path / "jobs.db")
    seen = sorted(asyncio.run(points(*jobs_at(store, tmp_path, "first"))))
    assert {*SHORT} <= {*seen}
    for number in range(0, len(seen), AT_ONCE):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_all_ended_once(store, folder, kills(seen[number : number + AT_ONCE]), f"queue-{number}")


SHOP = """
from windlass.dialects.kumofire import Storage, StoreQueue, create_jobs

storage = Storage()


def email(context):
    if context.job.input_payload["n"] % 5 == 0 and context.job.attempt == 0:
        raise ConnectionError("no answer")
    return context.job.input_payload["n"]


jobs = create_jobs(storage=storage, queue=StoreQueue(storage), handlers={"email": email})
"""
ORDERS = """
import asyncio
from datetime import timedelta
from kumoshop import jobs


async def main():
    for n in range(20):
        await jobs.create("email", {"n": n}, run_at=jobs.storage.now() + timedelta(seconds=1) if n % 2 else None)
    await jobs.storage.close()


asyncio.run(main())
"""


@long
@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_the_commands_execute_what_an_application_creates(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = str(request.getfixturevalue("emptied_postgres") if kind == "postgres" else tmp_path / "jobs.db")
    (tmp_path / "kumoshop.py").write_text(SHOP)
    (tmp_path / "orders.py").write_text(ORDERS)
    windlass = [sys.executable, "-m", "windlass"]
    consume = [*windlass, "consume", "--dialect", "kumofire", "kumoshop:jobs"]
    words = [[*windlass, "dispatch", "--dialect", "kumofire"], consume, consume, [sys.executable, "orders.py"]]
    environment = {**os.environ, "WINDLASS_STORE": store}
    with ExitStack() as stack, App(store) as app:
        processes = [stack.enter_context(subprocess.Popen(word, cwd=tmp_path, env=environment)) for word in words]
        for process in processes:
            stack.callback(process.kill)
        assert processes[-1].wait(DEADLINE) == 0
        until(lambda: all(run.state in ENDED for run in app.runs(queue="kumofire").runs))
        runs = app.runs(queue="kumofire").runs
        for process in processes[:-1]:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(DEADLINE) for process in processes[:-1]] == [0, 0, 0]
    assert sorted(int(run.output or -1) for run in runs) == list(range(20))
    assert sorted(run.failures for run in runs) == [0] * 16 + [1] * 4
