"""Every move of a set in SQL does to each row what `step` does to the run, on both stores, and leaves every other row alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.invariants import CLEAR, Closed, Moved, Snapshot, clear, read, with_tables
from tests.test_machine import HOUR, START, commands, durations, lengths, runs, stepped, times, words
from windlass.clock import ManualClock
from windlass.errors import WindlassError
from windlass.machine import (
    ENDED,
    Abandon,
    Beat,
    Cancel,
    Claim,
    Command,
    Dispatch,
    Expire,
    Fail,
    GiveBack,
    Lapse,
    Patch,
    Release,
    Skip,
    Snooze,
    Start,
    Succeed,
    step,
)
from windlass.model import Failure, Run, State
from windlass.store.base import Statement, Store, run_sync
from windlass.store.records import Change, Head, Held, Ready, Records, Written, error_text, policy_text

NOBODY = Beat(token="nobody's", lease=1)
READY = (State.QUEUED, State.SCHEDULED)
MARK, FOLLOW = "mark-of-this-batch", "mark-of-its-followers"
COLUMNS = (*Run.__struct_fields__, "mark")
OWN = {
    **CLEAR,
    "put_run": f"insert into job_runs ({', '.join(COLUMNS)}) values ({', '.join(f':{name}' for name in COLUMNS)})",
    "put_wait": "insert into job_waits (run, predecessor, rule) values (:run, :predecessor, :rule)",
    "put_key": "insert into job_keys (scope, key, run, unfinished, until) values ('claim', :key, :run, 0, :until)",
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


@pytest.fixture(scope="module", params=["memory", "postgres"])
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


def sets(*states: State, most: int = 5) -> st.SearchStrategy[list[Run]]:
    """Some runs, numbered from 1; their tokens are few, so that one run's stale token is another's right one."""
    return st.integers(1, most).flatmap(lambda count: st.tuples(*(runs(*states, seq=seq) for seq in range(1, count + 1)))).map(list)


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


# Claim


@examples
@given(
    rows=sets(State.QUEUED, State.QUEUED, State.SCHEDULED, State.RUNNING, State.SUCCEEDED),
    left_out=st.sets(st.integers(1, 5), max_size=2),
    count=st.integers(1, 4),
    lease=lengths,
    slot=st.sampled_from([None, 0]),
    worker=st.sampled_from(["w1", "w2", "new"]),
    nonce=st.sampled_from([None, "mine", "another's"]),
    now=times,
)
def test_claim(
    table: Table, rows: list[Run], left_out: set[int], count: int, lease: int, slot: int | None, worker: str, nonce: str | None, now: int
) -> None:
    table.fill(rows)
    count = 1 if slot == 0 else count
    if nonce == "another's":
        run_sync(table.store.batch("put", [Statement("put_key", {"key": "fresh", "run": "another's", "until": now + HOUR})]))
    heads = [Head(run.seq, run.band, run.position) for run in rows if run.seq not in left_out]
    ready = [run for run in rows if run.state is State.QUEUED and run.seq not in left_out]
    ready.sort(key=lambda run: (run.band, run.position, run.seq))
    busy = slot == 0 and any((run.worker, run.slot) == (worker, slot) for run in rows)
    chosen = [] if busy or nonce == "another's" else ready[:count]
    claim = Claim(grant="fresh", worker=worker, lease=lease, slot=slot)
    expected, moved = after_each(rows, {run.seq: claim for run in chosen}, now)
    taken = run_sync(table.records.claim(heads, "fresh", worker, slot, lease, count, now, "mine" if nonce else None, now + HOUR))
    assert taken == [expected[run.seq] for run in chosen]
    found = table.expect(expected, entries(moved, expected, "claim", now))
    assert {key.run for key in found.keys.values()} == ({nonce} if nonce else set())


@examples
@given(
    rows=sets(State.QUEUED, State.QUEUED, State.QUEUED, State.SCHEDULED, State.CLAIMED),
    lanes=st.sets(st.integers(1, 4)),
    behind=st.integers(0, 5),
    count=st.integers(1, 4),
    worker=st.sampled_from(["w1", "w2", "new"]),
)
def test_heads(table: Table, rows: list[Run], lanes: set[int], behind: int, count: int, worker: str) -> None:
    table.fill(rows)
    place = (-9, 0, 0)
    if behind and behind <= len(rows):
        place = (rows[behind - 1].band, rows[behind - 1].position, rows[behind - 1].seq)
    ready = sorted((run.band, run.position, run.seq) for run in rows if run.state is State.QUEUED and run.lane in lanes)
    heads, newest, busy = run_sync(table.records.heads(sorted(lanes), place, count, worker, 0))
    assert [(head.band, head.position, head.seq) for head in heads] == [key for key in ready if key > place][:count]
    assert newest == 0
    assert busy == any((run.worker, run.slot) == (worker, 0) for run in rows)


# Under a token


@examples
@given(held(), times)
def test_start(table: Table, case: tuple[list[Run], list[Held]], now: int) -> None:
    rows, items = case
    table.fill(rows)
    expected, moved = after_each(rows, {item.seq: Start(token=item.token) for item in items}, now)
    assert run_sync(table.records.start(items, MARK, now)) == {Held(run.seq, run.token or "") for run in moved}
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
    assert run_sync(table.records.beat(items, lease, progress, now)) == lives
    table.expect(expected, set())


@examples
@given(held(), st.none() | words, st.none() | words, times)
def test_succeed(table: Table, case: tuple[list[Run], list[Held]], output: str | None, digest: str | None, now: int) -> None:
    rows, items = case
    table.fill(rows)
    # A run that is being cancelled is confirmed, one by one; the set move leaves it alone.
    stopping = {run.seq for run in rows if run.state is State.CANCELLING}
    asked: dict[int, Command] = {
        item.seq: Succeed(token=item.token, output=output, output_hash=digest) for item in items if item.seq not in stopping
    }
    expected, moved = after_each(rows, asked, now)
    done = [(item.seq, item.token, output, digest) for item in items]
    assert run_sync(table.records.succeed(done, MARK, FOLLOW, now)) == Written({run.seq for run in moved}, [])
    table.expect(expected, entries(moved, expected, "succeed", now))


# By time


@examples
@given(sets(State.SCHEDULED, State.SCHEDULED, State.QUEUED, State.RUNNING, State.CANCELLED), st.sets(st.integers(1, 9)), times)
def test_dispatch(table: Table, rows: list[Run], ids: set[int], now: int) -> None:
    table.fill(rows)
    due = sorted((run.due_at, run.seq) for run in rows if run.state is State.SCHEDULED and run.due_at <= now)
    assert run_sync(table.records.due(now, 3)) == sorted(seq for _, seq in due[:3])
    expected, moved = after_each(rows, {seq: Dispatch() for seq in ids}, now)
    assert run_sync(table.records.dispatch(sorted(ids), MARK, now)) == {run.seq: run.queue for run in moved}
    table.expect(expected, entries(moved, expected, "dispatch", now))


@examples
@given(sets(State.CLAIMED, State.RUNNING, State.CANCELLING, State.QUEUED, State.FAILED), times, st.integers(0, 5))
def test_overdue(table: Table, rows: list[Run], now: int, behind: int) -> None:
    table.fill(rows)
    looked = sorted((run.look_at, run.seq) for run in rows if run.look_at is not None and run.look_at <= now)
    place = looked[behind - 1] if 0 < behind <= len(looked) else (0, 0)
    assert [(run.look_at, run.seq) for run in run_sync(table.records.overdue(now, place, 2))] == [key for key in looked if key > place][:2]


@examples
@given(sets(), st.lists(st.tuples(st.booleans(), times), min_size=5, max_size=5), times)
def test_look_later(table: Table, rows: list[Run], looks: list[tuple[bool, int]], now: int) -> None:
    """A lease is looked at later only if nothing happened to it since it was read."""
    table.fill(rows)
    asked = [(replace(run, rev=run.rev - stale), at) for run, (stale, at) in zip(rows, looks, strict=False)]
    run_sync(table.records.look_later(asked))
    later = {run.seq: at for (run, at), (stale, _) in zip(asked, looks, strict=False) if not stale and run.look_at is not None}
    table.expect({run.seq: replace(run, look_at=later.get(run.seq, run.look_at)) for run in rows}, set())


@examples
@given(sets(*ENDED, State.RUNNING, State.QUEUED), st.sampled_from(ENDED), times)
def test_prunable(table: Table, rows: list[Run], state: State, before: int) -> None:
    table.fill(rows)
    old = sorted(
        (run.finished_at, run.seq) for run in rows if run.state is state and run.finished_at is not None and run.finished_at < before
    )
    assert run_sync(table.records.prunable(state, before, 3)) == sorted(seq for _, seq in old[:3])


# Decided by `step` and written back


@st.composite
def changes(draw: Callable[..., Any], *kinds: type[Command]) -> tuple[list[Run], dict[int, tuple[Run, Command]], int]:
    """Some runs, and for some of them a command and the run as it was read: as it is, before another's move, or before a beat."""
    rows, now = draw(sets()), draw(times)
    asked = {}
    for run in rows:
        cmd = draw(st.one_of(*(commands[kind] for kind in kinds)))
        if isinstance(cmd, Fail | Snooze | GiveBack | Lapse):
            cmd = replace(cmd, next_id=f"next{run.seq}")
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


