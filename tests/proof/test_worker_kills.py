"""Real workers under real faults: killed, paused, told to stop, and without their database. The ledger judges.

`TORTURE=10` does ten times the rounds, `TORTURE_SEED` repeats the choices of a run; both are printed with a failure. Everything lies in
memory where it can: a process that dies takes no disk with it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests import invariants, ledger
from tests.forkserver import ROOT, ForkServer, folder_in_memory
from tests.kill_child import open_store
from tests.ledger import Ledger, Line, Tail
from tests.proof.worker_child import LEDGER, PATIENCE, SMALL, TIMES, Times, app, make_impatient
from tests.workers import pause_outside_a_commit, stop
from windlass import App
from windlass.clock import ManualClock, SystemClock
from windlass.errors import OutcomeUnknown, StoreBusy, StoreUnreachable
from windlass.machine import ENDED
from windlass.model import Key, NewRun, Run, State
from windlass.store.base import Statement, run_sync
from windlass.testing.servers import PostgresServer

FACTOR = float(os.environ.get("TORTURE", "1"))
SEED = int(os.environ.get("TORTURE_SEED", random.randrange(2**32)))
KILLS, PAUSES, STOPS, OUTAGES, STEPS, CRASHES = (round(FACTOR * rounds) for rounds in (300, 50, 5, 5, 12, 3))
# After how many runs a worker is measured, and after how many more again.
MANY = {"sqlite": (50_000, round(FACTOR * 150_000)), "postgres": (15_000, round(FACTOR * 15_000))}
LEASE = 0.4
LAST_WORDS = 10_000  # characters of the workers' log shown with a failure
BACKLOG = 20
KINDS, WEIGHTS = ("coroutine", "thread", "command", "process", "large"), (60, 40, 2, 0.3, 2)  # the later ones cost more
COUNTS = {
    "unfinished": "select count(*) from job_runs where finished_at is null",
    "succeeded": "select count(*) from job_runs where state = 'succeeded'",
}
CONNECTIONS = {"sqlite": 0, "postgres": 10}  # that may be opened later, when there is more to do
GROWTH_KB = 10_000  # how a heap happens to be filled differs by some megabytes; 70 bytes kept of every run would be more
T = TypeVar("T")
Hold = tuple[str, str]

pytestmark = pytest.mark.timeout(600 * max(FACTOR, 1))


def until(condition: Callable[[], T], what: str, seconds: float = 60, every: float = 0.003) -> T:
    """What a condition gives as soon as it is true; fails when it never is."""
    clock = SystemClock()
    ends = clock.monotonic() + seconds * 1000
    while not (found := condition()):
        assert clock.monotonic() < ends, f"not within {seconds} s: {what}"
        pause(every)
    return found


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Starts workers, and waits for them."""
    forks = ForkServer("tests.proof.worker_child")
    yield forks
    forks.close()


