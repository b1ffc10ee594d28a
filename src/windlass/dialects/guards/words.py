"""The words of the design guards: for jobs, for their runs, for groups. A job is one attempt of a run of windlass."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from windlass.dialects.base import Words
from windlass.model import GroupStatus as EngineGroupStatus
from windlass.model import State


class JobStatus(StrEnum):
    """The status of a job in its queue.

    An ended job keeps the word RUNNING. A status that was read of a job knows whether it has ended: see `is_terminal`.
    """

    QUEUED = "QUEUED"
    DISPATCHED = "DISPATCHED"
    """A worker has claimed it. It is internal: such a job is shown as RUNNING."""
    RUNNING = "RUNNING"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether the job that it was read of has ended."""
        return self is JobStatus.CANCELLED or self is FINISHED


def _finished() -> JobStatus:
    """A second RUNNING, equal to the first one and with the same text."""
    status = str.__new__(JobStatus, JobStatus.RUNNING.value)
    status._name_, status._value_ = JobStatus.RUNNING.name, JobStatus.RUNNING.value
    return status


FINISHED = _finished()
"""The status of a job that was executed and has ended."""


class JobRunStatus(StrEnum):
    """The result of an execution."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class GroupStatus(StrEnum):
    """The status of a group: RUNNING until all of its jobs have ended."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    PARTIAL = "PARTIAL"
    CANCELLED = "CANCELLED"


WORDS = Words(
    {
        State.WAITING: JobStatus.QUEUED,
        State.SCHEDULED: JobStatus.QUEUED,
        State.QUEUED: JobStatus.QUEUED,
        State.CLAIMED: JobStatus.RUNNING,
        State.RUNNING: JobStatus.RUNNING,
        State.CANCELLING: JobStatus.RUNNING,
        State.SUCCEEDED: JobStatus.RUNNING,
        State.FAILED: JobStatus.RUNNING,
        State.QUARANTINED: JobStatus.RUNNING,
        State.CANCELLED: JobStatus.CANCELLED,
        State.SKIPPED: JobStatus.CANCELLED,
    }
)
"""The word for a run in each state. One that its own handler skipped is RUNNING like all that were executed: see `standing`."""


class Standing(NamedTuple):
    """The two words for an attempt: of the job, and of its run, which has none until it has ended."""

    job: JobStatus
    run: JobRunStatus | None = None


_NEVER_EXECUTED = Standing(JobStatus.CANCELLED, JobRunStatus.SKIPPED)
_BY_OUTCOME: Mapping[str, Standing] = {
    State.WAITING: Standing(JobStatus.QUEUED),
    State.SCHEDULED: Standing(JobStatus.QUEUED),
    State.QUEUED: Standing(JobStatus.QUEUED),
    State.CLAIMED: Standing(JobStatus.RUNNING),
    State.RUNNING: Standing(JobStatus.RUNNING),
    State.CANCELLING: Standing(JobStatus.RUNNING),
    State.SUCCEEDED: Standing(FINISHED, JobRunStatus.COMPLETED),
    State.FAILED: Standing(FINISHED, JobRunStatus.FAILED),
    State.QUARANTINED: Standing(FINISHED, JobRunStatus.FAILED),
    State.CANCELLED: Standing(JobStatus.CANCELLED),
    State.SKIPPED: Standing(FINISHED, JobRunStatus.SKIPPED),
    "lapsed": Standing(FINISHED, JobRunStatus.FAILED),
    "returned": Standing(JobStatus.CANCELLED),
}


def standing(outcome: str, *, executed: bool) -> Standing:
    """The words for an attempt by its outcome, and by whether a worker ever had it."""
    return _NEVER_EXECUTED if outcome == State.SKIPPED and not executed else _BY_OUTCOME[outcome]


GROUP_WORDS: Mapping[EngineGroupStatus, GroupStatus] = {
    "running": GroupStatus.RUNNING,
    "completed": GroupStatus.COMPLETED,
    "partial": GroupStatus.PARTIAL,
    "cancelled": GroupStatus.CANCELLED,
}


def engine_group_status(status: GroupStatus) -> EngineGroupStatus:
    """The engine's word for the status of a group."""
    return next(word for word, label in GROUP_WORDS.items() if label is status)


def is_terminal(status: JobStatus | JobRunStatus | GroupStatus | str | None) -> bool:
    """Whether this status is an end. A job's RUNNING is one only in a status that was read of an ended job."""
    if isinstance(status, JobStatus):
        return status.ended
    return status in (JobStatus.CANCELLED, *JobRunStatus, GroupStatus.PARTIAL)
