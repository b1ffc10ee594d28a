"""What closed attempts ran with, whatever is patched later; and reruns of a run, or of one of its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conformance import unchanged
from tests.harness import LEASE, Harness
from windlass import payload
from windlass.errors import BadInput, NotFound, WrongState
from windlass.machine import Snooze
from windlass.model import Key, Requires, Run, State, Use
from windlass.store.base import Row, Statement

NOW, LATER = (0,), (60_000,)


def patched(h: Harness, run_id: str, value: Any) -> None:
    h(h.engine.patch(run_id, payload=value))


def payloads(h: Harness, run_id: str) -> list[Any]:
    """What each attempt ran with, or will."""
    run = h.get(run_id)
    return [payload.decode(attempt.payload or run.payload) for attempt in h(h.engine.attempts(run_id))]


def failed_thrice(h: Harness) -> str:
    """A run that has ended after three attempts, each with another payload."""
    h.define(backoff=NOW, max_attempts=3)
    run_id = h.create(payload={"n": 1})
    for n in (2, 3):
        h.fail(h.claimed())
        patched(h, run_id, {"n": n})
    h.fail(h.claimed())
    return run_id


# What attempts ran with


def test_a_patch_leaves_closed_attempts_what_they_ran_with(h: Harness) -> None:
    run_id = failed_thrice(h)
    assert payloads(h, run_id) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [attempt.payload for attempt in h(h.engine.attempts(run_id))] == ['{"n":1}', '{"n":2}', None]


def test_several_attempts_that_ran_with_the_same_keep_it_together(h: Harness) -> None:
    h.define(backoff=NOW, max_attempts=5)
    run_id = h.create(payload={"n": 1})
    h.fail(h.claimed())
    h.report(run := h.claimed(), Snooze(token=run.token, delay=0))
    patched(h, run_id, {"n": 2})
    patched(h, run_id, {"n": 3})
    assert payloads(h, run_id) == [{"n": 1}, {"n": 1}, {"n": 3}]


def test_a_lost_attempt_keeps_it_too(h: Harness) -> None:
    h.define(backoff=LATER)
    run_id = h.create(payload={"n": 1})
    h.claimed()
    h.sweep(after=LEASE)
    patched(h, run_id, {"n": 2})
    assert payloads(h, run_id) == [{"n": 1}, {"n": 2}]


def test_a_patch_that_is_refused_keeps_nothing(h: Harness) -> None:
    h.define(backoff=NOW)
    run_id = h.create(payload={"n": 1})
    h.fail(h.claimed())
    h.claimed()
    with unchanged(h), pytest.raises(WrongState):
        patched(h, run_id, {"n": 2})
    assert [attempt.payload for attempt in h(h.engine.attempts(run_id))] == [None, None]


def test_a_patch_that_loses_a_race_keeps_nothing_of_what_it_read(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.define(backoff=NOW)
    run_id = h.create(payload={"n": 1})
    h.fail(h.claimed())
    patch, others = h.engine.parts.ground.records.work.patch, [{"n": 2}]

    async def late(*arguments: Any) -> bool:
        if others:
            await h.another().engine.patch(run_id, payload=others.pop())
        return await patch(*arguments)

    monkeypatch.setattr(h.engine.parts.ground.records.work, "patch", late)
    patched(h, run_id, {"n": 3})
    assert payloads(h, run_id) == [{"n": 1}, {"n": 3}]


class Names:
    """A store that notes the statements of each batch."""

    def __init__(self, h: Harness) -> None:
        self.store, self.names = h.store, list[tuple[str, str]]()

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self.names += [(verb, statement.name) for statement in statements]
        return await self.store.batch(verb, statements)

    async def close(self) -> None:
        await self.store.close()


def test_only_a_patch_of_another_payload_after_a_closed_attempt_pays_for_it(h: Harness) -> None:
    noting = Names(h)
    other = Harness(noting, h.clock)
    other.define(backoff=NOW)
    run_id = other.create(payload={"n": 1})
    patched(other, run_id, {"n": 2})
    other.fail(other.claimed())
    other(other.engine.patch(run_id, priority=3))
    patched(other, run_id, {"n": 2})
    assert "keep_payload" not in {name for _, name in noting.names}
    patched(other, run_id, {"n": 3})
    assert [verb for verb, name in noting.names if name == "keep_payload"] == ["patch"]


# Reruns


def again(h: Harness, run_id: str, attempt: int | None = None) -> Run:
    return h.get(h(h.engine.rerun(run_id, attempt=attempt)).id)


def test_a_run_is_rerun_with_its_last_payload_and_names_its_last_attempt(h: Harness) -> None:
    run_id = failed_thrice(h)
    last = h.get(run_id).current_attempt
    for run in (again(h, run_id), again(h, last), again(h, run_id, 3)):
        assert (payload.decode(run.payload), run.retry_of, run.attempt) == ({"n": 3}, last, 1)


@pytest.mark.parametrize("n", [1, 2])
def test_an_attempt_is_rerun_with_what_it_ran_with(h: Harness, n: int) -> None:
    run_id = failed_thrice(h)
    attempt = h(h.engine.attempts(run_id))[n - 1]
    runs = [again(h, run_id, n)] if n == 1 else [again(h, run_id, n), again(h, attempt.id)]
    for run in runs:
        assert (payload.decode(run.payload), run.retry_of, run.state) == ({"n": n}, attempt.id, State.QUEUED)


@pytest.mark.parametrize("end", ["failed", "lapsed"])
def test_a_failed_or_lost_attempt_is_rerun_beside_the_run_that_goes_on(h: Harness, end: str) -> None:
    h.define(backoff=LATER)
    run_id = h.create(payload={"n": 1})
    run = h.claimed()
    h.sweep(after=LEASE) if end == "lapsed" else h.fail(run)
    h.sweep(after=60_000)
    assert h.claimed().id == run_id
    before = h.get(run_id)
    beside = again(h, run_id, 1)
    assert (payload.decode(beside.payload), beside.retry_of) == ({"n": 1}, run_id)
    assert h.get(run_id) == before


@pytest.mark.parametrize("attempt", [None, 2, "id"])
def test_the_current_attempt_of_an_unfinished_run_is_not_rerun(h: Harness, attempt: Any) -> None:
    h.define(backoff=LATER)
    run_id = h.create()
    h.fail(h.claimed())
    name, n = (h.get(run_id).current_attempt, None) if attempt == "id" else (run_id, attempt)
    with unchanged(h), pytest.raises(WrongState, match="it cannot be rerun before its end"):
        h(h.engine.rerun(name, attempt=n))


def test_a_returned_attempt_is_rerun_only_once_its_run_has_ended(h: Harness) -> None:
    h.define()
    run_id = h.create(payload={"n": 1})
    h.report(run := h.claimed(), Snooze(token=run.token, delay=0))
    with unchanged(h), pytest.raises(WrongState):
        h(h.engine.rerun(run_id, attempt=1))
    h.succeed(h.claimed())
    assert again(h, run_id, 1).retry_of == run_id


@pytest.mark.parametrize(("n", "error"), [(4, NotFound), (0, BadInput), (True, BadInput), (2**31, BadInput)])
def test_an_attempt_that_there_is_not_is_refused(h: Harness, n: Any, error: type[Exception]) -> None:
    run_id = failed_thrice(h)
    with unchanged(h), pytest.raises(error):
        h(h.engine.rerun(run_id, attempt=n))


def test_a_rerun_under_a_key_is_made_once(h: Harness) -> None:
    run_id, key = failed_thrice(h), Key("once", "forever")
    first = h(h.engine.rerun(run_id, attempt=1, key=key))
    assert h(h.engine.rerun(run_id, attempt=1, key=key)).id == first.id


def test_a_rerun_occupies_what_the_payload_of_its_attempt_says(h: Harness) -> None:
    h.define(backoff=LATER, uses=(Use("customer", per="customer"),), requires=Requires(cores=3))
    run_id = h.create(payload={"customer": "ann"})
    h.fail(h.claimed(cores=8))
    first = h.get(run_id).keys
    patched(h, run_id, {"customer": "bob"})
    assert h.get(run_id).keys != first
    assert again(h, run_id, 1).keys == first


def test_a_run_that_is_parked_is_rerun_in_its_own_lane(h: Harness) -> None:
    h.define(backoff=NOW, uses=(Use("customer", per="customer"),))
    run_id = h.create(payload={"customer": "ann"})
    h.fail(h.claimed())
    other = h.create(payload={"customer": "ann"})
    h(h.engine.move(run_id, to="bottom"))
    assert h.claimed().id == other
    h.claim(5)
    assert h.get(run_id).lane < 0
    h.define(uses=())  # the rules of a run are those that it was created with
    assert again(h, run_id, 1).lane == abs(h.get(run_id).lane)
