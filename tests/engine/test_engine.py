"""What the verbs promise beyond the conformance lines, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.conformance import unchanged
from tests.harness import BOOM, LEASE, Harness, token
from windlass.engine import Engine, Outcome, Watch
from windlass.errors import (
    BadInput,
    Cancelled,
    DuplicateKey,
    LeaseLost,
    NotEditable,
    NotFound,
    OutcomeUnknown,
    Pruned,
    StoreBusy,
    TooLarge,
    UnknownJob,
    WindlassError,
    WrongState,
)
from windlass.faults import FAULTS
from windlass.machine import Fail, Requeue, Skip, Snooze, Succeed
from windlass.model import Created, Failure, Key, Limits, Member, NewGroup, NewRun, Options, Receipt, Requires, State, WorkerInfo
from windlass.store.records import Held

DAY = 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def no_faults() -> None:
    FAULTS.arm("")


# Definitions


def test_an_edit_of_a_job_touches_only_later_runs_in_every_process(h: Harness) -> None:
    other = h.another()
    first = other.create(payload={"n": 1})  # the other process now remembers the definition
    h.define(payload={"width": 9}, max_attempts=7, priority=3)
    second = other.create(payload={"n": 2})
    assert (h.get(first).payload, h.get(first).max_attempts) == ('{"n":1}', 5)
    assert (h.get(second).payload, h.get(second).max_attempts, h.get(second).priority) == ('{"width":9,"n":2}', 7, 3)


def test_the_same_definition_again_changes_nothing(h: Harness) -> None:
    before = h(h.engine.define("mail"))
    h.clock.advance(1000)
    assert h(h.engine.define("mail")) == before


def test_a_run_gets_the_id_that_its_caller_has_chosen_and_is_created_once(h: Harness) -> None:
    h.define()
    first, second = "0f" * 16, "00000000-0000-4000-8000-000000000001"
    assert h(h.engine.create([NewRun("mail", {"n": 1}, id=first)])) == [Created(first, created=True)]
    before = h.get(first)
    news = [NewRun("mail", {"n": 2}), NewRun("mail", {"n": 3}, id=first), NewRun("mail", {"n": 4}, id=second)]
    (one, again, other) = h(h.engine.create(news))
    assert (again, other) == (Created(first, created=False), Created(second, created=True))
    assert one.created
    assert [h.get(run).payload for run in (one.id, first, second)] == ['{"n":2}', '{"n":1}', '{"n":4}']
    assert h.get(first) == before
    assert h(h.engine.create(news[1:])) == [Created(first, created=False), Created(second, created=False)]


def test_runs_whose_ids_another_process_takes_meanwhile_are_not_lost(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.define()
    taken, own = "a" * 32, "b" * 32
    records, other = h.engine.parts.ground.records.runs, h.another()
    seqs = records.seqs

    async def late(ids: Sequence[str]) -> dict[str, int]:
        known = await seqs(ids)
        monkeypatch.undo()
        other.create(id=taken)
        return known

    monkeypatch.setattr(records, "seqs", late)
    created = h(h.engine.create([NewRun("mail", id=taken), NewRun("mail", id=own)]))
    assert created == [Created(taken, created=False), Created(own, created=True)]
    assert h.moves(own) == ["create"]


@pytest.mark.parametrize("ids", [["x", "x"], ["two words"], [""], ["x" * 65], [7]])
def test_an_id_that_cannot_be_one_is_refused(h: Harness, ids: list[Any]) -> None:
    h.define()
    with pytest.raises(BadInput, match="id"):
        h(h.engine.create([NewRun("mail"), *(NewRun("mail", id=one) for one in ids)]))
    with pytest.raises(BadInput, match="cannot have an id"):
        h(h.engine.create_group(NewGroup((Member(NewRun("mail", id="x")),))))
    assert h.claim(10) == []


def test_an_undefined_job_is_refused_or_waits(h: Harness) -> None:
    with pytest.raises(UnknownJob, match="No job is called 'nobody'"):
        h.create("nobody")
    (made,) = h(h.engine.create([NewRun("nobody")], undefined="wait"))
    assert h.claim(jobs=("mail",)) == []
    assert [run.id for run in h.claim(jobs=("nobody",))] == [made.id]


# Creation


def test_many_runs_are_stored_all_or_none(h: Harness) -> None:
    with pytest.raises(BadInput):
        h(h.engine.create([NewRun("mail"), NewRun("mail", {"bad": float("nan")})]))
    assert h(h.engine.runs()).runs == []


def test_a_refused_key_takes_nothing_with_it(h: Harness) -> None:
    h.create(payload=1, key=Key("a", "forever", on_duplicate="compare"))
    with pytest.raises(DuplicateKey):
        h(h.engine.create([NewRun("mail", 5, key=Key("b", "forever")), NewRun("mail", 2, key=Key("a", "forever", on_duplicate="compare"))]))
    (made,) = h(h.engine.create([NewRun("mail", 6, key=Key("b", "forever"))]))
    assert made.created


def test_one_key_twice_in_one_call_makes_one_run(h: Harness) -> None:
    first, second = h(h.engine.create([NewRun("mail", 1, key=Key("k")), NewRun("mail", 2, key=Key("k"))]))
    assert (second.id, second.created) == (first.id, False)
    with pytest.raises(BadInput, match="twice in one call"):
        h(h.engine.create([NewRun("mail", n, key=Key("m", on_duplicate="compare")) for n in (1, 2)]))


def test_a_key_lasts_as_long_as_it_says(h: Harness) -> None:
    keys = [Key("u"), Key("t", 60_000), Key("f", "forever")]
    made = [h.create(key=key) for key in keys]
    for run in h.claim(3):
        h.succeed(run)
    assert [h.create(key=key) == old for key, old in zip(keys, made, strict=True)] == [False, True, True]
    h.clock.advance(60_000)
    assert [h.create(key=key) == old for key, old in zip(keys[1:], made[1:], strict=True)] == [False, True]


def test_a_key_outlives_the_pruning_of_its_run(h: Harness) -> None:
    old = h.create(key=Key("f", "forever"))
    h.succeed(h.claimed())
    h.sweep(after=8 * DAY)
    (again,) = h(h.engine.create([NewRun("mail", key=Key("f", "forever"))]))
    assert (again.id, again.created, again.pruned) == (old, False, True)
    with pytest.raises(Pruned):
        h.get(old)


def test_creations_in_a_transaction_are_stored_together_or_not_at_all(h: Harness) -> None:
    async def well() -> list[str]:
        async with h.engine.transaction() as together:
            together.create(NewRun("mail", 1))
            together.create(NewRun("mail", 2))
        return [made.id for made in together.created]

    async def badly() -> None:
        async with h.engine.transaction() as together:
            together.create(NewRun("mail", 3))
            raise RuntimeError

    assert len(h(well())) == 2
    with pytest.raises(RuntimeError):
        h(badly())
    assert len(h(h.engine.runs()).runs) == 2


def test_predecessors_release_or_cancel_what_waits(h: Harness) -> None:
    good, bad = h.create(), h.create()
    both = h.create(after=(good, bad))
    after_good = h.create(after=(good,), due_at=h.clock.now() + 5_000)
    child_of_cancelled = h.create(after=(both,))
    any_end = h.create(after=(both,), after_end="any")
    runs = {run.id: run for run in h.claim(2)}
    h.succeed(runs[good])
    assert [h.get(run).state for run in (both, after_good)] == [State.WAITING, State.SCHEDULED]
    h.fail(runs[bad], retry=False)
    assert [h.get(run).state for run in (both, child_of_cancelled, any_end)] == [State.CANCELLED, State.CANCELLED, State.QUEUED]
    assert h.get(child_of_cancelled).reason == "predecessor failed"
    assert h.moves(any_end) == ["create", "release"]


def test_waiting_for_what_has_ended_already_is_decided_at_once(h: Harness) -> None:
    good, bad = h.create(), h.create()
    runs = {run.id: run for run in h.claim(2)}
    h.succeed(runs[good])
    h.fail(runs[bad], retry=False)
    assert h.get(h.create(after=(good,))).state is State.QUEUED
    assert h.get(h.create(after=(good, bad))).state is State.CANCELLED
    assert h.get(h.create(after=(good, bad), after_end="any")).state is State.QUEUED
    with pytest.raises(NotFound, match="to wait for"):
        h.create(after=("nothing",))


def test_a_retry_of_a_predecessor_decides_nothing_yet(h: Harness) -> None:
    h.create()
    waiting = h.create(after=(h(h.engine.runs()).runs[0].id,))
    h.fail(h.claimed())
    assert h.get(waiting).state is State.WAITING
    h.sweep(after=60_000)
    h.succeed(h.claimed())
    assert h.get(waiting).state is State.QUEUED


def test_an_answer_lost_at_commit_is_found_again(h: Harness) -> None:
    FAULTS.arm("create.after_commit=drop@1,claim.after_commit=drop@1,report.after_commit=drop@1,cancel.after_commit=drop@1")
    run_id = h.create()
    other = h.create()
    assert len(h(h.engine.runs()).runs) == 2
    run = h.claimed()
    assert run.id == run_id
    assert h.succeed(run, "1").state is State.SUCCEEDED
    assert h(h.engine.cancel(other)).state is State.CANCELLED
    assert h.moves(run_id) == ["create", "claim", "succeed"]
    assert h.moves(other) == ["create", "cancel"]


def test_a_store_that_refuses_leaves_nothing_behind(h: Harness) -> None:
    run_id = h.create()
    run = h.claimed()
    FAULTS.arm("report.before_commit=raise:busy@1,create.before_commit=raise:busy@1")
    with pytest.raises(StoreBusy):
        h.succeed(run)
    with pytest.raises(StoreBusy):
        h.create()
    assert h.get(run_id) == run
    assert h.succeed(run).state is State.SUCCEEDED


# Claims


def test_a_claim_looks_only_at_lanes_the_worker_can_take(h: Harness) -> None:
    h.define("solve", queue="solvers", requires=Requires(tags=("gpu",), cores=3, memory=1000))
    solve, mail = h.create("solve"), h.create("mail")
    assert h.claim(queues=("other",)) == []
    assert h.claim(jobs=("solve",), tags=("gpu",), cores=2, memory=2048) == []
    assert [run.id for run in h.claim(5, tags=("gpu", "big"), cores=4, memory=1024)] == [solve, mail]


def test_a_lane_made_by_another_process_is_seen_at_once(h: Harness) -> None:
    assert h.claim() == []
    other = h.another()
    other.define("new")
    run_id = other.create("new")
    assert h.claimed().id == run_id


def test_a_claim_asked_again_returns_what_is_still_held_and_takes_no_more(h: Harness) -> None:
    for n in range(6):
        h.create(payload=n)
    worker, nonce = WorkerInfo("w1", slots=10), "n" * 22
    first = h(h.engine.claim(worker, count=3, nonce=nonce))
    assert [run.payload for run in first] == ["0", "1", "2"]
    h.succeed(first[1])
    again = h(h.another().engine.claim(worker, count=3, nonce=nonce))
    assert [run.payload for run in again] == ["0", "2"]
    for run in again:
        h.succeed(run)
    assert h(h.engine.claim(worker, count=3, nonce=nonce)) == []


def test_a_worker_with_one_slot_holds_one_run(h: Harness) -> None:
    h.create(), h.create()
    run = h.claimed(slots=1)
    assert h.claim(slots=1) == []
    assert len(h.claim(worker="w2", slots=1)) == 1
    h.succeed(run)
    h.create()
    assert len(h.claim(slots=1)) == 1


def test_the_order_is_priority_then_position_then_age_over_all_queues(h: Harness) -> None:
    h.define("other", queue="q2")
    now = h.clock.now()
    news = [
        NewRun("mail", "late", due_at=now + 10),
        NewRun("mail", "first"),
        NewRun("other", "second"),
        NewRun("other", "urgent", options=Options(priority=5)),
        NewRun("mail", "never mind", options=Options(priority=-1)),
    ]
    h(h.engine.create(news))
    h.clock.advance(20)
    h.create(payload="last")
    h.sweep()
    assert [run.payload for run in h.claim(10)] == ['"urgent"', '"first"', '"second"', '"late"', '"last"', '"never mind"']


def test_start_said_twice_counts_once_and_is_refused_while_cancelling(h: Harness) -> None:
    run_id = h.create()
    run = h.started()
    h(h.engine.start(run_id, token(run)))
    assert h.moves(run_id) == ["create", "claim", "start"]
    other = h.create()
    claimed = h.claimed()
    h(h.engine.cancel(other))
    with pytest.raises(Cancelled):
        h(h.engine.start(other, token(claimed)))


def test_beats_tell_ok_stop_and_lost(h: Harness) -> None:
    ids = [h.create() for _ in range(3)]
    runs = h.claim(3)
    h(h.engine.cancel(ids[1]))
    h.succeed(runs[2])
    held = [Held(run.seq, token(run)) for run in runs]
    assert h(h.engine.beat(held)) == ["ok", "stop", "lost"]
    assert h(h.engine.beat([Held(runs[0].seq, "x" * 22)])) == ["lost"]


def test_a_beat_extends_and_never_shortens(h: Harness) -> None:
    h.create()
    run = h.claimed()
    h.clock.advance(10_000)
    h(h.engine.beat([Held(run.seq, token(run))], lease=LEASE))
    assert h.get(run.id).lease_until == h.clock.now() + LEASE
    h(h.engine.beat([Held(run.seq, token(run))], lease=1))
    assert h.get(run.id).lease_until == h.clock.now() + LEASE


def test_many_start_at_once_and_each_is_answered(h: Harness) -> None:
    for _ in range(6):
        h.create()
    before, now, stopping, lost, ended, elsewhere = h.claim(6)
    for run in (before, elsewhere):
        h(h.engine.start(run.id, token(run)))
    h(h.engine.cancel(stopping.id))
    h.succeed(ended)
    held = [Held(run.seq, token(run)) for run in (before, now, stopping, ended)]
    stale = [Held(lost.seq, "x" * 22), Held(999_999, "y" * 22), Held(now.seq, "z" * 22), Held(elsewhere.seq, "x" * 22)]
    for _ in range(2):
        assert h(h.engine.start_many([*held, *stale, held[1]])) == set(held[:2])
        assert h.moves(now.id) == h.moves(before.id) == ["create", "claim", "start"]
        assert h.get(lost.id).state is State.CLAIMED
    assert h(h.engine.start_many([])) == set()
    with pytest.raises(TooLarge):
        h(Engine(h.store, h.clock, Limits(report=3)).start_many(held))


def test_progress_travels_with_the_beat_of_its_run(h: Harness) -> None:
    for _ in range(3):
        h.create()
    runs = h.claim(3)
    one, other, stopping = (Held(run.seq, token(run)) for run in runs)
    h(h.engine.cancel(runs[2].id))
    assert h(h.engine.beat([one, other, stopping], progress={one: '{"done": 1}', stopping: "0.5"})) == ["ok", "ok", "stop"]
    assert [h.get(run.id).progress for run in runs] == ['{"done": 1}', None, "0.5"]
    assert [h.get(run.id).rev for run in runs] == [2, 2, 3]
    h(h.engine.beat([one, other], progress={other: "1"}))
    assert [h.get(run.id).progress for run in runs[:2]] == ['{"done": 1}', "1"]
    stale = Held(one.seq, "x" * 22)
    assert h(h.engine.beat([stale], progress={stale: "9"})) == ["lost"]
    h(h.engine.beat([one], progress={one: '"é"'}))
    h.succeed(runs[0])
    assert h.get(runs[0].id).progress == '"é"'
    assert h.moves(runs[0].id) == ["create", "claim", "succeed"]


def test_progress_lasts_until_the_next_claim(h: Harness) -> None:
    run_id = h.create()
    run = h.claimed()
    held = Held(run.seq, token(run))
    h(h.engine.beat([held], progress={held: "1"}))
    h.fail(run, delay=0)
    assert h.get(run_id).progress == "1"
    assert h.claimed().progress is None
    assert h.get(run_id).progress is None


def test_progress_that_cannot_be_kept_is_refused_before_anything_is_written(h: Harness) -> None:
    h.create()
    run = h.claimed()
    held, stranger = Held(run.seq, token(run)), Held(run.seq + 1, "x" * 22)
    h.clock.advance(1_000)
    h(h.engine.beat([held], progress={held: f'"{"x" * 4_094}"'}))
    before = h.get(run.id)
    h.clock.advance(1_000)
    refused: list[tuple[type[Exception], Any]] = [
        (TooLarge, {held: f'"{"x" * 4_095}"'}),
        (TooLarge, {held: f'"{"é" * 2_048}"'}),
        (BadInput, {held: 5}),
        (BadInput, {held: '"\0"'}),
        (BadInput, {held: '"\ud800"'}),
        (BadInput, {stranger: "1"}),
        (BadInput, [held]),
    ]
    for kind, progress in refused:
        with pytest.raises(kind):
            h(h.engine.beat([held], progress=progress))
        assert h.get(run.id) == before


# Reports


def test_many_reports_are_answered_one_by_one(h: Harness) -> None:
    for _ in range(5):
        h.create()
    good, failing, snoozing, stale, large = h.claim(5)
    engine = Engine(h.store, h.clock, Limits(output=10))
    outcomes = [
        Outcome(good.id, Succeed(token=good.token, output="1")),
        Outcome(failing.id, Fail(token=failing.token, error=BOOM)),
        Outcome(snoozing.id, Snooze(token=snoozing.token, delay=5)),
        Outcome(stale.id, Succeed(token="x" * 22)),
        Outcome(large.id, Succeed(token=large.token, output='"' + "x" * 20 + '"')),
        Outcome(good.id, Succeed(token=good.token, output="1")),
        Outcome("nothing", Succeed(token="x" * 22)),
    ]
    answers = h(engine.report_many(outcomes))
    told = [answer.code if isinstance(answer, WindlassError) else answer.state for answer in answers]
    assert told == ["succeeded", "scheduled", "scheduled", "lease_lost", "too_large", "succeeded", "not_found"]
    assert isinstance(answers[5], Receipt)
    assert answers[5].repeated


def test_snoozes_and_requeues_count_no_failure_but_are_bounded(h: Harness) -> None:
    h.define(max_attempts=1, max_requeues=2)
    run_id = h.create()
    h.report(run := h.claimed(), Snooze(token=run.token, delay=1_000))
    assert h.get(run_id).due_at == h.clock.now() + 1_000
    h.sweep(after=1_000)
    h.report(run := h.claimed(), Requeue(token=run.token))
    assert (h.get(run_id).state, h.get(run_id).failures, h.get(run_id).attempt) == (State.QUEUED, 0, 3)
    assert [attempt.outcome for attempt in h(h.engine.attempts(run_id))] == ["returned", "returned", "queued"]
    h.report(run := h.claimed(), Requeue(token=run.token))
    ended = h.get(run_id)
    assert (ended.state, ended.error and ended.error.code) == (State.FAILED, "max_requeues_exceeded")
    assert h.report(run, Requeue(token=run.token)).repeated


def test_the_same_report_again_gets_the_same_answer_also_for_a_closed_attempt(h: Harness) -> None:
    run_id = h.create()
    first = h.claimed()
    assert h.fail(first).state is State.SCHEDULED
    h.sweep(after=60_000)
    second = h.claimed()
    assert h.fail(first) == Receipt(run_id, State.SCHEDULED, repeated=True)
    with pytest.raises(LeaseLost):
        h.fail(first, Failure("other", "no"))
    with pytest.raises(LeaseLost):
        h.succeed(first)
    assert h.get(run_id) == second


def test_a_report_that_says_what_the_end_said_is_accepted_from_anybody(h: Harness) -> None:
    run_id = h.create()
    stale = h.claimed()
    h.sweep(after=LEASE)
    h.sweep(after=60_000)
    h.succeed(h.claimed(), '"42"')
    assert h.succeed(stale, '"42"').repeated
    with pytest.raises(LeaseLost):
        h.succeed(stale, '"43"')
    assert h.get(run_id).output == '"42"'


# Cancelling


def test_a_cancelled_run_keeps_its_slot_until_its_worker_or_the_grace_says_so(h: Harness) -> None:
    run_id = h.create()
    run = h.claimed(slots=1)
    h(h.engine.cancel(run_id, reason="enough", by="ann"))
    assert h(h.engine.cancel(run_id)).state is State.CANCELLING
    h.create()
    assert h.claim(slots=1) == []
    with pytest.raises(Cancelled):
        h.succeed(run, "1")
    with pytest.raises(Cancelled):
        h.succeed(run, "1")
    ended = h.get(run_id)
    assert (ended.state, ended.output, ended.reason) == (State.CANCELLED, None, "enough")
    assert len(h.claim(slots=1)) == 1
    assert h.moves(run_id) == ["create", "claim", "cancel", "confirm"]


def test_the_grace_of_a_cancel_ends_it_although_the_worker_beats(h: Harness) -> None:
    h.define(grace=5_000)
    run_id = h.create()
    run = h.claimed()
    h(h.engine.cancel(run_id))
    for _ in range(5):
        h(h.engine.beat([Held(run.seq, token(run))]))
        h.sweep(after=1_000)
    assert h.get(run_id).state is State.CANCELLED


# Sweeps


def test_a_lease_that_may_not_be_judged_yet_does_not_bring_the_sweep_back_at_once(h: Harness) -> None:
    h.create()
    h.claimed()
    h.clock.advance(LEASE + 1)
    watch = Watch(h.clock)
    assert h(h.engine.sweep(watch)).back_in == 1_000
    soon = h.create(due_at=h.clock.now() + 300)
    assert h(h.engine.sweep(watch)).back_in == 300
    h.clock.advance(300)
    h(h.engine.sweep(watch))
    assert h.get(soon).state is State.QUEUED


def test_a_resident_sweep_does_not_reap_after_a_pause_or_a_jump(h: Harness) -> None:
    run_id = h.create()
    watch = Watch(h.clock)
    h.claimed()
    h.clock.jump(3_600_000)  # the clock was set: the lease looks over
    h(h.engine.sweep(watch))
    assert h.get(run_id).state is State.CLAIMED
    h.clock.advance(LEASE)  # one long pause
    h(h.engine.sweep(watch))
    assert h.get(run_id).state is State.CLAIMED
    for _ in range(LEASE // 1_000):
        h.clock.advance(1_000)
        h(h.engine.sweep(watch))
    assert h.get(run_id).attempt == 2


def test_a_sweep_that_finds_a_lease_renewed_looks_again_later(h: Harness) -> None:
    run_id = h.create()
    run = h.claimed()
    h.clock.advance(LEASE - 1)
    h(h.engine.beat([Held(run.seq, token(run))]))
    h.sweep(after=1)
    assert h.get(run_id).state is State.CLAIMED
    assert h.get(run_id).lease_check_at == h.get(run_id).lease_until
    h.sweep(after=LEASE)
    assert h.get(run_id).state is State.SCHEDULED


def test_a_sweep_passes_over_more_than_it_may_touch(h: Harness) -> None:
    for _ in range(12):
        h(h.engine.create([NewRun("mail")] * 100))
    watch = Watch(h.clock)
    runs = h.claim(1000) + h.claim(100) + h.claim(100, lease=1)
    assert len(runs) == 1200
    h.clock.jump(LEASE)  # all are over, but this process has not watched the long ones for long enough
    lapsed = 0
    for _ in range(3):
        h.clock.advance(1)
        lapsed += h(h.engine.sweep(watch)).lapsed
    assert lapsed == 100
    assert {h.get(run.id).state for run in runs[-100:]} == {State.SCHEDULED}
    assert {h.get(run.id).state for run in runs[:5]} == {State.CLAIMED}


def test_retention_removes_everything_of_a_run_in_its_time(h: Harness) -> None:
    succeeded, failed = h.create(), h.create()
    first, second = h.claim(2)
    h(h.engine.log(first.id, token(first), [(1, "x")]))
    h.succeed(first)
    h.fail(second, retry=False)
    waiting = h.create()
    h.sweep(after=8 * DAY)
    with pytest.raises(NotFound):
        h.get(succeeded)
    assert h.get(failed).state is State.FAILED
    assert h.get(waiting).state is State.QUEUED
    h.sweep(after=23 * DAY)
    with pytest.raises(NotFound):
        h.get(failed)
    assert {entry.run for entry in h(h.engine.tail()).entries} == {waiting}


def test_a_sweep_says_when_it_wants_to_come_back(h: Harness) -> None:
    assert h(h.engine.sweep()).back_in == 1_000
    h.create(due_at=h.clock.now() + 300)
    assert h(h.engine.sweep()).back_in == 300


# Edits


def test_a_patch_changes_what_waits_and_leaves_an_entry(h: Harness) -> None:
    h.define("other")
    first, second = h.create(payload=1), h.create(payload=2)
    h(h.engine.patch(second, priority=4, payload={"new": True}, queue="elsewhere", max_attempts=9, by="ann"))
    run = h.get(second)
    assert (run.priority, run.payload, run.queue, run.max_attempts) == (4, '{"new":true}', "elsewhere", 9)
    assert h(h.engine.history(second))[-1].detail == '{"fields":["max_attempts","payload","priority","queue"],"by":"ann"}'
    assert [item.id for item in h.claim(2)] == [second, first]
    with pytest.raises(NotEditable, match="Cannot modify payload"):
        h(h.engine.patch(second, payload={}))
    with pytest.raises(NotEditable, match="Cannot modify state, token"):
        h(h.engine.patch(first, token="x", state="queued"))


def test_a_patch_of_the_due_time_moves_between_scheduled_and_queued(h: Harness) -> None:
    run_id = h.create()
    later = h.clock.now() + 60_000
    assert h(h.engine.patch(run_id, due_at=later)).state is State.SCHEDULED
    assert h.claim() == []
    assert h(h.engine.patch(run_id, due_at=h.clock.now())).state is State.QUEUED
    assert h.claimed().id == run_id


def test_rerun_makes_a_new_run_from_the_snapshot(h: Harness) -> None:
    h.define(payload={"v": 1}, max_attempts=1)
    run_id = h.create(payload={"n": 1}, key=Key("k", "forever"))
    with pytest.raises(WrongState, match="is queued, and no worker has it; it cannot be rerun before its end"):
        h(h.engine.rerun(run_id))
    h.fail(h.claimed())
    h.define(payload={"v": 2}, max_attempts=5)
    again = h.get(h(h.engine.rerun(run_id)).id)
    assert (again.payload, again.max_attempts, again.retry_of, again.state) == ('{"v":1,"n":1}', 1, run_id, State.QUEUED)
    assert h.get(run_id).state is State.FAILED


def test_skip_ends_what_was_not_handed_out(h: Harness) -> None:
    run_id = h.create()
    assert h(h.engine.skip(run_id, reason="holiday")).reason == "holiday"
    assert h.claim() == []
    with pytest.raises(WrongState, match=r"has already been skipped; it cannot be skipped any more.*rerun it"):
        h(h.engine.skip(run_id, reason="again"))


def test_a_handler_skips_its_run_and_says_why(h: Harness) -> None:
    run_id = h.create()
    held = h.started()
    skip = Skip(token=held.token, reason="duplicate")
    assert h.report(held, skip) == Receipt(run_id, State.SKIPPED)
    run = h.get(run_id)
    assert (run.state, run.reason, run.failures, run.error, run.worker) == (State.SKIPPED, "duplicate", 0, None, held.worker)
    assert [attempt.outcome for attempt in h(h.engine.attempts(run_id))] == ["skipped"]
    assert h.report(held, skip) == Receipt(run_id, State.SKIPPED, repeated=True)
    for other in (Skip(token=held.token, reason="holiday"), Succeed(token=held.token), Requeue(token=held.token)):
        with unchanged(h), pytest.raises(WrongState, match=r"has already been skipped; it cannot be (skipped|reported on) any more"):
            h.report(held, other)


def test_a_run_that_was_claimed_and_not_started_can_be_reported_skipped(h: Harness) -> None:
    h.create()
    held = h.claimed()
    h.clock.advance(5)
    h.report(held, Skip(token=held.token, reason="duplicate"))
    run = h.get(held.id)
    assert (run.state, run.claimed_at, run.started_at, run.finished_at) == (State.SKIPPED, held.claimed_at, held.claimed_at, h.clock.now())


@pytest.mark.parametrize("reason", ["", "x" * 1_001, None, 7])
def test_the_reason_of_a_reported_skip_is_bounded_as_every_reason(h: Harness, reason: Any) -> None:
    h.create()
    held = h.started()
    with unchanged(h), pytest.raises(BadInput, match="A reason must be a text of 1 to 1,000 characters"):
        h.report(held, Skip(token=held.token, reason=reason))


def test_only_the_worker_that_holds_a_run_can_skip_it(h: Harness) -> None:
    h.create()
    held = h.started()
    with unchanged(h), pytest.raises(WrongState, match=r"is running; it cannot be skipped\."):
        h(h.engine.skip(held.id, reason="holiday"))
    with unchanged(h), pytest.raises(LeaseLost):
        h.report(held, Skip(token=h.clock.nonce(), reason="duplicate"))
    h(h.engine.cancel(held.id))
    with unchanged(h), pytest.raises(WrongState, match="is being cancelled already; it cannot be skipped"):
        h(h.engine.skip(held.id, reason="holiday"))
    with pytest.raises(Cancelled):
        h.report(held, Skip(token=held.token, reason="duplicate"))
    assert (h.get(held.id).state, h.get(held.id).reason) == (State.CANCELLED, None)


@pytest.mark.parametrize(("on_failure", "end"), [("stop", State.CANCELLED), ("skip", State.SKIPPED), ("continue", State.QUEUED)])
def test_dependents_of_a_run_that_its_handler_skips_follow_the_rule_of_their_group(
    h: Harness, on_failure: Literal["stop", "skip", "continue"], end: State
) -> None:
    h.define()
    group = h(h.engine.create_group(NewGroup((Member(NewRun("mail")), Member(NewRun("mail"))), "sequential", on_failure)))
    held = h.started()
    h.report(held, Skip(token=held.token, reason="duplicate"))
    assert [run.state for run in h(h.engine.members(group.id))] == [State.SKIPPED, end]


# Reading


def test_pages_of_every_list_give_each_run_once(h: Harness) -> None:
    h.define("other", queue="q2")
    for n in range(7):
        h.create(payload=n)
        h.create("other")
        h.create(due_at=h.clock.now() + 60_000 + n)
    for run in h.claim(6):
        h.succeed(run)
        h.clock.advance(1)
    h.claim(2)
    h.create(after=(h.create(),))
    states = [{"state": state} for state in ("succeeded", "scheduled", "queued", "claimed", "waiting")]
    jobs = [{"job": "mail"}, {"job": "other"}, {"job": "mail", "state": "succeeded"}, {"job": "mail", "state": "queued"}]
    filters: list[dict[str, Any]] = [{}, *states, *jobs, {"queue": "q2", "state": "queued"}, {"queue": "q2"}]
    everything = h(h.engine.runs()).runs
    for chosen in filters:
        expected = {run.id for run in everything if all(getattr(run, name) == value for name, value in chosen.items())}
        seen, cursor = [], None
        while True:
            page = h(h.engine.runs(**chosen, cursor=cursor, count=2))
            seen += [run.id for run in page.runs]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(seen) == len(set(seen)), chosen
        assert set(seen) == expected, chosen


def test_a_cursor_fits_only_its_own_list(h: Harness) -> None:
    cursor = h(h.engine.runs(state="queued", count=1)).cursor
    assert cursor is None
    h.create(), h.create()
    cursor = h(h.engine.runs(job="mail", count=1)).cursor
    with pytest.raises(BadInput, match="not one of this list"):
        h(h.engine.runs(cursor=cursor))


def test_the_tail_gives_every_entry_once_in_pages(h: Harness) -> None:
    h.create()
    seen, cursor = [], None
    for n in range(6):
        page = h(h.engine.tail(cursor, count=2))
        seen += page.entries
        cursor = page.cursor
        if n == 1:
            h.succeed(h.claimed())
    assert [(entry.rev, entry.move) for entry in seen] == [(1, "create"), (2, "claim"), (3, "succeed")]


def test_why_names_what_holds_a_run_back(h: Harness) -> None:
    def codes(run_id: str) -> list[str]:
        return [reason.code for reason in h(h.engine.why(run_id))]

    first, second = h.create(), h.create()
    later = h.create(due_at=h.clock.now() + 1_000)
    waiting = h.create(after=(first,))
    assert codes(first) == ["no_worker"]
    h(h.engine.register(WorkerInfo("w1", jobs=("mail",))))
    assert (codes(first), codes(second), codes(later), codes(waiting)) == ([], ["behind"], ["not_due"], ["waits_for"])
    run = h.claimed()
    assert codes(first) == ["held"]
    h.succeed(run)
    assert codes(first) == ["ended"]
    h.clock.advance(61_000)
    assert codes(second) == ["no_worker"]


def test_log_lines_are_kept_once_in_order_within_their_limit(h: Harness) -> None:
    engine = Engine(h.store, h.clock, Limits(lines=4, line=5))
    run_id = h.create()
    run = h.claimed()
    for lines in ([(1, "one"), (2, "two")], [(2, "two"), (3, "a long line")], [(4, "four"), (5, "five")]):
        h(engine.log(run_id, token(run), lines))
    assert [(line.n, line.text) for line in h(engine.lines(run_id))] == [(1, "one"), (2, "two"), (3, "a lon"), (4, "four")]
    assert [line.n for line in h(engine.lines(run_id, after=(1, 2), count=1))] == [3]
    with pytest.raises(LeaseLost):
        h(engine.log(run_id, "x" * 22, [(6, "six")]))
    h.succeed(run)
    with pytest.raises(LeaseLost):
        h(engine.log(run_id, token(run), [(6, "six")]))


def test_an_attempt_is_found_by_its_own_id(h: Harness) -> None:
    run_id = h.create()
    h.fail(h.claimed())
    h.sweep(after=60_000)
    h.fail(h.claimed())
    ids = [attempt.id for attempt in h(h.engine.attempts(run_id))]
    assert [h.get(attempt).id for attempt in ids] == [run_id] * 3
    assert [attempt.retry_of for attempt in h(h.engine.attempts(run_id))] == [None, *ids[:2]]


def test_an_unknown_outcome_is_not_hidden_when_nothing_can_tell(h: Harness) -> None:
    FAULTS.arm("define.after_commit=drop@1")
    with pytest.raises(OutcomeUnknown):
        h(h.engine.define("other"))
    h.create("other")
