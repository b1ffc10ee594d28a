"""Limits: which resources runs occupy, and the rule that selects the next runs. Pure, like the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from windlass.model import Needs, Rate, Resource, Use, WorkerInfo
from windlass.payload import reader

_BETWEEN = "\x1f"  # no name contains it, so the part before the first one is the resource
_OF = "\x1e"  # nor this one: the part after it is the worker whose cores or memory are counted
_LONGEST_VALUE = 200
SKEW = 60_000_000
"""Microseconds by which the clocks of two processes may differ."""
_canonical = msgspec.json.Encoder(order="deterministic").encode
_texts = reader(tuple[str, ...])


def limiter_key(resource: str, value: str | None = None) -> str:
    """The name of the limiter for a resource, or for a resource under one key."""
    return resource if value is None else f"{resource}{_BETWEEN}{value}"


def parts_of(key: str) -> tuple[str, str | None]:
    """The resource of a limiter, and its key, if any."""
    resource, between, value = key.partition(_BETWEEN)
    return resource, value if between else None


def is_keyed(key: str) -> bool:
    """Whether a limiter is for one key of a resource."""
    return _BETWEEN in key


def owner_of(key: str) -> tuple[str, str | None]:
    """The kind (`cores` or `memory`) and the worker of a worker's limiter; None for a limiter that all workers share."""
    what, of, worker = key.partition(_OF)
    return what, worker if of else None


def limits_by_key(uses: Iterable[Use]) -> bool:
    """Whether any of these uses is limited per key."""
    return any(use.per is not None for use in uses)


def keys_text(uses: Iterable[Use], payload: Any, amounts: tuple[int, int] | None = None) -> str | None:
    """The keys under which a run with this payload uses keyed resources, then its own amounts; None where there are neither.

    The amounts are the cores and the memory that it takes from its worker, if its lane has rounded them.
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
    """An amount of a limiter."""

    key: str
    weight: int


@lru_cache(maxsize=4096)
def needs(uses: tuple[Use, ...], keys: str | None) -> tuple[Need, ...]:
    """The needs of a run of a lane with these uses."""
    values = iter(_texts(keys) if keys else ())
    return tuple(Need(limiter_key(use.resource, None if use.per is None else next(values, "null")), use.weight) for use in uses)


def own_amounts(lane: Needs, amounts: tuple[int, int]) -> tuple[int, int] | None:
    """The cores and the memory to store with a run, because its lane has rounded ones."""
    return None if amounts == (lane.cores, lane.memory) else amounts


@lru_cache(maxsize=4096)
def amounts_of(lane: Needs, keys: str | None) -> tuple[int, int]:
    """The cores and the memory that a run uses of its worker: its own numbers, or those of its lane."""
    own = _texts(keys)[sum(use.per is not None for use in lane.uses) :] if keys else ()
    return (int(own[0]), int(own[1])) if own else (lane.cores, lane.memory)


def worker_needs(lane: Needs, keys: str | None, worker: str) -> tuple[Need, ...]:
    """What a run occupies of its worker."""
    amounts = zip(("cores", "memory"), amounts_of(lane, keys), strict=True)
    return tuple(Need(f"{what}{_OF}{worker}", amount) for what, amount in amounts if amount)


def offers(worker: WorkerInfo, max_wait: int) -> dict[str, Resource]:
    """A worker's capacities, by limiter."""
    amounts = ("cores", worker.cores), ("memory", worker.memory)
    keys = ((f"{what}{_OF}{worker.name}", amount) for what, amount in amounts)
    return {key: Resource(key, amount, (), max_wait, 0, 0) for key, amount in keys}


class Window(NamedTuple):
    """A rate as it is stored: a bucket that leaks one unit in `step` microseconds and holds `room` of them."""

    step: int
    room: int


