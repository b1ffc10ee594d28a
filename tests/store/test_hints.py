"""Hints: who waits is told, between threads, loops and processes, on every store; none is lost between two waits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import Harness
from tests.tiers import corners, long
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.errors import OutcomeUnknown, StoreError, WrongProcess
from windlass.machine import Requeue, Snooze
from windlass.model import Key, NewRun, Run, WorkerInfo
from windlass.store import hints as module
from windlass.store.base import ALL_QUEUES, SWEEP, Hints, NoHints, Runs, Store, queue_topic, run_sync, worker_topic
from windlass.store.hints import ANYTHING, Waiter, Waiters
from windlass.store.postgres import AsyncPostgres, BlockingPostgres, BorrowedPostgres
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite
from windlass.store.sqlite.folders import SETTLED, Folder
from windlass.store.sqlite.hints import FileHints

LONG = 60.0  # seconds that no test waits, unless a hint was lost; then the answer is empty
A, B, MAIL = queue_topic("a"), queue_topic("b"), queue_topic("default")

Pair = tuple[AsyncSqlite | AsyncPostgres, AsyncSqlite | AsyncPostgres]


async def listening(store: Hints, *sets: Collection[str]) -> None:
    """The first wait for a set of topics answers at once: anything may have been missed before."""
    for topics in sets:
        assert await store.wait(topics, LONG) == set(topics)


@contextlib.asynccontextmanager
async def pair(kind: str, folder: Path, request: pytest.FixtureRequest | None) -> AsyncIterator[Pair]:
    """Two stores on the same data; in memory there is only one."""
    opened: list[AsyncSqlite | AsyncPostgres]
    if kind == "postgres" and request is not None:
        url = request.getfixturevalue("emptied_postgres")
        opened = [await AsyncPostgres(url, SystemClock()).open() for _ in range(2)]
    elif kind == "file":
        opened = [AsyncSqlite(folder / "shop.db", SystemClock()) for _ in range(2)]
    else:
        opened = [AsyncSqlite(":memory:", SystemClock())] * 2
    try:
        yield opened[0], opened[1]
    finally:
        for store in opened:
            await store.close()


@pytest.fixture(params=corners(("memory", "file", "postgres")))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Any, Any], Coroutine[Any, Any, None]]], None]:
    """Runs a test with two stores in one event loop."""

    def run(work: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
        async def opened() -> None:
            async with pair(request.param, tmp_path, request) as (one, other):
                await work(one, other)

        asyncio.run(opened())

    return run


Both = Callable[[Callable[[Hints, Hints], Coroutine[Any, Any, None]]], None]


async def ping(mine: Hints, out: str, back: str, rounds: int) -> None:
    for _ in range(rounds):
        mine.wake([out])
        assert await mine.wait([back], LONG) == {back}


async def echo(mine: Hints, heard: str, out: str, rounds: int) -> None:
    for _ in range(rounds):
        assert await mine.wait([heard], LONG) == {heard}
        mine.wake([out])


# Every store that hears


@pytest.mark.parametrize("rounds", [200, pytest.param(2_000, marks=long)])
def test_nothing_is_lost_between_two_waits(both: Both, rounds: int) -> None:
    async def work(one: Hints, other: Hints) -> None:
        await listening(one, [A])
        await listening(other, [B])
        async with asyncio.TaskGroup() as group:
            group.create_task(ping(one, B, A, rounds))
            group.create_task(echo(other, B, A, rounds))

    both(work)


def test_those_who_wait_hear_their_own_topics(both: Both) -> None:
    async def work(one: Hints, other: Hints) -> None:
        sets = [[A], [B], [A, B], [ALL_QUEUES], [worker_topic("w")], [ALL_QUEUES, worker_topic("w")]]
        await listening(other, *sets)
        waiting = [asyncio.create_task(other.wait(topics, LONG)) for topics in sets]
        await asyncio.sleep(0)
        one.wake([A, "queue:long " + "\u00e9" * 128])
        assert await waiting[0] == await waiting[2] == {A}
        for heard in (await waiting[3], await waiting[5]):
            assert A in heard
            assert heard <= {A, "queue:long " + "\u00e9" * 128}
        assert not waiting[1].done()
        assert not waiting[4].done()
        one.wake([B, worker_topic("w")])
        assert await waiting[1] == {B}
        assert await waiting[4] == {worker_topic("w")}

    both(work)


def test_many_wait_in_one_loop(both: Both) -> None:
    async def work(one: Hints, other: Hints) -> None:
        sets = [[A, worker_topic(f"w{n}")] for n in range(100)]
        await listening(other, *sets)
        waiting = [asyncio.create_task(other.wait(topics, LONG)) for topics in [*sets, *sets]]
        await asyncio.sleep(0)
        one.wake([A])
        assert await asyncio.gather(*waiting) == [{A}] * 200

    both(work)


def test_what_one_hears_another_does_not_miss(both: Both) -> None:
    async def work(one: Hints, other: Hints) -> None:
        await listening(other, [A], [A, B])
        waiting = asyncio.create_task(other.wait([A], LONG))
        await asyncio.sleep(0)
        one.wake([A])
        assert await waiting == {A}
        assert await other.wait([A, B], LONG) == {A}

    both(work)


def test_a_wait_ends_by_itself_and_when_the_store_closes(both: Both) -> None:
    async def work(one: Any, other: Any) -> None:
        await listening(other, [A])
        assert await other.wait([A], 0) == set()
        assert await other.wait([A], 0.01) == set()
        waiting = asyncio.create_task(other.wait([A], LONG))
        await asyncio.sleep(0.01)
        await other.close()
        assert await waiting == set()
        other.wake([A])  # a hint never fails
        with pytest.raises(StoreError):
            await other.wait([A], LONG)

    both(work)


def test_what_a_cancelled_waiter_heard_is_kept(both: Both) -> None:
    async def work(one: Hints, other: Hints) -> None:
        await listening(other, [A])
        waiting = asyncio.create_task(other.wait([A], LONG))
        await asyncio.sleep(0.01)
        one.wake([A])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await other.wait([A], LONG) == {A}

    both(work)


def test_a_look_without_waiting_hears_what_was_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair("file", tmp_path, None) as (one, other):
            await listening(other, [A])
            one.wake([A])
            assert await other.wait([A], 0) == {A}

    asyncio.run(work())


def test_a_topic_that_no_notification_can_carry_becomes_anything(postgres_url: str) -> None:
    async def work() -> None:
        store = await AsyncPostgres(postgres_url, SystemClock()).open()
        await listening(store, [A])
        store.wake(["queue:" + "x" * 9_000])
        assert await store.wait([A], LONG) == {A}
        await store.close()

    asyncio.run(work())


# Waiters


def test_waiters_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS", 10)
    monkeypatch.setattr(module, "KEPT", 10)
    here = Waiters()
    for n in range(100):
        assert here.block([f"queue:{n}"], 0) == {f"queue:{n}"}
    assert len(here._subscriptions) == 10
    assert here.block([ALL_QUEUES], 0) == {ALL_QUEUES}
    for n in range(10):
        here.wake([f"queue:{n}"])
    assert here.block([ALL_QUEUES], 0) == {f"queue:{n}" for n in range(10)}
    for n in range(11):
        here.wake([f"queue:{n}"])
    assert here.block([ALL_QUEUES], 0) == {ALL_QUEUES}


def test_who_waits_is_never_forgotten_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS", 10)

    async def work() -> None:
        here = Waiters()
        sets = [[A, str(n)] for n in range(20)]
        for wake in ([A], {A: [1]}):
            for topics in sets:
                await here.wait(topics, 0)
            waiting = [asyncio.create_task(here.wait(topics, LONG)) for topics in sets]
            await asyncio.sleep(0)
            here.wake(wake)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            here.wake([A])
            assert [task.result() >= {A} for task in (await asyncio.wait(waiting))[0]] == [True] * 20

    asyncio.run(work())


def test_what_is_too_much_to_be_remembered_is_kept_for_those_who_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    here = Waiters()
    assert [here.block(topics, 0) for topics in ([A], [B])] == [{A}, {B}]
    here.wake({A: ["first"]})
    here.wake({B: [f"r{n}" for n in range(10)]})
    assert len(here._hints) == 10
    here.taken([f"r{n}" for n in range(10)])
    assert [here.block(topics, 0) for topics in ([A], [B])] == [{A}, set()]
    assert [here.block(topics, 0) for topics in ([A], [B])] == [set(), set()]


def test_anything_is_for_all() -> None:
    here = Waiters()
    assert [here.block(topics, 0) for topics in ([A], [B])] == [{A}, {B}]
    here.wake([ANYTHING])
    assert [here.block(topics, 0) for topics in ([A], [B])] == [{A}, {B}]
    assert [here.block(topics, 0) for topics in ([A], [B])] == [set(), set()]


# Blocking stores


def blocked(store: BlockingSqlite, topics: Collection[str]) -> set[str]:
    return run_sync(store.wait(topics, LONG))


@pytest.mark.parametrize("where", [":memory:", "shop.db"])
def test_a_blocking_store_waits_on_its_thread_and_never_suspends(where: str, tmp_path: Path) -> None:
    with blocking(where, tmp_path) as store:
        topics = [[A, worker_topic(f"w{n}")] for n in range(8)]
        for each in topics:
            assert run_sync(store.wait(each, LONG)) == set(each)
        with ThreadPoolExecutor(9) as threads, blocking(where, tmp_path, store) as other:
            answers = [threads.submit(blocked, store, each) for each in topics]
            other.wake([A])
            assert [answer.result() for answer in answers] == [{A}] * 8
            stopped = threads.submit(blocked, store, topics[0])
            run_sync(store.close())
            with contextlib.suppress(StoreError):  # it came too late to wait at all
                assert stopped.result() == set()


@pytest.mark.parametrize("where", [":memory:", "shop.db"])
def test_a_blocking_store_does_not_block_a_loop(where: str, tmp_path: Path) -> None:
    async def work(one: BlockingSqlite, other: BlockingSqlite) -> None:
        await listening(one, [A])
        waiting = asyncio.create_task(one.wait([A], LONG))
        await asyncio.sleep(0)
        other.wake([A])
        assert await waiting == {A}

    with blocking(where, tmp_path) as one, blocking(where, tmp_path, one) as other:
        asyncio.run(work(one, other))


def test_a_thread_and_a_loop_wait_on_one_store(tmp_path: Path) -> None:
    async def work(one: BlockingSqlite, other: BlockingSqlite) -> None:
        await listening(one, [A], [B])
        waiting = asyncio.create_task(one.wait([A], LONG))
        beside = asyncio.create_task(asyncio.to_thread(blocked, one, [B]))
        for _ in range(200):
            other.wake([A])
            assert await waiting == {A}
            waiting = asyncio.create_task(one.wait([A], LONG))
            other.wake([B])
            assert await beside == {B}
            beside = asyncio.create_task(asyncio.to_thread(blocked, one, [B]))
        other.wake([A, B])
        assert (await waiting, await beside) == ({A}, {B})

    with blocking("shop.db", tmp_path) as one, blocking("shop.db", tmp_path, one) as other:
        asyncio.run(work(one, other))


@contextlib.contextmanager
def blocking(where: str, folder: Path, first: BlockingSqlite | None = None) -> Iterator[BlockingSqlite]:
    """A store; in memory, the first one again."""
    if where == ":memory:" and first is not None:
        yield first
        return
    store = BlockingSqlite(where if where == ":memory:" else folder / where, SystemClock())
    yield store
    run_sync(store.close())


def test_a_blocking_store_on_postgres_looks_again_soon(postgres_url: str) -> None:
    store = BlockingPostgres(postgres_url, SystemClock())
    assert run_sync(store.wait([A], LONG)) == set()
    assert asyncio.run(store.wait([A], LONG)) == set()
    run_sync(store.close())
    store.wake([A])
    with pytest.raises(StoreError):
        run_sync(store.wait([A], LONG))


# Files


@pytest.fixture
def one(tmp_path: Path) -> Iterator[BlockingSqlite]:
    with blocking("shop.db", tmp_path) as store:
        yield store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BlockingSqlite]:
    with blocking("shop.db", tmp_path) as store:
        yield store


def sockets(folder: Path, name: str = "shop.db") -> list[str]:
    hints = folder / f"{name}-hints"
    return sorted(os.listdir(hints)) if hints.exists() else []


CHILD = """
import os, sys, time
from windlass.clock import SystemClock
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite
store = BlockingSqlite(sys.argv[1], SystemClock())
def say(word):
    print(word, flush=True)
