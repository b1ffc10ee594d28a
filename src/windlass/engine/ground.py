"""What all parts share: the records, the clock, the hints, and this process's caches of jobs, lanes and controls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from windlass.clock import Clock
from windlass.defaults import MAX_WAIT
from windlass.engine import checks
from windlass.engine.controls import Controls
from windlass.engine.lanes import Lanes, OpenLanes
from windlass.engine.sending import Sending
from windlass.engine.sightings import Sightings
from windlass.engine.templates import KnownJobs
from windlass.errors import Forbidden
from windlass.limiters import Limiter, offers, owner_of, parts_of
from windlass.model import Lane, Limits, Options, Principal, Run, State, WorkerInfo
from windlass.needs import open_to
from windlass.steady import Bounds, Steady
from windlass.store.base import JOURNAL, SWEEP, Hints, NoHints, Store, TransactionHints, queue_topic, slot_topic, worker_topic
from windlass.store.records import Act, Change, MoveResult, ReadyQueue, Records

PATIENCE = 50
"""How often a verb reads and decides again after losing a race, before it raises Conflict."""

MAX_REMEMBERED = 256
"""Workers for which a process caches the open lanes."""

BACK_AT_LATEST = 1_000
"""The longest pause between two sweeps in milliseconds: runs due within it get a hint."""


class Stamp(NamedTuple):
    """The wall-clock and the monotonic time of a write, by this process's clock."""

    now: int
    ticks: int


