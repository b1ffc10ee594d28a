"""The scheduler of the design guards at work, with real workers, threads and processes: G4, G13-G19, G25, G29, G36."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.guards_library import Library, crashed
from tests.dialects.guards_processes import executed, log, processes
from tests.harness import Harness
from tests.tiers import corners, long
from tests.workers import Gate, until
from windlass import App, Context
from windlass.dialects import guards
from windlass.dialects.guards import InvalidOperationError, InvalidValueError, JobRunStatus, JobStatus, ReservationConflictError, Scheduler
from windlass.dialects.guards.background import Background
from windlass.errors import BadInput, Timeout
from windlass.store.base import run_sync


@pytest.fixture(params=corners(["file", "postgres"]))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("emptied_postgres") if request.param == "postgres" else tmp_path / "jobs.db")


@pytest.fixture(params=["file", pytest.param("postgres", marks=long)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store for several processes, whose start takes long."""
    return str(request.getfixturevalue("emptied_postgres") if request.param == "postgres" else tmp_path / "jobs.db")


@pytest.fixture
def s(address: str) -> Iterator[Scheduler]:
    with Scheduler(address) as scheduler:
        yield scheduler


@pytest.fixture
def library(h: Harness) -> Library:
    return Library(h)


def done(s: Scheduler, job: str) -> Any:
    """The run of a job, once it has ended."""
    return until(lambda: next((run for run in s.list_jobruns(job_id=job) if run.status), None))


# At work


def test_a_scheduler_executes_the_jobs_of_its_handlers_in_the_background(s: Scheduler) -> None:
    @s.handler("story")
    def story(ctx: Context, topic: str, length: int = 1) -> list[str]:
        assert ctx.job == "story"
        return [topic] * length

    @s.handler("research")
    async def research() -> dict[str, Any]:
        return {"exit_code": 2, "artifacts": ["notes"]}

    assert s.start() == guards.RecoveryStats()
    assert s.start() is None  # it runs already
    assert s.status().scheduler_running
    first, second = s.create_job("story", params={"topic": "sea", "length": 2}), s.create_job("research")
    assert done(s, first.job_id).artifacts == ["sea", "sea"]
    assert (done(s, second.job_id).exit_code, done(s, second.job_id).artifacts) == (2, ["notes"])
    s.stop()
    s.stop()
    third = s.create_job("story", params={"topic": "sky"})
    status = s.status()
    assert (status.scheduler_running, status.queue_length, status.cumulative_stats.succeeded) == (False, 1, 2)
    s.start(run_recovery=False)
    assert done(s, third.job_id).status is JobRunStatus.COMPLETED


