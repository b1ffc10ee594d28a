"""Groups: runs that start and finish together by rule. INV-006 and DEC-012 are those of the scheduler's design guards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.grounds import set_ground
from tests.harness import Harness, open_store, token
from tests.invariants import CLEAR, Observer, clear, with_tables
from tests.tiers import long
from windlass.clock import ManualClock
from windlass.engine import Outcome, creations, groups, removal
from windlass.errors import BadInput, Cancelled, DuplicateKey, NotFound, UnknownJob, WrongState
from windlass.faults import FAULTS
from windlass.machine import ENDED, FIRST, Succeed, begin
from windlass.model import Group, Key, Limits, Member, NewGroup, NewRun, OnFailure, Options, Run, State
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records import Held
from windlass.store.sqlite import BlockingSqlite

DAY = 24 * 3600 * 1000
ON_FAILURE: tuple[OnFailure, ...] = ("stop", "continue", "skip")


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.arm("")


def graph(**after: str) -> tuple[Member, ...]:
    """Members by name, each with the names of those it waits for: graph(a="", b="a", c="a b")."""
    return tuple(Member(NewRun("mail", {"name": name}), name, tuple(names.split())) for name, names in after.items())


def runs(count: int, **options: Any) -> tuple[Member, ...]:
    return tuple(Member(NewRun("mail", {"n": n}, Options(**options))) for n in range(count))


def make(h: Harness, members: Sequence[Member], kind: Any = "sequential", **how: Any) -> Group:
    return h(h.engine.create_group(NewGroup(tuple(members), kind, **how)))


def group_of(h: Harness, group: Group) -> Group:
    return h(h.engine.get_group(group.id))


def members(h: Harness, group: Group) -> list[Run]:
    return h(h.engine.members(group.id, count=1_000))


def states(h: Harness, group: Group) -> list[str]:
    return [run.state.value for run in members(h, group)]


def counts(group: Group) -> tuple[int, int, int]:
    return group.succeeded, group.failed, group.cancelled


def works(h: Harness, *, fails: Callable[[Run], bool] = lambda run: False) -> list[str]:
    """Execute all there is, some of it badly; the ids in that order."""
    done = []
    while taken := h.claim(1):
        for run in taken:
            done.append(run.id)
            h.fail(run, retry=False) if fails(run) else h.succeed(run, f'"{run.id}"')
    return done


# G7, G8, INV-006: a group has ended when all its runs have


def test_G7_a_group_has_no_end_while_any_run_is_unfinished(h: Harness) -> None:
    group = make(h, runs(3), "parallel")
    for run in h.claim(3):
        found = group_of(h, group)
        assert (found.status, found.finished_at) == ("running", None)
        h.succeed(run)
    assert group_of(h, group).status == "completed"


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("ss", "completed"),
        ("sf", "partial"),
        ("ff", "partial"),
        ("fc", "partial"),
        ("sc", "partial"),
        ("cc", "cancelled"),
        ("ck", "cancelled"),
        ("kk", "cancelled"),
    ],
)
def test_G8_the_status_follows_from_how_all_have_ended(h: Harness, ends: str, status: str) -> None:
    group = make(h, runs(2), "parallel")
    for end, run in zip(ends, members(h, group), strict=True):
        h.clock.advance(1)
        if end == "c":
            h(h.engine.cancel(run.id))
        elif end == "k":
            h(h.engine.skip(run.id, reason="not needed"))
        else:
            taken = h.claimed()
            h.succeed(taken) if end == "s" else h.fail(taken, retry=False)
    found = group_of(h, group)
    assert (found.status, found.finished_at) == (status, h.clock.now())
    assert counts(found) == (ends.count("s"), ends.count("f"), ends.count("c") + ends.count("k"))


def test_INV_006_a_group_is_running_whatever_its_members_are_but_ended(h: Harness) -> None:
    """Unit: every state of the member that is not an end, beside one that has ended."""
    group = make(h, runs(2, backoff=(1_000,)), "parallel")
    one, other = h.claim(2)
    h.succeed(one)
    seen = {h.get(other.id).state}

    def unfinished() -> None:
        seen.add(h.get(other.id).state)
        found = group_of(h, group)
        assert (found.status, counts(found), found.finished_at) == ("running", (1, 0, 0), None)

    h(h.engine.start(other.id, token(other)))
    unfinished()
    h.fail(other)
    unfinished()
    h.sweep(1_000)
    unfinished()
    again = h.claimed()
    h(h.engine.cancel(again.id))
    unfinished()
    with pytest.raises(Cancelled):
        h.succeed(again)
    assert group_of(h, group).status == "partial"
    assert seen == {State.CLAIMED, State.RUNNING, State.SCHEDULED, State.QUEUED, State.CANCELLING}


@pytest.mark.parametrize("how", ["lapse", "expire", "abandon"])
def test_INV_006_an_end_that_time_brings_ends_the_group_in_the_same_batch(h: Harness, how: str) -> None:
    """Integration: the sweep ends the last run, by whatever its lease says."""
    group = make(
        h, runs(1, max_attempts=1, grace=5_000, max_runtime=10_000 if how == "expire" else None), "parallel", callback=NewRun("mail")
    )
    run = h.claimed()
    if how == "abandon":
        h(h.engine.cancel(run.id))
    if how == "expire":
        h.clock.advance(9_000)
        h(h.engine.beat([Held(run.seq, token(run))], lease=60_000))
    h.sweep(30_000)
    found = group_of(h, group)
    assert (found.status, counts(found)) == (("cancelled", (0, 0, 1)) if how == "abandon" else ("partial", (0, 1, 0)))
    assert h.moves(found.callback or "") == ["create", "release"]


def test_INV_006_an_end_that_is_refused_does_not_count(h: Harness) -> None:
    """Error: a stale token, a report that comes twice, and a cancel that comes too late change nothing of the group."""
    group = make(h, runs(2, backoff=(0,)), "parallel")
    stale, other = h.claim(2, lease=1_000)
    h.sweep(1_000)
    again = h.claim(2)
    h.succeed(again[0])
    before = group_of(h, group)
    assert counts(before) == (1, 0, 0)
    for late in (stale, other):
        if late.id != again[0].id:
            with pytest.raises(Exception, match="not held under this token"):
                h.succeed(late, '"other"')
    assert h.succeed(again[0]).repeated
    with pytest.raises(WrongState):
        h(h.engine.cancel(again[0].id))
    assert group_of(h, group) == before


# G26, G27, G28, DEC-012: one after the other


def test_G26_the_runs_of_a_sequential_group_are_executed_in_order(h: Harness) -> None:
    group = make(h, runs(4))
    given = [run.id for run in members(h, group)]
    done: list[str] = []
    while taken := h.claim(10):
        (run,) = taken  # never two at once
        assert states(h, group).count("waiting") == 3 - len(done)
        h.clock.advance(10)
        h.succeed(run)
        done.append(run.id)
    assert done == given
    for one, next_ in pairwise(members(h, group)):
        assert (one.finished_at or 0) <= (next_.claimed_at or 0)


def test_G26_the_order_is_that_of_the_call_whatever_jobs_and_priorities_there_are(h: Harness) -> None:
    h.define("other", priority=9)
    jobs = ["mail", "other", "mail", "other", "other", "mail"]
    group = make(h, [Member(NewRun(job, {"n": n})) for n, job in enumerate(jobs)])
    assert [run.job for run in members(h, group)] == jobs
    assert works(h) == [run.id for run in members(h, group)]


def test_G27_when_a_run_fails_for_good_those_behind_it_are_cancelled(h: Harness) -> None:
    group = make(h, runs(4, max_attempts=1))
    h.succeed(h.claimed())
    h.fail(h.claimed())
    assert states(h, group) == ["succeeded", "failed", "cancelled", "cancelled"]
    assert [run.reason for run in members(h, group)[2:]] == ["predecessor failed"] * 2
    assert [h.moves(run.id) for run in members(h, group)[2:]] == [["create", "cancel"]] * 2
    found = group_of(h, group)
    assert (found.status, counts(found)) == ("partial", (1, 1, 2))
    assert h.claim() == []


def test_G27_nothing_is_cancelled_while_a_run_can_be_tried_again(h: Harness) -> None:
    group = make(h, runs(3, max_attempts=3, backoff=(1_000,)))
    for _ in range(2):
        h.fail(h.claimed())
        assert states(h, group)[1:] == ["waiting", "waiting"]
        assert counts(group_of(h, group)) == (0, 0, 0)
        h.sweep(1_000)
    h.fail(h.claimed())
    assert states(h, group) == ["failed", "cancelled", "cancelled"]


def test_G28_a_group_whose_run_failed_once_and_then_succeeded_is_completed(h: Harness) -> None:
    group = make(h, runs(2, backoff=(1_000,)))
    h.fail(h.claimed())
    h.sweep(1_000)
    assert len(works(h)) == 2
    found = group_of(h, group)
    assert (found.status, counts(found)) == ("completed", (2, 0, 0))


@pytest.mark.parametrize("end", ["failed", "quarantined", "cancelled", "skipped"])
def test_DEC_012_whatever_keeps_a_run_from_succeeding_stops_those_behind_it(h: Harness, end: str) -> None:
    """Unit: each end but success."""
    exhausted = "quarantined" if end == "quarantined" else "failed"
    group = make(h, runs(3, max_attempts=1, on_exhausted=exhausted))
    first = members(h, group)[0]
    if end == "cancelled":
        h(h.engine.cancel(first.id, reason="mine"))
    elif end == "skipped":
        h(h.engine.skip(first.id, reason="mine"))
    else:
        h.fail(h.claimed())
    assert states(h, group) == [end, "cancelled", "cancelled"]
    assert [run.reason for run in members(h, group)[1:]] == ["predecessor failed"] * 2
    assert group_of(h, group).status == ("partial" if end in ("failed", "quarantined") else "cancelled")


@pytest.mark.parametrize(
    ("on_failure", "ends", "status"),
    [
        ("stop", ["failed", "cancelled", "cancelled"], "partial"),
        ("continue", ["failed", "succeeded", "succeeded"], "partial"),
        ("skip", ["failed", "skipped", "skipped"], "partial"),
    ],
)
def test_DEC_012_what_becomes_of_the_rest_is_said_by_on_failure(h: Harness, on_failure: OnFailure, ends: list[str], status: str) -> None:
    """Integration: the whole life of a chain whose first run fails."""
    group = make(h, runs(3), on_failure=on_failure)
    first = members(h, group)[0].id
    works(h, fails=lambda run: run.id == first)
    assert states(h, group) == ends
    assert group_of(h, group).status == status
    reasons = [run.reason for run in members(h, group)[1:]]
    assert reasons == ([None] * 2 if on_failure == "continue" else ["predecessor failed"] * 2)


def test_DEC_012_an_unknown_rule_is_refused(h: Harness) -> None:
    """Error: and nothing is stored."""
    with pytest.raises(BadInput, match="on_failure"):
        make(h, runs(2), on_failure="explode")
    assert h(h.engine.groups()) == []
    assert h(h.engine.runs()).runs == []


def test_in_a_parallel_group_a_failure_stops_nobody(h: Harness) -> None:
    group = make(h, runs(3), "parallel", on_failure="stop")
    first = members(h, group)[0].id
    works(h, fails=lambda run: run.id == first)
    assert states(h, group) == ["failed", "succeeded", "succeeded"]


# Members that name their predecessors


def test_a_diamond_is_released_when_both_sides_have_ended(h: Harness) -> None:
    group = make(h, graph(top="", left="top", right="top", bottom="left right"), "graph")
    h.succeed(h.claimed())
    left, right = h.claim(10)
    h.succeed(left)
    assert h.claim() == []
    h.succeed(right)
    bottom = h.claimed()
    assert bottom.id == members(h, group)[3].id
    h.succeed(bottom)
    assert group_of(h, group).status == "completed"


def test_the_members_may_be_given_in_any_order(h: Harness) -> None:
    group = make(h, graph(last="first middle", middle="first", first=""), "graph")
    done = works(h)
    assert done == [run.id for run in reversed(members(h, group))]


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
def test_a_failure_takes_along_all_that_need_it_and_nobody_else(h: Harness, on_failure: OnFailure) -> None:
    group = make(h, graph(a="", b="a", c="b", d="b e", e="", f="e"), "graph", on_failure=on_failure)
    names = {run.id: name for run, name in zip(members(h, group), "abcdef", strict=True)}
    works(h, fails=lambda run: names[run.id] == "b")
    ended = "cancelled" if on_failure == "stop" else "skipped"
    assert states(h, group) == ["succeeded", "failed", ended, ended, "succeeded", "succeeded"]
    assert h.moves(members(h, group)[3].id) == ["create", "cancel" if on_failure == "stop" else "skip"]
    assert counts(group_of(h, group)) == (3, 1, 2)


def test_a_run_outside_that_waits_for_a_skipped_member_is_cancelled(h: Harness) -> None:
    group = make(h, runs(2), on_failure="skip")
    outside = h.create(after=(members(h, group)[1].id,))
    h.fail(h.claimed(), retry=False)
    assert states(h, group) == ["failed", "skipped"]
    assert (h.get(outside).state, h.get(outside).reason) == (State.CANCELLED, "predecessor failed")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (graph(a="a"), "waits for itself"),
        (graph(a="nobody"), "waits for 'nobody', which is not in the group"),
        (graph(a="", b="a a"), "names 'a' more than once"),
        (graph(a="b", b="a"), "in a circle: a -> b -> a"),
        (graph(x="", a="x c", b="a", c="b"), "in a circle: a -> c -> b -> a"),
        ((Member(NewRun("mail"), "a"), Member(NewRun("mail"), "a")), "Two members are called 'a'"),
        ((Member(NewRun("mail"), "a", ("",)),), "A predecessor's name must be"),
        ((Member(NewRun("mail", key=Key("k"))),), "cannot have a key"),
        ((Member(NewRun("mail", after=("x",))),), "cannot wait for runs outside of it"),
        ((Member(NewRun("mail"), "a\0"),), "A member's name"),
        ((Member(NewRun("mail", options=Options(max_attempts=0))),), "max_attempts"),
        ((), "at least one member"),
        (("mail",), "A member must be Member"),
    ],
)
def test_what_cannot_be_a_group_is_refused_before_anything_is_stored(h: Harness, wanted: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make(h, wanted, "graph")
    assert h(h.engine.groups()) == []
    assert h(h.engine.runs()).runs == []


def test_only_the_members_of_a_graph_name_predecessors(h: Harness) -> None:
    for kind in ("parallel", "sequential"):
        with pytest.raises(BadInput, match="name no predecessors"):
            make(h, graph(a="", b="a"), kind)


def test_a_job_that_nobody_has_defined_is_refused_unless_it_may_be_waited_for(h: Harness) -> None:
    group = NewGroup((Member(NewRun("mail")), Member(NewRun("ghost"))))
    with pytest.raises(UnknownJob):
        h(h.engine.create_group(group))
    assert h(h.engine.runs()).runs == []
    assert h(h.engine.create_group(group, undefined="wait")).total == 2


def test_a_group_is_bounded(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(create=3, predecessors=1, waits=1))
    with pytest.raises(Exception, match="the limit is 3"):
        make(h, runs(4))
    with pytest.raises(BadInput, match="waits for 2 others; the limit is 1"):
        make(h, graph(a="", b="", c="a b"), "graph")
    with pytest.raises(Exception, match="the limit is 1"):
        make(h, graph(a="", b="a", c="b"), "graph")
    assert h(h.engine.runs()).runs == []


# All or none


@pytest.mark.parametrize("point", ["create_group.before_commit", "create_group.after_add_group_waits"])
def test_a_group_is_stored_whole_or_not_at_all(h: Harness, point: str) -> None:
    FAULTS.arm(f"{point}=raise:busy@1")
    with pytest.raises(Exception, match="Injected"):
        make(h, runs(3), callback=NewRun("mail"))
    assert h(h.engine.runs()).runs == []
    assert h(h.engine.groups()) == []


def test_a_creation_whose_answer_was_lost_is_found_again(h: Harness) -> None:
    FAULTS.arm("create_group.after_commit=raise:unknown@1")
    group = make(h, runs(3))
    assert states(h, group) == ["queued", "waiting", "waiting"]
    assert len(h(h.engine.groups())) == 1


def test_a_definition_that_changed_meanwhile_is_read_again(h: Harness) -> None:
    other = h.another()
    make(h, runs(1))
    other.define("mail", queue="elsewhere")
    group = make(h, runs(2))
    assert [run.queue for run in members(h, group)] == ["elsewhere"] * 2


def test_the_same_request_again_is_the_same_group(h: Harness) -> None:
    key = Key("once", ttl=1_000, on_duplicate="compare")
    group = make(h, runs(2), key=key)
    assert make(h, runs(2), key=key) == group
    with pytest.raises(DuplicateKey, match="other content"):
        make(h, runs(3), key=key)
    assert len(h(h.engine.runs()).runs) == 2
    h.clock.advance(1_000)
    assert make(h, runs(3), key=key).id != group.id
    with pytest.raises(BadInput, match="needs a time to live"):
        make(h, runs(3), key=Key("while it lasts"))


# Results, and the callback


def test_a_run_can_read_what_those_before_it_returned(h: Harness) -> None:
    group = make(h, graph(a="", b="", c="a b", d="c"), "graph")
    a, b, c, d = [run.id for run in members(h, group)]
    assert h(h.engine.results(c)) != []  # not yet an output, but who they are
    for run in h.claim(2):
        h.succeed(run, '{"n": 1}' if run.id == a else '{"n": 2}')
    found = h(h.engine.results(c))
    assert [(result.id, result.job, result.state, result.value) for result in found] == [
        (a, "mail", State.SUCCEEDED, {"n": 1}),
        (b, "mail", State.SUCCEEDED, {"n": 2}),
    ]
    assert h(h.engine.results(c, count=1)) == found[:1]
    assert h(h.engine.results(c, after=a)) == found[1:]
    assert h(h.engine.results(a)) == []
    assert [result.id for result in h(h.engine.results(d))] == [c]


def test_a_plain_run_can_read_what_it_waited_for(h: Harness) -> None:
    first = h.create()
    second = h.create(after=(first,))
    h.succeed(h.claimed(), "7")
    assert [result.value for result in h(h.engine.results(second))] == [7]


def test_the_callback_begins_when_all_have_ended_and_reads_them_in_the_order_of_the_call(h: Harness) -> None:
    h.define("sum", queue="sums")
    h.define("other")
    wanted = [Member(NewRun("mail" if n % 3 else "other", {"n": n}, Options(max_attempts=1))) for n in range(7)]
    group = make(h, wanted, "parallel", callback=NewRun("sum", {"for": "all"}))
    given = [run.id for run in members(h, group)]
    assert len(given) == 7  # the callback is not one of them
    callback = group.callback or ""
    for run in h.claim(7):
        assert h.get(callback).state is State.WAITING
        h.fail(run) if run.id == given[2] else h.succeed(run, f'"{run.id}"')
    assert h.moves(callback) == ["create", "release"]
    called = h.claimed()
    assert (called.id, called.payload) == (callback, '{"for":"all"}')
    found = h(h.engine.results(callback))
    assert [result.id for result in found] == given
    assert [result.value for result in found] == [None if run == given[2] else run for run in given]
    assert found[2].state is State.FAILED
    h.fail(called, retry=False)
    assert group_of(h, group).status == "partial"


def test_a_callback_that_somebody_cancelled_is_not_called(h: Harness) -> None:
    group = make(h, runs(1), callback=NewRun("mail"))
    h(h.engine.cancel(group.callback or ""))
    h.succeed(h.claimed())
    assert group_of(h, group).status == "completed"
    assert h.claim() == []


def test_a_callback_that_is_due_later_waits_for_its_time(h: Harness) -> None:
    group = make(h, runs(1), callback=NewRun("mail", due_at=h.clock.now() + 5_000))
    h.succeed(h.claimed())
    assert h.get(group.callback or "").state is State.SCHEDULED
    h.sweep(5_000)
    assert h.claimed().id == group.callback


def test_why_a_callback_waits_is_told_until_its_group_has_ended(h: Harness) -> None:
    group = make(h, runs(2), "parallel", callback=NewRun("mail"))
    h.succeed(h.claim(1)[0])
    (reason,) = h(h.engine.why(group.callback or ""))
    assert (reason.code, reason.data) == ("waits_for_group", {"group": group.id, "left": 1, "total": 2})
    h.succeed(h.claim(1)[0])
    assert "waits_for_group" not in [reason.code for reason in h(h.engine.why(group.callback or ""))]


# Cancel and rerun


@pytest.mark.parametrize("on_failure", ON_FAILURE)
def test_a_whole_group_is_cancelled(h: Harness, on_failure: OnFailure) -> None:
    group = make(h, graph(a="", b="a", c="b", d="c", e=""), "graph", on_failure=on_failure)
    h.succeed(h.claimed())
    running = h.claim(1)[0]
    found = h(h.engine.cancel_group(group.id, reason="changed my mind", by="ann"))
    assert (found.status, found.reason) == ("running", "changed my mind")
    assert Counter(states(h, group)) == Counter(["succeeded", "cancelling", "cancelled", "cancelled", "cancelled"])
    assert {run.reason for run in members(h, group)[1:]} == {"changed my mind"}
    entry = h(h.engine.history(members(h, group)[3].id))[-1]
    assert (entry.move, entry.detail) == ("cancel", f'{{"reason":"changed my mind","group":"{group.id}","by":"ann"}}')
    assert h(h.engine.cancel_group(group.id)).status == "running"  # asked again while one stops
    with pytest.raises(Cancelled):
        h.succeed(running)
    assert (group_of(h, group).status, counts(group_of(h, group))) == ("partial", (1, 0, 4))
    with pytest.raises(WrongState, match="has ended: partial"):
        h(h.engine.cancel_group(group.id))


def test_a_group_is_cancelled_from_its_end(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that goes on after a cancel: each slice would release the next, if the last were not cancelled first."""
    monkeypatch.setattr(groups, "SLICE", 7)
    group = make(h, runs(40), on_failure="continue")
    h.succeed(h.claimed())
    found = h(h.engine.cancel_group(group.id))
    assert (found.status, counts(found)) == ("partial", (1, 0, 39))
    assert {entry for run in members(h, group)[2:] for entry in h.moves(run.id)} == {"create", "cancel"}


