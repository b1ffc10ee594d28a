"""Announcing queued runs: each of them once, whatever happens to it meanwhile, and again when nothing has claimed it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.conformance import SHARED, at_once, crowd
from tests.harness import Harness
from tests.invariants import CLEAR, clear, with_tables
from windlass.clock import ManualClock
from windlass.engine import announcing
from windlass.errors import BadInput
from windlass.model import Limits, NewRun, Run, State, Use
from windlass.store.base import Store, run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.records.announcements import Announceable, MarkWindow
from windlass.store.sqlite import BlockingSqlite

RESEND = 60_000


def due(h: Harness, queue: str = "default", **how: Any) -> list[Run]:
    return h(h.engine.to_announce(queue, **{"resend": RESEND} | how))


def due_ids(h: Harness, queue: str = "default", **how: Any) -> list[str]:
    return [run.id for run in due(h, queue, **how)]


def announce(h: Harness, runs: list[Run], resend: int = RESEND) -> list[str]:
    return h(h.engine.announce(runs, resend=resend))


def rows(h: Harness) -> int:
    """The rows of the table, read as a removal reads them."""
    return len(h(h.engine.records.announcements.due("default", MarkWindow(2**62, 2**62), 1_000)))


def test_queued_runs_are_announced_once_the_oldest_first(h: Harness) -> None:
    first, second = h.create(), h.create()
    h.create(due_at=h.clock.now() + 1_000)
    assert due_ids(h) == [first, second]
    assert announce(h, due(h, count=1)) == [first]
    third = h.create()
    assert due_ids(h) == [second, third]
    assert announce(h, due(h)) == [second, third]
    assert due(h) == []


def test_one_that_stays_queued_is_announced_again_after_a_while(h: Harness) -> None:
    run = h.create()
    announce(h, due(h))
    h.clock.advance(RESEND - 1)
    assert due(h) == []
    h.clock.advance(1)
    assert due_ids(h) == [run]
    assert due(h, resend=RESEND + 1) == []
    assert announce(h, due(h)) == [run]
    assert due(h) == []


def test_runs_that_were_there_before_the_first_call_are_found(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "PAGE", 3)
    h.define("scan")
    h(h.engine.set_resource("gpu", capacity=1))
    h.define("train", uses=(Use("gpu", per="user"),))
    ids = [h.create(job, {"user": "ann"}) for _ in range(4) for job in ("mail", "scan", "train")]
    taken = {run.id for run in h.claim(6)}
    assert any(h.get(run).parked for run in ids if run not in taken)
    assert due_ids(h) == [run for run in ids if run not in taken]


def test_one_that_is_queued_again_is_announced_again_at_once(h: Harness) -> None:
    h.define("retried", backoff=(1_000,))
    run, later = h.create("retried"), h.create(due_at=h.clock.now() + 500)
    announce(h, due(h))
    h.fail(h.claimed())
    assert due(h) == []
    h.sweep(1_000)
    assert due_ids(h) == [run, later]
    assert announce(h, due(h)) == [run, later]
    assert due(h) == []


def test_a_queue_has_its_own_and_a_run_that_is_moved_to_it_is_announced_there(h: Harness) -> None:
    run, other = h.create(), h.create()
    announce(h, due(h))
    assert due(h, "slow") == []
    h(h.engine.patch(run, queue="slow"))
    assert (due_ids(h), due_ids(h, "slow")) == ([], [run])
    announce(h, due(h, "slow"))
    h(h.engine.patch(run, queue="default"))
    assert (due_ids(h), due_ids(h, "slow")) == ([run], [])
    assert other not in due_ids(h)


def test_an_edit_or_a_move_within_the_queue_announces_nothing_again(h: Harness) -> None:
    first, second = h.create(), h.create()
    announce(h, due(h))
    h(h.engine.move(second, to="top"))
    h(h.engine.patch(first, payload={"a": 1}))
    assert due(h) == []
    h.clock.advance(RESEND)
    assert due_ids(h) == [first, second]
    assert announce(h, due(h)) == [first, second]


@pytest.mark.parametrize("change", ["claim", "cancel", "patch", "move", "announce"])
def test_what_has_changed_since_it_was_read_is_not_marked(h: Harness, change: str) -> None:
    run_id = h.create()
    runs = due(h)
    if change == "claim":
        h.claimed()
    elif change == "cancel":
        h(h.engine.cancel(run_id))
    elif change == "patch":
        h(h.engine.patch(run_id, payload={"a": 1}))
    elif change == "move":
        h(h.engine.move(run_id, to="top"))
    else:
        announce(h, due(h))
    assert announce(h, runs) == []
    assert due_ids(h) == ([run_id] if change in ("patch", "move") else [])


def test_a_run_can_be_announced_without_having_been_asked_for(h: Harness) -> None:
    run = h.get(h.create())
    assert announce(h, [run, run]) == [run.id]
    assert announce(h, [run]) == []
    assert due(h) == []
    h.clock.advance(RESEND)
    assert due_ids(h) == [run.id]


def test_a_clock_that_was_set_back_keeps_nothing_from_being_announced(h: Harness) -> None:
    run = h.create()
    h.clock.advance(10 * RESEND)
    announce(h, due(h))
    h.clock.advance(-9 * RESEND)
    assert due_ids(h) == [run]
    assert announce(h, due(h)) == [run]
    assert due(h) == []


@pytest.mark.parametrize("kind", SHARED)
def test_of_dispatchers_that_announce_at_once_one_marks_each_run(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with crowd(kind, tmp_path, request, 4) as members:
        first = members[0]
        ids = [made.id for made in first(first.engine.create([NewRun("mail") for _ in range(40)]))]
        pages = at_once(members, ["add_unannounced"], *[due] * 4)
        assert [[run.id for run in page] for page in pages if isinstance(page, list)] == [ids] * 4
        some = random.Random(7)
        parts = [some.sample(page, 30) for page in pages if isinstance(page, list)]
        marked = at_once(members, ["announce"], *(partial(announce, runs=part) for part in parts))
        assert Counter(run for part in marked if isinstance(part, list) for run in part) == {run.id: 1 for part in parts for run in part}
        left = set(ids) - {run.id for part in parts for run in part}
        assert set(due_ids(first)) == left


def test_rows_of_runs_that_were_claimed_are_removed_on_the_way(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "PAGE", 4)
    created = h(h.engine.create([NewRun("mail") for _ in range(30)]))
    announce(h, due(h, count=30))
    for run in h.claim(29):
        h.succeed(run)
    h.clock.advance(RESEND)
    assert due_ids(h, count=2) == [created[-1].id]
    assert rows(h) == 1


def test_the_row_of_a_run_that_was_queued_again_meanwhile_is_not_removed(h: Harness) -> None:
    h.define("retried", backoff=(0,))
    run = h.create("retried")
    announce(h, due(h))
    before = h.get(run)
    h.fail(h.claimed())
    assert due_ids(h) == [run]
    h(h.engine.records.announcements.drop([Announceable(before.seq, before.rev, queued=False)]))
    assert due_ids(h) == [run]


def test_a_removed_run_leaves_no_row(h: Harness) -> None:
    h.create()
    announce(h, due(h))
    h.succeed(h.claimed())
    h.clock.advance(Limits().keep_succeeded + 1)
    assert (rows(h), h(h.engine.prune()), rows(h)) == (1, 1, 0)


def test_one_that_was_away_for_long_reads_the_queue_instead_of_the_journal(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "PAGE", 2)
    monkeypatch.setattr(announcing, "BEHIND", 3)
    due(h)
    ids = [h.create() for _ in range(20)]
    for run in h.claim(5):
        h.succeed(run)
    assert due_ids(h) == ids[5:]
    assert announce(h, due(h)) == ids[5:]
    last = h.create()
    assert due_ids(h) == [last]


def test_runs_that_are_never_announced_have_no_row(h: Harness) -> None:
    due(h, "other")
    h.create()
    h.succeed(h.claimed())
    assert due(h, "other") == []
    assert rows(h) == 0


@pytest.mark.parametrize(
    "how", [{"resend": 0}, {"resend": -1}, {"count": 0}, {"count": 1_001}, {"queue": ""}, {"resend": "1"}, {"resend": 2**62}]
)
def test_bad_input_is_refused(h: Harness, how: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        due(h, **how)
    with pytest.raises(BadInput):
        announce(h, [h.get(h.create())], resend=0)


# Random lives


class Dispatchers(RuleBasedStateMachine):
    """Runs live as they like, and several dispatchers announce them: compared with a dictionary."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    @initialize()
    def begin(self) -> None:
        clear(self.store)
        self.h = Harness(self.store, ManualClock())
        self.h.define(backoff=(500,), max_attempts=5)
        self.marks: dict[str, int] = {}  # when those that are queued since were announced
        self.pages: list[list[Run]] = []

    def queued(self) -> dict[str, Run]:
        return {run.id: run for run in self.h(self.h.engine.runs(state=State.QUEUED, queue="default", count=1_000)).runs}

    @rule(later=st.booleans())
    def create(self, later: bool) -> None:
        self.h.create(due_at=self.h.clock.now() + 700 if later else None)

    @rule(how=st.sampled_from(["succeed", "fail", "hold"]))
    def claim(self, how: str) -> None:
        for run in self.h.claim(2):
            self.marks.pop(run.id, None)
            if how != "hold":
                (self.h.succeed if how == "succeed" else self.h.fail)(run)

    @rule(pick=st.randoms(use_true_random=False), how=st.sampled_from(["cancel", "patch", "move", "later", "away"]))
    def change(self, pick: random.Random, how: str) -> None:
        if not (queued := sorted(self.queued())):
            return
        run, h = pick.choice(queued), self.h
        match how:
            case "cancel":
                h(h.engine.cancel(run))
            case "patch":
                h(h.engine.patch(run, payload={"n": 1}))
            case "move":
                h(h.engine.move(run, to="top"))
            case "later":
                h(h.engine.patch(run, due_at=h.clock.now() + 300))
            case _:
                h(h.engine.patch(run, queue="away"))
        if how not in ("patch", "move"):
            self.marks.pop(run, None)

    @rule(after=st.sampled_from([1, 400, 1_000, RESEND, 31_000]))
    def wait(self, after: int) -> None:
        self.h.sweep(after)
        self.marks = {run: at for run, at in self.marks.items() if run in self.queued()}

    @rule()
    def read(self) -> None:
        now, page = self.h.clock.now(), due(self.h, count=1_000)
        expected = [run for run in self.queued().values() if now - self.marks.get(run.id, -RESEND) >= RESEND]
        assert [run.id for run in page] == [run.id for run in sorted(expected, key=lambda run: run.seq)]
        self.pages.append(page)

    @precondition(lambda self: self.pages)
    @rule()
    def mark(self) -> None:
        queued, now, page = self.queued(), self.h.clock.now(), self.pages.pop(0)
        unchanged = [run.id for run in page if run.id in queued and queued[run.id].rev == run.rev]
        expected = [run for run in unchanged if now - self.marks.get(run, -RESEND) >= RESEND]
        assert announce(self.h, page) == expected
        self.marks |= dict.fromkeys(expected, now)


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store that can be emptied."""
    tables, clock = with_tables("sqlite" if request.param == "memory" else "postgres", **CLEAR), ManualClock()
    if request.param == "memory":
        store: Store = BlockingSqlite(":memory:", clock, queries=tables)
    else:
        store = BlockingPostgres(request.getfixturevalue("emptied_postgres"), clock, queries=tables)
    yield store
    run_sync(store.close())


@pytest.mark.timeout(300)
def test_random_lives_are_announced_as_a_dictionary_says(store: Store) -> None:
    how = settings(max_examples=60 if isinstance(store, BlockingSqlite) else 15, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lambda: Dispatchers(store), settings=how)  # type: ignore[arg-type]
