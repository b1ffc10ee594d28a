"""Beats from a thread of their own, so that a handler that blocks the event loop does not lose its lease."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from windlass.clock import Clock
from windlass.errors import BadInput, WindlassError
from windlass.model import Limits, WorkerInfo
from windlass.store.base import run_sync
from windlass.worker.executions import Execution
from windlass.worker.port import Port

if TYPE_CHECKING:
    from windlass.worker.loop import Worker

_LOG = logging.getLogger("windlass.worker")
REGISTER_EVERY = 20_000
SOON, AT_ONCE = 0.2, 0.01  # seconds in which what is to be told is gathered
OFTEN = 8
"""Beats in the length of a lease. With the pause after one that failed and the fence (loop.py), they leave five sixths of a lease in
which nobody need answer."""
AGAIN, AGAIN_SHARE = 0.5, 60  # seconds after a beat that failed at most, and this part of the lease


class Heart:
    """Renews the leases of a worker's runs long before their end, and brings their progress and the answers."""

    def __init__(self, worker: Worker, port: Port, clock: Clock, info: WorkerInfo, lease: int) -> None:
        self._worker, self._port, self._clock, self._info, self._lease = worker, port, clock, info, lease
        self._nudge, self._ended, self._all = threading.Event(), threading.Event(), False
        self._slice = getattr(port, "limits", Limits()).report
        self._again = min(AGAIN, lease / 1000 / AGAIN_SHARE)
        self._register_at = clock.monotonic() + REGISTER_EVERY
        self._thread = threading.Thread(target=self._live, name="windlass-beats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def soon(self) -> None:
        """A handler has told its progress; from any thread."""
        self._nudge.set()

    def now(self) -> None:
        """Beat for everything that is held, at once: a cancel was hinted at, or a handler asks; from any thread."""
        self._all = True
        self._nudge.set()

    def stop(self) -> None:
        """End; what is in flight may still finish."""
        self._ended.set()
        self._nudge.set()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended, if it ever began; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _live(self) -> None:
        while not self._ended.is_set():
            if self._nudge.wait(self._pause()):
                self._nudge.clear()
                self._ended.wait(AT_ONCE if self._all else SOON)  # so that chatty handlers cost little
            try:
                self._tick()
            except Exception:
                _LOG.exception("A beat failed.")
                self._wait_a_little()

    def _pause(self) -> float:
        """Seconds until the next lease is to be renewed."""
        now, rest = self._clock.monotonic(), self._lease // OFTEN
        due = [execution.lease_ends - self._lease + rest for execution in self._worker.held()]
        return max(10, min([rest, self._register_at - now, *(at - now for at in due)])) / 1000

    def _wait_a_little(self) -> None:
        """Workers that lost the same hub do not come back to it in step."""
        self._ended.wait(self._again * (0.5 + self._clock.chance() / 2))

    def _tick(self) -> None:
        now = self._clock.monotonic()
        every, self._all = self._all, False
        fresh = now + self._lease - self._lease // (2 * OFTEN)  # those renewed a moment ago can wait for the next one
        held = self._worker.held()
        due = [item for item in held if every or item.progress_text is not None or item.lease_ends < fresh]
        for at in range(0, len(due), self._slice):
            self._beat(due[at : at + self._slice], now)
        if now >= self._register_at:
            self._register_at = now + REGISTER_EVERY
            self._register()

    def _register(self) -> None:
        try:
            run_sync(self._port.register(self._info))
        except WindlassError as error:
            _LOG.warning("The worker could not be registered: %s", error)

    def _beat(self, due: list[Execution], now: int) -> None:
        said = {execution: text for execution in due if (text := execution.progress_text) is not None}
        try:
            progress = {execution.held: text for execution, text in said.items()}
            answers = run_sync(self._port.beat([execution.held for execution in due], lease=self._lease, progress=progress))
        except BadInput as error:
            _LOG.error("What handlers tell of their progress was refused, and is dropped: %s", error)
            for execution in due:
                execution.progress_text = None
            self._nudge.set()
            return
        except WindlassError as error:
            _LOG.warning("The leases of %d runs could not be renewed: %s", len(due), error)
            self._wait_a_little()  # the worker stops what it can no longer hold
            return
        for execution, answer in zip(due, answers, strict=True):
            if answer == "unknown":
                continue  # nothing was written: the lease ends when it did, and its progress goes with the next beat
            if answer == "lost":
                self._worker.lose(execution)  # before its handler hears of it and may end at once; its lease is over as it was
            else:
                execution.lease_ends = max(execution.lease_ends, now + self._lease)
            if execution.progress_text is said.get(execution):
                execution.progress_text = None
            if answer != "ok":
                why: str = "cancel" if answer == "stop" else "lost"
                execution.context.ask_to_stop(execution.context.why or why)  # a blocked loop cannot, and the handler may look
                self._worker.call_soon(self._worker.told, execution, answer)
        if "unknown" in answers:
            self._wait_a_little()