def _still_true(run: Run, seen: Run, cmd: Command, now: int) -> bool:
    """Whether what was decided may be written: no move since, and no beat where the reason is a lease that ran out."""
    return run.rev == seen.rev and not (isinstance(cmd, Lapse) and (run.lease_until or 0) > now)


def _attempt(run: Run, after: Run, cmd: Command, now: int) -> Closed:
    lapsed, returned = isinstance(cmd, Lapse), isinstance(cmd, Snooze | GiveBack)
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
        error=None if returned else error_text(after.error),
    )


@settings(examples, max_examples=3 * examples.max_examples)
@given(changes(Fail, Snooze, GiveBack, Lapse, Expire, Cancel, Skip, Abandon))
def test_write_back(table: Table, case: tuple[list[Run], dict[int, tuple[Run, Command]], int]) -> None:
    rows, asked, now = case
    table.fill(rows)
    expected, closed, journal = {run.seq: run for run in rows}, [], set()
    for run in rows:
        if run.seq in asked and _still_true(run, *asked[run.seq], now):
            cmd = asked[run.seq][1]
            expected[run.seq] = after = step(run, cmd, now)
            journal.add(_entry(run, after, cmd.name, now))
            if after.attempt > run.attempt:
                closed.append(_attempt(run, after, cmd, now))
    written = [
        Change(seen, step(seen, cmd, now), cmd.name, lapsed_by=now if isinstance(cmd, Lapse) else None) for seen, cmd in asked.values()
    ]
    moved = run_sync(table.records.write_back("report", written, MARK, FOLLOW, now)) if written else Written(set(), [])
    assert moved == Written({run.seq for run in rows if expected[run.seq] is not run}, [])
    found = table.expect(expected, journal)
    assert [item for items in found.attempts.values() for item in items] == closed


