"""Options of jobs and of single runs, in user units: seconds, datetimes, ids or handles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict

from windlass.durations import A_DURATION
from windlass.durations import keep as keep_of
from windlass.errors import BadInput
from windlass.model import Keep, Key, NewRun, Notify, Options, Requires, Solver, Use
from windlass.worker.solvers import Solvers

Duration = float | timedelta


class HasId(Protocol):
    """A run's handle."""

    @property
    def id(self) -> str: ...


Uses = str | Use | Mapping[str, int] | Sequence[str | Use]
"""What a run occupies: "ollama", {"gpu": 2}, Use("customer", per="customer_id"), or several of them."""


class SharedOptions(TypedDict, total=False):
    """Options of a job, for all its runs, and of a single run. Durations are seconds."""

    queue: str
    priority: int
    max_attempts: int
    max_runtime: Duration
    timeout: Duration
    backoff_base: Duration
    on_exhausted: Literal["failed", "quarantined"]
    retry_place: Literal["keep", "tail"]
    grace: Duration
    keep: Duration | str
    tags: Iterable[str]
    cores: int
    memory: int
    uses: Uses


class RunOptions(SharedOptions, total=False):
    """Options of a single run, which override its job's. Durations are seconds."""

    delay: Duration
    at: datetime
    key: str | Key
    key_for: Duration | Literal["forever"]
    after: str | HasId | Sequence[str | HasId]
    after_end: Literal["success", "any"]
    backoff: Sequence[Duration]
    solver_url: str
    solver_checksum: str
    meta: dict[str, Any]
    notify: str | Notify


class DefinitionOptions(SharedOptions, total=False):
    """Options of a job that has another job's handler, for all its runs. Durations are seconds."""

    backoff: Sequence[Duration]
    max_requeues: int
    attempt_per_claim: bool
    description: str


class CommandOptions(SharedOptions, total=False):
    """Options of a job, for all its runs. Durations are seconds."""

    backoff: Sequence[Duration] | Callable[[int, BaseException], float]
    max_requeues: int
    attempt_per_claim: bool
    on_abort: Literal["retry", "fail"]
    description: str


class JobOptions(CommandOptions, total=False):
    """The same with a name, which defaults to the function's."""

    name: str


class WorkerOptions(TypedDict, total=False):
    """Options of a worker. Durations are seconds, memory is MiB."""

    queues: Sequence[str]
    jobs: Sequence[str]
    slots: int
    name: str
    tags: Sequence[str]
    cores: int
    memory: int
    lease: Duration
    grace: Duration
    on_unknown: Literal["leave", "fail"]
    spool: str | os.PathLike[str]
    solvers: bool | Solvers


_DURATIONS = ("max_runtime", "timeout", "grace", "backoff_base")
_AS_THEY_ARE = ("queue", "priority", "max_attempts", "on_exhausted", "retry_place", "max_requeues", "attempt_per_claim")
_REQUIRES = ("tags", "cores", "memory")


