"""The example shop, and the program behind `make up`: what it shows, and that stopping it loses nothing."""

from __future__ import annotations

import asyncio
import errno
import importlib
import io
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from windlass import App, Context, Fail, Snooze, State
from windlass.clock import ManualClock
from windlass.machine import LIVE
from windlass.machine import Fail as FailReport
from windlass.model import Failure, Run, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held
from windlass.worker.context import Call

if sys.platform != "win32":
    import fcntl
    import pty
    import termios

EXAMPLES = Path(__file__).parent.parent / "examples"
PATIENCE = 120  # seconds; only a hang takes that long
HOSTILE = "[bold red]not markup[/] \x1b[2Jno escape\r\nno second line \u202e" + "x" * 500


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


@pytest.fixture
def up(shop: ModuleType) -> ModuleType:
    return importlib.import_module("up")


# The shop


class _Ear:
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


# The view


class Desk:
    """The board of a shop whose worker is played by the test."""

    def __init__(self, up: ModuleType) -> None:
        self.app = App(":memory:", clock=ManualClock())
        self.clock: Any = self.app.clock
        self.app.job(name="report")(_nothing)
        self.board = up.Board(self.app)
        self.screen = up.Screen(self.board, "/tmp/shop.db")
        self.engine = self.app.engine

    def running(self, name: str = "w1") -> Run:
        """A run that is in a worker's hands."""
        self.app.enqueue("report")
        (run,) = run_sync(self.engine.claim(WorkerInfo(name, slots=100)))
        run_sync(self.engine.start(run.id, run.token or ""))
        return run

    def tell(self, run: Run, progress: str, line: str) -> None:
        held = Held(run.seq, run.token or "")
        run_sync(self.engine.beat([held], progress={held: progress}))
        run_sync(self.engine.log(run.id, run.token or "", [(1, line)]))

    def fail(self, run: Run, message: str, *, retry: bool = True) -> None:
        run_sync(self.engine.report(run.id, FailReport(token=run.token, error=Failure("boom", message), retry=retry)))

    def drawn(self, width: int, height: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width, height=height, record=True, force_terminal=True, legacy_windows=False)
        console.print(self.screen, height=height, end="")
        return console.export_text().splitlines()


def _nothing() -> None:
    pass


@pytest.fixture
def desk(up: ModuleType) -> Desk:
    return Desk(up)


def _busy(desk: Desk) -> None:
    desk.tell(desk.running(), '{"fraction":0.5,"message":"half way"}', "INFO it begins")
    desk.fail(desk.running(), "broken")
    desk.fail(desk.running(), "beyond repair", retry=False)
    desk.board.look()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10)])
def test_the_screen_fits_the_terminal(desk: Desk, width: int, height: int) -> None:
    for _ in range(30):
        desk.tell(desk.running(), f'{{"fraction":0.5,"message":"{"m" * 300}"}}', "l" * 300)
        _busy(desk)
    lines = desk.drawn(width, height)
    assert len(lines) == height
    assert {len(line) for line in lines} <= {width}
    assert lines[-1].startswith("Ctrl-C drains")


def test_the_screen_shows_state_progress_tries_errors_log_and_counts(desk: Desk) -> None:
    _busy(desk)
    text = "\n".join(desk.drawn(80, 24))
    assert re.search(r"running +report +\w{4} +1/3 +w1 +0 s +━+.* 50% half way", text)
    assert re.search(r"scheduled +report +\w{4} +1/3 .* in \d\.\d s  boom: broken", text)
    assert re.search(r"failed +report +\w{4} +1/3 +w1 .* boom: beyond repair", text)
    assert re.search(r"report \w{4} +INFO it begins", text)
    assert "0 queued" in text
    assert "1 running" in text
    assert "1 failed" in text
    assert "1.0 runs/s" in text


