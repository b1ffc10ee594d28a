"""The SQLite adapter on tables of its own: what a store promises, what several processes do to it, what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import apsw
import pytest

from tests.store.sqlite_child import QUERIES, STEPS, Store, open_store, pair, read
from tests.tiers import corners, long
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.errors import (
    BadInput,
    Conflict,
    OutcomeUnknown,
    SchemaMismatch,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFull,
    WindlassError,
)
from windlass.faults import FAULTS, FaultRule
from windlass.model import Key, NewRun
from windlass.store import sql, sqlite
from windlass.store.base import Row, Statement, run_sync
from windlass.store.sql import Query
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite, copies, files, sessions

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, run in a loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


CHILD = Path(__file__).with_name("sqlite_child.py")
KINDS = ["blocking", "async"]


CHILDREN: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    FAULTS.arm("")
    while CHILDREN:
        with CHILDREN.pop() as process:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def opened(path: str, kind: str = "async") -> AsyncIterator[Any]:
    store = open_store(path, kind)
    try:
        yield store
    finally:
        await store.close()


def rows(path: str) -> list[list[Row]]:
    """What a store that is opened now reads."""
    store = open_store(path)
    try:
        return run_sync(read(store))
    finally:
        run_sync(store.close())


def ids(path: str) -> list[int]:
    """The numbers of the pairs, once it is sure that no pair is half there."""
    ones, twos = rows(path)
    assert ones == twos
    return [number for (number,) in ones]


@contextlib.contextmanager
def plain(path: str) -> Iterator[apsw.Connection]:
    """A connection without our manners, for looking and for being in the way."""
    db = files.open_file(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        yield db
    finally:
        sqlite.disconnect(db)


class Gate:
    """A fault point at which the process waits until the test lets it pass."""

    def __init__(self, point: str) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        FAULTS.record()
        FAULTS.rules[point] = FaultRule(self._wait, None)

    def _wait(self) -> None:
        self.reached.set()
        assert self.go.wait(30)

    async def arrive(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


def child(*arguments: object, faults: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(CHILD), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"WINDLASS_FAULTS": faults},
    )
    CHILDREN.append(process)
    return process


def said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=120)
    return out.splitlines()


# What a store promises


@in_loop
async def test_results_come_in_order_and_skipped_statements_are_empty(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        results = await store.batch("pair", [*pair(7), Statement("elsewhere"), Statement("ones"), Statement("count_up")])
    assert results == [[], [], [], [(7,)], [(1,)]]


@in_loop
async def test_a_name_no_database_knows_is_an_error_before_anything_happens(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        with pytest.raises(KeyError):
            await store.batch("pair", [*pair(1), Statement("pt_one")])
    assert ids(path) == []


@in_loop
async def test_a_batch_happens_whole_or_not_at_all(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        with pytest.raises(Conflict):
            await store.batch("pair", [*pair(2), Statement("put_one", {"id": 1, "text": ""})])
        await store.batch("pair", pair(3))
    assert ids(path) == [1, 3]


@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        (Statement("put_one", {"id": 1, "text": ""}), Conflict),
        (Statement("put_two", {"id": 5}), StoreError),  # there is no such one
    ],
)
@in_loop
async def test_only_a_taken_key_is_a_conflict(path: str, kind: str, statement: Statement, meaning: type[WindlassError]) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        with pytest.raises(WindlassError) as caught:
            await store.batch("pair", [statement])
    assert type(caught.value) is meaning
    assert path in str(caught.value)


@in_loop
async def test_reading_takes_no_write_lock(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        with plain(path) as other:
            other.execute("begin immediate; insert into one (id) values (2)")
            assert await read(store) == [[(1,)], [(1,)]]
            assert await store.batch("read", [Statement("ones")]) == [[(1,)]]


@in_loop
async def test_a_batch_that_reads_sees_one_moment(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        with plain(path) as other:

            def slip_in() -> None:
                other.execute("insert into one (id) values (2); insert into two values (2, 2)")

            # The first statement of the batch lets another connection commit before the second one runs.
            line = store._line if kind == "blocking" else store._reader.line
            line.db.create_scalar_function("slip_in", slip_in)
            line._queries = store._queries = QUERIES | {"slow": Query("select id, slip_in() from one", False)}
            assert await store.batch("read", [Statement("slow"), Statement("twos")]) == [[(1, None)], [(1,)]]
            assert await read(store) == [[(1,), (2,)], [(1,), (2,)]]


@in_loop
async def test_those_who_ask_the_same_at_once_are_answered_by_one_look(path: str) -> None:
    async with opened(path) as store:
        looks: list[int] = []
        reached, go = threading.Event(), threading.Event()

        def look(number: int) -> int:
            looks.append(number)
            reached.set()
            assert go.wait(30)
            return len(looks)

        store._reader.line.db.create_scalar_function("look", look)
        store._reader.line._queries = store._queries = QUERIES | {"look": Query("select look(:number)", False)}

        def ask(number: int) -> asyncio.Task[Any]:
            return asyncio.create_task(store.batch("read", [Statement("look", {"number": number})]))

        first = ask(0)
        assert await asyncio.to_thread(reached.wait, 30)
        tasks = [ask(number) for number in (1, 1, 2, 1, 2)]  # all come while the first one is looked for
        await asyncio.sleep(0)
        go.set()
        answers = [answer[0][0][0] for answer in await asyncio.gather(first, *tasks)]
        assert looks == [0, 1, 2]
        assert answers == [1, 2, 2, 3, 2, 3]


@in_loop
async def test_a_busy_store_says_so_and_works_again(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    async with opened(path, kind) as store:
        with plain(path) as other:
            other.execute("begin immediate")
            with pytest.raises(StoreBusy):
                await store.batch("pair", pair(1))
        await store.batch("pair", pair(2))
    assert ids(path) == [2]


def test_patience_ends_although_the_clock_stands_still(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    store = BlockingSqlite(path, ManualClock(), queries=QUERIES, steps=STEPS)
    with plain(path) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreBusy):
            run_sync(store.batch("pair", pair(1)))
    run_sync(store.close())


class Interrupted(Exception):
    """As Ctrl-C raises it: anywhere."""


@contextlib.contextmanager
def interrupted_while_it_waits(nth: int) -> Iterator[None]:
    """Raise after the nth call of a function in C that a wait for the lock makes on this thread, where a signal would be heard."""
    waiting, left = False, nth

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal waiting, left
        waiting = waiting or (event == "call" and frame.f_code.co_filename == files.__file__ and frame.f_code.co_name == "wait")
        if waiting and event == "c_return":
            left -= 1
            if not left:
                sys.setprofile(None)
                raise Interrupted

    sys.setprofile(look)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("nth", range(1, 13))
def test_what_a_signal_raises_in_a_wait_for_the_lock_holds_up_no_other_thread(path: str, nth: int) -> None:
    store = BlockingSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS)
    with plain(path) as other:
        other.execute("begin immediate")
        with interrupted_while_it_waits(nth):
            run_sync(store.batch("pair", pair(1)))
        thread = threading.Thread(target=lambda: run_sync(store.batch("pair", pair(2))), daemon=True)
        thread.start()
        thread.join(0.01)  # it waits by now, or will not have to
    thread.join(30)
    assert not thread.is_alive()
    assert ids(path) == [2]
    run_sync(store.close())


@in_loop
async def test_a_full_disk_keeps_what_was_there_and_ends_when_there_is_room(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        await store.batch("limit", [Statement("allow_pages")])
        with pytest.raises(StoreFull):
            await store.batch("pair", [*pair(2), Statement("put_one", {"id": 3, "text": "x" * 500_000})])
        await store.batch("pair", pair(4))
    assert ids(path) == [1, 4]


@in_loop
async def test_a_closed_store_says_so(path: str, kind: str) -> None:
    store = open_store(path, kind)
    await store.close()
    await store.close()
    for statements in (pair(1), [Statement("ones")]):
        with pytest.raises(StoreError, match="closed"):
            await store.batch("pair", statements)


@in_loop
async def test_memory_needs_no_file(kind: str) -> None:
    async with opened(":memory:", kind) as store:
        await asyncio.gather(*(store.batch("pair", pair(number)) for number in range(1, 100)))
        assert (await store.batch("read", [Statement("ones")]))[0] == [(number,) for number in range(1, 100)]
    assert not Path(":memory:").exists()


def test_a_blocking_store_never_suspends_and_serves_many_threads(path: str) -> None:
    store = open_store(path)

    def work() -> None:
        for _ in range(50):
            run_sync(store.batch("add", [Statement("count_up")]))
            run_sync(store.batch("read", [Statement("counter"), Statement("ones")]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run_sync(store.batch("read", [Statement("counter")])) == [[(400,)]]
    run_sync(store.close())


# Group commit


async def joined(store: Store, verbs_and_batches: list[tuple[str, list[Statement]]]) -> list[object]:
    """The outcomes of batches that all waited while the writer was held, and so go into one commit."""
    limiter = Gate("plug.before_begin")
    plug = asyncio.create_task(store.batch("plug", [Statement("count_up")]))
    await limiter.arrive()
    tasks = [asyncio.create_task(store.batch(verb, statements)) for verb, statements in verbs_and_batches]
    await asyncio.sleep(0)
    limiter.go.set()
    await plug
    return list(await asyncio.gather(*tasks, return_exceptions=True))


@in_loop
async def test_batches_that_wait_share_one_commit(path: str) -> None:
    async with opened(path) as store:
        outcomes = await joined(store, [("pair", pair(number)) for number in range(1, 41)])
        assert outcomes == [[[], []]] * 40
        assert store.commits == 2
    assert ids(path) == list(range(1, 41))


@in_loop
async def test_one_batch_that_fails_does_not_harm_those_beside_it(path: str) -> None:
    async with opened(path) as store:
        wrong = [*pair(9), Statement("put_one", {"id": 1, "text": ""})]
        outcomes = await joined(store, [("pair", pair(1)), ("pair", wrong), ("pair", pair(2))])
        assert [type(outcome) for outcome in outcomes] == [list, Conflict, list]
        assert store.commits == 2
    assert ids(path) == [1, 2]


@in_loop
async def test_an_error_that_is_not_of_the_database_fails_alone_too(path: str) -> None:
    async with opened(path) as store:
        unbound = [Statement("put_one", {"id": 9, "text": ""}), Statement("put_two", {})]
        outcomes = await joined(store, [("pair", pair(1)), ("pair", unbound), ("pair", pair(2))])
        assert [type(outcome) for outcome in outcomes] == [list, KeyError, list]
    assert ids(path) == [1, 2]


@in_loop
async def test_a_commit_that_fails_fails_everyone_in_it(path: str) -> None:
    async with opened(path) as store:
        FAULTS.arm("bad.before_commit=raise:full")
        bad = FAULTS.rules["bad.before_commit"]
        limiter = Gate("plug.before_begin")
        FAULTS.rules["bad.before_commit"] = bad
        plug = asyncio.create_task(store.batch("plug", [Statement("count_up")]))
        await limiter.arrive()
        tasks = [asyncio.create_task(store.batch(verb, pair(number))) for number, verb in enumerate(["pair", "bad", "pair"])]
        taken = asyncio.create_task(store.batch("pair", [*pair(7), *pair(7)]))
        await asyncio.sleep(0)
        limiter.go.set()
        await plug
        outcomes = await asyncio.gather(*tasks, taken, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreFull, StoreFull, StoreFull, Conflict]
        await store.batch("pair", pair(8))
    assert ids(path) == [8]


@in_loop
async def test_a_full_disk_fails_everyone_in_the_commit(path: str) -> None:
    async with opened(path) as store:
        await store.batch("limit", [Statement("allow_pages")])
        huge = [Statement("put_one", {"id": 3, "text": "x" * 500_000})]
        outcomes = await joined(store, [("pair", pair(1)), ("pair", huge), ("pair", pair(2))])
        assert [type(outcome) for outcome in outcomes] == [StoreFull] * 3
        await store.batch("pair", pair(4))
    assert ids(path) == [4]


@in_loop
async def test_nobody_is_answered_before_the_commit(path: str) -> None:
    async with opened(path) as store:
        limiter = Gate("pair.before_commit")
        tasks = [asyncio.create_task(store.batch("pair", pair(number))) for number in range(1, 9)]
        await limiter.arrive()
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        assert await read(store) == [[], []]
        limiter.go.set()
        await asyncio.gather(*tasks)
    assert ids(path) == list(range(1, 9))


@in_loop
async def test_what_was_answered_can_be_seen_by_others(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        with plain(path) as other:
            for number in range(1, 51):
                await store.batch("pair", pair(number))
                assert other.execute("select max(id) from two").get == number


@in_loop
async def test_whoever_stops_waiting_leaves_the_others_alone(path: str) -> None:
    async with opened(path) as store:
        limiter = Gate("pair.before_begin")
        tasks = [asyncio.create_task(store.batch("pair", pair(number))) for number in range(1, 9)]
        await limiter.arrive()
        for task in tasks[::2]:
            task.cancel()
        limiter.go.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, list] * 4
        await store.batch("pair", pair(9))
    assert set(ids(path)) >= {2, 4, 6, 8, 9}


def test_several_loops_share_a_store_and_one_that_is_gone_does_no_harm(path: str) -> None:
    store = open_store(path, "async")
    limiter = Gate("gone.before_begin")

    async def leave() -> None:
        abandoned = asyncio.create_task(store.batch("gone", pair(1000)))
        await limiter.arrive()
        assert not abandoned.done()

    def use(first: int) -> None:
        async def put() -> None:
            await asyncio.gather(*(store.batch("pair", pair(number)) for number in range(first, first + 50)))

        asyncio.run(put())

    asyncio.run(leave())
    limiter.go.set()
    threads = [threading.Thread(target=use, args=(first,)) for first in (1, 101, 201)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(store.close())
    assert len(ids(path)) == 151


@in_loop
async def test_closing_finishes_what_was_accepted(path: str) -> None:
    store = open_store(path, "async")
    tasks = [asyncio.create_task(store.batch("pair", pair(number))) for number in range(1, 201)]
    reads = [asyncio.create_task(read(store)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert all(task.done() and task.exception() is None for task in tasks + reads)
    assert not sqlite.open_here(path)
    assert ids(path) == list(range(1, 201))


# Fault points


@in_loop
async def test_the_points_of_a_batch_that_writes(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        seen = FAULTS.record()
        await store.batch("pair", [*pair(1), Statement("ones")])
        await read(store)
    assert seen == {"pair.before_begin", "pair.after_put_one", "pair.after_put_two", "pair.before_commit", "pair.after_commit"}


@pytest.mark.parametrize("point", ["before_begin", "after_put_one", "after_put_two", "before_commit"])
@in_loop
async def test_a_fault_before_the_commit_leaves_nothing(path: str, kind: str, point: str) -> None:
    async with opened(path, kind) as store:
        FAULTS.arm(f"pair.{point}=raise:busy@1")
        with pytest.raises(StoreBusy):
            await store.batch("pair", pair(1))
        await store.batch("pair", pair(2))
    assert ids(path) == [2]


@pytest.mark.parametrize("action", ["drop", "raise:full"])
@in_loop
async def test_a_fault_after_the_commit_leaves_the_outcome_unknown_to_its_caller_alone(path: str, kind: str, action: str) -> None:
    async with opened(path, kind) as store:
        FAULTS.arm(f"lost.after_commit={action}")
        outcomes = await asyncio.gather(store.batch("lost", pair(1)), store.batch("pair", pair(2)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, list]
    assert ids(path) == [1, 2]


# A disk that fails at the commit


class _File(apsw.VFSFile):
    """A file whose syncs fail as often as its disk was told, if it is a log."""

    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk, self._fails = disk, bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags: int) -> None:
        if self._fails and self._disk.failures:
            self._disk.fail()
        super().xSync(flags)


class FailingDisk(apsw.VFS):
    """The disk of all files opened meanwhile. The next `failures` syncs of a log fail, after it was written."""

    def __init__(self, path: str) -> None:
        super().__init__("failing", "unix", makedefault=True)
        self.failures, self._path, self._copies = 0, path, 0
        self.crashes: list[str] = []

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def fail(self) -> None:
        self.failures -= 1
        self.crashes.append(self.crash())
        error: Any = apsw.IOError("disk I/O error")
        error.result, error.extendedresult = apsw.SQLITE_IOERR, apsw.SQLITE_IOERR_FSYNC
        raise error

    def crash(self) -> str:
        """The files as they would be found after a crash at this moment."""
        self._copies += 1
        copy = f"{self._path}.{self._copies}"
        for name in ("", "-wal"):
            subprocess.run(["cp", self._path + name, copy + name], check=True)  # this process would lose its locks by closing the file
        return copy


@pytest.fixture
def disk(path: str) -> Iterator[FailingDisk]:
    failing = FailingDisk(path)
    yield failing
    failing.unregister()


@in_loop
async def test_a_disk_that_fails_at_the_commit_refuses_nothing(path: str, kind: str, disk: FailingDisk) -> None:
    """What is in the log may be there after a crash, and for those beside it in the commit too; so nobody is told that it is not."""
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        disk.failures = 6
        outcomes = await asyncio.gather(*(store.batch("pair", pair(number)) for number in (2, 3, 4)), return_exceptions=True)
        disk.failures = 0
        assert [isinstance(outcome, OutcomeUnknown) and outcome.settled for outcome in outcomes] == [False] * 3
        assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
        assert {2, 3, 4} <= {number for copy in disk.crashes for number in ids(copy)}
        await store.batch("pair", pair(5))
        assert ids(disk.crash()) == [1, 5]
    assert ids(path) == [1, 5]


@in_loop
async def test_what_failed_at_the_commit_does_not_come_back_once_it_is_settled(path: str, kind: str, disk: FailingDisk) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        for number in (2, 3):
            disk.failures = 1
            with pytest.raises(OutcomeUnknown, match="Read by key") as unknown:
                await store.batch("pair", pair(number))
            assert unknown.value.settled
            assert ids(disk.crashes.pop()) == [1, number]
            assert ids(disk.crash()) == [1]
            assert await read(store) == [[(1,)], [(1,)]]
        await store.batch("pair", pair(2))
    assert ids(path) == [1, 2]


@in_loop
async def test_a_creation_whose_disk_fails_at_the_commit_is_there_or_unknown(path: str, kind: str, disk: FailingDisk) -> None:
    store = AsyncSqlite(path, SystemClock()) if kind == "async" else BlockingSqlite(path, SystemClock())
    engine = Engine(store, SystemClock())

    def there(copy: str) -> int:
        crashed = BlockingSqlite(copy, SystemClock())
        runs = run_sync(Engine(crashed, SystemClock()).runs()).runs
        run_sync(crashed.close())
        return len(runs)

    try:
        await engine.create([NewRun("known")], undefined="wait")
        for failures, expected in ((1, 2), (2, 3)):  # after the first it is settled at once, after both by the creation itself
            disk.failures = failures
            [made] = await engine.create([NewRun("known", key=Key(str(failures)))], undefined="wait")
            assert made.created
            assert there(disk.crash()) == len((await engine.runs()).runs) == expected
        disk.crashes, disk.failures = [], 1_000
        with pytest.raises(OutcomeUnknown):
            await engine.create([NewRun("known", key=Key("lost"))], undefined="wait")
        disk.failures = 0
        assert there(disk.crashes[0]) == 4
    finally:
        await store.close()


# Several processes


def test_several_processes_count_to_the_right_sum(path: str) -> None:
    run_sync(open_store(path).close())
    processes = [child("add", path, kind, 100) for kind in KINDS * 3]
    assert [said(process) for process in processes] == [[]] * 6
    assert [process.returncode for process in processes] == [0] * 6
    store = open_store(path)
    assert run_sync(store.batch("read", [Statement("counter")])) == [[(600,)]]
    run_sync(store.close())


@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=long)])
def test_six_processes_may_open_a_new_file_at_once(path: str, attempts: int) -> None:
    for attempt in range(attempts):
        fresh = f"{path}{attempt}"
        processes = [child("wait_and_open", fresh) for _ in range(6)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [said(process) for process in processes] == [["opened"]] * 6
        assert ids(fresh) == []


POINTS = ["pair.before_begin", "pair.after_put_one", "pair.after_put_two", "pair.before_commit", "pair.after_commit"]


@pytest.mark.parametrize("point", corners([*POINTS, "checkpoint.before", "checkpoint.after"]))
def test_a_kill_at_any_point_loses_nothing_acknowledged_and_leaves_nothing_half_done(path: str, kind: str, point: str) -> None:
    process = child("write", path, kind, 400, faults=f"{point}=kill@{3 if point.startswith('check') else 11}")
    acknowledged = [int(line) for line in said(process)[1:]]
    assert process.returncode == -signal.SIGKILL
    present = ids(path)
    assert set(acknowledged) <= set(present)
    if kind == "blocking":
        after = point == "pair.after_commit" or point.startswith("check")
        assert len(present) == len(acknowledged) + after
    with plain(path) as db:
        assert db.execute("pragma integrity_check").get == "ok"


def test_a_store_carried_into_a_fork_refuses_there_and_works_here(path: str, kind: str) -> None:
    lines = said(child("fork", path, kind))
    assert lines[0] == "WrongProcess"
    assert lines[1].startswith("StoreError")
    assert "before a fork" in lines[1]
    assert ids(path) == [1]


# Opening


def test_the_real_schema_opens(path: str) -> None:
    for _ in range(2):
        store = BlockingSqlite(path, SystemClock())
        run_sync(store.close())
    with plain(path) as db:
        assert db.execute("select max(version) from schema_version").get == len(sql.migrations("sqlite"))


@pytest.mark.parametrize(("asked", "given"), [("FULL", 2), ("NORMAL", 1)])
def test_every_commit_is_synced_unless_asked_otherwise(path: str, asked: str, given: int) -> None:
    store = BlockingSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS, synchronous=asked)
    assert run_sync(store.batch("read", [Statement("synchronous")])) == [[(given,)]]
    run_sync(store.close())


def test_a_plan_is_made_once_whatever_values_are_bound(path: str) -> None:
    db = files.connect(path, SystemClock())
    assert db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    sqlite.disconnect(db)


def test_other_ways_to_sync_are_refused(path: str) -> None:
    with pytest.raises(BadInput, match="NORMAL"):
        BlockingSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS, synchronous="OFF")
    assert not os.path.exists(path)


def test_an_engine_that_can_lose_rows_is_refused() -> None:
    sqlite.check_engine("3.51.3")
    sqlite.check_engine("3.54.1")
    for version in ("3.51.2", "3.40.1", "3.9"):
        with pytest.raises(StoreError, match="WAL-reset"):
            sqlite.check_engine(version)


def test_a_wrong_path_is_explained(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("no database " * 1000)
    wrong: list[tuple[str | Path, type[WindlassError], str]] = [
        ("", BadInput, "empty"),
        (tmp_path / "missing" / "store.db", StoreError, "mkdir -p"),
        (tmp_path, StoreError, "is a folder"),
        (junk, StoreBroken, "not a database"),
    ]
    for path, error, text in wrong:
        with pytest.raises(error, match=text):
            BlockingSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS)
    assert not sqlite.open_here(junk)


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder in which another user may look but not write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o777), (0o444, 0o555), (None, 0o555)])
def test_a_place_without_permission_is_explained(foreign_folder: Path, file: int | None, folder: int) -> None:
    path = foreign_folder / "store.db"
    if file:
        run_sync(open_store(str(path)).close())
        path.chmod(file)
    foreign_folder.chmod(folder)
    [line] = said(child("open_as_nobody", path))
    assert line.startswith("StoreError")
    assert "belong to the user that runs windlass" in line


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: str) -> dict[str, int]:
    return {name: os.stat(path + name).st_mode & 0o777 for name in ("", "-wal", "-shm") if os.path.exists(path + name)}


@pytest.mark.parametrize("linked", [False, True])
@in_loop
async def test_only_its_owner_can_read_what_is_made(path: str, kind: str, linked: bool, no_umask: None) -> None:
    name = f"{path}-link" if linked else path
    if linked:
        os.symlink(path, name)  # to nothing yet
    async with opened(name, kind) as store:
        await store.batch("pair", pair(1))
        assert modes(path) == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
        sqlite.backup(path, f"{path}-copy")
        os.chmod(path, 0o644)
        sqlite.backup(path, f"{path}-another")
    os.chmod(f"{path}-copy", 0o644)
    sqlite.restore(f"{path}-copy", f"{path}-restored", steps=STEPS)
    assert [os.stat(path + end).st_mode & 0o777 for end in ("-another", "-restored")] == [0o600, 0o600]


@in_loop
async def test_a_file_that_is_there_keeps_its_mode(path: str, kind: str) -> None:
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
    os.chmod(path, 0o640)
    sqlite.backup(path, f"{path}-copy")
    async with opened(path, kind) as store:
        await store.batch("pair", pair(2))
        assert modes(path) == {"": 0o640, "-wal": 0o640, "-shm": 0o640}
    sqlite.restore(f"{path}-copy", path, replace=True, steps=STEPS)
    assert modes(path) == {"": 0o640}


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_backup_writes_to_and_gives_away_only_the_file_that_it_has_made(
    path: str, tmp_path: Path, link: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync(open_store(path).close())
    foreign = str(tmp_path / "foreign")
    Path(foreign).write_bytes(b"")
    os.chmod(foreign, 0o400)
    os.chmod(path, 0o666)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    before = os.stat(foreign)
    copying = copies._copy

    def swapped(source: str, part: str, progress: Any) -> int:
        os.unlink(part)
        link(foreign, part)
        return copying(source, part, progress)

    monkeypatch.setattr(copies, "_copy", swapped)
    if link is os.symlink:
        with pytest.raises(StoreError):
            sqlite.backup(path, tmp_path / "copy.db")
    else:
        with contextlib.suppress(StoreError):
            sqlite.backup(path, tmp_path / "copy.db")
    after = os.stat(foreign)
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)


def test_damage_is_named(path: str) -> None:
    store = open_store(path)
    for number in range(1, 100):
        run_sync(store.batch("pair", pair(number)))
    run_sync(store.close())
    with open(path, "r+b") as file:
        for page in range(1, os.path.getsize(path) // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 64)
    with pytest.raises(StoreBroken, match="windlass restore"):
        rows(path)


tells = pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="this system does not tell which files are open")


class Waiting(SystemClock):
    """A clock that tells when somebody waits for a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def chance(self) -> float:
        self.asked.set()
        return super().chance()


