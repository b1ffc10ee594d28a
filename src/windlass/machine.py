"""The rules. `begin` returns the first state of a run, `step(run, command, now)` the next run or raises. No I/O, clock or randomness.

`FIRST` and `MOVES` define every change of state. The diagram in the docs, the `from` states in the SQL and the hints in
errors are derived from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from windlass.errors import BadInput, Cancelled, LeaseLost, NotEditable, WrongState
from windlass.model import Failure, Refusals, Run, State, place

LIVE = (State.CLAIMED, State.RUNNING, State.CANCELLING)
ENDED = (State.SUCCEEDED, State.FAILED, State.QUARANTINED, State.CANCELLED, State.SKIPPED)
UNFINISHED = tuple(state for state in State if state not in ENDED)

BACKOFF_CAP = 60_000
TOO_MANY_REQUEUES = "max_requeues_exceeded"
REFUSED_FIRST, REFUSED_CAP = 1_000, 30_000
"""Milliseconds after which a refused payload is offered again, at first and at most."""
REFUSED_FOR = 600_000
"""Milliseconds from its first refusal after which a run fails that no worker has accepted."""
MAX_SCHEMAS = 64
LONGEST_HEAD_START = 10 * 366 * 24 * 3600 * 1000
"""Milliseconds of waiting that a priority is worth at most in a queue with aging: positions still fit into 63 bits."""


class Command(Struct, frozen=True, kw_only=True, gc=False):
    """A command to a run. One with a token is accepted only under the lease of that token."""

    name: ClassVar[str] = ""
    journaled: ClassVar[bool] = True
    token: str | None = None


class Create(Command, frozen=True, kw_only=True):
    """A caller, a schedule or a rerun creates it; a new run waits for other runs, for its time, or for a worker."""

    name = "create"


class Dispatch(Command, frozen=True, kw_only=True):
    """It is due."""

    name = "dispatch"


class Release(Command, frozen=True, kw_only=True):
    """Its predecessors have ended as its rule requires."""

    name = "release"


class Claim(Command, frozen=True, kw_only=True):
    """A worker claims it, for the length of its lease."""

    name = "claim"
    grant: str  # the new token; `token` is for fencing, and there is no lease yet
    worker: str
    lease: int
    slot: int | None = None


class Start(Command, frozen=True, kw_only=True):
    """The handler starts."""

    name = "start"


class Beat(Command, frozen=True, kw_only=True):
    """A heartbeat: the lease is extended. It carries the handler's latest progress, if any."""

    name = "beat"
    journaled = False
    lease: int
    progress: str | None = None


class Report(Command, frozen=True, kw_only=True):
    """The outcome of an attempt, as its worker reports it."""


class Succeed(Report, frozen=True, kw_only=True):
    """The handler returned."""

    name = "succeed"
    output: str | None = None
    output_hash: str | None = None
    key: str | None = None  # the worker's own name for the result, by which a repeated report is recognised


class Fail(Report, frozen=True, kw_only=True):
    """The handler raised. `delay` is the worker's own delay before the retry; otherwise `chance` determines it.

    The engine fills in the chance, and the id for a further attempt.
    """

    name = "fail"
    error: Failure
    retry: bool = True
    delay: int | None = None
    chance: float = 0.5
    next_id: str = ""


class Snooze(Report, frozen=True, kw_only=True):
    """The handler asks to be called again later; no failure is counted."""

    name = "snooze"
    delay: int
    next_id: str = ""


class Requeue(Report, frozen=True, kw_only=True):
    """A worker requeues a run that it did not finish or could not start; no failure is counted.

    If it was not started, nothing is counted, not even towards `max_requeues`: the run is as it was before its claim, unless every
    claim of it is an attempt.
    """

    name = "requeue"
    begun: bool = True
    next_id: str = ""


class Refuse(Report, frozen=True, kw_only=True):
    """The payload does not fit this worker's code, but may fit another's: the run is requeued with a delay, and no failure is counted.

    The engine fills in the id for a further attempt, and whether there is a live worker whose code has not refused it.
    """

    name = "refuse"
    error: Failure
    schema: str  # a fingerprint of what the worker's code accepts
    hope: bool = False
    next_id: str = ""


