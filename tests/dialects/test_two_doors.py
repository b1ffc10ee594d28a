"""Several doors, one run: whatever Forge, SO1, 0gkit and the API do to the runs of a store, each tells of them in its own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dialects.doors import Answer, Door
from tests.harness import LEASE, Harness
from tests.tiers import MANY
from windlass.api.values import to_rfc3339
from windlass.dialects import forge, so1, zerog
from windlass.dialects.so1.words import OUTCOMES
from windlass.errors import Cancelled, LeaseLost, WrongState
from windlass.machine import ENDED
from windlass.model import Run, State

JOB = "render"
MINUTE = 60_000


class Doors(Door):
    """A hub with all doors, and a caller whose token opens each of them."""

    def __init__(self, h: Harness) -> None:
        super().__init__(h, forge.mount(forge.Settings(), h.clock), so1.mount(so1.Settings(), h.clock), prefix="")
        _, secret = h(h.engine.create_token("acme/ops", ("admin",)))
        self.headers = {"authorization": f"Bearer {secret}"}
        self.runs: list[str] = []
        h.define(JOB)
        self.zerog = ZeroG(h)

    def ask(self, door: str, method: str, path: str, data: Any = None) -> Answer:
        answer = self(method, {"forge": "/dialects/forge/api", "so1": "/dialects/so1/api", "native": "/api/v1"}[door] + path, data)
        assert answer.status < 500, answer
        return answer

    def create(self, door: str) -> None:
        creations: dict[str, Callable[[], str]] = {
            "forge": lambda: self.ask("forge", "POST", "/jobs", {"type": JOB, "params": {"n": 1}}).json["id"],
            "so1": lambda: self.ask("so1", "POST", "/jobs", {"action": JOB, "inputs": {"n": 1}}).json["job"]["id"],
            "native": lambda: self.ask("native", "POST", "/runs", {"job": JOB, "payload": {"n": 1}}).json["id"],
            "zerog": lambda: self.h(self.zerog.enqueue(JOB, {"n": 1})),
        }
        self.runs.append(self.h.get(dashed(creations[door]())).id)

    def report(self, run: Run, kind: str, **fields: Any) -> None:
        self.ask("native", "POST", "/worker/report", {"outcomes": [{"run": run.id, "token": run.token or "none", "kind": kind, **fields}]})

    def told_alike(self) -> None:
        """Every run is told alike at all doors, and listed where it belongs."""
        runs = [self.h.get(run_id) for run_id in self.runs]
        for run in runs:
            self._told_alike(run)
        listed = {row["id"] for row in self.ask("forge", "GET", "/jobs?limit=200").json}
        assert listed == {run.id.replace("-", "") for run in runs if run.queue == "forge"}
        shown = {job["id"] for job in self.ask("so1", "GET", "/jobs?limit=200").json["jobs"]}
        assert shown == {run.current_attempt for run in runs if run.queue == "so1"}

    def _told_alike(self, run: Run) -> None:
        native = self.ask("native", "GET", f"/runs/{run.id}").json
        row = self.ask("forge", "GET", f"/jobs/{run.id.replace('-', '')}").json
        attempts = self.ask("native", "GET", f"/runs/{run.id}/attempts").json["attempts"]
        jobs = [self.ask("so1", "GET", f"/jobs/{attempt['id']}").json["job"] for attempt in attempts]
        state = State(native["state"])
        record = self.h(self.zerog.status(run.id))
        assert record is not None
        self._recorded_alike(record.to_json(), native, attempts)
        assert (row["status"], jobs[-1]["state"]) == (forge.WORDS.label(state), so1.WORDS.label(state))
        assert [job["state"] for job in jobs] == [OUTCOMES[attempt["outcome"]] for attempt in attempts]
        assert [job["id"] for job in jobs] == [attempt["id"] for attempt in attempts]
        assert jobs[-1].get("startedAt") == (None if row["claimed_at"] is None else to_rfc3339(row["claimed_at"]))
        assert json.loads(row["params"]) == jobs[-1]["metadata"]["inputs"] == native["payload"]
        if state is State.SUCCEEDED:
            assert jobs[-1].get("output") == json.loads(row["result"]) == native["output"]
            assert jobs[-1]["completedAt"] == to_rfc3339(row["completed_at"]) == native["finished_at"]
        if state in (State.FAILED, State.QUARANTINED):
            assert jobs[-1]["error"] == {name: native["error"][name] for name in ("code", "message")}

    def _recorded_alike(self, record: dict[str, Any], native: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
        """The record of 0gkit is as the API shows the run."""
        state, metadata = State(native["state"]), record["metadata"]
        assert (record["id"], record["name"], record["input"]) == (native["id"], native["job"], native["payload"])
        assert record["state"] == zerog.WORDS.label(state)
        assert record.get("result") == (native["output"] if state is State.SUCCEEDED else None)
        errors = [attempt["error"]["message"] for attempt in attempts if attempt.get("error")]
        assert metadata.get("lastError") == (errors[-1] if errors else None)
        assert record.get("error") == (errors[-1] if state in (State.FAILED, State.QUARANTINED) else None)
        assert metadata["attempts"] == len(attempts) - (attempts[-1]["claimed_at"] is None)
        assert to_rfc3339(metadata["createdAt"]) == native["created_at"]
        assert ("finishedAt" in metadata) == (state in ENDED or state is State.CANCELLING)


class ZeroG(zerog.JobBackend):
    """0gkit's backend on the store of a test."""

    def __init__(self, h: Harness) -> None:
        super().__init__("memory", clock=h.clock)
        self._opened = h.engine


