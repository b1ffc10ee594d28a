"""The scheduler's design guards: jobs with one run each, retries as new jobs, one job at a time, direct calls between.

Its functions block, as those of its document do. `Scheduler("jobs.db")` has them as methods; the functions of this module are those of
the scheduler that `use(scheduler)` names. `SchedulerVerbs` has them as coroutines over an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.api.verbs import Verbs
from windlass.dialects.guards.blocking import (
    cancel_group,
    cancel_job,
    compute_group_status,
    create_group,
    create_job,
    create_schedule,
    create_template,
    delete_schedule,
    dispatch_job,
    execute_direct,
    get_schedule,
    get_template,
    list_groups,
    list_jobruns,
    list_jobs,
    list_schedules,
    list_templates,
    load_group,
    load_job,
    load_jobrun,
    retry_run,
    start,
    status,
    stop,
    update_job,
    update_jobrun,
    update_schedule,
    update_template,
    use,
)
from windlass.dialects.guards.errors import (
    InvalidOperationError,
    InvalidValueError,
    JobNotFoundError,
    JobRunNotFoundError,
    ReservationConflictError,
    TemplateNotFoundError,
)
from windlass.dialects.guards.records import (
    Job,
    JobGroup,
    JobRun,
    JobTemplate,
    RecoveryStats,
    RetryPolicy,
    Schedule,
    SchedulerStatus,
)
from windlass.dialects.guards.reports import JOBRUN_MUTABLE_FIELDS
from windlass.dialects.guards.routes import mount
from windlass.dialects.guards.scheduler import Scheduler
from windlass.dialects.guards.settings import Settings
from windlass.dialects.guards.verbs import SchedulerVerbs
from windlass.dialects.guards.views import job_of, jobrun_of, views_of
from windlass.dialects.guards.words import WORDS, GroupStatus, JobRunStatus, JobStatus, is_terminal
from windlass.model import Run

__all__ = [
    "JOBRUN_MUTABLE_FIELDS",
    "VARIABLES",
    "WORDS",
    "GroupStatus",
    "InvalidOperationError",
    "InvalidValueError",
    "Job",
    "JobGroup",
    "JobNotFoundError",
    "JobRun",
    "JobRunNotFoundError",
    "JobRunStatus",
    "JobStatus",
    "JobTemplate",
    "RecoveryStats",
    "ReservationConflictError",
    "RetryPolicy",
    "Schedule",
    "Scheduler",
    "SchedulerStatus",
    "SchedulerVerbs",
    "Settings",
    "TemplateNotFoundError",
    "cancel_group",
    "cancel_job",
    "compute_group_status",
    "create_group",
    "create_job",
    "create_schedule",
    "create_template",
    "delete_schedule",
    "dispatch_job",
    "execute_direct",
    "get_schedule",
    "get_template",
    "is_terminal",
    "list_groups",
    "list_jobruns",
    "list_jobs",
    "list_schedules",
    "list_templates",
    "load_group",
    "load_job",
    "load_jobrun",
    "mount",
    "retry_run",
    "show",
    "start",
    "status",
    "stop",
    "update_job",
    "update_jobrun",
    "update_schedule",
    "update_template",
    "use",
]

VARIABLES = {"API_AUTH_ENABLED": "api_auth_enabled", "API_KEY": "api_key"}
"""The variables that the protocol's servers have for its settings."""


async def show(verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The newest job of each run, with its run if it has one."""
    return [await _shown(verbs, run) for run in runs]


async def _shown(verbs: Verbs, run: Run) -> dict[str, Any]:
    detail = await verbs.detail(run.id)
    view = [*views_of(detail, await verbs.attempts(run.id))][-1]
    return job_of(view, detail.origin, detail.ahead).to_json() | {"run": jobrun_of(view).to_json() if view.has_run else None}
