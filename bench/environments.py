"""An environment for each queue of the race, made by the names of its packages as this machine's pip finds them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

NEWEST = 14


class NotInstalled(Exception):
    """Why a queue does not take part."""


def make_environment(folder: Path, packages: Iterable[str], least: tuple[int, int]) -> Path:
    """The interpreter of a new environment that has these packages."""
    python = _interpreter(least)
    _run([python, "-m", "venv", str(folder)], "venv failed")
    made = folder / "bin" / "python"
    _run([str(made), "-m", "pip", "install", "--quiet", *packages], "pip failed")
    return made


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()[-300:]]
        raise NotInstalled(f"{problem}: {errors[-1].removeprefix('ERROR: ')}")


def _interpreter(least: tuple[int, int]) -> str:
    """This one, so that all run on the same; a newer one only for a queue that needs it."""
    if sys.version_info[:2] >= least:
        return sys.executable
    for minor in range(least[1], NEWEST + 1):
        for program in _installed(f"python3.{minor}"):
            if subprocess.run([program, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0:
                return program
    raise NotInstalled(f"it needs Python {least[0]}.{least[1]}, and there is none")


def _installed(name: str) -> Iterator[str]:
    """On the path, and beside the interpreter that this one was made from, where version managers put theirs."""
    if found := shutil.which(name):
        yield found
    yield from sorted(map(str, Path(sys.base_prefix).parent.glob(f"*/bin/{name}")))
