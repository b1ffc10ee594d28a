"""The messages to the server and the meaning of its answers. One generator serves both kinds of store; it neither awaits nor blocks."""

from __future__ import annotations

import functools
import hashlib
import re
import select
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Loader, Transformer
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
)
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.base import Row, Statement, Value
from windlass.store.sql import Query

Queries = Mapping[str, Query]
Results = list[list[Row]]
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

TRIES = 8  # of a batch that lost a deadlock


# Errors

_WAIT = "Try again. If it stays, look for a long transaction in pg_stat_activity."
_SCHEMA = "Run `windlass migrate`; if it says that nothing is missing, check the search_path of this user."
_DISK = "Look at the server's log, check its disk, and restore a backup if it is damaged."
_POOLER = (
    "A pooler between windlass and the server shares connections by transaction: write pooled = true into windlass.toml, "
    "set WINDLASS_POOLED=true, or add ?pooled=true to the store's address."
)
_BUG = "This is a bug in windlass, or the tables were changed by hand; please report it with this text."

# By the whole code first, then by its class.
_MEANING: dict[str, tuple[type[WindlassError], str]] = {
    "23505": (Conflict, "Another process was first: read again, then decide."),
    "40001": (StoreBusy, _WAIT),
    "40P01": (StoreBusy, _WAIT),
    "55P03": (StoreBusy, _WAIT),
    "57014": (StoreBusy, _WAIT),
    "53100": (StoreFull, "Free some space on the server's disk, then try again; nothing was written."),
    "25006": (StoreUnreachable, "This server only reads. Name the primary; with several hosts, add target_session_attrs=read-write."),
    "25P02": (StoreError, "Your transaction has already failed: roll it back, then begin again."),
    "42P01": (SchemaMismatch, _SCHEMA),
    "42703": (SchemaMismatch, _SCHEMA),
    "26000": (StoreError, _POOLER),
    "42P05": (StoreError, _POOLER),
    "42501": (StoreError, "Grant this user all rights on the tables of windlass, or connect as the user who made them."),
    "22": (BadInput, "PostgreSQL cannot store this value; change it."),
    "58": (StoreBroken, _DISK),
    "XX": (StoreBroken, _DISK),
}
_AGAIN = ("40001", "40P01")
# The server is stopping, starting, out of connections, or has closed this one: another connection may work.
_GONE = ("57P01", "57P02", "57P03", "57P05", "25P03", "53300")
# Errors that waiting does not mend. A failed connection has no code, so this matches English messages only; others cost the patience.
_HOPELESS = re.compile(
    r"authentication failed|does not exist|no password supplied|no pg_hba.conf entry|not permitted to log in|certificate"
    r"|no such database|no such user|statement pooling mode"  # as PgBouncer says it
)


