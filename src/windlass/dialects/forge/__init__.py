"""The Forge job queue: a hub with jobs, agents that claim them by name, and a fleet.

Its functions block, as those of its document do: `create_job("jobs.db", "prodplan", {"horizon": 7})`. `Forge("jobs.db")` has them as
methods over a store that stays open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.api.verbs import Verbs
from windlass.dialects.forge.blocking import (
    Forge,
    cancel_job,
    claim_job,
    create_job,
    fail_job,
    get_job,
    list_jobs,
    reap_stale_jobs,
    register_worker,
    submit_result,
)
from windlass.dialects.forge.routes import Settings, mount
from windlass.dialects.forge.verbs import CreatedJob, JobQueue, NotAssigned, NotCancellable, ReportedFailure, SubmittedResult
from windlass.dialects.forge.words import WORDS, Job, JobStatus, WorkerRecord, job_of
from windlass.model import Listed, Run

VARIABLES = {"FORGE_INGEST_SECRET": "secret"}
"""The variables that the protocol's document has for its settings."""

__all__ = [
    "VARIABLES",
    "WORDS",
    "CreatedJob",
    "Forge",
    "Job",
    "JobQueue",
    "JobStatus",
    "NotAssigned",
    "NotCancellable",
    "ReportedFailure",
    "Settings",
    "SubmittedResult",
    "WorkerRecord",
    "cancel_job",
    "claim_job",
    "create_job",
    "fail_job",
    "get_job",
    "list_jobs",
    "mount",
    "reap_stale_jobs",
    "register_worker",
    "show",
    "submit_result",
]


async def show(verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs as rows, on a store or through a hub, which does not tell leases and hashes."""
    return [await _row(verbs, run) for run in runs]


async def _row(verbs: Verbs, run: Run) -> dict[str, Any]:
    whole = await verbs.get(run.id) if isinstance(run, Listed) else run
    attempts = await verbs.attempts(run.id) if whole.attempt > 1 else ()
    return msgspec.structs.asdict(job_of(whole, attempts))
