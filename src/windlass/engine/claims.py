"""Claims: one read of candidates and one batch, for one claim or for many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from windlass.defaults import LEASE
from windlass.engine import checks
from windlass.engine.ground import Ground, Part, Stamp
from windlass.engine.heads import Heads
from windlass.engine.provision import Provision
from windlass.engine.workers import check_worker
from windlass.errors import TRANSIENT, BadInput, Conflict, OutcomeUnknown, StoreError, WindlassError, in_doubt
from windlass.limiters import Selector
from windlass.model import Run, WorkerInfo
from windlass.store.base import Value
from windlass.store.records.claims import FIRST, Candidates, ClaimStamp, ClaimTerms, HandedRuns, Head, Scan
from windlass.store.records.limiters import within

WIDEST = 1_024


class ClaimRequest:
    """A worker's claim request, and the runs claimed for it so far."""

    __slots__ = ("before", "call", "doubt", "lease", "left", "over", "room", "runs", "slot", "token", "worker")

    def __init__(self, worker: WorkerInfo, count: int, lease: int, token: str, call: str | None, limit: int) -> None:
        self.worker, self.lease, self.token, self.call = worker, lease, token, call
        self.before: Callable[[], Awaitable[None]] | None = None  # awaited between the read of candidates and the write
        self.slot = 0 if worker.slots == 1 else None
        self.room = 1 if worker.slots == 1 else count
        self.left = limit  # bytes of payload that fit into the rest of its answer
        self.runs: list[Run] = []
        self.over = False  # nothing more can be claimed for it
        self.doubt: OutcomeUnknown | None = None  # set when it may hold more runs than this process has read back

    @property
    def wants(self) -> int:
        return 0 if self.over or self.left <= 0 else self.room - len(self.runs)

    def add(self, run: Run) -> None:
        """Add a claimed run. The run that exceeds the size of the answer is the last one."""
        self.runs.append(run)
        self.left -= len(run.payload)

    def grab(self) -> ClaimTerms:
        return ClaimTerms(self.token, self.call, self.worker.name, self.slot, self.lease, self.wants)


class _Scan:
    """How far the requests that may take from the same lanes have read in them."""

    def __init__(self, lanes: Sequence[int]) -> None:
        self.lanes, self.after, self.width = lanes, FIRST, 1
        self.requests: list[ClaimRequest] = []

    def next_scan(self, all_want: int) -> Scan:
        """A scan wide enough for all requests, since other processes take from these lanes too."""
        own = sum(request.wants for request in self.requests)
        self.width = max(own, min(max(self.width, all_want), WIDEST))
        return Scan(self.lanes, self.after, self.width)


