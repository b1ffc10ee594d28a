"""The consumer: one message, one lock, one call of a handler, one mark."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from windlass import payload as json
from windlass.dialects.calls import Caught, caught
from windlass.dialects.kumofire.adapters import StorageAdapter
from windlass.dialects.kumofire.messages import MalformedMessage, Message, parse_message
from windlass.dialects.kumofire.points import reach
from windlass.dialects.kumofire.records import JobDefinition, JobLock, JobRun
from windlass.dialects.kumofire.words import MAX_ATTEMPTS, JobRunStatus, delay_after
from windlass.errors import BadInput
from windlass.model import Failure, Limits
from windlass.worker import Fail
from windlass.worker.outcomes import failure_of
from windlass.worker.thread_pool import call_on_thread

_LOG = logging.getLogger("windlass.kumofire")
_OUTPUT = Limits().output
PARTS = 3
"""A lock is renewed after each such part of its lease."""

Outcome = Literal["ignored", "succeeded", "retried", "failed", "canceled"]


class JobContext(NamedTuple):
    """What a handler is given."""

    definition: JobDefinition
    job: JobRun
    now: datetime


Handler = Callable[[JobContext], Awaitable[Any] | Any]
GetNextRunAt = Callable[[int, BaseException, JobRun, datetime], datetime | None]


def _after_its_delay(attempt: int, error: BaseException, job: JobRun, now: datetime) -> datetime:
    return now + delay_after(attempt)


class RetryPolicy(NamedTuple):
    """How often a run is executed in all, and when again after a failure: by the number of failures, the error, the run, and the time.

    None instead of an instant ends the run.
    """

    max_attempts: int = MAX_ATTEMPTS
    get_next_run_at: GetNextRunAt = _after_its_delay


class ConsumeResult(Struct, frozen=True):
    """What has become of a message, and of which run it was; None if it was malformed."""

    outcome: Outcome
    job_run_id: str | None


class BatchResult(Struct, frozen=True):
    """What has become of the messages of a batch. Malformed ones are acknowledged, and not among the results."""

    processed: int
    acked: int
    retried: int
    malformed: int
    results: list[ConsumeResult]


class BatchMessage(Protocol):
    """A message as a host delivers it."""

    @property
    def body(self) -> Message | str | bytes: ...

    def ack(self) -> Any:
        """Acknowledge it: it is not delivered again."""

    def retry(self) -> Any:
        """Return it for another delivery."""


_CANCELED = Failure("canceled", "The run was canceled.")
_ENDS: Mapping[JobRunStatus | None, Outcome] = {
    JobRunStatus.SUCCEEDED: "succeeded",
    JobRunStatus.SCHEDULED: "retried",
    JobRunStatus.QUEUED: "retried",
    JobRunStatus.FAILED: "failed",
    JobRunStatus.CANCELED: "canceled",
    None: "ignored",
}


class Consumer:
    """Executes runs, each while it holds the lock."""

    def __init__(self, storage: StorageAdapter, handlers: Mapping[str, Handler], retry: RetryPolicy, lease_ms: int) -> None:
        self._storage, self._handlers, self._retry, self._lease_ms = storage, dict(handlers), retry, lease_ms
        self.definitions: dict[str, JobDefinition] = {}

    async def consume(self, message: Message | str | bytes) -> ConsumeResult:
        """Execute the run of a message."""
        try:
            run_id = parse_message(message)
        except MalformedMessage as error:
            _LOG.warning("A message was dropped: %s", error)
            return ConsumeResult("ignored", None)
        lock = await self._storage.acquire_lock(run_id, self._lease_ms)
        return ConsumeResult("ignored" if lock is None else _ENDS[await self._execute(lock)], run_id)

    async def consume_batch(
        self, messages: Iterable[BatchMessage], consume: Callable[[Message | str | bytes], Awaitable[ConsumeResult]]
    ) -> BatchResult:
        """Execute the runs of messages, one after the other."""
        results, retried = list[ConsumeResult](), 0
        for message in messages:
            try:
                results.append(await consume(message.body))
            except Exception as error:
                _LOG.warning("A message is returned for another delivery: %s", error)
                retried += 1
                await _answered(message.retry())
            else:
                await _answered(message.ack())
        known = [result for result in results if result.job_run_id is not None]
        return BatchResult(len(known), len(results), retried, len(results) - len(known), known)

    async def _execute(self, lock: JobLock) -> JobRunStatus | None:
        """The status of the run after its handler; None if the lock was lost."""
        definition = await self._definition(lock.run.job_id)
        run = await self._storage.mark_running(lock)
        if run is None or run.status is not JobRunStatus.RUNNING:
            return None if run is None else await self._ended(lock, _CANCELED)
        handler = self._handlers.get(definition.handler)
        if handler is None:
            return await self._ended(lock, Failure("no_handler", f"There is no handler {definition.handler!r}."))
        reach("running")
        handling = asyncio.ensure_future(caught(_handled(handler, JobContext(definition, run, self._storage.now()))))
        held = await self._held_while(handling, lock)
        if held is not JobRunStatus.RUNNING:
            return held and await self._ended(lock, _CANCELED)
        reach("handled")
        status = await self._marked(lock, run, handling)
        await self._release(lock)
        return status

    async def _definition(self, job_id: str) -> JobDefinition:
        """The definition of a job: as this code has registered it, as it is stored, or, where it was removed, by the name alone."""
        definition = self.definitions.get(job_id) or await self._storage.get_definition(job_id)
        return definition or JobDefinition(name=job_id)

    async def _held_while(self, handling: asyncio.Future[Caught], lock: JobLock) -> JobRunStatus | None:
        """Renew the lock until the handler has ended: running. Otherwise the handler is stopped, and the status is canceled or None."""
        try:
            while not handling.done():
                await asyncio.wait({handling}, timeout=self._lease_ms / PARTS / 1000)
                if not handling.done() and (status := await self._renewed(lock)) is not JobRunStatus.RUNNING:
                    return status
            return JobRunStatus.RUNNING
        finally:
            if not handling.done():
                handling.cancel()
                await asyncio.wait({handling})

    async def _renewed(self, lock: JobLock) -> JobRunStatus | None:
        """A storage that does not answer leaves the lock as it is, until it expires."""
        try:
            return await self._storage.renew_lock(lock, self._lease_ms)
        except Exception as error:
            _LOG.warning("The lock of run %s could not be renewed: %s", lock.job_run_id, error)
            return JobRunStatus.RUNNING

    async def _marked(self, lock: JobLock, run: JobRun, handling: asyncio.Future[Caught]) -> JobRunStatus | None:
        error = asyncio.CancelledError("The handler was cancelled.") if handling.cancelled() else handling.exception()
        error = error or handling.result().error
        if error is None:
            try:
                return await self._storage.mark_succeeded(lock, _encoded(handling.result().result))
            except BadInput as problem:
                error = problem
        failure, at = failure_of(error), self._next_run_at(error, run)
        if at is None:
            return await self._storage.mark_failed(lock, failure)
        return await self._storage.mark_retryable(lock, failure, at)

    def _next_run_at(self, error: BaseException, run: JobRun) -> datetime | None:
        """When the run is tried again; None: never."""
        attempt, now = run.attempt + 1, self._storage.now()
        if attempt >= run.max_attempts or (isinstance(error, Fail) and not error.retry):
            return None
        try:
            at = self._retry.get_next_run_at(attempt, error, run, now)
            if at is None or at.utcoffset() is not None:
                return at
            raise ValueError(f"{at!r} has no zone")
        except Exception:
            _LOG.exception("The retry policy has failed for run %s; the usual delay is used", run.id)
            return now + delay_after(attempt)

    async def _ended(self, lock: JobLock, error: Failure) -> JobRunStatus | None:
        """The status of a run without a handler, or whose handler was stopped because it is canceled."""
        status = await self._storage.mark_failed(lock, error)
        await self._release(lock)
        return status

    async def _release(self, lock: JobLock) -> None:
        try:
            await self._storage.release_lock(lock)
        except Exception as error:
            _LOG.warning("The lock of run %s was not released; it expires: %s", lock.job_run_id, error)


async def _handled(handler: Handler, context: JobContext) -> Any:
    """What a handler returns; one that is not async runs on a thread."""
    if inspect.iscoroutinefunction(handler if inspect.isroutine(handler) else type(handler).__call__):
        return await handler(context)
    answer = await call_on_thread(handler, context)
    return await answer if inspect.isawaitable(answer) else answer


async def _answered(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer


def _encoded(output: Any) -> str | None:
    return None if output is None else json.encode(output, limit=_OUTPUT, what="The result")
