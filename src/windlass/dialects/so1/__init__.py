"""SO1: the job lifecycle with five states, over HTTP and server-sent events.

A job is one attempt of a run: what has ended never goes on, and a retry is a new job. `OrgJobs` has the verbs as coroutines, `So1` on the
caller's thread; `create_job("jobs.db", "report", {"of": "May"})` is a call of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.api.verbs import Verbs
from windlass.dialects.so1.blocking import So1, cancel_job, create_job, get_job, list_jobs
from windlass.dialects.so1.routes import mount
from windlass.dialects.so1.sessions import Session, Verify
from windlass.dialects.so1.settings import Settings
from windlass.dialects.so1.verbs import LINES, JobPage, NotValid, OrgJobs
from windlass.dialects.so1.words import WORDS, Job, JobState, job_of, to_plain, views_of
from windlass.model import Run

__all__ = [
    "WORDS",
    "Job",
    "JobPage",
    "JobState",
    "NotValid",
    "OrgJobs",
    "Session",
    "Settings",
    "So1",
    "Verify",
    "cancel_job",
    "create_job",
    "get_job",
    "list_jobs",
    "mount",
    "show",
]

VARIABLES: Mapping[str, str] = {}
"""The document names no environment variables."""


async def show(verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The last attempt of each run as a job."""
    return [await _shown(verbs, run) for run in runs]


async def _shown(verbs: Verbs, run: Run) -> dict[str, Any]:
    view = [*views_of(run, await verbs.attempts(run.id))][-1]
    return to_plain(job_of(view, await verbs.lines(run.id, attempt=view.attempt.n, last=LINES)))
