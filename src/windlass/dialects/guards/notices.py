"""The deliveries of a job's webhooks."""

from __future__ import annotations

from datetime import datetime

from windlass.dialects.guards.notify import EVENTS
from windlass.dialects.guards.records import Record, to_datetime, to_datetime_or_none
from windlass.engine import Engine
from windlass.model import Delivery


class JobDelivery(Record, frozen=True, kw_only=True):
    """One end of a job, sent to one address. The address is not shown, because it may contain a secret."""

    delivery_id: str
    event: str
    status: str
    tries: int
    last_status: int | None  # of the last answer
    error: str | None
    created_at: datetime
    next_try_at: datetime | None
    finished_at: datetime | None


async def deliveries_of(engine: Engine, job_id: str) -> list[JobDelivery]:
    """The deliveries of a job's end, oldest first; those of other attempts of its run belong to other jobs."""
    run = await engine.get(job_id)
    n = next(attempt.n for attempt in (await engine.attempts_of([run]))[run.id] if attempt.id == job_id)
    revs = {entry.rev for entry in await engine.history(run.id) if entry.attempt == n}
    return [_shown(delivery) for delivery in await engine.deliveries_of(run.id) if delivery.rev in revs and delivery.type in EVENTS]


def _shown(delivery: Delivery) -> JobDelivery:
    return JobDelivery(
        delivery_id=delivery.id,
        event=delivery.type,
        status=delivery.status,
        tries=delivery.tries,
        last_status=delivery.answer,
        error=delivery.error,
        created_at=to_datetime(delivery.created_at),
        next_try_at=to_datetime_or_none(delivery.next_at),
        finished_at=to_datetime_or_none(delivery.finished_at),
    )
