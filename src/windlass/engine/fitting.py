"""What is asked for must fit: a payload that no code accepts is refused at the door, not hours later by a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.engine import fits
from windlass.engine.core import Core
from windlass.errors import BadInput
from windlass.model import Job, NewRun, WorkerInfo


def laid_over(template: dict[str, Any], given: Any) -> Any:
    """A payload over the job's template: members one by one for objects, else whole."""
    if given is None:
        return template
    return {**template, **given} if template and isinstance(given, dict) else given


class Unfit(NamedTuple):
    """A payload that no code accepts. What is to be said of it is worked out for the one that is answered."""

    job: str
    wrong: fits.Misfit
    document: Mapping[str, Any]  # of the last definer

    def error(self, what: str = "The payload") -> BadInput:
        return BadInput(f"{what} does not fit the job {self.job!r}: {self.wrong}.", hint=fits.takes(self.document))


class Fitting(Core):
    """The check that the doors share.

    A payload is compared with what the last definer of its job takes. One that does not fit there is compared with what the living
    workers have told, as the store has it now: it is refused when all of them are known, and none takes it.
    """

    async def unfit(self, news: Sequence[NewRun]) -> dict[int, Unfit]:
        """Those of these runs that no code accepts, by their place."""
        names = {new.job for new in news if not new.checked}
        jobs = await self.definitions(names, "wait") if names else {}
        schemas = {name: schema for name in names if (schema := jobs[name][0].schema) is not None}
        if not schemas:
            return {}
        documents, steps = await self._documents(schemas.items()), fits.Steps()
        doubtful = {
            index: new
            for index, new in enumerate(news)
            if not new.checked
            and (document := documents.get(schemas.get(new.job, ""))) is not None
            and fits.misfit(document, laid_over(jobs[new.job][0].payload, new.payload), steps) is not None
        }
        return await self._refused(doubtful) if doubtful else {}

    async def refuse_misfit(self, job: str, payload: Any, what: str) -> None:
        """Refuse one payload if no code accepts it."""
        for unfit in (await self.unfit([NewRun(job, payload)])).values():
            raise unfit.error(what)

    async def _refused(self, doubtful: Mapping[int, NewRun]) -> dict[int, Unfit]:
        """Those of these that do not fit by what the store has now."""
        jobs = {job.name: job for job in await self.home.jobs_named(sorted({new.job for new in doubtful.values()}))}
        alive = await self.home.schemas_seen(self.clock.now() - self.limits.worker_silence)
        told = {name: _told(job, alive) for name, job in jobs.items()}
        documents = await self._documents((name, schema) for name, schemas in told.items() for schema in schemas if schema)
        steps, refused = fits.Steps(), dict[int, Unfit]()
        for index, new in doubtful.items():
            job = jobs.get(new.job)
            if job is None or job.schema is None or not told[job.name] <= documents.keys():
                continue  # there is code of which nothing is known
            payload = laid_over(job.payload, new.payload)
            found = {schema: fits.misfit(documents[schema or ""], payload, steps) for schema in told[job.name]}
            if None not in found.values() and (wrong := found[job.schema]) is not None:
                refused[index] = Unfit(job.name, wrong, documents[job.schema])
        return refused

    async def _documents(self, wanted: Iterable[tuple[str, str]]) -> dict[str | None, dict[str, Any]]:
        """What jobs take, by fingerprint, as far as it is known: a document never changes."""
        schemas = {schema: job for job, schema in wanted}
        known = self._memory.documents
        found: dict[str | None, dict[str, Any]] = {schema: known[schema] for schema in schemas if schema in known}
        if missing := [(job, schema) for schema, job in schemas.items() if schema not in found]:
            found.update(self._memory.learn(await self.home.documents(missing)))
        return found


def _told(job: Job, alive: Iterable[tuple[WorkerInfo, Mapping[str, str]]]) -> set[str | None]:
    """The fingerprints of the code that there is for a job; None among them: code that has not told."""
    return {job.schema, *(told.get(job.name) for worker, told in alive if worker.jobs is None or job.name in worker.jobs)}
