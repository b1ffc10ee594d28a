"""What must hold of the tables after every commit, as plain functions over snapshots of them.

The names (S1, A4, ...) are those of the reliability notes. `check` looks at one snapshot; `Observer` at each next one, and
remembers what only a history can show: tokens that were used before, ends that must not change, keys and who holds them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from windlass.machine import ENDED, FIRST, LIVE, MOVES
from windlass.model import Delivery, Entry, Group, Lane, Limits, Needs, Pause, Queue, Rate, Resource, Run, Slot, State, Webhook, WorkerInfo
from windlass.store import sql
from windlass.store.base import Row, Statement, Store, run_sync
from windlass.store.rows import run_of
from windlass.store.sql import Query

PENDING = (State.WAITING, State.SCHEDULED, State.QUEUED)
HELD_FIELDS = ("token", "worker", "lease", "claimed_at", "lease_until", "lease_check_at")
NEVER_CHANGED = ("seq", "id", "job", "created_at", "max_runtime", "grouped", "meta")
PATCHED = ("payload", "queue", "lane", "priority_key", "max_attempts", "policy", "aging_priority", "keys")
MOVED = ("priority_key", "aging_priority")


class Closed(NamedTuple):
    """A row of `job_attempts`."""

    run: int
    n: int
    id: str
    retry_of: str | None
    outcome: str
    answer: str
    worker: str | None
    token: str | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    error: str | None
    payload: str  # that it ran with: its own, or the run's


class Moved(NamedTuple):
    """A row of `job_journal`."""

    entry: int
    run: int
    rev: int
    at: int
    move: str
    state: str
    attempt: int
    worker: str | None
    detail: str | None


class Kept(NamedTuple):
    """A row of `job_keys`."""

    scope: str
    key: str
    run: str
    hash: str | None
    unfinished: int
    until: int | None


class Wait(NamedTuple):
    """A row of `job_waits`."""

    run: int
    predecessor: int
    rule: str


class Line(NamedTuple):
    """A row of `job_logs`."""

    run: int
    attempt: int
    n: int
    text: str


class Stepped(NamedTuple):
    """A row of `job_steps`."""

    run: int
    n: int
    key: str
    output: str


class Occupied(NamedTuple):
    """A row of `job_holds`."""

    key: str
    run: int
    token: str
    weight: int


TABLES = {
    "runs": f"select {', '.join(Run.__struct_fields__)} from job_runs order by seq",
    "attempts": f"select {', '.join(Closed._fields[:-1])}, coalesce(payload, (select j.payload from job_runs j where j.seq = run)) "
    "from job_attempts order by run, n",
    "journal": f"select {', '.join(Moved._fields)} from job_journal order by run, rev",
    "keys": f"select {', '.join(Kept._fields)} from job_keys order by scope, key",
    "waits": f"select {', '.join(Wait._fields)} from job_waits order by run, predecessor",
    "lines": f"select {', '.join(Line._fields)} from job_logs order by run, attempt, n",
    "steps": f"select {', '.join(Stepped._fields)} from job_steps order by run, n",
    "lanes": "select id, queue, job, requires from job_lanes order by id",
    "groups": f"select {', '.join(Group.__struct_fields__)} from job_groups order by seq",
    "pauses": f"select {', '.join(Pause.__struct_fields__)} from job_pauses order by scope, name",
    "queues": f"select {', '.join(Queue.__struct_fields__)} from job_queues order by name",
    "resources": f"select {', '.join(Resource.__struct_fields__)} from job_resources order by name",
    "rates": "select key, n, tat from job_rates order by key, n",
    "holds": f"select {', '.join(Occupied._fields)} from job_holds order by key, run",
    "slots": f"select {', '.join(Slot.__struct_fields__)} from job_slots order by seq",
    "checks": "select run from job_checks order by run",
}


_PARAMETER = re.compile(r":([a-z_]+)")


class Snapshot(NamedTuple):
    """All tables at one moment. Runs by seq; attempts and journal grouped by it, in order."""

    runs: dict[int, Run]
    attempts: dict[int, list[Closed]]
    journal: dict[int, list[Moved]]
    keys: dict[tuple[str, str], Kept]
    waits: list[Wait]
    lines: list[Line]
    steps: dict[int, list[Stepped]]
    lanes: dict[int, Lane]
    groups: dict[int, Group]
    pauses: list[Pause]
    queues: list[Queue]
    resources: dict[str, Resource]
    rates: dict[tuple[str, int], int]
    holds: list[Occupied]
    slots: list[Slot]
    checks: list[int]

    def by_id(self) -> dict[str, Run]:
        return {run.id: run for run in self.runs.values()}


EMPTY = Snapshot({}, {}, {}, {}, [], [], {}, {}, {}, [], [], {}, {}, [], [], [])


def with_tables(dialect: str, **more: str) -> dict[str, Query]:
    """All statements of windlass, those that read whole tables, and a test's own: what to open a store with."""
    own = {f"all_{name}": text for name, text in TABLES.items()} | more
    bound = {name: text if dialect == "sqlite" else _PARAMETER.sub(r"%(\1)s", text) for name, text in own.items()}
    return {**sql.load(dialect), **{name: Query(text, not text.startswith("select")) for name, text in bound.items()}}


