"""The machine by itself: the table is total, the rules keep to it, and the times stay in order whatever the clock does."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from msgspec.structs import asdict, replace

from tests.invariants import HELD_FIELDS, MOVED, NEVER_CHANGED, PATCHED, whole
from windlass import defaults, machine
from windlass.errors import LeaseLost, WindlassError, WrongState
from windlass.machine import (
    ENDED,
    FIRST,
    LIVE,
    MOVES,
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
    Reorder,
    Report,
    Requeue,
    Skip,
    Snooze,
    Start,
    Succeed,
    backoff,
    begin,
    last_refused,
    step,
)
from windlass.model import Failure, Policy, Refusals, Run, State, place
from windlass.store import sql

HOUR = 3_600_000
START = 1_767_225_600_000

COMMANDS: tuple[type[Command], ...] = (
    Dispatch, Release, Claim, Start, Beat, Succeed, Fail, Snooze, Requeue, Refuse, Lapse, Expire, Cancel, Abandon, Skip, Patch,
    Reorder,
)  # fmt: skip
CHANGED: dict[type[Command], set[str]] = {
    Beat: {"lease", "lease_until", "progress"},
    Start: {"started_at"},
    Dispatch: set(),
    Release: set(),
    Patch: {*PATCHED, "position", "due_at"},
    Reorder: {*MOVED, "position"},
}
"""Commands that write little; the others may write anything that is not `NEVER_CHANGED` or `PATCHED`."""

times = st.integers(START - HOUR, START + HOUR)
durations = st.sampled_from([0, 1, 500, 1_000, 30_000, HOUR])
lengths = st.sampled_from([1, 500, 30_000, HOUR])
words = st.sampled_from(["a", "b", "c"])
errors = st.builds(Failure, words, words, st.none() | words)
chances = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    Policy,
    backoff=st.none() | st.lists(durations, min_size=1, max_size=3).map(tuple),
    on_exhausted=st.sampled_from(["failed", "quarantined"]),
    retry_place=st.sampled_from(["keep", "tail"]),
    max_requeues=st.sampled_from([2, 1000]),
    attempt_per_claim=st.booleans(),
    grace=durations,
)


# Random runs, of which everything holds that must hold of one row


@st.composite
def runs(draw: Callable[..., Any], *states: State, seq: int = 1, tokens: Any = words) -> Run:
    """A run in one of these states, or in any, its columns random but in agreement with it."""
    state = draw(st.sampled_from(states or tuple(State)))
    created_at, queue, aging = draw(times), draw(words), draw(st.none() | lengths)
    failures, requeues = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    failed = state in (State.FAILED, State.QUARANTINED)
    failures += failed
    attempt = failures + requeues + (not failed)
    run = Run(
        seq=seq,
        id=f"run{seq}",
        rev=draw(st.integers(1, 9)),
        state=state,
        job=draw(words),
        queue=queue,
        lane=draw(st.integers(1, 3)),
        priority_key=draw(st.integers(-2, 2)) if aging is None else 0,
        position=place(draw(times), draw(st.integers(0, 2))),
        payload=draw(st.sampled_from(['{"a":1}', "[]", '"é"'])),
        due_at=draw(times),
        created_at=created_at,
        max_attempts=draw(st.integers(failures + (not failed), failures + 3)),
        max_runtime=draw(st.none() | lengths),
        policy=replace(draw(policies), aging=aging),
        aging_priority=None if aging is None else draw(st.integers(-2, 2)),
        attempt=attempt,
        attempt_id=f"run{seq}-{attempt}" if attempt > 1 else None,
        retry_of=f"run{seq}-{attempt - 1}" if attempt > 1 else None,
        failures=failures,
        requeues=requeues,
        error=draw(errors) if failures and state is not State.SUCCEEDED else None,
        reason=draw(st.none() | words) if state in (State.CANCELLING, State.CANCELLED, State.SKIPPED) else None,
    )
    if state in LIVE:
        run = replace(run, **_held(draw, run, tokens))
    elif state in ENDED:
        run = _ended(draw, run, tokens)
    if run.attempt > 1 or run.claimed_at is not None:
        run = replace(run, progress=draw(st.none() | words))
    whole(run)
    return run


def _held(draw: Callable[..., Any], run: Run, tokens: Any) -> dict[str, Any]:
    claimed_at, lease = run.created_at + draw(durations), draw(lengths)
    begun = run.state is State.RUNNING or (run.state is State.CANCELLING and draw(st.booleans()))
    lease_until = claimed_at + lease + draw(durations)
    # A worker of its own for each: the one slot of a worker holds one run.
    return {
        "token": draw(tokens),
        "worker": f"w{run.seq}",
        "slot": draw(st.sampled_from([None, 0])),
        "lease": lease,
        "claimed_at": claimed_at,
        "started_at": claimed_at + draw(durations) if begun else None,
        "lease_until": lease_until,
        "lease_check_at": draw(st.integers(claimed_at, lease_until)),
        "cancel_asked_at": draw(times) if run.state is State.CANCELLING else None,
    }


def _ended(draw: Callable[..., Any], run: Run, tokens: Any) -> Run:
    was_claimed = run.state in (State.SUCCEEDED, State.FAILED, State.QUARANTINED) or draw(st.booleans())
    if was_claimed:
        held = _held(draw, replace(run, state=State.CANCELLING), tokens)
        dropped: dict[str, None] = {"slot": None, "lease_until": None, "lease_check_at": None, "cancel_asked_at": None}
        run = replace(run, **(held | dropped))
    times_so_far = [run.created_at, run.claimed_at or 0, run.started_at or 0]
    run = replace(run, finished_at=max(times_so_far) + draw(durations))
    if run.state is State.CANCELLED:
        return replace(run, cancel_asked_at=draw(times))
    if run.state is State.SUCCEEDED:
        return replace(
            run,
            started_at=run.started_at or run.claimed_at,
            output=draw(st.none() | words),
            output_hash=draw(st.none() | words),
            output_key=draw(st.none() | words),
        )
    return run


commands: dict[type[Command], st.SearchStrategy[Command]] = {
    Dispatch: st.builds(Dispatch),
    Release: st.builds(Release),
    Claim: st.builds(Claim, grant=st.just("new"), worker=words, lease=lengths, slot=st.sampled_from([None, 0])),
    Start: st.builds(Start),
    Beat: st.builds(Beat, lease=lengths, progress=st.none() | words),
    Succeed: st.builds(Succeed, output=st.none() | words, output_hash=st.none() | words, key=st.none() | words),
    Fail: st.builds(Fail, error=errors, retry=st.booleans(), delay=st.none() | durations, chance=chances, next_id=st.just("next")),
    Snooze: st.builds(Snooze, delay=durations, next_id=st.just("next")),
    Requeue: st.builds(Requeue, begun=st.booleans(), next_id=st.just("next")),
    Refuse: st.builds(Refuse, error=errors, schema=words, hope=st.booleans(), next_id=st.just("next")),
    Lapse: st.builds(Lapse, chance=chances, next_id=st.just("next")),
    Expire: st.builds(Expire),
    Cancel: st.builds(Cancel, reason=st.none() | words),
    Abandon: st.builds(Abandon),
    Skip: st.builds(Skip, reason=words),
    Patch: st.builds(
        Patch,
        payload=st.none() | st.just('"new"'),
        priority=st.none() | st.integers(-2, 2),
        due_at=st.none() | times,
        max_attempts=st.none() | st.integers(1, 5),
        queue=st.none() | words,
        lane=st.none() | st.integers(1, 3),
        aging=st.none() | lengths,
    ),
    Reorder: st.builds(Reorder, priority_key=st.integers(-2, 2), position=times.map(place)),
}
any_command = st.one_of(*commands.values())
bad_ends = st.one_of(commands[Fail], commands[Lapse], commands[Expire], commands[Snooze], commands[Requeue], commands[Refuse])


def stepped(run: Run, cmd: Command, now: int) -> Run | WindlassError:
    try:
        return step(run, cmd, now)
    except WindlassError as error:
        return error


PLAIN = Run(
    seq=1, id="run1", rev=1, state=State.QUEUED, job="a", queue="a", lane=1, priority_key=0, position=place(START), payload="{}",
    due_at=START, created_at=START, max_attempts=3, max_runtime=None, policy=Policy(),
)  # fmt: skip


# The table


def test_the_table_is_total_over_states_and_commands() -> None:
    assert list(MOVES) == list(State)
    assert {kind for row in MOVES.values() for kind in row} == set(COMMANDS)
    assert len({kind.name for kind in COMMANDS}) == len(COMMANDS)


def test_a_state_is_pending_or_live_or_ended() -> None:
    pending = {state for state, row in MOVES.items() if Patch in row}
    assert len(pending) + len(LIVE) + len(ENDED) == len(State)
    assert pending | set(LIVE) | set(ENDED) == set(State)


def test_ended_states_are_absorbing() -> None:
    assert all(MOVES[state] == {} for state in ENDED)
    assert all(MOVES[state] for state in State if state not in ENDED)


def test_every_state_can_be_reached_and_left() -> None:
    reached = set(FIRST)
    for _ in State:
        reached |= {to for state in reached for move in MOVES[state].values() for to in move.to}
    assert reached == set(State)
    can_end = set(ENDED)
    for _ in State:
        can_end |= {state for state, row in MOVES.items() if any(to in can_end for move in row.values() for to in move.to)}
    assert can_end == set(State)


def test_sources_agree_with_the_table() -> None:
    for kind in COMMANDS:
        rows = {state: row[kind].to for state, row in MOVES.items() if kind in row}
        assert machine.sources(kind.name) == [state for state, to in rows.items() if to]
        for target in State:
            expected = [state for state, to in rows.items() if target in to]
            if expected:
                assert machine.sources(kind.name, target) == expected
            else:
                with pytest.raises(KeyError):
                    machine.sources(kind.name, target)


def _from(kind: type[Command], target: State | None = None) -> set[str]:
    return {state.value for state, row in MOVES.items() if kind in row and (target in row[kind].to if target else row[kind].to)}


def _to(kind: type[Command]) -> set[str]:
    return {to.value for row in MOVES.values() if kind in row for to in row[kind].to}


_EVERY = {state.value for state in State}
_LIVE, _ENDED = {state.value for state in LIVE}, {state.value for state in ENDED}

LITERALS: dict[str, set[str]] = {
    "give_up_deliveries": {"failed"},  # of a delivery, which happens to have the same word
    "heads": _from(Claim),
    "claim": _from(Claim) | _to(Claim),
    "claim_each": _from(Claim) | _to(Claim),
    "start": _from(Start, State.RUNNING) | _to(Start),
    "beat": _from(Beat),
    "succeed": _from(Succeed, State.SUCCEEDED) | {"succeeded"},
    "held_of_queue": _from(Succeed, State.SUCCEEDED),
    "due": _from(Dispatch),
    "next_times": _from(Dispatch),
    **dict.fromkeys(("list_scheduled", "walk_scheduled"), _from(Dispatch)),
    **dict.fromkeys(("walk_queue", "ranked"), _EVERY),  # an arm for each
    "dispatch": _from(Dispatch) | _to(Dispatch),
    "patch": _from(Patch),
    "places_from": _from(Claim),
    "places_before": _from(Claim),
    **dict.fromkeys(("place_at", "count_before", "add_unannounced", "to_announce", "announce"), _from(Claim)),
    "move": _from(Reorder),
    "respace": _from(Claim),
    "refuse_move": _from(Claim),
    **dict.fromkeys(("list_waiting", "walk_waiting"), _from(Release)),
    "lock_dependents": _from(Release) | _ENDED,
    "cancel_dependents": _from(Release) | _ENDED,
    "release": _from(Release) | _to(Release) | _ENDED,
    "journal_dependents": _ENDED,
    "cancel_created": _from(Release) | _ENDED,
    "release_created": _from(Release) | _to(Release),
    "journal_settled": {"cancelled"},
    "postpone_check": _LIVE,
    "correct_claims": _LIVE,
    "still_held": _LIVE,
    "recovered_due": _from(Dispatch),
    "drop_checks": _from(Release) | {"succeeded"},
    "unlocked": _from(Release),
    **dict.fromkeys(("add_lines", "add_step"), _LIVE),
    "add_group": {"running"},  # of a group, as below
    "tally": {"running"} | _ENDED,
    "members_to_cancel": {"cancelling"},
    "add_slot": {"waiting"},  # of a direct call, as below
    "grant_slots": {"waiting"} | _LIVE,
    "claim_within": _from(Claim) | _to(Claim) | _LIVE,
    "park": _from(Claim) | _LIVE,
    **dict.fromkeys(("usage", "holders", "held_under", "free", "unpark", "stale_holds"), _LIVE),
    **dict.fromkeys(("lanes_waiting", "lanes_in_use", "drop_lanes"), _from(Claim)),
    "lanes_of_scheduled": _from(Dispatch),
    "lanes_of_waiting": _from(Release),
    "news": _from(Claim) | _from(Dispatch) | {"cancelling"} | _ENDED,
    "late_runs": _from(Dispatch),
}
"""Which states each statement names, read from the table; a statement that is not here names none."""

STATE_WORD = re.compile(rf"'({'|'.join(State)})'")


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_states_in_the_sql_are_those_of_the_table(dialect: str) -> None:
    named = {name: set(STATE_WORD.findall(query.text)) for name, query in sql.load(dialect).items() if query.text}
    expected = {name: states for name, states in LITERALS.items() if name in named}
    assert {name: states for name, states in named.items() if states} == expected


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_states_in_the_indexes_are_those_of_the_table(dialect: str) -> None:
    schema = "\n".join(sql.migrations(dialect))
    indexes = dict(re.findall(r"create index (\w+) on job_runs [^;]* where state = '(\w+)'", schema))
    moves: dict[str, type[Command]] = {"job_runs_ready": Claim, "job_runs_due": Dispatch, "job_runs_waiting": Release}
    assert {name: {state} for name, state in indexes.items()} == {name: _from(kind) for name, kind in moves.items()}


# The beginning


@given(times, st.none() | times, st.booleans(), st.integers(0, 9), durations)
def test_a_run_begins_where_what_it_waits_for_says(now: int, due_at: int | None, waits: bool, index: int, head_start: int) -> None:
    state, due, position = begin(now, due_at, waits=waits, index=index, head_start=head_start)
    assert due == (now if due_at is None else due_at)
    assert state is (State.WAITING if waits else State.SCHEDULED if due > now else State.QUEUED)
    assert position == place(max(due, now) - head_start, index)


@given(times, st.none() | times, st.booleans(), times)
def test_a_run_that_waited_is_released_to_where_it_would_have_begun(now: int, due_at: int | None, waits: bool, later: int) -> None:
    state, due, position = begin(now, due_at, waits=waits)
    assert state in FIRST
    born = replace(PLAIN, state=state, due_at=due, position=position, created_at=now)
    whole(born)
    if waits:
        assert step(born, Release(), later).state is begin(later, due)[0]


@pytest.mark.parametrize("state", FIRST)
def test_every_beginning_can_be_had(state: State) -> None:
    assert state in {begin(START, due_at, waits=waits)[0] for due_at in (None, START + 1) for waits in (False, True)}


@given(times, times, st.integers(0, 9), st.integers(0, 9))
def test_those_of_one_call_stand_in_its_order_and_behind_what_was_due_before(now: int, due_at: int, one: int, other: int) -> None:
    first, second = begin(now, due_at, index=one)[2], begin(now, due_at, index=other)[2]
    assert (first < second) == (one < other)
    assert begin(now - 1, index=other)[2] < first


# The rules, over random runs


@given(runs(), any_command, times)
def test_a_move_leads_only_where_the_table_says(run: Run, cmd: Command, now: int) -> None:
    after = stepped(run, cmd, now)
    move = MOVES[run.state].get(type(cmd))
    if isinstance(after, Run):
        assert move is not None
        assert after.state in move.to
        whole(after)
    else:
        assert 400 <= after.status < 500


EDGES = [(state, kind, to) for state, row in MOVES.items() for kind, move in row.items() for to in move.to]


@pytest.mark.parametrize(("state", "kind", "to"), EDGES, ids=lambda part: getattr(part, "name", part))
def test_every_edge_of_the_table_can_be_gone(state: State, kind: type[Command], to: State) -> None:
    def goes(case: tuple[Run, Command, int]) -> bool:
        run, cmd, now = case
        after = stepped(run, replace(cmd, token=run.token) if isinstance(cmd, Report) else cmd, now)
        return isinstance(after, Run) and after.state is to

    quick = settings(max_examples=500, phases=[Phase.generate], database=None, derandomize=True)
    try:
        find(st.tuples(runs(state), commands[kind], times), goes, settings=quick)
    except NoSuchExample:
        pytest.fail(f"{kind.name} never leads from {state} to {to}")


@given(runs(), any_command, times)
def test_a_move_writes_only_its_fields(run: Run, cmd: Command, now: int) -> None:
    after = stepped(run, cmd, now)
    assume(isinstance(after, Run))
    assert isinstance(after, Run)
    changed = {name for name, value in asdict(after).items() if value != getattr(run, name)}
    assert not changed & set(NEVER_CHANGED)
    if type(cmd) in CHANGED:
        assert changed <= CHANGED[type(cmd)] | {"rev", "state"}
    else:
        assert not changed & set(PATCHED)
    assert after.rev == run.rev + (1 if cmd.journaled else 0)


def test_only_a_beat_leaves_no_entry() -> None:
    assert [kind for kind in COMMANDS if not kind.journaled] == [Beat]


@given(runs(), any_command, times)
def test_a_token_is_checked_before_anything_else(run: Run, cmd: Command, now: int) -> None:
    with pytest.raises(LeaseLost):
        step(run, replace(cmd, token="stale"), now)


@given(runs(*LIVE), any_command, times)
def test_the_right_token_changes_nothing_about_the_answer(run: Run, cmd: Command, now: int) -> None:
    if isinstance(cmd, Skip):
        return  # without a token it is a caller's, below
    with_token, without = stepped(run, replace(cmd, token=run.token), now), stepped(run, cmd, now)
    assert with_token == without or type(with_token) is type(without)


@given(runs(*LIVE), commands[Skip], times)
def test_a_run_that_is_held_is_skipped_by_its_worker_only(run: Run, cmd: Skip, now: int) -> None:
    refusal = stepped(run, cmd, now)
    assert isinstance(refusal, WrongState)
    assert "skip" not in (refusal.hint or "").split(": ")[1].rstrip(".").split(", ")
    after = step(run, replace(cmd, token=run.token), now)
    if run.state is State.CANCELLING:
        assert (after.state, after.reason) == (State.CANCELLED, run.reason)
    else:
        assert (after.state, after.reason, after.failures, after.error) == (State.SKIPPED, cmd.reason, run.failures, run.error)
        assert after.started_at == (run.claimed_at if run.started_at is None else run.started_at)


@given(runs(*ENDED), any_command, times)
def test_nothing_moves_an_ended_run(run: Run, cmd: Command, now: int) -> None:
    assert isinstance(stepped(run, cmd, now), WindlassError)


@given(runs(State.CANCELLING), any_command, times)
def test_a_run_that_is_being_cancelled_ends_cancelled_and_keeps_nothing_of_a_report(run: Run, cmd: Command, now: int) -> None:
    after = stepped(run, cmd, now)
    if isinstance(after, Run) and not isinstance(cmd, Beat):
        assert after.state is State.CANCELLED
        results = [(each.output, each.output_hash, each.output_key, each.error, each.failures) for each in (run, after)]
        assert results[0] == results[1]


@given(runs(State.CLAIMED, State.RUNNING), bad_ends, times)
def test_a_retry_has_no_trace_of_the_worker_and_names_the_attempt_before(run: Run, cmd: Command, now: int) -> None:
    after = step(run, cmd, now)
    unbegun = _as_before(run, cmd)
    assert after.attempt - run.attempt == (after.finished_at is None and not unbegun)
    if after.attempt > run.attempt:
        assert (after.attempt_id, after.retry_of) == ("next", run.current_attempt)
        assert not any(getattr(after, name) for name in (*HELD_FIELDS, "slot", "started_at"))
        assert isinstance(cmd, Snooze | Requeue | Refuse) == (after.failures == run.failures)
        assert isinstance(cmd, Snooze | Requeue) == (after.requeues == run.requeues + 1)


def _as_before(run: Run, cmd: Command) -> bool:
    """Whether a worker gives a run back as it was before its claim."""
    return isinstance(cmd, Requeue) and not cmd.begun and not run.policy.attempt_per_claim


@given(runs(State.CLAIMED, State.RUNNING), times)
def test_what_is_requeued_without_having_begun_is_as_it_was_before_its_claim(run: Run, now: int) -> None:
    run = replace(run, policy=replace(run.policy, attempt_per_claim=False))
    after = step(run, Requeue(token=run.token, begun=False, next_id="next"), now)
    nobodys = dict.fromkeys((*HELD_FIELDS, "slot", "started_at"))
    assert after == replace(run, state=State.QUEUED, rev=run.rev + 1, **nobodys)


@given(runs(State.CLAIMED, State.RUNNING), times)
def test_where_every_claim_is_an_attempt_one_without_a_start_is_closed_as_any_other(run: Run, now: int) -> None:
    run = replace(run, policy=replace(run.policy, attempt_per_claim=True))
    unbegun, begun = (step(run, Requeue(token=run.token, begun=begun, next_id="next"), now) for begun in (False, True))
    assert unbegun == begun


@given(runs(State.CLAIMED, State.RUNNING), bad_ends, times)
def test_an_end_without_success_is_what_the_policy_says(run: Run, cmd: Command, now: int) -> None:
    after = step(run, cmd, now)
    final = isinstance(cmd, Expire) or (isinstance(cmd, Fail) and not cmd.retry) or (isinstance(cmd, Refuse) and not cmd.hope)
    spent = isinstance(cmd, Fail | Lapse) and run.failures + 1 == run.max_attempts
    returned = isinstance(cmd, Snooze | Requeue) and not _as_before(run, cmd) and run.requeues == run.policy.max_requeues
    assert (after.state.value == run.policy.on_exhausted) == (final or spent or returned) == (after.finished_at is not None)


@given(runs(State.QUEUED), commands[Claim], times)
def test_a_lease_ends_its_length_from_now(run: Run, cmd: Claim, now: int) -> None:
    after = step(run, cmd, now)
    assert (after.lease_until, after.lease, after.token, after.worker) == (now + cmd.lease, cmd.lease, cmd.grant, cmd.worker)
    assert after.lease_check_at == now + min(cmd.lease, run.max_runtime or cmd.lease)


@given(runs(*LIVE), commands[Beat], times)
def test_a_beat_shortens_a_lease_only_where_the_clock_was_set_back(run: Run, cmd: Beat, now: int) -> None:
    after, lease, until = step(run, cmd, now), max(run.lease or 0, cmd.lease), max(run.lease_until or 0, now + cmd.lease)
    was_set_back = until > now + lease  # no lease is written that lasts for longer than its length
    assert (after.lease_until, after.lease) == (now + lease if was_set_back else until, lease)


@given(runs(), any_command, times)
def test_progress_is_told_by_a_beat_and_forgotten_by_a_claim(run: Run, cmd: Command, now: int) -> None:
    after = stepped(run, cmd, now)
    if isinstance(after, Run):
        told = cmd.progress if isinstance(cmd, Beat) else None
        assert after.progress == (None if isinstance(cmd, Claim) else run.progress if told is None else told)


# Retries


HALF_A_SECOND = replace(PLAIN, policy=Policy(backoff_base=500))
"""As 0gkit has it."""


@given(st.integers(1, 10**9), st.integers(0, 1_200), chances)
def test_Z7_a_backoff_is_between_half_and_all_of_its_bound(base: int, failures: int, chance: float) -> None:
    upper = min(base * 2 ** (failures + 1), 60_000)
    assert upper // 2 <= backoff(replace(PLAIN, failures=failures, policy=Policy(backoff_base=base)), chance) <= upper


def test_Z7_the_bounds_grow_strictly_up_to_a_minute() -> None:
    tries = [replace(HALF_A_SECOND, failures=failures) for failures in range(1_200)]
    bounds = [(backoff(tried, 0.0), backoff(tried, 1.0)) for tried in tries]
    assert bounds[:6] == [(500 * 2**n, 1_000 * 2**n) for n in range(6)]
    assert set(bounds[6:]) == {(30_000, 60_000)}
    assert all(lower < later and upper < last for (lower, upper), (later, last) in pairwise(bounds[:6]))


def test_what_nobody_has_set_outlasts_an_outage_of_a_minute() -> None:
    retries = [replace(PLAIN, failures=failures) for failures in range(defaults.ATTEMPTS - 1)]
    assert [sum(backoff(retry, chance) for retry in retries) for chance in (0.0, 1.0)] == [65_000, 130_000]


@given(st.lists(durations, min_size=1, max_size=4), st.integers(0, 6), chances)
def test_Z7_a_list_of_its_own_is_honoured_and_its_last_repeated(delays: list[int], failures: int, chance: float) -> None:
    tried = replace(PLAIN, failures=failures, policy=Policy(backoff=tuple(delays)))
    assert backoff(tried, chance) == [*delays, *[delays[-1]] * 6][failures]


@given(runs(State.RUNNING), commands[Fail], times)
def test_a_retry_is_due_after_its_delay_and_stands_where_the_job_says(run: Run, cmd: Fail, now: int) -> None:
    after = step(run, cmd, now)
    assume(after.finished_at is None)
    delay = backoff(run, cmd.chance) if cmd.delay is None else cmd.delay
    assert (after.due_at, after.state) == (now + delay, State.SCHEDULED if delay else State.QUEUED)
    assert after.position == (run.position if run.policy.retry_place == "keep" else place(now + delay - run.head_start))


# Refusals


def refused(run: Run, now: int, *, hope: bool = True, schema: str = "old", code: str = "bad_payload") -> Run:
    """The run after a worker has taken it and refused its payload."""
    taken = replace(run, state=State.RUNNING, token="t", worker="w", claimed_at=now, started_at=now)
    return step(taken, Refuse(error=Failure(code, "it does not fit"), schema=schema, hope=hope, next_id="next"), now)


def test_a_payload_that_is_refused_comes_back_after_one_to_thirty_seconds_and_fails_after_ten_minutes() -> None:
    run, now, delays = PLAIN, START, []
    while run.finished_at is None:
        run = refused(run, now)
        delays.append(run.due_at - now)
        now = max(now, run.due_at)
    assert delays[:7] == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert all(1_000 <= delay <= 30_000 for delay in delays[:-1])
    assert (run.finished_at, run.state, run.failures, run.requeues) == (START + 600_000, State.FAILED, 1, 0)
    assert run.error is not None
    assert run.error.refused == Refusals(("old",), len(delays), START, len(delays), "w")


def test_all_that_refused_in_a_row_is_remembered_and_another_end_begins_anew() -> None:
    run = refused(refused(refused(PLAIN, START), START + 5, schema="other"), START + 9)
    assert last_refused(run) == Refusals(("old", "other"), 3, START, 3, "w")
    snoozed = step(
        replace(run, state=State.RUNNING, token="t", worker="w", claimed_at=START), Snooze(delay=0, next_id="next"), START + HOUR
    )
    assert last_refused(snoozed) is None
    assert last_refused(refused(snoozed, START + HOUR)) == Refusals(("old",), 1, START + HOUR, 5, "w")


def test_a_clock_that_is_set_back_does_not_make_refusals_last_longer() -> None:
    run = refused(refused(PLAIN, START), START - HOUR)
    assert last_refused(run) == Refusals(("old",), 2, START - HOUR, 2, "w")


# Whole lives


@given(
    runs(State.WAITING, State.SCHEDULED, State.QUEUED),
    st.lists(st.tuples(any_command, st.integers(0, 2 * START)), max_size=30),
)
def test_whatever_is_asked_and_whatever_the_clock_says_a_run_stays_whole(run: Run, asked: list[tuple[Command, int]]) -> None:
    ended: Run | None = None
    for number, (cmd, now) in enumerate(asked):
        fresh = replace(cmd, next_id=f"a{number}") if isinstance(cmd, Fail | Snooze | Requeue | Refuse | Lapse) else cmd
        after = stepped(run, replace(fresh, token=run.token) if isinstance(cmd, Report) else fresh, now)
        if isinstance(after, Run):
            run = after
            whole(run)
        assert ended is None or run == ended
        ended = run if run.state in ENDED else None


def test_a_report_is_any_word_of_a_worker_on_how_an_attempt_ended() -> None:
    assert {kind for kind in COMMANDS if issubclass(kind, Report)} == {Succeed, Fail, Snooze, Requeue, Refuse, Skip}
    for kind in (Succeed, Fail, Snooze, Requeue, Refuse):
        assert {state for state, row in MOVES.items() if kind in row} == set(LIVE)
    assert {state for state, row in MOVES.items() if Skip in row} == set(State) - set(ENDED)
