"""`windlass schedules`, called as a program would: what it prints, what it stores, and how it ends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.test_cli import EVIL, STYLE, World
from windlass import App
from windlass.api.values import from_rfc3339
from windlass.cli import codes
from windlass.cli.parser import make_parser
from windlass.cli.views import moment
from windlass.model import Options, Schedule
from windlass.store.base import run_sync

ACTIONS = ("list", "add", "set", "enable", "disable", "trigger", "preview", "remove", "skips")
HOUR = 3_600_000


class Shop(World):
    """The world of the other commands, with schedules."""

    def schedule(self, key: str = "nightly") -> Schedule:
        return run_sync(self.engine.get_schedule(key))

    def listed(self) -> dict[str, Any]:
        return {found["key"]: found for found in self.json("schedules", "list")["schedules"]}

    def rows(self) -> dict[str, str]:
        return {row.split()[0]: row for row in self("schedules", "list").splitlines()[1:]}

    def coming(self, *words: str) -> list[str]:
        return [instant["local"] for instant in self.json("schedules", "preview", "nightly", *words)["next"]]

    def start_worker(self, *, every: str = "15m") -> None:
        """A program that defines a schedule begins to work."""
        app = App(self.address)
        app.every(every, key="poll", payload={"to": "ann"})(app.job(name="mail")(_mail))
        app.work(burst=True)
        app.close()


def _mail(to: str) -> None:
    pass


def _make(address: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    world = Shop(address, capsys)
    yield world
    run_sync(world.store.close())


@pytest.fixture
def w(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_STORE", "shop.db")
    yield from _make("shop.db", capsys)


@pytest.fixture
def nightly(w: Shop) -> Shop:
    w("schedules", "add", "nightly", "report", "--cron", "0 3 * * *", "--zone", "Europe/Paris")
    return w


# add, set


def test_add_stores_what_is_said(w: Shop) -> None:
    words = (
        "schedules add nightly report --zone Europe/Paris --missed all --max-missed 7 --max-age 2h --overlap skip --jitter 30s --disabled"
    )
    made = w.json(*words.split(), "--cron", "0 3 * * *", "--payload", '{"month": "May"}')
    found = w.schedule()
    assert (found.job, found.kind, found.expr, found.zone) == ("report", "cron", "0 3 * * *", "Europe/Paris")
    assert (found.missed, found.max_missed, found.max_age, found.overlap, found.jitter) == ("all", 7, 2 * HOUR, "skip", 30_000)
    assert (found.payload, found.enabled, found.next_at, found.code_hash) == ({"month": "May"}, False, None, None)
    assert made == w.listed()["nightly"]
    assert (made["in_words"], made["by_code"], made["edited"]) == ("At 03:00 every day (Europe/Paris)", False, False)


def test_what_is_not_said_is_as_in_the_library(w: Shop) -> None:
    w("schedules", "add", "nightly", "report", "--cron", "0 3 * * *")
    by_engine = run_sync(w.engine.schedule("other", "report", cron="0 3 * * *"))
    fields = ("kind", "expr", "zone", "payload", "options", "missed", "max_missed", "max_age", "overlap", "jitter", "enabled")
    assert [getattr(w.schedule(), name) for name in fields] == [getattr(by_engine, name) for name in fields]


def test_add_says_the_rule_in_words_and_when_it_is_due(w: Shop) -> None:
    printed = w("schedules", "add", "poll", "mail", "--every", "1h30m")
    assert re.fullmatch(r"poll: Every 1 hour 30 minutes; next: in (89|90)m, \d{4}-\d\d-\d\d \d\d:\d\d\n", printed)
    assert printed.notes == ""
    assert w("schedules", "add", "gone", "mail", "--at", "2020-01-31T09:00").endswith("next: never again\n")
    assert w("schedules", "add", "off", "mail", "--every", "1h", "--disabled").endswith("next: not while it is disabled\n")


def test_once_without_an_offset_is_on_the_clocks_of_the_zone(w: Shop) -> None:
    w("schedules", "add", "nightly", "mail", "--at", "2100-01-01T09:00", "--zone", "Asia/Tokyo")
    assert w.schedule().next_at == 4_102_444_800_000
    w("schedules", "set", "nightly", "--at", "2100-01-01T00:00Z")
    assert w.schedule().next_at == 4_102_444_800_000
    w("schedules", "set", "nightly", "--at", "2099-03-29T02:30", "--zone", "Europe/Paris")  # skipped: the first instant after the gap
    assert w.coming() == ["2099-03-29T03:00:00+02:00"]
    w("schedules", "set", "nightly", "--at", "2099-10-25T02:30")  # twice: the first
    assert w.coming() == ["2099-10-25T02:30:00+02:00"]


def test_the_same_key_again_is_the_same_schedule(nightly: Shop) -> None:
    before = nightly.schedule()
    nightly("schedules", "add", "nightly", "mail", "--every", "2h")
    after = nightly.schedule()
    assert (after.id, after.job, after.kind, after.zone) == (before.id, "mail", "interval", "UTC")
    assert len(nightly.listed()) == 1


def test_K32_a_key_that_must_be_new_is_refused_where_it_is_taken(nightly: Shop) -> None:
    before = nightly.schedule()
    assert "already" in nightly("schedules", "add", "nightly", "mail", "--every", "2h", "--new", exits=codes.CONFLICT).notes
    assert nightly.schedule() == before
    nightly("schedules", "add", "other", "mail", "--every", "2h", "--new")
    assert nightly.schedule("other").kind == "interval"


def test_a_job_that_nobody_has_defined_is_spoken_of(w: Shop) -> None:
    assert "Did you mean mail?" in w("schedules", "add", "poll", "mial", "--every", "1h").notes
    assert "will wait" in w("schedules", "set", "poll", "--job", "xyzzy").notes
    assert w("schedules", "set", "poll", "--job", "mail").notes == ""
    assert w.schedule("poll").job == "mail"


def test_set_changes_what_is_said_and_leaves_the_rest(nightly: Shop) -> None:
    words = ["--missed", "skip", "--max-missed", "3", "--max-age", "1h", "--overlap", "queue", "--jitter", "5s", "--payload", '{"a": 1}']
    before = nightly.schedule()
    nightly("schedules", "set", "nightly", *words)
    after = nightly.schedule()
    assert (after.missed, after.max_missed, after.max_age, after.overlap, after.jitter) == ("skip", 3, HOUR, "queue", 5_000)
    assert (after.payload, after.expr, after.zone, after.next_at) == ({"a": 1}, before.expr, before.zone, before.next_at)
    nightly("schedules", "set", "nightly", "--max-age", "none")
    assert (nightly.schedule().max_age, nightly.schedule().overlap) == (None, "queue")


@pytest.mark.parametrize(
    ("words", "kind"), [(["--cron", "@hourly"], "cron"), (["--every", "2h"], "interval"), (["--at", "2100-01-01T00:00Z"], "once")]
)
def test_set_may_give_a_rule_of_another_kind(nightly: Shop, words: list[str], kind: str) -> None:
    nightly("schedules", "set", "nightly", *words)
    assert (nightly.schedule().kind, nightly.schedule().expr) == (kind, words[1])


def test_enable_and_disable(nightly: Shop) -> None:
    assert "disabled" in nightly("schedules", "disable", "nightly")
    assert (nightly.schedule().enabled, nightly.schedule().next_at) == (False, None)
    assert "disabled" in nightly.rows()["nightly"]
    assert nightly.json("schedules", "enable", "nightly")["enabled"] is True
    assert (nightly.schedule().next_at or 0) > nightly.clock.now()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cron", "0 25 * * *"], "'25' at character 3"),
        (["--cron", "0 0 30 2 *"], "never due"),
        (["--cron", "0 3 * * *", "--zone", "Europe/Pariss"], "Did you mean Europe/Paris?"),
        (["--every", "10ms"], "below a second"),
        (["--every", "soon"], "interval"),
        (["--at", "tomorrow"], "no instant"),
        (["--every", "1h", "--payload", "[1]"], "JSON object"),
        (["--every", "1h", "--payload", "{"], "payload"),
        (["--every", "1h", "--max-missed", "0"], "max_missed"),
        (["--every", "1h", "--max-age", "old"], "--max-age"),
        (["--every", "1h", "--missed", "some"], "--missed"),
        (["--every", "1h", "--cron", "@daily"], "not allowed with"),
        ([], "required"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_stored(w: Shop, words: list[str], said: str) -> None:
    assert said in w("schedules", "add", "nightly", "mail", *words, exits=codes.USAGE).notes
    assert w.listed() == {}


def test_set_without_a_word_is_refused(nightly: Shop) -> None:
    assert "nothing to set" in nightly("schedules", "set", "nightly", exits=codes.USAGE).notes


@pytest.mark.parametrize("action", ["set", "enable", "disable", "trigger", "preview", "remove", "skips"])
def test_a_schedule_that_does_not_exist_is_not_found(w: Shop, action: str) -> None:
    more = ["--every", "1h"] if action == "set" else []
    assert "There is no schedule 'none'" in w("schedules", action, "none", *more, exits=codes.NOT_FOUND).notes


# list, skips, trigger, remove


def test_the_list(nightly: Shop) -> None:
    nightly("schedules", "add", "once", "mail", "--at", "2020-01-31T09:00")
    nightly("schedules", "add", "poll", "mail", "--every", "15m")
    head, *rows = nightly("schedules", "list").splitlines()
    assert head.split() == ["key", "job", "rule", "zone", "next", "last", "fired", "skipped", "state"]
    assert re.fullmatch(r"nightly +report +0 3 \* \* \* +Europe/Paris +in \d+[hms]+, [\d-]+ 03:00 +0 +0 +enabled", rows[0])
    assert re.fullmatch(r"once +mail +at 2020-01-31T09:00 +UTC +0 +0 +over", rows[1])
    assert re.fullmatch(r"poll +mail +every 15m +UTC +in \d+[ms]+, [\d-]+ [\d:]+ +0 +0 +enabled", rows[2])
    assert [found["key"] for found in nightly.json("schedules", "list", "--after", "nightly", "--limit", "1")["schedules"]] == ["once"]


def test_an_empty_list(w: Shop) -> None:
    assert "No schedules." in w("schedules", "list").notes
    assert w.json("schedules", "list") == {"schedules": [], "cursor": None}


def test_the_list_shows_whose_word_counts(w: Shop) -> None:
    w.start_worker()
    assert w.rows()["poll"].endswith("enabled, by code")
    w("schedules", "set", "poll", "--every", "30m")
    assert w.rows()["poll"].endswith("enabled, edited")
    w.start_worker()
    assert (w.schedule("poll").expr, w.rows()["poll"][-15:]) == ("30m", "enabled, edited")
    w("schedules", "set", "poll", "--every", "15m")
    assert w.rows()["poll"].endswith("enabled, by code")
    w("schedules", "disable", "poll")
    w.start_worker(every="1h")
    assert (w.schedule("poll").expr, w.rows()["poll"][-16:]) == ("1h", "enabled, by code")


def test_add_over_what_code_defines_is_an_edit(w: Shop) -> None:
    w.start_worker()
    w("schedules", "add", "poll", "mail", "--every", "30m", "--payload", '{"to": "ann"}')
    assert w.rows()["poll"].endswith("enabled, edited")
    w.start_worker()
    assert w.schedule("poll").expr == "30m"


def test_what_fired_and_what_was_skipped_is_counted_and_listed(w: Shop) -> None:
    """Nothing ran for eight days: seven instants and more are skipped, the latest becomes a run."""
    w("schedules", "add", "nightly", "mail", "--cron", "0 3 * * *")
    assert "Nothing was skipped." in w("schedules", "skips", "nightly").notes
    _as_if_last_seen(w, days=8)
    run_sync(w.engine.fire_all())
    found = w.listed()["nightly"]
    assert (found["fired"], found["skipped"] >= 6, found["last_run"] is not None) == (1, True, True)
    (skip,) = w.json("schedules", "skips", "nightly")["skips"]
    assert (skip["number"], skip["reason"]) == (found["skipped"], "missed")
    assert skip["first_at"] < skip["last_at"] < found["last_at"]
    head, row = w("schedules", "skips", "nightly").splitlines()
    assert re.split("  +", head) == ["number", "first due", "last due", "reason", "noticed"]
    assert re.fullmatch(rf"{skip['number']} +[\d-]+ 03:00:00\+00:00 +[\d-]+ 03:00:00\+00:00 +missed +(now|\d+s ago)", row)
    shown = w.json("show", found["last_run"])
    assert shown["due_at"] == shown["scheduled_for"] == found["last_at"]
    assert re.search(rf"^instant +{re.escape(moment(from_rfc3339(found['last_at'], 'last_at')))} ", w("show", found["last_run"]), re.M)
    assert re.search(r"(ago|now) +1 +\d+ +enabled", w.rows()["nightly"])


def _as_if_last_seen(w: Shop, *, days: int) -> None:
    """The schedule stands where it stood so long ago."""
    seen, day = w.schedule(), 24 * HOUR
    assert seen.next_at is not None
    assert run_sync(w.engine.records.schedules.edit(replace(seen, next_at=seen.next_at - days * day), seen, w.clock.now()))


def test_trigger_makes_a_run_now_and_touches_no_instant(nightly: Shop) -> None:
    nightly("schedules", "set", "nightly", "--payload", '{"month": "May"}')
    before = nightly.schedule()
    run = nightly.get(nightly("schedules", "trigger", "nightly").strip())
    assert (run.job, run.state, run.queue, json.loads(run.payload)) == ("report", "queued", "slow", {"format": "pdf", "month": "May"})
    assert nightly.schedule() == before
    assert nightly.json("schedules", "trigger", "nightly")["created"] is True


def test_remove_keeps_the_runs(nightly: Shop) -> None:
    run_id = nightly("schedules", "trigger", "nightly").strip()
    printed = nightly("schedules", "remove", "nightly")
    assert (printed, printed.notes) == ("nightly is removed; its runs stay.\n", "")
    assert nightly.listed() == {}
    assert nightly.get(run_id).state == "queued"


def test_removing_what_code_defines_says_that_it_comes_back(w: Shop) -> None:
    w.start_worker()
    assert "disable it instead" in w("schedules", "remove", "poll").notes
    w.start_worker()
    assert w.json("schedules", "remove", "poll") == {"done": True}


# preview


def test_preview_shows_local_and_utc_and_marks_the_days_of_a_change(nightly: Shop) -> None:
    words, head, *rows = nightly("schedules", "preview", "nightly", "--count", "3", "--from", "2027-03-27T00:00Z").splitlines()
    assert words == "nightly: At 03:00 every day (Europe/Paris)"
    assert head.split() == ["local", "UTC", "when"]
    assert [re.split("  +", row)[:2] for row in rows] == [
        ["2027-03-27 03:00:00+01:00", "2027-03-27 02:00:00Z"],
        ["2027-03-28 03:00:00+02:00", "2027-03-28 01:00:00Z"],
        ["2027-03-29 03:00:00+02:00", "2027-03-29 01:00:00Z"],
    ]
    assert ["changed" in row for row in rows] == [False, True, False]


def test_preview_as_json(nightly: Shop) -> None:
    found = nightly.json("schedules", "preview", "nightly", "--count", "2", "--from", "2027-03-27T02:00Z")
    assert found == {
        "key": "nightly",
        "in_words": "At 03:00 every day (Europe/Paris)",
        "next": [
            {"at": "2027-03-28T01:00:00.000Z", "local": "2027-03-28T03:00:00+02:00", "clock_changes": True},
            {"at": "2027-03-29T01:00:00.000Z", "local": "2027-03-29T03:00:00+02:00", "clock_changes": False},
        ],
        "downtime": None,
    }


def test_preview_begins_now(nightly: Shop) -> None:
    found = nightly.json("schedules", "preview", "nightly")["next"]
    assert len(found) == 10
    assert from_rfc3339(found[0]["at"], "at") == nightly.schedule().next_at


def test_preview_of_what_does_not_fire(w: Shop) -> None:
    w("schedules", "add", "nightly", "mail", "--at", "2020-01-31T09:00")
    assert "Nothing is due any more." in w("schedules", "preview", "nightly")
    w("schedules", "set", "nightly", "--every", "1h", "--disabled")
    assert "It is disabled" in w("schedules", "preview", "nightly").notes
    assert len(w.coming("--count", "3")) == 3


DOWN = ("--count", "3", "--from", "2027-01-02T08:00Z", "--down", "2026-12-24T18:00Z..2027-01-02T08:00Z")


@pytest.mark.parametrize(
    ("words", "skipped", "caught_up"),
    [
        (["--missed", "skip"], 9, 0),
        (["--missed", "latest"], 8, 1),
        (["--missed", "all"], 0, 9),
        (["--missed", "all", "--max-missed", "4"], 5, 4),
        (["--missed", "all", "--max-age", "55h"], 6, 3),
    ],
)
def test_preview_of_a_downtime(nightly: Shop, words: list[str], skipped: int, caught_up: int) -> None:
    """Nine nights are missed; each is skipped or caught up."""
    nightly("schedules", "set", "nightly", *words)
    found = nightly.json("schedules", "preview", "nightly", *DOWN)["downtime"]
    assert (sum(skip["number"] for skip in found["skipped"]), found["caught_up"]["number"]) == (skipped, caught_up)
    assert len(found["caught_up"]["first"]) == min(3, caught_up)
    plain = nightly("schedules", "preview", "nightly", *DOWN).partition("Down from 2026-12-24 19:00:00+01:00 to 2027-01-02 09:00:00+01:00")[
        2
    ]
    assert ("skipped  " in plain) == (skipped > 0)
    assert plain.count("caught up") == min(3, caught_up) + (caught_up > 3)
    assert (f"{caught_up - 3} more" in plain) == (caught_up > 3)


@pytest.mark.parametrize(
    ("overlap", "says"),
    [
        ("allow", "each run is created"),
        ("skip", "each is skipped while"),
        ("queue", "the next one waits"),
        ("cancel", "each cancels those before"),
    ],
)
def test_preview_of_a_downtime_says_what_overlap_makes_of_it(nightly: Shop, overlap: str, says: str) -> None:
    nightly("schedules", "set", "nightly", "--missed", "all", "--overlap", overlap)
    found = nightly.json("schedules", "preview", "nightly", *DOWN)["downtime"]
    assert (found["missed"], found["overlap"], says in found["overlap_means"]) == ("all", overlap, True)
    plain = nightly("schedules", "preview", "nightly", *DOWN)
    assert f"missed = all, overlap = {overlap}\n" in plain
    assert (says in plain) == (overlap != "allow")
    nightly("schedules", "set", "nightly", "--missed", "skip")
    assert says not in nightly("schedules", "preview", "nightly", *DOWN)  # nothing is caught up that could overlap


def test_what_the_preview_of_a_downtime_says_is_what_happens(w: Shop) -> None:
    w("schedules", "add", "nightly", "mail", "--cron", "0 3 * * *", "--missed", "all", "--max-missed", "4")
    _as_if_last_seen(w, days=20)
    seen = w.schedule()
    assert seen.next_at is not None
    fire = run_sync(w.engine.outage("nightly", seen.next_at - 1, w.clock.now()))
    run_sync(w.engine.fire_all())
    assert (w.schedule().fired, w.schedule().skipped) == (4, sum(skip.number for skip in fire.skips))


def test_a_downtime_in_which_nothing_is_due(nightly: Shop) -> None:
    printed = nightly("schedules", "preview", "nightly", "--down", "2027-01-02T08:00Z..2027-01-02T09:00Z")
    assert "Nothing would have been due." in printed


@pytest.mark.parametrize("down", ["2027-01-02", "2027-01-02T09:00..2027-01-02T08:00", "a..b", ".."])
def test_what_is_no_downtime(nightly: Shop, down: str) -> None:
    assert "--down" in nightly("schedules", "preview", "nightly", "--down", down, exits=codes.USAGE).notes


# Help, hostile text, terminals, PostgreSQL


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_help_with_examples_that_can_be_read(w: Shop, action: str) -> None:
    examples = [row.strip() for row in w("schedules", action, "--help").partition("examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", example)]
        assert words[:3] == ["windlass", "schedules", action]
        assert callable(make_parser().parse_args(words[1:]).run)


def test_the_list_of_actions_is_whole(w: Shop) -> None:
    listed = w("schedules", "--help")
    assert set(re.findall(r"^  ([a-z]+) ", listed.partition("commands:\n")[2].partition("\n\n")[0], re.M)) == set(ACTIONS)
    assert w("schedules", exits=codes.USAGE) == listed


def _hostile(w: Shop) -> str:
    key, job = "[red]k[/red]\u202e\x9b31m", "a_job_with_a_name_that_is_far_too_long\x9b2J[b]"
    run_sync(
        w.engine.schedule(
            key, job, cron="0 3 * * *", zone="America/Argentina/Buenos_Aires", payload={EVIL: EVIL}, options=Options(queue="q")
        )
    )
    return key


@pytest.mark.parametrize(
    "words", [*(f"{action} KEY" for action in ACTIONS[2:]), "list", "list --json", "preview KEY --json", "add KEY JOB"]
)
def test_hostile_text_is_shown_and_does_nothing(w: Shop, words: str) -> None:
    key = _hostile(w)
    more = {"set": ["--missed", "all"], "add": ["--every", "1h"]}.get(words.split()[0], [])
    printed = w("schedules", *(key if word == "KEY" else word for word in words.split()), *more)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed + printed.notes)
    assert "[red]k[/red]" in printed or words.split()[0] in ("trigger", "skips")


def test_eighty_columns_are_enough(w: Shop, on_a_terminal: Callable[..., str]) -> None:
    _hostile(w)
    w("schedules", "add", "poll", "mail", "--every", "15m")
    plain = STYLE.sub("", on_a_terminal("schedules", "list"))
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert re.search(r"^poll +mail +every 1.* in 1\dm.* 0 +0 +enabled *$", plain, re.M)
    drawn = STYLE.sub("", on_a_terminal("schedules", "preview", "poll", "--count", "2"))
    assert max(map(len, drawn.splitlines())) <= 80


def test_a_zone_that_this_machine_does_not_know_hides_nothing(nightly: Shop) -> None:
    """The store may have been written where the tz database is newer."""
    run_sync(nightly.engine.records.schedules.edit(_elsewhere(nightly.schedule()), nightly.schedule(), nightly.clock.now()))
    assert "Europe/Nowhere" in nightly.rows()["nightly"]
    assert nightly.listed()["nightly"]["in_words"] == "0 3 * * * (Europe/Nowhere)"
    assert "on this machine" in nightly("schedules", "preview", "nightly", exits=codes.USAGE).notes


def _elsewhere(schedule: Schedule) -> Schedule:
    return replace(schedule, zone="Europe/Nowhere")


def test_on_postgresql(emptied_postgres: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_STORE", emptied_postgres)
    for w in _make(emptied_postgres, capsys):
        w("schedules", "add", "nightly", "mail", "--cron", "0 3 * * *", "--payload", '{"to": "ann"}', "--missed", "all")
        w("schedules", "set", "nightly", "--zone", "Asia/Tokyo")  # where the clock is never changed
        _as_if_last_seen(w, days=3)
        run_sync(w.engine.fire_all())
        assert w.listed()["nightly"]["fired"] == 3
        assert len(w.coming("--count", "5")) == 5
        w("schedules", "disable", "nightly")
        assert w.json("schedules", "skips", "nightly")["skips"] == []
        w("schedules", "trigger", "nightly")
        w("schedules", "remove", "nightly")
        assert len(w.json("runs")["runs"]) == 4


def test_the_store_of_the_command_line(w: Shop) -> None:
    assert "windlass migrate" in w("schedules", "list", "--store", "other.db", exits=codes.UNREACHABLE).notes
    assert w("schedules", "--store", "shop.db", "list").notes == "No schedules.\n"
