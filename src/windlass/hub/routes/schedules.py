"""Schedules: their coming instants."""

from __future__ import annotations

from windlass.api.answers import Previews
from windlass.api.views import PREVIEW, SCHEDULE
from windlass.hub.requests import HubRequest


async def preview(request: HubRequest, key: str, start: int | None, count: int) -> Previews:
    engine = request.hub.engine
    schedule = await engine.get_schedule(key)
    instants = await engine.preview(key, start=start, count=count)
    return Previews(SCHEDULE.show(schedule).in_words, [PREVIEW.show(instant) for instant in instants])


HANDLERS = {"preview": preview}
