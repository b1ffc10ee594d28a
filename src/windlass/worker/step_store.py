"""The store of steps for the handlers of one worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from windlass.errors import Cancelled, LeaseLost, StoreUnreachable
from windlass.model import Step
from windlass.worker.executions import Execution
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.runtime import Runtime

T = TypeVar("T")


class StepStore:
    """Reads and stores steps, as soon as the store answers. The methods are called from any thread."""

    def __init__(self, runtime: Runtime, heartbeat: Heartbeat) -> None:
        self._runtime, self._heartbeat = runtime, heartbeat

    def read(self, execution: Execution, after: int, count: int) -> Future[list[Step]]:
        """A page of the completed steps of a run. A handler that is to stop does not wait for it."""
        return self._runtime.ask(self._read(execution, after, count))

    def store(self, execution: Execution, key: str, output: str) -> Future[Step]:
        """Store the result of a step. It is done already, so this is tried for as long as the run is held."""
        return self._runtime.ask(self._store(execution, key, output))

    async def _read(self, execution: Execution, after: int, count: int) -> list[Step]:
        def read() -> Awaitable[list[Step]]:
            return self._runtime.port.steps(execution.run.id, after=after, count=count)

        steps = await self._try(read, lambda: execution.finished or execution.why is not None)
        if steps is None:
            raise StoreUnreachable("The steps could not be read before the handler was to stop.", hint="The run is tried again.")
        return steps

    async def _store(self, execution: Execution, key: str, output: str) -> Step:
        held, run_id = execution.held, execution.run.id
        try:
            step = await self._try(
                lambda: self._runtime.port.store_step(run_id, held.token, key, output, seq=held.seq),
                lambda: execution.finished or execution.lost or execution.why == "lost",
            )
        except (LeaseLost, Cancelled):
            self._heartbeat.now()  # its answer stops the handler
            raise
        if step is None:
            raise LeaseLost(
                f"The result of the step {key!r} of run {run_id} could not be stored before its lease ended.",
                hint="Its effect may happen again: use the run's id with the step's key as its idempotency key.",
            )
        return step

    async def _try(self, call: Callable[[], Awaitable[T]], given_up: Callable[[], bool]) -> T | None:
        return await self._runtime.retry_until_available(call, given_up=given_up)
