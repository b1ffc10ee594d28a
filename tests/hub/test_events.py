"""Live events over real sockets: every entry once and in order, whatever breaks in between; and what clients who misbehave cost."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
import pytest
from msgspec.structs import replace

from tests.grounds import set_ground
from tests.harness import BOOM, Harness, token
from tests.tiers import long
from tests.workers import DEADLINE, until
from windlass.api.values import to_rfc3339
from windlass.clock import ManualClock, SystemClock
from windlass.config import opening
from windlass.engine import Engine, Outcome, cursors
from windlass.errors import StoreBusy
from windlass.hub import Hub, HubApp, HubSettings, events
from windlass.hub.events import streams
from windlass.hub.events.frames import JournalOffset
from windlass.hub.serving import listening, server
from windlass.machine import Succeed
from windlass.model import Limits, NewRun, Run, State, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.postgres import BorrowedPostgres
from windlass.store.records import Held

Where = str
EVERYTHING = "/api/v1/events"


def cursor_of(*parts: Any) -> str:
    return cursors.encoded(["tail", *parts])


BEGINNING = str(JournalOffset(SystemClock().now(), cursor_of("", "", 0, 0)))
"""The id of one who has seen nothing yet."""


class Happened(NamedTuple):
    """One event as a client gets it."""

    event: str
    id: str
    data: Any

    @property
    def entry(self) -> tuple[str, int]:
        return self.data["run"], self.data["rev"]


class Listener:
    """A client of a stream, on a connection of its own."""

    def __init__(self, port: int, path: str = EVERYTHING, last: str | None = None, token: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        headers = {"Last-Event-ID": last, "Authorization": None if token is None else f"Bearer {token}"}
        self._connection.request("GET", path, headers={name: value for name, value in headers.items() if value is not None})
        self.answer = self._connection.getresponse()
        self.last = last

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Happened]:
        """Events until the stream ends, well or badly. What only moves the id is not one."""
        fields: dict[str, str] = {}
        while line := self.line():
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n":
                self.last = fields.get("id", self.last)
                if "data" in fields:
                    yield Happened(fields["event"], fields["id"], json.loads(fields["data"]))
                fields = {}
            elif not line.startswith(":"):
                fields[name] = value

    def line(self) -> str:
        try:
            return self.answer.readline().decode()
        except (http.client.HTTPException, ConnectionError):
            return ""

    def marks(self) -> Iterator[str]:
        """The ids that come without an event."""
        while line := self.line():
            if line.startswith("id: "):
                yield line[4:].rstrip("\n")

    def next(self, count: int = 1) -> list[Happened]:
        """So many events."""
        found = list(islice(self, count))
        assert len(found) == count, found
        return found

    def ready(self) -> Listener:
        """When everything that happens from now on will be told: its place has been named."""
        self.last = self.last or next(self.marks())
        return self


class ServedHub:
    """A hub in a thread of its own."""

    def __init__(self, where: Where, settings: HubSettings | None = None, limits: Limits | None = None) -> None:
        self._where, self._settings, self._limits = where, settings, limits
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE)
        assert self._error is None, self._error

    def __enter__(self) -> ServedHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """As a SIGTERM would."""
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        assert self._error is None, self._error

    def _live(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        clock = SystemClock()
        store = opening.open_store(self._where, clock, blocking=False)
        hub = Hub(Engine(store, clock, self._limits), clock, replace(self._settings or HubSettings(), open=True))
        self.events = hub.events
        with listening("127.0.0.1", 0) as sock:
            self.port = sock.getsockname()[1]
            self._server = server(HubApp(hub))
            threading.Thread(target=self._announce, daemon=True).start()
            await self._server.serve(sockets=[sock])
        await store.close()

    def _announce(self) -> None:
        until(lambda: self._server.started)
        self._ready.set()


@pytest.fixture(params=["file", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """The address of an empty store."""
    return str(request.getfixturevalue("emptied_postgres")) if request.param == "postgres" else str(tmp_path / "events.db")


@pytest.fixture
def h(where: Where) -> Iterator[Harness]:
    """An application and its worker, in a process of their own as far as the hub can tell."""
    store = opening.open_store(where, SystemClock(), blocking=True)
    harness = Harness(store, ManualClock())
    set_ground(harness.engine, clock=SystemClock())  # as the hub's
    harness.define()
    yield harness
    run_sync(store.close())


@pytest.fixture
def hub(h: Harness, where: Where) -> Iterator[ServedHub]:
    with ServedHub(where) as served:
        yield served


def stream_of(run_id: str) -> str:
    return f"/api/v1/runs/{run_id}/events"


def log(h: Harness, run: Run, *numbers: int) -> None:
    h(h.engine.log(run.id, token(run), [(n, f"line {n}") for n in numbers]))


def problem(listener: Listener) -> tuple[int, str]:
    told = json.loads(listener.answer.read())
    assert told["hint"]
    return listener.answer.status, told["code"]


# The journal


def test_F7_a_result_is_told_to_those_who_listen(h: Harness, hub: ServedHub) -> None:
    run_id = h.create()
    run = h.started()
    with Listener(hub.port).ready() as listener:
        h.succeed(run, '{"sum":3}')
        (told,) = listener.next()
    assert (told.event, told.data["run"], told.data["state"], told.data["job"]) == ("run", run_id, "succeeded", "mail")


def test_F8_a_repeated_report_makes_no_second_event(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    with Listener(hub.port).ready() as listener:
        for _ in range(3):
            h.succeed(run, '{"sum":3}')
        assert h.succeed(run, '{"sum":3}').repeated
        other = h.create()
        assert [told.entry for told in listener.next(2)] == [(run.id, 4), (other, 1)]


def test_F21_listeners_hear_of_creation_claim_end_failure_and_quarantine_as_they_happen(h: Harness, hub: ServedHub) -> None:
    h.define("frail", max_attempts=2, backoff=(0,), on_exhausted="quarantined")
    with Listener(hub.port).ready() as listener:

        def heard() -> dict[str, Any]:
            data: dict[str, Any] = listener.next()[0].data
            return data

        def told(*names: str) -> list[Any]:
            data = heard()
            return [data[name] for name in names]

        run_id = h.create("frail", {"to": "me"})
        assert heard() == {
            "run": run_id, "rev": 1, "at": to_rfc3339(h.get(run_id).created_at), "move": "create", "state": "queued", "attempt": 1,
            "job": "frail", "queue": "default",
        }  # fmt: skip
        run = h.claimed("w7")
        assert told("rev", "state", "worker") == [2, "claimed", "w7"]
        h.fail(run)
        assert told("rev", "state", "attempt") == [3, "queued", 1]
        h(h.engine.start(run.id, token(run := h.claimed("w7"))))
        assert [heard()["state"], heard()["state"]] == ["claimed", "running"]
        h.fail(run)
        assert heard()["state"] == "quarantined"
        h.create()
        h.succeed(h.claimed())
        assert [heard()["state"] for _ in range(3)] == ["queued", "claimed", "succeeded"]
        h.create()
        h.fail(h.claimed(), retry=False)
        assert [heard()["state"] for _ in range(3)] == ["queued", "claimed", "failed"]


def test_only_what_is_asked_for_is_told(h: Harness, hub: ServedHub) -> None:
    h.define("sms", queue="fast")
    with ExitStack() as stack:

        def listen(query: str, last: str | None = None) -> Listener:
            return stack.enter_context(Listener(hub.port, EVERYTHING + query, last).ready())

        queries = ("", "?job=sms", "?queue=default", "?state=succeeded", "?job=sms&queue=default", "?job=sms&queue=fast&state=queued")
        listeners = [listen(query) for query in queries]
        mail, sms = h.create(), h.create("sms")
        for run in h.claim(2):
            h.succeed(run)
        last = h.create("sms")
        everything = listeners[0].next(7)

        def those(**fields: str) -> list[tuple[str, int]]:
            return [told.entry for told in everything if told.data | fields == told.data]

        assert {told.entry for told in everything} == {(run, rev) for run in (mail, sms) for rev in (1, 2, 3)} | {(last, 1)}
        wanted = [those(job="sms"), those(queue="default"), those(state="succeeded"), [], [(sms, 1), (last, 1)]]
        for listener, entries in zip(listeners[1:], wanted, strict=True):
            assert [told.entry for told in listener.next(len(entries))] == entries
        assert [told.entry for told in listen("?job=sms", everything[0].id).next(len(wanted[0]))] == those(job="sms")
        assert listeners[4].next(0) == []
        assert hub.events.open == 7
    until(lambda: hub.events.open == 0)


def test_whoever_comes_without_an_id_hears_only_what_happens_then(h: Harness, hub: ServedHub) -> None:
    h.create()
    with Listener(hub.port).ready() as first:
        second = h.create()
        assert first.next()[0].entry == (second, 1)


def test_the_id_that_is_told_at_once_is_one_to_come_back_to(h: Harness, hub: ServedHub) -> None:
    with Listener(hub.port).ready() as first:
        pass
    made = h.create()
    with Listener(hub.port, last=first.last) as again:
        assert again.next()[0].entry == (made, 1)
    with Listener(hub.port, f"{EVERYTHING}?last_event_id={first.last}") as again:
        assert again.next()[0].entry == (made, 1)


def test_whoever_hears_nothing_is_kept_and_its_id_moves_on(h: Harness, hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    with Listener(hub.port, f"{EVERYTHING}?job=never").ready() as quiet, Listener(hub.port).ready() as other:
        made = h.create()
        assert other.next()[0].entry == (made, 1)
        place = hub.events.place  # the reader is behind that entry
        mark = next(mark for mark in quiet.marks() if not cursors.ahead(place.cursor, JournalOffset.read(mark).cursor))
    last = h.create()
    with Listener(hub.port, last=mark) as again:
        assert again.next()[0].entry == (last, 1)


@pytest.mark.parametrize("last", ["x", "1", "-", "1-x", "1-" + "A" * 10_000, "9" * 30 + "-abc", "1-WyJvdGhlciJd"])
def test_an_id_that_is_none_is_refused(hub: ServedHub, last: str) -> None:
    with Listener(hub.port, last=last) as listener:
        assert problem(listener) == (400, "bad_input")
    assert hub.events.open == 0


def test_an_unknown_state_is_refused(hub: ServedHub) -> None:
    with Listener(hub.port, f"{EVERYTHING}?state=gone") as listener:
        assert problem(listener) == (400, "bad_input")


# Coming back


class Writer(threading.Thread):
    """Makes runs and ends them, until told to stop; on PostgreSQL it also leaves transactions open that commit late."""

    def __init__(self, where: Where, name: str) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self._where, self._worker = where, WorkerInfo(name, slots=100)
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            store = opening.open_store(self._where, SystemClock(), blocking=True)
            self._write(Engine(store, SystemClock()))
            run_sync(store.close())
        except BaseException as error:
            self._error = error

    def _write(self, engine: Engine) -> None:
        late = LateWriter(self._where, engine) if self._where.startswith("postgresql") else None
        while not self.done.is_set():
            if late is not None:
                late.write()
            run_sync(engine.create([NewRun("mail") for _ in range(3)]))
            runs = run_sync(engine.claim(self._worker, count=2))
            run_sync(engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
            self.done.wait(0.002)
        if late is not None:
            late.close()

    def stop(self) -> None:
        self.done.set()
        self.join(DEADLINE)
        assert self._error is None, self._error


class LateWriter:
    """Transactions that got their number early and commit when others have long been read."""

    def __init__(self, where: Where, engine: Engine) -> None:
        self._engine, self._turn = engine, 0
        self._connections = [psycopg.connect(where) for _ in range(3)]

    def write(self) -> None:
        self._turn += 1
        connection = self._connections[self._turn % len(self._connections)]
        if self._turn % 20 < len(self._connections):
            connection.commit()
        run_sync(self._engine.on(BorrowedPostgres(connection)).create([NewRun("mail")]))

    def close(self) -> None:
        for connection in self._connections:
            connection.commit()
            connection.close()


def journal(h: Harness) -> list[tuple[str, int]]:
    """Everything there is, in the order of runs."""
    entries, cursor, ended = list[tuple[str, int]](), None, False
    while not ended:
        tail = h(h.engine.tail(cursor, count=1_000))
        entries, cursor, ended = entries + [(entry.run, entry.rev) for entry in tail.entries], tail.cursor, tail.ended
    return sorted(entries)


def check_each_once(seen: list[tuple[str, int]], h: Harness) -> None:
    """Every entry once, and those of a run in their order."""
    assert len(seen) == len(set(seen))
    assert sorted(seen) == journal(h)
    revs: dict[str, int] = {}
    for run, rev in seen:
        assert rev == revs.get(run, 0) + 1
        revs[run] = rev


def heard_through(ports: Callable[[], int], h: Harness, writers: list[Writer], rounds: int) -> list[tuple[str, int]]:
    """What a client hears that hangs up after some events and comes back elsewhere, until all is written and heard."""
    last, seen = BEGINNING, list[tuple[str, int]]()
    for number in range(rounds):
        with Listener(ports(), last=last) as listener:
            for told in listener.next(number * 7 % 40 + 1):
                seen.append(told.entry)
            last = listener.last or last
    for writer in writers:
        writer.stop()
    with Listener(ports(), last=last) as listener:
        seen += [told.entry for told in listener.next(len(journal(h)) - len(seen))]
    return seen


@long
def test_a_client_that_hangs_up_and_comes_back_to_either_of_two_hubs_hears_each_entry_once(h: Harness, where: Where) -> None:
    with ServedHub(where) as one, ServedHub(where) as other, Listener(one.port).ready(), Listener(other.port).ready():
        # Somebody listens to both all the time, so that each has a reader with a place of its own.
        writers = [Writer(where, f"writer {n}") for n in range(2)]
        turns = iter(range(10_000))
        seen = heard_through(lambda: (one, other)[next(turns) % 2].port, h, writers, rounds=60)
    check_each_once(seen, h)


@long
def test_E3_a_hub_that_is_killed_loses_nothing_for_those_who_come_back(h: Harness, where: Where) -> None:
    with ExitStack() as stack:
        hubs = [stack.enter_context(child(where)) for _ in range(2)]
        writers = [Writer(where, f"writer {n}") for n in range(2)]
        last, seen = BEGINNING, list[tuple[str, int]]()
        for _ in range(3):
            victim = hubs.pop(0)
            with Listener(victim.port, last=last) as listener:
                for told in listener:
                    seen.append(told.entry)
                    if len(seen) % 25 == 24 and victim.process.poll() is None:
                        victim.process.kill()  # what is under way still arrives, or is cut in the middle
                last = listener.last or last
            hubs.append(stack.enter_context(child(where)))
        for writer in writers:
            writer.stop()
        with Listener(hubs[0].port, last=last) as listener:
            seen += [told.entry for told in listener.next(len(journal(h)) - len(seen))]
    check_each_once(seen, h)


def test_whoever_has_heard_more_elsewhere_is_not_told_it_again(h: Harness, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose reader lags lets nobody in until it has read what the client may have heard from another hub."""
    reading_now, go_on = threading.Event(), threading.Event()
    with ServedHub(where) as slow, ServedHub(where) as quick, Listener(quick.port).ready() as other:
        engine = slow.events.engine = slow.events.engine.on(slow.events.engine.records.store)  # for the reader alone
        tail = engine.tail

        async def late(*place: Any, **how: Any) -> Any:
            read = await tail(*place, **how)
            if not reading_now.is_set():
                reading_now.set()
                await asyncio.to_thread(go_on.wait, DEADLINE)
            return read

        with Listener(slow.port).ready():
            monkeypatch.setattr(engine, "tail", late)
            assert reading_now.wait(DEADLINE)
            h.create()
            (heard,) = other.next()
            with Listener(slow.port, last=heard.id) as listener:
                until(lambda: slow.events.open == 2 and len(slow.events._joining) == 1)
                assert cursors.ahead(JournalOffset.read(heard.id).cursor, slow.events.place.cursor)
                go_on.set()
                last = h.create()
                assert [(told.event, told.entry) for told in listener.next()] == [("run", (last, 1))]


