"""Ended runs are removed in time: as fast as they end, by one process at a time, each after its own time or that which is set for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Harness, open_store
from tests.served import ServedHub
from windlass import App, cli
from windlass.answers import RetentionSetting
from windlass.app.options import engine_options
from windlass.client import Client
from windlass.clock import ManualClock, SystemClock
from windlass.config import load
from windlass.engine import Engine, removal, sweeps
from windlass.engine.removal import TURN_LASTS
from windlass.errors import BadInput, Forbidden
from windlass.faults import VARIABLE
from windlass.model import FOREVER, Key, Limits, NewRun, Options, State
from windlass.steady import LASTING
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def ended(h: Harness, count: int = 1, job: str = "mail", **options: Any) -> list[str]:
    """Runs that have just succeeded."""
    made = [h.create(job, options=Options(**options)) for _ in range(count)]
    for run in h.claim(count):
        h.succeed(run)
    return made


def there(h: Harness, ids: Iterable[str]) -> list[str]:
    """Those of these runs that are still kept."""
    found = h(h.engine.records.runs.seqs(list(ids)))
    return [run_id for run_id in ids if run_id in found]


def slow(h: Harness, monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Let every slice take so many milliseconds."""
    prune = h.engine.records.retention.prune

    async def later(ids: Iterable[int], now: int, **how: bool) -> None:
        await prune(ids, now, **how)
        h.clock.advance(ms)

    monkeypatch.setattr(h.engine.records.retention, "prune", later)


# As fast as they end


