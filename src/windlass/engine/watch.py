"""What a process knows of time while it watches leases, so that it does not take for dead who could not be heard."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from windlass.clock import Clock

PARTS = 16
"""A gap is taken for this part of a lease at most: after so many in a row, a lease is over all the same."""

JUMP = 1_000
"""Milliseconds by which the wall clock moves against the monotonic one only when it is set."""

GAPS = 256
FORGET_AFTER, REMEMBERED = 600_000, 100_000


class _Gap(NamedTuple):
    begin: int
    end: int


class Watch:
    """When this process could have seen a lease renewed, and whether the clock was set meanwhile.

    Time in which nobody could renew a lease, because this process stood still or the store was away, is added to the lease's end.
    What began before the clock was set is over only once this process has seen it unchanged for its own length. So neither costs a
    living worker its run, and a dead one is found in bounded time. All is measured with the monotonic clock.
    """

    def __init__(self, clock: Clock, *, pause: int = 5_000, jump: int = JUMP) -> None:
        self.clock, self.pause, self.jump = clock, pause, jump
        self._wall, self._ticks = clock.now(), clock.monotonic()
        self._since = self._ticks
        self._set_at: int | None = None
        self.was_set = False  # and it was not yet looked which leases end too late since
        self._gaps: list[_Gap] = []
        self._away = self._was_away = False
        self._seen: dict[Hashable, int] = {}  # since when, by the monotonic clock
        self._seen_before: dict[Hashable, int] = {}
        self._forget_at = self._ticks + FORGET_AFTER

    def look(self) -> None:
        """Note what has happened since the last look; to be done at every tick."""
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
        """The store did not answer: from the last look to the next one, nobody could renew a lease."""
        self._away = True

    def over(self, what: Hashable, start: int, length: int, lease: int, now: int) -> bool | None:
        """Whether something that began at a time of the clock has lasted for its length; None: this process cannot tell yet.

        A start that is still to come was written before the clock was set back.
        """
        if start <= now + self.jump and start + length > now:
            return False
        began, care = self._ticks - (self._wall - start), min(length, lease)
        if began <= self._ticks + self.jump and (self._set_at is None or began > self._set_at):
            return self._attentive(began + length - care, lease) >= care or None
        since = self._first_seen((what, start, length))
        return (since is not None and self._attentive(since, lease) >= length) or None

    def _first_seen(self, what: Hashable) -> int | None:
        """Since when this has been seen as it is; None where there is too much to remember."""
        since = self._seen.get(what)
        if since is None and len(self._seen) < REMEMBERED:
            since = self._seen[what] = self._seen_before.get(what, self._ticks)
        return since

    def _attentive(self, begin: int, lease: int) -> int:
        """For how long since then this process could have seen a lease renewed."""
        begin = max(begin, self._since)
        missed = [lost for gap in self._gaps if (lost := gap.end - max(gap.begin, begin)) > 0]
        return self._ticks - begin - sum(max(0, lost - lease // PARTS - 1) for lost in missed)

    def _note_gap(self, gap: _Gap) -> None:
        if self._away and self._was_away and self._gaps:
            gap = _Gap(self._gaps.pop().begin, gap.end)  # the store is still away: one gap, however often it was asked
        gaps = self._gaps
        gaps.append(gap)
        if len(gaps) > GAPS:  # of the older ones, those that are closest to each other become one
            at = min(range(GAPS - 2 * PARTS), key=lambda at: gaps[at + 1].end - gaps[at].begin)
            gaps[at : at + 2] = [_Gap(gaps[at].begin, gaps[at + 1].end)]
