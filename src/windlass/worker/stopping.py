"""How handlers are stopped, one by one and all together: asked first, forced after a grace, abandoned where force is impossible."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from msgspec.structs import replace

from windlass.machine import Fail, Report, Requeue, Skip, Succeed
from windlass.model import Failure
from windlass.worker.executions import Execution, InFlight, Why
from windlass.worker.reporting import Reporter
from windlass.worker.runtime import Runtime

_LOG = logging.getLogger("windlass.worker")

KILL_AFTER = 1_000  # milliseconds between the request to stop and the kill of a run that is lost
LAST_PART = 5_000  # milliseconds of a worker's grace in which the handlers that still run are asked to stop


class Stopper:
    """Stops single executions, and decides what is reported of those that were stopped."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, reporter: Reporter) -> None:
        self._runtime, self._in_flight, self._reporter = runtime, in_flight, reporter

    def stop_after(self, execution: Execution, ms: int, why: Why) -> None:
        execution.timers.append(self._runtime.loop.call_later(ms / 1000, self.stop, execution, why))

    def stop(self, execution: Execution, why: Why) -> None:
        """Ask a handler to stop; when its grace is over, force it. The first reason stays, except for a lost lease."""
        if execution.lost:
            why = "lost"
        if execution.finished or execution.why == "lost" or (execution.why is not None and why != "lost"):
            return
        execution.why = why
        execution.ask_to_stop()
        execution.timers.append(self._runtime.loop.call_later(self._grace(execution) / 1000, self.force, execution))

    def _grace(self, execution: Execution) -> int:
        """Milliseconds until it is forced."""
        grace = execution.run.policy.grace
        # The store ends a cancelled run when its grace is over: force comes a little before.
        wait = max(grace - 1_000, grace // 2)
        if execution.why != "lost" or not execution.can_be_killed:
            return wait
        # No other worker can begin before the lease ends; a run that is already lost still gets a moment to clean up.
        remaining = execution.lease_ends - self._runtime.clock.monotonic()
        return min(wait, remaining if remaining > 0 and not execution.lost else KILL_AFTER)

    def force(self, execution: Execution) -> None:
        if execution.finished:
            return
        if execution.why is None:
            execution.why = "drain"
        if not execution.kill():
            self._abandon(execution)

    def _abandon(self, execution: Execution) -> None:
        """Give up a handler that cannot be stopped: its run ends, its slot stays taken, and the worker is to be restarted."""
        _LOG.error("The handler of run %s (%s) does not stop and is abandoned; its slot stays taken.", execution.run.id, execution.run.job)
        self._in_flight.abandoned.add(execution)
        message = f"The handler did not stop when asked to ({execution.why}) and was abandoned."
        self._reporter.add(execution, final_report(execution, Fail(error=Failure(code="abandoned", message=message))))

    def ended(self, execution: Execution, report: Report) -> None:
        """A handler has ended, stopped or not."""
        if execution in self._in_flight.abandoned:
            self._in_flight.abandoned.discard(execution)
            self._in_flight.changed.set()
        elif not execution.finished:
            self._reporter.add(execution, final_report(execution, report))

    def stop_all(self, why: Why) -> None:
        for execution in list(self._in_flight.busy):
            self.stop(execution, why)

    def force_all(self) -> None:
        for execution in list(self._in_flight.busy):
            self.force(execution)


class Shutdown:
    """Ends a worker: no more claims, then the handlers may finish, are asked to stop, and are forced."""

    def __init__(self, runtime: Runtime, in_flight: InFlight, stopper: Stopper) -> None:
        self._runtime, self._in_flight, self._stopper = runtime, in_flight, stopper
        self.claiming: asyncio.Task[bool] | None = None
        self.finished = asyncio.Event()

    async def run(self, grace: int, drain: bool) -> None:
        """Take the steps within `grace` milliseconds."""
        end = self._runtime.loop.time() + grace / 1000
        ask = end - min(LAST_PART, grace // 4) / 1000 if drain else end
        if self.claiming is not None:
            await asyncio.wait({self.claiming}, timeout=max(0.0, ask - self._runtime.loop.time()))
            self.claiming.cancel()  # a claim without an answer; the runs of an answered one are given back
        _LOG.info("Worker %s claims nothing more.", self._runtime.info.name)
        if not await self._quiet_by(ask):
            self._stopper.stop_all("drain")
        if not await self._quiet_by(end):
            self._stopper.force_all()
            await self._quiet_by(end + LAST_PART / 1000)
        self.finished.set()

    async def cut_short(self) -> None:
        """The task that ran the worker was cancelled: there is time to give back what runs, and no more."""
        self._runtime.stopping = True
        self._stopper.stop_all("drain")
        if self.claiming is not None:
            await asyncio.wait({self.claiming}, timeout=LAST_PART / 5_000)  # the runs of a claim in flight are given back too
            self.claiming.cancel()
        await self._quiet_by(self._runtime.loop.time() + LAST_PART / 1000)

    async def _quiet_by(self, time: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._in_flight.quiet.wait(), max(0.0, time - self._runtime.loop.time()))
        return self._in_flight.quiet.is_set()


def final_report(execution: Execution, report: Report) -> Report | None:
    """The report of an execution, considering why it was stopped; None: no report. A success or a skip stands even after a stop."""
    if execution.lost:
        return None
    if execution.why is None or isinstance(report, Succeed | Skip | Requeue):
        return report
    policy = execution.run.policy
    match execution.why:
        case "drain" | "lost":  # lost by the local clock only: the store may still accept that it is given back
            return Requeue(begun=execution.begun)
        case "timeout":
            message = f"The attempt ran for longer than its timeout of {policy.timeout} ms."
            return Fail(error=Failure(code="timeout", message=message, detail=_error_text(report)), delay=_delay(report))
        case "max_runtime":
            message = f"The attempt ran for longer than {execution.run.max_runtime} ms."
            return Fail(error=Failure(code="max_runtime_exceeded", message=message), retry=False)
        case "abort":
            return _aborted(report, retry=execution.handler.on_abort == "retry")
        case "cancel":
            return report


def _error_text(report: Report) -> str | None:
    return f"{report.error.code}: {report.error.message}" if isinstance(report, Fail) else None


def _delay(report: Report) -> int | None:
    return report.delay if isinstance(report, Fail) else None


def _aborted(report: Report, *, retry: bool) -> Report:
    """The handler's own error where it has one, else that it was aborted."""
    if not isinstance(report, Fail):
        return report
    if report.error.code in ("CancelledError", "Stopped", "abandoned", "killed"):
        error = Failure(code="aborted", message="The worker was stopped and the handler aborted.", detail=report.error.detail)
        report = replace(report, error=error)
    return report if retry else replace(report, retry=False)
