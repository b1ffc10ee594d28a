"""Workers for an app's jobs: on its store or through its hub, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec.structs import replace

from windlass.app.enqueueing import Enqueueing
from windlass.app.jobs import Definition
from windlass.app.options import (
    WorkerOptions,
    milliseconds,
    refuse_unknown,
)
from windlass.app.ports import StorePorts, about, shared_ports, store_ports
from windlass.config import load
from windlass.config.addresses import located
from windlass.config.opening import open_hub, solvers_of
from windlass.config.settings import SLOTS, Settings
from windlass.errors import BadInput, Forbidden
from windlass.model import WorkerInfo
from windlass.worker import host
from windlass.worker.lives import own_process

if TYPE_CHECKING:
    from windlass.worker import Worker

T = TypeVar("T")

_LOG = logging.getLogger("windlass.app")

HUB_TO_START = 3600.0  # seconds that a worker waits for a hub before it has registered its jobs
SWITCH_INTERVAL = 0.0001
"""Seconds after which Python switches threads: the writer thread releases the interpreter with every statement, and needs it again soon."""


class Working(Enqueueing):
    """Shared by both apps."""

    @contextlib.asynccontextmanager
    async def worker(self, **options: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """A worker for this app's jobs, not yet running; its connections are closed at the end of the block.

        Options that are not given are taken from WINDLASS_* variables and windlass.toml.
        """
        async with self._workers(options) as new:
            yield new()

    @contextlib.asynccontextmanager
    async def _workers(self, options: WorkerOptions) -> AsyncIterator[Callable[[], Worker]]:
        """Creates workers, one after the other, on the same connections."""
        from windlass.worker.loop import GRACE, LEASE, Worker  # here, because many programs only enqueue

        refuse_unknown(options, WorkerOptions, "A worker")
        set_ = load().filled()
        lease = milliseconds(options["lease"], "lease") if "lease" in options else set_.lease or LEASE
        grace = milliseconds(options["grace"], "grace") if "grace" in options else set_.grace or GRACE
        jobs = self._chosen(tuple(options["jobs"]) if "jobs" in options else set_.jobs)
        on_unknown = options.get("on_unknown", "leave")
        if on_unknown == "fail" and len(jobs) < len(self._chosen(None)):
            raise BadInput(
                "A worker that takes some jobs only cannot fail those it does not know.", hint="Leave out jobs, or on_unknown='fail'."
            )
        info = WorkerInfo(
            name=options.get("name") or set_.name or self._own_name(),
            queues=tuple(options["queues"]) if "queues" in options else set_.queues,
            tags=tuple(options["tags"]) if "tags" in options else set_.tags or (),
            cores=options.get("cores", set_.cores or os.cpu_count() or 1),
            memory=options.get("memory", set_.memory or memory_of_machine()),
            slots=options.get("slots", set_.slots or SLOTS),
        )
        for job in jobs:
            if job.signature is not None:
                job.signature.check()
        handlers = {job.name: job.handler for job in jobs}
        defined = [job.name for job in self.jobs.values() if job.handler.name in handlers]
        solvers = options.get("solvers", set_.solvers)
        if isinstance(solvers, bool | None):
            solvers = await asyncio.to_thread(solvers_of, replace(set_, solvers=solvers))
        how: dict[str, Any] = {"lease": lease, "grace": grace, "on_unknown": on_unknown, "solvers": solvers}
        accepted = ((job.name, job.signature.fingerprint) for job in jobs if job.signature is not None)
        how["schemas"] = dict(islice(accepted, self.limits.schemas))
        hub = located(self.address).kind == "hub"
        spool = options.get("spool", set_.spool)
        async with self._hub_ports(set_, info.name, lease, spool) if hub else self._ports(set_, lease) as (port, parts):
            await self._define(port, defined)
            for plan in self.planned.values():
                try:
                    await self._schedule(port, plan, by_code=True)
                except Forbidden as refused:
                    _LOG.warning("Schedule %r keeps another definition than the code's: %s %s", plan.key, refused, refused.hint)
            how |= parts
            yield lambda: Worker(port, handlers, self.clock, info, **how)

    def _chosen(self, names: tuple[str, ...] | None) -> list[Definition[..., Any]]:
        """The jobs of these names, each with a handler of its own; all of them without names."""
        if names is None:
            return [job for job in self.jobs.values() if job.has_own_handler]
        for name in names:
            if name not in self.jobs:
                raise BadInput(f"This app has no job {name!r}.", hint=f"It has {', '.join(sorted(self.jobs)) or 'none'}.")
            if not (job := self.jobs[name]).has_own_handler:
                raise BadInput(
                    f"{name!r} has the handler {job.handler.name!r}.", hint="Name that: a worker takes the runs of all its jobs."
                )
        return [self.jobs[name] for name in names]

    def _own_name(self) -> str:
        return f"{socket.gethostname()[:64]}.{os.getpid()}.{self.clock.nonce()[:4]}"

    @contextlib.asynccontextmanager
    async def _ports(self, set_: Settings, lease: int) -> AsyncIterator[StorePorts]:
        if self._in_memory():
            yield shared_ports(self.engine)
        else:
            async with store_ports(self.address, self.clock, self.limits, set_, lease) as ports:
                yield ports

    @contextlib.asynccontextmanager
    async def _hub_ports(
        self, set_: Settings, name: str, lease: int, folder: str | os.PathLike[str] | None
    ) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
        """The same through a hub, which does the sweeps. Heartbeats have their own connections, so that no upload delays them."""
        port = open_hub(set_, self.address, self.clock, blocking=False, patience=HUB_TO_START)
        heartbeat = open_hub(set_, self.address, self.clock, blocking=True, timeout=max(lease / 6000, 0.5))
        from windlass.client.spool import Spool, default_folder

        spool = Spool(Path(folder or default_folder()), self.address, name, self.clock.nonce())
        try:
            yield port, {"heartbeat": heartbeat, "spool": spool, "about": about(), "process": own_process(), "measure": host.metrics}
        finally:
            spool.close()
            await heartbeat.close()
            await port.close()

    async def _work(self, burst: bool, settings: WorkerOptions) -> bool:
        sys.setswitchinterval(SWITCH_INTERVAL)
        async with self.worker(**settings) as worker:
            with signals(worker.stop):
                await worker.run(until_idle=burst)
        return worker.needs_restart

    @contextlib.asynccontextmanager
    async def working(self, **settings: Unpack[WorkerOptions]) -> AsyncIterator[Worker]:
        """A worker that runs beside the block, in the same event loop, and drains at its end. Takes what `worker` takes.

        A worker with an abandoned handler is replaced by another; the handler itself keeps running.
        """
        async with self._workers(settings) as new:
            workers = [new()]

            async def keep_working() -> None:
                await workers[-1].run()
                while workers[-1].needs_restart and not ended:
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


class AsyncWorking(Working):
    """The same on a store for event loops."""

    _blocking = False


def memory_of_machine() -> int:
    """The memory of this machine in MiB; 0 if it is unknown."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return 0


def drive(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but does not wait for ever for a task or a thread that does not end."""
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
            loop.set_exception_handler(lambda loop, context: None)  # abandoned ones that remain were already logged
        loop.run_until_complete(loop.shutdown_asyncgens())
        threads.shutdown(wait=False, cancel_futures=True)
        loop.close()


@contextlib.contextmanager
def signals(stop_worker: Callable[..., Coroutine[Any, Any, None]]) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C drains, the second aborts."""
    loop, number, stops = asyncio.get_running_loop(), 0, set()

    def stop() -> None:
        nonlocal number
        number += 1
        stops.add(asyncio.ensure_future(stop_worker(drain=number == 1)))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for kind in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(kind, stop)
    try:
        yield
    finally:
        for kind in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(kind)
