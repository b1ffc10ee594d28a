"""Rows of what decides who is next: pauses, queues, resources, what is occupied, what is parked, and direct calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from windlass.gates import Gate, Parked, Taken, parts_of
from windlass.model import Pause, Queue, Rate, Resource, Slot
from windlass.store.base import Row, Statement, Value
from windlass.store.rows import Rows, pack, split_time

_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode

LET_GO = ("unpark", "free")
WITHIN = ("hold_gates", "claim_within", "add_holds", "add_rates", "park", "wake_gates")

BATCHES: Mapping[str, tuple[str, ...]] = {
    "pause": ("add_pause", "raise_controls"),
    "resume": ("drop_pause", "raise_controls"),
    "queue": ("set_queue", "drop_queue", "raise_controls"),
    "resource": ("add_resources", "set_resource", "raise_controls"),
    "drop_resources": ("lock_lanes", "drop_resources", "raise_controls"),
    "open_gates": ("lock_gates", "open_gates", "unpark_keys"),
    "free": ("lock_gates_of", *LET_GO),
    "idle_gates": ("drop_idle_rates", "drop_idle_gates"),
    "reserve": ("hold_gates", "add_slot", "grant_slots"),
    "renew": ("hold_gates", "renew_slot", "grant_slots"),
    "release": ("release_slot",),
    "lapse_slots": ("lapse_slots",),
}


class Settings(NamedTuple):
    """Everything that is controlled, as of a revision."""

    rev: int
    removed: int  # how often lanes were removed
    pauses: list[Pause]
    queues: list[Queue]
    resources: list[Resource]


class Usage(NamedTuple):
    """What is occupied of a gate, and when its rates' buckets are empty, by number."""

    held: int
    tats: dict[int, int]


class Holder(NamedTuple):
    """A run that occupies some of a gate."""

    run: str
    job: str
    worker: str | None
    weight: int


class Granted(NamedTuple):
    """A direct call as it was just written, and the server's time then, where there is a server."""

    slot: Slot
    server: int | None


def let_go(ids: str, count: int) -> list[Statement]:
    """What runs that end let go of, and who waited for it: behind the statements that end them, in their batch."""
    return [Statement("unpark", {"ids": ids, "count": count}), Statement("free", {"ids": ids})]


def before_letting_go(ids: str) -> Statement:
    """The lock under which runs may let go of what they occupy; ahead of the statements that end them."""
    return Statement("lock_gates_of", {"ids": ids})


def within(taken: Sequence[Taken], parked: Sequence[Parked], later: Mapping[str, int], gates: Mapping[str, Gate]) -> dict[str, Value]:
    """The sets that a claim within limits binds: needs, gates, rates, what is parked, and what time opens."""
    keys = sorted({row.key for row in taken} | {row.key for row in parked} | later.keys())
    windows = [(key, n, *one) for key in sorted({row.key for row in taken}) for n, one in enumerate(gates[key].windows)]
    woken = [(key, parts_of(key)[0], at) for key, at in sorted(later.items())]
    return {
        "n": pack(taken),
        "g": pack([(key, parts_of(key)[0]) for key in keys]),
        "w": pack(windows),
        "p": pack(parked),
        "later": pack(woken),
    }


