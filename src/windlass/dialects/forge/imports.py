"""Imports the jobs of a file that another program of this protocol has made."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass import payload
from windlass.answers import Outcome
from windlass.dialects.forge.hosting import is_of_another_program, open_read_only
from windlass.dialects.forge.words import LEASE, QUEUE, options_of, run_id_of
from windlass.engine import Engine
from windlass.errors import BadInput, WindlassError
from windlass.machine import ENDED, Fail, Report, Requeue, Succeed
from windlass.model import SOLVER, Failure, NewRun, Requires, Run, Solver, State, WorkerInfo

BATCH = 200
NOBODY = "import"
"""The worker of jobs that name none."""

_META = 3_500  # bytes
_CODES = {"max_runtime_exceeded": "max_runtime_exceeded", "heartbeat_timeout": "worker_lost"}
_OPEN = ("pending", "assigned", "running")
_is_name = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}").fullmatch


class OldJob(NamedTuple):
    """A row of the file, as far as it is taken over."""

    id: str
    type: str
    params: str
    status: str
    priority: int
    worker_id: str | None
    result: str | None
    result_hash: str | None
    created_at: float
    claimed_at: float | None
    completed_at: float | None
    attempts: int
    max_attempts: int
    max_runtime_ms: float
    fail_reason: str | None
    fail_history: str
    solver_url: str | None
    solver_checksum: str | None

    @property
    def run_id(self) -> str:
        """The id as a run has it; one of another form stands for an id that is made of it."""
        return run_id_of(self.id) or str(UUID(hashlib.sha256(self.id.encode()).hexdigest()[:32]))

    @property
    def is_open(self) -> bool:
        return self.status in _OPEN

    @property
    def worker(self) -> str:
        return self.worker_id if self.worker_id and _is_name(self.worker_id) else NOBODY


class ImportResult(Struct):
    """How many jobs were taken over to be executed and as history, how many there were already, and which could not be, and why."""

    pending: int = 0
    ended: int = 0
    known: int = 0
    refused: list[tuple[str, str]] = []


def read_jobs(path: str, *, ended: bool) -> Iterator[list[OldJob]]:
    """The jobs of a file that have ended, or that have not, oldest first, in batches."""
    if not is_of_another_program(path):
        raise BadInput(
            f"{path} is not a file of another program of the Forge protocol.", hint="Name the file that its SQLITE_PATH has named."
        )
    marks = ", ".join("?" * len(_OPEN))
    query = f"select {', '.join(OldJob._fields)} from jobs where status {'not in' if ended else 'in'} ({marks}) order by created_at, rowid"  # noqa: S608
    try:
        with closing(open_read_only(path)) as db:
            rows = db.execute(query, _OPEN)
            while batch := rows.fetchmany(BATCH):
                yield [OldJob(*row) for row in batch]
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{path} cannot be read: {error}.", hint="Check the file, and whether this user may read it.") from error


class Import:
    """Imports jobs by the engine's own verbs: ended ones are created, claimed and reported once more."""

    def __init__(self, engine: Engine, queue: str = QUEUE) -> None:
        self._engine, self._queue, self.result = engine, queue, ImportResult()

    async def run(self, path: str) -> ImportResult:
        """Take over what has ended first, because no other job may be in the queue meanwhile. Repeated, it goes on where it ended."""
        for batch in read_jobs(path, ended=True):
            await self._add_ended(batch)
        for batch in read_jobs(path, ended=False):
            self.result.pending += len(await self._create(batch))
        return self.result

    async def _add_ended(self, batch: Sequence[OldJob]) -> None:
        await self._check_queue(batch)
        await self._create(batch)
        by_id = {job.run_id: job for job in batch}
        runs = [run for run in await self._engine.get_many(list(by_id)) if run.state not in ENDED]
        claimable = dict[str, list[Run]]()
        for run in runs:
            job = by_id[run.id]
            if job.status == "failed":
                await self._engine.cancel(run.id, reason=job.fail_reason or "cancelled")
            else:
                claimable.setdefault(job.worker, []).append(run)
        for worker, waiting in claimable.items():
            await self._end(worker, len(waiting), by_id)
        self.result.ended += len(runs)

    async def _check_queue(self, batch: Sequence[OldJob]) -> None:
        """Refuse a queue in which a claim could take other jobs than the imported ones."""
        own = {job.run_id for job in batch}
        pending = await self._engine.ranked(self._queue, (State.QUEUED,), limit=len(own) + 1)
        if any(run.id not in own for run in pending) and len(await self._engine.get_many(list(own))) < len(own):
            raise BadInput(
                f"Jobs wait in the queue {self._queue}, so history cannot be imported now.",
                hint="Import into a new store, before its hub is started.",
            )

    async def _create(self, batch: Sequence[OldJob]) -> list[OldJob]:
        """Create the runs of these jobs; those that are new."""
        news, jobs = list[NewRun](), list[OldJob]()
        for job in batch:
            try:
                news.append(self._new(job))
                jobs.append(job)
            except WindlassError as error:
                self._refuse(job, error)
        return await self._store(news, jobs)

    async def _store(self, news: Sequence[NewRun], jobs: Sequence[OldJob]) -> list[OldJob]:
        try:
            created = await self._engine.create(news, undefined="wait")
        except BadInput as error:
            if len(news) == 1:
                self._refuse(jobs[0], error)
                return []
            half = len(news) // 2
            return [*await self._store(news[:half], jobs[:half]), *await self._store(news[half:], jobs[half:])]
        fresh = [job for job, answer in zip(jobs, created, strict=True) if answer.created]
        self.result.known += len(jobs) - len(fresh)
        return fresh

    def _refuse(self, job: OldJob, error: WindlassError) -> None:
        self.result.refused.append((job.id, str(error)))

    def _new(self, job: OldJob) -> NewRun:
        solver = Solver(job.solver_url, job.solver_checksum or None) if job.solver_url else None
        options = options_of(self._queue, job.priority, job.max_attempts, int(job.max_runtime_ms), solver)
        if not job.is_open:  # so that no other worker claims what is history
            options = replace(options, requires=Requires((_tag(job.worker),)))
        return NewRun(job.type, _value_of(job.params), options, meta={"forge": _facts(job)}, id=job.run_id)

    async def _end(self, worker: str, count: int, by_id: dict[str, OldJob]) -> None:
        """Claim so many runs as their worker, and report how they ended."""
        info = WorkerInfo(worker, (self._queue,), tags=(_tag(worker), SOLVER), slots=count + 1, programs=True)
        runs = await self._engine.claim(info, count=count, lease=LEASE)
        outcomes = [Outcome(run.id, self._report_of(run, by_id.get(run.id)), run.seq) for run in runs]
        for outcome, answer in zip(outcomes, await self._engine.report_many(outcomes), strict=True):
            if isinstance(answer, WindlassError):
                await self._engine.report(outcome.run, self._not_imported(by_id[outcome.run], outcome.report.token, answer))

    def _report_of(self, run: Run, job: OldJob | None) -> Report:
        if job is None:  # of another producer, created in the moment of the claim
            return Requeue(token=run.token, begun=False)
        if job.status != "completed":
            reason = job.fail_reason or "quarantined"
            return Fail(token=run.token, error=Failure(_CODES.get(reason, "failed"), reason), retry=False)
        try:
            output = None if job.result is None else payload.encode(job.result, limit=self._engine.limits.output, what="The result")
        except BadInput as error:
            return self._not_imported(job, run.token, error)
        return Succeed(token=run.token, output=output, output_hash=job.result_hash)

    def _not_imported(self, job: OldJob, token: str | None, error: WindlassError) -> Fail:
        """The end of a job whose own end cannot be stored."""
        self._refuse(job, error)
        return Fail(token=token, error=Failure("not_imported", f"Its end could not be imported: {error.message}"), retry=False)


def _tag(worker: str) -> str:
    return f"forge-import-{hashlib.sha256(worker.encode()).hexdigest()[:16]}"


def _value_of(text: str) -> Any:
    """The params; a text that is no JSON stays a text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError):
        return text


def _facts(job: OldJob) -> dict[str, Any]:
    """Its times, attempts and failures as they were, which a run cannot have; the oldest failures are left out where they are long."""
    facts = {name: getattr(job, name) for name in ("id", "worker_id", "created_at", "claimed_at", "completed_at", "attempts")}
    failures = _value_of(job.fail_history)
    facts["fail_history"] = failures if isinstance(failures, list) else []
    while facts["fail_history"] and len(msgspec.json.encode(facts)) > _META:
        facts["fail_history"] = facts["fail_history"][1:]
    return facts
