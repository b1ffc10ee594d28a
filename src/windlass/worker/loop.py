"""The worker: its parts, put together, and its life from registration to end.

A run goes from `ClaimLoop` (claims.py) to `Runner` (runner.py), which executes it, and from there to `Reporter` (reporting.py). `Stopper`
(stopping.py) stops it on the way, if it is to be stopped, and `Heartbeat` (heartbeat.py) renews its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from windlass.clock import Clock
from windlass.model import SOLVER, Leases, WorkerInfo
from windlass.worker.claims import ClaimLoop
from windlass.worker.context import capture_logs
from windlass.worker.executions import InFlight
from windlass.worker.hand_over import HandOver
from windlass.worker.handlers import Handler
from windlass.worker.heartbeat import Heartbeat, LeaseWatch
from windlass.worker.idle import IdleCheck
from windlass.worker.logs import LogSender
from windlass.worker.maintenance import MaintenanceLoop, Sweeper
from windlass.worker.metrics import MetricsSender
from windlass.worker.port import Maintenance, Port, Spool
from windlass.worker.registration import Registration
from windlass.worker.reporting import Reporter
from windlass.worker.runner import Runner
from windlass.worker.runtime import Runtime
from windlass.worker.solvers import Solvers
from windlass.worker.stopping import Shutdown, Stopper
from windlass.worker.thread_pool import call_on_thread

_LOG = logging.getLogger("windlass.worker")

LEASE, GRACE = 30_000, 30_000


class Worker:
    """Works on the runs of its jobs until it is stopped.

    One loop, a thread for beats, one for sweeps, and threads or processes as handlers need them.
    """

    def __init__(
        self,
        port: Port,
        handlers: Mapping[str, Handler],
        clock: Clock,
        info: WorkerInfo,
        *,
        heartbeat: Port | None = None,
        maintenance: Maintenance | None = None,
        sweeper: Maintenance | None = None,
        spool: Spool | None = None,
        lease: int = LEASE,
        beat_every: int | None = None,
        grace: int = GRACE,
        on_unknown: Literal["leave", "fail"] = "leave",
        fallback: Handler | None = None,
        about: Mapping[str, Any] | None = None,
        process: str | None = None,
        schemas: Mapping[str, str] | None = None,
        measure: Callable[[], Mapping[str, float]] | None = None,
        solvers: Solvers | None = None,
    ) -> None:
        tags = tuple(tag for tag in info.tags if tag != SOLVER) + ((SOLVER,) if solvers is not None else ())
        info = replace(info, tags=tags, jobs=info.jobs if on_unknown == "fail" else tuple(handlers), programs=solvers is not None)
        self.runtime = runtime = Runtime(port, clock, info, lease, self._failed, beat_every=beat_every)
        self.in_flight = in_flight = InFlight()
        self.grace, self.solvers, self._measure = grace, solvers, measure
        self._registration = Registration(runtime, about, process, schemas)
        self._logs, self._hand_over = LogSender(runtime), HandOver(runtime, in_flight)
        self.reporter = Reporter(runtime, in_flight, self._logs, self._hand_over, spool)
        self.stopper = Stopper(runtime, in_flight, self.reporter)
        self.heartbeat = Heartbeat(runtime, in_flight, self.stopper, heartbeat or port)
        self._leases = LeaseWatch(runtime, in_flight, self.stopper, self.heartbeat)
        self.runner = Runner(runtime, in_flight, self.reporter, self.stopper, self.heartbeat, self._logs, handlers, solvers, fallback)
        self.maintenance, self._idle = maintenance, IdleCheck(runtime, maintenance)
        self._claims = ClaimLoop(runtime, in_flight, self.runner, self.heartbeat, self._hand_over, self._registration, self._idle)
        self._shutdown = Shutdown(runtime, in_flight, self.stopper)
        self._metrics = MetricsSender(runtime, self.runner.shortage, self._registration.incarnation)
        self.sweeper = None if sweeper is None else Sweeper(sweeper, clock)
        self._running, self._over = False, asyncio.Event()
        self._error: BaseException | None = None

    @property
    def info(self) -> WorkerInfo:
        return self.runtime.info

    @property
    def needs_restart(self) -> bool:
        """Whether it has ended because of abandoned handlers."""
        return self._claims.needs_restart

    @property
    def left(self) -> Sequence[Leases]:
        """The leases of other workers when it ended because there was nothing left to do."""
        return self._idle.left

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until there is nothing left to do; what ran has then been reported or given back."""
        if self.runtime.stopping:
            return  # before it began
        if self._running:
            await self._over.wait()
            return
        self._running = True
        self.runtime.attach()
        capture_logs()
        try:
            await self._start()
            await self._work(until_idle)
        except asyncio.CancelledError:
            await self._shutdown.cut_short()
            raise
        finally:
            await self._close()
            self._over.set()
            _LOG.info("Worker %s has ended.", self.info.name)
        if self._error is not None:
            raise self._error

    async def _start(self) -> None:
        await self._registration.register()
        if (spool := self.reporter.unsent.spool) is not None:
            await self.runtime.retry_until_available(partial(spool.deliver, self.runtime.port))
        # Only now: reports on disk of a former process of this name are accepted while its leases last.
        await self._registration.begin_life()
        self.heartbeat.start()
        queues, jobs = (", ".join(names or ("all",)) for names in (self.info.queues, self.info.jobs))
        _LOG.info("Worker %s works: slots %d, queues %s, jobs %s.", self.info.name, self.info.slots, queues, jobs)
        self.runtime.spawn(self.reporter.run(), self._leases.run(), self.heartbeat.listen())
        if self.maintenance is not None:
            self._start_maintenance(self.maintenance)
        if self._measure is not None:
            self._metrics.start(self._measure)

    def _start_maintenance(self, maintenance: Maintenance) -> None:
        loop = MaintenanceLoop(maintenance, self.runtime.clock)
        if self.sweeper is None:
            self.runtime.spawn(loop.sweep(), loop.tidy())
        else:
            self.runtime.spawn(self.sweeper.run(), self.sweeper.listen(maintenance), loop.tidy())

    async def _work(self, until_idle: bool) -> None:
        """Claim until that ends by itself, or the worker was stopped and its handlers have ended."""
        self._shutdown.claiming = claiming = self.runtime.loop.create_task(self._claims.run(until_idle=until_idle))
        claiming.add_done_callback(lambda _: self._hand_over.release())
        await asyncio.wait({claiming})
        if claiming.cancelled() or not claiming.result():
            await self._shutdown.finished.wait()

    async def stop(self, *, drain: bool = True, grace: int | None = None) -> None:
        """Claim nothing more and end, within `grace` milliseconds.

        With `drain`, handlers may finish; those that do not are asked to stop towards the end of the grace and their runs are given
        back without a failure. Without, they are aborted at once, and retried by their job's rules. Asked a second time without
        `drain`, a draining worker aborts.
        """
        first, self.runtime.stopping = not self.runtime.stopping, True
        if not self._running:
            return
        _LOG.info("Stopping: %s %d runs.", "finishing" if drain else "aborting", len(self.in_flight.busy))
        self._claims.stop()
        if not drain:
            self.stopper.stop_all("abort")
        if first:
            self.runtime.spawn(self._shutdown.run(self.grace if grace is None else grace, drain))
        await self._over.wait()

    def _failed(self, error: BaseException) -> None:
        """A background task has failed: the worker ends with its error."""
        self._error = self._error or error
        self._claims.stop()
        self._shutdown.finished.set()

    async def _close(self) -> None:
        claiming = self._shutdown.claiming
        self.heartbeat.stop()
        self.stopper.stop_all("lost")  # only after an error: nothing of these can be written any more
        self.stopper.force_all()
        self.runner.starts.close()
        self._logs.close()
        await self.runtime.close(claiming, self._claims.hint)
        await self.reporter.keep_unsent()
        await self.runner.close()
        await call_on_thread(self.heartbeat.join, 5.0)
        if self.sweeper is not None:
            await call_on_thread(self.sweeper.join, 5.0)
        is_known = not self._claims.unknown.pending and not (claiming is not None and claiming.cancelled())
        if is_known and not self.in_flight.held:
            await self._registration.leave()
