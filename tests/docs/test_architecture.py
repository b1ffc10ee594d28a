"""The map shows what is there: every name on it can be imported, every file exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(windlass(?:\.\w+)+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:\w+/)*\w+\.(?:py|sql))`", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_map_is_there(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    pytest.fail(f"There is no {name}.")


@pytest.mark.parametrize("file", FILES)
def test_a_file_on_the_map_is_there(file: str) -> None:
    assert (ROOT / "src" / "windlass" / file).exists() or (ROOT / file).exists()


def test_every_room_is_on_the_map() -> None:
    package = ROOT / "src" / "windlass"
    rooms = {path.stem for path in package.iterdir() if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")}
    listed = set(re.findall(r"`(\w+)`", PAGE.split("## The path of a run")[0]))
    assert rooms - listed == {"durations"}  # a few lines for spans of time
