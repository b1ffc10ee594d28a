"""Records of the engine in the words of Kumofire Jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from windlass import payload as json
from windlass.dialects.kumofire.records import JobAttempt, JobDefinition, JobRun, JobSchedule
from windlass.dialects.kumofire.words import OUTCOMES, latest, maybe_time, status_of, to_time
from windlass.errors import BadInput
from windlass.model import Attempt, JobRecord, Options, Run, Schedule, State
from windlass.payload import convert

WITHOUT_MEANING = ("queue", "timeout", "solver", "attempt_per_claim", "max_requeues", "backoff", "backoff_base", "on_exhausted")
"""Options of jobs that a consumer does not look at, or that this protocol decides itself."""
USABLE = tuple(name for name in Options.__struct_fields__ if name not in WITHOUT_MEANING)
KEYLESS = "kumofire-schedule:"
"""The beginning of the engine's keys of schedules that have none of their own."""


def options_from(defaults: Mapping[str, Any]) -> Options:
    """The options of a definition."""
    if others := sorted(set(defaults) - set(USABLE)):
        raise BadInput(f"default_options has {others[0]!r:.80}, which has no meaning here.", hint=f"There are: {', '.join(USABLE)}.")
    try:
        return convert(dict(defaults), Options)
    except msgspec.ValidationError as error:
        raise BadInput(f"default_options cannot be read: {error}.", hint="max_attempts, for example, is a number.") from error


def definition_of(job: JobRecord) -> JobDefinition:
    """A definition of the engine."""
    options = msgspec.to_builtins(job.options)
    return JobDefinition(
        name=job.name,
        handler=job.handler or job.name,
        payload_template=job.payload,
        default_options={name: options[name] for name in USABLE if name in options},
        created_at=to_time(job.created_at),
        updated_at=to_time(job.updated_at),
    )


def keyless(name: str) -> str:
    """The engine's key of a schedule without one of its own."""
    return KEYLESS + name


def is_keyless(key: str) -> bool:
    """Whether an engine's key is that of a schedule without one of its own."""
    return key.startswith(KEYLESS)


def schedule_of(schedule: Schedule) -> JobSchedule:
    """A schedule of the engine. Its id is the engine's key for it."""
    return JobSchedule(
        id=schedule.key,
        job_id=schedule.job,
        schedule_key=None if is_keyless(schedule.key) else schedule.key,
        schedule_type=schedule.kind,
        schedule_expr=schedule.expr,
        timezone=schedule.zone,
        payload=schedule.payload,
        max_attempts=schedule.options.max_attempts,
        next_run_at=maybe_time(schedule.next_at),
        last_scheduled_at=maybe_time(schedule.last_at),
        enabled=schedule.enabled,
        created_at=to_time(schedule.created_at),
        updated_at=to_time(schedule.updated_at),
    )


def run_of(run: Run, schedule: str | None) -> JobRun:
    """A run of the engine, with the key of its schedule."""
    return JobRun(
        id=run.id,
        job_id=run.job,
        job_schedule_id=schedule,
        status=status_of(run.state),
        scheduled_for=to_time(scheduled_for(run)),
        started_at=maybe_time(run.started_at),
        finished_at=maybe_time(finished_at(run)),
        attempt=run.failures,
        max_attempts=run.max_attempts,
        input_payload=json.decode(run.payload),
        output_payload=None if run.output is None else json.decode(run.output),
        error_message=None if run.error is None else run.error.message,
        created_at=to_time(run.created_at),
        updated_at=latest(run.created_at, run.claimed_at, run.started_at, run.cancel_asked_at, run.finished_at),
    )


def scheduled_for(run: Run) -> int:
    """When it was to be executed: the instant of its schedule, until it is tried again."""
    return run.due_at if run.failures else run.scheduled_for


def finished_at(run: Run) -> int | None:
    """When it has ended; of one that is still being stopped, when it was canceled."""
    return run.cancel_asked_at if run.state in (State.CANCELLING, State.CANCELLED) else run.finished_at


def attempt_of(attempt: Attempt) -> JobAttempt:
    """An attempt of the engine."""
    return JobAttempt(
        number=attempt.n,
        status=OUTCOMES[attempt.outcome],
        started_at=maybe_time(attempt.started_at),
        finished_at=maybe_time(attempt.finished_at),
        error_message=None if attempt.error is None else attempt.error.message,
    )
