"""A storage of Kumofire Jobs in dictionaries: what a user's own could look like."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict, replace

from windlass import cron
from windlass.clock import ManualClock
from windlass.dialects.kumofire import JobAttempt, JobDefinition, JobLock, JobRun, JobRunStatus, JobSchedule, NewJobRun, NewSchedule
from windlass.dialects.kumofire.words import ENDED, delay_after, to_time
from windlass.model import Failure

S = JobRunStatus
LOST = Failure("lost", "The lock expired.")


class DictionaryStorage:
    """Runs, schedules, definitions and locks of one process."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock, self.schema, self.numbers = clock or ManualClock(), 3, itertools.count(1)
        self.definitions, self.schedules, self.runs = dict[str, JobDefinition](), dict[str, JobSchedule](), dict[str, JobRun]()
        self.keys, self.locks, self.sent = dict[str, str](), dict[str, JobLock](), dict[str, datetime]()
        self.attempts: dict[str, list[JobAttempt]] = {}

    def now(self) -> datetime:
        return to_time(self.clock.now())

    async def verify_schema_version(self) -> None:
        if self.schema < 3:
            raise RuntimeError(f"The schema has version {self.schema}; 3 is needed. Apply the migrations.")

    async def put_definition(self, definition: JobDefinition, *, replace: bool = True) -> JobDefinition:
        if replace:
            self.definitions[definition.id] = definition
        return self.definitions.setdefault(definition.id, definition)

    async def get_definition(self, job_id: str) -> JobDefinition | None:
        return self.definitions.get(job_id)

    # Schedules

    async def put_schedule(self, schedule: NewSchedule, *, replace: bool = False) -> JobSchedule:
        known = None if schedule.schedule_key is None else await self.get_schedule_by_key(schedule.schedule_key)
        if known is not None and not replace:
            raise KeyError(schedule.schedule_key)
        new = {"id": f"s{next(self.numbers)}", "created_at": self.now(), "next_run_at": None, "last_scheduled_at": None}
        return self._planned((new if known is None else asdict(known)) | asdict(schedule))

    def _planned(self, fields: Mapping[str, Any]) -> JobSchedule:
        rule = cron.parse(fields["schedule_type"], fields["schedule_expr"], fields["timezone"] or "UTC")
        schedule = JobSchedule(**{**fields, "schedule_expr": rule.expr, "timezone": rule.zone, "updated_at": self.now()})
        return self._advanced(schedule, self.clock.now())

    def _advanced(self, schedule: JobSchedule, after: int, **fields: Any) -> JobSchedule:
        rule = cron.Rule(schedule.schedule_type, schedule.schedule_expr, schedule.timezone)
        at = cron.next_after(rule, after, after) if schedule.enabled else None
        self.schedules[schedule.id] = replace(schedule, next_run_at=None if at is None else to_time(at), **fields)
        return self.schedules[schedule.id]

    async def get_schedule(self, schedule_id: str) -> JobSchedule | None:
        return self.schedules.get(schedule_id)

    async def get_schedule_by_key(self, key: str) -> JobSchedule | None:
        return next((schedule for schedule in self.schedules.values() if schedule.schedule_key == key), None)

    async def update_schedule(self, schedule_id: str, changes: Mapping[str, Any]) -> JobSchedule | None:
        schedule = self.schedules.get(schedule_id)
        if schedule is None or changes.keys() - {"payload", "max_attempts"}:
            return schedule and self._planned(asdict(schedule) | dict(changes))
        self.schedules[schedule_id] = replace(schedule, **changes)
        return self.schedules[schedule_id]

    async def list_due_schedules(self, limit: int) -> Sequence[JobSchedule]:
        due = [schedule for schedule in self.schedules.values() if schedule.next_run_at is not None and schedule.next_run_at <= self.now()]
        return sorted(due, key=lambda schedule: (schedule.next_run_at or self.now(), schedule.created_at))[:limit]

    async def materialize_schedule(self, schedule: JobSchedule) -> bool:
        stored, at = self.schedules[schedule.id], schedule.next_run_at
        if at is None or stored.next_run_at != at or at > self.now():
            return False
        self._advanced(stored, round(at.timestamp() * 1000), last_scheduled_at=at)
        self._add(NewJobRun(job_id=stored.job_id, payload=stored.payload, run_at=at, max_attempts=stored.max_attempts or 3), stored.id)
        return True

    # Runs

    async def create_run(self, new: NewJobRun) -> str:
        if new.dedupe_key is None:
            return self._add(new, None)
        if new.dedupe_key not in self.keys:
            self.keys[new.dedupe_key] = self._add(new, None)
        return self.keys[new.dedupe_key]

    def _add(self, new: NewJobRun, schedule: str | None) -> str:
        run_id, now, template = f"r{next(self.numbers)}", self.now(), self.definitions[new.job_id].payload_template
        self.runs[run_id] = JobRun(
            id=run_id, job_id=new.job_id, job_schedule_id=schedule, status=S.SCHEDULED, scheduled_for=new.run_at or now, started_at=None,
            finished_at=None, attempt=0, max_attempts=new.max_attempts, input_payload={**template, **(new.payload or {})},
            output_payload=None, error_message=None, created_at=now, updated_at=now,
        )  # fmt: skip
        return run_id

    async def get_run(self, run_id: str) -> JobRun | None:
        return self.runs.get(run_id)

    async def list_attempts(self, run_id: str) -> Sequence[JobAttempt] | None:
        return self.attempts.get(run_id, []) if run_id in self.runs else None

    def _is_dispatchable(self, run: JobRun, resend_ms: int) -> bool:
        if run.status is S.QUEUED:
            return run.id not in self.locks and self.now() - self.sent[run.id] > timedelta(milliseconds=resend_ms)
        return run.status is S.SCHEDULED and run.scheduled_for <= self.now()

    async def list_dispatchable_runs(self, limit: int, resend_ms: int) -> Sequence[JobRun]:
        return [run for run in self.runs.values() if self._is_dispatchable(run, resend_ms)][:limit]

    async def mark_queued(self, run_ids: Sequence[str], resend_ms: int) -> Sequence[str]:
        marked = [run_id for run_id in run_ids if self._is_dispatchable(self.runs[run_id], resend_ms)]
        for run_id in marked:
            self.runs[run_id], self.sent[run_id] = replace(self.runs[run_id], status=S.QUEUED), self.now()
        return marked

    async def cancel_run(self, run_id: str) -> JobRun | None:
        run = self.runs.get(run_id)
        if run is not None and run.status not in ENDED:
            self.runs[run_id] = replace(run, status=S.CANCELED, finished_at=self.now(), updated_at=self.now())
        return self.runs.get(run_id)

    # Locks

    async def acquire_lock(self, run_id: str, lease_ms: int) -> JobLock | None:
        run = self.runs.get(run_id)
        if run is None or run.status is not S.QUEUED or run_id in self.locks:
            return None
        return self._locked(run, f"t{next(self.numbers)}", lease_ms)

    def _locked(self, run: JobRun, token: str, lease_ms: int) -> JobLock:
        now = self.now()
        lock = JobLock(job_run_id=run.id, lease_until=now + timedelta(milliseconds=lease_ms), updated_at=now, run=run, token=token)
        self.locks[run.id] = lock
        return lock

    async def renew_lock(self, lock: JobLock, lease_ms: int) -> JobRunStatus | None:
        if (held := self.locks.get(lock.job_run_id)) is None or held.token != lock.token:
            return None
        self._locked(held.run, lock.token, lease_ms)
        return S.CANCELED if self.runs[lock.job_run_id].status is S.CANCELED else S.RUNNING

    async def mark_running(self, lock: JobLock) -> JobRun | None:
        status = self._mark(lock, S.QUEUED, status=S.RUNNING, started_at=self.now(), updated_at=self.now())
        return None if status is None else self.runs[lock.job_run_id]

    def _mark(self, lock: JobLock, before: JobRunStatus, **fields: Any) -> JobRunStatus | None:
        held, run = self.locks.get(lock.job_run_id), self.runs[lock.job_run_id]
        if held is None or held.token != lock.token or run.status not in (before, S.CANCELED):
            return None
        if run.status is before:
            self.runs[run.id] = run = replace(run, **fields)
        if run.status is not S.RUNNING:
            del self.locks[run.id]
        return run.status

    async def mark_succeeded(self, lock: JobLock, output: str | None) -> JobRunStatus | None:
        return self._end(lock, S.SUCCEEDED, output_payload=None if output is None else json.loads(output), error_message=None)

    async def mark_retryable(self, lock: JobLock, error: Failure, next_run_at: datetime) -> JobRunStatus | None:
        return self._end(lock, S.SCHEDULED, error, scheduled_for=next_run_at, started_at=None)

    async def mark_failed(self, lock: JobLock, error: Failure) -> JobRunStatus | None:
        return self._end(lock, S.FAILED, error)

    def _end(self, lock: JobLock, status: JobRunStatus, error: Failure | None = None, **fields: Any) -> JobRunStatus | None:
        run, now = self.runs[lock.job_run_id], self.now()
        failed = {} if error is None else {"attempt": run.attempt + 1, "error_message": error.message}
        end = {"finished_at": now} if status in ENDED else {}
        after = self._mark(lock, S.RUNNING, status=status, updated_at=now, **end, **failed, **fields)
        if after is status:
            shown, message = (S.FAILED, error.message) if error else (status, None)
            done = self.attempts.setdefault(run.id, [])
            done.append(JobAttempt(number=len(done) + 1, status=shown, started_at=run.started_at, finished_at=now, error_message=message))
        return after

    async def release_lock(self, lock: JobLock) -> None:
        if (held := self.locks.get(lock.job_run_id)) is not None and held.token == lock.token:
            del self.locks[lock.job_run_id]

    async def expire_locks(self) -> int:
        over = [lock for lock in self.locks.values() if lock.lease_until <= self.now()]
        for lock in over:
            run = self.runs[lock.job_run_id]
            if run.status is S.QUEUED:
                self.runs[run.id] = replace(run, status=S.RUNNING)
            again = self.now() + delay_after(run.attempt + 1)
            await (self.mark_failed(lock, LOST) if run.attempt + 1 >= run.max_attempts else self.mark_retryable(lock, LOST, again))
        return len(over)

    async def close(self) -> None:
        pass
