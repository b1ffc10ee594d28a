"""The two tiers of tests: `make test` runs what is not marked long, `make test-long` the rest.

Long are the proofs, which is all of `tests/proof` and what is marked elsewhere: kills, races and chance, repeated until they would have
found something. Long is also the inside of a matrix: its corners are in the short tier.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

long = pytest.mark.long
"""On a test, on a case, or as the `pytestmark` of a file: only in the long tier."""


def corners(*axes: Iterable[Any]) -> list[pytest.ParameterSet]:
    """Every combination of the values of all axes; long where a value is neither the first nor the last of its axis."""
    values = [list(axis) for axis in axes]
    cases = itertools.product(*(enumerate(axis) for axis in values))
    return [pytest.param(*(value for _, value in case), marks=() if _is_corner(case, values) else long) for case in cases]


def _is_corner(case: Iterable[tuple[int, Any]], values: list[list[Any]]) -> bool:
    return all(place in (0, len(axis) - 1) for (place, _), axis in zip(case, values, strict=True))
