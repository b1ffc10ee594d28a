"""The store in PostgreSQL: any number of processes on any number of machines.

`AsyncPostgres` and `BlockingPostgres` are the permitted pair of twins. What is said to the server is one generator,
`_Session.converse`, that neither awaits nor blocks; what is done about errors is written once, in `_Postgres`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import select
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple, Self, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from windlass.clock import Clock
from windlass.errors import (
    BadInput,
    Conflict,
    OutcomeUnknown,
    SchemaMismatch,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
    WindlassError,
    WrongProcess,
)
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.base import Row, Statement, Value, run_sync
from windlass.store.sql import Query

T = TypeVar("T")

Queries = Mapping[str, Query]
Results = list[list[Row]]
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

OLDEST_SERVER = 14
PATIENCE = 30.0  # seconds of waiting for a server that is away
SIZE = 10  # connections at once
TRIES = 8  # of a batch that lost a deadlock
ALIGN_EVERY = 60_000  # milliseconds between two looks at the server's clock
HINT_EVERY = 0.005  # seconds between two notifications of one process
LINGER = 5.0  # seconds the listener stays when nobody waits any more

# Hot plans must hold right after a bulk load and before any ANALYZE, so the planner is left no choice that statistics decide.
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
# A server that is gone without a word is noticed within half a minute.
_CONNECTION = {
    "application_name": "windlass",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


# Errors

_WAIT = "Try again. If it stays, look for a long transaction in pg_stat_activity."
_SCHEMA = "Run `windlass migrate`; if it says that nothing is missing, check the search_path of this user."
_DISK = "Look at the server's log, check its disk, and restore a backup if it is damaged."
_BUG = "This is a bug in windlass, or the tables were changed by hand; please report it with this text."

# By the whole code first, then by its class.
_MEANING: dict[str, tuple[type[WindlassError], str]] = {
    "23505": (Conflict, "Somebody else was first: read again, then decide."),
    "40001": (StoreBusy, _WAIT),
    "40P01": (StoreBusy, _WAIT),
    "55P03": (StoreBusy, _WAIT),
    "57014": (StoreBusy, _WAIT),
    "53100": (StoreFull, "Free some space on the server's disk, then try again; nothing was written."),
    "25006": (StoreUnreachable, "This server only reads. Name the primary; with several hosts, add target_session_attrs=read-write."),
    "25P02": (StoreError, "Your transaction has already failed: roll it back, then begin again."),
    "42P01": (SchemaMismatch, _SCHEMA),
    "42703": (SchemaMismatch, _SCHEMA),
    "42501": (StoreError, "Grant this user all rights on the tables of windlass, or connect as the user who made them."),
    "22": (BadInput, "PostgreSQL cannot store this value; change it."),
    "58": (StoreBroken, _DISK),
    "XX": (StoreBroken, _DISK),
}
_AGAIN = ("40001", "40P01")
# The server is going, coming, or out of connections, or has given this one up: another connection may do better.
_GONE = ("57P01", "57P02", "57P03", "57P05", "25P03", "53300")
# What waiting does not mend. A connection that fails has no code, so this knows English only; elsewhere it costs the patience.
_HOPELESS = re.compile(
    r"authentication failed|does not exist|no password supplied|no pg_hba.conf entry|not permitted to log in|certificate"
)


def _lost(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _GONE or error.sqlstate.startswith("08")


def _told(error: psycopg.Error) -> WindlassError:
    """What an error of the server means to the caller; nothing was written."""
    if _lost(error):
        return StoreUnreachable(
            f"There is no connection to PostgreSQL: {_line(error)}.", hint="Check that it runs and that its address is right."
        )
    code = error.sqlstate or ""
    kind, hint = _MEANING.get(code) or _MEANING.get(code[:2]) or (StoreError, _BUG)
    return kind(f"PostgreSQL says: {_line(error)}.", hint=hint)


def _line(error: psycopg.Error) -> str:
    # Without the details: they show values, and errors are logged.
    return " ".join((error.diag.message_primary or str(error)).split()).removesuffix(".") or type(error).__name__


class _Trial:
    """How often and how long a call has been tried, and whether to try again."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock, self._patience = clock, patience
        self._since, self._paused, self._tries = clock.monotonic(), 0.0, 0

    def pause_after(self, error: psycopg.Error) -> float:
        """Seconds to wait before the next try; raises what the caller must be told when there is to be none."""
        self._tries += 1
        if _lost(error):
            again, longest = self._waited() < self._patience and not _HOPELESS.search(str(error)), 1.0
        else:
            again, longest = error.sqlstate in _AGAIN and self._tries < TRIES, 0.2
        if not again:
            raise _told(error) from error
        pause: float = min(0.005 * 2 ** min(self._tries, 10), longest) * (0.5 + self._clock.chance() / 2)
        self._paused += pause
        return pause

    def _waited(self) -> float:
        # Pauses are added up too: a manual clock stands still.
        return max(self._paused, (self._clock.monotonic() - self._since) / 1000)


