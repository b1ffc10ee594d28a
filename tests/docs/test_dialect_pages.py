"""The pages about dialects: every heading of the document in its order, every line of the contract, and a test for each line they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from windlass.dialects import NAMES, package_of
from windlass.model import State

FORGE = """1. SQLite Schema|2. Hub Routes (new)|Job Management|Worker Endpoints|SSE (dashboard)|Claim Logic (critical path)|
Reaper (stale job reclaimer)|3. Worker Agent Design (Bun, v1)|New env vars|Worker lifecycle|Key design points|File structure|
4. State Machine|5. Railway Setup|Persistent Volume (required)|Env vars (complete set for hub)|WAL Mode|6. Files to Create/Modify|New files|
Modified files|7. Implementation Order|Phase A — Database + Core API|Phase B — Worker Agent|Phase C — Dashboard|Phase D — Hardening|
8. What This Spec Does NOT Include (deliberate)"""
SO1 = """ELI5|States|Transitions|Timestamp Invariants|Terminal States|Why Cancellation Has Two Sources|Key Terms|Q&A|Examples"""
GUARDS = """Overview|Invariants (Must Never Be Violated)|INV-001: Job Immutability After Dispatch|INV-002: JobRun Immutability|
INV-003: Single Running Job Per Worker|INV-004: Queue Order Consistency|INV-005: Schedule-Job Isolation|
INV-006: JobGroup Completion Atomicity|Critical Design Decisions|DEC-001: 1:1 Job-to-JobRun Relationship|
DEC-002: SQLite for Job Storage|DEC-003: APScheduler for Cron Scheduling|DEC-004: Direct API Next-Slot Reservation|
DEC-005: Position-Based Ordering Within Priority|DEC-006: Unified Status Model|DEC-007: Automatic Retry Policy|
DEC-008: Queue Persistence Across Restarts|DEC-009: Webhook Delivery Guarantees|DEC-010: Schedule Timezone Handling|
DEC-011: Concurrency Limit Strategy|DEC-012: JobGroup Sequential Failure Behavior|Open Questions (Do Not Implement Until Resolved)|
Resolved Questions (Promoted to Decisions)|Constraints|CON-001: Single Machine Deployment|CON-002: Ollama Resource Exclusivity|
CON-003: Graceful Shutdown|CON-004: Backward Compatibility Period|Risk Register|Acceptance Criteria Template|Review Checklist|
Document History"""
KUMOFIRE = """Scope|Runtime Model|Protocol|Entities|Job|Job Schedule|Job Run|Job Lock|Queue Message|Run Status Model|State Transitions|
Create Protocol|Schedule Dispatch Protocol|1. Dispatch due runs|2. Materialize due schedules|Consume Protocol|Ownership Boundaries|
Adapters|Storage Adapter|Queue Adapter|Design Intent"""
ZEROG = """Durable jobs|Delivery model|Lifecycle|Backoff|Graceful shutdown|When NOT to use a job runner"""
PAGES = [
    ("forge", "F", 33, FORGE),
    ("guards", "G", 40, GUARDS),
    ("so1", "L", 24, SO1),
    ("kumofire", "K", 40, KUMOFIRE),
    ("zerog", "Z", 22, ZEROG),
]


def _page(name: str) -> str:
    return (ROOT / "docs" / "dialects" / f"{name}.md").read_text(encoding="utf-8")


def _tested(letter: str) -> set[int]:
    """The lines that the short tier has a test of, in the words of the dialect: `make test` holds these."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in Path(ROOT / "tests" / "dialects").glob("test_*.py")]
    names = [name for tree in trees if not _is_long(tree) for name in _short_tests(tree)]
    return {int(number) for name in names for number in re.findall(rf"(?<=_){letter}(\d+)(?=_)", _lines_in(name))}


def _is_long(tree: ast.Module) -> bool:
    """Whether a whole file is in the long tier."""
    return any(ast.unparse(statement) == "pytestmark = pytest.mark.long" for statement in tree.body)


def _short_tests(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and "long" not in map(ast.unparse, statement.decorator_list):
            yield statement.name


def _lines_in(name: str) -> str:
    """The beginning of a test's name, which has the numbers of its lines: `test_G9_G10_` of `test_G9_G10_a_retry_is_...`."""
    found = re.match(r"test_([A-Z]\d+_)+", name)
    return "" if found is None else found[0]


@pytest.mark.parametrize(("name", "letter", "lines", "headings"), PAGES, ids=[page[0] for page in PAGES])
def test_a_page_has_every_heading_and_every_line_and_each_has_a_test(name: str, letter: str, lines: int, headings: str) -> None:
    page = _page(name)
    section = page.partition("## The document, heading by heading\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.M) == [heading.strip() for heading in headings.split("|")]
    named = {int(number) for number in re.findall(rf"\b{letter}(\d+)\b", section)}
    assert named == {*range(1, lines + 1)}
    assert named <= _tested(letter)


def test_the_pages_have_every_line_of_the_contracts() -> None:
    assert sum(lines for _, _, lines, _ in PAGES) == 159
    assert sorted(name for name, *_ in PAGES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_word_for_every_state(name: str) -> None:
    section = _page(name).partition("## States\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \|$", section, re.M)
    words = {State(state): word for states, word in rows if not states.startswith("state") for state in states.split(", ")}
    assert words == package_of(name).WORDS.labels
