"""The doctor: a healthy store has nothing, and every trap that it knows is found in a store that has fallen into it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tests.engine import test_webhooks as hooks
from tests.harness import Harness
from tests.served import ServedHub
from tests.workers import until, working
from windlass import App, cli
from windlass.answers import SEVERITIES
from windlass.client import Client
from windlass.clock import ManualClock, SystemClock
from windlass.doctor import CHECKS, LIMIT, stores
from windlass.engine import Engine, Finding
from windlass.errors import StoreUnreachable
from windlass.model import NewRun, Notify, Options, Rate, Requires, Solver, Use, WorkerInfo
from windlass.store import disks
from windlass.store.base import run_sync
from windlass.store.disks import FileEnvironment, ForeignProcess, Mount, mount_of, mounts
from windlass.store.postgres import BlockingPostgres
from windlass.store.records.doctor import File, Server
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer
from windlass.worker import host, metrics

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
GIB = 2**30
SOUND = FileEnvironment("ext4", 0, 100 * GIB, 200 * GIB, ())


@pytest.fixture(autouse=True)
def sound_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk that tests happen to run on is not what they are about."""
    monkeypatch.setattr(disks, "mounts", lambda: [Mount("/", "ext4")])
    monkeypatch.setattr(disks, "space", lambda path: (SOUND.free, SOUND.total))


@pytest.fixture
def memory() -> Iterator[Harness]:
    """The engine in memory alone, for what no database can change."""
    clock = ManualClock()
    harness = Harness(BlockingSqlite(":memory:", clock), clock)
    harness.define()
    yield harness
    run_sync(harness.store.close())


@pytest.fixture
def post(emptied_postgres: str) -> Iterator[Harness]:
    clock = ManualClock()
    store = BlockingPostgres(emptied_postgres, clock)
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())


def lives(h: Harness, name: str = "w1", about: dict[str, Any] | None = None, **can: Any) -> None:
    """A worker that is seen now."""
    h(h.engine.register(WorkerInfo(name, **{"slots": 10} | can), about=about))


def found(h: Harness, **how: Any) -> dict[str, Finding]:
    """What is found, by its code."""
    return {finding.code: finding for finding in h(h.engine.doctor(**how))}


def only(h: Harness, code: str, severity: str, **how: Any) -> Finding:
    """The one finding there is, which must have this code."""
    findings = h(h.engine.doctor(**how))
    assert [(finding.code, finding.severity) for finding in findings] == [(code, severity)], findings
    return findings[0]


# Health


def test_a_healthy_store_has_nothing(h: Harness) -> None:
    lives(h)
    lives(h, "w2")
    h.define("report", timeout=MINUTE)
    h(h.engine.schedule("hourly", "mail", every="1h"))
    hooks.add(h)
    for _ in range(20):
        h.create("mail")
        h.create("report")
    for run in h.claim(30, slots=100):
        h.clock.advance(10)
        h.succeed(run)
    h(h.engine.roll_up())
    hooks.make(h)
    for parcel in hooks.claim(h, each=100):
        hooks.take(h, parcel)
    h(h.engine.worker_metrics("w1", {"loop_lag_ms": 12, "clock": h.clock.now(), "cpu": 5}))
    assert h(h.engine.doctor(deep=True)) == []


def test_an_empty_store_has_nothing(h: Harness) -> None:
    assert h(h.engine.doctor(deep=True)) == []


def test_it_changes_nothing(h: Harness) -> None:
    h.create("mail")
    before = h(h.engine.tail()).cursor
    found(h, deep=True)
    assert h(h.engine.tail()).cursor == before
    assert h(h.engine.audit()).entries == []


# Work that nobody takes


def test_runs_wait_and_no_worker_is_alive(h: Harness) -> None:
    lives(h)
    h.create("mail")
    h.create("mail")
    h.clock.advance(10 * MINUTE)
    finding = only(h, "no_workers", "problem")
    assert finding.data == {"runs": 2, "jobs": ["mail"]}
    assert "10m" in finding.text


@pytest.mark.parametrize(
    ("can", "options", "needs"),
    [
        ({"jobs": ("other",)}, {}, "--queue default"),
        ({"queues": ("fast",)}, {"queue": "slow"}, "--queue slow"),
        ({"tags": ("disk",)}, {"requires": Requires(tags=("gpu",))}, "--tag gpu"),
        ({"cores": 2}, {"requires": Requires(cores=3)}, "--cores 3"),
        ({"memory": 512}, {"requires": Requires(memory=1000)}, "--memory 1000MiB"),
    ],
)
def test_runs_wait_that_no_live_worker_takes(h: Harness, can: dict[str, Any], options: dict[str, Any], needs: str) -> None:
    lives(h, **can)
    h.define("heavy", **options)
    h.create("heavy")
    finding = only(h, "no_worker", "problem")
    assert (finding.data["job"], finding.data["runs"]) == ("heavy", 1)
    assert needs in finding.todo
    lives(h, "other")
    lives(h, "able", tags=("gpu",), cores=8, memory=4096)
    assert h(h.engine.doctor()) == []


