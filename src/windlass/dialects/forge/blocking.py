"""The functions that the protocol's document names, on the caller's thread."""

from __future__ import annotations

from windlass.dialects.facades import Facade, Location, function, method
from windlass.dialects.forge.verbs import JobQueue
from windlass.dialects.forge.words import QUEUE


class Forge(Facade[JobQueue]):
    """The job queue in a store: by its address, or that of an app. Also a context manager, which closes a store that it has opened."""

    def __init__(self, store: Location, *, queue: str = QUEUE) -> None:
        super().__init__(store)
        self._queue = queue

    @property
    def verbs(self) -> JobQueue:
        return JobQueue(self._app.engine, self._queue)

    create_job = method(JobQueue.create_job)
    claim_job = method(JobQueue.claim_job)
    get_job = method(JobQueue.get_job)
    list_jobs = method(JobQueue.list_jobs)
    heartbeat_job = method(JobQueue.heartbeat_job)
    submit_result = method(JobQueue.submit_result)
    fail_job = method(JobQueue.fail_job)
    cancel_job = method(JobQueue.cancel_job)
    reap_stale_jobs = method(JobQueue.reap_stale_jobs)
    register_worker = method(JobQueue.register_worker)
    list_workers = method(JobQueue.list_workers)
    counts_by_worker = method(JobQueue.counts_by_worker)


create_job = function(Forge, Forge.create_job)
claim_job = function(Forge, Forge.claim_job)
get_job = function(Forge, Forge.get_job)
list_jobs = function(Forge, Forge.list_jobs)
submit_result = function(Forge, Forge.submit_result)
fail_job = function(Forge, Forge.fail_job)
cancel_job = function(Forge, Forge.cancel_job)
reap_stale_jobs = function(Forge, Forge.reap_stale_jobs)
register_worker = function(Forge, Forge.register_worker)
