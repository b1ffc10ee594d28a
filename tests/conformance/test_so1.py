"""L: the SO1 job lifecycle. Its job is an attempt: pending, running, then success, failed or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conformance import IN_STATE, SO1, late, running, unchanged
from tests.harness import BOOM, LEASE, Harness, token
from windlass.errors import Cancelled, LeaseLost, WindlassError, WrongState
from windlass.machine import ENDED, LIVE, Fail, Report, Requeue, Skip, Snooze, Succeed
from windlass.model import Failure, NewRun, Run, State
from windlass.store.records import Held

PENDING = (State.WAITING, State.SCHEDULED, State.QUEUED)


def test_L2_started_at_is_set_once(h: Harness) -> None:
    run_id = h.create()
    h.clock.advance(10)
    run = h.claimed()
    h.clock.advance(10)
    h(h.engine.start(run_id, token(run)))
    began = h.clock.now()
    h.clock.advance(10)
    with unchanged(h):
        h(h.engine.start(run_id, token(run)))
    after = h.get(run_id)
    assert (after.state, after.started_at, after.finished_at) == (State.RUNNING, began, None)
    h.succeed(run)
    assert h.get(run_id).started_at == began


def test_L3_success_sets_the_end_and_the_output_and_leaves_no_error(h: Harness) -> None:
    run = running(h)
    h.clock.advance(10)
    h.succeed(run, '{"url": "x"}')
    after = h.get(run.id)
    assert (after.state, after.finished_at, after.output, after.error) == (State.SUCCEEDED, h.clock.now(), '{"url": "x"}', None)


def test_L4_failure_sets_the_end_and_the_error(h: Harness) -> None:
    h.define(**SO1)
    run = running(h)
    h.clock.advance(10)
    h.fail(run, Failure("GITHUB_ERROR", "The workflow was not found."))
    after = h.get(run.id)
    assert (after.state, after.finished_at, after.output) == (State.FAILED, h.clock.now(), None)
    assert after.error == Failure("GITHUB_ERROR", "The workflow was not found.")


def test_L5_cancelled_while_pending_it_has_an_end_but_no_beginning_and_no_worker_gets_it(h: Harness) -> None:
    run_id = h.create()
    h.clock.advance(10)
    assert late(h, "claim", lambda: h(h.engine.cancel(run_id))).claim() == []
    run = h.get(run_id)
    assert (run.state, run.finished_at, run.started_at, run.claimed_at) == (State.CANCELLED, h.clock.now(), None, None)
    h.sweep(after=LEASE)
    assert h.claim(10) == []
    assert h.moves(run_id) == ["create", "cancel"]


def test_L6_cancelled_while_running_the_worker_is_told_and_its_success_changes_nothing(h: Harness) -> None:
    run = running(h)
    h.clock.advance(10)
    asked = h.clock.now()
    assert h(h.engine.cancel(run.id)).cancel_asked_at == asked
    assert h(h.engine.beat([Held(run.seq, token(run))])) == ["stop"]
    h.clock.advance(10)
    with pytest.raises(Cancelled):
        h.succeed(run, '"done"')
    after = h.get(run.id)
    assert (after.state, after.output, after.error) == (State.CANCELLED, None, None)
    assert (after.cancel_asked_at, after.finished_at) == (asked, h.clock.now())


def test_L6_a_worker_that_never_answers_a_cancel_is_not_waited_for_beyond_the_grace(h: Harness) -> None:
    h.define(grace=10_000)
    run = running(h)
    h(h.engine.cancel(run.id))
    h.sweep(after=9_999)
    assert h(h.engine.beat([Held(run.seq, token(run))])) == ["stop"]
    h.sweep(after=1)
    assert h.get(run.id).state is State.CANCELLED
    with unchanged(h), pytest.raises(Cancelled):
        h.succeed(run, '"done"')


TRANSITIONS: dict[str, Callable[[Harness, Run], object]] = {
    "start": lambda h, run: h(h.engine.start(run.id, run.token or h.clock.nonce())),
    "succeed": lambda h, run: h.report(run, Succeed(token=run.token or h.clock.nonce(), output='"other"')),
    "fail": lambda h, run: h.report(run, Fail(token=run.token or h.clock.nonce(), error=Failure("other", "error"))),
    "snooze": lambda h, run: h.report(run, Snooze(token=run.token or h.clock.nonce(), delay=1)),
    "give back": lambda h, run: h.report(run, Requeue(token=run.token or h.clock.nonce())),
    "report skipped": lambda h, run: h.report(run, Skip(token=run.token or h.clock.nonce(), reason="duplicate")),
    "cancel": lambda h, run: h(h.engine.cancel(run.id)),
    "skip": lambda h, run: h(h.engine.skip(run.id, reason="late")),
    "patch": lambda h, run: h(h.engine.patch(run.id, payload={})),
    "log": lambda h, run: h(h.engine.log(run.id, run.token or h.clock.nonce(), [(1, "late")])),
}


@pytest.mark.parametrize("state", ENDED)
def test_L7_nothing_leaves_an_end_and_the_record_stays_byte_identical(h: Harness, state: State) -> None:
    run = IN_STATE[state](h)
    assert run.state is state
    h.clock.advance(LEASE * 2)
    for name, transition in TRANSITIONS.items():
        with unchanged(h), pytest.raises(WindlassError) as refused:
            transition(h, run)
        assert refused.value.status == 409, name
    with unchanged(h):
        assert h(h.engine.beat([Held(run.seq, run.token or h.clock.nonce())])) == ["lost"]
        h.sweep()
        assert h.claim(10) == []
    assert h.get(run.id) == run


@pytest.mark.parametrize("report", [Fail(error=BOOM), Fail(error=BOOM, delay=0), Snooze(delay=0), Snooze(delay=9), Requeue()])
def test_L8_what_has_run_never_is_pending_again_the_next_attempt_is_another_one(h: Harness, report: Report) -> None:
    run = running(h)
    h.report(run, replace(report, token=run.token))
    _assert_succeeded_by_another(h, run)


def test_L8_what_was_lost_never_is_pending_again_the_next_attempt_is_another_one(h: Harness) -> None:
    run = running(h)
    h.sweep(after=LEASE)
    _assert_succeeded_by_another(h, run)


def _assert_succeeded_by_another(h: Harness, before: Run) -> None:
    """The attempt is closed for good, and what is pending has an id of its own."""
    after = h.get(before.id)
    assert after.state in PENDING
    assert after.current_attempt != before.current_attempt
    closed, planned = h(h.engine.attempts(before.id))
    assert (closed.id, closed.token, closed.started_at) == (before.current_attempt, before.token, before.started_at)
    assert closed.outcome in ("failed", "lapsed", "returned")
    assert (planned.id, planned.retry_of, planned.token) == (after.current_attempt, closed.id, None)
    h.clock.advance(60_000)
    h.sweep()
    h.succeed(h.started("w2"))
    assert h(h.engine.attempts(before.id))[0] == closed


def test_L8_no_call_from_outside_makes_it_pending(h: Harness) -> None:
    for state in (*LIVE, *ENDED):
        run = IN_STATE[state](h)
        edits: list[dict[str, Any]] = [{"due_at": h.clock.now()}, {"payload": {}}, {"queue": "other"}, {"max_attempts": 9}]
        with unchanged(h):
            assert h(h.engine.dispatch()) == 0
            for fields in edits:
                with pytest.raises(WrongState):
                    h(h.engine.patch(run.id, **fields))
        assert h.get(run.id).state is state


def test_L9_a_retry_is_a_new_job_and_the_old_one_stays_failed(h: Harness) -> None:
    h.define(**SO1)
    h.create(payload={"repo": "x"})
    old = h.started()
    with unchanged(h), pytest.raises(WrongState):
        h(h.engine.rerun(old.id))
    h.fail(old)
    failed = h.get(old.id)
    again = h.get(h(h.engine.rerun(old.id)).id)
    assert again.id != old.id
    assert (again.state, again.retry_of, again.payload, again.failures) == (State.QUEUED, failed.current_attempt, failed.payload, 0)
    h.succeed(h.started())
    assert h.get(again.id).state is State.SUCCEEDED
    assert h.get(old.id) == failed


def test_L11_log_lines_are_readable_and_unchanged_after_the_end(h: Harness) -> None:
    run = running(h)
    h(h.engine.log(run.id, token(run), [(1, "one"), (2, "two\nlines")]))
    h.clock.advance(5)
    h(h.engine.log(run.id, token(run), [(3, "three"), (2, "not two")]))
    written = h(h.engine.lines(run.id))
    assert [(line.n, line.text, h.clock.now() - line.at) for line in written] == [(1, "one", 5), (2, "two\nlines", 5), (3, "three", 0)]
    h.succeed(run)
    with unchanged(h), pytest.raises(LeaseLost):
        h(h.engine.log(run.id, token(run), [(4, "four")]))
    h.sweep(after=3_600_000)
    assert h(h.engine.lines(run.id)) == written
    assert h(h.engine.lines(run.id, after=(1, 2))) == written[2:]


def test_L11_lines_of_a_failed_attempt_stay_beside_those_of_the_next(h: Harness) -> None:
    run = running(h)
    h(h.engine.log(run.id, token(run), [(1, "first")]))
    h.fail(run, delay=0)
    again = h.started("w2")
    with unchanged(h), pytest.raises(LeaseLost):
        h(h.engine.log(run.id, token(run), [(2, "late")]))
    h(h.engine.log(again.id, token(again), [(1, "second")]))
    h.succeed(again)
    assert [(line.attempt, line.n, line.text) for line in h(h.engine.lines(run.id))] == [(1, 1, "first"), (2, 1, "second")]


ENDINGS: dict[str, Callable[[Harness, Run], object]] = {
    "succeed": lambda h, run: h.succeed(run),
    "fail": lambda h, run: h.fail(run, retry=False),
    "retry": lambda h, run: h.fail(run),
    "snooze": lambda h, run: h.report(run, Snooze(token=run.token, delay=9)),
    "cancel": lambda h, run: h(h.engine.cancel(run.id)),
}


@pytest.mark.parametrize("begins", [True, False], ids=["started", "only claimed"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_L12_times_are_in_order_though_the_clock_is_set_back(h: Harness, ending: str, begins: bool) -> None:
    (created,) = h(h.engine.create([NewRun("mail")]))
    h.clock.jump(-7_200_000)
    h.sweep()
    run = h.claimed()
    if begins:
        h.clock.jump(-60_000)
        h(h.engine.start(run.id, token(run)))
    h.clock.jump(-60_000)
    ENDINGS[ending](h, run)
    if ending == "cancel":
        with pytest.raises(Cancelled):
            h.succeed(run)
    after = h.get(created.id)
    first = h(h.engine.attempts(created.id))[0]
    assert first.finished_at is not None
    assert first.claimed_at is not None
    assert after.created_at <= first.claimed_at <= (first.started_at or first.claimed_at) <= first.finished_at


def test_L12_a_run_cancelled_while_pending_ends_no_earlier_than_it_was_made(h: Harness) -> None:
    run_id = h.create()
    h.clock.jump(-60_000)
    run = h(h.engine.cancel(run_id))
    assert run.finished_at is not None
    assert run.finished_at >= run.created_at
