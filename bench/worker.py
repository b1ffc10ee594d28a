"""The worker's part: a backlog drained, many runs enqueued, the way from an enqueue to the handler, memory and idleness."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from bench.cpu import process_seconds
from bench.figures import Figures, doing, say
from bench.noop import SLOTS
from bench.places import Place, PostgresPlace, SqlitePlace, open_postgres, open_sqlite
from bench.raw import LANE, PAYLOAD_VALUE, Raw
from windlass import App
from windlass.app.working import SWITCH_INTERVAL
from windlass.clock import SystemClock
from windlass.store.base import run_sync
from windlass.testing.servers import has_pgbouncer

CALL = 10_000
HERE = Path(__file__).parent.parent


class Sizes:
    """How much is measured."""

    def __init__(self, quick: bool) -> None:
        self.backlog = 10_000 if quick else 50_000
        self.one_by_one = 1_000 if quick else 5_000
        self.rounds = 3
        self.soak = 40_000 if quick else 200_000
        self.calls = 50 if quick else 200
        self.idle = 3.0 if quick else 10.0


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the worker."""
    sizes = Sizes(quick)
    with open_sqlite() as sqlite:
        drained(figures, sqlite, sizes)
        drained_one_by_one(figures, sqlite, sizes)
        enqueued(figures, sqlite, sizes)
        same_process(figures, sqlite, sizes)
        other_process(figures, sqlite, sizes)
        soak(figures, sqlite, sizes)
        idle(figures, sqlite, sizes)
    with open_postgres() as postgres:
        drained(figures, postgres, sizes)
        enqueued(figures, postgres, sizes)
        other_process(figures, postgres, sizes)
        pooled(figures, postgres, sizes)


def shop(address: str) -> App:
    """An app whose jobs the other process knows."""
    app = App(address)

    @app.job(name="mail")
    async def mail(to: str) -> None: ...

    @app.job(name="tell")
    async def tell() -> None: ...

    return app


