"""The routes from before the scheduler, whose states are lower-case words. Every answer of theirs says that they will be removed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import wraps
from http import HTTPStatus
from typing import Any, NamedTuple

from windlass.api.rows import GET, POST, Verb
from windlass.clock import Clock
from windlass.dialects.base import Handler, Reply, Request
from windlass.dialects.guards import bodies
from windlass.dialects.guards.answers import OBJECT, row
from windlass.dialects.guards.bodies import read
from windlass.dialects.guards.errors import InvalidOperationError, JobNotFoundError
from windlass.dialects.guards.records import Job, JobRun
from windlass.dialects.guards.refusals import naming, refuse
from windlass.dialects.guards.settings import Settings
from windlass.dialects.guards.verbs import SchedulerVerbs
from windlass.dialects.guards.words import JobRunStatus
from windlass.machine import LIVE

_LOG = logging.getLogger("windlass.dialects.guards")

HOUR = 3_600_000
DEPRECATED_SINCE = datetime(2026, 1, 18, tzinfo=UTC)
ACCEPTED = HTTPStatus.ACCEPTED
NO_SIGNAL = "This server does not compare artifacts."

WORDS: Mapping[JobRunStatus, str] = {
    JobRunStatus.COMPLETED: "succeeded",
    JobRunStatus.FAILED: "failed",
    JobRunStatus.SKIPPED: "skipped",
}
"""The words for jobs that have ended with a run."""
EVENTS = {text: f"job.run.{status.value.lower()}" for status, text in WORDS.items()}
"""The events of webhooks by these words."""

ROWS = (
    row("trigger_job", POST, "/jobs/{type}/trigger", "Create a job", "submit", takes=OBJECT, status=ACCEPTED),
    row("trigger_batch", POST, "/jobs/batch/trigger", "Create jobs together", "submit", takes=OBJECT, status=ACCEPTED),
    row("get_batch", GET, "/jobs/batch/{batch_id}", "The jobs of a batch", "read"),
    row("cancel_legacy", POST, "/jobs/{job_id}/cancel", "Cancel a queued job", "submit"),
    row("monitor_jobs", POST, "/jobs/monitor", "The jobs that run", "read"),
    row("monitor_job", POST, "/jobs/{job_id}/monitor", "A job", "read"),
    row("check_duplicates", POST, "/jobs/{job_id}/dedup_check", "Whether a job has artifacts", "read"),
)


class JobWithRun(NamedTuple):
    """A job, and its run if it has one."""

    job: Job
    run: JobRun | None

    @property
    def word(self) -> str:
        """The one word for both."""
        if self.run is not None and self.run.status is not None:
            return WORDS[self.run.status]
        return self.job.status.value.lower()

    @property
    def error(self) -> str | None:
        return None if self.run is None else self.run.error

    @property
    def artifacts(self) -> list[Any]:
        return [] if self.run is None else self.run.artifacts

    @property
    def monitored(self) -> dict[str, Any]:
        """The job in the form of the old routes for watching."""
        failed = self.word == "failed"
        return {
            "job_id": self.job.job_id,
            "status": self.word,
            "pid": None,
            "artifacts": self.artifacts,
            "error": self.error if failed else None,
            "message": None,
            "reason": None if failed else self.job.reason,
        }


class LegacyRoutes:
    """The handlers of the old routes."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._headers = {"Deprecation": f"@{DEPRECATED_SINCE.timestamp():.0f}", "Sunset": format_datetime(settings.sunset_at, usegmt=True)}
        self._used, self._told_at = Counter[str](), -HOUR
        self.handlers = {verb.name: self._marked(verb, getattr(self, verb.name)) for verb in ROWS}

    def refuse(self, request: Request, error: Exception) -> Reply:
        """The answer to an error, which says that the route will be removed if it is one of these."""
        reply = refuse(request, error)
        return reply._replace(headers={**reply.headers, **self._headers}) if request.row in ROWS else reply

    def _marked(self, verb: Verb, handler: Handler) -> Handler:
        """The same handler, whose answers say that the route will be removed."""

        @wraps(handler)
        async def answer(request: Request, **arguments: Any) -> Any:
            self._count(f"{verb.method} {verb.path}")
            return Reply(await handler(request, **arguments), verb.status, self._headers)

        return answer

    def _count(self, route: str) -> None:
        """Log that old routes are used, once an hour."""
        self._used[route] += 1
        if self._clock.monotonic() - self._told_at >= HOUR:
            routes = ", ".join(f"{route} ({count:,})" for route, count in sorted(self._used.items()))
            _LOG.warning(
                "Routes that end on %s are still used: %s. Use POST /jobs and POST /api/job-groups.", self._settings.sunset, routes
            )
            self._told_at = self._clock.monotonic()
            self._used.clear()

    def _verbs(self, request: Request) -> SchedulerVerbs:
        return SchedulerVerbs(request.engine, self._settings, act=request.act)

    async def _found(self, request: Request, job_id: str) -> JobWithRun:
        verbs = self._verbs(request)
        return JobWithRun(await verbs.load_job(job_id), next(iter(await verbs.list_jobruns(job_id)), None))

    async def trigger_job(self, request: Request, type: str, data: Any) -> Any:
        notice = _notice(read(bodies.Notified, data))
        with naming("type", "path"):
            job = await self._verbs(request).create_job(type, params=_params(data), **notice)
        return {"job_id": job.job_id, "type": type, "status": "queued", "message": "The job is queued."}

    async def trigger_batch(self, request: Request, data: Any) -> Any:
        body = read(bodies.BatchToTrigger, data)
        notice = _notice(body)
        jobs = [{"template_id": read(bodies.TypeOfJob, job).type, "params": _params(job, "type"), **notice} for job in body.jobs]
        with naming("type"):
            group = await self._verbs(request).create_group(jobs)
        ids = group.job_ids
        return {"batch_id": group.group_id, "job_ids": ids, "job_count": len(ids), "status": "queued", "message": "The jobs are queued."}

    async def get_batch(self, request: Request, batch_id: str) -> Any:
        group = await self._verbs(request).load_group(batch_id)
        jobs = [await self._found(request, job_id) for job_id in group.job_ids]
        counts = Counter(job.word for job in jobs)
        times = group.to_json()
        return {
            "batch_id": group.group_id,
            "status": _word_of_all(counts),
            "total_jobs": len(jobs),
            "completed_jobs": len(jobs) - counts["queued"] - counts["running"],
            "succeeded_jobs": counts["succeeded"],
            "failed_jobs": counts["failed"],
            "running_jobs": counts["running"],
            "queued_jobs": counts["queued"],
            "jobs": [{"job_id": job.job.job_id, "type": job.job.job_type, "status": job.word, "error": job.error} for job in jobs],
            "created_at": times["created_at"],
            "finished_at": times["finished_at"],
            "message": None,
        }

    async def cancel_legacy(self, request: Request, job_id: str) -> Any:
        try:
            await self._verbs(request).cancel_job(job_id)
        except (InvalidOperationError, JobNotFoundError) as error:
            return {"job_id": job_id, "success": False, "message": None, "error": str(error)}
        return {"job_id": job_id, "success": True, "message": "The job is cancelled.", "error": None}

    async def monitor_jobs(self, request: Request) -> Any:
        page = await request.engine.runs(queue=self._settings.queue, states=LIVE, count=200)
        jobs = [await self._found(request, run.current_attempt) for run in page.runs]
        return {"monitored_count": len(jobs), "results": [job.monitored for job in jobs]}

    async def monitor_job(self, request: Request, job_id: str) -> Any:
        return (await self._found(request, job_id)).monitored

    async def check_duplicates(self, request: Request, job_id: str) -> Any:
        artifacts = (await self._found(request, job_id)).artifacts
        return {
            "job_id": job_id,
            "has_artifact": bool(artifacts),
            "artifact_path": artifacts[0] if artifacts else None,
            "signal": None,
            "similarity_score": None,
            "message": NO_SIGNAL if artifacts else "The job has no artifacts.",
        }


def _params(data: Mapping[str, Any], *beside: str) -> dict[str, Any]:
    """The params of a job, which stand beside the address of its webhook, and these other members."""
    return {name: value for name, value in data.items() if name not in ("webhook_url", "webhook_events", *beside)}


def _notice(body: bodies.Notified) -> dict[str, Any]:
    """The address of a webhook, with its events by their present names; without an address there are none."""
    if body.webhook_url is None:
        return {}
    events = None if body.webhook_events is None else [EVENTS.get(name, name) for name in body.webhook_events]
    return {"webhook_url": body.webhook_url, "webhook_events": events}


def _word_of_all(counts: Mapping[str, int]) -> str:
    """The one word for a batch: what its jobs do, or how they ended."""
    present = {word for word, count in counts.items() if count}
    if present & {"queued", "running"}:
        return "queued" if present == {"queued"} else "running"
    return present.pop() if len(present) == 1 else "failed" if "failed" in present else "succeeded"
