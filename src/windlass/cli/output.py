"""Printing: plain text that is safe on a terminal, colours on terminals only, JSON on demand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from windlass.errors import WindlassError

# Control characters but tab and newline, marks that turn the direction of writing, foreign line ends, halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_WIDE = 100_000  # columns of a file or a pipe: nothing is cut there


def _escaped(character: re.Match[str]) -> str:
    code = ord(character[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clean(text: str) -> str:
    """The text with an escape in place of each character that would control a terminal; line breaks stay."""
    return _UNSAFE.sub(_escaped, text)


def line(text: str) -> str:
    """The text on one line, so that no part of it can look like another line."""
    return clean(text).replace("\n", "\\n").replace("\t", " ")


def as_json(value: Any) -> str:
    """One line of JSON that is safe to print on a terminal."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return _UNSAFE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(file: IO[str]) -> Console:
    console = _Console(file=file, markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else _Console(file=file, markup=False, highlight=False, emoji=False, width=_WIDE)


class Output:
    """Standard output for the answer, standard error for everything else."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.console, self.notes = _console(sys.stdout), _console(sys.stderr)

    @property
    def seen(self) -> bool:
        """Whether the output is a terminal."""
        return self.console.is_terminal

    def document(self, value: Any) -> None:
        """Print one JSON document on one line, as it is."""
        self.raw(as_json(value))

    def raw(self, text: str) -> None:
        """Print a text, never wrapped or cut."""
        self.console.print(Text(clean(text)), soft_wrap=True)

    def note(self, text: str, style: str = "dim") -> None:
        """Print a note beside the answer, for people only."""
        if not self.json:
            self.notes.print(Text(line(text), style=style), soft_wrap=True)

    def error(self, error: WindlassError) -> None:
        """Print what went wrong and what to do next."""
        if self.json:
            self.notes.print(Text(as_json({"error": {"code": error.code, "message": error.message, "hint": error.hint}})), soft_wrap=True)
            return
        self.notes.print(Text.assemble(("error: ", "bold red"), clean(error.message)), soft_wrap=True)
        self.notes.print(Text.assemble(("hint: ", "bold"), clean(error.hint)), soft_wrap=True)


def table(*headers: str, cut: Collection[str] = (), folded: Collection[str] = ()) -> Table:
    """A table without lines. Where the terminal is narrow, the columns named are cut or folded, and no other."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        # Only columns that may wrap are made narrower; the cells of those that are cut refuse to wrap by themselves.
        grid.add_column(header, no_wrap=header not in (*cut, *folded), overflow="fold" if header in folded else "ellipsis")
    return grid


def facts_table() -> Table:
    """A table of names and values; long values are folded."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def cell(text: str | Text, style: str = "") -> Text:
    """The text for one line of a table, cut where it has no room."""
    part = text if isinstance(text, Text) else Text(line(text), style=style)
    part.no_wrap, part.overflow = True, "ellipsis"
    return part