"""


def child(code: str, path: Path, **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD + code, str(path)], stdout=subprocess.PIPE, text=True, **how)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    with process:
        assert process.wait(60) == 0


def test_nothing_is_lost_between_two_processes(tmp_path: Path, one: BlockingSqlite) -> None:
    code = f"""
run_sync(store.wait(["{B}"], 60))
say("ready")
for _ in range(2_000):
    assert run_sync(store.wait(["{B}"], 60)) == {{"{B}"}}
    store.wake(["{A}"])
run_sync(store.close())
"""
    process = child(code, tmp_path / "shop.db")
    assert run_sync(one.wait([A], LONG)) == {A}
    assert line(process) == "ready"
    for _ in range(2_000):
        one.wake([B])
        assert run_sync(one.wait([A], LONG)) == {A}
    ended(process)
    assert len(sockets(tmp_path)) == 1


def test_a_folder_is_there_only_while_somebody_waits(tmp_path: Path, one: BlockingSqlite, other: BlockingSqlite) -> None:
    one.wake([A])
    assert not (tmp_path / "shop.db-hints").exists()
    for store in (one, other):
        run_sync(store.wait([A], LONG))
    assert len(sockets(tmp_path)) == 2
    run_sync(one.close())
    assert len(sockets(tmp_path)) == 1
    run_sync(other.close())
    assert not (tmp_path / "shop.db-hints").exists()


def test_what_a_killed_process_left_behind_is_cleared_away(tmp_path: Path, one: BlockingSqlite) -> None:
    process = child(f"run_sync(store.wait(['{A}'], 60)); say('ready'); time.sleep(60)", tmp_path / "shop.db")
    with process:
        assert line(process) == "ready"
        assert len(sockets(tmp_path)) == 1
        one.wake([A])
        assert len(sockets(tmp_path)) == 1
        process.kill()
    keep = tmp_path / "shop.db-hints" / "a file of somebody's own"
    keep.touch()
    one.wake([A])
    assert sockets(tmp_path) == [keep.name]


def test_a_fork_neither_hears_nor_removes(tmp_path: Path, one: BlockingSqlite) -> None:
    code = f"""
