"""How an attempt is executed from a thread: run, ask to stop, kill. A process or command occupies a thread as well."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Protocol

from windlass.machine import Fail, Refuse, Report
from windlass.model import Failure
from windlass.worker.context import Context, enter
from windlass.worker.handlers import BadPayload, Handler, Unfit
from windlass.worker.outcomes import Stopped, raised, returned


class Executor(Protocol):
    """One attempt. `run` blocks its thread; the other methods are called from any thread and return at once."""

    def run(self) -> Report: ...

    def ask_to_stop(self, why: str) -> None: ...

    def kill(self) -> bool:
        """End it by force; False when that cannot be done."""


class ThreadExecutor:
    """A plain function on a thread. It can be asked to stop, and not be forced."""

    def __init__(self, handler: Handler, context: Context) -> None:
        self.handler, self.context = handler, context

    def run(self) -> Report:
        return copy_context().run(attempt, self.handler, self.context)  # so that context variables do not outlive the attempt

    def ask_to_stop(self, why: str) -> None:
        self.context.ask_to_stop(why)

    def kill(self) -> bool:
        return False


def attempt(handler: Handler, context: Context) -> Report:
    """Call a handler in this thread; its value or exception becomes a report."""
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
    report = _report_of(error, handler, context)
    if isinstance(report, Fail | Refuse):
        context.failed_with = (report.error, error)
    return report


def _report_of(error: BaseException, handler: Handler, context: Context) -> Report:
    if isinstance(error, BadPayload) and error.schema is not None:
        return Refuse(error=Failure(code=error.code, message=str(error)), schema=error.schema)
    if isinstance(error, Unfit):
        return Fail(error=Failure(code=error.code, message=str(error)), retry=False)
    return raised(error, attempt=context.attempt, backoff=handler.backoff)
