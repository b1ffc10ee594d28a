"""A process is killed (SIGKILL) at every named point, and whoever comes after it finds nothing lost and nothing done twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import invariants, ledger
from tests.forkserver import ForkServer, folder_in_memory
from tests.kill_child import WORKER, Life, open_store
from windlass.clock import ManualClock
from windlass.faults import VARIABLE
from windlass.machine import ENDED, Succeed
from windlass.model import Key
from windlass.store.base import Statement, run_sync
from windlass.store.records import fault_points
from windlass.testing.servers import PostgresServer

HOUR = 3_600_000
ROUNDS = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Forks a child for each life."""
    server = ForkServer("tests.kill_child")
    yield server
    server.close()


def live(server: ForkServer, faults: str, *life: str) -> dict[str, Any]:
    """Let a child live with these faults; how it ended."""
    answer: dict[str, Any] = server.ask(faults=faults, life=life)
    return answer


class Files:
    """Empty SQLite stores, each a copy of the first."""

    kind, dialect = "sqlite", "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        run_sync(open_store(self.kind, str(folder / "template.db"), ManualClock()).close())

    def fresh(self) -> str:
        for old in self._folder.glob("[0-9]*.db*"):
            old.unlink()
        path = self._folder / f"{next(ROUNDS)}.db"
        shutil.copy(self._folder / "template.db", path)
        return str(path)

    def close(self) -> None: ...


class Databases:
    """Empty databases of one server, each a copy of the first."""

    kind, dialect = "postgres", "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._connection, self._name = server, psycopg.connect(server.url(), autocommit=True), ""
        run_sync(open_store(self.kind, server.create_database("kill_template"), ManualClock()).close())

    def fresh(self) -> str:
        self._drop()
        self._name = f"kill{next(ROUNDS)}"
        self._connection.execute(f"create database {self._name} template kill_template".encode())
        return self._server.url(self._name)

    def _drop(self) -> None:
        if self._name:
            self._connection.execute(f"drop database {self._name} with (force)".encode())

    def close(self) -> None:
        self._drop()
        self._connection.close()
        self._server.drop_database("kill_template")


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with folder_in_memory(tmp_path_factory.mktemp("kills")) as folder:
        yield folder


