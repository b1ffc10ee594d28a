"""Groups: runs with rules for their order."""

from __future__ import annotations

from typing import Any

from windlass.api.requests import CreateGroup
from windlass.api.views import GROUP, RESULT
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import request_key
from windlass.store.records.groups import RESULTS


async def create_group(request: HubRequest, data: CreateGroup, idempotency_key: str | None) -> Any:
    new = data.new_group(request.hub.clock.now(), request_key(request, idempotency_key, data))
    return GROUP.show(await request.engine.create_group(new, undefined=data.undefined))


async def rerun_group(request: HubRequest, group_id: str, idempotency_key: str | None) -> Any:
    key = request_key(request, idempotency_key, ("rerun", group_id))
    return GROUP.show(await request.audited({"group_id": group_id}).rerun_group(group_id, key=key))


async def results(request: HubRequest, run_id: str, after: str | None, count: int) -> Any:
    if not request.caller.may("read"):
        request.caller.check_holds(await request.hub.engine.get(run_id))
    results = await request.hub.engine.results(run_id, after=after, count=count)
    full = len(results) == count or sum(len((result.output or "").encode()) for result in results) >= RESULTS
    return request.verb.gives.form([RESULT.show(result) for result in results], results[-1].id if full else None)


HANDLERS = {"create_group": create_group, "rerun_group": rerun_group, "results": results}
