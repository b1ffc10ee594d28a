"""Kumofire Jobs over a store and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from windlass import App
from windlass.clock import ManualClock
from windlass.dialects.kumofire import (
    ConsumeResult,
    JobContext,
    JobRun,
    KumofireJobs,
    MemoryQueue,
    RunStatus,
    Storage,
    StorageAdapter,
    create_jobs,
)
from windlass.engine import Engine
from windlass.store.base import run_sync

T = TypeVar("T")


class KumofireDoor:
    """An application, a dispatcher and a consumer in one, whose handlers note their calls."""

    def __init__(self, storage: StorageAdapter, clock: ManualClock, handlers: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.storage, self.clock, self.queue = storage, clock, MemoryQueue()
        self.calls: list[JobContext] = []
        self.fails: BaseException | None = None
        self.handlers: dict[str, Any] = {"email": self.email, **(handlers or {})}
        self.jobs = self.another(**options)

    def another(self, **options: Any) -> KumofireJobs:
        """Another part over the same storage and queue."""
        usual: dict[str, Any] = {"storage": self.storage, "queue": self.queue, "handlers": self.handlers}
        return create_jobs(**(usual | options))

    async def email(self, context: JobContext) -> Any:
        self.calls.append(context)
        if self.fails is not None:
            raise self.fails
        return {"sent": len(self.calls)}

    def __call__(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(call)

    def create(self, name: str = "email", payload: Any = None, **fields: Any) -> str:
        return self(self.jobs.create(name, payload, **fields)).kumofire_job_run_id

    def dispatch(self, **options: Any) -> int:
        return self(self.jobs.dispatch(**options)).dispatched

    def sent(self) -> list[str]:
        """Take the messages that were sent; the ids in them."""
        return [message["kumofireJobRunId"] for message in self.queue.receive()]

    def consume(self, run_id: str) -> str:
        """The outcome of a message."""
        return self.consumed(run_id).outcome

    def consumed(self, run_id: str) -> ConsumeResult:
        return self(self.jobs.consume({"kumofireJobRunId": run_id}))

    def run(self, run_id: str) -> JobRun:
        run = self(self.storage.get_run(run_id))
        assert run is not None
        return run

    def status(self, run_id: str) -> RunStatus:
        status = self(self.jobs.get_status(run_id))
        assert status is not None
        return status

    def later(self, ms: int) -> int:
        """Let time pass, and dispatch; how many messages were sent."""
        self.clock.advance(ms)
        return self.dispatch()

    def in_ms(self, ms: int) -> Any:
        """An instant so many milliseconds from now."""
        return self.storage.now() + timedelta(milliseconds=ms)


class StoreDoor(KumofireDoor):
    """The same over the engine on a store."""

    storage: Storage

    def __init__(self, app: App, **options: Any) -> None:
        assert isinstance(app.clock, ManualClock)
        self.app = app
        super().__init__(Storage(app, name="c1"), app.clock, **options)

    @property
    def engine(self) -> Engine:
        return self.app.engine

    def do(self, verb: Coroutine[Any, Any, T]) -> T:
        """Drive a verb of the engine."""
        return run_sync(verb)

    def moves(self, run_id: str) -> list[str]:
        """The moves of a run, as the journal has them."""
        return [entry.move for entry in self.do(self.engine.history(run_id))]
