"""Lists read what they show: what is large of a run does not leave the database, and its size is told in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.harness import BOOM, Harness
from windlass.api.verbs import Verbs
from windlass.api.views import RUN
from windlass.cli.documents import plain
from windlass.machine import Fail
from windlass.model import IN_A_LIST, Failure, Listed, Member, NewGroup, NewRun, Run, State
from windlass.store.base import Row, Statement, Store
from windlass.store.records import Held

LARGE = "é" * 100_000  # characters of two bytes
SIZE = 200_002


class Weighed:
    """A store that weighs what leaves it."""

    def __init__(self, store: Store) -> None:
        self._store, self.weight = store, 0

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        answers = await self._store.batch(verb, statements)
        self.weight += sum(len(value) for rows in answers for row in rows for value in row if isinstance(value, str))
        return answers

    async def close(self) -> None:
        await self._store.close()


def weighed(h: Harness) -> tuple[Harness, Weighed]:
    store = Weighed(h.store)
    return Harness(store, h.clock), store


def create(h: Harness, job: str = "mail", **fields: Any) -> str:
    return h.create(job, {"text": LARGE}, **fields)


def in_every_state(h: Harness) -> None:
    """Runs with large payloads in all states that a list can be asked for; ended ones with large outputs and errors."""
    h.define("last", max_attempts=1)
    for job in ("last", "mail"):
        create(h, job)
    h.report(run := h.claimed(jobs=("last",)), Fail(token=run.token, error=Failure("boom", "m", "d" * 10_000)))
    h.succeed(h.started(), f'"{LARGE}"')
    create(h, after=(create(h, due_at=h.clock.now() + 60_000),))
    for _ in range(3):
        create(h)
    h.started()
    h.claimed()


LISTS: list[dict[str, Any]] = [{}, {"job": "mail"}, {"queue": "default", "state": State.QUEUED}, *({"state": state} for state in State)]


def test_no_list_reads_what_is_large(h: Harness) -> None:
    in_every_state(h)
    reader, store = weighed(h)
    for asked in LISTS:
        for run in reader(reader.engine.runs(**asked)).runs:
            whole = h.get(run.id)
            assert isinstance(run, Listed)
            assert run.sizes["payload"] == len(whole.payload.encode()) == SIZE + 9
            assert (run.payload, run.output) == ("null", None)
            assert run.sizes.get("output") == (None if whole.output is None else SIZE)
            assert ("error" in run.sizes) == (whole.state is State.FAILED)
            kept = [name for name in Run.__struct_fields__ if name not in run.sizes]
            assert [getattr(run, name) for name in kept] == [getattr(whole, name) for name in kept]
    assert store.weight < 200_000


def test_what_is_small_is_in_the_list_as_in_the_run(h: Harness) -> None:
    fits = "x" * (IN_A_LIST - 2)
    h.create(payload=fits)
    h.succeed(h.started(), f'"{fits}"')
    h.define("last", max_attempts=1)
    h.create("last")
    h.fail(h.started(), BOOM)
    for run in h(h.engine.runs()).runs:
        assert run == h.get(run.id)
    h.create(payload=fits + "x")
    assert [run.sizes for run in h(h.engine.runs(state=State.QUEUED)).runs if isinstance(run, Listed)] == [{"payload": IN_A_LIST + 1}]


def test_the_members_of_a_group_are_a_list_and_a_rerun_of_it_has_them_whole(h: Harness) -> None:
    group = h(h.engine.create_group(NewGroup((Member(NewRun("mail", {"text": LARGE})), Member(NewRun("mail", "small"))))))
    reader, store = weighed(h)
    large, small = reader(reader.engine.members(group.id))
    assert (isinstance(large, Listed), small.payload, store.weight < 20_000) == (True, '"small"', True)
    for _ in range(2):
        h.succeed(h.started())
    again = h(h.engine.rerun_group(group.id))
    assert [h.get(run.id).payload for run in h(h.engine.members(again.id))] == [h.get(large.id).payload, small.payload]


def test_results_are_whole_and_a_page_of_them_is_bounded_by_its_bytes(h: Harness) -> None:
    before = [h.create() for _ in range(9)]
    waits = h.create(after=tuple(before))
    outputs = {}
    for number in range(9):
        h.succeed(run := h.started(), f'"{str(number) * 1_000_000}"')
        outputs[run.id] = h.get(run.id).output
    pages, after = [], None
    while page := h(h.engine.results(waits, after=after)):
        pages.append([(result.id, result.output) for result in page])
        after = page[-1].id
    assert [result for page in pages for result in page] == sorted(outputs.items())
    assert [len(page) for page in pages] == [5, 4]
    assert len(h(h.engine.results(waits, count=2))) == 2


def test_moves_that_are_decided_from_a_run_read_no_payload_and_keep_it(h: Harness) -> None:
    h.define("retried", backoff=(0,))
    run = create(h, "retried")
    for _ in range(2):
        taken = h.claimed(lease=1_000)
        mover, store = weighed(h)
        assert mover(mover.engine.start_many([Held(taken.seq, str(taken.token))]))
        assert mover(mover.engine.start_many([Held(taken.seq, str(taken.token))]))
        if taken.attempt == 1:
            mover.fail(taken)
        else:
            h.clock.advance(1_000)
            assert mover(mover.engine.sweep()).lapsed == 1
        assert store.weight < 20_000
    assert (len(h.get(run).payload.encode()), h.get(run).attempt) == (SIZE + 9, 3)


def test_a_listed_run_is_told_with_its_sizes_by_every_door(h: Harness) -> None:
    create(h)
    (run,) = h(h.engine.runs()).runs
    view = RUN.show(run)
    told = msgspec.json.encode(view)
    assert (view.left_out, view.sizes, msgspec.json.decode(told)["payload"]) == (("payload",), {"payload": SIZE + 9}, None)
    heard = RUN.read(msgspec.json.decode(told, type=RUN.form))
    assert isinstance(heard, Listed)
    assert (heard.sizes, heard.payload) == ({"payload": SIZE + 9}, "null")
    document = plain(Verbs.patch, run)
    assert (document["payload"], document["sizes"]) == (None, {"payload": SIZE + 9})
    whole: Run = h.get(run.id)
    assert (RUN.show(whole).left_out, RUN.show(whole).sizes, plain(Verbs.patch, whole)["sizes"]) == ((), {}, {})
