"""Durations as people write them."""

from __future__ import annotations

import re
from typing import Any

from windlass.model import FOREVER, Keep, Limits

SHORTEST_KEEP = 60_000
"""The shortest time in milliseconds for which ended runs are kept."""

A_DURATION = 'a duration: seconds, or a text such as "500ms", "30s", "5m", "2h", "1h30m"'
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration(value: Any) -> int:
    """The milliseconds of a duration: seconds as a number, or a text with units."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value}s" if number else value.strip() if isinstance(value, str) else ""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        text += "s"
    if not _DURATION.fullmatch(text):
        raise ValueError(A_DURATION)
    total = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))
    if total > Limits().duration:
        raise ValueError("a duration of at most ten years")
    return round(total)


def keep(value: Any) -> Keep:
    """How long something is kept: a duration, or "forever"."""
    return "forever" if value == "forever" else duration(value)


def spelled(ms: int) -> str:
    """A duration in the largest unit that expresses it exactly."""
    if ms >= FOREVER:
        return "forever"
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if ms % _UNITS[unit] == 0 and (ms or unit == "s"))
    return f"{ms // _UNITS[unit]}{unit}"


def span(ms: int) -> str:
    """A length of time in its largest whole unit."""
    for unit in ("d", "h", "m", "s"):
        if ms >= 2 * _UNITS[unit] or (unit == "s" and ms >= _UNITS[unit]):
            return f"{ms // _UNITS[unit]}{unit}"
    return f"{max(ms, 0)}ms"