def test_runs_wait_that_bring_a_program_for_which_no_live_worker_is_open(h: Harness) -> None:
    lives(h, jobs=("other",), tags=("solver",))
    h.define("prodplan", solver=Solver("https://files.example/solve", "a" * 64))
    h.create("prodplan")
    assert only(h, "no_worker", "problem").todo == "Start a worker that executes programs: windlass work --solvers --queue default"
    lives(h, jobs=("other",), tags=("solver",), programs=True)
    assert h(h.engine.doctor()) == []


def test_runs_are_counted_up_to_a_number(memory: Harness) -> None:
    lives(memory, jobs=())
    memory(memory.engine.create([NewRun("mail") for _ in range(150)]))
    assert ": 100 or more runs of job" in only(memory, "no_worker", "problem").text


def test_runs_wait_for_a_job_that_nobody_has_defined(h: Harness) -> None:
    lives(h, jobs=("mail",))
    h(h.engine.create([NewRun("mial")], undefined="wait"))
    assert only(h, "undefined_job", "problem").data == {"job": "mial", "queue": "default", "runs": 1}
    h.define("mial")
    assert only(h, "no_worker", "problem").data["job"] == "mial"


def test_nobody_sweeps(h: Harness) -> None:
    lives(h)
    due = h.clock.now() + SECOND
    h.create("mail", due_at=due)
    h.clock.advance(30 * SECOND)
    assert h(h.engine.doctor()) == []
    h.clock.advance(2 * MINUTE)
    lives(h)
    assert only(h, "nobody_sweeps", "problem").data == {"runs": 1, "since": due}
    h.sweep()
    assert h(h.engine.doctor()) == []


# Leases and limits


def lose(h: Harness, count: int, worker: str = "w1") -> None:
    """So many leases that run out."""
    for _ in range(count):
        h.create("mail", key=None)
    assert len(h.claim(count, worker)) == count
    h.sweep(after=31 * SECOND)


def test_leases_run_out_while_their_worker_lives(h: Harness) -> None:
    h.define("mail", max_attempts=1)
    lives(h)
    lose(h, 3)
    lives(h)
    finding = only(h, "lease_too_short", "warning")
    assert finding.data == {"job": "mail", "lapses": 3, "workers": ["w1"]}
    assert "--lease" in finding.todo


def test_leases_of_a_dead_worker_are_no_sign_of_a_short_lease(h: Harness) -> None:
    h.define("mail", max_attempts=1)
    lose(h, 3, "dead")
    lives(h)
    assert h(h.engine.doctor()) == []


def test_leases_that_ran_out_long_ago_are_forgotten(memory: Harness) -> None:
    memory.define("mail", max_attempts=1)
    lose(memory, 3)
    memory.clock.advance(2 * DAY)
    lives(memory)
    assert memory(memory.engine.doctor()) == []


def test_a_job_loses_its_workers_often(h: Harness) -> None:
    h.define("mail", max_attempts=1)
    lose(h, 3, "dead")
    h(h.engine.roll_up())
    lives(h)
    assert only(h, "workers_lost", "warning").data == {"job": "mail", "queue": "default", "lapsed": 3, "attempts": 3}
    for _ in range(60):
        h.create("mail")
    for run in h.claim(60):
        h.succeed(run)
    h(h.engine.roll_up())
    assert h(h.engine.doctor()) == []  # three of many


@pytest.mark.parametrize("limit", ["timeout", "max_runtime"])
def test_a_job_takes_nearly_as_long_as_it_may(h: Harness, limit: str) -> None:
    options: dict[str, Any] = {limit: 10 * SECOND}
    h.define("slow", **options)
    for _ in range(12):
        h.create("slow")
    runs = h.claim(12)
    h.clock.advance(9 * SECOND)
    for run in runs[:6]:
        h.succeed(run)
    for run in runs[6:]:
        h.fail(run, retry=False)
    lives(h)
    finding = only(h, "near_timeout", "warning")
    assert finding.data == {"job": "slow", "took": 9 * SECOND, "limit": 10 * SECOND, "runs": 12}


def test_a_few_slow_runs_among_many_say_nothing(h: Harness) -> None:
    h.define("slow", timeout=10 * SECOND)
    for _ in range(60):
        h.create("slow")
    runs = h.claim(60)
    for run in runs[:58]:
        h.succeed(run)
    h.clock.advance(9 * SECOND)
    for run in runs[58:]:
        h.succeed(run)
    lives(h)
    assert h(h.engine.doctor()) == []


# Pauses, resources, reservations


def resource(h: Harness, name: str, capacity: int | None, *rates: Rate) -> None:
    h(h.engine.set_resource(name, capacity=capacity, rates=rates))


