"""`App` and `AsyncApp` on every store: what a user can enqueue, wait for, cancel and ask. Each test runs in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.harness import KINDS
from tests.tiers import corners
from windlass import App, AsyncApp, AsyncHandle, Context, Fail, Handle, Key, State, current
from windlass.client.port import PARCEL
from windlass.clock import ManualClock
from windlass.errors import BadInput, NotFinished, NotFound, Pruned, RunFailed, TooLarge, UnknownJob, WrongState
from windlass.model import Limits, NewRun, Run

COLOURS: dict[str, type[App | AsyncApp]] = {"plain": App, "async": AsyncApp}


class World:
    """An app of either colour; what it gives to be awaited is awaited, in one event loop and one context for the whole test."""

    def __init__(self, app: Any, kind: str, runner: asyncio.Runner) -> None:
        self.app, self.kind, self._runner = app, kind, runner

    def __call__(self, answer: Any) -> Any:
        return self._runner.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

    @contextlib.contextmanager
    def within(self, manager: Any) -> Iterator[Any]:
        """Enter a context manager of either colour."""
        with contextlib.ExitStack() as stack:
            if not hasattr(manager, "__aenter__"):
                stack.enter_context(manager)
            else:
                self(manager.__aenter__())
                stack.push(lambda *error: self(manager.__aexit__(*error)))
            yield

    def job(self, function: Callable[..., Any], **said: Any) -> Any:
        return self.app.job(**{"name": function.__name__, **said})(function)

    def work(self, **settings: Any) -> None:
        """Do what is due; the worker never sleeps, because nothing is left when it would."""
        assert self(self.app.work(burst=True, **{"slots": 1, **settings})) is False

    def get(self, handle: Any) -> Run:
        run: Run = self(handle.refresh())
        return run

    def count(self) -> int:
        return len(self(self.app.runs(count=1_000)).runs)


async def _awaited(answer: Any) -> Any:
    return await answer


@pytest.fixture(params=corners(KINDS))
def address(request: pytest.FixtureRequest) -> str:
    match request.param:
        case "memory":
            return ":memory:"
        case "file":
            return str(request.getfixturevalue("tmp_path") / "windlass.db")
        case _:
            return str(request.getfixturevalue("emptied_postgres"))


def _world(colour: str, address: str, **settings: Any) -> Iterator[World]:
    with asyncio.Runner() as runner:
        world = World(COLOURS[colour](address, **settings), address, runner)
        yield world
        world(world.app.close())


@pytest.fixture(params=COLOURS)
def w(request: pytest.FixtureRequest, address: str) -> Iterator[World]:
    yield from _world(request.param, address)


@pytest.fixture(params=COLOURS)
def memory(request: pytest.FixtureRequest) -> Iterator[World]:
    """For what does not depend on the store."""
    yield from _world(request.param, ":memory:", clock=ManualClock())


@pytest.fixture(params=COLOURS)
def postgres(request: pytest.FixtureRequest, emptied_postgres: str) -> Iterator[World]:
    yield from _world(request.param, emptied_postgres)


def add(a: int, b: int = 2) -> int:
    return a + b


async def add_async(a: int, b: int = 2) -> int:
    return a + b


def boom() -> None:
    raise ValueError("no luck")


def nothing() -> None:
    pass


# Enqueue, work, wait


@pytest.mark.parametrize("function", [add, add_async])
def test_a_run_is_enqueued_done_and_waited_for(w: World, function: Callable[..., Any]) -> None:
    job = w.job(function)
    handle = w(job.enqueue(1, b=4))
    assert isinstance(handle, Handle | AsyncHandle)
    assert (handle.job, handle.created) == (function.__name__, True)
    assert w.get(handle).state is State.QUEUED
    w.work()
    assert w(handle.wait(10)) == 5
    assert (handle.result, handle.state, handle.record.id) == (5, State.SUCCEEDED, handle.id)
    assert handle.id in repr(handle)


def test_many_are_enqueued_in_slices_and_keep_their_order(w: World) -> None:
    w.app.limits = replace(Limits(), create=10)
    job = w.job(add)
    handles = w(w.app.enqueue_many(job.new(n) for n in range(35)))
    assert len({handle.id for handle in handles}) == 35
    w.work(slots=20)
    assert [w(handle.wait(10)) for handle in handles] == [n + 2 for n in range(35)]
    assert w(w.app.enqueue_many([])) == []


def test_slices_for_a_hub_fit_into_a_request_with_their_meta() -> None:
    news = [NewRun("mail", meta={"a": "x" * 4_000}) for _ in range(5_000)]
    some = list(App("http://127.0.0.1:9")._slices(news))
    assert [new for slice_ in some for new in slice_] == news
    assert all(len(slice_) * 4_000 <= PARCEL for slice_ in some)


def test_a_slice_is_whole_or_not_at_all_and_those_before_it_stay(w: World) -> None:
    w.app.limits = replace(Limits(), create=10)
    job = w.job(add)
    news = [job.new(n) for n in range(25)]
    news[23] = replace(news[23], payload={"a": float("nan")})
    with pytest.raises(BadInput):
        w(w.app.enqueue_many(news))
    assert w.count() == 20


def test_the_order_is_by_priority_then_by_time(w: World) -> None:
    seen: list[int] = []
    job = w.job(lambda n: seen.append(n), name="see")
    w(job.enqueue(2))
    w(job.options(priority=-1).enqueue(4))
    w(job.options(priority=9).enqueue(1))
    w(job.enqueue(3))
    w.work()
    assert seen == [1, 2, 3, 4]


def test_enqueue_by_name(w: World) -> None:
    w.job(add)
    handle = w(w.app.enqueue("add", {"a": 5}, priority=3))
    assert w.get(handle).priority == 3
    w.work()
    assert w(handle.wait(10)) == 7
    with pytest.raises(UnknownJob, match="nobody"):
        w(w.app.enqueue("nobody"))


def test_a_name_that_another_program_has_defined_can_be_enqueued(w: World) -> None:
    w.job(add)
    w(w.app.enqueue("add", {"a": 1}))
    del w.app.jobs["add"]
    handle = w(w.app.enqueue("add", {"a": 1}))
    assert w.get(handle).state is State.QUEUED


def test_run_finds_a_run_again(w: World) -> None:
    job = w.job(add)
    handle = w(w.app.run(w(job.enqueue(1)).id))
    w.work()
    assert w(handle.wait(10)) == 3
    with pytest.raises(NotFound):
        w(w.app.run("0" * 32))


def test_runs_lists_runs(w: World) -> None:
    job = w.job(add)
    ids = [w(job.enqueue(n)).id for n in range(3)]
    assert [run.id for run in w(w.app.runs(job="add")).runs] == ids[::-1]
    assert [run.id for run in w(w.app.runs(state="queued", count=2)).runs] == ids[:2]


# Options


def test_options_of_the_run_come_before_those_of_the_job(w: World) -> None:
    job = w.job(add, queue="calm", priority=1, max_attempts=5, timeout=10, backoff=[1, timedelta(seconds=2)], grace=3, max_runtime=60)
    run = w.get(w(job.enqueue(1)))
    assert (run.queue, run.priority, run.max_attempts, run.max_runtime) == ("calm", 1, 5, 60_000)
    assert (run.policy.timeout, run.policy.backoff, run.policy.grace) == (10_000, (1_000, 2_000), 3_000)
    other = job.options(queue="busy", timeout=0.5).options(priority=7, on_exhausted="quarantined", retry_place="tail")
    run = w.get(w(other.enqueue(1)))
    assert (run.queue, run.priority, run.max_attempts, run.policy.timeout) == ("busy", 7, 5, 500)
    assert (run.policy.on_exhausted, run.policy.retry_place) == ("quarantined", "tail")
    assert w.get(w(job.enqueue(1))).queue == "calm"  # the job itself is as it was


def test_delay_and_at(w: World) -> None:
    w.app.clock = clock = ManualClock()
    job = w.job(add)
    assert w.get(w(job.options(delay=90).enqueue(1))).due_at == clock.now() + 90_000
    assert w.get(w(job.options(delay=timedelta(minutes=2)).enqueue(1))).due_at == clock.now() + 120_000
    run = w.get(w(job.options(at=datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)).enqueue(1)))
    assert (run.due_at, run.state) == (1_935_630_121_000, State.SCHEDULED)
    assert w.get(w(job.options(at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue(1))).state is State.QUEUED


def test_a_key_makes_one_run(w: World) -> None:
    job = w.job(add)
    first = w(job.options(key="k").enqueue(1))
    again = w(job.options(key="k").enqueue(2))
    assert (again.id, first.created, again.created) == (first.id, True, False)
    w.work()
    assert w(again.wait(10)) == 3
    assert w(job.options(key="k").enqueue(1)).created  # ended, so it is free again
    lasting = job.options(key=Key("for ever", ttl="forever"))
    assert w(lasting.enqueue(1)).created
    w.work()
    assert not w(lasting.enqueue(1)).created


def test_a_run_waits_for_others(w: World) -> None:
    job, broken = w.job(add), w.job(boom, max_attempts=1)
    first, bad = w(job.enqueue(1)), w(broken.enqueue())
    after = w(job.options(after=[first, first.id]).enqueue(2))
    never = w(job.options(after=bad).enqueue(3))
    anyway = w(job.options(after=bad.id, after_end="any").enqueue(4))
    assert {w.get(handle).state for handle in (after, never, anyway)} == {State.WAITING}
    assert [reason.code for reason in w(after.why())] == ["waits_for"]
    w.work()
    assert (w(after.wait(10)), w(anyway.wait(10))) == (4, 6)
    with pytest.raises(RunFailed, match="cancelled"):
        w(never.wait(10))


@pytest.mark.parametrize(
    "said",
    [
        {"delay": -1}, {"delay": "5"}, {"delay": True}, {"delay": float("nan")}, {"delay": float("inf")}, {"delay": timedelta(days=-1)},
        {"timeout": "soon"}, {"max_runtime": -0.1}, {"grace": b"1"}, {"backoff": [1, -2]}, {"backoff": max},
        {"at": datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)}, {"at": "2030-01-01T00:00:00Z"},
        {"at": date(2030, 1, 1)}, {"at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, {"priority": "high"}, {"max_attempts": 0}, {"queue": ""},
        {"key": ""}, {"key": 5}, {"after_end": "never", "after": "x"}, {"on_exhausted": "lost"}, {"after": "no id!"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_are_refused_and_nothing_is_stored(memory: World, said: dict[str, Any]) -> None:
    job = memory.job(add)
    with pytest.raises((BadInput, TypeError)):
        memory(job.options(**said).enqueue(1))
    assert memory.count() == 0


def test_a_word_that_is_no_option_is_refused(memory: World) -> None:
    job = memory.job(add)
    with pytest.raises(TypeError, match="has no option 'dealy'"):
        job.options(dealy=5)
    with pytest.raises(TypeError, match="has no option 'delay'"):
        memory.job(add, delay=5)
    with pytest.raises(TypeError, match="has no option 'dealy'"):
        memory(memory.app.enqueue("add", {"a": 1}, dealy=5))


# Transactions


def test_a_transaction_stores_all_at_its_end(w: World) -> None:
    job, handles = w.job(add), list[Any]()
    with w.within(w.app.transaction()):
        handles.append(w(job.enqueue(1)))
        handles += w(w.app.enqueue_many(job.new(n) for n in (2, 3)))
        handles.append(w(w.app.enqueue("add", {"a": 4})))
        with pytest.raises(NotFinished, match="before its transaction has ended"):
            _ = handles[0].id
        assert "not stored yet" in repr(handles[0])
        assert w.count() == 0
    assert w.count() == 4
    w.work()
    assert [w(handle.wait(10)) for handle in handles] == [3, 4, 5, 6]


def test_a_transaction_that_fails_stores_nothing(w: World) -> None:
    job = w.job(add)

    def fail() -> None:
        with w.within(w.app.transaction()):
            w(job.enqueue(1))
            raise ValueError("after all not")

    with pytest.raises(ValueError, match="after all not"):
        fail()
    assert w.count() == 0
    w(job.enqueue(1))  # and it is over
    assert w.count() == 1


def test_a_transaction_with_one_that_cannot_be_stored_stores_none(w: World) -> None:
    job = w.job(add)
    news = [job.new(1), job.options(after="no-such-run").new(2)]
    with pytest.raises(NotFound), w.within(w.app.transaction()):
        w(w.app.enqueue_many(news))
    assert w.count() == 0


def test_a_transaction_holds_no_more_than_one_call_may(w: World) -> None:
    w.app.limits = replace(Limits(), create=10)
    job = w.job(add)
    with pytest.raises(TooLarge), w.within(w.app.transaction()):
        w(w.app.enqueue_many(job.new(n) for n in range(11)))
    assert w.count() == 0


def test_a_transaction_within_another_is_part_of_it(w: World) -> None:
    job = w.job(add)
    with w.within(w.app.transaction()):
        with w.within(w.app.transaction()):
            inner = w(job.enqueue(1))
        assert w.count() == 0
        with contextlib.suppress(ZeroDivisionError), w.within(w.app.transaction()):
            w(job.enqueue(2))
            _ = 1 / 0
        outer = w(job.enqueue(3))
    assert w.count() == 2
    w.work()
    assert (w(inner.wait(10)), w(outer.wait(10))) == (3, 5)


def test_a_transaction_belongs_to_its_own_thread(address: str) -> None:
    with App(address) as app, ThreadPoolExecutor(1) as pool:
        job = app.job(name="add")(add)
        with app.transaction():
            job.enqueue(1)
            pool.submit(job.enqueue, 2).result()
            assert len(app.runs().runs) == 1
        assert len(app.runs().runs) == 2


def test_a_transaction_belongs_to_its_own_task(address: str) -> None:
    async def main() -> None:
        async with AsyncApp(address) as app:
            job = app.job(name="add")(add)
            begun = asyncio.Event()

            async def other() -> None:
                await begun.wait()
                await job.enqueue(2)

            task = asyncio.create_task(other())
            async with app.transaction():
                await job.enqueue(1)
                begun.set()
                await task
                assert len((await app.runs()).runs) == 1
            assert len((await app.runs()).runs) == 2

    asyncio.run(main())


def test_what_is_enqueued_by_a_task_that_outlives_the_transaction_is_not_lost(address: str) -> None:
    async def main() -> None:
        async with AsyncApp(address) as app:
            job = app.job(name="add")(add)
            over = asyncio.Event()

            async def later() -> AsyncHandle[int]:
                await over.wait()
                return await job.enqueue(1)

            async with app.transaction():
                task = asyncio.create_task(later())
            over.set()
            assert (await (await task).refresh()).state is State.QUEUED

    asyncio.run(main())


# The caller's own connection


def _connections(world: World) -> list[Any]:
    """Open connections of every kind that this app can use."""
    blocking = psycopg.connect(world.app.address)
    if isinstance(world.app, App):
        return [blocking]
    return [blocking, world(psycopg.AsyncConnection.connect(world.app.address))]


def test_a_run_on_the_callers_connection_is_real_when_it_commits(postgres: World) -> None:
    w = postgres
    job, handles = w.job(add), list[Any]()
    for connection in _connections(w):
        before = w.count()
        with w.within(w.app.transaction(connection)):
            kept = w(job.enqueue(1))
        assert (w.count(), len(kept.id)) == (before, 36)  # known, and not yet there
        w(connection.commit())
        assert w.get(kept).state is State.QUEUED
        lost = w(w.app.enqueue_one(job.new(2), connection=connection))
        w(connection.rollback())
        with pytest.raises(NotFound):
            w.get(lost)
        more = w(w.app.enqueue_many([job.new(3)], connection=connection))
        more.append(w(w.app.enqueue("add", {"a": 4}, connection=connection)))
        w(connection.commit())
        assert w.count() == before + 3
        w(connection.close())
        handles += [kept, *more]
    w.work()
    assert [w(handle.wait(10)) for handle in handles] == [3, 5, 6] * (len(handles) // 3)


def test_a_connection_in_autocommit_makes_it_real_at_once(postgres: World) -> None:
    w = postgres
    job = w.job(add)
    for connection in _connections(w):
        w(connection.set_autocommit(True))
        before = w.count()
        with w.within(w.app.transaction(connection)):
            w(job.enqueue(1))
        assert w.count() == before + 1
        with contextlib.suppress(ZeroDivisionError), w.within(connection.transaction()):
            w(w.app.enqueue_one(job.new(2), connection=connection))
            _ = 1 / 0
        assert w.count() == before + 1
        w(connection.close())


def test_the_callers_rows_and_the_run_are_stored_together(postgres: World) -> None:
    w = postgres
    job = w.job(add)
    for number, connection in enumerate(_connections(w)):
        w(connection.execute(f"create table if not exists orders{number} (id int primary key)"))
        w(connection.commit())
        for fails in (False, True):
            with contextlib.suppress(psycopg.errors.UniqueViolation), w.within(connection.transaction()):
                with w.within(w.app.transaction(connection)):
                    w(job.enqueue(1))
                w(connection.execute(f"insert into orders{number} values (1)"))
            assert w.count() == number + 1, f"fails: {fails}"
        w(connection.execute(f"drop table orders{number}"))
        w(connection.commit())
        w(connection.close())


def test_a_refused_run_leaves_the_callers_transaction_as_it_was(postgres: World) -> None:
    w = postgres
    job = w.job(add)
    for connection in _connections(w):
        w(connection.execute("create temporary table mine (n int)"))
        with pytest.raises(NotFound):
            w(w.app.enqueue_one(job.options(after="no-such-run").new(1), connection=connection))
        w(connection.execute("insert into mine values (1)"))
        w(connection.commit())
        w(connection.close())
    assert w.count() == 0


def test_a_transaction_of_ours_within_one_of_theirs_is_part_of_it(postgres: World) -> None:
    w = postgres
    job = w.job(add)
    for connection in _connections(w):
        before = w.count()
        with w.within(w.app.transaction(connection)), w.within(w.app.transaction()):
            handle = w(job.enqueue(1))
        assert w.count() == before
        w(connection.commit())
        assert w.get(handle).state is State.QUEUED
        w(connection.close())


def test_a_subclass_of_a_connection_is_one(postgres: World) -> None:
    class Mine(psycopg.Connection[Any]):
        pass

    job = postgres.job(add)
    with Mine.connect(postgres.app.address) as connection:
        postgres(postgres.app.enqueue_one(job.new(1), connection=connection))
    assert postgres.count() == 1


def test_an_async_connection_in_plain_code_is_refused_and_stays_usable(emptied_postgres: str) -> None:
    async def main() -> None:
        with App(emptied_postgres) as app:
            job = app.job(name="add")(add)
            async with await psycopg.AsyncConnection.connect(emptied_postgres) as connection:
                with pytest.raises(BadInput, match="AsyncApp"):
                    app.enqueue_one(job.new(1), connection=connection)
                await connection.execute("select 1")

    asyncio.run(main())


class FromPsycopg2:
    """What another library's connection looks like."""