# What is said


class _Step(NamedTuple):
    """One statement with its values, as it goes over the wire."""

    text: bytes
    values: Sequence[bytes | None] = ()
    types: tuple[int, ...] = ()
    name: str = ""
    writes: bool = False


_BEGIN = _Step(b"BEGIN ISOLATION LEVEL READ COMMITTED")
_BEGIN_READING = _Step(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = _Step(b"COMMIT")
_ROLLBACK = _Step(b"ROLLBACK")
_ROLLBACK_OURS = _Step(b"ROLLBACK TO SAVEPOINT windlass")
_RELEASE_OURS = _Step(b"RELEASE SAVEPOINT windlass")
_TIME = _Step(b"select (extract(epoch from clock_timestamp()) * 1000)::bigint")
# Not to_regclass: while waiting for the lock it would go on believing what it had found before.
_HAS_SCHEMA = _Step(b"select count(*) > 0 from pg_catalog.pg_class where relname = 'schema_version' and pg_table_is_visible(oid)")
_VERSION = _Step(b"select coalesce(max(version), 0) from schema_version")
_MIGRATE_ALONE = (
    _Step(b"select set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)"),
    _Step(b"select pg_advisory_xact_lock(2003398244, 1)"),
)
# Waiters hold a shared lock: when the exclusive one can be had, nobody waits. A hint is not worth a flush of the log.
_NOTIFY = (
    b"select set_config('synchronous_commit', 'off', true), pg_notify('windlass', value) from json_array_elements_text($1) "
    b"where not pg_try_advisory_xact_lock(2003398244, 2)"
)
_LISTEN = b"listen windlass; select pg_advisory_lock_shared(2003398244, 2)"

# No reply before the log is on disk: where the server would not wait for that, we ask it to.
_CONFIGURE = (
    b"select set_config('synchronous_commit', 'on', $2) where current_setting('synchronous_commit') = 'off' "
    b"union all select set_config(key, value, $2) from json_each_text($1)"
)

_BOOL, _INT8, _JSON, _UNKNOWN = 16, 20, 114, 0
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


class _Compiled(NamedTuple):
    """A query in PostgreSQL's own form, and the names of its values in order; no text where it is for other databases only."""

    text: bytes
    names: tuple[str, ...]
    writes: bool

    def bind(self, name: str, values: Mapping[str, Value]) -> _Step:
        bound = [values[one] for one in self.names]
        # One type for all integers, so that one text is one plan.
        types = tuple(_INT8 if isinstance(value, int) else _UNKNOWN for value in bound)
        return _Step(self.text, [_encoded(value) for value in bound], types, name, self.writes)


def _encoded(value: Value) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, int):
        return b"%d" % value
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"The text {value[:40]!r} has half a character.", hint="Remove the lone surrogate.") from error
    if b"\0" in data:
        raise BadInput(f"The text {value[:40]!r} has a NUL character, which PostgreSQL cannot store.", hint="Remove it.")
    return data


def _compile(query: Query) -> _Compiled:
    names: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}" if found[1] else "%"

    text = _PLACEHOLDER.sub(numbered, query.text)
    return _Compiled(text.encode(), tuple(names), query.writes)


def _compiled(queries: Queries | None) -> Mapping[str, _Compiled]:
    return _own_queries() if queries is None else {name: _compile(query) for name, query in queries.items()}


@functools.cache
def _own_queries() -> Mapping[str, _Compiled]:
    return {name: _compile(query) for name, query in sql.load("postgres").items()}


