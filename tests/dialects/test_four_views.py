"""One store, several views: whatever the guards, 0gkit, Forge and the API do to its runs, each shows all of them, in words that agree.

The words are those of the contracts' own table, written down here once more. A dialect that there is not yet is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.doors import Answer, Door
from tests.dialects.test_two_doors import dashed
from tests.harness import LEASE, Harness
from tests.tiers import MANY
from windlass import dialects
from windlass.api.values import from_rfc3339
from windlass.dialects import forge, guards
from windlass.errors import BadInput, Cancelled, LeaseLost, NotFound, WrongState
from windlass.machine import ENDED
from windlass.model import Attempt, Run, State

JOB = "render"
SECOND, MINUTE = 1_000, 60_000
ZEROG: Any = dialects.package_of("zerog") if "zerog" in dialects.NAMES else None
_REFUSALS = (NotFound, WrongState, LeaseLost, Cancelled, BadInput)


class Row(NamedTuple):
    """The words for a run: those of Forge and 0gkit, and those of the guards for its last attempt and the run of that."""

    forge: str
    zerog: str
    guards: tuple[str, str | None]


TABLE: Mapping[State, Row] = {
    State.WAITING: Row("pending", "queued", ("QUEUED", None)),
    State.SCHEDULED: Row("pending", "queued", ("QUEUED", None)),
    State.QUEUED: Row("pending", "queued", ("QUEUED", None)),
    State.CLAIMED: Row("assigned", "running", ("RUNNING", None)),
    State.RUNNING: Row("running", "running", ("RUNNING", None)),
    State.CANCELLING: Row("failed", "cancelled", ("RUNNING", None)),
    State.SUCCEEDED: Row("completed", "done", ("RUNNING", "COMPLETED")),
    State.FAILED: Row("quarantined", "failed", ("RUNNING", "FAILED")),
    State.QUARANTINED: Row("quarantined", "failed", ("RUNNING", "FAILED")),
    State.CANCELLED: Row("failed", "cancelled", ("CANCELLED", None)),
    State.SKIPPED: Row("failed", "cancelled", ("CANCELLED", "SKIPPED")),
}
SKIPPED_BY_ITS_HANDLER = ("RUNNING", "SKIPPED")
CLOSED: Mapping[str, tuple[str, str | None]] = {
    "failed": ("RUNNING", "FAILED"),
    "lapsed": ("RUNNING", "FAILED"),
    "returned": ("CANCELLED", None),
}
"""The words of the guards for an attempt that another one has followed."""


class Views(Door):
    """A hub with all doors, and a caller whose token opens each of them."""

    def __init__(self, h: Harness) -> None:
        super().__init__(h, forge.mount(forge.Settings(), h.clock), guards.mount(guards.Settings(), h.clock), prefix="")
        _, secret = h(h.engine.create_token("ops", ("admin",)))
        self.headers = {"authorization": f"Bearer {secret}"}
        self.runs: list[str] = []
        self.seen = set[tuple[str, str]]()
        self.backend: Any = None
        if ZEROG is not None:
            self.backend = ZEROG.backend("memory", clock=h.clock)
            self.backend._opened = h.engine
        h.define(JOB)

    def ask(self, door: str, method: str, path: str, data: Any = None) -> Answer:
        answer = self(method, {"forge": "/dialects/forge/api", "guards": "/dialects/guards", "native": "/api/v1"}[door] + path, data)
        assert answer.status < 500, answer
        return answer

    def add(self, run_id: str) -> None:
        self.runs.append(self.h.get(dashed(run_id)).id)

    def report(self, run: Run, kind: str, **fields: Any) -> None:
        self.ask("native", "POST", "/worker/report", {"outcomes": [{"run": run.id, "token": run.token or "none", "kind": kind, **fields}]})

    def agree(self) -> None:
        """Every view of every run tells the same, and each lists what belongs to it."""
        runs = [self.h.get(run_id) for run_id in self.runs]
        for run in runs:
            attempts = self.h(self.h.engine.attempts(run.id))
            self._forge_agrees(run, attempts)
            self._guards_agree(run, attempts)
            self._zerog_agrees(run, attempts)
        listed = {job["job_id"] for job in self.ask("guards", "GET", "/jobs?limit=200").json["jobs"]}
        own = [run for run in runs if run.queue == "guards"]
        assert listed == {attempt.id for run in own for attempt in self.h(self.h.engine.attempts(run.id))}
        answer = self.ask("guards", "GET", "/jobs?limit=1").json
        assert answer["queued_count"] == sum(TABLE[run.state].guards[0] == "QUEUED" for run in own)
        assert answer["running_count"] == sum(run.state in (State.CLAIMED, State.RUNNING, State.CANCELLING) for run in own)

    def _forge_agrees(self, run: Run, attempts: list[Attempt]) -> None:
        row = self.ask("forge", "GET", f"/jobs/{run.id.replace('-', '')}").json
        native = self.ask("native", "GET", f"/runs/{run.id}").json
        assert (native["state"], row["status"]) == (run.state, TABLE[run.state].forge)
        assert (json.loads(row["params"]), row["priority"]) == (native["payload"], native["priority"])
        if run.state is State.SUCCEEDED:
            assert json.loads(row["result"]) == native["output"]
            assert row["completed_at"] == from_rfc3339(native["finished_at"], "finished_at")
        self.seen.add(("forge", row["status"]))

    def _guards_agree(self, run: Run, attempts: list[Attempt]) -> None:
        jobs = [self.ask("guards", "GET", f"/jobs/{attempt.id}").json for attempt in attempts]
        runs = [self.ask("guards", "GET", f"/jobs/{attempt.id}/runs").json["runs"] for attempt in attempts]
        words = [(job["status"], run[0]["status"] if run else None) for job, run in zip(jobs, runs, strict=True)]
        last = SKIPPED_BY_ITS_HANDLER if run.state is State.SKIPPED and attempts[-1].claimed_at is not None else TABLE[run.state].guards
        assert words == [*(CLOSED[attempt.outcome] for attempt in attempts[:-1]), last]
        assert [job["retry_of"] for job in jobs] == [attempts[0].retry_of, *(attempt.id for attempt in attempts[:-1])]
        for attempt, job, execution in zip(attempts, jobs, runs, strict=True):
            assert job["params"] == json.loads(run.payload if attempt.payload is None else attempt.payload)
            assert (job["started_at"] is None) == (attempt.claimed_at is None)
            assert (job["finished_at"] is None) == (attempt.finished_at is None)
            if execution:
                assert execution[0]["params_snapshot"] == job["params"]
                assert (execution[0]["started_at"], execution[0]["finished_at"]) == (job["started_at"], job["finished_at"])
        self.seen.update(("guards", f"{job}/{run}") for job, run in words)

    def _zerog_agrees(self, run: Run, attempts: list[Attempt]) -> None:
        if ZEROG is None:
            return
        ((record),) = self.h(ZEROG.show(self.h.engine, [run]))
        assert (record["id"], record["name"], record["state"]) == (run.id, run.job, TABLE[run.state].zerog)
        assert record["input"] == json.loads(run.payload)
        assert record["metadata"]["attempts"] == sum(attempt.claimed_at is not None for attempt in attempts)
        assert record.get("result") == (None if run.output is None else json.loads(run.output))
        self.seen.add(("zerog", record["state"]))


Move = Callable[[Views, Run], object]


def _forge(method: str, path: str, **data: Any) -> Move:
    return lambda views, run: views.ask("forge", method, path.format(run.id.replace("-", "")), data or None)


def _native(path: str, data: Any = None) -> Move:
    return lambda views, run: views.ask("native", "POST", path.format(run.id), data)


def _report(kind: str, **fields: Any) -> Move:
    return lambda views, run: views.report(run, kind, **fields)


def _guards(method: str, path: str, data: Any = None) -> Move:
    return lambda views, run: views.ask("guards", method, path.format(run.current_attempt), data)


def _again(door: str, path: str, key: str) -> Move:
    """A rerun: a new run where it is accepted."""

    def move(views: Views, run: Run) -> None:
        answer = views.ask(door, "POST", path.format(run.id if door == "native" else run.current_attempt))
        if answer.status in (201, 202):
            views.add(answer.json[key])

    return move


def _retry_of_the_first(views: Views, run: Run) -> None:
    """The guards retry the first attempt, also while a later one is planned or runs."""
    answer = views.ask("guards", "POST", f"/api/job-runs/{run.id}/retry")
    if answer.status == 201:
        views.add(answer.json["job_id"])


def _zerog(verb: str, *arguments: Any) -> Move:
    """A verb of the backend on a job; it refuses what is not its own or not possible."""

    def move(views: Views, run: Run) -> None:
        if views.backend is not None and run.queue == views.backend.queue:
            try:
                views.h(getattr(views.backend, verb)(run.id, *arguments))
            except (ZEROG.ZeroGError, *_REFUSALS):
                pass

    return move


def _zerog_claims(views: Views, run: Run) -> None:
    if views.backend is not None:
        views.h(views.backend.claim("w4"))


def _skip(views: Views, run: Run) -> None:
    if run.state in (State.WAITING, State.SCHEDULED, State.QUEUED):
        views.h(views.h.engine.skip(run.id, reason="duplicate"))


CREATIONS: dict[str, Callable[[Views], str]] = {
    "forge": lambda views: str(views.ask("forge", "POST", "/jobs", {"type": JOB, "params": {"n": 1}}).json["id"]),
    "guards": lambda views: str(views.ask("guards", "POST", "/jobs", {"type": JOB, "params": {"n": 2}, "priority": 1}).json["job_id"]),
    "native": lambda views: str(views.ask("native", "POST", "/runs", {"job": JOB, "payload": {"n": 3}}).json["id"]),
}
if ZEROG is not None:
    CREATIONS["zerog"] = lambda views: str(views.h(views.backend.enqueue(JOB, {"n": 4})))

MOVES: dict[str, Move] = {
    "forge claims": _forge("POST", "/jobs/claim", worker_id="w1"),
    "forge beats": _forge("POST", "/jobs/{}/heartbeat", worker_id="w1"),
    "forge ends": _forge("POST", "/jobs/{}/result", worker_id="w1", result={"n": 2}),
    "forge fails": _forge("POST", "/jobs/{}/fail", worker_id="w1", reason="exit code 1"),
    "forge cancels": _forge("DELETE", "/jobs/{}"),
    "guards edit": _guards("PATCH", "/jobs/{}", {"params": {"n": 5}, "priority": 3}),
    "guards cancel": _guards("POST", "/api/jobs/{}/cancel"),
    "guards delete": _guards("DELETE", "/jobs/{}"),
    "guards retry": _again("guards", "/api/job-runs/{}/retry", "job_id"),
    "guards retry the first": _retry_of_the_first,
    "guards stop": _guards("POST", "/scheduler/stop", {"timeout": 1}),
    "guards start": _guards("POST", "/scheduler/start"),
    "native claims": _native("/worker/claim", {"worker": {"name": "w2", "slots": 100}, "count": 1, "lease": LEASE}),
    "native starts": lambda views, run: views.ask("native", "POST", "/worker/start", {"held": [[run.seq, run.token or "none"]]}),
    "native ends": _report("succeed", output='{"n":2}'),
    "native fails": _report("fail", error={"code": "boom", "message": "it broke"}),
    "native fails for good": _report("fail", error={"code": "boom", "message": "it broke"}, retry=False),
    "native skips running": _report("skip", reason="duplicate"),
    "native snoozes": _report("snooze", delay=MINUTE),
    "native gives back": _report("requeue", begun=False),
    "native cancels": _native("/runs/{}/cancel"),
    "native skips": _skip,
    "native reruns": _again("native", "/runs/{}/rerun", "id"),
    "zerog claims": _zerog_claims,
    "zerog ends": _zerog("complete", {"n": 2}),
    "zerog fails": _zerog("fail", "it broke", True),
    "zerog fails for good": _zerog("fail", "it broke", False),
    "zerog cancels": _zerog("cancel"),
    "ten seconds": lambda views, run: views.h.sweep(after=10 * SECOND),
    "a lost lease": lambda views, run: views.h.sweep(after=LEASE + MINUTE),
}

steps = st.tuples(st.sampled_from([*MOVES, *CREATIONS]), st.integers(0, 9))
EACH = [
    [("native claims", 0)] * 4 + [("native ends", 0), ("native fails", 1), ("native cancels", 2)],
    [("native claims", 0)] * 4 + [("native fails for good", index) for index in range(4)],
    [("native claims", 0)] * 4 + [("native skips running", index) for index in range(4)],
    [("native claims", 0)] * 4 + [("native starts", index) for index in range(4)] + [("a lost lease", 0), ("guards retry the first", 1)],
    [("native skips", 0), ("native cancels", 1), ("native skips", 1), ("guards delete", 1), ("guards retry", 1), ("native reruns", 0)],
    [("forge claims", 0), ("forge beats", 0), ("forge ends", 0), ("zerog claims", 3), ("zerog ends", 3), ("guards cancel", 1)],
]
"""Conversations that see every word, whatever chance does."""


def test_every_view_tells_the_same_of_every_run_whoever_moves_it(h: Harness) -> None:
    views = Views(h)

    @settings(max_examples=100 if MANY else 8, suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, min_size=4, max_size=12))
    def converse(conversation: list[tuple[str, int]]) -> None:
        views.runs = []
        for create in CREATIONS.values():
            views.add(create(views))
        for step, index in conversation:
            if step in CREATIONS:
                views.add(CREATIONS[step](views))
            else:
                MOVES[step](views, h.get(views.runs[index % len(views.runs)]))
            views.agree()
        _end(views)

    converse()
    for conversation in EACH:
        converse.hypothesis.inner_test(conversation)  # type: ignore[attr-defined]
    expected = {("forge", row.forge) for row in TABLE.values()} | {("guards", "/".join(map(str, row.guards))) for row in TABLE.values()}
    expected |= {("guards", "RUNNING/SKIPPED")} | ({("zerog", row.zerog) for row in TABLE.values()} if ZEROG is not None else set())
    assert views.seen == expected
    views.close()


def _end(views: Views) -> None:
    """Nothing is left for the next conversation, and nothing of this one is in its lists."""
    views.h(views.h.engine.resume("queue", "guards"))
    for run_id in views.runs:
        if views.h.get(run_id).state not in ENDED:
            views.ask("native", "POST", f"/runs/{run_id}/cancel")
    views.h.sweep(after=MINUTE)
    assert {views.h.get(run_id).state for run_id in views.runs} <= set(ENDED)
    views.h.clock.advance(400 * 24 * 60 * MINUTE)
    views.h(views.h.engine.roll_up())
    while views.h(views.h.engine.prune()):
        pass