@pytest.mark.parametrize("lock", ["begin immediate", "begin; select * from sqlite_schema"])
def test_opening_waits_for_whoever_is_in_the_way(path: str, lock: str) -> None:
    clock, made = Waiting(), []

    def make() -> None:
        made.append(BlockingSqlite(path, clock, queries=QUERIES, steps=STEPS))

    with plain(path) as other:
        other.execute("create table theirs (id)")
        other.execute(lock)  # in a file that has no write-ahead log yet
        opener = threading.Thread(target=make)
        opener.start()
        assert clock.asked.wait(30)
        other.execute("commit")
        opener.join()
        run_sync(made[0].close())


@tells
def test_a_second_library_on_the_same_file_is_refused(path: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("create table theirs (id)")
        with pytest.raises(StoreError, match="standard `sqlite3`"):
            open_store(path)
    assert ids(path) == []  # and after it is closed, all is well
    with contextlib.closing(sqlite3.connect(path)) as other:  # it may get the very descriptor that was ours
        other.execute("select * from theirs")
        with pytest.raises(StoreError, match="standard `sqlite3`"):
            open_store(path)


@tells
def test_our_own_connections_are_no_strangers(path: str) -> None:
    first, second = open_store(path), open_store(path, "async")
    assert sqlite.open_here(path)
    asyncio.run(second.close())  # SQLite keeps its file open while the first one holds locks
    third = open_store(path)
    for store in (first, third):
        run_sync(store.batch("read", [Statement("ones")]))
        run_sync(store.close())
    assert not sqlite.open_here(path)


# The log


@in_loop
async def test_the_log_is_copied_into_the_file_as_it_grows(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CHECKPOINT_EVERY", 50)
    async with opened(path, kind) as store:
        for number in range(1, 300):
            await store.batch("pair", pair(number))
        assert os.path.getsize(path + "-wal") < 100 * 4120


@in_loop
async def test_a_log_kept_long_by_a_reader_is_emptied_after_it(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CHECKPOINT_EVERY", 20)
    monkeypatch.setattr(sessions, "LONG_LOG", 100)
    async with opened(path, kind) as store:
        with plain(path) as reader:
            reader.execute("begin; select count(*) from one")
            for number in range(1, 100):
                await store.batch("pair", pair(number))
            assert os.path.getsize(path + "-wal") > 200 * 4120
        for number in range(100, 120):
            await store.batch("pair", pair(number))
        assert os.path.getsize(path + "-wal") < 100 * 4120
    assert ids(path) == list(range(1, 120))


@in_loop
async def test_a_checkpoint_that_fails_fails_no_batch(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CHECKPOINT_EVERY", 10)
    FAULTS.arm("checkpoint.before=raise:full")
    async with opened(path, kind) as store:
        for number in range(1, 50):
            await store.batch("pair", pair(number))
    assert FAULTS.visits["checkpoint.before"] > 2
    assert ids(path) == list(range(1, 50))


# The schema


def test_a_schema_that_is_too_old_or_too_new_is_refused_with_the_way_out(path: str) -> None:
    sqlite.migrate(path, SystemClock(), STEPS[:2])
    with pytest.raises(SchemaMismatch, match=r"version 2; this windlass needs 3. Run `windlass migrate`"):
        open_store(path)
    assert sqlite.migrate(path, SystemClock(), STEPS) == (2, 3)
    assert sqlite.migrate(path, SystemClock(), STEPS) == (3, 3)
    assert ids(path) == []
    newer: list[Callable[[], object]] = [
        lambda: BlockingSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS[:2]),
        lambda: AsyncSqlite(path, SystemClock(), queries=QUERIES, steps=STEPS[:2]),
        lambda: sqlite.migrate(path, SystemClock(), STEPS[:2]),
    ]
    for refused in newer:
        with pytest.raises(SchemaMismatch, match=r"version 3; this windlass knows only 2. Upgrade windlass"):
            refused()
    assert not sqlite.open_here(path)


def test_each_step_leaves_its_version_and_time(path: str) -> None:
    sqlite.migrate(path, ManualClock(1000), STEPS[:1])
    sqlite.migrate(path, ManualClock(2000), STEPS)
    with plain(path) as db:
        assert db.execute("select version, applied_at from schema_version").fetchall() == [(1, 1000), (2, 2000), (3, 2000)]


def test_a_kill_between_steps_leaves_whole_steps(path: str) -> None:
    assert child("migrate", path, faults="migrate.between_steps=kill@2").wait(60) == -signal.SIGKILL
    with pytest.raises(SchemaMismatch, match="version 2;"):
        open_store(path)
    assert said(child("migrate", path)) == ["2 3"]
    assert ids(path) == []


def test_a_kill_between_the_steps_of_a_first_opening_leaves_nothing(path: str) -> None:
    assert child("open", path, faults="migrate.between_steps=kill@2").wait(60) == -signal.SIGKILL
    assert said(child("open", path)) == ["opened"]


def test_a_step_that_fails_changes_nothing(path: str) -> None:
    sqlite.migrate(path, SystemClock(), STEPS[:1])
    with pytest.raises(StoreError, match="no such table"):
        sqlite.migrate(path, SystemClock(), [STEPS[0], "create table half (id); insert into nowhere values (1)"])
    with plain(path) as db:
        assert db.execute("select max(version) from schema_version").get == 1
        assert not db.execute("select count(*) from sqlite_schema where name = 'half'").get


# Copies


def test_a_backup_while_another_process_writes_is_a_moment_of_it(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIED_AT_ONCE", 3)
    writer = child("write", path, "async", 100_000)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for line in range(400) if line or writer.stdout.readline()]
    steps, newest = [0], [0]

    with plain(path) as source:

        def progress(done: int, total: int) -> None:
            steps.append(done)
            while source.execute("select max(id) from one").get <= newest[-1]:
                pass
            newest.append(source.execute("select max(id) from one").get)

        for attempt in range(3):
            steps[:] = [0]
            copy = str(tmp_path / f"copy{attempt}.db")
            sqlite.backup(path, copy, progress)
            assert steps == list(range(0, 3 * len(steps), 3))  # the copy never began anew
            present = ids(copy)
            assert present == list(range(1, len(present) + 1))
            assert len(acknowledged) <= len(present) < newest[-1]
            with plain(copy) as db:
                assert db.execute("pragma integrity_check").get == "ok"


@in_loop
async def test_a_backup_beside_an_open_store_leaves_one_file_and_no_lock(path: str, tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "copies" / "one.db"
    copy.parent.mkdir()
    os.chmod(tmp_path, 0o700)
    async with opened(path, kind) as store:
        await store.batch("pair", pair(1))
        os.chmod(path, 0o640)
        sqlite.backup(path, copy)
        await store.batch("pair", pair(2))
    assert os.listdir(copy.parent) == ["one.db"]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.read_bytes()[18:20] == b"\x01\x01"  # no log: it can be read where nothing can be written
    assert ids(str(copy)) == [1]
    assert ids(path) == [1, 2]


def test_a_backup_overwrites_nothing_and_needs_a_source(path: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no file"):
        sqlite.backup(path, tmp_path / "copy.db")
    run_sync(open_store(path).close())
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(StoreError, match="exists"):
        sqlite.backup(path, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["store.db", "taken"]


@pytest.fixture
def copy(path: str, tmp_path: Path) -> str:
    """A backup with pair 1 of a store that has gone on to pair 2."""
    store = open_store(path)
    run_sync(store.batch("pair", pair(1)))
    sqlite.backup(path, tmp_path / "copy.db")
    run_sync(store.batch("pair", pair(2)))
    run_sync(store.close())
    return str(tmp_path / "copy.db")


def test_restoring_brings_back_the_backup_and_leaves_it_as_it_is(path: str, copy: str) -> None:
    before = Path(copy).read_bytes()
    with pytest.raises(StoreError, match="exists"):
        sqlite.restore(copy, path, steps=STEPS)
    assert ids(path) == [1, 2]
    sqlite.restore(copy, path, replace=True, steps=STEPS)
    assert ids(path) == [1]
    os.unlink(path)
    sqlite.restore(copy, path, steps=STEPS)
    assert ids(path) == [1]
    assert Path(copy).read_bytes() == before


def test_restoring_leaves_no_log_that_could_be_replayed(path: str, copy: str) -> None:
    assert child("write", path + "2", "blocking", 100, faults="pair.after_commit=kill@20").wait(60) == -signal.SIGKILL
    assert os.path.getsize(path + "2-wal") > 10_000
    sqlite.restore(copy, path + "2", replace=True, steps=STEPS)
    assert ids(path + "2") == [1]


def test_restoring_over_a_damaged_file_works(path: str, copy: str) -> None:
    Path(path).write_text("damaged " * 2000)
    sqlite.restore(copy, path, replace=True, steps=STEPS)
    assert ids(path) == [1]


def test_restoring_waits_for_nobody_and_replaces_nothing_in_use(path: str, copy: str) -> None:
    holder = child("hold", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(StoreBusy, match="in use"):
        sqlite.restore(copy, path, replace=True, steps=STEPS)
    said(holder)
    store = open_store(path)
    with pytest.raises(StoreBusy, match="open in this process"):
        sqlite.restore(copy, path, replace=True, steps=STEPS)
    run_sync(store.close())
    assert ids(path) == [1, 2]
    assert not [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".part")]


def test_only_a_sound_backup_of_a_known_version_is_restored(path: str, copy: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="Upgrade windlass"):
        sqlite.restore(copy, path, replace=True, steps=STEPS[:1])
    other = tmp_path / "other.db"
    with plain(str(other)) as db:
        db.execute("create table theirs (id)")
    with pytest.raises(StoreError, match="not a backup of windlass"):
        sqlite.restore(other, path, replace=True, steps=STEPS)
    damaged = tmp_path / "damaged.db"
    shutil.copy(copy, damaged)
    with damaged.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreBroken):
        sqlite.restore(damaged, path, replace=True, steps=STEPS)
    assert ids(path) == [1, 2]


def test_a_file_replaced_while_it_is_being_opened_is_noticed(path: str, copy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up = files._set_up

    def late(*arguments: object) -> None:
        monkeypatch.setattr(files, "_set_up", set_up)
        os.replace(copy, path)
        set_up(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_set_up", late)
    assert ids(path) == [1]
