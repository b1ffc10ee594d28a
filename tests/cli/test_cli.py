"""The command line, called as a program would: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.forks import read_terminal
from windlass import cli
from windlass.cli import codes, context, runs, work
from windlass.cli.context import CommandContext, actor
from windlass.cli.index import INDEX
from windlass.cli.output import as_json, clean, line
from windlass.cli.parser import make_parser
from windlass.cli.reload import SUPERVISED, changed, stamps
from windlass.cli.rows import TOPICS
from windlass.cli.targets import BadModule, find_target
from windlass.cli.views import ago, span
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.config.settings import SLOTS
from windlass.engine import Engine, lists
from windlass.errors import BadInput, WindlassError
from windlass.machine import Fail, Succeed
from windlass.model import Failure, LogLine, NewRun, Options, Run, Solver, State, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held, fault_points

ROOT = Path(__file__).parents[2]
EVIL = "[red]a[/red]\x1b[2J\x1b]0;b\x07\x9b31m\u202e\x7f"
COMMANDS = (
    "migrate", "backup", "restore", "work", "up", "hub", "enqueue", "runs", "show", "logs", "why", "cancel", "move", "rerun", "jobs",
    "groups", "pause", "resume", "pauses", "queues", "resources", "lanes", "retention", "slots", "slot", "workers", "stats", "doctor",
    "schedules", "webhooks", "tokens", "audit", "config", "faults", "completion", "dialects",
    "dispatch", "consume",
)  # fmt: skip


class Printed(str):
    """What a command printed, without blanks at the ends of its lines, and what it said beside it."""

    __slots__ = ("notes",)
    notes: str


class World:
    """A folder with a store in it, the command line, and a worker beside it."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address, self._capsys = address, capsys
        self.clock = SystemClock()
        self.store = open_store(address, self.clock, blocking=True)
        self.engine = Engine(self.store, self.clock)
        run_sync(self.engine.define("mail", options=Options(max_attempts=1)))
        run_sync(self.engine.define("report", payload={"format": "pdf"}, options=Options(queue="slow")))

    def __call__(self, *words: str, exits: int = 0) -> Printed:
        code = cli.main(list(words))
        captured = self._capsys.readouterr()
        assert code == exits, captured.out + captured.err
        printed = Printed(re.sub(" +$", "", captured.out, flags=re.M))
        printed.notes = captured.err
        return printed

    def json(self, *words: str, exits: int = 0) -> Any:
        """The one JSON document that a command prints on one line."""
        printed = self(*words, "--json", exits=exits)
        assert printed.notes == ""
        assert printed.count("\n") == 1
        return json.loads(printed)

    def create(self, job: str = "mail", payload: Any = None, **fields: Any) -> str:
        return run_sync(self.engine.create([NewRun(job, payload, **fields)], undefined="wait"))[0].id

    def get(self, run_id: str) -> Run:
        return run_sync(self.engine.get(run_id))

    def started(self, *lines: str) -> Run:
        """The next run, in a worker's hands, with these lines in its log."""
        (run,) = run_sync(self.engine.claim(WorkerInfo("w1", slots=100)))
        run_sync(self.engine.start(run.id, run.token or ""))
        self.log(run, *lines)
        return self.get(run.id)

    def log(self, run: Run, *lines: str, first: int = 1) -> None:
        run_sync(self.engine.log(run.id, run.token or "", list(enumerate(lines, first))))

    def succeed(self, run: Run, output: str | None = None) -> None:
        run_sync(self.engine.report(run.id, Succeed(token=run.token, output=output)))

    def fail(self, run: Run, error: Failure) -> None:
        run_sync(self.engine.report(run.id, Fail(token=run.token, error=error)))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def w(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("WINDLASS_STORE", "shop.db")
    world = World("shop.db", capsys)
    yield world
    run_sync(world.store.close())


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Printed]:
    """The command line alone."""
    return World.__call__.__get__(SimpleNamespace(_capsys=capsys))  # type: ignore[no-any-return]


