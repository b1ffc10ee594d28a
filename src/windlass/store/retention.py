"""What holds for every process on a store, and what one process at a time does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from windlass.store.base import Statement
from windlass.store.rows import Rows, pack

BATCHES: Mapping[str, tuple[str, ...]] = {
    "set": ("set_setting", "add_setting"),
    "turn": ("take_turn", "end_turn"),
}


class Setting(NamedTuple):
    """A value that every process goes by, who set it (None: the first process that named it), and when."""

    name: str
    value: int
    who: str | None
    at: int


class RetentionRecords(Rows):
    """Settings and turns."""

    async def store_settings(self) -> dict[str, Setting]:
        return {setting.name: setting for setting in map(Setting._make, await self._read("store_settings"))}

    async def set_settings(self, values: Mapping[str, int], who: str, now: int) -> None:
        await self._batch("set", Statement("set_setting", {"r": pack(sorted(values.items())), "who": who, "now": now}))

    async def add_settings(self, values: Mapping[str, int], now: int) -> None:
        """Keep these values where there are none."""
        await self._batch("set", Statement("add_setting", {"r": pack(sorted(values.items())), "now": now}))

    async def take_turn(self, name: str, token: str, now: int, until: int, latest: int) -> bool:
        """Have a turn, or have it for longer; False while another process has it. One until after `latest` is nobody's."""
        turn = Statement("take_turn", {"name": name, "token": token, "now": now, "until": until, "latest": latest})
        return bool((await self._batch("turn", turn))[0])

    async def end_turn(self, name: str, token: str) -> None:
        await self._batch("turn", Statement("end_turn", {"name": name, "token": token}))