class Skip(Report, frozen=True, kw_only=True):
    """It ends without a result, for the given reason: a handler has nothing to do, or a caller skips a run that is not held."""

    name = "skip"
    reason: str


class Lapse(Command, frozen=True, kw_only=True):
    """The lease expired without a report."""

    name = "lapse"
    chance: float = 0.5
    next_id: str = ""


class Expire(Command, frozen=True, kw_only=True):
    """It exceeded its maximum runtime."""

    name = "expire"


class Cancel(Command, frozen=True, kw_only=True):
    """A caller cancels it."""

    name = "cancel"
    reason: str | None = None
    only: tuple[State, ...] | None = None  # refused in all other states


class Abandon(Command, frozen=True, kw_only=True):
    """The grace period of a cancel is over."""

    name = "abandon"


class Patch(Command, frozen=True, kw_only=True):
    """A caller edits it while it waits. None: unchanged."""

    name = "patch"
    payload: str | None = None
    priority: int | None = None
    due_at: int | None = None
    max_attempts: int | None = None
    queue: str | None = None
    lane: int | None = None
    keys: str | None = None
    aging: int | None = None  # of its new queue


class Reorder(Command, frozen=True, kw_only=True):
    """A caller gives it another place in its queue."""

    name = "move"
    priority_key: int
    position: int


Rule = Callable[[Run, Any, int], Run]


class Move(NamedTuple):
    """The states that a command may lead to, and the function that decides."""

    to: tuple[State, ...]
    rule: Rule


def _ready(due_at: int, now: int) -> State:
    return State.SCHEDULED if due_at > now else State.QUEUED


_WAITING, _SCHEDULED, _QUEUED = State.WAITING, State.SCHEDULED, State.QUEUED  # looked up once, because access to members of an enum is slow


def begin(now: int, due_at: int | None = None, waits: bool = False, index: int = 0, head_start: int = 0) -> tuple[State, int, int]:
    """The first state, due time and position of a run: the index-th of its call, which may wait for other runs.

    One that is already due is placed after those that were created before it.
    """
    due = now if due_at is None else due_at
    later = due > now
    state = _WAITING if waits else _SCHEDULED if later else _QUEUED
    return state, due, place((due if later else now) - head_start, index)


def release(run: Run, cmd: Release, now: int) -> Run:
    return replace(run, state=_ready(run.due_at, now))


def dispatch(run: Run, cmd: Dispatch, now: int) -> Run:
    if run.due_at > now:
        raise WrongState(f"Run {run.id} is due only at {run.due_at}.", hint="Wait until then, or patch its due time.")
    return replace(run, state=State.QUEUED)


def lease_out(run: Run, cmd: Claim, now: int) -> Run:
    until = now + cmd.lease
    lease_check_at = until if run.max_runtime is None else min(until, now + run.max_runtime)
    claimed_at = max(now, run.created_at)
    lease = {"token": cmd.grant, "worker": cmd.worker, "slot": cmd.slot, "lease": cmd.lease}
    return replace(
        run, state=State.CLAIMED, claimed_at=claimed_at, lease_until=until, lease_check_at=lease_check_at, progress=None, **lease
    )


def start(run: Run, cmd: Start, now: int) -> Run:
    return replace(run, state=State.RUNNING, started_at=max(now, run.claimed_at or now))


def extend(run: Run, cmd: Beat, now: int) -> Run:
    progress = run.progress if cmd.progress is None else cmd.progress
    lease = max(run.lease or 0, cmd.lease)
    # An end further ahead than a lease was written before the clock was set back.
    until = min(max(run.lease_until or 0, now + cmd.lease), now + lease)
    return replace(run, lease=lease, lease_until=until, progress=progress)


def _end(run: Run, state: State, now: int, **fields: Any) -> Run:
    """The end of a run. The token stays, so that a repeated report is recognised."""
    finished_at = max(now, run.created_at, run.claimed_at or 0, run.started_at or 0)
    return replace(
        run, state=state, finished_at=finished_at, slot=None, lease_until=None, lease_check_at=None, **_in_its_lane(run), **fields
    )


