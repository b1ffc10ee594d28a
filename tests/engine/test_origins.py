"""Where runs come from, and how many are ahead of them: every door tells the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import Harness
from tests.served import ServedHub
from windlass import cli
from windlass.answers import Origin
from windlass.api.views import RUN, RUN_DETAIL
from windlass.client import Client
from windlass.clock import ManualClock, SystemClock
from windlass.engine import origins
from windlass.errors import BadInput, NotFound
from windlass.model import Limits, Member, NewGroup, NewRun, Options, Use
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.sqlite import BlockingSqlite


class Counted:
    """A store that counts the batches sent to it."""

    def __init__(self, store: Store) -> None:
        self._store, self.batches = store, 0

    async def batch(self, verb: str, statements: Sequence[Statement]) -> list[list[Row]]:
        self.batches += 1
        return await self._store.batch(verb, statements)

    async def close(self) -> None:
        await self._store.close()


def group(h: Harness, members: int, **fields: Any) -> tuple[str, list[str]]:
    made = h(h.engine.create_group(NewGroup(tuple(Member(NewRun("mail")) for _ in range(members)), **fields)))
    return made.id, [run.id for run in h(h.engine.members(made.id))]


def of_schedule(h: Harness, key: str = "nightly") -> str:
    """A run of a schedule; one that is triggered by hand belongs to none."""
    schedule = h(h.engine.schedule(key, "mail", every="5m"))
    return h.create(schedule=schedule.id, instant=h.clock.now())


# Origins


def test_a_run_names_its_schedule_its_group_and_its_place(h: Harness) -> None:
    fired, alone = of_schedule(h), h.create()
    one, members = group(h, 3)
    other, rest = group(h, 2, kind="sequential")
    expected = {fired: Origin("nightly"), alone: Origin()}
    expected |= {run: Origin(None, one, place) for place, run in enumerate(members)}
    expected |= {run: Origin(None, other, place) for place, run in enumerate(rest)}
    assert h(h.engine.origins([*expected, "unknown", alone])) == expected
    assert h(h.engine.origins([rest[1]])) == {rest[1]: Origin(None, other, 1)}
    assert h(h.engine.origins([])) == {}


def test_a_callback_is_no_member_and_a_run_of_a_removed_schedule_has_none(h: Harness) -> None:
    made = h(h.engine.create_group(NewGroup((Member(NewRun("mail")),), callback=NewRun("mail"))))
    fired = of_schedule(h)
    assert h(h.engine.origins([fired])) == {fired: Origin("nightly")}
    h(h.engine.remove_schedule("nightly"))
    assert h(h.engine.origins([str(made.callback), fired])) == {made.callback: Origin(), fired: Origin()}


def test_places_stay_when_runs_are_moved_claimed_and_ended(h: Harness) -> None:
    name, members = group(h, 4)
    h(h.engine.move(members[3], to="top"))
    h.fail(h.claimed())
    h.succeed(h.claimed())
    assert h(h.engine.origins(members)) == {run: Origin(None, name, place) for place, run in enumerate(members)}


def test_a_page_of_runs_is_one_read(h: Harness) -> None:
    ids = [run for _ in range(5) for run in group(h, 5)[1]]
    store = Counted(h.store)
    reader = Harness(store, h.clock)
    assert len(reader(reader.engine.origins(ids))) == 25
    assert store.batches == 1


def test_more_than_a_page_and_what_is_no_id_is_refused(h: Harness) -> None:
    with pytest.raises(BadInput, match="run_ids"):
        h(h.engine.origins(["x"] * (Limits().page + 1)))
    with pytest.raises(BadInput):
        h(h.engine.origins([""]))


# Ahead


def test_only_queued_runs_of_its_queue_and_priority_count(h: Harness) -> None:
    h.define("scan")  # another lane of the same queue
    h.define("other", queue="other")
    first, high, scan = h.create(), h.create(options=Options(priority=5)), h.create("scan")
    h.create("other")
    h.create(due_at=h.clock.now() + 1_000)
    last = h.create()
    assert [h(h.engine.ahead(run)) for run in (first, high, scan, last)] == [0, 0, 1, 2]
    h(h.engine.move(last, to="top"))  # it has the priority of the head now
    assert [h(h.engine.ahead(run)) for run in (last, high, first, scan)] == [0, 1, 0, 1]
    claimed = h.claimed()
    assert (claimed.id, h(h.engine.ahead(claimed.id)), h(h.engine.ahead(high))) == (last, None, 0)


def test_parked_runs_count(h: Harness) -> None:
    h(h.engine.set_resource("gpu", capacity=1))
    h.define("train", uses=(Use("gpu", per="user"),))
    ids = [h.create("train", {"user": "ann"}) for _ in range(3)]
    assert [run.id for run in h.claim(3)] == ids[:1]
    assert h.get(ids[1]).parked is not None
    assert [h(h.engine.ahead(run)) for run in ids] == [None, 0, 1]


def test_in_a_queue_with_aging_all_that_is_before_it_counts(h: Harness) -> None:
    h(h.engine.set_queue("default", aging=60_000))
    low, high = h.create(), h.create(options=Options(priority=5))
    assert [h(h.engine.ahead(run)) for run in (high, low)] == [0, 1]


def test_it_is_counted_up_to_a_limit(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "MAX_AHEAD", 3)
    h.define("scan")
    ids = [h.create(job) for _ in range(3) for job in ("mail", "scan")]
    assert [h(h.engine.ahead(run)) for run in ids] == [0, 1, 2, 3, 3, 3]


def test_an_unknown_run_is_refused(h: Harness) -> None:
    with pytest.raises(NotFound):
        h(h.engine.ahead("unknown"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["mail", "scan", "bill"]), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=20))
def test_it_is_the_number_of_those_listed_before_it_with_its_priority(h: Harness, lives: list[tuple[str, int, int]]) -> None:
    for job, priority, place in lives:
        h.define(job)
        run_id = h.create(job, options=Options(priority=priority))
        if place < 5:
            h(h.engine.move(run_id, place=place))
    listed = h(h.engine.runs(state="queued", queue="default", count=1_000)).runs
    for index, run in enumerate(listed):
        assert h(h.engine.ahead(run.id)) == sum(other.priority == run.priority for other in listed[:index])
    for run in listed:
        h(h.engine.cancel(run.id))


# Every door


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    served = ServedHub(tmp_path / "hub.db")
    yield served
    served.stop()


def in_store(folder: Path) -> str:
    """A run of a schedule in the hub's store: a hub makes none on request."""
    clock = ManualClock(SystemClock().now())
    store = BlockingSqlite(folder / "hub.db", clock)
    run = of_schedule(Harness(store, clock))
    run_sync(store.close())
    return run