def _meanwhile(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Each time the command waits, the next of these happens instead of time passing."""
    remaining = iter(steps)
    monkeypatch.setattr(CommandContext, "pause", lambda _context, _seconds: next(remaining)())


def _both(*steps: Callable[[], None]) -> None:
    for step in steps:
        step()


# The store


def test_migrate_makes_a_store_once(call: Callable[..., Printed]) -> None:
    assert "shop.db has schema version" in call("migrate", "--store", "shop.db")
    assert "shop.db is up to date" in call("--store", "shop.db", "migrate")
    answer = json.loads(call("migrate", "--store", "shop.db", "--json"))
    assert answer["store"] == "shop.db"
    assert answer["before"] == answer["after"] > 0


@pytest.mark.parametrize("words", [("runs",), ("jobs",), ("enqueue", "mail"), ("show", "x"), ("cancel", "x")], ids=lambda words: words[0])
def test_a_store_that_is_not_there_is_not_made(call: Callable[..., Printed], words: tuple[str, ...]) -> None:
    assert "windlass migrate --store shop.db" in call(*words, "--store", "shop.db", exits=codes.UNREACHABLE).notes
    assert not Path("shop.db").exists()


def test_the_store_when_nobody_names_one(call: Callable[..., Printed]) -> None:
    assert "There is no file windlass.db" in call("runs", exits=codes.UNREACHABLE).notes
    assert "windlass.db has schema version" in call("migrate")
    assert json.loads(call("runs", "--json")) == {"runs": [], "cursor": None, "looked_at": None}


def test_the_store_of_the_file_of_settings(w: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_id = w.create()
    monkeypatch.delenv("WINDLASS_STORE")
    Path("windlass.toml").write_text('store = "shop.db"', encoding="utf-8")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert w.json("runs")["runs"][0]["id"] == run_id


def test_backup_and_restore(w: World) -> None:
    run_id = w.create()
    assert "monday.db" in w("backup", "monday.db")
    assert "exists" in w("backup", "monday.db", exits=codes.FAILED).notes
    assert "--replace" in w("restore", "monday.db", exits=codes.FAILED).notes
    w.create()
    run_sync(w.store.close())
    assert w.json("restore", "monday.db", "--replace") == {"source": "monday.db", "target": "shop.db"}
    assert [run["id"] for run in w.json("runs")["runs"]] == [run_id]
    w("restore", "monday.db", "--store", "other.db")
    assert [run["id"] for run in w.json("runs", "--store", "other.db")["runs"]] == [run_id]


def test_a_file_in_use_is_not_replaced(w: World) -> None:
    w("backup", "monday.db")
    assert "open" in w("restore", "monday.db", "--replace", exits=codes.UNREACHABLE).notes


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_copies_are_for_files(call: Callable[..., Printed], command: str) -> None:
    assert "pg_" in call(command, "x.db", "--store", "postgresql://u:secret@h/d", exits=codes.USAGE).notes
    assert "memory" in call(command, "x.db", "--store", ":memory:", exits=codes.USAGE).notes


# enqueue


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        ([], None),
        (['{"to": "ann"}'], {"to": "ann"}),
        (["[1, 2]"], [1, 2]),
        (["null"], None),
        (['"a=b"'], "a=b"),
        (["to=ann"], {"to": "ann"}),
        (["to=ann", "copies=2", "urgent=true", "tags=[1]", "zip=01234", 'id="7"', "empty=", "x=a=b"],
         {"to": "ann", "copies": 2, "urgent": True, "tags": [1], "zip": "01234", "id": "7", "empty": "", "x": "a=b"}),
    ],
)  # fmt: skip
def test_a_payload_is_json_or_pairs(words: list[str], payload: Any) -> None:
    assert runs.payload_of(words) == payload


@pytest.mark.parametrize("words", [["{"], ["to"], ["a=1", "a=2"], ["a=1", "b"], ["a=1", "-"], ["NaN"], ['{"a":1,"a":2}']])
def test_what_is_no_payload_is_refused(words: list[str]) -> None:
    with pytest.raises(BadInput):
        runs.payload_of(words)


def test_a_payload_from_standard_input(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"to": "änn"}'.encode())))
    assert json.loads(w.get(w("enqueue", "mail", "-").strip()).payload) == {"to": "änn"}


def test_enqueue_prints_the_id_alone(w: World) -> None:
    printed = w("enqueue", "report", "month=May")
    assert re.fullmatch(r"[0-9a-f-]{36}\n", printed)
    assert printed.notes == ""
    assert json.loads(w.get(printed.strip()).payload) == {"format": "pdf", "month": "May"}


def test_words_of_the_payload_may_stand_behind_options(w: World) -> None:
    run = w.get(w("enqueue", "mail", "a=1", "--queue", "fast", "b=2", "--priority", "5", "c=3").strip())
    assert json.loads(run.payload) == {"a": 1, "b": 2, "c": 3}
    assert (run.queue, run.priority) == ("fast", 5)


def test_what_a_run_may_say_itself(w: World) -> None:
    first = w.create()
    made = w.json("enqueue", "mail", "--max-attempts", "7", "--after", first, "--key", "k")
    run = w.get(made["id"])
    assert made == {"id": run.id, "created": True, "pruned": False, "run": None}
    assert (run.max_attempts, run.state) == (7, "waiting")
    again = w("enqueue", "mail", "--key", "k")
    assert again.strip() == run.id
    assert "key" in again.notes


def test_meta_is_one_json_object(w: World) -> None:
    run = w.get(w("enqueue", "mail", "--meta", '{"user": "ann"}').strip())
    assert run.meta == '{"user":"ann"}'
    assert '{"user": "ann"}' in w("show", run.id)
    assert w.json("show", run.id)["meta"] == {"user": "ann"}
    assert "meta" in w("enqueue", "mail", "--meta", "{ann}", exits=codes.USAGE).notes
    assert "meta must be a JSON object" in w("enqueue", "mail", "--meta", "[1]", exits=codes.USAGE).notes


def test_a_program_may_be_named_without_a_checksum_but_not_by_a_checksum_alone(w: World) -> None:
    made = w.get(w("enqueue", "mail", "--solver-url", "https://example.com/x").strip())
    assert made.policy.solver == Solver("https://example.com/x")
    assert "names no program" in w("enqueue", "mail", "--solver-checksum", "a" * 64, exits=codes.USAGE).notes


def test_later(w: World) -> None:
    before = w.clock.now()
    delayed = w.get(w("enqueue", "mail", "--delay", "1h30m").strip())
    assert before + 5_400_000 <= delayed.due_at <= w.clock.now() + 5_400_000
    assert w.get(w("enqueue", "mail", "--at", "2100-01-01T00:00:00Z").strip()).due_at == 4_102_444_800_000
    assert w.get(w("enqueue", "mail", "--at", "2100-01-01T01:00+01:00").strip()).due_at == 4_102_444_800_000
    w("enqueue", "mail", "--delay", "1h", "--at", "2100-01-01T00:00:00Z", exits=codes.USAGE)


def test_an_unknown_job_is_not_found_and_the_nearest_is_named(w: World) -> None:
    assert "Did you mean mail?" in w("enqueue", "mial", exits=codes.NOT_FOUND).notes
    assert "--undefined wait" in w("enqueue", "xyzzy", exits=codes.NOT_FOUND).notes
    assert w.get(w("enqueue", "xyzzy", "--undefined", "wait").strip()).job == "xyzzy"


def test_waiting_for_a_success_prints_the_output(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _meanwhile(monkeypatch, lambda: None, lambda: w.succeed(w.started(), '{"pages": 12}'))
    printed = w("enqueue", "mail", "--wait")
    assert printed == '{"pages": 12}\n'
    assert "Waiting" in printed.notes


def test_waiting_for_a_failure_says_why(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _meanwhile(monkeypatch, lambda: w.fail(w.started(), Failure("smtp", "no route")))
    printed = w("enqueue", "mail", "--wait", exits=codes.FAILED)
    assert printed == ""
    assert "failed: smtp: no route" in printed.notes


def test_waiting_ends_with_its_time(w: World) -> None:
    assert "has not ended" in w("enqueue", "mail", "--wait", "--timeout", "0", exits=codes.TIMED_OUT).notes
    assert w.json("enqueue", "mail", "--wait", "--timeout", "0s", exits=codes.TIMED_OUT)["state"] == "queued"


def test_waiting_as_json_prints_the_run(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _meanwhile(monkeypatch, lambda: w.fail(w.started(), Failure("smtp", "no route", "trace")))
    run = w.json("enqueue", "mail", "--wait", exits=codes.FAILED)
    assert run["state"] == "failed"
    assert run["error"] == {"code": "smtp", "message": "no route", "detail": "trace"}


def test_ctrl_c_while_waiting_leaves_the_run(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    _meanwhile(monkeypatch, interrupt)
    w("enqueue", "mail", "--wait", exits=codes.INTERRUPTED)
    assert w.json("runs")["runs"][0]["state"] == "queued"


# runs, show, logs, why


def test_runs_by_filters_and_pages(w: World) -> None:
    ids = [w.create() for _ in range(5)]
    slow = w.create("report")
    assert [run["id"] for run in w.json("runs")["runs"]] == [slow, *reversed(ids)]
    assert [run["id"] for run in w.json("runs", "--job", "report")["runs"]] == [slow]
    assert [run["id"] for run in w.json("runs", "--state", "queued", "--queue", "slow")["runs"]] == [slow]
    assert w.json("runs", "--state", "failed")["runs"] == []
    page = w.json("runs", "--limit", "4")
    rest = w.json("runs", "--limit", "4", "--cursor", page["cursor"])
    assert [run["id"] for run in page["runs"] + rest["runs"]] == [slow, *reversed(ids)]
    assert rest["cursor"] is None
    assert page["cursor"] in w("runs", "--limit", "4").notes


def test_runs_as_a_table(w: World) -> None:
    run_id = w.create("report")
    head, row = w("runs").splitlines()
    assert head.split() == ["id", "state", "job", "tries", "when"]
    assert row.split()[:6] == [run_id, "queued", "report", "in", "slow", "0/5"]
    assert row.rstrip().endswith(("now", "ago"))
    assert "No runs." in w("runs", "--state", "failed").notes


def test_runs_are_listed_by_any_filters(w: World) -> None:
    failed, queued = w.create(), w.create("report")
    w.fail(w.started(), Failure("boom", "Connection refused"))
    for words, expected in (
        (("--state", "failed", "--state", "queued"), [queued, failed]),
        (("--job", "report", "--queue", "slow"), [queued]),
        (("--job", "report", "--queue", "default"), []),
        (("--error", "boom", "--worker", "w1"), [failed]),
        (("--search", "REFUSED"), [failed]),
        (("--search", failed[-8:], "--since", "1h", "--until", "2199-01-01T00:00"), [failed]),
        (("--ended-since", "1h"), [failed]),
        (("--ended-until", "1h"), []),
        (("--since", "2199-01-01T00:00"), []),
        (("--tag", "gpu"), []),
        (("--key", "none"), []),
    ):
        assert [run["id"] for run in w.json("runs", *words)["runs"]] == expected, words
    assert "no group none" in w("runs", "--group", "none", exits=codes.NOT_FOUND).notes
    assert "neither a time such as" in w("runs", "--since", "soon", exits=codes.USAGE).notes


def test_few_runs_among_many_are_found_page_by_page(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [w.create("report") for _ in range(3)]
    for _ in range(6):
        w.create()
    monkeypatch.setattr(lists, "WALK", 2)
    monkeypatch.setattr(lists, "FIRST_LOOK", 1)
    words = ("runs", "--search", wanted[0][:10], "--state", "queued", "--state", "failed", "--queue", "default")
    assert len(w.json(*words)["runs"]) == 6
    monkeypatch.setattr(runs, "PAGES", 2)
    printed = w(*words, "--worker", "none")
    assert "No runs." in printed.notes
    assert "This is all as far as " in printed.notes
    assert "--cursor" in printed.notes


def test_runs_of_a_queue_in_some_states(w: World) -> None:
    first, second = w.create(), w.create()
    w("cancel", first)
    w.succeed(w.started())
    third = w.create()
    for words, expected in (((), [third, second, first]), (("cancelled", "queued"), [third, first]), (("succeeded",), [second])):
        states = [part for state in words for part in ("--state", state)]
        assert [run["id"] for run in w.json("runs", "--queue", "default", *states)["runs"]] == expected


def test_watching_needs_a_terminal(w: World) -> None:
    assert "terminal" in w("runs", "--watch", exits=codes.USAGE).notes


def test_attempts_show_what_they_ran_with_and_are_rerun_with_it(w: World) -> None:
    run_sync(w.engine.define("twice", options=Options(backoff=(0,), max_attempts=2)))
    run_id = w.create("twice", payload={"to": "ann"})
    w.fail(w.started(), Failure("smtp", "no route"))
    assert "payload" not in w("show", run_id).partition("Attempts")[2]
    run_sync(w.engine.patch(run_id, payload={"to": "bob"}))
    assert '{"to": "ann"}' in w("show", run_id).partition("Attempts")[2]
    assert [attempt.get("payload") for attempt in w.json("show", run_id)["attempts"]] == [{"to": "ann"}, None]
    w("rerun", run_id, exits=codes.CONFLICT)
    again = w.get(w("rerun", run_id, "--attempt", "1").strip())
    assert (again.payload, again.retry_of) == ('{"to":"ann"}', run_id)
    w("rerun", run_id, "--attempt", "3", exits=codes.NOT_FOUND)


def test_show_knows_everything_but_the_token(w: World) -> None:
    w.create(payload={"to": "ann"})
    run = w.started("one", "two")
    held = Held(run.seq, run.token or "")
    run_sync(w.engine.beat([held], progress={held: '{"fraction": 0.4, "message": "half way"}'}))
    plain = w("show", run.id)
    for part in (run.id, "running 40%", "40%  half way", "w1", '{"to": "ann"}', "create", "claim", "start", "one", "two"):
        assert part in plain
    w.fail(run, Failure("smtp", "no route", "Traceback:\n  line 1\n  line 2"))
    plain = w("show", run.id)
    for part in ("failed", "smtp: no route", "  Traceback:\n    line 1\n    line 2", "1 of 1 used up"):
        assert part in plain
    shown = w.json("show", run.id)
    assert shown["progress"] == {"fraction": 0.4, "message": "half way"}
    assert shown["payload"] == {"to": "ann"}
    assert [entry["move"] for entry in shown["history"]] == ["create", "claim", "start", "fail"]
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["failed"]
    assert [log["line"] for log in shown["log"]] == ["one", "two"]
    assert (run.token or "?") not in plain + json.dumps(shown)


def test_show_has_the_steps_of_a_run(w: World) -> None:
    w.create()
    run = w.started()
    assert "Steps" not in w("show", run.id)
    for key, output in (("charge", '{"receipt": 7}'), ("\x1b[31mship", '"\\u001b[31mred"')):
        run_sync(w.engine.store_step(run.id, run.token or "", key.replace("\x1b", ""), output))
    steps = w("show", run.id).partition("Steps")[2].partition("History")[0]
    assert [line.split()[1:] for line in steps.strip().splitlines()[1:]] == [
        ["charge", '{"receipt":', "7}"],
        ["[31mship", '"\\u001b[31mred"'],
    ]
    shown = w.json("show", run.id)["steps"]
    assert [(step["key"], step["output"], step["n"]) for step in shown] == [("charge", {"receipt": 7}, 1), ("[31mship", "\x1b[31mred", 2)]


def test_the_newest_run(w: World) -> None:
    assert "no runs" in w("show", "--last", exits=codes.NOT_FOUND).notes
    w.create()
    run_id = w.create()
    assert w.json("show", "--last")["id"] == run_id
    w("show", exits=codes.USAGE)
    w("show", run_id, "--last", exits=codes.USAGE)


@pytest.mark.parametrize(
    "progress", ["7", '{"fraction": "x"}', '{"fraction": null}', "[]", '{"fraction": true}', '{"fraction": 9e99, "message": 3}']
)
def test_strange_progress_is_no_trouble(w: World, progress: str) -> None:
    w.create()
    run = w.started()
    held = Held(run.seq, run.token or "")
    run_sync(w.engine.beat([held], progress={held: progress}))
    w("show", run.id)
    w("runs")
    assert w.json("show", run.id)["progress"] == json.loads(progress)


@pytest.mark.parametrize(("fraction", "words"), [("9e99", "100%"), ("-1", "0%"), ("0.999", "100%"), ("0", "0%")])
def test_progress_stays_between_nothing_and_all(w: World, fraction: str, words: str) -> None:
    w.create()
    run = w.started()
    held = Held(run.seq, run.token or "")
    run_sync(w.engine.beat([held], progress={held: f'{{"fraction": {fraction}}}'}))
    assert f"running {words}" in w("show", run.id)


def test_logs(w: World) -> None:
    w.create()
    run = w.started(*(f"line {n}" for n in range(1, 1_001)))
    w.log(run, "line 1001", first=1_001)  # more than a page
    printed = w("logs", run.id).splitlines()
    assert [text.split(" ", 1)[1] for text in printed] == [f"line {n}" for n in range(1, 1_002)]
    assert [log["n"] for log in w.json("logs", run.id, "--tail", "2")["lines"]] == [1_000, 1_001]
    assert [log["n"] for log in w.json("show", run.id, "--tail", "1")["log"]] == [1_001]


def test_the_log_of_one_attempt(w: World) -> None:
    w.create("again", options=Options(backoff=(0,)))
    first = w.started("one", "two")
    w.fail(first, Failure("smtp", "no route"))
    w.started("three", "four")
    assert [log["line"] for log in w.json("logs", first.id, "--attempt", "1")["lines"]] == ["one", "two"]
    assert [log["line"] for log in w.json("logs", first.id, "--attempt", "1", "--tail", "1")["lines"]] == ["two"]
    assert [log["line"] for log in w.json("logs", first.id, "--tail", "3")["lines"]] == ["two", "three", "four"]


def test_following_a_log_until_the_end(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.create()
    run = w.started("one")
    _meanwhile(
        monkeypatch,
        lambda: w.log(run, "two", first=2),
        lambda: None,
        lambda: _both(lambda: w.log(run, "three", first=3), lambda: w.succeed(run)),
    )
    printed = w("logs", run.id, "--follow")
    assert [text.split(" ", 1)[1] for text in printed.splitlines()] == ["one", "two", "three"]


def test_following_as_json_lines_tells_a_bad_end_by_the_code(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.create()
    run = w.started("one", "two")
    _meanwhile(monkeypatch, lambda: _both(lambda: w.log(run, "three", "four", first=3), lambda: w.fail(run, Failure("smtp", "no route"))))
    printed = w("logs", run.id, "-f", "--json", "--tail", "1", exits=codes.FAILED)
    assert [json.loads(text)["line"] for text in printed.splitlines()] == ["two", "three", "four"]


def test_a_line_written_just_before_the_end_is_not_missed(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.create()
    run = w.started("one")
    _meanwhile(monkeypatch, lambda: None)
    read = runs._lines

    def read_and_then(context: CommandContext, run_id: str, after: tuple[int, int], **how: Any) -> Iterator[LogLine]:
        yield from read(context, run_id, after, **how)
        if after == (0, 0):  # the command has seen all lines, and not yet the end
            _both(lambda: w.log(run, "two", first=2), lambda: w.succeed(run))

    monkeypatch.setattr(runs, "_lines", read_and_then)
    assert [text.split(" ", 1)[1] for text in w("logs", run.id, "-f").splitlines()] == ["one", "two"]


def test_a_command_closes_its_store_however_it_ends(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    close, closed = Engine.close, list[Engine]()

    async def close_and_count(engine: Engine) -> None:
        closed.append(engine)
        await close(engine)

    monkeypatch.setattr(Engine, "close", close_and_count)
    w("show", w.create())
    w("show", "nothing", exits=codes.NOT_FOUND)
    assert len(closed) == 2


def test_why(w: World) -> None:
    run_id = w.create()
    assert "No worker is running. Start one: windlass work" in w("why", run_id)
    assert [reason["code"] for reason in w.json("why", run_id)["reasons"]] == ["no_worker"]
    run_sync(w.engine.register(WorkerInfo("w1")))
    assert "can take it now" in w("why", run_id)
    later = w.create(due_at=w.clock.now() + 7_200_500)
    assert "It is due in 2h, at 20" in w("why", later)


def test_cancel(w: World) -> None:
    run_id = w.create()
    assert w("cancel", run_id, "--reason", "ordered twice") == "cancelled\n"
    assert "rerun" in w("cancel", run_id, exits=codes.CONFLICT).notes
    shown = w.json("show", run_id)
    assert shown["reason"] == "ordered twice"
    assert shown["history"][-1]["detail"]["by"] == actor()
    w.create()
    run = w.started()
    assert "asked to stop" in w("cancel", run.id)
    assert w.json("cancel", run.id)["state"] == "cancelling"


def test_rerun(w: World) -> None:
    run_id = w.create(payload={"a": 1})
    w("rerun", run_id, exits=codes.CONFLICT)
    w("cancel", run_id)
    again = w.get(w("rerun", run_id).strip())
    assert (again.retry_of, again.state, again.payload) == (run_id, "queued", '{"a":1}')
    assert w.json("rerun", run_id)["created"] is True


def test_jobs(w: World) -> None:
    w.create("nobody")
    assert [(job["name"], job["handler"]) for job in w.json("jobs")["jobs"]] == [("mail", "mail"), ("nobody", None), ("report", "report")]
    assert w.json("jobs", "--after", "nobody")["jobs"][0]["options"] == {"queue": "slow"}
    rows = [row.split() for row in w("jobs").splitlines()]
    assert rows[1:] == [
        ["mail", "default", "1", "mail"],
        ["nobody", "default", "5", "not", "defined", "yet"],
        ["report", "slow", "5", "report"],
    ]


@pytest.mark.parametrize("command", ["show", "logs", "why", "cancel", "rerun"])
def test_what_does_not_exist_is_not_found(w: World, command: str) -> None:
    assert "There is no run 0123" in w(command, "0123", exits=codes.NOT_FOUND).notes
    w(command, "no id", exits=codes.USAGE)


# config, faults


def test_config_shows_values_and_sources(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PATIENCE", 0.0)  # there is no such server
    monkeypatch.setenv("WINDLASS_STORE", "postgresql://ann:secret@db/shop")
    Path("windlass.toml").write_text('queues = ["a", "b"]\nlease = "90s"', encoding="utf-8")
    rows = {row.split()[0]: row.split()[1:] for row in w("config").splitlines()}
    assert rows["store"] == ["postgresql://ann:***@db/shop", "WINDLASS_STORE"]
    assert rows["queues"][:2] == ["a,", "b"]
    assert rows["queues"][-2].endswith("windlass.toml:")
    assert rows["lease"][0] == "90s"
    assert rows["slots"] == [str(SLOTS), "default"]
    assert rows["name"] == ["-"]
    shown = w.json("config", "--store", "shop.db")["settings"]
    assert shown["store"] == {"value": "shop.db", "source": "the argument store"}
    assert shown["lease"]["value"] == 90_000
    assert shown["name"] == {"value": None, "source": "default"}
    assert "secret" not in w("config") + w("config", "--json")


def test_a_bad_setting_is_a_usage_error(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SLOT", "3")
    assert "WINDLASS_SLOTS" in w("runs", exits=codes.USAGE).notes


def test_faults(call: Callable[..., Printed]) -> None:
    points = call("faults", "list").split()
    assert {*fault_points("sqlite"), *fault_points("postgres"), "migrate.between_steps"} <= set(points)
    assert json.loads(call("faults", "list", "--json")) == {"points": points}


# Errors and exit codes


def test_errors_are_json_where_json_is_asked_for(w: World) -> None:
    printed = w("show", "0123", "--json", exits=codes.NOT_FOUND)
    assert printed == ""
    assert json.loads(printed.notes)["error"]["code"] == "not_found"


def test_a_traceback_only_on_demand(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in w("show", "0123", exits=codes.NOT_FOUND).notes
    monkeypatch.setenv("WINDLASS_DEBUG", "1")
    assert "Traceback" in w("show", "0123", exits=codes.NOT_FOUND).notes


def test_a_bug_is_an_error_without_a_traceback(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.views.run_table", lambda *_: int("x"))
    w.create()
    notes = w("runs", exits=codes.FAILED).notes
    assert "ValueError" in notes
    assert "WINDLASS_DEBUG=1" in notes
    assert "Traceback" not in notes


def _all_errors(kind: type[WindlassError] = WindlassError) -> Iterator[type[WindlassError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_errors(below)


def test_every_error_has_a_documented_code() -> None:
    found = {kind.code: codes.code_of(kind.__new__(kind)) for kind in _all_errors()}
    assert set(found.values()) <= set(codes.MEANINGS)
    wanted = {"bad_input": 2, "not_found": 3, "pruned": 3, "unknown_job": 3, "wrong_state": 4, "lease_lost": 4, "duplicate_key": 4}
    wanted |= {"store_unreachable": 5, "store_busy": 5, "store_broken": 1, "internal": 1, "schema_mismatch": 1}
    assert wanted.items() <= found.items()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_can_be_read(call: Callable[..., Printed], command: str) -> None:
    text = call(command, "--help")
    examples = [row.strip() for row in text.partition("examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        words = re.findall(r"'[^']*'|\S+", example.rpartition("| ")[2])
        assert words[0] == "windlass"
        make_parser().parse_args([word.strip("'") for word in words[1:]])


def test_the_list_of_commands_is_whole(call: Callable[..., Printed]) -> None:
    text = call("--help")
    listed = {topic: re.findall(r"^  ([a-z]+) ", text.partition(f"\n{topic}:\n")[2].partition("\n\n")[0], re.M) for topic in TOPICS}
    assert sorted(name for names in listed.values() for name in names) == sorted(COMMANDS)
    assert all(listed.values())
    for code, meaning in codes.MEANINGS.items():
        assert f"{code}  {meaning}" in text


def test_without_a_command_there_is_help(call: Callable[..., Printed]) -> None:
    assert call(exits=codes.USAGE) == call("--help")
    assert call("--json", exits=codes.USAGE) == call("--help")


EXAMPLES = "windlass {} --help has examples."
LISTS = "windlass{} --help lists the commands."
STATES = ", ".join(State)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("dance", "windlass has no command 'dance'.", LISTS.format("")),
        ("help", "windlass has no command 'help'.", LISTS.format("")),
        ("retry ID", "windlass has no command 'retry'.", "Try windlass rerun: create a new run from an ended one, and print its id."),
        ("Serve", "windlass has no command 'Serve'.", "Try windlass hub: serve the HTTP API and the page until Ctrl-C or SIGTERM."),
        ("schedule", "windlass has no command 'schedule'.", "Try windlass schedules: list, add, change"),
        ("tasks", "windlass has no command 'tasks'.", "Try windlass runs: list runs, newest first; or windlass jobs: list the jobs "),
        ("schedules delete x", "windlass schedules has no command 'delete'.", "Try windlass schedules remove: remove a schedule"),
        ("schedules prevew x", "windlass schedules has no command 'prevew'.", "Try windlass schedules preview: "),
        ("schedules sing", "windlass schedules has no command 'sing'.", LISTS.format(" schedules")),
        ("runs --stat failed", "windlass runs has no option --stat.", "--state may be meant: "),
        ("runs --stat=failed", "windlass runs has no option --stat.", "--state may be meant: "),
        ("runs --dance", "windlass runs has no option --dance.", EXAMPLES.format("runs")),
        ("runs x", "windlass runs does not take 'x'.", EXAMPLES.format("runs")),
        ("runs --limit 0", "--limit: '0' is not a number from 1 to 1,000.", EXAMPLES.format("runs")),
        ("runs --limit", "--limit: expected one argument.", EXAMPLES.format("runs")),
        ("runs --state faild", "--state does not take 'faild'.", f"'failed' may be meant. It takes {STATES}."),
        ("completion tcsh", "SHELL does not take 'tcsh'.", "It takes bash, zsh, fish."),
        ("cancel", "windlass cancel needs ID.", EXAMPLES.format("cancel")),
        ("--queue mail runs", "--queue cannot stand before the command.", "Write it after the command: windlass COMMAND --queue. "),
        ("--store x.db --wat runs", "--wat cannot stand before the command.", "Write it after the command: windlass COMMAND --wat. "),
        ("slot gpu --wat -- true", "windlass slot has no option --wat.", EXAMPLES.format("slot")),
        ("slot gpu --wieght 2 -- true", "windlass slot has no option --wieght.", "--weight may be meant: how much of the resource "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_command_line_is_named_with_what_may_be_meant(
    call: Callable[..., Printed], words: str, message: str, hint: str
) -> None:
    notes = call(*words.split(), exits=codes.USAGE).notes
    assert notes.startswith(f"error: {message}\nhint: {hint}"), notes
    answer = json.loads(
        call(*words.replace(" --", " --json --", 1).split(), *(() if " --" in words else ("--json",)), exits=codes.USAGE).notes
    )
    assert (answer["error"]["code"], answer["error"]["message"]) == ("bad_input", message)


def test_no_suggestion_is_itself_a_command() -> None:
    """Else it would be run, and never be suggested from."""
    names = {name for name, *_ in INDEX}
    assert not names & {word for *_, meant_by in INDEX for word in meant_by}


def test_hostile_words_do_nothing_to_the_terminal(call: Callable[..., Printed]) -> None:
    for words in ((EVIL,), ("runs", EVIL), ("runs", f"--{EVIL}"), ("runs", "--state", EVIL), (f"--{EVIL}", "runs")):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", call(*words, exits=codes.USAGE).notes)


def test_headings_are_bold_on_a_terminal_only(on_a_terminal: Callable[..., str], call: Callable[..., Printed]) -> None:
    drawn = on_a_terminal("runs", "--help")
    assert "\x1b[1mexamples:\x1b[0m" in drawn
    assert "\x1b" not in on_a_terminal("runs", "--help", NO_COLOR="1") + call("runs", "--help")


def test_the_program_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"windlass": "windlass.cli:main"}


# Text that nobody trusts


def test_text_is_made_harmless_and_stays_readable() -> None:
    assert clean("ä \u202e\x1b[31m\x00\x9b\ttab\nnext") == "ä \\u202e\\x1b[31m\\x00\\x9b\ttab\nnext"
    assert line("a\nERROR forged\rb") == "a\\nERROR forged\\x0db"
    assert json.loads(as_json({"a": EVIL, "b": "ä\ud800"})) == {"a": EVIL, "b": "ä\ud800"}
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", as_json(EVIL))


def _evil_world(w: World) -> str:
    """A run in which every text that can come from outside is hostile."""
    job, queue = "[red]a[/red]\u202e\x9b31m", "\x9b2Jq"  # names may not hold the plainer control characters
    run_id = w.create(job, {EVIL: EVIL}, options=Options(queue=queue, max_attempts=2, backoff=(0,)))
    for _ in range(2):
        (run,) = run_sync(w.engine.claim(WorkerInfo("w\x9b1m[b]\u202e", slots=9)))
        run_sync(w.engine.start(run.id, run.token or ""))
        w.log(run, EVIL, f"a\n{EVIL}")
        held = Held(run.seq, run.token or "")
        run_sync(w.engine.beat([held], progress={held: json.dumps({"fraction": 0.5, "message": EVIL})}))
        w.fail(run, Failure("\x9b31m[b]c[/b]", EVIL, f"detail\n{EVIL}"))
    return run_id


CALLS = (
    "runs",
    "jobs",
    "show ID",
    "logs ID",
    "logs -f ID",
    "why ID",
    "cancel ID",
    "runs --json",
    "jobs --json",
    "show ID --json",
    "logs ID --json",
)


@pytest.mark.parametrize("words", CALLS)
def test_hostile_text_is_shown_and_does_nothing(w: World, words: str) -> None:
    run_id = _evil_world(w)
    exits = {"cancel ID": codes.CONFLICT, "logs -f ID": codes.FAILED}.get(words, codes.OK)
    printed = w(*words.replace("ID", run_id).split(), exits=exits)
    everything = printed + printed.notes
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", everything)
    if "logs" in words and "--json" not in words:
        assert len(printed.splitlines()) == 4  # a line break in a line makes no further line
        assert "[red]a[/red]" in everything


# As a program


def _windlass(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "windlass", *words], capture_output=True, text=True, timeout=60, check=False, **how)


def test_python_m_windlass(w: World) -> None:
    run_id = _windlass("enqueue", "mail", "to=ann").stdout.strip()
    assert w.get(run_id).payload == '{"to":"ann"}'
    assert _windlass("cancel", run_id).returncode == 0
    assert _windlass("cancel", run_id).returncode == codes.CONFLICT
    assert _windlass("--version").stdout.startswith("windlass ")


def test_a_broken_pipe_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "windlass", "faults", "list"],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},  # what is left in a buffer counts
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (codes.BROKEN_PIPE, b"")


def test_a_narrow_encoding_ends_nothing(w: World) -> None:
    w.create(payload={"to": "Änne \u65e5"})
    done = _windlass("show", "--last", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "\\xc4nne" in done.stdout


STYLE = re.compile(r"\x1b\[[0-9;]*m")


def test_eighty_columns_are_enough_and_nothing_hostile_acts(w: World, on_a_terminal: Callable[..., str]) -> None:
    run_id = _evil_world(w)
    w.create("a_job_with_a_name_that_is_far_too_long_for_a_narrow_table", options=Options(queue="a-queue-of-some-length"))
    for words in (["runs"], ["jobs"], ["show", run_id], ["config"]):
        plain = STYLE.sub("", on_a_terminal(*words))
        assert "\x1b" not in plain, words
        assert max(map(len, plain.splitlines())) <= 80, words
    rows = STYLE.sub("", on_a_terminal("runs")).splitlines()
    assert run_id in rows[2]
    assert rows[0].split() == ["id", "state", "job", "tries", "when"]
    assert "a_job_with…" in rows[1] or "…" in rows[1]
    assert rows[2].rstrip().endswith(("now", "ago"))


def test_colours_are_for_terminals_that_want_them(w: World, on_a_terminal: Callable[..., str]) -> None:
    w.create()
    run_sync(w.engine.cancel(w.create()))
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert coloured.search(on_a_terminal("runs"))
    assert not coloured.search(on_a_terminal("runs", NO_COLOR="1"))
    assert "\x1b" not in _windlass("runs").stdout


def test_progress_of_a_backup_is_drawn_on_a_terminal_only(w: World, on_a_terminal: Callable[..., str]) -> None:
    assert "Copying" in on_a_terminal("backup", "one.db")
    assert _windlass("backup", "two.db").stderr == ""


@pytest.mark.parametrize(("end", "code"), [("ctrl-c", codes.INTERRUPTED), ("close", codes.BROKEN_PIPE)], ids=["ctrl-c", "close"])
def test_watching_on_a_terminal_until_somebody_ends_it(w: World, end: str, code: int) -> None:
    run_id = w.create()
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (24, 100))
    command = [sys.executable, "-m", "windlass", "runs", "--watch"]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=os.environ | {"TERM": "xterm"}) as child:
        os.close(there)
        drawn = b""
        while run_id.encode() not in drawn:
            drawn += os.read(here, 65_536)
        if end == "ctrl-c":
            child.send_signal(signal.SIGINT)
            while more := read_terminal(here):
                drawn += more
        os.close(here)
        assert child.wait(60) == code
    assert b"Traceback" not in drawn


# PostgreSQL


def test_on_postgresql(
    postgres_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call: Callable[..., Printed]
) -> None:
    monkeypatch.setenv("WINDLASS_STORE", postgres_url)
    assert json.loads(call("migrate", "--json"))["before"] == 0
    w = World(postgres_url, capsys)
    run_id = w("enqueue", "mail", "to=ann").strip()
    assert w.json("runs")["runs"][0]["id"] == run_id
    assert w.json("show", run_id)["payload"] == {"to": "ann"}
    run = w.started("a line")
    assert w.json("logs", run_id)["lines"][0]["line"] == "a line"
    w.succeed(run, "7")
    assert w.json("show", "--last")["output"] == 7
    assert w.json("why", run_id)["reasons"][0]["code"] == "ended"
    w("cancel", run_id, exits=codes.CONFLICT)
    w("rerun", run_id)
    assert len(w.json("runs")["runs"]) == 2
    run_sync(w.store.close())


def test_a_server_that_is_away(call: Callable[..., Printed], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(context, "PATIENCE", 0.0)
    notes = call("runs", "--store", f"postgresql://ann:secret@/shop?host={tmp_path}", exits=codes.UNREACHABLE).notes
    assert "secret" not in notes


# work


def test_the_app_that_a_target_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_one").mkdir()
    (tmp_path / "shop_one" / "web.py").write_text("class Shop:\n    app = 7\n", encoding="utf-8")
    assert find_target("shop_one.web:Shop.app") == 7


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("shop_two", "shop_two:app"),
        ("shop_two.py", "shop_two:app"),
        ("./web/shop_two.py:app", "web.shop_two:app"),
        (":app", "shop:app"),
        ("shop_two:", "shop_two:app"),
        ("shop_none:app", "shop_none"),
        ("shop_two.web:app", "shop_two"),
        ("shop_two:ap", "Did you mean app?"),
        ("shop_two:xyzzy", "xyzzy = App(...)"),
    ],
)
def test_a_target_that_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, hint: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_two.py").write_text("app = 7\n", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        find_target(target)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("shop_syntax", "def :\n", "SyntaxError"),
        ("shop_error", "def f():\n    1 / 0\nf()\n", "ZeroDivisionError"),
        ("shop_import", "import no_such_module_anywhere\n", "No module named 'no_such_module_anywhere'"),
    ],
)
def test_an_error_inside_the_module_is_shown_with_its_own_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, code: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    with pytest.raises(BadModule, match=name):
        find_target(f"{name}:app")
    trace = capsys.readouterr().err
    assert said in trace
    assert f"{name}.py" in trace
    assert "importlib" not in trace
    assert "targets.py" not in trace


SHOP = """
import logging
from windlass import App

app = App({store})

@app.job(name="mail")
def mail(to: str) -> str:
    logging.getLogger("shop").warning("to %s", to)
    return "sent to " + to
"""


def _shop(name: str, store: str = "'shop.db'") -> Path:
    path = Path(f"{name}.py")
    path.write_text(SHOP.format(store=store), encoding="utf-8")
    return path


def test_work_executes_what_is_enqueued(w: World) -> None:
    _shop("shop")
    run_id = w.create(payload={"to": "ann\n\x1b[31m"})
    done = _windlass("work", "shop:app", "--burst", "--name", "w9", "--slots", "2", "--lease", "5s", "--log-level", "warning")
    assert done.returncode == 0, done.stderr
    run = w.get(run_id)
    assert (run.state, run.worker, run.output, run.lease) == ("succeeded", "w9", '"sent to ann\\n\\u001b[31m"', 5_000)
    assert done.stderr.count("\n") == 1
    assert "WARNING shop: to ann\\n\\x1b[31m" in done.stderr


def test_the_app_of_an_event_loop_works_too(w: World) -> None:
    path = _shop("shop")
    path.write_text(path.read_text(encoding="utf-8").replace("App", "AsyncApp"), encoding="utf-8")
    run_id = w.create(payload={"to": "ann"})
    done = _windlass("work", "--burst", env=os.environ | {"WINDLASS_APP": "shop:app"})
    assert done.returncode == 0, done.stderr
    assert w.get(run_id).state == "succeeded"


@pytest.mark.parametrize("words", [(), ("--reload",)], ids=["alone", "reload"])
def test_work_ends_well_when_told_to(w: World, words: tuple[str, ...]) -> None:
    _shop("shop")
    run_id = w.create(payload={"to": "ann"})
    with subprocess.Popen([sys.executable, "-m", "windlass", "work", "shop:app", *words], stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        while "to ann" not in worker.stderr.readline():
            pass
        worker.send_signal(signal.SIGINT)
        assert worker.wait(60) == 0
    assert w.get(run_id).state == "succeeded"


def test_a_supervised_child_does_the_work_itself(w: World) -> None:
    _shop("shop")
    run_id = w.create(payload={"to": "ann"})
    done = _windlass("work", "shop:app", "--burst", "--reload", env=os.environ | {SUPERVISED: "1"})
    assert done.returncode == 0, done.stderr
    assert w.get(run_id).state == "succeeded"


def test_a_process_that_wants_to_be_replaced_is(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _shop("shop_replaced")
    replaced: list[list[str]] = []
    monkeypatch.setattr(work, "run_worker", lambda *_, **__: True)
    monkeypatch.setattr(work, "start_logging", lambda _level: None)
    monkeypatch.setattr(os, "execv", lambda _program, words: replaced.append(words))
    w("work", "shop_replaced:app", "--slots", "2")
    assert replaced == [[sys.executable, "-m", "windlass", "work", "shop_replaced:app", "--slots", "2"]]


def test_only_an_app_can_be_worked_for(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "start_logging", lambda _level: None)
    _shop("shop_three")
    assert "Job, not an App" in w("work", "shop_three:mail", exits=codes.USAGE).notes


def test_the_store_of_the_command_line_must_be_the_apps(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _shop("shop_four")
    _shop("shop_five", store="")
    monkeypatch.setenv("WINDLASS_STORE", "elsewhere.db")
    assert work.find_app("shop_four:app", "shop.db").address == "shop.db"
    assert work.find_app("shop_four:app", os.path.abspath("shop.db")).address == "shop.db"
    assert work.find_app("shop_five:app", "other.db").address == "other.db"
    with pytest.raises(BadInput, match=r"in shop\.db, not in other\.db"):
        work.find_app("shop_four:app", "other.db")


def test_no_app_named(call: Callable[..., Printed]) -> None:
    assert "windlass work shop:app" in call("work", exits=codes.USAGE).notes


def test_which_files_have_changed(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", ".hidden/c.py", "__pycache__/d.py", "below/e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = stamps([str(tmp_path)])
    assert [os.path.relpath(path, tmp_path) for path in sorted(before)] == ["a.py", "below/e.py"]
    assert changed(before, stamps([str(tmp_path)])) is None
    os.utime(tmp_path / "below" / "e.py", ns=(1, 1))
    assert changed(before, stamps([str(tmp_path)])) == str(tmp_path / "below" / "e.py")
    assert changed(before, before | {"new.py": 1}) == "new.py"
    assert changed(before, {}) == str(tmp_path / "a.py")


CHILD = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("drained", flush=True), os._exit(0)))
broken = os.path.exists("broken")
print("started", os.path.getmtime("code.py"), "alone" if os.getpgrp() == os.getpid() else "", flush=True)
if broken:
    sys.exit(3)
while True:
    signal.pause()
"""
PARENT = """
import sys
from windlass.cli import reload
reload.POLL_EVERY = 0.02
sys.exit(reload.Supervisor([sys.executable, "child.py"], ["."], lambda text: print("note", text, flush=True)).run())
"""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "child.py").write_text(CHILD, encoding="utf-8")
    (tmp_path / "code.py").touch()
    os.utime(tmp_path / "code.py", (1, 1))
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        yield parent
        if parent.poll() is None:
            parent.kill()


