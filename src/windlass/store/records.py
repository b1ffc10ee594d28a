"""Between records and rows: each method is one batch of named statements, and knows nothing of why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windlass.machine import ENDED, LIVE
from windlass.model import (
    IN_A_LIST,
    Attempt,
    Entry,
    Failure,
    Job,
    Lane,
    Limits,
    Listed,
    LogLine,
    Needs,
    Options,
    Principal,
    Run,
    Schedule,
    Skipped,
    Slot,
    State,
    WorkerInfo,
)
from windlass.payload import slices
from windlass.store import access, claims, groups, moves, order, retention, scales, sql, stats, tails, webhooks
from windlass.store.access import AccessRecords
from windlass.store.base import Row, Runs, Statement, Value
from windlass.store.claims import ClaimRecords
from windlass.store.columns import PATCHED, SCHEDULE_WRITTEN, WRITTEN_BACK
from windlass.store.creation import Creation, KeyRow, Kind, NewRow, sent
from windlass.store.doctor import DoctorRecords
from windlass.store.groups import GroupRecords, GroupRow
from windlass.store.moves import MoveRecords
from windlass.store.order import LET_GO, OrderRecords
from windlass.store.retention import RetentionRecords
from windlass.store.rows import STATES, error_of, error_text, listed_of, pack, run_of, split_time, storing
from windlass.store.scales import ScaleRecords
from windlass.store.stats import StatRecords
from windlass.store.tails import Tails
from windlass.store.webhooks import End, WebhookRecords

_options = msgspec.json.Decoder(Options).decode
_told = msgspec.json.Decoder(dict[str, str]).decode

_written_back, _patched = storing(WRITTEN_BACK), storing(PATCHED)

WIDEST = 4  # bytes of a character

_FOLLOW = ("followed", "lock_followers", "doom", "tally", "release", "journal_followers")
_SETTLE = ("doom_created", "release_created", "journal_settled")
_RELEASE = ("release", "release_created")
_LATER = ("refer_predecessors", "add_checks")
_KEYS = ("take_keys", "lock_keys", "retake_keys")
_LET_GO = ("lock_gates_of", *LET_GO)
_WRITE_BACK = ("lock_groups", "write_back", "journal_moves", "close_attempts", *_FOLLOW)

_PRUNE = (
    "lock_groups",
    "lock_pruned",
    "refuse_prune",
    "lock_pruned_keys",
    "prune_keys",
    *(f"prune_{table}" for table in ("journal", "attempts", "logs", "waits", "followed", "holds", "groups")),
    "note_shortest",
    "prune_runs",
)

BATCHES: Mapping[str, tuple[str, ...]] = {
    "define": ("define", "tell_schema", "drop_schemas"),
    "placeholder": ("define_placeholders",),
    "lanes": ("lock_lanes", "add_lanes", "use_lanes", "close_lanes", "raise_removed"),
    "drop_lanes": ("lock_lanes", "drop_lanes", "raise_removed"),
    "drop_jobs": ("drop_placeholders",),
    "create": (*_KEYS, "lock_predecessors", "refuse_create", "create", "journal_created", "add_waits", *_SETTLE, *_LATER),
    "create_group": (*_KEYS, "refuse_create", "create", "journal_created", *groups.MADE),
    "register": ("register",),
    "start": ("start", "journal"),
    "beat": ("beat",),
    "log": ("lock_lines", "add_lines"),
    "report": ("succeed", "journal", *_WRITE_BACK, *_LET_GO),
    "cancel": ("lock_groups", "write_back", "journal_moves", *_FOLLOW),
    "skip": ("lock_groups", "write_back", "journal_moves", *_FOLLOW),
    "patch": ("patch", "journal_moves"),
    "dispatch": ("dispatch", "journal"),
    "settle": (*_FOLLOW, "drop_checks"),
    "probe": ("unlocked", "unlocked_old"),
    "lapse": (*_WRITE_BACK, *_LET_GO),
    "look_later": ("look_later",),
    "prune": _PRUNE,
    "drop_keys": ("drop_keys",),
    "schedule": ("add_schedule", "edit_schedule", "add_skips"),
    "unschedule": ("drop_skips", "drop_schedule"),
    "fire": (
        "unfinished_of_schedules",
        "advance_schedules",
        "refuse_fire",
        "add_skips",
        *_KEYS,
        "lock_predecessors",
        "refuse_create",
        "create",
        "journal_created",
        "add_waits",
        *_SETTLE,
    ),
    **claims.BATCHES,
    **order.BATCHES,
    **groups.BATCHES,
    **moves.BATCHES,
    **tails.BATCHES,
    **access.BATCHES,
    **webhooks.BATCHES,
    **stats.BATCHES,
    **scales.BATCHES,
    **retention.BATCHES,
}
"""The statements that write, by the verb whose batch they are in. Every place between two of them is a fault point."""


def fault_points(dialect: str) -> list[str]:
    """The names of all places where a fault can be set, in and between the batches that write."""
    queries = sql.load(dialect)
    inside = [f"{verb}.after_{name}" for verb, names in BATCHES.items() for name in names if queries[name].writes]
    writing = [verb for verb, names in BATCHES.items() if any(queries[name].writes for name in names)]
    around = [f"{verb}.{place}" for verb in writing for place in ("before_begin", "before_commit", "after_commit")]
    return sorted(inside + around)


class Held(NamedTuple):
    """A run as its worker holds it."""

    seq: int
    token: str


class Change(NamedTuple):
    """A move that `step` decided, to be written if nothing has changed since it was read."""

    before: Run
    after: Run
    move: str
    detail: str | None = None
    lapsed: int | None = None  # the end that the lease must still have: a beat moves it


class Beaten(NamedTuple):
    """Runs whose leases were extended, and the server's time then, where there is a server."""

    states: dict[Held, State]
    server: int | None = None


