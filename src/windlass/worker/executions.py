"""A run in this worker's hands, from its claim until its report is answered."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal

from windlass.model import Limits, Result, Run
from windlass.store.records import Held
from windlass.worker.context import Call, Context
from windlass.worker.handlers import Handler
from windlass.worker.works import Work

if TYPE_CHECKING:
    from windlass.worker.loop import Worker

Why = Literal["cancel", "timeout", "max_runtime", "drain", "abort", "lost"]
_LIMITS = Limits()
LINES, LINE = _LIMITS.lines, _LIMITS.line
LOG = _LIMITS.log - LINE  # the rest is for the line that says how many were dropped


def _size(text: str) -> int:
    """The bytes that are kept of a line."""
    return min(len(text[:LINE].encode("utf-8", "replace")), LINE)


class Execution:
    """One attempt: what holds it, what it says, and why it should stop, if it should."""

    __slots__ = (
        "began", "begun", "context", "dropped", "duration", "finished", "handler", "held", "lease_ends", "lines", "logged", "logging",
        "lost", "n", "progress_text", "refused", "run", "task", "timers", "why", "work", "worker",
    )  # fmt: skip

    def __init__(self, worker: Worker, run: Run, handler: Handler, now: int, lease_ends: int) -> None:
        self.worker, self.run, self.handler = worker, run, handler
        self.held = Held(run.seq, run.token or "")
        self.began, self.lease_ends = now, lease_ends
        self.duration: int | None = None  # milliseconds, of one that did not succeed
        said = run.payload, run.max_attempts, run.burnt, run.scheduled_for, run.queue, worker.info.name
        self.context = Context(Call(run.id, run.job, run.attempt, self.held.token, *said), self)
        self.task: asyncio.Task[None] | None = None
        self.work: Work | None = None
        self.why: Why | None = None
        self.begun = self.finished = False
        self.lost = False  # the store says that it is no longer ours: nothing of it is written. Set by `Worker.lose`, from any thread
        self.refused = False  # the store does not take its report, nor may it take what is said instead
        self.timers: list[asyncio.TimerHandle] = []
        self.lines: list[tuple[int, str]] = []
        self.n = self.dropped = self.logged = 0
        self.logging: asyncio.Lock | None = None  # lines are sent one batch after the other, and all before the report
        self.progress_text: str | None = None

    # What the handler says, from any thread

    def line(self, text: str) -> None:
        self.logged += len(text) if text.isascii() and len(text) <= LINE else _size(text)
        if self.n >= LINES - 1 or self.logged > LOG:  # the last one says how many were dropped
            self.dropped += 1
            return
        self.n += 1
        self.lines.append((self.n, text))
        if len(self.lines) == 1:
            self.worker.call_soon(self.worker.log_soon, self)

    def progress(self, text: str) -> None:
        self.progress_text = text
        self.worker.heart.soon()

    def beat(self) -> None:
        self.worker.heart.now()

    def results(self, after: str | None, count: int) -> Future[list[Result]]:
        return self.worker.ask(self.worker.port.results(self.run.id, after=after, count=count))

    # What the worker does to it, on the loop's thread

    def ask_to_stop(self) -> None:
        """Pass the reason on, first to the flag that the handler can look at."""
        self.context.ask_to_stop(self.why or "lost")
        if self.work is not None:
            self.work.ask_to_stop(self.why or "lost")
        elif self.task is not None:
            self.task.add_done_callback(lambda _: self.worker.never_ran(self))  # one that has not begun ends without a word
            self.task.cancel(f"windlass: {self.why}")

    @property
    def can_be_killed(self) -> bool:
        return self.handler.kind in ("process", "command")

    def kill(self) -> bool:
        """End it by force; False when only leaving it behind is possible."""
        return self.work is not None and self.work.kill()

    def let_go(self) -> None:
        """Its report is stored: what refers to each other in a circle is taken apart, so that the memory is free at once."""
        self.context.close()
        self.task = self.work = None

    def settle(self) -> None:
        """It has ended: no timer shall go off any more."""
        self.finished = True
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