def _says(parent: subprocess.Popen[str], text: str) -> None:
    assert parent.stdout is not None
    assert text in parent.stdout.readline()


def test_a_change_of_the_code_drains_and_restarts(supervised: subprocess.Popen[str]) -> None:
    _says(supervised, "started 1.0 alone")
    os.utime("code.py", (2, 2))
    for text in ("drained", "code.py has changed", "started 2.0"):
        _says(supervised, text)
    supervised.send_signal(signal.SIGTERM)
    _says(supervised, "drained")
    assert supervised.wait(60) == 0


def test_a_worker_that_fails_waits_for_a_change(supervised: subprocess.Popen[str]) -> None:
    _says(supervised, "started 1.0")
    Path("broken").touch()
    os.utime("code.py", (2, 2))
    for text in ("drained", "changed", "started 2.0", "ended with code 3"):
        _says(supervised, text)
    Path("broken").unlink()
    os.utime("code.py", (3, 3))
    for text in ("changed", "started 3.0"):
        _says(supervised, text)
    supervised.send_signal(signal.SIGHUP)
    _says(supervised, "drained")
    assert supervised.wait(60) == 0


def test_asked_to_stop_while_nothing_runs(supervised: subprocess.Popen[str]) -> None:
    _says(supervised, "started 1.0")
    Path("broken").touch()
    os.utime("code.py", (2, 2))
    for text in ("drained", "changed", "started 2.0", "ended with code 3"):
        _says(supervised, text)
    supervised.send_signal(signal.SIGINT)
    assert supervised.wait(60) == 3


