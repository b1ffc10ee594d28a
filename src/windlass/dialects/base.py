"""The parts of a protocol over HTTP: a table of verbs, handlers, and its own errors, credentials and words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from windlass.answers import Outcome
from windlass.api.rows import Verb
from windlass.api.verbs import Verbs
from windlass.engine import ClaimRequest, Engine
from windlass.errors import WindlassError
from windlass.model import Entry, LogLine, Receipt, Run, Scope, State

if TYPE_CHECKING:
    from windlass.app import App, AsyncApp

T = TypeVar("T")

JSON = "application/json"
ANYWHERE = "*"


class Reply(NamedTuple):
    """An answer with a status of its own. Plain values are sent as JSON, bytes as they are, None as nothing."""

    body: Any = None
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = {}
    media_type: str = JSON


class NoRoute(Exception):
    """No verb matches a request: its path does not exist, or does not have its method."""

    def __init__(self, methods: str | None = None) -> None:
        self.status = HTTPStatus.NOT_FOUND if methods is None else HTTPStatus.METHOD_NOT_ALLOWED
        super().__init__(self.status.phrase)
        self.methods = methods


async def _always() -> bool:
    return True


class Identity(NamedTuple):
    """A caller as a dialect's own credentials identify it, and what it may do."""

    actor: str  # in the audit, and the principal of its keys
    scopes: frozenset[Scope]
    trusted: bool = False  # it may do what otherwise needs admin, such as name programs that workers execute
    details: Any = None  # further data of the dialect about it
    still: Callable[[], Awaitable[bool]] = _always  # for requests that stay open: whether the credential is still valid


class RequestCaller(Protocol):
    """The caller of a request, by a token of windlass or by a credential of the dialect."""

    @property
    def actor(self) -> str: ...

    @property
    def identity(self) -> Identity | None:
        """How the dialect's own credential identifies it; None: by a token of windlass, or not at all."""

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""

    def check_worker(self, name: str) -> None:
        """Refuse to act as a worker for which its token is not."""


class Credentials(Protocol):
    """A dialect's own way to show who calls. Tokens of windlass work beside it."""

    @property
    def required(self) -> bool:
        """Whether any are set. If none are, the dialect is open wherever the hub itself is."""

    async def identify(self, headers: Mapping[bytes, bytes], *, local: bool) -> Identity | None:
        """The caller; None without a credential of this kind. Raises Unauthorized for a wrong one that cannot be a token of windlass.

        `local`: the request was made on the hub's own machine, and not forwarded.
        """


class Cors(NamedTuple):
    """Which pages of other origins may read the answers."""

    origins: frozenset[str]  # ANYWHERE among them: all
    credentials: bool = False
    expose: tuple[str, ...] = ()

    def allows(self, origin: str) -> bool:
        return ANYWHERE in self.origins or origin in self.origins


class Work(Protocol):
    """Claims and reports, each in one batch with those of others where that is possible."""

    async def claim(self, request: ClaimRequest) -> list[Run]:
        """As the engine's `claim`."""

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        """As the engine's."""


class JournalFrames(Protocol):
    """The events of a stream over the journal, in a dialect's words."""

    async def events(self, engine: Engine, entries: Sequence[Entry]) -> Sequence[tuple[str, Any] | None]:
        """The name and the data of the event for each entry; None for an entry that has none."""


LAST_LINE = 2**31 - 1
"""A number above that of every line of an attempt."""


class Course(NamedTuple):
    """The states in which an attempt has been, as events: a name and data each. The last one is the present state.

    A state that other attempts pass through and this one did not is None, so that a state always has the same place.
    """

    events: Sequence[tuple[str, Any] | None]
    ended: bool
    has: Callable[[LogLine], bool]  # whether a line belongs to it


class AttemptFrames(Protocol):
    """The events of a stream of one attempt, in a dialect's words."""

    async def course(self, engine: Engine, run: Run, n: int) -> Course:
        """The states of the n-th attempt of a run, as it was read."""

    def line(self, line: LogLine) -> tuple[str, Any]:
        """The event of a log line."""


class Request(Protocol):
    """What a handler is given of a request, besides the arguments of its verb."""

    @property
    def id(self) -> str: ...

    @property
    def row(self) -> Verb | None:
        """The row of the table that it matches."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str:
        """The path below the hub, as it was sent."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def caller(self) -> RequestCaller: ...

    @property
    def engine(self) -> Engine:
        """The engine on behalf of the caller."""

    @property
    def work(self) -> Work:
        """The claims and reports of all requests."""

    @property
    def app(self) -> App | AsyncApp | None:
        """The app whose handlers can be called here, if the hub was started with one."""

    def act(self, what: str, subject: str) -> Engine:
        """The engine for one action of the caller, which is audited."""

    async def wait(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """The result of a call that takes long; None as soon as the client has gone. A hub bounds the requests that wait."""

    def follow(self, queue: str, frames: JournalFrames, last_event_id: str | None) -> Any:
        """A stream of the changes in a queue, from the event with this id on, or from now on."""

    async def watch(self, run: Run, n: int, frames: AttemptFrames, line: int | None, last_event_id: str | None) -> Any:
        """A stream of the n-th attempt of a run, to its end: from the event with this id on, else from after a line on.

        By default, it has all lines of an attempt that has not ended, and only the end of one that has.
        """

    def emit(self, chunks: AsyncIterator[bytes]) -> Any:
        """A stream of server-sent events that the dialect writes itself."""


Handler = Callable[..., Awaitable[Any]]
Refuse = Callable[[Any, Exception], Any]


class Dialect(Struct, frozen=True, dict=True):
    """A table of verbs below a path."""

    prefix: str
    verbs: tuple[Verb, ...]
    handlers: Mapping[str, Handler]
    refuse: Refuse  # the answer to an error, whichever it is
    name: str = ""
    credentials: Credentials | None = None  # None: only tokens of windlass
    strict: bool = True  # a parameter that a verb does not have is refused
    cors: Cors | None = None
    required: str = ""  # how to set its credentials, if it may be served without only where the hub itself is open
    private: str = ""  # why it may be served on loopback only
    calls: frozenset[str] = frozenset()  # the jobs whose handlers it calls, if the hub has an app
    begin: Callable[[Engine], Awaitable[object]] | None = None  # what is done before its first request

    @property
    def guarded(self) -> bool:
        """Whether credentials of its own are set."""
        return self.credentials is not None and self.credentials.required

    @cached_property
    def segments(self) -> frozenset[str]:
        """The first parts of its paths: at the root of a hub it answers these, and nothing else."""
        return frozenset(_first_segment(verb.path) for verb in self.verbs)

    def owns(self, path: str) -> bool:
        """Whether a path is its own, also if no verb has it."""
        if self.prefix:
            return path == self.prefix or path.startswith(f"{self.prefix}/")
        return _first_segment(path) in self.segments


def _first_segment(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


class Words(Struct, frozen=True):
    """How a protocol calls the states of a run. Several states may have one word; every state has one."""

    labels: Mapping[State, str]

    def __post_init__(self) -> None:
        if missing := set(State) - set(self.labels):
            raise ValueError(f"No word for {sorted(missing)}.")

    def label(self, state: State) -> str:
        """The word for a state."""
        return self.labels[state]

    def states(self, label: str) -> tuple[State, ...]:
        """The states that a word stands for; none for an unknown word."""
        return tuple(state for state, word in self.labels.items() if word == label)


Shown = Callable[[Verbs, Sequence[Run]], Awaitable[list[dict[str, Any]]]]
"""Runs in the words of a protocol, on a store or through a hub."""
