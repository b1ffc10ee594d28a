"""Who may say that a worker is gone: pauses of the one who looks, clocks that are set, and what that hides or shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import KINDS, LEASE, Harness, token
from tests.tiers import corners
from tests.worker.test_worker import at
from tests.workers import Gate, Working, in_state, working
from windlass import App
from windlass.engine import Watch, sweeps
from windlass.engine import watch as watching
from windlass.errors import StoreBroken
from windlass.model import Run, State, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held
from windlass.worker import Worker

SECOND, DAY = 1_000, 24 * 3600 * 1000


def swept(h: Harness, watch: Watch, seconds: int, *, beat: Run | None = None) -> int:
    """Sweep once a second for so long, while a worker beats or not; how many leases were taken for lost."""
    lapsed = 0
    for second in range(seconds):
        h.clock.advance(SECOND)
        if beat is not None and second % 4 == 0:
            assert h(h.engine.beat([Held(beat.seq, token(beat))], lease=LEASE)) == ["ok"]
        lapsed += h(h.engine.sweep(watch)).lapsed
    return lapsed


def test_a_sweeper_that_stands_still_again_and_again_finds_a_lost_run_all_the_same(h: Harness) -> None:
    h.create()
    watch = Watch(h.clock)
    h.claimed()
    began = h.clock.monotonic()
    while not swept(h, watch, 9):
        h.clock.advance(6 * SECOND)
        assert h.clock.monotonic() - began < 3 * LEASE
    assert h.clock.monotonic() - began >= LEASE


def test_a_sweeper_whose_every_turn_takes_long_finds_a_lost_run_all_the_same(h: Harness) -> None:
    h.create()
    watch = Watch(h.clock)
    h.claimed()
    for _ in range(2 * watching.PARTS):
        h.clock.advance(60 * SECOND)
        if h(h.engine.sweep(watch)).lapsed:
            break
    else:
        pytest.fail("It was never found.")


def test_pauses_before_the_last_renewal_cost_nothing(h: Harness) -> None:
    run_id = h.create()
    watch = Watch(h.clock)
    run = h.claimed()
    for _ in range(10):
        h.clock.advance(20 * SECOND)
        assert h(h.engine.beat([Held(run.seq, token(run))], lease=LEASE)) == ["ok"]
        h(h.engine.sweep(watch))
    assert swept(h, watch, LEASE // SECOND - 1) == 0
    assert swept(h, watch, 1) == 1
    assert h.get(run_id).attempt == 2


@pytest.mark.parametrize("pause", [6, 29, 31, 3600])
def test_no_lease_is_lapsed_for_the_time_in_which_the_sweeper_itself_stood_still(h: Harness, pause: int) -> None:
    run_id = h.create()
    watch = Watch(h.clock)
    h.claimed()
    assert swept(h, watch, 5) == 0
    h.clock.advance(pause * SECOND)  # all of the host
    h(h.engine.sweep(watch))
    assert swept(h, watch, 20) == 0
    assert h.get(run_id).state is State.CLAIMED
    assert swept(h, watch, 10) == 1


def test_while_the_store_is_away_no_lease_grows_old(h: Harness) -> None:
    h.create()
    watch = Watch(h.clock)
    h.claimed()
    for _ in range(100):  # each time it is asked in vain, a second after the last
        h.clock.advance(SECOND)
        watch.look()
        watch.missed()
    h(h.engine.sweep(watch))
    assert swept(h, watch, LEASE // SECOND - 5) == 0
    assert swept(h, watch, 6) == 1


@pytest.mark.parametrize("jump", [-DAY, -40 * SECOND, 10 * SECOND, 3600 * SECOND, 40 * DAY])
def test_a_clock_that_is_set_ends_no_lease_that_is_renewed_and_keeps_none_that_is_not(h: Harness, jump: int) -> None:
    dead, alive = h.create(), h.create()
    watch = Watch(h.clock)
    _, beats = h.claim(2)
    assert swept(h, watch, 10, beat=beats) == 0
    h.clock.jump(jump)
    assert swept(h, watch, 15, beat=beats) == 0
    assert swept(h, watch, 2 * LEASE // SECOND, beat=beats) == 1
    assert (h.get(dead).attempt, h.get(alive).state) == (2, State.CLAIMED)


def test_a_clock_that_is_set_every_few_seconds_keeps_no_lost_run(h: Harness) -> None:
    dead, alive = h.create(), h.create()
    watch = Watch(h.clock)
    _, beats = h.claim(2)
    for turn in range(8):
        h.clock.jump((-1) ** turn * 3600 * SECOND)
        swept(h, watch, 8, beat=beats)
    assert (h.get(dead).attempt, h.get(alive).state) == (2, State.CLAIMED)


def test_a_holder_that_died_before_the_clock_was_set_back_is_found_by_a_process_that_comes_later(h: Harness) -> None:
    run_id = h.create()
    h.claimed()
    h.clock.jump(-DAY)
    assert swept(h, Watch(h.clock), LEASE // SECOND + 1) == 1
    assert h.get(run_id).attempt == 2


def test_a_beat_after_the_clock_was_set_back_shows_that_its_worker_lives(h: Harness) -> None:
    run_id = h.create()
    run = h.claimed()
    h.clock.jump(-DAY)
    assert swept(h, Watch(h.clock), 2 * LEASE // SECOND, beat=run) == 0
    assert h.get(run_id).lease_until == h.get(run_id).lease_check_at != run.lease_until


def test_a_clock_set_ahead_expires_no_run_and_ends_no_grace(h: Harness) -> None:
    h.define("long", max_runtime=60 * SECOND)
    h.define("stubborn", grace=40 * SECOND)
    long, stubborn = h.create("long"), h.create("stubborn")
    watch = Watch(h.clock)
    runs = {run.id: run for run in h.claim(2)}
    h(h.engine.cancel(stubborn))
    held = [Held(run.seq, token(run)) for run in runs.values()]
    h.clock.jump(3600 * SECOND)
    for second in range(80):
        h.clock.advance(SECOND)
        if second % 4 == 0:
            h(h.engine.beat(held, lease=LEASE))
        h(h.engine.sweep(watch))
        if second < 38:
            assert (h.get(stubborn).state, h.get(long).state) == (State.CANCELLING, State.CLAIMED)
    assert (h.get(stubborn).state, h.get(long).state) == (State.CANCELLED, State.FAILED)


def test_a_direct_call_is_ended_neither_by_a_pause_nor_by_a_clock_that_is_set(h: Harness) -> None:
    h(h.engine.set_resource("gpu", capacity=1))
    slot = h(h.engine.reserve("gpu"))
    watch = Watch(h.clock)
    for jump, pause in ((3600, 0), (-7200, 0), (0, 3600)):
        h.clock.jump(jump * SECOND)
        h.clock.advance(pause * SECOND)
        swept(h, watch, 10)
        assert h(h.engine.renew(slot.id, slot.token)).state == "held"
    h.clock.jump(-DAY)
    swept(h, watch, 2 * LEASE // SECOND)
    assert h(h.engine.slots()) == []


def test_leases_that_may_not_be_judged_yet_hide_none_behind_them(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "SLICE", 4)
    monkeypatch.setattr(sweeps, "SLICES", 2)
    for _ in range(30):
        h.create()
    hiding = h.claim(29, lease=3600 * SECOND)
    h.clock.advance(2 * 3600 * SECOND)
    watch = Watch(h.clock)  # which must watch those for an hour first
    hidden = h.claimed(lease=2 * SECOND)
    assert swept(h, watch, 2 + 2 * (1 + 30 // 8)) == 1
    assert h.get(hidden.id).attempt == 2
    assert {h.get(run.id).state for run in hiding} == {State.CLAIMED}


@pytest.fixture(params=corners(KINDS))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each store in turn."""
    with App(at(request.param, tmp_path, request)) as app:
        yield app


def test_a_handler_that_blocks_the_loop_of_its_worker_holds_up_no_sweep(app: App) -> None:
    gate = Gate()

    @app.job(name="block", queue="mine")
    async def block() -> None:
        gate.block()  # the whole loop with it

    @app.job(name="lost", queue="others")
    def lost() -> None: ...

    handle = lost.enqueue()
    (run,) = run_sync(app.verbs.claim(WorkerInfo("gone", slots=8), lease=SECOND))
    block.enqueue()
    with working(app, queues=["mine"]):
        gate.reached()
        assert in_state(handle, State.QUEUED, attempt=2).id == run.id
        gate.open()


def test_a_sweep_that_fails_for_good_ends_its_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise StoreBroken("It is damaged, for the test.", hint="Restore a backup.")

    def prepare(worker: Worker) -> None:
        assert worker.sweeper is not None
        monkeypatch.setattr(worker.sweeper.maintenance, "sweep", broken)

    with pytest.raises(StoreBroken):  # noqa: PT012 - it may have ended before it is asked
        at_work = Working(app, prepare, 1, {"name": "w1"})
        at_work.join()
        at_work.reraise()
