"""Leases: renewed from a thread of its own, so that a handler that blocks the event loop does not lose them, and watched by the loop."""

from __future__ import annotations

import asyncio
import logging
import threading

from windlass.errors import BadInput, WindlassError
from windlass.model import BeatAnswer, Limits
from windlass.store.base import run_sync, worker_topic
from windlass.worker.executions import Execution, InFlight, Why
from windlass.worker.port import Port
from windlass.worker.runtime import Runtime
from windlass.worker.stopping import Stopper

_LOG = logging.getLogger("windlass.worker")
REGISTER_EVERY = 20_000
SOON, AT_ONCE = 0.2, 0.01  # seconds for which progress is gathered before a beat
RETRY_AFTER, RETRY_SHARE = 0.5, 60  # seconds after a failed beat at most, and this part of the lease
LISTEN = 30.0  # seconds of one wait for a hint
PAUSE_WHEN_STOPPING = 0.5  # seconds


class Heartbeat:
    """Renews the leases of a worker's runs long before their end. A beat carries progress to the store, and cancels back."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, stopper: Stopper, port: Port) -> None:
        self.port, self._runtime, self._in_flight, self._stopper = port, runtime, in_flight, stopper
        self._clock, self._lease, self._every = runtime.clock, runtime.lease, runtime.beat_every
        self._wake, self._ended, self._all = threading.Event(), threading.Event(), False
        self._slice = getattr(port, "limits", Limits()).report
        self._retry_after = min(RETRY_AFTER, self._lease / 1000 / RETRY_SHARE)
        self._register_at = self._clock.monotonic() + REGISTER_EVERY
        self._thread = threading.Thread(target=self._run, name="windlass-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def soon(self) -> None:
        """There is progress to send; from any thread."""
        self._wake.set()

    def now(self) -> None:
        """Beat for all runs at once: a cancel was hinted at, or a handler requests it; from any thread."""
        self._all = True
        self._wake.set()

    def confirm(self, requested_at: int) -> None:
        """Confirm by a beat what was claimed with an answer that took long, before the lease watch takes it for lost."""
        if self._clock.monotonic() - requested_at > self._lease // 6:
            self.now()

    async def listen(self) -> None:
        """Beat at once on a hint that a run of this worker is to be stopped, instead of with the next regular beat."""
        topic = worker_topic(self._runtime.info.name)
        while not self._runtime.stopping or self._in_flight.held:
            topics = await self._runtime.retry_until_available(lambda: self._runtime.port.wait({topic}, LISTEN))
            if topics:
                self.now()
            elif topics is None:  # the store is away, and the worker stops
                await asyncio.sleep(PAUSE_WHEN_STOPPING)

    def stop(self) -> None:
        """End; what is in flight may still finish."""
        self._ended.set()
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended, if it was ever started; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._wake.wait(self._pause()):
                self._wake.clear()
                self._ended.wait(AT_ONCE if self._all else SOON)  # so that frequent progress costs little
            try:
                self._tick()
            except Exception:
                _LOG.exception("A beat failed.")
                self._wait_to_retry()

    def _pause(self) -> float:
        """Seconds until the next lease is to be renewed."""
        now = self._clock.monotonic()
        due = [execution.lease_ends - self._lease + self._every for execution in self._in_flight.renewable()]
        return max(10, min([self._every, self._register_at - now, *(at - now for at in due)])) / 1000

    def _wait_to_retry(self) -> None:
        """For a random time, so that workers that lost the same hub do not return to it in step."""
        self._ended.wait(self._retry_after * (0.5 + self._clock.chance() / 2))

    def _tick(self) -> None:
        now = self._clock.monotonic()
        every, self._all = self._all, False
        fresh = now + self._lease - self._every // 2  # leases renewed a moment ago wait for the next beat
        executions = self._in_flight.renewable()
        due = [item for item in executions if every or item.progress_text is not None or item.lease_ends < fresh]
        for at in range(0, len(due), self._slice):
            self._beat(due[at : at + self._slice], now)
        if now >= self._register_at:
            self._register_at = now + REGISTER_EVERY
            self._register()

    def _register(self) -> None:
        try:
            run_sync(self.port.register(self._runtime.info))
        except WindlassError as error:
            _LOG.warning("The worker could not be registered: %s", error)

    def _beat(self, due: list[Execution], now: int) -> None:
        texts = {execution: text for execution in due if (text := execution.progress_text) is not None}
        try:
            progress = {execution.held: text for execution, text in texts.items()}
            answers = run_sync(self.port.beat([execution.held for execution in due], lease=self._lease, progress=progress))
        except BadInput as error:
            _LOG.error("The progress of handlers was refused, and is dropped: %s", error)
            for execution in due:
                execution.progress_text = None
            self._wake.set()
            return
        except WindlassError as error:
            _LOG.warning("The leases of %d runs could not be renewed: %s", len(due), error)
            self._wait_to_retry()  # the lease watch stops what can no longer be held
            return
        for execution, answer in zip(due, answers, strict=True):
            if answer != "unknown":  # nothing was written: the lease ends when it did, and its progress goes with the next beat
                self._answered(execution, answer, texts.get(execution), now)
        if "unknown" in answers:
            self._wait_to_retry()

    def _answered(self, execution: Execution, answer: BeatAnswer, text: str | None, now: int) -> None:
        if answer == "lost":
            execution.lose()  # before its handler is asked to stop and may end at once
        else:
            execution.lease_ends = max(execution.lease_ends, now + self._lease)
        if execution.progress_text is text:
            execution.progress_text = None
        if answer != "ok":
            why: Why = "cancel" if answer == "stop" else "lost"
            execution.context.ask_to_stop(execution.context.why or why)  # here already: the loop may be blocked
            self._runtime.call_soon(self._stopper.stop, execution, why)


class LeaseWatch:
    """Stops a handler when no beat was answered for nearly a lease: before the run can begin elsewhere."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, stopper: Stopper, heartbeat: Heartbeat) -> None:
        self._runtime, self._in_flight, self._stopper, self._heartbeat = runtime, in_flight, stopper, heartbeat

    async def run(self) -> None:
        """Watch until cancelled."""
        clock, rest = self._runtime.clock, max(self._runtime.lease / 6000, 0.02)
        pause = rest
        while True:
            before = clock.monotonic()
            await asyncio.sleep(pause)
            now = clock.monotonic()
            if now - before > 1000 * (pause + rest):
                self._heartbeat.now()  # this process was paused or its loop blocked: beat before a lease is given up
                pause = rest
                continue
            self._stop_ending(now + self._runtime.lease_margin)
            pause = min(rest, max(0.01, self._next_end(now) / 1000))

    def _stop_ending(self, by: int) -> None:
        for execution in list(self._in_flight.busy):
            if execution.lease_ends <= by and execution.why != "lost":
                _LOG.warning("No beat of run %s was answered for nearly a lease; its handler is stopped.", execution.run.id)
                self._stopper.stop(execution, "lost")

    def _next_end(self, now: int) -> int:
        """Milliseconds until the next handler is to be stopped."""
        ends = (execution.lease_ends for execution in self._in_flight.busy if execution.why != "lost")
        return min((end - self._runtime.lease_margin - now for end in ends), default=self._runtime.lease)
