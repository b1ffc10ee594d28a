"""A clock that was set: what retention and keys make of it, in processes that saw it happen and in those that came later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import LEASE, Harness, token
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Watch
from windlass.errors import NotFound
from windlass.model import Key, State
from windlass.steady import LASTING, OFF, TOLERANCE, Scale, follow
from windlass.store.base import run_sync
from windlass.store.records import Held
from windlass.store.sqlite import BlockingSqlite

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 24 * 3600 * 1000


def ended(h: Harness) -> list[str]:
    """Runs that have ended, in every way in which they are kept for another time."""
    ids = [h.create(), h.create()]
    good, bad = h.claim(2)
    h.succeed(good)
    h.fail(bad, retry=False)
    return ids


def kept(h: Harness, ids: list[str]) -> bool:
    try:
        return all(h.get(run_id).id == run_id for run_id in ids)
    except NotFound:
        return False


def month(name: str = "once") -> Key:
    return Key(name, ttl=30 * DAY)


class File:
    """A file on a machine whose processes come and go; each knows only the clock and the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock()
        self.clock.boot_id = "first"
        self._open: list[BlockingSqlite] = []

    def process(self) -> Harness:
        self._open.append(BlockingSqlite(self.path, self.clock))
        h = Harness(self._open[-1], self.clock)
        h.define()
        return h

    def close(self) -> None:
        for store in self._open:
            run_sync(store.close())


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    file = File(tmp_path / "windlass.db")
    yield file
    file.close()


@pytest.mark.parametrize("later", [False, True])
def test_a_clock_that_is_40_days_ahead_for_a_minute_removes_nothing_and_frees_no_key(file: File, later: bool) -> None:
    h = file.process()
    ids = ended(h)
    first = h.create(key=month())
    h(h.engine.prune())
    file.clock.advance(HOUR)
    file.clock.jump(40 * DAY)
    if later:
        h = file.process()
    assert h(h.engine.prune()) == 0
    assert h.create(key=month()) == first
    for _ in range(10):
        file.clock.advance(6 * SECOND)
        assert h(h.engine.sweep()).pruned == 0
        assert h.create(key=month()) == first
    file.clock.jump(-40 * DAY)
    h(h.engine.prune())
    assert kept(h, ids)
    assert h.create(key=month()) == first
    file.clock.advance(30 * DAY)
    assert h.create(key=month()) != first


def test_the_same_within_a_process_on_any_store(h: Harness) -> None:
    ids = ended(h)
    first = h.create(key=month())
    h(h.engine.prune())
    h.clock.jump(40 * DAY)
    for _ in range(3):
        h.clock.advance(MINUTE)
        assert h(h.engine.sweep()).pruned == 0
        assert h.create(key=month()) == first
    h.clock.jump(-40 * DAY)
    h(h.engine.prune())
    assert kept(h, ids)


def test_a_clock_that_was_set_is_believed_after_an_hour(file: File) -> None:
    h = file.process()
    ids = ended(h)
    first = h.create(key=month())
    h(h.engine.prune())
    file.clock.jump(40 * DAY)
    for _ in range(LASTING // MINUTE):
        assert h(h.engine.sweep()).pruned == 0
        file.clock.advance(MINUTE)
    later = file.process()
    assert later(later.engine.prune()) == len(ids)
    assert later.create(key=month()) != first
    assert h.create(key=month("another")) == later.create(key=month("another"))


def test_a_clock_that_is_set_once_more_must_last_anew(file: File) -> None:
    h = file.process()
    ids = ended(h)
    h(h.engine.prune())
    file.clock.jump(40 * DAY)
    h(h.engine.prune())
    for _ in range(3):
        file.clock.advance(LASTING - MINUTE)
        file.clock.jump(HOUR)
        assert h(h.engine.prune()) == 0
    file.clock.advance(LASTING)
    assert h(h.engine.prune()) == len(ids)


def test_what_is_written_while_the_clock_is_back_is_not_removed_at_once(file: File) -> None:
    h = file.process()
    h(h.engine.prune())
    file.clock.jump(-40 * DAY)
    ids = ended(h)
    first = h.create(key=Key("short", ttl=HOUR))
    h(h.engine.prune())
    assert kept(h, ids)
    assert h.create(key=Key("short", ttl=HOUR)) == first


def test_a_clock_that_is_corrected_little_by_little_is_followed(file: File) -> None:
    h = file.process()
    ids = ended(h)
    for _ in range(100):
        h(h.engine.prune())
        file.clock.jump(TOLERANCE)
    file.clock.advance(31 * DAY)
    later = file.process()
    assert later(later.engine.prune()) == len(ids)


@pytest.mark.parametrize(("off", "believed"), [(0, True), (MINUTE, True), (OFF, True), (OFF + 1, False), (40 * DAY, False), (-DAY, False)])
def test_after_a_start_of_the_machine_the_clock_is_believed_within_a_day(off: int, believed: bool) -> None:
    known = Scale("first", 1_000, None, None, 1_000 + HOUR)
    scale = follow(known, "second", MINUTE, known.latest + off)
    assert (scale.other is None) is believed
    assert scale.base + MINUTE == known.latest + (off if believed else 0)
    if not believed:
        later = follow(scale, "second", MINUTE + LASTING, known.latest + off + LASTING)
        assert (later.other, later.base) == (None, known.latest + off - MINUTE)


def test_a_machine_that_was_off_for_a_month_removes_old_runs_an_hour_later(file: File) -> None:
    h = file.process()
    ids = ended(h)
    h(h.engine.prune())
    file.clock.advance(31 * DAY)
    file.clock.reboot("second")
    h = file.process()
    assert h(h.engine.prune()) == 0
    file.clock.advance(LASTING)
    assert h(h.engine.prune()) == len(ids)


def test_a_holder_that_dies_after_the_clock_was_set_back_a_day_is_found_in_about_a_lease(file: File) -> None:
    h = file.process()
    run_id = h.create()
    watch = Watch(h.clock)
    run = h.claimed()
    h(h.engine.sweep(watch))
    file.clock.jump(-DAY)
    h(h.engine.beat([Held(run.seq, token(run))], lease=LEASE))
    seconds = 0
    while h.get(run_id).state is State.CLAIMED:
        h.clock.advance(SECOND)
        h(h.engine.sweep(watch))
        seconds += 1
        assert seconds <= 1 + 2 * LEASE // SECOND


def test_the_doctor_tells_of_a_clock_that_was_set(file: File) -> None:
    h = file.process()
    h(h.engine.prune())
    assert not [finding for finding in h(h.engine.doctor()) if finding.code == "clock_was_set"]
    file.clock.jump(40 * DAY)
    h(h.engine.prune())
    file.clock.advance(MINUTE)
    later = file.process()
    for asked in (h, later):
        (finding,) = [finding for finding in asked(asked.engine.doctor()) if finding.code == "clock_was_set"]
        assert finding.severity == "warning"
        assert finding.data == {"ahead_ms": 40 * DAY, "since_ms": MINUTE}


def test_creations_without_a_step_read_nothing_more(file: File) -> None:
    h = file.process()
    h.create(key=month())
    asked: list[str] = []
    scale = h.engine.parts.ground.home.scales.scale

    async def counted() -> Scale | None:
        asked.append("scale")
        return await scale()

    h.engine.parts.ground.home.scales.scale = counted  # type: ignore[method-assign]
    h.create(key=month())
    h.create()
    assert asked == []


def test_a_machine_tells_which_start_it_counts_from() -> None:
    assert SystemClock().boot() == SystemClock().boot()
