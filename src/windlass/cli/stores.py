"""The commands about the store itself: migrate, backup, restore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from windlass.cli.codes import OK
from windlass.cli.context import PATIENCE, CommandContext
from windlass.cli.rows import OPERATE, Commands, option
from windlass.config.addresses import MEMORY, located, shown
from windlass.config.opening import migrate_store
from windlass.errors import BadInput, StoreError

COMMANDS = Commands()


@COMMANDS.add(
    "migrate",
    topic=OPERATE,
    meant_by=("init", "setup", "create", "upgrade", "schema"),
    examples="windlass migrate --store shop.db\nwindlass migrate --store postgresql://shop@db/shop",
)
def migrate(context: CommandContext) -> int:
    """Create the store, or bring its schema up to date."""
    before, after = migrate_store(context.store, context.clock, patience=PATIENCE, settings=context.settings)
    where = shown(context.store)
    if context.output.json:
        context.output.document({"store": where, "before": before, "after": after})
    elif before == after:
        context.output.raw(f"{where} is up to date: schema version {after}.")
    else:
        context.output.raw(f"{where} has schema version {after} now; it had {before or 'none'}.")
    return OK


def _file_of(context: CommandContext, command: str, instead: str) -> str:
    """The path of the store's file, for commands about files."""
    kind, place = located(context.store)
    if kind != "sqlite":
        raise BadInput(f"`windlass {command}` is for SQLite files.", hint=f"Use {instead} for PostgreSQL.")
    if place == MEMORY:
        raise BadInput("A store in memory has no file.", hint="Name a file with --store.")
    return place


@COMMANDS.add(
    "backup",
    option("target", metavar="FILE", help="a file that does not exist yet"),
    topic=OPERATE,
    meant_by=("dump", "snapshot"),
    examples="windlass backup shop-monday.db --store shop.db",
)
def backup(context: CommandContext) -> int:
    """Write a verified copy of the store while it is in use."""
    from windlass.store import sqlite

    source, target = _file_of(context, "backup", "pg_dump"), context.arguments.target
    _refuse_existing(target, "Name another file.")
    with _progress(context, "Copying") as bar:
        sqlite.backup(source, target, lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total))
    return _print_copied(context, source, target)


@COMMANDS.add(
    "restore",
    option("source", metavar="FILE", help="a backup"),
    option("--replace", action="store_true", help="replace the store's file if there is one"),
    topic=OPERATE,
    meant_by=("load",),
    examples="windlass restore shop-monday.db --store shop.db\nwindlass restore shop-monday.db --replace",
)
def restore(context: CommandContext) -> int:
    """Restore a backup in the place of the store."""
    from windlass.store import sqlite

    source, target = context.arguments.source, _file_of(context, "restore", "pg_restore")
    if not context.arguments.replace:
        _refuse_existing(target, "Add --replace if it may be replaced.")
    with _progress(context, "Checking and copying"):
        sqlite.restore(source, target, replace=context.arguments.replace)
    return _print_copied(context, source, target)


def _refuse_existing(path: str, hint: str) -> None:
    if os.path.exists(path):
        raise StoreError(f"{path} exists.", hint=hint)


def _print_copied(context: CommandContext, source: str, target: str) -> int:
    if context.output.json:
        context.output.document({"source": source, "target": target})
    else:
        context.output.raw(f"{target} is a checked copy of {source}.")
    return OK


@contextmanager
def _progress(context: CommandContext, what: str) -> Iterator[Progress]:
    """A progress bar, on terminals only."""
    notes = context.output.notes
    with Progress(TextColumn(what), BarColumn(), TaskProgressColumn(), console=notes, transient=True, disable=not notes.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield bar
