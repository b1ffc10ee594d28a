"""The records of the document: jobs, their runs, templates, schedules, groups, and the state of the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from msgspec import Struct

from windlass.dialects.guards.words import GroupStatus, JobRunStatus, JobStatus


class Record(Struct, frozen=True, kw_only=True):
    """A record with the members of the document."""

    def to_json(self) -> dict[str, Any]:
        """The record as it is sent: times as texts with microseconds, words as texts."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}


class Job(Record, frozen=True, kw_only=True):
    """A job: one execution of a template's handler, waiting, running, or ended."""

    job_id: str
    job_type: str
    status: JobStatus
    params: dict[str, Any]
    priority: int
    position: int | None  # None: it is not in the queue yet, or no more
    template_id: str
    schedule_id: str | None
    group_id: str | None
    sequence_number: int | None
    retry_of: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None  # why it was cancelled or skipped


class JobRun(Record, frozen=True, kw_only=True):
    """The record of a job's one execution."""

    run_id: str
    job_id: str
    template_id: str
    params_snapshot: dict[str, Any]
    status: JobRunStatus | None  # None: it has not ended
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    error: str | None
    artifacts: list[Any]
    log_path: str | None  # always None: log lines are in the store


class RetryPolicy(Record, frozen=True, kw_only=True):
    """How often a failed job is retried."""

    max_attempts: int = 3


class JobTemplate(Record, frozen=True, kw_only=True):
    """What jobs are made from: a definition of windlass."""

    template_id: str
    name: str
    job_type: str
    default_params: dict[str, Any]
    retry_policy: RetryPolicy
    description: str | None
    created_at: datetime
    updated_at: datetime


class Schedule(Record, frozen=True, kw_only=True):
    """A rule that makes jobs of a template."""

    schedule_id: str
    template_id: str
    name: str
    cron_expression: str
    timezone: str
    enabled: bool
    param_overrides: dict[str, Any]
    last_triggered_at: datetime | None
    next_trigger_at: datetime | None
    created_at: datetime


class JobGroup(Record, frozen=True, kw_only=True):
    """Jobs that belong together. `job_ids` names the newest job of each member, which may be a retry."""

    group_id: str
    name: str | None
    status: GroupStatus
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    job_ids: list[str]


class CumulativeStats(Record, frozen=True, kw_only=True):
    """How many jobs were executed, and how they ended."""

    total_executed: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0


class SchedulerStatus(Record, frozen=True, kw_only=True):
    """What the scheduler does now."""

    scheduler_running: bool
    current_job_id: str | None
    queue_length: int
    cumulative_stats: CumulativeStats
    has_active_reservation: bool


class RecoveryStats(Record, frozen=True, kw_only=True):
    """What a start has recovered."""

    running_jobs_recovered: int = 0
    reservations_expired: int = 0
    retries_created: int = 0
    job_groups_recovered: int = 0
    errors: list[str] = []


class QueueCounts(NamedTuple):
    """How many jobs wait, and how many are executed."""

    queued: int
    running: int


def to_datetime(at: int) -> datetime:
    """An instant of the engine."""
    return datetime.fromtimestamp(at / 1000, UTC)


def to_datetime_or_none(at: int | None) -> datetime | None:
    """As to_datetime, or None."""
    return None if at is None else to_datetime(at)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    return value.to_json() if isinstance(value, Record) else value
