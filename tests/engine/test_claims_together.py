"""Claims that are made together: nobody gets what another got, nobody is passed by, and the trouble of one is not that of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import Harness
from tests.tiers import long
from windlass.clock import ManualClock
from windlass.engine import ClaimRequest, Engine
from windlass.errors import BadInput, OutcomeUnknown, StoreUnreachable, WindlassError
from windlass.machine import Succeed
from windlass.model import NewRun, Options, Requires, Run, Use, WorkerInfo
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.sqlite import BlockingSqlite

NONCE = "n" * 22


def many(name: str, **can: Any) -> WorkerInfo:
    return WorkerInfo(name, **{"slots": 100} | can)


def ids(answer: list[Run] | WindlassError) -> list[str]:
    assert isinstance(answer, list), answer
    return [run.id for run in answer]


def together(h: Harness, *requests: ClaimRequest) -> list[list[str]]:
    return [ids(answer) for answer in h(h.engine.claim_many(requests))]


# What each gets


def test_each_gets_its_own_in_the_order_of_the_queue(h: Harness) -> None:
    made = [h.create() for _ in range(7)]
    first, second, third = together(
        h,
        h.engine.asking(many("a"), count=2),
        h.engine.asking(many("b"), count=3, lease=60_000),
        h.engine.asking(many("c"), count=5),
    )
    assert (first, second, third) == (made[:2], made[2:5], made[5:])
    runs = [h.get(run_id) for run_id in made]
    assert [run.worker for run in runs] == ["a", "a", "b", "b", "b", "c", "c"]
    assert [run.lease for run in runs] == [30_000, 30_000, 60_000, 60_000, 60_000, 30_000, 30_000]
    assert len({run.token for run in runs}) == 3
    assert all(h.moves(run_id) == ["create", "claim"] for run_id in made)


def test_those_who_can_do_different_things_are_served_together(h: Harness) -> None:
    h.define("heavy", requires=Requires(memory=4_000))
    heavy, light = [h.create("heavy") for _ in range(2)], [h.create() for _ in range(3)]
    small, large, picky = together(
        h,
        h.engine.asking(many("small", memory=1_000), count=2),
        h.engine.asking(many("large", memory=8_000), count=9),
        h.engine.asking(many("picky", memory=8_000, jobs=("heavy",)), count=9),
    )
    assert set(small) <= set(light)
    assert sorted(small + large + picky) == sorted(heavy + light)
    assert set(picky) <= set(heavy)


def test_what_occupies_something_is_claimed_with_the_rest(h: Harness) -> None:
    h.define("gpu", uses=(Use("card"),), queue="cards")
    cards, mails = [h.create("gpu") for _ in range(2)], [h.create() for _ in range(2)]
    requests = [h.engine.asking(many(name), count=2) for name in ("a", "b")]
    requests.append(h.engine.asking(many("c", queues=("default",)), count=2))
    answers = together(h, *requests)
    got = [run_id for answer in answers for run_id in answer]
    assert sorted(got) == sorted([cards[0], *mails])  # the card is there once


def test_nothing_is_left_for_the_last(h: Harness) -> None:
    run_id = h.create()
    assert together(h, *(h.engine.asking(many(name)) for name in "abc")) == [[run_id], [], []]


def test_claims_of_one_worker_with_one_slot_are_one(h: Harness) -> None:
    made = [h.create() for _ in range(4)]
    answers = together(h, *(h.engine.asking(WorkerInfo(name)) for name in ("w", "w", "v", "w")))
    assert answers == [[made[0]], [], [made[1]], []]
    assert together(h, h.engine.asking(WorkerInfo("w")), h.engine.asking(WorkerInfo("u"))) == [[], [made[2]]]


def test_a_claim_asked_twice_in_one_call_is_one_claim(h: Harness) -> None:
    made = [h.create() for _ in range(4)]
    requests = [
        h.engine.asking(many("w"), count=2, nonce=NONCE),
        h.engine.asking(many("v")),
        h.engine.asking(many("w"), count=2, nonce=NONCE),
    ]
    assert together(h, *requests) == [made[:2], [made[2]], made[:2]]
    again = [h.engine.asking(many("w"), count=2, nonce=NONCE), h.engine.asking(many("v"))]
    assert together(h, *again) == [made[:2], [made[3]]]


def test_a_bad_claim_is_refused_before_it_joins_others(h: Harness) -> None:
    with pytest.raises(BadInput):
        h.engine.asking(many("w"), count=0)
    with pytest.raises(BadInput):
        h.engine.asking(many("w"), nonce="short")


def test_too_many_claims_at_once_are_refused_and_take_nothing(h: Harness) -> None:
    run_id = h.create()
    with pytest.raises(WindlassError, match="claims"):
        h(h.engine.claim_many([h.engine.asking(many("w"))] * (h.engine.limits.claim + 1)))
    assert h.get(run_id).state == "queued"


def test_lanes_and_pauses_that_this_process_has_not_heard_of_count(h: Harness) -> None:
    other = h.another()
    together(h, h.engine.asking(many("a")))
    other.define("late", queue="new")
    late, mail = other.create("late"), other.create()
    other(other.engine.pause("queue", "default"))
    assert together(h, h.engine.asking(many("a"), count=2), h.engine.asking(many("b"), count=2)) == [[late], []]
    other(other.engine.resume("queue", "default"))
    assert together(h, h.engine.asking(many("a"), count=2), h.engine.asking(many("b"), count=2)) == [[mail], []]


# Any claims at all


QUEUES, JOBS, TAGS = ("red", "green"), ("mail", "page"), ("gpu", "fast")

jobs = st.builds(
    NewRun,
    job=st.sampled_from(JOBS),
    options=st.builds(
        Options,
        queue=st.sampled_from(QUEUES),
        priority=st.integers(-1, 1),
        requires=st.none() | st.builds(Requires, tags=st.sets(st.sampled_from(TAGS)).map(tuple)),
    ),
)
workers = st.builds(
    WorkerInfo,
    name=st.sampled_from(["a", "b", "c", "d"]),
    queues=st.none() | st.sets(st.sampled_from(QUEUES)).map(tuple),
    jobs=st.none() | st.sets(st.sampled_from(JOBS)).map(tuple),
    tags=st.sets(st.sampled_from(TAGS)).map(tuple),
    slots=st.sampled_from([1, 9]),
)


def may_take(worker: WorkerInfo, run: Run, lanes: dict[int, Any]) -> bool:
    needs = set(lanes[run.lane].requires.tags)
    return (
        (worker.queues is None or run.queue in worker.queues)
        and (worker.jobs is None or run.job in worker.jobs)
        and needs <= set(worker.tags)
    )


def place(run: Run) -> tuple[int, int, int]:
    return run.priority_key, run.position, run.seq


@long
@settings(max_examples=150, deadline=None)
@given(made=st.lists(jobs, max_size=10), asked=st.lists(st.tuples(workers, st.integers(1, 4)), min_size=1, max_size=5))
def test_nobody_is_passed_by(made: list[NewRun], asked: list[tuple[WorkerInfo, int]]) -> None:
    clock = ManualClock()
    engine = Engine(BlockingSqlite(":memory:", clock), clock)
    for job in JOBS:
        run_sync(engine.define(job))
    if made:
        run_sync(engine.create(made))
    before = {run.id: run for run in run_sync(engine.runs(state="queued")).runs}
    answers = run_sync(engine.claim_many([engine.asking(worker, count=count) for worker, count in asked]))
    taken = [run for answer in answers for run in (answer if isinstance(answer, list) else [])]
    assert len({run.id for run in taken}) == len(taken)
    left = [run for run_id, run in before.items() if run_id not in {run.id for run in taken}]
    singles: set[str] = set()
    for (worker, count), answer in zip(asked, answers, strict=True):
        assert isinstance(answer, list)
        assert answer == sorted(answer, key=place)
        assert all(may_take(worker, run, engine.parts.ground.lanes.by_id) and run.worker == worker.name for run in answer)
        open_to_it = [run for run in left if may_take(worker, run, engine.parts.ground.lanes.by_id)]
        assert all(place(run) < place(other) for run in answer for other in open_to_it), "somebody was passed by"
        busy = worker.slots == 1 and worker.name in singles
        singles |= {worker.name} if worker.slots == 1 else set()
        assert len(answer) <= (0 if busy else 1 if worker.slots == 1 else count)
        if not busy and len(answer) < (1 if worker.slots == 1 else count):
            assert open_to_it == [], "somebody went away empty although there was something"
    run_sync(engine.close())


# Trouble


class Troubled:
    """A store that loses the answer of the first claim, or lets another one come before it, and is away from then on."""

    def __init__(self, store: Store, *, loses: bool = False) -> None:
        self.store, self.loses, self.takes, self.batches = store, loses, 0, 0
        self.steal: Callable[[], object] | None = None

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        takes = any(statement.name in ("claim", "claim_each") for statement in statements)
        self.takes += takes
        self.batches += 1
        if takes and self.steal is not None:
            self.steal()
        elif self.takes and self.steal is not None:
            raise StoreUnreachable("It is away.", hint="Wait.")
        answers = await self.store.batch(verb, statements)
        if takes and self.loses:
            raise OutcomeUnknown("The answer was lost.", hint="Look.")
        return answers

    async def close(self) -> None:
        await self.store.close()


def test_who_was_served_before_the_store_went_away_keeps_what_it_got(h: Harness) -> None:
    h.define("page", queue="pages")
    mail, _, _, page = h.create(), h.create("page"), h.create("page"), h.create("page")
    store = Troubled(h.store)
    engine = Harness(store, h.clock).engine
    requests = [engine.asking(many("a", queues=("default",))), engine.asking(many("b", queues=("pages",)))]
    store.steal = lambda: h.claim(2, worker="thief", queues=("pages",))  # both that can be seen, so that one has to look again
    first, second = h(engine.claim_many(requests))
    assert ids(first) == [mail]
    assert isinstance(second, StoreUnreachable)
    assert h.get(page).state == "queued"


def test_each_gets_what_was_committed_although_the_answer_was_lost(h: Harness) -> None:
    made = [h.create() for _ in range(3)]
    store = Troubled(h.store, loses=True)
    h.engine = Harness(store, h.clock).engine
    assert together(h, h.engine.asking(many("a")), h.engine.asking(many("b"), count=2)) == [[made[0]], made[1:]]
    assert store.takes == 1


def test_a_claim_asked_twice_whose_answer_was_lost_is_answered_once_for_each(h: Harness) -> None:
    run_id, _ = h.create(), h.create()
    h.engine = Harness(Troubled(h.store, loses=True), h.clock).engine
    requests = [h.engine.asking(many("a"), nonce=NONCE) for _ in range(2)]
    assert together(h, *requests) == [[run_id], [run_id]]


def test_a_claim_that_finds_nothing_looks_once(h: Harness) -> None:
    store = Troubled(h.store)
    h.engine = Harness(store, h.clock).engine
    assert together(h, h.engine.asking(many("a"))) == [[]]
    before = store.batches
    assert together(h, h.engine.asking(many("a")), h.engine.asking(WorkerInfo("b", queues=("other",)))) == [[], []]
    assert store.batches == before + 1


def test_what_one_claim_took_is_reported_as_ever(h: Harness) -> None:
    h.create()
    ((run,),) = [answer for answer in h(h.engine.claim_many([h.engine.asking(many("a"))])) if isinstance(answer, list)]
    assert h(h.engine.report(run.id, Succeed(token=run.token))).state == "succeeded"
