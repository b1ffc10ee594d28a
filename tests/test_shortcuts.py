"""The short way to a database leaves the same as the long one."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests import shortcuts
from windlass.clock import ManualClock
from windlass.store import sql
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite, files


def contents(db: apsw.Connection) -> dict[str, list[tuple[object, ...]]]:
    """The schema, and the rows of every table."""
    tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table' order by name")]
    found = {table: sorted(db.execute(f"select * from {table}").fetchall()) for table in tables}
    return found | {"schema": sorted(db.execute("select type, name, tbl_name, sql from sqlite_schema").fetchall(), key=repr)}


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_new_database_is_as_its_steps_make_it(where: str, tmp_path: Path) -> None:
    steps, clock = sql.migrations("sqlite"), ManualClock()
    made = []
    for number, prepare in enumerate((files.prepare, shortcuts.prepare)):
        path = ":memory:" if where == "memory" else str(tmp_path / f"{number}.db")
        db = files.connect(path, clock)
        prepare(db, path, steps, clock)
        made.append(contents(db))
        files.disconnect(db)
    assert made[0] == made[1]
    assert len(made[0]["schema_version"]) == len(steps)


def test_a_store_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_apply", lambda *_: pytest.fail("a step was applied"))
    run_sync(BlockingSqlite(":memory:", ManualClock()).close())
