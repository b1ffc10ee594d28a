"""Limits: how much of a resource runs may occupy at once, by key, and how often; and that nothing sticks. On every store."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grounds import set_ground
from tests.harness import LEASE, Harness, token
from tests.tiers import long
from windlass.clock import ManualClock
from windlass.engine import Outcome
from windlass.errors import BadInput, LeaseLost, LimitReached, NotFound, WrongState
from windlass.limiters import Selector, limiter_key
from windlass.machine import LIVE, Requeue, Snooze, Succeed
from windlass.model import Limits, NewRun, Options, Rate, Requires, Run, Slot, State, Use, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held
from windlass.store.records.claims import FIRST, HandedRuns
from windlass.store.sqlite import BlockingSqlite

GPU = (Use("gpu"),)
CUSTOMER = (Use("customer", per="customer"),)


def limit(h: Harness, name: str = "gpu", capacity: int | None = 1, *rates: Rate, **how: Any) -> None:
    h(h.engine.set_resource(name, capacity=capacity, rates=rates, **how))


def of(h: Harness, customer: Any, job: str = "mail", **fields: Any) -> str:
    return h.create(job, {"customer": customer}, **fields)


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def why(h: Harness, run_id: str) -> list[str]:
    return [reason.code for reason in h(h.engine.why(run_id))]


def held(h: Harness, key: str = "gpu") -> int:
    return h(h.engine.records.limiters.usage([key]))[key].held


def unaware(h: Harness) -> Harness:
    """A process that has read the lanes when none was limited yet, and has had no reason to read them again."""
    other = h.another()
    other(other.engine.parts.ground.refresh_lanes())
    return other


# Capacity


def test_a_resource_that_nobody_has_set_is_for_one_at_a_time(h: Harness) -> None:
    h.define(uses=GPU)
    first, second = h.create(), h.create()
    run = h.claimed()
    assert run.id == first
    assert h.claim(5) == []
    h.succeed(run)
    assert ids(h.claim(5)) == [second]


def test_global_with_capacity_1_lets_one_run_at_a_time_anywhere(h: Harness) -> None:
    limit(h, "global")
    h.define("a", uses=(Use("global"),), queue="one")
    h.define("b", uses=(Use("global"),), queue="two")
    made = [h.create(job) for job in ("a", "b", "a", "b")]
    for expected in made:
        claims = [h.another().claim(5, worker=f"w{n}") for n in range(3)]
        (run,) = [run for claim in claims for run in claim]
        assert run.id == expected
        h.succeed(run)


def test_weights_add_up(h: Harness) -> None:
    limit(h, capacity=5)
    h.define("light", uses=(Use("gpu"),))
    h.define("heavy", uses=(Use("gpu", weight=3),))
    h.create("heavy")
    lights = [h.create("light") for _ in range(3)]
    heavy, *rest = h.claim(10)
    assert (heavy.job, ids(rest)) == ("heavy", lights[:2])
    assert held(h) == 5
    h.succeed(rest[0])
    assert ids(h.claim(10)) == lights[2:]


def test_a_run_needs_all_that_it_uses(h: Harness) -> None:
    limit(h, "gpu", 1)
    limit(h, "licence", 1)
    h.define("both", uses=(Use("gpu"), Use("licence")))
    h.define("one", uses=(Use("licence"),))
    one, both = h.create("one"), h.create("both")
    first = h.claimed()
    assert first.id == one
    assert h.claim(5) == []
    assert why(h, both) == ["no_worker", "full"]
    h.succeed(first)
    assert ids(h.claim(5)) == [both]


def test_a_heavy_run_is_not_overtaken_for_ever(h: Harness) -> None:
    limit(h, capacity=2)
    h.define("light", uses=(Use("gpu"),))
    h.define("heavy", uses=(Use("gpu", weight=2),))
    h.create("light")
    first = h.claimed()
    heavy, light = h.create("heavy"), h.create("light")
    assert h.claim(5) == []  # there is room for the light one, but it is behind
    h(h.engine.register(WorkerInfo("w1", slots=1_000)))
    assert why(h, light) == ["kept"]
    h.succeed(first)
    assert ids(h.claim(5)) == [heavy]


def test_a_run_that_lacks_two_has_them_kept_only_after_max_wait(h: Harness) -> None:
    for name in ("gpu", "licence"):
        limit(h, name, 2, max_wait=60_000)
        h.define(name, uses=(Use(name),))
    h.define("both", uses=(Use("gpu", weight=2), Use("licence", weight=2)))
    h.create("gpu"), h.create("licence")
    holders = h.claim(2)
    both = h.create("both")
    h.create("gpu")
    overtaking = h.claimed()
    assert overtaking.job == "gpu"
    h.clock.advance(60_000)
    h.create("gpu"), h.create("licence")
    assert h.claim(5) == []
    for run in (*holders, overtaking):
        h.succeed(run)
    assert ids(h.claim(5)) == [both]


def test_what_can_never_pass_holds_nobody_up(h: Harness) -> None:
    limit(h, capacity=2)
    h.define("huge", uses=(Use("gpu", weight=3),))
    h.define("light", uses=(Use("gpu"),))
    huge, light = h.create("huge"), h.create("light")
    assert ids(h.claim(5)) == [light]
    h(h.engine.register(WorkerInfo("w1", slots=1_000)))
    assert why(h, huge) == ["impossible"]
    limit(h, capacity=4)
    assert ids(h.claim(5)) == [huge]


def test_other_lanes_are_not_touched(h: Harness) -> None:
    limit(h)
    h.define("limited", uses=GPU)
    limited = [h.create("limited") for _ in range(3)]
    free = [h.create() for _ in range(3)]
    assert ids(h.claim(10)) == [limited[0], *free]
    assert ids([h.get(run) for run in limited[1:] if h.get(run).state is State.QUEUED]) == limited[1:]


def test_order_is_exact_among_what_passes(h: Harness) -> None:
    limit(h, capacity=3)
    h.define("limited", uses=GPU)
    made = [h.create(job, options=Options(priority=n % 2)) for n, job in enumerate(["mail", "limited"] * 5)]
    urgent, usual = made[1::2], made[0::2]
    assert ids(h.claim(10)) == [*urgent[:3], *usual]


def test_S11_a_lapsed_cancelled_or_retried_run_lets_go(h: Harness) -> None:
    limit(h)
    h.define(uses=GPU, backoff=(0,), grace=1_000)
    for _ in range(5):
        h.create()
    lost = h.claimed()
    h.sweep(LEASE)
    again = h.claimed()
    assert again.id == lost.id  # a retry keeps its place
    h.fail(again)
    third = h.claimed()
    assert (third.id, third.attempt) == (lost.id, 3)
    h(h.engine.cancel(third.id))
    assert h.claim() == []  # it is being cancelled, so it still has it
    h.sweep(1_000)
    back = h.claimed()
    h.report(back, Requeue(token=back.token))
    snoozed = h.claimed()
    h.report(snoozed, Snooze(token=snoozed.token, delay=1_000))
    assert h.claimed().id not in (lost.id, snoozed.id)
    assert held(h) == 1


def test_a_row_left_behind_counts_nothing(h: Harness) -> None:
    """A process that does not yet know of the limits reports what another claimed: the hold stays, and holds nothing up."""
    stranger = unaware(h)
    limit(h)
    h.define(uses=GPU)
    h.create(), h.create()
    run = h.claimed()
    stranger.succeed(run)
    assert not stranger.engine.parts.ground.lanes.limited
    assert held(h) == 0
    last = h.claimed()
    h(h.engine.parts.parking.tidy())
    assert [holder.run for holder in h(h.engine.occupants("gpu")).runs] == [last.id]


def test_a_rerun_uses_the_same(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    first = of(h, 1)
    h.succeed(h.claimed())
    again = h(h.engine.rerun(first)).id
    assert h.get(again).keys == h.get(first).keys
    of(h, 1)
    assert len(h.claim(5)) == 1


# A change takes effect with the next claim


def test_a_change_of_capacity_takes_effect_with_the_next_claim_everywhere(h: Harness) -> None:
    limit(h, capacity=1)
    h.define(uses=GPU)
    for _ in range(20):
        h.create()
    other = h.another()
    assert len(other.claim(20)) == 1
    limit(h, capacity=4)
    assert len(other.claim(20)) == 3
    limit(h, capacity=2)
    assert other.claim(20) == []
    taken = list(h(h.engine.runs(state="claimed")).runs)
    for run in taken[:3]:
        h.succeed(run)
    assert len(other.claim(20)) == 1
    limit(h, capacity=None)
    assert len(other.claim(20)) == 15


def test_a_capacity_of_0_hands_out_nothing(h: Harness) -> None:
    limit(h, capacity=0)
    limit(h, "customer", 0)
    h.define(uses=GPU)
    h.define("keyed", uses=CUSTOMER)
    runs = [h.create(), of(h, 1, "keyed")]
    assert h.claim(5) == []
    limit(h, capacity=1)
    limit(h, "customer", 1)
    assert ids(h.claim(5)) == runs


def test_a_claim_does_not_read_over_what_waits_for_nothing_at_all(h: Harness) -> None:
    limit(h, "customer", 0)
    h.define("keyed", uses=CUSTOMER)
    for number in range(20):
        of(h, number, "keyed")
    free, worker = h.create(), WorkerInfo("w1", slots=1_000)
    assert ids(h.claim(5)) == [free]
    look = h(h.engine.parts.heads.look(h.engine.parts.ground.open_lanes(worker), Selector(h.clock.now()), FIRST, 100))
    assert len(look.views[0].heads) == 1


def test_a_resource_that_was_dropped_while_a_job_began_to_use_it_is_for_one_at_a_time(h: Harness) -> None:
    h.define(uses=GPU)
    limit(h, capacity=5)
    for _ in range(3):
        h.create()
    assert h(h.engine.records.controls.drop_resources(["gpu"], h.engine.parts.ground.controls.rev, h.engine.parts.ground.lanes.last))
    assert len(h.another().claim(3)) == 1
    assert h.claim(3) == []


def test_what_cannot_be_a_limit_is_refused(h: Harness) -> None:
    h.define(uses=GPU)
    for bad in (
        {"capacity": -1},
        {"capacity": 1.5},
        {"rates": (Rate(0, 1),)},
        {"rates": (Rate(1, 0),)},
        {"rates": (Rate(1, 1),) * 9},
        {"rates": (Rate(1, 10 * 366 * 24 * 3600 * 1000, 10**9),)},
        {"max_wait": -1},
    ):
        with pytest.raises(BadInput):
            h(h.engine.set_resource("gpu", **bad))
    with pytest.raises(WrongState, match="uses 'gpu'"):
        h(h.engine.drop_resource("gpu"))
    with pytest.raises(NotFound):
        h(h.engine.drop_resource("nothing"))
    with pytest.raises(BadInput, match="weight"):
        h.define(uses=(Use("customer", 2, per="customer"),))
    set_ground(h.engine, limits=Limits(resources=1))
    with pytest.raises(LimitReached):
        h.define("other", uses=(Use("other"),))
    assert [state.resource.name for state in h(h.engine.resources())] == ["gpu"]


# Keys


def test_a_key_holds_up_only_its_own(h: Harness) -> None:
    limit(h, "customer", 2)
    h.define(uses=CUSTOMER)
    ones, two = [of(h, 1) for _ in range(4)], of(h, 2)
    assert ids(h.claim(10)) == [*ones[:2], two]
    assert [h.get(run).parked for run in ones[2:]] == [limiter_key("customer", "1")] * 2


def test_any_value_can_be_a_key(h: Harness) -> None:
    h.define(uses=(Use("customer", per="a.b"),))
    values: list[Any] = [1, "1", None, True, "x" * 300, {"deep": [1]}, "\x1f", "é", 1.5]
    for value in values * 2:
        h.create(payload={"a": {"b": value}})
    h.create(payload={"a": 1})
    h.create(payload=7)
    # 1 and "1" are written the same, and what is not there is like null.
    assert len(h.claim(100)) == len(values) - 1


def test_parked_runs_come_back_in_order_when_a_run_ends(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    made = []
    for _ in range(4):
        made.append(of(h, 1))
        h.clock.advance(1)
    for number, expected in enumerate(made):
        run = h.claimed()
        assert run.id == expected
        assert h.claim(5) == []
        h.succeed(run)
        assert [h.get(one).parked is None for one in made[number + 1 :]] == [True, False, False][: 3 - number]


@pytest.mark.parametrize("how", ["cancel", "expire", "fail", "give back", "lapse", "snooze"])
def test_parked_runs_come_back_however_the_one_before_them_ends(h: Harness, how: str) -> None:
    h.define(uses=CUSTOMER, max_attempts=1, grace=1_000, max_runtime=50_000)
    first, second = of(h, 1), of(h, 1)
    run = h.claimed()
    assert h.claim() == []
    assert h.get(second).parked == limiter_key("customer", "1")
    if how == "cancel":
        h(h.engine.cancel(first))
        h(h.engine.lapse())
        h.clock.advance(1_000)
        h(h.engine.lapse())
    elif how == "expire":
        h(h.engine.beat([Held(run.seq, token(run))], lease=100_000))
        h.clock.advance(50_000)
        h(h.engine.lapse())
    elif how == "fail":
        h.fail(run)
    elif how == "give back":
        h(h.engine.patch(second, priority=9))  # so that it does not just get it again
        h.report(run, Requeue(token=run.token))
    elif how == "lapse":
        h.clock.advance(LEASE)
        h(h.engine.lapse())
    else:
        h.report(run, Snooze(token=run.token, delay=1_000))
    assert h.claimed().id == second


def test_parked_runs_come_back_in_every_lane(h: Harness) -> None:
    for job in ("a", "b", "c"):
        h.define(job, uses=CUSTOMER)
    h.define("mail", uses=CUSTOMER)
    of(h, 1)
    run = h.claimed()
    made = {job: of(h, 1, job) for job in ("a", "b", "c")}
    assert h.claim(5) == []
    h.succeed(run)
    assert h.claimed(jobs=("c",)).id == made["c"]


def test_a_change_of_capacity_brings_parked_runs_back_with_the_next_sweep(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    made = [of(h, 1) for _ in range(5)]
    assert ids(h.claim(5)) == made[:1]
    limit(h, "customer", 3)
    h.sweep()
    assert ids(h.claim(5)) == made[1:3]


def test_a_process_that_knows_of_no_limits_leaves_nobody_parked(h: Harness) -> None:
    stranger = unaware(h)
    h.define(uses=CUSTOMER)
    made = [of(h, 1) for _ in range(3)]
    for expected in made:
        run = h.claimed()
        assert run.id == expected
        assert h.claim(5) == []
        stranger.succeed(run)
        h.sweep()


def test_a_process_that_has_read_nothing_yet_brings_parked_runs_back_at_once(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    first, second = of(h, 1), of(h, 1)
    run = h.claimed()
    assert (run.id, h.claim()) == (first, [])
    h.another().succeed(run)
    assert h.claimed().id == second


def test_a_parked_run_can_be_cancelled_patched_and_moved(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    made = [of(h, 1) for _ in range(5)]
    first = h.claimed()
    assert h.claim(5) == []
    h(h.engine.cancel(made[1]))
    assert (h.get(made[1]).state, h.get(made[1]).parked) == (State.CANCELLED, None)
    h(h.engine.patch(made[2], payload={"customer": 2}))
    assert h.claimed().id == made[2]
    h(h.engine.move(made[4], before=made[3]))
    h.succeed(first)
    assert h.claimed().id == made[4]


def test_a_patch_of_the_payload_changes_the_key(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    of(h, 1)
    other = of(h, 2)
    h(h.engine.patch(other, payload={"customer": 1}))
    assert len(h.claim(5)) == 1
    assert h.get(other).parked == limiter_key("customer", "1")


def test_a_sweep_brings_back_what_a_fault_left_parked(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    first, second = of(h, 1), of(h, 1)
    run = h.claimed()
    assert h.claim() == []
    # As after a fault between the end of the one and the return of the other.
    h(h.engine.records.work.succeed([(run.seq, token(run), None, None, None)], "m", "f", h.clock.now(), limited=False))
    assert h.claim() == []
    h.sweep()
    assert h.claimed().id == second
    assert h.get(first).state is State.SUCCEEDED


def test_sweeps_reach_every_key(h: Harness) -> None:
    """Also those behind many that are full."""
    stranger = unaware(h)
    limit(h, "customer", 1)
    h.define(uses=CUSTOMER)
    h(h.engine.create([NewRun("mail", {"customer": f"{n % 1_200:04}"}) for n in range(2_400)]))
    taken = sorted((run for _ in range(3) for run in h.claim(1_000)), key=lambda run: run.keys or "")
    assert len(taken) == 1_200
    stranger(stranger.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in taken[800:]]))
    for _ in range(3):
        h(h.engine.open_limiters())
    assert len(h.claim(1_000)) == 400


def test_Load4_one_customer_with_many_does_not_hold_up_the_others(h: Harness) -> None:
    limit(h, "customer", 2)
    h.define(uses=CUSTOMER)
    h(h.engine.create([NewRun("mail", {"customer": 0}) for _ in range(5_000)]))
    h(h.engine.create([NewRun("mail", {"customer": n}) for n in range(1, 10) for _ in range(10)]))
    others, rounds = 90, 0
    while others:
        runs = h.claim(50)
        got = Counter(run.keys for run in runs)
        assert all(number <= 2 for number in got.values())
        mine = sum(number for keys, number in got.items() if keys != '["0"]')
        assert mine == min(others, 18), "the others get all that they may have, every time"
        others -= mine
        h(h.engine.report_many([Outcome(run.id, Succeed(token=run.token), run.seq) for run in runs]))
        rounds += 1
    assert rounds == 5


# Rates


def test_a_rate_lets_a_burst_pass_and_then_one_by_one(h: Harness) -> None:
    limit(h, "gpu", None, Rate(10, 1_000, 3))
    h.define(uses=GPU)
    for _ in range(10):
        h.create()
    assert len(h.claim(10)) == 3
    for _ in range(5):
        h.clock.advance(99)
        assert h.claim(10) == []
        h.clock.advance(1)
        assert len(h.claim(10)) == 1


def test_every_window_of_several_holds(h: Harness) -> None:
    limit(h, "gpu", None, Rate(2, 1_000, 1), Rate(3, 10_000))
    h.define(uses=GPU)
    for _ in range(10):
        h.create()
    passed = []
    for at in range(0, 20_000, 100):
        passed += [at] * len(h.claim(10))
        h.clock.advance(100)
    assert passed[:5] == [0, 500, 1_000, 3_400, 6_700]
    assert all(later - at >= 500 for at, later in pairwise(passed))


def test_a_rate_by_key_parks_until_its_time(h: Harness) -> None:
    limit(h, "customer", None, Rate(1, 1_000))
    h.define(uses=CUSTOMER)
    made, other = [of(h, 1) for _ in range(3)], of(h, 2)
    assert ids(h.claim(10)) == [made[0], other]
    assert h.get(made[1]).parked == limiter_key("customer", "1")
    assert h(h.engine.sweep()).back_in == 1_000
    h.clock.advance(999)
    h.sweep()
    assert h.claim(10) == []
    h.clock.advance(1)
    h.sweep()
    assert ids(h.claim(10)) == [made[1]]


def test_a_rate_counts_what_was_handed_out_not_what_is_held(h: Harness) -> None:
    limit(h, "gpu", None, Rate(1, 1_000))
    h.define(uses=GPU)
    h.create(), h.create()
    h.succeed(h.claimed())
    assert h.claim() == []
    h.clock.advance(1_000)
    assert len(h.claim()) == 1


def test_a_new_rate_does_not_wait_for_the_old_one(h: Harness) -> None:
    limit(h, "gpu", None, Rate(1, 3_600_000))
    h.define(uses=GPU)
    h.create(), h.create()
    h.claimed()
    limit(h, "gpu", None, Rate(10, 1_000))
    assert len(h.claim()) == 1


def test_a_clock_that_was_set_back_does_not_close_a_rate(h: Harness) -> None:
    limit(h, "gpu", None, Rate(1, 1_000))
    h.define(uses=GPU)
    h.create(), h.create()
    h.claimed()
    h.clock.advance(-1_000)
    assert h.claim() == []  # clocks may differ
    h.clock.advance(-24 * 3_600_000)
    assert len(h.claim()) == 1


# Direct calls


def reserve(h: Harness, **how: Any) -> Slot:
    return h(h.engine.reserve("gpu", **how))


def test_a_direct_call_is_behind_what_runs_and_before_the_queue(h: Harness) -> None:
    limit(h)
    h.define(uses=GPU)
    h.create(), h.create()
    run = h.claimed()
    slot = reserve(h, actor="ann")
    assert slot.state == "waiting"
    h.succeed(run)
    assert h.claim() == []
    slot = h(h.engine.renew(slot.id, slot.token))
    assert slot.state == "held"
    assert h.claim() == []
    assert h(h.engine.release(slot.id, slot.token))
    assert len(h.claim()) == 1
    assert not h(h.engine.release(slot.id, slot.token))


def test_direct_calls_are_served_in_their_order(h: Harness) -> None:
    limit(h, capacity=2)
    first, second, third = reserve(h), reserve(h, weight=2), reserve(h)
    assert [slot.state for slot in (first, second, third)] == ["held", "waiting", "waiting"]
    assert h(h.engine.renew(third.id, third.token)).state == "waiting"  # it would fit, but is behind
    h(h.engine.release(first.id, first.token))
    assert h(h.engine.renew(third.id, third.token)).state == "waiting"
    assert h(h.engine.renew(second.id, second.token)).state == "held"
    h(h.engine.release(second.id, second.token))
    assert h(h.engine.renew(third.id, third.token)).state == "held"


def test_a_caller_that_dies_frees_its_slot(h: Harness) -> None:
    limit(h)
    h.define(uses=GPU)
    h.create()
    slot = reserve(h, lease=5_000)
    assert h.claim() == []
    h.sweep(4_999)
    assert h.claim() == []
    h.sweep(1)
    assert len(h.claim()) == 1
    with pytest.raises(LeaseLost):
        h(h.engine.renew(slot.id, slot.token))


def test_a_direct_call_under_a_key_concerns_only_that_key(h: Harness) -> None:
    limit(h, "customer", 1)
    h.define(uses=CUSTOMER)
    one, two = of(h, 1), of(h, 2)
    slot = h(h.engine.reserve("customer", key="1"))
    assert ids(h.claim(5)) == [two]
    h(h.engine.release(slot.id, slot.token))
    h.sweep()
    assert ids(h.claim(5)) == [one]


def test_the_same_call_again_is_the_same_slot(h: Harness) -> None:
    limit(h, capacity=2)
    asked = {"slot_id": "my-slot", "token": "t" * 22}
    assert reserve(h, **asked) == reserve(h, **asked)
    with pytest.raises(BadInput, match="already"):
        reserve(h, slot_id="my-slot", token="other" * 5)
    assert len(h(h.engine.slots())) == 1


def test_a_direct_call_is_judged_by_the_capacity_of_now_wherever_that_was_set(h: Harness) -> None:
    limit(h, capacity=0)
    other = h.another()
    with pytest.raises(BadInput, match="not 1"):
        reserve(other)
    limit(h, capacity=2)
    assert reserve(other, weight=2).state == "held"
    limit(h, capacity=1)
    with pytest.raises(BadInput, match="not 2"):
        reserve(other, weight=2)
    assert len(h(h.engine.slots())) == 1  # what was refused does not wait in line


def test_a_direct_call_that_cannot_be_is_refused(h: Harness) -> None:
    limit(h)
    with pytest.raises(NotFound, match="no resource"):
        h(h.engine.reserve("nothing"))
    with pytest.raises(BadInput, match="not 2"):
        reserve(h, weight=2)
    set_ground(h.engine, limits=Limits(slots=1))
    reserve(h)
    with pytest.raises(LimitReached):
        reserve(h)
    assert len(h(h.engine.slots())) == 1


# Faults and strangers


def test_a_claim_that_was_refused_because_the_controls_changed_looks_again(h: Harness) -> None:
    """Somebody pauses another queue just between the look and the taking."""
    h.define(uses=GPU)
    run = h.create()
    other, take = h.another(), h.engine.records.claims.claim_within

    async def late(*arguments: Any) -> HandedRuns:
        h.engine.records.claims.claim_within = take  # type: ignore[method-assign]
        await other.engine.pause("queue", "another")
        return await take(*arguments)

    h.engine.records.claims.claim_within = late  # type: ignore[assignment, method-assign]
    assert ids(h.claim(5)) == [run]


def test_a_claim_that_lost_its_runs_goes_on_with_the_next(h: Harness) -> None:
    """Others take what was chosen, again and again, between the look and the taking: the first that is left is taken."""
    limit(h, "gpu", None)
    h.define(uses=GPU)
    made = [h.create() for _ in range(12)]
    other, take = h.another(), h.engine.records.claims.claim_within
    lost = 0

    async def late(*arguments: Any) -> HandedRuns:
        nonlocal lost
        if lost < 5:
            lost += 1
            await other.engine.claim(WorkerInfo("other", slots=100))
        return await take(*arguments)

    h.engine.records.claims.claim_within = late  # type: ignore[assignment, method-assign]
    assert ids(h.claim()) == [made[5]]


def test_capacity_is_never_exceeded_however_the_worker_asks(h: Harness) -> None:
    limit(h, capacity=3)
    h.define(uses=GPU)
    for _ in range(20):
        h.create()
    nonce = "n" * 22
    first = h(h.engine.claim(WorkerInfo("w", slots=9), count=9, nonce=nonce))
    assert h(h.engine.claim(WorkerInfo("w", slots=9), count=9, nonce=nonce)) == first
    assert h(h.engine.claim(WorkerInfo("single"))) == []
    assert [run.state in LIVE for run in first] == [True] * 3


def test_keys_that_nobody_uses_are_forgotten(h: Harness) -> None:
    limit(h, "customer", 1, Rate(1, 7_200_000))
    h.define(uses=CUSTOMER)
    for n in range(3):
        of(h, n)
    for run in h.claim(3):
        h.succeed(run)
    h.clock.advance(3_600_001)
    h(h.engine.parts.parking.tidy())
    assert len(h(h.engine.records.limiters.usage([limiter_key("customer", "0")]))[limiter_key("customer", "0")].tats) == 1, (
        "its rate still counts"
    )
    h.clock.advance(3_600_001)
    h(h.engine.parts.parking.tidy())
    assert h(h.engine.records.limiters.usage([limiter_key("customer", "0")]))[limiter_key("customer", "0")].tats == {}


# Why


def told(h: Harness, run_id: str) -> dict[str, str]:
    return {reason.code: reason.text for reason in h(h.engine.why(run_id))}


def seen(h: Harness, **can: Any) -> None:
    h(h.engine.register(WorkerInfo("w1", **{"slots": 1_000} | can)))


def test_why_says_in_words_what_holds_a_run_back(h: Harness) -> None:
    limit(h, "gpu", 2)
    limit(h, "api", None, Rate(1, 1_000))
    limit(h, "customer", 1)
    h.define("light", uses=GPU)
    h.define("heavy", uses=(Use("gpu", weight=2),))
    h.define("huge", uses=(Use("gpu", weight=3),))
    h.define("rated", uses=(Use("api"),))
    h.define("keyed", uses=CUSTOMER)
    for job in ("light", "rated"):
        h.create(job)
    of(h, 1, "keyed")
    seen(h)
    light, _, keyed = h.claim(3)
    runs = {job: h.create(job) for job in ("heavy", "huge", "rated")} | {"keyed": of(h, 1, "keyed"), "light": h.create("light")}
    assert h.claim(9) == []
    assert told(h, runs["heavy"]) == {"full": f"1 of 2 of 'gpu' are occupied, by run {light.id}."}
    assert told(h, runs["huge"]) == {"impossible": "It needs 3 of 'gpu', which never has that much."}
    assert told(h, runs["rated"]) == {"rate": "The rate of 'api' lets the next one in after 1s."}
    assert told(h, runs["keyed"]) == {"full": f"1 of 1 of 'customer' for '1' are occupied, by run {keyed.id}."}
    assert told(h, runs["light"]) == {"kept": "'gpu' is kept for a run ahead of it that needs more than is free."}
    stranger = h.another()
    stranger.engine.parts.ground.lanes.limited = False
    stranger.succeed(keyed)
    assert told(h, runs["keyed"]) == {"parked": "It was parked until its key is free, and will be queued again at once."}
    slot = h(h.engine.reserve("gpu", actor="ann"))
    assert told(h, runs["light"])["reserved"] == f"'gpu' is kept for run {light.id}, a direct call of ann."
    h(h.engine.release(slot.id, slot.token))
    h(h.engine.pause("job", "light", reason="broken", by="ann"))
    assert told(h, runs["light"])["paused"] == "The job 'light' is paused by ann: broken."
    assert told(h, light.id) == {"held": "Worker w1 has it."}
    assert told(h, keyed.id) == {"ended": "It has ended: succeeded."}


def test_why_says_who_is_ahead(h: Harness) -> None:
    seen(h)
    made = [h.create() for _ in range(3)]
    assert [told(h, run_id) for run_id in made] == [{}, {"behind": "1 are ahead of it."}, {"behind": "2 are ahead of it."}]


JOBS: dict[str, dict[str, Any]] = {
    "free": {},
    "gpu": {"uses": GPU},
    "heavy": {"uses": (Use("gpu", weight=2),)},
    "keyed": {"uses": CUSTOMER},
    "both": {"uses": (Use("cpu"), Use("gpu"), *CUSTOMER)},
    "tagged": {"requires": Requires(tags=("big",))},
    "rated": {"uses": (Use("api"),)},
}
WORKERS = {
    "all": WorkerInfo("all", tags=("big",), slots=1_000),
    "plain": WorkerInfo("plain", queues=("one",), slots=1_000),
    "keyed": WorkerInfo("keyed", jobs=("keyed", "both", "free"), slots=1_000),
}
WAYS: list[tuple[Any, ...]] = [
    *(("create", job, queue, customer, priority) for job in JOBS for queue in ("one", "two") for customer in (1, 2) for priority in (0, 1)),
    *(("claim", worker, count) for worker in WORKERS for count in (1, 2, 4)),
    *(("end", nth) for nth in (0, 1)),
    *(("set", name, capacity) for name in ("gpu", "cpu", "customer") for capacity in (None, 0, 1, 2, 3)),
    *(("pause", scope, name) for scope, name in (("queue", "one"), ("job", "gpu"), ("system", ""))),
    *(("resume", scope, name) for scope, name in (("queue", "one"), ("job", "gpu"), ("system", ""))),
    ("reserve", "gpu", None),
    ("reserve", "customer", "1"),
    ("release",),
    ("advance", 400),
    ("advance", 60_000),
    ("sweep",),
]


def played(ways: list[tuple[Any, ...]]) -> Harness:
    """The same story again, from an empty store."""
    clock = ManualClock(seed=7)
    h = Harness(BlockingSqlite(":memory:", clock), clock)
    for job, options in JOBS.items():
        h.define(job, **options)
    limit(h, "api", None, Rate(2, 1_000, 1))
    for way in ways:
        match way:
            case ("create", job, queue, customer, priority):
                of(h, customer, job, options=Options(queue=queue, priority=priority))
            case ("claim", worker, count):
                h(h.engine.claim(WORKERS[worker], count=count, lease=10_000_000))
            case ("end", nth):
                for run in h(h.engine.runs(state="claimed")).runs[nth : nth + 1]:
                    h.succeed(run)
            case ("set", name, capacity):
                limit(h, name, capacity)
            case ("pause", scope, name):
                h(h.engine.pause(scope, name))
            case ("resume", scope, name):
                h(h.engine.resume(scope, name))
            case ("reserve", name, key):
                with suppress(BadInput):
                    h(h.engine.reserve(name, key=key, lease=10_000_000))
            case ("release",):
                for slot in h(h.engine.slots())[:1]:
                    h(h.engine.release(slot.id, slot.token))
            case ("advance", by):
                h.clock.advance(by)
            case ("sweep",):
                h.sweep()
    return h


@long
@settings(deadline=None)
@given(st.lists(st.sampled_from(WAYS), min_size=5, max_size=40), st.sets(st.sampled_from(sorted(WORKERS)), min_size=1))
def test_why_is_empty_exactly_for_what_a_live_worker_would_get(ways: list[tuple[Any, ...]], alive: set[str]) -> None:
    h = played(ways)
    for name in sorted(alive):
        h(h.engine.register(WORKERS[name]))
    queued = h(h.engine.runs(state="queued", count=1_000)).runs
    reasons = {run.id: h(h.engine.why(run.id)) for run in queued}
    run_sync(h.store.close())
    got = set()
    for name in sorted(alive):
        again = played(ways)
        got |= set(ids(again(again.engine.claim(WORKERS[name]))))
        run_sync(again.store.close())
    assert {run_id for run_id, found in reasons.items() if not found} == got, reasons


def test_a_higher_capacity_puts_parked_runs_back_at_once(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    h(h.engine.set_resource("customer", capacity=1))
    for _ in range(3):
        of(h, 1)
    assert len(h.claim(5)) == 1
    h(h.engine.set_resource("customer", capacity=2))
    assert len(h.claim(5)) == 1
    h(h.engine.set_resource("customer", capacity=None))
    assert len(h.claim(5)) == 1


def test_a_direct_call_under_a_key_puts_back_who_waits_for_it(h: Harness) -> None:
    h.define(uses=CUSTOMER)
    h(h.engine.set_resource("customer", capacity=1))
    slot = h(h.engine.reserve("customer", key="1"))
    parked = of(h, 1)
    assert h.claim(5) == []
    h(h.engine.release(slot.id, slot.token))
    assert h.claimed().id == parked
