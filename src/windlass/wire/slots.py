"""Direct calls: a place in line at a resource, and the turn."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from windlass.engine.limiting import SLOT_LEASE
from windlass.gates import gate_key, parts_of
from windlass.model import Slot
from windlass.wire.values import heard, maybe_heard, maybe_told, told


class ReserveSlot(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A direct call asks for the next slot; with `wait`, the answer may take so many milliseconds if it is not free at once.

    With an id and a token of its own it can ask again when the answer was lost.
    """

    resource: str
    key: str | None = None
    weight: int = 1
    lease: int = SLOT_LEASE
    wait: int = 0
    id: str | None = None
    token: str | None = None


class RenewSlot(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Keep a slot; with `wait`, the answer may take so many milliseconds if its turn has not come."""

    token: str
    lease: int = SLOT_LEASE
    wait: int = 0


class ReleaseSlot(Struct, frozen=True, forbid_unknown_fields=True):
    token: str


class Released(Struct, frozen=True):
    """Whether it was still held, or in line."""

    released: bool


class SlotView(Struct, frozen=True, omit_defaults=True):
    """A direct call's place at a resource. Its token is told to whoever asked for it, and to nobody else."""

    id: str
    n: int  # a smaller one is served first
    resource: str
    key: str | None
    weight: int
    state: Literal["waiting", "held"]
    who: str | None
    lease: int
    lease_until: str
    created_at: str
    held_at: str | None
    token: str | None = None


class Slots(Struct, frozen=True):
    """Direct calls in their order, and behind which number the next page begins."""

    slots: list[SlotView]
    cursor: int | None


def slot_view(slot: Slot, *, own: bool = False) -> SlotView:
    resource, key = parts_of(slot.key)
    times = told(slot.lease_until), told(slot.created_at), maybe_told(slot.held_at)
    token = slot.token if own else None
    return SlotView(slot.id, slot.seq, resource, key, slot.weight, slot.state, slot.who, slot.lease, *times, token)


def slot_of(view: SlotView) -> Slot:
    """The slot that a view tells of; a token that is not told is empty."""
    times = heard(view.lease_until, "lease_until"), heard(view.created_at, "created_at"), maybe_heard(view.held_at, "held_at")
    key = gate_key(view.resource, view.key)
    return Slot(view.n, view.id, key, view.token or "", view.weight, view.state, view.who, view.lease, *times)
