"""Measure windlass beside other queues. `make race`, `make race QUICK=1`; writes bench/race.json, docs/benchmarks.md and its chart.

Every process of a queue runs in an environment of its own (`bench/environments.py`) and speaks one protocol (`bench/peers/base.py`). The
queues take turns; a ratio is that of two figures of one round.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import race_page
from bench.cpu import process_seconds, server_seconds
from bench.environments import NotInstalled, make_environment
from bench.figures import Figures, doing, machine, say
from bench.peers import dbos, huey, oban, pgqueuer, procrastinate, windlass
from bench.peers.base import Counts, Peer
from windlass.testing.servers import PostgresServer

ROOT = Path(__file__).parent.parent
ERRORS = ROOT / "bench" / "race.log"
"""What the processes of all queues print besides."""
MODULES = (windlass, pgqueuer, huey, oban, procrastinate, dbos)
PEERS = {peer: module.__name__ for module in MODULES for peer in module.PEERS}
WORKERS = (1, 2, 4)
OURS = {"postgres": "windlass_postgres", "sqlite": "windlass_sqlite"}
BARS: dict[str, dict[str, float]] = {
    "pgqueuer.drain1": {"at_least": 1.5},
    "pgqueuer.drain2": {"at_least": 1.15},
    "pgqueuer.drain4": {"at_least": 1.0},
    "pgqueuer.single": {"at_least": 0.9},
    "pgqueuer.latency": {"at_most": 1.1},
    "huey_sqlite.drain1": {"at_least": 5},
    "huey_sqlite.single": {"at_least": 0.5},
}
REST = 0.02
"""Seconds between two calls whose latency is measured."""
PATIENCE = 180.0
FIRST = 5_000
"""So many of a burst are waited for."""


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int = 7
    share: float = 1.0
    calls: int = 100
    burst: int = 500_000
    bursts: int = 7
    minutes: float = inf
    """So long after the beginning, with the installation, no further turn begins."""

    def of(self, count: int) -> int:
        return round(count * self.share)


QUICK = Sizes(rounds=3, share=0.4, calls=40, burst=50_000, bursts=2, minutes=10.5)

Execute = Callable[[str], object]
"""Runs a statement and returns its first row."""

Measured = dict[str, dict[str, list[float]]]
"""By figure of a queue and by kind: one value for each round in which it took part."""


class Failed(Exception):
    """A queue did not do what was asked of it."""


def _command(python: Path, peer: Peer, verb: str, *arguments: object) -> list[str]:
    return [str(python), "-m", PEERS[peer], verb, peer.name, *map(str, arguments)]


def _environment() -> dict[str, str]:
    """Without the settings of queues and databases that this machine may have."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "WINDLASS_", "OBAN_", "DBOS"))}