class Told(NamedTuple):
    """What a definer takes: the fingerprint of its document, the document, and how many of a job are kept beside the last definer's."""

    schema: str
    document: str
    most: int


class Known(NamedTuple):
    """Lanes, and how often lanes had been removed before they were read."""

    removed: int
    lanes: list[Lane]


class Room(NamedTuple):
    """How much there is of what creations make as they need it: in all, and made by one who may not do everything."""

    lanes: int
    own_lanes: int
    resources: int
    own_resources: int
    placeholders: int
    own_placeholders: int


class Advance(NamedTuple):
    """How a schedule moves on from the instant that was seen."""

    id: int
    rev: int
    seen: int
    next_at: int | None
    due_at: int | None
    run: str | None
    fired: int
    skipped: int


class Ready(NamedTuple):
    """Where runs wait for workers, from when, and which they are where that is known."""

    queue: str
    due_at: int
    runs: Runs = ()


class Written(NamedTuple):
    """The runs that a batch moved, those that no longer wait for them, and the gates that they let go of."""

    seqs: set[int]
    released: list[Ready]
    freed: frozenset[str] = frozenset()


class Stored(NamedTuple):
    """Who holds the keys of a creation, and which of its runs had nothing left to wait for."""

    winners: dict[tuple[str, str], Winner]
    released: list[Ready]


class Unfinished(NamedTuple):
    """A run of a schedule that has not ended."""

    run: str
    state: State
    free: bool  # False: somebody has locked it


NEXT = ("next_due", "next_gate", "next_look", "next_slot_end", "next_schedule")
"""What `next_times` answers, in its order."""


class PageSizes(NamedTuple):
    """How many of each a page has at most: runs, gates and direct calls, schedules."""

    runs: int
    keys: int
    schedules: int


class Pages(NamedTuple):
    """The first of everything that time may have made wrong, and when there is something to do next, as of one moment."""

    late: list[Run]  # leases that would be looked at later than they can last, if that was asked for
    overdue: list[Run]
    slots: list[Slot]
    gates: list[str]
    parked: list[str]
    schedules: list[Schedule]
    checks: list[int]
    due: list[tuple[int, int]]
    times: dict[str, int]

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not any(self[:-1])


class Old(NamedTuple):
    """A run that is past its retention."""

    seq: int
    at: int  # when it ended, or, where it has a time of its own, when that is over
    needed: bool  # one that has not ended may still read it, or the journal's followers have yet to


class Winner(NamedTuple):
    """Which run holds a key."""

    run: str
    hash: str | None
    kept: bool = True  # False: retention has removed the run
    held: bool = True  # False: the next creation that asks for the key takes it


def _job_of(row: Row) -> Job:
    identity, name, handler, payload, options, *rest = row
    return Job(identity, name, handler, msgspec.json.decode(payload), _options(options), *rest)


def _schedule_of(row: Row) -> Schedule:
    values = dict(zip(Schedule.__struct_fields__, row, strict=True))
    opened = {"payload": msgspec.json.decode(values["payload"]), "options": _options(values["options"]), "enabled": bool(values["enabled"])}
    return Schedule(**values | opened)


def _times_of(rows: list[Row]) -> dict[str, int]:
    return {name: at for name, at in zip(NEXT, rows[0], strict=True) if at is not None}


def _schedule_values(schedule: Schedule) -> dict[str, Value]:
    values: dict[str, Value] = {name: getattr(schedule, name) for name in ("key", *SCHEDULE_WRITTEN)}
    return values | {"payload": pack(schedule.payload), "options": pack(schedule.options), "enabled": int(schedule.enabled)}


def _entries(run: Run, rows: Iterable[Row]) -> list[Entry]:
    return [Entry(run.id, rev, at, move, STATES[state], *rest) for rev, at, move, state, *rest in rows]


def _attempt_of(run_id: str, row: Row) -> Attempt:
    *values, error = row
    return Attempt(*[run_id, *values, error_of(error)])


def needs_from(text: str) -> Needs:
    """The needs of a lane from their text."""
    return msgspec.json.decode(text, type=Needs) if text else Needs()


def needs_text(needs: Needs) -> str:
    """The empty text for no need."""
    return "" if needs == Needs() else pack(needs)


