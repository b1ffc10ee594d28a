"""Jobs as the application writes them: a function or a command, its options, and a typed way to enqueue it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from windlass.app.handles import AsyncHandle, Handle, plain_output
from windlass.app.options import CommandOptions, JobOptions, RunOptions, engine_options, new_run, refuse_unknown
from windlass.app.signatures import Signature
from windlass.errors import BadInput
from windlass.model import NewRun, Options
from windlass.worker import Context, Handler, Place
from windlass.worker.context import NOWHERE, Call

if TYPE_CHECKING:
    from windlass.app.apps import App, AsyncApp
    from windlass.app.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Kind = Literal["async", "thread", "process"]


class Definition(Generic[P, R]):
    """A job: what runs, how it is treated, and how its runs are made."""

    def __init__(self, app: Registry, handler: Handler, options: Options, signature: Signature | None) -> None:
        self.app, self.handler, self.defaults, self.signature = app, handler, options, signature
        self._said: RunOptions = {}

    @property
    def name(self) -> str:
        return self.handler.name

    def options(self, **said: Unpack[RunOptions]) -> Self:
        """The same job with other words for the runs that are made through it: `job.options(priority=5).enqueue(...)`."""
        refuse_unknown(said, RunOptions, "A run")
        other = copy(self)
        other._said = {**self._said, **said}
        return other

    def new(self, *arguments: P.args, **named: P.kwargs) -> NewRun:
        """A run that is not enqueued yet, for `app.enqueue_many`."""
        checked = self.signature is not None
        payload = self.signature.payload(arguments, named) if self.signature else command_payload(arguments, named)
        if not self._said:
            return NewRun(self.handler.name, payload, checked=checked)
        return new_run(self.handler.name, payload, self._said, self.app.clock.now(), checked=checked)

    def read(self, output: str | None) -> Any:
        """A stored output as what the function returns."""
        return self.signature.result(output) if self.signature else plain_output(output)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function here and now, without any queue; what it logs and tells goes nowhere."""
        if self.handler.call is None or self.signature is None:
            raise BadInput(f"{self.name!r} is a command; it cannot be called.", hint="Enqueue it, and wait for its result.")
        function = self.function
        if self.signature.takes_context and not (arguments and isinstance(arguments[0], Context)):
            call = Call("here", self.name, 1, "none", "{}", 1, 0, self.app.clock.now())
            return function(Context(call, NOWHERE), *arguments, **named)
        return function(*arguments, **named)

    function: Callable[..., Any]


def command_payload(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The payload of a command, which has no signature: what is given by name."""
    if arguments:
        raise TypeError("a command takes its payload by name: job.enqueue(width=3)")
    return named


class Job(Definition[P, R]):
    """A job of an App."""

    app: App

    def enqueue(self, *arguments: P.args, **named: P.kwargs) -> Handle[R]:
        """Store a run; it is durable when this returns. The arguments are those of the function."""
        return self.app.enqueue_one(self.new(*arguments, **named))


class AsyncJob(Definition[P, R]):
    """A job of an AsyncApp."""

    app: AsyncApp

    async def enqueue(self, *arguments: P.args, **named: P.kwargs) -> AsyncHandle[R]:
        """Store a run; it is durable when this returns. The arguments are those of the function."""
        return await self.app.enqueue_one(self.new(*arguments, **named))


class JobMaker(Protocol):
    """What `@app.job(...)` is: a checker knows the function's arguments, without the context, and its result."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class AsyncJobMaker(Protocol):
    """The same for an AsyncApp."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncJob[P, R]: ...


D = TypeVar("D", bound=Definition[..., Any])


def from_function(
    made: Callable[[Registry, Handler, Options, Signature | None], D],
    app: Registry,
    function: Callable[..., Any],
    said: JobOptions,
    kind: Kind | None,
    memory_limit: int | None,
    recycle: int,
) -> D:
    """A job from a function."""
    refuse_unknown(said, JobOptions, "A job")
    if isinstance(function, Definition):
        raise BadInput(f"{function.name!r} is a job already.", hint="Write @app.cron or @app.every above @app.job(), not below.")
    if not callable(function):
        raise BadInput(f"@app.job() was put on {function!r:.80}, which is not a function.", hint="Put it directly on a function.")
    name = said.get("name") or function.__qualname__.rpartition("<locals>.")[2]  # without the module, which may move or be __main__
    signature = Signature(function, name)
    chosen = kind or ("async" if inspect.iscoroutinefunction(function) else "thread")
    if chosen == "async" and not inspect.iscoroutinefunction(function):
        raise BadInput(
            f"The job {name!r} is not a coroutine function.", hint="Write `async def`, or leave kind out to have it run in a thread."
        )
    if chosen == "thread" and inspect.iscoroutinefunction(function):
        raise BadInput(f"The job {name!r} is a coroutine function.", hint="Leave kind out; it then runs in the worker's event loop.")
    handler = Handler(
        name,
        chosen,
        _caller(function, signature),
        signature.encode,
        place=_place(function) if chosen == "process" else None,
        memory=memory_limit,
        recycle=recycle,
        **_treatment(said),
    )
    job = made(app, handler, engine_options(said), signature)
    job.function = function
    job.__doc__ = function.__doc__
    return job


def from_command(
    made: Callable[[Registry, Handler, Options, Signature | None], D],
    app: Registry,
    name: str,
    argv: Any,
    said: CommandOptions,
    cwd: str | None,
    environment: dict[str, str] | None,
    memory_limit: int | None,
) -> D:
    """A job from a command."""
    refuse_unknown(said, CommandOptions, "A command")
    if isinstance(argv, str) or not argv or not all(isinstance(part, str) for part in argv):
        raise BadInput(
            f"The command of {name!r} must be a list of texts, not {argv!r:.80}.",
            hint="Write ['convert', '-resize', '50%']; there is no shell.",
        )
    environment = environment or {}
    handler = Handler(
        name, "command", argv=tuple(argv), cwd=cwd, environment=tuple(environment.items()), memory=memory_limit, **_treatment(said)
    )
    return made(app, handler, engine_options(said), None)


def _treatment(said: JobOptions | CommandOptions) -> dict[str, Any]:
    backoff = said.get("backoff")
    return {"backoff": backoff if callable(backoff) else None, "on_abort": said.get("on_abort", "retry")}


def _caller(function: Callable[..., Any], signature: Signature) -> Callable[[Context], Any]:
    def call(context: Context) -> Any:
        arguments, named = signature.arguments(context.call.payload)
        return function(context, *arguments, **named) if signature.takes_context else function(*arguments, **named)

    return call


def _place(function: Callable[..., Any]) -> Place:
    """Where a process of its own finds the job again."""
    if "<locals>" in function.__qualname__ or function.__qualname__ == "<lambda>":
        raise BadInput(
            f"{function.__qualname__} is defined inside a function, where another process cannot find it.",
            hint="Define a job of kind='process' at the top level of a module.",
        )
    if function.__module__ != "__main__":
        return Place(function.__module__, function.__qualname__)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)  # of `python -m package.module`
    return Place(spec.name if spec else "__main__", function.__qualname__, None if spec else getattr(main, "__file__", None))
