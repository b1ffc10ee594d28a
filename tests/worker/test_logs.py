"""What a worker's log tells: how attempts failed, and which run every other line belongs to."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.worker.test_worker import Ports, error, noop, ports  # noqa: F401 - a fixture
from tests.workers import ended, until, working
from windlass import App, Context, Fail, Snooze, State
from windlass.cli.logs import JsonFormat
from windlass.errors import OutcomeUnknown, StoreUnreachable
from windlass.store.base import run_sync
from windlass.worker.context import MARKS

OTHERS = logging.getLogger("somebody.elses.library")


@pytest.fixture
def app() -> Iterator[App]:
    with App(":memory:") as app:
        yield app


def lines(caplog: pytest.LogCaptureFixture, run: str) -> list[logging.LogRecord]:
    """What the worker itself logged of a run, at the level that people see."""
    return [record for record in caplog.records if record.name == "windlass.worker" and record.__dict__.get("run") == run]


def marks(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in MARKS if name in record.__dict__}


class Teapot(Exception):
    pass


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_failed_attempt_is_a_warning_and_the_last_one_an_error(kind: str, app: App, caplog: pytest.LogCaptureFixture) -> None:
    def pour() -> None:
        raise Teapot("short and stout")

    async def pour_in_loop() -> None:
        pour()

    job = app.job(name="tea", queue="kitchen", max_attempts=2, backoff=(0,))(pour if kind == "thread" else pour_in_loop)
    with caplog.at_level(logging.INFO), working(app, name="w7"):
        run = ended(job.enqueue())
    assert run.state is State.FAILED
    first, last = lines(caplog, run.id)
    assert [first.levelname, last.levelname] == ["WARNING", "ERROR"]
    for attempt, record in enumerate((first, last), start=1):
        assert marks(record) == {"run": run.id, "job": "tea", "attempt": attempt, "queue": "kitchen", "worker": "w7"}
        assert 0 <= record.__dict__["duration"] < 60
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], Teapot)
        assert "in pour" in logging.Formatter().formatException(record.exc_info)
        assert run.id in record.getMessage()
    assert "tried again" in first.getMessage()
    assert "for good" in last.getMessage()
    assert "Teapot: short and stout" in last.getMessage()


def test_what_fails_without_an_exception_here_is_told_with_the_text_that_there_is(app: App, caplog: pytest.LogCaptureFixture) -> None:
    command = app.command("command", ["/bin/sh", "-c", "echo no such table >&2; exit 3"], max_attempts=1)

    @app.job(max_attempts=1, timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(600)

    @app.job(max_attempts=1)
    def says_so() -> Any:
        return Fail("on purpose", code="teapot")

    with caplog.at_level(logging.INFO), working(app, slots=3):
        runs = [ended(job.enqueue()) for job in (command, slow, says_so)]
    told = [logging.Formatter("%(message)s").format(record) for run in runs for record in lines(caplog, run.id)]
    assert len(told) == 3
    assert "exited: The process exited with status 3." in told[0]
    assert "no such table" in told[0]
    assert "AttemptFailed: timeout: The attempt ran for longer" in told[1]
    assert "await asyncio.sleep(600)" in told[1]  # where it was when it was stopped
    assert "teapot: on purpose" in told[2]


def test_what_ends_well_or_only_later_is_no_failure(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job()
    def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Snooze(0)

    with caplog.at_level(logging.INFO), working(app):
        run = ended(later.enqueue())
    assert run.state is State.SUCCEEDED
    assert lines(caplog, run.id) == []


def test_one_that_is_returned_without_end_is_an_error_too(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(max_requeues=1)
    def never() -> None:
        raise Snooze(0)

    with caplog.at_level(logging.INFO), working(app):
        run = ended(never.enqueue())
    (record,) = lines(caplog, run.id)
    assert (run.state, record.levelname, record.__dict__["attempt"]) == (State.FAILED, "ERROR", 2)


def test_a_report_that_is_repeated_is_one_line(app: App, ports: Ports, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    @app.job(max_attempts=1)
    def fails() -> None:
        raise Teapot

    def prepare(worker: Any) -> None:
        ports.watch(worker)
        ports.loop.fail("report_many", error(OutcomeUnknown), error(OutcomeUnknown), late=True)

    with caplog.at_level(logging.INFO), working(app, prepare=prepare) as at_work:
        run = ended(fails.enqueue())
        until(lambda: not at_work.worker.in_flight.renewable())
        until(lambda: lines(caplog, run.id))
    assert [record.levelname for record in lines(caplog, run.id)] == ["ERROR"]


def test_a_log_handler_that_raises_does_not_end_the_worker(app: App) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                raise RuntimeError("The tracker is away.")

    @app.job(max_attempts=1)
    def fails() -> None:
        raise Teapot

    broken, other = Broken(), noop(app)
    logging.getLogger("windlass.worker").addHandler(broken)
    try:
        with working(app):
            assert ended(fails.enqueue()).state is State.FAILED
            assert ended(other.enqueue()).state is State.SUCCEEDED
    finally:
        logging.getLogger("windlass.worker").removeHandler(broken)


# Which run a record belongs to


def test_whatever_is_logged_below_a_handler_names_its_run(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async def nested(word: str) -> None:
        OTHERS.warning(word)
        await asyncio.to_thread(OTHERS.warning, f"{word}, on a thread")

    @app.job(queue="a")
    async def in_loop() -> None:
        await asyncio.gather(nested("one task"), nested("another task"))

    @app.job(queue="b")
    def on_thread(ctx: Context) -> None:
        OTHERS.warning("straight")
        thread = threading.Thread(target=copy_context().run, args=(OTHERS.warning, "by a thread of its own"))
        thread.start()
        thread.join()
        asyncio.run(nested("in a loop of its own"))
        ctx.logger.warning("in its log")

    with caplog.at_level(logging.INFO), working(app, slots=2, name="w7"):
        runs = {run.job: run for run in map(ended, [in_loop.enqueue(), on_thread.enqueue()])}
    records = [record for record in caplog.records if record.name in (OTHERS.name, f"windlass.job.{on_thread.name}")]
    assert len(records) == 9
    for record in records:
        run = runs[record.__dict__["job"]]
        assert marks(record) == {"run": run.id, "job": run.job, "attempt": 1, "queue": run.queue, "worker": "w7"}
    assert {record.__dict__["job"] for record in records} == set(runs)


def test_what_is_logged_elsewhere_names_no_run(app: App, ports: Ports, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    @app.job()
    def chatty(ctx: Context) -> None:
        ctx.logger.info("a line that the store does not take at once")
        until(lambda: not ports.loop._errors["log"])

    @app.job()
    async def chatty_in_loop(ctx: Context) -> None:
        ctx.logger.info("a line")

    def prepare(worker: Any) -> None:
        ports.watch(worker)
        ports.loop.fail("log", error(StoreUnreachable), error(StoreUnreachable))

    with caplog.at_level(logging.INFO), working(app, prepare=prepare):
        ended(chatty.enqueue())
        ended(chatty_in_loop.enqueue())
        OTHERS.warning("beside it all")
    elsewhere = [record for record in caplog.records if not record.name.startswith("windlass.job")]
    assert [record for record in elsewhere if "does not answer" in record.getMessage()]
    assert [marks(record) for record in elsewhere] == [{}] * len(elsewhere)


def test_a_record_factory_and_extra_stay_the_programs_own(app: App, caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogRecordFactory()

    def own(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = logging.LogRecord(*arguments, **named)
        record.__dict__["of_the_program"] = "yes"
        return record

    @app.job()
    def says() -> None:
        OTHERS.warning("mine", extra={"run": "marathon", "order": 7})

    with caplog.at_level(logging.INFO), working(app):
        logging.setLogRecordFactory(own)  # while a worker works already
        try:
            run = ended(says.enqueue())
        finally:
            logging.setLogRecordFactory(before)
    assert run.state is State.SUCCEEDED
    (record,) = [record for record in caplog.records if record.name == OTHERS.name]
    said = record.__dict__
    assert (said["of_the_program"], said["run"], said["order"], said["job"], said["attempt"]) == ("yes", "marathon", 7, says.name, 1)


# One JSON object a line

SHOP = """
import logging
from windlass import App

