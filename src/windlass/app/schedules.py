"""Schedules of an application: `@app.cron(...)`, `@app.every(...)`, `app.schedule(...)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

from msgspec import Struct

from windlass import cron as cron_rules
from windlass.app.jobs import AsyncJob, Definition
from windlass.app.options import Duration, milliseconds, refuse_unknown
from windlass.errors import BadInput
from windlass.model import Missed, Overlap
from windlass.worker import Context

P = ParamSpec("P")
R = TypeVar("R")


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule besides its rule. Durations are seconds."""

    key: str
    zone: str
    payload: Mapping[str, Any]
    missed: Missed
    max_missed: int
    max_age: Duration
    overlap: Overlap
    jitter: Duration
    enabled: bool


class PlannedSchedule(Struct, frozen=True):
    """A schedule defined by code, as the engine takes it."""

    key: str
    job: str
    words: dict[str, Any]


class AsyncScheduleMaker(Protocol):
    """The type of `@app.cron(...)`: it takes a job, or a function that becomes one."""

    @overload
    def __call__(self, job: AsyncJob[P, R], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, job: Callable[Concatenate[Context, P], Awaitable[R]], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, job: Callable[Concatenate[Context, P], R], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, job: Callable[P, Awaitable[R]], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, job: Callable[P, R], /) -> AsyncJob[P, R]: ...


def check_rule(kind: str, expr: Any, options: ScheduleOptions) -> None:
    """Refuse an invalid rule where it is written, not when a worker starts."""
    cron_rules.parse(kind, expr.total_seconds() if isinstance(expr, timedelta) else expr, options.get("zone"))


def planned(
    job: Definition[..., Any] | str, *, cron: str | None, every: str | Duration | None, at: datetime | str | None, options: ScheduleOptions
) -> PlannedSchedule:
    """A schedule as the engine takes it; the payload is checked now."""
    refuse_unknown(options, ScheduleOptions, "A schedule")
    name = job if isinstance(job, str) else job.name
    payload = options.get("payload", {})
    if not isinstance(payload, Mapping):
        raise BadInput(f"The payload of a schedule must be an object, not {payload!r:.80}.", hint="Give {'name': value}.")
    payload = dict(payload)
    signature = job.signature if isinstance(job, Definition) else None
    if signature is not None:
        payload = signature.payload((), payload)
    words: dict[str, Any] = {"cron": cron, "every": _interval(every), "at": _instant(at, options.get("zone")), "payload": payload}
    words["checked"] = signature is not None
    words |= {word: options[word] for word in ("zone", "missed", "max_missed", "overlap", "enabled") if word in options}
    words |= {word: milliseconds(options[word], word) for word in ("max_age", "jitter") if word in options}
    return PlannedSchedule(options.get("key", name), name, words)


def _interval(every: str | Duration | None) -> str | None:
    if isinstance(every, timedelta):
        every = every.total_seconds()
    return None if every is None else str(every)


def _instant(at: datetime | str | None, zone: str | None) -> str | None:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None and zone is None:
        raise BadInput(f"at must have a time zone, not {at!r:.80}.", hint="Name the zone of its wall clock: zone='Europe/Paris'.")
    return at.isoformat()
