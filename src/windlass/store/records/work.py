"""Runs that workers hold, and the ends of attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from windlass.machine import ENDED, LIVE
from windlass.model import Limits, Run, State
from windlass.store.base import Statement, Value
from windlass.store.columns import PATCHED, WRITTEN_BACK
from windlass.store.records.batches import Rows
from windlass.store.records.changes import Change, Held, MoveResult, consequences, lock_groups, releasing_holds, written_by
from windlass.store.rows import STATES, error_text, pack, run_of, split_time, storing

WIDEST = 4  # bytes of a character

_written_back, _patched = storing(WRITTEN_BACK), storing(PATCHED)


class BeatResult(NamedTuple):
    """Runs whose leases were extended, and the server's time of the batch, where there is a server."""

    states: dict[Held, State]
    server: int | None = None


SuccessRow: TypeAlias = tuple[int, str, str | None, str | None, str | None]
"""The success of a run, as its worker reports it: seq, token, output, and the hash and key of the output."""


class WorkRecords(Rows):
    """Batches of workers, and moves that `step` decided."""

    # By workers

    async def start(self, held: Sequence[Held], mark: str, now: int) -> set[Held]:
        rows = pack(sorted(held))
        journal = Statement("journal", {"ids": pack([item.seq for item in held]), "mark": mark, "move": "start", "now": now})
        started = await self._batch("start", Statement("start", {"r": rows, "mark": mark, "now": now}), journal)
        return set(map(Held._make, started[0]))

    async def beat(self, held: Sequence[Held], lease: int, progress: Mapping[Held, str], now: int) -> BeatResult:
        """Extend these leases and store progress; returns those that are held so and that no other transaction has locked."""
        rows = pack([(*item, progress.get(item)) for item in sorted(held)])
        beaten = await self._batch("beat", Statement("beat", {"r": rows, "lease": lease, "now": now}))
        states, server = split_time(beaten[0], 3)
        return BeatResult({Held(seq, token): STATES[state] for seq, token, state in states}, server)

    async def still_held(self, held: Sequence[Held]) -> set[Held]:
        """Those of these that are held so, locked by another transaction or not."""
        rows = await self._read("still_held", ids=pack([item.seq for item in held])) if held else ()
        return {Held(*row) for row in rows}.intersection(held)

    async def succeed(self, done: Sequence[SuccessRow], mark: str, follow: str, now: int, *, limited: bool) -> MoveResult:
        """End these runs as succeeded, each under its token; returns those that were held so."""
        ordered = sorted(done)
        ids = pack([item[0] for item in ordered])
        succeed = Statement("succeed", {"r": pack(ordered), "mark": mark, "now": now})
        journal = Statement("journal", {"ids": ids, "mark": mark, "move": "succeed", "now": now})
        statements = releasing_holds(
            [lock_groups(ids), succeed, journal, *consequences(ids, mark, follow, now)], ids, len(ordered), limited
        )
        return written_by(statements, await self._batch("report", *statements), "succeed")

    async def add_lines(self, held: Held, lines: Sequence[tuple[int, str]], limits: Limits, now: int) -> Run | None:
        """Append the lines if the token holds the run, as far as its log has room for them; returns the run as it is then."""
        share = limits.log // limits.lines
        bounds: dict[str, Value] = {"limit": limits.lines, "log": limits.log, "share": share, "late": share // WIDEST}
        notice = f"Further lines were dropped: an attempt may log {limits.log:,} bytes."
        values: dict[str, Value] = {"r": pack(lines), "seq": held.seq, "token": held.token, "now": now, "notice": notice}
        _, _, answers = await self._batch(
            "log",
            Statement("lock_run", {"seq": held.seq}),
            Statement("add_lines", values | bounds),
            Statement("find_seqs", {"ids": pack([held.seq])}),
        )
        return run_of(answers[0]) if answers else None

    # Moves that `step` decided

    async def write_back(self, verb: str, changes: Sequence[Change], mark: str, follow: str, now: int, *, limited: bool) -> MoveResult:
        """Write moves that `step` decided; returns the runs that were still as they were read."""
        ordered = sorted(changes, key=lambda change: change.before.seq)
        attempts = [_closed(change) for change in ordered if change.after.attempt > change.before.attempt]
        ended = [change.after.seq for change in ordered if change.after.state in ENDED]
        left = [change.after.seq for change in ordered if change.before.state in LIVE and change.after.state not in LIVE]
        statements = [
            Statement("write_back", {"r": pack([_changed(change) for change in ordered]), "mark": mark}),
            Statement("journal_moves", {"r": pack([_journaled(change) for change in ordered]), "mark": mark, "now": now}),
        ]
        if attempts:
            statements.append(Statement("close_attempts", {"r": pack(attempts), "mark": mark, "now": now}))
        if ended:
            statements = [lock_groups(pack(ended)), *statements, *consequences(pack(ended), mark, follow, now)]
        statements = releasing_holds(statements, pack(left), len(left), limited and bool(left))
        return written_by(statements, await self._batch(verb, *statements), "write_back")

    async def patch(self, change: Change, mark: str, now: int, controls: int) -> bool:
        """Whether the run and the controls were still as they were read."""
        before, after = change.before, change.after
        rows = pack([[after.seq, *_patched(after)]])
        statements = [
            Statement("patch", {"r": rows, "mark": mark, "controls": controls}),
            Statement("journal_moves", {"r": pack([_journaled(change)]), "mark": mark, "now": now}),
        ]
        if before.attempt > 1 and after.payload != before.payload:
            statements.append(Statement("keep_payload", {"seq": before.seq, "payload": before.payload, "mark": mark}))
        return bool((await self._batch("patch", *statements))[0])


def _changed(change: Change) -> list[Any]:
    after = change.after
    return [after.seq, *_written_back(after), after.lease, change.lapsed]


def _closed(change: Change) -> list[Any]:
    """The row of the attempt that a move closed."""
    before, after = change.before, change.after
    returned = after.failures == before.failures
    outcome = "returned" if returned else "lapsed" if change.move == "lapse" else "failed"
    started_at = before.started_at if before.started_at is not None or outcome == "lapsed" else before.claimed_at
    error = None if after.error is before.error else error_text(after.error)  # a requeued attempt has no error of its own
    actor = (before.seq, before.attempt, before.current_attempt, before.retry_of)
    return [*actor, outcome, before.worker, before.token, before.claimed_at, started_at, error, after.state]


def _journaled(change: Change) -> tuple[Any, ...]:
    before, queue = change.before, change.after.queue
    return before.seq, change.move, before.attempt, before.worker, change.detail, before.queue if before.queue != queue else None
