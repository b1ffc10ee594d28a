"""The commands about the store itself: migrate, backup, restore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from windlass import config
from windlass.cli.codes import OK
from windlass.cli.shell import PATIENCE, Shell
from windlass.errors import BadInput, StoreError


def migrate(shell: Shell) -> int:
    """Make the store, or bring its schema up to date."""
    before, after = config.migrate_store(shell.store, shell.clock, patience=PATIENCE, settings=shell.settings)
    where = config.shown(shell.store)
    if shell.output.json:
        shell.output.document({"store": where, "before": before, "after": after})
    elif before == after:
        shell.output.raw(f"{where} is up to date: schema version {after}.")
    else:
        shell.output.raw(f"{where} has schema version {after} now; it had {before or 'none'}.")
    return OK


def _file_of(shell: Shell, command: str, instead: str) -> str:
    """The path of the store's file, for what only files have."""
    kind, place = config.located(shell.store)
    if kind != "sqlite":
        raise BadInput(f"`windlass {command}` is for SQLite files.", hint=f"Use {instead} for PostgreSQL.")
    if place == config.MEMORY:
        raise BadInput("A store in memory has no file.", hint="Name a file with --store.")
    return place


def backup(shell: Shell) -> int:
    """Write a checked copy while others go on."""
    from windlass.store import sqlite

    source, target = _file_of(shell, "backup", "pg_dump"), shell.arguments.target
    _refuse_existing(target, "Name another file.")
    with _progress(shell, "Copying") as bar:
        sqlite.backup(source, target, lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total))
    return _tell_copied(shell, source, target)


def restore(shell: Shell) -> int:
    """Put a backup in the store's place."""
    from windlass.store import sqlite

    source, target = shell.arguments.source, _file_of(shell, "restore", "pg_restore")
    if not shell.arguments.replace:
        _refuse_existing(target, "Say --replace if it may be replaced.")
    with _progress(shell, "Checking and copying"):
        sqlite.restore(source, target, replace=shell.arguments.replace)
    return _tell_copied(shell, source, target)


def _refuse_existing(path: str, hint: str) -> None:
    if os.path.exists(path):
        raise StoreError(f"{path} exists.", hint=hint)


def _tell_copied(shell: Shell, source: str, target: str) -> int:
    if shell.output.json:
        shell.output.document({"source": source, "target": target})
    else:
        shell.output.raw(f"{target} is a checked copy of {source}.")
    return OK


@contextmanager
def _progress(shell: Shell, what: str) -> Iterator[Progress]:
    """A bar on the terminal while something long is done; nothing where nobody sees it."""
    notes = shell.output.notes
    with Progress(TextColumn(what), BarColumn(), TaskProgressColumn(), console=notes, transient=True, disable=not notes.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield bar
