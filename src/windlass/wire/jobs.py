"""Definitions of jobs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from windlass.model import Job, Options
from windlass.wire.values import heard, told


class JobView(Struct, frozen=True):
    """A definition."""

    name: str
    handler: str | None
    payload: dict[str, Any]
    options: Options
    rev: int
    created_at: str
    updated_at: str
    owner: str | None = None
    schema: str | None = None  # a fingerprint of what its last definer takes
    takes: dict[str, Any] | None = None  # the JSON Schema of its arguments; in a list it is left out


class Jobs(Struct, frozen=True):
    """Some definitions by name, and after which name the next page begins."""

    jobs: list[JobView]
    cursor: str | None


def job_view(job: Job) -> JobView:
    times = told(job.created_at), told(job.updated_at)
    return JobView(job.name, job.handler, job.payload, job.options, job.rev, *times, job.owner, job.schema, job.takes)


def job_of(view: JobView) -> Job:
    created_at, updated_at = heard(view.created_at, "created_at"), heard(view.updated_at, "updated_at")
    told_of = view.owner, view.schema, view.takes
    return Job(0, view.name, view.handler, view.payload, view.options, view.rev, created_at, updated_at, *told_of)


class DefineJob(Struct, frozen=True, forbid_unknown_fields=True):
    """What a job is to be."""

    handler: str | None = None
    payload: dict[str, Any] = {}
    options: Options = Options()
    schema: dict[str, Any] | None = None  # the JSON Schema of its arguments; null: every payload is accepted
