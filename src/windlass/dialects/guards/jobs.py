"""The verbs of jobs and their runs, over the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from windlass.answers import Origin
from windlass.dialects.guards.errors import (
    InvalidOperationError,
    InvalidValueError,
    JobNotFoundError,
    JobRunNotFoundError,
    TemplateNotFoundError,
)
from windlass.dialects.guards.notify import notify_of
from windlass.dialects.guards.order import move_to
from windlass.dialects.guards.plans import Plans
from windlass.dialects.guards.records import Job, JobRun
from windlass.dialects.guards.reports import JOBRUN_MUTABLE_FIELDS, report_of
from windlass.dialects.guards.rules import (
    added,
    check_edited,
    check_integer,
    check_params,
    check_position,
    check_priority,
    refuse_others,
    valid,
)
from windlass.dialects.guards.views import AttemptView, job_of, jobrun_of, views_of
from windlass.dialects.guards.words import WORDS, JobRunStatus, JobStatus
from windlass.errors import BadInput, Cancelled, LeaseLost, NotClaimable, NotFound, Pruned, UnknownJob, WrongState
from windlass.model import JobRecord, Listed, NewRun, State, WorkerInfo

PAGE, LARGEST_PAGE = 50, 200
READS = 10
"""Pages that are read for one list, of which few may have its status."""
LARGEST_LIST = 16 * 1024 * 1024
"""Bytes of params and results that a list may have, beside those that are small."""
EDITABLE = ("params", "priority", "position")
"""The members of a job that can be set while it is QUEUED."""
DISPATCH_LEASE = 600_000
"""Milliseconds that the caller of `dispatch_job` has until the end of the run."""

W = TypeVar("W", bound=str)


class JobsAndRuns(Plans):
    """The verbs of jobs in one queue of an engine. Jobs of other queues can be read by their ids, and nothing else."""

    # Jobs

    async def create_job(
        self,
        template_id: str,
        *,
        params: Mapping[str, Any] | None = None,
        priority: int | None = None,
        position: int | None = None,
        webhook_url: str | None = None,
        webhook_events: Sequence[str] | None = None,
    ) -> Job:
        """Create a job of a template, with params laid over the template's. TemplateNotFoundError where there is no such template.

        Priorities are 0, the default, to 100. With a position it is placed as by `update_job`. The address is notified of the end of
        each execution.
        """
        record = await self._definition(template_id)
        new = self._new(record, params=params, priority=priority, webhook_url=webhook_url, webhook_events=webhook_events)
        if position is not None:
            check_position(position)
        await self.provide()
        with self._creating():
            (created,) = await self._act("create", f"a job of template {record.name}").create([new])
        if position is not None:
            with suppress(WrongState):  # a worker has it already
                await move_to(self.engine, created.id, position)
        return await self.load_job(created.id)

    def _new(
        self,
        record: JobRecord,
        *,
        params: Mapping[str, Any] | None = None,
        priority: int | None = None,
        webhook_url: str | None = None,
        webhook_events: Sequence[str] | None = None,
    ) -> NewRun:
        options = added(record, self.settings)
        if priority is not None:
            options = replace(options, priority=check_priority(priority))
        return NewRun(record.name, check_params(params), options, notify=notify_of(webhook_url, webhook_events))

    @contextmanager
    def _creating(self) -> Iterator[None]:
        """Errors of a creation in the words of the document."""
        try:
            with valid("params"):
                yield
        except UnknownJob as error:  # it was removed meanwhile
            raise TemplateNotFoundError(error.message, hint=error.hint) from error

    async def load_job(self, job_id: str) -> Job:
        """A job; JobNotFoundError where there is none."""
        view = await self._view(job_id)
        job = await self._job(view)
        if job.position is None and _has_place(view):  # a worker has taken it between the two reads
            return await self._job(await self._view(job_id))
        return job

    async def _view(self, job_id: Any) -> AttemptView:
        try:
            run = await self.engine.get(job_id)
        except (BadInput, NotFound, Pruned) as error:
            raise JobNotFoundError(f"There is no job {job_id!r:.80}.") from error
        attempts = await self.engine.attempts_of([run])
        return next(view for view in views_of(run, attempts[run.id]) if view.attempt.id == job_id)

    async def _own(self, job_id: Any) -> AttemptView:
        """A job of the own queue."""
        view = await self._view(job_id)
        if view.run.queue != self.settings.queue:
            raise JobNotFoundError(
                f"There is no job {job_id} in the queue {self.settings.queue}.", hint="Jobs of other queues can only be read."
            )
        return view

    async def _job(self, view: AttemptView) -> Job:
        (job,) = await self._jobs([view])
        return job

    async def _jobs(self, views: Sequence[AttemptView]) -> list[Job]:
        """Views with where their jobs come from, and how many stand before each."""
        ids = list(dict.fromkeys(view.run.id for view in views if view.run.schedule or view.run.grouped))
        origins = await self.engine.origins(ids) if ids else {}
        return [job_of(view, origins.get(view.run.id, Origin()), await self._ahead(view)) for view in views]

    async def _ahead(self, view: AttemptView) -> int | None:
        if not _has_place(view):
            return None
        with suppress(NotFound, Pruned):
            return await self.engine.ahead(view.run.id)
        return None

    async def list_jobs(self, status: str | None = None, limit: int = PAGE) -> list[Job]:
        """The newest jobs, retries among them, with a status or all; at most 200."""
        word = word_of(status, (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELLED))
        states = WORDS.states(JobStatus.QUEUED) if word == JobStatus.QUEUED else tuple(State)
        return await self._jobs(await self._newest(states, limit, lambda view: word in (None, view.standing.job)))

    async def _newest(self, states: Sequence[State], limit: int, matches: Callable[[AttemptView], bool]) -> list[AttemptView]:
        """The newest jobs that match, newest first, among those of the newest 200 runs in these states, or of more if these are too few."""
        check_integer(limit, "limit", 1, LARGEST_PAGE)
        views: list[AttemptView] = []
        cursor = None
        for _ in range(READS):
            page = await self.engine.runs(queue=self.settings.queue, states=states, cursor=cursor, count=LARGEST_PAGE)
            attempts = await self.engine.attempts_of(page.runs)
            views += [view for run in page.runs for view in views_of(run, attempts[run.id]) if matches(view)]
            cursor = page.cursor
            if cursor is None or len(views) >= limit:
                break
        return await self._whole(sorted(views, key=lambda view: (view.created_at, view.run.seq, view.attempt.n), reverse=True)[:limit])

    async def _whole(self, views: Sequence[AttemptView]) -> list[AttemptView]:
        """Views of listed runs with what the list has left out."""
        cut = {view.run.id: sum(view.run.sizes.values()) for view in views if isinstance(view.run, Listed)}
        if sum(cut.values()) > LARGEST_LIST:
            text = f"These {len(views)} jobs have {sum(cut.values()):,} bytes."
            raise InvalidValueError("limit", text, hint="Ask for fewer with a smaller limit, or read them one by one.")
        whole = {run.id: run for run in await self.engine.get_many(list(cut))} if cut else {}
        runs = {view.run.id: view.run for view in views} | whole
        attempts = await self.engine.attempts_of(list(runs.values()))
        now = {(run.id, view.attempt.n): view for run in whole.values() for view in views_of(run, attempts[run.id])}
        return [now.get((view.run.id, view.attempt.n), view) for view in views]

    async def update_job(self, job_id: str, /, **updates: Any) -> Job:
        """Edit a job that is QUEUED: params (all of them), priority, position. Anything else is an InvalidOperationError.

        Position N puts it before the first job of its priority whose position is N or more.
        """
        view = await self._own(job_id)
        refuse_others(updates, EDITABLE, "a job")
        fields = ", ".join(name for name in EDITABLE if name in updates)
        with _only_while_queued(view, f"Cannot modify {fields} of job {job_id} after dispatch"):
            patch: dict[str, Any] = {"payload": check_edited(updates["params"])} if "params" in updates else {}
            if "priority" in updates:
                patch["priority"] = check_priority(updates["priority"])
            position = check_position(updates["position"]) if "position" in updates else None
            engine = self._act("update", f"job {job_id}")
            with valid("params"):
                if patch:
                    await engine.patch(view.run.id, **patch)
            if position is not None:
                await move_to(engine, view.run.id, position)
        return await self.load_job(job_id)

    async def dispatch_job(self, job_id: str) -> Job:
        """Hand this very job out now, whatever its place: its caller has ten minutes to end its run with `update_jobrun`.

        InvalidOperationError unless it is QUEUED and may run now: limits and pauses hold as for every job.
        """
        view = await self._own(job_id)
        worker = WorkerInfo(f"{self.settings.queue}.dispatch", (self.settings.queue,), slots=self.engine.limits.claim)
        with _only_while_queued(view, f"Cannot dispatch job {job_id}"):
            token = await self._token(worker)
            await self._act("dispatch", f"job {job_id}").take(view.run.id, worker, lease=DISPATCH_LEASE, token=token)
        return await self.load_job(job_id)

    async def _token(self, worker: WorkerInfo) -> str | None:
        """A token that names this process, so that a later one can tell whose job it is."""
        if self._life is None:
            return None
        await self.engine.register(worker)
        await self.engine.begin_life(worker.name, self._life)
        return self._life.tag + self.engine.clock.nonce()

    async def cancel_job(self, job_id: str, *, reason: str | None = None) -> Job:
        """Cancel a job that is QUEUED; else InvalidOperationError."""
        view = await self._own(job_id)
        with _only_while_queued(view, f"Cannot cancel job {job_id}"), valid("reason"):
            await self._act("cancel", f"job {job_id}").cancel(view.run.id, reason=reason, only=WORDS.states(JobStatus.QUEUED))
        return await self.load_job(job_id)

    # Runs

    async def load_jobrun(self, run_id: str) -> JobRun:
        """The run of a job, which has its id; JobRunNotFoundError for a job that has none."""
        return jobrun_of(with_run(await self._run_view(run_id, self._view)))

    async def _run_view(self, run_id: Any, read: Callable[[Any], Any]) -> AttemptView:
        try:
            view: AttemptView = await read(run_id)
        except JobNotFoundError as error:
            raise JobRunNotFoundError(f"There is no run {run_id!r:.80}.") from error
        return view

    async def list_jobruns(self, job_id: str | None = None, status: str | None = None, limit: int = PAGE) -> list[JobRun]:
        """The newest runs, with a status or all, or those of one job: one or none."""
        word = word_of(status, tuple(JobRunStatus))
        if job_id is not None:
            views = [await self._view(job_id)]
        else:
            views = await self._newest(tuple(State), limit, lambda view: view.has_run and word in (None, view.standing.run))
        return [jobrun_of(view) for view in views if view.has_run and word in (None, view.standing.run)]

    async def update_jobrun(self, run_id: str, /, **updates: Any) -> JobRun:
        """End a run with a status: COMPLETED, FAILED (retried by the rule), SKIPPED; with exit_code, error, artifacts.

        The same status again changes nothing; another one on an ended run is an InvalidOperationError, and so is any other member.
        """
        refuse_others(updates, tuple(JOBRUN_MUTABLE_FIELDS), "a run")
        view = with_run(await self._run_view(run_id, self._own))
        status, report = report_of(updates, view.run)
        if view.standing.run is not status:
            if view.attempt.finished_at is not None:
                raise InvalidOperationError(
                    f"Run {run_id} has ended: {view.standing.run or view.standing.job}.", hint="An end is never changed."
                )
            try:
                await self._act("end", f"run {run_id}").report(view.run.id, report, seq=view.run.seq)
            except (Cancelled, LeaseLost, WrongState) as error:
                raise InvalidOperationError(f"Run {run_id} has ended meanwhile. {error.message}", hint="Read it to see how.") from error
        return await self.load_jobrun(run_id)

    async def retry_run(self, run_id: str) -> Job:
        """A new job from a FAILED run, with that run's params, also while an automatic retry is planned; else InvalidOperationError."""
        view = with_run(await self._run_view(run_id, self._own))
        if view.standing.run is not JobRunStatus.FAILED:
            state = view.standing.run or view.standing.job
            raise InvalidOperationError(f"Run {run_id} is {state}, so it cannot be retried.", hint="Only a FAILED run can be retried.")
        created = await self._act("retry", f"run {run_id}").rerun(view.run.id, attempt=view.attempt.n)
        return await self.load_job(created.id)


