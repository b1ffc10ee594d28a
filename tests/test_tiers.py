"""Which cases of a matrix are in the short tier."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import corners, try_fewer


def test_the_corners_of_a_matrix_are_short_and_all_else_is_long() -> None:
    cases = corners("abc", (1, 2, 3, 4))
    assert [case.values for case in cases] == [(letter, number) for letter in "abc" for number in (1, 2, 3, 4)]
    assert [case.values for case in cases if not case.marks] == [("a", 1), ("a", 4), ("c", 1), ("c", 4)]
    assert {mark.name for case in cases for mark in case.marks} == {"long"}


def test_of_two_values_none_is_long() -> None:
    assert not any(case.marks for case in corners("ab"))
    assert not any(case.marks for case in corners("a"))


@pytest.mark.parametrize(("usual", "fewer"), [(400, 100), (100, 25), (60, 20), (5, 5)])
def test_a_test_by_chance_tries_fewer_examples(request: pytest.FixtureRequest, usual: int, fewer: int) -> None:
    tried = []

    @settings(max_examples=usual, database=None)
    @given(st.integers())
    def test(number: int) -> None:
        tried.append(number)

    try_fewer([pytest.Function.from_parent(request.node.parent, name="it", callobj=test)] * 2)
    test()
    assert len(tried) == fewer
