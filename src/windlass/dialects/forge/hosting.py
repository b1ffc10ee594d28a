"""The environment that the document describes for a hub, and the files of other programs that speak its protocol."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from windlass.config.addresses import MEMORY, located
from windlass.dialects.hosting import HubVariable
from windlass.errors import BadInput

HUB_VARIABLES = {"SQLITE_PATH": HubVariable("store", "./forge-monitor.sqlite"), "PORT": HubVariable("port", 3000)}
HOST = "0.0.0.0"  # noqa: S104 - as the document's hub listens, once its secret is set

_LOG = logging.getLogger("windlass.forge")
_COLUMNS = {"id", "type", "params", "status", "attempts", "max_runtime_ms", "fail_history"}


def check(address: str, environment: Mapping[str, str]) -> None:
    """Refuse a file that another program of this protocol has made; it is not changed."""
    if (mode := environment.get("HUB_MODE", "true")) != "true":
        _LOG.warning("HUB_MODE is %r; this command starts a hub all the same.", mode)
    kind, path = located(address)
    if kind == "sqlite" and path != MEMORY and os.path.isfile(path) and is_of_another_program(path):
        raise BadInput(
            f"{path} was made by another program of the Forge protocol, and nothing in it was changed.",
            hint=f"Name another file for the store (SQLITE_PATH or --store), and import the jobs: windlass dialects forge import {path}",
        )


def is_of_another_program(path: str) -> bool:
    """Whether a file has this protocol's own tables, and not those of windlass."""
    try:
        with closing(open_read_only(path)) as db:
            tables = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
            columns = {row[1] for row in db.execute("pragma table_info(jobs)")}
    except sqlite3.DatabaseError:
        return False  # whatever it is, opening the store reports it
    return "workers" in tables and "schema_version" not in tables and columns >= _COLUMNS


def open_read_only(path: str) -> sqlite3.Connection:
    """A connection that changes neither a file nor its folder, whether or not another process has it open."""
    # Without a log there is nothing to read but the file itself, and SQLite need not create one.
    alone = "" if os.path.exists(f"{path}-wal") else "&immutable=1"
    return sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro{alone}", uri=True)
