"""Statistics: current and past numbers of runs, counted once from the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from windlass.answers import JobStats, Minute, Stats
from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.journal import Journal, Tail
from windlass.errors import Conflict, OutcomeUnknown
from windlass.machine import ENDED, LIVE, Lapse, Refuse, Requeue, Snooze
from windlass.model import Counts, Entry, State
from windlass.store.records.stats import CONSUMER, Total

MINUTE = 60_000
PAGE = 1_000
PAGES = 100
"""How many pages of the journal one call counts before other processes get their turn at the store."""

DROP_EVERY, DROPPED_AT_ONCE = 60_000, 1_000
ROWS = 100_000  # rows that one query may read


class Rollup(Part):
    """The verbs that count, and that return the counts."""

    def __init__(self, ground: Ground, journal: Journal) -> None:
        super().__init__(ground)
        self._journal = journal
        self._drop_at = 0

    async def roll_up(self, pages: int = PAGES) -> bool:
        """Count the journal entries that are not counted yet; whether all of them are counted then.

        Any process may do this, any number at once: the offset in the journal advances in the same batch as the counts, so every entry
        counts once. A store that has never been counted is counted from its first entry on, which is exact, because a run's entries
        are kept for as long as the run, and no run is pruned before it is counted.
        """
        for _ in range(pages):
            tail, rev = await self._journal.follow(CONSUMER, count=min(PAGE, self.limits.page), whole=True)
            if not tail.entries or (await self._add(tail, rev) and tail.ended):  # entries that came meanwhile can wait for the next call
                return True
        return False

    async def _add(self, tail: Tail, rev: int) -> bool:
        """Whether this call has counted them."""
        now, ticks = self.clock.now(), self.clock.monotonic()
        oldest = (now - self.limits.keep_minutes) // MINUTE * MINUTE
        minutes, totals = tally(tail.entries)
        kept = {key: counts for key, counts in minutes.items() if key[0] >= oldest}
        drop = (oldest, DROPPED_AT_ONCE) if ticks >= self._drop_at else None
        try:
            await self.records.stats.roll_up((rev, tail.cursor, tail.entries[-1].at), kept, totals, now, drop)
        except (Conflict, OutcomeUnknown):
            return False  # another process was first, or the outcome is unknown; the next call reads the offset again
        if drop is not None:
            self._drop_at = ticks + DROP_EVERY
        return True

    async def totals(self, *, count: int = 1_000) -> tuple[Total, dict[tuple[str, str], Total]]:
        """The number of runs in each state and the counters, in all and by queue and job, as far as they are counted.

        At most `count` queues and jobs, in the order of their creation: a list that was once complete keeps its rows.
        """
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.stats.totals(count)

    async def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and the counters of the last `minutes` minutes, the current one included.

        Where there are very many queues and jobs the minutes are fewer, so that no query keeps workers from the store.
        """
        checks.integer(minutes, "minutes", 1, self.limits.minutes)
        now = self.clock.now()
        first = now // MINUTE * MINUTE - (minutes - 1) * MINUTE
        behind = await self.records.stats.minute_behind(first, ROWS)
        if behind is not None:
            first = behind + MINUTE
        whole, by_job = await self.totals()
        series, lately = await self.records.stats.minutes(first)
        return Stats(
            at=now,
            states=states(whole),
            counts=whole.counts,
            minutes=[Minute(at, series.get(at, Counts())) for at in range(first, now + 1, MINUTE)],
            jobs=[JobStats(*key, states(total), total.counts, lately.get(key, Counts())) for key, total in by_job.items()],
        )


def states(total: Total) -> dict[State, int]:
    """How many runs are in each state, or have ever ended in it."""
    return total.unfinished | {state: getattr(total.counts, state) for state in ENDED}


class _Kind(NamedTuple):
    """The properties by which entries are counted."""

    minute: int
    queue: str
    left: str | None
    job: str
    before: State | None
    state: State
    move: str


def tally(entries: Iterable[Entry]) -> tuple[dict[tuple[int, str, str], Counter[str]], dict[tuple[str, str], Counter[str]]]:
    """The counts that some entries add to each minute, and to the totals of each queue and job."""
    minutes: defaultdict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
    totals: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kind, (number, spent) in _kinds(entries).items():
        counts = _counted(kind, number, spent)
        minutes[kind.minute, kind.queue, kind.job].update(counts)
        totals[kind.queue, kind.job].update(counts)
        if kind.before is not None:
            totals[kind.left or kind.queue, kind.job][kind.before] -= number
        if kind.state not in ENDED:
            totals[kind.queue, kind.job][kind.state] += number
    return minutes, totals


def _kinds(entries: Iterable[Entry]) -> dict[_Kind, tuple[int, int]]:
    """The number of entries of each kind, and how long their runs were in the state before. Most are of a few kinds only."""
    kinds: dict[_Kind, tuple[int, int]] = {}
    for entry in entries:
        at = entry.at
        kind = _Kind(at - at % MINUTE, entry.queue, entry.left, entry.job, entry.before, entry.state, entry.move)
        number, spent = kinds.get(kind, (0, 0))
        kinds[kind] = number + 1, spent + max(0, at - (entry.before_at or at))  # clocks differ
    return kinds


def _counted(kind: _Kind, number: int, spent: int) -> dict[str, int]:
    """The counters of entries of a kind, by their names in `Counts`."""
    before, state, move = kind.before, kind.state, kind.move
    counts = {"created": number} if before is None else {}
    if state in ENDED:
        counts[state.value] = number
    if before is State.QUEUED:
        counts["waited"] = spent
        if state is State.CLAIMED:
            counts["started"] = number
    elif before in LIVE and (before, state) != (State.CLAIMED, State.RUNNING):
        counts["ran"] = spent
    if before in LIVE and state not in LIVE:
        counts["attempts"] = number
        if move == Lapse.name:
            counts["lapsed"] = number
        if state not in ENDED:
            counts["returned" if move in (Snooze.name, Requeue.name, Refuse.name) else "retried"] = number
    return counts
