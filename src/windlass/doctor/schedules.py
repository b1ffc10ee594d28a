"""Whether schedules fire, and whether a worker takes the runs they create."""

from __future__ import annotations

from collections.abc import Sequence

from windlass import defaults
from windlass.answers import Finding
from windlass.doctor.findings import note, problem, warning
from windlass.doctor.subject import Subject
from windlass.doctor.work import LATE
from windlass.durations import span
from windlass.model import JobRecord, Lane, Schedule, Skipped, WorkerInfo
from windlass.needs import merged, needs_of, open_to

YEAR = 366 * 24 * 3600 * 1000
SKIPS = 3
"""This many skipped instants in a row are more than bad luck."""


async def _enabled(subject: Subject) -> list[Schedule]:
    return [schedule for schedule in await subject.records.schedules.after("", subject.limits.page) if schedule.enabled]


async def fires(subject: Subject) -> list[Finding]:
    now = subject.clock.now()
    return [finding for schedule in await _enabled(subject) if (finding := _when(schedule, now))]


def _when(schedule: Schedule, now: int) -> Finding | None:
    key, next_at = schedule.key, schedule.next_at
    if next_at is None:
        if schedule.kind == "once" and schedule.fired + schedule.skipped > 0:
            return None
        return warning(
            "schedule_never_fires",
            f"Schedule {key!r} is enabled and will never fire: {schedule.expr!r} has no instant after now.",
            f"Give it another rule (windlass schedules set {key} ...), or remove it.",
            schedule=key,
        )
    if next_at <= now - LATE:
        return problem(
            "schedule_behind",
            f"Schedule {key!r} was due {span(now - next_at)} ago and has not fired.",
            f"Sweeps fire schedules: start a worker or a hub on the store itself, on a machine that has the zone {schedule.zone}.",
            schedule=key,
            next_at=next_at,
        )
    if next_at > now + YEAR:
        return note(
            "schedule_far_off",
            f"Schedule {key!r} fires next in {span(next_at - now)}.",
            f"If that is not what was meant, see windlass schedules preview {key}.",
            schedule=key,
            next_at=next_at,
        )
    return None


async def skips(subject: Subject) -> list[Finding]:
    often = [schedule for schedule in await _enabled(subject) if schedule.skipped >= SKIPS]
    latest = [(schedule, await subject.records.schedules.skips(schedule.id, SKIPS)) for schedule in often]
    return [_skips_only(schedule, some) for schedule, some in latest if _since_last(schedule, some) >= SKIPS]


def _since_last(schedule: Schedule, latest: Sequence[Skipped]) -> int:
    return sum(skip.number for skip in latest if skip.first_at > (schedule.last_at or 0))


_WHAT_TO_DO = {
    "overlap": "Its runs take longer than the time between two: make them shorter, fire less often, or choose another overlap.",
    "duplicate_key": "Other runs hold the keys of its instants: let no program ask for runs with keys of the scope 'schedule'.",
}


def _skips_only(schedule: Schedule, latest: Sequence[Skipped]) -> Finding:
    number, reason = _since_last(schedule, latest), latest[0].reason
    return warning(
        "schedule_skips",
        f"The last {number:,} instants or more of schedule {schedule.key!r} were skipped; the reason was {reason!r}.",
        _WHAT_TO_DO.get(
            reason,
            "Nothing ran at those times, and what is missed is skipped: keep a worker or a hub running, or choose another value of missed.",
        ),
        schedule=schedule.key,
        skipped=number,
        reason=reason,
    )


async def unserved(subject: Subject) -> list[Finding]:
    schedules = [schedule for schedule in await _enabled(subject) if schedule.next_at is not None]
    names = sorted({schedule.job for schedule in schedules})
    jobs = {job.name: job for job in await subject.records.jobs.named(names) if job.handler is not None} if names else {}
    alive = await subject.living()
    if schedules and not alive:
        return [
            warning(
                "schedule_without_worker",
                f"No worker is alive, and {len(schedules)} schedules create runs.",
                "Start one before the first is due: windlass work MODULE:APP",
                schedules=len(schedules),
            )
        ]
    return [finding for schedule in schedules if (finding := _unserved(schedule, jobs.get(schedule.job), alive))]


def _unserved(schedule: Schedule, job: JobRecord | None, alive: Sequence[WorkerInfo]) -> Finding | None:
    if job is None:
        return warning(
            "schedule_without_job",
            f"Schedule {schedule.key!r} creates runs of job {schedule.job!r}, which is not defined.",
            "Start a worker whose app defines it, or name another job.",
            schedule=schedule.key,
            job=schedule.job,
        )
    options = merged(job.options, schedule.options)
    lane = Lane(0, options.queue or defaults.QUEUE, job.name, needs_of(options, job.own_handler))
    if any(open_to(lane, worker) for worker in alive):
        return None
    return warning(
        "schedule_without_worker",
        f"Schedule {schedule.key!r} creates runs of job {job.name!r} in queue {lane.queue!r}, "
        f"and none of the {len(alive)} live workers takes them.",
        "Start a worker that does, before it fires.",
        schedule=schedule.key,
        job=job.name,
        queue=lane.queue,
    )
