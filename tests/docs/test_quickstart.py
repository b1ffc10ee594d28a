"""The quickstart of the README, copied into an empty folder and followed word by word, as a new user would."""

from __future__ import annotations

import os
from pathlib import Path

from tests.docs.pages import ROOT, Follower, blocks_of, commands_in, file_in

README = ROOT / "README.md"


def test_the_quickstart_works_in_an_empty_folder(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    Follower(tmp_path, environment).follow(README)
    assert {"shop.py", "windlass.db"} <= {path.name for path in tmp_path.iterdir()}


def test_the_quickstart_is_short_and_shows_the_whole_way() -> None:
    blocks = blocks_of(README)
    (shop,) = [block for block in blocks if file_in(block) == "shop.py"]
    lines = [line for line in shop.text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 10
    given = [command.line for block in blocks if block.kind == "console" for command in commands_in(block.text)]
    assert "windlass work shop:app &" in given
    assert "python shop.py" in given
