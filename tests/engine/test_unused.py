"""What nobody uses any more is removed: lanes, resources that nobody has set, jobs that nobody has defined. No run is ever left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.grounds import set_ground
from tests.harness import Harness
from tests.served import ServedHub
from windlass import App
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.engine.unused import UNUSED
from windlass.errors import LimitReached, NotFound, WrongState
from windlass.hub import HubSettings
from windlass.limiters import limiter_key
from windlass.model import Limits, Member, NewGroup, NewRun, Options, Principal, Requires, Use, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite

HOUR = 3_600_000
DAY = 24 * HOUR
SMALL = Principal("shop", trusted=False)
ALL = WorkerInfo("w1", slots=1_000)


@contextmanager
def closing(opened: Any) -> Iterator[Any]:
    """Close what was opened, or the store of a harness."""
    try:
        yield opened
    finally:
        run_sync(opened.store.close()) if isinstance(opened, Harness) else opened.close()


def lanes(h: Harness) -> set[tuple[str, str]]:
    return {(lane.queue, lane.job) for lane in h(h.engine.all_lanes(count=1_000))}


def tidy(h: Harness, after: int = UNUSED + DAY) -> None:
    """What another process tidies up when so much time has gone by."""
    h.clock.advance(after)
    h(h.another().engine.tidy())


def end_all(h: Harness) -> None:
    while runs := h.claim(100):
        for run in runs:
            h.succeed(run)


# Lanes


def test_a_lane_that_nobody_uses_is_removed_and_made_again_when_it_is_needed(h: Harness) -> None:
    h.create(options=Options(queue="once"))
    end_all(h)
    tidy(h, DAY)
    assert lanes(h) == {("default", "mail"), ("once", "mail")}
    tidy(h)
    assert lanes(h) == set()
    again = h.create(options=Options(queue="once"))  # by a process that knew the lane
    assert [run.id for run in h.another().claim()] == [again]
    assert lanes(h) == {("once", "mail")}


def test_a_lane_in_use_is_not_removed_however_it_is_used(h: Harness) -> None:
    other = h.another()
    for _ in range(9):
        h.create(options=Options(queue="claimed"))
    for _ in range(9):
        h.create(options=Options(queue="made"))
        h.succeed(h.claimed(queues=("made",)))
        other.succeed(other.claimed(queues=("claimed",)))
        tidy(h, DAY - HOUR)
    assert {lane.id: lane.queue for lane in h(h.engine.all_lanes())} == {2: "claimed", 3: "made"}  # the first ones


def waiting(h: Harness, first: str) -> str:
    return h.create(after=(first,), options=Options(queue="idle"))


def scheduled(h: Harness, first: str) -> str:
    return h.create(due_at=h.clock.now() + 400 * DAY, options=Options(queue="idle"))


def queued(h: Harness, first: str) -> str:
    return h.create(options=Options(queue="idle"))


def parked(h: Harness, first: str) -> str:
    uses, payload = (Use("seat", per="of"),), {"of": 1}
    h.create(payload=payload, options=Options(queue="busy", uses=uses))
    h.claimed(queues=("busy",))
    made = h.create(payload=payload, options=Options(queue="idle", uses=uses))
    assert h.claim(queues=("idle",)) == []
    assert h.get(made).parked is not None
    return made


def claimed(h: Harness, first: str) -> str:
    made = h.create(options=Options(queue="idle"))
    h.claimed(queues=("idle",), lease=1)
    return made


@pytest.mark.parametrize("make", [waiting, scheduled, queued, parked, claimed], ids=lambda make: make.__name__)
def test_a_lane_with_a_run_that_has_not_ended_stays(h: Harness, make: Callable[[Harness, str], str]) -> None:
    first = h.create()
    run = make(h, first)
    for _ in range(3):
        tidy(h)
    lane = h.get(run).lane
    assert abs(lane) in {lane.id for lane in h(h.engine.all_lanes())}
    with pytest.raises(WrongState, match="in use"):
        h(h.engine.drop_lane(abs(lane)))
    assert abs(lane) in {lane.id for lane in h(h.engine.all_lanes())}


class Paused:
    """A store whose next batch of a verb waits until something has been done."""

    def __init__(self, engine: Engine, verb: str, meanwhile: Callable[[], Any]) -> None:
        store = engine.records.store
        batch = store.batch

        async def paused(name: str, statements: Any) -> Any:
            if name == verb:
                store.batch = batch  # type: ignore[method-assign]
                meanwhile()
            return await batch(name, statements)

        store.batch = paused  # type: ignore[method-assign, assignment]


def in_between(h: Harness, verb: str, meanwhile: Callable[[], Any], do: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    Paused(h.engine, verb, meanwhile)
    return h(do())


def by_hand(h: Harness) -> None:
    for lane in h(h.another().engine.all_lanes()):
        h(h.another().engine.drop_lane(lane.id))


@pytest.mark.parametrize("remove", [tidy, by_hand], ids=["tidy", "by hand"])
def test_a_creation_in_flight_does_not_land_in_a_lane_that_is_removed_meanwhile(h: Harness, remove: Callable[[Harness], None]) -> None:
    h.create()
    end_all(h)
    made = in_between(h, "create", lambda: remove(h), lambda: h.engine.create([NewRun("mail")]))
    assert [run.id for run in h.another().claim()] == [made[0].id]


@pytest.mark.parametrize("remove", [tidy, by_hand], ids=["tidy", "by hand"])
def test_neither_does_a_rerun(h: Harness, remove: Callable[[Harness], None]) -> None:
    run = h.create()
    end_all(h)
    again = in_between(h, "create", lambda: remove(h), lambda: h.engine.rerun(run))
    assert [run.id for run in h.another().claim()] == [again.id]


def test_nor_a_run_that_is_given_another_queue(h: Harness) -> None:
    h.create(options=Options(queue="other"))
    end_all(h)
    run, (lane,) = h.create(), [lane.id for lane in h(h.engine.all_lanes()) if lane.queue == "other"]
    in_between(h, "patch", lambda: h(h.another().engine.drop_lane(lane)), lambda: h.engine.patch(run, queue="other"))
    assert [run.id for run in h.another().claim(queues=("other",))] == [run]


def test_a_lane_that_is_used_while_it_is_being_removed_stays(h: Harness) -> None:
    """Created and claimed, between the look for its runs and its removal, by a process that has learnt of the new revision."""
    h.create()
    end_all(h)
    tidying, other = h.another(), h.another()
    h.clock.advance(UNUSED + DAY)
    made: list[str] = []
    Paused(tidying.engine, "drop_lanes", lambda: made.append(other.create(due_at=h.clock.now() + HOUR)))
    h(tidying.engine.tidy())
    assert lanes(h) == {("default", "mail")}
    h.sweep(HOUR)
    assert [run.id for run in h.another().claim()] == made


def test_a_removed_lane_is_forgotten_by_those_who_only_claim(h: Harness) -> None:
    h.create()
    end_all(h)
    tidy(h)
    assert h.claim() == []
    assert h.engine.parts.ground.lanes.all == []


def test_what_nobody_has_noted_yet_is_not_taken_for_unused(tmp_path: Path) -> None:
    """As after an upgrade: then a lane begins to count from the first look."""
    file, clock = tmp_path / "windlass.db", ManualClock()
    with closing(Harness(BlockingSqlite(file, clock), clock)) as h:
        h.define()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("update job_lanes set used_at = null")
    with closing(Harness(BlockingSqlite(file, clock), clock)) as h:
        for kept in ({("default", "mail")}, {("default", "mail")}, set()):
            tidy(h, 2 * DAY)
            assert lanes(h) == kept


# What was asked for in lanes that are gone


def test_a_rerun_whose_lane_is_gone_needs_what_its_job_needs_now(h: Harness) -> None:
    h.define("render", uses=(Use("seat", per="of"),), requires=Requires(tags=("gpu",)))
    run = h.create("render", payload={"of": 7})
    done = h.claimed(tags=("gpu",))
    h.succeed(done)
    tidy(h)
    assert lanes(h) == set()
    again = h(h.another().engine.rerun(run)).id
    assert h.another().claim() == []
    (found,) = h.another().claim(tags=("gpu",))
    assert (found.id, found.retry_of) == (again, run)
    assert [holder.run for holder in h(h.engine.occupants(limiter_key("seat", "7"))).runs] == [again]


def test_a_group_is_rerun_although_its_lanes_are_gone(h: Harness) -> None:
    members = (Member(NewRun("mail"), name="first"), Member(NewRun("mail"), after=("first",)))
    group = h(h.engine.create_group(NewGroup(members, "graph")))
    end_all(h)
    tidy(h)
    again = h(h.another().engine.rerun_group(group.id))
    end_all(h)
    assert h(h.engine.get_group(again.id)).status == "completed"


def test_an_ended_run_whose_lane_is_gone_is_read_as_ever(h: Harness) -> None:
    run = h.create()
    end_all(h)
    tidy(h)
    other = h.another()
    assert h(other.engine.why(run)) == h(h.engine.why(run))
    assert [one.id for one in h(other.engine.runs()).runs] == [run]


# A creation whose transaction is still open


def test_a_lane_stays_while_a_transaction_is_open_that_makes_runs_in_it(emptied_postgres: str) -> None:
    clock = ManualClock()
    with closing(Harness(BlockingPostgres(emptied_postgres, clock), clock)) as h, psycopg.connect(emptied_postgres) as caller:
        h.define()
        (lane,) = h(h.engine.all_lanes())
        with App(emptied_postgres) as app:
            run = app.enqueue_one(app.job(name="mail")(lambda: None).new(), connection=caller)
            with pytest.raises(WrongState, match="open"):
                h(h.engine.drop_lane(lane.id))
            caller.commit()
        with pytest.raises(WrongState, match="in use"):
            h(h.engine.drop_lane(lane.id))
        assert [found.id for found in h.another().claim()] == [run.id]


# Resources


def test_a_resource_that_only_its_name_has_made_goes_with_the_last_lane_that_names_it(h: Harness) -> None:
    h(h.engine.set_resource("set", capacity=2))
    h.create(options=Options(uses=(Use("named"), Use("set"))))
    end_all(h)
    tidy(h)
    tidy(h)
    assert [state.resource.name for state in h(h.engine.resources())] == ["set"]
    h.create(options=Options(uses=(Use("named"),)))
    assert [state.resource.name for state in h(h.another().engine.resources())] == ["named", "set"]


def test_a_resource_that_a_direct_call_holds_is_neither_dropped_nor_tidied_away(h: Harness) -> None:
    h.create(options=Options(uses=(Use("seat"),)))
    end_all(h)
    slot = h(h.engine.reserve("seat", lease=DAY))
    for lane in h(h.engine.all_lanes()):
        h(h.engine.drop_lane(lane.id))
    with pytest.raises(WrongState, match="occupied"):
        h(h.engine.drop_resource("seat"))
    h(h.engine.release(slot.id, slot.token))
    h(h.engine.drop_resource("seat"))
    with pytest.raises(NotFound):
        h(h.engine.drop_resource("seat"))


# Jobs that nobody has defined


def test_a_job_that_nobody_has_defined_goes_when_it_has_no_runs(h: Harness) -> None:
    h(h.engine.create([NewRun("gone"), NewRun("kept")], undefined="wait"))
    h(h.engine.schedule("nightly", "planned", cron="0 3 1 1 *"))
    h(h.engine.trigger("nightly"))
    for run in h.claim(10):
        if run.job != "kept":
            h.succeed(run)
    h.clock.advance(Limits().keep_succeeded + DAY)
    h(h.engine.prune())
    tidy(h)
    assert [job.name for job in h(h.engine.jobs())] == ["kept", "mail", "planned"]
    with pytest.raises(WrongState, match="has runs"):
        h(h.engine.drop_job("kept"))
    with pytest.raises(WrongState, match="is defined"):
        h(h.engine.drop_job("mail"))
    with pytest.raises(NotFound):
        h(h.engine.drop_job("gone"))
    h(h.engine.create([NewRun("gone")], undefined="wait"))  # by a process that knew it


def test_a_creation_from_a_placeholder_that_was_removed_and_defined_meanwhile_is_made_from_the_definition(h: Harness) -> None:
    other, engine = h.another(), h.engine
    h(engine.parts.jobs.definitions({"mail"}, "refuse"))
    h(engine.create([NewRun("late")], undefined="wait"))
    run = h.claimed(jobs=("late",))
    h.succeed(run)
    h.clock.advance(Limits().keep_succeeded + DAY)
    h(other.engine.prune())
    h(other.engine.drop_job("late"))
    other.define("late", priority=7)  # at revision 1 again
    made = h(engine.create([NewRun("late")]))[0].id
    assert h.get(made).priority == 7


# What was counted


def test_what_was_counted_of_a_queue_that_is_gone_is_counted_among_all(h: Harness) -> None:
    for queue in ("once", "twice"):
        for _ in range(2):
            h.create(options=Options(queue=queue))
    end_all(h)
    h(h.engine.roll_up())
    before, pairs = h(h.engine.totals())
    assert {("once", "mail"), ("twice", "mail")} == pairs.keys()
    tidy(h)
    assert h(h.engine.totals()) == (before, {})
    h.create(options=Options(queue="once"))
    h(h.engine.roll_up())
    whole, pairs = h(h.engine.totals())
    assert (whole.counts.created, pairs["once", "mail"].counts.created) == (5, 1)


# Bounds


def test_bounds_are_asked_before_anything_is_written(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(lanes=3))
    many = [NewRun(f"new{n}", options=Options(uses=(Use(f"seat{n}"),))) for n in range(3)]
    with pytest.raises(LimitReached, match="lanes"):
        h(h.engine.create(many, undefined="wait"))
    with pytest.raises(LimitReached):
        h(h.engine.create([NewRun("mail", options=Options(queue=f"q{n}")) for n in range(3)]))
    h.create(options=Options(queue="a"))
    h.create(options=Options(queue="b"))
    with pytest.raises(LimitReached):
        h.define("other")
    assert [job.name for job in h(h.engine.jobs())] == ["mail"]
    assert h(h.engine.resources()) == []
    assert lanes(h) == {("default", "mail"), ("a", "mail"), ("b", "mail")}


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("lanes", [NewRun("mail", options=Options(queue=f"q{n}")) for n in range(4)]),
        ("resources", [NewRun("mail", options=Options(uses=tuple(Use(f"r{n}") for n in range(4))))]),
        ("undefined jobs", [NewRun(f"job{n}", options=Options(queue="q")) for n in range(4)]),
    ],
    ids=["lanes", "resources", "placeholders"],
)
def test_one_who_may_not_do_everything_makes_no_more_than_its_share(h: Harness, what: str, asked: list[NewRun]) -> None:
    set_ground(h.engine, limits=Limits(lanes=30 if what == "lanes" else 300, resources=30, placeholders=30, share=10))
    small, other = h.engine.on_behalf_of(SMALL), h.engine.on_behalf_of(Principal("other", trusted=False))
    with pytest.raises(LimitReached, match=f"'shop' has created 0 {what}"):
        h(small.create(asked, undefined="wait"))
    if what == "lanes":
        h(small.create(asked[:3], undefined="wait"))
        h(small.create(asked[:3], undefined="wait"))  # what is there already costs nothing
        with pytest.raises(LimitReached, match="share of 3"):
            h(small.create(asked[3:], undefined="wait"))
        h(other.create(asked[3:], undefined="wait"))
        with pytest.raises(LimitReached, match="share of 3"):
            h(small.create([NewRun("mail", options=Options(queue="more"))]))
    h(h.engine.create(asked, undefined="wait"))


def test_schedules_of_one_token_make_no_more_lanes_than_its_share(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(lanes=20))
    small = h.engine.on_behalf_of(SMALL)
    for n in range(2):
        h(small.schedule(f"s{n}", "mail", every="1h", by_code=True, options=Options(queue=f"q{n}")))
    with pytest.raises(LimitReached, match="share of 2"):
        h(small.schedule("s2", "mail", every="1h", by_code=True, options=Options(queue="q2")))
    assert [schedule.key for schedule in h(h.engine.schedules())] == ["s0", "s1"]


def test_code_of_one_token_sets_no_more_resources_than_its_share(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(resources=20))
    small = h.engine.on_behalf_of(SMALL)
    for name in ("a", "b"):
        h(small.add_resource(name, capacity=1))
    with pytest.raises(LimitReached, match="share of 2"):
        h(small.add_resource("c", capacity=1))
    h(h.engine.add_resource("c", capacity=1))
    h(small.add_resource("c", capacity=1))


# Through a hub


@pytest.fixture(params=["sqlite", "postgres"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    """A hub with small limits, and a client for everybody who has a token there."""
    store = str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres")
    served = ServedHub(store, HubSettings())
    set_ground(served.hub.engine, limits=Limits(lanes=50, resources=30, placeholders=50, share=10))
    with ExitStack() as closing_all:
        closing_all.callback(served.stop)

        def client(secret: str | None) -> httpx.Client:
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            return closing_all.enter_context(httpx.Client(base_url=served.url + "api/v1", timeout=30, headers=headers))

        made = client(None).post("/tokens", json={"name": "ops", "scopes": ["admin"]}).json()
        admin = client(made["secret"])

        def somebody(name: str, *scopes: str) -> httpx.Client:
            return client(admin.post("/tokens", json={"name": name, "scopes": scopes}).json()["secret"]) if scopes else admin

        assert admin.put("/jobs/mail", json={}).status_code == 200
        yield somebody


def queues(names: Iterable[str]) -> dict[str, Any]:
    return {"runs": [{"job": "mail", "options": {"queue": name}} for name in names]}


def test_a_token_is_stopped_at_its_share_of_lanes_and_others_go_on(hub: Callable[..., httpx.Client]) -> None:
    admin, shop, other = hub("ops"), hub("shop", "submit"), hub("other", "submit")
    refused = shop.post("/runs/batch", json=queues(f"q{n}" for n in range(10_000)))
    assert (refused.status_code, refused.json()["code"]) == (429, "limit_reached")
    assert len(admin.get("/lanes").json()["lanes"]) == 1
    for n in range(5):
        assert shop.post("/runs", json={"job": "mail", "options": {"queue": f"q{n}"}}).status_code == 202
    refused = shop.post("/runs", json={"job": "mail", "options": {"queue": "one more"}})
    assert (refused.status_code, "share of 5" in refused.json()["detail"]) == (429, True)
    assert shop.post("/runs", json={"job": "mail"}).status_code == 202
    assert other.post("/runs", json={"job": "mail", "options": {"queue": "one more"}}).status_code == 202
    lanes = admin.get("/lanes").json()["lanes"]
    assert [lane["owner"] for lane in lanes] == [None] + ["shop"] * 5 + ["other"]


def test_a_token_is_stopped_at_its_share_of_resources(hub: Callable[..., httpx.Client]) -> None:
    admin, shop, other = hub("ops"), hub("shop", "submit"), hub("other", "submit")
    many = [{"job": "mail", "options": {"uses": [{"resource": f"r{n}-{m}"} for m in range(10)]}} for n in range(4)]
    assert shop.post("/runs/batch", json={"runs": many}).status_code == 429
    assert admin.get("/resources").json()["resources"] == []
    assert other.post("/runs", json={"job": "mail", "options": {"uses": [{"resource": "gpu"}]}}).status_code == 202


def test_an_admin_removes_by_hand_what_nobody_uses(hub: Callable[..., httpx.Client]) -> None:
    admin, shop = hub("ops"), hub("shop", "submit", "read")
    run = shop.post("/runs", json={"job": "mail", "options": {"queue": "once", "uses": [{"resource": "gpu"}]}}).json()["id"]
    lane = max(lane["id"] for lane in shop.get("/lanes").json()["lanes"])
    assert shop.delete(f"/lanes/{lane}").status_code == 403
    in_use = admin.delete(f"/lanes/{lane}")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "wrong_state")
    assert admin.delete("/resources/gpu").status_code == 409
    assert shop.post(f"/runs/{run}/cancel", json={}).status_code == 200
    for path in (f"/lanes/{lane}", "/resources/gpu"):
        assert admin.delete(path).status_code == 200
        assert admin.delete(path).status_code == 404
    assert admin.delete("/jobs/mail").status_code == 409
    assert admin.delete("/workers/nobody").status_code == 404
    audit = [(entry["actor"], entry["what"], entry["subject"]) for entry in admin.get("/audit").json()["entries"]]
    assert ("ops", "remove", f"lane {lane}") in audit
    again = shop.post(f"/runs/{run}/rerun").json()
    assert shop.get(f"/runs/{again['id']}").json()["state"] == "queued"
