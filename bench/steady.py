"""Steady state: runs created, claimed and reported beside many that have ended, while retention removes as many, against an empty store."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from bench import load
from bench.drain import BATCH
from bench.figures import Figures, doing, say
from bench.lives import EngineLife, take_turn
from bench.places import PostgresPlace, open_postgres
from bench.raw import JOB
from bench.worker import HERE
from windlass.clock import SystemClock

NAP = 0.1


class Sizes(NamedTuple):
    """How much is measured."""

    rows: int = 3_000_000
    rounds: int = 5
    seconds: float = 20.0


QUICK = Sizes(rows=1_000_000, rounds=3, seconds=10.0)


class Site(NamedTuple):
    """A store, and how long it keeps its runs, in milliseconds."""

    address: str
    life: EngineLife
    keep: int


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the steady state. Autovacuum looks every second, so that what a turn leaves behind is removed in that turn."""
    sizes = QUICK if quick else Sizes()
    with open_postgres(autovacuum_naptime="1s") as place:
        steady(figures, place, sizes)


def steady(figures: Figures, place: PostgresPlace, sizes: Sizes) -> None:
    """Runs a second in both stores in turn, with the vacuums that they cause."""
    say(f"\npostgres: whole lives beside {sizes.rows:,} ended runs and in an empty store, {sizes.rounds} rounds")
    address = place.make()
    empty = Site(address, EngineLife(place.store(address)), keep=3_600_000)
    turn(place, empty, sizes.seconds)  # warms up
    per_s, _ = turn(place, empty, sizes.seconds)  # so many runs have to expire in a second
    many = filled(place, sizes.rows, per_s)
    turn(place, many, sizes.seconds)
    ratios, speeds, pruned = list[float](), {empty: list[float](), many: list[float]()}, 0
    for number in range(sizes.rounds):
        for site in (empty, many) if number % 2 else (many, empty):
            per_s, removed = turn(place, site, sizes.seconds)
            speeds[site].append(per_s)
            pruned += removed
        ratios.append(speeds[many][-1] / speeds[empty][-1])
        say(f"  round {number + 1}: beside many {speeds[many][-1]:,.0f}/s, in the empty store {speeds[empty][-1]:,.0f}/s")
    for site in speeds:
        site.life.close()
    if not pruned:
        raise RuntimeError("retention has removed nothing")
    figures.note("postgres.steady.ratio", median(ratios), at_least=0.85)
    figures.note("postgres.steady.ratio_low", min(ratios))
    figures.note("postgres.steady.ratio_high", max(ratios))
    figures.note("postgres.steady.per_s", median(speeds[many]))
    figures.note("postgres.steady.empty_per_s", median(speeds[empty]))
    figures.note("postgres.steady.rows", sizes.rows)
    figures.note("postgres.steady.pruned_rows", pruned)


def filled(place: PostgresPlace, rows: int, per_s: float) -> Site:
    """A store with so many ended runs, of which as many expire in its turns as are created there: half of the time is the other's."""
    address = place.make()
    life = EngineLife(place.store(address))
    lane, step = life.engine.parts.ground.lanes.ids["default", JOB, ""], round(2_000_000 / per_s)
    first = SystemClock().now() - rows * step // 1_000  # so the last has ended just now
    with place.loader(address) as execute:
        load.ended(execute, rows, job=JOB, lane=lane, at=first, step=step)
    with doing("vacuum"):
        place.vacuum(address)
    return Site(address, life, keep=SystemClock().now() - first)


def turn(place: PostgresPlace, site: Site, seconds: float) -> tuple[float, int]:
    """Runs a second for so long, until the vacuums that this has caused are over; and how many runs were removed meanwhile."""
    with _maintained(site) as process:
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            take_turn(site.life)
            count += BATCH
        pruned, _ = process.communicate("stop\n")
    while place.vacuums():
        time.sleep(NAP)
    return count / (time.perf_counter() - begun), int(pruned)


@contextmanager
def _maintained(site: Site) -> Iterator[subprocess.Popen[str]]:
    """A process does for the store what a worker does besides its runs, until it is told to stop."""
    command = [sys.executable, "-m", "bench.maintenance", site.address, str(site.keep)]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
