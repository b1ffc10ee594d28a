"""The bodies and parameters of requests, each member checked on its own; unknown ones are ignored. Changes are checked by the verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from windlass.dialects.guards.refusals import InvalidRequest, Violation
from windlass.payload import convert

B = TypeVar("B", bound=Struct)

Priority = Annotated[int, Meta(ge=0, le=100)]
Position = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Params = dict[str, Any]
JobWord = Literal["QUEUED", "RUNNING", "CANCELLED"]
GroupWord = Literal["RUNNING", "COMPLETED", "PARTIAL", "CANCELLED"]


def read(kind: type[B], values: Mapping[str, Any], where: str = "body") -> B:
    """The values as a record; otherwise all that is wrong with them. Those of an address are texts."""
    members, violations = dict[str, Any](), list[Violation]()
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name in values and (where == "body" or values[name] is not None):
            try:
                members[field.name] = convert(values[name], field.type, strict=where == "body")
            except msgspec.ValidationError as error:
                violations.append(Violation((where, name), str(error)))
        elif field.required:
            violations.append(Violation((where, name), "Field required", "missing"))
    if violations:
        raise InvalidRequest(violations)
    return kind(**members)


class ListOptions(Struct, frozen=True):
    """How much of a list is asked for."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class JobFilter(ListOptions, frozen=True):
    """Which jobs are listed."""

    status: JobWord | None = None


class GroupFilter(ListOptions, frozen=True):
    """Which groups are listed."""

    status: GroupWord | None = None


class Notified(Struct, frozen=True, kw_only=True):
    """The address that is notified of the end of each execution, and of which ends."""

    webhook_url: str | None = None
    webhook_events: list[str] | None = None


class TypedJob(Notified, frozen=True, kw_only=True):
    """A job of a type."""

    type: Name
    params: Params = {}
    priority: Priority = 0


class TemplateJob(Notified, frozen=True, kw_only=True):
    """A job of a template."""

    template_id: Name
    params: Params = {}
    priority: Priority = 0
    position: Position | None = None


class TemplateToCreate(Struct, frozen=True, kw_only=True):
    """A template, called by its name. Its params may be called `params` as well."""

    name: Name
    template_id: Name | None = None
    job_type: Name | None = None
    default_params: Params | None = None
    params: Params | None = None
    retry_policy: dict[str, Any] | None = None
    description: str | None = None
    resources: list[str] = []


class ScheduleToCreate(Struct, frozen=True, kw_only=True):
    """A schedule."""

    template_id: Name
    cron: str
    timezone: str = "UTC"
    enabled: bool = True
    params: Params = {}
    name: Name | None = None


class MemberOfGroup(Notified, frozen=True, kw_only=True):
    """A job of a group."""

    template_id: Name
    params: Params = {}
    priority: Priority = 0


class GroupToCreate(Struct, frozen=True, kw_only=True):
    """Jobs that are created together."""

    jobs: Annotated[list[MemberOfGroup], Meta(min_length=1, max_length=1_000)]
    sequential: bool = False
    name: Name | None = None


class BatchToTrigger(Notified, frozen=True, kw_only=True):
    """Jobs by their types, each with its params beside its type."""

    jobs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=50)]


class TypeOfJob(Struct, frozen=True):
    """A job of a batch."""

    type: Name


class CallTimeout(Struct, frozen=True):
    """For how many seconds a direct call is waited for."""

    timeout: Annotated[int, Meta(ge=1, le=3_600)] = 300


class StartOptions(Struct, frozen=True):
    """How the scheduler is started."""

    run_recovery: bool = True


class StopOptions(Struct, frozen=True):
    """How the scheduler is stopped: for how many seconds it waits for what runs."""

    timeout: Annotated[int, Meta(ge=1, le=300)] = 30