@pytest.mark.parametrize(
    ("capacity", "rates"),
    [(2, ()), (0, ()), (None, (Rate(10, SECOND, 2),)), (None, (Rate(100, SECOND), Rate(2, MINUTE)))],
    ids=["capacity", "none at all", "burst", "rate"],
)
def test_a_run_needs_more_than_there_will_ever_be(h: Harness, capacity: int | None, rates: tuple[Rate, ...]) -> None:
    lives(h)
    resource(h, "ollama", capacity, *rates)
    h.define("heavy", uses=(Use("ollama", 3),))
    assert h(h.engine.doctor()) == []
    h.create("heavy")
    finding = only(h, "too_heavy", "problem")
    assert finding.data == {"job": "heavy", "queue": "default", "resource": "ollama", "weight": 3, "capacity": capacity, "runs": 1}
    resource(h, "ollama", 3)
    assert h(h.engine.doctor()) == []


@pytest.mark.parametrize(
    ("scope", "name", "resumed"),
    [("system", "", "resume --all"), ("queue", "default", "resume --queue default"), ("job", "mail", "resume --job mail")],
)
def test_runs_wait_for_a_pause_to_end(h: Harness, scope: Any, name: str, resumed: str) -> None:
    lives(h)
    h(h.engine.pause(scope, name, reason="a new disk", by="ann"))
    assert h(h.engine.doctor()) == []
    h.create("mail")
    h.clock.advance(30 * SECOND)
    finding = only(h, "paused", "note")
    assert finding.data == {"scope": scope, "name": name, "runs": 1}
    assert "by ann for 30s (a new disk)" in finding.text
    assert resumed in finding.todo


def test_a_direct_call_holds_its_slot_for_long(h: Harness) -> None:
    resource(h, "ollama", 1)
    slot = h(h.engine.reserve("ollama", actor="ann", lease=2 * HOUR))
    h.clock.advance(HOUR - 1)
    assert h(h.engine.doctor()) == []
    h.clock.advance(1)
    finding = only(h, "slot_held_long", "warning")
    assert finding.data == {"slot": slot.id, "resource": "ollama", "held_at": slot.held_at}
    assert "ann has held 1" in finding.text


# Workers


def test_a_silent_worker_holds_runs(h: Harness) -> None:
    lives(h)
    h.create("mail")
    h.claim(1, lease=HOUR)
    h.clock.advance(5 * MINUTE)
    finding = only(h, "silent_worker", "warning")
    assert (finding.data["worker"], finding.data["runs"]) == ("w1", 1)
    lives(h)
    assert h(h.engine.doctor()) == []


def test_a_loop_is_blocked_by_its_own_figure(h: Harness) -> None:
    lives(h)
    h(h.engine.worker_metrics("w1", {"loop_lag_ms": 1_001}))
    assert only(h, "blocked_loop", "warning").data == {"whose": "worker w1", "lag_ms": 1_001}
    h(h.engine.worker_metrics("w1", {"loop_lag_ms": 1_000}))
    assert h(h.engine.doctor()) == []


def test_a_loop_is_blocked_that_tells_nothing_while_its_heart_beats(h: Harness) -> None:
    lives(h)
    h(h.engine.worker_metrics("w1", {"loop_lag_ms": 0}))
    h.clock.advance(90 * SECOND)
    lives(h)
    assert only(h, "blocked_loop", "warning").data == {"whose": "worker w1", "lag_ms": 90_000}


def test_two_workers_go_by_one_name(h: Harness) -> None:
    lives(h, about={"incarnation": 1})
    h(h.engine.worker_metrics("w1", {"incarnation": 1}))
    assert h(h.engine.doctor()) == []
    lives(h, about={"incarnation": 2})
    assert only(h, "two_of_a_name", "warning").data == {"worker": "w1"}


@pytest.mark.parametrize(("apart", "word"), [(11_000, "ahead"), (-11_000, "behind")])
def test_the_clock_of_a_worker_is_wrong(h: Harness, apart: int, word: str) -> None:
    lives(h)
    h(h.engine.worker_metrics("w1", {"clock": h.clock.now() + apart}))
    finding = only(h, "worker_clock", "warning")
    assert finding.data == {"worker": "w1", "ahead_ms": apart}
    assert word in finding.text


def test_workers_of_several_versions(h: Harness) -> None:
    lives(h, about={"version": "1.0"})
    lives(h, "w2", about={"version": "1.0"})
    assert h(h.engine.doctor()) == []
    lives(h, "w3", about={"version": "1.1"})
    assert only(h, "mixed_versions", "note").data == {"versions": {"1.0": 2, "1.1": 1}}


def block_for(seconds: float) -> None:
    time.sleep(seconds)  # what an async handler must not do


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(metrics, "MEASURE_EVERY", 0.1)
    with App(tmp_path / "windlass.db") as made:
        yield made


def test_a_handler_that_blocks_its_worker_is_found(app: App) -> None:
    @app.job(name="rude")
    async def rude() -> None:
        block_for(1.6)

    with working(app):
        rude.enqueue().wait(30)
        finding = until(lambda: next((one for one in run_sync(app.verbs.doctor()) if one.code == "blocked_loop"), None))
        assert finding.data["lag_ms"] >= 1_000