def test_one_run_of_a_hub_has_it_and_lists_do_not(tmp_path: Path, hub: ServedHub) -> None:
    with Client(hub.url) as client, httpx.Client(base_url=hub.url + "api/v1", timeout=60) as http:
        client.define("mail")
        fired = in_store(tmp_path)
        made = client.create_group(NewGroup(tuple(Member(NewRun("mail")) for _ in range(2))))
        second = client.members(made.id)[1]
        answer = http.get(f"/runs/{second.id}").json()
        assert {name: answer[name] for name in ("schedule", "group", "place", "ahead")} == {
            "schedule": None, "group": made.id, "place": 1, "ahead": 2,
        }  # fmt: skip
        assert http.get(f"/runs/{fired}").json()["schedule"] == "nightly"
        assert not {"schedule", "group", "place", "ahead"} & http.get("/runs").json()["runs"][0].keys()
        detail = client.detail(second.id)
        assert (detail.origin, detail.ahead) == (Origin(None, made.id, 1), 2)
        assert RUN.show(detail) == RUN.show(client.get(second.id))
        plain = http.get(f"/runs/{second.id}?detail=false").json()
        assert {name: plain[name] for name in answer} == answer | dict.fromkeys(("schedule", "group", "place", "ahead"))
        client.cancel(second.id)
        assert client.detail(second.id).ahead is None


def test_a_client_that_waits_does_not_have_it_looked_up(hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(hub.url) as client:
        client.define("mail")
        (made,) = client.create([NewRun("mail")])
        monkeypatch.setattr(hub.hub.engine, "detail", None)
        assert client.get(made.id).id == client.status(made.id).id == made.id


@pytest.mark.parametrize("through_hub", [False, True], ids=["store", "hub"])
def test_the_command_line_shows_it(through_hub: bool, tmp_path: Path, hub: ServedHub, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--hub", hub.url] if through_hub else ["--store", str(tmp_path / "hub.db")]
    with Client(hub.url) as client:
        client.define("mail")
        made = client.create_group(NewGroup(tuple(Member(NewRun("mail")) for _ in range(2))))
        second = client.members(made.id)[1].id
        fired = in_store(tmp_path)
        assert cli.main(["show", second, *where]) == 0
        shown = capsys.readouterr().out
        assert f"{made.id}, place 1" in shown
        assert "1 queued with its priority" in shown
        assert cli.main(["show", fired, *where]) == 0
        assert "nightly" in capsys.readouterr().out


def test_a_detail_is_read_back_as_it_was(h: Harness) -> None:
    _, members = group(h, 2)
    detail = h(h.engine.detail(members[1]))
    back = RUN_DETAIL.read(RUN_DETAIL.show(detail))
    assert (back.origin, back.ahead, back.id) == (detail.origin, 1, members[1])
