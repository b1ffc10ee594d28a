"""Hints within one process: what is said reaches those who wait, on any thread and in any event loop, and is kept for the others."""

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
"""Said instead of topics when nobody can know which."""

PLACES = 1_000  # sets of topics that are remembered although nobody waits for them now
KEPT = 1_000  # topics kept for one of them, and runs that nobody has taken yet
MANY = 100  # runs said at once that are worth the attention of all
JOURNAL_EVERY, AT_MOST_EVERY = 20, 160  # milliseconds between two times that a process says that the journal has grown
_CLOCK = SystemClock()  # real time, whatever clock the store has
MORE_AFTER, MORE = 0.5, 2  # seconds until more are told of what nobody has taken, and how many times as many


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


class Paced:
    """Calls something at most every so often: at once after a rest, and once more for all that came meanwhile.

    What goes on and on is called less and less often: readers that find something each time go on reading by themselves. On a thread
    without an event loop there is nobody to call later: then it is owed until the next call, or the end. A reader that was woken
    therefore looks once more after as long a pause.
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
                self._pace = min(2 * self._pace, AT_MOST_EVERY)

    def _late(self) -> None:
        if self._owed:
            self._owed = False
            self()

    def settle(self) -> None:
        """Call at once for what is owed."""
        if self._owed:
            self._owed = False
            self._call()

    def rest(self, ms: int) -> None:
        """Not to be called again for so long: nobody is there."""
        self._next = max(self._next, _CLOCK.monotonic() + ms)


class News:
    """Some runs in a queue. Only as many are told as there are runs, and more for as long as nobody has taken them."""

    def __init__(self, topic: str, runs: Runs) -> None:
        self.topic, self.runs = topic, set(runs)
        self.told: Counter[_Place] = Counter()
        self.spreading = False  # more will be told in a while


class Waiter:
    """One who waits: what it has heard, and how to wake it."""

    def __init__(self, ring: Callable[[], None], loop: asyncio.AbstractEventLoop | None, place: _Place) -> None:
        self.ring, self.loop, self.place = ring, loop, place
        self.heard: set[str] = set()
        self.news: list[News] = []


class _Place:
    """Those who wait for the same topics, and what is kept for them while none of them does."""

    def __init__(self, wanted: frozenset[str], kept: set[str]) -> None:
        self.wanted, self.kept, self.waiters = wanted, kept, list[Waiter]()
        self.queues = any(topic.startswith(QUEUES) for topic in wanted)
        self.most = 0  # that have waited here at once: so many hear of the same news, and no more
        self.looking: list[News] = []  # told to one who has gone to look, and may come back with nothing

    def keep(self, topics: set[str]) -> None:
        self.kept |= topics
        if len(self.kept) > KEPT:
            self.kept = set(self.wanted)


class Board:
    """Where hints are put up and read. Those who wait are told apart by what they wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[frozenset[str], _Place] = {}  # in the order of their last use
        self._asleep: dict[Waiter, None] = {}  # in event loops, who have heard nothing yet, in the order they came
        self._blocked: dict[Waiter, None] = {}  # on threads: there are few, and no loop that could tell them later
        self._news: dict[str | int, News] = {}  # by the runs that nobody has taken, oldest first
        self._abandoned: deque[Waiter] = deque()
        self.closed = False

    def wake(self, topics: Collection[str]) -> None:
        """Tell those who wait here, and keep it for those who will come back. See `Hints`."""
        with self._lock:
            runs = {topic: some for topic, some in topics.items() if 0 < len(some) <= MANY} if isinstance(topics, Mapping) else {}
            if said := [topic for topic in topics if topic not in runs]:
                self._tell_all(said)
            for topic, some in runs.items():
                self._spread(News(topic, some))

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
                    place.keep(topics)

    def _tell(self, waiter: Waiter, topics: set[str]) -> None:
        waiter.heard |= topics
        self._wake_up(waiter)
        waiter.ring()

    def _spread(self, news: News) -> None:
        for waiter in [one for one in self._blocked if self._concerns(news, one.place)]:
            self._tell_news(waiter, news)
        self._news |= dict.fromkeys(news.runs, news)
        for old in {self._news.pop(run) for run in list(islice(self._news, max(0, len(self._news) - KEPT)))}:
            self._let_go(old)
        self._tell_more(news, len(news.runs))

    def _let_go(self, news: News) -> None:
        """There is too much of it. Those who are not here hear of it when they come back, whether it is still of interest or not."""
        for place in self._places.values():
            if not place.waiters and self._concerns(news, place):
                place.keep({news.topic})

    def _tell_more(self, news: News, number: int) -> None:
        """Tell so many more, and look again in a while."""
        left, news.spreading = self._tell_some(news, number), False
        if left is not None:
            with suppress(RuntimeError):  # its loop is closed: the process ends
                left.call_soon_threadsafe(left.call_later, MORE_AFTER, self._untaken, news, MORE * number)
                news.spreading = True

    def _untaken(self, news: News, number: int) -> None:
        with self._lock:
            if news.runs:
                self._tell_more(news, number)

    def _tell_some(self, news: News, number: int) -> asyncio.AbstractEventLoop | None:
        """Tell those who wait for longest and have not looked for it; the loop of the next one, if there is one."""
        concerned = list(islice((one for one in self._asleep if self._concerns(news, one.place)), number + 1))
        for waiter in concerned[:number]:
            self._tell_news(waiter, news)
        return concerned[number].loop if len(concerned) > number else None

    def _concerns(self, news: News, place: _Place) -> bool:
        return news.told[place] < place.most and wants(place.wanted, news.topic)

    def _tell_news(self, waiter: Waiter, news: News) -> None:
        news.told[waiter.place] += 1
        waiter.news.append(news)
        self._tell(waiter, {news.topic})

    @contextmanager
    def waiting(
        self, topics: Collection[str], ring: Callable[[], None], *, missed: bool = True, loop: asyncio.AbstractEventLoop | None = None
    ) -> Iterator[Waiter]:
        """Be one who waits, with what was kept. One who comes for the first time may have missed anything, unless told otherwise."""
        with self._lock:
            while self._abandoned:
                self._give_up(self._abandoned.popleft())
            waiter = self._enter(frozenset(topics), ring, missed, loop)
        try:
            yield waiter
        except GeneratorExit:
            self._abandoned.append(waiter)  # by the collector, perhaps on a thread that holds the lock: the next one sees to it
            raise
        except BaseException:
            with self._lock:
                self._give_up(waiter)
            raise
        with self._lock:
            self._leave(waiter)
            waiter.place.looking += waiter.news

    def _enter(self, wanted: frozenset[str], ring: Callable[[], None], missed: bool, loop: asyncio.AbstractEventLoop | None) -> Waiter:
        place = self._places.pop(wanted, None) or _Place(wanted, set(wanted) if missed else set())
        self._places[wanted] = place
        looked, place.looking = place.looking, []
        self._pass_on(looked)
        waiter = Waiter(ring, loop, place)
        waiter.heard, place.kept = place.kept, set()
        place.waiters.append(waiter)
        place.most = max(place.most, len(place.waiters))
        for news in dict.fromkeys(self._news.values()) if place.queues else ():
            if not (news.spreading and loop) and self._concerns(news, place):
                self._tell_news(waiter, news)
        if not waiter.heard:
            (self._blocked if loop is None else self._asleep)[waiter] = None
        if len(self._places) > PLACES:
            self._drop_oldest()
        return waiter

    def _give_up(self, waiter: Waiter) -> None:
        """It heard, but it cannot say so."""
        self._leave(waiter)
        waiter.place.keep(waiter.heard)
        self._pass_on(waiter.news)

    def _leave(self, waiter: Waiter) -> None:
        waiter.place.waiters.remove(waiter)
        self._wake_up(waiter)

    def _wake_up(self, waiter: Waiter) -> None:
        self._asleep.pop(waiter, None)
        self._blocked.pop(waiter, None)

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
