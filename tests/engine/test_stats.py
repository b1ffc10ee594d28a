"""What is counted is what there is: each entry of the journal once, whoever counts and whenever. And who the workers are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from psycopg.rows import TupleRow

from tests.harness import Harness, token
from tests.kill_child import open_store as open_where
from tests.served import ServedHub
from tests.tiers import long
from tests.workers import until
from windlass import cli
from windlass.clock import ManualClock, SystemClock
from windlass.engine import rollup, workers
from windlass.engine.cursors import encoded
from windlass.engine.rollup import MINUTE
from windlass.errors import BadInput, Cancelled, Conflict, LimitReached, NotFound, StoreUnreachable, TooLarge, WrongState
from windlass.hub import metrics, rollups
from windlass.machine import ENDED, LIVE, Requeue, Snooze
from windlass.model import Counts, NewRun, Run, State, WorkerInfo
from windlass.store import sql
from windlass.store.base import Row, Statement, run_sync
from windlass.testing.servers import PostgresServer

DAY = 24 * 3600 * 1000
PAIRS = [("default", "mail"), ("default", "bill"), ("fast", "mail"), ("fast", "bill")]


def scanned(h: Harness) -> Counter[tuple[str, str, State]]:
    """How many runs there are by queue, job and state, told by the table itself."""
    return Counter((run.queue, run.job, run.state) for run in every(h))


def every(h: Harness) -> list[Run]:
    return h(h.engine.runs(count=1_000)).runs


def counted(h: Harness) -> Counter[tuple[str, str, State]]:
    """The same, told by what was counted."""
    whole, by_job = h(h.engine.totals())
    found = Counter({(*pair, state): n for pair, total in by_job.items() for state, n in rollup.states(total).items()})
    for state, number in rollup.states(whole).items():
        assert number == sum(n for (_, _, one), n in found.items() if one is state), state
    assert min(found.values(), default=0) >= 0
    return +found


class Diary:
    """Does what it is told, and writes down what became of it, without a look at the journal."""

    def __init__(self, h: Harness) -> None:
        self.h, self.ended, self.noted = h, dict[str, tuple[str, str, State]](), Counter[str]()
        for job in ("mail", "bill"):
            h.define(job, backoff=(0,), max_attempts=2, max_requeues=2, grace=10_000)

    def step(self, verb: str, n: int) -> None:
        """One verb, on whichever run the number says; it may not be allowed, and then nothing happens."""
        runs = sorted(every(self.h), key=lambda run: run.seq)
        with suppress(WrongState, Cancelled):
            getattr(self, verb)(n, runs)
        for run in every(self.h):
            if run.state in ENDED:
                self.ended[run.id] = (run.queue, run.job, run.state)

    def create(self, n: int, runs: Sequence[Run]) -> None:
        after = (runs[n % len(runs)].id,) if runs else ()
        fields: dict[str, Any] = ({}, {"due_at": self.h.clock.now() + 5_000}, {"after": after})[n % 3]
        self.h.create("mail" if n % 2 else "bill", **fields)
        self.noted["created"] += 1

    def claim(self, n: int, runs: Sequence[Run]) -> None:
        self.noted["started"] += len(self.h.claim(n % 3 + 1, lease=20_000))

    def start(self, n: int, runs: Sequence[Run]) -> None:
        run = held(n, runs)
        if run:
            self.h(self.h.engine.start(run.id, token(run)))

    def succeed(self, n: int, runs: Sequence[Run]) -> None:
        run = held(n, runs)
        if run:
            self.h.succeed(run)

    def fail(self, n: int, runs: Sequence[Run]) -> None:
        run = held(n, runs)
        if run:
            receipt = self.h.fail(run, retry=n % 3 > 0, delay=[0, 3_000][n % 2])
            self.noted["retried"] += receipt.state not in ENDED

    def give_up(self, n: int, runs: Sequence[Run]) -> None:
        run = held(n, runs)
        if run:
            back = Snooze(token=run.token, delay=2_000) if n % 2 else Requeue(token=run.token)
            self.noted["returned"] += self.h.report(run, back).state not in ENDED

    def cancel(self, n: int, runs: Sequence[Run]) -> None:
        if runs:
            self.h(self.h.engine.cancel(runs[n % len(runs)].id))

    def skip(self, n: int, runs: Sequence[Run]) -> None:
        if runs:
            self.h(self.h.engine.skip(runs[n % len(runs)].id, reason="not needed"))

    def patch(self, n: int, runs: Sequence[Run]) -> None:
        if runs:
            fields: dict[str, Any] = {"queue": ["default", "fast"][n % 2]} if n % 3 else {"due_at": self.h.clock.now() + 4_000}
            self.h(self.h.engine.patch(runs[n % len(runs)].id, **fields))

    def sweep(self, n: int, runs: Sequence[Run]) -> None:
        self.h.sweep(after=[1, 3_000, 25_000][n % 3])

    def prune(self, n: int, runs: Sequence[Run]) -> None:
        self.h(self.h.engine.roll_up())  # as a hub does every second
        self.h.clock.advance(31 * DAY)
        self.h(self.h.engine.prune())

    def roll_up(self, n: int, runs: Sequence[Run]) -> None:
        self.h(self.h.engine.roll_up())


def held(n: int, runs: Sequence[Run]) -> Run | None:
    found = [run for run in runs if run.state in LIVE]
    return found[n % len(found)] if found else None


VERBS = [name for name in vars(Diary) if name != "step" and not name.startswith("_")]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 11)), max_size=40)


def check_a_diary(harness: Harness, steps: Sequence[tuple[str, int]]) -> None:
    """A3: the numbers are those of the table for what has not ended, and those of the diary for what has."""
    diary = Diary(harness)
    for verb, n in steps:
        diary.step(verb, n)
    assert harness(harness.engine.roll_up()) is True
    numbers = counted(harness)
    unfinished = Counter({key: n for key, n in scanned(harness).items() if key[2] not in ENDED})
    assert numbers == unfinished + Counter(diary.ended.values())
    whole, _ = harness(harness.engine.totals())
    assert {name: getattr(whole.counts, name) for name in diary.noted} == diary.noted


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices end anywhere, also between two entries of a run."""
    monkeypatch.setattr(rollup, "PAGE", 3)


