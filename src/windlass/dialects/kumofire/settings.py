"""The settings of the dialect's commands: the table [dialects.kumofire]."""

from __future__ import annotations

from msgspec import Struct

from windlass.dialects.kumofire.words import QUEUE
from windlass.engine import checks


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """How `windlass dispatch` finds the runs of a store."""

    queue: str = QUEUE

    def __post_init__(self) -> None:
        checks.name(self.queue, "A queue's name")
