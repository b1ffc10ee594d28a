"""Workers as they describe themselves, and how much there was in each minute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windlass.machine import UNFINISHED
from windlass.model import Counts, Leases, Life, Run, State, WorkerInfo
from windlass.store.base import Row, Statement, Value
from windlass.store.columns import COUNTS
from windlass.store.rows import pack, run_of
from windlass.store.tails import ADVANCE, Tails

BATCHES: Mapping[str, tuple[str, ...]] = {
    "metrics": ("keep_metrics",),
    "drop_workers": ("drop_workers", "drop_lives"),
    "begin_life": ("begin_life",),
    "end_lives": ("end_lives",),
    "stop_worker": ("stop_worker",),
    "drop_totals": ("lock_totals", "keep_totals", "drop_totals"),
    "roll_up": (*ADVANCE, "add_minutes", "add_totals", "drop_minutes"),
}

FOLLOWER = "stats"

_numbers = msgspec.json.Decoder(dict[str, int | float]).decode
_named = msgspec.json.Decoder(dict[str, Any]).decode
_names = msgspec.json.Decoder(tuple[str, ...] | None).decode


class Seen(NamedTuple):
    """A row of `workers`."""

    info: WorkerInfo
    about: dict[str, Any]
    metrics: dict[str, int | float]
    metrics_at: int | None
    registered_at: int
    seen_at: int
    stopped_at: int | None

    def alive(self, since: int) -> bool:
        """Whether it was heard of since, and has not said that it stops."""
        return self.seen_at >= since and self.stopped_at is None


class Total(NamedTuple):
    """How many runs are in the states that are left again, and how much there was from the beginning."""

    unfinished: dict[State, int]
    counts: Counts


Tally = Mapping[str, int]
"""What some entries add to columns, by name; those that are missing stay as they are."""


def _seen(row: Row) -> Seen:
    name, queues, jobs, tags, cores, memory, slots, about, metrics, *times = row
    info = WorkerInfo(name, _names(queues or "null"), _names(jobs or "null"), _names(tags) or (), cores, memory, slots)
    return Seen(info, _named(about or "{}"), _numbers(metrics or "{}"), *times)


def _counts(row: Iterable[Any]) -> Counts:
    return Counts(*(int(number or 0) for number in row))


def _total(row: Sequence[Any]) -> Total:
    gauges = {state: int(number or 0) for state, number in zip(UNFINISHED, row, strict=False)}
    return Total(gauges, _counts(row[len(UNFINISHED) :]))


def _columns(tally: Tally, names: Iterable[str]) -> list[int]:
    return [tally.get(name, 0) for name in names]


class StatRecords(Tails):
    """Workers as they describe themselves, and how much there was in each minute."""

    # Workers

    async def keep_metrics(self, worker: str, metrics: Mapping[str, float], now: int) -> bool:
        """Whether there is such a worker."""
        return bool((await self._batch("metrics", Statement("keep_metrics", {"name": worker, "metrics": pack(metrics), "now": now})))[0])

    async def workers_besides(self, name: str) -> int:
        """How many others there are."""
        return int((await self._read("workers_besides", name=name))[0][0])

    async def workers_after(self, name: str, count: int) -> list[Seen]:
        return [_seen(row) for row in await self._read("workers_after", after=name, count=count)]

    async def held_by(self, workers: Sequence[str], few: int) -> dict[str, tuple[int, tuple[str, ...]]]:
        """How many runs each of these workers holds, and the ids of the first few."""
        found: dict[str, tuple[int, tuple[str, ...]]] = {}
        for worker, held, run in await self._read("held_by_workers", names=pack(workers), few=few):
            found[worker] = (held, (*found.get(worker, (0, ()))[1], run))
        return found

    async def leases(self, now: int, count: int = 1_000) -> list[Leases]:
        """What workers hold, by worker and by the length of the lease."""
        return [Leases(*row) for row in await self._read("leases", now=now, count=count)]

    async def recovered_due(self, until: int) -> int | None:
        """When the first run is due that was recovered from a lost worker, if that is before a time."""
        return next((due for (due,) in await self._read("recovered_due", until=until)), None)

    async def drop_workers(self, before: int, count: int) -> None:
        """Forget workers that were not seen since."""
        names = [name for (name,) in await self._read("silent_workers", before=before, count=count)]
        if names:
            await self._drop_workers(names, before)

    async def drop_worker(self, name: str, before: int) -> bool:
        """Forget a worker that was not seen since; whether there was such a one."""
        return await self._drop_workers([name], before)

    async def _drop_workers(self, names: Sequence[str], before: int) -> bool:
        drop, lives = Statement("drop_workers", {"names": pack(names), "before": before}), Statement("drop_lives", {"names": pack(names)})
        return bool((await self._batch("drop_workers", drop, lives))[0])

    async def worker_seen_at(self, name: str) -> int | None:
        """When a worker was last seen; None: there is none of this name."""
        return next((seen_at for (seen_at,) in await self._read("worker_named", name=name)), None)

    # Their processes

    async def begin_life(self, worker: str, life: Life, now: int) -> list[Life]:
        """Keep a process of a worker, if that is registered; all that are kept of it then, eldest first."""
        values: dict[str, Value] = {"worker": worker, "tag": life.tag, "process": life.process, "now": now}
        answers = await self._batch("begin_life", Statement("begin_life", values), Statement("lives", {"worker": worker}))
        return [Life(*row) for row in answers[1]]

    async def held_by_lives(self, worker: str, tags: Sequence[str], count: int) -> list[Run]:
        return [run_of(row) for row in await self._read("held_by_lives", worker=worker, tags=pack(tags), count=count)]

    async def end_lives(self, worker: str, tags: Sequence[str]) -> None:
        await self._batch("end_lives", Statement("end_lives", {"worker": worker, "tags": pack(sorted(tags))}))

    async def worker_about(self, worker: str) -> str | None:
        """What a worker has told of itself, as it is kept; None where there is none, "" where it has told nothing."""
        return next((about or "" for (about,) in await self._read("worker_about", name=worker)), None)

    async def stop_worker(self, worker: str, about: str, now: int) -> None:
        """Keep that a worker has stopped, if this is still what it tells of itself; where another of its name is left, forget only that."""
        await self._batch("stop_worker", Statement("stop_worker", {"name": worker, "about": about, "now": now}))

    # How much there was

    async def idle_totals(self) -> set[tuple[str, str]]:
        """Queues and jobs of which there is no run that has not ended."""
        return {(queue, job) for queue, job in await self._read("idle_totals")}

    async def drop_totals(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Count what there was of these queues and jobs among all, and no more by their names."""
        rows = pack(sorted(pairs))
        await self._batch("drop_totals", *(Statement(name, {"r": rows}) for name in ("lock_totals", "keep_totals", "drop_totals")))

    async def roll_up(
        self,
        place: tuple[int, str, int],
        minutes: Mapping[tuple[int, str, str], Tally],
        totals: Mapping[tuple[str, str], Tally],
        now: int,
        drop: tuple[int, int] | None,
    ) -> None:
        """Add to minutes and totals what the entries up to a place say, if nobody has; `drop`: before which minute, and how many rows."""
        per_minute = [[*key, *_columns(tally, COUNTS)] for key, tally in sorted(minutes.items())]
        whole = [[*key, *_columns(tally, (*UNFINISHED, *COUNTS))] for key, tally in sorted(totals.items())]
        statements = [Statement("add_minutes", {"r": pack(per_minute)}), Statement("add_totals", {"r": pack(whole), "now": now})]
        if drop is not None:
            statements.append(Statement("drop_minutes", {"before": drop[0], "count": drop[1]}))
        await self.advance_tail("roll_up", FOLLOWER, place, statements)

    async def totals(self, count: int) -> tuple[Total, dict[tuple[str, str], Total]]:
        """All of it together, and for each queue and job; those that came first, if there are too many."""
        whole, rows = await self._batch("read", Statement("whole_totals"), Statement("totals", {"count": count}))
        return _total(whole[0]), {(queue, job): _total(numbers) for queue, job, *numbers in rows}

    async def minute_behind(self, since: int, rows: int) -> int | None:
        """The minute from one on in which, counted from the newest, there are more rows than these; None when there are not."""
        found = await self._read("minute_behind", since=since, count=rows)
        return found[0][0] if found else None

    async def minutes(self, since: int) -> tuple[dict[int, Counts], dict[tuple[str, str], Counts]]:
        """What there was in each minute from one on, and in all of them for each queue and job."""
        asked = {"since": since}
        minutes, jobs = await self._batch("read", Statement("minutes_since", asked), Statement("jobs_since", asked))
        by_job = {(queue, job): _counts(numbers) for queue, job, *numbers in jobs}
        return {minute: _counts(numbers) for minute, *numbers in minutes}, by_job