CLEAR = {
    f"clear_{table}": f"delete from {table}"
    for table in (
        "job_waits",
        "job_attempts",
        "job_journal",
        "job_logs",
        "job_steps",
        "job_keys",
        "job_holds",
        "job_runs",
        "job_groups",
        "job_lanes",
        "jobs",
        "job_schemas",
        "workers",
        "worker_lives",
        "job_skips",
        "job_schedules",
        "job_controls",
        "job_pauses",
        "job_queues",
        "job_resources",
        "job_limiters",
        "job_rates",
        "job_slots",
        "job_checks",
        "job_announcements",
        "job_announcers",
    )
}
"""Statements that empty a store, for tests that use one for many examples."""


def clear(store: Store) -> None:
    """Empty a store that was opened `with_tables(dialect, **CLEAR)`."""
    run_sync(store.batch("clear", [Statement(name) for name in CLEAR]))


def read(store: Store) -> Snapshot:
    """A snapshot through a blocking store that was opened `with_tables`."""
    return parsed(run_sync(store.batch("read", [Statement(f"all_{name}") for name in TABLES])))


def parsed(tables: Sequence[Sequence[Row]]) -> Snapshot:
    """A snapshot from the rows of `TABLES`, however they were read."""
    runs, attempts, journal, keys, waits, lines, steps, lanes, groups, pauses, queues, resources, rates, holds, slots, checks = tables
    return Snapshot(
        runs={run.seq: run for run in map(run_of, runs)},
        attempts=_grouped(Closed(*row) for row in attempts),
        journal=_grouped(Moved(*row) for row in journal),
        keys={(row[0], row[1]): Kept(*row) for row in keys},
        waits=[Wait(*row) for row in waits],
        lines=[Line(*row) for row in lines],
        steps=_grouped(Stepped(*row) for row in steps),
        lanes={row[0]: Lane(row[0], row[1], row[2], _requires(row[3])) for row in lanes},
        groups={row[-1]: Group(*row) for row in groups},
        pauses=[Pause(*row) for row in pauses],
        queues=[Queue(*row) for row in queues],
        resources={row[0]: Resource(row[0], row[1], msgspec.json.decode(row[2], type=tuple[Rate, ...]), *row[3:]) for row in resources},
        rates={(key, n): tat for key, n, tat in rates},
        holds=[Occupied(*row) for row in holds],
        slots=[Slot(*row) for row in slots],
        checks=[run for (run,) in checks],
    )


def _requires(text: str) -> Needs:
    return msgspec.json.decode(text, type=Needs) if text else Needs()


