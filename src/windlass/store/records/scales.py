"""The row that records a machine's time scale, so that processes started later detect that the clock was set."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.steady import Scale
from windlass.store.base import Statement
from windlass.store.records.batches import Rows

BATCHES: Mapping[str, tuple[str, ...]] = {"clock": ("keep_scale",)}


class ScaleRecords(Rows):
    """One row, where a store belongs to one machine."""

    async def scale(self) -> Scale | None:
        rows = await self._read("scale")
        return Scale(*rows[0]) if rows else None

    async def keep_scale(self, scale: Scale) -> None:
        await self._batch("clock", Statement("keep_scale", scale._asdict()))
