"""Time, ids and randomness. No other module of windlass takes any of the three from the system."""

from __future__ import annotations

import asyncio
import os
import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Protocol


class Clock(Protocol):
    """The engine's source of time, ids and randomness."""

    def now(self) -> int:
        """Milliseconds since the epoch, UTC: what is stored."""

    def monotonic(self) -> int:
        """Monotonic milliseconds that include the time in which the machine sleeps; intervals are measured with them."""

    def boot(self) -> str | None:
        """Identifies the boot from which the monotonic clock counts; None if that is unknown."""

    def new_id(self) -> str:
        """A UUIDv7 in its text form."""

    def new_ids(self, count: int) -> list[str]:
        """This many ids, cheaper than one by one."""

    def nonce(self) -> str:
        """128 random bits as 22 characters of base64url; never returned twice."""

    def chance(self) -> float:
        """A number from [0, 1)."""

    async def sleep(self, seconds: float) -> None:
        """Return after that time on this clock."""


def nap(seconds: float) -> None:
    """Sleep for a moment of real time on this thread, whatever clock is in use.

    It does not wait for an event that all threads share: an exception raised there by a signal, such as Ctrl-C, can leave its lock taken,
    and then every sleeping thread would sleep for ever.
    """
    time.sleep(seconds)


def uuid7(ms: int, random_bytes: bytes) -> str:
    """The UUIDv7 of an instant and ten random bytes."""
    tail = bytearray(random_bytes)
    tail[0] = 0x70 | tail[0] & 0x0F
    tail[2] = 0x80 | tail[2] & 0x3F
    h = (ms & 0xFFFF_FFFF_FFFF).to_bytes(6, "big").hex() + tail.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuids7(ms: int, random_bytes: bytes) -> list[str]:
    """The UUIDv7s of an instant, one for every ten random bytes."""
    time, tail = f"{ms & 0xFFFF_FFFF_FFFF:012x}", random_bytes.hex()
    head, variant = f"{time[:8]}-{time[8:]}-7", _VARIANT
    return [
        f"{head}{tail[i + 1 : i + 4]}-{variant[tail[i + 4]]}{tail[i + 5 : i + 8]}-{tail[i + 8 : i + 20]}" for i in range(0, len(tail), 20)
    ]


# Includes the time in which the machine sleeps; without such a clock, a sleep looks as if the wall clock had been set.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class _RandomParts:
    """Random bytes in parts of one size, read from the system many at a time: each such call lets other threads take the interpreter."""

    def __init__(self, size: int) -> None:
        self._part = Struct(f"{size}s")
        self._parts: Iterator[tuple[bytes, ...]] = iter(())
        os.register_at_fork(after_in_child=self._drop)  # two processes must not have the same

    def __call__(self) -> bytes:
        while True:
            for (part,) in self._parts:  # no two threads get the same: one step of this iterator is one instruction
                return part
            self._parts = self._part.iter_unpack(os.urandom(256 * self._part.size))

    def _drop(self) -> None:
        self._parts = iter(())


_ten_bytes, _sixteen_bytes = _RandomParts(10), _RandomParts(16)


@cache
def _boot() -> str | None:
    if _BOOTTIME is None:
        return None
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


class SystemClock:
    """The machine's own clock; once aligned, the clock of the server that several hubs share."""

    def __init__(self) -> None:
        self._offset: int | None = None

    def now(self) -> int:
        return self.wall() if self._offset is None else self.monotonic() + self._offset

    def wall(self) -> int:
        """The machine's own time, whether aligned or not."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) // 1_000_000

    def boot(self) -> str | None:
        return _boot()

    def align(self, server_now: int) -> None:
        """From now on, now() is the server's time, extrapolated by the local monotonic clock."""
        self._offset = server_now - self.monotonic()

    def new_id(self) -> str:
        return uuid7(self.now(), _ten_bytes())

    def new_ids(self, count: int) -> list[str]:
        return uuids7(self.now(), os.urandom(10 * count))

    def nonce(self) -> str:
        return urlsafe_b64encode(_sixteen_bytes())[:22].decode()

    def chance(self) -> float:
        return random.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is moved; ids and random numbers follow from the seed."""

    def __init__(self, ms: int = 1_767_225_600_000, seed: int = 0) -> None:
        self.ms, self.ticks = ms, 0
        self.boot_id: str | None = None
        self._random = random.Random(seed)

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.ms, self.ticks = self.ms + ms, self.ticks + ms

    def jump(self, ms: int) -> None:
        """Set the wall clock without time passing."""
        self.ms += ms

    def now(self) -> int:
        return self.ms

    def monotonic(self) -> int:
        return self.ticks

    def boot(self) -> str | None:
        return self.boot_id

    def new_id(self) -> str:
        return uuid7(self.ms, self._random.randbytes(10))

    def new_ids(self, count: int) -> list[str]:
        return [self.new_id() for _ in range(count)]

    def nonce(self) -> str:
        return urlsafe_b64encode(self._random.randbytes(16))[:22].decode()

    def chance(self) -> float:
        return self._random.random()

    def reboot(self, boot_id: str) -> None:
        """Simulate a reboot: the monotonic clock starts at 0."""
        self.ticks, self.boot_id = 0, boot_id

    async def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))
