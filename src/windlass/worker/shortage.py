"""Shortage of threads or processes: the system refuses them, and the worker cannot execute."""

from __future__ import annotations

import asyncio
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
"""Exit status of a child process that could not begin for want of a thread."""

_SHORT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

Need = Literal["thread", "process"]


class Shortage(Exception):
    """The system has no thread or process for a run; nothing of the run has begun."""

    def __init__(self, need: Need, why: str) -> None:
        super().__init__(f"the system has no {need} for it ({why})")
        self.need = need


@contextmanager
def needed(need: Need) -> Iterator[None]:
    """Raise Shortage where the system refuses for want of something; other errors belong to the run."""
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


class ShortageState:
    """What the system last refused to a worker, since when, and when the worker tries again."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._pauses, self._since = clock, dict[Need, float](), 0
        self.needs: set[Need] = set()
        self.retry_at = 0.0  # in seconds, by the clock of the caller
        self.changed = asyncio.Event()

    def record(self, shortage: Shortage, at: float) -> None:
        """A try has failed. The next is later each time, until one has succeeded, and not in step with those of other workers."""
        need, first = shortage.need, not self.needs
        self.needs.add(need)
        self.changed.set()
        if first:
            self._since = self._clock.monotonic()
            _LOG.error("The worker claims nothing: %s. What it holds runs on; it tries again until it can execute.", shortage)
        elif at < self.retry_at:
            return  # what was claimed together is one try
        pause = self._pauses.get(need, FIRST)
        self._pauses[need] = min(pause * 2, LONGEST)
        self.retry_at = at + pause * (0.5 + self._clock.chance() / 2)

    def end(self) -> None:
        """Threads and processes are available again."""
        _LOG.warning("The worker can execute again, after %.1f s.", self.duration / 1000)
        self.needs.clear()
        self.changed.set()

    def had(self, need: Need) -> None:
        """A run got its thread or process: the next pause is short again."""
        self._pauses.pop(need, None)

    @property
    def duration(self) -> int:
        """Milliseconds for which the worker has not been able to execute; 0: it is able."""
        return max(1, self._clock.monotonic() - self._since) if self.needs else 0
