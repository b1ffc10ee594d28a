"""The tests of every storage adapter of Kumofire Jobs, as plain coroutines over a factory. The test of a new one is a few lines:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_my_storage(case):
        door = MyDoor()
        asyncio.run(case(door))

where `MyDoor` is a `StorageDoor`: an empty storage, and a way to let time pass for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from windlass.dialects.kumofire import (
    JobDefinition,
    JobLock,
    JobRun,
    JobRunStatus,
    JobSchedule,
    NewJobRun,
    NewSchedule,
    StorageAdapter,
)
from windlass.model import Failure

JOB = "mail"
LEASE, RESEND, MINUTE = 30_000, 60_000, 60_000
BOOM = Failure("boom", "it broke")
UNKNOWN_IDS = ("0", "", "no such id", "00000000-0000-7000-8000-000000000000", "x" * 1_000)


class StorageDoor(ABC):
    """An empty storage whose time a test moves."""

    storage: StorageAdapter

    @abstractmethod
    def advance(self, ms: int) -> None:
        """Let time pass."""

    async def define(self, **fields: Any) -> JobDefinition:
        """The job of these cases."""
        return await self.storage.put_definition(JobDefinition(name=JOB, **fields))

    async def create(self, **fields: Any) -> str:
        """A new run of it, which may be executed three times."""
        usual: dict[str, Any] = {"job_id": JOB, "max_attempts": 3}
        return await self.storage.create_run(NewJobRun(**(usual | fields)))

    async def get(self, run_id: str) -> JobRun:
        """A run that exists."""
        run = await self.storage.get_run(run_id)
        assert run is not None, run_id
        return run

    async def dispatch(self) -> list[str]:
        """Everything that is due is sent; the ids of the runs."""
        runs = await self.storage.list_dispatchable_runs(100, RESEND)
        return list(await self.storage.mark_queued([run.id for run in runs], RESEND))

    async def lock(self, run_id: str) -> JobLock:
        """A lock on a run that has none."""
        await self.dispatch()
        lock = await self.storage.acquire_lock(run_id, LEASE)
        assert lock is not None, run_id
        return lock

    async def running(self, **fields: Any) -> JobLock:
        """The lock on a new run whose handler has begun."""
        lock = await self.lock(await self.create(**fields))
        await self.storage.mark_running(lock)
        return lock

    async def schedule(self, expr: Any = "5m", kind: Any = "interval", *, replace: bool = False, **fields: Any) -> JobSchedule:
        """A schedule of the job."""
        return await self.storage.put_schedule(NewSchedule(job_id=JOB, schedule_type=kind, schedule_expr=expr, **fields), replace=replace)

    async def due(self) -> list[str]:
        """The ids of the schedules that are due."""
        return [schedule.id for schedule in await self.storage.list_due_schedules(100)]


Case = Callable[[StorageDoor], Awaitable[None]]
CASES: list[Case] = []


def _case(function: Case) -> Case:
    CASES.append(function)
    return function


def _check(holds: bool, *facts: object) -> None:
    if not holds:
        raise AssertionError(", ".join(repr(fact)[:400] for fact in facts))


async def _refuses(act: Awaitable[object], *facts: object) -> None:
    try:
        answer = await act
    except Exception:
        return
    raise AssertionError(f"{facts!r} was not refused, but answered {answer!r:.200}")


async def _has(door: StorageDoor, run_id: str, **fields: Any) -> JobRun:
    """Check some fields of a run."""
    run = await door.get(run_id)
    _check({name: getattr(run, name) for name in fields} == fields, run, fields)
    return run


# Definitions and creation


@_case
async def a_definition_is_replaced_only_if_asked(door: StorageDoor) -> None:
    _check(await door.storage.get_definition(JOB) is None)
    first = await door.define(payload_template={"copies": 1}, default_options={"max_attempts": 5})
    _check(
        (first.id, first.handler, first.payload_template, first.default_options) == (JOB, JOB, {"copies": 1}, {"max_attempts": 5}), first
    )
    kept = await door.storage.put_definition(JobDefinition(name=JOB, handler="other"), replace=False)
    _check(kept == first == await door.storage.get_definition(JOB), kept, first)
    other = await door.define(handler="other")
    _check((other.handler, other.payload_template) == ("other", {}), other)


@_case
async def a_run_has_its_payload_or_the_template_of_its_job(door: StorageDoor) -> None:
    await door.define(payload_template={"copies": 1})
    now = door.storage.now()
    run = await _has(door, await door.create(payload={"to": "ann", "copies": 2}), input_payload={"to": "ann", "copies": 2})
    _check((run.job_id, run.job_schedule_id, run.attempt, run.max_attempts) == (JOB, None, 0, 3), run)
    _check((run.scheduled_for, run.created_at, run.started_at, run.finished_at) == (now, now, None, None), run)
    await _has(door, await door.create(), input_payload={"copies": 1})


@_case
async def a_dedupe_key_has_one_run_for_ever(door: StorageDoor) -> None:
    await door.define()
    first = await door.create(payload={"n": 1}, dedupe_key="order-7")
    _check(await door.create(payload={"n": 2}, dedupe_key="order-7") == first)
    _check(await door.create(dedupe_key="order-8") != first)
    lock = await door.lock(first)
    await door.storage.mark_running(lock)
    await door.storage.mark_succeeded(lock, None)
    door.advance(365 * 24 * 3_600_000)
    _check(await door.create(dedupe_key="order-7") == first)


@_case
async def what_does_not_exist_is_none(door: StorageDoor) -> None:
    for unknown in UNKNOWN_IDS:
        storage = door.storage
        answers: Sequence[object] = (
            await storage.get_run(unknown),
            await storage.list_attempts(unknown),
            await storage.cancel_run(unknown),
            await storage.acquire_lock(unknown, LEASE),
            await storage.get_schedule(unknown),
            await storage.get_schedule_by_key(unknown),
            await storage.update_schedule(unknown, {"enabled": False}),
        )
        _check(answers == (None,) * len(answers), unknown, answers)


# Dispatch


@_case
async def a_run_for_later_is_dispatched_at_its_time_and_not_before(door: StorageDoor) -> None:
    await door.define()
    at = door.storage.now() + timedelta(milliseconds=5_000)
    run_id = await door.create(run_at=at)
    await _has(door, run_id, status=JobRunStatus.SCHEDULED, scheduled_for=at)
    door.advance(4_999)
    _check(await door.dispatch() == [])
    _check(await door.storage.mark_queued([run_id], RESEND) == [])
    _check(await door.storage.acquire_lock(run_id, LEASE) is None)
    door.advance(1)
    _check(await door.dispatch() == [run_id])
    await _has(door, run_id, status=JobRunStatus.QUEUED, scheduled_for=at)


@_case
async def a_run_is_marked_once_and_again_only_when_its_message_must_be_lost(door: StorageDoor) -> None:
    await door.define()
    run_id = await door.create()
    runs = await door.storage.list_dispatchable_runs(100, RESEND)
    _check([run.id for run in runs] == [run_id], runs)
    _check(list(await door.storage.mark_queued([run_id], RESEND)) == [run_id])
    _check(list(await door.storage.mark_queued([run_id], RESEND)) == [])
    door.advance(RESEND - 1)
    _check(await door.dispatch() == [])
    door.advance(2)
    _check(await door.dispatch() == [run_id])
    lock = await door.storage.acquire_lock(run_id, 10 * RESEND)
    door.advance(2 * RESEND)
    _check(lock is not None)
    _check(await door.dispatch() == [], "it is locked")


@_case
async def dispatchable_runs_are_listed_oldest_first_and_no_more_than_asked(door: StorageDoor) -> None:
    await door.define()
    now, ids = door.storage.now(), list[str]()
    for number in range(5):
        ids.append(await door.create(run_at=now + timedelta(milliseconds=10 * (5 - number))))
        door.advance(1)
    door.advance(1_000)
    _check([run.id for run in await door.storage.list_dispatchable_runs(3, RESEND)] == ids[:3])
    _check([run.id for run in await door.storage.list_dispatchable_runs(100, RESEND)] == ids)


# Locks and marks


@_case
async def one_consumer_has_the_lock(door: StorageDoor) -> None:
    await door.define()
    now, lock = door.storage.now(), await door.lock(await door.create(payload={"to": "ann"}))
    _check(lock.lease_until == now + timedelta(milliseconds=LEASE), lock)
    _check((lock.run.id, lock.run.input_payload) == (lock.job_run_id, {"to": "ann"}), lock)
    _check(await door.storage.acquire_lock(lock.job_run_id, LEASE) is None)
    run = await door.storage.mark_running(lock)
    _check(run is not None)
    _check(run == await _has(door, lock.job_run_id, status=JobRunStatus.RUNNING, started_at=now), run)
    _check(await door.storage.acquire_lock(lock.job_run_id, LEASE) is None)


@_case
async def a_success_stores_the_output_and_is_an_end(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running()
    door.advance(7)
    _check(await door.storage.mark_succeeded(lock, '{"sent":3}') is JobRunStatus.SUCCEEDED)
    await door.storage.release_lock(lock)
    now = door.storage.now()
    run = await _has(door, lock.job_run_id, status=JobRunStatus.SUCCEEDED, output_payload={"sent": 3}, finished_at=now, attempt=0)
    door.advance(10 * RESEND)
    _check(await door.storage.expire_locks() == 0)
    _check(await door.dispatch() == [])
    _check(await door.storage.acquire_lock(lock.job_run_id, LEASE) is None)
    _check(await door.get(run.id) == run)


@_case
async def a_failure_that_is_tried_again_is_scheduled_for_its_time(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running()
    at = door.storage.now() + timedelta(milliseconds=2_000)
    _check(await door.storage.mark_retryable(lock, BOOM, at) is JobRunStatus.SCHEDULED)
    await door.storage.release_lock(lock)
    facts = {"status": JobRunStatus.SCHEDULED, "attempt": 1, "scheduled_for": at, "error_message": "it broke"}
    await _has(door, lock.job_run_id, started_at=None, finished_at=None, **facts)
    door.advance(1_999)
    _check(await door.dispatch() == [])
    door.advance(1)
    again = await door.lock(lock.job_run_id)
    await door.storage.mark_running(again)
    await door.storage.mark_succeeded(again, None)
    await _has(door, lock.job_run_id, status=JobRunStatus.SUCCEEDED, attempt=1, error_message=None)
    attempts = await door.storage.list_attempts(lock.job_run_id)
    shown = [(one.number, one.status, one.error_message) for one in attempts or ()]
    _check(shown == [(1, JobRunStatus.FAILED, "it broke"), (2, JobRunStatus.SUCCEEDED, None)], shown)


@_case
async def a_final_failure_is_an_end(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running()
    _check(await door.storage.mark_failed(lock, BOOM) is JobRunStatus.FAILED)
    now = door.storage.now()
    await _has(door, lock.job_run_id, status=JobRunStatus.FAILED, attempt=1, finished_at=now, error_message="it broke")
    door.advance(10 * RESEND)
    _check(await door.dispatch() == [])


@_case
async def a_renewed_lock_holds_and_an_expired_one_lets_the_run_be_executed_again(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running()
    door.advance(LEASE - 1)
    _check(await door.storage.renew_lock(lock, LEASE) is JobRunStatus.RUNNING)
    door.advance(LEASE - 1)
    _check(await door.storage.expire_locks() == 0)
    await _has(door, lock.job_run_id, status=JobRunStatus.RUNNING)
    door.advance(1)
    _check(await door.storage.expire_locks() == 1)
    await _has(door, lock.job_run_id, attempt=1)
    door.advance(MINUTE)
    other = await door.lock(lock.job_run_id)
    _check(other.token != lock.token or other.handle != lock.handle, other)
    await door.storage.mark_running(other)
    before = await door.get(lock.job_run_id)
    for mark in await _marks(door, lock):
        _check(mark is None, mark)
    _check(await door.get(lock.job_run_id) == before)
    _check(await door.storage.mark_succeeded(other, "7") is JobRunStatus.SUCCEEDED)


@_case
async def a_lost_run_without_attempts_left_has_failed(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running(max_attempts=1)
    door.advance(LEASE)
    _check(await door.storage.expire_locks() == 1)
    run = await _has(door, lock.job_run_id, status=JobRunStatus.FAILED, attempt=1)
    _check(run.error_message is not None)


async def _marks(door: StorageDoor, lock: JobLock) -> list[object]:
    """The answers to all marks under a lock."""
    storage = door.storage
    return [
        await storage.renew_lock(lock, LEASE),
        await storage.mark_running(lock),
        await storage.mark_retryable(lock, Failure("other", "late"), storage.now()),
        await storage.mark_failed(lock, Failure("other", "late")),
        await storage.mark_succeeded(lock, '"late"'),
    ]


@_case
async def marks_on_an_ended_run_change_nothing(door: StorageDoor) -> None:
    await door.define()
    for end in (door.storage.mark_succeeded, door.storage.mark_failed):
        lock = await door.running()
        await end(lock, "7" if end == door.storage.mark_succeeded else BOOM)  # type: ignore[arg-type]
        before = await door.get(lock.job_run_id)
        door.advance(10)
        _check(await _marks(door, lock) == [None] * 5, before)
        _check(await door.get(lock.job_run_id) == before)


@_case
async def a_run_is_canceled_in_every_status_but_an_end(door: StorageDoor) -> None:
    await door.define()
    scheduled = await door.create(run_at=door.storage.now() + timedelta(milliseconds=5_000))
    queued = await door.create()
    await door.dispatch()
    for run_id in (scheduled, queued):
        run = await door.storage.cancel_run(run_id)
        _check(run is not None and run.status is JobRunStatus.CANCELED and run.finished_at is not None, run)
        door.advance(10_000)
        _check(await door.dispatch() == [])
        _check(await door.storage.acquire_lock(run_id, LEASE) is None)
        _check(await door.storage.cancel_run(run_id) == run)
    lock = await door.running()
    await door.storage.mark_succeeded(lock, None)
    before = await door.get(lock.job_run_id)
    _check(await door.storage.cancel_run(lock.job_run_id) == before)


@_case
async def what_a_canceled_handler_reports_is_not_stored(door: StorageDoor) -> None:
    await door.define()
    lock = await door.running()
    await door.storage.cancel_run(lock.job_run_id)
    _check(await door.storage.renew_lock(lock, LEASE) is JobRunStatus.CANCELED)
    _check(await door.storage.mark_succeeded(lock, '"sent"') is JobRunStatus.CANCELED)
    await _has(door, lock.job_run_id, status=JobRunStatus.CANCELED, output_payload=None)
    _check(await door.storage.acquire_lock(lock.job_run_id, LEASE) is None)


# Schedules


@_case
async def a_due_schedule_creates_one_run_and_advances(door: StorageDoor) -> None:
    await door.define(payload_template={"copies": 1})
    schedule = await door.schedule(payload={"to": "ann"}, max_attempts=2)
    at = door.storage.now() + timedelta(minutes=5)
    _check((schedule.next_run_at, schedule.last_scheduled_at, schedule.enabled) == (at, None, True), schedule)
    door.advance(5 * MINUTE - 1)
    _check(await door.due() == [])
    door.advance(1)
    (due,) = await door.storage.list_due_schedules(100)
    _check(due.id == schedule.id, due)
    _check([await door.storage.materialize_schedule(due) for _ in range(2)] == [True, False])
    (run,) = await door.storage.list_dispatchable_runs(100, RESEND)
    _check((run.job_id, run.job_schedule_id, run.scheduled_for, run.max_attempts) == (JOB, schedule.id, at, 2), run)
    _check(run.input_payload == {"copies": 1, "to": "ann"}, run)
    after = await door.storage.get_schedule(schedule.id)
    _check(after is not None and (after.next_run_at, after.last_scheduled_at) == (at + timedelta(minutes=5), at), after)
    _check(await door.due() == [])


@_case
async def missed_instants_become_runs_one_a_call_the_oldest_first(door: StorageDoor) -> None:
    await door.define()
    schedule = await door.schedule()
    began = door.storage.now()
    door.advance(15 * MINUTE)
    for number in (1, 2, 3):
        (due,) = await door.storage.list_due_schedules(100)
        _check(await door.storage.materialize_schedule(due))
        runs = await door.storage.list_dispatchable_runs(100, RESEND)
        _check(max(run.scheduled_for for run in runs) == began + timedelta(minutes=5 * number), runs)
        _check(len(runs) == number and {run.job_schedule_id for run in runs} == {schedule.id}, runs)
    _check(await door.due() == [])


@_case
async def due_schedules_are_listed_by_their_instant_then_by_their_creation(door: StorageDoor) -> None:
    await door.define()
    ten, five, also_five = [(await door.schedule(every)).id for every in ("10m", "5m", "5m")]
    door.advance(20 * MINUTE)
    _check(await door.due() == [five, also_five, ten])
    _check([schedule.id for schedule in await door.storage.list_due_schedules(2)] == [five, also_five])


@_case
async def a_schedule_for_once_creates_one_run(door: StorageDoor) -> None:
    await door.define()
    at = door.storage.now() + timedelta(minutes=1)
    schedule = await door.schedule(at, "once")
    door.advance(MINUTE)
    (due,) = await door.storage.list_due_schedules(100)
    _check(await door.storage.materialize_schedule(due))
    after = await door.storage.get_schedule(schedule.id)
    _check(after is not None and (after.next_run_at, after.last_scheduled_at) == (None, at), after)
    door.advance(100 * MINUTE)
    _check(await door.due() == [])


@_case
async def a_disabled_schedule_creates_nothing_and_continues_from_now_when_enabled(door: StorageDoor) -> None:
    await door.define()
    schedule = await door.schedule()
    disabled = await door.storage.update_schedule(schedule.id, {"enabled": False})
    _check(disabled is not None and (disabled.enabled, disabled.next_run_at) == (False, None), disabled)
    door.advance(12 * MINUTE)
    _check(await door.due() == [])
    _check(not await door.storage.materialize_schedule(schedule))
    enabled = await door.storage.update_schedule(schedule.id, {"enabled": True})
    _check(enabled is not None and enabled.next_run_at is not None and enabled.next_run_at > door.storage.now(), enabled)


@_case
async def an_edit_keeps_the_next_instant_unless_it_concerns_the_rule(door: StorageDoor) -> None:
    await door.define()
    schedule = await door.schedule(schedule_key="hourly")
    door.advance(2 * MINUTE)
    edited = await door.storage.update_schedule(schedule.id, {"payload": {"to": "bob"}, "max_attempts": 7})
    _check(edited is not None and edited.next_run_at == schedule.next_run_at, edited)
    _check(edited is not None and (edited.payload, edited.max_attempts) == ({"to": "bob"}, 7), edited)
    other = await door.storage.update_schedule(schedule.id, {"schedule_expr": "1h"})
    _check(other is not None and other.next_run_at == door.storage.now() + timedelta(hours=1), other)
    _check(other == await door.storage.get_schedule_by_key("hourly"), other)


@_case
async def a_key_has_one_schedule(door: StorageDoor) -> None:
    await door.define()
    first = await door.schedule(schedule_key="daily", payload={"n": 1})
    await _refuses(door.schedule(schedule_key="daily"), "a second schedule")
    second = await door.schedule("1h", schedule_key="daily", payload={"n": 2}, replace=True)
    _check((second.id, second.payload) == (first.id, {"n": 2}), second)
    _check(await door.storage.get_schedule_by_key("daily") == second == await door.storage.get_schedule(first.id))
    without = await door.schedule()
    _check(without.schedule_key is None and without.id != first.id, without)


@_case
async def a_rule_that_cannot_be_read_is_refused_and_nothing_is_stored(door: StorageDoor) -> None:
    await door.define()
    bad = (("cron", "0 5 * *"), ("cron", "99 * * * *"), ("interval", "soon"), ("once", "tomorrow"), ("hourly", "1"))
    for kind, expr in bad:
        await _refuses(door.schedule(expr, kind, schedule_key="bad"), kind, expr)
    await _refuses(door.schedule("0 5 * * *", "cron", schedule_key="bad", timezone="Asia/Nowhere"), "a zone")
    _check(await door.storage.get_schedule_by_key("bad") is None)
    schedule = await door.schedule(schedule_key="good")
    await _refuses(door.storage.update_schedule(schedule.id, {"schedule_type": "cron", "schedule_expr": "0 5 * *"}), "an edit")
    _check(await door.storage.get_schedule(schedule.id) == schedule)


@_case
async def a_zone_decides_when_a_cron_schedule_is_due(door: StorageDoor) -> None:
    await door.define()
    in_utc = await door.schedule("0 5 * * *", "cron")
    in_tokyo = await door.schedule("0 5 * * *", "cron", timezone="Asia/Tokyo")
    _check(in_utc.next_run_at is not None and (in_utc.next_run_at.hour, in_utc.timezone) == (5, "UTC"), in_utc)
    _check(in_tokyo.next_run_at is not None and in_tokyo.next_run_at.hour == 20, in_tokyo)
