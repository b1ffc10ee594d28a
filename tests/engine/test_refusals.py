"""A payload that does not fit the code of one worker is offered to others, for a while: a deploy loses nothing. On every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Harness, folder_for, open_store
from tests.workers import ended, in_state, moves, until, working
from windlass import App, State
from windlass.app.signatures import Signature
from windlass.clock import ManualClock
from windlass.errors import BadInput, TooLarge
from windlass.machine import Refuse, Snooze
from windlass.model import Failure, Receipt, Refusals, Requires, Run, WorkerInfo
from windlass.store.base import run_sync

MINUTE = 60_000
UNFIT = Failure("bad_payload", "The payload does not fit mail(to: str).")


@pytest.fixture(params=["memory", "postgres"])
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    clock = ManualClock()
    harness = Harness(open_store(request.param, folder_for(request.param, request), request, clock), clock)
    harness.define()
    yield harness
    run_sync(harness.store.close())


def lives(h: Harness, name: str, schema: str | None, **can: object) -> None:
    """A worker that is alive, and tells what its code accepts of mails, or does not."""
    info = WorkerInfo(name, **{"slots": 9} | can)  # type: ignore[arg-type]
    h(h.engine.register(info, about={"host": "here"}, schemas=None if schema is None else {"mail": schema}))


def refuse(h: Harness, schema: str = "old", worker: str = "w1") -> Receipt:
    run = h.claimed(worker)
    return h.report(run, Refuse(token=run.token, error=UNFIT, schema=schema))


def offered_again(h: Harness, run_id: str) -> Run:
    """The run when its time has come."""
    h.sweep(after=h.get(run_id).due_at - h.clock.now())
    assert h.get(run_id).state is State.QUEUED
    return h.get(run_id)


# Who may accept it


def test_it_goes_back_while_a_live_worker_has_other_code(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "w2", "new")
    run_id = h.create()
    assert refuse(h).state is State.SCHEDULED
    run = h.get(run_id)
    assert (run.failures, run.requeues, run.attempt, run.due_at - h.clock.now()) == (0, 0, 2, 1_000)
    first = h(h.engine.attempts(run_id))[0]
    assert (first.outcome, first.worker, first.error and first.error.code) == ("returned", "w1", "bad_payload")
    assert first.error is not None
    assert first.error.refused == Refusals(("old",), 1, h.clock.now(), 1, "w1")
    offered_again(h, run_id)
    h.succeed(h.claimed("w2"))
    assert (h.get(run_id).state, h.get(run_id).failures) == (State.SUCCEEDED, 0)
    assert h.moves(run_id) == ["create", "claim", "refuse", "dispatch", "claim", "succeed"]


@pytest.mark.parametrize("others", [[], ["old"], ["old", "old"]], ids=len)
def test_it_fails_at_once_where_no_live_worker_has_other_code(h: Harness, others: list[str]) -> None:
    lives(h, "w1", "old")
    for number, schema in enumerate(others):
        lives(h, f"other{number}", schema)
    run_id = h.create()
    assert refuse(h).state is State.FAILED
    error = h.get(run_id).error
    assert error is not None
    assert (error.code, error.message, h.get(run_id).failures) == ("bad_payload", UNFIT.message, 1)


def test_it_fails_when_all_have_refused_it(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "w2", "new")
    run_id = h.create()
    refuse(h)
    offered_again(h, run_id)
    assert refuse(h, "new", "w2").state is State.FAILED


def test_a_worker_that_has_not_told_may_accept_it(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "silent", None)
    run_id = h.create()
    begun = h.clock.now()
    while h.get(run_id).finished_at is None:
        assert h.clock.now() - begun <= 10 * MINUTE
        lives(h, "silent", None)
        refuse(h)
        if h.get(run_id).finished_at is None:
            offered_again(h, run_id)
    assert (h.get(run_id).state, h.clock.now() - begun) == (State.FAILED, 10 * MINUTE)
    assert len(h(h.engine.attempts(run_id))) < 30


def test_only_live_workers_that_take_the_run_count(h: Harness) -> None:
    h.define(requires=Requires(tags=("gpu",), cores=2))
    lives(h, "gone", "new", tags=("gpu",), cores=2)
    h.clock.advance(61_000)
    lives(h, "other queue", "new", queues=("other",), tags=("gpu",), cores=2)
    lives(h, "other job", "new", jobs=("other",), tags=("gpu",), cores=2)
    lives(h, "too small", "new", tags=("gpu",), cores=1)
    h.create()
    run = h.claimed(tags=("gpu",), cores=2)
    assert h.report(run, Refuse(token=run.token, error=UNFIT, schema="old")).state is State.FAILED


def test_another_life_of_the_same_name_may_have_other_code(h: Harness) -> None:
    lives(h, "w1", "new")
    h.create()
    assert refuse(h, "old", "w1").state is State.SCHEDULED


def test_a_worker_that_registers_again_keeps_what_it_told_unless_it_introduces_itself(h: Harness) -> None:
    def told() -> dict[str, str]:
        ((_, schemas),) = h(h.engine.records.workers.schemas_seen(0))
        return schemas

    lives(h, "w1", "new")
    h(h.engine.register(WorkerInfo("w1")))
    assert told() == {"mail": "new"}
    h(h.engine.register(WorkerInfo("w1"), about={"host": "b"}))
    assert told() == {}


def test_what_is_no_schema_is_refused(h: Harness) -> None:
    for bad in ({"mail": "x y"}, {"mail": ""}, {"": "old"}):
        with pytest.raises(BadInput):
            h(h.engine.register(WorkerInfo("w1"), schemas=bad))
    with pytest.raises(TooLarge):
        h(h.engine.register(WorkerInfo("w1"), schemas=dict.fromkeys(map(str, range(2_001)), "old")))
    h.create()
    run = h.claimed()
    with pytest.raises(BadInput):
        h.report(run, Refuse(token=run.token, error=UNFIT, schema="no schema"))
    assert h.get(run.id).state is State.CLAIMED


# How it is told


def test_a_refusal_that_is_reported_again_gets_the_same_answer(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "w2", "new")
    run_id = h.create()
    run = h.claimed()
    report = Refuse(token=run.token, error=UNFIT, schema="old")
    assert (h.report(run, report).repeated, h.report(run, report).repeated) == (False, True)
    offered_again(h, run_id)
    last = h.claimed("w2")
    end = Refuse(token=last.token, error=UNFIT, schema="new")
    assert (h.report(last, end).state, h.report(last, end).repeated) == (State.FAILED, True)


def test_a_run_that_is_being_cancelled_is_not_offered_again(h: Harness) -> None:
    lives(h, "w2", "new")
    h.create()
    run = h.started()
    h(h.engine.cancel(run.id))
    with pytest.raises(Exception, match="cancelled"):
        h.report(run, Refuse(token=run.token, error=UNFIT, schema="old"))
    assert h.get(run.id).state is State.CANCELLED


def test_why_says_by_whom_it_was_refused_and_when_it_will_fail(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "w2", "new")
    lives(h, "w3", None)
    run_id = h.create()
    refuse(h)
    due, reason = h(h.engine.why(run_id))
    assert (due.code, reason.code) == ("not_due", "refused")
    assert reason.text == (
        "Its payload does not fit the code of worker w1 (schema old) and was refused once. 2 of 3 live workers that take it may have "
        "code that it fits (w2, w3). It fails with the next refusal after 10m, or when all live workers have refused it."
    )
    began = h.clock.now()
    assert reason.data == {
        "schemas": ("old",), "count": 1, "since": began, "until": began + 10 * MINUTE, "workers": {"w1": "old", "w2": "new", "w3": None}
    }  # fmt: skip
    offered_again(h, run_id)
    assert h(h.engine.why(run_id)) == []  # any of them would get it now
    h(h.engine.pause("job", "mail"))
    assert [reason.code for reason in h(h.engine.why(run_id))] == ["refused", "paused"]
    h(h.engine.resume("job", "mail"))
    refuse(h)
    assert "was refused 2 times in 1s" in h(h.engine.why(run_id))[1].text
    h.clock.advance(2 * MINUTE)
    assert "No live worker has other code." in h(h.engine.why(run_id))[1].text


def test_an_attempt_that_accepts_it_ends_the_row(h: Harness) -> None:
    lives(h, "w1", "old")
    lives(h, "w2", "new")
    run_id = h.create()
    refuse(h)
    offered_again(h, run_id)
    run = h.claimed("w2")
    h.report(run, Snooze(token=run.token, delay=60 * MINUTE))
    assert [reason.code for reason in h(h.engine.why(run_id))] == ["not_due"]
    offered_again(h, run_id)
    lives(h, "w2", "new")
    assert refuse(h).state is State.SCHEDULED  # though the first one is longer ago than ten minutes


# What code accepts


def test_a_fingerprint_tells_apart_what_is_accepted_and_nothing_else() -> None:
    def old(to: str) -> None: ...
    def same(to: str) -> int: ...  # type: ignore[empty-body]
    def new(to: str, cc: str = "") -> None: ...
    def other_default(to: str, cc: str = "nobody") -> None: ...
    def required(to: str, cc: str) -> None: ...
    def another_type(to: int) -> None: ...

    prints = [Signature(one, "mail").fingerprint for one in (old, same, new, other_default, required, another_type)]
    assert prints[0] == prints[1]
    assert prints[2] == prints[3]
    assert len(set(prints)) == 4


# Through real workers


@pytest.fixture(params=["file", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("emptied_postgres")) if request.param == "postgres" else str(tmp_path / "windlass.db")


def old_app(address: str) -> App:
    app = App(address)

    @app.job(name="mail")
    def mail(to: str) -> str:
        return f"to {to}"

    return app


def new_app(address: str) -> App:
    app = App(address)

    @app.job(name="mail")
    def mail(to: str, cc: str = "") -> str:
        return f"to {to}, cc {cc}"

    return app


def test_a_new_argument_reaches_the_new_worker_although_an_old_one_took_it_first(address: str) -> None:
    with old_app(address) as old, new_app(address) as new:
        announced = {"mail": new.jobs["mail"].signature.fingerprint}  # type: ignore[union-attr]
        run_sync(new.engine.register(WorkerInfo("new", slots=1), about={"host": "here"}, schemas=announced))
        with working(old, name="old"):
            run = new.enqueue("mail", {"to": "ann", "cc": "bob"})
            in_state(run, State.SCHEDULED, attempt=2)
            assert [reason.code for reason in run.why()] == ["not_due", "refused"]
        with working(new, name="new"):
            assert ended(run).state is State.SUCCEEDED
        assert (run.result, run.refresh().failures, run.refresh().requeues) == ("to ann, cc bob", 0, 0)
        assert moves(new, run)[:3] == ["create", "claim", "refuse"]


def test_a_new_argument_fails_at_once_where_all_workers_are_old(address: str) -> None:
    with old_app(address) as old, new_app(address) as new, working(old, name="old"), working(old, name="as old"):
        until(lambda: len(run_sync(new.engine.workers())) == 2)
        run = ended(new.enqueue("mail", {"to": "ann", "cc": "bob"}))
        assert (run.state, run.attempt, run.error and run.error.code) == (State.FAILED, 1, "bad_payload")
