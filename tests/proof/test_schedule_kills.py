"""Four processes sweep the same schedules and are killed at any moment: every due instant becomes one run or one recorded skip.

`TORTURE=10` kills ten times as often, `TORTURE_SEED` repeats the choices of a run; both are printed with a failure.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import invariants
from tests.forkserver import ForkServer, folder_in_memory
from tests.proof.schedule_child import FastClock, Firing, open_store, work
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.firing import ON_TIME
from windlass.model import Options, Run, Schedule
from windlass.store.base import Statement, run_sync

FACTOR = float(os.environ.get("TORTURE", "1"))
SEED = int(os.environ.get("TORTURE_SEED", random.randrange(2**32)))
KILLS = round(FACTOR * 60)
SCHEDULES, SWEEPERS = 200, 4
MINUTE = 60_000
DOWN = 20 * MINUTE
assert DOWN > 2 * ON_TIME, "a downtime must count as one"
RULES: Sequence[tuple[dict[str, Any], int]] = (
    ({"every": "1m"}, MINUTE),
    ({"every": "90s"}, 90_000),
    ({"every": "3m"}, 3 * MINUTE),
    ({"cron": "*/1 * * * *"}, MINUTE),
    ({"cron": "*/2 * * * *"}, 2 * MINUTE),
)
MISSED, OVERLAPS = ("skip", "latest", "all"), ("allow", "skip", "queue", "cancel")
SKIPS = {"all_skips": "select schedule, first_at, last_at, number, reason from job_skips order by id"}
SkipRow = tuple[int, int, int, str]  # first, last, number, reason

pytestmark = pytest.mark.timeout(300 * max(FACTOR, 1))


class Kept(NamedTuple):
    """A schedule as it was stored, and how far its instants lie apart."""

    schedule: Schedule
    step: int

    def due(self, until: int) -> list[int]:
        """Its instants before another, reckoned without windlass."""
        assert self.schedule.next_at is not None
        return list(range(self.schedule.next_at, until, self.step))


class Site:
    """A store with schedules, and the processes that sweep it."""

    def __init__(self, kind: str, where: str, folder: Path) -> None:
        print(f"TORTURE_SEED={SEED} TORTURE={FACTOR}")
        self.kind, self.where, self.folder = kind, where, folder
        self.chance = random.Random(SEED)
        self.clock = FastClock(SystemClock().monotonic())
        self.store = open_store(kind, where, self.clock, queries=invariants.with_tables(kind, **SKIPS))
        self.engine = Engine(self.store, self.clock)
        self.sweepers: dict[int, Firing] = {}
        self._log = (folder / "log").open("wb")
        self._server = ForkServer("tests.proof.schedule_child", log=self._log)
        self._born = 0

    def start(self) -> None:
        self._born += 1
        path = self.folder / f"firing{self._born}"
        firing = Firing(path)
        times = {"begun": self.clock.begun, "ahead": self.clock.ahead}
        pid = int(self._server.ask(do="start", sweeper={"kind": self.kind, "where": self.where, "firing": str(path), **times}))
        self.sweepers[pid] = firing

    def kill(self, pid: int) -> bool:
        """End a sweeper; whether that came while it stored what it fired."""
        os.kill(pid, signal.SIGKILL)
        assert self._server.ask(do="wait", pid=pid) == -signal.SIGKILL, f"a sweeper ended by itself:\n{(self.folder / 'log').read_text()}"
        return bool(self.sweepers.pop(pid))

    def add_schedules(self) -> list[Kept]:
        """Of every rule with every pair of words."""
        run_sync(self.engine.define("job", options=Options(max_attempts=1)))  # a further try would be due at another time
        return [self._add(n) for n in range(SCHEDULES)]

    def _add(self, n: int) -> Kept:
        n, rule = divmod(n, len(RULES))
        n, missed = divmod(n, len(MISSED))
        words: dict[str, Any] = {"missed": MISSED[missed], "overlap": OVERLAPS[n % len(OVERLAPS)], "max_missed": 5}
        when, step = RULES[rule]
        return Kept(run_sync(self.engine.schedule(f"{n} {rule} {missed}", "job", **when, **words)), step)

    def close(self) -> None:
        for pid in list(self.sweepers):
            os.kill(pid, signal.SIGKILL)
        self._server.close()
        self._log.close()
        print((self.folder / "log").read_text()[-10_000:])
        run_sync(self.store.close())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, folder: Path) -> Iterator[Site]:
    where = str(folder / "windlass.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    site = Site(request.param, where, folder)
    yield site
    site.close()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def until(condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
    clock = SystemClock()
    ends = clock.monotonic() + seconds * 1000
    while not condition():
        assert clock.monotonic() < ends, f"not within {seconds} s: {what}"
        pause(0.0005)


# The test


def test_S6_T8_every_instant_becomes_one_run_or_one_skip_whoever_is_killed(site: Site) -> None:
    kept = site.add_schedules()
    hits = kill_many(site, KILLS // 2)
    site.clock.ahead += DOWN  # nobody was there for a while
    hits += kill_many(site, KILLS - KILLS // 2)
    settle(site)
    skips, runs = read_skips(site), read_runs(site)
    for one in kept:
        check(run_sync(site.engine.get_schedule(one.schedule.key)), one, runs[one.schedule.id], skips[one.schedule.id])
    check_words(kept, runs, skips)
    invariants.check(invariants.read(site.store))
    print(f"{KILLS} kills, {hits} while firing; {sum(map(len, runs.values()))} runs, {sum(map(len, skips.values()))} skips")
    assert hits > KILLS / 5, "the kills came while nobody fired"


def kill_many(site: Site, count: int) -> int:
    """Let all sweep, and kill one after the other and then all; how many of them stored a fire at that moment."""
    for _ in range(SWEEPERS):
        site.start()
    hits = 0
    for _ in range(count):
        hits += site.kill(chosen_victim(site))
        site.start()
    for pid in list(site.sweepers):
        site.kill(pid)
    return hits


def chosen_victim(site: Site) -> int:
    """Mostly one that is firing, else anyone at any moment."""
    if site.chance.random() < 0.3:
        pause(site.chance.random() * 0.2)
        return site.chance.choice(list(site.sweepers))
    until(lambda: any(site.sweepers.values()), "somebody fires")
    pause(site.chance.random() * 0.004)
    firing = [pid for pid, fires in site.sweepers.items() if fires]
    return site.chance.choice(firing or list(site.sweepers))


def settle(site: Site) -> None:
    """Whoever comes after them does the rest."""
    run_sync(site.engine.sweep())
    site.clock.ahead += MINUTE  # the leases of the dead lapse
    while run_sync(site.engine.sweep()).lapsed:
        pass
    while work(site.engine, "last"):
        run_sync(site.engine.dispatch())


def read_runs(site: Site) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(invariants.read(site.store).runs.values(), key=lambda run: run.seq):
        assert run.schedule is not None
        found[run.schedule].append(run)
    return found


def read_skips(site: Site) -> dict[int, list[SkipRow]]:
    found: dict[int, list[SkipRow]] = defaultdict(list)
    for schedule, first, last, number, reason in run_sync(site.store.batch("read", [Statement("all_skips")]))[0]:
        found[schedule].append((first, last, number, reason))
    return found


def check(now: Schedule, kept: Kept, runs: Sequence[Run], skips: Sequence[SkipRow]) -> None:
    """Fired and skipped are what was due: each instant once, none beside, and the schedule's own count says so."""
    assert now.next_at is not None
    skipped = [at for first, last, _, _ in skips for at in range(first, last + 1, kept.step)]
    assert len(skipped) == sum(number for _, _, number, _ in skips), now
    fired = [run.due_at for run in runs]
    assert [at for at, times in Counter(fired).items() if times > 1] == [], f"fired twice: {now}"
    assert sorted([*fired, *skipped]) == kept.due(now.next_at), now
    assert (now.fired, now.skipped) == (len(fired), len(skipped)), now
    assert fired == sorted(fired), f"not the oldest first: {now}"
    assert (now.last_at, now.last_run) == ((runs[-1].due_at, runs[-1].id) if runs else (None, None)), now


def check_words(kept: Sequence[Kept], runs: dict[int, list[Run]], skips: dict[int, list[SkipRow]]) -> None:
    """What was missed and what overlapped became of it what the schedules say."""
    for schedule, _ in kept:
        reasons = Counter(reason for *_, reason in skips[schedule.id])
        assert reasons["missed"] > 0, f"nothing of the downtime was skipped: {schedule}"
        assert schedule.overlap not in ("allow", "cancel") or not reasons["overlap"], schedule
        if schedule.overlap == "allow":
            continue
        for before, after in pairwise(runs[schedule.id]):
            begun = after.created_at if schedule.overlap == "skip" else after.claimed_at
            assert before.finished_at is not None, before
            assert begun is None or before.finished_at <= begun, (schedule, before, after)
