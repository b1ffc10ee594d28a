"""Jobs of an application: a function or a command, its options, and a typed way to enqueue it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from windlass.app.handles import AsyncHandle, plain_output
from windlass.app.options import CommandOptions, DefinitionOptions, JobOptions, RunOptions, engine_options, new_run, refuse_unknown
from windlass.app.signatures import Signature
from windlass.errors import BadInput
from windlass.model import NewRun, Options
from windlass.worker import Context, Handler, Place
from windlass.worker.context import Call, Unstored

if TYPE_CHECKING:
    from windlass.app.apps import AsyncApp
    from windlass.app.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Kind = Literal["async", "thread", "process"]


class Definition(Generic[P, R]):
    """A job: its handler, its options, and methods to create its runs."""

    def __init__(
        self,
        app: Registry,
        handler: Handler,
        options: Options,
        signature: Signature | None,
        description: str | None = None,
        *,
        name: str | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.app, self.handler, self.defaults, self.description = app, handler, options, description
        self.name = name or handler.name
        self.template = {} if template is None else dict(template)
        self.code = signature  # what its function takes and returns
        # What the template has may be left out of a payload, so the engine checks such payloads as a whole.
        self.signature = None if self.template else signature
        self._options: RunOptions = {}

    def options(self, **options: Unpack[RunOptions]) -> Self:
        """The same job with other options for the runs created through it: `job.options(priority=5).enqueue(...)`."""
        refuse_unknown(options, RunOptions, "A run")
        other = copy(self)
        other._options = {**self._options, **options}
        return other

    def new(self, *arguments: P.args, **keywords: P.kwargs) -> NewRun:
        """A run that is not enqueued yet, for `app.enqueue_many`."""
        checked = self.signature is not None
        payload = self.signature.payload(arguments, keywords) if self.signature else command_payload(arguments, keywords)
        if not self._options:
            return NewRun(self.name, payload, checked=checked)
        return new_run(self.name, payload, self._options, self.app.clock.now(), checked=checked)

    def read(self, output: str | None) -> Any:
        """A stored output as the function's return type."""
        return self.code.result(output) if self.code else plain_output(output)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function here and now, without any queue; its log and progress are discarded."""
        if self.handler.call is None or self.code is None:
            raise BadInput(f"{self.name!r} is a command; it cannot be called.", hint="Enqueue it, and wait for its result.")
        function, keywords = self.function, self.template | keywords
        if self.code.takes_context and not (arguments and isinstance(arguments[0], Context)):
            call = Call("here", self.name, 1, "none", "{}", 1, 0, self.app.clock.now(), handler=self.handler.name)
            return function(Context(call, Unstored()), *arguments, **keywords)
        return function(*arguments, **keywords)

    function: Callable[..., Any]

    @property
    def has_own_handler(self) -> bool:
        """Whether it is the job that its handler is called like."""
        return self.name == self.handler.name


def command_payload(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The payload of a job without a signature, or with a template: the named arguments."""
    if arguments:
        raise TypeError("this job takes its payload by name: job.enqueue(width=3)")
    return keywords


class AsyncJob(Definition[P, R]):
    """A job of an AsyncApp."""

    app: AsyncApp

    async def enqueue(self, *arguments: P.args, **keywords: P.kwargs) -> AsyncHandle[R]:
        """Store a run; it is durable when this returns. The arguments are those of the function."""
        return await self.app.enqueue_one(self.new(*arguments, **keywords))


class AsyncJobMaker(Protocol):
    """The type of `@app.job(...)`: a checker gets the function's arguments, without the context, and its result."""

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
    make: Callable[[Registry, Handler, Options, Signature | None, str | None], D],
    app: Registry,
    function: Callable[..., Any],
    options: JobOptions,
    kind: Kind | None,
    memory_limit: int | None,
    recycle: int,
) -> D:
    """A job from a function."""
    refuse_unknown(options, JobOptions, "A job")
    if isinstance(function, Definition):
        raise BadInput(f"{function.name!r} is a job already.", hint="Write @app.cron or @app.every above @app.job(), not below.")
    if not callable(function):
        raise BadInput(f"@app.job() was put on {function!r:.80}, which is not a function.", hint="Put it directly on a function.")
    name = options.get("name") or function.__qualname__.rpartition("<locals>.")[2]  # without the module, which may change or be __main__
    signature = Signature(function, name)
    handler_kind = kind or ("async" if inspect.iscoroutinefunction(function) else "thread")
    if handler_kind == "async" and not inspect.iscoroutinefunction(function):
        raise BadInput(
            f"The job {name!r} is not a coroutine function.", hint="Write `async def`, or leave kind out to have it run in a thread."
        )
    if handler_kind == "thread" and inspect.iscoroutinefunction(function):
        raise BadInput(f"The job {name!r} is a coroutine function.", hint="Leave kind out; it then runs in the worker's event loop.")
    handler = Handler(
        name,
        handler_kind,
        _caller(function, signature),
        signature.encode,
        place=_place(function) if handler_kind == "process" else None,
        memory=memory_limit,
        recycle=recycle,
        **_treatment(options),
    )
    job = make(app, handler, engine_options(options), signature, options.get("description"))
    job.function = function
    job.__doc__ = function.__doc__
    return job


def from_command(
    make: Callable[[Registry, Handler, Options, Signature | None, str | None], D],
    app: Registry,
    name: str,
    argv: Any,
    options: CommandOptions,
    cwd: str | None,
    environment: dict[str, str] | None,
    memory_limit: int | None,
) -> D:
    """A job from a command."""
    refuse_unknown(options, CommandOptions, "A command")
    if isinstance(argv, str) or not argv or not all(isinstance(part, str) for part in argv):
        raise BadInput(
            f"The command of {name!r} must be a list of texts, not {argv!r:.80}.",
            hint="Write ['convert', '-resize', '50%']; there is no shell.",
        )
    environment = environment or {}
    handler = Handler(
        name, "command", argv=tuple(argv), cwd=cwd, environment=tuple(environment.items()), memory=memory_limit, **_treatment(options)
    )
    return make(app, handler, engine_options(options), None, options.get("description"))


def from_job(
    make: Callable[..., D], app: Registry, name: str, job: Definition[..., Any], payload: Mapping[str, Any], options: DefinitionOptions
) -> D:
    """A job that is executed by the handler of another job of the app."""
    refuse_unknown(options, DefinitionOptions, "A job with another job's handler")
    other = make(app, job.handler, engine_options(options), job.code, options.get("description"), name=name, template=payload)
    if job.code is not None:
        other.function = job.function
    return other


def _treatment(options: JobOptions | CommandOptions) -> dict[str, Any]:
    backoff = options.get("backoff")
    return {"backoff": backoff if callable(backoff) else None, "on_abort": options.get("on_abort", "retry")}


def _caller(function: Callable[..., Any], signature: Signature) -> Callable[[Context], Any]:
    def call(context: Context) -> Any:
        arguments, keywords = signature.arguments(context.call.payload)
        return function(context, *arguments, **keywords) if signature.takes_context else function(*arguments, **keywords)

    return call


def _place(function: Callable[..., Any]) -> Place:
    """How a separate process imports the job."""
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
