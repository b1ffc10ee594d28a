"""Where runs come from, and where they stand in their queue."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.answers import MAX_AHEAD, Origin, RunDetail
from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.runs import Runs
from windlass.model import Run, State
from windlass.store.records.places import QueuePosition


class Origins(Part):
    """The verbs that tell the origin of runs, and how many are ahead of them."""

    def __init__(self, ground: Ground, runs: Runs) -> None:
        super().__init__(ground)
        self._runs = runs

    async def origins(self, run_ids: Sequence[str]) -> dict[str, Origin]:
        """The schedules and groups of a page of runs, by the runs' ids, in one read; unknown ids are left out."""
        checks.count(run_ids, "run_ids", self.limits.page)
        names = list(dict.fromkeys(checks.identifier(run_id, "The run") for run_id in run_ids))
        return await self.records.groups.origins(names) if names else {}

    async def ahead(self, run_id: str) -> int | None:
        """How many queued runs of its queue and priority are before it, counted up to 10,000; None unless it is queued.

        In a queue with aging all priorities are one order, so all runs before it count.
        """
        return await self._ahead(await self._runs.get(run_id))

    async def detail(self, run_id: str) -> RunDetail:
        """A run with its origin, and how many runs are ahead of it."""
        run = await self._runs.get(run_id)
        origins = await self.records.groups.origins([run.id]) if run.schedule or run.grouped else {}
        return RunDetail.of(run, origins.get(run.id, Origin()), await self._ahead(run))

    async def _ahead(self, run: Run) -> int | None:
        if run.state is not State.QUEUED:
            return None
        own = QueuePosition(run.priority_key, run.position, run.seq)
        return await self.records.places.before(await self.ground.lanes_of_queue(run.queue), own, MAX_AHEAD)