def _has_place(view: AttemptView) -> bool:
    """Whether a job has a place in the queue: not while it waits for its time or its turn."""
    return view.is_last and view.run.state is State.QUEUED


@contextmanager
def _only_while_queued(view: AttemptView, refusal: str) -> Iterator[None]:
    """InvalidOperationError if a job is not QUEUED, at first or when it is changed."""
    status = view.standing.job
    if status != JobStatus.QUEUED:
        raise InvalidOperationError(f"{refusal}: it is {status}{' and has ended' if status.ended else ''}.")
    try:
        yield
    except InvalidOperationError:
        raise
    except (WrongState, NotClaimable) as error:
        raise InvalidOperationError(f"{refusal}: {error.message}", hint=error.hint) from error


def with_run(view: AttemptView) -> AttemptView:
    """The same; JobRunNotFoundError for a job that has no run."""
    if view.has_run:
        return view
    raise JobRunNotFoundError(f"The job {view.attempt.id} has no run: it is {view.standing.job}.", hint="It has one when it is handed out.")


def word_of(status: str | None, words: Sequence[W]) -> W | None:
    """One of the document's words, or None when not given."""
    if status is None:
        return None
    for word in words:
        if word == status:
            return word
    raise InvalidValueError("status", f"There is no status {status!r:.40} here.", hint=f"Use one of {', '.join(words)}.")
