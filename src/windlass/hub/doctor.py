"""The doctor of a hub: findings about the store, and about the hub itself."""

from __future__ import annotations

from windlass.answers import Finding
from windlass.doctor.findings import problem
from windlass.doctor.workers import BLOCKED, blocked_loop
from windlass.hub.core import Hub


async def examine(hub: Hub) -> list[Finding]:
    """The engine's findings, after those about this hub."""
    parts = [
        problem("hub_part", f"A part of this hub is not ready, {part}: {reason}", "Look into the hub's log.", part=part)
        for part, reason in hub.problems().items()
    ]
    blocked = [blocked_loop("this hub", hub.lag.ms)] if hub.lag.ms > BLOCKED else []
    return [*parts, *blocked, *await hub.engine.doctor()]
