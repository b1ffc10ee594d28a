"""One schedule fired by its key and its instant, and the schedules that are due: what dispatchers outside of the sweep use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance import SHARED, at_once, crowd, late, unchanged
from tests.engine.test_schedules import MINUTE, due_times, read, schedule, skips
from tests.harness import Harness
from windlass.engine import fires
from windlass.errors import BadInput
from windlass.model import Options


def fire(h: Harness, key: str = "often", instant: int | None = None) -> bool:
    return h(h.engine.fire_schedule(key, read(h, key).next_at or 0 if instant is None else instant))


def due(h: Harness, **how: Any) -> list[str]:
    return [schedule.key for schedule in h(h.engine.due_schedules(**how))]


def test_one_schedule_is_fired_and_no_other(h: Harness) -> None:
    start = h.clock.now()
    for key in ("often", "other"):
        schedule(h, key)
    h.clock.advance(5 * MINUTE)
    assert fire(h)
    assert (due_times(h), due_times(h, "other")) == ([start + 5 * MINUTE], [])
    assert read(h).next_at == start + 10 * MINUTE


@pytest.mark.parametrize("kind", SHARED)
def test_of_several_calls_at_once_one_fires(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as callers:
        h = callers[0]
        schedule(h)
        for tick in range(1, 4):
            h.clock.advance(5 * MINUTE)
            instant = read(h).next_at or 0
            answers = at_once(callers, ["advance_schedules"], *[lambda h, at=instant: fire(h, instant=at)] * 4)
            assert sorted(map(bool, answers)) == [False, False, False, True]
            assert len(due_times(h)) == tick


def test_only_the_next_instant_of_a_schedule_is_fired_and_only_when_it_is_due(h: Harness) -> None:
    start = h.clock.now()
    schedule(h)
    with unchanged(h):
        assert not fire(h)
        h.clock.advance(5 * MINUTE)
        assert not fire(h, instant=start)
        assert not fire(h, instant=start + 10 * MINUTE)
        assert not h(h.engine.fire_schedule("unknown", start))
    assert fire(h)
    assert not fire(h, instant=start + 5 * MINUTE)
    h(h.engine.set_schedule("often", enabled=False))
    h.clock.advance(5 * MINUTE)
    assert not fire(h, instant=start + 10 * MINUTE)


def test_missed_instants_are_fired_as_the_schedule_says(h: Harness) -> None:
    start = h.clock.now()
    schedule(h, "all", missed="all")
    schedule(h, "latest")
    h.clock.advance(15 * MINUTE)
    assert [fire(h, key) for key in ("all", "latest")] == [True, True]
    assert (due_times(h, "all"), due_times(h, "latest")) == ([start + 5 * MINUTE], [start + 15 * MINUTE])
    assert [skip.number for skip in skips(h, "latest")] == [2]


def test_a_schedule_that_is_edited_meanwhile_is_not_fired(h: Harness) -> None:
    schedule(h)
    h.clock.advance(5 * MINUTE)
    slow = late(h, "advance_schedules", lambda: h(h.engine.set_schedule("often", payload={"to": "bob"})))
    assert not fire(slow)
    assert due_times(h) == []
    assert fire(h)


def test_due_schedules_are_listed_by_their_instant_and_then_by_their_creation(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fires, "FIRED_AT_ONCE", 2)  # rows that are read at once
    for key, every, queue in (("a", "3m", "mail"), ("b", "2m", None), ("c", "2m", "mail"), ("d", "1m", "mail"), ("e", "9m", "mail")):
        schedule(h, key, every=every, options=Options(queue=queue))
    assert due(h) == []
    h.clock.advance(3 * MINUTE)
    assert due(h) == ["d", "b", "c", "a"]
    assert due(h, queue="mail") == ["d", "c", "a"]
    assert due(h, queue="mail", count=2) == ["d", "c"]
    assert due(h, queue="other") == []
    with pytest.raises(BadInput):
        due(h, count=0)
