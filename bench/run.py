"""Measure windlass. `make bench`, `make bench ONLY=engine QUICK=1`; figures are printed and kept in bench/results.json."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import dialects, engine, hub, limits, lists, moves, reads, remote, retention, schedules, sse, steady, worker
from bench.figures import RESULTS, Figures, machine, say

PARTS: dict[str, Callable[..., None]] = {
    "dialects": dialects.measure,
    "engine": engine.measure,
    "hub": hub.measure,
    "limits": limits.measure,
    "lists": lists.measure,
    "moves": moves.measure,
    "reads": reads.measure,
    "remote": remote.measure,
    "retention": retention.measure,
    "schedules": schedules.measure,
    "sse": sse.measure,
    "steady": steady.measure,
    "worker": worker.measure,
}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), help="run one part and keep the others' figures")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    arguments = parser.parse_args()
    figures, begun = Figures(), time.perf_counter()
    machine(figures)
    for name in [arguments.only] if arguments.only else sorted(PARTS):
        PARTS[name](figures, quick=arguments.quick)
        figures.save()
    say(f"\n{RESULTS}: {len(figures.values)} figures in {time.perf_counter() - begun:.0f} s")
    say(f"Bars missed: {', '.join(figures.missed)}" if figures.missed else "Every bar is met.")


if __name__ == "__main__":
    main()
