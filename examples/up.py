"""`make up`: a worker for the example shop, customers who keep it busy, and all that happens, live. Ctrl-C drains."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Protocol

import shop
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.layout import Layout
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from windlass import App, Handle, State
from windlass.cli.output import as_json, cell, clean, line
from windlass.cli.views import STYLES, opened, progress_of
from windlass.clock import Clock
from windlass.errors import WrongState
from windlass.machine import ENDED, LIVE
from windlass.model import Entry, LogLine, Run
from windlass.store.base import run_sync

WORKER, SLOTS = "worker-1", 4
FRAMES_PER_SECOND = 4
RATE_OVER = 10_000  # milliseconds
WIDE = 130  # columns from which on there is room for whole ids
MOST_UNFINISHED = 24
CHANCE = 0.5  # of something new in a frame
DOUBT = 1_500  # milliseconds that a report runs before somebody no longer wants it
OK, WORKER_LOST, ABORTED = 0, 1, 130


class Customers:
    """Who keeps the shop busy: with one of everything at first, then with a trickle of this and that."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.orders, self.pictures = clock, 0, 0
        self.doubtful: list[Handle[dict[str, int]]] = []
        self.wishes = [self.want_report, self.order, self.doubt_report, self.upload, self.order, self.order]

    def come(self, unfinished: int) -> None:
        """Ask for one thing or for nothing; and perhaps think better of another."""
        self.change_minds()
        if self.wishes:
            self.wishes.pop(0)()
        elif unfinished < MOST_UNFINISHED and self.clock.chance() < CHANCE:
            self.anything()()

    def anything(self) -> Callable[[], None]:
        choices = (*[self.order] * 5, *[self.upload] * 3, *[self.write_all] * 2, self.want_report, self.doubt_report)
        return choices[int(self.clock.chance() * len(choices))]

    def order(self) -> None:
        self.orders += 1
        shop.place_order(self.orders, card="stolen" if self.orders % 7 == 2 else "good", to="ann@example.com")

    def upload(self) -> None:
        self.pictures += 1
        shop.thumbnail.enqueue(f"cat-{self.pictures}.png")

    def write_all(self) -> None:
        shop.app.enqueue_many(
            shop.mail.options(priority=-1).new(f"{name}@example.com", "new in the shop") for name in ("ann", "bob", "eve")
        )

    def want_report(self) -> None:
        shop.report.enqueue("May")

    def doubt_report(self) -> None:
        self.doubtful.append(shop.report.enqueue("June"))

    def change_minds(self) -> None:
        """Cancel the reports that nobody wants any more, while they run."""
        for handle in list(self.doubtful):
            run = handle.refresh()
            if run.started_at is not None and self.clock.now() - run.started_at > DOUBT:
                self.doubtful.remove(handle)
                with suppress(WrongState):  # it has ended meanwhile
                    handle.cancel(reason="nobody wants it any more")


