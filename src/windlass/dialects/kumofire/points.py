"""The fault points between what storages and queues do, at which a test can kill a process."""

from __future__ import annotations

from windlass.faults import FAULTS

POINTS = ("kumofire.marked", "kumofire.sent", "kumofire.running", "kumofire.handled")
"""After a run was marked as sent, after its message was sent, before its handler begins, and after it has returned."""


def reach(point: str) -> None:
    """Pass one of them."""
    if FAULTS.on:
        FAULTS.hit(f"kumofire.{point}")
