"""Health and metrics of the hub itself."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response

from windlass.api.answers import Health
from windlass.api.gives import JSON, Done
from windlass.errors import StoreError
from windlass.hub import metrics
from windlass.hub.core import Hub
from windlass.hub.requests import HubRequest

PATIENCE = 2.0
"""Seconds in which a store must answer to count as ready."""


async def healthz(request: HubRequest) -> Done:
    return Done()


async def readyz(request: HubRequest) -> Response:
    missing = await _missing(request.hub)
    return Response(msgspec.json.encode(Health(not missing, missing)), 503 if missing else 200, media_type=JSON)


async def _missing(hub: Hub) -> tuple[str, ...]:
    """The names of parts that are not ready; the reasons are in the log, because not every caller may read them."""
    missing = set(hub.problems())
    try:
        await asyncio.wait_for(hub.engine.tail_end(), PATIENCE)
    except (StoreError, TimeoutError):
        missing.add("store")
    return tuple(sorted(missing))


async def scrape(request: HubRequest) -> Response:
    hub = request.hub
    runs = metrics.of_runs(await hub.engine.totals(count=metrics.PAIRS))
    workers = metrics.of_workers(await hub.engine.living())
    about_hub = metrics.of_hub(hub.requests, streams=hub.events.open, waiting=hub.waiting, missing=sorted(hub.problems()))
    body, media_type = metrics.text(request.headers.get("accept", ""), runs, workers, about_hub, metrics.of_process())
    return Response(body, media_type=media_type)


HANDLERS = {"healthz": healthz, "readyz": readyz, "scrape": scrape}
