"""Live events: one reader follows the journal for all subscribers, and each entry is encoded once."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TypeVar

from windlass.clock import Clock
from windlass.dialects.base import JournalFrames
from windlass.engine import Engine, Tail
from windlass.errors import TRANSIENT, NotFound
from windlass.hub.auth import Caller
from windlass.hub.events.frames import EventFilter, Feed, JournalOffset, entry_frames, passed_by
from windlass.hub.events.pipes import Pipe
from windlass.hub.shares import OpenShares
from windlass.loops import Bell, Loop
from windlass.store.base import journal_topics

K = TypeVar("K")
V = TypeVar("V")

PAGE = 500
BACKLOG = 8 * 1024 * 1024
"""Maximum bytes that wait for one subscriber. All slow ones share the same bytes, so this is about what they cost together."""
AT_ONCE = 64 * 1024
EVENTS = 20
"""Changes that are made into events at once: each may have a result of 1 MiB."""
READS = 4
"""Streams that may read from the store at once."""

LOOK_ANYWAY = 5.0
"""Seconds after which the reader checks the journal even without a hint: a lost hint costs only time."""
GATHER, GATHER_EACH, GATHER_LIMIT = 0.02, 0.0004, 0.2
"""Minimum seconds between two reads: the more subscribers, the more entries are collected for one write to each."""
CHECK_EVERY = 10.0
"""Seconds for which a stream may outlive its token, if the token was ended at another hub."""


class Subscriber:
    """One subscriber, and the bytes that it has not taken yet."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.overrun = feed, False
        self.joined: asyncio.Future[JournalOffset] = asyncio.get_running_loop().create_future()
        self._bundles, self._size = deque[bytes](), 0
        self._bell = asyncio.Event()

    def tell(self, bundle: bytes | None) -> None:
        """Add bytes that all subscribers share; None stands for too many. Beyond the limit, it gets nothing any more."""
        if bundle is None or self._size + len(bundle) > BACKLOG:
            self.overrun = True
        if bundle is None or self.overrun:
            self._bundles.clear()
        else:
            self._bundles.append(bundle)
            self._size += len(bundle)
        self._bell.set()

    async def take(self, timeout: float) -> bytes:
        """The next bytes, as soon as there are any; nothing after this many seconds, or after an overflow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._bell.wait()
        frames, size = list[bytes](), 0
        while self._bundles and size < AT_ONCE:
            frames.append(self._bundles.popleft())
            size += len(frames[-1])
        self._size -= size
        if not self._bundles and not self.overrun:
            self._bell.clear()
        return b"".join(frames)


class Events(Loop):
    """The subscribers of this hub, and the one reader that feeds them."""

    log, complaint = logging.getLogger("windlass.events"), "The journal could not be read"

    def __init__(self, engine: Engine, clock: Clock, streams: OpenShares, still: Callable[[Caller], Awaitable[bool]]) -> None:
        super().__init__(clock)
        self.engine, self._still = engine, still
        self.reads = asyncio.Semaphore(READS)
        self.place = JournalOffset(0, "")
        """The reader's offset: all entries before it were sent to all subscribers."""
        self.watched = 0
        """How many streams are open for a single run."""
        self._streams, self._pipes = streams, dict[Pipe, Caller]()
        self._subscribers = defaultdict[Feed, set[Subscriber]](set)
        self._watchers = defaultdict[str, set[asyncio.Event]](set)
        self._joining: list[Subscriber] = []
        self._bell = Bell(clock, partial(engine.wait, journal_topics("events")), deaf=GATHER_LIMIT)
        self._tokens_changed = asyncio.Event()
        self._idle = self._ended = True

    # Subscribers

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._pipes)

    @contextmanager
    def room(self, pipe: Pipe, caller: Caller) -> Iterator[None]:
        """Count one more stream while the block runs."""
        with self._streams.for_one(caller):
            self._pipes[pipe] = caller
            try:
                yield
            finally:
                del self._pipes[pipe]

    def join(self, subscriber: Subscriber) -> None:
        """Subscribe it: from the offset in its `joined` on, it gets everything. That offset is later than any known when this is called."""
        self._joining.append(subscriber)
        self._bell.ring()

    def leave(self, subscriber: Subscriber) -> None:
        """Unsubscribe it."""
        subscriber.joined.cancel()
        _discard(self._subscribers, subscriber.feed, subscriber)

    @contextmanager
    def watching(self, run_id: str, bell: asyncio.Event) -> Iterator[None]:
        """Ring a bell whenever a run has a new entry."""
        self._watchers[run_id].add(bell)
        self.watched += 1
        self._bell.ring()
        try:
            yield
        finally:
            self.watched -= 1
            _discard(self._watchers, run_id, bell)

    def close(self, caller: Caller | None = None) -> None:
        """Disconnect all clients, or those of one caller. They reconnect with the id of their last event, to this hub or to another."""
        for pipe, own in self._pipes.items():
            if caller in (None, own):
                pipe.end()

    def recheck(self) -> None:
        """Tokens have changed: check for each stream whether it may stay open."""
        self._tokens_changed.set()

    # The reader

    async def run(self) -> None:
        """Read while there are subscribers; until cancelled."""
        checking = asyncio.ensure_future(self._check())
        try:
            await self.every(self._look)
        finally:
            checking.cancel()
            self.close()

    async def _look(self) -> float:
        await self._listeners()
        return 0.0 if await self._pass() else LOOK_ANYWAY

    async def _check(self) -> None:
        """Close the streams whose token has ended: at once if it was ended at this hub, otherwise at intervals."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY):
                    await self._tokens_changed.wait()
            self._tokens_changed.clear()
            for caller in set(self._pipes.values()):
                if not await self._may_stay(caller):
                    self.close(caller)

    async def _may_stay(self, caller: Caller) -> bool:
        try:
            return await self._still(caller)
        except NotFound:
            return False
        except TRANSIENT:
            return True

    async def _listeners(self) -> None:
        while not (self._subscribers or self._watchers or self._joining):
            self._idle = True
            await self._bell.rung()

    async def rest(self, seconds: float) -> None:
        """Wait until entries have collected; if there were none, until the journal has grown."""
        await asyncio.sleep(min(GATHER + GATHER_EACH * self.open, GATHER_LIMIT))
        if seconds:
            await self._bell.rest(seconds)

    async def _pass(self) -> bool:
        """Read to the end, and admit the subscribers that were waiting at the start. Returns whether there was anything.

        On PostgreSQL a client may bring a cursor of another hub that has read further than this one. Only a snapshot that is
        taken after its arrival is newer than any cursor it can have; hence no subscriber is admitted during a pass.
        """
        self._bell.clear()
        if self._idle:
            await self._begin()
        if not self._ended:
            await self._read_on()  # left unread by an error; its snapshot is an old one
        joining, self._joining = self._joining, []
        try:
            more = await self._read_on()
        except BaseException:
            self._joining = [subscriber for subscriber in joining + self._joining if not subscriber.joined.done()]
            raise
        for subscriber in joining:
            if not subscriber.joined.done():  # otherwise it has left
                self._subscribers[subscriber.feed].add(subscriber)
                subscriber.joined.set_result(self.place)
        return more

    async def _begin(self) -> None:
        """There were no subscribers for a while: start at the end."""
        now = self.clock.now()
        self.place, self._ended = JournalOffset(now, await self.engine.tail_end()), True
        self._idle = False
        for bells in self._watchers.values():
            for bell in bells:
                bell.set()

    async def _read_on(self) -> bool:
        """Read to the current end. Returns whether there was anything."""
        more = False
        while True:
            now = self.clock.now()
            tail = await self.engine.tail(self.place.cursor, count=PAGE)
            await self._tell(tail)
            self.place, self._ended, more = JournalOffset(now, tail.cursor), tail.ended, more or bool(tail.entries)
            if self._ended:
                return more

    async def _tell(self, tail: Tail) -> None:
        """Send the entries to all subscribers. Every form of them is prepared before any is sent: an error sends nothing twice."""
        for entry in tail.entries:
            for bell in self._watchers.get(entry.run, ()):
                bell.set()
        filters = defaultdict[JournalFrames, set[EventFilter]](set)
        for feed in self._subscribers:
            filters[feed.frames].add(feed.filter)
        bundles = [await self._bundles(tail, frames, chosen) for frames, chosen in filters.items()]
        for feed, bundle in chain.from_iterable(bundles):
            for subscriber in self._subscribers.get(feed, ()):  # some may have left meanwhile
                subscriber.tell(bundle)

    async def _bundles(self, tail: Tail, frames: JournalFrames, filters: set[EventFilter]) -> list[tuple[Feed, bytes | None]]:
        """The bytes for the subscribers of each filter, in one form; None if they are more than any subscriber may have waiting.

        Entries that pass no filter cost nothing.
        """
        passes = [(index, [filter for filter in passed_by(entry) if filter in filters]) for index, entry in enumerate(tail.entries)]
        passes = [(index, passed) for index, passed in passes if passed]
        if not passes:
            return []
        written, size = list[bytes](), 0
        async for contents in entry_frames(
            frames, self.engine, [(tail.entries[index], tail.cursor_at(index)) for index, _ in passes], EVENTS
        ):
            written += contents
            size += sum(map(len, contents))
            if size > BACKLOG:
                return [(Feed(frames, filter), None) for filter in filters]
        bundles = defaultdict[EventFilter, list[bytes]](list)
        for (_, passed), content in zip(passes, written, strict=True):
            for filter in passed:
                bundles[filter].append(content)
        return [(Feed(frames, filter), bundle) for filter, contents in bundles.items() if (bundle := b"".join(contents))]


def _discard(sets: dict[K, set[V]], key: K, item: V) -> None:
    sets[key].discard(item)
    if not sets[key]:
        del sets[key]