def test_what_a_handler_wrote_does_nothing_to_the_terminal(desk: Desk) -> None:
    run = desk.running(name="[red]w[/]")
    desk.tell(run, '{"fraction":0.5,"message":"\\u001b[2J[bold]m[/]"}', HOSTILE)
    desk.fail(desk.running(), HOSTILE)
    desk.board.look()
    console = Console(file=io.StringIO(), width=200, height=24, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(desk.screen, height=24)
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "[bold red]not markup[/]" in text
    assert "[red]w[/]" in text


def test_the_plain_view_escapes_it_too(up: ModuleType, desk: Desk) -> None:
    file = io.StringIO()
    view = up.PlainView(desk.board, Console(file=file, width=80, markup=False, highlight=False, emoji=False), "/tmp/shop.db")
    desk.tell(desk.running(), '{"fraction":0.5,"message":"\\u001b[2J[bold]m[/]"}', HOSTILE)
    desk.fail(desk.running(), HOSTILE, retry=False)
    view.show()
    text = file.getvalue()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("[bold red]not markup[/] \\x1b[2Jno escape\\x0d\\nno second line") == 2
    assert "50% \\x1b[2J[bold]m[/]" in text


def test_what_runs_waits_and_has_ended_share_the_rows(desk: Desk) -> None:
    for _ in range(9):
        desk.fail(desk.running(), "broken", retry=False)
    live = [desk.running().id for _ in range(2)]
    for _ in range(30):
        desk.app.enqueue("report", delay=60)
    queued = desk.app.enqueue("report").id
    desk.board.look()
    rows = desk.board.rows(10)
    assert [run.id for run in rows[:2]] == live
    assert rows[2].id == queued
    assert [run.state for run in rows[2:]] == ["queued"] + ["scheduled"] * 3 + ["failed"] * 4
    assert len(desk.board.rows(100)) == 9 + 2 + 31
    assert len(desk.board.rows(1)) == 1


def test_a_run_is_counted_once_however_often_the_board_looks(desk: Desk) -> None:
    _busy(desk)
    for _ in range(3):
        assert desk.board.look() == ([], [])
    assert desk.board.counts() == {State.RUNNING: 1, State.SCHEDULED: 1, State.FAILED: 1}
    assert (desk.board.retries["report"], desk.board.ends["report", State.FAILED]) == (1, 1)


def test_only_what_runs_is_read_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(50):
        desk.fail(desk.running(), "broken", retry=False)
    live = desk.running()
    desk.app.enqueue("report", delay=60)
    desk.board.look()
    asked: list[str] = []
    get = desk.engine.get

    async def counted(run_id: str) -> Run:
        asked.append(run_id)
        return await get(run_id)

    monkeypatch.setattr(desk.engine, "get", counted)
    desk.board.look()
    assert set(asked) == {live.id}


def test_the_live_view_restores_the_terminal(up: ModuleType, desk: Desk) -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, legacy_windows=False, _environ={"TERM": "xterm"})
    view = up.LiveView(desk.board, console, "/tmp/shop.db")
    assert isinstance(view.live, Live)
    view.show()
    view.close()
    file = console.file
    assert isinstance(file, io.StringIO)
    assert file.getvalue().count("\x1b[?1049h") == file.getvalue().count("\x1b[?1049l") == 1


# The program, as people start it


