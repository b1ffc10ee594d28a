"""The streams: the whole journal, one run, one attempt of a run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from windlass.api.views import line_cursor, line_place
from windlass.dialects.base import AttemptFrames, Course
from windlass.engine.cursors import ahead
from windlass.engine.runs import Moment
from windlass.hub.auth import Caller
from windlass.hub.events import AT_ONCE, Events, Subscriber, frames
from windlass.hub.events.frames import AttemptOffset, Feed, JournalOffset, RunOffset
from windlass.hub.events.pipes import Pipe
from windlass.machine import ENDED, LIVE
from windlass.model import Entry, LogLine, Run

KEEP_ALIVE = 15.0
PAGE = 500
LINES = 50
"""Entries and lines of a run that are read at once; a line may have 8 KiB, and a client that stops reading keeps them all in memory."""
EVENTS = 5
"""Changes that are made into events at once: each may have a result of 1 MiB, and the same client keeps them in memory."""
LOOK_EVERY, LOOK_RARELY = 0.25, 5.0
EACH = 0.005
"""Seconds that each stream of a run adds to the interval between reads."""
MARGIN = 60_000
"""Milliseconds by which clocks and commits may lag."""
REACH = 300_000
"""Milliseconds that a stream may go back for a caller without a token: enough to connect again, but not to read what happened long ago."""


class Stream:
    """An ASGI app that answers one request with a stream."""

    def __init__(self, events: Events, caller: Caller) -> None:
        self.events, self._caller = events, caller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        pipe = Pipe(scope, receive, send)
        with self.events.room(pipe, self._caller):
            await pipe.carry(self.write(pipe))

    async def write(self, pipe: Pipe) -> None:
        """Write until the stream is complete."""
        raise NotImplementedError


class JournalStream(Stream):
    """Changes, from an offset on or from now on."""

    def __init__(self, events: Events, caller: Caller, feed: Feed, last: str | None) -> None:
        """From the event with the id `last` on, or from now on."""
        super().__init__(events, caller)
        self._feed, self._place = feed, JournalOffset.read(last) if last else None

    async def write(self, pipe: Pipe) -> None:
        await pipe.write(frames.RETRY)
        subscriber = Subscriber(self._feed)
        try:
            await self._meet(pipe, subscriber)
            while subscriber.overrun:  # more entries came than were buffered for it: read those too
                self.events.leave(subscriber)
                subscriber = Subscriber(self._feed)
                await self._meet(pipe, subscriber)
            await self._follow(pipe, subscriber)
        finally:
            self.events.leave(subscriber)

    async def _meet(self, pipe: Pipe, subscriber: Subscriber) -> None:
        """Subscribe from some offset on, and read the entries before that offset from the store."""
        self.events.join(subscriber)
        while not (await asyncio.wait({subscriber.joined}, timeout=KEEP_ALIVE))[0]:
            await pipe.write(frames.SILENCE)
        end = subscriber.joined.result()
        if self._place is None or ahead(self._place.cursor, end.cursor):
            await pipe.write(frames.mark(end) if self._place is None else frames.gap_frame(self._place, "ahead", end))
        else:
            await self._catch_up(pipe, self._place, end)
        self._place = end

    async def _catch_up(self, pipe: Pipe, place: JournalOffset, end: JournalOffset) -> None:
        if self.events.clock.now() - place.at > await self.events.engine.shortest_retention() - MARGIN:
            await pipe.write(frames.gap_frame(place, "pruned", place))
        since = 0 if self._caller.may("read") else self.events.clock.now() - REACH
        ended = False
        while not ended:
            async with self.events.reads:
                tail = await self.events.engine.tail(place.cursor, count=PAGE, until=end.cursor)
            if tail.entries and tail.entries[0].at < since:
                await pipe.write(frames.gap_frame(place, "too_old", end))
                return
            entries = [
                (entry, tail.cursor_at(index)) for index, entry in enumerate(tail.entries) if self._feed.filter in frames.passed_by(entry)
            ]
            place = end if tail.ended else JournalOffset(tail.entries[-1].at, tail.cursor)
            content, is_silent = b"", True
            async for events in frames.entry_frames(self._feed.frames, self.events.engine, entries, EVENTS):
                content += b"".join(events)
                if len(content) >= AT_ONCE:
                    await pipe.write(content)
                    content, is_silent = b"", False
            if content or is_silent:
                await pipe.write(content or frames.mark(place))
            ended = tail.ended

    async def _follow(self, pipe: Pipe, subscriber: Subscriber) -> None:
        """A subscriber that cannot keep up is disconnected, and reconnects to read the rest from the store."""
        while not subscriber.overrun:
            if content := await subscriber.take(KEEP_ALIVE):
                await pipe.write(content)
            elif not subscriber.overrun:  # nothing is in flight to this client, so its offset is the reader's
                await pipe.write(frames.mark(self.events.place))


class WrittenStream(Stream):
    """Events that a dialect writes itself, until it has no more."""

    def __init__(self, events: Events, caller: Caller, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(events, caller)
        self._chunks = chunks

    async def write(self, pipe: Pipe) -> None:
        async for chunk in self._chunks:
            await pipe.write(chunk)


class WatchStream(Stream):
    """One run, or a part of it, to its end."""

    def __init__(self, events: Events, caller: Caller, run: Run) -> None:
        super().__init__(events, caller)
        self._run = run
        self._bell = asyncio.Event()

    async def write(self, pipe: Pipe) -> None:
        if self._over:
            await pipe.answer_nothing()
            return
        await pipe.write(frames.RETRY)
        with self.events.watching(self._run.id, self._bell):
            silent_since = self.events.clock.monotonic()
            while not self._over:
                self._bell.clear()
                if news := b"".join(await self._look()):
                    await pipe.write(news)
                elif self.events.clock.monotonic() - silent_since > KEEP_ALIVE * 1000:
                    await pipe.write(frames.SILENCE)
                else:
                    await self._rest()
                    continue
                silent_since = self.events.clock.monotonic()

    @property
    def _over(self) -> bool:
        """Whether its end was sent."""
        raise NotImplementedError

    async def _look(self) -> Iterable[bytes]:
        """The events that the client does not have yet."""
        raise NotImplementedError

    async def _read(self, rev: int, line: tuple[int, int]) -> Moment:
        """The run as it is now, its changes after a revision and its lines after one."""
        async with self.events.reads:
            moment = await self.events.engine.moment(self._run, rev=rev, line=line, count=LINES)
        self._run = moment.run
        return moment

    async def _rest(self) -> None:
        """Wait until there may be news. Only a held run has lines and progress; the reader notices everything else."""
        pause = max(LOOK_EVERY, EACH * self.events.watched) if self._run.state in LIVE else LOOK_RARELY
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._bell.wait()


class RunStream(WatchStream):
    """One run, to its end."""

    def __init__(self, events: Events, caller: Caller, run: Run, place: RunOffset) -> None:
        super().__init__(events, caller, run)
        self._place = place
        self._progress = run.progress if run.state in ENDED else None

    @property
    def _over(self) -> bool:
        return self._run.state in ENDED and self._place.rev >= self._run.rev

    async def _look(self) -> Iterator[bytes]:
        return self._news(await self._read(self._place.rev, line_place(self._place.line)))

    def _news(self, moment: Moment) -> Iterator[bytes]:
        """Entries and lines in the order of their time; the end comes last."""
        entries = deque(moment.entries)
        for line in moment.lines:
            while entries and entries[0].at <= line.at and entries[0].state not in ENDED:
                yield self._status(entries.popleft())
            self._place = self._place._replace(line=line_cursor(line.attempt, line.n))
            yield frames.line_frame(line, self._place)
        if len(moment.lines) == LINES:
            return  # there may be more that is older than the remaining entries
        if moment.run.progress != self._progress:
            self._progress = moment.run.progress
            if self._progress is not None:
                yield frames.progress_frame(moment.run, self._progress, self._place)
        yield from map(self._status, entries)

    def _status(self, entry: Entry) -> bytes:
        self._place = self._place._replace(rev=entry.rev)
        return frames.status_frame(self._run, entry, self._place)


class AttemptStream(WatchStream):
    """One attempt of a run, in a dialect's words, to its end."""

    def __init__(self, events: Events, caller: Caller, run: Run, n: int, form: AttemptFrames, course: Course, place: AttemptOffset) -> None:
        super().__init__(events, caller, run)
        self._n, self._form, self._course, self._place = n, form, course, place

    @property
    def _over(self) -> bool:
        return self._course.ended and self._place.states >= len(self._course.events)

    async def _look(self) -> Iterator[bytes]:
        moment = await self._read(self._run.rev, (self._n, self._place.line))
        self._course = await self._form.course(self.events.engine, moment.run, self._n)
        return self._news(self._course, moment.lines)

    def _news(self, course: Course, lines: Sequence[LogLine]) -> Iterator[bytes]:
        """States and lines that the client does not have yet; the end comes last."""
        yield from self._states(len(course.events) - course.ended)
        for line in lines:
            if not course.has(line):
                break
            self._place = self._place._replace(line=line.n)
            yield frames.frame(*self._form.line(line), self._place)
        else:
            if len(lines) == LINES:
                return  # there may be more
        yield from self._states(len(course.events))

    def _states(self, upto: int) -> Iterator[bytes]:
        """The states before the upto-th."""
        for index in range(self._place.states, upto):
            self._place = self._place._replace(states=index + 1)
            if (event := self._course.events[index]) is not None:
                yield frames.frame(*event, self._place)