FromPsycopg2.__module__ = "psycopg2.extensions"


@pytest.mark.parametrize("made", [lambda: sqlite3.connect(":memory:"), object, FromPsycopg2], ids=["sqlite3", "object", "psycopg2"])
def test_other_connections_are_refused_with_the_reason(w: World, made: Callable[[], Any]) -> None:
    job = w.job(add)
    connection = made()
    why = r"psycopg 3 connection" if w.app.address.startswith("postgres") else r"break each other's locks\. Use app\.transaction\(\)"
    with pytest.raises(BadInput, match=why):
        w(w.app.enqueue_one(job.new(1), connection=connection))
    with pytest.raises(BadInput, match=why), w.within(w.app.transaction(connection)):
        pass
    assert w.count() == 0
    if isinstance(connection, sqlite3.Connection):
        connection.close()


def test_a_connection_to_another_kind_of_store_is_refused(memory: World, emptied_postgres: str) -> None:
    job = memory.job(add)
    with psycopg.connect(emptied_postgres) as connection, pytest.raises(BadInput):
        memory(memory.app.enqueue_one(job.new(1), connection=connection))


# What a handle can do


def test_wait_gives_up_in_time_and_the_run_goes_on(w: World) -> None:
    handle = w(w.job(add).enqueue(1))
    for timeout in (0, 0.02):
        with pytest.raises(TimeoutError, match="still queued"):
            w(handle.wait(timeout))
    w.work()
    assert w(handle.wait(10)) == 3


