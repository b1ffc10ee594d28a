"""Time for decisions that must not follow a clock that was just set: retention, and keys with a period."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from windlass.clock import Clock

TOLERANCE = 10_000
"""Milliseconds by which a clock may be corrected without counting as set."""

LASTING = 3_600_000
"""Milliseconds for which a clock that was set must stay as it is, until it is trusted."""

OFF = 24 * 3600 * 1000
"""Milliseconds for which a machine may have been off, if its clock is to be trusted at once."""

NOTE_EVERY = 600_000
"""Milliseconds after which the latest time is stored once more."""


class Bounds(NamedTuple):
    """The two times between which it is: by the clock before it was set, and by the present one."""

    earliest: int
    latest: int


class Scale(NamedTuple):
    """The clock at the start of a boot, as far as it is trusted; and since it was set, if it was."""

    boot: str | None
    base: int
    other: int | None  # the same by the clock since it was set
    since: int | None  # milliseconds after the start when that was first noticed
    latest: int  # the last known time


class Scales(Protocol):
    """Where a machine's time scale outlives its processes."""

    async def scale(self) -> Scale | None: ...

    async def keep_scale(self, scale: Scale) -> None: ...


class Steady:
    """The time by a trusted scale: what the clock showed when the machine was started.

    A step is noticed by comparison with the scale of this process, and with the stored one, so also by processes that are started after
    it. Then the old scale is continued by the monotonic clock until the new one has lasted for an hour.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.scale: Scale | None = None  # as it was last known

    async def bounds(self, scales: Scales, *, note: bool = False) -> Bounds:
        """The two times between which it is. Reads nothing while this process notices no step, unless it is to be stored for others."""
        uptime, now = self._clock.monotonic(), self._clock.now()
        known = self.scale
        if note or known is None or known.other is not None or abs(now - uptime - known.base) > TOLERANCE:
            known = await self._looked(scales, uptime, now, note)
        if known.other is None:
            return Bounds(now, now)
        return Bounds(min(now, known.base + uptime), max(now, known.base + uptime))

    async def _looked(self, scales: Scales, uptime: int, now: int, note: bool) -> Scale:
        boot = self._clock.boot()
        stored = await scales.scale() if boot is not None else None
        self.scale = scale = follow(stored or self.scale, boot, uptime, now)
        if note and boot is not None and _worth_keeping(scale, stored):
            await scales.keep_scale(scale)
        return scale


def follow(known: Scale | None, boot: str | None, uptime: int, now: int) -> Scale:
    """The scale to trust after another reading of the clock, and the one that is still on trial."""
    base = now - uptime
    believed = Scale(boot, base, None, None, now)
    if known is None:
        return believed
    if known.boot != boot:  # only the clock shows for how long the machine was off
        within = -TOLERANCE <= now - known.latest <= OFF
        return believed if within else Scale(boot, known.latest - uptime, base, uptime, known.latest)
    if abs(base - known.base) <= TOLERANCE:
        return believed
    latest = known.base + uptime
    if known.other is None or known.since is None or abs(base - known.other) > TOLERANCE:
        return Scale(boot, known.base, base, uptime, latest)
    return believed if uptime - known.since >= LASTING else known._replace(latest=latest)


def _worth_keeping(scale: Scale, stored: Scale | None) -> bool:
    if stored is None or (scale.boot, scale.other, scale.since) != (stored.boot, stored.other, stored.since):
        return True
    return abs(scale.base - stored.base) > TOLERANCE // 10 or scale.latest - stored.latest >= NOTE_EVERY
