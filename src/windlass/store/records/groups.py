"""Groups of runs: one row for each, in which the ends of its members are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windlass.answers import Origin
from windlass.model import Group, GroupKind, OnFailure, Result, Run, State
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack, run_of

BATCHES: Mapping[str, tuple[str, ...]] = {"cancel_group": ("note_group",)}

MADE = ("add_group", "refuse_group", "add_group_waits", "name_retries")
"""The statements before and after the creation of a group's runs, in its batch."""

RULES: Mapping[OnFailure, str] = {"stop": "success", "continue": "any", "skip": "skip"}
"""The rule by which dependents of a member judge its end."""

RESULTS = 4 * 1024 * 1024
"""Bytes of outputs with which a page of results ends."""

NEWEST = 2**63 - 1
"""Greater than the number of every group."""


class GroupRow(NamedTuple):
    """A group to be stored together with its runs, all of them given by their ids."""

    id: str
    name: str | None
    kind: GroupKind
    on_failure: OnFailure
    total: int
    waits: Sequence[tuple[str, str]]  # a member, and one that it waits for
    callback: str | None = None
    retry_of: str | None = None
    retries: Sequence[tuple[str, str]] = ()  # a member, and the attempt it is the rerun of

    @property
    def waiting(self) -> frozenset[str | None]:
        """The runs of the group that wait for others of it: members with predecessors, and the callback."""
        return frozenset((*(run for run, _ in self.waits), self.callback))


def before_members(group: GroupRow, now: int) -> list[Statement]:
    """The group's row, to which its members refer."""
    values: dict[str, Value] = {"id": group.id, "name": group.name, "kind": group.kind, "on_failure": group.on_failure}
    more: dict[str, Value] = {"total": group.total, "callback": group.callback, "retry_of": group.retry_of, "now": now}
    return [Statement("add_group", values | more)]


def behind_members(group: GroupRow, keys: Sequence[tuple[str, str]], now: int) -> list[Statement]:
    """The waits between the stored members and their retries; refuses the batch where the group's key is held by another."""
    statements = [Statement("refuse_group", {"scope": scope, "key": key, "id": group.id, "now": now}) for scope, key in keys]
    if group.waits:
        statements.append(Statement("add_group_waits", {"r": pack(group.waits), "rule": RULES[group.on_failure]}))
    if group.retries:
        statements.append(Statement("name_retries", {"r": pack(group.retries)}))
    return statements


class GroupRecords(Rows):
    """Groups, and the results that a run may read of others."""

    async def find(self, id: str) -> Group | None:
        rows = await self._read("group", id=id)
        return Group(*rows[0]) if rows else None

    async def origins(self, ids: Sequence[str]) -> dict[str, Origin]:
        """Where these runs come from, as far as they exist."""
        return {run: Origin(*origin) for run, *origin in await self._read("origins", ids=pack(ids))}

    async def of_callback(self, run: str) -> Group | None:
        """The group whose callback a run is."""
        rows = await self._read("callback_group", run=run)
        return Group(*rows[0]) if rows else None

    async def page(self, status: str | None, before: int, count: int) -> list[Group]:
        """Groups, newest first, before a number."""
        if status is None:
            return [Group(*row) for row in await self._read("groups_newest", before=before, count=count)]
        return [Group(*row) for row in await self._read("groups_in", status=status, before=before, count=count)]

    async def members(self, group: int, after: str, count: int) -> list[Run]:
        """The runs of a group as they are, after the given one."""
        return [run_of(row) for row in await self._read("members", seq=group, after=after, count=count)]

    async def to_cancel(self, group: int) -> list[int]:
        return [seq for (seq,) in await self._read("members_to_cancel", seq=group)]

    async def note(self, group: int, reason: str | None) -> None:
        await self._batch("cancel_group", Statement("note_group", {"seq": group, "reason": reason}))

    async def waits(self, group: int) -> list[tuple[str, str]]:
        """Pairs of a member and its predecessor, by their ids."""
        return [(run, predecessor) for run, predecessor in await self._read("group_waits", seq=group)]

    async def results(self, run: Run, after: str, count: int) -> list[Result]:
        """A page of results, after the given one; the last page is empty."""
        rows = await self._read("results", seq=run.seq, id=run.id, after=after, count=count, limit=RESULTS)
        return [Result(id, job, State(state), output) for id, job, state, output in rows]
