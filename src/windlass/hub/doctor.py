"""What is wrong, as a hub sees it: with the store, and with itself."""

from __future__ import annotations

from windlass.engine import Finding
from windlass.engine.doctor.findings import problem
from windlass.engine.doctor.workers import BLOCKED, blocked_loop
from windlass.hub.core import Hub


async def examine(hub: Hub) -> list[Finding]:
    """What the engine finds, after what is wrong with this hub."""
    parts = [
        problem("hub_part", f"A part of this hub is not ready, {part}: {reason}", "Look into the hub's log.", part=part)
        for part, reason in hub.problems().items()
    ]
    blocked = [blocked_loop("this hub", hub.lag.ms)] if hub.lag.ms > BLOCKED else []
    return [*parts, *blocked, *await hub.engine.doctor()]
