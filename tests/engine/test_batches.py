"""Sets are cut by bytes as well as by number, and what a store refuses of one member is answered to that member.

`FULL_SIZE=1` also tries the real bound: more than 256 MiB at once, which PostgreSQL takes in no single parameter.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.harness import KINDS
from tests.tiers import corners
from tests.worker.test_executors import nothing_stays  # noqa: F401 - every test here is watched as well
from tests.worker.test_worker import Ports, at
from tests.workers import DEADLINE, ended, until, working
from windlass import App, State
from windlass.engine import Engine, Outcome
from windlass.errors import BadInput, StoreBroken, StoreError, WindlassError
from windlass.hub.batching import Coalescer
from windlass.machine import Fail, Report, Succeed
from windlass.model import Failure, Limits, Member, NewGroup, NewRun, Options, Receipt, Run, Use, WorkerInfo
from windlass.payload import slices
from windlass.store.base import Statement, run_sync
from windlass.worker import Worker

SMALL = Limits(batch=8 * 1024)
KIB = "x" * 1024
LARGER = 20 * KIB
POISON = "poison"

FULL_SIZE = pytest.mark.skipif(not os.environ.get("FULL_SIZE"), reason="takes a gigabyte and a minute: FULL_SIZE=1")


class Watched:
    """A store that remembers how large the sets are, and takes none with poison in it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.sets: dict[str, list[int]] = {}
        self.verbs = list[str]()
        self.error: type[StoreError] = StoreError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def batch(self, verb: str, statements: Sequence[Statement]) -> Any:
        self.verbs.append(verb)
        for statement in statements:
            texts = [value for value in statement.values.values() if isinstance(value, str)]
            self.sets.setdefault(statement.name, []).append(max(map(len, texts), default=0))
            if statement.name in ("succeed", "write_back") and any(POISON in text for text in texts):
                raise self.error("The database refuses the set.", hint="Send another.")
        return await self._store.batch(verb, statements)


def watch(engine: Any) -> Watched:
    watched = Watched(engine.records.store)
    engine.records.batches.store = watched
    return watched


@pytest.fixture(params=corners(KINDS))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with App(at(request.param, tmp_path, request), limits=SMALL) as app:

        @app.job(name="says", max_attempts=2, backoff=(0,))
        async def says(text: str) -> str:
            return text

        @app.job(name="breaks", max_attempts=1)
        async def breaks(text: str) -> None:
            raise ValueError(text)

        app.verbs  # noqa: B018 - the jobs are stored with it
        yield app


def claim_all(engine: Engine) -> list[Run]:
    """All that is queued, by as many claims as it takes."""
    claimed = list[Run]()
    while runs := run_sync(engine.claim(WorkerInfo("w1", slots=1_000), count=100)):
        claimed += runs
    return claimed


@pytest.fixture
def engine(app: App) -> Engine:
    app.enqueue_many([])
    run_sync(app.verbs.define("plain"))
    return app.engine


def held(engine: Engine, count: int) -> list[Run]:
    run_sync(engine.create([NewRun("plain") for _ in range(count)]))
    return run_sync(engine.claim(WorkerInfo("w1", slots=1_000), count=count))


def test_slices_are_as_large_as_they_may_be_and_lose_nothing() -> None:
    assert [list(some) for some in slices([3, 3, 3, 9, 1, 1], [3, 3, 3, 9, 1, 1], 6)] == [[3, 3], [3], [9], [1, 1]]
    assert [list(some) for some in slices(list[str](), [], 6)] == [[]]


def test_a_creation_is_cut_into_several_sets_of_one_batch(engine: Engine) -> None:
    watched = watch(engine)
    news = [NewRun("plain", {"text": KIB, "n": n}) for n in range(50)] + [NewRun("plain", {"text": LARGER})]
    made = run_sync(engine.create(news))
    sizes = watched.sets["create_plain"]
    assert watched.verbs.count("create") == 1
    assert len(sizes) >= 7
    assert sorted(sizes)[-2] <= SMALL.batch * 2  # the larger one went alone; quotes in a text of JSON take two bytes
    assert len({one.id for one in made}) == 51
    assert [run.id for run in claim_all(engine)] == [one.id for one in made]  # in their order


