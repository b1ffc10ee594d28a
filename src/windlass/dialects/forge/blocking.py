"""The functions that the protocol's document names, on the caller's thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from windlass.app import App
from windlass.dialects.forge.verbs import JobQueue
from windlass.dialects.forge.words import QUEUE
from windlass.store.base import run_sync

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(verb: Callable[Concatenate[JobQueue, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Forge, P], T]:
    @wraps(verb)
    def call(forge: Forge, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(verb(forge.jobs, *args, **kwargs))

    return call


class Forge:
    """The job queue in a store: by its address, or that of an app. Also a context manager, which closes a store that it has opened."""

    def __init__(self, store: str | os.PathLike[str] | App, *, queue: str = QUEUE) -> None:
        self._app = store if isinstance(store, App) else App(store)
        self._owns = not isinstance(store, App)
        self._queue = queue

    @property
    def jobs(self) -> JobQueue:
        """The same verbs as coroutines."""
        return JobQueue(self._app.engine, self._queue)

    create_job = _blocking(JobQueue.create_job)
    claim_job = _blocking(JobQueue.claim_job)
    get_job = _blocking(JobQueue.get_job)
    list_jobs = _blocking(JobQueue.list_jobs)
    heartbeat_job = _blocking(JobQueue.heartbeat_job)
    submit_result = _blocking(JobQueue.submit_result)
    fail_job = _blocking(JobQueue.fail_job)
    cancel_job = _blocking(JobQueue.cancel_job)
    reap_stale_jobs = _blocking(JobQueue.reap_stale_jobs)
    register_worker = _blocking(JobQueue.register_worker)
    list_workers = _blocking(JobQueue.list_workers)
    counts_by_worker = _blocking(JobQueue.counts_by_worker)

    def close(self) -> None:
        """Close the store, unless it is an app's."""
        if self._owns:
            self._app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Where = Forge | App | str | os.PathLike[str]


def _function(method: Callable[Concatenate[Forge, P], T]) -> Callable[Concatenate[Where, P], T]:
    """A method as a function of a store, which is opened for the call where it is given by its address."""

    @wraps(method)
    def call(store: Where, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(store, Forge):
            return method(store, *args, **kwargs)
        with Forge(store) as forge:
            return method(forge, *args, **kwargs)

    return call


create_job = _function(Forge.create_job)
claim_job = _function(Forge.claim_job)
get_job = _function(Forge.get_job)
list_jobs = _function(Forge.list_jobs)
submit_result = _function(Forge.submit_result)
fail_job = _function(Forge.fail_job)
cancel_job = _function(Forge.cancel_job)
reap_stale_jobs = _function(Forge.reap_stale_jobs)
register_worker = _function(Forge.register_worker)
