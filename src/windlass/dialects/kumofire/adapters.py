"""The interfaces that a storage and a queue of Kumofire Jobs implement. A program can bring its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from windlass.dialects.kumofire.messages import Message
from windlass.dialects.kumofire.records import JobAttempt, JobDefinition, JobLock, JobRun, JobSchedule, NewJobRun, NewSchedule
from windlass.dialects.kumofire.words import JobRunStatus
from windlass.model import Failure

SCHEDULE_FIELDS = ("schedule_type", "schedule_expr", "timezone", "payload", "max_attempts", "enabled")
"""The fields of a schedule that can be changed."""


@runtime_checkable
class QueueAdapter(Protocol):
    """Where messages are sent to. How they are received is up to the host."""

    async def send(self, message: Message) -> None:
        """Deliver a message to some consumer, at least once or not at all."""


class StorageAdapter(Protocol):
    """The single source of truth for definitions, schedules, runs and locks.

    A mark on a run changes nothing, and returns None, once the lock under which it is made is not held any more. It returns the status
    after the mark; that of a run which was canceled meanwhile is canceled.
    """

    def now(self) -> datetime:
        """The time by which runs and schedules are due and locks expire."""

    async def verify_schema_version(self) -> None:
        """Raise if the storage does not have the schema that this code needs."""

    # Definitions

    async def put_definition(self, definition: JobDefinition, *, replace: bool = True) -> JobDefinition:
        """Store a definition, unless there is one already that is not to be replaced; the one that is stored then."""

    async def get_definition(self, job_id: str) -> JobDefinition | None:
        """A definition, if there is one."""

    # Schedules

    async def put_schedule(self, schedule: NewSchedule, *, replace: bool = False) -> JobSchedule:
        """Store a schedule. A key that is taken is refused, or its schedule replaced, which keeps its id."""

    async def get_schedule(self, schedule_id: str) -> JobSchedule | None:
        """A schedule, if there is one."""

    async def get_schedule_by_key(self, key: str) -> JobSchedule | None:
        """The schedule that was stored under a key."""

    async def update_schedule(self, schedule_id: str, changes: Mapping[str, Any]) -> JobSchedule | None:
        """Change some fields. Its next instant is computed from now if its rule or `enabled` changes, and stays otherwise."""

    async def list_due_schedules(self, limit: int) -> Sequence[JobSchedule]:
        """Enabled schedules whose next instant has come, by this instant and then by their creation."""

    async def materialize_schedule(self, schedule: JobSchedule) -> bool:
        """Create the run of a due schedule's next instant and advance it, both or neither; whether this call has created it."""

    # Runs

    async def create_run(self, new: NewJobRun) -> str:
        """Create a run, unless one has its dedupe key; the id of the run."""

    async def get_run(self, run_id: str) -> JobRun | None:
        """A run, if there is one."""

    async def list_attempts(self, run_id: str) -> Sequence[JobAttempt] | None:
        """The attempts of a run, oldest first; None if there is no such run."""

    async def list_dispatchable_runs(self, limit: int, resend_ms: int) -> Sequence[JobRun]:
        """Runs to be sent, by their creation: those that are due, and those sent so long ago that their message must be lost."""

    async def mark_queued(self, run_ids: Sequence[str], resend_ms: int) -> Sequence[str]:
        """Record that these runs are sent now, as far as they still are to be sent; the ids of those marked by this call and no other."""

    async def cancel_run(self, run_id: str) -> JobRun | None:
        """Cancel a run that has not ended; one that has stays as it is. None if there is no such run."""

    # Locks, and what is done under them

    async def acquire_lock(self, run_id: str, lease_ms: int) -> JobLock | None:
        """Lock a queued run for one consumer; None if it is not queued, or locked."""

    async def renew_lock(self, lock: JobLock, lease_ms: int) -> JobRunStatus | None:
        """Extend a lock; the status of the run. None: it is lost."""

    async def mark_running(self, lock: JobLock) -> JobRun | None:
        """The handler begins. Returns the run as it is then."""

    async def mark_succeeded(self, lock: JobLock, output: str | None) -> JobRunStatus | None:
        """The handler returned; the output is JSON text."""

    async def mark_retryable(self, lock: JobLock, error: Failure, next_run_at: datetime) -> JobRunStatus | None:
        """The handler failed: the run is scheduled again, and its attempts are one more."""

    async def mark_failed(self, lock: JobLock, error: Failure) -> JobRunStatus | None:
        """The handler failed for the last time."""

    async def release_lock(self, lock: JobLock) -> None:
        """Give a lock back, where a mark has not done so. If it fails, the lock expires."""

    async def expire_locks(self) -> int:
        """Let runs be executed again whose locks have expired; how many."""

    async def close(self) -> None:
        """Close the storage."""
