"""Which protocols a hub serves is said once, in the file or a variable; what is wrong is refused before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import World, _empty_folder
from tests.cli.test_cli import w as w

empty_folder = _empty_folder  # for every test here too


def refused(w: World, *words: str) -> str:
    return w("hub", "--store", w.address, "--port", "0", *words, exits=2).notes


def test_only_one_dialect_can_be_at_the_root(w: World) -> None:
    notes = refused(w, "--dialect", "forge", "--dialect", "so1")
    assert "Only one dialect can be at the root of a hub, not forge and so1." in notes


def test_an_unknown_dialect_is_refused(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There is no dialect called 'moat'." in refused(w, "--dialect", "moat")
    monkeypatch.setenv("WINDLASS_DIALECTS", '{"moat": {}}')
    assert "There is no dialect called 'moat'." in refused(w)


def test_the_settings_of_a_dialect_are_not_shown(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("windlass.toml").write_text('[dialects.forge]\nsecret = "sesame"\n')
    for words in (["config"], ["config", "--json"]):
        printed = w(*words)
        assert "forge" in printed
        assert "sesame" not in printed
