"""What batches that move runs have in common: the moves, their consequences, and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from windlass.model import Run
from windlass.store.base import Row, Runs, Statement, Value
from windlass.store.records.limiters import lock_holds, release_holds

FOLLOW = ("has_dependents", "lock_dependents", "cancel_dependents", "tally", "release", "journal_dependents")
SETTLE = ("cancel_created", "release_created", "journal_settled")
RELEASE = ("release", "release_created")


class Held(NamedTuple):
    """A run as its worker holds it."""

    seq: int
    token: str


class Change(NamedTuple):
    """A move that `step` decided, to be written if nothing has changed since it was read."""

    before: Run
    after: Run
    move: str
    detail: str | None = None
    lapsed: int | None = None  # the lease end that must be unchanged: a heartbeat moves it


class ReadyQueue(NamedTuple):
    """A queue with runs for workers, the time from which they are ready, and their ids where these are known."""

    queue: str
    due_at: int
    runs: Runs = ()


class MoveResult(NamedTuple):
    """The runs that a batch moved, the dependents that no longer wait for them, and the limiters that they released."""

    seqs: set[int]
    released: list[ReadyQueue]
    freed: frozenset[str] = frozenset()


def seqs_of(rows: Iterable[Row]) -> set[int]:
    """The first column of some rows: the numbers of the runs."""
    return {row[0] for row in rows}


def lock_groups(ids: str) -> Statement:
    """Comes before the statements that end runs, so that concurrent ends of members of the same group are serialized."""
    return Statement("lock_groups", {"ids": ids})


def releasing_holds(statements: list[Statement], ids: str, count: int, limited: bool) -> list[Statement]:
    """The same statements with the release of what these runs occupy; only where any lane is limited."""
    return [lock_holds(ids), *statements, *release_holds(ids, count)] if limited else statements


def written_by(statements: Sequence[Statement], answers: Sequence[Sequence[Row]], moving: str) -> MoveResult:
    """The answer of a batch that moves runs by one of its statements."""
    by_name = {statement.name: rows for statement, rows in zip(statements, answers, strict=True)}
    released = released_by(statements, answers) + [ReadyQueue(queue, 0) for (queue,) in by_name.get("unpark", ())]
    return MoveResult(seqs_of(by_name[moving]), released, frozenset(key for (key,) in by_name.get("free", ())))


def released_by(statements: Sequence[Statement], answers: Sequence[Sequence[Row]]) -> list[ReadyQueue]:
    """The dependents that the statements of a batch released."""
    return [ReadyQueue(*row) for statement, rows in zip(statements, answers, strict=True) if statement.name in RELEASE for row in rows]


def consequences(ids: str, ended: str, mark: str, now: int) -> list[Statement]:
    """The consequences of these ends for dependents and groups, in the same batch."""
    values: dict[str, Value] = {"ids": ids, "ended": ended, "mark": mark, "now": now}
    return [Statement(name, values) for name in FOLLOW]
