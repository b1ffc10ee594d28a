"""The commands about groups of runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext, actor
from windlass.cli.documents import plain
from windlass.cli.output import cell, facts_table, line, table
from windlass.cli.rows import CHANGE, Commands, option
from windlass.cli.values import ID, after, limit
from windlass.model import Group, GroupStatus

STYLES = {"running": "cyan", "completed": "green", "cancelled": "yellow", "partial": "red"}

COMMANDS = Commands()
GROUPS = COMMANDS.group(
    "groups",
    help="List, show, cancel and rerun groups of runs",
    topic=CHANGE,
    meant_by=("batch", "batches", "workflows"),
    examples="""
    windlass groups list --status running
    windlass groups show ID
    windlass groups cancel ID --reason 'wrong input'
    """,
)


@GROUPS.add(
    "list",
    option("--status", choices=get_args(GroupStatus), metavar="STATUS", help=", ".join(get_args(GroupStatus))),
    limit(20),
    after("ID", "only groups after this one"),
    examples="windlass groups list\nwindlass groups list --status partial --json",
)
def list_all(context: CommandContext) -> int:
    """List groups, newest first."""
    arguments = context.arguments
    groups = context.call(Verbs.groups, status=arguments.status, after=arguments.after, count=arguments.limit)
    context.answer_list(Verbs.groups, groups, _table, "No groups.")
    if len(groups) == arguments.limit:
        context.output.note(f"There may be more: --after {groups[-1].id}")
    return OK


@GROUPS.add(
    "show",
    ID,
    limit(20, " runs"),
    after("RUN", "only runs after this one"),
    examples="windlass groups show ID\nwindlass groups show ID --limit 1000 --json",
)
def show(context: CommandContext) -> int:
    """Show a group and its runs, in the order in which they were enqueued."""
    arguments = context.arguments
    group = context.call(Verbs.get_group, arguments.id)
    runs = context.call(Verbs.members, group.id, after=arguments.after, count=arguments.limit)
    if context.output.json:
        context.output.document(plain(Verbs.get_group, group) | plain(Verbs.members, runs, count=arguments.limit))
        return OK
    context.output.console.print(_facts(group, context.clock.now()))
    context.output.console.print()
    context.output.console.print(views.run_table(runs, context.clock.now()))
    if len(runs) == arguments.limit:
        context.output.note(f"There may be more: --after {runs[-1].id}")
    return OK


@GROUPS.add(
    "cancel",
    ID,
    option("--reason", help="the reason, which is stored with the group and its runs"),
    examples="windlass groups cancel ID\nwindlass groups cancel ID --reason 'wrong input'",
)
def cancel(context: CommandContext) -> int:
    """Cancel the unfinished runs of a group."""
    id = context.arguments.id
    group = context.call(Verbs.cancel_group, id, reason=context.arguments.reason, by=actor())
    running = "" if group.finished_at is not None else ": the workers of running runs are asked to stop"
    return context.answer(Verbs.cancel_group, group, group.status + running)


@GROUPS.add("rerun", ID, examples="windlass groups rerun ID")
def rerun(context: CommandContext) -> int:
    """Create a new group from an ended one, and print its id."""
    id = context.arguments.id
    group = context.call(Verbs.rerun_group, id)
    return context.answer(Verbs.rerun_group, group, group.id)


# Tables


def _status(group: Group) -> Text:
    return Text(group.status, style=STYLES[group.status])


def _ended(group: Group) -> str:
    return f"{group.succeeded + group.failed + group.cancelled:,}/{group.total:,}"


def _table(groups: Iterable[Group], now: int) -> Table:
    grid = table("id", "status", "name", "kind", "ended", "when", cut=("name",))
    for group in groups:
        when = views.ago(group.created_at if group.finished_at is None else group.finished_at, now)
        grid.add_row(group.id, _status(group), cell(group.name or ""), group.kind, _ended(group), when)
    return grid


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
    grid = facts_table()
    grid.add_row("group", Text(group.id, style="bold"))
    grid.add_row("status", _status(group))
    for name, value in facts:
        if value is not None:
            grid.add_row(name, Text(line(value)))
    return grid