class Site:
    """A store, its ledger, its producer and its workers."""

    def __init__(self, kind: str, address: str, folder: Path, forks: ForkServer) -> None:
        print(f"TORTURE_SEED={SEED} TORTURE={FACTOR}")
        self.kind, self.folder, self.forks = kind, folder, forks
        self.chance = random.Random(SEED)
        self.tail, self.ledger = Tail(folder / "ledger"), Ledger(folder / "ledger")
        self.environment = {"WINDLASS_STORE": address, LEDGER: str(folder / "ledger")}
        self.app = another_app(address)
        self.store = open_store(kind, address, ManualClock(), queries=invariants.with_tables(kind, **COUNTS))
        self.workers: dict[int, dict[str, Any]] = {}  # by process id, eldest first: what they were started with
        self._births: dict[int, int] = {}  # lines of the ledger that are older than a worker
        self.created = 0
        self._done: set[str] = set()
        self._looked_at = 0

    # Runs

    def enqueue(self, *news: NewRun) -> list[str]:
        """Make runs, and write them down once that is answered."""
        ids = [handle.id for handle in self.app.enqueue_many(news)]
        for run_id in ids:
            self.ledger.write("E", run_id)
        self.created += len(ids)
        return ids

    def mixed(self, longest: float) -> NewRun:
        """A run of any kind, of any length."""
        kind = self.chance.choices(KINDS, WEIGHTS)[0]
        much = {"text": "x" * 200_000} if kind == "large" else {}
        return NewRun(kind, None if kind == "command" else {"seconds": self.chance.random() ** 2 * longest} | much)

    def count(self, what: str) -> int:
        [[(number,)]] = run_sync(self.store.batch("read", [Statement(what)]))
        return int(number)

    def undone(self) -> int:
        """How many runs no handler has ended yet, as the ledger knows it."""
        lines = self.tail.look()
        self._done |= {line.run for line in lines[self._looked_at :] if line.what == "X"}
        self._looked_at = len(lines)
        return self.created - len(self._done)

    def drained(self, seconds: float = 60) -> None:
        until(lambda: not self.count("unfinished"), "every run has ended", seconds, every=0.1)

    # Workers

    def start(self, **settings: Any) -> int:
        self._births[pid := self._fork(settings)] = len(self.tail.look())
        self.workers[pid] = settings
        return pid

    def _fork(self, settings: dict[str, Any]) -> int:
        settings = {"lease": LEASE, "grace": 1.0} | settings
        return int(self.forks.ask(do="start", environment=self.environment, log=str(self.folder / "log"), settings=settings))

    def end(self, pid: int, number: int) -> int:
        """Send a signal that ends a worker, and wait until it has; its exit code."""
        os.kill(pid, number)
        return self.ended(pid)

    def ended(self, pid: int) -> int:
        """Wait until a worker has ended; its exit code."""
        del self.workers[pid]
        return int(self.forks.ask(do="wait", pid=pid))

    def stop_all(self) -> None:
        """Stop all workers; no process of any worker, also of those that were killed, is left."""
        for pid in list(self.workers):
            assert self.end(pid, signal.SIGTERM) == 0
        until(lambda: not self._processes(), "no process is left", 20)

    def _processes(self) -> list[str]:
        mine = f"{LEDGER}={self.environment.get(LEDGER)}".encode()
        return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mine in _read(path).split(b"\0")]

    # What is known

    def calls(self, worker: int) -> list[Line]:
        """The calls of handlers by a worker."""
        return [line for line in self.tail.look()[self._births[worker] :] if line.what == "S" and line.rest[1] == str(worker)]

    def words(self, what: str, since: int = 0) -> list[Line]:
        """The lines of one kind so far."""
        return [line for line in self.tail.look()[since:] if line.what == what]

    def judge(self) -> list[Run]:
        """Nothing is lost, done twice, or accepted from somebody who had lost it; all runs, which have all succeeded."""
        lines, now = self.tail.look(), invariants.read(self.store)
        invariants.check(now)
        ledger.check(lines, now)
        assert not (stale := ledger.results_of_others(now)), f"stale results: {stale}"
        runs = list(now.runs.values())
        assert Counter(run.state for run in runs) == {State.SUCCEEDED: self.created}
        calls = Counter(line.run for line in lines if line.what == "S")
        assert all(calls[run.id] <= run.attempt for run in runs), "a call without an attempt"
        further = sum(run.attempt - 1 for run in runs)
        print(f"{len(runs)} runs, {calls.total()} calls, {ledger.reruns(lines)} reruns, {further} further attempts")
        return runs

    def close(self) -> None:
        for pid in list(self.workers):
            os.kill(pid, signal.SIGCONT)
            self.end(pid, signal.SIGKILL)
        log = self.folder / "log"
        print(log.read_text()[-LAST_WORDS:] if log.exists() else "")
        self.ledger.close()
        self.app.close()
        run_sync(self.store.close())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone meanwhile, or somebody else's
        return b""


