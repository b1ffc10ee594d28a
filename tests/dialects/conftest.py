"""Dialects on every store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dialects.forge_door import ForgeDoor
from tests.dialects.kumofire_door import StoreDoor
from tests.harness import KINDS, Harness, folder_for
from tests.tiers import corners
from windlass import App
from windlass.clock import ManualClock


@pytest.fixture
def forge(h: Harness) -> Iterator[ForgeDoor]:
    """The Forge job queue on each store in turn."""
    door = ForgeDoor(h)
    yield door
    door.close()


@pytest.fixture(params=corners(KINDS))
def kumofire(request: pytest.FixtureRequest) -> Iterator[StoreDoor]:
    """Kumofire Jobs on each store in turn."""
    kind: str = request.param
    file = folder_for(kind, request) / "jobs.db"
    address = request.getfixturevalue("emptied_postgres") if kind == "postgres" else ":memory:" if kind == "memory" else file
    with App(address, clock=ManualClock()) as app:
        yield StoreDoor(app)