def test_two_real_workers_of_one_name_are_found(app: App) -> None:
    @app.job(name="quick")
    async def quick() -> None: ...

    def names() -> list[str]:
        return [one.code for one in run_sync(app.verbs.doctor())]

    with working(app, name="same"):
        until(lambda: [one for one in run_sync(app.verbs.workers()) if one.metrics])
        assert "two_of_a_name" not in names()
        with working(app, name="same"):
            until(lambda: "two_of_a_name" in names())


def test_a_worker_whose_host_cannot_be_measured_tells_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, float]:
        raise OSError("no /proc here")

    monkeypatch.setattr(host, "metrics", broken)
    monkeypatch.setattr(metrics, "MEASURE_EVERY", 0.1)
    served = ServedHub(tmp_path / "hub.db")
    try:
        with App(served.url) as app, Client(served.url) as client:

            @app.job(name="quick")
            async def quick() -> None: ...

            with working(app):
                first = until(lambda: next((one for one in client.workers() if one.metrics), None))
                until(lambda: (client.workers()[0].metrics_at or 0) > (first.metrics_at or 0))
            assert first.metrics.keys() == {"loop_lag_ms", "clock", "incarnation"}
    finally:
        served.stop()


# Schedules


def test_a_schedule_that_never_fires(h: Harness) -> None:
    lives(h)
    h(h.engine.schedule("past", "mail", at="2020-01-01T00:00Z"))
    assert only(h, "schedule_never_fires", "warning").data == {"schedule": "past"}
    h(h.engine.set_schedule("past", enabled=False))
    assert h(h.engine.doctor()) == []


def test_a_schedule_that_has_fired_for_its_only_time_is_over(h: Harness) -> None:
    h(h.engine.schedule("soon", "mail", at="2026-01-01T00:00:05Z"))
    h.sweep(after=6 * SECOND)
    lives(h)
    assert h(h.engine.schedules())[0].next_at is None
    assert h(h.engine.doctor()) == []


def test_a_schedule_is_behind(h: Harness) -> None:
    h(h.engine.schedule("hourly", "mail", every="1h"))
    h.clock.advance(HOUR + 2 * MINUTE)
    lives(h)
    finding = only(h, "schedule_behind", "problem")
    assert "2m" in finding.text
    h.sweep()
    assert h(h.engine.doctor()) == []


def test_a_schedule_fires_in_the_distant_future_only(h: Harness) -> None:
    lives(h)
    h(h.engine.schedule("leap", "mail", cron="0 0 29 2 *"))
    assert only(h, "schedule_far_off", "note").data["schedule"] == "leap"


def test_the_last_instants_of_a_schedule_were_all_skipped(h: Harness) -> None:
    h(h.engine.schedule("minutely", "mail", every="1m", overlap="skip"))
    for _ in range(3):
        h.sweep(after=MINUTE)
    lives(h)
    assert h(h.engine.doctor()) == []  # one has fired, and two were skipped
    h.sweep(after=MINUTE)
    lives(h)
    assert only(h, "schedule_skips", "warning").data == {"schedule": "minutely", "skipped": 3, "reason": "overlap"}
    h.succeed(h.claimed())
    h.sweep(after=MINUTE)
    lives(h)
    assert h(h.engine.doctor()) == []


def test_a_schedule_skips_what_it_has_missed(h: Harness) -> None:
    h(h.engine.schedule("minutely", "mail", every="1m", missed="skip"))
    h.sweep(after=30 * MINUTE + 30 * SECOND)
    lives(h)
    assert "schedule_skips" not in found(h)  # the last one was in time
    h.sweep(after=30 * MINUTE + 61 * SECOND)
    assert h(h.engine.schedules())[0].skipped > 3


def test_no_worker_is_alive_for_schedules(h: Harness) -> None:
    for n in range(3):
        h(h.engine.schedule(f"s{n}", "mail", every="1h"))
    assert only(h, "schedule_without_worker", "warning").data == {"schedules": 3}


def test_a_schedule_whose_runs_nobody_takes(h: Harness) -> None:
    lives(h, queues=("fast",))
    h(h.engine.schedule("hourly", "mail", every="1h"))
    assert only(h, "schedule_without_worker", "warning").data == {"schedule": "hourly", "job": "mail", "queue": "default"}
    lives(h, "other", queues=("default",))
    assert h(h.engine.doctor()) == []


def test_a_schedule_takes_from_its_job_what_it_does_not_say(h: Harness) -> None:
    lives(h, queues=("slow",), tags=("gpu",))
    h.define("paint", queue="slow", requires=Requires(tags=("gpu",)))
    h(h.engine.schedule("hourly", "paint", every="1h"))
    assert h(h.engine.doctor()) == []
    h(h.engine.schedule("daily", "paint", every="24h", options=Options(queue="fast")))
    assert only(h, "schedule_without_worker", "warning").data == {"schedule": "daily", "job": "paint", "queue": "fast"}