def test_wait_gives_up_in_time_when_the_clock_stands_still(memory: World) -> None:
    handle = memory(memory.job(add).enqueue(1))
    with pytest.raises(TimeoutError):
        memory(handle.wait(0.02))


def test_wait_returns_when_a_worker_has_done_it(w: World) -> None:
    job = w.job(add)

    async def main() -> Any:
        async with w.app.working(lease=2):
            return await called((await called(job.enqueue, 1)).wait, 30)

    assert w(main()) == 3


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what belongs to either colour while a worker runs in this loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def test_a_failure_is_raised_to_who_waits(w: World) -> None:
    handle = w(w.job(boom, backoff=[0], max_attempts=2).enqueue())
    w.work()
    with pytest.raises(RunFailed, match="ValueError: no luck") as caught:
        w(handle.wait(10))
    assert (caught.value.error.code, caught.value.run.id) == ("ValueError", handle.id)
    with pytest.raises(RunFailed):
        _ = handle.result
    attempts = w(handle.attempts())
    assert [(attempt.n, attempt.outcome, attempt.error.code) for attempt in attempts] == [
        (1, "failed", "ValueError"),
        (2, "failed", "ValueError"),
    ]
    assert "test_app.py" in attempts[0].error.detail


def test_a_handle_has_the_results_of_steps(w: World) -> None:
    def pays(ctx: Context) -> None:
        ctx.step("charge", dict, receipt=7)
        ctx.step("ship", lambda: None)

    handle = w(w.job(pays).enqueue())
    assert w(handle.steps()) == {}
    w.work()
    assert w(handle.steps()) == {"charge": {"receipt": 7}, "ship": None}