@long
@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_A3_what_is_counted_equals_a_scan_of_the_table(steps: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    store = open_where("sqlite", ":memory:", clock)
    check_a_diary(Harness(store, clock), steps)
    run_sync(store.close())


@long
@given(steps=STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_A3_what_is_counted_equals_a_scan_of_the_table_on_postgres(
    postgres_server: PostgresServer, postgres_home: psycopg.Connection[TupleRow], steps: list[tuple[str, int]]
) -> None:
    clock, home = ManualClock(), postgres_home
    tables = home.execute("select tablename from pg_tables where schemaname = 'public' and tablename <> 'schema_version'").fetchall()
    home.execute(f"truncate {', '.join(name for (name,) in tables)} restart identity cascade".encode())
    store = open_where("postgres", postgres_server.url("home"), clock)
    check_a_diary(Harness(store, clock), steps)
    run_sync(store.close())


# Counting


def work_off(h: Harness, count: int) -> None:
    for run in h.claim(count):
        h(h.engine.start(run.id, token(run)))
        h.succeed(run)


def test_a_store_that_was_never_counted_is_counted_from_its_first_entry(h: Harness) -> None:
    for _ in range(5):
        h.create()
    work_off(h, 2)
    h.claimed()
    assert counted(h) == {}
    h(h.engine.roll_up())
    expected = {("default", "mail", State.SUCCEEDED): 2, ("default", "mail", State.CLAIMED): 1, ("default", "mail", State.QUEUED): 2}
    assert counted(h) == scanned(h) == expected


def test_where_nobody_counts_nothing_waits_for_it(h: Harness) -> None:
    for _ in range(4):
        h.create()
    work_off(h, 4)
    h.clock.advance(31 * DAY)
    assert h(h.engine.prune()) == 4


def test_what_could_not_be_counted_yet_is_not_pruned_for_a_week(h: Harness) -> None:
    h(h.engine.roll_up())
    h(h.engine.create([NewRun("mail")] * 30))
    work_off(h, 30)
    h.clock.advance(8 * DAY)
    assert h(h.engine.prune()) == 0
    while not h(h.engine.roll_up()):
        pass
    assert h(h.engine.prune()) == 30
    assert counted(h) == {("default", "mail", State.SUCCEEDED): 30}
    h(h.engine.create([NewRun("mail")] * 3))
    work_off(h, 3)
    h.clock.advance(14 * DAY + 1)
    assert h(h.engine.prune()) == 3  # whoever counts has been away for too long


@pytest.mark.parametrize("counted_between", [False, True])
def test_a_run_that_is_moved_counts_in_the_queue_it_is_in(h: Harness, counted_between: bool) -> None:
    moved = h.create()
    for queue in ("fast", "slow", "fast"):
        if counted_between:
            h(h.engine.roll_up())
        h(h.engine.patch(moved, queue=queue))
    h(h.engine.roll_up())
    assert counted(h) == scanned(h) == {("fast", "mail", State.QUEUED): 1}


def test_entries_tell_the_queue_they_were_made_in(h: Harness) -> None:
    moved = h.create()
    h(h.engine.patch(moved, queue="fast"))
    h(h.engine.patch(moved, priority=3))
    h(h.engine.patch(moved, queue="slow"))
    told = [(entry.queue, entry.left) for entry in h(h.engine.tail()).entries]
    assert told == [("default", None), ("fast", "default"), ("fast", None), ("slow", "fast")]


def test_a_minute_says_what_happened_in_it(h: Harness) -> None:
    start = h.clock.now()
    h.create()
    h.create()
    h.clock.advance(4_000)
    first, second = h.claim(2)
    h.clock.advance(500)  # held, and not begun: that is no running
    h(h.engine.start(first.id, token(first)))
    h.clock.advance(MINUTE)
    h.succeed(first)
    h.fail(second, retry=True, delay=1_000)
    h(h.engine.roll_up())
    found = h(h.engine.stats(minutes=3))
    minute = start // MINUTE * MINUTE
    assert [point.at for point in found.minutes] == [minute - MINUTE, minute, minute + MINUTE]
    before, then, after = (point.counts for point in found.minutes)
    assert before == Counts()
    assert then == Counts(created=2, started=2, waited=8_000)
    assert after == Counts(succeeded=1, attempts=2, retried=1, ran=MINUTE + MINUTE + 500)
    assert found.counts == Counts(created=2, started=2, waited=8_000, succeeded=1, attempts=2, retried=1, ran=2 * MINUTE + 500)
    (job,) = found.jobs
    assert (job.queue, job.job, job.lately, job.counts) == ("default", "mail", found.counts, found.counts)
    assert job.states == found.states
    assert h(h.engine.stats(minutes=1)).jobs[0].lately == after


def test_a_question_reads_whole_minutes_and_no_more_rows_than_it_may(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        h.define(name)
    for _ in range(5):
        for name in ("a", "b", "c"):
            h.create(name)
        h.clock.advance(MINUTE)
    h(h.engine.roll_up())
    now = h.clock.now() // MINUTE * MINUTE
    for rows, whole in ((15, 5), (14, 4), (12, 4), (7, 2), (3, 1), (2, 0)):
        monkeypatch.setattr(rollup, "ROWS", rows)
        found = h(h.engine.stats(minutes=60))
        assert sum(point.counts.created for point in found.minutes) == 3 * whole
        assert len(found.minutes) == (60 if whole == 5 else whole + 1)  # the current one is empty
        assert found.minutes[-1].at == now
        assert {job.job: job.lately.created for job in found.jobs} == dict.fromkeys("abc", whole)
        assert found.counts.created == 15


def test_a_lost_attempt_counts_as_lapsed(h: Harness) -> None:
    h.create()
    h.claimed()
    h.sweep(after=31_000)
    h(h.engine.roll_up())
    found = h(h.engine.stats()).counts
    assert (found.started, found.lapsed, found.retried, found.attempts, found.ran) == (1, 1, 1, 1, 31_000)


def test_minutes_are_kept_for_a_fortnight_and_totals_for_ever(h: Harness) -> None:
    def oldest() -> int | None:
        rows: list[Row] = h(h.engine.records.store.batch("read", [Statement("minutes_since", {"since": 0})]))[0]
        return rows[0][0] if rows else None

    first = h.clock.now() // MINUTE * MINUTE
    h.create()
    h(h.engine.roll_up())
    assert oldest() == first
    h.clock.advance(14 * DAY + MINUTE)
    h.create()
    h(h.engine.roll_up())
    assert oldest() == h.clock.now() // MINUTE * MINUTE
    assert h(h.engine.stats(minutes=1)).counts.created == 2


def test_what_is_older_than_the_minutes_that_are_kept_counts_only_in_the_totals(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup, "DROPPED_AT_ONCE", 0)  # it is not even written
    h.create()
    h.clock.advance(20 * DAY)
    h(h.engine.roll_up())
    assert h(h.engine.records.stats.minutes(0)) == ({}, {})
    assert h(h.engine.stats()).counts.created == 1


class Watched:
    """A store that remembers which verbs have written."""

    def __init__(self, h: Harness) -> None:
        self.store, self.verbs = h.store, list[str]()

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        if verb != "read":
            self.verbs.append(verb)
        return await self.store.batch(verb, statements)

    async def close(self) -> None: ...


def test_Live8_nothing_new_writes_nothing(h: Harness) -> None:
    h.create()
    work_off(h, 1)
    watched = Watched(h)
    engine = h.engine.on(watched)
    h(engine.roll_up())
    written = ["begin_tail", "roll_up", "roll_up"]  # four entries in slices of three
    assert watched.verbs == written
    for _ in range(3):
        h.clock.advance(MINUTE)
        h(engine.roll_up())
        h(engine.prune())
    assert watched.verbs == written


def test_a_place_that_was_read_to_its_end_leads_on_to_what_is_new(h: Harness) -> None:
    """A slice may end just where a window of the journal ends; what comes later is in the next one."""
    for _ in range(3):
        h.create()
    h(h.engine.roll_up())  # one slice of three, and nothing after it
    h.create()
    h(h.engine.roll_up())
    assert counted(h) == {("default", "mail", State.QUEUED): 4}


class Busy:
    """A store in which another run is created whenever something was counted."""

    def __init__(self, h: Harness) -> None:
        self.h, self.counted = h, 0

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        if verb == "roll_up":
            self.counted += 1
            await self.h.engine.create([NewRun("mail")])
        return await self.h.store.batch(verb, statements)

    async def close(self) -> None: ...


def test_what_comes_while_it_is_counted_is_counted_the_next_time(h: Harness) -> None:
    h.create()
    busy = Busy(h)
    for n in (1, 2):
        assert h(h.engine.on(busy).roll_up()) is True
        assert busy.counted == n
        assert counted(h) == {("default", "mail", State.QUEUED): n}


def test_a_slice_that_another_process_has_counted_is_not_counted_again(h: Harness) -> None:
    h.create()
    tail, rev = h(h.engine.follow("stats", whole=True))
    h(h.another().engine.roll_up())
    minutes, totals = rollup.tally(tail.entries)
    with pytest.raises(Conflict):
        h(h.engine.records.stats.roll_up((rev, tail.cursor, 0), minutes, totals, h.clock.now(), None))
    assert counted(h) == {("default", "mail", State.QUEUED): 1}


def test_a_look_at_the_end_of_a_long_journal_reads_little(emptied_postgres: str) -> None:
    """Every consumer looks there once a second. Of two conditions on where to begin, the index would have taken the one at the far end."""
    tail = f"explain (analyze, buffers, format json) {sql.load('postgres')['tail'].text}"
    with psycopg.connect(emptied_postgres, autocommit=True) as db:
        db.execute("set enable_seqscan = off")
        columns = "run, rev, at, move, state, attempt"
        db.execute(f"insert into job_journal ({columns}) select 1, n, 1, 'create', 'queued', 1 from generate_series(1, 50000) n".encode())
        (seen,) = db.execute("select pg_current_snapshot()::text").fetchone() or ("",)
        db.execute("insert into job_lanes (queue, job, requires) values ('a', 'b', '')")
        (upto,) = db.execute("select pg_current_snapshot()::text").fetchone() or ("",)
        values = {"seen": seen, "upto": upto, "xid": "0", "entry": 0, "last": 2**62, "count": 1_000}
        ((plan,),) = db.execute(tail.encode(), values).fetchall()
    assert plan[0]["Plan"]["Actual Rows"] == 0
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 20


def test_a_copy_restored_on_another_server_is_followed_from_then_on(emptied_postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    """What pg_dump copies are entries and places of another server's transactions, which may be far ahead of this one's."""
    clock = ManualClock()
    h = Harness(open_where("postgres", emptied_postgres, clock), clock)
    h.define()
    old = [h.create() for _ in range(3)]
    h(h.engine.roll_up())
    seen = []
    with psycopg.connect(emptied_postgres, autocommit=True) as db:
        (far,) = db.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 500").fetchone() or (0,)
        db.execute("update job_journal set xid = (%s::bigint - 5 + entry %% 3)::text::xid8", (far,))
        db.execute("update job_consumers set cursor = %s", (encoded(["tail", f"{far}:{far}:", "", 0, 0]),))
        h(h.engine.roll_up())
        assert caplog.text.count("a copy of another server's") == 1
        new = h.create()
        h(h.engine.roll_up())
        assert counted(h) == {("default", "mail", State.QUEUED): 4}
        for _ in range(600):
            db.execute("select pg_current_xact_id()")  # until this server has counted as far
        h(h.engine.roll_up())
    assert counted(h) == {("default", "mail", State.QUEUED): 4}
    cursor = None
    while (tail := h(h.engine.tail(cursor))).entries:
        seen += [entry.run for entry in tail.entries]
        cursor = tail.cursor
    assert sorted(seen) == sorted([*old, new])
    assert caplog.text.count("a copy of another server's") == 1
    run_sync(h.store.close())


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A store that other processes can open: its kind, and where it is."""
    if request.param == "postgres":
        return "postgres", request.getfixturevalue("emptied_postgres")
    return "sqlite", str(tmp_path / "windlass.db")


@pytest.fixture
def shared(place: tuple[str, str]) -> Iterator[Harness]:
    clock = ManualClock()
    store = open_where(*place, clock)
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())


def child(place: tuple[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.engine.stats_child", *place]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@long
def test_many_processes_count_every_entry_once(shared: Harness, place: tuple[str, str]) -> None:
    """Three count while a fourth makes and works off runs; one of them is killed in the middle, wherever it is."""
    with ExitStack() as stack:
        children = [stack.enter_context(child(place)) for _ in range(3)]
        for round_ in range(40):
            shared(shared.engine.create([NewRun("mail")] * 10))
            work_off(shared, 8)
            if round_ == 20:
                children[0].kill()
        for process in children:
            assert process.stdin is not None
            process.stdin.close()
    assert [process.returncode for process in children] == [-9, 0, 0]
    shared(shared.engine.roll_up())
    assert counted(shared) == scanned(shared)
    assert shared(shared.engine.stats()).counts == Counts(created=400, started=320, succeeded=320, attempts=320)


# Workers


def test_F20_a_worker_that_registers_twice_is_one_row_updated(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w1", tags=("gpu",), cores=4), about={"host": "a", "pid": 7}))
    first = h.clock.now()
    h.clock.advance(5_000)
    h(h.engine.register(WorkerInfo("w1", queues=("fast",), cores=8, memory=64, slots=3)))
    (worker,) = h(h.engine.workers())
    assert worker.info == WorkerInfo("w1", queues=("fast",), cores=8, memory=64, slots=3)
    assert (worker.registered_at, worker.seen_at) == (first, first + 5_000)
    assert worker.about == {"host": "a", "pid": 7}  # not said again, so it stays
    h(h.engine.register(WorkerInfo("w1"), about={"host": "b"}))
    assert h(h.engine.workers())[0].about == {"host": "b"}


def test_metrics_are_kept_and_show_that_a_worker_lives(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w1")))
    h.clock.advance(61_000)
    assert h(h.engine.workers())[0].alive is False
    h(h.engine.worker_metrics("w1", {"cpu": 12.5, "memory": 2**40}))
    (worker,) = h(h.engine.workers())
    assert (worker.metrics, worker.metrics_at, worker.alive) == ({"cpu": 12.5, "memory": 2**40}, h.clock.now(), True)


@pytest.mark.parametrize(
    "metrics",
    [
        {"cpu": "12"},
        {"cpu": True},
        {"cpu": None},
        {"cpu": float("nan")},
        {"cpu": float("inf")},
        {"cpu": 2**70},
        {"": 1},
        {"a\0": 1},
        [1],
        7,
    ],
    ids=repr,
)
def test_metrics_that_are_no_numbers_are_refused(h: Harness, metrics: Any) -> None:
    h(h.engine.register(WorkerInfo("w1")))
    with pytest.raises(BadInput):
        h(h.engine.worker_metrics("w1", metrics))
    assert h(h.engine.workers())[0].metrics == {}


def test_what_workers_tell_is_bounded(h: Harness) -> None:
    with pytest.raises(TooLarge):
        h(h.engine.worker_metrics("w1", {f"m{n}": n for n in range(65)}))
    with pytest.raises(TooLarge):
        h(h.engine.register(WorkerInfo("w1"), about={"host": "x" * 5_000}))
    with pytest.raises(NotFound):
        h(h.engine.worker_metrics("w1", {"cpu": 1}))
    with pytest.raises(BadInput):
        h(h.engine.stats(minutes=1_441))
    assert h(h.engine.workers()) == []


def test_there_are_so_many_workers_and_no_more(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKERS", 2)
    for name in ("w1", "w2", "w1"):
        h(h.engine.register(WorkerInfo(name)))
    with pytest.raises(LimitReached):
        h(h.engine.register(WorkerInfo("w3")))
    assert [worker.info.name for worker in h(h.engine.workers())] == ["w1", "w2"]
    h.clock.advance(h.engine.limits.keep_workers + 1)
    h(h.engine.parts.workers.prune())
    h(h.engine.register(WorkerInfo("w3")))


def test_F28_a_worker_shows_what_it_holds_and_nothing_else(h: Harness) -> None:
    for name in ("w1", "w2", "w3"):
        h(h.engine.register(WorkerInfo(name)))
    ids = [h.create() for _ in range(9)]
    mine = h.claim(7, "w1")
    (other,) = h.claim(1, "w2")
    h(h.engine.start(other.id, token(other)))
    h.succeed(mine[0])
    h.fail(mine[1], delay=60_000)
    found = {worker.info.name: (worker.held, worker.runs) for worker in h(h.engine.workers())}
    assert found == {"w1": (5, tuple(ids[2:7])), "w2": (1, (other.id,)), "w3": (0, ())}


def test_workers_are_listed_in_pages(h: Harness) -> None:
    for n in range(5):
        h(h.engine.register(WorkerInfo(f"w{n}")))
    names = [worker.info.name for worker in h(h.engine.workers(after="w1", count=2))]
    assert names == ["w2", "w3"]


def test_a_worker_that_was_silent_for_a_day_is_forgotten(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("gone")))
    h.clock.advance(DAY)
    h(h.engine.register(WorkerInfo("here")))
    h(h.engine.prune())
    assert len(h(h.engine.workers())) == 2
    h.clock.advance(1)
    h(h.engine.prune())
    assert [worker.info.name for worker in h(h.engine.workers())] == ["here"]


# At the terminal


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """A store that the command line finds by itself."""
    clock = SystemClock()
    store = open_where("sqlite", str(tmp_path / "windlass.db"), clock)  # type: ignore[arg-type]
    monkeypatch.setenv("WINDLASS_STORE", str(tmp_path / "windlass.db"))
    harness = Harness(store, clock)  # type: ignore[arg-type]
    harness.define()
    yield harness
    run_sync(store.close())


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_command_stats_counts_first_and_then_tells(shop: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(7):
        shop.create()
    work_off(shop, 2)
    told = json.loads(printed(capsys, "stats", "--minutes", "2", "--json"))
    assert (told["states"]["queued"], told["states"]["succeeded"], told["counts"]["created"]) == (5, 2, 7)
    assert [len(told["minutes"]), len(told["jobs"])] == [2, 1]
    shown = printed(capsys, "stats")
    assert re.search(r"^queued +5 *$", shown, re.M)
    assert re.search(r"^mail +default +5 +0 +2 +0 ", shown, re.M)


def test_the_command_workers_shows_who_lives_and_what_they_hold(shop: Harness, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "workers") == ""
    shop(shop.engine.register(WorkerInfo("w\x9b1", slots=4, tags=("gpu",), cores=8), about={"host": "a"}))
    shop.create()
    shop.claimed("w\x9b1")
    shown = printed(capsys, "workers").splitlines()
    line = re.split(" {2,}", shown[1].strip())  # nothing in a name acts on the terminal
    assert [line[0], *line[2:]] == ["w\\x9b1", "1 of 4", "all", "all", "8 cores, gpu"]
    (told,) = json.loads(printed(capsys, "workers", "--json"))["workers"]
    assert (told["name"], told["slots"], told["held"], told["alive"], told["about"]) == ("w\x9b1", 4, 1, True, {"host": "a"})


# Through the hub


class HubDesk:
    """A hub, and somebody who asks it."""

    def __init__(self, served: ServedHub) -> None:
        self.served = served
        self.http = httpx.Client(base_url=served.url, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def create(self, job: str = "mail") -> str:
        return str(self.ask("POST", "api/v1/runs", {"job": job, "undefined": "wait"}, 202)["id"])

    def claim(self) -> dict[str, Any]:
        (run,) = self.ask("POST", "api/v1/worker/claim", {"worker": {"name": "w1", "slots": 9}, "count": 1, "lease": 60_000})["runs"]
        return dict(run)

    def states(self) -> dict[str, int]:
        found: dict[str, int] = self.ask("GET", "api/v1/stats")["states"]
        return {state: number for state, number in found.items() if number}

    def scrape(self) -> dict[str, Metric]:
        answer = self.http.get("metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    def sample(self, family: str, **labels: str) -> float | None:
        found = [sample.value for sample in self.scrape()[family].samples if labels.items() <= sample.labels.items()]
        return sum(found) if found else None

    def missing(self) -> set[str]:
        answer = self.http.get("readyz")
        told = answer.json()
        assert (answer.status_code, told["ready"]) == ((503, False) if told["missing"] else (200, True))
        return set(told["missing"])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=long)])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HubDesk]:
    store = str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres")
    served = ServedHub(store)
    desk = HubDesk(served)
    yield desk
    desk.http.close()
    served.stop()


def test_a_hub_counts_as_it_goes(desk: HubDesk) -> None:
    for _ in range(3):
        desk.create()
    until(lambda: desk.states() == {"queued": 3})
    run = desk.claim()
    desk.ask("POST", f"api/v1/runs/{run['id']}/cancel")
    until(lambda: desk.states() == {"queued": 2, "cancelling": 1})
    told = desk.ask("GET", "api/v1/stats?minutes=5")
    assert len(told["minutes"]) == 5
    assert told["counts"]["created"] == sum(minute["counts"]["created"] for minute in told["minutes"]) == 3
    (job,) = told["jobs"]
    assert (job["job"], job["queue"], job["states"]["queued"], job["lately"]["started"]) == ("mail", "default", 2, 1)


def test_a_hub_shows_its_workers(desk: HubDesk) -> None:
    worker = {"name": "w1", "tags": ["gpu"], "cores": 8, "memory": 1_024, "slots": 2, "jobs": ["mail"]}
    desk.ask("POST", "api/v1/worker/register", {"worker": worker, "about": {"host": "a"}})
    desk.ask("POST", "api/v1/worker/metrics", {"worker": "w1", "metrics": {"cpu_percent": 12.5, "load": 2}})
    run_id = desk.create()
    desk.claim()
    (shown,) = desk.ask("GET", "api/v1/workers")["workers"]
    assert shown.items() >= (worker | {"queues": None, "alive": True, "held": 1, "runs": [run_id], "about": {"host": "a"}}).items()
    assert shown["metrics"] == {"cpu_percent": 12.5, "load": 2}
    assert shown["seen_at"].endswith("Z")
    page = desk.ask("GET", "api/v1/workers?count=1")
    assert page["cursor"] == "w1"
    assert desk.ask("GET", "api/v1/workers?after=w1") == {"workers": [], "cursor": None}


WRONG_METRICS: list[tuple[dict[str, Any], int]] = [
    ({"worker": "w1", "metrics": {"cpu": "much"}}, 400),
    ({"worker": "w1", "metrics": {"cpu": None}}, 400),
    ({"worker": "w1", "metrics": {"cpu": [1]}}, 400),
    ({"worker": "w1", "metrics": {str(n): n for n in range(65)}}, 413),
    ({"worker": "stranger", "metrics": {"cpu": 1}}, 404),
    ({"worker": "w1"}, 400),
]


def test_metrics_that_cannot_be_kept_are_refused(desk: HubDesk, subtests: pytest.Subtests) -> None:
    desk.ask("POST", "api/v1/worker/register", {"worker": {"name": "w1"}})
    for body, status in WRONG_METRICS:
        with subtests.test(str(body)):
            desk.ask("POST", "api/v1/worker/metrics", body, status)
            assert desk.ask("GET", "api/v1/workers")["workers"][0]["metrics"] == {}


def test_a_worker_tells_only_its_own_metrics(desk: HubDesk) -> None:
    desk.ask("POST", "api/v1/worker/register", {"worker": {"name": "w2"}})
    secret = desk.ask("POST", "api/v1/tokens", {"name": "w1", "scopes": ["work"], "worker": "w1"}, 201)["secret"]
    headers = {"Authorization": f"Bearer {secret}"}
    answer = desk.http.post("api/v1/worker/metrics", json={"worker": "w2", "metrics": {}}, headers=headers)
    assert answer.status_code == 403


def test_prometheus_is_told_what_the_table_says(desk: HubDesk) -> None:
    for job in ("mail", "mail", "mail", 'odd "job"\\'):
        desk.create(job)
    first, second = desk.claim(), desk.claim()
    for run, kind in ((first, {"kind": "succeed"}), (second, {"kind": "fail", "retry": False, "error": {"code": "boom", "message": "no"}})):
        desk.ask("POST", "api/v1/worker/report", {"outcomes": [{"run": run["id"], "token": run["token"], **kind}]})
    until(lambda: desk.sample("windlass_runs_ended") == 2)
    found = desk.scrape()
    runs = {(sample.labels["state"], sample.labels["job"]): sample.value for sample in found["windlass_runs"].samples if sample.value}
    assert runs == {("queued", "mail"): 1, ("queued", 'odd "job"\\'): 1}
    ended = {
        (sample.labels["state"], sample.labels["job"]): sample.value for sample in found["windlass_runs_ended"].samples if sample.value
    }
    assert ended == {("succeeded", "mail"): 1, ("failed", "mail"): 1}
    assert (found["windlass_runs"].type, found["windlass_runs_ended"].type) == ("gauge", "counter")
    assert desk.sample("windlass_runs_created", queue="default") == 4
    assert desk.sample("windlass_attempts_started") == desk.sample("windlass_attempts_ended") == 2
    assert desk.sample("process_resident_memory_bytes")
    assert desk.sample("windlass_workers") == 0  # nobody has registered
    desk.ask("POST", "api/v1/worker/register", {"worker": {"name": "w1", "slots": 9}})
    assert (desk.sample("windlass_workers"), desk.sample("windlass_worker_slots")) == (1, 9)


def test_the_docs_name_every_metric_and_its_labels(desk: HubDesk) -> None:
    desk.create()
    until(lambda: desk.sample("windlass_runs_created") == 1)
    told = {
        (sample.name, frozenset(sample.labels))
        for name, family in desk.scrape().items()
        for sample in family.samples
        if name.startswith("windlass_")
    }
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").partition("## All metrics")[2]
    written = {(name, frozenset(re.findall(r"\w+", labels))) for name, labels in re.findall(r"^\| `(\w+)` \|(.*?)\|", page, re.M)}
    assert told | {("windlass_hub_part_missing", frozenset({"part"}))} == written  # all parts may be ready


def test_a_scraper_may_ask_for_open_metrics(desk: HubDesk) -> None:
    desk.create()
    until(lambda: desk.states() == {"queued": 1})
    answer = desk.http.get("metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in open_metrics(answer.text)}  # type: ignore[no-untyped-call]
    assert {"windlass_runs", "windlass_runs_ended", "windlass_hub_requests"} <= names


def test_many_jobs_do_not_make_many_series(desk: HubDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PAIRS", 2)
    for job in ("a", "b", "c", "c", "d"):
        desk.create(job)
    until(lambda: desk.states() == {"queued": 5})
    (listed,) = {tuple(sorted({sample.labels["job"] for sample in desk.scrape()["windlass_runs"].samples}))}
    assert len(listed) == 3
    assert "" in listed
    assert desk.sample("windlass_runs", state="queued") == desk.sample("windlass_runs_created") == 5


def test_requests_are_counted_by_route_and_not_by_path(desk: HubDesk) -> None:
    for path in ("api/v1/runs/none", "api/v1/runs/other", "nowhere/at/all", "nowhere/else"):
        desk.ask("GET", path, None, 404)
    for method in ("PROPFIND", "MKCOL"):
        desk.ask(method, "api/v1/runs/none", None, 405)
    asked = {tuple(sample.labels.values()): sample.value for sample in desk.scrape()["windlass_hub_requests"].samples}
    assert asked == {("GET", "/api/v1/runs/{run_id}", "404"): 2, ("GET", "", "404"): 2, ("", "", "405"): 2}


@pytest.mark.parametrize(("verb", "part"), [("roll_up", "rollups"), ("sweep", "sweep"), ("tail_end", "store")])
def test_a_hub_names_the_part_that_is_not_ready(desk: HubDesk, verb: str, part: str) -> None:
    until(lambda: desk.missing() == set())

    async def fail(*_: object) -> NoReturn:
        raise StoreUnreachable("The store is away.", hint="Wait.")

    setattr(desk.served.hub.engine, verb, fail)
    until(lambda: desk.missing() == {part})
    assert desk.ask("GET", "healthz") == {"done": True}
    if part != "store":
        assert desk.sample("windlass_hub_part_missing", part=part) == 1
    delattr(desk.served.hub.engine, verb)
    until(lambda: desk.missing() == set())


def test_a_hub_without_its_store_lives_and_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "LOOK_ANYWAY", 0.1)
    with PostgresServer() as server:
        served = ServedHub(server.create_database("away"), patience=0.5)
        desk = HubDesk(served)
        until(lambda: desk.missing() == set())
        server.close()
        until(lambda: {"store", "sweep", "rollups"} <= desk.missing())
        assert desk.ask("GET", "healthz") == {"done": True}
        assert desk.http.get("metrics").status_code == 503
        desk.http.close()
        served.stop()
