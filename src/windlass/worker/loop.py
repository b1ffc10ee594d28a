"""The worker: claims what it has room for, runs it, and reports how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from windlass.clock import Clock
from windlass.engine import Outcome, Watch
from windlass.errors import AWAY, BadInput, Cancelled, Conflict, StoreError, WindlassError
from windlass.machine import Fail, GiveBack, Report, Succeed
from windlass.model import SOLVER, Failure, Limits, Run, WorkerInfo
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.store.records import Held
from windlass.worker.beats import Heart
from windlass.worker.commands import AsCommand, Guard
from windlass.worker.context import capture_logs, enter
from windlass.worker.crew import Crew
from windlass.worker.executions import Execution, Why
from windlass.worker.handlers import Handler, UnknownHandler
from windlass.worker.housekeeping import Housekeeping
from windlass.worker.lag import Lag
from windlass.worker.outcomes import Stopped, failure_of, paced, returned
from windlass.worker.port import House, Port, Spool
from windlass.worker.processes import InProcess, Nursery
from windlass.worker.solvers import AsSolver, Solvers
from windlass.worker.works import InThread, Work, report_of

_LOG = logging.getLogger("windlass.worker")

LEASE, GRACE = 30_000, 30_000
SHORT = 0.05  # seconds a run may last without its start being told on its own
LOG_EVERY = 0.2
MEASURE_EVERY = 15.0
LOOK_AGAIN = 0.01  # seconds after a hint, because the hint that follows it closely may not be sent
LONGEST_WAIT, LISTEN = 1.0, 30.0  # seconds without a hint after which the store is asked anyway
FENCE = 40
"""The part of a lease that is left when its handler is stopped because no beat got through. It is counted from before the last one that
was answered was sent, so from before the store counts: a little for clocks that do not run alike, and for the handler to end."""
COURTESY = 1_000  # milliseconds between the ask and the kill of what is no longer ours
LAST_WORD = 5_000  # milliseconds of a stop's grace in which those still running are asked to give up

T = TypeVar("T")


class Worker:
    """Works on the runs of its jobs until it is stopped. One loop, one thread for beats, and threads or processes as handlers need them."""

    def __init__(
        self,
        port: Port,
        handlers: Mapping[str, Handler],
        clock: Clock,
        info: WorkerInfo,
        *,
        heart: Port | None = None,
        house: House | None = None,
        spool: Spool | None = None,
        lease: int = LEASE,
        grace: int = GRACE,
        on_unknown: Literal["leave", "fail"] = "leave",
        about: Mapping[str, Any] | None = None,
        measure: Callable[[], Mapping[str, float]] | None = None,
        solvers: Solvers | None = None,
    ) -> None:
        self.port, self.handlers, self.clock, self.grace, self.solvers = port, handlers, clock, grace, solvers
        tags = tuple(tag for tag in info.tags if tag != SOLVER) + ((SOLVER,) if solvers is not None else ())
        self.info = replace(info, tags=tags, jobs=info.jobs if on_unknown == "fail" else tuple(handlers))
        self.heart = Heart(self, heart or port, clock, self.info, lease)
        self.worn_out = False  # it has ended because of handlers that were left behind: only a new process is whole again
        self._house, self._spool, self.lease = house, spool, lease
        self._at_the_disk, self._spooled = asyncio.Lock(), False
        self._measure, self._lag = measure, Lag()
        self._incarnation = 0 if about is None else round(clock.chance() * 2**31)  # so that two who go by one name can be told apart
        self._about = None if about is None else {**about, "incarnation": self._incarnation}
        self._longest_wait: float = getattr(port, "longest_wait", LONGEST_WAIT)
        limits = getattr(port, "limits", Limits())
        self._batch, self._lines = min(limits.claim, limits.report), limits.lines_per_call
        self._crew, self._nursery, self._guard = Crew("windlass-work"), Nursery(), Guard()
        self._held: dict[Held, Execution] = {}  # until their report is stored; one that was lost may be held anew meanwhile
        self._busy: set[Execution] = set()  # until their handler has ended or is left behind
        self._unstarted: deque[Execution] = deque()
        self._abandoned: set[Execution] = set()
        self._done: deque[tuple[Execution, Report]] = deque()
        self._reporting: Sequence[tuple[Execution, Report]] = ()
        self._chatty: dict[Execution, None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._running = self._stopping = self._heard = False
        self._fatal: BaseException | None = None
        self._room, self._work_done, self._quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._wound_up, self._over = asyncio.Event(), asyncio.Event()
        self._serving: asyncio.Task[bool] | None = None
        self._idle: asyncio.Future[set[str] | None] | None = None  # the wait for a hint
        self._quiet.set()

    # Life

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until there is nothing left to do; what ran has then been reported or given back."""
        if self._stopping:
            return  # before it began
        if self._running:
            await self._over.wait()
            return
        self._running, self._loop = True, asyncio.get_running_loop()
        capture_logs()
        try:
            await self._insist(lambda: self.port.register(self.info, about=self._about))
            if self._spool is not None:
                await self._insist(partial(self._spool.deliver, self.port))
            self.heart.start()
            _LOG.info("Worker %s works: slots %d, queues %s, jobs %s.", *self._introduction())
            self._keep(self._keep_reporting(), self._keep_fencing(), self._keep_listening())
            if self._house is not None:
                house = Housekeeping(self._house, self.clock)
                self._keep(house.sweep(), house.tidy())
            if self._measure is not None:
                self._keep(self._lag.run(), self._keep_measuring(self._measure))
            self._serving = self._loop.create_task(self._serve(until_idle))
            await asyncio.wait({self._serving})
            if self._serving.cancelled() or not self._serving.result():
                await self._wound_up.wait()
        except asyncio.CancelledError:
            await self._cut_short()
            raise
        finally:
            await self._let_go()
            self._over.set()
            _LOG.info("Worker %s has ended.", self.info.name)
        if self._fatal is not None:
            raise self._fatal

    async def _cut_short(self) -> None:
        """Whoever ran the worker was cancelled: there is time to give back what runs, and no more."""
        self._stopping = True
        for execution in list(self._busy):
            self._stop(execution, "drain")
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=LAST_WORD / 5_000)  # what a claim in flight brings is given back too
            self._serving.cancel()
        await self._quiet_by(self._loop.time() + LAST_WORD / 1000)

    def _introduction(self) -> tuple[str, int, str, str]:
        info = self.info
        return info.name, info.slots, ", ".join(info.queues or ("all",)), ", ".join(info.jobs or ("all",)) or "none"

    async def stop(self, *, drain: bool = True, grace: int | None = None) -> None:
        """Claim nothing more and end, within `grace` milliseconds.

        With `drain`, handlers may finish; those that do not are asked to stop towards the end of the grace and their runs are given
        back without burning a try. Without, they are aborted at once, and retried by their job's rules. Asked a second time without
        `drain`, a draining worker aborts.
        """
        first, self._stopping = not self._stopping, True
        if not self._running:
            return
        _LOG.info("Stopping: %s %d runs.", "finishing" if drain else "aborting", len(self._busy))
        self._room.set()
        if self._idle is not None:
            self._idle.cancel()
        if not drain:
            for execution in list(self._busy):
                self._stop(execution, "abort")
        if first:
            self._keep(self._wind_up(self.grace if grace is None else grace, drain))
        await self._over.wait()

    async def _wind_up(self, grace: int, drain: bool) -> None:
        end = self._loop.time() + grace / 1000
        ask = end - min(LAST_WORD, grace // 4) / 1000 if drain else end
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=max(0.0, ask - self._loop.time()))
            self._serving.cancel()  # a claim that does not answer; one that did has brought what is to be given back
        _LOG.info("Worker %s claims nothing more.", self.info.name)
        if not await self._quiet_by(ask):
            for execution in list(self._busy):
                self._stop(execution, "drain")
        if not await self._quiet_by(end):
            for execution in list(self._busy):
                self._force(execution)
            await self._quiet_by(end + LAST_WORD / 1000)
        self._wound_up.set()

    async def _quiet_by(self, time: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), max(0.0, time - self._loop.time()))
        return self._quiet.is_set()

    def _keep(self, *loops: Coroutine[Any, Any, None]) -> None:
        """Run these beside the claiming; an error in one of them ends the worker."""
        for loop in loops:
            task = self._loop.create_task(loop)
            self._tasks.add(task)
            task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal = self._fatal or error
            self._stopping = True
            self._room.set()
            if self._idle is not None:
                self._idle.cancel()
            self._wound_up.set()

    async def _let_go(self) -> None:
        self.heart.stop()
        for execution in list(self._busy):  # only after an error: nothing of theirs can be written any more
            self._stop(execution, "lost")
            self._force(execution)
        for timer in self._timers.values():
            timer.cancel()
        self._tasks |= {task for task in (self._serving, self._idle) if task is not None}
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._keep_unsent()
        self._crew.close()
        await asyncio.to_thread(self._nursery.close)
        await asyncio.to_thread(self._guard.close)
        await asyncio.to_thread(self.heart.join, 5.0)

    # Claiming

    async def _serve(self, until_idle: bool) -> bool:
        """Claim and run; True when it has ended by itself, False when it was told to stop."""
        while not self._stopping:
            if self._abandoned and not self._held:
                _LOG.warning("The worker ends, so that a new process takes the place of what was left behind.")
                self.worn_out = True
                return True
            room = self._free()
            if not room:
                await self._change()
                continue
            asked = min(room, self._batch)
            runs, asked_at = await self._insist(Claim(self, asked)) or ([], 0)
            self._trust(asked_at)
            for run in runs:
                self._take(run, asked_at)
            if len(runs) == asked or self._stopping:
                continue
            if until_idle and not runs and self._quiet.is_set():
                if await self._swept():
                    continue
                return True
            await self._hint(or_an_end=until_idle)
        return False

    async def _swept(self) -> bool:
        """Whether time has brought anything to do that was not queued yet."""
        if self._house is None:
            return False
        swept = await self._insist(partial(self._house.sweep, Watch(self.clock)))
        return swept is not None and (swept.fired > 0 or swept.dispatched > 0)

    def _trust(self, asked_at: int) -> None:
        """An answer that was long on its way is to be confirmed by a beat, before the fence takes it for lost."""
        if self.clock.monotonic() - asked_at > self.lease // 6:
            self.heart.now()

    def _free(self) -> int:
        """How many more runs there is room for. Reports that are not stored yet leave room for others, but not without bound."""
        if self.info.slots == 1:  # which the store frees only with the report
            return int(not self._held and not self._abandoned)
        free = self.info.slots - len(self._busy) - len(self._abandoned)
        return free if len(self._held) - len(self._busy) < self.info.slots + self._batch else 0

    async def _change(self) -> None:
        """Wait until a run has ended, or the worker shall stop."""
        self._room.clear()
        await self._room.wait()

    async def _hint(self, *, or_an_end: bool) -> None:
        """Wait until there may be something to claim, or the worker shall stop; or until a run has ended."""
        patience = LOOK_AGAIN if self._heard else self._longest_wait
        self._room.clear()
        self._idle = hint = asyncio.ensure_future(self._insist(partial(self.port.wait, self._topics, patience)))
        end = asyncio.ensure_future(self._room.wait()) if or_an_end else None
        try:
            await asyncio.wait({hint} if end is None else {hint, end}, return_when=asyncio.FIRST_COMPLETED)
            self._heard = hint.done() and not hint.cancelled() and bool(hint.result())
        finally:
            for task in (hint, end):
                if task is not None:
                    task.cancel()

    @cached_property
    def _topics(self) -> frozenset[str]:
        # With its own name no other waits for the same: what is said between two waits is then kept for this worker alone.
        queues = [ALL_QUEUES] if self.info.queues is None else map(queue_topic, self.info.queues)
        return frozenset({worker_topic(self.info.name), *queues})

    async def _keep_listening(self) -> None:
        """Hear that a run of this worker is to be stopped, so that it need not wait for the next beat."""
        topic = worker_topic(self.info.name)
        while not self._stopping or self._held:
            heard = await self._insist(lambda: self.port.wait({topic}, LISTEN))
            if heard:
                self.heart.now()
            elif heard is None:  # the store is away, and the worker stops
                await asyncio.sleep(LAST_WORD / 10_000)

    async def _insist(self, call: Callable[[], Awaitable[T]], *, always: bool = False) -> T | None:
        """Ask until the store answers; None when the worker stops meanwhile, unless it must be said `always`."""
        pause = 0.05
        while True:
            try:
                return await call()
            except AWAY as error:
                if self._stopping and not always:
                    return None
                _LOG.warning("The store does not answer, trying again in %.1f s: %s", pause, error)
                await self._keep_unsent()
                await asyncio.sleep(pause * (0.5 + self.clock.chance() / 2))
                pause = min(pause * 2, 2.0)

    # Running

    def _take(self, run: Run, asked_at: int) -> None:
        handler = self._handler_of(run)
        now = self.clock.monotonic()
        execution = Execution(self, run, handler, now, max(asked_at + self.lease, now + self.lease // 3))
        self._held[execution.held] = execution
        self._busy.add(execution)
        self._quiet.clear()
        if self._stopping:
            self._end(execution, GiveBack())
            return
        if handler.kind == "async":
            execution.task = self._loop.create_task(self._attempt(execution))
        else:
            execution.work = self._work_of(execution)
            try:
                self._crew.submit(lambda: self._on_thread(execution))
            except RuntimeError as error:  # the system has no thread for it
                _LOG.error("Run %s is given back: %s.", run.id, error)
                self._end(execution, GiveBack())
                return
        if run.policy.timeout:
            self._after(execution, run.policy.timeout, "timeout")
        if run.max_runtime:
            self._after(execution, run.max_runtime, "max_runtime")
        self._unstarted.append(execution)
        if "start" not in self._timers:
            self._timers["start"] = self._loop.call_later(SHORT, self._start_soon)

    def _handler_of(self, run: Run) -> Handler:
        if run.policy.solver is None:
            return self.handlers.get(run.job) or Handler(run.job, "thread", _unknown)
        return Handler(run.job, "thread", _unknown) if self.solvers is None else Handler(run.job, "command")

    async def _attempt(self, execution: Execution) -> None:
        """Run a coroutine function in a task of its own."""
        handler, context = execution.handler, execution.context
        assert handler.call is not None
        enter(context)
        try:
            value = await handler.call(context)
            if execution.why is not None:  # it was cancelled, and returned all the same: its work may be undone
                raise Stopped(execution.why)
            report = returned(value, handler.encode)
        except BaseException as error:  # a cancelled task ends the attempt, not the worker
            report = report_of(error, handler, context)
        self._ended_with(execution, report)

    def _work_of(self, execution: Execution) -> Work:
        handler, context, call, solver = execution.handler, execution.context, execution.context.call, execution.run.policy.solver
        if solver is not None and self.solvers is not None:
            return AsSolver(self.solvers, solver, context, call, execution, self._guard)
        match handler.kind:
            case "process":
                return InProcess(handler, context, call, execution, self._nursery)
            case "command":
                return AsCommand(handler, context, call, execution, self._guard)
            case _:
                return InThread(handler, context)

    def _on_thread(self, execution: Execution) -> None:
        assert execution.work is not None
        try:
            report = paced(execution.work.run(), execution.run.attempt, execution.handler.backoff)
        except BaseException as error:
            report = Fail(error=failure_of(error))
        self.call_soon(self._ended_with, execution, report)

    def ask(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        """The answer to a question, which is asked on the loop's thread; from any thread."""
        return asyncio.run_coroutine_threadsafe(question, self._loop)

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have something done on the loop's thread; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(call, *arguments)

    def _after(self, execution: Execution, ms: int, why: Why) -> None:
        execution.timers.append(self._loop.call_later(ms / 1000, self._stop, execution, why))

    # Stopping one

    def told(self, execution: Execution, answer: str) -> None:
        """The heart has heard that a run is to be stopped, or is no longer ours."""
        if answer == "lost" and not execution.finished and not execution.lost:
            _LOG.warning("Run %s is no longer held by this worker; its handler is stopped and nothing is written.", execution.run.id)
            execution.lost = True
        self._stop(execution, "lost" if answer == "lost" else "cancel")

    def _stop(self, execution: Execution, why: Why) -> None:
        """Ask a handler to stop; when its grace is over, force it. The first reason stays, but for a lost lease."""
        if execution.finished or execution.why == "lost" or (execution.why is not None and why != "lost"):
            return
        execution.why = why
        execution.ask_to_stop()
        grace = execution.run.policy.grace
        # A cancel's grace ends in the store as well: force comes a little before.
        wait = max(grace - 1_000, grace // 2)
        if why == "lost" and execution.can_be_killed:
            # Nobody else can begin before its end; what is lost already still gets a moment to clean up.
            left = execution.lease_ends - self.clock.monotonic()
            wait = min(wait, left if left > 0 and not execution.lost else COURTESY)
        execution.timers.append(self._loop.call_later(wait / 1000, self._force, execution))

    def _force(self, execution: Execution) -> None:
        if execution.finished:
            return
        if execution.why is None:
            execution.why = "drain"
        if not execution.kill():
            self._abandon(execution)

    def _abandon(self, execution: Execution) -> None:
        """Leave behind what cannot be stopped: its run ends, its slot stays taken, and the worker wants to be replaced."""
        _LOG.error(
            "The handler of run %s (%s) does not stop and is left behind; its slot stays taken.", execution.run.id, execution.run.job
        )
        self._abandoned.add(execution)
        message = f"The handler did not stop when asked to ({execution.why}) and was left behind."
        self._end(execution, self._verdict(execution, Fail(error=Failure(code="abandoned", message=message))))

    # Ends

    def _ended_with(self, execution: Execution, report: Report) -> None:
        """A handler has ended."""
        if execution in self._abandoned:
            self._abandoned.discard(execution)
            self._room.set()
        elif not execution.finished:
            self._end(execution, self._verdict(execution, report))

    def _verdict(self, execution: Execution, report: Report) -> Report | None:
        """What is reported, given why it was stopped; None: nothing. A result of one that did not know stands."""
        if execution.lost:
            return None
        if execution.why is None or isinstance(report, Succeed):
            return report
        policy = execution.run.policy
        match execution.why:
            case "drain" | "lost":  # by the clock: if it is still ours, somebody else shall have it; if not, the token is refused
                return GiveBack()
            case "timeout":
                message = f"The attempt ran for longer than its timeout of {policy.timeout} ms."
                return Fail(error=Failure(code="timeout", message=message, detail=_said(report)), delay=_delay(report))
            case "max_runtime":
                message = f"The attempt ran for longer than {execution.run.max_runtime} ms."
                return Fail(error=Failure(code="max_runtime_exceeded", message=message), retry=False)
            case "abort":
                return _aborted(report, retry=execution.handler.on_abort == "retry")
            case "cancel":
                return report

    def never_ran(self, execution: Execution) -> None:
        """A task was cancelled before it had begun."""
        self._ended_with(execution, Fail(error=Failure(code="CancelledError", message="The handler was cancelled before it began.")))

    def _end(self, execution: Execution, report: Report | None) -> None:
        execution.settle()
        self._busy.discard(execution)
        if report is None:
            self._forget(execution)
            return
        self._done.append((execution, report))
        self._work_done.set()
        self._room.set()

    def _forget(self, execution: Execution) -> None:
        """Nothing more is to be done about it."""
        execution.let_go()
        self._held.pop(execution.held, None)
        self._chatty.pop(execution, None)
        self._room.set()
        if not self._held and not self._busy:
            self._quiet.set()

    # Telling

    async def _keep_reporting(self) -> None:
        while True:
            await self._work_done.wait()
            self._work_done.clear()
            while self._done:
                batch = [self._done.popleft() for _ in range(min(self._batch, len(self._done)))]
                await self._report(batch)

    async def _keep_unsent(self) -> None:
        """What has ended and is not reported outlives this process, if there is where to keep it. A slow disk holds up nobody else."""
        if self._spool is None:
            return
        async with self._at_the_disk:
            if unsent := [_outcome(execution, report) for execution, report in (*self._reporting, *self._done)]:
                self._spooled = True
                await asyncio.to_thread(self._spool.keep, unsent)

    async def _drop_sent(self, outcomes: Sequence[Outcome]) -> None:
        if self._spool is not None and self._spooled:
            async with self._at_the_disk:
                await asyncio.to_thread(self._spool.drop, outcomes)

    async def _report(self, batch: Sequence[tuple[Execution, Report]]) -> None:
        self._reporting = batch
        for execution, _ in batch:
            if execution.n:
                await self._log(execution, last=True)
        if last_words := {item.held: text for item, _ in batch if (text := item.progress_text) is not None}:
            with suppress(*AWAY, BadInput):
                await self.port.beat(list(last_words), lease=self.lease, progress=last_words)
        outcomes = [_outcome(item, report) for item, report in batch]
        answers = await self._insist(partial(self.port.report_many, outcomes), always=True) or []
        self._reporting = ()
        # Those that are said again stay on the disk until they are answered otherwise, or another report takes their place.
        await self._drop_sent(
            [outcome for outcome, answer in zip(outcomes, answers, strict=True) if not isinstance(answer, Conflict | BadInput)]
        )
        for (execution, report), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Conflict):
                self._done.append((execution, report))  # somebody was faster fifty times: say it again
                continue
            if isinstance(answer, BadInput):
                refused = Failure(code="bad_output", message=f"The report was refused: {answer}")
                self._done.append((execution, Fail(error=refused, retry=report.retry if isinstance(report, Fail) else True)))
                continue
            if isinstance(answer, Cancelled):
                _LOG.info("Run %s of %s: cancelled.", execution.run.id, execution.run.job)
            elif isinstance(answer, WindlassError):
                _LOG.warning("The report of run %s was refused: %s", execution.run.id, answer.message)
            else:
                _LOG.debug("Run %s of %s: %s.", answer.run, execution.run.job, answer.state)
            self._forget(execution)

    async def _keep_measuring(self, measure: Callable[[], Mapping[str, float]]) -> None:
        measured: Mapping[str, float] = {}
        while True:
            try:
                measured = await asyncio.to_thread(measure)
            except Exception as error:
                _LOG.warning("The host cannot be measured: %s", error)
                measure, measured = dict, {}
            with suppress(Exception):  # nobody's work depends on it
                await self.port.worker_metrics(self.info.name, {**measured, **self._own_metrics()})
            await asyncio.sleep(MEASURE_EVERY)

    def _own_metrics(self) -> Mapping[str, float]:
        wall: int = getattr(self.clock, "wall", self.clock.now)()  # of this machine: the other may be the store's
        return {"loop_lag_ms": self._lag.ms, "clock": wall, "incarnation": self._incarnation}

    def _start_soon(self) -> None:
        """Tell the start of those that have run for a while; the start of shorter ones is part of their report."""
        begun_by, due = self.clock.monotonic() - round(SHORT * 1000), []
        while self._unstarted and (self._unstarted[0].finished or self._unstarted[0].began <= begun_by):
            execution = self._unstarted.popleft()
            if not execution.finished:
                due.append(execution.held)
        if due:
            self._keep(self._start(due))
        if self._unstarted:
            self._timers["start"] = self._loop.call_later(SHORT, self._start_soon)
        else:
            self._timers.pop("start", None)

    async def _start(self, due: list[Any]) -> None:
        with suppress(*AWAY):  # the report says it as well
            for at in range(0, len(due), self._batch):
                await self.port.start_many(due[at : at + self._batch])

    def log_soon(self, execution: Execution) -> None:
        """Write down what a handler logs, in small batches."""
        if execution.finished:
            return
        self._chatty[execution] = None
        if "log" not in self._timers:
            self._timers["log"] = self._loop.call_later(LOG_EVERY, lambda: self._keep(self._log_all()))

    async def _log_all(self) -> None:
        self._timers.pop("log", None)
        chatty, self._chatty = list(self._chatty), {}
        for execution in chatty:
            if not execution.finished:  # else its report takes them along
                await self._log(execution)

    async def _log(self, execution: Execution, *, last: bool = False) -> None:
        execution.logging = execution.logging or asyncio.Lock()
        async with execution.logging:
            lines, execution.lines = execution.lines, []
            if last and execution.dropped:
                lines.append((execution.n + 1, f"{execution.dropped} further lines were dropped."))
            for at in range(0, len(lines), self._lines):
                if not await self._log_slice(execution, lines[at : at + self._lines]):
                    return

    async def _log_slice(self, execution: Execution, lines: list[tuple[int, str]]) -> bool:
        """Send some lines; False when the rest need not be sent, because the run is no longer ours."""
        send = partial(self.port.log, execution.run.id, execution.held.token, lines, seq=execution.held.seq)
        try:
            await self._insist(send, always=True)
        except StoreError:
            raise
        except WindlassError:
            return False
        return True

    # Holding

    def held(self) -> list[Execution]:
        """What this worker holds, for the heart; from any thread."""
        return list(self._held.copy().values())

    async def _keep_fencing(self) -> None:
        """Stop what no beat got through for, while it can still be known to be held: before anybody else may begin."""
        margin, rest = self.lease // FENCE, max(self.lease / 6000, 0.02)
        pause = rest
        while True:
            before = self.clock.monotonic()
            await asyncio.sleep(pause)
            now = self.clock.monotonic()
            if now - before > 1000 * (pause + rest):
                self.heart.now()  # this process was paused or its loop blocked: ask before believing the worst
                pause = rest
                continue
            for execution in list(self._busy):
                if execution.lease_ends <= now + margin and execution.why != "lost":
                    _LOG.warning("No beat of run %s got through for nearly a lease; its handler is stopped.", execution.run.id)
                    self._stop(execution, "lost")
            ends = [execution.lease_ends - margin - now for execution in self._busy if execution.why != "lost"]
            pause = min(rest, max(0.01, min(ends, default=self.lease) / 1000))


class Claim:
    """One claim, however often it has to be asked: under one token, so that an answer that was lost is found again."""

    def __init__(self, worker: Worker, count: int) -> None:
        self._worker, self._count = worker, count
        self._token, self._asked = worker.clock.nonce(), False

    async def __call__(self) -> tuple[list[Run], int]:
        """What there is to do, and when it was asked for: from then on its lease is counted."""
        worker, asked_at = self._worker, self._worker.clock.monotonic()
        if self._asked and (runs := await worker.port.recover(worker.info, self._token)):
            return runs, asked_at
        self._asked = True
        return await worker.port.claim(worker.info, count=self._count, lease=worker.lease, token=self._token), asked_at


def _unknown(context: Any) -> Any:
    raise UnknownHandler(context.job)


def _outcome(execution: Execution, report: Report) -> Outcome:
    return Outcome(execution.run.id, _signed(report, execution.held.token), execution.held.seq)


def _signed(report: Report, token: str) -> Report:
    """The report under a token. Most are of one kind, for which there is a shorter way."""
    if type(report) is Succeed:
        return Succeed(token=token, output=report.output, output_hash=report.output_hash)
    return replace(report, token=token)


def _said(report: Report) -> str | None:
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