def test_a_schedule_of_a_job_that_nobody_has_defined(h: Harness) -> None:
    lives(h)
    h(h.engine.schedule("hourly", "mial", every="1h"))
    assert only(h, "schedule_without_job", "warning").data == {"schedule": "hourly", "job": "mial"}


# Webhooks and those who follow the journal


def test_a_webhook_was_disabled_by_what_it_answered(h: Harness) -> None:
    webhook = hooks.add(h, name="alarms")
    hooks.end(h)
    hooks.make(h)
    hooks.refuse(h, hooks.claim(h)[0], gone=True)
    findings = found(h)
    assert findings.keys() == {"webhook_disabled", "deliveries_failed"}
    assert findings["webhook_disabled"].data == {"webhook": webhook.id}
    assert findings["deliveries_failed"].data == {"webhook": webhook.id, "deliveries": 1}


def test_a_webhook_that_somebody_has_disabled_is_as_they_want_it(h: Harness) -> None:
    hooks.add(h, enabled=False)
    assert h(h.engine.doctor()) == []


def test_a_webhook_fails_again_and_again(h: Harness) -> None:
    webhook = hooks.broken(h)
    finding = found(h)["webhook_fails"]
    assert (finding.severity, finding.data["webhook"], finding.data["failures"]) == ("warning", webhook.id, 10)


def test_what_runs_notify_fails_or_is_not_sent(h: Harness) -> None:
    for name in ("a", "b"):
        h(h.engine.cancel(h.create(notify=Notify(f"https://{name}.example/secret"))))
    hooks.make(h)
    h.clock.advance(6 * MINUTE)
    finding = only(h, "deliveries_unsent", "warning")
    assert "https://a.example, which a run names," in finding.text, "the oldest speaks for all"
    for _ in range(15):
        for parcel in hooks.claim(h):
            hooks.refuse(h, parcel)
        h(h.engine.cancel(h.create(notify=Notify("https://a.example/secret"))))
        hooks.make(h)
        h.clock.advance(MINUTE)
    finding = found(h)["notify_fails"]
    assert (finding.severity, finding.data["origins"]) == ("warning", ["https://a.example"])
    assert "secret" not in finding.text


def test_nobody_sends_what_webhooks_are_to_be_told(h: Harness) -> None:
    webhook = hooks.add(h)
    hooks.end(h)
    hooks.make(h)
    h.clock.advance(MINUTE)
    assert h(h.engine.doctor()) == []
    h.clock.advance(5 * MINUTE)
    assert only(h, "deliveries_unsent", "warning").data["webhook"] == webhook.id


def test_what_follows_the_journal_is_far_behind(h: Harness) -> None:
    hooks.add(h)
    hooks.end(h)
    hooks.make(h)
    for parcel in hooks.claim(h):
        hooks.take(h, parcel)
    h(h.engine.roll_up())
    h.clock.advance(DAY)
    hooks.end(h)
    h.clock.advance(4 * MINUTE)
    assert "consumer_behind" not in found(h)  # what they have not read has just happened
    h.clock.advance(2 * MINUTE)
    severities = {finding.data["consumer"]: finding.severity for finding in h(h.engine.doctor()) if finding.code == "consumer_behind"}
    assert severities == {"webhooks": "warning", "stats": "note"}
    hooks.make(h)
    h(h.engine.roll_up())
    assert "consumer_behind" not in found(h)


# Time


def test_the_clock_was_set_back(h: Harness) -> None:
    hooks.end(h)
    h.clock.jump(-HOUR)
    assert only(h, "clock_went_back", "warning").data == {"ahead_ms": HOUR}


class WrongMachine(SystemClock):
    """A machine whose clock was never set over the network."""

    apart = 0

    def wall(self) -> int:
        return super().wall() + self.apart


@pytest.mark.parametrize(("apart", "words"), [(60_000, "ahead of the database's"), (-60_000, "behind the database's")])
def test_the_clock_of_this_machine_differs_from_the_databases(emptied_postgres: str, apart: int, words: str) -> None:
    clock = WrongMachine()
    store = BlockingPostgres(emptied_postgres, clock)
    engine = Engine(store, clock)
    assert run_sync(engine.doctor()) == []
    clock.apart = apart
    [finding] = run_sync(engine.doctor())
    assert (finding.code, finding.severity) == ("clock_skew", "warning")
    assert words in finding.text
    assert abs(finding.data["ahead_ms"] - apart) < 5_000
    run_sync(store.close())


# SQLite and its file

