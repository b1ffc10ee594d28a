"""The verbs on the caller's thread, a worker in the background, and direct calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from windlass import payload as json
from windlass.app.jobs import Definition, Kind
from windlass.dialects.facades import Facade, Location, method
from windlass.dialects.guards.background import Background
from windlass.dialects.guards.errors import InvalidOperationError, InvalidValueError, ReservationConflictError
from windlass.dialects.guards.records import RecoveryStats, SchedulerStatus
from windlass.dialects.guards.rules import check_params, check_resources, check_seconds, options_of, valid
from windlass.dialects.guards.sending import sender_of, sending
from windlass.dialects.guards.settings import RESOURCE, Settings
from windlass.dialects.guards.verbs import SchedulerVerbs
from windlass.dialects.guards.words import is_terminal
from windlass.engine import Engine
from windlass.errors import Timeout
from windlass.model import LIFE_TAG, Life, Limits, Options
from windlass.slots import direct_call, on_thread
from windlass.store.base import run_sync
from windlass.worker.context import Call, Context, Unstored
from windlass.worker.lives import own_process

F = TypeVar("F", bound=Callable[..., Any])

_LOG = logging.getLogger("windlass.dialects.guards")

GRACE = 30.0
"""Seconds that running jobs have to end when the scheduler stops."""


class Scheduler(Facade[SchedulerVerbs]):
    """A scheduler over the store at an address, or over that of an app, whose jobs it can execute too.

    A context manager, which stops what it has started, and closes a store that it has opened.
    """

    def __init__(self, store: Location | None = None, *, settings: Settings | None = None) -> None:
        super().__init__(store)
        self.settings = settings or Settings()
        self._own: set[str] = set()  # job types whose handlers were given here
        self._prepared: set[str] = set()
        self._background: Background | None = None
        self._engine: Engine | None = None
        process = own_process()
        self._life = None if process is None else Life(self._app.clock.nonce()[:LIFE_TAG], process)

    @property
    def verbs(self) -> SchedulerVerbs:
        engine = self._app.engine
        if engine is not self._engine:  # it was opened just now, or opened again
            if (rules := sender_of(self._app, engine)) is not None:
                engine.deliver_by(rules)
            self._engine, self._prepared = engine, set()
        verbs = SchedulerVerbs(engine, self.settings, life=self._life)
        if self._app.jobs.keys() - self._prepared:
            run_sync(self._prepare(verbs))
        return verbs

    async def _prepare(self, verbs: SchedulerVerbs) -> None:
        """Store a template for each handler that has none. One that is stored may have been edited, so it stays."""
        names = set(self._app.jobs)
        await verbs.provide()
        records = [await verbs.engine.find_job(name) for name in sorted(self._own)]
        await self._app.store_definitions(keep=[record.name for record in records if record is not None and record.handler is not None])
        self._prepared = names

    # Handlers

    def handler(
        self, job_type: str, *, kind: Kind | None = None, timeout: float | None = None, resources: Sequence[str] = ()
    ) -> Callable[[F], F]:
        """Make a function the handler of a job type, and of every template with that type: `@scheduler.handler("story")`.

        The params of a job are its arguments. Its first parameter may be a `windlass.Context`.
        """
        check_resources(resources, self.settings)
        rules = options_of(Options(), self.settings, resources)
        treatment: dict[str, Any] = {} if timeout is None else {"timeout": timeout}

        def add(function: F) -> F:
            self._app.job(
                name=job_type,
                kind=kind,
                queue=self.settings.queue,
                max_attempts=rules.max_attempts or 1,
                backoff=[delay / 1000 for delay in rules.backoff or ()],
                retry_place="tail",
                uses=list(rules.uses or ()),
                **treatment,
            )(function)
            self._own.add(job_type)
            if self._background is not None and self._background.running:
                _LOG.warning("The scheduler runs already: it will execute jobs of the type %r after its next start.", job_type)
            return function

        return add

    def execute_direct(
        self, job_type: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None, wait: bool = True
    ) -> Any:
        """Execute a handler here, in the next slot: after running jobs and earlier direct calls, before every queued job.

        No job is created.

        Timeout when the slot is not free within so many seconds; ReservationConflictError, without `wait`, when it is not free at once.
        What the handler raises is raised.
        """
        call = self._call(job_type, check_params(params))
        verbs, seconds = self.verbs, None if timeout is None else check_seconds(timeout, "timeout")
        request = direct_call(RESOURCE, key=None, weight=1, timeout=seconds if wait else 0, lease=None, actor=_actor())
        with ExitStack() as stack:
            try:
                stack.enter_context(on_thread(verbs.engine, request))
            except Timeout as error:
                if wait:
                    raise
                raise ReservationConflictError("Another caller has the next slot.") from error
            return call()

    def _call(self, job_type: Any, params: dict[str, Any]) -> Callable[[], Any]:
        job: Definition[..., Any] | None = self._app.jobs.get(job_type) if isinstance(job_type, str) else None
        if job is None or job.handler.call is None or job.signature is None:
            raise InvalidOperationError(
                f"There is no handler for {job_type!r:.80} here.", hint="Give it one: @scheduler.handler(...). A command has none."
            )
        try:
            with valid("params"):
                text = json.encode(job.signature.payload((), params), limit=Limits().payload, what="params")
        except TypeError as error:
            raise InvalidValueError("params", f"The params do not fit {job_type!r:.80}: {error}.") from error
        clock, function = self._app.clock, job.handler.call
        context = Context(Call("direct", job_type, 1, clock.nonce(), text, 1, 0, clock.now()), Unstored())

        def call() -> Any:
            result = function(context)
            return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

        return call

    # The scheduler

    def start(self, run_recovery: bool = True) -> RecoveryStats | None:
        """Execute jobs in the background, one at a time, until `stop`; returns what was recovered. One that runs already goes on.

        Recovered are the jobs of schedulers that have ended on this machine without notice: FAILED, and retried by their rule.
        """
        if self._background is not None and self._background.running:
            return None
        verbs = self.verbs
        stats = run_sync(verbs.recover()) if run_recovery else None
        worker = partial(self._app.worker, queues=[self.settings.queue], slots=self.settings.capacity, grace=GRACE)
        self._background = Background(worker, partial(sending, self._app))
        self._background.start()
        return stats

    def stop(self, timeout: float = GRACE) -> None:
        """Begin no further job, and wait for those that run; one that has not ended in time is given back to the queue."""
        timeout = check_seconds(timeout, "timeout")
        background, self._background = self._background, None
        if background is not None:
            background.stop(timeout)

    def run(self, timeout: float = GRACE) -> None:
        """Start, and stop at SIGTERM or Ctrl-C; for the main thread of a program that does nothing else."""
        check_seconds(timeout, "timeout")
        stopped = threading.Event()
        before = {kind: signal.signal(kind, lambda *_: stopped.set()) for kind in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            stopped.wait()
        finally:
            self.stop(timeout)
            for kind, former in before.items():
                signal.signal(kind, former)

    def status(self) -> SchedulerStatus:
        """What this scheduler does, and what was executed in its queue."""
        return run_sync(self.verbs.status(running=self._background is not None and self._background.running))

    def close(self) -> None:
        """Stop, and close the store, unless it is an app's."""
        self.stop()
        super().close()

    is_terminal = staticmethod(is_terminal)

    create_template = method(SchedulerVerbs.create_template)
    get_template = method(SchedulerVerbs.get_template)
    list_templates = method(SchedulerVerbs.list_templates)
    update_template = method(SchedulerVerbs.update_template)
    create_schedule = method(SchedulerVerbs.create_schedule)
    get_schedule = method(SchedulerVerbs.get_schedule)
    list_schedules = method(SchedulerVerbs.list_schedules)
    update_schedule = method(SchedulerVerbs.update_schedule)
    delete_schedule = method(SchedulerVerbs.delete_schedule)
    create_job = method(SchedulerVerbs.create_job)
    load_job = method(SchedulerVerbs.load_job)
    list_jobs = method(SchedulerVerbs.list_jobs)
    update_job = method(SchedulerVerbs.update_job)
    dispatch_job = method(SchedulerVerbs.dispatch_job)
    cancel_job = method(SchedulerVerbs.cancel_job)
    load_jobrun = method(SchedulerVerbs.load_jobrun)
    list_jobruns = method(SchedulerVerbs.list_jobruns)
    update_jobrun = method(SchedulerVerbs.update_jobrun)
    retry_run = method(SchedulerVerbs.retry_run)
    create_group = method(SchedulerVerbs.create_group)
    load_group = method(SchedulerVerbs.load_group)
    list_groups = method(SchedulerVerbs.list_groups)
    cancel_group = method(SchedulerVerbs.cancel_group)
    compute_group_status = method(SchedulerVerbs.compute_group_status)


async def _awaited(result: Any) -> Any:
    return await result


def _actor() -> str:
    return f"{socket.gethostname()[:64]}.{os.getpid()}"
