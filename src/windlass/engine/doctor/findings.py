"""What a check finds."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""The worst first: something does not work, something will go wrong or costs, something is worth knowing."""


class Finding(Struct, frozen=True):
    """Something that is not as it should be, in words and as data, and what to do about it."""

    code: str
    severity: Severity
    text: str
    todo: str
    data: dict[str, Any] = {}


def runs(number: int, counted: int | None = None) -> str:
    """So many runs, if not more than so many were counted."""
    if counted is not None and number >= counted:
        return f"{number:,} or more runs"
    return "1 run" if number == 1 else f"{number:,} runs"


def problem(code: str, text: str, todo: str, **data: Any) -> Finding:
    """Something does not work."""
    return Finding(code, "problem", text, todo, data)


def warning(code: str, text: str, todo: str, **data: Any) -> Finding:
    """Something will go wrong, or costs more than it should."""
    return Finding(code, "warning", text, todo, data)


def note(code: str, text: str, todo: str, **data: Any) -> Finding:
    """Something is worth knowing."""
    return Finding(code, "note", text, todo, data)
