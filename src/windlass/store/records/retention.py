"""Retention settings, and the removal of expired data, by one process at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from windlass.model import State
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

BATCHES: Mapping[str, tuple[str, ...]] = {
    "set": ("set_setting", "add_setting"),
    "turn": ("take_turn", "end_turn"),
}

PRUNE = (
    "lock_groups",
    "lock_pruned",
    "refuse_prune",
    "lock_pruned_keys",
    "prune_keys",
    *(
        f"prune_{table}"
        for table in ("journal", "attempts", "logs", "steps", "waits", "dependents", "holds", "announcements", "groups", "notify")
    ),
    "note_shortest",
    "prune_runs",
)


class StoredSetting(NamedTuple):
    """A value for all processes, its author (None: the first process that had it in its settings), and its time."""

    name: str
    value: int
    actor: str | None
    at: int


class ExpiredRun(NamedTuple):
    """A run that is past its retention."""

    seq: int
    at: int  # when it ended, or, where it has a retention of its own, when that is over
    needed: bool  # an unfinished run may still read it, or consumers of the journal have yet to


class RetentionRecords(Rows):
    """Settings, the right to remove, and removal."""

    async def settings(self) -> dict[str, StoredSetting]:
        return {setting.name: setting for setting in map(StoredSetting._make, await self._read("store_settings"))}

    async def set(self, values: Mapping[str, int], actor: str, now: int) -> None:
        await self._batch("set", Statement("set_setting", {"r": pack(sorted(values.items())), "actor": actor, "now": now}))

    async def add(self, values: Mapping[str, int], now: int) -> None:
        """Store these values where none is stored."""
        await self._batch("set", Statement("add_setting", {"r": pack(sorted(values.items())), "now": now}))

    async def take_turn(self, name: str, token: str, now: int, until: int, latest: int) -> bool:
        """Take or renew the right under a name; False while another process has it. A right that lasts beyond `latest` counts as free."""
        turn = Statement("take_turn", {"name": name, "token": token, "now": now, "until": until, "latest": latest})
        return bool((await self._batch("turn", turn))[0])

    async def end_turn(self, name: str, token: str) -> None:
        await self._batch("turn", Statement("end_turn", {"name": name, "token": token}))

    # Removal

    async def prunable(self, state: State, before: int, after: tuple[int, int], count: int) -> list[ExpiredRun]:
        """Runs that ended in a state before a time, by their end, after such a pair of time and number."""
        rows = await self._read("prunable", state=state.value, before=before, at=after[0], seq=after[1], count=count)
        return [ExpiredRun(seq, at, bool(needed)) for seq, at, needed in rows]

    async def prunable_own(self, before: int, read: int, until: int, after: tuple[int, int], count: int) -> list[ExpiredRun]:
        """Runs whose own retention ended before a time. Those that ended after `read` are needed, unless it ended before `until`."""
        at, seq = after
        rows = await self._read("prunable_own", before=before, read=read, until=until, at=at, seq=seq, count=count)
        return [ExpiredRun(seq, at, bool(needed)) for seq, at, needed in rows]

    async def unlocked_old(self, ids: Sequence[int]) -> list[int]:
        """Those of these runs that can be removed without waiting for a lock."""
        return [seq for (seq,) in (await self._batch("probe", Statement("unlocked_old", {"ids": pack(ids)})))[0]]

    async def prune(self, ids: Iterable[int], now: int, *, own: bool = False) -> None:
        """Remove these runs and their rows; Conflict when one of them is needed again. `own`: each has a retention of its own."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "now": now}
        await self._batch("prune", *(Statement(name, values) for name in PRUNE if own or name != "note_shortest"))

    async def drop_expired_keys(self, now: int, count: int) -> int:
        """Remove expired keys, except locked ones; how many."""
        expired = await self._read("expired_keys", now=now, count=count)
        dropped = (await self._batch("drop_keys", Statement("drop_keys", {"r": pack(expired), "now": now})))[0] if expired else ()
        return len(dropped)

    async def tidy(self, limit: int, share: float) -> bool:
        """Remove dead rows where the database keeps them, if there are more than that many and that share of all."""
        dead = await self._read("dead_runs")
        if not dead or dead[0][0] <= limit + share * dead[0][1]:
            return False
        await self._read("vacuum_runs")
        return True
