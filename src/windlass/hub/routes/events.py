"""Live events: streams of the journal and of one run."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter

from windlass import wire
from windlass.errors import BadInput
from windlass.hub.events.frames import MEDIA_TYPE, Place, RunPlace
from windlass.hub.events.streams import JournalStream, RunStream, Stream
from windlass.hub.requests import HubRequest
from windlass.machine import ENDED
from windlass.model import Run, State

Seen = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", description="The id of the last event that was seen; what came behind it is sent.")
]
SeenInQuery = Annotated[str | None, QueryParameter(name="last_event_id", description="The same, for those who cannot send the header.")]


class Streamed(Response[str]):
    """An answer that is written by a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__("", media_type=MEDIA_TYPE)
        self._stream = stream

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        return self._stream


@get("/api/v1/events", opt={"scope": "read", "ticket": True}, media_type=MEDIA_TYPE, summary="What happens, as it happens")
async def follow_events(
    request: HubRequest,
    job: FromQuery[str | None] = None,
    queue: FromQuery[str | None] = None,
    in_state: Annotated[State | None, QueryParameter(name="state")] = None,
    last_event_id: Seen = None,
    seen: SeenInQuery = None,
) -> Streamed:
    last = last_event_id or seen
    wanted = (job, queue, None if in_state is None else in_state.value)
    return Streamed(JournalStream(request.hub.events, request.caller, wanted, Place.read(last) if last else None))


@get("/api/v1/runs/{run_id:str}/events", opt={"scope": "read", "ticket": True}, media_type=MEDIA_TYPE, summary="One run, as it goes on")
async def watch_run(
    request: HubRequest,
    run_id: FromPath[str],
    cursor: Annotated[
        int | None, QueryParameter(ge=0, le=2**53, description="Begin with the log lines behind this one; 0 is all of them.")
    ] = None,
    last_event_id: Seen = None,
    seen: SeenInQuery = None,
) -> Streamed:
    run = await request.hub.engine.get(run_id)
    return Streamed(RunStream(request.hub.events, request.caller, run, _place(run, cursor, last_event_id or seen)))


def _place(run: Run, cursor: int | None, last: str | None) -> RunPlace:
    """Where to begin. Without a word: the state it is in, and its log, unless it has ended already."""
    if last:
        place = RunPlace.read(last)
        if place.rev > run.rev:
            raise BadInput(f"Run {run.id} has not got so far as {last}.", hint="Send the id of an event of this very run, or none.")
        return place
    if cursor is None:
        cursor = wire.line_cursor(run.attempt + 1, 0) if run.state in ENDED else 0
    return RunPlace(run.rev - 1, cursor)


HANDLERS: list[Any] = [follow_events, watch_run]