def fill(address: str, count: int) -> float:
    """Enqueue so many, and say how many seconds it took."""
    with shop(address) as app:
        job = app.jobs["mail"]
        app.enqueue_one(job.new(**PAYLOAD_VALUE))  # makes the definition and the lane
        begun = time.perf_counter()
        for _ in range(count // CALL):
            app.enqueue_many(job.new(**PAYLOAD_VALUE) for _ in range(CALL))
        return time.perf_counter() - begun


def _seconds(do: Callable[[], None]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


@contextmanager
def _raw(place: Place) -> Iterator[Raw]:
    address = place.make()
    run_sync(place.store(address).close())  # makes the schema
    with place.loader(address) as execute:
        execute(f"insert into job_lanes (id, queue, job, requires) values ({LANE}, 'default', 'mail', '')")
    raw = place.raw(address)
    yield raw
    raw.close()


def _raw_create(raw: Raw, count: int) -> None:
    for _ in range(count // CALL):
        raw.create(SystemClock().new_ids(CALL))


def _raw_drain(raw: Raw, slots: int = SLOTS) -> None:
    while (claimed := raw.claim(slots)).rows:
        raw.end([row[0] for row in claimed.rows], claimed.token)


def drain(address: str, slots: int = SLOTS) -> tuple[float, list[float]]:
    """Seconds that a worker in a process of its own took for what is there, and its memory on the way."""
    command = [sys.executable, "-m", "bench.noop", address, "drain", str(slots)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, check=True)
    *seen, last = map(json.loads, done.stdout.splitlines())
    return last["seconds"], [item["resident"] for item in (*seen, last)]


def drained(figures: Figures, place: Place, sizes: Sizes) -> None:
    """A backlog, by the worker and by the raw loop in turn."""
    worker, raw, server = [], [], []
    with doing(f"{place.name}: {sizes.backlog:,} runs drained, {sizes.rounds} rounds"):
        for _ in range(sizes.rounds):
            with _raw(place) as by_hand:
                _raw_create(by_hand, sizes.backlog)
                raw.append(sizes.backlog / _seconds(lambda: _raw_drain(by_hand)))
            address = place.make()
            fill(address, sizes.backlog)
            before = place.server_seconds() if isinstance(place, PostgresPlace) else 0.0
            worker.append(sizes.backlog / drain(address)[0])
            server.append(place.server_seconds() - before if isinstance(place, PostgresPlace) else 0.0)
    _ratio(figures, f"{place.name}.drain", worker, raw, at_least=0.4)
    if isinstance(place, PostgresPlace):
        figures.note("postgres.server_cpu_us", 1_000_000 * statistics.median(server) / sizes.backlog, at_most=50)


def drained_one_by_one(figures: Figures, place: SqlitePlace, sizes: Sizes) -> None:
    """A backlog by a worker with one slot, and by claims and ends of one run by hand, each a commit, in turn."""
    worker, raw = [], []
    with doing(f"{place.name}: {sizes.one_by_one:,} runs drained with one slot, {sizes.rounds} rounds"):
        for _ in range(sizes.rounds):
            with _raw(place) as by_hand:
                by_hand.create(SystemClock().new_ids(sizes.one_by_one))
                raw.append(sizes.one_by_one / _seconds(lambda: _raw_drain(by_hand, 1)))
            address = place.make()
            with shop(address) as app:
                app.enqueue_many(app.jobs["mail"].new(**PAYLOAD_VALUE) for _ in range(sizes.one_by_one))
            worker.append(sizes.one_by_one / drain(address, 1)[0])
    _ratio(figures, f"{place.name}.drain_one_slot", worker, raw, at_least=0.6)


def pooled(figures: Figures, place: PostgresPlace, sizes: Sizes) -> None:
    """A backlog by the worker, through a pooler that shares by transaction and directly, in turn."""
    if not has_pgbouncer():
        say("postgres.pooled.ratio: there is no pgbouncer on this machine")
        return
    through, direct = list[float](), list[float]()
    with (
        place.pooler() as by_pooler,
        doing(f"postgres: {sizes.backlog:,} runs drained through a pooler and directly, {sizes.rounds} rounds"),
    ):
        for turn in range(2 * sizes.rounds):
            address = place.make()
            fill(address, sizes.backlog)
            speeds, reached = (direct, address) if turn % 2 else (through, by_pooler(address))
            speeds.append(sizes.backlog / drain(reached)[0])
    ratios = [a / b for a, b in zip(through, direct, strict=True)]
    figures.note("postgres.pooled.ratio", statistics.median(ratios), at_least=0.7)
    figures.note("postgres.pooled.ratio_spread", f"{min(ratios):.2f} to {max(ratios):.2f}")
    figures.note("postgres.pooled.per_s", statistics.median(through))
    figures.note("postgres.pooled.direct_per_s", statistics.median(direct))


def enqueued(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Many runs stored, by the library, arguments checked, and by the raw loop in turn."""
    library, raw = [], []
    with doing(f"{place.name}: {sizes.backlog:,} runs enqueued, {sizes.rounds} rounds"):
        for _ in range(sizes.rounds):
            with _raw(place) as by_hand:
                raw.append(sizes.backlog / _seconds(lambda: _raw_create(by_hand, sizes.backlog)))
            library.append(sizes.backlog / fill(place.make(), sizes.backlog))
    _ratio(figures, f"{place.name}.enqueue_many", library, raw, at_least=0.5)


def _ratio(figures: Figures, name: str, ours: list[float], raw: list[float], *, at_least: float) -> None:
    ratios = [a / b for a, b in zip(ours, raw, strict=True)]
    figures.note(f"{name}.ratio", statistics.median(ratios), at_least=at_least)
    figures.note(f"{name}.ratio_spread", f"{min(ratios):.2f} to {max(ratios):.2f}")
    figures.note(f"{name}.per_s", statistics.median(ours))
    figures.note(f"{name}.raw_per_s", statistics.median(raw))


def same_process(figures: Figures, place: SqlitePlace, sizes: Sizes) -> None:
    """From an enqueue to the handler's first line, against two commits and two thread hand-overs, in turn."""
    address = place.make()
    app, begun = App(address), SimpleQueue[float]()

    @app.job(name="tell")
    async def tell() -> None:
        begun.put(time.perf_counter())

    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with app.working(slots=SLOTS):
            ready.set()
            await asyncio.to_thread(stop.wait)

    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    ours, reference = [], []
    with doing(f"latency in one process, {sizes.calls} calls"), _raw(place) as raw, _partner(raw) as hand_over:
        for _ in range(sizes.calls):
            time.sleep(0.02)
            asked = time.perf_counter()
            tell.enqueue()
            ours.append(begun.get() - asked)
            reference.append(_seconds(lambda: hand_over(raw)))
    stop.set()
    thread.join()
    app.close()
    sys.setswitchinterval(before)
    figures.note("latency.same_process.ratio", statistics.median(ours) / statistics.median(reference), at_most=2)
    figures.note("latency.same_process.p50_ms", statistics.median(ours) * 1000)
    figures.note("latency.same_process.reference_p50_ms", statistics.median(reference) * 1000)


@contextmanager
def _partner(raw: Raw) -> Iterator[Callable[[Raw], None]]:
    """Another thread that commits when it is handed something, and hands it back."""
    there, back = SimpleQueue[bool](), SimpleQueue[bool]()

    def commit() -> None:
        while there.get():
            raw.claim(1)
            back.put(True)

    def hand_over(raw: Raw) -> None:
        raw.create(SystemClock().new_ids(1))
        there.put(True)
        back.get()

    thread = threading.Thread(target=commit)
    thread.start()
    yield hand_over
    there.put(False)
    thread.join()


@contextmanager
def _serving(address: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.noop", address, "serve"]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


def other_process(figures: Figures, place: Place, sizes: Sizes) -> None:
    """From an enqueue here to the handler's first line there."""
    address = place.make()
    times = []
    with shop(address) as app, doing(f"{place.name}: latency to another process, {sizes.calls} calls"):
        job = app.jobs["tell"]
        with _serving(address) as worker:
            assert worker.stdout is not None
            for _ in range(sizes.calls):
                time.sleep(0.02)
                asked = time.perf_counter()
                app.enqueue_one(job.new())
                times.append(float(worker.stdout.readline()) - asked)
    name = f"latency.{place.name}_other_process"
    figures.note(f"{name}.p50_ms", statistics.median(times) * 1000, at_most=10)
    figures.note(f"{name}.p99_ms", statistics.quantiles(times, n=100)[98] * 1000)


def soak(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Many runs through one worker: what its memory has gained since it had done a quarter."""
    address = place.make()
    with doing(f"{sizes.soak:,} runs through one worker"):
        fill(address, sizes.soak)
        _, seen = drain(address)
    figures.note("worker.rss_growth_mb", seen[-1] - seen[len(seen) // 4])
    figures.note("worker.rss_mb", seen[-1])


def idle(figures: Figures, place: Place, sizes: Sizes) -> None:
    """The processor time of a worker that has nothing to do."""
    with _serving(place.make()) as worker, doing("an idle worker"):
        time.sleep(2)
        before, begun = process_seconds(worker.pid), time.perf_counter()
        time.sleep(sizes.idle)
        percent = 100 * (process_seconds(worker.pid) - before) / (time.perf_counter() - begun)
    figures.note("worker.idle_cpu_percent", percent, at_most=1)
