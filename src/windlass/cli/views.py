"""How runs, their attempts, history and logs are shown to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import DecodeError
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from windlass import defaults, payload
from windlass.answers import MAX_AHEAD, RunDetail
from windlass.cli.output import as_json, cell, clean, facts_table, line, table
from windlass.durations import span as span
from windlass.durations import spelled
from windlass.machine import LIVE
from windlass.model import Attempt, Entry, Failure, LogLine, Run, State, Step

STYLES = {
    State.WAITING: "blue",
    State.SCHEDULED: "blue",
    State.QUEUED: "",
    State.CLAIMED: "cyan",
    State.RUNNING: "cyan",
    State.CANCELLING: "yellow",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.QUARANTINED: "bold red",
    State.CANCELLED: "yellow",
    State.SKIPPED: "yellow",
}


def opened(text: str | None) -> Any:
    """The value of a stored JSON text; the text itself if it is not JSON."""
    try:
        return None if text is None else payload.decode(text)
    except DecodeError:
        return text


def moment(ms: int) -> str:
    """A time as local time."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _clock_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def ago(at: int, now: int) -> str:
    """The distance of a time from now."""
    if abs(now - at) < 1_000:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def _moment_and_ago(at: int, now: int) -> str:
    return f"{moment(at)} ({ago(at, now)})"


def progress_of(run: Run) -> tuple[float, str] | None:
    """The progress of a run, from 0 to 1, and its message."""
    match opened(run.progress):
        case {"fraction": int() | float() as fraction, **rest}:
            message = rest.get("message")
            return min(max(float(fraction), 0.0), 1.0), message if isinstance(message, str) else ""
        case _:
            return None


def state_text(run: Run) -> Text:
    progress = progress_of(run) if run.state is State.RUNNING else None
    return Text(run.state + (f" {progress[0]:.0%}" if progress else ""), style=STYLES[run.state])


def _job_text(run: Run) -> Text:
    elsewhere = f" in {line(run.queue)}" if run.queue != defaults.QUEUE else ""
    return Text.assemble(line(run.job), (elsewhere, "dim"))


def _when(run: Run, now: int) -> str:
    """The most relevant time in its state."""
    if run.finished_at is not None:
        return ago(run.finished_at, now)
    return ago(run.due_at if run.state is State.SCHEDULED else run.started_at or run.created_at, now)


def executions(run: Run) -> int:
    """How many of its tries a run has begun; snoozes and requeues cost none."""
    return run.failures + (run.state in (*LIVE, State.SUCCEEDED))


def run_table(runs: Iterable[Run], now: int) -> Table:
    """A line for each run."""
    grid = table("id", "state", "job", "tries", "when", cut=("job",))
    for run in runs:
        grid.add_row(cell(run.id), state_text(run), cell(_job_text(run)), f"{executions(run)}/{run.max_attempts}", _when(run, now))
    return grid


def _facts(run: Run, now: int) -> Iterable[tuple[str, str | None]]:
    yield "job", line(run.job) if run.policy.handler is None else f"{line(run.job)}, by the handler {line(run.policy.handler)}"
    yield "queue", f"{line(run.queue)}, priority {run.priority}"
    yield "tries", f"{run.failures} of {run.max_attempts} used up; this is attempt {run.attempt}"
    yield "created", _moment_and_ago(run.created_at, now)
    yield "instant", _moment_and_ago(run.instant, now) if run.instant is not None else None
    yield "due", _moment_and_ago(run.due_at, now) if run.claimed_at is None and run.due_at > run.created_at else None
    yield "started", _moment_and_ago(run.started_at, now) if run.started_at is not None else None
    yield "finished", _moment_and_ago(run.finished_at, now) if run.finished_at is not None else None
    yield "kept", spelled(run.keep) if run.keep is not None else None
    yield "worker", line(run.worker) if run.worker else None
    # Of a later attempt it is the one before, of this very run.
    yield "rerun of", line(run.retry_of) if run.retry_of and run.attempt == 1 else None
    yield "reason", line(run.reason) if run.reason else None
    yield "payload", as_json(opened(run.payload))
    yield "output", as_json(opened(run.output)) if run.output is not None else None
    yield "meta", as_json(opened(run.meta)) if run.meta is not None else None


