"""The backend: the only part that changes the state of jobs. It is the engine on a store, in the protocol's verbs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from windlass import payload as json
from windlass.app.ports import StorePorts, shared_ports, store_ports
from windlass.app.signatures import plain
from windlass.clock import Clock, SystemClock
from windlass.config import load
from windlass.config.addresses import MEMORY, located
from windlass.config.opening import open_store
from windlass.dialects.leases import KnownLeases, Lease, lease_of
from windlass.dialects.zerog.errors import BackendUnreachable, InvalidValue, JobNotFound, reaching
from windlass.dialects.zerog.settings import own_queue
from windlass.dialects.zerog.words import LEASE, MAX_ATTEMPTS, JobRecord, needs_attempts, options_of, record_of
from windlass.engine import Engine, checks
from windlass.errors import BadInput, NotFound, Pruned, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import Failure, Limits, NewRun, Receipt, Run, WorkerInfo
from windlass.worker.outcomes import failure_of

SWEEP_EVERY = 1_000
"""Milliseconds between two sweeps by claims that found nothing."""
SLOTS = 1_000
"""Jobs that one worker may hold by claims without a runner."""


class JobBackend:
    """The jobs of one queue of a store, for the coroutines of one event loop. The store is opened when it is first used."""

    def __init__(
        self, address: str | os.PathLike[str], *, queue: str | None = None, clock: Clock | None = None, limits: Limits | None = None
    ) -> None:
        self.queue = own_queue() if queue is None else checks.name(queue, "A queue's name")
        self.clock, self._limits = clock or SystemClock(), limits or Limits()
        self._address = MEMORY if address == "memory" else os.fspath(address)
        self._opened: Engine | None = None
        self._leases, self._closed = KnownLeases(), False
        self._sweep_at: int | None = None  # by the monotonic clock
        self._users = set[object]()

    @property
    def engine(self) -> Engine:
        """The engine on the store."""
        if self._closed:
            raise BackendUnreachable("The backend is closed.", hint="Open another: backend(address).")
        if self._opened is None:
            store = open_store(self._address, self.clock, blocking=self._in_memory, settings=load())
            self._opened = Engine(store, self.clock, self._limits)
        return self._opened

    @property
    def _in_memory(self) -> bool:
        return located(self._address).place == MEMORY

    @reaching
    async def enqueue(self, name: str, input: Any = None, *, max_attempts: int = MAX_ATTEMPTS) -> str:
        """Store a job; its id. The job need not be defined anywhere."""
        engine = self.engine
        try:
            new = NewRun(name, plain(input), options_of(self.queue, max_attempts))
            (created,) = await engine.create([new], undefined="wait")
        except (BadInput, TypeError, RecursionError) as error:
            raise _invalid("The input", error) from error
        return created.id

    @reaching
    async def claim(self, worker_id: str, *, lease_ms: int = LEASE) -> JobRecord | None:
        """Give the oldest job to a worker, for as long as the lease; None when there is none.

        A job that is not completed by then is given out again. Runners renew the leases of their jobs.
        """
        worker = WorkerInfo(worker_id, (self.queue,), slots=SLOTS)
        runs = await self.engine.claim(worker, lease=lease_ms)
        if not runs and await self._swept():
            runs = await self.engine.claim(worker, lease=lease_ms)
        for run in runs:
            self._leases.add(run)
        return await self._record(runs[0]) if runs else None

    async def _swept(self) -> bool:
        """Do what a runner's sweeps do, where there may be none; whether it is time for that."""
        now = self.clock.monotonic()
        if self._sweep_at is not None and now < self._sweep_at:
            return False
        self._sweep_at = now + SWEEP_EVERY
        await self.engine.sweep()
        return True

    @reaching
    async def complete(self, job_id: str, result: Any = None, *, worker_id: str | None = None) -> None:
        """End a job as done. A job that was claimed through another backend needs the id of the worker that holds it."""
        try:
            values = plain(result)
            output = None if values is None else json.encode(values, limit=self.engine.limits.output, what="The result")
        except (BadInput, TypeError, RecursionError) as error:
            raise _invalid("The result", error) from error
        await self._report(job_id, worker_id, Succeed(output=output))

    @reaching
    async def fail(
        self, job_id: str, error: str | BaseException, retry: bool = True, *, delay_ms: int = 0, worker_id: str | None = None
    ) -> None:
        """End an attempt badly. With `retry`, the job is queued again while it has attempts left; otherwise it has failed."""
        failure = failure_of(error) if isinstance(error, BaseException) else Failure("failed", error)
        await self._report(job_id, worker_id, Fail(error=failure, retry=retry, delay=delay_ms))

    async def _report(self, job_id: str, worker_id: str | None, report: Succeed | Fail) -> Receipt:
        lease = await self._lease(job_id, worker_id)
        return await self.engine.report(lease.run, replace(report, token=lease.token), seq=lease.seq)

    async def _lease(self, job_id: Any, worker_id: str | None) -> Lease:
        """The lease that was handed out here, or that the store has for the worker."""
        lease = self._leases.find(job_id) if isinstance(job_id, str) else None
        if lease is not None and worker_id in (None, lease.worker):
            return lease
        run = await self._own(job_id)
        if run.worker is None or run.worker != worker_id:
            holder = "this backend" if worker_id is None else f"the worker {worker_id!r:.80}"
            hint = "Claim it first, or name the worker that holds it: worker_id=..."
            raise WrongState(f"The job {job_id} was not claimed by {holder}; it is {run.state}.", hint=hint)
        return lease_of(run)

    @reaching
    async def cancel(self, job_id: str) -> None:
        """Cancel a job: at once if it is queued, else its handler is asked to stop. One that has ended stays as it is."""
        run = await self._own(job_id)
        try:
            await self.engine.cancel(run.id)
        except WrongState:
            return  # it has ended

    @reaching
    async def status(self, job_id: str) -> JobRecord | None:
        """The record of a job; None if there is none. Any run of the store has one."""
        run = await self._find(job_id)
        return None if run is None else await self._record(run)

    async def close(self) -> None:
        """Close the store."""
        opened, self._opened, self._closed = self._opened, None, True
        if opened is not None:
            await opened.close()

    # For runners

    @asynccontextmanager
    async def ports(self, lease: int) -> AsyncIterator[StorePorts]:
        """Connections of their own for one worker, all of them to this store."""
        if self._in_memory:
            yield shared_ports(self.engine)
        else:
            async with store_ports(self._address, self.clock, self._limits, load(), lease) as ports:
                yield ports

    def use(self, runner: object) -> None:
        """A runner begins to use the backend."""
        self._users.add(runner)

    async def leave(self, runner: object, *, close: bool) -> None:
        """A runner has ended. The last one may close the backend."""
        self._users.discard(runner)
        if close and not self._users:
            await self.close()

    # Runs

    async def _find(self, job_id: str) -> Run | None:
        try:
            return await self.engine.get(job_id)
        except (NotFound, Pruned, BadInput):
            return None

    async def _own(self, job_id: str) -> Run:
        """A run of the own queue: nothing else can be changed by this protocol, which has no token."""
        run = await self._find(job_id)
        if run is None or run.queue != self.queue:
            raise JobNotFound(job_id)
        return run

    async def _record(self, run: Run) -> JobRecord:
        attempts = (await self.engine.attempts_of([run]))[run.id] if needs_attempts(run) else ()
        return record_of(run, attempts)


def backend(
    address: str | os.PathLike[str],
    *,
    queue: str | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> JobBackend:
    """The backend on a store: a file, postgresql://..., or "memory"."""
    return JobBackend(address, queue=queue, clock=clock, limits=limits)


def _invalid(what: str, error: Exception) -> InvalidValue:
    if isinstance(error, BadInput):
        return InvalidValue(error.message, hint=error.hint)
    return InvalidValue(f"{what} cannot be stored: {error}.", hint="Use what JSON has: objects, arrays, texts, numbers.")
