"""The subject of the checks: a store, and what this process knows of time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from windlass.clock import Clock
from windlass.model import Entry, Lane, Limits, WorkerInfo
from windlass.steady import Steady
from windlass.store.records import Records
from windlass.store.records.doctor import WaitingRuns

COUNTED = 100
"""Runs of a lane that are counted; more are "100 or more"."""


class Subject(NamedTuple):
    """A store and this process's view of time, and two questions that only the engine can answer."""

    records: Records
    clock: Clock
    limits: Limits
    steady: Steady
    pooler: bool  # whether there is a pooler before the server that is not in the settings
    unread: Callable[[str], Awaitable[Entry | None]]  # the first entry that a consumer of the journal has not read
    overdue: Callable[[int, int], Awaitable[list[int]]]  # when ended runs should have been removed; see `RetentionRules.overdue`

    async def living(self) -> list[WorkerInfo]:
        """The workers that are alive."""
        return await self.records.workers.seen(self.clock.now() - self.limits.worker_silence)

    async def lanes_waiting(self) -> list[tuple[Lane, WaitingRuns]]:
        """Every lane in which runs wait, and how many, as far as they were counted."""
        waiting = await self.records.doctor.lanes_waiting(COUNTED)
        lanes = {lane.id: lane for lane in (await self.records.lanes.after(0)).lanes}  # read after them, so that it has all of their lanes
        return [(lanes[one.lane], one) for one in waiting if one.lane in lanes]