class Program:
    """`examples/up.py`, and what it has printed so far."""

    def __init__(self, store: Path, *arguments: str, terminal: bool = False) -> None:
        self.store, self.text, self._ended = store, "", threading.Event()
        self._news = threading.Condition()
        command = [sys.executable, str(EXAMPLES / "up.py"), "--store", str(store), *arguments]
        self.end, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            become = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
            command = [sys.executable, "-c", become, *command]
        self.process = subprocess.Popen(
            command,
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while data := self._piece():
            with self._news:
                self.text += data.decode("utf-8", "replace")
                self._news.notify_all()
        with self._news:
            self._ended.set()
            self._news.notify_all()

    def _piece(self) -> bytes:
        try:
            return os.read(self.end, 65_536)
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal says that nobody is there any more
                return b""
            raise

    def see(self, *patterns: str) -> None:
        """Wait until all of these have been printed."""

        def seen() -> bool:
            return all(re.search(pattern, self.text) for pattern in patterns)

        with self._news:
            self._news.wait_for(lambda: seen() or self._ended.is_set(), PATIENCE)
        missing = [pattern for pattern in patterns if not re.search(pattern, self.text)]
        assert not missing, f"{missing} not in:\n{self.text}"

    def code(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self.end)

    def runs(self) -> list[Run]:
        with App(self.store) as app:
            return app.runs(count=1_000).runs


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(*arguments: str, **how: Any) -> Program:
        started.append(Program(tmp_path / "shop.db", *arguments, **how))
        return started[-1]

    yield start
    for program in started:
        program.close()


def _nothing_is_held(program: Program) -> None:
    """The worker has drained: nothing is in its hands, and what was interrupted has burnt no try."""
    runs = program.runs()
    assert runs
    assert [run.id for run in runs if run.state in LIVE] == []
    assert {run.error.code for run in runs if run.error} <= {"ConnectionError", "stolen_card"}


def _numbers(program: Program, row: str) -> list[int]:
    """A row of the summary."""
    found = re.findall(rf"^{row} +(.*?)\s*$", program.text, re.M)
    return [0 if word == "·" else int(word) for word in found[-1].split()]


def test_in_a_pipe_it_tells_everything_and_drains_at_a_signal(start: Callable[..., Program]) -> None:
    program = start()
    program.see(
        r"charge .* fail +scheduled +in \d\.\d s  ConnectionError",
        r"charge .* 3/4 .* succeeded",
        r"charge .* failed +stolen_card",
        r"label .* cancelled +predecessor failed",
        r"label .* progress",
        r'label .* succeeded +\{"label"',
        r"report .* cancelling",
        r"report .* confirm +cancelled +nobody wants it any more",
        r"report .* progress +[57]",
        r"thumbnail .* succeeded .*\.png",
        r"track .* snooze +scheduled",
        r"track .* delivered",
        r"mail .* \|  INFO ann@example.com: thanks",
    )
    os.killpg(program.process.pid, signal.SIGINT)  # as a terminal does: to everyone in the foreground
    assert program.code() == 0
    assert "Draining" in program.text
    assert "\x1b" not in program.text
    _nothing_is_held(program)
    succeeded, failed, cancelled, not_ended, retries, snoozes = _numbers(program, "together")
    assert succeeded + failed + cancelled + not_ended == len(program.runs())
    assert min(succeeded, failed, cancelled, retries, snoozes) > 0


def test_it_ends_by_itself_and_goes_on_where_it_stopped(start: Callable[..., Program]) -> None:
    first = start("--seconds", "0.5")
    assert first.code() == 0
    _nothing_is_held(first)
    before = {run.id for run in first.runs()}
    assert start("--seconds", "0.5").code() == 0
    assert before < {run.id for run in first.runs()}


def test_a_second_signal_aborts(start: Callable[..., Program]) -> None:
    program = start()
    program.see(r"report .* start +running")
    program.process.send_signal(signal.SIGTERM)
    program.see("Draining")
    program.process.send_signal(signal.SIGTERM)
    assert program.code() == 130
    assert "Aborting" in program.text
    assert [run.id for run in program.runs() if run.state in LIVE] == []


def test_in_a_terminal_it_draws_and_control_c_drains(start: Callable[..., Program]) -> None:
    program = start(terminal=True)
    program.see("━", r"report", "succeeded", "scheduled")
    os.write(program.end, b"\x03")
    program.see("Draining", "together")
    assert program.code() == 0
    assert program.text.count("\x1b[?1049h") == program.text.count("\x1b[?1049l") == 1
    _nothing_is_held(program)


class _Dead:
    """A worker that has ended by itself."""

    running = ended_well = False

    def __init__(self, log: Path) -> None:
        self.log = log


class _Draining:
    """A worker that needs a few looks to end, and remembers what it was told."""

    ended_well = True

    def __init__(self, looks: int) -> None:
        self.looks, self.told = looks, list[int]()

    @property
    def running(self) -> bool:
        self.looks -= 1
        return self.looks >= 0

    def stop(self, times: int) -> None:
        self.told.append(times)


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
def test_who_was_asked_to_stop_passes_it_on_and_wants_nothing_new(
    up: ModuleType, desk: Desk, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    monkeypatch.setattr(up, "FRAMES_PER_SECOND", 1_000)
    worker, wanted = _Draining(5), list[int]()
    program = up.Up(desk.board, up.PlainView(desk.board, Console(file=io.StringIO()), "shop.db"), None)
    monkeypatch.setattr(program.customers, "come", wanted.append)
    for _ in range(asked):
        program.ask_to_stop()
    assert program.run(worker) == {0: 1, 1: 0}.get(asked, 130)
    assert worker.told == list(range(1, asked + 1))
    assert bool(wanted) == (not asked)


def test_a_worker_that_ended_by_itself_is_noticed_and_its_last_words_are_shown(up: ModuleType, desk: Desk, tmp_path: Path) -> None:
    worker = _Dead(tmp_path / "shop.db.worker.log")
    worker.log.write_text("[bold]cannot go on[/] \x1b[2J")
    console = Console(file=io.StringIO(), width=80)
    view = up.PlainView(desk.board, console, "shop.db")
    code = up.Up(desk.board, view, None).run(worker)
    up.say_end(console, desk.board, worker, "shop.db", code)
    file = console.file
    assert isinstance(file, io.StringIO)
    assert code == 1
    assert "[bold]cannot go on[/] \\x1b[2J" in file.getvalue()


def test_a_worker_does_not_outlive_a_program_that_fails(up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Worker(up.Worker):  # type: ignore[misc, name-defined]
        def __init__(self, store: str) -> None:
            super().__init__(store)
            started.append(self)

    def fail(view: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(up, "Worker", Worker)
    monkeypatch.setattr(up.PlainView, "show", fail)
    with pytest.raises(ZeroDivisionError):
        up.main(["--store", str(tmp_path / "shop.db")])
    assert [worker.running for worker in started] == [False]