def test_a_handler_that_comes_after_the_start_is_told_to_wait_for_the_next(s: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    s.start()
    s.handler("late")(lambda: ["late"])
    assert "after its next start" in caplog.text
    job = s.create_job("late").job_id
    s.stop()
    s.start()
    until(lambda: s.load_job(job).finished_at)
    assert s.load_jobrun(job).artifacts == ["late"]


def test_an_app_shares_its_jobs_with_a_scheduler(address: str) -> None:
    with App(address) as app:

        @app.job()
        def report(of: str) -> str:
            return of

        with Scheduler(app) as s:
            s.start()
            assert done(s, s.create_job("report", params={"of": "May"}).job_id).artifacts == ["May"]
        assert app.run(app.runs().runs[0].id).refresh().queue == "guards"


def test_a_template_that_was_edited_stays_when_a_scheduler_with_its_handler_starts(address: str) -> None:
    for life in range(2):
        with Scheduler(address) as s:

            @s.handler("story")
            def story(topic: str = "") -> None:
                pass

            s.start()
            if life == 0:
                assert s.get_template("story").retry_policy.max_attempts == 3
                s.update_template("story", retry_policy=1, default_params={"topic": "sea"})
            template = s.get_template("story")
            assert (template.retry_policy.max_attempts, template.default_params) == (1, {"topic": "sea"})


def test_what_keeps_a_worker_from_starting_is_raised(s: Scheduler) -> None:
    @s.handler("story")
    def story(topic: "NotThere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
        pass

    with pytest.raises(BadInput, match="annotation that cannot be found"):
        s.start()


def test_params_that_the_handler_does_not_take_are_refused_at_the_creation(s: Scheduler) -> None:
    @s.handler("story")
    def story(topic: str) -> None:
        pass

    with pytest.raises(InvalidValueError, match="does not fit") as refused:
        s.create_job("story", params={"topic": 5})
    assert (refused.value.member, s.list_jobs()) == ("params", [])
    with pytest.raises(InvalidValueError, match="There is no resource 'ollama'"):
        s.handler("research", resources=["ollama"])


class FakeWorker:
    """A worker that ends at once, or when it is stopped."""

    def __init__(self, *, needs_restart: bool = False) -> None:
        self.needs_restart, self.ran, self._stopped = needs_restart, False, asyncio.Event()

    async def run(self) -> None:
        self.ran = True
        if not self.needs_restart:
            await self._stopped.wait()

    async def stop(self, *, grace: int) -> None:
        self._stopped.set()


def in_background(workers: list[FakeWorker], opening: Callable[[int], None]) -> Background:
    """A background with these workers, one after the other."""
    opened = iter(range(len(workers)))

    @asynccontextmanager
    async def new_worker() -> AsyncIterator[Any]:
        n = next(opened)
        await asyncio.to_thread(opening, n)
        yield workers[n]

    return Background(new_worker, nullcontext)


def test_a_worker_with_an_abandoned_handler_is_replaced() -> None:
    workers = [FakeWorker(needs_restart=True), FakeWorker()]
    background = in_background(workers, lambda n: None)
    background.start()
    until(lambda: workers[1].ran)
    background.stop(5)
    assert not background.running


def test_a_stop_between_two_workers_begins_no_further_one() -> None:
    workers, opening, go_on = [FakeWorker(needs_restart=True), FakeWorker()], threading.Event(), threading.Event()

    def open_worker(n: int) -> None:
        if n == 1:
            opening.set()
            go_on.wait(60)

    background = in_background(workers, open_worker)
    background.start()
    opening.wait(60)
    threading.Timer(0.2, go_on.set).start()
    background.stop(5)
    assert (background.running, workers[1].ran) == (False, False)


def test_G4_a_worker_with_a_running_job_gets_no_second(library: Library) -> None:
    first, second = library.job(), library.job()
    library.dispatch_job(first)
    assert library.idle()
    with library.refused(f"Cannot dispatch job {second}"):
        library.dispatch_job(second)
    library.update_jobrun(first, status="COMPLETED")
    assert library.dispatch_job(second).status is JobStatus.RUNNING


def test_G4_unless_parallel_execution_is_configured(h: Harness) -> None:
    library = Library(h, capacity=2)
    jobs = [library.job() for _ in range(3)]
    for job in jobs[:2]:
        library.dispatch_job(job)
    with library.refused("Cannot dispatch"):
        library.dispatch_job(jobs[2])


def test_G16_of_many_dispatches_of_one_job_one_succeeds(address: str) -> None:
    with Scheduler(address) as first:
        first.create_template("story")
        job = first.create_job("story").job_id

        def dispatch(_: int) -> bool:
            with Scheduler(address) as s:
                try:
                    return s.dispatch_job(job).status is JobStatus.RUNNING
                except InvalidOperationError:
                    return False

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(dispatch, range(8))) == 1
        assert len(first.list_jobruns(job_id=job)) == 1


# Direct calls


def test_G17_a_direct_call_is_executed_at_once_when_nothing_runs(s: Scheduler) -> None:
    @s.handler("story")
    def story(topic: str) -> str:
        assert s.status().has_active_reservation
        return topic * 2

    @s.handler("research")
    async def research() -> int:
        return 3

    assert (s.execute_direct("story", {"topic": "sea"}), s.execute_direct("research")) == ("seasea", 3)
    assert not s.status().has_active_reservation


def test_G18_a_direct_call_creates_no_job(s: Scheduler) -> None:
    @s.handler("story")
    def story() -> list[str]:
        return [job.job_id for job in s.list_jobs()]

    assert s.execute_direct("story") == []
    assert (s.list_jobs(), s.list_jobruns(), s.status().cumulative_stats.total_executed) == ([], [], 0)


@pytest.mark.parametrize("timeout", [-1, "soon", None, float("inf"), float("nan"), True])
def test_a_stop_with_a_bad_timeout_is_refused_and_the_scheduler_goes_on(s: Scheduler, timeout: Any) -> None:
    @s.handler("story")
    def story() -> None:
        pass

    s.start()
    for stop in (s.stop, s.run):
        with pytest.raises(InvalidValueError, match="timeout is"):
            stop(timeout=timeout)
    assert s.status().scheduler_running
    job = s.create_job("story").job_id
    until(lambda: s.load_job(job).finished_at)
    s.stop()
    assert not s.status().scheduler_running


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_a_direct_call_with_a_bad_timeout_is_refused(library: Library, timeout: Any) -> None:
    @library.handler("call")
    def call() -> None:
        raise AssertionError

    with library.refused("timeout is", InvalidValueError):
        library.execute_direct("call", timeout=timeout)


def test_G33_start_stop_and_status_can_be_repeated(s: Scheduler) -> None:
    s.create_template("story")
    s.stop()
    s.start()
    assert s.start() is None
    assert s.status().to_json() == {
        "scheduler_running": True,
        "current_job_id": None,
        "queue_length": 0,
        "cumulative_stats": {"total_executed": 0, "succeeded": 0, "failed": 0, "cancelled": 0, "skipped": 0},
        "has_active_reservation": False,
    }
    run_sync(s.verbs.engine.pause("queue", "guards"))
    assert not s.status().scheduler_running
    run_sync(s.verbs.engine.resume("queue", "guards"))
    assert s.status().scheduler_running
    s.stop()
    s.stop()
    assert not s.status().scheduler_running


def test_G17_while_a_job_runs_a_direct_call_waits_and_is_next(s: Scheduler) -> None:
    gate, order = Gate(), list[str]()

    @s.handler("story")
    def story(name: str) -> None:
        if name == "current":
            gate.block()
        order.append(name)

    s.create_job("story", params={"name": "current"})
    s.create_job("story", params={"name": "queued"}, priority=100)
    s.update_job(s.list_jobs()[-1].job_id, priority=100, position=0)
    s.start()
    gate.reached()
    direct = threading.Thread(target=s.execute_direct, args=("story", {"name": "direct"}))
    direct.start()
    until(lambda: s.status().has_active_reservation)
    assert order == []  # what runs is not interrupted
    gate.open()
    until(lambda: len(order) == 3)
    direct.join()
    assert order == ["current", "direct", "queued"]


def test_G19_direct_calls_are_served_in_the_order_in_which_they_asked(library: Library) -> None:
    reserve = library.h.engine.reserve
    slots = [library.h(reserve("guards", lease=30_000)) for _ in range(3)]
    library.job()
    for n, slot in enumerate(slots):
        states = [library.h(library.h.engine.renew(one.id, one.token)).state for one in slots[n:]]
        assert states == ["held", *["waiting"] * (len(slots) - n - 1)]
        assert library.idle()
        library.h(library.h.engine.release(slot.id, slot.token))
    assert not library.idle()


def test_G19_a_stale_reservation_blocks_nothing_beyond_its_expiry(library: Library) -> None:
    library.h(library.h.engine.reserve("guards", lease=30_000))
    job = library.job()
    assert (library.status().has_active_reservation, library.idle()) == (True, True)
    library.advance(seconds=30)
    assert library.claimed().id == job
    assert not library.status().has_active_reservation


def test_G19_a_stale_reservation_is_ended_by_a_start(library: Library) -> None:
    library.h(library.h.engine.reserve("guards", lease=1_000))
    library.h.clock.advance(1_000)
    assert library.h(library.verbs.recover()).reservations_expired == 1
    assert library.h(library.verbs.recover()).reservations_expired == 0


def test_a_direct_call_that_does_not_wait_is_refused_while_another_has_the_slot(library: Library) -> None:
    calls = list[str]()

    @library.handler("call")
    def call(name: str) -> None:
        calls.append(name)

    library.execute_direct("call", {"name": "free"}, wait=False)
    library.dispatch_job(library.job())
    with library.refused("Another caller has the next slot", ReservationConflictError):
        library.execute_direct("call", {"name": "busy"}, wait=False)
    assert (calls, library.status().has_active_reservation) == (["free"], False)


def test_a_direct_call_waits_for_as_long_as_it_says_and_leaves_no_reservation(s: Scheduler) -> None:
    @s.handler("call")
    def call() -> None:
        raise AssertionError

    job = s.dispatch_job(s.create_job("call").job_id).job_id
    with pytest.raises(Timeout):
        s.execute_direct("call", timeout=0.05)
    assert (s.status().has_active_reservation, s.load_job(job).finished_at) == (False, None)


def test_what_the_handler_of_a_direct_call_raises_is_raised_and_its_slot_is_free_again(library: Library) -> None:
    @library.handler("call")
    def call(error: str) -> None:
        raise Timeout(error, hint="Of the handler.")

    with pytest.raises(Timeout, match="its own"):
        library.execute_direct("call", {"error": "its own"}, wait=False)
    assert not library.status().has_active_reservation
    for params, match in (({}, "missing"), ({"error": 5}, "do not fit"), ({"error": "", "more": 1}, "unexpected")):
        with library.refused(match, InvalidValueError):
            library.execute_direct("call", params)


# Recovery


def test_G13_at_a_start_the_jobs_of_a_scheduler_that_is_gone_have_failed_and_queued_ones_are_in_their_order(library: Library) -> None:
    lost, *queued = [library.job() for _ in range(4)]
    library.update_job(queued[2], position=200)
    assert crashed(library.h) == lost
    stats = library.h(library.verbs.recover())
    assert (stats.running_jobs_recovered, stats.retries_created, stats.errors) == (1, 1, [])
    run = library.load_jobrun(lost)
    assert (run.status, "recovered" in str(run.error)) == (JobRunStatus.FAILED, True)
    assert [library.end(status="COMPLETED").job_id for _ in range(3)] == [queued[2], queued[0], queued[1]]
    library.advance(seconds=10)
    assert library.load_job(library.claimed().current_attempt).retry_of == lost


def test_G13_a_job_without_a_retry_left_has_failed_for_good(library: Library) -> None:
    library.create_template("story", retry_policy=0)
    lost = library.job()
    crashed(library.h)
    stats = library.h(library.verbs.recover())
    assert (stats.running_jobs_recovered, stats.retries_created) == (1, 0)
    assert (library.load_jobrun(lost).status, library.idle()) == (JobRunStatus.FAILED, True)


def test_G13_a_job_whose_process_lives_keeps_running(library: Library) -> None:
    library.job()
    running = library.claimed().id
    dispatched = Library(library.h, capacity=1)
    assert dispatched.h(dispatched.verbs.recover()) == guards.RecoveryStats()
    assert library.load_job(running).finished_at is None


def test_G14_recovering_twice_is_recovering_once(library: Library) -> None:
    library.job()
    crashed(library.h)
    library.h(library.verbs.recover())
    before = library.everything()
    assert library.h(library.verbs.recover()) == guards.RecoveryStats()
    assert library.everything() == before
    assert len(library.list_jobs()) == 2


def test_G15_a_running_job_without_a_run_cannot_exist_because_both_are_one_row(library: Library) -> None:
    job = library.job()
    assert library.list_jobruns(job_id=job) == []
    library.claimed()
    job_now, (run,) = library.load_job(job), library.list_jobruns(job_id=job)
    assert (run.job_id, run.started_at, run.finished_at) == (job_now.job_id, job_now.started_at, job_now.finished_at)
    library.update_jobrun(job, status="COMPLETED")
    assert library.load_job(job).finished_at == library.load_jobrun(job).finished_at


def test_G13_a_scheduler_that_is_killed_with_a_job_running_is_recovered_by_the_next(shared: str, tmp_path: Path) -> None:
    with Scheduler(shared) as s, processes(tmp_path, shared) as (process,):
        process.start()
        lost = s.create_job("story", params={"name": "lost", "gate": "never"}).job_id
        queued = s.create_job("story", params={"name": "queued"}).job_id
        until(lambda: log(tmp_path) == [["start", "lost"]])
        process.kill()
        assert s.load_job(lost).finished_at is None
        with processes(tmp_path, shared, 2) as (first, second):
            assert first.start()["running_jobs_recovered"] == 1
            assert second.start()["running_jobs_recovered"] == 0
            run = s.load_jobrun(lost)
            assert (run.status, "recovered" in str(run.error)) == (JobRunStatus.FAILED, True)
            assert s.list_jobs()[0].retry_of == lost
            assert done(s, queued).status is JobRunStatus.COMPLETED
        assert [one.retry_of for one in s.list_jobs()].count(lost) == 1


def test_G13_so_is_a_job_that_was_dispatched_by_a_process_that_is_killed(shared: str, tmp_path: Path) -> None:
    with Scheduler(shared) as s, processes(tmp_path, shared) as (process,):
        process.tell("dispatch")
        job = process.answer()
        assert s.load_job(job).status is JobStatus.RUNNING
        with Scheduler(shared) as other:
            other.start()
            assert s.load_job(job).finished_at is None
            other.stop()
            process.kill()
            assert other.start() == guards.RecoveryStats(running_jobs_recovered=1, retries_created=1)
        assert s.load_jobrun(job).status is JobRunStatus.FAILED


# Many processes, signals, and kills


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=long)])
def test_G25_four_processes_execute_one_at_a_time_and_direct_calls_next(shared: str, tmp_path: Path, rounds: int) -> None:
    expected = []
    with Scheduler(shared) as s, processes(tmp_path, shared, 4) as children:
        for child in children:
            child.start()
        for n in range(rounds):
            s.create_job("story", params={"name": f"current-{n}", "gate": f"gate-{n}"})
            until(lambda n=n: log(tmp_path)[-1:] == [["start", f"current-{n}"]])  # type: ignore[misc]
            s.create_job("story", params={"name": f"queue-{n}"}, priority=100)
            children[n % 4].tell(f"direct direct-{n}")
            until(lambda: s.status().has_active_reservation)
            (tmp_path / f"gate-{n}").touch()
            expected += [f"current-{n}", f"direct-{n}", f"queue-{n}"]
            until(lambda: len(log(tmp_path)) == 2 * len(expected))  # noqa: B023 - it is called at once
    assert executed(tmp_path) == expected


