"""New runs: one, many, with a group, or by schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.payload import slices
from windlass.store.base import Row, Statement, Value
from windlass.store.creation import Creation, KeyRow, Kind, NewRow, plain, sizes
from windlass.store.records.batches import Rows
from windlass.store.records.changes import SETTLE, ReadyQueue, released_by
from windlass.store.records.groups import GroupRow, before_members, behind_members
from windlass.store.rows import pack

LATER = ("refer_predecessors", "add_checks")
KEYS = ("take_keys", "lock_keys", "retake_keys")


class Winner(NamedTuple):
    """The run that holds a key."""

    run: str
    hash: str | None
    kept: bool = True  # False: retention has removed the run
    held: bool = True  # False: the next creation that asks for the key takes it


class CreationResult(NamedTuple):
    """The holders of the keys of a creation, and those of its runs that have nothing left to wait for."""

    winners: dict[tuple[str, str], Winner]
    released: list[ReadyQueue]


class Advance(NamedTuple):
    """The advance of a schedule from the instant that was read."""

    id: int
    rev: int
    seen: int
    next_at: int | None
    due_at: int | None
    run: str | None
    fired: int
    skipped: int


class CreationRecords(Rows):
    """Batches that create runs."""

    async def create(
        self, creation: Creation, mark: str, *, verb: str = "create", before: Sequence[Statement] = (), behind: Sequence[Statement] = ()
    ) -> CreationResult:
        """Insert the runs whose keys are free, and return the holders of all keys; Conflict when the plan no longer holds."""
        now, definitions = creation.now, creation.definitions
        statements: list[Statement] = list(before)
        if creation.keys or creation.waits:
            statements += _guarded(creation)
        current: dict[str, Value] = {"d": pack(definitions), "definitions": len(definitions), "controls": creation.controls, "now": now}
        statements.append(Statement("refuse_create", current))
        for kind, rows in self._cut(creation.rows):
            short = plain(rows)
            name = "create" if short is None else "create_plain"
            statements.append(Statement(name, kind._asdict() | current | {"r": pack(short or rows)}))
            statements.append(Statement("journal_created", {"now": now}))
        if creation.notices:
            sets = slices(creation.notices, [len(notice.url) for notice in creation.notices], self._limit)
            statements += (Statement("add_notify", {"r": pack(some)}) for some in sets)
        if creation.waits:
            statements.append(Statement("add_waits", {"r": pack(creation.waits)}))
            if creation.later:
                statements.append(Statement("add_checks", {"ids": pack(sorted({wait[0] for wait in creation.waits}))}))
            else:
                statements += (Statement(name, {"ids": pack(creation.ids), "mark": mark, "now": now}) for name in SETTLE)
        statements += behind
        if creation.keys:
            statements.append(Statement("winners", {"r": pack(creation.keys), "now": creation.judged_at}))
        answers = await self._batch(verb, *statements)
        return CreationResult(_winners(answers[-1]) if creation.keys else {}, released_by(statements, answers))

    def _cut(self, rows: Mapping[Kind, Sequence[NewRow]]) -> Iterator[tuple[Kind, Sequence[NewRow]]]:
        """The rows of each kind, in sets that fit into one parameter of the database."""
        for kind, alike in rows.items():
            for some in slices(alike, sizes(alike), self._limit):
                yield kind, some

    async def create_group(self, group: GroupRow, creation: Creation, mark: str) -> CreationResult:
        """Insert a group with its runs; Conflict when the plan no longer holds, or the group's key is held by another."""
        keys = [(row.scope, row.key) for row in creation.keys]
        before, behind = before_members(group, creation.now), behind_members(group, keys, creation.now)
        return await self.create(creation, mark, verb="create_group", before=before, behind=behind)

    async def fire(self, creation: Creation, advances: Sequence[Advance], skips: Sequence[tuple[Any, ...]], mark: str) -> CreationResult:
        """Advance schedules and create their runs, all together; Conflict when one of them is no longer as it was read."""
        ids = pack([advance.id for advance in advances])
        before = [
            Statement("advance_schedules", {"r": pack(sorted(advances)), "mark": mark}),
            Statement("refuse_fire", {"ids": ids, "mark": mark, "expected": len(advances), "now": creation.now}),
        ]
        if skips:
            before.append(Statement("add_skips", {"r": pack(skips), "mark": mark, "now": creation.now}))
        return await self.create(creation, mark, verb="fire", before=before)

    async def winners(self, keys: Sequence[KeyRow], now: int) -> dict[tuple[str, str], Winner]:
        return _winners(await self._read("winners", r=pack(keys), now=now)) if keys else {}


def _guarded(creation: Creation) -> list[Statement]:
    """The statements that lock the keys and the predecessors of a creation, and refuse it if one of them is not as expected."""
    keys, predecessors = pack(creation.keys), sorted({wait[1] for wait in creation.waits})
    values: dict[str, Value] = {"k": keys, "keys": len(creation.keys), "predecessors": pack(predecessors), "expected": len(predecessors)}
    statements = [Statement(name, {"r": keys, "now": creation.judged_at}) for name in KEYS] if creation.keys else []
    if predecessors:
        lock = "refer_predecessors" if creation.later else "lock_predecessors"
        statements.append(Statement(lock, {"predecessors": values["predecessors"]}))
    return [*statements, Statement("refuse_taken", values | {"now": creation.now})]


def _winners(rows: Iterable[Row]) -> dict[tuple[str, str], Winner]:
    return {(scope, key): Winner(run, digest, seq is not None, bool(held)) for scope, key, run, digest, seq, held in rows}