def test_a_rerun_has_the_same_shape_and_names_what_it_repeats(h: Harness) -> None:
    h.define("sum")
    wanted = graph(a="", b="a", c="a", d="b c")
    group = make(h, wanted, "graph", on_failure="skip", callback=NewRun("sum"), name="nightly")
    with pytest.raises(WrongState, match="is running"):
        h(h.engine.rerun_group(group.id))
    works(h, fails=lambda run: run.job == "mail")
    assert states(h, group) == ["failed", "skipped", "skipped", "skipped"]
    again = h(h.engine.rerun_group(group.id))
    assert (again.retry_of, again.name, again.kind, again.on_failure, again.total) == (group.id, "nightly", "graph", "skip", 4)
    assert states(h, again) == ["queued", "waiting", "waiting", "waiting"]
    old, new = members(h, group), members(h, again)
    assert [run.payload for run in new] == [run.payload for run in old]
    assert [run.retry_of for run in new] == [run.current_attempt for run in old]
    assert h.get(again.callback or "").retry_of == group.callback
    h.succeed(h.claimed())
    left, right = h.claim(10)
    assert {left.id, right.id} == {new[1].id, new[2].id}
    h.succeed(left)
    assert h.claim() == []
    h.succeed(right)
    works(h)
    assert group_of(h, again).status == "completed"
    assert group_of(h, group).status == "partial"


