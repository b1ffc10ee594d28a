"""The two stores: on the caller's thread, or for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from windlass.clock import Clock, nap
from windlass.errors import StoreError
from windlass.store.base import Runs, Statement, check_process
from windlass.store.hints import wait_anywhere
from windlass.store.sqlite.files import MEMORY, Path
from windlass.store.sqlite.hints import StoreHints
from windlass.store.sqlite.sessions import Batch, Outcome, Queries, Results, Session, open_lines, own_queries, plan

GROUP = 64  # batches in one commit
YIELD = 0.0005  # seconds in which other processes may take the write lock, between two commits


def _closed(path: str) -> StoreError:
    return StoreError(f"The store on {path} is closed.", hint="Open it again, or close it later.")


class BlockingSqlite:
    """A store that works on the caller's thread and never suspends; threads take turns."""

    def __init__(
        self, path: Path, clock: Clock, *, queries: Queries | None = None, steps: Sequence[str] | None = None, synchronous: str = "FULL"
    ) -> None:
        self._path, self._pid = os.fspath(path), os.getpid()
        self._queries = own_queries() if queries is None else queries
        self._turn = threading.Lock()
        self._line: Session | None
        [self._line] = open_lines(1, self._path, clock, self._queries, steps, synchronous)
        self._hints = StoreHints(self._path)

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        check_process(self._pid)
        batch = plan(self._queries, verb, statements)
        with self._turn:
            if self._line is None:
                raise _closed(self._path)
            [outcome] = self._line.serve((batch,))
            self._line.tidy()
        if isinstance(outcome, BaseException):
            raise outcome
        if batch.journals:
            self._hints.journaled()
        return outcome

    async def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork has nothing of its own to close
        self._hints.close()
        with self._turn:
            if self._line is not None:
                self._line.close()
            self._line = None

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics, in this process and in others."""
        if os.getpid() == self._pid:
            self._hints.wake(topics)

    def taken(self, runs: Runs) -> None:
        """No further waiters in this process need be woken for these runs."""
        self._hints.taken(runs)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics with a hint, as soon as there are any; none after this many seconds. Blocks, unless this thread runs an event loop."""
        check_process(self._pid)
        if self._hints.closed:
            raise _closed(self._path)
        return await wait_anywhere(self._hints.waiters(topics), topics, timeout)


class PendingBatch(NamedTuple):
    """A batch and its waiting caller."""

    batch: Batch
    future: asyncio.Future[Results]


def _settle(answers: Iterable[tuple[asyncio.Future[Results], Outcome]]) -> None:
    for future, outcome in answers:
        if future.done():  # the caller was cancelled
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _answer(jobs: Sequence[PendingBatch], outcomes: Sequence[Outcome]) -> None:
    """Deliver all outcomes, with one call for each event loop."""
    answers = defaultdict(list)
    for job, outcome in zip(jobs, outcomes, strict=True):
        answers[job.future.get_loop()].append((job.future, outcome))
    for loop, pairs in answers.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits there any more
            loop.call_soon_threadsafe(_settle, pairs)


class DbThread:
    """A database thread with its own queue: takes the waiting batches, runs them together, answers, and starts again."""

    def __init__(self, line: Session) -> None:
        self.line = line
        self._inbox: SimpleQueue[Sequence[PendingBatch] | None] = SimpleQueue()
        self._waiting: deque[PendingBatch] = deque()
        self._closing, self._open = threading.Lock(), True
        self._thread = threading.Thread(target=self._work, name="windlass-sqlite", daemon=True)
        self._thread.start()

    def post(self, jobs: Sequence[PendingBatch]) -> bool:
        """Accept jobs, to be run together where possible; False when the thread is closed."""
        with self._closing:  # so that nothing is queued after the end mark
            if self._open:
                self._inbox.put(jobs)
            return self._open

    def close(self) -> None:
        """Run what was accepted, then end; returns when that is done."""
        with self._closing:
            if self._open:
                self._inbox.put(None)
            self._open = False
        self._thread.join()

    def _work(self) -> None:
        while self._fetch():
            self._serve()
        self.line.close()

    def _fetch(self) -> bool:
        """Take all waiting batches, or the next one; False once closed and drained."""
        while not self._waiting or not self._inbox.empty():
            jobs = self._inbox.get()
            if jobs is None:
                self._inbox.put(None)  # nothing comes after it
                break
            self._waiting.extend(jobs)
        return bool(self._waiting)

    def _serve(self) -> None:
        """Run the first of the waiting batches, with those that can share its transaction."""
        raise NotImplementedError


