"""The engine has every verb once: a method of one part, with its signature and its words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from tests.harness import Harness
from windlass.api.verbs import Verbs
from windlass.clock import ManualClock
from windlass.doctor import CHECKS
from windlass.engine import Engine, facade
from windlass.engine.creations import Creations
from windlass.engine.ground import Part
from windlass.engine.parts import Parts
from windlass.model import NewRun, Principal
from windlass.once import once
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

VERBS = sorted(name for name, value in vars(Engine).items() if isinstance(value, facade.verb))
PARTS = sorted(name for name, value in vars(Parts).items() if isinstance(value, once))


@pytest.fixture
def memory() -> Iterator[Harness]:
    clock = ManualClock()
    store = BlockingSqlite(":memory:", clock)
    yield Harness(store, clock)
    run_sync(store.close())


def test_a_verb_is_found_in_its_part_and_says_what_it_does(memory: Harness) -> None:
    assert len(VERBS) > 100
    for name in VERBS:
        verb = getattr(memory.engine, name)
        assert verb.__func__ is getattr(Engine, name), name
        assert verb.__doc__, name
        assert getattr(memory.engine, name) is verb, "it is looked up once"


def test_a_verb_has_the_signature_of_its_method(memory: Harness) -> None:
    assert inspect.signature(Engine.create) == inspect.signature(Creations.create)
    assert list(inspect.signature(memory.engine.create).parameters) == ["news", "undefined"]
    assert inspect.iscoroutinefunction(memory.engine.create)


def test_helpers_are_not_among_the_verbs() -> None:
    others = {name for name in vars(Engine) if not name.startswith("_")} - set(VERBS)
    assert others == {"on", "by", "on_behalf_of", "records", "hints", "commits_together", "wait", "wake", "deliver_by", "close"}


def test_the_engine_has_all_that_people_ask_for() -> None:
    asked = {name for name, _ in inspect.getmembers(Verbs, inspect.isfunction) if not name.startswith("_")}
    assert asked <= {*VERBS, "close"}


def test_parts_hold_what_they_share_and_do_not_inherit_it(memory: Harness) -> None:
    parts = {name: getattr(memory.engine.parts, name) for name in PARTS}
    inherited = {name: type(part).__mro__[1:-1] for name, part in parts.items() if name != "doctor"}
    assert set(inherited.values()) == {(Part,)}
    assert all(part.ground is memory.engine.parts.ground for name, part in parts.items() if name != "doctor")


def test_an_engine_for_somebody_is_made_once(memory: Harness) -> None:
    memory.define()
    ann = memory.engine.on_behalf_of(Principal("ann", trusted=False))
    assert memory.engine.on_behalf_of(Principal("ann", trusted=False)) is ann
    assert memory.engine.on_behalf_of(Principal("ann", trusted=True)) is not ann
    for n in range(2 * facade.MAX_REMEMBERED):
        memory.engine.on_behalf_of(Principal(f"one of many, {n}", trusted=False))
    assert len(memory.engine._others) <= facade.MAX_REMEMBERED
    assert memory(ann.create([NewRun("mail")]))[0].created, "also after it was forgotten"


def test_every_check_has_a_name_and_says_what_it_looks_at() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.looks_at and not check.looks_at.endswith(".") for check in CHECKS)
