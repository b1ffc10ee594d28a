"""Job definitions: stored, read, and cached by this process."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from windlass import payload as json
from windlass.engine import checks, fits
from windlass.engine.ground import Ground, Part
from windlass.engine.provision import Provision
from windlass.engine.templates import Template
from windlass.errors import Forbidden, NotFound, UnknownJob
from windlass.model import JobRecord, Options
from windlass.store.records import SchemaVersion


def not_theirs(what: str, name: str, owner: str | None) -> Forbidden:
    """The error for code that defines a job or a schedule of another owner."""
    whose = "a person or another program" if owner is None else f"code of {owner!r}"
    return Forbidden(
        f"The {what} {name!r} was made by {whose}, so it stays as it is.",
        hint="Choose another name, change it with the scope admin, or give the tokens of one fleet the same principal.",
    )


class Jobs(Part):
    """The verbs of job definitions."""

    def __init__(self, ground: Ground, provision: Provision) -> None:
        super().__init__(ground)
        self._provision = provision

    async def define(
        self,
        name: str,
        *,
        handler: str | None = None,
        payload: Mapping[str, Any] | None = None,
        options: Options | None = None,
        schema: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> JobRecord:
        """Store a definition; the same one again changes nothing. Existing runs keep the definition they were created with.

        `handler` names what executes its runs, if that is not called like the job. Code that calls through a hub may define new jobs, and
        jobs that code of the same principal has defined, each with a handler of such a job. With the JSON Schema of its arguments,
        payloads that no code accepts are refused at creation.
        """
        checks.name(name, "A job's name")
        if handler is not None:
            checks.name(handler, "A handler's name")
        if handler not in (None, name) and not self.ground.trusted:
            await self._check_handler(name, handler or name)
        allowed = self.ground.allowed(options or Options())
        text = json.encode(dict(payload or {}), limit=self.limits.payload, what="The payload template")
        version, words = self.version_of(schema), checks.description(description, self.limits)
        template = Template.of(allowed, None if handler == name else handler)
        lanes = {(template.queue, name, template.requires)}
        if self.ground.lanes.missing(lanes):
            await self._provision.planned(lanes)  # check for room before anything is written
        by, now = self.ground.principal, self.clock.now()
        job = await self.ground.home.jobs.define(name, handler or name, text, allowed, words, version, by, now)
        definition = (handler or name, dict(payload or {}), allowed, words)
        if (job.handler, job.payload, job.options, job.description) != definition and not self.ground.trusted:
            raise not_theirs("job", name, job.owner)
        self.ground.memory.remember(job)
        await self._provision.lanes_for(lanes)
        return job

    async def _check_handler(self, name: str, handler: str) -> None:
        """Forbidden for the handler of a job of another owner, whose limits, pauses and checks a job with another name would avoid."""
        jobs = {job.name: job for job in await self.ground.home.jobs.named(sorted({name, handler}))}
        own, theirs, owner = jobs.get(name), jobs.get(handler), self.ground.owner
        if own is not None and own.handler is not None and own.owner != owner:
            return  # nothing is changed: `define` refuses another definition
        if theirs is None or theirs.handler is None or theirs.owner != owner:
            raise Forbidden(
                f"The job {name!r} cannot have the handler {handler!r}: no code of {owner!r} has defined a job of that name.",
                hint="Define the job of the handler first, or let an admin define this one.",
            )

    def version_of(self, schema: Mapping[str, Any] | None) -> SchemaVersion | None:
        """The schema of a definition, if it can be stored."""
        if schema is None:
            return None
        text = checks.schema(schema, self.limits)
        return SchemaVersion(fits.fingerprint(text), text, self.limits.versions)

    async def definitions(self, names: Set[str], undefined: Literal["refuse", "wait"]) -> dict[str, tuple[JobRecord, Template]]:
        """The current definitions by this process's cache; the store refuses a creation if one of them is stale.

        An undefined job whose runs may wait for its definition has revision 0 until there is a placeholder for it.
        """
        memory, new = self.ground.memory, dict[str, tuple[JobRecord, Template]]()
        jobs = memory.jobs
        while missing := sorted(name for name in names if name not in jobs and name not in new):
            for name in missing:
                checks.name(name, "A job's name")
            records = {job.name: job for job in await self.ground.home.jobs.named(missing)}
            for job in records.values():
                memory.remember(job)
            new |= {name: _undefined(name) for name in missing if name not in records}
            if new and undefined == "refuse":
                raise UnknownJob(
                    f"No job is called {min(new)!r}.",
                    hint="Define it first, or say undefined='wait' to let its runs wait for a definition.",
                )
            jobs = memory.jobs  # another verb may have cleared the cache meanwhile
        return {**jobs, **new} if new else jobs

    async def page(self, *, after: str = "", count: int = 100) -> list[JobRecord]:
        """Definitions by name."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.name(after, "A job's name")
        return await self.records.jobs.after(after, count)

    async def find(self, name: str) -> JobRecord | None:
        """One definition, if there is one."""
        return next(iter(await self.records.jobs.named([checks.name(name, "A job's name")])), None)

    async def get(self, name: str) -> JobRecord:
        """One definition, with its schema."""
        if (job := await self.find(name)) is not None:
            return await self._with_takes(job)
        raise NotFound(f"There is no job {name!r}.", hint="`windlass jobs` shows those there are.")

    async def _with_takes(self, job: JobRecord) -> JobRecord:
        texts = await self.records.jobs.documents([(job.name, job.schema)]) if job.schema is not None else {}
        return replace(job, takes=msgspec.json.decode(texts[job.schema])) if job.schema in texts else job


def _undefined(name: str) -> tuple[JobRecord, Template]:
    """A job without a definition."""
    job = JobRecord(0, name, None, {}, Options(), 0, 0, 0)
    return job, Template.of(job.options)
