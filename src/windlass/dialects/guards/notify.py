"""Addresses that are notified of the end of each execution of a job, and the events that they can choose."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.dialects.guards.errors import InvalidValueError
from windlass.dialects.guards.rules import check_names
from windlass.dialects.guards.words import JobRunStatus
from windlass.model import Notify

NAME = "guards"
"""The name of the webhook format."""
EVENT_OF = {status: f"job.run.{status.value.lower()}" for status in JobRunStatus}
"""The event of each end of an execution."""
EVENTS = tuple(EVENT_OF.values())


def notify_of(url: str | None, events: Sequence[str] | None) -> Notify | None:
    """The address of a new job, as the engine keeps it."""
    if url is None:
        if events is not None:
            raise InvalidValueError("webhook_events", "There are webhook_events without a webhook_url.", hint="Give both, or none.")
        return None
    return Notify(url, NAME, None if events is None else check_names(events, "webhook_events", "event", EVENTS))
