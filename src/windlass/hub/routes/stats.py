"""Workers, counts, and how the hub itself is doing."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Response, delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from windlass import wire
from windlass.errors import StoreError
from windlass.hub import metrics
from windlass.hub.core import Hub
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count

Minutes = Annotated[int, QueryParameter(ge=1, le=1_440, description="How many minutes, up to now.")]

PATIENCE = 2.0
"""Seconds in which a store must answer to be called ready."""


@get("/api/v1/workers", opt={"scope": "read"}, summary="Workers by name, and what they hold")
async def list_workers(request: HubRequest, after: FromQuery[str] = "", count: Count = 100) -> wire.Workers:
    workers = await request.hub.engine.workers(after=after, count=count)
    return wire.Workers([wire.worker_view(worker) for worker in workers], workers[-1].info.name if len(workers) == count else None)


@delete("/api/v1/workers/{name:str}", status_code=200, opt={"scope": "admin"}, summary="Forget a worker that is silent")
async def drop_worker(request: HubRequest, name: FromPath[str]) -> wire.Done:
    await request.act("remove", f"worker {name}").drop_worker(name)
    return wire.DONE


@get("/api/v1/stats", opt={"scope": "read"}, summary="How much there is and was")
async def get_stats(request: HubRequest, minutes: Minutes = 60) -> wire.StatsView:
    return wire.stats_view(await request.hub.engine.stats(minutes=minutes))


@post("/api/v1/worker/metrics", status_code=200, opt={"scope": "work"}, summary="A worker tells what it measures")
async def tell_metrics(request: HubRequest, data: JSONBody[wire.TellMetrics]) -> wire.Done:
    request.caller.check_worker(data.worker)
    await request.hub.engine.worker_metrics(data.worker, data.metrics)
    return wire.DONE


# The hub itself


@get("/healthz", opt={"scope": None}, summary="Whether the process lives")
async def healthz() -> wire.Done:
    return wire.DONE


@get("/readyz", opt={"scope": None}, summary="Whether the hub is ready, and which of its parts are not")
async def readyz(request: HubRequest) -> Response[wire.Health]:
    missing = await _missing(request.hub)
    return Response(wire.Health(not missing, missing), status_code=503 if missing else 200)


async def _missing(hub: Hub) -> tuple[str, ...]:
    """The names of what is not ready; the reasons are in the log, for not everybody may read them."""
    missing = set(hub.problems())
    try:
        await asyncio.wait_for(hub.engine.tail_end(), PATIENCE)
    except (StoreError, TimeoutError):
        missing.add("store")
    return tuple(sorted(missing))


@get("/metrics", opt={"scope": "read"}, include_in_schema=False)
async def scrape(request: HubRequest) -> Response[bytes]:
    hub = request.hub
    runs = metrics.of_runs(await hub.engine.totals(count=metrics.PAIRS))
    workers = metrics.of_workers(await hub.engine.living())
    about_hub = metrics.of_hub(hub.requests, streams=hub.events.open, waiting=hub.waiting, missing=sorted(hub.problems()))
    body, media_type = metrics.text(request.headers.get("accept", ""), runs, workers, about_hub, metrics.of_process())
    return Response(body, media_type=media_type)


HANDLERS: list[Any] = [list_workers, drop_worker, get_stats, tell_metrics, healthz, readyz, scrape]