class Board:
    """All runs, kept up to date by the journal: what has neither changed nor is in a worker's hands is not read again."""

    def __init__(self, app: App) -> None:
        self.engine, self.clock = app.engine, app.clock
        self.began = self.clock.now()
        self.unfinished: dict[str, Run] = {}
        self.ended: deque[Run] = deque(maxlen=200)  # the latest first
        self.ends: Counter[tuple[str, State]] = Counter()
        self.retries: Counter[str] = Counter()
        self.snoozes: Counter[str] = Counter()
        self.log: deque[tuple[Run, LogLine]] = deque(maxlen=200)
        self._cursor: str | None = None
        self._heard: dict[str, tuple[int, int]] = {}
        self._ended_at: deque[int] = deque()

    def look(self) -> tuple[list[tuple[Entry, Run]], list[tuple[Run, LogLine]]]:
        """Read what is new: the changes of state, and the log lines."""
        entries = list(self._entries())
        live = [run.id for run in self.unfinished.values() if run.state in LIVE]
        lines = [said for run_id in dict.fromkeys([*live, *(entry.run for entry in entries)]) for said in self._read(run_id)]
        self.log.extend(lines)
        changes = [(entry, self.unfinished[entry.run]) for entry in entries]
        for entry, run in changes:
            self._count(entry, run)
        return changes, lines

    def _entries(self) -> Iterator[Entry]:
        more = True
        while more:
            page = run_sync(self.engine.tail(self._cursor))
            more, self._cursor = bool(page.entries), page.cursor
            yield from page.entries

    def _read(self, run_id: str) -> list[tuple[Run, LogLine]]:
        run = self.unfinished[run_id] = run_sync(self.engine.get(run_id))
        lines = run_sync(self.engine.lines(run_id, after=self._heard.get(run_id, (0, 0))))
        if lines:
            self._heard[run_id] = lines[-1].attempt, lines[-1].n
        return [(run, said) for said in lines]

    def _count(self, entry: Entry, run: Run) -> None:
        self.retries[run.job] += entry.move in ("fail", "lapse") and entry.state not in ENDED
        self.snoozes[run.job] += entry.move == "snooze"
        if entry.state in ENDED:
            self.ends[run.job, entry.state] += 1
            self._ended_at.append(entry.at)
            self._heard.pop(run.id, None)
            self.ended.appendleft(self.unfinished.pop(run.id))

    def counts(self) -> Counter[State]:
        """How many runs are in each state."""
        found = Counter(run.state for run in self.unfinished.values())
        for (_, state), count in self.ends.items():
            found[state] += count
        return found

    def rate(self) -> float:
        """Ends per second, of late."""
        now = self.clock.now()
        while self._ended_at and self._ended_at[0] < now - RATE_OVER:
            self._ended_at.popleft()
        return 1000 * len(self._ended_at) / max(1000, min(RATE_OVER, now - self.began))

    def rows(self, room: int) -> list[Run]:
        """The runs to show: those in a worker's hands, then what comes next, then what has ended, none of them crowding out the others."""
        live = sorted((run for run in self.unfinished.values() if run.state in LIVE), key=lambda run: run.claimed_at or 0)[:room]
        order = (State.QUEUED, State.SCHEDULED, State.WAITING)
        later = sorted(
            (run for run in self.unfinished.values() if run.state in order), key=lambda run: (order.index(run.state), run.due_at)
        )
        later = later[: max((room - len(live)) // 2, room - len(live) - len(self.ended))]
        return [*live, *later, *self.ended][:room]


# How it looks. What handlers have written is shown as it is, whatever is in it: `line` and `cell` leave nothing that acts on a terminal.


def short(run: Run) -> str:
    return run.id[-4:]


def tries(run: Run) -> str:
    """How often it was tried so far, of how often it may be. A snooze begins a new attempt, but burns no try."""
    return f"{run.burnt + (run.state in LIVE or run.state is State.SUCCEEDED)}/{run.max_attempts}"


def remark(run: Run, now: int) -> str:
    """What matters most about a run in its state."""
    problem = line(f"{run.error.code}: {run.error.message}") if run.error else ""
    match run.state:
        case State.SCHEDULED:
            why = problem or ("snoozed" if run.returns else "")
            return f"in {max(0, run.due_at - now) / 1000:.1f} s  {why}".rstrip()
        case State.WAITING:
            return "for the one before it"
        case State.SUCCEEDED:
            output = opened(run.output)
            return line(output if isinstance(output, str) else "" if output is None else as_json(output))
        case _:
            return line(run.reason or "") or problem


def progress(run: Run, now: int) -> RenderableType:
    """A bar while it runs and says how far it is; else a remark."""
    said = progress_of(run) if run.state is State.RUNNING else None
    if said is None:
        return cell(remark(run, now), style="" if run.state in LIVE else "dim")
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(ProgressBar(total=1.0, completed=said[0], width=12), f"{said[0]:4.0%}", cell(said[1]))
    return grid


def table_of(runs: list[Run], now: int, *, wide: bool) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("state", "job", "run", "try", "worker", "age"):
        table.add_column(header, no_wrap=True, justify="right" if header == "age" else "left")
    table.add_column("", no_wrap=True, ratio=1)
    for run in runs:
        name = Text(run.id if wide else short(run), style="dim")
        state, worker = Text(run.state, style=STYLES[run.state]), cell(run.worker or "", style="dim")
        table.add_row(state, cell(run.job), name, tries(run), worker, f"{(now - run.created_at) // 1000} s", progress(run, now))
    return table


def counts_of(board: Board) -> Columns:
    always = (State.QUEUED, State.RUNNING, State.SUCCEEDED)
    counts = board.counts()
    shown = [state for state in State if counts[state] or state in always]
    return Columns([Text.assemble((f"{counts[state]} ", "bold"), (state, STYLES[state])) for state in shown], padding=(0, 2))


def log_of(board: Board, room: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, ratio=1)
    for run, said in list(board.log)[-room:]:
        grid.add_row(Text.assemble((line(run.job), "cyan"), (f" {short(run)}", "dim")), cell(said.text))
    return grid


class Screen:
    """Everything at one glance, in as much room as there is."""

    def __init__(self, board: Board, place: str) -> None:
        self.board, self.place, self.word = board, place, ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        lines = max(2, height // 5)
        now = self.board.clock.now()
        layout = Layout()
        layout.split_column(
            Layout(self._head(now), size=1),
            Layout(counts_of(self.board), size=2),
            Layout(table_of(self.board.rows(max(0, height - lines - 6)), now, wide=width >= WIDE)),
            Layout(Rule("log", style="dim", align="left"), size=1),
            Layout(log_of(self.board, lines), size=lines),
            Layout(self._foot(), size=1),
        )
        yield layout

    def _head(self, now: int) -> Table:
        grid = Table.grid(expand=True)
        grid.add_column(no_wrap=True, ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_row(Text.assemble(("windlass", "bold"), "  ", (line(self.place), "dim")), _so_far(self.board, now))
        return grid

    def _foot(self) -> Text:
        return cell(self.word, style="bold yellow") if self.word else cell("Ctrl-C drains: what runs may finish", style="dim")


def _so_far(board: Board, now: int) -> str:
    return f"{board.rate():.1f} runs/s  {(now - board.began) // 1000} s"


class View(Protocol):
    """What shows the board to somebody."""

    def show(self) -> None:
        """Look at the board, and show what is new."""

    def say(self, word: str) -> None:
        """Tell people what happens now."""

    def close(self) -> None:
        """Show nothing more."""


class LiveView:
    """For a terminal: the screen, drawn anew with every look."""

    def __init__(self, board: Board, console: Console, place: str) -> None:
        self.board, self.screen = board, Screen(board, place)
        self.live = Live(self.screen, console=console, screen=True, auto_refresh=False)
        self.live.start()

    def show(self) -> None:
        self.board.look()
        self.live.refresh()

    def say(self, word: str) -> None:
        self.screen.word = word

    def close(self) -> None:
        self.live.stop()


class PlainView:
    """For a file or a pipe: a line for every change of state, every quarter of progress and everything that is logged."""

    def __init__(self, board: Board, console: Console, place: str) -> None:
        self.board, self.console = board, console
        self._quarters: dict[str, int] = {}
        self.say(f"The runs are kept in {place}.")

    def show(self) -> None:
        changes, lines = self.board.look()
        told = [(said.at, self._line(said.at, run, "|", line(said.text))) for run, said in lines]
        told += [(entry.at, self._line(entry.at, run, f"{entry.move:8} {entry.state:10}", _then(entry, run))) for entry, run in changes]
        told += self._quarters_of_progress()
        for _, text in sorted(told, key=lambda item: item[0]):
            self.say(text)

    def _quarters_of_progress(self) -> Iterator[tuple[int, str]]:
        now = self.board.clock.now()
        live = [(run, said) for run in self.board.unfinished.values() if run.state in LIVE and (said := progress_of(run))]
        for run, (fraction, message) in live:
            if int(fraction * 4) > self._quarters.get(run.id, 0):
                yield now, self._line(now, run, "progress", f"{fraction:.0%} {line(message)}")
        self._quarters = {run.id: int(fraction * 4) for run, (fraction, _) in live}

    def _line(self, at: int, run: Run, what: str, more: str) -> str:
        return f"{(at - self.board.began) / 1000:7.2f} s  {line(run.job):9} {short(run)}  {tries(run)}  {what}  {more}".rstrip()

    def say(self, word: str) -> None:
        self.console.print(Text(word), soft_wrap=True)
        self.console.file.flush()

    def close(self) -> None:
        pass


def _then(entry: Entry, run: Run) -> str:
    """What is known of a change; nothing when the run has moved on since."""
    return remark(run, entry.at) if entry.rev == run.rev else ""


def summary(board: Board) -> Table:
    """What became of everything, by job."""
    columns: dict[str, Callable[[str], int]] = {
        "succeeded": lambda job: board.ends[job, State.SUCCEEDED],
        "failed": lambda job: board.ends[job, State.FAILED],
        "cancelled": lambda job: board.ends[job, State.CANCELLED],
        "not ended": lambda job: sum(run.job == job for run in board.unfinished.values()),
        "retries": lambda job: board.retries[job],
        "snoozes": lambda job: board.snoozes[job],
    }
    jobs = sorted({job for job, _ in board.ends} | {run.job for run in board.unfinished.values()})
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("job")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for job in jobs:
        table.add_row(cell(job), *(str(count(job) or "·") for count in columns.values()))
    table.add_row("together", *(str(sum(map(count, jobs))) for count in columns.values()), style="bold")
    return table


class Worker:
    """`windlass work shop:app`, in a session of its own: a Ctrl-C in the terminal is meant for us, and we pass it on."""

    def __init__(self, store: str) -> None:
        self.log = Path(f"{store}.worker.log")
        command = [sys.executable, "-m", "windlass", "work", "shop:app", "--name", WORKER, "--slots", str(SLOTS)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=shop.HERE, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def ended_well(self) -> bool:
        return self.process.returncode in (0, -signal.SIGTERM)  # the latter when it was told before it had begun

    def stop(self, times: int) -> None:
        """The first time it drains, the second time it aborts; then it is killed."""
        if times > 2:
            self.process.kill()
        elif self.running:
            self.process.terminate()

    def close(self) -> None:
        """Leave nothing behind when we fail ourselves."""
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Up:
    """The worker, the customers and the view, until somebody asks to stop and the worker has drained."""

    words = ("Draining: what runs may finish, nothing new begins. Ctrl-C again aborts.", "Aborting what runs.", "Killing the worker.")

    def __init__(self, board: Board, view: View, seconds: float | None) -> None:
        self.board, self.view, self.clock = board, view, board.clock
        self.customers = Customers(self.clock)
        self.ends_at = None if seconds is None else self.clock.monotonic() + seconds * 1000
        self.asked = self.told = 0
        self.next_frame = threading.Event()

    def ask_to_stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        self.asked += 1
        self.next_frame.set()

    def run(self, worker: Worker) -> int:
        """Go on until the worker has ended; the exit code."""
        while worker.running:
            if self.ends_at is not None and self.clock.monotonic() >= self.ends_at and not self.asked:
                self.asked = 1
            if self.told < self.asked:
                self.pass_on(worker)
            elif not self.asked:
                self.customers.come(len(self.board.unfinished))
            self.view.show()
            self.next_frame.wait(1 / FRAMES_PER_SECOND)
            self.next_frame.clear()
        self.view.show()
        if self.told > 1:
            return ABORTED
        return OK if self.told and worker.ended_well else WORKER_LOST

    def pass_on(self, worker: Worker) -> None:
        """Tell the worker what we were told."""
        self.told += 1
        self.view.say(self.words[min(self.told, len(self.words)) - 1])
        worker.stop(self.told)


@contextmanager
def signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """What else would end this process calls the handler instead."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Show windlass at work.")
    parser.add_argument("--seconds", type=float, metavar="N", help="drain after so many seconds instead of at Ctrl-C")
    parser.add_argument("--store", metavar="FILE", help="go on with this file (default: a new one)")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    store = os.path.abspath(arguments.store or Path(tempfile.mkdtemp(prefix="windlass-"), "shop.db"))
    os.environ["WINDLASS_STORE"] = store  # for the app here, and for the worker
    console = Console(markup=False, highlight=False, emoji=False)
    with shop.app:
        board = Board(shop.app)
        with closing(view_of(board, console, store)) as view:
            up = Up(board, view, arguments.seconds)
            with signals(up.ask_to_stop), closing(Worker(store)) as worker:
                code = up.run(worker)
    say_end(console, board, worker, store, code)
    return code


def view_of(board: Board, console: Console, place: str) -> View:
    # Rich calls a pipe a terminal too where colours are forced.
    drawn = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    return LiveView(board, console, place) if drawn else PlainView(board, console, place)


def say_end(console: Console, board: Board, worker: Worker, store: str, code: int) -> None:
    """The summary, and what can be done next."""
    console.print(summary(board))
    ended = sum(board.ends.values())
    console.print(f"\n{ended} runs have ended in {(board.clock.now() - board.began) / 1000:.0f} s.", soft_wrap=True)
    if board.unfinished:
        console.print(f"{len(board.unfinished)} have not; they are kept. Go on:  make up ARGS='--store {store}'", soft_wrap=True)
    console.print(f"Look at them:  {sys.executable} -m windlass runs --store {store}", soft_wrap=True)
    if code == WORKER_LOST:
        console.print(f"The worker did not end well; its last words in {worker.log}:", style="bold red", soft_wrap=True)
        console.print(Text(clean(worker.log.read_text(errors="replace")[-2_000:])), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