def _lost(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _GONE or error.sqlstate.startswith("08")


def translated(error: psycopg.Error) -> WindlassError:
    """The windlass error for an error of the server; nothing was written."""
    if _lost(error):
        return StoreUnreachable(
            f"There is no connection to PostgreSQL: {_one_line(error)}.", hint="Check that it runs and that its address is right."
        )
    code = error.sqlstate or ""
    kind, hint = _MEANING.get(code) or _MEANING.get(code[:2]) or (StoreError, _BUG)
    return kind(f"PostgreSQL says: {_one_line(error)}.", hint=hint)


def _one_line(error: psycopg.Error) -> str:
    # Without the details: they show values, and errors are logged.
    return " ".join((error.diag.message_primary or str(error)).split()).removesuffix(".") or type(error).__name__


class Trial:
    """How often and how long a call has been tried, and whether to retry."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock, self._patience = clock, patience
        self._since, self._paused, self._tries = clock.monotonic(), 0.0, 0

    def pause_after(self, error: psycopg.Error) -> float:
        """Seconds to wait before the next attempt; raises the caller's error if there is to be none."""
        self._tries += 1
        if _lost(error):
            again, longest = self._waited() < self._patience and not _HOPELESS.search(str(error)), 1.0
        else:
            again, longest = error.sqlstate in _AGAIN and self._tries < TRIES, 0.2
        if not again:
            raise translated(error) from error
        pause: float = min(0.005 * 2 ** min(self._tries, 10), longest) * (0.5 + self._clock.chance() / 2)
        self._paused += pause
        return pause

    def _waited(self) -> float:
        # Pauses are added up too: a manual clock stands still.
        return max(self._paused, (self._clock.monotonic() - self._since) / 1000)


# Messages


class WireStatement(NamedTuple):
    """One statement with its values, in wire format."""

    text: bytes
    values: Sequence[bytes | None] = ()
    types: tuple[int, ...] = ()
    name: str = ""
    writes: bool = False


BEGIN = WireStatement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
_BEGIN_READING = WireStatement(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
COMMIT = WireStatement(b"COMMIT")
ROLLBACK = WireStatement(b"ROLLBACK")
SAVEPOINT_OURS = WireStatement(b"SAVEPOINT windlass")
ROLLBACK_OURS = WireStatement(b"ROLLBACK TO SAVEPOINT windlass")
RELEASE_OURS = WireStatement(b"RELEASE SAVEPOINT windlass")
TIME = WireStatement(b"select (extract(epoch from clock_timestamp()) * 1000)::bigint")
# Not to_regclass: while waiting for the lock it would keep returning its earlier result.
HAS_SCHEMA = WireStatement(b"select count(*) > 0 from pg_catalog.pg_class where relname = 'schema_version' and pg_table_is_visible(oid)")
VERSION = WireStatement(b"select coalesce(max(version), 0) from schema_version")
MIGRATE_ALONE = (
    WireStatement(b"select set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)"),
    WireStatement(b"select pg_advisory_xact_lock(2003398244, 1)"),
)
_STARTED = b"(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint"
WHO = WireStatement(
    b"select pid, (extract(epoch from backend_start) * 1000000)::bigint, %s from pg_stat_activity where pid = pg_backend_pid()" % _STARTED
)
# A process that waits for a standby has committed: terminated now, it would show what the standby may not have.
_END = (
    b"select %s, count(pid), count(case when wait_event is distinct from 'SyncRep' then pg_terminate_backend(pid) end) "
    b"from pg_stat_activity where pid = $1 and (extract(epoch from backend_start) * 1000000)::bigint = $2" % _STARTED
)

_BOOL, _INT8, _TEXT, JSON, _UNKNOWN = 16, 20, 25, 114, 0
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


def configure(settings: Mapping[str, str], *, local: bool) -> WireStatement:
    """Set these for the session, or until the transaction ends."""
    # No reply before the log is on disk, even if the server's default is not to wait.
    waits = "case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', $1) end"
    calls = ", ".join((waits, *(f"set_config(${2 * place}, ${2 * place + 1}, $1)" for place in range(1, len(settings) + 1))))
    values = [text.encode() for setting in settings.items() for text in setting]
    return WireStatement(f"select {calls}".encode(), [b"true" if local else b"false", *values], (_BOOL, *(_TEXT for _ in values)))


class Backend(NamedTuple):
    """The server process of a connection: its pid, its start, and the start of its server, in microseconds."""

    pid: int
    began: int
    server: int

    def end(self) -> WireStatement:
        """Terminate it, if it is still there; to be sent on another connection."""
        return WireStatement(_END, (b"%d" % self.pid, b"%d" % self.began), (_INT8, _INT8))

    def is_gone(self, server: int, left: int, _: int) -> bool:
        """Whether that answer proves that it is gone. Another server that started earlier proves nothing."""
        return server > self.server or (server == self.server and not left)


class _Compiled(NamedTuple):
    """A query in PostgreSQL's form, and the names of its values in order; no text if it is for other databases only."""

    text: bytes
    names: tuple[str, ...]
    writes: bool
    alone: bool = False
    journals: bool = False

    def bind(self, name: str, values: Mapping[str, Value]) -> WireStatement:
        bound, types = list[bytes | None](), list[int]()
        for one in self.names:
            value = values[one]
            if isinstance(value, int):
                bound.append(b"%d" % value)
                types.append(_INT8)  # one type for all integers, so that one text is one plan
            else:
                bound.append(None if value is None else _encoded(value))
                types.append(_UNKNOWN)
        return WireStatement(self.text, bound, tuple(types), name, self.writes)


def _encoded(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"The text {value[:40]!r} has half a character.", hint="Remove the lone surrogate.") from error
    if b"\0" in data:
        raise BadInput(f"The text {value[:40]!r} has a NUL character, which PostgreSQL cannot store.", hint="Remove it.")
    return data


def compile_query(query: Query) -> _Compiled:
    names: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}" if match[1] else "%"

    text = _PLACEHOLDER.sub(numbered, query.text)
    return _Compiled(text.encode(), tuple(names), query.writes, query.alone, query.journals)


def compiled(queries: Queries | None) -> Mapping[str, _Compiled]:
    return _own_queries() if queries is None else {name: compile_query(query) for name, query in queries.items()}


@functools.cache
def _own_queries() -> Mapping[str, _Compiled]:
    return {name: compile_query(query) for name, query in sql.load("postgres").items()}


class PipelinedBatch:
    """The statements of one call. An unknown name is a KeyError before anything happens."""

    def __init__(self, queries: Mapping[str, _Compiled], verb: str, statements: Sequence[Statement]) -> None:
        self.verb, self._asked = verb, list[WireStatement]()
        self.steps = list[WireStatement]()
        self.writes = self.alone = self.journals = False
        for name, values in statements:
            query = queries[name]
            step = query.bind(name, values)
            self._asked.append(step)
            if query.text:
                self.steps.append(step)
                self.writes, self.alone, self.journals = (
                    self.writes or query.writes,
                    self.alone or query.alone,
                    self.journals or query.journals,
                )

    def answers(self, rows: Results) -> Results:
        """The rows of each requested statement; none for those of other databases."""
        remaining = iter(rows)
        return [next(remaining) if step.text else [] for step in self._asked]


class _Whole(Loader):
    """`sum` of integers is a decimal number in PostgreSQL, and an integer everywhere else."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_loader("numeric", _Whole)

APPLIED = compile_query(Query("insert into schema_version (version, applied_at) values (%(version)s, %(now)s)", writes=True))
IN_TRANSACTION = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


_Key = tuple[bytes, tuple[int, ...]]


@functools.cache
def _named(key: _Key) -> bytes:
    """The name under which a statement is prepared. It is the same on every connection, so a pooler that shares them cannot confuse two."""
    return b"windlass_" + hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest().encode()


_Expected = tuple[int, _Key | None, bytes]
"""A pending answer: to which step, and what it will have prepared, under which name."""


class _Session:
    """One connection and the statements prepared on it."""

    adapters = _ADAPTERS

    def __init__(self, connection: AnyConnection, *, pooled: bool) -> None:
        self.connection: psycopg.BaseConnection[Any] = connection
        self.pgconn = connection.pgconn
        self.lost = False
        self.backend: Backend | None = None  # through a pooler it is not known which connection this is
        self._pooled = pooled
        self._prepared: dict[_Key, bytes] = {}
        self._loader = Transformer(self)
        self._socket: select.poll | None = None

    def meet(self, pid: int, began: int, server: int) -> None:
        """Record the server process of this connection, from the answer to `WHO`. If the connection names another, there is a pooler."""
        if pid == self.pgconn.backend_pid:
            self.backend = Backend(pid, began, server)

    @property
    def state(self) -> int:
        """The status of its transaction; unknown when it can no longer be used."""
        if self.lost or self.pgconn.status != pq.ConnStatus.OK or self.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            return pq.TransactionStatus.UNKNOWN
        return self.pgconn.transaction_status

    def stale(self) -> bool:
        """Whether the server has sent something unasked: usually that it closes the connection. Costs no round trip."""
        if self._socket is None:
            self._socket = select.poll()
            self._socket.register(self.pgconn.socket, select.POLLIN)
        return bool(self._socket.poll(0))

    def converse(self, steps: Sequence[WireStatement], commit_at: int | None) -> PQGen[Results]:
        """Send all steps at once, then receive all answers; `commit_at` is the index of the step that commits.

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
                result = yield from _next_answer(self.pgconn)
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

    def _send(self, steps: Sequence[WireStatement]) -> list[_Expected]:
        expected = list[_Expected]()
        preparing: dict[_Key, bytes] = {}
        for place, step in enumerate(steps):
            if self._pooled:
                self.pgconn.send_query_params(step.text, step.values, step.types)
            else:
                key = step.text, step.types
                if (name := self._prepared.get(key) or preparing.get(key)) is None:
                    name = preparing[key] = _named(key)
                    self.pgconn.send_prepare(name, step.text, step.types)
                    expected.append((place, key, name))
                self.pgconn.send_query_prepared(name, step.values)
            expected.append((place, None, b""))
        self.pgconn.pipeline_sync()
        expected.append((len(steps), None, b""))
        return expected

    def _rows(self, result: PGresult) -> list[Row]:
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)

    def _verdict(self, place: int, error: psycopg.Error, commit_at: int | None) -> Exception:
        """The error itself if nothing can have been committed; otherwise that the outcome is unknown."""
        if not (self.lost or _lost(error)):
            return error
        self.lost = True
        # The server answers in order: a refusal before the commit means that it did not commit. A connection that
        # broke without an answer proves nothing, because answers are buffered until the end; nor does the message of a
        # pooler instead of the answers that it has not passed on.
        if commit_at is None or (error.sqlstate is not None and place < commit_at and not self._pooled):
            return error
        unknown = OutcomeUnknown(f"The connection broke while committing: {_one_line(error)}.", hint="Read by key whether it happened.")
        unknown.__cause__ = error
        return unknown


