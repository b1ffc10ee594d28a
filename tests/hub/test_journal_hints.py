"""Who reads the journal is told that it has grown, by whichever process has written: with every poll put off for an hour."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.hub.receivers import Receiver
from tests.hub.test_events import Listener
from tests.served import ServedHub
from tests.workers import DEADLINE, until
from windlass import loops, webhooks
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.engine import Engine, Tail
from windlass.errors import StoreUnreachable
from windlass.hub import HubSettings, events, rollups
from windlass.hub.events import streams
from windlass.model import NewRun
from windlass.store import hints
from windlass.store.base import JOURNAL, journal_topics, queue_topic, run_sync
from windlass.store.hints import JOURNAL_EVERY, MAX_PACE, Paced
from windlass.store.postgres import AsyncPostgres, BorrowedPostgres
from windlass.store.postgres import hints as postgres_hints
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite
from windlass.store.sqlite.hints import FileHints

HOUR = 3_600.0
TOPICS = journal_topics("test")
SETTINGS = HubSettings(allow=("127.0.0.0/8",), plain_http=True)


@pytest.fixture(params=["file", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return str(request.getfixturevalue("emptied_postgres")) if request.param == "postgres" else str(tmp_path / "journal.db")


@pytest.fixture
def hub(where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedHub]:
    """One whose readers look only when they hear something."""
    for module in (events, rollups, webhooks):
        monkeypatch.setattr(module, "LOOK_ANYWAY", HOUR)
    monkeypatch.setattr(postgres_hints.JournalListener, "_fresh", 0)
    monkeypatch.setattr(streams, "LOOK_RARELY", HOUR)
    monkeypatch.setattr(rollups, "EVERY", 0.01)
    monkeypatch.setattr(webhooks, "RARELY", 0.01)
    served = ServedHub(where, SETTINGS)
    if where.startswith("postgres"):
        listened(where)
    yield served
    served.stop()


LISTENERS = """select 1 from pg_locks join pg_database d on d.oid = database and d.datname = current_database()
where locktype = 'advisory' and classid = 2003398244 and objid = 3 and granted"""


def listened(where: str) -> None:
    """The hub listens. Who writes before that finds no reader, and sends no hint for a while: then the reader looks by itself."""
    with psycopg.connect(where, autocommit=True) as connection:
        until(lambda: connection.execute(LISTENERS).fetchone() is not None)


@contextmanager
def another(where: str, colour: str) -> Iterator[Any]:
    """A process on the same store that makes a run and ends it whenever this is called; the run's id."""
    command = [sys.executable, "-m", "tests.hub.journal_child", where, colour]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as child:

        def make() -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            return child.stdout.readline().strip()

        yield make
        child.stdin.close()  # type: ignore[union-attr]
        assert child.wait(DEADLINE) == 0


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_what_another_process_writes_reaches_those_who_listen(hub: ServedHub, where: str, colour: str) -> None:
    with another(where, colour) as make, Listener(hub.port).ready() as listener:
        for _ in range(3):
            run = make()
            assert [(told.data["run"], told.data["state"]) for told in listener.next(2)] == [(run, "queued"), (run, "cancelled")]


def test_what_another_process_writes_reaches_webhooks(hub: ServedHub, where: str) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver, httpx.AsyncClient(base_url=hub.url) as client:
            answer = await client.post("/api/v1/webhooks", json={"name": "all", "url": receiver.url})
            assert answer.status_code == 201, answer.text
            with another(where, "blocking") as make:
                for number in range(1, 3):
                    run = await asyncio.to_thread(make)
                    await asyncio.to_thread(until, lambda: len(receiver.posts) == number)  # noqa: B023 - called before the next
                    assert receiver.posts[-1].change == (run, "cancelled")

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE))


@contextmanager
def beside(where: str) -> Iterator[Engine]:
    """A store of its own, which shares nothing with the hub's: as good as another process, and cheaper."""
    store = open_store(where, SystemClock(), blocking=True)
    yield Engine(store, SystemClock())
    run_sync(store.close())


def ended(engine: Engine) -> str:
    """A run that was made and cancelled."""
    [run] = run_sync(engine.create([NewRun("mail")], undefined="wait"))
    run_sync(engine.cancel(run.id))
    return run.id


def test_an_endpoint_that_another_store_adds_changes_or_sends_to_again_is_looked_at(hub: ServedHub, where: str) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:

            async def told(count: int) -> None:
                await asyncio.to_thread(until, lambda: len(receiver.posts) == count)

            with beside(where) as engine:
                webhook = run_sync(engine.add_webhook(receiver.url, enabled=False))
                ended(engine)
                run_sync(engine.set_webhook(webhook.id, enabled=True))
                run = ended(engine)
                await told(1)
                assert receiver.posts[0].change == (run, "cancelled")
                while (delivery := run_sync(engine.deliveries_of(run))[0]).finished_at is None:  # noqa: ASYNC110 - stored after it was received
                    await asyncio.sleep(0.01)
                run_sync(engine.resend(delivery.id))
                await told(2)
                assert receiver.posts[1].id == receiver.posts[0].id

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE))


