"""The records of Kumofire Jobs, with the names of its document: definitions, schedules, runs, their locks and attempts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from windlass.api.values import to_rfc3339
from windlass.dialects.kumofire.words import JobRunStatus, to_ms
from windlass.errors import BadInput

ScheduleType = Literal["once", "interval", "cron"]


class KumofireRecord(Struct, frozen=True, kw_only=True):
    """A record with a form in JSON."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain values, with instants as texts in UTC with milliseconds."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}


def _plain(value: Any) -> Any:
    return to_rfc3339(to_ms(value)) if isinstance(value, datetime) else msgspec.to_builtins(value)


def object_of(value: Any, what: str) -> dict[str, Any]:
    """A payload, a template or options that must be an object of JSON."""
    if not isinstance(value, Mapping):
        raise BadInput(f"{what} must be an object, not {value!r:.80}.", hint="Write {...}, or leave it out.")
    return dict(value)


class JobDefinition(KumofireRecord, frozen=True, kw_only=True):
    """What a job is: its id is its name. Without a handler of its own, the handler is called like the job."""

    name: str
    handler: str = ""
    payload_template: Mapping[str, Any] = {}
    default_options: Mapping[str, Any] = {}
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def __post_init__(self) -> None:
        if not self.handler:
            msgspec.structs.force_setattr(self, "handler", self.name)

    @property
    def id(self) -> str:
        return self.name

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id} | super().to_json()


class NewSchedule(KumofireRecord, frozen=True, kw_only=True):
    """A requested schedule. The expression is an instant, seconds or a text such as 5m, or five fields of cron."""

    job_id: str
    schedule_type: ScheduleType
    schedule_expr: str | int | float | datetime
    timezone: str | None = None
    payload: Mapping[str, Any] = {}
    max_attempts: int | None = None
    schedule_key: str | None = None
    enabled: bool = True


class JobSchedule(KumofireRecord, frozen=True, kw_only=True):
    """A rule that creates runs of a job."""

    id: str
    job_id: str
    schedule_key: str | None
    schedule_type: str
    schedule_expr: str
    timezone: str
    payload: Mapping[str, Any]
    max_attempts: int | None
    next_run_at: datetime | None
    last_scheduled_at: datetime | None
    enabled: bool
    created_at: datetime
    updated_at: datetime


class NewJobRun(KumofireRecord, frozen=True, kw_only=True):
    """A requested run. Without a payload it gets the template of its job."""

    job_id: str
    payload: Any = None
    run_at: datetime | None = None
    max_attempts: int
    dedupe_key: str | None = None


class JobRun(KumofireRecord, frozen=True, kw_only=True):
    """One execution of a job, with its retries. `attempt` is how often it has failed."""

    id: str
    job_id: str
    job_schedule_id: str | None
    status: JobRunStatus
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    max_attempts: int
    input_payload: Any
    output_payload: Any
    error_message: str | None
    created_at: datetime
    updated_at: datetime


class JobLock(Struct, frozen=True, kw_only=True):
    """The right of one consumer to execute a run until a time."""

    job_run_id: str
    lease_until: datetime
    updated_at: datetime
    run: JobRun  # as it was locked
    token: str = ""  # never used before
    handle: Any = None  # what the storage needs besides


class JobAttempt(KumofireRecord, frozen=True, kw_only=True):
    """One execution of a run's handler."""

    number: int
    status: JobRunStatus
    started_at: datetime | None
    finished_at: datetime | None
    error_message: str | None


class CreatedJobRun(KumofireRecord, frozen=True, kw_only=True):
    """The answer to a creation: the id that an application keeps."""

    kumofire_job_run_id: str


class RunStatus(KumofireRecord, frozen=True, kw_only=True):
    """What an application learns of a run: no job id, no schedule, no payload, no lock."""

    id: str
    job_name: str
    status: JobRunStatus
    attempt: int
    max_attempts: int
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_message: str | None

    @classmethod
    def of(cls, run: JobRun) -> RunStatus:
        """The status of a run that was read."""
        own = {name: getattr(run, name) for name in cls.__struct_fields__ if name != "job_name"}
        return cls(job_name=run.job_id, **own)
