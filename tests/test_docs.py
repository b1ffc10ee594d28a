"""Every Python block in the docs runs, and what they link to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def _blocks(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_in_an_empty_folder(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    code = _blocks(page)
    environment = dict(os.environ)
    if "DATABASE_URL" in code:
        environment["DATABASE_URL"] = request.getfixturevalue("postgres_url")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / target).exists()]
    assert missing == []


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))
    assert {"up", "test"} <= named
    assert [target for target in sorted(named) if f"\n{target}:" not in makefile] == []


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
