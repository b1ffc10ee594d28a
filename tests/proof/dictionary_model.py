"""The engine's promises a second time, in plain dictionaries, as simply as they can be said.

Nothing here comes from the machine or the SQL. What only the engine can know (ids, tokens, a drawn delay) is taken from its
answers and checked for plausibility. Every verb answers what the engine must answer, or raises `Refused` with the kind of
error that it must raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tests.invariants import Snapshot
from windlass.errors import (
    BadInput,
    Cancelled,
    DuplicateKey,
    LeaseLost,
    NotEditable,
    NotFound,
    Pruned,
    UnknownJob,
    WindlassError,
    WrongState,
)
from windlass.machine import Fail, Refuse, Report, Requeue, Skip, Snooze, Succeed
from windlass.model import Created, Group, NewGroup, NewRun, Options, Policy, Rate, Slot, Use, WorkerInfo

LIVE = {"claimed", "running", "cancelling"}
PENDING = {"waiting", "scheduled", "queued"}
DAY = 24 * 3600 * 1000
KEEP = {"succeeded": 7 * DAY, "failed": 30 * DAY, "quarantined": 30 * DAY, "cancelled": 30 * DAY, "skipped": 30 * DAY}
KEEP_NONCES = 600_000
SILENCE = 60_000
UNSEEN = 2**40
Over = Callable[[Any, int, int, int], bool | None]
"""Whether a process calls over what began then and lasts so long, of something held by a lease; None: it cannot tell yet."""
"""Runs that the store has not shown yet come behind all others."""


class Refused(Exception):
    """The engine must raise an error of this kind, or of one of these where there is more than one reason."""

    def __init__(self, *kinds: type[WindlassError]) -> None:
        super().__init__(", ".join(kind.__name__ for kind in kinds))
        self.kinds = kinds


@dataclass
class Job:
    """A definition."""

    options: dict[str, Any]
    payload: dict[str, Any]


@dataclass
class Doc:
    """A run, as the model sees it."""

    id: str
    number: int  # order of creation; within one call, the store's own
    job: str
    queue: str
    needs: frozenset[str]
    cores: int
    uses: tuple[Use, ...]
    state: str
    priority_key: int
    position: int
    payload: Any
    due_at: int
    created_at: int
    max_attempts: int
    max_runtime: int | None
    policy: Policy
    retry_of: str | None = None
    ids: list[str] = field(default_factory=list)  # of all attempts so far, as the store has them
    after: list[str] = field(default_factory=list)
    rule: str = "success"  # what it asks of their ends; "skip" is "success", but it is left out and not cancelled
    group: str | None = None
    calls: str | None = None  # the group at whose end it begins
    aging_priority: int | None = None  # its priority, where waiting counts
    parked: bool = False
    attempt: int = 1
    failures: int = 0
    requeues: int = 0
    token: str | None = None
    worker: str | None = None
    alone: bool = False
    lease: int | None = None
    claimed_at: int | None = None
    started_at: int | None = None
    lease_until: int | None = None
    lease_check_at: int | None = None
    cancel_asked_at: int | None = None
    finished_at: int | None = None
    reason: str | None = None
    error: str | None = None
    output: str | None = None
    digest: str | None = None
    name: str | None = None  # of the output
    meta: str | None = None
    progress: str | None = None
    entries: list[tuple[str, str, int, str | None]] = field(default_factory=list)  # move, state, attempt, worker
    closed: list[tuple[Any, ...]] = field(default_factory=list)  # outcome, answer, worker, token, claimed ... error, payload
    said: dict[str, tuple[Any, str]] = field(default_factory=dict)  # by token: the report that ended the attempt, and its answer
    lines: dict[tuple[int, int], str] = field(default_factory=dict)
    refused: tuple[int, int, int] | None = None  # which attempt was refused last, since when, and how often in a row
    drawn: tuple[int, int] | None = None  # where a drawn due time must lie

    @property
    def place(self) -> tuple[int, int, int]:
        return self.priority_key, self.position, self.number

    @property
    def head_start(self) -> int:
        return (self.aging_priority or 0) * (self.policy.aging or 0)

    @property
    def ended(self) -> bool:
        return self.finished_at is not None

    @property
    def rev(self) -> int:
        return len(self.entries)


@dataclass
class Holder:
    """Who has a key, and until when."""

    run: str
    content: Any
    unfinished: bool
    until: int | None


@dataclass
class Bunch:
    """A group: how many of its members have ended, and how."""

    id: str
    kind: str
    on_failure: str
    total: int
    callback: str | None
    created_at: int
    retry_of: str | None = None
    ends: Counter[str] = field(default_factory=Counter)
    finished_at: int | None = None
    reason: str | None = None

    @property
    def status(self) -> str:
        if self.finished_at is None:
            return "running"
        return {self.ends["succeeded"]: "completed", self.ends["cancelled"]: "cancelled"}.get(self.total, "partial")


@dataclass
class Supply:
    """How much there is of a resource, and how often it may be used."""

    capacity: int | None = 1
    rates: tuple[Rate, ...] = ()
    max_wait: int = 60_000


class Lacking(NamedTuple):
    """What keeps a run from passing a gate."""

    key: str
    why: str


def position(at: int, index: int = 0) -> int:
    return at * 2**20 + index * 64


class Model:
    """All runs, keys, definitions and workers."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, Doc] = {}
        self.keys: dict[str, Holder] = {}
        self.nonces: dict[str, int] = {}
        self.workers: dict[str, tuple[WorkerInfo, int]] = {}
        self.groups: dict[str, Bunch] = {}
        self.pauses: set[tuple[str, str]] = set()
        self.aging: dict[str, int] = {}
        self.supplies: dict[str, Supply] = {}
        self.slots: dict[str, Slot] = {}  # direct calls, in their order
        self.full_at: dict[tuple[str, int], int] = {}  # by gate and rate: until when it is used up, in microseconds
        self.asked_order: tuple[str, list[str]] | None = None  # a run that was moved, and how its queue stands now
        self.created = 0
        self.bounds: Callable[[int], tuple[int, int]] = lambda now: (now, now)  # between which times it is, for who is asked

    def get(self, run: str) -> Doc:
        if run in self.runs:
            return self.runs[run]
        raise Refused(Pruned if any(key.run == run for key in self.keys.values()) else NotFound)

    # Making runs

    def define(self, name: str, options: Options, payload: dict[str, Any]) -> None:
        self.jobs[name] = Job(_said(options), payload)

    def create(self, news: Sequence[NewRun], answers: Sequence[Created] | None, now: int) -> list[Created]:
        """All or none. The ids are the engine's; without answers (it raised) nothing may be made."""
        self._refuse(news, now)
        assert answers is not None, "the engine refused what it must create"
        expected: list[Created] = []
        for index, (new, answer) in enumerate(zip(news, answers, strict=True)):
            holder = self.keys.get(new.key.name) if new.key else None
            if holder is not None and not self._free(holder, now):
                expected.append(Created(holder.run, created=False, pruned=holder.run not in self.runs))
                continue
            expected.append(Created(answer.id, created=True))
            self._add(self._made(answer.id, new, now, index))
            if new.key:
                until = new.key.until(self.bounds(now)[1])
                self.keys[new.key.name] = Holder(answer.id, _content(new), new.key.ttl == "unfinished", until)
        self.settle(now)
        return expected

    def _refuse(self, news: Sequence[NewRun], now: int) -> None:
        reasons: list[type[WindlassError]] = []
        contents: dict[str, Any] = {}
        for new in news:
            if any(before not in self.runs for before in new.after):
                reasons.append(NotFound)
            if new.job not in self.jobs:
                reasons.append(UnknownJob)
            if new.key is None or new.key.on_duplicate == "return":
                continue
            holder = self.keys.get(new.key.name)
            if holder is not None and not self._free(holder, now) and holder.content != _content(new):
                reasons.append(DuplicateKey)
        firsts = [contents.setdefault(new.key.name, _content(new)) for new in news if new.key]
        again = [_content(new) for new in news if new.key]
        compared = [new.key.on_duplicate == "compare" for new in news if new.key]
        if any(compare and first != other for first, other, compare in zip(firsts, again, compared, strict=True)):
            reasons.append(BadInput)
        if reasons:
            raise Refused(*reasons)

    def _free(self, holder: Holder, now: int) -> bool:
        over = holder.until is not None and holder.until <= self.bounds(now)[0]
        return over or (holder.unfinished and (holder.run not in self.runs or self.runs[holder.run].ended))

    def _made(self, run: str, new: NewRun, now: int, index: int) -> Doc:
        job = self.jobs[new.job]
        options = job.options | _said(new.options)
        due_at = now if new.due_at is None else new.due_at
        payload = job.payload if new.payload is None else new.payload
        if job.payload and isinstance(new.payload, dict):
            payload = {**job.payload, **new.payload}
        requires = options.get("requires")
        doc = Doc(
            id=run,
            number=0,
            job=new.job,
            queue=options.get("queue", "default"),
            needs=frozenset(requires.tags if requires else ()),
            cores=requires.cores if requires else 0,
            uses=tuple(sorted(options.get("uses", ()), key=lambda use: (use.resource, use.per or ""))),
            state="waiting" if new.after else "scheduled" if due_at > now else "queued",
            priority_key=-options.get("priority", 0),
            position=position(max(now, due_at), index),
            payload=payload,
            due_at=due_at,
            created_at=now,
            max_attempts=options.get("max_attempts", 5),
            max_runtime=options.get("max_runtime"),
            policy=Policy(**{name: options[name] for name in Policy.__struct_fields__ if name in options}),
            after=sorted(set(new.after)),
            rule=new.after_end,
            meta=None if new.meta is None else msgspec.json.encode(new.meta).decode(),
        )
        self._rank(doc, -doc.priority_key, self.aging.get(doc.queue))
        return doc

    def _rank(self, doc: Doc, priority: int, aging: int | None) -> None:
        """Where waiting counts, a priority is a head start; else it is a priority_key of its own."""
        doc.position += position(doc.head_start)
        doc.policy = replace(doc.policy, aging=aging)
        doc.priority_key, doc.aging_priority = (-priority, None) if aging is None else (0, priority)
        doc.position -= position(doc.head_start)

    def _add(self, doc: Doc) -> None:
        self.created += 1
        doc.number = UNSEEN + self.created
        self.runs[doc.id] = doc
        for use in doc.uses:
            self.supplies.setdefault(use.resource, Supply())  # one at a time, until somebody says otherwise
        self._note(doc, "create")

    def rerun(self, run: str, attempt: int | None, answer: Created | None, now: int) -> Created:
        old = self.get(run)
        if attempt is not None and attempt > old.attempt:
            raise Refused(NotFound)
        closed = old.closed[attempt - 1] if attempt is not None and attempt < old.attempt else None
        if not old.ended and (closed is None or closed[0] == "returned"):
            raise Refused(WrongState)
        assert answer is not None, "the engine refused what it must rerun"
        doc = self._again_from(old, answer.id, now, 0)
        if attempt is not None and closed is not None:
            doc.retry_of, doc.payload = old.ids[attempt - 1], closed[-1]
        self._add(doc)
        return Created(answer.id, created=True)

    def _again_from(self, old: Doc, run: str, now: int, index: int) -> Doc:
        names = (
            "job",
            "queue",
            "needs",
            "cores",
            "uses",
            "priority_key",
            "payload",
            "max_attempts",
            "max_runtime",
            "policy",
            "aging_priority",
            "meta",
        )
        kept = {name: getattr(old, name) for name in names}
        place = position(now - old.head_start, index)
        return Doc(id=run, number=0, state="queued", retry_of=old.ids[-1], position=place, due_at=now, created_at=now, **kept)

    # Groups

    def create_group(self, new: NewGroup, answer: Group | None, ids: Sequence[str], now: int) -> Bunch:
        """All or nothing. The ids are the engine's, the callback's being the last one."""
        asked = [member.run for member in new.members] + ([] if new.callback is None else [new.callback])
        self._refuse(asked, now)
        assert answer is not None, "the engine refused what it must create"
        docs = [self._made(run, one, now, index) for index, (run, one) in enumerate(zip(ids, asked, strict=True))]
        places = {member.name: run for member, run in zip(new.members, ids, strict=False)}
        for index, (member, doc) in enumerate(zip(new.members, docs, strict=False)):
            doc.after = sorted(places[name] for name in member.after)
            if new.kind == "sequential" and index:
                doc.after = [ids[index - 1]]
        return self._add_group(Bunch(answer.id, new.kind, new.on_failure, len(new.members), answer.callback, now), docs)

    def _add_group(self, group: Bunch, docs: Sequence[Doc]) -> Bunch:
        self.groups[group.id] = group
        for index, doc in enumerate(docs):
            doc.group, doc.calls = (group.id, None) if index < group.total else (None, group.id)
            doc.rule = {"stop": "success", "continue": "any", "skip": "skip"}[group.on_failure]
            doc.state = "waiting" if doc.after or doc.calls else doc.state
            self._add(doc)
        return group

    def members(self, group: str) -> list[Doc]:
        return [doc for doc in self.runs.values() if doc.group == group]

    def cancel_group(self, group: str, reason: str | None, now: int) -> Bunch:
        if group not in self.groups:
            raise Refused(NotFound)
        if self.groups[group].finished_at is not None:
            raise Refused(WrongState)
        self.groups[group].reason = reason
        for doc in self.members(group):
            if not doc.ended and doc.state != "cancelling":
                self._cancel(doc, reason, now)
        self.settle(now)
        return self.groups[group]

    def rerun_group(self, group: str, answer: Group | None, ids: Sequence[str], now: int) -> Bunch:
        if group not in self.groups:
            raise Refused(NotFound)
        old, olds = self.groups[group], sorted(self.members(group), key=lambda doc: doc.id)
        if old.finished_at is None:
            raise Refused(WrongState)
        if len(olds) < old.total:
            raise Refused(BadInput)  # retention has taken some
        olds += [] if old.callback is None else [self.get(old.callback)]
        assert answer is not None, "the engine refused what it must rerun"
        docs = [self._again_from(doc, run, now, index) for index, (doc, run) in enumerate(zip(olds, ids, strict=True))]
        new_ids = {doc.id: run for doc, run in zip(olds, ids, strict=True)}
        for before, doc in zip(olds, docs, strict=True):
            doc.after = sorted(new_ids[run] for run in before.after) if before.group == group else []
        return self._add_group(Bunch(answer.id, old.kind, old.on_failure, old.total, answer.callback, now, old.id), docs)

    # Limits

    def wants(self, doc: Doc, worker: WorkerInfo | None = None) -> list[tuple[str, int]]:
        """The gates that a run must pass, and how much it takes of each; with those of the worker that has it, or asks for it."""
        shared = [(gate(use.resource, None if use.per is None else _key(doc.payload, use.per)), use.weight) for use in doc.uses]
        name = doc.worker if worker is None else worker.name
        return shared + ([(f"cores\x1e{name}", doc.cores)] if name is not None and doc.cores else [])

    def supply(self, key: str, worker: WorkerInfo | None) -> Supply:
        """How much there is of what a gate stands for: as set for all, or as the worker says of itself."""
        own = worker is not None and key == f"cores\x1e{worker.name}"
        return Supply(worker.cores) if own and worker is not None else self.supplies[key.partition("\x1f")[0]]

    def occupied(self, key: str, *, slots: bool = True) -> int:
        """What live runs take of a gate; and direct calls, also those that wait for their turn."""
        runs = sum(weight for doc in self.runs.values() if doc.state in LIVE for other, weight in self.wants(doc) if other == key)
        return runs + sum(slot.weight for slot in self.slots.values() if slots and slot.key == key)

    def lacks(
        self, doc: Doc, now: int, taken: Mapping[str, int] | None = None, kept: Iterable[str] = (), worker: WorkerInfo | None = None
    ) -> list[Lacking]:
        """Everything that keeps a run from passing now, where a claim has given away so much and keeps some gates."""
        found = []
        for key, weight in self.wants(doc, worker):
            supply, gone = self.supply(key, worker), (taken or {}).get(key, 0)
            capacity, rates = supply.capacity, [_bucket(rate) for rate in supply.rates]
            ends = [self._full_at(key, n, room, now) + (gone + weight) * step for n, (step, room) in enumerate(rates)]
            if (capacity is not None and weight > capacity) or any(weight * step > room for step, room in rates):
                found.append(Lacking(key, "impossible"))
            elif capacity is not None and self.occupied(key) + gone + weight > capacity:
                alone = self.occupied(key, slots=False) + gone + weight > capacity
                found.append(Lacking(key, "full" if alone else "reserved"))
            elif any(end > now * 1000 + room for end, (_, room) in zip(ends, rates, strict=True)):
                found.append(Lacking(key, "rate"))
            elif key in kept:
                found.append(Lacking(key, "kept"))
        return found

    def _full_at(self, key: str, n: int, room: int, now: int) -> int:
        """Until when a bucket is used up; one that could not be for so long is of another time, and empty."""
        full_at = self.full_at.get((key, n), 0)
        return full_at if now * 1000 < full_at <= now * 1000 + room + 60_000_000 else now * 1000

    def set_resource(self, name: str, capacity: int | None, rates: tuple[Rate, ...], max_wait: int) -> None:
        self.supplies[name] = Supply(capacity, rates, max_wait)

    # Direct calls

    def reserve(self, asked: Slot, now: int) -> Slot:
        resource = asked.key.partition("\x1f")[0]
        if resource not in self.supplies:
            raise Refused(NotFound)
        if not self._possible(asked):
            raise Refused(BadInput)
        if asked.id not in self.slots:
            self.slots[asked.id] = replace(asked, lease_until=now + asked.lease, created_at=now)
        self._grant(asked.key, now)
        return self.slots[asked.id]

    def renew(self, slot: str, token: str, lease: int, now: int) -> Slot:
        old = self.slots.get(slot)
        if old is None or old.token != token:
            raise Refused(LeaseLost)
        if old.state == "waiting" and not self._possible(old):
            raise Refused(BadInput)
        self.slots[slot] = replace(old, lease=max(old.lease, lease), lease_until=_extended(old.lease_until, old.lease, lease, now))
        self._grant(old.key, now)
        return self.slots[slot]

    def release(self, slot: str, token: str) -> bool:
        mine = slot in self.slots and self.slots[slot].token == token
        if mine:
            del self.slots[slot]
        return mine

    def _possible(self, slot: Slot) -> bool:
        capacity = self.supplies[slot.key.partition("\x1f")[0]].capacity
        return capacity is None or slot.weight <= capacity

    def _grant(self, key: str, now: int) -> None:
        """Those who call are served in their order, behind what runs."""
        capacity, used = self.supplies[key.partition("\x1f")[0]].capacity, self.occupied(key, slots=False)
        for slot in [slot for slot in self.slots.values() if slot.key == key]:
            used += slot.weight
            if slot.state == "waiting" and (capacity is None or used <= capacity):
                self.slots[slot.id] = replace(slot, state="held", held_at=now)

    def lapse_slots(self, now: int, over: Over) -> None:
        overdue = [slot for slot in self.slots.values() if not now < slot.lease_until <= now + slot.lease]
        gone = [slot.id for slot in overdue if over((slot.id, ""), slot.lease_until - slot.lease, slot.lease, slot.lease)]
        for slot in gone:
            del self.slots[slot]

    # Handing out

    def ready(self, worker: WorkerInfo, now: int, count: int = 1_000) -> list[Doc]:
        """What a worker gets, in order; nothing for a worker whose one slot is taken."""
        if worker.slots == 1 and any(doc.alone and doc.worker == worker.name and doc.state in LIVE for doc in self.runs.values()):
            return []
        return self.first(worker, now, count)

    def first(self, worker: WorkerInfo, now: int, count: int) -> list[Doc]:
        """The first runs that a worker may take and that may pass.

        A run that may not is not waited for, but for two cases: where it lacks one resource only, that is kept for it; and where
        it has waited for long, all that it needs. The first run of a lane that lacks something speaks for the lane. A key is no resource
        in this sense: those who lack their key are put aside.
        """
        chosen: list[Doc] = []
        taken: Counter[str] = Counter()
        kept: set[str] = set()
        shut = set()
        for doc in sorted(self.runs.values(), key=lambda doc: doc.place):
            if (
                doc.state != "queued"
                or doc.parked
                or self.paused(doc)
                or not able(worker, doc)
                or _lane(doc) in shut
                or len(chosen) == count
            ):
                continue
            if missing := self.lacks(doc, now, taken, kept, worker):
                if any("\x1f" not in lacking.key for lacking in missing):
                    shut.add(_lane(doc))
                kept |= self._kept_for(doc, missing, now, worker)
            else:
                chosen.append(doc)
                taken.update(dict(self.wants(doc, worker)))
        return chosen

    def _kept_for(self, doc: Doc, missing: Sequence[Lacking], now: int, worker: WorkerInfo) -> set[str]:
        if any("\x1f" in lacking.key or lacking.why == "impossible" for lacking in missing):
            return set()
        if any(now - doc.due_at >= self.supply(lacking.key, worker).max_wait for lacking in missing):
            return {key for key, _ in self.wants(doc, worker) if "\x1f" not in key}
        return {missing[0].key} if len(missing) == 1 else set()

    def paused(self, doc: Doc) -> list[str]:
        """By what a run is held back until somebody resumes it."""
        return [scope for scope, name in (("system", ""), ("queue", doc.queue), ("job", doc.job)) if (scope, name) in self.pauses]

    def claim(self, worker: WorkerInfo, count: int, lease: int, nonce: str | None, token: str | None, saw: bool, now: int) -> list[str]:
        """The ids that a claim must give. `saw`: there was something to take when it looked."""
        if nonce in self.nonces:
            mine = [doc for doc in self.runs.values() if doc.state in LIVE and (doc.token, doc.worker) == (nonce, worker.name)]
            return [doc.id for doc in sorted(mine, key=lambda doc: doc.place)]
        if nonce is not None and saw:
            self.nonces[nonce] = now + KEEP_NONCES
        taken = self.ready(worker, now, 1 if worker.slots == 1 else count)
        self._take(taken, worker, lease, token, now)
        return [doc.id for doc in taken]

    def claim_in_a_race(self, worker: WorkerInfo, lease: int, answer: Sequence[str], token: str | None, now: int) -> list[str]:
        """What a claim gives that chose while others were faster: the engine says which, and all of them may pass, in order."""
        docs, taken = [self.runs[run] for run in answer], Counter[str]()
        assert docs == sorted(docs, key=lambda doc: doc.place)
        for doc in docs:
            assert (doc.state, doc.parked, self.paused(doc), able(worker, doc)) == ("queued", False, [], True), f"{doc.id} may not be taken"
            assert not self.lacks(doc, now, taken, worker=worker), f"{doc.id} may not pass"
            taken.update(dict(self.wants(doc, worker)))
        self._take(docs, worker, lease, token, now)
        return list(answer)

    def _take(self, taken: Sequence[Doc], worker: WorkerInfo, lease: int, token: str | None, now: int) -> None:
        for doc in taken:
            for key, weight in self.wants(doc):
                for n, rate in enumerate(self.supplies[key.partition("\x1f")[0]].rates):
                    step, room = _bucket(rate)
                    self.full_at[key, n] = self._full_at(key, n, room, now) + weight * step
        for doc in taken:
            doc.state, doc.token, doc.worker, doc.alone, doc.lease = "claimed", token, worker.name, worker.slots == 1, lease
            doc.claimed_at, doc.lease_until = max(now, doc.created_at), now + lease
            doc.lease_check_at, doc.progress = now + min(lease, doc.max_runtime or lease), None
            self._note(doc, "claim")

    def start(self, run: str, token: str, now: int) -> None:
        doc = self.get(run)
        if doc.token != token:
            raise Refused(LeaseLost)
        if doc.state == "cancelling":
            raise Refused(Cancelled)
        if doc.state not in ("claimed", "running"):
            raise Refused(WrongState)
        if doc.state == "claimed":
            doc.state, doc.started_at = "running", max(now, doc.claimed_at or 0)
            self._note(doc, "start")

    def start_many(self, held: Iterable[tuple[str, str]], now: int) -> set[tuple[str, str]]:
        """Those that are running under their tokens afterwards."""
        running = set()
        for run, token in held:
            with suppress(Refused):
                self.start(run, token, now)
                running.add((run, token))
        return running

    def beat(self, run: str, token: str, lease: int, now: int, progress: str | None = None) -> str:
        doc = self.runs.get(run)
        if doc is None or doc.state not in LIVE or doc.token != token:
            return "lost"
        doc.lease_until = _extended(doc.lease_until or 0, doc.lease or 0, lease, now)
        doc.lease = max(doc.lease or 0, lease)
        doc.progress = doc.progress if progress is None else progress
        return "stop" if doc.state == "cancelling" else "ok"

    def log(self, run: str, token: str, lines: Iterable[tuple[int, str]]) -> None:
        doc = self.get(run)
        if doc.token != token or doc.state not in LIVE:
            raise Refused(Cancelled if doc.token == token and doc.state == "cancelled" else LeaseLost)
        for number, text in sorted(lines):
            doc.lines.setdefault((doc.attempt, number), text)

    # How attempts end

    def report(self, run: str, report: Report, now: int) -> tuple[str, bool]:
        """The state that the answer names, and whether it is an answer given before."""
        doc = self.runs.get(run)
        if doc is None:
            raise Refused(NotFound)
        token, words = report.token or "", _words(report)
        if isinstance(report, Succeed) and doc.state == "succeeded" and _equal(doc, report):
            return doc.state, True
        if words is not None and token in doc.said and (doc.said[token][0], words) in ((words, words), ("returned", "unbegun")):
            return doc.said[token][1], True
        if doc.token != token:
            raise Refused(LeaseLost)
        if doc.state == "cancelling":
            self._end(doc, "cancelled", now, "confirm")
        if doc.state == "cancelled":
            raise Refused(Cancelled)
        if doc.ended:
            raise Refused(WrongState)
        self._reported(doc, report, now)
        doc.said[token] = (words, doc.state)
        return doc.state, False

    def _reported(self, doc: Doc, report: Report, now: int) -> None:
        if isinstance(report, Refuse):
            self._does_not_fit(doc, report, now)
            return
        if not isinstance(report, Snooze | Requeue):
            doc.started_at = doc.claimed_at if doc.started_at is None else doc.started_at
        if isinstance(report, Succeed):
            doc.output, doc.digest, doc.name, doc.error = report.output, report.output_hash, report.key, None
            self._end(doc, "succeeded", now, "succeed")
        elif isinstance(report, Fail):
            self._fail(doc, report.error.code, now, "fail", report.delay, final=not report.retry)
        elif isinstance(report, Skip):
            doc.reason = report.reason
            self._end(doc, "skipped", now, "skip")
        elif _unbegun(report):
            doc.state = "queued"
            self._note(doc, report.name)
            self._let_go(doc)
        else:
            self._return(doc, now, report.delay if isinstance(report, Snooze) else 0, report.name)

    def _fail(self, doc: Doc, code: str, now: int, move: str, delay: int | None = None, final: bool = False) -> None:
        delays = delay if delay is not None else _delays(doc)
        doc.error, doc.failures = code, doc.failures + 1
        if final or doc.failures == doc.max_attempts:
            self._end(doc, doc.policy.on_exhausted, now, move)
            return
        self._again(doc, now, delays, "lapsed" if move == "lapse" else "failed", move)
        if doc.policy.retry_place == "tail":
            doc.position = position(doc.due_at - doc.head_start)

    def _does_not_fit(self, doc: Doc, report: Refuse, now: int) -> None:
        """While a live worker may have other code, it goes back; in the model no worker tells which it has."""
        begun, count = doc.refused[1:] if doc.refused is not None and doc.refused[0] == doc.attempt - 1 else (now, 0)
        doc.refused, doc.error = (doc.attempt, min(begun, now), count + 1), report.error.code
        left = doc.refused[1] + 600_000 - now
        if left <= 0 or not any(able(worker, doc) and worker.name != doc.worker for worker in self._alive(now)):
            doc.started_at, doc.failures = doc.claimed_at if doc.started_at is None else doc.started_at, doc.failures + 1
            self._end(doc, doc.policy.on_exhausted, now, "refuse")
        else:
            self._again(doc, now, min(1_000 * 2**count, 30_000, max(left, 1_000)), "returned", "refuse", doc.error)

    def _return(self, doc: Doc, now: int, delay: int, move: str) -> None:
        if doc.requeues == doc.policy.max_requeues:
            doc.error, doc.failures = "max_requeues_exceeded", doc.failures + 1
            self._end(doc, doc.policy.on_exhausted, now, move)
            return
        doc.requeues += 1
        self._again(doc, now, delay, "returned", move)

    def _again(self, doc: Doc, now: int, delay: int | tuple[int, int], outcome: str, move: str, refused: str | None = None) -> None:
        """Close the attempt and plan the next, after a delay or a drawn one."""
        low = delay if isinstance(delay, int) else delay[0]
        doc.drawn = None if isinstance(delay, int) else (now + delay[0], now + delay[1])
        doc.due_at, doc.state = now + low, "queued" if low == 0 else "scheduled"
        started_at = doc.started_at if outcome == "lapsed" or doc.started_at is not None else doc.claimed_at
        finished_at = max(now, doc.claimed_at or 0, started_at or 0)
        error = refused if outcome == "returned" else doc.error
        doc.closed.append((outcome, doc.state, doc.worker, doc.token, doc.claimed_at, started_at, finished_at, error, doc.payload))
        self._note(doc, move)
        doc.attempt += 1
        self._let_go(doc)

    def _let_go(self, doc: Doc) -> None:
        doc.token = doc.worker = doc.lease = doc.claimed_at = doc.started_at = doc.lease_until = doc.lease_check_at = None
        doc.alone = False

    def _end(self, doc: Doc, state: str, now: int, move: str) -> None:
        self._finish(doc, state, now, move)
        self.settle(now)

    def _finish(self, doc: Doc, state: str, now: int, move: str) -> None:
        doc.state = state
        doc.finished_at = max(now, doc.created_at, doc.claimed_at or 0, doc.started_at or 0)
        doc.lease_until = doc.lease_check_at = None
        doc.alone = doc.parked = False
        self._note(doc, move)
        if doc.group is not None:
            group = self.groups[doc.group]
            group.ends[{"quarantined": "failed", "skipped": "cancelled"}.get(state, state)] += 1
            group.finished_at = max(now, group.created_at) if group.ends.total() == group.total else None

    def settle(self, now: int) -> None:
        """Whatever waits for something that has ended is released, or can no longer be."""
        for doc in sorted(self.runs.values(), key=lambda doc: doc.number):
            if doc.state != "waiting":
                continue
            ends = [self.runs[run].state for run in doc.after if self.runs[run].ended]
            if doc.rule != "any" and any(state != "succeeded" for state in ends):
                doc.cancel_asked_at, doc.reason = None if doc.rule == "skip" else now, "predecessor failed"
                self._end(doc, *(("skipped", now, "skip") if doc.rule == "skip" else ("cancelled", now, "cancel")))
            elif len(ends) == len(doc.after) and (doc.calls is None or self.groups[doc.calls].finished_at is not None):
                doc.state = "scheduled" if doc.due_at > now else "queued"
                self._note(doc, "release")

    # What people do

    def cancel(self, run: str, reason: str | None, now: int) -> str:
        doc = self.get(run)
        if doc.ended:
            raise Refused(WrongState)
        if doc.state != "cancelling":
            self._cancel(doc, reason, now)
            self.settle(now)
        return doc.state

    def _cancel(self, doc: Doc, reason: str | None, now: int) -> None:
        doc.cancel_asked_at, doc.reason = now, reason
        if doc.state in PENDING:
            self._finish(doc, "cancelled", now, "cancel")
        else:
            doc.state, doc.lease_check_at = "cancelling", min(doc.lease_check_at or 0, now + doc.policy.grace)
            self._note(doc, "cancel")

    def skip(self, run: str, reason: str, now: int) -> str:
        doc = self.get(run)
        if doc.state not in PENDING:
            raise Refused(WrongState)
        doc.reason = reason
        self._end(doc, "skipped", now, "skip")
        return doc.state

    def patch(self, run: str, given: Mapping[str, Any], now: int) -> str:
        doc = self.get(run)
        if doc.state not in PENDING:
            raise Refused(NotEditable)
        if given.get("max_attempts", doc.max_attempts) <= doc.failures:
            raise Refused(BadInput)
        doc.payload, doc.max_attempts = given.get("payload", doc.payload), given.get("max_attempts", doc.max_attempts)
        queue, priority = (
            given.get("queue", doc.queue),
            given.get("priority", -doc.priority_key if doc.aging_priority is None else doc.aging_priority),
        )
        if queue != doc.queue:
            self._rank(doc, priority, self.aging.get(queue))
        elif "priority" in given:
            self._rank(doc, priority, None if doc.aging_priority is None else doc.policy.aging)
        doc.queue, doc.parked = queue, False
        if "due_at" in given:
            doc.due_at = given["due_at"]
            doc.position = position(max(doc.created_at, doc.due_at) - doc.head_start)
            if doc.state != "waiting":
                doc.state = "scheduled" if doc.due_at > now else "queued"
        self._note(doc, "patch")
        return doc.state

    def move(self, run: str, aim: Mapping[str, Any], now: int) -> str:
        """The queue stands in a new order; positions are the engine's business."""
        doc = self.get(run)
        if doc.state not in PENDING:
            raise Refused(NotEditable)
        line = [other for other in self.listed(None, doc.queue, "queued") if other != run]
        index = self._aimed(doc, line, aim)
        low, high = ([self.runs[other].priority_key for other in part] for part in (line[:index], line[index:]))
        priority_key = min([max([doc.priority_key, *low[-1:]]), *high[:1]])
        doc.aging_priority, doc.priority_key = doc.aging_priority if priority_key == doc.priority_key else None, priority_key
        self.asked_order = run, [*line[:index], run, *line[index:]]
        self._note(doc, "move")
        return doc.state

    def _aimed(self, doc: Doc, line: Sequence[str], aim: Mapping[str, Any]) -> int:
        if "place" in aim:
            return min(int(aim["place"]), len(line))
        if "to" in aim:
            return 0 if aim["to"] == "top" else len(line)
        other = self.get(aim.get("before") or aim["after"])
        if other is doc or other.queue != doc.queue:
            raise Refused(BadInput)
        if other.state != "queued":
            raise Refused(WrongState)
        return line.index(other.id) + int("after" in aim)

    # What time does

    def look_sooner(self, now: int, jump: int) -> None:
        """Have those leases looked at that seem to last for longer than they can."""
        for doc in self.runs.values():
            if doc.lease_check_at is not None and doc.lease_check_at > now + jump + (doc.lease or 0):
                doc.lease_check_at = now

    def verdicts(self, now: int, over: Over) -> dict[str, tuple[int, int | None, str | int]]:
        """What a sweep that looks now decides for each lease that wants a look: a move, or when to look again; with what it saw."""
        looked = [doc for doc in self.runs.values() if doc.lease_check_at is not None and doc.lease_check_at <= now]
        found = {doc.id: (doc.rev, doc.lease_until, self._verdict(doc, over)) for doc in looked}
        return {run: (rev, until, verdict) for run, (rev, until, verdict) in found.items() if verdict is not None}

    def _verdict(self, doc: Doc, over: Over) -> str | int | None:
        terms = [] if doc.cancel_asked_at is None else [("abandon", doc.cancel_asked_at, doc.policy.grace)]
        terms += [] if doc.max_runtime is None else [("expire", doc.claimed_at or 0, doc.max_runtime)]
        lease = doc.lease or 0
        terms.append(("lapse", (doc.lease_until or 0) - lease, lease))
        said = {move: over((doc.id, doc.token, move), start, length, lease) for move, start, length in terms}
        for move, _, _ in terms:
            if said[move]:
                return move
        return None if None in said.values() else min(start + length for _, start, length in terms)

    def carry_out(self, verdicts: Mapping[str, tuple[int, int | None, str | int]], now: int) -> list[str]:
        """Do what a sweep decided, to what has not moved since it looked; those that moved."""
        moved = []
        for run, (rev, until, verdict) in verdicts.items():
            doc = self.runs[run]
            renewed = verdict == "lapse" and doc.lease_until != until
            if doc.rev != rev or renewed:
                continue
            if isinstance(verdict, int):
                doc.lease_check_at = verdict
                continue
            moved.append(run)
            if doc.state == "cancelling":
                self._end(doc, "cancelled", now, verdict)
            elif verdict == "expire":
                self._fail(doc, "max_runtime_exceeded", now, "expire", final=True)
            else:
                self._fail(doc, "worker_lost", now, "lapse")
        return moved

    def dispatch(self, now: int) -> int:
        due = [doc for doc in self.runs.values() if doc.state == "scheduled" and doc.due_at <= now]
        for doc in due:
            doc.state = "queued"
            self._note(doc, "dispatch")
        return len(due)

    def prune(self, now: int) -> int:
        now = self.bounds(now)[0]
        past = {doc.id for doc in self.runs.values() if doc.finished_at is not None and doc.finished_at < now - KEEP[doc.state]}
        old = past - {run for doc in self.runs.values() if not doc.ended for run in self._read_by(doc)}
        for run in old:
            del self.runs[run]
        for doc in self.runs.values():
            doc.after = [run for run in doc.after if run not in old]
        self.keys = {
            name: key
            for name, key in self.keys.items()
            if not (key.unfinished and key.run in old) and not (key.until is not None and key.until <= now)
        }
        self.nonces = {nonce: until for nonce, until in self.nonces.items() if until > now}
        self.groups = {name: group for name, group in self.groups.items() if self.members(name)}
        return len(old)

    def _read_by(self, doc: Doc) -> list[str]:
        """The runs whose results it may read."""
        return doc.after + ([] if doc.calls is None else [member.id for member in self.members(doc.calls)])

    # Looking

    def listed(self, job: str | None, queue: str | None, state: str | None) -> list[str]:
        """The ids of a list, in its order."""
        if queue is not None and state != "queued":
            return self.in_queue(queue, [state] if state else [doc.state for doc in self.runs.values()])
        wanted = {"job": job, "queue": queue, "state": state}
        docs = [doc for doc in self.runs.values() if all(value in (None, getattr(doc, name)) for name, value in wanted.items())]
        if state in LIVE:
            docs.sort(key=lambda doc: (doc.lease_check_at or 0, doc.number))
        elif state == "queued":
            docs.sort(key=lambda doc: doc.place)
        elif state == "scheduled":
            docs.sort(key=lambda doc: (doc.due_at, doc.number))
        elif state == "waiting":
            docs.sort(key=lambda doc: doc.number)
        elif state is not None:
            docs.sort(key=lambda doc: (doc.finished_at or 0, doc.number), reverse=True)
        else:
            docs.sort(key=lambda doc: doc.number, reverse=True)
        return [doc.id for doc in docs]

    def in_queue(self, queue: str, states: Collection[str]) -> list[str]:
        """The ids of the runs of a queue in these states, newest first."""
        docs = [doc for doc in self.runs.values() if doc.queue == queue and doc.state in states]
        return [doc.id for doc in sorted(docs, key=lambda doc: doc.number, reverse=True)]

    def why(self, run: str, now: int) -> list[str]:
        """The codes of all that holds a run back, but for those runs that come before it, and how often it was refused."""
        doc = self.get(run)
        if doc.ended or doc.state in LIVE:
            over = not doc.ended and doc.lease_until is not None and doc.lease_until <= now
            return ["ended" if doc.ended else "held"] + ["lease_over"] * over
        paused = ["paused"] * len(self.paused(doc))
        if doc.state == "waiting":
            called = doc.calls is not None and self.groups[doc.calls].finished_at is None
            return ["waits_for"] * sum(not self.runs[before].ended for before in doc.after) + ["waits_for_group"] * called + paused
        if doc.state == "scheduled":
            return ["not_due", *paused]
        lacking = [lacking.why for lacking in self.lacks(doc, now)]
        takers = [worker for worker in self._alive(now) if able(worker, doc)]
        unknown = ["no_worker"] * (not takers)
        full = ["worker_full"] * (bool(takers) and all(self._short(doc, worker) for worker in takers))
        return [*paused, *unknown, *lacking, *full, *["parked"] * (doc.parked and not lacking)]

    def _short(self, doc: Doc, worker: WorkerInfo) -> bool:
        return doc.cores > 0 and self.occupied(f"cores\x1e{worker.name}") + doc.cores > worker.cores

    def next_ones(self, now: int) -> set[str]:
        """The runs that a live worker would get if it asked for one, and had nothing to do."""
        return {doc.id for worker in self._alive(now) for doc in self.first(worker, now, 1)}

    def _alive(self, now: int) -> list[WorkerInfo]:
        return [worker for worker, seen in self.workers.values() if seen >= now - SILENCE]

    # The store must say the same

    def compare(self, found: Snapshot, now: int) -> None:
        """Every row of the store is as the model has it; drawn times and new ids are taken over from it."""
        rows = found.by_id()
        self._adopt_order(rows)
        assert rows.keys() == self.runs.keys(), f"only one of the two has {rows.keys() ^ self.runs.keys()}"
        for run, doc in self.runs.items():
            row = rows[run]
            self._adopt(doc, row.due_at)
            doc.parked = row.parked is not None
            doc.ids = [item.id for item in found.attempts.get(row.seq, [])] + [row.current_attempt]
            assert doc.attempt > 1 or row.retry_of == doc.retry_of, f"the first attempt of a rerun names the last of the old run: {row}"
            assert _row(row) == _expected(doc), f"store and model differ on {run}"
            closed = [_closed(item) for item in found.attempts.get(row.seq, [])]
            assert closed == doc.closed, f"store and model differ on the attempts of {run}"
            entries = [(entry.move, entry.state, entry.attempt, entry.worker) for entry in found.journal[row.seq]]
            assert entries == doc.entries, f"store and model differ on the journal of {run}"
        lines = {(found.runs[line.run].id, line.attempt, line.n): line.text for line in found.lines}
        assert lines == {(doc.id, *key): text for doc in self.runs.values() for key, text in doc.lines.items()}
        keys = {("key", name): (key.run, int(key.unfinished), key.until) for name, key in self.keys.items()}
        assert {name: (key.run, key.unfinished, key.until) for name, key in found.keys.items() if name[0] == "key"} == keys
        assert {name[1]: key.until for name, key in found.keys.items() if name[0] == "claim"} == self.nonces
        self._compare_order(found)
        self._compare_controls(found, now)

    def _adopt_order(self, rows: Mapping[str, Any]) -> None:
        """Of a queue in which one was moved, the positions are the engine's; the order is not."""
        if self.asked_order is None:
            return
        run, line = self.asked_order
        self.asked_order = None
        assert sorted(line, key=lambda one: (rows[one].priority_key, rows[one].position, rows[one].seq)) == line, (
            f"S14: {run} is not where it was put"
        )
        for one in line:
            self.runs[one].position = rows[one].position

    def _compare_controls(self, found: Snapshot, now: int) -> None:
        assert {(pause.scope, pause.name) for pause in found.pauses} == self.pauses
        assert {queue.name: queue.aging for queue in found.queues} == self.aging
        supplies = {name: Supply(one.capacity, one.rates, one.max_wait) for name, one in found.resources.items()}
        for name in supplies.keys() - self.supplies.keys():
            self.supplies[name] = Supply()  # of a creation that was refused
        assert supplies == self.supplies
        assert [replace(slot, seq=0) for slot in found.slots] == list(self.slots.values())
        gone = [key for key, full_at in self.full_at.items() if key not in found.rates and full_at <= now * 1000]
        for key in gone:
            del self.full_at[key]  # it would let everything pass
        assert found.rates == self.full_at
        groups = {
            group.id: (group.status, group.finished_at, group.reason, group.retry_of, group.callback) for group in found.groups.values()
        }
        assert groups == {one.id: (one.status, one.finished_at, one.reason, one.retry_of, one.callback) for one in self.groups.values()}
        counts = {group.id: (group.total, group.succeeded, group.failed, group.cancelled) for group in found.groups.values()}
        assert counts == {
            one.id: (one.total, one.ends["succeeded"], one.ends["failed"], one.ends["cancelled"]) for one in self.groups.values()
        }

    def _compare_order(self, found: Snapshot) -> None:
        seen = max((doc.number for doc in self.runs.values() if doc.number < UNSEEN), default=0)
        for seq, row in found.runs.items():
            doc = self.runs[row.id]
            assert seq == doc.number or (doc.number > UNSEEN and seq > seen), "runs are not in the order of their creation"
            doc.number = seq

    def _adopt(self, doc: Doc, due_at: int) -> None:
        if doc.drawn is not None:
            low, high = doc.drawn
            assert low <= due_at <= high, f"the retry of {doc.id} is due at {due_at}, not within {doc.drawn}"
            doc.due_at, doc.drawn = due_at, None
            if doc.policy.retry_place == "tail":
                doc.position = position(due_at - doc.head_start)

    def _note(self, doc: Doc, move: str) -> None:
        doc.entries.append((move, doc.state, doc.attempt, doc.worker))