def _worker_of(row: Row) -> WorkerInfo:
    name, queues, jobs, tags, cores, memory, slots, *_ = row
    return WorkerInfo(name, _names(queues), _names(jobs), _names(tags) or (), cores, memory, slots)


def _seqs(rows: Iterable[Row]) -> set[int]:
    return {row[0] for row in rows}


class Records(
    ClaimRecords,
    OrderRecords,
    GroupRecords,
    MoveRecords,
    AccessRecords,
    WebhookRecords,
    StatRecords,
    ScaleRecords,
    RetentionRecords,
    DoctorRecords,
    Tails,
):
    """Runs and what belongs to them, over any store."""

    # Definitions and lanes

    async def define(
        self, name: str, handler: str, payload: str, options: Options, told: Told | None, by: Principal | None, now: int
    ) -> Job:
        """The definition as it is then: another one where it belongs to somebody else."""
        trusted = by is None or by.trusted
        whose = {"owner": None if by is None or by.trusted else by.name, "trusted": int(trusted), "takes": int(by is not None and trusted)}
        what: dict[str, Value] = {"name": name, "handler": handler, "payload": payload, "options": pack(options), "now": now}
        what["schema"] = None if told is None else told.schema
        statements = [Statement("define", what | whose)]
        if told is not None:
            statements.append(Statement("tell_schema", what | {"document": told.document}))
            statements.append(Statement("drop_schemas", {"name": name, "most": told.most}))
        found = await self._batch("define", *statements, Statement("jobs_named", {"names": pack([name])}))
        return _job_of(found[-1][0])

    async def documents(self, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
        """What jobs take, by fingerprint, as far as it is known."""
        return dict(await self._read("schema_documents", r=pack(sorted(wanted))))

    async def define_placeholders(self, names: Iterable[str], owner: str | None, most: int, share: int, now: int) -> None:
        """Make those that are not there, all or none, if there is room for them."""
        values: dict[str, Value] = {"r": pack([[name] for name in sorted(names)]), "owner": owner, "most": most, "share": share, "now": now}
        await self._batch("placeholder", Statement("define_placeholders", values))

    async def jobs_named(self, names: Sequence[str]) -> list[Job]:
        return [_job_of(row) for row in await self._read("jobs_named", names=pack(names))]

    async def jobs_after(self, name: str, count: int) -> list[Job]:
        return [_job_of(row) for row in await self._read("jobs_all", after=name, count=count)]

    async def add_lanes(
        self, lanes: Iterable[tuple[str, str, str]], owner: str | None, most: int, share: int, controls: int, now: int
    ) -> None:
        """Make those that are not there, all or none, if there is room for them and the controls are as they were read."""
        values: dict[str, Value] = {"r": pack(sorted(lanes)), "owner": owner, "most": most, "share": share}
        await self._batch("lanes", Statement("lock_lanes"), Statement("add_lanes", values | {"controls": controls, "now": now}))

    async def lanes_after(self, last: int) -> Known:
        """The lanes behind one of them, and how often lanes had been removed before they were read."""
        (revs, *_), rows = await self._batch("read", Statement("controls_rev"), Statement("lanes_after", {"after": last}))
        return Known(revs[1], [Lane(identity, queue, job, needs_from(text), *rest) for identity, queue, job, text, *rest in rows])

    async def room(self, owner: str | None) -> Room:
        return Room(*(await self._read("room", owner=owner))[0])

    # What nobody uses any more

    async def unused_lanes(self, before: int) -> dict[int, int | None]:
        """Lanes that were not used since then, and when they were; those of which that is not known too."""
        return dict(await self._read("unused_lanes", before=before))

    async def use_lanes(self, ids: Collection[int], before: int, now: int) -> set[int]:
        """Note that these lanes are in use, where that was not noted since then; those that are there."""
        packed = pack(sorted(ids))
        values: dict[str, Value] = {"ids": packed, "before": before, "now": now}
        there = Statement("lanes_there", {"ids": packed})
        return _seqs((await self._batch("lanes", Statement("lock_lanes"), Statement("use_lanes", values), there))[-1])

    async def close_lanes(self, ids: Collection[int], before: int) -> set[int]:
        """Have those of these that were not used since then noted by whoever uses them from now on; which they are."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "before": before}
        return _seqs((await self._batch("lanes", Statement("lock_lanes"), Statement("close_lanes", values), Statement("raise_removed")))[1])

    async def creating(self) -> set[str]:
        """The transactions that are making runs, where others than this one can be."""
        return {name for (name,) in await self._read("creating")}

    async def lanes_in_use(self, ids: Collection[int]) -> set[int]:
        """Those of these lanes that have queued or live runs."""
        return _seqs(await self._read("lanes_in_use", ids=pack(sorted(ids))))

    async def lanes_of_waiting(self, after: int, count: int) -> list[tuple[int, int]]:
        """Runs that wait for others, with their lanes, from behind one of them on."""
        return [(seq, lane) for seq, lane in await self._read("lanes_of_waiting", seq=after, count=count)]

    async def lanes_of_scheduled(self, after: tuple[int, int], count: int) -> list[tuple[int, int, int]]:
        """When runs are due, their seqs and lanes, from behind such a place on."""
        return [(at, seq, lane) for at, seq, lane in await self._read("lanes_of_scheduled", at=after[0], seq=after[1], count=count)]

    async def drop_lanes(self, ids: Collection[int]) -> set[int]:
        """Remove those of these that were closed, that nobody has used since, and that have neither queued nor live runs."""
        drop = Statement("drop_lanes", {"ids": pack(sorted(ids))})
        return _seqs((await self._batch("drop_lanes", Statement("lock_lanes"), drop, Statement("raise_removed")))[1])

    async def unused_placeholders(self, before: int) -> list[str]:
        """The names of jobs that nobody has defined, and that have no runs."""
        return [name for (name,) in await self._read("unused_placeholders", before=before)]

    async def drop_placeholders(self, names: Collection[str]) -> list[str]:
        dropped = await self._batch("drop_jobs", Statement("drop_placeholders", {"names": pack(sorted(names))}))
        return sorted(name for (name,) in dropped[0])

    # Creation

    async def create(
        self, made: Creation, mark: str, *, verb: str = "create", before: Sequence[Statement] = (), behind: Sequence[Statement] = ()
    ) -> Stored:
        """Insert the runs whose keys are theirs, and say whose they are; Conflict when any of it can no longer be as planned."""
        now, keys = made.now, pack(made.keys)
        predecessors = sorted({wait[1] for wait in made.waits})
        guard: dict[str, Value] = {"d": pack(made.definitions), "k": keys, "predecessors": pack(predecessors), "now": now}
        guard |= {"controls": made.controls, "definitions": len(made.definitions), "keys": len(made.keys), "expected": len(predecessors)}
        statements: list[Statement] = list(before)
        if made.keys:
            statements += (Statement(name, {"r": keys, "now": made.judged_at}) for name in _KEYS)
        if predecessors:
            lock = "refer_predecessors" if made.later else "lock_predecessors"
            statements.append(Statement(lock, {"predecessors": guard["predecessors"]}))
        statements.append(Statement("refuse_create", guard))
        for kind, rows in self._cut(made.rows):
            statements.append(Statement("create", kind._asdict() | {"r": pack(sent(rows)), "now": now}))
            statements.append(Statement("journal_created", {"ids": pack([row.id for row in rows]), "now": now}))
        if predecessors:
            statements.append(Statement("add_waits", {"r": pack(made.waits)}))
            if made.later:
                statements.append(Statement("add_checks", {"ids": pack(sorted({wait[0] for wait in made.waits}))}))
            else:
                statements += (Statement(name, {"ids": pack(made.ids), "mark": mark, "now": now}) for name in _SETTLE)
        statements += behind
        if made.keys:
            statements.append(Statement("winners", {"r": keys, "now": made.judged_at}))
        answers = await self._batch(verb, *statements)
        return Stored(_winners(answers[-1]) if made.keys else {}, _released(statements, answers))

    def _cut(self, rows: Mapping[Kind, Sequence[NewRow]]) -> Iterator[tuple[Kind, Sequence[NewRow]]]:
        """The rows of each kind, in sets that a database takes as one parameter."""
        for kind, alike in rows.items():
            for some in slices(alike, [len(row.payload) for row in alike], self._most):
                yield kind, some

    async def create_group(self, group: GroupRow, made: Creation, mark: str) -> Stored:
        """Insert a group with its runs; Conflict when any of it can no longer be as planned, or the group's key is another's."""
        keys = [(row.scope, row.key) for row in made.keys]
        before, behind = groups.before_members(group, made.now), groups.behind_members(group, keys, made.now)
        return await self.create(made, mark, verb="create_group", before=before, behind=behind)

    async def winners(self, keys: Sequence[KeyRow], now: int) -> dict[tuple[str, str], Winner]:
        return _winners(await self._read("winners", r=pack(keys), now=now)) if keys else {}

    async def seqs(self, ids: Sequence[str]) -> dict[str, int]:
        return dict((await self._read("seqs", ids=pack(ids))) if ids else ())

    # Moves of sets

    async def start(self, held: Sequence[Held], mark: str, now: int) -> set[Held]:
        rows = pack(sorted(held))
        journal = Statement("journal", {"ids": pack([item.seq for item in held]), "mark": mark, "move": "start", "now": now})
        started = await self._batch("start", Statement("start", {"r": rows, "mark": mark, "now": now}), journal)
        return set(map(Held._make, started[0]))

    async def beat(self, held: Sequence[Held], lease: int, progress: Mapping[Held, str], now: int) -> Beaten:
        """Extend these leases and keep what is told of progress; the answer has those that are held so and that nobody else has locked."""
        rows = pack([(*item, progress.get(item)) for item in sorted(held)])
        beaten = await self._batch("beat", Statement("beat", {"r": rows, "lease": lease, "now": now}))
        states, server = split_time(beaten[0], 3)
        return Beaten({Held(seq, token): STATES[state] for seq, token, state in states}, server)

    async def still_held(self, held: Sequence[Held]) -> set[Held]:
        """Those of these that are held so, whether or not anybody else has locked them."""
        rows = await self._read("still_held", ids=pack([item.seq for item in held])) if held else ()
        return {Held(*row) for row in rows}.intersection(held)

    async def succeed(
        self, done: Sequence[tuple[int, str, str | None, str | None]], mark: str, follow: str, now: int, *, limited: bool
    ) -> Written:
        """End these runs well, each under its token; the answer names those it was true for."""
        ordered = sorted(done)
        ids = pack([item[0] for item in ordered])
        succeed = Statement("succeed", {"r": pack(ordered), "mark": mark, "now": now})
        journal = Statement("journal", {"ids": ids, "mark": mark, "move": "succeed", "now": now})
        statements = _letting_go([_lock_groups(ids), succeed, journal, *self._follow(ids, mark, follow, now)], ids, len(ordered), limited)
        return _written(statements, await self._batch("report", *statements), "succeed")

    def _follow(self, ids: str, ended: str, mark: str, now: int) -> list[Statement]:
        """What becomes of the runs that wait for these, and of their groups, in the same batch as their end."""
        values: dict[str, Value] = {"ids": ids, "ended": ended, "mark": mark, "now": now}
        return [Statement(name, values) for name in _FOLLOW]

    # Waits that a caller's transaction has left to be settled

    async def checks(self, after: int, count: int) -> list[int]:
        """The next runs whose waits are to be settled."""
        return [run for (run,) in await self._read("checks", after=after, count=count)]

    async def checked_ends(self, runs: Sequence[int]) -> list[int]:
        """Those predecessors of these runs that have ended."""
        return sorted(_seqs(await self._read("checked_ends", ids=pack(runs))))

    async def settle(self, runs: Sequence[int], ended: Sequence[int], nonce: str, mark: str, now: int) -> list[Ready]:
        """Do what follows for these runs from the ends before them, and forget the checks of those that it is known for."""
        statements = self._follow(pack(ended), nonce, mark, now) if ended else []
        statements.append(Statement("drop_checks", {"ids": pack(runs)}))
        return _released(statements, await self._batch("settle", *statements))

    async def unlocked(self, ids: Sequence[int], ending: Sequence[int]) -> set[int]:
        """Those of these runs that can be written without waiting for anybody; what follows from an end is asked of those that end."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "ending": pack(sorted(ending))}
        return _seqs((await self._batch("probe", Statement("unlocked", values)))[0]) if ids else set()

    async def due(self, now: int, after: tuple[int, int], count: int) -> list[tuple[int, int]]:
        """When runs were due, and their seqs, from behind such a place on."""
        return [(at, seq) for at, seq in await self._read("due", now=now, at=after[0], seq=after[1], count=count)]

    async def dispatch(self, ids: Sequence[int], mark: str, now: int) -> dict[int, str]:
        """Queue those of these runs that are due; the answer has them with their queues."""
        packed = pack(ids)
        journal = Statement("journal", {"ids": packed, "mark": mark, "move": "dispatch", "now": now})
        moved = await self._batch("dispatch", Statement("dispatch", {"ids": packed, "mark": mark, "now": now}), journal)
        return dict(moved[0])

    # Moves that `step` decided

    async def write_back(self, verb: str, changes: Sequence[Change], mark: str, follow: str, now: int, *, limited: bool) -> Written:
        """Write what `step` decided; the answer names the runs that were still as read."""
        ordered = sorted(changes, key=lambda change: change.before.seq)
        closed = [_closed(change) for change in ordered if change.after.attempt > change.before.attempt]
        ended = [change.after.seq for change in ordered if change.after.state in ENDED]
        left = [change.after.seq for change in ordered if change.before.state in LIVE and change.after.state not in LIVE]
        statements = [
            Statement("write_back", {"r": pack([_changed(change) for change in ordered]), "mark": mark}),
            Statement("journal_moves", {"r": pack([_journaled(change) for change in ordered]), "mark": mark, "now": now}),
        ]
        if closed:
            statements.append(Statement("close_attempts", {"r": pack(closed), "mark": mark, "now": now}))
        if ended:
            statements = [_lock_groups(pack(ended)), *statements, *self._follow(pack(ended), mark, follow, now)]
        statements = _letting_go(statements, pack(left), len(left), limited and bool(left))
        return _written(statements, await self._batch(verb, *statements), "write_back")

    async def patch(self, change: Change, mark: str, now: int, controls: int) -> bool:
        """Whether the run and the controls were still as they were read."""
        rows = pack([[change.after.seq, *_patched(change.after)]])
        journal = Statement("journal_moves", {"r": pack([_journaled(change)]), "mark": mark, "now": now})
        return bool((await self._batch("patch", Statement("patch", {"r": rows, "mark": mark, "controls": controls}), journal))[0])

    # Leases

    async def overdue(self, now: int, after: tuple[int, int], count: int) -> list[Run]:
        return [run_of(row) for row in await self._read("overdue", now=now, look_at=after[0], seq=after[1], count=count)]

    async def looked_at_late(self, now: int, count: int) -> list[Run]:
        """Live leases that would be looked at later than they can last from then on."""
        return [run_of(row) for row in await self._read("looked_at_late", now=now, count=count)]

    async def look_later(self, looks: Iterable[tuple[Run, int]]) -> None:
        rows = sorted((run.seq, run.rev, at) for run, at in looks)
        packed = pack(rows)
        await self._batch("look_later", Statement("look_later", {"r": packed}))

    async def next_times(self, now: int) -> dict[str, int]:
        """When the next run is due, a gate opens, a lease wants a look, a direct call ends, a schedule fires: as far as there are any."""
        return _times_of(await self._read("next_times", now=now))

    async def first_pages(self, now: int, overdue: tuple[int, int], parked: str, sizes: PageSizes, *, late: int | None) -> Pages:
        """The first of everything that a sweep looks for, in one read; `late` is as for `looked_at_late`, or None to leave that out."""
        asked = [
            Statement("overdue", {"now": now, "look_at": overdue[0], "seq": overdue[1], "count": sizes.runs}),
            Statement("slots_overdue", {"now": now, "after": 0, "count": sizes.keys}),
            Statement("gates_due", {"now": now, "count": sizes.keys}),
            Statement("parked_keys", {"after": parked, "count": sizes.keys}),
            Statement("schedules_due", {"now": now, "at": 0, "since": 0, "seq": 0, "count": sizes.schedules}),
            Statement("checks", {"after": 0, "count": sizes.runs}),
            Statement("due", {"now": now, "at": 0, "seq": 0, "count": sizes.runs}),
            Statement("next_times", {"now": now}),
            *([] if late is None else [Statement("looked_at_late", {"now": late, "count": sizes.runs})]),
        ]
        leases, slots, gates, keys, schedules, checks, due, times, *rest = await self._batch("read", *asked)
        return Pages(
            [run_of(row) for rows in rest for row in rows],
            [run_of(row) for row in leases],
            [Slot(*row) for row in slots],
            [key for key, *_ in gates],
            [key for (key,) in keys],
            [_schedule_of(row) for row in schedules],
            [run for (run,) in checks],
            [(at, seq) for at, seq in due],
            _times_of(times),
        )

    # Reading

    async def find(self, run_id: str) -> Run | None:
        rows = await self._read("find", id=run_id)
        return run_of(rows[0]) if rows else None

    async def find_seqs(self, seqs: Sequence[int]) -> list[Run]:
        """These runs, without payloads and outputs: enough for every move that `step` decides."""
        return [run_of(row) for row in await self._read("find_bare", ids=pack(seqs))]

    async def find_attempt(self, attempt_id: str) -> Run | None:
        rows = await self._read("find_attempt", id=attempt_id)
        return run_of(rows[0]) if rows else None

    async def was_pruned(self, run_id: str) -> bool:
        return bool(await self._read("pruned_key", id=run_id))

    async def attempts(self, run: Run) -> list[Attempt]:
        """All closed attempts, oldest first."""
        rows = await self._read("attempts", seq=run.seq)
        return [_attempt_of(run.id, row) for row in rows]

    async def closed_attempt(self, seq: int, token: str) -> tuple[str, State, Failure | None] | None:
        """Outcome, answer and error of the attempt that was held under a token."""
        rows = await self._read("closed_attempt", seq=seq, token=token)
        return (rows[0][1], State(rows[0][2]), error_of(rows[0][3])) if rows else None

    async def history(self, run: Run, after: int, count: int) -> list[Entry]:
        return _entries(run, await self._read("history", seq=run.seq, after=after, count=count))

    async def moment(self, run: Run, after: int, line: tuple[int, int], count: int) -> tuple[Run | None, list[Entry], list[LogLine]]:
        """A run as it is now, its entries behind a revision and its lines behind one, read together."""
        found, entries, lines = await self._batch(
            "read",
            Statement("find_seqs", {"ids": pack([run.seq])}),
            Statement("history", {"seq": run.seq, "after": after, "count": count}),
            Statement("lines", {"seq": run.seq, "attempt": line[0], "n": line[1], "count": count}),
        )
        return run_of(found[0]) if found else None, _entries(run, entries), [LogLine(*row) for row in lines]

    async def ends(self, runs: Collection[str], most: int) -> dict[str, End]:
        """How these runs are now, without payloads and outputs above a size."""
        rows = await self._read("ends", names=pack(sorted(runs)), most=most) if runs else ()
        return {run.id: End(run, tuple(run.sizes) if isinstance(run, Listed) else ()) for run in map(listed_of, rows)}

    async def predecessors(self, seq: int, count: int) -> list[tuple[str, State, str]]:
        return [(run, State(state), rule) for run, state, rule in await self._read("predecessors", seq=seq, count=count)]

    async def page(self, name: str, **values: Value) -> list[Run]:
        """Runs for a list, without what is large."""
        return [listed_of(row) for row in await self._read(name, most=IN_A_LIST, **values)]

    async def members(self, group: int, after: str, count: int) -> list[Run]:
        """The runs of a group as they are, from behind one of them on."""
        return [run_of(row) for row in await self._read("members", seq=group, after=after, count=count)]

    # Schedules

    async def add_schedule(self, schedule: Schedule, now: int) -> bool:
        """Whether the key was free."""
        values = _schedule_values(schedule) | {"owner": schedule.owner, "now": now}
        return bool((await self._batch("schedule", Statement("add_schedule", values)))[0])

    async def edit_schedule(
        self, schedule: Schedule, seen: Schedule, now: int, *, skips: Sequence[tuple[Any, ...]] = (), mark: str | None = None
    ) -> bool:
        """Write a schedule, and what it skips by that, if nothing has happened to it since it was seen."""
        guard: dict[str, Value] = {"id": seen.id, "rev": seen.rev, "seen": -1 if seen.next_at is None else seen.next_at, "now": now}
        values = _schedule_values(schedule) | guard | {"skipped": sum(skip[3] for skip in skips), "mark": mark}
        statements = [Statement("edit_schedule", values)]
        if skips:
            statements.append(Statement("add_skips", {"r": pack(skips), "mark": mark, "now": now}))
        return bool((await self._batch("schedule", *statements))[0])

    async def drop_schedule(self, identity: int) -> bool:
        dropped = await self._batch("unschedule", Statement("drop_skips", {"id": identity}), Statement("drop_schedule", {"id": identity}))
        return bool(dropped[1])

    async def schedule(self, key: str) -> Schedule | None:
        found = await self._read("schedule_by_key", key=key)
        return _schedule_of(found[0]) if found else None

    async def schedules_after(self, key: str, count: int) -> list[Schedule]:
        return [_schedule_of(row) for row in await self._read("schedules_after", after=key, count=count)]

    async def schedules_due(self, now: int, after: tuple[int, int, int], count: int) -> list[Schedule]:
        """Schedules by instant, creation and id, from behind such a place on."""
        at, since, seq = after
        return [_schedule_of(row) for row in await self._read("schedules_due", now=now, at=at, since=since, seq=seq, count=count)]

    async def skips(self, identity: int, count: int) -> list[Skipped]:
        return [Skipped(*row) for row in await self._read("schedule_skips", id=identity, count=count)]

    async def unfinished(self, schedules: Sequence[int]) -> dict[int, list[Unfinished]]:
        """The runs of these schedules that have not ended, oldest first."""
        found: dict[int, list[Unfinished]] = {}
        if schedules:
            (rows,) = await self._batch("fire", Statement("unfinished_of_schedules", {"ids": pack(schedules)}))
            for schedule, run, state, free in rows:
                found.setdefault(schedule, []).append(Unfinished(run, STATES[state], bool(free)))
        return found

    async def fire(self, made: Creation, advances: Sequence[Advance], skips: Sequence[tuple[Any, ...]], mark: str) -> Stored:
        """Move schedules on and make their runs, all together; Conflict when one of them is no longer as it was read."""
        ids = pack([advance.id for advance in advances])
        before = [
            Statement("advance_schedules", {"r": pack(sorted(advances)), "mark": mark}),
            Statement("refuse_fire", {"ids": ids, "mark": mark, "expected": len(advances), "now": made.now}),
        ]
        if skips:
            before.append(Statement("add_skips", {"r": pack(skips), "mark": mark, "now": made.now}))
        return await self.create(made, mark, verb="fire", before=before)

    # Log lines

    async def add_lines(self, held: Held, lines: Sequence[tuple[int, str]], limits: Limits, now: int) -> Run | None:
        """Append the lines if the token holds the run, as far as its log has room for them; the run as it is then."""
        share = limits.log // limits.lines
        bounds: dict[str, Value] = {"most": limits.lines, "log": limits.log, "share": share, "late": share // WIDEST}
        notice = f"Further lines were dropped: an attempt may log {limits.log:,} bytes."
        values: dict[str, Value] = {"r": pack(lines), "seq": held.seq, "token": held.token, "now": now, "notice": notice}
        _, _, found = await self._batch(
            "log",
            Statement("lock_lines", {"seq": held.seq}),
            Statement("add_lines", values | bounds),
            Statement("find_seqs", {"ids": pack([held.seq])}),
        )
        return run_of(found[0]) if found else None

    async def lines(self, seq: int, after: tuple[int, int], count: int) -> list[LogLine]:
        return [LogLine(*row) for row in await self._read("lines", seq=seq, attempt=after[0], n=after[1], count=count)]

    # Workers and why

    async def register(self, worker: WorkerInfo, about: str | None, schemas: str | None, now: int) -> None:
        listed = {name: None if (value := getattr(worker, name)) is None else pack(value) for name in ("queues", "jobs", "tags")}
        values: dict[str, Value] = {"name": worker.name, "cores": worker.cores, "memory": worker.memory, "slots": worker.slots, "now": now}
        await self._batch("register", Statement("register", values | listed | {"about": about, "schemas": schemas}))

    async def workers_seen(self, since: int) -> list[WorkerInfo]:
        return [_worker_of(row) for row in await self._read("workers_seen", since=since)]

    async def schemas_seen(self, since: int) -> list[tuple[WorkerInfo, dict[str, str]]]:
        """The workers seen since then, each with what it accepts: a fingerprint for each job that it has told of."""
        rows = await self._read("schemas_seen", since=since)
        return [(_worker_of(row), _told(row[-1]) if row[-1] is not None else {}) for row in rows]

    # Retention

    async def prunable(self, state: State, before: int, after: tuple[int, int], count: int) -> list[Old]:
        """Runs that ended in a state before a time, by their end, from behind such a place on."""
        rows = await self._read("prunable", state=state.value, before=before, at=after[0], seq=after[1], count=count)
        return [Old(seq, at, bool(needed)) for seq, at, needed in rows]

    async def prunable_own(self, before: int, read: int, until: int, after: tuple[int, int], count: int) -> list[Old]:
        """Runs whose own time was over before a time. Those that ended after `read` are needed, unless it was over before `until`."""
        at, seq = after
        rows = await self._read("prunable_own", before=before, read=read, until=until, at=at, seq=seq, count=count)
        return [Old(seq, at, bool(needed)) for seq, at, needed in rows]

    async def unlocked_old(self, ids: Sequence[int]) -> list[int]:
        """Those of these runs that can be removed without waiting for anybody."""
        return [seq for (seq,) in (await self._batch("probe", Statement("unlocked_old", {"ids": pack(ids)})))[0]]

    async def prune(self, ids: Iterable[int], now: int, *, own: bool = False) -> None:
        """Remove these runs and what belongs to them; Conflict when one of them is needed again. `own`: each has a time of its own."""
        values: dict[str, Value] = {"ids": pack(sorted(ids)), "now": now}
        await self._batch("prune", *(Statement(name, values) for name in _PRUNE if own or name != "note_shortest"))

    async def tidy(self, most: int, share: float) -> bool:
        """Remove dead rows where the database keeps them, if there are more than that many and that share of all."""
        dead = await self._read("dead_runs")
        if not dead or dead[0][0] <= most + share * dead[0][1]:
            return False
        await self._read("vacuum_runs")
        return True

    async def drop_expired_keys(self, now: int, count: int) -> int:
        """How many of the keys whose time is over were dropped; those that somebody has locked stay."""
        expired = await self._read("expired_keys", now=now, count=count)
        dropped = (await self._batch("drop_keys", Statement("drop_keys", {"r": pack(expired), "now": now})))[0] if expired else ()
        return len(dropped)


def _lock_groups(ids: str) -> Statement:
    """Ahead of the statements that end runs: those who end members of the same group do so one after the other."""
    return Statement("lock_groups", {"ids": ids})


def _letting_go(statements: list[Statement], ids: str, count: int, limited: bool) -> list[Statement]:
    """The same, with what these runs occupied let go of; only where anything is limited at all."""
    return [order.before_letting_go(ids), *statements, *order.let_go(ids, count)] if limited else statements


def _written(statements: Sequence[Statement], answers: Sequence[Sequence[Row]], moving: str) -> Written:
    by_name = {asked.name: rows for asked, rows in zip(statements, answers, strict=True)}
    released = _released(statements, answers) + [Ready(queue, 0) for (queue,) in by_name.get("unpark", ())]
    return Written(_seqs(by_name[moving]), released, frozenset(key for (key,) in by_name.get("free", ())))


def _released(statements: Sequence[Statement], answers: Sequence[Sequence[Row]]) -> list[Ready]:
    """What the statements of a batch let go that had waited for other runs."""
    return [Ready(*row) for asked, rows in zip(statements, answers, strict=True) if asked.name in _RELEASE for row in rows]


def _winners(rows: Iterable[Row]) -> dict[tuple[str, str], Winner]:
    return {(scope, key): Winner(run, digest, seq is not None, bool(held)) for scope, key, run, digest, seq, held in rows}


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else msgspec.json.decode(text, type=tuple[str, ...])


def _changed(change: Change) -> list[Any]:
    after = change.after
    return [after.seq, *_written_back(after), after.lease, change.lapsed]


def _closed(change: Change) -> list[Any]:
    """The attempt that a move closed, as it will be remembered."""
    before, after = change.before, change.after
    returned = after.burnt == before.burnt
    outcome = "returned" if returned else "lapsed" if change.move == "lapse" else "failed"
    started_at = before.started_at if before.started_at is not None or outcome == "lapsed" else before.claimed_at
    error = None if after.error is before.error else error_text(after.error)  # one that was only given back has none of its own
    who = (before.seq, before.attempt, before.current_attempt, before.retry_of)
    return [*who, outcome, before.worker, before.token, before.claimed_at, started_at, error, after.state]


def _journaled(change: Change) -> tuple[Any, ...]:
    before, queue = change.before, change.after.queue
    return before.seq, change.move, before.attempt, before.worker, change.detail, before.queue if before.queue != queue else None
