"""What the tests of the command line share: one process that is forked for each call, and a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Callable, Iterator

import pytest

from tests.cli.forks import forked, read_terminal


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables by which `windlass` in a shell is a fork of one process."""
    with forked(tmp_path_factory.mktemp("forks") / "bin") as variables:
        yield variables


@pytest.fixture
def on_a_terminal(forks: dict[str, str]) -> Callable[..., str]:
    """What a command draws on a terminal of 80 columns."""

    def drawn_by(*words: str, **environment: str) -> str:
        here, there = pty.openpty()
        termios.tcsetwinsize(there, (24, 80))
        known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
        command = [f"{forks['PATH'].partition(':')[0]}/windlass", *words]
        with subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, env=known | forks | {"TERM": "xterm-256color"} | environment
        ) as child:
            os.close(there)
            drawn = b"".join(iter(lambda: read_terminal(here), b""))
            assert child.wait(60) == 0, drawn
        os.close(here)
        return drawn.decode().replace("\r\n", "\n")

    return drawn_by
