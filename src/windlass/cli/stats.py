"""The commands about the whole: who works, and how much there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.documents import plain
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell
from windlass.engine import Engine
from windlass.engine.stats import JobStats, Stats
from windlass.machine import LIVE
from windlass.model import Counts, State, Worker
from windlass.store.base import run_sync

WAITING = (State.WAITING, State.SCHEDULED, State.QUEUED)
BAD = (State.FAILED, State.QUARANTINED)
_BARS = " ▁▂▃▄▅▆▇█"


def workers(shell: Shell) -> int:
    """List workers, the living and the lately seen, and what they hold."""
    with shell.engine() as engine:
        found = run_sync(engine.workers(after=shell.arguments.after, count=shell.arguments.limit))
    return shell.answer_list(Verbs.workers, found, _workers, "No workers. Start one: windlass work MODULE:APP")


def _workers(found: Sequence[Worker], now: int) -> Table:
    made = table("worker", "seen", "holds", "queues", "jobs", "machine", cut=("worker", "queues", "jobs", "machine"))
    for worker in found:
        info = worker.info
        seen = Text(views.ago(worker.seen_at, now), style="green" if worker.alive else "red")
        if worker.stopped_at is not None:
            seen = Text(f"stopped {views.ago(worker.stopped_at, now)}", style="dim")
        queues, jobs = (", ".join(names) if names is not None else "all" for names in (info.queues, info.jobs))
        machine = [f"{info.cores} cores", *([f"{info.memory:,} MiB"] if info.memory else []), *info.tags]
        holds = f"{worker.held} of {info.slots}" + (", cannot execute" if worker.alive and worker.metrics.get("unable_ms") else "")
        made.add_row(cell(info.name), seen, holds, cell(queues), cell(jobs), cell(", ".join(machine)))
    return made


def stats(shell: Shell) -> int:
    """Show how many runs there are in each state, and how many there were lately."""
    with shell.engine() as engine:
        if isinstance(engine, Engine):
            while not run_sync(engine.roll_up()):  # a hub counts by itself
                pass
        found = run_sync(engine.stats(minutes=shell.arguments.minutes))
    if shell.output.json:
        shell.output.document(plain(Verbs.stats, found))
        return OK
    shell.output.console.print(_states(found.states))
    shell.output.console.print(Text(line(_lately(found)), style="dim"))
    if found.jobs:
        shell.output.console.print(_jobs(found.jobs))
    return OK


def _states(states: Mapping[State, int]) -> Table:
    made = table("state", "runs")
    for state, number in states.items():
        made.add_row(Text(state, style=views.STYLES[state]), f"{number:,}")
    return made


def _lately(found: Stats) -> str:
    ended = [minute.counts.succeeded for minute in found.minutes]
    most = max(ended)
    bars = "".join(_BARS[-(-number * (len(_BARS) - 1) // most) if most else 0] for number in ended)
    return f"succeeded in each of the last {len(ended)} minutes, at most {most:,}: [{bars}]"


def _jobs(jobs: list[JobStats]) -> Table:
    made = table("job", "queue", "waiting", "held", "succeeded", "failed", "waits", "runs", cut=("job", "queue"))
    for job in jobs:
        waiting, held, bad = (sum(job.states[state] for state in group) for group in (WAITING, LIVE, BAD))
        numbers = (f"{number:,}" for number in (waiting, held, job.states[State.SUCCEEDED], bad))
        made.add_row(cell(job.job), cell(job.queue), *numbers, *_averages(job.lately))
    return made


def _averages(lately: Counts) -> tuple[str, str]:
    """How long a run waited and ran lately."""
    waited = views.span(lately.waited // lately.started) if lately.started else ""
    ran = views.span(lately.ran // lately.attempts) if lately.attempts else ""
    return waited, ran