def dashed(text: str) -> str:
    """An id in the engine's form."""
    digits = text.replace("-", "")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _forge(method: str, path: str, **data: Any) -> Callable[[Doors, Run], object]:
    return lambda doors, run: doors.ask("forge", method, path.format(run.id.replace("-", "")), data or None)


def _so1(method: str, path: str) -> Callable[[Doors, Run], object]:
    return lambda doors, run: doors.ask("so1", method, path.format(run.current_attempt))


def _native(path: str, data: Any = None) -> Callable[[Doors, Run], object]:
    return lambda doors, run: doors.ask("native", "POST", path.format(run.id), data)


def _report(kind: str, **fields: Any) -> Callable[[Doors, Run], object]:
    return lambda doors, run: doors.report(run, kind, **fields)


def _zerog(verb: Callable[[ZeroG, Run], Coroutine[Any, Any, object]]) -> Callable[[Doors, Run], object]:
    def move(doors: Doors, run: Run) -> None:
        with suppress(zerog.JobNotFound, WrongState, LeaseLost, Cancelled):
            doors.h(verb(doors.zerog, run))

    return move


CREATIONS = ("forge", "so1", "native", "zerog")
MOVES: dict[str, Callable[[Doors, Run], object]] = {
    "forge claims": _forge("POST", "/jobs/claim", worker_id="w1"),
    "forge beats": _forge("POST", "/jobs/{}/heartbeat", worker_id="w1"),
    "forge ends": _forge("POST", "/jobs/{}/result", worker_id="w1", result={"n": 2}),
    "forge fails": _forge("POST", "/jobs/{}/fail", worker_id="w1", reason="exit code 1"),
    "forge cancels": _forge("DELETE", "/jobs/{}"),
    "so1 cancels": _so1("POST", "/jobs/{}/cancel"),
    "so1 deletes": _so1("DELETE", "/jobs/{}"),
    "native claims": _native("/worker/claim", {"worker": {"name": "w2", "slots": 100}, "count": 1, "lease": LEASE}),
    "native starts": lambda doors, run: doors.ask("native", "POST", "/worker/start", {"held": [[run.seq, run.token or "none"]]}),
    "native ends": _report("succeed", output='{"n":2}'),
    "native fails": _report("fail", error={"code": "boom", "message": "it broke"}),
    "native snoozes": _report("snooze", delay=MINUTE),
    "native gives back": _report("requeue", begun=False),
    "native reports it skipped": _report("skip", reason="duplicate"),
    "native cancels": _native("/runs/{}/cancel"),
    "native skips": lambda doors, run: run.state in ENDED or run.worker or doors.h(doors.h.engine.skip(run.id, reason="duplicate")),
    "native reruns": lambda doors, run: _rerun(doors, run),
    "zerog claims": _zerog(lambda jobs, run: jobs.claim("w3")),
    "zerog completes": _zerog(lambda jobs, run: jobs.complete(run.id, {"n": 2})),
    "zerog fails": _zerog(lambda jobs, run: jobs.fail(run.id, "it broke")),
    "zerog gives up": _zerog(lambda jobs, run: jobs.fail(run.id, "it broke", False)),
    "zerog cancels": _zerog(lambda jobs, run: jobs.cancel(run.id)),
    "a minute": lambda doors, run: doors.h.sweep(after=MINUTE),
}


def _rerun(doors: Doors, run: Run) -> None:
    answer = doors.ask("native", "POST", f"/runs/{run.id}/rerun")
    if answer.status == 202:
        doors.runs.append(answer.json["id"])


steps = st.tuples(st.sampled_from([*MOVES, *CREATIONS]), st.integers(0, 9))


def test_a_run_is_told_alike_at_every_door_whoever_moves_it(h: Harness) -> None:
    doors, seen = Doors(h), set[tuple[str, State]]()

    @settings(max_examples=300 if MANY else 12, suppress_health_check=list(HealthCheck))
    @given(st.lists(steps, min_size=4, max_size=14))
    def converse(conversation: list[tuple[str, int]]) -> None:
        doors.runs = []
        for door in CREATIONS:
            doors.create(door)
        for step, index in conversation:
            if step in CREATIONS:
                doors.create(step)
            else:
                MOVES[step](doors, h.get(doors.runs[index % len(doors.runs)]))
            doors.told_alike()
            seen.update((run.queue, run.state) for run in map(h.get, doors.runs))
        _end(doors)

    converse()
    native = [("native claims", 0)] * 3 + [("native ends", 0), ("native fails", 1), ("native cancels", 2)]
    fails = [("zerog claims", 0), ("zerog fails", 3)] * 2 + [("zerog claims", 0), ("zerog gives up", 3)]
    for conversation in (native, fails, [("zerog claims", 0), ("zerog completes", 3)], [("zerog claims", 0), ("zerog cancels", 3)]):
        converse.hypothesis.inner_test(conversation)  # type: ignore[attr-defined]
    assert {state for _, state in seen} >= {State.QUEUED, State.CLAIMED, State.SUCCEEDED, State.CANCELLING}
    assert {state for queue, state in seen if queue == "zerog"} >= {State.CLAIMED, State.SUCCEEDED, State.FAILED, State.CANCELLING}
    doors.close()


def _end(doors: Doors) -> None:
    """Nothing is left for the next conversation, and nothing of this one is in its lists."""
    for run_id in doors.runs:
        if doors.h.get(run_id).state not in ENDED:
            doors.ask("native", "POST", f"/runs/{run_id}/cancel")
    doors.h.sweep(after=MINUTE)
    assert {doors.h.get(run_id).state for run_id in doors.runs} <= set(ENDED)
    doors.h.clock.advance(400 * 24 * 60 * MINUTE)
    doors.h(doors.h.engine.roll_up())
    while doors.h(doors.h.engine.prune()):
        pass
