"""Every move of a set in SQL does to each row what `step` does to the run, on both stores, and leaves every other row alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.invariants import CLEAR, Closed, Moved, Snapshot, clear, read, with_tables
from tests.machine.test_machine import HOUR, START, commands, durations, lengths, runs, stepped, times, words
from tests.tiers import long
from windlass.clock import ManualClock
from windlass.errors import WindlassError
from windlass.limiters import SKEW, Candidate, Limiter, Need, Selector, limiter_key, parts_of, window
from windlass.machine import (
    ENDED,
    LIVE,
    Abandon,
    Beat,
    Cancel,
    Claim,
    Command,
    Dispatch,
    Expire,
    Fail,
    Lapse,
    Patch,
    Refuse,
    Release,
    Requeue,
    Skip,
    Snooze,
    Start,
    Succeed,
    begin,
    step,
)
from windlass.model import Failure, Policy, Rate, Resource, Run, State
from windlass.store.base import Statement, Store, run_sync
from windlass.store.creation import Creation, Kind, NewRow
from windlass.store.records import Change, Held, MoveResult, ReadyQueue, Records
from windlass.store.records.claims import ClaimStamp, ClaimTerms, Head, Scan
from windlass.store.records.limiters import Usage, within
from windlass.store.rows import error_text, policy_text

NOBODY = Beat(token="nobody's", lease=1)
READY = (State.QUEUED, State.SCHEDULED)
MARK, FOLLOW = "mark-of-this-batch", "mark-of-its-consumers"
COLUMNS = (*Run.__struct_fields__, "mark")
OWN = {
    **CLEAR,
    "put_run": f"insert into job_runs ({', '.join(COLUMNS)}) values ({', '.join(f':{name}' for name in COLUMNS)})",
    "put_attempt": "insert into job_attempts (run, n, id, outcome, answer, finished_at, payload) "
    "values (:run, :n, :id, 'failed', 'queued', 1, :payload)",
    "own_payloads": "select run, n, payload from job_attempts order by run, n",
    "put_wait": "insert into job_waits (run, predecessor, rule) values (:run, :predecessor, :rule)",
    "put_key": "insert into job_keys (scope, key, run, unfinished, until) values ('claim', :key, :run, 0, :until)",
    "put_limiter": "insert into job_limiters (key, resource, wake_at, used_at) values (:key, :resource, null, 0)",
    "put_hold": "insert into job_holds (key, run, token, weight) values (:key, :run, :token, :weight)",
    "put_slot": "insert into job_slots (id, key, token, weight, state, lease, lease_until, created_at) "
    "values (:id, :key, 'a', 1, 'held', 1, 1, 1)",
    "drop_slots": "delete from job_slots where key = :key",
    "put_rate": "insert into job_rates (key, n, tat) values (:key, 0, :tat)",
    "own_holds": "select key, run, token, weight from job_holds order by key, run",
    "own_rates": "select key, tat from job_rates where n = 0 order by key",
    "own_limiters": "select key, wake_at from job_limiters order by key",
}

Waits = dict[int, tuple[str, tuple[int, ...]]]


class Table:
    """A store whose rows a test writes itself."""

    def __init__(self, store: Store) -> None:
        self.store, self.records = store, Records(store)

    def fill(self, rows: Sequence[Run], waits: Waits | None = None) -> None:
        clear(self.store)
        put = [Statement("put_run", _row(run)) for run in rows]
        for seq, (rule, before) in (waits or {}).items():
            put += [Statement("put_wait", {"run": seq, "predecessor": number, "rule": rule}) for number in before]
        run_sync(self.store.batch("put", put))

    def read(self) -> Snapshot:
        return read(self.store)

    def expect(self, expected: dict[int, Run], journal: set[tuple[Any, ...]]) -> Snapshot:
        """Every row is as expected, and the journal has just these entries: one for each row that moved."""
        found = self.read()
        assert found.runs == expected
        entries = [entry for group in found.journal.values() for entry in group]
        assert len(entries) == len(journal)
        assert {_told(entry) for entry in entries} == journal
        return found


def _row(run: Run) -> dict[str, Any]:
    row = asdict(run) | {"policy": policy_text(run.policy), "error": error_text(run.error), "mark": f"old{run.seq}"}
    return row | {"state": run.state.value}


def _told(entry: Moved) -> tuple[Any, ...]:
    return entry.run, entry.rev, entry.at, entry.move, entry.state, entry.attempt, entry.worker


def _entry(before: Run, after: Run, move: str, now: int) -> tuple[Any, ...]:
    """What the journal must say of a move: which attempt it concerned, and who had it."""
    return after.seq, before.rev + 1, now, move, after.state.value, before.attempt, after.worker if move == "claim" else before.worker


@pytest.fixture(scope="module", params=["memory", pytest.param("postgres", marks=long)])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    store = _open(request)
    yield Table(store)
    run_sync(store.close())


def _open(request: pytest.FixtureRequest) -> Store:
    if request.param == "memory":
        from windlass.store.sqlite import BlockingSqlite

        return BlockingSqlite(":memory:", ManualClock(), queries=with_tables("sqlite", **OWN))
    from windlass.store.postgres import BlockingPostgres

    url = request.getfixturevalue("postgres_server").create_database("set_moves")
    return BlockingPostgres(url, ManualClock(), queries=with_tables("postgres", **OWN))


examples = settings(max_examples=settings().max_examples // 2)


def sets(*states: State, limit: int = 5) -> st.SearchStrategy[list[Run]]:
    """Some runs, numbered from 1; their tokens are few, so that one run's stale token is another's right one."""
    return st.integers(1, limit).flatmap(lambda count: st.tuples(*(runs(*states, seq=seq) for seq in range(1, count + 1)))).map(list)


@st.composite
def held(draw: Callable[..., Any], *states: State) -> tuple[list[Run], list[Held]]:
    """Some runs, and what workers believe to hold of them: rightly, wrongly, or not at all."""
    rows = draw(sets(*states))
    tokens = [draw(st.sampled_from([run.token, run.token, "stale", None])) for run in rows]
    return rows, [Held(run.seq, token) for run, token in zip(rows, tokens, strict=True) if token is not None]


def after_each(rows: Sequence[Run], asked: dict[int, Command], now: int) -> tuple[dict[int, Run], list[Run]]:
    """The oracle: each run as `step` leaves it, and those that moved as they were before."""
    expected, moved = {}, []
    for run in rows:
        after = stepped(run, asked[run.seq], now) if run.seq in asked else run
        expected[run.seq] = run if isinstance(after, WindlassError) else after
        if expected[run.seq] is not run:
            moved.append(run)
    return expected, moved


def entries(moved: Sequence[Run], expected: dict[int, Run], move: str, now: int) -> set[tuple[Any, ...]]:
    return {_entry(run, expected[run.seq], move, now) for run in moved}


def _place(run: Run) -> tuple[int, int, int]:
    return run.priority_key, run.position, run.seq


def _head(run: Run, lane: int | None = None) -> Head:
    return Head(
        run.seq, run.priority_key, run.position, run.lane if lane is None else lane, run.due_at, run.keys, len(run.payload.encode())
    )


# Create


class New(NamedTuple):
    """A run that is asked for: what it has in common with others, and what it has for itself."""

    due_at: int | None
    waits: bool
    kind: tuple[Any, ...]  # job, max_runtime, policy, retry_of, keep
    own: tuple[Any, ...]  # payload, schedule, instant, keys, meta


news = st.builds(
    New,
    st.none() | times,
    st.booleans(),
    st.tuples(words, st.none() | lengths, st.sampled_from([Policy(), Policy(grace=1)]), st.none() | words, st.none() | lengths),
    st.tuples(st.sampled_from(["{}", '"é"']), st.none() | st.integers(1, 9), st.none() | times, st.none() | words, st.none() | words),
)


@examples
@given(st.lists(news, min_size=1, max_size=5), st.none() | st.integers(-2, 2), times)
def test_create(table: Table, asked: list[New], aging_priority: int | None, now: int) -> None:
    """Every row is stored as `begin` decided, with all its columns, and the rest are those of a run that nothing has happened to."""
    table.fill([])
    rows: dict[Kind, list[NewRow]] = defaultdict(list)
    expected = {}
    for index, (due_at, waits, (job, max_runtime, policy, retry_of, keep), own) in enumerate(asked):
        state, due, position = begin(now, due_at, waits=waits, index=index, head_start=aging_priority or 0)
        payload, schedule, instant, keys, meta = own
        common = (job, "mail", 2, -1, 3, max_runtime, policy_text(policy), retry_of)
        kind = Kind(state.value, *common, aging_priority=aging_priority, keep=keep)
        rows[kind].append(NewRow(f"run{index}", position, due, payload, schedule=schedule, instant=instant, keys=keys, meta=meta))
        expected[f"run{index}"] = Run(
            seq=0, id=f"run{index}", rev=1, state=state, job=job, queue="mail", lane=2, priority_key=-1, position=position, payload=payload,
            due_at=due, created_at=now, max_attempts=3, max_runtime=max_runtime, policy=policy, retry_of=retry_of, schedule=schedule,
            instant=instant, keys=keys, aging_priority=aging_priority, keep=keep, meta=meta,
        )  # fmt: skip
    run_sync(table.records.creations.create(Creation(now, list(expected), rows), MARK))
    found = table.read()
    assert {run.id: replace(run, seq=0) for run in found.runs.values()} == expected
    told = {_told(entry) for moves in found.journal.values() for entry in moves}
    assert told == {(run.seq, 1, now, "create", run.state.value, 1, None) for run in found.runs.values()}


# Claim


@examples
@given(
    rows=sets(State.QUEUED, State.QUEUED, State.SCHEDULED, State.RUNNING, State.SUCCEEDED),
    left_out=st.sets(st.integers(1, 5), max_size=2),
    moved_away=st.sets(st.integers(1, 5), max_size=1),
    count=st.integers(1, 4),
    lease=lengths,
    stale=st.sampled_from([False, False, False, True]),
    slot=st.sampled_from([None, 0]),
    worker=st.sampled_from(["w1", "w2", "new"]),
    nonce=st.sampled_from([None, "mine", "another's"]),
    now=times,
)
def test_claim(
    table: Table,
    rows: list[Run],
    left_out: set[int],
    moved_away: set[int],
    count: int,
    lease: int,
    stale: bool,
    slot: int | None,
    worker: str,
    nonce: str | None,
    now: int,
) -> None:
    table.fill(rows)
    count = 1 if slot == 0 else count
    if nonce == "another's":
        run_sync(table.store.batch("put", [Statement("put_key", {"key": "fresh", "run": "another's", "until": now + HOUR})]))
    heads = [_head(run, lane=3 - run.lane if run.seq in moved_away else run.lane) for run in rows if run.seq not in left_out]
    ready = [run for run in rows if run.state is State.QUEUED and run.seq not in left_out | moved_away]
    ready.sort(key=_place)
    busy = slot == 0 and any((run.worker, run.slot) == (worker, slot) for run in rows)
    chosen = [] if busy or stale or nonce == "another's" else ready[:count]
    claim = Claim(grant="fresh", worker=worker, lease=lease, slot=slot)
    expected, moved = after_each(rows, {run.seq: claim for run in chosen}, now)
    grab = ClaimTerms("fresh", "mine" if nonce else None, worker, slot, lease, count)
    taken = run_sync(table.records.claims.claim([(heads, [grab])], ClaimStamp("fresh", int(stale), now, now + HOUR))).runs
    assert taken == [expected[run.seq] for run in chosen]
    found = table.expect(expected, entries(moved, expected, "claim", now))
    assert {key.run for key in found.keys.values()} == ({nonce} if nonce else set())


@examples
@given(
    rows=sets(State.QUEUED, State.QUEUED, State.QUEUED, State.SCHEDULED, State.RUNNING),
    moved_away=st.sets(st.integers(1, 5), max_size=1),
    asked=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, 0]), st.booleans()), min_size=2, max_size=3),
    stale=st.sampled_from([False, False, False, True]),
    now=times,
)
def test_claim_each(
    table: Table, rows: list[Run], moved_away: set[int], asked: list[tuple[int, int | None, bool]], stale: bool, now: int
) -> None:
    """Each gets the runs at its own numbers; those of one that may take nothing stay."""
    table.fill(rows)
    grabs = [
        ClaimTerms(f"token {n}", f"call {n}" if called else None, f"w{n + 1}", slot, 1_000 * (n + 1), 1 if slot == 0 else count)
        for n, (count, slot, called) in enumerate(asked)
    ]
    if grabs[0].call is not None:  # somebody else has claimed under its nonce
        run_sync(table.store.batch("put", [Statement("put_key", {"key": "token 0", "run": "another's", "until": now + HOUR})]))
    ready = [run for run in rows if run.state is State.QUEUED and run.seq not in moved_away]
    ready.sort(key=_place)
    commands, at = dict[int, Command](), 0
    for n, grab in enumerate(grabs):
        busy = grab.slot == 0 and any((run.worker, run.slot) == (grab.worker, 0) for run in rows)
        if not (stale or busy or (n == 0 and grab.call is not None)):
            claim = Claim(grant=grab.token, worker=grab.worker, lease=grab.lease, slot=grab.slot)
            commands |= {run.seq: claim for run in ready[at : at + grab.limit]}
        at += grab.limit
    expected, moved = after_each(rows, commands, now)
    heads = [_head(run, lane=3 - run.lane if run.seq in moved_away else run.lane) for run in rows]
    taken = run_sync(table.records.claims.claim([(heads, grabs)], ClaimStamp("fresh", int(stale), now, now + HOUR))).runs
    assert taken == [expected[run.seq] for run in ready if run.seq in commands]
    found = table.expect(expected, entries(moved, expected, "claim", now))
    calls = {grab.call for grab in grabs if grab.call is not None} - {"call 0"}
    assert {key.run for key in found.keys.values()} == calls | ({"another's"} if grabs[0].call is not None else set())


@examples
@given(
    rows=sets(State.QUEUED, State.QUEUED, State.QUEUED, State.SCHEDULED, State.CLAIMED),
    lanes=st.sets(st.integers(1, 4)),
    shut=st.sets(st.integers(1, 3)),
    behind=st.integers(0, 5),
    count=st.integers(1, 4),
    worker=st.sampled_from(["w1", "w2", "new"]),
)
def test_heads(table: Table, rows: list[Run], lanes: set[int], shut: set[int], behind: int, count: int, worker: str) -> None:
    table.fill(rows)
    place = (-9, 0, 0)
    if behind and behind <= len(rows):
        place = (rows[behind - 1].priority_key, rows[behind - 1].position, rows[behind - 1].seq)
    ready = sorted((run.priority_key, run.position, run.seq) for run in rows if run.state is State.QUEUED and run.lane in lanes)
    look = run_sync(table.records.claims.look([Scan(sorted(lanes), place, count, sorted(shut - lanes))], {worker}))
    (view,) = look.views
    seen = [key for key in ready if key > place][:count]
    end = seen[-1] if len(seen) == count else None
    first = {run.lane: _place(run) for run in sorted(rows, key=_place, reverse=True) if run.state is State.QUEUED and _place(run) > place}
    others = [first[lane] for lane in shut - lanes if lane in first and (end is None or first[lane] < end)]
    assert [(head.priority_key, head.position, head.seq) for head in view.heads] == sorted(seen + others)
    by_seq = {run.seq: run for run in rows}
    assert view.heads == [_head(by_seq[head.seq]) for head in view.heads]
    busy = frozenset({worker}) if any((run.worker, run.slot) == (worker, 0) for run in rows) else frozenset[str]()
    assert (view.end, *look[1:]) == (end, 0, 0, busy, {})


# Within limits


GATES = ("gpu", limiter_key("customer", "1"), limiter_key("customer", "2"))


class Limited(NamedTuple):
    """Runs, what they need, and the limiters they need it from."""

    rows: list[Run]
    needs: dict[int, tuple[Need, ...]]
    resources: dict[str, Resource]
    holds: list[tuple[str, int, str, int]]  # key, run, token, weight
    slots: list[str]
    tats: dict[str, int]


@st.composite
def limited(draw: Callable[..., Any], now: int) -> Limited:
    """Some runs that wait and some that are live, under their holds or under old ones; rates, and direct calls."""
    rows = draw(sets(State.QUEUED, State.QUEUED, State.QUEUED, State.RUNNING, State.CANCELLED, limit=7))
    weights = {"gpu": st.integers(1, 2)}
    needs = {
        run.seq: tuple(Need(key, draw(weights.get(key, st.just(1)))) for key in sorted(draw(st.sets(st.sampled_from(GATES), max_size=2))))
        for run in rows
    }
    rates = st.sampled_from([(), (), (Rate(2, 1_000),), (Rate(1, 1_000, 2),)])
    resources = {name: Resource(name, draw(st.none() | st.integers(0, 3)), draw(rates), HOUR, 1, 1) for name in ("gpu", "customer")}
    holds = [
        (need.key, run.seq, draw(st.sampled_from([run.token or "old", run.token or "old", "stale"])), need.weight)
        for run in rows
        for need in needs[run.seq]
        if run.state is not State.QUEUED or draw(st.booleans())
    ]
    tats = draw(st.dictionaries(st.sampled_from(GATES), st.sampled_from([-1_500, 0, 400, 1_000, 2_500, 100_000]), max_size=2))
    return Limited(
        rows,
        needs,
        resources,
        holds,
        draw(st.lists(st.sampled_from(GATES), max_size=2)),
        {key: (now + at) * 1000 for key, at in tats.items()},
    )


def put_limits(table: Table, case: Limited) -> None:
    table.fill(case.rows)
    put = [Statement("put_limiter", {"key": key, "resource": parts_of(key)[0]}) for key in GATES]
    put += [Statement("put_hold", dict(zip(("key", "run", "token", "weight"), hold, strict=True))) for hold in case.holds]
    put += [Statement("put_slot", {"id": f"slot{n}", "key": key}) for n, key in enumerate(case.slots)]
    put += [Statement("put_rate", {"key": key, "tat": tat}) for key, tat in case.tats.items()]
    run_sync(table.store.batch("put", put))


def all_of(table: Table, name: str) -> list[Any]:
    return [tuple(row) for row in run_sync(table.store.batch("read", [Statement(name)]))[0]]


def occupied(case: Limited, rows: Iterable[Run], holds: Iterable[tuple[str, int, str, int]]) -> Counter[str]:
    """What is occupied of each limiter: by runs that are live under the token of their hold, and by direct calls."""
    live = {(run.seq, run.token) for run in rows if run.state in LIVE}
    found = Counter(case.slots)
    for key, run, token, weight in holds:
        found[key] += weight if (run, token) in live else 0
    return found


@settings(examples, max_examples=3 * examples.max_examples)
@given(
    data=st.data(),
    count=st.integers(1, 5),
    stale=st.sampled_from([False, False, False, True]),
    rival=st.none() | st.tuples(st.sampled_from(GATES), st.integers(0, 2)),
    now=times,
)
def test_claim_within(table: Table, data: st.DataObject, count: int, stale: bool, rival: tuple[str, int] | None, now: int) -> None:
    """Just what was chosen is taken, less what no longer fits because of somebody who was faster; what lacks its key is put aside."""
    case = data.draw(limited(now))
    put_limits(table, case)
    usage = run_sync(table.records.limiters.usage(GATES))
    taken_before = occupied(case, case.rows, case.holds)
    assert usage == {key: Usage(taken_before[key], {0: case.tats[key]} if key in case.tats else {}) for key in GATES}
    choice = Selector(now)
    choice.limiters = {key: Limiter(key, case.resources[parts_of(key)[0]], *usage[key], now) for key in GATES}
    waiting = sorted((run for run in case.rows if run.state is State.QUEUED), key=_place)
    choice.offer([Candidate(run.seq, run.lane, run.due_at, case.needs[run.seq]) for run in waiting], count)
    if rival is not None:  # direct calls come, or end, between the choice and the claim
        case.slots[:] = [key for key in case.slots if key != rival[0] or rival[1]] + [rival[0]] * rival[1]
        if not rival[1]:
            run_sync(table.store.batch("put", [Statement("drop_slots", {"key": rival[0]})]))
        run_sync(table.store.batch("put", [Statement("put_slot", {"id": f"rival{n}", "key": rival[0]}) for n in range(rival[1])]))
    by_seq = {run.seq: run for run in case.rows}
    heads = [_head(by_seq[candidate.seq]) for candidate in choice.runs]
    grab = ClaimTerms("fresh", None, "w", None, 1_000, count)
    sets = within(choice.taken, choice.parked, choice.later, choice.limiters)
    got = run_sync(table.records.claims.claim_within(heads, sets, grab, ClaimStamp("fresh", int(stale), now, now + HOUR))).runs

    beside = occupied(case, case.rows, case.holds)
    late = {row.seq for row in choice.taken if row.capacity is not None and beside[row.key] + row.upto > row.capacity}
    fits = [] if stale else [by_seq[candidate.seq] for candidate in choice.runs if candidate.seq not in late]
    claim = Claim(grant="fresh", worker="w", lease=1_000, slot=None)
    expected, moved = after_each(case.rows, {run.seq: claim for run in fits}, now)
    assert got == [expected[run.seq] for run in fits]
    mine = {(row.key, row.seq): ("fresh", row.weight) for row in choice.taken if expected[row.seq].token == "fresh"}
    holds = {(key, run): (token, weight) for key, run, token, weight in case.holds} | mine
    rows_of = [(key, run, *rest) for (key, run), rest in holds.items()]
    assert all_of(table, "own_holds") == sorted(rows_of)
    then = occupied(case, expected.values(), rows_of)
    for row in choice.parked:
        if row.capacity is None or then[row.key] >= row.capacity:
            expected[row.seq] = replace(expected[row.seq], lane=-row.lane, parked=row.key)
    table.expect(expected, entries(moved, expected, "claim", now))
    assert dict(all_of(table, "own_rates")) == case.tats | _passed(case, mine, now)
    assert dict(all_of(table, "own_limiters")) == {key: choice.later.get(key) for key in GATES}


def _passed(case: Limited, mine: dict[tuple[str, int], tuple[str, int]], now: int) -> dict[str, int]:
    """The buckets of the limiters that runs have passed, where there is a rate."""
    found = {}
    for key in {key for key, _ in mine}:
        for rate in case.resources[parts_of(key)[0]].rates:
            step, room = window(rate)
            before = kept if now * 1000 < (kept := case.tats.get(key, 0)) <= now * 1000 + room + SKEW else now * 1000
            found[key] = before + step * sum(weight for (other, _), (_, weight) in mine.items() if other == key)
    return found


@st.composite
def parked(draw: Callable[..., Any]) -> tuple[list[Run], list[tuple[str, int, str, int]]]:
    """Live runs under holds, right or stale, and queued ones of which some are parked."""
    rows = draw(sets(State.RUNNING, State.RUNNING, State.QUEUED, State.QUEUED, State.QUEUED, State.CANCELLING, limit=8))
    crowded = st.sampled_from([0, 0, 0, 1])  # so that several wait in one place
    rows = [replace(run, lane=draw(crowded) + 1, priority_key=draw(crowded)) for run in rows]
    keys = {run.seq: GATES[draw(crowded)] for run in rows if run.state is State.QUEUED}
    holds = [
        (key, run.seq, draw(st.sampled_from([run.token or "", run.token or "", "stale"])), 1)
        for run in rows
        if run.state in LIVE
        for key in sorted(draw(st.sets(st.sampled_from(GATES), min_size=1, max_size=2)))
    ]
    return [replace(run, lane=-run.lane, parked=keys[run.seq]) if run.seq in keys else run for run in rows], holds


def unparked(rows: Iterable[Run], freed: set[str], count: int) -> dict[int, Run]:
    """The oracle: of each lane the first so many that wait for one of these keys, back in their place."""
    waiting = defaultdict(list)
    for run in sorted(rows, key=_place):
        if run.parked in freed:
            waiting[run.parked, run.lane].append(run)
    return {run.seq: replace(run, lane=-run.lane, parked=None) for some in waiting.values() for run in some[:count]}


@settings(examples, max_examples=2 * examples.max_examples)
@given(case=parked(), ends=st.sets(st.integers(1, 8)), how=st.sampled_from(["succeed", "fail", "lapse"]), now=times)
def test_unpark(table: Table, case: tuple[list[Run], list[tuple[str, int, str, int]]], ends: set[int], how: str, now: int) -> None:
    """Runs that end let go of what they held, and as many as have ended come back, in order, of each lane that waited for it."""
    rows, holds = case
    put_limits(table, Limited(rows, {}, {}, holds, [], {}))
    live = [run for run in rows if run.seq in ends and run.state is State.RUNNING]
    if not live:
        return
    if how == "succeed":
        commands: dict[int, Command] = {run.seq: Succeed(token=run.token, output="1") for run in live}
        done = [(run.seq, run.token or "", "1", None, None) for run in live]
        written = run_sync(table.records.work.succeed(done, MARK, FOLLOW, now, limited=True))
    else:
        commands = {
            run.seq: Fail(token=run.token, error=Failure("boom", "it broke"), next_id=f"next{run.seq}")
            if how == "fail"
            else Expire(token=run.token)
            for run in live
        }
        changes = [Change(run, step(run, commands[run.seq], now), commands[run.seq].name) for run in live]
        written = run_sync(table.records.work.write_back("report", changes, MARK, FOLLOW, now, limited=True))
    expected, moved = after_each(rows, commands, now)
    left = {run.seq for run in live}
    freed = {key for key, run, _, _ in holds if run in left}
    back = unparked(rows, freed, len(live))
    assert written == MoveResult(left, written.released, frozenset(freed))
    assert sorted(ready.queue for ready in written.released) == sorted(run.queue for run in back.values())
    expected |= back
    table.expect(expected, {_entry(run, expected[run.seq], commands[run.seq].name, now) for run in moved})
    assert all_of(table, "own_holds") == sorted(hold for hold in holds if hold[1] not in left)


@examples
@given(case=parked(), keys=st.sets(st.sampled_from(GATES)), count=st.integers(1, 2), now=times)
def test_unpark_keys(table: Table, case: tuple[list[Run], list[tuple[str, int, str, int]]], keys: set[str], count: int, now: int) -> None:
    """What time lets in, or a sweep puts back."""
    rows, holds = case
    put_limits(table, Limited(rows, {}, {}, holds, [], {}))
    assert run_sync(table.records.limiters.parked_keys("", 10)) == sorted({run.parked for run in rows if run.parked is not None})
    back = unparked(rows, keys, count)
    assert run_sync(table.records.limiters.open(sorted(keys), count, now)) == {run.queue for run in back.values()}
    table.expect({run.seq: run for run in rows} | back, set())


# Under a token


@examples
@given(held(), times)
def test_start(table: Table, case: tuple[list[Run], list[Held]], now: int) -> None:
    rows, items = case
    table.fill(rows)
    expected, moved = after_each(rows, {item.seq: Start(token=item.token) for item in items}, now)
    assert run_sync(table.records.work.start(items, MARK, now)) == {Held(run.seq, run.token or "") for run in moved}
    table.expect(expected, entries(moved, expected, "start", now))


@examples
@given(held(), lengths, st.lists(st.none() | words, min_size=5, max_size=5), times)
def test_beat(table: Table, case: tuple[list[Run], list[Held]], lease: int, texts: list[str | None], now: int) -> None:
    rows, items = case
    table.fill(rows)
    progress = {item: text for item, text in zip(items, texts, strict=False) if text is not None}
    asked: dict[int, Command] = {item.seq: Beat(token=item.token, lease=lease, progress=progress.get(item)) for item in items}
    expected, _ = after_each(rows, asked, now)
    lives = {Held(run.seq, run.token or ""): run.state for run in rows if isinstance(stepped(run, asked.get(run.seq, NOBODY), now), Run)}
    assert run_sync(table.records.work.beat(items, lease, progress, now)).states == lives
    table.expect(expected, set())


@examples
@given(held(), st.tuples(*[st.none() | words] * 3), times)
def test_succeed(table: Table, case: tuple[list[Run], list[Held]], result: tuple[str | None, ...], now: int) -> None:
    rows, items = case
    table.fill(rows)
    # A run that is being cancelled is confirmed, one by one; the set move leaves it alone.
    stopping = {run.seq for run in rows if run.state is State.CANCELLING}
    output, digest, key = result
    asked: dict[int, Command] = {
        item.seq: Succeed(token=item.token, output=output, output_hash=digest, key=key) for item in items if item.seq not in stopping
    }
    expected, moved = after_each(rows, asked, now)
    done = [(item.seq, item.token, output, digest, key) for item in items]
    assert run_sync(table.records.work.succeed(done, MARK, FOLLOW, now, limited=False)) == MoveResult({run.seq for run in moved}, [])
    table.expect(expected, entries(moved, expected, "succeed", now))


# By time


@examples
@given(sets(State.SCHEDULED, State.SCHEDULED, State.QUEUED, State.RUNNING, State.CANCELLED), st.sets(st.integers(1, 9)), times)
def test_dispatch(table: Table, rows: list[Run], ids: set[int], now: int) -> None:
    table.fill(rows)
    due = sorted((run.due_at, run.seq) for run in rows if run.state is State.SCHEDULED and run.due_at <= now)
    place, found = (0, 0), list[tuple[int, int]]()
    while page := run_sync(table.records.sweeps.due(now, place, 3)):
        found += page
        place = found[-1]
    assert found == due
    expected, moved = after_each(rows, {seq: Dispatch() for seq in ids}, now)
    assert run_sync(table.records.sweeps.dispatch(sorted(ids), MARK, now)) == {run.seq: run.queue for run in moved}
    table.expect(expected, entries(moved, expected, "dispatch", now))


@examples
@given(sets(State.CLAIMED, State.RUNNING, State.CANCELLING, State.QUEUED, State.FAILED), times, st.integers(0, 5))
def test_overdue(table: Table, rows: list[Run], now: int, behind: int) -> None:
    table.fill(rows)
    looked = sorted((run.lease_check_at, run.seq) for run in rows if run.lease_check_at is not None and run.lease_check_at <= now)
    place = looked[behind - 1] if 0 < behind <= len(looked) else (0, 0)
    assert [(run.lease_check_at, run.seq) for run in run_sync(table.records.sweeps.overdue(now, place, 2))] == [
        key for key in looked if key > place
    ][:2]


@examples
@given(sets(State.CLAIMED, State.RUNNING, State.CANCELLING, State.QUEUED, State.FAILED), times)
def test_looked_at_late(table: Table, rows: list[Run], now: int) -> None:
    table.fill(rows)
    late = sorted(
        (run.lease_check_at, run.seq) for run in rows if run.lease_check_at is not None and run.lease_check_at > now + (run.lease or 0)
    )
    assert [(run.lease_check_at, run.seq) for run in run_sync(table.records.sweeps.looked_at_late(now, 2))] == late[:2]


@examples
@given(sets(State.CLAIMED, State.RUNNING, State.CANCELLING, State.QUEUED, State.FAILED), st.booleans(), times)
def test_correct_claims(table: Table, rows: list[Run], stale: bool, now: int) -> None:
    """As if they were claimed now."""
    table.fill(rows)
    run_sync(table.records.claims.correct([replace(run, token="other") if stale else run for run in rows], now))
    expected = {run.seq: run for run in rows}
    for run in rows:
        if run.state in LIVE and run.token is not None and not stale:
            grant = Claim(grant=run.token, worker=run.worker or "", lease=run.lease or 0, slot=run.slot)
            after = step(replace(run, state=State.QUEUED, token=None), grant, now)
            expected[run.seq] = replace(
                run, claimed_at=after.claimed_at, lease_until=after.lease_until, lease_check_at=after.lease_check_at
            )
    table.expect(expected, set())


@examples
@given(sets(), st.lists(st.tuples(st.booleans(), times), min_size=5, max_size=5), times)
def test_look_later(table: Table, rows: list[Run], looks: list[tuple[bool, int]], now: int) -> None:
    """A lease is looked at later only if nothing happened to it since it was read."""
    table.fill(rows)
    asked = [(replace(run, rev=run.rev - stale), at) for run, (stale, at) in zip(rows, looks, strict=False)]
    run_sync(table.records.sweeps.postpone_check(asked))
    later = {run.seq: at for (run, at), (stale, _) in zip(asked, looks, strict=False) if not stale and run.lease_check_at is not None}
    table.expect({run.seq: replace(run, lease_check_at=later.get(run.seq, run.lease_check_at)) for run in rows}, set())


@examples
@given(sets(*ENDED, State.RUNNING, State.QUEUED), st.sampled_from(ENDED), times)
def test_prunable(table: Table, rows: list[Run], state: State, before: int) -> None:
    table.fill(rows)
    old = sorted(
        (run.finished_at, run.seq) for run in rows if run.state is state and run.finished_at is not None and run.finished_at < before
    )
    place, found = (0, 0), []
    while page := run_sync(table.records.retention.prunable(state, before, place, 3)):
        found += [(one.at, one.seq) for one in page if not one.needed]
        place = found[-1]
    assert found == old


# Decided by `step` and written back


@st.composite
def changes(draw: Callable[..., Any], *kinds: type[Command]) -> tuple[list[Run], dict[int, tuple[Run, Command]], int]:
    """Some runs, and for some of them a command and the run as it was read: as it is, before another's move, or before a beat."""
    rows, now = draw(sets()), draw(times)
    asked = {}
    for run in rows:
        cmd = draw(st.one_of(*(commands[kind] for kind in kinds)))
        if isinstance(cmd, Fail | Snooze | Requeue | Refuse | Lapse):
            cmd = replace(cmd, next_id=f"next{run.seq}")
        if isinstance(cmd, Skip):
            cmd = replace(cmd, token=run.token)
        seen = draw(st.sampled_from([run, run, replace(run, rev=run.rev - 1), _before_a_beat(run)]))
        if not isinstance(stepped(seen, cmd, now), WindlassError):
            asked[run.seq] = (seen, cmd)
    return rows, asked, now


