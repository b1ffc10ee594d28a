"""The command that looks for what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli.codes import FAILED, OK
from windlass.cli.documents import plain
from windlass.cli.output import line, table
from windlass.cli.shell import Shell
from windlass.engine import Finding
from windlass.store.base import run_sync

STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan"}


def doctor(shell: Shell) -> int:
    """Look for what is wrong, and say what to do about it."""
    deep = shell.arguments.deep
    if deep:
        with shell.store_engine() as store:
            found = run_sync(store.doctor(deep=True))
    else:
        with shell.engine() as engine:
            found = run_sync(engine.doctor())
    if shell.output.json:
        shell.output.document(plain(Verbs.doctor, found))
    elif found:
        shell.output.console.print(_findings(found))
    else:
        shell.output.raw("Nothing is wrong.")
    return FAILED if any(finding.severity == "problem" for finding in found) else OK


def _findings(found: Sequence[Finding]) -> Table:
    made = table("severity", "finding", folded=("finding",))
    for finding in found:
        todo = Text(f"\n{line(finding.todo)}", style="dim")
        made.add_row(Text(finding.severity, style=STYLES[finding.severity]), Text.assemble(line(finding.text), todo))
    return made
