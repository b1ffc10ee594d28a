"""The verbs of the Forge job queue: coroutines over the engine. Routes await them, the module's functions drive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass import payload
from windlass.answers import Outcome
from windlass.dialects.base import Work
from windlass.dialects.forge.words import (
    LARGEST_PAGE,
    LEASE,
    MAX_ATTEMPTS,
    MAX_RUNTIME,
    PAGE,
    QUEUE,
    WORDS,
    Job,
    JobStatus,
    WorkerRecord,
    job_of,
    options_of,
    run_id_of,
    shown_id,
    status_of,
)
from windlass.dialects.leases import KnownLeases, Lease, lease_of
from windlass.engine import ClaimRequest, Engine
from windlass.errors import BadInput, Cancelled, LeaseLost, NotFound, StoreBusy, TooLarge, WindlassError, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import SOLVER, Attempt, Failure, Listed, NewRun, Receipt, Run, Solver, State, WorkerInfo
from windlass.model import WorkerRecord as EngineWorker
from windlass.store.records import Held

CANCELLABLE = (State.WAITING, State.SCHEDULED, State.QUEUED, State.CLAIMED)
HELD = (State.CLAIMED, State.RUNNING)
LARGEST_LIST = 16 * 1024 * 1024
"""Bytes of the params, results and errors of more than 4 KiB that one list may have together."""


class Missing(BadInput):
    """A member that a request must have is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="Send it with the others.")


class NotAssigned(WindlassError):
    """The job is not assigned to this worker."""

    code, status = "not_assigned", 409

    def __init__(self, job_id: str, worker_id: str) -> None:
        super().__init__(f"The job {job_id} is not assigned to the worker {worker_id!r:.80}.", hint="Stop working on it.")


class NotCancellable(NotFound):
    """The job is neither pending nor assigned."""

    code = "not_cancellable"


class CreatedJob(Struct, frozen=True):
    """A job that was just created."""

    id: str
    status: JobStatus = JobStatus.PENDING


class SubmittedResult(Struct, frozen=True):
    """The answer to a result: whether it was known already."""

    duplicate: bool = False
    ok: bool = True


class ReportedFailure(Struct, frozen=True, rename={"new_status": "newStatus"}):
    """The answer to a failure."""

    new_status: JobStatus
    ok: bool = True


