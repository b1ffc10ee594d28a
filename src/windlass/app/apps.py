"""`AsyncApp`: jobs, runs, groups, schedules and workers for coroutines. `App` is generated from it (`windlass.app.blocking`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Never, Unpack

from windlass.answers import Page, RunFilters
from windlass.app.groups import AsyncGroupDraft, AsyncGroupHandle, new_group
from windlass.app.handles import AsyncHandle
from windlass.app.jobs import AsyncJob, AsyncJobMaker, Kind, R, from_command, from_job
from windlass.app.options import (
    CommandOptions,
    DefinitionOptions,
    Duration,
    JobOptions,
    RunOptions,
    WorkerOptions,
)
from windlass.app.registry import RECYCLE
from windlass.app.resources import paused
from windlass.app.schedules import AsyncScheduleMaker, ScheduleOptions, check_rule, planned
from windlass.app.working import AsyncWorking
from windlass.model import NewRun, OnFailure, Pause, Schedule
from windlass.slots import HeldSlot, in_loop


class AsyncApp(AsyncWorking):
    """Jobs, and the store of their runs, for the coroutines of one event loop: methods that use the store are awaited."""

    _job = AsyncJob

    def job(
        self,
        *function: Never,
        kind: Kind | None = None,
        memory_limit: int | None = None,
        recycle: int = RECYCLE,
        **options: Unpack[JobOptions],
    ) -> AsyncJobMaker:
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
    ) -> AsyncJob[..., Any]:
        """Make a command a job. It gets the payload as JSON on standard input, or in place of an argument {payload}."""
        return self._add(from_command(AsyncJob[..., Any], self, name, argv, options, cwd, environment, memory_limit))

    def define(
        self,
        name: str,
        *,
        handler: AsyncJob[..., R] | str,
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[DefinitionOptions],
    ) -> AsyncJob[..., R]:
        """Make another job that the handler of a job executes: with options, limits and pauses of its own.

        Members of `payload` hold for all of its runs that do not give them themselves.
        """
        return self._add(from_job(AsyncJob[..., R], self, name, self._handled(handler), payload or {}, options))

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> AsyncScheduleMaker:
        """Schedule a job by a cron expression: `@app.cron("0 3 * * *", zone="Europe/Paris")`, on a job or on a function."""
        check_rule("cron", expression, options)
        return self._schedule_maker(options, cron=expression)

    def every(self, interval: str | Duration, **options: Unpack[ScheduleOptions]) -> AsyncScheduleMaker:
        """Schedule a job at an interval: `@app.every("15m")`, on a job or on a function."""
        check_rule("interval", interval, options)
        return self._schedule_maker(options, every=interval)

    async def schedule(
        self,
        job: AsyncJob[..., Any] | str,
        *,
        cron: str | None = None,
        every: str | Duration | None = None,
        at: datetime | str | None = None,
        new: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule now; the same key again updates it, or raises with `new`."""
        return await self._schedule(self.verbs, planned(self._known(job), cron=cron, every=every, at=at, options=options), new=new)

    async def enqueue(self, job: str, payload: Any = None, *, connection: Any = None, **options: Unpack[RunOptions]) -> AsyncHandle[Any]:
        """Store a run of a job by its name; the job may be defined elsewhere."""
        return await self.enqueue_one(self._by_name(job, payload, options), connection=connection)

    async def enqueue_one(self, new: NewRun, *, connection: Any = None) -> AsyncHandle[Any]:
        """Store a run made by `job.new(...)`."""
        handles: list[AsyncHandle[Any]] = await self._enqueued(AsyncHandle, [new], connection)
        return handles[0]

    async def enqueue_many(self, news: Iterable[NewRun], *, connection: Any = None) -> list[AsyncHandle[Any]]:
        """Store runs made by `job.new(...)`, in chunks of 10,000, each completely or not at all."""
        handles: list[AsyncHandle[Any]] = []
        for slice_ in self._slices(news):
            handles += await self._enqueued(AsyncHandle, slice_, connection)
        return handles

    @contextlib.asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[None]:
        """Store the runs enqueued in the block together at its end, or none if it raises.

        With your own psycopg connection, the runs become part of your transaction instead, and exist when you commit.
        """
        with self._block(connection) as block:
            yield
        await self._end(block)

    def group(self, name: str | None = None, *, on_failure: OnFailure = "stop", callback: NewRun | None = None) -> AsyncGroupDraft:
        """A group to add runs to, which may wait for each other: `a = group.add(...)`, `group.add(..., after=[a])`."""
        return AsyncGroupDraft(self, name, on_failure, callback)

    async def chain(
        self, runs: Iterable[NewRun], *, name: str | None = None, on_failure: OnFailure = "stop", callback: NewRun | None = None
    ) -> AsyncGroupHandle:
        """Store runs made by `job.new(...)` as a group in which each starts when the previous one has ended."""
        return AsyncGroupHandle(self, await self.store_group(new_group("sequential", runs, name, on_failure, callback), None))

    async def parallel(self, runs: Iterable[NewRun], *, name: str | None = None, callback: NewRun | None = None) -> AsyncGroupHandle:
        """Store runs made by `job.new(...)` as a group without dependencies; the callback starts when all have ended."""
        return AsyncGroupHandle(self, await self.store_group(new_group("parallel", runs, name, "stop", callback), None))

    async def find_group(self, group_id: str) -> AsyncGroupHandle:
        """The group with this id."""
        return AsyncGroupHandle(self, await self.verbs.get_group(group_id))

    async def pause(
        self, *, queue: str | None = None, job: str | None = None, everything: bool = False, reason: str | None = None
    ) -> Pause:
        """Pause a queue, a job, or everything until it is resumed: no runs are claimed, and running ones continue."""
        return await self.verbs.pause(*paused(queue, job, everything), reason=reason)

    async def resume(self, *, queue: str | None = None, job: str | None = None, everything: bool = False) -> bool:
        """Resume what was paused; False when it was not paused."""
        return await self.verbs.resume(*paused(queue, job, everything))

    @contextlib.asynccontextmanager
    async def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AsyncIterator[HeldSlot]:
        """Hold the next slot of a resource for the block: after running runs and earlier calls, ahead of every queue.

        No running run is interrupted, and no run is created. Timeout when it is not free in time; LeaseLost at the end of the
        block when it was lost meanwhile, which `slot.lost` shows inside.
        """
        async with in_loop(await self._line(resource), self._call(resource, key, weight, timeout, lease)) as slot:
            yield slot

    async def run(self, run_id: str) -> AsyncHandle[Any]:
        """The run with this id."""
        record = await self.verbs.get(run_id)
        return AsyncHandle(self, record.job, self._reader(record.job), record.id)

    async def runs(
        self,
        *,
        cursor: str | None = None,
        count: int = 100,
        **filters: Unpack[RunFilters],
    ) -> Page:
        """A page of runs that match all of these filters, newest first unless all are queued, scheduled or ended."""
        return await self.verbs.runs(cursor=cursor, count=count, **filters)

    async def work(self, *, burst: bool = False, **settings: Unpack[WorkerOptions]) -> bool:
        """Work until a signal stops it, or, with `burst`, until nothing is queued; returns whether the process needs a restart.

        Takes what `worker` takes.
        """
        return await self._work(burst, settings)

    async def close(self) -> None:
        """Close the store; it reopens when it is needed."""
        await self._close()

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
