"""Resources: their capacity, their rates, and their occupants."""

from __future__ import annotations

from windlass.answers import Occupants, ResourceState
from windlass.defaults import MAX_WAIT
from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.parking import Parking
from windlass.engine.provision import Provision
from windlass.errors import BadInput, Conflict, NotFound, WrongState
from windlass.limiters import parts_of, window
from windlass.model import Rate, Resource

_MAX_RATES = 8
_LARGEST_BUCKET = 10**18  # microseconds: the sum with a timestamp still fits into 63 bits


class Resources(Part):
    """The verbs of resources, which take effect with the next claim, everywhere."""

    def __init__(self, ground: Ground, provision: Provision, parking: Parking) -> None:
        super().__init__(ground)
        self._provision, self._parking = provision, parking

    async def set(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Set the capacity and the rates of a resource; None: unlimited. In effect at once.

        Nothing that runs is interrupted: while more is occupied than the capacity, nothing more is handed out.
        """
        checks.name(name, "A resource's name")
        checks.maybe(capacity, "capacity", 0, 2**31 - 1)
        checks.integer(max_wait, "max_wait", 0, self.limits.duration)
        checks.kind(rates, "rates", tuple)
        checks.count(rates, "rates of one resource", _MAX_RATES)
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
        if not await self.records.controls.set_resource(resource, self.ground.owner, *self._provision.bounds_of(self.limits.resources)):
            room = await self.records.lanes.room(self.ground.owner)
            self._provision.check_room("resources", 1, room.resources, room.own_resources, self.limits.resources)
            raise Conflict("The resources kept changing.", hint="Try again.")
        await self.ground.refresh_controls()
        await self.ground.refresh_lanes()
        await self._parking.let_in_all(name)
        return self.ground.controls.resources.get(name, resource)

    async def get(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        checks.name(name, "A resource's name")
        for state in await self.all():
            if state.resource.name == name:
                return state
        raise NotFound(f"There is no resource {name!r}.", hint="`windlass resources` shows those there are.")

    async def add(self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT) -> Resource:
        """Set a resource that does not exist yet; an existing one keeps its settings."""
        checks.name(name, "A resource's name")
        await self.ground.refresh_controls()
        resource = self.ground.controls.resources.get(name)
        return resource or await self.set(name, capacity=capacity, rates=rates, max_wait=max_wait)

    async def drop(self, name: str) -> None:
        """Forget a resource that no lane, run or direct call uses."""
        checks.name(name, "A resource's name")
        for _ in range(PATIENCE):
            await self.ground.refresh_controls()
            await self.ground.refresh_lanes()
            rev, last = self.ground.controls.rev, self.ground.lanes.last
            if name not in self.ground.controls.resources:
                raise NotFound(f"There is no resource {name!r}.", hint="`windlass resources` shows those there are.")
            if users := sorted({lane.job for lane in self.ground.lanes.using([name])}):
                raise WrongState(
                    f"Job {users[0]!r} uses {name!r}.",
                    hint="Give the resource another capacity instead, or remove the job's lanes first: windlass lanes.",
                )
            if await self.records.controls.resources_in_use([name]):
                raise WrongState(f"{name!r} is occupied.", hint="Wait until it is free: windlass resources show NAME shows its users.")
            if await self.records.controls.drop_resources([name], rev, last):
                return await self.ground.refresh_controls()
        raise Conflict("Lanes and resources kept changing.", hint="Try again.")

    async def all(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        settings = await self.records.controls.settings()
        held, slots = await self.records.limiters.held_under(), await self.records.slots.after(0, self.limits.slots)
        await self.ground.refresh_lanes()
        return [
            ResourceState(
                resource,
                sum(weight for key, (weight, _) in held.items() if parts_of(key)[0] == resource.name),
                sum(runs for key, (_, runs) in held.items() if parts_of(key)[0] == resource.name),
                sum(parts_of(slot.key)[0] == resource.name for slot in slots),
                tuple(sorted({lane.job for lane in self.ground.lanes.using([resource.name])})),
            )
            for resource in settings.resources
        ]

    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """The occupants of a limiter: a resource, or a resource under a key."""
        checks.integer(count, "count", 1, self.limits.page)
        return Occupants(await self.records.limiters.holders(key, count), await self.records.slots.at(key, count))
