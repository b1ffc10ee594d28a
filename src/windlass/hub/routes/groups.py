"""Groups: runs that start and finish together."""

from __future__ import annotations

from typing import Any

from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody

from windlass import wire
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count, IdempotencyKey, request_key
from windlass.model import GroupStatus
from windlass.store.groups import RESULTS


@post("/api/v1/groups", status_code=202, opt={"scope": "submit"}, summary="Ask for a group of runs, all or none")
async def create_group(request: HubRequest, data: JSONBody[wire.CreateGroup], idempotency_key: IdempotencyKey = None) -> wire.GroupView:
    new = data.new_group(request.hub.clock.now(), request_key(request, idempotency_key, data))
    return wire.group_view(await request.engine.create_group(new, undefined=data.undefined))


@get("/api/v1/groups", opt={"scope": "read"}, summary="Groups, newest first")
async def list_groups(
    request: HubRequest, status: FromQuery[GroupStatus | None] = None, cursor: FromQuery[str | None] = None, count: Count = 100
) -> wire.GroupPage:
    found = await request.hub.engine.groups(status=status, after=cursor, count=count)
    return wire.GroupPage([wire.group_view(group) for group in found], found[-1].id if len(found) == count else None)


@get("/api/v1/groups/{group_id:str}", opt={"scope": "read"}, summary="One group")
async def get_group(request: HubRequest, group_id: FromPath[str]) -> wire.GroupView:
    return wire.group_view(await request.hub.engine.get_group(group_id))


@get("/api/v1/groups/{group_id:str}/runs", opt={"scope": "read"}, summary="The runs of a group, in the order in which they were given")
async def list_members(
    request: HubRequest, group_id: FromPath[str], cursor: FromQuery[str | None] = None, count: Count = 100
) -> wire.RunPage:
    runs = await request.hub.engine.members(group_id, after=cursor, count=count)
    return wire.RunPage([wire.run_view(run) for run in runs], runs[-1].id if len(runs) == count else None)


@post("/api/v1/groups/{group_id:str}/cancel", status_code=200, opt={"scope": "submit"}, summary="Cancel what has not ended of a group")
async def cancel_group(request: HubRequest, group_id: FromPath[str], data: JSONBody[wire.CancelRun | None] = None) -> wire.GroupView:
    reason = None if data is None else data.reason
    engine = request.act("cancel", f"group {group_id}")
    return wire.group_view(await engine.cancel_group(group_id, reason=reason, by=request.caller.who))


@post("/api/v1/groups/{group_id:str}/rerun", status_code=202, opt={"scope": "submit"}, summary="Run it again, as a new group")
async def rerun_group(request: HubRequest, group_id: FromPath[str], idempotency_key: IdempotencyKey = None) -> wire.GroupView:
    key = request_key(request, idempotency_key, ("rerun", group_id))
    return wire.group_view(await request.act("rerun", f"group {group_id}").rerun_group(group_id, key=key))


@get("/api/v1/runs/{run_id:str}/results", opt={"scope": ("read", "work")}, summary="What became of the runs it waited for")
async def list_results(
    request: HubRequest, run_id: FromPath[str], cursor: FromQuery[str | None] = None, count: Count = 100
) -> wire.Results:
    if not request.caller.may("read"):
        request.caller.check_holds(await request.hub.engine.get(run_id))
    found = await request.hub.engine.results(run_id, after=cursor, count=count)
    full = len(found) == count or sum(len((result.output or "").encode()) for result in found) >= RESULTS
    return wire.Results([wire.result_view(result) for result in found], found[-1].id if full else None)


HANDLERS: list[Any] = [create_group, list_groups, get_group, list_members, cancel_group, rerun_group, list_results]