@examples
@given(changes(Patch))
def test_patch(table: Table, case: tuple[list[Run], dict[int, tuple[Run, Command]], int]) -> None:
    rows, asked, now = case
    table.fill(rows)
    expected, journal = {run.seq: run for run in rows}, set()
    for run in rows:
        if run.seq not in asked:
            continue
        seen, cmd = asked[run.seq]
        written = run_sync(table.records.patch(Change(seen, step(seen, cmd, now), "patch"), f"{MARK}{run.seq}", now))
        assert written == (seen.rev == run.rev)
        if written:
            expected[run.seq] = step(run, cmd, now)
            journal.add(_entry(run, expected[run.seq], "patch", now))
    table.expect(expected, journal)


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
            ready = [Ready(run.queue, run.due_at) for seq, run in after.items() if ended[seq].state is State.WAITING and run.state in READY]
            assert written == Written(set(some), written.released)
            assert sorted(written.released) == sorted(ready)
            current = after
            table.expect(current, journal)


def _ends(current: dict[int, Run], chosen: dict[int, int], succeeds: bool) -> dict[int, Command]:
    """The chosen runs that can end now, and how; successes and other ends are batches of their own."""
    found = {seq: ENDS[current[seq].state] for seq in chosen if seq in current and current[seq].state in ENDS}
    ends = {seq: how[chosen[seq] % len(how)] for seq, how in found.items()}
    return {seq: cmd for seq, cmd in ends.items() if isinstance(cmd, Succeed) == succeeds}


def _end(table: Table, current: dict[int, Run], ends: dict[int, Command], mark: str, now: int) -> Written:
    if all(isinstance(cmd, Succeed) for cmd in ends.values()):
        done = [(seq, current[seq].token or "", cmd.output, None) for seq, cmd in ends.items() if isinstance(cmd, Succeed)]
        return run_sync(table.records.succeed(done, MARK + mark, FOLLOW + mark, now))
    written = [Change(current[seq], step(current[seq], cmd, now), cmd.name) for seq, cmd in ends.items()]
    return run_sync(table.records.write_back("report", written, MARK + mark, FOLLOW + mark, now))