app = App("shop.db")

@app.job(name="mail", kind="process", max_attempts=1)
def mail(to: str) -> None:
    record = logging.getLogger("shop").makeRecord("shop", 30, "", 0, "hello", (), None)
    print(sorted(name for name in ("run", "job", "attempt", "queue", "worker") if name in record.__dict__))
    raise ValueError("to " + to + chr(10) + "second line")

@app.job(name="bill", max_attempts=1)
def bill() -> None:
    logging.getLogger("shop").warning("order %d", 7, extra={"customer": "ann"})
    raise ValueError("too much")
"""


def test_with_log_format_json_every_line_of_a_worker_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    environment = os.environ | {"WINDLASS_STORE": str(tmp_path / "shop.db")}
    windlass = [sys.executable, "-m", "windlass"]
    with App(str(tmp_path / "shop.db")) as app:
        app.verbs  # noqa: B018 - the store is made
        words = [*windlass, "work", "shop:app", "--burst", "--name", "w9", "--log-format", "json"]
        sent = "from shop import *; print(mail.enqueue('ann').id, bill.enqueue().id)"
        first = subprocess.run([sys.executable, "-c", sent], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        mail, bill = first.stdout.split()
        printed = [line.text for line in run_sync(app.verbs.lines(mail))]
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() and datetime.fromisoformat(line["time"]).tzinfo for line in said)
    failed = {line["run"]: line for line in said if line["level"] == "error"}
    assert failed.keys() == {mail, bill}
    for run, job, where in ((mail, "mail", "in mail"), (bill, "bill", "in bill")):
        line = failed[run]
        assert (line["job"], line["attempt"], line["queue"], line["worker"], line["logger"]) == (job, 1, "default", "w9", "windlass.worker")
        assert where in line["traceback"]
        assert "ValueError" in line["traceback"]
        assert line["duration"] >= 0
    (order,) = [line for line in said if line["logger"] == "shop"]
    assert (order["message"], order["customer"], order["run"], order["level"]) == ("order 7", "ann", bill, "warning")
    assert printed == ["['attempt', 'job', 'queue', 'run', 'worker']"]  # in the process of a handler as well


def test_no_record_breaks_the_line_it_is_on() -> None:
    record = logging.LogRecord("shop", 30, "", 0, "a\nb\u2028\ud800 %s", ("\x00",), None)
    record.__dict__ |= {"level": "mine", "odd": float("nan"), "thing": object, "count": 3, "none": None}
    text = JsonFormat().format(record)
    assert "\n" not in text
    assert text.isascii()
    said = json.loads(text, parse_constant=pytest.fail)
    assert (said["message"], said["level"], said["odd"], said["count"], said["none"]) == (
        "a\nb\u2028\ud800 \x00",
        "warning",
        "nan",
        3,
        None,
    )
