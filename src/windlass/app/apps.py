"""`App` and `AsyncApp`: what a user imports. The same names in both; one works on the caller's thread, the other in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Never, TypeVar, Unpack

from msgspec.structs import replace

from windlass import payload
from windlass.app.groups import AsyncGroupDraft, AsyncGroupHandle, GroupDraft, GroupHandle, new_group
from windlass.app.handles import AsyncHandle, H, Handle
from windlass.app.jobs import AsyncJob, AsyncJobMaker, D, Definition, Job, JobMaker, Kind, from_command, from_function
from windlass.app.options import (
    CommandOptions,
    Duration,
    JobOptions,
    RunOptions,
    Uses,
    WorkerOptions,
    milliseconds,
    new_run,
    refuse_unknown,
    uses_of,
)
from windlass.app.resources import Declared, declared, paused
from windlass.app.schedules import AsyncScheduleMaker, Planned, ScheduleMaker, ScheduleOptions, check_rule, planned
from windlass.clock import Clock, SystemClock
from windlass.config import MEMORY, SLOTS, Settings, load, located, open_engine, open_hub, open_store, shown, solvers_of
from windlass.engine import Engine, Page
from windlass.errors import BadInput, Forbidden
from windlass.model import Created, Group, Limits, NewGroup, NewRun, OnFailure, Options, Pause, Rate, Schedule, State, WorkerInfo
from windlass.slots import Call, HeldSlot, direct_call, in_loop, on_thread
from windlass.store.base import Store, run_sync
from windlass.worker import Worker, host
from windlass.worker.lives import own_process
from windlass.worker.loop import GRACE, LEASE

T = TypeVar("T")

_LOG = logging.getLogger("windlass.app")

DEFAULT_STORE = "windlass.db"
HUB_TO_START = 3600.0  # seconds that a worker waits for a hub before it has told its jobs
BESIDE = 200  # bytes of a creation in a request, beside its payload
RECYCLE = 100  # after so many a handler's process is replaced
SWITCH_INTERVAL = 0.0001
"""Seconds after which Python lets another thread run: the writer gives up its turn with every statement, and must get it back soon."""

_SHARING = {
    "postgres": "Give a psycopg 3 connection to this very database; SQLAlchemy, with postgresql+psycopg, has it as "
    "connection.connection.driver_connection. Or enqueue after your own commit.",
    "sqlite": "No connection to a SQLite file can be shared: two SQLite libraries on one file break each other's locks. "
    "Use app.transaction(), or enqueue after your own commit.",
    "hub": "Through a hub no run can be part of a transaction of yours. Enqueue after your own commit.",
}
"""What to do instead, where runs are to be enqueued on a connection that cannot be shared."""

_CARRIED: list[Engine] = []  # opened before a fork: never used here, and never closed, because they are the parent's


class Block:
    """A transaction's block: runs that are stored together at its end, or the caller's connection that they go to at once."""

    def __init__(self, engine: Engine | None) -> None:
        self.engine, self.open = engine, True  # a task begun inside may go on after its end
        self.news: list[NewRun] = []
        self.handles: list[Any] = []


class Base:
    """What both apps share."""

    _blocking = True
    _job: type[Definition[..., Any]]

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        uses: Uses | None = None,
    ) -> None:
        self._said_store = None if store is None else os.fspath(store)
        self.clock: Clock = clock or SystemClock()
        self.limits = limits or Limits()
        self.jobs: dict[str, Definition[..., Any]] = {}
        self.planned: dict[str, Planned] = {}  # schedules that code defines, by key
        self.resources: dict[str, Declared] = {}  # that code names
        self._uses = () if uses is None else uses_of(uses)  # by every job, beside what it says itself
        self._defined: set[str] = set()
        self._declared: set[str] = set()
        self._opening, self._pid = threading.Lock(), 0
        self._opened: Engine | None = None
        self._under_test = False
        self._within: ContextVar[Block | None] = ContextVar("windlass_transaction", default=None)

    @property
    def address(self) -> str:
        """Where the runs are kept: what was said, else WINDLASS_HUB or WINDLASS_STORE, else windlass.toml, else windlass.db."""
        return self._said_store or (set_ := load()).hub or set_.store or DEFAULT_STORE

    @property
    def engine(self) -> Engine:
        """The verbs below; opened when first asked for, and anew in a forked process (on SQLite: if it was closed before the fork)."""
        if self._opened is None or self._pid != os.getpid():
            with self._opening:
                if self._opened is not None and self._pid != os.getpid():
                    _CARRIED.append(self._opened)
                    self._opened = None
                if self._opened is None:
                    blocking = self._blocking or self._in_memory()
                    settings = Settings() if self._under_test else load()  # a test goes by its own limits, not by a file that lies near it
                    self._opened = open_engine(settings, self.address, self.clock, blocking=blocking, limits=self.limits)
                    self._pid, self._defined, self._declared = os.getpid(), set(), set()
        return self._opened

    def _in_memory(self) -> bool:
        return located(self.address).place == MEMORY

    @contextlib.contextmanager
    def in_memory(self, clock: Clock, limits: Limits) -> Iterator[None]:
        """Work on an empty store in memory, by another clock, for the block, and as before afterwards: `windlass.testing` is made of it."""
        before = vars(self).copy()
        self._said_store, self.clock, self.limits = MEMORY, clock, limits
        self._opened, self._pid, self._defined, self._declared, self._under_test = None, 0, set(), set(), True
        try:
            yield
        finally:
            self._under_test = False
            run_sync(self._close())
            vars(self).update(before)

    async def _close(self) -> None:
        if self._under_test:  # what is tested may close the app, and the test look afterwards
            return
        opened, self._opened = self._opened, None
        if opened is not None and self._pid == os.getpid():
            await opened.close()

    def _add(self, job: D) -> D:
        if job.name in self.jobs:
            raise BadInput(f"There are two jobs called {job.name!r}.", hint="Give one of them another name: @app.job(name='...').")
        self.jobs[job.name] = job
        return job

    # Making jobs and schedules: the two apps differ in the kind of job, and in what a checker is told

    def _job_maker(
        self, bare: tuple[Any, ...], said: JobOptions, kind: Kind | None, memory_limit: int | None, recycle: int
    ) -> Callable[[Any], Any]:
        if bare:
            raise BadInput("@app.job was written without its parentheses.", hint="Write @app.job().")
        return lambda function: self._add(from_function(self._job, self, function, said, kind, memory_limit, recycle))

    def _schedule_maker(
        self, said: ScheduleOptions, *, cron: str | None = None, every: str | Duration | None = None
    ) -> Callable[[Any], Any]:
        def make(job: Any) -> Any:
            made = job if isinstance(job, Definition) else self._job_maker((), {}, None, None, RECYCLE)(job)
            self._plan(planned(made, cron=cron, every=every, at=None, said=said))
            return made

        return make

    def _plan(self, plan: Planned) -> None:
        if plan.key in self.planned:
            raise BadInput(f"There are two schedules with the key {plan.key!r}.", hint="Give one of them another: key='...'.")
        self.planned[plan.key] = plan

    def _known(self, job: Definition[..., Any] | str) -> Definition[..., Any] | str:
        return self.jobs.get(job, job) if isinstance(job, str) else job

    async def _schedule(self, engine: Engine, plan: Planned, *, by_code: bool = False, new: bool = False) -> Schedule:
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
        """Say how much there is of what jobs use: `app.resource("ollama", capacity=1)`, `app.resource("api", rates=["5/second"])`.

        It is stored when the app first needs it. What is set already stays, because somebody may have changed it since; with
        `set` it is set anew at every start.
        """
        if name in self.resources:
            raise BadInput(f"There are two resources called {name!r}.", hint="Say all of it in one call.")
        self.resources[name] = declared(name, capacity, rates, max_wait, set)

    async def _declare(self, engine: Engine, names: Iterable[str]) -> None:
        """Store these resources, once per process."""
        for name in names:
            if name in self.resources and name not in self._declared:
                said = self.resources[name]
                store = engine.set_resource if said.over else engine.add_resource
                found = await store(name, capacity=said.capacity, rates=said.rates, max_wait=said.max_wait)
                if not said.is_like(found):
                    _LOG.warning("Resource %r is set otherwise than the code says, and stays so: see `windlass resources set`.", name)
                self._declared.add(name)

    async def _line(self, resource: str) -> Engine:
        """Where direct calls for a resource stand in line, once it is stored."""
        with contextlib.suppress(Forbidden):  # a token that may only ask for work need not store what is there
            await self._declare(self.engine, [resource])
        return self.engine

    def _call(self, resource: str, key: str | None, weight: int, timeout: Duration | None, lease: Duration | None) -> Call:
        who = f"{socket.gethostname()[:64]}.{os.getpid()}"
        return direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease, who=who)

    # Creating

    async def _define(self, engine: Engine, names: Iterable[str]) -> None:
        """Store the definitions of these jobs, once per process, and before them the resources that they may use."""
        for name in names:
            if name in self.jobs and name not in self._defined:
                await self._declare(engine, self.resources)
                job = self.jobs[name]
                try:
                    await engine.define(name, options=self._options(job.defaults), schema=job.signature.schema if job.signature else None)
                except Forbidden as refused:  # what is stored stands; its runs can be asked for and executed
                    _LOG.warning("Job %r is not defined as the code says: %s %s", name, refused, refused.hint)
                self._defined.add(name)

    def _options(self, own: Options) -> Options:
        """What a job says, and what every job of this app uses."""
        named = {use.resource for use in own.uses or ()}
        common = [use for use in self._uses if use.resource not in named]
        return replace(own, uses=(*(own.uses or ()), *common)) if common else own

    async def _enqueued(self, handle: Callable[..., H], news: Sequence[NewRun], connection: Any = None) -> list[H]:
        """Handles of these runs, which are stored now or, inside a transaction's block, at its end."""
        reads = {name: self._reader(name) for name in {new.job for new in news}}
        block = self._collecting() if connection is None else None
        if block is None:
            created = await self._stored(news, connection)
            return [handle(self, new.job, reads[new.job], made.id, made.created) for new, made in zip(news, created, strict=True)]
        handles = [handle(self, new.job, reads[new.job]) for new in news]
        block.news += news
        block.handles += handles
        return handles

    def _reader(self, job: str) -> Callable[[str | None], Any] | None:
        return self.jobs[job].read if job in self.jobs else None

    def _collecting(self) -> Block | None:
        """The block that stores at its end what is enqueued now, if there is one."""
        block = self._within.get()
        return block if block is not None and block.open and block.engine is None else None

    async def _stored(self, news: Sequence[NewRun], connection: Any) -> list[Created]:
        await self._define(self.engine, {new.job for new in news} - self._defined)
        return await self._storing(connection).create(news)

    def _storing(self, connection: Any) -> Engine:
        """The engine that stores what is enqueued now: on the caller's connection, where there is one."""
        block = self._within.get()
        if connection is not None:
            return self._on(connection)
        return block.engine if block is not None and block.open and block.engine is not None else self.engine

    async def store_group(self, new: NewGroup, connection: Any) -> Group:
        """Store a group with all its runs, or nothing."""
        if connection is None and self._collecting() is not None:
            raise BadInput(
                "A group cannot wait for the end of a transaction's block.",
                hint="Enqueue it after the block; it is stored whole or not at all anyway.",
            )
        await self._define(self.engine, {member.run.job for member in new.members} | ({new.callback.job} if new.callback else set()))
        return await self._storing(connection).create_group(new)

    async def _end(self, block: Block) -> None:
        """Store what a block has collected, or leave it to the block around it."""
        if not block.news:
            return
        if (around := self._collecting()) is not None:
            around.news += block.news
            around.handles += block.handles
            return
        for handle, made in zip(block.handles, await self._stored(block.news, None), strict=True):
            handle.known(made.id, created=made.created)

    @contextlib.contextmanager
    def _block(self, connection: Any) -> Iterator[Block]:
        block = Block(None if connection is None else self._on(connection))
        before = self._within.set(block)
        try:
            yield block
        finally:
            block.open = False
            self._within.reset(before)

    def _on(self, connection: Any) -> Engine:
        """The engine on a connection of the caller's own."""
        if self._under_test:  # in memory there is nothing to join
            return self.engine
        if located(self.address).kind != "postgres" or not _of_psycopg(connection):
            raise BadInput(
                f"Runs in {shown(self.address)} cannot be enqueued on a {type(connection).__module__}.{type(connection).__qualname__}.",
                hint=_SHARING[located(self.address).kind],
            )
        if self._blocking and hasattr(connection, "__aenter__"):
            raise BadInput("An async connection cannot be used by App.", hint="Use AsyncApp, or a blocking connection.")
        from windlass.store.postgres import BorrowedPostgres

        return self.engine.on(BorrowedPostgres(connection))

    def _slices(self, news: Iterable[NewRun]) -> Iterator[list[NewRun]]:
        remaining = iter(news)
        while slice_ := list(islice(remaining, self.limits.create)):
            yield from self._parcels(slice_) if located(self.address).kind == "hub" else (slice_,)

    def _parcels(self, news: list[NewRun]) -> Iterator[list[NewRun]]:
        """The same in slices of which a hub takes each as one request."""
        from windlass.client.port import parcels

        for some in parcels(news, lambda new: BESIDE + len(payload.encode(new.payload, most=self.limits.payload).encode())):
            yield list(some)

    def _by_name(self, job: str, payload: Any, said: RunOptions) -> NewRun:
        known = self.jobs.get(job)
        if known is None or known.signature is None:
            return new_run(job, payload, said, self.clock.now())
        payload = known.signature.payload((), payload if payload is not None else {})
        return new_run(job, payload, said, self.clock.now(), checked=True)

    # Working

    @contextlib.asynccontextmanager
    async def worker(self, **said: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """A worker for this app's jobs, not yet running; its connections are closed at the end of the block.

        What is not said is taken from WINDLASS_* variables and windlass.toml.
        """
        async with self._workers(said) as new:
            yield new()

    @contextlib.asynccontextmanager
    async def _workers(self, said: WorkerOptions) -> AsyncIterator[Callable[[], Worker]]:
        """Makes workers, one after the other, on the same connections."""
        refuse_unknown(said, WorkerOptions, "A worker")
        set_ = load().filled()
        lease = milliseconds(said["lease"], "lease") if "lease" in said else set_.lease or LEASE
        grace = milliseconds(said["grace"], "grace") if "grace" in said else set_.grace or GRACE
        chosen = self._chosen(tuple(said["jobs"]) if "jobs" in said else set_.jobs)
        on_unknown = said.get("on_unknown", "leave")
        if on_unknown == "fail" and len(chosen) < len(self.jobs):
            raise BadInput(
                "A worker that takes some jobs only cannot fail those it does not know.", hint="Leave out jobs, or on_unknown='fail'."
            )
        info = WorkerInfo(
            name=said.get("name") or set_.name or self._own_name(),
            queues=tuple(said["queues"]) if "queues" in said else set_.queues,
            tags=tuple(said["tags"]) if "tags" in said else set_.tags or (),
            cores=said.get("cores", set_.cores or os.cpu_count() or 1),
            memory=said.get("memory", set_.memory or _memory_of_machine()),
            slots=said.get("slots", set_.slots or SLOTS),
        )
        for job in chosen:
            if job.signature is not None:
                job.signature.check()
        handlers = {job.name: job.handler for job in chosen}
        solvers = said.get("solvers", set_.solvers)
        if isinstance(solvers, bool | None):
            solvers = await asyncio.to_thread(solvers_of, replace(set_, solvers=solvers))
        how: dict[str, Any] = {"lease": lease, "grace": grace, "on_unknown": on_unknown, "solvers": solvers}
        accepted = ((job.name, job.signature.fingerprint) for job in chosen if job.signature is not None)
        how["schemas"] = dict(islice(accepted, self.limits.schemas))
        hub = located(self.address).kind == "hub"
        spool = said.get("spool", set_.spool)
        async with self._hub_ports(set_, info.name, lease, spool) if hub else self._ports(set_, lease) as (port, parts):
            await self._define(port, handlers)
            for plan in self.planned.values():
                try:
                    await self._schedule(port, plan, by_code=True)
                except Forbidden as refused:
                    _LOG.warning("Schedule %r is not stored as the code says: %s %s", plan.key, refused, refused.hint)
            how |= parts
            yield lambda: Worker(port, handlers, self.clock, info, **how)

    def _chosen(self, names: tuple[str, ...] | None) -> list[Definition[..., Any]]:
        if names is None:
            return list(self.jobs.values())
        for name in names:
            if name not in self.jobs:
                raise BadInput(f"This app has no job {name!r}.", hint=f"It has {', '.join(sorted(self.jobs)) or 'none'}.")
        return [self.jobs[name] for name in names]

    def _own_name(self) -> str:
        return f"{socket.gethostname()[:64]}.{os.getpid()}.{self.clock.nonce()[:4]}"

    @contextlib.asynccontextmanager
    async def _ports(self, set_: Settings, lease: int) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
        """The engine of a worker's loop, and others for the threads that beat and sweep."""
        if self._in_memory():
            yield self.engine, {"heart": self.engine, "house": self.engine, "sweeper": self.engine}
            return
        stores: list[Store] = []
        try:
            stores.append(open_store(self.address, self.clock, blocking=False, settings=set_))
            blocking = partial(open_store, self.address, self.clock, blocking=True, patience=lease / 6000, settings=set_)
            stores.append(await asyncio.to_thread(blocking))
            stores.append(await asyncio.to_thread(blocking))
            port, heart, sweeper = (Engine(store, self.clock, self.limits) for store in stores)
            yield port, {"heart": heart, "house": port, "sweeper": sweeper, "about": _about(), "process": own_process(), "measure": dict}
        finally:
            for store in stores:
                await store.close()

    @contextlib.asynccontextmanager
    async def _hub_ports(
        self, set_: Settings, name: str, lease: int, folder: str | os.PathLike[str] | None
    ) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
        """The same through a hub, which sweeps itself. Beats have connections of their own, so that no upload holds them up."""
        port = open_hub(set_, self.address, self.clock, blocking=False, patience=HUB_TO_START)
        heart = open_hub(set_, self.address, self.clock, blocking=True, timeout=max(lease / 6000, 0.5))
        from windlass.client.spool import Spool, default_folder

        spool = Spool(Path(folder or default_folder()), self.address, name, self.clock.nonce())
        try:
            yield port, {"heart": heart, "spool": spool, "about": _about(), "process": own_process(), "measure": host.metrics}
        finally:
            spool.close()
            await heart.close()
            await port.close()

    async def _work(self, burst: bool, settings: WorkerOptions) -> bool:
        sys.setswitchinterval(SWITCH_INTERVAL)
        async with self.worker(**settings) as worker:
            with _signals(worker):
                await worker.run(until_idle=burst)
        return worker.worn_out

    @contextlib.asynccontextmanager
    async def working(self, **settings: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """A worker that runs beside the block, in the same event loop, and drains at its end. Takes what `worker` takes.

        One that had to leave a handler behind is replaced by another; the handler itself stays where it is.
        """
        async with self._workers(settings) as new:
            workers = [new()]

            async def keep_working() -> None:
                await workers[-1].run()
                while workers[-1].worn_out and not ended:
                    workers.append(new())
                    await workers[-1].run()

            ended = False
            running = asyncio.create_task(keep_working())
            try:
                yield workers[0]
            finally:
                ended = True
                await workers[-1].stop()
                await running


def _of_psycopg(connection: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "psycopg" for base in type(connection).__mro__)


def _about() -> dict[str, Any]:
    from windlass import __version__  # which is there only when the package is whole

    return host.about(__version__)


def _memory_of_machine() -> int:
    """MiB."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return 0


def drive(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, which however waits for ever for a task or a thread that does not end."""
    loop, threads = asyncio.new_event_loop(), ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            loop.set_exception_handler(lambda loop, context: None)  # those that remain were spoken of when they were left behind
        loop.run_until_complete(loop.shutdown_asyncgens())
        threads.shutdown(wait=False, cancel_futures=True)
        loop.close()


@contextlib.contextmanager
def _signals(worker: Worker) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C drains, the second aborts."""
    loop, asked, stops = asyncio.get_running_loop(), 0, set()

    def stop() -> None:
        nonlocal asked
        asked += 1
        stops.add(asyncio.ensure_future(worker.stop(drain=asked == 1)))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class App(Base):
    """Jobs, and the store that keeps their runs, for plain code. Safe to share between threads."""

    _job = Job

    def job(
        self,
        *function: Never,
        kind: Kind | None = None,
        memory_limit: int | None = None,
        recycle: int = RECYCLE,
        **said: Unpack[JobOptions],
    ) -> JobMaker:
        """Make a function a job. `async def` runs in the worker's loop, a plain function in a thread, kind='process' in a process."""
        return self._job_maker(function, said, kind, memory_limit, recycle)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        environment: dict[str, str] | None = None,
        memory_limit: int | None = None,
        **said: Unpack[CommandOptions],
    ) -> Job[..., Any]:
        """Make a command a job. It gets the payload as JSON on standard input, or where an argument says {payload}."""
        return self._add(from_command(Job[..., Any], self, name, argv, said, cwd, environment, memory_limit))

    def cron(self, expression: str, **said: Unpack[ScheduleOptions]) -> ScheduleMaker:
        """Have a job run by a cron expression: `@app.cron("0 3 * * *", zone="Europe/Paris")`, on a job or on a function."""
        check_rule("cron", expression, said)
        return self._schedule_maker(said, cron=expression)

    def every(self, interval: str | Duration, **said: Unpack[ScheduleOptions]) -> ScheduleMaker:
        """Have a job run again and again: `@app.every("15m")`, on a job or on a function."""
        check_rule("interval", interval, said)
        return self._schedule_maker(said, every=interval)

    def schedule(
        self,
        job: Job[..., Any] | str,
        *,
        cron: str | None = None,
        every: str | Duration | None = None,
        at: datetime | str | None = None,
        new: bool = False,
        **said: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule now, at run time; the same key again updates it, or with `new` is refused."""
        return run_sync(self._schedule(self.engine, planned(self._known(job), cron=cron, every=every, at=at, said=said), new=new))

    def enqueue(self, job: str, payload: Any = None, *, connection: Any = None, **said: Unpack[RunOptions]) -> Handle[Any]:
        """Store a run of a job by its name, which may be defined elsewhere."""
        return self.enqueue_one(self._by_name(job, payload, said), connection=connection)

    def enqueue_one(self, new: NewRun, *, connection: Any = None) -> Handle[Any]:
        """Store a run made by `job.new(...)`."""
        handles: list[Handle[Any]] = run_sync(self._enqueued(Handle, [new], connection))
        return handles[0]

    def enqueue_many(self, news: Iterable[NewRun], *, connection: Any = None) -> list[Handle[Any]]:
        """Store runs made by `job.new(...)`, in slices of 10,000, each of them whole or not at all."""
        handles: list[Handle[Any]] = []
        for slice_ in self._slices(news):
            handles += run_sync(self._enqueued(Handle, slice_, connection))
        return handles

    @contextlib.contextmanager
    def transaction(self, connection: Any = None) -> Iterator[None]:
        """Store what is enqueued in the block together at its end, or nothing when it fails.

        With a psycopg connection of your own, what is enqueued becomes part of your transaction instead, and real when you commit.
        """
        with self._block(connection) as block:
            yield
        run_sync(self._end(block))

    def group(self, name: str | None = None, *, on_failure: OnFailure = "stop", callback: NewRun | None = None) -> GroupDraft:
        """A group to add runs to, which may wait for each other: `a = group.add(...)`, `group.add(..., after=[a])`, `group.enqueue()`."""
        return GroupDraft(self, name, on_failure, callback)

    def chain(
        self, runs: Iterable[NewRun], *, name: str | None = None, on_failure: OnFailure = "stop", callback: NewRun | None = None
    ) -> GroupHandle:
        """Store runs made by `job.new(...)` as a group in which each begins when the one before has ended."""
        return GroupHandle(self, run_sync(self.store_group(new_group("sequential", runs, name, on_failure, callback), None)))

    def parallel(self, runs: Iterable[NewRun], *, name: str | None = None, callback: NewRun | None = None) -> GroupHandle:
        """Store runs made by `job.new(...)` as a group in which nobody waits for anybody; the callback begins when all have ended."""
        return GroupHandle(self, run_sync(self.store_group(new_group("parallel", runs, name, "stop", callback), None)))

    def find_group(self, group_id: str) -> GroupHandle:
        """The group with this id."""
        return GroupHandle(self, run_sync(self.engine.get_group(group_id)))

    def pause(self, *, queue: str | None = None, job: str | None = None, everything: bool = False, reason: str | None = None) -> Pause:
        """Hand nothing out of a queue, of a job, or at all, until it is resumed; what runs goes on."""
        return run_sync(self.engine.pause(*paused(queue, job, everything), reason=reason))

    def resume(self, *, queue: str | None = None, job: str | None = None, everything: bool = False) -> bool:
        """Hand out again; False when it was not paused."""
        return run_sync(self.engine.resume(*paused(queue, job, everything)))

    @contextlib.contextmanager
    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> Iterator[HeldSlot]:
        """Hold the next slot of a resource for the block: behind what runs and those who asked before, ahead of every queue.

        Nothing that runs is interrupted, and no run is made. NotInTime when it is not free in time; LeaseLost at the end of the
        block when it was lost meanwhile, of which `slot.lost` tells inside.
        """
        with on_thread(run_sync(self._line(resource)), self._call(resource, key, weight, timeout, lease)) as held:
            yield held

    def run(self, run_id: str) -> Handle[Any]:
        """The run with this id."""
        record = run_sync(self.engine.get(run_id))
        return Handle(self, record.job, self._reader(record.job), record.id)

    def runs(self, *, job: str | None = None, queue: str | None = None, state: State | str | None = None, count: int = 100) -> Page:
        """A page of runs, newest first unless they are queued."""
        return run_sync(self.engine.runs(job=job, queue=queue, state=state, count=count))

    def work(self, *, burst: bool = False, **settings: Unpack[WorkerOptions]) -> bool:
        """Work until a signal says stop, or, with `burst`, until nothing is queued; whether the process is worn out.

        Takes what `worker` takes.
        """
        return drive(self._work(burst, settings))

    def close(self) -> None:
        """Let go of the store; it opens again when it is needed."""
        run_sync(self._close())

    def __enter__(self) -> App:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncApp(Base):
    """The same for event loops: what waits for the store is awaited."""

    _blocking, _job = False, AsyncJob

    def job(
        self,
        *function: Never,
        kind: Kind | None = None,
        memory_limit: int | None = None,
        recycle: int = RECYCLE,
        **said: Unpack[JobOptions],
    ) -> AsyncJobMaker:
        """Make a function a job. `async def` runs in the worker's loop, a plain function in a thread, kind='process' in a process."""
        return self._job_maker(function, said, kind, memory_limit, recycle)

    def command(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        environment: dict[str, str] | None = None,
        memory_limit: int | None = None,
        **said: Unpack[CommandOptions],
    ) -> AsyncJob[..., Any]:
        """Make a command a job. It gets the payload as JSON on standard input, or where an argument says {payload}."""
        return self._add(from_command(AsyncJob[..., Any], self, name, argv, said, cwd, environment, memory_limit))

    def cron(self, expression: str, **said: Unpack[ScheduleOptions]) -> AsyncScheduleMaker:
        """Have a job run by a cron expression: `@app.cron("0 3 * * *", zone="Europe/Paris")`, on a job or on a function."""
        check_rule("cron", expression, said)
        return self._schedule_maker(said, cron=expression)

    def every(self, interval: str | Duration, **said: Unpack[ScheduleOptions]) -> AsyncScheduleMaker:
        """Have a job run again and again: `@app.every("15m")`, on a job or on a function."""
        check_rule("interval", interval, said)
        return self._schedule_maker(said, every=interval)

    async def schedule(
        self,
        job: AsyncJob[..., Any] | str,
        *,
        cron: str | None = None,
        every: str | Duration | None = None,
        at: datetime | str | None = None,
        new: bool = False,
        **said: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule now, at run time; the same key again updates it, or with `new` is refused."""
        return await self._schedule(self.engine, planned(self._known(job), cron=cron, every=every, at=at, said=said), new=new)

    async def enqueue(self, job: str, payload: Any = None, *, connection: Any = None, **said: Unpack[RunOptions]) -> AsyncHandle[Any]:
        """Store a run of a job by its name, which may be defined elsewhere."""
        return await self.enqueue_one(self._by_name(job, payload, said), connection=connection)

    async def enqueue_one(self, new: NewRun, *, connection: Any = None) -> AsyncHandle[Any]:
        """Store a run made by `job.new(...)`."""
        handles: list[AsyncHandle[Any]] = await self._enqueued(AsyncHandle, [new], connection)
        return handles[0]

    async def enqueue_many(self, news: Iterable[NewRun], *, connection: Any = None) -> list[AsyncHandle[Any]]:
        """Store runs made by `job.new(...)`, in slices of 10,000, each of them whole or not at all."""
        handles: list[AsyncHandle[Any]] = []
        for slice_ in self._slices(news):
            handles += await self._enqueued(AsyncHandle, slice_, connection)
        return handles

    @contextlib.asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[None]:
        """Store what is enqueued in the block together at its end, or nothing when it fails.

        With a psycopg connection of your own, what is enqueued becomes part of your transaction instead, and real when you commit.
        """
        with self._block(connection) as block:
            yield
        await self._end(block)

    def group(self, name: str | None = None, *, on_failure: OnFailure = "stop", callback: NewRun | None = None) -> AsyncGroupDraft:
        """A group to add runs to, which may wait for each other: `a = group.add(...)`, then `group.add(..., after=[a])`."""
        return AsyncGroupDraft(self, name, on_failure, callback)

    async def chain(
        self, runs: Iterable[NewRun], *, name: str | None = None, on_failure: OnFailure = "stop", callback: NewRun | None = None
    ) -> AsyncGroupHandle:
        """Store runs made by `job.new(...)` as a group in which each begins when the one before has ended."""
        return AsyncGroupHandle(self, await self.store_group(new_group("sequential", runs, name, on_failure, callback), None))

    async def parallel(self, runs: Iterable[NewRun], *, name: str | None = None, callback: NewRun | None = None) -> AsyncGroupHandle:
        """Store runs made by `job.new(...)` as a group in which nobody waits for anybody; the callback begins when all have ended."""
        return AsyncGroupHandle(self, await self.store_group(new_group("parallel", runs, name, "stop", callback), None))

    async def find_group(self, group_id: str) -> AsyncGroupHandle:
        """The group with this id."""
        return AsyncGroupHandle(self, await self.engine.get_group(group_id))

    async def pause(
        self, *, queue: str | None = None, job: str | None = None, everything: bool = False, reason: str | None = None
    ) -> Pause:
        """Hand nothing out of a queue, of a job, or at all, until it is resumed; what runs goes on."""
        return await self.engine.pause(*paused(queue, job, everything), reason=reason)

    async def resume(self, *, queue: str | None = None, job: str | None = None, everything: bool = False) -> bool:
        """Hand out again; False when it was not paused."""
        return await self.engine.resume(*paused(queue, job, everything))

    @contextlib.asynccontextmanager
    async def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AsyncIterator[HeldSlot]:
        """Hold the next slot of a resource for the block: behind what runs and those who asked before, ahead of every queue.

        Nothing that runs is interrupted, and no run is made. NotInTime when it is not free in time; LeaseLost at the end of the
        block when it was lost meanwhile, of which `slot.lost` tells inside.
        """
        async with in_loop(await self._line(resource), self._call(resource, key, weight, timeout, lease)) as held:
            yield held

    async def run(self, run_id: str) -> AsyncHandle[Any]:
        """The run with this id."""
        record = await self.engine.get(run_id)
        return AsyncHandle(self, record.job, self._reader(record.job), record.id)

    async def runs(self, *, job: str | None = None, queue: str | None = None, state: State | str | None = None, count: int = 100) -> Page:
        """A page of runs, newest first unless they are queued."""
        return await self.engine.runs(job=job, queue=queue, state=state, count=count)

    async def work(self, *, burst: bool = False, **settings: Unpack[WorkerOptions]) -> bool:
        """Work until a signal says stop, or, with `burst`, until nothing is queued; whether the process is worn out.

        Takes what `worker` takes.
        """
        return await self._work(burst, settings)

    async def close(self) -> None:
        """Let go of the store; it opens again when it is needed."""
        await self._close()

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