@pytest.fixture
def folder(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def files(memory: Path) -> Files:
    return Files(memory)


@pytest.fixture(scope="module")
def databases(postgres_server: PostgresServer) -> Iterator[Databases]:
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture(params=["file", "postgres"])
def stores(request: pytest.FixtureRequest) -> Files | Databases:
    chosen: Files | Databases = request.getfixturevalue("files" if request.param == "file" else "databases")
    return chosen


_VISITS: dict[str, dict[str, int]] = {}


def visits(server: ForkServer, stores: Files | Databases, folder: Path) -> dict[str, int]:
    """How often a life that nobody ends passes each point."""
    if stores.kind not in _VISITS:
        _VISITS[stores.kind] = json.loads(live(server, "", stores.kind, stores.fresh(), str(folder / "whole"), "all")["said"])
    return _VISITS[stores.kind]


def recover(kind: str, where: str, path: Path) -> None:
    """Let time pass and a fair worker finish what the dead one left; then nothing may be missing and nothing too much."""
    clock = ManualClock(seed=2)
    store = open_store(kind, where, clock, queries=invariants.with_tables(kind))
    snapshot = invariants.read(store)
    invariants.check(snapshot)  # right after the crash, before anybody has repaired anything
    entries = [entry.at for journal in snapshot.journal.values() for entry in journal]
    clock.advance(max(entries, default=clock.now()) - clock.now() + HOUR)
    life = Life(store, clock, path)
    again = life.create(key=Key("b", ttl="forever"))  # asked for again by somebody who may not have heard the answer
    finish(life)
    check_counts(life, kind)
    snapshot, lines = invariants.read(store), ledger.read(path)
    held, slots = life(life.engine.records.limiters.held_under()), life(life.engine.slots())
    life.ledger.close()
    run_sync(store.close())
    invariants.check(snapshot)
    assert all(group.finished_at is not None for group in snapshot.groups.values()), "a group is stuck"
    assert snapshot.checks == [], "a check is stuck"
    assert held == {}, "a permit is stuck"
    assert slots == [], "a reservation is stuck"
    assert all(run.parked is None for run in snapshot.runs.values()), "a run is parked for ever"
    ledger.check(lines, snapshot)
    assert {line.run for line in lines if line.what == "E" and line.rest == ("b",)} == {again}


IN_A_CROWD = 8
"""Creations that are under way at once, whose numbers PostgreSQL does not take back."""


def check_counts(life: Life, kind: str) -> None:
    """A3: every entry was counted, and none twice, whoever died while counting and whatever was pruned meanwhile."""
    last = life.create()
    life.cancel(last)
    assert life(life.engine.roll_up())
    whole, _ = life(life.engine.totals())
    assert sum(whole.unfinished.values()) == 0
    assert sum(getattr(whole.counts, state) for state in ENDED) == whole.counts.created
    failures = life(life.engine.get(last)).seq - whole.counts.created  # numbers of runs that were never committed
    assert failures == 0 or (kind == "postgres" and 0 < failures <= IN_A_CROWD)


def finish(life: Life) -> None:
    """Sweep and work until all has ended."""
    life(life.engine.define("job"))
    for _ in range(100):
        life(life.engine.sweep())
        for run in life(life.engine.claim(WORKER, count=100)):
            life.execute(run)
            life.report(run, Succeed(token=run.token))
        if all(run.finished_at is not None for run in life(life.engine.runs(count=1_000)).runs):
            return
        life.clock.advance(5_000)
    raise AssertionError("there are runs that never end")


def kill(server: ForkServer, stores: Files | Databases, folder: Path, point: str, nth: int, which: str = "all") -> None:
    where, path = stores.fresh(), folder / f"ledger {nth}"
    answer = live(server, f"{point}=kill@{nth}", stores.kind, where, str(path), which)
    assert answer == {"signal": signal.SIGKILL, "said": ""}
    recover(stores.kind, where, path)


def test_a_life_passes_every_point(server: ForkServer, stores: Files | Databases, folder: Path) -> None:
    assert sorted(visits(server, stores, folder)) == fault_points(stores.dialect)


def test_a_life_that_nobody_ends_keeps_the_ledger(server: ForkServer, stores: Files | Databases, folder: Path) -> None:
    where, path = stores.fresh(), folder / "ledger"
    assert live(server, "nowhere.at_all=kill", stores.kind, where, str(path), "all") == {"signal": 0, "said": "{}"}
    recover(stores.kind, where, path)


def some(times: int) -> list[int]:
    """The first visit, one in the middle, and the last."""
    return sorted({1, times // 2 + 1, times})


@pytest.mark.parametrize("point", fault_points("sqlite"))
def test_a_kill_on_a_file_loses_nothing(server: ForkServer, files: Files, folder: Path, point: str) -> None:
    for nth in some(visits(server, files, folder)[point]):
        kill(server, files, folder, point, nth)


@pytest.mark.parametrize("point", fault_points("postgres"))
def test_a_kill_on_postgres_loses_nothing(server: ForkServer, databases: Databases, folder: Path, point: str) -> None:
    for nth in some(visits(server, databases, folder)[point])[-1:]:
        kill(server, databases, folder, point, nth)


@pytest.mark.parametrize("place", ["before_begin", "before_commit", "after_commit", "after_create_plain", "after_succeed"])
def test_a_kill_in_a_crowd_loses_nothing(server: ForkServer, stores: Files | Databases, folder: Path, place: str) -> None:
    verb = "report" if place == "after_succeed" else "create"
    for nth in (1, 9, 20):
        kill(server, stores, folder, f"{verb}.{place}", nth, "crowd")


@pytest.mark.parametrize("point", ["checkpoint.before", "checkpoint.after"])
def test_a_kill_around_a_checkpoint_loses_nothing(server: ForkServer, files: Files, folder: Path, point: str) -> None:
    for nth in (1, 2):
        kill(server, files, folder, point, nth, "much")


def test_the_environment_says_where_to_die(stores: Files | Databases, folder: Path) -> None:
    where, path = stores.fresh(), folder / "ledger"
    environment = os.environ | {VARIABLE: "report.before_commit=kill@3"}
    command = [sys.executable, "-m", "tests.kill_child", stores.kind, where, str(path), "all"]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    recover(stores.kind, where, path)


def test_nothing_is_damaged(server: ForkServer, files: Files, folder: Path) -> None:
    where = files.fresh()
    live(server, "report.before_commit=kill@5", files.kind, where, str(folder / "ledger"), "all")
    store = open_store(files.kind, where, ManualClock(), queries=invariants.with_tables("sqlite", damage="pragma integrity_check"))
    assert run_sync(store.batch("read", [Statement("damage")])) == [[("ok",)]]
    run_sync(store.close())


def test_the_ledger_sees_every_kind_of_wrong(folder: Path) -> None:
    """What the other tests rely on: each lie in a ledger is noticed."""
    clock = ManualClock()
    store = open_store("sqlite", str(folder / "store.db"), clock, queries=invariants.with_tables("sqlite"))
    life = Life(store, clock, folder / "ledger")
    life(life.engine.define("job"))
    run_id = life.create()
    (run,) = life.claim()
    life.succeed(run)
    now, lines = invariants.read(store), ledger.read(folder / "ledger")
    run_sync(store.close())
    ledger.check(lines, now)
    token = run.token or ""
    assert ledger.lost([*lines, ledger.Line("E", "unheard-of")], now) == {"unheard-of"}
    assert ledger.lost([ledger.Line("E", "old"), ledger.Line("O", "old")], now) == set()
    assert ledger.ended_twice([*lines, ledger.Line("R", run_id, (token, "succeeded"))], now) == {run_id}
    assert ledger.stale_accepted([*lines, ledger.Line("R", run_id, ("stale", "succeeded"))], now) == {run_id}
    assert ledger.executed_without_attempt([*lines, ledger.Line("S", run_id, ("stale",))], now) == {run_id}
    assert ledger.executed_without_attempt([*lines, ledger.Line("S", run_id, (token,))], now) == {run_id}
    assert ledger.succeeded_without_effect([line for line in lines if line.what != "X"], now) == {run_id}
    lies = [("C",), ("K",), ("P", "1"), ("L", token, "1"), ("D", "charge", "1"), ("R", token, "failed")]
    assert len(ledger.forgotten([ledger.Line(what, run_id, tuple(rest)) for what, *rest in lies], now)) == len(lies)
