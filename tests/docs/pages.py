"""A page of the docs as a reader would follow it: files are written, commands given at a shell, and the rest of the Python run in order.

- ```python, first line `# shop.py`: a file of that name, kept in the folder where everything else runs.
- ```python otherwise: part of one program, which the blocks of the page make together. It runs at the end. A comment behind a `print(...)`
  is what that prints, or how it begins; `...` stands for anything.
- ```console: `$ command` lines, each followed by what it prints; `...` stands for anything. A command that ends with `&` goes on beside
  the others, and gets a SIGTERM when the page is through. Every command must exit with 0, unless `(exits with N)` is printed below it.
- Anything else (```ini, ```text, ...) is shown only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DEADLINE = 60

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)
_FILE = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
_PRINTS = re.compile(r"^ *print\(.*\)  # (.+)$", re.M)
_EXITS = re.compile(r"\(exits with (\d+)\)\n?\Z")


class Block(NamedTuple):
    """A fenced block: the word behind the fence, and what is in it."""

    kind: str
    text: str


class Command(NamedTuple):
    """A line typed at a shell, and what it prints; None where the page does not say."""

    line: str
    prints: str | None
    exits: int = 0


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def file_in(block: Block) -> str | None:
    """The name of the file that a block is, if it is one."""
    named = _FILE.match(block.text)
    return named[1] if named else None


def commands_in(session: str) -> list[Command]:
    """The commands of a session at a shell."""
    return [_command(part) for part in re.split(r"^\$ ", session, flags=re.M) if part.strip()]


def _command(part: str) -> Command:
    line, _, prints = part.partition("\n")
    while line.endswith("\\"):
        more, _, prints = prints.partition("\n")
        line = f"{line[:-1]}{more}"
    exits = _EXITS.search(prints)
    said = _EXITS.sub("", prints).strip()
    return Command(line, said or None, int(exits[1]) if exits else 0)


def program_of(page: Path) -> str:
    """The program that the blocks of a page make together."""
    return "\n".join(block.text for block in blocks_of(page) if block.kind == "python" and not file_in(block))


def runs(page: Path) -> bool:
    """Whether there is anything on a page to run."""
    return any(block.kind in ("python", "console") for block in blocks_of(page))


def _pattern(text: str) -> str:
    return re.escape(text).replace(re.escape("..."), ".*")


class Follower:
    """Does what a page says, in an empty folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}", "COLUMNS": "100"}
        self._beside: list[tuple[Command, subprocess.Popen[str]]] = []

    def follow(self, page: Path) -> None:
        with ExitStack() as stack:
            stack.callback(self._kill)
            for block in blocks_of(page):
                if name := file_in(block):
                    (self.folder / name).write_text(block.text, encoding="utf-8")
                elif block.kind == "console":
                    for command in commands_in(block.text):
                        self._give(command)
            if program := program_of(page):
                self._run(program)
            self._end()

    def _run(self, program: str) -> None:
        (self.folder / "page.py").write_text(program, encoding="utf-8")
        printed = self._give(Command("python page.py", None))
        missing = [text for text in _PRINTS.findall(program) if not re.search(f"^{_pattern(text)}", printed, re.M)]
        assert missing == [], printed

    def _start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _give(self, command: Command) -> str:
        """Give a command, and return what it has printed by its end."""
        if command.line.endswith("&"):
            self._beside.append((command, self._start(f"exec {command.line.removesuffix('&')}")))
            return ""
        process = self._start(command.line)
        self._beside.append((command, process))  # so that it is killed when it takes too long
        printed, _ = process.communicate(timeout=DEADLINE)
        self._beside.pop()
        self._judge(command, process.returncode, printed)
        return printed

    def _end(self) -> None:
        """Stop what still runs, the youngest first, and see how it ends."""
        while self._beside:
            command, process = self._beside[-1]
            process.terminate()
            printed, _ = process.communicate(timeout=DEADLINE)
            self._beside.pop()
            self._judge(command, process.returncode, printed)

    def _judge(self, command: Command, exited: int, printed: str) -> None:
        assert exited == command.exits, f"$ {command.line}\n{printed}(exits with {exited})"
        if command.prints is not None:
            assert re.fullmatch(_pattern(command.prints), printed.strip(), re.S), (
                f"$ {command.line}\n{printed}\nThe page says:\n{command.prints}"
            )

    def _kill(self) -> None:
        """End what still runs after a failure; a hub that is asked ends its worker too, which is in a session of its own."""
        for _, process in self._beside:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=DEADLINE)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
