"""Live events: streams of the journal and of one run."""

from __future__ import annotations

from windlass.api.views import line_cursor
from windlass.errors import BadInput
from windlass.hub.events.frames import NATIVE, Feed, RunOffset
from windlass.hub.events.streams import JournalStream, RunStream
from windlass.hub.requests import HubRequest
from windlass.machine import ENDED
from windlass.model import Run, State


async def follow_events(
    request: HubRequest, job: str | None, queue: str | None, state: State | None, last_event_id: str | None, seen: str | None
) -> JournalStream:
    feed = Feed(NATIVE, (job, queue, None if state is None else state.value))
    return JournalStream(request.hub.events, request.caller, feed, last_event_id or seen)


async def watch_run(request: HubRequest, run_id: str, cursor: int | None, last_event_id: str | None, seen: str | None) -> RunStream:
    run = await request.hub.engine.get(run_id)
    return RunStream(request.hub.events, request.caller, run, _place(run, cursor, last_event_id or seen))


def _place(run: Run, cursor: int | None, last: str | None) -> RunOffset:
    """The starting offset. By default: the current state and the log, unless the run has already ended."""
    if last:
        place = RunOffset.read(last)
        if place.rev > run.rev:
            raise BadInput(f"Run {run.id} has no event {last} yet.", hint="Send the id of an event of this very run, or none.")
        return place
    if cursor is None:
        cursor = line_cursor(run.attempt + 1, 0) if run.state in ENDED else 0
    return RunOffset(run.rev - 1, cursor)


HANDLERS = {"follow_events": follow_events, "watch_run": watch_run}
