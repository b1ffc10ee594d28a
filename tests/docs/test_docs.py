"""Every block of Python and every command in the docs runs, and what they link to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, Follower, blocks_of, commands_in, program_of, runs
from windlass.app.options import CommandOptions, JobOptions, RunOptions
from windlass.app.schedules import ScheduleOptions

README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
FOLLOWED_ELSEWHERE = (README, ROOT / "docs" / "cli.md")  # test_quickstart.py, test_cli.py
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FOLLOWED_ELSEWHERE and runs(page)], ids=lambda page: page.name)
def test_what_a_page_shows_runs_in_an_empty_folder(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    if "DATABASE_URL" in _text(page):
        environment["DATABASE_URL"] = request.getfixturevalue("emptied_postgres")
    Follower(tmp_path, environment).follow(page)


def _follow(text: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    Follower(folder, os.environ).follow(page)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 == 2\n```\n",
        "```python\nprint('one')  # two\n```\n",
        "```python\n# shop.py\nname = 'shop'\n```\n```python\nfrom shop import nothing\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\n$ exit 3\n```\n",
        "```console\n$ exit 3 &\n```\n",
        "```console\n$ true\n(exits with 1)\n```\n",
    ],
)
def test_a_page_that_does_not_work_is_noticed(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _follow(text, tmp_path)


def test_a_page_is_followed_in_order(tmp_path: Path) -> None:
    _follow(
        "```python\n# shop.py\nname = 'shop'\n```\n"
        "```console\n$ python -c 'import shop; print(shop.name)'\nsh...\n$ exit 2\n(exits with 2)\n```\n"
        "```python\nimport shop\n```\n```python\nprint(shop.name, 7)  # shop ...\n```\n",
        tmp_path,
    )


def test_a_session_is_read_as_commands_and_what_they_print() -> None:
    read = commands_in("$ one \\\n  two\nprinted\nmore\n$ three &\n$ four\n(exits with 4)\n")
    assert read == [Command("one   two", "printed\nmore"), Command("three &", None), Command("four", None, 4)]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = []
    for target, anchor in LINK.findall(_text(page)):
        there = page.parent / target if target else page
        if not there.exists() or (anchor and anchor not in map(_anchor, HEADING.findall(_text(there)))):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {(README.parent / target).resolve() for target, _ in LINK.findall(_text(README))}
    unknown = [page.name for page in (ROOT / "docs").glob("*.md") if page.resolve() not in linked]
    assert unknown == []


@pytest.mark.parametrize(
    ("page", "heading", "options"),
    [
        ("jobs.md", "All options of a job", set(JobOptions.__optional_keys__)),
        ("enqueueing.md", "All options of a run", set(RunOptions.__optional_keys__)),
        ("schedules.md", "All options of a schedule", set(ScheduleOptions.__optional_keys__)),
    ],
)
def test_tables_of_options_name_all_there_are(page: str, heading: str, options: set[str]) -> None:
    section = _text(ROOT / "docs" / page).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.M)) == options
    assert JobOptions.__optional_keys__ - CommandOptions.__optional_keys__ == {"name"}  # what the page says of commands


def _ruff(*arguments: str | Path) -> None:
    ruff = [Path(sys.executable).with_name("ruff"), *arguments, "--no-cache", "--config", ROOT / "pyproject.toml"]
    done = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_in_the_docs_is_formatted_as_the_code_is(tmp_path: Path) -> None:
    for page in PAGES:
        for number, block in enumerate(blocks_of(page)):
            if block.kind == "python":
                (tmp_path / f"{page.stem}_{number}.py").write_text(block.text, encoding="utf-8")
    _ruff("format", "--diff", tmp_path)


def test_the_programs_of_the_docs_use_what_they_name(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / f"{page.stem}.py").write_text(program_of(page), encoding="utf-8")
    _ruff("check", "--select", "F", "--ignore", "F401", tmp_path)  # an import may only show where a thing is


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = _text(ROOT / "Makefile")
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", _text(README), re.M))
    assert {"up", "test"} <= named
    assert [target for target in sorted(named) if f"\n{target}:" not in makefile] == []


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