IMPATIENT = """
import os, random, signal, threading
from windlass.cli import reload
reload.POLL_EVERY = 0
for _ in range(50):
    stop = threading.Timer(random.random() / 100, os.kill, (os.getpid(), signal.SIGINT))
    assert reload.Supervisor(["false"], [], lambda text: stop.start()).run() == 1
    stop.join()
"""


def test_a_signal_at_any_moment_ends_the_wait_for_a_change() -> None:
    subprocess.run([sys.executable, "-c", IMPATIENT], check=True, timeout=60)


# Words


@pytest.mark.parametrize(
    ("ms", "words"), [(0, "0ms"), (999, "999ms"), (1_000, "1s"), (119_999, "119s"), (120_000, "2m"), (7_200_000, "2h"), (172_800_000, "2d")]
)
def test_spans(ms: int, words: str) -> None:
    assert span(ms) == words


def test_how_far_from_now() -> None:
    assert ago(10_000, 10_500) == "now"
    assert ago(10_000, 15_000) == "5s ago"
    assert ago(15_000, 10_000) == "in 5s"


# The docs


PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.S | re.M)


def _commands() -> list[tuple[str, list[str]]]:
    """Every command of the page with the lines it prints there."""
    found: list[tuple[str, list[str]]] = []
    for row in "".join(_blocks("console")).splitlines():
        if row.startswith("$ "):
            found.append((row[2:], []))
        else:
            found[-1][1].append(row)
    return found