def _grouped(rows: Iterable[Any]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row.run].append(row)
    return dict(groups)


# One run


def whole(run: Run) -> None:
    """The columns of a run agree with its state: S5, S8, A1 and A7 as far as one row can show them."""
    held = [getattr(run, name) is not None for name in HELD_FIELDS]
    if run.state in LIVE:
        assert all(held), f"S5: a live run without its lease: {run}"
    elif run.state in PENDING:
        assert not any(held), f"S5: a run that nobody has, with a lease: {run}"
        assert run.slot is run.started_at is run.cancel_asked_at is None, f"S5: traces of a worker: {run}"
    else:
        assert run.lease_until is run.lease_check_at is run.slot is None, f"S5: an ended run with a lease: {run}"
    assert (run.parked is not None) == (run.lane < 0), f"parked, and still offered, or the other way round: {run}"
    assert run.parked is None or run.state is State.QUEUED, f"put aside, though it is not queued: {run}"
    _state_is_told(run)
    _tries_are_counted(run)
    _times_are_ordered(run)


def _state_is_told(run: Run) -> None:
    assert (run.state in ENDED) == (run.finished_at is not None), f"A7: finished_at is set iff the run has ended: {run}"
    started = run.started_at is not None
    assert started or run.state not in (State.RUNNING, State.SUCCEEDED), f"A7: ran without a start: {run}"
    assert not (started and run.state is State.CLAIMED), f"A7: started, but only claimed: {run}"
    assert run.state not in (State.FAILED, State.QUARANTINED) or run.error is not None, f"failed without an error: {run}"
    assert run.state is not State.SUCCEEDED or run.error is None, f"succeeded with an error: {run}"
    assert run.state is State.SUCCEEDED or run.output is run.output_hash is run.output_key is None, f"output without success: {run}"
    assert run.state not in (State.CANCELLING, State.CANCELLED) or run.cancel_asked_at is not None, f"cancelled by nobody: {run}"


def _tries_are_counted(run: Run) -> None:
    assert 0 <= run.failures <= run.max_attempts, f"S8: more tries than allowed: {run}"
    assert run.finished_at is not None or run.failures < run.max_attempts, f"S8: another try than those allowed: {run}"
    assert 0 <= run.requeues <= run.policy.max_requeues, f"S8: returned more often than allowed: {run}"
    closed = run.state in (State.FAILED, State.QUARANTINED)
    counted = run.failures + run.requeues + (0 if closed else 1)  # refusals count as neither, and are in the list of attempts
    assert run.attempt >= counted, f"A1: more ends than attempts: {run}"
    assert (run.attempt == 1) == (run.attempt_id is None), f"A1: the first attempt, and no other, shares the run's id: {run}"
    assert run.attempt == 1 or run.retry_of is not None, f"A1: a further attempt names the one before: {run}"


def _times_are_ordered(run: Run) -> None:
    times = [run.created_at, run.claimed_at, run.started_at, run.finished_at]
    known = [at for at in times if at is not None]
    assert known == sorted(known), f"A7: created, claimed, started, finished are in this order: {run}"


# One snapshot


def runs_are_whole(now: Snapshot) -> None:
    for run in now.runs.values():
        whole(run)


def slots_hold_one(now: Snapshot) -> None:
    """S5: a worker's one slot holds one run."""
    taken = Counter((run.worker, run.slot) for run in now.runs.values() if run.slot is not None)
    assert not taken or max(taken.values()) == 1, f"S5: two runs in one slot: {taken}"


def journal_is_dense(now: Snapshot) -> None:
    """A4: revisions 1..n without a gap, the last one that of the run."""
    assert now.journal.keys() == now.runs.keys(), "A4: every run has its journal, and no journal is without its run"
    for seq, entries in now.journal.items():
        assert [entry.rev for entry in entries] == list(range(1, now.runs[seq].rev + 1)), f"A4: not dense: {entries} of {now.runs[seq]}"
        assert entries[-1].state == now.runs[seq].state, f"A4: the last entry is not the run's state: {entries[-1]}, {now.runs[seq]}"


