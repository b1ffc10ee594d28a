"""From the end of an attempt to the store's answer: reports in batches, kept on disk while the store is away, and starts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from windlass.engine import Outcome
from windlass.engine.reports import report_size
from windlass.errors import TRANSIENT, BadInput, Cancelled, Conflict, StoreError, WindlassError, of_one
from windlass.machine import Fail, Report, Succeed
from windlass.model import Failure, Receipt
from windlass.store.records import Held
from windlass.worker.attempt_log import log_end
from windlass.worker.executions import Execution, InFlight
from windlass.worker.hand_over import HandOver
from windlass.worker.logs import LogSender
from windlass.worker.port import Spool
from windlass.worker.runtime import Runtime
from windlass.worker.thread_pool import call_on_thread

_LOG = logging.getLogger("windlass.worker")

SHORT = 0.05  # seconds a run may last without a report of its start

Item = tuple[Execution, Report]
Answers = dict[Execution, Receipt | WindlassError]


class Reporter:
    """Reports how attempts ended, in the order in which they did, as many with one call as the port takes."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, logs: LogSender, hand_over: HandOver, spool: Spool | None) -> None:
        self._runtime, self._in_flight, self._logs, self._hand_over = runtime, in_flight, logs, hand_over
        self.unsent = UnsentReports(spool)
        self._queue: deque[Item] = deque()
        self._sending: Sequence[Item] = ()
        self._added = asyncio.Event()
        runtime.before_retry = self.keep_unsent

    def add(self, execution: Execution, report: Report | None) -> None:
        """Take over an attempt that has ended. Without a report, nothing of it is written."""
        execution.finish()
        self._in_flight.busy.discard(execution)
        if type(report) is not Succeed:
            execution.duration = self._runtime.clock.monotonic() - execution.began
        if report is None:
            self._remove(execution)
            return
        self._queue.append((execution, report))
        self._added.set()
        self._in_flight.changed.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._queue:
                await self._report(self._next_batch())

    def _next_batch(self) -> list[Item]:
        """As many reports as one call takes, by their number and their bytes."""
        batch, bytes_left = list[Item](), self._runtime.bytes
        while self._queue and len(batch) < self._runtime.batch:
            bytes_left -= report_size(self._queue[0][1])
            if bytes_left < 0 and batch:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _report(self, batch: Sequence[Item]) -> None:
        self._sending = batch
        for execution, _ in batch:
            if execution.n and not execution.lost:
                await self._logs.send(execution, last=True)
        await self._send_progress(batch)
        await self._confirm([execution for execution, report in batch if not isinstance(report, Succeed)])
        await self._hand_over.wait_for_claim()
        answers = await self._runtime.retry_until_available(partial(self._send, batch), always=True) or {}
        self._sending = ()
        await self.unsent.drop(batch, answers)
        for execution, report in batch:
            answer = answers.get(execution)
            if answer is None or isinstance(answer, Receipt):
                log_end(execution, report, None if answer is None else answer.state)  # without an answer, the run was lost
                self._remove(execution)
            else:
                self._refused(execution, report, answer)

    async def _send_progress(self, batch: Sequence[Item]) -> None:
        """Send the progress that no beat has sent yet, as far as the store accepts it."""
        progress = {item.held: text for item, _ in batch if (text := item.progress_text) is not None and not item.lost}
        if progress:
            try:
                await self._runtime.port.beat(list(progress), lease=self._runtime.lease, progress=progress)
            except (*TRANSIENT, BadInput):
                pass
            except StoreError as error:
                if not of_one(error):
                    raise

    async def _confirm(self, executions: Sequence[Execution]) -> None:
        """Renew leases that are over by the local clock: that they are lost was only a guess, and what is lost is not reported."""
        ends = self._runtime.clock.monotonic() + self._runtime.lease_margin
        if doubtful := [item for item in executions if not item.lost and item.lease_ends <= ends]:
            beat = partial(self._runtime.port.beat, [item.held for item in doubtful], lease=self._runtime.lease)
            for execution, answer in zip(doubtful, await self._runtime.retry_until_available(beat, always=True) or (), strict=True):
                if answer == "lost":
                    execution.lose()

    async def _send(self, batch: Sequence[Item]) -> Answers:
        """Report the runs that are not known to be lost by now."""
        items = [item for item in batch if not item[0].lost]
        answers = await self._runtime.port.report_many([_outcome(*item) for item in items]) if items else []
        return {execution: answer for (execution, _), answer in zip(items, answers, strict=True)}

    def _refused(self, execution: Execution, report: Report, answer: WindlassError) -> None:
        """The store has not accepted a report: send it again, send another one, or none."""
        if isinstance(answer, Conflict):
            self._queue.append((execution, report))  # it has lost the race against other writers fifty times
            return
        if _is_repeated(execution, answer):
            execution.refused = True
            failure = Failure(code="bad_output", message=f"The report was refused: {answer}")
            self._queue.append((execution, Fail(error=failure, retry=report.retry if isinstance(report, Fail) else True)))
            return
        if isinstance(answer, Cancelled):
            _LOG.info("Run %s of %s: cancelled.", execution.run.id, execution.run.job)
        else:
            _LOG.warning("The report of run %s was refused: %s", execution.run.id, answer.message)
        self._remove(execution)

    def _remove(self, execution: Execution) -> None:
        if execution.n:
            self._logs.discard(execution)
        self._in_flight.remove(execution)

    async def keep_unsent(self) -> None:
        """Write to disk what is not reported yet."""
        await self.unsent.keep((*self._sending, *self._queue))


