"""The commands about workers and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from windlass.answers import JobStats, Stats
from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.context import CommandContext
from windlass.cli.dropping import drop
from windlass.cli.output import cell, line, table
from windlass.cli.rows import LOOK, Commands, option
from windlass.cli.values import NAME, after, limit, number
from windlass.engine import Engine
from windlass.machine import LIVE
from windlass.model import Counts, Limits, State, WorkerRecord
from windlass.store.base import run_sync

WAITING = (State.WAITING, State.SCHEDULED, State.QUEUED)
BAD = (State.FAILED, State.QUARANTINED)
_BARS = " ▁▂▃▄▅▆▇█"

COMMANDS = Commands()


def workers(context: CommandContext) -> int:
    """List live and recently seen workers, and the number of their runs."""
    records = context.call(Verbs.workers, after=context.arguments.after, count=context.arguments.limit)
    return context.answer_list(Verbs.workers, records, _workers, "No workers. Start one: windlass work MODULE:APP")


def _workers(records: Sequence[WorkerRecord], now: int) -> Table:
    grid = table("worker", "seen", "holds", "queues", "jobs", "machine", cut=("worker", "queues", "jobs", "machine"))
    for worker in records:
        info = worker.info
        seen = Text(views.ago(worker.seen_at, now), style="green" if worker.alive else "red")
        if worker.stopped_at is not None:
            seen = Text(f"stopped {views.ago(worker.stopped_at, now)}", style="dim")
        queues = ", ".join(info.queues) if info.queues is not None else "all"
        jobs = ", ".join([*info.jobs, *(["any with a program"] if info.programs else [])]) if info.jobs is not None else "all"
        machine = [f"{info.cores} cores", *([f"{info.memory:,} MiB"] if info.memory else []), *info.tags]
        holds = f"{worker.held} of {info.slots}" + (", cannot execute" if worker.alive and worker.metrics.get("unable_ms") else "")
        grid.add_row(cell(info.name), seen, holds, cell(queues), cell(jobs), cell(", ".join(machine)))
    return grid


WORKERS = COMMANDS.group(
    "workers",
    limit(100),
    after("NAME", "only workers after this name", default=""),
    topic=LOOK,
    meant_by=("agents", "nodes"),
    examples="""
    windlass workers
    windlass workers --json
    windlass workers drop old-host
    """,
    function=workers,
)


@WORKERS.add("drop", NAME, meant_by=("delete", "remove", "rm"), examples="windlass workers drop old-host")
def drop_worker(context: CommandContext) -> int:
    """Remove a worker that is not alive."""
    return drop(context, Verbs.drop_worker)


@COMMANDS.add(
    "stats",
    option("--minutes", type=number(1, Limits().minutes), default=60, metavar="N", help="the number of minutes, up to now (default: 60)"),
    topic=LOOK,
    meant_by=("status", "counts", "metrics", "monitor"),
    examples="windlass stats\nwindlass stats --minutes 1440 --json",
)
def stats(context: CommandContext) -> int:
    """Show how many runs are in each state, and the counts of the last minutes."""
    if isinstance(context.verbs, Engine):
        while not run_sync(context.verbs.roll_up()):  # a hub counts by itself
            pass
    counts = context.call(Verbs.stats, minutes=context.arguments.minutes)
    jobs = [_jobs(counts.jobs)] if counts.jobs else []
    return context.answer(Verbs.stats, counts, _states(counts.states), Text(line(_lately(counts)), style="dim"), *jobs)


def _states(states: Mapping[State, int]) -> Table:
    grid = table("state", "runs")
    for state, total in states.items():
        grid.add_row(Text(state, style=views.STYLES[state]), f"{total:,}")
    return grid


def _lately(counts: Stats) -> str:
    succeeded = [minute.counts.succeeded for minute in counts.minutes]
    top = max(succeeded)
    bars = "".join(_BARS[-(-count * (len(_BARS) - 1) // top) if top else 0] for count in succeeded)
    return f"succeeded in each of the last {len(succeeded)} minutes, at most {top:,}: [{bars}]"


def _jobs(jobs: list[JobStats]) -> Table:
    grid = table("job", "queue", "waiting", "held", "succeeded", "failed", "waits", "runs", cut=("job", "queue"))
    for job in jobs:
        waiting, held, bad = (sum(job.states[state] for state in group) for group in (WAITING, LIVE, BAD))
        numbers = (f"{total:,}" for total in (waiting, held, job.states[State.SUCCEEDED], bad))
        grid.add_row(cell(job.job), cell(job.queue), *numbers, *_averages(job.lately))
    return grid


def _averages(lately: Counts) -> tuple[str, str]:
    """How long a run waited and ran lately."""
    waited = views.span(lately.waited // lately.started) if lately.started else ""
    ran = views.span(lately.ran // lately.attempts) if lately.attempts else ""
    return waited, ran
