"""`Client` and `AsyncClient`: what a program imports that asks a hub. The same names in both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from windlass.client.controls import ControlVerbs
from windlass.client.events import Told, follow
from windlass.client.groups import GroupVerbs
from windlass.client.transport import AsyncTransport, BlockingTransport
from windlass.client.verbs import PATIENCE, place, said
from windlass.clock import Clock, SystemClock
from windlass.engine import checks
from windlass.model import Run, State
from windlass.slots import Duration, HeldSlot, direct_call, in_loop, on_thread
from windlass.store.base import run_sync

P = ParamSpec("P")
T = TypeVar("T")

TOKEN = "WINDLASS_HUB_TOKEN"


def _token(given: str | None) -> str | None:
    return given if given is not None else os.environ.get(TOKEN) or None


class _Asking(GroupVerbs, ControlVerbs):
    """The verbs, and what only a stream can tell."""

    def follow(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[Told]:
        path = place("events") if run_id is None else place("runs", checks.identifier(run_id, "The run"), "events")
        query = said(job=job, queue=queue, state=state)
        how: dict[str, Any] = {"after": after, "patience": self._patience, "until_end": run_id is not None}
        return follow(self.transport, self.clock, path, query, **how)


def _plain(verb: Callable[Concatenate[_Asking, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    """A verb as a plain method."""

    @wraps(verb)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(verb(self._verbs, *args, **kwargs))

    return call


class Client:
    """A hub, for plain code: every call blocks until its answer is there. Threads may share it."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        transport = BlockingTransport(url, token=_token(token), ca_file=ca_file)
        self._verbs = _Asking(transport, clock or SystemClock(), patience=patience)

    define = _plain(_Asking.define)
    jobs = _plain(_Asking.jobs)
    get_job = _plain(_Asking.get_job)
    drop_job = _plain(_Asking.drop_job)

    create = _plain(_Asking.create)
    rerun = _plain(_Asking.rerun)
    cancel = _plain(_Asking.cancel)
    patch = _plain(_Asking.patch)
    move = _plain(_Asking.move)

    get = _plain(_Asking.get)
    wait = _plain(_Asking.wait_for)
    status = _plain(_Asking.status)
    runs = _plain(_Asking.runs)
    attempts = _plain(_Asking.attempts)
    history = _plain(_Asking.history)
    lines = _plain(_Asking.lines)
    why = _plain(_Asking.why)

    create_group = _plain(_Asking.create_group)
    get_group = _plain(_Asking.get_group)
    groups = _plain(_Asking.groups)
    members = _plain(_Asking.members)
    cancel_group = _plain(_Asking.cancel_group)
    rerun_group = _plain(_Asking.rerun_group)
    results = _plain(_Asking.results)

    pause = _plain(_Asking.pause)
    resume = _plain(_Asking.resume)
    pauses = _plain(_Asking.pauses)
    set_queue = _plain(_Asking.set_queue)
    queues = _plain(_Asking.queues)
    retention = _plain(_Asking.retention)
    set_retention = _plain(_Asking.set_retention)
    set_resource = _plain(_Asking.set_resource)
    add_resource = _plain(_Asking.add_resource)
    drop_resource = _plain(_Asking.drop_resource)
    get_resource = _plain(_Asking.get_resource)
    resources = _plain(_Asking.resources)
    occupants = _plain(_Asking.occupants)
    all_lanes = _plain(_Asking.all_lanes)
    drop_lane = _plain(_Asking.drop_lane)

    reserve = _plain(_Asking.reserve)
    turn = _plain(_Asking.turn)
    renew = _plain(_Asking.renew)
    release = _plain(_Asking.release)
    slots = _plain(_Asking.slots)

    schedule = _plain(_Asking.schedule)
    get_schedule = _plain(_Asking.get_schedule)
    schedules = _plain(_Asking.schedules)
    set_schedule = _plain(_Asking.set_schedule)
    remove_schedule = _plain(_Asking.remove_schedule)
    trigger = _plain(_Asking.trigger)
    skips = _plain(_Asking.skips)
    preview = _plain(_Asking.preview)

    workers = _plain(_Asking.workers)
    drop_worker = _plain(_Asking.drop_worker)
    stats = _plain(_Asking.stats)
    doctor = _plain(_Asking.doctor)

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> Iterator[Told]:
        """What happens from now on, or after the id of an event; with a run, what it does and logs until its end."""
        stream = self._verbs.follow(run_id, job=job, queue=queue, state=state, after=after)
        try:
            while True:
                try:
                    yield run_sync(anext(stream))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            run_sync(stream.aclose())  # type: ignore[attr-defined]

    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AbstractContextManager[HeldSlot]:
        """Hold the next slot of a resource for the block: behind what runs and those who asked before, ahead of every queue.

        NotInTime when it is not free in time; LeaseLost at the end of the block when it was lost meanwhile.
        """
        return on_thread(self._verbs, direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease))

    def close(self) -> None:
        """Let go of the connections."""
        run_sync(self._verbs.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(_Asking):
    """The same for event loops: every call is awaited."""

    def __init__(
        self, url: str, *, token: str | None = None, ca_file: str | None = None, patience: float = PATIENCE, clock: Clock | None = None
    ) -> None:
        super().__init__(AsyncTransport(url, token=_token(token), ca_file=ca_file), clock or SystemClock(), patience=patience)

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended; TimeoutError when it takes longer."""
        return await self.wait_for(run_id, timeout)

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[Told]:
        """What happens from now on, or after the id of an event; with a run, what it does and logs until its end."""
        return self.follow(run_id, job=job, queue=queue, state=state, after=after)

    def slot(
        self, resource: str, *, timeout: Duration | None = None, key: str | None = None, weight: int = 1, lease: Duration | None = None
    ) -> AbstractAsyncContextManager[HeldSlot]:
        """Hold the next slot of a resource for the block: behind what runs and those who asked before, ahead of every queue.

        NotInTime when it is not free in time; LeaseLost at the end of the block when it was lost meanwhile.
        """
        return in_loop(self, direct_call(resource, key=key, weight=weight, timeout=timeout, lease=lease))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