def window(rate: Rate) -> Window:
    """The bucket of a rate."""
    step = -(-rate.period * 1000 // rate.count)
    return Window(step, step * (rate.count if rate.burst is None else rate.burst))


class Limiter:
    """The usage of a limiter at a moment, and that of the runs selected since."""

    def __init__(self, key: str, resource: Resource, held: int, tats: Mapping[int, int], now: int) -> None:
        self.key, self.resource, self.held = key, resource, held
        self.windows = [window(rate) for rate in resource.rates]
        self._micros = now * 1000
        self._tats = [self._tat(tats.get(n, 0), one.room) for n, one in enumerate(self.windows)]

    def _tat(self, stored: int, room: int) -> int:
        """When the bucket is empty. One that is more than full is from another rate, or the clock was set back: it starts empty."""
        return stored if self._micros < stored <= self._micros + room + SKEW else self._micros

    def impossible(self, weight: int) -> bool:
        """Whether this amount will never fit."""
        capacity = self.resource.capacity
        return (capacity is not None and weight > capacity) or any(weight * one.step > one.room for one in self.windows)

    def full(self, weight: int) -> bool:
        """Whether this amount does not fit beside the current usage."""
        capacity = self.resource.capacity
        return capacity is not None and self.held + weight > capacity

    def late(self, weight: int) -> int:
        """The earliest time at which the rate limits admit this weight, in milliseconds; 0: now."""
        over = [tat + weight * one.step - self._micros - one.room for tat, one in zip(self._tats, self.windows, strict=True)]
        limit = max(over, default=0)
        return -(-(self._micros + limit) // 1000) if limit > 0 else 0

    def take(self, weight: int) -> None:
        """Add the usage of a selected run."""
        self.held += weight
        self._tats = [tat + weight * one.step for tat, one in zip(self._tats, self.windows, strict=True)]


class Blocker(NamedTuple):
    """Why a limiter blocks a run."""

    limiter: Limiter
    need: Need
    why: Literal["impossible", "full", "rate", "kept"]  # kept: reserved for a run ahead
    until: int = 0  # of a rate


def lacks(needs: Iterable[Need], limiters: Mapping[str, Limiter], kept: frozenset[str] | set[str]) -> list[Blocker]:
    """Every blocker of a run with these needs; none: it may start."""
    blockers = []
    for need in needs:
        limiter = limiters[need.key]
        if limiter.impossible(need.weight):
            blockers.append(Blocker(limiter, need, "impossible"))
        elif limiter.full(need.weight):
            blockers.append(Blocker(limiter, need, "full"))
        elif until := limiter.late(need.weight):
            blockers.append(Blocker(limiter, need, "rate", until))
        elif need.key in kept:
            blockers.append(Blocker(limiter, need, "kept"))
    return blockers


class Candidate(NamedTuple):
    """A queued run, as a claim reads it."""

    seq: int
    lane: int
    due_at: int
    needs: tuple[Need, ...]


class Occupation(NamedTuple):
    """What a selected run occupies of a limiter, and the running sum of all selected so far."""

    seq: int
    key: str
    weight: int
    upto: int
    capacity: int | None


class ParkedRun(NamedTuple):
    """A run that waits for one key. Without a capacity it waits for a rate limit."""

    seq: int
    lane: int
    key: str
    capacity: int | None


class Selector:
    """Selects, in the order of the queue, the runs that may start.

    The first run that lacks just one resource has it reserved, so that lighter ones behind do not overtake it for
    ever; one that lacks several has all of them reserved once it has waited for `max_wait`. A run that lacks a key is parked until
    that key is free: no run behind it waits for that.
    """

    def __init__(self, now: int, worker: WorkerInfo | None = None) -> None:
        self.now, self.worker = now, worker  # None: the runs' needs of a worker are not counted
        self.limiters: dict[str, Limiter] = {}
        self.runs: list[Candidate] = []
        self.taken: list[Occupation] = []
        self.parked: list[ParkedRun] = []
        self.later: dict[str, int] = {}  # limiters that are blocked until a time
        self.kept: set[str] = set()  # limiters that are closed for all later runs
        self._shut: set[int] = set()  # lanes of which a run lacks a resource: runs behind it in the same lane are passed over
        self._upto: dict[str, int] = {}

    def offer(self, candidates: Sequence[Candidate], count: int) -> int:
        """Select up to this many of these, which come after all offered before; returns how many were examined."""
        self.runs, self.taken, self.parked, self.later, self._upto = [], [], [], {}, {}
        for seen, candidate in enumerate(candidates):
            if len(self.runs) == count:
                return seen
            if candidate.lane in self._shut:
                continue
            if missing := lacks(candidate.needs, self.limiters, self.kept):
                self._refuse(candidate, missing)
            else:
                self._take(candidate)
        return len(candidates)

    def _take(self, candidate: Candidate) -> None:
        self.runs.append(candidate)
        for key, weight in candidate.needs:
            limiter = self.limiters[key]
            limiter.take(weight)
            self._upto[key] = self._upto.get(key, 0) + weight
            self.taken.append(Occupation(candidate.seq, key, weight, self._upto[key], limiter.resource.capacity))

    def _refuse(self, candidate: Candidate, missing: Sequence[Blocker]) -> None:
        if not all(is_keyed(lack.need.key) for lack in missing):
            self._shut.add(candidate.lane)
        if any(lack.why == "impossible" for lack in missing):
            return  # it can wait for ever, so nothing is reserved for it
        for lack in missing:
            if lack.why == "rate":
                self.later[lack.need.key] = min(lack.until, self.later.get(lack.need.key, lack.until))
        for lack in missing:
            if is_keyed(lack.need.key):
                capacity = lack.limiter.resource.capacity if lack.why == "full" else None
                self.parked.append(ParkedRun(candidate.seq, candidate.lane, lack.need.key, capacity))
                return
        waited = self.now - candidate.due_at
        if any(waited >= lack.limiter.resource.max_wait for lack in missing):
            self.kept.update(need.key for need in candidate.needs if not is_keyed(need.key))
        elif len(missing) == 1:
            self.kept.add(missing[0].need.key)
