"""Behind a real PgBouncer that shares few connections by transaction: the same promises, and nothing left behind for other programs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.proxies import Cable
from tests.served import ServedHub
from tests.tiers import long
from tests.workers import ended, moves, until, working
from windlass import App, Context, State, cli
from windlass.clock import ManualClock, SystemClock
from windlass.config.opening import migrate_store, open_store
from windlass.engine import Engine
from windlass.errors import Conflict, OutcomeUnknown, StoreError
from windlass.model import NewRun, Options, WorkerInfo
from windlass.store import postgres, sql
from windlass.store.base import JOURNAL, Statement, Value, queue_topic, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres, hints, wire
from windlass.testing.servers import PgBouncer, PostgresServer, has_pgbouncer
from windlass.testing.stores import CASES, Case, conform

SETTINGS = (
    "select name, setting from pg_settings where name like 'enable%' or name like '%timeout%' or name like 'default_transaction%'"
    " or name in ('jit', 'plan_cache_mode', 'synchronous_commit') order by name"
)
_WHOSE: dict[str, Value] = {"owner": None, "trusted": 1, "takes": 0, "schema": None, "description": None}
DEFINE = Statement("define", {"name": "job", "handler": "job", "payload": "{}", "options": "{}", "now": 1, **_WHOSE})


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler with two connections, so that whoever comes next gets another's."""
    if not has_pgbouncer():
        pytest.skip("there is no pgbouncer on this machine (apt-get install pgbouncer)")
    with PgBouncer(postgres_server, size=2) as pooler:
        yield pooler


@pytest.fixture
def pooled(pooler: PgBouncer, emptied_postgres: str) -> str:
    """The address of an empty store through the pooler."""
    return f"{pooler.url('home')}&pooled=true"


# The same promises


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", [pytest.param("blocking", marks=long), "async"])
def test_store(kind: str, case: Case, pooler: PgBouncer, emptied_postgres: str) -> None:
    store, drive = (BlockingPostgres, run_sync) if kind == "blocking" else (AsyncPostgres, asyncio.run)
    drive(conform(case, lambda clock: store(pooler.url("home"), clock, pooled=True)))


def test_many_who_migrate_at_once_through_a_pooler_do_it_once(pooler: PgBouncer, postgres_server: PostgresServer) -> None:
    postgres_server.create_database("migrated")
    address, newest = f"{pooler.url('migrated')}&pooled=true", len(sql.migrations("postgres"))
    with ThreadPoolExecutor(6) as threads:
        done = list(threads.map(lambda _: migrate_store(address, SystemClock()), range(6)))
    assert {after for _, after in done} == {newest}
    assert postgres_server.execute("select count(*) from schema_version", "migrated") == str(newest)
    assert postgres_server.execute("select count(*) from pg_locks where locktype = 'advisory'", "migrated") == "0"


def _reached(executed: list[str], count: int) -> bool:
    return len(executed) >= count


@pytest.mark.parametrize(("count", "restarts"), [(100, (50,)), pytest.param(400, (50, 150, 250), marks=long)], ids=["100", "400"])
def test_a_worker_goes_on_through_restarts_of_the_pooler_and_nothing_is_lost_or_done_twice(
    postgres_server: PostgresServer, pooled: str, count: int, restarts: tuple[int, ...]
) -> None:
    executed = list[str]()
    with PgBouncer(postgres_server, size=2) as own, App(f"{own.url('home')}&pooled=true") as app:

        @app.job(name="once", max_attempts=1)
        async def once(ctx: Context) -> None:
            executed.append(ctx.run)
            await asyncio.sleep(0.005)

        handles = app.enqueue_many(once.new() for _ in range(count))
        with working(app, slots=6, lease=60):
            for executions in restarts:
                until(partial(_reached, executed, executions))
                own.restart()
            runs = [ended(handle) for handle in handles]
        assert {(run.state, run.attempt, run.failures) for run in runs} == {(State.SUCCEEDED, 1, 0)}
        assert Counter(executed) == Counter(handle.id for handle in handles)
        assert {tuple(moves(app, handle).count(move) for move in ("claim", "succeed")) for handle in handles} == {(1, 1)}


