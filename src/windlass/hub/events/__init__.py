"""Live events: one reader follows the journal for all who listen, and each entry is written into bytes once."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from windlass.clock import Clock
from windlass.engine import Engine, Tail
from windlass.errors import AWAY, NotFound
from windlass.hub.auth import Caller
from windlass.hub.events.frames import Place, Wanted, entry_frame, passed_by
from windlass.hub.events.pipes import Pipe
from windlass.hub.shares import Room
from windlass.loops import Bell, Loop
from windlass.store.base import journal_topics

K = TypeVar("K")
V = TypeVar("V")

PAGE = 500
BACKLOG = 8 * 1024 * 1024
"""Bytes that wait for one follower at most. All who lag wait for the same bytes, so this is about what they cost together."""
AT_ONCE = 64 * 1024
READS = 4
"""Streams that may read the store at once for themselves."""

LOOK_ANYWAY = 5.0
"""Seconds after which the reader looks although nothing was heard of the journal: a lost hint costs only time."""
GATHER, GATHER_EACH, GATHER_AT_MOST = 0.02, 0.0004, 0.2
"""Seconds between two looks at least: the more listen, the more is gathered for one write to each."""
CHECK_EVERY = 10.0
"""Seconds for which a stream may outlive its token, if that was ended elsewhere."""


class Follower:
    """One who follows the journal: what it was told and has not taken yet."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.overrun = wanted, False
        self.joined: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._bundles, self._size = deque[bytes](), 0
        self._bell = asyncio.Event()

    def tell(self, bundle: bytes) -> None:
        """Add some bytes that all share. When that is too much, it is told nothing any more."""
        self.overrun = self.overrun or self._size + len(bundle) > BACKLOG
        if self.overrun:
            self._bundles.clear()
        else:
            self._bundles.append(bundle)
            self._size += len(bundle)
        self._bell.set()

    async def take(self, timeout: float) -> bytes:
        """What comes next, as soon as there is something; nothing after so many seconds, or when it was too much."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._bell.wait()
        taken, size = list[bytes](), 0
        while self._bundles and size < AT_ONCE:
            taken.append(self._bundles.popleft())
            size += len(taken[-1])
        self._size -= size
        if not self._bundles and not self.overrun:
            self._bell.clear()
        return b"".join(taken)


class Events(Loop):
    """Who listens to this hub, and the one reader that tells them."""

    log, complaint = logging.getLogger("windlass.events"), "The journal could not be read"

    def __init__(self, engine: Engine, clock: Clock, streams: Room, still: Callable[[Caller], Awaitable[bool]]) -> None:
        super().__init__(clock)
        self.engine, self._still = engine, still
        self.reads = asyncio.Semaphore(READS)
        self.place = Place(0, "")
        """Where the reader stands: whatever is before it was told to all followers."""
        self.watched = 0
        """How many streams watch a single run."""
        self._streams, self._pipes = streams, dict[Pipe, Caller]()
        self._followers = defaultdict[Wanted, set[Follower]](set)
        self._watchers = defaultdict[str, set[asyncio.Event]](set)
        self._joining: list[Follower] = []
        self._bell = Bell(clock, partial(engine.wait, journal_topics("events")), deaf=GATHER_AT_MOST)
        self._tokens_changed = asyncio.Event()
        self._idle = self._ended = True

    # Those who listen

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._pipes)

    @contextmanager
    def room(self, pipe: Pipe, caller: Caller) -> Iterator[None]:
        """Room for one more stream."""
        with self._streams.for_one(caller):
            self._pipes[pipe] = caller
            try:
                yield
            finally:
                del self._pipes[pipe]

    def join(self, follower: Follower) -> None:
        """From the place in its `joined` on, it is told everything. That place is later than any that is known when this is called."""
        self._joining.append(follower)
        self._bell.ring()

    def leave(self, follower: Follower) -> None:
        """Tell it nothing any more."""
        follower.joined.cancel()
        _discard(self._followers, follower.wanted, follower)

    @contextmanager
    def watching(self, run_id: str, bell: asyncio.Event) -> Iterator[None]:
        """Have a bell rung whenever a run has a new entry."""
        self._watchers[run_id].add(bell)
        self.watched += 1
        self._bell.ring()
        try:
            yield
        finally:
            self.watched -= 1
            _discard(self._watchers, run_id, bell)

    def close(self, caller: Caller | None = None) -> None:
        """Let all clients go, or those of one caller. They come back with the id of what they saw last, to this hub or to another."""
        for pipe, own in self._pipes.items():
            if caller in (None, own):
                pipe.end()

    def recheck(self) -> None:
        """Tokens have changed: ask for each whether its streams may stay."""
        self._tokens_changed.set()

    # The reader

    async def run(self) -> None:
        """Read for as long as somebody listens; until cancelled."""
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
        """Let those go whose token has ended meanwhile: at once where it was ended here, else now and then."""
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
        except AWAY:
            return True

    async def _listeners(self) -> None:
        while not (self._followers or self._watchers or self._joining):
            self._idle = True
            await self._bell.rung()

    async def rest(self, seconds: float) -> None:
        """Let something gather; where there was nothing, until the journal has grown."""
        await asyncio.sleep(min(GATHER + GATHER_EACH * self.open, GATHER_AT_MOST))
        if seconds:
            await self._bell.rest(seconds)

    async def _pass(self) -> bool:
        """Read to the end, and let those in who were waiting when that began. Whether there was anything.

        On PostgreSQL a client may come with a cursor of another hub that has read further than this one. Only a snapshot that is
        taken after the client came is newer than any it can know; hence nobody is let in during a pass.
        """
        self._bell.clear()
        if self._idle:
            await self._begin()
        if not self._ended:
            await self._read_on()  # what an error has left unread; its snapshot is an old one
        joining, self._joining = self._joining, []
        try:
            found = await self._read_on()
        except BaseException:
            self._joining = [follower for follower in joining + self._joining if not follower.joined.done()]
            raise
        for follower in joining:
            if not follower.joined.done():  # else it has left
                self._followers[follower.wanted].add(follower)
                follower.joined.set_result(self.place)
        return found

    async def _begin(self) -> None:
        """Nobody has listened for a while: begin at the end."""
        now = self.clock.now()
        self.place, self._ended = Place(now, await self.engine.tail_end()), True
        self._idle = False
        for bells in self._watchers.values():
            for bell in bells:
                bell.set()

    async def _read_on(self) -> bool:
        """Read to the end of what is there now. Whether there was anything."""
        found = False
        while True:
            now = self.clock.now()
            tail = await self.engine.tail(self.place.cursor, count=PAGE)
            self._tell(tail)
            self.place, self._ended, found = Place(now, tail.cursor), tail.ended, found or bool(tail.entries)
            if self._ended:
                return found

    def _tell(self, tail: Tail) -> None:
        bundles = defaultdict[Wanted, list[bytes]](list)
        for index, entry in enumerate(tail.entries):
            for bell in self._watchers.get(entry.run, ()):
                bell.set()
            if wanted := [wanted for wanted in passed_by(entry) if wanted in self._followers]:
                written = entry_frame(entry, tail.cursor_at(index))
                for each in wanted:
                    bundles[each].append(written)
        for each, frames in bundles.items():
            bundle = b"".join(frames)
            for follower in self._followers[each]:
                follower.tell(bundle)


def _discard(sets: dict[K, set[V]], key: K, item: V) -> None:
    sets[key].discard(item)
    if not sets[key]:
        del sets[key]
