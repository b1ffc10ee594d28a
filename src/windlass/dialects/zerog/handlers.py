"""From a definition to the handler of a worker. Its signal asks it to stop; it is cancelled only if it goes on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from windlass import payload as json
from windlass.dialects.calls import caught
from windlass.dialects.zerog.context import JobContext
from windlass.dialects.zerog.jobs import Backoff, JobDefinition
from windlass.model import Run
from windlass.worker import Context, Handler
from windlass.worker.outcomes import Backoff as WorkerBackoff

Prepare = Callable[[JobDefinition, Context], JobContext]
"""What a handler is given, by its definition and the attempt."""
Patience = Callable[[Context], float]
"""Seconds for which a handler may go on that was asked to stop."""


def handler_of(definition: JobDefinition, prepare: Prepare, patience: Patience) -> Handler:
    """The handler of a worker. Coroutine functions run in its loop, plain functions on threads."""
    backoff = None if definition.backoff_ms is None else _in_seconds(definition.backoff_ms)
    if _is_async(definition.handler):
        return Handler(definition.name, "async", partial(_await, definition, prepare, patience), definition.to_result, backoff=backoff)
    return Handler(definition.name, "thread", partial(_call, definition, prepare), definition.to_result, backoff=backoff)


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _in_seconds(backoff_ms: Backoff) -> WorkerBackoff:
    return lambda attempt, error: backoff_ms(attempt) / 1000


def _call(definition: JobDefinition, prepare: Prepare, context: Context) -> Any:
    return definition.handler(prepare(definition, context))


async def _await(definition: JobDefinition, prepare: Prepare, patience: Patience, context: Context) -> Any:
    """Await a handler in a task of its own, which the cancellation of this one does not reach."""
    job = prepare(definition, context)
    task = asyncio.ensure_future(caught(definition.handler(job)))
    try:
        return (await asyncio.shield(task)).value()
    except asyncio.CancelledError:
        context.saw_stop = False  # no exception was raised in the handler: what it returns is its result
        job.signal.wake()
        await _end(task, patience(context))
        return task.result().value()


async def _end(task: asyncio.Future[Any], seconds: float) -> None:
    """Let a handler end by itself, and cancel it if it does not; at once if this is cancelled again."""
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    await asyncio.wait({task})


def input_of(definition: JobDefinition, run: Run) -> Any:
    """The input of a claimed run."""
    return definition.to_input(json.decode(run.payload))
