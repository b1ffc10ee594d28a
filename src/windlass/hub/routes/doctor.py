"""Findings, and what to do about them."""

from __future__ import annotations

from typing import Any

from windlass.hub.doctor import examine
from windlass.hub.requests import HubRequest


async def doctor(request: HubRequest) -> Any:
    return request.verb.gives.form(await examine(request.hub))


HANDLERS = {"doctor": doctor}
