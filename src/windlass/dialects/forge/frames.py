"""The live events of the Forge job queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from windlass.dialects.base import JournalFrames
from windlass.dialects.forge.words import Job, JobStatus, attempts_by, job_of, status_of
from windlass.engine import Engine
from windlass.machine import LIVE
from windlass.model import Attempt, Entry, Run, State

Event = tuple[str, Job]

_PENDING = (State.WAITING, State.SCHEDULED, State.QUEUED)
_ALWAYS = {
    State.CLAIMED: "job:assigned",
    State.SUCCEEDED: "job:completed",
    State.FAILED: "job:quarantined",
    State.QUARANTINED: "job:quarantined",
    State.CANCELLING: "job:failed",
    State.SKIPPED: "job:failed",
}


class JobEvents(JournalFrames):
    """Changes of jobs: an event for each change of status that the protocol has one for, with the job's row."""

    async def events(self, engine: Engine, entries: Sequence[Entry]) -> list[Event | None]:
        names = [event_of(entry) for entry in entries]
        ids = sorted({entry.run for entry, name in zip(entries, names, strict=True) if name is not None})
        runs = {run.id: run for run in await engine.get_many(ids)} if ids else {}
        attempts = await engine.attempts_of([run for run in runs.values() if run.attempt > 1])
        return [_event(name, entry, runs, attempts) for name, entry in zip(names, entries, strict=True)]


def event_of(entry: Entry) -> str | None:
    """The name of the event for a change; None for one that the protocol does not report, such as the first heartbeat."""
    if entry.state in _PENDING:
        return "job:created" if entry.before is None else "job:failed" if entry.before in LIVE else None
    if entry.state is State.CANCELLED:
        return None if entry.before is State.CANCELLING else "job:failed"
    return _ALWAYS.get(entry.state)


def _event(name: str | None, entry: Entry, runs: Mapping[str, Run], attempts: Mapping[str, Sequence[Attempt]]) -> Event | None:
    """The row of a job, with the status, the worker and the attempts of that moment."""
    if name is None or (run := runs.get(entry.run)) is None:
        return None
    status, own = status_of(entry.state), attempts.get(run.id, ())
    held = entry.before in LIVE or entry.state is State.CLAIMED
    worker = None if status is JobStatus.PENDING else entry.worker
    return name, replace(job_of(run, own), status=status, worker_id=worker, attempts=attempts_by(entry.attempt, own, held))