def able(worker: WorkerInfo, doc: Doc) -> bool:
    """Whether a worker can and may take a run."""
    may = (worker.queues is None or doc.queue in worker.queues) and (worker.jobs is None or doc.job in worker.jobs)
    return may and doc.needs <= set(worker.tags) and doc.cores <= worker.cores


def _extended(until: int, had: int, lease: int, now: int) -> int:
    return min(max(until, now + lease), now + max(had, lease))


def _said(options: Options) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in Options.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


def _content(new: NewRun) -> Any:
    """What a creation asks for, without the name it asks under."""
    return new.job, new.payload, new.options, new.due_at, new.after, new.after_end, new.meta


def _lane(doc: Doc) -> Any:
    return doc.queue, doc.job, doc.needs, doc.cores, doc.uses


def gate(resource: str, key: str | None = None) -> str:
    """The name of what is counted together."""
    return resource if key is None else f"{resource}\x1f{key}"


def _key(payload: Any, name: str) -> str:
    value = payload.get(name) if isinstance(payload, dict) else None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _bucket(rate: Rate) -> tuple[int, int]:
    """How many microseconds one use fills, and how many there is room for."""
    step = -(-rate.period * 1000 // rate.count)
    return step, step * (rate.burst or rate.count)


def _delays(doc: Doc) -> int | tuple[int, int]:
    nth = doc.failures
    if doc.policy.backoff:
        return [*doc.policy.backoff, *[doc.policy.backoff[-1]] * nth][nth]
    upper = min(2 * doc.policy.backoff_base * 2**nth, 60_000)
    return upper // 2, upper


def _words(report: Report) -> Any:
    """What makes two reports the same; a success is known by its result alone."""
    if isinstance(report, Fail | Refuse):
        return report.name, report.error
    if isinstance(report, Skip):
        return report.name, report.reason
    return None if isinstance(report, Succeed) else "unbegun" if _unbegun(report) else "returned"


def _unbegun(report: Report) -> bool:
    return isinstance(report, Requeue) and not report.begun


def _equal(doc: Doc, report: Succeed) -> bool:
    if report.key is not None and doc.name == report.key:
        return True
    return doc.digest == report.output_hash if doc.digest and report.output_hash else doc.output == report.output


_COMPARED = (
    "job", "queue", "priority_key", "position", "due_at", "created_at", "max_attempts", "max_runtime", "policy", "attempt", "failures",
    "requeues", "token", "worker", "lease", "claimed_at", "started_at", "lease_until", "lease_check_at", "cancel_asked_at", "finished_at",
    "reason", "output", "progress", "aging_priority", "meta",
)  # fmt: skip


def _row(row: Any) -> dict[str, Any]:
    known = {name: getattr(row, name) for name in _COMPARED}
    error = None if row.error is None else row.error.code
    payload = msgspec.json.decode(row.payload)
    result = {"digest": row.output_hash, "name": row.output_key}
    return known | result | {"state": row.state.value, "alone": row.slot == 0, "error": error, "payload": payload}


def _expected(doc: Doc) -> dict[str, Any]:
    names = (*_COMPARED, "state", "alone", "error", "digest", "name", "payload")
    return {name: getattr(doc, name) for name in names}


def _closed(item: Any) -> tuple[Any, ...]:
    error = None if item.error is None else msgspec.json.decode(item.error)["code"]
    payload = msgspec.json.decode(item.payload)
    return item.outcome, item.answer, item.worker, item.token, item.claimed_at, item.started_at, item.finished_at, error, payload
