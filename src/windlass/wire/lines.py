"""Log lines of runs."""

from __future__ import annotations

from msgspec import Struct

from windlass.model import LogLine
from windlass.wire.values import heard, told

PER_ATTEMPT = 100_000
"""Log lines are counted through all attempts of a run in steps of this size, so that the lines of the first keep their own numbers."""


class LineView(Struct, frozen=True):
    """A log line, and the cursor behind it."""

    cursor: int
    attempt: int
    n: int
    at: str
    line: str


class Lines(Struct, frozen=True):
    lines: list[LineView]


def line_view(line: LogLine) -> LineView:
    return LineView(line_cursor(line.attempt, line.n), line.attempt, line.n, told(line.at), line.text)


def line_of(view: LineView) -> LogLine:
    return LogLine(view.attempt, view.n, heard(view.at, "at"), view.line)


def line_cursor(attempt: int, n: int) -> int:
    """The place of a line among all lines of its run; the lines of the first attempt have their own numbers."""
    return (attempt - 1) * PER_ATTEMPT + n


def line_place(cursor: int) -> tuple[int, int]:
    """The attempt and the number of the line at a cursor."""
    return (cursor // PER_ATTEMPT + 1, cursor % PER_ATTEMPT) if cursor else (0, 0)
