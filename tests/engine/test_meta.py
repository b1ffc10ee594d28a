"""What a creation says of its run: stored once, never changed, in every answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import unchanged
from tests.harness import Harness
from windlass import payload
from windlass.errors import BadInput, DuplicateKey, TooLarge, WindlassError
from windlass.model import Key, Limits, Member, NewGroup, NewRun, Run
from windlass.store.creation import NewRow, sizes

META = {"user": "ann", "org": "acme", "n": 1.5, "deep": {"é": [None, True]}}


def value_of(run: Run) -> Any:
    return None if run.meta is None else payload.decode(run.meta)


def meta(h: Harness, run_id: str) -> Any:
    return value_of(h.get(run_id))


def test_it_is_as_it_was_given_and_stays_so(h: Harness) -> None:
    h.define(backoff=(0,))
    run_id = h.create(meta=META)
    assert meta(h, run_id) == META
    h(h.engine.patch(run_id, payload={"a": 1}, queue="other", priority=3))
    h.fail(h.claimed())
    run = h.claimed()
    assert value_of(run) == META
    h.succeed(run)
    assert meta(h, run_id) == META


def test_runs_of_one_call_have_their_own_or_none(h: Harness) -> None:
    h.define()
    news = [NewRun("mail", meta={"n": 1}), NewRun("mail"), NewRun("mail", meta={}), NewRun("mail", key=Key("k"), meta={"n": 4})]
    created = h(h.engine.create(news))
    assert [meta(h, one.id) for one in created] == [{"n": 1}, None, {}, {"n": 4}]


def test_a_list_has_it(h: Harness) -> None:
    h.define()
    h.create(payload={"a": "x" * 5_000}, meta=META)
    (run,) = h(h.engine.runs()).runs
    assert value_of(run) == META


def test_a_rerun_keeps_it(h: Harness) -> None:
    h.define(max_attempts=1)
    run_id = h.create(meta=META)
    h.fail(h.claimed())
    assert meta(h, h(h.engine.rerun(run_id)).id) == META


def test_a_rerun_of_a_group_keeps_it(h: Harness) -> None:
    h.define(max_attempts=1)
    members = tuple(Member(NewRun("mail", meta={"n": n})) for n in range(2))
    group = h(h.engine.create_group(NewGroup(members, callback=NewRun("mail", meta={"n": 2}))))
    for run in h.claim(2):
        h.succeed(run)
    h.succeed(h.claimed())
    again = h(h.engine.rerun_group(group.id))
    assert [meta(h, run.id) for run in h(h.engine.members(again.id))] == [{"n": 0}, {"n": 1}]
    assert again.callback is not None
    assert meta(h, again.callback) == {"n": 2}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], BadInput),
        ("text", BadInput),
        (7, BadInput),
        ({"a": float("nan")}, BadInput),
        ({"a": "\0"}, BadInput),
        ({1: 2}, BadInput),
        ({"a": object()}, BadInput),
        ({"a": "x" * Limits().meta}, TooLarge),
    ],
)
def test_what_is_no_small_json_object_is_refused_and_nothing_is_made(h: Harness, value: Any, error: type[WindlassError]) -> None:
    h.define()
    with unchanged(h), pytest.raises(error, match="meta"):
        h(h.engine.create([NewRun("mail"), NewRun("mail", meta=value)]))
    with unchanged(h), pytest.raises(error, match="meta"):
        h(h.engine.create([NewRun("undefined", meta=value)], undefined="wait"))
    with unchanged(h), pytest.raises(error, match="meta"):
        h(h.engine.create_group(NewGroup((Member(NewRun("mail", meta=value)),))))


def test_its_limit_is_bytes_of_json(h: Harness) -> None:
    h.define()
    around = len('{"a":""}')
    h.create(meta={"a": "x" * (Limits().meta - around)})
    h.create(meta={"a": "é" * ((Limits().meta - around) // 2)})
    with pytest.raises(TooLarge):
        h.create(meta={"a": "é" * ((Limits().meta - around) // 2 + 1)})


def test_it_is_a_part_of_what_a_key_compares(h: Harness) -> None:
    h.define()
    key = Key("k", "forever", on_duplicate="compare")
    first = h.create(key=key, meta={"n": 1})
    assert h.create(key=key, meta={"n": 1}) == first
    for other in ({"n": 2}, None):
        with unchanged(h), pytest.raises(DuplicateKey):
            h.create(key=key, meta=other)


def test_it_counts_towards_the_size_of_a_batch() -> None:
    assert sizes([NewRow("a", 1, 2, "{}"), NewRow("a", 1, 2, "{}", meta='{"n":1}')]) == [2, 9]
