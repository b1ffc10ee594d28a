"""What people set for all: pauses, queues, resources, and who occupies them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from windlass.engine.controls import Occupants, ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.retention import Kept, Retention
from windlass.model import Keep, Lane, Needs, Pause, PauseScope, Queue, Rate, Resource
from windlass.store.order import Holder
from windlass.wire.slots import SlotView, slot_of, slot_view
from windlass.wire.values import heard, maybe_heard, maybe_told, told


class PauseAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be paused; the system has no name."""

    scope: PauseScope
    name: str = ""
    reason: str | None = None


class ResumeAsked(Struct, frozen=True, forbid_unknown_fields=True):
    scope: PauseScope
    name: str = ""


class Resumed(Struct, frozen=True):
    """Whether it was paused."""

    resumed: bool


class PauseView(Struct, frozen=True):
    """Something of which nothing is handed out."""

    scope: PauseScope
    name: str
    at: str
    reason: str | None
    who: str | None


class Pauses(Struct, frozen=True):
    pauses: list[PauseView]


def pause_view(pause: Pause) -> PauseView:
    return PauseView(pause.scope, pause.name, told(pause.at), pause.reason, pause.who)


def pause_of(view: PauseView) -> Pause:
    return Pause(view.scope, view.name, heard(view.at, "at"), view.reason, view.who)


class PutQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds of waiting that one step of priority is worth; null: priorities alone."""

    ageing: int | None


class QueueView(Struct, frozen=True):
    name: str
    ageing: int | None


class Queues(Struct, frozen=True):
    """The queues for which something is set."""

    queues: list[Queue]


class PutResource(Struct, frozen=True, forbid_unknown_fields=True):
    """How much there is of a resource, and how often it may be used; null: any number."""

    capacity: int | None
    rates: tuple[Rate, ...] = ()
    max_wait: int = MAX_WAIT
    new: bool = False  # one that is there stays as it was set


class ResourceView(Struct, frozen=True):
    """A resource, and how much of it is occupied; under keys, of all of them together."""

    name: str
    capacity: int | None
    rates: tuple[Rate, ...]
    max_wait: int
    created_at: str
    updated_at: str
    held: int
    runs: int
    slots: int
    jobs: tuple[str, ...]


class Resources(Struct, frozen=True):
    resources: list[ResourceView]


def resource_view(state: ResourceState) -> ResourceView:
    found = state.resource
    times = told(found.created_at), told(found.updated_at)
    return ResourceView(found.name, found.capacity, found.rates, found.max_wait, *times, state.held, state.runs, state.slots, state.jobs)


def resource_of(view: ResourceView) -> ResourceState:
    times = heard(view.created_at, "created_at"), heard(view.updated_at, "updated_at")
    found = Resource(view.name, view.capacity, view.rates, view.max_wait, *times)
    return ResourceState(found, view.held, view.runs, view.slots, view.jobs)


class HolderView(Struct, frozen=True):
    """A run that occupies some of a resource."""

    run: str
    job: str
    worker: str | None
    weight: int


class OccupantsView(Struct, frozen=True):
    """Who occupies a resource, or one key of it."""

    runs: list[HolderView]
    slots: list[SlotView]


def occupants_view(found: Occupants) -> OccupantsView:
    return OccupantsView([HolderView(*holder) for holder in found.runs], [slot_view(slot) for slot in found.slots])


def occupants_of(view: OccupantsView) -> Occupants:
    runs = [Holder(holder.run, holder.job, holder.worker, holder.weight) for holder in view.runs]
    return Occupants(runs, [slot_of(slot) for slot in view.slots])


class PutRetention(Struct, frozen=True, forbid_unknown_fields=True):
    """How long ended runs are kept: milliseconds, or "forever"; null stays as it is."""

    keep_succeeded: Keep | None = None
    keep_others: Keep | None = None


class KeptView(Struct, frozen=True):
    """How long ended runs are kept, and where that comes from: the store, what the hub was told, or its defaults."""

    keep: Keep
    source: Literal["store", "settings", "default"]
    who: str | None
    at: str | None


class RetentionView(Struct, frozen=True):
    """How long ended runs are kept that do not say so themselves."""

    keep_succeeded: KeptView
    keep_others: KeptView


def retention_view(found: Retention) -> RetentionView:
    kept = found.keep_succeeded, found.keep_others
    return RetentionView(*(KeptView(one.keep, one.source, one.who, maybe_told(one.at)) for one in kept))


def retention_of(view: RetentionView) -> Retention:
    kept = view.keep_succeeded, view.keep_others
    return Retention(*(Kept(one.keep, one.source, one.who, maybe_heard(one.at, "at")) for one in kept))


class LaneView(Struct, frozen=True):
    """What of a queue the same workers may take: when it was last used, to the day, and whose small token has made it."""

    id: int
    queue: str
    job: str
    requires: Needs
    used_at: str | None
    owner: str | None


class LanesView(Struct, frozen=True):
    """Some lanes, and after which number the next page begins."""

    lanes: list[LaneView]
    cursor: int | None


def lane_view(lane: Lane) -> LaneView:
    return LaneView(lane.id, lane.queue, lane.job, lane.requires, told(lane.used_at) if lane.used_at else None, lane.owner)


def lane_of(view: LaneView) -> Lane:
    used_at = None if view.used_at is None else heard(view.used_at, "used_at")
    return Lane(view.id, view.queue, view.job, view.requires, used_at, view.owner)
