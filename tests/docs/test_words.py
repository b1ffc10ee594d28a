"""Words that were given up do not come back: `make check` finds them in names, statements and texts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
WORDS = {
    "names": {"burnt": "failures"},
    "variables": {"found": "what it is"},
    "phrases": {"whoever": "a noun"},
    "twice": {"Spool": "a protocol, and what satisfies it"},
}


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_words", ROOT / "docs" / "words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("src/windlass/store/queries", "tests", "bench", "docs/decisions", "docs/dialects", "src/windlass/page"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


CASES = {
    "a name": ("names", "src/windlass/a.py", "x = run.burnt\n", "burnt; use failures"),
    "a name of a test": ("names", "tests/test_a.py", "burnt = 1\n", "burnt; use failures"),
    "a variable": ("names", "src/windlass/a.py", "found = rows()\n", "found; use what it is"),
    "a variable of the page": ("names", "src/windlass/page/a.js", "const [found, more] = rows();\n", "found; use what it is"),
    "a column": ("statements", "src/windlass/store/queries/a.sql", "select burnt from job_runs\n", "burnt; use failures"),
    "a phrase of a page": ("phrases", "docs/a.md", "Whoever comes first.\n", "'Whoever'; use 'a noun'"),
    "a phrase of a dialect's page": ("phrases", "docs/dialects/a.md", "Whoever comes first.\n", "'Whoever'; use 'a noun'"),
    "a phrase of a docstring": ("phrases", "src/windlass/a.py", '"""For whoever asks."""\n', "'whoever'; use 'a noun'"),
    "a name that a page shows": ("phrases", "docs/a.md", "The field `burnt` counts.\n", "'`burnt'; use 'failures'"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_word_that_was_given_up_is_found(case: str, tree: Path, words: ModuleType) -> None:
    check, place, text, problem = CASES[case]
    (tree / place).write_text(text, encoding="utf-8")
    assert list(getattr(words, check)(tree, WORDS)) == [f"{place}:1: {problem}"]


def test_what_may_be_said_is_not_found(tree: Path, words: ModuleType) -> None:
    (tree / "tests/test_a.py").write_text("found = 1  # a variable of a test\n", encoding="utf-8")
    (tree / "src/windlass/a.py").write_text('"""What was found and burnt."""\n', encoding="utf-8")
    (tree / "docs/dialects/lines.md").write_text("| whoever comes first |\n", encoding="utf-8")  # of a test that has the name
    (tree / "src/windlass/store/queries/a.sql").write_text("-- burnt by hand\nselect 1\n", encoding="utf-8")
    for check in (words.names, words.statements, words.phrases, words.doubles):
        assert list(check(tree, WORDS)) == []


def test_two_classes_of_one_name_are_found_unless_there_is_a_reason(tree: Path, words: ModuleType) -> None:
    for name in ("a", "b"):
        (tree / f"src/windlass/{name}.py").write_text("class Place: ...\n\n\nclass Spool: ...\n", encoding="utf-8")
    (problem,) = words.doubles(tree, WORDS)
    assert problem.startswith("src/windlass/a.py:1: Place is also a class in src/windlass/b.py:1")
