"""Two sessions meet: every move that decides over more than its own row, 60 times each, on separate connections.

On PostgreSQL every statement that writes lingers for a moment (a trigger), so that transactions which start together are in the
same place together: what a lock forgets to order goes wrong in nearly every round, not once in a thousand.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kill_child import InTransaction
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.errors import Cancelled, LeaseLost, NotEditable, NotFound, WindlassError, WrongState
from windlass.machine import Fail, Succeed
from windlass.model import Created, Entry, Failure, Group, Key, Member, NewGroup, NewRun, Options, Receipt, Run, State, WorkerInfo
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

ROUNDS = 60
BOOM = Failure("boom", "it broke")
MANY = WorkerInfo("many", slots=1_000)

Verb = Callable[[Engine], Coroutine[Any, Any, Any]]

_LINGER = """
create function linger() returns trigger language plpgsql as $$
  begin if current_setting('windlass.linger', true) = 'on' then perform pg_sleep(0.002); end if; return null; end $$;
create trigger linger after insert or update on job_runs for each statement execute function linger();
create trigger linger after insert or update on job_keys for each statement execute function linger();
create trigger linger_at_each after delete on job_keys for each row execute function linger();
create trigger linger after insert or update on job_journal for each statement execute function linger();
create trigger linger after insert on job_waits for each statement execute function linger();
create trigger linger after insert or update on job_groups for each statement execute function linger();
create trigger linger after insert on job_lanes for each statement execute function linger();
create trigger linger after insert or update on jobs for each statement execute function linger();
"""


class Arena:
    """Engines that share nothing but the database and the clock, and threads to set them on each other."""

    def __init__(self, open_store: Callable[[ManualClock, str], Store]) -> None:
        self.clock = ManualClock()
        self.stores = [open_store(self.clock, linger) for linger in ("off", "on", "on", "on", "on")]
        self.engine, *self.engines = [Engine(store, self.clock) for store in self.stores]
        self.threads = ThreadPoolExecutor(len(self.engines))
        self(self.engine.define("job"))

    def __call__(self, verb: Coroutine[Any, Any, Any]) -> Any:
        return run_sync(verb)

    def race(self, *verbs: Verb) -> list[Any]:
        """Each verb on an engine and a thread of its own, all at once; what each returned, or the error it raised."""
        return [future.result() for future in self.start(*verbs)]

    def start(self, *verbs: Verb) -> list[Future[Any]]:
        start = threading.Barrier(len(verbs))

        def run(verb: Verb, engine: Engine) -> Any:
            start.wait(10)
            try:
                return run_sync(verb(engine))
            except WindlassError as error:
                return error

        return [self.threads.submit(run, verb, engine) for verb, engine in zip(verbs, self.engines, strict=False)]

    def create(self, count: int = 1, **fields: Any) -> list[str]:
        made: list[Created] = self(self.engine.create([NewRun("job", **fields) for _ in range(count)]))
        return [one.id for one in made]

    def claim(self, count: int = 1, lease: int = 30_000) -> list[Run]:
        runs: list[Run] = self(self.engine.claim(MANY, count=count, lease=lease))
        assert len(runs) == count
        return runs

    def get(self, run_id: str) -> Run:
        run: Run = self(self.engine.get(run_id))
        return run

    def moves(self, run_id: str) -> list[str]:
        return [entry.move for entry in self(self.engine.history(run_id))]

    def finish(self, *ids: str) -> None:
        """Let nothing of this round be in the way of the next."""
        for run_id in ids:
            run = self.get(run_id)
            if run.finished_at is None:
                run = self(self.engine.cancel(run_id))
            if run.state is State.CANCELLING:
                with pytest.raises(Cancelled):
                    self(self.engine.report(run_id, Succeed(token=run.token)))

    def close(self) -> None:
        self.threads.shutdown()
        for store in self.stores:
            run_sync(store.close())


@pytest.fixture(params=["postgres", "file"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "file":
        arena = Arena(lambda clock, _: BlockingSqlite(tmp_path / "windlass.db", clock, synchronous="NORMAL"))
        yield arena
        arena.close()
        return
    yield from _on_postgres(request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_url"))


@pytest.fixture
def post(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Arena]:
    yield from _on_postgres(postgres_server, postgres_url)


def _on_postgres(server: PostgresServer, url: str) -> Iterator[Arena]:
    arena = Arena(lambda clock, linger: BlockingPostgres(url, clock, settings={"windlass.linger": linger}))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_LINGER)
    said = len(server.log)
    yield arena
    arena.close()
    # The store tries again after a deadlock, so nothing else would show that the order of locks is wrong.
    assert "deadlock detected" not in server.log[said:]


def succeed(run: Run) -> Verb:
    return lambda engine: engine.report(run.id, Succeed(token=run.token), seq=run.seq)


def fail(run: Run) -> Verb:
    return lambda engine: engine.report(run.id, Fail(token=run.token, error=BOOM, retry=False), seq=run.seq)


def cancel(run_id: str, **how: Any) -> Verb:
    return lambda engine: engine.cancel(run_id, **how)


def patch(run_id: str, **fields: Any) -> Verb:
    return lambda engine: engine.patch(run_id, **fields)


def beat(run: Run) -> Verb:
    return lambda engine: engine.beat([Held(run.seq, run.token or "")], lease=1_000)


def claim(**how: Any) -> Verb:
    return lambda engine: engine.claim(MANY, **how)


def prune(engine: Engine) -> Coroutine[Any, Any, int]:
    return engine.prune()


def lapse(engine: Engine) -> Coroutine[Any, Any, int]:
    return engine.lapse()


def create(**fields: Any) -> Verb:
    return lambda engine: engine.create([NewRun("job", **fields)])


# Keys


@pytest.mark.parametrize("ttl", ["unfinished", 1_000, "forever"])
def test_two_creators_of_one_key_make_one_run(arena: Arena, ttl: Any) -> None:
    for turn in range(ROUNDS):
        key = Key(f"{turn}", ttl=ttl)
        answers = [made for call in arena.race(create(key=key), create(key=key), create(key=key)) for made in call]
        assert [made.created for made in answers].count(True) == 1
        assert len({made.id for made in answers}) == 1
        assert arena.moves(answers[0].id) == ["create"]


def test_two_creators_of_a_key_that_was_just_freed_make_one_run(arena: Arena) -> None:
    (holder,) = arena.create(key=Key("k"))
    for _ in range(ROUNDS):
        arena(arena.engine.cancel(holder))
        answers = [made for call in arena.race(create(key=Key("k")), create(key=Key("k"))) for made in call]
        assert [made.created for made in answers].count(True) == 1
        assert len({made.id for made in answers} - {holder}) == 1
        holder = answers[0].id
    assert len(arena(arena.engine.runs(state="queued")).runs) == 1


def test_two_creators_of_a_key_whose_time_is_over_make_one_run(arena: Arena) -> None:
    key, made = Key("k", ttl=1_000), set[str]()
    for _ in range(ROUNDS):
        arena.clock.advance(1_000)
        answers = [answer for call in arena.race(create(key=key), create(key=key)) for answer in call]
        assert [answer.created for answer in answers].count(True) == 1
        assert len({answer.id for answer in answers} - made) == 1
        made.add(answers[0].id)


def test_a_key_changes_hands_when_its_holder_ends_meanwhile(arena: Arena) -> None:
    for _ in range(ROUNDS):
        (holder,) = arena.create(key=Key("k"))
        (run,) = arena.claim()
        _, (made,) = arena.race(succeed(run), create(key=Key("k")))
        (again,) = arena(arena.engine.create([NewRun("job", key=Key("k"))]))
        # Either it was asked for before the end, and the key is free only now; or after it, and it has the key.
        assert (made.id == holder, made.created, again.created) in [(True, False, True), (False, True, False)]
        if made.created:
            assert again.id == made.id
        arena.finish(again.id)


class Interrupted:
    """A store on which something else happens right behind the first commit of a verb."""

    def __init__(self, store: Store, verb: str, meanwhile: Callable[[], object]) -> None:
        self.store, self.verb, self.meanwhile = store, verb, [meanwhile]

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        answers = await self.store.batch(verb, statements)
        if verb == self.verb and self.meanwhile:
            self.meanwhile.pop()()
        return answers

    async def close(self) -> None:
        await self.store.close()


def test_the_answer_names_the_run_that_was_made_although_its_key_has_changed_hands(arena: Arena) -> None:
    def end_and_retake() -> None:
        (run,) = arena.claim()
        arena(arena.engine.report(run.id, Succeed(token=run.token)))
        arena.create(key=Key("k"))

    engine = Engine(Interrupted(arena.stores[1], "create", end_and_retake), arena.clock)
    (answer,) = arena(engine.create([NewRun("job", key=Key("k"))]))
    assert answer.created
    assert arena.get(answer.id).state is State.SUCCEEDED


# Followers


def test_the_last_two_predecessors_release_their_dependent_once(arena: Arena) -> None:
    for _ in range(ROUNDS):
        before = arena.create(2)
        (after,) = arena.create(after=tuple(before))
        runs = arena.claim(2)
        arena.race(succeed(runs[0]), succeed(runs[1]))
        assert arena.moves(after) == ["create", "release"]
        assert arena.get(after).state is State.QUEUED
        arena.finish(after)


def test_a_success_and_a_failure_at_once_cancel_their_dependent_once(arena: Arena) -> None:
    for _ in range(ROUNDS):
        before = arena.create(2)
        (after,) = arena.create(after=tuple(before))
        (last,) = arena.create(after=(after,), after_end="any")
        runs = arena.claim(2)
        arena.race(succeed(runs[0]), fail(runs[1]))
        assert arena.moves(after) == ["create", "cancel"]
        assert arena.moves(last) == ["create", "release"]
        arena.finish(last)


@pytest.mark.parametrize(("end", "became"), [(succeed, "release"), (fail, "cancel")])
def test_a_dependent_made_while_its_predecessor_ends_is_not_forgotten(arena: Arena, end: Callable[[Run], Verb], became: str) -> None:
    for _ in range(ROUNDS):
        (before,) = arena.create()
        (run,) = arena.claim()
        (made,), _ = arena.race(create(after=(before,)), end(run))
        assert arena.moves(made.id) == ["create", became]
        arena.finish(made.id)


def test_a_dependent_made_while_its_predecessor_is_cancelled_is_cancelled_too(arena: Arena) -> None:
    for _ in range(ROUNDS):
        (first,) = arena.create()
        (second,) = arena.create(after=(first,))
        (run,) = arena.claim()
        (third,), _ = arena.race(create(after=(second,)), fail(run))
        assert arena.get(second).state is State.CANCELLED
        assert arena.moves(third.id) == ["create", "cancel"]


def test_followers_made_across_each_other_do_not_deadlock(arena: Arena) -> None:
    for _ in range(ROUNDS):
        (first,) = arena.create()
        (second,) = arena.create(after=(first,))
        (third,) = arena.create(after=(second,))
        calls = arena.race(create(after=(first, third)), create(after=(second,)), create(after=(third, second, first)))
        assert [arena.get(made.id).state for (made,) in calls] == [State.WAITING] * 3
        arena.finish(first)


# Claims


def test_a_worker_with_one_slot_never_holds_two_runs(arena: Arena) -> None:
    arena.create(ROUNDS)
    worker = WorkerInfo("one")
    for _ in range(ROUNDS):
        claims = arena.race(*[lambda engine: engine.claim(worker)] * 3)
        held = [run for claim in claims for run in claim]
        assert len(held) == 1
        arena(arena.engine.report(held[0].id, Succeed(token=held[0].token)))


def test_claims_give_each_run_once_and_none_is_empty_while_there_are_runs(arena: Arena) -> None:
    for _ in range(ROUNDS):
        ids = arena.create(8)
        claims = arena.race(*[claim(count=2)] * 4)
        assert [len(claim) for claim in claims] == [2, 2, 2, 2]
        assert sorted(run.id for claim in claims for run in claim) == sorted(ids)
        arena.race(*(succeed(run) for run in claims[0] + claims[1]))
        arena.race(*(succeed(run) for run in claims[2] + claims[3]))


def claim_many(*asked: tuple[WorkerInfo, int]) -> Verb:
    async def claim(engine: Engine) -> list[list[Run]]:
        answers = await engine.claim_many([engine.asking(worker, count=count) for worker, count in asked])
        assert all(isinstance(answer, list) for answer in answers), answers
        return [answer for answer in answers if isinstance(answer, list)]

    return claim


def test_claims_made_together_in_two_places_give_each_run_once_and_each_slot_one(arena: Arena) -> None:
    for _ in range(ROUNDS):
        made = arena.create(12)
        one = WorkerInfo("one")
        calls = [((WorkerInfo(f"a{n}", slots=9), 2), (one, 1), (WorkerInfo(f"b{n}", slots=9), 1)) for n in range(3)]
        answers = arena.race(*(claim_many(*call) for call in calls))
        got = [run.id for answer in answers for runs in answer for run in runs]
        assert len(got) == len(set(got)) == 10
        assert [len(runs) for answer in answers for runs in (answer[0], answer[2])] == [2, 1] * 3
        assert sum(len(answer[1]) for answer in answers) == 1
        arena.finish(*made)


def test_a_claim_asked_twice_at_once_is_one_claim(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create(3)
        nonce = arena.clock.nonce()
        claims = arena.race(*[claim(count=2, nonce=nonce)] * 3)
        held = arena(arena.engine.claim(MANY, count=2, nonce=nonce))
        assert len(held) == 2
        assert all({run.id for run in claim} <= {run.id for run in held} for claim in claims)
        arena.race(*(succeed(run) for run in [*held, *arena.claim()]))


def test_two_dispatchers_queue_each_run_once(arena: Arena) -> None:
    for _ in range(ROUNDS):
        ids = arena.create(4, due_at=arena.clock.now() + 1_000)
        arena.clock.advance(1_000)
        assert sum(arena.race(*[lambda engine: engine.dispatch()] * 3)) == 4
        assert [arena.moves(run_id) for run_id in ids] == [["create", "dispatch"]] * 4
        arena.race(*(succeed(run) for run in arena.claim(4)))


# Leases


def test_a_lapse_or_a_beat_wins_never_both(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create()
        (run,) = arena.claim(lease=1_000)
        arena.clock.advance(1_000)
        lapsed, answer = arena.race(lapse, beat(run))
        kept = arena.get(run.id).token == run.token
        assert (lapsed, answer) in ([(0, ["ok"])] if kept else [(1, ["lost"]), (1, ["unknown"])])  # unknown: while it lapses
        assert ("lapse" in arena.moves(run.id)) is not kept
        arena.finish(run.id)


def test_a_lapse_or_a_report_wins_never_both(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create()
        (run,) = arena.claim(lease=1_000)
        arena.clock.advance(1_000)
        lapsed, answer = arena.race(lapse, succeed(run))
        if lapsed:
            assert isinstance(answer, LeaseLost)
            assert arena.moves(run.id) == ["create", "claim", "lapse"]
        else:
            assert answer == Receipt(run.id, State.SUCCEEDED)
            assert arena.moves(run.id) == ["create", "claim", "succeed"]
        arena.finish(run.id)


def test_a_late_worker_never_touches_the_next_attempt(arena: Arena) -> None:
    arena(arena.engine.define("job", options=Options(backoff=(0,))))
    for _ in range(ROUNDS):
        arena.create()
        (run,) = arena.claim(lease=1_000)
        arena.clock.advance(1_000)
        assert arena(arena.engine.lapse()) == 1
        (current,), answers = arena.race(claim(), late_words(run))
        assert answers == ["lost", LeaseLost, LeaseLost] * 5
        assert arena.get(run.id) == current
        arena.finish(run.id)


def late_words(run: Run) -> Verb:
    """What a worker says that does not know yet that its lease is lost; and what it is told."""

    async def verb(engine: Engine) -> list[Any]:
        answers = list[Any]()
        for _ in range(5):
            answers += await engine.beat([Held(run.seq, run.token or "")])
            for word in (engine.start(run.id, run.token or ""), succeed(run)(engine)):
                try:
                    await word
                except LeaseLost as error:
                    answers.append(type(error))
        return answers

    return verb


def test_a_wait_that_is_settled_after_its_commit_is_over_once(arena: Arena) -> None:
    """The end of a predecessor that is under way at the commit does not find the wait; so whoever settles it must not miss that end."""
    for turn in range(ROUNDS):
        arena.create()
        (run,) = arena.claim()
        good = turn % 2 == 0
        made, *_ = arena.race(
            joined(run.id), succeed(run) if good else fail(run), lambda engine: engine.settle(), lambda engine: engine.settle()
        )
        arena(arena.engine.settle())
        assert arena.moves(made[0].id) == ["create", "release" if good else "cancel"]
        assert arena(arena.engine.records.sweeps.checks(0, 10)) == []
        arena.finish(made[0].id)


def joined(before: str) -> Verb:
    """A run that waits for another, made as in a caller's transaction."""
    return lambda engine: engine.on(InTransaction(engine.records.store)).create([NewRun("job", after=(before,))])


