"""What can be said about jobs and about single runs, in the units that people use: seconds, datetimes, ids or handles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict

from windlass.durations import A_DURATION
from windlass.durations import keep as keep_of
from windlass.errors import BadInput
from windlass.model import Keep, Key, NewRun, Options, Requires, Solver, Use
from windlass.worker.solvers import Solvers

Duration = float | timedelta


class HasId(Protocol):
    """A run's handle."""

    @property
    def id(self) -> str: ...


Uses = str | Use | Mapping[str, int] | Sequence[str | Use]
"""What a run occupies: "ollama", {"gpu": 2}, Use("customer", per="customer_id"), or several of them."""


class RunOptions(TypedDict, total=False):
    """What a single run may say, over what its job says. Durations are seconds."""

    queue: str
    priority: int
    delay: Duration
    at: datetime
    key: str | Key
    key_for: Duration | Literal["forever"]
    after: str | HasId | Sequence[str | HasId]
    after_end: Literal["success", "any"]
    max_attempts: int
    max_runtime: Duration
    timeout: Duration
    backoff: Sequence[Duration]
    backoff_base: Duration
    exhausted: Literal["failed", "quarantined"]
    retry_place: Literal["keep", "tail"]
    grace: Duration
    keep: Duration | str
    tags: Iterable[str]
    cores: int
    memory: int
    uses: Uses
    solver_url: str
    solver_checksum: str


class CommandOptions(TypedDict, total=False):
    """What a job says for all its runs. Durations are seconds."""

    queue: str
    priority: int
    max_attempts: int
    max_runtime: Duration
    timeout: Duration
    backoff: Sequence[Duration] | Callable[[int, BaseException], float]
    backoff_base: Duration
    exhausted: Literal["failed", "quarantined"]
    retry_place: Literal["keep", "tail"]
    max_returns: int
    grace: Duration
    keep: Duration | str
    tags: Iterable[str]
    cores: int
    memory: int
    uses: Uses
    on_abort: Literal["retry", "fail"]


class JobOptions(CommandOptions, total=False):
    """The same with a name, which else is the function's own."""

    name: str


class WorkerOptions(TypedDict, total=False):
    """What a worker may be told. Durations are seconds, memory is MiB."""

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
_AS_THEY_ARE = ("queue", "priority", "max_attempts", "exhausted", "retry_place", "max_returns")
_REQUIRES = ("tags", "cores", "memory")


def milliseconds(duration: Any, what: str) -> int:
    """A duration as it is stored."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 2**40:
        raise BadInput(
            f"{what} must be a number of seconds or a timedelta, not {duration!r:.80}.", hint="Write 30, 0.5 or timedelta(minutes=5)."
        )
    return round(seconds * 1000)


def engine_options(said: Any) -> Options:
    """The options that the engine keeps."""
    kept: dict[str, Any] = {name: said[name] for name in _AS_THEY_ARE if said.get(name) is not None}
    kept |= {name: milliseconds(said[name], name) for name in _DURATIONS if said.get(name) is not None}
    if said.get("keep") is not None:
        kept["keep"] = _keep(said["keep"])
    backoff = said.get("backoff")
    if backoff is not None and not callable(backoff):
        kept["backoff"] = tuple(milliseconds(delay, "A delay of the backoff") for delay in backoff)
    if any(said.get(name) is not None for name in _REQUIRES):
        kept["requires"] = Requires(tuple(said.get("tags") or ()), said.get("cores") or 0, said.get("memory") or 0)
    if said.get("uses") is not None:
        kept["uses"] = uses_of(said["uses"])
    if (solver := _solver(said)) is not None:
        kept["solver"] = solver
    return Options(**kept)


def _keep(said: Any) -> Keep:
    """How long an ended run is kept: "forever", "1h30m", seconds or a timedelta."""
    if not isinstance(said, str):
        return milliseconds(said, "keep")
    try:
        return keep_of(said)
    except ValueError:
        raise BadInput(f"keep is {said!r:.80}.", hint=f'Write {A_DURATION}; or "forever".') from None


def uses_of(said: Any) -> tuple[Use, ...]:
    """What was said of resources, as the engine keeps it."""
    if isinstance(said, Mapping):
        return tuple(Use(name, weight) for name, weight in said.items())
    several = [said] if isinstance(said, str | Use) else said
    return tuple(Use(item) if isinstance(item, str) else item for item in several)


def _solver(said: Any) -> Solver | None:
    """The program that a run brings along, if it does."""
    url, checksum = said.get("solver_url"), said.get("solver_checksum")
    if url is None and checksum is None:
        return None
    if url is None or checksum is None:
        raise BadInput("A solver has a URL and a checksum.", hint="Give solver_url and solver_checksum, its SHA-256.")
    return Solver(url, checksum)


def refuse_unknown(said: Any, known: Any, what: str) -> None:
    """Raise TypeError, as Python does, for a word that is not among the known ones."""
    for name in said:
        if name not in known.__optional_keys__:
            raise TypeError(f"{what} has no option {name!r}; there are {', '.join(sorted(known.__optional_keys__))}")


def new_run(job: str, payload: Any, said: RunOptions, now: int, *, checked: bool = False) -> NewRun:
    """A run as the engine is asked for it; `checked`: its payload fits the signature that this code has."""
    refuse_unknown(said, RunOptions, "A run")
    if not said:
        return NewRun(job, payload, checked=checked)
    if callable(said.get("backoff")):
        raise BadInput(
            "A function as backoff belongs to the job, not to a run.", hint="Give it to @app.job(backoff=...), or give a list of seconds."
        )
    return NewRun(
        job,
        payload,
        options=engine_options(said),
        due_at=_due_at(said, now),
        key=_key(said),
        after=_ids(said.get("after", ())),
        after_end=said.get("after_end", "success"),
        checked=checked,
    )


def _key(said: RunOptions) -> Key | None:
    """At most one unfinished run has a key, or, with `key_for`, at most one in that time."""
    key, lasts = said.get("key"), said.get("key_for")
    if lasts is None:
        return Key(key) if isinstance(key, str) else key
    if not isinstance(key, str):
        raise BadInput("key_for says how long a key lasts, and there is no key.", hint="Give key='...' as well.")
    return Key(key, "forever") if lasts == "forever" else Key(key, "time", milliseconds(lasts, "key_for"))


def _due_at(said: RunOptions, now: int) -> int | None:
    delay, at = said.get("delay"), said.get("at")
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
