"""Handlers: a name, its code, and the options of its execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from windlass.errors import BadInput
from windlass.worker.context import Context
from windlass.worker.outcomes import Backoff

Kind = Literal["async", "thread", "process", "command"]


class Place(Struct, frozen=True):
    """Where another process can import a function."""

    module: str
    name: str  # qualified
    path: str | None = None  # of a program that was started as a script, and so has no module name


class Handler(Struct, frozen=True):
    """The code of a job."""

    name: str
    kind: Kind
    call: Callable[[Context], Any] | None = None  # decodes the payload itself; a coroutine function for "async"
    encode: Callable[[Any], Any] | None = None  # of what the function returned, to JSON values; raises for what it refuses
    place: Place | None = None  # for "process"
    argv: tuple[str, ...] = ()  # for "command"; "{payload}" stands for the payload, which else comes on standard input
    cwd: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    memory: int | None = None  # MiB a process or command may have
    recycle: int = 100  # runs after which a process is replaced
    backoff: Backoff | None = None
    on_abort: Literal["retry", "fail"] = "retry"


class Unfit(BadInput):
    """This worker cannot work on the run, and trying again would not help."""


class BadPayload(Unfit):
    """The payload does not fit the handler. With a fingerprint of the schema, workers with other code may still execute it."""

    code = "bad_payload"

    def __init__(self, message: str, *, hint: str, schema: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.schema = schema


class UnknownHandler(Unfit):
    """A worker with `on_unknown="fail"` has claimed a run without a handler."""

    code = "unknown_job"

    def __init__(self, job: str, handler: str) -> None:
        what = "No handler" if handler == job else f"No handler {handler!r}"
        super().__init__(f"{what} for the job {job!r}.", hint="Deploy the code that defines it, then rerun the run.")
