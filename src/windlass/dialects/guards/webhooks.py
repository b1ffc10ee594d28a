"""The webhook format of the document: one event for every execution that ends, whose body is the run as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from windlass.dialects.guards.notify import EVENT_OF, EVENTS, NAME
from windlass.dialects.guards.views import jobrun_of, views_of
from windlass.dialects.guards.words import JobRunStatus, standing
from windlass.engine import Engine
from windlass.machine import ENDED, LIVE, Refuse, Requeue, Snooze
from windlass.model import Attempt, Delivery, Entry, Run, State
from windlass.payload import reader
from windlass.webhooks import Format, standard_headers

PART = 10
"""Changes whose bodies are made together: each has all params and artifacts of its run, which may be 2 MiB."""
_RETURNED = (Snooze.name, Requeue.name, Refuse.name)


def event_of(entry: Entry) -> str | None:
    """The event of a change: the end of an execution, also of one that is retried."""
    status = _status_of(entry)
    return None if status is None else EVENT_OF[status]


def _status_of(entry: Entry) -> JobRunStatus | None:
    if entry.state in ENDED:
        return standing(entry.state, executed=entry.before in LIVE).run
    retried = entry.before in LIVE and entry.state in (State.SCHEDULED, State.QUEUED) and entry.move not in _RETURNED
    return JobRunStatus.FAILED if retried else None


async def bodies(engine: Engine, entries: Sequence[Entry]) -> list[str]:
    """The event and all members of the run, for each of these changes."""
    runs = {run.id: run for run in await engine.get_many(list({entry.run for entry in entries}))}
    attempts = await engine.attempts_of(list(runs.values()))
    return [_body(entry, runs.get(entry.run), attempts.get(entry.run, ())) for entry in entries]


def _body(entry: Entry, run: Run | None, attempts: Sequence[Attempt]) -> str:
    event = {"event": event_of(entry)}
    if run is None:  # it was removed meanwhile
        return msgspec.json.encode(event | {"run_id": entry.run, "job_id": entry.run, "status": _status_of(entry)}).decode()
    view = next(view for view in views_of(run, attempts) if view.attempt.n == entry.attempt)
    return msgspec.json.encode(event | jobrun_of(view).to_json()).decode()


def headers(delivery: Delivery, body: bytes, secrets: tuple[str, ...], now: int) -> Mapping[str, str]:
    """The job and the event beside the headers of Standard Webhooks, which sign where there is a secret."""
    job_id = reader(str)(bytes(reader(dict[str, msgspec.Raw])(body)["job_id"]))
    return {**standard_headers(delivery, body, secrets, now), "X-Job-ID": job_id, "X-Job-Event": delivery.type}


FORMAT = Format(name=NAME, events=EVENTS, event=event_of, bodies=bodies, headers=headers, delays=(1_000, 2_000), timeout=30.0, part=PART)
