"""Direct calls: the next slot of a resource, ahead of every queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from msgspec.structs import replace

from windlass.api.requests import RenewSlot, ReserveSlot
from windlass.api.views import SLOT
from windlass.engine import checks
from windlass.hub.requests import HubRequest
from windlass.model import Slot


async def reserve(request: HubRequest, data: ReserveSlot) -> Any:
    how: dict[str, Any] = {"slot_id": data.id, "token": data.token, "actor": request.caller.actor}
    with _waiting(request, data.wait) as wait:
        slot = await request.hub.engine.reserve(data.resource, key=data.key, weight=data.weight, lease=data.lease, **how)
        return _own(await _turn(request, slot, data.lease, wait))


async def renew(request: HubRequest, slot_id: str, data: RenewSlot) -> Any:
    with _waiting(request, data.wait) as wait:
        slot = await request.hub.engine.renew(slot_id, data.token, lease=data.lease)
        return _own(await _turn(request, slot, data.lease, wait))


@contextmanager
def _waiting(request: HubRequest, wait: int) -> Iterator[float]:
    """The seconds for which a request may wait, once there is room for one more waiting request."""
    hub = request.hub
    seconds = min(checks.integer(wait, "wait", 0, hub.engine.limits.duration), hub.settings.longest_wait) / 1000
    with hub.waits.for_one(request.caller) if seconds else nullcontext():
        yield seconds


async def _turn(request: HubRequest, slot: Slot, lease: int, wait: float) -> Slot:
    """The slot once it is held, or after this many seconds. It is not kept for a client that has gone."""
    if slot.state == "held" or not wait:
        return slot
    turn = request.hub.engine.turn(slot.id, slot.token, lease=lease, wait=wait, may=request.admit)
    return await request.unless_gone(turn) or slot


def _own(slot: Slot) -> Any:
    """A slot as its owner gets it."""
    return replace(SLOT.show(slot), token=slot.token)


HANDLERS = {"reserve": reserve, "renew": renew}