def _alike(text: str) -> str:
    """A line of output without what is different each time."""
    for pattern, word in (
        (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?|\d\d:\d\d:\d\d\.\d{3}", "TIME"),
        (r"\b(now|\d+s ago)\b", "AGO"),
        (r"\b\d+m?s\b", "SPAN"),
        (r"\bin (\d+[mhd]|SPAN)\b", "LATER"),
        (r"version \d+", "VERSION"),
        (r"\s+", " "),
    ):
        text = re.sub(pattern, word, text)
    return text.strip()


def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path, forks: dict[str, str]) -> None:
    (tmp_path / "shop.py").write_text(_blocks("python")[0], encoding="utf-8")
    (tmp_path / "windlass.toml").write_text(_blocks("toml")[0], encoding="utf-8")
    script = "\n".join(f"echo '--- {number}'\n{command}" for number, (command, _) in enumerate(_commands()))
    environment = os.environ | forks | {"WINDLASS_LOG_LEVEL": "warning"}
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=240, check=False
    )
    printed = [
        part.partition("\n")[2].splitlines()
        for part in re.split(r"^--- ", done.stdout.replace(str(tmp_path), "/home/ann/shop"), flags=re.M)[1:]
    ]
    for (command, wanted), lines in zip(_commands(), printed, strict=True):
        assert len(wanted) == len(lines), (command, lines)
        for row, said in zip(map(_alike, wanted), map(_alike, lines), strict=True):
            assert said == row or (row.endswith(" ...") and said.startswith(row[:-4])), command


def test_the_page_lists_the_exit_codes() -> None:
    assert dict(re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.M)) == {str(code): text for code, text in codes.MEANINGS.items()}
