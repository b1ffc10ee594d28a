"""A hub in the environment of the Forge document, and files of other programs of that protocol."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.dialects.forge_hub_stub import SCHEMA
from windlass import App
from windlass.config import Value
from windlass.dialects.forge.hosting import check, is_of_another_program
from windlass.dialects.hosting import host_value, hub_values
from windlass.errors import BadInput
from windlass.store.base import run_sync


def old_file(path: Path, *, wal: bool = True) -> Path:
    """A file as another program of the protocol leaves it."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"pragma journal_mode = {'wal' if wal else 'delete'}")
        db.executescript(SCHEMA)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder) if not name.endswith("-shm")}


# Variables


def test_the_document_s_defaults_of_a_hub() -> None:
    values = hub_values("forge", {}, {"HUB_MODE": "true"})
    assert {name: value for name, (value, _) in values.items()} == {"store": "./forge-monitor.sqlite", "port": 3000}


def test_the_document_s_variables_of_a_hub(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    values = hub_values("forge", {}, {"SQLITE_PATH": "/data/forge.sqlite", "PORT": "8080"})
    assert values == {"store": Value("/data/forge.sqlite", "SQLITE_PATH"), "port": Value(8080, "PORT")}
    assert "port is 8080, by PORT." in caplog.text


def test_windlass_s_own_settings_come_first_and_the_log_says_which_was_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = {"store": Value("shop.db", "WINDLASS_STORE"), "port": Value(9000, "--port")}
    assert hub_values("forge", own, {"SQLITE_PATH": "/data/forge.sqlite", "PORT": "no number"}) == {}
    assert "SQLITE_PATH is not used, because store is set by WINDLASS_STORE." in caplog.text
    assert "PORT is not used, because port is set by --port." in caplog.text


def test_the_password_of_a_store_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert hub_values("forge", {}, {"SQLITE_PATH": "postgresql://ann:sesame@db/forge"})["store"].value == "postgresql://ann:sesame@db/forge"
    assert "sesame" not in caplog.text


def test_a_variable_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadInput, match=r"PORT is 'soon'; it must be a whole number"):
        hub_values("forge", {}, {"PORT": "soon"})


@pytest.mark.parametrize("dialect", [None, "so1"])
def test_without_this_dialect_at_the_root_its_variables_mean_nothing(dialect: str | None) -> None:
    assert hub_values(dialect, {}, {"SQLITE_PATH": "/data/forge.sqlite", "PORT": "8080"}) == {}
    assert host_value(dialect, {}, guarded=True) == {}


def test_with_its_secret_it_listens_everywhere_and_without_on_loopback() -> None:
    assert host_value("forge", {}, guarded=True)["host"].value == "0.0.0.0"
    assert host_value("forge", {}, guarded=False) == {}
    assert host_value("forge", {"host": Value("127.0.0.1", "--host")}, guarded=True) == {}


def test_another_hub_mode_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    check(":memory:", {"HUB_MODE": "false"})
    assert "HUB_MODE is 'false'" in caplog.text


# Files of other programs


@pytest.mark.parametrize("wal", [True, False])
def test_a_file_of_another_program_is_refused_by_name_and_nothing_is_changed(tmp_path: Path, wal: bool) -> None:
    path = old_file(tmp_path / "forge-monitor.sqlite", wal=wal)
    before = contents(tmp_path)
    with pytest.raises(BadInput, match="made by another program of the Forge protocol") as refused:
        check(str(path), {})
    assert f"windlass dialects forge import {path}" in refused.value.hint
    assert contents(tmp_path) == before
    assert len(os.listdir(tmp_path)) == 1


def test_a_file_that_another_program_has_open_is_refused_as_well(tmp_path: Path) -> None:
    path = old_file(tmp_path / "open.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table later (id)")
        before = contents(tmp_path)
        assert is_of_another_program(str(path))
        assert contents(tmp_path) == before


def test_a_file_whose_tables_are_only_in_its_log_is_recognised(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "live.sqlite")) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma wal_autocheckpoint = 0")
        db.executescript(SCHEMA)
        for name in ("live.sqlite", "live.sqlite-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"copy{name.removeprefix('live')}")
    assert is_of_another_program(str(tmp_path / "copy.sqlite"))


def test_other_files_are_not_taken_for_one(tmp_path: Path) -> None:
    with App(str(tmp_path / "own.db")) as app:
        run_sync(app.engine.define("anything"))
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("create table jobs (id)")
    with closing(sqlite3.connect(old_file(tmp_path / "both.db"))) as db:
        db.execute("create table schema_version (version)")
    for name in ("own.db", "empty.db", "text.db", "shop.db", "both.db"):
        assert not is_of_another_program(str(tmp_path / name)), name
    check(str(tmp_path / "missing.db"), {})
    check("postgresql://nowhere/at-all", {})
