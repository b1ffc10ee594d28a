"""Hints within one process: what is said reaches those who wait, on any thread and in any event loop, and is kept for the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from windlass.store.base import ALL_QUEUES, QUEUES

ANYTHING = "*"
"""Said instead of topics when nobody can know which."""

PLACES = 1_000  # sets of topics that are remembered although nobody waits for them now
KEPT = 1_000  # topics kept for one of them


def heard(wanted: frozenset[str], said: Collection[str]) -> set[str]:
    """What of that concerns one who waits for these topics, as it was said."""
    if ANYTHING in said:
        return set(wanted)
    if ALL_QUEUES in wanted:
        return {topic for topic in said if topic in wanted or topic.startswith(QUEUES)}
    return set(wanted.intersection(said))


class Waiter:
    """One who waits: what it has heard, and how to wake it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.heard: set[str] = set()


class _Place:
    """Those who wait for the same topics, and what is kept for them while none of them does."""

    def __init__(self, kept: set[str]) -> None:
        self.kept, self.waiters = kept, list[Waiter]()

    def tell(self, news: set[str], wanted: frozenset[str]) -> None:
        for waiter in self.waiters:
            waiter.heard |= news
            waiter.ring()
        if not self.waiters:
            self.kept |= news
            if len(self.kept) > KEPT:
                self.kept = set(wanted)


class Board:
    """Where hints are put up and read. Those who wait are told apart by what they wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[frozenset[str], _Place] = {}  # in the order of their last use
        self.closed = False

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait here, and keep it for those who will come back."""
        with self._lock:
            for wanted, place in self._places.items():
                if news := heard(wanted, topics):
                    place.tell(news, wanted)

    @contextmanager
    def waiting(self, topics: Collection[str], ring: Callable[[], None], *, missed: bool = True) -> Iterator[Waiter]:
        """Be one who waits, with what was kept. One who comes for the first time may have missed anything, unless told otherwise."""
        wanted, waiter = frozenset(topics), Waiter(ring)
        place = self._enter(wanted, waiter, missed)
        try:
            yield waiter
        except BaseException:
            with self._lock:  # it heard, but it cannot say so
                place.waiters.remove(waiter)
                place.kept |= waiter.heard
            raise
        with self._lock:
            place.waiters.remove(waiter)

    def _enter(self, wanted: frozenset[str], waiter: Waiter, missed: bool) -> _Place:
        with self._lock:
            place = self._places.pop(wanted, None) or _Place(set(wanted) if missed else set())
            self._places[wanted] = place
            waiter.heard, place.kept = place.kept, set()
            place.waiters.append(waiter)
            if len(self._places) > PLACES:
                self._drop_oldest()
            return place

    def _drop_oldest(self) -> None:
        oldest = next((wanted for wanted, place in self._places.items() if not place.waiters), None)
        if oldest is not None:
            del self._places[oldest]

    def forget(self) -> None:
        """Nothing was heard for a while: whoever comes back may have missed anything."""
        with self._lock:
            self._places = {wanted: place for wanted, place in self._places.items() if place.waiters}

    async def wait(self, topics: Collection[str], timeout: float, *, missed: bool = True) -> set[str]:
        """Wait in the running event loop."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        with self.waiting(topics, partial(_ring, loop, told), missed=missed) as waiter:
            if waiter.heard:
                await asyncio.sleep(0)  # however much there is to hear, others have their turn
            elif not self.closed:
                await asyncio.wait([told], timeout=timeout)
        return waiter.heard

    def block(self, topics: Collection[str], timeout: float) -> set[str]:
        """Wait on the caller's thread."""
        bell = threading.Event()
        with self.waiting(topics, bell.set) as waiter:
            if not waiter.heard and not self.closed:
                bell.wait(timeout)
        return waiter.heard

    def close(self) -> None:
        """Send home all who wait."""
        with self._lock:
            self.closed = True
            for place in self._places.values():
                for waiter in place.waiters:
                    waiter.ring()


def _ring(loop: asyncio.AbstractEventLoop, told: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, told)


def _settle(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


async def wait_anywhere(board: Board, topics: Collection[str], timeout: float) -> set[str]:
    """Wait in the event loop that runs on this thread, or where there is none, on the thread itself without ever suspending."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return board.block(topics, timeout)
    return await board.wait(topics, timeout)
