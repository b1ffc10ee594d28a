"""Processes with schedulers of the design guards, and the log of what they execute."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Process:
    """A process with a scheduler on a store."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        words = [sys.executable, "-m", "tests.dialects.guards_child", str(folder), address]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.child = subprocess.Popen(words, env=inherited | {"PYTHONPATH": str(ROOT)}, cwd=folder, **pipes)

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def answer(self) -> str:
        assert self.child.stdout is not None
        return str(self.child.stdout.readline()).strip()

    def start(self) -> Any:
        """Start its scheduler; returns what was recovered."""
        self.tell("start")
        return ast.literal_eval(self.answer())

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


@contextmanager
def processes(folder: Path, address: str, count: int = 1) -> Iterator[list[Process]]:
    """So many of them, killed at the end of the block."""
    with ExitStack() as stack:
        children = [Process(folder, address) for _ in range(count)]
        for process in children:
            stack.enter_context(process.child)
            stack.callback(process.child.kill)
        yield children


def log(folder: Path) -> list[list[str]]:
    """What was executed, in its order: start and end with a name."""
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def executed(folder: Path) -> list[str]:
    """The names of what was executed, in order; each had ended before the next one began."""
    lines = log(folder)
    starts, ends = lines[0::2], lines[1::2]
    assert [words[0] for words in starts] == ["start"] * len(starts), lines
    assert [words[0] for words in ends] == ["end"] * len(ends), lines
    assert [words[1] for words in starts][: len(ends)] == [words[1] for words in ends], lines
    return [words[1] for words in starts]