class OrderRecords(Rows):
    """Controls, gates and direct calls."""

    # Controls

    async def settings(self) -> Settings:
        revs, pauses, queues, resources = await self.store.batch(
            "read", [Statement(name) for name in ("controls_rev", "all_pauses", "all_queues", "all_resources")]
        )
        rev, removed = revs[0]
        return Settings(rev, removed, [Pause(*row) for row in pauses], [Queue(*row) for row in queues], list(map(_resource_of, resources)))

    async def _control(self, verb: str, name: str, values: Mapping[str, Value]) -> bool:
        done, _ = await self._batch(verb, Statement(name, values), Statement("raise_controls"))
        return bool(done)

    async def add_pause(self, pause: Pause, most: int) -> bool:
        values: dict[str, Value] = {"scope": pause.scope, "name": pause.name, "reason": pause.reason, "who": pause.who}
        return await self._control("pause", "add_pause", values | {"now": pause.at, "most": most})

    async def drop_pause(self, scope: str, name: str) -> bool:
        return await self._control("resume", "drop_pause", {"scope": scope, "name": name})

    async def set_queue(self, queue: Queue, most: int) -> bool:
        return await self._control("queue", "set_queue", {"name": queue.name, "ageing": queue.ageing, "most": most})

    async def drop_queue(self, name: str) -> bool:
        return await self._control("queue", "drop_queue", {"name": name})

    async def set_resource(self, resource: Resource, owner: str | None, most: int, share: int) -> bool:
        values: dict[str, Value] = {"name": resource.name, "capacity": resource.capacity, "rates": pack(resource.rates)}
        bounds: dict[str, Value] = {"owner": owner, "most": most, "share": share}
        return await self._control(
            "resource", "set_resource", values | bounds | {"max_wait": resource.max_wait, "now": resource.updated_at}
        )

    async def add_resources(self, names: Iterable[str], max_wait: int, owner: str | None, most: int, share: int, now: int) -> None:
        """Make those that are not there, all or none, if there is room for them."""
        values: dict[str, Value] = {"r": pack([[name] for name in sorted(names)]), "max_wait": max_wait, "now": now}
        await self._control("resource", "add_resources", values | {"owner": owner, "most": most, "share": share})

    async def named_resources(self, before: int) -> list[str]:
        """Resources that jobs have named before then, and that nobody has set."""
        return [name for (name,) in await self._read("named_resources", before=before)]

    async def resources_in_use(self, names: Collection[str]) -> set[str]:
        """Those of these that runs or direct calls occupy."""
        return {name for (name,) in await self._read("resources_in_use", names=pack(sorted(names)))}

    async def drop_resources(self, names: Collection[str], controls: int, last: int) -> list[str]:
        """Remove those of these that are not in use, if controls and lanes are as they were read; which they were."""
        values: dict[str, Value] = {"names": pack(sorted(names)), "controls": controls, "last": last}
        statements = Statement("lock_lanes"), Statement("drop_resources", values), Statement("raise_controls")
        return _keys((await self._batch("drop_resources", *statements))[1])

    # What is occupied

    async def usage(self, keys: Sequence[str]) -> dict[str, Usage]:
        """How much of each of these gates is occupied now."""
        if not keys:
            return {}
        held, tats = await self.store.batch(
            "read", [Statement("usage", {"g": pack([[key] for key in keys])}), Statement("rates_of", {"names": pack(keys)})]
        )
        found = {key: Usage(weight, {}) for key, weight in held}
        for key, n, tat in tats:
            found[key].tats[n] = tat
        return found

    async def holders(self, key: str, count: int) -> list[Holder]:
        return [Holder(*row) for row in await self._read("holders", key=key, count=count)]

    async def slots_at(self, key: str, count: int) -> list[Slot]:
        return [Slot(*row) for row in await self._read("slots_at", key=key, count=count)]

    async def held_under(self) -> dict[str, tuple[int, int]]:
        """For every gate that live runs occupy: how much, and how many they are."""
        return {key: (weight, runs) for key, weight, runs in await self._read("held_under")}

    # What time and faults have left behind

    async def gates_to_open(self, now: int, after: str, count: int) -> tuple[list[str], list[str]]:
        """The gates that time has opened, and the next keys that runs are parked for, read together."""
        due, parked = Statement("gates_due", {"now": now, "count": count}), Statement("parked_keys", {"after": after, "count": count})
        opened, keys = await self._batch("read", due, parked)
        return [row[0] for row in opened], [row[0] for row in keys]

    async def open_gates(self, keys: Sequence[str], count: int, now: int) -> set[str]:
        """Put up to so many parked runs of each lane back for these gates; the queues they are in."""
        names, rows = pack(sorted(keys)), pack([[key] for key in sorted(keys)])
        answers = await self._batch(
            "open_gates",
            Statement("lock_gates", {"names": names}),
            Statement("open_gates", {"names": names, "now": now}),
            Statement("unpark_keys", {"g": rows, "count": count}),
        )
        return {queue for (queue,) in answers[-1]}

    async def parked_keys(self, after: str, count: int) -> list[str]:
        return [key for (key,) in await self._read("parked_keys", after=after, count=count)]

    async def free_stale(self, after: int, count: int) -> list[int]:
        """Let go of what runs hold that are not live; the runs, in their order."""
        runs = sorted({run for (run,) in await self._read("stale_holds", after=after, count=count)})
        if runs:
            ids = pack(runs)
            await self._batch("free", before_letting_go(ids), *let_go(ids, len(runs)))
        return runs

    async def drop_idle_gates(self, before: int, now: int, count: int) -> int:
        keys = [key for (key,) in await self._read("idle_gates", before=before, now=now, count=count)]
        if keys:
            names = pack(keys)
            await self._batch(
                "idle_gates",
                Statement("drop_idle_rates", {"names": names, "now": now}),
                Statement("drop_idle_gates", {"names": names, "before": before}),
            )
        return len(keys)

    # Direct calls

    async def reserve(self, slot: Slot, capacity: int | None, controls: int, most: int, now: int) -> Granted | None:
        """A place in the line, and its turn at once if nothing is before it."""
        values: dict[str, Value] = {
            "id": slot.id,
            "key": slot.key,
            "token": slot.token,
            "weight": slot.weight,
            "who": slot.who,
            "lease": slot.lease,
            "now": now,
        }
        added = Statement("add_slot", values | {"most": most})
        return await self._granted("reserve", added, slot.key, slot.id, capacity, controls, now)

    async def renew_slot(self, slot: Slot, lease: int, capacity: int | None, controls: int, now: int) -> Granted | None:
        """A longer lease, and its turn if it has come."""
        renewed = Statement("renew_slot", {"id": slot.id, "token": slot.token, "lease": lease, "now": now})
        return await self._granted("renew", renewed, slot.key, slot.id, capacity, controls, now)

    async def _granted(
        self, verb: str, first: Statement, key: str, identity: str, capacity: int | None, controls: int, now: int
    ) -> Granted | None:
        gates = Statement("hold_gates", {"g": pack([(key, parts_of(key)[0])]), "now": now})
        grant = Statement("grant_slots", {"key": key, "capacity": capacity, "controls": controls, "now": now})
        rows = (await self._batch(verb, gates, first, grant, Statement("find_slot", {"id": identity})))[-1]
        slots, server = split_time(rows, len(Slot.__struct_fields__))
        return Granted(Slot(*slots[0]), server) if slots else None

    async def find_slot(self, identity: str) -> Slot | None:
        slots, _ = split_time(await self._read("find_slot", id=identity), len(Slot.__struct_fields__))
        return Slot(*slots[0]) if slots else None

    async def slots_after(self, seq: int, count: int) -> list[Slot]:
        return [Slot(*row) for row in await self._read("slots_after", after=seq, count=count)]

    async def release_slot(self, identity: str, token: str) -> list[str]:
        return _keys((await self._batch("release", Statement("release_slot", {"id": identity, "token": token})))[0])

    async def slots_overdue(self, now: int, after: int, count: int) -> list[Slot]:
        """Direct calls whose lease is over, or ends later than it can."""
        return [Slot(*row) for row in await self._read("slots_overdue", now=now, after=after, count=count)]

    async def lapse_slots(self, slots: Iterable[Slot]) -> list[str]:
        """End these, if they were not renewed since they were read."""
        rows = pack([(slot.seq, slot.lease_until) for slot in slots])
        return _keys((await self._batch("lapse_slots", Statement("lapse_slots", {"r": rows})))[0])


def _keys(rows: Iterable[Row]) -> list[str]:
    return sorted({key for (key,) in rows})


def _resource_of(row: Row) -> Resource:
    name, capacity, rates, max_wait, created_at, updated_at = row
    return Resource(name, capacity, _rates(rates), max_wait, created_at, updated_at)
