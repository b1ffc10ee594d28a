"""The dialects' part: what the words of another protocol cost, against the same work in the API's."""

from __future__ import annotations

from bench import forge, kumofire, so1, zerog
from bench.figures import Figures

MEASURES = (forge.measure, kumofire.measure, so1.measure, zerog.measure)


def measure(figures: Figures, *, quick: bool) -> None:
    """All figures of the dialects."""
    for one in MEASURES:
        one(figures, quick=quick)
