"""Runs in flight: one execution from its claim until its report is answered, and the set of all that a worker has."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal

from windlass.model import Limits, Result, Run, Step
from windlass.store.records import Held
from windlass.worker.context import Call, Context
from windlass.worker.executors import Executor
from windlass.worker.handlers import Handler

if TYPE_CHECKING:
    from windlass.worker.runner import Runner

_LOG = logging.getLogger("windlass.worker")

Why = Literal["cancel", "timeout", "max_runtime", "drain", "abort", "lost"]
_LIMITS = Limits()
LINES, LINE = _LIMITS.lines, _LIMITS.line
LOG = _LIMITS.log - LINE  # the rest is for the line with the number of dropped ones


def _size(text: str) -> int:
    """The bytes of a line that are stored."""
    return min(len(text[:LINE].encode("utf-8", "replace")), LINE)


class Execution:
    """One attempt: its lease, its log and progress, and the reason to stop it, if there is one."""

    __slots__ = (
        "began", "begun", "context", "dropped", "duration", "executor", "finished", "handler", "held", "lease_ends", "lines", "logged",
        "logging", "lost", "n", "progress_text", "refused", "run", "runner", "task", "timers", "why",
    )  # fmt: skip

    def __init__(self, runner: Runner, run: Run, handler: Handler, now: int, lease_ends: int) -> None:
        self.runner, self.run, self.handler = runner, run, handler
        self.held = Held(run.seq, run.token or "")
        self.began, self.lease_ends = now, lease_ends
        self.duration: int | None = None  # milliseconds, of one that did not succeed
        details = run.payload, run.max_attempts, run.failures, run.scheduled_for, run.queue, runner.name, run.policy.handler
        self.context = Context(Call(run.id, run.job, run.attempt, self.held.token, *details), self)
        self.task: asyncio.Task[None] | None = None
        self.executor: Executor | None = None
        self.why: Why | None = None
        self.begun = self.finished = False
        self.lost = False  # the store no longer assigns the run to this worker: nothing of it is written. Set from any thread
        self.refused = False  # the store has refused its report once; what is reported instead may be refused too
        self.timers: list[asyncio.TimerHandle] = []
        self.lines: list[tuple[int, str]] = []
        self.n = self.dropped = self.logged = 0
        self.logging: asyncio.Lock | None = None  # lines are sent one batch after the other, and all before the report
        self.progress_text: str | None = None

    # Output of the handler, from any thread

    def line(self, text: str) -> None:
        self.logged += len(text) if text.isascii() and len(text) <= LINE else _size(text)
        if self.n >= LINES - 1 or self.logged > LOG:  # the last line is the number of dropped ones
            self.dropped += 1
            return
        self.n += 1
        self.lines.append((self.n, text))
        if len(self.lines) == 1:
            self.runner.log_soon(self)

    def progress(self, text: str) -> None:
        self.progress_text = text
        self.runner.heartbeat.soon()

    def beat(self) -> None:
        self.runner.heartbeat.now()

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        return self.runner.results(self.run.id, after, count)

    def steps(self, after: int, count: int) -> Future[list[Step]]:
        return self.runner.steps.read(self, after, count)

    def store_step(self, key: str, output: str) -> Future[Step]:
        return self.runner.steps.store(self, key, output)

    # Control by the worker, on the loop's thread

    def ask_to_stop(self) -> None:
        """Pass the reason on, first to the flag that the handler can read."""
        self.context.ask_to_stop(self.why or "lost")
        if self.executor is not None:
            self.executor.ask_to_stop(self.why or "lost")
        elif self.task is not None:
            self.context.saw_stop = True  # the exception is raised in it
            self.task.add_done_callback(lambda _: self.runner.never_ran(self))  # a task that has not begun ends without a report
            self.task.cancel(f"windlass: {self.why}")

    @property
    def can_be_killed(self) -> bool:
        return self.handler.kind in ("process", "command")

    def kill(self) -> bool:
        """End it by force; False when it can only be abandoned."""
        return self.executor is not None and self.executor.kill()

    def lose(self) -> None:
        """The run now belongs to another worker, or to none: from here on nothing of it is written. From any thread."""
        if not self.finished and not self.lost:
            _LOG.warning("Run %s is no longer held by this worker; its handler is stopped and nothing is written.", self.run.id)
        self.lost = True

    def finish(self) -> None:
        """The handler has ended: cancel all timers."""
        self.finished = True
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def release(self) -> None:
        """The report is stored: break reference cycles, so that the memory is free at once."""
        self.context.close()
        self.task = self.executor = None


class InFlight:
    """The executions of one worker, and events for the parts that wait for a change."""

    def __init__(self) -> None:
        self.held: dict[Held, Execution] = {}  # until their report is stored; a run that was lost may be held anew meanwhile
        self.busy: set[Execution] = set()  # until their handler has ended or is abandoned
        self.abandoned: set[Execution] = set()
        self.changed, self.quiet = asyncio.Event(), asyncio.Event()
        self.quiet.set()

    def add(self, execution: Execution) -> None:
        self.held[execution.held] = execution
        self.busy.add(execution)
        self.quiet.clear()

    def remove(self, execution: Execution) -> None:
        """Nothing more is to be done about an execution."""
        execution.release()
        self.held.pop(execution.held, None)
        self.changed.set()
        if not self.held and not self.busy:
            self.quiet.set()

    def renewable(self) -> list[Execution]:
        """The executions whose lease is to be renewed; from any thread."""
        return [execution for execution in self.held.copy().values() if not execution.lost]

    async def change(self) -> None:
        """Wait until a run has ended, or the worker stops."""
        self.changed.clear()
        await self.changed.wait()
