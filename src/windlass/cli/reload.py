"""For development: a worker in a child process, drained and restarted whenever a Python file changes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from windlass.clock import nap

SUPERVISED = "WINDLASS_SUPERVISED"  # in the environment of a child, which must not start a child of its own
POLL_EVERY = 0.5
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def stamps(folders: Sequence[str]) -> dict[str, int]:
    """When each Python file under these folders was last changed."""
    times = {}
    for top in folders:
        for folder, below, files in os.walk(top):
            below[:] = [name for name in below if not name.startswith(".") and name not in _SKIPPED]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    try:
                        times[path] = os.stat(path).st_mtime_ns
                    except OSError:  # gone meanwhile, or a link to nowhere
                        continue
    return times


def changed(before: dict[str, int], after: dict[str, int]) -> str | None:
    """One of the files that are new, other or gone; None when all are as before."""
    return next((path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), None)


class Supervisor:
    """Keeps one child running, in a process group of its own so that Ctrl-C reaches it once: through here."""

    def __init__(self, command: Sequence[str], folders: Sequence[str], note: Callable[[str], None]) -> None:
        self.command, self.folders, self.note = command, folders, note
        self.child: subprocess.Popen[bytes] | None = None
        self.asked_to_stop = False  # no event: a handler of signals that takes its lock could wait for the very code it has interrupted
        self._seen: dict[str, int] = {}

    def run(self) -> int:
        """Restart the child at every change until it ends well or a signal stops it; its last exit code."""
        with self._signals():
            while True:
                code, path = self._one_child()
                if self.asked_to_stop or (code == 0 and path is None):
                    return code if code >= 0 else 128 - code
                path = path or self._wait_for_change(code)
                if path is None:
                    return code if code >= 0 else 128 - code
                self.note(f"{path} has changed: restarting.")

    def _one_child(self) -> tuple[int, str | None]:
        """Run a child to its end; its exit code, and the file whose change ended it."""
        self._seen = stamps(self.folders)
        self.child = child = subprocess.Popen(self.command, process_group=0, env=os.environ | {SUPERVISED: "1"})
        if self.asked_to_stop:  # asked between two children
            child.send_signal(signal.SIGTERM)
        while True:
            try:
                return child.wait(POLL_EVERY), None
            except subprocess.TimeoutExpired:
                path = None if self.asked_to_stop else self._changed()
            if path is not None:
                child.send_signal(signal.SIGTERM)
                return child.wait(), path

    def _wait_for_change(self, code: int) -> str | None:
        """The file that changes after the child has failed by itself; None when a signal comes first."""
        self.note(f"The worker has ended with code {code}; waiting for a change.")
        while not self.asked_to_stop:
            nap(POLL_EVERY)
            if path := self._changed():
                return path
        return None

    def _changed(self) -> str | None:
        """A file that has changed since the child started."""
        return changed(self._seen, stamps(self.folders))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
