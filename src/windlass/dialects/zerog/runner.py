"""The runner: a worker of windlass over a backend, with the protocol's contexts, and a sender of webhooks beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from windlass.dialects.zerog.backend import JobBackend
from windlass.dialects.zerog.context import JobContext
from windlass.dialects.zerog.errors import BackendUnreachable, reaching
from windlass.dialects.zerog.handlers import handler_of, input_of
from windlass.dialects.zerog.jobs import JobDefinition
from windlass.dialects.zerog.ports import RunnerPort
from windlass.dialects.zerog.sending import sending
from windlass.dialects.zerog.webhooks import WebhookConfig
from windlass.dialects.zerog.words import ENDED, LEASE, JobRecord, metadata_of
from windlass.engine import Engine, checks
from windlass.errors import BadInput, nearest
from windlass.model import Limits, WorkerInfo
from windlass.worker import Context, Handler
from windlass.worker.loop import Worker
from windlass.worker.stopping import LAST_PART

_LOG = logging.getLogger("windlass.dialects.zerog")

PATIENCE = 10.0
"""Seconds after its signal in which a handler may end by itself, before it is cancelled."""
SHARE, FORCED = 0.75, 0.9
"""The parts of the time for a stop after which handlers that go on are cancelled, and given up."""
STOP, WAIT, POLL = 5_000, 30_000, 25
LARGEST = 1_000  # jobs at once


class JobRunner:
    """Executes the jobs of a backend, those for which it has definitions, until it is stopped."""

    def __init__(
        self,
        *,
        backend: JobBackend,
        signer: Any = None,
        webhook: WebhookConfig | None = None,
        lease_ms: int = LEASE,
        name: str | None = None,
    ) -> None:
        """`signer` is passed to the handlers. `name` is that of the worker; `lease_ms` is how long a job is kept for one that is gone."""
        checks.kind(backend, "backend", JobBackend)
        self._backend, self._signer, self._webhook = backend, signer, webhook
        self._lease = checks.integer(lease_ms, "lease_ms", 1, Limits().lease)
        self._name = (
            checks.name(name, "A runner's name")
            if name is not None
            else f"{socket.gethostname()[:64]}.{os.getpid()}.{backend.clock.nonce()[:4]}"
        )
        self._definitions: dict[str, JobDefinition] = {}
        self._handlers: dict[str, Handler] = {}
        self._port: RunnerPort | None = None
        self._worker: Worker | None = None
        self._work: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._deadline: float | None = None  # of the stop, by the loop's clock
        self._endings = set[asyncio.Task[None]]()

    def register(self, *definitions: JobDefinition) -> Self:
        """Add definitions; a job of the same name is replaced."""
        for definition in definitions:
            self._definitions[definition.name] = definition
            self._handlers[definition.name] = handler_of(definition, self._context, self._patience)
        return self

    def has_definition(self, name: str) -> bool:
        """Whether it has a definition of this name."""
        return name in self._definitions

    async def enqueue(self, job: JobDefinition | str, input: Any = None) -> str:
        """Store a job whose input its definition takes; its id. InvalidValue otherwise, and nothing is stored."""
        definition = job if isinstance(job, JobDefinition) else self._definition(job)
        return await self._backend.enqueue(definition.name, definition.to_stored(input), max_attempts=definition.max_attempts)

    def _definition(self, name: Any) -> JobDefinition:
        if not isinstance(name, str) or name not in self._definitions:
            near = nearest(str(name), self._definitions)
            hint = f"Did you mean {near}?" if near else "Register its definition, or enqueue by the definition itself."
            raise BadInput(f"This runner has no job {name!r:.80}.", hint=hint)
        return self._definitions[name]

    async def status(self, job_id: str) -> JobRecord | None:
        """The record of a job; None if there is none."""
        return await self._backend.status(job_id)

    async def wait_for(self, job_id: str, *, timeout_ms: int = WAIT, poll_ms: int = POLL) -> JobRecord:
        """The record of a job when it has ended; BackendUnreachable when that takes longer, also of a job that does not exist."""
        checks.integer(timeout_ms, "timeout_ms", 0, 2**31 - 1)
        checks.integer(poll_ms, "poll_ms", 1, 2**31 - 1)
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_ms / 1000
        while (record := await self._backend.status(job_id)) is None or record.state not in ENDED:
            if loop.time() >= ends:
                raise _not_ended(job_id, record, timeout_ms)
            await asyncio.sleep(min(poll_ms / 1000, max(0.0, ends - loop.time())))
        return record

    @reaching
    async def start(self, *, concurrency: int = 1) -> None:
        """Execute jobs from now on, as many at once. Without effect where it has been called before."""
        checks.integer(concurrency, "concurrency", 1, LARGEST)
        if self._deadline is not None:
            raise BackendUnreachable("The runner was stopped.", hint="Make another one.")
        if self._work is None:
            loop = asyncio.get_running_loop()
            self._ready = loop.create_future()
            self._work = loop.create_task(self._run(concurrency, self._ready))
            self._work.add_done_callback(self._ended)
            self._backend.use(self)
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def _run(self, concurrency: int, ready: asyncio.Future[None]) -> None:
        """Work until stopped. A worker that had to abandon a handler is replaced by another."""
        info = WorkerInfo(self._name, (self._backend.queue,), slots=concurrency)
        async with self._backend.ports(self._lease) as (engine, parts):
            self._port = RunnerPort(engine, lambda: self._deadline is not None)
            how = {"lease": self._lease, "on_unknown": "fail", **parts}
            async with self._sending(engine):
                while self._deadline is None and (self._worker is None or self._worker.needs_restart):
                    self._worker = Worker(self._port, self._handlers, self._backend.clock, info, **how)
                    if not ready.done():
                        ready.set_result(None)
                    await self._worker.run()

    def _sending(self, engine: Engine) -> AbstractAsyncContextManager[None]:
        if self._webhook is None:
            return contextlib.nullcontext()
        return sending(engine, self._backend.clock, self._backend.queue, self._webhook, lambda: self._deadline)

    def _ended(self, work: asyncio.Task[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error or BackendUnreachable("The runner was stopped before it began.", hint="Make another one."))
        elif error is not None:
            _LOG.error("The runner %s has ended.", self._name, exc_info=error)

    async def stop(self, *, drain: bool = True, timeout_ms: int = STOP) -> None:
        """Claim nothing more and end, within the time.

        With `drain`, handlers may finish, and the backend is closed; what has not finished by then is queued again. Without, their
        signals are raised at once. A handler that fails from now on has failed for good.
        """
        checks.integer(timeout_ms, "timeout_ms", 0, 2**31 - 1)
        seconds = timeout_ms / 1000
        self._deadline = asyncio.get_running_loop().time() + seconds
        ending = asyncio.create_task(self._end(drain, seconds))
        self._endings.add(ending)  # one that takes longer goes on, and a loop keeps no task alive
        ending.add_done_callback(self._endings.discard)
        await asyncio.wait({ending}, timeout=seconds)
        if ending.done():
            ending.result()

    async def _end(self, drain: bool, seconds: float) -> None:
        if self._work is not None:
            with contextlib.suppress(Exception):
                await self._ready  # type: ignore[misc]  # it is there with the work, whose error is raised below
            await self._end_work(drain, round(FORCED * seconds * 1000))
        await self._backend.leave(self, close=drain)
        if self._work is not None and not self._work.cancelled() and (error := self._work.exception()) is not None:
            raise error

    async def _end_work(self, drain: bool, grace: int) -> None:
        assert self._work is not None
        if self._worker is not None:
            # The worker asks handlers to stop some time before the end of its grace; these have all of their time.
            await self._worker.stop(drain=drain, grace=grace + min(LAST_PART, grace // 3) if drain else grace)
        await asyncio.wait({self._work})

    # For handlers

    def _context(self, definition: JobDefinition, context: Context) -> JobContext:
        assert self._port is not None
        run = self._port.pop(context.run, context.token)
        return JobContext(context, input_of(definition, run), metadata_of(run), self._signer)

    def _patience(self, context: Context) -> float:
        """Seconds for which a handler may go on after its signal: none where another worker may have its job."""
        if context.why == "lost":
            return 0.0
        if self._deadline is None:
            return PATIENCE
        return max(0.0, min(PATIENCE, SHARE * (self._deadline - asyncio.get_running_loop().time())))


def _not_ended(job_id: str, record: JobRecord | None, timeout_ms: int) -> BackendUnreachable:
    state = "does not exist" if record is None else f"is still {record.state}"
    return BackendUnreachable(f"The job {job_id!r:.80} {state} after {timeout_ms:,} ms.", hint="Wait longer, or ask for its status.")
