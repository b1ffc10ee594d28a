"""A process's own measure of time while it watches leases, so that a worker it could not observe is not taken for dead."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from windlass.clock import Clock

PARTS = 16
"""Of each gap, a lease divided by this still counts as watched: after this many gaps a lease is over all the same."""

JUMP = 1_000
"""Milliseconds of drift between wall and monotonic clock that only setting the clock explains."""

GAPS = 256
FORGET_AFTER, REMEMBERED = 600_000, 100_000


class _Gap(NamedTuple):
    begin: int
    end: int


class Watch:
    """When this process could have observed a renewal, and whether the clock was set meanwhile.

    Time in which no lease could be renewed, because this process was suspended or the store unavailable, is added to a lease's end.
    A lease from before the clock was set is over only once this process has observed it unchanged for its own length. So neither costs
    a living worker its run, and a dead one is detected in bounded time. All is measured with the monotonic clock.
    """

    def __init__(self, clock: Clock, *, pause: int = 5_000, jump: int = JUMP) -> None:
        self.clock, self.pause, self.jump = clock, pause, jump
        self._wall, self._ticks = clock.now(), clock.monotonic()
        self._since = self._ticks
        self._set_at: int | None = None
        self.was_set = False  # set until leases that now end too late have been checked
        self._gaps: list[_Gap] = []
        self._away = self._was_away = False
        self._seen: dict[Hashable, int] = {}  # first observed at, by the monotonic clock
        self._seen_before: dict[Hashable, int] = {}
        self._forget_at = self._ticks + FORGET_AFTER

    def look(self) -> None:
        """Record gaps and clock steps since the last call; to be called at every tick."""
        wall, ticks = self.clock.now(), self.clock.monotonic()
        passed = ticks - self._ticks
        if self._away or passed > self.pause:
            self._note_gap(_Gap(self._ticks, ticks))
        if abs(wall - self._wall - passed) > self.jump:
            self._set_at, self.was_set = ticks, True
        if ticks >= self._forget_at:
            self._seen_before, self._seen, self._forget_at = self._seen, {}, ticks + FORGET_AFTER
        self._was_away, self._away = self._away, False
        self._wall, self._ticks = wall, ticks

    def missed(self) -> None:
        """Record that the store did not answer: no lease could be renewed from the last tick to the next one."""
        self._away = True

    def over(self, what: Hashable, start: int, length: int, lease: int, now: int) -> bool | None:
        """Whether a period that began at a wall-clock time has lasted for its length; None: this process cannot decide yet.

        A start in the future was written before the clock was set back.
        """
        if start <= now + self.jump and start + length > now:
            return False
        began, care = self._ticks - (self._wall - start), min(length, lease)
        if began <= self._ticks + self.jump and (self._set_at is None or began > self._set_at):
            return self._attentive(began + length - care, lease) >= care or None
        since = self._first_seen((what, start, length))
        return (since is not None and self._attentive(since, lease) >= length) or None

    def _first_seen(self, what: Hashable) -> int | None:
        """Since when this has been observed unchanged; None where there is too much to keep."""
        since = self._seen.get(what)
        if since is None and len(self._seen) < REMEMBERED:
            since = self._seen[what] = self._seen_before.get(what, self._ticks)
        return since

    def _attentive(self, begin: int, lease: int) -> int:
        """For how long since then this process could have observed a renewal."""
        begin = max(begin, self._since)
        missed = [lost for gap in self._gaps if (lost := gap.end - max(gap.begin, begin)) > 0]
        return self._ticks - begin - sum(max(0, lost - lease // PARTS - 1) for lost in missed)

    def _note_gap(self, gap: _Gap) -> None:
        if self._away and self._was_away and self._gaps:
            gap = _Gap(self._gaps.pop().begin, gap.end)  # the store is still unavailable: one gap, however many calls failed
        gaps = self._gaps
        gaps.append(gap)
        if len(gaps) > GAPS:  # of the older gaps, the two closest to each other are merged
            at = min(range(GAPS - 2 * PARTS), key=lambda at: gaps[at + 1].end - gaps[at].begin)
            gaps[at : at + 2] = [_Gap(gaps[at].begin, gaps[at + 1].end)]
