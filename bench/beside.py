"""Creations in one process while another one drains the same SQLite file."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

from bench import load
from bench.figures import Figures, doing, say
from bench.places import SqlitePlace
from bench.raw import JOB, PAYLOAD_VALUE
from bench.sizes import Sizes
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.model import NewRun
from windlass.store.base import run_sync

ROOT = Path(__file__).parent.parent


def beside_drain(figures: Figures, place: SqlitePlace, sizes: Sizes) -> None:
    """Single creations in this process, one after the other, while another process drains the same file."""
    say(f"\nsqlite: single creations while another process drains {sizes.drained:,} runs")
    path = place.make()
    engine = Engine(place.store(path), SystemClock())
    run_sync(engine.define(JOB))
    with place.loader(path) as execute:
        load.queued(execute, sizes.drained, job=JOB, lane=1, at=SystemClock().now() - 60_000)
    command = [sys.executable, "-m", "bench.drain", path]
    begun = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child, doing("create and drain"):
        assert child.stdout is not None
        child.stdout.readline()
        spent = []
        while child.poll() is None:
            before = time.perf_counter()
            run_sync(engine.create([NewRun(JOB, PAYLOAD_VALUE)]))
            spent.append(1000 * (time.perf_counter() - before))
        drained = int(child.stdout.readline())
    figures.note("sqlite.enqueue_beside_drain.p99_ms", quantiles(spent, n=100)[98], at_most=100)
    figures.note("sqlite.enqueue_beside_drain.p50_ms", median(spent))
    figures.note("sqlite.enqueue_beside_drain.max_ms", max(spent))
    figures.note("sqlite.enqueue_beside_drain.created", len(spent))
    figures.note("sqlite.enqueue_beside_drain.drained_per_s", drained / (time.perf_counter() - begun))
