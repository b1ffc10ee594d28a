"""Schedules: rules that make runs."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, patch, post, put
from litestar.params import FromPath, FromQuery, JSONBody

from windlass import wire
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count, IdempotencyKey, answer_of, request_key


@get("/api/v1/schedules", opt={"scope": "read"}, summary="Schedules by key")
async def list_schedules(request: HubRequest, after: FromQuery[str] = "", count: Count = 100) -> wire.Schedules:
    found = await request.hub.engine.schedules(after=after, count=count)
    return wire.Schedules([wire.schedule_view(schedule) for schedule in found], found[-1].key if len(found) == count else None)


@get("/api/v1/schedules/{key:str}", opt={"scope": "read"}, summary="One schedule")
async def get_schedule(request: HubRequest, key: FromPath[str]) -> wire.ScheduleView:
    return wire.schedule_view(await request.hub.engine.get_schedule(key))


@put("/api/v1/schedules/{key:str}", opt={"scope": ("work", "admin")}, summary="Store a rule under a key; again: update it")
async def put_schedule(request: HubRequest, key: FromPath[str], data: JSONBody[wire.PutSchedule]) -> wire.ScheduleView:
    said = data.words()
    return wire.schedule_view(await request.act("schedule", f"schedule {key}").schedule(key, said.pop("job"), **said))


@patch("/api/v1/schedules/{key:str}", opt={"scope": "admin"}, summary="Edit a schedule")
async def patch_schedule(request: HubRequest, key: FromPath[str], data: JSONBody[wire.PatchSchedule]) -> wire.ScheduleView:
    return wire.schedule_view(await request.act("edit", f"schedule {key}").set_schedule(key, **data.fields()))


@delete("/api/v1/schedules/{key:str}", status_code=200, opt={"scope": "admin"}, summary="Forget a schedule; its runs stay")
async def remove_schedule(request: HubRequest, key: FromPath[str]) -> wire.Done:
    await request.act("remove", f"schedule {key}").remove_schedule(key)
    return wire.DONE


@post("/api/v1/schedules/{key:str}/trigger", status_code=202, opt={"scope": "submit"}, summary="Make a run of it now")
async def trigger_schedule(request: HubRequest, key: FromPath[str], idempotency_key: IdempotencyKey = None) -> wire.CreatedRun:
    once = request_key(request, idempotency_key, ("trigger", key))
    return await answer_of(request, await request.act("trigger", f"schedule {key}").trigger(key, once=once))


@get("/api/v1/schedules/{key:str}/preview", opt={"scope": "read"}, summary="Its coming instants")
async def preview_schedule(
    request: HubRequest, key: FromPath[str], start: FromQuery[str | None] = None, count: Count = 20
) -> wire.Previews:
    engine = request.hub.engine
    schedule = await engine.get_schedule(key)
    found = await engine.preview(key, start=wire.maybe_heard(start, "start"), count=count)
    return wire.Previews(
        wire.schedule_view(schedule).in_words, [wire.PreviewView(wire.told(at.at), at.local, at.clock_changes) for at in found]
    )


@get("/api/v1/schedules/{key:str}/skips", opt={"scope": "read"}, summary="What was due and did not become a run")
async def list_skips(request: HubRequest, key: FromPath[str], count: Count = 100) -> wire.Skips:
    return wire.Skips([wire.skipped_view(skipped) for skipped in await request.hub.engine.skips(key, count=count)])


HANDLERS: list[Any] = [
    list_schedules, get_schedule, put_schedule, patch_schedule, remove_schedule, trigger_schedule, preview_schedule, list_skips,
]  # fmt: skip
