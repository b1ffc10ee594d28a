"""What people set for all: pauses, queues, resources, retention."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec.structs import asdict

from windlass import wire
from windlass.gates import gate_key
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count


@post("/api/v1/pause", status_code=200, opt={"scope": "admin"}, summary="Hand nothing out of a queue, of a job, or at all")
async def pause(request: HubRequest, data: JSONBody[wire.PauseAsked]) -> wire.PauseView:
    engine = request.act("pause", f"{data.scope} {data.name}".rstrip())
    return wire.pause_view(await engine.pause(data.scope, data.name, reason=data.reason, by=request.caller.who))


@post("/api/v1/resume", status_code=200, opt={"scope": "admin"}, summary="Hand out again")
async def resume(request: HubRequest, data: JSONBody[wire.ResumeAsked]) -> wire.Resumed:
    return wire.Resumed(await request.act("resume", f"{data.scope} {data.name}".rstrip()).resume(data.scope, data.name))


@get("/api/v1/pauses", opt={"scope": "read"}, summary="What is paused")
async def list_pauses(request: HubRequest) -> wire.Pauses:
    return wire.Pauses([wire.pause_view(pause) for pause in await request.hub.engine.pauses()])


@get("/api/v1/queues", opt={"scope": "read"}, summary="Queues for which something is set")
async def list_queues(request: HubRequest) -> wire.Queues:
    return wire.Queues(await request.hub.engine.queues())


@put("/api/v1/queues/{name:str}", opt={"scope": "admin"}, summary="Let waiting count in a queue")
async def put_queue(request: HubRequest, name: FromPath[str], data: JSONBody[wire.PutQueue]) -> wire.QueueView:
    await request.act("set", f"queue {name}").set_queue(name, ageing=data.ageing)
    return wire.QueueView(name, data.ageing)


@get("/api/v1/resources", opt={"scope": "read"}, summary="Resources, and how much of each is occupied")
async def list_resources(request: HubRequest) -> wire.Resources:
    return wire.Resources([wire.resource_view(state) for state in await request.hub.engine.resources()])


@get("/api/v1/resources/{name:str}", opt={"scope": "read"}, summary="One resource")
async def get_resource(request: HubRequest, name: FromPath[str]) -> wire.ResourceView:
    return wire.resource_view(await request.hub.engine.get_resource(name))


@put("/api/v1/resources/{name:str}", opt={"scope": ("work", "admin")}, summary="Say how much there is of a resource")
async def put_resource(request: HubRequest, name: FromPath[str], data: JSONBody[wire.PutResource]) -> wire.ResourceView:
    said = asdict(data)
    if said.pop("new"):
        await request.act("add", f"resource {name}").add_resource(name, **said)
    else:
        request.caller.check_scope("admin")  # a worker says what its own code needs, and changes nothing that is set
        await request.act("set", f"resource {name}").set_resource(name, **said)
    return wire.resource_view(await request.hub.engine.get_resource(name))


@delete("/api/v1/resources/{name:str}", status_code=200, opt={"scope": "admin"}, summary="Forget a resource that nobody uses")
async def drop_resource(request: HubRequest, name: FromPath[str]) -> wire.Done:
    await request.act("remove", f"resource {name}").drop_resource(name)
    return wire.DONE


@get("/api/v1/resources/{name:str}/occupants", opt={"scope": "read"}, summary="Who occupies a resource, or one key of it")
async def list_occupants(
    request: HubRequest, name: FromPath[str], key: FromQuery[str | None] = None, count: Count = 100
) -> wire.OccupantsView:
    return wire.occupants_view(await request.hub.engine.occupants(gate_key(name, key), count=count))


@get("/api/v1/retention", opt={"scope": "read"}, summary="How long ended runs are kept")
async def get_retention(request: HubRequest) -> wire.RetentionView:
    return wire.retention_view(await request.hub.engine.retention())


@put("/api/v1/retention", opt={"scope": "admin"}, summary="Say how long ended runs are kept")
async def put_retention(request: HubRequest, data: JSONBody[wire.PutRetention]) -> wire.RetentionView:
    engine = request.act("set", "retention")
    return wire.retention_view(await engine.set_retention(**asdict(data), by=request.caller.who))


@get("/api/v1/lanes", opt={"scope": "read"}, summary="Lanes by number, when each was last used, and whose token made it")
async def list_lanes(request: HubRequest, after: FromQuery[int] = 0, count: Count = 100) -> wire.LanesView:
    lanes = await request.hub.engine.all_lanes(after=after, count=count)
    return wire.LanesView([wire.lane_view(lane) for lane in lanes], lanes[-1].id if len(lanes) == count else None)


@delete("/api/v1/lanes/{lane:int}", status_code=200, opt={"scope": "admin"}, summary="Remove a lane that has no unfinished runs")
async def drop_lane(request: HubRequest, lane: FromPath[int]) -> wire.Done:
    await request.act("remove", f"lane {lane}").drop_lane(lane)
    return wire.DONE


HANDLERS: list[Any] = [
    pause, resume, list_pauses, list_queues, put_queue, list_resources, get_resource, put_resource, drop_resource, list_occupants,
    get_retention, put_retention,
    list_lanes, drop_lane,
]  # fmt: skip