def _before_a_beat(run: Run) -> Run:
    return (
        run
        if run.lease_until is None
        else replace(run, lease=(run.lease or 0) - 1, lease_until=run.lease_until - 1_000, progress='"before"')
    )


def _still_true(run: Run, seen: Run, cmd: Command) -> bool:
    """Whether what was decided may be written: no move since, and no beat where the reason is a lease that ran out."""
    return run.rev == seen.rev and not (isinstance(cmd, Lapse) and run.lease_until != seen.lease_until)


def _attempt(run: Run, after: Run, cmd: Command, now: int) -> Closed:
    lapsed, returned = isinstance(cmd, Lapse), isinstance(cmd, Snooze | Requeue | Refuse)
    started_at = run.started_at if lapsed or run.started_at is not None else run.claimed_at
    return Closed(
        run=run.seq,
        n=run.attempt,
        id=run.current_attempt,
        retry_of=run.retry_of,
        outcome="lapsed" if lapsed else "returned" if returned else "failed",
        answer=after.state.value,
        worker=run.worker,
        token=run.token,
        claimed_at=run.claimed_at,
        started_at=started_at,
        finished_at=max(now, run.claimed_at or 0, started_at or 0),
        error=None if isinstance(cmd, Snooze | Requeue) else error_text(after.error),
        payload=run.payload,
    )


