"""Limits where sessions meet: 60 rounds each on separate connections, and a crowd that does everything at once.

As in test_barriers, every statement that writes lingers on PostgreSQL, so that a lock that is missing shows in nearly every round.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import invariants
from tests.invariants import Snapshot
from tests.proof.test_barriers import MANY, ROUNDS, Arena, Verb, succeed
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.errors import Cancelled, LeaseLost, NotEditable, WindlassError, WrongState
from windlass.limiters import limiter_key
from windlass.machine import LIVE, Fail, Requeue, Succeed
from windlass.model import Failure, NewRun, Options, Rate, Run, Slot, State, Use, WorkerInfo
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

_LINGER = """
create function linger() returns trigger language plpgsql as $$
  begin if current_setting('windlass.linger', true) = 'on' then perform pg_sleep(0.002); end if; return null; end $$;
create trigger linger after insert or update on job_runs for each statement execute function linger();
create trigger linger after insert or update on job_limiters for each statement execute function linger();
create trigger linger after insert or update or delete on job_holds for each statement execute function linger();
create trigger linger after insert or update or delete on job_slots for each statement execute function linger();
create trigger linger after insert or update on job_journal for each statement execute function linger();
"""

BOOM = Failure("boom", "it broke")


@pytest.fixture(params=["postgres", "file"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "file":
        arena = Arena(lambda clock, _: BlockingSqlite(tmp_path / "windlass.db", clock, synchronous="NORMAL"))
        yield arena
        arena.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url: str = request.getfixturevalue("postgres_url")
    arena = Arena(lambda clock, linger: BlockingPostgres(url, clock, settings={"windlass.linger": linger}))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_LINGER)
    said = len(server.log)
    yield arena
    arena.close()
    assert "deadlock detected" not in server.log[said:]


def limited(arena: Arena, *uses: Use, capacity: int = 1, **options: Any) -> None:
    for use in uses:
        arena(arena.engine.set_resource(use.resource, capacity=capacity))
    arena(arena.engine.define("job", options=Options(uses=uses, **options)))
    arena(arena.engine.register(MANY))


def claim(count: int = 1) -> Verb:
    return lambda engine: engine.claim(MANY, count=count)


def live(arena: Arena) -> list[Run]:
    found: list[Run] = arena(arena.engine.runs(state="claimed")).runs
    return found


def end_all(arena: Arena) -> None:
    for run in live(arena):
        arena(arena.engine.report(run.id, Succeed(token=run.token)))


@pytest.mark.parametrize("use", [Use("gpu"), Use("gpu", per="customer")], ids=["resource", "key"])
def test_S11_four_claim_where_there_is_room_for_one(arena: Arena, use: Use) -> None:
    limited(arena, use)
    arena.create(3 * ROUNDS, payload={"customer": 1})
    for _ in range(ROUNDS):
        claims = arena.race(*[claim(2)] * 4)
        assert sum(map(len, claims)) == len(live(arena)) == 1
        end_all(arena)


def test_S11_four_claim_what_needs_two_resources_in_any_order(arena: Arena) -> None:
    limited(arena, Use("a"), Use("b"), Use("k", per="customer"), capacity=3)
    for number in range(4 * ROUNDS):
        arena.create(payload={"customer": number % 3})
    for _ in range(ROUNDS):
        claims = arena.race(*[claim(2)] * 4)
        assert 1 <= sum(map(len, claims)) <= 3
        assert len(live(arena)) <= 3
        end_all(arena)


def test_S11_four_claim_from_lanes_of_their_own(arena: Arena) -> None:
    """They meet only at the gate: no run is wanted by two of them."""
    verbs = apart(arena, capacity=2)
    for _ in range(ROUNDS):
        assert sum(map(len, arena.race(*verbs))) == len(live(arena)) == 2
        end_all(arena)


def test_S11_a_rate_is_one_for_all(arena: Arena) -> None:
    verbs = apart(arena, rates=(Rate(1, 1_000, 2),))
    for _ in range(ROUNDS):
        arena.clock.advance(2_000)
        assert sum(map(len, arena.race(*verbs))) == len(live(arena)) == 2
        end_all(arena)


def apart(arena: Arena, **limits: Any) -> list[Verb]:
    """Four claims, each from a job of its own; all use one resource."""
    arena(arena.engine.set_resource("gpu", **limits))
    for number in range(4):
        arena(arena.engine.define(f"job{number}", options=Options(uses=(Use("gpu"),))))
        arena(arena.engine.create([NewRun(f"job{number}") for _ in range(2 * ROUNDS)]))
    workers = [WorkerInfo(f"w{number}", jobs=(f"job{number}",), slots=9) for number in range(4)]
    return [lambda engine, worker=worker: engine.claim(worker) for worker in workers]  # type: ignore[misc]


def test_nobody_is_stuck_when_a_claim_wants_to_park_while_the_holder_ends(arena: Arena) -> None:
    """Without any sweep: whatever the order, the next claim gets the next run."""
    limited(arena, Use("customer", per="customer"))
    for turn in range(ROUNDS):
        made = arena.create(2, payload={"customer": 1})
        (run,) = arena.claim()
        requeue: Verb = lambda engine, run=run: engine.report(run.id, Requeue(token=run.token))  # type: ignore[misc]  # noqa: E731
        _, *claims = arena.race(succeed(run) if turn % 2 else requeue, *[claim(2)] * 3)
        assert sum(map(len, claims)) == len(live(arena)) <= 1
        while any(arena.get(run_id).finished_at is None for run_id in made):
            if not live(arena):
                arena.claim()  # or it says that there is none
            end_all(arena)


def test_a_key_is_parked_for_as_long_as_it_is_full_while_its_runs_are_patched_and_cancelled(arena: Arena) -> None:
    limited(arena, Use("customer", per="customer"))
    for turn in range(ROUNDS):
        first, second, third = arena.create(3, payload={"customer": 1})
        (run,) = arena.claim()
        arena.race(
            claim(3),
            lambda engine, second=second: engine.patch(second, payload={"customer": 1}, priority=1),  # type: ignore[misc]
            lambda engine, third=third: engine.cancel(third),  # type: ignore[misc]
            succeed(run),
        )
        assert len(live(arena)) <= 1
        end_all(arena)
        assert arena.get(first).state is State.SUCCEEDED
        if arena.get(second).state is State.QUEUED:
            (left,) = arena.claim()
            assert left.id == second
            end_all(arena)
        assert arena(arena.engine.claim(MANY)) == [], turn


def test_a_reservation_is_behind_what_runs_and_before_what_is_queued(arena: Arena) -> None:
    """[current] -> [direct] -> [queue]: once it is asked for, no claim gets what it waits for."""
    limited(arena, Use("gpu"))
    arena.create(5 * ROUNDS)
    for _ in range(ROUNDS):
        (current,) = arena.claim()
        slot, _, *claims = arena.race(lambda engine: engine.reserve("gpu"), succeed(current), claim(), claim())
        assert isinstance(slot, Slot)
        got = [run for some in claims for run in some]
        assert len(got) + (slot.state == "held") <= 1
        for run in got:  # it came before the reservation, which then waits
            assert slot.state == "waiting"
            arena(arena.engine.report(run.id, Succeed(token=run.token)))
        assert arena(arena.engine.claim(MANY)) == []
        slot = arena(arena.engine.renew(slot.id, slot.token))
        assert slot.state == "held"
        freed, *after = arena.race(lambda engine, slot=slot: engine.release(slot.id, slot.token), claim(), claim())  # type: ignore[misc]
        assert freed
        assert sum(map(len, after)) <= 1
        end_all(arena)


def test_reservations_are_served_one_after_the_other(arena: Arena) -> None:
    limited(arena, Use("gpu"))
    arena.create(ROUNDS)
    for _ in range(ROUNDS):
        *slots, claims = arena.race(*[lambda engine: engine.reserve("gpu")] * 3, claim())
        end_all(arena)
        in_line = sorted((arena(arena.engine.renew(slot.id, slot.token)) for slot in slots), key=lambda slot: slot.seq)
        for slot in in_line:
            now = arena(arena.engine.slots())
            assert [one.state for one in now].count("held") <= 1
            assert arena(arena.engine.renew(slot.id, slot.token)).state == "held"
            assert arena(arena.engine.release(slot.id, slot.token))
        assert len(claims) <= 1


def test_a_lower_capacity_is_never_exceeded_by_those_who_knew_the_higher(arena: Arena) -> None:
    limited(arena, Use("gpu"), capacity=3)
    arena.create(6 * ROUNDS)
    for _ in range(ROUNDS):
        arena(arena.engine.set_resource("gpu", capacity=3))
        arena.race(*[claim(1)] * 3)
        end_all(arena)
        changed, *_ = arena.race(lambda engine: engine.set_resource("gpu", capacity=1), claim(3), claim(3))
        assert not isinstance(changed, WindlassError)
        before = len(live(arena))
        assert before <= 3
        assert sum(map(len, arena.race(claim(3), claim(3)))) == (0 if before else 1)
        end_all(arena)


# A crowd


class Crowd:
    """Threads that claim, report, cancel, patch, pause and resize for a while, each with an engine and a connection of its own."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self.open_store = open_store
        self.errors: list[BaseException] = []

    def live(self, number: int, until: float) -> None:
        store, clock, dice = self.open_store(), SystemClock(), ManualClock(seed=number)
        engine, worker = Engine(store, clock), WorkerInfo(f"w{number}", slots=100)
        try:
            while clock.monotonic() < until:
                run_sync(self._act(engine, worker, dice))
        except BaseException as error:
            self.errors.append(error)
        finally:
            run_sync(store.close())

    async def _act(self, engine: Engine, worker: WorkerInfo, dice: ManualClock) -> None:
        which = dice.chance()
        if which < 0.03:
            await engine.pause("job", "b")
        elif which < 0.08:
            await engine.resume("job", "b")
        elif which < 0.12:
            slot = await engine.reserve("gpu", weight=1)
            await engine.renew(slot.id, slot.token)
            await engine.release(slot.id, slot.token)
        elif which < 0.15:
            await engine.sweep()
        elif which < 0.3:
            found = (await engine.runs(state="queued", count=20)).runs
            for run in found[:: max(1, len(found) // 2)]:
                try:
                    if dice.chance() < 0.3:
                        await engine.cancel(run.id)
                    else:
                        await engine.patch(run.id, payload={"customer": int(dice.chance() * 3)})
                except (NotEditable, WrongState):
                    pass
        claimed = await engine.claim(worker, count=3)
        usage = await engine.records.limiters.usage(CUSTOMERS)  # one statement, so one moment
        assert all(usage[key].held <= CAPACITY["customer"] for key in CUSTOMERS), usage
        for run in claimed:
            with suppress(Cancelled):  # a report of any kind then says that it has stopped
                await engine.start(run.id, run.token or "")
            try:
                if dice.chance() < 0.2:
                    await engine.report(run.id, Fail(token=run.token, error=BOOM, delay=0))
                elif dice.chance() < 0.2:
                    await engine.report(run.id, Requeue(token=run.token))
                else:
                    await engine.report(run.id, Succeed(token=run.token))
            except (Cancelled, LeaseLost):
                pass


NEEDS = {"a": {"gpu": 1}, "b": {"gpu": 2}, "c": {}}
CAPACITY = {"gpu": 3, "customer": 2}
CUSTOMERS = [limiter_key("customer", str(n)) for n in range(3)]


def _crowd_on_postgres(request: pytest.FixtureRequest) -> tuple[Crowd, Callable[[], str]]:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url, said = request.getfixturevalue("postgres_url"), len(server.log)
    queries = invariants.with_tables("postgres")
    return Crowd(lambda: BlockingPostgres(url, SystemClock(), queries=queries)), lambda: server.log[said:]


def _crowd_on_a_file(folder: Path) -> tuple[Crowd, Callable[[], str]]:
    queries = invariants.with_tables("sqlite")
    return Crowd(lambda: BlockingSqlite(folder / "windlass.db", SystemClock(), synchronous="NORMAL", queries=queries)), lambda: ""


@pytest.mark.parametrize("kind", ["postgres", "file"])
def test_S11_capacity_is_never_exceeded_in_a_crowd(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    crowd, log = _crowd_on_postgres(request) if kind == "postgres" else _crowd_on_a_file(tmp_path)
    store, clock = crowd.open_store(), SystemClock()
    engine = Engine(store, clock)
    for name, capacity in CAPACITY.items():
        run_sync(engine.set_resource(name, capacity=capacity))
    per_key = Use("customer", per="customer")
    uses = {"a": (Use("gpu"), per_key), "b": (Use("gpu", weight=2),), "c": (per_key,)}
    for job, used in uses.items():
        run_sync(engine.define(job, options=Options(uses=used, max_attempts=20)))
    run_sync(engine.create([NewRun("abc"[n % 3], {"customer": n % 3}) for n in range(600)]))
    threads = [threading.Thread(target=crowd.live, args=(number, clock.monotonic() + 6_000)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert crowd.errors == []
    run_sync(engine.resume("job", "b"))
    _finish(engine)
    snapshot = invariants.read(store)
    invariants.check(snapshot)
    check_journal(snapshot)
    assert run_sync(engine.records.limiters.held_under()) == {}
    run_sync(store.close())
    assert "deadlock detected" not in log()


def _finish(engine: Engine) -> None:
    """A fair worker ends what is left; nothing may be stuck."""
    worker = WorkerInfo("last", slots=100)
    for _ in range(1_000):
        run_sync(engine.sweep())
        runs = run_sync(engine.claim(worker, count=100))
        for run in runs:
            run_sync(engine.report(run.id, Succeed(token=run.token)))
        if not runs and all(run.finished_at is not None for run in run_sync(engine.runs(count=1_000)).runs):
            return
    raise AssertionError("there are runs that never end")


def check_journal(now: Snapshot) -> None:
    """What was occupied at every moment, as the journal tells it. Its entries are numbered under the lock of what is counted."""
    occupied: dict[str, int] = defaultdict(int)
    holding: dict[int, dict[str, int]] = {}
    for entry in sorted(entry for entries in now.journal.values() for entry in entries):
        if entry.move == "claim":
            holding[entry.run] = NEEDS[now.runs[entry.run].job]
            for name, weight in holding[entry.run].items():
                occupied[name] += weight
                assert occupied[name] <= CAPACITY[name], f"{name} at {entry}"
        elif entry.run in holding and entry.state not in LIVE:
            for name, weight in holding.pop(entry.run).items():
                occupied[name] -= weight
    assert sum(occupied.values()) == 0
