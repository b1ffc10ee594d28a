"""Direct calls: wait for the next slot of a resource, hold it while a block runs, release it. The same over a store and over a hub."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from windlass import durations
from windlass.defaults import SLOT_LEASE
from windlass.errors import BadInput, LeaseLost, OutcomeUnknown, Timeout, WindlassError
from windlass.store.base import run_sync

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

_LOG = logging.getLogger("windlass.slots")

Duration = float | timedelta


class SlotRequest(NamedTuple):
    """The request of a direct call. Durations are milliseconds."""

    resource: str
    key: str | None
    weight: int
    timeout: int | None
    lease: int
    actor: str | None = None


def direct_call(
    resource: str, *, key: str | None, weight: int, timeout: Duration | None, lease: Duration | None, actor: str | None = None
) -> SlotRequest:
    """A direct call in user units: seconds, or a timedelta."""
    milliseconds = SLOT_LEASE if lease is None else _milliseconds(lease, "lease")
    return SlotRequest(resource, key, weight, None if timeout is None else _milliseconds(timeout, "timeout"), milliseconds, actor)


def _milliseconds(duration: Duration, what: str) -> int:
    try:
        return durations.duration(duration.total_seconds() if isinstance(duration, timedelta) else duration)
    except ValueError as expected:
        raise BadInput(f"{what} is {duration!r:.80}, which is not {expected}.", hint="Write 30, 0.5 or timedelta(minutes=5).") from None


class HeldSlot:
    """A slot while its block runs. Check `lost` before anything that must not be done twice at once."""

    def __init__(self, verbs: Verbs, call: SlotRequest) -> None:
        self._verbs, self._call = verbs, call
        self.id, self.token = verbs.clock.new_id(), verbs.clock.nonce()
        self._gone, self._kept_until = False, 0

    @property
    def resource(self) -> str:
        return self._call.resource

    @property
    def lost(self) -> bool:
        """Whether it could not be renewed: another caller may hold it by now."""
        return self._gone or self._verbs.clock.monotonic() >= self._kept_until

    async def take(self) -> None:
        """Wait for it; Timeout, and no longer waiting in the queue, when that takes too long."""
        resource, key, weight, timeout, lease, actor = self._call
        in_line = False
        try:
            self._kept_until = self._verbs.clock.monotonic() + lease
            slot = await self._verbs.reserve(resource, key=key, weight=weight, lease=lease, slot_id=self.id, token=self.token, actor=actor)
            in_line = True
            if slot.state == "waiting":
                await self._wait(timeout, lease)
        except BaseException as error:
            if in_line or isinstance(error, OutcomeUnknown) or not isinstance(error, WindlassError):  # otherwise it was refused
                await self.release()
            raise

    async def _wait(self, timeout: int | None, lease: int) -> None:
        slot = await self._verbs.turn(self.id, self.token, lease=lease, wait=None if timeout is None else timeout / 1000)
        if slot.state == "waiting":
            raise Timeout(
                f"No slot of {self.resource!r} was free within {(timeout or 0) / 1000:g} s.",
                hint=f"Wait for longer, or see what occupies it: windlass resources show {self.resource}.",
            )
        await self.renew()  # the start of its lease is not known here
        if self.lost:
            raise _lost(self)

    async def renew(self) -> float:
        """Renew it; returns the seconds until the next renewal."""
        begin, lease = self._verbs.clock.monotonic(), self._call.lease
        try:
            await self._verbs.renew(self.id, self.token, lease=lease)
        except LeaseLost:
            self._gone = True
        except WindlassError as error:
            _LOG.warning("Slot %s of %s could not be renewed: %s", self.id, self.resource, error)
            return lease / 15_000
        else:
            self._kept_until = begin + lease
        return lease / 3_000

    async def release(self) -> bool:
        """Release it; returns whether it was held until now. A slot that cannot be released is free when its lease expires."""
        lost = self.lost
        try:
            return await self._verbs.release(self.id, self.token)
        except WindlassError as error:
            _LOG.warning("Slot %s of %s could not be released: %s", self.id, self.resource, error)
            return not lost


def _lost(slot: HeldSlot) -> LeaseLost:
    return LeaseLost(
        f"Slot {slot.id} of {slot.resource!r} was lost before its block ended.",
        hint="It could not be renewed in time, so another caller may have used the resource as well. Take a longer lease.",
    )


@contextlib.contextmanager
def on_thread(verbs: Verbs, call: SlotRequest) -> Iterator[HeldSlot]:
    """Hold a slot for a block of synchronous code; a thread renews it."""
    slot, over = HeldSlot(verbs, call), threading.Event()
    run_sync(slot.take())

    def keep() -> None:
        pause = call.lease / 3_000
        while not over.wait(pause) and not slot.lost:
            try:
                pause = run_sync(slot.renew())
            except Exception:
                if not over.is_set():  # otherwise the caller is done, and may have closed the connection
                    raise

    try:
        threading.Thread(target=keep, name="windlass-slot", daemon=True).start()
        yield slot
    finally:
        over.set()
        in_time = run_sync(slot.release())
    if not in_time:
        raise _lost(slot)


@contextlib.asynccontextmanager
async def in_loop(verbs: Verbs, call: SlotRequest) -> AsyncIterator[HeldSlot]:
    """Hold a slot for a block of a coroutine; a task renews it."""
    slot = HeldSlot(verbs, call)
    await slot.take()

    async def keep() -> None:
        pause = call.lease / 3_000
        while not slot.lost:
            await asyncio.sleep(pause)
            pause = await slot.renew()

    keeping = asyncio.create_task(keep())
    try:
        yield slot
    finally:
        keeping.cancel()
        in_time = await slot.release()
    if not in_time:
        raise _lost(slot)