def milliseconds(duration: Any, what: str) -> int:
    """A duration as it is stored."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 2**40:
        raise BadInput(
            f"{what} must be a number of seconds or a timedelta, not {duration!r:.80}.", hint="Write 30, 0.5 or timedelta(minutes=5)."
        )
    return round(seconds * 1000)


def engine_options(options: Any) -> Options:
    """The options as the engine takes them."""
    fields: dict[str, Any] = {name: options[name] for name in _AS_THEY_ARE if options.get(name) is not None}
    fields |= {name: milliseconds(options[name], name) for name in _DURATIONS if options.get(name) is not None}
    if options.get("keep") is not None:
        fields["keep"] = _keep(options["keep"])
    backoff = options.get("backoff")
    if backoff is not None and not callable(backoff):
        fields["backoff"] = tuple(milliseconds(delay, "A delay of the backoff") for delay in backoff)
    if any(options.get(name) is not None for name in _REQUIRES):
        fields["requires"] = Requires(tuple(options.get("tags") or ()), options.get("cores") or 0, options.get("memory") or 0)
    if options.get("uses") is not None:
        fields["uses"] = uses_of(options["uses"])
    if (solver := _solver(options)) is not None:
        fields["solver"] = solver
    return Options(**fields)


def _keep(options: Any) -> Keep:
    """How long an ended run is kept: "forever", "1h30m", seconds or a timedelta."""
    if not isinstance(options, str):
        return milliseconds(options, "keep")
    try:
        return keep_of(options)
    except ValueError:
        raise BadInput(f"keep is {options!r:.80}.", hint=f'Write {A_DURATION}; or "forever".') from None


def uses_of(options: Any) -> tuple[Use, ...]:
    """The uses as the engine takes them."""
    if isinstance(options, Mapping):
        return tuple(Use(name, weight) for name, weight in options.items())
    several = [options] if isinstance(options, str | Use) else options
    return tuple(Use(item) if isinstance(item, str) else item for item in several)


def _solver(options: Any) -> Solver | None:
    """The program that a run names, if any."""
    url, checksum = options.get("solver_url"), options.get("solver_checksum")
    if url is None and checksum is None:
        return None
    if url is None:
        raise BadInput("A checksum without a URL names no program.", hint="Give solver_url as well.")
    return Solver(url, checksum)


def refuse_unknown(options: Any, known: Any, what: str) -> None:
    """Raise TypeError, as Python does, for an unknown option."""
    for name in options:
        if name not in known.__optional_keys__:
            raise TypeError(f"{what} has no option {name!r}; there are {', '.join(sorted(known.__optional_keys__))}")


def new_run(job: str, payload: Any, options: RunOptions, now: int, *, checked: bool = False) -> NewRun:
    """A run as the engine takes it; `checked`: its payload fits the signature of this code."""
    refuse_unknown(options, RunOptions, "A run")
    if not options:
        return NewRun(job, payload, checked=checked)
    if callable(options.get("backoff")):
        raise BadInput(
            "A function as backoff belongs to the job, not to a run.", hint="Give it to @app.job(backoff=...), or give a list of seconds."
        )
    return NewRun(
        job,
        payload,
        options=engine_options(options),
        due_at=_due_at(options, now),
        key=_key(options),
        after=_ids(options.get("after", ())),
        after_end=options.get("after_end", "success"),
        checked=checked,
        meta=options.get("meta"),
        notify=_notify(options.get("notify")),
    )


def _notify(address: Any) -> Notify | None:
    """An address for the changes of a run; a plain one gets its end in the standard format."""
    return Notify(address) if isinstance(address, str) else address


def _key(options: RunOptions) -> Key | None:
    """At most one unfinished run has a key, or, with `key_for`, at most one in that time."""
    key, ttl = options.get("key"), options.get("key_for")
    if ttl is None:
        return Key(key) if isinstance(key, str) else key
    if not isinstance(key, str):
        raise BadInput("key_for sets how long a key is taken, and there is no key.", hint="Give key='...' as well.")
    return Key(key, "forever" if ttl == "forever" else milliseconds(ttl, "key_for"))


def _due_at(options: RunOptions, now: int) -> int | None:
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise BadInput("Both delay and at were given.", hint="Give one of them.")
    if delay is not None:
        return now + milliseconds(delay, "delay")
    if at is None:
        return None
    if getattr(at, "tzinfo", None) is None:
        raise BadInput(
            f"at must be a datetime with a time zone, not {at!r:.80}.", hint="Write datetime(..., tzinfo=ZoneInfo('Europe/Paris'))."
        )
    return round(at.timestamp() * 1000)


def _ids(after: Any) -> tuple[str, ...]:
    several = [after] if isinstance(after, str) or not isinstance(after, Iterable) else after
    return tuple(item if isinstance(item, str) else item.id for item in several)
