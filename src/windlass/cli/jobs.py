"""The commands about jobs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from windlass import defaults
from windlass.api.verbs import Verbs
from windlass.cli.context import CommandContext
from windlass.cli.dropping import drop
from windlass.cli.output import as_json, cell, line, table
from windlass.cli.rows import LOOK, Commands
from windlass.cli.values import NAME, after, limit
from windlass.engine import fits
from windlass.model import JobRecord

COMMANDS = Commands()


def jobs(context: CommandContext) -> int:
    """List the jobs that are defined."""
    records = context.call(Verbs.jobs, after=context.arguments.after, count=context.arguments.limit)
    return context.answer_list(Verbs.jobs, records, _jobs, "No jobs.")


def _jobs(records: Sequence[JobRecord], _: int) -> Table:
    described = ("description",) if any(job.description for job in records) else ()
    grid = table("job", "queue", "tries", "handler", *described, cut=("job", "queue", "handler", *described))
    for job in records:
        handler = cell(job.handler) if job.handler else cell("not defined yet", style="yellow")
        tries = str(job.options.max_attempts or defaults.ATTEMPTS)
        words = [cell((job.description or "").partition("\n")[0])] if described else []
        grid.add_row(cell(job.name), cell(job.options.queue or defaults.QUEUE), tries, handler, *words)
    return grid


JOBS = COMMANDS.group(
    "jobs",
    limit(100),
    after("NAME", "only jobs after this name", default=""),
    topic=LOOK,
    meant_by=("definitions", "functions", "tasks"),
    examples="""
    windlass jobs
    windlass jobs --json
    windlass jobs show thumbnail
    windlass jobs drop misspelt
    """,
    function=jobs,
)


@JOBS.add("show", NAME, examples="windlass jobs show thumbnail")
def show_job(context: CommandContext) -> int:
    """Show a definition, and the arguments of the job."""
    job = context.call(Verbs.get_job, context.arguments.name)
    lines = [f"{job.name}: {job.handler or 'not defined yet'}, in queue {job.options.queue or defaults.QUEUE}"]
    lines += (job.description or "").splitlines()
    lines.append(fits.takes(job.takes) if job.takes is not None else "Its arguments are not known.")
    if job.payload:
        lines.append(f"Payload template: {as_json(job.payload)}")
    return context.answer(Verbs.get_job, job, *map(line, lines))


@JOBS.add("drop", NAME, meant_by=("delete", "remove", "rm"), examples="windlass jobs drop misspelt")
def drop_job(context: CommandContext) -> int:
    """Remove the placeholder of an undefined job that has no runs."""
    return drop(context, Verbs.drop_job)
