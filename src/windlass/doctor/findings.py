"""Findings, and the wording of a number of runs."""

from __future__ import annotations

from typing import Any

from windlass.answers import Finding


def runs(number: int, counted: int | None = None) -> str:
    """A number of runs in words, "or more" where the count stopped at its limit."""
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
