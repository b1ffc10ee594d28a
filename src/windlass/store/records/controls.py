"""Settings that apply to all processes: pauses, queues, resources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from windlass.model import Lane, Pause, Queue, Rate, Resource
from windlass.payload import reader
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

_rates = reader(tuple[Rate, ...])

BATCHES: Mapping[str, tuple[str, ...]] = {
    "pause": ("add_pause", "raise_controls"),
    "resume": ("drop_pause", "raise_controls"),
    "queue": ("set_queue", "drop_queue", "raise_controls"),
    "resource": ("add_resources", "set_resource", "raise_controls"),
    "drop_resources": ("lock_lanes", "drop_resources", "raise_controls"),
}


class ControlSettings(NamedTuple):
    """All controls, as of a revision."""

    rev: int
    removed: int  # how often lanes were removed
    pauses: list[Pause]
    queues: list[Queue]
    resources: list[Resource]

    def paused(self, lane: Lane) -> list[Pause]:
        """The pauses that keep the runs of a lane from being claimed."""
        places = (("system", ""), ("queue", lane.queue), ("job", lane.job))
        return [pause for pause in self.pauses if (pause.scope, pause.name) in places]


class ControlRecords(Rows):
    """Pauses, queues and resources; every change raises the revision that claims and creations compare."""

    async def settings(self) -> ControlSettings:
        revs, pauses, queues, resources = await self._batch(
            "read", *[Statement(name) for name in ("controls_rev", "all_pauses", "all_queues", "all_resources")]
        )
        rev, removed = revs[0]
        return ControlSettings(
            rev, removed, [Pause(*row) for row in pauses], [Queue(*row) for row in queues], list(map(_resource_of, resources))
        )

    async def _control(self, verb: str, name: str, values: Mapping[str, Value]) -> bool:
        done, _ = await self._batch(verb, Statement(name, values), Statement("raise_controls"))
        return bool(done)

    async def add_pause(self, pause: Pause, limit: int) -> bool:
        values: dict[str, Value] = {"scope": pause.scope, "name": pause.name, "reason": pause.reason, "actor": pause.actor}
        return await self._control("pause", "add_pause", values | {"now": pause.at, "limit": limit})

    async def drop_pause(self, scope: str, name: str) -> bool:
        return await self._control("resume", "drop_pause", {"scope": scope, "name": name})

    async def set_queue(self, queue: Queue, limit: int) -> bool:
        return await self._control("queue", "set_queue", {"name": queue.name, "aging": queue.aging, "limit": limit})

    async def drop_queue(self, name: str) -> bool:
        return await self._control("queue", "drop_queue", {"name": name})

    async def set_resource(self, resource: Resource, owner: str | None, limit: int, share: int) -> bool:
        values: dict[str, Value] = {"name": resource.name, "capacity": resource.capacity, "rates": pack(resource.rates)}
        bounds: dict[str, Value] = {"owner": owner, "limit": limit, "share": share}
        return await self._control(
            "resource", "set_resource", values | bounds | {"max_wait": resource.max_wait, "now": resource.updated_at}
        )

    async def add_resources(self, names: Iterable[str], max_wait: int, owner: str | None, limit: int, share: int, now: int) -> None:
        """Create the missing ones, all or none, if there is room for them."""
        values: dict[str, Value] = {"r": pack([[name] for name in sorted(names)]), "max_wait": max_wait, "now": now}
        await self._control("resource", "add_resources", values | {"owner": owner, "limit": limit, "share": share})

    async def named_resources(self, before: int) -> list[str]:
        """Resources that jobs have named before a time, and that have no settings."""
        return [name for (name,) in await self._read("named_resources", before=before)]

    async def resources_in_use(self, names: Collection[str]) -> set[str]:
        """Those of these that runs or direct calls occupy."""
        return {name for (name,) in await self._read("resources_in_use", names=pack(sorted(names)))}

    async def drop_resources(self, names: Collection[str], controls: int, last: int) -> list[str]:
        """Remove those of these that are not in use, if controls and lanes are as they were read; returns those removed."""
        values: dict[str, Value] = {"names": pack(sorted(names)), "controls": controls, "last": last}
        statements = Statement("lock_lanes"), Statement("drop_resources", values), Statement("raise_controls")
        return names_of((await self._batch("drop_resources", *statements))[1])


def names_of(rows: Iterable[Row]) -> list[str]:
    return sorted({key for (key,) in rows})


def _resource_of(row: Row) -> Resource:
    name, capacity, rates, max_wait, created_at, updated_at = row
    return Resource(name, capacity, _rates(rates), max_wait, created_at, updated_at)
