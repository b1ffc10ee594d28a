"""Pauses: no runs of a queue, of a job, or of the whole system are claimed."""

from __future__ import annotations

from windlass.engine import checks
from windlass.engine.ground import PATIENCE, Part
from windlass.errors import BadInput, Conflict, LimitReached
from windlass.model import Pause, PauseScope
from windlass.store.base import queue_topic


class Pauses(Part):
    """The verbs of pauses, which take effect with the next claim, everywhere."""

    async def pause(self, scope: PauseScope, name: str = "", *, reason: str | None = None, by: str | None = None) -> Pause:
        """Pause a queue, a job, or the whole system: no runs are claimed, and running ones continue. A second pause changes nothing."""
        _check_scope(scope, name)
        text = None if reason is None else checks.reason(reason)
        pause = Pause(scope, name, self.clock.now(), text, None if by is None else checks.name(by, "The actor's name"))
        for _ in range(PATIENCE):
            done = await self.records.controls.add_pause(pause, self.limits.pauses)
            await self.ground.refresh_controls()
            if done or (scope, name) in self.ground.controls.pauses:
                return self.ground.controls.pauses.get((scope, name), pause)
            if len(self.ground.controls.pauses) >= self.limits.pauses:
                raise LimitReached(f"There are {self.limits.pauses:,} pauses already.", hint="Resume some, or pause the whole system.")
        raise Conflict("Other calls kept pausing and resuming it.", hint="Try again.")

    async def resume(self, scope: PauseScope, name: str = "") -> bool:
        """Resume what was paused; False when it was not paused."""
        _check_scope(scope, name)
        done = await self.records.controls.drop_pause(scope, name)
        await self.ground.refresh_controls()
        await self.ground.refresh_lanes()
        lanes = [lane for lane in self.ground.lanes.all if scope == "system" or name in (lane.queue, lane.job)]
        await self.ground.wake({queue_topic(lane.queue) for lane in lanes})
        return done

    async def all(self) -> list[Pause]:
        """All current pauses."""
        return (await self.records.controls.settings()).pauses


def _check_scope(scope: PauseScope, name: str) -> None:
    if scope not in ("system", "queue", "job"):
        raise BadInput(f"{scope!r:.40} cannot be paused.", hint="Pause a queue, a job, or the system.")
    if scope != "system":
        checks.name(name, f"A {scope}'s name")
    elif name:
        raise BadInput("The system has no name.", hint="Leave the name out.")
