"""The commands about groups of runs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.documents import plain
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell, who
from windlass.model import Group
from windlass.store.base import run_sync

STYLES = {"running": "cyan", "completed": "green", "cancelled": "yellow", "partial": "red"}


def list_all(shell: Shell) -> int:
    """List groups, newest first."""
    given = shell.arguments
    with shell.engine() as engine:
        found = run_sync(engine.groups(status=given.status, after=given.after, count=given.limit))
    shell.answer_list(Verbs.groups, found, _table, "No groups.")
    if len(found) == given.limit:
        shell.output.note(f"There may be more: --after {found[-1].id}")
    return OK


def show(shell: Shell) -> int:
    """Show a group and its runs, in the order in which they were given."""
    given = shell.arguments
    with shell.engine() as engine:
        group = run_sync(engine.get_group(given.id))
        runs = run_sync(engine.members(group.id, after=given.after, count=given.limit))
    if shell.output.json:
        shell.output.document(plain(Verbs.get_group, group) | plain(Verbs.members, runs, count=given.limit))
        return OK
    shell.output.console.print(_facts(group, shell.clock.now()))
    shell.output.console.print()
    shell.output.console.print(views.run_table(runs, shell.clock.now()))
    if len(runs) == given.limit:
        shell.output.note(f"There may be more: --after {runs[-1].id}")
    return OK


def cancel(shell: Shell) -> int:
    """Cancel what has not ended of a group."""
    id = shell.arguments.id
    with shell.engine() as engine:
        group = run_sync(shell.act(engine, "cancel", f"group {id}").cancel_group(id, reason=shell.arguments.reason, by=who()))
    running = "" if group.finished_at is not None else ": the workers of those that run are asked to stop"
    return shell.answer(Verbs.cancel_group, group, group.status + running)


def rerun(shell: Shell) -> int:
    """Make a new group from one that has ended, and print its id."""
    id = shell.arguments.id
    with shell.engine() as engine:
        group = run_sync(shell.act(engine, "rerun", f"group {id}").rerun_group(id))
    return shell.answer(Verbs.rerun_group, group, group.id)


# How they look


def _status(group: Group) -> Text:
    return Text(group.status, style=STYLES[group.status])


def _ended(group: Group) -> str:
    return f"{group.succeeded + group.failed + group.cancelled:,}/{group.total:,}"


def _table(groups: Iterable[Group], now: int) -> Table:
    made = table("id", "status", "name", "kind", "ended", "when", cut=("name",))
    for group in groups:
        when = views.ago(group.created_at if group.finished_at is None else group.finished_at, now)
        made.add_row(group.id, _status(group), cell(group.name or ""), group.kind, _ended(group), when)
    return made


def _facts(group: Group, now: int) -> Table:
    facts = (
        ("name", group.name),
        ("kind", f"{group.kind}, on failure {group.on_failure}"),
        ("ended", f"{_ended(group)}: {group.succeeded:,} succeeded, {group.failed:,} failed, {group.cancelled:,} cancelled"),
        ("callback", group.callback),
        ("created", f"{views.moment(group.created_at)} ({views.ago(group.created_at, now)})"),
        ("finished", None if group.finished_at is None else f"{views.moment(group.finished_at)} ({views.ago(group.finished_at, now)})"),
        ("rerun of", group.retry_of),
        ("reason", group.reason),
    )
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    made.add_row("group", Text(group.id, style="bold"))
    made.add_row("status", _status(group))
    for name, value in facts:
        if value is not None:
            made.add_row(name, Text(line(value)))
    return made
