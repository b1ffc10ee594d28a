"""One attempt at work on a thread: run it, ask it to stop, kill it. What runs in a process is driven from the thread as well."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Protocol

from windlass.machine import Fail, Refuse, Report
from windlass.model import Failure
from windlass.worker.context import Context, enter
from windlass.worker.handlers import BadPayload, Handler, Unfit
from windlass.worker.outcomes import Stopped, raised, returned


class Work(Protocol):
    """One attempt. `run` blocks its thread; the others come from any thread and return at once."""

    def run(self) -> Report: ...

    def ask_to_stop(self, why: str) -> None: ...

    def kill(self) -> bool:
        """End it by force; False when that cannot be done."""


class InThread:
    """A plain function on a thread. It can be asked to stop, and not be forced."""

    def __init__(self, handler: Handler, context: Context) -> None:
        self.handler, self.context = handler, context

    def run(self) -> Report:
        return copy_context().run(attempt, self.handler, self.context)  # what it sets is gone when the thread is used again

    def ask_to_stop(self, why: str) -> None:
        self.context.ask_to_stop(why)

    def kill(self) -> bool:
        return False


def attempt(handler: Handler, context: Context) -> Report:
    """Call a handler here and now; whatever it does becomes a report."""
    assert handler.call is not None
    enter(context)
    try:
        value = handler.call(context)
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
        if context.saw_stop:
            raise Stopped(context.why)
        return returned(value, handler.encode)
    except BaseException as error:  # SystemExit and the like end the attempt, not the worker
        return report_of(error, handler, context)


def report_of(error: BaseException, handler: Handler, context: Context) -> Report:
    """The report for an attempt that raised. The exception itself stays with the context, for the worker's own log."""
    report = _judged(error, handler, context)
    if isinstance(report, Fail | Refuse):
        context.failed_with = (report.error, error)
    return report


def _judged(error: BaseException, handler: Handler, context: Context) -> Report:
    if isinstance(error, BadPayload) and error.schema is not None:
        return Refuse(error=Failure(code=error.code, message=str(error)), schema=error.schema)
    if isinstance(error, Unfit):
        return Fail(error=Failure(code=error.code, message=str(error)), retry=False)
    return raised(error, attempt=context.attempt, backoff=handler.backoff)
