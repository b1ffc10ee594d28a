"""Kumofire Jobs: an application, a dispatcher and consumers over a storage and a queue, which carries ids of runs and nothing else.

Its verbs are coroutines, as those of its document are: `jobs = create_jobs(storage=Storage("jobs.db"), queue=queue, handlers={...})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.api.verbs import Verbs
from windlass.dialects.kumofire.adapters import QueueAdapter, StorageAdapter
from windlass.dialects.kumofire.consuming import BatchMessage, BatchResult, ConsumeResult, JobContext, RetryPolicy
from windlass.dialects.kumofire.jobs import DispatchResult, KumofireJobs, create_jobs
from windlass.dialects.kumofire.messages import MalformedMessage, UnsupportedVersion, build_message, parse_message
from windlass.dialects.kumofire.queues import CallableQueue, MemoryQueue, StoreQueue
from windlass.dialects.kumofire.records import (
    CreatedJobRun,
    JobAttempt,
    JobDefinition,
    JobLock,
    JobRun,
    JobSchedule,
    NewJobRun,
    NewSchedule,
    RunStatus,
)
from windlass.dialects.kumofire.settings import Settings
from windlass.dialects.kumofire.storage import Storage
from windlass.dialects.kumofire.views import run_of
from windlass.dialects.kumofire.words import WORDS, JobRunStatus
from windlass.model import Run

VARIABLES: Mapping[str, str] = {}
"""The document names no environment variables."""

__all__ = [
    "VARIABLES",
    "WORDS",
    "BatchMessage",
    "BatchResult",
    "CallableQueue",
    "ConsumeResult",
    "CreatedJobRun",
    "DispatchResult",
    "JobAttempt",
    "JobContext",
    "JobDefinition",
    "JobLock",
    "JobRun",
    "JobRunStatus",
    "JobSchedule",
    "KumofireJobs",
    "MalformedMessage",
    "MemoryQueue",
    "NewJobRun",
    "NewSchedule",
    "QueueAdapter",
    "RetryPolicy",
    "RunStatus",
    "Settings",
    "Storage",
    "StorageAdapter",
    "StoreQueue",
    "UnsupportedVersion",
    "build_message",
    "create_jobs",
    "parse_message",
    "show",
]


async def show(verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs with the fields of the document, on a store or through a hub."""
    details = [await verbs.detail(run.id) for run in runs]
    return [run_of(run, run.origin.schedule).to_json() for run in details]