def test_a_rerun_names_the_last_attempt(h: Harness) -> None:
    group = make(h, runs(1, backoff=(0,), max_attempts=2))
    h.fail(h.claimed())
    h.fail(h.claimed())
    old = members(h, group)[0]
    assert old.attempt_id is not None
    assert members(h, h(h.engine.rerun_group(group.id)))[0].retry_of == old.attempt_id


def test_the_same_rerun_again_is_the_same_group(h: Harness) -> None:
    group = make(h, runs(2))
    works(h)
    key = Key("again", ttl=1_000)
    again = h(h.engine.rerun_group(group.id, key=key))
    assert h(h.engine.rerun_group(group.id, key=key)) == again
    assert len(h(h.engine.groups())) == 2


# Looking, and retention


def test_groups_are_listed_newest_first(h: Harness) -> None:
    ids = [make(h, runs(1), name=f"g{n}").id for n in range(5)]
    works(h)
    running = make(h, runs(1)).id
    assert [group.id for group in h(h.engine.groups())] == [running, *reversed(ids)]
    assert [group.id for group in h(h.engine.groups(status="running"))] == [running]
    first = h(h.engine.groups(status="completed", count=2))
    assert [group.id for group in first] == [ids[4], ids[3]]
    assert [group.id for group in h(h.engine.groups(status="completed", count=2, after=first[-1].id))] == [ids[2], ids[1]]
    with pytest.raises(BadInput, match="status"):
        h(h.engine.groups(status="odd"))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="There is no group"):
        h(h.engine.get_group("nobody"))


