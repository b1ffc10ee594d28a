"""The loop that claims runs for free slots and starts them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from windlass.errors import OutcomeUnknown
from windlass.model import Run
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.worker.executions import InFlight
from windlass.worker.hand_over import HandOver
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.idle import IdleCheck
from windlass.worker.registration import Registration
from windlass.worker.runner import Runner
from windlass.worker.runtime import Runtime

_LOG = logging.getLogger("windlass.worker")

LONGEST_WAIT = 1.0  # seconds without a hint after which the store is asked anyway
POLL_AFTER_HINT = 0.01  # seconds, because a hint that follows another closely may not be sent
UNKNOWN_FOR = 45_000
"""Milliseconds after which a claim with an unknown outcome can commit no more: the limits of a statement and of a lock, and transfer."""


class ClaimLoop:
    """Claims as many runs as there are free slots, and waits for a hint when there are none to claim."""

    def __init__(
        self,
        runtime: Runtime,
        in_flight: InFlight,
        runner: Runner,
        heartbeat: Heartbeat,
        hand_over: HandOver,
        registration: Registration,
        idle: IdleCheck,
    ) -> None:
        self._runtime, self._in_flight, self._runner, self._heartbeat = runtime, in_flight, runner, heartbeat
        self._hand_over, self._registration, self._idle = hand_over, registration, idle
        self.unknown = UnknownClaims(runtime, in_flight, runner, heartbeat)
        self.needs_restart = False  # it has ended because of abandoned handlers: only a new process has all slots again
        self.hint: asyncio.Future[set[str] | None] | None = None  # the wait for one
        self._hinted = False
        self._longest_wait: float = getattr(runtime.port, "longest_wait", LONGEST_WAIT)

    async def run(self, *, until_idle: bool) -> bool:
        """Claim and start runs; True when it has ended by itself, False when it was stopped."""
        while not self._runtime.stopping:
            if self._in_flight.abandoned and not self._in_flight.held:
                _LOG.warning("The worker ends, so that a new process replaces this one: it has abandoned a handler.")
                self.needs_restart = True
                return True
            if self._runner.shortage.needs:
                self._hand_over.release()
                await self._wait_for_resources()
            elif not (room := self._room()):
                self._hand_over.release()
                await self._hand_over.wait_for_slot()
            elif not await self._claim(room) and await self._wait(until_idle):
                return True
        return False

    async def _claim(self, room: int) -> bool:
        """Claim and start runs; whether to claim again at once, because there may be more."""
        count, with_report = min(room, self._runtime.batch), self._hand_over.pending
        request = ClaimAttempt(self._runtime, self._registration.new_token(), count, self._hand_over, self.unknown)
        runs, requested_at = await self._runtime.retry_until_available(request) or ([], 0)
        self._heartbeat.confirm(requested_at)
        for run in runs:
            self._runner.start(run, requested_at)
        if runs:
            self._idle.reset()
        full = len(runs) == count or sum(len(run.payload) for run in runs) >= self._runtime.bytes
        return with_report or full or self._runtime.stopping

    def _room(self) -> int:
        """For how many more runs there is room. Reports that are not stored yet leave room for others, but not without bound."""
        slots, in_flight = self._runtime.info.slots, self._in_flight
        if slots == 1:  # the store frees it only with the report
            return int((not in_flight.held or self._hand_over.pending) and not in_flight.abandoned and not self.unknown.pending)
        free = slots - len(in_flight.busy) - len(in_flight.abandoned) - self.unknown.slots
        return free if len(in_flight.held) - len(in_flight.busy) < slots + self._runtime.batch else 0

    async def _wait_for_resources(self) -> None:
        """Claim nothing for a while; then test whether what was lacking can be had."""
        shortage, loop = self._runner.shortage, self._runtime.loop
        with suppress(TimeoutError):
            await asyncio.wait_for(self._in_flight.change(), max(0.0, shortage.retry_at - loop.time()))
        if not self._runtime.stopping and loop.time() >= shortage.retry_at:
            await self._runner.try_again()

    async def _wait(self, until_idle: bool) -> bool:
        """Wait until there may be something to claim; True when there is nothing left to wait for."""
        if until_idle and self._in_flight.quiet.is_set() and not self.unknown.pending:
            match await self._idle.check():
                case "end":
                    return True
                case "claim":
                    return False
        await self._wait_for_hint(or_an_end=until_idle)
        return False

    async def _wait_for_hint(self, *, or_an_end: bool) -> None:
        """Wait until there may be something to claim, or the worker stops; or until a run has ended."""
        timeout = POLL_AFTER_HINT if self._hinted else self._longest_wait
        self._in_flight.changed.clear()
        wait = partial(self._runtime.port.wait, self._topics, timeout)
        self.hint = hint = asyncio.ensure_future(self._runtime.retry_until_available(wait))
        end = asyncio.ensure_future(self._in_flight.changed.wait()) if or_an_end else None
        try:
            await asyncio.wait({hint} if end is None else {hint, end}, return_when=asyncio.FIRST_COMPLETED)
            self._hinted = hint.done() and not hint.cancelled() and bool(hint.result())
        finally:
            for task in (hint, end):
                if task is not None:
                    task.cancel()

    @cached_property
    def _topics(self) -> frozenset[str]:
        # With its own name the set is unique: a hint between two waits is then buffered for this worker alone.
        info = self._runtime.info
        queues = [ALL_QUEUES] if info.queues is None else map(queue_topic, info.queues)
        return frozenset({worker_topic(info.name), *queues})

    def stop(self) -> None:
        """Claim nothing more, also where the loop is waiting."""
        self._runtime.stopping = True
        self._in_flight.changed.set()
        if self.hint is not None:
            self.hint.cancel()


class ClaimAttempt:
    """One claim, however often it has to be requested: under one token, so that a lost answer can be recovered."""

    def __init__(self, runtime: Runtime, token: str, count: int, hand_over: HandOver, unknown: UnknownClaims) -> None:
        self._runtime, self._token, self._count, self._hand_over, self._unknown = runtime, token, count, hand_over, unknown
        self._options: dict[str, Any] = {"before": hand_over.release_first} if hand_over.pending else {}
        self._requested = False

    async def __call__(self) -> tuple[list[Run], int]:
        """The runs, and when they were requested: from then on their lease is counted."""
        runtime, requested_at = self._runtime, self._runtime.clock.monotonic()
        if self._requested and (runs := await runtime.port.recover(runtime.info, self._token)):
            return runs, requested_at
        self._requested = True
        try:
            runs = await runtime.port.claim(runtime.info, count=self._count, lease=runtime.lease, token=self._token, **self._options)
            return runs, requested_at
        except OutcomeUnknown as error:
            if error.settled:
                raise
            _LOG.warning("Whether runs were claimed is unknown; they are asked for until that is known: %s", error)
            self._unknown.add(self._token, self._count, requested_at)
            return [], requested_at
        finally:
            self._hand_over.release()


class UnknownClaims:
    """Claims with an unknown outcome: slots are reserved for their runs until it is known."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, runner: Runner, heartbeat: Heartbeat) -> None:
        self._runtime, self._in_flight, self._runner, self._heartbeat = runtime, in_flight, runner, heartbeat
        self._slots: dict[str, int] = {}  # by token

    @property
    def pending(self) -> bool:
        return bool(self._slots)

    @property
    def slots(self) -> int:
        """How many slots are reserved."""
        return sum(self._slots.values())

    def add(self, token: str, count: int, requested_at: int) -> None:
        self._slots[token] = count
        self._runtime.spawn(self._resolve(token, requested_at))

    async def _resolve(self, token: str, requested_at: int) -> None:
        """Start the runs that the claim turns out to have, asked for with each beat, until it has all or can get no more."""
        seqs, over = set[int](), False
        while self._slots[token] > 0 and not over:
            over = self._runtime.clock.monotonic() > requested_at + UNKNOWN_FOR
            runs = await self._runtime.retry_until_available(partial(self._runtime.port.recover, self._runtime.info, token)) or ()
            for run in [run for run in runs if run.seq not in seqs]:
                seqs.add(run.seq)
                self._slots[token] -= 1
                self._heartbeat.confirm(requested_at)
                self._runner.start(run, requested_at)
            await asyncio.sleep(min(1.0, self._runtime.beat_every / 1000))
        del self._slots[token]
        self._in_flight.changed.set()
