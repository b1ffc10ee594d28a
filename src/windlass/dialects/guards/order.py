"""Positions: places in the queue as the document numbers them, 100, 200, 300 and so on for each priority."""

from __future__ import annotations

from collections.abc import AsyncIterator

from windlass.dialects.guards.views import STEP
from windlass.engine import Engine
from windlass.errors import Conflict, NotFound, WrongState
from windlass.model import Run, State

PATIENCE = 20
"""How often a neighbour may leave the queue before its turn."""
_PAGE = 1_000


async def move_to(engine: Engine, run_id: str, position: int) -> None:
    """Place a run before the first of its priority whose position is this or more; behind the last one where there is none."""
    for _ in range(PATIENCE):
        run = await engine.get(run_id)
        before, after = await _neighbour(engine, run, position)
        if before is None and after is None:
            return
        try:
            await engine.move(run.id, before=before, after=after)
            return
        except (NotFound, WrongState):
            if (await engine.get(run_id)).state not in (State.WAITING, State.SCHEDULED, State.QUEUED):
                raise
    raise Conflict(f"The jobs around position {position} kept changing; {run_id} was not moved.", hint="Try again.")


async def _neighbour(engine: Engine, run: Run, position: int) -> tuple[str | None, str | None]:
    """The run to move before, or the one to move behind; neither where this one is in its place."""
    last, at = None, 0
    async for other in _queued(engine, run.queue, run.priority):
        at += STEP
        if at >= position:
            return (None if other.id == run.id else other.id), None
        last = other
    return None, None if last is None or last.id == run.id else last.id


async def _queued(engine: Engine, queue: str, priority: int) -> AsyncIterator[Run]:
    """The queued runs of a priority, in the order of their queue."""
    cursor = None
    while True:
        page = await engine.runs(queue=queue, state=State.QUEUED, cursor=cursor, count=_PAGE)
        for run in page.runs:
            if run.priority == priority:
                yield run
        cursor = page.cursor
        if cursor is None or page.runs[-1].priority < priority:
            return
