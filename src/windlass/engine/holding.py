"""Keeping runs while they are worked on: start, beat, log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.engine import checks
from windlass.engine.core import LEASE, Core
from windlass.errors import BadInput
from windlass.machine import LIVE, Start, cancelled, lease_lost, step
from windlass.model import BeatAnswer, LogLine, State
from windlass.store.records import Held


class Holding(Core):
    """The verbs of a worker between its claim and its report."""

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

    async def beat(self, held: Sequence[Held], *, lease: int = LEASE, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]:
        """Extend these leases. "stop" when a cancel is asked for, "lost" when the run is no longer held.

        "unknown" when another transaction has the run locked: the lease is as it was, and the beat is to be repeated soon.

        Progress is the JSON text of how far a run is: it replaces what was told before, and travels only with the run's own beat.
        """
        checks.count(held, "beats", self.limits.report)
        checks.integer(lease, "lease", 1, self.limits.lease)
        for item in held:
            checks.hold(item.seq, item.token)
        told = self._checked_progress(held, progress or {})
        states = await self._beat(held, lease, told) if held else {}
        locked = await self.records.still_held([item for item in held if item not in states])
        answers: dict[State | None, BeatAnswer] = {None: "lost", State.CANCELLING: "stop"}
        return ["unknown" if item in locked else answers.get(states.get(item), "ok") for item in held]

    async def _beat(self, held: Sequence[Held], lease: int, progress: Mapping[Held, str]) -> Mapping[Held, State]:
        stamp = self.stamp()
        states, server = await self.records.beat(held, lease, progress, stamp.now)
        if self.mistaken(stamp, server, lease):
            states, _ = await self.records.beat(held, lease, progress, self.clock.now())
        return states

    def _checked_progress(self, held: Sequence[Held], progress: Mapping[Held, str]) -> Mapping[Held, str]:
        checks.kind(progress, "progress", Mapping)
        for text in progress.values():
            checks.json_text(text, "The progress", self.limits.progress)
        if strangers := progress.keys() - set(held):
            raise BadInput(f"Progress of {len(strangers):,} runs that do not beat.", hint="Send it with the beat of its own run.")
        return progress

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None:
        """Append lines numbered by their worker; a line sent again is kept once, and what is beyond the limits is dropped."""
        checks.count(lines, "log lines", self.limits.lines_per_call)
        if not lines:
            return
        numbered = {checks.integer(n, "A line's number", 1, 2**31): checks.line(text, self.limits.line) for n, text in reversed(lines)}
        item = await self.held(run_id, token, seq)
        run = await self.records.add_lines(item, sorted(numbered.items()), self.limits, self.clock.now())
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
