"""Jobs: what runs are made from."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, put
from litestar.params import FromPath, FromQuery, JSONBody

from windlass import wire
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count


@get("/api/v1/jobs", opt={"scope": "read"}, summary="Definitions by name")
async def list_jobs(request: HubRequest, after: FromQuery[str] = "", count: Count = 100) -> wire.Jobs:
    jobs = await request.hub.engine.jobs(after=after, count=count)
    return wire.Jobs([wire.job_view(job) for job in jobs], jobs[-1].name if len(jobs) == count else None)


@get("/api/v1/jobs/{name:str}", opt={"scope": "read"}, summary="One definition")
async def get_job(request: HubRequest, name: FromPath[str]) -> wire.JobView:
    return wire.job_view(await request.hub.engine.get_job(name))


@put("/api/v1/jobs/{name:str}", opt={"scope": ("work", "admin")}, summary="Define a job")
async def define_job(request: HubRequest, name: FromPath[str], data: JSONBody[wire.DefineJob]) -> wire.JobView:
    known, told = await request.hub.engine.find_job(name), request.engine.told(data.schema)
    words = (data.handler or name, data.payload, data.options)
    engine = request.engine
    if known is None or (known.handler, known.payload, known.options) != words:
        engine = request.act("define", f"job {name}")  # every start of a worker says it again, and that is no act
    elif known.schema == (told and told.schema):
        return wire.job_view(known)
    made = await engine.define(name, handler=words[0], payload=data.payload, options=data.options, schema=data.schema)
    return wire.job_view(made)


@delete("/api/v1/jobs/{name:str}", status_code=200, opt={"scope": "admin"}, summary="Forget a job that nobody has defined")
async def drop_job(request: HubRequest, name: FromPath[str]) -> wire.Done:
    await request.act("remove", f"job {name}").drop_job(name)
    return wire.DONE


HANDLERS: list[Any] = [list_jobs, get_job, define_job, drop_job]