@settings(examples, max_examples=3 * examples.max_examples)
@given(changes(Fail, Snooze, Requeue, Refuse, Lapse, Expire, Cancel, Skip, Abandon))
def test_write_back(table: Table, case: tuple[list[Run], dict[int, tuple[Run, Command]], int]) -> None:
    rows, asked, now = case
    table.fill(rows)
    expected, closed, journal = {run.seq: run for run in rows}, [], set()
    for run in rows:
        if run.seq in asked and _still_true(run, *asked[run.seq]):
            cmd = asked[run.seq][1]
            expected[run.seq] = after = step(run, cmd, now)
            journal.add(_entry(run, after, cmd.name, now))
            if after.attempt > run.attempt:
                closed.append(_attempt(run, after, cmd, now))
    written = [
        Change(seen, step(seen, cmd, now), cmd.name, lapsed=seen.lease_until if isinstance(cmd, Lapse) else None)
        for seen, cmd in asked.values()
    ]
    moved = (
        run_sync(table.records.work.write_back("report", written, MARK, FOLLOW, now, limited=False)) if written else MoveResult(set(), [])
    )
    assert moved == MoveResult({run.seq for run in rows if expected[run.seq] is not run}, [])
    found = table.expect(expected, journal)
    assert [item for items in found.attempts.values() for item in items] == closed