run_sync(store.wait(["{A}"], 60))
pid = os.fork()
if pid == 0:
    store.wake(["{A}"])
    run_sync(store.close())
    try:
        run_sync(store.wait(["{A}"], 60))
    except Exception as error:
        os._exit(7 if type(error).__name__ == "{WrongProcess.__name__}" else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
say("forked")
assert run_sync(store.wait(["{A}"], 60)) == {{"{A}"}}
run_sync(store.close())
"""
    process = child(code, tmp_path / "shop.db")
    assert line(process) == "forked"
    assert len(sockets(tmp_path)) == 1
    one.wake([A])
    ended(process)


def test_a_fork_does_not_keep_its_dead_parents_place(tmp_path: Path, one: BlockingSqlite) -> None:
    code = f"""
run_sync(store.wait(["{A}"], 60))
if os.fork() == 0:
    say(os.getpid())
    time.sleep(60)
time.sleep(60)
"""
    process = child(code, tmp_path / "shop.db")
    with process:
        orphan = int(line(process))
        process.kill()
        process.wait(60)
        one.wake([A])
        assert sockets(tmp_path) == []
        os.kill(orphan, signal.SIGKILL)


def test_hints_find_their_way_however_long_it_is(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    folder.mkdir(parents=True)
    with blocking("shop.db", folder) as one, blocking("shop.db", folder) as other:
        run_sync(one.wait([A], LONG))
        assert len(sockets(folder)) == 1
        other.wake([A])
        assert run_sync(one.wait([A], LONG)) == {A}
    assert not (folder / "shop.db-hints").exists()


def test_hints_find_their_way_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: BlockingSqlite) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.db").symlink_to(tmp_path / "shop.db")
    monkeypatch.chdir(tmp_path)
    run_sync(one.wait([A], LONG))
    for spelled in ("shop.db", "elsewhere/link.db", "elsewhere/../shop.db"):
        with blocking(spelled, Path()) as other:
            monkeypatch.chdir("/")
            other.wake([A])
            assert run_sync(one.wait([A], LONG)) == {A}
            monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("drive", [run_sync, asyncio.run])
def test_without_a_socket_one_looks_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: BlockingSqlite, drive: Callable[[Coroutine[Any, Any, set[str]]], set[str]]
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr("windlass.store.sqlite.folders._made", refused)
        assert drive(one.wait([A], LONG)) == {A}
        assert drive(one.wait([A], LONG)) == set()
        one.wake([A])  # those in the same store hear each other all the same
        assert drive(one.wait([A], LONG)) == {A}
    assert drive(one.wait([A], LONG)) == {A}  # now there is one, and anything may have been missed
    assert len(sockets(tmp_path)) == 1


def test_a_file_in_the_folders_place_does_no_harm(tmp_path: Path, one: BlockingSqlite, other: BlockingSqlite) -> None:
    (tmp_path / "shop.db-hints").write_text("mine")
    run_sync(one.wait([A], LONG))
    assert run_sync(one.wait([A], LONG)) == set()
    other.wake([A])
    assert (tmp_path / "shop.db-hints").read_text() == "mine"


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path, one: BlockingSqlite, other: BlockingSqlite) -> None:
    run_sync(one.wait([A], LONG))
    for name in sockets(tmp_path):
        (tmp_path / "shop.db-hints" / name).unlink()
    (tmp_path / "shop.db-hints").rmdir()
    assert run_sync(one.wait([A], LONG)) == {A}
    other.wake([A])
    assert run_sync(one.wait([A], LONG)) == {A}


def set_back(folder: Path, at: int) -> None:
    """Let the folder have changed at this instant, for the last time."""
    os.utime(folder, ns=(at * 1_000_000, at * 1_000_000))


def test_a_folder_is_listed_again_only_after_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: BlockingSqlite, other: BlockingSqlite
) -> None:
    listed, names = list[str](), Folder.names

    def noted(self: Folder) -> list[str]:
        listed.append(self.path)
        return names(self)

    run_sync(one.wait([A], LONG))
    set_back(tmp_path / "shop.db-hints", SystemClock().now() - 10 * SETTLED)
    monkeypatch.setattr(Folder, "names", noted)
    for _ in range(5):
        other.wake([A])
        assert run_sync(one.wait([A], LONG)) == {A}
    assert len(listed) == 1
    with blocking("shop.db", tmp_path) as third:
        run_sync(third.wait([A], LONG))
        other.wake([A])
        assert run_sync(third.wait([A], LONG)) == {A}
    other.wake([A])
    assert run_sync(one.wait([A], LONG)) == {A}


def test_a_socket_is_found_although_the_folder_changed_twice_at_the_same_time(
    tmp_path: Path, one: BlockingSqlite, other: BlockingSqlite
) -> None:
    folder, now = tmp_path / "shop.db-hints", SystemClock().now()
    run_sync(one.wait([A], LONG))
    set_back(folder, now)
    other.wake([A])
    with blocking("shop.db", tmp_path) as third:
        run_sync(third.wait([A], LONG))
        set_back(folder, now)
        other.wake([A])
        assert run_sync(third.wait([A], LONG)) == {A}


def test_a_full_socket_hides_no_topic(one: BlockingSqlite, other: BlockingSqlite) -> None:
    for topics in ([A], [B]):
        run_sync(one.wait(topics, LONG))
    for _ in range(1_000):
        other.wake([A])
    other.wake([B])
    assert run_sync(one.wait([B], LONG)) == {B}


def test_one_who_does_not_read_keeps_nobody_from_hearing(tmp_path: Path, one: BlockingSqlite, other: BlockingSqlite) -> None:
    deaf = [BlockingSqlite(tmp_path / "shop.db", SystemClock()) for _ in range(3)]
    for store in (one, *deaf):
        run_sync(store.wait([A], LONG))
    for _ in range(1_000):
        other.wake([A])
        assert run_sync(one.wait([A], LONG)) == {A}
    for store in deaf:
        run_sync(store.close())


def test_many_topics_become_anything(one: BlockingSqlite, other: BlockingSqlite) -> None:
    run_sync(one.wait([A], LONG))
    other.wake([f"queue:{n}" for n in range(1_000)])
    assert run_sync(one.wait([A], LONG)) == {A}


@pytest.mark.parametrize("message", [b"", b"\xff", b"[", b"[[1]]", b'{"a": 1}', b"[" * 1_900, b'["queue:b"]'])
def test_what_is_not_for_us_wakes_nobody(tmp_path: Path, one: BlockingSqlite, message: bytes) -> None:
    run_sync(one.wait([A], LONG))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(message, str(tmp_path / "shop.db-hints" / sockets(tmp_path)[0]))
    assert run_sync(one.wait([A], 0.01)) == set()


@pytest.mark.parametrize(
    ("file", "folder", "name"), [(0o600, 0o700, 0o600), (0o644, 0o700, 0o600), (0o664, 0o770, 0o666), (0o666, 0o777, 0o666)]
)
def test_who_may_write_the_file_may_send(tmp_path: Path, one: BlockingSqlite, file: int, folder: int, name: int) -> None:
    (tmp_path / "shop.db").chmod(file)
    run_sync(one.wait([A], LONG))
    made = tmp_path / "shop.db-hints"
    assert stat.S_IMODE(made.stat().st_mode) == folder
    assert stat.S_IMODE((made / sockets(tmp_path)[0]).stat().st_mode) == name


def test_no_descriptor_is_left_open(tmp_path: Path, one: BlockingSqlite) -> None:
    def used() -> int:
        return len(os.listdir("/dev/fd"))

    async def wait_a_little() -> None:
        store = AsyncSqlite(tmp_path / "shop.db", SystemClock())
        await listening(store, [A])
        waiting = [asyncio.create_task(store.wait([A], LONG)) for _ in range(3)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*waiting) == [set()] * 3

    asyncio.run(wait_a_little())
    before = used()
    for _ in range(5):
        asyncio.run(wait_a_little())
        with blocking("shop.db", tmp_path) as store:
            run_sync(store.wait([A], LONG))
            run_sync(store.wait([A], 0.001))
            one.wake([A])
    assert used() == before


# As many as there are runs


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG / 2):
        while not condition():  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(0)


class Fleet:
    """Workers as a hub sees them: they look, and wait until they hear; what they take keeps them busy for ever."""

    def __init__(self, engine: Engine, count: int, jobs: Callable[[int], tuple[str, ...] | None] = lambda _: None) -> None:
        self.engine, self.looks, self.taken = engine, 0, list[str]()
        self._infos = [WorkerInfo(f"w{n}", jobs=jobs(n)) for n in range(count)]
        self.tasks: list[asyncio.Task[None]] = []

    async def work(self, info: WorkerInfo) -> None:
        topics = {ALL_QUEUES, worker_topic(info.name)}
        await self.engine.wait(topics, LONG)
        while not (runs := await self.claim(info)):
            assert await self.engine.wait(topics, LONG), "It was woken by nothing but time."
        self.taken += [run.id for run in runs]

    async def claim(self, info: WorkerInfo) -> list[Run]:
        self.looks += 1
        return await self.engine.claim(info, count=1, lease=60_000)

    async def gather(self) -> None:
        """Until all wait, in this order."""
        for info in self._infos:
            before = self.looks
            self.tasks.append(asyncio.create_task(self.work(info)))
            await soon(lambda: self.looks > before)  # noqa: B023 - it is called before the next one comes
        asleep: Collection[Waiter] = self.engine.hints._hints._others._asleep  # type: ignore[attr-defined]
        await soon(lambda: len(asleep) == len(self._infos))
        self.looks = 0

    async def have(self, count: int) -> None:
        await soon(lambda: len(self.taken) >= count)

    async def go(self) -> None:
        for task in self.tasks:
            task.cancel()
        for answer in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert answer is None or isinstance(answer, asyncio.CancelledError), answer


def with_fleet(
    count: int, work: Callable[[Fleet], Coroutine[Any, Any, None]], jobs: Callable[[int], tuple[str, ...] | None] = lambda _: None
) -> None:
    async def run() -> None:
        store = AsyncSqlite(":memory:", SystemClock())
        engine = Engine(store, SystemClock())
        await engine.define("mail")
        await engine.define("film")
        fleet = Fleet(engine, count, jobs)
        await fleet.gather()
        await work(fleet)
        await fleet.go()
        await store.close()

    asyncio.run(run())


def test_one_run_is_worth_one_look_however_many_wait() -> None:
    async def work(fleet: Fleet) -> None:
        for n in range(1, 6):
            await fleet.engine.create([NewRun("mail")])
            await fleet.have(n)
        await asyncio.sleep(3 * module.MORE_AFTER)  # in which nobody else is told
        assert fleet.looks <= 2 * 5

    with_fleet(200, work)


@pytest.mark.parametrize("at_once", [1, 7, 50, 200])
def test_as_many_as_there_are_runs_are_told(at_once: int) -> None:
    async def work(fleet: Fleet) -> None:
        for _ in range(0, 200, at_once):
            await fleet.engine.create([NewRun("mail") for _ in range(min(at_once, 200 - len(fleet.taken)))])
        await fleet.have(200)
        assert fleet.looks <= 2 * 200

    with_fleet(200, work)


def test_who_cannot_take_a_run_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MORE_AFTER", LONG)

    async def work(fleet: Fleet) -> None:
        await fleet.engine.create([NewRun("film")])
        await fleet.have(1)

    with_fleet(40, work, lambda n: ("film",) if n == 39 else ("mail",))


def test_who_is_told_and_goes_away_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MORE_AFTER", LONG)

    async def work(fleet: Fleet) -> None:
        await fleet.engine.create([NewRun("mail")])
        fleet.tasks[0].cancel()  # it has been told, and has not looked
        await fleet.have(1)
        assert fleet.looks <= 2

    with_fleet(20, work)


def test_who_is_told_and_never_heard_of_again_costs_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(info: WorkerInfo) -> list[Run]:
        if info.name in ("w0", "w1", "w2"):
            await asyncio.sleep(LONG)
        return await Fleet.claim(fleet_of[0], info)

    fleet_of: list[Fleet] = []

    async def work(fleet: Fleet) -> None:
        fleet_of.append(fleet)
        monkeypatch.setattr(fleet, "claim", lost)
        await fleet.engine.create([NewRun("mail")])
        await fleet.have(1)

    with_fleet(20, work)


def test_who_was_not_told_hears_when_it_comes_back_while_nobody_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MORE_AFTER", 0.1)

    async def work() -> None:
        here = Waiters()
        sets = [[A, str(n)] for n in range(4)]
        for topics in sets:
            assert await here.wait(topics, 0) == set(topics)
        waiting = [asyncio.create_task(here.wait(topics, time)) for topics, time in zip(sets, (LONG, 0.01, 60), strict=False)]
        await asyncio.sleep(0)
        here.wake({A: ["r1"]})
        assert [await waiting[n] for n in (0, 1)] == [{A}, set()]
        assert await waiting[2] == {A}  # a little later
        assert await here.wait(sets[1], LONG) == {A}  # nobody else is left to be told
        here.taken(["r1"])
        assert [await here.wait(topics, 0.01) for topics in sets] == [set()] * 4

    asyncio.run(work())


def test_those_who_wait_for_the_same_are_told_one_by_one_too() -> None:
    async def work() -> None:
        here = Waiters()
        await here.wait([A], 0)
        waiting = [asyncio.create_task(here.wait([A], LONG)) for _ in range(5)]
        await asyncio.sleep(0)
        for run in range(2):
            here.wake({A: [run]})
        assert await asyncio.gather(*waiting[:2]) == [{A}] * 2
        here.taken([0])
        waiting.append(asyncio.create_task(here.wait([A], LONG)))  # one comes back with nothing, for the other run
        assert await waiting[2] == {A}
        here.taken([1])
        done, asleep = await asyncio.wait(waiting[3:], timeout=3 * module.MORE_AFTER)
        assert (len(done), len(asleep)) == (0, 3)
        for task in asleep:
            task.cancel()
        await asyncio.wait(asleep)

    asyncio.run(work())


class Timers:
    """An event loop as far as waiters need one: what is to be called later is called when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)

    def call_later(self, _: float, call: Callable[..., None], *arguments: Any) -> None:
        self.due.append(functools.partial(call, *arguments))

    def fire(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class _Gone(Exception):
    pass


class Seeker:
    """One who looks, and waits when there is nothing for it; each step by itself, so that anything may happen between two."""

    def __init__(self, number: int, kinds: Collection[str], here: Waiters, runs: dict[int, str], timers: Timers) -> None:
        self.topics = {ALL_QUEUES, worker_topic(str(number))} if number % 2 else {A, worker_topic(str(number))}
        self.kinds, self.here, self.runs, self.timers = kinds, here, runs, timers
        self.looked, self.waiter = False, None
        self._stack = contextlib.ExitStack()
        with here.waiting(self.topics, lambda: None):
            pass  # the first time it hears of everything

    waiter: Waiter | None

    def look(self) -> None:
        if self.waiter is None:
            found = [run for run, kind in self.runs.items() if kind in self.kinds]
            for run in found:
                del self.runs[run]
            self.here.taken(found)
            self.looked = not found

    def enter(self) -> None:
        if self.looked and self.waiter is None:
            self.waiter = self._stack.enter_context(self.here.waiting(self.topics, lambda: None, loop=self.timers))  # type: ignore[arg-type]

    def leave(self) -> None:
        """It has heard, or its time is over."""
        if self.waiter is not None:
            self._stack.close()
            self.waiter, self.looked = None, False

    def go(self) -> None:
        """It is cancelled."""
        if self.waiter is not None:
            with contextlib.suppress(_Gone), self._stack.pop_all():
                raise _Gone
            self.waiter, self.looked = None, False

    def live(self) -> bool:
        """Whether there was anything left to do for one who does what it should."""
        if self.waiter is not None and not self.waiter.topics:
            return False
        self.leave()
        self.look()
        self.enter()
        return True


def test_one_whom_the_collector_ends_while_the_board_is_busy_passes_on_what_it_heard() -> None:
    here = Waiters()
    with here.waiting({A}, lambda: None):
        pass  # whoever comes first may have missed anything
    gone: Any = here.waiting({A}, lambda: None)
    gone.__enter__()
    here.wake({A: []})
    with here._lock:
        gone.gen.close()
    with here.waiting({A}, lambda: None) as other:
        assert other.topics == {A}


@settings(max_examples=300, derandomize=True)
@given(st.data())
def test_no_run_waits_beside_one_who_could_take_it_and_sleeps(data: st.DataObject) -> None:
    here, runs, timers = Waiters(), dict[int, str](), Timers()
    kinds = data.draw(st.lists(st.sampled_from(["x", "y", "xy"]), min_size=1, max_size=8))
    seekers = [Seeker(number, some, here, runs, timers) for number, some in enumerate(kinds)]
    numbers = itertools.count()
    for step in data.draw(
        st.lists(st.sampled_from(["say", "say", "look", "enter", "enter", "leave", "go", "vanish", "fire"]), max_size=60)
    ):
        if step == "say":
            new = {next(numbers): data.draw(st.sampled_from("xy")) for _ in range(data.draw(st.integers(1, 3)))}
            runs |= new
            here.wake({A: list(new)})
        elif step == "fire":
            timers.fire()
        elif step == "vanish":
            seekers = [one for one in seekers if one.waiter is None or not one.waiter.topics]  # told, and never heard of again
        elif seekers:
            getattr(data.draw(st.sampled_from(seekers)), step)()
    while sum(one.live() for one in seekers) or timers.due:
        timers.fire()
    assert not [(run, one.kinds) for run, kind in runs.items() for one in seekers if kind in one.kinds]
    for one in seekers:
        one.leave()


# The engine


class Recorder:
    """Hints that only remember what was said, and when it was said what the store held."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def wake(self, topics: Collection[str]) -> None:
        self.said += sorted(topics)

    def taken(self, runs: Runs) -> None:
        pass

    async def wait(self, topics: Collection[str], timeout: float) -> set[str]:
        return set(topics)

    def take(self) -> list[str]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def ears(h: Harness) -> Recorder:
    recorder = Recorder()
    h.engine = Engine(h.store, h.clock, hints=recorder)
    h.define("late", queue="other")
    return recorder


def test_a_run_that_was_not_made_wakes_nobody(h: Harness, ears: Recorder) -> None:
    key = Key("k", ttl="unfinished")
    h(h.engine.create([NewRun("late", key=key)]))
    assert ears.take() == [queue_topic("other")]
    h(h.engine.create([NewRun("late", key=key)]))
    assert ears.take() == []
    h(h.engine.create([NewRun("late", key=key), NewRun("late")]))
    assert ears.take() == [queue_topic("other")]


def test_a_creation_wakes_its_queues(h: Harness, ears: Recorder) -> None:
    now = h.clock.now()
    h(h.engine.create([NewRun("mail"), NewRun("mail"), NewRun("late"), NewRun("late", due_at=now + 1_001)]))
    assert ears.take() == [MAIL, "queue:other"]
    h.create(due_at=now + 1_001)
    assert ears.take() == []
    h(h.engine.create([NewRun("mail", due_at=now + 5_000), NewRun("mail", due_at=now + 1_000)]))
    assert ears.take() == [SWEEP]


def test_a_rerun_wakes(h: Harness, ears: Recorder) -> None:
    run_id = h.create("late")
    h(h.engine.cancel(run_id))
    ears.take()
    h(h.engine.rerun(run_id))
    assert ears.take() == ["queue:other"]


def test_a_dispatch_wakes(h: Harness, ears: Recorder) -> None:
    for job in ("mail", "late", "late"):
        h.create(job, due_at=h.clock.now() + 10_000)
    h.sweep()
    assert ears.take() == []
    h.sweep(after=10_000)
    assert ears.take() == [MAIL, "queue:other"]


@pytest.mark.parametrize(("delay", "expected"), [(0, [MAIL]), (1, [SWEEP]), (1_000, [SWEEP]), (1_001, [])])
def test_a_run_that_comes_back_soon_wakes(h: Harness, ears: Recorder, delay: int, expected: list[str]) -> None:
    for _ in range(2):
        h.create()
    failing, snoozing = h.claim(2)
    ears.take()
    h.fail(failing, delay=delay)
    assert ears.take() == expected
    h.report(snoozing, Snooze(token=snoozing.token, delay=delay))
    assert ears.take() == expected


def test_a_run_that_is_requeued_or_lapses_wakes(h: Harness, ears: Recorder) -> None:
    h.define(backoff=(0,))
    h.create()
    run = h.claimed()
    ears.take()
    h.report(run, Requeue(token=run.token))
    assert ears.take() == [MAIL]
    h.claimed()
    h.sweep(after=30_000)
    assert ears.take() == [MAIL]


def test_an_end_wakes_nobody_but_those_that_followed(h: Harness, ears: Recorder) -> None:
    first, second, third = h.create(), h.create(), h.create()
    consumers = [NewRun("late", after=(first,)), NewRun("late", after=(first,), due_at=h.clock.now() + 1_001)]
    h(h.engine.create([*consumers, NewRun("late", after=(second,), after_end="any"), NewRun("late", after=(third,), after_end="any")]))
    done, failing, _ = h.claim(3)
    assert ears.take() == [MAIL] * 3
    h.succeed(done)
    assert ears.take() == ["queue:other"]
    h.fail(failing, retry=False)
    assert ears.take() == ["queue:other"]
    h(h.engine.cancel(third))
    assert ears.take() == ["worker:w1"]
    h.sweep(after=30_000)
    assert ears.take() == ["queue:other"] * 2  # the consumer, and what was due by then
    h.create("late", after=(first,))
    assert ears.take() == ["queue:other"]
    last = h.create()
    ears.take()
    h.succeed(h.claimed(queues=("default",)))
    assert h.get(last).finished_at is not None
    assert ears.take() == []


def test_a_patch_wakes_when_it_makes_a_run_ready(h: Harness, ears: Recorder) -> None:
    run_id = h.create(due_at=h.clock.now() + 60_000)
    h(h.engine.patch(run_id, priority=1))
    assert ears.take() == []
    h(h.engine.patch(run_id, queue="elsewhere", due_at=h.clock.now()))
    assert ears.take() == ["queue:elsewhere"]


def test_a_cancel_wakes_the_worker(h: Harness, ears: Recorder) -> None:
    run_id = h.create()
    h.claimed("w7")
    ears.take()
    for _ in range(2):
        h(h.engine.cancel(run_id))
    assert ears.take() == ["worker:w7"]


def test_a_hint_goes_out_although_the_answer_was_lost(h: Harness, ears: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    create = h.engine.records.creations.create

    async def lost(*made: Any) -> Any:
        await create(*made)
        raise OutcomeUnknown("lost", hint="ask")

    monkeypatch.setattr(h.engine.records.creations, "create", lost)
    h.create()
    assert ears.take() == [MAIL]


def test_an_engine_takes_the_hints_of_its_store(h: Harness) -> None:
    hints: object = h.engine.hints
    assert hints is h.store
    assert h(h.engine.wait([A], 0)) in ({A}, set())


class Mute:
    """A store without hints."""

    def __init__(self, store: Store) -> None:
        self.batch, self.close = store.batch, store.close


def test_without_hints_one_looks_again_soon(h: Harness) -> None:
    engine = Engine(Mute(h.store), h.clock)
    before = h.clock.monotonic()
    assert isinstance(engine.hints, NoHints)
    assert h(engine.wait([A], LONG)) == set()
    assert h(engine.wait([A], 0.01)) == set()
    assert h.clock.monotonic() - before == 60
    h(engine.create([NewRun("mail")]))
    silent = h.engine.on(Mute(h.store))
    assert isinstance(silent.hints, NoHints)


def test_an_engine_on_another_store_says_it_there(h: Harness, tmp_path: Path) -> None:
    recorder = Recorder()
    store = BlockingSqlite(":memory:", ManualClock())
    assert Engine(h.store, h.clock, hints=recorder).on(store).hints is store
    run_sync(store.close())


# A caller's own connection


async def committed(connection: Any) -> None:
    result = connection.commit()
    if result is not None:
        await result


async def connected(colour: str, url: str, **how: Any) -> Any:
    return await psycopg.AsyncConnection.connect(url, **how) if colour == "async" else psycopg.connect(url, **how)


async def closed(connection: Any) -> None:
    result = connection.close()
    if result is not None:
        await result


def borrowed(url: str, colour: str, work: Callable[[Engine, AsyncPostgres, Any], Coroutine[Any, Any, None]], **how: Any) -> None:
    """Runs a test with an engine on a caller's connection, and a store that waits."""

    async def opened() -> None:
        store = await AsyncPostgres(url, SystemClock()).open()
        connection = await connected(colour, url, **how)
        engine = Engine(store, SystemClock())
        await engine.define("mail")
        try:
            await work(engine.on(BorrowedPostgres(connection)), store, connection)
        finally:
            await closed(connection)
            await store.close()

    asyncio.run(opened())


@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_callers_commit_sends_its_hints(postgres_url: str, colour: str, ends: str) -> None:
    async def work(engine: Engine, store: AsyncPostgres, connection: Any) -> None:
        await listening(store, [MAIL, B])
        await engine.create([NewRun("mail")])
        store.wake([B])  # a hint that is sent later and heard first shows that the other one waits
        assert await store.wait([MAIL, B], LONG) == {B}
        result = getattr(connection, ends)()
        if result is not None:
            await result
        if ends == "commit":
            assert await store.wait([MAIL, B], LONG) == {MAIL}
        else:
            store.wake([B])
            assert await store.wait([MAIL, B], LONG) == {B}

    borrowed(postgres_url, colour, work)


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_caller_without_a_transaction_sends_at_once(postgres_url: str, colour: str) -> None:
    async def work(engine: Engine, store: AsyncPostgres, connection: Any) -> None:
        await listening(store, [MAIL])
        await engine.create([NewRun("mail")])
        assert await store.wait([MAIL], LONG) == {MAIL}

    borrowed(postgres_url, colour, work, autocommit=True)


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_callers_open_transaction_keeps_nobody_from_listening(postgres_url: str, colour: str) -> None:
    async def work(engine: Engine, store: AsyncPostgres, connection: Any) -> None:
        await engine.create([NewRun("mail")])
        await listening(store, [MAIL])
        await engine.create([NewRun("mail")])
        await committed(connection)
        assert await store.wait([MAIL], LONG) == {MAIL}

    borrowed(postgres_url, colour, work)


def test_a_hint_leaves_a_callers_transaction_as_it_was(postgres_url: str) -> None:
    async def work(engine: Engine, store: AsyncPostgres, connection: Any) -> None:
        await listening(store, [MAIL])
        await engine.create([NewRun("mail")])
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        notify = BorrowedPostgres(connection)
        await notify.notify(["queue:\0", "queue:\ud800"])  # what no notification can carry costs the hint alone
        await notify.notify(["queue:" + "x" * 9_000])
        connection.execute("create table mine ()")
        await committed(connection)
        assert await store.wait([MAIL], LONG) == {MAIL}
        with contextlib.suppress(psycopg.Error):
            connection.execute("nonsense")
        await notify.notify([MAIL])
        connection.rollback()
        await engine.create([NewRun("mail")])

    borrowed(postgres_url, "blocking", work)


def test_an_engine_on_a_callers_connection_still_hears(postgres_url: str) -> None:
    async def work(engine: Engine, store: AsyncPostgres, connection: Any) -> None:
        assert engine.hints is store
        await listening(engine, [A])  # type: ignore[arg-type]  # its wait is the store's
        store.wake([A])
        assert await engine.wait([A], LONG) == {A}

    borrowed(postgres_url, "blocking", work)


# Interrupted waits


class Interrupted(Exception):
    """As Ctrl-C raises it: anywhere."""


def interrupted(nth: int, wait: Callable[[], object]) -> bool:
    """Raise at the nth call or return of a function of this wait, where a signal would be heard; whether there are so many."""
    left = nth

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise Interrupted

    with contextlib.suppress(Interrupted, RuntimeError):  # the latter from inside an Event
        sys.setprofile(look)
        wait()
        sys.setprofile(None)
    return left <= 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is raised while a generator is closed
@pytest.mark.parametrize("kind", ["blocking", "hints"])
def test_an_interrupted_wait_leaves_nothing_that_later_hints_could_reach(tmp_path: Path, kind: str) -> None:
    """Neither a waiter that takes the hints of others, nor a descriptor that is another file by now."""
    nth = 0
    waiters = FileHints(str(tmp_path / "shop.db")) if kind == "blocking" else Waiters()
    for topics in ({A}, {A}):
        waiters.block(topics, 0)
    while interrupted(nth := nth + 1, lambda: waiters.block({A}, 0.001)):
        pipe, end = os.pipe()  # takes the numbers that are free now
        os.set_blocking(pipe, False)
        waiters.wake({A})
        with pytest.raises(BlockingIOError):
            os.read(pipe, 1)
        os.close(pipe)
        os.close(end)
        assert waiters.block({A}, 0.001) == {A}, "the hint was given to a wait that is over"
    assert nth > 10
    waiters.close()
