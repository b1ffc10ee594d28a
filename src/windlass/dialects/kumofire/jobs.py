"""The verbs of Kumofire Jobs, over a storage and a queue: an application creates, a dispatcher dispatches, a consumer consumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from windlass.dialects.kumofire.adapters import SCHEDULE_FIELDS, QueueAdapter, StorageAdapter
from windlass.dialects.kumofire.consuming import BatchMessage, BatchResult, Consumer, ConsumeResult, Handler, RetryPolicy
from windlass.dialects.kumofire.messages import Message, build_message
from windlass.dialects.kumofire.points import reach
from windlass.dialects.kumofire.records import (
    CreatedJobRun,
    JobAttempt,
    JobDefinition,
    JobSchedule,
    NewJobRun,
    NewSchedule,
    RunStatus,
    object_of,
)
from windlass.dialects.kumofire.words import LEASE, LIMIT, RESEND
from windlass.engine import checks
from windlass.errors import BadInput, UnknownJob, nearest
from windlass.model import Limits

_LIMITS = Limits()
Instant = datetime | str
"""An instant: a datetime with a zone, or its text as 2027-01-31T09:00:00Z."""


class DispatchResult(Struct, frozen=True):
    """The result of a dispatch: how many messages were sent."""

    dispatched: int


class KumofireJobs:
    """The verbs over a storage and a queue. They use only these two adapters."""

    def __init__(
        self,
        *,
        storage: StorageAdapter,
        queue: QueueAdapter,
        handlers: Mapping[str, Handler] | None = None,
        definitions: Sequence[JobDefinition] = (),
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is immutable
        lease_ms: int = LEASE,
        resend_ms: int = RESEND,
        version: bool = False,
    ) -> None:
        """Each handler is registered as a job of its name. `definitions` are further jobs, or those with a payload template, options, or a
        handler that is called otherwise. With `version`, messages name the version of the protocol.
        """
        if not isinstance(queue, QueueAdapter):
            raise BadInput(f"The queue is {queue!r:.80}, which has no send.", hint="Give it `async def send(message)`, or a CallableQueue.")
        checks.kind(retry, "retry", RetryPolicy)
        checks.integer(retry.max_attempts, "max_attempts", 1, _LIMITS.attempts)
        _check_handlers(handlers)
        self.storage, self.queue = storage, queue
        self._retry, self._version = retry, version
        self._resend_ms = checks.integer(resend_ms, "resend_ms", 1, _LIMITS.duration)
        self._unregistered = _definitions(handlers or {}, definitions)
        lease_ms = checks.integer(lease_ms, "lease_ms", 1, _LIMITS.lease)
        self._consumer = Consumer(storage, handlers or {}, retry, lease_ms)

    async def _ready(self) -> None:
        """Check the schema, and register the definitions of this code, once."""
        await self.storage.verify_schema_version()
        for definition, replace in [*self._unregistered.values()]:
            stored = await self.storage.put_definition(definition, replace=replace)
            self._consumer.definitions[stored.id] = stored
            self._unregistered.pop(stored.id, None)  # concurrent calls register all of them, too

    async def _definition(self, name: str) -> JobDefinition:
        definition = await self.storage.get_definition(checks.name(name, "A job's name"))
        if definition is not None:
            return definition
        near = nearest(name, self._consumer.definitions)
        raise UnknownJob(
            f"No job is called {name!r}.",
            hint=f"Did you mean {near}?" if near else "Give create_jobs a handler or a definition of this name.",
        )

    # The application

    async def create(
        self,
        name: str,
        payload: Any = None,
        *,
        run_at: Instant | None = None,
        max_attempts: int | None = None,
        dedupe_key: str | None = None,
    ) -> CreatedJobRun:
        """Create a run; one that is due is sent at once. With a key that a run has had before, the answer is that run."""
        await self._ready()
        definition, due_at = await self._definition(name), _time(run_at)
        run_id = await self.storage.create_run(
            NewJobRun(
                job_id=definition.id,
                payload=payload,
                run_at=due_at,
                max_attempts=self._max_attempts(max_attempts, definition),
                dedupe_key=dedupe_key,
            )
        )
        if due_at is None or due_at <= self.storage.now():
            await self._send([run_id])
        return CreatedJobRun(kumofire_job_run_id=run_id)

    def _max_attempts(self, max_attempts: int | None, definition: JobDefinition | None) -> int:
        default = (
            self._retry.max_attempts if definition is None else definition.default_options.get("max_attempts", self._retry.max_attempts)
        )
        return checks.integer(default if max_attempts is None else max_attempts, "max_attempts", 1, _LIMITS.attempts)

    async def get_status(self, run_id: str) -> RunStatus | None:
        """The status of a run, by the id that its creation has answered."""
        await self.storage.verify_schema_version()
        run = await self.storage.get_run(run_id)
        return None if run is None else RunStatus.of(run)

    async def history(self, run_id: str) -> list[JobAttempt] | None:
        """The attempts of a run, oldest first; None if there is no such run."""
        await self.storage.verify_schema_version()
        attempts = await self.storage.list_attempts(run_id)
        return None if attempts is None else list(attempts)

    async def cancel(self, run_id: str) -> RunStatus | None:
        """Cancel a run that has not ended; messages for it do nothing from then on. None if there is no such run."""
        await self.storage.verify_schema_version()
        run = await self.storage.cancel_run(run_id)
        return None if run is None else RunStatus.of(run)

    # Schedules

    async def create_schedule(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        *,
        schedule_type: str,
        schedule_expr: str | int | float | datetime,
        timezone: str | None = None,
        schedule_key: str | None = None,
        max_attempts: int | None = None,
        enabled: bool = True,
    ) -> JobSchedule:
        """Store a schedule; a key that is taken is refused."""
        return await self._put(name, payload, schedule_type, schedule_expr, timezone, schedule_key, max_attempts, enabled, replace=False)

    async def upsert_schedule(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        *,
        schedule_key: str,
        schedule_type: str,
        schedule_expr: str | int | float | datetime,
        timezone: str | None = None,
        max_attempts: int | None = None,
        enabled: bool = True,
    ) -> JobSchedule:
        """Store a schedule under a key, or replace the one that has it, which keeps its id."""
        checks.name(schedule_key, "A schedule's key")
        return await self._put(name, payload, schedule_type, schedule_expr, timezone, schedule_key, max_attempts, enabled, replace=True)

    async def _put(
        self,
        name: str,
        payload: Mapping[str, Any] | None,
        kind: Any,
        expr: str | int | float | datetime,
        timezone: str | None,
        key: str | None,
        max_attempts: int | None,
        enabled: bool,
        *,
        replace: bool,
    ) -> JobSchedule:
        await self._ready()
        definition = await self._definition(name)
        return await self.storage.put_schedule(
            NewSchedule(
                job_id=definition.id,
                schedule_type=kind,
                schedule_expr=expr,
                timezone=timezone,
                payload={} if payload is None else payload,
                max_attempts=self._max_attempts(max_attempts, definition),
                schedule_key=key,
                enabled=enabled,
            ),
            replace=replace,
        )

    async def get_schedule(self, schedule_id: str) -> JobSchedule | None:
        """A schedule, if there is one."""
        await self.storage.verify_schema_version()
        return await self.storage.get_schedule(schedule_id)

    async def get_schedule_by_key(self, schedule_key: str) -> JobSchedule | None:
        """The schedule that was stored under a key."""
        await self.storage.verify_schema_version()
        return await self.storage.get_schedule_by_key(schedule_key)

    async def update_schedule(self, schedule_id: str, **changes: Any) -> JobSchedule | None:
        """Change some of schedule_type, schedule_expr, timezone, payload, max_attempts, enabled; None if there is no such schedule."""
        await self.storage.verify_schema_version()
        checks.editable(changes, SCHEDULE_FIELDS, "a schedule")
        if "max_attempts" in changes:
            changes["max_attempts"] = self._max_attempts(changes["max_attempts"], None)
        return await self.storage.update_schedule(schedule_id, changes)

    async def update_schedule_by_key(self, schedule_key: str, **changes: Any) -> JobSchedule | None:
        """The same for the schedule of a key."""
        schedule = await self.get_schedule_by_key(schedule_key)
        return None if schedule is None else await self.update_schedule(schedule.id, **changes)

    async def disable_schedule(self, schedule_id: str) -> JobSchedule | None:
        """Stop a schedule. It is kept, and can be enabled again by `update_schedule`."""
        return await self.update_schedule(schedule_id, enabled=False)

    async def disable_schedule_by_key(self, schedule_key: str) -> JobSchedule | None:
        """The same for the schedule of a key."""
        return await self.update_schedule_by_key(schedule_key, enabled=False)

    # The dispatcher

    async def dispatch(self, *, limit: int = LIMIT) -> DispatchResult:
        """Handle what is due: locks expire, schedules create runs, runs are sent. Any number of processes may call it at any time."""
        await self._ready()
        checks.integer(limit, "limit", 1, _LIMITS.page)
        await self.storage.expire_locks()
        for schedule in await self.storage.list_due_schedules(limit):
            await self.storage.materialize_schedule(schedule)
        runs = await self.storage.list_dispatchable_runs(limit, self._resend_ms)
        return DispatchResult(await self._send([run.id for run in runs]))

    async def _send(self, run_ids: Sequence[str]) -> int:
        """Mark runs as sent, and send those that no other dispatcher has marked. What is lost between the two is sent again later."""
        marked = await self.storage.mark_queued(run_ids, self._resend_ms) if run_ids else ()
        for run_id in marked:
            reach("marked")
            await self.queue.send(build_message(run_id, version=self._version))
            reach("sent")
        return len(marked)

    # The consumer

    async def consume(self, message: Message | str | bytes) -> ConsumeResult:
        """Execute the run that a message is about, if it is queued and no other consumer has it.

        A malformed message is ignored; one of another version is refused.
        """
        await self._ready()
        return await self._consumer.consume(message)

    async def consume_batch(self, messages: Iterable[BatchMessage]) -> BatchResult:
        """Execute the runs of messages, one after the other. Each is acknowledged, or returned for another delivery if it was refused."""
        return await self._consumer.consume_batch(messages, self.consume)


def _definitions(handlers: Mapping[str, Handler], definitions: Sequence[JobDefinition]) -> dict[str, tuple[JobDefinition, bool]]:
    """The definitions of this code by their ids, and whether each replaces a stored one: a handler alone says nothing of options."""
    for definition in definitions:
        _check_definition(definition)
    own = {definition.name for definition in definitions}
    if len(own) < len(definitions):
        raise BadInput("Two definitions have the same name.", hint="Give each its own name; they may share a handler.")
    others = {name: (JobDefinition(name=name), False) for name in handlers if name not in own}
    return {definition.id: (definition, True) for definition in definitions} | others


def _check_handlers(handlers: Any) -> None:
    for name, handler in object_of(handlers or {}, "handlers").items():
        checks.name(name, "A handler's name")
        if not callable(handler):
            raise BadInput(f"The handler {name!r:.80} must be a function, not {handler!r:.80}.", hint="Give it a function.")


def _check_definition(definition: JobDefinition) -> None:
    checks.kind(definition, "A definition", JobDefinition)
    checks.name(definition.name, "A job's name")
    checks.name(definition.handler, "A handler's name")
    object_of(definition.payload_template, "payload_template")
    object_of(definition.default_options, "default_options")


def _time(instant: Instant | None) -> datetime | None:
    """An instant in UTC."""
    if instant is None:
        return None
    try:
        time = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
        if time.utcoffset() is not None:
            return time.astimezone(UTC)
    except (AttributeError, ValueError, OverflowError):
        pass
    raise BadInput(f"run_at is {instant!r:.80}, which is no instant.", hint="Give a datetime with a zone, or write 2027-01-31T09:00:00Z.")


create_jobs = KumofireJobs
"""The verbs over a storage and a queue."""
