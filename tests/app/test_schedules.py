"""`@app.cron`, `@app.every`, `app.schedule`: what a program says of a schedule, and that a worker stores and fires it. In both colours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.app.test_app import COLOURS, World, _world
from tests.harness import KINDS
from tests.worker.test_worker import at
from windlass import AsyncJob, Context, Job, State
from windlass.clock import ManualClock
from windlass.errors import BadInput, DuplicateKey, NotFound
from windlass.firing import edited
from windlass.model import Run, Schedule

MINUTE = 60_000
DEADLINE = 60


class Shop(World):
    """A world with schedules."""

    def stored(self, key: str) -> Schedule:
        found: Schedule = self(self.app.verbs.get_schedule(key))
        return found

    def listed(self) -> list[str]:
        return [schedule.key for schedule in self(self.app.verbs.schedules())]

    def later(self, ms: int) -> None:
        """Time passes, somebody sweeps, and what is due is done."""
        self.app.clock.advance(ms)
        self(self.app.engine.sweep())
        self.work()

    def runs(self) -> list[Run]:
        """Oldest first."""
        return list(reversed(self(self.app.runs(count=1_000)).runs))

    def again(self, **settings: Any) -> Shop:
        """The program after a deployment: another app on the same store."""
        fresh = Shop(type(self.app)(self.kind, clock=self.app.clock, **settings), self.kind, self._runner)
        if self.kind == ":memory:":
            fresh.app._opened, fresh.app._pid = self.app.engine, self.app._pid
        return fresh


def _shop(world: World) -> Shop:
    return Shop(world.app, world.kind, world._runner)


@pytest.fixture(params=COLOURS)
def w(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """In memory, by a clock that the test moves."""
    yield from map(_shop, _world(request.param, ":memory:", clock=ManualClock(1_800_000_000_000)))


@pytest.fixture(params=[f"{colour}-{kind}" for colour in COLOURS for kind in KINDS])
def real(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Shop]:
    """On each store, by the time that passes."""
    colour, kind = request.param.split("-")
    yield from map(_shop, _world(colour, at(kind, tmp_path, request)))


def plain(to: str = "ann") -> str:
    return to


async def coroutine(to: str = "ann") -> str:
    return to


# Decorators


@pytest.mark.parametrize("function", [plain, coroutine])
def test_a_function_becomes_a_job_with_a_schedule(w: Shop, function: Any) -> None:
    job = w.app.cron("0 3 * * *", zone="Europe/Paris")(function)
    assert isinstance(job, Job | AsyncJob)
    assert job.name in w.app.jobs
    w.work()
    found = w.stored(job.name)
    assert (found.job, found.kind, found.expr, found.zone) == (job.name, "cron", "0 3 * * *", "Europe/Paris")
    assert found.code_hash is not None
    assert not edited(found)


def test_a_job_keeps_what_it_is_and_may_have_several_schedules(w: Shop) -> None:
    job = w.job(plain, queue="slow")
    assert w.app.every("15m")(job) is job
    assert w.app.cron("@daily", key="daily", payload={"to": "bob"})(job) is job
    w.work()
    assert w.listed() == ["daily", "plain"]
    assert [w.stored(key).payload for key in w.listed()] == [{"to": "bob"}, {}]


def test_every_word_reaches_the_store(w: Shop) -> None:
    words: dict[str, Any] = {
        "missed": "all",
        "max_missed": 7,
        "max_age": timedelta(hours=2),
        "overlap": "queue",
        "jitter": 1.5,
        "enabled": False,
    }
    w.app.every(timedelta(minutes=15), key="k", payload={"to": "bob"}, zone="Asia/Tokyo", **words)(w.job(plain))
    w.work()
    found = w.stored("k")
    assert (found.missed, found.max_missed, found.max_age, found.overlap, found.jitter) == ("all", 7, 120 * MINUTE, "queue", 1_500)
    assert (found.enabled, found.next_at, found.zone, found.payload) == (False, None, "Asia/Tokyo", {"to": "bob"})


@pytest.mark.parametrize("interval", ["15m", "900s", 900, 900.0, timedelta(minutes=15)])
def test_an_interval_is_a_text_a_number_of_seconds_or_a_timedelta(w: Shop, interval: Any) -> None:
    w.app.every(interval)(w.job(plain))
    w.work()
    found = w.stored("plain")
    assert (found.kind, (found.next_at or 0) - found.created_at) == ("interval", 15 * MINUTE)


def test_a_command_can_have_a_schedule(w: Shop) -> None:
    w.app.every("15m", payload={"anything": [1]})(w.app.command("list", ["true"]))
    w.work()
    assert w.stored("list").payload == {"anything": [1]}


def test_two_schedules_need_two_keys(w: Shop) -> None:
    job = w.app.every("15m")(w.job(plain))
    with pytest.raises(BadInput, match="two schedules with the key 'plain'"):
        w.app.every("30m")(job)


def test_what_does_not_fit_the_signature_is_refused_at_once(w: Shop) -> None:
    def needs(order: int) -> None: ...

    job = w.job(needs)
    with pytest.raises(TypeError, match="order"):
        w.app.every("15m")(job)
    with pytest.raises(BadInput, match="Expected `int`"):
        w.app.every("15m", payload={"order": "seven"})(job)
    with pytest.raises(TypeError, match="extra"):
        w.app.every("15m", payload={"order": 7, "extra": 1})(job)
    with pytest.raises(BadInput, match="Expected `int`"):
        w(w.app.schedule(job, every="15m", payload={"order": "seven"}))
    assert w.app.planned == {}
    w.app.every("15m", payload={"order": 7})(job)


def test_a_word_that_a_schedule_does_not_have_is_refused(w: Shop) -> None:
    with pytest.raises(TypeError, match="no option 'zoen'"):
        w.app.every("15m", zoen="UTC")(w.job(plain))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (("cron", "0 25 * * *", "UTC"), "'25' at character 3"),
        (("cron", "0 0 30 2 *", "UTC"), "never due"),
        (("cron", "0 3 * * *", "Europe/Pariss"), "no zone"),
        (("every", "10ms", "UTC"), "below a second"),
        (("every", timedelta(0), "UTC"), "below a second"),
        (("cron", plain, "UTC"), "must be a text"),  # what @app.cron without parentheses says
    ],
    ids=["place", "never", "zone", "short", "zero", "bare"],
)
def test_a_rule_that_cannot_be_followed_is_refused_where_it_is_written(w: Shop, rule: tuple[str, Any, str], said: str) -> None:
    kind, expression, zone = rule
    with pytest.raises(BadInput, match=said):
        getattr(w.app, kind)(expression, zone=zone)


def test_a_schedule_stands_above_its_job(w: Shop) -> None:
    scheduled = w.app.every("15m")(plain)
    with pytest.raises(BadInput, match="is a job already") as caught:
        w.app.job(name="other")(scheduled)
    assert "above @app.job()" in caught.value.hint


def test_a_payload_is_an_object(w: Shop) -> None:
    with pytest.raises(BadInput, match="must be an object"):
        w.app.every("15m", payload=[1])(w.job(plain))


def test_a_job_of_this_app_is_checked_by_its_name_too(w: Shop) -> None:
    w.job(plain)
    with pytest.raises(TypeError, match="zzz"):
        w(w.app.schedule("plain", every="15m", payload={"zzz": 1}))
    with pytest.raises(NotFound):
        w.stored("plain")


def test_nothing_is_stored_before_a_worker_starts(w: Shop) -> None:
    w.app.every("15m")(w.job(plain))
    assert w.listed() == []


# What a worker does with them


def test_a_worker_stores_them_and_fires_what_is_due(w: Shop) -> None:
    w.app.every("15m", payload={"to": "bob"})(w.job(plain))
    w.work()
    assert w.runs() == []
    w.later(15 * MINUTE)
    (run,) = w.runs()
    assert (run.state, run.output, run.due_at) == ("succeeded", '"bob"', 1_800_000_000_000 + 15 * MINUTE)
    found = w.stored("plain")
    assert (found.fired, found.last_run, found.last_at) == (1, run.id, run.due_at)


def test_a_start_that_says_the_same_changes_nothing(w: Shop) -> None:
    w.app.every("15m")(w.job(plain))
    w.work()
    before = w.stored("plain")
    w.later(MINUTE)
    again = w.again()
    again.app.every("15m")(again.job(plain))
    again.work()
    assert w.stored("plain") == before


def test_what_a_person_has_edited_stands_until_the_program_says_something_else(w: Shop) -> None:
    w.app.every("15m")(w.job(plain))
    w.work()
    w(w.app.verbs.set_schedule("plain", expr="1h", enabled=False))
    assert edited(w.stored("plain"))
    w.work()
    assert (w.stored("plain").expr, w.stored("plain").enabled) == ("1h", False)
    again = w.again()
    again.app.every("30m")(again.job(plain))
    again.work()
    found = w.stored("plain")
    assert (found.expr, found.enabled, edited(found)) == ("30m", True, False)


def test_two_versions_of_a_program_that_start_in_turn_lose_no_instant(w: Shop) -> None:
    start = w.app.clock.now()
    for turn in range(9):
        version = w.again()
        version.app.every(("1h", "2h")[turn % 2])(version.job(plain))
        version.work()
        w.app.clock.advance(40 * MINUTE)
    instants = [(run.instant or 0) - start for run in w.runs()]
    assert instants == [60 * MINUTE, 120 * MINUTE, 180 * MINUTE, 240 * MINUTE, 300 * MINUTE]
    assert {run.state for run in w.runs()} == {State.SUCCEEDED}
    assert (w.stored("plain").fired, w.stored("plain").skipped) == (5, 0)


def test_run_time_words_over_a_key_of_the_program_are_an_edit(w: Shop) -> None:
    job = w.app.every("15m")(w.job(plain))
    w.work()
    w(w.app.schedule(job, every="1h"))
    assert edited(w.stored("plain"))
    w.work()
    assert w.stored("plain").expr == "1h"


def test_a_schedule_that_the_program_no_longer_names_stays(w: Shop) -> None:
    """Nothing but a person removes or disables a schedule."""
    w.app.every("15m")(w.job(plain))
    w.work()
    again = w.again()
    again.job(plain)
    again.work()
    assert w.listed() == ["plain"]


def test_a_handler_sees_the_instant_that_it_works_for(w: Shop) -> None:
    seen: list[datetime] = []

    def flaky(context: Context) -> None:
        seen.append(context.scheduled_for)
        if len(seen) == 1:
            raise ValueError("not yet")

    w.app.every("15m", jitter=60)(w.job(flaky, backoff=[60]))
    w.work()
    for ms in (15 * MINUTE, MINUTE, MINUTE):  # its instant; at most so much later; the second try
        w.later(ms)
    assert seen == [datetime.fromtimestamp(1_800_000_000 + 15 * 60, UTC)] * 2


def test_a_function_that_is_called_here_and_now_is_for_now(w: Shop) -> None:
    def when(context: Context) -> datetime:
        return context.scheduled_for

    assert w.job(when)() == datetime.fromtimestamp(1_800_000_000, UTC)


# At run time


def test_schedule_stores_at_once_and_the_same_key_updates(w: Shop) -> None:
    job = w.job(plain)
    made = w(w.app.schedule(job, cron="0 3 * * *", key="nightly", zone="Europe/Paris", payload={"to": "bob"}))
    assert made == w.stored("nightly")
    assert (made.code_hash, made.job) == (None, "plain")
    again = w(w.app.schedule(job, every="15m", key="nightly"))
    assert (again.id, again.kind, again.zone, again.payload) == (made.id, "interval", "UTC", {})


def test_K32_a_new_schedule_is_refused_where_its_key_is_taken(w: Shop) -> None:
    job = w.job(plain)
    made = w(w.app.schedule(job, every="15m", new=True))
    with pytest.raises(DuplicateKey, match="There is a schedule 'plain' already"):
        w(w.app.schedule(job, every="1h", new=True))
    assert w.stored("plain") == made
    assert w(w.app.schedule(job, every="1h", key="other", new=True)).key == "other"


@pytest.mark.parametrize("moment", [datetime(2100, 1, 1, 9, tzinfo=UTC), "2100-01-01T09:00Z", "2100-01-01T10:00+01:00"])
def test_once(w: Shop, moment: Any) -> None:
    made = w(w.app.schedule(w.job(plain), at=moment))
    assert (made.kind, made.next_at) == ("once", 4_102_477_200_000)


@pytest.mark.parametrize(
    ("wall", "instant"),
    [
        ((2027, 2, 1, 9, 0), "2027-02-01T08:00Z"),
        ((2027, 3, 28, 2, 30), "2027-03-28T01:00Z"),  # skipped: the first instant after the gap
        ((2027, 10, 31, 2, 30), "2027-10-31T00:30Z"),  # twice: the first
    ],
)
def test_once_without_an_offset_is_on_the_clocks_of_the_zone(w: Shop, wall: tuple[int, ...], instant: str) -> None:
    moment = datetime(*wall)  # type: ignore[arg-type]  # noqa: DTZ001 - the zone is said beside it
    job = w.job(plain)
    for said in (moment, moment.replace(fold=1), moment.isoformat()):
        made = w(w.app.schedule(job, at=said, zone="Europe/Paris"))
        assert (made.kind, made.zone, made.next_at) == ("once", "Europe/Paris", datetime.fromisoformat(instant).timestamp() * 1_000)


def test_once_fires_once(w: Shop) -> None:
    moment = datetime.fromtimestamp(1_800_000_060, UTC)
    w(w.app.schedule(w.job(plain), at=moment))
    for _ in range(3):
        w.later(MINUTE)
    assert [run.due_at for run in w.runs()] == [1_800_000_060_000]
    assert w.stored("plain").next_at is None


def test_a_job_of_another_program_by_its_name(w: Shop) -> None:
    made = w(w.app.schedule("elsewhere", every="15m", payload={"anything": 1}))
    assert (made.key, made.job) == ("elsewhere", "elsewhere")
    w.later(15 * MINUTE)
    (run,) = w.runs()
    assert (run.job, run.state) == ("elsewhere", "queued")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "one rule"),
        ({"every": "1h", "cron": "@daily"}, "one rule"),
        ({"cron": "0 25 * * *"}, "'25' at character 3"),
        ({"cron": "0 0 30 2 *"}, "never due"),
        ({"every": "10ms"}, "below a second"),
        ({"every": "1h", "zone": "Europe/Pariss"}, "no zone"),
        ({"every": "1h", "missed": "some"}, "missed"),
        ({"every": "1h", "overlap": "never"}, "overlap"),
        ({"every": "1h", "jitter": -1}, "jitter"),
        ({"at": datetime(2100, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is refused
        ({"at": "2100-13-01T00:00Z"}, "no instant"),
        ({"every": "1h", "key": ""}, "key"),
    ],
)
def test_what_cannot_be_meant_is_refused(w: Shop, words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        w(w.app.schedule(w.job(plain), **words))
    with pytest.raises(NotFound):
        w.stored("plain")


# By the time that passes


def test_a_worker_really_fires(real: Shop) -> None:
    """Every second, on every store: every run on its second, none twice, none left out, and counted."""
    seen: list[int] = []
    enough = threading.Event()

    def tick(context: Context) -> None:
        seen.append(context.attempt)
        if len(seen) >= 3:
            enough.set()

    real.app.every("1s", missed="all")(real.job(tick))
    real(_until(real.app, enough))
    runs, found = real.runs(), real.stored("tick")
    assert [run.state for run in runs].count(State.SUCCEEDED) >= 3  # the last ones may have come while the worker stopped
    due = [run.due_at for run in runs]
    assert len(set(due)) == len(due) == found.fired >= 3
    assert due == [found.anchor + (n + 1) * 1_000 for n in range(found.fired)]
    assert found.skipped == 0


async def _until(app: Any, enough: threading.Event) -> None:
    async with app.working(slots=2, lease=5, grace=5):
        assert await asyncio.to_thread(enough.wait, DEADLINE)
