"""Workers, counts and health."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass.engine.stats import JobStats, Minute, Stats
from windlass.model import Counts, State, Worker, WorkerInfo
from windlass.wire.values import heard, maybe_heard, maybe_told, told


class WorkerView(Struct, frozen=True):
    """A worker as it was last seen, and how much it holds now."""

    name: str
    queues: tuple[str, ...] | None
    jobs: tuple[str, ...] | None
    tags: tuple[str, ...]
    cores: int
    memory: int
    slots: int
    about: dict[str, Any]
    metrics: dict[str, int | float]
    metrics_at: str | None
    registered_at: str
    seen_at: str
    alive: bool
    held: int
    runs: tuple[str, ...]
    stopped_at: str | None = None


class Workers(Struct, frozen=True):
    """Some workers by name, and after which name the next page begins."""

    workers: list[WorkerView]
    cursor: str | None


def worker_view(worker: Worker) -> WorkerView:
    return WorkerView(
        **msgspec.structs.asdict(worker.info),
        about=worker.about,
        metrics=worker.metrics,
        metrics_at=maybe_told(worker.metrics_at),
        registered_at=told(worker.registered_at),
        seen_at=told(worker.seen_at),
        alive=worker.alive,
        held=worker.held,
        runs=worker.runs,
        stopped_at=maybe_told(worker.stopped_at),
    )


def worker_of(view: WorkerView) -> Worker:
    info = WorkerInfo(**{name: getattr(view, name) for name in WorkerInfo.__struct_fields__})
    times = maybe_heard(view.metrics_at, "metrics_at"), heard(view.registered_at, "registered_at"), heard(view.seen_at, "seen_at")
    stopped_at = maybe_heard(view.stopped_at, "stopped_at")
    return Worker(info, view.about, view.metrics, *times, view.alive, view.held, view.runs, stopped_at)


class TellMetrics(Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker measures of its host: numbers by name."""

    worker: str
    metrics: dict[str, int | float]


class MinuteView(Struct, frozen=True):
    """How much there was in the minute that begins then."""

    at: str
    counts: Counts


class StatsView(Struct, frozen=True):
    """How many runs there are in each state, or have ever ended in it; how much there was, in all, by minute, and by job and queue."""

    at: str
    states: dict[State, int]
    counts: Counts
    minutes: list[MinuteView]
    jobs: list[JobStats]


def stats_view(stats: Stats) -> StatsView:
    minutes = [MinuteView(told(minute.at), minute.counts) for minute in stats.minutes]
    return StatsView(told(stats.at), stats.states, stats.counts, minutes, stats.jobs)


def stats_of(view: StatsView) -> Stats:
    minutes = [Minute(heard(minute.at, "at"), minute.counts) for minute in view.minutes]
    return Stats(heard(view.at, "at"), view.states, view.counts, minutes, view.jobs)


class Health(Struct, frozen=True):
    """Whether a hub is ready, and which of its parts are not."""

    ready: bool
    missing: tuple[str, ...] = ()
