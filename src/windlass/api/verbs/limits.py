"""Settings of operators: pauses, queues, resources, retention, lanes; and direct calls."""

from __future__ import annotations

from typing import Protocol

from windlass.answers import Occupants, ResourceState, Retention
from windlass.api.answers import QueueView
from windlass.api.gives import DONE, Gives, field, listed, one, paged
from windlass.api.requests import PauseAsked, PutQueue, PutResource, PutRetention, ReleaseSlot, RenewSlot, ReserveSlot, ResumeAsked
from windlass.api.rows import AFTER_NUMBER, COUNT, DELETE, GET, POST, PUT, ByRow, Param, verb
from windlass.api.views import LANE, OCCUPANTS, PAUSE, RESOURCE, RETENTION, SLOT
from windlass.defaults import MAX_WAIT, SLOT_LEASE
from windlass.model import Keep, Lane, Pause, PauseScope, Queue, Rate, Resource, Slot

_PAUSES = listed("Pauses", "All pauses.", pauses=PAUSE)
_QUEUES = listed("Queues", "The queues that have settings.", queues=Queue)
_QUEUE = Gives(
    QueueView,
    lambda _, asked: QueueView(asked["name"], asked["aging"]),
    lambda view, _: None if view.aging is None else Queue(view.name, view.aging),
)
_RESOURCES = listed("Resources", "Every resource.", resources=RESOURCE)
_SET_RESOURCE = Gives(RESOURCE.form, read=lambda view, _: RESOURCE.read(view).resource)
_LANES = paged("LanesView", "Some lanes, and after which number the next page begins.", lambda lane: lane.id, int, lanes=LANE)
_SLOTS = paged("Slots", "Direct calls, and after which number the next page begins.", lambda slot: slot.seq, int, slots=SLOT)


class ControlVerbs(Protocol):
    """Settings of operators."""

    @verb(
        POST, "/pause", "Pause a queue, a job, or everything", one(PAUSE),
        scope="admin", takes=PauseAsked, audit="pause {scope} {name}", repeatable=True,
    )  # fmt: skip
    async def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Pause a queue, a job, or the whole system: none of its runs are claimed until it is resumed."""
        raise ByRow

    @verb(
        POST, "/resume", "Resume what was paused", field("Resumed", "Whether it was paused.", resumed=bool),
        scope="admin", takes=ResumeAsked, audit="resume {scope} {name}",
    )  # fmt: skip
    async def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Resume what was paused; False when it was not paused."""
        raise ByRow

    @verb(GET, "/pauses", "All pauses", _PAUSES, scope="read")
    async def pauses(self) -> list[Pause]:
        """All current pauses."""
        raise ByRow

    @verb(GET, "/queues", "Queues that have settings", _QUEUES, scope="read")
    async def queues(self) -> list[Queue]:
        """The queues that have settings."""
        raise ByRow

    @verb(
        PUT,
        "/queues/{name}",
        "Set the aging of a queue",
        _QUEUE,
        scope="admin",
        takes=PutQueue,
        audit="set queue {name}",
        repeatable=True,
    )
    async def set_queue(self, name: str, *, aging: int | None) -> Queue | None:
        """Set aging: `aging` milliseconds of waiting are worth one step of priority. None: priorities alone."""
        raise ByRow

    @verb(GET, "/resources", "Resources, and how much of each is occupied", _RESOURCES, scope="read")
    async def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        raise ByRow

    @verb(GET, "/resources/{name}", "One resource", one(RESOURCE), scope="read")
    async def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        raise ByRow

    @verb(
        PUT, "/resources/{name}", "Set a resource", _SET_RESOURCE,
        scope=("work", "admin"), takes=PutResource, audit="set resource {name}", repeatable=True,
    )  # fmt: skip
    async def set_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Set the capacity and the rates of a resource; None: unlimited. In effect at once."""
        raise ByRow

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Set a resource that does not exist yet; an existing one stays as it is."""

    @verb(DELETE, "/resources/{name}", "Remove an unused resource", DONE, scope="admin", audit="remove resource {name}")
    async def drop_resource(self, name: str) -> None:
        """Remove a resource that no lane, run or direct call uses."""
        raise ByRow

    @verb(
        GET, "/resources/{name}/occupants", "The occupants of a resource, or of one key of it", one(OCCUPANTS),
        scope="read", query=(Param("key"), COUNT),
    )  # fmt: skip
    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """The occupants of a resource, or of a resource under a key."""
        raise ByRow

    @verb(GET, "/retention", "How long ended runs are kept", one(RETENTION), scope="read")
    async def retention(self) -> Retention:
        """How long ended runs are kept."""
        raise ByRow

    @verb(
        PUT, "/retention", "Set how long ended runs are kept", one(RETENTION),
        scope="admin", takes=PutRetention, audit="set retention", repeatable=True,
    )  # fmt: skip
    async def set_retention(
        self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None
    ) -> Retention:
        """Set how long ended runs are kept; None does not change it."""
        raise ByRow

    @verb(
        GET, "/lanes", "Lanes by number, when each was last used, and which principal created it", _LANES,
        scope="read", query=(Param("after", int, 0), COUNT),
    )  # fmt: skip
    async def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: the runs that the same workers may take, when each was last used, and which principal created it."""
        raise ByRow

    @verb(DELETE, "/lanes/{lane:int}", "Remove a lane that has no unfinished runs", DONE, scope="admin", audit="remove lane {lane}")
    async def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; it is created again when needed."""
        raise ByRow


class SlotVerbs(Protocol):
    """Direct calls."""

    @verb(
        POST, "/slots", "Request the next slot of a resource, or wait for it", one(SLOT),
        scope="submit", takes=ReserveSlot, repeatable=True,
    )  # fmt: skip
    async def reserve(
        self,
        resource: str,
        *,
        key: str | None = None,
        weight: int = 1,
        lease: int = SLOT_LEASE,
        slot_id: str | None = None,
        token: str | None = None,
        actor: str | None = None,
    ) -> Slot:
        """Request the next slot of a resource, ahead of every queue."""
        raise ByRow

    @verb(POST, "/slots/{slot_id}/renew", "Renew a slot, or wait for it", one(SLOT), scope="submit", takes=RenewSlot, repeatable=True)
    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Renew a slot, and take it if it is free now. Raises LeaseLost when it is gone."""
        raise ByRow

    async def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Renew a waiting slot until it is held, for at most this many seconds."""

    @verb(
        POST, "/slots/{slot_id}/release", "Release a slot, or stop waiting for it",
        field("Released", "Whether it was still held or waiting.", released=bool), scope="submit", takes=ReleaseSlot,
    )  # fmt: skip
    async def release(self, slot_id: str, token: str) -> bool:
        """Release a slot, or stop waiting for it; False when it was already gone."""
        raise ByRow

    @verb(GET, "/slots", "Direct calls that hold a slot or wait, in their order", _SLOTS, scope="read", query=(AFTER_NUMBER, COUNT))
    async def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold a slot or wait, in their order."""
        raise ByRow
