"""Looking at runs: one, a page of them, their history, and why one does not run."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass.durations import span
from windlass.engine import checks
from windlass.engine.core import Open, open_to, pruned
from windlass.engine.looking import Looking, all_needs
from windlass.errors import BadInput, Conflict, NotFound
from windlass.gates import Choice, Gate, Lack, lacks, needs, owner_of, parts_of, worker_needs
from windlass.machine import ENDED, LIVE, REFUSED_FOR, last_refused
from windlass.model import Attempt, Entry, Failure, Job, Lane, LogLine, Pause, Run, State, WorkerInfo
from windlass.store.claims import FIRST, Wanted
from windlass.store.rows import pack

_LOG = logging.getLogger("windlass.journal")

_LAST = 2**63 - 1
SETTLED = 1_000  # entries in one batch
_AHEAD = 1_000
_VIEWS = 8  # kinds of workers that are asked
_LONGEST_CURSOR = 200_000
_SNAPSHOT = re.compile(r"(\d{1,20}:\d{1,20}:(\d{1,20}(,\d{1,20})*)?)?")


class Page(Struct, frozen=True):
    """Some runs, and where the next page begins; None when there is none."""

    runs: list[Run]
    cursor: str | None


class Status(Struct, frozen=True):
    """What the application sees of a run: nothing of jobs' ids, schedules, leases or payloads."""

    id: str
    job: str
    state: State
    failures: int
    max_attempts: int
    scheduled_for: int
    started_at: int | None
    finished_at: int | None
    error: Failure | None

    @classmethod
    def of(cls, run: Run) -> Status:
        """The same of a run that was read."""
        times = run.scheduled_for, run.started_at, run.finished_at
        return cls(run.id, run.job, run.state, run.burnt, run.max_attempts, *times, run.error)


class Reason(Struct, frozen=True):
    """One thing that holds a run back, in words and as data."""

    code: str
    text: str
    data: dict[str, Any] = {}


class Moment(Struct, frozen=True):
    """A run, and what those who watch it have not seen yet."""

    run: Run
    entries: list[Entry]
    lines: list[LogLine]


class Tail(Struct, frozen=True):
    """Entries of all runs, each once, the cursor behind them, and those behind each of them."""

    entries: list[Entry]
    cursor: str
    ended: bool  # that was all there is up to now, or up to where it was asked for
    _window: tuple[str, str]
    _places: list[tuple[int, int]]

    def cursor_at(self, index: int) -> str:
        """The cursor behind one of the entries: whoever goes on from there gets those after it, and no other."""
        seen, upto = self._window
        entry, xid = self._places[index]
        return _encoded(["tail", seen, upto, xid, entry])

    def is_after(self, index: int, end: str) -> bool:
        """Whether one of the entries was committed after `tail_end` gave a cursor."""
        entry, xid = self._places[index]
        last, oldest, coming, running = _horizon(end)
        return entry > last if last is not None else xid >= coming or (xid >= oldest and xid in running)


class _List(NamedTuple):
    """A way to list runs that has an index: the statement, and the columns its cursor holds, from the far end."""

    statement: str
    keys: tuple[str, ...]
    start: tuple[int, ...]
    fields: tuple[str, ...]


_NEWEST = _List("list_newest", ("seq",), (_LAST,), ("seq",))
_JOB = _List("list_job", ("seq",), (_LAST,), ("seq",))
_ENDED = _List("list_ended", ("at", "seq"), (_LAST, _LAST), ("finished_at", "seq"))
_JOB_ENDED = _List("list_job_ended", ("at", "seq"), (_LAST, _LAST), ("finished_at", "seq"))
_SCHEDULED = _List("list_scheduled", ("at", "seq"), (0, 0), ("due_at", "seq"))
_WAITING = _List("list_waiting", ("seq",), (0,), ("seq",))
_LIVE = _List("list_live", ("at", "seq"), (0, 0), ("look_at", "seq"))

LISTS: Mapping[tuple[str, ...], str] = {
    (): "all runs, newest first",
    ("job",): "the runs of a job, newest first",
    ("state",): "the runs in a state; queued ones in the order of their queue, ended ones latest first",
    ("job", "state"): "the ended or queued runs of a job",
    ("queue", "state"): "the queued runs of a queue, in its order",
    ("job", "queue", "state"): "the queued runs of a job in a queue, in its order",
}
"""The filters that can be combined, each of which has its index."""


