"""Runs that a worker holds: start, heartbeat, log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.defaults import LEASE
from windlass.engine import checks
from windlass.engine.ground import Ground, Part
from windlass.engine.runs import Runs
from windlass.errors import BadInput, WindlassError
from windlass.machine import LIVE, Start, cancelled, lease_lost, step
from windlass.model import BeatAnswer, Run, State
from windlass.store.records import Held


class Holds(Part):
    """The verbs of a worker between its claim and its report."""

    def __init__(self, ground: Ground, runs: Runs) -> None:
        super().__init__(ground)
        self._runs = runs

    async def hold(self, run_id: str, token: str, seq: int | None = None) -> Held:
        """A worker's hold on a run, by the run's id."""
        checks.hold(0 if seq is None else seq, token)
        return Held(seq if seq is not None else (await self._runs.get(run_id)).seq, token)

    async def start(self, run_id: str, token: str, *, seq: int | None = None) -> None:
        """Record that the handler begins; repeated under the same token, it counts once."""
        item = await self.hold(run_id, token, seq)
        now = self.clock.now()
        if await self.records.work.start([item], self.clock.nonce(), now):
            return
        run = await self._runs.get(run_id)
        if run.state is not State.RUNNING or run.token != token:
            step(run, Start(token=token), now)  # raises if the start is refused

    async def start_many(self, held: Sequence[Held]) -> set[Held]:
        """Record that these handlers begin; returns those that are running under their tokens, by this call or an earlier one."""
        checks.count(held, "starts", self.limits.report)
        for item in held:
            checks.hold(item.seq, item.token)
        started = await self.records.work.start(held, self.clock.nonce(), self.clock.now()) if held else set()
        others = {item.seq for item in held if item not in started}
        runs = await self.records.runs.find_seqs(sorted(others)) if others else []
        running = {Held(run.seq, run.token or "") for run in runs if run.state is State.RUNNING}
        return started | running.intersection(held)

    async def beat(self, held: Sequence[Held], *, lease: int = LEASE, progress: Mapping[Held, str] | None = None) -> list[BeatAnswer]:
        """Extend these leases. "stop" when a cancel is requested, "lost" when the run is no longer held.

        "unknown" when another transaction has the run locked: the lease is unchanged, and the heartbeat should be repeated soon.

        Progress is a JSON text that replaces the previous one, and is sent only with the run's own heartbeat.
        """
        checks.count(held, "beats", self.limits.report)
        checks.integer(lease, "lease", 1, self.limits.lease)
        for item in held:
            checks.hold(item.seq, item.token)
        texts = self._checked_progress(held, progress or {})
        states = await self._beat(held, lease, texts) if held else {}
        locked = await self.records.work.still_held([item for item in held if item not in states])
        answers: dict[State | None, BeatAnswer] = {None: "lost", State.CANCELLING: "stop"}
        return ["unknown" if item in locked else answers.get(states.get(item), "ok") for item in held]

    async def _beat(self, held: Sequence[Held], lease: int, progress: Mapping[Held, str]) -> Mapping[Held, State]:
        stamp = self.ground.stamp()
        states, server = await self.records.work.beat(held, lease, progress, stamp.now)
        if self.ground.mistaken(stamp, server, lease):
            states, _ = await self.records.work.beat(held, lease, progress, self.clock.now())
        return states

    def _checked_progress(self, held: Sequence[Held], progress: Mapping[Held, str]) -> Mapping[Held, str]:
        checks.kind(progress, "progress", Mapping)
        for text in progress.values():
            checks.json_text(text, "The progress", self.limits.progress)
        if others := progress.keys() - set(held):
            raise BadInput(
                f"Progress of {len(others):,} runs without a heartbeat in this call.", hint="Send it with the heartbeat of its own run."
            )
        return progress

    async def log(self, run_id: str, token: str, lines: Sequence[tuple[int, str]], *, seq: int | None = None) -> None:
        """Append lines numbered by their worker; a line sent again is kept once, and lines beyond the limits are dropped."""
        checks.count(lines, "log lines", self.limits.lines_per_call)
        if not lines:
            return
        by_number = {checks.integer(n, "A line's number", 1, 2**31): checks.line(text, self.limits.line) for n, text in reversed(lines)}
        item = await self.hold(run_id, token, seq)
        run = await self.records.work.add_lines(item, sorted(by_number.items()), self.limits, self.clock.now())
        if run is None or run.token != token or run.state not in LIVE:
            raise not_held(run or await self._runs.get(run_id), token)


def not_held(run: Run, token: str) -> WindlassError:
    """The error for a write under a token that no longer holds the run."""
    return cancelled(run) if run.state is State.CANCELLED and run.token == token else lease_lost(run)