def test_a_creation_in_several_sets_is_all_or_none(engine: Engine) -> None:
    taken = run_sync(engine.create([NewRun("plain", {"text": KIB})]))[0]
    with pytest.raises(WindlassError):
        run_sync(
            engine.create(
                [*(NewRun("plain", {"text": KIB}) for _ in range(30)), NewRun("plain", after=("00000000-0000-7000-8000-000000000000",))]
            )
        )
    assert [run.id for run in claim_all(engine)] == [taken.id]


def test_a_group_is_cut_in_the_same_way(engine: Engine) -> None:
    watched = watch(engine)
    run_sync(engine.create_group(NewGroup(tuple(Member(NewRun("plain", {"text": KIB})) for _ in range(30)))))
    assert len(watched.sets["create_plain"]) >= 4
    assert max(watched.sets["create_plain"]) <= SMALL.batch * 2


@pytest.mark.parametrize("uses", [(), (Use("room"),)], ids=["plain", "limited"])
def test_a_claim_brings_so_many_bytes_and_the_next_one_the_rest(engine: Engine, uses: tuple[Use, ...]) -> None:
    run_sync(engine.set_resource("room", capacity=100))
    options = Options(uses=uses)
    sizes = [1, 1, 1, 20, 1, 1, *(1 for _ in range(20))]
    made = run_sync(engine.create([NewRun("plain", {"text": KIB * size}, options) for size in sizes]))
    answers, worker = list[list[Run]](), WorkerInfo("w1", slots=1_000)
    while runs := run_sync(engine.claim(worker, count=100)):
        answers.append(runs)
    assert [run.id for runs in answers for run in runs] == [one.id for one in made]
    assert len(answers) >= 3
    for runs in answers:  # what is one too many is the last of an answer, which begins with what fits
        assert sum(len(run.payload) for run in runs[:-1]) <= 2 * SMALL.batch or len(runs[-1].payload) > SMALL.batch


def test_claims_that_are_made_together_are_all_served_although_their_runs_are_large(engine: Engine) -> None:
    made = run_sync(engine.create([NewRun("plain", {"text": KIB * 6}) for _ in range(12)]))
    asks = [engine.asking(WorkerInfo(f"w{n}", slots=100), count=3) for n in range(4)]
    answers = run_sync(engine.claim_many(asks))
    assert [len(answer) for answer in answers if isinstance(answer, list)] == [2, 2, 2, 2]  # the second is one too many
    left = {run.id for run in claim_all(engine)}
    assert left | {run.id for answer in answers if isinstance(answer, list) for run in answer} == {one.id for one in made}


def test_a_worker_that_got_its_bytes_asks_again_at_once(app: App) -> None:
    ports = Ports()
    handles = app.enqueue_many(NewRun("says", {"text": KIB * 4}) for _ in range(40))
    with working(app, slots=100, prepare=ports.watch):
        assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
    assert ports.loop.calls["wait"] < ports.loop.calls["claim"]  # it did not wait for a hint between two claims


def test_reports_are_cut_into_several_batches(engine: Engine) -> None:
    runs, watched = held(engine, 40), watch(engine)
    outcomes = [
        Outcome(run.id, Succeed(token=run.token, output=f'"{KIB}"') if n % 2 else Fail(token=run.token, error=Failure("x", KIB)), run.seq)
        for n, run in enumerate(runs)
    ]
    answers = run_sync(engine.report_many(outcomes))
    assert [isinstance(answer, Receipt) and answer.run for answer in answers] == [run.id for run in runs]
    assert {answer.state for answer in answers[1::2] if isinstance(answer, Receipt)} == {State.SUCCEEDED}
    for name in ("succeed", "write_back"):
        assert len(watched.sets[name]) >= 3
        assert max(watched.sets[name]) <= SMALL.batch * 2


