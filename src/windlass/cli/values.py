"""Reads the values of options: numbers, durations, instants; and the options that many commands share."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from typing import Any

from windlass import durations
from windlass.cli.rows import Option, option
from windlass.clock import SystemClock
from windlass.model import Keep


def duration(text: str) -> int:
    """The milliseconds of a duration."""
    try:
        return durations.duration(text)
    except ValueError as requirement:
        raise ArgumentTypeError(f"{text!r} is not {requirement}") from None


def duration_or_none(text: str) -> int | None:
    """The milliseconds of a duration; the text "none" is None."""
    return None if text == "none" else duration(text)


def keep(text: str) -> Keep:
    """How long ended runs are kept: a duration, or "forever"."""
    try:
        return durations.keep(text)
    except ValueError as requirement:
        raise ArgumentTypeError(f"{text!r} is neither {requirement} nor forever") from None


def instant(text: str) -> int:
    """The milliseconds of an ISO 8601 time; one without a zone is local time."""
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T09:00 or 2026-01-31T09:00:00Z") from None


def past(text: str) -> int:
    """The milliseconds of an instant, which may be told as a duration before now."""
    try:
        return SystemClock().now() - durations.duration(text)
    except ValueError:
        pass
    try:
        return instant(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is neither a time such as 2026-01-31T09:00 nor a duration such as 2h") from None


def number(low: int, high: int) -> Callable[[str], int]:
    """A whole number within these bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text[:19]) <= high:
            raise ArgumentTypeError(f"{text!r} is not a number from {low:,} to {high:,}")
        return int(text)

    return read


# Options of many commands

count = number(1, 1_000)
ID = option("id", metavar="ID")
NAME = option("name", metavar="NAME")


def limit(default: int, what: str = "") -> Option:
    """How many records are listed."""
    return option("--limit", type=count, default=default, metavar="N", help=f"at most this many{what} (default: {default})")


def after(metavar: str, help: str, **details: Any) -> Option:
    """Where the list begins."""
    return option("--after", metavar=metavar, help=help, **details)


CURSOR = option("--cursor", help="the cursor of the previous page")
