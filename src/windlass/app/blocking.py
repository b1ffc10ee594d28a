"""`App`, with its jobs, groups and handles. Written by docs/generate.py from the async classes; run `make docs` after a change."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Literal, Never, Protocol, Unpack, overload

from windlass.answers import Page, Reason, RunFilters
from windlass.app.groups import BaseDraft, BaseGroupHandle, new_group
from windlass.app.handles import BaseHandle, all_lines, pauses
from windlass.app.jobs import Definition, Kind, R, from_command, from_job
from windlass.app.options import CommandOptions, DefinitionOptions, Duration, JobOptions, RunOptions, WorkerOptions
from windlass.app.registry import RECYCLE
from windlass.app.resources import paused
from windlass.app.schedules import P, ScheduleOptions, check_rule, planned
from windlass.app.working import Working, drive
from windlass.clock import nap
from windlass.machine import ENDED
from windlass.model import Attempt, Group, LogLine, NewRun, OnFailure, Pause, Run, Schedule
from windlass.slots import HeldSlot, on_thread
from windlass.store.base import run_sync
from windlass.worker import Context


class Handle(BaseHandle[R]):
    """A run, for synchronous code."""

    __slots__ = ()

    def refresh(self) -> Run:
        """Read it again."""
        self._run = run_sync(self._home.verbs.get(self.id))
        return self._run

    def wait(self, timeout: float | None = None) -> R:
        """Its result when it has ended; RunFailed when it did not succeed, TimeoutError when it takes longer."""
        for pause in pauses(self._home.verbs.clock, timeout, lambda: f"Run {self.id} is still {self.state}"):
            if self.refresh().state in ENDED:
                break
            nap(pause)
        return self.result

    def cancel(self, reason: str | None = None) -> Run:
        """Cancel it at once if it waits, or make its worker stop it."""
        return run_sync(self._home.verbs.cancel(self.id, reason=reason))

    def move(
        self,
        *,
        place: int | None = None,
        to: Literal["top", "bottom"] | None = None,
        before: Handle[Any] | str | None = None,
        after: Handle[Any] | str | None = None,
    ) -> Run:
        """Give it another place in its queue while it waits: the n-th from 0, the "top" or "bottom", or next to another run."""
        ids = [other.id if isinstance(other, BaseHandle) else other for other in (before, after)]
        return run_sync(self._home.verbs.move(self.id, place=place, to=to, before=ids[0], after=ids[1]))

    def rerun(self) -> Handle[R]:
        """A new run with the same payload, once this one has ended."""
        created = run_sync(self._home.verbs.rerun(self.id))
        return Handle(self._home, self.job, self._read, created.id)

    def attempts(self) -> list[Attempt]:
        """All its attempts, oldest first."""
        return run_sync(self._home.verbs.attempts(self.id))

    def logs(self) -> list[LogLine]:
        """Its log lines."""
        return run_sync(all_lines(self._home.verbs, self.id))

    def steps(self) -> dict[str, Any]:
        """The results of its completed steps, by their keys."""
        return {step.key: step.value for step in run_sync(self._home.verbs.steps(self.id))}

    def why(self) -> list[Reason]:
        """What blocks it now."""
        return run_sync(self._home.verbs.why(self.id))


class GroupDraft(BaseDraft):
    """A group that is not stored yet, for synchronous code."""

    def enqueue(self, *, connection: Any = None) -> GroupHandle:
        """Store the group with all its runs, or nothing."""
        return GroupHandle(self._home, run_sync(self._home.store_group(self._new(), connection)))


class GroupHandle(BaseGroupHandle):
    """A group, for synchronous code."""

    __slots__ = ()

    def status(self) -> Group:
        """Its current status, and how many of its runs have ended in which state."""
        self.record = run_sync(self._home.verbs.get_group(self.id))
        return self.record

    def wait(self, timeout: float | None = None) -> Group:
        """The group when all its runs have ended, in whatever state; TimeoutError when it takes longer."""
        for pause in pauses(self._home.verbs.clock, timeout, lambda: f"Group {self.id} is still running"):
            if self.status().finished_at is not None:
                break
            nap(pause)
        return self.record

    def members(self) -> list[Run]:
        """Its current runs, in the order in which they were added."""
        verbs, runs = self._home.verbs, list[Run]()
        while more := run_sync(verbs.members(self.id, after=runs[-1].id if runs else None, count=verbs.limits.page)):
            runs += more
        return runs

    def cancel(self, reason: str | None = None) -> Group:
        """Cancel those of its runs that have not ended."""
        return run_sync(self._home.verbs.cancel_group(self.id, reason=reason))

    def rerun(self) -> GroupHandle:
        """A new group with the same runs, once this one has ended."""
        return GroupHandle(self._home, run_sync(self._home.verbs.rerun_group(self.id)))


class Job(Definition[P, R]):
    """A job of an App."""

    app: App

    def enqueue(self, *arguments: P.args, **keywords: P.kwargs) -> Handle[R]:
        """Store a run; it is durable when this returns. The arguments are those of the function."""
        return self.app.enqueue_one(self.new(*arguments, **keywords))


class JobMaker(Protocol):
    """The type of `@app.job(...)`: a checker gets the function's arguments, without the context, and its result."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class ScheduleMaker(Protocol):
    """The type of `@app.cron(...)`: it takes a job, or a function that becomes one."""

    @overload
    def __call__(self, job: Job[P, R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, job: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, job: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, job: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, job: Callable[P, R], /) -> Job[P, R]: ...


class App(Working):
    """Jobs, and the store of their runs, for synchronous code; threads may share it."""

    _job = Job

    def job(
        self,
        *function: Never,
        kind: Kind | None = None,
        memory_limit: int | None = None,
        recycle: int = RECYCLE,
        **options: Unpack[JobOptions],
    ) -> JobMaker:
        """Make a function a job. `async def` runs in the worker's loop, a plain function in a thread, kind='process' in a process."""
        return self._job_maker(function, options, kind, memory_limit, recycle)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        environment: dict[str, str] | None = None,
        memory_limit: int | None = None,
        **options: Unpack[CommandOptions],
    ) -> Job[..., Any]:
        """Make a command a job. It gets the payload as JSON on standard input, or in place of an argument {payload}."""
        return self._add(from_command(Job[..., Any], self, name, argv, options, cwd, environment, memory_limit))

    def define(
        self,
        name: str,
        *,
        handler: Job[..., R] | str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[DefinitionOptions],
    ) -> Job[..., R]:
        """Make another job that the handler of a job executes: with options, limits and pauses of its own.

        Members of `payload` hold for all of its runs that do not give them themselves.
        """
        return self._add(from_job(Job[..., R], self, name, self._handled(handler), payload or {}, options))

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> ScheduleMaker:
        """Schedule a job by a cron expression: `@app.cron("0 3 * * *", zone="Europe/Paris")`, on a job or on a function."""
        check_rule("cron", expression, options)
        return self._schedule_maker(options, cron=expression)

    def every(self, interval: str | Duration, **options: Unpack[ScheduleOptions]) -> ScheduleMaker:
        """Schedule a job at an interval: `@app.every("15m")`, on a job or on a function."""
        check_rule("interval", interval, options)
        return self._schedule_maker(options, every=interval)

    def schedule(
        self,
        job: Job[..., Any] | str,
        *,
        cron: str | None = None,
        every: str | Duration | None = None,
        at: datetime | str | None = None,
        new: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule now; the same key again updates it, or raises with `new`."""
        return run_sync(self._schedule(self.verbs, planned(self._known(job), cron=cron, every=every, at=at, options=options), new=new))

    def enqueue(self, job: str, payload: Any = None, *, connection: Any = None, **options: Unpack[RunOptions]) -> Handle[Any]:
        """Store a run of a job by its name; the job may be defined elsewhere."""
        return self.enqueue_one(self._by_name(job, payload, options), connection=connection)

    def enqueue_one(self, new: NewRun, *, connection: Any = None) -> Handle[Any]:
        """Store a run made by `job.new(...)`."""
        handles: list[Handle[Any]] = run_sync(self._enqueued(Handle, [new], connection))
        return handles[0]

    def enqueue_many(self, news: Iterable[NewRun], *, connection: Any = None) -> list[Handle[Any]]:
        """Store runs made by `job.new(...)`, in chunks of 10,000, each completely or not at all."""
        handles: list[Handle[Any]] = []
        for slice_ in self._slices(news):
            handles += run_sync(self._enqueued(Handle, slice_, connection))
        return handles

    @contextlib.contextmanager
    def transaction(self, connection: Any = None) -> Iterator[None]:
        """Store the runs enqueued in the block together at its end, or none if it raises.

        With your own psycopg connection, the runs become part of your transaction instead, and exist when you commit.
        """
        with self._block(connection) as block:
            yield
        run_sync(self._end(block))

    def group(self, name: str | None = None, *, on_failure: OnFailure = "stop", callback: NewRun | None = None) -> GroupDraft:
        """A group to add runs to, which may wait for each other: `a = group.add(...)`, `group.add(..., after=[a])`."""
        return GroupDraft(self, name, on_failure, callback)

    def chain(
        self, runs: Iterable[NewRun], *, name: str | None = None, on_failure: OnFailure = "stop", callback: NewRun | None = None
    ) -> GroupHandle:
        """Store runs made by `job.new(...)` as a group in which each starts when the previous one has ended."""
        return GroupHandle(self, run_sync(self.store_group(new_group("sequential", runs, name, on_failure, callback), None)))

    def parallel(self, runs: Iterable[NewRun], *, name: str | None = None, callback: NewRun | None = None) -> GroupHandle:
        """Store runs made by `job.new(...)` as a group without dependencies; the callback starts when all have ended."""
        return GroupHandle(self, run_sync(self.store_group(new_group("parallel", runs, name, "stop", callback), None)))

    def find_group(self, group_id: str) -> GroupHandle:
        """The group with this id."""
        return GroupHandle(self, run_sync(self.verbs.get_group(group_id)))

    def pause(self, *, queue: str | None = None, job: str | None = None, everything: bool = False, reason: str | None = None) -> Pause:
        """Pause a queue, a job, or everything until it is resumed: no runs are claimed, and running ones continue."""
        return run_sync(self.verbs.pause(*paused(queue, job, everything), reason=reason))

    def resume(self, *, queue: str | None = None, job: str | None = None, everything: bool = False) -> bool:
        """Resume what was paused; False when it was not paused."""
        return run_sync(self.verbs.resume(*paused(queue, job, everything)))

    @contextlib.contextmanager
    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> Iterator[HeldSlot]:
        """Hold the next slot of a resource for the block: after running runs and earlier calls, ahead of every queue.

        No running run is interrupted, and no run is created. Timeout when it is not free in time; LeaseLost at the end of the
        block when it was lost meanwhile, which `slot.lost` shows inside.
        """
        with on_thread(run_sync(self._line(resource)), self._call(resource, key, weight, timeout, lease)) as slot:
            yield slot

    def run(self, run_id: str) -> Handle[Any]:
        """The run with this id."""
        record = run_sync(self.verbs.get(run_id))
        return Handle(self, record.job, self._reader(record.job), record.id)

    def runs(
        self,
        *,
        cursor: str | None = None,
        count: int = 100,
        **filters: Unpack[RunFilters],
    ) -> Page:
        """A page of runs that match all of these filters, newest first unless all are queued, scheduled or ended."""
        return run_sync(self.verbs.runs(cursor=cursor, count=count, **filters))

    def work(self, *, burst: bool = False, **settings: Unpack[WorkerOptions]) -> bool:
        """Work until a signal stops it, or, with `burst`, until nothing is queued; returns whether the process needs a restart.

        Takes what `worker` takes.
        """
        return drive(self._work(burst, settings))

    def close(self) -> None:
        """Close the store; it reopens when it is needed."""
        run_sync(self._close())

    def __enter__(self) -> App:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
