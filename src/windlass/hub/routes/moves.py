"""The order of a queue, changed by hand."""

from __future__ import annotations

from typing import Any

from litestar import post
from litestar.params import FromPath, JSONBody
from msgspec.structs import asdict

from windlass import wire
from windlass.hub.requests import HubRequest


@post(
    "/api/v1/runs/{run_id:str}/move", status_code=200, opt={"scope": "submit"}, summary="Give a run that waits another place in its queue"
)
async def move_run(request: HubRequest, run_id: FromPath[str], data: JSONBody[wire.MoveRun]) -> wire.RunView:
    engine = request.act("move", f"run {run_id}")
    return wire.run_view(await engine.move(run_id, by=request.caller.who, **asdict(data)))


HANDLERS: list[Any] = [move_run]
