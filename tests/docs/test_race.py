"""The race beside other queues: what is shown is what was measured, and every queue is named with its versions and promises."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import race, race_page
from bench.environments import NotInstalled, make_environment
from bench.figures import Figures
from bench.peers.base import Counts, Peer
from windlass.testing.servers import PostgresServer

OURS, THEIRS = "windlass_postgres", "pgqueuer"
DRAINS = ("drain1", "drain2", "drain4")
SQLITE = next(peer for peer in race.PEERS if peer.name == "windlass_sqlite")


def speeds(*values: float) -> dict[str, list[float]]:
    return {"per_s": list(values), "client_us": [10.0] * len(values), "server_us": [20.0] * len(values)}


@pytest.fixture
def result() -> dict[str, Any]:
    """Three rounds of two queues, and one that is left out."""
    measured = {
        OURS: {name: speeds(3000, 1000, 2000) for name in ("single", "bulk", *DRAINS)} | {"latency": {"p50_ms": [3.0, 4.0, 5.0]}},
        THEIRS: {name: speeds(1000, 2000, 500) for name in ("single", "bulk", *DRAINS)} | {"latency": {"p50_ms": [2.0, 4.0, 5.0]}},
        "oban": {},
    }
    peers = {peer.name: race._facts(peer, race.QUICK, dict.fromkeys(peer.shown, "1.2.3")) for peer in race.PEERS if peer.name in measured}
    machine = {"machine.cores": 2, "machine.cpu": "CPU", "machine.system": "Linux", "machine.postgres": "18"}
    figures = machine | {"race.pgqueuer.drain1.ratio": 2.0, "race.pgqueuer.drain1.ratio_quartiles": "1.50 to 2.50"}
    left_out = {"oban": "it needs Python 3.12, and there is none"}
    return {"quick": False, "burst": 500, "figures": figures, "left_out": left_out, "peers": peers, "measured": measured}


def test_the_page_and_the_chart_are_those_of_the_stored_result() -> None:
    assert race_page.PAGE.read_text(encoding="utf-8") == race_page.page()
    assert race_page.CHART.read_text(encoding="utf-8") == race_page.chart(race_page.result())


def test_another_result_gives_another_table(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]) -> None:
    monkeypatch.setattr(race_page, "result", lambda: result)
    page = race_page.page()
    assert race_page.tables(result) in page
    assert page.partition("<!-- race:")[0] == race_page.PAGE.read_text(encoding="utf-8").partition("<!-- race:")[0]
    assert len(re.findall("<!-- end of race -->", page)) == 1


def test_a_table_has_medians_with_quartiles_and_ratios(result: dict[str, Any]) -> None:
    tables = race_page.tables(result)
    assert "| windlass (PostgreSQL) | 2,000 (1,500 to 2,500) |" in tables
    assert "4.0 (3.5 to 4.5)" in tables
    assert "| PGQueuer |  |  | 2.00 (1.50 to 2.50) |" in tables
    assert "| PGQueuer | 10 | 20 | 10 | 20 |" in tables  # processor times


def test_a_table_says_what_each_queue_promises_and_who_is_left_out(result: dict[str, Any]) -> None:
    tables = race_page.tables(result)
    for name in (OURS, THEIRS):
        facts = result["peers"][name]
        assert all(fact in tables for fact in (facts["delivery"], facts["keeps"], facts["settings"]))
        assert all(f"{each} 1.2.3" in tables for each in facts["versions"])
    assert "Left out: Oban (it needs Python 3.12, and there is none)." in tables


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_trial_is_called_one(result: dict[str, Any], quick: bool) -> None:
    assert ("not to be quoted" in race_page.tables(result | {"quick": quick})) is quick


def test_the_chart_has_a_bar_for_each_queue_and_number_of_workers(result: dict[str, Any]) -> None:
    picture = ElementTree.fromstring(race_page.chart(result))
    shades = [rect.get("fill") for rect in picture.iter("{http://www.w3.org/2000/svg}rect")][len(DRAINS) :]  # without the legend's
    assert shades == [*race_page._SHADES.values()] * 2
    words = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"windlass (PostgreSQL)", "PGQueuer", "2,000", "1,000"} <= words


def test_a_ratio_is_of_figures_of_the_same_round(result: dict[str, Any]) -> None:
    figures = Figures()
    race.note(figures, result["measured"], [peer for peer in race.PEERS if peer.name in (OURS, THEIRS)])
    assert figures.values["race.pgqueuer.drain1.ratio"] == 3  # of 3, 0.5 and 4; that of the medians is 2
    assert figures.values["race.pgqueuer.latency.ratio"] == 1  # of 1.5, 1 and 1
    assert "race.windlass_postgres.drain1.ratio" not in figures.values


@pytest.mark.parametrize("peer", race.PEERS, ids=lambda peer: peer.name)
def test_a_queue_is_described(peer: Peer) -> None:
    assert peer.delivery.startswith(("at least once", "at most once"))
    assert peer.keeps
    assert peer.settings
    assert {re.split(r"\W", package)[0] for package in peer.packages[:1]} <= set(peer.shown)  # its own version among them
    assert peer.unfinished.startswith("select exists")


def test_names_are_those_of_the_bars() -> None:
    names = [peer.name for peer in race.PEERS]
    assert len(set(names)) == len(names)
    assert {bar.split(".")[0] for bar in race.BARS} <= set(names)
    assert set(race.OURS.values()) <= set(names)


def test_a_queue_that_cannot_be_installed_is_left_out_by_name(tmp_path: Path) -> None:
    peer = SQLITE._replace(name="future", packages=("future",), python=(3, 99))
    pythons, left_out = race.environments(tmp_path, [peer, SQLITE])
    assert pythons == {SQLITE: Path(sys.executable)}
    assert left_out == {"future": "it needs Python 3.99, and there is none"}
    with pytest.raises(NotInstalled):
        make_environment(tmp_path, ("future",), (3, 99))


def test_counts_are_shared_between_processes(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "counts", workers=2)
    for worker in (0, 1, 1):
        Counts(tmp_path / "counts").counter(worker)()
    assert (int(counts), list(counts.each)) == (3, [1, 2])


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> race.Course:
    """For SQLite alone: a server would be asked for nothing."""
    monkeypatch.setattr(race, "ERRORS", tmp_path / "errors")
    return race.Course(PostgresServer.__new__(PostgresServer), tmp_path, {SQLITE: Path(sys.executable)})


@pytest.mark.parametrize(
    "measure",
    [
        lambda course: race.single(course, SQLITE, 20),
        lambda course: race.drained(course, SQLITE, 2, 200)[1],
        lambda course: race.burst(course, SQLITE, race.FIRST),
        lambda course: race.latency(course, SQLITE, 2),
    ],
    ids=["single", "drained", "burst", "latency"],
)
def test_processes_of_a_queue_do_what_they_are_told(course: race.Course, measure: Callable[[race.Course], dict[str, float]]) -> None:
    figures = measure(course)
    assert figures
    assert all(value > 0 for kind, value in figures.items() if kind in ("per_s", "p50_ms"))


def test_a_process_that_fails_is_reported_and_its_queue_left_out(course: race.Course) -> None:
    runner = race.Race(course, race.QUICK, quick=True, begun=time.perf_counter())
    runner._take(SQLITE, lambda peer: {"single": race.enqueued(course, peer, "/no/such/folder/race.db", "single", 1)})
    assert "ended with 1" in runner.left_out[SQLITE.name]
    assert not runner.measured[SQLITE.name]


def test_a_turn_that_would_begin_too_late_is_left_out(course: race.Course) -> None:
    runner = race.Race(course, race.QUICK, quick=True, begun=time.perf_counter() - 60 * race.QUICK.minutes - 1)
    runner._take(SQLITE, lambda peer: pytest.fail("It has begun."))
    assert not runner.measured[SQLITE.name]


def test_a_queue_tells_its_versions_without_a_store() -> None:
    command = [sys.executable, "-m", "bench.peers.windlass", "versions", SQLITE.name]
    told = subprocess.run(command, cwd=race.ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f'"{each}"' in told for each in (*SQLITE.shown, "python"))
