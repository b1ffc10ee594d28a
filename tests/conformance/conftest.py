"""Apps on every store, for the lines that speak of handlers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import SHARED
from tests.harness import KINDS
from tests.tiers import corners
from windlass import App
from windlass.clock import ManualClock


def _address(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("emptied_postgres")
        return url
    return ":memory:" if request.param == "memory" else str(request.getfixturevalue("tmp_path") / "windlass.db")


@pytest.fixture(params=corners(KINDS))
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    """An app without jobs on each store in turn."""
    with App(_address(request)) as app:
        yield app


@pytest.fixture(params=corners(KINDS))
def still(request: pytest.FixtureRequest) -> Iterator[App]:
    """The same with a clock that stands still until a test moves it."""
    with App(_address(request), clock=ManualClock()) as app:
        yield app


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Iterator[App]:
    """An app on each store that several processes can have open."""
    with App(_address(request)) as app:
        yield app