class UnsentReports:
    """Keeps reports on disk, if there is a spool, so that they outlive this process. A slow disk delays nothing but reports."""

    def __init__(self, spool: Spool | None) -> None:
        self.spool = spool
        self._lock, self._kept = asyncio.Lock(), False

    async def keep(self, items: Iterable[Item]) -> None:
        if self.spool is None:
            return
        async with self._lock:
            if outcomes := [_outcome(*item) for item in items if not item[0].lost]:
                self._kept = True
                await call_on_thread(self.spool.keep, outcomes)

    async def drop(self, batch: Sequence[Item], answers: Answers) -> None:
        """Remove what is answered. A report that is sent again stays on disk until it is answered otherwise, or replaced by another."""
        if self.spool is not None and self._kept:
            outcomes = [_outcome(*item) for item in batch if not _is_repeated(item[0], answers.get(item[0]))]
            async with self._lock:
                await call_on_thread(self.spool.drop, outcomes)


class StartReports:
    """Reports the start of runs that last for a while; the start of shorter ones is part of their report."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Execution] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, execution: Execution) -> None:
        self._waiting.append(execution)
        if self._timer is None:
            self._timer = self._runtime.loop.call_later(SHORT, self.send_due)

    def send_due(self) -> None:
        """Report the starts of those that have lasted long enough, and come back for the others."""
        begun_by, due = self._runtime.clock.monotonic() - round(SHORT * 1000), []
        while self._waiting and (self._waiting[0].finished or self._waiting[0].began <= begun_by):
            execution = self._waiting.popleft()
            if not execution.finished:
                due.append(execution.held)
        if due:
            self._runtime.spawn(self._send(due))
        self._timer = self._runtime.loop.call_later(SHORT, self.send_due) if self._waiting else None

    async def _send(self, due: list[Held]) -> None:
        with suppress(*TRANSIENT):  # the report contains the start as well
            for at in range(0, len(due), self._runtime.batch):
                await self._runtime.port.start_many(due[at : at + self._runtime.batch])

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _is_repeated(execution: Execution, answer: Receipt | WindlassError | None) -> bool:
    """Whether a further report of a run follows this answer: the same one, or that its output cannot be stored."""
    return isinstance(answer, Conflict) or (isinstance(answer, BadInput) and not execution.refused)


def _outcome(execution: Execution, report: Report) -> Outcome:
    return Outcome(execution.run.id, _signed(report, execution.held.token), execution.held.seq)


def _signed(report: Report, token: str) -> Report:
    """The report under a token. Most are of one kind, which is built directly because that is faster."""
    if type(report) is Succeed:
        return Succeed(token=token, output=report.output, output_hash=report.output_hash)
    return replace(report, token=token)
