"""Attempts as jobs and their runs, groups, definitions and schedules as the document's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from windlass import payload as json
from windlass.answers import Origin
from windlass.dialects.attempts import created_at
from windlass.dialects.guards.records import Job, JobGroup, JobRun, JobTemplate, RetryPolicy, Schedule, to_datetime, to_datetime_or_none
from windlass.dialects.guards.settings import Settings
from windlass.dialects.guards.words import GROUP_WORDS, JobRunStatus, Standing, standing
from windlass.model import Attempt, Failure, Group, JobRecord, Run, State
from windlass.model import Schedule as EngineSchedule

REPORTED = "reported"
"""The code of a failure that `update_jobrun` has reported; its detail is a `RunResult`."""
STEP = 100
"""Between the positions of two jobs that follow each other."""


class RunResult(NamedTuple):
    """The result of an execution: its exit code and its artifacts."""

    exit_code: int | None = None
    artifacts: Sequence[Any] = ()

    def to_text(self, limit: int) -> str:
        """The result as JSON text, to be stored."""
        return json.encode({"exit_code": self.exit_code, "artifacts": list(self.artifacts)}, limit=limit, what="artifacts")


class AttemptView(NamedTuple):
    """An attempt of a run, which is a job and its run."""

    run: Run
    attempt: Attempt
    created_at: int

    @property
    def standing(self) -> Standing:
        return standing(self.attempt.outcome, executed=self.attempt.claimed_at is not None)

    @property
    def is_last(self) -> bool:
        """Whether it is the current attempt of its run; all others are closed."""
        return self.attempt.n == self.run.attempt

    @property
    def has_run(self) -> bool:
        """Whether the job was ever handed out, or skipped instead."""
        return self.attempt.claimed_at is not None or self.standing.run is not None

    @property
    def started_at(self) -> int | None:
        """The time of the claim. Clocks can be set back, but the times of a job are in order."""
        return None if self.attempt.claimed_at is None else max(self.attempt.claimed_at, self.created_at)

    @property
    def finished_at(self) -> int | None:
        at = self.attempt.finished_at
        return None if at is None else max(at, self.started_at or self.created_at)

    @property
    def params(self) -> Any:
        """What it runs with, or ran with: a later edit of its run does not change it."""
        value = json.decode(self.run.payload if self.attempt.payload is None else self.attempt.payload)
        return {} if value is None else value

    @property
    def reason(self) -> str | None:
        """Why it was cancelled or skipped."""
        return self.run.reason if self.is_last and self.run.state in (State.CANCELLED, State.SKIPPED) else None


def views_of(run: Run, attempts: Sequence[Attempt]) -> Iterator[AttemptView]:
    """All attempts of a run, oldest first, as jobs."""
    return (AttemptView(run, attempt, at) for attempt, at in created_at(run, attempts))


def job_of(view: AttemptView, origin: Origin, ahead: int | None) -> Job:
    """An attempt as a job; `ahead`: how many of its priority stand before it in the queue."""
    run = view.run
    return Job(
        job_id=view.attempt.id,
        job_type=run.handler,
        status=view.standing.job,
        params=view.params,
        priority=run.priority,
        position=None if ahead is None else STEP * (1 + ahead),
        template_id=run.job,
        schedule_id=origin.schedule,
        group_id=origin.group,
        sequence_number=origin.place,
        retry_of=view.attempt.retry_of,
        created_at=to_datetime(view.created_at),
        queued_at=to_datetime(view.created_at),
        started_at=to_datetime_or_none(view.started_at),
        finished_at=to_datetime_or_none(view.finished_at),
        reason=view.reason,
    )


def jobrun_of(view: AttemptView) -> JobRun:
    """An attempt as the record of its execution."""
    status, result = view.standing.run, _result_of(view)
    return JobRun(
        run_id=view.attempt.id,
        job_id=view.attempt.id,
        template_id=view.run.job,
        params_snapshot=view.params,
        status=status,
        started_at=to_datetime_or_none(view.started_at),
        finished_at=to_datetime_or_none(view.finished_at),
        exit_code=result.exit_code,
        error=_error_text(view),
        artifacts=list(result.artifacts),
        log_path=None,
    )


def _error_text(view: AttemptView) -> str | None:
    if view.standing.run is not JobRunStatus.FAILED:
        return view.reason
    error = view.attempt.error or Failure("unknown", "The attempt ended without an error of its own.")
    return error.message if error.code == REPORTED else f"{error.code}: {error.message}"


def _result_of(view: AttemptView) -> RunResult:
    """The exit code and the artifacts: as they were reported, else 0 with what the handler returned, or 1."""
    match view.standing.run:
        case JobRunStatus.COMPLETED:
            return result_of_output(None if view.run.output is None else json.decode(view.run.output))
        case JobRunStatus.FAILED:
            return _reported(view.attempt.error)
        case _:
            return RunResult()


def _reported(error: Failure | None) -> RunResult:
    """What was reported with a failure; of any other failure, and of a detail that a smaller limit has cut, nothing is known."""
    if error is not None and error.code == REPORTED and error.detail is not None:
        with suppress(ValueError):
            return RunResult(**json.decode(error.detail))
    return RunResult(1)


def result_of_output(output: Any) -> RunResult:
    """What a handler returned as artifacts: a list as it is, an object by its `artifacts` and `exit_code`, any other value alone."""
    match output:
        case None:
            return RunResult(0)
        case list():
            return RunResult(0, output)
        case {"exit_code": int(code), "artifacts": list(artifacts)} if len(output) == 2:
            return RunResult(code, artifacts)
        case {"artifacts": list(artifacts)} if len(output) == 1:
            return RunResult(0, artifacts)
        case _:
            return RunResult(0, [output])


def template_of(record: JobRecord, settings: Settings) -> JobTemplate:
    """A definition as a template."""
    executions = record.options.max_attempts or settings.executions(settings.max_attempts)
    return JobTemplate(
        template_id=record.name,
        name=record.name,
        job_type=record.handler or record.name,
        default_params=record.payload,
        retry_policy=RetryPolicy(max_attempts=settings.max_attempts_of(executions)),
        description=record.description,
        created_at=to_datetime(record.created_at),
        updated_at=to_datetime(record.updated_at),
    )


def schedule_of(schedule: EngineSchedule) -> Schedule:
    """A schedule in the words of the document."""
    return Schedule(
        schedule_id=schedule.key,
        template_id=schedule.job,
        name=schedule.key,
        cron_expression=schedule.expr,
        timezone=schedule.zone,
        enabled=schedule.enabled,
        param_overrides=schedule.payload,
        last_triggered_at=to_datetime_or_none(schedule.last_at),
        next_trigger_at=to_datetime_or_none(schedule.next_at),
        created_at=to_datetime(schedule.created_at),
    )


def group_of(group: Group, members: Sequence[tuple[Run, Sequence[Attempt]]]) -> JobGroup:
    """A group with the newest job of each member. It has started when the first of them was handed out."""
    begun = [attempt.claimed_at for _, attempts in members for attempt in attempts if attempt.claimed_at is not None]
    return JobGroup(
        group_id=group.id,
        name=group.name,
        status=GROUP_WORDS[group.status],
        created_at=to_datetime(group.created_at),
        started_at=to_datetime_or_none(min(begun, default=None)),
        finished_at=to_datetime_or_none(group.finished_at),
        job_ids=[run.current_attempt for run, _ in members],
    )
