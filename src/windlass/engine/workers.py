"""Workers: their registration, their metrics, and the runs they hold."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from windlass import payload as json
from windlass.answers import PendingWork
from windlass.engine import checks
from windlass.engine.ground import Part
from windlass.engine.sightings import SEEN_EVERY
from windlass.errors import BadInput, LimitReached, NotFound, WrongState
from windlass.model import WorkerInfo, WorkerRecord
from windlass.store.rows import pack

WORKERS = 10_000  # workers that are kept, live ones and those seen within a day
FEW = 5

SOON = 15_000
"""Milliseconds within which a recovered run that is retried counts as left to do: more than the first of the usual delays."""


class Workers(Part):
    """The verbs by which workers register, and by which they are listed."""

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None:
        """Register a worker, seen now; its description replaces the former one, unless it sends none.

        `schemas` has a fingerprint of what its code accepts for each job, so that a payload which does not fit there is offered to
        workers with other code.
        """
        check_worker(worker)
        accepted = None if schemas is None else pack(checks.schemas(schemas, self.limits))
        if await self.records.workers.besides(worker.name) >= WORKERS:
            raise LimitReached(
                f"There are {WORKERS:,} workers already.",
                hint="Give workers the same names at every start; silent ones are forgotten after a day.",
            )
        text = None if about is None else json.encode(dict(about), limit=self.limits.about, what="The worker's description")
        await self.records.workers.register(worker, text, accepted, self.clock.now())

    async def metrics(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Store the metrics of a worker's host; they replace the former ones, and count as a sign of life."""
        checks.name(worker, "A worker's name")
        checks.kind(metrics, "metrics", Mapping)
        checks.count(list(metrics), "metrics of a worker", self.limits.metrics)
        for name, number in metrics.items():
            _number(number, checks.name(name, "A metric's name"))
        if not await self.records.workers.keep_metrics(worker, metrics, self.clock.now()):
            raise NotFound(f"There is no worker {worker}.", hint="Register it first; one that was silent for too long is forgotten.")

    async def seen(self, worker: str) -> None:
        """A registered worker is alive. At most every 15 seconds that is stored; of an unknown worker nothing is."""
        checks.name(worker, "A worker's name")
        if not self.ground.seen.is_due(worker, self.clock.monotonic()):
            return
        now = self.clock.now()
        await self.records.workers.note_seen(worker, now, now - SEEN_EVERY)
        self.ground.seen.note(worker, self.clock.monotonic())

    async def counts(self, queue: str) -> dict[str, int]:
        """How many runs of a queue each worker has claimed or runs; those that are being cancelled are not counted."""
        return await self.records.workers.counts(checks.name(queue, "A queue's name"))

    async def page(self, *, after: str = "", count: int = 100) -> list[WorkerRecord]:
        """Workers by name, live and recently seen, with the runs they hold now."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.name(after, "A worker's name")
        rows = await self.records.workers.after(after, count)
        held = await self.records.workers.held_by([one.info.name for one in rows], FEW) if rows else {}
        since = self.clock.now() - self.limits.worker_silence
        return [WorkerRecord(*one[:-1], one.alive(since), *held.get(one.info.name, (0, ())), one.stopped_at) for one in rows]

    async def living(self) -> list[WorkerInfo]:
        """The workers that are alive."""
        return await self.records.workers.seen(self.clock.now() - self.limits.worker_silence)

    async def prune(self) -> None:
        """Forget workers that were not seen for long."""
        await self.records.workers.drop_silent(self.clock.now() - self.limits.keep_workers, self.limits.page)

    async def drop(self, name: str) -> None:
        """Forget a silent worker; one that is alive registers again."""
        checks.name(name, "A worker's name")
        seen_at, since = await self.records.workers.seen_at(name), self.clock.now() - self.limits.worker_silence
        if seen_at is None:
            raise NotFound(f"There is no worker {name!r}.", hint="`windlass workers` shows those there are.")
        if seen_at >= since or not await self.records.workers.drop(name, since):
            raise WrongState(f"Worker {name!r} is alive.", hint="Stop it first; one that is silent for a minute can be removed.")

    async def left(self) -> PendingWork:
        """The runs that workers hold now, and when the first recovered run that is retried soon is due."""
        now = self.clock.now()
        leases = await self.records.workers.leases(now)  # first: a run that is recovered meanwhile is found in one of the two
        return PendingWork(leases, await self.records.workers.recovered_due(now + SOON))


def check_worker(worker: WorkerInfo) -> None:
    """The description of a worker is valid."""
    checks.name(worker.name, "A worker's name")
    checks.names(worker.queues, "A queue's name")
    checks.names(worker.jobs, "A job's name")
    checks.names(worker.tags, "A tag")
    checks.integer(worker.slots, "slots", 1, 2**20)
    checks.integer(worker.cores, "cores", 0, 2**20)
    checks.integer(worker.memory, "memory", 0, 2**40)
    checks.kind(worker.programs, "programs", bool)


def _number(value: Any, name: str) -> None:
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > 2**63 - 1:
        raise BadInput(f"The metric {name} is {value!r:.80}, which is no number.", hint="Send finite numbers only.")
