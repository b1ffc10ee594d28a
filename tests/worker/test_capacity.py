"""What a worker has, cores and memory, is used up by its runs, by their exact numbers. On every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LEASE, Harness, open_store
from tests.workers import Gate, ended, until, working
from windlass import App
from windlass.clock import ManualClock
from windlass.engine import lanes as known_lanes
from windlass.limiters import Selector
from windlass.machine import Requeue
from windlass.model import Needs, NewRun, Options, Requires, Run, State, Use, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import needs_text
from windlass.store.records.claims import FIRST


@pytest.fixture(params=["memory", "postgres"])
def h(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    clock = ManualClock()
    harness = Harness(open_store(request.param, tmp_path, request, clock), clock)
    harness.define()
    yield harness
    run_sync(harness.store.close())


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def needing(h: Harness, cores: int = 0, memory: int = 0, **more: Any) -> str:
    return h.create(options=Options(requires=Requires(cores=cores, memory=memory), **more))


def why(h: Harness, run_id: str) -> list[tuple[str, str]]:
    return [(reason.code, reason.text) for reason in h(h.engine.why(run_id))]


def live(h: Harness, name: str = "w1", **can: Any) -> None:
    h(h.engine.register(WorkerInfo(name, **{"slots": 1_000} | can)))


# The account


def test_two_runs_of_two_cores_do_not_share_a_worker_with_two(h: Harness) -> None:
    h.define(requires=Requires(cores=2))
    first, second = h.create(), h.create()
    assert ids(h.claim(5, cores=2)) == [first]
    assert h.claim(5, cores=2) == []
    assert ids(h.claim(5, worker="w2", cores=2)) == [second]


def test_two_runs_of_one_core_share_a_worker_with_two(h: Harness) -> None:
    made = [needing(h, 1) for _ in range(3)]
    first, second = h.claim(5, cores=2)
    assert ids([first, second]) == made[:2]
    h.succeed(first)
    assert ids(h.claim(5, cores=2)) == made[2:]


@pytest.mark.parametrize("what", ["cores", "memory"])
@pytest.mark.parametrize(
    ("wanted", "has", "together"), [((3, 2), 4, 1), ((3, 2), 5, 2), ((3, 1), 4, 2), ((3, 3), 3, 1), ((1000, 1000), 1999, 1)]
)
def test_the_account_is_by_exact_numbers(h: Harness, what: str, wanted: tuple[int, int], has: int, together: int) -> None:
    made = [needing(h, **{what: number}) for number in wanted]
    assert ids(h.claim(5, "w1", LEASE, **{what: has})) == made[:together]


def test_a_run_is_taken_by_a_worker_that_has_exactly_enough(h: Harness) -> None:
    run = needing(h, cores=3, memory=1000)
    assert h.claim(cores=2, memory=1000) == []
    assert h.claim(cores=3, memory=999) == []
    assert ids(h.claim(cores=3, memory=1000)) == [run]


def test_cores_and_memory_are_counted_apart(h: Harness) -> None:
    first, second = needing(h, cores=1, memory=600), needing(h, cores=1, memory=600)
    assert ids(h.claim(5, cores=8, memory=1000)) == [first]
    assert ids(h.claim(5, worker="w2", cores=8, memory=1200)) == [second]


def test_what_requires_nothing_uses_nothing_up(h: Harness) -> None:
    h.define("heavy", requires=Requires(cores=2))
    heavy = h.create("heavy")
    plain = [h.create() for _ in range(5)]
    assert ids(h.claim(9, cores=2)) == [heavy, *plain]
    assert not h(h.engine.records.limiters.usage(["memory\x1ew1"]))["memory\x1ew1"].held


def test_a_worker_without_requirements_in_its_lanes_claims_as_before(h: Harness) -> None:
    h.define("heavy", requires=Requires(cores=2), queue="heavy")
    h(h.engine.parts.ground.refresh_lanes())
    assert h.engine.can_join(h.engine.asking(WorkerInfo("w1", queues=("default",), cores=8, slots=4)))
    assert not h.engine.can_join(h.engine.asking(WorkerInfo("w1", cores=8, slots=4)))


def test_whatever_ends_a_run_frees_what_it_used(h: Harness) -> None:
    made = [needing(h, 2) for _ in range(5)]
    h.succeed(h.claimed(cores=2))
    h.fail(h.claimed(cores=2), retry=False)
    requeued = h.claimed(cores=2)
    h.report(requeued, Requeue(token=requeued.token))
    assert h.claimed(cores=2).id == made[2]
    h(h.engine.cancel(made[2]))
    assert h.claim(cores=2) == []  # it is asked to stop, and has not
    h.sweep(after=LEASE)
    assert h.claimed(cores=2).id == made[3]
    h.sweep(after=LEASE)  # its worker is gone
    assert h.claimed(cores=2).id == made[4]


def test_two_processes_of_one_name_share_one_account(h: Harness) -> None:
    first, _ = needing(h, 2), needing(h, 2)
    assert ids(h.claim(5, cores=3)) == [first]
    assert h.another().claim(5, cores=3) == []


def test_a_worker_that_comes_back_with_less_waits_until_it_fits(h: Harness) -> None:
    for _ in range(3):
        needing(h, 2)
    first, second = h.claim(2, cores=4)
    assert h.claim(5, cores=2) == []
    h.succeed(first)
    assert h.claim(5, cores=2) == []
    h.succeed(second)
    assert len(h.claim(5, cores=2)) == 1


def test_a_worker_with_one_slot_takes_one_run(h: Harness) -> None:
    made = [needing(h, 1) for _ in range(2)]
    assert ids(h.claim(5, slots=1, cores=4)) == made[:1]
    assert h.claim(5, slots=1, cores=4) == []


def test_a_resource_called_cores_is_another_thing(h: Harness) -> None:
    h(h.engine.set_resource("cores", capacity=1))
    h.define("shared", uses=(Use("cores"),))
    h.define("keyed", uses=(Use("cores", per="worker"),))
    h.define("own", requires=Requires(cores=1))
    made = [h.create("shared"), h.create("keyed", {"worker": "w1"}), h.create("own")]
    assert ids(h.claim(9)) == made


def test_a_run_may_lack_a_resource_and_a_worker(h: Harness) -> None:
    h(h.engine.set_resource("gpu", capacity=1))
    h.define("both", uses=(Use("gpu"),), requires=Requires(cores=2))
    first, second = h.create("both"), h.create("both")
    run = h.claimed(cores=2)
    assert run.id == first
    assert h.claim(5, worker="w2", cores=2) == []
    h.succeed(run)
    assert ids(h.claim(5, worker="w2", cores=2)) == [second]


def test_claims_at_once_of_one_worker_do_not_give_more_than_it_has(h: Harness) -> None:
    for _ in range(6):
        needing(h, 2)
    asks = [h.engine.asking(WorkerInfo("w1", cores=5, slots=9), count=3) for _ in range(3)]
    answers = h(h.engine.claim_many(asks))
    assert sum(len(answer) for answer in answers if isinstance(answer, list)) == 2


# Lanes round, the account does not


@pytest.fixture
def few_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_lanes, "EXACT_LANES", 2)


@pytest.mark.usefixtures("few_lanes")
def test_where_lanes_round_the_account_is_exact_all_the_same(h: Harness) -> None:
    made = [needing(h, memory=number) for number in (700, 701, 702, 703, 900)]
    lanes = Counter(h.get(run).lane for run in made)
    assert sorted(lanes.values()) == [1, 4]  # one has a lane of its own beside that of the job, the others share one for 1,024
    assert ids(h.claim(9, memory=1402)) == made[:2]
    assert ids(h.claim(9, worker="w2", memory=1404)) == made[2:3]
    assert ids(h.claim(9, worker="w3", memory=1603)) == made[3:]
    assert not h.another().claim(9, worker="w4", memory=1 << 20)


@pytest.mark.usefixtures("few_lanes")
def test_one_call_makes_few_lanes_however_many_numbers_it_has(h: Harness) -> None:
    news = [NewRun("mail", options=Options(requires=Requires(memory=number))) for number in range(1, 200)]
    made = h(h.engine.create(news))
    assert len({h.get(one.id).lane for one in made}) <= 2 + 8
    assert ids(h.claim(199, memory=sum(range(1, 200)))) == [one.id for one in made]


@pytest.mark.usefixtures("few_lanes")
def test_a_patch_keeps_what_a_run_uses(h: Harness) -> None:
    exact, rounded = needing(h, cores=3), needing(h, cores=5)
    for cores in (1, 2):
        h.define(queue="other", requires=Requires(cores=cores))  # now there is no further lane of its own
    h(h.engine.patch(exact, queue="other"))
    h(h.engine.patch(rounded, payload={"x": 1}))
    assert ids(h.claim(9, cores=8)) == [exact, rounded]
    assert [h.get(run).keys for run in (exact, rounded)] == ['["3","0"]', '["5","0"]']


@pytest.mark.usefixtures("few_lanes")
def test_a_rerun_uses_as_much_as_its_original(h: Harness) -> None:
    needing(h, cores=7)
    run = needing(h, cores=3)
    (seven,) = h.claim(cores=7)
    h.succeed(h.claimed("w2", cores=4))
    again = h(h.engine.rerun(run)).id
    assert h.claim(cores=9) == []
    assert ids(h.claim(cores=10)) == [again]
    h.succeed(seven)


def test_runs_from_before_lanes_were_exact_use_what_their_lane_says(h: Harness) -> None:
    """A lane of an earlier version stands for the next power of two."""
    h(h.engine.parts.provision.lanes_for({("default", "mail", needs_text(Needs(cores=4)))}))
    old, new = needing(h, 4), needing(h, 3)
    assert h.get(old).lane != h.get(new).lane
    assert ids(h.claim(9, cores=7)) == [old, new]


# Who waits for whom


def test_a_run_that_needs_all_cores_is_not_overtaken_for_ever(h: Harness) -> None:
    for _ in range(8):
        needing(h, 1)
    running = h.claim(8, cores=8)
    whole = needing(h, 8)
    small = [needing(h, 1) for _ in range(20)]
    plain = h.create()
    live(h, cores=8)
    for run in running:
        h.succeed(run)
        taken = h.claim(9, cores=8)
        assert not set(ids(taken)) & set(small)
        if whole in ids(taken):
            break
        assert [code for code, _ in why(h, small[0])] == ["kept"]
    assert (h.get(whole).state, h.get(plain).state) == (State.CLAIMED, State.CLAIMED)
    assert ids(h.claim(9, worker="w2", cores=2)) == small[:2]


def test_one_worker_that_keeps_its_cores_holds_no_other_up(h: Harness) -> None:
    needing(h, 1)
    h.claim(cores=8)
    whole, small = needing(h, 8), needing(h, 1)
    assert h.claim(9, cores=8) == []  # seven are free, and kept
    assert ids(h.claim(9, worker="w2", cores=4)) == [small]
    assert ids(h.claim(9, worker="w3", cores=8)) == [whole]


# Why


def test_why_says_which_is_short(h: Harness) -> None:
    holder, waiting = needing(h, 3, 100), needing(h, 2, 100)
    live(h, cores=4, memory=1000)
    h.claim(cores=4, memory=1000)
    assert why(h, waiting) == [("worker_full", f"It needs 2 cores, and worker w1 has 1 of 4 free beside run {holder}.")]
    (reason,) = h(h.engine.why(waiting))
    assert reason.data == {"resource": "cores", "needs": 2, "capacity": 4, "worker": "w1", "free": 1, "runs": [holder]}
    heavy = needing(h, 1, 901)
    codes = why(h, heavy)
    assert codes[0] == ("worker_full", f"It needs 901 MiB of memory, and worker w1 has 900 of 1,000 free beside run {holder}.")


def test_why_says_nothing_where_one_of_the_workers_has_room(h: Harness) -> None:
    needing(h, 2)
    for name in ("w1", "w2"):
        live(h, name, cores=2)
    h.claim(cores=2)
    waiting = needing(h, 2)
    assert why(h, waiting) == []
    h.claim(worker="w2", cores=2)
    last = needing(h, 1)
    ((code, text),) = why(h, last)
    assert (code, text[:45]) == ("worker_full", "It needs 1 core, and worker w1 has 0 of 2 fre")
    assert text.endswith("; none of the 2 workers that are short of it has more.")


def test_why_says_that_no_worker_has_so_many(h: Harness) -> None:
    run = needing(h, 16, 3000)
    live(h, "small", cores=4, memory=8000)
    live(h, "large", cores=8, memory=1000)
    live(h, "elsewhere", queues=("other",), cores=64, memory=64_000)
    ((code, text),) = why(h, run)
    assert code == "no_worker"
    assert text == (
        "None of the 3 live workers takes job 'mail' in queue 'default' with what it requires; it needs 16 cores, and none has more than 8."
    )
    assert h.claim(9, worker="large", cores=8, memory=1000) == []


def test_a_look_reads_only_the_head_of_a_lane_that_the_worker_has_no_room_for(h: Harness) -> None:
    for _ in range(20):
        needing(h, 2)
    h.claimed(cores=3)
    worker = WorkerInfo("w1", cores=3, slots=9)
    look = h(h.engine.parts.heads.look(h.engine.parts.ground.open_lanes(worker), Selector(h.clock.now(), worker), FIRST, 100))
    assert len(look.views[0].heads) == 1


# Through a real worker


@pytest.fixture(params=["file", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    store = request.getfixturevalue("emptied_postgres") if request.param == "postgres" else str(tmp_path / "windlass.db")
    with App(store) as app:
        yield app


def test_a_worker_runs_as_many_at_once_as_it_has_cores_for(app: App) -> None:
    gate = Gate()

    @app.job(cores=2)
    def heavy(actor: str) -> None:
        gate.block(actor)

    first, second, third = heavy.enqueue("first"), heavy.enqueue("second"), heavy.enqueue("third")
    with working(app, name="w1", slots=8, cores=3):
        until(lambda: gate.came == ["first"] and [reason.code for reason in second.why()] == ["worker_full"])
        gate.open()
        assert [ended(run).state for run in (first, second, third)] == [State.SUCCEEDED] * 3
    assert gate.limit == 1
