"""The commands that run the dispatcher and the consumers of a protocol."""

from __future__ import annotations

import os
from typing import Any

from windlass import dialects
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.logs import start_logging
from windlass.cli.rows import WORK, Commands, option, settings_of
from windlass.cli.targets import find_target
from windlass.errors import BadInput

COMMANDS = Commands()
DIALECT = option("--dialect", metavar="NAME", required=True, help="the protocol, such as kumofire")


@COMMANDS.add(
    "dispatch",
    *settings_of("dispatch"),
    option("target", metavar="MODULE:JOBS", nargs="?", help="the jobs whose queue is used (default: the hints of the store)"),
    DIALECT,
    topic=WORK,
    examples="""
    windlass dispatch --dialect kumofire --store jobs.db
    windlass dispatch --dialect kumofire shop:jobs
    """,
)
def dispatch(context: CommandContext) -> int:
    """Send due runs to the consumers of a protocol, until Ctrl-C or SIGTERM."""
    name = context.arguments.dialect
    parts, settings = dialects.parts_of(name), dialects.settings_of(name, (context.settings.dialects or {}).get(name, {}), os.environ)
    start_logging(context.settings.filled())
    jobs = None if context.arguments.target is None else _jobs(context, parts)
    parts.dispatch(jobs, _store(context), settings.queue)
    return OK


@COMMANDS.add(
    "consume",
    *settings_of("consume"),
    option("target", metavar="MODULE:JOBS", help="the jobs whose handlers are called, such as shop:jobs"),
    DIALECT,
    topic=WORK,
    meant_by=("consumer",),
    examples="""
    windlass consume --dialect kumofire shop:jobs
    windlass consume --dialect kumofire shop:jobs --store jobs.db --slots 8
    """,
)
def consume(context: CommandContext) -> int:
    """Execute the runs that a protocol's dispatcher has sent, until Ctrl-C or SIGTERM; a second one aborts."""
    parts, settings = dialects.parts_of(context.arguments.dialect), context.settings.filled()
    start_logging(settings)
    _store(context)
    parts.consume(_jobs(context, parts), settings.slots, (settings.grace or 0) / 1000)
    return OK


def _store(context: CommandContext) -> str:
    """The store, which is also that of jobs whose storage does not name one."""
    if context.hub:
        raise BadInput("This does not go through a hub.", hint="Name the store: --store jobs.db, or --store postgresql://host/database.")
    if "store" in context.arguments:
        os.environ["WINDLASS_STORE"] = context.store
    return context.store


def _jobs(context: CommandContext, parts: Any) -> Any:
    jobs = find_target(context.arguments.target)
    if not isinstance(jobs, parts.KumofireJobs):
        raise BadInput(
            f"{context.arguments.target} is {type(jobs).__name__}, not KumofireJobs.", hint="Name what create_jobs(...) returns."
        )
    return jobs
