"""`windlass tokens` and `windlass audit`, called as a program would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import World
from windlass.cli import codes
from windlass.cli.context import actor
from windlass.cli.parser import make_parser
from windlass.engine.access import HOUR
from windlass.model import Token
from windlass.store.base import run_sync

ACTIONS = ("create", "list", "rotate", "revoke")
DAY = 24 * HOUR


class Door(World):
    """The world of the other commands, with tokens."""

    def create(self, *words: str) -> str:  # type: ignore[override]
        return self("tokens", "create", *words).strip()

    def find(self, secret: str) -> Token | None:
        return run_sync(self.engine.find_token(secret))

    def tokens(self) -> list[Token]:
        return run_sync(self.engine.tokens())

    def rows(self) -> dict[str, str]:
        return {row.split()[1]: row for row in self("tokens", "list").splitlines()[1:]}


@pytest.fixture
def w(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Door]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_STORE", "shop.db")
    door = Door("shop.db", capsys)
    yield door
    run_sync(door.store.close())


def test_create_prints_the_secret_and_nothing_else(w: Door) -> None:
    printed = w("tokens", "create", "shop", "--scopes", "submit, read", "--expires", "90d", "--worker", "w7")
    token = w.find(printed.strip())
    assert token is not None
    assert (token.name, token.scopes, token.worker, token.ttl) == ("shop", ("read", "submit"), "w7", 90 * DAY)
    assert token.id in printed.notes
    assert "not shown again" in printed.notes
    assert printed.strip() not in printed.notes


def test_create_prints_a_document(w: Door) -> None:
    made = w.json("tokens", "create", "ops", "--scopes", "admin")
    assert made["token"].keys() == {
        "id",
        "name",
        "scopes",
        "worker",
        "principal",
        "kind",
        "created_at",
        "expires_at",
        "revoked_at",
        "used_at",
    }
    assert (w.find(made["secret"]) or w.tokens()[0]).id == made["token"]["id"]


def test_a_secret_is_shown_once(w: Door) -> None:
    secret = w.create("ops", "--scopes", "admin")
    for words in (("tokens", "list"), ("tokens", "list", "--json"), ("audit",), ("audit", "--json")):
        assert secret not in w(*words)


def test_list_says_how_each_is(w: Door) -> None:
    w.create("lasting", "--scopes", "admin")
    w.find(w.create("used", "--scopes", "read,work", "--expires", "90d"))
    w.create("short", "--scopes", "read", "--expires", "1ms")
    w.create("old", "--scopes", "read")
    w("tokens", "revoke", w.tokens()[-1].id)
    rows = w.rows()
    assert rows["lasting"].endswith("good")
    assert "never" in rows["lasting"]
    assert "read, work" in rows["used"]
    assert "good until " in rows["used"]
    assert "never" not in rows["used"]
    assert rows["short"].endswith("expired")
    assert rows["old"].endswith("revoked")
    assert [token["name"] for token in w.json("tokens", "list", "--limit", "2")["tokens"]] == ["lasting", "used"]
    assert [token["name"] for token in w.json("tokens", "list", "--after", w.tokens()[2].id)["tokens"]] == ["old"]


def test_without_tokens_the_list_says_so(w: Door) -> None:
    assert w("tokens", "list").notes == "No tokens.\n"
    assert w.json("tokens", "list") == {"tokens": [], "cursor": None}
    assert w("audit").notes == "The audit is empty.\n"


def test_rotate_prints_a_new_secret_and_keeps_the_old_one_for_a_while(w: Door) -> None:
    old = w.create("shop", "--scopes", "read")
    (token,) = w.tokens()
    new = w("tokens", "rotate", token.id, "--overlap", "1h").strip()
    assert new != old
    assert w.find(new)
    assert w.find(old)
    before = w.tokens()[0]
    assert before.expires_at is not None
    assert 0 < before.expires_at - w.clock.now() <= HOUR
    assert w.json("tokens", "rotate", token.id, "--overlap", "0s")["secret"]
    assert w.find(old) is None


def test_revoke_ends_a_token(w: Door) -> None:
    secret = w.create("shop", "--scopes", "read")
    (token,) = w.tokens()
    assert w("tokens", "revoke", token.id) == f"{token.id} (shop) is revoked.\n"
    assert w.find(secret) is None
    assert w.json("tokens", "revoke", token.id)["revoked_at"] is not None
    w("tokens", "rotate", token.id, exits=codes.CONFLICT)


def test_what_people_do_is_in_the_audit(w: Door) -> None:
    w.create("shop", "--scopes", "read")
    (token,) = w.tokens()
    w("tokens", "rotate", token.id)
    w("tokens", "revoke", token.id)
    entries = w.json("audit")["entries"]
    assert [(entry["actor"], entry["what"], entry["subject"]) for entry in entries] == [
        (actor(), "revoke", f"token {token.id}"),
        (actor(), "rotate", f"token {token.id}"),
        (actor(), "create", "token shop"),
    ]
    page = w("audit", "--limit", "2")
    assert [row.split()[3] for row in page.splitlines()[1:]] == ["revoke", "rotate"]
    cursor = page.notes.split()[-1]
    assert w.json("audit", "--cursor", cursor)["entries"] == entries[2:]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "shop"), codes.USAGE),
        (("create", "shop", "--scopes", "root"), codes.USAGE),
        (("create", "shop", "--scopes", ""), codes.USAGE),
        (("create", "", "--scopes", "read"), codes.USAGE),
        (("create", "a\nb", "--scopes", "read"), codes.USAGE),
        (("create", "shop", "--scopes", "read", "--expires", "soon"), codes.USAGE),
        (("revoke", "nobody"), codes.NOT_FOUND),
        (("rotate", "nobody"), codes.NOT_FOUND),
        (("revoke", "a b"), codes.USAGE),
    ],
    ids=str,
)
def test_what_cannot_be_done_changes_nothing(w: Door, words: tuple[str, ...], code: int) -> None:
    w("tokens", *words, exits=code)
    assert w.tokens() == []
    assert w.json("audit")["entries"] == []


def test_hostile_names_reach_the_terminal_as_text(w: Door) -> None:
    evil = "[red]a[/red]\u202e\x9b31m"
    run_sync(w.engine.by(evil, evil, evil).create_token(evil, ["read"], worker=evil))
    for printed in (w("tokens", "list"), w("audit"), w("tokens", "list", "--json"), w("audit", "--json")):
        assert "[red]a[/red]" in printed
        assert "\u202e" not in printed
        assert "\x9b" not in printed


@pytest.mark.parametrize("words", [("tokens",), *(("tokens", action) for action in ACTIONS), ("audit",)], ids=" ".join)
def test_help_shows_examples_that_can_be_read(w: Door, words: tuple[str, ...]) -> None:
    examples = [row.split() for row in w(*words, "--help").partition("examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        assert example[0] == "windlass"
        make_parser().parse_args(example[1:])
