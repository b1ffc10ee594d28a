"""Resources: a worker may add the ones its code needs, an operator may change them."""

from __future__ import annotations

from typing import Any

from windlass.api.requests import PutResource
from windlass.api.views import OCCUPANTS, RESOURCE
from windlass.hub.requests import HubRequest
from windlass.limiters import limiter_key


async def set_resource(request: HubRequest, name: str, data: PutResource) -> Any:
    words = data.arguments()
    if words.pop("new"):
        await request.act("add", f"resource {name}").add_resource(name, **words)
    else:
        request.caller.check_scope("admin")  # a worker adds what its own code needs, and changes no existing settings
        await request.audited({"name": name}).set_resource(name, **words)
    return RESOURCE.show(await request.hub.engine.get_resource(name))


async def occupants(request: HubRequest, name: str, key: str | None, count: int) -> Any:
    return OCCUPANTS.show(await request.hub.engine.occupants(limiter_key(name, key), count=count))


HANDLERS = {"set_resource": set_resource, "occupants": occupants}
