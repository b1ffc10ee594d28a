"""The dispatcher and the consumer as processes of their own, over the hints of a store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from windlass.app.working import drive, signals
from windlass.clock import Clock, SystemClock
from windlass.dialects.kumofire.jobs import KumofireJobs, create_jobs
from windlass.dialects.kumofire.messages import ID
from windlass.dialects.kumofire.queues import StoreQueue
from windlass.dialects.kumofire.storage import Storage
from windlass.dialects.kumofire.words import LIMIT
from windlass.engine.watch import Watch
from windlass.errors import BadInput, WindlassError
from windlass.loops import Loop

EVERY = 1.0
"""Seconds between two dispatches, and for which a consumer waits for a hint."""


class PartLoop(Loop):
    """One loop of a process, which can be stopped between two calls of its tick."""

    log: ClassVar[logging.Logger] = logging.getLogger("windlass.kumofire")

    def __init__(self, jobs: KumofireJobs, clock: Clock) -> None:
        super().__init__(clock)
        self.jobs, self.busy, self.stopping = jobs, False, asyncio.Event()

    async def run(self) -> None:
        """Call the tick until stopped."""
        while not self.stopping.is_set():
            pause = await self.once(self.tick)
            if pause and not self.stopping.is_set():
                await self.pause(pause)

    async def tick(self) -> float:
        """Do the pending work; returns the seconds until the next call."""
        raise NotImplementedError


class DispatchLoop(PartLoop):
    """Dispatches regularly. An error of the queue is logged; what could not be sent is sent later."""

    complaint = "The dispatcher cannot use its storage, and tries again"

    async def tick(self) -> float:
        self.busy = True
        try:
            dispatched = (await self.jobs.dispatch()).dispatched
        except WindlassError:
            raise
        except Exception:
            self.log.exception("The dispatcher could not send, and tries again")
            return EVERY
        finally:
            self.busy = False
        return 0 if dispatched >= LIMIT else EVERY


class Messages:
    """The messages of a store for the slots of one process."""

    def __init__(self, queue: StoreQueue) -> None:
        self._queue, self._waiting, self._reading = queue, deque[str](), asyncio.Lock()
        self.busy = set[str]()  # runs that this process executes
        self.useful = True  # whether a message of the last page was not ignored

    async def next(self) -> str:
        """The run of the next message, which is busy from now on."""
        async with self._reading:
            while not self._waiting:
                await self._read()
            run_id = self._waiting.popleft()
            self.busy.add(run_id)
            return run_id

    async def _read(self) -> None:
        """The first queued runs. Where the last page had none for this process, only after a hint or a while."""
        if not self.useful:
            await self._queue.wait(EVERY)
        self.useful = False
        messages = await self._queue.receive()
        self._waiting.extend(message[ID] for message in messages if message[ID] not in self.busy)


class ConsumeLoop(PartLoop):
    """Consumes one message after the other."""

    complaint = "A consumer cannot use its storage, and tries again"

    def __init__(self, jobs: KumofireJobs, messages: Messages, clock: Clock) -> None:
        super().__init__(jobs, clock)
        self._messages = messages

    async def tick(self) -> float:
        run_id = await self._messages.next()
        self.busy = True
        try:
            outcome = (await self.jobs.consume({ID: run_id})).outcome
        finally:
            self.busy = False
            self._messages.busy.discard(run_id)
        self._messages.useful |= outcome != "ignored"
        return 0


def dispatch(jobs: KumofireJobs | None, store: str, queue: str) -> None:
    """Dispatch until a signal: for a program's own jobs, or for all runs of a store, whose consumers are woken by its hints."""
    if jobs is None:
        storage = Storage(store, queue=queue)
        jobs = create_jobs(storage=storage, queue=StoreQueue(storage))
    drive(_dispatch(jobs))


async def _dispatch(jobs: KumofireJobs) -> None:
    if isinstance(jobs.storage, Storage):
        jobs.storage.watch = Watch(jobs.storage.engine.clock)
    try:
        await until_stopped([DispatchLoop(jobs, SystemClock())], grace=0)
    finally:
        await jobs.storage.close()


def consume(jobs: KumofireJobs, slots: int, grace: float) -> None:
    """Consume the messages of the jobs' own store until a signal, so many at once."""
    if not isinstance(jobs.storage, Storage):
        raise BadInput(
            f"These jobs are stored in {type(jobs.storage).__name__}, which has no hints.",
            hint="Use Storage(...), or call jobs.consume(message) where your own queue delivers.",
        )
    drive(_consume(jobs, jobs.storage, slots, grace))


async def _consume(jobs: KumofireJobs, storage: Storage, slots: int, grace: float) -> None:
    messages = Messages(StoreQueue(storage))
    try:
        await until_stopped([ConsumeLoop(jobs, messages, SystemClock()) for _ in range(slots)], grace)
    finally:
        await storage.close()


async def until_stopped(parts: Sequence[PartLoop], grace: float) -> None:
    """Run parts until a signal, and let what they are doing end within so many seconds. A second signal ends them at once."""
    tasks = {asyncio.ensure_future(part.run()): part for part in parts}

    async def stop(*, drain: bool) -> None:
        for task, part in tasks.items():
            part.stopping.set()
            if not (drain and part.busy):
                task.cancel()
        if drain:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()

    with signals(stop):
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        errors = [error for task in ended if not task.cancelled() and (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        await asyncio.wait(tasks)
