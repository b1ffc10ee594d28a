"""How much there is and was, counted once from the journal, and who is there to do it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from msgspec import Struct

from windlass.engine import checks
from windlass.engine.reading import Reading, Tail
from windlass.errors import BadInput, Conflict, NotFound, OutcomeUnknown, WrongState
from windlass.machine import ENDED, LIVE, GiveBack, Lapse, Refuse, Snooze
from windlass.model import Counts, Entry, State, Worker, WorkerInfo
from windlass.store.stats import FOLLOWER, Total

MINUTE = 60_000
PAGE = 1_000
PAGES = 100
"""How many pages of the journal one call counts before it lets others have the store."""

DROP_EVERY, DROPPED_AT_ONCE = 60_000, 1_000
FEW = 5
ROWS = 100_000  # that one question may read


class Minute(Struct, frozen=True):
    """How much there was in the minute that begins then."""

    at: int
    counts: Counts


class JobStats(Struct, frozen=True):
    """A job in a queue: how many runs are in each state, or have ended in it; how much there was from the beginning, and lately."""

    queue: str
    job: str
    states: dict[State, int]
    counts: Counts
    lately: Counts


class Stats(Struct, frozen=True):
    """All jobs together, minute by minute up to now, and each of them."""

    at: int
    states: dict[State, int]
    counts: Counts
    minutes: list[Minute]
    jobs: list[JobStats]


class Counting(Reading):
    """The verbs of operators who look at the whole."""

    _drop_at = 0

    # Workers

    async def worker_metrics(self, worker: str, metrics: Mapping[str, float]) -> None:
        """What a worker tells of its host; it replaces what was told before, and shows that the worker lives."""
        checks.name(worker, "A worker's name")
        checks.kind(metrics, "metrics", Mapping)
        checks.count(list(metrics), "metrics of a worker", self.limits.metrics)
        for name, number in metrics.items():
            _number(number, checks.name(name, "A metric's name"))
        if not await self.records.keep_metrics(worker, metrics, self.clock.now()):
            raise NotFound(f"There is no worker {worker}.", hint="Register it first; one that was silent for too long is forgotten.")

    async def workers(self, *, after: str = "", count: int = 100) -> list[Worker]:
        """Workers by name, the living and the lately seen, with what they hold now."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.name(after, "A worker's name")
        seen = await self.records.workers_after(after, count)
        held = await self.records.held_by([one.info.name for one in seen], FEW) if seen else {}
        since = self.clock.now() - self.limits.worker_silence
        return [Worker(*one[:-1], one.alive(since), *held.get(one.info.name, (0, ())), one.stopped_at) for one in seen]

    async def living(self) -> list[WorkerInfo]:
        """The workers that are alive."""
        return await self.records.workers_seen(self.clock.now() - self.limits.worker_silence)

    async def prune_workers(self) -> None:
        """Forget those that nobody has seen for long."""
        await self.records.drop_workers(self.clock.now() - self.limits.keep_workers, self.limits.page)

    async def drop_worker(self, name: str) -> None:
        """Forget a worker that is silent; one that lives tells itself again."""
        checks.name(name, "A worker's name")
        seen_at, since = await self.records.worker_seen_at(name), self.clock.now() - self.limits.worker_silence
        if seen_at is None:
            raise NotFound(f"There is no worker {name!r}.", hint="`windlass workers` shows those there are.")
        if seen_at >= since or not await self.records.drop_worker(name, since):
            raise WrongState(f"Worker {name!r} is alive.", hint="Stop it first; one that is silent for a minute can be removed.")

    # How much there was

    async def roll_up(self, pages: int = PAGES) -> bool:
        """Count the entries of the journal that nobody has counted; whether all of them are counted then.

        Any process may do this, any number at once: the place in the journal moves on together with what was counted, so every entry
        counts once. A store that has never been counted is counted from its first entry on, which is exact, because a run's entries
        are kept for as long as the run, and no run is pruned before it is counted.
        """
        for _ in range(pages):
            tail, rev = await self.follow(FOLLOWER, count=min(PAGE, self.limits.page), whole=True)
            if not tail.entries or (await self._add(tail, rev) and tail.ended):  # what came meanwhile can wait for the next call
                return True
        return False

    async def _add(self, tail: Tail, rev: int) -> bool:
        """Whether they are counted by this call."""
        now, ticks = self.clock.now(), self.clock.monotonic()
        oldest = (now - self.limits.keep_minutes) // MINUTE * MINUTE
        minutes, totals = tally(tail.entries)
        kept = {key: counts for key, counts in minutes.items() if key[0] >= oldest}
        drop = (oldest, DROPPED_AT_ONCE) if ticks >= self._drop_at else None
        try:
            await self.records.roll_up((rev, tail.cursor, tail.entries[-1].at), kept, totals, now, drop)
        except (Conflict, OutcomeUnknown):
            return False  # another process was first, or nobody knows; the next look tells
        if drop is not None:
            self._drop_at = ticks + DROP_EVERY
        return True

    async def totals(self, *, count: int = 1_000) -> tuple[Total, dict[tuple[str, str], Total]]:
        """How many runs are in each state and how much there was, in all and by queue and job, as far as it is counted.

        At most `count` queues and jobs, those that came first: a list that was once complete keeps what it has.
        """
        checks.integer(count, "count", 1, self.limits.page)
        return await self.records.totals(count)

    async def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and what there was in the last so many minutes, the current one included.

        Where there are very many queues and jobs the minutes are fewer: no question may keep the store from those who work.
        """
        checks.integer(minutes, "minutes", 1, self.limits.minutes)
        now = self.clock.now()
        first = now // MINUTE * MINUTE - (minutes - 1) * MINUTE
        behind = await self.records.minute_behind(first, ROWS)
        if behind is not None:
            first = behind + MINUTE
        whole, by_job = await self.totals()
        series, lately = await self.records.minutes(first)
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
    """What entries have in common that count the same."""

    minute: int
    queue: str
    left: str | None
    job: str
    before: State | None
    state: State
    move: str


def tally(entries: Iterable[Entry]) -> tuple[dict[tuple[int, str, str], Counter[str]], dict[tuple[str, str], Counter[str]]]:
    """What some entries add to each minute, and to the totals of each queue and job."""
    minutes: defaultdict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
    totals: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kind, (number, spent) in _kinds(entries).items():
        found = _counted(kind, number, spent)
        minutes[kind.minute, kind.queue, kind.job].update(found)
        totals[kind.queue, kind.job].update(found)
        if kind.before is not None:
            totals[kind.left or kind.queue, kind.job][kind.before] -= number
        if kind.state not in ENDED:
            totals[kind.queue, kind.job][kind.state] += number
    return minutes, totals


def _kinds(entries: Iterable[Entry]) -> dict[_Kind, tuple[int, int]]:
    """How many entries there are of each kind, and how long their runs were in the state before. Most are of a few kinds only."""
    found: dict[_Kind, tuple[int, int]] = {}
    for entry in entries:
        at = entry.at
        kind = _Kind(at - at % MINUTE, entry.queue, entry.left, entry.job, entry.before, entry.state, entry.move)
        number, spent = found.get(kind, (0, 0))
        found[kind] = number + 1, spent + max(0, at - (entry.before_at or at))  # clocks differ
    return found


def _counted(kind: _Kind, number: int, spent: int) -> dict[str, int]:
    """What entries of a kind say, in the words of `Counts`."""
    before, state, move = kind.before, kind.state, kind.move
    found = {"created": number} if before is None else {}
    if state in ENDED:
        found[state.value] = number
    if before is State.QUEUED:
        found["waited"] = spent
        if state is State.CLAIMED:
            found["started"] = number
    elif before in LIVE and (before, state) != (State.CLAIMED, State.RUNNING):
        found["ran"] = spent
    if before in LIVE and state not in LIVE:
        found["attempts"] = number
        if move == Lapse.name:
            found["lapsed"] = number
        if state not in ENDED:
            found["returned" if move in (Snooze.name, GiveBack.name, Refuse.name) else "retried"] = number
    return found


def _number(value: Any, name: str) -> None:
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > 2**63 - 1:
        raise BadInput(f"The metric {name} is {value!r:.80}, which is no number.", hint="Send finite numbers only.")