def test_a_hub_and_the_command_line_work_through_a_pooler(
    pooler: PgBouncer, pooled: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = ServedHub(pooled)
    with App(hub.url) as app:

        @app.job(name="mail")
        async def mail() -> None: ...

        handles = [mail.enqueue() for _ in range(20)]
        with working(app, slots=4):
            assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
    hub.stop()
    monkeypatch.setenv("WINDLASS_STORE", pooler.url("home"))
    monkeypatch.setenv("WINDLASS_POOLED", "true")
    for words in (["migrate"], ["runs"], ["doctor"], ["show", handles[0].id]):
        assert cli.main(words) == 0, capsys.readouterr()


# Nothing is left behind


def test_a_strangers_session_of_the_same_pool_keeps_its_own_settings(postgres_server: PostgresServer, pooled: str) -> None:
    with PgBouncer(postgres_server, size=1) as own, psycopg.connect(own.url("home"), autocommit=True, prepare_threshold=None) as stranger:
        before = stranger.execute(SETTINGS).fetchall()
        address = f"{own.url('home')}&pooled=true"
        with App(address) as app:

            @app.job(name="mail")
            async def mail() -> None: ...

            with working(app, slots=4):
                for _ in range(10):
                    ended(mail.enqueue())
                    assert stranger.execute(SETTINGS).fetchall() == before
        store = BlockingPostgres(own.url("home"), SystemClock(), pooled=True)
        with pytest.raises(Conflict):  # nor does an error leave anything
            run_sync(store.batch("test", [Statement("refuse_advance", {"name": "nobody", "rev": 1})]))
        [[whose]] = run_sync(store._idle[0].say(wire.WireStatement(b"select pg_backend_pid()")))
        assert stranger.execute("select pg_backend_pid()").fetchone() == whose  # it was one connection for all of them
        run_sync(store.close())
        assert stranger.execute(SETTINGS).fetchall() == before
        assert stranger.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
        assert stranger.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() == (0,)
        assert stranger.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)


# Without the setting


def test_without_the_setting_the_error_names_it(postgres_server: PostgresServer, pooled: str) -> None:
    with PgBouncer(postgres_server, size=1) as own:
        first = BlockingPostgres(own.url("home"), ManualClock())
        try:
            with pytest.raises(StoreError) as caught:
                BlockingPostgres(own.url("home"), ManualClock())
        finally:
            run_sync(first.close())
    assert "prepared statement" in caught.value.message
    for way in ("pooled = true", "WINDLASS_POOLED=true", "?pooled=true"):
        assert way in caught.value.hint


def test_without_the_setting_no_statement_is_taken_for_another(emptied_postgres: str) -> None:
    """By numbers, two processes whose connections a pooler confuses would execute each other's statements."""
    named, all_jobs = Statement("jobs_named", {"names": "[]"}), Statement("jobs_all", {"after": "", "count": 1})
    prepared = []
    for statements in ([named, all_jobs], [all_jobs, named]):
        store = BlockingPostgres(emptied_postgres, ManualClock())
        run_sync(store.batch("read", [*statements, *statements]))
        prepared.append(dict(store._idle[0]._prepared))
        run_sync(store.close())
    assert prepared[0] == prepared[1]
    assert len(set(prepared[0].values())) == len(prepared[0])


def test_the_doctor_tells_of_a_pooler_that_nobody_has_told_of(postgres_server: PostgresServer, pooled: str) -> None:
    with PgBouncer(postgres_server, settings={"pool_mode": "session"}) as own:
        for address, findings in ((own.url("home"), ["pooler"]), (f"{own.url('home')}&pooled=true", []), (postgres_server.url("home"), [])):
            engine = Engine(open_store(address, clock := SystemClock(), blocking=True), clock)
            assert [finding.code for finding in run_sync(engine.doctor())] == findings
            run_sync(engine.close())


# An answer that a pooler has not passed on


class Swallowing(Cable):
    """A pooler that has lost the server's answer to a commit, and says so in words of its own."""

    swallow = False
    LOST = b"SFATAL\0C08P01\0Mserver conn crashed?\0\0"

    def _back(self, near: Any, far: Any) -> None:
        try:
            while data := far.recv(65_536):
                if self.swallow and b"COMMIT\0" in data:
                    self.swallow = False
                    near.sendall(b"E" + (len(self.LOST) + 4).to_bytes(4, "big") + self.LOST)
                    break
                near.sendall(data)
        except OSError:
            pass
        self.cut(near)


def test_an_error_that_a_pooler_says_instead_of_the_answers_proves_nothing(postgres_server: PostgresServer, emptied_postgres: str) -> None:
    cable = Swallowing(postgres_server, port=5441)
    store = BlockingPostgres(cable.url(emptied_postgres), ManualClock(), pooled=True)
    cable.swallow = True
    with pytest.raises(OutcomeUnknown) as caught:
        run_sync(store.batch("define", [DEFINE]))
    assert not caught.value.settled
    assert len(run_sync(store.batch("read", [Statement("jobs_named", {"names": '["job"]'})]))[0]) == 1
    run_sync(store.close())
    cable.close()


# Waiting


Work = Callable[[AsyncPostgres, AsyncPostgres], Coroutine[Any, Any, None]]


def heard_through(address: str, work: Work, **options: Any) -> None:
    async def both() -> None:
        one, other = (AsyncPostgres(address, SystemClock(), pooled=True, **options) for _ in range(2))
        try:
            await work(one, other)
        finally:
            await one.close()
            await other.close()

    asyncio.run(both())


