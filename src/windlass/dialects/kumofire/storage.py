"""The storage adapter over the engine: each method is one of its verbs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from windlass import cron
from windlass.app import App, AsyncApp
from windlass.clock import Clock
from windlass.dialects.kumofire.records import JobAttempt, JobDefinition, JobLock, JobRun, JobSchedule, NewJobRun, NewSchedule, object_of
from windlass.dialects.kumofire.views import attempt_of, definition_of, is_keyless, keyless, options_from, run_of, schedule_of
from windlass.dialects.kumofire.words import BACKOFF, QUEUE, JobRunStatus, status_of, to_ms, to_time
from windlass.engine import Engine, checks
from windlass.engine.watch import Watch
from windlass.errors import BadInput, Cancelled, DuplicateKey, LeaseLost, NotClaimable, NotFound, Pruned, WrongState
from windlass.machine import Fail, Report, Succeed
from windlass.model import Failure, Key, NewRun, Options, Run, Schedule, State, WorkerInfo
from windlass.store.records import Held

MAX_MISSED = 10_000
SLOTS = 10_000
"""Runs that one consumer may hold: how many it executes at once is decided by its host."""
_RULES = {"once": "at", "interval": "every", "cron": "cron"}
"""How the engine calls the rule of each type."""
_NO_RUN = (NotFound, Pruned, BadInput)
_NOT_HELD = (LeaseLost, WrongState, NotFound)


class Storage:
    """The engine on any store: by its address, or that of an app. It closes a store that it has opened."""

    def __init__(
        self,
        store: App | AsyncApp | str | os.PathLike[str] | None = None,
        *,
        queue: str = QUEUE,
        name: str | None = None,
        clock: Clock | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`name`: of this process as a consumer. With a watch, the locks of others expire only after this process has watched them."""
        if isinstance(store, App | AsyncApp):
            self._app, self._own = store, None
        else:
            self._app = self._own = AsyncApp(store, clock=clock)
        self.queue, self._name, self.watch = checks.name(queue, "A queue's name"), name, watch
        self._verified = False

    @property
    def engine(self) -> Engine:
        """The engine of the store."""
        return self._app.engine

    @cached_property
    def _worker(self) -> WorkerInfo:
        name = self._name or f"{socket.gethostname()[:64]}.{os.getpid()}.{self.engine.clock.nonce()[:4]}"
        return WorkerInfo(name, queues=(self.queue,), slots=SLOTS)

    def now(self) -> datetime:
        return to_time(self.engine.clock.now())

    async def verify_schema_version(self) -> None:
        """The schema is checked whenever the store is opened, which the first read does."""
        if not self._verified:
            await self.engine.any_token()
            self._verified = True

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()

    # Definitions

    async def put_definition(self, definition: JobDefinition, *, replace: bool = True) -> JobDefinition:
        if not replace and (stored := await self.get_definition(definition.id)) is not None:
            return stored
        options = options_from(definition.default_options)
        template = dict(definition.payload_template)
        return definition_of(await self.engine.define(definition.name, handler=definition.handler, payload=template, options=options))

    async def get_definition(self, job_id: str) -> JobDefinition | None:
        job = await self.engine.find_job(job_id)
        return None if job is None or job.handler is None else definition_of(job)

    # Schedules

    async def put_schedule(self, schedule: NewSchedule, *, replace: bool = False) -> JobSchedule:
        payload, key, rule = object_of(schedule.payload, "payload"), self._key_of(schedule), self._rule_of(schedule)
        if replace and await self._is_foreign(key):
            raise DuplicateKey(f"The key {key!r} is that of a schedule of another queue.", hint="Choose another key.")
        expr: dict[str, Any] = {_RULES[rule.kind]: rule.expr}
        stored = await self.engine.schedule(
            key,
            schedule.job_id,
            **expr,
            zone=rule.zone,
            payload=payload,
            options=Options(queue=self.queue, max_attempts=schedule.max_attempts, backoff=BACKOFF),
            missed="all",
            max_missed=MAX_MISSED,
            enabled=schedule.enabled,
            new=not replace,
            from_now=True,
        )
        return schedule_of(stored)

    def _key_of(self, schedule: NewSchedule) -> str:
        if schedule.schedule_key is None:
            return keyless(self.engine.clock.new_id())
        if is_keyless(checks.name(schedule.schedule_key, "A schedule's key")):
            raise BadInput(f"The key {schedule.schedule_key!r:.80} is reserved.", hint="Choose one that does not begin so.")
        return schedule.schedule_key

    def _rule_of(self, schedule: NewSchedule) -> cron.Rule:
        return self._due_later(cron.parse(schedule.schedule_type, schedule.schedule_expr, _zone_of(schedule.timezone)), schedule.enabled)

    def _due_later(self, rule: cron.Rule, enabled: bool) -> cron.Rule:
        if enabled and rule.kind == "once" and cron.next_after(rule, now := self.engine.clock.now(), now) is None:
            raise BadInput(f"{rule.expr!r} has passed, so the schedule would never be due.", hint="For a run now, create the run.")
        return rule

    async def _is_foreign(self, key: str) -> bool:
        with suppress(NotFound):
            return not self._is_own(await self.engine.get_schedule(key))
        return False

    def _is_own(self, schedule: Schedule) -> bool:
        return schedule.options.queue == self.queue

    async def get_schedule(self, schedule_id: str) -> JobSchedule | None:
        schedule = await self._find_schedule(schedule_id)
        return None if schedule is None else schedule_of(schedule)

    async def get_schedule_by_key(self, key: str) -> JobSchedule | None:
        schedule = await self.get_schedule(key)
        return None if schedule is None or is_keyless(key) else schedule

    async def _find_schedule(self, key: str) -> Schedule | None:
        with suppress(NotFound, BadInput):
            schedule = await self.engine.get_schedule(key)
            return schedule if self._is_own(schedule) else None
        return None

    async def update_schedule(self, schedule_id: str, changes: Mapping[str, Any]) -> JobSchedule | None:
        schedule = await self._find_schedule(schedule_id)
        if schedule is None:
            return None
        fields = {"enabled": changes["enabled"]} if "enabled" in changes else {}
        if "payload" in changes:
            fields["payload"] = object_of(changes["payload"], "payload")
        if changes.keys() & {"schedule_type", "schedule_expr", "timezone"}:
            rule = cron.parse(
                changes.get("schedule_type", schedule.kind),
                changes.get("schedule_expr", schedule.expr),
                _zone_of(changes.get("timezone", schedule.zone)),
            )
            self._due_later(rule, changes.get("enabled", schedule.enabled))
            fields |= {"kind": rule.kind, "expr": rule.expr, "zone": rule.zone}
        if "max_attempts" in changes:
            fields["options"] = replace(schedule.options, max_attempts=changes["max_attempts"])
        return schedule_of(await self.engine.set_schedule(schedule_id, from_now=True, **fields))

    async def list_due_schedules(self, limit: int) -> Sequence[JobSchedule]:
        return [schedule_of(schedule) for schedule in await self.engine.due_schedules(queue=self.queue, count=limit)]

    async def materialize_schedule(self, schedule: JobSchedule) -> bool:
        return schedule.next_run_at is not None and await self.engine.fire_schedule(schedule.id, to_ms(schedule.next_run_at))

    # Runs

    async def create_run(self, new: NewJobRun) -> str:
        options = Options(queue=self.queue, max_attempts=new.max_attempts, backoff=BACKOFF)
        key = None if new.dedupe_key is None else Key(new.dedupe_key, "forever", checks.key_scope(f"kumofire:{self.queue}"))
        due_at = None if new.run_at is None else to_ms(new.run_at)
        (created,) = await self.engine.create([NewRun(new.job_id, new.payload, options, due_at, key)])
        return created.id

    async def get_run(self, run_id: str) -> JobRun | None:
        run = await self._find(run_id)
        return None if run is None else (await self._shown([run]))[0]

    async def _find(self, run_id: str) -> Run | None:
        with suppress(*_NO_RUN):
            return await self.engine.get(run_id)
        return None

    async def _shown(self, runs: Sequence[Run]) -> list[JobRun]:
        """Runs with the keys of their schedules, which are read if one of them has any."""
        fired = [run.id for run in runs if run.schedule is not None]
        origins = await self.engine.origins(fired) if fired else {}
        return [run_of(run, origin.schedule if (origin := origins.get(run.id)) is not None else None) for run in runs]

    async def list_attempts(self, run_id: str) -> Sequence[JobAttempt] | None:
        run = await self._find(run_id)
        return None if run is None else [attempt_of(attempt) for attempt in (await self.engine.attempts_of([run]))[run.id]]

    async def list_dispatchable_runs(self, limit: int, resend_ms: int) -> Sequence[JobRun]:
        """Runs that are due become queued first, in all queues, as by any sweep."""
        await self.engine.dispatch()
        return await self._shown(await self.engine.to_announce(self.queue, resend=resend_ms, count=limit))

    async def mark_queued(self, run_ids: Sequence[str], resend_ms: int) -> Sequence[str]:
        runs = [run for run in await self.engine.get_many(run_ids) if run.state is State.QUEUED and run.queue == self.queue]
        return await self.engine.announce(runs, resend=resend_ms) if runs else []

    async def cancel_run(self, run_id: str) -> JobRun | None:
        run = await self._find(run_id)
        if run is None or run.queue != self.queue:
            return None
        with suppress(WrongState):  # it has ended
            run = await self.engine.cancel(run.id)
        return await self.get_run(run.id)

    # Locks

    async def acquire_lock(self, run_id: str, lease_ms: int) -> JobLock | None:
        try:
            run = await self.engine.take(run_id, self._worker, lease=lease_ms)
        except (*_NO_RUN, WrongState, NotClaimable):
            return None
        (shown,) = await self._shown([run])
        until, at = to_time(run.lease_until or 0), to_time(run.claimed_at or 0)
        return JobLock(job_run_id=run.id, lease_until=until, updated_at=at, run=shown, token=run.token or "", handle=run.seq)

    async def renew_lock(self, lock: JobLock, lease_ms: int) -> JobRunStatus | None:
        (answer,) = await self.engine.beat([Held(lock.handle, lock.token)], lease=lease_ms)
        answers = {"stop": JobRunStatus.CANCELED, "lost": None}
        return answers.get(answer, JobRunStatus.RUNNING)

    async def mark_running(self, lock: JobLock) -> JobRun | None:
        try:
            await self.engine.start(lock.job_run_id, lock.token, seq=lock.handle)
        except Cancelled:
            return replace(lock.run, status=JobRunStatus.CANCELED)
        except _NOT_HELD:
            return None
        now = self.now()
        return replace(lock.run, status=JobRunStatus.RUNNING, started_at=now, updated_at=now)

    async def mark_succeeded(self, lock: JobLock, output: str | None) -> JobRunStatus | None:
        return await self._report(lock, Succeed(token=lock.token, output=output))

    async def mark_retryable(self, lock: JobLock, error: Failure, next_run_at: datetime) -> JobRunStatus | None:
        """Even a run that may be tried again at once is scheduled, and queued by the next dispatch; none waits longer than a run can."""
        delay = min(max(1, to_ms(next_run_at) - self.engine.clock.now()), self.engine.limits.duration)
        return await self._report(lock, Fail(token=lock.token, error=error, delay=delay))

    async def mark_failed(self, lock: JobLock, error: Failure) -> JobRunStatus | None:
        return await self._report(lock, Fail(token=lock.token, error=error, retry=False))

    async def _report(self, lock: JobLock, report: Report) -> JobRunStatus | None:
        try:
            receipt = await self.engine.report(lock.job_run_id, report, seq=lock.handle)
        except Cancelled:
            return JobRunStatus.CANCELED
        except _NOT_HELD:
            return None
        return status_of(receipt.state)

    async def release_lock(self, lock: JobLock) -> None:
        """Nothing: the end of an attempt releases its lock in the same transaction."""

    async def expire_locks(self) -> int:
        if self.watch is not None:
            self.watch.look()
        return await self.engine.lapse(self.watch)


def _zone_of(timezone: Any) -> Any:
    """The zone of a schedule that may have none; what is no zone is refused with its rule."""
    return "UTC" if timezone is None else timezone
