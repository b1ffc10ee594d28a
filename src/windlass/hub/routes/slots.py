"""Direct calls: the next slot of a resource, ahead of every queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from windlass import wire
from windlass.engine import checks
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count
from windlass.model import Slot


@post("/api/v1/slots", status_code=200, opt={"scope": "submit"}, summary="Ask for the next slot of a resource, or wait for it")
async def reserve(request: HubRequest, data: JSONBody[wire.ReserveSlot]) -> wire.SlotView:
    how: dict[str, Any] = {"slot_id": data.id, "token": data.token, "who": request.caller.who}
    with _waiting(request, data.wait) as wait:
        slot = await request.hub.engine.reserve(data.resource, key=data.key, weight=data.weight, lease=data.lease, **how)
        return wire.slot_view(await _turn(request, slot, data.lease, wait), own=True)


@post("/api/v1/slots/{slot_id:str}/renew", status_code=200, opt={"scope": "submit"}, summary="Keep a slot, or wait for its turn")
async def renew(request: HubRequest, slot_id: FromPath[str], data: JSONBody[wire.RenewSlot]) -> wire.SlotView:
    with _waiting(request, data.wait) as wait:
        slot = await request.hub.engine.renew(slot_id, data.token, lease=data.lease)
        return wire.slot_view(await _turn(request, slot, data.lease, wait), own=True)


@contextmanager
def _waiting(request: HubRequest, wait: int) -> Iterator[float]:
    """The seconds for which a request may wait, once there is room for one more that does."""
    hub = request.hub
    seconds = min(checks.integer(wait, "wait", 0, hub.engine.limits.duration), hub.settings.longest_wait) / 1000
    with hub.waits.for_one(request.caller) if seconds else nullcontext():
        yield seconds


async def _turn(request: HubRequest, slot: Slot, lease: int, wait: float) -> Slot:
    """The slot when its turn has come, or so many seconds have passed. It is not kept for one who is gone."""
    if slot.state == "held" or not wait:
        return slot
    turn = request.hub.engine.turn(slot.id, slot.token, lease=lease, wait=wait, may=request.admit_again)
    return await request.unless_gone(turn) or slot


@post("/api/v1/slots/{slot_id:str}/release", status_code=200, opt={"scope": "submit"}, summary="Give a slot back, or leave the line")
async def release(request: HubRequest, slot_id: FromPath[str], data: JSONBody[wire.ReleaseSlot]) -> wire.Released:
    return wire.Released(await request.hub.engine.release(slot_id, data.token))


@get("/api/v1/slots", opt={"scope": "read"}, summary="Direct calls that hold something or wait, in their order")
async def list_slots(request: HubRequest, after: Annotated[int, QueryParameter(ge=0, le=2**53)] = 0, count: Count = 100) -> wire.Slots:
    found = await request.hub.engine.slots(after=after, count=count)
    return wire.Slots([wire.slot_view(slot) for slot in found], found[-1].seq if len(found) == count else None)


HANDLERS: list[Any] = [reserve, renew, release, list_slots]