class Reading(Looking):
    """The verbs that change nothing."""

    async def status(self, run_id: str) -> Status:
        """How a run is doing, for those who have only its id."""
        return Status.of(await self.get(run_id))

    async def jobs(self, *, after: str = "", count: int = 100) -> list[Job]:
        """Definitions by name."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.name(after, "A job's name")
        return await self.records.jobs_after(after, count)

    async def find_job(self, name: str) -> Job | None:
        """One definition, if there is one."""
        return next(iter(await self.records.jobs_named([checks.name(name, "A job's name")])), None)

    async def get_job(self, name: str) -> Job:
        """One definition, with what it takes."""
        if (job := await self.find_job(name)) is not None:
            return await self._with_takes(job)
        raise NotFound(f"There is no job {name!r}.", hint="`windlass jobs` shows those there are.")

    async def _with_takes(self, job: Job) -> Job:
        texts = await self.records.documents([(job.name, job.schema)]) if job.schema is not None else {}
        return replace(job, takes=msgspec.json.decode(texts[job.schema])) if job.schema in texts else job

    async def attempts(self, run_id: str) -> list[Attempt]:
        """All attempts of a run, oldest first; the last one is the run's own."""
        run = await self.get(run_id)
        return [*await self.records.attempts(run), _current(run)]

    async def history(self, run_id: str, *, after: int = 0, count: int = 1_000) -> list[Entry]:
        """Every change of state of a run, from the beginning or behind a revision."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.integer(after, "after", 0, _LAST)
        return await self.records.history(await self.get(run_id), after, count)

    async def moment(self, run: Run, *, rev: int, line: tuple[int, int], count: int = 100) -> Moment:
        """How a run is now, what it became behind a revision, and what was written behind a line, all at one moment."""
        checks.integer(count, "count", 1, self.limits.page)
        now, entries, lines = await self.records.moment(run, rev, line, count)
        if now is None:
            raise pruned(run.id)
        return Moment(now, entries, lines)

    async def tail(self, cursor: str | None = None, *, count: int = 500, until: str | None = None) -> Tail:
        """Every entry of the journal once, whatever the order of commits; begins at the beginning without a cursor.

        With `until`, the cursor of a tail that had ended, nothing that was not read there.
        """
        checks.integer(count, "count", 1, self.limits.page)
        seen, upto, xid, entry = _tail_place(cursor)
        end, _, _, last = _tail_place(until) if until is not None else ("", "", 0, _LAST)
        begun = bool(upto)
        if not begun:
            upto, xid, entry = end or await self.records.snapshot() or "", 0, entry if not seen else 0
        rows = [] if upto and upto == seen else await self.records.tail(seen or "1:1:", upto or None, xid, entry, last, count)
        if begun and not rows:  # nothing was left of it; what is new is behind it
            return await self.tail(_encoded(["tail", upto, "", 0, 0]), count=count, until=until)
        window, places = (seen, upto), [(row[0], row[1]) for row in rows]
        ended = len(rows) < count and (not end or upto == end)
        if rows:
            entry, xid = places[-1]
        if upto and len(rows) < count:
            seen, upto = upto, ""  # the window is read to its end; the next one begins where it ended
        return Tail([row[2] for row in rows], _encoded(["tail", seen, upto, xid, entry]), ended, window, places)

    async def tail_end(self) -> str:
        """The cursor behind everything that is there now."""
        return _encoded(["tail", await self.records.snapshot() or "", "", 0, await self.records.last_entry()])

    async def follow(self, name: str, *, count: int = 500, whole: bool = False) -> tuple[Tail, int]:
        """What a follower has not read yet, and the revision of its place. One that is new begins with what comes next, or reads it all."""
        place = await self.records.follower(name)
        if place is None:
            begins = (_encoded(["tail", "", "", 0, 0]), 0) if whole else (await self.tail_end(), self.clock.now())
            await self.records.begin_tail(name, *begins)
            place = await self.records.follower(name)
        cursor, rev = place or ("", 0)
        tail = await self.tail(cursor, count=count)
        if not tail.entries and ahead(cursor, tail.cursor):
            await self._begin_again(name, rev, tail.cursor)
        return tail, rev

    async def _begin_again(self, name: str, rev: int, end: str) -> None:
        """A logical copy that was restored on another server: its transactions count from elsewhere, and nothing would ever seem new."""
        _LOG.warning("The journal is a copy of another server's. %s goes on from now; what was not read there yet is left out.", name)
        while await self.records.settle_journal(SETTLED):
            pass  # else its entries would seem new when this server has counted as far
        with suppress(Conflict):  # another process was first
            await self.records.advance_tail("begin_again", name, (rev, end, self.clock.now()), ())

    async def runs(
        self,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        cursor: str | None = None,
        count: int = 100,
    ) -> Page:
        """A page of runs by one of the filters of `LISTS`. A run of which more than 4 KiB are left out is a `Listed`, with the sizes."""
        checks.integer(count, "count", 1, self.limits.page)
        for name in (job, queue):
            checks.names(None if name is None else (name,), "A name")
        given = {"job": job, "queue": queue, "state": None if state is None else _state(state)}
        said = {name: value for name, value in given.items() if value is not None}
        if said.get("state") == State.QUEUED:
            return await self._list_queued(job, queue, cursor, count)
        chosen = _chosen(said)
        place = _place(cursor, [chosen.statement, *said.values()], len(chosen.keys)) or list(chosen.start)
        values = {name: str(value) for name, value in said.items() if chosen not in (_LIVE, _SCHEDULED, _WAITING)}
        rows = await self.records.page(chosen.statement, **values, **dict(zip(chosen.keys, place, strict=True)), count=count)
        runs = [run for run in rows if chosen is not _LIVE or run.state == said["state"]]
        end = [getattr(rows[-1], field) for field in chosen.fields] if len(rows) == count else None
        return Page(runs, _encoded([chosen.statement, *said.values(), *end]) if end else None)

    async def _list_queued(self, job: str | None, queue: str | None, cursor: str | None, count: int) -> Page:
        """The queued runs in the order of the queue: what a claim would look at."""
        head = ["queued", job, queue]
        band, position, seq = _place(cursor, head, 3) or FIRST
        lanes = await self._lanes(lambda lane: job in (None, lane.job) and queue in (None, lane.queue))
        parked = [-lane for lane in lanes]
        look = await self.records.look([Wanted([*lanes, *parked], (band, position, seq), count)])
        heads = look.views[0].heads
        found = {run.seq: run for run in await self.records.page("list_seqs", ids=pack([item.seq for item in heads]))}
        runs = [found[item.seq] for item in heads if item.seq in found]
        last = heads[-1] if len(heads) == count else None
        return Page(runs, _encoded([*head, last.band, last.position, last.seq]) if last else None)

    async def _lanes(self, wanted: Any) -> list[int]:
        await self.refresh_lanes()
        return [lane.id for lane in self.lanes.all if wanted(lane)]

    async def why(self, run_id: str) -> list[Reason]:
        """Everything that holds a run back now; empty for one that a suitable worker would get with its next claim."""
        run = await self.get(run_id)
        match run.state:
            case State.WAITING:
                return [*await self._why_waiting(run), *await self._why_paused(run)]
            case State.SCHEDULED:
                due = Reason("not_due", f"It is due in {span(max(0, run.due_at - self.clock.now()))}.", {"due_at": run.due_at})
                return [due, *await self._why_refused(run), *await self._why_paused(run)]
            case State.QUEUED:
                reasons = [*await self._why_paused(run), *await self._why_queued(run)]
                return [*await self._why_refused(run), *reasons] if reasons else []
            case _ if run.state in LIVE:
                held = Reason("held", f"Worker {run.worker} has it.", {"worker": run.worker, "lease_until": run.lease_until})
                return [held, *_lease_over(run, self.clock.now())]
            case _:
                return [Reason("ended", f"It has ended: {run.state}.", {"state": run.state, "reason": run.reason})]

    async def _why_waiting(self, run: Run) -> list[Reason]:
        if (group := await self.records.callback_group(run.id)) is not None:
            left = group.total - group.succeeded - group.failed - group.cancelled
            text = f"It is called at the end of group {group.id}, of which {left} of {group.total} have not ended."
            return [Reason("waits_for_group", text, {"group": group.id, "left": left, "total": group.total})]
        before = await self.records.predecessors(run.seq, 100)
        reasons = [
            Reason("waits_for", f"It waits for run {other}, which is {state}.", {"run": other, "state": state})
            for other, state, _ in before
            if state not in ENDED
        ]
        if not reasons and len(before) < 100:
            return [Reason("unsettled", "What it waits for has ended; the next sweep settles what becomes of it.", {})]
        return reasons

    async def _why_refused(self, run: Run) -> list[Reason]:
        """That its payload does not fit the code of some workers, if the attempt before was refused for it."""
        refused = last_refused(run)
        if refused is None:
            return []
        now, lane = self.clock.now(), await self.lane_of(run)
        alive = await self.records.schemas_seen(now - self.limits.worker_silence)
        told = {worker.name: told.get(run.job) for worker, told in alive if open_to(lane, worker)}
        others = sorted(name for name, schema in told.items() if schema not in refused.schemas)
        until = refused.since + REFUSED_FOR
        times = "once" if refused.count == 1 else f"{refused.count} times in {span(max(0, now - refused.since))}"
        text = f"Its payload does not fit the code of worker {refused.worker} (schema {refused.schemas[-1]}) and was refused {times}. "
        if others:
            text += f"{len(others)} of {len(told)} live workers that take it may have code that it fits ({', '.join(others[:_VIEWS])}). "
        else:
            text += "No live worker has other code. "
        text += f"It fails with the next refusal after {span(max(0, until - now))}, or when all live workers have refused it."
        data = {"schemas": refused.schemas, "count": refused.count, "since": refused.since, "until": until, "workers": told}
        return [Reason("refused", text, data)]

    async def _why_paused(self, run: Run) -> list[Reason]:
        await self.refresh_controls()
        return [_paused(pause) for pause in self.controls.paused(await self.lane_of(run))]

    async def _why_queued(self, run: Run) -> list[Reason]:
        """What a claim of the worker that would reach it first meets before it."""
        await self.refresh_lanes()
        lane, now = await self.lane_of(run), self.clock.now()
        alive = await self.records.workers_seen(now - self.limits.worker_silence)
        able = [worker for worker in alive if open_to(lane, worker)]
        reasons = [] if able else [_no_worker(lane, alive)]
        shared = needs(lane.requires.uses, run.keys)
        own = {worker: worker_needs(lane.requires, run.keys, worker.name) for worker in able}
        gates = await self.gates_of({need.key for some in (shared, *own.values()) for need in some}, now, able)
        missing = lacks(shared, gates, frozenset())
        reasons += [await self._why_lacking(lack) for lack in missing]
        short = {worker: lacks(own[worker], gates, frozenset()) for worker in able}
        if able and all(short.values()):
            reasons += [await self._why_short(what, short) for what in _short_of(short)]
        if run.parked is not None and not missing:
            reasons.append(
                Reason("parked", "It was put aside until its key is free, and will be put back at once.", _gate_data(run.parked))
            )
        views = [await self._before(run, lanes, gates, Choice(now, worker)) for worker, lanes in self._ways(lane, short)]
        return [*reasons, *min(views, key=len, default=[])]

    def _ways(self, lane: Lane, short: Mapping[WorkerInfo, list[Lack]]) -> list[tuple[WorkerInfo | None, Open]]:
        """The workers whose claims may meet a run of a lane, those with room first, and the lanes that they may take from."""
        ways = dict[tuple[int | str, ...], tuple[WorkerInfo | None, Open]]()
        for worker in sorted(short, key=lambda worker: len(short[worker])):
            if any(lanes := self.open_lanes(worker)):
                alone = [worker.name] if any(one.requires.cores or one.requires.memory for one in lanes.limited) else []
                ways.setdefault((*lanes.plain, *(-one.id for one in lanes.limited), *alone), (worker, lanes))
        only = Open([], [lane]) if lane.requires.limited else Open([lane.id], [])
        return list(ways.values())[:_VIEWS] or [(None, only)]

    async def _before(self, run: Run, lanes: Open, gates: Mapping[str, Gate], choice: Choice) -> list[Reason]:
        """What of these lanes a claim would take, or keep something for, before it comes to a run."""
        seen = (await self.look(lanes, choice, FIRST, _AHEAD)).views[0].heads
        ahead = [head for head in seen if head.place < (run.band, run.position, run.seq)]
        candidates = await self.candidates(choice, ahead)
        choice.offer(candidates, len(candidates))
        reasons = []
        if number := len(choice.runs):
            more = " or more" if len(ahead) >= _AHEAD else ""
            reasons.append(Reason("behind", f"{number}{more} are ahead of it.", {"ahead": number}))
        wanted = all_needs((await self.lane_of(run)).requires, run.keys, choice)
        kept = [lack for lack in lacks(wanted, gates, choice.kept) if lack.why == "kept"]
        text = "{} is kept for a run ahead of it that needs more than is free."
        return reasons + [Reason("kept", text.format(_gate_name(lack.need.key)), _gate_data(lack.need.key)) for lack in kept]

    async def _why_short(self, what: str, short: Mapping[WorkerInfo, list[Lack]]) -> Reason:
        """That no worker which takes a run has enough of something free."""
        lacking = [(worker, lack) for worker, some in short.items() for lack in some if owner_of(lack.need.key)[0] == what]
        free = {worker.name: max(0, (lack.gate.resource.capacity or 0) - lack.gate.held) for worker, lack in lacking}
        worker, lack = max(lacking, key=lambda pair: free[pair[0].name])
        capacity, holders = lack.gate.resource.capacity, await self.records.holders(lack.gate.key, 10)
        text = f"It needs {_amount(what, lack.need.weight)}, and worker {worker.name} has {free[worker.name]:,} of {capacity:,} free"
        text += f" beside run {', run '.join(holder.run for holder in holders)}" if holders else ""
        text += f"; none of the {len(free):,} workers that are short of it has more" if len(free) > 1 else ""
        data = {"resource": what, "needs": lack.need.weight, "capacity": capacity, "worker": worker.name, "free": free[worker.name]}
        return Reason("worker_full", f"{text}.", {**data, "runs": [holder.run for holder in holders]})

    async def _why_lacking(self, lack: Lack) -> Reason:
        gate, need = lack.gate, lack.need
        what, data = _gate_name(gate.key), {**_gate_data(gate.key), "needs": need.weight, "capacity": gate.resource.capacity}
        if lack.why == "impossible":
            return Reason("impossible", f"It needs {need.weight} of {what}, which never has that much.", data)
        if lack.why == "rate":
            left = span(max(0, lack.until - self.clock.now()))
            return Reason("rate", f"The rate of {what} lets the next one in after {left}.", {**data, "until": lack.until})
        runs, slots = await self.records.holders(gate.key, 10), await self.records.slots_at(gate.key, 10)
        by = [f"run {holder.run}" for holder in runs] + [f"a direct call{f' of {slot.who}' if slot.who else ''}" for slot in slots]
        data |= {"held": gate.held, "runs": [holder.run for holder in runs], "slots": [slot.id for slot in slots]}
        if sum(holder.weight for holder in runs) + need.weight <= (gate.resource.capacity or 0):
            return Reason("reserved", f"{what} is kept for {', '.join(by)}.", data)
        return Reason("full", f"{gate.held} of {gate.resource.capacity} of {what} are occupied, by {', '.join(by) or 'nobody now'}.", data)


def _amount(what: str, number: int) -> str:
    return f"{number:,} MiB of memory" if what == "memory" else f"{number:,} core{'s' if number > 1 else ''}"


def _short_of(short: Mapping[WorkerInfo, list[Lack]]) -> list[str]:
    return sorted({owner_of(lack.need.key)[0] for some in short.values() for lack in some})


def _gate_data(key: str) -> dict[str, Any]:
    what, worker = owner_of(key)
    resource, value = parts_of(what)
    return {"resource": resource, "key": value} if worker is None else {"resource": what, "worker": worker}


def _gate_name(key: str) -> str:
    what, worker = owner_of(key)
    if worker is not None:
        return f"What is free of the {what} of worker {worker}"
    resource, value = parts_of(key)
    return repr(resource) if value is None else f"{resource!r} for {value!r}"


def _lease_over(run: Run, now: int) -> list[Reason]:
    if run.lease_until is None or run.lease_until > now or run.lease is None:
        return []
    text = (
        f"Its lease has been over for {span(now - run.lease_until)}. A worker or a hub on the store itself recovers it when it has run for "
        f"{span(run.lease)}, a burst when it stays for that long, and a new process of worker {run.worker} at once if the former is gone."
    )
    return [Reason("lease_over", text, {"worker": run.worker, "since": run.lease_until, "lease": run.lease})]


def _paused(pause: Pause) -> Reason:
    what = "Everything" if pause.scope == "system" else f"The {pause.scope} {pause.name!r}"
    said = f": {pause.reason}" if pause.reason else ""
    by = f" by {pause.who}" if pause.who else ""
    data = {"scope": pause.scope, "name": pause.name, "at": pause.at, "who": pause.who, "reason": pause.reason}
    return Reason("paused", f"{what} is paused{by}{said}.", data)


def _no_worker(lane: Lane, alive: Sequence[WorkerInfo]) -> Reason:
    data = {"job": lane.job, "queue": lane.queue, "tags": lane.requires.tags, "cores": lane.requires.cores, "memory": lane.requires.memory}
    if not alive:
        return Reason("no_worker", "No worker is running. Start one: windlass work MODULE:APP", data)
    wanted = f"job {lane.job!r} in queue {lane.queue!r}"
    text = f"None of the {len(alive)} live workers takes {wanted} with what it requires"
    light = replace(lane, requires=replace(lane.requires, cores=0, memory=0))
    others = [worker for worker in alive if open_to(light, worker)]
    for what in ("cores", "memory") if others else ():
        number, most = getattr(lane.requires, what), max(getattr(worker, what) for worker in others)
        text += f"; it needs {_amount(what, number)}, and none has more than {most:,}" if number > most else ""
    return Reason("no_worker", f"{text}.", data)


def _current(run: Run) -> Attempt:
    return Attempt(
        run.id, run.attempt, run.current_attempt, run.retry_of, run.state.value, run.worker, run.token,
        run.claimed_at, run.started_at, run.finished_at, run.error if run.finished_at is not None else None,
    )  # fmt: skip


def _state(value: State | str) -> State:
    try:
        return State(value)
    except ValueError:
        raise BadInput(f"There is no state {value!r:.40}.", hint=f"Use one of {', '.join(State)}.") from None


def _chosen(said: Mapping[str, str]) -> _List:
    """The list for these filters, or the error that names those there are."""
    names, state = tuple(said), said.get("state")
    if names == ():
        return _NEWEST
    if names == ("job",):
        return _JOB
    if state in ENDED and names in (("state",), ("job", "state")):
        return _ENDED if names == ("state",) else _JOB_ENDED
    if names == ("state",):
        return {State.SCHEDULED: _SCHEDULED, State.WAITING: _WAITING}.get(State(str(state)), _LIVE)
    raise BadInput(
        f"Runs cannot be listed by {' and '.join(f'{name}={value}' for name, value in said.items())}.",
        hint="There are: " + "; ".join(f"{' and '.join(filters) or 'no filter'} ({text})" for filters, text in LISTS.items()) + ".",
    )


def _encoded(parts: list[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def _forged() -> BadInput:
    return BadInput(
        "The cursor is not one of this list.", hint="Use the cursor of the page before, with the same filters, or none to begin again."
    )


def _decoded(cursor: Any) -> list[Any]:
    if not isinstance(cursor, str) or len(cursor) > _LONGEST_CURSOR:
        raise _forged()
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=list[Any])
    except (binascii.Error, UnicodeEncodeError, msgspec.DecodeError, RecursionError):
        raise _forged() from None


def _integers(parts: list[Any]) -> list[int]:
    if not all(type(part) is int and -_LAST - 1 <= part <= _LAST for part in parts):
        raise _forged()
    return parts


def _place(cursor: str | None, head: list[Any], keys: int) -> list[int] | None:
    """The place a cursor of this very list holds."""
    if cursor is None:
        return None
    parts = _decoded(cursor)
    if parts[: len(head)] != head or len(parts) != len(head) + keys:
        raise _forged()
    return _integers(parts[len(head) :])


def _tail_place(cursor: str | None) -> tuple[str, str, int, int]:
    if cursor is None:
        return "", "", 0, 0
    match _decoded(cursor):
        case ["tail", str(seen), str(upto), int(xid), int(entry)] if _snapshot(seen) and _snapshot(upto):
            _integers([xid, entry])
            return seen, upto, xid, entry
        case _:
            raise _forged()


@lru_cache(maxsize=1024)
def _horizon(end: str) -> tuple[int | None, int, int, frozenset[int]]:
    """What had been committed at an end: entries up to a last one, or what its snapshot says of transactions."""
    snapshot, _, _, last = _tail_place(end)
    if not snapshot:
        return last, 0, 0, frozenset()
    oldest, coming, running = snapshot.split(":")
    return None, int(oldest), int(coming), frozenset(map(int, filter(None, running.split(","))))


def _snapshot(text: str) -> bool:
    return _SNAPSHOT.fullmatch(text) is not None


def check_tail(cursor: str) -> None:
    """Refuse what was never a cursor of the journal."""
    _tail_place(cursor)


def ahead(cursor: str, end: str) -> bool:
    """Whether a cursor stands where the journal, read to its end, has not been: it is of another one, or an older copy was restored."""
    seen, upto, _, entry = _tail_place(cursor)
    at_end, _, _, last = _tail_place(end)
    newest = upto or seen
    if not newest:
        return entry > (0 if at_end else last)  # only the beginning is the same everywhere
    if not at_end:
        return True
    return int(newest.split(":")[1]) > int(at_end.split(":")[1])
