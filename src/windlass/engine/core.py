"""What every verb stands on: the records, the clock, and what this process remembers of jobs and lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import lru_cache
from threading import Lock
from typing import Any, Literal, NamedTuple, Self

from msgspec.structs import asdict, replace

from windlass import payload as json
from windlass.clock import Clock
from windlass.engine import checks, fits
from windlass.engine.steady import Bounds, Steady
from windlass.errors import Conflict, Forbidden, LimitReached, NotFound, OutcomeUnknown, Pruned, UnknownJob, in_doubt
from windlass.gates import Gate, offers, owner_of, parts_of
from windlass.machine import Command, step
from windlass.model import (
    FOREVER,
    SOLVER,
    Job,
    Lane,
    Limits,
    Needs,
    Options,
    Pause,
    Policy,
    Principal,
    Requires,
    Resource,
    Run,
    State,
    WorkerInfo,
)
from windlass.store.base import JOURNAL, SWEEP, Hints, Joined, NoHints, Store, queue_topic, slot_topic, worker_topic
from windlass.store.creation import Kind
from windlass.store.order import Settings
from windlass.store.records import Change, Known, Ready, Records, Told, Written, needs_from, needs_text
from windlass.store.rows import Act, policy_text

DEFAULT_QUEUE, DEFAULT_ATTEMPTS = "default", 5
PATIENCE = 50
"""How often a verb reads and decides again after losing a race, before it says so."""

LEASE = 30_000
"""Milliseconds for which a run is held, unless its worker says otherwise."""

MAX_WAIT = 60_000
"""Milliseconds after which a run that lacks several resources has them kept for it, unless the resource says otherwise."""

EXACT_LANES = 32
"""Lanes of a job in a queue. Where there are more, further numbers of cores and memory are rounded up to powers of two."""

MOST_REMEMBERED = 256
"""Workers whose open lanes a process keeps worked out."""

MOST_DOCUMENTS = 4 * 1024 * 1024
"""Characters of schemas that a process remembers."""

BACK_AT_LATEST = 1_000
"""Milliseconds between two sweeps at most: what is due within it is worth a hint."""

DAY = 24 * 3_600_000
NOTED_EVERY, LOOKED_EVERY = DAY, DAY // 24
"""Milliseconds after which the use of a lane is noted again, and between two looks whether it is time."""

_FEWER = {
    "lanes": "Use fewer combinations of queue, job and requirements.",
    "resources": "Use a key (`per`) instead of many names.",
    "undefined jobs": "Define the jobs first, or use fewer names.",
}
_POLICY_FIELDS = Policy.__struct_fields__


class Template(NamedTuple):
    """What a job gives to each of its runs, worked out once per revision."""

    queue: str
    requires: str
    band: int
    max_attempts: int
    max_runtime: int | None
    policy: str | None
    amounts: tuple[int, int]  # of cores and memory
    keep: int | None

    @classmethod
    def of(cls, options: Options) -> Self:
        given = {name: value for name, value in asdict(options).items() if value is not None}
        policy = Policy(**{name: given[name] for name in _POLICY_FIELDS if name in given})
        needs = needs_of(options)
        return cls(
            queue=given.get("queue", DEFAULT_QUEUE),
            requires=needs_text(needs),
            band=-given.get("priority", 0),
            max_attempts=given.get("max_attempts", DEFAULT_ATTEMPTS),
            max_runtime=given.get("max_runtime") or None,
            policy=policy_text(policy),
            amounts=(needs.cores, needs.memory),
            keep=FOREVER if options.keep == "forever" else options.keep,
        )

    def kind(self, state: State, job: str, lane: int, retry_of: str | None) -> Kind:
        """What runs have in common that are made from it."""
        rules = self.max_attempts, self.max_runtime, self.policy
        return Kind(state.value, job, self.queue, lane, self.band, *rules, retry_of, keep=self.keep)


def merged(base: Options, over: Options) -> Options:
    """The options of a job with what a creation said itself laid over them."""
    return replace(base, **{name: value for name, value in asdict(over).items() if value is not None})


def needs_of(options: Options) -> Needs:
    """What runs need, as lanes know it: with sorted tags and uses."""
    requires = options.requires or Requires()
    tags = {*requires.tags, SOLVER} if options.solver is not None else set(requires.tags)
    uses = sorted(options.uses or (), key=lambda use: (use.resource, use.per or ""))
    return Needs(tuple(sorted(tags)), requires.cores, requires.memory, tuple(uses))


def lessened(job: Options, given: Options) -> str | None:
    """Something that runs of a job use or require, and that a run with these options would go without."""
    usual, own = needs_of(job), needs_of(merged(job, given))
    weights = {(use.resource, use.per): use.weight for use in own.uses}
    for use in usual.uses:
        if weights.get((use.resource, use.per), 0) < use.weight:
            return f"uses {use.resource!r}"
    for tag in sorted(set(usual.tags) - set(own.tags)):
        return f"requires the tag {tag!r}"
    for name in ("cores", "memory"):
        if getattr(own, name) < getattr(usual, name):
            return f"requires {name}"
    return None


LaneKey = tuple[str, str, str]  # queue, job, and the text of its needs


@lru_cache(maxsize=4096)
def _rounded(lane: LaneKey) -> LaneKey:
    """The lane for all whose cores and memory have the same next power of two."""
    needs = needs_from(lane[2])
    return *lane[:2], needs_text(replace(needs, cores=_power_of_two(needs.cores), memory=_power_of_two(needs.memory)))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number > 0 else 0


def open_to(lane: Lane, worker: WorkerInfo) -> bool:
    """Whether a worker can and may take the runs of a lane. What brings its own program along needs no handler."""
    wanted = lane.requires
    return (
        (worker.queues is None or lane.queue in worker.queues)
        and (worker.jobs is None or lane.job in worker.jobs or SOLVER in wanted.tags)
        and set(wanted.tags) <= set(worker.tags)
        and wanted.cores <= worker.cores
        and wanted.memory <= worker.memory
    )


def not_theirs(what: str, name: str, owner: str | None) -> Forbidden:
    """The answer to code that defines what others have defined."""
    whose = "a person or another program" if owner is None else f"code of {owner!r}"
    return Forbidden(
        f"The {what} {name!r} was made by {whose}, so it stays as it is.",
        hint="Choose another name, change it with the scope admin, or give the tokens of one fleet the same principal.",
    )


def pruned(run_id: str) -> Pruned:
    """What is to be said of a run that was here."""
    hint = "Only its key is still known. Keep runs for longer to read them later."
    return Pruned(f"Run {run_id} has ended and was removed by retention.", hint=hint)


def _topics(ready: Iterable[Ready], now: int) -> dict[str, list[str | int]]:
    """What is to be said of runs that are ready: to workers when they are, to sweepers when they are within their next pause.

    Which they are is said only where that is known of all of a queue.
    """
    said: dict[str, list[str | int]] = {}
    for queue, due_at, runs in ready:
        if due_at > now + BACK_AT_LATEST:
            continue
        topic = queue_topic(queue) if due_at <= now else SWEEP
        if runs and topic != SWEEP and said.get(topic, True):
            said.setdefault(topic, []).extend(runs)
        else:
            said[topic] = []
    return said


def _undefined(name: str) -> tuple[Job, Template]:
    """A job that nobody has defined."""
    job = Job(0, name, None, {}, Options(), 0, 0, 0)
    return job, Template.of(job.options)


class Lanes:
    """The lanes this process has seen. Newer ones are read as they come, and all of them where some were removed."""

    def __init__(self) -> None:
        self.all: list[Lane] = []
        self.by_id: dict[int, Lane] = {}
        self.ids: dict[LaneKey, int] = {}
        self._numbers = Counter[tuple[str, str]]()  # of lanes of a job in a queue
        self.last = 0
        self.removed = 0  # how often lanes were removed from the store
        self.limited = True  # whether there is any whose runs occupy something; there may be, until they are read
        self.worked_out: tuple[tuple[int, int], dict[WorkerInfo, Open]] = (0, 0), {}  # under which lanes and controls, and for whom
        self._used: dict[int, int] = {}
        self._unused, self._looked_at = frozenset[int](), -LOOKED_EVERY
        self._adding = Lock()

    def add(self, known: Known) -> bool:
        """Remember newer lanes, in the order of their ids; those known already were asked for twice at once. False: read all of them."""
        with self._adding:
            if known.removed > self.removed and self.last:
                return False
            if known.removed >= self.removed:  # else the answer came late
                self.removed = known.removed
                self._add(known.lanes)
        return True

    def renew(self, known: Known) -> None:
        """Know these lanes alone. One that is gone can still be looked up for a while, by a verb that has just read its number."""
        with self._adding:
            if known.removed < self.removed:
                return
            fresh = Lanes()
            fresh._add(known.lanes)
            self.by_id = {lane.id: lane for lane in self.all} | fresh.by_id
            self.all, self.ids, self._numbers, self._used, self.limited = fresh.all, fresh.ids, fresh._numbers, fresh._used, fresh.limited
            self.last, self.removed, self._looked_at = fresh.last, known.removed, -LOOKED_EVERY

    def _add(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            if lane.id > self.last:
                self.all.append(lane)
                self.by_id[lane.id] = lane
                self._numbers[lane.queue, lane.job] += 1
                self._used[lane.id] = lane.used_at or 0
                self.limited = lane.requires.limited or (self.limited and self.last > 0)
                self.ids[lane.queue, lane.job, needs_text(lane.requires)] = self.last = lane.id

    def unused(self, now: int) -> frozenset[int]:
        """The lanes whose use is to be noted again before they are used."""
        if not 0 <= now - self._looked_at < LOOKED_EVERY:
            self._unused = frozenset(lane for lane, at in self._used.items() if at < now - NOTED_EVERY)
            self._looked_at = now
        return self._unused

    def noted(self, lanes: Iterable[int], now: int) -> None:
        """The use of these lanes is noted."""
        with self._adding:
            self._used |= {lane: now for lane in lanes if lane in self._used}
            self._looked_at = -LOOKED_EVERY

    def find(self, lane: LaneKey) -> int | None:
        """The lane for these needs: their own, or a rounded one where a job has many."""
        found = self.ids.get(lane)
        return self.ids.get(_rounded(lane)) if found is None and self._numbers[lane[:2]] >= EXACT_LANES else found

    def lane(self, wanted: LaneKey) -> Lane | None:
        """The lane for these needs, if there is one."""
        return self.by_id.get(self.find(wanted) or 0)

    def missing(self, wanted: Iterable[LaneKey]) -> set[LaneKey]:
        """The lanes to be made so that there is one for each of these needs."""
        numbers, missing = self._numbers.copy(), set[LaneKey]()
        for lane in sorted(lane for lane in wanted if self.find(lane) is None):
            missing.add(lane if numbers[lane[:2]] < EXACT_LANES else _rounded(lane))
            numbers[lane[:2]] += 1
        return missing

    def using(self, resources: Collection[str]) -> Iterator[Lane]:
        """The lanes whose runs occupy one of these resources."""
        return (lane for lane in self.all if any(use.resource in resources for use in lane.requires.uses))


class Open(NamedTuple):
    """The lanes that a worker may take from now: those without limits, and those whose runs occupy something."""

    plain: list[int]
    limited: list[Lane]


class Controls:
    """What this process knows of pauses, queues and resources. A claim or a creation that finds a newer revision reads them again."""

    def __init__(self) -> None:
        self.rev = -1
        self.pauses: dict[tuple[str, str], Pause] = {}
        self.resources: dict[str, Resource] = {}
        self._ageing: dict[str, int] = {}

    def learn(self, settings: Settings) -> None:
        """Know these instead; an older answer that came late is ignored."""
        if settings.rev < self.rev:
            return
        self.pauses = {(pause.scope, pause.name): pause for pause in settings.pauses}
        self.resources = {resource.name: resource for resource in settings.resources}
        self._ageing = {queue.name: queue.ageing for queue in settings.queues}
        self.rev = settings.rev

    def paused(self, lane: Lane) -> list[Pause]:
        """Why nothing of a lane is handed out, if so."""
        if not self.pauses:
            return []
        wanted = (("system", ""), ("queue", lane.queue), ("job", lane.job))
        return [pause for place in wanted if (pause := self.pauses.get(place)) is not None]

    def resource(self, name: str) -> Resource:
        """A resource; one that nobody has set is there once."""
        return self.resources.get(name) or Resource(name, 1, (), MAX_WAIT, 0, 0)

    def ageing(self, queue: str) -> int | None:
        """How long a wait one step of priority is worth in a queue; None: priorities are never overtaken."""
        return self._ageing.get(queue)


class Memory:
    """What this process knows of definitions; engines that act for others share it."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[Job, Template]] = {}
        self.documents: dict[str, dict[str, Any]] = {}  # what jobs take, by fingerprint
        self._size = 0

    def learn(self, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Remember what jobs take, and forget everything else where that becomes too much."""
        documents = {schema: json.decode(text) for schema, text in texts.items()}
        self._size += sum(map(len, texts.values()))
        if self._size > MOST_DOCUMENTS:
            self.documents, self._size = {}, sum(map(len, texts.values()))
        self.documents |= documents
        return documents


class Stamp(NamedTuple):
    """When something was written, as far as this process knew, and when that was by its monotonic clock."""

    now: int
    ticks: int


class Core:
    """The engine's common ground. Verbs await only their store."""

    principal: Principal | None = None

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: Limits | None = None,
        hints: Hints | None = None,
        keeps: Mapping[str, int] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.keeps = dict(keeps or {})  # what this process was told of retention, for a store that was told nothing yet
        self.records = self.home = Records(store, most=self.limits.batch)
        self.hints = hints if hints is not None else store if isinstance(store, Hints) else NoHints(clock)
        self._joined: Joined | None = None
        self.clock = clock
        self.lanes = Lanes()
        self.controls = Controls()
        self.steady = Steady(clock)
        self._memory = Memory()

    def on(self, store: Store) -> Self:
        """The same engine writing through another store, such as a caller's open transaction.

        Lanes and definitions still go their own way: a caller's transaction must not hold them.
        """
        other = copy(self)
        other.records = Records(store, most=self.limits.batch)
        other._joined = store if isinstance(store, Joined) else None
        if other._joined is None:  # else what this engine hears is still right, and what it says waits for the caller's commit
            other.hints = store if isinstance(store, Hints) else NoHints(self.clock)
        return other

    def by(self, who: str, what: str, subject: str) -> Self:
        """The same engine for one act of somebody, which the batch that does it also writes into the audit."""
        other, act = copy(self), Act(checks.name(who, "Who did it"), what, subject, self.clock.now())
        other.records, other.home = (Records(records.store, act, self.limits.batch) for records in (self.records, self.home))
        return other

    def on_behalf_of(self, principal: Principal | None) -> Self:
        """The same engine for what somebody asks for through a hub, who may not do everything."""
        other = copy(self)
        other.principal = principal
        return other

    @property
    def trusted(self) -> bool:
        """Whether what is asked for may be everything."""
        return self.principal is None or self.principal.trusted

    @property
    def commits_together(self) -> bool:
        """Whether what is written at the same time is one commit."""
        return getattr(self.home.store, "commits_together", False)

    def allowed(self, options: Options) -> Options:
        """Options that can be stored, and that whoever asks may choose."""
        checks.options(options, self.limits)
        if options.solver is not None and not self.trusted:
            raise Forbidden(
                "To name a program that workers fetch and execute needs the scope admin.",
                hint="Let an admin define a job that has this program, and ask for runs of that.",
            )
        return options

    async def close(self) -> None:
        """Let go of the store."""
        await self.records.store.close()

    # The server's time

    def stamp(self) -> Stamp:
        """The time that something is written with."""
        return Stamp(self.clock.now(), self.clock.monotonic())

    def mistaken(self, stamp: Stamp, server: int | None, lease: int) -> bool:
        """Whether the time that a lease was written with was wrong by more than a tenth of it. The clock is right afterwards."""
        if server is None or abs(server - stamp.now) <= lease // 10 or (align := getattr(self.clock, "align", None)) is None:
            return False
        now, passed = self.clock.now(), self.clock.monotonic() - stamp.ticks
        if (right := min(max(now, server), server + passed)) != now:  # else only the answer was long on its way
            align(right)
        return True

    async def bounds(self, *, note: bool = False) -> Bounds:
        """Between which times it is, for what must not be judged by a clock that was just set."""
        return await self.steady.bounds(self.home, note=note)

    # Hints

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics heard, as soon as there are any; none after so many seconds. See `Hints`."""
        return await self.hints.wait(topics, timeout)

    async def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait for one of these topics that what was written concerns them."""
        if self._joined is not None:
            await self._joined.notify({*topics, JOURNAL})  # in a caller's transaction, nobody else can say when it is committed
        elif topics:
            self.hints.wake(topics)

    async def wake_queues(self, ready: Iterable[Ready], now: int) -> None:
        """Tell those who wait for runs that are ready, and those who sweep of runs that are ready soon."""
        await self.wake(_topics(ready, now))

    async def wake_after(self, changes: Iterable[Change], written: Written, now: int) -> None:
        """Tell those whom some moves concern, as far as they were written."""
        moved = [change.after for change in changes if change.after.seq in written.seqs]
        asked: dict[str, list[str | int]] = {
            worker_topic(run.worker): [] for run in moved if run.state is State.CANCELLING and run.worker is not None
        }
        ready = [Ready(run.queue, run.due_at, (run.id,)) for run in moved if run.state in (State.QUEUED, State.SCHEDULED)]
        freed: dict[str, list[str | int]] = {topic: [] for topic in self.freed_topics(written.freed)}
        await self.wake(asked | _topics((*ready, *written.released), now) | freed)

    def freed_topics(self, keys: Iterable[str]) -> set[str]:
        """Whom it concerns that something was let go of: the worker that it is of, or direct calls and the queues whose runs use it."""
        owners = {key: owner_of(key)[1] for key in keys}
        workers = {worker_topic(worker) for worker in owners.values() if worker is not None}  # nobody else can have what was theirs
        resources = {parts_of(key)[0] for key, worker in owners.items() if worker is None}
        if not resources:
            return workers
        return workers | {slot_topic(name) for name in resources} | {queue_topic(lane.queue) for lane in self.lanes.using(resources)}

    # Jobs and lanes

    async def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Job:
        """Store a definition; the same one again changes nothing. Runs already made keep what they were made with.

        Code that asks through a hub may define what is new, and what code of the same principal has defined. With the JSON Schema of
        its arguments, payloads that no code accepts are refused when they are asked for.
        """
        checks.name(name, "A job's name")
        if handler is not None:
            checks.name(handler, "A handler's name")
        chosen = self.allowed(options or Options())
        text = json.encode(dict(payload or {}), most=self.limits.payload, what="The payload template")
        told = self.told(schema)
        template = Template.of(chosen)
        lanes = {(template.queue, name, template.requires)}
        if self.lanes.missing(lanes):
            await self._planned(lanes)  # whether there is room is asked before anything is written
        job = await self.home.define(name, handler or name, text, chosen, told, self.principal, self.clock.now())
        if (job.handler, job.payload, job.options) != (handler or name, dict(payload or {}), chosen) and not self.trusted:
            raise not_theirs("job", name, job.owner)
        self._remember(job)
        await self.lanes_for(lanes)
        return job

    def told(self, schema: Mapping[str, Any] | None) -> Told | None:
        """What a definer takes, if it can be kept."""
        if schema is None:
            return None
        text = checks.schema(schema, self.limits)
        return Told(fits.fingerprint(text), text, self.limits.versions)

    def _remember(self, job: Job) -> Template:
        template = Template.of(job.options)
        self._jobs[job.name] = (job, template)
        return template

    async def definitions(self, names: Set[str], undefined: Literal["refuse", "wait"]) -> dict[str, tuple[Job, Template]]:
        """The current definitions as far as this process knows; a creation is refused by the store if one is stale.

        A job that nobody has defined, and whose runs may wait for that, has revision 0 until there is a placeholder for it.
        """
        jobs, new = self._jobs, dict[str, tuple[Job, Template]]()
        while missing := sorted(name for name in names if name not in jobs and name not in new):
            for name in missing:
                checks.name(name, "A job's name")
            found = {job.name: job for job in await self.home.jobs_named(missing)}
            for job in found.values():
                self._remember(job)
            new |= {name: _undefined(name) for name in missing if name not in found}
            if new and undefined == "refuse":
                raise UnknownJob(
                    f"No job is called {min(new)!r}.",
                    hint="Define it first, or say undefined='wait' to let its runs wait for a definition.",
                )
            jobs = self._jobs  # another verb may have forgotten meanwhile what this one knew
        return {**jobs, **new} if new else jobs

    @property
    def _jobs(self) -> dict[str, tuple[Job, Template]]:
        return self._memory.jobs

    def forget_jobs(self) -> None:
        """Somebody has changed a definition: read them again."""
        self._memory.jobs = {}

    async def lanes_for(self, wanted: Set[LaneKey], undefined: Collection[str] = ()) -> tuple[int, dict[LaneKey, Lane]]:
        """A lane for each of these needs, and the revision of the controls as of which they are there.

        What is missing is made in batches of its own, also placeholders for jobs that nobody has defined. Before a lane is used that was
        not used for a day, that is noted: those that nobody uses are removed, under a newer revision.
        """
        for _ in range(PATIENCE):
            rev = self.controls.rev
            lanes = {key: lane for key in wanted if (lane := self.lanes.lane(key)) is not None}
            if len(lanes) < len(wanted) or undefined or rev < 0:
                await self._make(wanted, undefined)
                undefined = ()
            elif not self.lanes.unused(self.clock.now()) or await self.use(lane.id for lane in lanes.values()):
                return rev, lanes
        raise Conflict("Lanes were made and removed again and again.", hint="Try again.")

    async def use(self, lanes: Iterable[int]) -> bool:
        """Note that these lanes are in use, once a day. False: one of them was removed, and this process knows it now."""
        now = self.clock.now()
        if not (unused := self.lanes.unused(now)) or not (ids := unused.intersection(lanes)):
            return True
        there = await self.home.use_lanes(ids, now - NOTED_EVERY // 2, now)
        self.lanes.noted(there, now)
        if there == ids:
            return True
        await self.refresh_controls()
        return False

    async def _make(self, wanted: Set[LaneKey], undefined: Collection[str]) -> None:
        lanes, resources = await self._planned(wanted, undefined)
        owner, now = self.owner, self.clock.now()
        if undefined:
            await self.home.define_placeholders(undefined, owner, *self.bounds_of(self.limits.placeholders), now)
        if resources:
            await self.home.add_resources(resources, MAX_WAIT, owner, *self.bounds_of(self.limits.resources), now)
            await self.refresh_controls()
        if lanes and resources <= self.controls.resources.keys():  # else others were faster, and there is no room any more
            await self.home.add_lanes(lanes, owner, *self.bounds_of(self.limits.lanes), self.controls.rev, now)
            await self.refresh_lanes()

    async def _planned(self, wanted: Set[LaneKey], undefined: Collection[str] = ()) -> tuple[set[LaneKey], set[str]]:
        """The lanes and resources that are to be made for these needs; LimitReached where there is no room for them."""
        await self.refresh_controls()
        await self.refresh_lanes()
        lanes = self.lanes.missing(wanted)
        resources = {use.resource for _, _, needs in lanes for use in needs_from(needs).uses} - self.controls.resources.keys()
        if lanes or undefined:
            room, limits = await self.home.room(self.owner), self.limits
            self.check_room("lanes", len(lanes), room.lanes, room.own_lanes, limits.lanes)
            self.check_room("resources", len(resources), room.resources, room.own_resources, limits.resources)
            self.check_room("undefined jobs", len(undefined), room.placeholders, room.own_placeholders, limits.placeholders)
        return lanes, resources

    def check_room(self, what: Literal["lanes", "resources", "undefined jobs"], more: int, there: int, own: int, most: int) -> None:
        """LimitReached where so many more would be too many: of all, or of those made by one who may not do everything."""
        if more and there + more > most:
            raise LimitReached(f"There are {there:,} {what} of at most {most:,} already, too many for {more:,} more.", hint=_FEWER[what])
        if more and self.owner is not None and own + more > (share := self.bounds_of(most)[1]):
            raise LimitReached(
                f"{self.owner!r} has made {own:,} {what} of its share of {share:,}, too many for {more:,} more.",
                hint=f"{_FEWER[what]} What nobody uses is removed after some days; an admin can remove it at once.",
            )

    def bounds_of(self, most: int) -> tuple[int, int]:
        """How many there may be of something, and how many of them can be made by one who may not do everything."""
        return most, max(1, most * self.limits.share // 100)

    @property
    def owner(self) -> str | None:
        """Whose what is made is counted as; None: of those who may do everything."""
        return None if self.principal is None or self.principal.trusted else self.principal.name

    async def refresh_lanes(self) -> None:
        """Read the lanes that are new, or all of them where some were removed."""
        if not self.lanes.add(await self.home.lanes_after(self.lanes.last)):
            self.lanes.renew(await self.home.lanes_after(0))

    async def refresh_controls(self) -> None:
        """Read pauses, queues and resources as they are now; before them, which lanes were removed up to their revision."""
        settings = await self.home.settings()
        if settings.removed > self.lanes.removed:
            await self.refresh_lanes()
        self.controls.learn(settings)

    async def stale(self) -> bool:
        """Whether what this process knew of the controls was no longer true; it is now."""
        before = self.controls.rev
        await self.refresh_controls()
        return self.controls.rev != before

    def open_lanes(self, worker: WorkerInfo) -> Open:
        """What a worker may take from, as far as this process knows."""
        known = self.lanes.last, self.controls.rev
        if self.lanes.worked_out[0] != known:
            self.lanes.worked_out = known, {}
        cached = self.lanes.worked_out[1]
        if (found := cached.get(worker)) is None:
            lanes = [lane for lane in self.lanes.all if open_to(lane, worker) and not self.controls.paused(lane)]
            found = Open([lane.id for lane in lanes if not lane.requires.limited], [lane for lane in lanes if lane.requires.limited])
            if len(cached) < MOST_REMEMBERED:
                cached[worker] = found
        return found

    async def gates_of(self, keys: Collection[str], now: int, workers: Iterable[WorkerInfo] = ()) -> dict[str, Gate]:
        """These gates with what is occupied of them. A resource that was dropped meanwhile counts as one that nobody has set."""
        offered = {key: resource for worker in workers for key, resource in offers(worker, MAX_WAIT).items()}
        if any(key not in offered and parts_of(key)[0] not in self.controls.resources for key in keys):
            await self.refresh_controls()
        found = await self.records.usage(sorted(keys))
        return {key: Gate(key, offered.get(key) or self.controls.resource(parts_of(key)[0]), *used, now) for key, used in found.items()}

    async def lane_of(self, run: Run) -> Lane:
        """The lane of a run that has not ended, parked or not."""
        if abs(run.lane) not in self.lanes.by_id:
            await self.refresh_lanes()
        return self.lanes.by_id[abs(run.lane)]

    async def write_back(self, verb: str, changes: Sequence[Change], now: int) -> Written:
        """Store what `step` decided, as far as the runs are still as they were read, and tell whom it concerns."""
        nonces = self.clock.nonce(), self.clock.nonce()
        written = await self.records.write_back(verb, changes, *nonces, now, limited=self.lanes.limited)
        await self.wake_after(changes, written, now)
        return written

    # One run, changed by one command

    async def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        checks.identifier(run_id, "The run")
        run = await self.records.find(run_id) or await self.records.find_attempt(run_id)
        if run is not None:
            return run
        if await self.records.was_pruned(run_id):
            raise pruned(run_id)
        raise NotFound(f"There is no run {run_id}.", hint="Check the id; ended runs are removed after their retention.")

    async def change(self, verb: str, run_id: str, cmd: Command, detail: str | None = None) -> Run:
        """Read, decide, commit; a lost race is normal and silent."""
        for _ in range(PATIENCE):
            before = await self.get(run_id)
            now = self.clock.now()
            after = step(before, cmd, now)
            changes = [Change(before, after, cmd.name, detail)]
            try:
                written = await self.write_back(verb, changes, now)
                if written.seqs:
                    return after
            except OutcomeUnknown as unknown:
                with in_doubt(unknown):
                    found = await self.get(run_id)
                if found.rev >= after.rev and found.state is after.state:
                    return found
                if not unknown.settled:
                    raise
        raise Conflict(f"Run {run_id} kept changing; {cmd.name} was not done.", hint="Try again.")
