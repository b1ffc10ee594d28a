"""The results of steps."""

from __future__ import annotations

from windlass.model import Run, Step
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.records.changes import Held
from windlass.store.rows import pack, run_of


class StepRecords(Rows):
    """Steps that runs have completed."""

    async def store(self, held: Held, key: str, output: str, limit: int, now: int) -> tuple[Run | None, Step | None]:
        """Store the result of a step if the token holds the run and the key is new; returns the run as it is then, and the stored step."""
        values: dict[str, Value] = {"seq": held.seq, "token": held.token, "key": key, "output": output, "limit": limit, "now": now}
        _, _, runs, steps = await self._batch(
            "step",
            Statement("lock_run", {"seq": held.seq}),
            Statement("add_step", values),
            Statement("find_bare", {"ids": pack([held.seq])}),
            Statement("step", {"seq": held.seq, "key": key}),
        )
        return run_of(runs[0]) if runs else None, Step(*steps[0]) if steps else None

    async def page(self, seq: int, after: int, count: int) -> list[Step]:
        """The steps of a run after a number, in their order."""
        return [Step(*row) for row in await self._read("steps", seq=seq, after=after, count=count)]
