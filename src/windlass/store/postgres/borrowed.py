"""The caller's own connection as a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import psycopg
from psycopg import pq

from windlass.errors import (
    BadInput,
)
from windlass.faults import FAULTS
from windlass.store.base import JOURNAL, Statement
from windlass.store.postgres.hints import JOURNAL_WITHIN, NOTIFY, NOTIFY_JOURNAL, NOTIFY_WITHIN, payloads
from windlass.store.postgres.wire import (
    IN_TRANSACTION,
    JSON,
    RELEASE_OURS,
    ROLLBACK,
    ROLLBACK_OURS,
    SAVEPOINT_OURS,
    AnyConnection,
    AnySession,
    AsyncSession,
    BlockingSession,
    PipelinedBatch,
    Queries,
    Results,
    WireStatement,
    compiled,
    run_batch,
    step_by_step,
    translated,
)


class BorrowedPostgres:
    """The caller's own connection, blocking or async: the statements become part of the caller's transaction."""

    def __init__(self, connection: AnyConnection, *, queries: Queries | None = None) -> None:
        self._queries = compiled(queries)
        self._connection = connection
        self._session: AnySession
        if isinstance(connection, psycopg.Connection):
            self._session = BlockingSession(connection, pooled=True)  # as it may be
        else:
            self._session = AsyncSession(connection, pooled=True)

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Results:
        batch = PipelinedBatch(self._queries, verb, statements)
        self._check()
        try:
            rows = await (self._by_itself(batch) if self._alone() else self._within(batch))
        except psycopg.Error as error:
            raise translated(error) from error
        return batch.answers(rows)

    async def close(self) -> None:
        """Does nothing: the connection is the caller's."""

    async def notify(self, topics: Collection[str]) -> None:
        """Wake the waiters for these topics: when the caller commits, or at once if there is nothing to commit."""
        others = [topic for topic in topics if topic != JOURNAL]
        with suppress(psycopg.Error, BadInput):
            self._check()
            alone = self._alone()
            steps = [WireStatement(NOTIFY if alone else NOTIFY_WITHIN, (payloads(others),), (JSON,))] if others else []
            if JOURNAL in topics:
                steps.append(WireStatement(NOTIFY_JOURNAL if alone else JOURNAL_WITHIN))
            await (self._session.say(*steps) if alone else self._notify_within(steps))

    async def _notify_within(self, steps: Sequence[WireStatement]) -> None:
        try:
            await self._session.say(SAVEPOINT_OURS, *steps, RELEASE_OURS)
        except psycopg.Error:
            if self._session.state in IN_TRANSACTION:
                await self._session.say(ROLLBACK_OURS, RELEASE_OURS)

    def _alone(self) -> bool:
        return self._connection.autocommit and self._session.state == pq.TransactionStatus.IDLE

    def _check(self) -> None:
        if self._session.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise BadInput("The connection is in pipeline mode.", hint="Leave the pipeline first, or use another connection.")
        if self._connection.info.encoding != "utf-8":
            raise BadInput(f"The connection speaks {self._connection.info.encoding}.", hint="Connect with client_encoding=utf8.")

    async def _by_itself(self, batch: PipelinedBatch) -> Results:
        try:
            return await run_batch(self._session, batch)
        finally:
            if self._session.state in IN_TRANSACTION:
                await self._session.say(ROLLBACK)

    async def _within(self, batch: PipelinedBatch) -> Results:
        """Between a savepoint and its release, so that an error leaves the caller's transaction as it was."""
        await self._session.execute(b"SAVEPOINT windlass")  # psycopg begins the caller's transaction if necessary
        try:
            rows = await (step_by_step(self._session, batch) if FAULTS.on else self._session.say(*batch.steps))
        except BaseException:
            if self._session.state in IN_TRANSACTION:
                await self._session.say(ROLLBACK_OURS, RELEASE_OURS)
            raise
        await self._session.say(RELEASE_OURS)
        return rows