@examples
@given(changes(Patch))
def test_patch(table: Table, case: tuple[list[Run], dict[int, tuple[Run, Command]], int]) -> None:
    """A patch changes the run as `step` does, and no payload that a closed attempt ran with."""
    rows, asked, now = case
    table.fill(rows)
    own = put_closed(table, rows)
    attempts = table.read().attempts
    expected, journal = {run.seq: run for run in rows}, set()
    for run in rows:
        if run.seq not in asked:
            continue
        seen, cmd = asked[run.seq]
        written = run_sync(table.records.work.patch(Change(seen, step(seen, cmd, now), "patch"), f"{MARK}{run.seq}", now, 0))
        assert written == (seen.rev == run.rev)
        if written:
            expected[run.seq] = step(run, cmd, now)
            journal.add(_entry(run, expected[run.seq], "patch", now))
    assert table.expect(expected, journal).attempts == attempts
    changed = {run.seq: run.payload for run in rows if expected[run.seq].payload != run.payload}
    kept = [(seq, n, changed.get(seq) if payload is None else payload) for seq, n, payload in own]
    assert run_sync(table.store.batch("read", [Statement("own_payloads")]))[0] == kept


def put_closed(table: Table, rows: Sequence[Run]) -> list[tuple[int, int, str | None]]:
    """The closed attempts of these runs, the first ones of some with a payload of their own."""
    own = [(run.seq, n, '"own"' if n < run.seq else None) for run in rows for n in range(1, run.attempt)]
    put = [Statement("put_attempt", {"run": seq, "n": n, "id": f"{seq}-{n}", "payload": payload}) for seq, n, payload in own]
    if put:
        run_sync(table.store.batch("put", put))
    return own