class _Batch:
    """What one call asks for. A name that no database knows is a KeyError before anything happens."""

    def __init__(self, queries: Mapping[str, _Compiled], verb: str, statements: Sequence[Statement]) -> None:
        self.verb = verb
        self._asked = [queries[name].bind(name, values) for name, values in statements]
        self.steps = [step for step in self._asked if step.text]
        self.writes = any(step.writes for step in self.steps)

    def answers(self, rows: Results) -> Results:
        """The rows of each statement asked for; none for those of other databases."""
        given = iter(rows)
        return [next(given) if step.text else [] for step in self._asked]


class _Whole(Loader):
    """`sum` of integers is a decimal number in PostgreSQL, and an integer everywhere else."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_loader("numeric", _Whole)

_APPLIED = _compile(Query("insert into schema_version (version, applied_at) values (%(version)s, %(now)s)", writes=True))
_IN_TRANSACTION = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


class _Expected(NamedTuple):
    """An answer to come: to which step, and what it will have prepared."""

    place: int
    key: tuple[bytes, tuple[int, ...]] | None = None
    name: bytes = b""


class _Session:
    """One connection and the statements prepared on it."""

    adapters = _ADAPTERS

    def __init__(self, connection: AnyConnection, *, prepare: bool) -> None:
        self.connection: psycopg.BaseConnection[Any] = connection
        self.pgconn = connection.pgconn
        self.lost = False
        self._prepare, self._count = prepare, 0
        self._prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._loader = Transformer(self)

    @property
    def state(self) -> pq.TransactionStatus:
        """Where it stands; unknown when it can no longer be used."""
        if self.lost or self.pgconn.status != pq.ConnStatus.OK or self.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            return pq.TransactionStatus.UNKNOWN
        return pq.TransactionStatus(self.pgconn.transaction_status)

    def stale(self) -> bool:
        """Whether the server has said something although nobody asked: as a rule, goodbye. Costs no round trip."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    def converse(self, steps: Sequence[_Step], commit_at: int | None) -> PQGen[Results]:
        """Send all steps at once, then take all answers; `commit_at` is the place of the step that commits.

        psycopg's own pipeline waits once for each statement: four of them in a transaction take 0.9 ms on an event loop over
        a unix socket, 0.25 ms here.
        """
        results: dict[int, list[Row]] = {}
        failed: tuple[int, psycopg.Error] | None = None  # the first error; after it the server skips the rest
        try:
            self.pgconn.enter_pipeline_mode()
            expected = self._send(steps)
            while self.pgconn.flush():
                if (yield Wait.RW) & Ready.R:
                    self.pgconn.consume_input()
            for place, key, name in expected:
                result = yield from _answer(self.pgconn)
                if result.status == pq.ExecStatus.FATAL_ERROR:
                    failed = failed or (place, error_from_result(result))
                elif result.status == pq.ExecStatus.TUPLES_OK:
                    results[place] = self._rows(result)
                elif result.status == pq.ExecStatus.COMMAND_OK and key:
                    self._prepared[key] = name
            self.pgconn.exit_pipeline_mode()
        except psycopg.OperationalError as error:
            self.lost = True
            failed = failed or (len(steps), error)
        if failed:
            raise self._verdict(*failed, commit_at)
        return [results.get(place, []) for place in range(len(steps))]

    def _send(self, steps: Sequence[_Step]) -> list[_Expected]:
        expected = []
        for place, step in enumerate(steps):
            if self._prepare:
                key = step.text, step.types
                if (name := self._prepared.get(key)) is None:
                    self._count += 1
                    name = b"windlass%d" % self._count
                    self.pgconn.send_prepare(name, step.text, step.types)
                    expected.append(_Expected(place, key, name))
                self.pgconn.send_query_prepared(name, step.values)
            else:
                self.pgconn.send_query_params(step.text, step.values, step.types)
            expected.append(_Expected(place))
        self.pgconn.pipeline_sync()
        return [*expected, _Expected(len(steps))]

    def _rows(self, result: PGresult) -> list[Row]:
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)

    def _verdict(self, place: int, error: psycopg.Error, commit_at: int | None) -> Exception:
        """The error itself when nothing can have been committed; else that it is unknown."""
        if not (self.lost or _lost(error)):
            return error
        self.lost = True
        # The server answers in order: what it refused before the commit, it refused before it committed. A line that
        # broke without a word proves nothing, because answers are held back until the end.
        if commit_at is None or (error.sqlstate is not None and place < commit_at):
            return error
        unknown = OutcomeUnknown(f"The connection broke while committing: {_line(error)}.", hint="Ask by key whether it happened.")
        unknown.__cause__ = error
        return unknown


