"""A process that has imported everything and opened nothing, and forks a child for each request: tests of kills begin with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]


class ForkServer:
    """Runs `serve` of a module, which reads requests from standard input and writes answers, both as lines of JSON."""

    def __init__(self, module: str, log: IO[bytes] | None = None) -> None:
        command = [sys.executable, "-c", f"from {module} import serve; serve()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)

    def ask(self, **request: Any) -> Any:
        """The answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; the module ends when its input does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


@contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a process that dies takes no disk with it, and syncs cost nothing there."""
    if not os.access("/dev/shm", os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
