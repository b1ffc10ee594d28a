"""What operators set for all: pauses, queues, resources, retention, lanes; and direct calls at resources."""

from __future__ import annotations

from typing import Protocol

from windlass.api.answers import QueueView
from windlass.api.gives import DONE, Gives, field, listed, one, paged
from windlass.api.requests import PauseAsked, PutQueue, PutResource, PutRetention, ReleaseSlot, RenewSlot, ReserveSlot, ResumeAsked
from windlass.api.rows import AFTER_NUMBER, COUNT, DELETE, GET, POST, PUT, ByRow, Param, verb
from windlass.api.views import LANE, OCCUPANTS, PAUSE, RESOURCE, RETENTION, SLOT
from windlass.engine.controls import Occupants, ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.limiting import SLOT_LEASE
from windlass.engine.retention import Retention
from windlass.model import Keep, Lane, Pause, PauseScope, Queue, Rate, Resource, Slot

_PAUSES = listed("Pauses", "Everything that is paused.", pauses=PAUSE)
_QUEUES = listed("Queues", "The queues for which something is set.", queues=Queue)
_QUEUE = Gives(
    QueueView,
    lambda _, asked: QueueView(asked["name"], asked["ageing"]),
    lambda view, _: None if view.ageing is None else Queue(view.name, view.ageing),
)
_RESOURCES = listed("Resources", "Every resource.", resources=RESOURCE)
_SET_RESOURCE = Gives(RESOURCE.form, read=lambda view, _: RESOURCE.read(view).resource)
_LANES = paged("LanesView", "Some lanes, and after which number the next page begins.", lambda lane: lane.id, int, lanes=LANE)
_SLOTS = paged("Slots", "Direct calls, and behind which number the next page begins.", lambda slot: slot.seq, int, slots=SLOT)


class ControlVerbs(Protocol):
    """What operators set for all."""

    @verb(
        POST, "/pause", "Hand nothing out of a queue, of a job, or at all", one(PAUSE),
        scope="admin", takes=PauseAsked, audit="pause {scope} {name}", repeatable=True,
    )  # fmt: skip
    async def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Hand nothing out of a queue, of a job, or of the whole system."""
        raise ByRow

    @verb(
        POST, "/resume", "Hand out again", field("Resumed", "Whether it was paused.", resumed=bool),
        scope="admin", takes=ResumeAsked, audit="resume {scope} {name}",
    )  # fmt: skip
    async def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Hand out again; False when it was not paused."""
        raise ByRow

    @verb(GET, "/pauses", "What is paused", _PAUSES, scope="read", repeatable=True)
    async def pauses(self) -> list[Pause]:
        """What is paused now."""
        raise ByRow

    @verb(GET, "/queues", "Queues for which something is set", _QUEUES, scope="read", repeatable=True)
    async def queues(self) -> list[Queue]:
        """The queues for which something is set."""
        raise ByRow

    @verb(
        PUT,
        "/queues/{name}",
        "Let waiting count in a queue",
        _QUEUE,
        scope="admin",
        takes=PutQueue,
        audit="set queue {name}",
        repeatable=True,
    )
    async def set_queue(self, name: str, *, ageing: int | None) -> Queue | None:
        """Let waiting count: `ageing` milliseconds are worth one step of priority. None: priorities alone."""
        raise ByRow

    @verb(GET, "/resources", "Resources, and how much of each is occupied", _RESOURCES, scope="read", repeatable=True)
    async def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        raise ByRow

    @verb(GET, "/resources/{name}", "One resource", one(RESOURCE), scope="read", repeatable=True)
    async def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        raise ByRow

    @verb(
        PUT, "/resources/{name}", "Say how much there is of a resource", _SET_RESOURCE,
        scope=("work", "admin"), takes=PutResource, repeatable=True,
    )  # fmt: skip
    async def set_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource, and how often it may be used; None: any number. In effect at once."""
        raise ByRow

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource that is not there yet; one that is stays as it was set."""

    @verb(DELETE, "/resources/{name}", "Forget a resource that nobody uses", DONE, scope="admin", audit="remove resource {name}")
    async def drop_resource(self, name: str) -> None:
        """Forget a resource that no lane, run or direct call uses."""
        raise ByRow

    @verb(
        GET, "/resources/{name}/occupants", "Who occupies a resource, or one key of it", one(OCCUPANTS),
        scope="read", query=(Param("key"), COUNT), repeatable=True,
    )  # fmt: skip
    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """Who occupies a gate: a resource, or a resource under a key."""
        raise ByRow

    @verb(GET, "/retention", "How long ended runs are kept", one(RETENTION), scope="read", repeatable=True)
    async def retention(self) -> Retention:
        """How long ended runs are kept."""
        raise ByRow

    @verb(
        PUT, "/retention", "Say how long ended runs are kept", one(RETENTION),
        scope="admin", takes=PutRetention, audit="set retention", repeatable=True,
    )  # fmt: skip
    async def set_retention(
        self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str | None = None
    ) -> Retention:
        """Say how long ended runs are kept; None stays as it is."""
        raise ByRow

    @verb(
        GET, "/lanes", "Lanes by number, when each was last used, and whose token made it", _LANES,
        scope="read", query=(Param("after", int, 0), COUNT), repeatable=True,
    )  # fmt: skip
    async def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: what of a queue the same workers may take, when it was last used, and which small token has made it."""
        raise ByRow

    @verb(DELETE, "/lanes/{lane:int}", "Remove a lane that has no unfinished runs", DONE, scope="admin", audit="remove lane {lane}")
    async def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; one that is needed again is made again."""
        raise ByRow


class SlotVerbs(Protocol):
    """Direct calls."""

    @verb(
        POST, "/slots", "Ask for the next slot of a resource, or wait for it", one(SLOT),
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
        who: str | None = None,
    ) -> Slot:
        """Ask for the next slot of a resource, ahead of every queue."""
        raise ByRow

    @verb(POST, "/slots/{slot_id}/renew", "Keep a slot, or wait for its turn", one(SLOT), scope="submit", takes=RenewSlot, repeatable=True)
    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Keep a slot, and have it if its turn has come. Raises LeaseLost when it is gone."""
        raise ByRow

    async def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Keep a slot that waits until its turn has come, for so many seconds at most."""

    @verb(
        POST, "/slots/{slot_id}/release", "Give a slot back, or leave the line",
        field("Released", "Whether it was still held, or in line.", released=bool), scope="submit", takes=ReleaseSlot,
    )  # fmt: skip
    async def release(self, slot_id: str, token: str) -> bool:
        """Give a slot back, or leave the line; False when it was gone already."""
        raise ByRow

    @verb(
        GET,
        "/slots",
        "Direct calls that hold something or wait, in their order",
        _SLOTS,
        scope="read",
        query=(AFTER_NUMBER, COUNT),
        repeatable=True,
    )
    async def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold something or wait, in their order."""
        raise ByRow