def test_a_group_goes_with_the_last_of_its_runs(h: Harness) -> None:
    group = make(h, runs(3, max_attempts=1), "parallel", callback=NewRun("mail"))
    other = make(h, runs(1))
    first = members(h, group)[0].id
    works(h, fails=lambda run: run.id == first)
    h.clock.advance(8 * DAY)
    h(h.engine.prune())
    assert states(h, group) == ["failed"]
    assert group_of(h, group).status == "partial"
    with pytest.raises(NotFound):
        group_of(h, other)
    with pytest.raises(BadInput, match="has lost 2 of its 3 runs"):
        h(h.engine.rerun_group(group.id))
    h.clock.advance(30 * DAY)
    h(h.engine.prune())
    with pytest.raises(NotFound):
        group_of(h, group)


def test_a_group_outlives_members_that_went_before_its_end(h: Harness) -> None:
    group = make(h, runs(2), "parallel")
    h.succeed(h.claimed())
    h.clock.advance(8 * DAY)
    h(h.engine.prune())
    assert (len(members(h, group)), group_of(h, group).status) == (1, "running")
    h.succeed(h.claimed())
    assert group_of(h, group).status == "completed"


def test_what_a_callback_may_read_is_kept_until_it_has_ended(h: Harness) -> None:
    group = make(h, runs(2), "parallel", callback=NewRun("mail"))
    for run in h.claim(2):
        h.succeed(run, f'"{run.id}"')
        h.clock.advance(8 * DAY)
        assert h(h.engine.prune()) == 0
    called = h.claimed()
    assert [result.output for result in h(h.engine.results(called.id))] == [f'"{run.id}"' for run in members(h, group)]
    h.succeed(called)
    assert h(h.engine.prune()) == 2
    assert h.get(called.id).state is State.SUCCEEDED


