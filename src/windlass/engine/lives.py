"""Processes of a worker: each registers at its start, and one that is proven to have ended loses its leases at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.engine import checks
from windlass.engine.ground import Part
from windlass.errors import BadInput
from windlass.machine import Lapse, step
from windlass.model import LIFE_TAG, Life
from windlass.payload import reader
from windlass.store.records import Change

LIVES = 16
"""Processes kept for one worker name; the leases of an older one end by themselves."""
SLICE = 500


class Lives(Part):
    """The verbs by which a worker takes over from its former processes."""

    async def begin_life(self, worker: str, life: Life) -> list[Life]:
        """Record a process of a registered worker; returns all recorded processes of its name, itself included, without a clean end.

        The tokens of its claims must begin with the tag, which distinguishes its leases from those of other processes of its name.
        """
        _check(checks.name(worker, "A worker's name"), [life.tag])
        checks.name(life.process, "The identity of a process")
        lives = await self.records.workers.begin_life(worker, life, self.clock.now())
        if len(lives) > LIVES:
            await self.records.workers.end_lives(worker, [old.tag for old in lives[:-LIVES]])
        return lives[-LIVES:]

    async def lives(self, worker: str) -> list[Life]:
        """The recorded processes of a worker's name without a clean end, eldest first."""
        return await self.records.workers.lives(checks.name(worker, "A worker's name"))

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int:
        """Lapse the runs that these processes of a worker hold, and forget them; how many runs. Requires proof that they have ended."""
        _check(checks.name(worker, "A worker's name"), tags)
        lapsed = 0
        while runs := await self.records.workers.held_by_lives(worker, tags, SLICE):
            now = self.clock.now()
            commands = [Lapse(token=run.token, next_id=self.clock.new_id(), chance=self.clock.chance()) for run in runs]
            changes = [Change(run, step(run, cmd, now), cmd.name) for run, cmd in zip(runs, commands, strict=True)]
            result = await self.ground.write_back("lapse", changes, now)
            if not result.seqs:
                return lapsed  # other processes change these runs at the moment: the rest ends with its lease
            lapsed += len(result.seqs)
        await self.records.workers.end_lives(worker, tags)
        return lapsed

    async def leave(self, worker: str, incarnation: int) -> None:
        """A process of a worker has ended and holds nothing: the worker counts as stopped at once, unless another process has its name.

        `incarnation` is the number sent with its registration, 0 if none was sent. The process has ended its own life before.
        """
        about = await self.records.workers.about(checks.name(worker, "A worker's name"))
        if about is not None and _incarnation(about) in (0, checks.integer(incarnation, "incarnation", 0, 2**31)):
            await self.records.workers.stop(worker, about, self.clock.now())


def _incarnation(about: str) -> Any:
    return reader(dict[str, Any])(about or "{}").get("incarnation", 0)


def _check(worker: str, tags: Sequence[str]) -> None:
    checks.count(tags, f"processes of worker {worker}", LIVES)
    for tag in tags:
        if len(checks.identifier(tag, "The tag")) != LIFE_TAG:
            raise BadInput(f"A tag has {LIFE_TAG} characters.", hint="Send 48 random bits as base64url.")
