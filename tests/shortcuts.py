"""What nearly every test pays for and none is about is done once in each process: the schema of SQLite is built.

What is not usual goes the whole way: other steps, a fault that is armed, a database with something in it, and every child process.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import apsw

from windlass.clock import Clock
from windlass.faults import FAULTS
from windlass.store import sql
from windlass.store.sqlite import files, sessions

_prepare = files.prepare
_LOCK = threading.Lock()  # for the template, which is one connection


def install() -> None:
    setattr(sessions, "prepare", prepare)  # noqa: B010 - imported there by its name


def prepare(db: apsw.Connection, path: str, steps: Sequence[str], clock: Clock) -> None:
    """Give a database the schema as its steps leave it: in memory as a copy, in a file by one script."""
    if not FAULTS.on and steps is sql.migrations("sqlite") and not files.version_of(db):
        if path == ":memory:":
            with _LOCK, db.backup("main", _template(), "main") as copying:
                copying.step()
            _tell_versions(db, steps, clock)
        else:
            with files._transaction(db):
                if not files.version_of(db):
                    db.execute(_script())
                    _tell_versions(db, steps, clock)
    _prepare(db, path, steps, clock)


def _tell_versions(db: apsw.Connection, steps: Sequence[str], clock: Clock) -> None:
    versions = [(number, clock.now()) for number in range(1, len(steps) + 1)]
    db.executemany("insert into schema_version (version, applied_at) values (?, ?)", versions)


@functools.cache
def _template() -> apsw.Connection:
    """A database as all steps leave it."""
    db = apsw.Connection(":memory:")
    for step in sql.migrations("sqlite"):
        db.execute(step)
    return db


@functools.cache
def _script() -> str:
    """Makes what is in the template."""
    with _LOCK:
        db = _template()
        objects = db.execute("select type, name, sql from sqlite_schema where name not like 'sqlite_%' order by rowid").fetchall()
        tables = [name for kind, name, _ in objects if kind == "table"]
        rows = [f"insert into {table} values ({_values(row)})" for table in tables for row in db.execute(f"select * from {table}")]
    return ";\n".join([*(str(text) for _, _, text in objects), *rows])


def _values(row: Sequence[Any]) -> str:
    return ", ".join(map(apsw.format_sql_value, row))