def test_what_a_run_waited_for_is_kept_until_that_run_has_ended(h: Harness) -> None:
    first, never = h.create(), h.create(due_at=h.clock.now() + 40 * DAY)
    waiting = h.create(after=(first, never))
    h.succeed(h.claimed(), '"first"')
    for ended in range(3):
        h.clock.advance(8 * DAY)
        assert h(h.engine.prune()) == 0, ended
    h.clock.advance(40 * DAY)
    h.sweep()
    h.succeed(h.claimed(), '"never"')
    run = h.claimed()
    assert run.id == waiting
    assert {result.output for result in h(h.engine.results(run.id))} == {'"first"', '"never"'}
    h.clock.advance(8 * DAY)
    assert h(h.engine.prune()) == 0
    h(h.engine.cancel(run.id))
    with pytest.raises(Cancelled):
        h.succeed(run)
    assert h(h.engine.prune()) == 2
    assert [left.id for left in h(h.engine.runs()).runs] == [waiting]


def test_what_is_kept_does_not_hide_what_may_go(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 2)
    blocking = h.create(due_at=h.clock.now() + 90 * DAY)
    kept = [h.create() for _ in range(9)]
    h.create(after=(*kept, blocking))
    for run in h.claim(9):
        h.succeed(run)
    h.clock.advance(1)
    gone = [h.create() for _ in range(3)]
    for run in h.claim(3):
        h.succeed(run)
    h.clock.advance(8 * DAY)
    assert [h(h.engine.prune()) for _ in range(2)] == [3, 0]
    assert set(h(h.engine.records.runs.seqs([*kept, *gone]))) == set(kept)