class Writer(DbThread):
    """Combines waiting batches into one commit."""

    def __init__(self, line: Session, limit: int) -> None:
        self._limit = limit
        super().__init__(line)

    def _serve(self) -> None:
        jobs = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
        _answer(jobs, self.line.serve([job.batch for job in jobs]))
        self.line.tidy()
        if self._limit > 1 and (self._waiting or not self._inbox.empty()):
            nap(YIELD)


class Reader(DbThread):
    """Reads once for all identical reads."""

    def _serve(self) -> None:
        batch = self._waiting[0].batch
        jobs = [job for job in self._waiting if job.batch == batch]
        self._waiting = deque(job for job in self._waiting if job.batch != batch)
        _answer(jobs, self.line.serve((batch,)) * len(jobs))


class AsyncSqlite:
    """A store for event loops: one thread combines waiting batches into one commit, another one reads meanwhile."""

    def __init__(
        self, path: Path, clock: Clock, *, queries: Queries | None = None, steps: Sequence[str] | None = None, synchronous: str = "FULL"
    ) -> None:
        self._path, self._pid = os.fspath(path), os.getpid()
        self._queries = own_queries() if queries is None else queries
        in_memory = self._path == MEMORY  # which belongs to its one connection, and has no commit worth sharing
        lines = open_lines(1 if in_memory else 2, self._path, clock, self._queries, steps, synchronous)
        self._writer = Writer(lines[0], limit=1 if in_memory else GROUP)
        self._reader = self._writer if in_memory else Reader(lines[1])
        self._hints = StoreHints(self._path)
        self._turns: dict[asyncio.AbstractEventLoop, list[PendingBatch]] = {}  # the writes requested in this turn of a loop

    @property
    def commits_together(self) -> bool:
        """Whether the batches of one turn of a loop are one commit, in which each reads what those before it have written."""
        return self._writer is not self._reader

    @property
    def commits(self) -> int:
        """How many transactions have been committed; group commit makes it smaller than the number of batches."""
        return self._writer.line.commits

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        check_process(self._pid)
        batch = plan(self._queries, verb, statements)
        loop = asyncio.get_running_loop()
        job = PendingBatch(batch, loop.create_future())
        if not batch.writes:
            self._post(self._reader, [job])
        elif loop in self._turns:
            self._turns[loop].append(job)
        else:
            self._turns[loop] = [job]
            loop.call_soon(self._end_turn, loop)
        answers = await job.future
        if batch.journals:
            self._hints.journaled()
        return answers

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if jobs := self._turns.pop(loop, None):
            self._post(self._writer, jobs)

    def _post(self, desk: DbThread, jobs: Sequence[PendingBatch]) -> None:
        if not desk.post(jobs):
            _settle((job.future, _closed(self._path)) for job in jobs)

    async def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork has nothing of its own to close
        self._end_turn(asyncio.get_running_loop())  # accepted batches are run
        self._hints.close()
        for desk in (self._writer, self._reader):
            await asyncio.to_thread(desk.close)

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics, in this process and in others."""
        if os.getpid() == self._pid:
            self._hints.wake(topics)

    def taken(self, runs: Runs) -> None:
        """No further waiters in this process need be woken for these runs."""
        self._hints.taken(runs)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics with a hint, as soon as there are any; none after this many seconds."""
        check_process(self._pid)
        if self._hints.closed:
            raise _closed(self._path)
        return await self._hints.waiters(topics).wait(topics, timeout)
