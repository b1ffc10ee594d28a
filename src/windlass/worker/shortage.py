"""A worker that cannot execute: the system has no thread or no process for it."""

from __future__ import annotations

import errno
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from windlass.clock import Clock

_LOG = logging.getLogger("windlass.worker")

FIRST, LONGEST = 1.0, 30.0  # seconds without a claim after a try that failed; doubled with each
STATUS = 75
"""With which a process of ours ends that could not begin for the same reason."""

_SHORT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

Need = Literal["thread", "process"]


class Shortage(Exception):
    """The system has no thread or process for a run, of which nothing has begun."""

    def __init__(self, need: Need, why: str) -> None:
        super().__init__(f"the system has no {need} for it ({why})")
        self.need = need


@contextmanager
def needed(need: Need) -> Iterator[None]:
    """Raise Shortage where the system refuses for want of something; what else goes wrong is the run's own."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SHORT:
            raise
        raise Shortage(need, error.strerror or str(error)) from error
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise Shortage(need, str(error)) from error


def is_no_thread(error: RuntimeError) -> bool:
    """Whether the system had no thread: Python has no class of its own for that."""
    return "start new thread" in str(error)


def try_process() -> None:
    """Start a process that does nothing, or raise Shortage."""
    with needed("process"):
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, check=False)


class Ability:
    """What a worker was short of when it last tried, since when, and when it tries again."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._pauses, self._since = clock, dict[Need, float](), 0
        self.short: set[Need] = set()
        self.again_at = 0.0  # in the seconds of the caller

    def lacks(self, shortage: Shortage, at: float) -> None:
        """A try has failed. The next is later each time, until one has succeeded, and not in step with those of others."""
        need, first = shortage.need, not self.short
        self.short.add(need)
        if first:
            self._since = self._clock.monotonic()
            _LOG.error("The worker claims nothing: %s. What it holds runs on; it tries again until it can execute.", shortage)
        elif at < self.again_at:
            return  # what was claimed together is one try
        pause = self._pauses.get(need, FIRST)
        self._pauses[need] = min(pause * 2, LONGEST)
        self.again_at = at + pause * (0.5 + self._clock.chance() / 2)

    def regained(self) -> None:
        """All that was lacking can be had again."""
        _LOG.warning("The worker can execute again, after %.1f s.", self.for_ms / 1000)
        self.short.clear()

    def proven(self, need: Need) -> None:
        """A run had what it needed."""
        self._pauses.pop(need, None)

    @property
    def for_ms(self) -> int:
        """For how long it has not been able to execute; 0: it is."""
        return max(1, self._clock.monotonic() - self._since) if self.short else 0
