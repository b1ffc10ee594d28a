"""Processes of a worker: each tells itself at its start, and one that is proven gone loses its leases at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.engine import checks
from windlass.engine.core import Core
from windlass.errors import BadInput
from windlass.machine import Lapse, step
from windlass.model import LIFE_TAG, Life
from windlass.store.records import Change

LIVES = 16
"""Processes of one name that are kept; an older one's leases end by themselves."""
SLICE = 500


class Living(Core):
    """The verbs by which a worker takes over from its former processes."""

    async def begin_life(self, worker: str, life: Life) -> list[Life]:
        """Keep a process of a registered worker; all that are kept under its name, this one too, which have not ended as they should.

        The tokens of its claims are to begin with the tag: by that, its leases are told from those of all others of its name.
        """
        _check(checks.name(worker, "A worker's name"), [life.tag])
        checks.name(life.process, "What tells a process")
        lives = await self.records.begin_life(worker, life, self.clock.now())
        if len(lives) > LIVES:
            await self.records.end_lives(worker, [old.tag for old in lives[:-LIVES]])
        return lives[-LIVES:]

    async def end_lives(self, worker: str, tags: Sequence[str]) -> int:
        """Lapse what these processes of a worker hold, and forget them; how many runs. For those alone who know that they have ended."""
        _check(checks.name(worker, "A worker's name"), tags)
        lapsed = 0
        while runs := await self.records.held_by_lives(worker, tags, SLICE):
            now = self.clock.now()
            commands = [Lapse(token=run.token, next_id=self.clock.new_id(), chance=self.clock.chance()) for run in runs]
            changes = [Change(run, step(run, cmd, now), cmd.name) for run, cmd in zip(runs, commands, strict=True)]
            written = await self.write_back("lapse", changes, now)
            if not written.seqs:
                return lapsed  # others change them at this moment: what is left of them ends with its lease
            lapsed += len(written.seqs)
        await self.records.end_lives(worker, tags)
        return lapsed

    async def leave(self, worker: str, incarnation: int) -> None:
        """A process of a worker has ended and holds nothing: the worker counts as stopped at once, unless another goes by its name.

        `incarnation` is what it told about itself when it registered, 0 for one that told nothing. It has ended its own life before.
        """
        about = await self.records.worker_about(checks.name(worker, "A worker's name"))
        if about is not None and _incarnation(about) in (0, checks.integer(incarnation, "incarnation", 0, 2**31)):
            await self.records.stop_worker(worker, about, self.clock.now())


def _incarnation(about: str) -> Any:
    return msgspec.json.decode(about or "{}", type=dict[str, Any]).get("incarnation", 0)


def _check(worker: str, tags: Sequence[str]) -> None:
    checks.count(tags, f"processes of worker {worker}", LIVES)
    for tag in tags:
        if len(checks.identifier(tag, "The tag")) != LIFE_TAG:
            raise BadInput(f"A tag has {LIFE_TAG} characters.", hint="Send 48 random bits as base64url.")
