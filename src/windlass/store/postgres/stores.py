"""The two stores. Handling of connections, errors and the schema is shared, in `_Postgres`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from windlass.clock import Clock
from windlass.errors import (
    BadInput,
    OutcomeUnknown,
    StoreError,
)
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.base import JOURNAL, LOOK_EVERY, Runs, Statement, check_process, refuse_newer, refuse_older, run_sync
from windlass.store.hints import ANYTHING, Paced
from windlass.store.postgres.hints import (
    BURST,
    HINT_EVERY,
    NEWS,
    NOBODY,
    NOTIFY,
    NOTIFY_JOURNAL,
    HintPoller,
    HintReceiver,
    JournalListener,
    Listener,
    payloads,
)
from windlass.store.postgres.wire import (
    APPLIED,
    BEGIN,
    COMMIT,
    HAS_SCHEMA,
    IN_TRANSACTION,
    JSON,
    MIGRATE_ALONE,
    ROLLBACK,
    TIME,
    VERSION,
    WHO,
    AnySession,
    AsyncSession,
    Backend,
    BlockingSession,
    PipelinedBatch,
    Queries,
    Results,
    Trial,
    WireStatement,
    compiled,
    configure,
    run_batch,
    translated,
)

T = TypeVar("T")

OLDEST_SERVER = 14
PATIENCE = 30.0  # seconds of waiting for an unreachable server
SIZE = 10  # connections at once
ALIGN_EVERY = 60_000  # milliseconds between two reads of the server's clock
SET = 1_000  # milliseconds by which the wall clock moves against the monotonic one when it was set

# Hot plans must hold right after a bulk load and before any ANALYZE, so the planner gets no choice that statistics decide.
_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
}
# A server that is gone without notice is detected within half a minute.
_CONNECTION = {
    "application_name": "windlass",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class _Postgres:
    """Shared by both stores: a pool of connections, retries, the schema, the server's clock."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        queries: Queries | None = None,
        steps: Sequence[str] | None = None,
        size: int = SIZE,
        patience: float = PATIENCE,
        pooled: bool = False,
        listen: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if size < 1:
            raise BadInput(f"A store with {size} connections can do nothing.", hint="Give it one at least.")
        self._parameters = _parameters(url)
        # Through a pooler that shares connections by transaction, there are no notifications.
        self._listening = _parameters(listen, "to listen at") if listen else None if pooled else self._parameters
        self._clock, self._patience, self._size, self._pid = clock, patience, size, os.getpid()
        self._queries = compiled(queries)
        self._schema = sql.migrations("postgres") if steps is None else list(steps)
        self._pooled = pooled
        # Through a pooler, a session's settings would reach other programs.
        parameters = _SETTINGS | dict(settings or {})
        self._opening = (configure(parameters, local=True),) if pooled else ()
        self._configuring = () if pooled else (configure(parameters, local=False),)
        self._unlimited = () if pooled else (configure(parameters | {"statement_timeout": "0"}, local=False),)
        self._idle: list[AnySession] = []
        self._checked = self._closed = False
        self.behind_pooler = False  # although `pooled` is not set
        self._align: Callable[[int], None] | None = getattr(clock, "align", None)
        self._wall: Callable[[], int] = getattr(clock, "wall", clock.now)
        self._align_at, self._scale = clock.monotonic(), 0
        self._owed: set[str] = set()
        self._journaled = Paced(self._say_journal)
        self._start()

    def _start(self) -> None:
        raise NotImplementedError

    async def _connect(self) -> AnySession:
        raise NotImplementedError

    async def _acquire(self) -> None:
        """Wait until fewer connections than allowed are in use."""
        raise NotImplementedError

    def _release(self) -> None:
        """This connection is no longer in use."""
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        batch = PipelinedBatch(self._queries, verb, statements)
        if batch.alone:
            return batch.answers(await self._alone(batch))
        rows = await self._tried(lambda session: run_batch(session, batch, self._opening)) if batch.steps else []
        if batch.journals:
            self._journaled()
        return batch.answers(rows)

    async def _alone(self, batch: PipelinedBatch) -> Results:
        """Run a long statement on a separate connection without a time limit: with one, it would be cut off and restarted for ever."""
        self._check_open()
        try:
            session = await self._connect()
            try:
                await session.say(*self._unlimited)
                return await session.say(*batch.steps)
            finally:
                await session.close()
        except psycopg.Error as error:
            raise translated(error) from error

    async def open(self) -> Self:
        """Connect to the server and check the schema now, not at the first batch."""
        try:
            await self._tried(lambda session: session.say())
        except BaseException:
            await self.close()
            raise
        return self

    def taken(self, runs: Runs) -> None:
        """A notification names no runs, so all waiters are woken at once."""

    async def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                await self._idle.pop().close()

    async def _tried(self, use: Callable[[AnySession], Awaitable[T]]) -> T:
        """Use a session. If that failed and nothing can have been written, retry, within patience."""
        trial = Trial(self._clock, self._patience)
        while True:
            self._check_open()
            try:
                return await self._in_turn(use)
            except psycopg.Error as error:
                pause = trial.pause_after(error)
            await self._pause(pause)

    def _gone(self) -> bool:
        return self._closed or os.getpid() != self._pid

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._closed:
            raise StoreError("This store is closed.", hint="Open it again, or close it later.")

    async def _in_turn(self, use: Callable[[AnySession], Awaitable[T]]) -> T:
        """Use a session once, as soon as fewer than allowed are in use."""
        await self._acquire()
        try:
            return await self._once(use)
        finally:
            self._release()

    async def _once(self, use: Callable[[AnySession], Awaitable[T]]) -> T:
        session = await self._take()
        try:
            if not self._checked:
                await self._check_in(session)
                self._checked = True
            await self._measure_offset(session)
            return await use(session)
        except OutcomeUnknown as unknown:
            if not unknown.settled:
                await session.close()
                unknown.settled = await self._ended(session.backend)
            raise
        finally:
            await self._give_back(session)

    async def _ended(self, backend: Backend | None) -> bool:
        """Whether the server process of a broken connection is known to be gone: then what it has not committed never will be."""
        trial = Trial(self._clock, self._patience)
        with suppress(StoreError):  # the time for retries is over
            while backend is not None:
                error = psycopg.OperationalError("the former connection is still being served")
                try:
                    if await self._end(backend):
                        return True
                except psycopg.Error as trouble:
                    error = psycopg.OperationalError(str(trouble))
                await self._pause(trial.pause_after(error))
        return False

    async def _end(self, backend: Backend) -> bool:
        session = await self._take()
        try:
            [[answer]] = await session.say(backend.end())
        finally:
            await self._give_back(session)
        return backend.is_gone(*answer)

    async def _take(self) -> AnySession:
        while self._idle:
            try:
                session = self._idle.pop()
            except IndexError:  # another thread was first
                break
            if not session.stale():
                return session
            await session.close()
        session = await self._connect()
        try:
            await session.say(*self._configuring)
            if not self._pooled:
                await self._meet(session)
        except BaseException:
            await session.close()
            raise
        return session

    async def _meet(self, session: AnySession) -> None:
        """Learn which server process serves a connection; if this user may not, a broken connection leaves its outcome unsettled."""
        with suppress(psycopg.errors.InsufficientPrivilege):
            [rows] = await session.say(WHO)
            for row in rows:
                session.meet(*row)
                self.behind_pooler = session.backend is None

    async def _give_back(self, session: AnySession) -> None:
        try:
            if session.state in IN_TRANSACTION:
                with suppress(psycopg.Error):
                    await session.say(ROLLBACK)
        finally:
            if session.state == pq.TransactionStatus.IDLE and not self._closed:
                self._idle.append(session)
            else:
                await session.close()

    async def _hint(self) -> None:
        """Send pending hints. A lost hint costs only time."""
        topics, self._owed = self._owed, set()
        if not topics or self._closed:
            return
        step = WireStatement(NOTIFY, (payloads(frozenset(topics)),), (JSON,))  # the current one: a late thread may still add to it
        with suppress(psycopg.Error, StoreError):
            await self._in_turn(lambda session: session.say(step))

    def _say_journal(self) -> None:
        raise NotImplementedError

    async def _hint_journal(self) -> None:
        """Notify readers of the journal that it has grown; if there are none, not again for a while."""
        if self._gone():
            return
        with suppress(psycopg.Error, StoreError):
            [rows] = await self._in_turn(lambda session: session.say(WireStatement(NOTIFY_JOURNAL)))
            if not rows:
                self._journaled.rest(NOBODY)

    async def _measure_offset(self, session: AnySession) -> None:
        """Align the clock with the server's at intervals; at once if this machine's own was set, or slept."""
        if self._align is None:
            return
        ticks = self._clock.monotonic()
        scale = self._wall() - ticks
        if ticks < self._align_at and abs(scale - self._scale) <= SET:
            return
        self._align_at, self._scale = ticks + ALIGN_EVERY, scale
        samples = []
        for _ in range(3):
            begin = self._clock.monotonic()
            [[(server,)]] = await session.say(TIME)
            received_at = self._clock.monotonic()
            samples.append((received_at - begin, server - (begin + received_at) // 2))
        self._align(min(samples)[1] + self._clock.monotonic())  # the shortest round trip is the most exact

    async def _check_in(self, session: AnySession) -> None:
        """Create the whole schema in an empty database; refuse an unsuitable server or schema."""
        _check_server(session.connection.info.server_version)
        if await _version_of(session) == 0:
            await self._apply(session, 1, len(self._schema))
        version, newest = await _version_of(session), len(self._schema)
        refuse_older(version, newest, "The database")
        refuse_newer(version, newest, "The database")

    async def _apply(self, session: AnySession, first: int, last: int) -> None:
        """Apply some steps in one transaction, unless another process was first."""
        await session.say(BEGIN, *self._opening, *MIGRATE_ALONE)
        if await _version_of(session) == first - 1:
            for number in range(first, last + 1):
                if number > 1 and FAULTS.on:
                    FAULTS.hit("migrate.between_steps")
                await session.execute(self._schema[number - 1].encode())
                await session.say(APPLIED.bind("", {"version": number, "now": self._clock.now()}))
        await session.say(COMMIT)


def _parameters(url: str, purpose: str = "of the database") -> dict[str, Any]:
    try:
        return _CONNECTION | conninfo_to_dict(url) | {"client_encoding": "utf8"}
    except psycopg.ProgrammingError:  # its message may show a part of the password
        hint = "Write it as postgresql://user:password@host/database; in a password, write / : @ and % by their codes, such as %2F."
        raise BadInput(f"Cannot read the address {purpose}.", hint=hint) from None


def _check_server(version: int) -> None:
    if version < OLDEST_SERVER * 10_000:
        raise StoreError(f"The server is PostgreSQL {version // 10_000}.", hint=f"windlass needs {OLDEST_SERVER} or newer.")


async def _version_of(session: AnySession) -> int:
    """The version of the schema; 0 when there is none."""
    [[(exists,)]] = await session.say(HAS_SCHEMA)
    if not exists:
        return 0
    [[(version,)]] = await session.say(VERSION)
    return int(version)


class BlockingPostgres(_Postgres):
    """A store that works on the caller's thread and never suspends; each thread gets a connection."""

    def _start(self) -> None:
        self._free, self._closing = SimpleQueue[None](), threading.Event()
        for _ in range(self._size):
            self._free.put(None)
        self._hint_at = self._clock.monotonic()
        run_sync(self.open())

    async def _connect(self) -> BlockingSession:
        return BlockingSession(psycopg.Connection.connect(autocommit=True, **self._parameters), pooled=self._pooled)

    async def _acquire(self) -> None:
        self._free.get()  # several times as fast as a semaphore

    def _release(self) -> None:
        self._free.put(None)

    async def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics. If there are too many hints, some are sent with the next ones."""
        if self._gone():
            return
        if JOURNAL in topics:
            self._journaled()
            topics = set(topics) - {JOURNAL}
        if not topics:
            return
        self._owed.update(topics)
        now, every = self._clock.monotonic(), round(HINT_EVERY * 1000)
        if now >= self._hint_at:
            self._hint_at = max(self._hint_at, now - BURST * every) + every
            run_sync(self._hint())

    def _say_journal(self) -> None:
        run_sync(self._hint_journal())

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """Gets no hints and returns after 50 ms at most: polling costs less than a connection for each waiting thread."""
        self._check_open()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._closing.wait(min(timeout, LOOK_EVERY))
        else:
            await asyncio.sleep(min(timeout, LOOK_EVERY))
        return set()

    async def close(self) -> None:
        check_process(self._pid)
        await self._hint()
        self._journaled.settle()
        self._closing.set()
        await super().close()


class _Loop:
    """The state of one event loop: its limit of connections, the task that sends its hints, and the one that receives others'."""

    def __init__(self, size: int, receiver: HintReceiver, journal: HintReceiver) -> None:
        self.limiter, self.closing = asyncio.Semaphore(size), asyncio.Event()
        self.hinting: asyncio.Task[None] | None = None
        self.saying: asyncio.Task[None] | None = None  # the journal has grown
        self.unsaid = False  # it has grown again since
        self.receiver, self.journal = receiver, journal

    async def close(self) -> None:
        self.closing.set()
        for receiver in {self.receiver, self.journal}:
            await receiver.close()
        for task in (self.hinting, self.saying):
            if task is not None:
                await task


class AsyncPostgres(_Postgres):
    """A store for event loops, any number of them. It opens at its first batch, or by `await AsyncPostgres(...).open()`."""

    def _start(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._entering = threading.Lock()

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        return self._loops.get(loop) or self._enter(loop)

    def _enter(self, loop: asyncio.AbstractEventLoop) -> _Loop:
        """A loop is used for the first time; closed loops are forgotten, with what waited in them."""
        here = _Loop(self._size, *self._hearings())
        with self._entering:
            self._loops = {one: its for one, its in self._loops.items() if not one.is_closed()} | {loop: here}
        return here

    def _hearings(self) -> tuple[HintReceiver, HintReceiver]:
        """The receivers of hints, and of those of the journal."""
        if self._listening is None:
            looker = HintPoller(self._look, self._pause)
            return looker, looker
        apart = self._listening is not self._parameters
        return Listener(self._listening, self._pause, apart=apart), JournalListener(self._listening, self._pause)

    async def _connect(self) -> AsyncSession:
        return AsyncSession(await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters), pooled=self._pooled)

    async def _acquire(self) -> None:
        await self._here().limiter.acquire()

    def _release(self) -> None:
        self._here().limiter.release()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._here().closing.wait(), seconds)

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics: at once, or together with others a little later."""
        if self._gone():
            return
        if JOURNAL in topics:
            self._journaled()
            topics = set(topics) - {JOURNAL}
        if not topics:
            return
        self._owed.update(topics)
        here = self._here()
        here.receiver.deliver(topics)
        if here.hinting is None or here.hinting.done():
            here.hinting = asyncio.get_running_loop().create_task(self._keep_hinting())

    def _say_journal(self) -> None:
        here = self._here()
        here.receiver.deliver((JOURNAL,))
        here.unsaid = here.saying is not None and not here.saying.done()
        if not here.unsaid:
            here.saying = asyncio.get_running_loop().create_task(self._hint_journal())
            here.saying.add_done_callback(lambda task: self._journaled() if here.unsaid and not task.cancelled() else None)

    async def _keep_hinting(self) -> None:
        while self._owed and not self._closed:
            await self._hint()
            await self._pause(HINT_EVERY)

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        """The topics with a hint, as soon as there are any; none after this many seconds."""
        self._check_open()
        here = self._here()
        return await (here.journal if JOURNAL in topics else here.receiver).wait(topics, timeout)

    async def _look(self, seen: str | None) -> tuple[str, set[str]]:
        """See `HintPoller`. Entries that an earlier snapshot could not see are new."""
        news = () if seen is None else (Statement("news", {"seen": seen, "count": NEWS}),)
        [[now], *answers] = await self.batch("read", (Statement("snapshot"), *news))
        rows = [row for answer in answers for row in answer]
        if sum(count for _, count in rows) >= NEWS:
            return now[0], {ANYTHING}
        return now[0], {topic for topic, _ in rows if topic is not None} | ({JOURNAL} if rows else set())

    async def close(self) -> None:
        check_process(self._pid)
        self._journaled.settle()
        own = asyncio.get_running_loop()
        for loop, its in self._loops.items():
            if loop is own:
                await its.close()
            elif loop.is_running():  # on another thread, which need not be awaited
                asyncio.run_coroutine_threadsafe(its.close(), loop)
        await super().close()


class _Migration(BlockingPostgres):
    before = after = 0

    async def _check_in(self, session: AnySession) -> None:
        _check_server(session.connection.info.server_version)
        self.before = await _version_of(session)
        refuse_newer(self.before, len(self._schema), "The database")
        for number in range(self.before + 1, len(self._schema) + 1):
            await self._apply(session, number, number)
        self.after = await _version_of(session)


def migrate(
    url: str, clock: Clock, steps: Sequence[str] | None = None, *, patience: float = PATIENCE, pooled: bool = False
) -> tuple[int, int]:
    """Apply the steps that are missing, each with its version in one transaction; the versions before and after."""
    migration = _Migration(url, clock, steps=steps, patience=patience, pooled=pooled)
    run_sync(migration.close())
    return migration.before, migration.after
