"""How long a process has been looking, so that it does not take for dead who could not be heard."""

from __future__ import annotations

from windlass.clock import Clock


class Watch:
    """How long this process has watched without a pause or a jump of the clock.

    A lease that ran out while nobody could have renewed it, because this process slept or the clock was set, must not cost a
    living worker its run. So a resident sweep lapses a lease only after it has itself watched for that lease's length.
    """

    def __init__(self, clock: Clock, *, pause: int = 5_000, jump: int = 1_000) -> None:
        self.clock, self.pause, self.jump = clock, pause, jump
        self._wall, self._ticks = clock.now(), clock.monotonic()
        self._since = self._ticks

    def steady_for(self) -> int:
        """Milliseconds of undisturbed watching; to be asked at every tick."""
        wall, ticks = self.clock.now(), self.clock.monotonic()
        passed = ticks - self._ticks
        if passed > self.pause or abs(wall - self._wall - passed) > self.jump:
            self._since = ticks
        self._wall, self._ticks = wall, ticks
        return ticks - self._since
