"""Workers whose lines to PostgreSQL are cut while the server goes on: nothing is executed twice, missed or failures."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest

from tests.proxies import Cable
from tests.tiers import long
from tests.workers import ended, moves, until, working
from windlass import App, Context, State
from windlass.clock import SystemClock
from windlass.engine import Engine
from windlass.store.postgres import AsyncPostgres, BlockingPostgres
from windlass.testing.servers import PostgresServer
from windlass.worker import Worker
from windlass.worker.port import Port

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'windlass'"


@pytest.fixture
def cable(postgres_server: PostgresServer) -> Iterator[Cable]:
    cable = Cable(postgres_server)
    yield cable
    cable.close()


@pytest.fixture
def app(emptied_postgres: str) -> Iterator[App]:
    with App(emptied_postgres) as app:
        yield app


class Engines:
    """What a worker on the other end of a cable speaks through: directly, or as if a pooler were between."""

    def __init__(self, address: str, kind: str = "async", *, pooled: bool = False) -> None:
        self._clock = SystemClock()
        store = AsyncPostgres if kind == "async" else BlockingPostgres
        self.loop = Engine(store(address, self._clock, pooled=pooled), self._clock)
        self.heartbeat = Engine(BlockingPostgres(address, self._clock, pooled=pooled, patience=2.0), self._clock)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in (self.loop, self.heartbeat):
            asyncio.run(engine.records.store.close())

    def use(self, worker: Worker) -> None:
        worker.runtime.port, worker.heartbeat.port = cast(Port, self.loop), cast(Port, self.heartbeat)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_claim_whose_line_is_cut_while_it_executes_is_not_forgotten(
    app: App, cable: Cable, emptied_postgres: str, kind: str, pooled: bool, slots: int
) -> None:
    """Its run is begun by that very claim, or by the next of the same worker; not when a lease is over, which would be its end."""
    executed, cable.told = list[str](), pooled

    @app.job(name="once", max_attempts=1)
    async def once(ctx: Context) -> None:
        executed.append(ctx.run)

    handles = [once.enqueue() for _ in range(2)]
    with (
        psycopg.connect(emptied_postgres) as other,
        psycopg.connect(emptied_postgres, autocommit=True) as admin,
        Engines(cable.url(emptied_postgres), kind, pooled=pooled) as engines,
    ):
        other.execute("lock table job_runs in share mode")
        with working(app, slots=slots, lease=60, prepare=engines.use):
            until(lambda: admin.execute(WAITING).fetchone() == (1,))
            lines = cable.lines
            cable.cut()
            until(lambda: cable.lines > lines)
            threading.Event().wait(0.3)  # so that whoever reads too early does
            other.rollback()
            runs = [ended(handle) for handle in handles]
    assert [(run.state, run.attempt, run.failures) for run in runs] == [(State.SUCCEEDED, 1, 0)] * 2
    assert Counter(executed) == Counter(handle.id for handle in handles)
    assert [moves(app, handle).count("claim") for handle in handles] == [1, 1]


class Cutting:
    """A port on which the line is cut at the first calls of a verb, while the server does what it was asked."""

    def __init__(self, port: Any, cable: Cable, verb: str, times: int) -> None:
        self._port, self._cable, self._verb, self.left = port, cable, verb, times

    def __getattr__(self, name: str) -> Any:
        if name == self._verb and self.left > 0:
            self.left -= 1
            self._cable.cut_next()
        return getattr(self._port, name)


VERBS = ("register", "claim", "start_many", "beat", "log", "store_step", "report_many", "results", "wait")


def busy_jobs(app: App, executed: list[str]) -> Any:
    """Jobs whose runs use every verb of a worker; the answer enqueues some and gives those that must be executed once."""

    @app.job(name="talks", max_attempts=1)
    async def talks(ctx: Context, n: int) -> int:
        executed.append(ctx.run)
        ctx.logger.info("%d", n)
        ctx.progress(n)
        await asyncio.sleep(0.03 * (n % 6))
        return int(await ctx.step("answer", lambda: n))

    @app.job(name="sums", max_attempts=1)
    def sums(ctx: Context) -> int:
        executed.append(ctx.run)
        return sum(result.value for result in ctx.results())

    def enqueue(count: int) -> list[Any]:
        handles = [talks.enqueue(n) for n in range(count)]
        return [*handles, sums.options(after=handles[:2]).enqueue()]

    return enqueue


def judge(app: App, handles: list[Any], executed: list[str]) -> None:
    runs = [ended(handle) for handle in handles]
    assert {(run.state, run.attempt, run.failures) for run in runs} == {(State.SUCCEEDED, 1, 0)}
    assert Counter(executed) == Counter(handle.id for handle in handles)
    assert {tuple(moves(app, handle).count(move) for move in ("claim", "succeed")) for handle in handles} == {(1, 1)}


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_line_that_is_cut_at_any_verb_of_a_worker_costs_nothing_but_time(
    app: App, cable: Cable, emptied_postgres: str, verb: str, pooled: bool
) -> None:
    executed, cable.told = list[str](), pooled
    enqueue = busy_jobs(app, executed)
    ports = list[Cutting]()

    def prepare(worker: Worker) -> None:
        engines.use(worker)
        ports.extend(Cutting(port, cable, verb, 2) for port in (worker.runtime.port, worker.heartbeat.port))
        worker.runtime.port, worker.heartbeat.port = (cast(Port, port) for port in ports)

    with Engines(cable.url(emptied_postgres), pooled=pooled) as engines, working(app, slots=4, lease=3, prepare=prepare):
        handles = enqueue(6)
        judge(app, handles, executed)
        until(lambda: any(port.left < 2 for port in ports))


@long
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_lines_cut_at_random_cost_nothing_but_time(app: App, cable: Cable, emptied_postgres: str, pooled: bool) -> None:
    cable.told = pooled
    executed, chance, over = list[str](), random.Random(18), threading.Event()
    enqueue = busy_jobs(app, executed)

    def disturb() -> None:
        while not over.wait(chance.uniform(0.02, 0.2)):
            cable.cut_next() if chance.random() < 0.7 else cable.cut()

    disturber = threading.Thread(target=disturb)
    with Engines(cable.url(emptied_postgres), pooled=pooled) as engines, working(app, slots=6, lease=5, prepare=engines.use):
        disturber.start()
        handles = [handle for _ in range(8) for handle in enqueue(20)]
        try:
            judge(app, handles, executed)
        finally:
            over.set()
            disturber.join()
    assert cable.cuts > 5
