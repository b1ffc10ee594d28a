"""The live events of the Forge job queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from windlass.dialects.base import JournalFrames
from windlass.dialects.forge.words import LEASE, Job, attempts_by, job_of
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
    """The row of a job at that moment, with what edits have changed since."""
    if name is None or (run := runs.get(entry.run)) is None:
        return None
    own, held = attempts.get(run.id, ()), entry.before in LIVE or entry.state is State.CLAIMED
    worker = None if entry.state in _PENDING else entry.worker
    return name, replace(job_of(_then(run, entry), own), worker_id=worker, attempts=attempts_by(entry.attempt, own, held))


def _then(run: Run, entry: Entry) -> Run:
    """A run as it was after a change: a job that is only created, pending again or assigned has no result, whatever came later."""
    if entry.state not in (*_PENDING, State.CLAIMED):
        return replace(run, state=entry.state)
    if entry.state is State.CLAIMED:
        claimed_at, lease_until, attempt = entry.at, entry.at + LEASE, entry.attempt
    else:
        claimed_at, lease_until, attempt = None, None, entry.attempt + (entry.before in LIVE)
    return replace(
        run, state=entry.state, attempt=attempt, claimed_at=claimed_at, lease=LEASE, lease_until=lease_until, output=None, output_hash=None
    )
