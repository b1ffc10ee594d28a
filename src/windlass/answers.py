"""Plain records that verbs return, and `Outcome`, which one takes, beside those of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Self, TypedDict

from msgspec import Struct

from windlass.machine import Report
from windlass.model import AuditEntry, Counts, Delivery, Failure, Keep, Leases, Resource, Run, Slot, State

# Runs


class Outcome(NamedTuple):
    """A worker's report about a run. `seq`, if known, saves a lookup."""

    run: str
    report: Report
    seq: int | None = None


class Page(Struct, frozen=True):
    """Some runs, and where the next page begins; None when there is none."""

    runs: list[Run]
    cursor: str | None
    looked_at: int | None = None  # the page is not full, because it ends here after many runs that did not match; None: it is


class RunFilters(TypedDict, total=False):
    """What the runs of a list have in common. None, as what is left out, asks nothing; instants are milliseconds."""

    job: str | None
    queue: str | None
    state: State | str | None
    states: Iterable[State | str] | None
    group: str | None  # its id
    schedule: str | None  # its key
    worker: str | None  # of the current or the last attempt
    key: str | None
    tag: str | None  # that its worker must have
    error: str | None  # the code of its error
    created_since: int | None  # at or after this instant
    created_before: int | None
    ended_since: int | None
    ended_before: int | None
    text: str | None  # the beginning or end of its id, the beginning of its key, or a part of its error's message


MAX_AHEAD = 10_000
"""The highest number of runs ahead of a run that is counted to."""


class Origin(Struct, frozen=True):
    """Where a run comes from. None: no schedule, or no group."""

    schedule: str | None = None  # its key; also None if the schedule has been removed
    group: str | None = None  # its id
    place: int | None = None  # in the group, from 0, among its members that are still stored


class RunDetail(Run, frozen=True, gc=False):
    """A run with its origin, and how many runs are ahead of it."""

    origin: Origin = Origin()
    ahead: int | None = None  # queued runs of its queue and priority before it; None unless it is queued

    @classmethod
    def of(cls, run: Run, origin: Origin, ahead: int | None) -> Self:
        """The detail of a run that was read."""
        return cls(**{name: getattr(run, name) for name in Run.__struct_fields__}, origin=origin, ahead=ahead)


class Status(Struct, frozen=True):
    """The status of a run for an application, without job ids, schedules, leases and payloads."""

    id: str
    job: str
    state: State
    failures: int
    max_attempts: int
    scheduled_for: int
    started_at: int | None
    finished_at: int | None
    error: Failure | None

    @classmethod
    def of(cls, run: Run) -> Status:
        """The status of a run that was read."""
        times = run.scheduled_for, run.started_at, run.finished_at
        return cls(run.id, run.job, run.state, run.failures, run.max_attempts, *times, run.error)


class Reason(Struct, frozen=True):
    """One reason that blocks a run, as text and as data."""

    code: str
    text: str
    data: dict[str, Any] = {}


class Preview(Struct, frozen=True):
    """One coming instant of a schedule."""

    at: int
    local: str
    clock_changes: bool


# Limits


class Holder(NamedTuple):
    """A run that occupies some of a resource."""

    run: str
    job: str
    worker: str | None
    weight: int


class ResourceState(Struct, frozen=True):
    """A resource, and how much of it is occupied, over all of its keys."""

    resource: Resource
    held: int
    runs: int
    slots: int  # direct calls that hold it or wait for it
    jobs: tuple[str, ...]  # jobs that use it


class Occupants(Struct, frozen=True):
    """The occupants of a resource, or of one key of it."""

    runs: list[Holder]
    slots: list[Slot]


class RetentionSetting(Struct, frozen=True):
    """How long ended runs are kept, and where that comes from: the store, the settings of this process, or its defaults."""

    keep: Keep
    source: Literal["store", "settings", "default"]
    actor: str | None = None  # its author; None: the first process whose settings had it
    at: int | None = None


class Retention(Struct, frozen=True):
    """How long ended runs are kept that have no time of their own."""

    keep_succeeded: RetentionSetting
    keep_others: RetentionSetting


# Operation


class AuditPage(Struct, frozen=True):
    """Audited actions, newest first, and the cursor of the next page."""

    entries: list[AuditEntry]
    cursor: str | None


class Deliveries(Struct, frozen=True):
    """Some deliveries, latest first, and where the next page begins; None when there is none."""

    deliveries: list[Delivery]
    cursor: str | None


class Minute(Struct, frozen=True):
    """The counts of the minute that begins then."""

    at: int
    counts: Counts


class JobStats(Struct, frozen=True):
    """A job in a queue: how many runs are in each state, or have ended in it; the counts from the beginning, and of late."""

    queue: str
    job: str
    states: dict[State, int]
    counts: Counts
    lately: Counts


class Stats(Struct, frozen=True):
    """All jobs together, minute by minute up to now, and each of them."""

    at: int
    states: dict[State, int]
    counts: Counts
    minutes: list[Minute]
    jobs: list[JobStats]


class PendingWork(Struct, frozen=True):
    """Pending work although nothing is queued: the leases of workers, and when a recovered run is due again."""

    leases: list[Leases]
    due_at: int | None


class SweepResult(Struct, frozen=True):
    """The results of a sweep, and the milliseconds until the next one is due."""

    fired: int = 0
    settled: int = 0
    dispatched: int = 0
    lapsed: int = 0
    pruned: int = 0
    back_in: int = 1_000


Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""The worst first: something does not work, something will fail or costs too much, something is worth knowing."""


class Finding(Struct, frozen=True):
    """A problem, as text and as data, and what to do about it."""

    code: str
    severity: Severity
    text: str
    todo: str
    data: dict[str, Any] = {}