def test_nothing_is_known_before_it_is_read(w: World) -> None:
    handle = w(w.job(add).enqueue(1))
    for name in ("record", "state", "result"):
        with pytest.raises(NotFinished):
            getattr(handle, name)
    w.get(handle)
    assert handle.state is State.QUEUED
    with pytest.raises(NotFinished, match="is queued"):
        _ = handle.result


def test_cancel_before_it_began(w: World) -> None:
    handle = w(w.job(add).enqueue(1))
    assert w(handle.cancel("changed my mind")).state is State.CANCELLED
    w.work()
    with pytest.raises(RunFailed, match="cancelled: changed my mind"):
        w(handle.wait(10))
    with pytest.raises(WrongState):
        w(handle.cancel())


def test_cancel_while_it_runs(w: World) -> None:
    began = threading.Event()

    def wait(context: Context) -> None:
        began.set()
        context.pause(60)

    job = w.job(wait, grace=20)

    async def main() -> State:
        async with w.app.working(lease=1.5):
            handle = await called(job.enqueue)
            assert await asyncio.to_thread(began.wait, 30)
            assert (await called(handle.cancel)).state is State.CANCELLING
            with pytest.raises(RunFailed):
                await called(handle.wait, 30)
            state: State = handle.state
            return state

    assert w(main()) is State.CANCELLED


