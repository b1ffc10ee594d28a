"""SO1's diagram of states, as its document draws it, and random lives of jobs: each walks only its arrows, and together they see all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.doors import Answer
from tests.dialects.so1_door import So1, idle
from tests.harness import BOOM, LEASE, Harness
from tests.tiers import MANY
from windlass.errors import WindlassError
from windlass.machine import ENDED, LIVE, Fail, Report, Requeue, Snooze, Succeed
from windlass.model import Run

DIAGRAM = """
stateDiagram-v2
[*] --> pending : POST /api/jobs (createdAt set)
pending --> running : worker picks up (startedAt set)
pending --> cancelled : cancel before start
running --> success : output produced (completedAt set)
running --> failed : error captured (completedAt set)
running --> cancelled : user cancels (completedAt set)
success --> [*]
failed --> [*]
cancelled --> [*]
"""
ARROWS = frozenset(re.findall(r"^(\S+) --> (\S+)", DIAGRAM, re.MULTILINE))
__all__ = ["idle"]
pytestmark = pytest.mark.usefixtures("idle")

OUTSIDE = "[*]"
TERMINAL = {state for state, after in ARROWS if after == OUTSIDE}

MINUTE = 60_000


def report(kind: Callable[..., Report], **fields: Any) -> Callable[[So1, Run], object]:
    return lambda so1, run: so1.h.report(run, kind(token=run.token or "none", **fields))


MOVES: dict[str, Callable[[So1, Run], object]] = {
    "claim": lambda so1, run: so1.h.claim(),
    "start": lambda so1, run: so1.h(so1.h.engine.start(run.id, run.token or "none")),
    "log": lambda so1, run: so1.h(so1.h.engine.log(run.id, run.token or "none", _next_lines(so1, run))),
    "succeed": report(Succeed, output='{"n":1}'),
    "fail": report(Fail, error=BOOM),
    "fail for good": report(Fail, error=BOOM, retry=False),
    "snooze": report(Snooze, delay=MINUTE),
    "requeue": report(Requeue),
    "give back": report(Requeue, begun=False),
    "cancel": lambda so1, run: so1.post(f"/api/jobs/{run.current_attempt}/cancel"),
    "cancel elsewhere": lambda so1, run: so1.h(so1.h.engine.cancel(run.id)),
    "skip": lambda so1, run: so1.h(so1.h.engine.skip(run.id, reason="late")),
    "allow two": lambda so1, run: so1.h(so1.h.engine.patch(run.id, max_attempts=run.max_attempts + 1)),
    "put off": lambda so1, run: so1.h(so1.h.engine.patch(run.id, due_at=so1.h.clock.now() + MINUTE)),
    "a minute": lambda so1, run: so1.h.sweep(after=max(MINUTE, LEASE)),
}
"""What may happen to a job; much of it is refused, depending on where it is."""


def _next_lines(so1: So1, run: Run) -> list[tuple[int, str]]:
    written = so1.h(so1.h.engine.lines(run.id, after=(run.attempt, 0), count=1_000))
    return [(len(written) + n, f"line {len(written) + n}") for n in (1, 2)]


class Watcher:
    """A client of the stream of a job: it comes back with the id of its last event, and reads what is new."""

    def __init__(self, so1: So1, job_id: str) -> None:
        self.so1, self.job_id, self.last = so1, job_id, ""
        self.walk, self.lines = [OUTSIDE], list[int]()
        self.record: bytes | None = None

    def look(self) -> None:
        answer = self.so1.get(f"/api/jobs/{self.job_id}/events", last_event_id=self.last)
        job = self.so1.job(self.job_id)
        assert (answer.status == 204) == (self.record is not None)
        for event, id, data in _events(answer):
            self.last = id
            if event == "log":
                self.lines.append(data["cursor"])
                assert data["line"] == f"line {data['cursor']}"
            else:
                self.walk.append(data["state"])
        self._compare(job)

    def _compare(self, job: dict[str, Any]) -> None:
        """The record says what the stream has told, and nothing of it changes after the end."""
        state = self.walk[-1]
        assert job["state"] == state
        assert ("startedAt" in job) == ("running" in self.walk)
        assert ("completedAt" in job) == (state in TERMINAL)
        times = [job[name] for name in ("createdAt", "startedAt", "completedAt") if name in job]
        assert times == sorted(times)
        assert self.lines == list(range(1, len(self.lines) + 1))
        assert job["logs"] == [f"line {n}" for n in self.lines]
        content = json.dumps(job).encode()
        assert self.record in (None, content)
        self.record = content if state in TERMINAL else None

    def arrows(self) -> Iterator[tuple[str, str]]:
        yield from zip(self.walk, self.walk[1:], strict=False)
        if self.walk[-1] in TERMINAL:
            yield self.walk[-1], OUTSIDE


def _events(answer: Answer) -> Iterator[tuple[str, str, Any]]:
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines())
        if "data" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])


def live(so1: So1, moves: list[str]) -> set[tuple[str, str]]:
    """The arrows that a new job, and those that follow it, are seen to walk."""
    run_id = so1.create()["id"]
    watchers = {run_id: Watcher(so1, run_id)}
    for move in ("", *moves):
        with suppress(WindlassError):
            if move:
                MOVES[move](so1, so1.h.get(run_id))
        current = so1.h.get(run_id).current_attempt
        watchers.setdefault(current, Watcher(so1, current))
        for watcher in watchers.values():
            watcher.look()
    _end(so1, run_id)
    return {arrow for watcher in watchers.values() for arrow in watcher.arrows()}


def _end(so1: So1, run_id: str) -> None:
    """Nothing of it is left for the next one."""
    if so1.h.get(run_id).state not in ENDED:
        with suppress(WindlassError):
            so1.h(so1.h.engine.cancel(run_id))
    if so1.h.get(run_id).state in LIVE:
        so1.h.sweep(after=MINUTE)
    assert so1.h.get(run_id).state in ENDED


def test_every_life_walks_only_the_arrows_of_the_diagram_and_every_arrow_is_walked(h: Harness) -> None:
    so1, walked = So1(h), set[tuple[str, str]]()

    @settings(max_examples=1_000 if MANY else 40, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(sorted(MOVES)), max_size=12))
    def check(moves: list[str]) -> None:
        arrows = live(so1, moves)
        assert arrows <= ARROWS
        walked.update(arrows)

    check()
    for moves in (["cancel"], ["claim", "log", "succeed"], ["claim", "fail"], ["claim", "start", "cancel", "log", "succeed"]):
        arrows = live(so1, moves)
        assert arrows <= ARROWS
        walked |= arrows
    assert walked == ARROWS
    so1.close()
