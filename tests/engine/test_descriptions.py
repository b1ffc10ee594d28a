"""What a definition is for, in words: stored with it, and shown wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance import unchanged
from tests.harness import Harness
from tests.served import ServedHub
from windlass import App, cli
from windlass.client import Client
from windlass.errors import BadInput, Forbidden, TooLarge, WindlassError
from windlass.model import JobRecord, Limits, Principal

WORDS = "Sends the monthly bill.\nAsk <b>Ann</b> before you change it. 漢字"


def define(h: Harness, description: Any = WORDS, name: str = "bill", **more: Any) -> JobRecord:
    return h(h.engine.define(name, description=description, **more))


def test_it_is_kept_and_in_every_read(h: Harness) -> None:
    assert define(h).description == WORDS
    assert h(h.engine.get_job("bill")).description == WORDS
    assert {job.name: job.description for job in h(h.engine.jobs())} == {"bill": WORDS, "mail": None}


def test_a_change_is_a_revision_and_the_same_again_is_none(h: Harness) -> None:
    first = define(h)
    h.clock.advance(1_000)
    assert define(h) == first
    changed = define(h, "Something else")
    assert (changed.description, changed.rev) == ("Something else", first.rev + 1)
    assert define(h, None).description is None
    assert define(h, "").description is None


def test_runs_go_on_under_another_description(h: Harness) -> None:
    define(h)
    h.create("bill")
    define(h, "Something else")
    h.create("bill")
    assert len(h.claim(2)) == 2


@pytest.mark.parametrize(
    ("description", "error"),
    [("x" * (Limits().description + 1), TooLarge), ("é" * 2_049, TooLarge), *((bad, BadInput) for bad in ("a\0b", "\ud800", 7, b"x"))],
)
def test_what_is_no_short_text_is_refused_and_nothing_is_stored(h: Harness, description: Any, error: type[WindlassError]) -> None:
    with unchanged(h), pytest.raises(error, match="description"):
        define(h, description)
    assert define(h, "x" * Limits().description).description is not None


def test_code_of_another_owner_does_not_change_it(h: Harness) -> None:
    define(h)
    engine = h.engine.on_behalf_of(Principal("stranger", trusted=False))
    with unchanged(h), pytest.raises(Forbidden):
        h(engine.define("bill", description="Mine now"))
    assert h(engine.define("bill", description=WORDS)).description == WORDS


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ServedHub]:
    served = ServedHub(tmp_path / "hub.db")
    yield served
    served.stop()


def test_a_hub_stores_it_and_audits_a_change_of_it(hub: ServedHub) -> None:
    with Client(hub.url) as client, httpx.Client(base_url=hub.url + "api/v1", timeout=60) as http:
        for _ in range(2):
            assert client.define("bill", description=WORDS).description == WORDS
        client.define("bill", description="Something else")
        assert [entry["subject"] for entry in http.get("/audit").json()["entries"]] == ["job bill", "job bill"]
        assert http.get("/jobs").json()["jobs"][0]["description"] == "Something else"
        refused = http.put("/jobs/bill", json={"description": "x" * 5_000})
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("through_hub", [False, True], ids=["store", "hub"])
def test_an_app_gives_it_and_the_command_line_shows_it(
    through_hub: bool, tmp_path: Path, hub: ServedHub, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(hub.url if through_hub else str(tmp_path / "hub.db"))

    @app.job(description="Sends the bill.\nSlowly.")
    def bill() -> None:
        """Of no concern to operators."""

    @app.job()
    def mail() -> None:
        """Of no concern to operators."""

    pack = app.command("pack", ["true"], description="Packs.")
    with app:
        for job in (bill, mail, pack):
            job.enqueue()
    where = ["--hub", hub.url] if through_hub else ["--store", str(tmp_path / "hub.db")]
    assert cli.main(["jobs", *where]) == 0
    shown = capsys.readouterr().out
    assert ("Sends the bill." in shown, "Packs." in shown, "concern" in shown) == (True, True, False)
    assert cli.main(["jobs", "show", "bill", *where]) == 0
    assert "Slowly." in capsys.readouterr().out
