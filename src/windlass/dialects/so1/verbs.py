"""The verbs of the protocol, over the engine: create, get, list and cancel the jobs of an organisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from windlass import payload as json
from windlass.dialects.so1.sessions import Session
from windlass.dialects.so1.settings import Settings
from windlass.dialects.so1.words import ENDED, WORDS, Job, JobState, JobView, Owner, as_created, job_of, views_of
from windlass.engine import Engine, checks
from windlass.errors import BadInput, Forbidden, NotFound, UnknownJob, WrongState
from windlass.model import Key, Listed, NewRun, Options, Run, State

LINES = 1_000
"""Log lines that a job shows; its stream has all."""
REMEMBERED = 24 * 3600 * 1000
"""Milliseconds for which an Idempotency-Key is kept."""
LONGEST_KEY = 200
PAGE = 50
MAX_PAGE = 200
READS = 10
"""Pages of runs that are read for one page of an organisation's jobs, which may be few among them."""

_canonical = msgspec.json.Encoder(order="sorted").encode


class NotValid(BadInput):
    """A member of a request is not valid; nothing was changed."""

    def __init__(self, member: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.member = member


@contextmanager
def validating(member: str) -> Iterator[None]:
    """Name the member of the request in errors about its value."""
    try:
        yield
    except NotValid:
        raise
    except BadInput as error:
        raise NotValid(member, error.message, hint=error.hint) from error


class JobPage(NamedTuple):
    """Some jobs of an organisation, and where the next page begins; None when there is none."""

    jobs: list[Job]
    cursor: str | None


class OrgJobs:
    """The jobs of an organisation, for one of its users."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        settings: Settings | None = None,
        *,
        request_id: str | None = None,
        act: Callable[[str], Engine] | None = None,
    ) -> None:
        """`act` returns the engine for one audited action on a job."""
        self._engine, self._session, self._settings = engine, session, settings or Settings()
        self._request_id, self._act = request_id, act or (lambda job_id: engine)

    async def create_job(
        self, action: str, inputs: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None, body: Any = None
    ) -> Job:
        """Create a job, which is executed once.

        Under the same key it is created once in 24 hours; another body is refused. By default, that is the action with its inputs.
        """
        with validating("action"):
            checks.name(action, "The action")
        with validating("inputs"):
            json.check(inputs, "The inputs")
        owner = Owner(self._request_id or self._engine.clock.new_id(), self._session.user, self._session.org)
        options = Options(queue=self._settings.queue, max_attempts=1, attempt_per_claim=True)
        key = self._key(idempotency_key, (action, inputs) if body is None else body)
        new = NewRun(action, self._settings.kept(action, inputs or {}), options, key=key, meta=owner.meta())
        try:
            with validating("inputs"):
                (created,) = await self._engine.create([new])
        except UnknownJob as error:
            raise NotValid("action", f"There is no action {action!r}.", hint="Use one that the server has a job for.") from error
        job = await self.get_job(created.id)
        return as_created(job) if created.created else job

    def _key(self, name: str | None, body: Any) -> Key | None:
        """The key of a new run, which all users of the organisation share. Of the body only a digest is stored."""
        if name is None:
            return None
        if not 0 < len(name) <= LONGEST_KEY:
            hint = "A random UUID is a good one."
            raise NotValid("Idempotency-Key", f"An Idempotency-Key has 1 to {LONGEST_KEY} characters.", hint=hint)
        content = blake2b(_canonical(body), digest_size=16).hexdigest()
        return Key(name, REMEMBERED, checks.key_scope(f"so1:{self._session.org}"), "compare", content)

    async def get_job(self, job_id: str) -> Job:
        """A job with the last of its lines."""
        return await self._shown(await self.view(job_id))

    async def view(self, job_id: str) -> JobView:
        """A job of the organisation, for its stream."""
        view = await self._find(job_id)
        org = Owner.of(view.run).org
        if org != self._session.org and not (org == "" and self._session.admin):
            raise Forbidden(f"The job {job_id} is not of your organisation.", hint="Ask for a job of your own organisation.")
        return view

    async def _find(self, job_id: str) -> JobView:
        try:
            run = await self._engine.get(job_id)
        except (BadInput, NotFound) as error:
            raise NotFound(
                f"There is no job {job_id!r:.80}.", hint="Ids are UUIDs; ended jobs are removed after their retention."
            ) from error
        return next(view for view in await self._views(run) if view.attempt.id == job_id)

    async def _views(self, run: Run) -> list[JobView]:
        return list(views_of(run, (await self._engine.attempts_of([run]))[run.id]))

    async def _shown(self, view: JobView) -> Job:
        if view.started_at is None:
            return job_of(view)
        return job_of(view, await self._engine.lines(view.run.id, attempt=view.attempt.n, last=LINES, until=view.asked_at))

    async def list_jobs(self, *, state: str | None = None, limit: int = PAGE, cursor: str | None = None) -> JobPage:
        """The newest jobs of the organisation; of a run with several attempts the last. There may be more although a page is not full."""
        with validating("limit"):
            checks.integer(limit, "limit", 1, MAX_PAGE)
        runs: list[Run] = []
        states = tuple(State) if state is None else _states(state)
        for _ in range(READS):
            with validating("cursor"):
                page = await self._engine.runs(queue=self._settings.queue, states=states, cursor=cursor, count=limit - len(runs))
            runs += (run for run in page.runs if Owner.of(run).org == self._session.org)
            cursor = page.cursor
            if cursor is None or len(runs) == limit:
                break
        return JobPage(await self._listed(runs), cursor)

    async def _listed(self, runs: Sequence[Run]) -> list[Job]:
        """Runs of a list as jobs, without log lines; an error that was too large for the list is read."""
        cut = [run.id for run in runs if isinstance(run, Listed) and "error" in run.sizes]
        whole = {run.id: run.error for run in await self._engine.get_many(cut)} if cut else {}
        runs = [replace(run, error=whole.get(run.id)) if run.id in cut else run for run in runs]
        attempts = await self._engine.attempts_of(runs)
        return [job_of([*views_of(run, attempts[run.id])][-1]) for run in runs]

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a job that has not ended. Of one that is cancelled already, the call changes nothing."""
        view = await self.view(job_id)
        if view.state not in ENDED:
            with suppress(WrongState):  # it has ended meanwhile
                await self._act(job_id).cancel(view.run.id, by=self._session.actor)
            view = await self.view(job_id)
        if view.state is not JobState.CANCELLED:
            raise WrongState(f"The job {job_id} has ended: {view.state}.", hint="Nothing leaves an end; create a new job to try again.")
        return await self._shown(view)


def _states(label: str) -> tuple[State, ...]:
    if states := WORDS.states(label):
        return states
    raise NotValid("state", f"There is no state {label!r:.40}.", hint=f"Use one of {', '.join(JobState)}.")