def test_what_the_store_does_not_take_of_one_is_answered_to_that_one(engine: Engine) -> None:
    runs, watched = held(engine, 20), watch(engine)
    poisoned: dict[int, Report] = {3: Succeed(output=f'"{POISON}"'), 11: Fail(error=Failure("x", POISON))}
    outcomes = [Outcome(run.id, replace(poisoned.get(n, Succeed(output="1")), token=run.token), run.seq) for n, run in enumerate(runs)]
    answers = run_sync(engine.report_many(outcomes))
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BadInput)] == [3, 11]
    assert all(isinstance(answer, Receipt) and not answer.repeated for n, answer in enumerate(answers) if n not in poisoned)
    states = [run_sync(engine.get(run.id)).state for run in runs]
    assert [n for n, state in enumerate(states) if state is State.CLAIMED] == [3, 11]
    watched.error = StoreBroken
    with pytest.raises(StoreBroken):  # whose trouble is everybody's
        run_sync(engine.report_many([outcomes[3]]))


def test_a_worker_reports_in_batches_of_so_many_bytes(app: App) -> None:
    ports, free = Ports(), threading.Event()

    @app.job(name="waits")
    def waits(text: str) -> str:
        assert free.wait(DEADLINE)
        return text

    def prepare(worker: Worker) -> None:
        ports.watch(worker)

    handles = app.enqueue_many([waits.new(LARGER if n == 5 else KIB) for n in range(30)])
    with working(app, slots=30, prepare=prepare) as at_work:
        until(lambda: len(at_work.worker.in_flight.busy) == 30)
        free.set()
        assert {ended(handle).state for handle in handles} == {State.SUCCEEDED}
    sizes = [[len(outcome.report.output) for outcome in outcomes] for outcomes, _ in ports.loop.asked["report_many"]]
    assert sum(map(len, sizes)) == 30
    assert all(sum(some) <= SMALL.batch or len(some) == 1 for some in sizes)


def test_what_the_store_refuses_of_one_run_ends_that_one_alone(app: App) -> None:
    """Its result is not taken: it fails for that. Its error is not taken either: it is left to its lease."""

    def prepare(worker: Worker) -> None:
        watch(worker.runtime.port)

    with working(app, slots=8, prepare=prepare) as at_work:
        bad, stuck = app.enqueue("says", {"text": POISON}), app.enqueue("breaks", {"text": POISON})
        good = [app.enqueue("says", {"text": "fine"}) for _ in range(20)]
        assert {ended(handle).state for handle in good} == {State.SUCCEEDED}
        run = ended(bad)
        until(lambda: not at_work.worker.in_flight.held)
        assert at_work.alive
        again = app.enqueue("says", {"text": "still there"})
        assert ended(again).output == '"still there"'
        assert stuck.refresh().state in (State.CLAIMED, State.RUNNING, State.FAILED)
    assert (run.state, run.error and run.error.code) == (State.FAILED, "bad_output")


def test_requests_that_come_together_are_joined_up_to_so_many_bytes() -> None:
    calls = list[int]()

    async def verb(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        await asyncio.sleep(0)
        return list(items)

    async def main() -> list[list[int]]:
        joined = Coalescer(verb, 1_000, 10)
        return await asyncio.gather(*(joined.submit([n], 1, bytes) for n, bytes in enumerate([4, 4, 4, 50, 1, 1])))

    assert asyncio.run(main()) == [[0], [1], [2], [3], [4], [5]]
    assert max(calls) <= 2
    assert sum(calls) == 6


# At its real size


@FULL_SIZE
def test_results_of_more_than_a_quarter_of_a_gigabyte_at_once(emptied_postgres: str) -> None:
    limiter = threading.Barrier(280)
    with App(emptied_postgres) as app:

        @app.job(name="large", max_attempts=1)
        def large() -> str:
            limiter.wait(DEADLINE * 5)
            return "x" * (1024 * 1024 - 2)

        handles = app.enqueue_many([large.new() for _ in range(280)])
        with working(app, slots=280, lease=60):
            states = [until(lambda handle=handle: run.state if (run := handle.refresh()).finished_at else None) for handle in handles]  # type: ignore[misc]
        assert {handle.refresh().attempt for handle in handles} == {1}
    assert set(states) == {State.SUCCEEDED}


@FULL_SIZE
def test_creations_of_more_than_a_quarter_of_a_gigabyte_at_once(emptied_postgres: str) -> None:
    with App(emptied_postgres) as app:

        @app.job(name="large")
        async def large(text: str) -> None: ...

        handles = app.enqueue_many([large.new("x" * 255_000) for _ in range(1_200)])
        assert len({handle.id for handle in handles}) == 1_200
        assert len(handles[-1].refresh().payload) > 255_000
