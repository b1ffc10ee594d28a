"""Handing out runs: one look and one batch, for one claim or for many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.core import LEASE, Stamp
from windlass.engine.looking import Looking
from windlass.errors import AWAY, BadInput, Conflict, LimitReached, OutcomeUnknown, StoreError, WindlassError, in_doubt
from windlass.gates import Choice
from windlass.model import Run, WorkerInfo
from windlass.store.base import Value
from windlass.store.claims import FIRST, Grab, Handed, Head, Look, Moment, Wanted
from windlass.store.order import within
from windlass.store.rows import pack

WORKERS = 10_000  # that are known, the living and those seen within a day
WIDEST = 1_024


class Ask:
    """What a worker asks for, and what it has got of it so far."""

    __slots__ = ("before", "call", "doubt", "lease", "left", "over", "room", "runs", "slot", "token", "worker")

    def __init__(self, worker: WorkerInfo, count: int, lease: int, token: str, call: str | None, most: int) -> None:
        self.worker, self.lease, self.token, self.call = worker, lease, token, call
        self.before: Callable[[], Awaitable[None]] | None = None  # to be awaited between the look and the write
        self.slot = 0 if worker.slots == 1 else None
        self.room = 1 if worker.slots == 1 else count
        self.left = most  # bytes that its answer may still bring
        self.runs: list[Run] = []
        self.over = False  # there is no more for it
        self.doubt: OutcomeUnknown | None = None  # it may come to hold more than is known

    @property
    def wants(self) -> int:
        return 0 if self.over or self.left <= 0 else self.room - len(self.runs)

    def add(self, run: Run) -> None:
        """It has got a run. One that does not fit into the answer any more is the last."""
        self.runs.append(run)
        self.left -= len(run.payload)

    def grab(self) -> Grab:
        return Grab(self.token, self.call, self.worker.name, self.slot, self.lease, self.wants)


class _Walk:
    """How far those who may take from the same lanes have come in them."""

    def __init__(self, lanes: Sequence[int]) -> None:
        self.lanes, self.after, self.width = lanes, FIRST, 1
        self.asks: list[Ask] = []

    def wanted(self, all_want: int) -> Wanted:
        """Enough for all, since others take from these lanes too."""
        own = sum(ask.wants for ask in self.asks)
        self.width = max(own, min(max(self.width, all_want), WIDEST))
        return Wanted(self.lanes, self.after, self.width)


class Claiming(Looking):
    """The verbs by which workers get runs."""

    async def register(
        self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None, schemas: Mapping[str, str] | None = None
    ) -> None:
        """Make a worker known, and seen now; what it says replaces what it said before, unless it says nothing about itself.

        `schemas` has a fingerprint of what its code accepts for each job, so that a payload which does not fit there is offered to
        workers with other code.
        """
        self._check_worker(worker)
        accepted = None if schemas is None else pack(checks.schemas(schemas, self.limits))
        if await self.records.workers_besides(worker.name) >= WORKERS:
            raise LimitReached(
                f"There are {WORKERS:,} workers already.", hint="Start them under names that last; silent ones are forgotten after a day."
            )
        text = None if about is None else json.encode(dict(about), most=self.limits.about, what="What the worker tells about itself")
        await self.records.register(worker, text, accepted, self.clock.now())

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """What a worker still holds of a claim under this token, whose answer it did not get."""
        return await self.records.held(checks.identifier(token, "The token"), checks.name(worker.name, "A worker's name"))

    async def claim(
        self,
        worker: WorkerInfo,
        *,
        count: int = 1,
        lease: int = LEASE,
        nonce: str | None = None,
        token: str | None = None,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Run]:
        """Take up to `count` runs in queue order, each held under a fresh token for `lease` milliseconds.

        Fewer are given where nothing else that this worker may take was queued, or once their payloads are `Limits.batch` bytes together;
        none means that nothing was queued. A worker with one slot gets nothing while it holds a run. With a nonce the claim can be
        asked again: the answer is then what this worker still holds of it. A caller that chooses the token itself, 128 random bits
        never used before, can ask `recover` for it instead. After an OutcomeUnknown that is settled it can be asked again under
        either; else a claim without a nonce may still come to hold runs under its token.

        `before` is awaited between the look and the write, for a worker with one slot: its report, sent meanwhile, frees the slot, and
        both are one commit where the engine `commits_together`.
        """
        ask = self.asking(worker, count=count, lease=lease, nonce=nonce, token=token)
        ask.before = before
        (answer,) = await self.claim_many([ask])
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    def asking(self, worker: WorkerInfo, *, count: int = 1, lease: int = LEASE, nonce: str | None = None, token: str | None = None) -> Ask:
        """A claim to be made together with others; see `claim`."""
        self._check_claim(worker, count, lease, nonce, token)
        return Ask(worker, count, lease, nonce or token or self.clock.nonce(), self.clock.nonce() if nonce else None, self.limits.batch)

    def can_join(self, ask: Ask) -> bool:
        """Whether a claim is made together with others: what runs occupy is counted for one claim at a time."""
        return not self.open_lanes(ask.worker).limited

    async def claim_many(self, asks: Sequence[Ask]) -> list[list[Run] | WindlassError]:
        """Many claims by one look and one batch, one answer for each. No run is given twice, and nobody is passed by."""
        checks.count(asks, "claims", self.limits.claim)
        _once_for_each_slot(asks)
        error: StoreError | None = None
        try:
            await self._claim_all(asks)
        except StoreError as trouble:
            error = trouble  # what was taken before it is handed out all the same
        self.hints.taken([name for ask in asks for run in ask.runs for name in (run.id, run.seq)])
        return [ask.doubt or (ask.runs if error is None or ask.runs or not ask.wants else error) for ask in asks]

    async def _claim_all(self, asks: Sequence[Ask]) -> None:
        rev, walks = self.controls.rev, dict[tuple[int, ...], _Walk]()
        while wanting := [ask for ask in asks if ask.wants]:
            if rev != self.controls.rev:  # what was seen under the old ones counts no more
                rev, walks = self.controls.rev, {}
            for walk in walks.values():
                walk.asks = []
            limited = []
            for ask in wanting:
                lanes = self.open_lanes(ask.worker)
                if lanes.limited:
                    limited.append(ask)
                else:
                    walks.setdefault(tuple(lanes.plain), _Walk(lanes.plain)).asks.append(ask)
            if len(limited) < len(wanting):
                await self._claim_plain([walk for walk in walks.values() if walk.asks])
            for ask in limited:
                await self._claim_within(ask)

    async def _claim_plain(self, walks: Sequence[_Walk]) -> None:
        """One look and one batch for all. Whoever has not got enough by then is served in the next turn, behind what was seen."""
        known, rev = self.lanes.last, self.controls.rev
        asks = [ask for walk in walks for ask in walk.asks]
        all_want = sum(ask.wants for ask in asks)
        look = await self.records.look([walk.wanted(all_want) for walk in walks], *_names(asks))
        if await self._changed(look, known, rev):
            return
        await self._drop(asks, look.calls, look.busy)
        going = [(walk, view) for walk, view in zip(walks, look.views, strict=True) if view.heads and any(ask.wants for ask in walk.asks)]
        chosen = [(view.heads, [ask.grab() for ask in walk.asks if ask.wants]) for walk, view in going]
        got = await self._take([ask for walk, _ in going for ask in walk.asks if ask.wants], chosen, rev) if going else set()
        for walk, view in going:
            if view.end is not None:
                # Others took what was seen: read on, wider each time, until there is enough or nothing is left.
                walk.after, walk.width = view.end, min(walk.width * 2, WIDEST)
            elif any(ask.token in got for ask in walk.asks) or not await self.stale():
                _end(walk.asks)
        _end(ask for walk, view in zip(walks, look.views, strict=True) if not view.heads for ask in walk.asks)

    async def _take(self, asks: Sequence[Ask], chosen: Sequence[tuple[Sequence[Head], Sequence[Grab]]], rev: int) -> set[str]:
        """Hand these runs out; the answer has the tokens under which some were."""
        by_token = {ask.token: ask for ask in reversed(asks)}  # the first of those that are the same claim
        await _let_others_first(asks)
        stamp = self.stamp()
        try:
            taken = await self._corrected(await self.records.claim(chosen, self._moment(rev, stamp.now)), stamp)
        except OutcomeUnknown as unknown:
            taken = await self._handed_out([*by_token.values()], [head for heads, _ in chosen for head in heads], unknown)
            if not taken:
                raise  # they are still there, and can be asked for again
        except Conflict:  # a worker's one slot was taken by another claim of the same name
            return await self._take_alone(asks)
        for run in taken:
            by_token[run.token or ""].add(run)
        doubted = [ask for ask in asks if ask.call is not None and not ask.runs]
        await self._drop(doubted, await self.records.calls_under([ask.token for ask in doubted]))
        return {run.token or "" for run in taken}

    async def _take_alone(self, asks: Sequence[Ask]) -> set[str]:
        if len(asks) == 1:
            _end(asks)
            return set()
        for ask in asks:
            await self._claim_all([ask])
        return {ask.token for ask in asks if ask.runs}

    async def _claim_within(self, ask: Ask) -> None:
        """One claim among runs that occupy something, until it has enough, nothing is left, or lanes or controls are others."""
        rev, choice, after, width = self.controls.rev, Choice(self.clock.now(), ask.worker), FIRST, ask.wants
        while ask.wants and rev == self.controls.rev:
            # Another claim may learn of new lanes while this one looks into the old ones.
            known = self.lanes.last
            look = await self.look(self.open_lanes(ask.worker), choice, after, width, *_names([ask]))
            if await self._changed(look, known, rev):
                return
            await self._drop([ask], look.calls, look.busy)
            (view,) = look.views
            if not ask.wants or not view.heads:
                ask.over = True
                return
            got = await self._take_within(choice, view.heads, ask, rev)
            if not got and ask.call is not None:
                await self._drop([ask], await self.records.calls_under([ask.token]))
            if view.end is not None:
                after, width = view.end, min(width * 2, WIDEST)
            elif got or not await self.stale():
                ask.over = True

    async def _take_within(self, choice: Choice, heads: Sequence[Head], ask: Ask, rev: int) -> bool:
        """Choose from an unlocked read; one batch then locks, counts again, and drops what no longer fits."""
        before = len(ask.runs)
        lost_once: set[int] = set()
        while heads and ask.wants:
            seen = choice.offer(await self.candidates(choice, heads), ask.wants)
            chosen = {candidate.seq for candidate in choice.runs}
            if chosen or choice.parked or choice.later:
                sets = within(choice.taken, choice.parked, choice.later, choice.gates)
                got = await self._take_fitting([head for head in heads if head.seq in chosen], sets, ask, rev)
                for run in got:
                    ask.add(run)
                chosen -= {run.seq for run in got}
            if chosen:  # others were faster: what is occupied is read again, and what may only have lost its room is offered once more
                choice.gates.clear()
            again = [head for head in heads[:seen] if head.seq in chosen - lost_once]
            lost_once |= chosen
            heads = [*again, *heads[seen:]]
        return len(ask.runs) > before

    async def _take_fitting(self, heads: Sequence[Head], sets: Mapping[str, Value], ask: Ask, rev: int) -> list[Run]:
        await _let_others_first([ask])
        stamp = self.stamp()
        try:
            return await self._corrected(await self.records.claim_within(heads, sets, ask.grab(), self._moment(rev, stamp.now)), stamp)
        except OutcomeUnknown as unknown:
            return await self._handed_out([ask], heads, unknown) if heads else []
        except Conflict:
            return []  # the worker's one slot was taken by another claim of the same name

    async def _handed_out(self, asks: Sequence[Ask], heads: Iterable[Head], unknown: OutcomeUnknown) -> list[Run]:
        """What of these was handed out, when only the store knows. Nothing is an answer only where nothing can come later."""
        seen = {head.seq for head in heads}
        for ask in asks:
            ask.doubt = unknown
        with in_doubt(unknown):
            runs = [run for ask in asks for run in await self.records.held(ask.token, ask.worker.name) if run.seq in seen]
        if not runs and not unknown.settled:
            raise unknown
        for ask in asks:
            ask.doubt = None
        return runs

    async def _corrected(self, handed: Handed, stamp: Stamp) -> list[Run]:
        """Runs just handed out, with leases that begin now where they were written with a time that was wrong."""
        if handed.server is None or not self.mistaken(stamp, handed.server, min(run.lease or 0 for run in handed.runs)):
            return handed.runs
        now = self.clock.now()
        with suppress(*AWAY):  # then their first beat corrects the leases
            await self.records.correct_claims(handed.runs, now)
        return [replace(run, claimed_at=max(now, run.created_at), lease_until=now + (run.lease or 0)) for run in handed.runs]

    def _moment(self, rev: int, now: int) -> Moment:
        return Moment(self.clock.nonce(), rev, now, now + self.limits.keep_claim_nonces)

    async def _changed(self, look: Look, known: int, rev: int) -> bool:
        """Whether there were newer lanes or controls than those by which was looked; they are known now. What is taken from is in use."""
        if look.newest > known:
            await self.refresh_lanes()
        elif look.controls != rev:
            await self.refresh_controls()
        else:
            return not await self.use(head.lane for view in look.views for head in view.heads)
        return True

    async def _drop(self, asks: Iterable[Ask], calls: Mapping[str, str], busy: Collection[str] = ()) -> None:
        """Give those whose nonce another call has used what it got, and those whose one slot is taken nothing."""
        for ask in asks:
            if ask.call is not None and calls.get(ask.token, ask.call) != ask.call:
                ask.runs, ask.over = await self.records.held(ask.token, ask.worker.name), True
            elif ask.slot is not None and ask.worker.name in busy and ask.before is None:
                ask.over = True

    def _check_worker(self, worker: WorkerInfo) -> None:
        checks.name(worker.name, "A worker's name")
        checks.names(worker.queues, "A queue's name")
        checks.names(worker.jobs, "A job's name")
        checks.names(worker.tags, "A tag")
        checks.integer(worker.slots, "slots", 1, 2**20)
        checks.integer(worker.cores, "cores", 0, 2**20)
        checks.integer(worker.memory, "memory", 0, 2**40)

    def _check_claim(self, worker: WorkerInfo, count: int, lease: int, *secrets: str | None) -> None:
        self._check_worker(worker)
        checks.integer(count, "count", 1, self.limits.claim)
        checks.integer(lease, "lease", 1, self.limits.lease)
        for secret in secrets:
            if secret is not None and len(checks.identifier(secret, "The nonce")) < 22:
                raise BadInput(
                    "A claim's nonce has at least 22 characters.", hint="Send 128 random bits as base64url; never use one twice."
                )


def _once_for_each_slot(asks: Iterable[Ask]) -> None:
    """Of several claims for one slot the first is made; the others find it taken, or nothing to take."""
    seen: set[str] = set()
    for ask in asks:
        if ask.slot is not None:
            ask.over = ask.over or ask.worker.name in seen
            seen.add(ask.worker.name)


async def _let_others_first(asks: Iterable[Ask]) -> None:
    for ask in asks:
        before, ask.before = ask.before, None
        if before is not None:
            await before()


def _names(asks: Iterable[Ask]) -> tuple[set[str], set[str]]:
    """The workers with one slot, and the nonces."""
    singles = {ask.worker.name for ask in asks if ask.slot is not None}
    return singles, {ask.token for ask in asks if ask.call is not None}


def _end(asks: Iterable[Ask]) -> None:
    for ask in asks:
        ask.over = True
