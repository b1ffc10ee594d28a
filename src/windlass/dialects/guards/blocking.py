"""The functions that the document names, on the scheduler that `use` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from windlass.dialects.guards.errors import InvalidOperationError
from windlass.dialects.guards.scheduler import Scheduler

P = ParamSpec("P")
T = TypeVar("T")

_used: list[Scheduler] = []


def use(scheduler: Scheduler | None) -> None:
    """Let the functions of this module be those of a scheduler, in the whole process; None: of no one."""
    _used[:] = [] if scheduler is None else [scheduler]


def _function(method: Callable[Concatenate[Scheduler, P], T]) -> Callable[P, T]:
    """A method as a function of the scheduler in use."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _used:
            raise InvalidOperationError("No scheduler is in use.", hint='Call guards.use(guards.Scheduler("jobs.db")) first.')
        return method(_used[0], *args, **kwargs)

    return call


create_template = _function(Scheduler.create_template)
get_template = _function(Scheduler.get_template)
list_templates = _function(Scheduler.list_templates)
update_template = _function(Scheduler.update_template)
create_schedule = _function(Scheduler.create_schedule)
get_schedule = _function(Scheduler.get_schedule)
list_schedules = _function(Scheduler.list_schedules)
update_schedule = _function(Scheduler.update_schedule)
delete_schedule = _function(Scheduler.delete_schedule)
create_job = _function(Scheduler.create_job)
load_job = _function(Scheduler.load_job)
list_jobs = _function(Scheduler.list_jobs)
update_job = _function(Scheduler.update_job)
dispatch_job = _function(Scheduler.dispatch_job)
cancel_job = _function(Scheduler.cancel_job)
load_jobrun = _function(Scheduler.load_jobrun)
list_jobruns = _function(Scheduler.list_jobruns)
update_jobrun = _function(Scheduler.update_jobrun)
retry_run = _function(Scheduler.retry_run)
create_group = _function(Scheduler.create_group)
load_group = _function(Scheduler.load_group)
list_groups = _function(Scheduler.list_groups)
cancel_group = _function(Scheduler.cancel_group)
compute_group_status = _function(Scheduler.compute_group_status)
execute_direct = _function(Scheduler.execute_direct)
start = _function(Scheduler.start)
stop = _function(Scheduler.stop)
status = _function(Scheduler.status)
