"""The example shop, and the program behind `make up`: what it serves, and that stopping it loses nothing."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.workers import until
from windlass import App, Context, Fail, Snooze
from windlass.machine import LIVE
from windlass.worker.context import Call, Nowhere

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 120  # seconds; only a hang takes that long


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module afresh, on a store of its own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("WINDLASS_STORE", str(tmp_path / "shop.db"))
    for name in ("shop", "up"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("shop")
    yield module
    module.app.close()
    for name in ("shop", "up"):
        sys.modules.pop(name, None)


# The shop


class _Ear(Nowhere):
    """Hears what a handler tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def line(self, text: str) -> None:
        self.told.append(text)

    def progress(self, text: str) -> None:
        self.told.append(text)

    def beat(self) -> None:
        pass


def _context(job: str, attempt: int = 1, ear: _Ear | None = None) -> Context:
    return Context(Call("00000000-run", job, attempt, "token", "{}", 3, 0, 0), ear or _Ear())


def test_a_charge_is_refused_by_the_service_twice_and_then_goes_well(shop: ModuleType) -> None:
    def charge(attempt: int, order: int, card: str = "good") -> Any:
        return asyncio.run(shop.charge(_context("charge", attempt), order, card))

    for attempt in (1, 2):
        with pytest.raises(ConnectionError):
            charge(attempt, 3)
    assert charge(3, 3).startswith("receipt")
    assert charge(1, 1).startswith("receipt")
    with pytest.raises(Fail) as stolen:
        charge(1, 1, "stolen")
    assert not stolen.value.retry


def test_tracking_snoozes_until_the_parcel_is_there(shop: ModuleType) -> None:
    with pytest.raises(Snooze):
        asyncio.run(shop.track(_context("track", 1), 1))
    assert asyncio.run(shop.track(_context("track", 3), 1)) == "delivered"


def test_a_thumbnail_says_how_far_it_is(shop: ModuleType) -> None:
    ear = _Ear()
    assert shop.thumbnail(_context("thumbnail", ear=ear), "cat.png").endswith(".png")
    assert '"fraction":1.0' in ear.told[-1]


def test_a_report_that_is_cancelled_stops(shop: ModuleType) -> None:
    context = _context("report")
    context.ask_to_stop("cancel")
    with pytest.raises(BaseException, match="cancel"):
        shop.report(context, "May")


def test_the_label_program_speaks_as_a_command_should() -> None:
    done = subprocess.run(
        ["sh", EXAMPLES / "label.sh"],
        input='{"order": 17}',
        env=os.environ | {"WINDLASS_ATTEMPT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    *progress, result = done.stdout.splitlines()
    assert [line.startswith('{"progress": ') for line in progress] == [True] * 4
    assert result == '{"label": "order-17.pdf"}'
    assert "order 17" in done.stderr


def test_an_order_is_a_chain(shop: ModuleType) -> None:
    thanks = shop.place_order(1, "good", "ann@example.com")
    assert [(run.job, run.state) for run in reversed(shop.app.runs().runs)] == [
        ("charge", "queued"),
        ("label", "waiting"),
        ("track", "waiting"),
        ("mail", "waiting"),
    ]
    assert [reason.code for reason in thanks.why()] == ["waits_for"]


# The program, as people start it


class Program:
    """`examples/up.py`, and what it has printed so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.store, self._log = folder / "shop.db", folder / "up.log"
        command = [sys.executable, str(EXAMPLES / "up.py"), "--store", str(self.store), "--port", "0", *arguments]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def see(self, pattern: str) -> re.Match[str]:
        def seen() -> re.Match[str] | None:
            found = re.search(pattern, self.text)
            assert found or self.process.poll() is None, self.text
            return found

        return until(seen)

    def runs(self) -> list[Any]:
        with App(self.store) as app:
            return app.runs(count=1_000).runs


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*arguments: str) -> Program:
        started.append(Program(tmp_path, *arguments))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            os.killpg(program.process.pid, signal.SIGTERM)
            program.process.wait(PATIENCE)


def _nothing_is_held(program: Program) -> None:
    """The worker has drained: nothing is in its hands, and what was interrupted has failures no try."""
    runs = program.runs()
    assert runs
    assert [run.id for run in runs if run.state in LIVE] == []
    assert {run.error.code for run in runs if run.error} <= {"ConnectionError", "stolen_card"}


def test_it_serves_the_shop_signs_in_by_its_link_once_and_drains_at_a_signal(start: Callable[..., Program]) -> None:
    program = start()
    link = program.see(r"(http://127\.0\.0\.1:\d+/)#ticket=(\S+)")
    assert "windlass serves" in program.text
    address, ticket = link[1], link[2]
    with httpx.Client(base_url=address, timeout=60) as http:
        assert "text/html" in http.get("").headers["content-type"]
        assert http.get("api/v1/runs").status_code == 401
        session = http.post("api/v1/session", json={"ticket": ticket})
        assert session.status_code == 201, session.text
        assert http.post("api/v1/session", json={"ticket": ticket}).status_code == 401
        http.headers["Authorization"] = f"Bearer {session.json()['secret']}"
        until(lambda: {run["job"] for run in http.get("api/v1/runs?state=succeeded").json()["runs"]} >= {"charge", "mail"})
        (worker,) = http.get("api/v1/workers").json()["workers"]
        assert "charge" in worker["jobs"]
        assert [one["job"] for one in http.get("api/v1/schedules").json()["schedules"]] == ["restock"]
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(PATIENCE) == 0, program.text
    assert "Draining" in program.text
    _nothing_is_held(program)


def test_it_ends_by_itself_when_told_so(start: Callable[..., Program]) -> None:
    program = start("--seconds", "2")
    assert program.process.wait(PATIENCE) == 0, program.text
    _nothing_is_held(program)
