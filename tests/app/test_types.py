"""What type checkers know of the library, by the files in `typing`: each line that is marked is refused, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import long

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "type_tests").glob("[a-z]*.py"))
MARK = "# type: ignore["


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def _marked(file: Path) -> set[int]:
    return {number for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if MARK in line}


def test_mypy_refuses_what_is_marked_and_nothing_else(tmp_path: Path) -> None:
    """By its own settings in pyproject.toml, where a mark that is not needed is an error."""
    said = _run(sys.executable, "-m", "mypy", "--cache-dir", tmp_path, *FILES)
    assert said.startswith("Success"), said


@pytest.fixture(scope="module")
def refused_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    config = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    settings = {
        "include": list(map(str, FILES)),
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,
        "pythonVersion": "3.11",
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    said = _run(sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", config)
    refused: dict[str, dict[int, str]] = {file.name: {} for file in FILES}
    for item in json.loads(said)["generalDiagnostics"]:
        refused[Path(item["file"]).name][item["range"]["start"]["line"] + 1] = item["message"]
    return refused


@long  # the same lines by a second checker, which takes as long as a hundred other tests
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pyright_refuses_what_is_marked_and_nothing_else(file: Path, refused_by_pyright: dict[str, dict[int, str]]) -> None:
    refused, marked = refused_by_pyright[file.name], _marked(file)
    assert len(marked) > 10
    assert {line: message for line, message in refused.items() if line not in marked} == {}
    assert marked - refused.keys() == set()
