"""Reads of runs: one, a page of them, their history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from windlass.answers import Page, Status
from windlass.engine import checks
from windlass.engine.cursors import LAST, encoded, place
from windlass.engine.ground import Part
from windlass.errors import BadInput, NotFound, Pruned
from windlass.machine import ENDED
from windlass.model import Attempt, Entry, LogLine, Run, State
from windlass.store.records.claims import FIRST, Scan
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
_LIVE = _List("list_live", ("at", "seq"), (0, 0), ("lease_check_at", "seq"))

LISTS: Mapping[tuple[str, ...], str] = {
    (): "all runs, newest first",
    ("job",): "the runs of a job, newest first",
    ("state",): "the runs in a state; queued ones in the order of their queue, ended ones latest first",
    ("job", "state"): "the ended or queued runs of a job",
    ("queue", "state"): "the queued runs of a queue, in its order",
    ("job", "queue", "state"): "the queued runs of a job in a queue, in its order",
}
"""The filters that can be combined, each of which has its index."""


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

    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first; the last one is the run's own."""
        run = await self.get(run_id)
        return [*await self.records.runs.attempts(run), _current(run)]

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

    async def lines(self, run_id: str, *, after: tuple[int, int] = (0, 0), count: int = 100) -> list[LogLine]:
        """The log of a run in the order it was written, after (attempt, number)."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.kind(after, "after", tuple)
        checks.count(after, "numbers in after", 2)
        attempt, n = (*after, 0, 0)[:2]
        for part in (attempt, n):
            checks.integer(part, "after", 0, 2**31)
        run = await self.get(run_id)
        return await self.records.runs.lines(run.seq, (attempt, n), count)

    async def page(
        self,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> Page:
        """A page of runs by one of the filters of `LISTS`. A run of which more than 4 KiB are left out is a `Listed`, with the sizes."""
        checks.integer(count, "count", 1, self.limits.page)
        for name in (job, queue):
            checks.names(None if name is None else (name,), "A name")
        filters = {"job": job, "queue": queue, "state": None if state is None else _state(state)}
        named = {name: value for name, value in filters.items() if value is not None}
        if named.get("state") == State.QUEUED:
            return await self._list_queued(job, queue, cursor, count)
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
        by_seq = {run.seq: run for run in await self.records.runs.page("list_seqs", ids=pack([item.seq for item in heads]))}
        runs = [by_seq[item.seq] for item in heads if item.seq in by_seq]
        last = heads[-1] if len(heads) == count else None
        return Page(runs, encoded([*head, last.priority_key, last.position, last.seq]) if last else None)

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