@long
def test_G25_never_two_at_once_with_direct_calls_from_four_processes(shared: str, tmp_path: Path) -> None:
    with Scheduler(shared) as s, processes(tmp_path, shared, 4) as children:
        for child in children:
            child.start()
        for n in range(100):
            s.create_job("story", params={"name": f"job-{n}"}, priority=n % 3)
            children[n % 4].tell(f"direct direct-{n}")
        until(lambda: len(log(tmp_path)) == 400)
    assert len(set(executed(tmp_path))) == 200


def test_G29_at_sigterm_the_running_job_ends_and_no_other_begins(shared: str, tmp_path: Path) -> None:
    with Scheduler(shared) as s, processes(tmp_path, shared) as (process,):
        process.tell("run")
        assert process.answer() == "running"
        until(s.list_templates)
        running = s.create_job("story", params={"name": "running", "gate": "gate"}).job_id
        queued = s.create_job("story", params={"name": "queued"}).job_id
        until(lambda: log(tmp_path) == [["start", "running"]])
        process.child.send_signal(signal.SIGTERM)
        threading.Timer(0.3, (tmp_path / "gate").touch).start()
        assert process.child.wait(60) == 0
        assert log(tmp_path) == [["start", "running"], ["end", "running"], ["stopped"]]
        assert (s.load_jobrun(running).status, s.load_job(queued).status) == (JobRunStatus.COMPLETED, JobStatus.QUEUED)


def test_G29_a_job_that_does_not_end_in_time_is_given_back(s: Scheduler) -> None:
    gate = Gate()

    @s.handler("story")
    def story() -> None:
        gate.block()

    job = s.create_job("story").job_id
    s.start()
    gate.reached()
    s.stop(timeout=0.2)
    gate.open()
    assert [(one.status, one.retry_of) for one in s.list_jobs("QUEUED")] == [(JobStatus.QUEUED, job)]


def test_G36_what_was_created_is_there_after_a_kill(shared: str, tmp_path: Path) -> None:
    with Scheduler(shared) as s, processes(tmp_path, shared) as (process,):
        process.tell("create 1000")
        created = [process.answer() for _ in range(20)]
        process.kill()
        assert all(s.load_job(job).status is JobStatus.QUEUED for job in created)
        assert s.status().queue_length >= 20


def test_G36_a_file_has_a_write_ahead_log(tmp_path: Path) -> None:
    with Scheduler(tmp_path / "jobs.db") as s:
        s.create_template("story")
        assert (tmp_path / "jobs.db-wal").exists()
