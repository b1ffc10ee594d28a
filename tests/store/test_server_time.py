"""PostgreSQL: a process carries the server's time on by its own clock. What it wrote with a time that was wrong, it corrects at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.harness import LEASE, token
from windlass.clock import SystemClock
from windlass.engine import Engine, Watch
from windlass.model import NewRun, Options, State, Use, WorkerInfo
from windlass.store.base import Row, Statement, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held

HOUR = 3_600_000
NEAR = 2_000  # milliseconds that a slow machine may take for a batch


class Shifting(SystemClock):
    """The clock of a machine that sleeps without noticing, beside a server whose clock is set: both are a shift of what is assumed."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0

    def monotonic(self) -> int:
        return super().monotonic() - self.slept

    def wall(self) -> int:  # which sleeps along: nothing on this machine shows it
        return super().wall() - self.slept

    def server_set(self, ms: int) -> None:
        self.align(self.now() - ms)


class Counting(BlockingPostgres):
    """Counts batches by their verb."""

    verbs: list[str]

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self.verbs.append(verb)
        return await super().batch(verb, statements)


@pytest.fixture
def url(emptied_postgres: str) -> str:
    return emptied_postgres


@pytest.fixture
def here(url: str) -> Iterator[Engine]:
    """The engine of a process whose idea of the time can be made wrong."""
    store = Counting.__new__(Counting)
    store.verbs = []
    store.__init__(url, Shifting())  # type: ignore[misc]
    engine = Engine(store, store._clock)
    run_sync(engine.define("mail"))
    yield engine
    run_sync(store.close())


@pytest.fixture
def elsewhere(url: str) -> Iterator[Engine]:
    """An engine on another machine, which knows what time it is."""
    clock = SystemClock()
    store = BlockingPostgres(url, clock)
    yield Engine(store, clock)
    run_sync(store.close())


def shift(engine: Engine, kind: str) -> None:
    assert isinstance(engine.clock, Shifting)
    if kind == "slept":
        engine.clock.slept += 120_000
    else:
        engine.clock.server_set(HOUR if kind == "set ahead" else -HOUR)


def verbs(engine: Engine) -> list[str]:
    assert isinstance(engine.records.store, Counting)
    found, engine.records.store.verbs = engine.records.store.verbs, []
    return found


SHIFTS = pytest.mark.parametrize("kind", ["slept", "set ahead", "set back"])


def fresh(elsewhere: Engine, run_id: str) -> None:
    """The lease ends a lease from now, by the server's time."""
    run = run_sync(elsewhere.get(run_id))
    assert run.lease_until is not None
    assert abs(run.lease_until - elsewhere.clock.now() - LEASE) < NEAR


@SHIFTS
@pytest.mark.parametrize("limited", [False, True])
def test_a_claim_that_was_written_with_a_wrong_time_is_corrected(here: Engine, elsewhere: Engine, kind: str, limited: bool) -> None:
    run_sync(here.define("mail", options=Options(max_runtime=60_000, uses=(Use("gpu"),) if limited else ())))
    run_id = run_sync(here.create([NewRun("mail")]))[0].id
    shift(here, kind)
    (run,) = run_sync(here.claim(WorkerInfo("w", slots=8), lease=LEASE))
    fresh(elsewhere, run_id)
    seen = run_sync(elsewhere.get(run_id))
    assert seen.lease_until == seen.lease_check_at == run.lease_until
    assert seen.claimed_at is not None
    assert abs(seen.claimed_at - elsewhere.clock.now()) < NEAR
    assert run_sync(elsewhere.sweep()).lapsed == 0
    assert abs(here.clock.now() - elsewhere.clock.now()) < NEAR


@SHIFTS
def test_a_beat_that_was_written_with_a_wrong_time_is_repeated(here: Engine, elsewhere: Engine, kind: str) -> None:
    run_id = run_sync(here.create([NewRun("mail")]))[0].id
    (run,) = run_sync(here.claim(WorkerInfo("w", slots=8), lease=1_000))
    shift(here, kind)
    assert run_sync(here.beat([Held(run.seq, token(run))], lease=LEASE)) == ["ok"]
    fresh(elsewhere, run_id)
    verbs(here)
    assert run_sync(here.beat([Held(run.seq, token(run))], lease=LEASE)) == ["ok"]
    assert verbs(here) == ["beat"], "Once is enough when the time was right."


@SHIFTS
def test_a_direct_call_that_was_written_with_a_wrong_time_is_renewed(here: Engine, elsewhere: Engine, kind: str) -> None:
    run_sync(here.set_resource("gpu", capacity=1))
    shift(here, kind)
    slot = run_sync(here.reserve("gpu", lease=LEASE))
    for _ in range(2):
        (seen,) = run_sync(elsewhere.slots())
        assert (seen.state, seen.lease_until) == ("held", slot.lease_until)
        assert abs(seen.lease_until - elsewhere.clock.now() - LEASE) < NEAR
        shift(here, kind)
        slot = run_sync(here.renew(slot.id, slot.token, lease=LEASE))


def test_a_lease_that_is_right_costs_no_second_batch(here: Engine) -> None:
    run_sync(here.create([NewRun("mail")]))
    run_sync(here.claim(WorkerInfo("w", slots=8)))
    verbs(here)
    run_sync(here.create([NewRun("mail")]))
    (run,) = run_sync(here.claim(WorkerInfo("w", slots=8), lease=LEASE))
    run_sync(here.beat([Held(run.seq, token(run))], lease=LEASE))
    assert verbs(here) == ["create", "claim", "claim", "beat"]


def test_a_clock_of_the_server_that_is_set_ends_no_lease_that_beats(here: Engine, url: str) -> None:
    """The sweeper learns of it only later, and is no less careful then."""
    run_id = run_sync(here.create([NewRun("mail")]))[0].id
    (run,) = run_sync(here.claim(WorkerInfo("w", slots=8), lease=LEASE))
    clock = Shifting()
    store = BlockingPostgres(url, clock)
    sweeper, watch, ticks = Engine(store, clock), Watch(clock), clock.monotonic()
    watch._since -= LEASE  # it has watched for long enough
    for kind in ("set ahead", "set back", "set back", "set ahead"):
        shift(here, kind)
        shift(sweeper, kind)
        assert run_sync(sweeper.sweep(watch)).lapsed == 0
        assert run_sync(here.beat([Held(run.seq, token(run))], lease=LEASE)) == ["ok"]
        assert run_sync(sweeper.sweep(watch)).lapsed == 0
    assert run_sync(here.get(run_id)).state is State.CLAIMED
    assert clock.monotonic() >= ticks
    run_sync(store.close())


def test_intervals_count_the_time_in_which_the_machine_sleeps() -> None:
    time = pytest.importorskip("time")
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None:
        pytest.skip("There is no such clock here.")
    before = time.clock_gettime_ns(boot) // 1_000_000
    assert before <= SystemClock().monotonic() <= time.clock_gettime_ns(boot) // 1_000_000
