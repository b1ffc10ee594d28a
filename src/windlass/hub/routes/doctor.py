"""What is wrong, and what to do about it."""

from __future__ import annotations

from typing import Any

from litestar import get

from windlass import wire
from windlass.hub.doctor import examine
from windlass.hub.requests import HubRequest


@get("/api/v1/doctor", opt={"scope": "admin"}, summary="What is wrong, and what to do about it")
async def get_doctor(request: HubRequest) -> wire.Diagnosis:
    return wire.Diagnosis(await examine(request.hub))


HANDLERS: list[Any] = [get_doctor]