class Ground:
    """What parts share. A derived one serves a caller's transaction, one audited action, or a principal."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: Limits | None = None,
        hints: Hints | None = None,
        keeps: Mapping[str, int] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.keeps = dict(keeps or {})  # this process's retention settings, for a store that has none yet
        self.records = self.home = Records(store, limit=self.limits.batch)
        self.hints = hints if hints is not None else store if isinstance(store, Hints) else NoHints(clock)
        self.joined: TransactionHints | None = None
        self.principal: Principal | None = None
        self.clock = clock
        self.lanes = Lanes()
        self.controls = Controls()
        self.steady = Steady(clock)
        self.memory = KnownJobs()
        self.seen = Sightings()
        self.sending = Sending()

    def _copy(self) -> Ground:
        other = Ground.__new__(Ground)  # several times as fast as `copy`, and every request of a hub makes one
        other.__dict__.update(self.__dict__)
        return other

    def on(self, store: Store) -> Ground:
        """The same over another store, such as a caller's open transaction; lanes and definitions are still written to the home store."""
        other = self._copy()
        other.records = Records(store, limit=self.limits.batch)
        other.joined = store if isinstance(store, TransactionHints) else None
        if other.joined is None:  # else incoming hints are still right, and outgoing ones wait for the caller's commit
            other.hints = store if isinstance(store, Hints) else NoHints(self.clock)
        return other

    def by(self, actor: str, what: str, subject: str) -> Ground:
        """The same for one audited action: the batch that performs it also writes the audit entry."""
        other, act = self._copy(), Act(checks.name(actor, "The actor's name"), what, subject, self.clock.now())
        other.records, other.home = (Records(records.store, act, self.limits.batch) for records in (self.records, self.home))
        return other

    def unaudited(self) -> Ground:
        """The same without the audit, for work that the clock triggers and no actor requested."""
        other = self._copy()
        other.records = self.records.unaudited
        return other

    def on_behalf_of(self, principal: Principal | None) -> Ground:
        """The same for requests of a principal, who may be untrusted, through a hub."""
        other = self._copy()
        other.principal = principal
        return other

    # The principal

    @property
    def trusted(self) -> bool:
        """Whether the principal may do everything."""
        return self.principal is None or self.principal.trusted

    @property
    def owner(self) -> str | None:
        """The principal to whose quota new rows count; None for a trusted one."""
        return None if self.principal is None or self.principal.trusted else self.principal.name

    def allowed(self, options: Options) -> Options:
        """Options that can be stored, and that the principal may choose."""
        checks.options(options, self.limits)
        if options.solver is not None and not self.trusted:
            raise Forbidden(
                "To name a program that workers fetch and execute needs the scope admin.",
                hint="Let an admin define a job that has this program, and ask for runs of that.",
            )
        return options

    # Time

    def stamp(self) -> Stamp:
        """The present time, as written with a row."""
        return Stamp(self.clock.now(), self.clock.monotonic())

    def mistaken(self, stamp: Stamp, server: int | None, lease: int) -> bool:
        """Whether a lease was written with a time that was wrong by more than a tenth of it. The clock is corrected by that."""
        if server is None or abs(server - stamp.now) <= lease // 10 or (align := getattr(self.clock, "align", None)) is None:
            return False
        now, passed = self.clock.now(), self.clock.monotonic() - stamp.ticks
        if (right := min(max(now, server), server + passed)) != now:  # else only the answer was late
            align(right)
        return True

    async def bounds(self, *, note: bool = False) -> Bounds:
        """The earliest and the latest time that it may be now, for decisions that must not depend on a clock that was just set."""
        return await self.steady.bounds(self.home.scales, note=note)

    # Hints

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """Returns the topics with a hint as soon as there are any, none after `timeout` seconds. See `Hints`."""
        return await self.hints.wait(topics, timeout)

    async def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters on these topics after a write that concerns them."""
        if self.joined is not None:
            await self.joined.notify({*topics, JOURNAL})  # only the caller's transaction itself can publish on its commit
        elif topics:
            self.hints.wake(topics)

    async def wake_queues(self, ready: Iterable[ReadyQueue], now: int) -> None:
        """Wake the workers that wait for runs that are ready, and the sweeps for runs that are ready soon."""
        await self.wake(_topics(ready, now))

    async def wake_after(self, changes: Iterable[Change], result: MoveResult, now: int) -> None:
        """Wake the waiters that these moves concern, for those moves that were written."""
        moved = [change.after for change in changes if change.after.seq in result.seqs]
        asked: dict[str, list[str | int]] = {
            worker_topic(run.worker): [] for run in moved if run.state is State.CANCELLING and run.worker is not None
        }
        ready = [ReadyQueue(run.queue, run.due_at, (run.id,)) for run in moved if run.state in (State.QUEUED, State.SCHEDULED)]
        freed: dict[str, list[str | int]] = {topic: [] for topic in self.freed_topics(result.freed)}
        await self.wake(asked | _topics((*ready, *result.released), now) | freed)

    def freed_topics(self, keys: Iterable[str]) -> set[str]:
        """The topics to wake after a release: the worker that owns the limiter, or direct calls and the queues that use the resource."""
        owners = {key: owner_of(key)[1] for key in keys}
        workers = {worker_topic(worker) for worker in owners.values() if worker is not None}  # only that worker can use its own limiter
        resources = {parts_of(key)[0] for key, worker in owners.items() if worker is None}
        if not resources:
            return workers
        return workers | {slot_topic(name) for name in resources} | {queue_topic(lane.queue) for lane in self.lanes.using(resources)}

    # Lanes and controls

    async def refresh_lanes(self) -> None:
        """Read the lanes that are new, or all of them where some were removed."""
        if not self.lanes.add(await self.home.lanes.after(self.lanes.last)):
            self.lanes.renew(await self.home.lanes.after(0))

    async def lanes_of_queue(self, queue: str) -> list[int]:
        """All lanes of a queue, with those of its parked runs."""
        await self.refresh_lanes()
        return [number for lane in self.lanes.all if lane.queue == queue for number in (lane.id, -lane.id)]

    async def refresh_controls(self) -> None:
        """Read pauses, queues and resources as they are now; before them, which lanes were removed up to their revision."""
        settings = await self.home.controls.settings()
        if settings.removed > self.lanes.removed:
            await self.refresh_lanes()
        self.controls.learn(settings)

    async def stale(self) -> bool:
        """Refresh this process's copy of the controls; whether it was out of date."""
        before = self.controls.rev
        await self.refresh_controls()
        return self.controls.rev != before

    def open_lanes(self, worker: WorkerInfo) -> OpenLanes:
        """The lanes that a worker may take from, by this process's caches."""
        known = self.lanes.last, self.controls.rev
        if self.lanes.worked_out[0] != known:
            self.lanes.worked_out = known, {}
        cached = self.lanes.worked_out[1]
        if (lanes_of_worker := cached.get(worker)) is None:
            lanes = [lane for lane in self.lanes.all if open_to(lane, worker) and not self.controls.paused(lane)]
            lanes_of_worker = OpenLanes(
                [lane.id for lane in lanes if not lane.requires.limited], [lane for lane in lanes if lane.requires.limited]
            )
            if len(cached) < MAX_REMEMBERED:
                cached[worker] = lanes_of_worker
        return lanes_of_worker

    async def lane_of(self, run: Run) -> Lane:
        """The lane of a run that has not ended, parked or not."""
        if abs(run.lane) not in self.lanes.by_id:
            await self.refresh_lanes()
        return self.lanes.by_id[abs(run.lane)]

    async def limiters_of(self, keys: Collection[str], now: int, workers: Iterable[WorkerInfo] = ()) -> dict[str, Limiter]:
        """These limiters with their occupancy. A resource that was dropped meanwhile counts as one without settings."""
        offered = {key: resource for worker in workers for key, resource in offers(worker, MAX_WAIT).items()}
        if any(key not in offered and parts_of(key)[0] not in self.controls.resources for key in keys):
            await self.refresh_controls()
        usage = await self.records.limiters.usage(sorted(keys))
        return {key: Limiter(key, offered.get(key) or self.controls.resource(parts_of(key)[0]), *used, now) for key, used in usage.items()}

    # Moves

    async def write_back(self, verb: str, changes: Sequence[Change], now: int) -> MoveResult:
        """Store moves that `step` decided, for runs that are still as they were read, and wake the waiters concerned."""
        nonces = self.clock.nonce(), self.clock.nonce()
        result = await self.records.work.write_back(verb, changes, *nonces, now, limited=self.lanes.limited)
        await self.wake_after(changes, result, now)
        return result


class Part:
    """Verbs of one kind over a ground."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.records, self.clock, self.limits = ground.records, ground.clock, ground.limits


def _topics(ready: Iterable[ReadyQueue], now: int) -> dict[str, list[str | int]]:
    """The topics of runs that are ready: their queues if they are ready now, the sweep if they are within its next pause.

    The ids of the runs are included only where they are known for all runs of a queue.
    """
    topics: dict[str, list[str | int]] = {}
    for queue, due_at, runs in ready:
        if due_at > now + BACK_AT_LATEST:
            continue
        topic = queue_topic(queue) if due_at <= now else SWEEP
        if runs and topic != SWEEP and topics.get(topic, True):
            topics.setdefault(topic, []).extend(runs)
        else:
            topics[topic] = []
    return topics
