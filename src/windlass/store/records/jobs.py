"""Job definitions, and placeholders for undefined jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from windlass.model import JobRecord, Options, Principal
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import options_of, pack


class SchemaVersion(NamedTuple):
    """The schema of a definition: its fingerprint, its document, and how many versions of a job are kept beside the latest."""

    schema: str
    document: str
    limit: int


class JobRecords(Rows):
    """Definitions of jobs."""

    async def define(
        self,
        name: str,
        handler: str,
        payload: str,
        options: Options,
        description: str | None,
        version: SchemaVersion | None,
        by: Principal | None,
        now: int,
    ) -> JobRecord:
        """The definition as stored by then: unchanged where it belongs to another owner."""
        trusted = by is None or by.trusted
        whose = {"owner": None if by is None or by.trusted else by.name, "trusted": int(trusted), "takes": int(by is not None and trusted)}
        what: dict[str, Value] = {"name": name, "handler": handler, "payload": payload, "options": pack(options), "now": now}
        what["schema"] = None if version is None else version.schema
        statements = [Statement("define", what | whose | {"description": description})]
        if version is not None:
            statements.append(Statement("tell_schema", what | {"document": version.document}))
            statements.append(Statement("drop_schemas", {"name": name, "limit": version.limit}))
        answers = await self._batch("define", *statements, Statement("jobs_named", {"names": pack([name])}))
        return _job_of(answers[-1][0])

    async def documents(self, versions: Iterable[tuple[str, str]]) -> dict[str, str]:
        """The schemas of jobs, by fingerprint, as far as they are stored."""
        return dict(await self._read("schema_documents", r=pack(sorted(versions))))

    async def add_placeholders(self, names: Iterable[str], owner: str | None, limit: int, share: int, now: int) -> None:
        """Create the missing ones, all or none, if there is room for them."""
        values: dict[str, Value] = {
            "r": pack([[name] for name in sorted(names)]),
            "owner": owner,
            "limit": limit,
            "share": share,
            "now": now,
        }
        await self._batch("placeholder", Statement("define_placeholders", values))

    async def named(self, names: Sequence[str]) -> list[JobRecord]:
        return [_job_of(row) for row in await self._read("jobs_named", names=pack(names))]

    async def after(self, name: str, count: int) -> list[JobRecord]:
        return [_job_of(row) for row in await self._read("jobs_all", after=name, count=count)]

    async def unused_placeholders(self, before: int) -> list[str]:
        """The names of undefined jobs that have no runs."""
        return [name for (name,) in await self._read("unused_placeholders", before=before)]

    async def drop_placeholders(self, names: Collection[str]) -> list[str]:
        dropped = await self._batch("drop_jobs", Statement("drop_placeholders", {"names": pack(sorted(names))}))
        return sorted(name for (name,) in dropped[0])


def _job_of(row: Row) -> JobRecord:
    identity, name, handler, payload, options, *rest = row
    return JobRecord(identity, name, handler, msgspec.json.decode(payload), options_of(options), *rest)
