"""Whether pauses, resources and reservations hold up runs that they should not."""

from __future__ import annotations

from windlass.answers import Finding
from windlass.doctor.findings import note, problem, runs, warning
from windlass.doctor.subject import COUNTED, Subject
from windlass.durations import span
from windlass.limiters import Limiter, parts_of
from windlass.model import Lane, Pause, Resource, Use

HELD_LONG = 3_600_000
"""Milliseconds for which a direct call may hold its reservation before that is a finding."""


async def _waiting(subject: Subject) -> list[tuple[Lane, int]]:
    """Every lane in which runs wait, and how many."""
    return [(lane, waiting.ready + waiting.parked) for lane, waiting in await subject.lanes_waiting()]


async def too_heavy(subject: Subject) -> list[Finding]:
    known = {resource.name: resource for resource in (await subject.records.controls.settings()).resources}
    waiting, now = await _waiting(subject), subject.clock.now()
    return [
        _too_heavy(lane, use, known[use.resource], number)
        for lane, number in waiting
        for use in lane.requires.uses
        if use.resource in known and Limiter(use.resource, known[use.resource], 0, {}, now).impossible(use.weight)
    ]


def _too_heavy(lane: Lane, use: Use, resource: Resource, number: int) -> Finding:
    limit = "its rates admit at once" if resource.capacity is None or use.weight <= resource.capacity else f"its {resource.capacity:,}"
    return problem(
        "too_heavy",
        f"Waiting in queue {lane.queue!r} for ever: {runs(number, COUNTED)} of job {lane.job!r}, "
        f"each of which needs {use.weight:,} of resource {use.resource!r}, more than {limit}.",
        f"Raise the limit (windlass resources set {use.resource} ...), or give the job a smaller weight and create its runs again.",
        job=lane.job,
        queue=lane.queue,
        resource=use.resource,
        weight=use.weight,
        capacity=resource.capacity,
        runs=number,
    )


async def paused(subject: Subject) -> list[Finding]:
    settings, waiting = await subject.records.controls.settings(), dict[Pause, int]()
    for lane, number in await _waiting(subject):
        for pause in settings.paused(lane):
            waiting[pause] = waiting.get(pause, 0) + number
    return [_paused(pause, number, subject.clock.now()) for pause, number in waiting.items()]


def _paused(pause: Pause, number: int, now: int) -> Finding:
    system = pause.scope == "system"
    what = "Everything" if system else f"{pause.scope.capitalize()} {pause.name!r}"
    by = f" by {pause.actor}" if pause.actor else ""
    why = f" ({pause.reason})" if pause.reason else ""
    return note(
        "paused",
        f"{what} has been paused{by} for {span(now - pause.at)}{why}; waiting for it: {runs(number, COUNTED)}.",
        f"When it is time: windlass resume {'--all' if system else f'--{pause.scope} {pause.name}'}",
        scope=pause.scope,
        name=pause.name,
        runs=number,
    )


async def held_long(subject: Subject) -> list[Finding]:
    now = subject.clock.now()
    return [
        warning(
            "slot_held_long",
            f"{slot.actor or 'A caller'} has held {slot.weight:,} of resource {parts_of(slot.key)[0]!r} for {span(now - slot.held_at)}.",
            "If it is no longer needed, end the program that renews it: it is free when its lease ends.",
            slot=slot.id,
            resource=parts_of(slot.key)[0],
            held_at=slot.held_at,
        )
        for slot in await subject.records.slots.after(0, subject.limits.page)
        if slot.held_at is not None and slot.held_at <= now - HELD_LONG
    ]