class _Alone:
    """The claims and reports of one caller."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def claim(self, request: ClaimRequest) -> list[Run]:
        (answer,) = await self._engine.claim_many([request])
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    async def report_many(self, outcomes: Sequence[Outcome]) -> list[Receipt | WindlassError]:
        return await self._engine.report_many(outcomes)


class JobQueue:
    """The verbs over one queue of an engine."""

    def __init__(self, engine: Engine, queue: str = QUEUE, work: Work | None = None, leases: KnownLeases | None = None) -> None:
        self.engine, self.queue, self._work = engine, queue, work or _Alone(engine)
        self._leases = KnownLeases() if leases is None else leases

    async def create_job(
        self,
        type: str,
        params: Any = None,
        *,
        priority: int | None = None,
        max_attempts: int | None = None,
        max_runtime_ms: int | None = None,
        solver_url: str | None = None,
        solver_checksum: str | None = None,
    ) -> CreatedJob:
        """Create a job. Its type need not be defined anywhere."""
        if not type:
            raise Missing("type is required")
        if max_runtime_ms is not None and max_runtime_ms < 1:
            raise BadInput("max_runtime_ms must be at least 1.", hint="Leave it out for five minutes.")
        options = options_of(
            self.queue,
            0 if priority is None else priority,
            MAX_ATTEMPTS if max_attempts is None else max_attempts,
            MAX_RUNTIME if max_runtime_ms is None else max_runtime_ms,
            Solver(solver_url, solver_checksum or None) if solver_url else None,
        )
        meta = {"solver_checksum": solver_checksum} if solver_checksum and not solver_url else None
        new = NewRun(type, {} if params is None else params, options, meta=meta)
        (created,) = await self.engine.create([new], undefined="wait")
        return CreatedJob(shown_id(created.id))

    async def get_job(self, job_id: str, *, any_queue: bool = True) -> Job:
        """A job by its id; any run of the store has one."""
        run = await (self._find(job_id) if any_queue else self._own(job_id))
        return job_of(run, await self._attempts([run]))

    async def list_jobs(self, status: str | None = None, limit: int = PAGE, offset: int = 0) -> list[Job]:
        """Jobs with a status, those of the highest priority first, then the newest; at most 200, among the newest 10,000 in each state."""
        states = None if status is None else _states(status)
        if limit == 0:
            return []
        runs = await self._whole(await self.engine.ranked(self.queue, states, limit=min(limit, LARGEST_PAGE), offset=offset))
        attempts = await self._by_run(runs)
        return [job_of(run, attempts.get(run.id, ())) for run in runs]

    async def cancel_job(self, job_id: str) -> None:
        """Cancel a job that is pending or assigned."""
        try:
            await self.engine.cancel((await self._own(job_id)).id, reason="cancelled", only=CANCELLABLE)
        except (NotFound, WrongState):
            raise NotCancellable(
                f"No pending or assigned job has the id {job_id:.80}.", hint="List the jobs to see those there are."
            ) from None

    async def register_worker(
        self,
        worker_id: str,
        *,
        name: str | None = None,
        cores: float | None = None,
        ram_gb: float | None = None,
        tags: Sequence[str] | None = None,
    ) -> None:
        """Register a worker, or renew what is known of it. Its name is kept when none is given; one core, 1 GB and no tags are assumed."""
        memory = round(_amount(1.0 if ram_gb is None else ram_gb, "ram_gb") * 1024)
        worker = self._worker(worker_id, None, tags or (), int(_amount(1 if cores is None else cores, "cores")), memory)
        await self.engine.register(worker, about=None if name is None else {"name": name})

    async def list_workers(self) -> list[WorkerRecord]:
        """The workers that have registered, by their ids."""
        workers, after = [], ""
        while page := await self.engine.workers(after=after, count=1_000):
            workers += [_worker_of(record) for record in page if self.queue in (record.info.queues or ())]
            after = page[-1].info.name
        return workers

    async def claim_job(self, worker_id: str, types: Sequence[str] | None = None) -> Job | None:
        """Assign the next job of these types to a worker; without types, of any."""
        request = self.engine.asking(self._worker(worker_id, types), lease=LEASE)
        await self.engine.seen(worker_id)  # before the claim: an error after it would leave a job to its lease
        runs = await self._work.claim(request)
        for run in runs:
            self._leases.add(run)
        # An agent finds the program of a job by its type, so it is told the handler.
        return replace(job_of(runs[0], await self._attempts(runs)), type=runs[0].handler) if runs else None

    async def heartbeat_job(self, job_id: str, worker_id: str) -> None:
        """Renew the lease of a worker; the first time, the job is running from then on."""
        run = await self._assigned(job_id, worker_id)
        try:
            if run.state is State.CLAIMED:
                await self.engine.start(run.id, run.token or "", seq=run.seq)
        except (LeaseLost, Cancelled):
            raise NotAssigned(job_id, worker_id) from None
        (answer,) = await self.engine.beat([Held(run.seq, run.token or "")], lease=LEASE)
        if answer == "unknown":
            raise StoreBusy("The job is locked by another transaction.", hint="Send the heartbeat again.")
        if answer != "ok":
            raise NotAssigned(job_id, worker_id)

    async def submit_result(
        self, job_id: str, worker_id: str, result: Any = None, *, result_hash: str | None = None, idempotency_key: str | None = None
    ) -> SubmittedResult:
        """Complete a job. The same result again changes nothing, whichever worker sends it.

        A result that cannot be stored is refused, and the attempt fails with that reason.
        """
        try:
            output = payload.encode(result, limit=self.engine.limits.output, what="The result")
            report = Succeed(output=output, output_hash=result_hash or None, key=idempotency_key or None)
            return SubmittedResult((await self._report(job_id, worker_id, report)).repeated)
        except BadInput as error:
            await self._fail_instead(job_id, worker_id, error)
            raise

    async def fail_job(self, job_id: str, worker_id: str, reason: str) -> ReportedFailure:
        """Report a failure: the job is pending again, or quarantined after its last attempt."""
        report = Fail(error=Failure("failed", reason))
        return ReportedFailure(status_of((await self._report(job_id, worker_id, report)).state))

    async def reap_stale_jobs(self) -> int:
        """Reclaim jobs whose worker has sent no heartbeat for a minute, and end those that ran for too long; returns how many."""
        return await self.engine.lapse()

    async def counts_by_worker(self) -> dict[str, int]:
        """How many jobs each worker has."""
        return await self.engine.counts_by_worker(self.queue)

    # Runs

    async def _find(self, job_id: str) -> Run:
        """A run of any queue."""
        run_id = run_id_of(job_id)
        if run_id is None:
            raise NotFound(f"{job_id!r:.80} is not the id of a job.", hint="Ids have 32 hexadecimal digits.")
        return await self.engine.get(run_id)

    async def _own(self, job_id: str) -> Run:
        """A run of the own queue: nothing else can be changed by this protocol, which has no token."""
        run = await self._find(job_id)
        if run.queue != self.queue:
            raise NotFound(f"There is no job {job_id} in the queue {self.queue}.", hint="Jobs of other queues can only be read.")
        return run

    async def _assigned(self, job_id: str, worker_id: str) -> Run:
        run = await self._own(job_id)
        if not _has(run, worker_id):
            raise NotAssigned(job_id, worker_id)
        return run

    def _worker(self, worker_id: str, types: Sequence[str] | None, tags: Sequence[str] = (), cores: int = 1, memory: int = 0) -> WorkerInfo:
        """A worker that may claim whatever it holds already, and that executes any program."""
        all_tags = tuple(dict.fromkeys((*tags, SOLVER)))
        return WorkerInfo(worker_id, (self.queue,), tuple(types) if types else None, all_tags, cores, memory, slots=2)

    async def _report(self, job_id: str, worker_id: str, report: Succeed | Fail) -> Receipt:
        """Report under the lease that was handed out here; if that is not known, or over, under the one that the store has."""
        if (lease := self._leases.pop(run_id_of(job_id), worker_id)) is not None:
            with suppress(NotAssigned, WrongState):
                receipt = await self._report_under(lease, report)
                if not receipt.repeated:  # else another hub has stored it, and this may be the report of the worker's next lease
                    return receipt
        run = await self._own(job_id)
        known = run.state is State.SUCCEEDED and isinstance(report, Succeed)  # the engine compares the results
        if not known and not _has(run, worker_id):
            raise NotAssigned(job_id, worker_id)
        return await self._report_under(lease_of(run), report)

    async def _report_under(self, lease: Lease, report: Succeed | Fail) -> Receipt:
        (answer,) = await self._work.report_many([Outcome(lease.run, replace(report, token=lease.token), lease.seq)])
        if isinstance(answer, LeaseLost | Cancelled):
            raise NotAssigned(shown_id(lease.run), lease.worker)
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    async def _fail_instead(self, job_id: str, worker_id: str, error: WindlassError) -> None:
        """End an attempt whose result cannot be stored: agents ignore the answer, and would never send another."""
        run = await self._own(job_id)
        if run.state is not State.SUCCEEDED:
            await self._report(job_id, worker_id, Fail(error=Failure("failed", error.message)))

    # Rows

    async def _attempts(self, runs: Sequence[Run]) -> Sequence[Attempt]:
        return next(iter((await self._by_run(runs)).values()), ())

    async def _by_run(self, runs: Sequence[Run]) -> Mapping[str, Sequence[Attempt]]:
        """The attempts of those runs that have several."""
        return await self.engine.attempts_of([run for run in runs if run.attempt > 1])

    async def _whole(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Listed runs with what their list has left out."""
        cut = {run.id: sum(run.sizes.values()) for run in runs if isinstance(run, Listed)}
        if sum(cut.values()) > LARGEST_LIST:
            raise TooLarge(f"These {len(runs)} jobs have {sum(cut.values()):,} bytes.", hint="Ask for fewer with a smaller limit.")
        whole = {run.id: run for run in await self.engine.get_many(list(cut))} if cut else {}
        return [whole.get(run.id, run) for run in runs if run.id not in cut or run.id in whole]


def _states(status: str) -> tuple[State, ...]:
    states = WORDS.states(status)
    if not states:
        raise BadInput(f"There is no status {status!r:.40}.", hint=f"Use one of {', '.join(JobStatus)}.")
    return states


def _has(run: Run, worker_id: str) -> bool:
    """Whether a worker may still report on a run. One that is being cancelled ends with the report, and its worker is refused."""
    return run.worker == worker_id and run.state in (*HELD, State.CANCELLING)


def _amount(value: float, what: str) -> float:
    if not 0 <= value <= 2**20:
        raise BadInput(f"{what} must be a number from 0 to {2**20:,}.", hint="Leave it out if it is not known.")
    return value


def _worker_of(record: EngineWorker) -> WorkerRecord:
    info, name = record.info, record.about.get("name")
    tags = msgspec.json.encode([tag for tag in info.tags if tag != SOLVER]).decode()
    return WorkerRecord(info.name, name, info.cores, info.memory / 1024, tags, record.registered_at, record.seen_at)
