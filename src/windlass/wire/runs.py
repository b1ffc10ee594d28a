"""Runs and their attempts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from windlass.engine import Reason
from windlass.errors import BadInput
from windlass.machine import ENDED, MOVES, Cancel, Command, Patch, Reorder
from windlass.model import FOREVER, Attempt, Created, Failure, Keep, Key, Listed, NewRun, Options, Policy, Run, State, kept
from windlass.wire.values import heard, maybe_heard, maybe_told, text_of, told


class RunView(Struct, frozen=True):
    """A run, as everybody may see it: nothing of leases and places."""

    id: str
    job: str
    queue: str
    state: State
    priority: int
    rev: int
    payload: Any
    output: Any
    error: Failure | None
    reason: str | None
    progress: Any
    attempt: int
    attempt_id: str
    failures: int
    returns: int
    max_attempts: int
    max_runtime: int | None
    keep: Keep | None  # milliseconds from its end on; null: as long as is set for all
    policy: Policy
    retry_of: str | None
    worker: str | None
    created_at: str
    scheduled_for: str  # the instant of its schedule; else when it is due
    due_at: str
    instant: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    cancel_asked_at: str | None
    actions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # what is too large for a list; ask for the run itself
    sizes: dict[str, int] = {}  # of what a list leaves out, in bytes


_EDITS: dict[str, type[Command]] = {"cancel": Cancel, "patch": Patch, "move": Reorder}
_WAYS: dict[State, tuple[str, ...]] = {
    state: (*(name for name, edit in _EDITS.items() if edit in moves), *(("rerun",) if state in ENDED else ()))
    for state, moves in MOVES.items()
}


def raw_of(text: str | None) -> Any:
    """Stored JSON as it is: to read it only to write it again would cost more than all the rest."""
    return None if text is None else msgspec.Raw(text.encode())


def run_view(run: Run, left_out: tuple[str, ...] = ()) -> RunView:
    """A run as it is told."""
    sizes = run.sizes if isinstance(run, Listed) else {}
    return RunView(
        left_out=left_out or tuple(sizes),
        sizes=sizes,
        id=run.id,
        job=run.job,
        queue=run.queue,
        state=run.state,
        priority=run.priority,
        rev=run.rev,
        payload=raw_of(run.payload),
        output=raw_of(run.output),
        error=run.error,
        reason=run.reason,
        progress=raw_of(run.progress),
        attempt=run.attempt,
        attempt_id=run.current_attempt,
        failures=run.burnt,
        returns=run.returns,
        max_attempts=run.max_attempts,
        max_runtime=run.max_runtime,
        keep=None if run.keep is None else kept(run.keep),
        policy=run.policy,
        retry_of=run.retry_of,
        worker=run.worker,
        created_at=told(run.created_at),
        scheduled_for=told(run.scheduled_for),
        due_at=told(run.due_at),
        instant=maybe_told(run.instant),
        claimed_at=maybe_told(run.claimed_at),
        started_at=maybe_told(run.started_at),
        finished_at=maybe_told(run.finished_at),
        cancel_asked_at=maybe_told(run.cancel_asked_at),
        actions=_WAYS[run.state],
    )


def run_of(view: RunView) -> Run:
    """The run that a view tells of, for those who show it the same way wherever it comes from. What is not told is 0 or None."""
    run = Run(
        seq=0,
        id=view.id,
        rev=view.rev,
        state=view.state,
        job=view.job,
        queue=view.queue,
        lane=0,
        band=-view.priority,
        position=0,
        payload=text_of(view.payload) or "null",
        due_at=heard(view.due_at, "due_at"),
        instant=maybe_heard(view.instant, "instant"),
        created_at=heard(view.created_at, "created_at"),
        max_attempts=view.max_attempts,
        max_runtime=view.max_runtime,
        keep=FOREVER if view.keep == "forever" else view.keep,
        policy=view.policy,
        attempt=view.attempt,
        attempt_id=None if view.attempt_id == view.id else view.attempt_id,
        retry_of=view.retry_of,
        burnt=view.failures,
        returns=view.returns,
        worker=view.worker,
        claimed_at=maybe_heard(view.claimed_at, "claimed_at"),
        started_at=maybe_heard(view.started_at, "started_at"),
        cancel_asked_at=maybe_heard(view.cancel_asked_at, "cancel_asked_at"),
        finished_at=maybe_heard(view.finished_at, "finished_at"),
        reason=view.reason,
        error=view.error,
        output=text_of(view.output),
        progress=text_of(view.progress),
    )
    return Listed.of(run, view.sizes) if view.sizes else run


class RunPage(Struct, frozen=True):
    """Some runs, and the cursor of the next page."""

    runs: list[RunView]
    cursor: str | None


class CreateRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that is asked for."""

    job: str
    payload: Any = None
    options: Options = Options()
    scheduled_for: str | None = None
    delay: int | None = None  # milliseconds from now, instead of scheduled_for
    key: Key | None = None
    after: tuple[str, ...] = ()
    after_end: Literal["success", "any"] = "success"
    undefined: Literal["refuse", "wait"] = "refuse"
    checked: bool | UnsetType = UNSET  # against the signature of the code that asks: it is not compared with what the job takes

    def new_run(self, now: int) -> NewRun:
        """The same in the engine's words."""
        if self.delay is not None and self.scheduled_for is not None:
            raise BadInput("Both delay and scheduled_for are given.", hint="Give one of them.")
        due_at = maybe_heard(self.scheduled_for, "scheduled_for") if self.delay is None else now + self.delay
        checked = self.checked is True
        return NewRun(self.job, self.payload, self.options, due_at, self.key, self.after, self.after_end, checked=checked)


class CreateRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs that are asked for together: all of them are stored, or none."""

    runs: list[CreateRun]


class CreatedRun(Struct, frozen=True):
    """The answer to a creation."""

    id: str
    created: bool
    pruned: bool = False
    run: RunView | None = None


def created_view(created: Created, run: Run | None) -> CreatedRun:
    return CreatedRun(created.id, created.created, created.pruned, None if run is None else run_view(run))


class CreatedRuns(Struct, frozen=True):
    runs: list[CreatedRun]


class PatchRun(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be changed of a run that waits; what is left out stays."""

    payload: Any = UNSET
    priority: int | UnsetType = UNSET
    scheduled_for: str | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    queue: str | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """What is said, in the engine's words."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}
        if "scheduled_for" in said:
            said["due_at"] = heard(said.pop("scheduled_for"), "scheduled_for")
        return said


class CancelRun(Struct, frozen=True, forbid_unknown_fields=True):
    reason: str | None = None


class AttemptView(Struct, frozen=True):
    """One execution of a run."""

    n: int
    id: str
    retry_of: str | None
    outcome: str
    worker: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    error: Failure | None


class Attempts(Struct, frozen=True):
    attempts: list[AttemptView]


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt.n,
        attempt.id,
        attempt.retry_of,
        attempt.outcome,
        attempt.worker,
        maybe_told(attempt.claimed_at),
        maybe_told(attempt.started_at),
        maybe_told(attempt.finished_at),
        attempt.error,
    )


def attempt_of(run_id: str, view: AttemptView) -> Attempt:
    return Attempt(
        run_id,
        view.n,
        view.id,
        view.retry_of,
        view.outcome,
        view.worker,
        None,
        maybe_heard(view.claimed_at, "claimed_at"),
        maybe_heard(view.started_at, "started_at"),
        maybe_heard(view.finished_at, "finished_at"),
        view.error,
    )


class Why(Struct, frozen=True):
    """Everything that holds a run back."""

    reasons: list[Reason]
