"""The command that checks a store and its workers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from windlass.answers import Finding
from windlass.api.verbs import Verbs
from windlass.cli.codes import FAILED, OK
from windlass.cli.context import CommandContext
from windlass.cli.output import line, table
from windlass.cli.rows import OPERATE, Commands, option
from windlass.store.base import run_sync

STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan"}

COMMANDS = Commands()


@COMMANDS.add(
    "doctor",
    option("--deep", action="store_true", help="also read every page of a SQLite file, which takes a while"),
    topic=OPERATE,
    meant_by=("check", "health", "ping", "diagnose", "verify"),
    examples="""
    windlass doctor
    windlass doctor --hub https://hub.example.com
    windlass doctor --store shop.db --deep
    windlass doctor --json
    """,
)
def doctor(context: CommandContext) -> int:
    """Check for problems, and print what to do about each."""
    findings = run_sync(context.store_verbs.doctor(deep=True)) if context.arguments.deep else context.call(Verbs.doctor)
    context.answer(Verbs.doctor, findings, _findings(findings) if findings else "Nothing is wrong.")
    return FAILED if any(finding.severity == "problem" for finding in findings) else OK


def _findings(findings: Sequence[Finding]) -> Table:
    grid = table("severity", "finding", folded=("finding",))
    for finding in findings:
        todo = Text(f"\n{line(finding.todo)}", style="dim")
        grid.add_row(Text(finding.severity, style=STYLES[finding.severity]), Text.assemble(line(finding.text), todo))
    return grid