def test_rerun(w: World) -> None:
    handle = w(w.job(add).options(priority=3).enqueue(1))
    with pytest.raises(WrongState):
        w(handle.rerun())
    w.work()
    again = w(handle.rerun())
    assert again.id != handle.id
    assert (w.get(again).retry_of, again.record.priority) == (handle.id, 3)
    w.work()
    assert w(again.wait(10)) == 3


def test_meta(w: World) -> None:
    handle = w(w.job(add).options(meta={"user": "ann"}).enqueue(1))
    assert w.get(handle).meta == '{"user":"ann"}'
    w.work()
    assert w.get(w(handle.rerun())).meta == '{"user":"ann"}'


def test_logs_and_why(w: World) -> None:
    def chatty(context: Context) -> None:
        for n in range(3):
            context.logger.info("line %d", n)

    handle = w(w.job(chatty).enqueue())
    assert [reason.code for reason in w(handle.why())] == ["no_worker"]
    assert w(handle.logs()) == []
    w.work()
    assert [line.text for line in w(handle.logs())] == ["INFO line 0", "INFO line 1", "INFO line 2"]
    assert [reason.code for reason in w(handle.why())] == ["ended"]


def test_a_long_log_is_read_whole(memory: World) -> None:
    def chatty(context: Context) -> None:
        for n in range(25):
            context.logger.info("%d", n)

    memory.app.limits = replace(Limits(), page=10)
    handle = memory(memory.job(chatty).enqueue())
    memory.work()
    assert [line.text for line in memory(handle.logs())] == [f"INFO {n}" for n in range(25)]


