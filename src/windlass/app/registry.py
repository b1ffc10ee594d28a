"""The jobs, schedules and resources of an app's code; each is stored before it is first used."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from windlass.app.jobs import D, Definition, Kind, from_function
from windlass.app.opening import Opening
from windlass.app.options import (
    Duration,
    JobOptions,
    Uses,
    uses_of,
)
from windlass.app.resources import DeclaredResource, declared
from windlass.app.schedules import PlannedSchedule, ScheduleOptions, planned
from windlass.clock import Clock
from windlass.errors import BadInput, Forbidden
from windlass.model import Limits, Options, Rate, Schedule
from windlass.slots import SlotRequest, direct_call

if TYPE_CHECKING:
    from windlass.api.verbs import Verbs

_LOG = logging.getLogger("windlass.app")

RECYCLE = 100  # runs after which a handler's process is replaced


class Registry(Opening):
    """The jobs, schedules and resources of an app."""

    _job: type[Definition[..., Any]]

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        uses: Uses | None = None,
    ) -> None:
        super().__init__(store, clock, limits)
        self.jobs: dict[str, Definition[..., Any]] = {}
        self.planned: dict[str, PlannedSchedule] = {}  # schedules defined by code, by key
        self.resources: dict[str, DeclaredResource] = {}  # named by code
        self._uses = () if uses is None else uses_of(uses)  # by every job, beside its own uses

    def _add(self, job: D) -> D:
        if job.name in self.jobs:
            raise BadInput(f"There are two jobs called {job.name!r}.", hint="Give one of them another name: @app.job(name='...').")
        self.jobs[job.name] = job
        return job

    def _handled(self, handler: Definition[..., Any] | str) -> Definition[..., Any]:
        """The job of this app whose handler another job names."""
        job = self._known(handler)
        if isinstance(job, str):
            raise BadInput(f"This app has no job {job!r}.", hint="Define the job with the function first, and name it here.")
        return job

    # Creating jobs and schedules: the two apps differ in the kind of job and in its types

    def _job_maker(
        self, bare: tuple[Any, ...], options: JobOptions, kind: Kind | None, memory_limit: int | None, recycle: int
    ) -> Callable[[Any], Any]:
        if bare:
            raise BadInput("@app.job was written without its parentheses.", hint="Write @app.job().")
        return lambda function: self._add(from_function(self._job, self, function, options, kind, memory_limit, recycle))

    def _schedule_maker(
        self, options: ScheduleOptions, *, cron: str | None = None, every: str | Duration | None = None
    ) -> Callable[[Any], Any]:
        def make(job: Any) -> Any:
            definition = job if isinstance(job, Definition) else self._job_maker((), {}, None, None, RECYCLE)(job)
            self._plan(planned(definition, cron=cron, every=every, at=None, options=options))
            return definition

        return make

    def _plan(self, plan: PlannedSchedule) -> None:
        if plan.key in self.planned:
            raise BadInput(f"There are two schedules with the key {plan.key!r}.", hint="Give one of them another: key='...'.")
        self.planned[plan.key] = plan

    def _known(self, job: Definition[..., Any] | str) -> Definition[..., Any] | str:
        return self.jobs.get(job, job) if isinstance(job, str) else job

    async def _schedule(self, engine: Verbs, plan: PlannedSchedule, *, by_code: bool = False, new: bool = False) -> Schedule:
        await self._define(engine, {plan.job} - self._defined)
        return await engine.schedule(plan.key, plan.job, **plan.words, by_code=by_code, new=new)

    # Limits

    def resource(
        self,
        name: str,
        *,
        capacity: int | None = None,
        rates: str | Rate | Iterable[str | Rate] = (),
        max_wait: Duration | None = None,
        set: bool = False,
    ) -> None:
        """Define a resource that jobs use: `app.resource("ollama", capacity=1)`, `app.resource("api", rates=["5/second"])`.

        It is stored when the app first needs it. An existing one stays as it is, because an operator may have changed it since; with
        `set` it is set again at every start.
        """
        if name in self.resources:
            raise BadInput(f"There are two resources called {name!r}.", hint="Define it in one call.")
        self.resources[name] = declared(name, capacity, rates, max_wait, set)

    async def _declare(self, engine: Verbs, names: Iterable[str]) -> None:
        """Store these resources, once per process."""
        for name in names:
            if name in self.resources and name not in self._declared:
                options = self.resources[name]
                store = engine.set_resource if options.over else engine.add_resource
                resource = await store(name, capacity=options.capacity, rates=options.rates, max_wait=options.max_wait)
                if not options.is_like(resource):
                    _LOG.warning("Resource %r has other settings than in the code, and keeps them: see `windlass resources set`.", name)
                self._declared.add(name)

    async def _line(self, resource: str) -> Verbs:
        """Where direct calls reserve slots of a resource, once it is stored."""
        with contextlib.suppress(Forbidden):  # a token that may only create runs need not store an existing one
            await self._declare(self.verbs, [resource])
        return self.verbs

    def _call(self, resource: str, key: str | None, weight: int, timeout: Duration | None, lease: Duration | None) -> SlotRequest:
        actor = f"{socket.gethostname()[:64]}.{os.getpid()}"
        return direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease, actor=actor)

    # Definitions

    async def _define(self, engine: Verbs, names: Iterable[str]) -> None:
        """Store the definitions of these jobs, once per process, and before them the resources that they may use."""
        for name in names:
            if name in self.jobs and name not in self._defined:
                await self._declare(engine, self.resources)
                job = self.jobs[name]
                if not job.has_own_handler:  # which must be there before another job may have it
                    await self._define(engine, [job.handler.name])
                how: dict[str, Any] = {} if job.has_own_handler else {"handler": job.handler.name, "payload": job.template}
                try:
                    schema = job.code.schema if job.code else None
                    await engine.define(name, options=self._options(job.defaults), schema=schema, description=job.description, **how)
                except Forbidden as refused:  # the stored definition stays; its runs can be created and executed
                    _LOG.warning("Job %r keeps another definition than the code's: %s %s", name, refused, refused.hint)
                self._defined.add(name)

    async def store_definitions(self, *, keep: Iterable[str] = ()) -> None:
        """Store the definitions of all jobs now, as a worker does at its start; those of the jobs named by `keep` stay as they are."""
        verbs = self.verbs
        self._defined |= set(keep)
        await self._define(verbs, self.jobs)

    def _options(self, own: Options) -> Options:
        """The options of a job, with the uses of every job of this app."""
        keywords = {use.resource for use in own.uses or ()}
        common = [use for use in self._uses if use.resource not in keywords]
        return replace(own, uses=(*(own.uses or ()), *common)) if common else own
