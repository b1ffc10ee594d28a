"""Reads of runs: one, a page of them, their attempts, their history, their log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from windlass.model import IN_A_LIST, Attempt, Entry, Failure, Listed, LogLine, Run, State
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.records.webhooks import End
from windlass.store.rows import STATES, error_of, listed_of, pack, run_of

LAST_ATTEMPT = 2**31
"""A number above that of every attempt."""
LAST_INSTANT = 2**62
"""An instant after all others."""


class QueueSlice(NamedTuple):
    """The runs of a queue in some states, before a seq; and for the queue that has no index of its own, from another one on."""

    queue: str
    states: Sequence[State]
    before: int
    low: int | None = None

    def values(self) -> dict[str, Value]:
        """Its parameters in statements."""
        values: dict[str, Value] = {"queue": self.queue, "states": pack(self.states), "seq": self.before}
        return values if self.low is None else values | {"low": self.low}


class Matching(NamedTuple):
    """What the runs of a list must be; None asks nothing. States and lanes are sets as JSON, `begins`, `ends` and `has` patterns."""

    states: str
    job: str | None
    queue: str | None
    worker: str | None
    grouped: int | None
    schedule: int | None
    lanes: str | None
    created_since: int
    created_before: int
    ended_since: int
    ended_before: int
    error: str | None
    key: str | None
    begins: str | None
    ends: str | None
    has: str | None


class RunRecords(Rows):
    """Reading runs."""

    async def seqs(self, ids: Sequence[str]) -> dict[str, int]:
        return dict((await self._read("seqs", ids=pack(ids))) if ids else ())

    async def find(self, run_id: str) -> Run | None:
        rows = await self._read("find", id=run_id)
        return run_of(rows[0]) if rows else None

    async def find_seqs(self, seqs: Sequence[int]) -> list[Run]:
        """These runs, without payloads and outputs: enough for every move that `step` decides."""
        return [run_of(row) for row in await self._read("find_bare", ids=pack(seqs))]

    async def find_attempt(self, attempt_id: str) -> Run | None:
        rows = await self._read("find_attempt", id=attempt_id)
        return run_of(rows[0]) if rows else None

    async def find_many(self, ids: Sequence[str]) -> dict[str, Run]:
        """The runs with these ids that exist, whole."""
        return {run.id: run for run in map(run_of, await self._read("find_ids", ids=pack(ids)))}

    async def was_pruned(self, run_id: str) -> bool:
        return bool(await self._read("pruned_key", id=run_id))

    async def attempts_of(self, runs: Collection[Run]) -> dict[str, list[Attempt]]:
        """All closed attempts of each of these runs, oldest first."""
        ids = {run.seq: run.id for run in runs}
        attempts: dict[str, list[Attempt]] = {run_id: [] for run_id in ids.values()}
        for seq, *row in await self._read("attempts_of", ids=pack(sorted(ids))):
            attempts[ids[seq]].append(_attempt_of(ids[seq], tuple(row)))
        return attempts

    async def attempt(self, run: Run, *, n: int | None = None, id: str | None = None) -> Attempt | None:
        """The closed attempt of this number or of this id."""
        rows = await self._read("attempt_of", seq=run.seq, n=n, id=id)
        return _attempt_of(run.id, rows[0]) if rows else None

    async def closed_attempt(self, seq: int, token: str) -> tuple[str, State, Failure | None] | None:
        """Outcome, answer and error of the attempt that was held under a token."""
        rows = await self._read("closed_attempt", seq=seq, token=token)
        return (rows[0][1], State(rows[0][2]), error_of(rows[0][3])) if rows else None

    async def history(self, run: Run, after: int, count: int) -> list[Entry]:
        return _entries(run, await self._read("history", seq=run.seq, after=after, count=count))

    async def moment(self, run: Run, after: int, line: tuple[int, int], count: int) -> tuple[Run | None, list[Entry], list[LogLine]]:
        """A run as it is now, its entries after a revision and its lines after one, read together."""
        rows, entries, lines = await self._batch(
            "read",
            Statement("find_seqs", {"ids": pack([run.seq])}),
            Statement("history", {"seq": run.seq, "after": after, "count": count}),
            Statement(
                "lines", {"seq": run.seq, "attempt": line[0], "n": line[1], "upto": LAST_ATTEMPT, "until": LAST_INSTANT, "count": count}
            ),
        )
        return run_of(rows[0]) if rows else None, _entries(run, entries), [LogLine(*row) for row in lines]

    async def ends(self, runs: Collection[str], limit: int) -> dict[str, End]:
        """How these runs are now, without payloads and outputs above a size."""
        rows = await self._read("ends", names=pack(sorted(runs)), limit=limit) if runs else ()
        return {run.id: End(run, tuple(run.sizes) if isinstance(run, Listed) else ()) for run in map(listed_of, rows)}

    async def predecessors(self, seq: int, count: int) -> list[tuple[str, State, str]]:
        return [(run, State(state), rule) for run, state, rule in await self._read("predecessors", seq=seq, count=count)]

    async def page(self, name: str, **values: Value) -> list[Run]:
        """Runs for a list, without large fields."""
        return [listed_of(row) for row in await self._read(name, limit=IN_A_LIST, **values)]

    async def ranked(self, queue_slice: QueueSlice, among: int, count: int, offset: int) -> list[int]:
        """Runs of a queue by priority, and the newest first in each, among so many of the newest."""
        name, each = ("ranked", {"each": among}) if queue_slice.low is None else ("ranked_default", {})
        return [seq for (seq,) in await self._read(name, **queue_slice.values(), **each, count=count, offset=offset)]

    async def walk(self, name: str, **values: Value) -> list[tuple[int, ...]]:
        """The next runs along an index: their seqs, each after its instant where the index is in the order of one."""
        return await self._read(name, **values)

    async def walks(self, name: str, states: Iterable[State], **values: Value) -> list[list[tuple[int, ...]]]:
        """The same for each of these states."""
        return await self._batch("read", *(Statement(name, {"state": state, **values}) for state in states))

    async def matching(self, seqs: Collection[int], matching: Matching) -> set[int]:
        """Those of these runs that match."""
        return {seq for (seq,) in await self._read("matching", ids=pack([*seqs]), **matching._asdict())}

    async def created_from(self, seq: int) -> tuple[int, int] | None:
        """The first run from a seq on, and when it was created."""
        return next(((seq, at) for seq, at in await self._read("created_from", seq=seq)), None)

    async def seq_below(self, seq: int, number: int) -> int:
        """The last of so many runs before a seq; 0 if there are fewer."""
        return next((below for (below,) in await self._read("seq_below", seq=seq, each=number)), 0)

    async def lines(
        self, seq: int, after: tuple[int, int], upto: int, until: int | None, count: int, *, last: bool = False
    ) -> list[LogLine]:
        """The first lines after one, up to an attempt and an instant, or the last of them; always in their order."""
        bounds = {"attempt": after[0], "n": after[1], "upto": upto, "until": LAST_INSTANT if until is None else until}
        rows = await self._read("last_lines" if last else "lines", seq=seq, **bounds, count=count)
        return [LogLine(*row) for row in rows]


def _entries(run: Run, rows: Iterable[Row]) -> list[Entry]:
    return [Entry(run.id, rev, at, move, STATES[state], *rest) for rev, at, move, state, *rest in rows]


def _attempt_of(run_id: str, row: Row) -> Attempt:
    *values, error, payload = row
    return Attempt(*[run_id, *values, error_of(error), payload])
