"""Log lines of handlers on their way to the store, in small batches."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from windlass.errors import StoreError, WindlassError, of_one
from windlass.worker.executions import Execution
from windlass.worker.runtime import Runtime

_LOG = logging.getLogger("windlass.worker")

LOG_EVERY = 0.2


class LogSender:
    """Sends what handlers log. All lines of an attempt are stored before its report."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: dict[Execution, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def soon(self, execution: Execution) -> None:
        """Send the lines of an execution with the next batch."""
        if execution.finished:
            return
        self._waiting[execution] = None
        if self._timer is None:
            self._timer = self._runtime.loop.call_later(LOG_EVERY, lambda: self._runtime.spawn(self._send_waiting()))

    async def _send_waiting(self) -> None:
        self._timer = None
        executions, self._waiting = list(self._waiting), {}
        for execution in executions:
            if not execution.finished and not execution.lost:  # else they go with its report, or not at all
                await self.send(execution)

    async def send(self, execution: Execution, *, last: bool = False) -> None:
        """Send the lines so far; with `last`, also how many were dropped."""
        execution.logging = execution.logging or asyncio.Lock()
        async with execution.logging:
            lines, execution.lines = execution.lines, []
            if last and execution.dropped:
                lines.append((execution.n + 1, f"{execution.dropped} further lines were dropped."))
            for at in range(0, len(lines), self._runtime.lines):
                if not await self._send_slice(execution, lines[at : at + self._runtime.lines]):
                    return

    async def _send_slice(self, execution: Execution, lines: list[tuple[int, str]]) -> bool:
        """Send some lines; False when the rest need not be sent, because the run is no longer held."""
        send = partial(self._runtime.port.log, execution.run.id, execution.held.token, lines, seq=execution.held.seq)
        try:
            await self._runtime.retry_until_available(send, always=True)
        except StoreError as error:
            if not of_one(error):
                raise
            _LOG.warning("Lines of run %s are not kept: %s", execution.run.id, error)
        except WindlassError:
            return False
        return True

    def discard(self, execution: Execution) -> None:
        self._waiting.pop(execution, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
