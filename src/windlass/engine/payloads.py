"""Payloads must fit: one that no code accepts is refused when it is sent, not hours later by a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from windlass.engine import fits
from windlass.engine.ground import Ground, Part
from windlass.engine.jobs import Jobs
from windlass.errors import BadInput
from windlass.model import JobRecord, NewRun, WorkerInfo


def laid_over(template: dict[str, Any], payload: Any) -> Any:
    """A payload over the job's template: objects are merged member by member, anything else replaces it."""
    if payload is None:
        return template
    return {**template, **payload} if template and isinstance(payload, dict) else payload


class UnfitPayload(NamedTuple):
    """A payload that no code accepts. Its error text is computed only for the one that is answered."""

    job: str
    wrong: fits.Misfit
    document: Mapping[str, Any]  # of the latest definition

    def error(self, what: str = "The payload") -> BadInput:
        return BadInput(f"{what} does not fit the job {self.job!r}: {self.wrong}.", hint=fits.takes(self.document))


class Payloads(Part):
    """The check of payloads, shared by all verbs that create runs.

    A payload is compared with the schema of its job's latest definition. One that does not fit is compared with the schemas of the
    live workers, as the store has them now: it is refused when all of them are known and it fits none.
    """

    def __init__(self, ground: Ground, jobs: Jobs) -> None:
        super().__init__(ground)
        self._jobs = jobs

    async def unfit(self, news: Sequence[NewRun]) -> dict[int, UnfitPayload]:
        """Those of these runs that no code accepts, by their index."""
        names = {new.job for new in news if not new.checked}
        jobs = await self._jobs.definitions(names, "wait") if names else {}
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

    async def _refused(self, doubtful: Mapping[int, NewRun]) -> dict[int, UnfitPayload]:
        """Those of these runs that do not fit any schema in the store."""
        jobs = {job.name: job for job in await self.ground.home.jobs.named(sorted({new.job for new in doubtful.values()}))}
        alive = await self.ground.home.workers.schemas_seen(self.clock.now() - self.limits.worker_silence)
        versions = {name: _fingerprints(job, alive) for name, job in jobs.items()}
        documents = await self._documents((name, schema) for name, schemas in versions.items() for schema in schemas if schema)
        steps, refused = fits.Steps(), dict[int, UnfitPayload]()
        for index, new in doubtful.items():
            job = jobs.get(new.job)
            if job is None or job.schema is None or not versions[job.name] <= documents.keys():
                continue  # there is code whose schema is unknown
            payload = laid_over(job.payload, new.payload)
            misfits = {schema: fits.misfit(documents[schema or ""], payload, steps) for schema in versions[job.name]}
            if None not in misfits.values() and (wrong := misfits[job.schema]) is not None:
                refused[index] = UnfitPayload(job.name, wrong, documents[job.schema])
        return refused

    async def _documents(self, versions: Iterable[tuple[str, str]]) -> dict[str | None, dict[str, Any]]:
        """The schemas of jobs, by fingerprint, as far as they are stored: a document never changes."""
        schemas = {schema: job for job, schema in versions}
        known = self.ground.memory.documents
        documents: dict[str | None, dict[str, Any]] = {schema: known[schema] for schema in schemas if schema in known}
        if missing := [(job, schema) for schema, job in schemas.items() if schema not in documents]:
            documents.update(self.ground.memory.learn(await self.ground.home.jobs.documents(missing)))
        return documents


def _fingerprints(job: JobRecord, alive: Iterable[tuple[WorkerInfo, Mapping[str, str]]]) -> set[str | None]:
    """The fingerprints of the code that exists for a job; None among them: code that sent none."""
    handler = job.handler or job.name
    return {job.schema, *(schemas.get(handler) for worker, schemas in alive if worker.jobs is None or handler in worker.jobs)}
