"""Hints that can be followed: each says what is true where it is said, and what to do there."""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Harness
from windlass import App, State
from windlass.cli.views import _facts
from windlass.errors import BadInput, WrongState
from windlass.extras import install
from windlass.machine import _HOW_IT_IS, _WHAT_IS_ASKED, MOVES, Fail, Patch, Reorder, Report, refusal
from windlass.model import Failure

COMMANDS = {command for row in MOVES.values() for command in row}


# Where an extra comes from


class Installed:
    """A distribution, as pip has written down where it came from."""

    def __init__(self, source: dict[str, Any] | None) -> None:
        self._source = source

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._source is None else json.dumps(self._source)


def _installed(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any] | None) -> str:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installed(source))
    return install("hub").removeprefix("Install what is missing: ")


def test_an_extra_is_installed_from_where_windlass_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, wheel = tmp_path / "a copy", tmp_path / "windlass-0.1.0-py3-none-any.whl"
    folder.mkdir()
    wheel.touch()
    assert _installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {}}) == f"pip install '{folder}[hub]'"
    assert _installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {"editable": True}}) == f"pip install -e '{folder}[hub]'"
    assert _installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}}) == f"pip install '{wheel}[hub]'"
    assert _installed(monkeypatch, None) == "pip install 'windlass[hub]'"  # from an index, which has it
    archive = {"url": "https://example.com/windlass.whl", "archive_info": {}}
    assert _installed(monkeypatch, archive) == "pip install 'windlass[hub] @ https://example.com/windlass.whl'"
    repository = {"url": "https://example.com/windlass.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert _installed(monkeypatch, repository) == "pip install 'windlass[hub] @ git+https://example.com/windlass.git@abc'"


def test_what_is_no_longer_there_is_not_named_as_if_it_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone" / "windlass.whl"
    hint = _installed(monkeypatch, {"url": gone.as_uri(), "archive_info": {}})
    assert "windlass.whl[hub]" in hint
    assert f"{gone.parent} no longer has it" in hint

    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", missing)
    assert ".[hub]" in install("hub")


# Connections that cannot be shared


@pytest.mark.parametrize(
    ("address", "hint", "not_said"),
    [
        ("postgresql://shop@db/shop", "psycopg 3 connection", "SQLite"),
        ("shop.db", "break each other's locks", "psycopg"),
        ("https://hub.example.com", "Through a hub", "SQLite"),
    ],
)
def test_a_connection_that_cannot_be_shared_is_refused_by_what_is_true_of_the_store(address: str, hint: str, not_said: str) -> None:
    app = App(address)
    with pytest.raises(BadInput) as caught, app.transaction(sqlite3.connect(":memory:")):
        pass
    assert hint in caught.value.hint
    assert "after your own commit" in caught.value.hint
    assert not_said not in caught.value.hint


# What a run is


def test_a_run_is_not_shown_as_a_retry_of_itself(h: Harness) -> None:
    h.define(max_attempts=2, backoff=(0,))
    first = h.create()
    h.fail(h.claimed(), Failure("boom", "no"))
    assert "retry of" not in dict(_facts(h.get(first), h.clock.now()))
    assert dict(_facts(h.get(first), h.clock.now()))["rerun of"] is None
    last = h.claimed()
    h.fail(last, Failure("boom", "no"))
    again = h(h.engine.rerun(first)).id
    assert dict(_facts(h.get(again), h.clock.now()))["rerun of"] == last.current_attempt


@pytest.mark.parametrize(
    ("move", "text"),
    [
        ("succeed", "has already succeeded; it cannot be cancelled any more."),
        ("fail", "has already failed; it cannot be cancelled any more."),
    ],
)
def test_what_has_ended_is_said_to_have_ended(h: Harness, move: str, text: str) -> None:
    h.define(max_attempts=1)
    run = h.create()
    held = h.claimed()
    if move == "succeed":
        h.succeed(held)
    else:
        h.report(held, Fail(token=held.token, error=Failure("boom", "no")))
    with pytest.raises(WrongState) as caught:
        h(h.engine.cancel(run))
    assert caught.value.message == f"Run {run} {text}"
    assert "rerun it" in caught.value.hint


def test_every_state_and_every_move_has_words_that_make_a_sentence(h: Harness) -> None:
    assert set(_HOW_IT_IS) == set(State)
    named = {command.name for command in COMMANDS if not issubclass(command, Report | Patch | Reorder)}
    assert set(_WHAT_IS_ASKED) == named | {"rerun", "skip"}  # people can skip a run too, and handlers report it
    run = h.get(h.create())
    assert refusal(run, "start") == f"Run {run.id} is queued, and no worker has it; it cannot be started."
