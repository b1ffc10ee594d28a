"""The tests that every store must pass, as plain functions. A new backend's own test file is five lines:

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
    def test_my_store(case, tmp_path):
        asyncio.run(conform(case, lambda clock: MyStore(tmp_path / "store", clock)))

A blocking store is driven by `run_sync` instead of `asyncio.run`. The cases test behaviour: first that of the store itself,
then the engine's promises on top of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from windlass import payload as json
from windlass.answers import Origin, Outcome
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import Conflict, LeaseLost, StoreError, WindlassError, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import Created, Entry, Failure, Key, Member, NewGroup, NewRun, Options, Receipt, Run, State, WorkerInfo, place
from windlass.store.base import Row, Statement, Store, Value, run_sync
from windlass.store.records import Held
from windlass.store.rows import pack

T = TypeVar("T")

MANY = WorkerInfo("many", slots=1_000)
BOOM = Failure("boom", "it broke")
LARGEST = 2**63 - 1
TEXTS = (
    "",
    "'\"`",
    "back\\slash",
    "two\nlines\r\n\ttab",
    "%s %(name)s :now $1 ?",
    "{rows} {{}}",
    "[1]",
    "é ß 漢字 🪝 \u2028",
    "x" * 100_000,
)


class Stores:
    """Stores on the same data, which is empty at first, and the clock they share."""

    def __init__(self, open_store: Callable[[ManualClock], Store]) -> None:
        self.clock = ManualClock()
        self._open, self._opened = open_store, list[Store]()

    def another(self) -> Store:
        """One more connection to the data; the same one where there can be only one."""
        self._opened.append(self._open(self.clock))
        return self._opened[-1]

    async def engine(self, **options: Any) -> Engine:
        """An engine with its own store and cache, and a defined job called "job"."""
        engine = Engine(self.another(), self.clock)
        await engine.define("job", options=Options(**options))
        return engine

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


Case = Callable[[Stores], Awaitable[None]]
CASES: list[Case] = []


def _case(function: Case) -> Case:
    CASES.append(function)
    return function


async def conform(case: Case, open_store: Callable[[ManualClock], Store]) -> None:
    """Run one case. The first call of `open_store` opens empty data, each further call opens the same data."""
    stores = Stores(open_store)
    try:
        await case(stores)
    finally:
        await stores.close()


async def together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Run all of them at once: in the running loop, or on threads where the store blocks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with ThreadPoolExecutor(len(work)) as threads:
            return list(threads.map(run_sync, work))
    return list(await asyncio.gather(*work))


@contextmanager
def refused(kind: type[WindlassError]) -> Iterator[None]:
    """The block must raise this error, with a hint in its text."""
    try:
        yield
    except kind as error:
        if not error.hint:
            raise AssertionError(f"{kind.__name__} does not say what to do") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


# Statements


def _define(name: str, payload: str = "{}", *, handler: str | None = "handler", now: int = 1) -> Statement:
    whose: dict[str, Value] = {"owner": None, "trusted": 1, "takes": 0, "schema": None, "description": None}
    return Statement("define", {"name": name, "handler": handler, "payload": payload, "options": "{}", "now": now, **whose})


def _named(*names: str) -> Statement:
    return Statement("jobs_named", {"names": pack(names)})


async def _jobs(store: Store, *names: str) -> list[Row]:
    return (await store.batch("read", [_named(*names)]))[0]


def _names(rows: Sequence[Row]) -> list[str]:
    return [row[1] for row in rows]


def _refuse() -> Statement:
    """A statement whose unique key is taken: how a batch is refused as a whole."""
    return Statement("refuse_taken", {"k": "[]", "keys": 1, "predecessors": "[]", "expected": 0, "now": 1})


# The seam


@_case
async def a_batch_answers_each_statement_in_order(stores: Stores) -> None:
    store = stores.another()
    answers = await store.batch("define", [_named("a"), _define("a"), _named("a"), _define("b"), _named("b", "a"), _named("c")])
    assert [_names(rows) for rows in answers] == [[], [], ["a"], [], ["a", "b"], []]


@_case
async def an_empty_batch_does_nothing(stores: Stores) -> None:
    assert await stores.another().batch("read", []) == []


@_case
async def a_statement_for_another_database_answers_nothing(stores: Stores) -> None:
    answers = await stores.another().batch("define", [Statement("lock_lanes"), _define("a"), _named("a")])
    assert answers[0] == []
    assert _names(answers[2]) == ["a"]


@_case
async def a_statement_nobody_knows_is_refused_before_anything_happens(stores: Stores) -> None:
    store = stores.another()
    try:
        await store.batch("define", [_define("a"), Statement("no_such_statement")])
    except KeyError:
        assert await _jobs(store, "a") == []
    else:
        raise AssertionError("a statement that is not in queries/ was accepted")


@_case
async def a_batch_is_all_or_nothing(stores: Stores) -> None:
    store = stores.another()
    await store.batch("define", [_define("a", "1")])
    with refused(Conflict):
        await store.batch("define", [_define("a", "2"), _define("b"), _refuse(), _define("c")])
    assert [(row[1], row[3]) for row in await _jobs(store, "a", "b", "c")] == [("a", "1")]


@_case
async def a_taken_key_is_a_conflict_again_and_again(stores: Stores) -> None:
    store = stores.another()
    for n in range(20):  # an error must not use up the store's resources
        with refused(Conflict):
            await store.batch("define", [_refuse()])
        await store.batch("define", [_define(f"job {n:02}")])
    assert len(await _jobs(store, *(f"job {n:02}" for n in range(20)))) == 20


@_case
async def what_was_committed_is_seen_by_everybody(stores: Stores) -> None:
    one, other = stores.another(), stores.another()
    assert await _jobs(other, "a") == []
    await one.batch("define", [_define("a", '"1"')])
    assert _names(await _jobs(other, "a")) == ["a"]
    await other.batch("define", [_define("a", '"2"')])
    assert (await _jobs(one, "a"))[0][3] == '"2"'


@_case
async def a_batch_that_reads_sees_one_moment(stores: Stores) -> None:
    one, other = stores.another(), stores.another()
    await one.batch("define", [_define("a", "0")])

    async def write() -> None:
        for n in range(50):
            await one.batch("define", [_define("a", str(n))])

    async def read() -> None:
        for _ in range(50):
            first, second, third = await other.batch("read", [_named("a"), _named("b"), _named("a")])
            assert (first, second) == (third, [])

    await together(write(), read(), read())


@_case
async def texts_and_numbers_come_back_equal(stores: Stores) -> None:
    store = stores.another()
    for text in TEXTS:
        await store.batch("define", [_define("text", text, handler=text or None)])
        row = (await _jobs(store, "text"))[0]
        assert (row[2], row[3]) == (text or None, text), repr(text[:40])
    for number in (0, -1, 2**31, -(2**53) - 1, LARGEST, -LARGEST - 1):
        await store.batch("define", [_define(f"number {number}", now=number)])
        assert (await _jobs(store, f"number {number}"))[0][6] == number


@_case
async def a_set_comes_back_equal(stores: Stores) -> None:
    engine, far = await stores.engine(), 2**42
    news = [NewRun("job", text, Options(priority=n - 4, max_attempts=n + 1), due_at=far + n) for n, text in enumerate(TEXTS)]
    for n, created in enumerate(await engine.create(news)):
        run = await engine.get(created.id)
        assert json.decode(run.payload) == TEXTS[n]
        assert (run.priority, run.max_attempts, run.due_at, run.position) == (n - 4, n + 1, far + n, place(far + n, n))
        assert (run.max_runtime, run.retry_of, run.token) == (None, None, None)


@_case
async def ten_thousand_rows_travel_as_one_set(stores: Stores) -> None:
    engine = await stores.engine()
    ids = await _made(engine, 10_000)
    assert len(await engine.records.runs.seqs(ids)) == 10_000
    first = await engine.claim(WorkerInfo("w", slots=1_000), count=1_000)
    assert [run.id for run in first] == ids[:1_000]
    assert len(await engine.report_many(_outcomes(first))) == 1_000
    await _ended(engine, [ids[0], ids[999]])


@_case
async def batches_at_the_same_time_all_take_effect(stores: Stores) -> None:
    one, other = stores.another(), stores.another()
    names = [f"job {n:02}" for n in range(60)]
    await together(*(store.batch("define", [_define(name)]) for name, store in zip(names, [one, other] * 30, strict=True)))
    assert _names(await _jobs(one, *names)) == names


@_case
async def one_of_many_fails_alone(stores: Stores) -> None:
    store = stores.another()

    async def attempt(n: int) -> bool:
        try:
            await store.batch("define", [_define(f"job {n:02}"), _define("last", str(n)), *([] if n % 3 else [_refuse()])])
        except Conflict:
            return False
        return True

    answers = await together(*(attempt(n) for n in range(30)))
    assert answers == [n % 3 != 0 for n in range(30)]
    assert _names(await _jobs(store, *(f"job {n:02}" for n in range(30)))) == [f"job {n:02}" for n in range(30) if n % 3]
    assert int((await _jobs(store, "last"))[0][3]) % 3 != 0


@_case
async def readers_and_a_writer_go_on_beside_each_other(stores: Stores) -> None:
    writer, reader = stores.another(), stores.another()
    names = [f"job {n:03}" for n in range(200)]
    written = 0

    async def write() -> None:
        nonlocal written
        for n in range(0, 200, 5):
            await writer.batch("define", [_define(name) for name in names[n : n + 5]])
            written = n + 5

    async def read() -> None:
        seen = 0
        while written < 200:
            count = len(await _jobs(reader, *names))
            assert count >= seen, "what was committed is gone again"
            assert count % 5 == 0, "a batch was seen in part"
            seen = count

    await together(write(), read(), read())
    assert _names(await _jobs(reader, *names)) == names


@_case
async def closing_twice_is_closing_once(stores: Stores) -> None:
    store, other = stores.another(), stores.another()
    await store.batch("define", [_define("a")])
    await store.close()
    await store.close()
    if other is not store:
        assert _names(await _jobs(other, "a")) == ["a"]


@_case
async def a_closed_store_says_so(stores: Stores) -> None:
    store = stores.another()
    await store.close()
    for statements in ([_named("a")], [_define("a")]):
        with refused(StoreError):
            await store.batch("define", statements)


# What the engine promises over it


async def _made(engine: Engine, count: int, **fields: Any) -> list[str]:
    return [created.id for created in await engine.create([NewRun("job", **fields) for _ in range(count)])]


def _token(run: Run) -> str:
    assert run.token is not None
    return run.token


def _outcomes(runs: Sequence[Run]) -> list[Outcome]:
    return [Outcome(run.id, Succeed(token=run.token, output='"done"'), run.seq) for run in runs]


async def _moves(engine: Engine, run_id: str) -> list[str]:
    return [entry.move for entry in await engine.history(run_id)]


async def _ended(engine: Engine, ids: Sequence[str]) -> None:
    """Each of these has succeeded, once."""
    for run_id in ids:
        moves = await _moves(engine, run_id)
        assert moves.count("succeed") == 1, moves
        assert (await engine.get(run_id)).state is State.SUCCEEDED


@_case
async def runs_are_claimed_in_exact_order(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    first = await _made(engine, 3)
    stores.clock.advance(1)
    urgent = await _made(other, 2, options=Options(priority=5))
    stores.clock.advance(1)
    last = await _made(other, 2, options=Options(queue="second"))
    stores.clock.advance(-1)
    between = await _made(engine, 1)
    expected = [*urgent, *first, *between, *last]
    ids = [run.id for _ in range(4) for run in await other.claim(MANY, count=2)]
    assert ids == expected


@_case
async def each_run_is_given_once_and_no_claim_is_empty_while_there_are_runs(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(4)]
    ids = await _made(engines[0], 48)
    claims = await together(*(engine.claim(WorkerInfo(f"w{n}", slots=9)) for n, engine in enumerate(engines * 12)))
    assert [len(claim) for claim in claims] == [1] * 48
    assert sorted(run.id for claim in claims for run in claim) == sorted(ids)
    assert await engines[0].claim(MANY) == []


@_case
async def claims_that_are_made_together_each_get_their_own(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    ids = await _made(engines[0], 30)
    requests = [[engine.asking(WorkerInfo(f"{n}{m}", slots=9), count=m + 1) for m in range(3)] for n, engine in enumerate(engines)]
    calls = await together(*(engine.claim_many(asks) for engine, asks in zip(engines, requests, strict=True)))
    answers = [answer for call in calls for answer in call]
    assert [len(answer) if isinstance(answer, list) else answer for answer in answers] == [1, 2, 3] * 3
    runs = [run for answer in answers if isinstance(answer, list) for run in answer]
    assert len({run.id for run in runs} & set(ids)) == 18
    assert len({(run.worker, run.token) for run in runs}) == 9


@_case
async def of_many_that_take_one_run_one_gets_it(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(4)]
    for _ in range(5):
        run_id, _other = await _made(engines[0], 2)
        takes = (_taken(engine, run_id, WorkerInfo(f"w{n}", slots=99)) for n, engine in enumerate(engines * 2))
        holders = await together(*takes, _claimed(engines[0], run_id, MANY))
        assert [worker for worker in holders if worker is not None] == [(await engines[0].get(run_id)).worker]
        assert await _moves(engines[0], run_id) == ["create", "claim"]


async def _taken(engine: Engine, run_id: str, worker: WorkerInfo) -> str | None:
    """The worker that has the run, if this take got it."""
    try:
        return (await engine.take(run_id, worker)).worker
    except WrongState:
        return None


async def _claimed(engine: Engine, run_id: str, worker: WorkerInfo) -> str | None:
    """The worker that has the run, if this claim got it."""
    return next((run.worker for run in await engine.claim(worker) if run.id == run_id), None)


@_case
async def a_worker_with_one_slot_holds_one_run(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    await _made(engines[0], 5)
    for _ in range(5):
        claims = await together(*(engine.claim(WorkerInfo("w")) for engine in engines))
        runs = [run for claim in claims for run in claim]
        assert len(runs) == 1
        await engines[0].report(runs[0].id, Succeed(token=runs[0].token))


@_case
async def a_late_worker_cannot_overwrite(stores: Stores) -> None:
    engine = await stores.engine(backoff=(0,))
    (run_id,) = await _made(engine, 1)
    (late,) = await engine.claim(MANY, lease=1_000)
    stores.clock.advance(1_001)
    await engine.sweep()
    (current,) = await engine.claim(WorkerInfo("other", slots=2))
    with refused(LeaseLost):
        await engine.report(run_id, Succeed(token=late.token, output='"late"'))
    with refused(LeaseLost):
        await engine.start(run_id, _token(late))
    with refused(LeaseLost):
        await engine.log(run_id, _token(late), [(1, "late")])
    assert await engine.beat([Held(late.seq, _token(late))]) == ["lost"]
    assert await engine.get(run_id) == current
    await engine.report(run_id, Succeed(token=current.token, output='"mine"'))
    assert (await engine.get(run_id)).output == '"mine"'


@_case
async def many_start_at_once_each_under_its_token(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    ids = await _made(engines[0], 20)
    leases = [Held(run.seq, _token(run)) for run in await engines[0].claim(MANY, count=20)]
    wrong = [Held(item.seq, "x" * 22) for item in leases]
    answers = await together(*(engine.start_many([*leases, *wrong]) for engine in engines))
    assert answers == [set(leases)] * 3
    assert [await _moves(engines[0], run_id) for run_id in ids] == [["create", "claim", "start"]] * 20


@_case
async def a_revision_is_journaled_once(stores: Stores) -> None:
    """The journal's key: a batch with a second entry for a revision is refused as a whole, whatever its own guards admit."""
    engine = await stores.engine()
    (run_id,) = await _made(engine, 1)
    (run,) = await engine.claim(MANY)
    mark = engine.clock.nonce()
    start = Statement("start", {"r": pack([(run.seq, run.token)]), "mark": mark, "now": engine.clock.now()})
    journal = Statement("journal", {"ids": pack([run.seq]), "mark": mark, "move": "start", "now": engine.clock.now()})
    with refused(Conflict):
        await engine.records.store.batch("start", [start, journal, journal])
    assert (await engine.get(run_id), await _moves(engine, run_id)) == (run, ["create", "claim"])
    await engine.records.store.batch("start", [start, journal])
    with refused(Conflict):
        await stores.another().batch("start", [journal])
    assert await _moves(engine, run_id) == ["create", "claim", "start"]


