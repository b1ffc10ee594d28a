"""The two tiers of tests: `make test` runs what is not marked long, `make test-long` the rest.

Long are the proofs, which is all of `tests/proof` and what is marked elsewhere: kills, races and chance, repeated until they would have
found something. Long is also the inside of a matrix: its corners are in the short tier. A test by chance is in both: the short tier
tries a quarter of its examples, the long one all of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SHORT = "not long"
"""How the short tier is chosen, by -m."""

MANY = os.environ.get("HYPOTHESIS_PROFILE") == "long"
"""Whether many more examples than usual are asked for."""

_SETTINGS = "_hypothesis_internal_use_settings"

long = pytest.mark.long
"""On a test, on a case, or as the `pytestmark` of a file: only in the long tier."""


def try_fewer(items: Iterable[pytest.Item]) -> None:
    """Let tests by chance try a quarter of their examples, and some in any case."""
    for test in {test for item in items if hasattr(test := getattr(item, "obj", None), _SETTINGS)}:
        usual: settings = getattr(test, _SETTINGS)
        setattr(test, _SETTINGS, settings(usual, max_examples=min(usual.max_examples, max(20, usual.max_examples // 4))))


def corners(*axes: Iterable[Any]) -> list[pytest.ParameterSet]:
    """Every combination of the values of all axes; long where a value is neither the first nor the last of its axis."""
    values = [list(axis) for axis in axes]
    cases = itertools.product(*(enumerate(axis) for axis in values))
    return [pytest.param(*(value for _, value in case), marks=() if _is_corner(case, values) else long) for case in cases]


def _is_corner(case: Iterable[tuple[int, Any]], values: list[list[Any]]) -> bool:
    return all(place in (0, len(axis) - 1) for (place, _), axis in zip(case, values, strict=True))
