"""When this process last stored that a worker was alive."""

from __future__ import annotations

SEEN_EVERY = 15_000
"""Milliseconds between two writes of the time at which a worker was last seen."""
MAX_REMEMBERED = 10_000


class Sightings:
    """The workers that need no further write for now, so that those which only poll cost no statement."""

    def __init__(self) -> None:
        self._noted: dict[str, int] = {}

    def is_due(self, worker: str, ticks: int) -> bool:
        """Whether it is time to store again that a worker is alive."""
        return ticks - self._noted.get(worker, ticks - SEEN_EVERY) >= SEEN_EVERY

    def note(self, worker: str, ticks: int) -> None:
        """Record that it was stored."""
        if len(self._noted) >= MAX_REMEMBERED:
            self._noted = {}
        self._noted[worker] = ticks
