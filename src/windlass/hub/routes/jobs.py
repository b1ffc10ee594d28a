"""Jobs: the definitions from which runs are created."""

from __future__ import annotations

from typing import Any

from windlass.api.requests import DefineJob
from windlass.api.views import JOB
from windlass.hub.requests import HubRequest


async def define(request: HubRequest, name: str, data: DefineJob) -> Any:
    record, version = await request.hub.engine.find_job(name), request.engine.version_of(data.schema)
    words = (data.handler or name, data.payload, data.options, data.description or None)
    engine = request.engine
    if record is None or (record.handler, record.payload, record.options, record.description) != words:
        engine = request.act("define", f"job {name}")  # every start of a worker repeats its definitions, which is no change to audit
    elif record.schema == (version and version.schema):
        return JOB.show(record)
    handler, payload, options, description = words
    job = await engine.define(name, handler=handler, payload=payload, options=options, schema=data.schema, description=description)
    return JOB.show(job)


HANDLERS = {"define": define}
