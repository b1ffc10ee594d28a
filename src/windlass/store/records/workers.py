"""Workers with their descriptions, the runs they hold, and their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from windlass.model import Leases, Life, Run, WorkerInfo
from windlass.payload import reader
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack, run_of

BATCHES: Mapping[str, tuple[str, ...]] = {
    "metrics": ("keep_metrics",),
    "seen": ("note_seen",),
    "drop_workers": ("drop_workers", "drop_lives"),
    "begin_life": ("begin_life",),
    "end_lives": ("end_lives",),
    "stop_worker": ("stop_worker",),
}

_numbers = reader(dict[str, int | float])
_named = reader(dict[str, Any])
_names = reader(tuple[str, ...] | None)
_told = reader(dict[str, str])


class WorkerRow(NamedTuple):
    """A row of `workers`."""

    info: WorkerInfo
    about: dict[str, Any]
    metrics: dict[str, int | float]
    metrics_at: int | None
    registered_at: int
    seen_at: int
    stopped_at: int | None

    def alive(self, since: int) -> bool:
        """Whether it was seen since a time, and has not reported its stop."""
        return self.seen_at >= since and self.stopped_at is None


class WorkerRecords(Rows):
    """Workers."""

    async def register(self, worker: WorkerInfo, about: str | None, schemas: str | None, now: int) -> None:
        listed = {name: None if (value := getattr(worker, name)) is None else pack(value) for name in ("queues", "jobs", "tags")}
        numbers = {name: int(getattr(worker, name)) for name in ("cores", "memory", "slots", "programs")}
        values: dict[str, Value] = {"name": worker.name, **numbers, **listed, "about": about, "schemas": schemas, "now": now}
        await self._batch("register", Statement("register", values))

    async def seen(self, since: int) -> list[WorkerInfo]:
        return [_worker_of(row) for row in await self._read("workers_seen", since=since)]

    async def schemas_seen(self, since: int) -> list[tuple[WorkerInfo, dict[str, str]]]:
        """The workers seen since a time, each with the schema fingerprints of its jobs."""
        rows = await self._read("schemas_seen", since=since)
        return [(_worker_of(row), _told(row[-1]) if row[-1] is not None else {}) for row in rows]

    async def note_seen(self, worker: str, now: int, before: int) -> None:
        """Store that a worker is alive, if it is registered and was not seen since a time."""
        await self._batch("seen", Statement("note_seen", {"name": worker, "now": now, "before": before}))

    async def keep_metrics(self, worker: str, metrics: Mapping[str, float], now: int) -> bool:
        """Whether the worker exists."""
        return bool((await self._batch("metrics", Statement("keep_metrics", {"name": worker, "metrics": pack(metrics), "now": now})))[0])

    async def besides(self, name: str) -> int:
        """The number of other workers."""
        return int((await self._read("workers_besides", name=name))[0][0])

    async def after(self, name: str, count: int) -> list[WorkerRow]:
        return [_seen(row) for row in await self._read("workers_after", after=name, count=count)]

    async def held_by(self, workers: Sequence[str], few: int) -> dict[str, tuple[int, tuple[str, ...]]]:
        """How many runs each of these workers holds, and the ids of the first few."""
        leases: dict[str, tuple[int, tuple[str, ...]]] = {}
        for worker, held, run in await self._read("held_by_workers", names=pack(workers), few=few):
            leases[worker] = (held, (*leases.get(worker, (0, ()))[1], run))
        return leases

    async def counts(self, queue: str) -> dict[str, int]:
        """How many runs of a queue each worker holds that are not being cancelled."""
        return dict(await self._read("held_of_queue", queue=queue))

    async def leases(self, now: int, count: int = 1_000) -> list[Leases]:
        """The leases of workers, by worker and by length of the lease."""
        return [Leases(*row) for row in await self._read("leases", now=now, count=count)]

    async def recovered_due(self, until: int) -> int | None:
        """When the first run that was recovered from a lost worker is due, if that is before a time."""
        return next((due for (due,) in await self._read("recovered_due", until=until)), None)

    async def drop_silent(self, before: int, count: int) -> None:
        """Remove workers that were not seen since a time."""
        names = [name for (name,) in await self._read("silent_workers", before=before, count=count)]
        if names:
            await self._drop(names, before)

    async def drop(self, name: str, before: int) -> bool:
        """Remove a worker that was not seen since a time; whether it existed."""
        return await self._drop([name], before)

    async def _drop(self, names: Sequence[str], before: int) -> bool:
        drop, lives = Statement("drop_workers", {"names": pack(names), "before": before}), Statement("drop_lives", {"names": pack(names)})
        return bool((await self._batch("drop_workers", drop, lives))[0])

    async def seen_at(self, name: str) -> int | None:
        """When a worker was last seen; None: there is none of this name."""
        return next((seen_at for (seen_at,) in await self._read("worker_named", name=name)), None)

    # Processes of workers

    async def begin_life(self, worker: str, life: Life, now: int) -> list[Life]:
        """Record a process of a worker, if that is registered; returns all recorded ones, eldest first."""
        values: dict[str, Value] = {"worker": worker, "tag": life.tag, "process": life.process, "now": now}
        answers = await self._batch("begin_life", Statement("begin_life", values), Statement("lives", {"worker": worker}))
        return [Life(*row) for row in answers[1]]

    async def lives(self, worker: str) -> list[Life]:
        """The recorded processes of a worker, eldest first."""
        return [Life(*row) for row in await self._read("lives", worker=worker)]

    async def held_by_lives(self, worker: str, tags: Sequence[str], count: int) -> list[Run]:
        return [run_of(row) for row in await self._read("held_by_lives", worker=worker, tags=pack(tags), count=count)]

    async def end_lives(self, worker: str, tags: Sequence[str]) -> None:
        await self._batch("end_lives", Statement("end_lives", {"worker": worker, "tags": pack(sorted(tags))}))

    async def about(self, worker: str) -> str | None:
        """The description of a worker, as stored; None where there is no worker, "" where it sent no description."""
        return next((about or "" for (about,) in await self._read("worker_about", name=worker)), None)

    async def stop(self, worker: str, about: str, now: int) -> None:
        """Record that a worker of this description has stopped; where another process of its name is left, clear only the description."""
        await self._batch("stop_worker", Statement("stop_worker", {"name": worker, "about": about, "now": now}))


def _seen(row: Row) -> WorkerRow:
    *_, about, metrics, metrics_at, registered_at, seen_at, stopped_at = row
    facts = _named(about or "{}"), _numbers(metrics or "{}")
    return WorkerRow(_worker_of(row), *facts, metrics_at, registered_at, seen_at, stopped_at)


def _worker_of(row: Row) -> WorkerInfo:
    name, queues, jobs, tags, cores, memory, slots, programs, *_ = row
    lists = _names(queues or "null"), _names(jobs or "null"), _names(tags or "null") or ()
    return WorkerInfo(name, *lists, cores, memory, slots, bool(programs))