_TARGETS = {(state.value, kind.name): {to.value for to in move.to} for state, row in MOVES.items() for kind, move in row.items()}
_TARGETS[State.CANCELLING.value, "confirm"] = {State.CANCELLED.value}
_BEGINNINGS = {state.value for state in FIRST}


def edges_are_legal(now: Snapshot) -> None:
    """S7: each entry follows from the one before by a move of the table. A2: at most one end, and nothing behind it."""
    for entries in now.journal.values():
        first = entries[0]
        assert (first.move, first.attempt) == ("create", 1), f"S7: a history begins with its creation: {first}"
        assert first.state in _BEGINNINGS, f"S7: created in a state that is not a beginning: {first}"
        for before, after in pairwise(entries):
            assert after.state in _TARGETS.get((before.state, after.move), ()), f"S7: no such move: {before} -> {after}"
        ends = [entry.rev for entry in entries if entry.state in ENDED]
        assert ends in ([], [len(entries)]), f"A2: an end is single and last: {entries}"


def attempts_are_chained(now: Snapshot) -> None:
    """A1: a row for every closed attempt, each naming the one before, the run's own columns being the last."""
    assert now.attempts.keys() <= now.runs.keys(), "A1: an attempt without its run"
    for seq, run in now.runs.items():
        closed = now.attempts.get(seq, [])
        assert [item.n for item in closed] == list(range(1, run.attempt)), f"A1: closed attempts of {run}: {closed}"
        ids = [item.id for item in closed] + [run.attempt_id or run.id]
        assert ids[0] == run.id, f"A1: the first attempt has the run's id: {ids}"
        assert [item.retry_of for item in closed[1:]] + [run.retry_of] * bool(closed) == ids[:-1], f"A1: not a chain: {closed}, {run}"
        returned = [item for item in closed if item.outcome == "returned" and item.error is None]  # one that was refused has an error
        assert len(returned) == run.requeues, f"A1: returned attempts of {run}: {closed}"
        for item in closed:
            _closed_is_whole(item)


def _closed_is_whole(item: Closed) -> None:
    assert item.token is not None, f"A1: a closed attempt keeps its token: {item}"
    assert item.outcome in ("failed", "lapsed", "returned"), f"A1: {item}"
    assert item.answer in (State.SCHEDULED, State.QUEUED), f"A1: {item}"
    code = None if item.error is None else msgspec.json.decode(item.error)["code"]
    returned = item.outcome == "returned"
    assert (code in (None, "bad_payload")) if returned else code, f"A1: an error for what failed or was refused, else none: {item}"
    assert item.claimed_at is not None, f"A7: {item}"
    times = [at for at in (item.claimed_at, item.started_at, item.finished_at) if at is not None]
    assert times == sorted(times), f"A7: a closed attempt's times are ordered: {item}"


def lines_belong(now: Snapshot) -> None:
    for line in now.lines:
        assert line.attempt <= now.runs[line.run].attempt, f"a log line of an attempt there was not: {line}"


def steps_belong(now: Snapshot) -> None:
    for seq, steps in now.steps.items():
        assert seq in now.runs, f"steps of a run there is not: {steps}"
        assert [step.n for step in steps] == [*range(1, len(steps) + 1)], f"steps are not numbered in their order: {steps}"
        assert len({step.key for step in steps}) == len(steps), f"a step was stored twice: {steps}"


