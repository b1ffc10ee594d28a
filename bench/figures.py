"""Named figures: printed as they come, kept in one flat file to which every part adds."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"

Figure = float | int | str


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, flush=True)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is going on, and how long it took."""
    say(f"  {what} ...")
    begun = time.perf_counter()
    yield
    say(f"  {what}: {time.perf_counter() - begun:.1f} s")


class Figures:
    """What was measured, by name."""

    def __init__(self) -> None:
        self.values: dict[str, Figure] = {}
        self.missed: list[str] = []

    def note(self, name: str, value: Figure, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Keep a figure and print it, with its bar where it has one."""
        kept = _rounded(value)
        self.values[name] = kept
        text = f"{name} = {kept:,}" if isinstance(kept, int | float) else f"{name} = {kept}"
        if isinstance(kept, int | float) and (at_least is not None or at_most is not None):
            met = (at_least is None or kept >= at_least) and (at_most is None or kept <= at_most)
            bar = f"at least {at_least}" if at_least is not None else f"at most {at_most}"
            text += f"   [{'met' if met else 'MISSED'}: {bar}]"
            if not met:
                self.missed.append(name)
        say(text)

    def save(self, path: Path = RESULTS) -> None:
        """Add these figures to those of other parts; the file is whole at every moment."""
        others = json.loads(path.read_text()) if path.exists() else {}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dict(sorted((others | self.values).items())), indent=2) + "\n")
        os.replace(part, path)


def _rounded(value: Figure) -> Figure:
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine(figures: Figures) -> None:
    """On what it was measured."""
    import apsw
    import psycopg

    figures.note("machine.cpu", _cpu())
    figures.note("machine.cores", len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    figures.note("machine.system", f"{platform.system()} {platform.release()}")
    figures.note("machine.python", platform.python_version())
    figures.note("machine.sqlite", f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})")
    figures.note("machine.psycopg", f"{psycopg.__version__} (libpq {psycopg.pq.version() // 10_000})")