def test_where_nothing_can_be_heard_one_look_serves_all_who_wait(
    pooler: PgBouncer, emptied_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "LOOK_ANYWAY", 60.0)

    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        clock = SystemClock()
        engine, away = Engine(one, clock), Engine(other, clock)
        await away.define("mail", options=Options(queue="letters"))
        await away.define("call", options=Options(queue="calls"))
        letters, calls = frozenset({queue_topic("letters")}), frozenset({queue_topic("calls")})
        for topics in (letters, calls):
            assert await engine.wait(topics, 60.0) == topics  # the first time anything may have been missed
        asked = list[str]()
        batch = one.batch

        async def counted(verb: str, statements: Any) -> Any:
            asked.extend(statement.name for statement in statements)
            return await batch(verb, statements)

        monkeypatch.setattr(one, "batch", counted)
        waiters = [asyncio.create_task(engine.wait(letters, 60.0)) for _ in range(50)]
        others = asyncio.create_task(engine.wait(calls, 60.0))
        while asked.count("news") < 5:  # noqa: ASYNC110 - it is counted as it comes
            await asyncio.sleep(0.01)
        assert set(asked) == {"snapshot", "news"}
        assert len(asked) <= 12
        assert not any(task.done() for task in waiters)
        await away.create([NewRun("mail")])
        assert await asyncio.gather(*waiters) == [letters] * 50
        assert not others.done()
        await away.create([NewRun("call")])
        assert await others == calls

    heard_through(pooler.url("home"), work)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "by a transaction that was open before"])
def test_a_look_finds_what_was_committed_since_the_last(pooler: PgBouncer, emptied_postgres: str, late: bool) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        engine, clock = Engine(other, SystemClock()), SystemClock()
        await engine.define("mail", options=Options(queue="letters"))
        await engine.create([NewRun("mail")])
        (run,) = await engine.claim(WorkerInfo("w1"))
        with psycopg.connect(emptied_postgres) as connection:
            if late:
                await engine.on(postgres.BorrowedPostgres(connection)).create([NewRun("mail")])
            seen, _ = await one._look(None)
            assert (await one._look(seen))[1] == set()
            if late:
                await engine.cancel(run.id)
                seen, topics = await one._look(seen)
                assert topics == {"worker:w1", JOURNAL}
                connection.commit()
            else:
                await engine.create([NewRun("mail"), NewRun("mail", due_at=clock.now() + 500)])
            seen, topics = await one._look(seen)
            assert topics == {"queue:letters", JOURNAL} | (set() if late else {"sweep"})
            assert (await one._look(seen))[1] == set()
            await engine.create([NewRun("mail")] * hints.NEWS)
            assert (await one._look(seen))[1] == {"*"}

    heard_through(pooler.url("home"), work)


def test_what_this_process_says_itself_needs_no_look(pooler: PgBouncer, emptied_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "LOOK_EVERY", 60.0)
    monkeypatch.setattr(hints, "LOOK_ANYWAY", 60.0)

    async def work(one: AsyncPostgres, _: AsyncPostgres) -> None:
        assert await one.wait({"a"}, 60.0) == {"a"}
        waiter = asyncio.create_task(one.wait({"a"}, 60.0))
        await asyncio.sleep(0)
        one.wake({"a", "b"})
        assert await waiter == {"a"}

    heard_through(pooler.url("home"), work)


def test_a_second_address_hears_what_is_said_through_the_pooler(pooler: PgBouncer, emptied_postgres: str) -> None:
    async def work(one: AsyncPostgres, other: AsyncPostgres) -> None:
        assert await one.wait({"a"}, 60.0) == {"a"}
        other.wake({"a", "b"})
        assert await one.wait({"a"}, 60.0) == {"a"}

    heard_through(pooler.url("home"), work, listen=emptied_postgres)


def test_a_second_address_that_cannot_be_reached_is_told_once_and_work_is_found_all_the_same(
    pooler: PgBouncer, emptied_postgres: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hints, "LOOK_ANYWAY", 0.3)

    async def work(one: AsyncPostgres, _: AsyncPostgres) -> None:
        for timeout in (1.0, 60.0, 60.0):
            assert await one.wait({"a"}, timeout) == set()  # to look anyway

    heard_through(pooler.url("home"), work, listen="postgresql://ann:secret@/home?host=/nowhere")
    [record] = [record for record in caplog.records if record.name == hints.__name__]
    assert "listen_store" in record.getMessage()
    assert "secret" not in record.getMessage()


# A caller's own connection


def test_a_callers_own_connection_may_go_through_the_pooler(pooler: PgBouncer, pooled: str) -> None:
    with App(pooled) as app, psycopg.connect(pooler.url("home"), prepare_threshold=None) as connection:

        @app.job(name="mail")
        async def mail() -> None: ...

        made = []
        for number in range(12):
            with app.transaction(connection=connection):
                handle = mail.enqueue()
            if number % 2:
                connection.rollback()
            else:
                connection.commit()
                made.append(handle.id)
        assert {run.id for run in run_sync(app.verbs.runs()).runs} == set(made)