def test_a_sweep_removes_for_a_while_and_the_next_one_goes_on_at_once(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    slow(h, monkeypatch, 20)
    ids = ended(h, 60)
    h.clock.advance(8 * DAY)
    began, pruned = h.clock.monotonic(), []
    while there(h, ids):
        swept = h(h.engine.sweep())
        pruned.append(swept.pruned)
        assert swept.back_in <= sweeps.PRUNE_FOR + 20
        h.clock.advance(swept.back_in)
    assert sum(pruned) == 60
    assert max(pruned) <= 5 * (sweeps.PRUNE_FOR // 20 + 1)
    assert h.clock.monotonic() - began < sweeps.PRUNE_EVERY
    assert h(h.engine.sweep()).back_in == 1_000  # then it rests


def test_there_is_room_for_others_between_two_removals(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    slow(h, monkeypatch, 20)
    ended(h, 60)
    h.clock.advance(8 * DAY)
    swept = h(h.engine.sweep())
    assert swept.pruned > 0
    assert swept.back_in >= sweeps.PRUNE_FOR // sweeps.PAUSE
    assert h(h.engine.sweep()).pruned == 0  # woken for another reason, before the pause is over
    h.clock.advance(swept.back_in)
    assert h(h.engine.sweep()).pruned > 0


def test_what_is_due_is_queued_between_two_removals(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    slow(h, monkeypatch, 20)
    ended(h, 60)
    h.clock.advance(8 * DAY)
    dispatched, left = [], True
    for _ in range(3):
        due = h.create(due_at=h.clock.now() + 1)
        h.clock.advance(100)
        swept = h(h.engine.sweep())
        left = left and swept.pruned > 0
        dispatched.append(h.get(due).state)
    assert left
    assert dispatched == [State.QUEUED] * 3


def test_every_kind_has_its_turn(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog of one kind does not keep what is behind another for a minute."""
    monkeypatch.setattr(removal, "SLICE", 5)
    slow(h, monkeypatch, sweeps.PRUNE_FOR)  # one slice for each sweep
    good = ended(h, 30)
    bad = [h.create(options=Options(max_attempts=1)) for _ in range(5)]
    for run in h.claim(5):
        h.fail(run)
    h.clock.advance(31 * DAY)
    for _ in range(4):
        h.clock.advance(h(h.engine.sweep()).back_in)
    assert there(h, good)
    assert there(h, bad) == []


def test_keys_go_as_fast_as_they_come(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 2)
    h(h.engine.create([NewRun("mail", key=Key(f"k{number}", ttl=1)) for number in range(50)]))
    h.clock.advance(2)
    h(h.engine.prune())
    assert h(h.engine.records.retention.drop_expired_keys(h.clock.now(), 100)) == 0


# One at a time


def test_one_process_at_a_time_removes(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    slow(h, monkeypatch, 20)
    other, ids = h.another(), ended(h, 60)
    h.clock.advance(8 * DAY)
    first = h(h.engine.sweep())
    assert first.pruned > 0
    assert other(other.engine.prune()) == 0
    assert other(other.engine.sweep()).pruned == 0
    for _ in range(60):
        h.clock.advance(h(h.engine.sweep()).back_in)
    assert there(h, ids) == []
    later = ended(h, 3)
    h.clock.advance(8 * DAY)
    assert other(other.engine.prune()) == 3
    assert there(h, later) == []


def test_a_process_that_is_gone_has_its_turn_no_longer_than_its_lease(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    gone, ids = h.another(), ended(h, 60)
    slow(gone, monkeypatch, 20)
    h.clock.advance(8 * DAY)
    assert gone(gone.engine.sweep()).pruned > 0
    h.clock.advance(TURN_LASTS - SECOND)
    assert h(h.engine.prune()) == 0
    h.clock.advance(SECOND)
    assert h(h.engine.prune()) == len(ids) - 15
    monkeypatch.undo()
    assert gone(gone.engine.prune()) == 0


def test_a_turn_from_before_the_clock_was_set_back_keeps_nobody_waiting(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SLICE", 5)
    gone, _ = h.another(), ended(h, 60)
    slow(gone, monkeypatch, 20)
    h.clock.advance(20 * DAY)
    assert gone(gone.engine.sweep()).pruned > 0
    h.clock.jump(-10 * DAY)
    later = h.another()
    assert later(later.engine.prune()) > 0


_KILLED = """
import sys
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.store.base import run_sync
from windlass.store.postgres import BlockingPostgres
from windlass.store.sqlite import BlockingSqlite
clock = ManualClock(int(sys.argv[2]))
store = (BlockingPostgres if sys.argv[1].startswith("postgresql") else BlockingSqlite)(sys.argv[1], clock)
run_sync(Engine(store, clock).prune())
"""


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_process_that_is_killed_while_it_removes_loses_its_turn(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = ManualClock()
    store = open_store(kind, tmp_path, request, clock)
    h = Harness(store, clock)
    h.define()
    ids = ended(h, 3)
    clock.advance(8 * DAY)
    where = request.getfixturevalue("emptied_postgres") if kind == "postgres" else str(tmp_path / "windlass.db")
    command = [sys.executable, "-c", _KILLED, where, str(clock.now())]
    killed = subprocess.run(command, env=os.environ | {VARIABLE: "prune.before_commit=kill"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert h(h.engine.prune()) == 0
    assert there(h, ids) == ids
    clock.advance(TURN_LASTS)
    assert h(h.engine.prune()) == 3
    run_sync(store.close())


# What is set for all


def test_the_first_process_that_was_told_says_how_long(h: Harness) -> None:
    first, second = (Engine(h.store, h.clock, keeps={"keep_succeeded": keep}) for keep in (HOUR, 10 * DAY))
    assert h(first.retention()).keep_succeeded == RetentionSetting(HOUR, "settings")
    ids = ended(h)
    h(first.prune())
    h(second.prune())
    told = h(second.retention())
    assert told.keep_succeeded == RetentionSetting(HOUR, "store", None, h.clock.now())
    assert told.keep_others == RetentionSetting(30 * DAY, "default")
    h.clock.advance(HOUR + 1)
    assert h(second.prune()) == 1
    assert there(h, ids) == []


def test_what_an_operator_sets_comes_before_everything_else(h: Harness) -> None:
    told = Engine(h.store, h.clock, Limits(keep_succeeded=MINUTE), keeps={"keep_succeeded": HOUR})
    h(h.engine.set_retention(keep_succeeded=10 * DAY, by="ann"))
    ids = ended(h)
    h.clock.advance(9 * DAY)
    assert h(told.prune()) == 0
    assert h(told.retention()).keep_succeeded == RetentionSetting(10 * DAY, "store", "ann", h.clock.now() - 9 * DAY)
    h(h.engine.set_retention(keep_succeeded=HOUR, keep_others="forever", by="ben"))
    assert h(told.prune()) == 1
    assert there(h, ids) == []
    assert h(told.retention()).keep_others.keep == "forever"


def test_what_is_kept_for_ever_is_never_removed(h: Harness) -> None:
    h(h.engine.set_retention(keep_succeeded="forever", by="ann"))
    ids = ended(h)
    h.clock.advance(4000 * DAY)
    assert h(h.engine.prune()) == 0
    assert there(h, ids) == ids


@pytest.mark.parametrize("keep", [0, -1, MINUTE - 1, 2**53, True, "1h", "never", 1.5])
def test_how_long_is_a_minute_at_least_or_for_ever(h: Harness, keep: Any) -> None:
    with pytest.raises(BadInput, match="keep_others must be"):
        h(h.engine.set_retention(keep_others=keep, by="ann"))
    with pytest.raises(BadInput, match="keep must be"):
        h.define("other", keep=keep)
    with pytest.raises(BadInput, match="keep must be"):
        h.create(options=Options(keep=keep))
    assert h(h.engine.retention()).keep_others.source == "default"


def test_to_set_nothing_is_a_mistake(h: Harness) -> None:
    with pytest.raises(BadInput, match="No retention is given"):
        h(h.engine.set_retention(by="ann"))


# A time of their own


def test_runs_are_kept_for_as_long_as_their_job_says(h: Harness) -> None:
    h.define("brief", keep=HOUR)
    h.define("lasting", keep="forever")
    brief, lasting, plain = ended(h, job="brief"), ended(h, job="lasting"), ended(h)
    h.clock.advance(HOUR + 1)
    assert h(h.engine.prune()) == 1
    assert there(h, [*brief, *lasting, *plain]) == [*lasting, *plain]
    h.clock.advance(4000 * DAY)
    h(h.engine.prune())
    assert there(h, [*brief, *lasting, *plain]) == lasting
    assert h.get(lasting[0]).keep == FOREVER


def test_a_run_may_say_otherwise_than_its_job(h: Harness) -> None:
    h.define("brief", keep=HOUR)
    own, jobs = ended(h, job="brief", keep="forever"), ended(h, job="brief")
    short = ended(h, keep=MINUTE)
    h.clock.advance(HOUR + 1)
    assert h(h.engine.prune()) == 2
    assert there(h, [*own, *jobs, *short]) == own


def test_a_run_keeps_the_time_it_was_made_with(h: Harness) -> None:
    h.define("brief", keep=HOUR)
    made = h.create("brief")
    h.define("brief", keep="forever")
    h.succeed(h.claimed())
    again = h(h.engine.rerun(made)).id
    assert h.get(again).keep == h.get(made).keep == HOUR
    h.clock.advance(HOUR + 1)
    assert h(h.engine.prune()) == 1
    assert there(h, [made, again]) == [again]


def test_a_failed_run_goes_by_its_own_time_too(h: Harness) -> None:
    made = h.create(options=Options(keep=HOUR, max_attempts=1))
    h.fail(h.claimed())
    h.clock.advance(HOUR + 1)
    assert h(h.engine.prune()) == 1
    assert there(h, [made]) == []


def test_what_a_run_that_waits_may_read_stays(h: Harness) -> None:
    blocking = h.create(due_at=h.clock.now() + DAY)
    [made] = ended(h, keep=MINUTE)
    waits = h.create(after=(made, blocking))
    h.clock.advance(HOUR)
    assert h(h.engine.prune()) == 0
    h(h.engine.cancel(waits))
    assert h(h.engine.prune()) == 1


def test_what_the_followers_of_the_journal_have_not_read_stays(h: Harness) -> None:
    ended(h)
    h(h.engine.roll_up())
    h.clock.advance(MINUTE)
    made = ended(h, keep=MINUTE)
    h.clock.advance(HOUR)
    assert h(h.engine.prune()) == 0
    h(h.engine.roll_up())
    assert h(h.engine.prune()) == 1
    assert there(h, made) == []


def test_a_clock_that_was_just_set_removes_no_run_with_a_time_of_its_own(h: Harness) -> None:
    ids = ended(h, keep=HOUR)
    h(h.engine.prune())
    h.clock.jump(40 * DAY)
    for _ in range(LASTING // MINUTE):
        assert h(h.engine.sweep()).pruned == 0
        assert [finding.code for finding in h(h.engine.doctor()) if finding.code == "retention_behind"] == []
        h.clock.advance(MINUTE)
    assert h(h.engine.prune()) == len(ids)


def test_runs_that_are_kept_for_ever_are_in_the_lists_among_the_others(h: Harness) -> None:
    ids = []
    for keep in (None, "forever", None, HOUR, None):
        ids += ended(h, keep=keep) if keep else ended(h)
        h.clock.advance(1)
    first = h(h.engine.runs(state=State.SUCCEEDED, count=2))
    second = h(h.engine.runs(state=State.SUCCEEDED, count=3, cursor=first.cursor))
    assert [run.id for run in [*first.runs, *second.runs]] == ids[::-1]


def test_the_shortest_time_is_known_to_those_who_follow_events(h: Harness) -> None:
    assert h(h.engine.shortest_retention()) == 7 * DAY
    ended(h, keep=HOUR)
    ended(h, keep=2 * HOUR)
    h.clock.advance(3 * HOUR)
    h(h.engine.prune())
    assert h(h.engine.shortest_retention()) == HOUR


# The doctor


def test_the_doctor_says_that_retention_is_behind(h: Harness) -> None:
    def behind() -> list[Any]:
        return [finding for finding in h(h.engine.doctor()) if finding.code == "retention_behind"]

    ended(h, 3)
    ended(h, keep="forever")
    h.clock.advance(7 * DAY + 5 * MINUTE)
    assert behind() == []
    h.clock.advance(2 * DAY)
    [finding] = behind()
    assert (finding.severity, finding.data) == ("warning", {"runs": 3, "late_ms": 2 * DAY + 5 * MINUTE})
    assert "3 runs" in finding.text
    assert "worker or a hub" in finding.todo
    h(h.engine.prune())
    assert behind() == []


# Doors


def test_an_app_says_it_in_words() -> None:
    assert [engine_options({"keep": keep}).keep for keep in ("1h", "forever", 90, "1d")] == [HOUR, "forever", 90_000, DAY]
    with pytest.raises(BadInput, match="keep is 'soon'"):
        engine_options({"keep": "soon"})


def test_a_job_and_a_run_of_an_app_have_a_time_of_their_own(tmp_path: Path) -> None:
    with App(tmp_path / "shop.db") as app:

        @app.job(keep="1h")
        def mail(to: str) -> None: ...

        made, lasting = mail.enqueue("ann"), mail.options(keep="forever").enqueue("ben")
        assert [run_sync(app.verbs.get(run.id)).keep for run in (made, lasting)] == [HOUR, FOREVER]


def test_over_http_an_admin_sets_it_and_the_audit_knows(tmp_path: Path) -> None:
    engine = Engine(BlockingSqlite(tmp_path / "hub.db", SystemClock()), SystemClock())
    run_sync(engine.define("mail", options=Options(keep="forever")))
    admin, reader = (run_sync(engine.create_token(name, (name,)))[1] for name in ("admin", "read"))
    hub = ServedHub(tmp_path / "hub.db")
    with Client(hub.url, token=admin) as client:
        assert client.retention().keep_succeeded.source == "default"
        told = client.set_retention(keep_succeeded=HOUR, keep_others="forever")
        assert (told.keep_succeeded.keep, told.keep_succeeded.actor, told.keep_others.keep) == (HOUR, "admin", "forever")
        made = client.create([NewRun("mail")])[0]
        assert client.get(made.id).keep == FOREVER
    with Client(hub.url, token=reader) as client:
        assert client.retention() == told
        with pytest.raises(Forbidden):
            client.set_retention(keep_succeeded=2 * HOUR)
    hub.stop()
    entries = run_sync(engine.audit()).entries
    assert [(entry.actor, entry.what) for entry in entries if entry.subject == "retention"] == [("admin", "set")]
    assert run_sync(engine.retention()) == told
    run_sync(engine.close())


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of settings, and a store."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "windlass.toml").write_text('store = "shop.db"\nkeep_succeeded = "1h"\nkeep_others = "forever"\n')
    run_sync(BlockingSqlite("shop.db", SystemClock()).close())
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["config", "--json"]) == 0
    settings: dict[str, Any] = json.loads(capsys.readouterr().out)["settings"]
    return settings


def test_config_says_that_the_value_of_the_store_wins(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (load().keep_succeeded, load().keep_others) == (HOUR, FOREVER)
    before = shown(capsys)
    assert (before["keep_succeeded"]["value"], before["keep_others"]["value"]) == (HOUR, FOREVER)
    assert before["keep_succeeded"]["source"].endswith("windlass.toml: keep_succeeded")
    assert cli.main(["retention", "set", "--succeeded", "2d"]) == 0
    after = shown(capsys)
    assert after["keep_succeeded"]["value"] == 2 * DAY
    assert after["keep_succeeded"]["source"].startswith("the store: set by ")
    assert "not 1h, which is in " in after["keep_succeeded"]["source"]
    assert cli.main(["config"]) == 0
    assert "forever" in capsys.readouterr().out


def test_the_first_worker_stores_what_its_file_says(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with App() as app:
        run_sync(app.engine.sweep())  # as its worker does
    after = shown(capsys)
    assert (after["keep_succeeded"]["value"], after["keep_others"]["value"]) == (HOUR, FOREVER)
    assert after["keep_others"]["source"] == "the store: the first process whose settings named it"
    capsys.readouterr()
    assert cli.main(["retention"]) == 0
    assert "forever" in capsys.readouterr().out


def test_a_file_must_not_say_less_than_a_minute(shop: Path) -> None:
    (shop / "windlass.toml").write_text('keep_succeeded = "1s"\n')
    with pytest.raises(BadInput, match="a duration of 1m at least"):
        load()


def test_a_run_at_the_command_line_has_a_time_of_its_own(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(BlockingSqlite("shop.db", SystemClock()), SystemClock())
    run_sync(engine.define("mail"))
    capsys.readouterr()
    assert cli.main(["enqueue", "mail", "--keep", "forever"]) == 0
    run_id = capsys.readouterr().out.strip()
    assert run_sync(engine.get(run_id)).keep == FOREVER
    assert cli.main(["show", run_id]) == 0
    assert "forever" in capsys.readouterr().out
    run_sync(engine.close())