def _whereabouts(run: RunDetail) -> Iterable[tuple[str, str | None]]:
    schedule, group, place = run.origin.schedule, run.origin.group, run.origin.place
    yield "ahead", _ahead(run.ahead) if run.ahead is not None else None
    yield "schedule", line(schedule) if schedule is not None else None
    yield "group", f"{line(group)}, place {place}" if group is not None else None


def _ahead(number: int) -> str:
    return f"{number:,} queued with its priority" + (" or more" if number == MAX_AHEAD else "")


def run_facts(run: RunDetail, now: int, *, drawn: bool) -> RenderableType:
    """The fields of a run, with a bar for its progress where it can be drawn."""
    grid = facts_table()
    grid.add_row("run", Text(line(run.id), style="bold"))
    grid.add_row("state", state_text(run))
    if progress := progress_of(run):
        grid.add_row("progress", _bar(*progress, drawn=drawn))
    for name, value in (*_facts(run, now), *_whereabouts(run)):
        if value is not None:
            grid.add_row(name, Text(value))
    return grid


def _bar(fraction: float, message: str, *, drawn: bool) -> RenderableType:
    words = Text(f"{fraction:.0%}  {line(message)}".rstrip())
    if not drawn:
        return words
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(ProgressBar(total=1.0, completed=fraction, width=24), words)
    return grid


def failure_text(error: Failure) -> RenderableType:
    """An error with its detail."""
    head = Text.assemble((line(error.code), "bold red"), ": ", line(error.message))
    return Group(head, Padding(Text(clean(error.detail.rstrip()), style="dim"), (0, 0, 0, 2), expand=False)) if error.detail else head


def attempt_table(attempts: Sequence[Attempt], now: int) -> Table:
    """A line for each attempt, with its payload where the run was patched after any of them."""
    patched = any(attempt.payload is not None for attempt in attempts)
    payloads = ("payload",) if patched else ()
    grid = table("n", "outcome", "worker", "began", "took", "error", *payloads, cut=("worker", "error", *payloads))
    for attempt in attempts:
        began = attempt.started_at or attempt.claimed_at
        took = "" if began is None else span((attempt.finished_at or now) - began)
        error = f"{attempt.error.code}: {attempt.error.message}" if attempt.error else ""
        outcome, begun = line(attempt.outcome), "" if began is None else _clock_time(began)
        payload = [cell("" if attempt.payload is None else as_json(opened(attempt.payload)))] if patched else []
        grid.add_row(str(attempt.n), outcome, cell(attempt.worker or ""), begun, took, cell(error), *payload)
    return grid


def history_table(entries: Sequence[Entry]) -> Table:
    """A line for each change of state."""
    grid = table("time", "move", "state", "worker", "detail", cut=("worker",), folded=("detail",))
    for entry in entries:
        detail = "" if entry.detail is None else as_json(opened(entry.detail))
        state = Text(entry.state, style=STYLES[entry.state])
        grid.add_row(_clock_time(entry.at), cell(entry.move), state, cell(entry.worker or ""), Text(line(detail)))
    return grid


def step_table(steps: Sequence[Step]) -> Table:
    """A line for each completed step."""
    grid = table("time", "step", "result", cut=("step", "result"))
    for step in steps:
        grid.add_row(_clock_time(step.at), cell(step.key), cell(as_json(opened(step.output))))
    return grid


def log_text(log: LogLine) -> Text:
    """A log line with its time; for later attempts also the number of the attempt."""
    attempt = f"#{log.attempt} " if log.attempt > 1 else ""
    return Text.assemble((f"{_clock_time(log.at)} {attempt}", "dim"), line(log.text))
