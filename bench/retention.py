"""Retention's part: whether ended runs are removed as fast as a worker ends them, and what that costs claims beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from bench.figures import Figures, doing
from bench.places import Place, open_postgres, open_sqlite
from bench.raw import PAYLOAD_VALUE, WORKER
from bench.worker import HERE, drain, fill
from windlass.clock import SystemClock
from windlass.engine import Engine, Outcome
from windlass.machine import Succeed
from windlass.model import NewRun, WorkerInfo
from windlass.store.base import run_sync

JOB = "mail"


class Sizes:
    """How much is measured."""

    def __init__(self, quick: bool) -> None:
        self.ended = 20_000 if quick else 50_000
        self.rounds = 3
        self.claims = 200 if quick else 500


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of retention."""
    sizes = Sizes(quick)
    for opened in (open_sqlite, open_postgres):
        with opened() as place:
            pruned(figures, place, sizes)
            beside(figures, place, sizes)


def _ended(place: Place, count: int) -> tuple[str, float]:
    """A store in which a worker has ended so many runs, and how many a second that were."""
    address = place.make()
    fill(address, count)
    seconds, _ = drain(address)
    return address, count / seconds


@contextmanager
def _pruner(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a line, and then removes all that has ended."""
    command = [sys.executable, "-m", "bench.prune", address]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def _begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _told(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def pruned(figures: Figures, place: Place, sizes: Sizes) -> None:
    """Runs removed a second, with all pauses, over runs ended a second by one worker, on the same store."""
    ratios, speeds, ends = [], [], []
    with doing(f"{place.name}: {sizes.ended:,} runs ended and removed, {sizes.rounds} rounds"):
        for _ in range(sizes.rounds):
            address, ended_per_s = _ended(place, sizes.ended)
            with _pruner(address) as process:
                _begin(process)
                told = _told(process)
            if told["pruned"] < sizes.ended:
                raise RuntimeError(f"{told['pruned']} runs were removed of {sizes.ended}")
            speeds.append(told["pruned"] / told["seconds"])
            ends.append(ended_per_s)
            ratios.append(speeds[-1] / ended_per_s)
    figures.note(f"{place.name}.prune.ratio", median(ratios), at_least=1)
    figures.note(f"{place.name}.prune.ratio_low", min(ratios))
    figures.note(f"{place.name}.prune.ratio_high", max(ratios))
    figures.note(f"{place.name}.prune.per_s", median(speeds))
    figures.note(f"{place.name}.prune.ended_per_s", median(ends))


def beside(figures: Figures, place: Place, sizes: Sizes) -> None:
    """The median time of a claim of one run and its report, while another process removes runs and while none does."""
    address, _ = _ended(place, sizes.ended)
    engine = Engine(place.store(address), SystemClock())
    with doing(f"{place.name}: claims and reports beside the removal of {sizes.ended:,} runs"), _pruner(address) as process:
        alone = [_pair(engine) for _ in range(sizes.claims)]
        _begin(process)
        both = []
        while process.poll() is None:
            both.append(_pair(engine))
    run_sync(engine.close())
    figures.note(f"{place.name}.claim_beside_prune.ratio", median(both) / median(alone), at_most=2)
    figures.note(f"{place.name}.claim_beside_prune.ms", median(both))
    figures.note(f"{place.name}.claim_beside_prune.alone_ms", median(alone))
    figures.note(f"{place.name}.claim_beside_prune.pairs", len(both))


def _pair(engine: Engine) -> float:
    """Milliseconds of a claim of one run, made before, and its report."""
    run_sync(engine.create([NewRun(JOB, PAYLOAD_VALUE)]))
    begun = time.perf_counter()
    [run] = run_sync(engine.claim(WorkerInfo(WORKER, slots=1), count=1))
    run_sync(engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq)]))
    return 1000 * (time.perf_counter() - begun)
