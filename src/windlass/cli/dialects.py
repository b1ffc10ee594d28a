"""The commands about protocols of other systems, and runs in their words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from windlass import dialects
from windlass.cli.codes import FAILED, OK
from windlass.cli.context import PATIENCE, CommandContext
from windlass.cli.output import as_json, facts_table, line
from windlass.cli.rows import OPERATE, Commands, option
from windlass.config.addresses import located, shown
from windlass.config.opening import open_engine
from windlass.dialects.hosting import hub_values
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.model import Run
from windlass.store.base import run_sync

COMMANDS = Commands()
AS = option("--as", dest="dialect", metavar="NAME", help="show it in the words of this protocol; `windlass dialects` lists them")


def list_dialects(context: CommandContext) -> int:
    """List the protocols that a hub can serve, and their words for the states of a run."""
    words = {name: dialects.package_of(name).WORDS.labels for name in dialects.NAMES}
    if context.output.json:
        context.output.document({"dialects": [{"name": name, "states": labels} for name, labels in words.items()]})
        return OK
    for name, labels in words.items():
        facts = facts_table()
        for state, label in labels.items():
            facts.add_row(state.value, label)
        context.output.raw(name)
        context.output.console.print(facts)
    return OK


BELOW = COMMANDS.group(
    "dialects",
    topic=OPERATE,
    meant_by=("protocols",),
    examples="windlass dialects\nwindlass dialects --json\nwindlass dialects forge import old.sqlite",
    function=list_dialects,
)
FORGE = BELOW.group(
    "forge", examples="windlass dialects forge import old.sqlite --store new.db", help="Import the jobs of another program of this protocol"
)


@FORGE.add(
    "import",
    option("old", metavar="OLD", help="the file of the other program, which is only read"),
    examples="windlass dialects forge import forge-monitor.sqlite --store forge.db",
)
def import_forge(context: CommandContext) -> int:
    """Import the jobs of another program of the Forge protocol; ended ones become history."""
    from windlass.dialects.forge.imports import Import

    old, address = context.arguments.old, _new_store(context)
    engine = open_engine(context.settings, address, context.clock, blocking=True, patience=PATIENCE)
    assert isinstance(engine, Engine)
    try:
        queue = dialects.settings_of("forge", (context.settings.dialects or {}).get("forge", {}), os.environ).queue
        result = run_sync(Import(engine, queue).run(old))
    finally:
        run_sync(engine.close())
    if context.output.json:
        refused = [{"id": job, "reason": reason} for job, reason in result.refused]
        context.output.document({"pending": result.pending, "ended": result.ended, "known": result.known, "refused": refused})
    else:
        context.output.raw(
            f"Imported into {shown(address)}: {result.pending} pending, {result.ended} ended; {result.known} were there before."
        )
        for job, reason in result.refused:
            context.output.note(f"Not imported unchanged: {line(job)}: {line(reason)}")
    return FAILED if result.refused else OK


def _new_store(context: CommandContext) -> str:
    """The store of a hub in this environment, which must not be the imported file itself."""
    if context.hub:
        raise BadInput("Jobs cannot be imported through a hub.", hint="Name its store: --store forge.db.")
    context.values.update(hub_values("forge", context.values, os.environ))
    path = located(context.store).place
    if os.path.exists(path) and os.path.exists(context.arguments.old) and os.path.samefile(path, context.arguments.old):
        raise BadInput(f"{path} is the file itself, not a new store.", hint="Name the new store: --store forge.db.")
    return context.store


def print_run(context: CommandContext, run: Run) -> int:
    """Print a run in the words of the dialect that the arguments name."""
    (view,) = run_sync(dialects.show(context.arguments.dialect, context.verbs, [run]))
    if context.output.json:
        context.output.document(view)
        return OK
    facts = facts_table()
    for member, value in view.items():
        facts.add_row(line(member), line(value) if isinstance(value, str) else as_json(value))
    context.output.console.print(facts)
    return OK


def print_runs(context: CommandContext, runs: Sequence[Run]) -> int:
    """Print runs in the words of the dialect that the arguments name, a line each."""
    views = run_sync(dialects.show(context.arguments.dialect, context.verbs, runs))
    if context.output.json:
        context.output.document({"runs": views})
    else:
        for run in views:
            context.output.raw(as_json(run))
    return OK