def test_what_another_store_writes_is_counted(hub: ServedHub, where: str) -> None:
    def counted() -> int:
        states: dict[str, int] = httpx.get(f"{hub.url}/api/v1/stats").json()["states"]
        return states["cancelled"]

    with beside(where) as engine:
        for number in range(1, 3):
            ended(engine)
            until(lambda: counted() == number)  # noqa: B023 - called before the next


def test_what_another_store_ends_reaches_who_watches_that_run(hub: ServedHub, where: str) -> None:
    with beside(where) as engine:
        [run] = run_sync(engine.create([NewRun("mail")], undefined="wait"))
        with Listener(hub.port, f"/api/v1/runs/{run.id}/events") as listener:
            listener.next()
            run_sync(engine.cancel(run.id))
            assert listener.next()[0].data["state"] == "cancelled"


def test_an_endpoint_that_another_store_adds_is_told_of_what_follows(hub: ServedHub, where: str) -> None:
    async def scenario() -> None:
        async with Receiver() as receiver:
            with beside(where) as engine:
                run_sync(engine.add_webhook(receiver.url, name="all"))
                run = ended(engine)
                await asyncio.to_thread(until, lambda: bool(receiver.posts))
                assert receiver.posts[0].change == (run, "cancelled")

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE))


def test_a_hint_that_comes_before_what_it_was_sent_for_is_followed_by_another_look(
    hub: ServedHub, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = hub.hub.events
    reader = events.engine = events.engine.on(events.engine.records.store)  # for the reader alone
    early, tail = False, reader.tail

    async def not_yet(cursor: str | None = None, **how: Any) -> Tail:
        nonlocal early
        if early:
            early = False
            return Tail([], cursor or "", True, ("", ""), [])
        return await tail(cursor, **how)

    monkeypatch.setattr(reader, "tail", not_yet)
    with beside(where) as engine, Listener(hub.port).ready() as listener:
        for _ in range(3):
            early = True
            [run] = run_sync(engine.create([NewRun("mail")], undefined="wait"))
            assert listener.next()[0].entry == (run.id, 1)


def test_a_lost_hint_costs_only_time(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (events, rollups, webhooks):
        monkeypatch.setattr(module, "LOOK_ANYWAY", 0.2)
    monkeypatch.setattr(Paced, "__call__", lambda self: None)
    hub = ServedHub(where, SETTINGS)
    with beside(where) as engine, Listener(hub.port).ready() as listener:
        [run] = run_sync(engine.create([NewRun("mail")], undefined="wait"))
        assert listener.next()[0].entry == (run.id, 1)
    hub.stop()


def test_a_callers_commit_says_that_the_journal_has_grown(emptied_postgres: str) -> None:
    async def scenario() -> None:
        store = AsyncPostgres(emptied_postgres, SystemClock())
        engine = Engine(store, SystemClock())
        await engine.define("mail")
        assert await store.wait(TOPICS, HOUR) == TOPICS  # anything may have been missed
        while await store.wait(TOPICS, 0.05):
            pass
        async with await psycopg.AsyncConnection.connect(emptied_postgres) as connection:
            joined = engine.on(BorrowedPostgres(connection))
            [later] = await joined.create([NewRun("mail", due_at=SystemClock().now() + 10 * 60_000)])
            assert not await store.wait(TOPICS, 0.2)
            await connection.commit()
        while not await store.wait(TOPICS, HOUR):
            pass
        assert (await engine.get(later.id)).id == later.id
        await store.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_hints.JournalListener, "_fresh", 0)
        asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def test_one_who_begins_to_read_looks_by_itself_until_all_who_write_have_found_out(emptied_postgres: str) -> None:
    """A process that found nobody does not ask again for a while."""

    async def scenario() -> None:
        store = AsyncPostgres(emptied_postgres, SystemClock())
        assert await store.wait(TOPICS, HOUR) == TOPICS
        assert await store.wait(TOPICS, HOUR) in (TOPICS, set())
        assert await store.wait(TOPICS, HOUR) == set()
        await store.close()

    assert postgres_hints.FRESH >= 2 * postgres_hints.NOBODY
    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When it was said that the journal has grown, in milliseconds."""
    times, call = list[int](), Paced.__init__

    def counted(self: Paced, send: Any) -> None:
        def noted() -> None:
            times.append(SystemClock().monotonic())
            send()

        call(self, noted)

    monkeypatch.setattr(Paced, "__init__", counted)
    return times


def test_what_is_written_together_is_said_once(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = counting(monkeypatch)

    async def scenario() -> None:
        reader, writer = (open_store(where, SystemClock(), blocking=False) for _ in range(2))
        assert await reader.wait(TOPICS, HOUR)  # type: ignore[attr-defined]
        engine = Engine(writer, SystemClock())
        await engine.define("mail")
        began = SystemClock().monotonic()
        for _ in range(10):
            await asyncio.gather(*(engine.create([NewRun("mail")]) for _ in range(30)))
        while not times or times[-1] < began:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * MAX_PACE / 1000)  # what is still to be said of them
        spent = SystemClock().monotonic() - began
        assert 2 <= len(times) <= min(spent // JOURNAL_EVERY + 2, 150)  # of 300 creations
        said = len(times)
        await engine.create([NewRun("mail")])
        while len(times) == said:  # noqa: ASYNC110 - the last that is written is said too
            await asyncio.sleep(0.01)
        for store in (reader, writer):
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def test_where_nobody_reads_the_journal_a_process_hardly_asks(emptied_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hint = list[int](), AsyncPostgres._hint_journal

    async def counted(self: AsyncPostgres) -> None:
        asked.append(SystemClock().monotonic())
        await hint(self)

    monkeypatch.setattr(AsyncPostgres, "_hint_journal", counted)

    async def scenario() -> None:
        store = AsyncPostgres(emptied_postgres, SystemClock())
        engine = Engine(store, SystemClock())
        await engine.define("mail")
        began = SystemClock().monotonic()
        for _ in range(100):
            await engine.create([NewRun("mail")])
        assert 1 <= len(asked) <= (SystemClock().monotonic() - began) // postgres_hints.NOBODY + 1
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def test_those_who_do_not_read_the_journal_are_not_woken_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[tuple[bool, list[str]]]()
    send = FileHints._send

    def noted(self: FileHints, topics: Any, folder: Any) -> None:
        sent.append((self._journal, [name for name in folder.names() if name.endswith("j") is self._journal]))
        send(self, topics, folder)

    monkeypatch.setattr(FileHints, "_send", noted)
    path = tmp_path / "journal.db"
    worker, writer = BlockingSqlite(path, SystemClock()), BlockingSqlite(path, SystemClock())
    engine = Engine(writer, SystemClock())
    run_sync(engine.define("mail"))
    run_sync(worker.wait({queue_topic("other")}, 0.01))
    run_sync(engine.create([NewRun("mail")]))
    run_sync(engine.wake((JOURNAL,)))
    writer._hints.journaled.settle()
    assert [names for journal, names in sent if journal] == [[], []]
    assert os.listdir(f"{path}-hints") == [names[0] for journal, names in sent if not journal]
    for store in (worker, writer):
        run_sync(store.close())


def test_what_a_process_has_written_last_is_said_before_it_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "journal.db"
        reader = AsyncSqlite(path, SystemClock())
        assert await reader.wait(TOPICS, HOUR)
        writer = BlockingSqlite(path, SystemClock())
        engine = Engine(writer, SystemClock())
        await engine.define("mail")
        await engine.create([NewRun("mail")])
        assert await reader.wait(TOPICS, HOUR) == {JOURNAL}
        await engine.create([NewRun("mail")])  # too soon to be said by itself, and nobody is there to say it later
        await writer.close()
        assert await reader.wait(TOPICS, HOUR) == {JOURNAL}
        await reader.close()

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))


def test_a_loop_that_ends_while_the_journal_is_hinted_at_leaves_no_task_behind(
    emptied_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "JOURNAL_EVERY", 0)
    store = AsyncPostgres(emptied_postgres, SystemClock())
    begun = asyncio.Event()

    async def never(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def write_twice() -> None:
        store.wake([JOURNAL])
        await begun.wait()
        store.wake([JOURNAL])

    monkeypatch.setattr(store, "_once", never)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(write_twice())
    assert asyncio.all_tasks(loop) == set()


def test_where_nothing_can_be_heard_a_rest_is_no_shorter_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def deaf(seconds: float) -> set[str]:
        return set()

    async def away(seconds: float) -> set[str]:
        raise StoreUnreachable("It is away.", hint="Wait.")

    monkeypatch.setattr("windlass.loops.asyncio.sleep", sleep)
    for hear in (deaf, away):
        assert not asyncio.run(loops.Bell(SystemClock(), hear, deaf=0.7).rest(HOUR))
        assert not asyncio.run(loops.Bell(SystemClock(), hear, deaf=0.7).rest(0.3))
    assert slept == [0.7, 0.3, 0.7, 0.3]


def test_after_trouble_no_hint_brings_the_next_look_forward() -> None:
    class Troubled(loops.Loop):
        log, complaint = logging.getLogger("windlass.test"), "It does not work"
        rests = 0

        async def tick(self) -> float:
            raise StoreUnreachable("It is away.", hint="Wait.")

        async def rest(self, seconds: float) -> None:
            self.rests += 1

    loop = Troubled(SystemClock())
    loop.again = 0.0  # type: ignore[misc]

    async def scenario() -> None:
        for _ in range(3):
            await loop.pause(await loop.once(loop.tick))

    asyncio.run(scenario())
    assert loop.rests == 0