def test_a_pruned_run_says_so(memory: World) -> None:
    handle = memory(memory.job(add).options(key=Key("k", ttl="forever")).enqueue(1))
    memory.work()
    memory.app.clock.advance(Limits().keep_succeeded + 1)
    memory(memory.app.engine.prune())
    with pytest.raises(Pruned):
        memory(handle.wait(1))


# Jobs


def test_a_job_can_be_called_like_the_function_it_is_made_of(memory: World) -> None:
    def with_context(context: Context, a: int) -> tuple[str, int, int]:
        context.progress(0.5)
        context.logger.info("said")
        context.beat()
        return context.job, context.attempt, a

    assert memory.job(add)(1, b=3) == 4
    assert asyncio.run(memory.job(add_async)(1)) == 3
    assert memory.job(with_context)(5) == ("with_context", 1, 5)
    command = memory.app.command("list", ["ls"])
    with pytest.raises(BadInput, match="is a command"):
        command()
    assert memory.count() == 0


def test_a_job_keeps_the_functions_words(memory: World) -> None:
    def documented() -> None:
        """What it is for."""

    assert memory.job(documented).__doc__ == "What it is for."
    assert memory.job(nothing).name == "nothing"
    assert memory.app.job()(add).name.endswith("add")


def test_two_jobs_of_one_name_are_refused(memory: World) -> None:
    memory.job(add)
    with pytest.raises(BadInput, match="two jobs called 'add'"):
        memory.job(nothing, name="add")
    with pytest.raises(BadInput, match="two jobs called 'add'"):
        memory.app.command("add", ["ls"])
    assert memory.app.jobs["add"].function is add


@pytest.mark.parametrize("function", [lambda *numbers: None, lambda **named: None], ids=["positional", "named"])
def test_parameters_without_names_are_refused(memory: World, function: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="Name every parameter"):
        memory.job(function, name="x")


def test_what_is_no_function_is_refused(memory: World) -> None:
    with pytest.raises(BadInput, match="not a function"):
        memory.app.job(name="x")(5)
    with pytest.raises((BadInput, TypeError), match=r"@app\.job\(\)"):
        memory.app.job(add)


def test_the_kind_must_fit_the_function(memory: World) -> None:
    with pytest.raises(BadInput, match="not a coroutine function"):
        memory.job(add, kind="async")
    with pytest.raises(BadInput, match="is a coroutine function"):
        memory.job(add_async, kind="thread")
    with pytest.raises(BadInput, match="defined inside a function"):
        memory.job(lambda: None, kind="process", name="x")


@pytest.mark.parametrize("argv", ["ls -l", [], ["ls", 5]])
def test_a_command_is_a_list_of_texts(memory: World, argv: Any) -> None:
    with pytest.raises(BadInput, match="must be a list of texts"):
        memory.app.command("x", argv)


