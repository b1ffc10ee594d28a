"""Jobs: the definitions from which runs are created."""

from __future__ import annotations

from typing import Any

from windlass.api.requests import DefineJob
from windlass.api.views import JOB
from windlass.hub.requests import HubRequest


async def define(request: HubRequest, name: str, data: DefineJob) -> Any:
    known, version = await request.hub.engine.find_job(name), request.engine.version_of(data.schema)
    words = (data.handler or name, data.payload, data.options)
    engine = request.engine
    if known is None or (known.handler, known.payload, known.options) != words:
        engine = request.act("define", f"job {name}")  # every start of a worker repeats its definitions, which is no change to audit
    elif known.schema == (version and version.schema):
        return JOB.show(known)
    return JOB.show(await engine.define(name, handler=words[0], payload=data.payload, options=data.options, schema=data.schema))


HANDLERS = {"define": define}