def _answer(pgconn: PGconn) -> PQGen[PGresult]:
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None:
            return result
        if pgconn.status != pq.ConnStatus.OK:  # else it was the mark between two answers
            raise psycopg.OperationalError("the connection is lost")


class _AsyncSession(_Session):
    connection: psycopg.AsyncConnection[Any]

    async def say(self, *steps: _Step, commit_at: int | None = None) -> Results:
        async with self.connection.lock:
            return await self.connection.wait(self.converse(steps, commit_at))

    async def execute(self, script: bytes) -> None:
        await self.connection.execute(script)

    async def close(self) -> None:
        await self.connection.close()


class _BlockingSession(_Session):
    connection: psycopg.Connection[Any]

    async def say(self, *steps: _Step, commit_at: int | None = None) -> Results:
        with self.connection.lock:
            return self.connection.wait(self.converse(steps, commit_at))

    async def execute(self, script: bytes) -> None:
        self.connection.execute(script)

    async def close(self) -> None:
        self.connection.close()


_AnySession = _AsyncSession | _BlockingSession


async def _run(session: _AnySession, batch: _Batch, opening: Sequence[_Step] = ()) -> Results:
    """Run a batch in a transaction of its own; a single statement needs none said, unless something is to be said before it."""
    if batch.writes and FAULTS.on:
        return await _run_slowly(session, batch, opening)
    if len(batch.steps) == 1 and not opening:
        return await session.say(*batch.steps, commit_at=1 if batch.writes else None)
    before = (_BEGIN if batch.writes else _BEGIN_READING, *opening)
    commit_at = len(before) + len(batch.steps)
    rows = await session.say(*before, *batch.steps, _COMMIT, commit_at=commit_at if batch.writes else None)
    return rows[len(before) : commit_at]


async def _run_slowly(session: _AnySession, batch: _Batch, opening: Sequence[_Step]) -> Results:
    FAULTS.hit(f"{batch.verb}.before_begin")
    await session.say(_BEGIN, *opening)
    rows = await _step_by_step(session, batch)
    FAULTS.hit(f"{batch.verb}.before_commit")
    await session.say(_COMMIT, commit_at=0)
    try:
        FAULTS.hit(f"{batch.verb}.after_commit")
    except StoreError as error:
        raise OutcomeUnknown(error.message, hint=error.hint) from error  # whatever was injected: it is committed
    return rows


async def _step_by_step(session: _AnySession, batch: _Batch) -> Results:
    rows = []
    for step in batch.steps:
        rows += await session.say(step)
        if step.writes:
            FAULTS.hit(f"{batch.verb}.after_{step.name}")
    return rows


# Stores


