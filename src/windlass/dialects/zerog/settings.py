"""The settings of the dialect: the table [dialects.zerog]."""

from __future__ import annotations

from msgspec import Struct

from windlass.config import load
from windlass.dialects import settings_of
from windlass.dialects.zerog.words import QUEUE
from windlass.engine import checks


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What backends use that name nothing else."""

    queue: str = QUEUE

    def __post_init__(self) -> None:
        checks.name(self.queue, "A queue's name")


def own_queue() -> str:
    """The queue that windlass.toml names, or the usual one."""
    settings: Settings = settings_of("zerog", (load().dialects or {}).get("zerog", {}), {})
    return settings.queue
