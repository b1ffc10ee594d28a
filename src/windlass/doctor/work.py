"""Whether waiting runs can be taken, and whether running ones come to their end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from windlass.answers import Finding
from windlass.doctor.findings import problem, runs, warning
from windlass.doctor.subject import COUNTED, Subject
from windlass.durations import span
from windlass.model import SOLVER, Lane
from windlass.needs import open_to
from windlass.store.records.doctor import Timing, WaitingRuns

DAY = 24 * 3600 * 1000
LATE = 60_000
"""Milliseconds by which a sweep may be late before the store counts as unswept."""
ENTRIES = 20_000
"""Newest entries of the journal that are read."""
LAPSES, SHARE = 3, 20
"""This many leases that ran out in a day, and one of this many attempts, are more than bad luck."""
SAMPLE, ENOUGH = 100, 10
"""Ended runs of a job that are read, and the least number for a finding."""
NEAR = 0.8
"""The part of its limit that a job may use without being near it."""


async def unclaimed(subject: Subject) -> list[Finding]:
    alive, now = await subject.living(), subject.clock.now()
    waiting = [(lane, one) for lane, one in await subject.lanes_waiting() if not any(open_to(lane, worker) for worker in alive)]
    names = {job.name for job in await subject.records.jobs.named(sorted({lane.job for lane, _ in waiting})) if job.handler is None}
    undefined = [_undefined(lane, one) for lane, one in waiting if lane.job in names]
    defined = [(lane, one) for lane, one in waiting if lane.job not in names]
    if defined and not alive:
        return [_no_workers(defined, now), *undefined]
    return [*undefined, *(_no_worker(lane, one, len(alive)) for lane, one in defined)]


def _no_workers(waiting: Sequence[tuple[Lane, WaitingRuns]], now: int) -> Finding:
    number = sum(one.ready + one.parked for _, one in waiting)
    since = min((one.since for _, one in waiting if one.since is not None), default=now)
    return problem(
        "no_workers",
        f"Waiting for {span(now - since)}: {runs(number, COUNTED)}, and no worker is running.",
        "Start one: windlass work MODULE:APP",
        runs=number,
        jobs=sorted({lane.job for lane, _ in waiting})[:COUNTED],
    )


def _undefined(lane: Lane, waiting: WaitingRuns) -> Finding:
    number = waiting.ready + waiting.parked
    return problem(
        "undefined_job",
        f"Waiting in queue {lane.queue!r}: {runs(number, COUNTED)} of job {lane.job!r}, which is not defined.",
        "Start a worker whose app defines it, or cancel the runs if its name was misspelt.",
        job=lane.job,
        queue=lane.queue,
        runs=number,
    )


def _no_worker(lane: Lane, waiting: WaitingRuns, alive: int) -> Finding:
    needs_of_lane, number = lane.requires, waiting.ready + waiting.parked
    brings = SOLVER in needs_of_lane.tags
    has = "job" if needs_of_lane.handler is None else f"handler {lane.handler!r}"
    start = "that executes programs: windlass work --solvers" if brings else f"whose app has the {has}: windlass work MODULE:APP"
    needs = [
        f"--queue {lane.queue}",
        *(f"--tag {tag}" for tag in needs_of_lane.tags if tag != SOLVER),
        *([f"--cores {needs_of_lane.cores}"] if needs_of_lane.cores > 1 else []),
        *([f"--memory {needs_of_lane.memory}MiB"] if needs_of_lane.memory else []),
    ]
    return problem(
        "no_worker",
        f"Waiting in queue {lane.queue!r}: {runs(number, COUNTED)} of job {lane.job!r}; none of the {alive} live workers takes them.",
        f"Start a worker {start} {' '.join(needs)}",
        job=lane.job,
        handler=lane.handler,
        queue=lane.queue,
        tags=needs_of_lane.tags,
        cores=needs_of_lane.cores,
        memory=needs_of_lane.memory,
        runs=number,
    )


async def unswept(subject: Subject) -> list[Finding]:
    now = subject.clock.now()
    late = await subject.records.doctor.late_runs(now - LATE, COUNTED)
    if not late:
        return []
    return [
        problem(
            "nobody_sweeps",
            f"Due for {span(now - late[0])} and not queued: {runs(len(late), COUNTED)}; no process sweeps this store.",
            "Start a worker or a hub on the store itself; workers that come through a hub do not sweep.",
            runs=len(late),
            since=late[0],
        )
    ]


async def unrecovered(subject: Subject) -> list[Finding]:
    now = subject.clock.now()
    long_over = [
        one for one in await subject.records.workers.leases(now) if one.over_since is not None and now - one.over_since > 2 * one.length
    ]
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


async def lost_leases(subject: Subject) -> list[Finding]:
    alive = {worker.name for worker in await subject.living()}
    jobs: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for lost in await subject.records.doctor.lapses(subject.clock.now() - DAY, ENTRIES):
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


async def lapses(subject: Subject) -> list[Finding]:
    _, jobs = await subject.records.stats.minutes(subject.clock.now() - DAY)
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


async def near_limits(subject: Subject) -> list[Finding]:
    limited = [
        job.name for job in await subject.records.jobs.after("", subject.limits.page) if job.options.timeout or job.options.max_runtime
    ]
    taken: defaultdict[str, list[Timing]] = defaultdict(list)
    for state in ("succeeded", "failed"):
        for timing in await subject.records.doctor.runtimes(limited, state, SAMPLE):
            if timing.limit:
                taken[timing.job].append(timing)
    return [finding for job, timings in taken.items() if (finding := _near(job, timings))]


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
