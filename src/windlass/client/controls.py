"""The verbs of pauses, queues, resources and direct calls, through a hub."""

from __future__ import annotations

from windlass import wire
from windlass.client.verbs import Verbs, place
from windlass.engine import checks
from windlass.engine.controls import Occupants, ResourceState
from windlass.engine.core import MAX_WAIT
from windlass.engine.limiting import SLOT_LEASE
from windlass.engine.retention import Retention
from windlass.errors import OutcomeUnknown
from windlass.gates import parts_of
from windlass.model import Keep, Lane, Pause, PauseScope, Queue, Rate, Resource, Slot

LONGEST_WAIT = 25.0  # seconds; many proxies give up on an answer after 30
ON_THE_WAY = 5.0  # seconds that an answer to a wait may come late


class ControlVerbs(Verbs):
    """What people set for all, and direct calls, as the engine has them."""

    # Pauses

    async def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Hand nothing out of a queue, of a job, or of the whole system. Who does it is known by the token, whatever `by` says."""
        body = wire.PauseAsked(scope, name, reason)
        return wire.pause_of(await self.ask("POST", place("pause"), wire.PauseView, body=body, safe=True))

    async def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Hand out again; False when it was not paused."""
        return (await self.ask("POST", place("resume"), wire.Resumed, body=wire.ResumeAsked(scope, name))).resumed

    async def pauses(self) -> list[Pause]:
        """What is paused now."""
        return [wire.pause_of(view) for view in (await self._look(place("pauses"), wire.Pauses)).pauses]

    # Queues

    async def set_queue(self, name: str, *, ageing: int | None) -> Queue | None:
        """Let waiting count: `ageing` milliseconds are worth one step of priority. None: priorities alone."""
        path = place("queues", checks.name(name, "A queue's name"))
        view = await self.ask("PUT", path, wire.QueueView, body=wire.PutQueue(ageing), safe=True)
        return None if view.ageing is None else Queue(view.name, view.ageing)

    async def queues(self) -> list[Queue]:
        """The queues for which something is set."""
        return (await self._look(place("queues"), wire.Queues)).queues

    # Resources

    async def set_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource, and how often it may be used; None: any number. In effect at once."""
        return await self._put_resource(name, wire.PutResource(capacity, rates, max_wait))

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Say how much there is of a resource that is not there yet; one that is stays as it was set."""
        return await self._put_resource(name, wire.PutResource(capacity, rates, max_wait, new=True))

    async def _put_resource(self, name: str, body: wire.PutResource) -> Resource:
        return wire.resource_of(await self.ask("PUT", self._resource(name), wire.ResourceView, body=body, safe=True)).resource

    async def drop_resource(self, name: str) -> None:
        """Forget a resource that no lane, run or direct call uses."""
        await self.ask("DELETE", self._resource(name), wire.Done)

    async def resources(self) -> list[ResourceState]:
        """Every resource, and how much of it is occupied."""
        return [wire.resource_of(view) for view in (await self._look(place("resources"), wire.Resources)).resources]

    async def get_resource(self, name: str) -> ResourceState:
        """One resource, and how much of it is occupied."""
        return wire.resource_of(await self._look(self._resource(name), wire.ResourceView))

    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """Who occupies a gate: a resource, or a resource under a key."""
        checks.integer(count, "count", 1, self.limits.page)
        resource, value = parts_of(key)
        return wire.occupants_of(await self._look(f"{self._resource(resource)}/occupants", wire.OccupantsView, key=value, count=count))

    def _resource(self, name: str) -> str:
        return place("resources", checks.name(name, "A resource's name"))

    # Retention

    async def retention(self) -> Retention:
        """How long ended runs are kept."""
        return wire.retention_of(await self._look(place("retention"), wire.RetentionView))

    async def set_retention(self, *, keep_succeeded: Keep | None = None, keep_others: Keep | None = None, by: str = "") -> Retention:
        """Say how long ended runs are kept; None stays as it is. Who does it is known by the token, whatever `by` says."""
        body = wire.PutRetention(keep_succeeded, keep_others)
        return wire.retention_of(await self.ask("PUT", place("retention"), wire.RetentionView, body=body, safe=True))

    # Lanes

    async def all_lanes(self, *, after: int = 0, count: int = 100) -> list[Lane]:
        """Lanes by number: what of a queue the same workers may take, when it was last used, and whose small token has made it."""
        checks.integer(count, "count", 1, self.limits.page)
        return [wire.lane_of(view) for view in (await self._look(place("lanes"), wire.LanesView, after=after, count=count)).lanes]

    async def drop_lane(self, lane: int) -> None:
        """Remove a lane that has no unfinished runs; one that is needed again is made again."""
        await self.ask("DELETE", place("lanes", str(checks.integer(lane, "The lane", 1, 2**63 - 1))), wire.Done)

    # Direct calls

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
        """Ask for the next slot of a resource, ahead of every queue. Who asks is known by the token, whatever `who` says."""
        own = (slot_id or self.clock.new_id(), token or self.clock.nonce())  # so that it can be asked again
        body = wire.ReserveSlot(resource, key, weight, lease, 0, *own)
        return wire.slot_of(await self.ask("POST", place("slots"), wire.SlotView, body=body, safe=True))

    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Keep a slot, and have it if its turn has come. Raises LeaseLost when it is gone."""
        return await self._renew(slot_id, token, lease, 0.0)

    async def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Keep a slot that waits until its turn has come, for so many seconds at most."""
        ends = None if wait is None else self.clock.monotonic() + round(wait * 1000)
        while True:
            left = LONGEST_WAIT if ends is None else max(0.0, (ends - self.clock.monotonic()) / 1000)
            slot = await self._renew(slot_id, token, lease, min(left, LONGEST_WAIT))
            if slot.state == "held" or not left:
                return slot

    async def _renew(self, slot_id: str, token: str, lease: int, wait: float) -> Slot:
        path, body = self._slot(slot_id, "renew"), wire.RenewSlot(token, lease, round(wait * 1000))
        timeout = None if not wait else wait + ON_THE_WAY
        return wire.slot_of(await self.ask("POST", path, wire.SlotView, body=body, safe=True, timeout=timeout))

    async def release(self, slot_id: str, token: str) -> bool:
        """Give a slot back, or leave the line; False when it was gone already."""
        path, body = self._slot(slot_id, "release"), wire.ReleaseSlot(token)
        try:
            return (await self.ask("POST", path, wire.Released, body=body)).released
        except OutcomeUnknown:
            await self.ask("POST", path, wire.Released, body=body, safe=True)
            return True  # by the first ask or by the second

    async def slots(self, *, after: int = 0, count: int = 100) -> list[Slot]:
        """Direct calls that hold something or wait, in their order."""
        checks.integer(count, "count", 1, self.limits.page)
        return [wire.slot_of(view) for view in (await self._look(place("slots"), wire.Slots, after=after, count=count)).slots]

    def _slot(self, slot_id: str, what: str) -> str:
        return place("slots", checks.identifier(slot_id, "The slot's id"), what)
