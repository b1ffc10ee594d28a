"""From a claimed run to the end of its handler: in the event loop, on a thread, in a process or as a command."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from windlass.machine import Fail, Report, Requeue
from windlass.model import Failure, Result, Run
from windlass.worker.commands import CommandExecutor, Watchdog
from windlass.worker.context import enter
from windlass.worker.executions import Execution, InFlight
from windlass.worker.executors import Executor, ThreadExecutor, report_of
from windlass.worker.handlers import Handler, UnknownHandler
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.logs import LogSender
from windlass.worker.outcomes import Stopped, failure_of, paced, returned
from windlass.worker.process_pool import ProcessExecutor, ProcessPool
from windlass.worker.reporting import Reporter, StartReports
from windlass.worker.runtime import Runtime
from windlass.worker.shortage import Shortage, ShortageState, try_process
from windlass.worker.solvers import SolverExecutor, Solvers
from windlass.worker.step_store import StepStore
from windlass.worker.stopping import Stopper
from windlass.worker.thread_pool import ThreadPool, call_on_thread


class Runner:
    """Starts executions and passes on how they end."""

    def __init__(
        self,
        runtime: Runtime,
        in_flight: InFlight,
        reporter: Reporter,
        stopper: Stopper,
        heartbeat: Heartbeat,
        logs: LogSender,
        handlers: Mapping[str, Handler],
        solvers: Solvers | None,
        fallback: Handler | None = None,
    ) -> None:
        self._runtime, self._in_flight, self._reporter, self._stopper = runtime, in_flight, reporter, stopper
        self.name, self.heartbeat, self._logs, self.starts = runtime.info.name, heartbeat, logs, StartReports(runtime)
        self.steps = StepStore(runtime, heartbeat)
        self._handlers, self._solvers, self._fallback = handlers, solvers, fallback
        self._threads, self._processes, self._watchdog = ThreadPool("windlass-work"), ProcessPool(), Watchdog()
        self.shortage = ShortageState(runtime.clock)

    def start(self, run: Run, requested_at: int) -> None:
        """Execute a claimed run. Its lease counts from when it was requested, and lasts for a third at least."""
        runtime, handler = self._runtime, self._handler_of(run)
        now, lease = runtime.clock.monotonic(), runtime.lease
        execution = Execution(self, run, handler, now, max(requested_at + lease, now + lease // 3))
        self._in_flight.add(execution)
        if runtime.stopping:
            self._reporter.add(execution, Requeue(begun=False))
            return
        if handler.kind == "async":
            execution.task = runtime.loop.create_task(self._run_coroutine(execution))
        else:
            execution.executor = self._executor_of(execution)
            try:
                self._threads.submit(lambda: self._run_on_thread(execution))
            except Shortage as shortage:
                self._not_begun(execution, shortage)
                return
        if run.policy.timeout:
            self._stopper.stop_after(execution, run.policy.timeout, "timeout")
        if run.max_runtime:
            self._stopper.stop_after(execution, run.max_runtime, "max_runtime")
        self.starts.add(execution)

    def _handler_of(self, run: Run) -> Handler:
        if run.policy.solver is None:
            return self._handlers.get(run.handler) or self._fallback or Handler(run.handler, "thread", _unknown)
        return Handler(run.handler, "thread", _unknown) if self._solvers is None else Handler(run.handler, "command")

    def _executor_of(self, execution: Execution) -> Executor:
        handler, context, call, solver = execution.handler, execution.context, execution.context.call, execution.run.policy.solver
        if solver is not None and self._solvers is not None:
            return SolverExecutor(self._solvers, solver, context, call, execution, self._watchdog)
        match handler.kind:
            case "process":
                return ProcessExecutor(handler, context, call, execution, self._processes)
            case "command":
                return CommandExecutor(handler, context, call, execution, self._watchdog)
            case _:
                return ThreadExecutor(handler, context)

    async def _run_coroutine(self, execution: Execution) -> None:
        """Run a coroutine function, in a task of its own."""
        handler, context = execution.handler, execution.context
        assert handler.call is not None
        execution.begun = True
        enter(context)
        try:
            value = await handler.call(context)
            if execution.why is not None and context.saw_stop:  # it was cancelled and returned nevertheless: its work may be incomplete
                raise Stopped(execution.why)
            report = returned(value, handler.encode)
        except BaseException as error:  # a cancelled task ends the attempt, not the worker
            report = report_of(error, handler, context)
        self._stopper.ended(execution, report)

    def _run_on_thread(self, execution: Execution) -> None:
        assert execution.executor is not None
        execution.begun = True
        try:
            report = paced(execution.executor.run(), execution.run.attempt, execution.handler.backoff)
        except Shortage as shortage:
            self._runtime.call_soon(self._not_begun, execution, shortage)
            return
        except BaseException as error:
            report = Fail(error=failure_of(error))
        self._runtime.call_soon(self._thread_ended, execution, report)

    def _thread_ended(self, execution: Execution, report: Report) -> None:
        self.shortage.had("process" if execution.can_be_killed else "thread")
        self._stopper.ended(execution, report)

    def _not_begun(self, execution: Execution, shortage: Shortage) -> None:
        """A run for which the system had no thread or process goes back as it came."""
        execution.begun = False
        self.shortage.record(shortage, self._runtime.loop.time())
        self._stopper.ended(execution, Requeue(begun=False))

    def never_ran(self, execution: Execution) -> None:
        """A task was cancelled before it had begun; without effect for one that has ended."""
        failure = Failure(code="CancelledError", message="The handler was cancelled before it began.")
        self._stopper.ended(execution, Fail(error=failure))

    def log_soon(self, execution: Execution) -> None:
        """From any thread."""
        self._runtime.call_soon(self._logs.soon, execution)

    def results(self, run_id: str, after: str | None, count: int) -> Future[list[Result]]:
        """From any thread."""
        return self._runtime.ask(self._runtime.port.results(run_id, after=after, count=count))

    async def try_again(self) -> None:
        """Test whether a thread or process can be had that was lacking."""
        try:
            if "thread" in self.shortage.needs:
                self._threads.submit(_nothing)
            if "process" in self.shortage.needs:
                await call_on_thread(try_process)
        except Shortage as shortage:
            self.shortage.record(shortage, self._runtime.loop.time())
        else:
            self.shortage.end()

    async def close(self) -> None:
        self._threads.close()
        await call_on_thread(self._processes.close)
        await call_on_thread(self._watchdog.close)


def _unknown(context: Any) -> Any:
    raise UnknownHandler(context.job, context.handler)


def _nothing() -> None: ...