class Process:
    """A process of a queue: ready, waiting to be told to go."""

    def __init__(self, python: Path, peer: Peer, verb: str, *arguments: object) -> None:
        self.name = f"{peer.name} {verb}"
        self._errors = ERRORS.open("a")
        self._process = subprocess.Popen(
            _command(python, peer, verb, *arguments),
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints; a process that prints none for long is killed."""
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return line.strip()
        raise Failed(f"{self.name} ended with {self._process.wait()}; bench/race.log has its errors")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def seconds(self) -> float:
        return process_seconds(self._process.pid)

    def check(self) -> None:
        if self._process.poll() is not None:
            raise Failed(f"{self.name} ended with {self._process.returncode}; bench/race.log has its errors")

    def end(self) -> None:
        """It may have ended by itself."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


class Course:
    """Where a race is run: a server, a folder for files, and an interpreter for each queue."""

    def __init__(self, server: PostgresServer, folder: Path, pythons: dict[Peer, Path]) -> None:
        self.server, self.folder, self.pythons, self._made = server, folder, pythons, 0

    @contextmanager
    def store(self, peer: Peer) -> Iterator[str]:
        """The address of a store with the queue's empty tables. PostgreSQL makes a checkpoint when one is dropped, so all begin alike."""
        self._made += 1
        name = f"race{self._made}"
        with TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            address = self.server.create_database(name) if peer.store == "postgres" else str(Path(folder, "race.db"))
            self.run(peer, "install", address)
            yield address
            if peer.store == "postgres":
                self.server.drop_database(name)

    @contextmanager
    def process(self, peer: Peer, verb: str, *arguments: object) -> Iterator[Process]:
        process = Process(self.pythons[peer], peer, verb, *arguments)
        try:
            if process.line() != "ready":
                raise Failed(f"{process.name} is not ready")
            yield process
        finally:
            process.end()

    def run(self, peer: Peer, verb: str, *arguments: object) -> str:
        """What a process prints that ends by itself."""
        command = _command(self.pythons[peer], peer, verb, *arguments)
        done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"{peer.name} {verb}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout

    def server_seconds(self, peer: Peer) -> float:
        return server_seconds(self.server) if peer.store == "postgres" else 0.0

    @contextmanager
    def connection(self, peer: Peer, address: str) -> Iterator[Execute]:
        """Runs statements; one connection for all of them, because the server's time to accept one would count."""
        if peer.store == "sqlite":
            with closing(sqlite3.connect(address, timeout=30)) as db:
                yield lambda statement: db.execute(statement).fetchone()
        else:
            with psycopg.connect(address, autocommit=True) as connection:
                yield lambda statement: connection.execute(statement.encode()).fetchone()


def enqueued(course: Course, peer: Peer, address: str, verb: str, count: int) -> dict[str, float]:
    """Jobs enqueued by one process, one by one or in bulk."""
    with course.process(peer, verb, address, count) as producer:
        client, server = producer.seconds(), course.server_seconds(peer)
        producer.go()
        seconds = float(producer.line())
        return {
            "per_s": count / seconds,
            "client_us": 1e6 * (producer.seconds() - client) / count,
            "server_us": 1e6 * (course.server_seconds(peer) - server) / count,
        }


def single(course: Course, peer: Peer, count: int) -> dict[str, float]:
    """Jobs enqueued one after the other, each committed before the next."""
    with course.store(peer) as address:
        return enqueued(course, peer, address, "single", count)


def drained(course: Course, peer: Peer, workers: int, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Jobs enqueued in bulk, and then worked off by so many processes, until the store says that the last has ended."""
    with course.store(peer) as address, TemporaryDirectory() as folder, ExitStack() as stack:
        bulk = enqueued(course, peer, address, "bulk", count)
        if peer.store == "postgres":
            course.server.execute("analyze", address.partition("?")[0].rpartition("/")[2])
        execute = stack.enter_context(course.connection(peer, address))
        counts = Counts(Path(folder, "counts"), workers=workers)
        crew = [stack.enter_context(course.process(peer, "work", address, Path(folder, "counts"), n)) for n in range(workers)]
        client, server = sum(process.seconds() for process in crew), course.server_seconds(peer)
        begun = time.perf_counter()
        for process in crew:
            process.go()
        _wait(lambda: int(counts) >= count, crew, 0.002)
        _wait(lambda: execute(peer.unfinished) in ((0,), (False,)), crew, 0.02)
        seconds = time.perf_counter() - begun
        return bulk, {
            "per_s": count / seconds,
            "client_us": 1e6 * (sum(process.seconds() for process in crew) - client) / count,
            "server_us": 1e6 * (course.server_seconds(peer) - server) / count,
        }


def _wait(done: Callable[[], bool], crew: Sequence[Process], pause: float) -> None:
    latest = time.perf_counter() + PATIENCE
    while not done():
        for process in crew:
            process.check()
        if time.perf_counter() > latest:
            raise Failed(f"{crew[0].name}: not done after {PATIENCE:.0f} s")
        time.sleep(pause)


def latency(course: Course, peer: Peer, calls: int) -> dict[str, float]:
    """From an enqueue in one process to the first line of the job in another that waits; the median, in milliseconds."""
    with course.store(peer) as address, course.process(peer, "serve", address) as worker, course.process(peer, "ask", address) as producer:
        worker.go()
        times = []
        for _ in range(calls + 5):
            time.sleep(REST)
            producer.go()
            asked = float(producer.line())
            times.append(float(worker.line()) - asked)
    return {"p50_ms": 1000 * median(times[5:])}


def burst(course: Course, peer: Peer, count: int) -> dict[str, float]:
    """The first of many jobs that have just been enqueued, with whatever the server knows of its tables by then."""
    with course.store(peer) as address, TemporaryDirectory() as folder:
        enqueued(course, peer, address, "bulk", count)
        counts = Counts(Path(folder, "counts"), workers=1)
        with course.process(peer, "work", address, Path(folder, "counts"), 0) as worker:
            begun = time.perf_counter()
            worker.go()
            _wait(lambda: int(counts) >= FIRST, [worker], 0.002)
            return {"per_s": int(counts) / (time.perf_counter() - begun)}


def one_round(course: Course, peer: Peer, sizes: Sizes) -> dict[str, dict[str, float]]:
    """All figures of a queue but the burst."""
    figures = {"single": single(course, peer, sizes.of(peer.singles))}
    for workers in WORKERS:
        figures["bulk"], figures[f"drain{workers}"] = drained(course, peer, workers, sizes.of(peer.jobs))
    figures["latency"] = latency(course, peer, sizes.calls)
    return figures


class Race:
    """What was measured, and who did not take part, and why."""

    def __init__(self, course: Course, sizes: Sizes, *, quick: bool, begun: float) -> None:
        self.course, self.sizes, self.quick = course, sizes, quick
        self.measured: dict[str, Measured] = {peer.name: {} for peer in course.pythons}
        self.left_out: dict[str, str] = {}
        self._latest = begun + 60 * sizes.minutes

    def run(self) -> None:
        """Rounds in which the queues take turns, every second one in reverse order, and the bursts."""
        for number in range(self.sizes.rounds):
            those = [peer for peer in self.course.pythons if peer.in_every_round or not (self.quick and number)]
            order = sorted(those, key=lambda peer: not peer.in_every_round)
            say(f"\nround {number + 1} of {self.sizes.rounds}")
            for peer in order if number % 2 == 0 else reversed(order):
                self._take(peer, lambda peer: one_round(self.course, peer, self.sizes))
        self.course.server.execute("alter system set autovacuum = off")
        self.course.server.execute("select pg_reload_conf()")
        for number in range(self.sizes.bursts):
            say(f"\nburst {number + 1} of {self.sizes.bursts}")
            order = [peer for peer in self.course.pythons if peer.burst]
            for peer in order if number % 2 == 0 else reversed(order):
                self._take(peer, lambda peer: {"burst": burst(self.course, peer, self.sizes.burst)})

    def _take(self, peer: Peer, turn: Callable[[Peer], dict[str, dict[str, float]]]) -> None:
        begun = time.perf_counter()
        if peer.name in self.left_out or begun > self._latest:
            return
        try:
            figures = turn(peer)
        except (Failed, subprocess.TimeoutExpired) as failure:
            self.left_out[peer.name] = str(failure)
            say(f"  {peer.title} is left out: {failure}")
            return
        for figure, kinds in figures.items():
            for kind, value in kinds.items():
                self.measured[peer.name].setdefault(figure, {}).setdefault(kind, []).append(float(f"{value:.4g}"))
        shown = ", ".join(f"{figure} {_shown(kinds)}" for figure, kinds in figures.items())
        say(f"  {peer.title}: {shown} ({time.perf_counter() - begun:.0f} s)")


def _shown(kinds: dict[str, float]) -> str:
    return f"{kinds['p50_ms']:.1f} ms" if "p50_ms" in kinds else f"{kinds['per_s']:,.0f}/s"


def note(figures: Figures, measured: dict[str, Measured], peers: Sequence[Peer]) -> None:
    """The ratios of windlass to each queue on the same store, from figures of the same round, with their quartiles."""
    for peer in peers:
        ours = measured.get(OURS[peer.store], {})
        if peer.name.startswith("windlass"):
            continue
        for figure, kinds in measured[peer.name].items():
            kind = "p50_ms" if figure == "latency" else "per_s"
            ratios = [a / b for a, b in zip(ours.get(figure, {}).get(kind, []), kinds[kind], strict=False)]
            if ratios:
                name = f"race.{peer.name}.{figure}.ratio"
                figures.note(name, median(ratios), **BARS.get(f"{peer.name}.{figure}", {}))
                if len(ratios) > 1:
                    low, _, high = race_page.quartiles(ratios)
                    figures.note(f"{name}_quartiles", f"{low:.2f} to {high:.2f}")


def environments(folder: Path, peers: Sequence[Peer]) -> tuple[dict[Peer, Path], dict[str, str]]:
    """The interpreters of those that could be installed, and why the others could not."""
    sets = {peer.packages: peer for peer in peers if peer.packages}
    with doing(f"install {', '.join(peer.packages[0] for peer in sets.values())}"), ThreadPoolExecutor(2) as pool:
        making = {
            packages: pool.submit(make_environment, folder / str(number), packages, peer.python)
            for number, (packages, peer) in enumerate(sets.items())
        }
    pythons, left_out = dict[Peer, Path](), dict[str, str]()
    for peer in peers:
        try:
            pythons[peer] = making[peer.packages].result() if peer.packages else Path(sys.executable)
        except NotInstalled as problem:
            left_out[peer.name] = str(problem)
            say(f"  {peer.title} is left out: {problem}")
    return pythons, left_out


def main() -> None:
    """Install, race, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="some queues, such as pgqueuer,huey_sqlite; windlass always takes part, and nothing is written")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and jobs")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(",")) if arguments.only else {peer.name for peer in PEERS}
    peers = [peer for peer in PEERS if peer.name in wanted or peer.name in OURS.values()]
    begun, figures = time.perf_counter(), Figures()
    ERRORS.write_text("")
    machine(figures)
    with (
        TemporaryDirectory(prefix="race-") as environment_folder,
        TemporaryDirectory(prefix="race-", dir=Path(__file__).parent) as folder,  # on the disk of the project
        PostgresServer(fsync=True, settings={"shared_buffers": "128MB"}) as server,
    ):
        figures.note("machine.postgres", server.execute("show server_version"))
        pythons, left_out = environments(Path(environment_folder), peers)
        course = Course(server, Path(folder), pythons)
        race = Race(course, QUICK if arguments.quick else Sizes(), quick=arguments.quick, begun=begun)
        versions = {peer.name: json.loads(course.run(peer, "versions")) for peer in pythons}
        race.run()
    race.left_out |= {name: "there was no time left" for name in race.measured if not race.measured[name] and name not in race.left_out}
    say("")
    note(figures, race.measured, list(pythons))
    result = {
        "quick": arguments.quick,
        "rounds": race.sizes.rounds,
        "burst": race.sizes.burst,
        "figures": figures.values,
        "left_out": left_out | race.left_out,
        "peers": {peer.name: _facts(peer, race.sizes, versions.get(peer.name, {})) for peer in peers},
        "measured": race.measured,
    }
    if not arguments.only:
        race_page.RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        race_page.write()
        say(f"\nwrote {race_page.RESULT.relative_to(ROOT)}, {race_page.PAGE.relative_to(ROOT)} and {race_page.CHART.relative_to(ROOT)}")
    say(f"{time.perf_counter() - begun:.0f} s")
    say(f"Bars missed: {', '.join(figures.missed)}" if figures.missed else "Every bar is met.")


def _facts(peer: Peer, sizes: Sizes, versions: dict[str, str]) -> dict[str, object]:
    return {
        "title": peer.title,
        "store": peer.store,
        "delivery": peer.delivery,
        "keeps": peer.keeps,
        "settings": peer.settings,
        "jobs": sizes.of(peer.jobs),
        "singles": sizes.of(peer.singles),
        "versions": versions,
    }


if __name__ == "__main__":
    main()
