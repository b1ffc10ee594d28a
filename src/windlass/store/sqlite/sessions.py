"""Runs batches on one connection: the one place that begins, combines, undoes and commits."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import apsw

from windlass.clock import Clock
from windlass.errors import OutcomeUnknown, StoreError
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.base import Row, Statement
from windlass.store.sql import Query
from windlass.store.sqlite.files import DISK, PATIENCE, connect, disconnect, known_steps, patience, prepare, translate, translated

Queries = Mapping[str, Query]  # without a text: a statement that only another database needs
Results = list[list[Row]]
Outcome = Results | BaseException

CHECKPOINT_EVERY = 2_000  # pages of log: 8 MiB
LONG_LOG = 16_000  # pages of log: 64 MiB

_LOG = logging.getLogger(__name__)


class Batch(NamedTuple):
    """The statements of one call."""

    verb: str
    statements: Sequence[Statement]
    writes: bool
    journals: bool = False


@functools.cache
def own_queries() -> Queries:
    return sql.load("sqlite")


def plan(queries: Queries, verb: str, statements: Sequence[Statement]) -> Batch:
    """A batch, and whether it writes; an unknown name is a KeyError before anything happens."""
    writes = journals = False
    for name, _ in statements:
        query = queries[name]
        writes, journals = writes or query.writes, journals or query.journals
    return Batch(verb, statements, writes, journals)


def _hit(batches: Iterable[Batch], place: str) -> None:
    for batch in batches:
        FAULTS.hit(f"{batch.verb}.{place}")


def _after_commit(batch: Batch, outcome: Outcome) -> Outcome:
    if isinstance(outcome, BaseException):
        return outcome
    try:
        FAULTS.hit(f"{batch.verb}.after_commit")
    except StoreError as error:
        return OutcomeUnknown(error.message, hint=error.hint, settled=True)  # whatever was injected, it is committed
    return outcome


class Session:
    """One connection and the batches on it. One thread at a time."""

    def __init__(self, path: str, db: apsw.Connection, queries: Queries, clock: Clock) -> None:
        self.db, self.commits = db, 0
        self._path, self._queries, self._clock = path, queries, clock
        self._execute = db.cursor().execute
        self._pages, self._due = 0, CHECKPOINT_EVERY
        db.set_wal_hook(self._logged)

    def serve(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Run one batch that reads, or some that write in one commit; returns an outcome for each."""
        return self._write(batches) if batches[0].writes else [self._read(batches[0])]

    def _read(self, batch: Batch) -> Outcome:
        try:
            if len(batch.statements) > 1:
                self._execute("begin")  # so that all read the same snapshot
            return self._run(batch)
        except BaseException as error:
            return translate(error, self._path)
        finally:
            self._undo()

    def _write(self, batches: Sequence[Batch]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        committing = False
        run = self._run if len(batches) == 1 else self._join
        try:
            if FAULTS.on:
                _hit(batches, "before_begin")
            self._execute("begin immediate")
            for batch in batches:
                outcomes.append(run(batch))  # noqa: PERF401 - after an error it tells how far this came
            if FAULTS.on:
                _hit([batch for batch, outcome in zip(batches, outcomes, strict=True) if isinstance(outcome, list)], "before_commit")
            committing = True
            self._execute("commit")
        except BaseException as error:
            self._undo()
            answers = (
                self._unknown(error) if committing and isinstance(error, apsw.IOError) else functools.partial(translate, error, self._path)
            )
            failures = itertools.zip_longest(batches, outcomes)  # batches that failed by themselves keep their own error
            return [own if isinstance(own, BaseException) else answers() for _, own in failures]
        self.commits += 1
        return list(map(_after_commit, batches, outcomes)) if FAULTS.on else outcomes

    def _unknown(self, error: apsw.IOError) -> Callable[[], OutcomeUnknown]:
        """A disk error at the commit does not undo it: readers do not see what is in the log, but a crash may bring it back."""
        settled = self._overwrite()
        message, hint = f"The disk failed while SQLite committed to {self._path}: {error}.", f"Read by key whether it happened. {DISK}"
        return lambda: OutcomeUnknown(message, hint=hint, settled=settled)

    def _overwrite(self) -> bool:
        """Overwrite a failed commit in the log with an empty one; once that is on disk, the failed one cannot reappear."""
        try:
            version = self._execute("pragma user_version").fetchall()[0][0]
            self._execute(f"begin immediate; pragma user_version = {version}; commit").fetchall()
        except apsw.Error:
            self._undo()
            return False
        return True

    def _join(self, batch: Batch) -> Outcome:
        """Run one batch of several: its error undoes it alone, unless it has ended the transaction for all."""
        outcome: Outcome
        self._execute("savepoint batch")
        try:
            outcome = self._run(batch)
        except Exception as error:
            if not self.db.in_transaction:  # a full or broken disk
                raise
            self._execute("rollback to batch")
            outcome = translate(error, self._path)
        self._execute("release batch")
        return outcome

    def _run(self, batch: Batch) -> Results:
        queries, execute = self._queries, self._execute
        results: Results = []
        vain = set[str]()  # statements that have returned no rows
        for name, values in batch.statements:
            query = queries[name]
            if not query.text or query.after in vain:
                results.append([])
                continue
            results.append(execute(query.text, values).fetchall())
            (vain.discard if results[-1] else vain.add)(name)
            if FAULTS.on and query.writes:
                FAULTS.hit(f"{batch.verb}.after_{name}")
        return results

    def _undo(self) -> None:
        if self.db.in_transaction:
            with contextlib.suppress(apsw.Error):  # the transaction has ended, whatever rollback reports
                self._execute("rollback")

    def _logged(self, db: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._pages:
            self._due = CHECKPOINT_EVERY  # the log was restarted
        self._pages = pages
        return apsw.SQLITE_OK  # with any other result, a commit that has happened would look failed

    def tidy(self) -> None:
        """Checkpoint the log when it has grown. A failure here is not one of the commits before: it is retried later."""
        if self._pages < self._due:
            return
        self._due = self._pages + CHECKPOINT_EVERY
        try:
            self._checkpoint()
        except apsw.BusyError:
            pass  # a reader needs the log, or another process checkpoints
        except (apsw.Error, StoreError) as error:
            _LOG.warning("Could not copy the log of %s into it: %s", self._path, error)

    def _checkpoint(self) -> None:
        if FAULTS.on:
            FAULTS.hit("checkpoint.before")
        if self._pages < LONG_LOG:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        else:
            self._truncate()
        if FAULTS.on:
            FAULTS.hit("checkpoint.after")

    def _truncate(self) -> None:
        """Truncate the log, for which all readers must be past it; writers wait meanwhile, so not for long."""
        self.db.set_busy_handler(patience(self._clock, 0.05))
        try:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self.db.set_busy_handler(patience(self._clock, PATIENCE))

    def close(self) -> None:
        disconnect(self.db)


def open_lines(count: int, path: str, clock: Clock, queries: Queries, steps: Sequence[str] | None, synchronous: str) -> list[Session]:
    lines = []
    with contextlib.ExitStack() as undo, translated(path):
        for _ in range(count):
            db = connect(path, clock, synchronous)
            undo.callback(disconnect, db)
            prepare(db, path, known_steps(steps), clock)
            lines.append(Session(path, db, queries, clock))
        undo.pop_all()
    return lines
