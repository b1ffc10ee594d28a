"""0gkit's durable jobs: definitions, a runner that executes them, and signed webhooks.

resize = jobs.define(name="resize", input=Image, output=Thumbnail, handler=work)
runner = JobRunner(backend=backend("jobs.db")).register(resize)
await runner.start(concurrency=4)
job_id = await runner.enqueue(resize, {"url": "https://example.com/a.png"})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.api.verbs import Verbs
from windlass.dialects.zerog import jobs
from windlass.dialects.zerog.backend import JobBackend, backend
from windlass.dialects.zerog.context import AbortSignal, JobContext
from windlass.dialects.zerog.errors import (
    AbortError,
    BackendUnreachable,
    BadSignature,
    HandlerThrew,
    InvalidValue,
    JobNotFound,
    ZeroGError,
)
from windlass.dialects.zerog.jobs import JobDefinition
from windlass.dialects.zerog.runner import JobRunner
from windlass.dialects.zerog.settings import Settings
from windlass.dialects.zerog.webhooks import WebhookConfig
from windlass.dialects.zerog.words import WORDS, JobMetadata, JobRecord, JobState, needs_attempts, record_of
from windlass.model import Listed, Run

VARIABLES: dict[str, str] = {}
"""The protocol's document has no variables."""

__all__ = [
    "VARIABLES",
    "WORDS",
    "AbortError",
    "AbortSignal",
    "BackendUnreachable",
    "BadSignature",
    "HandlerThrew",
    "InvalidValue",
    "JobBackend",
    "JobContext",
    "JobDefinition",
    "JobMetadata",
    "JobNotFound",
    "JobRecord",
    "JobRunner",
    "JobState",
    "Settings",
    "WebhookConfig",
    "ZeroGError",
    "backend",
    "jobs",
    "show",
]


async def show(verbs: Verbs, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs as records, on a store or through a hub."""
    return [await _record(verbs, run) for run in runs]


async def _record(verbs: Verbs, run: Run) -> dict[str, Any]:
    whole = await verbs.get(run.id) if isinstance(run, Listed) else run
    attempts = await verbs.attempts(run.id) if needs_attempts(whole) else ()
    return record_of(whole, attempts).to_json()