def _in_its_lane(run: Run) -> dict[str, Any]:
    """Unpark it: its limiter is no longer full, or is to be checked again."""
    return {"lane": abs(run.lane), "parked": None}


def succeed(run: Run, cmd: Succeed, now: int) -> Run:
    started_at = run.started_at if run.started_at is not None else run.claimed_at
    result = {"output": cmd.output, "output_hash": cmd.output_hash, "output_key": cmd.key}
    return _end(run, State.SUCCEEDED, now, started_at=started_at, error=None, **result)


_UNHELD: dict[str, Any] = dict.fromkeys(
    ("token", "worker", "slot", "lease", "claimed_at", "started_at", "lease_until", "lease_check_at"),
)


def _plan_next(run: Run, now: int, delay: int, next_id: str, **fields: Any) -> Run:
    """Close the attempt and plan a further one, which has its own id and names the previous one."""
    due_at = now + delay
    chained = {"attempt": run.attempt + 1, "attempt_id": next_id, "retry_of": run.current_attempt}
    state = State.QUEUED if delay == 0 else State.SCHEDULED
    return replace(run, state=state, due_at=due_at, **_UNHELD, **chained, **fields)


def backoff(run: Run, chance: float) -> int:
    """Milliseconds before the next attempt: from the job's list, or random, half to all of 2, 4 ... times its base, at most a minute."""
    nth = run.failures + 1
    if run.policy.backoff:
        return run.policy.backoff[min(nth, len(run.policy.backoff)) - 1]
    # The exponent is capped first, because 2 to the power of 1,000 is needlessly large.
    upper = min(run.policy.backoff_base << min(nth, 16), BACKOFF_CAP)
    return upper // 2 + round(chance * (upper - upper // 2))


def _again_or_end(run: Run, now: int, error: Failure, delay: int, next_id: str) -> Run:
    failures = run.failures + 1
    if failures >= run.max_attempts:
        return _end(run, State(run.policy.on_exhausted), now, error=error, failures=failures)
    position = run.position if run.policy.retry_place == "keep" else place(now + delay - run.head_start)
    return _plan_next(run, now, delay, next_id, error=error, failures=failures, position=position)


def fail(run: Run, cmd: Fail, now: int) -> Run:
    begun = replace(run, started_at=run.started_at if run.started_at is not None else run.claimed_at)
    if not cmd.retry:
        return _end(begun, State(run.policy.on_exhausted), now, error=cmd.error, failures=run.failures + 1)
    delay = cmd.delay if cmd.delay is not None else backoff(run, cmd.chance)
    return _again_or_end(begun, now, cmd.error, delay, cmd.next_id)


def lapse(run: Run, cmd: Lapse, now: int) -> Run:
    lost = Failure(code="worker_lost", message=f"Worker {run.worker} did not renew its lease; the run was recovered.")
    return _again_or_end(run, now, lost, backoff(run, cmd.chance), cmd.next_id)


def expire(run: Run, cmd: Expire, now: int) -> Run:
    over = Failure(code="max_runtime_exceeded", message=f"The attempt ran for longer than {run.max_runtime} ms.")
    return _end(run, State(run.policy.on_exhausted), now, error=over, failures=run.failures + 1)


def _return(run: Run, now: int, delay: int, next_id: str) -> Run:
    if run.requeues >= run.policy.max_requeues:
        often = Failure(code=TOO_MANY_REQUEUES, message=f"The run was returned {run.requeues} times without an end.")
        return _end(run, State(run.policy.on_exhausted), now, error=often, failures=run.failures + 1)
    return _plan_next(run, now, delay, next_id, requeues=run.requeues + 1)


def snooze(run: Run, cmd: Snooze, now: int) -> Run:
    return _return(run, now, cmd.delay, cmd.next_id)


def requeue(run: Run, cmd: Requeue, now: int) -> Run:
    if cmd.begun or run.policy.attempt_per_claim:
        return _return(run, now, 0, cmd.next_id)
    return replace(run, state=State.QUEUED, **_UNHELD)


