"""Runs: asked for, looked at, changed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from litestar import get, patch, post
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter
from msgspec.structs import replace

from windlass import wire
from windlass.errors import BadInput, WindlassError
from windlass.hub.requests import HubRequest, fitting
from windlass.model import Created, Key, NewRun, State

Count = Annotated[int, QueryParameter(ge=1, le=1_000, description="How many at most.")]
IdempotencyKey = Annotated[str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200)]
_canonical = msgspec.json.Encoder(order="sorted").encode


async def answer_of(request: HubRequest, created: Created) -> wire.CreatedRun:
    """What was made, with the run where it can be read: it is made in any case, and must not be asked for again.

    A run that another call made is for those who may read.
    """
    shown = created.created or (request.caller.may("read") and not created.pruned)
    try:
        return wire.created_view(created, await request.hub.engine.get(created.id) if shown else None)
    except WindlassError:
        return wire.created_view(created, None)


def request_key(request: HubRequest, name: str | None, asked: Any) -> Key | None:
    """The key of a request, if it has one: the same key and content again is the same run."""
    if name is None:
        return None
    content = blake2b(_canonical(asked), digest_size=16).hexdigest()
    period, scope = request.hub.settings.idempotency, fitting(f"http:{request.caller.principal.name}")
    return Key(name, lasts="time", period=period, scope=scope, on_duplicate="compare", content=content)


def _keyed(request: HubRequest, new: NewRun, asked: wire.CreateRun, name: str | None) -> NewRun:
    if new.key is None:
        return replace(new, key=request_key(request, name, asked))
    if name is not None:
        raise BadInput("Both a key and the header Idempotency-Key are given.", hint="The run's own key is enough; leave the header out.")
    return replace(new, key=request.own(new.key))


@post("/api/v1/runs", status_code=202, opt={"scope": "submit"}, summary="Ask for a run")
async def create_run(request: HubRequest, data: JSONBody[wire.CreateRun], idempotency_key: IdempotencyKey = None) -> wire.CreatedRun:
    engine = request.engine
    new = _keyed(request, data.new_run(request.hub.clock.now()), data, idempotency_key)
    (created,) = await engine.create([new], undefined=data.undefined)
    return await answer_of(request, created)


@post("/api/v1/runs/batch", status_code=202, opt={"scope": "submit"}, summary="Ask for many runs, all or none")
async def create_runs(request: HubRequest, data: JSONBody[wire.CreateRuns], idempotency_key: IdempotencyKey = None) -> wire.CreatedRuns:
    now = request.hub.clock.now()
    keys = [None if idempotency_key is None or asked.key else f"{idempotency_key}/{index}" for index, asked in enumerate(data.runs)]
    news = [_keyed(request, asked.new_run(now), asked, key) for asked, key in zip(data.runs, keys, strict=True)]
    waits = {asked.undefined for asked in data.runs}
    if len(waits) > 1:
        raise BadInput("Some runs may wait for an undefined job and some may not.", hint="Send them in two calls.")
    created: list[Created] = await request.engine.create(news, undefined=waits.pop() if waits else "refuse")
    return wire.CreatedRuns([wire.created_view(item, None) for item in created])


@get("/api/v1/runs", opt={"scope": "read"}, summary="A page of runs")
async def list_runs(
    request: HubRequest,
    job: FromQuery[str | None] = None,
    queue: FromQuery[str | None] = None,
    in_state: Annotated[State | None, QueryParameter(name="state")] = None,
    cursor: FromQuery[str | None] = None,
    count: Count = 100,
) -> wire.RunPage:
    page = await request.hub.engine.runs(job=job, queue=queue, state=in_state, cursor=cursor, count=count)
    return wire.RunPage([wire.run_view(run) for run in page.runs], page.cursor)


@get("/api/v1/runs/{run_id:str}", opt={"scope": "read"}, summary="One run")
async def get_run(request: HubRequest, run_id: FromPath[str]) -> wire.RunView:
    return wire.run_view(await request.hub.engine.get(run_id))


@patch("/api/v1/runs/{run_id:str}", opt={"scope": "submit"}, summary="Change a run that waits")
async def patch_run(request: HubRequest, run_id: FromPath[str], data: JSONBody[wire.PatchRun]) -> wire.RunView:
    engine = request.act("patch", f"run {run_id}")
    return wire.run_view(await engine.patch(run_id, by=request.caller.who, **data.fields()))


@post("/api/v1/runs/{run_id:str}/cancel", status_code=200, opt={"scope": "submit"}, summary="Cancel a run")
async def cancel_run(request: HubRequest, run_id: FromPath[str], data: JSONBody[wire.CancelRun | None] = None) -> wire.RunView:
    engine = request.act("cancel", f"run {run_id}")
    return wire.run_view(await engine.cancel(run_id, reason=None if data is None else data.reason, by=request.caller.who))


@post("/api/v1/runs/{run_id:str}/rerun", status_code=202, opt={"scope": "submit"}, summary="Run it again, as a new run")
async def rerun_run(request: HubRequest, run_id: FromPath[str], idempotency_key: IdempotencyKey = None) -> wire.CreatedRun:
    key = request_key(request, idempotency_key, ("rerun", run_id))
    return await answer_of(request, await request.act("rerun", f"run {run_id}").rerun(run_id, key=key))


@get("/api/v1/runs/{run_id:str}/attempts", opt={"scope": "read"}, summary="All attempts of a run")
async def list_attempts(request: HubRequest, run_id: FromPath[str]) -> wire.Attempts:
    return wire.Attempts([wire.attempt_view(attempt) for attempt in await request.hub.engine.attempts(run_id)])


@get("/api/v1/runs/{run_id:str}/history", opt={"scope": "read"}, summary="Every change of state of a run")
async def list_history(
    request: HubRequest, run_id: FromPath[str], after: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0, count: Count = 1_000
) -> wire.History:
    return wire.History([wire.event_of(entry) for entry in await request.hub.engine.history(run_id, after=after, count=count)])


@get("/api/v1/runs/{run_id:str}/logs", opt={"scope": "read"}, summary="What its handler wrote")
async def list_lines(
    request: HubRequest, run_id: FromPath[str], after: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0, count: Count = 100
) -> wire.Lines:
    lines = await request.hub.engine.lines(run_id, after=wire.line_place(after), count=count)
    return wire.Lines([wire.line_view(line) for line in lines])


@get("/api/v1/runs/{run_id:str}/why", opt={"scope": "read"}, summary="What holds a run back")
async def why_run(request: HubRequest, run_id: FromPath[str]) -> wire.Why:
    return wire.Why(await request.hub.engine.why(run_id))


HANDLERS: list[Any] = [
    create_run, create_runs, list_runs, get_run, patch_run, cancel_run, rerun_run, list_attempts, list_history, list_lines, why_run,
]  # fmt: skip