def test_a_commands_payload_is_given_by_name(memory: World) -> None:
    command = memory.app.command("list", ["ls"])
    assert memory.get(memory(command.enqueue(width=3))).payload == '{"width":3}'
    with pytest.raises(TypeError, match="by name"):
        memory(command.enqueue(3))


def test_the_context_is_given_to_who_asks_for_it(w: World) -> None:
    seen: list[Context] = []

    def plain(context: Context, a: int) -> None:
        assert current() is context
        seen.append(context)

    async def awaited(ctx: Context, *, a: int) -> None:
        assert current() is ctx
        seen.append(ctx)

    handles = [w(w.job(plain).enqueue(1)), w(w.job(awaited).enqueue(a=2))]
    w.work()
    assert [w(handle.wait(10)) for handle in handles] == [None, None]
    assert [(context.run, context.attempt, context.call.payload) for context in seen] == [
        (handle.id, 1, f'{{"a":{n}}}') for n, handle in enumerate(handles, 1)
    ]
    assert [context.token for context in seen] == [w.get(handle).token for handle in handles]


def test_own_backoff_and_fail(w: World) -> None:
    asked: list[tuple[int, str]] = []

    def own(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return 0

    def final() -> None:
        raise Fail("enough", retry=False, code="enough")

    handles = [w(w.job(boom, max_attempts=3, backoff=own).enqueue()), w(w.job(final).enqueue())]
    w.work()
    assert asked == [(1, "no luck"), (2, "no luck"), (3, "no luck")]
    assert w.get(handles[0]).attempt == 3
    assert (w.get(handles[1]).attempt, handles[1].record.error.code) == (1, "enough")


# Opening, closing, sharing


def test_threads_share_one_app(address: str) -> None:
    with App(address) as app:
        job = app.job(name="add")(add)

        def enqueue(n: int) -> str:
            if n % 3:
                return job.enqueue(n).id
            with app.transaction():
                handle = job.enqueue(n)
            return handle.id

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(enqueue, range(60)))
        assert len(set(ids)) == 60
        app.work(burst=True, slots=30)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda run_id: app.run(run_id).wait(30), ids)) == [n + 2 for n in range(60)]


def test_a_closed_app_opens_again(w: World) -> None:
    job = w.job(add)
    handle = w(job.enqueue(1))
    for _ in range(2):
        w(w.app.close())
    if w.kind == ":memory:":
        w(job.enqueue(2))
        assert w.count() == 1  # what was in memory is gone with it
        return
    assert w.get(handle).state is State.QUEUED
    with w.within(w.app):
        w(job.enqueue(2))
    assert w.count() == 2


def _forked(call: Callable[[], str]) -> str:
    """What a call says in a child of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, call().encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("opened", [True, False], ids=["opened before", "not opened before"])
def test_a_forked_process_opens_the_store_anew(address: str, opened: bool) -> None:
    with App(address) as app:
        job = app.job(name="add")(add)
        before = job.enqueue(1)
        if not opened:
            app.close()

        def child() -> str:
            handle = job.enqueue(2)
            count = len(app.runs().runs)
            app.close()
            return f"{handle.id} {count}"

        said = _forked(child)
        after = job.enqueue(3)
        there = [run.id for run in app.runs().runs]
        if address == ":memory:":
            assert said.endswith(" 1")  # a store of its own, which nobody else can see
            assert after.id in there
        elif opened and not address.startswith("postgres"):
            # SQLite itself would take the parent's locks for the child's own.
            assert "StoreError" in said
            assert there == [after.id, before.id]
        else:
            assert there == [after.id, said.split()[0], before.id]


def test_the_default_store(memory: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = type(memory.app)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    assert made().address == "windlass.db"
    (tmp_path / "windlass.toml").write_text('store = "from-file.db"')
    assert made().address == str(tmp_path / "from-file.db")
    monkeypatch.setenv("WINDLASS_STORE", "from-variable.db")
    assert made().address == "from-variable.db"
    assert made(Path("said.db")).address == "said.db"
    app = made()
    memory(app.job(name="add")(add).enqueue(1))
    memory(app.close())
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["from-variable.db"]


def test_making_an_app_opens_nothing(tmp_path: Path) -> None:
    app = App(tmp_path / "windlass.db")
    app.job(name="add")(add).new(1)
    app.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_an_async_app_serves_one_loop_after_the_other(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    app = AsyncApp(tmp_path / "windlass.db" if kind == "file" else request.getfixturevalue("emptied_postgres"))
    job = app.job(name="add")(add)

    async def enqueue(n: int) -> None:
        async with app:
            await job.enqueue(n)

    async def count() -> int:
        async with app:
            return len((await app.runs()).runs)

    for n in range(3):
        asyncio.run(enqueue(n))
    assert asyncio.run(count()) == 3


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_an_async_app_serves_many_loops_at_once_and_after_one_that_was_closed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is closed in none of them but the last: so do scripts that call asyncio.run twice, and servers with a loop for each thread."""
    app = AsyncApp(tmp_path / "windlass.db" if kind == "file" else request.getfixturevalue("emptied_postgres"))
    job = app.job(name="add")(add)

    async def enqueue(first: int) -> list[int]:
        handles = await asyncio.gather(*(job.enqueue(first + n) for n in range(30)))  # more than there are connections
        return list(await asyncio.gather(*(handle.wait(30) for handle in handles[:3])))

    async def work() -> list[int]:
        async with app.working(slots=4):
            return await enqueue(0)

    assert asyncio.run(work()) == [2, 3, 4]
    with ThreadPoolExecutor(4) as pool:
        working = pool.submit(asyncio.run, _worked(app, 120))
        added = [pool.submit(asyncio.run, enqueue(1_000 * number)).result for number in (1, 2, 3)]
        assert [result() for result in added] == [[1_000 * number + n for n in (2, 3, 4)] for number in (1, 2, 3)]
        assert working.result() == 120
    asyncio.run(app.close())


