"""A request as a handler gets it: its caller, its hub, and a strictly parsed body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request

from windlass import payload
from windlass.api.rows import Verb
from windlass.dialects.base import LAST_LINE, AttemptFrames, Dialect, JournalFrames
from windlass.engine import Engine, checks
from windlass.engine.fires import SCOPE as SCHEDULED
from windlass.errors import BadInput, TooLarge, TooSlow
from windlass.hub.auth import Caller
from windlass.hub.batching import Batcher
from windlass.hub.core import Hub
from windlass.hub.events.frames import AttemptOffset, Feed
from windlass.hub.events.pipes import AT_SHUTDOWN, IS_WHOLE, AtShutdown
from windlass.hub.events.streams import AttemptStream, JournalStream, WrittenStream
from windlass.hub.routing import path_below_mount
from windlass.model import Key, Run

if TYPE_CHECKING:
    from windlass.app import App, AsyncApp

T = TypeVar("T")


AT_ONCE = 64 * 1024
"""Bytes of a body that is parsed in the event loop."""
_READER = ThreadPoolExecutor(1, "windlass-bodies")
"""Where larger bodies are parsed. One thread: several would compete with the loop for the interpreter."""
_AT_ONCE = nullcontext()
FOR_ANYBODY = 8 * 1024
"""Bytes of a body of a verb that needs no token."""
MEMBERS = 500_000
"""Maximum number of values in one body, because a large one could have millions."""


def _read(body: bytes, kind: Any) -> Any:
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MEMBERS:
        raise TooLarge(f"The body has more than {MEMBERS:,} members.", hint="Send less at once.")
    return payload.convert(payload.parse(body, limit=len(body), what="The body"), kind)


class HubRequest(Request):
    """The argument of a handler."""

    verb: Verb
    """The row of its verb."""
    dialect: Dialect
    """The table that the row is in."""
    _bytes: bytes | None = None

    @property
    def row(self) -> Verb | None:
        """The row that it matches; None for a path that no row has."""
        return getattr(self, "verb", None)

    @property
    def hub(self) -> Hub:
        hub: Hub = self.scope["hub"]
        return hub

    @property
    def caller(self) -> Caller:
        caller: Caller = self.scope["caller"]
        return caller

    def audited(self, words: Mapping[str, Any]) -> Engine:
        """The engine for one action of this caller, audited as the row describes it."""
        return self.act(*self.verb.action(words))

    @property
    def work(self) -> Batcher:
        """The claims and reports of all requests."""
        return self.hub.joining

    @property
    def app(self) -> App | AsyncApp | None:
        """The app whose handlers can be called here, if the hub was started with one."""
        return self.hub.app

    def act(self, what: str, subject: str) -> Engine:
        """The engine for one action of this caller, which is audited."""
        return self.engine.by(self.caller.actor, what, subject)

    @property
    def engine(self) -> Engine:
        """The engine on behalf of this caller, for actions that depend on its rights."""
        return self.hub.engine.on_behalf_of(self.caller.principal)

    def own(self, key: Key) -> Key:
        """The key of a request, in the scope of its principal, so that no caller can take the keys of others, or of schedules.

        Callers with admin share the keys of programs on the store itself.
        """
        name, trusted = self.caller.principal
        if not trusted:
            return replace(key, scope=checks.key_scope(f"by:{name}:{checks.key(key, self.hub.engine.limits).scope}"))
        if key.scope == SCHEDULED or str(key.scope).startswith(("by:", "http:")):
            raise BadInput(f"The scope {key.scope!r:.80} is windlass's own.", hint="Choose another scope for the key.")
        return key

    @property
    def path(self) -> str:
        """The path below the hub."""
        return path_below_mount(self.scope)

    def follow(self, queue: str, frames: JournalFrames, last_event_id: str | None) -> JournalStream:
        """A stream of the changes in a queue, from the event with this id on, or from now on."""
        return JournalStream(self.hub.events, self.caller, Feed(frames, (None, queue, None)), last_event_id)

    async def watch(self, run: Run, n: int, frames: AttemptFrames, line: int | None, last_event_id: str | None) -> AttemptStream:
        """A stream of the n-th attempt of a run, from the event with this id on, else from after a line on."""
        course = await frames.course(self.engine, run, n)
        if last_event_id:
            place = AttemptOffset.read(last_event_id)
        else:
            after = line if line is not None else LAST_LINE if course.ended else 0
            place = AttemptOffset(len(course.events) - 1, after)
        return AttemptStream(self.hub.events, self.caller, run, n, frames, course, place)

    def emit(self, chunks: AsyncIterator[bytes]) -> WrittenStream:
        """A stream of server-sent events that the dialect writes itself."""
        return WrittenStream(self.hub.events, self.caller, chunks)

    @property
    def id(self) -> str:
        """The id of this request in logs and answers."""
        return str(self.scope["request_id"])

    async def read_body(self, verb: Verb) -> Any:
        """The body as a verb takes it, by the one rule for valid JSON: a string is not a number, and no member is unknown.

        Bodies of workers contain JSON only as text, which is checked later.
        """
        body = await self.body()
        if not body:
            if verb.optional:
                return None
            raise BadInput("The request has no body.", hint=f"Send one JSON value; {self._description} describes it.")
        try:
            if (from_json := getattr(verb.takes, "from_json", None)) is not None:
                return await self.read(from_json, body)
            if verb.lean:
                return await self.read(payload.reader(verb.takes), body)
            return await self.read(_read, body, verb.takes)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"The body cannot be read: {error}.", hint=f"Correct it; {self._description} describes it.") from None

    @property
    def _description(self) -> str:
        """What describes the bodies of its verbs."""
        return f"docs/dialects/{self.dialect.name}.md" if self.dialect.name else "/api/v1/openapi.json"

    async def read(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a function of the body or a part of it. A large one is parsed in a thread, while other requests are answered."""
        if len(await self.body()) <= AT_ONCE:
            return call(*arguments)
        return await asyncio.get_running_loop().run_in_executor(_READER, call, *arguments)

    async def body(self) -> bytes:
        """The body, refused as soon as it is over the limit."""
        if self._bytes is None:
            is_whole: bool = self._extension(IS_WHOLE, _unknown)()
            try:
                # Waiting under a timeout costs more than anything else here, and most bodies are complete by now.
                async with _AT_ONCE if is_whole else asyncio.timeout(self.hub.settings.body_within / 1000):
                    self._bytes = await self._whole(self._limit())
            except TimeoutError:
                raise TooSlow("The body did not come to its end in time.", hint="Send less at once, or over a better line.") from None
            if not is_whole:
                await self.admit()
        return self._bytes

    async def _whole(self, limit: int) -> bytes:
        for name, value in self.scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > limit:
                raise _too_large(limit)
        parts, size, more = list[bytes](), 0, True
        while more:
            message: Any = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > limit:
                raise _too_large(limit)
        return b"".join(parts)

    def _extension(self, name: str, otherwise: Any) -> Any:
        return (self.scope.get("extensions") or {}).get(name, otherwise)

    def _limit(self) -> int:
        """Maximum bytes of the body: few for verbs that need no token."""
        return self.hub.settings.body if self.verb.scope is not None else FOR_ANYBODY

    async def admit(self) -> None:
        """Refuse a caller that may not call the verb. Asked again for a slow request, whose token may have ended meanwhile."""
        await self.hub.authenticator.admit(self.scope, self.verb, self.dialect.credentials)

    async def wait(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """The result of a call that takes long; None as soon as the client has gone. It counts among the requests that wait."""

        async def waiting() -> T:
            return await call(*arguments)

        with self.hub.waits.for_one(self.caller):
            return await self.unless_gone(waiting())

    async def unless_gone(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """The awaited result; None as soon as the client has gone, or the server stops.

        A caller that would no longer be admitted when the result is there is refused.
        """
        await self.body()
        wait, gone = asyncio.ensure_future(waiting), asyncio.ensure_future(self._gone())
        at_shutdown: AtShutdown = self._extension(AT_SHUTDOWN, None) or AtShutdown()
        at_shutdown.add(gone.cancel)
        try:
            await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not wait.done():
                return None
            result = wait.result()
        finally:
            at_shutdown.discard(gone.cancel)
            wait.cancel()
            gone.cancel()
        await self.admit()
        return result

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _unknown() -> bool:
    return False


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"The body has more than {limit:,} bytes.", hint="Send less at once, or keep large data elsewhere and send a reference to it."
    )
