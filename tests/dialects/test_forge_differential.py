"""The same calls to the document's own statements and to the mounted dialect: after every step all rows are equal.

What differs is decided, and named by its line. Attempts are counted at the claim only (F12), and late words on ended jobs change nothing
(F17): both sides do that. Ours alone takes equal bytes for the same hash (F9), quarantines lost jobs that have no attempts left (F14), ends
as overlong what one tick of the reaper finds both lost and overlong (F15), and has as `heartbeat_at` of an ended job the moment of its end.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.forge_document import Document
from tests.dialects.forge_door import UNKNOWN, ForgeDoor
from tests.harness import Harness
from windlass.dialects.forge.words import LEASE
from windlass.store.base import run_sync

WORKERS = st.sampled_from(["w1", "w2", "w3"])
TYPES = st.sampled_from(["prodplan", "benchmark"])
TEXTS = st.sampled_from(["42\n", "43", '{"a":1}', "Zoë"])
WHICH = st.integers(-1, 5)  # of the jobs; -1 is one that does not exist

CREATE = st.tuples(
    st.just("create"),
    TYPES,
    st.fixed_dictionaries(
        {},
        optional={
            "priority": st.integers(-1, 2),
            "max_attempts": st.integers(1, 3),
            "max_runtime_ms": st.sampled_from([10_000, 70_000]),
            "params": st.sampled_from([{"n": 1}, [], "text", 1.5]),
            "solver_url": st.just("https://a.example/solver"),
            "solver_checksum": st.just("a" * 64),
        },
    ),
)
STEPS = st.lists(
    st.one_of(
        CREATE,
        st.tuples(st.just("claim"), WORKERS, st.one_of(st.none(), st.lists(TYPES, max_size=2))),
        st.tuples(st.just("claim"), WORKERS, st.none()),
        st.tuples(st.just("heartbeat"), WHICH, WORKERS),
        st.tuples(st.just("result"), WHICH, WORKERS, TEXTS, st.booleans()),
        st.tuples(st.just("fail"), WHICH, WORKERS, TEXTS),
        st.tuples(st.just("cancel"), WHICH),
        st.tuples(st.just("advance"), st.sampled_from([2, 10_000, 30_000, 62_000])),
        st.tuples(st.just("reap")),
    ),
    min_size=10,
    max_size=40,
)
ENDED = ("completed", "failed", "quarantined")
_numbers = count()


class Both:
    """The document's hub and ours, under one clock. Heartbeats come at even milliseconds and the reaper at odd ones: whether an age is
    exactly a minute is told by neither."""

    def __init__(self, h: Harness) -> None:
        self.document, self.door, self.h = Document(), ForgeDoor(h, queue=f"forge{next(_numbers)}"), h
        self.jobs: list[str] = []
        h.clock.advance(h.clock.now() % 2)

    @property
    def now(self) -> int:
        return self.h.clock.now()

    def job(self, which: int) -> str:
        return self.jobs[which % len(self.jobs)] if self.jobs and which >= 0 else UNKNOWN

    def create(self, type: str, members: dict[str, Any]) -> None:
        self.jobs.append(self.door.create(type, **members))
        self.document.create(self.jobs[-1], self.now, type, **members)

    def claim(self, worker: str, types: list[str] | None) -> None:
        answer = self.door.post("/api/jobs/claim", {"worker_id": worker, "types": types})
        assert (answer.status, answer.json["id"] if answer.body else None) == self.document.claim(self.now, worker, types)

    def heartbeat(self, which: int, worker: str) -> None:
        job = self.job(which)
        assert self.door.beat(job, worker).status == self.document.heartbeat(job, self.now, worker)

    def result(self, which: int, worker: str, text: str, hashed: bool) -> None:
        job, digest = self.job(which), sha256(text.encode()).hexdigest() if hashed else None
        row = self.document.row(job) or {}
        expected = self.document.result(job, self.now, worker, text, digest)
        if expected == 409 and row.get("status") == "completed" and None in (digest, row["result_hash"]) and row["result"] == text:
            expected = 200  # F9
        assert self.door.result(job, text, worker, result_hash=digest).status == expected

    def fail(self, which: int, worker: str, reason: str) -> None:
        job = self.job(which)
        answer = self.door.fail(job, reason, worker)
        assert (answer.status, answer.json.get("newStatus")) == self.document.fail(job, self.now, worker, reason)

    def cancel(self, which: int) -> None:
        job = self.job(which)
        assert self.door.delete(f"/api/jobs/{job}").status == self.document.cancel(job)

    def advance(self, ms: int) -> None:
        self.h.clock.advance(ms)

    def reap(self) -> None:
        self.h.clock.advance(1)
        self.document.end_overlong(self.now)  # F15
        self.document.reap(self.now)
        self.document.quarantine_lost(self.now - LEASE)  # F14
        run_sync(self.h.engine.lapse())
        self.h.clock.advance(1)

    def compare(self) -> None:
        rows = [self.door.row(job) for job in self.jobs]
        expected = self.document.rows()
        for row, other in zip(rows, expected, strict=True):
            if other["status"] in ENDED:
                row.pop("heartbeat_at")
                other.pop("heartbeat_at")
        assert rows == expected


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_the_dialect_does_what_the_statements_of_its_document_do(h: Harness, steps: list[Any]) -> None:
    both = Both(h)
    try:
        for what, *arguments in steps:
            getattr(both, what)(*arguments)
            both.compare()
        status = both.door.get("/api/jobs?limit=200").json
        assert {row["id"] for row in status} == set(both.jobs)
    finally:
        both.door.close()
