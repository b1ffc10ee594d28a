"""The row that remembers how a machine's time went, so that a clock that was set is known for it by processes that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from windlass.store.base import Statement
from windlass.store.rows import Rows

BATCHES: Mapping[str, tuple[str, ...]] = {"clock": ("keep_scale",)}


class Scale(NamedTuple):
    """What the clock shows at the start of a boot, as far as it is believed; and what it shows since it was set, if it was."""

    boot: str | None
    base: int
    other: int | None  # the same by the clock as it is since it was set
    since: int | None  # milliseconds after the start when that was seen first
    latest: int  # the last time that was known


class ScaleRecords(Rows):
    """One row, where a store belongs to one machine."""

    async def scale(self) -> Scale | None:
        rows = await self._read("scale")
        return Scale(*rows[0]) if rows else None

    async def keep_scale(self, scale: Scale) -> None:
        await self._batch("clock", Statement("keep_scale", scale._asdict()))
