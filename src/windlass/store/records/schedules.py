"""Schedules, and their skipped instants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from windlass.model import Schedule, Skipped, State
from windlass.store.base import Row, Statement, Value
from windlass.store.columns import SCHEDULE_WRITTEN
from windlass.store.records.batches import Rows
from windlass.store.rows import STATES, options_of, pack


class Unfinished(NamedTuple):
    """A run of a schedule that has not ended."""

    run: str
    state: State
    free: bool  # False: another transaction has locked it


class ScheduleRecords(Rows):
    """Schedules, and their skipped instants."""

    async def add(self, schedule: Schedule, now: int) -> bool:
        """Whether the key was free."""
        values = _schedule_values(schedule) | {"owner": schedule.owner, "now": now}
        return bool((await self._batch("schedule", Statement("add_schedule", values)))[0])

    async def edit(
        self, schedule: Schedule, seen: Schedule, now: int, *, skips: Sequence[tuple[Any, ...]] = (), mark: str | None = None
    ) -> bool:
        """Write a schedule and the instants that the edit skips, if it is still as it was read."""
        guard: dict[str, Value] = {"id": seen.id, "rev": seen.rev, "seen": -1 if seen.next_at is None else seen.next_at, "now": now}
        values = _schedule_values(schedule) | guard | {"skipped": sum(skip[3] for skip in skips), "mark": mark}
        statements = [Statement("edit_schedule", values)]
        if skips:
            statements.append(Statement("add_skips", {"r": pack(skips), "mark": mark, "now": now}))
        return bool((await self._batch("schedule", *statements))[0])

    async def drop(self, identity: int) -> bool:
        dropped = await self._batch("unschedule", Statement("drop_skips", {"id": identity}), Statement("drop_schedule", {"id": identity}))
        return bool(dropped[1])

    async def find(self, key: str) -> Schedule | None:
        rows = await self._read("schedule_by_key", key=key)
        return schedule_of(rows[0]) if rows else None

    async def after(self, key: str, count: int) -> list[Schedule]:
        return [schedule_of(row) for row in await self._read("schedules_after", after=key, count=count)]

    async def due(self, now: int, after: tuple[int, int, int], count: int) -> list[Schedule]:
        """Due schedules by instant, creation and id, after such a position."""
        at, since, seq = after
        return [schedule_of(row) for row in await self._read("schedules_due", now=now, at=at, since=since, seq=seq, count=count)]

    async def skips(self, identity: int, count: int) -> list[Skipped]:
        return [Skipped(*row) for row in await self._read("schedule_skips", id=identity, count=count)]

    async def unfinished(self, schedules: Sequence[int]) -> dict[int, list[Unfinished]]:
        """The runs of these schedules that have not ended, oldest first."""
        runs: dict[int, list[Unfinished]] = {}
        if schedules:
            (rows,) = await self._batch("fire", Statement("unfinished_of_schedules", {"ids": pack(schedules)}))
            for schedule, run, state, free in rows:
                runs.setdefault(schedule, []).append(Unfinished(run, STATES[state], bool(free)))
        return runs


def schedule_of(row: Row) -> Schedule:
    values = dict(zip(Schedule.__struct_fields__, row, strict=True))
    opened = {
        "payload": msgspec.json.decode(values["payload"]),
        "options": options_of(values["options"]),
        "enabled": bool(values["enabled"]),
    }
    return Schedule(**values | opened)


def _schedule_values(schedule: Schedule) -> dict[str, Value]:
    values: dict[str, Value] = {name: getattr(schedule, name) for name in ("key", *SCHEDULE_WRITTEN)}
    return values | {"payload": pack(schedule.payload), "options": pack(schedule.options), "enabled": int(schedule.enabled)}