def nobody_waits_in_vain(now: Snapshot) -> None:
    """A waiting run has something to wait for that can still end as its rule asks; others that waited have been decided.

    One that was made in a caller's transaction may have a check instead, until a sweep has settled it.
    """
    unfinished = defaultdict(set)
    waiting = {run.seq for run in now.runs.values() if run.state is State.WAITING} - set(now.checks)
    for wait in now.waits:
        before = now.runs[wait.predecessor]
        if before.finished_at is None:
            unfinished[wait.run].add(before.id)
        spoilt = before.finished_at is not None and before.state is not State.SUCCEEDED and wait.rule != "any"
        assert not (spoilt and wait.run in waiting), f"waits for a run that did not succeed: {now.runs[wait.run]}"
    called = {group.callback for group in now.groups.values() if group.finished_at is None}
    for run in now.runs.values():
        assert run.seq not in waiting or unfinished[run.seq] or run.id in called, f"waits for nothing: {run}"
        assert run.state in (State.WAITING, State.CANCELLED, State.SKIPPED) or not unfinished[run.seq], f"did not wait: {run}"


def groups_are_counted(now: Snapshot) -> None:
    """A5: a group knows how its runs have ended, as if they were counted. It ends when all have, and then its callback is let go."""
    members = defaultdict(list)
    for run in now.runs.values():
        if run.grouped is not None:
            members[run.grouped].append(run)
    callbacks = {run.id: run for run in now.runs.values()}
    assert members.keys() <= now.groups.keys(), "A5: a member without its group"
    for seq, group in now.groups.items():
        ends = Counter(_END[run.state] for run in members[seq] if run.state in ENDED)
        pruned = group.total - len(members[seq])
        counted = {"succeeded": group.succeeded, "failed": group.failed, "cancelled": group.cancelled}
        over = {name: number - ends[name] for name, number in counted.items()}
        assert min(over.values()) >= 0, f"A5: counted {counted}, there are {ends}: {group}"
        assert sum(over.values()) == pruned, f"A5: counted {counted}, there are {ends}, pruned {pruned}: {group}"
        assert group.status == _status(group), f"A5: {group}"
        assert (group.finished_at is None) == (group.status == "running"), f"A5: {group}"
        callback = callbacks.get(group.callback or "")
        if callback is not None and callback.state is State.WAITING:
            assert group.status == "running", f"A5: nobody calls {callback} at the end of {group}"
        if callback is not None and callback.state not in (State.WAITING, State.CANCELLED, State.SKIPPED):
            assert group.status != "running", f"A5: {callback} was called before the end of {group}"


_END = dict.fromkeys((State.FAILED, State.QUARANTINED), "failed") | dict.fromkeys((State.CANCELLED, State.SKIPPED), "cancelled")
_END[State.SUCCEEDED] = "succeeded"


def _status(group: Group) -> str:
    if group.succeeded + group.failed + group.cancelled < group.total:
        return "running"
    return {group.succeeded: "completed", group.cancelled: "cancelled"}.get(group.total, "partial")


def live_holds(now: Snapshot) -> list[Occupied]:
    """What counts as occupied: the holds of runs that are live under the very token."""
    return [one for one in now.holds if now.runs[one.run].state in LIVE and now.runs[one.run].token == one.token]


def occupied_is_recounted(now: Snapshot) -> None:
    """S11: what is occupied is what the live runs use, no more and no less."""
    recounted = set()
    for run in now.runs.values():
        if run.state in LIVE:
            values = iter(msgspec.json.decode(run.keys or "[]"))
            for use in now.lanes[run.lane].requires.uses:
                key = use.resource if use.per is None else f"{use.resource}\x1f{next(values)}"
                recounted.add(Occupied(key, run.seq, run.token or "", use.weight))
            own = [int(value) for value in values] or [now.lanes[run.lane].requires.cores, now.lanes[run.lane].requires.memory]
            for what, amount in zip(("cores", "memory"), own, strict=True):
                if amount:
                    recounted.add(Occupied(f"{what}\x1e{run.worker}", run.seq, run.token or "", amount))
    found = live_holds(now)
    assert set(found) == recounted, f"S11: occupied {found}, recounted {recounted}"


def lanes_are_there(now: Snapshot) -> None:
    """No run is left where no claim looks."""
    lost = [run.id for run in now.runs.values() if run.state not in ENDED and abs(run.lane) not in now.lanes]
    assert not lost, f"in lanes that were removed: {lost}"


