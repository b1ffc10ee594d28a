"""Handing out runs and keeping them: claim, start, beat, log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.core import Open
from windlass.engine.looking import Looking
from windlass.errors import BadInput, Conflict, LimitReached, OutcomeUnknown
from windlass.gates import Choice
from windlass.machine import LIVE, Start, cancelled, lease_lost, step
from windlass.model import LogLine, Run, State, WorkerInfo
from windlass.store.order import within
from windlass.store.records import FIRST, Grab, Head, Held

LEASE = 30_000
WORKERS = 10_000  # that are known, the living and those seen within a day
WIDEST = 1_024


class Claiming(Looking):
    """The verbs of a worker before it reports."""

    async def register(self, worker: WorkerInfo, *, about: Mapping[str, Any] | None = None) -> None:
        """Make a worker known, and seen now; what it says replaces what it said before, unless it says nothing about itself."""
        self._check_worker(worker)
        if await self.records.workers_besides(worker.name) >= WORKERS:
            raise LimitReached(
                f"There are {WORKERS:,} workers already.", hint="Start them under names that last; silent ones are forgotten after a day."
            )
        text = None if about is None else json.encode(dict(about), most=self.limits.about, what="What the worker tells about itself")
        await self.records.register(worker, text, self.clock.now())

    async def recover(self, worker: WorkerInfo, token: str) -> list[Run]:
        """What a worker still holds of a claim under this token, whose answer it did not get."""
        return await self.records.held(checks.identifier(token, "The token"), checks.name(worker.name, "A worker's name"))

    async def claim(
        self, worker: WorkerInfo, *, count: int = 1, lease: int = LEASE, nonce: str | None = None, token: str | None = None
    ) -> list[Run]:
        """Take up to `count` runs in queue order, each held under a fresh token for `lease` milliseconds.

        Empty means that nothing this worker may take was queued. A worker with one slot gets nothing while it holds a
        run. With a nonce the claim can be asked again: the answer is then what this worker still holds of it. A caller that
        chooses the token itself, 128 random bits never used before, can ask `recover` for it instead.
        """
        self._check_claim(worker, count, lease, nonce, token)
        token, call = nonce or token or self.clock.nonce(), self.clock.nonce() if nonce else None
        slot, room = (0, 1) if worker.slots == 1 else (None, count)
        if nonce and await self.records.claim_known(nonce):
            return await self.records.held(nonce, worker.name)
        grab = Grab(token, worker.name, slot, lease, self.controls.rev, self.clock.now(), call)
        taken: list[Run] = []
        after, width, choice = FIRST, room, Choice(grab.now)
        with self.hands.wanting(room):
            while room > len(taken):
                # Another claim may learn of new lanes and controls while this one looks into the old ones.
                known = self.lanes.last
                if grab.controls != self.controls.rev:  # what was chosen by the old ones counts no more
                    grab, after, choice = grab._replace(controls=self.controls.rev), FIRST, Choice(grab.now)
                lanes = self.open_lanes(worker)
                wide = width if lanes.limited else self.hands.wide(width, room, WIDEST)
                look = await self.look(lanes, choice, after, wide, worker.name, slot)
                if look.newest > known:
                    await self.refresh_lanes()
                    continue
                if look.controls != grab.controls:
                    await self.refresh_controls()
                    continue
                if not look.heads or look.busy:
                    break
                with nullcontext(look.heads) if lanes.limited else self.hands.reaching(look.heads, width) as mine:
                    got = await self._take(lanes, choice, mine, room - len(taken), grab)
                taken += got
                if not got and nonce and await self.records.claim_known(nonce, but=call):
                    return await self.records.held(nonce, worker.name)  # the same claim was asked twice at once
                if len(mine) == len(look.heads):
                    if look.end is not None:
                        after = look.end
                    elif got or not await self.stale():
                        break
                # Others took what was seen, or it may not pass: read on, wider each time, until there is enough or nothing is left.
                width = min(width * 2, WIDEST)
        self.hints.taken([name for run in taken for name in (run.id, run.seq)])
        return taken

    async def _take(self, lanes: Open, choice: Choice, heads: Sequence[Head], count: int, grab: Grab) -> list[Run]:
        grab = grab._replace(now=self.clock.now())
        grab = grab._replace(until=grab.now + self.limits.keep_claim_nonces)
        try:
            if not lanes.limited:
                return await self.records.claim(heads, count, grab)
            return await self._take_within(choice, heads, count, grab)
        except OutcomeUnknown:
            seen = {head.seq for head in heads}
            return [run for run in await self.records.held(grab.token, grab.worker) if run.seq in seen]
        except Conflict:
            return []  # the worker's one slot was taken by another claim of the same name

    async def _take_within(self, choice: Choice, heads: Sequence[Head], count: int, grab: Grab) -> list[Run]:
        """Choose from an unlocked read; one batch then locks, counts again, and drops what no longer fits."""
        got: list[Run] = []
        lost_once: set[int] = set()
        while heads and len(got) < count:
            seen = choice.offer(await self.candidates(choice, heads), count - len(got))
            chosen = {candidate.seq for candidate in choice.runs}
            if chosen or choice.parked or choice.later:
                sets = within(choice.taken, choice.parked, choice.later, choice.gates)
                more = await self.records.claim_within([head for head in heads if head.seq in chosen], sets, grab)
                got += more
                chosen -= {run.seq for run in more}
            if chosen:  # others were faster: what is occupied is read again, and what may only have lost its room is offered once more
                choice.gates.clear()
            again = [head for head in heads[:seen] if head.seq in chosen - lost_once]
            lost_once |= chosen
            heads = [*again, *heads[seen:]]
        return got

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

    async def held(self, run_id: str, token: str, seq: int | None = None) -> Held:
        """A worker's hold on a run, by the id it was given."""
        checks.hold(0 if seq is None else seq, token)
        return Held(seq if seq is not None else (await self.get(run_id)).seq, token)

    async def start(self, run_id: str, token: str, *, seq: int | None = None) -> None:
        """Say that the handler begins; said twice under the same token, it counts once."""
        item = await self.held(run_id, token, seq)
        now = self.clock.now()
        if await self.records.start([item], self.clock.nonce(), now):
            return
        run = await self.get(run_id)
        if run.state is not State.RUNNING or run.token != token:
            step(run, Start(token=token), now)  # raises what is wrong

    async def start_many(self, held: Sequence[Held]) -> set[Held]:
        """Say that these handlers begin; the answer has those that are running under their tokens, by this call or before."""
        checks.count(held, "starts", self.limits.report)
        for item in held:
            checks.hold(item.seq, item.token)
        started = await self.records.start(held, self.clock.nonce(), self.clock.now()) if held else set()
        others = {item.seq for item in held if item not in started}
        found = await self.records.find_seqs(sorted(others)) if others else []
        running = {Held(run.seq, run.token or "") for run in found if run.state is State.RUNNING}
        return started | running.intersection(held)

    async def beat(
        self, held: Sequence[Held], *, lease: int = LEASE, progress: Mapping[Held, str] | None = None
    ) -> list[Literal["ok", "stop", "lost"]]:
        """Extend these leases. "stop" when a cancel is asked for, "lost" when the run is no longer held.

        Progress is the JSON text of how far a run is: it replaces what was told before, and travels only with the run's own beat.
        """
        checks.count(held, "beats", self.limits.report)
        checks.integer(lease, "lease", 1, self.limits.lease)
        for item in held:
            checks.hold(item.seq, item.token)
        told = self._checked_progress(held, progress or {})
        states = await self.records.beat(held, lease, told, self.clock.now()) if held else {}
        answers: dict[State | None, Literal["ok", "stop", "lost"]] = {None: "lost", State.CANCELLING: "stop"}
        return [answers.get(states.get(item), "ok") for item in held]

    def _checked_progress(self, held: Sequence[Held], progress: Mapping[Held, str]) -> Mapping[Held, str]:
        checks.kind(progress, "progress", Mapping)
        for text in progress.values():
            checks.json_text(text, "The progress", self.limits.progress)
        if strangers := progress.keys() - set(held):
            raise BadInput(f"Progress of {len(strangers):,} runs that do not beat.", hint="Send it with the beat of its own run.")
        return progress

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None:
        """Append lines numbered by their worker; a line sent again is kept once. Those numbered above the limit are dropped."""
        checks.count(lines, "log lines", self.limits.lines_per_call)
        if not lines:
            return
        numbered = sorted((checks.integer(n, "A line's number", 1, 2**31), checks.line(text, self.limits.line)) for n, text in lines)
        item = await self.held(run_id, token, seq)
        run = await self.records.add_lines(item, numbered, self.limits.lines, self.clock.now())
        if run is None or run.token != token or run.state not in LIVE:
            run = run or await self.get(run_id)
            raise cancelled(run) if run.state is State.CANCELLED and run.token == token else lease_lost(run)

    async def lines(self, run_id: str, *, after: tuple[int, int] = (0, 0), count: int = 100) -> list[LogLine]:
        """The log of a run in the order it was written, behind (attempt, number)."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.kind(after, "after", tuple)
        checks.count(after, "numbers in after", 2)
        attempt, n = (*after, 0, 0)[:2]
        for part in (attempt, n):
            checks.integer(part, "after", 0, 2**31)
        run = await self.get(run_id)
        return await self.records.lines(run.seq, (attempt, n), count)