def _next_answer(pgconn: PGconn) -> PQGen[PGresult]:
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None:
            return result
        if pgconn.status != pq.ConnStatus.OK:  # otherwise it was the mark between two answers
            raise psycopg.OperationalError("the connection is lost")


class AsyncSession(_Session):
    connection: psycopg.AsyncConnection[Any]

    async def say(self, *steps: WireStatement, commit_at: int | None = None) -> Results:
        async with self.connection.lock:
            return await self.connection.wait(self.converse(steps, commit_at))

    async def execute(self, script: bytes) -> None:
        await self.connection.execute(script, prepare=False)

    async def close(self) -> None:
        await self.connection.close()


class BlockingSession(_Session):
    connection: psycopg.Connection[Any]

    async def say(self, *steps: WireStatement, commit_at: int | None = None) -> Results:
        with self.connection.lock:
            return self.connection.wait(self.converse(steps, commit_at))

    async def execute(self, script: bytes) -> None:
        self.connection.execute(script, prepare=False)

    async def close(self) -> None:
        self.connection.close()


AnySession = AsyncSession | BlockingSession


async def run_batch(session: AnySession, batch: PipelinedBatch, opening: Sequence[WireStatement] = ()) -> Results:
    """Run a batch in its own transaction; a single statement needs no explicit one, unless something is sent before it."""
    if batch.writes and FAULTS.on:
        return await _run_slowly(session, batch, opening)
    if len(batch.steps) == 1 and not opening:
        return await session.say(*batch.steps, commit_at=1 if batch.writes else None)
    before = (BEGIN if batch.writes else _BEGIN_READING, *opening)
    commit_at = len(before) + len(batch.steps)
    rows = await session.say(*before, *batch.steps, COMMIT, commit_at=commit_at if batch.writes else None)
    return rows[len(before) : commit_at]


async def _run_slowly(session: AnySession, batch: PipelinedBatch, opening: Sequence[WireStatement]) -> Results:
    FAULTS.hit(f"{batch.verb}.before_begin")
    await session.say(BEGIN, *opening)
    rows = await step_by_step(session, batch)
    FAULTS.hit(f"{batch.verb}.before_commit")
    await session.say(COMMIT, commit_at=0)
    try:
        FAULTS.hit(f"{batch.verb}.after_commit")
    except StoreError as error:
        raise OutcomeUnknown(error.message, hint=error.hint, settled=True) from error  # whatever was injected, it is committed
    return rows


async def step_by_step(session: AnySession, batch: PipelinedBatch) -> Results:
    rows = []
    for step in batch.steps:
        rows += await session.say(step)
        if step.writes:
            FAULTS.hit(f"{batch.verb}.after_{step.name}")
    return rows
