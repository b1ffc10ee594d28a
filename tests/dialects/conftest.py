"""Dialects on every store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dialects.forge_door import ForgeDoor
from tests.harness import Harness


@pytest.fixture
def forge(h: Harness) -> Iterator[ForgeDoor]:
    """The Forge job queue on each store in turn."""
    door = ForgeDoor(h)
    yield door
    door.close()
