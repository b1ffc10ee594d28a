"""A stranger's long transaction on PostgreSQL holds up nobody but itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests import invariants
from tests.harness import LEASE, Harness, token
from tests.kill_child import Life, scenario
from tests.proof.test_kills import finish
from tests.workers import Gate, ended, ghost, until, working
from windlass import App
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.errors import StoreBusy
from windlass.faults import FAULTS
from windlass.machine import Succeed
from windlass.model import Key, Member, NewGroup, NewRun, Options, State
from windlass.store.base import SWEEP, run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres, BorrowedPostgres
from windlass.store.records import Held, fault_points

Connection = psycopg.Connection[TupleRow]


@pytest.fixture
def h(emptied_postgres: str) -> Iterator[Harness]:
    """The engine on PostgreSQL. Whatever waits for a lock fails soon."""
    clock = ManualClock()
    store = BlockingPostgres(emptied_postgres, clock, settings={"lock_timeout": "500ms"})
    harness = Harness(store, clock)
    harness.define()
    yield harness
    run_sync(store.close())


@pytest.fixture
def stranger(emptied_postgres: str) -> Iterator[Connection]:
    """A connection of somebody else, with a transaction that is rolled back unless it is committed before."""
    with psycopg.connect(emptied_postgres) as connection:
        yield connection
        connection.rollback()


def lock(stranger: Connection, *runs: str) -> None:
    """Lock runs as somebody with a database shell would."""
    stranger.execute("select 1 from job_runs where id = any(%s) for update", [list(runs)])


def beat(h: Harness, *runs: Any, **how: Any) -> list[str]:
    return [*h(h.engine.beat([Held(run.seq, token(run)) for run in runs], **how))]


def test_a_beat_passes_over_a_locked_run_and_says_that_it_is_unknown(h: Harness, stranger: Connection) -> None:
    for _ in range(3):
        h.create()
    locked, bystander, gone = h.claim(3)
    h.succeed(gone)
    lock(stranger, locked.id)
    h.clock.advance(1_000)
    progress = {Held(run.seq, token(run)): "1" for run in (locked, bystander)}
    assert beat(h, locked, bystander, gone, progress=progress) == ["unknown", "ok", "lost"]
    assert [h.get(run.id).lease_until for run in (locked, bystander)] == [locked.lease_until, h.clock.now() + LEASE]
    assert [h.get(run.id).progress for run in (locked, bystander)] == [None, "1"]
    stranger.rollback()
    assert beat(h, locked, bystander, gone) == ["ok", "ok", "lost"]
    assert h.get(locked.id).lease_until == h.clock.now() + LEASE


def test_a_beat_on_a_locked_run_of_another_holder_is_lost(h: Harness, stranger: Connection) -> None:
    h.create()
    first = h.claimed()
    h.sweep(after=LEASE + 1)
    h.sweep(after=60_000)
    second = h.claimed("w2")
    lock(stranger, second.id)
    assert beat(h, first, second) == ["lost", "unknown"]


# What is made to wait inside a caller's transaction


class Calling:
    """An engine that writes into a transaction that stays open until the test ends it."""

    def __init__(self, h: Harness, connection: Connection) -> None:
        self.connection = connection
        self.engine: Engine = h.engine.on(BorrowedPostgres(connection))

    def follow(self, *before: str, job: str = "mail", **fields: Any) -> str:
        return run_sync(self.engine.create([NewRun(job, "consumer", after=before, **fields)]))[0].id


@pytest.fixture
def caller(h: Harness, stranger: Connection) -> Calling:
    return Calling(h, stranger)


def dense(h: Harness, run: str) -> bool:
    """Whether the journal of a run has every revision once."""
    entries = h(h.engine.history(run))
    return [entry.rev for entry in entries] == list(range(1, h.get(run).rev + 1))


def test_an_open_transaction_that_waits_for_a_run_holds_up_neither_its_beats_nor_its_end(h: Harness, caller: Calling) -> None:
    h.create()
    h.create()
    before, bystander = h.claim(2)
    consumer = caller.follow(before.id)
    assert beat(h, before, bystander) == ["ok", "ok"]
    h(h.engine.start(before.id, token(before)))
    h.succeed(before)
    h.succeed(bystander)
    h.sweep()
    caller.connection.commit()
    assert h.get(consumer).state is State.WAITING
    assert [reason.code for reason in h(h.engine.why(consumer))] == ["unsettled"]
    h.sweep()
    h.sweep()
    assert (h.get(consumer).state, h.moves(consumer), dense(h, consumer)) == (State.QUEUED, ["create", "release"], True)
    assert h.claimed().id == consumer
    assert h(h.engine.records.sweeps.checks(0, 10)) == []


@pytest.mark.parametrize(("rule", "state"), [("success", State.CANCELLED), ("any", State.QUEUED)])
def test_what_waits_for_a_run_that_failed_meanwhile_follows_its_rule(h: Harness, caller: Calling, rule: Any, state: State) -> None:
    h.create()
    before = h.claimed()
    consumer = caller.follow(before.id, after_end=rule)
    h.fail(before, retry=False)
    caller.connection.commit()
    second = h.create(after=(consumer,))
    h.sweep()
    assert h.get(consumer).state is state
    assert h.get(second).state is (State.WAITING if rule == "any" else State.CANCELLED)
    assert dense(h, consumer)
    assert dense(h, second)


def test_what_waits_for_a_run_that_has_not_ended_is_released_by_its_end(h: Harness, caller: Calling) -> None:
    h.create()
    before = h.claimed()
    consumer = caller.follow(before.id)
    caller.connection.commit()
    h.sweep()
    assert h(h.engine.records.sweeps.checks(0, 10)) == []
    h.succeed(before)
    assert h.get(consumer).state is State.QUEUED
    assert h.moves(consumer) == ["create", "release"]


def test_what_waits_for_several_begins_when_all_have_ended(h: Harness, caller: Calling) -> None:
    h.create()
    h.create()
    first, second = h.claim(2)
    consumer = caller.follow(first.id, second.id)
    h.succeed(first)
    caller.connection.commit()
    h.sweep()
    assert h.get(consumer).state is State.WAITING
    h.succeed(second)
    assert h.get(consumer).state is State.QUEUED


def test_a_transaction_that_is_rolled_back_leaves_nothing(h: Harness, caller: Calling) -> None:
    h.create()
    before = h.claimed()
    consumer = caller.follow(before.id)
    caller.connection.rollback()
    h.succeed(before)
    h.sweep()
    assert h(h.engine.records.runs.seqs([consumer])) == {}
    assert h(h.engine.records.sweeps.checks(0, 10)) == []


def test_a_check_stays_while_the_end_of_a_predecessor_is_under_way(h: Harness, caller: Calling, emptied_postgres: str) -> None:
    """An end that began before the commit does not find the wait; so whoever settles must not miss that end."""
    h.create()
    before = h.claimed()
    consumer = caller.follow(before.id)
    with psycopg.connect(emptied_postgres) as ending:
        run_sync(h.engine.on(BorrowedPostgres(ending)).report(before.id, Succeed(token=before.token)))
        caller.connection.commit()
        h.sweep()
        assert h.get(consumer).state is State.WAITING
        assert h(h.engine.records.sweeps.checks(0, 10)) != []
        ending.commit()
    h.sweep()
    assert h.get(consumer).state is State.QUEUED
    assert h.moves(consumer) == ["create", "release"]


def test_a_run_that_an_open_transaction_waits_for_is_claimed_patched_cancelled_and_dispatched(h: Harness, caller: Calling) -> None:
    queued, later, unwanted = h.create(), h.create(due_at=h.clock.now() + 1_000), h.create(due_at=h.clock.now() + 90_000)
    waiting = h.create(after=(queued,))
    caller.follow(queued, later, unwanted, waiting)
    assert h(h.engine.patch(queued, priority=5)).state is State.QUEUED
    h(h.engine.cancel(unwanted))
    h.sweep(after=1_000)
    assert {run.id for run in h.claim(2)} == {queued, later}
    assert h(h.engine.patch(waiting, priority=5)).state is State.WAITING
    h.succeed(h.get(queued))
    assert h.get(waiting).state is State.QUEUED


def test_retention_passes_over_what_an_open_transaction_waits_for(h: Harness, caller: Calling) -> None:
    done, old = h.create(key=Key("mine")), h.create()
    for run in h.claim(2):
        h.succeed(run)
    h.clock.advance(8 * 24 * 3600 * 1000)
    caller.follow(done)
    assert h(h.engine.prune()) == 1
    assert set(h(h.engine.records.runs.seqs([done, old]))) == {done}
    caller.connection.rollback()
    assert h(h.engine.prune()) == 1


def test_retention_passes_over_keys_that_an_open_transaction_asks_for(h: Harness, caller: Calling) -> None:
    h.create(key=Key("mine"))
    h.create(key=Key("short", ttl=1_000))
    h.create(key=Key("other", ttl=1_000))
    for run in h.claim(3):
        h.succeed(run)
    h.clock.advance(8 * 24 * 3600 * 1000)
    caller.follow(key=Key("mine"))
    caller.follow(key=Key("short", ttl=1_000))
    assert h(h.engine.prune()) == 2
    caller.connection.rollback()
    assert h(h.engine.prune()) == 1
    assert caller.connection.execute("select count(*) from job_keys where scope <> 'claim'").fetchone() == (0,)


# What somebody has locked by hand


def test_a_sweep_recovers_all_that_is_lost_but_what_is_locked(h: Harness, stranger: Connection) -> None:
    h.define("once", max_attempts=1)
    ids = [h.create("once" if n % 2 else "mail") for n in range(200)]
    behind = [h.create(after=(run,)) for run in ids[:4]]
    assert len(h.claim(200)) == 200
    lock(stranger, ids[10], behind[1], behind[2])  # the first of these is lost itself, the second would be cancelled, the third is not yet
    h.sweep(after=LEASE + 1)
    left = [run for run in ids if h.get(run).state is State.CLAIMED]
    assert left == [ids[1], ids[10]]
    assert h.get(behind[3]).state is State.CANCELLED
    stranger.rollback()
    h.sweep()
    assert [run for run in ids if h.get(run).state is State.CLAIMED] == []
    assert h.get(behind[1]).state is State.CANCELLED


def test_a_sweep_dispatches_and_looks_later_at_all_but_what_is_locked(h: Harness, stranger: Connection) -> None:
    soon = [h.create(due_at=h.clock.now() + 1_000) for _ in range(3)]
    h.create()
    h.create()
    beating = h.claim(2)
    h.clock.advance(LEASE - 1)
    beat(h, *beating)
    lock(stranger, soon[1], beating[0].id)
    h.sweep(after=2)
    assert [h.get(run).state for run in soon] == [State.QUEUED, State.SCHEDULED, State.QUEUED]
    assert [(h.get(run.id).lease_check_at or 0) > h.clock.now() for run in beating] == [False, True]
    stranger.rollback()
    h.sweep()
    assert h.get(soon[1]).state is State.QUEUED


@pytest.mark.parametrize("overlap", ["queue", "cancel", "skip", "allow"])
def test_schedules_fire_beside_one_whose_run_is_locked(h: Harness, stranger: Connection, overlap: Any) -> None:
    for key in ("locked", "free"):
        h(h.engine.schedule(key, "mail", every="1m", overlap=overlap))
    h.sweep(after=60_000)
    first = {h.get(run.id).schedule: run for run in h.claim(2)}
    locked = h(h.engine.get_schedule("locked"))
    lock(stranger, first[locked.id].id)
    h.clock.advance(60_000)
    h(h.engine.fire_all())
    fired = [h(h.engine.get_schedule(key)).fired for key in ("locked", "free")]
    assert fired == {"queue": [1, 2], "cancel": [1, 2], "skip": [1, 1], "allow": [2, 2]}[overlap]
    stranger.rollback()
    h(h.engine.fire_all())
    found = h(h.engine.get_schedule("locked"))
    assert found.fired + found.skipped == 2


def test_a_verb_on_the_very_run_that_is_locked_says_that_the_store_is_busy(h: Harness, stranger: Connection) -> None:
    run = h.create()
    lock(stranger, run)
    with pytest.raises(StoreBusy):
        h(h.engine.cancel(run))
    stranger.rollback()
    assert h(h.engine.cancel(run)).state is State.CANCELLED


def test_a_group_in_an_open_transaction_holds_up_nobody(h: Harness, caller: Calling) -> None:
    h.create()
    before = h.claimed()
    members = (Member(NewRun("mail"), "a"), Member(NewRun("mail"), "b", ("a",)))
    group = run_sync(caller.engine.create_group(NewGroup(members, "graph", callback=NewRun("mail"), key=Key("g", ttl="forever"))))
    other = h(h.engine.create_group(NewGroup(members, "graph", callback=NewRun("mail"))))
    assert beat(h, before) == ["ok"]
    h.sweep()
    for _ in range(3):
        h.succeed(h.claimed())
    assert h(h.engine.get_group(other.id)).status == "completed"
    caller.connection.commit()
    for _ in range(3):
        h.succeed(h.claimed())
    assert h(h.engine.get_group(group.id)).status == "completed"


# Beside every write


LATER = ("drop_lanes.", "drop_totals.", "claim.after_claim_each")
"""Lanes are removed when no transaction that makes runs is open; as long as one with limits stays, claims go by limits."""


class Beside(Life):
    """A life of which every second run is waited for by a run in a transaction that stays open; those with options are left alone."""

    caller: Calling
    _made = 0

    def create(self, job: str = "job", key: Key | None = None, **fields: Any) -> str:
        run = super().create(job, key, **fields)
        self._made += 1
        if self._made % 2 and "options" not in fields:
            self.caller.follow(run, job="job", after_end="any")
        return run


def by_hand(life: Life, stranger: Connection) -> list[str]:
    """Runs in every state that a sweep or a claim looks at, locked by somebody with a database shell."""
    life(life.engine.define("job", options=Options(backoff=(1_000,), grace=5_000)))
    old = Life.create(life, key=Key("locked"))
    life.succeed(*life.claim())
    lost = Life.create(life)
    life.claim(lease=1_000)
    ids = [old, lost, Life.create(life, due_at=life.clock.now() + 1_000), Life.create(life, after=(lost,)), Life.create(life)]
    lock(stranger, *ids)
    return ids


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_strangers_long_transaction_beside_every_write(
    emptied_postgres: str, stranger: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Whatever the engine can write is written while a transaction is open that waits for some of its runs and has locked others."""
    visits, clock = set[str](), ManualClock(seed=1)
    queries = invariants.with_tables("postgres")
    store = BlockingPostgres(emptied_postgres, clock, queries=queries, settings={"lock_timeout": "2s"})
    life = Beside(store, clock, tmp_path / "ledger")
    life.caller = Calling(Harness(store, clock), stranger)
    ids = by_hand(life, stranger)
    before = [life(life.engine.get(run)) for run in ids]
    monkeypatch.setattr(FAULTS, "on", True)
    monkeypatch.setattr(FAULTS, "hit", visits.add)
    scenario(life)
    monkeypatch.undo()
    assert sorted(visits) == [point for point in fault_points("postgres") if not point.startswith(LATER)]
    assert [life(life.engine.get(run)) for run in ids] == before
    getattr(stranger, end)()
    finish(life)
    snapshot = invariants.read(store)
    invariants.check(snapshot)
    assert snapshot.checks == []
    consumers = [run for run in snapshot.runs.values() if run.payload == '"consumer"']
    assert {run.state for run in consumers} == ({State.SUCCEEDED} if end == "commit" else set())
    life.ledger.close()
    run_sync(store.close())


