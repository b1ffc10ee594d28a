"""In-process wake-ups. A hint published while nothing waits is buffered per subscription."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

from windlass.clock import SystemClock
from windlass.store.base import ALL_QUEUES, QUEUES, Runs

ANYTHING = "*"
"""Published instead of topics when it is not known which."""

SUBSCRIPTIONS = 1_000  # subscriptions that are kept although nothing waits for them now
KEPT = 1_000  # topics buffered for one subscription, and runs that are not taken yet
MANY = 100  # with more runs at once, all waiters are woken
JOURNAL_EVERY, MAX_PACE = 20, 160  # milliseconds between two hints of a process that the journal has grown
_CLOCK = SystemClock()  # real time, whatever clock the store has
MORE_AFTER, MORE = 0.5, 2  # seconds until more waiters are woken for runs that are not taken, and by which factor


def matching(subscribed: frozenset[str], topics: Collection[str]) -> set[str]:
    """The topics, as published, that match those of a waiter."""
    if ANYTHING in topics:
        return set(subscribed)
    if ALL_QUEUES in subscribed:
        return {topic for topic in topics if topic in subscribed or topic.startswith(QUEUES)}
    return set(subscribed.intersection(topics))


def wants(subscribed: frozenset[str], topic: str) -> bool:
    """Whether one topic matches those of a waiter."""
    return topic in subscribed or (ALL_QUEUES in subscribed and topic.startswith(QUEUES))


class Paced:
    """Calls a function at most at intervals: at once after a rest, and once more for all calls meanwhile.

    While calls keep coming, the interval grows: readers that find entries each time keep reading without hints. On a thread
    without an event loop nothing can call later: then the call is pending until the next one, or the close. A woken reader
    therefore reads once more after an equally long pause.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._next, self._pace, self._owed = call, 0, JOURNAL_EVERY, False

    def __call__(self) -> None:
        now = _CLOCK.monotonic()
        if now >= self._next:
            if now >= self._next + self._pace:
                self._pace = JOURNAL_EVERY
            self._next, self._owed = now + self._pace, False
            self._call()
        elif not self._owed:
            self._owed = True
            with suppress(RuntimeError):  # no event loop
                asyncio.get_running_loop().call_later((self._next - now) / 1000, self._late)
                self._pace = min(2 * self._pace, MAX_PACE)

    def _late(self) -> None:
        if self._owed:
            self._owed = False
            self()

    def settle(self) -> None:
        """Make the pending call at once."""
        if self._owed:
            self._owed = False
            self._call()

    def rest(self, ms: int) -> None:
        """Do not call again for this long, because nothing waits."""
        self._next = max(self._next, _CLOCK.monotonic() + ms)


class PendingHint:
    """Ready runs in a queue. As many waiters are woken as there are runs, and more while they are not taken."""

    def __init__(self, topic: str, runs: Runs) -> None:
        self.topic, self.runs = topic, set(runs)
        self.delivered: Counter[_Subscription] = Counter()
        self.spreading = False  # more waiters will be woken in a while


class Waiter:
    """One waiter: its topics with a hint, and how to wake it."""

    def __init__(self, ring: Callable[[], None], loop: asyncio.AbstractEventLoop | None, topics: frozenset[str], *, missed: bool) -> None:
        self.ring, self.loop = ring, loop
        self.subscription = _Subscription(topics, set(topics) if missed else set())  # until it joins the one of others
        self.topics: set[str] = set()
        self.hints: list[PendingHint] = []


class _Subscription:
    """The waiters for one set of topics, and the hints buffered while there are none."""

    def __init__(self, topics: frozenset[str], pending: set[str]) -> None:
        self.topics, self.pending, self.waiters = topics, pending, list[Waiter]()
        self.queues = any(topic.startswith(QUEUES) for topic in topics)
        self.limit = 0  # the most that have waited here at once: only this many are woken for the same runs
        self.looking: list[PendingHint] = []  # delivered to a waiter that has left to claim, and may return without a run

    def keep(self, topics: set[str]) -> None:
        self.pending |= topics
        if len(self.pending) > KEPT:
            self.pending = set(self.topics)