def refusals(run: Run, cmd: Refuse, now: int) -> Refusals:
    """How often a payload was refused in a row, including this time. An attempt with any other outcome starts a new row."""
    before = last_refused(run)
    if before is None:
        return Refusals((cmd.schema,), 1, now, run.attempt, run.worker)
    schemas = dict.fromkeys((*before.schemas, cmd.schema))
    return Refusals(tuple(schemas)[-MAX_SCHEMAS:], before.count + 1, min(before.since, now), run.attempt, run.worker)


def last_refused(run: Run) -> Refusals | None:
    """The refusal of the previous attempt, if it was refused."""
    refused = run.error.refused if run.error is not None else None
    return refused if refused is not None and refused.attempt == run.attempt - 1 else None


def refuse(run: Run, cmd: Refuse, now: int) -> Run:
    refused = refusals(run, cmd, now)
    error, left = replace(cmd.error, refused=refused), refused.since + REFUSED_FOR - now
    if not cmd.hope or left <= 0:
        started_at = run.started_at if run.started_at is not None else run.claimed_at
        return _end(run, State(run.policy.on_exhausted), now, started_at=started_at, error=error, failures=run.failures + 1)
    delay = min(REFUSED_FIRST << min(refused.count - 1, 16), REFUSED_CAP, max(left, REFUSED_FIRST))
    return _plan_next(run, now, delay, cmd.next_id, error=error)


def cancel(run: Run, cmd: Cancel, now: int) -> Run:
    _check_only(run, cmd)
    return _end(run, State.CANCELLED, now, cancel_asked_at=now, reason=cmd.reason)


def ask_to_stop(run: Run, cmd: Cancel, now: int) -> Run:
    _check_only(run, cmd)
    lease_check_at = min(run.lease_check_at or now, now + run.policy.grace)
    return replace(run, state=State.CANCELLING, cancel_asked_at=now, lease_check_at=lease_check_at, reason=cmd.reason)


def _check_only(run: Run, cmd: Cancel) -> None:
    if cmd.only is not None and run.state not in cmd.only:
        raise WrongState(
            f"Run {run.id} {_HOW_IT_IS[run.state]}; it was to be cancelled only while {' or '.join(cmd.only)}.",
            hint=f"It is {run.state}. Cancel it without naming states, or leave it.",
        )


def confirm(run: Run, cmd: Command, now: int) -> Run:
    """The end was fixed by the cancel: the report is discarded."""
    return _end(run, State.CANCELLED, now)


def refuse_start(run: Run, cmd: Start, now: int) -> Run:
    raise cancelled(run)


def skip(run: Run, cmd: Skip, now: int) -> Run:
    return _end(run, State.SKIPPED, now, reason=cmd.reason)


def skip_held(run: Run, cmd: Skip, now: int) -> Run:
    _check_reported(run, cmd)
    started_at = run.started_at if run.started_at is not None else run.claimed_at
    return skip(replace(run, started_at=started_at), cmd, now)


def confirm_skip(run: Run, cmd: Skip, now: int) -> Run:
    _check_reported(run, cmd)
    return confirm(run, cmd, now)


def _check_reported(run: Run, cmd: Skip) -> None:
    """A caller's skip has no token; of a run that is held, only its worker reports one."""
    if cmd.token is None:
        raise wrong_state(run, cmd)


_TAKEN_OVER = ("payload", "due_at", "max_attempts", "queue", "lane", "keys")


def patch(run: Run, cmd: Patch, now: int) -> Run:
    if cmd.max_attempts is not None and cmd.max_attempts <= run.failures:
        raise BadInput(f"Run {run.id} has already used {run.failures} of its attempts.", hint="Allow at least one more, or cancel it.")
    changes = {name: value for name in _TAKEN_OVER if (value := getattr(cmd, name)) is not None}
    if cmd.priority is not None or cmd.queue is not None:
        changes |= _ranked(run, cmd)
    edited = replace(run, **_in_its_lane(run) | changes)
    if cmd.due_at is not None:
        edited = replace(edited, position=place(max(run.created_at, cmd.due_at) - edited.head_start))
    return edited if run.state is State.WAITING or cmd.due_at is None else replace(edited, state=_ready(edited.due_at, now))


