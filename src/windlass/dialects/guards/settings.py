"""The settings of the dialect: the table [dialects.guards]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time

from msgspec import Struct, field

from windlass.engine import checks

_is_path = re.compile(r"(/[a-z0-9_-]+)+").fullmatch

RESOURCE = "guards"
"""The resource that every job made here uses, and whose next slot direct calls take."""

DIRECT = {"/story/generate": "story", "/research/run": "research"}
"""The direct calls that the document names."""
OWN = {"api", "health", "jobs", "scheduler"}
"""The beginnings of all other paths."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are kept and executed."""

    queue: str = "guards"
    capacity: int = 1  # jobs and direct calls that are executed at once
    resources: Mapping[str, int] = {}  # further resources that templates may name, and their capacities
    max_attempts: int = 3  # of templates that have none of their own
    count_executions: bool = False  # max_attempts counts all executions, the first one included, and not only the retries
    api_auth_enabled: bool = False  # over HTTP, requests need the key, or a token of windlass
    api_key: str | None = None
    autostart: bool = True  # a hub starts with a running scheduler
    direct: Mapping[str, str] = field(default_factory=DIRECT.copy)  # the paths of direct calls, and their job types
    sunset: str = "2027-12-31"  # the last day of the old routes

    def __post_init__(self) -> None:
        checks.name(self.queue, "A queue's name")
        checks.integer(self.capacity, "capacity", 1, 2**31 - 1)
        for name, capacity in self.resources.items():
            checks.name(name, "A resource's name")
            checks.integer(capacity, f"The capacity of {name!r}", 1, 2**31 - 1)
        checks.integer(self.max_attempts, "max_attempts", 0, 999)
        for path, job in self.direct.items():
            checks.name(job, f"The job of {path!r:.80}")
            if not _is_path(path) or path.split("/")[1] in OWN:
                raise ValueError(f"{path!r:.80} is not a path for direct calls, such as /story/generate")
        if self.api_auth_enabled and not (self.api_key or "").strip():
            raise ValueError("api_auth_enabled needs an api_key")
        date.fromisoformat(self.sunset)

    @property
    def sunset_at(self) -> datetime:
        """The end of the last day of the old routes."""
        return datetime.combine(date.fromisoformat(self.sunset), time.max, UTC)

    def executions(self, max_attempts: int) -> int:
        """How often a job is executed at most, by the document's number."""
        return max(1, max_attempts) if self.count_executions else max_attempts + 1

    def max_attempts_of(self, executions: int) -> int:
        """The document's number for a limit of executions."""
        return executions if self.count_executions else executions - 1