def test_what_begins_to_be_needed_while_it_is_removed_stays(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    done = h.create()
    h.succeed(h.claimed())
    h.clock.advance(8 * DAY)
    prune = h.engine.records.retention.prune

    async def later(ids: Iterable[int], now: int, **how: bool) -> None:
        await h.another().engine.create([NewRun("mail", after=(done,))])
        await prune(ids, now, **how)

    monkeypatch.setattr(h.engine.records.retention, "prune", later)
    assert h(h.engine.prune()) == 0
    assert h.get(done).state is State.SUCCEEDED


# Ten thousand members


def _shapes(count: int) -> dict[str, NewGroup]:
    job = NewRun("mail", options=Options(max_attempts=1))
    alone = tuple(Member(job) for _ in range(count))
    fan = (Member(job, "first"), *(Member(job, str(n), ("first",)) for n in range(count - 1)))
    return {
        "parallel": NewGroup(alone, callback=job),
        "sequential": NewGroup(alone, "sequential", callback=job),
        "graph": NewGroup(fan, "graph", callback=job),
    }


@long
@pytest.mark.parametrize("kind", ["file", "postgres"])
@pytest.mark.parametrize("shape", ["graph", "parallel", "sequential"])
def test_ten_thousand_members_are_created_cancelled_and_run_again(
    kind: str, shape: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clock = ManualClock()
    h = Harness(open_store(kind, tmp_path, request, clock), clock)
    h.define()
    group = h(h.engine.create_group(_shapes(10_000)[shape]))
    h.succeed(h.claimed())
    cancelled = h(h.engine.cancel_group(group.id))
    assert (cancelled.status, counts(cancelled)) == ("partial", (1, 0, 9_999))
    assert h.claimed().id == group.callback
    again = h(h.engine.rerun_group(group.id))
    if shape == "parallel":
        while taken := h.claim(1_000):
            h(h.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in taken]))
        assert (group_of(h, again).status, counts(group_of(h, again))) == ("completed", (10_000, 0, 0))
    else:
        h.fail(h.claimed())  # and all that wait for it
        assert (group_of(h, again).status, counts(group_of(h, again))) == ("partial", (0, 1, 9_999))
    assert h.get(again.callback or "").state is not State.WAITING
    run_sync(h.store.close())


