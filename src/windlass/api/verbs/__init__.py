"""The native API: every verb is a row. The engine and both clients have `Verbs`; the tables have all routes of a hub."""

from __future__ import annotations

from typing import Annotated, Protocol

from msgspec import Meta

from windlass.api.answers import Health
from windlass.api.gives import DONE, Gives
from windlass.api.rows import GET, Param, Verb, rows_of
from windlass.api.verbs.access import SESSIONS, AccessVerbs
from windlass.api.verbs.groups import GroupVerbs
from windlass.api.verbs.jobs import JobVerbs
from windlass.api.verbs.limits import ControlVerbs, SlotVerbs
from windlass.api.verbs.runs import CREATE_RUN, STATE, RunVerbs
from windlass.api.verbs.schedules import ScheduleVerbs
from windlass.api.verbs.webhooks import WebhookVerbs
from windlass.api.verbs.workers import PORT, WorkerVerbs
from windlass.clock import Clock
from windlass.model import Limits

API = "/api/v1"
EVENT_STREAM = "text/event-stream"


class Verbs(
    JobVerbs, RunVerbs, GroupVerbs, ScheduleVerbs, ControlVerbs, SlotVerbs, WorkerVerbs, AccessVerbs, WebhookVerbs, Protocol
):  # fmt: skip
    """All public verbs, on a store or through a hub."""

    clock: Clock
    limits: Limits

    async def close(self) -> None:
        """Close the connections."""


_STREAM = Gives(None, media_type=EVENT_STREAM)
_SEEN = Param("Last-Event-ID", header=True, description="The id of the last event that was received; later ones are sent.")
_SEEN_IN_QUERY = Param("last_event_id", word="seen", description="The same, for clients that cannot send the header.")
_LINES_FROM = Param(
    "cursor", Annotated[int, Meta(ge=0, le=2**53)] | None, description="Start after the log line with this cursor; 0 is all."
)

EVENTS = (
    Verb(
        "follow_events", GET, "/events", "All changes, as they happen", _STREAM,
        scope="read", ticket=True, query=(Param("job"), Param("queue"), STATE, _SEEN, _SEEN_IN_QUERY),
    ),
    Verb(
        "watch_run", GET, "/runs/{run_id}/events", "The changes of one run, as they happen", _STREAM,
        scope="read", ticket=True, query=(_LINES_FROM, _SEEN, _SEEN_IN_QUERY),
    ),
)  # fmt: skip

NATIVE = (
    Verb("describe", GET, "/openapi.json", "A document.", Gives(None), scope=None, described=False),
    *rows_of(JobVerbs),
    CREATE_RUN,
    *rows_of(RunVerbs, GroupVerbs, ControlVerbs, SlotVerbs, ScheduleVerbs),
    *PORT,
    *EVENTS,
    *rows_of(AccessVerbs),
    *SESSIONS,
    *rows_of(WebhookVerbs, WorkerVerbs),
)
"""The routes below /api/v1."""

OUTSIDE = (
    Verb("healthz", GET, "/healthz", "Whether the process lives", DONE, scope=None),
    Verb("readyz", GET, "/readyz", "Whether the hub is ready, and which of its parts are not", Gives(Health), scope=None),
    Verb("scrape", GET, "/metrics", "A document.", Gives(None), scope="read", described=False),
    Verb("index", GET, "/", "A document.", Gives(None), scope=None, described=False),
    Verb("page_file", GET, "/page/{name}", "A document.", Gives(None), scope=None, described=False),
)
"""Health, metrics and the page."""