class _Postgres:
    """What both stores do: connections kept for use, trying again, the schema, the server's clock."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        queries: Queries | None = None,
        steps: Sequence[str] | None = None,
        size: int = SIZE,
        patience: float = PATIENCE,
        prepare: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._parameters = _parameters(url)
        self._clock, self._patience, self._size, self._pid = clock, patience, size, os.getpid()
        self._queries = _compiled(queries)
        self._schema = sql.migrations("postgres") if steps is None else list(steps)
        self._prepare = prepare
        # Behind a pooler that shares connections by transaction, a session's settings would reach other programs.
        self._opening = () if prepare else (_configuration(settings, local=True),)
        self._configuring = (_configuration(settings, local=False),) if prepare else ()
        self._idle: list[_AnySession] = []
        self._checked = self._closed = False
        self._align_at = clock.monotonic()
        self._owed: set[str] = set()
        self._start()

    def _start(self) -> None:
        raise NotImplementedError

    async def _connect(self) -> _AnySession:
        raise NotImplementedError

    def _slot(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        batch = _Batch(self._queries, verb, statements)
        rows = await self._tried(lambda session: _run(session, batch, self._opening)) if batch.steps else []
        return batch.answers(rows)

    async def open(self) -> Self:
        """Reach the server and check the schema now, not at the first batch."""
        try:
            await self._tried(lambda session: session.say())
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                await self._idle.pop().close()

    async def _tried(self, use: Callable[[_AnySession], Awaitable[T]]) -> T:
        """Use a session. When that failed and nothing can have been written, try again, within patience."""
        trial = _Trial(self._clock, self._patience)
        while True:
            self._check_open()
            try:
                async with self._slot():
                    return await self._once(use)
            except psycopg.Error as error:
                pause = trial.pause_after(error)
            await self._pause(pause)

    def _check_open(self) -> None:
        _check_process(self._pid)
        if self._closed:
            raise StoreError("This store is closed.", hint="Open it again, or close it later.")

    async def _once(self, use: Callable[[_AnySession], Awaitable[T]]) -> T:
        session = await self._take()
        try:
            if not self._checked:
                await self._check_in(session)
                self._checked = True
            await self._measure_offset(session)
            return await use(session)
        finally:
            await self._give_back(session)

    async def _take(self) -> _AnySession:
        with suppress(IndexError):  # there was none, or another thread was faster
            while (session := self._idle.pop()).stale():
                await session.close()
            return session
        session = await self._connect()
        try:
            await session.say(*self._configuring)
        except BaseException:
            await session.close()
            raise
        return session

    async def _give_back(self, session: _AnySession) -> None:
        try:
            if session.state in _IN_TRANSACTION:
                with suppress(psycopg.Error):
                    await session.say(_ROLLBACK)
        finally:
            if session.state == pq.TransactionStatus.IDLE and not self._closed:
                self._idle.append(session)
            else:
                await session.close()

    async def _hint(self) -> None:
        """Tell those who wait what is owed to them. A hint that gets lost costs only time."""
        queues, self._owed = self._owed, set()
        if not queues or self._closed:
            return
        step = _Step(_NOTIFY, (json.dumps(sorted(frozenset(queues))).encode(),), (_JSON,))
        with suppress(psycopg.Error, StoreError):
            async with self._slot():
                await self._once(lambda session: session.say(step))

    async def _measure_offset(self, session: _AnySession) -> None:
        """Now and then, let the clock follow the server's."""
        align = getattr(self._clock, "align", None)
        if align is None or self._clock.monotonic() < self._align_at:
            return
        self._align_at = self._clock.monotonic() + ALIGN_EVERY
        samples = []
        for _ in range(3):
            asked = self._clock.monotonic()
            [[(server,)]] = await session.say(_TIME)
            answered = self._clock.monotonic()
            samples.append((answered - asked, server - (asked + answered) // 2))
        align(min(samples)[1] + self._clock.monotonic())  # the shortest way there and back tells most

    async def _check_in(self, session: _AnySession) -> None:
        """Give an empty database the whole schema; refuse a server or a schema that does not fit."""
        _check_server(session.connection.info.server_version)
        if await _version(session) == 0:
            await self._apply(session, 1, len(self._schema))
        found, wanted = await _version(session), len(self._schema)
        if found < wanted:
            raise SchemaMismatch(f"The database has schema version {found}; this windlass needs {wanted}.", hint="Run `windlass migrate`.")
        _check_not_newer(found, wanted)

    async def _apply(self, session: _AnySession, first: int, last: int) -> None:
        """Apply some steps in one transaction, unless another process was faster."""
        await session.say(_BEGIN, *_MIGRATE_ALONE)
        if await _version(session) == first - 1:
            for number in range(first, last + 1):
                if number > 1 and FAULTS.on:
                    FAULTS.hit("migrate.between_steps")
                await session.execute(self._schema[number - 1].encode())
                await session.say(_APPLIED.bind("", {"version": number, "now": self._clock.now()}))
        await session.say(_COMMIT)


def _parameters(url: str) -> dict[str, Any]:
    try:
        return _CONNECTION | conninfo_to_dict(url) | {"client_encoding": "utf8"}
    except psycopg.ProgrammingError:  # what it says may show a part of the password
        hint = "Write it as postgresql://user:password@host/database; in a password, write / : @ and % by their codes, such as %2F."
        raise BadInput("Cannot read the address of the database.", hint=hint) from None


def _configuration(settings: Mapping[str, str] | None, *, local: bool) -> _Step:
    values = json.dumps(_SETTINGS | dict(settings or {})).encode()
    return _Step(_CONFIGURE, (values, b"true" if local else b"false"), (_JSON, _BOOL))


def _check_process(opened_by: int) -> None:
    if os.getpid() != opened_by:
        raise WrongProcess(
            f"This store was opened by process {opened_by} and carried into process {os.getpid()} by a fork.",
            hint="Open a store of its own in each process, and start processes by spawn.",
        )


def _check_server(version: int) -> None:
    if version < OLDEST_SERVER * 10_000:
        raise StoreError(f"The server is PostgreSQL {version // 10_000}.", hint=f"windlass needs {OLDEST_SERVER} or newer.")


def _check_not_newer(found: int, wanted: int) -> None:
    if found > wanted:
        raise SchemaMismatch(
            f"The database has schema version {found}; this windlass knows only {wanted}.",
            hint="Upgrade windlass: pip install -U windlass.",
        )


async def _version(session: _AnySession) -> int:
    """The version of the schema; 0 when there is none."""
    [[(exists,)]] = await session.say(_HAS_SCHEMA)
    if not exists:
        return 0
    [[(version,)]] = await session.say(_VERSION)
    return int(version)


class BlockingPostgres(_Postgres):
    """A store that works on the caller's thread and never suspends; each thread gets a connection."""

    def _start(self) -> None:
        self._gate, self._closing = threading.Semaphore(self._size), threading.Event()
        self._hint_at = self._clock.monotonic()
        run_sync(self.open())

    async def _connect(self) -> _BlockingSession:
        return _BlockingSession(psycopg.Connection.connect(autocommit=True, **self._parameters), prepare=self._prepare)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        with self._gate:
            yield

    async def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def wake(self, queue: str) -> None:
        """Hint that a queue has work, if anyone waits. What comes too soon after another goes along with the next."""
        self._check_open()
        self._owed.add(queue)
        if self._clock.monotonic() >= self._hint_at:
            self._hint_at = self._clock.monotonic() + round(HINT_EVERY * 1000)
            run_sync(self._hint())

    async def close(self) -> None:
        _check_process(self._pid)
        await self._hint()
        self._closing.set()
        await super().close()


class AsyncPostgres(_Postgres):
    """A store for event loops. It opens at its first batch, or by `await AsyncPostgres(...).open()`."""

    def _start(self) -> None:
        self._gate, self._closing = asyncio.Semaphore(self._size), asyncio.Event()
        self._hinting: asyncio.Task[None] | None = None
        self._listener = _Listener(self._parameters, self._pause)

    async def _connect(self) -> _AsyncSession:
        return _AsyncSession(await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters), prepare=self._prepare)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        async with self._gate:
            yield

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def wake(self, queue: str) -> None:
        """Hint that a queue has work, if anyone waits. It leaves at once, or along with others a little later."""
        self._check_open()
        self._owed.add(queue)
        if self._hinting is None or self._hinting.done():
            self._hinting = asyncio.get_running_loop().create_task(self._keep_hinting())

    async def _keep_hinting(self) -> None:
        while self._owed and not self._closed:
            await self._hint()
            await self._pause(HINT_EVERY)

    async def wait(self, queues: Collection[str], timeout: float) -> set[str]:
        """The queues of these that may have work, as soon as there are any; none after so many seconds."""
        self._check_open()
        if self._prepare:
            return await self._listener.wait(queues, timeout)
        await self._pause(timeout)  # through a pooler nothing is heard
        return set()

    async def close(self) -> None:
        _check_process(self._pid)
        self._closing.set()
        await self._listener.close()
        if self._hinting is not None:
            await self._hinting
        await super().close()


class _Listener:
    """The one connection on which a process hears hints for all who wait in it. It goes when nobody has waited for a while."""

    def __init__(self, parameters: Mapping[str, Any], pause: Callable[[float], Awaitable[None]]) -> None:
        self._parameters, self._pause = parameters, pause
        self._waiting: dict[asyncio.Future[set[str]], frozenset[str]] = {}
        self._unheard: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, queues: Collection[str], timeout: float) -> set[str]:
        wanted = frozenset(queues)
        if early := wanted & self._unheard:  # what was said while the caller looked for work
            self._unheard -= early
            return set(early)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        told: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
        self._waiting[told] = wanted
        try:
            return await asyncio.wait_for(told, timeout)
        except TimeoutError:
            return set()
        finally:
            del self._waiting[told]

    async def _listen(self) -> None:
        while self._waiting:
            with suppress(psycopg.Error):
                await self._hear()
            self._unheard.clear()
            if self._waiting:
                await self._pause(0.2)

    async def _hear(self) -> None:
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **self._parameters)
        try:
            await connection.execute(_LISTEN)
            self._tell(None)
            while self._waiting:
                async for notify in connection.notifies(timeout=LINGER):
                    self._tell(notify.payload)
        finally:
            await connection.close()

    def _tell(self, queue: str | None) -> None:
        """Pass a hint on; None when any may have been missed."""
        heard = queue is None
        for told, wanted in self._waiting.items():
            news = wanted if queue is None else wanted & {queue}
            if not news or told.cancelled():
                continue
            heard = True
            if told.done():
                told.result().update(news)
            else:
                told.set_result(set(news))
        if queue is not None and not heard:
            self._unheard.add(queue)

    async def close(self) -> None:
        for told in self._waiting:
            if not told.done():
                told.set_result(set())
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