# Any group, beside a dictionary


class Model:
    """What the members of a group become, worked out from the rules alone."""

    def __init__(self, before: Sequence[Sequence[int]], on_failure: OnFailure) -> None:
        self.before, self.on_failure = before, on_failure
        self.state = ["waiting" if others else "queued" for others in before]

    def end(self, index: int, state: str) -> None:
        self.state[index] = state
        self._follow()

    def _follow(self) -> None:
        changed = True
        while changed:
            changed = False
            for index, others in enumerate(self.before):
                if self.state[index] == "waiting" and (became := self._became([self.state[other] for other in others])) is not None:
                    self.state[index], changed = became, True

    def _became(self, before: Sequence[str]) -> str | None:
        spoilt = any(state in ENDED and state != "succeeded" for state in before)
        if spoilt and self.on_failure != "continue":
            return "cancelled" if self.on_failure == "stop" else "skipped"
        return "queued" if all(state in ENDED for state in before) else None

    def status(self) -> str:
        if not all(state in ENDED for state in self.state):
            return "running"
        if set(self.state) == {"succeeded"}:
            return "completed"
        return "cancelled" if set(self.state) <= {"cancelled", "skipped"} else "partial"


@st.composite
def shapes(draw: st.DrawFn) -> list[list[int]]:
    """For each of some members, whom it waits for; then in another order, so that nobody can rely on theirs."""
    size = draw(st.integers(1, 9))
    before = [draw(st.lists(st.integers(0, index - 1), unique=True, max_size=3)) if index else [] for index in range(size)]
    order = draw(st.permutations(range(size)))
    shuffled: list[list[int]] = [[] for _ in range(size)]
    for index, others in enumerate(before):
        shuffled[order[index]] = [order[other] for other in others]
    return shuffled