# What waits for runs that end


@st.composite
def graphs(draw: Callable[..., Any]) -> tuple[list[Run], Waits]:
    """Runs that wait for others, in any shape without a circle; none has ended yet."""
    count = draw(st.integers(2, 7))
    waits: Waits = {}
    for seq in range(2, count + 1):
        before = draw(st.sets(st.integers(1, seq - 1), max_size=3))
        if before:
            waits[seq] = (draw(st.sampled_from(["success", "any"])), tuple(sorted(before)))
    begun = (State.CLAIMED, State.RUNNING, State.QUEUED, State.CANCELLING)
    rows = [draw(runs(State.WAITING, seq=seq) if seq in waits else runs(*begun, seq=seq)) for seq in range(1, count + 1)]
    return rows, waits


def settled(now_are: dict[int, Run], waits: Waits, now: int) -> dict[int, Run]:
    """The oracle over the graph: those that can no longer start are cancelled, those with nothing left to wait for are released."""
    found = dict(now_are)
    for seq, (rule, before) in sorted(waits.items()):  # predecessors have smaller numbers, so once through is enough
        if found[seq].state is not State.WAITING:
            continue
        ends = [found[number].state for number in before if found[number].finished_at is not None]
        if rule == "success" and any(state is not State.SUCCEEDED for state in ends):
            found[seq] = step(found[seq], Cancel(reason="predecessor failed"), now)
        elif len(ends) == len(before):
            found[seq] = step(found[seq], Release(), now)
    return found