class Waiters:
    """All waiters of a store. Waiters are grouped by their sets of topics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[frozenset[str], _Subscription] = {}  # in the order of their last use
        self._asleep: dict[Waiter, None] = {}  # in event loops, not woken yet, in the order of their arrival
        self._blocked: dict[Waiter, None] = {}  # on threads: there are few, and no loop that could wake them later
        self._hints: dict[str | int, PendingHint] = {}  # by runs that are not taken, oldest first
        self._abandoned: deque[Waiter] = deque()
        self.closed = False

    def wake(self, topics: Collection[str]) -> None:
        """Wake the waiters here, and buffer the hint for other subscriptions. See `Hints`."""
        with self._lock:
            runs = {topic: some for topic, some in topics.items() if 0 < len(some) <= MANY} if isinstance(topics, Mapping) else {}
            if plain := [topic for topic in topics if topic not in runs]:
                self._notify_all(plain)
            for topic, some in runs.items():
                self._spread(PendingHint(topic, some))

    def taken(self, runs: Runs) -> None:
        """No further waiters need be woken for these runs. See `Hints`."""
        with self._lock:
            for run in runs if self._hints else ():
                if (hint := self._hints.pop(run, None)) is not None:
                    hint.runs.discard(run)

    def _notify_all(self, hints: Collection[str]) -> None:
        for subscribed, subscription in self._subscriptions.items():
            if topics := matching(subscribed, hints):
                for waiter in subscription.waiters:
                    self._notify(waiter, topics)
                if not subscription.waiters:
                    subscription.keep(topics)

    def _notify(self, waiter: Waiter, topics: set[str]) -> None:
        waiter.topics |= topics
        self._wake_up(waiter)
        waiter.ring()

    def _spread(self, hint: PendingHint) -> None:
        for waiter in [one for one in self._blocked if self._concerns(hint, one.subscription)]:
            self._deliver(waiter, hint)
        self._hints |= dict.fromkeys(hint.runs, hint)
        for old in {self._hints.pop(run) for run in list(islice(self._hints, max(0, len(self._hints) - KEPT)))}:
            self._expire(old)
        self._notify_more(hint, len(hint.runs))

    def _expire(self, hint: PendingHint) -> None:
        """The buffer is full. Subscriptions without a waiter get the hint with their next wait, whether it is still relevant or not."""
        for subscription in self._subscriptions.values():
            if not subscription.waiters and self._concerns(hint, subscription):
                subscription.keep({hint.topic})

    def _notify_more(self, hint: PendingHint, number: int) -> None:
        """Wake this many more, and check again in a while."""
        left, hint.spreading = self._notify_some(hint, number), False
        if left is not None:
            with suppress(RuntimeError):  # its loop is closed: the process is ending
                left.call_soon_threadsafe(left.call_later, MORE_AFTER, self._untaken, hint, MORE * number)
                hint.spreading = True

    def _untaken(self, hint: PendingHint, number: int) -> None:
        with self._lock:
            if hint.runs:
                self._notify_more(hint, number)

    def _notify_some(self, hint: PendingHint, number: int) -> asyncio.AbstractEventLoop | None:
        """Wake the longest waiters that have not been woken for it; returns the loop of the next one, if any."""
        concerned = list(islice((one for one in self._asleep if self._concerns(hint, one.subscription)), number + 1))
        for waiter in concerned[:number]:
            self._deliver(waiter, hint)
        return concerned[number].loop if len(concerned) > number else None

    def _concerns(self, hint: PendingHint, subscription: _Subscription) -> bool:
        return hint.delivered[subscription] < subscription.limit and wants(subscription.topics, hint.topic)

    def _deliver(self, waiter: Waiter, hint: PendingHint) -> None:
        hint.delivered[waiter.subscription] += 1
        waiter.hints.append(hint)
        self._notify(waiter, {hint.topic})

    @contextmanager
    def waiting(
        self, topics: Collection[str], ring: Callable[[], None], *, missed: bool = True, loop: asyncio.AbstractEventLoop | None = None
    ) -> Iterator[Waiter]:
        """Register a waiter, with the buffered hints. The first wait of a subscription gets all topics, unless `missed` is false."""
        waiter = Waiter(ring, loop, frozenset(topics), missed=missed)
        try:  # around all of it: a signal can raise anywhere
            with self._lock:
                while self._abandoned:
                    self._give_up(self._abandoned.popleft())
                self._enter(waiter)
            yield waiter
            with self._lock:
                self._leave(waiter)
                waiter.subscription.looking += waiter.hints
        except GeneratorExit:
            self._abandoned.append(waiter)  # called by the garbage collector, perhaps on a thread with the lock: the next call cleans up
            raise
        except BaseException:
            with self._lock:
                self._give_up(waiter)
            raise

    def _enter(self, waiter: Waiter) -> None:
        loop, subscribed = waiter.loop, waiter.subscription.topics
        subscription = waiter.subscription = self._subscriptions.pop(subscribed, waiter.subscription)
        self._subscriptions[subscribed] = subscription
        looked, subscription.looking = subscription.looking, []
        self._pass_on(looked)
        waiter.topics, subscription.pending = subscription.pending, set()
        subscription.waiters.append(waiter)
        subscription.limit = max(subscription.limit, len(subscription.waiters))
        for hint in dict.fromkeys(self._hints.values()) if subscription.queues else ():
            if not (hint.spreading and loop) and self._concerns(hint, subscription):
                self._deliver(waiter, hint)
        if not waiter.topics:
            (self._blocked if loop is None else self._asleep)[waiter] = None
        if len(self._subscriptions) > SUBSCRIPTIONS:
            self._drop_oldest()

    def _give_up(self, waiter: Waiter) -> None:
        """It was woken, but its wait was cancelled."""
        self._leave(waiter)
        waiter.subscription.keep(waiter.topics)
        self._pass_on(waiter.hints)

    def _leave(self, waiter: Waiter) -> None:
        with suppress(ValueError):  # it was interrupted before it had entered, or after it had left
            waiter.subscription.waiters.remove(waiter)
        self._wake_up(waiter)

    def _wake_up(self, waiter: Waiter) -> None:
        self._asleep.pop(waiter, None)
        self._blocked.pop(waiter, None)

    def _pass_on(self, hints: Collection[PendingHint]) -> None:
        """A woken waiter has not taken the runs: wake another."""
        for hint in hints:
            if hint.runs:
                self._notify_some(hint, 1)

    def _drop_oldest(self) -> None:
        oldest = next((subscribed for subscribed, subscription in self._subscriptions.items() if not subscription.waiters), None)
        if oldest is not None:
            del self._subscriptions[oldest]

    def forget(self) -> None:
        """Hints may have been missed: the next wait of every subscription returns all its topics."""
        with self._lock:
            self._subscriptions = {
                subscribed: subscription for subscribed, subscription in self._subscriptions.items() if subscription.waiters
            }

    async def wait(self, topics: Collection[str], timeout: float, *, missed: bool = True) -> set[str]:
        """Wait in the running event loop."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        with self.waiting(topics, partial(_ring, loop, woken), missed=missed, loop=loop) as waiter:
            if waiter.topics:
                await asyncio.sleep(0)  # however many hints there are, other tasks get their turn
            elif not self.closed:
                await asyncio.wait([woken], timeout=timeout)
        return waiter.topics

    def block(self, topics: Collection[str], timeout: float) -> set[str]:
        """Wait on the caller's thread."""
        bell = threading.Event()
        with self.waiting(topics, bell.set) as waiter:
            if not waiter.topics and not self.closed:
                bell.wait(timeout)
        return waiter.topics

    def close(self) -> None:
        """Wake all waiters for the close."""
        with self._lock:
            self.closed = True
            for subscription in self._subscriptions.values():
                for waiter in subscription.waiters:
                    waiter.ring()


def _ring(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
        loop.call_soon_threadsafe(_settle, woken)


def _settle(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def wait_anywhere(waiters: Waiters, topics: Collection[str], timeout: float) -> set[str]:
    """Wait in the event loop of this thread, or, if there is none, on the thread itself without suspending."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return waiters.block(topics, timeout)
    return await waiters.wait(topics, timeout)
