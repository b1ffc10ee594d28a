"""Measure this tree beside another commit. `make bench-against REV=HEAD~1 ROUNDS=5 QUICK=1` runs both in turn and compares the medians."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent

# What does not depend on the code of windlass, or only counts how much was measured.
_REFERENCES = re.compile(
    r"^machine\.|^hub\.echo|\.schema\.|raw|reference|in_process_per_s|without_ms|spread|_low$|_high$|max_ms|created|rows|_mb$|empty|lost"
)
_MORE_IS_BETTER = re.compile(r"per_s$|per_second$|(engine|drain|drain_one_slot|enqueue_many|claim_report|steady)\.ratio$")

Figures = Mapping[str, float]


def main() -> None:
    """Compare, and say which figures and groups are below their bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rev", help="the commit to compare with")
    parser.add_argument("--only", help="one part of the bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    arguments = parser.parse_args()
    options = (["--only", arguments.only] if arguments.only else []) + (["--quick"] if arguments.quick else [])
    with TemporaryDirectory() as folder:
        other = Path(folder, "other")
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(other), arguments.rev], cwd=ROOT, check=True)
        try:
            rounds = [_round(n, (other, ROOT), options) for n in range(arguments.rounds)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    report([before for before, _ in rounds], [after for _, after in rounds])


def _round(n: int, trees: tuple[Path, Path], options: Sequence[str]) -> tuple[Figures, Figures]:
    """The figures of both trees; who begins takes turns, so that neither always has the warmer machine."""
    order = trees if n % 2 == 0 else trees[::-1]
    found = {tree: _measured(n, tree, options) for tree in order}
    return found[trees[0]], found[trees[1]]


def _measured(n: int, tree: Path, options: Sequence[str]) -> Figures:
    print(f"Round {n + 1}: {'this tree' if tree == ROOT else 'the other commit'} ...", flush=True)
    results = tree / "bench" / "results.json"
    results.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    subprocess.run([sys.executable, "bench/run.py", *options], cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
    return {name: value for name, value in json.loads(results.read_text()).items() if isinstance(value, int | float)}


def report(before: Sequence[Figures], after: Sequence[Figures]) -> None:
    """Print how good each figure is against the other commit's: above 1 is better, whatever its direction."""
    groups: dict[str, list[float]] = defaultdict(list)
    for name in sorted(set(before[0]) & set(after[0])):
        if not _REFERENCES.search(name):
            old, new = _median(before, name), _median(after, name)
            if old > 0 and new > 0:
                good = new / old if _MORE_IS_BETTER.search(name) else old / new
                groups[_group(name)].append(good)
                print(f"{name}: {old:,.4g} -> {new:,.4g}   {good:.2f}{'   BELOW 0.9' if good < 0.9 else ''}")
    print()
    for group, goods in sorted(groups.items()):
        print(f"{group}: {mean(goods):.3f} on average of {len(goods)}{'   BELOW 0.97' if mean(goods) < 0.97 else ''}")


def _median(rounds: Iterable[Figures], name: str) -> float:
    return median(figures[name] for figures in rounds if name in figures)


def _group(name: str) -> str:
    """sqlite.engine, postgres.claim_waiting_1m -> sqlite, postgres; hub, remote, sse and the like by themselves."""
    return name.split(".")[0]


if __name__ == "__main__":
    main()
