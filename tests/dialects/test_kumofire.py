"""K: Kumofire Jobs in its own words: runs, their dispatch and their consumption."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.kumofire_dictionaries import DictionaryStorage
from tests.dialects.kumofire_door import KumofireDoor, StoreDoor
from windlass import App, AsyncApp, Fail
from windlass.clock import ManualClock
from windlass.dialects.kumofire import (
    CallableQueue,
    ConsumeResult,
    CreatedJobRun,
    JobContext,
    JobDefinition,
    JobLock,
    JobRunStatus,
    MemoryQueue,
    RetryPolicy,
    RunStatus,
    Storage,
    StoreQueue,
    build_message,
    create_jobs,
)
from windlass.errors import BadInput, NotFound, SchemaMismatch, StoreBusy, UnknownJob
from windlass.faults import FAULTS
from windlass.model import Failure, Limits, NewRun, Options, State, WorkerInfo
from windlass.store import sql

S = JobRunStatus
SECOND = 1_000
LEASE, RESEND = 30_000, 60_000


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.arm("")


def gone(door: StoreDoor, run_id: str, *, begun: bool = True) -> JobLock:
    """The lock of a consumer that is gone."""
    lock = door(door.storage.acquire_lock(run_id, LEASE))
    assert lock is not None
    if begun:
        door(door.storage.mark_running(lock))
    return lock


# Creation


def test_K1_a_creation_answers_the_run_id_alone_and_sends_the_run(kumofire: StoreDoor) -> None:
    answer = kumofire(kumofire.jobs.create(name="email", payload={"to": "ann"}, run_at=None, max_attempts=3, dedupe_key=None))
    assert answer == CreatedJobRun(kumofire_job_run_id=answer.kumofire_job_run_id)
    assert answer.to_json() == {"kumofire_job_run_id": answer.kumofire_job_run_id}
    run = kumofire.run(answer.kumofire_job_run_id)
    assert (run.job_id, run.job_schedule_id, run.status, run.input_payload) == ("email", None, S.QUEUED, {"to": "ann"})
    assert (run.scheduled_for, run.attempt, run.max_attempts) == (kumofire.storage.now(), 0, 3)
    assert kumofire.sent() == [run.id]


def test_K1_a_run_for_a_time_that_has_passed_is_sent_at_once(kumofire: StoreDoor) -> None:
    run_id = kumofire.create(run_at=kumofire.in_ms(-SECOND))
    assert (kumofire.sent(), kumofire.run(run_id).scheduled_for) == ([run_id], kumofire.in_ms(-SECOND))


def test_K2_a_run_for_the_future_is_scheduled_and_no_message_is_sent(kumofire: StoreDoor) -> None:
    at = kumofire.in_ms(60_000)
    run = kumofire.run(kumofire.create(run_at=at))
    assert (run.status, run.scheduled_for) == (S.SCHEDULED, at)
    assert kumofire.run(kumofire.create(run_at=at.isoformat())).scheduled_for == at
    assert (kumofire.dispatch(), kumofire.sent()) == (0, [])


def test_K3_dispatch_sends_one_message_at_the_due_time_and_none_a_millisecond_before(kumofire: StoreDoor) -> None:
    run_id = kumofire.create(run_at=kumofire.in_ms(60_000))
    assert kumofire.later(59_999) == 0
    assert kumofire.status(run_id).status is S.SCHEDULED
    assert kumofire.later(1) == 1
    assert (kumofire.status(run_id).status, kumofire.sent()) == (S.QUEUED, [run_id])


def test_K3_what_another_sweep_has_queued_is_sent_by_the_next_dispatch(kumofire: StoreDoor) -> None:
    run_id = kumofire.create(run_at=kumofire.in_ms(SECOND))
    kumofire.clock.advance(SECOND)
    kumofire.do(kumofire.engine.sweep())
    assert (kumofire.status(run_id).status, kumofire.sent()) == (S.QUEUED, [])
    assert (kumofire.dispatch(), kumofire.sent()) == (1, [run_id])


def test_K4_the_message_is_the_run_id_and_nothing_else(kumofire: StoreDoor) -> None:
    run_id = kumofire.create(payload={"secret": 1})
    assert list(kumofire.queue.receive()) == [{"kumofireJobRunId": run_id}]
    versioned = kumofire.another(version=True)
    other = kumofire(versioned.create("email")).kumofire_job_run_id
    assert list(kumofire.queue.receive()) == [{"version": 1, "kumofireJobRunId": other}]
    assert build_message(run_id) == {"kumofireJobRunId": run_id}


def test_K5_a_second_dispatch_sends_nothing_for_the_same_run(kumofire: StoreDoor) -> None:
    run_id = kumofire.create(run_at=kumofire.in_ms(SECOND))
    assert [kumofire.later(SECOND), kumofire.dispatch(), kumofire.later(RESEND - 1)] == [1, 0, 0]
    assert kumofire.sent() == [run_id]


def test_K6_two_dispatchers_at_once_send_one_message_per_run(kumofire: StoreDoor) -> None:
    """Both read before either marks."""
    ids = [kumofire.create(run_at=kumofire.in_ms(SECOND)) for _ in range(5)]
    kumofire.clock.advance(SECOND)
    other, marking = kumofire.another(), kumofire.storage.mark_queued
    counts = []

    async def mark_late(run_ids: Any, resend_ms: int) -> Any:
        kumofire.storage.mark_queued = marking  # type: ignore[method-assign]
        counts.append((await other.dispatch()).dispatched)
        return await marking(run_ids, resend_ms)

    kumofire.storage.mark_queued = mark_late  # type: ignore[method-assign]
    counts.append(kumofire.dispatch())
    assert (counts, sorted(kumofire.sent())) == ([5, 0], sorted(ids))


# Consumption


def test_K13_a_consumed_run_is_locked_and_running_and_its_handler_gets_the_stored_payload(kumofire: StoreDoor) -> None:
    inside = list[Any]()

    async def look(context: JobContext) -> None:
        inside.append((await kumofire.storage.get_run(context.job.id), await kumofire.storage.acquire_lock(context.job.id, LEASE)))
        inside.append(context)

    kumofire.handlers["email"] = look
    payload = {"to": "ann"}
    jobs = kumofire.another()
    run_id = kumofire(jobs.create("email", payload)).kumofire_job_run_id
    payload["to"] = "bob"  # what is stored is what was created
    kumofire.clock.advance(5)
    assert kumofire(jobs.consume({"kumofireJobRunId": run_id})) == ConsumeResult("succeeded", run_id)
    (stored, lock), context = inside
    assert (stored.status, stored.started_at, lock) == (S.RUNNING, kumofire.storage.now(), None)
    assert (context.job, context.now, context.definition.name) == (stored, kumofire.storage.now(), "email")
    assert context.job.input_payload == {"to": "ann"}
    assert kumofire.moves(run_id) == ["create", "claim", "start", "succeed"]


@pytest.mark.parametrize("kind", ["plain", "awaitable", "object"])
def test_K13_a_handler_may_be_plain_and_then_does_not_block_the_loop(kumofire: StoreDoor, kind: str) -> None:
    threads = []

    def plain(context: JobContext) -> Any:
        threads.append(threading.current_thread())
        return context.job.input_payload["n"]

    class Handler:
        async def __call__(self, context: JobContext) -> Any:
            threads.append(threading.current_thread())
            return context.job.input_payload["n"]

    async def later(n: int) -> int:
        return n

    kumofire.handlers["email"] = {"plain": plain, "awaitable": lambda context: later(plain(context)), "object": Handler()}[kind]
    jobs = kumofire.another()
    run_id = kumofire(jobs.create("email", {"n": 7})).kumofire_job_run_id
    assert kumofire(jobs.consume({"kumofireJobRunId": run_id})).outcome == "succeeded"
    assert kumofire.run(run_id).output_payload == 7
    assert (threads[0] is threading.main_thread()) == (kind == "object")


def test_K14_a_handler_that_returns_ends_the_run_and_clears_the_last_error(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire.create()
    assert kumofire.consume(run_id) == "retried"
    assert kumofire.status(run_id).error_message == "no answer"
    kumofire.fails = None
    kumofire.later(SECOND)
    assert kumofire.consume(run_id) == "succeeded"
    status = kumofire.status(run_id)
    assert (status.status, status.attempt, status.error_message, status.finished_at) == (S.SUCCEEDED, 1, None, kumofire.storage.now())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_K15_a_handler_that_asks_its_process_to_end_has_failed(kumofire: StoreDoor, kind: str, error: BaseException) -> None:
    def plain(context: JobContext) -> None:
        raise error

    async def coroutine(context: JobContext) -> None:
        raise error

    jobs = kumofire.another(handlers={"email": plain if kind == "plain" else coroutine})
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "retried"
    assert kumofire.status(run_id).attempt == 1


def test_K15_a_handler_that_cancels_itself_has_failed(kumofire: StoreDoor) -> None:
    kumofire.fails = asyncio.CancelledError()
    run_id = kumofire.create()
    assert kumofire.consume(run_id) == "retried"
    assert kumofire.status(run_id).error_message == "The handler was cancelled."


def test_K15_a_handler_that_throws_with_attempts_left_is_scheduled_again(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire.create()
    kumofire.sent()
    assert kumofire.consume(run_id) == "retried"
    status = kumofire.status(run_id)
    assert (status.status, status.attempt, status.scheduled_for) == (S.SCHEDULED, 1, kumofire.in_ms(SECOND))
    assert (status.error_message, status.started_at, status.finished_at) == ("no answer", None, None)
    assert (kumofire.later(999), kumofire.sent(), kumofire.consume(run_id)) == (0, [], "ignored")
    assert (kumofire.later(1), kumofire.sent()) == (1, [run_id])


def test_K16_delays_are_one_then_two_seconds_and_the_third_failure_is_the_last(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire.create()
    for failures, delay in ((1, SECOND), (2, 2 * SECOND)):
        assert kumofire.consume(run_id) == "retried"
        status = kumofire.status(run_id)
        assert (status.attempt, status.scheduled_for) == (failures, kumofire.in_ms(delay))
        kumofire.later(delay)
    assert kumofire.consume(run_id) == "failed"
    assert (kumofire.status(run_id).status, kumofire.status(run_id).attempt) == (S.FAILED, 3)
    assert kumofire.later(3_600_000) == 0


def test_K16_the_limit_holds_on_a_storage_that_does_not_count() -> None:
    storage = DictionaryStorage()
    door = KumofireDoor(storage, storage.clock)
    door.fails = ConnectionError("no answer")
    run_id, outcomes = door.create(), []
    for _ in range(3):
        outcomes.append(door.consume(run_id))
        door.later(5 * SECOND)
    assert outcomes == ["retried", "retried", "failed"]
    assert door.status(run_id).attempt == 3


def test_K16_later_delays_are_doubled_up_to_a_minute(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id, delays = kumofire.create(max_attempts=9), []
    for _ in range(8):
        assert kumofire.consume(run_id) == "retried"
        delays.append((kumofire.status(run_id).scheduled_for - kumofire.storage.now()).total_seconds())
        kumofire.later(60_000)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_K16_a_policy_of_ones_own_gets_the_failures_the_error_the_run_and_the_time(kumofire: StoreDoor) -> None:
    asked: list[Any] = []

    def policy(attempt: int, error: BaseException, job: Any, now: Any) -> Any:
        asked.append((attempt, str(error), job.id, job.attempt, now))
        return None if attempt == 2 else now + timedelta(milliseconds=70)

    jobs = kumofire.another(retry=RetryPolicy(5, policy))
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire.run(run_id).max_attempts == 5
    began = kumofire.storage.now()
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "retried"
    assert kumofire.later(70) == 1
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "failed"
    assert asked == [(1, "no answer", run_id, 0, began), (2, "no answer", run_id, 1, kumofire.storage.now())]
    assert kumofire.status(run_id).attempt == 2


POLICIES: dict[str, Callable[..., Any]] = {
    "raises": lambda *_: 1 / 0,
    "a number": lambda *_: 5,
    "a text": lambda *_: "2030-01-01T00:00:00Z",
    "no zone": lambda attempt, error, job, now: now.replace(tzinfo=None) + timedelta(minutes=1),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_K16_a_policy_that_fails_does_not_hide_the_error(kumofire: StoreDoor, policy: str) -> None:
    jobs = kumofire.another(retry=RetryPolicy(3, POLICIES[policy]))
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "retried"
    status = kumofire.status(run_id)
    assert (status.error_message, status.scheduled_for) == ("no answer", kumofire.in_ms(SECOND))


def test_K16_a_policy_may_name_any_time_but_a_run_waits_ten_years_at_most(kumofire: StoreDoor) -> None:
    jobs = kumofire.another(retry=RetryPolicy(3, lambda *_: datetime(9999, 1, 1, tzinfo=UTC)))
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "retried"
    assert kumofire.status(run_id).scheduled_for == kumofire.in_ms(Limits().duration)


@pytest.mark.parametrize("error", [ConnectionError("no answer"), Fail("no such address", retry=False)], ids=["exhausted", "not retryable"])
def test_K17_a_handler_that_throws_with_none_left_fails_the_run(kumofire: StoreDoor, error: Exception) -> None:
    kumofire.fails = error
    run_id = kumofire.create(max_attempts=1 if isinstance(error, ConnectionError) else 3)
    assert kumofire.consume(run_id) == "failed"
    status = kumofire.status(run_id)
    assert (status.status, status.attempt, status.finished_at) == (S.FAILED, 1, kumofire.storage.now())
    assert status.error_message == str(error)


def test_K18_a_message_that_comes_again_after_success_is_ignored(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    assert kumofire.consume(run_id) == "succeeded"
    before = kumofire.do(kumofire.engine.get(run_id))
    kumofire.clock.advance(1_000_000)
    assert [kumofire.consume(run_id) for _ in range(3)] == ["ignored"] * 3
    assert kumofire.do(kumofire.engine.get(run_id)) == before
    assert len(kumofire.calls) == 1
    assert kumofire.dispatch() == 0


def test_K19_a_second_consumer_is_ignored_while_the_lock_is_held(kumofire: StoreDoor) -> None:
    outcomes = []

    async def work(context: JobContext) -> None:
        before = await kumofire.storage.get_run(context.job.id)
        outcomes.append((await kumofire.another().consume(build_message(context.job.id))).outcome)
        assert await kumofire.storage.get_run(context.job.id) == before

    kumofire.handlers["email"] = work
    jobs = kumofire.another()
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "succeeded"
    assert outcomes == ["ignored"]


def test_K19_a_lock_is_renewed_while_the_handler_runs(kumofire: StoreDoor) -> None:
    renewals, three = list[Any](), asyncio.Event()
    renewing = kumofire.storage.renew_lock

    async def renewed(lock: JobLock, lease_ms: int) -> Any:
        status = await renewing(lock, lease_ms)
        renewals.append(status)
        if len(renewals) == 3:
            three.set()
        return status

    async def work(context: JobContext) -> None:
        await three.wait()

    kumofire.storage.renew_lock = renewed  # type: ignore[method-assign]
    kumofire.handlers["email"] = work
    jobs = kumofire.another(lease_ms=30)
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "succeeded"
    assert set(renewals) == {S.RUNNING}


@pytest.mark.parametrize("begun", [False, True], ids=["locked", "running"])
def test_K20_a_run_whose_consumer_is_gone_is_executed_again(kumofire: StoreDoor, begun: bool) -> None:
    run_id = kumofire.create()
    lock = gone(kumofire, run_id, begun=begun)
    kumofire.sent()
    assert kumofire.later(LEASE - 1) == 0
    assert kumofire.status(run_id).status is (S.RUNNING if begun else S.QUEUED)
    kumofire.later(1)
    assert (kumofire.status(run_id).status, kumofire.status(run_id).attempt) == (S.SCHEDULED, 1)
    assert (kumofire.later(SECOND), kumofire.sent()) == (1, [run_id])
    assert kumofire.consume(run_id) == "succeeded"
    assert kumofire(kumofire.storage.mark_failed(lock, Failure("late", "late"))) is None
    assert kumofire.status(run_id).status is S.SUCCEEDED


def test_K20_a_handler_that_has_lost_its_lock_is_stopped_and_its_result_is_not_stored(kumofire: StoreDoor) -> None:
    stopped = list[str]()

    async def work(context: JobContext) -> None:
        kumofire.clock.advance(1_000)
        await kumofire.storage.expire_locks()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(context.job.id)
            raise

    kumofire.handlers["email"] = work
    jobs = kumofire.another(lease_ms=30)
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id

    async def consumed() -> tuple[ConsumeResult, list[str]]:
        return await jobs.consume(build_message(run_id)), [*stopped]  # before the loop ends, which would stop it, too

    assert kumofire(consumed()) == (ConsumeResult("ignored", run_id), [run_id])
    assert kumofire.status(run_id).status is S.SCHEDULED


def test_K21_the_outcome_stays_recorded_when_the_release_of_the_lock_fails() -> None:
    """On a storage that marks and releases in two steps; the engine does both in one."""

    class Unreleased(DictionaryStorage):
        async def release_lock(self, lock: JobLock) -> None:
            self._locked(self.runs[lock.job_run_id], lock.token, LEASE)
            raise ConnectionError("no answer")

    storage = Unreleased()
    door = KumofireDoor(storage, storage.clock)
    door.fails = ConnectionError("no answer")
    run_id = door.create()
    assert door.consume(run_id) == "retried"
    assert (door.status(run_id).status, door.status(run_id).attempt) == (S.SCHEDULED, 1)
    door.clock.advance(SECOND)
    door.queue.messages.clear()
    assert (door.dispatch(), door.sent(), door.consume(run_id)) == (1, [run_id], "ignored")
    door.clock.advance(LEASE)
    door(storage.expire_locks())
    storage.locks.clear()
    door.fails = None
    assert storage.runs[run_id].attempt in (1, 2)


def test_K21_the_outcome_stays_recorded_when_the_answer_to_it_is_lost(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    FAULTS.arm("report.after_commit=drop@1")
    assert kumofire.consume(run_id) == "succeeded"
    FAULTS.arm("")
    assert kumofire.moves(run_id).count("succeed") == 1
    run = kumofire.do(kumofire.engine.get(run_id))
    assert (run.lease_until, run.state) == (None, State.SUCCEEDED)


def test_K21_without_a_stored_outcome_the_lock_holds_until_its_time_and_then_the_next_one_gets_it(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    FAULTS.arm("report.before_commit=raise:busy")
    with pytest.raises(StoreBusy):
        kumofire.consume(run_id)
    FAULTS.arm("")
    kumofire.later(LEASE - 1)
    assert kumofire.consume(run_id) == "ignored"
    kumofire.later(1)
    kumofire.later(SECOND)
    assert kumofire.consume(run_id) == "succeeded"


def test_K22_a_message_about_a_missing_or_canceled_run_is_ignored(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    kumofire(kumofire.jobs.cancel(run_id))
    for unknown in (run_id, "00000000-0000-7000-8000-000000000000", "nothing"):
        assert kumofire.consumed(unknown) == ConsumeResult("ignored", unknown)
    assert kumofire.calls == []


def test_K23_a_run_without_a_handler_fails_at_once_and_the_error_names_it(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    stranger = kumofire.another(handlers={})
    assert kumofire(stranger.consume(build_message(run_id))).outcome == "failed"
    status = kumofire.status(run_id)
    assert (status.status, status.attempt, status.max_attempts) == (S.FAILED, 1, 3)
    assert status.error_message == "There is no handler 'email'."


def test_K24_a_run_whose_definition_was_removed_is_executed_by_the_handler_of_its_name() -> None:
    """On dictionaries: the engine does not drop the definition of a job that has runs."""
    storage = DictionaryStorage()
    door = KumofireDoor(storage, storage.clock)
    run_id = door.create()
    storage.definitions.clear()
    other = door.another()
    door(other.get_status(run_id))
    assert door(other.consume(build_message(run_id))).outcome == "succeeded"


def test_K24_a_definition_of_another_program_may_be_unknown_to_the_consumer(kumofire: StoreDoor) -> None:
    (created,) = kumofire.do(kumofire.engine.create([NewRun("sms", {}, Options(queue="kumofire"))], undefined="wait"))
    kumofire.handlers["sms"] = lambda context: context.definition.name
    consumer = kumofire.another()
    consumer._unregistered.clear()  # as if the definition had not been stored
    assert kumofire(consumer.consume(build_message(created.id))).outcome == "succeeded"
    assert kumofire.run(created.id).output_payload == "sms"


# Deduplication


def test_K25_the_same_key_gives_the_same_run_for_ever_whatever_is_asked_for(kumofire: StoreDoor) -> None:
    kumofire.handlers["bill"] = lambda context: None
    kumofire.jobs = kumofire.another()
    run_id = kumofire.create(payload={"n": 1}, dedupe_key="order-7")
    for name, payload in (("email", {"n": 1}), ("email", {"n": 2}), ("bill", None)):
        assert kumofire.create(name, payload, dedupe_key="order-7") == run_id
    assert kumofire.sent() == [run_id]
    assert kumofire.consume(run_id) == "succeeded"
    kumofire.clock.advance(40 * 24 * 3_600_000)
    assert kumofire.create(dedupe_key="order-7") == run_id
    kumofire.do(kumofire.engine.sweep())
    assert kumofire.create(dedupe_key="order-7") == run_id, "also when the run itself was removed by retention"
    assert (kumofire.sent(), kumofire(kumofire.jobs.get_status(run_id))) == ([], None)


def test_K26_the_loser_of_a_race_for_a_key_gets_the_run_of_the_winner(kumofire: StoreDoor) -> None:
    winners = []
    planned = kumofire.engine.parts.creations.planned

    async def late(*arguments: Any) -> Any:
        plan = await planned(*arguments)
        kumofire.engine.parts.creations.planned = planned  # type: ignore[method-assign]
        winners.append((await kumofire.another().create("email", dedupe_key="order-7")).kumofire_job_run_id)
        return plan

    kumofire.create()  # definitions are registered
    kumofire.sent()
    kumofire.engine.parts.creations.planned = late  # type: ignore[method-assign, assignment]
    assert [kumofire.create(dedupe_key="order-7")] == winners
    assert kumofire.sent() == winners


# What applications learn


def test_K27_the_status_needs_only_the_run_id_and_shows_nothing_of_the_inside(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id = kumofire.create(payload={"secret": 1})
    kumofire.consume(run_id)
    elsewhere = create_jobs(storage=kumofire.storage, queue=MemoryQueue())  # an application without handlers
    status = kumofire(elsewhere.get_status(run_id))
    assert status == RunStatus(
        id=run_id, job_name="email", status=S.SCHEDULED, attempt=1, max_attempts=3, scheduled_for=kumofire.in_ms(SECOND),
        started_at=None, finished_at=None, error_message="no answer",
    )  # fmt: skip
    shown = status.to_json()
    assert list(shown) == list(RunStatus.__struct_fields__)
    assert (shown["status"], shown["scheduled_for"]) == ("scheduled", "2026-01-01T00:00:01.000Z")
    assert kumofire(elsewhere.get_status("00000000-0000-7000-8000-000000000000")) is None


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_K28_a_schema_that_is_too_old_is_refused_by_every_verb(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = request.getfixturevalue("emptied_postgres") if kind == "postgres" else tmp_path / "jobs.db"
    with App(address, clock=ManualClock()) as app:
        run_id = StoreDoor(app).create()
    known = sql.migrations("sqlite")
    monkeypatch.setattr(sql, "migrations", lambda kind: [*known, "create table job_later (id integer)"])
    with App(address, clock=ManualClock()) as app:
        door, message = StoreDoor(app), build_message(run_id)
        for call in (door.jobs.create("email"), door.jobs.dispatch(), door.jobs.consume(message), door.jobs.get_status(run_id)):
            with pytest.raises(SchemaMismatch, match=rf"version {len(known)}; this windlass needs {len(known) + 1}") as refused:
                door(call)
            assert "windlass migrate" in refused.value.hint
        assert len(door.queue.messages) == 0
    monkeypatch.undo()
    with App(address, clock=ManualClock()) as app:
        assert [run.id for run in app.runs().runs] == [run_id]


def test_K28_a_storage_of_ones_own_is_asked_before_every_verb() -> None:
    storage = DictionaryStorage()
    door = KumofireDoor(storage, storage.clock)
    door.create()
    storage.schema, before = 2, dict(storage.runs)
    for call in (door.jobs.create("email"), door.jobs.dispatch(), door.jobs.consume(build_message("r1")), door.jobs.cancel("r1")):
        with pytest.raises(RuntimeError, match=r"version 2; 3 is needed\. Apply the migrations"):
            door(call)
    assert storage.runs == before


# Cancel


@pytest.mark.parametrize("at", ["scheduled", "queued", "locked"])
def test_K29_a_canceled_run_is_never_executed_and_its_messages_do_nothing(kumofire: StoreDoor, at: str) -> None:
    run_id = kumofire.create(run_at=kumofire.in_ms(SECOND) if at == "scheduled" else None)
    lock = gone(kumofire, run_id, begun=False) if at == "locked" else None
    status = kumofire(kumofire.jobs.cancel(run_id))
    assert status is not None
    assert (status.status, status.finished_at) == (S.CANCELED, kumofire.storage.now())
    if lock is not None:
        started = kumofire(kumofire.storage.mark_running(lock))
        assert started is not None
        assert started.status is S.CANCELED
    kumofire.later(10 * RESEND)
    assert kumofire.consume(run_id) == "ignored"
    assert kumofire.calls == []
    assert kumofire(kumofire.jobs.cancel(run_id)) == kumofire.status(run_id) == status


def test_K29_a_running_run_that_is_canceled_ends_so_whatever_its_handler_returns(kumofire: StoreDoor) -> None:
    async def work(context: JobContext) -> int:
        await kumofire.jobs.cancel(context.job.id)
        return 7

    kumofire.handlers["email"] = work
    jobs = kumofire.another()
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "canceled"
    run = kumofire.run(run_id)
    assert (run.status, run.output_payload, run.finished_at) == (S.CANCELED, None, kumofire.storage.now())
    assert kumofire.do(kumofire.engine.get(run_id)).state is State.CANCELLED


def test_K29_a_handler_that_still_runs_is_stopped_at_the_next_renewal(kumofire: StoreDoor) -> None:
    async def work(context: JobContext) -> None:
        await kumofire.jobs.cancel(context.job.id)
        await asyncio.sleep(60)

    kumofire.handlers["email"] = work
    jobs = kumofire.another(lease_ms=30)
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "canceled"
    assert kumofire.do(kumofire.engine.get(run_id)).state is State.CANCELLED


def test_K29_there_is_no_run_to_cancel_in_another_queue(kumofire: StoreDoor) -> None:
    (other,) = kumofire.do(kumofire.engine.create([NewRun("email")], undefined="wait"))
    assert kumofire(kumofire.jobs.cancel(other.id)) is None
    assert kumofire(kumofire.jobs.cancel("00000000-0000-7000-8000-000000000000")) is None
    assert kumofire.do(kumofire.engine.get(other.id)).state is State.QUEUED


def test_K30_a_mark_on_the_wrong_status_changes_nothing(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    lock, storage = gone(kumofire, run_id), kumofire.storage
    kumofire(storage.mark_retryable(lock, Failure("boom", "it broke"), kumofire.in_ms(SECOND)))
    before = kumofire.do(kumofire.engine.get(run_id))
    kumofire.clock.advance(10)
    assert kumofire(storage.mark_running(lock)) is None
    assert kumofire(storage.mark_succeeded(lock, "7")) is None
    assert kumofire(storage.mark_failed(lock, Failure("other", "late"))) is None
    assert kumofire(storage.mark_retryable(lock, Failure("boom", "it broke"), kumofire.in_ms(SECOND))) in (None, S.SCHEDULED)
    assert kumofire.do(kumofire.engine.get(run_id)) == before
    assert kumofire.status(run_id).attempt == 1


def test_K31_runs_are_sent_in_the_order_of_their_creation(kumofire: StoreDoor) -> None:
    ids = []
    for number in range(5):
        ids.append(kumofire.create(run_at=kumofire.in_ms(100 * (5 - number))))
        kumofire.clock.advance(1)
    kumofire.clock.advance(SECOND)
    assert (kumofire.dispatch(limit=3), kumofire.sent()) == (3, ids[:3])
    assert (kumofire.dispatch(limit=3), kumofire.sent()) == (2, ids[3:])


def test_K36_what_was_marked_but_not_sent_is_sent_later(kumofire: StoreDoor) -> None:
    class Broken:
        async def send(self, message: Any) -> None:
            raise ConnectionError("no broker")

    jobs = kumofire.another(queue=Broken())
    with pytest.raises(ConnectionError):
        kumofire(jobs.create("email", dedupe_key="order-7"))
    run_id = kumofire(kumofire.jobs.create("email", dedupe_key="order-7")).kumofire_job_run_id
    assert kumofire.sent() == []
    assert (kumofire.later(RESEND - 1), kumofire.later(2), kumofire.sent()) == (0, 1, [run_id])
    assert kumofire.later(RESEND - 1) == 0
    assert kumofire.consume(run_id) == "succeeded"
    assert kumofire.later(10 * RESEND) == 0


def test_K36_a_dispatcher_of_ones_own_resend_time(kumofire: StoreDoor) -> None:
    jobs = kumofire.another(resend_ms=500)
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    kumofire.clock.advance(501)
    assert (kumofire(jobs.dispatch()).dispatched, kumofire.sent()) == (1, [run_id, run_id])


# Definitions


def test_K37_a_run_has_the_template_and_the_options_of_its_job(kumofire: StoreDoor) -> None:
    daily = JobDefinition(name="daily", handler="email", payload_template={"to": "all", "copies": 1}, default_options={"max_attempts": 5})
    kumofire.jobs = kumofire.another(definitions=[daily])
    plain, own = kumofire.run(kumofire.create("daily")), kumofire.run(kumofire.create("daily", {"to": "ann"}, max_attempts=2))
    assert (plain.input_payload, plain.max_attempts) == ({"to": "all", "copies": 1}, 5)
    assert (own.input_payload, own.max_attempts) == ({"to": "ann", "copies": 1}, 2)
    stored = kumofire(kumofire.storage.get_definition("daily"))
    assert stored is not None
    assert (stored.id, stored.name, stored.handler, stored.payload_template) == ("daily", "daily", "email", {"to": "all", "copies": 1})
    assert stored.default_options == {"max_attempts": 5}
    assert stored.to_json()["created_at"] == "2026-01-01T00:00:00.000Z"


def test_K37_a_handler_alone_registers_a_job_and_leaves_a_stored_definition_as_it_is(kumofire: StoreDoor) -> None:
    kumofire.do(kumofire.engine.define("email", handler="mailer", payload={"from": "shop"}))
    kumofire.handlers["mailer"] = lambda context: context.definition.handler
    kumofire.jobs = kumofire.another()
    run_id = kumofire.create(payload={"to": "ann"})
    assert kumofire.run(run_id).input_payload == {"from": "shop", "to": "ann"}
    assert kumofire.consume(run_id) == "succeeded"
    assert kumofire.run(run_id).output_payload == "mailer"


def test_K38_status_and_history_are_read_by_the_id(kumofire: StoreDoor) -> None:
    kumofire.fails = ConnectionError("no answer")
    run_id, began = kumofire.create(), []
    for delay in (SECOND, 2 * SECOND):
        kumofire.clock.advance(3)
        began.append(kumofire.storage.now())
        kumofire.consume(run_id)
        kumofire.later(delay)
    kumofire.fails = None
    began.append(kumofire.storage.now())
    kumofire.consume(run_id)
    attempts = kumofire(kumofire.jobs.history(run_id))
    assert attempts is not None
    shown = [(one.number, one.status, one.started_at, one.finished_at, one.error_message) for one in attempts]
    assert shown == [
        (1, S.FAILED, began[0], began[0], "no answer"),
        (2, S.FAILED, began[1], began[1], "no answer"),
        (3, S.SUCCEEDED, began[2], began[2], None),
    ]
    assert kumofire(kumofire.jobs.history("00000000-0000-7000-8000-000000000000")) is None


def test_K38_a_run_of_any_queue_is_shown_by_its_id(kumofire: StoreDoor) -> None:
    (other,) = kumofire.do(kumofire.engine.create([NewRun("email", {"n": 1})], undefined="wait"))
    assert kumofire.status(other.id).status is S.QUEUED
    (run,) = kumofire.do(kumofire.engine.claim(WorkerInfo("w")))
    kumofire.do(kumofire.engine.start(run.id, run.token or ""))
    assert kumofire.status(other.id).status is S.RUNNING


def test_K39_what_the_handler_returns_is_the_output_of_the_run(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    kumofire.consume(run_id)
    assert kumofire.run(run_id).output_payload == {"sent": 1}
    assert kumofire.run(run_id).to_json()["output_payload"] == {"sent": 1}


@pytest.mark.parametrize("output", [object(), float("nan"), "x" * 20_000_000], ids=["object", "nan", "20 MB"])
def test_K39_a_result_that_cannot_be_stored_is_a_failure(kumofire: StoreDoor, output: Any) -> None:
    kumofire.handlers["email"] = lambda context: output
    jobs = kumofire.another()
    run_id = kumofire(jobs.create("email", max_attempts=1)).kumofire_job_run_id
    assert kumofire(jobs.consume(build_message(run_id))).outcome == "failed"
    assert (kumofire.status(run_id).error_message or "").startswith("The result")


def test_K40_a_definition_says_which_handler_executes_its_runs(kumofire: StoreDoor) -> None:
    names = []
    kumofire.handlers["story"] = lambda context: names.append((context.definition.name, context.definition.handler))
    daily, weekly = (JobDefinition(name=name, handler="story") for name in ("daily-story", "weekly-story"))
    kumofire.jobs = kumofire.another(definitions=[daily, weekly])
    ids = [kumofire.create(name) for name in ("daily-story", "weekly-story")]
    assert [kumofire.consume(run_id) for run_id in ids] == ["succeeded"] * 2
    assert names == [("daily-story", "story"), ("weekly-story", "story")]
    assert [kumofire.status(run_id).job_name for run_id in ids] == ["daily-story", "weekly-story"]


def test_K40_a_pause_of_a_job_holds_its_runs_and_not_those_of_another_with_the_same_handler(kumofire: StoreDoor) -> None:
    kumofire.jobs = kumofire.another(definitions=[JobDefinition(name="daily", handler="email")])
    kumofire.do(kumofire.engine.pause("job", "daily"))
    daily, email = kumofire.create("daily"), kumofire.create("email")
    assert (kumofire.consume(daily), kumofire.consume(email)) == ("ignored", "succeeded")
    kumofire.do(kumofire.engine.resume("job", "daily"))
    kumofire.sent()
    assert kumofire.later(RESEND + 1) == 1, "its message had no effect, so it is sent again"
    assert kumofire.consume(daily) == "succeeded"


# Queues


def test_F31_runs_and_schedules_of_another_queue_are_not_dispatched_or_consumed(kumofire: StoreDoor) -> None:
    """The line of all dialects: a queue of its own."""
    (other,) = kumofire.do(kumofire.engine.create([NewRun("email")], undefined="wait"))
    kumofire.do(kumofire.engine.schedule("native", "email", every="1m"))
    kumofire.clock.advance(60_000)
    assert (kumofire.dispatch(), kumofire.consume(other.id)) == (0, "ignored")
    assert kumofire(kumofire.jobs.get_schedule_by_key("native")) is None
    elsewhere = StoreDoor(kumofire.app)
    elsewhere.storage = Storage(kumofire.app, queue="mail")
    elsewhere.jobs = elsewhere.another(storage=elsewhere.storage)
    run_id = elsewhere.create()
    assert (elsewhere.sent(), kumofire.consume(run_id), elsewhere.consume(run_id)) == ([run_id], "ignored", "succeeded")


def test_F31_runs_of_another_queue_are_not_marked_as_sent(kumofire: StoreDoor) -> None:
    (other,) = kumofire.do(kumofire.engine.create([NewRun("email")], undefined="wait"))
    assert list(kumofire(kumofire.storage.mark_queued([other.id], RESEND))) == []


def test_a_storage_is_an_address_an_app_or_one_for_coroutines(tmp_path: Path) -> None:
    async def live(storage: Storage) -> None:
        jobs = create_jobs(storage=storage, queue=MemoryQueue(), handlers={"email": lambda context: 7})
        run = await jobs.create("email")
        assert (await jobs.consume(build_message(run.kumofire_job_run_id))).outcome == "succeeded"
        await storage.close()

    asyncio.run(live(Storage(tmp_path / "jobs.db")))
    app = AsyncApp(tmp_path / "jobs.db")
    asyncio.run(live(Storage(app)))
    with App(tmp_path / "jobs.db") as blocking:
        asyncio.run(live(Storage(blocking)))
        assert [run.state for run in blocking.runs().runs] == [State.SUCCEEDED] * 3


def test_a_message_can_be_sent_by_any_function(kumofire: StoreDoor) -> None:
    plain, awaited = list[Any](), list[Any]()

    async def send(message: Any) -> None:
        awaited.append(message)

    for queue, messages in ((CallableQueue(plain.append), plain), (CallableQueue(send), awaited)):
        run_id = kumofire(kumofire.another(queue=queue).create("email")).kumofire_job_run_id
        assert messages == [{"kumofireJobRunId": run_id}]


def test_the_store_itself_can_be_the_queue(kumofire: StoreDoor) -> None:
    queue = StoreQueue(kumofire.storage)
    jobs = kumofire.another(queue=queue)
    run_id = kumofire(jobs.create("email")).kumofire_job_run_id
    (message,) = kumofire(queue.receive())
    assert message == {"kumofireJobRunId": run_id}
    assert kumofire(jobs.consume(message)).outcome == "succeeded"
    assert kumofire(queue.receive(0.01)) == []


def test_a_job_that_nothing_defines_is_refused(kumofire: StoreDoor) -> None:
    with pytest.raises(UnknownJob, match="No job is called 'emial'") as refused:
        kumofire.create("emial")
    assert "email" in refused.value.hint
    with pytest.raises(UnknownJob):
        kumofire(kumofire.jobs.create_schedule("emial", schedule_type="interval", schedule_expr="5m"))
    assert kumofire.do(kumofire.engine.runs()).runs == []
    with pytest.raises(NotFound):
        kumofire.do(kumofire.engine.get_schedule("emial"))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"run_at": "soon"},
        {"run_at": "2030-01-01T00:00:00"},
        {"payload": object()},
        {"dedupe_key": ""},
    ],
    ids=["no attempts", "a text", "no instant", "no zone", "no JSON", "no key"],
)
def test_bad_input_is_refused_and_nothing_is_stored(kumofire: StoreDoor, fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        kumofire.create("email", **fields)
    assert kumofire.do(kumofire.engine.runs()).runs == []
    assert kumofire.sent() == []


def test_definitions_with_options_that_have_no_meaning_are_refused(kumofire: StoreDoor) -> None:
    for options in ({"timeout": 5}, {"retries": 3}, {"max_attempts": "many"}):
        with pytest.raises(BadInput, match="default_options"):
            kumofire(kumofire.another(definitions=[JobDefinition(name="bill", default_options=options)]).create("bill"))
    with pytest.raises(BadInput, match="same name"):
        kumofire.another(definitions=[JobDefinition(name="bill"), JobDefinition(name="bill", handler="email")])


@pytest.mark.parametrize(
    "fields",
    [{"name": ["bill"]}, {"name": ""}, {"handler": 5}, {"payload_template": []}, {"payload_template": None}, {"default_options": []}],
    ids=str,
)
def test_definitions_that_are_none_are_refused(kumofire: StoreDoor, fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        kumofire.another(definitions=[JobDefinition(**({"name": "bill"} | fields))])
    with pytest.raises(BadInput, match="A definition must be"):
        kumofire.another(definitions=["bill"])


USELESS: dict[str, dict[str, Any]] = {
    "no queue": {"queue": None},
    "a function for a queue": {"queue": print},
    "a number for a policy": {"retry": 3},
    "no attempts": {"retry": RetryPolicy(0)},
    "a list of handlers": {"handlers": ["email"]},
    "a text for a handler": {"handlers": {"email": "send"}},
    "a handler without a name": {"handlers": {"": print}},
    "no lease": {"lease_ms": 0},
    "a text for a time": {"resend_ms": "60"},
}


@pytest.mark.parametrize("why", USELESS)
def test_parts_that_could_not_work_are_not_made(kumofire: StoreDoor, why: str) -> None:
    with pytest.raises(BadInput):
        kumofire.another(**USELESS[why])


def test_parts_that_begin_at_once_all_register_every_definition() -> None:
    storage = DictionaryStorage()
    door = KumofireDoor(storage, storage.clock)
    put = storage.put_definition

    async def slow(definition: JobDefinition, *, replace: bool = True) -> JobDefinition:
        await asyncio.sleep(0)
        return await put(definition, replace=replace)

    storage.put_definition = slow  # type: ignore[method-assign]
    jobs = door.another(definitions=[JobDefinition(name=name) for name in ("a", "b", "c")])

    async def at_once() -> None:
        await asyncio.gather(*(jobs.create(name) for name in ("a", "b", "c", "email")))

    door(at_once())
    assert sorted(storage.definitions) == ["a", "b", "c", "email"]
