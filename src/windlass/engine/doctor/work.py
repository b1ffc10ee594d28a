"""Whether what waits can be taken, and whether what is taken comes to its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from windlass.durations import span
from windlass.engine.core import Core, open_to
from windlass.engine.doctor.findings import Finding, problem, runs, warning
from windlass.model import Lane, WorkerInfo
from windlass.store.doctor import Timing, Waiting

DAY = 24 * 3600 * 1000
COUNTED = 100
"""Runs of a lane that are counted; more are "100 or more"."""
LATE = 60_000
"""Milliseconds by which a sweep may be late before nobody is thought to sweep."""
ENTRIES = 20_000
"""Newest entries of the journal that are looked through."""
LAPSES, SHARE = 3, 20
"""So many leases that ran out in a day, and one of so many attempts, are more than bad luck."""
SAMPLE, ENOUGH = 100, 10
"""Ended runs of a job that are looked at, and how few of them say nothing."""
NEAR = 0.8
"""The part of its limit that a job may use without being near it."""


async def living(core: Core) -> list[WorkerInfo]:
    """The workers that are alive."""
    return await core.records.workers_seen(core.clock.now() - core.limits.worker_silence)


async def lanes_waiting(core: Core) -> list[tuple[Lane, Waiting]]:
    """Every lane in which runs wait, and how many, as far as they were counted."""
    waiting = await core.records.lanes_waiting(COUNTED)
    await core.refresh_lanes()  # after the look, so that all of them are known
    return [(core.lanes.by_id[one.lane], one) for one in waiting]


async def unclaimed(core: Core) -> list[Finding]:
    """Runs that wait and that no live worker takes."""
    alive, now = await living(core), core.clock.now()
    waiting = [(lane, one) for lane, one in await lanes_waiting(core) if not any(open_to(lane, worker) for worker in alive)]
    names = {job.name for job in await core.records.jobs_named(sorted({lane.job for lane, _ in waiting})) if job.handler is None}
    undefined = [_undefined(lane, one) for lane, one in waiting if lane.job in names]
    defined = [(lane, one) for lane, one in waiting if lane.job not in names]
    if defined and not alive:
        return [_no_workers(defined, now), *undefined]
    return [*undefined, *(_no_worker(lane, one, len(alive)) for lane, one in defined)]


def _no_workers(waiting: Sequence[tuple[Lane, Waiting]], now: int) -> Finding:
    number = sum(one.ready + one.parked for _, one in waiting)
    since = min((one.since for _, one in waiting if one.since is not None), default=now)
    return problem(
        "no_workers",
        f"Waiting for {span(now - since)}: {runs(number, COUNTED)}, and no worker is running.",
        "Start one: windlass work MODULE:APP",
        runs=number,
        jobs=sorted({lane.job for lane, _ in waiting})[:COUNTED],
    )


def _undefined(lane: Lane, waiting: Waiting) -> Finding:
    number = waiting.ready + waiting.parked
    return problem(
        "undefined_job",
        f"Waiting in queue {lane.queue!r}: {runs(number, COUNTED)} of job {lane.job!r}, which nobody has defined.",
        "Start a worker whose app defines it, or cancel the runs if its name was misspelt.",
        job=lane.job,
        queue=lane.queue,
        runs=number,
    )


def _no_worker(lane: Lane, waiting: Waiting, alive: int) -> Finding:
    wanted, number = lane.requires, waiting.ready + waiting.parked
    needs = [
        f"--queue {lane.queue}",
        *(f"--tag {tag}" for tag in wanted.tags),
        *([f"--cores {wanted.cores}"] if wanted.cores > 1 else []),
        *([f"--memory {wanted.memory}MiB"] if wanted.memory else []),
    ]
    return problem(
        "no_worker",
        f"Waiting in queue {lane.queue!r}: {runs(number, COUNTED)} of job {lane.job!r}; none of the {alive} live workers takes them.",
        f"Start a worker whose app has the job: windlass work MODULE:APP {' '.join(needs)}",
        job=lane.job,
        queue=lane.queue,
        tags=wanted.tags,
        cores=wanted.cores,
        memory=wanted.memory,
        runs=number,
    )


async def unswept(core: Core) -> list[Finding]:
    """Runs whose time has come and that nobody has queued."""
    now = core.clock.now()
    late = await core.records.late_runs(now - LATE, COUNTED)
    if not late:
        return []
    return [
        problem(
            "nobody_sweeps",
            f"Due for {span(now - late[0])} and not queued: {runs(len(late), COUNTED)}; nobody sweeps this store.",
            "Start a worker or a hub on the store itself; workers that come through a hub do not sweep.",
            runs=len(late),
            since=late[0],
        )
    ]


async def unrecovered(core: Core) -> list[Finding]:
    """Leases that were over long ago and that nobody has recovered."""
    now = core.clock.now()
    long_over = [one for one in await core.records.leases(now) if one.over_since is not None and now - one.over_since > 2 * one.length]
    if not long_over:
        return []
    number, since = sum(one.over for one in long_over), min(one.over_since or now for one in long_over)
    workers, watch = sorted({one.worker for one in long_over}), max(one.length for one in long_over)
    return [
        problem(
            "nobody_recovers",
            f"Held by {', '.join(workers[:5])}, with leases that have been over for {span(now - since)}: {runs(number)}; not recovered.",
            f"Start a worker or a hub on the store itself and let it run for more than {span(watch)}: it must have watched for that long.",
            runs=number,
            since=since,
            workers=workers,
        )
    ]


# Leases and limits


async def lost_leases(core: Core) -> list[Finding]:
    """Leases that ran out although their worker lives: it did not renew them in time."""
    alive = {worker.name for worker in await living(core)}
    jobs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for lost in await core.records.lapses(core.clock.now() - DAY, ENTRIES):
        if lost.worker in alive:
            jobs[lost.job][lost.worker] += 1
    return [_lease_too_short(job, workers) for job, workers in jobs.items() if workers.total() >= LAPSES]


def _lease_too_short(job: str, workers: Counter[str]) -> Finding:
    return warning(
        "lease_too_short",
        f"{workers.total()} leases on runs of job {job!r} ran out while their worker was alive ({', '.join(sorted(workers)[:5])}): "
        "the runs were executed again, and what it reported late was refused.",
        "Raise the lease above the longest time that the worker cannot renew it (windlass work --lease 2m); "
        "a handler that holds the interpreter belongs into a process of its own; a worker needs a name of its own.",
        job=job,
        lapses=workers.total(),
        workers=sorted(workers),
    )


async def lapses(core: Core) -> list[Finding]:
    """Jobs that lose their workers, as far as the last day is counted."""
    _, jobs = await core.records.minutes(core.clock.now() - DAY)
    return [
        warning(
            "workers_lost",
            f"In the last day {counts.lapsed:,} of {counts.attempts:,} attempts of job {job!r} in queue {queue!r} lost their worker.",
            "Look for workers that are killed (out of memory, or stopped without SIGTERM), paused, or cut off for longer than their lease.",
            job=job,
            queue=queue,
            lapsed=counts.lapsed,
            attempts=counts.attempts,
        )
        for (queue, job), counts in jobs.items()
        if counts.lapsed >= LAPSES and counts.lapsed * SHARE >= counts.attempts
    ]


async def near_limits(core: Core) -> list[Finding]:
    """Jobs whose runs take nearly as long as they may."""
    limited = [job.name for job in await core.records.jobs_after("", core.limits.page) if job.options.timeout or job.options.max_runtime]
    taken: defaultdict[str, list[Timing]] = defaultdict(list)
    for state in ("succeeded", "failed"):
        for timing in await core.records.runtimes(limited, state, SAMPLE):
            if timing.limit:
                taken[timing.job].append(timing)
    return [found for job, timings in taken.items() if (found := _near(job, timings))]


def _near(job: str, timings: list[Timing]) -> Finding | None:
    ordered = sorted(timings, key=lambda timing: timing.took / (timing.limit or 1))
    slow = ordered[len(ordered) * 19 // 20]
    if len(timings) < ENOUGH or slow.limit is None or slow.took < NEAR * slow.limit:
        return None
    return warning(
        "near_timeout",
        f"One in twenty runs of job {job!r} takes {span(slow.took)} or longer, and is stopped after {span(slow.limit)}.",
        "Raise the job's timeout or max_runtime, or make it do less in one run.",
        job=job,
        took=slow.took,
        limit=slow.limit,
        runs=len(timings),
    )
