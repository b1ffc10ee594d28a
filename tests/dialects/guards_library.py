"""The library of the design guards over a harness, whose clock stands still, and a worker for its queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.harness import BOOM, Harness
from windlass import App
from windlass.dialects.guards import InvalidOperationError, Job, JobRun, Scheduler, Settings
from windlass.model import Life, Run, WorkerInfo
from windlass.worker.lives import own_process

QUEUE = "guards"
DELAYS = (10, 20, 40)
"""Seconds before each automatic retry."""


class Library(Scheduler):
    """A scheduler over a harness, with the template `story`, and what a worker does to its jobs."""

    def __init__(self, h: Harness, **settings: Any) -> None:
        app = App(":memory:", clock=h.clock)
        app._opened, app._pid = h.engine, os.getpid()
        super().__init__(app, settings=Settings(**settings))
        self.h = h
        self.create_template("story")

    def job(self, template_id: str = "story", **arguments: Any) -> str:
        return self.create_job(template_id, **arguments).job_id

    def claimed(self, worker: str = "w1", **can: Any) -> Run:
        """The one job that a worker of the queue is given now."""
        return self.h.claimed(worker, queues=(QUEUE,), **can)

    def idle(self) -> bool:
        """Whether a worker is given nothing now."""
        return not self.h.claim(queues=(QUEUE,))

    def end(self, **updates: Any) -> JobRun:
        """Give a worker the next job, and end its run."""
        return self.update_jobrun(self.claimed().current_attempt, **updates)

    def fail(self) -> str:
        """Give a worker the next job, and let it fail; returns the job."""
        return self.fail_run(self.claimed())

    def fail_run(self, run: Run) -> str:
        """Let the handler of a run fail; returns the job."""
        self.h.fail(run, BOOM)
        return run.current_attempt

    def advance(self, **duration: float) -> None:
        """Move the clock, and do what is due by then."""
        self.h.sweep(round(timedelta(**duration).total_seconds() * 1000))

    def newest(self) -> Job:
        return self.list_jobs(limit=1)[0]

    def words(self) -> list[tuple[str, bool]]:
        """The status of each job, oldest first, and whether it has ended."""
        return [(job.status.value, self.is_terminal(job.status)) for job in reversed(self.list_jobs(limit=200))]

    def everything(self) -> tuple[Any, ...]:
        """What a refused request must not change."""
        return (self.list_jobs(limit=200), self.list_jobruns(limit=200), self.list_templates(), self.list_schedules(), self.list_groups())

    @contextmanager
    def refused(self, match: str | None, kind: type[Exception] = InvalidOperationError) -> Iterator[pytest.ExceptionInfo[Any]]:
        """The block raises the document's error, and changes nothing."""
        before = self.everything()
        with pytest.raises(kind, match=match) as refusal:
            yield refusal
        assert self.everything() == before


def crashed(h: Harness, worker: str = "w1") -> str:
    """A job that was handed to a process of this machine which is proven gone."""
    process, info = own_process(), WorkerInfo(worker, (QUEUE,))
    assert process is not None
    life = Life("crashed0", " ".join([*process.split()[:3], "1", "1"]))  # the first process began at another time
    h(h.engine.register(info))
    h(h.engine.begin_life(worker, life))
    (run,) = h(h.engine.claim(info, token=life.tag + "x" * 22))
    return run.id
