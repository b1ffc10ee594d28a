"""What people set for all: what is paused, how queues age, how much there is of a resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from windlass.engine import checks
from windlass.engine.core import MAX_WAIT, PATIENCE, Core
from windlass.errors import BadInput, Conflict, LimitReached, NotFound, WrongState
from windlass.gates import gate_key, parts_of, window
from windlass.model import Lane, Pause, PauseScope, Queue, Rate, Resource, Slot
from windlass.store.base import queue_topic
from windlass.store.order import Holder

KEYS = 500
"""Keys that are looked at in one batch."""
LET_IN = 64
"""Parked runs of a lane that are put back at once; those that do not fit are parked again."""
_MOST_RATES = 8
_LARGEST_BUCKET = 10**18  # microseconds: sums with an instant still fit into 63 bits
_LONGEST_STEP = 10**9  # what one step of priority may be worth: eleven days


class ResourceState(Struct, frozen=True):
    """A resource, and how much of it is occupied; under keys, of all of them together."""

    resource: Resource
    held: int
    runs: int
    slots: int  # direct calls that hold it or wait for it
    jobs: tuple[str, ...]  # that use it


class Occupants(Struct, frozen=True):
    """Who occupies a resource, or one key of it."""

    runs: list[Holder]
    slots: list[Slot]


class Controlling(Core):
    """The verbs by which people control what is handed out. All of them take effect with the next claim, everywhere."""

    # Pauses

    async def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Hand nothing out of a queue, of a job, or of the whole system; what runs goes on. Paused again, it stays as it was."""
        self._check_scope(scope, name)
        said = None if reason is None else checks.reason(reason)
        pause = Pause(scope, name, self.clock.now(), said, None if by is None else checks.name(by, "Who did it"))
        for _ in range(PATIENCE):
            done = await self.records.add_pause(pause, self.limits.pauses)
            await self.refresh_controls()
            if done or (scope, name) in self.controls.pauses:
                return self.controls.pauses.get((scope, name), pause)
            if len(self.controls.pauses) >= self.limits.pauses:
                raise LimitReached(f"{self.limits.pauses:,} things are paused already.", hint="Resume some, or pause the whole system.")
        raise Conflict("It was paused and resumed again and again.", hint="Try again.")

    async def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Hand out again; False when it was not paused."""
        self._check_scope(scope, name)
        done = await self.records.drop_pause(scope, name)
        await self.refresh_controls()
        await self.refresh_lanes()
        await self._wake_lanes(lane for lane in self.lanes.all if scope == "system" or name in (lane.queue, lane.job))
        return done

    async def pauses(self) -> list[Pause]:
        """What is paused now."""
        return (await self.records.settings()).pauses

    def _check_scope(self, scope: PauseScope, name: str) -> None:
        if scope not in ("system", "queue", "job"):
            raise BadInput(f"{scope!r:.40} cannot be paused.", hint="Pause a queue, a job, or the system.")
        if scope != "system":
            checks.name(name, f"A {scope}'s name")
        elif name:
            raise BadInput("The system has no name.", hint="Leave the name out.")

    # Queues

    async def set_queue(self, name: str, *, ageing: int | None) -> Queue | None:
        """Let waiting count: `ageing` milliseconds are worth one step of priority, for runs made from now on. None: priorities alone."""
        checks.name(name, "A queue's name")
        checks.maybe(ageing, "ageing", 1, _LONGEST_STEP)
        if ageing is None:
            await self.records.drop_queue(name)
            await self.refresh_controls()
            return None
        queue = Queue(name, ageing)
        if not await self.records.set_queue(queue, self.limits.queues):
            raise LimitReached(f"{self.limits.queues:,} queues have settings already.", hint="Take some back with ageing=None.")
        await self.refresh_controls()
        return queue

    async def queues(self) -> list[Queue]:
        """The queues for which something is set."""
        return (await self.records.settings()).queues

    # Resources

    async def set_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource, and how often it may be used; None: any number. In effect at once.

        Nothing that runs is interrupted: when there is less than is occupied, nothing more is handed out until it fits.
        """
        checks.name(name, "A resource's name")
        checks.maybe(capacity, "capacity", 0, 2**31 - 1)
        checks.integer(max_wait, "max_wait", 0, self.limits.duration)
        checks.kind(rates, "rates", tuple)
        checks.count(rates, "rates of one resource", _MOST_RATES)
        for rate in rates:
            checks.kind(rate, "A rate", Rate)
            checks.integer(rate.count, "A rate's count", 1, 10**9)
            checks.integer(rate.period, "A rate's period", 1, self.limits.duration)
            checks.maybe(rate.burst, "A rate's burst", 1, 10**9)
            if window(rate).room > _LARGEST_BUCKET:
                raise BadInput(
                    f"{rate.burst:,} at once, each worth {rate.period:,} ms of {rate.count:,}, is more than can be counted.",
                    hint="Use a smaller burst or a shorter period.",
                )
        now = self.clock.now()
        resource = Resource(name, capacity, rates, max_wait, now, now)
        if not await self.records.set_resource(resource, self.owner, *self.bounds_of(self.limits.resources)):
            room = await self.records.room(self.owner)
            self.check_room("resources", 1, room.resources, room.own_resources, self.limits.resources)
            raise Conflict("The resources kept changing.", hint="Try again.")
        await self.refresh_controls()
        await self.refresh_lanes()
        await self._let_in_all(name)
        return self.controls.resources.get(name, resource)

    async def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        checks.name(name, "A resource's name")
        for state in await self.resources():
            if state.resource.name == name:
                return state
        raise NotFound(f"There is no resource {name!r}.", hint="`windlass resources` shows those there are.")

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource that is not there yet; one that is stays as it was set."""
        checks.name(name, "A resource's name")
        await self.refresh_controls()
        found = self.controls.resources.get(name)
        return found or await self.set_resource(name, capacity=capacity, rates=rates, max_wait=max_wait)

    async def drop_resource(self, name: str) -> None:
        """Forget a resource that no lane, run or direct call uses."""
        checks.name(name, "A resource's name")
        for _ in range(PATIENCE):
            await self.refresh_controls()
            await self.refresh_lanes()
            rev, last = self.controls.rev, self.lanes.last
            if name not in self.controls.resources:
                raise NotFound(f"There is no resource {name!r}.", hint="`windlass resources` shows those there are.")
            if users := sorted({lane.job for lane in self.lanes.using([name])}):
                raise WrongState(
                    f"Job {users[0]!r} uses {name!r}.",
                    hint="Give the resource another capacity instead, or remove the job's lanes first: windlass lanes.",
                )
            if await self.records.resources_in_use([name]):
                raise WrongState(f"{name!r} is occupied.", hint="Wait for its end: windlass resources show NAME tells who occupies it.")
            if await self.records.drop_resources([name], rev, last):
                return await self.refresh_controls()
        raise Conflict("Lanes and resources kept changing.", hint="Try again.")

    async def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        settings = await self.records.settings()
        held, slots = await self.records.held_under(), await self.records.slots_after(0, self.limits.slots)
        await self.refresh_lanes()
        return [
            ResourceState(
                resource,
                sum(weight for key, (weight, _) in held.items() if parts_of(key)[0] == resource.name),
                sum(runs for key, (_, runs) in held.items() if parts_of(key)[0] == resource.name),
                sum(parts_of(slot.key)[0] == resource.name for slot in slots),
                tuple(sorted({lane.job for lane in self.lanes.using([resource.name])})),
            )
            for resource in settings.resources
        ]

    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """Who occupies a gate: a resource, or a resource under a key."""
        checks.integer(count, "count", 1, self.limits.page)
        return Occupants(await self.records.holders(key, count), await self.records.slots_at(key, count))

    async def let_in(self, keys: Sequence[str], now: int) -> None:
        """Put back some of the parked runs that wait for these gates, and tell whom it concerns that there is room."""
        queues = await self.records.open_gates(keys, LET_IN, now)
        await self.wake(self.freed_topics(keys) | set(map(queue_topic, queues)))

    async def _let_in_all(self, resource: str) -> None:
        """Put back what was parked for any key of a resource that has room now."""
        await self.wake(self.freed_topics([resource]))
        keys = await self.records.parked_keys(gate_key(resource, ""), KEYS)
        while keys and (own := [key for key in keys if parts_of(key)[0] == resource]):
            await self.repair(own, self.clock.now())
            keys = await self.records.parked_keys(keys[-1], KEYS) if len(own) == KEYS else []

    async def repair(self, keys: Sequence[str], now: int) -> int:
        """Put back what waits for keys that have room: after a change of capacity, or a fault."""
        await self.refresh_controls()
        gates = await self.gates_of(keys, now)
        free = [gate.key for gate in gates.values() if not gate.full(1) and not gate.late(1)]
        if free:
            await self.let_in(free, now)
        return len(free)

    async def _wake_lanes(self, lanes: Iterable[Lane]) -> None:
        await self.wake({queue_topic(lane.queue) for lane in lanes})