def _ranked(run: Run, cmd: Patch) -> dict[str, Any]:
    """Its rank by the rule of its queue: the one it was created with, unless the queue is another."""
    aging = cmd.aging if cmd.queue not in (None, run.queue) else run.policy.aging if run.aging_priority is not None else None
    priority = run.priority if cmd.priority is None else cmd.priority
    priority_key, aging_priority = rank(priority, aging)
    head_start = 0 if aging is None else priority * aging
    changes = {"policy": replace(run.policy, aging=aging), "position": run.position + place(run.head_start - head_start)}
    return {"priority_key": priority_key, "aging_priority": aging_priority, **changes}


def rank(priority: int, aging: int | None) -> tuple[int, int | None]:
    """The priority key of a priority; in a queue with aging there is only one, and the priority is stored beside it."""
    if aging is None:
        return -priority, None
    if abs(priority * aging) > LONGEST_HEAD_START:
        years = LONGEST_HEAD_START // (365 * 24 * 3600 * 1000)
        raise BadInput(
            f"In a queue that ages by {aging:,} ms, priority {priority:,} is worth more than {years} years of waiting.",
            hint="Use a smaller priority, or let the queue age faster.",
        )
    return 0, priority


def reorder(run: Run, cmd: Reorder, now: int) -> Run:
    """Under another priority key the run has the priority of that key, without aging."""
    return replace(
        run,
        priority_key=cmd.priority_key,
        position=cmd.position,
        aging_priority=run.aging_priority if cmd.priority_key == run.priority_key else None,
    )


_READY = (State.SCHEDULED, State.QUEUED)
_EXHAUSTED = (State.FAILED, State.QUARANTINED)

_CANCEL = Move((State.CANCELLED,), cancel)
_SKIP = Move((State.SKIPPED,), skip)
_CONFIRM = Move((State.CANCELLED,), confirm)

_HELD: dict[type[Command], Move] = {
    Succeed: Move((State.SUCCEEDED,), succeed),
    Fail: Move((*_READY, *_EXHAUSTED), fail),
    Snooze: Move((*_READY, *_EXHAUSTED), snooze),
    Requeue: Move((State.QUEUED, *_EXHAUSTED), requeue),
    Refuse: Move((State.SCHEDULED, *_EXHAUSTED), refuse),
    Skip: Move((State.SKIPPED,), skip_held),
    Lapse: Move((*_READY, *_EXHAUSTED), lapse),
    Expire: Move(_EXHAUSTED, expire),
    Cancel: Move((State.CANCELLING,), ask_to_stop),
}

FIRST = (State.WAITING, *_READY)
"""Where `create` leads: the one transition that starts in no state."""

MOVES: dict[State, dict[type[Command], Move]] = {
    State.WAITING: {
        Release: Move(_READY, release),
        Patch: Move((State.WAITING,), patch),
        Reorder: Move((State.WAITING,), reorder),
        Cancel: _CANCEL,
        Skip: _SKIP,
    },
    State.SCHEDULED: {
        Dispatch: Move((State.QUEUED,), dispatch),
        Patch: Move(_READY, patch),
        Reorder: Move((State.SCHEDULED,), reorder),
        Cancel: _CANCEL,
        Skip: _SKIP,
    },
    State.QUEUED: {
        Claim: Move((State.CLAIMED,), lease_out),
        Patch: Move(_READY, patch),
        Reorder: Move((State.QUEUED,), reorder),
        Cancel: _CANCEL,
        Skip: _SKIP,
    },
    State.CLAIMED: {Start: Move((State.RUNNING,), start), Beat: Move((State.CLAIMED,), extend), **_HELD},
    State.RUNNING: {Beat: Move((State.RUNNING,), extend), **_HELD},
    State.CANCELLING: {
        Start: Move((), refuse_start),
        Beat: Move((State.CANCELLING,), extend),
        Succeed: _CONFIRM,
        Fail: _CONFIRM,
        Snooze: _CONFIRM,
        Requeue: _CONFIRM,
        Refuse: _CONFIRM,
        Skip: Move((State.CANCELLED,), confirm_skip),
        Lapse: _CONFIRM,
        Expire: _CONFIRM,
        Abandon: _CONFIRM,
    },
    State.SUCCEEDED: {},
    State.FAILED: {},
    State.QUARANTINED: {},
    State.CANCELLED: {},
    State.SKIPPED: {},
}