def direct_calls_wait_in_line(now: Snapshot) -> None:
    """Nobody who calls directly is served before those who called earlier."""
    waiting = set()
    for slot in now.slots:
        assert slot.state == "waiting" or slot.key not in waiting, f"served before its turn: {slot} of {now.slots}"
        if slot.state == "waiting":
            waiting.add(slot.key)


CHECKS: tuple[Callable[[Snapshot], None], ...] = (
    runs_are_whole,
    slots_hold_one,
    journal_is_dense,
    edges_are_legal,
    attempts_are_chained,
    lines_belong,
    steps_belong,
    nobody_waits_in_vain,
    groups_are_counted,
    lanes_are_there,
    occupied_is_recounted,
    direct_calls_wait_in_line,
)


def changes_are_told(entries: Sequence[Entry], webhooks: Sequence[Webhook], deliveries: Sequence[Delivery]) -> None:
    """A6: for each endpoint and each change of state that it wants there is one delivery, and no other."""
    wanted = Counter(
        (webhook.id, entry.run, entry.rev, f"run.{entry.state}")
        for webhook in webhooks
        for entry in entries
        if entry.state != entry.before and (webhook.states is None or entry.state in webhook.states)
        if webhook.jobs is None or entry.job in webhook.jobs
        if webhook.queues is None or entry.queue in webhook.queues
    )
    made = Counter((delivery.webhook, delivery.run, delivery.rev, delivery.type) for delivery in deliveries)
    assert set(wanted.values()) <= {1}, f"A6: a change is journaled once: {wanted - Counter(set(wanted))}"
    assert made == wanted, f"A6: not told: {wanted - made}; told, but not wanted or twice: {made - wanted}"


def check(now: Snapshot) -> None:
    """Everything that one snapshot can show."""
    for holds in CHECKS:
        holds(now)


# From one snapshot to the next


def ends_absorb(before: Snapshot, after: Snapshot) -> None:
    """S2: nothing of an ended run ever changes."""
    for seq, run in before.runs.items():
        if run.finished_at is not None and seq in after.runs:
            assert after.runs[seq] == run, f"S2: an end was changed: {run} -> {after.runs[seq]}"


def identity_stays(before: Snapshot, after: Snapshot) -> None:
    """S13: what a run was made with stays; only a patch, which is in the journal, edits one that nobody has."""
    for seq, run in before.runs.items():
        now = after.runs.get(seq, run)
        assert _values(run, NEVER_CHANGED) == _values(now, NEVER_CHANGED), f"S13: {run} -> {now}"
        assert now.rev >= run.rev, f"A4: a revision went back: {run} -> {now}"
        if changed := {name for name in PATCHED if _patched(run, name) != _patched(now, name)}:
            edits = {entry.move for entry in after.journal[seq][run.rev :]}
            by_move = "move" in edits and changed <= set(MOVED)
            assert by_move or "patch" in edits, f"S13: changed without a patch or a move: {run} -> {now}"
            assert run.state in PENDING, f"S13: changed once claimed: {run} -> {now}"


def _patched(run: Run, name: str) -> Any:
    return abs(run.lane) if name == "lane" else getattr(run, name)  # one that is parked is still of its lane


def _values(run: Run, names: Sequence[str]) -> list[Any]:
    return [getattr(run, name) for name in names]


def only_appended(before: Snapshot, after: Snapshot) -> None:
    """Journal, closed attempts, steps and log lines grow at the end and never change; they go only with their run."""
    for seq, entries in before.journal.items():
        assert seq not in after.runs or after.journal[seq][: len(entries)] == entries, f"the journal was changed: {entries}"
    for seq, closed in before.attempts.items():
        assert seq not in after.runs or after.attempts.get(seq, [])[: len(closed)] == closed, f"a closed attempt was changed: {closed}"
    for seq, steps in before.steps.items():
        assert seq not in after.runs or after.steps.get(seq, [])[: len(steps)] == steps, f"a step was changed: {steps}"
    lost = {line for line in set(before.lines) - set(after.lines) if line.run in after.runs}
    assert not lost, f"log lines were lost or changed: {lost}"


