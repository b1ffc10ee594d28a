"""The engine's public verbs through a hub, with the same names, arguments, results and errors.

Most are defined by their rows alone. Here are only those that a row cannot express.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from windlass import payload as json
from windlass.answers import Occupants, RunDetail, Status
from windlass.api.requests import PutResource, RenewSlot, ReserveSlot
from windlass.api.rows import row_of
from windlass.api.values import to_rfc3339
from windlass.api.verbs import Verbs
from windlass.api.verbs.runs import DETAIL
from windlass.client.requester import Requester
from windlass.defaults import MAX_WAIT, SCHEDULE_EDITABLE, SLOT_LEASE
from windlass.engine import checks
from windlass.errors import BadInput, OutcomeUnknown, WrongState
from windlass.firing import Fire, outage_of
from windlass.limiters import parts_of
from windlass.model import Attempt, Created, Group, JobRecord, NewGroup, NewRun, Options, Rate, Resource, Run, Schedule, Slot, State

T = TypeVar("T")

LONGEST_WAIT = 25.0  # seconds; many proxies time out after 30
ON_THE_WAY = 5.0  # seconds by which the answer to a wait may be late


class RemoteVerbs(Requester, Verbs):
    """A durable queue behind a hub."""

    # Jobs

    async def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> JobRecord:
        """Store a definition; the same one again changes nothing."""
        checks.name(name, "A job's name")
        takes = None if schema is None else Raw(checks.schema(schema, self.limits).encode())
        body = {
            "handler": handler or name,
            "payload": self._payload(dict(payload or {}), "The payload template"),
            "options": checks.options(options or Options(), self.limits),
            "schema": takes,
        }
        if (words := checks.description(description, self.limits)) is not None:
            body["description"] = words
        job: JobRecord = await self.perform(row_of(Verbs.define), {"name": name}, body=body)
        return job

    def _payload(self, value: Any, what: str = "The payload") -> Raw:
        """A payload, checked by the engine's rules for JSON."""
        return Raw(json.encode(value, limit=self.limits.payload, what=what).encode())

    # Runs

    async def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the results are in the same order."""
        checks.count(news, "runs", self.limits.create)
        checks.choice(undefined, "undefined", ("refuse", "wait"))
        runs = [self._new_run(new) | {"undefined": undefined} for new in news]
        if not runs:
            return []
        # With a user's key that becomes free at the run's end, a repetition cannot be distinguished from a second request.
        safe = all(new.key is None or new.key.ttl != "unfinished" for new in news)
        answer = await self.perform(row_of(Verbs.create), {}, body={"runs": runs}, safe=safe)
        # Without its own key a run is always new, also when the first answer was lost and this is a repetition.
        return [Created(one.id, one.created or new.key is None, one.pruned) for new, one in zip(news, answer.runs, strict=True)]

    def _new_run(self, new: NewRun) -> dict[str, Any]:
        if new.retry_of is not None or new.schedule is not None:
            raise BadInput("A hub does not accept a run's origin.", hint="Use rerun or trigger.")
        return self._in_group(new) | {"key": new.key, "after": new.after, "after_end": new.after_end}

    def _in_group(self, new: NewRun) -> dict[str, Any]:
        meta = checks.meta(new.meta, self.limits)
        body: dict[str, Any] = {
            "job": checks.name(new.job, "A job's name"),
            "payload": self._payload(new.payload),
            "options": checks.options(new.options, self.limits),
            "scheduled_for": None if new.due_at is None else to_rfc3339(checks.instant(new.due_at, "due_at")),
            "checked": new.checked,
        }
        if meta is not None:
            body["meta"] = Raw(meta.encode())
        return body if new.notify is None else body | {"notify": new.notify}

    async def patch(self, run_id: str, *, by: str | None = None, **fields: Any) -> Run:
        """Edit a run that still waits: payload, priority, due_at, max_attempts, queue."""
        checks.patchable(fields)
        body = {name: value for name, value in fields.items() if value is not None}
        if "payload" in body:
            body["payload"] = self._payload(body["payload"])
        if "due_at" in body:
            body["scheduled_for"] = to_rfc3339(checks.instant(body.pop("due_at"), "due_at"))
        run: Run = await self.perform(row_of(Verbs.patch), {"run_id": run_id}, body=body)
        return run

    async def cancel(
        self, run_id: str, *, reason: str | None = None, only: Collection[State | str] | None = None, by: str | None = None
    ) -> Run:
        """Cancel a waiting run at once; stop a running one. The actor is taken from the token; `by` is ignored."""
        arguments, ends = {"run_id": run_id, "reason": reason, "only": only}, (State.CANCELLED, State.CANCELLING)
        return await self._cancel(Verbs.cancel, arguments, lambda: self.get(run_id), lambda run: run.state in ends)

    async def _cancel(self, verb: Any, arguments: dict[str, Any], read: Callable[[], Awaitable[T]], is_cancelled: Callable[[T], bool]) -> T:
        """Send a cancel, again if the answer was lost: then the first request may have cancelled the run or group already."""
        with suppress(OutcomeUnknown):
            answer: T = await self.perform(row_of(verb), arguments)
            return answer
        try:
            answer = await self.perform(row_of(verb), arguments, safe=True)
        except WrongState:
            if not is_cancelled(answer := await read()):
                raise
        return answer

    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first."""
        attempts = await super().attempts(run_id)
        return [replace(attempt, run=attempts[0].id) for attempt in attempts]  # the first shares the run's own id

    async def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        # Callers that wait for its end read it often: nothing is looked up that a run does not have.
        run: Run = await self.perform(row_of(Verbs.get), {"run_id": run_id, "detail": False})
        return run

    async def detail(self, run_id: str) -> RunDetail:
        """A run with its origin, and how many runs are ahead of it."""
        detail: RunDetail = await self.perform(DETAIL, {"run_id": run_id})
        return detail

    async def status(self, run_id: str) -> Status:
        """The status of a run by its id alone."""
        return Status.of(await self.get(run_id))

    # Groups

    async def create_group(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing."""
        checks.kind(new, "A group", NewGroup)
        checks.count(new.members, "members of a group", self.limits.create)
        if new.key is not None:
            raise BadInput("A hub does not accept a group's key.", hint="Leave it out: each call makes its group once.")
        for run in (*(member.run for member in new.members), *([new.callback] if new.callback else [])):
            if run.key is not None or run.after:
                raise BadInput("A run of a group has no key, and waits for members of its group only.", hint="Leave key and after out.")
        body = {
            "members": [self._in_group(member.run) | {"name": member.name, "after": member.after} for member in new.members],
            "callback": None if new.callback is None else self._in_group(new.callback),
            "kind": new.kind,
            "on_failure": new.on_failure,
            "name": new.name,
            "undefined": undefined,
        }
        group: Group = await self.perform(row_of(Verbs.create_group), {}, body=body)
        return group

    async def cancel_group(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended. The actor is taken from the token; `by` is ignored."""
        arguments = {"group_id": group_id, "reason": reason}
        return await self._cancel(Verbs.cancel_group, arguments, lambda: self.get_group(group_id), lambda group: group.cancelled > 0)

    # Schedules

    async def schedule(
        self,
        key: str,
        job: str,
        *,
        every: str | float | None = None,
        payload: dict[str, Any] | None = None,
        options: Options | None = None,
        new: bool = False,
        **rule: Any,
    ) -> Schedule:
        """Store a rule under a key; the same key again updates it. Existing runs do not change."""
        body = {
            "job": job,
            "every": every if every is None else str(every),
            "payload": self._payload(payload or {}, "The schedule's payload"),
            "options": checks.options(options or Options(), self.limits),
            "new": new,
            **rule,
        }
        schedule: Schedule = await self.perform(row_of(Verbs.schedule), {"key": key}, body=body, safe=not new)
        return schedule

    async def set_schedule(self, key: str, **fields: Any) -> Schedule:
        """Edit a schedule."""
        checks.editable(fields, SCHEDULE_EDITABLE, "a schedule")
        return await super().set_schedule(key, **fields)

    async def outage(self, key: str, start: int, end: int) -> Fire:
        """What a schedule would do at the end of a downtime."""
        return outage_of(await self.get_schedule(key), start, end)

    # Resources and direct calls

    async def add_resource(
        self, name: str, *, capacity: int | None = None, rates: tuple[Rate, ...] = (), max_wait: int = MAX_WAIT
    ) -> Resource:
        """Set a resource that does not exist yet; an existing one stays as it is."""
        body = PutResource(capacity, rates, max_wait, new=True)
        resource: Resource = await self.perform(row_of(Verbs.set_resource), {"name": name}, body=body)
        return resource

    async def occupants(self, key: str, *, count: int = 100) -> Occupants:
        """The occupants of a resource, or of a resource under a key."""
        name, value = parts_of(key)
        occupants: Occupants = await self.perform(row_of(Verbs.occupants), {"name": name, "key": value, "count": count})
        return occupants

    async def reserve(
        self, resource: str, *, slot_id: str | None = None, token: str | None = None, actor: str | None = None, **options: Any
    ) -> Slot:
        """Request the next slot of a resource, ahead of every queue. The actor is taken from the token; `actor` is ignored."""
        # With its own id and token, the request can be repeated.
        body = ReserveSlot(resource, id=slot_id or self.clock.new_id(), token=token or self.clock.nonce(), **options)
        slot: Slot = await self.perform(row_of(Verbs.reserve), {}, body=body)
        return slot

    async def renew(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE) -> Slot:
        """Renew a slot, and take it if it is free now. Raises LeaseLost when it is gone."""
        return await self._renew(slot_id, token, lease, 0.0)

    async def turn(self, slot_id: str, token: str, *, lease: int = SLOT_LEASE, wait: float | None = None) -> Slot:
        """Renew a waiting slot until it is held, for at most this many seconds."""
        ends = None if wait is None else self.clock.monotonic() + round(wait * 1000)
        while True:
            remaining = LONGEST_WAIT if ends is None else max(0.0, (ends - self.clock.monotonic()) / 1000)
            slot = await self._renew(slot_id, token, lease, min(remaining, LONGEST_WAIT))
            if slot.state == "held" or not remaining:
                return slot

    async def _renew(self, slot_id: str, token: str, lease: int, wait: float) -> Slot:
        body, timeout = RenewSlot(token, lease, round(wait * 1000)), None if not wait else wait + ON_THE_WAY
        slot: Slot = await self.perform(row_of(Verbs.renew), {"slot_id": slot_id}, body=body, timeout=timeout)
        return slot

    async def release(self, slot_id: str, token: str) -> bool:
        """Release a slot, or stop waiting for it; False when it was already gone."""
        try:
            return await super().release(slot_id, token)
        except OutcomeUnknown:
            await self.perform(row_of(Verbs.release), {"slot_id": slot_id, "token": token}, safe=True)
            return True  # by this request or by its first attempt
