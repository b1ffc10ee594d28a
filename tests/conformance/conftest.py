"""Apps on every store, for the lines that speak of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import SHARED
from tests.harness import KINDS
from tests.tiers import corners
from windlass import App
from windlass.clock import ManualClock


def _address(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind == "postgres":
        url: str = request.getfixturevalue("emptied_postgres")
        return url
    return ":memory:" if kind == "memory" else str(folder / "windlass.db")


@pytest.fixture(params=corners(KINDS))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app without jobs on each store in turn."""
    with App(_address(request.param, tmp_path, request)) as app:
        yield app


@pytest.fixture(params=corners(KINDS))
def still(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """The same with a clock that stands still until a test moves it."""
    with App(_address(request.param, tmp_path, request), clock=ManualClock()) as app:
        yield app


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each store that several processes can have open."""
    with App(_address(request.param, tmp_path, request)) as app:
        yield app