def groups_end_once(before: Snapshot, after: Snapshot) -> None:
    """A5: the end of a group is written once."""
    for seq, group in before.groups.items():
        if group.finished_at is not None and seq in after.groups:
            assert after.groups[seq] == group, f"A5: an end was changed: {group} -> {after.groups[seq]}"


def capacity_is_kept(before: Snapshot, after: Snapshot) -> None:
    """S11: what is handed out fits beside what is occupied; the queue behind all who call directly, these in their order."""
    old_holds, old_slots = set(live_holds(before)), {slot.id for slot in before.slots if slot.state == "held"}
    held = live_holds(after)
    for key in {one.key for one in held if one not in old_holds}:
        total = sum(one.weight for one in held if one.key == key) + sum(slot.weight for slot in after.slots if slot.key == key)
        assert total <= _capacity(after, key), f"S11: {total} of {key!r} are given away: {held}, {after.slots}"
    for slot in after.slots:
        if slot.state == "held" and slot.id not in old_slots:
            ahead = sum(other.weight for other in after.slots if other.key == slot.key and other.seq <= slot.seq)
            total = ahead + sum(one.weight for one in held if one.key == slot.key)
            assert total <= _capacity(after, slot.key), f"S11: {total} of {slot.key!r} are given away: {held}, {after.slots}"


def _capacity(now: Snapshot, key: str) -> float:
    if "\x1e" in key:
        return float("inf")  # a worker tells with its claim how much it has: `no_worker_has_too_much`
    capacity = now.resources[key.partition("\x1f")[0]].capacity
    return float("inf") if capacity is None else capacity


def no_worker_has_too_much(now: Snapshot, workers: Iterable[WorkerInfo]) -> None:
    """S11: what the live runs of a worker require together is no more than it has."""
    for worker in workers:
        for what, has in (("cores", worker.cores), ("memory", worker.memory)):
            mine = [one for one in live_holds(now) if one.key == f"{what}\x1e{worker.name}"]
            assert sum(one.weight for one in mine) <= has, f"S11: more {what} than {worker} has: {mine}"


def leases_last(before: Snapshot, after: Snapshot, since: int, now: int) -> None:
    """S9: a grant ends exactly one lease from now, and a beat never shortens it, except where the clock was set back.

    A beat was at `since` at the earliest, when it was looked before, unless the clock was set back between.
    """
    for seq, run in after.runs.items():
        if run.state not in LIVE:
            continue
        old = before.runs.get(seq)
        if old is None or old.token != run.token:
            assert run.lease_until == now + (run.lease or 0), f"S9: granted until {run.lease_until}, not now ({now}) + lease: {run}"
        else:
            earliest = min(since, now) + (run.lease or 0)
            assert (run.lease_until or 0) >= min(old.lease_until or 0, earliest), f"S9: a lease was shortened: {old} -> {run}"


def only_old_ends_go(before: Snapshot, after: Snapshot, now: int, limits: Limits) -> None:
    """S1: a run disappears only by retention, after its end, and with everything that belongs to it."""
    for seq in before.runs.keys() - after.runs.keys():
        run = before.runs[seq]
        keep = limits.keep_succeeded if run.state is State.SUCCEEDED else limits.keep_others
        assert run.finished_at is not None, f"S1: an unfinished run is gone: {run}"
        assert run.finished_at < now - keep, f"S1: an ended run is gone too early: {run}"