def another_app(address: str) -> App:
    """The app of the workers, for a producer."""
    producer = App(address, limits=SMALL)
    producer.jobs = app.jobs
    return producer


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, folder: Path, forks: ForkServer) -> Iterator[Site]:
    address = str(folder / "windlass.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    site = Site(request.param, address, folder, forks)
    yield site
    site.close()


# Killed


def test_workers_killed_at_any_moment_lose_nothing(site: Site) -> None:
    for n in range(3):
        site.start(name=f"w{n}", slots=4, jobs=KINDS)
    victims = {str(kill_one(site)) for _ in range(KILLS)}
    all_work(site)
    site.drained()
    site.stop_all()
    site.judge()
    hit = victims & {line.rest[1] for line in ledger.unfinished_executions(site.tail.look())}
    print(f"{KILLS} kills, {len(hit)} of them while a handler ran")
    assert len(hit) > KILLS / 2


def kill_one(site: Site) -> int:
    """Kill a worker at some moment after all have begun to work, and start another in its place."""
    all_work(site)
    pause(site.chance.random() * 0.05)
    victim = chosen_victim(site)
    settings = site.workers[victim]
    if site.chance.random() < 0.2:
        os.kill(victim, signal.SIGTERM)
        pause(site.chance.random() * 0.05)
    assert site.end(victim, signal.SIGKILL) in (-signal.SIGKILL, 0)
    if site.chance.random() < 0.5:  # under another name: what the victim held comes back when its lease is over
        settings |= {"name": f"w{site.chance.randrange(2**32)}"}
    site.start(**settings)
    return victim


def all_work(site: Site) -> None:
    """Make runs until the newest worker has begun to work as well."""
    *_, newest = site.workers

    def loaded() -> bool:
        site.enqueue(*(site.mixed(0.2) for _ in range(BACKLOG - site.undone())))
        return bool(site.calls(newest))

    until(loaded, "the newest worker works", every=0.01)


def chosen_victim(site: Site) -> int:
    """Any worker but the eldest, which is spared for longer: it has watched for a whole lease, and only such a one may end leases."""
    eldest, *others = site.workers
    return eldest if site.chance.random() < 0.1 else site.chance.choice(others)


def test_a_killed_worker_that_is_started_again_under_its_name_goes_on_at_once(site: Site) -> None:
    for slots, jobs in ((1, ["waiting coroutine"]), (4, [*WAITING, "waiting process"])):
        settings = {"name": "again", "slots": slots, "jobs": ZOMBIES, "lease": 600}  # nobody would wait for its end
        site.enqueue(*map(NewRun, jobs))
        calls = len(site.words("S")) + len(jobs)
        worker = site.start(**settings)
        until(partial(called, site, calls), "all handlers run")
        site.end(worker, signal.SIGKILL)
        burst = site.start(**settings, burst=True)
        assert site.ended(burst) == 0
    runs = site.judge()
    assert {(run.attempt, run.failures) for run in runs} == {(2, 1)}


def called(site: Site, times: int) -> bool:
    return len(site.words("S")) >= times


def test_of_several_workers_with_one_name_only_the_killed_one_loses_its_runs(site: Site) -> None:
    settings = {"name": "shared", "slots": 2, "jobs": ZOMBIES, "lease": 600}
    alive, paused, killed = (site.start(**settings) for _ in range(3))
    ids = set(site.enqueue(*(NewRun("waiting thread") for _ in range(6))))
    until(lambda: {line.run for line in site.words("S")} == ids, "all handlers run")
    assert {len(site.calls(worker)) for worker in (alive, paused, killed)} == {2}
    pause_outside_a_commit(paused, site.app)
    site.end(killed, signal.SIGKILL)
    heir = site.start(**settings)
    until(lambda: len(site.words("R")) == 2, "what the killed one held is done")
    os.kill(paused, signal.SIGCONT)
    assert {line.run for line in site.calls(heir)} == {line.run for line in site.words("R")}
    assert not site.words("Z"), "somebody lost a run"
    site.stop_all()
    invariants.check(now := invariants.read(site.store))
    assert Counter(run.failures for run in now.runs.values()) == {0: 4, 1: 2}


# Paused

WAITING = ("waiting coroutine", "waiting thread")
BLIND = ("blind coroutine", "blind thread")
ZOMBIES = (*WAITING, *BLIND, "waiting process", "coroutine")


def test_a_worker_paused_for_longer_than_its_lease_is_a_zombie_that_writes_nothing(site: Site) -> None:
    done = void = late = 0
    while done < PAUSES:
        zombies = pause_one(site, *zombie_jobs(site, done))
        if zombies is None:
            void += 1
            assert void <= max(5, PAUSES / 5), "too often the paused worker held the store"
            continue
        done += 1
        late += len(zombies & holds(site.words("T")))
    site.start(slots=4)
    site.enqueue(NewRun("coroutine", {"seconds": 0}))
    site.drained()
    site.stop_all()
    site.judge()
    print(f"{done} pauses, {void} more in which the store was held; {late} late reports, all refused")


def holds(lines: Iterable[Line]) -> set[Hold]:
    """Which runs were held under which tokens; runs that are claimed together share one."""
    return {(line.run, line.rest[0]) for line in lines}


def zombie_jobs(site: Site, n: int) -> tuple[int, list[str]]:
    """The slots of a round's workers, and what they work on."""
    match n % 4:
        case 0:
            return 1, [site.chance.choice(WAITING)]
        case 1:
            return 1, [site.chance.choice(BLIND)]
        case 2:
            return 4, [*WAITING, *BLIND]
        case _:
            return 2, ["waiting process", site.chance.choice(WAITING)]


def pause_one(site: Site, slots: int, jobs: list[str]) -> set[Hold] | None:
    """Pause a worker, let another one of its name take over, and let the first go on; what it held. None: it had the store's lock."""
    began = len(site.tail.look())
    zombie = site.start(name="twin", slots=slots, jobs=ZOMBIES)
    jobs_of = dict(zip(site.enqueue(*map(waiting, jobs)), jobs, strict=True))
    until(lambda: {line.run for line in site.calls(zombie)} >= jobs_of.keys(), "all handlers run")
    pause(site.chance.random() * 0.05)
    stop(zombie)
    # On a busy machine some may have ended or been given back before the pause, and the paused one may not have written that down.
    left = [run for run_id in jobs_of if (run := run_sync(site.app.verbs.get(run_id))).state not in ENDED]
    held = holds(site.calls(zombie)) & {(run.id, run.token or "") for run in left}
    twin = site.start(name="twin", slots=slots, jobs=ZOMBIES)
    if not taken_over(site, {run.id for run in left}, twin):
        return None
    os.kill(zombie, signal.SIGCONT)  # while the other one works on the same
    # A process is killed when the lease is nearly over, on a busy machine before it can write that it was told.
    patient = {hold for hold in held if jobs_of[hold[0]] in WAITING}
    until(lambda: holds(site.words("Z", began)) >= patient, "the handlers are told")
    until(lambda: {run for run, _ in holds(site.words("R", began))} >= jobs_of.keys(), "the runs are done")
    for pid in (zombie, twin):
        assert site.end(pid, signal.SIGTERM) == 0
    assert {line.rest[1] for line in site.words("Z", began)} <= {"lost"}
    assert not patient & holds(site.words("T", began)), "a zombie that knew has reported"
    assert not held & holds(site.words("R", began)), "a zombie's report was accepted"
    return held


def taken_over(site: Site, runs: set[str], twin: int) -> bool:
    """Whether a worker works on all these. If it does nothing, because the paused one has the store's lock, all are killed."""
    with contextlib.suppress(AssertionError):
        until(lambda: {line.run for line in site.calls(twin)} >= runs, "taken over", 10)
        return True
    if site.calls(twin):  # it only takes its time
        until(lambda: {line.run for line in site.calls(twin)} >= runs, "all taken over")
        return True
    for pid in list(site.workers):
        site.end(pid, signal.SIGKILL)
    return False


def waiting(job: str) -> NewRun:
    return NewRun(job, {"seconds": LEASE} if job in BLIND else None)


def test_a_worker_that_gets_its_own_run_back_stops_the_handler_that_had_it(site: Site) -> None:
    for _ in range(max(1, PAUSES // 5)):
        take_away_and_give_back(site)
    site.judge()


def take_away_and_give_back(site: Site) -> None:
    """Another process ends the leases while the worker is paused; nobody else is there to take the runs."""
    began = len(site.tail.look())
    worker = site.start(slots=4)
    ids = set(site.enqueue(*map(NewRun, WAITING)))
    until(lambda: {line.run for line in site.calls(worker)} >= ids, "all handlers run")
    held = holds(site.calls(worker))
    pause_outside_a_commit(worker, site.app)
    until(lambda: run_sync(site.app.engine.sweep()).dispatched > 0, "what was lost is queued")
    os.kill(worker, signal.SIGCONT)
    until(lambda: {line.run for line in site.words("X", began)} == ids, "the runs are done")
    until(lambda: holds(site.words("Z", began)) >= held, "the handlers are told", 20)  # a busy machine may lose the next lease as well
    assert site.end(worker, signal.SIGTERM) == 0


# Out of time

CALM = 4.0  # seconds of a lease that a busy machine does not use up by itself


def test_neither_sleep_nor_clocks_that_are_set_nor_blocked_loops_take_a_run_from_a_living_worker(site: Site) -> None:
    times = out_of_time(site)
    *victims, _ = [site.start(name=f"w{n}", slots=4, lease=CALM) for n in range(3)]
    site.enqueue(*(NewRun("thread", {"seconds": STEPS * 0.5 + 3}) for _ in range(6)))
    until(lambda: len(site.words("S")) >= 6, "all handlers run")
    for _ in range(STEPS):
        disturb(site, times)
        pause(site.chance.random())
    assert not site.words("Z"), "a living worker was told that it has lost a run"
    times.write(3 * 3_600_000, times.both[1])  # further ahead than ever: nothing waits for a time that was
    killed = {line.rest[1] for line in site.words("S")} & {str(victims[0])}
    site.end(victims[0], signal.SIGKILL)
    for _ in range(2):
        disturb(site, times, steps=False)
    site.drained()
    site.stop_all()
    for run in site.judge():
        calls = [line for line in site.words("S") if line.run == run.id]
        assert run.failures == len(calls) - 1
        assert all(line.rest[1] in killed for line in calls[:-1]), "a run was taken from a worker that lived"


def out_of_time(site: Site) -> Times:
    path = site.folder / "times"
    path.write_bytes(bytes(16))
    site.environment[TIMES] = str(path)
    return Times(str(path))


def disturb(site: Site, times: Times, *, steps: bool = True) -> None:
    """The clock is set, the machine sleeps, or a handler blocks the loop of its worker."""
    was_set, slept = times.both
    match site.chance.choice(["set", "set", "sleep", "block"] if steps else ["sleep", "block"]):
        case "set":
            times.write(site.chance.choice([-7_200_000, -20_000, 0, 20_000, 7_200_000]), slept)
        case "sleep":
            times.write(was_set, slept + site.chance.choice([6_000, 120_000]))
        case _:
            site.enqueue(NewRun("blocking coroutine", {"seconds": CALM / 2}))


# Told to stop


def test_a_worker_told_to_stop_under_load_loses_nothing_and_counts_no_failure(site: Site) -> None:
    for _ in range(STOPS):
        stop_one(site)
    site.start(slots=32, lease=3)
    site.enqueue(NewRun("coroutine", {"seconds": 5}), NewRun("thread", {"seconds": 5}))  # for longer than a lease
    site.drained(120)
    site.stop_all()
    runs = site.judge()
    assert {run.failures for run in runs} == {0}
    print(f"{STOPS} stops, {sum(run.requeues for run in runs)} runs given back")
    assert any(run.requeues for run in runs)


def stop_one(site: Site) -> None:
    """Stop a worker that is full of handlers, among them some that last longer than its grace and one that will not listen."""
    longest = site.chance.random() * 3
    site.enqueue(NewRun("stubborn", {"seconds": 30}), NewRun("long command"), *(site.mixed(longest) for _ in range(100)))
    began = len(site.tail.look())
    worker = by_command(site)
    until(lambda: len(ledger.unfinished_executions(site.tail.look()[began:])) >= 24, "many handlers run")
    pause(site.chance.random() * 0.3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def by_command(site: Site) -> subprocess.Popen[bytes]:
    """A worker as people start it."""
    command = [sys.executable, "-m", "windlass", "work", "tests.proof.worker_child:app", "--slots", "32", "--lease", "10", "--grace", "1"]
    with (site.folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | site.environment, stdout=log, stderr=log)


# Without the database


class Producer:
    """Enqueues all the time, each run by a key, and asks again by that key whenever it has not got an answer."""

    def __init__(self, address: str, book: Ledger, name: str, *, once: float = 0.0) -> None:
        self._app, self._ledger, self._ended = another_app(address), book, threading.Event()
        self._name, self._chance, self._once = name, random.Random(f"{SEED} {name}"), once
        self.made: list[str] = []
        self.asked_again = 0
        self.broke: BaseException | None = None
        make_impatient(self._app.engine, 0.1)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            while not self._ended.wait(0.002):
                key = f"{self._name}-{len(self.made)}"
                self.made.append(self._create(key))
                self._ledger.write("E", self.made[-1], key)
        except BaseException as error:
            self.broke = error

    def _create(self, key: str) -> str:
        job, longest = self._chance.choice(("coroutine", "thread")), self._chance.choices((0.05, 3), (98, 2))[0]
        options: Any = {"max_attempts": 1} if self._chance.random() < self._once else {}
        while True:
            try:
                return self._app.enqueue(job, {"seconds": self._chance.random() * longest}, key=Key(key, ttl="forever"), **options).id
            except (StoreUnreachable, StoreBusy, OutcomeUnknown):
                self.asked_again += 1

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)  # it asks for ever where the server is gone for good
        self._app.close()


def test_work_goes_on_by_itself_when_the_database_comes_back(folder: Path, forks: ForkServer) -> None:
    with PostgresServer() as server, contextlib.ExitStack() as closing:
        address = server.create_database("torture")
        site = Site("postgres", address, folder, forks)
        closing.callback(site.close)
        producers = [Producer(address, site.ledger, name) for name in ("left", "right")]
        for producer in producers:
            closing.callback(producer.stop)
        for patience in ("0.2", "30"):
            site.environment[PATIENCE] = patience
            site.start(slots=8, lease=1.5)
        for n in range(OUTAGES):
            more_is_done(site, 200)
            server.stop("immediate" if n % 2 == 0 else "fast")
            pause(site.chance.random() * 3)
            server.start()
        more_is_done(site, 200)
        for producer in producers:
            producer.stop()
            assert producer.broke is None, producer.broke
        made = [run_id for producer in producers for run_id in producer.made]
        site.created = len(made)
        site.drained()
        site.stop_all()
        site.judge()
        assert len(set(made)) == len(made), "two keys have the same run"
        assert not (given_up := ledger.given_up(site.tail.look())), f"given up because the store was away: {given_up}"
        print(f"{OUTAGES} outages, {sum(producer.asked_again for producer in producers)} enqueues asked again")


def test_a_database_killed_under_load_loses_nothing_and_fails_no_run_of_one_attempt(folder: Path, forks: ForkServer) -> None:
    """Leases last longer than it is away, so nobody has an excuse: each run is executed once, and succeeds by its first attempt."""
    with PostgresServer(settings={"full_page_writes": "on"}) as server, contextlib.ExitStack() as closing:  # a kill can tear a page
        address = server.create_database("torture")
        site = Site("postgres", address, folder, forks)
        closing.callback(site.close)
        producers = [Producer(address, site.ledger, name, once=0.5) for name in ("left", "right")]
        for producer in producers:
            closing.callback(producer.stop)
        for patience in ("0.2", "30", "30"):
            site.environment[PATIENCE] = patience
            site.start(slots=8, lease=30)
        for _ in range(CRASHES):
            more_is_done(site, 100)
            pause(site.chance.random() * 0.5)
            server.kill()
            server.start()
        more_is_done(site, 100)
        for producer in producers:
            producer.stop()
            assert producer.broke is None, producer.broke
        made = [run_id for producer in producers for run_id in producer.made]
        site.created = len(made)
        site.drained(120)
        site.stop_all()
        runs = site.judge()
        assert len(set(made)) == len(made), "two keys have the same run"
        assert {(run.attempt, run.failures, run.requeues) for run in runs} == {(1, 0, 0)}
        once, again = sum(run.max_attempts == 1 for run in runs), sum(producer.asked_again for producer in producers)
        print(f"{CRASHES} crashes, {len(runs)} runs, {once} of one attempt, {again} enqueues asked again")


def more_is_done(site: Site, number: int) -> None:
    began = len(site.tail.look())
    until(lambda: len(site.words("R", began)) >= number, "work goes on")


# For long


def test_a_worker_that_has_done_much_holds_no_more_than_before(site: Site) -> None:
    del site.environment[LEDGER]
    some, more = MANY[site.kind]
    site.start(slots=256, lease=30)
    early, late = after(site, some), after(site, more)
    site.stop_all()
    assert site.count("succeeded") == some + more + 2
    print(f"after {some:,}: {early}; after {some + more:,}: {late}")
    assert late["rss_kb"] - early["rss_kb"] < GROWTH_KB
    for name in ("threads", "tasks", "children"):
        assert late[name] <= early[name], name
    assert late["descriptors"] <= early["descriptors"] + CONNECTIONS[site.kind]


def after(site: Site, number: int) -> dict[str, int]:
    """What the worker holds when it has done so many more runs."""
    site.app.enqueue_many(NewRun("nothing", {"payload": "x" * 80}) for _ in range(number))
    site.drained(200)
    found: dict[str, int] = site.app.enqueue("vitals").wait(60)
    return found
