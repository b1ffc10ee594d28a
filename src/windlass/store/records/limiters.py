"""The occupancy of limiters, and the runs that are parked until there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windlass.answers import Holder
from windlass.limiters import Limiter, Occupation, ParkedRun, parts_of
from windlass.store.base import Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

RELEASE_HOLDS = ("unpark", "free")
WITHIN = ("hold_limiters", "claim_within", "add_holds", "add_rates", "park", "wake_limiters")

BATCHES: Mapping[str, tuple[str, ...]] = {
    "open_limiters": ("lock_limiters", "open_limiters", "unpark_keys"),
    "free": ("lock_limiters_of", *RELEASE_HOLDS),
    "idle_limiters": ("drop_idle_rates", "drop_idle_limiters"),
}


class Usage(NamedTuple):
    """The occupancy of a limiter, and when its rates' buckets are empty, by number."""

    held: int
    tats: dict[int, int]


def release_holds(ids: str, count: int) -> list[Statement]:
    """Release what ended runs occupied, and unpark runs that waited for it: after the statements that end them, in their batch."""
    return [Statement("unpark", {"ids": ids, "count": count}), Statement("free", {"ids": ids})]


def lock_holds(ids: str) -> Statement:
    """The lock under which runs may release what they occupy; before the statements that end them."""
    return Statement("lock_limiters_of", {"ids": ids})


def within(
    taken: Sequence[Occupation], parked: Sequence[ParkedRun], later: Mapping[str, int], limiters: Mapping[str, Limiter]
) -> dict[str, Value]:
    """The sets that a claim within limits binds: needs, limiters, rates, parked runs, and limiters that open later."""
    keys = sorted({row.key for row in taken} | {row.key for row in parked} | later.keys())
    windows = [(key, n, *one) for key in sorted({row.key for row in taken}) for n, one in enumerate(limiters[key].windows)]
    woken = [(key, parts_of(key)[0], at) for key, at in sorted(later.items())]
    return {
        "n": pack(taken),
        "g": pack([(key, parts_of(key)[0]) for key in keys]),
        "w": pack(windows),
        "p": pack(parked),
        "later": pack(woken),
    }


class LimiterRecords(Rows):
    """The occupancy of limiters, and parked runs."""

    async def usage(self, keys: Sequence[str]) -> dict[str, Usage]:
        """How much of each of these limiters is occupied now."""
        if not keys:
            return {}
        held, tats = await self._batch(
            "read", *[Statement("usage", {"g": pack([[key] for key in keys])}), Statement("rates_of", {"names": pack(keys)})]
        )
        usage = {key: Usage(weight, {}) for key, weight in held}
        for key, n, tat in tats:
            usage[key].tats[n] = tat
        return usage

    async def holders(self, key: str, count: int) -> list[Holder]:
        return [Holder(*row) for row in await self._read("holders", key=key, count=count)]

    async def held_under(self) -> dict[str, tuple[int, int]]:
        """For every limiter that live runs occupy: how much, and how many they are."""
        return {key: (weight, runs) for key, weight, runs in await self._read("held_under")}

    # Repairs after time and faults

    async def to_open(self, now: int, after: str, count: int) -> tuple[list[str], list[str]]:
        """The limiters that are due to open, and the next keys that runs are parked for, read together."""
        due, parked = Statement("limiters_due", {"now": now, "count": count}), Statement("parked_keys", {"after": after, "count": count})
        opened, keys = await self._batch("read", due, parked)
        return [row[0] for row in opened], [row[0] for row in keys]

    async def open(self, keys: Sequence[str], count: int, now: int) -> set[str]:
        """Put up to `count` parked runs of each lane back for these limiters; returns their queues."""
        names, rows = pack(sorted(keys)), pack([[key] for key in sorted(keys)])
        answers = await self._batch(
            "open_limiters",
            Statement("lock_limiters", {"names": names}),
            Statement("open_limiters", {"names": names, "now": now}),
            Statement("unpark_keys", {"g": rows, "count": count}),
        )
        return {queue for (queue,) in answers[-1]}

    async def parked_keys(self, after: str, count: int) -> list[str]:
        return [key for (key,) in await self._read("parked_keys", after=after, count=count)]

    async def free_stale(self, after: int, count: int) -> list[int]:
        """Release what runs hold that are not live; returns these runs, in their order."""
        runs = sorted({run for (run,) in await self._read("stale_holds", after=after, count=count)})
        if runs:
            ids = pack(runs)
            await self._batch("free", lock_holds(ids), *release_holds(ids, len(runs)))
        return runs

    async def drop_idle(self, before: int, now: int, count: int) -> int:
        keys = [key for (key,) in await self._read("idle_limiters", before=before, now=now, count=count)]
        if keys:
            names = pack(keys)
            await self._batch(
                "idle_limiters",
                Statement("drop_idle_rates", {"names": names, "now": now}),
                Statement("drop_idle_limiters", {"names": names, "before": before}),
            )
        return len(keys)