def keys_change_hands_when_free(before: Snapshot, after: Snapshot, now: int) -> None:
    """S12: within its time, or while its run is unfinished, a key names one run."""
    runs = before.by_id() | after.by_id()
    for name, key in before.keys.items():
        other = after.keys.get(name)
        if other is not None and other.run == key.run:
            assert other == key, f"S12: a key's terms were changed: {key} -> {other}"
            continue
        over = key.until is not None and key.until <= now
        holder = runs.get(key.run)
        ended = bool(key.unfinished) and (holder is None or holder.finished_at is not None)
        assert over or ended, f"S12: a key changed hands while it was held: {key} -> {other}"


def nothing_changed(before: Snapshot, after: Snapshot) -> None:
    """S3: what a stale token asked for left no trace."""
    for name, old, new in zip(Snapshot._fields, before, after, strict=True):
        assert old == new, f"S3: {name} were changed: {old} -> {new}"


def in_order(before: Snapshot, taken: Sequence[str], able: Callable[[Lane], bool], count: int) -> None:
    """S14: a claim takes the first of its open lanes, and empty means empty."""
    open_lanes = {seq for seq, lane in before.lanes.items() if able(lane)}
    queued = [run for run in before.runs.values() if run.state is State.QUEUED and run.lane in open_lanes]
    queued.sort(key=lambda run: (run.priority_key, run.position, run.seq))
    assert list(taken) == [run.id for run in queued[:count]], f"S14: taken {taken}, ready {[run.id for run in queued]}, asked {count}"


class Observer:
    """Looks at a store after every step, and remembers what only a history can show."""

    def __init__(self, store: Store, limits: Limits | None = None) -> None:
        self.store, self.limits = store, limits or Limits()
        self.last, self._looked_at = EMPTY, 0
        self.tokens: set[str] = set()
        self.promised: set[str] = set()

    def promise(self, ids: Iterable[str]) -> None:
        """S1: a caller has been told that these runs exist."""
        self.promised.update(ids)

    def look(self, now: int) -> Snapshot:
        """Read the tables, and check them by themselves and against the last time."""
        before, after = self.last, read(self.store)
        check(after)
        ends_absorb(before, after)
        groups_end_once(before, after)
        identity_stays(before, after)
        only_appended(before, after)
        capacity_is_kept(before, after)
        leases_last(before, after, self._looked_at, now)
        only_old_ends_go(before, after, now, self.limits)
        keys_change_hands_when_free(before, after, now)
        self._tokens_are_fresh(before, after)
        self._promises_are_kept(before, after)
        self.last, self._looked_at = after, now
        return after

    def _tokens_are_fresh(self, before: Snapshot, after: Snapshot) -> None:
        """S4: a token that was not there before has never been there."""
        granted = _tokens(after) - _tokens(before)
        assert not granted & self.tokens, f"S4: a token was used again: {granted & self.tokens}"
        for seq, run in after.runs.items():
            old = before.runs.get(seq)
            fresh = run.token is None or (old is not None and old.token == run.token) or run.token in granted
            assert fresh, f"S4: claimed under a token that another run has: {run}"
        self.tokens |= granted

    def _promises_are_kept(self, before: Snapshot, after: Snapshot) -> None:
        """S1: what was promised is there, until retention takes it after its end."""
        self.promised -= before.by_id().keys() - after.by_id().keys()  # `only_old_ends_go` has judged these
        assert self.promised <= after.by_id().keys(), f"S1: lost: {self.promised - after.by_id().keys()}"


def _tokens(snapshot: Snapshot) -> set[str]:
    current = {run.token for run in snapshot.runs.values() if run.token is not None}
    return current | {item.token for items in snapshot.attempts.values() for item in items if item.token is not None}


def lane_is_open(lane: Lane, worker: Mapping[str, Any]) -> bool:
    """Whether a worker can and may take what is in a lane; said a second time, for tests."""
    named = all(worker[field] is None or getattr(lane, word) in worker[field] for field, word in (("queues", "queue"), ("jobs", "job")))
    wanted = lane.requires
    return named and set(wanted.tags).issubset(worker["tags"]) and wanted.cores <= worker["cores"] and wanted.memory <= worker["memory"]