async def _worked(app: AsyncApp, count: int) -> int:
    """How many runs have succeeded, once there are so many."""
    async with app.working(slots=4):
        for _ in range(600):
            if len((await app.runs(state="succeeded", count=count)).runs) == count:
                return count
            await asyncio.sleep(0.05)
    raise AssertionError("they have not succeeded")


def test_a_worker_for_a_job_that_is_not_there_is_refused(memory: World) -> None:
    memory.job(add)
    with pytest.raises(BadInput, match=r"no job 'sub'.*It has add"):
        memory.work(jobs=["sub"])
    with pytest.raises(BadInput, match="lease"):
        memory.work(lease="long")


# Jobs with another job's handler


def _story(w: World) -> Any:
    def story(context: Context, topic: str, words: int = 100) -> str:
        return f"{context.job}, {context.handler}: {words} words on {topic}"

    return w.job(story)


def test_jobs_share_a_handler_and_have_options_of_their_own(w: World) -> None:
    story = _story(w)
    daily = w.app.define("daily", handler=story, payload={"topic": "news"}, queue="night", priority=3)
    weekly = w.app.define("weekly", handler="story")
    handles = [w(story.enqueue("tea")), w(daily.enqueue()), w(daily.enqueue(topic="cups", words=5)), w(weekly.enqueue("tea", words=7))]
    w.work()
    assert [w(handle.wait()) for handle in handles] == [
        "story, story: 100 words on tea",
        "daily, story: 100 words on news",
        "daily, story: 5 words on cups",
        "weekly, story: 7 words on tea",
    ]
    run = w.get(handles[1])
    assert (run.job, run.handler, run.queue, run.priority) == ("daily", "story", "night", 3)


def test_arguments_that_do_not_fit_the_handler_of_a_job_are_refused(w: World) -> None:
    daily = w.app.define("daily", handler=_story(w), payload={"topic": "news"})
    weekly = w.app.define("weekly", handler="story")
    with pytest.raises(BadInput, match="does not fit the job 'daily'"):
        w(daily.enqueue(words="many"))
    with pytest.raises(BadInput, match="do not fit its signature"):
        w(weekly.enqueue(7))
    with pytest.raises(TypeError, match="by name"):
        w(daily.enqueue("news"))
    assert w.count() == 0


def test_a_job_with_another_jobs_handler_can_be_called(w: World) -> None:
    daily = w.app.define("daily", handler=_story(w), payload={"topic": "news"})
    assert w(daily()) == "daily, story: 100 words on news"
    assert w(daily(words=1)) == "daily, story: 1 words on news"


def test_what_makes_no_job_is_refused(w: World) -> None:
    story = _story(w)
    with pytest.raises(BadInput, match="This app has no job 'nowhere'"):
        w.app.define("daily", handler="nowhere")
    with pytest.raises(BadInput, match="two jobs called 'story'"):
        w.app.define("story", handler=story)
    with pytest.raises(TypeError, match="has no option 'on_abort'"):
        w.app.define("daily", handler=story, on_abort="fail")
    w.app.define("daily", handler=story)
    with pytest.raises(BadInput, match="'daily' has the handler 'story'"):
        w.work(jobs=["daily"])


def test_a_schedule_of_a_job_with_another_jobs_handler(w: World) -> None:
    daily = w.app.define("daily", handler=_story(w), payload={"topic": "news"})
    schedule = w(w.app.schedule(daily, every="1h", key="dawn"))
    assert (schedule.job, schedule.payload) == ("daily", {})
