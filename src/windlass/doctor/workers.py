"""Whether workers are well, by the metrics they send."""

from __future__ import annotations

from collections import Counter, defaultdict

from windlass.answers import Finding
from windlass.doctor.findings import note, problem, runs, warning
from windlass.doctor.subject import Subject
from windlass.durations import span
from windlass.store.records.workers import WorkerRow

BLOCKED = 1_000
"""Milliseconds for which an event loop may do nothing else."""
SKEW = 10_000
"""Milliseconds between two clocks that no network explains."""


async def _seen(subject: Subject, *, alive: bool) -> list[WorkerRow]:
    since = subject.clock.now() - subject.limits.worker_silence
    return [one for one in await subject.records.workers.after("", subject.limits.page) if one.alive(since) is alive]


async def silent(subject: Subject) -> list[Finding]:
    gone = {one.info.name: one.seen_at for one in await _seen(subject, alive=False)}
    held = await subject.records.workers.held_by(sorted(gone), 1) if gone else {}
    return [
        warning(
            "silent_worker",
            f"Worker {name} was last seen {span(subject.clock.now() - gone[name])} ago and still holds {runs(number)}.",
            "They are recovered when their lease ends, if a worker or a hub sweeps. If it is alive, find out why it is silent.",
            worker=name,
            seen_at=gone[name],
            runs=number,
        )
        for name, (number, _) in held.items()
    ]


async def blocked(subject: Subject) -> list[Finding]:
    lags = {one.info.name: _lag(one, subject.limits.worker_silence) for one in await _seen(subject, alive=True)}
    return [blocked_loop(f"worker {name}", lag) for name, lag in lags.items() if lag > BLOCKED]


def _lag(worker: WorkerRow, silence: int) -> float:
    """The worker's own figure; or for how long its loop has sent no metrics, while the thread of its heartbeats still does."""
    quiet = 0 if worker.metrics_at is None else worker.seen_at - worker.metrics_at
    return quiet if quiet > silence else worker.metrics.get("loop_lag_ms", 0)


def blocked_loop(whose: str, lag: float) -> Finding:
    """An event loop that was blocked for this many milliseconds."""
    return warning(
        "blocked_loop",
        f"The event loop of {whose} was blocked for {span(round(lag))} lately: nothing else happened there meanwhile.",
        "An async handler must await: move what computes or blocks into a plain function, which gets a thread, or into a process.",
        whose=whose,
        lag_ms=lag,
    )


async def unable(subject: Subject) -> list[Finding]:
    return [
        problem(
            "cannot_execute",
            f"Worker {one.info.name} cannot start a thread or a process for {span(round(one.metrics['unable_ms']))}, and claims nothing.",
            "Raise the limits of its user or service (ulimit -u and -n, TasksMax, pids.max) or its memory, or give it fewer slots; "
            "its log says what it lacks.",
            worker=one.info.name,
            unable_ms=one.metrics["unable_ms"],
        )
        for one in await _seen(subject, alive=True)
        if one.metrics.get("unable_ms")
    ]


async def doubled(subject: Subject) -> list[Finding]:
    return [
        warning(
            "two_of_a_name",
            f"Two workers are called {one.info.name}: each overwrites the registration and the metrics of the other.",
            "Start each under a name of its own, or leave out --name.",
            worker=one.info.name,
        )
        for one in await _seen(subject, alive=True)
        if {"incarnation"} <= one.about.keys() & one.metrics.keys() and one.about["incarnation"] != one.metrics["incarnation"]
    ]


async def skewed(subject: Subject) -> list[Finding]:
    return [
        warning(
            "worker_clock",
            f"The clock of worker {one.info.name} is {span(abs(apart))} {'ahead' if apart > 0 else 'behind'}.",
            "Synchronize the clock of its machine by NTP. Leases do not depend on it, but the times that its handlers store do.",
            worker=one.info.name,
            ahead_ms=apart,
        )
        for one in await _seen(subject, alive=True)
        if one.metrics_at is not None and abs(apart := round(one.metrics.get("clock", one.metrics_at)) - one.metrics_at) > SKEW
    ]


async def mixed(subject: Subject) -> list[Finding]:
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for one in await _seen(subject, alive=True):
        if version := one.about.get("version"):
            versions[str(version)].append(one.info.name)
    if len(versions) < 2:
        return []
    numbers = Counter({version: len(names) for version, names in versions.items()})
    listed = ", ".join(f"{version} ({number})" for version, number in sorted(numbers.items()))
    return [
        note(
            "mixed_versions",
            f"The live workers are of {len(versions)} versions: {listed}.",
            "Upgrade all of them once the roll-out is over.",
            versions=dict(sorted(numbers.items())),
        )
    ]