def allowed(state: State) -> list[str]:
    """The names of the transitions that exist from a state."""
    return [command.name for command in MOVES[state]]


def sources(command: str, target: str | None = None) -> list[State]:
    """The states from which a command leads anywhere, or to that state."""
    moves = ((state, move) for state, row in MOVES.items() for kind, move in row.items() if kind.name == command)
    states = [state for state, move in moves if (target in move.to if target else move.to)]
    if not states:
        raise KeyError(f"no state allows {command} {target or ''}")
    return states


def lease_lost(run: Run) -> LeaseLost:
    """The error for a token under which the run is not held."""
    return LeaseLost(
        f"Run {run.id} is not held under this token; it is {run.state} now.",
        hint="Stop working on it and write nothing: another worker has it, or it has ended.",
    )


def cancelled(run: Run) -> Cancelled:
    """The error for a report on a run whose end was fixed by a cancel."""
    return Cancelled(
        f"Run {run.id} was cancelled; the report was not stored.", hint="Stop working on it. To have it executed after all, rerun it."
    )


_HOW_IT_IS = {
    State.WAITING: "still waits for other runs",
    State.SCHEDULED: "is scheduled for later",
    State.QUEUED: "is queued, and no worker has it",
    State.CLAIMED: "is in the hands of a worker",
    State.RUNNING: "is running",
    State.CANCELLING: "is being cancelled already",
    State.SUCCEEDED: "has already succeeded",
    State.FAILED: "has already failed",
    State.QUARANTINED: "has already failed, and is quarantined",
    State.CANCELLED: "has already been cancelled",
    State.SKIPPED: "has already been skipped",
}
_WHAT_IS_ASKED = {
    "dispatch": "be queued", "release": "be released", "claim": "be claimed", "start": "be started", "beat": "have its lease renewed",
    "lapse": "lose its lease", "expire": "run out of time", "cancel": "be cancelled", "abandon": "be given up", "skip": "be skipped",
    "rerun": "be rerun before its end",
}  # fmt: skip


def refusal(run: Run, move: str) -> str:
    """The message about a run whose state does not allow a transition; a report is the only one that is not named."""
    any_more = " any more" if run.state in ENDED else ""
    return f"Run {run.id} {_HOW_IT_IS[run.state]}; it cannot {_WHAT_IS_ASKED.get(move, 'be reported on')}{any_more}."


_EDITED = ("payload", "priority", "due_at", "max_attempts", "queue", "position")


def wrong_state(run: Run, cmd: Command) -> WrongState:
    """The error for a transition that the state of the run does not allow."""
    if isinstance(cmd, Patch | Reorder):
        fields = [name for name in _EDITED if getattr(cmd, name, None) is not None]
        return NotEditable(
            f"Cannot modify {', '.join(fields)} of run {run.id}: it {_HOW_IT_IS[run.state]}.",
            hint="Only a run that still waits can be edited. Cancel it and create another one.",
        )
    moves = [name for name in allowed(run.state) if name != cmd.name]  # a worker's report may be allowed where a caller is refused
    hint = f"Allowed from here: {', '.join(moves)}." if moves else "Its end is final. To have it executed again, rerun it as a new run."
    return WrongState(refusal(run, cmd.name), hint=hint)


def step(run: Run, cmd: Command, now: int) -> Run:
    """The run after a command, with the next revision; raises when the lease is lost or the transition does not exist."""
    if cmd.token is not None and cmd.token != run.token:
        raise lease_lost(run)
    move = MOVES[run.state].get(type(cmd))
    if move is None:
        raise wrong_state(run, cmd)
    after = move.rule(run, cmd, now)
    return replace(after, rev=run.rev + 1) if cmd.journaled else after