TABLE = """\
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/export /srv nfs4 rw,vers=4.2 0 0
tmpfs /srv/fast tmpfs rw 0 0
//box/share /mnt/the\\040share cifs rw 0 0
/dev/vdb /srv2 xfs rw 0 0
/dev/vdc /over ext4 rw 0 0
server:/over /over nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/shop.db", "ext4"),
        ("/srv/shop.db", "nfs4"),
        ("/srv/deep/shop.db", "nfs4"),
        ("/srv/fast/shop.db", "tmpfs"),
        ("/srv2/shop.db", "xfs"),
        ("/srv3/shop.db", "ext4"),
        ("/mnt/the share/shop.db", "cifs"),
        ("/over/shop.db", "nfs"),
    ],
)
def test_a_file_is_on_the_deepest_and_last_mount(tmp_path: Path, path: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(TABLE, encoding="utf-8")
    found = mount_of(path, mounts(str(tmp_path / "mounts")))
    assert found is not None
    assert found.kind == kind


def test_where_the_system_does_not_tell_its_mounts_nothing_is_known() -> None:
    assert mounts("/nowhere/mounts") == []
    assert mount_of("/shop.db", []) is None
    assert stores.judged("shop.db", SOUND._replace(kind=None)) == []


@pytest.mark.parametrize(
    ("around", "code", "severity"),
    [
        ({"kind": "nfs4"}, "network_disk", "problem"),
        ({"kind": "cifs"}, "network_disk", "problem"),
        ({"kind": "fuse.sshfs"}, "network_disk", "problem"),
        ({"kind": "9p"}, "network_disk", "problem"),
        ({"kind": "tmpfs"}, "volatile_disk", "warning"),
        ({"log": 300 * 2**20}, "long_log", "warning"),
        ({"free": 100 * 2**20}, "disk_nearly_full", "problem"),
        ({"free": GIB}, "disk_nearly_full", "warning"),
        ({"free": 3 * GIB, "total": 200 * GIB}, "disk_nearly_full", "warning"),
        ({"readable": ("shop.db",)}, "readable_by_others", "warning"),
        ({"foreign_processes": (ForeignProcess(7, "sqlite3"),)}, "another_engine", "warning"),
        ({"foreign_processes": (ForeignProcess(7, "sqlite3", "3.52.0"),)}, "another_engine", "warning"),
        ({"foreign_processes": (ForeignProcess(7, "sqlite3", "3.40.1", old=True),)}, "another_engine", "problem"),
    ],
)
def test_how_a_file_lies(around: dict[str, Any], code: str, severity: str) -> None:
    assert stores.judged("shop.db", SOUND) == []
    assert [(one.code, one.severity) for one in stores.judged("shop.db", SOUND._replace(**around))] == [(code, severity)]


@pytest.fixture
def on_file(tmp_path: Path) -> Iterator[Harness]:
    clock = ManualClock()
    store = BlockingSqlite(tmp_path / "windlass.db", clock)
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())


def test_a_file_on_a_network_disk(on_file: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "mounts", lambda: [Mount("/", "ext4"), Mount(os.path.realpath(tmp_path), "nfs4")])
    assert only(on_file, "network_disk", "problem").data == {"kind": "nfs4"}


def test_a_store_in_memory_has_no_disk(memory: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "mounts", lambda: [Mount("/", "nfs4")])
    assert memory(memory.engine.doctor(deep=True)) == []


def test_a_file_that_is_not_synchronous(tmp_path: Path) -> None:
    clock = ManualClock()
    store = BlockingSqlite(tmp_path / "windlass.db", clock, synchronous="NORMAL")
    assert only(Harness(store, clock), "not_synchronous", "warning").data == {"synchronous": 1}
    run_sync(store.close())


def test_a_file_without_a_write_ahead_log() -> None:
    [finding] = stores._opened(File("shop.db", "delete", 2))  # which windlass refuses to open
    assert (finding.code, finding.severity) == ("no_write_ahead_log", "problem")
    assert stores._opened(File("shop.db", "wal", 2)) == []


def test_a_file_that_others_can_read(on_file: Harness, tmp_path: Path) -> None:
    assert on_file(on_file.engine.doctor()) == []
    file = tmp_path / "windlass.db"
    file.chmod(0o640)
    (tmp_path / "windlass.db-wal").chmod(0o604)
    finding = only(on_file, "readable_by_others", "warning")
    assert finding.data == {"files": [str(file), f"{file}-wal"]}
    assert f"chmod 600 {file} {file}-wal," in finding.todo


def test_a_long_log(on_file: Harness, tmp_path: Path) -> None:
    on_file.create("mail")
    lives(on_file)
    os.truncate(tmp_path / "windlass.db-wal", 300 * 2**20)  # SQLite reads what is valid in it, and no more
    assert only(on_file, "long_log", "warning").data == {"bytes": 300 * 2**20}


ANOTHER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("select count(*) from job_runs").fetchone()[0], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what processes have open")
def test_another_sqlite_has_the_file_open(on_file: Harness, tmp_path: Path) -> None:
    words = [sys.executable, "-c", ANOTHER, str(tmp_path / "windlass.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "0\n"
        finding = found(on_file)["another_engine"]
        other.stdin.close()
    assert finding.data["pid"] == other.pid
    if finding.data["version"] is not None:  # not told where SQLite is a part of Python itself
        assert finding.data["version"] == sqlite3.sqlite_version
        assert finding.severity == ("problem" if sqlite3.sqlite_version_info < (3, 51, 3) else "warning")
    assert on_file(on_file.engine.doctor()) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what processes have open")
def test_this_process_has_the_file_open_by_another_sqlite(on_file: Harness, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "windlass.db")
    assert only(on_file, "another_engine", "warning").data["pid"] == os.getpid()
    other.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what processes have open")
def test_another_process_of_ours_is_no_stranger(on_file: Harness, tmp_path: Path) -> None:
    ours = ANOTHER.replace("sqlite3", "apsw").replace("apsw.connect", "apsw.Connection")
    words = [sys.executable, "-c", f"import sqlite3\n{ours}", str(tmp_path / "windlass.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "0\n"
        assert on_file(on_file.engine.doctor()) == []
        other.stdin.close()


def damaged(path: Path) -> None:
    """Break pages of a table, as a disk would."""
    db = apsw.Connection(str(path))
    db.execute("pragma wal_checkpoint(truncate)")
    page, size = db.execute("select rootpage from sqlite_schema where name = 'job_audit'").get, db.execute("pragma page_size").get
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)


def test_a_damaged_file(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "windlass.db"
    run_sync(BlockingSqlite(path, clock).close())
    damaged(path)
    store = BlockingSqlite(path, clock)
    h = Harness(store, clock)
    assert h(h.engine.doctor()) == []  # nothing of what is looked at
    finding = found(h, deep=True)
    assert finding.keys() & {"damaged", "store_broken"}
    assert {one.severity for one in finding.values()} == {"problem"}
    run_sync(store.close())


# PostgreSQL and its server


def test_the_server_is_too_old() -> None:
    assert stores._version(Server(140_000, 1, 100, vacuums=True)) == []
    [finding] = stores._version(Server(130_009, 1, 100, vacuums=True))  # which windlass refuses to use
    assert (finding.code, finding.severity) == ("old_server", "problem")
    assert "PostgreSQL 13" in finding.text


@pytest.mark.parametrize(("used", "severity"), [(79, None), (80, "warning"), (94, "warning"), (95, "problem")])
def test_connections_are_used_up(used: int, severity: str | None) -> None:
    found = stores._connections(Server(160_000, used, 100, vacuums=True))
    assert [one.severity for one in found] == ([] if severity is None else [severity])


def test_the_servers_connections_are_counted(post: Harness, postgres_server: PostgresServer) -> None:
    server = post(post.engine.records.doctor.server())
    assert server is not None
    others = [psycopg.connect(postgres_server.url("home")) for _ in range(3)]
    assert until(lambda: (now := post(post.engine.records.doctor.server())) and now.connections >= server.connections + 3)
    assert 0 < server.connections < server.limit
    for other in others:
        other.close()


def test_autovacuum_is_off(post: Harness, postgres_server: PostgresServer) -> None:
    [finding] = stores._vacuum(Server(160_000, 1, 100, vacuums=False))
    assert (finding.code, finding.severity) == ("autovacuum_off", "problem")
    postgres_server.execute("alter table job_runs set (autovacuum_enabled = off)", "home")
    try:
        assert only(post, "autovacuum_off", "problem").data == {"table": "job_runs"}
    finally:
        postgres_server.execute("alter table job_runs reset (autovacuum_enabled)", "home")
    assert post(post.engine.doctor()) == []


def test_a_transaction_does_not_end(post: Harness, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        psycopg.connect(postgres_server.url()) as elsewhere,
        psycopg.connect(postgres_server.url("home"), application_name="forgotten") as other,
    ):
        elsewhere.execute("select 1")  # in another database, whose rows are no concern of ours
        other.execute("select 1")
        assert post(post.engine.doctor()) == []
        monkeypatch.setattr(stores, "LONG", 0)
        finding = only(post, "long_transaction", "warning")
        assert (finding.data["application"], finding.data["state"]) == ("forgotten", "idle in transaction")
        assert str(finding.data["pid"]) in finding.todo
        monkeypatch.setattr(stores, "FAR_TOO_LONG", -1)
        only(post, "long_transaction", "problem")
    assert post(post.engine.doctor()) == []


def test_dead_rows_are_left_lying(post: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks.end(post, 20)
    lives(post)
    monkeypatch.setattr(stores, "DEAD", 0)
    finding = until(lambda: found(post).get("dead_rows"))
    assert finding.severity == "warning"
    assert finding.data["dead"] > 0


def test_a_check_that_may_not_be_made_is_a_note(postgres_server: PostgresServer) -> None:
    clock, database = ManualClock(), "narrow"
    url = postgres_server.create_database(database)
    run_sync(BlockingPostgres(url, clock).close())
    for statement in (
        "create role narrow login",
        "grant all on all tables in schema public to narrow",
        "grant all on all sequences in schema public to narrow",
        "revoke all on pg_catalog.pg_stat_activity from public",
    ):
        postgres_server.execute(statement, database)
    store = BlockingPostgres(url.replace("postgres@", "narrow@"), clock)
    try:
        h = Harness(store, clock)
        h.define()
        h.create("mail")
        findings = h(h.engine.doctor())
        assert [(one.code, one.severity) for one in findings] == [("no_workers", "problem"), ("not_checked", "note")]
        assert "pg_stat_activity" in findings[1].text
    finally:
        run_sync(store.close())
        postgres_server.drop_database(database)
        postgres_server.execute("drop role narrow")


# The verb itself


def test_a_disk_that_cannot_be_looked_at_is_a_note(on_file: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> tuple[int, int]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(disks, "space", refuse)
    assert "Permission denied" in only(on_file, "not_checked", "note").text


def test_a_store_that_is_away_is_an_error(postgres_server: PostgresServer) -> None:
    clock = ManualClock()
    store = BlockingPostgres(postgres_server.create_database("away"), clock, patience=0.1)
    postgres_server.drop_database("away")
    with pytest.raises(StoreUnreachable):
        run_sync(Engine(store, clock).doctor())
    run_sync(store.close())


def test_what_there_is_too_much_of_is_cut(memory: Harness) -> None:
    lives(memory, jobs=())
    for n in range(LIMIT + 5):
        memory.define(f"job{n}")
        memory.create(f"job{n}")
    findings = memory(memory.engine.doctor())
    assert [one.code for one in findings] == ["no_worker"] * LIMIT + ["and_more"]
    assert findings[-1].text.startswith("5 more findings")


def test_the_worst_comes_first(memory: Harness) -> None:
    memory.create("mail")
    hooks.end(memory)
    memory.clock.jump(-HOUR)
    memory(memory.engine.schedule("leap", "mail", cron="0 0 29 2 *"))
    severities = [SEVERITIES.index(one.severity) for one in memory(memory.engine.doctor())]
    assert severities == sorted(severities)
    assert len(set(severities)) == 3


def test_every_finding_is_on_the_page() -> None:
    root = Path(__file__).parents[2]
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "src/windlass/doctor").glob("*.py"))]
    texts.append((root / "src/windlass/hub/doctor.py").read_text(encoding="utf-8"))
    codes = {code for text in texts for code in re.findall(r'(?:problem|warning|note|worst|\))\(\s*"(\w+)"', text)}
    page = (root / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert codes == set(re.findall(r"^\| `(\w+)`", page, re.M))
    assert len(codes) > len(CHECKS)


# The command line, the hub and the client


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """A store that the command line finds by itself."""
    clock = SystemClock()
    store = BlockingSqlite(tmp_path / "windlass.db", clock)
    monkeypatch.setenv("WINDLASS_STORE", str(tmp_path / "windlass.db"))
    harness = Harness(store, clock)  # type: ignore[arg-type]
    harness.define()
    yield harness
    run_sync(store.close())


def test_the_command_says_that_nothing_is_wrong(shop: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    lives(shop)
    assert cli.main(["doctor", "--deep"]) == 0
    assert capsys.readouterr().out == "Nothing is wrong.\n"
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"findings": []}


def test_the_command_says_what_is_wrong_and_what_to_do(shop: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    shop.define("a\x9b2Jb")
    shop.create("a\x9b2Jb")
    lives(shop, jobs=("mail",))
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    [_, text, todo] = printed.splitlines()
    assert text.startswith("problem")
    assert "1 run of job" in text
    assert "windlass work MODULE:APP" in todo
    assert "\x9b" not in printed
    assert cli.main(["doctor", "--json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding.keys() == {"code", "severity", "text", "todo", "data"}
    assert (finding["code"], finding["data"]["queue"]) == ("no_worker", "default")


def test_a_warning_is_no_failure(shop: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    lives(shop, "w\x9b1")
    shop(shop.engine.worker_metrics("w\x9b1", {"loop_lag_ms": 5_000}))
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "worker w\\x9b1 was blocked for 5s" in printed
    assert "\x9b" not in printed


def test_the_hub_is_asked_by_command_and_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = ServedHub(tmp_path / "hub.db")
    try:
        with Client(served.url) as client:
            until(lambda: not served.hub.problems())
            assert {one.code for one in client.doctor()} <= {"blocked_loop"}  # on a machine with much to do
            client.define("mail")
            client.create([NewRun("mail")])
            (finding,) = (one for one in client.doctor() if one.code != "blocked_loop")
            assert (finding.code, finding.severity, finding.data["runs"]) == ("no_workers", "problem", 1)
            assert cli.main(["doctor", "--hub", served.url]) == 1
            assert "no worker is running" in capsys.readouterr().out
            assert cli.main(["doctor", "--hub", served.url, "--deep"]) == 2
            assert "--store" in capsys.readouterr().err
            served.loop.call_soon_threadsafe(block_for, 1.6)
            until(lambda: "blocked_loop" in {one.code for one in client.doctor()})
            served.hub.failed = "RuntimeError: it fell over"
            assert {one.data["part"]: one.severity for one in client.doctor() if one.code == "hub_part"} == {"hub": "problem"}
    finally:
        served.stop()
