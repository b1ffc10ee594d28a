"""What a sweep costs: how often it asks the store, where there is nothing to do and where there is something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness import LEASE, Harness, token
from windlass.engine import SweepResult, Watch, sweeps
from windlass.model import State
from windlass.store.base import Statement

SECOND, MINUTE = 1_000, 60_000


@pytest.fixture
def asked(h: Harness, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Every batch from the second sweep on, which is in the same minute as the first."""
    h.sweep()
    batch, batches = h.store.batch, list[tuple[str, list[str]]]()

    async def noted(verb: str, statements: Sequence[Statement]) -> Any:
        batches.append((verb, [statement.name for statement in statements]))
        return await batch(verb, statements)

    monkeypatch.setattr(h.store, "batch", noted)
    return batches


def swept(h: Harness, watch: Watch | None = None) -> SweepResult:
    return h(h.engine.sweep(watch))


def test_a_sweep_with_nothing_to_do_is_one_read(h: Harness, asked: list[tuple[str, list[str]]]) -> None:
    h(h.engine.schedule("later", "mail", every="1h"))
    h.create(due_at=h.clock.now() + 3 * SECOND // 2)
    h.create()
    h.claimed()
    del asked[:]
    assert swept(h).back_in == SECOND
    assert [verb for verb, _ in asked] == ["read"]
    h.clock.advance(SECOND)
    assert swept(h, Watch(h.clock)).back_in == SECOND // 2
    assert [verb for verb, _ in asked] == ["read", "read"]


def test_a_sweep_asks_again_only_for_what_it_has_found(h: Harness, asked: list[tuple[str, list[str]]]) -> None:
    h(h.engine.schedule("ticks", "mail", every="1s"))
    later = h.create(due_at=h.clock.now() + SECOND)
    h.clock.advance(SECOND)
    del asked[:]
    result = swept(h)
    assert (result.fired, result.dispatched, result.back_in) == (1, 1, SECOND)
    assert [names for verb, names in asked if verb == "read"][1:] == [["next_times"]]
    assert h.get(later).state is State.QUEUED


def test_what_falls_due_while_a_sweep_works_is_not_slept_through(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.create(due_at=h.clock.now() + 10)
    h.create(due_at=h.clock.now() + 300)
    h.clock.advance(10)
    dispatch = h.engine.records.sweeps.dispatch

    async def slowly(*args: Any) -> Any:
        h.clock.advance(500)
        return await dispatch(*args)

    monkeypatch.setattr(h.engine.records.sweeps, "dispatch", slowly)
    result = swept(h)
    assert (result.dispatched, result.back_in) == (1, 0)
    assert swept(h).dispatched == 1


def test_a_sweep_pages_on_where_its_first_read_was_full(
    h: Harness, asked: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "SLICE", 2)
    for _ in range(5):
        h.create(due_at=h.clock.now() + SECOND)
    for _ in range(5):
        h.create()
    assert len(h.claim(5)) == 5
    h.clock.advance(LEASE)
    result = swept(h)
    assert (result.lapsed, result.dispatched) == (5, 5)
    assert [names for verb, names in asked if verb == "read" and names[0] in ("overdue", "due")][1:] == [["overdue"]] * 2 + [["due"]] * 2


def test_leases_that_seem_to_last_for_too_long_are_looked_at_by_the_sweep_that_finds_them(h: Harness) -> None:
    h.create()
    run = h.claimed()
    h.clock.jump(-10 * MINUTE)
    h.clock.advance(MINUTE)  # a new minute: then such leases are looked for
    before = h.get(run.id).lease_check_at
    swept(h, Watch(h.clock))
    after = h.get(run.id).lease_check_at
    assert before is not None
    assert after is not None
    assert after < before
    assert h.get(run.id).token == token(run)
