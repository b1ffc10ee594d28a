"""Who may pass: what runs occupy of named resources, and the rule by which the next ones are chosen. Pure, like the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from windlass.model import Needs, Rate, Resource, Use, WorkerInfo

_BETWEEN = "\x1f"  # no name contains it, so what is before the first one is the resource
_OF = "\x1e"  # nor this one: behind it is the worker that has so many cores, or so much memory
_LONGEST_VALUE = 200
SKEW = 60_000_000
"""Microseconds by which the clocks of two processes may differ."""
_canonical = msgspec.json.Encoder(order="deterministic").encode
_texts = msgspec.json.Decoder(tuple[str, ...]).decode


def gate_key(resource: str, value: str | None = None) -> str:
    """The name of the gate that stands for a resource, or for a resource under one key."""
    return resource if value is None else f"{resource}{_BETWEEN}{value}"


def parts_of(key: str) -> tuple[str, str | None]:
    """The resource of a gate, and the key where there is one."""
    resource, between, value = key.partition(_BETWEEN)
    return resource, value if between else None


def is_keyed(key: str) -> bool:
    """Whether a gate stands for one key of a resource."""
    return _BETWEEN in key


def owner_of(key: str) -> tuple[str, str | None]:
    """What a gate of a worker stands for, `cores` or `memory`, and the worker; None for a gate that all workers share."""
    what, of, worker = key.partition(_OF)
    return what, worker if of else None


def limits_by_key(uses: Iterable[Use]) -> bool:
    """Whether any of these uses is limited for each key."""
    return any(use.per is not None for use in uses)


def keys_text(uses: Iterable[Use], payload: Any, amounts: tuple[int, int] | None = None) -> str | None:
    """The keys under which a run with this payload uses what is limited by key, then its own amounts; None where there are neither.

    The amounts are the cores and the memory that it uses of its worker, where its lane has rounded them.
    """
    values = [_value_text(_value_at(payload, use.per)) for use in uses if use.per is not None]
    values += () if amounts is None else map(str, amounts)
    return _canonical(values).decode() if values else None


def _value_at(payload: Any, path: str) -> Any:
    for name in path.split("."):
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else _canonical(value).decode()
    return text if len(text) <= _LONGEST_VALUE else blake2b(text.encode(), digest_size=16).hexdigest()


class Need(NamedTuple):
    """So much of what a gate stands for."""

    key: str
    weight: int


@lru_cache(maxsize=4096)
def needs(uses: tuple[Use, ...], keys: str | None) -> tuple[Need, ...]:
    """What a run of a lane with these uses occupies."""
    values = iter(_texts(keys) if keys else ())
    return tuple(Need(gate_key(use.resource, None if use.per is None else next(values, "null")), use.weight) for use in uses)


def own_amounts(lane: Needs, amounts: tuple[int, int]) -> tuple[int, int] | None:
    """The cores and the memory that are to be kept with a run, because its lane has others."""
    return None if amounts == (lane.cores, lane.memory) else amounts


@lru_cache(maxsize=4096)
def amounts_of(lane: Needs, keys: str | None) -> tuple[int, int]:
    """The cores and the memory that a run uses of its worker: its own numbers, or those of its lane."""
    own = _texts(keys)[sum(use.per is not None for use in lane.uses) :] if keys else ()
    return (int(own[0]), int(own[1])) if own else (lane.cores, lane.memory)


def worker_needs(lane: Needs, keys: str | None, worker: str) -> tuple[Need, ...]:
    """What a run occupies of the worker that has it."""
    amounts = zip(("cores", "memory"), amounts_of(lane, keys), strict=True)
    return tuple(Need(f"{what}{_OF}{worker}", amount) for what, amount in amounts if amount)


def offers(worker: WorkerInfo, max_wait: int) -> dict[str, Resource]:
    """What a worker has for its runs, by gate."""
    amounts = ("cores", worker.cores), ("memory", worker.memory)
    keys = ((f"{what}{_OF}{worker.name}", amount) for what, amount in amounts)
    return {key: Resource(key, amount, (), max_wait, 0, 0) for key, amount in keys}


class Window(NamedTuple):
    """A rate as it is kept: a bucket that leaks one unit in `step` microseconds and holds `room` of them."""

    step: int
    room: int


def window(rate: Rate) -> Window:
    """The bucket of a rate."""
    step = -(-rate.period * 1000 // rate.count)
    return Window(step, step * (rate.count if rate.burst is None else rate.burst))


class Gate:
    """What is occupied at a moment, and what the runs chosen since then will occupy."""

    def __init__(self, key: str, resource: Resource, held: int, tats: Mapping[int, int], now: int) -> None:
        self.key, self.resource, self.held = key, resource, held
        self.windows = [window(rate) for rate in resource.rates]
        self._micros = now * 1000
        self._tats = [self._tat(tats.get(n, 0), one.room) for n, one in enumerate(self.windows)]

    def _tat(self, kept: int, room: int) -> int:
        """When a bucket is empty. One that is more than full was kept under another rate, or the clock was set back: it begins anew."""
        return kept if self._micros < kept <= self._micros + room + SKEW else self._micros

    def impossible(self, weight: int) -> bool:
        """Whether so much will never pass."""
        capacity = self.resource.capacity
        return (capacity is not None and weight > capacity) or any(weight * one.step > one.room for one in self.windows)

    def full(self, weight: int) -> bool:
        """Whether so much does not fit beside what is occupied."""
        capacity = self.resource.capacity
        return capacity is not None and self.held + weight > capacity

    def late(self, weight: int) -> int:
        """When its rates let so much pass, in milliseconds; 0: now."""
        over = [tat + weight * one.step - self._micros - one.room for tat, one in zip(self._tats, self.windows, strict=True)]
        most = max(over, default=0)
        return -(-(self._micros + most) // 1000) if most > 0 else 0

    def take(self, weight: int) -> None:
        """Somebody will pass."""
        self.held += weight
        self._tats = [tat + weight * one.step for tat, one in zip(self._tats, self.windows, strict=True)]


class Lack(NamedTuple):
    """Why a gate does not let a run pass."""

    gate: Gate
    need: Need
    why: Literal["impossible", "full", "rate", "kept"]  # kept: for a run before it
    until: int = 0  # of a rate


def lacks(wanted: Iterable[Need], gates: Mapping[str, Gate], kept: frozenset[str] | set[str]) -> list[Lack]:
    """Everything that keeps a run with these needs from passing; nothing: it may."""
    found = []
    for need in wanted:
        gate = gates[need.key]
        if gate.impossible(need.weight):
            found.append(Lack(gate, need, "impossible"))
        elif gate.full(need.weight):
            found.append(Lack(gate, need, "full"))
        elif until := gate.late(need.weight):
            found.append(Lack(gate, need, "rate", until))
        elif need.key in kept:
            found.append(Lack(gate, need, "kept"))
    return found


class Candidate(NamedTuple):
    """A queued run, as a claim sees it."""

    seq: int
    lane: int
    due_at: int
    needs: tuple[Need, ...]


class Taken(NamedTuple):
    """What a chosen run occupies, and how much of that gate all chosen up to it occupy together."""

    seq: int
    key: str
    weight: int
    upto: int
    capacity: int | None


class Parked(NamedTuple):
    """A run that waits for one key. Without a capacity it waits for time."""

    seq: int
    lane: int
    key: str
    capacity: int | None


class Choice:
    """Chooses, in the order of the queue, the runs that may pass.

    The first run that lacks just one resource has it kept for itself, so that lighter ones behind do not overtake it for
    ever; one that lacks several has all it needs kept once it has waited for `max_wait`. What lacks a key is put aside until
    that key is free: nobody behind it waits for that.
    """

    def __init__(self, now: int, worker: WorkerInfo | None = None) -> None:
        self.now, self.worker = now, worker  # None: what the runs need of a worker does not count
        self.gates: dict[str, Gate] = {}
        self.runs: list[Candidate] = []
        self.taken: list[Taken] = []
        self.parked: list[Parked] = []
        self.later: dict[str, int] = {}  # gates that time opens, and when
        self.kept: set[str] = set()  # gates that nobody may pass who comes behind
        self._shut: set[int] = set()  # lanes of which a run lacks a resource: it speaks for those behind it, however many are read
        self._upto: dict[str, int] = {}

    def offer(self, candidates: Sequence[Candidate], count: int) -> int:
        """Choose up to so many of these, which come after all that was offered before; how many were looked at."""
        self.runs, self.taken, self.parked, self.later, self._upto = [], [], [], {}, {}
        for seen, candidate in enumerate(candidates):
            if len(self.runs) == count:
                return seen
            if candidate.lane in self._shut:
                continue
            if missing := lacks(candidate.needs, self.gates, self.kept):
                self._refuse(candidate, missing)
            else:
                self._take(candidate)
        return len(candidates)

    def _take(self, candidate: Candidate) -> None:
        self.runs.append(candidate)
        for key, weight in candidate.needs:
            gate = self.gates[key]
            gate.take(weight)
            self._upto[key] = self._upto.get(key, 0) + weight
            self.taken.append(Taken(candidate.seq, key, weight, self._upto[key], gate.resource.capacity))

    def _refuse(self, candidate: Candidate, missing: Sequence[Lack]) -> None:
        if not all(is_keyed(lack.need.key) for lack in missing):
            self._shut.add(candidate.lane)
        if any(lack.why == "impossible" for lack in missing):
            return  # it can wait for ever; nobody should wait for it
        for lack in missing:
            if lack.why == "rate":
                self.later[lack.need.key] = min(lack.until, self.later.get(lack.need.key, lack.until))
        for lack in missing:
            if is_keyed(lack.need.key):
                capacity = lack.gate.resource.capacity if lack.why == "full" else None
                self.parked.append(Parked(candidate.seq, candidate.lane, lack.need.key, capacity))
                return
        waited = self.now - candidate.due_at
        if any(waited >= lack.gate.resource.max_wait for lack in missing):
            self.kept.update(need.key for need in candidate.needs if not is_keyed(need.key))
        elif len(missing) == 1:
            self.kept.add(missing[0].need.key)
