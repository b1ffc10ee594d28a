"""Moves within a queue."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class MoveRun(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a run is to go in its queue; one of them is said."""

    place: int | None = None  # 0 is the head
    to: Literal["top", "bottom"] | None = None
    before: str | None = None  # a run
    after: str | None = None
