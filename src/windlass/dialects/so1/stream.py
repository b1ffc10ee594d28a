"""The events of a job: `status` for its states, `log` for its lines."""

from __future__ import annotations

from typing import Any

from windlass.dialects.base import AttemptFrames, Course
from windlass.dialects.so1.words import ENDED, JobState, JobView, views_of
from windlass.engine import Engine
from windlass.model import LogLine, Run


class JobFrames(AttemptFrames):
    """The events of a job."""

    async def course(self, engine: Engine, run: Run, n: int) -> Course:
        attempts = (await engine.attempts_of([run]))[run.id]
        return course_of(list(views_of(run, attempts))[n - 1])

    def line(self, line: LogLine) -> tuple[str, Any]:
        return "log", {"line": line.text, "cursor": line.n}


JOB_FRAMES = JobFrames()


def course_of(view: JobView) -> Course:
    """The states that a job has been in; one that ended without having run has no event for `running`."""
    events = (
        ("status", {"state": JobState.PENDING}),
        ("status", {"state": JobState.RUNNING}) if view.started_at is not None else None,
        ("status", {"state": view.state, **view.result}),
    )
    number = 3 if view.state in ENDED else 2 if view.state is JobState.RUNNING else 1
    return Course(events[:number], number == len(events), view.has)
