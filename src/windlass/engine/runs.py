"""Reads of runs: one, a page of them, their history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from windlass import defaults
from windlass.answers import Page, Status
from windlass.engine import checks
from windlass.engine.cursors import LAST, encoded, place
from windlass.engine.ground import Part
from windlass.errors import BadInput, NotFound, Pruned
from windlass.machine import ENDED
from windlass.model import Attempt, Entry, LogLine, Run, State
from windlass.store.records.claims import FIRST, Scan
from windlass.store.records.runs import LAST_ATTEMPT, QueueSlice
from windlass.store.rows import pack


class Moment(Struct, frozen=True):
    """A run, and the changes that a watcher has not read yet."""

    run: Run
    entries: list[Entry]
    lines: list[LogLine]


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
_QUEUE = "queue"  # the first word of the cursor of a queue's list
_LIVE = _List("list_live", ("at", "seq"), (0, 0), ("lease_check_at", "seq"))

LISTS: Mapping[tuple[str, ...], str] = {
    (): "all runs, newest first",
    ("job",): "the runs of a job, newest first",
    ("state",): "the runs in a state; queued ones in the order of their queue, ended ones latest first",
    ("job", "state"): "the ended or queued runs of a job",
    ("queue",): "the runs of a queue, newest first",
    ("queue", "state"): "the runs of a queue in a state; queued ones in its order, others newest first",
    ("queue", "states"): "the runs of a queue in any of some states, newest first",
    ("job", "queue", "state"): "the queued runs of a job in a queue, in its order",
}
"""The filters that can be combined, each of which has its index."""

WALK = 10_000
"""Runs of all queues that are read for one page of the default queue, which has no index."""
RANKED = 10_000
"""The newest runs of a queue that are ranked."""


class Runs(Part):
    """The verbs that read runs and change nothing."""

    async def get(self, run_id: str) -> Run:
        """The run with this id, or with an attempt of this id."""
        checks.identifier(run_id, "The run")
        run = await self.records.runs.find(run_id) or await self.records.runs.find_attempt(run_id)
        if run is not None:
            return run
        if await self.records.runs.was_pruned(run_id):
            raise pruned(run_id)
        raise NotFound(f"There is no run {run_id}.", hint="Check the id; ended runs are removed after their retention.")

    async def status(self, run_id: str) -> Status:
        """The status of a run, for callers that have only its id."""
        return Status.of(await self.get(run_id))

    async def get_many(self, ids: Sequence[str]) -> list[Run]:
        """The runs with these ids, in their order and whole; unknown ones are left out."""
        checks.count(ids, "ids", self.limits.page)
        names = list(dict.fromkeys(checks.identifier(run_id, "The run") for run_id in ids))
        runs = await self.records.runs.find_many(names) if names else {}
        return [runs[name] for name in names if name in runs]

    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first; the last one is the run's own."""
        run = await self.get(run_id)
        return (await self.attempts_of([run]))[run.id]

    async def attempts_of(self, runs: Sequence[Run]) -> dict[str, list[Attempt]]:
        """All attempts of a page of runs by the runs' ids, oldest first; the last one of each is that run's own, as it was read."""
        checks.count(runs, "runs", self.limits.page)
        several = [run for run in runs if run.attempt > 1]
        closed = await self.records.runs.attempts_of(several) if several else {}
        return {run.id: [*(one for one in closed.get(run.id, ()) if one.n < run.attempt), _current(run)] for run in runs}

    async def attempt(self, run_id: str, n: int | None = None) -> tuple[Run, Attempt]:
        """A run and one of its attempts: the n-th, the one with this id if it is not the run's, or the current one."""
        checks.maybe(n, "attempt", 1, 2**31 - 1)
        run = await self.get(run_id)
        if run_id in (run.id, run.current_attempt) if n is None else n == run.attempt:
            return run, _current(run)
        closed = await self.records.runs.attempt(run, n=n, id=run_id if n is None else None)
        if closed is None:
            raise NotFound(f"Run {run.id} has no attempt {n or run_id}.", hint=f"It has {run.attempt}; `attempts` lists them.")
        return run, closed

    async def history(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Entry]:
        """Every change of state of a run, from the beginning or after a revision."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(after, "after", 0, LAST)
        return await self.records.runs.history(await self.get(run_id), after, count)

    async def moment(self, run: Run, *, rev: int, line: tuple[int, int], count: int = 100) -> Moment:
        """A run as it is now, its changes after a revision, and its log after a line, all read at one moment."""
        checks.integer(count, "count", 1, self.limits.page)
        now, entries, lines = await self.records.runs.moment(run, rev, line, count)
        if now is None:
            raise pruned(run.id)
        return Moment(now, entries, lines)

    async def lines(
        self,
        run_id: str,
        *,
        attempt: int | None = None,
        after: tuple[int, int] = (0, 0),
        until: int | None = None,
        last: int | None = None,
        count: int = 100,
    ) -> list[LogLine]:
        """The log of a run, or of one attempt, in the order it was written, after (attempt, number); with `last`, only its last lines.

        `until`: what was written up to an instant.
        """
        checks.integer(count, "count", 1, self.limits.page)
        checks.maybe(last, "last", 1, self.limits.page)
        checks.maybe(attempt, "attempt", 1, LAST_ATTEMPT)
        checks.maybe(until, "until", 0, checks.FAR_FUTURE)
        checks.kind(after, "after", tuple)
        checks.count(after, "numbers in after", 2)
        for part in after:
            checks.integer(part, "after", 0, LAST_ATTEMPT)
        begin = max((*after, 0, 0)[:2], (attempt or 0, 0))
        run = await self.get(run_id)
        return await self.records.runs.lines(run.seq, begin, attempt or LAST_ATTEMPT, until, last or count, last=last is not None)

    async def page(
        self,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        states: Iterable[State | str] | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> Page:
        """A page of runs by one of the filters of `LISTS`. A run of which more than 4 KiB are left out is a `Listed`, with the sizes.

        A page may have fewer runs than asked for, or none, and a cursor all the same: then others were read on the way.
        """
        checks.integer(count, "count", 1, self.limits.page)
        for name in (job, queue):
            checks.names(None if name is None else (name,), "A name")
        one, several = None if state is None else _state(state), None if states is None else _states(states)
        filters = {"job": job, "queue": queue, "state": one, "states": None if several is None else ",".join(several)}
        named = {name: value for name, value in filters.items() if value is not None}
        if one is State.QUEUED and several is None:
            return await self._list_queued(job, queue, cursor, count)
        if queue is not None and named.keys() in ({"queue"}, {"queue", "state"}, {"queue", "states"}):
            return await self._list_queue(queue, several or (tuple(State) if one is None else (one,)), cursor, count)
        chosen = _chosen(named)
        begins = place(cursor, [chosen.statement, *named.values()], len(chosen.keys)) or list(chosen.start)
        values = {name: str(value) for name, value in named.items() if chosen not in (_LIVE, _SCHEDULED, _WAITING)}
        rows = await self.records.runs.page(chosen.statement, **values, **dict(zip(chosen.keys, begins, strict=True)), count=count)
        runs = [run for run in rows if chosen is not _LIVE or run.state == named["state"]]
        end = [getattr(rows[-1], field) for field in chosen.fields] if len(rows) == count else None
        return Page(runs, encoded([chosen.statement, *named.values(), *end]) if end else None)

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

    async def _list_queue(self, queue: str, states: Sequence[State], cursor: str | None, count: int) -> Page:
        """The runs of a queue in these states, newest first."""
        head = [_QUEUE, queue, *states]
        (before,) = place(cursor, head, 1) or (LAST,)
        queue_slice = await self._slice(queue, states, before, WALK)
        runs = await self.records.runs.newest(queue_slice, count)
        end = runs[-1].seq if len(runs) == count else queue_slice.low
        return Page(runs, encoded([*head, end]) if end else None)

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
        chosen = tuple(State) if states is None else _states(states)
        queue_slice = await self._slice(queue, chosen, LAST, RANKED)
        seqs = await self.records.runs.ranked(queue_slice, RANKED, limit, offset)
        return await self._in_order(seqs)

    async def _in_order(self, seqs: Sequence[int]) -> list[Run]:
        """These runs as in a list, in this order, without those that were removed meanwhile."""
        by_seq = {run.seq: run for run in await self.records.runs.page("list_seqs", ids=pack(seqs))}
        return [by_seq[seq] for seq in seqs if seq in by_seq]

    async def _lanes(self, queue: Any) -> list[int]:
        await self.ground.refresh_lanes()
        return [lane.id for lane in self.ground.lanes.all if queue(lane)]


def pruned(run_id: str) -> Pruned:
    """The error for a run that retention has removed."""
    hint = "Only its key is still known. Keep runs for longer to read them later."
    return Pruned(f"Run {run_id} has ended and was removed by retention.", hint=hint)


def _current(run: Run) -> Attempt:
    return Attempt(
        run.id, run.attempt, run.current_attempt, run.retry_of, run.state.value, run.worker, run.token,
        run.claimed_at, run.started_at, run.finished_at, run.error if run.finished_at is not None else None,
    )  # fmt: skip


def _state(value: State | str) -> State:
    try:
        return State(value)
    except ValueError:
        raise BadInput(f"There is no state {value!r:.40}.", hint=f"Use one of {', '.join(State)}.") from None


def _states(values: Iterable[State | str]) -> tuple[State, ...]:
    return checks.states(values, "A list by states")


def _chosen(named: Mapping[str, str]) -> _List:
    """The list for these filters, or an error that names the possible ones."""
    names, state = tuple(named), named.get("state")
    if names == ():
        return _NEWEST
    if names == ("job",):
        return _JOB
    if state in ENDED and names in (("state",), ("job", "state")):
        return _ENDED if names == ("state",) else _JOB_ENDED
    if names == ("state",):
        return {State.SCHEDULED: _SCHEDULED, State.WAITING: _WAITING}.get(State(str(state)), _LIVE)
    raise BadInput(
        f"Runs cannot be listed by {' and '.join(f'{name}={value}' for name, value in named.items())}.",
        hint="There are: " + "; ".join(f"{' and '.join(filters) or 'no filter'} ({text})" for filters, text in LISTS.items()) + ".",
    )
