"""Looks for retired words in names, statements and texts that people read: `make check-words`. The list is `docs/words.toml`."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ("src/windlass", "tests", "bench", "docs")
READ = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/decisions/*.md", "docs/dialects/*.md", "src/windlass/page/*.js")
LINES = "lines.md"  # generated from the names of tests

Words = Mapping[str, Mapping[str, str]]


def main() -> int:
    """Print where a word of the list is still used, and which word is used instead."""
    words = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))
    problems = [*names(ROOT, words), *statements(ROOT, words), *phrases(ROOT, words), *doubles(ROOT, words)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def _python(root: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def names(root: Path, words: Words) -> Iterator[str]:
    """Identifiers that are retired everywhere, and variables that are retired in the package and its page."""
    for path, text in _python(root, *SOURCES):
        retired = dict(words["names"])
        if path.is_relative_to(root / "src"):
            retired |= words["variables"]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in retired:
                yield f"{path.relative_to(root)}:{token.start[0]}: {token.string}; use {retired[token.string]}"

    declared = re.compile(rf"\b(?:const|let)\b[^=;]*\b({'|'.join(words['variables'])})\b[^=;]*=")
    for path in sorted((root / "src/windlass/page").glob("*.js")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in declared.finditer(line):
                yield f"{path.relative_to(root)}:{number}: {match[1]}; use {words['variables'][match[1]]}"


def statements(root: Path, words: Words) -> Iterator[str]:
    """Columns, parameters and names of statements. Steps of the schema keep the words of their time."""
    retired = re.compile(rf"\b({'|'.join(words['names'])})\b")
    for path in sorted((root / "src/windlass/store/queries").glob("*.sql")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.lstrip().startswith("-- ") and (match := retired.search(line)):
                yield f"{path.relative_to(root)}:{number}: {match[0]}; use {words['names'][match[0]]}"


def phrases(root: Path, words: Words) -> Iterator[str]:
    """Phrases, and retired names in code quotes, in pages, docstrings, help and error texts."""
    spoken = {re.compile(rf"\b{phrase}\b", re.I): better for phrase, better in words["phrases"].items()}
    spoken |= {re.compile(rf"`{name}\b"): better for name, better in words["names"].items()}
    for path, text in _texts(root):
        for pattern, better in spoken.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(root)}:{line}: {match[0]!r}; use {better!r}"


def _texts(root: Path) -> Iterator[tuple[Path, str]]:
    yield from _python(root, "src/windlass")
    for pattern in READ:
        for path in sorted(root.glob(pattern)):
            if path.name != LINES:
                yield path, path.read_text(encoding="utf-8")


def doubles(root: Path, words: Words) -> Iterator[str]:
    """Classes of the package that share a name without being the two forms of one thing."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in _python(root, "src/windlass"):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    for name, found in places.items():
        if len(found) > 1 and name not in words["twice"]:
            yield f"{found[0]}: {name} is also a class in {', '.join(found[1:])}; one of them needs another name"


if __name__ == "__main__":
    sys.exit(main())
