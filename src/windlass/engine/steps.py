"""Steps: parts of a run's work that are done once, whatever the number of its attempts."""

from __future__ import annotations

from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.holds import Holds, not_held
from windlass.engine.runs import Runs
from windlass.errors import TooLarge
from windlass.machine import LIVE
from windlass.model import Step
from windlass.store.records.runs import LAST_ATTEMPT


class RunSteps(Part):
    """The results of steps."""

    def __init__(self, ground: Ground, runs: Runs, holds: Holds) -> None:
        super().__init__(ground)
        self._runs, self._holds = runs, holds

    async def store(self, run_id: str, token: str, key: str, output: str, *, seq: int | None = None) -> Step:
        """Store the result of a step, a JSON text, under the lease's token; returns what is stored: the first result of a key stays."""
        checks.name(key, "A step's key")
        checks.kind(output, "The result of a step", str)
        checks.json_text(output, "The result of a step", self.limits.step)
        held = await self._holds.hold(run_id, token, seq)
        run, step = await self.records.steps.store(held, key, output, self.limits.steps, self.clock.now())
        if run is None or run.token != token or run.state not in LIVE:
            raise not_held(run or await self._runs.get(run_id), token)
        if step is None:
            raise TooLarge(
                f"Run {run.id} has {self.limits.steps:,} steps, which is the limit.", hint="Do more in each step, or use more runs."
            )
        return step

    async def page(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Step]:
        """The completed steps of a run with their results, in their order, after a number."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(after, "after", 0, LAST_ATTEMPT)
        return await self.records.steps.page((await self._runs.get(run_id)).seq, after, count)
