"""Whether pauses, resources and reservations hold up what they should not."""

from __future__ import annotations

from windlass.durations import span
from windlass.engine.core import Core
from windlass.engine.doctor.findings import Finding, note, problem, runs, warning
from windlass.engine.doctor.work import COUNTED, lanes_waiting
from windlass.gates import Gate, parts_of
from windlass.model import Lane, Pause, Resource, Use

HELD_LONG = 3_600_000
"""Milliseconds for which a direct call may hold what it reserved before it is worth a look."""


async def _waiting(core: Core) -> list[tuple[Lane, int]]:
    """Every lane in which runs wait, and how many; with the controls as they are now."""
    await core.refresh_controls()
    return [(lane, waiting.ready + waiting.parked) for lane, waiting in await lanes_waiting(core)]


async def too_heavy(core: Core) -> list[Finding]:
    """Runs that need more of a resource than there will ever be."""
    waiting = await _waiting(core)
    now, known = core.clock.now(), core.controls.resources
    return [
        _too_heavy(lane, use, known[use.resource], number)
        for lane, number in waiting
        for use in lane.requires.uses
        if use.resource in known and Gate(use.resource, known[use.resource], 0, {}, now).impossible(use.weight)
    ]


def _too_heavy(lane: Lane, use: Use, resource: Resource, number: int) -> Finding:
    most = "its rates let pass at once" if resource.capacity is None or use.weight <= resource.capacity else f"its {resource.capacity:,}"
    return problem(
        "too_heavy",
        f"Waiting in queue {lane.queue!r} for ever: {runs(number, COUNTED)} of job {lane.job!r}, "
        f"each of which needs {use.weight:,} of resource {use.resource!r}, more than {most}.",
        f"Let there be more of it (windlass resources set {use.resource} ...), or give the job a smaller weight and create its runs again.",
        job=lane.job,
        queue=lane.queue,
        resource=use.resource,
        weight=use.weight,
        capacity=resource.capacity,
        runs=number,
    )


async def paused(core: Core) -> list[Finding]:
    """Pauses for which runs wait."""
    found: dict[Pause, int] = {}
    for lane, number in await _waiting(core):
        for pause in core.controls.paused(lane):
            found[pause] = found.get(pause, 0) + number
    return [_paused(pause, number, core.clock.now()) for pause, number in found.items()]


def _paused(pause: Pause, number: int, now: int) -> Finding:
    system = pause.scope == "system"
    what = "Everything" if system else f"{pause.scope.capitalize()} {pause.name!r}"
    by = f" by {pause.who}" if pause.who else ""
    why = f" ({pause.reason})" if pause.reason else ""
    return note(
        "paused",
        f"{what} has been paused{by} for {span(now - pause.at)}{why}; waiting for it: {runs(number, COUNTED)}.",
        f"When it is time: windlass resume {'--all' if system else f'--{pause.scope} {pause.name}'}",
        scope=pause.scope,
        name=pause.name,
        runs=number,
    )


async def held_long(core: Core) -> list[Finding]:
    """Reservations of direct calls that are held for long, so that the queue waits for them."""
    now = core.clock.now()
    return [
        warning(
            "slot_held_long",
            f"{slot.who or 'Somebody'} has held {slot.weight:,} of resource {parts_of(slot.key)[0]!r} for {span(now - slot.held_at)}.",
            "If nobody needs it any more, end the program that renews it: it is free when its lease ends.",
            slot=slot.id,
            resource=parts_of(slot.key)[0],
            held_at=slot.held_at,
        )
        for slot in await core.records.slots_after(0, core.limits.page)
        if slot.held_at is not None and slot.held_at <= now - HELD_LONG
    ]