class _Migration(BlockingPostgres):
    before = after = 0

    async def _check_in(self, session: _AnySession) -> None:
        _check_server(session.connection.info.server_version)
        self.before = await _version(session)
        _check_not_newer(self.before, len(self._schema))
        for number in range(self.before + 1, len(self._schema) + 1):
            await self._apply(session, number, number)
        self.after = await _version(session)


def migrate(url: str, clock: Clock, steps: Sequence[str] | None = None) -> tuple[int, int]:
    """Apply the steps that are missing, each with its version in one transaction; the versions before and after."""
    migration = _Migration(url, clock, steps=steps)
    run_sync(migration.close())
    return migration.before, migration.after


class BorrowedPostgres:
    """A connection of the caller's own, blocking or async: what is asked becomes part of the caller's transaction."""

    def __init__(self, connection: AnyConnection, *, queries: Queries | None = None) -> None:
        self._queries = _compiled(queries)
        self._connection = connection
        self._session: _AnySession
        if isinstance(connection, psycopg.Connection):
            self._session = _BlockingSession(connection, prepare=False)
        else:
            self._session = _AsyncSession(connection, prepare=False)

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        batch = _Batch(self._queries, verb, statements)
        self._check()
        alone = self._connection.autocommit and self._session.state == pq.TransactionStatus.IDLE
        try:
            rows = await (self._by_itself(batch) if alone else self._within(batch))
        except psycopg.Error as error:
            raise _told(error) from error
        return batch.answers(rows)

    async def close(self) -> None:
        """Does nothing: the connection is the caller's."""

    def _check(self) -> None:
        if self._session.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise BadInput("The connection is in pipeline mode.", hint="Leave the pipeline first, or use another connection.")
        if self._connection.info.encoding != "utf-8":
            raise BadInput(f"The connection speaks {self._connection.info.encoding}.", hint="Connect with client_encoding=utf8.")

    async def _by_itself(self, batch: _Batch) -> Results:
        try:
            return await _run(self._session, batch)
        finally:
            if self._session.state in _IN_TRANSACTION:
                await self._session.say(_ROLLBACK)

    async def _within(self, batch: _Batch) -> Results:
        """Between a savepoint and its release, so that an error leaves the caller's transaction as it was."""
        await self._session.execute(b"SAVEPOINT windlass")  # psycopg begins the caller's transaction if need be
        try:
            rows = await (_step_by_step(self._session, batch) if FAULTS.on else self._session.say(*batch.steps))
        except BaseException:
            if self._session.state in _IN_TRANSACTION:
                await self._session.say(_ROLLBACK_OURS, _RELEASE_OURS)
            raise
        await self._session.say(_RELEASE_OURS)
        return rows
