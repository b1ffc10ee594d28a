"""Lists by one filter each: the first page in a store with many ended runs, against one with few."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench import load
from bench.figures import Figures, say
from bench.places import Place, open_postgres, open_sqlite
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync

JOB, OTHER = "noop", "other"
FEW, MANY, MANY_QUICK = 10_000, 1_000_000, 300_000
ROUNDS = 9
APART = 1_000  # microseconds between two runs


def measure(figures: Figures, *, quick: bool) -> None:
    """The filter whose page grows most with the store, on both databases."""
    for opened in (open_sqlite, open_postgres):
        with opened() as place:
            _compare(figures, place, MANY_QUICK if quick else MANY)


def _compare(figures: Figures, place: Place, many: int) -> None:
    begin = (clock := SystemClock()).now() - many * APART // 1_000 - 60_000
    engines = [_filled(place, count, begin) for count in (FEW, many)]
    say(f"\n{place.name}: the first page by one filter, in ms, with {FEW:,} and with {many:,} ended runs")
    ratios = {}
    for name, values in _filters(begin, clock.now()).items():
        few, much = _times(engines, values)
        ratios[name] = much / few
        say(f"  {1000 * few:8.2f} {1000 * much:8.2f}  {name}")
    worst = max(ratios, key=lambda name: ratios[name])
    say(f"  most is {worst}")
    figures.note(f"{place.name}.filter.any_1m.ratio", ratios[worst], at_most=2)
    for engine in engines:
        run_sync(engine.close())


def _filled(place: Place, count: int, begin: int) -> Engine:
    address = place.make()
    engine = Engine(place.store(address), SystemClock())
    run_sync(engine.create([NewRun(JOB), NewRun(OTHER)], undefined="wait"))
    with place.loader(address) as execute:
        execute("delete from job_runs")
        load.ended(execute, count, job=JOB, lane=1, at=begin, step=APART)
    place.vacuum(address)
    return engine


def _filters(begin: int, now: int) -> Mapping[str, Mapping[str, Any]]:
    """A filter of each kind: such that match all runs, and such that match none."""
    hour = 3_600_000
    return {
        "a job": {"job": JOB, "states": ["queued", "succeeded"]},
        "a job without runs": {"job": OTHER, "states": ["queued", "succeeded"]},
        "two states": {"states": ["queued", "succeeded"]},
        "states without runs": {"states": ["queued", "failed"]},
        "the default queue": {"queue": "default"},
        "a queue without runs": {"queue": "none"},
        "a worker": {"worker": "bulk"},
        "a worker without runs": {"worker": "none"},
        "a key": {"key": "none"},
        "a tag": {"tag": "gpu"},
        "an error": {"error": "boom"},
        "created since": {"created_since": now - hour},
        "created since the future": {"created_since": now + 2 * hour},
        "created before": {"created_before": begin + 1_000},
        "ended since": {"ended_since": now - hour},
        "ended before": {"ended_before": begin + 1_000},
        "a text": {"text": "connection refused"},
        "the end of an id": {"text": "00000001"},
    }


def _times(engines: list[Engine], values: Mapping[str, Any]) -> list[float]:
    """The median times of the stores, in turn, once each has its pages in memory."""
    times: list[list[float]] = [[] for _ in engines]
    for turn in range(ROUNDS + 1):
        for engine, taken in zip(engines, times, strict=True):
            begin = time.perf_counter()
            run_sync(engine.runs(**values))
            if turn:
                taken.append(time.perf_counter() - begin)
    return [median(taken) for taken in times]