deeds = st.lists(
    st.tuples(st.sampled_from(["succeed", "succeed", "succeed", "fail", "cancel", "skip", "lapse"]), st.integers(0, 8)), max_size=14
)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=long)])
def laboratory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A store that is emptied for each example, and whose tables can be read whole."""
    clock = ManualClock()
    if request.param == "postgres":
        url = request.getfixturevalue("emptied_postgres")
        store: Store = BlockingPostgres(url, clock, queries=with_tables("postgres", **CLEAR))
    else:
        store = BlockingSqlite(":memory:", clock, queries=with_tables("sqlite", **CLEAR))
    yield Harness(store, clock)
    run_sync(store.close())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=shapes(), on_failure=st.sampled_from(ON_FAILURE), asked=deeds, cancels=st.booleans())
def test_any_group_becomes_what_its_rules_say(
    laboratory: Harness, before: list[list[int]], on_failure: OnFailure, asked: list[tuple[str, int]], cancels: bool
) -> None:
    clear(laboratory.store)
    h, model = laboratory.another(), Model(before, on_failure)
    h.define()
    observer = Observer(h.store)
    job = NewRun("mail", options=Options(max_attempts=1))
    group = make(
        h, [Member(job, str(n), tuple(map(str, others))) for n, others in enumerate(before)], "graph", on_failure=on_failure, callback=job
    )
    ids = [run.id for run in members(h, group)]
    observer.look(h.clock.now())

    def compare() -> None:
        observer.look(h.clock.now())
        assert states(h, group) == model.state
        assert group_of(h, group).status == model.status()
        assert (h.get(group.callback or "").state is State.WAITING) == (model.status() == "running")

    for deed, pick in asked:
        index = pick % len(ids)
        state = model.state[index]
        if deed in ("cancel", "skip") and state in ("waiting", "queued"):
            h(h.engine.cancel(ids[index]) if deed == "cancel" else h.engine.skip(ids[index], reason="because"))
            model.end(index, "cancelled" if deed == "cancel" else "skipped")
        elif deed not in ("cancel", "skip") and "queued" in model.state:
            run = h.claimed()
            if deed == "lapse":
                h.sweep(30_000)
            else:
                h.succeed(run) if deed == "succeed" else h.fail(run)
            model.end(ids.index(run.id), "succeeded" if deed == "succeed" else "failed")
        compare()
        if model.status() != "running":
            break
    if cancels and model.status() == "running":
        h(h.engine.cancel_group(group.id))
        model.state = [state if state in ENDED else "cancelled" for state in model.state]
        compare()
    while "queued" in model.state:
        run = h.claimed()
        h.succeed(run)
        model.end(ids.index(run.id), "succeeded")
        compare()
    assert model.status() != "running"


# Where runs begin


def test_runs_of_all_kinds_begin_as_the_machine_says(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Created, in a group, by a schedule, rerun alone and in a group: nobody else decides a first state."""
    decided = set[tuple[State, int, int]]()

    def begins(*given: Any, **more: Any) -> tuple[State, int, int]:
        decided.add(beginning := begin(*given, **more))
        return beginning

    monkeypatch.setattr(creations, "begin", begins)
    now = h.clock.now()
    first = h.create()
    h(h.engine.create([NewRun("mail"), NewRun("mail", due_at=now + DAY), NewRun("mail", after=(first,), due_at=now + DAY)]))
    group = make(h, graph(a="", b="a"), "graph", callback=NewRun("mail", {"name": "last"}))
    h(h.engine.schedule("daily", "mail", every="1d"))
    works(h)
    assert group_of(h, group).status == "completed"
    h(h.engine.rerun(first))
    h(h.engine.rerun_group(group.id))
    h.sweep(2 * DAY)
    runs = h(h.engine.runs(count=100)).runs
    begun = {(h(h.engine.history(run.id))[0].state, run.due_at, run.position) for run in runs}
    assert begun == decided
    assert (len(runs), {state for state, _, _ in begun}) == (12, set(FIRST))