class Claims(Part):
    """The verbs by which workers claim runs."""

    def __init__(self, ground: Ground, heads: Heads, provision: Provision) -> None:
        super().__init__(ground)
        self._heads, self._provision = heads, provision

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """The runs that a worker still holds of a claim under this token, for a worker that did not receive the answer."""
        return await self.records.claims.held(checks.identifier(token, "The token"), checks.name(worker.name, "A worker's name"))

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

        Fewer are returned when nothing else that this worker may take was queued, or once their payloads are `Limits.batch` bytes together;
        none means that nothing was queued. A worker with one slot gets nothing while it holds a run. With a nonce the claim can be
        repeated: the answer is then what this worker still holds of it. A caller that chooses the token itself, 128 random bits
        never used before, can call `recover` with it instead. After an OutcomeUnknown that is settled the claim can be repeated under
        either; otherwise a claim without a nonce may still come to hold runs under its token.

        `before` is awaited between the read of candidates and the write, for a worker with one slot: its report, sent meanwhile, frees the
        slot, and both are one commit where the engine `commits_together`.
        """
        request = self.asking(worker, count=count, lease=lease, nonce=nonce, token=token)
        request.before = before
        (answer,) = await self.claim_many([request])
        if isinstance(answer, WindlassError):
            raise answer
        return answer

    def asking(
        self, worker: WorkerInfo, *, count: int = 1, lease: int = LEASE, nonce: str | None = None, token: str | None = None
    ) -> ClaimRequest:
        """A claim request to be batched with others; see `claim`."""
        self._check_claim(worker, count, lease, nonce, token)
        return ClaimRequest(
            worker, count, lease, nonce or token or self.clock.nonce(), self.clock.nonce() if nonce else None, self.limits.batch
        )

    def can_join(self, request: ClaimRequest) -> bool:
        """Whether a claim can be batched with others: runs that occupy resources are counted for one claim at a time."""
        return not self.ground.open_lanes(request.worker).limited

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[list[Run] | WindlassError]:
        """Many claims by one read and one batch, one answer for each. No run is handed out twice, and no request starves."""
        checks.count(requests, "claims", self.limits.claim)
        _once_for_each_slot(requests)
        error: StoreError | None = None
        try:
            await self._claim_all(requests)
        except StoreError as trouble:
            error = trouble  # runs that were claimed before the error are returned all the same
        self.ground.hints.taken([name for request in requests for run in request.runs for name in (run.id, run.seq)])
        return [request.doubt or (request.runs if error is None or request.runs or not request.wants else error) for request in requests]

    async def claim_head(self, request: ClaimRequest, head: Head, rev: int) -> None:
        """Claim this run for a request, if it is still queued in its lane, the controls are of this revision, and its limits admit it."""
        if self.ground.lanes.by_id[head.lane].requires.limited:
            got = await self._take_within(Selector(self.clock.now(), request.worker), [head], request, rev)
            if not got and request.call is not None:
                await self._drop([request], await self.records.claims.calls_under([request.token]))
        else:
            await self._take([request], [([head], [request.grab()])], rev)

    async def _claim_all(self, requests: Sequence[ClaimRequest]) -> None:
        rev, walks = self.ground.controls.rev, dict[tuple[int, ...], _Scan]()
        while wanting := [request for request in requests if request.wants]:
            if rev != self.ground.controls.rev:  # candidates read under older controls are void
                rev, walks = self.ground.controls.rev, {}
            for walk in walks.values():
                walk.requests = []
            limited = []
            for request in wanting:
                lanes = self.ground.open_lanes(request.worker)
                if lanes.limited:
                    limited.append(request)
                else:
                    walks.setdefault(tuple(lanes.plain), _Scan(lanes.plain)).requests.append(request)
            if len(limited) < len(wanting):
                await self._claim_plain([walk for walk in walks.values() if walk.requests])
            for request in limited:
                await self._claim_within(request)

    async def _claim_plain(self, walks: Sequence[_Scan]) -> None:
        """One read and one batch for all. A request that is still short is served in the next round, behind the candidates already read."""
        last_lane, rev = self.ground.lanes.last, self.ground.controls.rev
        requests = [request for walk in walks for request in walk.requests]
        all_want = sum(request.wants for request in requests)
        look = await self.records.claims.look([walk.next_scan(all_want) for walk in walks], *_names(requests))
        if await self._changed(look, last_lane, rev):
            return
        await self._drop(requests, look.calls, look.busy)
        pairs = [
            (walk, view)
            for walk, view in zip(walks, look.views, strict=True)
            if view.heads and any(request.wants for request in walk.requests)
        ]
        claims = [(view.heads, [request.grab() for request in walk.requests if request.wants]) for walk, view in pairs]
        got = (
            await self._take([request for walk, _ in pairs for request in walk.requests if request.wants], claims, rev) if pairs else set()
        )
        for walk, view in pairs:
            if view.end is not None:
                # Other processes claimed these candidates: read on, wider each time, until there is enough or nothing is left.
                walk.after, walk.width = view.end, min(walk.width * 2, WIDEST)
            elif any(request.token in got for request in walk.requests) or not await self.ground.stale():
                _end(walk.requests)
        _end(request for walk, view in zip(walks, look.views, strict=True) if not view.heads for request in walk.requests)

    async def _take(
        self, requests: Sequence[ClaimRequest], chosen: Sequence[tuple[Sequence[Head], Sequence[ClaimTerms]]], rev: int
    ) -> set[str]:
        """Claim these runs; returns the tokens that got any."""
        by_token = {request.token: request for request in reversed(requests)}  # the first of several requests of the same claim
        await _let_others_first(requests)
        stamp = self.ground.stamp()
        try:
            runs = await self._corrected(await self.records.claims.claim(chosen, self._moment(rev, stamp.now)), stamp)
        except OutcomeUnknown as unknown:
            runs = await self._handed_out([*by_token.values()], [head for heads, _ in chosen for head in heads], unknown)
            if not runs:
                raise  # the runs are still queued, and the claim can be repeated
        except Conflict:  # a worker's one slot was taken by another claim of the same name
            return await self._take_alone(requests)
        for run in runs:
            by_token[run.token or ""].add(run)
        unsure = [request for request in requests if request.call is not None and not request.runs]
        await self._drop(unsure, await self.records.claims.calls_under([request.token for request in unsure]))
        return {run.token or "" for run in runs}

    async def _take_alone(self, requests: Sequence[ClaimRequest]) -> set[str]:
        if len(requests) == 1:
            _end(requests)
            return set()
        for request in requests:
            await self._claim_all([request])
        return {request.token for request in requests if request.runs}

    async def _claim_within(self, request: ClaimRequest) -> None:
        """One claim among runs that occupy resources, until it has enough, nothing is left, or lanes or controls have changed."""
        rev, choice, after, width = self.ground.controls.rev, Selector(self.clock.now(), request.worker), FIRST, request.wants
        while request.wants and rev == self.ground.controls.rev:
            # Another claim may add new lanes while this one reads the old ones.
            last_lane = self.ground.lanes.last
            look = await self._heads.look(self.ground.open_lanes(request.worker), choice, after, width, *_names([request]))
            if await self._changed(look, last_lane, rev):
                return
            await self._drop([request], look.calls, look.busy)
            (view,) = look.views
            if not request.wants or not view.heads:
                request.over = True
                return
            got = await self._take_within(choice, view.heads, request, rev)
            if not got and request.call is not None:
                await self._drop([request], await self.records.claims.calls_under([request.token]))
            if view.end is not None:
                after, width = view.end, min(width * 2, WIDEST)
            elif got or not await self.ground.stale():
                request.over = True

    async def _take_within(self, choice: Selector, heads: Sequence[Head], request: ClaimRequest, rev: int) -> bool:
        """Choose from an unlocked read; one batch then locks, counts again, and drops what no longer fits."""
        before = len(request.runs)
        lost_once: set[int] = set()
        while heads and request.wants:
            examined = choice.offer(await self._heads.candidates(choice, heads), request.wants)
            chosen = {candidate.seq for candidate in choice.runs}
            if chosen or choice.parked or choice.later:
                sets = within(choice.taken, choice.parked, choice.later, choice.limiters)
                got = await self._take_fitting([head for head in heads if head.seq in chosen], sets, request, rev)
                for run in got:
                    request.add(run)
                chosen -= {run.seq for run in got}
            if chosen:  # other claims were faster: read the occupancy again, and offer runs that may only have lost their room once more
                choice.limiters.clear()
            again = [head for head in heads[:examined] if head.seq in chosen - lost_once]
            lost_once |= chosen
            heads = [*again, *heads[examined:]]
        return len(request.runs) > before

    async def _take_fitting(self, heads: Sequence[Head], sets: Mapping[str, Value], request: ClaimRequest, rev: int) -> list[Run]:
        await _let_others_first([request])
        stamp = self.ground.stamp()
        try:
            return await self._corrected(
                await self.records.claims.claim_within(heads, sets, request.grab(), self._moment(rev, stamp.now)), stamp
            )
        except OutcomeUnknown as unknown:
            return await self._handed_out([request], heads, unknown) if heads else []
        except Conflict:
            return []  # the worker's one slot was taken by another claim of the same name

    async def _handed_out(self, requests: Sequence[ClaimRequest], heads: Iterable[Head], unknown: OutcomeUnknown) -> list[Run]:
        """The runs handed out by a batch of unknown outcome, read from the store. Raises where they might still be committed later."""
        seqs = {head.seq for head in heads}
        for request in requests:
            request.doubt = unknown
        with in_doubt(unknown):
            runs = [
                run for request in requests for run in await self.records.claims.held(request.token, request.worker.name) if run.seq in seqs
            ]
        if not runs and not unknown.settled:
            raise unknown
        for request in requests:
            request.doubt = None
        return runs

    async def _corrected(self, claim: HandedRuns, stamp: Stamp) -> list[Run]:
        """Runs just handed out, with leases that begin now where they were written with a wrong time."""
        if claim.server is None or not self.ground.mistaken(stamp, claim.server, min(run.lease or 0 for run in claim.runs)):
            return claim.runs
        now = self.clock.now()
        with suppress(*TRANSIENT):  # otherwise their first heartbeat corrects the leases
            await self.records.claims.correct(claim.runs, now)
        return [replace(run, claimed_at=max(now, run.created_at), lease_until=now + (run.lease or 0)) for run in claim.runs]

    def _moment(self, rev: int, now: int) -> ClaimStamp:
        return ClaimStamp(self.clock.nonce(), rev, now, now + self.limits.keep_claim_nonces)

    async def _changed(self, look: Candidates, last_lane: int, rev: int) -> bool:
        """Whether lanes or controls are newer than this read was made with; then refreshes them, else notes the use of the lanes read."""
        if look.newest > last_lane:
            await self.ground.refresh_lanes()
        elif look.controls != rev:
            await self.ground.refresh_controls()
        else:
            return not await self._provision.use(head.lane for view in look.views for head in view.heads)
        return True

    async def _drop(self, requests: Iterable[ClaimRequest], calls: Mapping[str, str], busy: Collection[str] = ()) -> None:
        """Requests whose nonce another call has used get the runs of that call; requests whose one slot is taken get none."""
        for request in requests:
            if request.call is not None and calls.get(request.token, request.call) != request.call:
                request.runs, request.over = await self.records.claims.held(request.token, request.worker.name), True
            elif request.slot is not None and request.worker.name in busy and request.before is None:
                request.over = True

    def _check_claim(self, worker: WorkerInfo, count: int, lease: int, *secrets: str | None) -> None:
        check_worker(worker)
        checks.integer(count, "count", 1, self.limits.claim)
        checks.integer(lease, "lease", 1, self.limits.lease)
        for secret in secrets:
            if secret is not None and len(checks.identifier(secret, "The nonce")) < 22:
                raise BadInput(
                    "A claim's nonce has at least 22 characters.", hint="Send 128 random bits as base64url; never use one twice."
                )


def _once_for_each_slot(requests: Iterable[ClaimRequest]) -> None:
    """Of several claims for one slot only the first is made; the others get nothing."""
    names: set[str] = set()
    for request in requests:
        if request.slot is not None:
            request.over = request.over or request.worker.name in names
            names.add(request.worker.name)


async def _let_others_first(requests: Iterable[ClaimRequest]) -> None:
    for request in requests:
        before, request.before = request.before, None
        if before is not None:
            await before()


def _names(requests: Iterable[ClaimRequest]) -> tuple[set[str], set[str]]:
    """The workers with one slot, and the nonces."""
    singles = {request.worker.name for request in requests if request.slot is not None}
    return singles, {request.token for request in requests if request.call is not None}


def _end(requests: Iterable[ClaimRequest]) -> None:
    for request in requests:
        request.over = True
