"""The words of Kumofire Jobs: the statuses of a run, and its defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from windlass.dialects.base import Words
from windlass.model import State

QUEUE = "kumofire"
MAX_ATTEMPTS = 3
LEASE, RESEND = 30_000, 60_000
"""Milliseconds for which a consumer locks a run, and after which a message without effect is sent again."""
LIMIT = 100
"""Schedules, and runs, that one dispatch handles at most."""
LONGEST_DELAY = 60
BACKOFF = tuple(1_000 * min(2**n, LONGEST_DELAY) for n in range(7))
"""Milliseconds before each retry, the last one repeated."""


class JobRunStatus(StrEnum):
    """The status of a run."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


WORDS = Words(
    {
        State.WAITING: JobRunStatus.SCHEDULED,
        State.SCHEDULED: JobRunStatus.SCHEDULED,
        State.QUEUED: JobRunStatus.QUEUED,
        State.CLAIMED: JobRunStatus.QUEUED,
        State.RUNNING: JobRunStatus.RUNNING,
        State.SUCCEEDED: JobRunStatus.SUCCEEDED,
        State.FAILED: JobRunStatus.FAILED,
        State.QUARANTINED: JobRunStatus.FAILED,
        State.CANCELLING: JobRunStatus.CANCELED,
        State.CANCELLED: JobRunStatus.CANCELED,
        State.SKIPPED: JobRunStatus.CANCELED,
    }
)
OUTCOMES = {
    **{state.value: JobRunStatus(label) for state, label in WORDS.labels.items()},
    "failed": JobRunStatus.FAILED,
    "lapsed": JobRunStatus.FAILED,
    "returned": JobRunStatus.SCHEDULED,
}
"""The statuses of attempts by their outcome: that of the last one is the status of its run, the others are closed."""

ENDED = (JobRunStatus.SUCCEEDED, JobRunStatus.FAILED, JobRunStatus.CANCELED)


def status_of(state: State) -> JobRunStatus:
    """The status of a run in this state."""
    return JobRunStatus(WORDS.label(state))


def delay_after(failures: int) -> timedelta:
    """The delay of a run that has failed this many times: 1, 2, 4 seconds and so on, at most a minute."""
    return timedelta(seconds=min(2 ** (min(failures, 16) - 1), LONGEST_DELAY))


def to_time(ms: int) -> datetime:
    """An instant of the engine."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def maybe_time(ms: int | None) -> datetime | None:
    """An instant, if there is one."""
    return None if ms is None else to_time(ms)


def to_ms(time: datetime) -> int:
    """An instant as the engine has it."""
    return round(time.timestamp() * 1000)


def latest(*instants: int | None) -> datetime:
    """The last of these instants."""
    return to_time(max(at for at in instants if at is not None))
