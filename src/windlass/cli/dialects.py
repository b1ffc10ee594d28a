"""The commands about protocols of other systems, and runs in their words."""

from __future__ import annotations

from collections.abc import Sequence

from windlass import dialects
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.output import as_json, facts_table, line
from windlass.cli.rows import Commands, option
from windlass.model import Run
from windlass.store.base import run_sync

COMMANDS = Commands()
AS = option("--as", dest="dialect", metavar="NAME", help="in the words of a protocol; `windlass dialects` lists them")


@COMMANDS.add("dialects", examples="windlass dialects\nwindlass dialects --json")
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


def print_run(context: CommandContext, run: Run) -> int:
    """Print a run in the words of the dialect that the arguments name."""
    (shown,) = run_sync(dialects.show(context.arguments.dialect, context.verbs, [run]))
    if context.output.json:
        context.output.document(shown)
        return OK
    facts = facts_table()
    for member, value in shown.items():
        facts.add_row(line(member), line(value) if isinstance(value, str) else as_json(value))
    context.output.console.print(facts)
    return OK


def print_runs(context: CommandContext, runs: Sequence[Run]) -> int:
    """Print runs in the words of the dialect that the arguments name, a line each."""
    shown = run_sync(dialects.show(context.arguments.dialect, context.verbs, runs))
    if context.output.json:
        context.output.document({"runs": shown})
    else:
        for run in shown:
            context.output.raw(as_json(run))
    return OK