def test_what_is_too_much_to_keep_is_read_from_the_store(h: Harness, hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches up while more happens than is kept for it misses nothing."""
    monkeypatch.setattr(events, "BACKLOG", 2_000)
    monkeypatch.setattr(streams, "PAGE", 3)
    made = [h.create() for _ in range(40)]
    with Listener(hub.port).ready() as holds_the_reader:
        meet = streams.JournalStream._catch_up
        more = list[str]()

        async def slowly(self: Any, pipe: Any, place: Any, end: Any) -> None:
            if len(more) < 60:
                more.extend([created.id for created in await self.events.engine.create([NewRun("mail") for _ in range(30)])])
                while cursors.ahead(await self.events.engine.tail_end(), self.events.place.cursor):  # noqa: ASYNC110 - the reader says nothing
                    await asyncio.sleep(0.01)
            await meet(self, pipe, place, end)

        monkeypatch.setattr(streams.JournalStream, "_catch_up", slowly)
        with Listener(hub.port, last=BEGINNING) as listener:
            seen = [told.entry for told in listener.next(100)]
    assert holds_the_reader.last is not None
    assert seen == [(run, 1) for run in (*made, *more)]


def test_a_reader_that_lost_its_store_in_the_middle_goes_on_where_it_was(
    h: Harness, hub: ServedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 4)
    monkeypatch.setattr(hub.events, "again", 0.01)
    engine = hub.events.engine = hub.events.engine.on(hub.events.engine.records.store)  # for the reader alone
    tail, calls = engine.on(engine.records.store).tail, 0  # of another one: what it asks itself for is not broken again

    async def breaking(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise StoreBusy("Somebody writes.", hint="Wait.")
        return await tail(*arguments, **named)

    with Listener(hub.port).ready() as listener:
        monkeypatch.setattr(engine, "tail", breaking)
        made = [created.id for _ in range(5) for created in h(h.engine.create([NewRun("mail") for _ in range(10)]))]
        assert [told.entry for told in listener.next(50)] == [(run, 1) for run in made]
        for _ in range(3):
            with Listener(hub.port).ready():
                pass  # whoever came while it could not read was let in later


# What cannot be told


def test_a_place_older_than_the_retention_is_told_to_have_a_gap(h: Harness, where: Where) -> None:
    with ServedHub(where, limits=Limits(keep_succeeded=3_600_000)) as hub:
        now, cursor = h.engine.clock.now(), cursor_of("", "", 0, 0)
        made = h.create()
        with Listener(hub.port, last=str(JournalOffset(now - 1_000_000, cursor))) as fresh:
            assert fresh.next()[0].entry == (made, 1)
        with Listener(hub.port, last=str(JournalOffset(now - 3_600_000, cursor))) as old:
            gap, told = old.next(2)
    assert (gap.event, gap.data["reason"], gap.data["since"]) == ("gap", "pruned", to_rfc3339(now - 3_600_000))
    assert told.entry == (made, 1)


def test_a_place_where_the_journal_has_not_been_is_told_to_have_a_gap(h: Harness, hub: ServedHub, where: Where) -> None:
    later, of_the_other_store = cursor_of("", "", 0, 99_999_999), cursor_of("7:7:", "", 0, 0)
    if where.startswith("postgresql"):
        later, of_the_other_store = cursor_of("99999999:99999999:", "", 0, 0), cursor_of("", "", 0, 7)
    for cursor in (later, of_the_other_store):
        h.create()
        with Listener(hub.port, last=str(JournalOffset(h.engine.clock.now(), cursor))) as listener:
            (gap,) = listener.next()
            made = h.create()
            assert (gap.event, gap.data["reason"]) == ("gap", "ahead")
            assert listener.next()[0].entry == (made, 1)
        with Listener(hub.port, last=gap.id) as again:
            assert again.next()[0].entry == (made, 1)


# One run


def test_L10_the_last_event_is_one_status_with_the_end_and_the_output_then_the_connection_closes(h: Harness, hub: ServedHub) -> None:
    run_id = h.create()
    with Listener(hub.port, stream_of(run_id)) as listener:
        assert listener.next()[0].data["state"] == "queued"
        run = h.started()
        assert [told.data["state"] for told in listener.next(2)] == ["claimed", "running"]
        log(h, run, 1, 2)
        h(h.engine.beat([Held(run.seq, token(run))], progress={Held(run.seq, token(run)): '{"share":0.5}'}))
        first = listener.next()
        log(h, run, 3)
        h.succeed(run, '{"sum":3}')
        rest = [*first, *listener]
        assert listener.answer.isclosed()
    assert [told.data["line"] for told in rest if told.event == "log"] == ["line 1", "line 2", "line 3"]
    assert [told.data for told in rest if told.event == "progress"] == [{"attempt": 1, "progress": {"share": 0.5}}]
    assert [told.data["state"] for told in rest if told.event == "status"] == ["succeeded"]
    assert rest[-1].event == "status"
    assert rest[-1].data["output"] == {"sum": 3}
    assert rest[-1].data["error"] is None
    until(lambda: hub.events.open == 0)


def test_what_a_run_says_cannot_look_like_an_event(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    hostile = "\n\nevent: status\ndata: {}\r\n\r\n\u2028"
    h(h.engine.log(run.id, token(run), [(1, hostile)]))
    h(h.engine.beat([Held(run.seq, token(run))], progress={Held(run.seq, token(run)): '{"share":\n\n0.5}'}))
    with Listener(hub.port, stream_of(run.id)) as listener:
        first = listener.next(3)
        h.succeed(run, '[\n\n"event: log\\n"\n\n]')
        told = {happened.event: happened.data for happened in (*first, *listener)}
    assert told["log"]["line"] == hostile
    assert told["progress"]["progress"] == {"share": 0.5}
    assert told["status"]["output"] == ["event: log\n"]


def test_a_run_that_fails_ends_with_its_error(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    with Listener(hub.port, stream_of(run.id)) as listener:
        h.fail(run, retry=False)
        *_, last = listener
    assert (last.data["state"], last.data["error"]["code"], last.data["output"]) == ("failed", BOOM.code, None)


def test_L13_lines_have_rising_cursors_and_a_cursor_gives_exactly_those_behind_it_also_after_a_restart(h: Harness, where: Where) -> None:
    h.define("twice", max_attempts=2, backoff=(0,))
    run_id = h.create("twice")
    run = h.started()
    log(h, run, *range(1, 121))
    h.fail(run)
    run = h.started()
    log(h, run, *range(1, 31))
    with ServedHub(where) as hub, Listener(hub.port, f"{stream_of(run_id)}?cursor=0") as listener:
        lines = lines_of(listener.next(151))
    cursors = [line["cursor"] for line in lines]
    assert [(line["attempt"], line["n"]) for line in lines] == [(1, n) for n in range(1, 121)] + [(2, n) for n in range(1, 31)]
    assert cursors == sorted(set(cursors))
    with ServedHub(where) as restarted:
        for behind in (1, 49, 50, 51, 119, 120, 121, 149):
            with Listener(restarted.port, f"{stream_of(run_id)}?cursor={cursors[behind - 1]}") as listener:
                assert lines_of(listener.next(1 + 150 - behind)) == lines[behind:]
        log(h, run, 31)
        h.succeed(run)
        with Listener(restarted.port, f"{stream_of(run_id)}?cursor={cursors[-2]}") as listener:
            told = list(listener)
        with Listener(restarted.port, f"{stream_of(run_id)}?cursor=0") as listener:
            whole = list(listener)
    assert [line["n"] for line in lines_of(told)] == [30, 31]
    assert [one.event for one in told] == ["log", "log", "status"]
    assert lines_of(whole)[:-1] == lines
    assert [one.event for one in whole] == ["log"] * 151 + ["status"]


def lines_of(told: list[Happened]) -> list[dict[str, Any]]:
    return [happened.data for happened in told if happened.event == "log"]


def test_L14_whoever_comes_after_the_end_gets_one_status_and_the_close(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    log(h, run, 1, 2, 3)
    h(h.engine.beat([Held(run.seq, token(run))], progress={Held(run.seq, token(run)): "1"}))
    h.succeed(run, "7")
    with Listener(hub.port, stream_of(run.id)) as listener:
        told = list(listener)
    assert [(one.event, one.data["state"], one.data["output"]) for one in told] == [("status", "succeeded", 7)]
    assert h.get(run.id).state is State.SUCCEEDED


def test_a_client_of_a_run_that_hangs_up_anywhere_misses_and_repeats_nothing(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    log(h, run, *range(1, 8))
    h.succeed(run, "7")
    with Listener(hub.port, stream_of(run.id), last="0-0") as listener:
        whole = list(listener)
    assert [one.event for one in whole].count("log") == 7
    for index in range(len(whole) - 1):
        with Listener(hub.port, stream_of(run.id), last=whole[index].id) as listener:
            assert [one for one in listener if one.event != "progress"] == whole[index + 1 :]


def test_a_browser_that_has_seen_the_end_is_told_not_to_come_back(h: Harness, hub: ServedHub) -> None:
    h.create()
    run = h.started()
    h.succeed(run)
    with Listener(hub.port, stream_of(run.id)) as listener:
        list(listener)
    with Listener(hub.port, stream_of(run.id), last=listener.last) as again:
        assert again.answer.status == 204
        assert again.answer.read() == b""


@pytest.mark.parametrize(("last", "run", "answer"), [("5-0", True, 400), ("x", True, 400), ("1-1-1", True, 400), (None, False, 404)])
def test_what_cannot_be_watched_is_refused(h: Harness, hub: ServedHub, last: str | None, run: bool, answer: int) -> None:
    run_id = h.create() if run else h.engine.clock.new_id()
    with Listener(hub.port, stream_of(run_id), last=last) as listener:
        assert problem(listener)[0] == answer
    assert hub.events.open == 0


def test_a_run_that_waits_keeps_its_watchers(h: Harness, hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    monkeypatch.setattr(streams, "LOOK_RARELY", 0.02)
    run_id = h.create()
    with Listener(hub.port, stream_of(run_id)) as listener:
        listener.next()
        for _ in range(3):
            assert [listener.line(), listener.line()] == [":\n", "\n"]


# Those who behave badly


def test_no_more_streams_are_open_than_allowed_and_one_that_ends_makes_room(h: Harness, where: Where) -> None:
    with ServedHub(where, HubSettings(streams=2)) as hub, Listener(hub.port).ready():
        with Listener(hub.port, stream_of(h.create())) as other:
            other.next()
            with Listener(hub.port) as refused:
                assert problem(refused) == (429, "limit_reached")
        until(lambda: hub.events.open == 1)
        with Listener(hub.port).ready():
            assert hub.events.open == 2


def test_a_stream_that_fails_makes_room_too(h: Harness, hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(hub.events.engine, "moment", failing)
    with Listener(hub.port, stream_of(h.create())) as listener:
        assert list(listener) == []
    until(lambda: hub.events.open == 0)


class Child(NamedTuple):
    process: subprocess.Popen[str]
    port: int

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def child(where: Where) -> Iterator[Child]:
    """A hub in a process of its own."""
    command = [sys.executable, "-m", "tests.hub.events_child", where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            yield Child(process, int(process.stdout.readline()))
        finally:
            process.kill()


def ask(port: int, path: str = EVERYTHING) -> socket.socket:
    """A connection on which a stream was asked for; its window is as small as it can be."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return sock


@long
@pytest.mark.parametrize("where", ["file"], indirect=True)
def test_E1_a_hundred_clients_that_never_read_cost_little_and_are_cut_off(h: Harness, where: Where) -> None:
    padding = {"what": "x" * 400}
    with child(where) as hub, ExitStack() as stack:
        with Listener(hub.port).ready() as reading_one:
            stalled = [stack.enter_context(ask(hub.port)) for _ in range(100)]
            h.create()
            reading_one.next()
            before, count = hub.memory, 0
            for _ in range(30):
                made = h(h.engine.create([NewRun("mail", padding) for _ in range(1_000)]))
                assert [told.entry for told in reading_one.next(1_000)] == [(created.id, 1) for created in made]
                count += 1_000
            grown = hub.memory - before
            until(lambda: len(psutil.Process(hub.process.pid).net_connections("tcp")) <= 2)  # its own socket, and the one that reads
            last = h.create()
            assert reading_one.next()[0].entry == (last, 1)
        assert len(stalled) == 100
    assert grown < 64 * 1024 * 1024, f"{grown:,} bytes for {count:,} events"


@long
@pytest.mark.parametrize("where", ["file"], indirect=True)
def test_E2_clients_that_reset_at_once_leave_no_stream_behind(h: Harness, hub: ServedHub) -> None:
    run_id = h.create()
    for number in range(3_000):
        sock = ask(hub.port, (EVERYTHING, stream_of(run_id))[number % 2])
        if number % 3 == 0:
            sock.recv(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    until(lambda: hub.events.open == 0)
    assert not hub.events._subscribers
    assert not hub.events._watchers
    with Listener(hub.port).ready() as listener:
        made = h.create()
        assert listener.next()[0].entry == (made, 1)


def test_a_hub_that_stops_lets_its_clients_go_at_once(h: Harness, where: Where) -> None:
    hub = ServedHub(where)
    with Listener(hub.port).ready() as listener, Listener(hub.port, stream_of(h.create())) as watcher:
        assert watcher.next()[0].event == "status"
        assert listener.next()[0].event == "run"
        begun = h.engine.clock.monotonic()
        hub.stop()
        assert list(listener) == list(watcher) == []
        assert listener.answer.isclosed()
    assert h.engine.clock.monotonic() - begun < 4_000  # else it would have waited for them


def test_a_stream_does_not_outlive_its_token(h: Harness, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHECK_EVERY", 0.05)
    _, good = h(h.engine.create_token("good", ["read"]))
    token, revoked = h(h.engine.create_token("revoked", ["read"]))
    with ServedHub(where) as hub, Listener(hub.port, token=good).ready() as kept, Listener(hub.port, token=revoked).ready() as cut:
        h(h.engine.revoke_token(token.id))
        assert list(cut) == []
        made = h.create()
        assert kept.next()[0].entry == (made, 1)
        with Listener(hub.port) as nobody:
            assert problem(nobody)[0] == 401
