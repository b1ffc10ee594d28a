"""The pages about dialects: every heading of the document in its order, every line of the contract, and a test for each line they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from windlass.dialects import package_of
from windlass.model import State

FORGE = """1. SQLite Schema|2. Hub Routes (new)|Job Management|Worker Endpoints|SSE (dashboard)|Claim Logic (critical path)|
Reaper (stale job reclaimer)|3. Worker Agent Design (Bun, v1)|New env vars|Worker lifecycle|Key design points|File structure|
4. State Machine|5. Railway Setup|Persistent Volume (required)|Env vars (complete set for hub)|WAL Mode|6. Files to Create/Modify|New files|
Modified files|7. Implementation Order|Phase A — Database + Core API|Phase B — Worker Agent|Phase C — Dashboard|Phase D — Hardening|
8. What This Spec Does NOT Include (deliberate)"""
SO1 = """ELI5|States|Transitions|Timestamp Invariants|Terminal States|Why Cancellation Has Two Sources|Key Terms|Q&A|Examples"""
KUMOFIRE = """Scope|Runtime Model|Protocol|Entities|Job|Job Schedule|Job Run|Job Lock|Queue Message|Run Status Model|State Transitions|
Create Protocol|Schedule Dispatch Protocol|1. Dispatch due runs|2. Materialize due schedules|Consume Protocol|Ownership Boundaries|
Adapters|Storage Adapter|Queue Adapter|Design Intent"""
ZEROG = """Durable jobs|Delivery model|Lifecycle|Backoff|Graceful shutdown|When NOT to use a job runner"""
PAGES = [("forge", "F", 33, FORGE), ("so1", "L", 24, SO1), ("kumofire", "K", 40, KUMOFIRE), ("zerog", "Z", 22, ZEROG)]


def _page(name: str) -> str:
    return (ROOT / "docs" / "dialects" / f"{name}.md").read_text(encoding="utf-8")


def _tested(letter: str) -> set[int]:
    files = Path(ROOT / "tests" / "dialects").glob("test_*.py")
    return {int(number) for file in files for number in re.findall(rf"def test_{letter}(\d+)_", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(("name", "letter", "lines", "headings"), PAGES, ids=[page[0] for page in PAGES])
def test_a_page_has_every_heading_and_every_line_and_each_has_a_test(name: str, letter: str, lines: int, headings: str) -> None:
    page = _page(name)
    section = page.partition("## The document, heading by heading\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.M) == [heading.strip() for heading in headings.split("|")]
    named = {int(number) for number in re.findall(rf"\b{letter}(\d+)\b", section)}
    assert named == {*range(1, lines + 1)}
    assert named <= _tested(letter)


@pytest.mark.parametrize("name", ["forge", "so1", "kumofire", "zerog"])
def test_a_page_has_the_word_for_every_state(name: str) -> None:
    section = _page(name).partition("## States\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (\w+) \|$", section, re.M)[1:]
    words = {State(state): word for states, word in rows for state in states.split(", ")}
    assert words == package_of(name).WORDS.labels