ENDS: dict[State, list[Command]] = {
    State.WAITING: [Cancel(reason="no"), Skip(reason="no")],
    State.SCHEDULED: [Cancel(reason="no"), Skip(reason="no")],
    State.QUEUED: [Cancel(reason="no"), Skip(reason="no")],
    State.CLAIMED: [Succeed(output="1"), Fail(error=Failure("boom", "it broke"), retry=False)],
    State.RUNNING: [Succeed(output="1"), Expire()],
    State.CANCELLING: [Abandon()],
}


@settings(examples, max_examples=2 * examples.max_examples)
@given(graphs(), st.lists(st.tuples(st.dictionaries(st.integers(1, 7), st.integers(0, 1), max_size=3), durations), min_size=1, max_size=4))
def test_followers(table: Table, graph: tuple[list[Run], Waits], batches: list[tuple[dict[int, int], int]]) -> None:
    rows, waits = graph
    table.fill(rows, waits)
    current = {run.seq: run for run in rows}
    journal: set[tuple[Any, ...]] = set()
    now = START
    for number, (chosen, later) in enumerate(batches):
        now += later
        for succeeds in (True, False):
            some = _ends(current, chosen, succeeds)
            if not some:
                continue
            written = _end(table, current, some, f"{number}{succeeds}", now)
            ended = current | {seq: step(current[seq], cmd, now) for seq, cmd in some.items()}
            after = settled(ended, waits, now)
            journal |= {_entry(current[seq], after[seq], cmd.name, now) for seq, cmd in some.items()}
            journal |= {
                _entry(run, after[seq], "cancel" if after[seq].finished_at is not None else "release", now)
                for seq, run in ended.items()
                if after[seq] is not run
            }
            ready = [
                ReadyQueue(run.queue, run.due_at) for seq, run in after.items() if ended[seq].state is State.WAITING and run.state in READY
            ]
            assert written == MoveResult(set(some), written.released)
            assert sorted(written.released) == sorted(ready)
            current = after
            table.expect(current, journal)


def _ends(current: dict[int, Run], chosen: dict[int, int], succeeds: bool) -> dict[int, Command]:
    """The chosen runs that can end now, and how; successes and other ends are batches of their own."""
    found = {seq: ENDS[current[seq].state] for seq in chosen if seq in current and current[seq].state in ENDS}
    ends = {seq: how[chosen[seq] % len(how)] for seq, how in found.items()}
    return {seq: cmd for seq, cmd in ends.items() if isinstance(cmd, Succeed) == succeeds}


def _end(table: Table, current: dict[int, Run], ends: dict[int, Command], mark: str, now: int) -> MoveResult:
    if all(isinstance(cmd, Succeed) for cmd in ends.values()):
        done = [(seq, current[seq].token or "", cmd.output, None, None) for seq, cmd in ends.items() if isinstance(cmd, Succeed)]
        return run_sync(table.records.work.succeed(done, MARK + mark, FOLLOW + mark, now, limited=False))
    written = [Change(current[seq], step(current[seq], cmd, now), cmd.name) for seq, cmd in ends.items()]
    return run_sync(table.records.work.write_back("report", written, MARK + mark, FOLLOW + mark, now, limited=False))