# Through a real worker


def test_a_transaction_longer_than_a_lease_stops_nothing_and_hides_nothing_lost(postgres_url: str) -> None:
    limiter, clock = Gate(), SystemClock()
    with App(postgres_url) as app, psycopg.connect(postgres_url) as connection:

        @app.job(name="wait", backoff=(0,))
        async def wait(actor: str) -> str:
            await limiter.wait(actor)
            return actor

        @app.job(name="next")
        def after() -> str:
            return "after"

        lost = wait.enqueue("lost")
        ghost(app, lease=500)
        before, bystander = wait.enqueue("before"), wait.enqueue("bystander")
        with working(app, lease=0.8, slots=10):
            limiter.reached(2)
            consumers = [after.options(after=run).enqueue() for run in (before,)]
            with app.transaction(connection):
                consumers += [after.options(after=run).enqueue() for run in (lost, before, bystander)]
            until_ms = clock.now() + 2_000
            until(lambda: min((run.refresh().lease_until or 0) for run in (before, bystander)) > until_ms)
            limiter.reached(3)  # what was lost runs again
            limiter.open()
            assert [ended(run).attempt for run in (before, bystander, lost)] == [1, 1, 2]
            connection.commit()
            assert [ended(run).state for run in consumers] == [State.SUCCEEDED] * 4


def test_a_commit_wakes_those_who_settle(postgres_url: str) -> None:
    """Without a hint the next sweep is a second away at most; so a sweeper is asked what it hears."""

    async def scenario() -> None:
        store = await AsyncPostgres(postgres_url, SystemClock()).open()
        engine = Engine(store, SystemClock())
        await engine.define("mail")
        (before,) = await engine.create([NewRun("mail")])
        assert await engine.wait({SWEEP}, 30) == {SWEEP}  # at first something may have been missed
        while await engine.wait({SWEEP}, 0.1):
            pass
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await engine.on(BorrowedPostgres(connection)).create([NewRun("mail", after=(before.id,))])
            assert await engine.wait({SWEEP}, 0.1) == set()
            await connection.commit()
            assert await engine.wait({SWEEP}, 30) == {SWEEP}
        await store.close()

    asyncio.run(scenario())
