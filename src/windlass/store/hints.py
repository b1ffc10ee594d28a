"""Hints within one process: what is said reaches those who wait, on any thread and in any event loop, and is kept for the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice

from windlass.store.base import ALL_QUEUES, QUEUES, Runs

ANYTHING = "*"
"""Said instead of topics when nobody can know which."""

PLACES = 1_000  # sets of topics that are remembered although nobody waits for them now
KEPT = 1_000  # topics kept for one of them, and runs that nobody has taken yet
MANY = 100  # runs said at once that are worth the attention of all
MORE_AFTER, MORE = 0.1, 4  # seconds until more are told of what nobody has taken, and how many times as many


def heard(wanted: frozenset[str], said: Collection[str]) -> set[str]:
    """What of that concerns one who waits for these topics, as it was said."""
    if ANYTHING in said:
        return set(wanted)
    if ALL_QUEUES in wanted:
        return {topic for topic in said if topic in wanted or topic.startswith(QUEUES)}
    return set(wanted.intersection(said))


def wants(wanted: frozenset[str], topic: str) -> bool:
    """Whether one topic concerns one who waits for these."""
    return topic in wanted or (ALL_QUEUES in wanted and topic.startswith(QUEUES))


class News:
    """Some runs in a queue. Only as many are told as there are runs, and more for as long as nobody has taken them."""

    def __init__(self, topic: str, runs: Runs, before: int) -> None:
        self.topic, self.runs = topic, set(runs)
        self.before = before  # those who come later are not waited for: what they missed is kept for them


class Waiter:
    """One who waits: what it has heard, and how to wake it."""

    def __init__(self, wanted: frozenset[str], number: int, ring: Callable[[], None], loop: asyncio.AbstractEventLoop | None) -> None:
        self.wanted, self.number, self.ring, self.loop = wanted, number, ring, loop
        self.heard: set[str] = set()
        self.news: list[News] = []


def _concerns(news: News, waiter: Waiter) -> bool:
    return waiter.number <= news.before and wants(waiter.wanted, news.topic)


class _Place:
    """Those who wait for the same topics, and what is kept for them while none of them does."""

    def __init__(self, kept: set[str]) -> None:
        self.kept, self.waiters = kept, list[Waiter]()
        self.news: list[News] = []  # kept as well
        self.told: list[News] = []  # to one who has gone to look, and may come back with nothing

    def keep(self, news: Iterable[News], wanted: frozenset[str]) -> None:
        self.news += news
        if len(self.news) > KEPT:
            self.news, self.kept = [], set(wanted)

    def taken_out(self) -> set[str]:
        """All that was kept and is still of interest."""
        kept = self.kept.union(news.topic for news in self.news if news.runs)
        self.kept, self.news = set(), []
        return kept


class Board:
    """Where hints are put up and read. Those who wait are told apart by what they wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[frozenset[str], _Place] = {}  # in the order of their last use
        self._asleep: dict[Waiter, None] = {}  # in event loops, who have heard nothing yet, in the order they came
        self._came = 0
        self._news: dict[str | int, News] = {}  # by the runs that nobody has taken, oldest first
        self.closed = False

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait here, and keep it for those who will come back. See `Hints`."""
        with self._lock:
            runs = {topic: some for topic, some in topics.items() if 0 < len(some) <= MANY} if isinstance(topics, Mapping) else {}
            if said := [topic for topic in topics if topic not in runs]:
                self._tell_all(said)
            for topic, some in runs.items():
                self._spread(News(topic, some, self._came))

    def taken(self, runs: Runs) -> None:
        """These need not be told to anybody else. See `Hints`."""
        with self._lock:
            for run in runs:
                if (news := self._news.pop(run, None)) is not None:
                    news.runs.discard(run)

    def _tell_all(self, said: Collection[str]) -> None:
        for wanted, place in self._places.items():
            if topics := heard(wanted, said):
                for waiter in place.waiters:
                    self._tell(waiter, topics)
                if not place.waiters:
                    place.kept |= topics
                    if len(place.kept) > KEPT:
                        place.kept = set(wanted)

    def _tell(self, waiter: Waiter, topics: set[str]) -> None:
        waiter.heard |= topics
        self._asleep.pop(waiter, None)
        waiter.ring()

    def _spread(self, news: News) -> None:
        for wanted, place in self._places.items():
            if wants(wanted, news.topic):
                if not place.waiters:
                    place.keep([news], wanted)
                for waiter in place.waiters:
                    if waiter.loop is None:  # it waits on a thread: there are few of these, and no loop that could tell them later
                        self._tell(waiter, {news.topic})
        self._news |= dict.fromkeys(news.runs, news)
        for run in list(islice(self._news, max(0, len(self._news) - KEPT))):
            del self._news[run]
        self._tell_more(news, len(news.runs))

    def _tell_more(self, news: News, number: int) -> None:
        """Tell so many more, and look again in a while."""
        if (left := self._tell_some(news, number)) is not None:
            with suppress(RuntimeError):  # its loop is closed: the process ends
                left.call_soon_threadsafe(left.call_later, MORE_AFTER, self._untaken, news, MORE * number)

    def _untaken(self, news: News, number: int) -> None:
        with self._lock:
            if news.runs:
                self._tell_more(news, number)

    def _tell_some(self, news: News, number: int) -> asyncio.AbstractEventLoop | None:
        """Tell those who wait for longest; the loop of the next one, if there is one."""
        concerned = list(islice((one for one in self._asleep if _concerns(news, one)), number + 1))
        for waiter in concerned[:number]:
            waiter.news.append(news)
            self._tell(waiter, {news.topic})
        return concerned[number].loop if len(concerned) > number else None

    @contextmanager
    def waiting(
        self, topics: Collection[str], ring: Callable[[], None], *, missed: bool = True, loop: asyncio.AbstractEventLoop | None = None
    ) -> Iterator[Waiter]:
        """Be one who waits, with what was kept. One who comes for the first time may have missed anything, unless told otherwise."""
        wanted = frozenset(topics)
        with self._lock:
            self._came += 1
            waiter = Waiter(wanted, self._came, ring, loop)
            place = self._enter(wanted, waiter, missed)
        try:
            yield waiter
        except BaseException:
            with self._lock:  # it heard, but it cannot say so
                self._leave(place, waiter)
                place.kept |= waiter.heard
                self._pass_on(waiter.news)
            raise
        with self._lock:
            self._leave(place, waiter)
            place.told += waiter.news

    def _enter(self, wanted: frozenset[str], waiter: Waiter, missed: bool) -> _Place:
        place = self._places.pop(wanted, None) or _Place(set(wanted) if missed else set())
        self._places[wanted] = place
        waiter.heard = place.taken_out()
        place.waiters.append(waiter)
        told, place.told = place.told, []
        self._pass_on(told)
        if not waiter.heard and waiter.loop is not None:
            self._asleep[waiter] = None
        if len(self._places) > PLACES:
            self._drop_oldest()
        return place

    def _leave(self, place: _Place, waiter: Waiter) -> None:
        """What others were told in its stead, it hears at the end if nobody has taken it."""
        place.waiters.remove(waiter)
        if waiter in self._asleep:
            del self._asleep[waiter]
            waiter.heard |= {news.topic for news in self._news.values() if _concerns(news, waiter)}

    def _pass_on(self, told: Collection[News]) -> None:
        """One who was told has not taken it: somebody else may."""
        for news in told:
            if news.runs:
                self._tell_some(news, 1)

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
        with self.waiting(topics, partial(_ring, loop, told), missed=missed, loop=loop) as waiter:
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
