"""Lists of runs: those with an order of their own, and by any filters the newest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple, Unpack

from windlass import defaults
from windlass.answers import Page, RunFilters
from windlass.engine import checks
from windlass.engine.cursors import LAST, encoded, place
from windlass.engine.filters import ENDS, GROUP, JOB, JOB_ENDS, QUEUE, RunFilter, Walk
from windlass.engine.ground import Ground, Part
from windlass.engine.groups import Groups
from windlass.engine.schedules import Schedules
from windlass.machine import ENDED
from windlass.model import Lane, Run, State
from windlass.store.records.claims import FIRST, Scan
from windlass.store.records.runs import Matching, QueueSlice
from windlass.store.rows import pack


class _List(NamedTuple):
    """A way to list runs that has an index: the statement, and the columns in its cursor, from the far end."""

    statement: str
    keys: tuple[str, ...]
    start: tuple[int, ...]
    fields: tuple[str, ...]


_NEWEST = _List("list_newest", ("seq",), (LAST,), ("seq",))
_JOB = _List("list_job", ("seq",), (LAST,), ("seq",))
_ENDED = _List("list_ended", ("at", "seq"), (LAST, LAST), ("finished_at", "seq"))
_JOB_ENDED = _List("list_job_ended", ("at", "seq"), (LAST, LAST), ("finished_at", "seq"))
_SCHEDULED = _List("list_scheduled", ("at", "seq"), (0, 0), ("due_at", "seq"))
_WAITING = _List("list_waiting", ("seq",), (0,), ("seq",))
_LIVE = _List("list_live", ("at", "seq"), (0, 0), ("lease_check_at", "seq"))

WALK = 10_000
"""Candidates that are read for one page where no index fits its filters."""
FIRST_LOOK, LARGEST_LOOK = 200, 2_000
"""Those that are read at first; then twice as many each time, up to so many, because other reads wait meanwhile."""
CLOCKS_DIFFER = 3_600_000
"""Milliseconds by which the order of runs may differ from that of the instants of their creation."""
RANKED = 10_000
"""The newest runs of a queue that are ranked."""


class Lists(Part):
    """The verbs that list runs."""

    def __init__(self, ground: Ground, groups: Groups, schedules: Schedules) -> None:
        super().__init__(ground)
        self._groups, self._schedules = groups, schedules

    async def page(self, *, cursor: str | None = None, count: int = 100, **filters: Unpack[RunFilters]) -> Page:
        """A page of runs that match all of these filters. A run of which more than 4 KiB are left out is a `Listed`, with the sizes.

        Queued runs, at most of a job and a queue, come in the order of their queue; ended ones latest first, but those of a queue other
        than the default one; scheduled ones by when they are due; others the newest first. A page may have fewer runs than asked for, or
        none, and a cursor all the same: then others were read on the way, up to `looked_at`.
        """
        checks.integer(count, "count", 1, self.limits.page)
        run_filter = RunFilter.of(filters)
        names = {"state" if name == "states" else name for name, value in filters.items() if value is not None}
        state = run_filter.states[0] if "state" in names and len(run_filter.states) == 1 else None
        if state is State.QUEUED and names <= {"job", "queue", "state"}:
            return await self._list_queued(run_filter.job, run_filter.queue, cursor, count)
        listing = _chosen(names, state)
        if listing is None:
            return await self._list_filtered(run_filter, cursor, count)
        return await self._list_all(listing, run_filter.job, state, cursor, count)

    async def _list_all(self, listing: _List, job: str | None, state: State | None, cursor: str | None, count: int) -> Page:
        """A list that reads nothing else than what it has."""
        named = {name: str(value) for name, value in (("job", job), ("state", state)) if value is not None}
        begins = place(cursor, [listing.statement, *named.values()], len(listing.keys)) or list(listing.start)
        values = {} if listing in (_LIVE, _SCHEDULED, _WAITING) else named
        rows = await self.records.runs.page(listing.statement, **values, **dict(zip(listing.keys, begins, strict=True)), count=count)
        runs = [run for run in rows if listing is not _LIVE or run.state is state]
        end = [getattr(rows[-1], field) for field in listing.fields] if len(rows) == count else None
        return Page(runs, encoded([listing.statement, *named.values(), *end]) if end else None)

    async def _list_filtered(self, run_filter: RunFilter, cursor: str | None, count: int) -> Page:
        """The runs among the candidates that match."""
        walk, matching = run_filter.walk(), await self._matching(run_filter)
        head, keys = run_filter.identity(), len(walk.start)
        *position, low = place(cursor, head, keys + 1) or await self._begin(run_filter, walk)
        matches, looked, size, more = list[int](), 0, max(FIRST_LOOK, 2 * count), True
        while more and len(matches) < count and looked < WALK:
            size = min(size, WALK - looked)
            rows = await self._candidates(walk, run_filter, matching, position, low, size)
            fitting = await self.records.runs.matching([row[-1] for row in rows], matching) if rows else frozenset[int]()
            more, looked = len(rows) == size, looked + len(rows)
            for row in rows:
                position = list(row)
                if row[-1] in fitting:
                    matches.append(row[-1])
                    if len(matches) == count:
                        more = True
                        break
            size = min(2 * size, max(LARGEST_LOOK, count))
        runs = [run for run in await self._in_order(matches) if run.state in run_filter.states]
        looked_at = await self._instant(walk, position) if more and len(matches) < count else None
        return Page(runs, encoded([*head, *position, low]) if more else None, looked_at)

    async def _matching(self, run_filter: RunFilter) -> Matching:
        """The filters as they are stored with a run."""
        return run_filter.matching(
            grouped=None if run_filter.group is None else (await self._groups.get(run_filter.group)).seq,
            schedule=None if run_filter.schedule is None else (await self._schedules.get(run_filter.schedule)).id,
            lanes=None if run_filter.tag is None else await self._lanes(lambda lane: run_filter.tag in lane.requires.tags),
        )

    async def _begin(self, run_filter: RunFilter, walk: Walk) -> list[int]:
        """Where the first page begins, and the seq at which the last one ends."""
        if walk in (ENDS, JOB_ENDS):
            return [run_filter.ended_before, -1, 0]
        if walk.by_instant:
            return [*walk.start, 0]
        low = await self._created_by(run_filter.created_since - CLOCKS_DIFFER) if run_filter.created_since else 0
        high = LAST if run_filter.created_before == LAST else await self._created_by(run_filter.created_before + CLOCKS_DIFFER)
        return [high, low]

    async def _created_by(self, instant: int) -> int:
        """A seq before which no run was created much later than this instant, and after which none much earlier."""
        low, high = 1, await self.records.runs.seq_below(LAST, 1) + 1
        while low < high:
            middle = (low + high) // 2
            run = await self.records.runs.created_from(middle)
            if run is None or run[1] >= instant:
                high = middle
            else:
                low = run[0] + 1
        return low

    async def _candidates(
        self, walk: Walk, run_filter: RunFilter, matching: Matching, position: Sequence[int], low: int, size: int
    ) -> list[tuple[int, ...]]:
        """The next runs in the order of a list."""
        read, after = self.records.runs, dict(zip(("at", "seq")[-len(position) :], position, strict=True))
        of_job = {"job": run_filter.job} if walk in (JOB, JOB_ENDS) else {}
        if walk in (ENDS, JOB_ENDS):
            since = max(run_filter.ended_since, run_filter.created_since - CLOCKS_DIFFER)  # no run ends before it is created
            rows = await read.walks(walk.statement, run_filter.states, **of_job, **after, since=since, count=size)
            return list(islice(merge(*rows, reverse=True), size))
        if walk is QUEUE:
            rows_of_queue = await read.walk(walk.statement, queue=run_filter.queue, states=matching.states, **after, each=size)
            return [row for row in rows_of_queue if row[0] >= low]
        of_group = {"grouped": matching.grouped} if walk is GROUP else {}
        bounds = {} if walk.by_instant else {"low": low}
        return await read.walk(walk.statement, **of_job, **of_group, **bounds, **after, count=size)

    async def _instant(self, walk: Walk, position: Sequence[int]) -> int | None:
        """The instant in the order of a list at which a page has ended."""
        if walk.by_instant:
            return position[0]
        run = await self.records.runs.created_from(position[0])
        return None if run is None else run[1]

    async def _list_queued(self, job: str | None, queue: str | None, cursor: str | None, count: int) -> Page:
        """The queued runs in queue order: the candidates of a claim."""
        head = ["queued", job, queue]
        priority_key, position, seq = place(cursor, head, 3) or FIRST
        lanes = await self._lanes(lambda lane: job in (None, lane.job) and queue in (None, lane.queue))
        parked = [-lane for lane in lanes]
        look = await self.records.claims.look([Scan([*lanes, *parked], (priority_key, position, seq), count)])
        heads = look.views[0].heads
        runs = await self._in_order([item.seq for item in heads])
        last = heads[-1] if len(heads) == count else None
        return Page(runs, encoded([*head, last.priority_key, last.position, last.seq]) if last else None)

    async def _slice(self, queue: str, states: Sequence[State], before: int, walk: int) -> QueueSlice:
        """What one read may cover: all of a queue, but of the default one, which has no index, only so many runs."""
        low = await self.records.runs.seq_below(before, walk) if queue == defaults.QUEUE else None
        return QueueSlice(queue, states, before, low)

    async def ranked(self, queue: str, states: Iterable[State | str] | None = None, *, limit: int = 100, offset: int = 0) -> list[Run]:
        """Runs of a queue by priority, and in each the newest first, among the newest 10,000 in each of these states.

        In the queue in which runs are by default, they are among the newest 10,000 of all queues. Runs are `Listed`, as in a page.
        """
        checks.name(queue, "A queue's name")
        checks.integer(limit, "limit", 1, self.limits.page)
        checks.integer(offset, "offset", 0, LAST)
        in_states = tuple(State) if states is None else checks.states(states, "A list by states")
        queue_slice = await self._slice(queue, in_states, LAST, RANKED)
        seqs = await self.records.runs.ranked(queue_slice, RANKED, limit, offset)
        return await self._in_order(seqs)

    async def _in_order(self, seqs: Sequence[int]) -> list[Run]:
        """These runs as in a list, in this order, without those that were removed meanwhile."""
        by_seq = {run.seq: run for run in await self.records.runs.page("list_seqs", ids=pack(seqs))}
        return [by_seq[seq] for seq in seqs if seq in by_seq]

    async def _lanes(self, chosen: Callable[[Lane], bool]) -> list[int]:
        await self.ground.refresh_lanes()
        return [lane.id for lane in self.ground.lanes.all if chosen(lane)]


def _chosen(names: Collection[str], state: State | None) -> _List | None:
    """The list that has an index for exactly these filters, if there is one; `state` is the only one that is asked for."""
    if not names:
        return _NEWEST
    if names == {"job"}:
        return _JOB
    if state in ENDED and names in ({"state"}, {"job", "state"}):
        return _ENDED if names == {"state"} else _JOB_ENDED
    if names == {"state"} and state is not None:
        return {State.SCHEDULED: _SCHEDULED, State.WAITING: _WAITING}.get(state, _LIVE)
    return None
