"""The worker: claims what it has room for, runs it, and reports how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from windlass.clock import Clock
from windlass.durations import span
from windlass.engine import Outcome, Watch
from windlass.engine.reports import report_size
from windlass.errors import AWAY, BadInput, Cancelled, Conflict, OutcomeUnknown, StoreError, WindlassError, of_one
from windlass.machine import Fail, GiveBack, Report, Succeed
from windlass.model import LIFE_TAG, SOLVER, Failure, Leases, Life, Limits, Receipt, Run, WorkerInfo
from windlass.store.base import ALL_QUEUES, queue_topic, worker_topic
from windlass.store.records import Held
from windlass.worker.beats import OFTEN, Heart
from windlass.worker.commands import AsCommand, Guard
from windlass.worker.context import capture_logs, enter
from windlass.worker.crew import Crew
from windlass.worker.endings import tell_end
from windlass.worker.executions import Execution, Why
from windlass.worker.handlers import Handler, UnknownHandler
from windlass.worker.housekeeping import Housekeeping, Sweeper
from windlass.worker.lag import Lag
from windlass.worker.lives import is_gone
from windlass.worker.outcomes import Stopped, failure_of, paced, returned
from windlass.worker.port import House, Port, Spool
from windlass.worker.processes import InProcess, Nursery
from windlass.worker.shortage import Ability, Need, Shortage, is_no_thread, try_process
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
DOUBT = 45_000
"""Milliseconds after which a claim whose outcome nobody knows can bring nothing more: those that a statement may take and may wait for a
lock, and some for the way."""
COURTESY = 1_000  # milliseconds between the ask and the kill of what is no longer ours
STAY = 120_000  # milliseconds for which a worker that has nothing left to do waits for leases that are over
LAST_WORD = 5_000  # milliseconds of a stop's grace in which those still running are asked to give up

T = TypeVar("T")
Answers = dict[Execution, Receipt | WindlassError]


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
        heart: Port | None = None,
        house: House | None = None,
        sweeper: House | None = None,
        spool: Spool | None = None,
        lease: int = LEASE,
        grace: int = GRACE,
        on_unknown: Literal["leave", "fail"] = "leave",
        about: Mapping[str, Any] | None = None,
        process: str | None = None,
        schemas: Mapping[str, str] | None = None,
        measure: Callable[[], Mapping[str, float]] | None = None,
        solvers: Solvers | None = None,
    ) -> None:
        self.port, self.handlers, self.clock, self.grace, self.solvers = port, handlers, clock, grace, solvers
        tags = tuple(tag for tag in info.tags if tag != SOLVER) + ((SOLVER,) if solvers is not None else ())
        self.info = replace(info, tags=tags, jobs=info.jobs if on_unknown == "fail" else tuple(handlers))
        self.heart = Heart(self, heart or port, clock, self.info, lease)
        self.worn_out = False  # it has ended because of handlers that were left behind: only a new process is whole again
        self._house, self._spool, self.lease, self._margin = house, spool, lease, lease // FENCE
        self._sweeper = None if sweeper is None else Sweeper(sweeper, clock)
        self._at_the_disk, self._spooled = asyncio.Lock(), False
        self._measure, self._lag, self._to_tell = measure, Lag(), asyncio.Event()
        self._ability = Ability(clock)
        self._incarnation = 0 if about is None else round(clock.chance() * 2**31)  # so that two who go by one name can be told apart
        self._about = None if about is None else {**about, "incarnation": self._incarnation}
        self._life = None if process is None else Life(clock.nonce()[:LIFE_TAG], process)
        self._schemas = schemas  # what its code accepts, by job
        self._longest_wait: float = getattr(port, "longest_wait", LONGEST_WAIT)
        limits = getattr(port, "limits", Limits())
        self._batch, self._lines, self._bytes = min(limits.claim, limits.report), limits.lines_per_call, limits.batch
        self._crew, self._nursery, self._guard = Crew("windlass-work"), Nursery(), Guard()
        self._held: dict[Held, Execution] = {}  # until their report is stored; one that was lost may be held anew meanwhile
        self._busy: set[Execution] = set()  # until their handler has ended or is left behind
        self._doubts: dict[str, int] = {}  # room kept for what claims may still bring whose outcome nobody knows, by token
        self._unstarted: deque[Execution] = deque()
        self._abandoned: set[Execution] = set()
        self._done: deque[tuple[Execution, Report]] = deque()
        self._reporting: Sequence[tuple[Execution, Report]] = ()
        self._chatty: dict[Execution, None] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._running = self._stopping = self._heard = self._registered = False
        self._fatal: BaseException | None = None
        self._room, self._work_done, self._quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._wound_up, self._over = asyncio.Event(), asyncio.Event()
        self._serving: asyncio.Task[bool] | None = None
        self.left: Sequence[Leases] = ()  # what others held when it ended because there was nothing left to do
        self._stay_until: int | None = None
        # With one slot, where the store commits together what comes together, a report waits until the next claim has looked.
        self._hands_over, self._resting = self.info.slots == 1 and getattr(port, "commits_together", False), False
        self._looked: asyncio.Event | None = None
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
        self._running, self._loop, self._own = True, asyncio.get_running_loop(), copy_context()
        capture_logs()
        try:
            await self._insist(lambda: self.port.register(self.info, about=self._about, schemas=self._schemas))
            self._registered = True
            if self._spool is not None:
                await self._insist(partial(self._spool.deliver, self.port))
            await self._begin_life()  # only now: what a former process of this name has kept for it is good while the leases last
            self.heart.start()
            _LOG.info("Worker %s works: slots %d, queues %s, jobs %s.", *self._introduction())
            self._keep(self._keep_reporting(), self._keep_fencing(), self._keep_listening())
            if self._house is not None:
                self._keep_house(self._house)
            if self._measure is not None:
                self._keep(self._lag.run(), self._keep_measuring(self._measure))
            self._serving = self._loop.create_task(self._serve(until_idle))
            self._serving.add_done_callback(lambda _: self.let_report_go())
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

    async def _begin_life(self) -> None:
        """Recover at once what processes of this name held that are proven gone. All others keep their leases."""
        if self._life is None:
            return
        lives = await self._insist(partial(self.port.begin_life, self.info.name, self._life)) or []
        if self._life not in lives:
            self._life = None  # it is not kept, so there is nothing to end
        gone = [life.tag for life in lives if is_gone(life.process)]
        if gone and (number := await self._insist(partial(self.port.end_lives, self.info.name, gone))):
            _LOG.warning("A process of worker %s was gone without a word; what it held is recovered: %d runs.", self.info.name, number)

    async def _say_goodbye(self) -> None:
        """Say that nothing is held any more; where that is not known or cannot be said, its silence or the next process tells it."""
        unanswered = self._doubts or (self._serving is not None and self._serving.cancelled())
        if self._registered and not self._held and not unanswered:
            with suppress(WindlassError, TimeoutError):
                await asyncio.wait_for(self._end_life(), LAST_WORD / 5_000)

    async def _end_life(self) -> None:
        if self._life is not None:
            await self.port.end_lives(self.info.name, [self._life.tag])
        await self.port.leave(self.info.name, self._incarnation)

    def new_token(self) -> str:
        """For one claim. By how it begins, the leases of this process are told from those of others of its name."""
        return (self._life.tag if self._life else "") + self.clock.nonce()

    def _keep_house(self, house: House) -> None:
        keeping = Housekeeping(house, self.clock)
        if self._sweeper is None:
            self._keep(keeping.sweep(), keeping.tidy())
        else:
            self._keep(self._sweeper.run(), self._sweeper.listen(house), keeping.tidy())

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
        await aside(self._nursery.close)
        await aside(self._guard.close)
        await aside(self.heart.join, 5.0)
        if self._sweeper is not None:
            await aside(self._sweeper.join, 5.0)
        await self._say_goodbye()

    # Claiming

    async def _serve(self, until_idle: bool) -> bool:
        """Claim and run; True when it has ended by itself, False when it was told to stop."""
        nothing_to_come = False
        while not self._stopping:
            if self._abandoned and not self._held:
                _LOG.warning("The worker ends, so that a new process takes the place of what was left behind.")
                self.worn_out = True
                return True
            if self._ability.short:
                self.let_report_go()
                await self._until_able()
                continue
            room = self._free()
            if not room:
                self.let_report_go()
                await self._rest()
                continue
            asked, with_report = min(room, self._batch), self._looked is not None
            runs, asked_at = await self._insist(Claim(self, asked, self._send_report_first if with_report else None)) or ([], 0)
            self._trust(asked_at)
            for run in runs:
                self._take(run, asked_at)
            if runs:
                self._stay_until, nothing_to_come = None, False
            if with_report or len(runs) == asked or sum(len(run.payload) for run in runs) >= self._bytes or self._stopping:
                continue  # there may be more, or what the report sets free
            if until_idle and not runs and self._quiet.is_set() and not self._doubts:
                if nothing_to_come:  # and what came before that was known would have been claimed now
                    self._tell_left()
                    return True
                if await self._swept():
                    continue
                if nothing_to_come := await self._nothing_to_come():
                    continue
            await self._hint(or_an_end=until_idle)
        return False

    async def _until_able(self) -> None:
        """Claim nothing for a while; then try whether what was lacking can be had."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._change(), max(0.0, self._ability.again_at - self._loop.time()))
        if self._stopping or self._loop.time() < self._ability.again_at:
            return
        try:
            if "thread" in self._ability.short:
                self._crew.submit(_nothing)
            if "process" in self._ability.short:
                await aside(try_process)
        except Shortage as shortage:
            self._cannot(shortage)
        else:
            self._ability.regained()
            self._to_tell.set()

    def _cannot(self, shortage: Shortage) -> None:
        self._ability.lacks(shortage, self._loop.time())
        self._to_tell.set()

    async def _swept(self) -> bool:
        """Whether time has brought anything to do that was not queued yet."""
        if self._house is None:
            return False
        swept = await self._insist(partial(self._house.sweep, Watch(self.clock)))
        return swept is not None and (swept.fired > 0 or swept.settled > 0 or swept.dispatched > 0)

    async def _nothing_to_come(self) -> bool:
        """Whether nothing is worth waiting for: leases that are over can be recovered only by those who have watched them."""
        left = None if self._house is None else await self._insist(self._house.left)
        if left is None:
            return True
        now = self.clock.monotonic()
        self._stay_until = self._stay_until or now + STAY
        if now < self._stay_until and (left.due_at is not None or any(lease.over and lease.length < STAY for lease in left.leases)):
            return False
        self.left = left.leases
        return True

    def _tell_left(self) -> None:
        for lease in self.left:
            _LOG.log(*told_of(lease, self.clock.now()))

    def _trust(self, asked_at: int) -> None:
        """An answer that was long on its way is to be confirmed by a beat, before the fence takes it for lost."""
        if self.clock.monotonic() - asked_at > self.lease // 6:
            self.heart.now()

    def _free(self) -> int:
        """How many more runs there is room for. Reports that are not stored yet leave room for others, but not without bound."""
        if self.info.slots == 1:  # which the store frees only with the report
            return int((not self._held or self._looked is not None) and not self._abandoned and not self._doubts)
        free = self.info.slots - len(self._busy) - len(self._abandoned) - sum(self._doubts.values())
        return free if len(self._held) - len(self._busy) < self.info.slots + self._batch else 0

    def doubt(self, token: str, count: int, asked_at: int) -> None:
        """A claim may still come to hold runs: there is room for them until that is known."""
        self._doubts[token] = count
        self._keep(self._resolve(token, asked_at))

    async def _resolve(self, token: str, asked_at: int) -> None:
        """Take what a claim turns out to hold, asked for with each beat, until it has all that it asked for or can get no more."""
        seen, over = set[int](), False
        while self._doubts[token] > 0 and not over:
            over = self.clock.monotonic() > asked_at + DOUBT
            runs = await self._insist(partial(self.port.recover, self.info, token)) or ()
            for run in [run for run in runs if run.seq not in seen]:
                seen.add(run.seq)
                self._doubts[token] -= 1
                self._trust(asked_at)
                self._take(run, asked_at)
            await asyncio.sleep(min(1.0, self.lease / 1000 / OFTEN))
        del self._doubts[token]
        self._room.set()

    async def _rest(self) -> None:
        """Wait until there may be room."""
        self._resting = True
        try:
            await self._change()
        finally:
            self._resting = False

    async def _let_claim_look(self) -> None:
        """Before a report frees the one slot: wait until the next claim has looked, so that both are one commit."""
        if self._hands_over and self._resting and not self._stopping and len(self._held) == 1:
            self._looked = looked = asyncio.Event()
            self._room.set()
            await looked.wait()

    def let_report_go(self) -> None:
        """The claim has looked, or there is none for now."""
        if self._looked is not None:
            self._looked.set()
            self._looked = None

    async def _send_report_first(self) -> None:
        self.let_report_go()
        await asyncio.sleep(0)  # what was let go writes before this goes on

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
            self._end(execution, GiveBack(begun=False))
            return
        if handler.kind == "async":
            execution.task = self._loop.create_task(self._attempt(execution))
        else:
            execution.work = self._work_of(execution)
            try:
                self._crew.submit(lambda: self._on_thread(execution))
            except Shortage as shortage:
                self._not_begun(execution, shortage)
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
        execution.begun = True
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
        execution.begun = True
        try:
            report = paced(execution.work.run(), execution.run.attempt, execution.handler.backoff)
        except Shortage as shortage:
            self.call_soon(self._not_begun, execution, shortage)
            return
        except BaseException as error:
            report = Fail(error=failure_of(error))
        self.call_soon(self._ended_with, execution, report)

    def ask(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        """The answer to a question, which is asked on the loop's thread; from any thread."""
        return asyncio.run_coroutine_threadsafe(question, self._loop)

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have something done on the loop's thread, and not in the name of the handler that asks for it; from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(call, *arguments, context=self._own)

    def _after(self, execution: Execution, ms: int, why: Why) -> None:
        execution.timers.append(self._loop.call_later(ms / 1000, self._stop, execution, why))

    # Stopping one

    def told(self, execution: Execution, answer: str) -> None:
        """The heart has heard that a run is to be stopped, or is no longer ours."""
        self._stop(execution, "lost" if answer == "lost" else "cancel")

    def lose(self, execution: Execution) -> None:
        """The store says that a run is no longer ours: from here on nothing of it is written. From any thread."""
        if not execution.finished and not execution.lost:
            _LOG.warning("Run %s is no longer held by this worker; its handler is stopped and nothing is written.", execution.run.id)
        execution.lost = True

    def _stop(self, execution: Execution, why: Why) -> None:
        """Ask a handler to stop; when its grace is over, force it. The first reason stays, but for a lost lease."""
        if execution.lost:
            why = "lost"
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
        if execution.work is not None:
            self._ability.proven(_need(execution))
        self._ended(execution, report)

    def _not_begun(self, execution: Execution, shortage: Shortage) -> None:
        """A run for which the system had no thread or process goes back as it came."""
        execution.begun = False
        self._cannot(shortage)
        self._ended(execution, GiveBack(begun=False))

    def _ended(self, execution: Execution, report: Report) -> None:
        if execution in self._abandoned:
            self._abandoned.discard(execution)
            self._room.set()
        elif not execution.finished:
            self._end(execution, self._verdict(execution, report))

    def _verdict(self, execution: Execution, report: Report) -> Report | None:
        """What is reported, given why it was stopped; None: nothing. A result of one that did not know stands."""
        if execution.lost:
            return None
        if execution.why is None or isinstance(report, Succeed | GiveBack):
            return report
        policy = execution.run.policy
        match execution.why:
            case "drain" | "lost":  # by the clock: the store is asked whether it is still ours, and if so, somebody else shall have it
                return GiveBack(begun=execution.begun)
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
        if type(report) is not Succeed:
            execution.duration = self.clock.monotonic() - execution.began
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
                await self._report(self._next_done())

    def _next_done(self) -> list[tuple[Execution, Report]]:
        """As many reports as one call takes, by their number and their bytes."""
        batch, left = list[tuple[Execution, Report]](), self._bytes
        while self._done and len(batch) < self._batch:
            left -= report_size(self._done[0][1])
            if left < 0 and batch:
                break
            batch.append(self._done.popleft())
        return batch

    async def _keep_unsent(self) -> None:
        """What has ended and is not reported outlives this process, if there is where to keep it. A slow disk holds up nobody else."""
        if self._spool is None:
            return
        async with self._at_the_disk:
            if unsent := [_outcome(*item) for item in (*self._reporting, *self._done) if not item[0].lost]:
                self._spooled = True
                await aside(self._spool.keep, unsent)

    async def _drop_sent(self, batch: Sequence[tuple[Execution, Report]], answers: Answers) -> None:
        """Those that are said again stay on the disk until they are answered otherwise, or another report takes their place."""
        if self._spool is not None and self._spooled:
            sent = [_outcome(*item) for item in batch if not _said_again(item[0], answers.get(item[0]))]
            async with self._at_the_disk:
                await aside(self._spool.drop, sent)

    async def _report(self, batch: Sequence[tuple[Execution, Report]]) -> None:
        self._reporting = batch
        for execution, _ in batch:
            if execution.n and not execution.lost:
                await self._log(execution, last=True)
        await self._last_words(batch)
        await self._confirm([item for item, report in batch if not isinstance(report, Succeed)])
        await self._let_claim_look()
        answers = await self._insist(partial(self._send, batch), always=True) or {}
        self._reporting = ()
        await self._drop_sent(batch, answers)
        for execution, report in batch:
            answer = answers.get(execution)
            if answer is None or isinstance(answer, Receipt):
                tell_end(execution, report, None if answer is None else answer.state)  # without an answer it is known as lost
                self._forget(execution)
            else:
                self._refused(execution, report, answer)

    def _refused(self, execution: Execution, report: Report, answer: WindlassError) -> None:
        """A report was not taken: it is said again, otherwise, or not at all."""
        if isinstance(answer, Conflict):
            self._done.append((execution, report))  # somebody was faster fifty times: say it again
            return
        if _said_again(execution, answer):
            execution.refused = True
            refused = Failure(code="bad_output", message=f"The report was refused: {answer}")
            self._done.append((execution, Fail(error=refused, retry=report.retry if isinstance(report, Fail) else True)))
            return
        if isinstance(answer, Cancelled):
            _LOG.info("Run %s of %s: cancelled.", execution.run.id, execution.run.job)
        else:
            _LOG.warning("The report of run %s was refused: %s", execution.run.id, answer.message)
        self._forget(execution)

    async def _last_words(self, batch: Sequence[tuple[Execution, Report]]) -> None:
        """Bring the progress that no beat has brought yet, as far as it is taken."""
        told = {item.held: text for item, _ in batch if (text := item.progress_text) is not None and not item.lost}
        if told:
            try:
                await self.port.beat(list(told), lease=self.lease, progress=told)
            except (*AWAY, BadInput):
                pass
            except StoreError as error:
                if not of_one(error):
                    raise

    async def _confirm(self, ended: Sequence[Execution]) -> None:
        """Ask for those whose lease is over by the clock: the fence has only guessed, and what is lost is not to be reported."""
        now = self.clock.monotonic()
        if doubtful := [item for item in ended if not item.lost and item.lease_ends <= now + self._margin]:
            ask = partial(self.port.beat, [item.held for item in doubtful], lease=self.lease)
            for execution, answer in zip(doubtful, await self._insist(ask, always=True) or (), strict=True):
                if answer == "lost":
                    self.lose(execution)

    async def _send(self, batch: Sequence[tuple[Execution, Report]]) -> Answers:
        """Report what is not known as lost by now."""
        ours = [item for item in batch if not item[0].lost]
        answers = await self.port.report_many([_outcome(*item) for item in ours]) if ours else []
        return {execution: answer for (execution, _), answer in zip(ours, answers, strict=True)}

    async def _keep_measuring(self, measure: Callable[[], Mapping[str, float]]) -> None:
        measured: Mapping[str, float] = {}
        while True:
            self._to_tell.clear()
            try:
                measured = await aside(measure)
            except Exception as error:
                _LOG.warning("The host cannot be measured: %s", error)
                measure, measured = dict, {}
            with suppress(Exception):  # nobody's work depends on it
                await self.port.worker_metrics(self.info.name, {**measured, **self._own_metrics()})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._to_tell.wait(), MEASURE_EVERY)

    def _own_metrics(self) -> Mapping[str, float]:
        wall: int = getattr(self.clock, "wall", self.clock.now)()  # of this machine: the other may be the store's
        own = {"loop_lag_ms": self._lag.ms, "clock": wall, "incarnation": self._incarnation}
        return own | {"unable_ms": self._ability.for_ms} if self._ability.short else own

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
            if not execution.finished and not execution.lost:  # else its report takes them along, or nobody
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
        except StoreError as error:
            if not of_one(error):
                raise
            _LOG.warning("Lines of run %s are not kept: %s", execution.run.id, error)
        except WindlassError:
            return False
        return True

    # Holding

    def held(self) -> list[Execution]:
        """What this worker holds, for the heart; from any thread."""
        return [execution for execution in self._held.copy().values() if not execution.lost]

    async def _keep_fencing(self) -> None:
        """Stop what no beat got through for, while it can still be known to be held: before anybody else may begin."""
        margin, rest = self._margin, max(self.lease / 6000, 0.02)
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

    def __init__(self, worker: Worker, count: int, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self._worker, self._count = worker, count
        self._token, self._asked = worker.new_token(), False
        self._before = before  # awaited once it has looked

    async def __call__(self) -> tuple[list[Run], int]:
        """What there is to do, and when it was asked for: from then on its lease is counted."""
        worker, asked_at = self._worker, self._worker.clock.monotonic()
        if self._asked and (runs := await worker.port.recover(worker.info, self._token)):
            return runs, asked_at
        self._asked = True
        how: dict[str, Any] = {} if self._before is None else {"before": self._before}
        try:
            return await worker.port.claim(worker.info, count=self._count, lease=worker.lease, token=self._token, **how), asked_at
        except OutcomeUnknown as unknown:
            if unknown.settled:
                raise
            _LOG.warning("Whether runs were claimed is unknown; what the claim brings is asked for: %s", unknown)
            worker.doubt(self._token, self._count, asked_at)
            return [], asked_at
        finally:
            worker.let_report_go()


def told_of(lease: Leases, now: int) -> tuple[int, str]:
    """What is said, and how loudly, of leases that a worker leaves to others when it ends."""
    held = f"Worker {lease.worker} holds {lease.runs} run{'s' * (lease.runs > 1)}"
    if not lease.over or lease.over_since is None:
        return logging.INFO, f"{held}. If it is gone, come again in {span((lease.ends_at or now) - now)}, when the first lease is over."
    return logging.WARNING, (
        f"{held}, {lease.over} of them under a lease that has been over for {span(now - lease.over_since)}. "
        f"To recover them takes a worker that is no burst, or a hub, and {span(lease.length)} for which it runs."
    )


async def aside(call: Callable[..., T], *arguments: Any) -> T:
    """Call what blocks on a thread; where the system has none, here."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except RuntimeError as error:
        if not is_no_thread(error):
            raise  # the call's own: it is not made twice
        return call(*arguments)


def _nothing() -> None: ...


def _need(execution: Execution) -> Need:
    return "process" if execution.can_be_killed else "thread"


def _unknown(context: Any) -> Any:
    raise UnknownHandler(context.job)


def _said_again(execution: Execution, answer: Receipt | WindlassError | None) -> bool:
    """Whether a further report of a run follows this answer: the same one, or that what it brought cannot be kept."""
    return isinstance(answer, Conflict) or (isinstance(answer, BadInput) and not execution.refused)


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
