"""Reads of runs: one, several, their attempts, their history, their log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from windlass.answers import Status
from windlass.engine import checks
from windlass.engine.cursors import LAST
from windlass.engine.ground import Part
from windlass.errors import NotFound, Pruned
from windlass.model import Attempt, Entry, LogLine, Run
from windlass.store.records.runs import LAST_ATTEMPT


class Moment(Struct, frozen=True):
    """A run, and the changes that a watcher has not read yet."""

    run: Run
    entries: list[Entry]
    lines: list[LogLine]


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


def pruned(run_id: str) -> Pruned:
    """The error for a run that retention has removed."""
    hint = "Only its key is still known. Keep runs for longer to read them later."
    return Pruned(f"Run {run_id} has ended and was removed by retention.", hint=hint)


def _current(run: Run) -> Attempt:
    return Attempt(
        run.id, run.attempt, run.current_attempt, run.retry_of, run.state.value, run.worker, run.token,
        run.claimed_at, run.started_at, run.finished_at, run.error if run.finished_at is not None else None,
    )  # fmt: skip