@_case
async def progress_travels_with_a_beat(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    await _made(engine, 2)
    runs = await engine.claim(MANY, count=2)
    reporting, silent = (Held(run.seq, _token(run)) for run in runs)
    await engine.beat([reporting, silent], progress={reporting: '{"done": 1}'})
    await engine.beat([reporting, silent])
    assert [(await other.get(run.id)).progress for run in runs] == ['{"done": 1}', None]
    assert [(await other.get(run.id)).rev for run in runs] == [run.rev for run in runs]
    await engine.report(runs[0].id, Fail(token=reporting.token, error=BOOM, delay=0))
    (again,) = await other.claim(MANY)
    assert (again.id, again.progress) == (runs[0].id, None)


@_case
async def the_same_report_gets_the_same_answer(stores: Stores) -> None:
    engine = await stores.engine(backoff=(0,))
    ids = await _made(engine, 2)
    good, bad = await engine.claim(MANY, count=2)
    for repeated in (False, True):
        assert await engine.report(good.id, Succeed(token=good.token, output="1")) == Receipt(good.id, State.SUCCEEDED, repeated=repeated)
        assert await engine.report(bad.id, Fail(token=bad.token, error=BOOM)) == Receipt(bad.id, State.QUEUED, repeated=repeated)
    assert [await _moves(engine, run_id) for run_id in ids] == [["create", "claim", move] for move in ("succeed", "fail")]


@_case
async def the_same_report_at_the_same_time_counts_once(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    ids = await _made(engines[0], 10)
    outcomes = _outcomes(await engines[0].claim(MANY, count=10))
    answers = await together(*(engine.report_many(outcomes) for engine in engines))
    fresh = Counter(answer.run for answered in answers for answer in answered if isinstance(answer, Receipt) and not answer.repeated)
    assert fresh == Counter(ids)
    assert all(isinstance(answer, Receipt) for answered in answers for answer in answered)
    await _ended(engines[0], ids)


@_case
async def the_same_claim_gets_the_same_runs(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    await _made(engines[0], 10)
    nonce = stores.clock.nonce()
    claims = await together(*(engine.claim(MANY, count=4, nonce=nonce) for engine in engines))
    again = [run.id for run in await engines[0].claim(MANY, count=4, nonce=nonce)]
    assert len(again) == 4
    assert all({run.id for run in claim} <= set(again) for claim in claims)
    assert len(await engines[0].claim(WorkerInfo("rest", slots=9), count=9)) == 6


@_case
async def a_key_makes_one_run(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(4)]
    for ttl in (Key("a"), Key("b", ttl="forever"), Key("c", ttl=1_000)):
        answers = [
            created for call in await together(*(engine.create([NewRun("job", key=ttl)]) for engine in engines * 2)) for created in call
        ]
        assert [created.created for created in answers].count(True) == 1
        assert len({created.id for created in answers}) == 1


@_case
async def a_key_is_free_when_its_run_has_ended_or_its_time_is_over(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    keys = Key("a"), Key("b", ttl="forever"), Key("c", ttl=1_000)
    news = [NewRun("job", key=key) for key in keys]
    first = await engine.create(news)
    await engine.report_many(_outcomes(await engine.claim(MANY, count=3)))
    assert [created.created for created in await other.create(news)] == [True, False, False]
    stores.clock.advance(1_000)
    second = await other.create(news)
    assert [created.created for created in second] == [False, False, True]
    assert second[1] == Created(first[1].id, created=False)


@_case
async def keys_in_any_order_do_not_deadlock(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(2)]
    for turn in range(10):
        news = [NewRun("job", key=Key(f"{turn} {n}")) for n in range(20)]
        calls = await together(engines[0].create(news), engines[1].create(news[::-1]))
        assert sorted(created.id for created in calls[0]) == sorted(created.id for created in calls[1])
        assert sum(created.created for call in calls for created in call) == 20


@_case
async def sets_in_any_order_do_not_deadlock(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(2)]
    for _ in range(5):
        await _made(engines[0], 40)
        runs = await engines[0].claim(MANY, count=40)
        leases = [Held(run.seq, _token(run)) for run in runs]
        one, other = await together(engines[0].beat(leases), engines[1].beat(leases[::-1]))
        answers = {frozenset(pair) for pair in zip(one, other[::-1], strict=True)}
        assert answers <= {frozenset({"ok"}), frozenset({"ok", "unknown"})}  # unknown: while the other transaction writes it
        await together(engines[0].report_many(_outcomes(runs)), engines[1].report_many(_outcomes(runs[::-1])))
        await _ended(engines[0], [run.id for run in runs])


@_case
async def a_dependent_is_released_by_the_end_it_waited_for(stores: Stores) -> None:
    engine = await stores.engine()
    before = await _made(engine, 2)
    (after,) = await _made(engine, 1, after=tuple(before))
    for run in await engine.claim(MANY, count=2):
        assert (await engine.get(after)).state is State.WAITING
        await engine.report(run.id, Succeed(token=run.token))
    assert (await engine.get(after)).state is State.QUEUED  # without a sweep: it was in the batch of the last report
    assert await _moves(engine, after) == ["create", "release"]


@_case
async def a_dependent_of_a_failure_is_cancelled(stores: Stores) -> None:
    engine = await stores.engine(max_attempts=1)
    (before,) = await _made(engine, 1)
    (after,) = await _made(engine, 1, after=(before,))
    (last,) = await _made(engine, 1, after=(after,))
    (any_end,) = await _made(engine, 1, after=(before,), after_end="any")
    (run,) = await engine.claim(MANY)
    await engine.report(run.id, Fail(token=run.token, error=BOOM))
    states = [(await engine.get(run_id)).state for run_id in (before, after, last, any_end)]
    assert states == [State.FAILED, State.CANCELLED, State.CANCELLED, State.QUEUED]


@_case
async def the_last_two_ends_release_a_dependent_once(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(2)]
    for _ in range(15):
        before = await _made(engines[0], 2)
        (after,) = await _made(engines[0], 1, after=tuple(before))
        runs = await engines[0].claim(MANY, count=2)
        await together(*(engine.report(run.id, Succeed(token=run.token)) for engine, run in zip(engines, runs, strict=True)))
        assert await _moves(engines[0], after) == ["create", "release"]
        (released,) = await engines[1].claim(MANY)
        await engines[0].report(after, Succeed(token=released.token))


@_case
async def what_is_due_is_queued_once(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    ids = await _made(engines[0], 60, due_at=stores.clock.now() + 1_000)
    assert await engines[0].dispatch() == 0
    stores.clock.advance(1_000)
    assert sum(await together(*(engine.dispatch() for engine in engines))) == 60
    for run_id in ids:
        assert await _moves(engines[0], run_id) == ["create", "dispatch"]


@_case
async def a_lost_lease_lapses_once(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    ids = await _made(engines[0], 30)
    await engines[0].claim(MANY, count=30, lease=1_000)
    stores.clock.advance(1_001)
    assert sum(await together(*(engine.lapse() for engine in engines))) == 30
    for run_id in ids:
        assert await _moves(engines[0], run_id) == ["create", "claim", "lapse"]
        assert len(await engines[0].attempts(run_id)) == 2


@_case
async def a_lane_made_by_one_is_served_by_all(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]

    async def make(engine: Engine, name: str) -> None:
        for n in range(5):
            await engine.define(f"{name} {n}")
            await engine.create([NewRun(f"{name} {n}")])

    await together(*(make(engine, name) for engine, name in zip(engines, "abc", strict=True)))
    assert len(await engines[0].claim(MANY, count=20)) == 15


@_case
async def a_changed_definition_counts_from_its_commit_on(stores: Stores) -> None:
    one, other = await stores.engine(), await stores.engine()
    await other.create([NewRun("job")])  # so that it has the definition in its cache
    await one.define("job", payload={"edition": 2})
    (created,) = await other.create([NewRun("job")])
    assert (await one.get(created.id)).payload == '{"edition":2}'


@_case
async def a_log_line_sent_twice_is_kept_once(stores: Stores) -> None:
    engine = await stores.engine()
    (run_id,) = await _made(engine, 1)
    (run,) = await engine.claim(MANY)
    await together(*(engine.log(run_id, _token(run), [(n, f"line {n}") for n in range(first, 10)]) for first in (1, 3, 5)))
    assert [(line.n, line.text) for line in await engine.lines(run_id)] == [(n, f"line {n}") for n in range(1, 10)]


@_case
async def the_tail_gives_every_entry_once(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    reader = await stores.engine()
    writing = len(engines)

    async def write(engine: Engine, name: str) -> None:
        nonlocal writing
        for _ in range(12):
            await _made(engine, 3)
            runs = await engine.claim(WorkerInfo(name, slots=9), count=2)
            await engine.report_many(_outcomes(runs))
        writing -= 1

    async def read() -> list[Entry]:
        entries, cursor, rest = list[Entry](), None, 2
        while rest:  # once more after the last has written
            page = await reader.tail(cursor, count=7)
            entries, cursor = entries + page.entries, page.cursor
            rest -= not writing and not page.entries
        return entries

    read_entries = (await together(read(), *(_nothing(write(engine, name)) for engine, name in zip(engines, "abc", strict=True))))[0]
    seen = Counter((entry.run, entry.rev) for entry in read_entries)
    assert set(seen.values()) == {1}
    runs = [run for state in (State.QUEUED, State.SUCCEEDED) for run in (await reader.runs(state=state, count=200)).runs]
    assert seen.keys() == {(run.id, rev) for run in runs for rev in range(1, run.rev + 1)}


async def _nothing(work: Coroutine[Any, Any, None]) -> list[Entry]:
    await work
    return []


@_case
async def a_run_names_its_schedule_and_its_place_in_its_group(stores: Stores) -> None:
    engine = await stores.engine()
    schedule = await engine.schedule("nightly", "job", every="1h")
    (fired,) = await _made(engine, 1, schedule=schedule.id)
    group = await engine.create_group(NewGroup(tuple(Member(NewRun("job")) for _ in range(3))))
    members = [run.id for run in await engine.members(group.id)]
    assert await engine.origins([fired, *members]) == {
        fired: Origin("nightly"), **{run: Origin(None, group.id, place) for place, run in enumerate(members)},
    }  # fmt: skip


@_case
async def the_runs_ahead_are_those_of_its_queue_and_priority(stores: Stores) -> None:
    engine = await stores.engine()
    await engine.define("elsewhere", options=Options(queue="elsewhere"))
    await engine.create([NewRun("elsewhere")])
    low, high, last = [await _made(engine, 1, options=Options(priority=priority)) for priority in (0, 1, 0)]
    assert [await engine.ahead(run) for (run,) in (low, high, last)] == [0, 0, 1]
    assert {*high, *low} < {run.id for run in await engine.claim(MANY, count=3)}
    assert [await engine.ahead(run) for (run,) in (low, high, last)] == [None, None, 0]


@_case
async def each_queued_run_is_announced_by_one_dispatcher(stores: Stores) -> None:
    engines = [await stores.engine(backoff=(0,)) for _ in range(4)]
    ids = await _made(engines[0], 30)

    async def dispatch(engine: Engine) -> list[str]:
        return await engine.announce(await engine.to_announce("default", resend=1_000), resend=1_000)

    assert sorted(run for part in await together(*map(dispatch, engines)) for run in part) == sorted(ids)
    assert await dispatch(engines[0]) == []
    (again, *_) = await engines[0].claim(MANY, count=2)
    await engines[0].report(again.id, Fail(token=again.token, error=BOOM))
    assert await dispatch(engines[1]) == [again.id]  # it was queued again; the other is claimed
    stores.clock.advance(1_000)
    assert len(await dispatch(engines[2])) == 29


@_case
async def of_the_concurrent_results_of_a_step_the_first_stays(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    (run_id,) = await _made(engines[0], 1)
    (run,) = await engines[0].claim(MANY)
    keys = [f"step {n}" for n in range(8)]
    answers = await together(*(engine.store_step(run_id, _token(run), key, str(n)) for key in keys for n, engine in enumerate(engines)))
    steps = await engines[1].steps(run_id)
    assert {step.key: step for step in steps} == {step.key: step for step in answers}
    assert set(answers) == set(steps)
    assert [step.n for step in steps] == [*range(1, len(keys) + 1)]


@_case
async def what_is_old_is_removed_with_all_that_belongs_to_it(stores: Stores) -> None:
    engine = await stores.engine(max_attempts=2, backoff=(0,))
    first, second = await _made(engine, 2)
    gone = await engine.records.runs.seqs([first, second])
    (waiting,) = await _made(engine, 1, after=(first,), after_end="any")
    for run in await engine.claim(MANY, count=2):
        await engine.log(run.id, _token(run), [(1, "line")])
        await engine.store_step(run.id, _token(run), "step", "1")
        await engine.report(run.id, Fail(token=run.token, error=BOOM))
    await engine.report_many(_outcomes(await engine.claim(MANY, count=2)))
    stores.clock.advance(engine.limits.keep_succeeded + 1)
    assert sum(await together(engine.prune(), (await stores.engine()).prune())) >= 1
    assert (await engine.records.runs.seqs([first, second])).keys() == {first}  # which a dependent may still read
    assert [result.id for result in await engine.results(waiting)] == [first]
    await engine.report_many(_outcomes(await engine.claim(MANY)))
    assert sum(await together(engine.prune(), (await stores.engine()).prune())) >= 1
    assert (await engine.get(waiting)).state is State.SUCCEEDED
    assert {entry.run for entry in (await engine.tail()).entries} == {waiting}
    assert (await engine.records.runs.seqs([first, second])) == {}
    assert [await engine.records.steps.page(seq, 0, 1) for seq in gone.values()] == [[], []]
