"""Direct calls: the caller waits for the next slot, the handler runs here, and its result is the answer. No job is created."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from windlass.api.rows import POST, Param
from windlass.app.calling import DirectCall
from windlass.app.jobs import Definition
from windlass.dialects.base import Handler, Request
from windlass.dialects.guards.answers import OBJECT, row
from windlass.dialects.guards.bodies import CallTimeout, read
from windlass.dialects.guards.settings import RESOURCE, Settings
from windlass.engine import Engine
from windlass.errors import Timeout, WindlassError
from windlass.slots import direct_call, in_loop

_LOG = logging.getLogger("windlass.dialects.guards")

_encode = msgspec.json.Encoder().encode


class NoHandler(WindlassError):
    """This process has no handler for a direct call."""

    code, status = "no_handler", 503


class HeldCall:
    """A direct call that waits for a slot, or holds one for as long as its handler runs, whether or not its caller still waits."""

    def __init__(self, call: DirectCall, engine: Engine, actor: str) -> None:
        self._call, self._began, self._awaited = call, False, True
        self.task = asyncio.create_task(self._run(engine, actor))
        self.task.add_done_callback(self._ended)

    async def _run(self, engine: Engine, actor: str) -> Any:
        async with in_loop(engine, direct_call(RESOURCE, key=None, weight=1, timeout=None, lease=None, actor=actor)):
            self._began = True
            return await _on_thread(self._call.run)

    def give_up(self) -> None:
        """Its caller waits no longer: a handler that runs is asked to stop, and keeps the slot until it has."""
        self._awaited = False
        if self._began:
            self._call.ask_to_stop("timeout")
        else:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._awaited:
            _LOG.warning("A direct call whose caller had gone has failed: %s", error)


async def _on_thread(call: Callable[[], Any]) -> Any:
    """The result of a function on a thread that does not keep the process from ending."""
    future = Future[Any]()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=run, name="windlass-direct", daemon=True).start()
    return await asyncio.wrap_future(future)


class DirectRoutes:
    """The routes of the settings, each with the job whose handler it calls."""

    def __init__(self, settings: Settings) -> None:
        self.verbs = tuple(
            row(path, POST, path, f"Call {job}", "submit", takes=OBJECT | None, query=(Param("timeout"),))
            for path, job in settings.direct.items()
        )
        self.handlers: dict[str, Handler] = {path: partial(self._answer, job) for path, job in settings.direct.items()}
        self._calls = set[asyncio.Task[Any]]()

    async def _answer(self, job: str, request: Request, data: Any, timeout: str | None) -> Any:
        seconds = read(CallTimeout, {"timeout": timeout}, "query").timeout
        call = HeldCall(DirectCall(_definition(request, job), data or {}), request.engine, request.caller.actor)
        self._calls.add(call.task)  # the loop itself keeps no reference
        call.task.add_done_callback(self._calls.discard)
        try:
            await request.wait(partial(asyncio.wait, {call.task}, timeout=seconds))
        finally:
            if not call.task.done():
                call.give_up()
        if not call.task.done():
            raise Timeout(f"{job} was not done within {seconds} s.", hint="Wait for longer (?timeout=SECONDS), or create a job instead.")
        return msgspec.Raw(_encode(call.task.result()))


def _definition(request: Request, job: str) -> Definition[..., Any]:
    """The job whose handler is called."""
    definition = None if request.app is None else request.app.jobs.get(job)
    if definition is None or definition.handler.call is None:
        raise NoHandler(
            f"This server cannot call {job!r}: it was started without an app that has a function of this name.",
            hint="Start it with the app (windlass up shop:app), or create a job and read its run.",
        )
    return definition