def test_two_sweeps_lapse_a_lease_once(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create(2)
        runs = arena.claim(2, lease=1_000)
        arena.clock.advance(1_000)
        assert sum(arena.race(*[lapse] * 3)) == 2
        assert [arena.moves(run.id) for run in runs] == [["create", "claim", "lapse"]] * 2
        arena.finish(*(run.id for run in runs))


def test_one_of_two_different_reports_counts(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create()
        (run,) = arena.claim()
        answers = arena.race(succeed(run), fail(run))
        assert [isinstance(answer, Receipt) for answer in answers].count(True) == 1
        assert isinstance(answers[0], Receipt) is (arena.get(run.id).state is State.SUCCEEDED)


# Edits


def test_a_cancel_or_a_success_wins_never_both(arena: Arena) -> None:
    for _ in range(ROUNDS):
        arena.create()
        (run,) = arena.claim()
        cancelled, reported = arena.race(cancel(run.id), succeed(run))
        end = arena.get(run.id)
        if end.state is State.SUCCEEDED:
            assert isinstance(cancelled, WrongState)
            assert reported == Receipt(run.id, State.SUCCEEDED)
        else:
            assert (end.state, end.output) == (State.CANCELLED, None)
            assert isinstance(reported, Cancelled)
        assert arena.moves(run.id)[2:] in (["succeed"], ["cancel", "confirm"])


def test_a_cancel_and_a_claim_leave_no_run_to_an_unwarned_worker(arena: Arena) -> None:
    for _ in range(ROUNDS):
        (run_id,) = arena.create()
        cancelled, claimed = arena.race(cancel(run_id), claim())
        assert isinstance(cancelled, Run)
        if claimed:
            assert arena(arena.engine.beat([Held(claimed[0].seq, claimed[0].token)])) == ["stop"]
        assert cancelled.state is (State.CANCELLING if claimed else State.CANCELLED)
        arena.finish(run_id)


def test_a_cancel_of_what_waits_and_a_claim_leave_one_winner(arena: Arena) -> None:
    winners = Counter[str]()
    for _ in range(ROUNDS):
        (run_id,) = arena.create()
        runs, cancelled = arena.race(claim(), cancel(run_id, only=("waiting", "scheduled", "queued")))
        if runs:
            assert isinstance(cancelled, WrongState)
            assert "is in the hands of a worker" in str(cancelled)
        else:
            assert cancelled.state is State.CANCELLED
        winner = arena.get(run_id).state.value
        assert winner == ("claimed" if runs else "cancelled")
        winners[winner] += 1
        arena.finish(run_id)
    assert sum(winners.values()) == ROUNDS


def test_a_patch_counts_before_the_claim_or_not_at_all(arena: Arena) -> None:
    for _ in range(ROUNDS):
        (run_id,) = arena.create(payload=1)
        patched, claimed = arena.race(patch(run_id, payload=2), claim())
        claimed = claimed or arena.claim()
        assert claimed[0].payload == arena.get(run_id).payload == ("1" if isinstance(patched, NotEditable) else "2")
        arena.finish(run_id)


def test_two_patches_both_count(arena: Arena) -> None:
    (run_id,) = arena.create(payload=0)
    for turn in range(ROUNDS):
        arena.race(patch(run_id, payload=turn), patch(run_id, priority=turn))
        run = arena.get(run_id)
        assert (run.payload, run.priority, run.rev) == (str(turn), turn, 2 * turn + 3)


def test_a_rerun_meets_the_end_of_retention(arena: Arena) -> None:
    for _ in range(ROUNDS // 6):
        (run_id,) = arena.create()
        arena(arena.engine.cancel(run_id))
        arena.clock.advance(arena.engine.limits.keep_others + 1)
        rerun, *pruned = arena.race(lambda engine, old=run_id: engine.rerun(old), prune, prune)  # type: ignore[misc]
        assert sum(pruned) >= 1
        assert isinstance(rerun, Created | NotFound)
        if isinstance(rerun, Created):
            assert arena.moves(rerun.id) == ["create"]
            arena.finish(rerun.id)


def test_keys_are_retaken_while_their_runs_are_pruned(arena: Arena) -> None:
    for _ in range(ROUNDS // 6):
        keys = [Key(f"{n}") for n in range(6)]
        made = [arena.create(key=key)[0] for key in reversed(keys)]  # so that the order of the runs is not that of the keys
        for run_id in made:
            arena(arena.engine.cancel(run_id))
        arena.clock.advance(arena.engine.limits.keep_others + 1)
        _, answers = arena.race(prune, lambda engine, keys=keys: engine.create([NewRun("job", key=key) for key in keys]))  # type: ignore[misc]
        assert [answer.created for answer in answers] == [True] * 6
        arena.finish(*(answer.id for answer in answers))


# Definitions and lanes


def test_no_run_is_made_from_a_definition_that_was_replaced_before_it_was_asked_for(arena: Arena) -> None:
    replaced, over = 0, False
    made = list[tuple[int, str]]()

    async def define(engine: Engine) -> None:
        nonlocal replaced, over
        while replaced < ROUNDS or len(made) < ROUNDS:
            await engine.define("job", payload={"edition": replaced + 1})
            replaced += 1
        over = True

    async def make(engine: Engine) -> None:
        while not over:
            known = replaced
            made.append((known, (await engine.create([NewRun("job")]))[0].id))

    arena.race(define, make, make)
    for known, run_id in made:
        assert json.loads(arena.get(run_id).payload).get("edition", 0) >= known


def test_nobody_misses_a_lane_that_was_made_meanwhile(arena: Arena) -> None:
    for turn in range(ROUNDS):
        made = list[str]()
        a, b, found = arena.race(define_and_create(f"a{turn}", made), define_and_create(f"b{turn}", made), claim_until(made, 2))
        assert sorted(found) == sorted((a, b))


def define_and_create(name: str, made: list[str]) -> Verb:
    async def verb(engine: Engine) -> str:
        await engine.define(name)
        (run,) = await engine.create([NewRun(name)])
        made.append(run.id)
        return run.id

    return verb


def claim_until(made: list[str], count: int) -> Verb:
    async def verb(engine: Engine) -> list[str]:
        found = list[str]()
        while len(made) < count:
            found += [run.id for run in await engine.claim(MANY)]
        return found + [run.id for run in await engine.claim(MANY, count=count)]

    return verb


# The tail


def read_on(engine: Engine, cursor: str | None) -> tuple[list[Entry], str]:
    """All entries there are behind a cursor, in small pages."""
    entries = list[Entry]()
    while True:
        page = run_sync(engine.tail(cursor, count=3))
        entries, cursor = entries + page.entries, page.cursor
        if not page.entries:
            return entries, page.cursor


def test_the_tail_has_no_gap_and_no_repeat_while_others_write(arena: Arena) -> None:
    writing = 3

    async def write(engine: Engine) -> None:
        nonlocal writing
        for _ in range(ROUNDS // 3):
            await engine.create([NewRun("job")] * 2)
            runs = await engine.claim(MANY, count=1)
            await engine.report(runs[0].id, Succeed(token=runs[0].token))
        writing -= 1

    async def read(engine: Engine) -> list[Entry]:
        entries, cursor = list[Entry](), None
        while writing:
            page = await engine.tail(cursor, count=3)
            entries, cursor = entries + page.entries, page.cursor
        return entries + read_on(engine, cursor)[0]

    *_, entries = arena.race(write, write, write, read)
    seen = Counter((entry.run, entry.rev) for entry in entries)
    assert set(seen.values()) == {1}
    assert len(seen) == ROUNDS * (2 + 2)  # two creations, a claim and a success in each turn


def test_the_tail_waits_for_nobody_and_forgets_nobody(post: Arena, postgres_url: str) -> None:
    """A transaction that stays open for long neither holds the others' entries back nor loses its own."""
    post.create(2)
    entries, cursor = read_on(post.engine, None)
    with psycopg.connect(postgres_url) as late:
        late.execute(
            "insert into job_journal (run, rev, at, move, state, attempt) "
            "select seq, 2, 1, 'late', state, attempt from job_runs order by seq limit 1"
        )
        for _ in range(ROUNDS):
            post.create(2)
            more, cursor = read_on(post.engine, cursor)
            assert [entry.move for entry in more] == ["create"] * 2
            entries += more
        late.commit()
    more, cursor = read_on(post.engine, cursor)
    assert [entry.move for entry in more] == ["late"]
    assert set(Counter((entry.run, entry.rev) for entry in entries + more).values()) == {1}
    assert read_on(post.engine, cursor)[0] == []


# Forced: a third session holds the row until both wait for it


class Gate:
    """A session of its own that holds rows, and knows when others wait for them."""

    def __init__(self, url: str) -> None:
        self._holding, self._looking = psycopg.connect(url), psycopg.connect(url, autocommit=True)

    def hold(self, statement: str, *values: object) -> None:
        self._holding.execute(statement.encode(), values)

    def open_when(self, waiting: int, racing: Sequence[Future[Any]]) -> list[Any]:
        """Let go as soon as so many wait, or have not had to; then what the others did."""
        while self._waiting() + sum(future.done() for future in racing) < waiting:
            assert self._holding.info.transaction_status
        self._holding.commit()
        return [future.result() for future in racing]

    def _waiting(self) -> int:
        found = self._looking.execute(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        return int(found.fetchone()[0])  # type: ignore[index]

    def close(self) -> None:
        self._holding.close()
        self._looking.close()


@pytest.fixture
def gate(post: Arena, postgres_url: str) -> Iterator[Gate]:
    gate = Gate(postgres_url)
    yield gate
    gate.close()


def test_both_wait_for_a_key_and_one_gets_it(post: Arena, gate: Gate) -> None:
    (holder,) = post.create(key=Key("k"))
    for _ in range(ROUNDS // 3):
        post(post.engine.cancel(holder))
        gate.hold("select 1 from job_keys where key = 'k' for update")
        answers = [made for call in gate.open_when(2, post.start(create(key=Key("k")), create(key=Key("k")))) for made in call]
        assert [made.created for made in answers].count(True) == 1
        holder = answers[0].id


def test_both_wait_for_a_dependent_and_it_is_released_once(post: Arena, gate: Gate) -> None:
    for _ in range(ROUNDS // 3):
        before = post.create(2)
        (after,) = post.create(after=tuple(before))
        runs = post.claim(2)
        gate.hold("select 1 from job_runs where id = %s for update", after)
        gate.open_when(2, post.start(succeed(runs[0]), succeed(runs[1])))
        assert post.moves(after) == ["create", "release"]
        post.finish(after)


def test_a_creation_waits_for_an_end_that_is_not_yet_committed(post: Arena, gate: Gate) -> None:
    for _ in range(ROUNDS // 3):
        (before,) = post.create()
        gate.hold("update job_runs set state = 'succeeded', finished_at = created_at, started_at = created_at where id = %s", before)
        (((made,),)) = gate.open_when(1, post.start(create(after=(before,))))
        assert post.moves(made.id) == ["create", "release"]
        post.finish(made.id)


def test_a_claim_goes_round_a_run_that_somebody_holds(post: Arena, gate: Gate) -> None:
    held, free = post.create(2)
    gate.hold("select 1 from job_runs where id = %s for update", held)
    assert [run.id for run in post.claim()] == [free]
    gate.open_when(0, [])
    assert [run.id for run in post.claim()] == [held]


# Groups


def group_of(arena: Arena, *after: str, kind: Any = "graph", on_failure: Any = "stop") -> tuple[Group, list[Run]]:
    """A group of members 0, 1, ..., each with the numbers of those it waits for, and a callback; and its runs."""
    members = tuple(Member(NewRun("job"), str(n), tuple(others.split())) for n, others in enumerate(after))
    group: Group = arena(arena.engine.create_group(NewGroup(members, kind, on_failure, NewRun("job"))))
    return group, arena(arena.engine.members(group.id))


def ended(arena: Arena, group: Group) -> Group:
    """The group, which must have ended and have called its callback once."""
    found: Group = arena(arena.engine.get_group(group.id))
    assert found.finished_at is not None, f"a stuck group: {found}"
    assert arena.moves(group.callback or "")[:2] == ["create", "release"]
    assert found.succeeded + found.failed + found.cancelled == found.total
    arena.finish(group.callback or "")
    return found


def cancel_group(group: Group) -> Verb:
    return lambda engine: engine.cancel_group(group.id)


@pytest.mark.parametrize("last", ["ss", "sf", "ff", "ssss"])
def test_the_last_members_that_end_together_end_their_group(arena: Arena, last: str) -> None:
    for _ in range(ROUNDS):
        group, _ = group_of(arena, *("" for _ in last))
        runs = arena.claim(len(last))
        arena.race(*(succeed(run) if end == "s" else fail(run) for end, run in zip(last, runs, strict=True)))
        found = ended(arena, group)
        assert (found.succeeded, found.failed) == (last.count("s"), last.count("f"))
        assert found.status == ("partial" if "f" in last else "completed")


@pytest.mark.parametrize("on_failure", ["stop", "continue", "skip"])
@pytest.mark.parametrize("sides", ["ss", "sf"])
def test_the_two_sides_of_a_diamond_that_end_together_decide_over_its_end_once(arena: Arena, sides: str, on_failure: Any) -> None:
    for _ in range(ROUNDS):
        # The end is made first, so that the order of creation is not that of the waits.
        group, (end, _, _, _) = group_of(arena, "1 2", "3", "3", "", on_failure=on_failure)
        arena(succeed(*arena.claim(1))(arena.engine))
        runs = arena.claim(2)
        arena.race(*(succeed(run) if side == "s" else fail(run) for side, run in zip(sides, runs, strict=True)))
        if sides == "ss" or on_failure == "continue":
            assert arena.moves(end.id) == ["create", "release"]
            arena(succeed(*arena.claim(1))(arena.engine))
            assert ended(arena, group).succeeded == 2 + sides.count("s")
        else:
            assert arena.moves(end.id) == ["create", "cancel" if on_failure == "stop" else "skip"]
            assert ended(arena, group).cancelled == 1


@pytest.mark.parametrize("on_failure", ["stop", "continue", "skip"])
def test_a_failure_and_a_cancel_of_the_whole_group_meet(arena: Arena, on_failure: Any) -> None:
    for _ in range(ROUNDS):
        # Each waits for one that was made after it, so that the failure goes through the runs against their order.
        group, members = group_of(arena, "1", "2", "3", "", on_failure=on_failure)
        (run,) = arena.claim(1)
        arena.race(fail(run), cancel_group(group), cancel(members[0].id), cancel_group(group))
        arena(arena.engine.cancel_group(group.id)) if not arena(arena.engine.get_group(group.id)).finished_at else None
        arena.finish(run.id)
        found = ended(arena, group)
        assert found.cancelled == 4 - found.failed
        assert {arena.get(member.id).rev for member in members[:2]} == {2}  # each was ended once


def test_a_release_and_a_cancel_of_the_whole_group_leave_nothing_behind(arena: Arena) -> None:
    for _ in range(ROUNDS):
        group, members = group_of(arena, "", "0", "1", on_failure="continue")
        (run,) = arena.claim(1)
        arena.race(succeed(run), cancel_group(group), claim(count=5))
        for member in members:
            arena.finish(member.id)
        found = ended(arena, group)
        assert found.succeeded + found.cancelled == 3


def create_group(new: NewGroup) -> Verb:
    return lambda engine: engine.create_group(new)


def rerun_group(group: Group, key: Key) -> Verb:
    return lambda engine: engine.rerun_group(group.id, key=key)


def test_a_group_that_is_asked_for_twice_at_once_is_made_once(arena: Arena) -> None:
    for turn in range(ROUNDS):
        key = Key(f"{turn}", ttl="forever", on_duplicate="compare")
        new = NewGroup((Member(NewRun("job")), Member(NewRun("job"))), "sequential", key=key)
        made = arena.race(*[create_group(new)] * 3)
        assert len({group.id for group in made}) == 1
        arena(arena.engine.cancel_group(made[0].id))
        again = arena.race(*[rerun_group(made[0], Key(f"again {turn}", ttl="forever"))] * 3)
        assert len({group.id for group in again}) == 1
        arena(arena.engine.cancel_group(again[0].id))
    assert len(arena(arena.engine.groups(count=1_000))) == 2 * ROUNDS
    assert len(arena(arena.engine.runs(count=1_000)).runs) == 4 * ROUNDS


def test_two_who_prune_the_last_members_of_a_group_remove_it(arena: Arena) -> None:
    for _ in range(ROUNDS):
        group, members = group_of(arena, "", "")
        arena(arena.engine.cancel_group(group.id))
        arena.finish(group.callback or "")
        arena.race(*(lambda engine, seq=member.seq: engine.records.retention.prune([seq], 0) for member in members))
        assert arena(arena.engine.records.groups.find(group.id)) is None
