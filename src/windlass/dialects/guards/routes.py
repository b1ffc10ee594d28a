"""The table: each handler reads a request, calls one verb, and answers in the protocol's form."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from msgspec.structs import asdict

from windlass import __version__
from windlass.api.rows import DELETE, GET, PATCH, POST, Param, Verb
from windlass.clock import Clock
from windlass.dialects.base import Dialect, Handler, Request
from windlass.dialects.guards import bodies
from windlass.dialects.guards.answers import OBJECT, listed, row, sent
from windlass.dialects.guards.bodies import read
from windlass.dialects.guards.control import ControlRoutes
from windlass.dialects.guards.credentials import ApiKey
from windlass.dialects.guards.direct import DirectRoutes
from windlass.dialects.guards.legacy import ROWS as LEGACY
from windlass.dialects.guards.legacy import LegacyRoutes
from windlass.dialects.guards.notices import deliveries_of
from windlass.dialects.guards.refusals import naming
from windlass.dialects.guards.settings import Settings
from windlass.dialects.guards.verbs import SchedulerVerbs

REQUIRED = "Set API_AUTH_ENABLED=true and API_KEY, or api_auth_enabled and api_key in [dialects.guards]."

_LIMIT, _STATUS = Param("limit"), Param("status")
_CREATED = HTTPStatus.CREATED


ROWS = (
    row("create_job", POST, "/jobs", "Create a job of a type", "submit", takes=OBJECT, status=_CREATED),
    row("list_jobs", GET, "/jobs", "The newest jobs", "read", query=(_LIMIT,)),
    row("get_job", GET, "/jobs/{job_id}", "A job", "read"),
    row("update_job", PATCH, "/jobs/{job_id}", "Change a queued job", "submit", takes=OBJECT),
    row("delete_job", DELETE, "/jobs/{job_id}", "Cancel a queued job", "submit"),
    row("list_runs_of", GET, "/jobs/{job_id}/runs", "The run of a job", "read"),
    row("list_deliveries_of", GET, "/jobs/{job_id}/webhooks", "The deliveries of a job's webhooks", "read"),
    row("create_template", POST, "/api/job-templates", "Create a template", ("work", "admin"), takes=OBJECT, status=_CREATED),
    row("list_templates", GET, "/api/job-templates", "All templates", "read"),
    row("get_template", GET, "/api/job-templates/{template_id}", "A template", "read"),
    row("update_template", PATCH, "/api/job-templates/{template_id}", "Change a template", ("work", "admin"), takes=OBJECT),
    row("create_schedule", POST, "/api/schedules", "Create a schedule", "admin", takes=OBJECT, status=_CREATED),
    row("list_schedules", GET, "/api/schedules", "All schedules", "read"),
    row("get_schedule", GET, "/api/schedules/{schedule_id}", "A schedule", "read"),
    row("update_schedule", PATCH, "/api/schedules/{schedule_id}", "Change a schedule", "admin", takes=OBJECT),
    row("delete_schedule", DELETE, "/api/schedules/{schedule_id}", "Remove a schedule", "admin"),
    row("create_job_of_template", POST, "/api/jobs", "Create a job of a template", "submit", takes=OBJECT, status=_CREATED),
    row("list_queue", GET, "/api/jobs", "The newest jobs with a status", "read", query=(_STATUS, _LIMIT)),
    row("cancel_job", POST, "/api/jobs/{job_id}/cancel", "Cancel a queued job", "submit"),
    row("create_group", POST, "/api/job-groups", "Create jobs together", "submit", takes=OBJECT, status=_CREATED),
    row("list_groups", GET, "/api/job-groups", "The newest groups", "read", query=(_STATUS, _LIMIT)),
    row("get_group", GET, "/api/job-groups/{group_id}", "A group", "read"),
    row("cancel_group", POST, "/api/job-groups/{group_id}/cancel", "Cancel a group", "submit"),
    row("list_runs", GET, "/api/job-runs", "The newest runs", "read", query=(_LIMIT,)),
    row("get_run", GET, "/api/job-runs/{run_id}", "A run", "read"),
    row("retry_run", POST, "/api/job-runs/{run_id}/retry", "A new job from a failed run", "submit", status=_CREATED),
    row("health", GET, "/health", "Whether the server answers", None),
)


class JobRoutes:
    """The handlers of jobs, runs, groups and what jobs are made from."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _verbs(self, request: Request) -> SchedulerVerbs:
        return SchedulerVerbs(request.engine, self._settings, act=request.act)

    # Jobs

    async def create_job(self, request: Request, data: Any) -> Any:
        body = read(bodies.TypedJob, data)
        how = asdict(body)
        with naming("type"):
            return sent(await self._verbs(request).create_job(how.pop("type"), **how))

    async def list_jobs(self, request: Request, limit: str | None) -> Any:
        verbs, page = self._verbs(request), read(bodies.ListOptions, {"limit": limit}, "query")
        jobs, counts = await verbs.list_jobs(limit=page.limit), await verbs.counts()
        return listed("jobs", jobs) | {"queued_count": counts.queued, "running_count": counts.running}

    async def get_job(self, request: Request, job_id: str) -> Any:
        return sent(await self._verbs(request).load_job(job_id))

    async def update_job(self, request: Request, job_id: str, data: Any) -> Any:
        return sent(await self._verbs(request).update_job(job_id, **data))

    async def delete_job(self, request: Request, job_id: str) -> Any:
        await self._verbs(request).cancel_job(job_id)
        return {"job_id": job_id, "success": True, "message": "The job is cancelled."}

    async def list_runs_of(self, request: Request, job_id: str) -> Any:
        return listed("runs", await self._verbs(request).list_jobruns(job_id))

    # Templates and schedules

    async def create_template(self, request: Request, data: Any) -> Any:
        members = asdict(read(bodies.TemplateToCreate, data))
        params = members.pop("params")
        members["default_params"] = members["default_params"] if params is None else params
        return sent(await self._verbs(request).create_template(members.pop("template_id") or members["name"], **members))

    async def list_templates(self, request: Request) -> Any:
        return listed("templates", await self._verbs(request).list_templates())

    async def get_template(self, request: Request, template_id: str) -> Any:
        return sent(await self._verbs(request).get_template(template_id))

    async def update_template(self, request: Request, template_id: str, data: Any) -> Any:
        return sent(await self._verbs(request).update_template(template_id, **data))

    async def create_schedule(self, request: Request, data: Any) -> Any:
        return sent(await self._verbs(request).create_schedule(**asdict(read(bodies.ScheduleToCreate, data))))

    async def list_schedules(self, request: Request) -> Any:
        return listed("schedules", await self._verbs(request).list_schedules())

    async def get_schedule(self, request: Request, schedule_id: str) -> Any:
        return sent(await self._verbs(request).get_schedule(schedule_id))

    async def update_schedule(self, request: Request, schedule_id: str, data: Any) -> Any:
        return sent(await self._verbs(request).update_schedule(schedule_id, **data))

    async def delete_schedule(self, request: Request, schedule_id: str) -> Any:
        await self._verbs(request).delete_schedule(schedule_id)
        return {"schedule_id": schedule_id, "success": True, "message": "The schedule is removed; its jobs stay."}

    # The queue

    async def create_job_of_template(self, request: Request, data: Any) -> Any:
        body = read(bodies.TemplateJob, data)
        return sent(await self._verbs(request).create_job(**asdict(body)))

    async def list_queue(self, request: Request, status: str | None, limit: str | None) -> Any:
        page = read(bodies.JobFilter, {"status": status, "limit": limit}, "query")
        return listed("jobs", await self._verbs(request).list_jobs(page.status, page.limit))

    async def cancel_job(self, request: Request, job_id: str) -> Any:
        return sent(await self._verbs(request).cancel_job(job_id))

    # Groups

    async def create_group(self, request: Request, data: Any) -> Any:
        body = read(bodies.GroupToCreate, data)
        jobs = [asdict(job) for job in body.jobs]
        return sent(await self._verbs(request).create_group(jobs, sequential=body.sequential, name=body.name))

    async def list_groups(self, request: Request, status: str | None, limit: str | None) -> Any:
        page = read(bodies.GroupFilter, {"status": status, "limit": limit}, "query")
        return listed("groups", await self._verbs(request).list_groups(page.status, page.limit))

    async def get_group(self, request: Request, group_id: str) -> Any:
        return sent(await self._verbs(request).load_group(group_id))

    async def cancel_group(self, request: Request, group_id: str) -> Any:
        return sent(await self._verbs(request).cancel_group(group_id))

    # Runs

    async def list_runs(self, request: Request, limit: str | None) -> Any:
        page = read(bodies.ListOptions, {"limit": limit}, "query")
        return listed("runs", await self._verbs(request).list_jobruns(limit=page.limit))

    async def get_run(self, request: Request, run_id: str) -> Any:
        return sent(await self._verbs(request).load_jobrun(run_id))

    async def retry_run(self, request: Request, run_id: str) -> Any:
        return sent(await self._verbs(request).retry_run(run_id))

    async def list_deliveries_of(self, request: Request, job_id: str) -> Any:
        job = await self._verbs(request).load_job(job_id)
        return listed("webhooks", await deliveries_of(request.engine, job.job_id))

    async def health(self, request: Request) -> Any:
        return {"status": "ok", "version": __version__}


def mount(settings: Settings, clock: Clock) -> Dialect:
    """The table for a hub."""
    jobs, scheduler, legacy, direct = JobRoutes(settings), ControlRoutes(settings), LegacyRoutes(settings, clock), DirectRoutes(settings)
    return Dialect(
        prefix="",
        verbs=(*ROWS, *scheduler.verbs, *LEGACY, *direct.verbs),
        handlers=handlers_of(jobs, ROWS) | handlers_of(scheduler, scheduler.verbs) | legacy.handlers | direct.handlers,
        refuse=legacy.refuse,
        name="guards",
        credentials=ApiKey(settings.api_key if settings.api_auth_enabled else None),
        strict=False,
        required=REQUIRED,
        calls=frozenset(settings.direct.values()),
        begin=scheduler.begin,
    )


def handlers_of(routes: object, rows: Sequence[Verb]) -> dict[str, Handler]:
    """The handlers of rows, which are methods of their names."""
    return {row.name: getattr(routes, row.name) for row in rows}
