"""The order of a queue: what stands in it, what is moved in it, and what claims make of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import IN_STATE, SHARED, address, at_once, crowd, dump, late, restarted, unchanged
from tests.harness import Harness
from tests.served import ServedHub
from windlass import App, AsyncApp, cli
from windlass.cli import codes
from windlass.client import Client
from windlass.clock import ManualClock
from windlass.engine.checks import FAR_FUTURE
from windlass.engine.moves import APART, FAR, NEAR, _pushed
from windlass.errors import BadInput, Conflict, LimitReached, NotEditable, NotFound, WindlassError, WrongState
from windlass.machine import ENDED, LIVE, LONGEST_HEAD_START, Reorder, step
from windlass.model import INDEX_STEP, POSITION_STEP, Member, NewGroup, NewRun, Options, Run, State, Use, place
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite
from windlass.testing.servers import PostgresServer

WAITS = (State.WAITING, State.SCHEDULED, State.QUEUED)


def queued(h: Harness, queue: str | None = None) -> list[str]:
    """The queue from its head to its end."""
    return [run.id for run in h(h.engine.runs(state="queued", queue=queue, count=1_000)).runs]


def line_up(h: Harness, count: int, **fields: Any) -> list[str]:
    """Runs that were asked for one by one in the same millisecond: all stand at one position."""
    return [h.create(**fields) for _ in range(count)]


def move(h: Harness, run_id: str, **where: Any) -> Run:
    return h(h.engine.move(run_id, **where))


def moved(ids: list[str], run_id: str, index: int) -> list[str]:
    """The same with one taken out and put in at a place."""
    rest = [other for other in ids if other != run_id]
    rest.insert(index, run_id)
    return rest


# Where to


def test_DEC005_a_run_goes_to_the_top_and_to_the_bottom(h: Harness) -> None:
    first, second, third = line_up(h, 3)
    move(h, third, to="top")
    assert queued(h) == [third, first, second]
    move(h, first, to="bottom")
    assert queued(h) == [third, second, first]
    assert [run.id for run in h.claim(3)] == [third, second, first]


def test_DEC005_a_run_goes_before_and_behind_another(h: Harness) -> None:
    first, second, third, fourth = line_up(h, 4)
    move(h, fourth, before=second)
    assert queued(h) == [first, fourth, second, third]
    move(h, first, after=second)
    assert queued(h) == [fourth, second, first, third]
    assert [run.id for run in h.claim(4)] == [fourth, second, first, third]


@pytest.mark.parametrize("alike", [True, False], ids=["at one position", "apart"])
def test_G34_inserting_at_a_place_moves_the_others_by_one(h: Harness, alike: bool) -> None:
    ids = line_up(h, 5) if alike else [made.id for made in h(h.engine.create([NewRun("mail") for _ in range(5)]))]
    expected = list(ids)
    for run_id in ids:
        for number in range(6):  # the last one is behind the end
            move(h, run_id, place=number)
            expected = moved(expected, run_id, number)
            assert queued(h) == expected, (run_id, number)
    assert [run.id for run in h.claim(5)] == expected


def test_a_move_that_changes_nothing_leaves_the_run_where_it_stands(h: Harness) -> None:
    ids = line_up(h, 3)
    before = {run_id: h.get(run_id).position for run_id in ids}
    move(h, ids[0], to="top"), move(h, ids[1], place=1), move(h, ids[2], after=ids[1]), move(h, ids[2], to="bottom")
    assert {run_id: h.get(run_id).position for run_id in ids} == before


def test_a_run_alone_in_its_queue_can_be_moved(h: Harness) -> None:
    run_id = h.create()
    for where in ({"to": "top"}, {"to": "bottom"}, {"place": 0}, {"place": 7}):
        move(h, run_id, **where)
    assert queued(h) == [run_id]


def test_runs_of_several_jobs_stand_in_one_queue_and_each_queue_has_its_own_order(h: Harness) -> None:
    h.define("bill")
    h.define("scan", queue="slow")
    mail, scan, bill, last = h.create(), h.create("scan"), h.create("bill"), h.create("bill")
    move(h, last, before=mail)
    assert queued(h, "default") == [last, mail, bill]
    move(h, mail, place=2)
    assert queued(h, "default") == [last, bill, mail]
    move(h, scan, place=5)
    assert queued(h, "slow") == [scan]


@pytest.mark.parametrize("state", WAITS)
def test_G2_the_position_of_what_waits_can_be_changed(h: Harness, state: State) -> None:
    first = h.create()
    run = IN_STATE[state](h)
    assert move(h, run.id, before=first).state is state
    assert h.moves(run.id) == ["create", "move"]
    assert h.get(run.id) == h(h.engine.runs()).runs[0]
    h.sweep(after=120_000)
    if state is not State.WAITING:
        assert queued(h)[:2] == [run.id, first]


def test_G2_the_position_is_frozen_once_handed_out(h: Harness) -> None:
    for state in (*LIVE, *ENDED):
        run = IN_STATE[state](h)
        with unchanged(h), pytest.raises(NotEditable, match="Cannot modify position"):
            move(h, run.id, to="top")
        assert h.get(run.id).state is state


def test_G2_a_move_that_was_begun_before_the_claim_does_not_reach_what_is_running(h: Harness) -> None:
    run_id = h.create()
    slow = late(h, "move", h.started)
    with pytest.raises(NotEditable, match="Cannot modify position"):
        move(slow, run_id, to="top")
    assert h.moves(run_id) == ["create", "claim", "start"]


def test_a_move_is_in_the_journal_with_where_to_and_by_whom(h: Harness) -> None:
    first, second = line_up(h, 2)
    for where in ({"to": "top"}, {"place": 1}, {"before": first}, {"after": first}):
        move(h, second, by="ann", **where)
        entry = h(h.engine.history(second))[-1]
        assert (entry.move, entry.state) == ("move", State.QUEUED)
        assert msgspec.json.decode(entry.detail or "") == {**where, "by": "ann"}
    assert h.moves(first) == ["create"]


def test_a_run_that_is_parked_keeps_its_place_and_can_be_moved(h: Harness) -> None:
    h.define(uses=(Use("customer", per="actor"),))
    h(h.engine.set_resource("customer", capacity=1))
    ids = [h.create(payload={"actor": actor}) for actor in ("ann", "ann", "ann", "bob", "tim")]
    ann = h.claimed()
    assert h.claimed().id == ids[3]  # and two of ann's are put aside
    assert [h.get(run_id).parked is not None for run_id in ids[1:3]] == [True, True]
    move(h, ids[2], place=0)
    move(h, ids[4], before=ids[1])
    assert queued(h) == [ids[2], ids[4], ids[1]]
    assert [h.get(run_id).parked is not None for run_id in ids[1:3]] == [True, True]
    h.succeed(ann)
    assert [run.id for run in h.claim(5)] == [ids[2], ids[4]]


# Priorities


def prioritised(h: Harness, *priorities: int) -> list[str]:
    return [h.create(options=Options(priority=priority)) for priority in priorities]


def priorities(h: Harness) -> list[int]:
    return [run.priority for run in h(h.engine.runs(state="queued")).runs]


def test_INV004_a_move_within_its_priority_keeps_it(h: Harness) -> None:
    high, first, second, low = prioritised(h, 9, 5, 5, 0)
    move(h, second, before=first)
    assert (queued(h), priorities(h)) == ([high, second, first, low], [9, 5, 5, 0])


@pytest.mark.parametrize(
    ("which", "where", "order", "expected"),
    [
        (3, {"to": "top"}, [3, 0, 1, 2], [9, 9, 5, 5]),
        (0, {"to": "bottom"}, [1, 2, 3, 0], [5, 5, 0, 0]),
        (3, {"before": 2}, [0, 1, 3, 2], [9, 5, 5, 5]),
        (0, {"after": 1}, [1, 0, 2, 3], [5, 5, 5, 0]),
        (3, {"after": 0}, [0, 3, 1, 2], [9, 5, 5, 5]),  # the nearest that fits
        (0, {"before": 3}, [1, 2, 0, 3], [5, 5, 5, 0]),
        (0, {"place": 3}, [1, 2, 3, 0], [5, 5, 0, 0]),
    ],
)
def test_INV004_a_move_beyond_its_priority_takes_that_of_its_neighbour(
    h: Harness, which: int, where: dict[str, Any], order: list[int], expected: list[int]
) -> None:
    ids = prioritised(h, 9, 5, 5, 0)
    named = {word: ids[value] if word in ("before", "after") else value for word, value in where.items()}
    move(h, ids[which], **named)
    assert (queued(h), priorities(h)) == ([ids[index] for index in order], expected)


def test_INV004_a_move_between_two_priorities_keeps_one_that_is_between_them(h: Harness) -> None:
    high, low = prioritised(h, 9, 0)
    (between,) = prioritised(h, 5)
    position = h.get(between).position
    move(h, between, before=low)
    move(h, between, after=high)
    assert (h.get(between).priority, h.get(between).position) == (5, position)
    assert queued(h) == [high, between, low]


def test_INV004_who_is_asked_for_later_with_a_higher_priority_still_comes_first(h: Harness) -> None:
    first, second = line_up(h, 2)
    move(h, second, to="top")
    (urgent,) = prioritised(h, 1)
    assert queued(h) == [urgent, second, first]


def test_INV004_what_is_asked_for_later_comes_behind_what_was_moved_to_the_bottom(h: Harness) -> None:
    ids = line_up(h, 3)
    for run_id in ids:
        move(h, run_id, to="bottom")
    h.clock.advance(1)
    last = h.create()
    assert queued(h) == [*ids, last]


# What is refused


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"to": "middle"},
        {"to": 3},
        {"to": ""},
        {"place": -1},
        {"place": 10_001},
        {"place": True},
        {"place": "1"},
        {"before": ""},
        {"before": "no id"},
        {"after": 7},
        {"to": "top", "place": 0},
        {"before": "a", "after": "b"},
    ],
)
def test_a_move_says_exactly_one_place(h: Harness, where: dict[str, Any]) -> None:
    run_id = h.create()
    with unchanged(h), pytest.raises(BadInput) as refused:
        move(h, run_id, **where)
    assert refused.value.hint


def test_next_to_whom_it_cannot_go(h: Harness) -> None:
    h.define("scan", queue="slow")
    refusals: dict[str, type[WindlassError]] = {IN_STATE[state](h).id: WrongState for state in State if state is not State.QUEUED}
    run_id, elsewhere = h.create(), h.create("scan")
    refusals |= {run_id: BadInput, elsewhere: BadInput, "nobody": NotFound}
    for other, kind in refusals.items():
        for where in ("before", "after"):
            with unchanged(h), pytest.raises(kind) as refused:
                move(h, run_id, **{where: other})
            assert refused.value.hint
    with unchanged(h), pytest.raises(NotFound):
        move(h, "nobody", to="top")


# How much is written


def rows(h: Harness) -> dict[str, tuple[Any, ...]]:
    """The runs as they are stored, and every entry of the journal."""
    tables = dump(h.store)
    return {f"{table} {row[0]}": row for table in ("job_runs", "job_journal") for row in tables[table]}


def written(h: Harness, run_id: str, **where: Any) -> int:
    """How many rows a move writes."""
    before = rows(h)
    move(h, run_id, **where)
    after = rows(h)
    return sum(before.get(name) != row for name, row in after.items())


def test_DEC005_a_move_writes_the_run_and_its_entry_however_many_wait(h: Harness) -> None:
    ids = [made.id for made in h(h.engine.create([NewRun("mail") for _ in range(500)]))]
    for where in ({"to": "top"}, {"to": "bottom"}, {"place": 250}, {"before": ids[100]}, {"after": ids[400]}):
        assert written(h, ids[300], **where) == 2, where


def test_DEC005_neighbours_make_room_only_where_there_is_none_and_few_of_them(h: Harness) -> None:
    ids = [made.id for made in h(h.engine.create([NewRun("mail") for _ in range(300)]))]
    expected, counts = list(ids), []
    for run_id in ids[200:260]:
        counts.append(written(h, run_id, place=100))
        expected = moved(expected, run_id, 100)
        assert queued(h) == expected
    assert counts[:5] == [2] * 5
    assert max(counts) <= 2 + NEAR
    assert sum(count > 2 for count in counts) >= 2


@pytest.mark.parametrize("many", [NEAR // 2, 3 * NEAR])
def test_DEC005_where_many_stand_at_one_position_the_shorter_side_makes_room(h: Harness, many: int) -> None:
    ids = line_up(h, many)
    assert written(h, ids[-1], place=3) == 2 + 3
    assert written(h, ids[0], place=many - 3) == 2 + 2
    assert queued(h) == moved(moved(ids, ids[-1], 3), ids[0], many - 3)


def test_where_too_many_stand_at_one_position_a_move_says_what_else_there_is(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.engine.moves.FAR", NEAR)
    ids = line_up(h, 2 * NEAR + 5)
    with unchanged(h), pytest.raises(LimitReached, match="stand at one place") as refused:
        move(h, ids[-1], place=NEAR + 1)
    assert "top or the bottom" in refused.value.hint
    move(h, ids[-1], to="top")


def test_neighbours_look_further_for_room_than_they_have_at_hand(h: Harness) -> None:
    ids = line_up(h, 2 * NEAR + 30)
    assert written(h, ids[0], place=NEAR + 10) <= 2 + NEAR + 20
    assert queued(h) == moved(ids, ids[0], NEAR + 10)
    assert NEAR < FAR


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=NEAR, unique=True).map(sorted), st.booleans())
def test_who_makes_room_stays_in_order_and_within_the_room(others: list[int], endless: bool) -> None:
    made = _pushed(-1, others, endless=endless)
    if not made:
        assert not endless
        return
    rest = others[len(made) - 1 :]
    assert [-1, *made, *rest] == sorted({-1, *made, *rest})


def test_positions_of_one_call_are_apart_and_within_their_millisecond() -> None:
    assert place(7, 1) - place(7) == INDEX_STEP
    assert place(7, 10_000) < place(8)
    assert place(8) - place(7) == POSITION_STEP
    assert APART > INDEX_STEP


# S14: any mix


class Ledger:
    """The queue as a plain list, and an engine that is asked for the same."""

    def __init__(self, h: Harness, chance: random.Random) -> None:
        self.h, self.chance, self.ids = h, chance, list[str]()

    def place(self, run_id: str) -> tuple[int, int, int]:
        run = self.h.get(run_id)
        return run.priority_key, run.position, run.seq

    def put(self, run_id: str) -> None:
        """Where it stands by its own numbers: the rule for what is made, edited or tried again."""
        if self.h.get(run_id).state is State.QUEUED and run_id not in self.ids:
            self.ids.append(run_id)
            self.ids.sort(key=self.place)

    def some(self) -> str:
        return self.chance.choice(self.ids)

    def act(self) -> None:
        deeds: list[Callable[[], None]] = [self.create, self.create_many, self.wait]
        if self.ids:
            deeds += [self.move] * 6 + [self.prioritise, self.postpone, self.claim, self.retry]
        self.chance.choice(deeds)()
        assert queued(self.h) == self.ids

    def create(self) -> None:
        priority = self.chance.choice((-2, 0, 0, 0, 5))
        run_id = self.h.create(options=Options(priority=priority, backoff=(0,)))
        behind = [other for other in self.ids if self.h.get(other).priority >= priority]
        self.put(run_id)
        if all(self.h.get(other).position < place(self.h.clock.now()) for other in behind):
            assert self.ids.index(run_id) == len(behind)

    def create_many(self) -> None:
        options = Options(backoff=(0,), retry_place="tail")
        dues = [None, None, self.h.clock.now() + self.chance.randrange(30)]
        for made in self.h(self.h.engine.create([NewRun("mail", options=options, due_at=due) for due in dues])):
            self.put(made.id)

    def wait(self) -> None:
        before = {run.id for run in self.h(self.h.engine.runs(state="scheduled")).runs}
        self.h.sweep(after=self.chance.randrange(20))
        for run_id in sorted(before):
            self.put(run_id)

    def move(self) -> None:
        run_id, number = self.some(), self.chance.randrange(len(self.ids) + 2)
        rest = [other for other in self.ids if other != run_id]
        index = min(number, len(rest))
        wheres: list[dict[str, Any]] = [{"place": number}]
        if index < len(rest):
            wheres.append({"before": rest[index]})
        if index > 0:
            wheres.append({"after": rest[index - 1]})
        if index == 0:
            wheres.append({"to": "top"})
        if index == len(rest):
            wheres.append({"to": "bottom"})
        self.h(self.h.engine.move(run_id, **self.chance.choice(wheres)))
        self.ids = moved(self.ids, run_id, index)

    def prioritise(self) -> None:
        run_id = self.some()
        self.h(self.h.engine.patch(run_id, priority=self.chance.choice((-2, 0, 5, 9))))
        self.ids.remove(run_id)
        self.put(run_id)

    def postpone(self) -> None:
        run_id = self.some()
        self.h(self.h.engine.patch(run_id, due_at=self.h.clock.now() + self.chance.choice((0, 10))))
        self.ids.remove(run_id)
        self.put(run_id)

    def claim(self) -> None:
        count = self.chance.randrange(1, 4)
        given = [run.id for run in self.h.claim(count)]
        assert given == self.ids[:count]
        del self.ids[: len(given)]

    def retry(self) -> None:
        (run,) = self.h.claim(1)
        assert run.id == self.ids.pop(0)
        self.h.fail(run)
        self.put(run.id)


@pytest.mark.parametrize("seed", range(3))
def test_S14_claims_follow_the_order_of_a_plain_list_whatever_is_mixed_also_after_a_restart(
    h: Harness, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ledger = Ledger(h, random.Random(seed))
    for _ in range(120):
        ledger.act()
    assert len(ledger.ids) > 5
    after = restarted(h, tmp_path, request)
    assert queued(after) == ledger.ids
    given: list[str] = []
    while batch := after.claim(ledger.chance.randrange(1, 4)):
        given += [run.id for run in batch]
    assert given == ledger.ids


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_S14_for_any_seed(seed: int) -> None:
    clock = ManualClock()
    h = Harness(BlockingSqlite(":memory:", clock), clock)
    h.define()
    ledger = Ledger(h, random.Random(seed))
    for _ in range(40):
        ledger.act()
    run_sync(h.store.close())


# At the same time


@pytest.mark.parametrize("kind", SHARED)
def test_moves_at_the_same_time_lose_and_double_nobody(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as movers:
        h = movers[0]
        ids = line_up(h, 60)
        said = _log(kind, request)
        for round_ in range(15):
            chance = random.Random(round_)
            chosen = chance.sample(ids, 4)
            order = queued(h)
            places = [chance.randrange(10, 50) for _ in chosen]
            verbs = [partial(move, run_id=run_id, place=number) for run_id, number in zip(chosen, places, strict=True)]
            answers = at_once(movers, ["move"], *verbs)
            assert [answer.id for answer in answers if isinstance(answer, Run)] == chosen, answers
            after = queued(h)
            assert sorted(after) == sorted(ids)
            still = [run_id for run_id in order if run_id not in chosen]
            assert [run_id for run_id in after if run_id not in chosen] == still
        assert "deadlock detected" not in _log(kind, request)[len(said) :]


def shift(h: Harness, run_id: str, place: int) -> list[str]:
    with suppress(NotEditable):  # a claim was faster
        move(h, run_id, place=place)
    return []


def take(h: Harness, worker: str) -> list[str]:
    return [run.id for run in h.claim(2, worker)]


@pytest.mark.parametrize("kind", SHARED)
def test_moves_and_claims_at_the_same_time_hand_out_each_run_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as members:
        h = members[0]
        ids, taken = line_up(h, 120), list[str]()
        said = _log(kind, request)
        for round_ in range(20):
            chance = random.Random(round_)
            waiting = queued(h)
            chosen = chance.sample(waiting, 2)
            verbs: list[Callable[[Harness], list[str]]] = [partial(shift, run_id=run_id, place=chance.randrange(12)) for run_id in chosen]
            verbs += [partial(take, worker=name) for name in ("w1", "w2")]
            answers = at_once(members, ["move", "claim"], *verbs)
            assert not any(isinstance(answer, WindlassError) for answer in answers), answers
            taken += [run_id for answer in answers if isinstance(answer, list) for run_id in answer]
        while batch := h.claim(10):
            taken += [run.id for run in batch]
        assert sorted(taken) == sorted(ids)
        assert "deadlock detected" not in _log(kind, request)[len(said) :]


def _log(kind: str, request: pytest.FixtureRequest) -> str:
    """What the server has said: the store tries again after a deadlock, so nothing else would show it."""
    if kind == "file":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.log


_LINGER = """
create function linger() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return null; end $$;
create trigger linger after update on job_runs for each statement execute function linger();
"""


def test_two_runs_that_make_room_for_each_other_do_not_wait_for_each_other(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd("postgres", tmp_path, request, 2) as movers, psycopg.connect(address(movers[0].store), autocommit=True) as connection:
        said = _log("postgres", request)
        ids = line_up(movers[0], 6)
        connection.execute(_LINGER)  # whoever has locked its run still has it when the other wants it
        try:
            # The one needs room from the first two, the other from the last.
            verbs = [partial(move, run_id=ids[5], place=2), partial(move, run_id=ids[1], before=ids[5])]
            answers = at_once(movers, ["respace"], *verbs)
        finally:
            connection.execute("drop function linger cascade")
        assert not any(isinstance(answer, WindlassError) for answer in answers), answers
        assert [run_id for run_id in queued(movers[0]) if run_id not in (ids[1], ids[5])] == [ids[0], *ids[2:5]]
        assert "deadlock detected" not in _log("postgres", request)[len(said) :]


def test_a_neighbour_that_has_moved_on_is_not_pulled_back(h: Harness) -> None:
    ids = line_up(h, 6)
    slow = late(h, "respace", lambda: move(h, ids[1], to="bottom"))
    move(slow, ids[5], after=ids[1])
    assert sorted(queued(h)) == sorted(ids)
    assert [run_id for run_id in queued(h) if run_id not in (ids[1], ids[5])] == [ids[0], ids[2], ids[3], ids[4]]
    assert queued(h).index(ids[5]) == queued(h).index(ids[1]) + 1
    assert h.moves(ids[1]) == ["create", "move"]


def test_a_neighbour_that_was_claimed_meanwhile_is_left_alone(h: Harness) -> None:
    ids = line_up(h, 6)
    position = h.get(ids[0]).position
    slow = late(h, "respace", h.claimed)
    move(slow, ids[5], place=2)
    assert queued(h) == [ids[1], ids[5], ids[2], ids[3], ids[4]]
    assert (h.get(ids[0]).state, h.get(ids[0]).position) == (State.CLAIMED, position)
    assert h.moves(ids[5]) == ["create", "move"]


def test_a_neighbour_that_goes_while_others_are_asked_for_room_leaves_its_place(h: Harness) -> None:
    ids = line_up(h, 3)
    looks = count()

    class Claimed:
        """A store in which the head is claimed before the second look at the neighbours."""

        async def batch(self, verb: str, statements: Any) -> Any:
            if any(statement.name == "places_before" for statement in statements) and next(looks) == 1:
                assert h.claimed().id == ids[0]
            return await h.store.batch(verb, statements)

        async def close(self) -> None: ...

    move(Harness(Claimed(), h.clock), ids[2], place=1)
    assert queued(h) == [ids[2], ids[1]]
    assert next(looks) == 2


def test_a_neighbour_with_another_priority_meanwhile_makes_no_room(h: Harness) -> None:
    ids = line_up(h, 6)
    position = h.get(ids[1]).position
    slow = late(h, "respace", lambda: h(h.engine.patch(ids[1], priority=3)))
    move(slow, ids[5], place=2)
    assert queued(h) == [ids[1], ids[0], ids[5], ids[2], ids[3], ids[4]]
    assert (h.get(ids[1]).priority, h.get(ids[1]).position) == (3, position)


def test_nobody_makes_room_for_a_run_that_was_changed_meanwhile(h: Harness) -> None:
    ids = line_up(h, 6)
    slow = late(h, "respace", lambda: h(h.engine.patch(ids[5], payload=7)))
    assert move(slow, ids[5], place=2).payload == "7"
    assert queued(h) == moved(ids, ids[5], 2)
    assert h.moves(ids[5]) == ["create", "patch", "move"]


def test_nobody_makes_room_for_a_run_that_has_ended_meanwhile(h: Harness) -> None:
    ids = line_up(h, 6)
    before = {run_id: h.get(run_id) for run_id in ids[:5]}
    slow = late(h, "respace", lambda: h(h.engine.cancel(ids[5])))
    with pytest.raises(NotEditable):
        move(slow, ids[5], place=2)
    assert {run_id: h.get(run_id) for run_id in ids[:5]} == before


def test_a_move_that_loses_to_another_of_the_same_run_is_decided_again(h: Harness) -> None:
    ids = line_up(h, 4)
    slow = late(h, "move", lambda: move(h, ids[3], to="top"))
    move(slow, ids[3], place=2)
    assert queued(h) == [ids[0], ids[1], ids[3], ids[2]]
    assert h.moves(ids[3]) == ["create", "move", "move"]


def test_a_run_that_never_stands_still_is_not_moved_for_ever(h: Harness) -> None:
    run_id, other = line_up(h, 2)

    class Restless:
        """A store in which the run is patched before every write."""

        async def batch(self, verb: str, statements: Any) -> Any:
            if verb == "move":
                h(h.engine.patch(run_id, priority=3))
            return await h.store.batch(verb, statements)

        async def close(self) -> None: ...

    with pytest.raises(Conflict, match="kept changing"):
        move(Harness(Restless(), h.clock), run_id, after=other)
    assert "move" not in h.moves(run_id)


# The machine


def test_a_move_to_another_band_takes_its_priority_and_no_longer_ages(h: Harness) -> None:
    run = h.get(h.create())
    aging_priority = msgspec.structs.replace(run, aging_priority=4)
    after = step(aging_priority, Reorder(priority_key=run.priority_key, position=5), 0)
    assert (after.priority, after.position, after.rev) == (4, 5, run.rev + 1)
    assert step(aging_priority, Reorder(priority_key=-7, position=5), 0).priority == 7


# Queues that age

STEP = 1_000  # milliseconds of waiting that one step of priority is worth


@pytest.fixture
def aging(h: Harness) -> Harness:
    h(h.engine.set_queue("default", aging=STEP))
    return h


def test_in_a_queue_that_ages_a_step_of_priority_is_worth_a_wait(aging: Harness) -> None:
    h = aging
    (low,) = prioritised(h, 0)
    h.clock.advance(2 * STEP - 1)
    (high,) = prioritised(h, 2)  # a millisecond less than its priority is worth
    assert queued(h) == [high, low]
    h.clock.advance(2)
    (late,) = prioritised(h, 2)
    assert queued(h) == [high, low, late]
    assert priorities(h) == [2, 0, 2]
    assert [h.get(run_id).priority_key for run_id in (high, low, late)] == [0, 0, 0]
    assert [run.id for run in h.claim(3)] == [high, low, late]


def test_in_a_queue_that_ages_a_scheduled_run_begins_to_age_when_it_is_due(aging: Harness) -> None:
    h = aging
    later = h.create(options=Options(priority=2), due_at=h.clock.now() + 5 * STEP)
    (low,) = prioritised(h, 0)
    h.sweep(after=5 * STEP)
    assert queued(h) == [low, later]


def test_other_queues_do_not_age(aging: Harness) -> None:
    h = aging
    low = h.create(options=Options(queue="other"))
    h.clock.advance(100 * STEP)
    high = h.create(options=Options(queue="other", priority=1))
    assert queued(h, "other") == [high, low]


def test_a_queue_ages_for_what_is_made_after_it_was_told_in_every_process(h: Harness) -> None:
    other = h.another()
    before = other.create(options=Options(priority=1))
    h(h.engine.set_queue("default", aging=STEP))
    made = other.create(options=Options(priority=1))
    assert (h.get(before).aging_priority, h.get(made).aging_priority) == (None, 1)
    assert h.get(made).policy.aging == STEP
    h(h.engine.set_queue("default", aging=None))
    assert h.get(other.create(options=Options(priority=1))).aging_priority is None


def test_patching_the_priority_of_a_run_that_ages_moves_it_by_the_difference(aging: Harness) -> None:
    h = aging
    run = h.get(prioritised(h, 2)[0])
    after = h(h.engine.patch(run.id, priority=5))
    assert (after.priority, after.priority_key, after.position) == (5, 0, run.position - place(3 * STEP))
    assert h.get(run.id) == after
    due_at = h.clock.now() + 9 * STEP
    after = h(h.engine.patch(run.id, priority=-1, due_at=due_at))
    assert (after.priority, after.position) == (-1, place(due_at + STEP))


def test_a_retry_at_the_tail_keeps_what_its_priority_is_worth(aging: Harness) -> None:
    h = aging
    h.define(backoff=(0,), retry_place="tail")
    first, second = prioritised(h, 0, 2)
    h.fail(h.claimed())
    assert queued(h) == [second, first]
    h.clock.advance(3 * STEP)
    h.fail(h.claimed())
    assert queued(h) == [first, second]
    assert h.get(second).position == place(h.clock.now() - 2 * STEP)


def test_a_rerun_keeps_the_rule_it_was_made_with(aging: Harness) -> None:
    h = aging
    prioritised(h, 2)
    old = h.claimed()
    h.succeed(old)
    h(h.engine.set_queue("default", aging=None))
    new = h.get(h(h.engine.rerun(old.id)).id)
    assert (new.priority, new.priority_key, new.aging_priority, new.policy.aging) == (2, 0, 2, STEP)
    assert new.position == place(h.clock.now() - 2 * STEP)


def test_the_rerun_of_a_group_keeps_the_rules_of_its_runs(aging: Harness) -> None:
    h = aging
    group = h(h.engine.create_group(NewGroup((Member(NewRun("mail", options=Options(priority=2))), Member(NewRun("mail"))))))
    h(h.engine.cancel_group(group.id))
    new = h(h.engine.members(h(h.engine.rerun_group(group.id)).id))
    assert [(run.priority, run.priority_key, run.aging_priority, run.policy.aging) for run in new] == [(2, 0, 2, STEP), (0, 0, 0, STEP)]
    assert new[0].position == place(h.clock.now() - 2 * STEP)


def test_a_run_that_is_given_another_queue_takes_its_rule(aging: Harness) -> None:
    h = aging
    h(h.engine.set_queue("slow", aging=10 * STEP))
    run = h.get(prioritised(h, 3)[0])
    plain = h(h.engine.patch(run.id, queue="plain"))
    assert (plain.priority_key, plain.aging_priority, plain.policy.aging, plain.position) == (-3, None, None, place(run.created_at))
    slow = h(h.engine.patch(run.id, queue="slow", priority=2))
    assert (slow.priority_key, slow.aging_priority, slow.policy.aging, slow.position) == (
        0,
        2,
        10 * STEP,
        place(run.created_at - 20 * STEP),
    )
    again = h(h.engine.patch(run.id, queue="default"))
    assert (again.priority_key, again.aging_priority, again.policy.aging, again.position) == (0, 2, STEP, place(run.created_at - 2 * STEP))
    assert h.get(run.id) == again


def test_the_rule_of_another_queue_is_the_one_that_holds_now(h: Harness) -> None:
    other = h.another()
    run_id = other.create(options=Options(priority=1))
    h(h.engine.set_queue("slow", aging=STEP))
    assert other(other.engine.patch(run_id, queue="slow")).aging_priority == 1


def test_naming_its_own_queue_changes_no_rule(aging: Harness) -> None:
    h = aging
    run = h.get(prioritised(h, 3)[0])
    h(h.engine.set_queue("default", aging=None))
    after = h(h.engine.patch(run.id, queue="default"))
    assert (after.aging_priority, after.position, after.policy) == (3, run.position, run.policy)


def test_a_move_in_a_queue_that_ages_keeps_the_priority(aging: Harness) -> None:
    h = aging
    high, low = prioritised(h, 5, 0)
    move(h, low, to="top")
    assert (queued(h), priorities(h)) == ([low, high], [0, 5])
    assert h.get(low).aging_priority == 0


def test_a_priority_that_is_worth_too_much_is_refused(aging: Harness) -> None:
    h = aging
    run_id = h.create()
    for much in (2**31 - 1, -(2**31) + 1):
        with unchanged(h), pytest.raises(BadInput, match="more than 10 years") as refused:
            prioritised(h, much)
        assert "smaller priority" in refused.value.hint
        with unchanged(h), pytest.raises(BadInput, match="more than 10 years"):
            h(h.engine.patch(run_id, priority=much))
    plain = h.create(options=Options(queue="plain", priority=2**31 - 1))
    with unchanged(h), pytest.raises(BadInput, match="more than 10 years"):
        h(h.engine.patch(plain, queue="default"))


def test_the_last_position_that_ageing_can_give_fits(aging: Harness) -> None:
    h = aging
    limit = LONGEST_HEAD_START // STEP
    late = h.create(options=Options(priority=-limit), due_at=FAR_FUTURE)
    soon = h.create(options=Options(priority=limit))
    assert h.get(late).position == place(FAR_FUTURE + limit * STEP) < 2**63
    assert h.get(soon).position == place(h.clock.now() - limit * STEP)


@pytest.mark.parametrize("ages", [True, False], ids=["aging", "not"])
def test_Load3_what_has_a_low_priority_waits_no_longer_than_its_bound(ages: bool) -> None:
    clock = ManualClock()
    h = Harness(BlockingSqlite(":memory:", clock), clock)
    h.define()
    lows, gap, tick = 1_000, 5, 10
    if ages:
        h(h.engine.set_queue("default", aging=STEP))
    low = {made.id for made in h(h.engine.create([NewRun("mail", options=Options(priority=0)) for _ in range(lows)]))}
    begun, waited = clock.now(), dict[str, int]()
    # Every tick brings one more with a high priority and lets one go: they alone would keep the worker busy for ever.
    bound = gap * STEP + lows * tick
    while clock.now() <= begun + bound:
        h.create(options=Options(priority=gap))
        (run,) = h.claim(1)
        if run.id in low:
            waited[run.id] = clock.now() - begun
        clock.advance(tick)
    run_sync(h.store.close())
    if ages:
        assert waited.keys() == low
        assert min(waited.values()) == gap * STEP
        assert max(waited.values()) <= bound
    else:
        assert waited == {}


# Doors


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    served = ServedHub(tmp_path / "hub.db")
    with Client(served.url) as client:
        client.define("mail")
    yield served
    served.stop()


def test_a_hub_moves_a_run_and_the_audit_says_who_asked(hub: ServedHub) -> None:
    with Client(hub.url) as client, httpx.Client(base_url=hub.url + "api/v1", timeout=60) as http:
        first, second, third = (made.id for made in client.create([NewRun("mail") for _ in range(3)]))
        assert http.get(f"/runs/{third}").json()["actions"] == ["cancel", "patch", "move"]
        answer = http.post(f"/runs/{third}/move", json={"to": "top"})
        assert (answer.status_code, answer.json()["id"]) == (200, third)
        assert [run.id for run in client.runs(state="queued").runs] == [third, first, second]
        entry = http.get("/audit").json()["entries"][0]
        assert (entry["what"], entry["subject"]) == ("move", f"run {third}")
        event = http.get(f"/runs/{third}/history").json()["events"][-1]
        assert (event["move"], event["detail"]) == ("move", {"to": "top", "by": "anonymous"})
        for body in ({}, {"to": "middle"}, {"place": "1"}, {"place": -1}, {"to": "top", "place": 0}, {"under": first}):
            refused = http.post(f"/runs/{third}/move", json=body)
            assert (refused.status_code, refused.json()["code"]) == (400, "bad_input"), body
            assert refused.json()["hint"]
        assert http.post("/runs/nobody/move", json={"to": "top"}).status_code == 404
        client.cancel(second)
        assert http.post(f"/runs/{third}/move", json={"after": second}).json()["code"] == "wrong_state"
        refused = http.post(f"/runs/{second}/move", json={"to": "top"})
        assert (refused.status_code, refused.json()["code"]) == (409, "not_editable")


def test_a_client_moves_as_the_engine_does(hub: ServedHub) -> None:
    with Client(hub.url) as client:
        ids = [made.id for made in client.create([NewRun("mail") for _ in range(4)])]
        for where in ({"place": 2}, {"to": "top"}, {"to": "bottom"}, {"before": ids[1]}, {"after": ids[2]}):
            assert client.move(ids[0], **where).id == ids[0]
        assert [run.id for run in client.runs(state="queued").runs] == [ids[1], ids[2], ids[0], ids[3]]
        with pytest.raises(BadInput):
            client.move(ids[0])
        client.cancel(ids[3])
        with pytest.raises(NotEditable):
            client.move(ids[3], to="top")


@pytest.mark.parametrize("through_hub", [False, True], ids=["store", "hub"])
def test_a_handle_moves_its_run(through_hub: bool, tmp_path: Path, hub: ServedHub) -> None:
    app = App(hub.url if through_hub else str(tmp_path / "shop.db"))

    @app.job()
    def mail(n: int) -> None: ...

    with app:
        first, second, third = (mail.enqueue(n) for n in range(3))
        assert third.move(before=second).id == third.id
        first.move(to="bottom")
        second.move(after=first.id)
        third.move(place=0)
        assert [run.id for run in app.runs(state="queued").runs] == [third.id, first.id, second.id]
        with pytest.raises(BadInput):
            first.move()


async def _moved_by_coroutines(address: str) -> tuple[list[str], list[str]]:
    app = AsyncApp(address)

    @app.job()
    async def mail(n: int) -> None: ...

    async with app:
        first, second = [await mail.enqueue(n) for n in range(2)]
        await second.move(before=first)
        return [second.id, first.id], [run.id for run in (await app.runs(state="queued")).runs]


def test_an_async_handle_moves_its_run(tmp_path: Path) -> None:
    expected, found = asyncio.run(_moved_by_coroutines(str(tmp_path / "shop.db")))
    assert found == expected


@pytest.mark.parametrize("through_hub", [False, True], ids=["store", "hub"])
def test_the_command_line_moves_a_run(through_hub: bool, tmp_path: Path, hub: ServedHub, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--hub", hub.url] if through_hub else ["--store", str(tmp_path / "hub.db")]
    with Client(hub.url) as client:
        first, second, third = (made.id for made in client.create([NewRun("mail") for _ in range(3)]))

        def order() -> list[str]:
            return [run.id for run in client.runs(state="queued").runs]

        def windlass(*words: str) -> tuple[int, str, str]:
            code = cli.main(["move", *words, *where])
            return code, *capsys.readouterr()

        assert windlass(third, "--top") == (codes.OK, "queued in default, priority 0\n", "")
        assert order() == [third, first, second]
        assert windlass(third, "--bottom")[0] == codes.OK
        assert order() == [first, second, third]
        assert windlass(third, "--before", second)[0] == codes.OK
        assert order() == [first, third, second]
        assert windlass(first, "--after", third)[0] == codes.OK
        assert order() == [third, first, second]
        code, document, _ = windlass(second, "--place", "0", "--json")
        assert (code, msgspec.json.decode(document)["id"]) == (codes.OK, second)
        assert order() == [second, third, first]
        assert client.history(second)[-1].detail is not None
        assert windlass(second, "--before", second)[0] == codes.USAGE
        client.cancel(third)
        assert windlass(third, "--top")[0] == codes.CONFLICT
        assert "queued" in windlass(first, "--after", third)[2]


@pytest.mark.parametrize("words", [(), ("--top", "--bottom"), ("--place", "-1"), ("--place", "x"), ("--place", "10001"), ("--up",)])
def test_the_command_line_wants_one_place(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["move", "run", *words, "--store", str(tmp_path / "shop.db")]) == codes.USAGE
    assert "windlass move --help" in capsys.readouterr().err
